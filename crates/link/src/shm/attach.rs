//! Attaching to the mailbox of a peer: a free lane at once, or a place in the queue for one. Before that it checks that
//! both endpoints have the same version and scheme. The check of a peer that we only watch is here too
//! ([`ShmLink::is_compatible`]).
//!
//! [`super::lane_queue`] has the words that both sides share. The owner of the mailbox assigns lanes in
//! [`super::lane_reclamation`], and accepts their senders in [`super::lanes`].

use super::doorbell::call;
use super::lane_queue::{Ticket, unclaim};
use super::layout::{SegmentAddress, Shape, lane_state};
use super::mapping::MappedLane;
use super::outbox::Outbox;
use super::ring::GEOMETRY;
use super::segment::{self, PeerSegment, Unavailable};
use super::segment_file::{is_no_space, is_not_now};
use super::{PeerEntry, ShmLink, diagnostics};
use crate::{Address, Addressing, LaneLease, unreachable};
use std::time::{Duration, Instant};
use weir_proto::{Peer, PeerFault};

/// Longest time between two looks while an endpoint waits for a place in a full queue, or for a lane.
pub(super) const ATTACH_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A lane in a peer's mailbox that this endpoint waits for.
#[derive(Debug)]
pub(super) struct PendingAttach {
    pub segment: PeerSegment,
    /// `None`: the queue was full.
    pub ticket: Option<Ticket>,
}

impl ShmLink {
    /// Claims a lane at the endpoint at `address`. `None`: the endpoint waits in the queue for a lane.
    ///
    /// # Errors
    /// [`PeerFault`], if the peer is not there, has another version, or no memory is left.
    pub fn attach(&mut self, peer: Peer, address: &Address) -> Result<Option<LaneLease>, PeerFault> {
        match self.peers.get(&peer) {
            // A second lane would break the order of packets, so the first one stays.
            Some(PeerEntry { lease: Some(lease), address: Some(known), .. }) if known == address => {
                Ok(Some(*lease))
            }
            _ if self.pending_attaches.contains_key(&peer) => self.check_queue(peer, address),
            _ => self.try_attach(peer, address),
        }
    }

    /// `None`: the peer runs, but this process cannot open its segment for the moment, or waits in its queue.
    fn try_attach(&mut self, peer: Peer, address: &Address) -> Result<Option<LaneLease>, PeerFault> {
        let Some(target) = self.target(address) else {
            self.report_unreachable(address);
            return Err(PeerFault::Unreachable);
        };
        let segment = match PeerSegment::open(&self.locks, &target) {
            Ok(segment) => segment,
            Err(Unavailable::Missing | Unavailable::Foreign) => return Err(PeerFault::Unreachable),
            Err(Unavailable::OtherVersion(error)) => {
                diagnostics::report_other_version(&error);
                return Err(PeerFault::Unreachable);
            }
            Err(Unavailable::Dead) => return Err(PeerFault::Died),
            Err(Unavailable::Closed) => return Err(PeerFault::Closed),
            Err(Unavailable::OtherLockFile) => {
                diagnostics::report_other_lock_file(&self.locks);
                return Err(PeerFault::Unreachable);
            }
            Err(Unavailable::Refused(error)) => return self.refused(target.id, &error).map(|()| None),
        };
        self.check_scheme(&segment)?;
        self.peer_entry(peer).address = Some(*address);
        self.claim_or_queue(peer, address, segment)
    }

    /// Whether the owner of `segment` uses our scheme. Otherwise one side would wait for credit that the other side does
    /// not return.
    fn check_scheme(&self, segment: &PeerSegment) -> Result<(), PeerFault> {
        let Shape { scheme, conditional, .. } = segment.facts().shape;
        if (scheme, conditional) == (self.shape.scheme, self.shape.conditional) {
            return Ok(());
        }
        unreachable::report_other_scheme(self.shape.scheme, scheme);
        Err(PeerFault::Unreachable)
    }

    /// Whether this endpoint and the running one at `target` can exchange messages: same version, same scheme. Looks
    /// once for each peer.
    pub(super) fn is_compatible(&mut self, target: &SegmentAddress) -> bool {
        if self.compatible.contains(&target.id) {
            return true;
        }
        match PeerSegment::open_any(&self.locks, target) {
            Ok(segment) if self.check_scheme(&segment).is_err() => return false,
            Err(Unavailable::OtherVersion(error)) => {
                diagnostics::report_other_version(&error);
                return false;
            }
            // Other faults show when we connect.
            Ok(_) | Err(_) => {}
        }
        self.compatible.insert(target.id);
        true
    }

    /// The kernel has refused an action on the segment `id` of a peer. `Ok`: the caller may try again later.
    fn refused(&mut self, id: u64, error: &std::io::Error) -> Result<(), PeerFault> {
        let since = *self.refused_since.entry(id).or_insert_with(Instant::now);
        let may_try = is_not_now(error) && since.elapsed() < self.refused_limit;
        if !segment::is_open_and_alive(&self.locks, id) {
            self.refused_since.remove(&id);
            return Err(PeerFault::Unreachable); // it has ended meanwhile
        }
        diagnostics::report_refused(self.locks.dir(), error, self.refused_limit);
        if may_try {
            return Ok(());
        }
        self.refused_since.remove(&id);
        Err(PeerFault::Unreachable)
    }

    /// Claims a lane at `segment`, or takes a place in the queue for one.
    fn claim_or_queue(
        &mut self,
        peer: Peer,
        address: &Address,
        segment: PeerSegment,
    ) -> Result<Option<LaneLease>, PeerFault> {
        let id = self.own_address.id;
        if !segment.header().lane_queue().has_waiters() {
            match self.claim_with_memory(&segment) {
                Ok(Some((lane, memory))) => {
                    return Ok(Some(self.begin_lease(peer, address, segment, lane, memory)));
                }
                Ok(None) => {}
                Err(error) => {
                    self.refused(segment.facts().id, &error)?;
                    self.pending_attaches.insert(peer, PendingAttach { segment, ticket: None });
                    return Ok(None);
                }
            }
        }
        let ticket = segment.header().lane_queue().enter(id);
        if ticket.is_some() {
            segment.header().call_about(call::NEWCOMER);
        }
        self.pending_attaches.insert(peer, PendingAttach { segment, ticket });
        Ok(None)
    }

    /// Claims a free lane, and reserves its memory. `None`: all lanes are held, or there is no memory for another one.
    fn claim_with_memory(&self, segment: &PeerSegment) -> std::io::Result<Option<(u32, MappedLane)>> {
        let id = self.own_address.id;
        let claimed = segment.claim_lane(id).and_then(|lane| {
            let Some(lane) = lane else { return Ok(None) };
            segment.lane(lane).map(|memory| Some((lane, memory))).inspect_err(|_| {
                unclaim(segment.header().claims(segment.facts().shape.max_lanes), lane, id);
                segment.header().call_about(call::NEWCOMER); // somebody may have seen no free lane meanwhile
            })
        });
        match claimed {
            Err(error) if is_no_space(&error) => {
                diagnostics::report_lane_reclamation(&self.locks, segment.facts().shape.stride, &error);
                Ok(None)
            }
            result => result,
        }
    }

    /// Checks whether the queue has assigned a lane to this endpoint.
    fn check_queue(&mut self, peer: Peer, address: &Address) -> Result<Option<LaneLease>, PeerFault> {
        let Some(PendingAttach { segment, ticket }) = self.pending_attaches.remove(&peer) else {
            return Ok(None);
        };
        let Some(ticket) = ticket else { return self.claim_or_queue(peer, address, segment) };
        let wait = |link: &mut ShmLink, segment| {
            link.pending_attaches.insert(peer, PendingAttach { segment, ticket: Some(ticket) });
            Ok(None)
        };
        let Some(lane) = segment.header().lane_queue().assigned_lane(ticket) else {
            return wait(self, segment);
        };
        if lane >= segment.facts().shape.max_lanes {
            return Err(PeerFault::Unreachable); // not a valid answer
        }
        match segment.lane(lane) {
            Ok(memory) => {
                segment.header().lane_queue().leave(ticket);
                Ok(Some(self.begin_lease(peer, address, segment, lane, memory)))
            }
            Err(error) => {
                let refused = self.refused(segment.facts().id, &error);
                if refused.is_ok() && is_not_now(&error) {
                    return wait(self, segment); // the lane stays assigned to this endpoint
                }
                unclaim(segment.header().claims(segment.facts().shape.max_lanes), lane, self.own_address.id);
                segment.header().lane_queue().leave(ticket);
                segment.header().call_about(call::NEWCOMER);
                refused.map(|()| None)
            }
        }
    }

    /// Begins a lease of `lane`, which this endpoint has claimed.
    fn begin_lease(
        &mut self,
        peer: Peer,
        address: &Address,
        segment: PeerSegment,
        lane: u32,
        memory: MappedLane,
    ) -> LaneLease {
        let facts = *segment.facts();
        self.refused_since.remove(&facts.id);
        let epoch = self.next_epoch;
        self.next_epoch = self.next_epoch.wrapping_add(1);
        memory.set_owner(&self.address);
        memory.set_epoch(epoch);
        memory.set_state(lane_state::READY);
        let full_fences = facts.full_fences || !self.fences_registered;
        let wanted = memory.take_detach_request();
        let mut outbox = Outbox::new(lane, memory, segment.header().clone(), full_fences);
        outbox.ring();
        let lease = LaneLease { quota: facts.shape.quota(lane), epoch, geometry: GEOMETRY, wanted };
        let index = peer.0 as usize;
        if self.outboxes.len() <= index {
            self.outboxes.resize_with(index + 1, || None);
        }
        self.outboxes[index] = Some(Box::new(outbox));
        let entry = self.peer_entry(peer);
        entry.address = Some(*address);
        entry.lease = Some(lease);
        entry.segment = Some(segment);
        entry.forgotten = false;
        lease
    }
}
