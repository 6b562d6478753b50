//! Tests of the exact actions: the unexpected-message budget, bounce buffers and injected messages, the
//! acknowledgements that free them, and what an endpoint reports as undelivered.

use super::*;

/// A receiver with one credit slot, whose budget beyond the reservation holds at most three messages of 100 bytes.
fn nearly_full(quota_slots: u32) -> Bench {
    let mut bench = with_credits(quota_slots);
    // 76 for each slot (two slots, 80 bytes). A message of 1000 bytes costs 16 and sixteen blocks of 68.
    let reserved = 76 * u64::from(quota_slots) + 16 + 16 * 68;
    let three = 3 * crate::unexpected_cost_bytes(100);
    let config = Config {
        unexpected_budget_bytes: reserved + three,
        planned_quota_slots: quota_slots,
        max_backlog: u32::MAX,
        max_unexpected: 1000,
        ..*bench.machine.config()
    };
    bench.machine = Endpoint::new(config);
    bench.event(Event::Connected {
        peer: PEER,
        quota_slots,
        start_slots: quota_slots,
        credit_slots: 1,
        epoch: 0,
    });
    bench.event(Event::Attached { peer: PEER, quota_slots, start_slots: quota_slots, epoch: 0 });
    bench
}

impl Bench {
    /// The mark of the next packet, found by sending an empty message.
    fn says_rendezvous_only(&mut self, request: u32) -> bool {
        let mut actions = Vec::new();
        let (request, to, level) = (Request(request), PEER, SendLevel::Buffered);
        let send = SendCommand { request, to, space: Space::Untagged, tag: 0, data: None, bytes: 0, level };
        let driver = Recorder::new(self.now, &mut actions);
        self.machine.handle(Event::Posted(Command::Send(send)), driver).expect("within the bounds");
        match actions.first() {
            Some(Action::Transmit { packet, .. }) => packet.marks.rendezvous_only,
            other => panic!("{other:?} instead of a packet"),
        }
    }

    pub(super) fn arrive_with_rendezvous_only(&mut self, rendezvous_only: bool) -> Vec<String> {
        let mut packet = Packet { granted_total: self.granted, ..Packet::new(Body::Credit, 0) };
        packet.marks.rendezvous_only = rendezvous_only;
        self.event(Event::Arrived { from: PEER, packet: &packet })
    }

    pub(super) fn finished(&mut self, transfer: u32, count: u32) -> Vec<String> {
        let transfer = Transfer::of_bounce_buffer(transfer);
        self.arrive_keeping_rendezvous_only(Body::Finished { transfer, count, refused: false })
    }

    pub(super) fn arrive_keeping_rendezvous_only(&mut self, body: Body) -> Vec<String> {
        let mut packet = Packet { granted_total: self.granted, ..Packet::new(body, 0) };
        packet.marks.rendezvous_only = true;
        self.event(Event::Arrived { from: PEER, packet: &packet })
    }

    /// Messages, bytes and acknowledgements that closing would lose.
    fn undelivered(&self) -> [u64; 3] {
        let all = self.machine.undelivered();
        let sum = |of: fn(&Undelivered) -> u64| all.iter().map(of).sum();
        [sum(|one| one.messages), sum(|one| one.bytes), sum(|one| one.acknowledgements)]
    }

    pub(super) fn inject(&mut self, request: u32, bytes: u64) -> Vec<String> {
        self.send_at(request, bytes, SendLevel::Injected)
    }
}

#[test]
fn undelivered_names_completed_sends_only() {
    let mut sender = with_credits(1);
    assert_eq!(sender.machine.undelivered(), []);
    sender.send(0, 8); // has left
    sender.send(1, 8); // waits; its program has no completion yet
    assert_eq!(sender.machine.undelivered(), []);
    assert!(sender.machine.has_undelivered() && sender.machine.has_incomplete());
    sender.inject(2, 8); // waits; its program has its completion
    let undelivered = Undelivered { peer: PEER, messages: 1, bytes: 8, acknowledgements: 0 };
    assert_eq!(sender.machine.undelivered(), [undelivered]);
    sender.granted = 1;
    sender.arrive_with_rendezvous_only(true); // the first message that waits is now in a bounce buffer, too
    assert_eq!(sender.undelivered(), [2, 16, 0]);
    assert!(!sender.machine.has_incomplete());
    sender.event(Event::Lost { peer: PEER, fault: PeerFault::Died });
    assert_eq!(sender.machine.undelivered(), [], "a lost peer gets no messages");
}

#[test]
fn an_injected_message_without_payload_that_waits_is_complete_and_undelivered() {
    let mut sender = with_credits(1);
    sender.send_at(0, 8, SendLevel::Delivered); // has left
    assert_eq!(sender.inject(1, 0), ["done 1"]);
    assert_eq!(sender.undelivered(), [1, 0, 0], "closing waits for it");
    sender.granted = 1;
    assert_eq!(sender.arrive(Body::Credit, 0), ["retire", "transmit eager 0"]);
    assert_eq!(sender.machine.undelivered(), []);
}

#[test]
fn a_match_complete_send_that_waits_is_not_complete() {
    for bytes in [0, 8, 40] {
        let mut sender = with_credits(1);
        sender.send_at(0, 8, SendLevel::Buffered); // has left
        assert_eq!(sender.send_at(1, bytes, SendLevel::Matched), [""; 0]);
        assert_eq!(sender.machine.undelivered(), [], "{bytes} bytes");
        assert!(sender.machine.has_incomplete());
        assert!(sender.machine.has_undelivered());
    }
}

#[test]
fn a_goodbye_voids_an_injected_message_without_payload() {
    let mut sender = with_credits(1);
    sender.send_at(0, 8, SendLevel::Delivered); // has left
    sender.inject(1, 0);
    sender.arrive(Body::Goodbye, 0);
    assert!(!sender.machine.has_undelivered(), "two closing endpoints do not wait for each other");
}

#[test]
fn a_receiver_over_budget_asks_for_rendezvous_only_until_half_is_free() {
    let mut receiver = nearly_full(16);
    for _ in 0..3 {
        receiver.eager(100, 100);
        assert!(!receiver.says_rendezvous_only(0));
    }
    receiver.eager(100, 100);
    assert!(receiver.says_rendezvous_only(1));
    // Three of four are left, then two, then one.
    for still in [true, true, false] {
        receiver.receive(2, 100, None);
        assert_eq!(receiver.says_rendezvous_only(3), still);
    }
}

#[test]
fn a_rendezvous_uses_no_unexpected_budget() {
    let mut receiver = nearly_full(16);
    for _ in 0..10 {
        receiver.rendezvous(1000, 1);
        receiver.eager(0, 0);
    }
    assert!(!receiver.says_rendezvous_only(0));
    assert_eq!(receiver.machine.counters().peak_budget_used_bytes, 0);
}

#[test]
fn senders_start_rendezvous_only_if_the_budget_cannot_reserve_for_all() {
    let quota_slots = 16;
    let mut receiver = nearly_full(quota_slots);
    let config = Config { planned_peers: 2, ..*receiver.machine.config() };
    receiver.machine = Endpoint::new(config);
    receiver.event(Event::Connected {
        peer: PEER,
        quota_slots,
        start_slots: quota_slots,
        credit_slots: 1,
        epoch: 0,
    });
    assert_eq!(receiver.send(0, 8), ["bounce 0", "transmit rendezvous 0", "done 0"]);
    assert!(receiver.says_rendezvous_only(1)); // no sender has attached
    receiver.event(Event::Attached { peer: PEER, quota_slots, start_slots: quota_slots, epoch: 0 });
    assert!(!receiver.says_rendezvous_only(2)); // the first fits
    receiver.event(Event::Connected {
        peer: Peer(2),
        quota_slots,
        start_slots: quota_slots,
        credit_slots: 1,
        epoch: 0,
    });
    receiver.event(Event::Attached { peer: Peer(2), quota_slots, start_slots: quota_slots, epoch: 0 });
    assert!(!receiver.says_rendezvous_only(3));
    let lost = Event::Lost { peer: PEER, fault: PeerFault::Closed };
    assert_eq!(receiver.event(lost), ["drop peer", "free bounce 0"]);
    receiver.event(Event::Connected {
        peer: Peer(3),
        quota_slots,
        start_slots: quota_slots,
        credit_slots: 1,
        epoch: 0,
    });
    receiver.event(Event::Attached { peer: Peer(3), quota_slots, start_slots: quota_slots, epoch: 0 });
    assert_eq!(
        receiver
            .machine
            .paths
            .peers
            .full_entries()
            .map(|peer| peer.path.grants.unreserved)
            .collect::<Vec<_>>(),
        [false, true, false]
    );
}

#[test]
fn a_rendezvous_only_send_uses_a_bounce_buffer_and_completes_at_once() {
    let mut sender = with_credits(8);
    assert_eq!(sender.arrive_with_rendezvous_only(true), ["retire"]);
    assert_eq!(sender.send(0, 1000), ["bounce 0", "transmit rendezvous 0", "done 0"]);
    assert_eq!(sender.send(0, 0), ["transmit eager 0", "done 0"]); // only an envelope in any case
    assert_eq!(sender.send(0, 1), ["bounce 1", "transmit rendezvous 0", "done 0"]);
    assert!(sender.machine.has_undelivered());
    assert_eq!(sender.finished(0, 2), ["free bounce 0", "free bounce 1", "retire"]);
    assert!(!sender.machine.has_undelivered() && sender.machine.is_quiescent());
    assert_eq!(sender.arrive_with_rendezvous_only(false), ["retire"]);
    assert_eq!(sender.send(0, 8), ["transmit eager 8", "done 0"]);
    assert_eq!(
        (sender.machine.counters().forced_rendezvous, sender.machine.counters().rendezvous_sent),
        (2, 0)
    );
}

#[test]
fn a_queued_message_becomes_a_rendezvous_if_its_credit_says_rendezvous_only() {
    let mut sender = with_credits(1);
    assert_eq!(sender.send(0, 100), ["transmit eager 16"]); // started: it continues eagerly
    assert_eq!(sender.send(1, 100), [""; 0]);
    sender.granted = 1;
    assert_eq!(sender.arrive_with_rendezvous_only(true), ["retire", "transmit more 32"]);
    sender.granted = 2;
    assert_eq!(sender.arrive_with_rendezvous_only(true), ["retire", "transmit more 32"]);
    sender.granted = 3;
    assert_eq!(sender.arrive_with_rendezvous_only(true), ["retire", "transmit more 20", "done 0"]);
    sender.granted = 4;
    assert_eq!(
        sender.arrive_with_rendezvous_only(true),
        ["retire", "bounce 0", "transmit rendezvous 0", "done 1"]
    );
}

#[test]
fn a_queued_injected_message_is_copied_once() {
    let mut sender = with_credits(1);
    assert_eq!(sender.inject(0, 8), ["transmit eager 8", "done 0"]);
    assert_eq!(sender.inject(1, 8), ["bounce 0", "done 1"]);
    assert_eq!(sender.inject(2, 8), ["bounce 1", "done 2"]);
    assert_eq!(sender.credits_back(1), ["retire", "transmit eager 8", "free bounce 0"]);
    sender.granted += 1;
    assert_eq!(sender.arrive_with_rendezvous_only(true), ["retire", "transmit rendezvous 0"]);
    assert_eq!(sender.finished(1, 1), ["free bounce 1", "retire", "credit total 1"]);
    assert!(sender.machine.is_quiescent());
}

#[test]
fn a_send_without_bounce_buffer_completes_when_the_receiver_has_it() {
    let mut sender = with_credits(8);
    sender.machine.paths.config.bounce_bytes = 0;
    let limited = Config { bounce_bytes: 132, ..*sender.machine.config() }; // one copy of up to 100 bytes
    sender.machine.payloads.bounce_buffers = BounceBuffers::new(&limited);
    sender.arrive_with_rendezvous_only(true);
    assert_eq!(sender.send(0, 90), ["bounce 0", "transmit rendezvous 0", "done 0"]);
    assert!(sender.may_fit_later(PEER, 8));
    assert!(sender.announces_user_buffer(PEER, 8, SendLevel::Injected));
    assert_eq!(sender.send(1, 8), ["transmit rendezvous 0"]);
    let taken = Body::Finished { transfer: Transfer(0), count: 1, refused: false };
    assert_eq!(sender.arrive_keeping_rendezvous_only(taken), ["done 1", "retire"]);
    assert_eq!(sender.finished(0, 1), ["free bounce 0", "retire"]);
    assert!(!sender.may_fit_later(PEER, 200)); // never fits
}

#[test]
fn a_delivered_send_to_a_receiver_without_memory_completes_when_the_receiver_has_it() {
    let taken = Body::Finished { transfer: Transfer(0), count: 1, refused: false };
    let mut sender = with_credits(8);
    sender.arrive_with_rendezvous_only(true);
    assert!(sender.announces_user_buffer(PEER, 1000, SendLevel::Delivered));
    assert_eq!(sender.send_at(0, 1000, SendLevel::Delivered), ["transmit rendezvous 0"]);
    assert_eq!(sender.arrive_keeping_rendezvous_only(taken), ["done 0", "retire"]);
    // The same for a message that waits when the receiver reports that it has no memory.
    let mut sender = with_credits(1);
    sender.send_at(0, 8, SendLevel::Delivered); // has left, so it is in the receiver's mailbox
    assert_eq!(sender.send_at(1, 8, SendLevel::Delivered), [""; 0]);
    sender.granted = 1;
    assert_eq!(sender.arrive_with_rendezvous_only(true), ["retire", "transmit rendezvous 0"]);
    assert_eq!(sender.machine.undelivered(), [], "its program has no completion yet");
    let lost = Event::Lost { peer: PEER, fault: PeerFault::Died };
    assert_eq!(sender.event(lost), ["drop peer", "lost 1"]);
}

#[test]
fn a_rendezvous_only_synchronous_send_completes_when_the_receiver_has_it() {
    let mut sender = with_credits(8);
    sender.arrive_with_rendezvous_only(true);
    assert_eq!(sender.send_at(0, 8, SendLevel::Matched), ["transmit rendezvous 0"]);
    let fetch = Body::Fetch { transfer: Transfer(0), reply: Transfer(5), length: 8 };
    assert_eq!(sender.arrive_keeping_rendezvous_only(fetch), ["transmit piece 8", "retire"]);
    let taken = Body::Finished { transfer: Transfer(0), count: 1, refused: false };
    assert_eq!(sender.arrive_keeping_rendezvous_only(taken), ["done 0", "retire"]);
}

#[test]
fn bounce_buffer_acknowledgements_are_coalesced_until_full_idle_or_goodbye() {
    let mut receiver = with_credits(64);
    let announce = |number| {
        let transfer = Transfer::of_bounce_buffer(number);
        Body::Rendezvous {
            space: Space::Tagged,
            tag: 0,
            data: None.into(),
            length: 8,
            address: RemoteAddress::without_key(1),
            transfer,
            sender: AnnouncementMarks::default(),
        }
    };
    let take = |receiver: &mut Bench, number| {
        receiver.receive(number, 8, None);
        receiver.arrive(announce(number), 0);
        receiver.event(Event::CopyDone { transfer: Transfer(0), result: Ok(()) })
    };
    for number in 0..15 {
        assert_eq!(take(&mut receiver, number), [format!("received {number} 8 at 0 last true")]);
    }
    assert_eq!(take(&mut receiver, 15), ["received 15 8 at 0 last true", "finished 16"]);
    assert!(!receiver.machine.has_undelivered());
    // Descending names form a range as well; other names need a packet each.
    for number in [18, 17, 16, 30] {
        take(&mut receiver, number);
    }
    assert!(receiver.machine.waits_for_idle());
    assert_eq!(receiver.event(Event::Idle), ["finished 3", "finished"]);
    assert!(!receiver.machine.waits_for_idle());
    take(&mut receiver, 40);
    assert_eq!(receiver.post(Command::Close), ["finished", "transmit goodbye 0"]);
}

#[test]
fn acknowledgements_without_credit_wait_in_little_memory_and_leave_first() {
    let mut receiver = with_credits(1);
    receiver.send(0, 8); // this spends the only credit
    receiver.send(1, 8); // waits
    for request in 2..100 {
        let write = Body::Write { transfer: Transfer(request), key: 0, offset: 0, left: 0, data: None };
        receiver.post(Command::RegisterMemory { key: 0, bytes: 8, readable: true, writable: true });
        receiver.arrive(write, 0);
    }
    assert_eq!(receiver.machine.backlogged(), 1);
    receiver.credit_packets_read = 1;
    assert_eq!(receiver.credits_back(1), ["retire", "credit total 98", "finished"]); // the message still waits
}

#[test]
fn a_goodbye_frees_bounce_buffers_and_queued_messages() {
    let mut sender = with_credits(1);
    sender.arrive_with_rendezvous_only(true);
    assert_eq!(sender.inject(0, 8), ["bounce 0", "transmit rendezvous 0", "done 0"]);
    assert_eq!(sender.inject(1, 8), ["bounce 1", "done 1"]);
    assert_eq!(sender.arrive_keeping_rendezvous_only(Body::Goodbye)[..2], ["free bounce 0", "free bounce 1"]);
    assert!(sender.machine.is_quiescent() && !sender.machine.has_undelivered());
    // It had received the first before it closed, and acknowledges late.
    assert_eq!(sender.finished(0, 1), ["retire"]);
}

#[test]
fn an_acknowledgement_of_an_unknown_or_unsent_bounce_buffer_is_rejected() {
    let wrong: [fn(&mut Bench) -> Vec<String>; 4] = [
        |sender| sender.finished(1, 1), // waits for credit
        |sender| sender.finished(7, 1), // there is none
        |sender| sender.finished(0, 0),
        |sender| {
            let fetch =
                Body::Fetch { transfer: Transfer::of_bounce_buffer(0), reply: Transfer(5), length: 8 };
            assert_eq!(sender.arrive_keeping_rendezvous_only(fetch), ["retire", "credit total 1"]);
            sender.finished(0, 1)
        },
    ];
    for act in wrong {
        let mut sender = with_credits(1);
        sender.arrive_with_rendezvous_only(true);
        sender.inject(0, 8);
        sender.inject(1, 8);
        let actions = act(&mut sender);
        assert_eq!(actions[..2], ["retire", "drop peer"], "{actions:?}");
        assert!(actions.contains(&"free bounce 1".into()));
    }
}

/// A receiver with a quota of four slots, which keeps three envelopes beyond its reservation.
fn with_three_envelopes() -> Bench {
    let mut bench = with_credits(4);
    let config = Config {
        envelope_budget_bytes: (4 + 3) * crate::config::ENVELOPE_BYTES,
        planned_quota_slots: 4,
        max_unexpected: 1000,
        ..*bench.machine.config()
    };
    bench.machine = Endpoint::new(config);
    let (quota_slots, start_slots) = (4, 4);
    bench.event(Event::Connected { peer: PEER, quota_slots, start_slots, credit_slots: 1, epoch: 0 });
    bench.event(Event::Attached { peer: PEER, quota_slots, start_slots, epoch: 0 });
    bench
}

impl Bench {
    /// A packet of a sender that reads all credits and heeds no mark. Returns whether it was lost by that.
    fn is_lost_by(&mut self, body: Body, bytes: u32) -> bool {
        let actions = self.arrive(body, bytes);
        let credits = actions.iter().filter(|action| action.starts_with("credit")).count();
        self.credit_packets_read += credits as u16;
        actions.iter().any(|action| action == "drop peer")
    }

    /// Up to `most` such packets without payload. Returns the number of those before which the sender was lost.
    fn packets_until_lost(&mut self, most: u32, body: Body) -> Option<u32> {
        (0..most).find(|_| self.is_lost_by(body, 0))
    }

    fn slots_of_sender(&self) -> u32 {
        self.machine.receiving(PEER).and_then(|receiving| receiving.current).expect("it is attached")
    }
}

/// A message of `length` bytes.
fn eager(length: u32) -> Body {
    Body::Eager { space: Space::Tagged, tag: 0, data: None, length, acknowledge: None }
}

/// An announcement of a message that its sender does not hold.
fn unheld() -> Body {
    let (space, transfer, sender) = (Space::Tagged, Transfer(7), AnnouncementMarks::default());
    let address = RemoteAddress::without_key(1);
    Body::Rendezvous { space, tag: 0, data: None.into(), length: 1 << 20, address, transfer, sender }
}

#[test]
fn a_sender_that_ignores_the_mark_is_lost_after_the_messages_that_it_may_have_sent_before() {
    for body in [eager(0), unheld()] {
        let mut receiver = with_three_envelopes();
        assert_eq!(receiver.packets_until_lost(4, body), None);
        assert!(receiver.machine.paths.budget.is_over_limit());
        let slots = receiver.slots_of_sender();
        assert_eq!(receiver.packets_until_lost(100, body), Some(slots), "each of them has taken a slot");
        assert_eq!(receiver.machine.counters().malformed_packets, 1);
    }
}

#[test]
fn what_a_sender_may_have_sent_before_the_mark_is_counted_anew_when_the_mark_has_ended() {
    let mut receiver = with_three_envelopes();
    for _ in 0..20 {
        assert_eq!(receiver.packets_until_lost(4, eager(0)), None);
        assert!(receiver.machine.paths.budget.is_over_limit());
        let slots = receiver.slots_of_sender();
        assert_eq!(receiver.packets_until_lost(slots, eager(0)), None);
        for request in 0..4 + slots {
            receiver.receive(request, 8, None);
        }
        assert!(!receiver.machine.paths.budget.is_over_limit());
    }
}

#[test]
fn a_sender_that_ignores_the_mark_does_not_exceed_the_budget() {
    for (quota_slots, length) in [(2, 30), (16, 100), (16, 1000)] {
        let mut receiver = nearly_full(quota_slots);
        receiver.machine.paths.config.max_unexpected = 1 << 20;
        let lost = (0..1 << 10).find(|_| {
            let first = length.min(100);
            let parts = (first..length).step_by(100).map(|offset| Body::More { offset });
            let packets = core::iter::once(eager(length)).chain(parts);
            packets.into_iter().any(|body| receiver.is_lost_by(body, first))
        });
        assert!(
            lost.is_some() && receiver.machine.paths.budget.is_over_limit(),
            "messages of {length} bytes"
        );
        let used_bytes = receiver.machine.counters().peak_budget_used_bytes;
        let budget_bytes = receiver.machine.config().unexpected_budget_bytes;
        assert!(used_bytes <= budget_bytes, "{used_bytes} of {budget_bytes} bytes");
    }
}

#[test]
fn a_message_longer_than_the_reservation_is_refused_if_the_budget_has_no_memory_for_it() {
    let mut receiver = nearly_full(16);
    assert_eq!(receiver.eager(1 << 20, 100), ["retire", "drop peer"]);
    assert_eq!(receiver.machine.counters().malformed_packets, 1);
}

#[test]
fn peers_of_a_closing_endpoint_cannot_heed_its_mark() {
    let mut receiver = with_three_envelopes();
    receiver.post(Command::Close);
    assert_eq!(receiver.packets_until_lost(100, eager(0)), None);
}
