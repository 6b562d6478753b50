//! The longest datagram that an interface carries ([`LongestDatagram`]). The kernel refuses longer ones; then the interface has a
//! smaller MTU than before. While it has, somebody looks once a minute whether it has grown again.
//!
//! ```text
//! new(1472)    shrink, now 1272    grow, after 59 s: not looked    after 60 s: looked, still 1272    after 120 s: 1472
//! ```
//! It never becomes longer than at the start, because buffers have room for no more. What routers do is not known here.

use super::interfaces::Interface;
use rustix::net::sockopt;
use std::net::{IpAddr, UdpSocket};
use weir_proto::Instant;

/// The MTU of an interface that does not tell its own.
const USUAL_MTU: usize = 1500;
/// A larger MTU is not used. Copies that wait for their acknowledgement have room for a whole datagram.
pub(super) const LARGEST_MTU: usize = 9000;
/// The smallest MTU of IPv6. Source: RFC 8200, section 5. Unit: bytes.
const SMALLEST_MTU: usize = 1280;

/// The time between two looks at an interface whose MTU is smaller than at the start. A look opens a socket.
const LOOK_NS: u64 = 60_000_000_000;

/// See the head of this file.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongestDatagram {
    /// Without headers. Unit: bytes.
    bytes: usize,
    most_bytes: usize,
    /// When it is looked at again, if it has shrunk.
    looks_at: Instant,
}

impl LongestDatagram {
    /// That of an interface at the start. Unit: bytes.
    pub(super) fn new(bytes: usize) -> LongestDatagram {
        LongestDatagram { bytes, most_bytes: bytes, looks_at: Instant(0) }
    }

    /// Its length without headers. Unit: bytes.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    pub(super) fn has_shrunk(&self) -> bool {
        self.bytes < self.most_bytes
    }

    /// The kernel has refused a datagram. `found`: what the interface carries now.
    pub(super) fn shrink(&mut self, now: Instant, found: Option<usize>) {
        let Some(found) = found else { return };
        self.bytes = self.bytes.min(found);
        self.looks_at = now.plus_ns(LOOK_NS);
    }

    /// Looks at the interface again, if it is time to.
    pub(super) fn grow(&mut self, now: Instant, look: impl FnOnce() -> Option<usize>) {
        if !self.has_shrunk() || now < self.looks_at {
            return;
        }
        self.looks_at = now.plus_ns(LOOK_NS);
        if let Some(found) = look() {
            self.bytes = self.bytes.max(found).min(self.most_bytes);
        }
    }
}

/// The MTU of an interface, as the route to a neighbour has it.
pub(super) fn mtu_of(interface: &Interface) -> Option<usize> {
    // A socket without a connection does not know it. To connect sends nothing.
    let socket = UdpSocket::bind(interface.place()).ok()?;
    let mut place = interface.place();
    place.set_port(9);
    let found = interface.neighbours().find_map(|address| {
        place.set_ip(address);
        socket.connect(place).ok()?;
        match address {
            IpAddr::V4(_) => sockopt::ip_mtu(&socket).ok(),
            IpAddr::V6(_) => sockopt::ipv6_mtu(&socket).ok(),
        }
    });
    found.map(|mtu| mtu as usize)
}

/// The longest datagram of a socket at this interface. Unit: bytes.
pub(super) fn longest_datagram_at(interface: &Interface) -> usize {
    longest_datagram_now(interface).unwrap_or(USUAL_MTU - header_bytes(interface.address.is_ipv4()))
}

/// As [`longest_datagram_at`]. `None`: the interface does not tell its MTU.
pub(super) fn longest_datagram_now(interface: &Interface) -> Option<usize> {
    let header_bytes = header_bytes(interface.address.is_ipv4());
    mtu_of(interface).map(|mtu| mtu.clamp(SMALLEST_MTU, LARGEST_MTU) - header_bytes)
}

/// The headers of IP and UDP. Unit: bytes.
pub(super) fn header_bytes(is_ipv4: bool) -> usize {
    if is_ipv4 { 28 } else { 48 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn an_interface_that_has_its_mtu_again_is_found_within_a_minute() {
        let mut longest = LongestDatagram::new(1472);
        let looked = |longest: &mut LongestDatagram, second: u64, found: Option<usize>| {
            let mut looks = 0;
            longest.grow(Instant(second * SECOND), || {
                looks += 1;
                found
            });
            looks
        };
        assert_eq!(looked(&mut longest, 1, Some(8972)), 0, "it has not shrunk");
        longest.shrink(Instant(5 * SECOND), None);
        assert!(!longest.has_shrunk(), "nothing is known");
        longest.shrink(Instant(5 * SECOND), Some(1272));
        assert_eq!((longest.bytes(), longest.has_shrunk()), (1272, true));
        assert_eq!(looked(&mut longest, 64, Some(1472)), 0);
        assert_eq!((looked(&mut longest, 65, Some(1272)), longest.bytes()), (1, 1272));
        assert_eq!(looked(&mut longest, 66, Some(1472)), 0);
        assert_eq!((looked(&mut longest, 125, None), longest.bytes()), (1, 1272));
        assert_eq!((looked(&mut longest, 185, Some(1372)), longest.bytes()), (1, 1372));
        assert_eq!((looked(&mut longest, 245, Some(8972)), longest.bytes()), (1, 1472), "as at the start");
        assert!(!longest.has_shrunk());
        assert_eq!(looked(&mut longest, 1000, Some(1472)), 0);
    }
}
