//! Links: they carry packets between endpoints. All code for shared memory is here, so the protocol and the engine have
//! no unsafe code. For the same reason this crate has what others need of memory, threads and cores, such as
//! [`biased_lock`], [`counter_page`] and [`sched_yield`].
//!
//! A link knows slots, lanes, doorbells and addresses. It does not know credits, matching or requests. It writes a
//! packet where the endpoint machine says that there is space. It checks what arrives and hands it up.
//!
//! [`Link`] is the transport, which every link has. Each ability that only some links have is a trait of its own,
//! which a link returns by an accessor: [`RemoteMemory`], [`WakeUp`], [`LaneReclamation`], [`FreeSlots`],
//! [`Acknowledgements`]. [`links`] makes one link of several.
//!
//! System calls go through `rustix`, which calls the C library here, so that hooks of MPI libraries on memory mappings
//! see them. `libc` remains for what `rustix` has not, such as cross-memory attach, locks of byte ranges and the
//! loader.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod biased_lock;
pub mod copy;
pub mod cores;
pub mod counted_heap;
pub mod counter_page;
pub mod datagram;
pub mod event_descriptor;
pub mod faulty;
pub mod links;
pub mod local;
pub mod membarrier;
pub mod memory;
pub mod ofi;
pub mod page_allocator;
pub mod sched_yield;
pub mod shm;
pub mod socket_watch;
pub mod time_slice;
pub mod udp;

mod address;
mod capabilities;
mod descriptors;
mod helper_lock;
mod network_report;
mod scheme_name;
mod transport;
mod unreachable;

pub use address::{ADDRESS_BYTES, ADDRESS_VERSION, Address, LinkKind, Protection};
pub use capabilities::{
    Acknowledgements, Bell, COOPERATIVE_COPY_BYTES, Capabilities, CopyStatus, FreeSlots, LaneReclamation,
    LocalHandle, MemoryAttributes, PeerAccess, Registration, RemoteCopy, RemoteMemory, Sleeper, WakeUp,
};
pub use network_report::{NetworkReport, PathReport};
pub use scheme_name::SchemeName;
pub use shm::Look;
pub use transport::{Addressing, Arrival, Inspect, LaneLease, Link, Polled, Properties, Quota};
