//! A core provider of libfabric as a network of the datagram link ([`OfiNetwork`]), so that endpoints on different hosts
//! reach each other over whatever libfabric reaches: TCP, RDMA adapters, other fabrics.
//!
//! ```text
//! send(place of B, two datagrams)    B's name becomes an address of the core     two messages, behind our part
//! receive                            messages that posted receives have got      each receive is posted again
//! ```
//! - `core_endpoint` is the border to the core: an endpoint for reliable datagrams ([`CoreEndpoint`]). Whoever knows
//!   libfabric's functions implements it; this crate does not.
//! - `place` makes the endpoint's name at the core short enough for an address.
//! - `copies` reads and writes the memory of peers, if both ends want no protection; `memory` begins and ends copies.
//!   `large` is for protected contents: messages with receives of their own.
//! - `network` is the network. `exchange` is a core inside the process, for tests.
//!
//! A core provider loses nothing, so the link sends nothing again. What a receiver has posted bounds what its peers may have
//! under way, by the grants of the datagram link. The core's own flow control is for what comes beside.

mod copies;
mod core_endpoint;
pub mod exchange;
pub mod from_outside;
mod large;
mod memory;
mod network;
mod place;

pub use core_endpoint::{
    CoreAccess, CoreAddress, CoreCopy, CoreEndpoint, CoreError, CoreLarge, CoreMemory, CoreName,
    LARGE_MESSAGE_BYTES, LARGE_RECEIVES, LARGE_SENDS_PER_PEER, MESSAGE_BYTES, NameFormat, POSTED_RECEIVES,
    Sent, WINDOW,
};
pub use network::{OfiNetwork, OfiOptions};
pub use place::{MOST_PART_BYTES, OfiPlace};

/// The most memory of an endpoint with so many peers for datagrams that have arrived: posted receives, and what the link
/// keeps. What the core keeps by itself is not in it. Unit: bytes.
pub fn most_arrived_bytes(peers: u64) -> u64 {
    let of_receives = POSTED_RECEIVES * MESSAGE_BYTES + LARGE_RECEIVES * LARGE_MESSAGE_BYTES;
    of_receives as u64 + crate::datagram::most_arrived_bytes::<OfiPlace>(MESSAGE_BYTES, WINDOW, peers)
}
