//! The transport of shared memory ([`Link`]): connects to the mailboxes of peers, writes packets to them, polls the own
//! mailbox, forgets lost peers, and closes. It also gives the endpoint's address ([`Addressing`]), and facts for
//! reports ([`Inspect`]).

use super::attach::{ATTACH_POLL_INTERVAL, PendingAttach};
use super::lanes::Claimant;
use super::layout::{SegmentAddress, lane_state};
use super::liveness::Notice;
use super::ring::{self, Found, GEOMETRY};
use super::segment::OwnSegment;
use super::{ShmLink, diagnostics};
use crate::links::FirstLink;
use crate::memory::UserMemory;
use crate::{
    Address, Addressing, Arrival, Inspect, LaneLease, Link, LinkKind, Polled, Properties, unreachable,
};
use std::time::Instant;
use weir_proto::{LinkBusy, Packet, Peer, PeerFault};

/// The result of a poll's search.
enum Next {
    /// A packet in this lane.
    Lane(u32),
    /// Something other than a packet.
    Arrival(Arrival),
}

/// The last polled packet. `head` and `packet` of [`ShmLink`] hold its header.
#[derive(Debug)]
pub(super) struct Current {
    pub lane: u32,
    pub found: Found,
}

impl ShmLink {
    /// A poll that must look beyond packets in polled lanes.
    #[cold]
    fn poll_slow_path(&mut self) -> Option<Next> {
        self.check_waiters();
        loop {
            if self.doorbell.called() {
                self.handle_calls();
            }
            if let Some(by) = self.next_detach_request() {
                return Some(Next::Arrival(Arrival::DetachRequested { by }));
            }
            while let Some(lane) = self.inbox.next_unaccepted_lane() {
                if let Some(arrival) = self.check_announced_lane(lane) {
                    return Some(Next::Arrival(arrival));
                }
            }
            // This also takes the announcements, including those of unaccepted lanes.
            if let Some(lane) = self.inbox.next(&self.doorbell) {
                return Some(Next::Lane(lane));
            }
            if !self.inbox.has_unaccepted_lanes() && !self.doorbell.called() {
                return self.next_loss().map(Next::Arrival);
            }
        }
    }

    fn next_detach_request(&mut self) -> Option<Peer> {
        let index = self.notices.iter().position(|notice| matches!(notice, Notice::DetachRequested(_)))?;
        self.notices.remove(index).map(|notice| notice.peer())
    }
}

impl Link for ShmLink {
    fn properties(&self) -> Properties {
        Properties { geometry: GEOMETRY, other_geometries: Vec::new(), ordered: true, reliable: true }
    }

    fn connect(&mut self, peer: Peer, address: &Address) -> Option<LaneLease> {
        if self.is_noted_as_lost(peer) {
            return None;
        }
        self.attach(peer, address).unwrap_or_else(|fault| {
            self.note_loss(peer, address, fault);
            None
        })
    }

    fn disconnect(&mut self, to: Peer) {
        if let Some(outbox) = self.outboxes.get_mut(to.0 as usize) {
            *outbox = None;
        }
        self.peer_entry(to).lease = None;
    }

    #[inline(always)]
    fn transmit(
        &mut self,
        to: Peer,
        packet: &Packet,
        payload: Option<(&UserMemory, u64)>,
    ) -> Result<(), LinkBusy> {
        if let Some(Some(outbox)) = self.outboxes.get_mut(to.0 as usize) {
            outbox.send(packet, payload);
        }
        Ok(())
    }

    #[inline(always)]
    fn poll_into(&mut self, packet: &mut Packet) -> Option<Polled> {
        assert!(self.current.is_none(), "poll was called before the last packet was retired");
        let fast = self.reclamation.has_no_waiters()
            && self.notices.is_empty()
            && self.inbox.only_polled_lanes_matter(&self.doorbell);
        let lane = if fast {
            self.inbox.next_polled()?
        } else {
            match self.poll_slow_path()? {
                Next::Lane(lane) => lane,
                Next::Arrival(arrival) => return Some(Polled::Other(Box::new(arrival))),
            }
        };
        let (from, reader) = self.inbox.sender_and_reader(lane)?;
        match reader.read_head(&mut self.head, packet) {
            Ok(found) => {
                self.current = Some(Current { lane, found });
                Some(Polled::Packet { from })
            }
            Err(ring::MalformedPacket) => {
                diagnostics::report_malformed(ring::header_fault(&self.head));
                self.refuse_lane(lane);
                Some(Polled::Other(Box::new(Arrival::Lost { peer: from, fault: PeerFault::Malformed })))
            }
        }
    }

    #[inline]
    fn may_have_arrivals(&self) -> bool {
        !self.notices.is_empty() || self.inbox.may_have_arrivals(&self.doorbell)
    }

    fn accept(&mut self, lane: u32, peer: Peer) {
        self.accept_lane(lane, peer);
    }

    fn release(&mut self, peer: Peer) {
        self.release_lane(peer);
    }

    #[inline(always)]
    fn copy_payload(&self, memory: &UserMemory, offset: u64, bytes: u64) {
        let Some(Current { lane, found }) = &self.current else { return };
        let in_head = found.copy_from_head(&self.head, memory, offset, bytes);
        if bytes > in_head
            && let Some(reader) = self.inbox.reader(*lane)
        {
            reader.copy_body(memory, offset + in_head, bytes - in_head);
        }
    }

    #[inline(always)]
    fn retire(&mut self) {
        // After `forget` the lane has no reader, and there is nothing to retire.
        if let Some(Current { lane, found }) = self.current.take() {
            self.inbox.retire(lane, &found);
        }
    }

    fn check_peer(&mut self, peer: Peer, address: &Address) {
        if let Some(fault) = self.liveness_of(Some(peer), address).fault() {
            self.note_loss(peer, address, fault);
        }
    }

    fn forget(&mut self, peer: Peer) {
        if let Some(outbox) = self.outboxes.get_mut(peer.0 as usize).and_then(Option::take) {
            outbox.lane().set_state(lane_state::ABANDONED);
        }
        if let Some(PendingAttach { segment, ticket: Some(ticket) }) = self.pending_attaches.remove(&peer) {
            self.unneeded_tickets.push((segment, ticket));
        }
        self.notices.retain(|notice| notice.peer() != peer);
        self.finish_pending_copy(peer);
        let entry = self.peer_entry(peer);
        let (lane, address) = (entry.lane, entry.address);
        if let Some(lane) = lane {
            self.refuse_lane(lane);
            // Check while the header is mapped, because the name may be gone.
            if address.is_some_and(|address| Self::has_ended(self.liveness_of(Some(peer), &address))) {
                self.free_lane(lane, false);
            }
        }
        if let Some(address) = address {
            self.claimants.insert(address, Claimant::Refused);
        }
        let entry = self.peer_entry(peer);
        entry.lane = None;
        entry.forgotten = true;
        entry.lease = None;
        entry.segment = None;
    }

    fn deadline(&self, now: Instant) -> Option<Instant> {
        // A lane that becomes free is announced. A place in a full queue that becomes free is not.
        (!self.pending_attaches.is_empty()).then(|| now + ATTACH_POLL_INTERVAL)
    }

    fn close(&mut self) {
        self.end(OwnSegment::close);
    }

    fn abandon(&mut self) {
        self.end(OwnSegment::abandon);
    }
}

impl Addressing for ShmLink {
    fn kind(&self) -> LinkKind {
        LinkKind::SharedMemory
    }

    fn address(&self) -> Address {
        self.address
    }

    fn introduce(&mut self, address: &Address) {
        self.address = *address;
    }

    fn reaches(&self, address: &Address) -> bool {
        self.target(address).is_some()
    }

    fn report_unreachable(&self, peer: &Address) {
        let place = SegmentAddress::parse(peer).map(|target| target.place);
        match place {
            // Equal directories that do not meet: a mailbox is in memory of another pid namespace.
            Some(place) if place.has_directory_of(self.own_address.place) && !self.reaches(peer) => {
                diagnostics::report_other_pid_namespace(self.locks.dir(), self.needed_bytes);
            }
            _ => unreachable::report(&self.address, peer),
        }
    }
}

impl Inspect for ShmLink {
    fn process(&self, peer: Peer) -> Option<u32> {
        let segment = self.peers.get(&peer)?.segment.as_ref()?;
        // In another pid namespace the number denotes another process.
        let facts = segment.facts();
        (facts.pid_namespace == self.pid_namespace).then_some(facts.pid)
    }

    fn mailbox_bytes(&self) -> u64 {
        self.own.as_ref().map_or(0, |own| own.touched_bytes())
    }
}

impl FirstLink for ShmLink {
    #[inline(always)]
    fn has_lane(&self, peer: Peer) -> bool {
        matches!(self.outboxes.get(peer.0 as usize), Some(Some(_)))
    }

    #[inline(always)]
    fn transmit_over_lane(
        &mut self,
        to: Peer,
        packet: &Packet,
        payload: Option<(&UserMemory, u64)>,
    ) -> Option<Result<(), LinkBusy>> {
        let Some(Some(outbox)) = self.outboxes.get_mut(to.0 as usize) else { return None };
        outbox.send(packet, payload);
        Some(Ok(()))
    }

    #[inline(always)]
    fn has_polled_packet(&self) -> bool {
        self.current.is_some()
    }
}
