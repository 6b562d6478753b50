//! UDP sockets as a network of the datagram link ([`UdpNetwork`]), so that endpoints on different hosts reach each other.
//!
//! ```text
//! UdpOptions { net: "10.0.0.0/8" }    interfaces: lo, eth0 10.1.2.3, docker0 172.17.0.1     the socket is at 10.1.2.3
//! send(10.1.2.4:20101, 2700 B, cut at 1200 B)     one call of sendmsg with UDP_SEGMENT
//! receive                                          calls of recvmsg; UDP_GRO joins datagrams of one sender
//! ```
//! - `options` has the settings and their errors, `interfaces` the choice of the address, `ports` the choice of the port.
//! - `network` is the socket. The crate `quinn-udp` prepares it and sends batches. `calls` has the calls for one datagram.
//! - `connected` is a second socket, for the peer to which nearly all datagrams go. `partner` chooses that peer, and `turns`
//!   the socket that a look asks.
//! - `filter` lets the kernel drop what strangers send.
//! - `probe` tries the way between two hosts for `weir doctor`.
//! - `mtu` follows the MTU of the interface.
//! - `witness` asks the kernel of a silent peer whether the peer's process lives.
//!
//! The first socket of an endpoint is for all its peers and both directions.

mod calls;
mod connected;
mod filter;
mod interfaces;
mod mtu;
mod network;
mod options;
mod partner;
mod ports;
pub mod probe;
mod turns;
pub(crate) mod witness;

pub use interfaces::chosen_address;
pub use network::{UdpNetwork, most_arrived_bytes};
pub use options::{BUFFER_SETTING, CONNECT_SETTING, NET_SETTING, PORTS_SETTING, UdpError, UdpOptions};
