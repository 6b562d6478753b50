//! Tests of contents that pass sealed in large messages of a core provider, on a core inside the process that delivers in any order.

mod ends;

use ends::{QUOTA, bytes_of, connect_all, memory_of, peer_of};
use std::time::{Duration, Instant};
use weir_link::datagram::DatagramOptions;
use weir_link::memory::{OwnedMemory, UserMemory};
use weir_link::ofi::exchange::{Exchange, LONGEST_LARGE};
use weir_link::ofi::{OfiNetwork, OfiOptions};
use weir_link::{Address, CopyStatus, Link, PeerAccess, Protection, Registration, RemoteCopy};
use weir_proto::{CopyFault, Direction, Peer, PeerFault, RemoteAddress};

type End = ends::End<OfiNetwork>;

const READ: PeerAccess = PeerAccess { read: true, write: false };
/// What a message has beside its contents.
const FRAME_BYTES: usize = 24;
const PIECE_BYTES: usize = LONGEST_LARGE - FRAME_BYTES;

/// Connected ends with large messages, which want this protection. The first one is the peer of the others.
fn ends(exchange: &Exchange, protections: &[Protection]) -> Vec<End> {
    let options = DatagramOptions::new(QUOTA);
    let open = |(number, &protection): (u64, &Protection)| {
        let base = Address::new(number, [number as u8; 16]).with_protection(protection);
        let core = match protection {
            Protection::Off => exchange.open_with_memory(number),
            _ => exchange.open_with_large(number),
        };
        let network = OfiNetwork::open(
            Box::new(core),
            &OfiOptions { ports: None, limit_ns: 1_000_000_000, has_proxy: false },
        );
        End::open_at(&base, network.expect("a network"), options)
    };
    let mut ends: Vec<End> = (1..).zip(protections).map(open).collect();
    connect_all(&mut ends);
    ends
}

/// Memory with bytes that depend on `seed`.
fn filled(bytes: usize, seed: u32) -> OwnedMemory {
    let memory = OwnedMemory::new(bytes);
    let contents: Vec<u8> = (0..bytes as u32).map(|at| (at.wrapping_mul(seed | 1) >> 3) as u8).collect();
    memory.view().write(0, &contents);
    memory
}

fn offer(end: &mut End, memory: &OwnedMemory) -> Registration {
    memory_of(end).register(0, &memory.view(), READ).expect("offered")
}

/// Starts a copy from `remote` to all of `memory`.
fn start(
    end: &mut End,
    (peer, context): (Peer, u64),
    remote: RemoteAddress,
    memory: &UserMemory,
) -> Result<CopyStatus, CopyFault> {
    let registration = memory_of(end).register(0, memory, PeerAccess::default()).expect("registered");
    assert_eq!(registration.handle, None);
    let copy =
        RemoteCopy { context, peer, direction: Direction::Get, remote, offset: 0, bytes: memory.bytes() };
    memory_of(end).start(&copy, memory, None)
}

/// Polls all ends until the one at `index` has so many results. Returns them.
fn results(ends: &mut [End], index: usize, count: usize) -> Vec<(u64, Result<(), CopyFault>)> {
    let (begun, mut results) = (Instant::now(), Vec::new());
    while results.len() < count {
        assert!(begun.elapsed() < Duration::from_secs(20), "{results:?} and no more");
        ends.iter_mut().for_each(End::poll);
        results.extend(std::iter::from_fn(|| memory_of(&mut ends[index]).next_result()));
    }
    results.sort_by_key(|(context, _)| *context);
    results
}

#[test]
fn contents_arrive_whole_and_sealed_in_any_order() {
    for protection in [Protection::Encrypt, Protection::Authenticate] {
        let exchange = Exchange::new(7, 64, 2048);
        let mut ends = ends(&exchange, &[protection; 2]);
        let peer = peer_of(&mut ends, 1, 0);
        let lengths = [1, PIECE_BYTES, PIECE_BYTES + 1, 50_000, 200_001];
        let sources: Vec<OwnedMemory> = (3..).zip(lengths).map(|(seed, bytes)| filled(bytes, seed)).collect();
        let offered: Vec<_> = sources.iter().map(|source| offer(&mut ends[0], source)).collect();
        let targets = lengths.map(OwnedMemory::new);
        for (context, (registration, target)) in (0..).zip(offered.iter().zip(&targets)) {
            let status = start(&mut ends[1], (peer, context), registration.remote, &target.view());
            assert_eq!(status, Ok(CopyStatus::Pending));
        }
        let results = results(&mut ends, 1, lengths.len());
        assert!(results.iter().all(|(_, result)| *result == Ok(())), "{results:?}");
        for (source, target) in sources.iter().zip(&targets) {
            assert!(bytes_of(&source.view()) == bytes_of(&target.view()));
        }
        let report = ends[1].link.report();
        assert_eq!((report.copies, report.copied_bytes), (5, lengths.iter().sum::<usize>() as u64));
        assert!(exchange.counters().overtaken > 10);
        assert_eq!(report.dropped(), 0);
    }
}

#[test]
fn contents_come_from_an_offset_and_go_to_scattered_memory() {
    let exchange = Exchange::new(8, 64, 2048);
    let mut ends = ends(&exchange, &[Protection::Encrypt; 2]);
    let peer = peer_of(&mut ends, 1, 0);
    let source = filled(20_000, 9);
    let remote = offer(&mut ends[0], &source).remote;
    let targets = [17, 1, 4000, 5982].map(OwnedMemory::new);
    let target = UserMemory::joined(targets.iter().map(OwnedMemory::view));
    let remote = RemoteAddress { address: remote.address + 7_000, ..remote };
    start(&mut ends[1], (peer, 1), remote, &target).expect("started");
    assert_eq!(results(&mut ends, 1, 1), [(1, Ok(()))]);
    assert!(bytes_of(&target) == bytes_of(&source.view())[7_000..17_000]);
}

#[test]
fn what_passes_is_not_readable_unless_it_is_only_authenticated() {
    for (protection, is_readable) in [(Protection::Encrypt, false), (Protection::Authenticate, true)] {
        let exchange = Exchange::new(8, 64, 2048);
        let mut ends = ends(&exchange, &[protection; 2]);
        let peer = peer_of(&mut ends, 1, 0);
        let source = OwnedMemory::new(2000);
        source.view().write(0, &[0x5a; 2000]);
        let remote = offer(&mut ends[0], &source).remote;
        let target = OwnedMemory::new(2000);
        start(&mut ends[1], (peer, 1), remote, &target.view()).expect("started");
        let (begun, mut seen) = (Instant::now(), Vec::new());
        while seen.is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(20), "nothing passes");
            ends[1].link.poll();
            ends[0].poll();
            seen = exchange.take_large(2);
        }
        let contents = seen[0].windows(16).filter(|window| *window == [0x5a; 16]).count();
        assert_eq!(contents > 0, is_readable, "{protection:?}");
    }
}

#[test]
fn memory_that_nobody_offers_any_more_is_refused_so_that_packets_carry_it() {
    let exchange = Exchange::new(9, 64, 2048);
    let mut ends = ends(&exchange, &[Protection::Encrypt; 2]);
    let peer = peer_of(&mut ends, 1, 0);
    let source = filled(9_000, 9);
    let registration = offer(&mut ends[0], &source);
    let target = OwnedMemory::new(9_000);
    memory_of(&mut ends[0]).deregister(&registration);
    start(&mut ends[1], (peer, 1), registration.remote, &target.view()).expect("started");
    assert_eq!(results(&mut ends, 1, 1), [(1, Err(CopyFault::BadAddress))]);
    target.view().write(0, &[7; 9_000]);
    let registration = offer(&mut ends[0], &source);
    let beyond = RemoteAddress { address: 1, ..registration.remote };
    start(&mut ends[1], (peer, 2), beyond, &target.view()).expect("started");
    let failed = Err(CopyFault::BadAddress);
    assert_eq!(results(&mut ends, 1, 1), [(2, failed)]);
    assert!(
        bytes_of(&target.view())[9_000 / PIECE_BYTES * PIECE_BYTES..].iter().all(|byte| *byte == 7),
        "the last piece"
    );
    let far = RemoteAddress { address: u64::MAX, ..registration.remote };
    for nowhere in [far, RemoteAddress::NONE] {
        let started = start(&mut ends[1], (peer, 3), nowhere, &target.view());
        assert_eq!(started, Err(CopyFault::BadAddress));
    }
    assert!(ends.iter().all(|end| end.lost.is_empty()));
}

#[test]
fn large_messages_of_strangers_change_nothing() {
    let exchange = Exchange::new(11, 64, 2048);
    let mut ends = ends(&exchange, &[Protection::Encrypt; 2]);
    let peer = peer_of(&mut ends, 1, 0);
    let source = filled(2_500, 9);
    let registration = offer(&mut ends[0], &source);
    let target = OwnedMemory::new(2_500);
    start(&mut ends[1], (peer, 1), registration.remote, &target.view()).expect("started");
    // The number of the piece that is awaited, one that nobody awaits, and no message at all.
    let begun = Instant::now();
    for number in [1_u64, 77] {
        exchange.forge_large(2, &[&number.to_le_bytes()[..], &[3; 2_516]].concat());
    }
    exchange.forge_large(2, &[1; 23]);
    while ends[1].link.report().dropped() < 3 {
        assert!(begun.elapsed() < Duration::from_secs(20));
        ends[1].poll();
    }
    let report = ends[1].link.report();
    assert_eq!((report.dropped_forged, report.dropped_foreign, report.dropped_malformed), (1, 1, 1));
    assert_eq!(results(&mut ends, 1, 1), [(1, Ok(()))]);
    assert!(bytes_of(&target.view()) == bytes_of(&source.view()));

    // A piece that comes again is one that nobody awaits.
    start(&mut ends[1], (peer, 2), registration.remote, &target.view()).expect("started");
    let mut seen = Vec::new();
    while seen.is_empty() {
        ends[1].link.poll();
        ends[0].poll();
        seen = exchange.take_large(2);
    }
    (0..2).for_each(|_| exchange.forge_large(2, &seen[0]));
    assert_eq!(results(&mut ends, 1, 1), [(2, Ok(()))]);
    while ends[1].link.report().dropped_foreign < 2 {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "an endpoint without copies reads no large messages"
        );
        ends[1].poll();
    }
}

#[test]
fn a_result_that_nobody_has_taken_is_forgotten_with_its_peer() {
    let exchange = Exchange::new(16, 64, 2048);
    let mut ends = ends(&exchange, &[Protection::Encrypt; 2]);
    let peer = peer_of(&mut ends, 1, 0);
    let source = filled(2_000, 9);
    let remote = offer(&mut ends[0], &source).remote;
    let target = OwnedMemory::new(2_000);
    start(&mut ends[1], (peer, 1), remote, &target.view()).expect("started");
    let begun = Instant::now();
    while ends[1].link.report().copies == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20));
        ends.iter_mut().for_each(End::poll);
    }
    ends[1].link.forget(peer);
    assert_eq!(memory_of(&mut ends[1]).next_result(), None);
}

/// Peers that do not poll hold memory of this endpoint for what they were asked for.
#[test]
fn a_copy_that_finds_no_memory_goes_in_packets_and_the_others_go_on() {
    let exchange = Exchange::new(17, 64, 2048);
    let mut ends = ends(&exchange, &[Protection::Encrypt; 7]);
    let source = filled(60_000, 9);
    let targets = [60_000; 6].map(OwnedMemory::new);
    let mut started = Vec::new();
    for (index, target) in (1..).zip(&targets) {
        let remote = offer(&mut ends[index], &source).remote;
        let peer = peer_of(&mut ends, 0, index);
        started.push(start(&mut ends[0], (peer, index as u64), remote, &target.view()));
    }
    let refused = started.iter().filter(|status| **status == Err(CopyFault::BadAddress)).count();
    let pending = started.iter().filter(|status| **status == Ok(CopyStatus::Pending)).count();
    assert!(refused > 0 && pending > 1 && refused + pending == 6, "{started:?}");
    let ended = results(&mut ends, 0, pending);
    assert!(ended.iter().all(|(_, result)| *result == Ok(())), "{ended:?}");
}

#[test]
fn a_forgotten_peer_writes_to_no_memory_any_more() {
    let exchange = Exchange::new(12, 64, 2048);
    let mut ends = ends(&exchange, &[Protection::Encrypt; 3]);
    let [first, second] = [1, 2].map(|other| peer_of(&mut ends, 0, other));
    let sources = [filled(30_000, 3), filled(30_000, 5)];
    let remotes = [1, 2].map(|end| offer(&mut ends[end], &sources[end - 1]).remote);
    let targets = [30_000; 2].map(OwnedMemory::new);
    start(&mut ends[0], (first, 1), remotes[0], &targets[0].view()).expect("started");
    start(&mut ends[0], (second, 2), remotes[1], &targets[1].view()).expect("started");
    // Pieces of the first one are on their way.
    let mut seen = Vec::new();
    while seen.is_empty() {
        ends[0].link.poll();
        ends[1].poll();
        seen = exchange.take_large(1);
    }
    ends[0].link.forget(first);
    seen.iter().for_each(|message| exchange.forge_large(1, message));
    assert_eq!(results(&mut ends, 0, 1), [(2, Ok(()))]);
    assert!(bytes_of(&targets[1].view()) == bytes_of(&sources[1].view()));
    assert!(bytes_of(&targets[0].view()).iter().all(|byte| *byte == 0));
    assert_eq!(memory_of(&mut ends[0]).next_result(), None);
}

#[test]
fn a_peer_that_closes_while_it_is_copied_from_is_lost() {
    let exchange = Exchange::new(13, 64, 2048);
    let mut ends = ends(&exchange, &[Protection::Encrypt; 2]);
    let peer = peer_of(&mut ends, 1, 0);
    let source = filled(50_000, 3);
    let remote = offer(&mut ends[0], &source).remote;
    let target = OwnedMemory::new(50_000);
    start(&mut ends[1], (peer, 1), remote, &target.view()).expect("started");
    ends.iter_mut().for_each(End::poll);
    ends[0].link.close();
    let begun = Instant::now();
    while ends[1].lost.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the peer is never lost");
        ends[1].poll();
    }
    assert_eq!(ends[1].lost, [(peer, PeerFault::Closed)]);
    assert_eq!(memory_of(&mut ends[1]).next_result(), None);
}

/// The exchange checks that nobody sends more than there are receives.
#[test]
fn several_receivers_of_one_owner_all_get_theirs() {
    let exchange = Exchange::new(14, 64, 2048);
    let mut ends = ends(&exchange, &[Protection::Encrypt; 5]);
    let source = filled(40_000, 21);
    let remote = offer(&mut ends[0], &source).remote;
    let targets = [40_000; 4].map(OwnedMemory::new);
    for (index, target) in (1..).zip(&targets) {
        let peer = peer_of(&mut ends, index, 0);
        start(&mut ends[index], (peer, 1), remote, &target.view()).expect("started");
    }
    for (index, target) in (1..).zip(&targets) {
        assert_eq!(results(&mut ends, index, 1), [(1, Ok(()))]);
        assert!(bytes_of(&target.view()) == bytes_of(&source.view()));
    }
    assert_eq!(exchange.counters().copies, 4 * 40_000_u64.div_ceil(PIECE_BYTES as u64));
}

#[test]
fn only_ends_that_both_want_protection_have_large_messages() {
    let exchange = Exchange::new(15, 64, 2048);
    let [off, encrypt] = [Protection::Off, Protection::Encrypt];
    let mut ends = ends(&exchange, &[encrypt, encrypt, off]);
    let peers = [1, 2].map(|other| peer_of(&mut ends, 0, other));
    let attributes = peers.map(|peer| memory_of(&mut ends[0]).attributes(peer));
    assert!(attributes.iter().all(|attributes| attributes.is_some_and(|attributes| attributes.needs_owner)));
    // The other one registers with its core, and asks nobody.
    let peer = peer_of(&mut ends, 2, 0);
    assert_eq!(memory_of(&mut ends[2]).attributes(peer), None);
    let source = filled(100, 1);
    let remote = offer(&mut ends[0], &source).remote;
    let target = OwnedMemory::new(100);
    let copy = RemoteCopy { context: 1, peer, direction: Direction::Get, remote, offset: 0, bytes: 100 };
    assert_eq!(memory_of(&mut ends[2]).start(&copy, &target.view(), None), Err(CopyFault::Forbidden));
    // Writes go in packets.
    let write = PeerAccess { read: false, write: true };
    assert_eq!(memory_of(&mut ends[0]).register(0, &source.view(), write), Err(CopyFault::BadAddress));
    let put = RemoteCopy { peer: peers[0], direction: Direction::Put, ..copy };
    assert_eq!(memory_of(&mut ends[0]).start(&put, &target.view(), None), Err(CopyFault::BadAddress));
}
