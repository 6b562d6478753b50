//! Tests of combinations against plain expressions over elements.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

/// An element with the operations of all types, written apart from the code under test.
trait Element: Copy {
    fn plain(operation: WordOperation, left: Self, right: Self) -> Self;
}

macro_rules! integer {
    ($($type:ty),*) => {$(
        impl Element for $type {
            fn plain(operation: WordOperation, left: $type, right: $type) -> $type {
                match operation {
                    WordOperation::Sum => (i128::from(left) + i128::from(right)) as $type,
                    WordOperation::Product => left.overflowing_mul(right).0,
                    WordOperation::Min => if left < right { left } else { right },
                    WordOperation::Max => if left > right { left } else { right },
                    WordOperation::And => !(!left | !right),
                    WordOperation::Or => !(!left & !right),
                    WordOperation::Xor => (left | right) & !(left & right),
                    WordOperation::LogicalAnd => if left == 0 || right == 0 { 0 } else { 1 },
                    WordOperation::LogicalOr => if left == 0 && right == 0 { 0 } else { 1 },
                    WordOperation::LogicalXor => if (left == 0) == (right == 0) { 0 } else { 1 },
                    _ => panic!("{operation:?} does not combine"),
                }
            }
        }
    )*};
}
integer!(u32, i32, u64, i64);

macro_rules! float {
    ($($type:ty),*) => {$(
        impl Element for $type {
            fn plain(operation: WordOperation, left: $type, right: $type) -> $type {
                let [left_counts, right_counts] = [left, right].map(|value| !value.is_nan());
                match operation {
                    WordOperation::Sum => left + right,
                    WordOperation::Product => left * right,
                    // What is not a number is not 0.
                    WordOperation::LogicalAnd => if left == 0.0 || right == 0.0 { 0.0 } else { 1.0 },
                    WordOperation::LogicalOr => if left == 0.0 && right == 0.0 { 0.0 } else { 1.0 },
                    WordOperation::LogicalXor => if (left == 0.0) == (right == 0.0) { 0.0 } else { 1.0 },
                    _ if !left_counts => right,
                    _ if !right_counts => left,
                    // Of two equal values, the left one.
                    WordOperation::Min => if left <= right { left } else { right },
                    WordOperation::Max => if left >= right { left } else { right },
                    _ => panic!("{operation:?} does not combine floats"),
                }
            }
        }
    )*};
}
float!(f32, f64);

/// All combinations that exist.
fn combinations() -> Vec<Combination> {
    let pairs = WordOperation::ALL
        .into_iter()
        .flat_map(|operation| WordType::ALL.map(|word_type| Combination { operation, word_type }));
    pairs.filter(|combination| combination.is_valid()).collect()
}

macro_rules! expected {
    ($type:ty, $operation:expr, $left:expr, $right:expr) => {{
        let elements = |bytes: &[u8]| {
            let element = |bytes: &[u8]| <$type>::from_ne_bytes(bytes.try_into().expect("an element"));
            bytes.chunks(size_of::<$type>()).map(element).collect::<Vec<$type>>()
        };
        let pairs = elements($left).into_iter().zip(elements($right));
        pairs.flat_map(|(left, right)| <$type>::plain($operation, left, right).to_ne_bytes()).collect()
    }};
}

/// The expected result of a combination of two vectors.
fn expected(combination: Combination, left: &[u8], right: &[u8]) -> Vec<u8> {
    let Combination { operation, word_type } = combination;
    match word_type {
        WordType::U32 => expected!(u32, operation, left, right),
        WordType::I32 => expected!(i32, operation, left, right),
        WordType::U64 => expected!(u64, operation, left, right),
        WordType::I64 => expected!(i64, operation, left, right),
        WordType::F32 => expected!(f32, operation, left, right),
        WordType::F64 => expected!(f64, operation, left, right),
    }
}

/// Whether two results are equal. The bits of a result that is not a number are not defined.
fn agree(word_type: WordType, left: &[u8], right: &[u8]) -> bool {
    let bytes = word_type.bytes() as usize;
    let is_nan = |element: &[u8]| match word_type {
        WordType::F32 => f32::from_ne_bytes(element.try_into().expect("an element")).is_nan(),
        WordType::F64 => f64::from_ne_bytes(element.try_into().expect("an element")).is_nan(),
        _ => false,
    };
    let mut pairs = left.chunks(bytes).zip(right.chunks(bytes));
    left.len() == right.len() && pairs.all(|(left, right)| left == right || is_nan(left) && is_nan(right))
}

#[test]
fn arithmetic_and_logic_work_on_all_types_and_bitwise_operations_on_integers() {
    use WordOperation::*;
    for word_type in WordType::ALL {
        let is_float = matches!(word_type, WordType::F32 | WordType::F64);
        for operation in WordOperation::ALL {
            let expected = match operation {
                Sum | Product | Min | Max | LogicalAnd | LogicalOr | LogicalXor => true,
                And | Or | Xor => !is_float,
                _ => false,
            };
            assert_eq!(
                Combination { operation, word_type }.is_valid(),
                expected,
                "{operation:?} {word_type:?}"
            );
        }
    }
    assert_eq!(combinations().len(), 4 * 10 + 2 * 7);
}

#[test]
fn every_combination_of_special_values_equals_the_plain_expression() {
    let words = [
        0,
        1,
        u64::MAX,
        1 << 63,
        1 << 31,
        (1 << 31) - 1,
        (1 << 63) - 1,
        0x8000_0000_8000_0000,
        f64::NAN.to_bits(),
        f64::INFINITY.to_bits(),
        f64::NEG_INFINITY.to_bits(),
        1.5f64.to_bits(),
        (-0.0f64).to_bits(),
        u64::from(f32::NAN.to_bits()) << 32 | u64::from(1.5f32.to_bits()),
        u64::from((-0.0f32).to_bits()) << 32 | u64::from(f32::INFINITY.to_bits()),
    ];
    for combination in combinations() {
        for left in words.map(u64::to_ne_bytes) {
            for right in words.map(u64::to_ne_bytes) {
                let mut result = left;
                combination.combine(&mut result, &right);
                let expected = expected(combination, &left, &right);
                assert!(
                    agree(combination.word_type, &result, &expected),
                    "{combination:?} of {left:?} and {right:?}: {result:?}, expected {expected:?}"
                );
            }
        }
    }
}

proptest! {
    #[test]
    fn every_combination_of_any_vectors_equals_the_plain_expression(
        combination in proptest::sample::select(combinations()),
        pairs in proptest::collection::vec(any::<(u64, u64)>(), 0..40),
    ) {
        let left: Vec<u8> = pairs.iter().flat_map(|(left, _)| left.to_ne_bytes()).collect();
        let right: Vec<u8> = pairs.iter().flat_map(|(_, right)| right.to_ne_bytes()).collect();
        let mut result = left.clone();
        combination.combine(&mut result, &right);
        prop_assert!(agree(combination.word_type, &result, &expected(combination, &left, &right)));
    }
}

#[test]
#[should_panic(expected = "two vectors of one length")]
fn vectors_of_different_lengths_are_a_bug() {
    let sum = Combination { operation: WordOperation::Sum, word_type: WordType::U32 };
    sum.combine(&mut [0; 8], &[0; 4]);
}
