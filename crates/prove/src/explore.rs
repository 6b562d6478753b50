//! Breadth-first search over the states of a setup: over all of them, or up to limits. A failure comes with the moves
//! that lead to it. The search keeps the graph for the liveness check.
//!
//! The crate `stateright` does not fit. It compares states by 64-bit fingerprints, keeps no edges, and does not check
//! its `eventually` on cycles, of which these graphs consist. Liveness here needs the edges: a backward search checks
//! that each sender can send again from every state.
//!
//! States are compared by a 128-bit fingerprint of their canonical form. With 10^8 states the probability of a
//! collision is 10^-23. Full states are stored only for the current level and the next. For each other state there
//! remain its fingerprint (about 28 B), the move that found it (5 B) and its edges (4 B each).
//!
//! The threads expand a large level together, in chunks. State ids within a level depend on the threads; the counts of
//! a complete search do not. This file does not know what a state is.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::liveness::{Label, Starved, starved};
use crate::model::{Happened, Move, Setup, State, Violation};

/// Limits of a search that does not complete.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The search expands no level after this number of states, so that a bounded search is repeatable. At most 2^26 -
    /// 1: ids share a word with labels.
    pub states: u32,
    /// Maximum memory of the process. Unit: bytes.
    pub memory_bytes: u64,
    /// Maximum processor time of all threads of the process. Other load on the machine does not change the result.
    pub cpu_time: Duration,
    /// Number of threads.
    pub threads: usize,
}

/// Bound on ids, with a margin for states found before the next check of the bound.
const MAX_IDS: u32 = (1 << 26) - (1 << 20);

impl Default for Limits {
    fn default() -> Limits {
        Limits { states: MAX_IDS, memory_bytes: 6 << 30, cpu_time: Duration::from_secs(600), threads: 2 }
    }
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Report {
    /// States found.
    pub states: u32,
    /// Transitions between them.
    pub edges: u64,
    /// The longest of the shortest paths from the start.
    pub depth: u32,
    /// Every reachable state was found and expanded.
    pub complete: bool,
    /// For each of [`Happened::ALL`]: the number of states in which it holds or out of which a move causes it.
    pub happened: [u64; Happened::ALL.len()],
    /// Time of the search and of the liveness check.
    pub time: Duration,
    /// Processor time of both, over all threads.
    pub cpu_time: Duration,
    /// Maximum memory of the process at the ends of levels. Unit: bytes.
    pub memory_bytes: u64,
    /// The first violation, and the moves that lead to it.
    pub failure: Option<(Violation, Vec<Move>)>,
}

impl Report {
    /// Kinds in `wanted` that were not seen.
    pub fn unseen(&self, wanted: &[Happened]) -> Vec<&'static str> {
        wanted.iter().filter(|kind| self.happened[**kind as usize] == 0).map(|kind| kind.name()).collect()
    }
}

type Fingerprint = [u32; 4];

/// Uses the fingerprint as its own hash: it is random enough.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        // The bytes of a slice of words arrive in one call. Its first eight bytes are enough.
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }
    fn write_usize(&mut self, _: usize) {}
}

fn fingerprint(words: &[u32]) -> Fingerprint {
    // SipHash twice, with two different prefixes.
    let half = |beginning: u32| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u32(beginning);
        for pair in words.chunks(2) {
            hasher.write_u64(u64::from(pair[0]) << 32 | u64::from(pair.get(1).copied().unwrap_or(0)));
        }
        hasher.write_usize(words.len());
        hasher.finish()
    };
    let (a, b) = (half(1), half(2));
    [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32]
}

const SHARDS: usize = 256;

type Shard = Mutex<HashMap<Fingerprint, u32, BuildHasherDefault<IdentityHasher>>>;

/// All states found so far, by fingerprint.
struct Seen {
    shards: Vec<Shard>,
    count: AtomicU32,
}

impl Seen {
    fn new() -> Seen {
        Seen { shards: (0..SHARDS).map(|_| Shard::default()).collect(), count: AtomicU32::new(0) }
    }

    /// The id of the state, and whether it is new.
    fn id(&self, fingerprint: Fingerprint) -> (u32, bool) {
        let shard = &self.shards[fingerprint[3] as usize % SHARDS];
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new = false;
        let id = *shard.entry(fingerprint).or_insert_with(|| {
            new = true;
            self.count.fetch_add(1, Ordering::Relaxed)
        });
        (id, new)
    }
}

/// The result of one chunk of a level.
#[derive(Default)]
struct Expanded {
    /// For each state of the chunk: its number of edges, or [`UNEXPANDED`].
    edge_counts: Vec<u8>,
    edges: Vec<u32>,
    /// New states: id, state, parent, and the number of the parent's move.
    found: Vec<(u32, State, u32, u8)>,
    happened: [u64; Happened::ALL.len()],
    failure: Option<(Violation, u32, Move)>,
}

/// Marks a state that was not expanded, in place of its number of edges.
pub(crate) const UNEXPANDED: u8 = u8::MAX;

/// The graph: the number of edges of each state, and all edges in the order of their states. An edge has its target in
/// the low bits and its [`Label`] above.
pub(crate) struct Graph {
    pub edge_counts: Vec<u8>,
    pub edges: Vec<u32>,
}

/// Searches all states of `setup`, then checks liveness. Calls `progress` with states and depth after each level.
pub fn explore(setup: &Setup, limits: Limits, mut progress: impl FnMut(u32, u32)) -> Report {
    let (start, cpu_start) = (Instant::now(), cpu_time());
    let seen = Seen::new();
    let mut words = Vec::new();
    let initial = setup.initial();
    setup.canonical(&initial, &mut words);
    seen.id(fingerprint(&words));
    let mut level = vec![initial];
    let mut base = 0u32;
    let mut graph = Graph { edge_counts: Vec::new(), edges: Vec::new() };
    let mut parents = vec![(0u32, 0u8)];
    let mut report = Report {
        states: 1,
        edges: 0,
        depth: 0,
        complete: false,
        happened: Default::default(),
        time: Duration::ZERO,
        cpu_time: Duration::ZERO,
        memory_bytes: 0,
        failure: None,
    };
    while !level.is_empty() {
        let out_of_bounds = || {
            seen.count.load(Ordering::Relaxed) > MAX_IDS
                || cpu_time().saturating_sub(cpu_start) > limits.cpu_time
                || memory_bytes() > limits.memory_bytes
        };
        let mut chunks = expand(setup, &level, base, &seen, limits.threads, &out_of_bounds);
        chunks.sort_by_key(|(chunk, _)| *chunk);
        base += level.len() as u32;
        let count = seen.count.load(Ordering::Relaxed);
        parents.resize(count as usize, (0, 0));
        let mut next: Vec<Option<State>> = vec![None; (count - base) as usize];
        for (_, chunk) in chunks {
            graph.edge_counts.extend(chunk.edge_counts);
            graph.edges.extend(chunk.edges);
            for (total, more) in report.happened.iter_mut().zip(chunk.happened) {
                *total += more;
            }
            for (id, state, parent, step) in chunk.found {
                next[(id - base) as usize] = Some(state);
                parents[id as usize] = (parent, step);
            }
            if report.failure.is_none()
                && let Some((violation, from, step)) = chunk.failure
            {
                let mut path = path_to(setup, &parents, from);
                path.push(step);
                report.failure = Some((violation, path));
            }
        }
        level = next.into_iter().map(|state| state.expect("every new id has its state")).collect();
        report.states = count;
        progress(count, report.depth);
        report.memory_bytes = report.memory_bytes.max(memory_bytes());
        let enough = count >= limits.states || out_of_bounds();
        if report.failure.is_some() || (enough && !level.is_empty()) {
            break;
        }
        report.depth += u32::from(!level.is_empty());
        report.complete = level.is_empty();
    }
    drop(level);
    drop(seen);
    graph.edge_counts.resize(report.states as usize, UNEXPANDED);
    report.edges = graph.edges.len() as u64;
    report.complete &= !graph.edge_counts.contains(&UNEXPANDED);
    if report.failure.is_none()
        && let Some(Starved { state, pair, alone }) =
            starved(&graph, setup.pairs.len() + setup.offload.fetching.len())
    {
        let (from, to) = setup.pair(pair);
        let verb = if pair < setup.pairs.len() { "sends to" } else { "fetches from" };
        let when = if alone { "if the other programs are silent" } else { "whatever happens" };
        let violation = Violation { check: "I4", detail: format!("{from} never {verb} {to} again {when}") };
        report.failure = Some((violation, path_to(setup, &parents, state)));
    }
    report.time = start.elapsed();
    report.cpu_time = cpu_time().saturating_sub(cpu_start);
    report
}

/// Expands all states of a level, whose ids start at `base`. Returns the chunks with their positions.
fn expand(
    setup: &Setup,
    level: &[State],
    base: u32,
    seen: &Seen,
    threads: usize,
    out_of_bounds: &(impl Fn() -> bool + Sync),
) -> Vec<(usize, Expanded)> {
    const CHUNK_STATES: usize = 512;
    let next_chunk = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let work = || {
        let mut done = Vec::new();
        let (mut words, mut moves) = (Vec::new(), Vec::new());
        loop {
            let chunk = next_chunk.fetch_add(1, Ordering::Relaxed);
            let Some(states) = level.chunks(CHUNK_STATES).nth(chunk) else { return done };
            let first = base + (chunk * CHUNK_STATES) as u32;
            let mut expanded = Expanded::default();
            if out_of_bounds() {
                stop.store(true, Ordering::Relaxed);
            }
            for (state, id) in states.iter().zip(first..) {
                if stop.load(Ordering::Relaxed) {
                    expanded.edge_counts.push(UNEXPANDED);
                    continue;
                }
                if let Err((violation, step)) =
                    expand_state(setup, state, id, seen, &mut words, &mut moves, &mut expanded)
                {
                    stop.store(true, Ordering::Relaxed);
                    expanded.failure = Some((violation, id, step));
                    expanded.edge_counts.push(UNEXPANDED);
                }
            }
            done.push((chunk, expanded));
        }
    };
    if threads < 2 || level.len() <= CHUNK_STATES {
        return work();
    }
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker does not panic")).collect()
    })
}

fn expand_state(
    setup: &Setup,
    state: &State,
    id: u32,
    seen: &Seen,
    words: &mut Vec<u32>,
    moves: &mut Vec<Move>,
    expanded: &mut Expanded,
) -> Result<(), (Violation, Move)> {
    let mut happened = setup.state_events(state);
    let first_edge = expanded.edges.len();
    setup.moves(state, moves);
    for (number, &step) in moves.iter().enumerate() {
        let applied = setup.apply(state, step);
        let (next, effect) = match applied {
            Ok(applied) => applied,
            Err(violation) => {
                expanded.edges.truncate(first_edge);
                return Err((violation, step));
            }
        };
        happened |= effect.happened;
        setup.canonical(&next, words);
        let (target, new) = seen.id(fingerprint(words));
        if new {
            expanded.found.push((target, next, id, number as u8));
        }
        expanded.edges.push(Label::new(step, effect).with_target(target));
    }
    expanded.edge_counts.push((expanded.edges.len() - first_edge) as u8);
    for kind in Happened::ALL {
        expanded.happened[kind as usize] += u64::from(happened & kind.bit() != 0);
    }
    Ok(())
}

/// The moves from the initial state to a state.
fn path_to(setup: &Setup, parents: &[(u32, u8)], mut id: u32) -> Vec<Move> {
    let mut numbers = Vec::new();
    while id != 0 {
        let (parent, number) = parents[id as usize];
        numbers.push(number);
        id = parent;
    }
    let mut state = setup.initial();
    let mut moves = Vec::new();
    let mut path = Vec::new();
    for number in numbers.into_iter().rev() {
        setup.moves(&state, &mut moves);
        let step = moves[number as usize];
        path.push(step);
        state = setup.apply(&state, step).expect("it was possible before").0;
    }
    path
}

/// Resident memory of this process. Unit: bytes.
fn memory_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).map_or(0, |pages| pages * 4096)
}

/// User-mode processor time of this process.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields are counted after the name, which may contain any character. The state is field 3, user time field 14, in
    // hundredths of seconds.
    let ticks = stat.rsplit(')').next().and_then(|fields| fields.split_whitespace().nth(11)?.parse().ok());
    Duration::from_millis(10 * ticks.unwrap_or(0))
}
