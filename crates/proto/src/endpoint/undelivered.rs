//! Messages that closing an endpoint would lose, operations that it waits for, and peers that operations depend on. The
//! driver waits for the first two before it closes, and checks whether those peers run. Nothing here affects a decision
//! of the machine. Tests and the simulator ask here whether anything is pending.
//!
//! These functions visit backlogs and peers, so drivers call them rarely and not for every packet.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::backlog::{BacklogEntry, EntryKind};
use super::pending::PendingWork;
use super::state::Endpoint;
use crate::event::Peer;
use crate::packet::Body;

/// Messages and acknowledgements of completed operations that one peer does not have yet. Closing now would lose them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// The peer.
    pub peer: Peer,
    /// Messages that it has not taken.
    pub messages: u64,
    /// Their payload. Unit: bytes.
    pub bytes: u64,
    /// Acknowledgements that operations of the peer wait for.
    pub acknowledgements: u64,
}

impl Endpoint {
    /// Whether closing now would lose something for a peer: a packet waits to leave, or a receiver does not yet have an
    /// announced payload. A waiting goodbye does not count.
    pub fn has_undelivered(&self) -> bool {
        let owed = |entry: &BacklogEntry| !matches!(entry.kind, EntryKind::Control(Body::Goodbye));
        self.payloads.transfers.has_announced_payload()
            || !self.payloads.bounce_buffers.is_empty()
            || self.paths.peers.full_entries().any(|peer| peer.backlog().any(owed) || peer.is_due())
    }

    /// The losses if the endpoint closed now, by peer in no order. These are messages that were reported complete and
    /// have not left or whose bounce buffers wait, and acknowledgements that are due. Cost: visits every backlog
    /// entry and every bounce buffer.
    pub fn undelivered(&self) -> Vec<Undelivered> {
        let mut of_peers: BTreeMap<Peer, Undelivered> = BTreeMap::new();
        let nothing = |peer| Undelivered { peer, messages: 0, bytes: 0, acknowledgements: 0 };
        for (peer, bytes) in self.payloads.bounce_buffers.iter() {
            let undelivered = of_peers.entry(peer).or_insert_with(|| nothing(peer));
            undelivered.messages += 1;
            undelivered.bytes += bytes;
        }
        for (peer, state) in self.paths.peers.entries() {
            let Some(pending) = state.pending.as_deref() else { continue };
            let mut found = nothing(peer);
            found.acknowledgements += pending.acks.awaited();
            for entry in pending.backlog.iter().filter(|entry| entry.is_completed()) {
                match entry.kind {
                    EntryKind::Control(_) | EntryKind::Offloaded(_) => found.acknowledgements += 1,
                    _ => (found.messages, found.bytes) = (found.messages + 1, found.bytes + entry.bytes),
                }
            }
            if found != nothing(peer) {
                let undelivered = of_peers.entry(peer).or_insert_with(|| nothing(peer));
                undelivered.messages += found.messages;
                undelivered.bytes += found.bytes;
                undelivered.acknowledgements += found.acknowledgements;
            }
        }
        of_peers.into_values().collect()
    }

    /// Whether an operation of the program waits for a peer, without receives. Cost: visits backlog entries.
    pub fn has_incomplete(&self) -> bool {
        let incomplete = |entry: &BacklogEntry| {
            let goodbye = matches!(entry.kind, EntryKind::Control(Body::Goodbye));
            !goodbye && !entry.is_completed() && !entry.is_bounced()
        };
        self.payloads.transfers.has_announced_payload()
            || self.paths.peers.full_entries().any(|peer| peer.backlog().any(incomplete))
    }

    /// Whether the endpoint has no pending work: no transfer, no backlog, no partly arrived message.
    pub fn is_quiescent(&self) -> bool {
        self.paths.backlogged == 0
            && self.payloads.transfers.is_empty()
            && self.payloads.bounce_buffers.is_empty()
            && self.matching.inbounds.count() == 0
            && !self.matching.holders.is_asking()
            && self.paths.peers.full_entries().filter_map(|peer| peer.pending.as_deref()).all(|pending| {
                !pending.acks.is_due() && !pending.compulsory.is_pending() && pending.hold.is_none()
            })
    }

    /// Visits the peers that pending operations depend on: transfers, backlogs, directed receives. If a receive accepts
    /// any source, visits all peers with any contact. May visit a peer repeatedly.
    pub fn depends_on(&self, mut visit: impl FnMut(Peer)) {
        let anybody = self.matching.posted.has_any_source_receive();
        self.payloads.transfers.peers().chain(self.matching.posted.directed_sources()).for_each(&mut visit);
        for (peer, state) in self.paths.peers.entries() {
            let waits = state.pending.as_deref().is_some_and(|pending| {
                let PendingWork { backlog, compulsory, bounce_buffers, .. } = pending;
                !backlog.is_empty() || compulsory.is_pending() || *bounce_buffers > 0
            });
            if waits || state.path.inbound.is_some() {
                visit(peer);
            }
        }
        if self.matching.holders.is_asking() {
            self.matching.holders.peers().for_each(&mut visit);
        }
        if anybody {
            // Also detached peers: the receive may wait for their next message.
            self.paths.peers.contacted().for_each(visit);
        }
    }
}
