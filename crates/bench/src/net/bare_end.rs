//! Messages of many datagrams over bare UDP, as one of two threads sends and receives them ([`End`]). It does what no protocol
//! can leave out. It copies, encrypts with the link's cipher, and sends as many datagrams in one call as the kernel takes.
//! It receives what the kernel has joined, decrypts it and copies it to its place.
//!
//! ```text
//! A    message    -> 44 datagrams a call; at most WINDOW that B has not counted
//! B               <- how many have arrived, after ACKNOWLEDGED of them
//! B    message    -> as soon as the message of A is whole
//! ```
//! There is no announcement, and nothing is sent again: on this network nothing is lost while the windows are kept.
//! Messages alternate: an end that receives one knows that all of its own have arrived.

use super::bare_socket::{DATAGRAM_BYTES, Found, LOST_DATAGRAM, PAYLOAD_BYTES, Socket};
use weir_link::Address;
use weir_link::datagram::seal::{Key, nonce_of};
use weir_output::Failure;
use weir_proto::wire::EXTENSION_BYTES;

/// Datagrams of a call: the most that the length of an IP packet allows.
const CALL: usize = 44;
/// Datagrams that the other end has not counted, at most.
const WINDOW: u64 = 256;
/// Datagrams after which the other end says how many have arrived.
const ACKNOWLEDGED: u64 = 64;
/// Length of a count.
const COUNT_BYTES: usize = 8;

/// One of the two threads.
pub(super) struct End {
    socket: Socket,
    out: Key,
    own: Key,
    /// Datagrams that the other end has not counted, at most.
    window: u64,
    /// The datagrams of the next call.
    datagrams: Vec<u8>,
    /// Datagrams that were sent, that the other end has counted, and that have arrived.
    sent: u64,
    counted: u64,
    arrived: u64,
}

/// The key of datagrams from one end to another, by their numbers.
pub(super) fn key_of([from, to]: [u64; 2]) -> Key {
    let address = |number: u64| Address::new(number + 1, [7; 16]);
    Key::of_path(&address(from), &address(to))
}

/// Decrypts a datagram, the `number`th of its sender.
///
/// # Errors
/// [`Failure::Measurement`]: it is another one.
pub(super) fn open<'datagram>(
    key: &Key,
    number: u64,
    datagram: &'datagram mut [u8],
) -> Result<&'datagram [u8], Failure> {
    let opened = key.open(&nonce_of((1, 1), number), datagram, EXTENSION_BYTES);
    opened.map_err(|_| Failure::Measurement(String::from(LOST_DATAGRAM)))
}

impl End {
    /// `[own, other]`: numbers of the two ends. They differ, and choose the keys. The socket is connected.
    pub(super) fn new(socket: Socket, [own, other]: [u64; 2]) -> End {
        End {
            socket,
            out: key_of([own, other]),
            own: key_of([other, own]),
            window: WINDOW,
            datagrams: Vec::with_capacity(CALL * DATAGRAM_BYTES),
            sent: 0,
            counted: 0,
            arrived: 0,
        }
    }

    /// The same with a window of so many datagrams.
    pub(super) fn with_window(self, window: u64) -> End {
        End { window, ..self }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`Failure`]: a system call, or something was lost.
    pub(super) fn send(&mut self, message: &[u8]) -> Result<(), Failure> {
        for of_call in message.chunks(PAYLOAD_BYTES * CALL) {
            let count = of_call.len().div_ceil(PAYLOAD_BYTES) as u64;
            while self.sent + count > self.counted + self.window {
                let found = self.look()?;
                self.note_counts(&found);
            }
            self.datagrams.clear();
            for payload in of_call.chunks(PAYLOAD_BYTES) {
                let begin = self.datagrams.len();
                self.datagrams.extend_from_slice(&[0; EXTENSION_BYTES]);
                self.datagrams.extend_from_slice(payload);
                self.out.seal(&nonce_of((1, 1), self.sent), &mut self.datagrams, begin, EXTENSION_BYTES);
                self.sent += 1;
            }
            self.socket.send_cut(&self.datagrams)?;
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
            let found = self.look()?;
            if found.segment_bytes == COUNT_BYTES {
                self.note_counts(&found);
                continue;
            }
            for datagram in self.socket.datagrams(&found).chunks_mut(found.segment_bytes) {
                let opened = open(&self.own, self.arrived, datagram)?;
                message[at..at + opened.len()].copy_from_slice(opened);
                at += opened.len();
                self.arrived += 1;
                uncounted += 1;
            }
            if uncounted >= ACKNOWLEDGED && at < message.len() {
                uncounted = 0;
                self.count()?;
            }
        }
        self.counted = self.sent; // the other end answers what has arrived whole
        Ok(())
    }

    /// Tells the other end how many datagrams have arrived.
    ///
    /// # Errors
    /// [`Failure::System`].
    pub(super) fn count(&self) -> Result<(), Failure> {
        self.socket.send(&self.arrived.to_le_bytes())
    }

    fn note_counts(&mut self, found: &Found) {
        for count in self.socket.datagrams(found).as_chunks::<COUNT_BYTES>().0 {
            self.counted = self.counted.max(u64::from_le_bytes(*count));
        }
    }

    /// Waits until something has arrived.
    fn look(&mut self) -> Result<Found, Failure> {
        let found = self.socket.look(|| false)?;
        Ok(found.expect("a look that is never over finds something"))
    }
}
