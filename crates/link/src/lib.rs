//! Links: they carry packets between endpoints. All code for shared memory and foreign calls is here.
//!
//! A link knows slots, lanes, doorbells and addresses. It does not know credits, matching or requests. It writes a
//! packet where the machine says that there is space. It checks what arrives and hands it up.
//!
//! [`Link`] is what every link does: the transport. What only some links can do is a trait of its own, which a link
//! returns by an accessor: [`RemoteMemory`], [`WakeUp`], [`LaneReclamation`], [`FreeSlots`].
#![deny(unsafe_op_in_unsafe_fn)]

pub mod biased_lock;
pub mod cores;
pub mod counted_heap;
pub mod counter_page;
pub mod faulty;
pub mod membarrier;
pub mod memory;
pub mod page_allocator;
pub mod sched_yield;
pub mod shm;

mod capabilities;
mod transport;

pub use capabilities::{
    COOPERATIVE_COPY_BYTES, CopyStatus, FreeSlots, LaneReclamation, RemoteCopy, RemoteMemory, WakeUp,
};
pub use transport::{Arrival, LaneLease, Link, Polled, Properties, Quota};

/// Length of an address on every link. MPI libraries exchange addresses as bytes. Unit: bytes.
pub const ADDRESS_BYTES: usize = 32;

/// Names an endpoint, and holds the key that proves that the owner of the address belongs to the job. Only the link
/// that made an address can interpret it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address(pub [u8; ADDRESS_BYTES]);

impl Address {
    /// A number that identifies the endpoint and may be shown. It is not the key. Never 0.
    pub fn identity(&self) -> u64 {
        let mut number = [0; 8];
        number.copy_from_slice(&self.0[8..16]);
        u64::from_le_bytes(number).max(1)
    }
}
