//! Tests of the exact packets of one endpoint machine over a link that refuses packets.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::action::Action;
use crate::config::{AttachPolicy, Config, DataRegion, Scheme};
use crate::driver::Recorder;
use crate::event::{Command, Event, Peer, PeerFault, Request, SendCommand, SendLevel, Transfer};
use crate::packet::{Body, Geometry, Packet, Space};
use crate::time::Instant;
use crate::{Counters, Endpoint};

const PEER: Peer = Peer(1);

/// An endpoint machine with a connected peer that has attached, both with a quota of 4.
struct Bench {
    machine: Endpoint,
    credit_packets_read: u16,
    /// Packets that the link takes before it is busy.
    takes: u32,
    now: Instant,
}

fn bench(bounce_bytes: u64) -> Bench {
    let machine = Endpoint::new(Config {
        scheme: Scheme::Static { piggyback: true },
        geometry: Geometry { max_packet_slots: 2, ..Geometry::SHARED_MEMORY },
        credit_slots: 1,
        region: DataRegion {
            slots: 0,
            peers: 0,
            start_slots: 0,
            attach_policy: AttachPolicy::FirstContact,
            grace_points: 0,
        },
        eager_bytes: 1000,
        cross_memory: true,
        remote_inline_bytes: 100,
        max_backlog: u32::MAX,
        max_unexpected: 100,
        unexpected_budget_bytes: 1 << 20,
        bounce_bytes,
        envelope_budget_bytes: u64::MAX,
        planned_peers: 1,
        planned_quota_slots: 4,
    });
    let mut bench = Bench { machine, credit_packets_read: 0, takes: u32::MAX, now: Instant(0) };
    let (quota_slots, start_slots) = (4, 4);
    bench.event(Event::Connected { peer: PEER, quota_slots, start_slots, credit_slots: 1, epoch: 0 });
    bench.event(Event::Attached { peer: PEER, quota_slots, start_slots, epoch: 0 });
    bench
}

impl Bench {
    /// The packets and completions of an event.
    fn event(&mut self, event: Event<'_>) -> Vec<String> {
        let mut actions = Vec::new();
        let driver = Recorder::with_busy_link(self.now, &mut actions, self.takes);
        self.machine.handle(event, driver).expect("within the bounds");
        let short = |action: &Action| match action {
            Action::Transmit { packet, .. } => Some(match packet.body {
                Body::Eager { .. } => format!("eager {}", packet.number),
                Body::More { offset } => format!("more {offset}"),
                Body::Credit => format!("credit {}", packet.granted_total),
                Body::Detach => format!("detach {}", packet.granted_total),
                Body::Finished { count, .. } => format!("finished {count}"),
                Body::Rendezvous { .. } => format!("rendezvous {}", packet.number),
                other => format!("{other:?}"),
            }),
            Action::Complete { request, outcome } => Some(format!("{outcome:?} {}", request.0)),
            Action::Connect { .. } => Some("connect".into()),
            _ => None,
        };
        actions.iter().filter_map(short).collect()
    }

    /// The time since which the messages to the peer wait for its link.
    fn waits_since(&self) -> Option<Instant> {
        self.machine.pairs(self.now).find(|pair| pair.peer == PEER).and_then(|pair| pair.link_busy_since)
    }

    fn send(&mut self, request: u32, bytes: u64, level: SendLevel) -> Vec<String> {
        let (request, to, space) = (Request(request), PEER, Space::Tagged);
        let send = SendCommand { request, to, space, tag: 0, data: None, bytes, level };
        self.event(Event::Posted(Command::Send(send)))
    }

    fn arrive(&mut self, body: Body, bytes: u32) -> Vec<String> {
        let packet = Packet { credit_packets_read: self.credit_packets_read, ..Packet::new(body, bytes) };
        self.event(Event::Arrived { from: PEER, packet: &packet })
    }

    fn message(&mut self) -> Vec<String> {
        self.arrive(Body::Eager { space: Space::Tagged, tag: 0, data: None, length: 8, acknowledge: None }, 8)
    }

    /// The link takes everything again.
    fn ready(&mut self) -> Vec<String> {
        self.takes = u32::MAX;
        self.event(Event::LinkReady { peer: PEER })
    }

    fn credits(&self) -> u32 {
        let pair = self.machine.pairs(Instant(0)).next().expect("the peer");
        pair.sending.expect("connected").credits
    }

    fn packets_sent(&self) -> u64 {
        let Counters { packets_sent, .. } = *self.machine.counters();
        assert_eq!(packets_sent, self.machine.counters().packets_by_kind().iter().sum::<u64>());
        packets_sent
    }
}

#[test]
fn a_refused_message_spends_nothing_and_leaves_before_later_ones() {
    let mut bench = bench(0);
    bench.takes = 0;
    assert_eq!(bench.send(0, 8, SendLevel::Buffered), [""; 0]);
    assert_eq!((bench.credits(), bench.packets_sent()), (4, 0));
    bench.takes = u32::MAX; // the machine must not try before the link is ready
    assert_eq!(bench.send(1, 8, SendLevel::Buffered), [""; 0]);
    assert!(bench.machine.would_wait(PEER, 8));
    assert_eq!(bench.ready(), ["eager 0", "Done 0", "eager 1", "Done 1"]);
    assert_eq!((bench.credits(), bench.packets_sent()), (2, 2));
    assert_eq!(bench.send(2, 8, SendLevel::Buffered), ["eager 2", "Done 2"]);
    assert_eq!(bench.machine.counters().messages_sent, 3);
    assert_eq!(bench.machine.counters().bytes_sent, 24);
}

#[test]
fn a_long_message_resumes_with_the_refused_packet() {
    let mut bench = bench(0);
    bench.takes = 1;
    assert_eq!(bench.send(0, 150, SendLevel::Buffered), ["eager 0"]);
    bench.takes = 0;
    assert_eq!(bench.event(Event::LinkReady { peer: PEER }), [""; 0], "it refuses again");
    assert_eq!(bench.ready(), ["more 80", "Done 0"]);
    assert_eq!(bench.packets_sent(), 2);
    assert!(bench.machine.is_quiescent());
    assert_eq!(bench.event(Event::LinkReady { peer: PEER }), [""; 0], "nothing waits");
}

#[test]
fn a_refused_credit_packet_leaves_once_with_all_that_was_granted() {
    let mut bench = bench(0);
    bench.takes = 0;
    let due = (0..4).position(|_| bench.message().iter().any(|packet| packet.starts_with("credit")));
    assert_eq!(due, None, "the link refuses");
    assert_eq!(bench.ready(), ["credit 3"], "the threshold is 3");
    bench.credit_packets_read = 1;
    let answers: Vec<_> = (0..2).flat_map(|_| bench.message()).collect();
    assert_eq!(answers, ["credit 6"]);
}

#[test]
fn a_lease_that_has_carried_something_ends_before_what_the_link_has_refused() {
    let mut bench = bench(0);
    assert_eq!(bench.send(0, 8, SendLevel::Buffered), ["eager 0", "Done 0"]);
    bench.takes = 0;
    assert_eq!(bench.send(1, 8, SendLevel::Buffered), [""; 0]);
    assert_eq!(bench.event(Event::DetachRequested { peer: PEER }), [""; 0]);
    assert_eq!(bench.ready(), ["detach 0", "connect"], "the message continues in the next lease");
    let connected =
        Event::Connected { peer: PEER, quota_slots: 4, start_slots: 4, credit_slots: 1, epoch: 1 };
    // A sender starts a further lease with rendezvous only.
    assert_eq!(bench.event(connected), ["rendezvous 1"]);
}

#[test]
fn a_lease_that_has_carried_nothing_ends_behind_what_the_link_takes_next() {
    let mut bench = bench(0);
    bench.takes = 0;
    (0..3).for_each(|request| assert_eq!(bench.send(request, 8, SendLevel::Buffered), [""; 0]));
    assert_eq!(bench.event(Event::DetachRequested { peer: PEER }), [""; 0]);
    assert_eq!(bench.event(Event::LinkReady { peer: PEER }), [""; 0], "it refuses again");
    bench.takes = 2;
    let taken = bench.event(Event::LinkReady { peer: PEER });
    assert_eq!(taken, ["eager 0", "Done 0", "eager 1", "Done 1"]);
    assert_eq!(bench.ready(), ["detach 0", "connect"], "the rest does not delay the detach");
}

#[test]
fn an_injected_message_that_is_refused_is_complete_and_leaves_later() {
    let mut bench = bench(1 << 10);
    bench.takes = 0;
    assert_eq!(bench.send(0, 8, SendLevel::Injected), ["Done 0"]);
    assert_eq!(bench.machine.undelivered().len(), 1);
    assert_eq!(bench.ready(), ["eager 0"]);
    assert!(bench.machine.is_quiescent());
}

#[test]
fn a_lost_peer_ends_what_the_link_has_refused() {
    let mut bench = bench(0);
    bench.takes = 0;
    bench.send(0, 8, SendLevel::Buffered);
    let lost = bench.event(Event::Lost { peer: PEER, fault: PeerFault::Died });
    assert_eq!(lost.len(), 1);
    assert!(lost[0].starts_with("Lost") && lost[0].ends_with(" 0"), "{lost:?}");
    assert_eq!(bench.ready(), [""; 0]);
}

#[test]
fn a_refused_acknowledgement_stays_due() {
    let mut bench = bench(0);
    let body =
        Body::Eager { space: Space::Tagged, tag: 0, data: None, length: 8, acknowledge: Some(Transfer(5)) };
    let pattern = crate::event::Pattern { space: Space::Tagged, from: None, tag: 0, ignore: 0 };
    let receive =
        crate::event::ReceiveCommand { request: Request(9), pattern, capacity_bytes: 8, multi: None };
    bench.event(Event::Posted(Command::Receive(receive)));
    bench.takes = 0;
    assert_eq!(bench.arrive(body, 8).len(), 1, "the receive completes");
    assert!(bench.machine.has_undelivered());
    assert_eq!(bench.ready(), ["finished 1"]);
    assert!(!bench.machine.has_undelivered());
}

#[test]
fn totals_of_a_refused_packet_that_a_goodbye_voids_leave_with_detach() {
    let mut bench = bench(1 << 10);
    bench.message();
    bench.takes = 0;
    assert_eq!(bench.send(0, 8, SendLevel::Injected), ["Done 0"]);
    assert_eq!(bench.arrive(Body::Goodbye, 0), [""; 0]);
    let packets = bench.ready();
    assert!(packets[0] == "detach 1" || packets[0] == "detach 2", "{packets:?}");
}

#[test]
fn a_goodbye_ends_a_message_that_became_a_rendezvous_while_the_link_refused_it() {
    let mut bench = bench(1 << 10);
    bench.takes = 0;
    assert_eq!(bench.send(0, 8, SendLevel::Buffered), [""; 0]);
    let mut full = Packet::new(Body::Credit, 0);
    full.marks.rendezvous_only = true;
    bench.event(Event::Arrived { from: PEER, packet: &full });
    assert_eq!(bench.event(Event::LinkReady { peer: PEER }), [""; 0], "it refuses again");
    let mut goodbye = Packet::new(Body::Goodbye, 0);
    goodbye.marks.rendezvous_only = true;
    let ended = bench.event(Event::Arrived { from: PEER, packet: &goodbye });
    assert_eq!(ended, ["Lost { peer: Some(Peer(1)), fault: Closed } 0"]);
    assert!(bench.machine.is_quiescent() && !bench.machine.has_undelivered());
}

#[test]
fn a_message_that_waits_for_a_busy_link_is_reported_with_the_time_since_which_it_waits() {
    let mut sender = bench(1 << 20);
    (sender.takes, sender.now) = (0, Instant(7));
    assert_eq!(sender.waits_since(), None);
    sender.send(0, 8, SendLevel::Buffered);
    sender.now = Instant(9);
    sender.send(1, 8, SendLevel::Buffered);
    assert_eq!(sender.waits_since(), Some(Instant(7)), "the second message waits behind the first");
    sender.takes = 1;
    sender.event(Event::LinkReady { peer: PEER });
    assert_eq!(sender.waits_since(), Some(Instant(9)), "the first has left, and the second waits now");
    sender.takes = 1;
    sender.event(Event::LinkReady { peer: PEER });
    assert_eq!(sender.waits_since(), None);
    assert_eq!(sender.machine.counters().stalls, 0, "this is no wait for credit");
}

#[test]
fn a_message_behind_a_refused_credit_packet_is_reported_too() {
    let mut sender = bench(1 << 20);
    (sender.takes, sender.now) = (0, Instant(7));
    for _ in 0..4 {
        sender.arrive(
            Body::Eager { space: Space::Tagged, tag: 0, data: None, length: 8, acknowledge: None },
            8,
        );
    }
    assert_eq!(sender.waits_since(), None, "no message waits, only a credit packet");
    sender.now = Instant(8);
    sender.send(0, 8, SendLevel::Buffered);
    assert_eq!(sender.waits_since(), Some(Instant(8)));
}
