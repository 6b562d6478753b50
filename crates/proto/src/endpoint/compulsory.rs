//! Compulsory returns of credits (dynamic credits): requests and responses.
//!
//! Both are packets like others and cost a credit each. They leave before the backlog. A request leaves before a
//! response, and neither waits for the other. The pool decides when to request.
//! ```text
//! R takes quota from A    request to A waits for a credit of ours at A, then leaves; A is blocked meanwhile
//! A -> R  response 12     A has kept the guaranteed credits, less the one for this packet; A is not blocked any more
//! ```

use super::{Endpoint, Outbound, PeerEntry};
use crate::action::Source;
use crate::config::{Config, Scheme};
use crate::counters::Counters;
use crate::driver::Driver;
use crate::event::Peer;
use crate::flow::{Mutant, Pool};
use crate::packet::{Body, Marks};

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

    pub(super) fn is_pending(&self) -> bool {
        self.waits() || self.unanswered
    }

    #[cfg(feature = "explore")]
    pub(super) fn canonical(&self, outgoing: super::canonical::Lease) -> [u32; 3] {
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
}

impl Endpoint {
    /// Requests credits from senders whose quota was taken.
    #[cold]
    pub(super) fn ask_for_credits<D: Driver>(&mut self, driver: &mut D) {
        while let Some(peer) = self.pool.next_request() {
            self.peer(peer);
            let Endpoint { peers, spare, .. } = self;
            let state = &mut peers[peer.0 as usize];
            spare.begin(&mut state.pending).compulsory.request = true;
            if let Outbound::Absent = state.path.outbound {
                state.path.outbound = Outbound::Connecting;
                driver.connect(peer);
            }
            self.send_while_credited(peer, driver);
        }
    }

    /// A request for the excess credits of our lease `epoch` has arrived. Returns whether it is valid. One request at a
    /// time is valid, and only with dynamic credits. A request for an ended lease is ignored: its credits have been
    /// returned.
    pub(super) fn return_request_arrived(&mut self, from: Peer, epoch: u16) -> bool {
        let dynamic = matches!(self.config.scheme, Scheme::Dynamic { .. });
        let fixed = self.pool.breaks(Mutant::AmountIsFixedByTheRequest);
        self.peer(from);
        let Endpoint { peers, spare, .. } = self;
        let state = &mut peers[from.0 as usize];
        let excess = match &state.path.outbound {
            Outbound::Connected(sender) if epoch == state.path.grants.leases.outgoing => {
                sender.excess(state.path.credit_slots)
            }
            Outbound::Connecting => {
                // It may refer to our next lease, which the peer knows of before we do.
                spare.begin(&mut state.pending).compulsory.early = Some(epoch);
                return dynamic;
            }
            _ => return dynamic,
        };
        let Some(excess) = excess else { return false };
        let compulsory = &mut spare.begin(&mut state.pending).compulsory;
        compulsory.fixed = fixed.then_some(excess);
        !core::mem::replace(&mut compulsory.response, true)
    }
}

/// Sends the queued packets as far as the credits allow, with the `rendezvous_only` mark like every other packet.
#[cold]
pub(super) fn send<D: Driver>(
    config: &Config,
    state: &mut PeerEntry,
    to: Peer,
    marks: Marks,
    pool: &mut Pool,
    counters: &mut Counters,
    driver: &mut D,
) {
    let (Outbound::Connected(sender), Some(pending)) = (&mut state.path.outbound, &mut state.pending) else {
        return;
    };
    let geometry = pending.geometry.unwrap_or(config.geometry);
    let compulsory = &mut pending.compulsory;
    while sender.credits() > 0 && compulsory.waits() {
        let mut returned = 0;
        let body = if compulsory.request {
            Body::ReturnRequest
        } else if compulsory.unanswered && pool.breaks(Mutant::ResponsesWaitForResponses) {
            return;
        } else {
            // The amount is that of now, not that of the request: credits may have been spent since.
            returned = sender.excess(state.path.credit_slots).unwrap_or(0);
            Body::ReturnResponse { credits: compulsory.fixed.unwrap_or(returned) }
        };
        let grants = &mut state.path.grants;
        let packet = grants.control_packet(&geometry, body, 0, marks, pool, counters);
        if driver.transmit(to, &packet, Source::None).is_err() {
            counters.uncount(&body, 1);
            pending.busy_link.busy = true;
            return;
        }
        sender.spend(returned);
        sender.spend(1);
        if let Body::ReturnRequest = body {
            (compulsory.request, compulsory.unanswered) = (false, true);
            counters.return_requests_sent += 1;
        } else {
            (compulsory.response, compulsory.fixed) = (false, None);
            counters.credits_given_back += u64::from(returned);
        }
    }
}

#[cfg(test)]
mod tests;
