//! A socket of bare UDP ([`Socket`]). It sends as many datagrams in one call as the kernel takes, and receives what the
//! kernel has joined.

use super::bare::LOST;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{RcvBuf, SndBuf, UdpGroSegment};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, getsockopt, recvmsg, sendmsg, setsockopt,
};
use std::io::{IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;
use weir_output::Failure;
use weir_proto::wire::{EXTENSION_BYTES, TAG_BYTES};

/// A datagram that fills an MTU of 1500. Unit: bytes.
pub(super) const DATAGRAM_BYTES: usize = 1472;
/// Its payload. Unit: bytes.
pub(super) const PAYLOAD_BYTES: usize = DATAGRAM_BYTES - EXTENSION_BYTES - TAG_BYTES;
/// Room for what the kernel joins. Unit: bytes.
const JOINED_BYTES: usize = 64 << 10;
/// The buffer to ask the kernel for. Unit: bytes.
const BUFFER_BYTES: usize = 4 << 20;
/// Looks between two others that read the clock.
const LOOKS: u32 = 1000;
/// Looks of a thread that shares its core, before it sleeps.
const LOOKS_BEFORE_SLEEP: u32 = 4;
/// The longest sleep, so that a thread sees that the others have ended.
const SLEEP_MS: u8 = 10;
pub(super) const LOST_DATAGRAM: &str = "a datagram of bare UDP was lost";

/// How a thread waits for datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// It looks again. For threads that have a core of their own.
    Spin,
    /// It yields its core, and sleeps soon. For more threads than cores.
    Sleep,
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Socket {
    socket: UdpSocket,
    waiting: Waiting,
    joined: Vec<u8>,
    control: Vec<u8>,
}

/// What a look has found: datagrams of one sender.
pub(super) struct Found {
    pub from: Option<SockaddrIn>,
    pub bytes: usize,
    /// Length of all datagrams but the last.
    pub segment_bytes: usize,
}

impl Socket {
    /// # Errors
    /// [`Failure::System`]: an option of the socket.
    pub(super) fn new(socket: UdpSocket, waiting: Waiting) -> Result<Socket, Failure> {
        let set = |done: nix::Result<()>| done.map_err(|error| Failure::system("setsockopt")(error.into()));
        // The kernel grants less where its limits are lower.
        set(setsockopt(&socket, RcvBuf, &BUFFER_BYTES))?;
        set(setsockopt(&socket, SndBuf, &BUFFER_BYTES))?;
        set(setsockopt(&socket, UdpGroSegment, &true))?;
        Ok(Socket { socket, waiting, joined: vec![0; JOINED_BYTES], control: nix::cmsg_space!(i32) })
    }

    /// The receive buffer that the kernel has granted, in its own count. Unit: bytes.
    ///
    /// # Errors
    /// [`Failure::System`].
    pub(super) fn buffer_bytes(&self) -> Result<usize, Failure> {
        getsockopt(&self.socket, RcvBuf).map_err(|error| Failure::system("getsockopt")(error.into()))
    }

    /// Sends one datagram to where the socket is connected.
    ///
    /// # Errors
    /// [`Failure::System`].
    pub(super) fn send(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.socket.send(bytes).map(drop).map_err(Failure::system("send"))
    }

    /// Sends datagrams of [`DATAGRAM_BYTES`] in one call. The last may be shorter.
    ///
    /// # Errors
    /// [`Failure::System`].
    pub(super) fn send_cut(&self, datagrams: &[u8]) -> Result<(), Failure> {
        if datagrams.len() <= DATAGRAM_BYTES {
            return self.send(datagrams);
        }
        self.send_message(datagrams, &[ControlMessage::UdpGsoSegments(&(DATAGRAM_BYTES as u16))], None)
    }

    /// Sends one datagram to this place.
    ///
    /// # Errors
    /// [`Failure::System`].
    pub(super) fn send_to(&self, bytes: &[u8], to: &SockaddrIn) -> Result<(), Failure> {
        self.send_message(bytes, &[], Some(to))
    }

    fn send_message(
        &self,
        bytes: &[u8],
        control: &[ControlMessage<'_>],
        to: Option<&SockaddrIn>,
    ) -> Result<(), Failure> {
        loop {
            let sent =
                sendmsg(self.socket.as_raw_fd(), &[IoSlice::new(bytes)], control, MsgFlags::empty(), to);
            match sent {
                Ok(_) => return Ok(()),
                // The send buffer is full: datagrams wait at a core that another thread uses.
                Err(nix::errno::Errno::EAGAIN) => std::thread::yield_now(),
                Err(error) => return Err(Failure::system("sendmsg")(error.into())),
            }
        }
    }

    /// The datagrams that a look has found.
    pub(super) fn datagrams(&mut self, found: &Found) -> &mut [u8] {
        &mut self.joined[..found.bytes]
    }

    /// Waits until something has arrived, or until `is_over`. `None`: it is over.
    ///
    /// # Errors
    /// [`Failure::Measurement`]: nothing arrives.
    pub(super) fn look(&mut self, is_over: impl Fn() -> bool) -> Result<Option<Found>, Failure> {
        let (mut begun, mut looks) = (None, 0);
        loop {
            let found = self.look_once();
            if found.is_some() {
                return Ok(found);
            }
            looks += 1;
            if self.waiting == Waiting::Sleep {
                std::thread::yield_now();
            }
            if looks % LOOKS == 0 || (self.waiting == Waiting::Sleep && looks >= LOOKS_BEFORE_SLEEP) {
                if is_over() {
                    return Ok(None);
                }
                if begun.get_or_insert_with(Instant::now).elapsed() > LOST {
                    return Err(Failure::Measurement(String::from(LOST_DATAGRAM)));
                }
                if self.waiting == Waiting::Sleep {
                    let mut wanted = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
                    // A signal only makes it look again.
                    let _ = poll(&mut wanted, PollTimeout::from(SLEEP_MS));
                }
            }
        }
    }

    fn look_once(&mut self) -> Option<Found> {
        let mut parts = [IoSliceMut::new(&mut self.joined)];
        let control = Some(self.control.as_mut_slice());
        let found =
            recvmsg::<SockaddrIn>(self.socket.as_raw_fd(), &mut parts, control, MsgFlags::MSG_DONTWAIT)
                .ok()?;
        let joined = found.cmsgs().ok().and_then(|mut all| {
            all.find_map(|one| match one {
                ControlMessageOwned::UdpGroSegments(bytes) => usize::try_from(bytes).ok(),
                _ => None,
            })
        });
        let bytes = found.bytes;
        Some(Found { from: found.address, bytes, segment_bytes: joined.unwrap_or(bytes).max(1) })
    }
}
