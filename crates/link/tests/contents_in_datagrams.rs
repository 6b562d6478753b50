//! Tests of contents of announced memory that pass in datagrams, over a network inside the process that loses, repeats, reorders
//! and changes them.

mod ends;

use ends::{QUOTA, bytes_of, memory_of, peer_of};
use std::time::{Duration, Instant};
use weir_link::datagram::lossy::{Impairments, LossyNetwork, Switch};
use weir_link::datagram::{DatagramOptions, SendGate};
use weir_link::memory::{OwnedMemory, UserMemory};
use weir_link::{Address, Capabilities, CopyStatus, Link, PeerAccess, Protection, Registration, RemoteCopy};
use weir_proto::{CopyFault, Direction, Peer, PeerFault, RemoteAddress};

type End = ends::End<LossyNetwork>;

const READ: PeerAccess = PeerAccess { read: true, write: false };
/// What happens to datagrams in most tests here. Each look takes 1 us.
const QUIET: Impairments = Impairments {
    lost: 0,
    repeated: 0,
    changed: 0,
    marked: 0,
    refused: 0,
    delay_ns: 5_000,
    jitter_ns: 0,
    look_ns: 1_000,
};

/// Connected ends with this protection. The first one is the peer of the others.
fn ends(switch: &Switch, protections: &[Protection]) -> Vec<End> {
    let open = |(port, &protection): (u16, &Protection)| {
        let base = Address::new(port.into(), [port as u8; 16]).with_protection(protection);
        End::open_at(&base, switch.open(port), DatagramOptions::new(QUOTA))
    };
    let mut ends: Vec<End> = (1..).zip(protections).map(open).collect();
    ends::connect_all(&mut ends);
    ends
}

/// Memory that outlives all endpoints, also if a test fails.
fn zeroed(bytes: usize) -> UserMemory {
    Box::leak(Box::new(OwnedMemory::new(bytes))).view()
}

/// The same with bytes that depend on `seed`.
fn filled(bytes: usize, seed: u32) -> UserMemory {
    let memory = zeroed(bytes);
    let contents: Vec<u8> = (0..bytes as u32).map(|at| (at.wrapping_mul(seed | 1) >> 3) as u8).collect();
    memory.write(0, &contents);
    memory
}

fn offer(end: &mut End, memory: &UserMemory) -> Registration {
    memory_of(end).register(0, memory, READ).expect("offered")
}

/// Starts a copy from `remote` to all of `memory`.
fn start(end: &mut End, (peer, context): (Peer, u64), remote: RemoteAddress, memory: &UserMemory) {
    let copy =
        RemoteCopy { context, peer, direction: Direction::Get, remote, offset: 0, bytes: memory.bytes() };
    assert_eq!(memory_of(end).start(&copy, memory, None), Ok(CopyStatus::Pending));
}

/// Polls an end if it would not sleep now. Returns whether it would not.
fn poll_if_awake(end: &mut End) -> bool {
    let now = Instant::now();
    let is_awake = end.link.may_have_arrivals() || end.link.deadline(now).is_some_and(|at| at <= now);
    if is_awake {
        end.poll();
    }
    is_awake
}

/// Runs all ends, which sleep when nothing wakes them, until the one at `index` has so many results. Returns them.
fn results(
    switch: &Switch,
    ends: &mut [End],
    index: usize,
    count: usize,
) -> Vec<(u64, Result<(), CopyFault>)> {
    let (begun, mut results) = (Instant::now(), Vec::new());
    while results.len() < count {
        assert!(begun.elapsed() < Duration::from_secs(50), "{results:?} and no more");
        let awake = ends.iter_mut().map(poll_if_awake).fold(false, |any, is_awake| any | is_awake);
        results.extend(std::iter::from_fn(|| memory_of(&mut ends[index]).next_result()));
        if !awake {
            // A network that waits is asked for its next event only by a sleep. Its time goes on by itself.
            let sleeps = ends.iter().all(|end| end.link.deadline(Instant::now()).is_none());
            let lost: Vec<_> = ends.iter().map(|end| &end.lost).collect();
            assert!(
                !sleeps || results.len() >= count,
                "all sleep, with {results:?} and no more, lost {lost:?}"
            );
            switch.advance(1_000);
        }
    }
    results.sort_by_key(|(context, _)| *context);
    results
}

#[test]
fn contents_arrive_whole_whatever_the_network_does() {
    use Protection::{Authenticate, Encrypt, Off};
    for (protection, losses) in [(Encrypt, [0, 100]), (Authenticate, [20, 50]), (Off, [5, 70])] {
        for lost in losses {
            let impairments = Impairments {
                lost,
                repeated: lost / 2,
                // Without protection, the checksum of a real network notices it.
                changed: if protection == Off { 0 } else { lost / 4 },
                marked: lost,
                refused: lost,
                jitter_ns: 20_000 * u64::from(lost > 0),
                ..QUIET
            };
            let switch = Switch::new(7 + u64::from(lost), impairments);
            let mut ends = ends(&switch, &[protection; 2]);
            let peer = peer_of(&mut ends, 1, 0);
            let lengths = [1, 1400, 262_144, 262_145, 50_000, 700_001];
            let sources: Vec<UserMemory> =
                (3..).zip(lengths).map(|(seed, bytes)| filled(bytes, seed)).collect();
            let targets = lengths.map(zeroed);
            for (context, (source, target)) in (0..).zip(sources.iter().zip(&targets)) {
                let remote = offer(&mut ends[0], source).remote;
                start(&mut ends[1], (peer, context), remote, target);
            }
            let results = results(&switch, &mut ends, 1, lengths.len());
            assert!(results.iter().all(|(_, result)| *result == Ok(())), "{results:?}");
            for (source, target) in sources.iter().zip(&targets) {
                assert!(bytes_of(source) == bytes_of(target));
            }
            let report = ends[1].link.report();
            assert_eq!((report.copies, report.copied_bytes), (6, lengths.iter().sum::<usize>() as u64));
            assert!(ends[0].link.report().sent_again > 0 || lost == 0);
        }
    }
}

#[test]
fn contents_come_from_an_offset_of_scattered_memory_and_go_to_scattered_memory() {
    let switch = Switch::new(8, QUIET);
    let mut ends = ends(&switch, &[Protection::Encrypt; 2]);
    let peer = peer_of(&mut ends, 1, 0);
    let parts = [7_000, 1, 5_000, 7_999].map(|bytes| filled(bytes, bytes as u32));
    let source = UserMemory::joined(parts.iter().map(UserMemory::view));
    let remote = offer(&mut ends[0], &source).remote;
    let targets = [17, 1, 4000, 5982].map(zeroed);
    let target = UserMemory::joined(targets.iter().map(UserMemory::view));
    start(&mut ends[1], (peer, 1), RemoteAddress { address: remote.address + 6_990, ..remote }, &target);
    assert_eq!(results(&switch, &mut ends, 1, 1), [(1, Ok(()))]);
    assert!(bytes_of(&target) == bytes_of(&source)[6_990..16_990]);
}

#[test]
fn nobody_reads_the_memory_after_its_offer_has_ended_but_what_has_left_arrives() {
    let mut outcomes = [0; 2];
    for seed in 0..20_u64 {
        let switch = Switch::new(seed, QUIET);
        // More than a window from the thirteenth on.
        let bytes = 60_000 + 24_000 * seed as usize;
        let mut ends = ends(&switch, &[Protection::Encrypt; 3]);
        let peers = [1, 2].map(|at| peer_of(&mut ends, at, 0));
        let source = filled(bytes, 9);
        let before = bytes_of(&source);
        let offered = offer(&mut ends[0], &source);
        let targets = [1, 2].map(|_| zeroed(bytes));
        for ((at, peer), target) in [1, 2].into_iter().zip(peers).zip(&targets) {
            start(&mut ends[at], (peer, 1), offered.remote, target);
        }
        // Both ask. Some of what the owner sends arrives, and from then on nothing.
        (0..3).for_each(|_| ends[1..].iter_mut().for_each(End::poll));
        switch.advance(10_000);
        (0..seed / 4).for_each(|_| ends.iter_mut().for_each(End::poll));
        switch.impair(Impairments { lost: 1000, ..QUIET });
        (0..10).for_each(|_| ends[0].poll());
        memory_of(&mut ends[0]).deregister(&offered);
        source.write(0, &vec![0xee; bytes]);
        switch.impair(Impairments { lost: 30, ..QUIET });
        for (at, target) in [1, 2].into_iter().zip(&targets) {
            let results = results(&switch, &mut ends, at, 1);
            assert!(matches!(results[..], [(1, Ok(()) | Err(CopyFault::BadAddress))]), "{results:?}");
            outcomes[usize::from(results[0].1.is_ok())] += 1;
            let got = bytes_of(target);
            let whole = got.iter().zip(&before).take_while(|(got, before)| got == before).count();
            assert!(got[whole..].iter().all(|&byte| byte == 0), "bytes that were written later");
            assert!(results[0].1.is_err() || whole == got.len());
        }
        assert!(start_and_end(&switch, &mut ends, &peers), "the path goes on");
    }
    assert!(outcomes.iter().all(|&count| count > 0), "refused and whole ones: {outcomes:?}");
}

/// Whether a copy by the second end succeeds.
fn start_and_end(switch: &Switch, ends: &mut [End], peers: &[Peer; 2]) -> bool {
    let (source, target) = (filled(70_000, 5), zeroed(70_000));
    let remote = offer(&mut ends[0], &source).remote;
    start(&mut ends[1], (peers[0], 2), remote, &target);
    results(switch, ends, 1, 1) == [(2, Ok(()))] && bytes_of(&source) == bytes_of(&target)
}

#[test]
fn an_offer_that_nobody_makes_is_refused_and_writes_nothing() {
    let switch = Switch::new(8, QUIET);
    let mut ends = ends(&switch, &[Protection::Encrypt; 2]);
    let peer = peer_of(&mut ends, 1, 0);
    let remote = offer(&mut ends[0], &filled(5000, 3)).remote;
    let others = [
        RemoteAddress { key: remote.key ^ 1, ..remote },
        RemoteAddress { address: 1, ..remote },
        RemoteAddress { address: u64::MAX - 5000, ..remote },
    ];
    for (context, other) in (0..).zip(others) {
        let target = zeroed(5000);
        start(&mut ends[1], (peer, context), other, &target);
        assert_eq!(results(&switch, &mut ends, 1, 1), [(context, Err(CopyFault::BadAddress))]);
        assert!(bytes_of(&target).iter().all(|&byte| byte == 0));
    }
}

#[test]
fn packets_do_not_wait_until_contents_have_passed_and_both_directions_pass() {
    let switch = Switch::new(3, Impairments { lost: 5, ..QUIET });
    let mut ends = ends(&switch, &[Protection::Encrypt; 2]);
    let peers = [(0, 1), (1, 0)].map(|(at, other)| peer_of(&mut ends, at, other));
    let sources = [3, 4].map(|seed| filled(4_000_000, seed));
    let targets = [0, 1].map(|_| zeroed(4_000_000));
    for (at, (source, target)) in sources.iter().zip(&targets).enumerate() {
        let remote = offer(&mut ends[1 - at], source).remote;
        start(&mut ends[at], (peers[at], 1), remote, target);
    }
    let (mut sent, mut received, mut rounds, mut ended) = (0, 0, 0, [0; 2]);
    while ended != [1; 2] {
        rounds += 1;
        assert!(rounds < 1_000_000, "nothing happens any more");
        ends.iter_mut().for_each(End::poll);
        if sent == received {
            sent += u32::from(ends[1].send(peers[1], sent).is_ok());
        }
        let identity = ends[1].identity;
        ends[0].check_received(peers[0], identity, &mut received);
        for (ended, end) in ended.iter_mut().zip(&mut ends) {
            *ended += std::iter::from_fn(|| memory_of(end).next_result()).count();
        }
    }
    // Each packet waits for what is under way before it: a window of 256 datagrams, and both directions have 11 of them.
    assert!(received > 10, "{received} packets, one after the other, while 8 MB passed");
    assert!(sources.iter().zip(&targets).all(|(a, b)| bytes_of(a) == bytes_of(b)));
}

#[test]
fn a_path_that_becomes_narrow_in_the_middle_loses_nothing() {
    let switch = Switch::new(5, QUIET);
    let mut ends = ends(&switch, &[Protection::Encrypt; 2]);
    let peer = peer_of(&mut ends, 1, 0);
    let (source, target) = (filled(2_000_000, 7), zeroed(2_000_000));
    let remote = offer(&mut ends[0], &source).remote;
    start(&mut ends[1], (peer, 1), remote, &target);
    (0..100).for_each(|_| ends.iter_mut().for_each(End::poll));
    switch.narrow(1300);
    assert_eq!(results(&switch, &mut ends, 1, 1), [(1, Ok(()))]);
    assert!(bytes_of(&source) == bytes_of(&target));
    switch.forget_longest();
    assert!(start_and_end(&switch, &mut ends, &[peer; 2]));
    assert!(switch.counters().longest <= 1300);
}

#[test]
fn many_peers_take_turns_and_one_that_is_lost_holds_nobody_up() {
    let switch = Switch::new(11, Impairments { lost: 10, ..QUIET });
    let mut ends = ends(&switch, &[Protection::Encrypt; 6]);
    let source = filled(3_000_000, 5);
    let targets: Vec<UserMemory> = (1..6).map(|_| zeroed(3_000_000)).collect();
    for (at, target) in (1..6).zip(&targets) {
        let peer = peer_of(&mut ends, 0, at);
        let remote = offer(&mut ends[at], &source).remote;
        start(&mut ends[0], (peer, at as u64), remote, target);
    }
    (0..50).for_each(|_| ends.iter_mut().for_each(End::poll));
    let lost = ends.remove(3);
    switch.cut(4);
    let results = results(&switch, &mut ends, 0, 4);
    assert_eq!(results.iter().map(|(context, _)| *context).collect::<Vec<_>>(), [1, 2, 4, 5]);
    assert!(results.iter().all(|(_, result)| result.is_ok()));
    for index in [0, 1, 3, 4] {
        assert!(bytes_of(&targets[index].view()) == bytes_of(&source));
    }
    drop(lost);
}

#[test]
fn an_owner_does_not_sleep_if_a_look_between_polls_has_made_room() {
    let switch = Switch::new(12, QUIET);
    let mut ends = ends(&switch, &[Protection::Encrypt; 3]);
    let peers = [1, 2].map(|at| peer_of(&mut ends, at, 0));
    let source = filled(4_000_000, 7);
    let remote = offer(&mut ends[0], &source).remote;
    // The first one takes nothing, so its window is full.
    start(&mut ends[1], (peers[0], 1), remote, &zeroed(4_000_000));
    (0..3).for_each(|_| ends[1].poll());
    (0..100).for_each(|_| ends[0].poll());
    assert!(!ends[0].link.may_have_arrivals());
    // While contents leave for the second one, acknowledgements of the first one arrive.
    start(&mut ends[2], (peers[1], 1), remote, &zeroed(100_000));
    (0..3).for_each(|_| ends[2].poll());
    switch.impair(Impairments { look_ns: 4_000, ..QUIET });
    (0..3).for_each(|_| ends[1].poll());
    let sent = switch.counters().sent;
    ends[0].poll();
    while switch.counters().sent < sent + 64 {
        assert!(ends[0].link.may_have_arrivals());
        ends[0].poll();
    }
    assert!(ends[0].link.may_have_arrivals(), "there is room, and the peer wants more");
    assert_eq!(results(&switch, &mut ends, 1, 1), [(1, Ok(()))]);
}

#[test]
fn an_owner_that_closes_is_known_to_have_closed_although_contents_were_under_way() {
    let switch = Switch::new(12, QUIET);
    let mut ends = ends(&switch, &[Protection::Encrypt; 2]);
    let peer = peer_of(&mut ends, 1, 0);
    let (source, target) = (filled(4_000_000, 7), zeroed(4_000_000));
    let before = bytes_of(&source);
    let remote = offer(&mut ends[0], &source).remote;
    start(&mut ends[1], (peer, 1), remote, &target);
    (0..50).for_each(|_| ends.iter_mut().for_each(End::poll));
    let mut other = ends.pop().expect("two");
    let closer = std::thread::spawn({
        let mut owner = ends.pop().expect("two");
        move || {
            owner.link.close();
            source.write(0, &vec![0xee; 4_000_000]); // it is the program's again
        }
    });
    let begun = Instant::now();
    while other.lost.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "no end");
        other.poll();
    }
    closer.join().expect("closed");
    let got = bytes_of(&target);
    let whole = got.iter().zip(&before).take_while(|(got, before)| got == before).count();
    assert!(whole > 0 && got[whole..].iter().all(|&byte| byte == 0), "{whole} bytes, and then others");
    assert_eq!(other.lost, [(peer, PeerFault::Closed)]);
}

#[test]
fn with_a_gate_packets_carry_contents() {
    let switch = Switch::new(13, QUIET);
    let open = |port: u16| End::open(switch.open(port), port.into(), DatagramOptions::new(QUOTA));
    let mut gated = open(2).with_gate(SendGate::with_tokens(8, None));
    assert!(open(1).link.remote_memory().is_some() && gated.link.remote_memory().is_none());
}
