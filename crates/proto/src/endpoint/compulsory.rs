//! Compulsory returns of credits (dynamic credits): requests and responses.
//!
//! Both are packets like others and cost a credit each. They leave before the backlog. A request leaves before a
//! response, and neither waits for the other. The pool decides when to request. [`super::credits`] queues the requests,
//! and the responses to requests of peers.
//! ```text
//! R takes quota from A    request to A waits for a credit of ours at A, then leaves; A is blocked meanwhile
//! A -> R  response 12     A has kept the guaranteed credits, less the one for this packet; A is not blocked any more
//! ```

use super::path::{Outbound, Path, announced};
use crate::action::Source;
use crate::counters::Counters;
use crate::driver::{Driver, LinkBusy};
use crate::event::Peer;
use crate::flow::{Mutant, Pool};
use crate::packet::{Body, Geometry, Marks};

/// Compulsory returns that are queued or pending with one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Compulsory {
    /// A request is queued.
    request: bool,
    /// A request was sent and has no response yet.
    unanswered: bool,
    /// A response is queued.
    response: bool,
    /// The epoch of a request that came before our lease with that epoch was connected.
    early: Option<u16>,
    /// The amount of the response, if a mutant fixes it too early.
    fixed: Option<u32>,
}

impl Compulsory {
    /// Whether a packet is queued. It waits only for credit.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.request | self.response
    }

    /// Slots that the queued packets need.
    pub(super) fn slots(&self) -> u32 {
        u32::from(self.request) + u32::from(self.response)
    }

    pub(super) fn is_pending(&self) -> bool {
        self.waits() || self.unanswered
    }

    #[cfg(feature = "explore")]
    pub(super) fn canonical(&self, outgoing: super::origin::Lease) -> [u32; 3] {
        let Compulsory { request, unanswered, response, early, fixed } = *self;
        let flags = u32::from(request) << 2 | u32::from(unanswered) << 1 | u32::from(response);
        [flags, early.map_or(2, |epoch| u32::from(outgoing.is(epoch))), fixed.unwrap_or(u32::MAX)]
    }

    /// A response has arrived. Returns whether it was requested.
    pub(super) fn answered(&mut self) -> bool {
        core::mem::take(&mut self.unanswered)
    }

    /// Our lease there has started.
    pub(super) fn connected(&mut self, epoch: u16) {
        self.response |= self.early.take() == Some(epoch);
    }

    /// We have detached with all credits, so there is nothing to return. A queued request refers to the peer's lease
    /// here, so it leaves in our next lease. The peer still responds to a sent request.
    pub(super) fn we_detached(&mut self) {
        (self.response, self.fixed) = (false, None);
    }

    /// The peer has detached with all credits. A request in flight refers to an earlier lease when it arrives, so the
    /// peer does not respond to it.
    pub(super) fn peer_detached(&mut self) {
        (self.request, self.unanswered) = (false, false);
    }

    /// Queues a request.
    pub(super) fn request(&mut self) {
        self.request = true;
    }

    /// A request has arrived that may refer to our next lease, which the peer knows of before we do.
    pub(super) fn note_early_request(&mut self, epoch: u16) {
        self.early = Some(epoch);
    }

    /// A request has arrived: queues the response. `fixed`: its amount, if a mutant fixes it now. Returns whether no other
    /// response is queued.
    pub(super) fn respond(&mut self, fixed: Option<u32>) -> bool {
        self.fixed = fixed;
        !core::mem::replace(&mut self.response, true)
    }

    /// Sends the queued packets as far as the credits allow, with the `rendezvous_only` mark like every other packet.
    ///
    /// # Errors
    /// [`LinkBusy`]: the link has refused one, which stays queued.
    #[cold]
    #[expect(clippy::too_many_arguments, reason = "the parts of a header")]
    pub(super) fn send<D: Driver>(
        &mut self,
        path: &mut Path,
        to: Peer,
        geometry: &Geometry,
        backlog_slots: u32,
        marks: Marks,
        pool: &mut Pool,
        counters: &mut Counters,
        driver: &mut D,
    ) -> Result<(), LinkBusy> {
        let Path { outbound: Outbound::Connected(sender), grants, .. } = path else {
            return Ok(());
        };
        while sender.credits() > 0 && self.waits() {
            let mut returned = 0;
            let body = if self.request {
                Body::ReturnRequest
            } else if self.unanswered && pool.breaks(Mutant::ResponsesWaitForResponses) {
                return Ok(());
            } else {
                // The amount is that of now, not that of the request: credits may have been spent since.
                let needed = if pool.breaks(Mutant::ReclaimTakesLentCredits) { 0 } else { backlog_slots };
                returned = sender.excess(grants.credit_slots, needed).unwrap_or(0);
                Body::ReturnResponse { credits: self.fixed.unwrap_or(returned) }
            };
            let queued_slots = backlog_slots + self.slots() - 1;
            let wanted_total = announced(sender, 1 + returned, queued_slots, pool);
            let packet = grants.control_packet(geometry, body, 0, wanted_total, marks, pool, counters);
            if let Err(busy) = driver.transmit(to, &packet, Source::None) {
                counters.uncount(&body, 1);
                return Err(busy);
            }
            sender.spend(returned);
            sender.spend(1);
            if let Body::ReturnRequest = body {
                (self.request, self.unanswered) = (false, true);
                counters.return_requests_sent += 1;
            } else {
                (self.response, self.fixed) = (false, None);
                counters.credits_given_back += u64::from(returned);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
