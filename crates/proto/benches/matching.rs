//! Cost of finding a message among many unexpected ones, and a receive among many posted ones.
//!
//! Expected with 10 messages in front: a search visits them, about 5 ns each. With 1,000 the pattern's index answers.
//! It costs a hash, a bucket and a few heads. Removing the message from the list and from all indexes costs as much
//! again: 0.1 to 0.3 us. With 100,000 the same steps miss the cache, about 10 times at 100 ns: at most 1 us. A peek is
//! a part of that.
//!
//! `drain` has 120,000 messages of three senders, pushed in turn and received sender by sender. Expected: at most 0.2
//! s, and linear in the messages. (MPICH 5.0.2 needs 60 s for it; field notes, section 2.)
//!
//! The endpoint does all of it, so each figure includes about 100 ns of commands and actions.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput};
use weir_proto::{
    Action, Body, Command, Config, Endpoint, Event, Geometry, Instant, Packet, Pattern, PeekThen, Peer,
    ReceiveCommand, Recorder, Request, Scheme, Space,
};

/// As in MPICH: every receive ignores the protocol bits; a receive with any tag also ignores the tag bits.
const PROTOCOL: u64 = 0xf << 60;
const ANY_TAG: u64 = PROTOCOL | 0xffff_ffff;
/// The communicator of the receives, and another one whose messages are in front.
const CONTEXT: u64 = 5 << 40;
const OTHER_CONTEXT: u64 = 6 << 40;
const WANTED: Peer = Peer(7);

const PATTERNS: [(&str, Option<Peer>, u64); 4] = [
    ("sender and tag", Some(WANTED), PROTOCOL),
    ("any sender, tag", None, PROTOCOL),
    ("sender, any tag", Some(WANTED), ANY_TAG),
    ("any sender, any tag", None, ANY_TAG),
];

struct Machine {
    endpoint: Endpoint,
    actions: Vec<Action>,
}

impl Machine {
    fn new() -> Machine {
        let endpoint = Endpoint::new(Config {
            scheme: Scheme::Unlimited,
            geometry: Geometry::SHARED_MEMORY,
            credit_slots: 1,
            region: weir_proto::DataRegion::default(),
            eager_bytes: 1000,
            cross_memory: true,
            remote_inline_bytes: 0,
            max_backlog: u32::MAX,
            max_unexpected: weir_proto::MAX_UNEXPECTED,
            unexpected_budget_bytes: 1 << 40,
            bounce_bytes: 1 << 40,
            envelope_budget_bytes: u64::MAX,
            planned_peers: 1,
            planned_quota_slots: 64,
        });
        Machine { endpoint, actions: Vec::new() }
    }

    fn handle(&mut self, event: Event<'_>) {
        self.actions.clear();
        let driver = Recorder::new(Instant(0), &mut self.actions);
        self.endpoint.handle(event, driver).expect("within the bounds");
    }

    /// A message without payload: only its envelope uses memory.
    fn arrive(&mut self, from: Peer, tag: u64) {
        let (space, data) = (Space::Tagged, Some(u64::from(from.0)));
        let body = Body::Eager { space, tag, data, length: 0, acknowledge: None };
        self.handle(Event::Arrived { from, packet: &Packet::new(body, 0) });
    }

    fn receive(&mut self, pattern: Pattern) {
        let receive = ReceiveCommand { request: Request(0), pattern, capacity_bytes: 0, multi: None };
        self.handle(Event::Posted(Command::Receive(receive)));
    }

    fn peek(&mut self, pattern: Pattern) {
        let then = PeekThen::Leave;
        self.handle(Event::Posted(Command::Peek { request: Request(0), pattern, then }));
    }
}

fn pattern(from: Option<Peer>, tag: u64, ignore: u64) -> Pattern {
    Pattern { space: Space::Tagged, from, tag, ignore }
}

fn unexpected(criterion: &mut Criterion) {
    for (name, from, ignore) in PATTERNS {
        let mut group = criterion.benchmark_group(format!("unexpected, {name}"));
        for count in [10, 1000, 100_000] {
            let mut machine = Machine::new();
            // Eleven senders, with distinct tags.
            for number in 0..count {
                machine.arrive(Peer(number as u32 % 11), OTHER_CONTEXT | number);
            }
            if count > 10 {
                // Builds all indexes: the most expensive case.
                for (_, from, ignore) in PATTERNS {
                    machine.peek(pattern(from, CONTEXT, ignore));
                }
            }
            let wanted = pattern(from, CONTEXT | 9, ignore);
            group.bench_function(format!("arrive and receive past {count}"), |bencher| {
                bencher.iter(|| {
                    machine.arrive(WANTED, CONTEXT | 9);
                    machine.receive(black_box(wanted));
                });
            });
            machine.arrive(WANTED, CONTEXT | 9);
            group.bench_function(format!("peek past {count}"), |bencher| {
                bencher.iter(|| machine.peek(black_box(wanted)));
            });
        }
    }
}

fn drain(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("drain");
    group.sample_size(10);
    for each in [4_000, 40_000, 400_000] {
        group.throughput(Throughput::Elements(3 * each));
        let full = || {
            let mut machine = Machine::new();
            (0..each).for_each(|_| (0..3).for_each(|from| machine.arrive(Peer(from), CONTEXT | 9)));
            machine
        };
        group.bench_function(format!("{} messages of three senders", 3 * each), |bencher| {
            bencher.iter_batched(
                full,
                |mut machine| {
                    for from in (0..3).rev() {
                        for _ in 0..each {
                            machine.receive(pattern(Some(Peer(from)), CONTEXT | 9, PROTOCOL));
                        }
                    }
                    machine
                },
                BatchSize::PerIteration,
            );
        });
    }
}

fn posted(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("posted");
    for count in [10, 1000, 100_000] {
        for (name, from, ignore) in &PATTERNS[..2] {
            let mut machine = Machine::new();
            for number in 0..count {
                machine.receive(pattern(*from, OTHER_CONTEXT | number, *ignore));
            }
            group.bench_function(format!("post and arrive, {name}, past {count}"), |bencher| {
                bencher.iter(|| {
                    machine.receive(black_box(pattern(*from, CONTEXT | 9, *ignore)));
                    machine.arrive(WANTED, CONTEXT | 9);
                });
            });
        }
    }
}

/// Resident memory of the process as the kernel counts it. Unit: bytes.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    4096 * pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0)
}

/// Prints the memory of a million messages, by our count and by the kernel's, and what is left afterwards.
fn memory() {
    const COUNT: u64 = 1_000_000;
    let mut machine = Machine::new();
    let before = resident_bytes();
    for number in 0..COUNT {
        machine.arrive(Peer(number as u32 % 11), OTHER_CONTEXT | number);
    }
    let listed = machine.endpoint.unexpected_bytes() as f64 / COUNT as f64;
    for (_, from, ignore) in PATTERNS {
        machine.peek(pattern(from, CONTEXT, ignore));
    }
    let bytes = machine.endpoint.unexpected_bytes() as f64 / COUNT as f64;
    let resident = (resident_bytes() - before) as f64 / COUNT as f64;
    println!(
        "{COUNT} messages: {listed:.2} bytes each in order, {bytes:.2} with four indexes, {resident:.2} resident"
    );
    for number in 0..COUNT {
        machine.receive(pattern(None, OTHER_CONTEXT | number, PROTOCOL));
    }
    let left = machine.endpoint.unexpected_bytes();
    let resident = resident_bytes().saturating_sub(before);
    println!("afterwards: {left} bytes, {resident} resident more than before");
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600))
        .configure_from_args();
    memory();
    unexpected(&mut criterion);
    drain(&mut criterion);
    posted(&mut criterion);
    criterion.final_summary();
}
