//! What the members of a group can do together: who contributes how much, who waits for whom, and who gets what.
//!
//! | operation | writes | waits for | a writer writes |
//! |---|---|---|---|
//! | barrier | everyone | everyone | nothing |
//! | all-reduce, all-gather | everyone | everyone | a vector, a block |
//! | all-to-all | everyone | everyone | a block for each member |
//! | reduce, gather | everyone | the root for everyone, others for nobody | a vector, a block |
//! | broadcast | the root | others for the root | a block |
//! | scatter | the root | others for the root | a block for each member |
//!
//! A long operation is done in *parts*, each in a round of its own: the same range of bytes of every block. The root of a
//! broadcast or scatter has its own block already, so it gets no result.

use core::ops::Range;
use weir_proto::offload::reduce::{self, Vector};

/// Most members of a group.
pub const MAX_MEMBERS: u32 = 256;
/// Longest vector of a reduction. Unit: bytes.
pub const MAX_VECTOR_BYTES: u32 = reduce::MAX_VECTOR_BYTES;
/// Longest broadcast, and longest block of the other operations that only copy. Unit: bytes.
pub const MAX_BROADCAST_BYTES: u32 = 1 << 20;

/// Bits of a digest.
pub const DIGEST_BITS: u32 = 12;

/// What the members of a group do. Blocks have the same length at all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Ends when all have started it.
    Barrier,
    /// Combines the vectors of all members in rank order. The root gets the result.
    Reduce {
        /// The rank of the root.
        root: u32,
        /// The vectors, of at most [`MAX_VECTOR_BYTES`].
        vector: Vector,
    },
    /// As `Reduce`. All members get the result.
    AllReduce(Vector),
    /// All members get the bytes of the root.
    Broadcast {
        /// The rank of the root.
        root: u32,
        /// At most [`MAX_BROADCAST_BYTES`]. Unit: bytes.
        bytes: u32,
    },
    /// All members get the blocks of all, in rank order.
    AllGather {
        /// Length of a block, at most [`MAX_BROADCAST_BYTES`]. Unit: bytes.
        bytes: u32,
    },
    /// Each member has a block for every member. It gets the blocks for itself, in rank order.
    AllToAll {
        /// Length of a block, at most [`MAX_BROADCAST_BYTES`]. Unit: bytes.
        bytes: u32,
    },
    /// The root gets the blocks of all, in rank order.
    Gather {
        /// The rank of the root.
        root: u32,
        /// Length of a block, at most [`MAX_BROADCAST_BYTES`]. Unit: bytes.
        bytes: u32,
    },
    /// The root has a block for every member, in rank order. The others get theirs.
    Scatter {
        /// The rank of the root.
        root: u32,
        /// Length of a block, at most [`MAX_BROADCAST_BYTES`]. Unit: bytes.
        bytes: u32,
    },
}

impl Operation {
    /// Whether a group of `members` members can do it.
    pub fn is_valid(self, members: u32) -> bool {
        match self {
            Operation::Barrier => true,
            Operation::Reduce { root, vector } => root < members && vector.is_valid(),
            Operation::AllReduce(vector) => vector.is_valid(),
            Operation::AllGather { bytes } | Operation::AllToAll { bytes } => bytes <= MAX_BROADCAST_BYTES,
            Operation::Broadcast { root, bytes }
            | Operation::Gather { root, bytes }
            | Operation::Scatter { root, bytes } => root < members && bytes <= MAX_BROADCAST_BYTES,
        }
    }

    /// Length of a block or vector. Unit: bytes.
    pub(super) fn block_bytes(self) -> usize {
        match self {
            Operation::Barrier => 0,
            Operation::Reduce { vector, .. } | Operation::AllReduce(vector) => vector.bytes as usize,
            Operation::Broadcast { bytes, .. }
            | Operation::AllGather { bytes }
            | Operation::AllToAll { bytes }
            | Operation::Gather { bytes, .. }
            | Operation::Scatter { bytes, .. } => bytes as usize,
        }
    }

    /// Blocks that a writer contributes in a group of `members` members: one for all of them, or one for each.
    pub(super) fn blocks(self, members: u32) -> usize {
        match self {
            Operation::AllToAll { .. } | Operation::Scatter { .. } => members as usize,
            _ => 1,
        }
    }

    /// Length of what the member `rank` of `members` contributes. Unit: bytes.
    pub fn data_bytes(self, rank: u32, members: u32) -> usize {
        if self.is_written_by(rank) { self.blocks(members) * self.block_bytes() } else { 0 }
    }

    /// Length of what the member `rank` of `members` gets. Unit: bytes.
    pub fn result_bytes(self, rank: u32, members: u32) -> usize {
        let blocks = match self {
            Operation::Barrier => 0,
            Operation::AllReduce(_) => 1,
            Operation::Reduce { root, .. } => u32::from(root == rank),
            Operation::Broadcast { root, .. } | Operation::Scatter { root, .. } => u32::from(root != rank),
            Operation::AllGather { .. } | Operation::AllToAll { .. } => members,
            Operation::Gather { root, .. } if root == rank => members,
            Operation::Gather { .. } => 0,
        };
        blocks as usize * self.block_bytes()
    }

    /// Whether the member `rank` writes.
    pub(super) fn is_written_by(self, rank: u32) -> bool {
        let other = |root| root != rank;
        !matches!(self, Operation::Broadcast { root, .. } | Operation::Scatter { root, .. } if other(root))
    }

    /// Whether another member takes what the member `rank` writes. What the root of a reduce or gather contributes is its own
    /// affair.
    pub(super) fn is_read_from(self, rank: u32) -> bool {
        match self {
            Operation::Reduce { root, .. } | Operation::Gather { root, .. } => root != rank,
            _ => self.is_written_by(rank),
        }
    }

    /// The members that the member `rank` waits for, and from whom it takes something.
    pub(super) fn awaited(self, rank: u32, members: u32) -> Range<u32> {
        match self {
            Operation::Reduce { root, .. } | Operation::Gather { root, .. } if root != rank => 0..0,
            Operation::Broadcast { root, .. } | Operation::Scatter { root, .. } if root == rank => 0..0,
            Operation::Broadcast { root, .. } | Operation::Scatter { root, .. } => root..root + 1,
            _ => 0..members,
        }
    }

    /// A number of [`DIGEST_BITS`] bits, not 0, of what all members must agree on. Two different operations have the same
    /// one by chance only.
    pub(super) fn digest(self) -> u64 {
        let of = |vector: Vector| {
            let Vector { bytes, combination } = vector;
            let types = (combination.operation as u64) << 8 | combination.word_type as u64;
            types << 32 | u64::from(bytes)
        };
        let (kind, rest, root) = match self {
            Operation::Barrier => (1, 0, 0),
            Operation::Reduce { root, vector } => (2, of(vector), root),
            Operation::AllReduce(vector) => (3, of(vector), 0),
            Operation::Broadcast { root, bytes } => (4, bytes.into(), root),
            Operation::AllGather { bytes } => (5, bytes.into(), 0),
            Operation::AllToAll { bytes } => (6, bytes.into(), 0),
            Operation::Gather { root, bytes } => (7, bytes.into(), root),
            Operation::Scatter { root, bytes } => (8, bytes.into(), root),
        };
        // The root has 8 bits, bytes have 32, types 12. Source of the factor: Fibonacci hashing, 2^64 by the golden ratio.
        let shape: u64 = kind << 52 | rest << 8 | u64::from(root);
        (shape.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - DIGEST_BITS)).max(1)
    }
}

/// A range of bytes of every block: what is done in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The first byte.
    pub from: usize,
    /// Length. Unit: bytes.
    pub bytes: usize,
}

impl Part {
    /// The range in block `block` of blocks of `block_bytes` bytes.
    pub fn within(self, block: usize, block_bytes: usize) -> Range<usize> {
        let from = block * block_bytes + self.from;
        from..from + self.bytes
    }

    /// Words of a block's part. Blocks begin at whole words.
    pub fn words(self) -> usize {
        self.bytes.div_ceil(8)
    }
}

/// How an operation is cut into parts in a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    block_bytes: usize,
    part_bytes: usize,
}

impl Cut {
    /// For slots of `slot_words` words.
    pub fn new(operation: Operation, members: u32, slot_words: usize) -> Cut {
        let part_words = match operation.blocks(members) {
            1 => slot_words,
            blocks => slot_words / blocks,
        };
        Cut { block_bytes: operation.block_bytes(), part_bytes: 8 * part_words }
    }

    /// The number of parts, at least 1.
    pub fn parts(self) -> u64 {
        // Most operations fit, and a division takes as long as all else here.
        if self.block_bytes <= self.part_bytes {
            1
        } else {
            self.block_bytes.div_ceil(self.part_bytes) as u64
        }
    }

    /// A part.
    pub fn part(self, number: u64) -> Part {
        let from = number as usize * self.part_bytes;
        Part { from, bytes: self.part_bytes.min(self.block_bytes - from) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::offload::{Combination, WordOperation, WordType};

    #[test]
    fn the_parts_of_an_operation_cover_every_block_once_and_fit_a_slot() {
        let broadcast = |bytes| Operation::Broadcast { root: 0, bytes };
        let all_to_all = |bytes| Operation::AllToAll { bytes };
        for (operation, members, slot_words, parts) in [
            (Operation::Barrier, 3, 8, 1),
            (broadcast(0), 3, 8, 1),
            (broadcast(64), 3, 8, 1),
            (broadcast(65), 3, 8, 2),
            (broadcast(1000), 3, 8, 16),
            (all_to_all(16), 4, 8, 1),
            (all_to_all(17), 4, 8, 2),
            (all_to_all(9), 8, 8, 2),
        ] {
            let cut = Cut::new(operation, members, slot_words);
            assert_eq!(cut.parts(), parts, "{operation:?}");
            let mut next = 0;
            for part in (0..parts).map(|number| cut.part(number)) {
                assert_eq!(part.from, next);
                assert!(part.words() * operation.blocks(members) <= slot_words, "{operation:?}: {part:?}");
                next += part.bytes;
            }
            assert_eq!(next, operation.block_bytes(), "{operation:?}");
        }
    }

    #[test]
    fn who_contributes_and_who_gets_what() {
        let bytes = 10;
        let vector = Vector {
            bytes: 8,
            combination: Combination { operation: WordOperation::Sum, word_type: WordType::U64 },
        };
        // Of the root 1 and of another member of 3.
        for (operation, data, result) in [
            (Operation::Barrier, [0, 0], [0, 0]),
            (Operation::AllReduce(vector), [8, 8], [8, 8]),
            (Operation::Reduce { root: 1, vector }, [8, 8], [8, 0]),
            (Operation::Broadcast { root: 1, bytes }, [10, 0], [0, 10]),
            (Operation::AllGather { bytes }, [10, 10], [30, 30]),
            (Operation::AllToAll { bytes }, [30, 30], [30, 30]),
            (Operation::Gather { root: 1, bytes }, [10, 10], [30, 0]),
            (Operation::Scatter { root: 1, bytes }, [30, 0], [0, 10]),
        ] {
            assert_eq!([1, 2].map(|rank| operation.data_bytes(rank, 3)), data, "{operation:?}");
            assert_eq!([1, 2].map(|rank| operation.result_bytes(rank, 3)), result, "{operation:?}");
            assert!(operation.is_valid(3));
            for rank in 0..3 {
                let takes = !operation.awaited(rank, 3).is_empty();
                let is_barrier = operation == Operation::Barrier;
                assert_eq!(
                    takes,
                    is_barrier || operation.result_bytes(rank, 3) > 0,
                    "{operation:?} at {rank}"
                );
            }
        }
        assert!(!Operation::Gather { root: 3, bytes }.is_valid(3));
        assert!(!Operation::AllToAll { bytes: MAX_BROADCAST_BYTES + 1 }.is_valid(3));
    }
}
