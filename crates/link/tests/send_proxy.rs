//! Tests of the proxy before a link over datagrams: what endpoints of a node send for each other arrives once, whole and
//! in order. Time passes only where a test advances it.
#![allow(missing_docs)]

mod common;
mod ends;

use weir_link::Addressing;
use weir_link::datagram::lossy::{Impairments, LossyNetwork, Switch};
use weir_link::datagram::network::DatagramNetwork;
use weir_link::datagram::{DatagramOptions, SendProxy};
use weir_link::shm::ShmLink;
use weir_link::shm::node_segment::{JobKey, NodeSegment};
use weir_proto::Peer;

const MICROSECOND: u64 = 1_000;
const SENDERS: u16 = 3;
/// On another host than the senders.
const RECEIVER: u16 = 60;
const MESSAGES: u32 = 400;

struct Sender {
    end: ends::End<LossyNetwork>,
    to: Peer,
    next: u32,
    _node: NodeSegment,
    _mailbox: ShmLink,
}

impl Sender {
    fn open(directory: &tempfile::TempDir, switch: &Switch, port: u16, drains: bool) -> Sender {
        let mailbox = common::open(directory.path());
        let node = NodeSegment::join(&mailbox, JobKey::new(&"a job")).expect("joined");
        let network = switch.open(port);
        let domain = network.domain().expect("the number of the host");
        let proxy = SendProxy::open(&node.handle(), 1, drains, domain).expect("a queue");
        let end = ends::End::open(network, port.into(), DatagramOptions::new(ends::QUOTA));
        Sender { end: end.with_proxy(proxy), to: Peer(0), next: 0, _node: node, _mailbox: mailbox }
    }
}

/// Sends all messages through a network with these impairments. Returns the datagrams that endpoints sent for others.
fn exchange(seed: u64, impairments: Impairments, drains: bool) -> u64 {
    let directory = common::directory();
    let switch = Switch::new(seed, Impairments { delay_ns: 10 * MICROSECOND, ..Impairments::default() });
    let mut receiver =
        ends::End::open(switch.open(RECEIVER), RECEIVER.into(), DatagramOptions::new(ends::QUOTA));
    let mut senders: Vec<Sender> =
        (1..=SENDERS).map(|port| Sender::open(&directory, &switch, port, drains)).collect();
    let address = receiver.link.address();
    for sender in &mut senders {
        sender.to = sender.end.peer(&address);
        for _ in 0..1000 {
            if sender.end.connect(&address).is_some() {
                break;
            }
            sender.end.poll();
            receiver.poll();
            switch.advance(20 * MICROSECOND);
        }
    }
    switch.impair(Impairments { delay_ns: 10 * MICROSECOND, ..impairments });
    let all = |receiver: &ends::End<LossyNetwork>| {
        receiver.received.values().map(|messages| messages.len() as u32).sum::<u32>()
    };
    for _ in 0..200_000 {
        for sender in &mut senders {
            while sender.next < MESSAGES && sender.end.send(sender.to, sender.next).is_ok() {
                sender.next += 1;
            }
            sender.end.poll();
        }
        receiver.poll();
        switch.advance(20 * MICROSECOND);
        if all(&receiver) == MESSAGES * u32::from(SENDERS) {
            break;
        }
    }
    assert_eq!(receiver.received.len(), SENDERS as usize, "from each");
    for sender in &senders {
        let peer = receiver.peer(&sender.end.link.address());
        let messages = &receiver.received[&peer];
        assert_eq!(messages.len() as u32, MESSAGES);
        for (number, (found, bytes)) in (0..).zip(messages) {
            assert_eq!((number, bytes), (*found, &ends::payload_of(sender.end.identity, number)));
        }
    }
    let report = receiver.link.report();
    if impairments.changed == 0 {
        assert_eq!((report.dropped_forged, report.dropped_foreign), (0, 0), "all are authentic");
    }
    senders.iter().map(|sender| sender.end.link.proxy().map_or(0, |it| it.counters().sent_for_others)).sum()
}

#[test]
fn endpoints_that_share_a_busy_network_send_for_each_other() {
    let refused = Impairments { refused: 300, ..Impairments::default() };
    assert!(exchange(1, refused, false) > 0, "who serves after a refusal sends what others have left");
    assert!(exchange(2, refused, true) > 0);
}

#[test]
fn messages_arrive_once_and_in_order_whatever_the_network_does_to_datagrams_of_a_proxy() {
    let bad = Impairments {
        lost: 50,
        repeated: 30,
        changed: 10,
        marked: 20,
        refused: 100,
        jitter_ns: 40 * MICROSECOND,
        ..Impairments::default()
    };
    for seed in 0..4 {
        exchange(seed, bad, seed % 2 == 0);
    }
}
