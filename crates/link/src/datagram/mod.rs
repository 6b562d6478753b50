//! Links over networks that lose datagrams ([`DatagramLink`]). Packets are coalesced into datagrams, which are
//! encrypted and authenticated, and sent again until the peer has acknowledged them.
//!
//! ```text
//! A: connect(0, address of B)   A->B  introduction: A's address, sealed for B     B makes a path, and answers
//! A: poll                       A->B  frame `attach`                              B: Attached; B->A  frame `lease`
//! A: connect(0, address of B)   Some(lease)
//! A: transmit, transmit         A->B  one datagram with both packets              B: Packet, Packet
//! A: poll                       B->A  acknowledgement                             A frees its copy
//! A: close                      A->B  frame `leave`                               B: Lost { Closed }, if asked
//! ```
//! - [`network`] is the border to the network and its clock. [`lossy`] is a network inside the process, for tests.
//! - `seal` has the keys, `outgoing` the datagrams that leave, `buffers` the memory of bundles that leave, `arrived` that
//!   of bundles that have arrived.
//! - `path` is one peer, `link` the link with all paths, `options` its parameters, `epochs` the epochs of paths.
//!   `appending` writes packets into bundles. `arriving` handles datagrams, `delivered` what they carry.
//! - `crowd` tells when several peers flood this endpoint, so that acknowledgements wait longer.
//! - `send_gate` holds packets back before the network, if a setting says so. `policer` knows its number of tokens.
//!   `gated` asks it.
//! - `remote_memory` accesses memory of peers over networks that can, if nothing protects the path. If something does,
//!   `contents` lets contents pass in large messages, over networks that have them, or in datagrams (`contents_in_datagrams`).
//! - `send_proxy` lets other endpoints of the node send bundles, and sends theirs, if a setting says so.
//! - `report` has the counts. `transport` implements [`crate::Link`]. `helped_link` adds a thread, the `helper`, that sends
//!   what waits for a poll.
//!
//! A path belongs to a pair of endpoints, and serves both directions. It opens once: after a loss the endpoint does not
//! believe that address again (`forgotten`). One that an introduction has made and that does not open is removed
//! (`unopened`). [`weir_proto::reliability`] decides what is sent again, and when a peer is lost.

mod appending;
mod arrived;
mod arriving;
mod buffers;
mod contents;
mod contents_in_datagrams;
mod crowd;
mod delivered;
mod epochs;
mod forgotten;
mod gated;
mod helped_link;
mod helper;
#[cfg(test)]
mod killed_gates;
mod link;
pub mod lossy;
pub mod network;
mod options;
mod outgoing;
mod path;
mod policer;
mod remote_memory;
mod report;
pub mod seal;
mod send_gate;
mod send_proxy;
mod transport;
mod unopened;

pub use arrived::most_arrived_bytes;
pub use helped_link::HelpedLink;
pub use link::DatagramLink;
pub use network::GEOMETRY;
pub use options::DatagramOptions;
pub use report::DatagramCounters;
pub use send_gate::{GateCounters, SendGate};
pub use send_proxy::{ProxyCounters, SendProxy};
