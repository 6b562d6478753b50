//! Tests of the exact actions of the schemes of Liu & Panda: hardware, static in the connection form, adaptive backlog.

use super::*;

/// The hardware scheme with a timer of 10 us.
fn hardware(rnr_retries: u8) -> Bench {
    bench(Scheme::Hardware { rnr_timer_ns: 10_000, rnr_retries }, 4)
}

fn room(slots: u32) -> Event<'static> {
    Event::Room { peer: PEER, slots }
}

impl Bench {
    fn rnr(&self) -> (u64, u64) {
        (self.machine.counters().rnr_naks, self.machine.counters().rnr_retries)
    }

    fn marked(&mut self) -> Vec<String> {
        let body = Body::Eager { space: Space::Tagged, tag: 0, data: None, length: 0, acknowledge: None };
        let marks = crate::Marks { backlogged: true, ..Default::default() };
        let packet = Packet { marks, granted_total: self.granted, ..Packet::new(body, 0) };
        self.event(Event::Arrived { from: PEER, packet: &packet })
    }
}

#[test]
fn a_sender_without_credits_tries_and_is_not_stalled_if_the_receiver_is_ready() {
    let mut sender = hardware(7);
    assert_eq!(sender.at(0).send(0, 8), ["try"]);
    assert_eq!(sender.at(9).event(room(2)), ["transmit eager 8", "done 0"]);
    assert_eq!(sender.send(1, 8), ["transmit eager 8", "done 1"]);
    assert_eq!((sender.rnr(), sender.machine.counters().stalls), ((0, 0), 0));
}

#[test]
fn a_refused_packet_waits_for_the_timer_and_everything_behind_it_waits_too() {
    let mut sender = hardware(7);
    assert_eq!(sender.at(0).send(0, 8), ["try"]);
    assert_eq!(sender.at(1).event(room(0)), ["timer at 11 us"]);
    assert_eq!(sender.send(1, 8), [""; 0]); // no query before the timer
    assert_eq!(sender.at(2).eager(0, 0), ["retire"]); // a packet of the peer does not cause a query
    assert_eq!(sender.at(10).expire(), [""; 0]);
    assert_eq!(sender.at(11).expire(), ["try"]);
    assert_eq!(sender.at(11).event(room(0)), ["timer at 21 us"]);
    assert_eq!(sender.at(21).expire(), ["try"]);
    assert_eq!(sender.event(room(2)), ["transmit eager 8", "done 0", "transmit eager 8", "done 1"]);
    let counters = sender.machine.counters();
    assert_eq!(
        (counters.rnr_naks, counters.rnr_retries, counters.stalls, counters.stalled_ns),
        (2, 2, 1, 20_000)
    );
}

#[test]
fn a_connection_and_its_queue_fail_after_the_last_retry() {
    let mut sender = hardware(1);
    sender.at(0).send(0, 8);
    sender.send(1, 5000);
    assert_eq!(sender.event(room(0)), ["timer at 10 us"]);
    assert_eq!(sender.at(10).expire(), ["try"]);
    assert_eq!(sender.event(room(0)), ["drop peer", "lost 0", "lost 1"]);
    assert_eq!(sender.rnr(), (2, 1));
    assert_eq!(sender.send(2, 8), ["lost 2"]);
    assert_eq!(sender.machine.fault(PEER), Some(PeerFault::NotReady));
}

/// The RNR timer of the peer.
const RNR: Timer = Timer { peer: PEER, purpose: Purpose::Rnr };

#[test]
fn a_peer_that_dies_during_a_retry_wait_leaves_no_timer() {
    let mut sender = hardware(7);
    sender.send(0, 8);
    sender.event(room(0));
    let lost = Event::Lost { peer: PEER, fault: PeerFault::Died };
    assert_eq!(sender.event(lost), ["cancel timer", "drop peer", "lost 0"]);
    assert_eq!(sender.event(Event::TimerExpired(RNR)), [""; 0]); // a driver that is late: harmless
}

#[test]
fn a_lane_that_is_returned_during_a_retry_wait_leaves_no_timer() {
    let mut sender = hardware(7);
    sender.send(0, 8);
    sender.event(room(0));
    let asked = sender.event(Event::DetachRequested { peer: PEER });
    assert_eq!(asked, ["detach", "disconnect", "cancel timer", "connect"]);
    assert_eq!(sender.event(Event::TimerExpired(RNR)), [""; 0]);
}

#[test]
fn timers_of_several_peers_are_independent_and_use_a_fresh_time() {
    let mut sender = hardware(7);
    let other = Peer(2);
    let connected =
        Event::Connected { peer: other, quota_slots: 4, start_slots: 4, credit_slots: 1, epoch: 0 };
    sender.event(connected);
    assert_eq!(sender.at(0).send(0, 8), ["try"]);
    let (request, space, level) = (Request(1), Space::Tagged, SendLevel::Delivered);
    let to_other = SendCommand { request, to: other, space, tag: 0, data: None, bytes: 8, level };
    assert_eq!(sender.post(Command::Send(to_other)), ["try"]);
    assert_eq!(sender.at(3).event(room(0)), ["timer at 13 us"]);
    assert_eq!(sender.at(5).event(Event::Room { peer: other, slots: 0 }), ["timer at 15 us"]);
    assert_eq!(sender.at(14).expire(), ["try"]);
    assert_eq!(sender.event(room(1)), ["transmit eager 8", "done 0"]);
    assert_eq!(sender.at(15).expire(), ["try"]);
    assert_eq!(sender.at(40).event(Event::Room { peer: other, slots: 0 }), ["timer at 50 us"]);
}

#[test]
fn a_refused_rendezvous_is_not_retried_after_a_goodbye() {
    let mut sender = hardware(7);
    assert_eq!(sender.at(0).send(0, 5000), ["try"]);
    sender.event(room(0));
    assert_eq!(sender.arrive(Body::Goodbye, 0), ["lost 0", "retire"]);
    assert_eq!(sender.at(10).expire(), [""; 0]);
    assert_eq!(sender.send(1, 8), ["try"]); // a new message asks for itself
    assert_eq!(sender.rnr(), (1, 0));
}

/// Known failure 15 (RNR storms): the timer bounds the load of retries. A peer is asked once per timer, whatever other
/// events happen. Peers do not delay each other.
#[test]
fn a_receiver_that_is_not_ready_is_tried_once_per_timer() {
    let mut sender = hardware(7);
    sender.at(0).send(0, 8);
    sender.event(room(0));
    let mut tries = 0;
    for us in 0..1000 {
        let mut did = sender.at(us).arrive(Body::Credit, 0); // traffic the other way, every microsecond
        did.extend(sender.expire());
        if did.contains(&String::from("try")) {
            tries += 1;
            assert_eq!(sender.event(room(0)).len(), 1, "the next timer");
        }
    }
    assert_eq!((tries, sender.rnr()), (99, (100, 99)));
}

fn connection(quota_slots: u32, ecm_threshold: u32) -> Bench {
    let ecm_threshold = core::num::NonZeroU32::new(ecm_threshold);
    bench(Scheme::StaticConnection { ecm_threshold }, quota_slots)
}

#[test]
fn in_the_connection_form_every_packet_piggybacks_credits() {
    let totals = |mut receiver: Bench| {
        receiver.eager(0, 0);
        let mut actions = Vec::new();
        let (request, to, space, level) = (Request(9), PEER, Space::Tagged, SendLevel::Buffered);
        let send = SendCommand { request, to, space, tag: 0, data: None, bytes: 250, level };
        let driver = Recorder::new(receiver.now, &mut actions);
        receiver.machine.handle(Event::Posted(Command::Send(send)), driver).expect("within the bounds");
        let granted = |action: &Action| match action {
            Action::Transmit { packet, .. } => Some(packet.granted_total),
            _ => None,
        };
        actions.iter().filter_map(granted).collect::<Vec<_>>()
    };
    assert_eq!(totals(connection(8, 8)), [1, 1]); // two packets
    assert_eq!(totals(with_credits(8)), [0, 1]); // mailbox form
}

/// Known failures 5 and 7: a sender without credit although buffers are free, and one-way traffic without packets that
/// could piggyback credits.
#[test]
fn one_way_traffic_gets_credits_in_ecms_at_the_threshold() {
    let mut receiver = connection(4, 3);
    assert_eq!(receiver.eager(0, 0), ["retire"]);
    assert_eq!(receiver.eager(0, 0), ["retire"]);
    assert_eq!(receiver.eager(0, 0), ["retire", "credit total 3"]);
    let mut receiver = connection(4, 0); // half of them
    assert_eq!(receiver.eager(0, 0), ["retire"]);
    assert_eq!(receiver.eager(0, 0), ["retire", "credit total 2"]);
    assert_eq!(receiver.machine.counters().credit_packets_sent, 1);
}

/// Known failure 2: a grant that waits behind data without credit. Here credit packets cost no credit and are not
/// queued.
#[test]
fn an_explicit_credit_message_passes_data_that_waits_for_credit() {
    let mut both = connection(2, 2);
    both.send(0, 8);
    both.send(1, 8);
    assert_eq!(both.send(2, 8), [""; 0]); // no credit
    assert_eq!(both.eager(0, 0), ["retire"]);
    assert_eq!(both.eager(0, 0), ["retire", "credit total 2"]);
    assert_eq!(both.machine.backlogged(), 1);
}

/// Known failure 1: both ends spend their last credit on messages that return none. If explicit credits cost a credit,
/// both wait for ever. Here they do not.
#[test]
fn two_senders_that_spend_their_last_credit_on_each_other_continue() {
    let mut both = connection(1, 1);
    assert_eq!(both.send(0, 8), ["transmit eager 8", "done 0"]);
    assert_eq!(both.send(1, 8), [""; 0]);
    // The other side did the same. The messages crossed, carry no credit, and neither side has any left.
    assert_eq!(both.eager(0, 0), ["retire", "credit total 1"]);
    assert_eq!(both.credits_back(1), ["retire", "transmit eager 8", "done 1"]);
}

fn adaptive(start_slots: u32, quota_slots: u32) -> Bench {
    bench_with(
        Scheme::AdaptiveBacklog { growth: crate::Growth::Exponential, ecm_threshold: None },
        start_slots,
        quota_slots,
    )
}

#[test]
fn only_packets_from_the_backlog_are_marked() {
    let mut sender = adaptive(1, 8);
    let mut marks = Vec::new();
    let mut post = |sender: &mut Bench, event: Event<'_>| {
        let mut actions = Vec::new();
        let driver = Recorder::new(sender.now, &mut actions);
        sender.machine.handle(event, driver).expect("within the bounds");
        for action in actions {
            if let Action::Transmit { packet, .. } = action {
                marks.push(packet.marks.backlogged);
            }
        }
    };
    let send = |request| {
        let (request, to, space, level) = (Request(request), PEER, Space::Tagged, SendLevel::Buffered);
        Event::Posted(Command::Send(SendCommand { request, to, space, tag: 0, data: None, bytes: 8, level }))
    };
    let granted = Packet { granted_total: 3, ..Packet::new(Body::Credit, 0) };
    post(&mut sender, send(0)); // the only credit
    post(&mut sender, send(1)); // waits
    post(&mut sender, send(2)); // waits behind it
    post(&mut sender, Event::Arrived { from: PEER, packet: &granted });
    post(&mut sender, send(3)); // the backlog is empty, a credit is there
    assert_eq!(marks, [false, true, true, false]);
}

#[test]
fn a_marked_packet_raises_the_buffers_up_to_the_maximum() {
    let mut receiver = adaptive(1, 6);
    receiver.machine.paths.config.max_unexpected = 100;
    assert_eq!(receiver.machine.counters().peak_quota_slots, 1);
    assert_eq!(receiver.eager(0, 0), ["retire", "credit total 1"]);
    receiver.credit_packets_read = 1;
    assert_eq!(receiver.marked(), ["retire"]); // the first credit packet counts as unread
    assert_eq!(receiver.machine.counters().peak_quota_slots, 2);
    assert_eq!(receiver.eager(0, 0), ["retire", "credit total 4"]); // now it has
    receiver.marked();
    assert_eq!(receiver.machine.counters().peak_quota_slots, 4);
    receiver.marked();
    receiver.marked();
    assert_eq!(receiver.machine.counters().peak_quota_slots, 6);
}

#[test]
fn other_schemes_ignore_the_backlog_mark() {
    let mut receiver = with_credits(3); // threshold 2
    assert_eq!(receiver.marked(), ["retire"]);
    assert_eq!(receiver.marked(), ["retire", "credit total 2"]);
    assert_eq!(receiver.machine.counters().peak_quota_slots, 3);
}

#[test]
fn a_message_that_has_left_is_not_announced_as_queued() {
    for bytes in [0, 8] {
        let mut b = with_credits(1);
        let region = DataRegion { slots: 3, ..REGION };
        b.machine = Endpoint::new(Config { scheme: Scheme::Demand, region, ..*b.machine.config() });
        let (quota_slots, start_slots) = (64, 1);
        b.event(Event::Connected { peer: PEER, quota_slots, start_slots, credit_slots: 1, epoch: 0 });
        for request in 0..3 {
            b.send(request, bytes); // with one credit
        }
        let mut actions = Vec::new();
        let credits = Packet { granted_total: 63, ..Packet::new(Body::Credit, 0) };
        let arrived = Event::Arrived { from: PEER, packet: &credits };
        b.machine.handle(arrived, Recorder::new(b.now, &mut actions)).expect("within the bounds");
        let announced = actions.iter().filter_map(|action| match action {
            Action::Transmit { packet, .. } => Some(packet.wanted_total),
            _ => None,
        });
        assert_eq!(announced.collect::<Vec<_>>(), [3, 3], "{bytes} bytes, one slot for each message");
    }
}

/// Credits on demand, of whose eight slots to lend two senders have all: the guarantee of a sender with more demand waits
/// until the endpoint is idle.
#[test]
fn an_idle_endpoint_grants_a_deferred_guarantee() {
    let mut b = with_credits(1);
    let region = DataRegion { slots: 11, peers: 3, ..REGION };
    b.machine = Endpoint::new(Config { scheme: Scheme::Demand, region, ..*b.machine.config() });
    for peer in [PEER, Peer(2), Peer(3)] {
        let (quota_slots, start_slots) = (64, 1);
        b.event(Event::Connected { peer, quota_slots, start_slots, credit_slots: 1, epoch: 0 });
        b.event(Event::Attached { peer, quota_slots, start_slots, epoch: 0 });
    }
    let from = |b: &mut Bench, peer: u32, wanted_total: u32| {
        let body = Body::Eager { space: Space::Tagged, tag: 0, data: None, length: 0, acknowledge: None };
        let packet = Packet { wanted_total, ..Packet::new(body, 0) };
        b.receive(0, 0, None);
        b.event(Event::Arrived { from: Peer(peer), packet: &packet })
    };
    let done = "received 0 0 at 0 last true";
    // Half of the slots and the guarantee are all that the first two want.
    for peer in [2, 3] {
        assert_eq!(from(&mut b, peer, 6), [done, "retire", "credit total 5"]);
    }
    assert_eq!(from(&mut b, PEER.0, 9), [done, "retire"]);
    assert!(b.machine.waits_for_idle());
    assert_eq!(b.event(Event::Idle), ["credit total 1"]);
    assert!(!b.machine.waits_for_idle());
}
