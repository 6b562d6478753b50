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

    /// Whether it is an integer.
    pub fn is_integer(self) -> bool {
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
    /// 1 if both differ from 0, otherwise 0.
    LogicalAnd = 10,
    /// 1 if one of them differs from 0, otherwise 0.
    LogicalOr = 11,
    /// 1 if exactly one of them differs from 0, otherwise 0.
    LogicalXor = 12,
    /// Subtracts the operand. Integers wrap.
    Difference = 13,
    /// Replaces it by the operand if the compare value is not equal to it.
    SwapIfNotEqual = 14,
    /// Replaces it by the operand if the compare value is at most as large.
    SwapIfLessEqual = 15,
    /// Replaces it by the operand if the compare value is less.
    SwapIfLess = 16,
    /// Replaces it by the operand if the compare value is at least as large.
    SwapIfGreaterEqual = 17,
    /// Replaces it by the operand if the compare value is greater.
    SwapIfGreater = 18,
    /// Takes the bits that are set in the compare value from the operand; integers only.
    MaskedSwap = 19,
}

impl WordOperation {
    /// All operations, by number.
    pub const ALL: [WordOperation; 20] = [
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
        WordOperation::LogicalAnd,
        WordOperation::LogicalOr,
        WordOperation::LogicalXor,
        WordOperation::Difference,
        WordOperation::SwapIfNotEqual,
        WordOperation::SwapIfLessEqual,
        WordOperation::SwapIfLess,
        WordOperation::SwapIfGreaterEqual,
        WordOperation::SwapIfGreater,
        WordOperation::MaskedSwap,
    ];

    /// Whether it works on words of `word_type`: bitwise operations are for integers.
    pub fn has_type(self, word_type: WordType) -> bool {
        use WordOperation::{And, MaskedSwap, Or, Xor};
        !matches!(self, And | Or | Xor | MaskedSwap) || word_type.is_integer()
    }

    /// Whether reductions have it.
    pub fn combines(self) -> bool {
        use WordOperation::{And, LogicalAnd, LogicalOr, LogicalXor, Max, Min, Or, Product, Sum, Xor};
        matches!(self, Sum | Product | Min | Max | And | Or | Xor | LogicalAnd | LogicalOr | LogicalXor)
    }

    /// Whether it has a compare value.
    pub fn compares(self) -> bool {
        use WordOperation::{
            CompareSwap, MaskedSwap, SwapIfGreater, SwapIfGreaterEqual, SwapIfLess, SwapIfLessEqual,
            SwapIfNotEqual,
        };
        matches!(
            self,
            CompareSwap
                | SwapIfNotEqual
                | SwapIfLessEqual
                | SwapIfLess
                | SwapIfGreaterEqual
                | SwapIfGreater
                | MaskedSwap
        )
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
    /// The compare value of operations that have one ([`WordOperation::compares`]), as bits; otherwise 0.
    pub compare: u64,
}

/// The result of an operation without arithmetic. The others are `$rest`.
macro_rules! result {
    ($update:ident, $old:ident, $operand:ident, $compare:ident, { $($rest:tt)* }) => {
        match $update.operation {
            WordOperation::Read => $old,
            WordOperation::Write => $operand,
            WordOperation::CompareSwap => if $compare == $old { $operand } else { $old },
            WordOperation::SwapIfNotEqual => if $compare != $old { $operand } else { $old },
            WordOperation::SwapIfLessEqual => if $compare <= $old { $operand } else { $old },
            WordOperation::SwapIfLess => if $compare < $old { $operand } else { $old },
            WordOperation::SwapIfGreaterEqual => if $compare >= $old { $operand } else { $old },
            WordOperation::SwapIfGreater => if $compare > $old { $operand } else { $old },
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
            WordOperation::LogicalAnd => <$type>::from(old != 0 && operand != 0),
            WordOperation::LogicalOr => <$type>::from(old != 0 || operand != 0),
            WordOperation::LogicalXor => <$type>::from((old != 0) != (operand != 0)),
            WordOperation::Difference => old.wrapping_sub(operand),
            WordOperation::MaskedSwap => (operand & compare) | (old & !compare),
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
            WordOperation::LogicalAnd => <$type>::from(u8::from(old != 0.0 && operand != 0.0)),
            WordOperation::LogicalOr => <$type>::from(u8::from(old != 0.0 || operand != 0.0)),
            WordOperation::LogicalXor => <$type>::from(u8::from((old != 0.0) != (operand != 0.0))),
            WordOperation::Difference => old - operand,
            WordOperation::And | WordOperation::Or | WordOperation::Xor | WordOperation::MaskedSwap => old,
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
    fn logical_operations_and_differences_work_on_all_types() {
        use WordOperation::*;
        let (two, three) = (2.0f64.to_bits(), 3.0f64.to_bits());
        let (one, minus_one) = (1.0f64.to_bits(), (-1.0f64).to_bits());
        for (operation, [of_zeros, of_one_zero, of_none]) in
            [(LogicalAnd, [0, 0, 1]), (LogicalOr, [0, 1, 1]), (LogicalXor, [0, 1, 0])]
        {
            for word_type in [WordType::U32, WordType::I32, WordType::U64, WordType::I64] {
                assert_eq!(apply(operation, word_type, [0, 0, 0]), of_zeros, "{operation:?}");
                assert_eq!(apply(operation, word_type, [0, 3, 0]), of_one_zero, "{operation:?}");
                assert_eq!(apply(operation, word_type, [2, 3, 0]), of_none, "{operation:?}");
            }
            let minus_zero = (-0.0f64).to_bits();
            assert_eq!(apply(operation, WordType::F64, [0, minus_zero, 0]), of_zeros * one, "{operation:?}");
            assert_eq!(apply(operation, WordType::F64, [two, 0, 0]), of_one_zero * one, "{operation:?}");
            assert_eq!(apply(operation, WordType::F64, [two, three, 0]), of_none * one, "{operation:?}");
        }
        assert_eq!(apply(Difference, WordType::F64, [two, three, 0]), minus_one);
        assert_eq!(apply(Difference, WordType::U32, [2, 3, 0]), u64::from(u32::MAX));
        assert_eq!(apply(Difference, WordType::I64, [2, 3, 0]), u64::MAX);
    }

    #[test]
    fn a_conditional_swap_compares_the_compare_value_with_the_word() {
        use WordOperation::*;
        // Whether it swaps if the compare value is less than, equal to, and greater than the word.
        for (operation, swaps) in [
            (CompareSwap, [false, true, false]),
            (SwapIfNotEqual, [true, false, true]),
            (SwapIfLessEqual, [true, true, false]),
            (SwapIfLess, [true, false, false]),
            (SwapIfGreaterEqual, [false, true, true]),
            (SwapIfGreater, [false, false, true]),
        ] {
            assert!(operation.compares() && !operation.combines());
            let signed = [-2i64, -1, 0].map(|compare| {
                apply(operation, WordType::I64, [u64::MAX, 9, compare as u64]) == 9 // the word is -1
            });
            assert_eq!(signed, swaps, "{operation:?} signed");
            let unsigned = [4, 5, 6].map(|compare| apply(operation, WordType::U32, [5, 9, compare]) == 9);
            assert_eq!(unsigned, swaps, "{operation:?} unsigned");
            let bits = |value: f32| u64::from(value.to_bits());
            let floats = [-2.0, -1.0, 0.0].map(|compare| {
                apply(operation, WordType::F32, [bits(-1.0), bits(9.0), bits(compare)]) == bits(9.0)
            });
            assert_eq!(floats, swaps, "{operation:?} floats");
        }
        assert_eq!(apply(MaskedSwap, WordType::U32, [0b1100, 0b1010, 0b0110]), 0b1010);
        assert_eq!(apply(MaskedSwap, WordType::U64, [!0, 0, 0xF0]), !0xF0);
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
                let bitwise = matches!(operation as u8, 6..=8 | 19);
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
