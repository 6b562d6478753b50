//! Tests of endpoints with several links: shared memory, and a link inside the process with other slots that
//! refuses and delays packets.

#[path = "common/exchange.rs"]
mod exchange;
#[path = "common/faults.rs"]
mod faults;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use exchange::{AnyEngine, MESSAGES, exchange};
use faults::{delay_often, directory, refuse_often, settings};
use weir_engine::{Completion, Engine, Post, RemoteArguments, SendArguments};
use weir_link::LinkKind;
use weir_link::faulty::{Delays, Faulty, Script};
use weir_link::links::Links;
use weir_link::local::LocalLink;
use weir_link::local::memory::COPIES_PER_PEER;
use weir_link::memory::OwnedMemory;
use weir_link::shm::ShmLink;
use weir_proto::{Outcome, Pattern, Peer, PeerFault, Scheme, SendLevel, Space};

/// Enough for the large slots of the local link.
const BUDGET_BYTES: u64 = 1 << 26;

/// Packets that a mailbox of the local link takes: fewer than senders have credits for.
const ROOM: usize = 3;

type TwoLinks = Engine<Links<ShmLink>>;

/// `full`: counts packets that a full mailbox of the local link has refused.
fn open(
    directory: &tempfile::TempDir,
    scheme: Scheme,
    script: Script,
    delays: Delays,
    full: &Arc<AtomicU64>,
) -> TwoLinks {
    let make = |shm: ShmLink, _| {
        let local = LocalLink::open_with_room(&shm.address(), shm.quota(), ROOM);
        let faulty = Faulty::new(local, script).with_delays(delays).with_inner_refusals(Arc::clone(full));
        Links::new(shm, vec![Box::new(faulty)])
    };
    Engine::open_over(&settings(directory, scheme, BUDGET_BYTES), 3, false, make).expect("an endpoint")
}

fn open_without_faults(directory: &tempfile::TempDir, scheme: Scheme) -> TwoLinks {
    open(directory, scheme, Box::new(|_, _| None), Box::new(|_, _| 0), &Arc::default())
}

/// Endpoints 0 and 1 have both links, endpoint 2 has shared memory only.
fn exchange_over_two_links(scheme: Scheme) {
    let directory = directory();
    let (refused, full) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut engines: Vec<Box<dyn AnyEngine>> = (1..=2)
        .map(|seed| {
            let script = refuse_often(seed, Arc::clone(&refused));
            let engine = open(&directory, scheme, script, delay_often(seed), &full);
            Box::new(engine) as Box<dyn AnyEngine>
        })
        .collect();
    let shm_only = Engine::open(&settings(&directory, scheme, BUDGET_BYTES), 3, false).expect("an endpoint");
    assert_eq!(shm_only.address().part(LinkKind::Local), None);
    engines.push(Box::new(shm_only));
    exchange(engines, &[(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (0, 0)]);
    assert!(
        refused.load(Relaxed) > MESSAGES as u64 / 4,
        "{refused:?} packets of the local link were refused"
    );
    assert!(full.load(Relaxed) > 0, "the mailboxes of the local link were never full");
}

#[test]
fn an_endpoint_uses_two_links_at_once_with_dynamic_credits() {
    exchange_over_two_links(Scheme::Dynamic { piggyback: true });
}

#[test]
fn an_endpoint_uses_two_links_at_once_with_static_credits() {
    exchange_over_two_links(Scheme::Static { piggyback: true });
}

/// Sends 8 bytes, complete when matched.
fn send(engine: &mut TwoLinks, to: Peer, payload: &OwnedMemory) {
    let (space, level, memory) = (Space::Tagged, SendLevel::Matched, payload.view());
    let arguments = SendArguments { to, space, tag: 0, data: None, level, memory, inject: false };
    engine.send(Post::default(), arguments).expect("taken");
}

#[test]
fn a_message_over_the_second_link_ends_the_sleep_on_the_first() {
    let directory = directory();
    let scheme = Scheme::Dynamic { piggyback: true };
    let (mut a, mut b) = (open_without_faults(&directory, scheme), open_without_faults(&directory, scheme));
    let (to_b, to_a) = (a.peer(&b.address()), b.peer(&a.address()));
    let into = OwnedMemory::new(8);
    let pattern = Pattern { space: Space::Tagged, from: Some(to_b), tag: 0, ignore: 0 };
    a.receive(Post::default(), pattern, into.view(), None).expect("taken");
    let sender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        let payload = OwnedMemory::new(8);
        send(&mut b, to_a, &payload);
        while b.next_completion().is_none() {
            b.progress();
        }
        assert_eq!(b.link().other_link_of(to_a), Some(0));
    });
    let began = Instant::now();
    let mut sleeps = 0;
    let completion = loop {
        a.progress();
        if let Some(completion) = a.next_completion() {
            break completion;
        }
        a.wait(60_000_000_000);
        sleeps += 1;
    };
    assert!(matches!(completion.outcome, Outcome::Received { bytes: 8, .. }), "{completion:?}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert!((1..100).contains(&sleeps), "{sleeps} sleeps");
    // The acknowledgement leaves with the next progress.
    while !sender.is_finished() {
        a.progress();
    }
    sender.join().expect("the sender");
    assert_eq!(a.link().other_link_of(to_b), Some(0), "both endpoints use the same link");
}

#[test]
fn a_closed_endpoint_is_reported_over_the_second_link() {
    let directory = directory();
    let scheme = Scheme::Dynamic { piggyback: true };
    let (mut a, mut b) = (open_without_faults(&directory, scheme), open_without_faults(&directory, scheme));
    let to_b = a.peer(&b.address());
    let payload = OwnedMemory::new(8);
    send(&mut a, to_b, &payload);
    for _ in 0..10 {
        a.progress();
        b.progress();
    }
    b.close();
    let began = Instant::now();
    let completion = loop {
        a.progress();
        if let Some(completion) = a.next_completion() {
            break completion;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "nothing is reported");
    };
    assert!(matches!(completion.outcome, Outcome::Lost { fault: PeerFault::Closed, .. }), "{completion:?}");
}

/// Endpoint `a` reaches `b` over the local link, which has remote keys, and `c` over shared memory.
struct Three {
    a: TwoLinks,
    b: TwoLinks,
    c: Engine,
    /// `b` and `c`, as `a` knows them.
    targets: [Peer; 2],
    _directory: tempfile::TempDir,
}

impl Three {
    fn open() -> Three {
        let directory = directory();
        let scheme = Scheme::Dynamic { piggyback: true };
        let (mut a, b) = (open_without_faults(&directory, scheme), open_without_faults(&directory, scheme));
        let settings = settings(&directory, scheme, BUDGET_BYTES);
        let c = Engine::open(&settings, 3, false).expect("an endpoint");
        let targets = [a.peer(&b.address()), a.peer(&c.address())];
        Three { a, b, c, targets, _directory: directory }
    }

    fn progress(&mut self) {
        self.a.progress();
        self.b.progress();
        self.c.progress();
    }

    /// The next `count` completions of `a`.
    fn complete(&mut self, count: usize) -> Vec<Completion> {
        let began = Instant::now();
        let mut completions = Vec::new();
        while completions.len() < count {
            assert!(began.elapsed() < Duration::from_secs(60), "{completions:?}");
            self.progress();
            completions.extend(std::iter::from_fn(|| self.a.next_completion()));
        }
        completions
    }

    fn remote(&self, target: usize, number: usize, memory: &OwnedMemory) -> RemoteArguments {
        let offset = (number * PART_BYTES) as u64;
        let peer = self.targets[target];
        RemoteArguments { peer, key: 5, offset, memory: memory.view(), data: None, inject: false }
    }
}

/// Long enough for a copy by the link.
const PART_BYTES: usize = 20_000;
const PARTS: usize = 10;

fn filled(bytes: usize, byte: u8) -> OwnedMemory {
    let memory = OwnedMemory::new(bytes);
    memory.view().write(0, &vec![byte; bytes]);
    memory
}

fn contents(memory: &OwnedMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.view().bytes() as usize];
    memory.view().read(0, &mut bytes);
    bytes
}

#[test]
fn regions_are_written_and_read_over_a_link_with_keys_and_over_shared_memory() {
    const { assert!(PARTS > COPIES_PER_PEER as usize, "some copies wait") };
    let mut three = Three::open();
    let regions = [OwnedMemory::new(PARTS * PART_BYTES), OwnedMemory::new(PARTS * PART_BYTES)];
    three.b.register_memory(5, regions[0].view(), true, true);
    three.c.register_memory(5, regions[1].view(), true, true);
    let parts: Vec<_> = (0..PARTS).map(|number| filled(PART_BYTES, number as u8 + 1)).collect();
    for target in 0..2 {
        for (number, part) in parts.iter().enumerate() {
            let write = three.remote(target, number, part);
            three.a.write(Post::default(), write).expect("taken");
        }
    }
    let written = three.complete(2 * PARTS);
    assert!(written.iter().all(|completion| completion.outcome == Outcome::Done), "{written:?}");
    let whole: Vec<u8> = parts.iter().flat_map(contents).collect();
    assert!(regions.iter().all(|region| contents(region) == whole));
    let back: Vec<_> = (0..2 * PARTS).map(|_| OwnedMemory::new(PART_BYTES)).collect();
    for (index, memory) in back.iter().enumerate() {
        let read = three.remote(index % 2, index / 2, memory);
        three.a.read(Post::default(), read).expect("taken");
    }
    let read = three.complete(2 * PARTS);
    assert!(read.iter().all(|completion| completion.outcome == Outcome::Done), "{read:?}");
    assert!(back.iter().enumerate().all(|(index, memory)| contents(memory) == contents(&parts[index / 2])));
    assert_eq!(three.a.counters().cross_memory_copies, 4 * PARTS as u64, "no payload in packets");
    assert_eq!(three.a.link().other_link_of(three.targets[0]), Some(0));
    assert_eq!(three.a.link().other_link_of(three.targets[1]), None);
}

#[test]
fn a_region_that_is_deregistered_before_the_copy_refuses_it() {
    let mut three = Three::open();
    let (region, into) = (filled(PART_BYTES, 1), OwnedMemory::new(PART_BYTES));
    for target in 0..2 {
        three.b.register_memory(5, region.view(), true, false);
        three.c.register_memory(5, region.view(), true, false);
        let read = three.remote(target, 0, &into);
        three.a.read(Post::default(), read).expect("taken");
        let copies = three.a.counters().cross_memory_copies;
        if target == 0 {
            // The target answers with a key, which is not valid any more when the reader uses it.
            for _ in 0..100 {
                three.b.progress();
            }
            three.b.deregister_memory(5);
        }
        let outcome = three.complete(1)[0].outcome;
        assert_eq!(outcome, if target == 0 { Outcome::Refused } else { Outcome::Done });
        assert_eq!(three.a.counters().cross_memory_copies, copies + 1, "a copy was attempted");
        three.b.deregister_memory(5);
        three.c.deregister_memory(5);
    }
}

#[test]
fn announced_messages_are_read_by_their_keys_also_if_they_are_unexpected() {
    let mut three = Three::open();
    let payloads: Vec<_> = (0..PARTS).map(|number| filled(PART_BYTES, number as u8 + 1)).collect();
    let (back_b, back_c) = (three.b.peer(&three.a.address()), three.c.peer(&three.a.address()));
    for target in 0..2 {
        for payload in &payloads {
            let (to, space, memory) = (three.targets[target], Space::Tagged, payload.view());
            let level = SendLevel::Buffered;
            let send = SendArguments { to, space, tag: 0, data: None, level, memory, inject: false };
            three.a.send(Post::default(), send).expect("taken");
        }
    }
    (0..100).for_each(|_| three.progress()); // all are unexpected
    let into: Vec<_> = (0..2 * PARTS).map(|_| OwnedMemory::new(PART_BYTES)).collect();
    for (index, memory) in into.iter().enumerate() {
        let from = Some(if index < PARTS { back_b } else { back_c });
        let pattern = Pattern { space: Space::Tagged, from, tag: 0, ignore: 0 };
        if index < PARTS {
            three.b.receive(Post::default(), pattern, memory.view(), None).expect("taken");
        } else {
            three.c.receive(Post::default(), pattern, memory.view(), None).expect("taken");
        }
    }
    let sent = three.complete(2 * PARTS);
    assert!(sent.iter().all(|completion| completion.outcome == Outcome::Done), "{sent:?}");
    assert!(
        into.iter().enumerate().all(|(index, memory)| contents(memory) == contents(&payloads[index % PARTS]))
    );
    assert_eq!(three.b.counters().cross_memory_copies, PARTS as u64);
    assert_eq!(three.c.counters().cross_memory_copies, PARTS as u64);
}
