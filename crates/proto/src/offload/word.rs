//! Atomic operations on one word of 4 or 8 bytes: computes the new word from the old one and the operands. It also says
//! which operations a type has, and which of them reductions can use.
//!
//! A word is given by its bits, in the lower bytes of a `u64`. This file does not know where a word lies, or how it is
//! changed while others use it.

use zerocopy::{Immutable, KnownLayout, TryFromBytes};

/// The type of a word. The numbers are those of the packet.
#[derive(TryFromBytes, Immutable, KnownLayout, Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WordType {
    /// 32-bit integer without sign.
    U32 = 0,
    /// 32-bit integer.
    I32 = 1,
    /// 64-bit integer without sign.
    U64 = 2,
    /// 64-bit integer.
    I64 = 3,
    /// IEEE 754 binary32.
    F32 = 4,
    /// IEEE 754 binary64.
    F64 = 5,
}

impl WordType {
    /// All types, by number.
    pub const ALL: [WordType; 6] =
        [WordType::U32, WordType::I32, WordType::U64, WordType::I64, WordType::F32, WordType::F64];

    /// Length of the word. Unit: bytes.
    pub fn bytes(self) -> u32 {
        match self {
            WordType::U32 | WordType::I32 | WordType::F32 => 4,
            WordType::U64 | WordType::I64 | WordType::F64 => 8,
        }
    }

    fn is_integer(self) -> bool {
        !matches!(self, WordType::F32 | WordType::F64)
    }
}

/// An operation on a word. The numbers are those of the packet.
#[derive(TryFromBytes, Immutable, KnownLayout, Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WordOperation {
    /// Leaves it.
    Read = 0,
    /// Replaces it by the operand (fetch and write).
    Write = 1,
    /// Replaces it by the operand if it equals the compare value.
    CompareSwap = 2,
    /// Adds the operand. Integers wrap.
    Sum = 3,
    /// Takes the smaller one. Of a float that is not a number (NaN) and a number, the number.
    Min = 4,
    /// Takes the larger one, as `Min`.
    Max = 5,
    /// Bitwise and; integers only.
    And = 6,
    /// Bitwise or; integers only.
    Or = 7,
    /// Bitwise exclusive or; integers only.
    Xor = 8,
    /// Multiplies by the operand. Integers wrap.
    Product = 9,
}

impl WordOperation {
    /// All operations, by number.
    pub const ALL: [WordOperation; 10] = [
        WordOperation::Read,
        WordOperation::Write,
        WordOperation::CompareSwap,
        WordOperation::Sum,
        WordOperation::Min,
        WordOperation::Max,
        WordOperation::And,
        WordOperation::Or,
        WordOperation::Xor,
        WordOperation::Product,
    ];

    /// Whether it works on words of `word_type`: bitwise operations are for integers.
    pub fn has_type(self, word_type: WordType) -> bool {
        let bitwise = matches!(self, WordOperation::And | WordOperation::Or | WordOperation::Xor);
        !bitwise || word_type.is_integer()
    }

    /// Whether it makes one value of two of the same kind, so that it can combine vectors.
    pub fn combines(self) -> bool {
        !matches!(self, WordOperation::Read | WordOperation::Write | WordOperation::CompareSwap)
    }
}

/// A change of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordUpdate {
    /// The operation.
    pub operation: WordOperation,
    /// The type of the word.
    pub word_type: WordType,
    /// The operand, as bits.
    pub operand: u64,
    /// The compare value of [`WordOperation::CompareSwap`], as bits; otherwise 0.
    pub compare: u64,
}

/// The result of an operation without arithmetic. The others are `$rest`.
macro_rules! result {
    ($update:ident, $old:ident, $operand:ident, $compare:ident, { $($rest:tt)* }) => {
        match $update.operation {
            WordOperation::Read => $old,
            WordOperation::Write => $operand,
            WordOperation::CompareSwap if $old == $compare => $operand,
            WordOperation::CompareSwap => $old,
            $($rest)*
        }
    };
}

macro_rules! integer {
    ($update:ident, $old:ident, $type:ty, $bits:ty) => {{
        let [old, operand, compare] = [$old, $update.operand, $update.compare].map(|bits| bits as $type);
        let new = result!($update, old, operand, compare, {
            WordOperation::Sum => old.wrapping_add(operand),
            WordOperation::Product => old.wrapping_mul(operand),
            WordOperation::Min => old.min(operand),
            WordOperation::Max => old.max(operand),
            WordOperation::And => old & operand,
            WordOperation::Or => old | operand,
            WordOperation::Xor => old ^ operand,
        });
        u64::from(new as $bits)
    }};
}

macro_rules! float {
    ($update:ident, $old:ident, $type:ty, $bits:ty) => {{
        let [old, operand, compare] =
            [$old, $update.operand, $update.compare].map(|bits| <$type>::from_bits(bits as $bits));
        let new = result!($update, old, operand, compare, {
            WordOperation::Sum => old + operand,
            WordOperation::Product => old * operand,
            // Not `min` and `max`: of two zeros these may return either.
            WordOperation::Min if operand < old || old.is_nan() => operand,
            WordOperation::Max if operand > old || old.is_nan() => operand,
            WordOperation::Min | WordOperation::Max => old,
            WordOperation::And | WordOperation::Or | WordOperation::Xor => old,
        });
        u64::from(new.to_bits())
    }};
}

impl WordUpdate {
    /// Whether the type has the operation.
    pub fn is_valid(&self) -> bool {
        self.operation.has_type(self.word_type)
    }

    /// The new word of the `old` one. An invalid update changes nothing.
    // Inline, so that a loop over a vector has one operation and type in it.
    #[inline(always)]
    pub fn apply(&self, old: u64) -> u64 {
        match self.word_type {
            WordType::U32 => integer!(self, old, u32, u32),
            WordType::I32 => integer!(self, old, i32, u32),
            WordType::U64 => integer!(self, old, u64, u64),
            WordType::I64 => integer!(self, old, i64, u64),
            WordType::F32 => float!(self, old, f32, u32),
            WordType::F64 => float!(self, old, f64, u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(operation: WordOperation, word_type: WordType, [old, operand, compare]: [u64; 3]) -> u64 {
        WordUpdate { operation, word_type, operand, compare }.apply(old)
    }

    #[test]
    fn integers_wrap_and_compare_by_their_sign() {
        use WordOperation::*;
        let minus_one = u64::from(u32::MAX);
        assert_eq!(apply(Sum, WordType::U32, [minus_one, 3, 0]), 2);
        assert_eq!(apply(Sum, WordType::U64, [minus_one, 3, 0]), minus_one + 3);
        assert_eq!(apply(Sum, WordType::I64, [u64::MAX, 3, 0]), 2);
        assert_eq!(apply(Min, WordType::U32, [minus_one, 3, 0]), 3);
        assert_eq!(apply(Min, WordType::I32, [minus_one, 3, 0]), minus_one);
        assert_eq!(apply(Max, WordType::I64, [u64::MAX, 3, 0]), 3);
    }

    #[test]
    fn a_word_of_four_bytes_has_no_upper_bits() {
        for word_type in [WordType::U32, WordType::I32, WordType::F32] {
            for operation in WordOperation::ALL {
                let new = apply(operation, word_type, [u64::MAX, u64::MAX, u64::MAX]);
                assert_eq!(new >> 32, 0, "{operation:?} {word_type:?}");
            }
        }
    }

    #[test]
    fn a_word_is_swapped_only_if_it_equals_the_compare_value() {
        for word_type in WordType::ALL {
            assert_eq!(apply(WordOperation::CompareSwap, word_type, [7, 9, 7]), 9, "{word_type:?}");
            assert_eq!(apply(WordOperation::CompareSwap, word_type, [8, 9, 7]), 8, "{word_type:?}");
        }
    }

    #[test]
    fn floats_have_no_bitwise_operations() {
        let bits = |value: f64| value.to_bits();
        assert_eq!(apply(WordOperation::Sum, WordType::F64, [bits(1.5), bits(2.25), 0]), bits(3.75));
        let sum32 =
            apply(WordOperation::Sum, WordType::F32, [1.5f32.to_bits().into(), 2f32.to_bits().into(), 0]);
        assert_eq!(sum32, 3.5f32.to_bits().into());
        for operation in WordOperation::ALL {
            for word_type in WordType::ALL {
                let update = WordUpdate { operation, word_type, operand: 6, compare: 0 };
                let bitwise = (6..=8).contains(&(operation as u8));
                assert_eq!(update.is_valid(), !bitwise || word_type.is_integer(), "{update:?}");
                assert!(update.is_valid() || update.apply(3) == 3, "{update:?}");
            }
        }
    }

    #[test]
    fn numbers_of_types_and_operations_are_their_places() {
        assert!(WordType::ALL.iter().enumerate().all(|(number, word_type)| *word_type as usize == number));
        assert!(WordOperation::ALL.iter().enumerate().all(|(number, it)| *it as usize == number));
    }
}
