//! Capabilities: traits for what only some links can do. These are copies between two processes, sleep and wake-up,
//! lane reclamation, and a count of free slots. The engine asks a link for each ([`Capabilities`]).

use crate::memory::UserMemory;
use std::sync::Arc;
use weir_proto::{CopyFault, Direction, Peer, Transfer};

/// The capabilities of a link beside the transport. By default: nothing.
pub trait Capabilities {
    /// Access to the memory of peers.
    fn remote_memory(&mut self) -> Option<&mut dyn RemoteMemory> {
        None
    }

    /// Something to sleep on. Without it an endpoint must poll.
    fn wake_up(&mut self) -> Option<&mut dyn WakeUp> {
        None
    }

    /// The management of lanes that are taken back from idle senders.
    fn lane_reclamation(&mut self) -> Option<&mut dyn LaneReclamation> {
        None
    }

    /// The number of free slots at peers. Without it a link serves only schemes with credits.
    fn free_slots(&mut self) -> Option<&mut dyn FreeSlots> {
        None
    }
}

/// The state of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStatus {
    /// All bytes are copied.
    Done,
    /// The link or the peer still copies. Ask [`RemoteMemory::next_result`].
    Pending,
}

/// Copies of fewer bytes are made by one side alone. Unit: bytes.
pub const COOPERATIVE_COPY_BYTES: u64 = 128 << 10;

/// A copy between memory of this endpoint and memory of a peer's process.
#[derive(Clone, Copy, Debug)]
pub struct RemoteCopy {
    /// Names the copy in its result. `None`: the copy must end in the call.
    pub transfer: Option<Transfer>,
    /// The peer.
    pub peer: Peer,
    /// From the peer or to it.
    pub direction: Direction,
    /// Address of the bytes in the peer's process.
    pub address: u64,
    /// Their offset in our memory.
    pub offset: u64,
    /// Unit: bytes.
    pub bytes: u64,
}

/// Access to the memory of peers. Several copies with a peer can be pending.
pub trait RemoteMemory {
    /// Copies between `memory` and the memory of the peer's process. The peer may copy a part
    /// ([`RemoteMemory::help_copy`]).
    ///
    /// # Errors
    /// [`CopyFault`].
    fn copy(&mut self, copy: &RemoteCopy, memory: &UserMemory) -> Result<CopyStatus, CopyFault>;

    /// The result of a pending copy that has ended. Each is returned once. Copies with peers that were forgotten have
    /// none.
    fn next_result(&mut self) -> Option<(Transfer, Result<(), CopyFault>)>;

    /// Copies a part of what `peer` copies from this endpoint, if it does. Returns whether it does.
    fn help_copy(&mut self, peer: Peer) -> bool;
}

/// Something to sleep on.
pub trait WakeUp {
    /// Sleeps until something arrives, at most `at_most_ns`. Returns at once if something has arrived. No wake-up is
    /// lost.
    fn sleep(&mut self, at_most_ns: u64);

    /// A bell that ends the sleep, for other links and threads. A ring before the sleep ends it too, unless the link was
    /// polled in between.
    fn bell(&self) -> Arc<dyn Bell>;

    /// Rings `bell` for every arrival from now on, because this endpoint sleeps elsewhere. `false`: the link cannot.
    fn ring_on_arrival(&mut self, bell: &Arc<dyn Bell>) -> bool {
        let _ = bell;
        false
    }
}

/// Wakes the endpoint that it belongs to.
pub trait Bell: Send + Sync {
    /// Ends the sleep of the endpoint.
    fn ring(&self);
}

/// Lanes that are taken back from idle senders, and assigned to waiting ones.
pub trait LaneReclamation {
    /// Call this a few times a second. Looks after senders that wait for a lane here. Asks idle senders to detach
    /// while this mailbox occupies more than `keep_bytes`. Checks senders that do not answer.
    fn maintain(&mut self, keep_bytes: u64);
}

/// Free slots at peers, for schemes without credits.
pub trait FreeSlots {
    /// Slots at `to` that have become free since the last call. The first call counts all slots of the lane.
    fn newly_free_slots(&mut self, to: Peer) -> u32;
}
