//! Matching: posted receives, unexpected messages, and the messages that are partly arrived.
//!
//! This part finds the posted receive of a message that arrives, ends receives, and adds and removes unexpected
//! messages. A receive that is posted finds its message in [`UnexpectedQueue`] (`receiving.rs`). The budget and the
//! counters belong to the paths, so they are arguments.

use super::budget::Budget;
use super::holders::Holders;
use super::inbound::{BufferRange, Inbound};
use super::multi_receive::{Left, MultiBuffers};
use crate::action::{Envelope, Outcome};
use crate::counters::Counters;
use crate::driver::Driver;
use crate::event::{MessageId, Peer, PeerFault, Request};
use crate::message::posted::{PostOrder, Posted, PostedQueue};
use crate::message::unexpected::{Unexpected, UnexpectedQueue};
use crate::packet::Space;
use crate::table::{Number, Row};

/// Receives and messages that wait for each other or for their rest.
#[derive(Clone, Debug, Default)]
pub(super) struct Matching {
    pub posted: PostedQueue,
    pub unexpected: UnexpectedQueue,
    pub multi: MultiBuffers,
    /// Partly arrived eager messages, by number.
    pub inbounds: Row<Inbound>,
    /// Some peer has died: a receive from any source may wait for it.
    pub any_peer_died: bool,
    /// Peers whose messages we have dropped, and the receives and peeks that they are asked for.
    pub holders: Holders,
}

impl Matching {
    /// The partly arrived message of this number, which its peer's entry has.
    pub fn inbound(&mut self, number: Number) -> &mut Inbound {
        self.inbounds.get_mut(number.get()).expect("partly arrived messages have entries")
    }

    /// Finds the oldest posted receive that accepts a message, and reserves its buffer range.
    #[inline]
    pub fn match_posted<D: Driver>(
        &mut self,
        space: Space,
        envelope: &Envelope,
        driver: &mut D,
    ) -> Option<BufferRange> {
        self.match_posted_before(PostOrder::MAX, space, envelope, driver)
    }

    /// As [`Matching::match_posted`], of the receives posted before `end`.
    #[inline]
    pub fn match_posted_before<D: Driver>(
        &mut self,
        end: PostOrder,
        space: Space,
        envelope: &Envelope,
        driver: &mut D,
    ) -> Option<BufferRange> {
        loop {
            let (place, posted) = self.posted.find(space, envelope.from, envelope.tag)?;
            if posted.order() >= end {
                return None;
            }
            let Posted { request, capacity_bytes, .. } = posted;
            let multi = posted.multi();
            let Some(index) = multi else {
                self.posted.remove(place);
                let bytes = envelope.length.min(capacity_bytes);
                return Some(BufferRange { request, multi: None, offset: 0, bytes });
            };
            let reserved = self.multi.reserve(index, envelope.length);
            if reserved.closed {
                self.posted.remove(place);
            }
            if reserved.ended {
                driver.complete(request, Outcome::Released);
            }
            if let Some((offset, bytes)) = reserved.range {
                return Some(BufferRange { request, multi, offset, bytes });
            }
        }
    }

    /// A matched message is complete.
    #[inline]
    pub fn received<D: Driver>(
        &mut self,
        range: BufferRange,
        envelope: &Envelope,
        counters: &mut Counters,
        driver: &mut D,
    ) {
        counters.messages_received += 1;
        counters.bytes_received += range.bytes;
        let BufferRange { request, multi, offset, bytes } = range;
        let Left { ended: last, canceled } = self.leave(multi);
        let last_message = last && !canceled;
        let outcome = Outcome::Received { envelope: *envelope, bytes, offset, last: last_message };
        driver.complete(request, outcome);
        if canceled && last {
            driver.complete(request, Outcome::Canceled);
        }
    }

    /// A message of a receive has ended. A receive for one message ends with it.
    fn leave(&mut self, multi: Option<u32>) -> Left {
        match multi {
            Some(index) => self.multi.leave(index),
            None => Left { ended: true, canceled: false },
        }
    }

    /// A matched message will never complete: its sender is lost.
    pub fn receive_lost<D: Driver>(
        &mut self,
        range: BufferRange,
        peer: Peer,
        fault: PeerFault,
        driver: &mut D,
    ) {
        // A lost message leaves a gap in a multi-receive buffer, which stays in use.
        let Left { ended, canceled } = self.leave(range.multi);
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
    pub fn fail_multi<D: Driver>(&mut self, index: u32, request: Request, lost: Outcome, driver: &mut D) {
        if self.multi.close(index) {
            driver.complete(request, lost);
        }
    }

    /// Cancels a posted receive. Without one of this name, nothing happens.
    pub fn cancel<D: Driver>(&mut self, request: Request, driver: &mut D) {
        let Some(posted) = self.posted.remove_request(request) else { return };
        if posted.multi().is_none_or(|index| self.multi.cancel(index)) {
            driver.complete(request, Outcome::Canceled);
        }
    }

    /// Adds an unexpected message. Payload that is not with its sender is charged.
    pub fn queue_unexpected(
        &mut self,
        unexpected: Unexpected,
        budget: &mut Budget,
        counters: &mut Counters,
    ) -> MessageId {
        budget.charge(&unexpected.envelope, unexpected.is_buffered());
        let message = self.unexpected.push(unexpected);
        counters.peak_unexpected_messages =
            counters.peak_unexpected_messages.max(u64::from(self.unexpected.count()));
        counters.peak_unexpected_bytes = counters.peak_unexpected_bytes.max(self.unexpected.buffered_bytes());
        counters.peak_budget_used_bytes = counters.peak_budget_used_bytes.max(budget.used_bytes());
        counters.peak_envelope_bytes = counters.peak_envelope_bytes.max(budget.envelope_bytes());
        message
    }

    /// Removes an unexpected message, and frees its buffer.
    pub fn free_unexpected<D: Driver>(&mut self, message: MessageId, budget: &mut Budget, driver: &mut D) {
        let unexpected = self.unexpected.remove(message);
        let buffered = unexpected.is_buffered();
        budget.refund(&unexpected.envelope, buffered);
        if buffered && unexpected.envelope.length > 0 {
            driver.free_unexpected(message);
        }
    }
}
