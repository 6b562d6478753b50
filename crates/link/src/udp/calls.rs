//! The frequent system calls of a socket: one datagram to a peer ([`send_one`]), several to the peer of a connected socket
//! ([`send_cut`]), and a look for arrivals ([`Looker`]).
//!
//! `quinn-udp` has calls for both, and sends many datagrams in one call. But it passes control messages with each datagram,
//! asks the kernel for the time and the interface of each arrival, and looks with room for 32 of them. A lone datagram
//! pays for all of that. And it names the receiver in each call, so the kernel looks up a route although a socket is connected.
//! ```text
//! quinn-udp     UdpSocketState::new      plain       without the time and the interface, marked as ECN-capable
//! look          one datagram, or several of one sender that the kernel has joined (GRO): their length is a control message
//! ```

use nix::sys::socket::sockopt::{Ipv4PacketInfo, Ipv6RecvPacketInfo, ReceiveTimestampns};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt};
use rustix::io::Errno;
use rustix::net::{SendFlags, sendto, sockopt};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;

/// ECN: this transport reacts to marks. Source: RFC 3168, section 5.
const CAPABLE: u8 = 0b10;
/// ECN: a queue on the way was long.
const CONGESTION: u8 = 0b11;
const ECN_BITS: u8 = 0b11;
/// Room for the control messages of an arrival: a length and a traffic class, with their headers. Unit: 8 bytes.
const CONTROL_WORDS: usize = 16;

/// Turns off what `quinn-udp` asks of the kernel for each datagram and nobody here reads. Marks datagrams as ECN-capable.
pub(super) fn plain(socket: &UdpSocket, is_ipv4: bool) {
    // A kernel without one of these options does not do that for each datagram either.
    let _ = setsockopt(socket, ReceiveTimestampns, &false);
    if is_ipv4 {
        let _ = setsockopt(socket, Ipv4PacketInfo, &false);
        let _ = sockopt::set_ip_tos(socket, CAPABLE);
    } else {
        let _ = setsockopt(socket, Ipv6RecvPacketInfo, &false);
        let _ = sockopt::set_ipv6_tclass(socket, CAPABLE.into());
    }
}

/// Sends one datagram.
///
/// # Errors
/// Those of `sendto`.
pub(super) fn send_one(socket: &UdpSocket, to: &SocketAddr, bytes: &[u8]) -> io::Result<()> {
    sendto(socket, bytes, SendFlags::DONTWAIT, to)?;
    Ok(())
}

/// Sends datagrams of `segment_bytes` bytes, but for the last, to the peer of a connected socket, in one call. All of them are
/// taken, or none.
///
/// # Errors
/// Those of `sendmsg`.
pub(super) fn send_cut(socket: &UdpSocket, bytes: &[u8], segment_bytes: usize) -> io::Result<()> {
    let segment_bytes = u16::try_from(segment_bytes).map_err(|_| Errno::MSGSIZE)?;
    let (parts, cut) = ([IoSlice::new(bytes)], [ControlMessage::UdpGsoSegments(&segment_bytes)]);
    sendmsg::<()>(socket.as_raw_fd(), &parts, &cut, MsgFlags::MSG_DONTWAIT, None)?;
    Ok(())
}

/// Whether the kernel finds a datagram, or the pieces of a call, too large for the interface.
pub(super) fn is_too_large(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MSGSIZE | Errno::INVAL))
}

/// Whether the kernel may take the same datagrams later.
pub(super) fn is_busy(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || Errno::from_io_error(error) == Some(Errno::NOBUFS)
}

/// What a look has found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub from: SocketAddr,
    /// Bytes of all datagrams together.
    pub bytes: usize,
    /// Length of each but the last.
    pub segment_bytes: usize,
    pub marked: bool,
}

/// Why a look has found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nothing {
    /// The socket was empty.
    Empty,
    /// It may have something: the kernel has refused, or reported other datagrams.
    Failed,
}

/// Looks for arrivals. A call of its own, because each look pays for it: without what the caller knows already, and without
/// memory that must be cleared before.
#[derive(Debug)]
pub(super) struct Looker {
    is_ipv4: bool,
    control: [u64; CONTROL_WORDS],
}

impl Looker {
    pub fn new(is_ipv4: bool) -> Looker {
        Looker { is_ipv4, control: [0; CONTROL_WORDS] }
    }

    /// The next datagram, or several of one sender, in `buffer`. `from`: the only sender whose datagrams this socket can have, so
    /// that the kernel need not name it.
    ///
    /// # Errors
    /// [`Nothing`].
    pub fn look(
        &mut self,
        socket: &UdpSocket,
        from: Option<SocketAddr>,
        buffer: &mut [u8],
    ) -> Result<Found, Nothing> {
        // A connected socket reports that an earlier datagram was refused before it gives what has arrived. Once is enough: a
        // report that comes now belongs to the next look.
        match self.look_once(socket, from, buffer) {
            Err(Errno::AGAIN) => Err(Nothing::Empty),
            Err(_) => self.look_once(socket, from, buffer).map_err(|_| Nothing::Failed),
            found => found.map_err(|_| Nothing::Failed),
        }
    }

    fn look_once(
        &mut self,
        socket: &UdpSocket,
        from: Option<SocketAddr>,
        buffer: &mut [u8],
    ) -> Result<Found, Errno> {
        let mut place = MaybeUninit::<libc::sockaddr_in6>::uninit(); // longer than that of IPv4
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: all bytes of this structure of C may be 0.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        if from.is_none() {
            message.msg_name = place.as_mut_ptr().cast();
            message.msg_namelen = size_of::<libc::sockaddr_in6>() as u32;
        }
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_control = self.control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&self.control);
        // SAFETY: the header points to memory of the lengths that it says, which nobody else uses during the call.
        let bytes = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        let Ok(bytes) = usize::try_from(bytes) else {
            return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
        };
        let named_bytes = message.msg_namelen as usize;
        let from = match from {
            Some(from) => from,
            None if self.is_ipv4 && named_bytes >= size_of::<libc::sockaddr_in>() => {
                // SAFETY: the kernel has written so many bytes, the place of a socket of the family of this one.
                place_of_ipv4(unsafe { &*place.as_ptr().cast() })
            }
            None if !self.is_ipv4 && named_bytes >= size_of::<libc::sockaddr_in6>() => {
                // SAFETY: the kernel has written all of it.
                place_of_ipv6(unsafe { place.assume_init_ref() })
            }
            None => return Err(Errno::AFNOSUPPORT),
        };
        let mut found = Found { from, bytes, segment_bytes: bytes, marked: false };
        if message.msg_controllen > 0 {
            found.read_control(&message);
        }
        Ok(found)
    }
}

fn place_of_ipv4(place: &libc::sockaddr_in) -> SocketAddr {
    let address = Ipv4Addr::from(u32::from_be(place.sin_addr.s_addr));
    SocketAddrV4::new(address, u16::from_be(place.sin_port)).into()
}

fn place_of_ipv6(place: &libc::sockaddr_in6) -> SocketAddr {
    let address = Ipv6Addr::from(place.sin6_addr.s6_addr);
    SocketAddrV6::new(address, u16::from_be(place.sin6_port), place.sin6_flowinfo, place.sin6_scope_id).into()
}

impl Found {
    /// Reads the control messages that the kernel has written for this header.
    fn read_control(&mut self, message: &libc::msghdr) {
        // SAFETY: the kernel has written whole control messages to the memory of the header, and their length.
        let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
        while !next.is_null() {
            // SAFETY: it is one of those messages, and they are aligned as their memory is.
            let (control, data) = unsafe { (&*next, libc::CMSG_DATA(next)) };
            match (control.cmsg_level, control.cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    // SAFETY: this kind has an `int`, which need not be aligned.
                    let bytes = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                    self.segment_bytes =
                        usize::try_from(bytes).ok().filter(|&bytes| bytes > 0).unwrap_or(self.bytes);
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => {
                    // SAFETY: this kind has a byte.
                    self.marked = unsafe { data.read() } & ECN_BITS == CONGESTION;
                }
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    // SAFETY: this kind has an `int`, which need not be aligned.
                    let class = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                    self.marked = class as u8 & ECN_BITS == CONGESTION;
                }
                _ => {}
            }
            // SAFETY: the header and one of its messages.
            next = unsafe { libc::CMSG_NXTHDR(message, next) };
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use quinn_udp::{Transmit, UdpSocketState};

    /// The datagrams that come until there is nothing.
    fn all(looker: &mut Looker, socket: &UdpSocket) -> Vec<Found> {
        let mut buffer = vec![0; 1 << 16];
        let begun = std::time::Instant::now();
        let mut all = Vec::new();
        while all.is_empty() && begun.elapsed().as_secs() < 20 {
            all.extend(std::iter::from_fn(|| looker.look(socket, None, &mut buffer).ok()));
        }
        all
    }

    #[test]
    fn what_the_kernel_may_take_later_is_not_lost() {
        for (number, busy) in [
            (Errno::NOBUFS, true),
            (Errno::AGAIN, true),
            (Errno::MSGSIZE, false),
            (Errno::HOSTUNREACH, false),
            (Errno::CONNREFUSED, false),
        ] {
            assert_eq!(is_busy(&io::Error::from(number)), busy, "{number:?}");
        }
    }

    #[test]
    fn lone_and_joined_datagrams_and_their_marks_are_found() {
        for net in ["127.0.0.1", "::1"] {
            let (a, b) = (UdpSocket::bind((net, 0)).unwrap(), UdpSocket::bind((net, 0)).unwrap());
            let is_ipv4 = a.local_addr().unwrap().is_ipv4();
            let state = UdpSocketState::new((&a).into()).unwrap();
            UdpSocketState::new((&b).into()).unwrap();
            plain(&a, is_ipv4);
            plain(&b, is_ipv4);
            let (to, mut looker) = (b.local_addr().unwrap(), Looker::new(is_ipv4));
            assert!(looker.look(&b, None, &mut [0; 8]).is_err(), "nothing was sent");
            send_one(&a, &to, &[7; 100]).unwrap();
            let found = all(&mut looker, &b);
            let [Found { from, bytes: 100, segment_bytes: 100, marked: false }] = found[..] else {
                panic!("{net}: {found:?}")
            };
            assert_eq!(from, a.local_addr().unwrap());
            // A sender that is known already is not asked for.
            send_one(&a, &to, &[7; 100]).unwrap();
            let (known, mut buffer) = (SocketAddr::from(([192, 0, 2, 1], 9)), [0; 200]);
            let begun = std::time::Instant::now();
            let found = loop {
                match looker.look(&b, Some(known), &mut buffer) {
                    Err(Nothing::Empty) if begun.elapsed().as_secs() < 20 => {}
                    found => break found.unwrap(),
                }
            };
            assert_eq!(
                (found.from, found.bytes, found.segment_bytes, &buffer[..100]),
                (known, 100, 100, &[7; 100][..])
            );
            let ecn = Some(quinn_udp::EcnCodepoint::Ce);
            let contents = &[7; 2500];
            let transmit =
                Transmit { destination: to, ecn, contents, segment_size: Some(1000), src_ip: None };
            state.try_send((&a).into(), &transmit).unwrap();
            let found = all(&mut looker, &b);
            let datagrams: usize = found.iter().map(|one| one.bytes.div_ceil(one.segment_bytes)).sum();
            assert_eq!((datagrams, found.iter().map(|one| one.bytes).sum::<usize>()), (3, 2500), "{found:?}");
            assert!(found.iter().all(|one| one.marked), "{net}: {found:?}");
            // An empty datagram is one.
            send_one(&a, &to, &[]).unwrap();
            assert_eq!(all(&mut looker, &b).len(), 1);
        }
    }
}
