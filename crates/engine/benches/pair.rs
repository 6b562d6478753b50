//! Benchmark of messages between two engines, without MPI and libfabric.
//!
//! Expected half round trip, if a cache line crosses between cores in 0.15 us:
//!
//! | message | time | what it costs |
//! |---|---|---|
//! | 8 B | 0.25 us | one line each way, and the machine twice |
//! | 2 KB | 0.6 us | 33 lines, which the prefetcher follows |
//! | 64 KB, 1 MB | 5 us, 55 us | one copy between processes each way |
//!
//! `to itself` is the cost of the code alone: no line crosses.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use weir_engine::config::Settings;
use weir_engine::{Engine, Operation, Post, SendArguments};
use weir_link::memory::OwnedMemory;
use weir_proto::{Pattern, Peer, SendLevel, Space};

const ANY: Pattern = Pattern { space: Space::Tagged, from: None, tag: 0, ignore: 0 };

fn engine() -> Engine {
    Engine::open(&Settings::default(), 2, false).expect("a mailbox")
}

fn send(engine: &mut Engine, to: Peer, memory: &OwnedMemory) {
    let (space, level, memory) = (Space::Tagged, SendLevel::Buffered, memory.view());
    let arguments = SendArguments { to, space, tag: 0, data: Some(0), level, memory, inject: false };
    engine.send(Post::default(), arguments).expect("taken");
}

fn receive(engine: &mut Engine, memory: &OwnedMemory) {
    engine.receive(Post::default(), ANY, memory.view(), None).expect("taken");
}

/// Makes progress until a receive completes. `false`: `stop` was set.
fn wait(engine: &mut Engine, stop: &AtomicBool) -> bool {
    loop {
        while let Some(completion) = engine.next_completion() {
            if completion.operation == Operation::Receive {
                return true;
            }
        }
        if engine.progress() == 0 {
            if stop.load(Ordering::Relaxed) {
                return false;
            }
            engine.pause();
        }
    }
}

fn half_round_trip(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("half round trip");
    for bytes in [8, 2048, 65_536, 1 << 20] {
        let (mut here, mut there) = (engine(), engine());
        let (to, back) = (here.peer(&there.address()), there.peer(&here.address()));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (from, into) = (OwnedMemory::new(bytes), OwnedMemory::new(bytes));
                receive(&mut there, &into);
                while wait(&mut there, &stop) {
                    receive(&mut there, &into);
                    send(&mut there, back, &from);
                }
            });
            let (from, into) = (OwnedMemory::new(bytes), OwnedMemory::new(bytes));
            let never = AtomicBool::new(false);
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(format!("{bytes} B"), |bencher| {
                bencher.iter_custom(|rounds| {
                    let start = Instant::now();
                    for _ in 0..rounds {
                        receive(&mut here, &into);
                        send(&mut here, to, &from);
                        wait(&mut here, &never);
                    }
                    start.elapsed() / 2
                });
            });
            stop.store(true, Ordering::Relaxed);
        });
    }
}

fn code_alone(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("to itself");
    for bytes in [8, 2048] {
        let mut engine = engine();
        let own = engine.address();
        let to = engine.peer(&own);
        let (from, into) = (OwnedMemory::new(bytes), OwnedMemory::new(bytes));
        let never = AtomicBool::new(false);
        group.bench_function(format!("{bytes} B"), |bencher| {
            bencher.iter(|| {
                receive(&mut engine, &into);
                send(&mut engine, to, &from);
                black_box(wait(&mut engine, &never));
            });
        });
    }
}

fn configured() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
}

fn main() {
    let mut criterion = configured().configure_from_args();
    code_alone(&mut criterion);
    half_round_trip(&mut criterion);
    criterion.final_summary();
}
