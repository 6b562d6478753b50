//! What is measured: operations of the node group, and the flat counter. Also the bytes that members contribute in the
//! repetitions that are checked.

use weir_link::shm::node_group::Operation;
use weir_proto::offload::reduce::Vector;
use weir_proto::offload::{Combination, WordOperation, WordType};

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// The barrier by a counter.
    FlatCounter,
    /// The barrier of the group.
    Barrier,
    /// A sum at all members, of so many bytes.
    AllReduce(u32),
    /// A sum at one member, in turn.
    Reduce(u32),
    /// The bytes of one member, in turn.
    Broadcast(u32),
    /// Blocks of so many bytes of all members.
    AllGather(u32),
    /// Blocks of so many bytes for each pair.
    AllToAll(u32),
}

impl Case {
    /// All of them, in the order in which they run in each round.
    pub const ALL: [Case; 10] = [
        Case::FlatCounter,
        Case::Barrier,
        Case::AllReduce(8),
        Case::AllReduce(4096),
        Case::Reduce(8),
        Case::Broadcast(8),
        Case::Broadcast(4096),
        Case::Broadcast(16384),
        Case::AllGather(2048),
        Case::AllToAll(2048),
    ];

    /// Its name in the table.
    pub fn name(self) -> String {
        let of = |name: &str, bytes: u32| match bytes {
            1024.. => format!("{name} {} KiB", bytes >> 10),
            _ => format!("{name} {bytes} B"),
        };
        match self {
            Case::FlatCounter => String::from("flat counter"),
            Case::Barrier => String::from("barrier"),
            Case::AllReduce(bytes) => of("all-reduce", bytes),
            Case::Reduce(bytes) => of("reduce", bytes),
            Case::Broadcast(bytes) => of("broadcast", bytes),
            Case::AllGather(bytes) => of("all-gather", bytes),
            Case::AllToAll(bytes) => of("all-to-all", bytes),
        }
    }

    /// The operation of a repetition. The root changes each time, as in Intel's MPI benchmarks. `None`: it is the counter.
    pub fn operation(self, repetition: u64, ranks: u32) -> Option<Operation> {
        let root = (repetition % u64::from(ranks)) as u32;
        let vector = |bytes| Vector {
            bytes,
            combination: Combination { operation: WordOperation::Sum, word_type: WordType::U64 },
        };
        match self {
            Case::FlatCounter => None,
            Case::Barrier => Some(Operation::Barrier),
            Case::AllReduce(bytes) => Some(Operation::AllReduce(vector(bytes))),
            Case::Reduce(bytes) => Some(Operation::Reduce { root, vector: vector(bytes) }),
            Case::Broadcast(bytes) => Some(Operation::Broadcast { root, bytes }),
            Case::AllGather(bytes) => Some(Operation::AllGather { bytes }),
            Case::AllToAll(bytes) => Some(Operation::AllToAll { bytes }),
        }
    }

    /// Writes what the member `rank` contributes.
    pub fn fill(rank: u32, repetition: u64, data: &mut [u8]) {
        for (index, bytes) in (0..).zip(data.chunks_mut(8)) {
            bytes.copy_from_slice(&word(rank, repetition, index).to_ne_bytes()[..bytes.len()]);
        }
    }

    /// Whether the result of the member `rank` is what the operation makes of these contributions.
    pub fn is_right(operation: Operation, rank: u32, ranks: u32, repetition: u64, result: &[u8]) -> bool {
        let block_words = result.len() as u64 / 8 / u64::from(ranks);
        let expected = |index: u64| match operation {
            Operation::Broadcast { root, .. } => word(root, repetition, index),
            Operation::AllGather { .. } => {
                word((index / block_words) as u32, repetition, index % block_words)
            }
            Operation::AllToAll { .. } => {
                let at = u64::from(rank) * block_words + index % block_words;
                word((index / block_words) as u32, repetition, at)
            }
            _ => (0..ranks).map(|rank| word(rank, repetition, index)).sum(),
        };
        let mut words = (0..).zip(result.chunks(8));
        words.all(|(index, bytes)| expected(index).to_ne_bytes()[..bytes.len()] == *bytes)
    }
}

/// A word that differs from its neighbours, from those of other members, and from those before.
fn word(rank: u32, repetition: u64, index: u64) -> u64 {
    u64::from(rank) << 40 | repetition << 20 | index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_word_is_found() {
        let (rank, ranks, repetition) = (1, 3, 5);
        let mut data = [0; 24];
        Case::fill(2, repetition, &mut data);
        let third = u64::from_ne_bytes(data[16..].try_into().expect("a word"));
        assert_eq!(third, word(2, repetition, 2));
        let sum = |index| (0..ranks).map(|rank| word(rank, repetition, index)).sum();
        for (case, expected) in [
            (Case::AllReduce(16), vec![sum(0), sum(1)]),
            // The root of repetition 5 among 3 is 2.
            (Case::Broadcast(16), vec![word(2, 5, 0), word(2, 5, 1)]),
            (Case::AllGather(8), vec![word(0, 5, 0), word(1, 5, 0), word(2, 5, 0)]),
            (Case::AllToAll(8), vec![word(0, 5, 1), word(1, 5, 1), word(2, 5, 1)]),
        ] {
            let operation = case.operation(repetition, ranks).expect("an operation");
            let is_right = |words: &[u64]| {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                assert_eq!(bytes.len(), operation.result_bytes(rank, ranks), "{operation:?}");
                Case::is_right(operation, rank, ranks, repetition, &bytes)
            };
            assert!(is_right(&expected), "{operation:?}");
            for at in 0..expected.len() {
                let mut wrong = expected.clone();
                wrong[at] ^= 1;
                assert!(!is_right(&wrong), "{operation:?}");
            }
        }
    }
}
