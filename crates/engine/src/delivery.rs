//! What a buffer gets of the result of an operation, if that is not the result itself: a reduction combines words, of which the
//! buffer gets short integers; a reduce-scatter is another operation, of which the buffer gets the own block.
//! ```text
//! rank 1 of 2, blocks of 8 B    all-to-all:  result = block of rank 0, block of rank 1   combines them in this order
//!                               all-reduce:  result = whole vector                       takes its part
//! ```
//! This file does not know where result and buffer lie.

use weir_proto::offload::Combination;

use crate::short_integers::{ShortInteger, WORD_BYTES};

/// What a buffer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The result.
    Whole,
    /// Integers, of whose words the result consists.
    Integers(ShortInteger),
    /// The own block of a reduce-scatter.
    Block(OwnBlock),
}

/// The block of a reduce-scatter that a member gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnBlock {
    /// How words are combined.
    pub combination: Combination,
    /// The elements, if they are shorter than a word.
    pub short: Option<ShortInteger>,
    /// The operation is an all-to-all with blocks of this length, of which the own one may be a part. 0: an all-reduce of the
    /// whole vector, in words. Unit: bytes.
    pub exchanged_bytes: u32,
    /// Where it begins in the vector. Unit: bytes, of elements.
    pub begin: u32,
    /// Its length. Unit: bytes.
    pub bytes: u32,
}

impl Delivery {
    /// Length of what the buffer gets. Unit: bytes.
    ///
    /// - `result_bytes`: length of the result.
    pub fn bytes(self, result_bytes: usize) -> usize {
        match self {
            Delivery::Whole => result_bytes,
            Delivery::Integers(short) => short.narrow_bytes(result_bytes),
            Delivery::Block(block) => block.bytes as usize,
        }
    }

    /// Writes to the buffer what it gets of the result.
    pub fn write(self, result: &[u8], buffer: &mut [u8]) {
        match self {
            Delivery::Whole => buffer.copy_from_slice(result),
            Delivery::Integers(short) => short.narrow(result, buffer),
            Delivery::Block(block) => block.write(result, buffer),
        }
    }
}

impl OwnBlock {
    /// Length of so many bytes of elements as words. Unit: bytes.
    fn word_bytes(&self, bytes: u32) -> usize {
        let bytes = bytes as usize;
        self.short.map_or(bytes, |short| bytes / short.bytes() * WORD_BYTES)
    }

    /// Writes the block.
    ///
    /// - `result`: of the operation.
    /// - `block`: as long as [`OwnBlock::bytes`] says.
    pub fn write(&self, result: &[u8], block: &mut [u8]) {
        if self.exchanged_bytes == 0 {
            let words = &result[self.word_bytes(self.begin)..][..self.word_bytes(self.bytes)];
            return match self.short {
                None => block.copy_from_slice(words),
                Some(short) => short.narrow(words, block),
            };
        }
        let blocks = result.chunks_exact(self.exchanged_bytes as usize);
        let mut given = blocks.map(|given| &given[..self.bytes as usize]);
        let Some(short) = self.short else {
            block.copy_from_slice(given.next().unwrap_or_default());
            return given.for_each(|given| self.combination.combine(block, given));
        };
        let [mut combined, mut words] = [0, 1].map(|_| vec![0; self.word_bytes(self.bytes)]);
        short.widen(given.next().unwrap_or_default(), &mut combined);
        for given in given {
            short.widen(given, &mut words);
            self.combination.combine(&mut combined, &words);
        }
        short.narrow(&combined, block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::offload::{WordOperation, WordType};

    fn bytes(words: &[f64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn block(operation: WordOperation, word_type: WordType, exchanged_bytes: u32) -> OwnBlock {
        let combination = Combination { operation, word_type };
        OwnBlock { combination, short: None, exchanged_bytes, begin: 8, bytes: 8 }
    }

    #[test]
    fn of_short_integers_each_member_gets_its_block_too() {
        let mut own = block(WordOperation::Sum, WordType::I32, 3);
        (own.short, own.begin, own.bytes) = (Some(ShortInteger::I8), 3, 2);
        let mut got = [0; 2];
        own.write(&[100, 1, 9, 100, 255, 9], &mut got);
        assert_eq!(got, [200, 0], "sums wrap, and the padding is left out");
        (own.exchanged_bytes, own.begin) = (0, 1);
        let words: Vec<u8> = [1_i32, 200, -1].iter().flat_map(|word| word.to_ne_bytes()).collect();
        own.write(&words, &mut got);
        assert_eq!(got, [200, 255]);
    }

    #[test]
    fn blocks_are_combined_in_the_order_of_ranks_without_their_padding() {
        let own = block(WordOperation::Sum, WordType::F64, 16);
        let mut got = [0; 8];
        Delivery::Block(own).write(&bytes(&[1e16, 7.0, 1.0, 7.0, -1e16, 7.0, 1.0, 7.0]), &mut got);
        assert_eq!(f64::from_ne_bytes(got), ((1e16 + 1.0) - 1e16) + 1.0);
        let nothing = OwnBlock { bytes: 0, ..own };
        nothing.write(&bytes(&[1.0; 4]), &mut []);
    }

    #[test]
    fn of_a_combined_vector_each_member_gets_its_block() {
        let own = block(WordOperation::Max, WordType::F64, 0);
        let mut got = [0; 8];
        own.write(&bytes(&[1.0, 2.0, 3.0]), &mut got);
        assert_eq!(f64::from_ne_bytes(got), 2.0);
        let lengths = [Delivery::Whole, Delivery::Integers(ShortInteger::U16), Delivery::Block(own)];
        assert_eq!(lengths.map(|delivery| delivery.bytes(24)), [24, 12, 8]);
    }
}
