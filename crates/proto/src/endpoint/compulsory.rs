//! Compulsory returns of credits (dynamic credits): requests and responses are packets like others, cost a credit each, and
//! leave before everything that waits. A request goes before a response, and neither waits for the other.
//!
//! ```text
//! R takes quota from A    request to A waits for a credit of ours at A, then leaves; A is blocked meanwhile
//! A -> R  response 12     A has kept the guaranteed credits, less the one for this packet; A is not blocked any more
//! ```

use alloc::vec::Vec;

use super::sending::carry_credits;
use super::{Endpoint, Outbound, PeerEntry};
use crate::action::{Action, Source};
use crate::config::{Config, Scheme};
use crate::counters::Counters;
use crate::event::Peer;
use crate::flow::{Mutant, Pool};
use crate::packet::{Body, Packet};
use crate::time::Instant;

/// What of this kind waits for, or is under way with, one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Compulsory {
    /// A request is to be sent.
    request: bool,
    /// It was sent and is not answered.
    unanswered: bool,
    /// A response is to be sent.
    response: bool,
    /// A request came for a stay of ours there that we do not know of yet: its number.
    early: Option<u16>,
    /// The amount, where a wrong rule fixed it too early.
    fixed: Option<u32>,
}

impl Compulsory {
    /// Something is to be sent. Only without credit: it leaves with the first one.
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

    /// A response has arrived. Returns whether it was asked for.
    pub(super) fn answered(&mut self) -> bool {
        core::mem::take(&mut self.unanswered)
    }

    /// Our stay there has begun.
    pub(super) fn connected(&mut self, epoch: u16) {
        self.response |= self.early.take() == Some(epoch);
    }

    /// We have left the peer's mailbox, with all credits: nothing is left to give back. Requests of ours are for its stay
    /// here, so one that has not left yet leaves in our next stay there, and one that has is answered.
    pub(super) fn we_detached(&mut self) {
        (self.response, self.fixed) = (false, None);
    }

    /// The peer has left our mailbox with all credits. A request that is still under way is of an earlier stay when it
    /// arrives: not answered.
    pub(super) fn peer_detached(&mut self) {
        (self.request, self.unanswered) = (false, false);
    }
}

impl Endpoint {
    /// Tells senders whose quota was taken to give back what they hold of it.
    #[cold]
    pub(super) fn ask_for_credits(&mut self, now: Instant, actions: &mut Vec<Action>) {
        while let Some(peer) = self.pool.next_request() {
            self.peer(peer);
            let Endpoint { peers, spare, .. } = self;
            let state = &mut peers[peer.0 as usize];
            spare.begin(&mut state.pending).compulsory.request = true;
            if let Outbound::Absent = state.outbound {
                state.outbound = Outbound::Connecting;
                actions.push(Action::Connect { to: peer });
            }
            self.send_while_credited(now, peer, actions);
        }
    }

    /// We are to give back what we have in our stay `epoch` there. Returns whether that makes sense: one request at a time, and
    /// only between those who both know such requests. A stay that has ended has given everything back.
    pub(super) fn return_request_arrived(&mut self, from: Peer, epoch: u16) -> bool {
        let dynamic = matches!(self.config.scheme, Scheme::Dynamic { .. });
        let fixed = self.pool.breaks(Mutant::AmountIsFixedByTheRequest);
        self.peer(from);
        let Endpoint { peers, spare, .. } = self;
        let state = &mut peers[from.0 as usize];
        let excess = match &state.outbound {
            Outbound::Connected(sender) if epoch == state.leases.outgoing => {
                sender.excess(state.credit_slots)
            }
            Outbound::Connecting => {
                // Perhaps our next stay, of which the peer has heard before us.
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

/// Sends what of it the credits allow, with `rendezvous_only` like every other packet.
#[cold]
pub(super) fn send(
    config: &Config,
    state: &mut PeerEntry,
    to: Peer,
    rendezvous_only: bool,
    pool: &mut Pool,
    counters: &mut Counters,
    actions: &mut Vec<Action>,
) {
    let (Outbound::Connected(sender), Some(pending)) = (&mut state.outbound, &mut state.pending) else {
        return;
    };
    let compulsory = &mut pending.compulsory;
    while sender.credits() > 0 && compulsory.waits() {
        let body = if compulsory.request {
            (compulsory.request, compulsory.unanswered) = (false, true);
            counters.return_requests_sent += 1;
            Body::ReturnRequest
        } else if compulsory.unanswered && pool.breaks(Mutant::ResponsesWaitForResponses) {
            return;
        } else {
            compulsory.response = false;
            // What we have now, not what we had when the request came: it may have been spent since.
            let now = sender.excess(state.credit_slots).unwrap_or(0);
            sender.spend(now);
            counters.credits_given_back += u64::from(now);
            Body::ReturnResponse { credits: compulsory.fixed.take().unwrap_or(now) }
        };
        sender.spend(1);
        let mut packet = Packet {
            epoch: state.leases.incoming,
            credit_packets_read: state.credit_packets_read,
            ..Packet::new(body, 0)
        };
        packet.marks.rendezvous_only = rendezvous_only;
        carry_credits(&config.geometry, &mut packet, 1, true, state.receiver.as_mut(), pool, counters);
        counters.count_kind(&packet.body);
        actions.push(Action::Transmit { to, packet, payload: Source::None });
    }
}

#[cfg(test)]
mod tests;
