//! Read-only views of an endpoint for reports. Nothing here affects a decision. The simulator uses some of them to look
//! ahead.
//!
//! [`Endpoint::pairs`] visits every peer, so drivers call it rarely and not for every packet.

use super::inbound::Inbound;
use super::matching::Matching;
use super::path::Outbound;
use super::peer_entry::PeerEntry;
use super::pending::PendingWork;
use super::state::Endpoint;
use crate::event::{Peer, Request};
use crate::flow::{ReceiverView, SenderView};
use crate::packet::Space;
use crate::time::Instant;

/// One peer, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairView {
    /// The peer.
    pub peer: Peer,
    /// Our credits there and the totals of our current lease. `None`: we have no lane there.
    pub sending: Option<SenderView>,
    /// The grants to the peer in its current lease. `None`: it has no lane here.
    pub receiving: Option<ReceiverView>,
    /// Messages and packets that wait to be sent.
    pub backlog: u32,
    /// The time since which the head of the backlog waits for credit.
    pub stalled_since: Option<Instant>,
    /// The time since which it waits for a busy link, for example one whose window is full.
    pub link_busy_since: Option<Instant>,
    /// Stall time up to now, with the current stall. Unit: ns.
    pub stalled_ns: u64,
}

impl Endpoint {
    /// All peers with an entry, at time `now`.
    pub fn pairs(&self, now: Instant) -> impl Iterator<Item = PairView> {
        let known = |state: &PeerEntry| {
            let stalled = state.pending.as_deref().is_some_and(|pending| pending.stalled_ns > 0);
            state.path.grants.receiver.is_some()
                || stalled
                || !matches!(state.path.outbound, Outbound::Absent)
        };
        self.paths.peers.entries().filter(move |(_, state)| known(state)).map(move |(peer, state)| {
            let stalls = |pending: &PendingWork| (pending.stalled_since(), pending.stalled_ns);
            let (stalled_since, stalled_ns) = state.pending.as_deref().map_or((None, 0), stalls);
            PairView {
                peer,
                sending: match &state.path.outbound {
                    Outbound::Connected(sender) => Some(sender.view()),
                    Outbound::Absent | Outbound::Connecting | Outbound::Lost(_) => None,
                },
                receiving: state
                    .path
                    .grants
                    .receiver
                    .as_ref()
                    .map(|receiver| receiver.view(&self.paths.pool)),
                backlog: state.backlog_len() as u32,
                stalled_since,
                link_busy_since: state.pending.as_deref().and_then(PendingWork::link_busy_since),
                stalled_ns: stalled_ns + stalled_since.map_or(0, |since| now.since_ns(since)),
            }
        })
    }

    /// The grants to `peer` in its current lease. `None`: it has no lane here.
    pub fn receiving(&self, peer: Peer) -> Option<ReceiverView> {
        let state = self.paths.peers.get(peer.0 as usize)?;
        state.path.grants.receiver.as_ref().map(|receiver| receiver.view(&self.paths.pool))
    }

    /// Bytes that have arrived of a partly arrived eager message of `peer`. `None`: there is no such message.
    #[inline]
    pub fn half_arrived_bytes(&self, peer: Peer) -> Option<u64> {
        let number = self.paths.peers.full_entry(peer.0 as usize)?.path.inbound?;
        self.matching.inbounds.get(number.get()).map(Inbound::arrived_bytes)
    }

    /// Whether `peer` has no partly arrived message and nothing waits to be sent to it.
    #[inline]
    pub fn is_at_rest(&self, peer: Peer) -> bool {
        let state = self.paths.peers.full_entry(peer.0 as usize);
        state.is_none_or(|state| state.path.inbound.is_none() && state.has_nothing_to_send())
    }

    /// The posted receive at `place` of a space, the oldest first. `None` if the receives are in an index.
    #[inline]
    pub fn posted_receive(&self, space: Space, place: usize) -> Option<Request> {
        self.matching.posted.listed(space, place)
    }

    /// Payload bytes in the backlog of `peer`, without rendezvous payload. Cost: visits every message of the backlog.
    pub fn backlog_bytes(&self, peer: Peer) -> u64 {
        let state = self.paths.peers.full_entry(peer.0 as usize);
        state.map_or(0, |state| state.backlog().map(|entry| entry.bytes - entry.sent).sum())
    }

    /// Payload bytes that remain of each backlog entry of `peer`, in order. For links that model attempts by their size.
    pub fn backlog_payloads(&self, peer: Peer) -> impl Iterator<Item = u64> {
        let state = self.paths.peers.full_entry(peer.0 as usize);
        state.into_iter().flat_map(|state| state.backlog().map(|entry| entry.bytes - entry.sent))
    }

    /// Number of unexpected messages, and the payload bytes in unexpected buffers.
    pub fn unexpected(&self) -> (u32, u64) {
        (self.matching.unexpected.count(), self.matching.unexpected.buffered_bytes())
    }

    /// Memory for peer entries and backlogs. Unit: bytes, by capacity.
    pub fn peer_state_bytes(&self) -> u64 {
        let Matching { inbounds, holders, .. } = &self.matching;
        let apart = self.paths.spare.bytes() + inbounds.bytes() + holders.bytes();
        self.paths.peers.bytes() + self.paths.pool.bytes() + apart as u64
    }

    /// Stall time of messages to peers whose entry was removed. Unit: ns.
    pub fn removed_stalled_ns(&self) -> u64 {
        self.paths.peers.removed_stalled_ns
    }
}
