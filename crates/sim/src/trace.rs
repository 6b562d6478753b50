//! The trace hash. Two runs have the same hash if the same happened; a collision is practically impossible. Draws from
//! a seed and digests of packets use the same hash.

/// A running hash of what happened, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace(u64);

impl Default for Trace {
    fn default() -> Trace {
        Trace(0x9e37_79b9_7f4a_7c15)
    }
}

impl Trace {
    /// Adds one word.
    #[inline]
    pub fn note(&mut self, word: u64) {
        // The finaliser of SplitMix64 (Steele, Lea, Flood 2014), chained.
        let mut mixed = self.0.rotate_left(5) ^ word;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = mixed ^ (mixed >> 31);
    }

    /// The hash so far.
    pub fn hash(&self) -> u64 {
        self.0
    }
}
