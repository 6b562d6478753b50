//! Reduce-scatter: the vectors of all members are combined, and each member gets its block of the result.
//!
//! A group has no such operation. It is one of two others:
//!
//! | as | what a member gets | done if |
//! |---|---|---|
//! | all-to-all | the block for it of each member, which it combines in the order of ranks | blocks have about the same length |
//! | all-reduce | the combined vector, of which it keeps its block | the vector is short |
//!
//! Both give the same bits. Inside a host the all-to-all comes first, since there a member combines only what it needs. Across
//! hosts a combination that does not depend on brackets is combined inside each host first, so the all-reduce sends less.

use crate::abi::Abi;
use crate::choice::{Lengths, Reduction};
use crate::communicators;
use crate::elements::Copy;
use crate::member::Communicator;
use crate::mpi::{Mpi, mpi};
use std::ffi::c_int;
use weir_engine::operation_times::OperationKind;
use weir_link::shm::node_group::Operation;

/// The elements of each member's block, as an argument says it.
#[derive(Clone, Copy, Debug)]
pub enum Counts {
    /// All have as many.
    Same(i64),
    /// An array by rank, or null.
    Small(*const c_int),
    /// The same, for large counts.
    Large(*const i64),
}

impl Counts {
    /// All have as many.
    pub fn same(count: impl Into<i64>) -> Counts {
        Counts::Same(count.into())
    }

    /// The count of a member.
    ///
    /// # Safety
    /// An array has a count for it.
    unsafe fn of(self, rank: u32) -> i64 {
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Counts::Same(count) => count,
                Counts::Small(counts) => (*counts.add(rank as usize)).into(),
                Counts::Large(counts) => *counts.add(rank as usize),
            }
        }
    }

    fn is_null(self) -> bool {
        match self {
            Counts::Same(_) => false,
            Counts::Small(counts) => counts.is_null(),
            Counts::Large(counts) => counts.is_null(),
        }
    }
}

/// A call, with its arguments.
#[derive(Clone, Copy, Debug)]
pub struct ReduceScatter {
    /// The function, for the user.
    pub name: &'static str,
    /// The address of the whole vector.
    pub send: usize,
    /// The address of the own block. In place, the whole vector lies here.
    pub receive: usize,
    pub counts: Counts,
    pub datatype: usize,
    pub operation: usize,
    pub communicator: usize,
}

impl ReduceScatter {
    /// Does the call in the group of its communicator. Returns the status for the program. `None`: the MPI does it.
    ///
    /// # Safety
    /// The buffers have as many elements as MPI requires for this call, and an array has a count for each member.
    pub unsafe fn perform(&self) -> Option<c_int> {
        let mpi = mpi()?;
        let abi = mpi.abi.as_ref()?;
        let reduction = Reduction::new(abi, abi.handle(self.datatype), abi.handle(self.operation))?;
        if self.counts.is_null() {
            return None;
        }
        let handle = abi.handle(self.communicator);
        let status = communicators::with_group(mpi, abi, handle, true, |communicator| {
            // SAFETY: as the caller promises.
            unsafe { self.perform_in(mpi, abi, communicator, &reduction) }
        });
        status.map_or_else(Some, Option::flatten)
    }

    /// Does the call in the group of a communicator. `None`: the MPI does it.
    ///
    /// # Safety
    /// As for [`ReduceScatter::perform`].
    unsafe fn perform_in(
        &self,
        mpi: &Mpi,
        abi: &Abi,
        communicator: &Communicator,
        reduction: &Reduction,
    ) -> Option<c_int> {
        let Communicator { rank, members, ref layout, .. } = *communicator;
        // SAFETY: as the caller promises.
        let counts = (0..members).map(|rank| unsafe { self.counts.of(rank) });
        let lengths = Lengths::new(counts, reduction.element_bytes())?;
        let is_across_hosts = layout.is_some();
        let is_taken = |operation: &Operation| {
            operation.is_valid(members) && layout.as_ref().is_none_or(|layout| layout.takes(*operation))
        };
        let operation =
            lengths.operations(reduction, is_across_hosts).into_iter().flatten().find(is_taken)?;

        let in_place = abi.constants.values.in_place;
        let data = if self.send == in_place { self.receive } else { self.send };
        let own = lengths.range(rank);
        let has_no_place = !own.is_empty() && (self.receive == 0 || self.receive == in_place);
        if data == 0 || data == in_place || has_no_place {
            return None; // the MPI reports what is wrong
        }
        // SAFETY: as the caller promises.
        let vector = unsafe { std::slice::from_raw_parts(data as *const u8, lengths.total) };
        let (mut copy_of_data, mut copy_of_result) = (Copy::default(), Copy::default());
        let given = match (operation, reduction.short) {
            (Operation::AllToAll { bytes }, _) if lengths.total != bytes as usize * members as usize => {
                let room = copy_of_data.bytes(bytes as usize * members as usize);
                for (block, to) in (0..members).zip(room.chunks_exact_mut(bytes as usize)) {
                    let from = &vector[lengths.range(block)];
                    to[..from.len()].copy_from_slice(from);
                }
                &*room
            }
            (Operation::AllReduce(words), Some(short)) => {
                let room = copy_of_data.bytes(words.bytes as usize);
                short.widen(vector, room);
                &*room
            }
            _ => vector,
        };
        let result = copy_of_result.bytes(operation.result_bytes(rank, members));
        let call = (operation, OperationKind::ReduceScatter);
        // SAFETY: as long as the operation says, and the result is our own memory.
        let ended =
            unsafe { communicator.perform(mpi, abi, self.name, call, given.as_ptr(), result.as_mut_ptr()) };
        let status = ended?;
        if status == 0 && !own.is_empty() {
            // SAFETY: as the caller promises. The data has been read.
            let block = unsafe { std::slice::from_raw_parts_mut(self.receive as *mut u8, own.len()) };
            take_block(operation, reduction, result, own, block);
        }
        Some(status)
    }
}

/// Makes the own block of the result of an operation.
///
/// - `own`: where the block lies in the vector.
fn take_block(
    operation: Operation,
    reduction: &Reduction,
    result: &[u8],
    own: std::ops::Range<usize>,
    block: &mut [u8],
) {
    let Operation::AllToAll { bytes } = operation else {
        let Some(short) = reduction.short else { return block.copy_from_slice(&result[own]) };
        let place = |bytes: usize| bytes / reduction.element_bytes() * reduction.word_bytes();
        return short.narrow(&result[place(own.start)..place(own.end)], block);
    };
    for (rank, given) in result.chunks_exact(bytes as usize).enumerate() {
        let given = &given[..block.len()];
        match rank {
            0 => block.copy_from_slice(given),
            _ => reduction.combine(block, given),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_engine::short_integers::ShortInteger;
    use weir_proto::offload::{Combination, WordOperation, WordType};

    fn bytes(words: &[f64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn of_floats(operation: WordOperation) -> Reduction {
        Reduction { combination: Combination { operation, word_type: WordType::F64 }, short: None }
    }

    #[test]
    fn of_short_integers_each_member_keeps_its_block_too() {
        let combination = Combination { operation: WordOperation::Sum, word_type: WordType::I32 };
        let sums = Reduction { combination, short: Some(ShortInteger::I8) };
        let mut block = [0; 2];
        take_block(Operation::AllToAll { bytes: 3 }, &sums, &[100, 1, 9, 100, 255, 9], 3..5, &mut block);
        assert_eq!(block, [200, 0], "sums wrap, and the padding is left out");
        let vector = sums.vector(3).expect("a short vector");
        let words: Vec<u8> = [1_i32, 200, -1].iter().flat_map(|word| word.to_ne_bytes()).collect();
        take_block(Operation::AllReduce(vector), &sums, &words, 1..3, &mut block);
        assert_eq!(block, [200, 255]);
    }

    #[test]
    fn blocks_are_combined_in_the_order_of_ranks_without_their_padding() {
        let sums = of_floats(WordOperation::Sum);
        let result = bytes(&[1e16, 7.0, 1.0, 7.0, -1e16, 7.0, 1.0, 7.0]);
        let mut block = [0; 8];
        take_block(Operation::AllToAll { bytes: 16 }, &sums, &result, 8..16, &mut block);
        assert_eq!(f64::from_ne_bytes(block), ((1e16 + 1.0) - 1e16) + 1.0);
    }

    #[test]
    fn of_a_combined_vector_each_member_keeps_its_block() {
        let maxima = of_floats(WordOperation::Max);
        let vector = maxima.vector(3).expect("a short vector");
        let mut block = [0; 8];
        take_block(Operation::AllReduce(vector), &maxima, &bytes(&[1.0, 2.0, 3.0]), 8..16, &mut block);
        assert_eq!(f64::from_ne_bytes(block), 2.0);
    }
}
