//! The kernel programs on pretended hosts. Barriers, all-reduces and changes of words travel as frames through namespaces.

use std::cell::RefCell;
use std::net::SocketAddrV4;

use fastrand::Rng;
use weir_link::shm::node_group::Operation;
use weir_link::shm::shared_words::SharedWords;
use weir_nic::Operation as WordChange;
use weir_nic::format::DEFAULT_PORT;
use weir_nic::format::MAX_VECTOR_WORDS;
use weir_nic::pretended::{Network, address};
use weir_nic::{
    self as nic, AllReduce, Barrier, Combination, Domain, Element, INBOX_WORDS, Inbox, Membership, NicError,
    Patience, Remote,
};
use weir_proto::offload::lock::Change as LockChange;
use weir_proto::offload::reduce::Vector;
use weir_proto::offload::{WordOperation, WordType, WordUpdate};

use crate::Executor;
use crate::case::{Case, Change, Collective, LockCase, MultiSend, Results, WORDS_EACH, lengths_to, message};
use crate::locks::{Contender, LOCK_WORDS, Words};
use crate::node::{pause, poll_in_turns, take_turns};

const HOSTS: usize = 4;
/// Operations at once. Their words lie behind those of all members.
const MEETINGS: u64 = 4;
const FIRST_BARRIER: u64 = 1000;
const FIRST_ALL_REDUCE: u64 = 1010;
/// Words for locks lie behind those that others change: 64 for each member.
const FIRST_LOCK_WORD: u64 = 640;
const FIRST_MULTI_SEND: u64 = 1100;

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
    /// By all-reduce and member.
    all_reduces: Vec<Vec<AllReduce>>,
    /// By member. None if two members share a host.
    multi_sends: Vec<Copies>,
    memberships: Vec<Membership>,
}

/// How a member sends to all others, and receives from each of them.
struct Copies {
    sender: nic::MultiSend,
    /// With the sender of each one.
    inboxes: Vec<(usize, Inbox)>,
}

/// Words for locks, behind those that others change. Members of one host change its words without frames.
struct LockWords<'a> {
    remotes: RefCell<&'a mut Vec<Option<Remote>>>,
    own: &'a SharedWords,
    host: usize,
}

impl Words for LockWords<'_> {
    async fn change(&self, owner: u32, word: u32, change: LockChange) -> u64 {
        pause().await;
        let place = FIRST_LOCK_WORD + u64::from(owner * LOCK_WORDS + word);
        if owner as usize % HOSTS == self.host {
            let place = place as usize;
            return match change {
                LockChange::Read => self.own.load(place),
                LockChange::Swap(new) => self.own.swap(place, new),
                LockChange::CompareSwap { expected, new } => self.own.compare_swap(place, expected, new),
            };
        }
        let remote = &mut self.remotes.borrow_mut()[owner as usize];
        let remote = remote.as_mut().expect("on another host");
        let old = match change {
            LockChange::Read => remote.load(place),
            LockChange::Swap(new) => remote.swap(place, new),
            LockChange::CompareSwap { expected, new } => remote.compare_swap(place, expected, new),
        };
        old.expect("an answer")
    }

    async fn pause(&self) {
        pause().await;
    }
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
        fn at_all<T: Send>(
            network: &Network,
            members: u32,
            new: impl Fn(u32) -> Result<T, NicError> + Sync,
        ) -> Vec<T> {
            let member = |member| network.at(member as usize % HOSTS, || new(member).expect("sockets"));
            (0..members).map(member).collect()
        }
        let barriers_at = |number: u64| {
            let place = FIRST_BARRIER + number;
            at_all(network, members, |member| {
                Barrier::new(&domain, &list, member, place, Patience::default())
            })
        };
        let all_reduces_at = |number: u64| {
            let place = FIRST_ALL_REDUCE + number;
            at_all(network, members, |member| {
                AllReduce::new(&domain, &list, member, place, Patience::default())
            })
        };
        // A sender's word, and the words of its inboxes at all others.
        let place = |sender: usize| FIRST_MULTI_SEND + (INBOX_WORDS * sender) as u64;
        let memberships: Vec<Membership> = memberships;
        let copies_of = |rank: usize| {
            let others: Vec<usize> = (0..members as usize).filter(|other| *other != rank).collect();
            let receivers: Vec<SocketAddrV4> = others.iter().map(|other| list[*other]).collect();
            let inbox = |from: &usize| {
                // Our number among the receivers of that sender.
                let number = (rank - usize::from(rank > *from)) as u32;
                let (sender, place) = (list[*from], place(*from));
                (*from, memberships[rank].inbox(sender, number, place, Patience::default()).expect("room"))
            };
            network.at(rank, || Copies {
                sender: memberships[rank]
                    .multi_send(&receivers, place(rank), Patience::default())
                    .expect("a socket"),
                inboxes: others.iter().map(inbox).collect(),
            })
        };
        let senders = if members as usize <= HOSTS { members as usize } else { 0 };
        let multi_sends = (0..senders).map(copies_of).collect();
        Some(KernelExecutor {
            multi_sends,
            remotes: (0..members).map(remotes_of).collect(),
            barriers: (0..MEETINGS).map(barriers_at).collect(),
            all_reduces: (0..MEETINGS).map(all_reduces_at).collect(),
            memberships,
        })
    }

    fn perform_all(&mut self, collectives: &[Collective], random: &mut Rng) -> Results {
        let members = self.remotes.len();
        let count = collectives.len();
        let mut results: Results = vec![vec![Vec::new(); members]; count];
        let (mut begun, mut ended) = (vec![0; members], vec![vec![false; count]; members]);
        take_turns(members as u32, random, |rank, random| {
            // One after the other, so that members are in different operations.
            if begun[rank] < count && random.bool() {
                self.begin(begun[rank], rank, &collectives[begun[rank]]);
                begun[rank] += 1;
            }
            for number in 0..begun[rank] {
                if ended[rank][number] {
                    continue;
                }
                let Some(result) = self.ended(number, rank, &collectives[number]) else { continue };
                (results[number][rank], ended[rank][number]) = (result, true);
                assert!(
                    begun.iter().all(|begun| *begun > number),
                    "operation {number} ends early: {begun:?}"
                );
            }
            ended[rank].iter().all(|ended| *ended)
        });
        results
    }

    fn begin(&mut self, number: usize, rank: usize, collective: &Collective) {
        let Operation::AllReduce(vector) = collective.operation else {
            return self.barriers[number][rank].start().expect("a frame");
        };
        let (combination, element) = of_vector(vector).expect("taken");
        // The last word may have half of its bytes.
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let words: Vec<u64> = collective.data[rank].chunks(8).map(word).collect();
        self.all_reduces[number][rank].start(combination, element, &words).expect("a frame");
    }

    fn ended(&mut self, number: usize, rank: usize, collective: &Collective) -> Option<Vec<u8>> {
        let Operation::AllReduce(vector) = collective.operation else {
            return self.barriers[number][rank].test().expect("no failure").then(Vec::new);
        };
        let words = self.all_reduces[number][rank].test().expect("no failure")?;
        let word = |word: &u64| with_nan_of_processor(*word, vector.combination).to_le_bytes();
        let mut bytes: Vec<u8> = words.iter().flat_map(word).collect();
        bytes.truncate(vector.bytes as usize);
        Some(bytes)
    }

    fn use_lock(&mut self, case: &LockCase, random: &mut Rng) -> Results {
        let members = self.remotes.len() as u32;
        let of_member = |(rank, remotes): (usize, _)| LockWords {
            remotes: RefCell::new(remotes),
            own: self.memberships[rank % HOSTS].words(),
            host: rank % HOSTS,
        };
        let words: Vec<_> = self.remotes.iter_mut().enumerate().map(of_member).collect();
        let log = RefCell::default();
        let contender = |(member, words)| Contender { words, case, member, members, log: &log };
        let contenders: Vec<_> = (0..).zip(&words).map(contender).collect();
        vec![poll_in_turns(contenders.iter().map(Contender::take_part), random)]
    }

    fn multi_send(&mut self, lists: &[Vec<MultiSend>], random: &mut Rng) -> Results {
        let expected: Vec<Vec<Vec<usize>>> = (0..).zip(lists).map(|(to, _)| lengths_to(lists, to)).collect();
        let mut received: Vec<Vec<Vec<u64>>> = vec![vec![Vec::new(); lists.len()]; lists.len()];
        let mut begun = vec![0; lists.len()];
        take_turns(lists.len() as u32, random, |rank, _| {
            let copies = &mut self.multi_sends[rank];
            let has_ended = copies.sender.test().expect("all receivers");
            if let Some(MultiSend { bytes, .. }) = lists[rank].get(begun[rank]).filter(|_| has_ended) {
                let message = message(rank as u32, begun[rank], *bytes);
                let words = message.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("whole")));
                copies.sender.start(&words.collect::<Vec<_>>()).expect("a frame");
                begun[rank] += 1;
            }
            for (from, inbox) in &mut copies.inboxes {
                let lengths = &mut received[rank][*from];
                while let Some(words) = inbox.try_receive() {
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                    assert_eq!(
                        bytes,
                        message(*from as u32, lengths.len(), bytes.len()),
                        "from {from} to {rank}"
                    );
                    lengths.push(bytes.len() as u64);
                }
            }
            let mut senders = received[rank].iter().zip(&expected[rank]);
            let has_all = senders.all(|(received, expected)| received.len() >= expected.len());
            has_ended && begun[rank] == lists[rank].len() && has_all
        });
        let lengths = |of: &Vec<Vec<u64>>| of.concat().iter().flat_map(|it| it.to_le_bytes()).collect();
        vec![received.iter().map(lengths).collect()]
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

/// Sums and products that are not a number have bits of the processor's own choice, and the programs cannot know them.
fn with_nan_of_processor(word: u64, combination: weir_proto::offload::Combination) -> u64 {
    let nan = std::hint::black_box(f64::INFINITY) * std::hint::black_box(0.0);
    if !matches!(combination.operation, WordOperation::Sum | WordOperation::Product) {
        return word;
    }
    let half = |bits: u32| if f32::from_bits(bits).is_nan() { (nan as f32).to_bits() } else { bits };
    match combination.word_type {
        WordType::F64 if f64::from_bits(word).is_nan() => nan.to_bits(),
        WordType::F32 => u64::from(half((word >> 32) as u32)) << 32 | u64::from(half(word as u32)),
        _ => word,
    }
}

/// How the programs combine a vector. `None`: they do not.
fn of_vector(vector: Vector) -> Option<(Combination, Element)> {
    let combination = match vector.combination.operation {
        WordOperation::Sum => Combination::Sum,
        WordOperation::Min => Combination::Min,
        WordOperation::Max => Combination::Max,
        WordOperation::And => Combination::And,
        WordOperation::Or => Combination::Or,
        WordOperation::Product => Combination::Prod,
        _ => return None,
    };
    let element = match vector.combination.word_type {
        WordType::U32 => Element::U32,
        WordType::I32 => Element::I32,
        WordType::U64 => Element::U64,
        WordType::I64 => Element::I64,
        WordType::F32 => Element::F32,
        WordType::F64 => Element::F64,
    };
    (vector.bytes.div_ceil(8) as usize <= MAX_VECTOR_WORDS).then_some((combination, element))
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

    fn takes(&self, case: &Case) -> bool {
        match case {
            Case::Collectives(all) => all.iter().all(|it| match it.operation {
                Operation::Barrier => true,
                Operation::AllReduce(vector) => of_vector(vector).is_some(),
                _ => false,
            }),
            Case::Words(lists) => lists.iter().enumerate().all(|(rank, list)| {
                list.iter().all(|change| {
                    self.remotes[rank][change.to as usize].is_some() && of_kernel(&change.update).is_some()
                })
            }),
            Case::Lock(_) => true,
            // One receiver on each host, and always the same ones.
            Case::MultiSends(lists) => {
                let is_frame = |it: &MultiSend| {
                    it.to.len() + 1 == lists.len()
                        && it.bytes.is_multiple_of(8)
                        && (1..=MAX_VECTOR_WORDS).contains(&(it.bytes / 8))
                };
                !self.multi_sends.is_empty() && lists.iter().flatten().all(is_frame)
            }
        }
    }

    fn perform(&mut self, cases: &[&Case], random: &mut Rng) -> Vec<Results> {
        let each = cases.iter().map(|case| match case {
            Case::Collectives(collectives) => self.perform_all(collectives, random),
            Case::Words(lists) => self.change(lists),
            Case::Lock(lock) => self.use_lock(lock, random),
            Case::MultiSends(lists) => self.multi_send(lists, random),
        });
        each.collect()
    }
}
