//! The sequence space: [`expand`] makes 64-bit values of the 32 bits on the wire, and a [`PositionSet`] is a set of
//! positions in one window.
//!
//! Numbers and positions count from [`BASE`] plus the configured start, so that values just before the start are no
//! special case.
//! ```text
//! expand(0xffff_fffe, near 0x2_0000_0001)    0x1_ffff_fffe, not 0x2_ffff_fffe
//! ```

use alloc::boxed::Box;
use alloc::vec;

/// The value that stands for 0 on the wire at the start.
pub(super) const BASE: u64 = 1 << 32;

/// The value with these lower 32 bits that is next to `near`.
#[inline]
pub(super) fn expand(low: u32, near: u64) -> u64 {
    near.wrapping_add_signed(i64::from(low.wrapping_sub(near as u32).cast_signed()))
}

/// A set of positions that lie in one window: no two of them are `window` apart or more.
#[derive(Clone, Debug)]
pub(super) struct PositionSet {
    /// Bit `position % window`.
    words: Box<[u64]>,
    count: u32,
}

impl PositionSet {
    /// An empty set. `window`: a power of two, at least 64.
    pub(super) fn new(window: u32) -> PositionSet {
        PositionSet { words: vec![0; window as usize / 64].into(), count: 0 }
    }

    #[inline]
    fn place(&self, position: u64) -> (usize, u64) {
        ((position as usize / 64) & (self.words.len() - 1), 1 << (position % 64))
    }

    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    #[inline]
    pub(super) fn contains(&self, position: u64) -> bool {
        let (word, bit) = self.place(position);
        self.words[word] & bit != 0
    }

    /// Adds a position that is not in the set.
    pub(super) fn insert(&mut self, position: u64) {
        debug_assert!(!self.contains(position), "position {position} is in the set");
        let (word, bit) = self.place(position);
        self.words[word] |= bit;
        self.count += 1;
    }

    /// Removes a position. Returns whether it was in the set.
    #[inline]
    pub(super) fn remove(&mut self, position: u64) -> bool {
        let (word, bit) = self.place(position);
        let was_in = self.words[word] & bit != 0;
        self.words[word] &= !bit;
        self.count -= u32::from(was_in);
        was_in
    }

    /// The first position from `start` on, in a window that begins there. Cost: a look at each word of the window.
    #[inline]
    pub(super) fn first_from(&self, start: u64) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let begin = start & !63;
        for step in 0..=self.words.len() as u64 {
            let base = begin + 64 * step;
            let word = self.words[(base as usize / 64) & (self.words.len() - 1)];
            let from = if step == 0 { !0 << (start % 64) } else { !0 };
            // The last look is at the first word again: at the bits before `start`.
            let until = if step == self.words.len() as u64 { !(!0 << (start % 64)) } else { !0 };
            let bits = word & from & until;
            if bits != 0 {
                return Some(base + u64::from(bits.trailing_zeros()));
            }
        }
        None
    }
}
