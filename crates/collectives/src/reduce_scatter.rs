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
use crate::elements::{Buffer, Copy, Elements};
use crate::member::Communicator;
use crate::mpi::{Mpi, mpi};
use crate::requests::Start;
use std::ffi::c_int;
use std::ops::Range;
use weir_engine::delivery::{Delivery, OwnBlock};
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
        // SAFETY: as the caller promises.
        unsafe { self.act(None) }
    }

    /// Starts the call in the group of its communicator, with a request of the MPI for its end. Returns the status for the
    /// program. `None`: the MPI does it.
    ///
    /// - `request`: the address of the program's variable.
    ///
    /// # Safety
    /// As for [`ReduceScatter::perform`], until the request has ended.
    pub unsafe fn start(&self, request: usize) -> Option<c_int> {
        // SAFETY: as the caller promises.
        unsafe { self.act(Some(request)) }
    }

    /// Performs the call, or starts it with a request.
    ///
    /// # Safety
    /// As for [`ReduceScatter::perform`] and [`ReduceScatter::start`].
    unsafe fn act(&self, request: Option<usize>) -> Option<c_int> {
        let mpi = mpi()?;
        let abi = mpi.abi.as_ref()?;
        let reduction = Reduction::new(abi, abi.handle(self.datatype), abi.handle(self.operation))?;
        if self.counts.is_null() {
            return None;
        }
        let handle = abi.handle(self.communicator);
        let may_decide = request.is_none();
        let status = communicators::with_group(mpi, abi, handle, may_decide, |communicator, _| {
            if request.is_some() && !communicator.takes_receives {
                return None;
            }
            // SAFETY: as the caller promises.
            unsafe { self.act_in(mpi, abi, communicator, &reduction, request) }
        });
        status.map_or_else(Some, Option::flatten)
    }

    /// Performs or starts the call in the group of a communicator. `None`: the MPI does it.
    ///
    /// # Safety
    /// As for [`ReduceScatter::act`].
    unsafe fn act_in(
        &self,
        mpi: &Mpi,
        abi: &Abi,
        communicator: &Communicator,
        reduction: &Reduction,
        request: Option<usize>,
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
        let range = lengths.range(rank);
        let has_no_place = !range.is_empty() && (self.receive == 0 || self.receive == in_place);
        if data == 0 || data == in_place || has_no_place {
            return None; // the MPI reports what is wrong
        }
        let own = own_block(operation, reduction, &range);
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
        if let Some(request) = request {
            let (at, count, datatype) =
                (self.receive, (range.len() / reduction.element_bytes()) as i64, self.datatype);
            let block = Buffer { at, count, datatype };
            let result = match range.is_empty() {
                true => None,
                false => Some(Elements::new(mpi, abi, &block, (0, 1), communicator.handle)?),
            };
            // Of data that is a copy of ours, or lies where the block goes, the operation makes its own.
            let is_free = given.as_ptr() != vector.as_ptr();
            let is_apart = at + range.len() <= data || data + lengths.total <= at;
            let (data, delivery) = (given.as_ptr(), Delivery::Block(own));
            let (name, is_copied, result) = (self.name, is_free || !is_apart, result.as_ref());
            let start = Start { name, operation, data, is_copied, result, delivery, request };
            // SAFETY: as the caller promises; as long as the operation says.
            return unsafe { communicator.start(mpi, abi, &start) };
        }
        let result = copy_of_result.bytes(operation.result_bytes(rank, members));
        let call = (operation, OperationKind::ReduceScatter);
        // SAFETY: as long as the operation says, and the result is our own memory.
        let ended =
            unsafe { communicator.perform(mpi, abi, self.name, call, given.as_ptr(), result.as_mut_ptr()) };
        let status = ended?;
        if status == 0 && !range.is_empty() {
            // SAFETY: as the caller promises. The data has been read.
            let block = unsafe { std::slice::from_raw_parts_mut(self.receive as *mut u8, range.len()) };
            own.write(result, block);
        }
        Some(status)
    }
}

/// The own block of the result of an operation.
///
/// - `range`: where it lies in the vector.
fn own_block(operation: Operation, reduction: &Reduction, range: &Range<usize>) -> OwnBlock {
    let exchanged_bytes = if let Operation::AllToAll { bytes } = operation { bytes } else { 0 };
    let (begin, bytes) = (range.start as u32, range.len() as u32); // of what a group takes
    OwnBlock { combination: reduction.combination, short: reduction.short, exchanged_bytes, begin, bytes }
}
