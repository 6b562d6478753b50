//! Datagrams on their way to the network ([`Outgoing`]): those to one place that follow each other leave in one call, if
//! they have the same length. The last may be shorter.
//!
//! ```text
//! begin(A), 1200 B    begin(A), 1200 B    begin(A), 300 B    begin(B)
//! waits               waits               waits              send(A, 2700 B, cut at 1200 B), then waits
//! ```
//! This file does not know what the bytes mean.

use super::network::DatagramNetwork;
use weir_proto::LinkBusy;

/// The most bytes and datagrams of one call. With all headers it is shorter than the longest packet that kernels leave to an
/// adapter to cut, 65,536 bytes. Source: udp(7), `UDP_SEGMENT`.
const MOST_BYTES: usize = 65_000;
const MOST_DATAGRAMS: usize = 64;
/// So many wait for others, if there are so many, although nothing is under way: a call costs as much as the seals of forty, so
/// the receiver does not gain by an earlier one. 64 KiB leave in two calls, and what has come with the first is read meanwhile.
const LEAST_BURST: usize = 32;
/// So many refusals in a row, some milliseconds of polls: then what waits is dropped, if other places may take datagrams.
const MOST_REFUSALS: u32 = 4096;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Outgoing<P> {
    to: Option<P>,
    bytes: Vec<u8>,
    /// Length of all datagrams but the last.
    segment_bytes: usize,
    datagrams: usize,
    /// They are too large for the path.
    in_fragments: bool,
    /// The last datagram is shorter, so no other follows it.
    is_closed: bool,
    /// The network has taken nothing for so many calls.
    refusals: u32,
}

/// The most datagrams of this length that leave in one call.
pub(super) fn most_datagrams(datagram_bytes: usize) -> usize {
    (MOST_BYTES / datagram_bytes.max(1)).clamp(1, MOST_DATAGRAMS)
}

impl<P: Copy + Eq> Outgoing<P> {
    pub(super) fn new() -> Outgoing<P> {
        Outgoing {
            to: None,
            bytes: Vec::new(),
            segment_bytes: 0,
            datagrams: 0,
            in_fragments: false,
            is_closed: false,
            refusals: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.datagrams == 0
    }

    /// Appends a datagram of `length` bytes to `to`, which `write` appends to its argument. One that is longer than
    /// `largest` leaves in fragments. With `under_way` datagrams on their way to a peer, at most half as many wait here:
    /// it begins with the first ones while others are sealed.
    ///
    /// # Errors
    /// [`LinkBusy`]: the network does not take those that wait before it. Nothing is written.
    pub(super) fn append<N: DatagramNetwork<Place = P>>(
        &mut self,
        network: &mut N,
        to: P,
        length: usize,
        largest: usize,
        under_way: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), LinkBusy> {
        let in_fragments = length > largest;
        let joins = self.to == Some(to)
            && self.in_fragments == in_fragments
            && !self.is_closed
            && length <= self.segment_bytes
            && self.datagrams < (under_way / 2).clamp(LEAST_BURST, MOST_DATAGRAMS)
            && self.bytes.len() + length <= MOST_BYTES;
        if !joins {
            self.flush(network)?;
            (self.to, self.segment_bytes, self.in_fragments) = (Some(to), length, in_fragments);
        }
        let begin = self.bytes.len();
        write(&mut self.bytes);
        debug_assert_eq!(self.bytes.len() - begin, length, "the length of a datagram");
        self.is_closed = length < self.segment_bytes;
        self.datagrams += 1;
        Ok(())
    }

    /// Removes the datagram of `length` bytes that was appended last.
    pub(super) fn remove_last(&mut self, length: usize) {
        self.bytes.truncate(self.bytes.len() - length);
        self.datagrams -= 1;
        // Before a closed one nothing would have joined it.
        self.is_closed = false;
        if self.datagrams == 0 {
            self.to = None;
        }
    }

    /// Sends what waits.
    ///
    /// # Errors
    /// [`LinkBusy`]: the rest of it still waits.
    pub(super) fn flush<N: DatagramNetwork<Place = P>>(&mut self, network: &mut N) -> Result<(), LinkBusy> {
        if self.is_empty() {
            return Ok(());
        }
        if let Some(to) = self.to {
            let taken = network.send(to, &self.bytes, self.segment_bytes, self.in_fragments);
            self.refusals = if taken > 0 { 0 } else { self.refusals.saturating_add(1) };
            let is_dropped = self.refusals >= MOST_REFUSALS && network.is_busy_for_one_place();
            if taken < self.bytes.len() && !is_dropped {
                self.bytes.drain(..taken);
                self.datagrams -= taken / self.segment_bytes;
                return Err(LinkBusy);
            }
        }
        self.bytes.clear();
        (self.to, self.datagrams, self.is_closed, self.refusals) = (None, 0, false, 0);
        Ok(())
    }
}
