//! Integers of 8 and 16 bits in reductions. Groups combine words of 32 and 64 bits. So a member widens the integers that it
//! gives to words of 32 bits, and narrows the words of the result.
//!
//! A word has the value of its integer, so minimum, maximum and logical operations see what they would see of the integer. Of
//! sums, products and bitwise operations the lower bits are those of the integers, which wrap. This file does not know which
//! operation it is for.

use weir_proto::offload::WordType;

/// Length of a word. Unit: bytes.
pub const WORD_BYTES: usize = 4;

/// The type of an integer that is shorter than a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortInteger {
    /// 8 bits without sign.
    U8,
    /// 8 bits.
    I8,
    /// 16 bits without sign.
    U16,
    /// 16 bits.
    I16,
}

impl ShortInteger {
    /// All types.
    pub const ALL: [ShortInteger; 4] =
        [ShortInteger::U8, ShortInteger::I8, ShortInteger::U16, ShortInteger::I16];

    /// Length of the integer. Unit: bytes.
    pub const fn bytes(self) -> usize {
        match self {
            ShortInteger::U8 | ShortInteger::I8 => 1,
            ShortInteger::U16 | ShortInteger::I16 => 2,
        }
    }

    /// The type of the words.
    pub const fn word_type(self) -> WordType {
        match self {
            ShortInteger::U8 | ShortInteger::U16 => WordType::U32,
            ShortInteger::I8 | ShortInteger::I16 => WordType::I32,
        }
    }

    /// Length of as many integers as there are words in `word_bytes`. Unit: bytes.
    pub fn narrow_bytes(self, word_bytes: usize) -> usize {
        word_bytes / WORD_BYTES * self.bytes()
    }

    /// Writes the words of integers. Neither has an alignment.
    ///
    /// - `words`: as many as there are integers.
    pub fn widen(self, integers: &[u8], words: &mut [u8]) {
        match self {
            ShortInteger::U8 => widen(integers, words, |[byte]| byte.into()),
            ShortInteger::I8 => widen(integers, words, |byte| i32::from(i8::from_ne_bytes(byte)) as u32),
            ShortInteger::U16 => widen(integers, words, |bytes| u16::from_ne_bytes(bytes).into()),
            ShortInteger::I16 => widen(integers, words, |bytes| i32::from(i16::from_ne_bytes(bytes)) as u32),
        }
    }

    /// Writes the integers of words: their lower bits. Neither has an alignment.
    ///
    /// - `integers`: as many as there are words.
    pub fn narrow(self, words: &[u8], integers: &mut [u8]) {
        match self.bytes() {
            1 => narrow(words, integers, |word| [word as u8]),
            _ => narrow(words, integers, |word| (word as u16).to_ne_bytes()),
        }
    }
}

fn widen<const BYTES: usize>(integers: &[u8], words: &mut [u8], value: impl Fn([u8; BYTES]) -> u32) {
    let (integers, words) = (integers.as_chunks().0, words.as_chunks_mut::<WORD_BYTES>().0);
    assert_eq!(integers.len(), words.len(), "a word for each integer");
    for (word, integer) in words.iter_mut().zip(integers) {
        *word = value(*integer).to_ne_bytes();
    }
}

fn narrow<const BYTES: usize>(words: &[u8], integers: &mut [u8], lower_bits: impl Fn(u32) -> [u8; BYTES]) {
    let (words, integers) = (words.as_chunks().0, integers.as_chunks_mut().0);
    assert_eq!(integers.len(), words.len(), "a word for each integer");
    for (integer, word) in integers.iter_mut().zip(words) {
        *integer = lower_bits(u32::from_ne_bytes(*word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::offload::{Combination, WordOperation};

    /// `one` combined with `other`, by words.
    fn combined(short: ShortInteger, operation: WordOperation, one: &[u8], other: &[u8]) -> Vec<u8> {
        let words = |integers: &[u8]| {
            let mut words = vec![0; integers.len() / short.bytes() * WORD_BYTES];
            short.widen(integers, &mut words);
            words
        };
        let mut into = words(one);
        Combination { operation, word_type: short.word_type() }.combine(&mut into, &words(other));
        let mut result = vec![0x5a; short.narrow_bytes(into.len())];
        short.narrow(&into, &mut result);
        result
    }

    macro_rules! results_are_those_of {
        ($type:ty, $short:ident, $values:expr) => {
            for one in $values {
                for other in $values {
                    let (one, other): ($type, $type) = (one, other);
                    let truth = |value: bool| <$type>::from(value);
                    for (operation, expected) in [
                        (WordOperation::Sum, one.wrapping_add(other)),
                        (WordOperation::Product, one.wrapping_mul(other)),
                        (WordOperation::Min, one.min(other)),
                        (WordOperation::Max, one.max(other)),
                        (WordOperation::And, one & other),
                        (WordOperation::Or, one | other),
                        (WordOperation::Xor, one ^ other),
                        (WordOperation::LogicalAnd, truth(one != 0 && other != 0)),
                        (WordOperation::LogicalOr, truth(one != 0 || other != 0)),
                        (WordOperation::LogicalXor, truth((one != 0) != (other != 0))),
                    ] {
                        let (left, right) = (one.to_ne_bytes(), other.to_ne_bytes());
                        let found = combined(ShortInteger::$short, operation, &left, &right);
                        assert_eq!(found, expected.to_ne_bytes(), "{operation:?} of {one} and {other}");
                    }
                }
            }
        };
    }

    #[test]
    fn results_of_words_are_those_of_the_integers() {
        results_are_those_of!(u8, U8, [0, 1, 2, 15, 127, 128, 200, 255]);
        results_are_those_of!(i8, I8, [0, 1, -1, 2, 15, 100, 127, -128]);
        results_are_those_of!(u16, U16, [0, 1, 255, 256, 0x7fff, 0x8000, 0xfffe, 0xffff]);
        results_are_those_of!(i16, I16, [0, 1, -1, 255, -256, 0x7fff, -0x8000, 1234]);
    }

    #[test]
    fn integers_of_any_alignment_keep_their_places() {
        for short in ShortInteger::ALL {
            let memory: Vec<u8> =
                (0..1 + 7 * short.bytes() as u8).map(|byte| byte.wrapping_mul(73)).collect();
            let (mut words, mut back) = (vec![0; 1 + 7 * WORD_BYTES], vec![0; memory.len()]);
            short.widen(&memory[1..], &mut words[1..]);
            short.narrow(&words[1..], &mut back[1..]);
            assert_eq!(back[1..], memory[1..], "{short:?}");
        }
    }

    #[test]
    #[should_panic(expected = "a word for each integer")]
    fn too_few_words_are_a_bug() {
        ShortInteger::I16.widen(&[0; 4], &mut [0; 4]);
    }
}
