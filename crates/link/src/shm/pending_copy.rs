//! Copies of large messages from the memory of a peer that may help with them ([`super::cooperative_copy`]). The part
//! of the peer that helps is here too, and the check that a copied source was still valid.
//!
//! A copy stays pending only while the helper copies its last pieces. The helper is about as fast as the receiver
//! unless something stops it. So the receiver polls for a while, and then leaves the copy to the engine.

use super::cooperative_copy::{CooperativeCopy, CopyState, Offer, Part};
use super::mapping::MappedLane;
use super::ring::LaneMemory;
use super::segment::PeerSegment;
use super::{ShmLink, cross_memory, sync};
use crate::copy::is_slow;
use crate::memory::UserMemory;
use crate::{CopyStatus, RemoteCopy};
use std::time::{Duration, Instant};
use weir_proto::{CopyFault, Direction, Peer};

/// Polls for the helper's last pieces before the copy becomes pending: some 20 us.
const POLLS: u32 = 500;
/// Bound on waiting for a running helper after its peer was forgotten.
const HELPER_TIMEOUT: Duration = Duration::from_millis(100);

/// The rest of a copy that the receiver makes together with the peer.
#[derive(Debug)]
pub(super) struct PendingCopy {
    context: u64,
    lane: MappedLane,
    offer: Offer,
    pid: u32,
    address: u64,
    memory: UserMemory,
    offset: u64,
    result: Result<(), CopyFault>,
    /// Nothing is copied any more.
    ended: bool,
}

impl PendingCopy {
    /// Reads a part, unless an earlier one could not be read.
    fn read(&mut self, Part { offset, bytes, .. }: Part) {
        if self.result.is_ok() {
            let (from, to) = (self.address.wrapping_add(offset), self.offset + offset);
            self.result = cross_memory::copy_across(self.pid, Direction::Get, from, &self.memory, to, bytes);
        }
    }

    /// Its name.
    pub fn context(&self) -> u64 {
        self.context
    }

    /// The result, once nothing is copied any more. `None`: the helper still copies.
    pub fn result(&mut self) -> Option<Result<(), CopyFault>> {
        while !self.ended {
            match self.lane.control().copy.0.state(&mut self.offer) {
                CopyState::Complete => self.ended = true,
                CopyState::Refused(part) => self.read(part),
                CopyState::HelperBusy => return None,
            }
        }
        Some(self.result)
    }
}

impl ShmLink {
    /// The result of a copy with `peer`. An endpoint marks its segment closed before its program may reuse memory that
    /// the endpoint has announced. So the copied bytes are those that were announced only if the segment is open still.
    pub(super) fn check_open<T>(&self, peer: Peer, result: Result<T, CopyFault>) -> Result<T, CopyFault> {
        sync::read_fence(); // the state is read after the bytes
        let segment = self.peers.get(&peer).and_then(|entry| entry.segment.as_ref());
        let closed = segment.is_some_and(|segment| segment.header().is_closed());
        if closed { Err(CopyFault::Closed) } else { result }
    }

    /// Checks after a copy that the source was valid. A peer that gives this endpoint up says so in a lane before its
    /// program may reuse the buffer. So without such a sign the copied bytes are those that the peer announced.
    pub(super) fn check_source_valid(&self, peer: Peer) -> Result<(), CopyFault> {
        if self.abandoned(peer) || self.is_refused(peer) { Err(CopyFault::Gone) } else { Ok(()) }
    }

    /// Gets from process `pid`. The peer may take pieces of the copy.
    pub(super) fn copy_cooperatively(
        &mut self,
        pid: u32,
        copy: &RemoteCopy,
        memory: &UserMemory,
    ) -> Result<CopyStatus, CopyFault> {
        let RemoteCopy { context, peer, remote, offset, bytes, .. } = *copy;
        let address = remote.address;
        let lane = self.peers.get(&peer).and_then(|entry| entry.lane);
        let reader = lane.and_then(|lane| self.inbox.reader(lane));
        let start = memory.contiguous_address();
        // One cooperative copy at a time in each lane, and only into contiguous buffers. The helper cannot take a detour.
        let is_detour =
            start.is_some_and(|start| is_slow(address as usize, start + offset as usize, bytes as usize));
        let alone = is_detour || self.pending_copies.contains_key(&peer);
        let (Some(reader), Some(start), false) = (reader, start, alone) else {
            cross_memory::copy_across(pid, Direction::Get, address, memory, offset, bytes)?;
            return self.check_source_valid(peer).map(|()| CopyStatus::Done);
        };
        let lane = reader.lane().clone();
        let offer = lane.control().copy.0.offer(address, start as u64 + offset, bytes);
        let memory = memory.view();
        let mut copy =
            PendingCopy { context, lane, offer, pid, address, memory, offset, result: Ok(()), ended: false };
        while let Some(part) = copy.lane.control().copy.0.take(&mut copy.offer) {
            copy.read(part);
        }
        for _ in 0..POLLS {
            if let Some(result) = copy.result() {
                return result.and_then(|()| self.check_source_valid(peer)).map(|()| CopyStatus::Done);
            }
            sync::spin_hint();
        }
        self.pending_copies.insert(peer, copy);
        Ok(CopyStatus::Pending)
    }

    #[cold]
    pub(super) fn help_slow_path(&self, peer: Peer, cooperative_copy: &CooperativeCopy) -> bool {
        let segment = self.peers.get(&peer).and_then(|entry| entry.segment.as_ref());
        let Some(facts) = segment.map(PeerSegment::facts) else { return false };
        if facts.pid_namespace != self.pid_namespace {
            return false;
        }
        cooperative_copy
            .help(|from, to, bytes| cross_memory::write_across(facts.pid, from, to, bytes))
            .is_some()
    }

    /// Waits until the helper of `peer` writes no more to this endpoint's memory: it is done, dead, or
    /// [`HELPER_TIMEOUT`] is over.
    pub(super) fn finish_pending_copy(&mut self, peer: Peer) {
        let Some(mut copy) = self.pending_copies.remove(&peer) else { return };
        let deadline = Instant::now() + HELPER_TIMEOUT;
        while copy.result().is_none() && Instant::now() < deadline {
            let address = self.peers.get(&peer).and_then(|entry| entry.address);
            if address.is_none_or(|address| Self::has_ended(self.liveness_of(Some(peer), &address))) {
                return;
            }
            sync::yield_now();
        }
    }
}
