//! The kernel programs on pretended hosts. Barriers and changes of words travel as frames through namespaces.

use std::net::SocketAddrV4;

use fastrand::Rng;
use weir_link::shm::node_group::Operation;
use weir_nic::format::DEFAULT_PORT;
use weir_nic::pretended::{Network, address};
use weir_nic::{Barrier, Domain, Membership, Operation as WordChange, Patience, Remote};
use weir_proto::offload::{WordOperation, WordType, WordUpdate};

use crate::Executor;
use crate::case::{Case, Change, Collective, Results, WORDS_EACH};
use crate::node::take_turns;
use crate::oracle::Brackets;

const HOSTS: usize = 4;
/// Barriers at once. Their words lie behind those of all members.
const BARRIERS: u64 = 4;
const FIRST_BARRIER: u64 = 1000;

/// Hosts with programs, or `None` and a line that says why there are none.
pub fn hosts() -> Option<Network> {
    let made = Network::new(HOSTS).map_err(|why| why.to_string());
    let attached = made.and_then(|mut network| {
        network.attach(DEFAULT_PORT).map_err(|why| why.to_string())?;
        Ok(network)
    });
    attached.inspect_err(|why| eprintln!("without the kernel: {why}")).ok()
}

pub struct KernelExecutor {
    /// By member and other member.
    remotes: Vec<Vec<Option<Remote>>>,
    /// By barrier and member.
    barriers: Vec<Vec<Barrier>>,
    _memberships: Vec<Membership>,
}

impl KernelExecutor {
    /// `None` for one member: frames need two hosts.
    pub fn new(network: &Network, members: u32, random: &mut Rng) -> Option<KernelExecutor> {
        if members < 2 {
            return None;
        }
        let secret: [u8; 16] = std::array::from_fn(|_| random.u8(..));
        let domain = Domain::of(&secret);
        let joined = |host| network.join(host, &secret).expect("a member");
        let memberships = (0..HOSTS).map(joined).collect();
        let host_of = |member: u32| member as usize % HOSTS;
        let at = |member| SocketAddrV4::new(address(host_of(member)), DEFAULT_PORT);
        let list: Vec<SocketAddrV4> = (0..members).map(at).collect();
        let remotes_of = |member| -> Vec<Option<Remote>> {
            let other = |other| {
                // A host reaches its own words without frames.
                let is_far = host_of(other) != host_of(member);
                is_far.then(|| Remote::new(&domain, at(other), Patience::default()).expect("a socket"))
            };
            network.at(host_of(member), || (0..members).map(other).collect())
        };
        let barriers_at = |number| -> Vec<Barrier> {
            let barrier = |member| {
                let place = FIRST_BARRIER + number;
                network.at(host_of(member), || {
                    Barrier::new(&domain, &list, member, place, Patience::default()).expect("a barrier")
                })
            };
            (0..members).map(barrier).collect()
        };
        Some(KernelExecutor {
            remotes: (0..members).map(remotes_of).collect(),
            barriers: (0..BARRIERS).map(barriers_at).collect(),
            _memberships: memberships,
        })
    }

    fn perform_all(&mut self, collectives: &[Collective], random: &mut Rng) -> Results {
        let members = self.remotes.len() as u32;
        let count = collectives.len();
        let (mut begun, mut ended) = (vec![0; members as usize], vec![vec![false; count]; members as usize]);
        take_turns(members, random, |rank, random| {
            // One after the other, so that members are in different operations.
            if begun[rank] < count && random.bool() {
                self.barriers[begun[rank]][rank].start().expect("a frame");
                begun[rank] += 1;
            }
            for number in 0..begun[rank] {
                if !ended[rank][number] && self.barriers[number][rank].test().expect("no failure") {
                    ended[rank][number] = true;
                    assert!(
                        begun.iter().all(|begun| *begun > number),
                        "barrier {number} ends early: {begun:?}"
                    );
                }
            }
            ended[rank].iter().all(|ended| *ended)
        });
        vec![vec![Vec::new(); members as usize]; count]
    }

    fn change(&mut self, lists: &[Vec<Change>]) -> Results {
        let of_member = |(rank, list): (usize, &Vec<Change>)| {
            let mut old = |Change { to, word, update }: &Change| {
                let place = rank as u64 * u64::from(WORDS_EACH) + u64::from(*word) + 64 * u64::from(*to);
                let remote = self.remotes[rank][*to as usize].as_mut().expect("taken");
                let operation = of_kernel(update).expect("taken");
                remote.perform(operation, place, update.operand, update.compare).expect("an answer")
            };
            list.iter().flat_map(|change| old(change).to_le_bytes()).collect()
        };
        vec![lists.iter().enumerate().map(of_member).collect()]
    }
}

/// The operation of the programs. `None`: they have none.
fn of_kernel(update: &WordUpdate) -> Option<WordChange> {
    let operation = match update.operation {
        WordOperation::Read => WordChange::Read,
        WordOperation::Write => WordChange::Swap,
        WordOperation::CompareSwap => WordChange::CompareSwap,
        WordOperation::Sum => WordChange::Add,
        WordOperation::And => WordChange::And,
        WordOperation::Or => WordChange::Or,
        WordOperation::Xor => WordChange::Xor,
        _ => return None,
    };
    (update.word_type == WordType::U64).then_some(operation)
}

impl Executor for KernelExecutor {
    fn name(&self) -> String {
        String::from("kernel programs")
    }

    fn brackets(&self) -> Brackets {
        Brackets::FromTheLeft
    }

    fn takes(&self, case: &Case) -> bool {
        match case {
            Case::Collectives(all) => all.iter().all(|it| matches!(it.operation, Operation::Barrier)),
            Case::Words(lists) => lists.iter().enumerate().all(|(rank, list)| {
                list.iter().all(|change| {
                    self.remotes[rank][change.to as usize].is_some() && of_kernel(&change.update).is_some()
                })
            }),
        }
    }

    fn perform(&mut self, cases: &[&Case], random: &mut Rng) -> Vec<Results> {
        let each = cases.iter().map(|case| match case {
            Case::Collectives(collectives) => self.perform_all(collectives, random),
            Case::Words(lists) => self.change(lists),
        });
        each.collect()
    }
}
