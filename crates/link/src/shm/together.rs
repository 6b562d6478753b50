//! Two that copy one message together: the receiver of a large message, and its sender, if that waits in the library.
//!
//! One core copies a megabyte from a buffer in another core's cache in some 90 us; two that begin at either's convenience
//! take half as long. So the receiver lays the copy open in its sender's lane, in pieces, and both take pieces until there
//! are none: the receiver reads from the sender's memory, the sender writes to the receiver's. It is an offer: a sender that
//! computes or sleeps takes none, and the receiver copies everything, as it would without.
//!
//! ```text
//!                                          turn: copy, pieces, taken    helped
//! R: offer(0x7f00 -> 0x5500, 256 KiB)                 7, 8, 0             0
//! R: takes two pieces, reads them                     7, 8, 2             0
//! S: takes one, writes it                             7, 8, 3             1
//! ...                                                 7, 8, 8             3
//! R: took five itself, and three are written: everything is there
//! ```
//! Whoever has taken pieces finishes them, so the receiver waits for a sender that is stopped with some: its other peers
//! do not (the copy is left pending). If the sender is dead, its pieces are lost like the message. What cannot be written (the
//! kernel forbids that direction) is named, and read by the receiver.
//!
//! **Why a sender never writes too late.** `from`, `to` and `bytes` change only while all pieces of the last copy are taken.
//! To take pieces is to change `turn` from what it was before they were read; so who succeeds has read those of a copy that
//! still waits for the pieces just taken, and whose buffers are in use until these are done.

use super::sync::{AtomicU32, AtomicU64, Ordering};

/// A piece, unless there would be too many. Unit: bytes.
const PIECE_BYTES: u64 = 32 << 10;
const MOST_PIECES: u64 = u16::MAX as u64;
const PAGE_BYTES: u64 = 4096;

/// The words of a lane by which its reader and its writer share a copy.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Together {
    turn: AtomicU64,
    /// Pieces that the sender has written.
    helped: AtomicU32,
    /// Pieces that it could not write: the first (16 bits), how many (16 bits).
    refused: AtomicU32,
    from: AtomicU64,
    to: AtomicU64,
    bytes: AtomicU64,
}

/// `turn`: which copy, in how many pieces, of which so many are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    copy: u32,
    pieces: u16,
    taken: u16,
}

impl Turn {
    fn word(self) -> u64 {
        u64::from(self.copy) << 32 | u64::from(self.pieces) << 16 | u64::from(self.taken)
    }

    fn of(word: u64) -> Turn {
        Turn { copy: (word >> 32) as u32, pieces: (word >> 16) as u16, taken: word as u16 }
    }

    /// How many pieces to take: fewer towards the end, so that nobody waits long for the other.
    fn share(self) -> u16 {
        ((self.pieces - self.taken) / 4).max(1)
    }
}

/// A part of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it begins. Unit: bytes.
    pub offset: u64,
    /// Its length. Unit: bytes.
    pub bytes: u64,
    pieces: u16,
}

impl Part {
    fn of(first: u16, pieces: u16, bytes: u64) -> Part {
        let piece = bytes.div_ceil(MOST_PIECES).next_multiple_of(PAGE_BYTES).max(PIECE_BYTES);
        let offset = (u64::from(first) * piece).min(bytes);
        Part { offset, bytes: (u64::from(pieces) * piece).min(bytes - offset), pieces }
    }

    fn count(bytes: u64) -> u16 {
        bytes.div_ceil(Part::of(0, 1, bytes).bytes.max(1)) as u16
    }
}

/// The reader's side of a copy that it has laid open.
#[derive(Debug)]
pub struct Offer {
    bytes: u64,
    pieces: u16,
    /// Pieces that we took, or took over.
    own: u16,
}

/// How a copy stands of which all pieces are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The other side is at its pieces.
    Awaited,
    /// The other side could not copy this: it is ours now.
    Refused(Part),
    /// Everything is there.
    Nothing,
}

impl Together {
    /// Lays open a copy of `bytes` bytes from address `from` of the lane's writer to `to` of its reader. The last one is done.
    pub fn offer(&self, from: u64, to: u64, bytes: u64) -> Offer {
        let copy = Turn::of(self.turn.load(Ordering::Relaxed)).copy.wrapping_add(1);
        let pieces = Part::count(bytes);
        for (word, value) in [(&self.from, from), (&self.to, to), (&self.bytes, bytes)] {
            word.store(value, Ordering::Relaxed);
        }
        self.helped.store(0, Ordering::Relaxed);
        self.refused.store(0, Ordering::Relaxed);
        self.turn.store(Turn { copy, pieces, taken: 0 }.word(), Ordering::Release);
        Offer { bytes, pieces, own: 0 }
    }

    /// Takes the next pieces for us; `None`: all are taken.
    pub fn take(&self, offer: &mut Offer) -> Option<Part> {
        // A peer that sets words back does not keep us here for ever.
        if offer.own >= offer.pieces {
            return None;
        }
        let (first, pieces) = self.claim()?;
        offer.own = offer.own.saturating_add(pieces);
        Some(Part::of(first, pieces, offer.bytes))
    }

    fn claim(&self) -> Option<(u16, u16)> {
        let mut word = self.turn.load(Ordering::Acquire);
        loop {
            let turn = Turn::of(word);
            if turn.taken >= turn.pieces {
                return None;
            }
            let share = turn.share();
            let next = Turn { taken: turn.taken + share, ..turn };
            match self.turn.compare_exchange(word, next.word(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some((turn.taken, share)),
                Err(now) => word = now,
            }
        }
    }

    /// How it stands, all pieces being taken.
    pub fn rest(&self, offer: &mut Offer) -> Rest {
        if u32::from(offer.own) + self.helped.load(Ordering::Acquire) >= u32::from(offer.pieces) {
            return Rest::Nothing;
        }
        let refused = self.refused.swap(0, Ordering::AcqRel);
        if refused == 0 {
            return Rest::Awaited;
        }
        let (first, pieces) = ((refused >> 16) as u16, refused as u16);
        offer.own = offer.own.saturating_add(pieces);
        Rest::Refused(Part::of(first.min(offer.pieces), pieces.min(offer.pieces), offer.bytes))
    }

    /// Whether there are pieces to take. Cheap while the reader writes nothing here.
    #[inline]
    pub fn is_open(&self) -> bool {
        let turn = Turn::of(self.turn.load(Ordering::Relaxed));
        turn.taken < turn.pieces
    }

    /// The writer's side: takes pieces and copies them by `copy(from, to, bytes)`, which says whether it could. Returns that;
    /// `None`: there was nothing to take.
    pub fn help(&self, copy: impl FnOnce(u64, u64, u64) -> bool) -> Option<bool> {
        let word = self.turn.load(Ordering::Acquire);
        let turn = Turn::of(word);
        // Who could not write before cannot now; the place to say so is taken.
        if turn.taken >= turn.pieces || self.refused.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let [from, to, bytes] = [&self.from, &self.to, &self.bytes].map(|word| word.load(Ordering::Relaxed));
        let share = turn.share();
        let next = Turn { taken: turn.taken + share, ..turn };
        // Only from the word that we saw before we read the rest. Release: the loads above are not later than this.
        self.turn.compare_exchange(word, next.word(), Ordering::AcqRel, Ordering::Relaxed).ok()?;
        let part = Part::of(turn.taken, share, bytes);
        let copied = copy(from.wrapping_add(part.offset), to.wrapping_add(part.offset), part.bytes);
        if copied {
            self.helped.fetch_add(share.into(), Ordering::Release);
        } else {
            self.refused.store(u32::from(turn.taken) << 16 | u32::from(share), Ordering::Release);
        }
        Some(copied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_copy_once() {
        for bytes in [1, PIECE_BYTES, PIECE_BYTES + 1, 1 << 20, (1 << 20) + 5, 5 << 30, (1 << 40) + 3] {
            let together = Together::default();
            let mut offer = together.offer(0, 0, bytes);
            let mut end = 0;
            while let Some(part) = together.take(&mut offer) {
                assert!(part.offset == end && part.bytes > 0, "{part:?} after {end} of {bytes}");
                end += part.bytes;
            }
            assert_eq!(end, bytes);
            assert_eq!(together.rest(&mut offer), Rest::Nothing);
            assert!(!together.is_open());
        }
    }

    #[test]
    fn who_comes_alone_takes_a_quarter_at_a_time() {
        let together = Together::default();
        let mut offer = together.offer(0, 0, 1 << 20);
        let parts = std::iter::from_fn(|| together.take(&mut offer)).map(|part| part.bytes / PIECE_BYTES);
        assert_eq!(parts.collect::<Vec<_>>(), [8, 6, 4, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn what_the_helper_cannot_copy_is_the_readers() {
        let together = Together::default();
        let mut offer = together.offer(0x1000, 0x9000, 8 * PIECE_BYTES);
        let first = together.take(&mut offer).unwrap();
        assert_eq!((first.offset, first.bytes), (0, 2 * PIECE_BYTES));
        let seen = |from, to, bytes| {
            assert_eq!((from, to, bytes), (0x1000 + 2 * PIECE_BYTES, 0x9000 + 2 * PIECE_BYTES, PIECE_BYTES));
            false
        };
        assert_eq!(together.help(seen), Some(false));
        assert_eq!(together.help(|_, _, _| panic!("once is enough")), None);
        while together.take(&mut offer).is_some() {}
        let Rest::Refused(part) = together.rest(&mut offer) else { panic!("the refused pieces are told") };
        assert_eq!((part.offset, part.bytes), (2 * PIECE_BYTES, PIECE_BYTES));
        assert_eq!(together.rest(&mut offer), Rest::Nothing);
        assert_eq!(together.help(|_, _, _| panic!("nothing is left")), None);
    }

    #[test]
    fn lies_end() {
        let together = Together::default();
        let mut offer = together.offer(0, 0, 1 << 20);
        let mut taken = 0;
        while together.take(&mut offer).is_some() {
            taken += 1;
            together.turn.store(Turn { copy: 9, pieces: 32, taken: 0 }.word(), Ordering::Relaxed);
        }
        assert!(taken <= 32, "{taken}");
        together.refused.store(u32::MAX, Ordering::Relaxed);
        offer.own = 0;
        let Rest::Refused(part) = together.rest(&mut offer) else { panic!("told") };
        assert!(part.offset + part.bytes <= 1 << 20, "{part:?}");
    }
}
