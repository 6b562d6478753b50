//! Breadth-first search over all states of a setup, and what is known of the graph afterwards.
//!
//! Why not the crate `stateright`: it compares states by 64-bit fingerprints, keeps no edges, and its `eventually` is not
//! checked on cycles, of which these graphs consist. Liveness here needs the edges: *from every state each sender
//! can send again* is a search backwards. What is left of a checker is this file.
//!
//! States are compared by a fingerprint of 128 bits of their canonical form: with 10^8 states two share one by accident
//! with a probability of 10^-23. Full states are kept only for the level that is being expanded and the next; for
//! each state there remain its fingerprint (28 B or so), the move that found it (5 B) and its edges (4 B each).
//!
//! A level is expanded by all threads at once, in chunks; ids within a level depend on the threads, counts do not.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::liveness::{Label, Starved, starved};
use crate::model::{Happened, Move, Setup, State, Violation};

/// Where a search stops although it is not complete.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// No level is expanded once there are so many states, so that a bounded search finds the same states each time. At most
    /// 2^26 - 1: ids share a word with labels.
    pub states: u32,
    /// The most memory of the process. Unit: bytes.
    pub memory_bytes: u64,
    /// The longest search, in processor time over all threads of the process: on a machine shared with other work the same
    /// states are found, later.
    pub cpu_time: Duration,
    /// How many threads expand.
    pub threads: usize,
}

/// Ids are below this, with room for what is found before anybody looks again.
const MAX_IDS: u32 = (1 << 26) - (1 << 20);

impl Default for Limits {
    fn default() -> Limits {
        Limits { states: MAX_IDS, memory_bytes: 6 << 30, cpu_time: Duration::from_secs(600), threads: 2 }
    }
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Report {
    /// States found.
    pub states: u32,
    /// Transitions between them.
    pub edges: u64,
    /// Length of the longest of the shortest ways from the start.
    pub depth: u32,
    /// Every state that can be reached was found and expanded.
    pub complete: bool,
    /// States in which, or in a move out of which, each of [`Happened::ALL`] is so.
    pub happened: [u64; Happened::ALL.len()],
    /// How long the search and the check of liveness took.
    pub time: Duration,
    /// The processor time of that, over all threads.
    pub cpu_time: Duration,
    /// What the process occupied at most, at the ends of levels. Unit: bytes.
    pub memory_bytes: u64,
    /// The first thing that did not hold, and the moves that lead there.
    pub failure: Option<(Violation, Vec<Move>)>,
}

impl Report {
    /// Kinds that must have been seen and were not.
    pub fn vacuous(&self, wanted: &[Happened]) -> Vec<&'static str> {
        wanted.iter().filter(|kind| self.happened[**kind as usize] == 0).map(|kind| kind.name()).collect()
    }
}

type Fingerprint = [u32; 4];

/// Fingerprints are as good as random already.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        // A slice of words comes as one: its first eight bytes are as good as any.
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }
    fn write_usize(&mut self, _: usize) {}
}

fn fingerprint(words: &[u32]) -> Fingerprint {
    // SipHash twice, under two different beginnings.
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

    /// The state's id, and whether it is new.
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

/// What became of one chunk of a level.
#[derive(Default)]
struct Expanded {
    /// For each state of the chunk, how many edges it has; [`UNEXPANDED`].
    edge_counts: Vec<u8>,
    edges: Vec<u32>,
    /// New states: id, state, its parent, the number of the parent's move.
    found: Vec<(u32, State, u32, u8)>,
    happened: [u64; Happened::ALL.len()],
    failure: Option<(Violation, u32, Move)>,
}

/// In place of a count of edges: the search ended before this state was expanded.
pub(crate) const UNEXPANDED: u8 = u8::MAX;

/// The graph: for each state the number of its edges, and all edges in order of their states. An edge is its
/// target and, above, its [`Label`].
pub(crate) struct Graph {
    pub edge_counts: Vec<u8>,
    pub edges: Vec<u32>,
}

/// Searches all states of `setup`, then looks for senders that starve. `progress` is told states and depth after each level.
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
        && let Some(Starved { state, pair, alone }) = starved(&graph, setup.pairs.len())
    {
        let (from, to) = setup.pairs[pair];
        let when = if alone { "if the other programs are silent" } else { "whatever happens" };
        let violation = Violation { check: "I4", detail: format!("{from} never sends to {to} again {when}") };
        report.failure = Some((violation, path_to(setup, &parents, state)));
    }
    report.time = start.elapsed();
    report.cpu_time = cpu_time().saturating_sub(cpu_start);
    report
}

/// Expands all states of a level; their ids begin at `base`. Chunks come with their place.
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
    let begin = expanded.edges.len();
    setup.moves(state, moves);
    for (number, &step) in moves.iter().enumerate() {
        let applied = setup.apply(state, step);
        let (next, effect) = match applied {
            Ok(applied) => applied,
            Err(violation) => {
                expanded.edges.truncate(begin);
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
    expanded.edge_counts.push((expanded.edges.len() - begin) as u8);
    for kind in Happened::ALL {
        expanded.happened[kind as usize] += u64::from(happened & kind.bit() != 0);
    }
    Ok(())
}

/// The moves from the start to a state.
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

/// What this process has in memory now.
fn memory_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).map_or(0, |pages| pages * 4096)
}

/// The processor time that this process has used, in user mode.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may contain anything: the state is field 3, user time field 14, in hundredths of seconds.
    let ticks = stat.rsplit(')').next().and_then(|fields| fields.split_whitespace().nth(11)?.parse().ok());
    Duration::from_millis(10 * ticks.unwrap_or(0))
}
