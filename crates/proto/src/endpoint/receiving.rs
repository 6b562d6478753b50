//! Receiving: matching, assembling eager messages, and receiving rendezvous.
//!
//! This file names buffers by request or message. It does not know memory or lanes.

use alloc::vec::Vec;

use super::sending::BacklogEntry;
use super::{Endpoint, Outbound};
use crate::action::{Destination, Direction, Envelope, MemoryCopy, Outcome};
use crate::config::MAX_EAGER_BYTES;
use crate::driver::Driver;
use crate::event::{MessageId, Pattern, PeekThen, Peer, PeerFault, ReceiveCommand, Request, Transfer};
use crate::message::posted::Posted;
use crate::message::unexpected::{Payload, Unexpected, UnexpectedQueue};
use crate::packet::{Body, Space};
use crate::table::Number;
use crate::transfer::{PayloadPath, State};

/// A partly arrived eager message. A peer has at most one, because packets of a pair are in order. Every peer can have
/// one, so this structure is small.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbound {
    target: Target,
    /// The envelope of the message, without the sender.
    tag: u64,
    data: Option<u64>,
    /// At most [`MAX_EAGER_BYTES`].
    length: u32,
    /// Bytes that have arrived, which is the offset of the next packet.
    arrived: u32,
}

impl Inbound {
    /// The buffer range of the receive that the message has matched.
    pub(super) fn range(&self) -> Option<BufferRange> {
        match self.target {
            Target::Receive(range) => Some(range),
            Target::Message(_) => None,
        }
    }

    pub(super) fn arrived_bytes(&self) -> u64 {
        self.arrived.into()
    }

    fn envelope(&self, from: Peer) -> Envelope {
        Envelope { from, tag: self.tag, data: self.data, length: self.length.into() }
    }

    /// Whether the next packet may have `bytes` bytes at `offset`.
    #[inline]
    pub(super) fn continues_with(&self, offset: u64, bytes: u64) -> bool {
        offset == u64::from(self.arrived) && bytes > 0 && bytes <= u64::from(self.length) - offset
    }

    /// Whether `bytes` more bytes complete the message.
    #[inline]
    pub(super) fn completes_with(&self, bytes: u64) -> bool {
        u64::from(self.arrived) + bytes == u64::from(self.length)
    }

    /// Adds the next `bytes` bytes, which do not complete the message. Returns where to place them, and how many fit.
    #[inline(always)]
    pub(super) fn add_part(&mut self, bytes: u32, unexpected: &mut UnexpectedQueue) -> (Destination, u64) {
        let (offset, bytes_taken) = (u64::from(self.arrived), u64::from(bytes));
        self.arrived += bytes;
        match self.target {
            Target::Receive(range) => range.part(offset, bytes_taken),
            Target::Message(message) => {
                let payload = Payload::Arriving { bytes: self.arrived.into() };
                let known = unexpected.edit(message, |unexpected| unexpected.payload = payload).is_some();
                // A discarded message has no entry; its bytes are dropped.
                (Destination::Message { message, offset }, if known { bytes_taken } else { 0 })
            }
        }
    }

    #[cfg(feature = "explore")]
    pub(super) fn arrived_and_length(&self) -> (u64, u64) {
        (self.arrived.into(), self.length.into())
    }
}

#[derive(Clone, Copy, Debug)]
enum Target {
    Receive(BufferRange),
    Message(MessageId),
}

/// The range of a receive buffer that a matched message owns.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferRange {
    pub request: Request,
    pub multi: Option<u32>,
    pub offset: u64,
    pub bytes: u64,
}

impl BufferRange {
    /// Where `bytes` bytes at `offset` of the message go, and how many of them fit.
    #[inline]
    fn part(&self, offset: u64, bytes: u64) -> (Destination, u64) {
        let to = Destination::Request { request: self.request, offset: self.offset + offset };
        (to, bytes.min(self.bytes.saturating_sub(offset)))
    }
}

/// Multi-receive buffers, by the index in the posted receive.
#[derive(Clone, Debug, Default)]
pub(super) struct MultiBuffers {
    buffers: Vec<MultiBuffer>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct MultiBuffer {
    capacity_bytes: u64,
    min_free_bytes: u64,
    used_bytes: u64,
    /// Matched messages that have not completed.
    arriving: u32,
    /// No further message matches it. It is released when its matched messages have completed.
    closed: bool,
    canceled: bool,
}

impl MultiBuffers {
    /// Buffers that have not ended.
    pub(super) fn count(&self) -> usize {
        self.buffers.len() - self.free.len()
    }

    fn add(&mut self, capacity_bytes: u64, min_free_bytes: u64) -> u32 {
        let buffer = MultiBuffer {
            capacity_bytes,
            min_free_bytes,
            used_bytes: 0,
            arriving: 0,
            closed: false,
            canceled: false,
        };
        match self.free.pop() {
            Some(index) => {
                self.buffers[index as usize] = buffer;
                index
            }
            None => {
                self.buffers.push(buffer);
                self.buffers.len() as u32 - 1
            }
        }
    }
}

impl Endpoint {
    /// A receive that the common cases do not cover.
    pub(super) fn receive_uncommon<D: Driver>(&mut self, receive: ReceiveCommand, driver: &mut D) {
        let ReceiveCommand { request, pattern, capacity_bytes, multi } = receive;
        if let Some(min_free_bytes) = multi {
            let index = self.multi.add(capacity_bytes, min_free_bytes);
            self.posted.post(request, pattern, capacity_bytes, Some(index));
            // Unexpected messages fill it in order, until it closes or an older receive matches one.
            while let Some(message) = self.unexpected.find(&pattern) {
                let Unexpected { space, envelope, .. } = self.unexpected.get(message).expect("found");
                let Some(range) = self.match_posted(space, &envelope, driver) else { break };
                self.deliver(message, range, driver);
            }
            // It may have closed. Its buffer is then free, or waits for its messages.
            if let Some(lost) = self.only_failed_peers_match(&pattern)
                && self.posted.remove_request(request).is_some()
            {
                self.fail_multi(index, request, lost, driver);
            }
            return;
        }
        if let Some(message) = self.unexpected.find(&pattern) {
            self.deliver_whole(message, request, capacity_bytes, driver);
            return;
        }
        if let Some(outcome) = self.only_failed_peers_match(&pattern) {
            driver.complete(request, outcome);
            return;
        }
        self.posted.post(request, pattern, capacity_bytes, None);
    }

    pub(super) fn receive_claimed<D: Driver>(
        &mut self,
        request: Request,
        message: MessageId,
        capacity_bytes: u64,
        driver: &mut D,
    ) {
        let known = self.unexpected.get(message).is_some_and(|message| message.claimed);
        assert!(known, "{message:?} is not claimed");
        self.deliver_whole(message, request, capacity_bytes, driver);
    }

    pub(super) fn peek<D: Driver>(
        &mut self,
        request: Request,
        pattern: &Pattern,
        then: PeekThen,
        driver: &mut D,
    ) {
        let Some(message) = self.unexpected.find(pattern) else {
            let outcome = self.only_failed_peers_match(pattern).unwrap_or(Outcome::Absent);
            driver.complete(request, outcome);
            return;
        };
        let envelope = self.unexpected.get(message).expect("found").envelope;
        let claimed = match then {
            PeekThen::Leave => None,
            PeekThen::LeaveUntilSeenTwice => {
                let see = |unexpected: &mut Unexpected| core::mem::replace(&mut unexpected.seen, true);
                if !self.unexpected.edit(message, see).expect("found") {
                    driver.complete(request, Outcome::Absent);
                    return;
                }
                None
            }
            PeekThen::Claim => {
                self.unexpected.claim(message);
                Some(message)
            }
            PeekThen::Discard => return self.discard(request, message, driver),
        };
        driver.complete(request, Outcome::Found { envelope, claimed });
    }

    /// Removes a message without a buffer.
    pub(super) fn discard<D: Driver>(&mut self, request: Request, message: MessageId, driver: &mut D) {
        let unexpected = self.unexpected.get(message).expect("a message to discard exists");
        let from = unexpected.envelope.from;
        self.free_unexpected(message, driver);
        if let Payload::Arriving { .. } = unexpected.payload
            && let Some(inbound) = self.inbound(from)
        {
            // Its further packets are read and dropped: no message has this name.
            inbound.target = Target::Message(MessageId(u32::MAX));
        }
        let answer = match unexpected.payload {
            Payload::WithSender { transfer, .. } => Some(transfer),
            Payload::Whole | Payload::Arriving { .. } => unexpected.acknowledge,
        };
        if let Some(transfer) = answer {
            self.acknowledge_transfer(from, transfer, unexpected.envelope.length, driver);
        }
        let found = Outcome::Found { envelope: unexpected.envelope, claimed: None };
        driver.complete(request, found);
    }

    pub(super) fn cancel<D: Driver>(&mut self, request: Request, driver: &mut D) {
        let Some(posted) = self.posted.remove_request(request) else { return };
        let Some(index) = posted.multi() else {
            driver.complete(request, Outcome::Canceled);
            return;
        };
        let buffer = &mut self.multi.buffers[index as usize];
        (buffer.closed, buffer.canceled) = (true, true);
        if buffer.arriving == 0 {
            self.multi.free.push(index);
            driver.complete(request, Outcome::Canceled);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of the packet")]
    pub(super) fn eager_arrived<D: Driver>(
        &mut self,
        from: Peer,
        space: Space,
        tag: u64,
        data: Option<u64>,
        length: u32,
        acknowledge: Option<Transfer>,
        bytes: u64,
        driver: &mut D,
    ) -> bool {
        // The previous message must be complete, and no setting allows longer eager messages.
        if self.peer(from).inbound.is_some() || u64::from(length) > MAX_EAGER_BYTES {
            return false;
        }
        let envelope = Envelope { from, tag, data, length: u64::from(length) };
        let whole = bytes == envelope.length;
        let target = match self.match_posted(space, &envelope, driver) {
            Some(range) => {
                self.place(range, 0, bytes, driver);
                if whole {
                    self.received(range, &envelope, driver);
                }
                if let Some(transfer) = acknowledge {
                    self.acknowledge_transfer(from, transfer, envelope.length, driver);
                }
                Target::Receive(range)
            }
            None => {
                if self.unexpected.count() >= self.config.max_unexpected {
                    return false;
                }
                let payload = if whole { Payload::Whole } else { Payload::Arriving { bytes } };
                let message = self.queue_unexpected(Unexpected {
                    space,
                    envelope,
                    payload,
                    acknowledge,
                    claimed: false,
                    seen: false,
                });
                if length > 0 {
                    driver.allocate_unexpected(message, envelope.length);
                    let to = Destination::Message { message, offset: 0 };
                    driver.place(to, bytes);
                }
                Target::Message(message)
            }
        };
        if !whole {
            let inbound = Inbound { target, tag, data, length, arrived: bytes as u32 };
            self.peer(from).inbound = Some(Number::of(self.inbounds.insert(inbound)));
        }
        true
    }

    /// The partly arrived eager message of `from`.
    #[inline]
    fn inbound(&mut self, from: Peer) -> Option<&mut Inbound> {
        let number = self.peer(from).inbound?;
        self.inbounds.get_mut(number.get())
    }

    pub(super) fn more_arrived<D: Driver>(
        &mut self,
        from: Peer,
        offset: u64,
        bytes: u64,
        driver: &mut D,
    ) -> bool {
        let Some(number) = self.peer(from).inbound else { return false };
        let inbound = self.inbounds.get_mut(number.get()).expect("partly arrived messages have entries");
        if !inbound.continues_with(offset, bytes) {
            return false;
        }
        inbound.arrived += bytes as u32;
        let (target, envelope, arrived) =
            (inbound.target, inbound.envelope(from), u64::from(inbound.arrived));
        let whole = arrived == envelope.length;
        if whole {
            self.peer(from).inbound = None;
            self.inbounds.remove(number.get());
        }
        match target {
            Target::Receive(range) => {
                self.place(range, offset, bytes, driver);
                if whole {
                    self.received(range, &envelope, driver);
                }
            }
            Target::Message(message) => {
                // A discarded message has no entry; its bytes are dropped.
                let payload = if whole { Payload::Whole } else { Payload::Arriving { bytes: arrived } };
                if self.unexpected.edit(message, |unexpected| unexpected.payload = payload).is_some() {
                    let to = Destination::Message { message, offset };
                    driver.place(to, bytes);
                }
            }
        }
        true
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of the packet")]
    pub(super) fn rendezvous_arrived<D: Driver>(
        &mut self,
        from: Peer,
        space: Space,
        tag: u64,
        data: Option<u64>,
        length: u64,
        address: u64,
        transfer: Transfer,
        driver: &mut D,
    ) -> bool {
        if self.peer(from).inbound.is_some() {
            return false;
        }
        driver.announcement_arrived(from, address, length);
        let envelope = Envelope { from, tag, data, length };
        if let Some(range) = self.match_posted(space, &envelope, driver) {
            self.receive_rendezvous(range, envelope, transfer, address, driver);
            return true;
        }
        if self.unexpected.count() >= self.config.max_unexpected {
            return false;
        }
        let payload = Payload::WithSender { transfer, address };
        self.queue_unexpected(Unexpected {
            space,
            envelope,
            payload,
            acknowledge: None,
            claimed: false,
            seen: false,
        });
        true
    }

    /// A rendezvous has been received by a copy or in packets.
    pub(super) fn rendezvous_received<D: Driver>(
        &mut self,
        from: Peer,
        range: BufferRange,
        envelope: &Envelope,
        sender: Transfer,
        driver: &mut D,
    ) {
        self.received(range, envelope, driver);
        self.acknowledge_transfer(from, sender, envelope.length, driver);
    }

    pub(super) fn queue_unexpected(&mut self, unexpected: Unexpected) -> MessageId {
        if !matches!(unexpected.payload, Payload::WithSender { .. }) {
            self.budget.charge(unexpected.envelope.length);
        }
        let message = self.unexpected.push(unexpected);
        let counters = &mut self.counters;
        counters.peak_unexpected_messages =
            counters.peak_unexpected_messages.max(u64::from(self.unexpected.count()));
        counters.peak_unexpected_bytes = counters.peak_unexpected_bytes.max(self.unexpected.buffered_bytes());
        counters.peak_budget_used_bytes = counters.peak_budget_used_bytes.max(self.budget.used_bytes());
        message
    }

    /// Finds the oldest posted receive that accepts a message, and reserves its buffer range.
    #[inline]
    fn match_posted<D: Driver>(
        &mut self,
        space: Space,
        envelope: &Envelope,
        driver: &mut D,
    ) -> Option<BufferRange> {
        loop {
            let (place, posted) = self.posted.find(space, envelope.from, envelope.tag)?;
            let Posted { request, capacity_bytes, .. } = posted;
            let multi = posted.multi();
            let Some(index) = multi else {
                self.posted.remove(place);
                let bytes = envelope.length.min(capacity_bytes);
                return Some(BufferRange { request, multi: None, offset: 0, bytes });
            };
            let buffer = &mut self.multi.buffers[index as usize];
            let free_bytes = buffer.capacity_bytes - buffer.used_bytes;
            let fits = envelope.length <= free_bytes || buffer.used_bytes == 0;
            let range = BufferRange {
                request,
                multi,
                offset: buffer.used_bytes,
                bytes: envelope.length.min(free_bytes),
            };
            if fits {
                buffer.used_bytes += range.bytes;
                buffer.arriving += 1;
            }
            let full = buffer.capacity_bytes - buffer.used_bytes < buffer.min_free_bytes;
            if !fits || full || buffer.used_bytes == buffer.capacity_bytes {
                buffer.closed = true;
                let idle = buffer.arriving == 0;
                self.posted.remove(place);
                if idle {
                    self.multi.free.push(index);
                    driver.complete(request, Outcome::Released);
                }
            }
            if fits {
                return Some(range);
            }
        }
    }

    /// Places the part of an arrived payload that fits into the range. `offset` counts from the start of the message.
    #[inline]
    fn place<D: Driver>(&self, range: BufferRange, offset: u64, bytes: u64, driver: &mut D) {
        let (to, bytes) = range.part(offset, bytes);
        if bytes > 0 {
            driver.place(to, bytes);
        }
    }

    /// A matched message is complete.
    #[inline]
    pub(super) fn received<D: Driver>(&mut self, range: BufferRange, envelope: &Envelope, driver: &mut D) {
        self.counters.messages_received += 1;
        self.counters.bytes_received += range.bytes;
        let BufferRange { request, multi, offset, bytes } = range;
        let (last, canceled) = self.leave_multi(multi);
        let last_message = last && !canceled;
        let outcome = Outcome::Received { envelope: *envelope, bytes, offset, last: last_message };
        driver.complete(request, outcome);
        if canceled && last {
            driver.complete(request, Outcome::Canceled);
        }
    }

    /// A message of a multi-receive buffer has ended. Returns whether that ends the buffer, and whether it was
    /// canceled.
    fn leave_multi(&mut self, multi: Option<u32>) -> (bool, bool) {
        let Some(index) = multi else { return (true, false) };
        let buffer = &mut self.multi.buffers[index as usize];
        buffer.arriving -= 1;
        let ended = buffer.closed && buffer.arriving == 0;
        let canceled = buffer.canceled;
        if ended {
            self.multi.free.push(index);
        }
        (ended, canceled)
    }

    /// A matched message will never complete: its sender is lost.
    pub(super) fn receive_lost<D: Driver>(
        &mut self,
        range: BufferRange,
        peer: Peer,
        fault: PeerFault,
        driver: &mut D,
    ) {
        // A lost message leaves a gap in a multi-receive buffer, which stays in use.
        let (ended, canceled) = self.leave_multi(range.multi);
        match (range.multi, ended, canceled) {
            (None, ..) => {
                let outcome = Outcome::Lost { peer: Some(peer), fault };
                driver.complete(range.request, outcome);
            }
            (Some(_), true, true) => driver.complete(range.request, Outcome::Canceled),
            (Some(_), true, false) => driver.complete(range.request, Outcome::Released),
            (Some(_), false, _) => {}
        }
    }

    /// A multi-receive buffer is returned as lost, after its pending messages.
    pub(super) fn fail_multi<D: Driver>(
        &mut self,
        index: u32,
        request: Request,
        lost: Outcome,
        driver: &mut D,
    ) {
        let buffer = &mut self.multi.buffers[index as usize];
        buffer.closed = true;
        if buffer.arriving == 0 {
            self.multi.free.push(index);
            driver.complete(request, lost);
        }
    }

    /// Delivers an unexpected message to a receive for one message.
    fn deliver_whole<D: Driver>(
        &mut self,
        message: MessageId,
        request: Request,
        capacity_bytes: u64,
        driver: &mut D,
    ) {
        let length = self.unexpected.get(message).expect("a message to deliver exists").envelope.length;
        let range = BufferRange { request, multi: None, offset: 0, bytes: length.min(capacity_bytes) };
        self.deliver(message, range, driver);
    }

    fn deliver<D: Driver>(&mut self, message: MessageId, range: BufferRange, driver: &mut D) {
        let unexpected = self.unexpected.get(message).expect("a message to deliver exists");
        let envelope = unexpected.envelope;
        let from = envelope.from;
        let buffered_bytes = match unexpected.payload {
            Payload::WithSender { transfer, address } => {
                self.unexpected.remove(message);
                self.receive_rendezvous(range, envelope, transfer, address, driver);
                return;
            }
            Payload::Whole => envelope.length,
            Payload::Arriving { bytes } => bytes,
        };
        let bytes = buffered_bytes.min(range.bytes);
        if bytes > 0 {
            let BufferRange { request, offset, .. } = range;
            driver.deliver(message, request, offset, bytes);
        }
        self.free_unexpected(message, driver);
        if unexpected.payload == Payload::Whole {
            self.received(range, &envelope, driver);
        } else if let Some(inbound) = self.inbound(from) {
            inbound.target = Target::Receive(range);
        } else {
            // Its sender was lost before the rest came.
            let fault = self.fault(from).unwrap_or(PeerFault::Died);
            self.receive_lost(range, from, fault, driver);
        }
        if let Some(transfer) = unexpected.acknowledge {
            self.acknowledge_transfer(from, transfer, envelope.length, driver);
        }
    }

    /// Starts to receive a rendezvous: by a copy between the processes, or in packets.
    fn receive_rendezvous<D: Driver>(
        &mut self,
        range: BufferRange,
        envelope: Envelope,
        sender: Transfer,
        address: u64,
        driver: &mut D,
    ) {
        let from = envelope.from;
        if let Some(fault) = self.fault(from) {
            self.receive_lost(range, from, fault, driver);
            return;
        }
        if range.bytes == 0 {
            self.rendezvous_received(from, range, &envelope, sender, driver);
            return;
        }
        let BufferRange { request, multi, offset, bytes } = range;
        let can_copy = address != 0 && self.peer(from).cross_memory;
        let path = if can_copy { PayloadPath::Copying } else { PayloadPath::Packets };
        let state = State::Receive { request, multi, sender, envelope, offset, bytes, left: bytes, path };
        let transfer = self.transfers.begin(from, state);
        if can_copy {
            self.counters.cross_memory_copies += 1;
            self.counters.cross_memory_bytes += bytes;
            let direction = Direction::Get;
            driver.copy(MemoryCopy { transfer, request, peer: from, direction, address, offset, bytes });
        } else {
            let fetch = Body::Fetch { transfer: sender, reply: transfer, length: bytes };
            self.submit(from, BacklogEntry::control(fetch), driver);
        }
    }

    /// Whether only failed peers could match the pattern: then the outcome of the receive.
    #[inline]
    pub(super) fn only_failed_peers_match(&self, pattern: &Pattern) -> Option<Outcome> {
        match pattern.from {
            Some(peer) => match self.peers.full_entry(peer.0 as usize)?.path.outbound {
                // A peer that closed in good order may be awaited on purpose: see `lose`.
                Outbound::Lost(PeerFault::Closed) => None,
                Outbound::Lost(fault) => Some(Outcome::Lost { peer: Some(peer), fault }),
                _ => None,
            },
            None if self.any_peer_died => Some(Outcome::Lost { peer: None, fault: PeerFault::Died }),
            None => None,
        }
    }
}
