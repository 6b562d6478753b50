//! Tests of the gate of admission before a link over datagrams. Time passes only where a test advances it.
#![allow(missing_docs)]

mod common;
mod ends;

use std::time::Duration;
use weir_link::datagram::lossy::{Impairments, LossyNetwork, Switch};
use weir_link::datagram::{DatagramOptions, SendGate};
use weir_link::shm::ShmLink;
use weir_link::shm::node_segment::{JobKey, NodeSegment};
use weir_link::{Addressing, Link};
use weir_proto::admission::{HOLD_NS, TokenStep, TokenTable};
use weir_proto::reliability::ReliabilityConfig;
use weir_proto::{LinkBusy, Peer};

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
        let (least, greatest) = (received.iter().min(), received.iter().max());
        let ahead = greatest.zip(least).map_or(0, |(greatest, least)| greatest - least);
        assert!(ahead < 40, "turns are about equal: {received:?}");
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
