//! The hold queue of a sender: messages that it has announced to one receiver, which may have dropped their envelopes.
//!
//! The receiver asks for the first match from a message number on, or for messages to be announced again. A holder
//! stores one such request. It answers when the answer can leave, so that the answer speaks of everything sent before.
//! This file does not know packets, credits or payload. docs/explanation/receiver-memory.md explains holding.

use alloc::collections::BTreeMap;

use super::bounce::BounceBuffers;
use crate::action::Envelope;
use crate::event::{MessageId, Pattern, Peer, Transfer};
use crate::message::unexpected::{Payload, Unexpected, UnexpectedQueue};
use crate::packet::{RemoteAddress, Space};

/// A request of the receiver, which has not been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldRequest {
    /// The first match of this pattern, from any sender. `look`: note that it was seen. The answer may carry a message of
    /// at most `carry_bytes`, unless that is 0.
    Ask { pattern: Pattern, look: bool, carry_bytes: u32 },
    /// Announce this many messages again.
    Resume { left: u32 },
}

/// A message that is held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub space: Space,
    /// `from` is the receiver.
    pub envelope: Envelope,
    pub transfer: Transfer,
    pub number: u32,
    /// A question with `look` has found it before.
    pub seen: bool,
}

/// The messages that are held for one receiver, in the order in which they were sent.
#[derive(Clone, Debug, Default)]
pub(super) struct HoldQueue {
    /// The address of each entry is its message number.
    queue: UnexpectedQueue,
    /// The entries of messages without a bounce buffer, by transfer. Bounce buffers know theirs.
    by_transfer: BTreeMap<Transfer, MessageId>,
    /// The request that waits for its answer.
    pub request: Option<HoldRequest>,
}

impl HoldQueue {
    /// Whether it has no messages and no request.
    pub fn is_empty(&self) -> bool {
        !self.holds() && self.request.is_none()
    }

    /// Packets that the request still needs.
    pub fn answer_packets(&self) -> u32 {
        match self.request {
            None => 0,
            Some(HoldRequest::Ask { .. }) => 1,
            Some(HoldRequest::Resume { left }) => left.min(self.count()),
        }
    }

    /// Whether it has messages.
    #[inline]
    pub fn holds(&self) -> bool {
        self.queue.count() > 0
    }

    /// Number of messages.
    pub fn count(&self) -> u32 {
        self.queue.count()
    }

    /// Heap memory that it uses. Unit: bytes.
    pub fn bytes(&self) -> usize {
        // A node of the map is between half full and full.
        self.queue.bytes() + 2 * self.by_transfer.len() * size_of::<(Transfer, MessageId)>()
    }

    /// Appends an announced message.
    pub fn push(&mut self, held: &Held, bounce_buffers: &mut BounceBuffers) {
        let Held { space, envelope, transfer, number, .. } = *held;
        let address = RemoteAddress::without_key(u64::from(number));
        let payload = Payload::WithSender { transfer, address };
        let message = self.queue.push(Unexpected::new(space, envelope, payload, None));
        if !bounce_buffers.set_held(transfer, Some(message)) {
            self.by_transfer.insert(transfer, message);
        }
    }

    /// The entry of the message of `transfer`, if it is held.
    fn of_transfer(&self, transfer: Transfer, bounce_buffers: &BounceBuffers) -> Option<MessageId> {
        bounce_buffers.held(transfer).or_else(|| self.by_transfer.get(&transfer).copied())
    }

    /// The number of the message of `transfer`, if it is held.
    pub fn number(&self, transfer: Transfer, bounce_buffers: &BounceBuffers) -> Option<u32> {
        Some(self.get(self.of_transfer(transfer, bounce_buffers)?)?.number)
    }

    /// The message of `transfer` is not held any more, if it was.
    pub fn remove(&mut self, transfer: Transfer, bounce_buffers: &mut BounceBuffers) {
        let Some(message) = self.of_transfer(transfer, bounce_buffers) else { return };
        if !bounce_buffers.set_held(transfer, None) {
            self.by_transfer.remove(&transfer);
        }
        self.queue.remove(message);
    }

    /// The receiver keeps or has all messages with numbers below `first`.
    pub fn prune(&mut self, first: u32, bounce_buffers: &mut BounceBuffers) {
        let older = |held: &Held| (held.number.wrapping_sub(first) as i32) < 0;
        while let Some(held) = self.first().filter(older) {
            self.remove(held.transfer, bounce_buffers);
        }
    }

    /// The message that was sent first.
    pub fn first(&mut self) -> Option<Held> {
        let first_of = |space| {
            let any = Pattern { space, from: None, tag: 0, ignore: u64::MAX };
            let message = self.queue.find(&any)?;
            self.get(message)
        };
        let [one, other] = [Space::Untagged, Space::Tagged].map(first_of);
        match (one, other) {
            (Some(a), Some(b)) if (a.number.wrapping_sub(b.number) as i32) < 0 => Some(a),
            (one, other) => other.or(one),
        }
    }

    /// The first message that `pattern` accepts.
    pub fn find(&mut self, pattern: &Pattern) -> Option<Held> {
        let message = self.queue.find(pattern)?;
        self.get(message)
    }

    /// The first message that `pattern` accepts counts as seen from now on.
    pub fn note_seen(&mut self, pattern: &Pattern) {
        if let Some(message) = self.queue.find(pattern) {
            self.queue.edit(message, |message| message.seen = true);
        }
    }

    fn get(&self, message: MessageId) -> Option<Held> {
        let Unexpected { space, envelope, payload, seen, .. } = self.queue.get(message)?;
        let Payload::WithSender { transfer, address } = payload else { return None };
        Some(Held { space, envelope, transfer, number: address.address as u32, seen })
    }
}

impl Held {
    /// The message of an announcement to `to`.
    pub fn new(
        to: Peer,
        (space, tag, data, length): (Space, u64, Option<u64>, u64),
        transfer: Transfer,
        number: u32,
    ) -> Held {
        let envelope = Envelope { from: to, tag, data, length };
        Held { space, envelope, transfer, number, seen: false }
    }
}
