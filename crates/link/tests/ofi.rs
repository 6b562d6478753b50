//! Tests of the datagram link over a core provider, on a core inside the process that delivers in any order.

mod ends;

use ends::{QUOTA, connect_all, run, send_to_first};
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weir_link::datagram::DatagramOptions;
use weir_link::datagram::seal::verification_tag;
use weir_link::memory::{OwnedMemory, UserMemory};
use weir_link::ofi::exchange::{COPIES, Exchange, ExchangeEndpoint};
use weir_link::ofi::{
    CoreAddress, CoreEndpoint, CoreName, MESSAGE_BYTES, NameFormat, OfiNetwork, OfiOptions, Sent,
};
use weir_link::{
    Address, Addressing, Bell, Capabilities, CopyStatus, Link, LinkKind, PeerAccess, Protection, RemoteCopy,
    RemoteMemory,
};
use weir_proto::reliability::ReliabilityConfig;
use weir_proto::wire::{VERIFICATION_AT, VERSION};
use weir_proto::{CopyFault, Direction, Peer, PeerFault, RemoteAddress};

const LIMIT_NS: u64 = 1_000_000_000;

type End = ends::End<OfiNetwork>;

fn network(endpoint: impl CoreEndpoint + 'static) -> OfiNetwork {
    let options = OfiOptions { ports: None, limit_ns: LIMIT_NS, has_proxy: false };
    OfiNetwork::open(Box::new(endpoint), &options).expect("a network")
}

fn end(exchange: &Exchange, number: u64) -> End {
    let reliability = ReliabilityConfig { limit_ns: LIMIT_NS, ..ReliabilityConfig::default() };
    let options = DatagramOptions { reliability, ..DatagramOptions::new(QUOTA) };
    End::open(network(exchange.open(number)), number, options)
}

#[test]
fn packets_arrive_once_in_order_over_a_core_without_order() {
    for (seed, senders) in [(1, 1), (2, 1), (3, 4), (4, 7)] {
        // One of the rooms is too small for what seven peers may have under way.
        let longest = if seed % 2 == 0 { MESSAGE_BYTES } else { 2048 };
        let exchange = Exchange::new(seed, 48, longest);
        let mut ends: Vec<End> = (1..=senders + 1).map(|number| end(&exchange, number)).collect();
        connect_all(&mut ends);
        send_to_first(&mut ends, 3000);
        let counters = exchange.counters();
        assert!(counters.overtaken > 100, "seed {seed}: {counters:?}");
        assert!(senders < 7 || counters.refused > 0, "seed {seed}: {counters:?}");
        for end in &ends {
            let report = end.link.report();
            assert_eq!((report.sent_again, report.dropped()), (0, 0), "seed {seed}");
        }
    }
}

#[test]
fn what_is_posted_bounds_what_peers_have_under_way() {
    let exchange = Exchange::new(9, 64, 2048);
    let mut ends: Vec<End> = (1..=4).map(|number| end(&exchange, number)).collect();
    connect_all(&mut ends);
    send_to_first(&mut ends, 5000);
    // Three peers are granted five eighths of 64 together, and each has acknowledgements beside.
    assert_eq!(exchange.counters().refused, 0);
}

#[test]
fn a_peer_to_which_a_message_fails_is_lost() {
    let exchange = Exchange::new(1, 64, 2048);
    let mut ends = [end(&exchange, 1), end(&exchange, 2)];
    connect_all(&mut ends);
    exchange.end(2);
    let (begun, [a, b]) = (Instant::now(), &mut ends);
    let (address, peer) = (b.link.address(), a.peer(&b.link.address()));
    while a.lost.is_empty() {
        a.link.check_peer(peer, &address);
        a.poll();
        assert!(begun.elapsed() < Duration::from_secs(20), "the peer is never lost");
    }
    assert_eq!(a.lost, [(peer, PeerFault::Died)]);
    assert!(begun.elapsed() < Duration::from_nanos(LIMIT_NS), "after {:?}", begun.elapsed());
}

#[test]
fn a_peer_that_does_not_poll_is_not_lost_and_gets_everything() {
    let exchange = Exchange::new(1, 64, 2048);
    let mut ends = [end(&exchange, 1), end(&exchange, 2)];
    connect_all(&mut ends);
    let to = ends[1].peer(&ends[0].link.address());
    (0..20).for_each(|number| ends[1].send(to, number).expect("room"));
    let before = exchange.counters().taken;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_nanos(2 * LIMIT_NS) {
        ends[1].poll();
    }
    assert!(ends[1].lost.is_empty());
    assert!(exchange.counters().taken < before + 30, "nothing is repeated");
    let mut next = 0;
    run(&mut ends, |ends| {
        let from = ends[0].peer(&ends[1].link.address());
        ends[0].check_received(from, 2, &mut next);
        next == 20
    });
}

#[test]
fn messages_of_strangers_change_nothing() {
    let exchange = Exchange::new(5, 4096, 2048);
    let mut ends = [end(&exchange, 1), end(&exchange, 2)];
    connect_all(&mut ends);
    let mut random = fastrand::Rng::with_seed(5);
    let verification = verification_tag(&ends[0].link.address()).to_le_bytes();
    // Some begin like a message of the peer: length and bytes of its part.
    let heads = [&[][..], &[2, 1, 2], &[2, 1, 9], &[0], &[255], &[21; 22]];
    for _ in 0..4000 {
        let mut body: Vec<u8> = (0..random.usize(..200)).map(|_| random.u8(..)).collect();
        if let Some(begin) = body.first_chunk_mut().filter(|_| random.bool()) {
            *begin = [VERSION, 0]; // no flags
        }
        if let Some(tag) = body.get_mut(VERIFICATION_AT..).and_then(<[u8]>::first_chunk_mut) {
            *tag = verification;
        }
        let forged = [heads[random.usize(..heads.len())], &body].concat();
        exchange.forge(1, &forged);
        if random.u32(..20) == 0 {
            ends[0].poll();
        }
    }
    send_to_first(&mut ends, 1000);
    let report = ends[0].link.report();
    let dropped = [report.dropped_forged, report.dropped_foreign, report.dropped_malformed];
    assert!(dropped.iter().all(|&dropped| dropped > 100), "{report:?}");
    assert!(ends.iter().all(|end| end.lost.is_empty()));
}

#[test]
fn an_address_says_the_name_at_the_core() {
    let exchange = Exchange::new(1, 64, 2048);
    let [a, b] = [end(&exchange, 1), end(&exchange, 0x0102)];
    let address = b.link.address();
    assert_eq!(address.part(LinkKind::Ofi), Some(&[2, 2, 1][..]));
    assert_eq!(address.to_string(), "0000000000000102 (ofi 020201)");
    assert!(a.link.reaches(&address));
    let slots = a.link.properties().geometry.max_packet_slots;
    assert_eq!(slots, 64, "the length of a packet does not depend on that of messages");
    let other = Address::new(1, [1; 16]).with_part(LinkKind::Ofi, &[9, 1, 2]).expect("room");
    assert!(!a.link.reaches(&other), "a run beyond the end");
}

struct Channel(Mutex<Sender<()>>);

impl Bell for Channel {
    fn ring(&self) {
        let _ = self.0.lock().expect("no panic").send(());
    }
}

/// Two connected ends, of which the first one has `endpoint`, and the rings of its bell.
fn sleeper(exchange: &Exchange, endpoint: ExchangeEndpoint) -> ([End; 2], Receiver<()>) {
    let options = DatagramOptions::new(QUOTA);
    let mut ends = [End::open(network(endpoint), 1, options), end(exchange, 2)];
    let (sender, rings) = channel();
    let bell: Arc<dyn Bell> = Arc::new(Channel(Mutex::new(sender)));
    assert!(ends[0].link.wake_up().expect("it can sleep").ring_on_arrival(&bell));
    connect_all(&mut ends);
    settle(&mut ends);
    (ends, rings)
}

/// Polls until no acknowledgement is due any more.
fn settle(ends: &mut [End; 2]) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(20) {
        ends.iter_mut().for_each(|end| end.poll());
    }
}

#[test]
fn a_message_wakes_an_endpoint_that_was_armed() {
    let exchange = Exchange::new(1, 64, 2048);
    let (mut ends, rings) = sleeper(&exchange, exchange.open_with_descriptor(1));
    let [a, b] = &mut ends;
    let to_a = b.peer(&a.link.address());
    while rings.try_recv().is_ok() {}
    a.link.wake_up().expect("it can sleep").arm();
    assert!(rings.recv_timeout(Duration::from_millis(5)).is_err(), "nothing has arrived");
    for number in 0..200 {
        a.link.wake_up().expect("it can sleep").arm();
        b.send(to_a, number).expect("room");
        b.poll();
        rings.recv_timeout(Duration::from_secs(20)).expect("a ring");
        // One that has arrived before rings at once.
        a.link.wake_up().expect("it can sleep").arm();
        rings.recv_timeout(Duration::from_secs(20)).expect("a ring");
        a.poll();
        b.poll();
        while rings.try_recv().is_ok() {}
    }
    settle(&mut ends);
    let soon = Instant::now() + Duration::from_millis(1);
    assert!(ends[0].link.deadline(Instant::now()).is_none_or(|at| at > soon), "it need not look");
}

#[test]
fn an_endpoint_of_a_core_without_a_descriptor_looks_every_half_millisecond() {
    let exchange = Exchange::new(1, 64, 2048);
    let ([a, _b], _rings) = sleeper(&exchange, exchange.open(1));
    let now = Instant::now();
    let at = a.link.deadline(now).expect("a deadline");
    assert!(at > now && at <= now + Duration::from_millis(1));
}

#[test]
fn a_sleep_at_the_core_ends_with_a_message_or_a_ring() {
    let exchange = Exchange::new(1, 64, 2048);
    let ([mut a, mut b], _rings) = sleeper(&exchange, exchange.open_with_descriptor(1));
    let (to_a, bell) = (b.peer(&a.link.address()), a.link.wake_up().expect("it can sleep").bell());
    let long_ns = 20_000_000_000;
    for by_message in [true, false] {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                if by_message {
                    b.send(to_a, 0).expect("room");
                    b.poll();
                } else {
                    bell.ring();
                }
            });
            a.link.wake_up().expect("it can sleep").sleep(long_ns);
        });
        assert!(begun.elapsed() < Duration::from_secs(15), "by message: {by_message}");
        a.poll();
    }
}

/// An endpoint with another name and another limit.
struct Odd(ExchangeEndpoint, CoreName, usize);

impl CoreEndpoint for Odd {
    fn provider(&self) -> &str {
        "odd"
    }
    fn name(&self) -> &CoreName {
        &self.1
    }
    fn longest_message(&self) -> usize {
        self.2
    }
    fn posted_receives(&self) -> usize {
        self.0.posted_receives()
    }
    fn address_of(&mut self, name: &[u8]) -> Option<CoreAddress> {
        self.0.address_of(name)
    }
    fn send(&mut self, to: CoreAddress, head: &[u8], body: &[u8]) -> Sent {
        self.0.send(to, head, body)
    }
    fn receive(&mut self, take: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.receive(take)
    }
    fn next_failure(&mut self) -> Option<CoreAddress> {
        self.0.next_failure()
    }
    fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn may_wait(&mut self) -> bool {
        true
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let refusal = |bytes: &[u8], longest| {
        let name = CoreName { format: NameFormat::Other, bytes: bytes.to_vec() };
        let endpoint = Odd(Exchange::new(1, 8, 2048).open(1), name, longest);
        let options = OfiOptions { ports: None, limit_ns: LIMIT_NS, has_proxy: false };
        OfiNetwork::open(Box::new(endpoint), &options).err().expect("a refusal").to_string()
    };
    assert_eq!(
        refusal(&[0xab; 24], 4096),
        format!(
            "FI_WEIR_LINK: ofi:odd: its address {} does not fit into the 20 bytes that an address of weir has for it, and \
             takes 26",
            "ab".repeat(24)
        )
    );
    let short = refusal(&[1; 8], 1200);
    assert_eq!(short, "FI_WEIR_LINK: ofi:odd: its messages have at most 1200 bytes; weir needs 1301");
}

// Copies.

/// Connected ends with access to memory of peers, which want this protection. The first one is the peer of the others.
fn ends_with_memory(exchange: &Exchange, protections: &[Protection]) -> Vec<End> {
    let options = DatagramOptions::new(QUOTA);
    let open = |(number, &protection): (u64, &Protection)| {
        let base = Address::new(number, [number as u8; 16]).with_protection(protection);
        End::open_at(&base, network(exchange.open_with_memory(number)), options)
    };
    let mut ends: Vec<End> = (1..).zip(protections).map(open).collect();
    connect_all(&mut ends);
    ends
}

fn memory_of(end: &mut End) -> &mut dyn RemoteMemory {
    end.link.remote_memory().expect("remote memory")
}

const BOTH: PeerAccess = PeerAccess { read: true, write: true };

/// Starts a copy of all of `memory` with the first registered bytes at `remote`.
fn start(
    end: &mut End,
    peer: Peer,
    direction: Direction,
    context: u64,
    remote: RemoteAddress,
    memory: &UserMemory,
) -> Result<CopyStatus, CopyFault> {
    let registration = memory_of(end).register(0, memory, PeerAccess::default()).expect("registered");
    let copy = RemoteCopy { context, peer, direction, remote, offset: 0, bytes: memory.bytes() };
    memory_of(end).start(&copy, memory, registration.handle)
}

/// Polls until copy `context` has a result.
fn result_of(end: &mut End, context: u64) -> Result<(), CopyFault> {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < Duration::from_secs(20), "copy {context} does not end");
        end.poll();
        if let Some((ended, result)) = memory_of(end).next_result() {
            assert_eq!(ended, context);
            return result;
        }
    }
}

#[test]
fn copies_arrive_whole_in_pieces_of_the_core() {
    let exchange = Exchange::new(7, 64, 2048);
    let mut ends = ends_with_memory(&exchange, &[Protection::Off; 2]);
    let bytes: Vec<u8> = (0..100_000).map(|at: u32| (at % 251) as u8).collect();
    let region = OwnedMemory::new(bytes.len());
    region.view().write(0, &bytes);
    let registration = memory_of(&mut ends[0]).register(0, &region.view(), BOTH).expect("registered");
    let first = ends[0].link.address();
    let peer = ends[1].peer(&first);
    let into = OwnedMemory::new(bytes.len());
    let status = start(&mut ends[1], peer, Direction::Get, 5, registration.remote, &into.view());
    assert_eq!(status, Ok(CopyStatus::Pending));
    assert_eq!(result_of(&mut ends[1], 5), Ok(()));
    let mut read = vec![0; bytes.len()];
    into.view().read(0, &mut read);
    assert!(read == bytes);
    assert!(exchange.counters().copies >= 20, "pieces of at most 5,000 bytes");

    let other: Vec<u8> = bytes.iter().rev().copied().collect();
    into.view().write(0, &other);
    let status = start(&mut ends[1], peer, Direction::Put, 6, registration.remote, &into.view());
    assert_eq!(status, Ok(CopyStatus::Pending));
    assert_eq!(result_of(&mut ends[1], 6), Ok(()));
    region.view().read(0, &mut read);
    assert!(read == other);
    let report = ends[1].link.report();
    assert_eq!((report.copies, report.copied_bytes), (2, 200_000));
    memory_of(&mut ends[0]).deregister(&registration);
    assert_eq!(exchange.registrations(1), 0);
    // Without a key packets carry the bytes.
    let none = start(&mut ends[1], peer, Direction::Get, 7, RemoteAddress::NONE, &into.view());
    assert_eq!(none, Err(CopyFault::BadAddress));
}

#[test]
fn only_unprotected_paths_have_remote_memory() {
    let exchange = Exchange::new(7, 64, 2048);
    let [off, authenticate, encrypt] = [Protection::Off, Protection::Authenticate, Protection::Encrypt];
    let mut ends = ends_with_memory(&exchange, &[off, off, authenticate, encrypt]);
    let peers: Vec<Peer> = (1..4)
        .map(|other: usize| {
            let address = ends[other].link.address();
            ends[0].peer(&address)
        })
        .collect();
    let has_memory = peers.iter().map(|&peer| memory_of(&mut ends[0]).attributes(peer).is_some());
    assert_eq!(has_memory.collect::<Vec<_>>(), [true, false, false]);
    let memory = OwnedMemory::new(100);
    let refused = start(
        &mut ends[0],
        peers[1],
        Direction::Get,
        1,
        RemoteAddress { address: 0, key: 1 },
        &memory.view(),
    );
    assert_eq!(refused, Err(CopyFault::Forbidden));
    let mut without = end(&exchange, 9);
    assert!(without.link.remote_memory().is_none(), "the core has none");
}

#[test]
fn a_copy_that_fails_is_the_end_of_the_peer() {
    let exchange = Exchange::new(3, 64, 2048);
    let mut ends = ends_with_memory(&exchange, &[Protection::Off; 2]);
    let region = OwnedMemory::new(20_000);
    let registration = memory_of(&mut ends[0]).register(0, &region.view(), BOTH).expect("registered");
    let address = ends[0].link.address();
    let peer = ends[1].peer(&address);
    let into = OwnedMemory::new(20_000);
    start(&mut ends[1], peer, Direction::Get, 1, registration.remote, &into.view()).expect("started");
    exchange.end(1);
    assert_eq!(result_of(&mut ends[1], 1), Err(CopyFault::BadAddress));
    let begun = Instant::now();
    while ends[1].lost.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the peer is never lost");
        ends[1].link.check_peer(peer, &address);
        ends[1].poll();
    }
    assert_eq!(ends[1].lost, [(peer, PeerFault::Died)]);
}

/// The core of a host that vanished may never say so, and accesses the memory of the copy as long as it is open.
#[test]
fn a_copy_that_never_ends_closes_the_endpoint_of_the_core_before_its_memory_is_free() {
    let exchange = Exchange::new(3, 64, 2048);
    let mut ends = ends_with_memory(&exchange, &[Protection::Off; 3]);
    let region = OwnedMemory::new(20_000);
    let into = OwnedMemory::new(20_000);
    let others = [1, 2].map(|other: usize| ends[other].link.address());
    let peers = others.map(|address| ends[0].peer(&address));
    for (index, peer) in peers.into_iter().enumerate() {
        let owner = &mut ends[index + 1];
        let registration = memory_of(owner).register(0, &region.view(), BOTH).expect("registered");
        let context = index as u64;
        start(&mut ends[0], peer, Direction::Get, context, registration.remote, &into.view())
            .expect("started");
    }
    exchange.vanish(2);
    exchange.vanish(3);
    let begun = Instant::now();
    ends[0].link.forget(peers[0]);
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(ends.remove(1));
    // The copy with the other peer has failed: nobody is reached any more.
    assert_eq!(memory_of(&mut ends[0]).next_result(), Some((1, Err(CopyFault::BadAddress))));
    assert_eq!(memory_of(&mut ends[0]).next_result(), None);
    let begun = Instant::now();
    while ends[0].lost.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the other peer is never lost");
        ends[0].link.check_peer(peers[1], &others[1]);
        ends[0].poll();
    }
    assert_eq!(ends[0].lost, [(peers[1], PeerFault::Died)]);
}

#[test]
fn a_closing_link_ends_its_copies() {
    let exchange = Exchange::new(3, 64, 2048);
    let mut ends = ends_with_memory(&exchange, &[Protection::Off; 2]);
    let region = OwnedMemory::new(100_000);
    let registration = memory_of(&mut ends[0]).register(0, &region.view(), BOTH).expect("registered");
    let first = ends[0].link.address();
    let peer = ends[1].peer(&first);
    let into = OwnedMemory::new(100_000);
    start(&mut ends[1], peer, Direction::Get, 1, registration.remote, &into.view()).expect("started");
    let made = exchange.counters().copies;
    ends[1].link.close();
    assert!(exchange.counters().copies <= made + COPIES, "the pieces under way");
    let made = exchange.counters().copies;
    assert_eq!(memory_of(&mut ends[1]).next_result(), None);
    assert_eq!(exchange.counters().copies, made);
}
