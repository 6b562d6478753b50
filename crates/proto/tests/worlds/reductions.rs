//! Tests of random worlds in which groups reduce vectors, beside messages, on the same paths and credits.

use std::collections::BTreeMap;

use fastrand::Rng;
use weir_proto::flow::hardware::WITHOUT_LIMIT;
use weir_proto::offload::reduce::{MAX_REDUCTIONS, Membership, ReduceCommand, Vector};
use weir_proto::offload::{Combination, OffloadCommand, WordOperation, WordType};
use weir_proto::{
    Command, Machine, Outcome, Pattern, Peer, PeerFault, ReceiveCommand, Request, Scheme, SendCommand,
    SendLevel, Space,
};

use super::world::{Plan, World, with_busy_links};
use super::{plan, run};

const GROUP: u32 = 7;

/// Requests of an endpoint up to which it posts messages beside its reductions.
const MAX_OUTSTANDING: usize = 6;

/// A group of all endpoints, in any order, and its reductions. Every member starts the same ones.
struct Group {
    /// The endpoint of each rank.
    members: Vec<u32>,
    /// The vector of each member, by reduction and rank.
    vectors: Vec<(Combination, Vec<Vec<u8>>)>,
    /// For each rank: the reductions that it has started.
    started: Vec<usize>,
    outstanding: BTreeMap<(u32, Request), (u32, usize)>,
    /// By rank and reduction.
    ended: BTreeMap<(u32, usize), (Outcome, Vec<u8>)>,
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

impl Group {
    fn new(rng: &mut Rng, endpoints: u32, reductions: usize) -> Group {
        let mut members: Vec<u32> = (0..endpoints).collect();
        rng.shuffle(&mut members);
        let vectors = (0..reductions)
            .map(|_| {
                let combination = loop {
                    let operation = WordOperation::ALL[rng.usize(..WordOperation::ALL.len())];
                    let combination =
                        Combination { operation, word_type: WordType::ALL[rng.usize(..WordType::ALL.len())] };
                    if combination.is_valid() {
                        break combination;
                    }
                };
                let words = [0, 1, rng.usize(..8), rng.usize(..513)][rng.usize(..4)];
                // Floats of different sizes, so that another order gives other bits.
                let word = |rng: &mut Rng| match combination.word_type {
                    WordType::F64 => (rng.f64() * f64::from(1 << rng.u32(..30))).to_ne_bytes(),
                    WordType::F32 => {
                        let half = |rng: &mut Rng| (rng.f32() * (1 << rng.u32(..20)) as f32).to_bits();
                        (u64::from(half(rng)) << 32 | u64::from(half(rng))).to_ne_bytes()
                    }
                    _ => rng.u64(..).to_ne_bytes(),
                };
                let vectors = members.iter().map(|_| (0..words).flat_map(|_| word(rng)).collect()).collect();
                (combination, vectors)
            })
            .collect();
        let started = vec![0; members.len()];
        Group { members, vectors, started, outstanding: BTreeMap::new(), ended: BTreeMap::new() }
    }

    fn join(&self, world: &mut World, rank: usize, patience_ns: Option<u64>) {
        let members = self.members.iter().copied().map(Peer).collect();
        let membership = Membership { group: GROUP, members, rank: rank as u32, patience_ns };
        world.post_offloaded(self.members[rank], OffloadCommand::Reduce(ReduceCommand::Join(membership)));
    }

    /// The member of this rank starts its next reduction, if there is one and the bound allows it.
    fn start(&mut self, world: &mut World, rank: usize) {
        self.collect(world);
        let number = self.started[rank];
        let outstanding = self.outstanding.values().filter(|(of, _)| *of == rank as u32).count();
        let Some((combination, vectors)) = self.vectors.get(number) else { return };
        if outstanding >= MAX_REDUCTIONS as usize {
            return;
        }
        let endpoint = self.members[rank];
        let vector = Vector { bytes: vectors[rank].len() as u32, combination: *combination };
        let request = world.request(endpoint, vectors[rank].clone());
        self.outstanding.insert((endpoint, request), (rank as u32, number));
        self.started[rank] += 1;
        let start = ReduceCommand::Start { request, group: GROUP, vector };
        world.post_offloaded(endpoint, OffloadCommand::Reduce(start));
        self.collect(world);
    }

    fn collect(&mut self, world: &mut World) {
        for (endpoint, state) in (0..).zip(&mut world.ranks) {
            for (request, outcome, buffer) in state.completions.drain(..) {
                if let Some(key) = self.outstanding.remove(&(endpoint, request)) {
                    self.ended.insert(key, (outcome, buffer));
                }
            }
        }
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
}

/// Posts a message of a pair and its receive.
fn post_message(world: &mut World, rng: &mut Rng, (from, to): (u32, u32)) {
    let bytes = rng.usize(..3000);
    let request = world.request(from, vec![7; bytes]);
    let (space, tag, data, level) = (Space::Tagged, 0, None, SendLevel::Buffered);
    let send = SendCommand { request, to: Peer(to), space, tag, data, bytes: bytes as u64, level };
    world.post(from, Command::Send(send));
    let request = world.request(to, vec![0; 3000]);
    let pattern = Pattern { space, from: Some(Peer(from)), tag, ignore: 0 };
    world.post(to, Command::Receive(ReceiveCommand { request, pattern, capacity_bytes: 3000, multi: None }));
}

/// Reductions and messages in any order, with detaches. Members join at any time.
fn reductions_world(seed: u64) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let endpoints = rng.u32(1..7);
    let mut world = World::new(Plan { endpoints, ..plan(&mut rng) });
    let reductions = rng.usize(1..8);
    let mut group = Group::new(&mut rng, endpoints, reductions);
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
        if absent.is_empty() && group.started.iter().all(|started| *started == reductions) {
            break;
        }
    }
    group.run_to_rest(&mut world, &mut rng);
    world.assert_at_rest();
    world.assert_within_budget();
    for ((rank, number), (outcome, buffer)) in &group.ended {
        let (combination, vectors) = &group.vectors[*number];
        let expected = match rank {
            0 => reduced(*combination, vectors, 0, vectors.len()),
            _ => vectors[*rank as usize].clone(),
        };
        assert_eq!(*outcome, Outcome::Done, "reduction {number} at {rank}");
        assert_eq!(*buffer, expected, "reduction {number} at {rank}: {combination:?}");
    }
    assert_eq!(group.ended.len(), reductions * endpoints as usize);
    world.trace
}

/// One member dies at a random step, and only its neighbours in the tree notice. All others get the error.
fn crash_world(seed: u64) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let endpoints = rng.u32(2..7);
    let mut plan = Plan { endpoints, ..plan(&mut rng) };
    if let Scheme::Hardware { rnr_retries, .. } = &mut plan.scheme {
        *rnr_retries = WITHOUT_LIMIT;
    }
    let mut world = World::new(plan);
    let mut group = Group::new(&mut rng, endpoints, 30);
    let victim = rng.usize(..endpoints as usize);
    let die_at = rng.usize(1..60);
    (0..endpoints as usize).for_each(|rank| group.join(&mut world, rank, None));
    for step in 0..90 {
        if step == die_at {
            world.kill(group.members[victim]);
        }
        if step == die_at + 10 {
            let are_neighbours = |a: usize, b: usize| a > 0 && a & (a - 1) == b;
            for rank in 0..endpoints as usize {
                if are_neighbours(rank, victim) || are_neighbours(victim, rank) {
                    world.lose(group.members[rank], group.members[victim]);
                }
            }
        }
        let rank = rng.usize(..endpoints as usize);
        if rank != victim || step < die_at {
            group.start(&mut world, rank);
        }
        let steps = rng.usize(..6);
        group.steps(&mut world, &mut rng, steps);
    }
    group.run_to_rest(&mut world, &mut rng);
    let dead = Peer(group.members[victim]);
    let lost = Outcome::Lost { peer: Some(dead), fault: PeerFault::Died };
    for ((rank, number), (outcome, buffer)) in &group.ended {
        if *rank as usize == victim {
            continue;
        }
        assert!([Outcome::Done, lost].contains(outcome), "reduction {number} at {rank}: {outcome:?}");
        let (combination, vectors) = &group.vectors[*number];
        if *rank == 0 && *outcome == Outcome::Done {
            assert_eq!(*buffer, reduced(*combination, vectors, 0, vectors.len()), "reduction {number}");
        }
    }
    for rank in (0..endpoints as usize).filter(|rank| *rank != victim) {
        let state = &world.ranks[group.members[rank] as usize];
        assert!(state.machine.is_quiescent() && state.offload.is_quiescent(), "{rank}: {state:?}");
        assert_eq!(state.machine_buffers(), 0, "buffers of {rank}");
        let number = group.started[rank];
        group.vectors.resize(number + 1, group.vectors[0].clone());
        group.start(&mut world, rank);
        assert_eq!(group.ended[&(rank as u32, number)].0, lost, "{rank} starts one more");
    }
    world.trace
}

/// One member never joins. The timers of the others end their reductions.
fn missing_member_world(seed: u64) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let endpoints = rng.u32(2..7);
    let mut world = World::new(Plan { endpoints, ..plan(&mut rng) });
    let mut group = Group::new(&mut rng, endpoints, 2);
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
    let of_root = group.ended.iter().filter(|((rank, _), _)| *rank == 0);
    for ((_, number), (outcome, _)) in of_root {
        let not_ready = matches!(outcome, Outcome::Lost { fault: PeerFault::NotReady, .. });
        assert!(not_ready, "reduction {number}: {outcome:?}");
    }
    world.trace
}

#[test]
fn reductions_complete_in_the_order_of_ranks_beside_messages() {
    run("reductions_complete_in_the_order_of_ranks_beside_messages", 300, reductions_world);
}

#[test]
fn a_crashed_member_ends_the_reductions_of_all_others() {
    run("a_crashed_member_ends_the_reductions_of_all_others", 500, crash_world);
}

#[test]
fn a_member_that_never_joins_ends_reductions_by_a_timer() {
    run("a_member_that_never_joins_ends_reductions_by_a_timer", 500, missing_member_world);
}

#[test]
fn reductions_complete_over_busy_links() {
    run("reductions_complete_over_busy_links", 150, |seed| {
        with_busy_links(seed, || reductions_world(seed) ^ crash_world(seed) ^ missing_member_world(seed))
    });
}
