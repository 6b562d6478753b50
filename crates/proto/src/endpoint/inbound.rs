//! Partly arrived eager messages, and the ranges of buffers that messages own.

use crate::action::{Destination, Envelope};
use crate::driver::Driver;
use crate::event::{MessageId, Peer, Request};
use crate::message::unexpected::{Payload, UnexpectedQueue};

/// A partly arrived eager message. A peer has at most one, because packets of a pair are in order. Every peer can have
/// one, so this structure is small.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbound {
    target: Target,
    /// The envelope of the message, without the sender.
    tag: u64,
    data: Option<u64>,
    /// At most [`crate::MAX_EAGER_BYTES`].
    length: u32,
    /// Bytes that have arrived, which is the offset of the next packet.
    arrived: u32,
}

impl Inbound {
    /// The message of `envelope`, of which `arrived` bytes have arrived. It is not longer than
    /// [`crate::MAX_EAGER_BYTES`].
    pub(super) fn new(target: Target, envelope: &Envelope, arrived: u64) -> Inbound {
        let Envelope { from: _, tag, data, length } = *envelope;
        Inbound { target, tag, data, length: length as u32, arrived: arrived as u32 }
    }

    pub(super) fn target(&self) -> Target {
        self.target
    }

    /// Adds the next `bytes` bytes, which may complete the message. Returns the bytes that have arrived.
    pub(super) fn add(&mut self, bytes: u64) -> u64 {
        self.arrived += bytes as u32;
        self.arrived.into()
    }

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

    pub(super) fn envelope(&self, from: Peer) -> Envelope {
        Envelope { from, tag: self.tag, data: self.data, length: self.length.into() }
    }

    /// The rest of the message goes to `target`.
    pub(super) fn retarget(&mut self, target: Target) {
        self.target = target;
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

/// The buffer to which the bytes of a message go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// To the receive that it has matched.
    Receive(BufferRange),
    /// To its unexpected buffer. Without an entry of this name they are dropped.
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
    /// The destination of `bytes` bytes at `offset` of the message, and the number of them that fit.
    #[inline]
    fn part(&self, offset: u64, bytes: u64) -> (Destination, u64) {
        let to = Destination::Request { request: self.request, offset: self.offset + offset };
        (to, bytes.min(self.bytes.saturating_sub(offset)))
    }

    /// Places the part of an arrived payload that fits into the range. `offset` counts from the start of the message.
    #[inline]
    pub(super) fn place<D: Driver>(&self, offset: u64, bytes: u64, driver: &mut D) {
        let (to, bytes) = self.part(offset, bytes);
        if bytes > 0 {
            driver.place(to, bytes);
        }
    }
}
