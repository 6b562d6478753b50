//! Tests of the link over datagrams, on a network inside the process. Time passes only where a test advances it.

use std::sync::{Arc, Mutex};

mod ends;

use ends::{MOST_BYTES, QUOTA, payload_of};
use fastrand::Rng;
use weir_link::datagram::lossy::{Impairments, LossyNetwork, Switch};
use weir_link::datagram::seal::verification_tag;
use weir_link::datagram::{DatagramCounters, DatagramLink, DatagramOptions};
use weir_link::memory::OwnedMemory;
use weir_link::{Acknowledgements, Address, Addressing, Arrival, Capabilities, Link, SchemeName};
use weir_proto::reliability::ReliabilityConfig;
use weir_proto::wire::{EXTENSION_BYTES, VERIFICATION_AT};
use weir_proto::{Body, LinkBusy, Packet, Peer, PeerFault, Space};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const LIMIT_NS: u64 = 1_000 * MILLISECOND;

type End = ends::End<LossyNetwork>;

fn options() -> DatagramOptions {
    let reliability = ReliabilityConfig { limit_ns: LIMIT_NS, ..ReliabilityConfig::default() };
    DatagramOptions { reliability, ..DatagramOptions::new(QUOTA) }
}

fn open(switch: &Switch, port: u16, identity: u64) -> End {
    open_with(switch, port, identity, options())
}

fn open_with(switch: &Switch, port: u16, identity: u64, options: DatagramOptions) -> End {
    End::open(switch.open(port), identity, options)
}

/// Polls both until `done`, and advances the time.
fn run(switch: &Switch, ends: &mut [&mut End], mut done: impl FnMut(&mut [&mut End]) -> bool) {
    let until = switch.now().plus_ns(100 * LIMIT_NS);
    while !done(ends) {
        assert!(switch.now() < until, "nothing happens any more");
        ends.iter_mut().for_each(|end| end.poll());
        switch.advance(5 * MICROSECOND);
    }
}

/// Two endpoints with lanes at each other.
fn pair(switch: &Switch) -> (End, End) {
    let (mut a, mut b) = (open(switch, 1, 0xa), open(switch, 2, 0xb));
    connect_both(switch, &mut a, &mut b);
    (a, b)
}

fn connect_both(switch: &Switch, a: &mut End, b: &mut End) {
    let (at_a, at_b) = (a.link.address(), b.link.address());
    run(switch, &mut [a, b], |ends| {
        let [a, b] = ends else { unreachable!("two ends") };
        let leases = [a.connect(&at_b), b.connect(&at_a)];
        leases.iter().all(Option::is_some)
    });
    settle(switch, a, b);
}

/// Polls both until nothing is under way between them.
fn settle(switch: &Switch, a: &mut End, b: &mut End) {
    let until = switch.now().plus_ns(5 * MILLISECOND);
    run(switch, &mut [a, b], |_| switch.now() >= until);
}

fn quiet() -> Impairments {
    Impairments { delay_ns: 10 * MICROSECOND, ..Impairments::default() }
}

#[test]
fn a_lease_says_what_the_receiver_gives() {
    let switch = Switch::new(1, quiet());
    let (a, b) = pair(&switch);
    for (sender, receiver) in [(&a, &b), (&b, &a)] {
        let lease = sender.leases.values().next().expect("a lease");
        assert_eq!(lease.quota, QUOTA);
        assert_eq!(receiver.attached, [*lease], "both sides know the same lease");
    }
}

/// Two endpoints send random packets to each other over a bad network. Returns what the switch has done.
fn exchange(seed: u64) -> impl PartialEq + std::fmt::Debug {
    let mut random = Rng::with_seed(seed);
    let mut share = |most: u32| if random.bool() { random.u32(0..=most) } else { 0 };
    let impairments = Impairments {
        lost: share(100),
        repeated: share(100),
        changed: share(100),
        marked: share(100),
        refused: share(300),
        delay_ns: random.u64(1..50) * MICROSECOND,
        jitter_ns: [0, 20, 300][random.usize(..3)] * MICROSECOND,
        look_ns: 0,
    };
    let switch = Switch::new(seed, impairments);
    let (mut a, mut b) = pair(&switch);
    let (to_b, to_a) = (a.peer(&b.link.address()), b.peer(&a.link.address()));
    let most = [random.u32(1..600), random.u32(1..600)];
    let (mut sent, mut received, mut busy) = ([0; 2], [0; 2], [false; 2]);
    let mut bursts = random.clone();
    run(&switch, &mut [&mut a, &mut b], |ends| {
        for (index, to) in [(0, to_b), (1, to_a)] {
            let end = &mut *ends[index];
            busy[index] &= !std::mem::take(&mut end.ready).contains(&to);
            for _ in 0..bursts.u32(..40) {
                if sent[index] < most[index] && !busy[index] {
                    busy[index] = end.send(to, sent[index]).is_err();
                    sent[index] += u32::from(!busy[index]);
                }
            }
            let identity = [0xb, 0xa][index];
            end.check_received(to, identity, &mut received[index]);
        }
        received[0] == most[1] && received[1] == most[0]
    });
    assert_eq!((a.lost.len(), b.lost.len()), (0, 0));
    let counters = (switch.counters(), a.link.counters(), b.link.counters(), switch.now());
    let (changed, forged) = (counters.0.impaired[2], counters.1.forged + counters.2.forged);
    let dropped =
        forged + counters.1.malformed + counters.2.malformed + counters.1.foreign + counters.2.foreign;
    assert!(dropped <= changed, "only changed datagrams are dropped: {counters:?}");
    counters
}

#[test]
fn packets_arrive_once_in_order_and_whole_over_a_bad_network() {
    for seed in 0..60 {
        exchange(seed);
    }
}

#[test]
fn a_world_repeats_from_its_seed() {
    for seed in [3, 8, 21] {
        assert_eq!(exchange(seed), exchange(seed));
    }
}

#[test]
fn small_packets_share_datagrams_and_datagrams_share_calls() {
    let switch = Switch::new(1, quiet());
    let (mut a, mut b) = pair(&switch);
    let to_b = a.peer(&b.link.address());
    let numbers: Vec<u32> = (0..).filter(|&number| payload_of(0xa, number).len() < 64).take(200).collect();
    let before = switch.counters();
    numbers.iter().for_each(|&number| a.send(to_b, number).expect("room"));
    a.poll();
    let after = switch.counters();
    // A datagram has room for 1408 bytes, a packet has 48 to 111.
    assert!((7..=20).contains(&(after.sent - before.sent)), "{} datagrams", after.sent - before.sent);
    let to_a = b.peer(&a.link.address());
    run(&switch, &mut [&mut a, &mut b], |ends| {
        ends[1].received.get(&to_a).is_some_and(|received| received.len() == numbers.len())
    });
    let large: Vec<u32> =
        (0..).filter(|&number| payload_of(0xa, number).len() == MOST_BYTES).take(20).collect();
    let before = switch.counters();
    large.iter().for_each(|&number| a.send(to_b, number).expect("room"));
    a.poll();
    let after = switch.counters();
    // The first packet leaves alone, the others fill datagrams. The rest of a packet has a frame of 20 bytes.
    let (sent, full) = (after.sent - before.sent, 20 * 4096_u64 / 1388);
    assert!((full..=full + 2).contains(&sent), "{sent} datagrams");
    assert!(
        after.joined - before.joined >= sent - 3,
        "{} datagrams left together",
        after.joined - before.joined
    );
}

#[test]
fn datagrams_leave_in_one_call_although_one_has_no_room_for_a_frame_at_its_end() {
    const ROOM: usize = 1408;
    let header_bytes = 48;
    let of_length = |bytes: usize| (0..).find(|&number| payload_of(0xa, number).len() == bytes).expect("one");
    for rest in [1, 3, 4, 8, 19, 20, 21] {
        let switch = Switch::new(1, quiet());
        let (mut a, mut b) = pair(&switch);
        settle(&switch, &mut a, &mut b);
        let (to_a, to_b) = (b.peer(&a.link.address()), a.peer(&b.link.address()));
        // With something under way, packets wait for the next poll.
        let numbers = [0, of_length(ROOM - header_bytes - rest), of_length(MOST_BYTES)];
        a.send(to_b, numbers[0]).expect("room");
        let before = switch.counters();
        numbers[1..].iter().for_each(|&number| a.send(to_b, number).expect("room"));
        a.poll();
        let after = switch.counters();
        let (sent, joined) = (after.sent - before.sent, after.joined - before.joined);
        assert_eq!((sent, joined), (4, 3), "{rest} bytes are left");
        run(&switch, &mut [&mut a, &mut b], |ends| {
            ends[1].received.get(&to_a).is_some_and(|received| received.len() == numbers.len())
        });
        let received: Vec<_> = b.received[&to_a].iter().map(|(_, bytes)| bytes.clone()).collect();
        assert_eq!(received, numbers.map(|number| payload_of(0xa, number)));
    }
}

#[test]
fn an_endpoint_that_was_away_reads_acknowledgements_before_it_sends_again() {
    for has_drained in [false, true] {
        let switch = Switch::new(1, quiet());
        let (mut a, mut b) = pair(&switch);
        settle(&switch, &mut a, &mut b);
        let (to_a, to_b) = (b.peer(&a.link.address()), a.peer(&b.link.address()));
        if has_drained {
            b.send(to_a, 0).expect("room");
            switch.advance(50 * MICROSECOND);
            assert!(
                matches!(a.link.poll(), Some(Arrival::Packet { .. })),
                "the look has emptied the network"
            );
            a.link.retire();
        }
        a.send(to_b, 0).expect("room");
        let until = switch.now().plus_ns(20 * MILLISECOND);
        run(&switch, &mut [&mut b], |_| switch.now() >= until);
        let before = switch.counters().sent;
        a.poll();
        assert_eq!(switch.counters().sent, before, "{has_drained}");
        assert_eq!(a.link.unacknowledged_packets(), 0);
    }
}

#[test]
fn a_program_that_comes_back_later_looks_in_its_first_poll() {
    let switch = Switch::new(1, quiet());
    let (mut a, mut b) = pair(&switch);
    settle(&switch, &mut a, &mut b);
    let to_a = b.peer(&a.link.address());
    for number in 0..2 {
        b.send(to_a, number).expect("room");
        b.poll();
        switch.advance(20 * MILLISECOND);
        assert!(matches!(a.link.poll(), Some(Arrival::Packet { .. })), "{number}");
        a.link.retire();
    }
}

#[test]
fn a_poll_that_finds_nothing_for_the_program_sends_what_is_due() {
    let switch = Switch::new(1, quiet());
    let (mut a, mut b) = pair(&switch);
    let mut c = open(&switch, 3, 0xc);
    connect_both(&switch, &mut a, &mut c);
    settle(&switch, &mut a, &mut b);
    settle(&switch, &mut a, &mut c);
    let (to_a, to_b) = (c.peer(&a.link.address()), a.peer(&b.link.address()));
    // Of `a`, `b` has a packet, and `c` wants an acknowledgement.
    a.send(to_b, 0).expect("room");
    c.send(to_a, 0).expect("room");
    switch.advance(20 * MICROSECOND);
    (0..2).for_each(|_| a.poll());
    b.poll();
    switch.advance(100 * MICROSECOND);
    b.poll();
    switch.advance(20 * MICROSECOND);
    // The look finds the acknowledgement of `b`.
    let before = switch.counters().sent;
    assert!(a.link.poll().is_none());
    assert_eq!((a.link.unacknowledged_packets(), switch.counters().sent - before), (0, 1));
}

#[test]
fn a_lone_packet_leaves_without_a_poll() {
    let switch = Switch::new(1, quiet());
    let (mut a, b) = pair(&switch);
    let to_b = a.peer(&b.link.address());
    let before = switch.counters().sent;
    send_in_parts(&mut a, to_b, 1, 100);
    assert_eq!(switch.counters().sent, before + 1);
}

/// Transmits an eager message of `parts` packets with `bytes` bytes each, headers included.
fn send_in_parts(end: &mut End, to: Peer, parts: u32, bytes: u32) {
    let memory = OwnedMemory::new(bytes as usize);
    for part in 0..parts {
        let (body, header_bytes) = match part {
            0 => {
                let length = parts * (bytes - 32) - 16;
                (Body::Eager { space: Space::Tagged, tag: 7, data: None, length, acknowledge: None }, 48)
            }
            _ => (Body::More { offset: part * (bytes - 32) - 16 }, 32),
        };
        let packet = Packet { number: part, ..Packet::new(body, bytes - header_bytes) };
        end.link.transmit(to, &packet, Some((&memory.view(), 0))).expect("room");
    }
}

#[test]
fn a_message_of_several_datagrams_leaves_in_one_call_without_a_poll() {
    let switch = Switch::new(1, quiet());
    let (mut a, b) = pair(&switch);
    let to_b = a.peer(&b.link.address());
    let before = switch.counters();
    send_in_parts(&mut a, to_b, 3, 1000);
    let after = switch.counters();
    assert_eq!((after.sent - before.sent, after.joined - before.joined), (3, 2));
}

#[test]
fn datagrams_of_a_long_message_have_one_length_so_that_they_share_calls() {
    let switch = Switch::new(1, quiet());
    let (mut a, b) = pair(&switch);
    let to_b = a.peer(&b.link.address());
    let before = switch.counters();
    send_in_parts(&mut a, to_b, 60, 4096);
    let after = switch.counters();
    let sent = after.sent - before.sent;
    let calls = sent - (after.joined - before.joined);
    // Several packets end where no other can begin.
    assert_eq!((sent, calls), (178, 5));
}

#[test]
fn a_message_whose_rest_has_no_credits_leaves_with_the_next_poll() {
    let switch = Switch::new(1, quiet());
    let (mut a, mut b) = pair(&switch);
    let to_b = a.peer(&b.link.address());
    let before = switch.counters().sent;
    let body = Body::Eager { space: Space::Tagged, tag: 7, data: None, length: 5000, acknowledge: None };
    let memory = OwnedMemory::new(1000);
    a.link.transmit(to_b, &Packet::new(body, 1000), Some((&memory.view(), 0))).expect("room");
    assert_eq!(switch.counters().sent, before, "it waits for what follows");
    assert!(a.link.may_have_arrivals(), "so that the endpoint does not sleep");
    a.poll();
    assert_eq!(switch.counters().sent, before + 1);
    // It is over: the next message leaves alone.
    let to_a = b.peer(&a.link.address());
    run(&switch, &mut [&mut a, &mut b], |ends| ends[1].received.contains_key(&to_a));
    settle(&switch, &mut a, &mut b);
    let before = switch.counters().sent;
    send_in_parts(&mut a, to_b, 1, 100);
    assert_eq!(switch.counters().sent, before + 1);
}

#[test]
fn an_answer_takes_the_acknowledgement_of_several_datagrams_along() {
    let switch = Switch::new(1, quiet());
    let (mut a, mut b) = pair(&switch);
    let (to_b, to_a) = (a.peer(&b.link.address()), b.peer(&a.link.address()));
    let before = switch.counters().sent;
    let numbers: Vec<u32> = (0..).filter(|&number| payload_of(0xa, number).len() < 64).take(6).collect();
    // In three calls, so that they keep their order.
    for &number in &numbers[..3] {
        a.send(to_b, number).expect("room");
        a.poll();
        switch.advance(MICROSECOND);
    }
    switch.advance(11 * MICROSECOND);
    b.link.poll().expect("the first packet");
    b.link.retire();
    send_in_parts(&mut b, to_a, 1, 100);
    b.poll();
    assert_eq!(switch.counters().sent - before, 4, "no acknowledgement alone");
    settle(&switch, &mut a, &mut b);
    for &number in &numbers[3..] {
        a.send(to_b, number).expect("room");
        a.poll();
        switch.advance(MICROSECOND);
    }
    switch.advance(11 * MICROSECOND);
    let before = switch.counters().sent;
    b.link.poll().expect("the next packet");
    b.link.retire();
    b.poll();
    assert_eq!(switch.counters().sent, before, "its user may answer");
    switch.advance(50 * MICROSECOND);
    b.poll();
    assert_eq!(switch.counters().sent, before + 1, "b has nothing to say");
}

#[test]
fn who_sends_without_a_poll_sees_acknowledgements() {
    let switch = Switch::new(1, Impairments::default());
    let (mut a, mut b) = pair(&switch);
    let (to_b, from_a) = (a.peer(&b.link.address()), b.peer(&a.link.address()));
    for number in 0..1000 {
        a.send(to_b, number).expect("the window stays open");
        b.poll();
    }
    run(&switch, &mut [&mut a, &mut b], |ends| {
        ends[1].received.get(&from_a).is_some_and(|all| all.len() == 1000)
    });
}

#[test]
fn the_first_datagrams_leave_while_others_are_sealed() {
    let switch = Switch::new(1, quiet());
    let (mut a, b) = pair(&switch);
    let to_b = a.peer(&b.link.address());
    let before = switch.counters();
    send_in_parts(&mut a, to_b, 16, 4096);
    let after = switch.counters();
    let (sent, calls) = (after.sent - before.sent, after.sent - before.sent + before.joined - after.joined);
    assert!((47..=49).contains(&sent) && (2..=3).contains(&calls), "{sent} datagrams in {calls} calls");
}

#[test]
fn a_silent_peer_is_lost_at_the_limit() {
    let switch = Switch::new(1, quiet());
    let (mut a, b) = pair(&switch);
    let to_b = a.peer(&b.link.address());
    switch.cut(2);
    a.send(to_b, 0).expect("room");
    let begun = switch.now();
    run(&switch, &mut [&mut a], |ends| !ends[0].lost.is_empty());
    assert_eq!(a.lost, [(to_b, PeerFault::Died)]);
    let waited_ns = switch.now().since_ns(begun);
    assert!((LIMIT_NS..LIMIT_NS + 200 * MILLISECOND).contains(&waited_ns), "{waited_ns} ns");
    assert_eq!(a.connect(&b.link.address()), None);
    a.poll();
    assert_eq!(a.lost.last(), Some(&(to_b, PeerFault::Unreachable)), "a lost peer stays lost");
}

#[test]
fn acknowledged_packets_are_reported_to_those_who_wait_for_them() {
    let switch = Switch::new(1, quiet());
    let (mut a, mut b) = pair(&switch);
    let to_b = a.peer(&b.link.address());
    assert_eq!((a.link.awaited_packets(to_b), a.link.unacknowledged_packets()), (None, 0));
    (0..5).for_each(|number| a.send(to_b, number).expect("room"));
    settle(&switch, &mut a, &mut b);
    assert_eq!(a.acknowledged, [], "nobody waits");
    assert_eq!(a.link.awaited_packets(to_b), None, "it has them");
    (5..8).for_each(|number| a.send(to_b, number).expect("room"));
    assert_eq!((a.link.awaited_packets(to_b), a.link.unacknowledged_packets()), (Some(8), 3));
    a.send(to_b, 8).expect("room");
    a.poll();
    assert_eq!(a.acknowledged, []);
    settle(&switch, &mut a, &mut b);
    assert!(matches!(a.acknowledged[..], [.., (peer, 8..)] if peer == to_b), "{:?}", a.acknowledged);
    assert!(a.acknowledged.is_sorted());
    assert_eq!((a.link.awaited_packets(to_b), a.link.unacknowledged_packets()), (None, 0));
    switch.cut(2);
    a.send(to_b, 9).expect("room");
    assert_eq!(a.link.awaited_packets(to_b), Some(10));
    run(&switch, &mut [&mut a], |ends| !ends[0].lost.is_empty());
    assert!(a.acknowledged.iter().all(|&(_, packets)| packets < 10), "{:?}", a.acknowledged);
}

/// The time until `b`, which has nothing to say, acknowledges what `a` has sent.
fn until_acknowledged_ns(switch: &Switch, a: &mut End, b: &mut End) -> u64 {
    let (begun, before) = (switch.now(), switch.counters().sent);
    while switch.counters().sent == before {
        switch.advance(MICROSECOND);
        b.poll();
    }
    let acknowledged_ns = switch.now().since_ns(begun);
    (0..20).for_each(|_| {
        switch.advance(MICROSECOND);
        a.poll();
    });
    acknowledged_ns
}

#[test]
fn acknowledgements_wait_longer_unless_somebody_waits_for_them() {
    let switch = Switch::new(1, quiet());
    let (mut a, mut b) = pair(&switch);
    let to_b = a.peer(&b.link.address());
    let send = |a: &mut End, number| {
        a.send(to_b, number).expect("room");
        a.poll();
    };
    send(&mut a, 0);
    let usual_ns = until_acknowledged_ns(&switch, &mut a, &mut b);
    for number in 1..1000 {
        send(&mut a, number);
        until_acknowledged_ns(&switch, &mut a, &mut b);
    }
    send(&mut a, 1000);
    let longer_ns = until_acknowledged_ns(&switch, &mut a, &mut b);
    assert!(longer_ns > 10 * usual_ns, "{usual_ns} ns, {longer_ns} ns");
    // An endpoint begins to wait when the message has left.
    send(&mut a, 1001);
    assert_eq!(a.link.awaited_packets(to_b), Some(1002));
    a.poll();
    assert!(until_acknowledged_ns(&switch, &mut a, &mut b) < usual_ns);
    assert!(matches!(a.acknowledged[..], [.., (peer, 1002)] if peer == to_b), "{:?}", a.acknowledged);
    // One that closes waits for all.
    send(&mut a, 1002);
    assert_eq!(a.link.unacknowledged_packets(), 1);
    a.poll();
    assert!(until_acknowledged_ns(&switch, &mut a, &mut b) < usual_ns);
    assert_eq!(a.link.unacknowledged_packets(), 0);
}

#[test]
fn a_credit_that_a_closed_peer_does_not_acknowledge_is_not_waited_for() {
    let switch = Switch::new(1, quiet());
    let (mut a, mut b) = pair(&switch);
    let to_b = a.peer(&b.link.address());
    a.send(to_b, 0).expect("room");
    settle(&switch, &mut a, &mut b);
    b.link.close();
    a.link.transmit(to_b, &Packet::new(Body::Credit, 0), None).expect("room");
    assert_eq!(a.link.awaited_packets(to_b), None, "it holds the message");
    let mut lost = None;
    for _ in 0..100 {
        lost = lost.or_else(|| a.link.poll());
        switch.advance(5 * MICROSECOND);
    }
    assert!(
        matches!(lost, Some(Arrival::Lost { peer, fault: PeerFault::Closed }) if peer == to_b),
        "{lost:?}"
    );
    assert_eq!(a.link.awaited_packets(to_b), None, "it holds the message");
    a.send(to_b, 1).expect("lost with the peer");
    assert_eq!(a.link.awaited_packets(to_b), Some(u64::MAX));
}

#[test]
fn a_peer_that_was_never_there_cannot_be_reached() {
    let switch = Switch::new(1, quiet());
    let mut a = open(&switch, 1, 0xa);
    let b = Address::new(0xb, [0xb; 16]).with_part(a.link.kind(), &2_u16.to_le_bytes()).expect("room");
    assert_eq!(a.connect(&b), None);
    run(&switch, &mut [&mut a], |ends| !ends[0].lost.is_empty());
    assert_eq!(a.lost, [(Peer(0), PeerFault::Unreachable)]);
}

#[test]
fn a_question_finds_a_silent_peer_although_nothing_is_sent() {
    let switch = Switch::new(1, quiet());
    let (mut a, mut b) = pair(&switch);
    let (to_b, at_b) = (a.peer(&b.link.address()), b.link.address());
    for _ in 0..20 {
        a.link.check_peer(to_b, &at_b);
        let until = switch.now().plus_ns(100 * MILLISECOND);
        run(&switch, &mut [&mut a, &mut b], |_| switch.now() >= until);
    }
    assert_eq!(a.lost, [], "it answers");
    switch.cut(2);
    a.link.check_peer(to_b, &at_b);
    run(&switch, &mut [&mut a], |ends| !ends[0].lost.is_empty());
    assert_eq!(a.lost, [(to_b, PeerFault::Died)]);
}

#[test]
fn an_endpoint_that_begins_at_the_place_of_a_dead_one_is_another_peer() {
    let switch = Switch::new(1, Impairments { jitter_ns: 500 * MICROSECOND, ..quiet() });
    let (mut a, mut b) = pair(&switch);
    let (old, to_a) = (a.peer(&b.link.address()), b.peer(&a.link.address()));
    // Packets of the dead one are still under way.
    (0..50).for_each(|number| b.send(to_a, number).expect("room"));
    a.send(old, 0).expect("room");
    b.poll();
    std::mem::forget(b); // it says nothing
    let mut c = open(&switch, 2, 0xc);
    connect_both(&switch, &mut a, &mut c);
    let (to_c, from_a) = (a.peer(&c.link.address()), c.peer(&a.link.address()));
    (0..100).for_each(|number| a.send(to_c, number).expect("room"));
    (0..100).for_each(|number| c.send(from_a, number).expect("room"));
    let (mut at_a, mut at_c) = (0, 0);
    run(&switch, &mut [&mut a, &mut c], |ends| {
        ends[0].check_received(to_c, 0xc, &mut at_a);
        ends[1].check_received(from_a, 0xa, &mut at_c);
        at_a == 100 && at_c == 100 && !ends[0].lost.is_empty()
    });
    assert_eq!(a.lost, [(old, PeerFault::Died)]);
    assert_eq!(c.lost, []);
    let mut from_old = 0;
    a.check_received(old, 0xb, &mut from_old);
}

#[test]
fn a_link_is_busy_when_its_memory_is_used_up_and_others_have_their_share() {
    let switch = Switch::new(1, quiet());
    let limited = DatagramOptions { most_copies: 10, ..options() };
    let mut a = open_with(&switch, 1, 0xa, limited);
    let (mut b, mut c) = (open(&switch, 2, 0xb), open(&switch, 3, 0xc));
    connect_both(&switch, &mut a, &mut b);
    connect_both(&switch, &mut a, &mut c);
    let (to_b, to_c) = (a.peer(&b.link.address()), a.peer(&c.link.address()));
    let large = (0..).find(|&number| payload_of(0xa, number).len() == MOST_BYTES).expect("some are large");
    switch.cut(2);
    let taken = (0..100).take_while(|_| a.send(to_b, large).is_ok()).count();
    assert_eq!(taken, 3, "three copies each, and ten are there");
    assert_eq!(a.send(to_b, large), Err(LinkBusy));
    assert!(a.link.copy_bytes() <= 18 * 1452, "{} bytes", a.link.copy_bytes());
    a.send(to_c, large).expect("the share of this path");
    let from_a = c.peer(&a.link.address());
    run(&switch, &mut [&mut a, &mut c], |ends| ends[1].received.contains_key(&from_a));
    assert_eq!(a.ready, []);
    run(&switch, &mut [&mut a, &mut c], |ends| !ends[0].lost.is_empty());
    assert_eq!(a.lost, [(to_b, PeerFault::Died)]);
    while a.send(to_c, large).is_ok() {}
    run(&switch, &mut [&mut a, &mut c], |ends| ends[0].ready.contains(&to_c));
    a.send(to_c, large).expect("its copies are free again");
}

/// What a peer learns of an end: `end` closes or abandons the link.
fn end_of(
    end: impl FnOnce(&mut DatagramLink<LossyNetwork>),
    impairments: Impairments,
) -> (Vec<PeerFault>, u64) {
    let switch = Switch::new(5, quiet());
    let (mut a, mut b) = pair(&switch);
    switch.impair(impairments);
    let (to_b, at_b) = (a.peer(&b.link.address()), b.link.address());
    let to_a = b.peer(&a.link.address());
    (0..30).for_each(|number| b.send(to_a, number).expect("room"));
    // Closing waits for its peer, which polls meanwhile.
    let a = Arc::new(Mutex::new(a));
    let (polls, time) = (Arc::clone(&a), switch.clone());
    switch.while_waiting(move || {
        polls.lock().expect("no panic while polling").poll();
        time.advance(5 * MICROSECOND);
    });
    end(&mut b.link);
    let mut a = a.lock().expect("no panic while polling");
    let a = &mut *a;
    let begun = switch.now();
    run(&switch, &mut [a], |ends| {
        ends[0].link.check_peer(to_b, &at_b);
        !ends[0].lost.is_empty()
    });
    let mut received = 0;
    a.check_received(to_b, 0xb, &mut received);
    assert_eq!(received, 30, "what was sent before the end arrives");
    (a.lost.iter().map(|&(_, fault)| fault).collect(), switch.now().since_ns(begun))
}

#[test]
fn a_peer_learns_that_an_endpoint_has_closed_or_died_after_all_its_packets() {
    let bad = Impairments { lost: 100, jitter_ns: 50 * MICROSECOND, ..quiet() };
    for impairments in [quiet(), bad] {
        for fault in [PeerFault::Closed, PeerFault::Died] {
            let (faults, after_ns) = end_of(
                |link| if fault == PeerFault::Closed { link.close() } else { link.abandon() },
                impairments,
            );
            assert_eq!(faults, [fault]);
            assert!(after_ns < LIMIT_NS / 2, "{after_ns} ns: not by the limit");
        }
    }
}

#[test]
fn forged_foreign_and_short_datagrams_are_dropped_and_counted() {
    let switch = Switch::new(1, quiet());
    let (mut a, mut b) = pair(&switch);
    let (to_b, to_a) = (a.peer(&b.link.address()), b.peer(&a.link.address()));
    let verification = verification_tag(&a.link.address()).to_le_bytes();
    let mut random = Rng::with_seed(9);
    let mut noise = |bytes: usize| -> Vec<u8> { (0..bytes).map(|_| random.u8(..)).collect() };
    let valid_start = |mut bytes: Vec<u8>, destination_epoch: u8| {
        bytes[..6].copy_from_slice(&[weir_proto::wire::VERSION, 0, 1, 0, destination_epoch, 0]);
        bytes[VERIFICATION_AT..][..4].copy_from_slice(&verification);
        bytes
    };
    for bytes in (0..200).chain([1232]) {
        switch.forge(2, 1, &noise(bytes));
        if bytes >= EXTENSION_BYTES {
            switch.forge(2, 1, &valid_start(noise(bytes), 1)); // from the place of a peer
            switch.forge(77, 1, &valid_start(noise(bytes), 1)); // from nowhere
            switch.forge(77, 1, &valid_start(noise(bytes), 0)); // as an introduction
        }
    }
    let (mut received, mut number) = (0, 0);
    run(&switch, &mut [&mut a, &mut b], |ends| {
        if number < 50 {
            ends[1].send(to_a, number).expect("room");
            number += 1;
        }
        ends[0].check_received(to_b, 0xb, &mut received);
        received == 50
    });
    let (counters, longer) = (a.link.counters(), 201 - EXTENSION_BYTES as u64);
    assert!(counters.forged >= longer && counters.foreign >= longer, "{counters:?}");
    assert!(counters.malformed >= 200, "{counters:?}");
    assert_eq!(a.lost, []);
}

#[test]
fn a_datagram_that_another_endpoint_of_its_host_has_sent_finds_its_path() {
    let switch = Switch::new(1, Impairments { lost: 50, jitter_ns: 30 * MICROSECOND, ..quiet() });
    let mut a = open(&switch, 1, 0xa);
    let [mut b, mut c] = [(2, 0xb), (3, 0xc)].map(|(port, identity)| open(&switch, port, identity));
    connect_both(&switch, &mut a, &mut b);
    connect_both(&switch, &mut a, &mut c);
    let (to_b, to_c) = (a.peer(&b.link.address()), a.peer(&c.link.address()));
    let (b_to_a, c_to_a) = (b.peer(&a.link.address()), c.peer(&a.link.address()));
    // From a place where no peer is, and from that of another peer of the same host.
    let (mut of_b, mut of_c, mut back) = (0, 0, 0);
    for (seen_as, count) in [(4, 50), (3, 100)] {
        switch.see_as(2, seen_as);
        let (mut sent, mut answers) = ([of_b; 2], back);
        run(&switch, &mut [&mut a, &mut b, &mut c], |ends| {
            for (end, to) in [(1, b_to_a), (2, c_to_a)] {
                let sent = &mut sent[end - 1];
                while *sent < count && ends[end].send(to, *sent).is_ok() {
                    *sent += 1;
                }
                ends[end].ready.clear();
            }
            while answers < count && ends[0].send(to_b, answers).is_ok() {
                answers += 1;
            }
            ends[0].check_received(to_b, 0xb, &mut of_b);
            ends[0].check_received(to_c, 0xc, &mut of_c);
            ends[1].check_received(b_to_a, 0xa, &mut back); // at its own place
            [of_b, of_c, back] == [count; 3]
        });
    }
    let DatagramCounters { foreign, forged, .. } = a.link.counters();
    assert_eq!((foreign, forged), (0, 0));
    assert!(a.lost.is_empty() && b.lost.is_empty() && c.lost.is_empty());
}

#[test]
fn a_datagram_from_another_host_than_that_of_its_peer_is_foreign() {
    let switch = Switch::new(1, quiet());
    let (mut a, mut b) = pair(&switch);
    let to_a = b.peer(&a.link.address());
    switch.see_as(2, 77);
    b.send(to_a, 0).expect("room");
    let until = switch.now().plus_ns(MILLISECOND);
    run(&switch, &mut [&mut a, &mut b], |_| switch.now() >= until);
    assert!(a.received.is_empty() && a.link.counters().foreign > 0, "{:?}", a.link.counters());
}

#[test]
fn an_introduction_of_an_endpoint_with_another_scheme_opens_no_path() {
    let switch = Switch::new(1, quiet());
    let [mut a, mut b] = [(1, "static"), (2, "demand")].map(|(port, scheme)| {
        let base = Address::new(port.into(), [port as u8; 16]).with_scheme(SchemeName::new(scheme));
        End::open_at(&base, switch.open(port), options())
    });
    // It introduces itself, as one that does not compare schemes would.
    let mut at_b = b.link.address();
    at_b.0[3] = a.link.address().0[3];
    let to_b = a.peer(&at_b);
    run(&switch, &mut [&mut a, &mut b], |ends| {
        ends[0].connect(&at_b);
        !ends[0].lost.is_empty()
    });
    assert_eq!(a.lost, [(to_b, PeerFault::Unreachable)]);
    assert!(b.link.counters().foreign > 0 && b.attached.is_empty(), "{:?}", b.link.counters());
    assert_eq!(b.link.counters().forged, 0, "the introduction is authentic");
}

#[test]
fn a_link_says_when_it_must_be_polled() {
    let switch = Switch::new(1, quiet());
    let (mut a, mut b) = pair(&switch);
    let to_b = a.peer(&b.link.address());
    settle(&switch, &mut a, &mut b);
    let now = std::time::Instant::now();
    a.send(to_b, 0).expect("room");
    a.send(to_b, 1).expect("room");
    assert_eq!(a.link.deadline(now), Some(now), "the second packet has not left");
    a.poll();
    let deadline = a.link.deadline(now).expect("the timeout");
    assert!(deadline > now && deadline < now + std::time::Duration::from_millis(20));
}

/// Seven endpoints send to one whose port has room for some datagrams. Returns how many were lost there.
fn seven_to_one(room: usize, says_so: bool) -> u64 {
    const COUNT: u32 = 600;
    let switch = Switch::new(5, quiet());
    for port in 1..=8 {
        // An endpoint that keeps to grants has room of its own.
        switch.bound(port, 10_000);
    }
    if says_so {
        switch.bound(1, room);
    }
    let mut ends: Vec<End> = (1..=8).map(|port| open(&switch, port, port.into())).collect();
    switch.bound(1, room);
    let first = ends[0].link.address();
    let (mut sent, mut busy, mut received) = ([0; 7], [false; 7], [0; 7]);
    let until = switch.now().plus_ns(100 * LIMIT_NS);
    while received != [COUNT; 7] {
        assert!(switch.now() < until, "nothing happens any more");
        let (head, others) = ends.split_first_mut().expect("ends");
        for (index, other) in others.iter_mut().enumerate() {
            let to = other.peer(&first);
            let is_ready = other.connect(&first).is_some();
            busy[index] &= !std::mem::take(&mut other.ready).contains(&to);
            while is_ready && sent[index] < COUNT && !busy[index] {
                busy[index] = other.send(to, sent[index]).is_err();
                sent[index] += u32::from(!busy[index]);
            }
            let from = head.peer(&other.link.address());
            head.check_received(from, other.identity, &mut received[index]);
            other.poll();
        }
        // It reads late.
        if switch.now().0.is_multiple_of(80 * MICROSECOND) {
            head.poll();
        }
        switch.advance(5 * MICROSECOND);
    }
    assert!(ends.iter().all(|end| end.lost.is_empty()));
    switch.counters().overflowed
}

#[test]
fn what_a_port_has_room_for_bounds_what_seven_senders_have_under_way() {
    for room in [100, 200, 1000] {
        assert_eq!(seven_to_one(room, true), 0, "room for {room}");
    }
    assert!(seven_to_one(100, false) > 0, "without grants datagrams are lost");
}

#[test]
fn a_path_that_carries_only_small_datagrams_is_used_with_small_ones() {
    let switch = Switch::new(1, quiet());
    let (mut a, mut b) = pair(&switch);
    let (to_b, from_a) = (a.peer(&b.link.address()), b.peer(&a.link.address()));
    let (mut sent, mut received) = (0, 0);
    let mut send = |switch: &Switch, a: &mut End, b: &mut End, count: u32| {
        let end = sent + count;
        run(switch, &mut [a, b], |ends| {
            while sent < end && ends[0].send(to_b, sent).is_ok() {
                sent += 1;
            }
            ends[1].check_received(from_a, 0xa, &mut received);
            received == end
        });
    };
    send(&switch, &mut a, &mut b, 500);
    assert_eq!(switch.counters().too_large, 0);
    switch.narrow(1300);
    let begun = switch.now();
    send(&switch, &mut a, &mut b, 500);
    assert!(switch.now().since_ns(begun) < 200 * MILLISECOND, "{} ns", switch.now().since_ns(begun));
    let lost = switch.counters().too_large;
    assert!(lost > 0, "datagrams were larger before");
    send(&switch, &mut a, &mut b, 2000);
    let lost = switch.counters().too_large;
    send(&switch, &mut a, &mut b, 2000);
    assert_eq!(switch.counters().too_large, lost, "no large one is tried again");
    assert_eq!((a.lost.len(), b.lost.len()), (0, 0));
}

#[test]
fn a_path_uses_nearly_what_passes_and_a_search_finds_when_more_does() {
    let switch = Switch::new(1, quiet());
    let (mut a, mut b) = pair(&switch);
    let (to_b, from_a) = (a.peer(&b.link.address()), b.peer(&a.link.address()));
    let (mut sent, mut received) = (0, 0);
    let mut send = |switch: &Switch, a: &mut End, b: &mut End, after_seconds: u64| {
        switch.advance(after_seconds * 1000 * MILLISECOND);
        let end = sent + 500;
        run(switch, &mut [a, b], |ends| {
            while sent < end && ends[0].send(to_b, sent).is_ok() {
                sent += 1;
            }
            ends[1].check_received(from_a, 0xa, &mut received);
            received == end
        });
        (ends_narrow(a), switch.counters().too_large)
    };
    fn ends_narrow(a: &End) -> u64 {
        a.link.report().narrow_paths
    }
    switch.narrow(1400);
    let (narrow, lost) = (0..10).map(|_| send(&switch, &mut a, &mut b, 0)).last().expect("ten");
    assert!(narrow == 1 && (4..500).contains(&lost), "{lost}");
    let longest = |switch: &Switch| switch.counters().longest;
    switch.forget_longest();
    assert_eq!(send(&switch, &mut a, &mut b, 58), (1, lost), "not before a minute");
    assert_eq!(longest(&switch), 1372, "the longest common one below 1400");
    // A few probes each: the rest of their packets leaves in fragments.
    let mut before = lost;
    for seconds in [2, 15, 15] {
        let (_, after) = send(&switch, &mut a, &mut b, seconds);
        let (narrow, lost) = (0..10).map(|_| send(&switch, &mut a, &mut b, 0)).last().expect("ten");
        assert!(narrow == 1 && after > before && lost <= before + 5, "{before}, {after}, {lost}");
        before = lost;
    }
    assert_eq!(send(&switch, &mut a, &mut b, 590), (1, before), "three in a row are enough");
    switch.narrow(1452);
    assert_eq!(send(&switch, &mut a, &mut b, 10), (0, before), "it has grown again");
    switch.forget_longest();
    assert_eq!(send(&switch, &mut a, &mut b, 0), (0, before));
    assert_eq!(longest(&switch), 1452);
    assert_eq!((a.lost.len(), b.lost.len()), (0, 0));
}

#[test]
fn an_endpoint_that_goes_to_sleep_acknowledges_first() {
    let switch = Switch::new(1, quiet());
    let (mut a, mut b) = pair(&switch);
    let to_b = a.peer(&b.link.address());
    send_in_parts(&mut a, to_b, 1, 100);
    run(&switch, &mut [&mut a, &mut b], |ends| !ends[1].received.is_empty());
    assert_eq!(a.link.unacknowledged_packets(), 1, "the acknowledgement waits for something to ride on");
    let before = b.link.report().bare_datagrams_sent;
    for _ in 0..2 {
        b.link.wake_up().expect("it sleeps").arm();
    }
    assert_eq!(b.link.report().bare_datagrams_sent, before + 1);
    assert_eq!(b.link.deadline(std::time::Instant::now()), None, "nothing ends its sleep");
    switch.advance(10 * MICROSECOND);
    a.poll();
    assert_eq!(a.link.unacknowledged_packets(), 0);
    settle(&switch, &mut a, &mut b);
    assert_eq!(b.link.report().bare_datagrams_sent, before + 1);
}

#[test]
fn a_report_counts_what_was_sent_again_and_keeps_the_counts_of_lost_peers() {
    let switch = Switch::new(9, Impairments { lost: 50, ..quiet() });
    let (mut a, mut b) = pair(&switch);
    let to_b = a.peer(&b.link.address());
    let mut sent = 0;
    run(&switch, &mut [&mut a, &mut b], |ends| {
        while sent < 500 && ends[0].send(to_b, sent).is_ok() {
            sent += 1;
        }
        sent == 500 && ends[0].link.unacknowledged_packets() == 0
    });
    let before = a.link.report();
    assert!(before.sent_again > 0 && before.datagrams_sent > before.sent_again, "{before:?}");
    assert_eq!((before.open_paths, before.narrow_paths), (1, 0));
    let (least, greatest) = (before.least_round_trip_ns, before.greatest_round_trip_ns);
    assert!(least == greatest && (20 * MICROSECOND..MILLISECOND).contains(&least), "{before:?}");
    assert_eq!(before.dropped_forged, a.link.counters().forged);
    assert_eq!(weir_link::Inspect::network_report(&a.link), Some(before));
    let path = weir_link::PathReport { round_trip_ns: least, sent_again: before.sent_again };
    assert_eq!(weir_link::Inspect::path_report(&a.link, to_b), Some(path), "the only path");
    assert_eq!(weir_link::Inspect::path_report(&a.link, Peer(to_b.0 + 1)), None);
    switch.cut(2);
    a.send(to_b, 500).expect("room");
    run(&switch, &mut [&mut a], |ends| !ends[0].lost.is_empty());
    let after = a.link.report();
    assert!(after.datagrams_sent > before.datagrams_sent && after.open_paths == 0, "{after:?}");
}
