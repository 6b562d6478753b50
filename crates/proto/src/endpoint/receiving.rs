//! Receiving, beside the common cases in [`super::fast_path`]: messages and receives find each other, and eager
//! messages are assembled. Payload of announced messages is copied or requested in packets. Peeks, discards and
//! receives of claimed messages are here too, and whether a receive can still match a peer that is not lost.
//!
//! This file names buffers by request or message. The driver has their memory.

use super::backlog::BacklogEntry;
use super::inbound::{BufferRange, Inbound, Target};
use super::path::Outbound;
use super::state::Endpoint;
use crate::action::{Destination, Direction, Envelope, MemoryCopy, Outcome};
use crate::config::MAX_EAGER_BYTES;
use crate::driver::Driver;
use crate::event::{MessageId, Pattern, PeekThen, Peer, PeerFault, Request, Transfer};
use crate::message::unexpected::{Payload, Unexpected};
use crate::packet::{Body, RemoteAddress, Space};
use crate::table::Number;
use crate::transfer::{PayloadPath, State};

/// A message that a sender announces or offers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    pub space: Space,
    pub envelope: Envelope,
    /// Where it can be read.
    pub address: RemoteAddress,
    pub transfer: Transfer,
}

impl Endpoint {
    pub(super) fn receive_claimed<D: Driver>(
        &mut self,
        request: Request,
        message: MessageId,
        capacity_bytes: u64,
        driver: &mut D,
    ) {
        let known = self.matching.unexpected.get(message).is_some_and(|message| message.claimed);
        assert!(known, "{message:?} is not claimed");
        self.deliver_whole(message, request, capacity_bytes, driver);
    }

    /// A peek for the messages that are kept here. Returns whether it has found one.
    pub(super) fn peek_kept<D: Driver>(
        &mut self,
        request: Request,
        pattern: &Pattern,
        then: PeekThen,
        driver: &mut D,
    ) -> bool {
        let Some(message) = self.matching.unexpected.find(pattern) else { return false };
        let envelope = self.matching.unexpected.get(message).expect("found").envelope;
        let claimed = match then {
            PeekThen::Leave => None,
            PeekThen::LeaveUntilSeenTwice => {
                let see = |unexpected: &mut Unexpected| core::mem::replace(&mut unexpected.seen, true);
                if !self.matching.unexpected.edit(message, see).expect("found") {
                    driver.complete(request, Outcome::Absent);
                    return true;
                }
                None
            }
            PeekThen::Claim => {
                self.matching.unexpected.claim(message);
                Some(message)
            }
            PeekThen::Discard => {
                self.discard(request, message, driver);
                return true;
            }
        };
        driver.complete(request, Outcome::Found { envelope, claimed });
        true
    }

    /// Removes a message without a buffer.
    pub(super) fn discard<D: Driver>(&mut self, request: Request, message: MessageId, driver: &mut D) {
        let unexpected = self.matching.unexpected.get(message).expect("a message to discard exists");
        let from = unexpected.envelope.from;
        self.matching.free_unexpected(message, &mut self.paths.budget, driver);
        if let Payload::Arriving { .. } = unexpected.payload
            && let Some(number) = self.paths.peer(from).path.inbound
        {
            // Its further packets are read and dropped: no message has this name.
            self.matching.inbound(number).retarget(Target::Message(MessageId(u32::MAX)));
        }
        let answer = match unexpected.payload {
            Payload::WithSender { transfer, .. } => Some(transfer),
            Payload::Whole | Payload::Arriving { .. } => unexpected.acknowledge,
        };
        if let Some(transfer) = answer {
            self.acknowledge(from, transfer, unexpected.envelope.length, driver);
        }
        let found = Outcome::Found { envelope: unexpected.envelope, claimed: None };
        driver.complete(request, found);
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
        if self.paths.peer(from).path.inbound.is_some() || u64::from(length) > MAX_EAGER_BYTES {
            return false;
        }
        let envelope = Envelope { from, tag, data, length: u64::from(length) };
        let whole = bytes == envelope.length;
        let target = match self.matching.match_posted(space, &envelope, driver) {
            Some(range) => {
                range.place(0, bytes, driver);
                if whole {
                    self.received(range, &envelope, driver);
                }
                if let Some(transfer) = acknowledge {
                    self.acknowledge(from, transfer, envelope.length, driver);
                }
                Target::Receive(range)
            }
            None => {
                if self.matching.unexpected.count() >= self.paths.config.max_unexpected
                    || !self.paths.heeds_mark(from, envelope.length)
                {
                    return false;
                }
                let payload = if whole { Payload::Whole } else { Payload::Arriving { bytes } };
                let message = self.queue_unexpected(Unexpected::new(space, envelope, payload, acknowledge));
                if length > 0 {
                    driver.allocate_unexpected(message, envelope.length);
                    let to = Destination::Message { message, offset: 0 };
                    driver.place(to, bytes);
                }
                Target::Message(message)
            }
        };
        if !whole {
            let inbound = Inbound::new(target, &envelope, bytes);
            self.paths.peer(from).path.inbound = Some(Number::of(self.matching.inbounds.insert(inbound)));
        }
        true
    }

    pub(super) fn more_arrived<D: Driver>(
        &mut self,
        from: Peer,
        offset: u64,
        bytes: u64,
        driver: &mut D,
    ) -> bool {
        let Some(number) = self.paths.peer(from).path.inbound else { return false };
        let inbound = self.matching.inbound(number);
        if !inbound.continues_with(offset, bytes) {
            return false;
        }
        let arrived = inbound.add(bytes);
        let (target, envelope) = (inbound.target(), inbound.envelope(from));
        let whole = arrived == envelope.length;
        if whole {
            self.paths.peer(from).path.inbound = None;
            self.matching.inbounds.remove(number.get());
        }
        match target {
            Target::Receive(range) => {
                range.place(offset, bytes, driver);
                if whole {
                    self.received(range, &envelope, driver);
                }
            }
            Target::Message(message) => {
                // A discarded message has no entry; its bytes are dropped.
                let payload = if whole { Payload::Whole } else { Payload::Arriving { bytes: arrived } };
                if self.matching.unexpected.edit(message, |unexpected| unexpected.payload = payload).is_some()
                {
                    let to = Destination::Message { message, offset };
                    driver.place(to, bytes);
                }
            }
        }
        true
    }

    /// An announced message has matched a receive.
    pub(super) fn take_announced<D: Driver>(
        &mut self,
        range: BufferRange,
        announced: Announced,
        driver: &mut D,
    ) {
        let Announced { envelope, address, transfer, .. } = announced;
        driver.announcement_arrived(envelope.from, address, envelope.length);
        self.receive_rendezvous(range, envelope, transfer, address, driver);
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
        self.acknowledge(from, sender, envelope.length, driver);
    }

    /// Adds an unexpected message.
    pub(super) fn queue_unexpected(&mut self, unexpected: Unexpected) -> MessageId {
        let Endpoint { paths, matching, .. } = self;
        matching.queue_unexpected(unexpected, &mut paths.budget, &mut paths.counters)
    }

    /// A matched message is complete.
    #[inline]
    fn received<D: Driver>(&mut self, range: BufferRange, envelope: &Envelope, driver: &mut D) {
        self.matching.received(range, envelope, &mut self.paths.counters, driver);
    }

    /// Acknowledges `transfer` of `to`, with `bytes` bytes of payload, which has ended well.
    pub(super) fn acknowledge<D: Driver>(
        &mut self,
        to: Peer,
        transfer: Transfer,
        bytes: u64,
        driver: &mut D,
    ) {
        self.paths.acknowledge_transfer(to, transfer, bytes, &mut self.payloads, driver);
    }

    /// Delivers an unexpected message to a receive for one message.
    pub(super) fn deliver_whole<D: Driver>(
        &mut self,
        message: MessageId,
        request: Request,
        capacity_bytes: u64,
        driver: &mut D,
    ) {
        let length =
            self.matching.unexpected.get(message).expect("a message to deliver exists").envelope.length;
        let range = BufferRange { request, multi: None, offset: 0, bytes: length.min(capacity_bytes) };
        self.deliver(message, range, driver);
    }

    pub(super) fn deliver<D: Driver>(&mut self, message: MessageId, range: BufferRange, driver: &mut D) {
        let unexpected = self.matching.unexpected.get(message).expect("a message to deliver exists");
        let envelope = unexpected.envelope;
        let from = envelope.from;
        let buffered_bytes = match unexpected.payload {
            Payload::WithSender { transfer, address } => {
                self.matching.free_unexpected(message, &mut self.paths.budget, driver);
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
        self.matching.free_unexpected(message, &mut self.paths.budget, driver);
        if unexpected.payload == Payload::Whole {
            self.received(range, &envelope, driver);
        } else if let Some(number) = self.paths.peer(from).path.inbound {
            self.matching.inbound(number).retarget(Target::Receive(range));
        } else {
            // Its sender was lost before the rest came.
            let fault = self.paths.fault(from).unwrap_or(PeerFault::Died);
            self.matching.receive_lost(range, from, fault, driver);
        }
        if let Some(transfer) = unexpected.acknowledge {
            self.acknowledge(from, transfer, envelope.length, driver);
        }
    }

    /// Starts to receive a rendezvous: by a copy between the processes, or in packets.
    fn receive_rendezvous<D: Driver>(
        &mut self,
        range: BufferRange,
        envelope: Envelope,
        sender: Transfer,
        address: RemoteAddress,
        driver: &mut D,
    ) {
        let from = envelope.from;
        if let Some(fault) = self.paths.fault(from) {
            self.matching.receive_lost(range, from, fault, driver);
            return;
        }
        if range.bytes == 0 {
            self.rendezvous_received(from, range, &envelope, sender, driver);
            return;
        }
        let BufferRange { request, multi, offset, bytes } = range;
        let can_copy = !address.is_none() && self.paths.peer(from).path.grants.cross_memory;
        let path = if can_copy { PayloadPath::Copying } else { PayloadPath::Packets };
        let state = State::Receive { request, multi, sender, envelope, offset, bytes, left: bytes, path };
        let transfer = self.payloads.transfers.begin(from, state);
        if can_copy {
            self.paths.counters.cross_memory_copies += 1;
            self.paths.counters.cross_memory_bytes += bytes;
            let direction = Direction::Get;
            driver.copy(MemoryCopy { transfer, request, peer: from, direction, address, offset, bytes });
        } else {
            let fetch = Body::Fetch { transfer: sender, reply: transfer, length: bytes };
            let fetch = BacklogEntry::control(fetch);
            self.paths.submit(from, fetch, &mut self.payloads, driver);
        }
    }

    /// Whether only failed peers could match the pattern: then the outcome of the receive.
    #[inline]
    pub(super) fn only_failed_peers_match(&self, pattern: &Pattern) -> Option<Outcome> {
        match pattern.from {
            Some(peer) => match self.paths.peers.full_entry(peer.0 as usize)?.path.outbound {
                // A peer that closed in good order may be awaited on purpose: see `lose`.
                Outbound::Lost(PeerFault::Closed) => None,
                Outbound::Lost(fault) => Some(Outcome::Lost { peer: Some(peer), fault }),
                _ => None,
            },
            None if self.matching.any_peer_died => Some(Outcome::Lost { peer: None, fault: PeerFault::Died }),
            None => None,
        }
    }
}
