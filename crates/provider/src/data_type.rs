//! libfabric's types and operations of data (`enum fi_datatype`, `enum fi_op`): which of them are those of the machines,
//! and how long an element is.

use std::ffi::{c_double, c_float, c_int};

use weir_proto::offload::{WordOperation, WordType};

/// The operations, by their number in libfabric.
const OPERATIONS: [WordOperation; 20] = [
    WordOperation::Min,
    WordOperation::Max,
    WordOperation::Sum,
    WordOperation::Product,
    WordOperation::LogicalOr,
    WordOperation::LogicalAnd,
    WordOperation::Or,
    WordOperation::And,
    WordOperation::LogicalXor,
    WordOperation::Xor,
    WordOperation::Read,
    WordOperation::Write,
    WordOperation::CompareSwap,
    WordOperation::SwapIfNotEqual,
    WordOperation::SwapIfLessEqual,
    WordOperation::SwapIfLess,
    WordOperation::SwapIfGreaterEqual,
    WordOperation::SwapIfGreater,
    WordOperation::MaskedSwap,
    WordOperation::Difference, // since 2.0
];

/// The types of words, by their number in libfabric, from `FI_INT32` on.
const WORD_TYPES: [WordType; 6] =
    [WordType::I32, WordType::U32, WordType::I64, WordType::U64, WordType::F32, WordType::F64];
/// `FI_INT32`.
const FIRST_WORD_TYPE: usize = 4;

/// Lengths of the elements of all types, by their number in libfabric, up to `FI_UINT128`. A `long double` has 16 bytes on
/// the processors that this crate knows.
const ELEMENT_BYTES: [usize; 16] = [
    1,
    1,
    2,
    2,
    4,
    4,
    8,
    8,
    size_of::<c_float>(),
    size_of::<c_double>(),
    2 * size_of::<c_float>(),
    2 * size_of::<c_double>(),
    16,
    32,
    16,
    16,
];

/// The type of a word. `None`: the machines do not have it.
pub fn word_type(datatype: c_int) -> Option<WordType> {
    let number = usize::try_from(datatype).ok().and_then(|number| number.checked_sub(FIRST_WORD_TYPE));
    number.and_then(|number| WORD_TYPES.get(number).copied())
}

/// The operation. `None`: there is none with this number.
pub fn word_operation(operation: c_int) -> Option<WordOperation> {
    usize::try_from(operation).ok().and_then(|number| OPERATIONS.get(number).copied())
}

/// Length of an element of any type. `None`: there is none with this number. Unit: bytes.
pub fn element_bytes(datatype: c_int) -> Option<usize> {
    usize::try_from(datatype).ok().and_then(|number| ELEMENT_BYTES.get(number).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_as_long_as_the_elements_of_their_types() {
        for datatype in -1..20 {
            if let Some(word_type) = word_type(datatype) {
                assert_eq!(element_bytes(datatype), Some(word_type.bytes() as usize), "type {datatype}");
            }
        }
        assert_eq!(
            (word_type(3), word_type(10), element_bytes(16), element_bytes(-1)),
            (None, None, None, None)
        );
    }
}
