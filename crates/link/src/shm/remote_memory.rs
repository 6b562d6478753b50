//! Copies between the memory of this process and that of a peer, for rendezvous and remote accesses ([`RemoteMemory`]).
//! One side copies, or both ([`super::pending_copy`]).

use super::ShmLink;
use super::cross_memory;
use super::layout::SegmentAddress;
use super::pending_copy::PendingCopy;
use super::ring::LaneMemory;
use super::segment::{PeerSegment, Unavailable};
use crate::memory::UserMemory;
use crate::{
    COOPERATIVE_COPY_BYTES, CopyStatus, LocalHandle, MemoryAttributes, PeerAccess, Registration, RemoteCopy,
    RemoteMemory,
};
use weir_proto::{CopyFault, Direction, Peer, RemoteAddress};

impl ShmLink {
    /// The segment of a peer, opened if the peer has only attached to this endpoint so far.
    pub(super) fn segment_of(&mut self, peer: Peer) -> Result<&PeerSegment, CopyFault> {
        let ShmLink { peers, locks, .. } = self;
        let entry = peers.entry(peer).or_default();
        if entry.forgotten {
            return Err(CopyFault::Gone);
        }
        if entry.segment.is_none() {
            let target = entry.address.as_ref().and_then(SegmentAddress::parse).ok_or(CopyFault::Gone)?;
            entry.segment = Some(PeerSegment::open(locks, &target).map_err(|reason| match reason {
                // The peer lives. This message can travel in packets.
                Unavailable::Refused(_) | Unavailable::OtherLockFile => CopyFault::BadAddress,
                Unavailable::Closed => CopyFault::Closed,
                Unavailable::Missing
                | Unavailable::Dead
                | Unavailable::Foreign
                | Unavailable::OtherVersion(_) => CopyFault::Gone,
            })?);
        }
        entry.segment.as_ref().ok_or(CopyFault::Gone)
    }

    /// Copies, or starts a cooperative copy if it `may_pend`.
    fn start_copy(
        &mut self,
        copy: &RemoteCopy,
        memory: &UserMemory,
        may_pend: bool,
    ) -> Result<CopyStatus, CopyFault> {
        let RemoteCopy { peer, direction, remote, offset, bytes, .. } = *copy;
        let address = remote.address;
        let (cross_memory, pid, namespace) = (self.cross_memory, self.pid, self.pid_namespace);
        let facts = *self.segment_of(peer)?.facts();
        if facts.pid_namespace != namespace || !cross_memory {
            return Err(CopyFault::Forbidden);
        }
        if facts.pid == pid {
            cross_memory::copy_inside(direction, address, memory, offset, bytes)?;
        } else if may_pend
            && self.cooperative_copy
            && bytes >= COOPERATIVE_COPY_BYTES
            && direction == Direction::Get
        {
            return self.copy_cooperatively(facts.pid, copy, memory);
        } else {
            cross_memory::copy_across(facts.pid, direction, address, memory, offset, bytes)?;
        }
        self.check_source_valid(peer).map(|()| CopyStatus::Done)
    }
}

impl RemoteMemory for ShmLink {
    /// At most one copy with a peer is pending. Further ones end in the call.
    #[inline]
    fn attributes(&mut self, _peer: Peer) -> Option<MemoryAttributes> {
        Some(MemoryAttributes { domain: 0, registers: false, copies_per_peer: u32::MAX, needs_owner: false })
    }

    /// Peers access any address of this process, but only one piece.
    #[inline]
    fn register(
        &mut self,
        domain: u32,
        memory: &UserMemory,
        _access: PeerAccess,
    ) -> Result<Registration, CopyFault> {
        let start = memory.contiguous_address().ok_or(CopyFault::BadAddress)?;
        Ok(Registration { domain, handle: None, remote: RemoteAddress::without_key(start as u64) })
    }

    fn deregister(&mut self, _registration: &Registration) {}

    fn start(
        &mut self,
        copy: &RemoteCopy,
        memory: &UserMemory,
        _handle: Option<LocalHandle>,
    ) -> Result<CopyStatus, CopyFault> {
        match self.start_copy(copy, memory, true) {
            Ok(CopyStatus::Pending) => Ok(CopyStatus::Pending),
            result => self.check_open(copy.peer, result),
        }
    }

    fn read_at_once(&mut self, copy: &RemoteCopy, memory: &UserMemory) -> Result<(), CopyFault> {
        let copied = self.start_copy(copy, memory, false).map(|_| ());
        self.check_open(copy.peer, copied)
    }

    fn next_result(&mut self) -> Option<(u64, Result<(), CopyFault>)> {
        let ended = |(&peer, copy): (&Peer, &mut PendingCopy)| Some((peer, copy.context(), copy.result()?));
        let (peer, context, result) = self.pending_copies.iter_mut().find_map(ended)?;
        self.pending_copies.remove(&peer);
        let result = result.and_then(|()| self.check_source_valid(peer));
        Some((context, self.check_open(peer, result)))
    }

    /// The peer takes a part of a pending copy, and rings for none.
    fn must_poll(&mut self) -> bool {
        !self.pending_copies.is_empty()
    }

    #[inline]
    fn help_copy(&mut self, peer: Peer) -> bool {
        let Some(Some(outbox)) = self.outboxes.get(peer.0 as usize) else { return false };
        let cooperative_copy = &outbox.lane().control().copy.0;
        cooperative_copy.is_open() && self.help_slow_path(peer, cooperative_copy)
    }
}
