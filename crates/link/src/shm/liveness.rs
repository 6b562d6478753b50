//! Lost peers: checks whether a peer still runs and reads ([`Liveness`]), and reports its loss. A [`Notice`] of a loss,
//! or of a request to detach, is kept until a poll reports it.
//!
//! [`super::segment`] tells whether the owner of a segment runs. A peer that runs can still be lost: it has given this
//! endpoint up, or it has another version or scheme. A noted loss is reported when nothing else is left to report,
//! because what the peer sent before is valid. ([`super::transport`] reports the loss of a peer with a malformed packet
//! at once.)
//! ```text
//! check_peer(B)     its lock is not held, its state is open      Notice::Lost(B, Died)
//! poll              packets of B, as long as there are some
//! poll              Arrival::Lost { B, Died }
//! ```

use super::ShmLink;
use super::layout::lane_state;
use super::segment::{self, PeerSegment};
use crate::{Address, Arrival};
use weir_proto::{Peer, PeerFault};

/// Whether an endpoint still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Liveness {
    /// It runs.
    Alive,
    /// It closed its mailbox in good order.
    Closed,
    /// Its process ended without closing the mailbox.
    Dead,
    /// Its segment has no name any more, and this endpoint never mapped it. It was closed, or removed after a death.
    Unknown,
    /// It runs, but does not read what this endpoint sends. It found a malformed packet, or it has given this
    /// endpoint up.
    Refused,
}

impl Liveness {
    /// The reason why the endpoint is lost. `None`: it is not.
    pub(super) fn fault(self) -> Option<PeerFault> {
        match self {
            Liveness::Alive => None,
            Liveness::Closed => Some(PeerFault::Closed),
            Liveness::Dead => Some(PeerFault::Died),
            Liveness::Unknown | Liveness::Refused => Some(PeerFault::Unreachable),
        }
    }
}

/// Something to report that is in no lane.
#[derive(Clone, Copy, Debug)]
pub(super) enum Notice {
    /// A peer asks this endpoint to detach.
    DetachRequested(Peer),
    /// A peer is lost. It is reported when all arrivals are handled: what the peer sent while it lived is still valid.
    Lost(Peer, Address, PeerFault),
}

impl Notice {
    pub fn peer(&self) -> Peer {
        match *self {
            Notice::DetachRequested(peer) | Notice::Lost(peer, ..) => peer,
        }
    }
}

impl ShmLink {
    /// Whether `peer` has given this endpoint up. It then writes no more, and its buffers belong to its program
    /// again.
    pub(super) fn abandoned(&self, peer: Peer) -> bool {
        let lane = self.peers.get(&peer).and_then(|entry| entry.lane);
        let reader = lane.and_then(|lane| self.inbox.reader(lane));
        reader.is_some_and(|reader| reader.lane().state() == lane_state::ABANDONED)
    }

    /// Whether `peer` does not read this endpoint's packets any more.
    pub(super) fn is_refused(&self, peer: Peer) -> bool {
        let outbox = self.outboxes.get(peer.0 as usize).and_then(Option::as_ref);
        outbox.is_some_and(|outbox| outbox.lane().state() == lane_state::REFUSED)
    }

    /// The next lost peer, when nothing else is left to report.
    pub(super) fn next_loss(&mut self) -> Option<Arrival> {
        let Notice::Lost(peer, address, fault) = self.notices.pop_front()? else { return None };
        // If we know the peer, we distinguish an orderly close from a crash.
        let fault = match self.liveness_of(Some(peer), &address) {
            Liveness::Closed => PeerFault::Closed,
            Liveness::Dead => PeerFault::Died,
            _ => fault,
        };
        Some(Arrival::Lost { peer, fault })
    }

    /// Reports `peer` as lost after all arrivals.
    pub(super) fn note_loss(&mut self, peer: Peer, address: &Address, fault: PeerFault) {
        if !self.is_noted_as_lost(peer) {
            self.notices.push_back(Notice::Lost(peer, *address, fault));
        }
    }

    pub(super) fn is_noted_as_lost(&self, peer: Peer) -> bool {
        self.notices.iter().any(|notice| matches!(*notice, Notice::Lost(lost, ..) if lost == peer))
    }

    /// Whether the endpoint at `address`, called `peer` if it has a number, runs. Costs one or two system calls.
    pub(super) fn liveness_of(&mut self, peer: Option<Peer>, address: &Address) -> Liveness {
        let Some(target) = self.target(address) else { return Liveness::Unknown };
        let entry = peer.and_then(|peer| self.peers.get(&peer));
        let header = entry.and_then(|entry| entry.segment.as_ref()).map(PeerSegment::header);
        // A peer that has attached has made the same check of its version and scheme.
        let is_attached = entry.is_some_and(|entry| entry.segment.is_some() || entry.lane.is_some());
        let found = segment::liveness(&self.locks, &target, header);
        if found != Liveness::Alive {
            return found;
        }
        let gave_up = |peer| self.is_refused(peer) || self.has_abandoned_us(peer);
        if peer.is_some_and(gave_up) || !is_attached && !self.is_compatible(&target) {
            return Liveness::Refused;
        }
        found
    }

    /// Whether `peer` has given this endpoint up, and everything that it sent before is read.
    pub(super) fn has_abandoned_us(&self, peer: Peer) -> bool {
        let lane = self.peers.get(&peer).and_then(|entry| entry.lane);
        let reader = lane.and_then(|lane| self.inbox.reader(lane));
        reader.is_some_and(|reader| self.abandoned(peer) && !reader.arrived())
    }

    /// Whether the endpoint can write nothing any more.
    pub(super) fn has_ended(liveness: Liveness) -> bool {
        matches!(liveness, Liveness::Dead | Liveness::Closed)
    }
}
