//! Holding: a receiver without space for envelopes, and a sender that holds messages for it.

use super::super::backlog::BacklogEntry;
use super::*;
use crate::config::{ENVELOPE_BYTES, PEER_BYTES};

/// An endpoint that keeps `envelopes` envelopes, with credits at its peer.
fn with_envelopes(envelopes: u64) -> Bench {
    with_envelopes_in(Scheme::Static { piggyback: true }, envelopes, 4000) // no credits return in these tests
}

fn with_envelopes_in(scheme: Scheme, envelopes: u64, slots: u32) -> Bench {
    let mut bench = with_credits(8);
    let config = Config {
        scheme,
        envelope_budget_bytes: envelopes * ENVELOPE_BYTES,
        planned_peers: 0,
        ..*bench.machine.config()
    };
    bench.machine = Endpoint::new(config);
    for peer in [PEER, Peer(2)] {
        let (quota_slots, start_slots) = (slots, slots);
        bench.event(Event::Connected { peer, quota_slots, start_slots, credit_slots: 1, epoch: 0 });
        bench.event(Event::Attached { peer, quota_slots, start_slots, epoch: 0 });
    }
    bench
}

impl Bench {
    fn packet(&mut self, from: Peer, number: u32, body: Body) -> Vec<String> {
        let marks = crate::packet::Marks { rendezvous_only: true, backlogged: false };
        let packet = Packet { number, marks, ..Packet::new(body, 0) };
        self.event(Event::Arrived { from, packet: &packet })
    }

    /// An announcement of an empty message.
    fn held(&mut self, from: Peer, number: u32, tag: u64, held: bool) -> Vec<String> {
        self.announced(from, number, tag, held, false)
    }

    fn announced(
        &mut self,
        from: Peer,
        number: u32,
        tag: u64,
        held: bool,
        awaits_match: bool,
    ) -> Vec<String> {
        let (space, transfer) = (Space::Tagged, Transfer(number));
        let body = Body::Rendezvous {
            space,
            tag,
            data: None.into(),
            length: 0,
            address: RemoteAddress::NONE,
            transfer,
            sender: AnnouncementMarks::new(held, awaits_match),
        };
        self.packet(from, number, body)
    }

    fn offer(&mut self, from: Peer, number: u32, tag: u64) -> Vec<String> {
        self.offer_that_was(false, from, number, tag)
    }

    /// An offer of message 0 with tag 5 to a peek.
    fn offer_seen(&mut self, from: Peer, seen: bool) -> Vec<String> {
        self.offer_that_was(seen, from, 0, 5)
    }

    fn offer_that_was(&mut self, seen: bool, from: Peer, number: u32, tag: u64) -> Vec<String> {
        let (space, transfer, address) = (Space::Tagged, Transfer(number), RemoteAddress::NONE);
        let body = Body::Offer { space, tag, data: None.into(), length: 0, address, transfer, seen };
        self.packet(from, number, body)
    }

    /// An offer with a payload of `bytes` bytes.
    fn eager_offer(&mut self, from: Peer, number: u32, tag: u64, bytes: u32) -> Vec<String> {
        let (space, transfer, data) = (Space::Tagged, Transfer(number), None.into());
        let body = Body::EagerOffer { space, tag, data, length: bytes, transfer };
        let packet = Packet { number, ..Packet::new(body, bytes) };
        self.event(Event::Arrived { from, packet: &packet })
    }

    /// The longest message that the answer to this question may carry.
    fn asked_carry_bytes(&mut self, command: Command) -> Vec<u32> {
        let mut actions = Vec::new();
        let driver = Recorder::new(self.now, &mut actions);
        self.machine.handle(Event::Posted(command), driver).expect("within the bounds");
        let carried = |action| match action {
            Action::Transmit { packet: Packet { body: Body::Ask { carry_bytes, .. }, .. }, .. } => {
                Some(carry_bytes)
            }
            _ => None,
        };
        actions.into_iter().filter_map(carried).collect()
    }

    fn receive_tag(&mut self, request: u32, from: Option<Peer>, tag: u64) -> Vec<String> {
        let pattern = Pattern { space: Space::Tagged, from, tag, ignore: 0 };
        let request = Request(request);
        self.post(Command::Receive(ReceiveCommand { request, pattern, capacity_bytes: 8, multi: None }))
    }

    fn ask(&mut self, first: u32, tag: u64) -> Vec<String> {
        self.ask_for(first, tag, 0)
    }

    fn ask_for(&mut self, first: u32, tag: u64, carry_bytes: u32) -> Vec<String> {
        self.packet(PEER, first, Body::Ask { space: Space::Tagged, tag, ignore: 0, carry_bytes, look: false })
    }
}

fn receive(request: u32, from: Option<Peer>) -> Command {
    let pattern = Pattern { space: Space::Tagged, from, tag: 5, ignore: 0 };
    Command::Receive(ReceiveCommand { request: Request(request), pattern, capacity_bytes: 8, multi: None })
}

fn peek(request: u32, then: PeekThen) -> Command {
    let pattern = Pattern { space: Space::Tagged, from: None, tag: 5, ignore: 0 };
    Command::Peek { request: Request(request), pattern, then }
}

#[test]
fn the_state_of_a_peer_fits_into_its_constant() {
    use super::super::hold_queue::HoldQueue;
    use super::super::holders::Holder;
    use super::super::pending::PendingWork;

    // A node of a map is between half full and full. The engine keeps 64 B of address and some 10 B to find it.
    let holder = 2 * size_of::<(Peer, Holder)>();
    let answers = size_of::<PendingWork>() + size_of::<HoldQueue>() + size_of::<BacklogEntry>();
    // A vector that grows is at least half full.
    let account = 2 * crate::flow::demand_credits::SENDER_BYTES;
    let allowance = 2 * size_of::<(Peer, super::super::budget::Allowance)>();
    let bytes = size_of::<PeerEntry>() + answers + holder + account + allowance + 74;
    assert!(bytes as u64 <= PEER_BYTES, "{bytes}");
}

const RETIRE: &str = "retire";

#[test]
fn a_receiver_drops_envelopes_beyond_its_budget_and_asks_for_them() {
    let mut receiver = with_envelopes(1);
    assert_eq!(receiver.held(PEER, 0, 5, true), ["finished", RETIRE]); // kept
    assert_eq!(receiver.held(PEER, 1, 6, true), [RETIRE]); // dropped
    assert_eq!(receiver.machine.unexpected_count(), 1);
    assert_eq!(receiver.receive_tag(0, None, 6), ["transmit ask 0"]);
    let taken = receiver.offer(PEER, 1, 6);
    assert_eq!(taken, ["received 0 0 at 0 last true", "finished", RETIRE]);
    // Nothing is dropped any more: the next receive asks nobody.
    assert_eq!(receiver.receive_tag(1, None, 6), [""; 0]);
    assert!(receiver.machine.is_quiescent());
}

#[test]
fn a_sender_that_attaches_after_a_promise_reads_the_mark_until_the_promise_ends() {
    let config = *with_envelopes(2).machine.config();
    let envelope = crate::action::Envelope { from: Peer(1), tag: 0, data: None, length: 8 };
    for is_kept in [true, false] {
        let mut budget = super::super::budget::Budget::new(&config);
        budget.promise(2);
        assert!(!budget.is_over_limit(), "the promises fit");
        assert!(budget.attach(&config, 1).is_some(), "no envelope is kept yet");
        assert!(budget.is_over_limit(), "two envelopes that are promised, and one of the new sender");
        if is_kept {
            budget.keep_promise();
            budget.charge(&envelope, false);
            assert!(budget.is_over_limit());
            budget.refund(&envelope, false);
            assert!(budget.is_over_limit(), "half of what is free is not reached");
        } else {
            budget.end_promise(1);
            assert!(budget.is_over_limit());
        }
        budget.end_promise(1);
        assert!(!budget.is_over_limit());
    }
}

#[test]
fn a_message_of_no_bytes_is_finished_when_its_envelope_is_kept() {
    let mut receiver = with_envelopes(2);
    assert_eq!(receiver.held(PEER, 0, 5, true), ["finished", RETIRE]);
    // Its sender waits for the match.
    assert_eq!(receiver.announced(PEER, 1, 6, true, true), [RETIRE]);
    assert_eq!(receiver.held(PEER, 2, 7, true), [RETIRE]); // dropped
    let found = receiver.receive_tag(0, None, 5);
    assert_eq!(found, ["received 0 0 at 0 last true", "resume 1"]);
    let found = receiver.receive_tag(1, None, 6);
    assert_eq!(found, ["received 1 0 at 0 last true", "finished"]);
    // Announced again, it is kept.
    assert_eq!(receiver.held(PEER, 2, 7, false), ["finished", RETIRE]);
    assert_eq!(receiver.receive_tag(2, None, 7), ["received 2 0 at 0 last true"]);
    assert!(receiver.machine.is_quiescent());
}

#[test]
fn a_kept_message_of_no_bytes_survives_its_sender() {
    let mut receiver = with_envelopes(1);
    receiver.held(PEER, 0, 5, true);
    receiver.event(Event::Lost { peer: PEER, fault: PeerFault::Died });
    assert_eq!(receiver.receive_tag(0, Some(PEER), 5), ["received 0 0 at 0 last true"]);
}

#[test]
fn a_sender_says_whether_a_message_that_it_holds_waits_for_the_match() {
    let mut sender = with_envelopes(0);
    sender.packet(PEER, 0, Body::Credit);
    let sent = |sender: &mut Bench, event: Event<'_>| {
        let mut actions = Vec::new();
        let driver = Recorder::new(sender.now, &mut actions);
        sender.machine.handle(event, driver).expect("within the bounds");
        let rendezvous = |action| match action {
            Action::Transmit { packet: Packet { body: Body::Rendezvous { sender, .. }, .. }, .. } => {
                Some(sender.awaits_match())
            }
            _ => None,
        };
        actions.into_iter().filter_map(rendezvous).collect::<Vec<_>>()
    };
    let levels = [SendLevel::Injected, SendLevel::Buffered, SendLevel::Delivered, SendLevel::Matched];
    let mut waits = Vec::new();
    for (request, level) in (0..).zip(levels) {
        let (to, space, request) = (PEER, Space::Tagged, Request(request));
        let send = SendCommand { request, to, space, tag: 0, data: None, bytes: 0, level };
        waits.extend(sent(&mut sender, Event::Posted(Command::Send(send))));
    }
    assert_eq!(waits, [false, false, false, true]);
    let resume = Packet::new(Body::Resume { count: 4 }, 0);
    let again = sent(&mut sender, Event::Arrived { from: PEER, packet: &resume });
    assert_eq!(again, waits);
    // The receiver keeps the first three, and matches the last one later.
    let finished = |transfer, count| Body::Finished { transfer, count, refused: false };
    let bounced = finished(Transfer::of_bounce_buffer(0), 2);
    assert_eq!(sender.packet(PEER, 0, bounced), ["free bounce 0", "free bounce 1", RETIRE]);
    let names: Vec<_> = sender.machine.payloads.transfers.with_peer(PEER);
    assert_eq!(sender.packet(PEER, 0, finished(names[0], 1)), ["done 2", RETIRE]);
    assert_eq!(sender.packet(PEER, 0, finished(names[1], 1)), ["done 3", RETIRE]);
    assert!(!sender.machine.has_undelivered() && sender.machine.is_quiescent());
}

#[test]
fn a_message_that_an_undecided_receive_accepts_waits_for_the_answer() {
    let mut receiver = with_envelopes(0);
    receiver.held(PEER, 0, 5, true);
    assert_eq!(receiver.receive_tag(0, Some(PEER), 6), ["transmit ask 0"]);
    assert_eq!(receiver.held(PEER, 1, 6, true), [RETIRE]); // an older one may match
    assert_eq!(receiver.packet(PEER, 0, Body::NoMatch), [RETIRE]);
    // Message 1 left after the answer was made, so the sender cannot have sent it before: a message now matches.
    assert_eq!(receiver.held(PEER, 2, 6, true)[0], "received 0 0 at 0 last true");
}

#[test]
fn an_offer_of_a_message_that_arrived_after_the_question_is_asked_for_again() {
    let mut receiver = with_envelopes(0);
    receiver.receive_tag(0, Some(PEER), 6); // before anything is dropped: decided
    receiver.held(PEER, 0, 5, true);
    assert_eq!(receiver.receive_tag(1, Some(PEER), 6), ["transmit ask 0"]);
    assert_eq!(receiver.held(PEER, 1, 6, true)[0], "received 0 0 at 0 last true");
    // The sender searched before it read the acknowledgement.
    assert_eq!(receiver.offer(PEER, 1, 6), ["transmit ask 0", RETIRE]);
    assert_eq!(receiver.packet(PEER, 0, Body::NoMatch), [RETIRE]);
    assert_eq!(receiver.machine.posted_receive(Space::Tagged, 0), Some(Request(1)));
}

#[test]
fn the_offer_of_a_holder_that_came_second_stays_with_it() {
    let mut receiver = with_envelopes(0);
    receiver.held(PEER, 0, 5, true);
    receiver.held(Peer(2), 0, 5, true);
    assert_eq!(receiver.receive_tag(0, None, 5), ["transmit ask 0", "transmit ask 0"]);
    assert_eq!(receiver.offer(PEER, 0, 5)[0], "received 0 0 at 0 last true");
    assert_eq!(receiver.offer(Peer(2), 0, 5), [RETIRE]);
    // The next receive asks the other holder, which still has it.
    assert_eq!(receiver.receive_tag(1, None, 5), ["transmit ask 0"]);
    assert_eq!(receiver.offer(Peer(2), 0, 5)[0], "received 1 0 at 0 last true");
    assert!(receiver.machine.is_quiescent());
}

#[test]
fn an_offer_for_a_receive_that_is_gone_serves_the_next_one_with_the_same_pattern() {
    let mut receiver = with_envelopes(0);
    receiver.held(PEER, 0, 5, true);
    receiver.receive_tag(0, None, 5);
    receiver.receive_tag(1, None, 5);
    receiver.post(Command::Cancel { request: Request(0) });
    assert_eq!(receiver.offer(PEER, 0, 5)[0], "received 1 0 at 0 last true");
    assert!(receiver.machine.is_quiescent());
}

#[test]
fn a_canceled_receive_leaves_the_offered_message_with_its_holder() {
    let mut receiver = with_envelopes(0);
    receiver.held(PEER, 0, 5, true);
    receiver.receive_tag(0, None, 5);
    assert_eq!(receiver.post(Command::Cancel { request: Request(0) }), ["canceled 0"]);
    assert_eq!(receiver.offer(PEER, 0, 5), [RETIRE]);
    assert_eq!(receiver.receive_tag(1, None, 5), ["transmit ask 0"]);
}

#[test]
fn a_drain_from_anybody_asks_far_fewer_questions_than_it_receives_messages() {
    const MESSAGES: u32 = 400;
    let mut receiver = with_envelopes(64);
    receiver.machine.paths.config.max_unexpected = 1000;
    for number in 0..MESSAGES {
        receiver.held(PEER, number, 5, true);
    }
    let kept = receiver.machine.unexpected_count();
    assert_eq!(kept, 64);
    let mut next = kept;
    for request in 0..MESSAGES {
        let actions = receiver.receive_tag(request, None, 5);
        assert!(actions.iter().any(|action| action.starts_with("received")), "{request}: {actions:?}");
        let resumed = actions.iter().find_map(|action| action.strip_prefix("resume "));
        for _ in 0..resumed.map_or(0, |count| count.parse().expect("a count")) {
            receiver.held(PEER, next, 5, false);
            next += 1;
        }
    }
    assert_eq!(next, MESSAGES);
    let requests = receiver.machine.counters().holder_requests_sent;
    assert!(requests <= u64::from(MESSAGES / 20), "{requests} requests for {MESSAGES} messages");
}

#[test]
fn a_lost_holder_takes_its_messages_along() {
    let mut receiver = with_envelopes(0);
    receiver.held(PEER, 0, 5, true);
    receiver.receive_tag(0, Some(PEER), 5);
    let lost = receiver.event(Event::Lost { peer: PEER, fault: PeerFault::Died });
    assert!(lost.contains(&"lost 0".into()), "{lost:?}");
    assert!(receiver.machine.is_quiescent());
}

#[test]
fn a_peek_waits_for_all_holders_and_reports_what_one_offers() {
    let mut receiver = with_envelopes(0);
    receiver.held(PEER, 0, 5, true);
    receiver.held(Peer(2), 0, 5, true);
    let peek = |request, tag| {
        let pattern = Pattern { space: Space::Tagged, from: None, tag, ignore: 0 };
        Command::Peek { request: Request(request), pattern, then: PeekThen::Leave }
    };
    assert_eq!(receiver.post(peek(0, 6)), ["transmit ask 0", "transmit ask 0"]);
    assert_eq!(receiver.packet(PEER, 0, Body::NoMatch), [RETIRE]);
    assert_eq!(receiver.packet(Peer(2), 0, Body::NoMatch), ["absent 0", RETIRE]);
    receiver.post(peek(1, 5));
    assert_eq!(receiver.offer(PEER, 0, 5)[0], "found 1");
}

#[test]
fn an_answer_that_was_not_asked_for_is_rejected() {
    for body in
        [Body::NoMatch, Body::Ask { space: Space::Tagged, tag: 0, ignore: 0, carry_bytes: 0, look: false }]
    {
        let mut receiver = with_envelopes(0);
        receiver.held(PEER, 0, 5, true);
        // A question is no answer: it is answered.
        let answered = matches!(body, Body::Ask { .. });
        let actions = receiver.packet(PEER, 0, body);
        assert_eq!(actions.contains(&"drop peer".into()), !answered, "{actions:?}");
    }
    let mut receiver = with_envelopes(0);
    receiver.held(PEER, 0, 5, true);
    // An announcement without `held` that nobody has asked for would overtake message 0.
    assert!(receiver.held(PEER, 1, 5, false).contains(&"drop peer".into()));
}

#[test]
fn a_sender_holds_what_it_announces_until_the_receiver_has_it() {
    let mut sender = with_envelopes(0);
    sender.packet(PEER, 0, Body::Credit);
    assert_eq!(sender.send(0, 8), ["bounce 0", "transmit rendezvous 0", "done 0"]);
    assert_eq!(sender.send(1, 0), ["bounce 1", "transmit rendezvous 0", "done 1"]);
    assert_eq!(sender.machine.counters().held_messages, 2);
    assert_eq!(sender.ask(0, 0)[1..], ["transmit offer 0"]);
    // It stays where it is.
    assert_eq!(sender.ask(0, 0)[1..], ["transmit offer 0"]);
    assert_eq!(sender.ask(0, 3)[1..], ["transmit no match 0"]);
    assert_eq!(sender.packet(PEER, 1, Body::Resume { count: 1 })[1..], ["transmit rendezvous 0"]);
    // Both are with the receiver now: nothing is held.
    assert_eq!(sender.ask(2, 0)[1..], ["transmit no match 0"]);
    assert!(sender.machine.has_undelivered());
}

#[test]
fn message_numbers_may_wrap_while_messages_are_held() {
    let mut sender = with_envelopes(0);
    sender.packet(PEER, 0, Body::Credit);
    sender.machine.paths.peer(PEER).next_number = u32::MAX;
    sender.send(0, 8); // number 2^32 - 1
    sender.send(1, 8); // number 0
    // The receiver keeps the first one: only the second is announced again.
    assert_eq!(sender.packet(PEER, 0, Body::Resume { count: 9 })[1..], ["transmit rendezvous 0"]);

    let mut receiver = with_envelopes(0);
    receiver.held(PEER, u32::MAX, 5, true);
    receiver.held(PEER, 0, 5, true);
    receiver.receive_tag(0, None, 5);
    assert_eq!(receiver.offer(PEER, u32::MAX, 5)[0], "received 0 0 at 0 last true");
    receiver.receive_tag(1, None, 5);
    assert_eq!(receiver.offer(PEER, 0, 5)[0], "received 1 0 at 0 last true");
    assert!(receiver.machine.is_quiescent());
}

#[test]
fn a_goodbye_frees_held_messages_and_their_memory() {
    let mut sender = with_envelopes(0);
    sender.packet(PEER, 0, Body::Credit);
    sender.send(0, 8);
    sender.send_at(1, 8, SendLevel::Delivered);
    assert!(sender.machine.payloads.bounce_buffers.used_bytes() >= 8 + ENVELOPE_BYTES);
    let actions = sender.packet(PEER, 0, Body::Goodbye);
    assert!(actions.contains(&"free bounce 0".into()) && actions.contains(&"lost 1".into()), "{actions:?}");
    assert_eq!(sender.machine.payloads.bounce_buffers.used_bytes(), 0);
    assert!(sender.machine.is_quiescent() && !sender.machine.has_undelivered());
    // It had asked before it closed.
    assert_eq!(sender.ask(0, 0), [RETIRE]);
}

#[test]
fn a_claim_ends_only_the_message_of_its_number() {
    let mut sender = with_envelopes(0);
    sender.packet(PEER, 0, Body::Credit);
    sender.send(0, 8);
    let transfer = Transfer::of_bounce_buffer(0);
    // The receiver has claimed and received message 0. Its acknowledgement overtakes the claim.
    sender.packet(PEER, 0, Body::Finished { transfer, count: 1, refused: false });
    assert_eq!(sender.send(1, 8)[0], "bounce 0"); // the name of message 0
    sender.packet(PEER, 0, Body::Claimed { transfer });
    assert_eq!(sender.ask(1, 0)[1..], ["transmit offer 0"]);
    sender.packet(PEER, 1, Body::Claimed { transfer });
    assert_eq!(sender.ask(2, 0)[1..], ["transmit no match 0"]);
}

#[test]
fn an_answer_that_waits_for_credit_counts_as_demand() {
    let mut sender = with_envelopes_in(Scheme::Demand, 0, 1);
    sender.packet(PEER, 0, Body::Credit);
    assert_eq!(sender.send(0, 8)[1], "transmit rendezvous 0"); // the only credit
    let demand = |sender: &Bench| {
        let paths = &sender.machine.paths;
        let state = paths.peers.full_entry(PEER.0 as usize).expect("an entry");
        state.announced_demand(&paths.config.geometry, &paths.pool)
    };
    assert_eq!(demand(&sender), 1);
    sender.ask(0, 0);
    assert_eq!(demand(&sender), 2, "the spent slot and that of the answer");
}

#[test]
fn a_holder_answers_with_a_small_message_and_holds_it_until_it_is_acknowledged() {
    let mut sender = with_envelopes(0);
    sender.packet(PEER, 0, Body::Credit);
    sender.send(0, 60);
    assert_eq!(sender.ask_for(0, 0, 59)[1..], ["transmit offer 0"]);
    for _ in 0..2 {
        assert_eq!(sender.ask_for(0, 0, 60)[1..], ["transmit eager offer 60"]);
    }
    assert_eq!(sender.ask_for(0, 3, 60)[1..], ["transmit no match 0"]);
    let transfer = Transfer::of_bounce_buffer(0);
    sender.packet(PEER, 0, Body::Finished { transfer, count: 1, refused: false });
    assert_eq!(sender.ask_for(1, 0, 60)[1..], ["transmit no match 0"]);
}

#[test]
fn a_message_that_needs_more_slots_than_credits_is_offered_without_payload() {
    let mut sender = with_envelopes_in(Scheme::Static { piggyback: true }, 0, 4);
    sender.packet(PEER, 0, Body::Credit);
    sender.send(0, 60);
    assert_eq!(sender.ask_for(0, 0, 60)[1..], ["transmit eager offer 60"]); // 2 slots, 1 is left
    assert_eq!(sender.ask_for(0, 0, 60)[1..], ["transmit offer 0"]);
}

#[test]
fn a_receive_takes_what_an_eager_offer_carries_and_a_longer_message_is_truncated() {
    for (bytes, placed) in [(8, 8), (20, 8)] {
        let mut receiver = with_envelopes(0);
        receiver.held(PEER, 0, 5, true);
        receiver.held(PEER, 1, 5, true);
        receiver.post(receive(0, Some(PEER)));
        let taken = receiver.eager_offer(PEER, 0, 5, bytes);
        let received = format!("received 0 {placed} at 0 last true");
        assert_eq!(taken, [format!("place {placed}"), received, "finished".into(), RETIRE.into()]);
        assert_eq!(receiver.post(receive(1, Some(PEER))), ["transmit ask 0"]);
        assert_eq!(receiver.eager_offer(PEER, 1, 5, 0)[0], "received 1 0 at 0 last true");
        assert!(receiver.machine.is_quiescent());
    }
}

#[test]
fn an_eager_offer_that_no_receive_takes_stays_with_its_holder() {
    let mut receiver = with_envelopes(0);
    receiver.held(PEER, 0, 5, true);
    receiver.held(Peer(2), 0, 5, true);
    receiver.post(receive(0, None));
    assert_eq!(receiver.eager_offer(PEER, 0, 5, 8)[1], "received 0 8 at 0 last true");
    assert_eq!(receiver.eager_offer(Peer(2), 0, 5, 8), [RETIRE]);
    receiver.post(receive(1, None));
    receiver.post(Command::Cancel { request: Request(1) });
    assert_eq!(receiver.eager_offer(Peer(2), 0, 5, 8), [RETIRE]);
    // It has arrived after the question: an older receive may have taken it.
    receiver.post(receive(2, None));
    assert_eq!(receiver.eager_offer(Peer(2), 1, 5, 8), ["transmit ask 0", RETIRE]);
    assert_eq!(receiver.eager_offer(Peer(2), 0, 5, 8)[1], "received 2 8 at 0 last true");
    assert!(receiver.machine.is_quiescent());
}

#[test]
fn eager_offers_fill_a_multi_receive_buffer_in_order() {
    let mut receiver = with_envelopes(0);
    for number in 0..3 {
        receiver.held(PEER, number, 5, true);
    }
    let pattern = Pattern { space: Space::Tagged, from: Some(PEER), tag: 5, ignore: 0 };
    let (capacity_bytes, multi) = (20, Some(1));
    let request = Request(0);
    receiver.post(Command::Receive(ReceiveCommand { request, pattern, capacity_bytes, multi }));
    for (number, offset) in [(0, 0), (1, 8)] {
        let taken = receiver.eager_offer(PEER, number, 5, 8);
        assert_eq!(taken[..2], ["place 8".into(), format!("received 0 8 at {offset} last false")]);
        assert!(taken.contains(&"transmit ask 0".into()), "{taken:?}");
    }
    // The third one does not fit: it closes the buffer and stays with its holder.
    assert_eq!(receiver.eager_offer(PEER, 2, 5, 8), ["released 0", RETIRE]);
    receiver.post(receive(1, None));
    assert_eq!(receiver.eager_offer(PEER, 2, 5, 8)[1], "received 1 8 at 0 last true");
}

#[test]
fn a_question_says_how_long_a_message_the_answer_may_carry() {
    let mut receiver = with_envelopes(0);
    receiver.held(PEER, 0, 5, true);
    assert_eq!(receiver.asked_carry_bytes(receive(0, None)), [100]); // one holder
    receiver.packet(PEER, 0, Body::NoMatch);
    receiver.held(Peer(2), 0, 6, true);
    assert_eq!(receiver.asked_carry_bytes(receive(1, Some(Peer(2)))), [100]);
    receiver.packet(Peer(2), 0, Body::NoMatch);
    // Only one of two answers is taken: neither fills more than a slot.
    assert_eq!(receiver.asked_carry_bytes(receive(2, None)), [8, 8]);
    for holder in [PEER, Peer(2)] {
        receiver.packet(holder, 0, Body::NoMatch);
    }
    assert_eq!(receiver.asked_carry_bytes(peek(3, PeekThen::Claim)), [0, 0]);
}

#[test]
fn an_eager_offer_to_a_peek_is_rejected() {
    let mut receiver = with_envelopes(0);
    receiver.held(PEER, 0, 5, true);
    receiver.post(peek(0, PeekThen::Leave));
    assert!(receiver.eager_offer(PEER, 0, 5, 8).contains(&"drop peer".into()));
}

#[test]
fn a_peek_for_messages_seen_before_asks_all_holders() {
    let mut receiver = with_envelopes(0);
    receiver.held(PEER, 0, 5, true);
    receiver.held(Peer(2), 0, 5, true);
    let then = PeekThen::LeaveUntilSeenTwice;
    receiver.post(peek(0, then));
    assert_eq!(receiver.offer_seen(PEER, false), [RETIRE]);
    assert_eq!(receiver.offer_seen(Peer(2), true)[0], "found 0");
    receiver.post(peek(1, then));
    assert_eq!(receiver.offer_seen(PEER, false), [RETIRE]);
    assert_eq!(receiver.offer_seen(Peer(2), false)[0], "absent 1");
}
