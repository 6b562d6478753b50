//! Messages of many datagrams over bare UDP, as one of two threads sends and receives them ([`End`]). It does what no protocol
//! can leave out. It copies, encrypts with the link's cipher, and sends as many datagrams in one call as the kernel takes.
//! It receives what the kernel has joined, decrypts it and copies it to its place.
//!
//! ```text
//! A    message    -> 41 datagrams a call; at most WINDOW that B has not counted
//! B               <- how many have arrived, after ACKNOWLEDGED of them
//! B    message    -> as soon as the message of A is whole
//! ```
//! There is no announcement, and nothing is sent again: on this network nothing is lost while the windows are kept.
//! Messages alternate: an end that receives one knows that all of its own have arrived.

use super::bare::LOST;
use nix::sys::socket::sockopt::{RcvBuf, SndBuf, UdpGroSegment};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt,
};
use std::io::{IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Instant;
use weir_link::Address;
use weir_link::datagram::seal::{Key, nonce_of};
use weir_output::Failure;
use weir_proto::wire::{EXTENSION_BYTES, TAG_BYTES};

/// A datagram that fills an MTU of 1500. Unit: bytes.
const DATAGRAM_BYTES: usize = 1472;
const PAYLOAD_BYTES: usize = DATAGRAM_BYTES - EXTENSION_BYTES - TAG_BYTES;
/// Datagrams of a call: the most that the length of an IP packet allows.
const CALL: usize = 41;
/// Datagrams that the other end has not counted.
const WINDOW: u64 = 256;
/// Datagrams after which the other end says how many have arrived.
const ACKNOWLEDGED: u64 = 64;
/// Length of a count.
const COUNT_BYTES: usize = 8;
/// Room for what the kernel joins. Unit: bytes.
const JOINED_BYTES: usize = 64 << 10;
/// The buffer to ask the kernel for. Unit: bytes.
const BUFFER_BYTES: usize = 4 << 20;

/// One of the two threads.
pub(super) struct End {
    socket: UdpSocket,
    out: Key,
    own: Key,
    /// The datagrams of the next call.
    datagrams: Vec<u8>,
    joined: Vec<u8>,
    control: Vec<u8>,
    /// Datagrams that were sent, that the other end has counted, and that have arrived.
    sent: u64,
    counted: u64,
    arrived: u64,
}

/// What a look has found in the buffer.
struct Found {
    bytes: usize,
    segment_bytes: usize,
}

impl End {
    /// `[own, other]`: numbers of the two ends. They differ, and choose the keys.
    ///
    /// # Errors
    /// [`Failure::System`]: an option of the socket.
    pub(super) fn new(socket: UdpSocket, [own, other]: [u64; 2]) -> Result<End, Failure> {
        let set = |done: nix::Result<()>| done.map_err(|error| Failure::system("setsockopt")(error.into()));
        // The kernel grants less where its limits are lower.
        set(setsockopt(&socket, RcvBuf, &BUFFER_BYTES))?;
        set(setsockopt(&socket, SndBuf, &BUFFER_BYTES))?;
        set(setsockopt(&socket, UdpGroSegment, &true))?;
        let address = |identity: u64| Address::new(identity + 1, [7; 16]);
        let (own, other) = (address(own), address(other));
        Ok(End {
            socket,
            out: Key::of_path(&own, &other),
            own: Key::of_path(&other, &own),
            datagrams: Vec::with_capacity(CALL * DATAGRAM_BYTES),
            joined: vec![0; JOINED_BYTES],
            control: nix::cmsg_space!(i32),
            sent: 0,
            counted: 0,
            arrived: 0,
        })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`Failure`]: a system call, or something was lost.
    pub(super) fn send(&mut self, message: &[u8]) -> Result<(), Failure> {
        for of_call in message.chunks(PAYLOAD_BYTES * CALL) {
            let count = of_call.len().div_ceil(PAYLOAD_BYTES) as u64;
            while self.sent + count > self.counted + WINDOW {
                let Found { bytes, .. } = self.look()?;
                self.note_counts(bytes);
            }
            self.datagrams.clear();
            for payload in of_call.chunks(PAYLOAD_BYTES) {
                let begin = self.datagrams.len();
                self.datagrams.extend_from_slice(&[0; EXTENSION_BYTES]);
                self.datagrams.extend_from_slice(payload);
                self.out.seal(&nonce_of((1, 1), self.sent), &mut self.datagrams, begin, EXTENSION_BYTES);
                self.sent += 1;
            }
            let length = DATAGRAM_BYTES as u16;
            let sent = sendmsg::<SockaddrIn>(
                self.socket.as_raw_fd(),
                &[IoSlice::new(&self.datagrams)],
                &[ControlMessage::UdpGsoSegments(&length)],
                MsgFlags::empty(),
                None,
            );
            sent.map_err(|error| Failure::system("sendmsg")(error.into()))?;
        }
        Ok(())
    }

    /// Receives a message of this length.
    ///
    /// # Errors
    /// [`Failure`]: a system call, or something was lost.
    pub(super) fn receive(&mut self, message: &mut [u8]) -> Result<(), Failure> {
        let (mut at, mut uncounted) = (0, 0);
        while at < message.len() {
            let Found { bytes, segment_bytes } = self.look()?;
            if segment_bytes == COUNT_BYTES {
                self.note_counts(bytes);
                continue;
            }
            for datagram in self.joined[..bytes].chunks_mut(segment_bytes) {
                let opened = self.own.open(&nonce_of((1, 1), self.arrived), datagram, EXTENSION_BYTES);
                let opened = opened.map_err(|_| Failure::Measurement(String::from(LOST_DATAGRAM)))?;
                message[at..at + opened.len()].copy_from_slice(opened);
                at += opened.len();
                self.arrived += 1;
                uncounted += 1;
            }
            if uncounted >= ACKNOWLEDGED && at < message.len() {
                uncounted = 0;
                self.socket.send(&self.arrived.to_le_bytes()).map_err(Failure::system("send"))?;
            }
        }
        self.counted = self.sent; // the other end answers what has arrived whole
        Ok(())
    }

    /// The buffer begins with counts.
    fn note_counts(&mut self, bytes: usize) {
        for count in self.joined[..bytes].as_chunks::<COUNT_BYTES>().0 {
            self.counted = self.counted.max(u64::from_le_bytes(*count));
        }
    }

    /// Spins until something has arrived.
    fn look(&mut self) -> Result<Found, Failure> {
        let mut begun = None;
        loop {
            for _ in 0..1000 {
                let mut parts = [IoSliceMut::new(&mut self.joined)];
                let socket = self.socket.as_raw_fd();
                let control = Some(self.control.as_mut_slice());
                let found = recvmsg::<SockaddrIn>(socket, &mut parts, control, MsgFlags::MSG_DONTWAIT);
                if let Ok(found) = found {
                    let bytes = found.bytes;
                    let joined = found.cmsgs().ok().and_then(|mut all| {
                        all.find_map(|one| match one {
                            ControlMessageOwned::UdpGroSegments(bytes) => usize::try_from(bytes).ok(),
                            _ => None,
                        })
                    });
                    return Ok(Found { bytes, segment_bytes: joined.unwrap_or(bytes).max(1) });
                }
            }
            if begun.get_or_insert_with(Instant::now).elapsed() > LOST {
                return Err(Failure::Measurement(String::from(LOST_DATAGRAM)));
            }
        }
    }
}

const LOST_DATAGRAM: &str = "a datagram of bare UDP was lost";
