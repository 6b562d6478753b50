//! The second socket of an endpoint ([`Connected`]), at the port of the first one. It is connected to the partner
//! (`partner.rs`), so neither end looks up a route or a socket for each call between them.
//!
//! ```text
//! first socket     10.1.2.3:40001    everybody
//! second socket    10.1.2.3:40001    connected to 10.1.2.4:40007: the kernel brings what comes from there, and nothing else
//!                                    without a partner it is connected to itself: nothing comes
//! ```
//! - It is made with the first one, so it belongs to the same network namespace whatever the thread does later. It gets its
//!   port with the first partner.
//! - `SO_REUSEPORT` is set only then. Ports of a range that are used can still be told from free ones.
//! - Between `bind` and `connect`, the kernel spreads arrivals of all peers over both sockets. So each one brings the place of
//!   the sender.
//! - To close it is not enough: a child of `fork` keeps it, and what the partner sends would arrive at nobody. So it is
//!   connected to itself before.
//! - A datagram that reaches no socket there makes the next call fail (`ECONNREFUSED`). The endpoint sends it again in any case.

use super::calls;
use quinn_udp::UdpSocketState;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use weir_proto::Instant;

/// What another core brings to the socket as it was before, it brings within this time. Unit: ns.
const LATE_NS: u64 = 1_000_000;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Connected {
    socket: UdpSocket,
    own: SocketAddr,
    has_port: bool,
    /// The peer, if nothing of others can be there any more.
    only_sender: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    /// Then nothing of others comes any more. `None`: it was not empty since it was connected.
    alone_at: Option<Instant>,
}

impl Connected {
    /// A socket beside one at `own`, which asked for `asked_bytes` of buffer in each direction, and got `buffer_bytes` for
    /// arrivals.
    ///
    /// # Errors
    /// Those of the kernel, usually that the process has too many descriptors; or it gives less for arrivals.
    pub fn open(own: SocketAddr, asked_bytes: usize, buffer_bytes: usize) -> io::Result<Connected> {
        let family = if own.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = UdpSocket::from(rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?);
        let state = UdpSocketState::new((&socket).into())?;
        calls::plain(&socket, own.is_ipv4());
        let _ = state.set_recv_buffer_size((&socket).into(), asked_bytes);
        let _ = state.set_send_buffer_size((&socket).into(), asked_bytes);
        // What peers are granted is what the first socket holds, and all of it can be the partner's.
        if state.recv_buffer_size((&socket).into())? < buffer_bytes {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(Connected { socket, own, has_port: false, only_sender: None, peer: None, alone_at: None })
    }

    /// It is readable when something waits, or when a datagram was refused.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Whether something can have arrived.
    pub fn has_port(&self) -> bool {
        self.has_port
    }

    /// Connects it to `peer`. What has arrived from the peer before stays.
    ///
    /// # Errors
    /// Those of the kernel. It is connected as before.
    pub fn connect(&mut self, first: &UdpSocket, peer: SocketAddr) -> io::Result<()> {
        (self.only_sender, self.alone_at) = (None, None);
        if !self.has_port {
            self.bind(first)?;
        }
        rustix::net::connect(&self.socket, &peer)?;
        self.peer = Some(peer);
        Ok(())
    }

    /// The only peer whose datagrams can be here, once [`Connected::note_empty`] has said so.
    #[inline]
    pub fn only_sender(&self) -> Option<SocketAddr> {
        self.only_sender
    }

    /// It was empty at `now`: what was there before it was connected has been read. Not so in the first moment, when what the
    /// kernel had begun to bring may still come.
    #[inline]
    pub fn note_empty(&mut self, now: Instant) {
        if self.only_sender.is_some() || self.peer.is_none() {
            return;
        }
        if now >= *self.alone_at.get_or_insert(now.plus_ns(LATE_NS)) {
            self.only_sender = self.peer;
        }
    }

    /// Gives it the port of the first socket.
    fn bind(&mut self, first: &UdpSocket) -> io::Result<()> {
        sockopt::set_socket_reuseport(first, true)?;
        sockopt::set_socket_reuseport(&self.socket, true)?;
        rustix::net::bind(&self.socket, &self.own)?;
        self.has_port = true;
        Ok(())
    }

    /// Connects it to nobody. What has arrived stays.
    ///
    /// # Errors
    /// As for [`Connected::connect`].
    pub fn disconnect(&mut self) -> io::Result<()> {
        (self.peer, self.only_sender, self.alone_at) = (None, None, None);
        Ok(rustix::net::connect(&self.socket, &self.own)?)
    }

    /// Sends datagrams of `segment_bytes` bytes to the partner in one call; the last may be shorter.
    ///
    /// # Errors
    /// Those of `send` and `sendmsg`, also those of an earlier datagram.
    pub fn send(&self, bytes: &[u8], segment_bytes: usize) -> io::Result<()> {
        if bytes.len() > segment_bytes {
            return calls::send_cut(&self.socket, bytes, segment_bytes);
        }
        rustix::net::send(&self.socket, bytes, SendFlags::DONTWAIT)?;
        Ok(())
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        if self.has_port {
            let _ = self.disconnect(); // see the head of this file
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::udp::calls::Looker;

    const LOOPBACKS: [&str; 2] = ["127.0.0.1", "::1"];
    const BUFFER_BYTES: usize = 1 << 16;

    fn bound(net: &str) -> UdpSocket {
        let socket = UdpSocket::bind((net, 0)).expect("a port");
        socket.set_nonblocking(true).expect("it does not block");
        socket
    }

    fn place(socket: &UdpSocket) -> SocketAddr {
        socket.local_addr().expect("bound")
    }

    /// A first socket, and an unconnected second one.
    fn pair(net: &str) -> (UdpSocket, Connected) {
        let first = bound(net);
        let second = Connected::open(place(&first), BUFFER_BYTES, 0).expect("a descriptor");
        (first, second)
    }

    /// The senders of what waits at a socket, in order.
    fn senders(socket: &UdpSocket) -> Vec<SocketAddr> {
        let mut looker = Looker::new(place(socket).is_ipv4());
        let mut buffer = vec![0; 1 << 16];
        std::iter::from_fn(|| looker.look(socket, None, &mut buffer).ok()).map(|found| found.from).collect()
    }

    #[test]
    fn what_arrives_before_it_is_connected_brings_the_place_of_its_sender() {
        for net in LOOPBACKS {
            let (first, mut second) = pair(net);
            second.bind(&first).expect("the same port");
            let peers: Vec<UdpSocket> = (0..64).map(|_| bound(net)).collect();
            for peer in &peers {
                peer.send_to(b"early", place(&first)).expect("sent");
            }
            second.connect(&first, place(&peers[0])).expect("a route");
            for peer in &peers {
                peer.send_to(b"late", place(&first)).expect("sent");
            }
            let (of_first, of_second) = (senders(&first), senders(second.socket()));
            assert!(of_second.len() > 1, "the kernel spreads what comes early");
            for peer in &peers {
                let from = |found: &[SocketAddr]| found.iter().filter(|&&from| from == place(peer)).count();
                assert_eq!(from(&of_first) + from(&of_second), 2, "{net}");
            }
            assert_eq!(of_second.last(), Some(&place(&peers[0])), "late ones of others go to the first");
            assert!(of_second.iter().filter(|&&from| from != place(&peers[0])).count() < 64);
        }
    }

    #[test]
    fn the_only_sender_is_known_when_what_came_before_has_been_read() {
        for net in LOOPBACKS {
            let (first, mut second) = pair(net);
            let [a, b] = [bound(net), bound(net)];
            let later = |ns: u64| Instant(7 + ns);
            second.note_empty(later(0));
            assert_eq!(second.only_sender(), None, "it is not connected");
            for peer in [&a, &b] {
                second.connect(&first, place(peer)).expect("a route");
                assert_eq!(second.only_sender(), None, "something of others may be there");
                second.note_empty(later(0));
                second.note_empty(later(LATE_NS - 1));
                assert_eq!(second.only_sender(), None, "or may still come");
                second.note_empty(later(LATE_NS));
                assert_eq!(second.only_sender(), Some(place(peer)), "{net}");
            }
            second.disconnect().expect("a route");
            second.note_empty(later(9 * LATE_NS));
            assert_eq!(second.only_sender(), None, "{net}");
        }
    }

    #[test]
    fn a_change_of_the_partner_keeps_what_waits() {
        for net in LOOPBACKS {
            let (first, mut second) = pair(net);
            let [a, b] = [bound(net), bound(net)];
            second.connect(&first, place(&a)).expect("a route");
            a.send_to(b"1", place(&first)).expect("sent");
            second.connect(&first, place(&b)).expect("a route");
            a.send_to(b"2", place(&first)).expect("sent");
            b.send_to(b"3", place(&first)).expect("sent");
            second.disconnect().expect("a route");
            b.send_to(b"4", place(&first)).expect("sent");
            assert_eq!(senders(second.socket()), [place(&a), place(&b)]);
            assert_eq!(senders(&first), [place(&a), place(&b)]);
        }
    }

    /// As a child of `fork` does.
    #[test]
    fn a_closed_socket_that_somebody_keeps_takes_nothing() {
        for net in LOOPBACKS {
            let (first, mut second) = pair(net);
            let peer = bound(net);
            second.connect(&first, place(&peer)).expect("a route");
            let kept = second.socket().try_clone().expect("a descriptor");
            drop(second);
            for _ in 0..10 {
                peer.send_to(b"x", place(&first)).expect("sent");
            }
            assert_eq!((senders(&first).len(), senders(&kept).len()), (10, 0));
        }
    }

    #[test]
    fn a_partner_that_has_ended_hides_nothing_that_has_arrived() {
        for net in LOOPBACKS {
            let (first, mut second) = pair(net);
            let peer = bound(net);
            let at = place(&peer);
            second.connect(&first, at).expect("a route");
            peer.send_to(b"x", place(&first)).expect("sent");
            drop(peer);
            second.send(b"lost", 9).expect("nobody has refused yet");
            assert_eq!(senders(second.socket()), [at], "the refusal comes first");
            second.send(b"lost", 9).expect("it was reported");
            second.send(b"lost", 9).expect_err("refused");
        }
    }

    #[test]
    fn what_leaves_in_one_call_arrives_cut_as_it_was() {
        for net in LOOPBACKS {
            let (first, mut second) = pair(net);
            let peer = bound(net);
            UdpSocketState::new((&peer).into()).expect("it hears of marks");
            second.connect(&first, place(&peer)).expect("a route");
            let bytes: Vec<u8> = (0..2500_u32).map(|at| (at / 7) as u8).collect();
            second.send(&bytes, 1000).expect("sent");
            let mut looker = Looker::new(place(&peer).is_ipv4());
            let (mut buffer, mut arrived, mut datagrams) = (vec![0; 1 << 16], Vec::new(), 0);
            while let Ok(found) = looker.look(&peer, None, &mut buffer) {
                assert!(!found.marked && found.from == place(&first));
                datagrams += found.bytes.div_ceil(found.segment_bytes);
                arrived.extend_from_slice(&buffer[..found.bytes]);
            }
            assert_eq!(datagrams, 3, "{net}");
            assert!(arrived == bytes);
            let too_long = second.send(&[0; 70_000], 69_000).expect_err("longer than a datagram");
            assert!(calls::is_too_large(&too_long), "{too_long}");
        }
    }

    #[test]
    fn a_port_that_is_shared_is_not_free_for_other_endpoints() {
        let (first, mut second) = pair("127.0.0.1");
        second.connect(&first, place(&bound("127.0.0.1"))).expect("a route");
        UdpSocket::bind(place(&first)).expect_err("it is in use");
    }
}
