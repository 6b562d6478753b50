//! Tests of random worlds with an offloaded machine: remote atomics beside messages, on the same paths and credits. Words,
//! and vectors that credits cut into packets.

use std::collections::BTreeMap;

use fastrand::Rng;
use weir_proto::flow::hardware::WITHOUT_LIMIT;
use weir_proto::offload::atomics::{AtomicsCommand, FetchCommand, VectorCommand};
use weir_proto::offload::{Combination, OffloadCommand, VectorUpdate, WordOperation, WordType, WordUpdate};
use weir_proto::{
    Command, Machine, Outcome, Pattern, Peer, ReceiveCommand, Request, Scheme, SendCommand, SendLevel, Space,
};

use super::world::{Plan, World, with_busy_links};
use super::{plan, run};

const ENDPOINTS: u32 = 3;
const KEY: u64 = 5;
const WORDS: u64 = 2;
/// The words that vectors change, behind the others.
const VECTOR_WORDS: u64 = 100;
const REGION_BYTES: usize = 8 * (WORDS + VECTOR_WORDS) as usize;

/// An operation that was posted.
struct Fetch {
    from: u32,
    request: Request,
    to: u32,
    offset: u64,
    change: Change,
}

#[derive(Clone, Copy)]
enum Change {
    Word(WordUpdate),
    /// Of 64-bit words. Without `fetch`, the old words do not come back.
    Vector {
        words: u64,
        operation: WordOperation,
        operand: u64,
        fetch: bool,
    },
}

/// Posts a change of some of the words behind the others. All words have the same operand.
fn post_vector(world: &mut World, rng: &mut Rng, (from, to): (u32, u32)) -> Fetch {
    let words = rng.u64(1..VECTOR_WORDS);
    let first = WORDS + rng.u64(..=VECTOR_WORDS - words);
    let operation = if rng.u8(..4) == 0 { WordOperation::Read } else { WordOperation::Sum };
    let (operand, fetch) = (rng.u64(1..1 << 32), rng.bool() || operation == WordOperation::Read);
    let (offset, bytes) = (8 * first, 8 * words as u32);
    let request = world.request(from, operand.to_le_bytes().repeat(words as usize));
    let combination = Combination { operation, word_type: WordType::U64 };
    let update = VectorUpdate { key: KEY, offset, bytes, combination };
    let command = VectorCommand { request, peer: Peer(to), update, fetch };
    world.post_offloaded(from, OffloadCommand::Atomics(AtomicsCommand::Vector(command)));
    Fetch { from, request, to, offset, change: Change::Vector { words, operation, operand, fetch } }
}

/// Posts a change of a random word. Operands are random, so a word hardly has the same value twice.
fn post_fetch(world: &mut World, rng: &mut Rng, (from, to): (u32, u32)) -> Fetch {
    let operation = [WordOperation::Sum, WordOperation::Write, WordOperation::CompareSwap][rng.usize(..3)];
    let compare = if operation == WordOperation::CompareSwap { 0 } else { rng.u64(..) };
    let update = WordUpdate { operation, word_type: WordType::U64, operand: rng.u64(1..), compare };
    let request = world.request(from, vec![0; 8]);
    let offset = 8 * rng.u64(..WORDS);
    let fetch = FetchCommand { request, peer: Peer(to), key: KEY, offset, update, fetch: true };
    world.post_offloaded(from, OffloadCommand::Atomics(AtomicsCommand::Fetch(fetch)));
    Fetch { from, request, to, offset, change: Change::Word(update) }
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

fn word(world: &World, rank: u32, offset: u64) -> u64 {
    u64::from_le_bytes(world.region(rank, KEY)[offset as usize..][..8].try_into().expect("a word"))
}

/// Every vector has changed each of its words once: the sums are complete. And what it has fetched is at least what
/// earlier vectors of the same pair have left there, since the packets of a pair keep their order.
fn assert_vectors(world: &World, fetches: &[Fetch], old: &[Vec<u64>]) {
    let mut sums: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    let mut of_pair: BTreeMap<(u32, u32, u64), u64> = BTreeMap::new();
    for (Fetch { from, to, offset, change, .. }, old) in fetches.iter().zip(old) {
        let Change::Vector { words, operation, operand, fetch } = *change else { continue };
        assert_eq!(old.len() as u64, if fetch { words } else { 0 });
        for (place, offset) in (0..words).map(|place| (place as usize, offset + 8 * place)) {
            let earlier = of_pair.entry((*from, *to, offset)).or_default();
            assert!(!fetch || old[place] >= *earlier, "word {offset} of {to} has less than {from} has added");
            if operation == WordOperation::Sum {
                *earlier += operand;
                *sums.entry((*to, offset)).or_default() += operand;
            }
        }
    }
    for ((rank, offset), sum) in sums {
        assert_eq!(word(world, rank, offset), sum, "word {offset} of {rank}");
    }
}

/// The fetched values prove that the changes of each word happened one after the other: each change begins with the value
/// that the one before has left. `old`: the value that each fetch has got.
fn assert_one_order(world: &World, fetches: &[Fetch], old: &[Vec<u64>]) {
    let mut of_words: BTreeMap<(u32, u64), BTreeMap<u64, u64>> = BTreeMap::new();
    for (Fetch { to, offset, change, .. }, old) in fetches.iter().zip(old) {
        let (Change::Word(update), [old]) = (change, &old[..]) else { continue };
        let changes = of_words.entry((*to, *offset)).or_default();
        let new = update.apply(*old);
        if new != *old {
            let before = changes.insert(*old, new);
            assert_eq!(before, None, "two changes of the same value {old}");
        }
    }
    for ((rank, offset), mut changes) in of_words {
        let mut value = 0;
        while let Some(next) = changes.remove(&value) {
            value = next;
        }
        assert!(changes.is_empty(), "changes of values that word {offset} of {rank} never had: {changes:?}");
        assert_eq!(value, word(world, rank, offset), "word {offset} of {rank}");
    }
}

/// The fetches of a world, and what has become of them.
#[derive(Default)]
struct Fetches {
    posted: Vec<Fetch>,
    /// Those that have not completed, by rank and request.
    outstanding: BTreeMap<(u32, Request), usize>,
    /// The outcome of the others, with the old words.
    ended: BTreeMap<usize, (Outcome, Vec<u64>)>,
}

impl Fetches {
    fn post(&mut self, world: &mut World, rng: &mut Rng, pair: (u32, u32)) {
        self.collect(world); // the request of an ended operation can be used again
        let fetch = match rng.u8(..3) {
            0 => post_vector(world, rng, pair),
            _ => post_fetch(world, rng, pair),
        };
        self.outstanding.insert((fetch.from, fetch.request), self.posted.len());
        self.posted.push(fetch);
        self.collect(world);
    }

    /// Takes the completions of a world.
    fn collect(&mut self, world: &mut World) {
        for (rank, state) in (0..).zip(&mut world.ranks) {
            for (request, outcome, buffer) in state.completions.drain(..) {
                if let Some(number) = self.outstanding.remove(&(rank, request)) {
                    let words = buffer.chunks(8);
                    let all = words.map(|word| u64::from_le_bytes(word.try_into().expect("a word")));
                    let old = match self.posted[number].change {
                        Change::Vector { fetch: false, .. } => Vec::new(),
                        Change::Vector { .. } | Change::Word(_) => all.collect(),
                    };
                    self.ended.insert(number, (outcome, old));
                }
            }
        }
    }

    fn step(&mut self, world: &mut World, rng: &mut Rng, steps: usize) {
        for _ in 0..steps {
            world.step(|count| rng.usize(..count));
            self.collect(world);
        }
    }

    fn run_to_rest(&mut self, world: &mut World, rng: &mut Rng) {
        world.run_to_rest(|count| rng.usize(..count));
        self.collect(world);
        assert_eq!(
            self.outstanding.keys().find(|(rank, _)| !world.is_dead(*rank)),
            None,
            "it never completed"
        );
    }
}

/// Atomics and messages of random pairs, in any order.
fn atomics_world(seed: u64) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let mut world = World::new(Plan { endpoints: ENDPOINTS, ..plan(&mut rng) });
    (0..ENDPOINTS).for_each(|rank| world.expose(rank, KEY, vec![0; REGION_BYTES]));
    let mut fetches = Fetches::default();
    for _ in 0..rng.usize(1..60) {
        let pair = (rng.u32(..ENDPOINTS), rng.u32(..ENDPOINTS));
        match rng.u8(..8) {
            0..4 => fetches.post(&mut world, &mut rng, pair),
            4..7 => post_message(&mut world, &mut rng, pair),
            _ => world.request_detach(pair.0, pair.1),
        }
        fetches.collect(&mut world);
        let steps = rng.usize(..6);
        fetches.step(&mut world, &mut rng, steps);
    }
    fetches.run_to_rest(&mut world, &mut rng);
    world.assert_at_rest();
    world.assert_within_budget();
    world.ranks.iter().for_each(|rank| assert_eq!(rank.machine_buffers(), 0, "{rank:?}"));
    let done = |(fetch, (outcome, old)): (&'_ Fetch, &(Outcome, Vec<u64>))| {
        assert_eq!(*outcome, Outcome::Done, "{} to {}", fetch.from, fetch.to);
        old.clone()
    };
    let old: Vec<Vec<u64>> = fetches.posted.iter().zip(fetches.ended.values()).map(done).collect();
    assert_one_order(&world, &fetches.posted, &old);
    assert_vectors(&world, &fetches.posted, &old);
    world.trace
}

/// One endpoint dies at a random step: every operation of the others ends, and none with another survivor fails.
fn crash_world(seed: u64) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let mut plan = Plan { endpoints: ENDPOINTS, ..plan(&mut rng) };
    if let Scheme::Hardware { rnr_retries, .. } = &mut plan.scheme {
        *rnr_retries = WITHOUT_LIMIT;
    }
    let mut world = World::new(plan);
    (0..ENDPOINTS).for_each(|rank| world.expose(rank, KEY, vec![0; REGION_BYTES]));
    let mut fetches = Fetches::default();
    let (die_at, steps) = (rng.usize(..40), 60);
    for step in 0..steps {
        if step == die_at {
            world.kill(2);
        }
        if step == die_at + 10 {
            world.lose(0, 2);
            world.lose(1, 2);
        }
        let from = rng.u32(..if step < die_at { 3 } else { 2 });
        let to = rng.u32(..ENDPOINTS);
        fetches.post(&mut world, &mut rng, (from, to));
        let steps = rng.usize(..6);
        fetches.step(&mut world, &mut rng, steps);
    }
    fetches.run_to_rest(&mut world, &mut rng);
    for (number, (outcome, _)) in &fetches.ended {
        let Fetch { from, to, .. } = fetches.posted[*number];
        let lost = matches!(outcome, Outcome::Lost { peer: Some(Peer(2)), .. });
        assert!(*outcome == Outcome::Done || (lost && to == 2), "{from} to {to}: {outcome:?}");
    }
    for rank in &world.ranks[..2] {
        assert!(rank.machine.is_quiescent() && rank.offload.is_quiescent(), "{rank:?}");
        assert_eq!(rank.machine_buffers(), 0, "{rank:?}");
    }
    world.trace
}

#[test]
fn atomics_of_a_word_happen_one_after_the_other_beside_messages() {
    run("atomics_of_a_word_happen_one_after_the_other_beside_messages", 2000, atomics_world);
}

#[test]
fn atomics_with_a_crashed_rank_end() {
    run("atomics_with_a_crashed_rank_end", 1000, crash_world);
}

#[test]
fn atomics_complete_over_busy_links() {
    run("atomics_complete_over_busy_links", 1000, |seed| {
        with_busy_links(seed, || atomics_world(seed) ^ crash_world(seed))
    });
}
