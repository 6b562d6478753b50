//! The engine's driver of the endpoint machine ([`EventDriver`]): it acts at once, on the link and on the buffers of
//! operations, which [`Io`] holds. What has to wait until the event is handled is noted there.
//!
//! A driver exists for one event. It knows the operation that the event posts, so an operation that ends within its event
//! needs no entry in the table of operations.

use std::collections::VecDeque;

use weir_link::memory::UserMemory;
use weir_link::{COOPERATIVE_COPY_BYTES, LaneLease, Link, Quota};
use weir_proto::offload::Offloaded;
use weir_proto::{
    BufferId, Destination, Driver, Envelope, Event, Instant, LinkBusy, LinkDriver, MachineEvent, MemoryCopy,
    MessageId, OperationDriver, Outcome, Packet, PayloadDriver, Peer, PeerFault, RemoteAddress, Request,
    Source, Space, TimeDriver, Timer, Transfer,
};

use crate::io::{Io, LaneWork, bounce_buffer_number};
use crate::operations::Outstanding;
use crate::{Completion, CompletionSink, MAX_OPERATIONS, Operation, Post, read_ahead};

/// The request of the operation that an event posts, until [`OperationDriver::hold`] gives it a number.
pub(crate) const POSTED: Request = Request(u32::MAX);

pub(crate) fn connected(peer: Peer, LaneLease { quota, epoch, .. }: LaneLease) -> Event<'static> {
    let Quota { data_slots, start_slots, credit_slots } = quota;
    Event::Connected { peer, quota_slots: data_slots, start_slots, credit_slots, epoch }
}

/// Offers a completion to `sink`, if no other waits before it. A completion that `sink` rejects waits in `waiting`.
#[inline(always)]
fn offer(waiting: &mut VecDeque<Completion>, completion: Completion, sink: &mut impl CompletionSink) {
    if !waiting.is_empty() || !sink.accept(&completion) {
        waiting.push_back(completion);
    }
}

/// The operation that an event posts as [`POSTED`].
pub(crate) struct Posted<'event> {
    pub post: Post,
    pub operation: Operation,
    pub space: Space,
    /// Its buffer. Borrowed, so that a driver has nothing to drop.
    pub memory: &'event mut UserMemory,
    /// The program may reuse the buffer when the post returns.
    pub inject: bool,
    /// See [`Outstanding::delivered_to`].
    pub delivered_to: Option<Peer>,
}

impl Posted<'_> {
    /// The entry of the table of operations, which owns the buffer from now on.
    #[inline(always)]
    fn into_outstanding(self) -> Outstanding {
        Outstanding {
            delivered_to: self.delivered_to,
            ..Outstanding::new(self.post, self.operation, self.space, self.memory.take())
        }
    }
}

/// The driver of one event.
pub(crate) struct EventDriver<'event, L: Link, S: CompletionSink> {
    pub io: &'event mut Io<L>,
    pub sink: &'event mut S,
    /// The operation that the event posts, until it is held or complete.
    pub posted: Option<Posted<'event>>,
}

impl<L: Link, S: CompletionSink> TimeDriver for EventDriver<'_, L, S> {
    fn now(&mut self) -> Instant {
        self.io.clock()
    }

    fn set_timer(&mut self, timer: Timer, at: Instant) {
        self.io.timers.set(timer.into(), at);
        self.io.wake_watcher();
    }

    fn cancel_timer(&mut self, timer: Timer) {
        self.io.timers.cancel(timer.into());
    }
}

impl<L: Link, S: CompletionSink> LinkDriver for EventDriver<'_, L, S> {
    fn connect(&mut self, to: Peer) {
        let address = *self.io.peers.address(to.0).expect("peers are numbered here");
        match self.io.link.connect(to, &address) {
            Some(lease) => {
                if lease.geometry != self.io.geometry {
                    self.io.cause(Event::PathGeometry { peer: to, geometry: lease.geometry });
                }
                self.io.cause(connected(to, lease));
                if lease.wanted {
                    self.io.add_lane_work(LaneWork::Detach(to));
                }
            }
            None => self.io.add_lane_work(LaneWork::Connect(to)),
        }
    }

    fn defers_credits(&mut self, peer: Peer) -> bool {
        if self.io.lanes_are_scarce {
            self.io.add_lane_work(LaneWork::ReturnCredits(peer));
        }
        self.io.lanes_are_scarce
    }

    #[inline(always)]
    fn transmit(&mut self, to: Peer, packet: &Packet, payload: Source) -> Result<(), LinkBusy> {
        let EventDriver { io, posted, .. } = self;
        match payload {
            Source::Request { request: POSTED, offset } => {
                let memory = posted.as_ref().map(|posted| (&*posted.memory, offset));
                io.link.transmit(to, packet, memory.filter(|_| packet.payload_bytes > 0))
            }
            _ => io.transmit_held(to, packet, payload),
        }
    }

    fn disconnect(&mut self, to: Peer) {
        self.io.awaiting_room.retain(|waiting| *waiting != to);
        self.io.link.disconnect(to);
    }

    fn free_lane(&mut self, peer: Peer) {
        self.io.link.release(peer);
    }

    fn ask_room(&mut self, to: Peer, at_once: bool) {
        match self.io.newly_free_slots(to) {
            0 if !at_once => {
                self.io.awaiting_room.push(to);
                self.io.wake_watcher();
            }
            slots => self.io.cause(Event::Room { peer: to, slots }),
        }
    }

    #[inline(always)]
    fn retire(&mut self) {
        self.io.link.retire();
    }

    fn drop_peer(&mut self, peer: Peer) {
        let io = &mut *self.io;
        io.awaiting_room.retain(|waiting| *waiting != peer);
        io.lane_work.retain(|work| work.peer() != peer);
        io.cooperative_sends.forget(peer);
        io.read_ahead.forget(peer);
        io.link.forget(peer);
        io.forget_copies(peer);
    }
}

impl<L: Link, S: CompletionSink> PayloadDriver for EventDriver<'_, L, S> {
    fn may_exceed_bounce_limit(&mut self, _to: Peer, _held: u32) -> bool {
        std::mem::take(&mut self.io.may_exceed_bounce_limit)
    }

    fn announce(&mut self, to: Peer, transfer: Transfer, payload: Source, bytes: u64) -> RemoteAddress {
        let address = self.io.announced_address(to, payload);
        let both_can_copy = address.key == 0 && !address.is_none();
        if bytes >= COOPERATIVE_COPY_BYTES && both_can_copy && !matches!(payload, Source::Region { .. }) {
            self.io.cooperative_sends.begin(to, transfer);
        }
        address
    }

    fn may_read(&mut self, to: Peer) -> bool {
        self.io.may_read(to)
    }

    fn may_write(&mut self, to: Peer) -> bool {
        self.io.may_write(to)
    }

    fn announcement_arrived(&mut self, from: Peer, address: RemoteAddress, bytes: u64) {
        if address.key == 0 {
            self.io.read_ahead.rts_arrived(from, address.address, bytes);
        }
    }

    fn announcements_ended(&mut self, peer: Peer, first: Transfer, count: u32) {
        self.io.cooperative_sends.end(peer, first, count);
    }

    fn allocate_unexpected(&mut self, message: MessageId, bytes: u64) {
        self.io.unexpected_buffers.allocate(message, bytes);
    }

    #[inline]
    fn place(&mut self, to: Destination, bytes: u64) {
        let Io { link, operations, unexpected_buffers, regions, .. } = &*self.io;
        match to {
            Destination::Request { request, offset } => {
                let outstanding = operations.get(request).expect("matched receives are outstanding");
                link.copy_payload(&outstanding.memory, offset, bytes);
            }
            Destination::Message { message, offset } => {
                link.copy_payload(&unexpected_buffers.memory(message), offset, bytes);
            }
            Destination::Region { key, offset } => {
                let region = regions.get(&key).expect("the machine checked the key");
                link.copy_payload(&region.memory, offset, bytes);
            }
        }
    }

    #[inline]
    fn deliver(&mut self, message: MessageId, request: Request, offset: u64, bytes: u64) {
        let Io { operations, unexpected_buffers, .. } = &*self.io;
        let posted = self.posted.as_ref().filter(|_| request == POSTED).map(|posted| &*posted.memory);
        let held = || operations.get(request).map(|outstanding| &outstanding.memory);
        let memory = posted.or_else(held).expect("matched receives are outstanding");
        unexpected_buffers.memory(message).copy_to(0, bytes, memory, offset);
    }

    #[inline]
    fn free_unexpected(&mut self, message: MessageId) {
        self.io.unexpected_buffers.free(message);
    }

    fn fill_bounce(&mut self, transfer: Transfer, request: Request) {
        let Io { operations, bounce_buffers, has_aftermath, .. } = &mut *self.io;
        let posted = self.posted.as_ref().filter(|_| request == POSTED).map(|posted| &*posted.memory);
        *has_aftermath |= posted.is_some();
        let held = || operations.get(request).map(|outstanding| &outstanding.memory);
        let memory = posted.or_else(held).expect("sends with bounce buffers are outstanding");
        bounce_buffers.add(bounce_buffer_number(transfer), memory);
    }

    fn free_bounce(&mut self, transfer: Transfer) {
        self.io.bounce_buffers_freed += 1;
        self.io.end_announcement_of_bounce(bounce_buffer_number(transfer));
        self.io.bounce_buffers.free(bounce_buffer_number(transfer));
    }

    fn copy(&mut self, copy: MemoryCopy) {
        let MemoryCopy { transfer, request, peer, address, offset, bytes, .. } = copy;
        let Io { link, read_ahead, operations, .. } = &mut *self.io;
        let outstanding = operations.get(request).expect("copies serve outstanding operations");
        let receives = matches!(outstanding.operation, Operation::Receive) && offset == 0 && address.key == 0;
        let was_read =
            receives && read_ahead::read_rendezvous(link, read_ahead, peer, address, outstanding, bytes);
        let result = if was_read { Some(Ok(())) } else { self.io.copy(&copy) };
        if let Some(result) = result {
            self.io.cause(Event::CopyDone { transfer, result });
        }
    }
}

impl<L: Link, S: CompletionSink> OperationDriver for EventDriver<'_, L, S> {
    #[inline(always)]
    fn can_hold(&self) -> bool {
        self.io.operations.count() < MAX_OPERATIONS as usize
    }

    #[inline(always)]
    fn hold(&mut self, request: Request, announced: bool) -> Request {
        let Some(posted) = self.posted.take() else { return request };
        let inject = posted.inject;
        let mut operation = posted.into_outstanding();
        let has_own_buffer = inject && announced && operation.memory.bytes() > 0;
        if has_own_buffer {
            operation.use_bounce_buffer(); // the address that the packet announces must remain valid
        }
        let request = self.io.operations.begin(operation);
        if inject && !has_own_buffer {
            self.io.held_injected = Some(request);
            self.io.has_aftermath = true;
        }
        request
    }

    fn messages_lost(&mut self, peer: Peer, count: u32, fault: PeerFault) {
        let process = self.io.link.process(peer); // the link forgets it next
        self.io.lost_messages.push((peer, process, count, fault));
        self.io.has_aftermath = true;
    }

    fn notify(&mut self, from: Peer, data: u64, bytes: u64) {
        let envelope = Envelope { from, tag: 0, data: Some(data), length: bytes };
        let outcome = Outcome::Received { envelope, bytes, offset: 0, last: true };
        let (post, operation, space) = (Post::default(), Operation::RemoteWrite, Space::Untagged);
        self.io.completions.push_back(Completion { post, operation, space, outcome, buffer: 0 });
    }

    fn complete(&mut self, request: Request, outcome: Outcome) {
        self.io.complete_held(request, outcome);
    }

    #[inline(always)]
    fn complete_posted(&mut self, _request: Request, outcome: Outcome) {
        let Some(Posted { post, operation, space, memory, delivered_to, .. }) = self.posted.take() else {
            return;
        };
        let buffer = match outcome {
            Outcome::Received { .. } => memory.contiguous_address().unwrap_or(0),
            _ => 0,
        };
        if let Some(to) = delivered_to
            && let Some(packets) = self.io.awaited_packets(to)
        {
            self.io.deliveries.add(to, packets, Completion { post, operation, space, outcome, buffer });
            return;
        }
        offer(&mut self.io.completions, Completion { post, operation, space, outcome, buffer }, self.sink);
    }

    #[inline(always)]
    fn deliver_packet(&mut self, request: Request, envelope: Envelope, bytes: u64) {
        let Io { operations, link, completions, .. } = &mut *self.io;
        // Only receives of one message take a whole packet.
        let operation = Operation::Receive;
        let Outstanding { post, space, memory, .. } = operations.take(request);
        if bytes > 0 {
            link.copy_payload(&memory, 0, bytes);
        }
        let buffer = memory.contiguous_address().unwrap_or(0);
        memory.release();
        let outcome = Outcome::Received { envelope, bytes, offset: 0, last: true };
        offer(completions, Completion { post, operation, space, outcome, buffer }, self.sink);
    }
}

impl<L: Link, S: CompletionSink> Driver for EventDriver<'_, L, S> {
    fn pass_on(&mut self, from: Peer, number: u32, packet: &Offloaded, payload_bytes: u32) {
        let arrived = MachineEvent::Arrived { from, number, packet: *packet, payload_bytes };
        self.io.offload(arrived).expect("arrivals are not refused");
    }

    fn answer_left(&mut self, buffer: BufferId) {
        self.io.machine_buffers.free(buffer);
        self.io.offload.answer_left(buffer);
    }

    fn peer_lost(&mut self, peer: Peer, fault: PeerFault) {
        self.io.deliveries.lost(peer, fault, &mut self.io.completions);
        self.io.offload(MachineEvent::Lost { peer, fault }).expect("losses are not refused");
    }
}
