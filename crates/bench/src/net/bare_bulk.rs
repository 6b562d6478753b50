//! Large messages over bare UDP between two pretended hosts: the half round trip of two threads that do what no protocol
//! can leave out. They copy, encrypt with the link's cipher, and send as many datagrams in one call as the kernel takes. They
//! receive what the kernel has joined, decrypt it and copy it to its place.
//!
//! ```text
//! asker   message    -> 41 datagrams a call; at most WINDOW that the echo has not counted
//! echo               <- how many have arrived, after ACKNOWLEDGED of them
//! echo    message    -> as soon as the message is whole
//! ```
//! There is no announcement, and nothing is sent again: on this network nothing is lost while the windows are kept.

use super::bare::{self, LOST};
use super::hosts::Hosts;
use nix::sys::socket::sockopt::{RcvBuf, SndBuf, UdpGroSegment};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt,
};
use std::io::{IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
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

/// Half a round trip of messages of `bytes` bytes, measured for `time`: the median. Unit: us.
///
/// # Errors
/// [`Failure`]: a socket could not be opened, or something was lost.
pub fn half_round_trip(hosts: &Hosts, bytes: usize, time: Duration) -> Result<f64, Failure> {
    let place = |socket: &UdpSocket| socket.local_addr().map_err(Failure::system("a socket"));
    let ((to_echo, from_asker), (to_asker, from_echo)) = (channel(), channel());
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || {
            let socket = bare::begin(hosts, 1)?;
            let _ = to_asker.send(place(&socket)?);
            let Ok(asker) = from_asker.recv() else { return Ok(()) };
            socket.connect(asker).map_err(Failure::system("connect"))?;
            let mut end = End::new(socket, [1, 0], bytes)?;
            loop {
                end.receive()?;
                let is_last = end.message[0] == bare::END;
                end.send()?;
                if is_last {
                    return Ok(());
                }
            }
        });
        let asker = scope.spawn(move || {
            let socket = bare::begin(hosts, 0)?;
            let _ = to_echo.send(place(&socket)?);
            let Ok(echo) = from_echo.recv() else {
                return Err(Failure::Measurement(String::from("no echo of bare UDP")));
            };
            socket.connect(echo).map_err(Failure::system("connect"))?;
            let mut end = End::new(socket, [0, 1], bytes)?;
            let (mut times, begun) = (Vec::new(), Instant::now());
            let mut is_last = false;
            while !is_last {
                is_last = !times.is_empty() && begun.elapsed() >= time;
                end.message[0] = if is_last { bare::END } else { bare::MORE };
                let turn = Instant::now();
                end.send()?;
                end.receive()?;
                times.push(turn.elapsed().as_secs_f64() * 1e6 / 2.0);
            }
            times.sort_by(f64::total_cmp);
            Ok(times[times.len() / 2])
        });
        let median = asker.join().expect("the asker does not panic");
        echo.join().expect("the echo does not panic").and(median)
    })
}

/// One of the two threads.
struct End {
    socket: UdpSocket,
    out: Key,
    own: Key,
    message: Vec<u8>,
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
    fn new(socket: UdpSocket, [own, other]: [u64; 2], bytes: usize) -> Result<End, Failure> {
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
            message: vec![0; bytes],
            datagrams: Vec::with_capacity(CALL * DATAGRAM_BYTES),
            joined: vec![0; JOINED_BYTES],
            control: nix::cmsg_space!(i32),
            sent: 0,
            counted: 0,
            arrived: 0,
        })
    }

    /// Sends the message.
    fn send(&mut self) -> Result<(), Failure> {
        for call in 0..self.message.len().div_ceil(PAYLOAD_BYTES * CALL) {
            let from = call * PAYLOAD_BYTES * CALL;
            let to = self.message.len().min(from + PAYLOAD_BYTES * CALL);
            let count = (to - from).div_ceil(PAYLOAD_BYTES) as u64;
            while self.sent + count > self.counted + WINDOW {
                let Found { bytes, .. } = self.look()?;
                self.note_counts(bytes);
            }
            self.datagrams.clear();
            for payload in self.message[from..to].chunks(PAYLOAD_BYTES) {
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

    /// Receives the message.
    fn receive(&mut self) -> Result<(), Failure> {
        let (mut at, mut uncounted) = (0, 0);
        while at < self.message.len() {
            let Found { bytes, segment_bytes } = self.look()?;
            if segment_bytes == COUNT_BYTES {
                self.note_counts(bytes);
                continue;
            }
            for datagram in self.joined[..bytes].chunks_mut(segment_bytes) {
                let opened = self.own.open(&nonce_of((1, 1), self.arrived), datagram, EXTENSION_BYTES);
                let opened = opened.map_err(|_| Failure::Measurement(String::from(LOST_DATAGRAM)))?;
                self.message[at..at + opened.len()].copy_from_slice(opened);
                at += opened.len();
                self.arrived += 1;
                uncounted += 1;
            }
            if uncounted >= ACKNOWLEDGED && at < self.message.len() {
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
