//! The settings of the socket ([`UdpOptions`]), and the errors of opening it ([`UdpError`]). Their texts name the setting,
//! its value, and what is possible.

use crate::descriptors::more_descriptors;
use rustix::io::Errno;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use weir_proto::reliability::ReliabilityConfig;

/// The setting of [`UdpOptions::net`].
pub const NET_SETTING: &str = "FI_WEIR_NET";
/// The setting of [`UdpOptions::ports`].
pub const PORTS_SETTING: &str = "FI_WEIR_PORTS";
/// The setting of [`UdpOptions::buffer_bytes`].
pub const BUFFER_SETTING: &str = "FI_WEIR_SOCKET_BUFFER";
/// The setting of [`UdpOptions::connects`].
pub const CONNECT_SETTING: &str = "FI_WEIR_CONNECTED_SOCKET";

/// The buffer that a socket asks for in each direction. The kernel grants it where `net.core.rmem_max` and `wmem_max` allow
/// it. Unit: bytes.
const BUFFER_BYTES: usize = 4 << 20;

/// What a socket is opened with.
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// Name of an interface, one of its addresses, or a subnet such as `10.0.0.0/8`. `None`: the first address of an
    /// interface that is up. Bridges of container tools come later, and loopback comes last.
    pub net: Option<String>,
    /// The socket has one of these ports. `None`: the kernel chooses.
    pub ports: Option<RangeInclusive<u16>>,
    /// The buffer to ask for, in each direction. Unit: bytes.
    pub buffer_bytes: usize,
    /// A second socket is connected to the peer to which nearly all datagrams go, if there is one.
    pub connects: bool,
    /// The time after which the link gives a silent peer up. Unit: ns.
    pub limit_ns: u64,
}

impl Default for UdpOptions {
    fn default() -> UdpOptions {
        let limit_ns = ReliabilityConfig::default().limit_ns;
        UdpOptions { net: None, ports: None, buffer_bytes: BUFFER_BYTES, connects: true, limit_ns }
    }
}

/// The socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum UdpError {
    /// No interface is up.
    #[error(
        "no network interface is up; {NET_SETTING} takes the name, address or subnet of one. There are: {interfaces}"
    )]
    NoInterface {
        /// All interfaces.
        interfaces: String,
    },
    /// The setting fits no interface.
    #[error(
        "{NET_SETTING}={value}: no interface that is up has this name, address or subnet. There are: {interfaces}"
    )]
    NoSuchNet {
        /// The value of the setting.
        value: String,
        /// All interfaces.
        interfaces: String,
    },
    /// All ports are in use.
    #[error(
        "{PORTS_SETTING}={}-{}: all of these ports of {address} are in use; each endpoint needs one", ports.start(), ports.end()
    )]
    NoPort {
        /// The value of the setting.
        ports: RangeInclusive<u16>,
        /// The address of the interface.
        address: IpAddr,
    },
    /// The interfaces cannot be listed.
    #[error("cannot list the network interfaces: {0}")]
    Interfaces(io::Error),
    /// A socket cannot be made at this address.
    #[error("cannot open a UDP socket at {address} of {interface}: {error}; {}", advice(error))]
    Socket {
        /// The address.
        address: IpAddr,
        /// Name of the interface.
        interface: String,
        /// What the kernel says.
        error: io::Error,
    },
}

/// Advice to the user about a socket that cannot be opened.
fn advice(error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => more_descriptors(error),
        _ => format!("{NET_SETTING} chooses another interface"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_cannot_be_opened_names_what_helps() {
        for (number, advice) in
            [(Errno::MFILE, "allow more descriptors (ulimit -n"), (Errno::ADDRNOTAVAIL, NET_SETTING)]
        {
            let (address, interface) = (IpAddr::from([10, 0, 0, 1]), "eth0".to_owned());
            let error = UdpError::Socket { address, interface, error: number.into() };
            assert!(error.to_string().contains(advice), "{error}");
        }
    }
}
