//! The lanes of this mailbox and their states ([`Lane`]), from the announcement by a sender until the lane is released
//! or refused. It also knows which addresses have a lane that is read, and which are refused ([`Claimant`]).
//!
//! An address has at most one lane that is read. A sender that attaches again before its previous lane is read to its
//! end waits with the new one:
//! ```text
//! lane 5 of A is read         lane 7 is announced, also by A      parked
//! lane 5: Detach, release                                         lane 7: Attached
//! ```

use super::ShmLink;
use super::lane_reclamation::OpenLane;
use super::layout::{SegmentAddress, lane_state};
use super::mapping::MappedLane;
use super::ring::GEOMETRY;
use super::segment::PeerSegment;
use super::sync::Ordering;
use crate::{Address, Arrival, LaneLease};
use weir_proto::Peer;

/// The state of a lane of this mailbox.
#[derive(Clone, Debug, Default)]
pub(super) enum Lane {
    /// Not held by any sender that this endpoint knows.
    #[default]
    Free,
    /// Reported as attached, not accepted yet.
    Attached(Address, MappedLane),
    /// Its owner holds an earlier lane that is not read to its end.
    Parked,
    /// The reader reads it.
    Open(OpenLane),
    /// The reader does not read it any more.
    Refused(Address),
}

/// Whether the lane of an address is read. An address has at most one lane that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claimant {
    Accepted,
    /// Permanent: messages in another lane would overtake those that are lost.
    Refused,
}

impl ShmLink {
    pub(super) fn set_lane(&mut self, lane: u32, state: Lane) {
        let index = lane as usize;
        if self.lanes.len() <= index {
            self.lanes.resize(index + 1, Lane::Free);
        }
        self.lanes[index] = state;
    }

    /// Checks an announced lane that is not read yet.
    pub(super) fn check_announced_lane(&mut self, lane: u32) -> Option<Arrival> {
        let (address, memory) = self.unread_lane(lane)?;
        match self.claimants.get(&address) {
            None => {}
            Some(Claimant::Refused) => {
                memory.set_state(lane_state::REFUSED);
                self.set_lane(lane, Lane::Refused(address));
                return None;
            }
            Some(Claimant::Accepted) => {
                // Messages in this lane would overtake those in the first one.
                self.set_lane(lane, Lane::Parked);
                self.parked.push((address, lane));
                return None;
            }
        }
        // A sender may have ended a lease already and begun another one. The announcements do not show their order.
        let (first, memory) = self.first_lane_of(lane, memory);
        if first != lane {
            self.inbox.push_unaccepted_lane(lane);
        }
        let lane = first;
        self.claimants.insert(address, Claimant::Accepted);
        let epoch = memory.epoch();
        self.set_lane(lane, Lane::Attached(address, memory));
        let wanted = self.is_wanted(lane);
        let lease = LaneLease { quota: self.shape.quota(lane), epoch, geometry: GEOMETRY, wanted };
        Some(Arrival::Attached { lane, address, lease })
    }

    /// A lane that a sender has made ready and that this endpoint does not know yet, with its owner. `None`: it is not.
    fn unread_lane(&self, lane: u32) -> Option<(Address, MappedLane)> {
        // The bit has no claim, or the lane is known: an error of the sender, or a late announcement.
        if !matches!(self.lanes.get(lane as usize), None | Some(Lane::Free)) || lane >= self.shape.max_lanes {
            return None;
        }
        let own = self.own.as_ref()?;
        own.reserve_claims(lane + 1).ok()?;
        let claimant = own.header().claims(lane + 1)[lane as usize].load(Ordering::Acquire);
        if claimant == 0 {
            return None;
        }
        // This also reserves the lane's memory. The sender should have done so; without memory a read is a SIGBUS.
        let memory = own.lane(lane).ok()?;
        let address = memory.owner(claimant);
        // Packets that were sent before the owner abandoned the lane are valid.
        let is_ready = matches!(memory.state(), lane_state::READY | lane_state::ABANDONED)
            && self.target(&address).is_some();
        is_ready.then_some((address, memory))
    }

    /// The unread lane with the earliest lease of the owner of `lane`.
    fn first_lane_of(&self, lane: u32, memory: MappedLane) -> (u32, MappedLane) {
        let mut first = (lane, memory);
        let Some(own) = &self.own else { return first };
        let header = own.header();
        let claims = header.claims(own.claimable_lanes((self.lanes.len() as u32).max(lane + 1)));
        let Some(owner) = claims.get(lane as usize).map(|claim| claim.load(Ordering::Acquire)) else {
            return first;
        };
        for (other, claim) in (0..).zip(claims) {
            if other != lane
                && claim.load(Ordering::Acquire) == owner
                && let Some((_, memory)) = self.unread_lane(other)
                && (memory.epoch().wrapping_sub(first.1.epoch()) as i16) < 0
            {
                first = (other, memory);
            }
        }
        first
    }

    /// Allows the parked lanes of `address` to be read: its first lane is not read any more.
    pub(super) fn unpark_lanes(&mut self, address: &Address) {
        while let Some(index) = self.parked.iter().position(|(owner, _)| owner == address) {
            let (_, lane) = self.parked.remove(index);
            self.set_lane(lane, Lane::Free);
            self.inbox.push_unaccepted_lane(lane);
        }
    }

    /// Stops reading `lane`.
    #[cold]
    pub(super) fn refuse_lane(&mut self, lane: u32) {
        if let Some(reader) = self.inbox.reader(lane) {
            reader.lane().set_state(lane_state::REFUSED);
        }
        self.inbox.close_lane(lane);
        let owner = self.peers.values().find(|entry| entry.lane == Some(lane));
        if let Some(address) = owner.and_then(|entry| entry.address) {
            self.claimants.insert(address, Claimant::Refused);
            self.set_lane(lane, Lane::Refused(address));
            self.unpark_lanes(&address);
        }
    }

    /// See [`crate::Link::accept`].
    pub(super) fn accept_lane(&mut self, lane: u32, peer: Peer) {
        let Some(state) = self.lanes.get_mut(lane as usize) else { return };
        if !matches!(state, Lane::Attached(..)) {
            return;
        }
        if let Lane::Attached(address, memory) = std::mem::replace(state, Lane::Open(OpenLane::new(peer))) {
            if address == self.address {
                self.inbox.open_own_lane(lane, peer, memory);
            } else {
                self.inbox.open_lane(lane, peer, memory);
            }
            // The header stays mapped, so it still shows how the peer ended when its name is gone. If the name is
            // gone already, nothing can show it.
            let segment = SegmentAddress::parse(&address)
                .and_then(|target| PeerSegment::open_any(&self.locks, &target).ok());
            let entry = self.peer_entry(peer);
            entry.address = Some(address);
            entry.lane = Some(lane);
            if entry.segment.is_none() && !entry.forgotten {
                entry.segment = segment;
            }
            self.reclaim_for_waiters(); // others may have come before this lane could be asked for
        }
    }

    /// See [`crate::Link::release`].
    pub(super) fn release_lane(&mut self, peer: Peer) {
        let entry = self.peer_entry(peer);
        let (Some(lane), Some(address)) = (entry.lane.take(), entry.address) else { return };
        // A peer that has detached has written all its pieces. The next sender in this lane reuses these words.
        if let Some(copy) = self.pending_copies.get_mut(&peer) {
            copy.result();
        }
        self.inbox.close_lane(lane);
        self.free_lane(lane, true);
        self.claimants.remove(&address);
        self.unpark_lanes(&address);
    }
}
