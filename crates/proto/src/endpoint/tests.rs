//! Tests of the exact actions of one machine. Longer scenarios are in `tests/`.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::bounce::BounceBuffers;
use super::peer_entry::PeerEntry;
use super::*;
use crate::action::{Action, MemoryCopy, Outcome};
use crate::config::{AttachPolicy, Config, DataRegion, MAX_EAGER_BYTES, MAX_REMOTE_OPERATIONS, Scheme};
use crate::driver::Recorder;
use crate::event::{
    MessageId, Pattern, PeekThen, Peer, PeerFault, ReceiveCommand, RemoteCommand, Request, SendCommand,
    SendLevel, Transfer,
};
use crate::offload::atomics::MAX_ATOMICS;
use crate::packet::{Body, Geometry, Packet, Space};
use crate::time::Instant;
use crate::timers::TimerQueue;

/// An endpoint under test, its time, and its actions in short form.
struct Bench {
    machine: Endpoint,
    now: Instant,
    timers: TimerQueue,
    granted: u32,
    credit_packets_read: u16,
}

mod geometry;
mod machines;
mod schemes;

const PEER: Peer = Peer(1);
/// The region in tests with dynamic credits.
const REGION: DataRegion = DataRegion {
    slots: 8,
    peers: 2,
    start_slots: 1,
    attach_policy: AttachPolicy::FirstContact,
    grace_points: 0,
};

fn bench(scheme: Scheme, quota_slots: u32) -> Bench {
    let start_slots = if let Scheme::Dynamic { .. } = scheme { REGION.start_slots } else { quota_slots };
    bench_with(scheme, start_slots, quota_slots)
}

fn bench_with(scheme: Scheme, start_slots: u32, quota_slots: u32) -> Bench {
    let config = Config {
        scheme,
        geometry: Geometry { max_packet_slots: 4, ..Geometry::SHARED_MEMORY },
        credit_slots: 1,
        region: REGION,
        eager_bytes: 1000,
        cross_memory: true,
        remote_inline_bytes: 100,
        max_backlog: u32::MAX,
        max_unexpected: 4,
        unexpected_budget_bytes: 1 << 20,
        bounce_bytes: 1 << 20,
        planned_peers: 1,
        planned_quota_slots: 64,
    };
    let mut bench = Bench {
        machine: Endpoint::new(config),
        now: Instant(0),
        timers: TimerQueue::default(),
        granted: 0,
        credit_packets_read: 0,
    };
    let connected = Event::Connected { peer: PEER, quota_slots, start_slots, credit_slots: 1, epoch: 0 };
    assert_eq!(bench.event(connected), [""; 0]);
    assert_eq!(bench.event(Event::Attached { peer: PEER, quota_slots, start_slots, epoch: 0 }), [""; 0]);
    bench
}

fn with_credits(quota_slots: u32) -> Bench {
    bench(Scheme::Static { piggyback: true }, quota_slots)
}

fn short(action: &Action) -> String {
    match action {
        Action::Transmit { packet, .. } => {
            let kind = match packet.body {
                Body::Eager { .. } => "eager",
                Body::More { .. } => "more",
                Body::Rendezvous { .. } => "rendezvous",
                Body::Credit => return format!("credit total {}", packet.granted_total),
                Body::Finished { refused: true, .. } => return "refused".into(),
                Body::Finished { count: 1, .. } => return "finished".into(),
                Body::Finished { count, .. } => return format!("finished {count}"),
                Body::Fetch { .. } => "fetch",
                Body::Piece { .. } => "piece",
                Body::Write { .. } => "write",
                Body::Read { .. } => "read",
                Body::Locate { .. } => "locate",
                Body::Located { .. } => "located",
                Body::Written { .. } => "written",
                Body::Offloaded(_) => "offloaded",
                Body::Goodbye => "goodbye",
                Body::ReturnRequest => "return request",
                Body::Detach => return "detach".into(),
                Body::ReturnResponse { .. } => "return response",
            };
            format!("transmit {kind} {}", packet.payload_bytes)
        }
        Action::Complete { request, outcome } => {
            let how = match outcome {
                Outcome::Done => "done",
                Outcome::Received { bytes, offset, last, .. } => {
                    return format!("received {} {bytes} at {offset} last {last}", request.0);
                }
                Outcome::Released => "released",
                Outcome::Found { .. } => "found",
                Outcome::Absent => "absent",
                Outcome::Canceled => "canceled",
                Outcome::Lost { .. } => "lost",
                Outcome::Refused => "refused",
            };
            format!("{how} {}", request.0)
        }
        Action::Connect { .. } => "connect".into(),
        Action::Disconnect { .. } => "disconnect".into(),
        Action::FreeLane { .. } => "free lane".into(),
        Action::AskRoom { at_once: false, .. } => "ask room".into(),
        Action::AskRoom { at_once: true, .. } => "try".into(),
        Action::SetTimer { at, .. } => format!("timer at {} us", at.0 / 1000),
        Action::CancelTimer { .. } => "cancel timer".into(),
        Action::AllocateUnexpected { bytes, .. } => format!("allocate {bytes}"),
        Action::Place { bytes, .. } => format!("place {bytes}"),
        Action::Retire => "retire".into(),
        Action::Deliver { bytes, .. } => format!("deliver {bytes}"),
        Action::FreeUnexpected { .. } => "free".into(),
        Action::FillBounce { transfer, .. } => {
            format!("bounce {}", transfer.bounce_buffer().expect("a copy"))
        }
        Action::FreeBounce { transfer } => {
            format!("free bounce {}", transfer.bounce_buffer().expect("a copy"))
        }
        Action::Copy(MemoryCopy { bytes, .. }) => format!("copy {bytes}"),
        Action::DropPeer { .. } => "drop peer".into(),
        Action::Notify { data, bytes, .. } => format!("notify {data} {bytes}"),
        Action::PassOn { number, .. } => format!("pass on {number}"),
        Action::PeerLost { .. } => "peer lost".into(),
    }
}

impl Bench {
    fn may_fit_later(&self, to: Peer, bytes: u64) -> bool {
        let Endpoint { paths, payloads, .. } = &self.machine;
        paths.may_fit_later(to, bytes, &payloads.bounce_buffers)
    }

    fn announces_user_buffer(&self, to: Peer, bytes: u64, level: SendLevel) -> bool {
        let Endpoint { paths, payloads, .. } = &self.machine;
        paths.announces_user_buffer(to, bytes, level, &payloads.bounce_buffers)
    }

    fn at(&mut self, us: u64) -> &mut Bench {
        self.now = Instant(us * 1000);
        self
    }

    fn event(&mut self, event: Event<'_>) -> Vec<String> {
        let mut actions = Vec::new();
        self.machine.handle(event, Recorder::new(self.now, &mut actions)).expect("within the bounds");
        for action in &actions {
            match *action {
                Action::SetTimer { timer, at } => self.timers.set(timer, at),
                Action::CancelTimer { timer } => self.timers.cancel(timer),
                _ => {}
            }
        }
        // The other machines hear of each loss.
        let is_loss = |action: &&Action| matches!(action, Action::PeerLost { .. });
        actions.iter().filter(|action| !is_loss(action)).map(short).collect()
    }

    /// Reports the timers that have expired.
    fn expire(&mut self) -> Vec<String> {
        let mut actions = Vec::new();
        while let Some(timer) = self.timers.take_expired(self.now) {
            actions.extend(self.event(Event::TimerExpired(timer)));
        }
        actions
    }

    fn post(&mut self, command: Command) -> Vec<String> {
        self.event(Event::Posted(command))
    }

    fn send(&mut self, request: u32, bytes: u64) -> Vec<String> {
        self.send_at(request, bytes, SendLevel::Buffered)
    }

    fn send_at(&mut self, request: u32, bytes: u64, level: SendLevel) -> Vec<String> {
        let (request, space) = (Request(request), Space::Tagged);
        self.post(Command::Send(SendCommand { request, to: PEER, space, tag: 0, data: None, bytes, level }))
    }

    fn receive(&mut self, request: u32, capacity_bytes: u64, multi: Option<u64>) -> Vec<String> {
        let request = Request(request);
        self.post(Command::Receive(ReceiveCommand { request, pattern: ANY, capacity_bytes, multi }))
    }

    fn arrive(&mut self, body: Body, payload_bytes: u32) -> Vec<String> {
        let packet = Packet {
            credit_packets_read: self.credit_packets_read,
            granted_total: self.granted,
            ..Packet::new(body, payload_bytes)
        };
        self.event(Event::Arrived { from: PEER, packet: &packet })
    }

    fn eager(&mut self, length: u32, payload_bytes: u32) -> Vec<String> {
        self.arrive(
            Body::Eager { space: Space::Tagged, tag: 0, data: None, length, acknowledge: None },
            payload_bytes,
        )
    }

    fn credits_back(&mut self, credits: u32) -> Vec<String> {
        self.granted += credits;
        self.arrive(Body::Credit, 0)
    }

    fn rendezvous(&mut self, length: u64, address: u64) -> Vec<String> {
        let (space, transfer) = (Space::Tagged, Transfer(7));
        self.arrive(Body::Rendezvous { space, tag: 0, data: None, length, address, transfer }, 0)
    }
}

const ANY: Pattern = Pattern { space: Space::Tagged, from: None, tag: 0, ignore: 0 };

#[test]
fn a_sender_without_credit_queues_the_message_and_times_the_stall() {
    let mut sender = with_credits(1);
    assert_eq!(sender.at(0).send(0, 8), ["transmit eager 8", "done 0"]);
    assert_eq!(sender.at(1).send(1, 8), [""; 0]); // no credit left: queued
    assert_eq!(sender.at(5).credits_back(1), ["retire", "transmit eager 8", "done 1"]);
    assert_eq!((sender.machine.counters().stalls, sender.machine.counters().stalled_ns), (1, 4000));
}

#[test]
fn a_long_message_is_cut_to_the_credits_and_completes_with_its_last_packet() {
    let mut sender = with_credits(3);
    // 3 slots behind a 48-byte header hold 144 bytes; one slot behind a 32-byte header holds 32.
    assert_eq!(sender.send(0, 200), ["transmit eager 144"]);
    assert_eq!(sender.credits_back(1), ["retire", "transmit more 32"]);
    assert_eq!(sender.credits_back(1), ["retire", "transmit more 24", "done 0"]);
}

#[test]
fn the_first_send_connects_and_queued_messages_then_leave_in_order() {
    let mut sender = bench(Scheme::Static { piggyback: false }, 4);
    let to = Peer(9);
    let send = |request| {
        let (request, space, level) = (Request(request), Space::Untagged, SendLevel::Delivered);
        Command::Send(SendCommand { request, to, space, tag: 0, data: None, bytes: 0, level })
    };
    assert_eq!(sender.post(send(0)), ["connect"]);
    assert_eq!(sender.post(send(1)), [""; 0]);
    let connected = Event::Connected { peer: to, quota_slots: 2, start_slots: 2, credit_slots: 1, epoch: 0 };
    assert_eq!(sender.event(connected), ["transmit eager 0", "done 0", "transmit eager 0", "done 1"]);
}

#[test]
fn credits_return_at_the_threshold_after_the_slots_are_free() {
    let mut receiver = with_credits(2); // threshold 2
    receiver.receive(0, 8, None);
    receiver.receive(1, 8, None);
    assert_eq!(receiver.eager(8, 8), ["place 8", "received 0 8 at 0 last true", "retire"]);
    assert_eq!(receiver.eager(8, 8), ["place 8", "received 1 8 at 0 last true", "retire", "credit total 2"]);
}

#[test]
fn credits_travel_with_the_last_packet_of_a_message_if_piggybacking_is_on() {
    for (piggyback, carried) in [(true, 1), (false, 0)] {
        let mut receiver = bench(Scheme::Static { piggyback }, 4);
        receiver.receive(0, 8, None);
        receiver.eager(8, 8);
        receiver.send(1, 8);
        assert_eq!(receiver.machine.counters().piggybacked_credits_sent, carried);
        assert_eq!(receiver.machine.counters().credit_packets_sent, 0);
    }
}

#[test]
fn an_unexpected_message_is_buffered_and_truncated_to_the_receive() {
    let mut receiver = with_credits(8);
    assert_eq!(receiver.eager(100, 100), ["allocate 100", "place 100", "retire"]);
    assert_eq!(receiver.receive(0, 60, None), ["deliver 60", "free", "received 0 60 at 0 last true"]);
}

#[test]
fn a_message_matched_halfway_takes_its_start_from_the_unexpected_buffer() {
    let mut receiver = with_credits(8);
    assert_eq!(receiver.eager(100, 40), ["allocate 100", "place 40", "retire"]);
    assert_eq!(receiver.receive(0, 200, None), ["deliver 40", "free"]);
    let more = Body::More { offset: 40 };
    assert_eq!(receiver.arrive(more, 60), ["place 60", "received 0 100 at 0 last true", "retire"]);
}

#[test]
fn a_matched_rendezvous_is_copied_and_acknowledged() {
    let mut receiver = with_credits(8);
    assert_eq!(receiver.rendezvous(5000, 1), ["retire"]);
    assert_eq!(receiver.machine.counters().peak_unexpected_bytes, 0);
    assert_eq!(receiver.receive(0, 5000, None), ["copy 5000"]);
    let done = Event::CopyDone { transfer: Transfer(0), result: Ok(()) };
    assert_eq!(receiver.event(done), ["received 0 5000 at 0 last true", "finished"]);
}

#[test]
fn a_forbidden_copy_falls_back_to_packets_for_good() {
    let mut receiver = with_credits(8);
    receiver.receive(0, 5000, None);
    receiver.receive(1, 5000, None);
    assert_eq!(receiver.rendezvous(40, 1), ["copy 40", "retire"]);
    let forbidden = crate::event::CopyFault::Forbidden;
    let done = Event::CopyDone { transfer: Transfer(0), result: Err(forbidden) };
    assert_eq!(receiver.event(done), ["transmit fetch 0"]);
    let piece = Body::Piece { transfer: Transfer(0), offset: 0, last: true };
    assert_eq!(
        receiver.arrive(piece, 40),
        ["place 40", "received 0 40 at 0 last true", "finished", "retire"]
    );
    assert_eq!(receiver.rendezvous(40, 1), ["transmit fetch 0", "retire"]);
}

#[test]
fn a_synchronous_send_waits_for_the_match_and_for_its_last_packet() {
    let mut sender = with_credits(1);
    assert_eq!(sender.send_at(0, 40, SendLevel::Matched), ["transmit eager 8"]);
    let finished = Body::Finished { transfer: Transfer(0), count: 1, refused: false };
    assert_eq!(sender.arrive(finished, 0), ["retire", "credit total 1"]); // 32 bytes have not left
    assert_eq!(sender.credits_back(1), ["retire", "transmit more 32", "done 0"]);
}

/// Messages that wait in tests of their cost.
const WAITING: u32 = 1000;

impl Bench {
    /// Entries of the backlog that searches have visited or could have visited.
    fn backlog_visits(&self) -> usize {
        let pending = self.machine.paths.peers[PEER.0 as usize].pending.as_deref();
        pending.map_or(0, |pending| pending.backlog.visits.get())
    }
}

#[test]
fn the_end_of_an_operation_visits_no_waiting_message() {
    let finished = |transfer| Body::Finished { transfer, count: 1, refused: false };
    // A message whose payload the receiver copies.
    let mut sender = with_credits(1);
    assert_eq!(sender.send(0, 5000), ["transmit rendezvous 0"]);
    (1..=WAITING).for_each(|request| drop(sender.send(request, 8)));
    assert_eq!(sender.arrive(finished(Transfer(0)), 0), ["done 0", "retire", "credit total 1"]);
    assert_eq!(sender.backlog_visits(), 0, "rendezvous");
    // A remote write in packets.
    let mut sender = with_credits(1);
    let write = RemoteCommand { request: Request(0), peer: PEER, key: 5, offset: 0, bytes: 8, data: None };
    assert_eq!(sender.post(Command::Write(write)), ["transmit write 8"]);
    (1..=WAITING).for_each(|request| drop(sender.send(request, 8)));
    assert_eq!(sender.arrive(finished(Transfer(0)), 0), ["done 0", "retire", "credit total 1"]);
    assert_eq!(sender.backlog_visits(), 0, "write");
    // A synchronous message that has left.
    let mut sender = with_credits(1);
    assert_eq!(sender.send_at(0, 8, SendLevel::Matched), ["transmit eager 8"]);
    (1..=WAITING).for_each(|request| drop(sender.send(request, 8)));
    assert_eq!(sender.arrive(finished(Transfer(0)), 0), ["done 0", "retire", "credit total 1"]);
    assert_eq!(sender.backlog_visits(), 0, "synchronous");
    // A bounce buffer whose payload has left in packets.
    let mut sender = with_credits(2);
    sender.arrive_with_rendezvous_only(true);
    assert_eq!(sender.inject(0, 8), ["bounce 0", "transmit rendezvous 0", "done 0"]);
    let transfer = Transfer::of_bounce_buffer(0);
    let fetch = Body::Fetch { transfer, reply: Transfer(5), length: 8 };
    assert_eq!(sender.arrive_keeping_rendezvous_only(fetch), ["transmit piece 8", "retire"]);
    (1..=WAITING).for_each(|request| drop(sender.send(request, 8)));
    assert_eq!(sender.finished(0, 1)[..2], ["free bounce 0", "retire"]);
    assert_eq!(sender.backlog_visits(), 0, "bounce buffer");
}

/// Its buffer is still in use, and the receiver cannot have what has not left.
#[test]
fn an_acknowledgement_of_what_has_not_left_is_rejected() {
    let finished = Body::Finished { transfer: Transfer(0), count: 1, refused: false };
    let write = RemoteCommand { request: Request(1), peer: PEER, key: 5, offset: 0, bytes: 8, data: None };
    let waiting: [fn(&mut Bench) -> Vec<String>; 2] =
        [|sender| sender.send_at(1, 8, SendLevel::Matched), |sender| sender.send(1, 5000)];
    for post in waiting {
        let mut sender = with_credits(1);
        sender.send(0, 8); // this spends the only credit
        assert_eq!(post(&mut sender), [""; 0]);
        assert_eq!(sender.arrive(finished, 0), ["retire", "drop peer", "lost 1"]);
    }
    let mut sender = with_credits(1);
    sender.send(0, 8);
    assert_eq!(sender.post(Command::Write(write)), [""; 0]);
    assert_eq!(sender.arrive(finished, 0), ["retire", "drop peer", "lost 1"]);
    // The receiver has requested the payload in packets, and these wait.
    let mut sender = with_credits(1);
    assert_eq!(sender.send(1, 5000), ["transmit rendezvous 0"]);
    let fetch = Body::Fetch { transfer: Transfer(0), reply: Transfer(5), length: 5000 };
    assert_eq!(sender.arrive(fetch, 0), ["retire", "credit total 1"]);
    assert_eq!(sender.arrive(finished, 0), ["retire", "drop peer", "lost 1"]);
}

#[test]
fn a_second_request_for_the_payload_of_a_message_is_rejected() {
    let mut sender = with_credits(8);
    assert_eq!(sender.send(0, 2000), ["transmit rendezvous 0"]);
    let fetch = Body::Fetch { transfer: Transfer(0), reply: Transfer(5), length: 50 };
    assert_eq!(sender.arrive(fetch, 0), ["transmit piece 50", "retire"]);
    assert_eq!(sender.arrive(fetch, 0), ["retire", "drop peer", "lost 0"]);
}

#[test]
fn a_multi_receive_buffer_packs_messages_and_is_released_with_the_last() {
    let mut receiver = with_credits(64);
    assert_eq!(receiver.receive(0, 100, Some(30)), [""; 0]);
    assert_eq!(receiver.eager(45, 45), ["place 45", "received 0 45 at 0 last false", "retire"]);
    assert_eq!(receiver.eager(25, 25), ["place 25", "received 0 25 at 45 last false", "retire"]);
    // 30 bytes are free, which is not fewer than 30.
    assert_eq!(receiver.eager(1, 1), ["place 1", "received 0 1 at 70 last true", "retire"]);
}

#[test]
fn a_message_too_long_for_the_rest_of_a_multi_receive_buffer_goes_to_the_next() {
    let mut receiver = with_credits(64);
    receiver.receive(0, 100, Some(10));
    receiver.receive(1, 100, Some(10));
    receiver.eager(60, 60);
    assert_eq!(receiver.eager(50, 50), ["released 0", "place 50", "received 1 50 at 0 last false", "retire"]);
}

#[test]
fn a_multi_receive_buffer_is_released_after_its_pending_message() {
    let mut receiver = with_credits(64);
    receiver.receive(0, 100, Some(50));
    assert_eq!(receiver.rendezvous(60, 1), ["copy 60", "retire"]); // closes it
    let done = Event::CopyDone { transfer: Transfer(0), result: Ok(()) };
    assert_eq!(receiver.event(done), ["received 0 60 at 0 last true", "finished"]);
}

#[test]
fn messages_that_waited_fill_a_multi_receive_buffer_in_order() {
    let mut receiver = with_credits(64);
    receiver.eager(5, 5);
    receiver.eager(6, 6);
    assert_eq!(
        receiver.receive(0, 100, Some(10)),
        [
            "deliver 5",
            "free",
            "received 0 5 at 0 last false",
            "deliver 6",
            "free",
            "received 0 6 at 5 last false"
        ]
    );
}

#[test]
fn a_multi_receive_buffer_can_be_canceled_before_and_during_a_message() {
    let mut receiver = with_credits(64);
    receiver.receive(0, 100, Some(10));
    assert_eq!(receiver.post(Command::Cancel { request: Request(0) }), ["canceled 0"]);
    receiver.receive(1, 100, Some(10));
    receiver.rendezvous(60, 1);
    assert_eq!(receiver.post(Command::Cancel { request: Request(1) }), [""; 0]);
    let done = Event::CopyDone { transfer: Transfer(0), result: Ok(()) };
    assert_eq!(receiver.event(done), ["received 1 60 at 0 last false", "canceled 1", "finished"]);
}

#[test]
fn peek_leaves_claims_or_discards() {
    let mut receiver = with_credits(64);
    let peek = |request, then| Command::Peek { request: Request(request), pattern: ANY, then };
    assert_eq!(receiver.post(peek(0, PeekThen::Leave)), ["absent 0"]);
    receiver.eager(5, 5);
    receiver.eager(6, 6);
    assert_eq!(receiver.post(peek(1, PeekThen::Leave)), ["found 1"]);
    assert_eq!(receiver.post(peek(2, PeekThen::Claim)), ["found 2"]);
    assert_eq!(receiver.post(peek(3, PeekThen::Discard)), ["free", "found 3"]); // the second message
    assert_eq!(receiver.receive(4, 10, None), [""; 0]); // the claimed one is not there for others
    let claimed = Command::ReceiveClaimed { request: Request(5), message: MessageId(0), capacity_bytes: 10 };
    assert_eq!(receiver.post(claimed), ["deliver 5", "free", "received 5 5 at 0 last true"]);
}

#[test]
fn leave_until_seen_twice_reports_at_the_second_peek() {
    let mut receiver = with_credits(64);
    receiver.eager(5, 5);
    let then = PeekThen::LeaveUntilSeenTwice;
    let peek = |request| Command::Peek { request: Request(request), pattern: ANY, then };
    assert_eq!(receiver.post(peek(0)), ["absent 0"]);
    assert_eq!(receiver.post(peek(1)), ["found 1"]);
    assert_eq!(receiver.post(peek(2)), ["found 2"]);
}

#[test]
fn a_discarded_rendezvous_is_acknowledged() {
    let mut receiver = with_credits(64);
    receiver.rendezvous(5000, 1);
    let discard = Command::Peek { request: Request(0), pattern: ANY, then: PeekThen::Discard };
    assert_eq!(receiver.post(discard), ["finished", "found 0"]);
}

#[test]
fn a_large_remote_write_is_copied_by_its_initiator() {
    let mut initiator = with_credits(8);
    let (request, peer, key) = (Request(0), PEER, 5);
    let write = RemoteCommand { request, peer, key, offset: 0, bytes: 5000, data: Some(3) };
    assert_eq!(initiator.post(Command::Write(write)), ["transmit locate 0"]);
    let located = Body::Located { transfer: Transfer(0), key, offset: 0, address: 4096, refused: false };
    assert_eq!(initiator.arrive(located, 0), ["copy 5000", "retire"]);
    let done = Event::CopyDone { transfer: Transfer(0), result: Ok(()) };
    assert_eq!(initiator.event(done), ["transmit written 0", "done 0"]);
}

#[test]
fn a_remote_write_with_data_completes_when_its_notification_has_left() {
    let mut initiator = with_credits(2);
    let (request, peer, key) = (Request(0), PEER, 5);
    let write = RemoteCommand { request, peer, key, offset: 0, bytes: 5000, data: Some(9) };
    initiator.post(Command::Write(write));
    initiator.send(1, 8); // spends the last credit
    let located = Body::Located { transfer: Transfer(0), key, offset: 0, address: 4096, refused: false };
    initiator.arrive(located, 0);
    let done = Event::CopyDone { transfer: Transfer(0), result: Ok(()) };
    assert_eq!(initiator.event(done), [""; 0]);
    assert_eq!(initiator.machine.undelivered(), []);
    initiator.granted = 1;
    assert_eq!(initiator.arrive(Body::Credit, 0), ["retire", "transmit written 0", "done 0"]);
}

#[test]
fn a_malformed_packet_loses_its_sender() {
    let nonsense = [
        Body::More { offset: 0 },
        Body::Finished { transfer: Transfer(3), count: 1, refused: false },
        Body::Fetch { transfer: Transfer(0), reply: Transfer(0), length: 8 },
        Body::Piece { transfer: Transfer(0), offset: 0, last: true },
        Body::Located { transfer: Transfer(0), key: 0, offset: 0, address: 0, refused: false },
    ];
    for body in nonsense {
        let mut receiver = with_credits(8);
        assert_eq!(receiver.arrive(body, 0), ["retire", "drop peer"], "{body:?}");
        assert_eq!(receiver.machine.counters().malformed_packets, 1);
        assert_eq!(receiver.send(0, 8), ["lost 0"]);
    }
}

#[test]
fn a_malformed_packet_that_the_link_rejects_is_counted() {
    let mut receiver = with_credits(8);
    receiver.event(Event::Lost { peer: PEER, fault: PeerFault::Malformed });
    assert_eq!(receiver.machine.counters().malformed_packets, 1);
    receiver.event(Event::Lost { peer: PEER, fault: PeerFault::Malformed });
    assert_eq!(receiver.machine.counters().malformed_packets, 1, "once for each lost peer");
}

#[test]
fn an_unrequested_located_reply_does_not_complete_a_queued_write() {
    let mut initiator = with_credits(1);
    initiator.send(1, 8); // this spends the only credit
    let (request, peer, key) = (Request(0), PEER, 5);
    let write = RemoteCommand { request, peer, key, offset: 0, bytes: 50, data: None };
    assert_eq!(initiator.post(Command::Write(write)), [""; 0]);
    let located = Body::Located { transfer: Transfer(0), key, offset: 0, address: 0, refused: true };
    assert_eq!(initiator.arrive(located, 0), ["retire", "drop peer", "lost 0"]);
}

#[test]
fn an_oversized_message_is_rejected_before_memory_is_allocated() {
    let mut receiver = with_credits(8);
    assert_eq!(receiver.eager(MAX_EAGER_BYTES as u32 + 1, 16), ["retire", "drop peer"]);
}

#[test]
fn a_slow_reader_does_not_stop_sends_to_others() {
    let mut target = with_credits(1);
    target.machine.paths.config.max_backlog = 2;
    target.post(Command::RegisterMemory { key: 5, bytes: 1000, readable: true, writable: false });
    for transfer in 0..10 {
        let read = Body::Read { transfer: Transfer(transfer), key: 5, offset: 0, length: 1000 };
        target.arrive(read, 0);
    }
    assert_eq!(target.machine.backlogged(), 10);
    let send = |to, request| {
        let (request, space, level) = (Request(request), Space::Tagged, SendLevel::Delivered);
        Command::Send(SendCommand { request, to, space, tag: 0, data: None, bytes: 8, level })
    };
    let mut post = |to, request| {
        let mut actions = Vec::new();
        let driver = Recorder::new(Instant(0), &mut actions);
        target.machine.handle(Event::Posted(send(to, request)), driver)
    };
    assert_eq!(post(PEER, 0), Err(Refusal::Backlog), "it waits behind the answers");
    assert_eq!(post(Peer(2), 1), Ok(()));
    assert_eq!(post(Peer(2), 2), Ok(()));
    assert_eq!(post(Peer(2), 3), Err(Refusal::Backlog), "two wait there");
    assert_eq!(post(Peer(3), 4), Ok(()));
}

#[test]
fn an_initiator_has_a_bound_on_remote_operations_with_a_peer() {
    let mut initiator = with_credits(1);
    let read = |peer, request| {
        let (request, key) = (Request(request), 5);
        Command::Read(RemoteCommand { request, peer, key, offset: 0, bytes: 8, data: None })
    };
    (0..MAX_REMOTE_OPERATIONS).for_each(|request| drop(initiator.post(read(PEER, request))));
    let mut actions = Vec::new();
    let driver = Recorder::new(Instant(0), &mut actions);
    let refused = initiator.machine.handle(Event::Posted(read(PEER, u32::MAX - 1)), driver);
    assert_eq!(refused, Err(Refusal::RemoteOperations));
    assert_eq!(initiator.post(read(Peer(2), u32::MAX - 2)), ["connect"], "others are not affected");
    // The first one has left. Its end admits one more.
    let piece = Body::Piece { transfer: Transfer(0), offset: 0, last: true };
    assert!(initiator.arrive(piece, 8).contains(&"done 0".into()));
    assert_eq!(initiator.post(read(PEER, u32::MAX - 1)), [""; 0]);
    let driver = Recorder::new(Instant(0), &mut actions);
    let refused = initiator.machine.handle(Event::Posted(read(PEER, u32::MAX - 3)), driver);
    assert_eq!(refused, Err(Refusal::RemoteOperations));
}

#[test]
fn a_reader_beyond_the_bound_is_malformed() {
    let mut target = with_credits(1);
    target.send(0, 8); // this spends the only credit
    target.post(Command::RegisterMemory { key: 5, bytes: 8, readable: true, writable: true });
    let read = |transfer| Body::Read { transfer: Transfer(transfer), key: 5, offset: 0, length: 8 };
    let locate =
        |transfer| Body::Locate { transfer: Transfer(transfer), key: 5, offset: 0, length: 8, write: true };
    let unknown = |transfer| Body::Read { transfer: Transfer(transfer), key: 6, offset: 0, length: 8 };
    for transfer in 0..MAX_REMOTE_OPERATIONS + MAX_ATOMICS {
        let body = [read(transfer), locate(transfer), unknown(transfer)][transfer as usize % 3];
        assert!(!target.arrive(body, 0).contains(&"drop peer".into()), "{transfer}");
    }
    assert_eq!(target.arrive(read(0), 0), ["retire", "drop peer"]);
}

#[test]
fn a_read_of_a_region_that_shrank_is_refused() {
    let mut target = with_credits(1);
    let expose = |bytes| Command::RegisterMemory { key: 5, bytes, readable: true, writable: false };
    target.post(expose(1000));
    let read = Body::Read { transfer: Transfer(3), key: 5, offset: 0, length: 1000 };
    assert_eq!(target.arrive(read, 0), ["transmit piece 8", "retire", "credit total 1"]);
    target.post(Command::DeregisterMemory { key: 5 });
    target.post(expose(10));
    assert_eq!(target.credits_back(1), ["retire", "refused"]);
}

#[test]
fn a_grant_of_unspent_credits_is_rejected() {
    let mut sender = with_credits(4);
    sender.send(0, 8);
    assert_eq!(sender.credits_back(2), ["retire", "drop peer"]);
}

#[test]
fn a_dead_peer_fails_only_the_operations_that_depend_on_it() {
    let mut survivor = with_credits(1);
    survivor.send(0, 8);
    survivor.send(1, 8); // waits for credit
    survivor.send(2, 5000); // waits behind it
    survivor.receive(3, 8, None); // from any source
    let pattern = Pattern { from: Some(Peer(2)), ..ANY };
    let other = ReceiveCommand { request: Request(4), pattern, capacity_bytes: 8, multi: None };
    survivor.post(Command::Receive(other));
    let lost = Event::Lost { peer: PEER, fault: PeerFault::Died };
    assert_eq!(survivor.event(lost), ["drop peer", "lost 1", "lost 2", "lost 3"]);
    assert_eq!(survivor.receive(5, 8, None), ["lost 5"]); // the awaited message may have been the lost peer's
    assert_eq!(survivor.post(Command::Cancel { request: Request(4) }), ["canceled 4"]);
}

#[test]
fn an_orderly_close_fails_sends_to_the_peer_and_keeps_receives() {
    let mut survivor = with_credits(1);
    survivor.send(0, 8);
    survivor.send(1, 8);
    survivor.receive(2, 8, None);
    let lost = Event::Lost { peer: PEER, fault: PeerFault::Closed };
    assert_eq!(survivor.event(lost), ["drop peer", "lost 1"]);
    assert_eq!(survivor.post(Command::Cancel { request: Request(2) }), ["canceled 2"]);
}

#[test]
fn a_copy_from_a_closed_sender_fails_its_receive_only() {
    let mut receiver = with_credits(8);
    receiver.rendezvous(5000, 1);
    assert_eq!(receiver.receive(0, 5000, None), ["copy 5000"]);
    receiver.receive(1, 8, None); // from any source
    let done = Event::CopyDone { transfer: Transfer(0), result: Err(crate::event::CopyFault::Closed) };
    assert_eq!(receiver.event(done), ["drop peer", "lost 0"]);
    assert_eq!(receiver.machine.fault(PEER), Some(PeerFault::Closed));
    assert_eq!(receiver.machine.counters().peers_lost, 0);
    assert_eq!(receiver.receive(2, 8, None), [""; 0], "others may still send");
}

#[test]
fn two_closing_endpoints_do_not_wait_for_each_other() {
    let mut closing = with_credits(4);
    assert_eq!(closing.send(0, 5000), ["transmit rendezvous 0"]);
    assert!(closing.machine.has_undelivered());
    assert_eq!(closing.post(Command::Close), ["transmit goodbye 0"]);
    assert_eq!(closing.arrive(Body::Goodbye, 0), ["lost 0", "retire"]);
    assert!(!closing.machine.has_undelivered());
    // The other side had matched it before it closed, and acknowledges late.
    let finished = Body::Finished { transfer: Transfer(0), count: 1, refused: false };
    assert_eq!(closing.arrive(finished, 0), ["retire"]);
}

#[test]
fn a_goodbye_cancels_queued_rendezvous() {
    let mut sender = with_credits(1);
    sender.send(0, 8);
    assert_eq!(sender.send(1, 5000), [""; 0]);
    assert_eq!(sender.arrive(Body::Goodbye, 0), ["lost 1", "retire", "credit total 1"]);
    assert_eq!(sender.credits_back(1), ["retire"]);
    assert!(sender.machine.is_quiescent());
}

#[test]
fn a_goodbye_ends_queued_synchronous_sends() {
    for bytes in [0, 8] {
        let mut sender = with_credits(1);
        sender.send(0, 8);
        assert_eq!(sender.send_at(1, bytes, SendLevel::Matched), [""; 0]);
        assert_eq!(sender.arrive(Body::Goodbye, 0), ["lost 1", "retire", "credit total 1"]);
        assert_eq!(sender.credits_back(1), ["retire"]);
    }
    // The first packet has left, so the rest follows.
    let mut sender = with_credits(1);
    assert_eq!(sender.send_at(0, 40, SendLevel::Matched), ["transmit eager 8"]);
    assert_eq!(sender.arrive(Body::Goodbye, 0), ["retire", "credit total 1"]);
    assert_eq!(sender.credits_back(1), ["retire", "transmit more 32", "done 0"]);
}

#[test]
fn a_goodbye_without_credit_does_not_delay_close() {
    let mut closing = with_credits(1);
    closing.send(0, 8);
    assert_eq!(closing.post(Command::Close), [""; 0]);
    assert!(!closing.machine.has_undelivered());
}

#[test]
fn a_dead_peer_fails_any_source_multi_receives() {
    let mut survivor = with_credits(4);
    survivor.receive(0, 100, Some(10));
    let lost = Event::Lost { peer: PEER, fault: PeerFault::Died };
    assert_eq!(survivor.event(lost), ["drop peer", "lost 0"]);
}

#[test]
fn a_multi_receive_for_failed_peers_takes_what_has_arrived_and_is_lost() {
    let mut survivor = with_credits(4);
    survivor.eager(8, 8);
    survivor.event(Event::Lost { peer: PEER, fault: PeerFault::Died });
    let received = ["deliver 8", "free", "received 0 8 at 0 last false", "lost 0"];
    assert_eq!(survivor.receive(0, 100, Some(10)), received);
    assert_eq!(survivor.receive(1, 100, Some(10)), ["lost 1"], "from any source");
    let pattern = Pattern { from: Some(PEER), ..ANY };
    let receive = ReceiveCommand { request: Request(2), pattern, capacity_bytes: 100, multi: Some(10) };
    assert_eq!(survivor.post(Command::Receive(receive)), ["lost 2"], "from the dead peer");
    let pattern = Pattern { from: Some(Peer(2)), ..ANY };
    let receive = ReceiveCommand { request: Request(3), pattern, capacity_bytes: 100, multi: Some(10) };
    assert_eq!(survivor.post(Command::Receive(receive)), [""; 0], "from another peer");
    assert_eq!(survivor.post(Command::Cancel { request: Request(3) }), ["canceled 3"]);
}

#[test]
fn without_credits_the_sender_asks_for_room_once() {
    let mut sender = bench(Scheme::Unlimited, 4);
    assert_eq!(sender.send(0, 8), ["ask room"]);
    assert_eq!(sender.send(1, 8), [""; 0]);
    let room = Event::Room { peer: PEER, slots: 1 };
    assert_eq!(sender.event(room), ["transmit eager 8", "done 0", "ask room"]);
}

#[test]
fn a_sender_beyond_the_unexpected_message_bound_is_lost() {
    let mut receiver = with_credits(64);
    for _ in 0..4 {
        receiver.eager(0, 0);
    }
    assert_eq!(receiver.eager(0, 0), ["retire", "drop peer"]);
    assert_eq!(vec![receiver.machine.counters().peak_unexpected_messages], [4]);
}

#[test]
fn a_detach_request_is_served_between_packets_and_sending_resumes() {
    let mut a = with_credits(2);
    // 300 bytes: 80 in the first two slots, and no credit for the rest.
    assert_eq!(a.send(0, 300), ["transmit eager 80"]);
    let asked = Event::DetachRequested { peer: PEER };
    assert_eq!(a.event(asked.clone()), ["detach", "disconnect", "connect"]);
    assert_eq!(a.event(asked.clone()), [""; 0], "once");
    let connected =
        Event::Connected { peer: PEER, quota_slots: 2, start_slots: 2, credit_slots: 1, epoch: 1 };
    assert_eq!(a.event(connected), ["transmit more 96"], "with the whole quota");
    a.send(1, 8);
    assert_eq!(a.event(asked.clone()), ["detach", "disconnect", "connect"]);
    let connected =
        Event::Connected { peer: PEER, quota_slots: 9, start_slots: 9, credit_slots: 1, epoch: 2 };
    assert_eq!(
        a.event(connected),
        ["transmit more 124", "done 0", "bounce 0", "transmit rendezvous 0", "done 1"]
    );
    assert_eq!(a.event(asked), ["detach", "disconnect"], "nothing waits, so it does not attach again");
}

#[test]
fn a_grant_of_an_earlier_lease_is_ignored() {
    let mut a = with_credits(2);
    assert_eq!(a.send(0, 80), ["transmit eager 80", "done 0"]);
    assert_eq!(a.event(Event::DetachRequested { peer: PEER }), ["detach", "disconnect"]);
    assert_eq!(a.send(1, 8), ["connect"]);
    let connected =
        Event::Connected { peer: PEER, quota_slots: 2, start_slots: 2, credit_slots: 1, epoch: 1 };
    assert_eq!(
        a.event(connected),
        ["bounce 0", "transmit rendezvous 0", "done 1"],
        "a new lease starts with rendezvous only"
    );
    // The receiver had not read the `Detach` when it granted these two.
    a.granted = 2;
    assert_eq!(a.arrive(Body::Credit, 0), ["retire"]);
    assert!(a.machine.fault(PEER).is_none(), "the grant is ignored, not rejected");
    assert_eq!(a.send(2, 8), ["bounce 1", "transmit rendezvous 0", "done 2"]);
    assert_eq!(a.send(3, 8), [""; 0], "there were two credits, not four");
}

#[test]
fn the_peer_entry_is_freed_when_both_sides_have_detached() {
    let mut a = with_credits(4);
    assert_eq!(a.send(0, 8), ["transmit eager 8", "done 0"]);
    let kept = a.machine.peer_state_bytes();
    assert_eq!(a.event(Event::DetachRequested { peer: PEER }), ["detach", "disconnect"]);
    assert_eq!(a.machine.peer_entries(), 1, "the peer still has a lane here");
    assert_eq!(a.arrive(Body::Detach, 0), ["retire", "free lane"]);
    assert_eq!(a.machine.peer_entries(), 0);
    assert!(a.machine.peer_state_bytes() + size_of::<PeerEntry>() as u64 <= kept);
    let mut watched = Vec::new();
    a.receive(1, 100, None);
    a.machine.depends_on(|peer| watched.push(peer));
    assert_eq!(watched, [PEER], "the peer may die while an any-source receive waits");
}

/// Without this, a sender that attaches again could wait for ever: see `lane_lease.rs`.
#[test]
fn unread_credit_packets_of_an_earlier_lease_cause_a_lane_change() {
    let mut b = bench(Scheme::Static { piggyback: false }, 2);
    let packet = Packet::new(
        Body::Eager { space: Space::Tagged, tag: 0, data: None, length: 0, acknowledge: None },
        0,
    );
    let arrived = || Event::Arrived { from: PEER, packet: &packet };
    b.event(arrived());
    assert!(b.event(arrived()).contains(&"credit total 2".into()));
    assert_eq!(b.arrive(Body::Detach, 0), ["retire", "free lane"]);
    let attached = Event::Attached { peer: PEER, quota_slots: 2, start_slots: 2, epoch: 1 };
    assert_eq!(b.event(attached), ["detach", "disconnect"]);
    // The first credits of the new lease need a lane back to the sender again.
    assert!(b.event(arrived()).contains(&"connect".into()));
    b.event(arrived());
    let connected =
        Event::Connected { peer: PEER, quota_slots: 2, start_slots: 2, credit_slots: 1, epoch: 5 };
    assert_eq!(b.event(connected), ["credit total 2"]);
}

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

    fn arrive_with_rendezvous_only(&mut self, rendezvous_only: bool) -> Vec<String> {
        let mut packet = Packet { granted_total: self.granted, ..Packet::new(Body::Credit, 0) };
        packet.marks.rendezvous_only = rendezvous_only;
        self.event(Event::Arrived { from: PEER, packet: &packet })
    }

    fn finished(&mut self, transfer: u32, count: u32) -> Vec<String> {
        let transfer = Transfer::of_bounce_buffer(transfer);
        self.arrive_keeping_rendezvous_only(Body::Finished { transfer, count, refused: false })
    }

    fn arrive_keeping_rendezvous_only(&mut self, body: Body) -> Vec<String> {
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

    fn inject(&mut self, request: u32, bytes: u64) -> Vec<String> {
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
    sender.machine.payloads.bounce_buffers = BounceBuffers::new(132); // one copy of up to 100 bytes
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
        Body::Rendezvous { space: Space::Tagged, tag: 0, data: None, length: 8, address: 1, transfer }
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
    assert!(receiver.machine.has_pending_acks());
    assert_eq!(receiver.event(Event::Idle), ["finished 3", "finished"]);
    assert!(!receiver.machine.has_pending_acks());
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
