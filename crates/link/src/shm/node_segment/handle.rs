//! The node segment as a link uses it: areas, the endpoints that run, and their bells. The gate of a link over
//! datagrams uses it (`shm/token_lines`), and groups of endpoints do (`shm/node_group`).
//!
//! A link that shares something with the other endpoints of the node gets a handle when it is made, and keeps it. The
//! handle does not join and does not leave. Worked exchange, for a pool with one token (`crates/engine/tests/token_link.rs`):
//! ```text
//! A: transmit        takes the token: writes its endpoint number into the ticket word of the area
//! B: transmit        none is left: writes its number as that of a waiter, looks again, refuses the packet
//! A: poll_into       the receiver has acknowledged: clears the ticket, rings the bell of B
//! B: poll_into       looks at the area: Ready
//! A dies:            B is refused, asks `members`, does not find the number of the ticket there, and clears the ticket
//! ```
//! A ticket names an endpoint by its number, not by its entry: the next endpoint can get the entry of a dead one.

use super::directory::Entry;
use super::{Area, Extent, Member, Membership};
use crate::Bell;
use crate::shm::mapping::Shared;
use crate::shm::segment;
use crate::shm::segment_file::{SystemError, file_system_space};
use crate::shm::sync::AtomicU64;
use crate::shm::wake_up::DoorbellOfMailbox;
use core::ops::Deref;
use std::sync::Arc;

/// The use of a node segment by a link of an endpoint that has joined it.
#[derive(Clone, Debug)]
pub struct NodeHandle(pub(super) Arc<Membership>);

impl NodeHandle {
    /// See [`super::NodeSegment::id`].
    pub fn id(&self) -> u64 {
        self.0.facts.id
    }

    /// The number of this endpoint in the directory: [`Member::endpoint`]. Never 0, and no later endpoint has it.
    pub fn endpoint(&self) -> u64 {
        self.0.endpoint
    }

    /// The endpoints that run, with the numbers of their entries. Asks the kernel once for each.
    pub fn members(&self) -> Vec<(usize, Member)> {
        self.0.members()
    }

    /// An area, whose words are 0 at first. Reserves its memory, so use the result again.
    ///
    /// # Errors
    /// No space left, or the name is gone.
    pub fn area(&self, area: Area) -> Result<SharedArea, SystemError> {
        let extent = self.0.reserve(area)?;
        Ok(SharedArea { membership: Arc::clone(&self.0), extent })
    }

    /// A part of an area, whose words are 0 at first. Reserves its memory, so use the result again.
    ///
    /// # Errors
    /// No space left, or the name is gone.
    ///
    /// # Panics
    /// If it is not inside the area, or not aligned to 8 bytes.
    pub fn part(&self, area: Area, offset: u64, bytes: u64) -> Result<SharedArea, SystemError> {
        let extent = self.0.reserve_part(area, offset, bytes)?;
        Ok(SharedArea { membership: Arc::clone(&self.0), extent })
    }

    /// As [`NodeHandle::part`], for a part whose memory another endpoint has reserved.
    pub(in crate::shm) fn reserved_part(&self, area: Area, offset: u64, bytes: u64) -> SharedArea {
        SharedArea { membership: Arc::clone(&self.0), extent: self.0.part(area, offset, bytes) }
    }

    /// The number of this endpoint's entry in the directory.
    pub fn index(&self) -> usize {
        self.0.index
    }

    /// Whether an endpoint of the directory runs and has not closed. Asks the kernel.
    pub fn is_running(&self, endpoint: u64) -> bool {
        segment::is_open_and_alive(&self.0.locks, endpoint)
    }

    /// Whether the endpoint that holds the entry `index` of the directory runs. Asks the kernel.
    pub fn is_running_at(&self, index: usize) -> bool {
        let holder = self.0.entries().get(index).map_or(0, |entry| entry.holder());
        holder != 0 && self.is_running(holder)
    }

    /// Says whether others are to wait until the process of this endpoint has entered the roster, or will not enter it.
    pub fn set_awaited(&self, is_awaited: bool) {
        self.0.entry().set_awaited(is_awaited);
    }

    /// Whether some endpoint that runs is to be waited for. Asks the kernel for each that has said so.
    pub fn is_any_awaited(&self) -> bool {
        self.0.shown().any(|(index, member)| {
            self.0.entries().get(index).is_some_and(Entry::is_awaited) && self.is_running(member.endpoint)
        })
    }

    /// The free memory of the file system that has the segment. Unit: bytes.
    pub(in crate::shm) fn free_bytes(&self) -> u64 {
        let directory = self.0.path.parent().and_then(file_system_space);
        directory.map_or(u64::MAX, |space| space.free_bytes)
    }

    /// The bell of another endpoint of the node. It costs some system calls, so keep it. `None`: the endpoint has ended.
    pub fn bell_of(&self, endpoint: u64) -> Option<Arc<dyn Bell>> {
        let header = segment::open_header(&self.0.locks, endpoint)?;
        Some(Arc::new(DoorbellOfMailbox(header)))
    }
}

/// The words of an area. They stay mapped after the endpoint has left.
#[derive(Clone, Debug)]
pub struct SharedArea {
    membership: Arc<Membership>,
    extent: Extent,
}

impl SharedArea {
    /// The `count` values that begin `offset` bytes behind the start of this area.
    ///
    /// # Panics
    /// If they are not inside the area, or not aligned.
    pub(in crate::shm) fn values<T: Shared>(&self, offset: u64, count: usize) -> &[T] {
        let end = offset + count as u64 * size_of::<T>() as u64;
        assert!(end <= self.extent.bytes, "values up to byte {end} of an area of {}", self.extent.bytes);
        self.membership.mapping.shared((self.extent.offset + offset) as usize, count)
    }
}

impl Deref for SharedArea {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        self.membership.words(self.extent)
    }
}
