//! The choice for each call: whether the group does it, and as which operation.
//!
//! Members must not choose differently. So this uses only what MPI requires to be equal at all of them: operation, type
//! signature, count, root. It never uses an address, an alignment or `MPI_IN_PLACE`, which may differ. A call that the MPI
//! would reject, such as one with a root outside the communicator, gets no choice: the MPI says what is wrong.

use crate::abi::Abi;
use crate::call::Kind;
use std::ops::Range;
use weir_engine::short_integers::ShortInteger;
use weir_link::shm::node_group::{MAX_VECTOR_BYTES, Operation};
use weir_proto::offload::Combination;
use weir_proto::offload::reduce::Vector;

/// The longest block that a group copies. It could do longer ones, which the MPI copies once and the group twice. Unit:
/// bytes.
pub const LONGEST_BLOCK: usize = 16 << 10;

/// The longest block of a scatter. Its root writes the blocks of all members, so it soon waits for those that read the
/// rounds before. Unit: bytes.
pub const LONGEST_SCATTERED_BLOCK: usize = 2 << 10;

/// How a reduction combines the elements of a datatype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// How the group combines words.
    pub combination: Combination,
    /// The elements, if they are shorter than a word.
    pub short: Option<ShortInteger>,
}

impl Reduction {
    /// `None`: the MPI does it.
    ///
    /// - `datatype`, `operation`: handles.
    pub fn new(abi: &Abi, datatype: usize, operation: usize) -> Option<Reduction> {
        let (reduced, operation) = (abi.datatype(datatype)?.reduced?, abi.operation(operation)?);
        let combination = Combination { operation, word_type: reduced.word };
        reduced.has(operation).then_some(Reduction { combination, short: reduced.short })
    }

    /// Length of an element. Unit: bytes.
    pub fn element_bytes(&self) -> usize {
        self.short.map_or(self.word_bytes(), ShortInteger::bytes)
    }

    /// Length of the word that the group combines for an element. Unit: bytes.
    pub fn word_bytes(&self) -> usize {
        self.combination.word_type.bytes() as usize
    }

    /// The vector of so many elements. `None`: the MPI does it.
    ///
    /// - `count`: as the caller says.
    pub fn vector(&self, count: i64) -> Option<Vector> {
        let bytes = length(count, self.word_bytes(), MAX_VECTOR_BYTES as usize)? as u32;
        Some(Vector { bytes, combination: self.combination })
    }
}

/// The lengths of the blocks of a reduce-scatter. Unit: bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Where the block of each rank ends.
    ends: Vec<usize>,
    /// Of all blocks together.
    pub total: usize,
    /// Of the longest block.
    longest: usize,
}

impl Lengths {
    /// - `counts`: elements of each rank's block.
    ///
    /// `None`: the MPI does it, since nothing is to do, or a count is wrong or very large.
    pub fn new(counts: impl Iterator<Item = i64>, element_bytes: usize) -> Option<Lengths> {
        let mut lengths = Lengths { ends: Vec::new(), total: 0, longest: 0 };
        for count in counts {
            let bytes = usize::try_from(count).ok()?.checked_mul(element_bytes)?;
            lengths.total =
                lengths.total.checked_add(bytes).filter(|&total| isize::try_from(total).is_ok())?;
            lengths.longest = lengths.longest.max(bytes);
            lengths.ends.push(lengths.total);
        }
        (lengths.total > 0).then_some(lengths)
    }

    /// Where the block of a rank lies in the vector.
    pub fn range(&self, rank: u32) -> Range<usize> {
        let begin = rank.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        begin..self.ends[rank as usize]
    }

    /// The operations of a group that can do a reduce-scatter with these blocks, the better one first.
    pub fn operations(&self, reduction: &Reduction, is_across_hosts: bool) -> [Option<Operation>; 2] {
        // Shorter blocks are padded. At most half of what is sent may be padding.
        let padded = self.longest.checked_mul(self.ends.len());
        let is_even = padded.is_some_and(|padded| padded <= self.total.saturating_mul(2));
        let exchange = (is_even && self.longest <= LONGEST_BLOCK)
            .then_some(Operation::AllToAll { bytes: self.longest as u32 });
        let elements = (self.total / reduction.element_bytes()) as i64;
        let whole = reduction.vector(elements).map(Operation::AllReduce);
        match is_across_hosts && !reduction.combination.depends_on_brackets() {
            true => [whole, exchange],
            false => [exchange, whole],
        }
    }
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
    const CHAR: usize = 0x4c00_0101;
    const SIGNED_CHAR: usize = 0x4c00_0118;
    const UNSIGNED_CHAR: usize = 0x4c00_0102;
    const SHORT: usize = 0x4c00_0203;
    const UNSIGNED_SHORT: usize = 0x4c00_0204;
    const BYTE: usize = 0x4c00_010d;
    const C_BOOL: usize = 0x4c00_013f;
    const CXX_BOOL: usize = 0x4c00_0133;

    fn vector(abi: &Abi, count: i64, datatype: usize, operation: usize) -> Option<Vector> {
        Reduction::new(abi, datatype, operation)?.vector(count)
    }

    fn words(operation: WordOperation, word_type: WordType) -> Reduction {
        Reduction { combination: Combination { operation, word_type }, short: None }
    }

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
        assert_eq!(vector(&mpich(), 3, INT, LAND).map(|vector| vector.bytes), Some(12));
    }

    #[test]
    fn short_integers_are_words_in_the_group() {
        let abi = mpich();
        let longest = i64::from(MAX_VECTOR_BYTES) / 4;
        for (datatype, word_type) in [
            (SIGNED_CHAR, WordType::I32),
            (UNSIGNED_CHAR, WordType::U32),
            (SHORT, WordType::I32),
            (UNSIGNED_SHORT, WordType::U32),
        ] {
            let combination = Combination { operation: WordOperation::Sum, word_type };
            assert_eq!(vector(&abi, 3, datatype, SUM), Some(Vector { bytes: 12, combination }));
            assert!(vector(&abi, longest, datatype, SUM).is_some());
            assert_eq!(vector(&abi, longest + 1, datatype, SUM), None);
        }
    }

    #[test]
    fn types_have_the_operations_of_the_standard() {
        let abi = mpich();
        let all = [SUM, LAND, BAND];
        for (datatype, expected) in [
            (INT, [true, true, true]),
            (SHORT, [true, true, true]),
            (UNSIGNED_CHAR, [true, true, true]),
            (BYTE, [false, false, true]),
            (C_BOOL, [false, true, false]),
            (CXX_BOOL, [false, true, false]),
            (DOUBLE, [true, false, false]),
            (CHAR, [false, false, false]),
        ] {
            let has = all.map(|operation| vector(&abi, 1, datatype, operation).is_some());
            assert_eq!(has, expected, "{datatype:#x}");
        }
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
            (1, DOUBLE, LAND, "an error: the truth of a float"),
            (1, TWO_INTS, MAXLOC, "a pair"),
            (1, 0x8c00_0005, SUM, "a derived type"),
            (1, INT, 0x9800_0000, "an operation of the user"),
        ] {
            assert_eq!(vector(&abi, count, datatype, operation), None, "{why}");
        }
    }

    fn lengths(counts: &[i64]) -> Option<Lengths> {
        Lengths::new(counts.iter().copied(), 8)
    }

    #[test]
    fn blocks_of_a_reduce_scatter_lie_one_after_the_other() {
        let found = lengths(&[2, 0, 3]).expect("some bytes");
        assert_eq!((0..3).map(|rank| found.range(rank)).collect::<Vec<_>>(), [0..16, 16..16, 16..40]);
        for wrong in [&[0, 0, 0][..], &[1, -1, 1], &[1, i64::MAX], &[i64::MAX / 8, i64::MAX / 8]] {
            assert_eq!(lengths(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_reduce_scatter_of_even_blocks_is_an_all_to_all_and_of_a_short_vector_an_all_reduce() {
        let floats = words(WordOperation::Sum, WordType::F64);
        let whole = |reduction: Reduction, bytes| {
            Some(Operation::AllReduce(Vector { bytes, combination: reduction.combination }))
        };
        let exchange = |bytes| Some(Operation::AllToAll { bytes });
        let even = lengths(&[4, 4]).expect("some bytes");
        assert_eq!(even.operations(&floats, true), [exchange(32), whole(floats, 64)]);
        for other in [words(WordOperation::Sum, WordType::I64), words(WordOperation::Max, WordType::F64)] {
            assert_eq!(even.operations(&other, false), [exchange(32), whole(other, 64)]);
            assert_eq!(even.operations(&other, true), [whole(other, 64), exchange(32)]);
        }
        let long = lengths(&[2048, 2048]).expect("some bytes");
        assert_eq!(long.operations(&floats, false), [exchange(16 << 10), None]);
        let uneven = lengths(&[0, 4, 0]).expect("some bytes");
        assert_eq!(uneven.operations(&floats, false), [None, whole(floats, 32)]);
        let neither = lengths(&[0, 1024, 0]).expect("some bytes");
        assert_eq!(neither.operations(&floats, false), [None, None]);
        let bytes = Reduction { short: Some(ShortInteger::U8), ..words(WordOperation::Max, WordType::U32) };
        let even = Lengths::new([5, 5].into_iter(), 1).expect("some bytes");
        assert_eq!(even.operations(&bytes, false), [exchange(5), whole(bytes, 40)]);
        assert_eq!(lengths(&[2049, 2049]).expect("some bytes").operations(&floats, false), [None, None]);
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
