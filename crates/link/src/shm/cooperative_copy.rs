//! Cooperative copy: the receiver of a large message and its sender copy it together, if the sender waits in the
//! library. This file has the words of a lane by which both take pieces ([`CooperativeCopy`]). [`super::pending_copy`]
//! copies the pieces, on both sides.
//!
//! Two cores copy a message faster than one. So the receiver offers the copy in its sender's lane, in pieces. Both
//! take pieces until none is left. The receiver reads from the sender's memory, and the sender writes to the
//! receiver's. A sender that computes or sleeps takes no pieces, and the receiver copies everything.
//!
//! ```text
//!                                          progress: copy, pieces, taken    helped
//! R: offer(0x7f00 -> 0x5500, 256 KiB)                     7, 8, 0             0
//! R: takes two pieces, reads them                         7, 8, 2             0
//! S: takes one, writes it                                 7, 8, 3             1
//! ...                                                     7, 8, 8             3
//! R: took five itself, and three are written: complete
//! ```
//! Each side finishes the pieces that it has taken. If the sender is stopped with some, the copy stays pending, and
//! the receiver serves its other peers meanwhile. If the sender dies, its pieces are lost like the message. If the
//! kernel forbids the sender to write, it returns its pieces and the receiver reads them.
//!
//! **A sender never writes too late.** `from`, `to` and `bytes` change only while all pieces of the previous copy are
//! taken. To take pieces is to exchange the value of `progress` that was read before them. So a sender that succeeds
//! has read the addresses of a copy that still waits for these pieces. Its buffers are in use until they are done.

use super::sync::{AtomicU32, AtomicU64, Ordering};

/// Least size of a piece. Very large copies have larger pieces, so that their number stays bounded. Unit: bytes.
const PIECE_BYTES: u64 = 32 << 10;
const MAX_PIECES_PER_COPY: u64 = u16::MAX as u64;
const PAGE_BYTES: u64 = 4096;

/// The words of a lane by which its reader and writer share a copy.
#[repr(C)]
#[derive(Debug, Default)]
pub struct CooperativeCopy {
    progress: AtomicU64,
    /// Pieces that the sender has written.
    helped: AtomicU32,
    /// Pieces that the sender could not write: the first (16 bits), their number (16 bits).
    refused: AtomicU32,
    from: AtomicU64,
    to: AtomicU64,
    bytes: AtomicU64,
}

/// The contents of `progress`: number of the copy, number of its pieces, number of those taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Progress {
    copy: u32,
    pieces: u16,
    taken: u16,
}

impl Progress {
    fn word(self) -> u64 {
        u64::from(self.copy) << 32 | u64::from(self.pieces) << 16 | u64::from(self.taken)
    }

    fn of(word: u64) -> Progress {
        Progress { copy: (word >> 32) as u32, pieces: (word >> 16) as u16, taken: word as u16 }
    }

    /// Number of pieces to take. Fewer towards the end, so that neither side waits long for the other.
    fn share(self) -> u16 {
        ((self.pieces - self.taken) / 4).max(1)
    }
}

/// A part of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Offset in the copy. Unit: bytes.
    pub offset: u64,
    /// Length. Unit: bytes.
    pub bytes: u64,
    pieces: u16,
}

impl Part {
    fn of(first: u16, pieces: u16, bytes: u64) -> Part {
        let piece = bytes.div_ceil(MAX_PIECES_PER_COPY).next_multiple_of(PAGE_BYTES).max(PIECE_BYTES);
        let offset = (u64::from(first) * piece).min(bytes);
        Part { offset, bytes: (u64::from(pieces) * piece).min(bytes - offset), pieces }
    }

    fn count(bytes: u64) -> u16 {
        bytes.div_ceil(Part::of(0, 1, bytes).bytes.max(1)) as u16
    }
}

/// The reader's side of a copy that it offers.
#[derive(Debug)]
pub struct Offer {
    bytes: u64,
    pieces: u16,
    /// Pieces that the reader took, or took over.
    own: u16,
}

/// The state of a copy whose pieces are all taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// The sender still copies its pieces.
    HelperBusy,
    /// The sender could not copy this part. The reader must.
    Refused(Part),
    /// All bytes are copied.
    Complete,
}

impl CooperativeCopy {
    /// Offers a copy of `bytes` bytes from address `from` of the lane's writer to `to` of its reader. The previous
    /// copy must be complete.
    pub fn offer(&self, from: u64, to: u64, bytes: u64) -> Offer {
        let copy = Progress::of(self.progress.load(Ordering::Relaxed)).copy.wrapping_add(1);
        let pieces = Part::count(bytes);
        for (word, value) in [(&self.from, from), (&self.to, to), (&self.bytes, bytes)] {
            word.store(value, Ordering::Relaxed);
        }
        self.helped.store(0, Ordering::Relaxed);
        self.refused.store(0, Ordering::Relaxed);
        self.progress.store(Progress { copy, pieces, taken: 0 }.word(), Ordering::Release);
        Offer { bytes, pieces, own: 0 }
    }

    /// Takes the next pieces for the reader. `None`: all are taken.
    pub fn take(&self, offer: &mut Offer) -> Option<Part> {
        // A peer that resets words cannot keep the reader here for ever.
        if offer.own >= offer.pieces {
            return None;
        }
        let (first, pieces) = self.claim()?;
        offer.own = offer.own.saturating_add(pieces);
        Some(Part::of(first, pieces, offer.bytes))
    }

    fn claim(&self) -> Option<(u16, u16)> {
        let mut word = self.progress.load(Ordering::Acquire);
        loop {
            let progress = Progress::of(word);
            if progress.taken >= progress.pieces {
                return None;
            }
            let share = progress.share();
            let next = Progress { taken: progress.taken + share, ..progress };
            match self.progress.compare_exchange(word, next.word(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some((progress.taken, share)),
                Err(now) => word = now,
            }
        }
    }

    /// The state of a copy whose pieces are all taken.
    pub fn state(&self, offer: &mut Offer) -> CopyState {
        if u32::from(offer.own) + self.helped.load(Ordering::Acquire) >= u32::from(offer.pieces) {
            return CopyState::Complete;
        }
        let refused = self.refused.swap(0, Ordering::AcqRel);
        if refused == 0 {
            return CopyState::HelperBusy;
        }
        let (first, pieces) = ((refused >> 16) as u16, refused as u16);
        offer.own = offer.own.saturating_add(pieces);
        CopyState::Refused(Part::of(first.min(offer.pieces), pieces.min(offer.pieces), offer.bytes))
    }

    /// Whether there are pieces to take. Cheap while the reader writes nothing here.
    #[inline]
    pub fn is_open(&self) -> bool {
        let progress = Progress::of(self.progress.load(Ordering::Relaxed));
        progress.taken < progress.pieces
    }

    /// The sender's side: takes pieces and copies them by `copy(from, to, bytes)`, which returns whether it could.
    /// Returns that result. `None`: there was nothing to take.
    pub fn help(&self, copy: impl FnOnce(u64, u64, u64) -> bool) -> Option<bool> {
        let word = self.progress.load(Ordering::Acquire);
        let progress = Progress::of(word);
        // A sender that could not write before cannot write now. The word that reports it is in use.
        if progress.taken >= progress.pieces || self.refused.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let [from, to, bytes] = [&self.from, &self.to, &self.bytes].map(|word| word.load(Ordering::Relaxed));
        let share = progress.share();
        let next = Progress { taken: progress.taken + share, ..progress };
        // The exchange succeeds only if `progress` still has the value read before the other words. Release: the
        // loads above cannot move behind it.
        self.progress.compare_exchange(word, next.word(), Ordering::AcqRel, Ordering::Relaxed).ok()?;
        let part = Part::of(progress.taken, share, bytes);
        let copied = copy(from.wrapping_add(part.offset), to.wrapping_add(part.offset), part.bytes);
        if copied {
            self.helped.fetch_add(share.into(), Ordering::Release);
        } else {
            self.refused.store(u32::from(progress.taken) << 16 | u32::from(share), Ordering::Release);
        }
        Some(copied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_copy_exactly_once() {
        for bytes in [1, PIECE_BYTES, PIECE_BYTES + 1, 1 << 20, (1 << 20) + 5, 5 << 30, (1 << 40) + 3] {
            let cooperative_copy = CooperativeCopy::default();
            let mut offer = cooperative_copy.offer(0, 0, bytes);
            let mut end = 0;
            while let Some(part) = cooperative_copy.take(&mut offer) {
                assert!(part.offset == end && part.bytes > 0, "{part:?} after {end} of {bytes}");
                end += part.bytes;
            }
            assert_eq!(end, bytes);
            assert_eq!(cooperative_copy.state(&mut offer), CopyState::Complete);
            assert!(!cooperative_copy.is_open());
        }
    }

    #[test]
    fn a_side_takes_a_quarter_of_the_remaining_pieces() {
        let cooperative_copy = CooperativeCopy::default();
        let mut offer = cooperative_copy.offer(0, 0, 1 << 20);
        let parts =
            std::iter::from_fn(|| cooperative_copy.take(&mut offer)).map(|part| part.bytes / PIECE_BYTES);
        assert_eq!(parts.collect::<Vec<_>>(), [8, 6, 4, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn pieces_that_the_helper_cannot_write_return_to_the_reader() {
        let cooperative_copy = CooperativeCopy::default();
        let mut offer = cooperative_copy.offer(0x1000, 0x9000, 8 * PIECE_BYTES);
        let first = cooperative_copy.take(&mut offer).unwrap();
        assert_eq!((first.offset, first.bytes), (0, 2 * PIECE_BYTES));
        let seen = |from, to, bytes| {
            assert_eq!((from, to, bytes), (0x1000 + 2 * PIECE_BYTES, 0x9000 + 2 * PIECE_BYTES, PIECE_BYTES));
            false
        };
        assert_eq!(cooperative_copy.help(seen), Some(false));
        assert_eq!(cooperative_copy.help(|_, _, _| panic!("the helper tried again after a refusal")), None);
        while cooperative_copy.take(&mut offer).is_some() {}
        let CopyState::Refused(part) = cooperative_copy.state(&mut offer) else {
            panic!("the refused pieces are not reported")
        };
        assert_eq!((part.offset, part.bytes), (2 * PIECE_BYTES, PIECE_BYTES));
        assert_eq!(cooperative_copy.state(&mut offer), CopyState::Complete);
        assert_eq!(cooperative_copy.help(|_, _, _| panic!("the helper copied after the end")), None);
    }

    #[test]
    fn forged_progress_words_do_not_loop() {
        let cooperative_copy = CooperativeCopy::default();
        let mut offer = cooperative_copy.offer(0, 0, 1 << 20);
        let mut taken = 0;
        while cooperative_copy.take(&mut offer).is_some() {
            taken += 1;
            cooperative_copy
                .progress
                .store(Progress { copy: 9, pieces: 32, taken: 0 }.word(), Ordering::Relaxed);
        }
        assert!(taken <= 32, "{taken}");
        cooperative_copy.refused.store(u32::MAX, Ordering::Relaxed);
        offer.own = 0;
        let CopyState::Refused(part) = cooperative_copy.state(&mut offer) else {
            panic!("the refused pieces are not reported")
        };
        assert!(part.offset + part.bytes <= 1 << 20, "{part:?}");
    }
}
