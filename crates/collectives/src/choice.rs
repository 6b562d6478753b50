//! The choice for each call: whether the group does it, and as which operation.
//!
//! Members must not choose differently. So this uses only what MPI requires to be equal at all of them: operation, type
//! signature, count, root. It never uses an address, an alignment or `MPI_IN_PLACE`, which may differ. A call that the MPI
//! would reject, such as one with a root outside the communicator, gets no choice: the MPI says what is wrong.

use crate::abi::Abi;
use crate::call::Kind;
use weir_link::shm::node_group::MAX_VECTOR_BYTES;
use weir_proto::offload::Combination;
use weir_proto::offload::reduce::Vector;

/// The longest block that a group copies. It could do longer ones, which the MPI copies once and the group twice. Unit:
/// bytes.
pub const LONGEST_BLOCK: usize = 16 << 10;

/// The longest block of a scatter. Its root writes the blocks of all members, so it soon waits for those that read the
/// rounds before. Unit: bytes.
pub const LONGEST_SCATTERED_BLOCK: usize = 2 << 10;

/// The vector of a reduction. `None`: the MPI does it.
///
/// - `count`: elements, as the caller says.
/// - `datatype`, `operation`: handles.
pub fn vector(abi: &Abi, count: i64, datatype: usize, operation: usize) -> Option<Vector> {
    let facts = abi.datatype(datatype)?;
    let combination = Combination { operation: abi.operation(operation)?, word_type: facts.word? };
    let bytes = length(count, facts.bytes as usize, MAX_VECTOR_BYTES as usize)? as u32;
    let vector = Vector { bytes, combination };
    combination.is_valid().then_some(vector)
}

/// Length of a block of the operations that only copy. `None`: the MPI does it. Unit: bytes.
///
/// - `element_bytes`: length of the data of one element, without gaps. It follows from the type signature.
pub fn block(count: i64, element_bytes: usize, kind: Kind) -> Option<u32> {
    let longest = if kind == Kind::Scatter { LONGEST_SCATTERED_BLOCK } else { LONGEST_BLOCK };
    Some(length(count, element_bytes, longest)? as u32)
}

/// `count * bytes`, if it is 1 to `longest`. Calls without data stay with the MPI, which does nothing for them.
fn length(count: i64, bytes: usize, longest: usize) -> Option<usize> {
    let length = usize::try_from(count).ok()?.checked_mul(bytes)?;
    (1..=longest).contains(&length).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::tests::mpich;
    use weir_proto::offload::{WordOperation, WordType};

    const INT: usize = 0x4c00_0405;
    const DOUBLE: usize = 0x4c00_080b;
    const SUM: usize = 0x5800_0003;
    const LAND: usize = 0x5800_0005;
    const BAND: usize = 0x5800_0006;
    const MAXLOC: usize = 0x5800_000c;
    const TWO_INTS: usize = 0x4c00_0816;

    #[test]
    fn reductions_of_short_vectors_of_known_types_are_taken() {
        let combination = Combination { operation: WordOperation::Sum, word_type: WordType::F64 };
        assert_eq!(vector(&mpich(), 1, DOUBLE, SUM), Some(Vector { bytes: 8, combination }));
        let longest = i64::from(MAX_VECTOR_BYTES);
        let of_double = vector(&mpich(), longest / 8, DOUBLE, SUM);
        assert_eq!(of_double, Some(Vector { bytes: MAX_VECTOR_BYTES, combination }));
        assert_eq!(
            vector(&mpich(), longest / 4, INT, BAND).map(|vector| vector.bytes),
            Some(MAX_VECTOR_BYTES)
        );
    }

    #[test]
    fn other_reductions_stay_with_the_mpi() {
        let abi = mpich();
        for (count, datatype, operation, why) in [
            (i64::from(MAX_VECTOR_BYTES) / 8 + 1, DOUBLE, SUM, "too long"),
            (0, DOUBLE, SUM, "nothing to do"),
            (-1, DOUBLE, SUM, "an error that the MPI reports"),
            (i64::MAX, DOUBLE, SUM, "its length is no number"),
            (1, DOUBLE, BAND, "an error: bits of a float"),
            (1, INT, LAND, "logical"),
            (1, TWO_INTS, MAXLOC, "a pair"),
            (1, 0x4c00_010d, SUM, "bytes have no sum"),
            (1, 0x8c00_0005, SUM, "a derived type"),
            (1, INT, 0x9800_0000, "an operation of the user"),
        ] {
            assert_eq!(vector(&abi, count, datatype, operation), None, "{why}");
        }
    }

    #[test]
    fn the_choice_of_a_block_depends_on_its_bytes_alone() {
        // One member may say 4 integers, another one element of a type with 16 bytes of data.
        assert_eq!(block(4, 4, Kind::AllGather), block(1, 16, Kind::AllGather));
        assert_eq!(block(16, 1024, Kind::Broadcast), Some(LONGEST_BLOCK as u32));
        assert_eq!((block(2, 1024, Kind::Scatter), block(3, 1024, Kind::Scatter)), (Some(2048), None));
        for (count, bytes) in [(0, 4), (4, 0), (-1, 4), (1, LONGEST_BLOCK + 1), (i64::MAX, 8)] {
            assert_eq!(block(count, bytes, Kind::Broadcast), None, "{count} of {bytes}");
        }
    }
}
