//! Bundles that have arrived ([`Bundle`]), and their memory ([`Arrived`]).
//!
//! A bundle stays where the network has put its datagram, in a batch, until it is read. A batch is used again when all its
//! bundles have been read. Two kinds of bundles are copied to memory of their own, so that nobody keeps a batch for long:
//! those that wait for an earlier one, and all while no batch is free.

use super::buffers::Buffers;
use super::network::{BATCH_BYTES, BATCH_DATAGRAMS, Batch, Received};
use super::seal::LEAST_DATAGRAM_BYTES;
use crate::copy::append;

/// Batches. One is enough for a program that reads all that a look has found before the next look.
const BATCHES: usize = 4;

/// The most memory of a link for datagrams that have arrived and were not read: the batches, and copies of the windows of so
/// many peers. Unit: bytes.
///
/// - `datagram_bytes`: the longest datagram.
/// - `window`: datagrams.
pub fn most_arrived_bytes<P>(datagram_bytes: usize, window: u32, peers: u64) -> u64 {
    let batch_bytes = BATCH_BYTES + BATCH_DATAGRAMS * size_of::<Received<P>>();
    let window_bytes = u64::from(window) * datagram_bytes.saturating_sub(LEAST_DATAGRAM_BYTES) as u64;
    (BATCHES as u64 + 1) * batch_bytes as u64 + peers * window_bytes
}

/// A bundle that has arrived.
#[derive(Debug)]
pub(super) enum Bundle {
    /// In a batch.
    InBatch {
        /// Number of the batch.
        batch: u32,
        /// Where it begins. Unit: bytes.
        begin: u32,
        /// Its length. Unit: bytes.
        bytes: u32,
    },
    /// In memory of its own.
    Own(Vec<u8>),
}

/// Bytes of a batch that is being filled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    batch: u32,
    begin: u32,
}

impl Place {
    /// The place of what begins `bytes` bytes later.
    pub(super) fn plus(self, bytes: usize) -> Place {
        Place { begin: self.begin + bytes as u32, ..self }
    }
}

/// A batch that is being filled.
#[derive(Debug)]
pub(super) struct Filling<P> {
    pub batch: Batch<P>,
    /// `None`: its bundles must be copied.
    number: Option<u32>,
}

impl<P> Filling<P> {
    /// The place of what begins there in the batch. `None`: it must be copied.
    pub(super) fn place(&self, begin: usize) -> Option<Place> {
        self.number.map(|batch| Place { batch, begin: begin as u32 })
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Arrived<P> {
    /// With the number of bundles in it that were not read. `None`: it is being filled.
    batches: Vec<(Option<Batch<P>>, u32)>,
    /// For datagrams that arrive while no other batch is free.
    spare: Option<Batch<P>>,
    copies: Buffers,
}

impl<P> Arrived<P> {
    /// For bundles of at most `bundle_bytes` bytes.
    pub(super) fn new(bundle_bytes: usize) -> Arrived<P> {
        Arrived { batches: Vec::new(), spare: None, copies: Buffers::new(usize::MAX, bundle_bytes) }
    }

    /// A batch, to be filled. [`Arrived::filled`] follows.
    pub(super) fn fill(&mut self) -> Filling<P> {
        let free = self.batches.iter().position(|(_, unread)| *unread == 0);
        let number = free.or_else(|| {
            let is_new = self.batches.len() < BATCHES;
            is_new.then(|| {
                self.batches.push((Some(Batch::new()), 0));
                self.batches.len() - 1
            })
        });
        let batch = match number {
            Some(number) => self.batches[number].0.take(),
            None => self.spare.take(),
        };
        Filling { batch: batch.unwrap_or_else(Batch::new), number: number.map(|number| number as u32) }
    }

    /// The batch is filled, and its bundles are delivered.
    pub(super) fn filled(&mut self, Filling { batch, number }: Filling<P>) {
        match number {
            Some(number) => self.batches[number as usize].0 = Some(batch),
            None => self.spare = Some(batch),
        }
    }

    /// Keeps a bundle of the batch that is being filled: there, or a copy if it has no place.
    pub(super) fn keep(&mut self, bundle: &[u8], place: Option<Place>) -> Bundle {
        match place {
            Some(Place { batch, begin }) => {
                self.batches[batch as usize].1 += 1;
                Bundle::InBatch { batch, begin, bytes: bundle.len() as u32 }
            }
            None => {
                let mut copy =
                    self.copies.take(0).expect("arrivals are bounded by the windows of their senders");
                append(bundle, &mut copy);
                Bundle::Own(copy)
            }
        }
    }

    /// The bytes of a bundle, while no batch is being filled.
    #[inline]
    pub(super) fn bytes<'all>(&'all self, bundle: &'all Bundle) -> &'all [u8] {
        match bundle {
            Bundle::InBatch { batch, begin, bytes } => {
                let (batch, _) = &self.batches[*batch as usize];
                let all = batch.as_ref().map_or(&[][..], |batch| &batch.bytes);
                &all[*begin as usize..(*begin + *bytes) as usize]
            }
            Bundle::Own(bytes) => bytes,
        }
    }

    /// Takes a bundle back.
    pub(super) fn give(&mut self, bundle: Bundle) {
        match bundle {
            Bundle::InBatch { batch, .. } => self.batches[batch as usize].1 -= 1,
            Bundle::Own(copy) => self.copies.give(copy),
        }
    }
}

impl Bundle {
    /// Memory that it keeps. Unit: bytes.
    pub(super) fn kept_bytes(&self) -> usize {
        match self {
            Bundle::InBatch { bytes, .. } => *bytes as usize,
            Bundle::Own(copy) => copy.capacity(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills a batch with one datagram of this byte, and keeps it.
    fn arrive(arrived: &mut Arrived<u16>, byte: u8) -> Bundle {
        let mut filling = arrived.fill();
        filling.batch.bytes[7..10].fill(byte);
        let bundle = arrived.keep(&filling.batch.bytes[8..10], filling.place(7).map(|place| place.plus(1)));
        arrived.filled(filling);
        bundle
    }

    #[test]
    fn unread_windows_of_two_peers_take_the_memory_that_the_bound_names() {
        const DATAGRAM_BYTES: usize = 1472;
        const WINDOW: u32 = 256;
        let mut arrived = Arrived::new(DATAGRAM_BYTES - LEAST_DATAGRAM_BYTES);
        // The batches are full of older bundles that nobody reads.
        let mut kept: Vec<Bundle> = (0..BATCHES as u8).map(|byte| arrive(&mut arrived, byte)).collect();
        kept.extend((0..2 * WINDOW).map(|_| arrive(&mut arrived, 7)));
        let of_batch =
            |batch: &Batch<u16>| batch.bytes.len() + batch.datagrams.capacity() * size_of::<Received<u16>>();
        let batches = arrived.batches.iter().filter_map(|(batch, _)| batch.as_ref()).chain(&arrived.spare);
        let bytes = batches.map(of_batch).sum::<usize>() + arrived.copies.bytes();
        assert_eq!(bytes as u64, most_arrived_bytes::<u16>(DATAGRAM_BYTES, WINDOW, 2));
        kept.into_iter().for_each(|bundle| arrived.give(bundle));
        let unused = arrived.copies.bytes() as u64;
        assert!(
            unused <= most_arrived_bytes::<u16>(DATAGRAM_BYTES, WINDOW, 2),
            "buffers that are kept for later"
        );
    }

    #[test]
    fn bundles_keep_their_bytes_until_they_are_given_back() {
        let mut arrived = Arrived::new(100);
        let mut kept: Vec<Bundle> = (0..7).map(|byte| arrive(&mut arrived, byte)).collect();
        let is_copy = |bundle: &Bundle| matches!(bundle, Bundle::Own(_));
        assert_eq!(kept.iter().filter(|bundle| is_copy(bundle)).count(), 7 - BATCHES);
        for (byte, bundle) in (0..).zip(&kept) {
            assert_eq!(arrived.bytes(bundle), [byte; 2]);
        }
        arrived.give(kept.remove(2));
        kept.push(arrive(&mut arrived, 9));
        assert!(!is_copy(&kept[6]), "in the batch that is free again");
        for (byte, bundle) in [0, 1, 3, 4, 5, 6, 9].into_iter().zip(&kept) {
            assert_eq!(arrived.bytes(bundle), [byte; 2]);
        }
        kept.into_iter().for_each(|bundle| arrived.give(bundle));
        assert!(arrived.batches.iter().all(|(_, unread)| *unread == 0));
        assert_eq!(arrived.batches.len(), BATCHES);
    }
}
