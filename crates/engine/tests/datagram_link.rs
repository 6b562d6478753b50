//! Tests of endpoints with shared memory and a network that loses, repeats, reorders and changes datagrams.

#[path = "common/exchange.rs"]
mod exchange;
#[path = "common/faults.rs"]
mod faults;

use exchange::{AnyEngine, exchange};
use faults::{directory, settings};
use weir_engine::config::Settings;
use weir_engine::{Completion, Engine, Post, RemoteArguments, SendArguments};
use weir_link::LinkKind;
use weir_link::datagram::lossy::{Impairments, LossyNetwork, Switch};
use weir_link::datagram::{DatagramLink, DatagramOptions};
use weir_link::links::Links;
use weir_link::memory::OwnedMemory;
use weir_link::shm::ShmLink;
use weir_proto::reliability::ReliabilityConfig;
use weir_proto::{Outcome, Pattern, Peer, PeerFault, Scheme, SendLevel, Space};

const BUDGET_BYTES: u64 = 1 << 26;
const MICROSECOND: u64 = 1_000;
const LIMIT_NS: u64 = 1_000_000 * MICROSECOND;

type TwoLinks = Engine<Links<ShmLink>>;

/// Each look at the network takes some time, so that timers expire while the tests poll.
const GOOD: Impairments = Impairments {
    lost: 0,
    repeated: 0,
    changed: 0,
    marked: 0,
    refused: 0,
    delay_ns: 10 * MICROSECOND,
    jitter_ns: 0,
    look_ns: MICROSECOND,
};
const BAD: Impairments = Impairments {
    lost: 50,
    repeated: 30,
    changed: 30,
    marked: 20,
    refused: 100,
    jitter_ns: 100 * MICROSECOND,
    ..GOOD
};

fn datagrams(shm: &ShmLink, switch: &Switch, port: u16) -> DatagramLink<LossyNetwork> {
    let reliability = ReliabilityConfig { limit_ns: LIMIT_NS, ..ReliabilityConfig::default() };
    let options = DatagramOptions { reliability, ..DatagramOptions::new(shm.quota()) };
    DatagramLink::open(&shm.address(), switch.open(port), options)
}

fn open(directory: &tempfile::TempDir, scheme: Scheme, switch: &Switch, port: u16) -> TwoLinks {
    open_with(&settings(directory, scheme, BUDGET_BYTES), switch, port)
}

fn open_with(settings: &Settings, switch: &Switch, port: u16) -> TwoLinks {
    let make = |shm: ShmLink, _| {
        let datagrams = datagrams(&shm, switch, port);
        Links::new(shm, vec![Box::new(datagrams)])
    };
    Engine::open_over(settings, 3, false, make).expect("an endpoint")
}

/// Endpoints 0 and 1 are on one node, endpoint 2 is on another.
fn exchange_across_nodes(scheme: Scheme, seed: u64) {
    let (node, other_node) = (directory(), directory());
    let switch = Switch::new(seed, BAD);
    let engines: Vec<Box<dyn AnyEngine>> = vec![
        Box::new(open(&node, scheme, &switch, 1)),
        Box::new(open(&node, scheme, &switch, 2)),
        Box::new(open(&other_node, scheme, &switch, 3)),
    ];
    exchange(engines, &[(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1), (0, 0)]);
    let counters = switch.counters();
    assert!(counters.sent > 1000, "{counters:?}");
    assert!(counters.impaired.iter().all(|&count| count > 10), "{counters:?}");
}

#[test]
fn an_endpoint_uses_shared_memory_and_a_bad_network_at_once_with_dynamic_credits() {
    exchange_across_nodes(Scheme::Dynamic { piggyback: true }, 1);
}

#[test]
fn an_endpoint_uses_shared_memory_and_a_bad_network_at_once_with_static_credits() {
    exchange_across_nodes(Scheme::Static { piggyback: true }, 2);
}

#[test]
fn an_endpoint_uses_shared_memory_and_a_bad_network_at_once_with_credits_on_demand() {
    exchange_across_nodes(Scheme::Demand, 3);
}

/// An endpoint on each of two nodes.
struct Two {
    a: TwoLinks,
    b: TwoLinks,
    to_b: Peer,
    to_a: Peer,
    switch: Switch,
    directories: [tempfile::TempDir; 2],
}

impl Two {
    fn open() -> Two {
        let directories = [directory(), directory()];
        let switch = Switch::new(1, GOOD);
        let scheme = Scheme::Dynamic { piggyback: true };
        let mut a = open(&directories[0], scheme, &switch, 1);
        let mut b = open(&directories[1], scheme, &switch, 2);
        assert!(b.address().part(LinkKind::LastChoice).is_some());
        let (to_b, to_a) = (a.peer(&b.address()), b.peer(&a.address()));
        Two { a, b, to_b, to_a, switch, directories }
    }

    fn progress(&mut self) {
        self.a.progress();
        self.b.progress();
    }
}

fn receive(engine: &mut TwoLinks, from: Peer, into: &OwnedMemory) {
    let pattern = Pattern { space: Space::Tagged, from: Some(from), tag: 0, ignore: 0 };
    engine.receive(Post::default(), pattern, into.view(), None).expect("taken");
}

fn send(engine: &mut TwoLinks, to: Peer, level: SendLevel, payload: &OwnedMemory) {
    let memory = payload.view();
    let arguments =
        SendArguments { to, space: Space::Tagged, tag: 0, data: None, level, memory, inject: false };
    engine.send(Post::default(), arguments).expect("taken");
}

fn eight_bytes() -> OwnedMemory {
    let payload = OwnedMemory::new(8);
    payload.view().write(0, b"over net");
    payload
}

#[test]
fn a_silent_peer_becomes_an_error_at_the_limit() {
    let mut two = Two::open();
    let payload = eight_bytes();
    receive(&mut two.b, two.to_a, &payload);
    send(&mut two.a, two.to_b, SendLevel::Matched, &payload);
    let mut completions: Vec<Completion> = Vec::new();
    while completions.is_empty() {
        two.progress();
        completions.extend(two.a.next_completion());
    }
    assert_eq!(completions[0].outcome, Outcome::Done);
    two.switch.cut(2);
    send(&mut two.a, two.to_b, SendLevel::Matched, &payload);
    let begun = two.switch.now();
    let lost = loop {
        two.a.progress();
        if let Some(completion) = two.a.next_completion() {
            break completion;
        }
    };
    assert!(matches!(lost.outcome, Outcome::Lost { fault: PeerFault::Died, .. }), "{lost:?}");
    let waited_ns = two.switch.now().since_ns(begun);
    assert!((LIMIT_NS..LIMIT_NS + LIMIT_NS / 5).contains(&waited_ns), "{waited_ns} ns");
}

#[test]
fn an_endpoint_that_replaces_a_dead_one_at_its_place_can_be_reached() {
    let mut two = Two::open();
    let payload = eight_bytes();
    send(&mut two.b, two.to_a, SendLevel::Buffered, &payload);
    for _ in 0..1000 {
        two.progress();
    }
    // The process of `b` ends: nobody says goodbye.
    two.switch.cut(2);
    let Two { mut a, b, to_b, to_a: _, switch, directories } = two;
    std::mem::forget(b);
    let mut next = open(&directories[1], Scheme::Dynamic { piggyback: true }, &switch, 2);
    let (to_next, to_a) = (a.peer(&next.address()), next.peer(&a.address()));
    assert_ne!(to_next, to_b);
    let (from_old, from_next) = (OwnedMemory::new(8), OwnedMemory::new(8));
    receive(&mut a, to_b, &from_old);
    receive(&mut a, to_next, &from_next);
    send(&mut a, to_b, SendLevel::Matched, &payload);
    send(&mut next, to_a, SendLevel::Matched, &payload);
    let mut outcomes = Vec::new();
    while outcomes.len() < 3 {
        a.progress();
        next.progress();
        outcomes.extend(std::iter::from_fn(|| a.next_completion()).map(|completion| completion.outcome));
    }
    let (received, lost): (Vec<_>, Vec<_>) =
        outcomes.into_iter().partition(|outcome| matches!(outcome, Outcome::Received { bytes: 8, .. }));
    assert_eq!(received.len(), 2, "the old message and the new one: {received:?}");
    assert!(matches!(lost[..], [Outcome::Lost { peer: Some(peer), .. }] if peer == to_b), "{lost:?}");
    for memory in [from_old, from_next] {
        let mut bytes = [0; 8];
        memory.view().read(0, &mut bytes);
        assert_eq!(&bytes, b"over net");
    }
    switch.cut(2); // `next` closes alone
    drop(directories);
}

/// Two endpoints that have exchanged a message.
fn two_connected() -> Two {
    let mut two = Two::open();
    let payload = eight_bytes();
    receive(&mut two.b, two.to_a, &payload);
    receive(&mut two.a, two.to_b, &payload);
    send(&mut two.a, two.to_b, SendLevel::Matched, &payload);
    send(&mut two.b, two.to_a, SendLevel::Matched, &payload);
    for _ in 0..20_000 {
        two.progress();
    }
    for engine in [&mut two.a, &mut two.b] {
        let outcomes: Vec<_> = std::iter::from_fn(|| engine.next_completion()).collect();
        assert_eq!(outcomes.len(), 2, "{outcomes:?}");
    }
    two
}

/// The number of the outcomes of `engine` in so many polls.
fn completions(engine: &mut TwoLinks, polls: usize) -> Vec<Completion> {
    for _ in 0..polls {
        engine.progress();
    }
    std::iter::from_fn(|| engine.next_completion()).collect()
}

#[test]
fn a_delivery_complete_send_waits_until_the_link_of_the_receiver_has_the_message() {
    let mut two = two_connected();
    for bytes in [8, 2000] {
        let payload = OwnedMemory::new(bytes);
        send(&mut two.a, two.to_b, SendLevel::Buffered, &payload);
        let buffered = completions(&mut two.a, 0);
        assert!(matches!(buffered[..], [Completion { outcome: Outcome::Done, .. }]), "{buffered:?}");
        send(&mut two.a, two.to_b, SendLevel::Delivered, &payload);
        send(&mut two.a, two.to_b, SendLevel::Delivered, &payload);
        assert_eq!(completions(&mut two.a, 1000).len(), 0, "{bytes} B: the receiver has not polled");
        // The receiver has posted no receive: its link has the messages, no more.
        for _ in 0..1000 {
            two.progress();
        }
        let delivered = completions(&mut two.a, 0);
        assert_eq!(delivered.len(), 2, "{delivered:?}");
        assert!(delivered.iter().all(|completion| completion.outcome == Outcome::Done), "{delivered:?}");
    }
}

#[test]
fn a_delivery_complete_send_that_was_not_acknowledged_fails_with_its_peer() {
    let mut two = two_connected();
    two.switch.cut(2);
    send(&mut two.a, two.to_b, SendLevel::Delivered, &eight_bytes());
    let begun = two.switch.now();
    let mut lost = Vec::new();
    while lost.is_empty() {
        lost = completions(&mut two.a, 100);
    }
    assert!(
        matches!(lost[..], [Completion { outcome: Outcome::Lost { peer: Some(peer), fault: PeerFault::Died }, .. }] if peer == two.to_b),
        "{lost:?}"
    );
    assert!(two.switch.now().since_ns(begun) >= LIMIT_NS);
}

#[test]
fn closing_waits_until_the_receivers_have_acknowledged() {
    let mut two = two_connected();
    let payload = eight_bytes();
    send(&mut two.a, two.to_b, SendLevel::Buffered, &payload);
    assert_eq!(completions(&mut two.a, 0).len(), 1);
    two.a.begin_close();
    let mut steps = 0;
    for _ in 0..1000 {
        assert!(!two.a.close_step(&[]).done, "the receiver has not polled");
    }
    while !two.a.close_step(&[]).done {
        two.b.progress();
        steps += 1;
        assert!(steps < 1_000_000);
    }
    assert_eq!(two.a.end_close(), None);
    let into = OwnedMemory::new(8);
    receive(&mut two.b, two.to_a, &into);
    let received = completions(&mut two.b, 1000);
    assert!(
        matches!(received[..], [Completion { outcome: Outcome::Received { bytes: 8, .. }, .. }]),
        "{received:?}"
    );
}

#[test]
fn closing_gives_up_what_nobody_acknowledges() {
    let directories = [directory(), directory()];
    let switch = Switch::new(1, GOOD);
    let scheme = Scheme::Dynamic { piggyback: true };
    let linger = std::time::Duration::from_millis(50);
    let impatient = Settings { linger, close_ms: 10, ..settings(&directories[0], scheme, BUDGET_BYTES) };
    let mut a = open_with(&impatient, &switch, 1);
    let mut b = open(&directories[1], scheme, &switch, 2);
    let to_b = a.peer(&b.address());
    let payload = eight_bytes();
    send(&mut a, to_b, SendLevel::Buffered, &payload);
    for _ in 0..2000 {
        a.progress();
        b.progress();
    }
    // The network takes what is sent, but nothing arrives. The limit is far away.
    switch.impair(Impairments { lost: 1000, look_ns: 1, ..GOOD });
    send(&mut a, to_b, SendLevel::Buffered, &payload);
    let given_up = a.close().expect("a packet");
    assert!(given_up.packets >= 1 && given_up.waited >= linger, "{given_up:?}");
    assert!(given_up.to_string().contains("that their receivers have not acknowledged"), "{given_up}");
    switch.cut(2);
}

#[test]
fn an_orderly_close_is_reported_over_the_network() {
    let mut two = Two::open();
    let payload = eight_bytes();
    send(&mut two.a, two.to_b, SendLevel::Matched, &payload);
    for _ in 0..200 {
        two.progress();
    }
    two.b.close();
    let began = std::time::Instant::now();
    let completion = loop {
        two.a.progress();
        if let Some(completion) = two.a.next_completion() {
            break completion;
        }
        assert!(began.elapsed().as_secs() < 30, "nothing is reported");
    };
    assert!(matches!(completion.outcome, Outcome::Lost { fault: PeerFault::Closed, .. }), "{completion:?}");
}

/// Whether remote writes and reads of these lengths work over a bad network, which has no access to the peer's memory.
#[test]
fn remote_writes_and_reads_travel_in_packets() {
    let mut two = Two::open();
    two.switch.impair(BAD);
    for bytes in [1, 3000, 100_000] {
        let region = OwnedMemory::new(bytes);
        two.b.register_memory(5, region.view(), true, true);
        let pattern: Vec<u8> = (0..bytes).map(|index| (index * 7 + bytes) as u8).collect();
        let (written, read) = (OwnedMemory::new(bytes), OwnedMemory::new(bytes));
        written.view().write(0, &pattern);
        let arguments = |memory: &OwnedMemory| RemoteArguments {
            peer: two.to_b,
            key: 5,
            offset: 0,
            memory: memory.view(),
            data: None,
            inject: false,
        };
        let (write, fetch) = (arguments(&written), arguments(&read));
        two.a.write(Post::default(), write).expect("taken");
        await_done(&mut two);
        two.a.read(Post::default(), fetch).expect("taken");
        await_done(&mut two);
        for memory in [&region, &read] {
            let mut found = vec![0; bytes];
            memory.view().read(0, &mut found);
            assert_eq!(found, pattern, "{bytes} B");
        }
        two.b.deregister_memory(5);
    }
}

/// Waits for a completion of `a`.
fn await_done(two: &mut Two) {
    let completion = loop {
        two.progress();
        if let Some(completion) = two.a.next_completion() {
            break completion;
        }
    };
    assert_eq!(completion.outcome, Outcome::Done);
}

/// Sends the first message to another node, and polls no more. Returns what has arrived within a second.
fn first_message() -> Option<[u8; 8]> {
    let switch = Switch::new(1, GOOD);
    let scheme = Scheme::Dynamic { piggyback: true };
    let (say, hear) = std::sync::mpsc::channel();
    let there = switch.clone();
    let receiver = std::thread::spawn(move || {
        let directory = directory();
        let mut b = open(&directory, scheme, &there, 2);
        let into = OwnedMemory::new(8);
        let pattern = Pattern { space: Space::Tagged, from: None, tag: 0, ignore: 0 };
        b.receive(Post::default(), pattern, into.view(), None).expect("taken");
        say.send(b.address()).expect("the sender waits");
        let end = std::time::Instant::now() + std::time::Duration::from_secs(1);
        let completion = loop {
            if let Some(completion) = b.next_completion() {
                break completion;
            }
            if std::time::Instant::now() >= end {
                return None;
            }
            b.progress();
        };
        let has_arrived = matches!(completion.outcome, Outcome::Received { bytes: 8, .. });
        let mut bytes = [0; 8];
        into.view().read(0, &mut bytes);
        has_arrived.then_some(bytes)
    });
    let directory = directory();
    let mut a = open(&directory, scheme, &switch, 1);
    let to_b = a.peer(&hear.recv().expect("its address"));
    let payload = eight_bytes();
    let arguments = SendArguments {
        to: to_b,
        space: Space::Tagged,
        tag: 0,
        data: None,
        level: SendLevel::Injected,
        memory: payload.view(),
        inject: true,
    };
    a.send(Post::default(), arguments).expect("taken");
    receiver.join().expect("no panic")
}

/// MPI programs leave MPI for calls that wait for other ranks, such as those of PMIx. What they have sent must have left.
/// The send waits for the answer of the receiver for a bounded time only, so it is tried again where others have the cores.
#[test]
fn the_first_message_to_another_node_leaves_although_its_sender_polls_no_more() {
    let arrived = (0..50).find_map(|_| first_message());
    assert_eq!(arrived.as_ref(), Some(b"over net"));
}
