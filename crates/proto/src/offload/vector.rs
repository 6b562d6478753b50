//! Vectors of words: what a combination makes of two vectors of the same length.
//!
//! The arithmetic of an element is that of a word ([`WordUpdate`]). Elements have the byte order of the host, and no
//! alignment. This file does not know where a vector lies.

use super::{WordOperation, WordType, WordUpdate};

/// Length of the longest element. Payload is cut on multiples of it. Unit: bytes.
pub const WORD_BYTES: u32 = 8;

/// How vectors are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combination {
    /// What to do with two elements.
    pub operation: WordOperation,
    /// The type of an element.
    pub word_type: WordType,
}

impl Combination {
    /// Whether the operation combines, and works on the type.
    pub fn is_valid(self) -> bool {
        self.operation.combines() && self.operation.has_type(self.word_type)
    }

    /// Whether a vector of `bytes` bytes has whole elements.
    pub fn divides(self, bytes: u32) -> bool {
        bytes.is_multiple_of(self.word_type.bytes())
    }

    /// Replaces each element of `into` by `into` combined with `with`.
    ///
    /// - `into`, `with`: the same length, a multiple of that of an element.
    ///
    /// # Panics
    /// If the lengths differ or have no whole elements.
    pub fn combine(self, into: &mut [u8], with: &[u8]) {
        assert_eq!(into.len(), with.len(), "two vectors of one length");
        assert!(self.divides(into.len() as u32), "{} bytes of {:?}", into.len(), self.word_type);
        let bytes = self.word_type.bytes() as usize;
        let Combination { operation, word_type } = self;
        for (into, with) in into.chunks_exact_mut(bytes).zip(with.chunks_exact(bytes)) {
            let update = WordUpdate { operation, word_type, operand: load(with), compare: 0 };
            store(into, update.apply(load(into)));
        }
    }
}

/// The word in 4 or 8 bytes, as bits.
fn load(bytes: &[u8]) -> u64 {
    match (bytes.first_chunk(), bytes.first_chunk()) {
        (Some(all), _) => u64::from_ne_bytes(*all),
        (None, half) => half.map_or(0, |half| u32::from_ne_bytes(*half).into()),
    }
}

/// Writes the lower bytes of `word` to 4 or 8 bytes.
fn store(into: &mut [u8], word: u64) {
    match into.len() {
        4 => into.copy_from_slice(&(word as u32).to_ne_bytes()),
        _ => into.copy_from_slice(&word.to_ne_bytes()),
    }
}

#[cfg(test)]
mod tests;
