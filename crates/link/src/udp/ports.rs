//! The choice of the port: the first of the range that is free for UDP and TCP, from a place in the range that differs
//! between processes.

use super::options::UdpError;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::ops::RangeInclusive;

/// Kernel-chosen ports that are tried.
const TRIES: u32 = 64;

/// The sockets of an endpoint, at one port.
#[derive(Debug)]
pub(super) struct Sockets {
    /// For all datagrams.
    pub datagrams: UdpSocket,
    /// The kernel answers here as long as the process lives.
    pub witness: TcpListener,
}

impl Sockets {
    fn bind(place: SocketAddr) -> io::Result<Sockets> {
        let datagrams = UdpSocket::bind(place)?;
        let witness = TcpListener::bind(datagrams.local_addr()?)?;
        witness.set_nonblocking(true)?;
        Ok(Sockets { datagrams, witness })
    }
}

/// Sockets at `address`, whose port is replaced by one of `ports`. `None`: the kernel chooses.
///
/// # Errors
/// [`UdpError::NoPort`], or what `failed` makes of another error.
pub(super) fn bind(
    address: SocketAddr,
    ports: Option<&RangeInclusive<u16>>,
    failed: impl Fn(io::Error) -> UdpError,
) -> Result<Sockets, UdpError> {
    // Ranks of one node begin at the same time. From one place, each would try the ports of all others.
    let first = std::process::id().wrapping_mul(0x9e37_79b9) >> 16;
    let count = ports.map_or(TRIES, |ports| u32::from(ports.end() - ports.start()) + 1);
    for nth in 0..count {
        let port = ports.map_or(0, |ports| ports.start() + ((first + nth) % count) as u16);
        let mut place = address;
        place.set_port(port);
        match Sockets::bind(place) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && nth + 1 < count => {}
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let ports = ports.cloned().ok_or(error).map_err(&failed)?;
                return Err(UdpError::NoPort { ports, address: address.ip() });
            }
            result => return result.map_err(failed),
        }
    }
    unreachable!("a range has a port")
}
