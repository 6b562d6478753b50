//! Tests of the exact actions of one endpoint machine: sending, credits, rendezvous, acknowledgements. Its submodules
//! have the other subjects and share its [`Bench`]. Longer scenarios are in `tests/`.

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
use crate::offload::MAX_ANSWERS;
use crate::packet::{AnnouncementMarks, Body, Geometry, Packet, RemoteAddress, Space};
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

mod copies;
mod geometry;
mod holding;
mod lane_lease;
mod loss;
mod machines;
mod receiver_memory;
mod receiving;
mod remote;
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
        envelope_budget_bytes: u64::MAX,
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
                Body::Ask { .. } => "ask",
                Body::Offer { .. } => "offer",
                Body::EagerOffer { .. } => "eager offer",
                Body::NoMatch => "no match",
                Body::Resume { count } => return format!("resume {count}"),
                Body::Claimed { .. } => "claimed",
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
        Action::AnswerLeft { buffer } => format!("answer left {}", buffer.0),
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
        // The offloaded machines learn of each loss.
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
        let address = RemoteAddress::without_key(address);
        self.arrive(
            Body::Rendezvous {
                space,
                tag: 0,
                data: None.into(),
                length,
                address,
                transfer,
                sender: AnnouncementMarks::default(),
            },
            0,
        )
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
fn without_credits_the_sender_asks_for_room_once() {
    let mut sender = bench(Scheme::Unlimited, 4);
    assert_eq!(sender.send(0, 8), ["ask room"]);
    assert_eq!(sender.send(1, 8), [""; 0]);
    let room = Event::Room { peer: PEER, slots: 1 };
    assert_eq!(sender.event(room), ["transmit eager 8", "done 0", "ask room"]);
}

#[test]
fn a_second_request_for_the_payload_of_a_message_is_rejected() {
    let mut sender = with_credits(8);
    assert_eq!(sender.send(0, 2000), ["transmit rendezvous 0"]);
    let fetch = Body::Fetch { transfer: Transfer(0), reply: Transfer(5), length: 50 };
    assert_eq!(sender.arrive(fetch, 0), ["transmit piece 50", "retire"]);
    assert_eq!(sender.arrive(fetch, 0), ["retire", "drop peer", "lost 0"]);
}
