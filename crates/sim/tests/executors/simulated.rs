//! The machines in the simulator: on processors or on NICs, with any schedule. Members are some of the ranks, in any order.

use std::cell::RefCell;
use std::rc::Rc;

use fastrand::Rng;
use weir_link::shm::node_group::Operation;
use weir_proto::offload::group::{
    BarrierSchedule, BroadcastTree, MAX_BROADCAST_BYTES, MAX_EXCHANGE_BYTES, ReductionTree, Shape,
};
use weir_proto::offload::lock::Change as LockChange;
use weir_proto::offload::{WordOperation, WordType, WordUpdate};
use weir_proto::{Geometry, Scheme};
use weir_sim::cost::{Cost, NicCost};
use weir_sim::network::ideal::Ideal;
use weir_sim::program::{GroupOperation, Program, Rank, WORDS};
use weir_sim::world::{World, WorldSpec};

use crate::Executor;
use crate::case::{Case, Change, Collective, LONGEST_MULTI_SEND, MultiSend, Results, WORDS_EACH, lengths_to};
use crate::locks::{Contender, LOCK_WORDS, Log, Words};

const US: u64 = 1_000_000;
const GROUP: u32 = 9;
/// Of multi-sends.
const TAG: u64 = 5;
const FIRST_LOCK_WORD: u32 = WORDS - LOCK_WORDS;

pub struct SimulatedExecutor {
    on_nic: bool,
    shape: Shape,
    /// The blocks of an all-to-all leave at once, otherwise by exchanges.
    exchanges_at_once: bool,
    ranks: u32,
    /// The rank of each member.
    members: Vec<u32>,
}

impl SimulatedExecutor {
    pub fn new(members: u32, on_nic: bool, reduction: ReductionTree, random: &mut Rng) -> SimulatedExecutor {
        let ranks = members + random.u32(..3);
        let mut list: Vec<u32> = (0..ranks).collect();
        random.shuffle(&mut list);
        list.truncate(members as usize);
        let degree = random.u32(1..=4);
        let lambda_thousandths = random.u32(1000..5000);
        let barriers = [BarrierSchedule::PairwiseExchange, BarrierSchedule::GatherBroadcast { degree }];
        let broadcasts = [BroadcastTree::Binomial, BroadcastTree::Postal { lambda_thousandths }];
        let barrier = random.choice(barriers).expect("two");
        let broadcast = random.choice(broadcasts).expect("two");
        let (shape, exchanges_at_once) = (Shape { barrier, broadcast, reduction }, random.bool());
        SimulatedExecutor { on_nic, shape, exchanges_at_once, ranks, members: list }
    }

    /// A world with any flow control whose credits are those of a pair.
    fn world(&self, random: &mut Rng, program: impl Fn(Rank) -> Program) -> World<Ideal> {
        let cost =
            Cost { packet_send_ps: 40_000, packet_receive_ps: 50_000, send_call_ps: 200_000, ..Cost::FREE };
        let prices = NicCost {
            packet_send_ps: US / 5,
            packet_receive_ps: US / 4,
            copy_ps_per_kib: US / 10,
            combine_ps_per_kib: US,
            ..NicCost::FREE
        };
        let schemes =
            [Scheme::Unlimited, Scheme::Static { piggyback: false }, Scheme::Static { piggyback: true }];
        let scheme = random.choice(schemes).expect("three");
        let spec = WorldSpec {
            nic: self.on_nic.then_some(prices),
            machines_on_nic: self.on_nic,
            event_limit: 50_000_000,
            ..WorldSpec::new(self.ranks, scheme, 20, cost)
        };
        World::new(spec, Ideal::with_geometry(US, 100, Geometry::EXTOLL), program)
    }
}

/// What one member has got, by case.
type Gotten = Vec<Vec<Vec<u8>>>;

/// A case as one member sees it.
async fn take_part(
    rank: &Rank,
    case: &Case,
    (place, members): (u32, &[u32]),
    at_once: bool,
    log: &RefCell<Log>,
) -> Vec<Vec<u8>> {
    match case {
        Case::Collectives(all) => {
            let count = members.len() as u32;
            let begun: Vec<_> = all.iter().map(|it| begin(rank, it, (place, count), at_once)).collect();
            let mut results = Vec::new();
            for (operations, collective) in begun.into_iter().zip(all) {
                let mut vectors = Vec::new();
                for operation in operations {
                    let (status, vector) = rank.ended(operation).await;
                    assert_eq!((status.fault, status.refused), (None, false), "{:?}", collective.operation);
                    vectors.push(vector);
                }
                if let Operation::AllToAll { bytes } = collective.operation
                    && !at_once
                {
                    let own = place as usize * bytes as usize;
                    vectors.insert(0, collective.data[place as usize][own..own + bytes as usize].to_vec());
                    // By distance of the sender before us. By rank they run backwards from us.
                    vectors.reverse();
                    vectors.rotate_right(place as usize + 1);
                }
                let mut bytes = vectors.concat();
                match collective.operation {
                    // From the root on in a circle.
                    Operation::Gather { root, bytes: block } if root == place => {
                        bytes.rotate_right((root * block) as usize);
                    }
                    Operation::AllGather { bytes: block } => bytes.rotate_right((place * block) as usize),
                    Operation::AllToAll { bytes: block } if at_once => {
                        bytes.rotate_right((place * block) as usize);
                    }
                    Operation::Scatter { root, bytes: block } if root == place => {
                        bytes.truncate(block as usize);
                    }
                    _ => {}
                }
                let gets = collective.operation.result_bytes(place, count) > 0;
                results.push(if gets { bytes } else { Vec::new() });
            }
            results
        }
        Case::Words(lists) => {
            let begun: Vec<_> = lists[place as usize]
                .iter()
                .map(|Change { to, word, update }| {
                    let (to, word) = (members[*to as usize], place * WORDS_EACH + word);
                    match update.operation {
                        WordOperation::CompareSwap => {
                            rank.icompare_swap(to, word, update.compare, update.operand)
                        }
                        operation => rank.ifetch(to, word, operation, update.operand),
                    }
                })
                .collect();
            let mut olds = Vec::new();
            for handle in begun {
                olds.extend(rank.wait(handle).await.bytes.to_le_bytes());
            }
            vec![olds]
        }
        Case::Lock(lock) => {
            // They come at different times, and would look at words for long.
            rank.ended(rank.ibarrier(GROUP)).await;
            let words = SimulatedWords { rank, members };
            let count = members.len() as u32;
            let contender = Contender { words: &words, case: lock, member: place, members: count, log };
            vec![contender.take_part().await]
        }
        Case::MultiSends(lists) => {
            let capacity = LONGEST_MULTI_SEND as u64;
            let mut receives = Vec::new();
            for (from, lengths) in members.iter().zip(lengths_to(lists, place)) {
                receives.extend(lengths.iter().map(|_| rank.irecv(Some(*from), TAG, capacity)));
            }
            let mut sends = Vec::new();
            for MultiSend { to, bytes } in &lists[place as usize] {
                let to: Vec<u32> = to.iter().map(|to| members[*to as usize]).collect();
                sends.extend(rank.imulti_send(&to, TAG, *bytes as u64));
            }
            let mut lengths = Vec::new();
            for receive in receives {
                let status = rank.wait(receive).await;
                assert_eq!((status.fault, status.refused), (None, false));
                lengths.extend(status.bytes.to_le_bytes());
            }
            rank.wait_all(sends).await;
            vec![lengths]
        }
    }
}

/// Words for locks, behind those that others change.
struct SimulatedWords<'a> {
    rank: &'a Rank,
    members: &'a [u32],
}

impl Words for SimulatedWords<'_> {
    async fn change(&self, owner: u32, word: u32, change: LockChange) -> u64 {
        let (rank, owner, word) = (self.rank, self.members[owner as usize], FIRST_LOCK_WORD + word);
        let (operation, operand, compare) = match change {
            LockChange::Read => (WordOperation::Read, 0, 0),
            LockChange::Swap(new) => (WordOperation::Write, new, 0),
            LockChange::CompareSwap { expected, new } => (WordOperation::CompareSwap, new, expected),
        };
        if owner == rank.rank() {
            let update = WordUpdate { operation, word_type: WordType::U64, operand, compare };
            return rank.change_own_word(word, update).await;
        }
        let handle = match operation {
            WordOperation::CompareSwap => rank.icompare_swap(owner, word, compare, operand),
            operation => rank.ifetch(owner, word, operation, operand),
        };
        rank.wait(handle).await.bytes
    }

    async fn pause(&self) {
        // A rank serves others only while it waits for an operation. The words of any other one will do.
        let others = self.members.iter().copied().filter(|member| *member != self.rank.rank());
        for other in others.take(1) {
            let handle = self.rank.ifetch(other, FIRST_LOCK_WORD, WordOperation::Read, 0);
            self.rank.wait(handle).await;
        }
    }
}

/// Begins the operations of the machine that make a collective operation.
///
/// - `at_once`: those of an all-to-all are one.
fn begin(
    rank: &Rank,
    collective: &Collective,
    (place, members): (u32, u32),
    at_once: bool,
) -> Vec<GroupOperation> {
    let data = collective.data[place as usize].clone();
    vec![match collective.operation {
        Operation::AllToAll { bytes } if at_once => {
            let mut vector = data;
            vector.rotate_left((place * bytes) as usize);
            rank.iall_to_all(GROUP, bytes, vector)
        }
        Operation::AllGather { bytes } => {
            let mut vector = data;
            vector.resize((bytes * members) as usize, 0xee);
            rank.iall_gather(GROUP, bytes, vector)
        }
        Operation::AllToAll { bytes } => {
            let block = |distance: u32| {
                let begin = ((place + distance) % members * bytes) as usize;
                data[begin..begin + bytes as usize].to_vec()
            };
            let exchange = |distance| rank.iexchange(GROUP, distance, block(distance));
            return (1..members).map(exchange).collect();
        }
        Operation::Barrier => rank.ibarrier(GROUP),
        Operation::AllReduce(vector) => rank.iall_reduce(GROUP, vector.combination, data),
        Operation::Reduce { vector, .. } => rank.ireduce(GROUP, vector.combination, data),
        Operation::Broadcast { root, bytes } => {
            rank.ibroadcast(GROUP, root, if root == place { data } else { vec![0xee; bytes as usize] })
        }
        Operation::Gather { root, bytes } => {
            let mut vector = data;
            if root == place {
                vector.resize((bytes * members) as usize, 0xee);
            }
            rank.igather(GROUP, root, bytes, vector)
        }
        Operation::Scatter { root, bytes } => {
            let mut vector = data;
            match root == place {
                true => vector.rotate_left((root * bytes) as usize),
                false => vector.resize(bytes as usize, 0xee),
            }
            rank.iscatter(GROUP, root, bytes, vector)
        }
    }]
}

/// Named trees have brackets of their own.
fn is_for_tree(collective: &Collective, tree: ReductionTree) -> bool {
    match collective.operation {
        Operation::AllReduce(vector) | Operation::Reduce { vector, .. } => {
            matches!(tree, ReductionTree::FromTheLeft | ReductionTree::Flat)
                || !vector.combination.depends_on_brackets()
        }
        _ => true,
    }
}

fn is_for_machines(collective: &Collective) -> bool {
    match collective.operation {
        Operation::Barrier | Operation::AllReduce(_) => true,
        Operation::Reduce { root, .. } => root == 0,
        Operation::Broadcast { bytes, .. } => bytes <= MAX_BROADCAST_BYTES,
        Operation::AllToAll { bytes }
        | Operation::AllGather { bytes }
        | Operation::Gather { bytes, .. }
        | Operation::Scatter { bytes, .. } => bytes <= MAX_EXCHANGE_BYTES,
    }
}

impl Executor for SimulatedExecutor {
    fn name(&self) -> String {
        let place = if self.on_nic { "NIC" } else { "processor" };
        format!("simulated {place}, {:?}, members {:?}", self.shape, self.members)
    }

    fn takes(&self, case: &Case) -> bool {
        let is_for_words = |Change { update, .. }: &Change| {
            let operation = update.operation;
            update.word_type == WordType::U64
                && (!operation.compares() || operation == WordOperation::CompareSwap)
        };
        match case {
            Case::Collectives(all) => {
                all.iter().all(|it| is_for_machines(it) && is_for_tree(it, self.shape.reduction))
            }
            Case::Words(lists) => lists.iter().flatten().all(is_for_words),
            Case::Lock(_) | Case::MultiSends(_) => true,
        }
    }

    fn perform(&mut self, cases: &[&Case], random: &mut Rng) -> Vec<Results> {
        let all: Rc<[Case]> = cases.iter().copied().cloned().collect();
        let gotten: Rc<RefCell<Vec<Gotten>>> = Rc::new(RefCell::new(vec![Vec::new(); self.members.len()]));
        let logs: Rc<Vec<RefCell<Log>>> = Rc::new(cases.iter().map(|_| RefCell::default()).collect());
        let seed = random.u64(..);
        let program = |rank: Rank| -> Program {
            let (all, logs, gotten, members) =
                (all.clone(), logs.clone(), gotten.clone(), self.members.clone());
            let (shape, at_once) = (self.shape, self.exchanges_at_once);
            Box::pin(async move {
                let Some(place) = members.iter().position(|&member| member == rank.rank()) else { return };
                let mut random = Rng::with_seed(seed ^ place as u64);
                rank.join_shaped_group(GROUP, &members, None, shape).await;
                for (case, log) in all.iter().zip(logs.iter()) {
                    rank.compute(random.u64(..20 * US));
                    let results = take_part(&rank, case, (place as u32, &members), at_once, log).await;
                    gotten.borrow_mut()[place].push(results);
                }
            })
        };
        self.world(random, program).checked(true).run().unwrap_or_else(|error| panic!("{error}"));
        let gotten = gotten.borrow();
        let of_case = |number: usize| {
            let operations = gotten[0][number].len();
            let of = |operation: usize| gotten.iter().map(|own| own[number][operation].clone()).collect();
            (0..operations).map(of).collect()
        };
        (0..cases.len()).map(of_case).collect()
    }
}
