//! Measures the costs of the mailbox on this host: `cargo run --release -p weir-link --example costs`.
//!
//! Expect this: sending and receiving a message of 8 bytes takes some 10 ns each on one core. A round trip between
//! two cores takes a few cache misses. A `membarrier` costs a system call if no other process of weir runs. Otherwise
//! it costs an interrupt of the other core, which is expensive in nested virtual machines. A copy of 60 KiB takes some 2 us at
//! every distance with weir, and 40 us at a distance of 16 with the C library on processors that are slow there.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Instant;
use weir_link::biased_lock::BiasedLock;
use weir_link::copy::copy_slice;
use weir_link::memory::UserMemory;
use weir_link::shm::{SchemeName, ShmLink, ShmOptions};
use weir_link::{Arrival, Link, cores};
use weir_proto::{Body, Packet, Peer, Space};

fn eager(bytes: u32) -> Packet {
    let body = Body::Eager { space: Space::Tagged, tag: 7, data: None, length: bytes, acknowledge: None };
    Packet::new(body, bytes)
}

fn open() -> ShmLink {
    ShmLink::open(&ShmOptions {
        dir: "/dev/shm".into(),
        in_memory: false,
        reserved_lanes: 0,
        ranks: 0,
        needed_bytes: 0,
        is_private: false,
        quota_data_slots: 256,
        quota_rest_lanes: 0,
        start_slots: 0,
        credit_slots: 2,
        max_lanes: 4096,
        cross_memory: true,
        full_fences: false,
        cooperative_copy: true,
        conditional: false,
        refused_limit: std::time::Duration::from_secs(10),
        scheme: SchemeName::new("static"),
    })
    .expect("a mailbox in /dev/shm")
}

fn ns_each(what: &str, count: u32, mut run: impl FnMut()) {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        (0..count).for_each(|_| run());
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(count));
    }
    println!("{what:<60} {best:8.1} ns");
}

/// Measures single calls. Prints the median and the times that 10 % and 90 % of the calls do not exceed.
fn ns_single(what: &str, count: u32, mut run: impl FnMut()) {
    let mut times: Vec<u128> = (0..count)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    let at = |part: usize| times[times.len() * part / 100];
    println!("{what:<60} {:8} ns median, {} ns p10, {} ns p90", at(50), at(10), at(90));
}

fn receive(link: &mut dyn Link, memory: &UserMemory) -> bool {
    match link.poll() {
        Some(Arrival::Packet { packet, .. }) => {
            link.copy_payload(memory, 0, packet.payload_bytes.into());
            link.retire();
            true
        }
        Some(Arrival::Attached { lane, .. }) => {
            link.accept(lane, Peer(0));
            false
        }
        _ => false,
    }
}

fn membarrier() {
    let _ = rustix::thread::membarrier(rustix::thread::MembarrierCommand::GlobalExpedited);
}

/// One endpoint of the ping-pong. `first`: this endpoint sends first. Returns the best mean round trip of a hundred.
/// Unit: nanoseconds.
fn ping_pong(link: &mut dyn Link, rounds: u32, bytes: u32, first: bool) -> f64 {
    let mut buffer = vec![0_u8; bytes as usize];
    // SAFETY: the buffer outlives the view.
    let memory = unsafe { UserMemory::contiguous(buffer.as_mut_ptr(), buffer.len()) };
    let (mut best, mut start) = (f64::INFINITY, Instant::now());
    for round in 0..rounds {
        if round > 0 || !first {
            while !receive(link, &memory) {
                std::hint::spin_loop();
            }
        }
        link.transmit(Peer(0), &eager(bytes), Some((&memory, 0))).expect("never busy");
        if round % 100 == 99 {
            best = best.min(start.elapsed().as_nanos() as f64 / 100.0);
            start = Instant::now();
        }
    }
    best
}

/// Copies of 60 KiB from one buffer to another one, at each distance between their places in a page.
fn copies() {
    const BYTES: usize = 60 << 10;
    let (from, mut to) = (vec![1_u8; BYTES + 8192], vec![0_u8; BYTES + 8192]);
    let begin = from.as_ptr().align_offset(4096);
    for distance in [0, 16, 64, 2048] {
        let at = to.as_ptr().align_offset(4096) + distance;
        let source = &from[begin..begin + BYTES];
        ns_each(&format!("60 KiB, {distance} bytes behind the source: the C library"), 1000, || {
            std::hint::black_box(&mut to)[at..at + BYTES].copy_from_slice(std::hint::black_box(source));
        });
        ns_each(&format!("60 KiB, {distance} bytes behind the source: weir"), 1000, || {
            copy_slice(std::hint::black_box(source), &mut std::hint::black_box(&mut to)[at..at + BYTES]);
        });
    }
}

fn main() {
    copies();
    let _ = cores::pin(0);
    let rounds = if std::env::args().any(|argument| argument == "--tiny") { 200 } else { 200_000 };
    let (mut a, mut b): (Box<dyn Link>, Box<dyn Link>) = (Box::new(open()), Box::new(open()));
    a.connect(Peer(0), &b.address()).expect("connected");
    b.connect(Peer(0), &a.address()).expect("connected");
    for bytes in [8_u32, 16, 64, 1024, 4000] {
        let mut buffer = vec![0_u8; bytes as usize];
        // SAFETY: the buffer outlives the view.
        let memory = unsafe { UserMemory::contiguous(buffer.as_mut_ptr(), buffer.len()) };
        receive(&mut *b, &memory);
        let batch = if bytes > 100 { 2 } else { 64 };
        let packet = eager(bytes);
        let (mut sending, mut receiving) = (u128::MAX, u128::MAX);
        for _ in 0..rounds / 100 {
            let start = Instant::now();
            (0..batch).for_each(|_| a.transmit(Peer(0), &packet, Some((&memory, 0))).expect("never busy"));
            sending = sending.min(start.elapsed().as_nanos());
            let start = Instant::now();
            (0..batch).for_each(|_| assert!(receive(&mut *b, &memory)));
            receiving = receiving.min(start.elapsed().as_nanos());
        }
        println!(
            "{bytes:>5} bytes, one core: send {:.1} ns, receive {:.1} ns (best batch)",
            sending as f64 / f64::from(batch),
            receiving as f64 / f64::from(batch)
        );
    }
    ns_each("empty poll, 1 lane", rounds, || assert!(b.poll().is_none()));
    for bytes in [8, 1024] {
        std::thread::scope(|scope| {
            let start = Instant::now();
            let (a, b) = (&mut *a, &mut *b);
            scope.spawn(move || {
                let _ = cores::pin(1);
                ping_pong(b, rounds, bytes, false);
            });
            let best = ping_pong(a, rounds, bytes, true);
            let mean = start.elapsed().as_nanos() as f64 / f64::from(rounds);
            println!("{bytes:>5} bytes, two cores: round trip {best:.0} ns best hundred, {mean:.0} ns mean");
        });
        while b.poll().is_some() {
            b.retire();
        }
        while a.poll().is_some() {
            a.retire();
        }
    }
    let stop = AtomicBool::new(false);
    let word = AtomicU64::new(0);
    ns_each("store and SeqCst fence", rounds, || {
        word.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    });
    ns_each("locked OR on an uncontended word", rounds, || {
        word.fetch_or(1, Ordering::Release);
    });
    ns_single("membarrier, other core idle", rounds / 10, membarrier);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = cores::pin(1);
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        std::thread::sleep(std::time::Duration::from_millis(50)); // until the other thread runs
        ns_single("membarrier, other core busy in this process", rounds / 10, membarrier);
        stop.store(true, Ordering::Relaxed);
    });
    // For comparison with a mailbox whose senders share one cursor: two cores advance the same word.
    let (cursor, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = cores::pin(1);
            while !stop.load(Ordering::Relaxed) {
                cursor.fetch_add(1, Ordering::AcqRel);
            }
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        let hundred = || {
            (0..100).for_each(|_| {
                std::hint::black_box(cursor.fetch_add(1, Ordering::AcqRel));
            })
        };
        ns_single("100 fetch_add on a word that another core changes too", rounds / 10, hundred);
        stop.store(true, Ordering::Relaxed);
    });
    let shared = BiasedLock::shared(0_u64, |_| ());
    ns_each("biased lock: enter and leave, shared mode", rounds, || {
        *std::hint::black_box(shared.enter()) += 1
    });
    // SAFETY: there is one guard at a time.
    let serialised = unsafe { BiasedLock::serialised(0_u64, |_| ()) };
    ns_each("biased lock: enter and leave, serialised mode", rounds, || {
        *std::hint::black_box(serialised.enter()) += 1
    });
    let mutex = std::sync::Mutex::new(0_u64);
    ns_each("std mutex, uncontended", rounds, || {
        if let Ok(mut value) = std::hint::black_box(&mutex).lock() {
            *value += 1;
        }
    });
}
