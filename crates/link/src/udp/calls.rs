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
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, RecvMsg, SockaddrIn, SockaddrIn6, SockaddrLike, recvmsg,
    sendmsg, setsockopt,
};
use rustix::io::Errno;
use rustix::net::{SendFlags, sendto, sockopt};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;
use zerocopy::IntoBytes;

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

/// Looks for arrivals.
#[derive(Debug)]
pub(super) struct Looker {
    is_ipv4: bool,
    control: [u64; CONTROL_WORDS],
}

impl Looker {
    pub fn new(is_ipv4: bool) -> Looker {
        Looker { is_ipv4, control: [0; CONTROL_WORDS] }
    }

    /// The next datagram, or several of one sender, in `buffer`. `None`: nothing has arrived.
    pub fn look(&mut self, socket: &UdpSocket, buffer: &mut [u8]) -> Option<Found> {
        // A connected socket reports that an earlier datagram was refused before it gives what has arrived. Once is enough: a
        // report that comes now belongs to the next look.
        match self.look_once(socket, buffer) {
            Err(nix::errno::Errno::EAGAIN) => None,
            Err(_) => self.look_once(socket, buffer).ok().flatten(),
            Ok(found) => found,
        }
    }

    fn look_once(&mut self, socket: &UdpSocket, buffer: &mut [u8]) -> nix::Result<Option<Found>> {
        let (descriptor, control) = (socket.as_raw_fd(), self.control.as_mut_bytes());
        let mut parts = [IoSliceMut::new(buffer)];
        if self.is_ipv4 {
            let message = recvmsg(descriptor, &mut parts, Some(control), MsgFlags::MSG_DONTWAIT)?;
            Ok(found(&message, |from: SockaddrIn| SocketAddrV4::from(from).into()))
        } else {
            let message = recvmsg(descriptor, &mut parts, Some(control), MsgFlags::MSG_DONTWAIT)?;
            Ok(found(&message, |from: SockaddrIn6| SocketAddrV6::from(from).into()))
        }
    }
}

fn found<S: SockaddrLike + Copy>(
    message: &RecvMsg<'_, '_, S>,
    place: impl Fn(S) -> SocketAddr,
) -> Option<Found> {
    let mut found = Found {
        from: place(message.address?),
        bytes: message.bytes,
        segment_bytes: message.bytes,
        marked: false,
    };
    for control in message.cmsgs().ok()? {
        match control {
            ControlMessageOwned::UdpGroSegments(bytes) => {
                found.segment_bytes = usize::try_from(bytes).ok()?
            }
            ControlMessageOwned::Ipv4Tos(class) => found.marked = class & ECN_BITS == CONGESTION,
            ControlMessageOwned::Ipv6TClass(class) => found.marked = class as u8 & ECN_BITS == CONGESTION,
            _ => {}
        }
    }
    Some(found)
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
            all.extend(std::iter::from_fn(|| looker.look(socket, &mut buffer)));
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
            assert!(looker.look(&b, &mut [0; 8]).is_none(), "nothing was sent");
            send_one(&a, &to, &[7; 100]).unwrap();
            let found = all(&mut looker, &b);
            let [Found { from, bytes: 100, segment_bytes: 100, marked: false }] = found[..] else {
                panic!("{net}: {found:?}")
            };
            assert_eq!(from, a.local_addr().unwrap());
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
