//! What an endpoint shows of itself, for reports: read-only, nothing here decides anything.
//!
//! [`Endpoint::pairs`] costs a look at every peer, so drivers call it now and then, never for every packet.

use super::receiving::Inbound;
use super::{Endpoint, Outbound, PeerEntry, PendingWork};
use crate::event::{Peer, Request};
use crate::flow::{ReceiverView, SenderView};
use crate::packet::Space;
use crate::time::Instant;

/// One peer, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairView {
    /// Who.
    pub peer: Peer,
    /// Our credits there and the totals of our present stay; `None` if we have no lane there.
    pub sending: Option<SenderView>,
    /// What we owe the peer in its present stay; `None` if it has no lane here.
    pub receiving: Option<ReceiverView>,
    /// Messages and packets that wait to be sent.
    pub backlog: u32,
    /// Since when the head of the backlog waits for credit.
    pub stalled_since: Option<Instant>,
    /// Time in which it waited, up to now, the present stall included. Unit: ns.
    pub stalled_ns: u64,
}

impl Endpoint {
    /// All peers of whom something is kept, as they stand at `now`: those that were spoken to or heard from, and not forgotten
    /// after both sides had left.
    pub fn pairs(&self, now: Instant) -> impl Iterator<Item = PairView> {
        let known = |state: &PeerEntry| {
            let stalled = state.pending.as_deref().is_some_and(|pending| pending.stalled_ns > 0);
            state.receiver.is_some() || stalled || !matches!(state.outbound, Outbound::Absent)
        };
        self.peers.entries().filter(move |(_, state)| known(state)).map(move |(peer, state)| {
            let stalls = |pending: &PendingWork| (pending.stalled_since, pending.stalled_ns);
            let (stalled_since, stalled_ns) = state.pending.as_deref().map_or((None, 0), stalls);
            PairView {
                peer,
                sending: match &state.outbound {
                    Outbound::Connected(sender) => Some(sender.view()),
                    Outbound::Absent | Outbound::Connecting | Outbound::Lost(_) => None,
                },
                receiving: state.receiver.as_ref().map(|receiver| receiver.view(&self.pool)),
                backlog: state.backlog().len() as u32,
                stalled_since,
                stalled_ns: stalled_ns + stalled_since.map_or(0, |since| now.since_ns(since)),
            }
        })
    }

    /// What we owe `peer` in its present stay, as it stands; `None` if it has no lane here.
    pub fn receiving(&self, peer: Peer) -> Option<ReceiverView> {
        let state = self.peers.get(peer.0 as usize)?;
        state.receiver.as_ref().map(|receiver| receiver.view(&self.pool))
    }

    /// Bytes that have arrived of the eager message whose packets are arriving from `peer`; `None`: no message is half there.
    #[inline]
    pub fn half_arrived_bytes(&self, peer: Peer) -> Option<u64> {
        let number = self.peers.full_entry(peer.0 as usize)?.inbound?;
        self.inbounds.get(number.get()).map(Inbound::arrived_bytes)
    }

    /// Whether nothing of a message from `peer` is half there and nothing waits to be sent to it.
    #[inline]
    pub fn is_at_rest(&self, peer: Peer) -> bool {
        let state = self.peers.full_entry(peer.0 as usize);
        state.is_none_or(|state| state.inbound.is_none() && state.has_nothing_to_send())
    }

    /// The receive that stands at `place` among the posted ones of a space, the oldest first, as long as they are few enough or matched
    /// in such an order that they need no index.
    #[inline]
    pub fn posted_receive(&self, space: Space, place: usize) -> Option<Request> {
        self.posted.listed(space, place)
    }

    /// Payload bytes that wait to be sent to `peer`, those of announced messages excepted. A look at every message of its
    /// backlog.
    pub fn backlog_bytes(&self, peer: Peer) -> u64 {
        let state = self.peers.full_entry(peer.0 as usize);
        state.map_or(0, |state| state.backlog().map(|entry| entry.bytes - entry.sent).sum())
    }

    /// Payload bytes of what leaves next for `peer`, cut into packets or not; 0 if nothing waits or it has no payload. For links
    /// that model an attempt by its size.
    pub fn next_payload_bytes(&self, peer: Peer) -> u64 {
        let next = self.peers.full_entry(peer.0 as usize).and_then(|state| state.backlog().next());
        next.map_or(0, |entry| entry.bytes - entry.sent)
    }

    /// Unexpected messages waiting, and the payload bytes that the driver keeps for them.
    pub fn unexpected(&self) -> (u32, u64) {
        (self.unexpected.count(), self.unexpected.buffered_bytes())
    }

    /// Memory that the machine keeps for its peers, with what waits to be sent to them. Unit: bytes, by capacity.
    pub fn peer_state_bytes(&self) -> u64 {
        let apart = self.spare.bytes() + self.inbounds.bytes();
        self.peers.bytes() + self.pool.bytes() + apart as u64
    }

    /// Time in which messages waited for credit that were for peers of whom nothing is kept any more. Unit: ns.
    pub fn removed_stalled_ns(&self) -> u64 {
        self.peers.removed_stalled_ns
    }
}
