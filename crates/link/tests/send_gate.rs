//! Tests of the gate of admission before a link over datagrams. Time passes only where a test advances it.
#![allow(missing_docs)]

mod common;
mod ends;

use std::time::Duration;
use weir_link::datagram::lossy::{Impairments, LossyNetwork, Switch};
use weir_link::datagram::{DatagramOptions, SendGate};
use weir_link::shm::ShmLink;
use weir_link::shm::node_segment::{JobKey, NodeSegment};
use weir_link::{Addressing, Inspect, Link};
use weir_proto::admission::{HOLD_NS, TokenStep, TokenTable};
use weir_proto::reliability::ReliabilityConfig;
use weir_proto::{Body, LinkBusy, Packet, Peer, Space};

const MICROSECOND: u64 = 1_000;
const TOKENS: u32 = 4;

type End = ends::End<LossyNetwork>;

fn open(switch: &Switch, port: u16) -> End {
    let reliability = ReliabilityConfig { limit_ns: 100 * HOLD_NS, ..ReliabilityConfig::default() };
    let options = DatagramOptions { reliability, ..DatagramOptions::new(ends::QUOTA) };
    End::open(switch.open(port), port.into(), options)
}

fn quiet() -> Switch {
    Switch::new(1, Impairments { delay_ns: 10 * MICROSECOND, ..Impairments::default() })
}

/// An endpoint of a node, which shares its tokens with the others in that directory.
struct Sender {
    end: End,
    to: Peer,
    next: u32,
    _node: NodeSegment,
    _mailbox: ShmLink,
}

impl Sender {
    fn open(directory: &tempfile::TempDir, switch: &Switch, port: u16, receiver: &mut End) -> Sender {
        let mailbox = common::open(directory.path());
        let node = NodeSegment::join(&mailbox, JobKey::new(&"a job")).expect("joined");
        let gate = SendGate::with_tokens(TOKENS, Some(&node.handle()));
        Sender::with(gate, (mailbox, node), switch, port, receiver)
    }

    /// With a table of tokens for messages of a length and for active ranks.
    fn with_table(
        directory: &tempfile::TempDir,
        (switch, port): (&Switch, u16),
        receiver: &mut End,
        steps: &[[u32; 3]],
    ) -> Sender {
        let mailbox = common::open(directory.path());
        let node = NodeSegment::join(&mailbox, JobKey::new(&"a job")).expect("joined");
        let steps = steps.iter().map(|&[bytes, tasks, tokens]| TokenStep { bytes, tasks, tokens });
        let table = TokenTable::new(steps.collect()).expect("a table");
        let gate = SendGate::with_table(table, Some(&node.handle())).expect("it limits something");
        Sender::with(gate, (mailbox, node), switch, port, receiver)
    }

    fn with(
        gate: SendGate,
        (mailbox, node): (ShmLink, NodeSegment),
        switch: &Switch,
        port: u16,
        receiver: &mut End,
    ) -> Sender {
        let mut end = open(switch, port).with_gate(gate);
        let to = connect(switch, &mut end, receiver);
        Sender { end, to, next: 0, _node: node, _mailbox: mailbox }
    }

    /// Sends until the link is busy, messages below `last`.
    fn send(&mut self, last: u32) {
        while self.next < last && self.end.send(self.to, self.next).is_ok() {
            self.next += 1;
        }
    }

    fn held(&self) -> u32 {
        held(&self.end)
    }
}

fn held(end: &End) -> u32 {
    end.link.gate().expect("a gate").held()
}

fn waits(end: &End) -> u64 {
    end.link.report().gate_waits
}

/// Connects `end` with `receiver`, until nothing is under way. Returns the receiver's name.
fn connect(switch: &Switch, end: &mut End, receiver: &mut End) -> Peer {
    let address = receiver.link.address();
    for _ in 0..1000 {
        end.connect(&address);
        end.poll();
        receiver.poll();
        switch.advance(5 * MICROSECOND);
    }
    assert_eq!(held(end), 0, "everything is acknowledged");
    end.peer(&address)
}

#[test]
fn ranks_of_a_node_have_no_more_datagrams_under_way_than_tokens_and_all_get_some() {
    let (directory, switch) = (common::directory(), quiet());
    let mut receiver = open(&switch, 1);
    let mut senders = [2, 3, 4].map(|port| Sender::open(&directory, &switch, port, &mut receiver));
    let (mut received, mut most) = ([0; 3], 0);
    for round in 0.. {
        assert!(round < 100_000, "received: {received:?}");
        for sender in &mut senders {
            sender.end.poll();
            sender.send(200);
        }
        let held = senders.iter().map(Sender::held).sum();
        assert!(held <= TOKENS, "{held} datagrams under way");
        most = most.max(held);
        receiver.poll();
        switch.advance(5 * MICROSECOND);
        for (port, next) in (2..).zip(&mut received) {
            let from = receiver.peer(&senders[port as usize - 2].end.link.address());
            receiver.check_received(from, port, next);
        }
        // A token is for a datagram, whatever is in it.
        let sent = senders.each_ref().map(|sender| sender.end.link.report().datagrams_sent);
        let (least, greatest) = (sent.iter().min(), sent.iter().max());
        let ahead = greatest.zip(least).map_or(0, |(greatest, least)| greatest - least);
        assert!(ahead < 20 || received.contains(&200), "turns are about equal: {sent:?}, {received:?}");
        if received == [200; 3] {
            break;
        }
    }
    assert_eq!(most, TOKENS, "the limit is used");
    assert!(
        senders.iter().all(|sender| waits(&sender.end) > 50 && sender.end.link.report().gate_waited_ns > 0)
    );
}

#[test]
fn a_rank_that_stops_with_all_tokens_stops_the_others_only_for_a_while() {
    let (directory, switch) = (common::directory(), quiet());
    let mut receiver = open(&switch, 1);
    let mut stopped = Sender::open(&directory, &switch, 2, &mut receiver);
    let mut sender = Sender::open(&directory, &switch, 3, &mut receiver);
    stopped.send(20);
    assert!(stopped.held() > 0 && waits(&stopped.end) == 1, "it holds tokens and a ticket");
    sender.send(50);
    assert_eq!(sender.next, 0);
    let (from, begun, mut received) = (receiver.peer(&sender.end.link.address()), switch.now(), 0);
    while received < 50 {
        sender.end.poll();
        sender.send(50);
        assert!(sender.next == 0 || switch.now().since_ns(begun) >= HOLD_NS, "too early");
        receiver.poll();
        switch.advance(5 * MICROSECOND);
        receiver.check_received(from, 3, &mut received);
        assert!(switch.now().since_ns(begun) < 3 * HOLD_NS, "{received} of 50");
    }
    // It returns, and its messages leave.
    while stopped.next < 20 {
        stopped.end.poll();
        stopped.send(20);
        receiver.poll();
        switch.advance(5 * MICROSECOND);
        assert!(switch.now().since_ns(begun) < 6 * HOLD_NS, "{} of 20", stopped.next);
    }
}

#[test]
fn a_peer_that_acknowledges_nothing_keeps_no_tokens_from_other_peers() {
    let switch = quiet();
    let (mut silent, mut other) = (open(&switch, 1), open(&switch, 2));
    let mut end = open(&switch, 3).with_gate(SendGate::with_tokens(TOKENS, None));
    let to_silent = connect(&switch, &mut end, &mut silent);
    let to_other = connect(&switch, &mut end, &mut other);
    let sent = (0..100).take_while(|&number| end.send(to_silent, number).is_ok()).count();
    assert!((1..=TOKENS as usize * 60).contains(&sent), "{sent}");
    assert_eq!(end.send(to_other, 0), Err(LinkBusy), "the tokens are used up");
    let begun = switch.now();
    let from = other.peer(&end.link.address());
    let mut received = 0;
    while received == 0 {
        end.poll();
        let _ = end.send(to_other, 0);
        other.poll();
        switch.advance(5 * MICROSECOND);
        other.check_received(from, 3, &mut received);
        assert!(switch.now().since_ns(begun) < 3 * HOLD_NS, "nothing arrives");
    }
    assert!(switch.now().since_ns(begun) >= HOLD_NS / 2);
    assert_eq!(end.lost, []);
}

#[test]
fn packets_of_a_rank_keep_their_distance() {
    const DELAY_NS: u64 = 100 * MICROSECOND;
    let switch = quiet();
    let mut receiver = open(&switch, 1);
    let mut end = open(&switch, 2).with_gate(SendGate::with_delay(DELAY_NS));
    let to = connect(&switch, &mut end, &mut receiver);
    let (begun, mut next) = (switch.now(), 0);
    while next < 100 {
        while end.send(to, next).is_ok() {
            next += 1;
        }
        let now = std::time::Instant::now();
        let deadline = end.link.deadline(now).expect("a packet waits");
        assert!(deadline - now <= Duration::from_nanos(DELAY_NS));
        let begins = 1 + switch.now().since_ns(begun) / DELAY_NS;
        assert!(end.link.report().datagrams_sent <= 3 * begins + 10, "a packet is three datagrams at most");
        end.poll();
        receiver.poll();
        switch.advance(5 * MICROSECOND);
    }
    assert!(waits(&end) > 20, "{} waits", waits(&end));
    let waited_ns = end.link.report().gate_waited_ns;
    assert!(waited_ns <= switch.now().since_ns(begun), "{waited_ns} ns");
}

#[test]
fn tokens_are_free_when_their_rank_has_given_them_back_and_its_own_packets_pass_then() {
    let (directory, switch) = (common::directory(), quiet());
    let mut receiver = open(&switch, 1);
    let mut closing = Sender::open(&directory, &switch, 2, &mut receiver);
    let mut sender = Sender::open(&directory, &switch, 3, &mut receiver);
    closing.send(100);
    sender.send(1);
    assert_eq!(sender.next, 0);
    let sent = closing.next;
    closing.end.link.give_back_shared();
    sender.end.poll();
    sender.send(1);
    assert_eq!(sender.next, 1);
    closing.end.poll();
    closing.send(100);
    assert!(closing.next > sent + 10, "{sent}, then {}", closing.next);
}

#[test]
fn ranks_that_begin_to_wait_in_the_same_microsecond_all_get_tokens() {
    let (directory, switch) = (common::directory(), quiet());
    let mut receiver = open(&switch, 1);
    let [mut first, mut second] = [2, 3].map(|port| Sender::open(&directory, &switch, port, &mut receiver));
    switch.advance(300);
    first.send(100);
    switch.advance(400);
    second.send(100);
    assert_eq!((waits(&first.end), waits(&second.end), second.next), (1, 1, 0), "both wait");
    let mut received = [0; 2];
    for _ in 0..10_000 {
        for sender in [&mut first, &mut second] {
            sender.end.poll();
            sender.send(100);
        }
        receiver.poll();
        switch.advance(5 * MICROSECOND);
        for (sender, (port, next)) in [&first, &second].into_iter().zip((2..).zip(&mut received)) {
            let from = receiver.peer(&sender.end.link.address());
            receiver.check_received(from, port, next);
        }
    }
    assert_eq!(received, [100; 2]);
}

/// Messages of a sender from `next` on with at least, or with less than, so many bytes.
fn next_of(sender: &Sender, bytes: usize, is_long: bool) -> u32 {
    let is_wanted = |&number: &u32| (ends::payload_of(sender.end.identity, number).len() >= bytes) == is_long;
    (sender.next..).find(is_wanted).expect("one of them")
}

#[test]
fn messages_below_the_thresholds_pass_and_hold_no_tokens_while_longer_ones_wait() {
    const BYTES: u32 = 500;
    let (directory, switch) = (common::directory(), quiet());
    let mut receiver = open(&switch, 1);
    let [mut sender, mut other] = [2, 3]
        .map(|port| Sender::with_table(&directory, (&switch, port), &mut receiver, &[[BYTES, 1, TOKENS]]));
    let short = next_of(&sender, BYTES as usize, false);
    for _ in 0..300 {
        sender.end.send(sender.to, short).expect("nothing limits it");
    }
    assert_eq!((sender.held(), waits(&sender.end)), (0, 0));
    // Long messages take the tokens, and wait. A short one of another rank passes, a long one waits too.
    let long = next_of(&sender, BYTES as usize, true);
    let sent = (0..100).take_while(|_| sender.end.send(sender.to, long).is_ok()).count();
    assert!((1..=2 * TOKENS as usize).contains(&sent), "{sent}");
    assert!(sender.held() <= TOKENS && waits(&sender.end) == 1);
    assert_eq!(other.end.send(other.to, next_of(&other, BYTES as usize, false)), Ok(()));
    assert_eq!(other.end.send(other.to, next_of(&other, BYTES as usize, true)), Err(LinkBusy));
    // Short messages that go on do not keep the tokens of the long ones before them.
    for _ in 0..200 {
        for end in [&mut sender.end, &mut other.end, &mut receiver] {
            end.poll();
        }
        let _ = sender.end.send(sender.to, short);
        switch.advance(5 * MICROSECOND);
    }
    assert_eq!(sender.held(), 0);
    assert_eq!(
        other.end.send(other.to, next_of(&other, BYTES as usize, true)),
        Ok(()),
        "its tokens are back"
    );
}

#[test]
fn the_active_ranks_of_the_node_decide_which_step_is_in_force() {
    const STEPS: [[u32; 3]; 2] = [[500, 2, 6], [500, 3, 3]];
    let (directory, switch) = (common::directory(), quiet());
    let mut receiver = open(&switch, 1);
    let mut senders =
        [2, 3, 4].map(|port| Sender::with_table(&directory, (&switch, port), &mut receiver, &STEPS));
    let step = |sender: &Sender| {
        let report = sender.end.link.report();
        (report.gate_step_ranks, report.gate_tokens)
    };
    for active in 1..=senders.len() {
        let begun = switch.now();
        while switch.now().since_ns(begun) < HOLD_NS / 2 {
            for sender in &mut senders[..active] {
                sender.end.poll();
                let last = sender.next + 20;
                sender.send(last);
            }
            receiver.poll();
            receiver.received.clear();
            switch.advance(5 * MICROSECOND);
            let tokens = [0, 0, 6, 3][active];
            let held: u32 = senders.iter().map(Sender::held).sum();
            let is_settled = switch.now().since_ns(begun) > HOLD_NS / 4;
            assert!(!is_settled || held <= tokens, "{active} active ranks: {held} datagrams hold tokens");
        }
        let expected = [(0, 0), (0, 0), (2, 6), (3, 3)][active];
        assert!(senders[..active].iter().all(|sender| step(sender) == expected), "{active} active ranks");
    }
    // After a while without messages, one rank is alone again, and nothing limits it.
    switch.advance(2 * HOLD_NS);
    let before = waits(&senders[0].end);
    for _ in 0..1000 {
        senders[0].end.poll();
        let last = senders[0].next + 20;
        senders[0].send(last);
        receiver.poll();
        switch.advance(5 * MICROSECOND);
    }
    assert!(waits(&senders[0].end) <= before + 1, "at most the packet that waits already");
}

/// A message without payload, with so many credits in all that its sender has granted.
fn empty(body: Body, granted_total: u32) -> Packet {
    Packet { granted_total, ..Packet::new(body, 0) }
}

fn eager() -> Body {
    Body::Eager { space: Space::Tagged, tag: 7, data: None, length: 0, acknowledge: None }
}

#[test]
fn short_messages_share_the_bundle_that_waits_for_a_token_and_a_full_one_makes_the_link_busy() {
    let (directory, switch) = (common::directory(), quiet());
    let mut receiver = open(&switch, 1);
    let mut sender = Sender::open(&directory, &switch, 2, &mut receiver);
    let short = next_of(&sender, 64, false);
    let (end, to) = (&mut sender.end, sender.to);
    let before = end.link.report().datagrams_sent;
    // Those that fill the first bundles take a token for each. The next ones wait together in a bundle.
    let (mut sent, mut most_held, mut joined) = (0, 0, 0);
    while end.send(to, short).is_ok() {
        (sent, most_held) = (sent + 1, most_held.max(held(end)));
        joined += u32::from(waits(end) > 0);
    }
    assert!(joined > 8 && most_held <= TOKENS, "{joined} joined, {most_held} tokens");
    assert_eq!(waits(end), 1, "one bundle waits");
    let deadline = end.link.deadline(std::time::Instant::now()).expect("it asks again");
    assert!(deadline <= std::time::Instant::now() + Duration::from_millis(1));
    let left = end.link.report().datagrams_sent - before;
    let from = receiver.peer(&end.link.address());
    for _ in 0..1000 {
        end.poll();
        receiver.poll();
        switch.advance(5 * MICROSECOND);
        assert!(held(end) <= TOKENS);
    }
    let arrived = receiver.received.remove(&from).expect("messages");
    assert_eq!(arrived.len(), sent);
    assert!(arrived.iter().all(|(number, _)| *number == short));
    // Acknowledgements and questions leave too.
    let in_all = end.link.report().datagrams_sent - before;
    assert!(left <= u64::from(TOKENS) + 1 && in_all <= left + 6, "{left}, then {in_all} datagrams");
    assert_eq!((held(end), end.ready.contains(&to)), (0, true));
}

#[test]
fn a_packet_that_returns_credits_does_not_wait_in_a_bundle_and_one_that_does_not_ask_lets_the_bundle_leave() {
    let switch = quiet();
    let mut receiver = open(&switch, 1);
    let mut end = open(&switch, 2).with_gate(SendGate::with_tokens(1, None));
    let to = connect(&switch, &mut end, &mut receiver);
    let from = receiver.peer(&end.link.address());
    let transmit = |end: &mut End, body, granted| end.link.transmit(to, &empty(body, granted), None);
    assert_eq!(transmit(&mut end, eager(), 5), Ok(()), "it has the token");
    assert_eq!(transmit(&mut end, eager(), 5), Ok(()), "it waits in a bundle");
    assert_eq!((held(&end), waits(&end)), (1, 1));
    // The credit packet says that more was granted. It does not wait, so nothing before it does.
    assert_eq!(transmit(&mut end, Body::Credit, 9), Ok(()));
    end.poll();
    assert_eq!(held(&end), 2);
    let arrived = |end: &mut End, receiver: &mut End| {
        for _ in 0..20 {
            receiver.poll();
            switch.advance(5 * MICROSECOND);
        }
        end.poll();
        receiver.received.remove(&from).map_or(0, |packets| packets.len())
    };
    assert_eq!(arrived(&mut end, &mut receiver), 3);
    for _ in 0..1000 {
        end.poll();
        receiver.poll();
        switch.advance(5 * MICROSECOND);
    }
    assert_eq!(held(&end), 0);
    assert_eq!(transmit(&mut end, eager(), 9), Ok(()), "it has the token");
    assert_eq!(transmit(&mut end, eager(), 9), Ok(()), "it waits in a bundle");
    assert!(!end.link.is_held_back(to));
    assert_eq!(transmit(&mut end, eager(), 10), Err(LinkBusy), "its credit would wait there");
    assert!(end.link.is_held_back(to));
}

#[test]
fn bundles_that_wait_for_tokens_leave_in_turn_and_before_what_waits_in_the_endpoint() {
    let switch = quiet();
    let mut receivers = [1, 2, 3].map(|port| open(&switch, port));
    let mut end = open(&switch, 4).with_gate(SendGate::with_tokens(1, None));
    let to = [0, 1, 2].map(|index| connect(&switch, &mut end, &mut receivers[index]));
    let sender = end.link.address();
    for to in to {
        // One by one, so that the first packet of each path has said its credits.
        assert_eq!(end.link.transmit(to, &empty(eager(), 5), None), Ok(()));
        for _ in 0..1000 {
            end.poll();
            receivers.iter_mut().for_each(End::poll);
            switch.advance(5 * MICROSECOND);
        }
        assert_eq!(held(&end), 0);
    }
    receivers.iter_mut().for_each(|receiver| receiver.received.clear());
    assert_eq!(end.link.transmit(to[0], &empty(eager(), 5), None), Ok(()), "it has the token");
    let mut order = Vec::new();
    for to in [to[1], to[2], to[0]] {
        assert_eq!(end.link.transmit(to, &empty(eager(), 5), None), Ok(()), "it waits in a bundle");
    }
    for _ in 0..1000 {
        end.poll();
        for (index, receiver) in receivers.iter_mut().enumerate() {
            receiver.poll();
            let from = receiver.peer(&sender);
            let count = receiver.received.remove(&from).map_or(0, |packets| packets.len());
            order.extend((0..count).map(|_| index));
        }
        assert!(held(&end) <= 1);
        switch.advance(5 * MICROSECOND);
    }
    assert_eq!(order, [0, 1, 2, 0]);
}
