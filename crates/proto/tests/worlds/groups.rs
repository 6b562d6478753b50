//! Tests of random worlds in which groups do their operations, beside messages, on the same paths and credits.

use std::collections::BTreeMap;

use fastrand::Rng;
use weir_proto::flow::hardware::WITHOUT_LIMIT;
use weir_proto::offload::group::{
    BarrierSchedule, BroadcastTree, GroupCommand, MAX_BROADCAST_BYTES, Membership, Operation, ReductionTree,
    Shape,
};
use weir_proto::offload::reduce::Vector;
use weir_proto::offload::{Combination, OffloadCommand, WordOperation, WordType};
use weir_proto::{
    Command, Machine, Outcome, Pattern, Peer, PeerFault, ReceiveCommand, Request, Scheme, SendCommand,
    SendLevel, Space,
};

use super::world::{Plan, World, with_busy_links};
use super::{plan, run};

const GROUP: u32 = 7;

/// Requests of an endpoint up to which it posts messages beside its operations.
pub(super) const MAX_OUTSTANDING: usize = 6;

/// An operation, and the buffer that each member starts it with, by rank.
pub(super) type Round = (Operation, Vec<Vec<u8>>);

/// A group, and its operations. Every member starts the same ones.
pub(super) struct Group {
    number: u32,
    /// The endpoint of each rank.
    pub members: Vec<u32>,
    shape: Shape,
    pub rounds: Vec<Round>,
    /// For each rank: the operations that it has started.
    pub started: Vec<usize>,
    pub outstanding: BTreeMap<(u32, Request), (u32, usize)>,
    /// By rank and operation.
    pub ended: BTreeMap<(u32, usize), (Outcome, Vec<u8>)>,
}

/// The rule of the tree, apart from the code under test: the vectors of the ranks from `first` on, in a subtree that may
/// have `width` ranks. The brackets are ((own child) child).
fn reduced(combination: Combination, vectors: &[Vec<u8>], first: usize, width: usize) -> Vec<u8> {
    let mut result = vectors[first].clone();
    let mut child_width = 1;
    while child_width < width && first + child_width < vectors.len() {
        let child = reduced(combination, vectors, first + child_width, child_width);
        combination.combine(&mut result, &child);
        child_width *= 2;
    }
    result
}

/// The same for any tree: in a chain the brackets are (own (next (next ...))), in a flat tree (((own next) next) ...).
fn reduced_over(tree: ReductionTree, combination: Combination, vectors: &[Vec<u8>]) -> Vec<u8> {
    let combined = |mut left: Vec<u8>, right: &Vec<u8>| {
        combination.combine(&mut left, right);
        left
    };
    match tree {
        ReductionTree::Binomial => reduced(combination, vectors, 0, vectors.len()),
        ReductionTree::Chain => {
            let from_the_end = vectors.iter().rev().cloned();
            from_the_end.reduce(|right, left| combined(left, &right)).expect("a member")
        }
        ReductionTree::Flat | ReductionTree::FromTheLeft => {
            vectors.iter().skip(1).fold(vectors[0].clone(), combined)
        }
    }
}

fn combination(rng: &mut Rng) -> Combination {
    loop {
        let operation = WordOperation::ALL[rng.usize(..WordOperation::ALL.len())];
        let word_type = WordType::ALL[rng.usize(..WordType::ALL.len())];
        let combination = Combination { operation, word_type };
        if combination.is_valid() {
            return combination;
        }
    }
}

/// A word of an element's type. Floats have different sizes, so that another order gives other bits.
fn word(rng: &mut Rng, word_type: WordType) -> [u8; 8] {
    match word_type {
        WordType::F64 => (rng.f64() * f64::from(1 << rng.u32(..30))).to_ne_bytes(),
        WordType::F32 => {
            let half = |rng: &mut Rng| (rng.f32() * (1 << rng.u32(..20)) as f32).to_bits();
            (u64::from(half(rng)) << 32 | u64::from(half(rng))).to_ne_bytes()
        }
        _ => rng.u64(..).to_ne_bytes(),
    }
}

/// An operation of `members` members.
fn round(rng: &mut Rng, members: u32) -> Round {
    let combination = combination(rng);
    let words = [0, 1, rng.usize(..8), rng.usize(..513)][rng.usize(..4)];
    let vector = Vector { bytes: words as u32 * 8, combination };
    let long = [vector.bytes + rng.u32(..8), rng.u32(..=MAX_BROADCAST_BYTES)][rng.usize(..2)];
    let operation = match rng.u8(..12) {
        0 => Operation::Barrier,
        1 | 2 => Operation::Reduce(vector),
        3 => Operation::AllReduce(vector),
        4 | 5 if members > 1 => Operation::Exchange { distance: rng.u32(1..members), bytes: long },
        6 => Operation::Gather { root: rng.u32(..members), bytes: long },
        7 => Operation::Scatter { root: rng.u32(..members), bytes: long },
        8 | 9 => Operation::AllGather { bytes: long },
        10 => Operation::AllToAll { bytes: long },
        _ => Operation::Broadcast { root: rng.u32(..members), bytes: long },
    };
    let buffer = |rank| {
        let bytes = operation.buffer_bytes(rank, members) as usize;
        let words = (0..bytes.div_ceil(8)).flat_map(|_| word(rng, combination.word_type));
        words.take(bytes).collect()
    };
    (operation, (0..members).map(buffer).collect())
}

impl Group {
    /// A group of all endpoints.
    fn of_all(rng: &mut Rng, endpoints: u32, rounds: usize) -> Group {
        Group::new(rng, GROUP, (0..endpoints).collect(), rounds)
    }

    /// A group of these endpoints, in any order.
    pub fn new(rng: &mut Rng, number: u32, mut members: Vec<u32>, rounds: usize) -> Group {
        rng.shuffle(&mut members);
        let degree = rng.u32(1..5);
        let lambda_thousandths = rng.u32(1000..6000);
        let shape = Shape {
            barrier: [BarrierSchedule::PairwiseExchange, BarrierSchedule::GatherBroadcast { degree }]
                [rng.usize(..2)],
            broadcast: [BroadcastTree::Binomial, BroadcastTree::Postal { lambda_thousandths }]
                [rng.usize(..2)],
            reduction: [
                ReductionTree::FromTheLeft,
                ReductionTree::FromTheLeft,
                ReductionTree::Binomial,
                ReductionTree::Chain,
                ReductionTree::Flat,
            ][rng.usize(..5)],
        };
        let rounds = (0..rounds).map(|_| round(rng, members.len() as u32)).collect();
        let started = vec![0; members.len()];
        let (outstanding, ended) = (BTreeMap::new(), BTreeMap::new());
        Group { number, members, shape, rounds, started, outstanding, ended }
    }

    pub fn join(&self, world: &mut World, rank: usize, patience_ns: Option<u64>) {
        let members = self.members.iter().copied().map(Peer).collect();
        let membership =
            Membership { group: self.number, members, rank: rank as u32, patience_ns, shape: self.shape };
        world.post_offloaded(self.members[rank], OffloadCommand::Group(GroupCommand::Join(membership)));
    }

    /// The member of this rank takes part no more.
    pub fn leave(&self, world: &mut World, rank: usize) {
        let leave = GroupCommand::Leave { group: self.number };
        world.post_offloaded(self.members[rank], OffloadCommand::Group(leave));
    }

    fn start(&mut self, world: &mut World, rank: usize) {
        self.collect(world);
        self.begin(world, rank);
        self.collect(world);
    }

    /// The member of this rank starts its next operation, if there is one and the bound allows it. Completions are
    /// collected before and after it.
    pub fn begin(&mut self, world: &mut World, rank: usize) {
        let number = self.started[rank];
        let Some((operation, buffers)) = self.rounds.get(number) else { return };
        let endpoint = self.members[rank];
        let request = world.request(endpoint, buffers[rank].clone());
        let start = GroupCommand::Start { request, group: self.number, operation: *operation };
        if world.try_offloaded(endpoint, request, OffloadCommand::Group(start)) {
            self.outstanding.insert((endpoint, request), (rank as u32, number));
            self.started[rank] += 1;
        }
    }

    fn collect(&mut self, world: &mut World) {
        collect(std::slice::from_mut(self), world);
    }

    /// A request has completed. Returns whether it was one of this group.
    fn completed(&mut self, at: (u32, Request), outcome: Outcome, buffer: &mut Vec<u8>) -> bool {
        let Some((rank, number)) = self.outstanding.remove(&at) else { return false };
        let waits_for_all = matches!(
            self.rounds[number].0,
            Operation::Barrier
                | Operation::AllReduce(_)
                | Operation::AllGather { .. }
                | Operation::AllToAll { .. }
        );
        if outcome == Outcome::Done && waits_for_all {
            let started = &self.started;
            assert!(started.iter().all(|started| *started > number), "{number}: {started:?}");
        }
        self.ended.insert((rank, number), (outcome, std::mem::take(buffer)));
        true
    }

    fn steps(&mut self, world: &mut World, rng: &mut Rng, steps: usize) {
        for _ in 0..steps {
            world.step(|count| rng.usize(..count));
            self.collect(world);
        }
    }

    fn run_to_rest(&mut self, world: &mut World, rng: &mut Rng) {
        world.run_to_rest(|count| rng.usize(..count));
        self.collect(world);
    }

    /// The buffer of a member after an operation that is done.
    pub fn expected(&self, rank: u32, number: usize) -> Vec<u8> {
        let (operation, buffers) = &self.rounds[number];
        let own = || buffers[rank as usize].clone();
        let reduced = |combination| reduced_over(self.shape.reduction, combination, buffers);
        match *operation {
            Operation::Barrier => Vec::new(),
            Operation::Reduce(vector) if rank == 0 => reduced(vector.combination),
            Operation::Reduce(_) => own(),
            Operation::AllReduce(vector) => reduced(vector.combination),
            Operation::Broadcast { root, .. } => buffers[root as usize].clone(),
            Operation::Exchange { distance, .. } => {
                let members = buffers.len() as u32;
                buffers[((rank + members - distance) % members) as usize].clone()
            }
            Operation::Gather { root, bytes } if rank == root => {
                let from_root_on = (0..buffers.len()).map(|place| (root as usize + place) % buffers.len());
                from_root_on.flat_map(|rank| &buffers[rank][..bytes as usize]).copied().collect()
            }
            Operation::Gather { .. } => own(),
            Operation::Scatter { root, .. } if rank == root => own(),
            Operation::Scatter { root, bytes } => {
                let members = buffers.len() as u32;
                let begin = ((rank + members - root) % members * bytes) as usize;
                buffers[root as usize][begin..begin + bytes as usize].to_vec()
            }
            Operation::AllGather { bytes } | Operation::AllToAll { bytes } => {
                let (members, bytes) = (buffers.len(), bytes as usize);
                let block = |place: usize| {
                    let from = (rank as usize + place) % members;
                    let is_for_us = matches!(operation, Operation::AllToAll { .. });
                    let at = if is_for_us { (members - place) % members * bytes } else { 0 };
                    &buffers[from][at..at + bytes]
                };
                (0..members).flat_map(block).copied().collect()
            }
        }
    }
}

/// Takes the completions of all endpoints. Those that are not of a group are of messages.
pub(super) fn collect(groups: &mut [Group], world: &mut World) {
    for (endpoint, state) in (0..).zip(&mut world.ranks) {
        for (request, outcome, mut buffer) in state.completions.drain(..) {
            let _ = groups.iter_mut().any(|group| group.completed((endpoint, request), outcome, &mut buffer));
        }
    }
}

/// Posts a message of a pair and its receive.
pub(super) fn post_message(world: &mut World, rng: &mut Rng, (from, to): (u32, u32)) {
    let bytes = rng.usize(..3000);
    let request = world.request(from, vec![7; bytes]);
    let (space, tag, data, level) = (Space::Tagged, 0, None, SendLevel::Buffered);
    let send = SendCommand { request, to: Peer(to), space, tag, data, bytes: bytes as u64, level };
    world.post(from, Command::Send(send));
    let request = world.request(to, vec![0; 3000]);
    let pattern = Pattern { space, from: Some(Peer(from)), tag, ignore: 0 };
    world.post(to, Command::Receive(ReceiveCommand { request, pattern, capacity_bytes: 3000, multi: None }));
}

/// Operations and messages in any order, with detaches. Members join at any time.
fn operations_world(seed: u64) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let endpoints = rng.u32(1..7);
    let mut world = World::new(Plan { endpoints, ..plan(&mut rng) });
    let rounds = rng.usize(1..12);
    let mut group = Group::of_all(&mut rng, endpoints, rounds);
    let mut absent: Vec<usize> = (0..endpoints as usize).collect();
    rng.shuffle(&mut absent);
    loop {
        let pair = (rng.u32(..endpoints), rng.u32(..endpoints));
        let rank = rng.usize(..endpoints as usize);
        match rng.u8(..16) {
            0..8 if !absent.contains(&rank) => group.start(&mut world, rank),
            // The bound lets a world with few lanes and slots carry what it is offered. Otherwise backlogs grow without
            // end, and packets of the group wait behind them.
            8..10 if world.outstanding(pair.0).len() < MAX_OUTSTANDING => {
                post_message(&mut world, &mut rng, pair)
            }
            10 => world.request_detach(pair.0, pair.1),
            _ => {
                if let Some(rank) = absent.pop() {
                    group.join(&mut world, rank, None);
                }
            }
        }
        group.collect(&mut world);
        let steps = rng.usize(..12);
        group.steps(&mut world, &mut rng, steps);
        if absent.is_empty() && group.started.iter().all(|started| *started == rounds) {
            break;
        }
    }
    group.run_to_rest(&mut world, &mut rng);
    world.assert_at_rest();
    world.assert_within_budget();
    for ((rank, number), (outcome, buffer)) in &group.ended {
        let operation = &group.rounds[*number].0;
        assert_eq!(*outcome, Outcome::Done, "operation {number} at {rank}: {operation:?}");
        assert_eq!(*buffer, group.expected(*rank, *number), "operation {number} at {rank}: {operation:?}");
    }
    assert_eq!(group.ended.len(), rounds * endpoints as usize);
    world.trace
}

/// One member dies at a random step, and only its neighbours in the tree notice. All others get the error.
fn crash_world(seed: u64) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let endpoints = rng.u32(2..7);
    // The dead member keeps the lanes that it has, and those that do not notice its death need others.
    let mut plan = Plan { endpoints, max_lanes: endpoints as usize, ..plan(&mut rng) };
    if let Scheme::Hardware { rnr_retries, .. } = &mut plan.scheme {
        *rnr_retries = WITHOUT_LIMIT;
    }
    let mut world = World::new(plan);
    let mut group = Group::of_all(&mut rng, endpoints, 30);
    let victim = rng.usize(..endpoints as usize);
    let die_at = rng.usize(1..60);
    (0..endpoints as usize).for_each(|rank| group.join(&mut world, rank, None));
    let are_neighbours = |a: usize, b: usize| a > 0 && a & (a - 1) == b;
    let notices = |rank| are_neighbours(rank, victim) || are_neighbours(victim, rank);
    for step in 0..90 {
        if step == die_at {
            world.kill(group.members[victim]);
        }
        if step == die_at + 10 {
            for rank in (0..endpoints as usize).filter(|rank| notices(*rank)) {
                world.lose(group.members[rank], group.members[victim]);
            }
        }
        let rank = rng.usize(..endpoints as usize);
        if rank != victim || step < die_at {
            group.start(&mut world, rank);
        }
        let steps = rng.usize(..6);
        group.steps(&mut world, &mut rng, steps);
    }
    // Such a world need not come to rest: a member that is no neighbour may try to reach the dead one for ever.
    let of_others = |group: &Group| group.outstanding.values().any(|(rank, _)| *rank as usize != victim);
    for _ in 0..100_000 {
        if !of_others(&group) || !(world.step(|count| rng.usize(..count)) || world.idle()) {
            break;
        }
        group.collect(&mut world);
    }
    assert!(!of_others(&group), "not all have heard of it: {:?}", group.outstanding);
    // The others notice too: what they have broadcast to it is answered no more.
    for rank in (0..endpoints as usize).filter(|rank| *rank != victim && !notices(*rank)) {
        world.lose(group.members[rank], group.members[victim]);
    }
    group.run_to_rest(&mut world, &mut rng);
    let dead = Peer(group.members[victim]);
    let lost = Outcome::Lost { peer: Some(dead), fault: PeerFault::Died };
    for ((rank, number), (outcome, buffer)) in &group.ended {
        if *rank as usize == victim {
            continue;
        }
        assert!([Outcome::Done, lost].contains(outcome), "operation {number} at {rank}: {outcome:?}");
        if *outcome == Outcome::Done {
            assert_eq!(*buffer, group.expected(*rank, *number), "operation {number} at {rank}");
        }
    }
    for rank in (0..endpoints as usize).filter(|rank| *rank != victim) {
        let state = &world.ranks[group.members[rank] as usize];
        assert!(state.machine.is_quiescent() && state.offload.is_quiescent(), "{rank}: {state:?}");
        assert_eq!(state.machine_buffers(), 0, "buffers of {rank}");
        let number = group.started[rank];
        group.rounds.resize(number + 1, group.rounds[0].clone());
        group.start(&mut world, rank);
        assert_eq!(group.ended[&(rank as u32, number)].0, lost, "{rank} starts one more");
    }
    world.trace
}

/// One member never joins. The timers of the others end their operations.
fn missing_member_world(seed: u64) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let endpoints = rng.u32(2..7);
    let mut world = World::new(Plan { endpoints, ..plan(&mut rng) });
    let mut group = Group::of_all(&mut rng, endpoints, 2);
    let missing = rng.usize(..endpoints as usize);
    for rank in (0..endpoints as usize).filter(|rank| *rank != missing) {
        group.join(&mut world, rank, Some(rng.u64(1..1_000_000)));
        group.start(&mut world, rank);
        let steps = rng.usize(..6);
        group.steps(&mut world, &mut rng, steps);
        group.start(&mut world, rank);
    }
    group.run_to_rest(&mut world, &mut rng);
    world.assert_at_rest();
    assert_eq!(group.ended.len(), 2 * (endpoints as usize - 1));
    for ((rank, number), (outcome, _)) in &group.ended {
        let not_ready = matches!(outcome, Outcome::Lost { fault: PeerFault::NotReady, .. });
        assert!(not_ready, "operation {number} at {rank}: {outcome:?}");
    }
    world.trace
}

#[test]
fn operations_complete_with_the_right_bytes_beside_messages() {
    run("operations_complete_with_the_right_bytes_beside_messages", 300, operations_world);
}

#[test]
fn a_crashed_member_ends_the_operations_of_all_others() {
    run("a_crashed_member_ends_the_operations_of_all_others", 500, crash_world);
}

#[test]
fn a_member_that_never_joins_ends_operations_by_a_timer() {
    run("a_member_that_never_joins_ends_operations_by_a_timer", 500, missing_member_world);
}

#[test]
fn operations_complete_over_busy_links() {
    run("operations_complete_over_busy_links", 150, |seed| {
        with_busy_links(seed, || operations_world(seed) ^ crash_world(seed) ^ missing_member_world(seed))
    });
}
