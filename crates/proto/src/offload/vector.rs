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

    /// Whether the bits of a result depend on where brackets are set: in sums and products of floats.
    pub fn depends_on_brackets(self) -> bool {
        let rounds = matches!(self.operation, WordOperation::Sum | WordOperation::Product);
        rounds && !self.word_type.is_integer()
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
        // A loop for each operation and type, in which both are constants.
        macro_rules! each {
            ($($operation:ident)*) => {
                match self.operation {
                    $(WordOperation::$operation => match self.word_type {
                        WordType::U32 => elements::<4>(WordOperation::$operation, WordType::U32, into, with),
                        WordType::I32 => elements::<4>(WordOperation::$operation, WordType::I32, into, with),
                        WordType::U64 => elements::<8>(WordOperation::$operation, WordType::U64, into, with),
                        WordType::I64 => elements::<8>(WordOperation::$operation, WordType::I64, into, with),
                        WordType::F32 => elements::<4>(WordOperation::$operation, WordType::F32, into, with),
                        WordType::F64 => elements::<8>(WordOperation::$operation, WordType::F64, into, with),
                    },)*
                    _ => {} // it does not combine
                }
            };
        }
        each!(Sum Min Max And Or Xor Product LogicalAnd LogicalOr LogicalXor);
    }
}

/// A change of the words of a vector in registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorUpdate {
    /// Key of the region.
    pub key: u64,
    /// Offset of the first word in it. Unit: bytes.
    pub offset: u64,
    /// Length of all words, a multiple of that of a word. Unit: bytes.
    pub bytes: u32,
    /// Operation and type. The operation has no compare value.
    pub combination: Combination,
}

impl VectorUpdate {
    /// Changes the words in `region` by those in `operands`, and copies the old ones to `old`: for drivers whose memory is
    /// theirs alone.
    ///
    /// - `region`: the bytes of the vector. `operands`: as long, or empty for a read. `old`: as long, if any.
    pub fn apply(&self, region: &mut [u8], operands: &[u8], mut old: Option<&mut [u8]>) {
        let Combination { operation, word_type } = self.combination;
        let bytes = word_type.bytes() as usize;
        if let Some(old) = &mut old {
            old.copy_from_slice(region);
        }
        for (number, word) in region.chunks_exact_mut(bytes).enumerate() {
            let operand = operands.get(number * bytes..).map_or(0, |rest| rest.get(..bytes).map_or(0, load));
            let update = WordUpdate { operation, word_type, operand, compare: 0 };
            store(word, update.apply(load(word)));
        }
    }
}

/// Combines elements of `BYTES` bytes.
#[inline(always)]
fn elements<const BYTES: usize>(operation: WordOperation, word_type: WordType, into: &mut [u8], with: &[u8]) {
    let (into, with) = (into.as_chunks_mut::<BYTES>().0, with.as_chunks::<BYTES>().0);
    for (into, with) in into.iter_mut().zip(with) {
        let update = WordUpdate { operation, word_type, operand: load(with), compare: 0 };
        let new = update.apply(load(into));
        store(into, new);
    }
}

/// The word in 4 or 8 bytes, as bits.
#[inline(always)]
fn load(bytes: &[u8]) -> u64 {
    match (bytes.first_chunk(), bytes.first_chunk()) {
        (Some(all), _) => u64::from_ne_bytes(*all),
        (None, half) => half.map_or(0, |half| u32::from_ne_bytes(*half).into()),
    }
}

/// Writes the lower bytes of `word` to 4 or 8 bytes.
#[inline(always)]
fn store(into: &mut [u8], word: u64) {
    match into.len() {
        4 => into.copy_from_slice(&(word as u32).to_ne_bytes()),
        _ => into.copy_from_slice(&word.to_ne_bytes()),
    }
}

#[cfg(test)]
mod tests;
