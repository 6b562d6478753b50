//! The cut of a collective operation into *parts*. A part is one operation of the machine of groups, of bounded length: a barrier,
//! a broadcast, a reduction, an all-reduce, an exchange, a gather, a scatter, an all-gather or an all-to-all. All members cut
//! alike, so they start the same parts in the same order.
//!
//! | operation | parts |
//! |---|---|
//! | broadcast, reduce to member 0, gather, scatter, all-gather | the same operation of the machine |
//! | all-reduce, short | all-gather; then each member combines all vectors. It takes half as many steps |
//! | all-reduce, longer | the same operation of the machine |
//! | reduce to another member | all-reduce; only the root keeps the result |
//! | reduce-scatter, short | all-reduce of all blocks; each member keeps its own |
//! | reduce-scatter, longer | those of an all-to-all; then each member combines the blocks that it has got |
//! | all-to-all, short | the same operation of the machine: all blocks leave at once |
//! | all-to-all, longer | an exchange for each distance between two members |
//!
//! What a member does not keep arrives in memory of the part. This file does not know groups, requests or errors.

use std::ops::Range;

use weir_link::memory::{OwnedMemory, UserMemory};
use weir_proto::offload::Combination;
use weir_proto::offload::group::{
    MAX_BROADCAST_BYTES, MAX_EXCHANGE_BYTES, MAX_GATHERED_BYTES, MAX_ROUNDS, Operation as MachineOperation,
};
use weir_proto::offload::reduce::{MAX_VECTOR_BYTES, Vector};

/// Bound: length of the longest buffer of a collective operation. Unit: bytes.
pub const MAX_COLLECTIVE_BYTES: u64 = 1 << 30;

/// What the members of a group do together. A *block* is what one member gives or gets: see [`CollectiveShape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveOperation {
    /// Wait for all.
    Barrier,
    /// All get the block of the root. Its data is the buffer of both.
    Broadcast {
        /// Rank of the root.
        root: u32,
    },
    /// The root gets the combination of all blocks.
    Reduce {
        /// Rank of the root.
        root: u32,
        /// How they are combined, in the order of ranks.
        combination: Combination,
    },
    /// All get the combination of all blocks, with the same bits.
    AllReduce {
        /// As in a reduction.
        combination: Combination,
    },
    /// Everyone gives a block for each member. All blocks for a member are combined, and it gets the result.
    ReduceScatter {
        /// As in a reduction.
        combination: Combination,
    },
    /// All get the blocks of all, in the order of ranks.
    AllGather,
    /// The root gets the blocks of all, in the order of ranks.
    Gather {
        /// Rank of the root.
        root: u32,
    },
    /// The root gives a block for each member.
    Scatter {
        /// Rank of the root.
        root: u32,
    },
    /// Everyone gives a block for each member.
    AllToAll,
}

impl CollectiveOperation {
    /// How it combines, if it does.
    fn combination(self) -> Option<Combination> {
        use CollectiveOperation::{AllReduce, Reduce, ReduceScatter};
        match self {
            Reduce { combination, .. } | AllReduce { combination } | ReduceScatter { combination } => {
                Some(combination)
            }
            _ => None,
        }
    }

    fn root(self) -> Option<u32> {
        use CollectiveOperation::{Broadcast, Gather, Reduce, Scatter};
        match self {
            Broadcast { root } | Reduce { root, .. } | Gather { root } | Scatter { root } => Some(root),
            _ => None,
        }
    }
}

/// Longest part of sums and products of floats. Long vectors pass from rank to rank, two ranks at a time with parts of
/// this length, and the next parts follow. Longer parts take one rank at a time, shorter ones more turns.
/// `crates/sim/tests/simulator/float_sums.rs` has the times. Unit: bytes.
const MAX_FLOAT_BYTES: u32 = MAX_VECTOR_BYTES / 2;

/// Longest vectors of all members of an all-reduce that gathers them. Half of them are in the last packet of a member, so it
/// fits in two datagrams of a usual network. Unit: bytes.
pub(crate) const MAX_GATHERED_VECTORS_BYTES: u64 = 4 << 10;

/// Longest blocks of all members of an all-to-all in which they all leave at once: as much as exchanges have under way.
/// Unit: bytes.
const MAX_AT_ONCE_BYTES: u64 = MAX_ROUNDS as u64 * MAX_EXCHANGE_BYTES as u64;

/// An operation with its lengths, as one member sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveShape {
    /// The operation.
    pub operation: CollectiveOperation,
    /// Length of a block. Of a barrier: 0. Unit: bytes.
    pub block_bytes: u64,
    /// Our rank.
    pub rank: u32,
    /// Number of members.
    pub members: u32,
}

impl CollectiveShape {
    /// Whether the root is a member, the combination exists and has whole elements, and no buffer is too long.
    pub fn is_valid(&self) -> bool {
        let elements = |combination: Combination| {
            let element_bytes = u64::from(combination.word_type.bytes());
            combination.is_valid() && self.block_bytes.is_multiple_of(element_bytes)
        };
        let longest = self.block_bytes.checked_mul(self.members.into());
        self.operation.root().is_none_or(|root| root < self.members)
            && self.operation.combination().is_none_or(elements)
            && longest.is_some_and(|bytes| bytes <= MAX_COLLECTIVE_BYTES)
    }

    fn is_root(&self) -> bool {
        self.operation.root() == Some(self.rank)
    }

    fn all_bytes(&self) -> u64 {
        self.block_bytes * u64::from(self.members)
    }

    /// Where the block of a member begins among those of all.
    fn begin_of(&self, rank: u32) -> u64 {
        self.block_bytes * u64::from(rank)
    }

    /// Length of what this member gives. Of a broadcast: of the buffer at all. Unit: bytes.
    pub fn data_bytes(&self) -> u64 {
        use CollectiveOperation as Op;
        match self.operation {
            Op::Barrier => 0,
            Op::Broadcast { .. } | Op::Reduce { .. } | Op::AllReduce { .. } => self.block_bytes,
            Op::AllGather | Op::Gather { .. } => self.block_bytes,
            Op::ReduceScatter { .. } | Op::AllToAll => self.all_bytes(),
            Op::Scatter { .. } if self.is_root() => self.all_bytes(),
            Op::Scatter { .. } => 0,
        }
    }

    /// Length of what this member gets, in the buffer of the result. Unit: bytes.
    pub fn result_bytes(&self) -> u64 {
        use CollectiveOperation as Op;
        match self.operation {
            Op::Barrier | Op::Broadcast { .. } => 0,
            Op::AllReduce { .. } | Op::ReduceScatter { .. } | Op::Scatter { .. } => self.block_bytes,
            Op::AllGather | Op::AllToAll => self.all_bytes(),
            Op::Reduce { .. } if self.is_root() => self.block_bytes,
            Op::Gather { .. } if self.is_root() => self.all_bytes(),
            Op::Reduce { .. } | Op::Gather { .. } => 0,
        }
    }

    /// Whether each pair of members exchanges blocks. A reduce-scatter does if an all-reduce would take several parts.
    fn exchanges(&self) -> bool {
        match self.operation {
            CollectiveOperation::AllToAll => true,
            CollectiveOperation::ReduceScatter { .. } => self.all_bytes() > MAX_VECTOR_BYTES.into(),
            _ => false,
        }
    }

    /// Whether these exchanges are one operation of the machine.
    fn exchanges_at_once(&self) -> bool {
        self.exchanges() && self.all_bytes() <= MAX_AT_ONCE_BYTES
    }

    /// Whether all members get the blocks or vectors of all.
    fn gathers_at_all(&self) -> bool {
        match self.operation {
            CollectiveOperation::AllGather => true,
            CollectiveOperation::AllReduce { .. } => self.all_bytes() <= MAX_GATHERED_VECTORS_BYTES,
            _ => false,
        }
    }

    /// Whether the buffer of a part has blocks of all members at some of them.
    fn has_blocks(&self) -> bool {
        matches!(self.operation, CollectiveOperation::Gather { .. } | CollectiveOperation::Scatter { .. })
            || self.gathers_at_all()
            || self.exchanges_at_once()
    }

    /// A range of the blocks of all members as the machine has them: in a circle, from the root on, or from this member on if
    /// there is none.
    fn blocks_in_a_circle(&self, blocks: &UserMemory, range: &Range<u64>) -> UserMemory {
        let bytes = range.end - range.start;
        let root = self.operation.root().unwrap_or(self.rank);
        if bytes == self.block_bytes {
            let begin = self.begin_of(root);
            return UserMemory::joined([blocks.part(begin, self.all_bytes() - begin), blocks.part(0, begin)]);
        }
        let ranks = (root..self.members).chain(0..root);
        UserMemory::joined(ranks.map(|rank| blocks.part(self.begin_of(rank) + range.start, bytes)))
    }

    /// Length of memory for blocks that are combined when all have come. Unit: bytes.
    pub(super) fn gathered_bytes(&self) -> u64 {
        let is_combined =
            (self.exchanges() || self.gathers_at_all()) && self.operation.combination().is_some();
        if is_combined { self.all_bytes() } else { 0 }
    }

    /// The member that gets our block in the exchange of a transfer, and the one whose block we get.
    fn partners(&self, transfer: u32) -> (u32, u32) {
        let CollectiveShape { rank, members, .. } = *self;
        let distance = transfer + 1;
        ((rank + distance) % members, (rank + members - distance) % members)
    }

    /// Transfers one after the other, and the length of each. Each is cut into parts.
    fn transfers(&self) -> (u32, u64) {
        use CollectiveOperation as Op;
        if self.exchanges() && !self.exchanges_at_once() {
            return (self.members - 1, self.block_bytes);
        }
        match self.operation {
            _ if self.has_blocks() => (1, self.block_bytes),
            Op::Barrier | Op::Broadcast { .. } | Op::Reduce { .. } | Op::AllReduce { .. } => {
                (1, self.block_bytes)
            }
            Op::ReduceScatter { .. } => (1, self.all_bytes()),
            Op::Gather { .. } | Op::Scatter { .. } | Op::AllGather | Op::AllToAll => (1, self.block_bytes),
        }
    }

    /// Length of the longest part. Unit: bytes.
    fn part_bytes(&self) -> u64 {
        let bytes = match self.operation.combination() {
            _ if self.has_blocks() => MAX_EXCHANGE_BYTES.min(MAX_GATHERED_BYTES / self.members),
            _ if self.exchanges() => MAX_EXCHANGE_BYTES,
            Some(combination) if combination.depends_on_brackets() => MAX_FLOAT_BYTES,
            Some(_) => MAX_VECTOR_BYTES,
            None => MAX_BROADCAST_BYTES,
        };
        bytes.into()
    }

    /// Number of parts. None without bytes, except of a barrier.
    pub fn parts(&self) -> u64 {
        let (transfers, bytes) = self.transfers();
        match self.operation {
            CollectiveOperation::Barrier => 1,
            _ => u64::from(transfers) * bytes.div_ceil(self.part_bytes()),
        }
    }

    /// The transfer of a part, and its range in the transfer.
    fn range(&self, part: u64) -> (u32, Range<u64>) {
        let (_, bytes) = self.transfers();
        let parts_each = bytes.div_ceil(self.part_bytes()).max(1);
        let begin = part % parts_each * self.part_bytes();
        ((part / parts_each) as u32, begin..bytes.min(begin + self.part_bytes()))
    }

    fn machine_operation(&self, transfer: u32, bytes: u64) -> MachineOperation {
        use CollectiveOperation as Op;
        let bytes = bytes as u32; // at most that of a part
        match self.operation {
            _ if self.exchanges() && !self.exchanges_at_once() => {
                MachineOperation::Exchange { distance: transfer + 1, bytes }
            }
            _ if self.exchanges() => MachineOperation::AllToAll { bytes },
            _ if self.gathers_at_all() => MachineOperation::AllGather { bytes },
            Op::Barrier => MachineOperation::Barrier,
            Op::Reduce { root: 0, combination } => MachineOperation::Reduce(Vector { bytes, combination }),
            Op::Reduce { combination, .. }
            | Op::AllReduce { combination }
            | Op::ReduceScatter { combination } => MachineOperation::AllReduce(Vector { bytes, combination }),
            Op::Broadcast { root } => MachineOperation::Broadcast { root, bytes },
            Op::Gather { root } => MachineOperation::Gather { root, bytes },
            Op::Scatter { root } => MachineOperation::Scatter { root, bytes },
            Op::AllGather => MachineOperation::AllGather { bytes },
            Op::AllToAll => MachineOperation::AllToAll { bytes },
        }
    }

    /// What this member keeps of a transfer: the range, and where it begins in the result.
    fn kept(&self) -> (Range<u64>, u64) {
        use CollectiveOperation as Op;
        let own = self.begin_of(self.rank);
        let own = own..own + self.block_bytes;
        match self.operation {
            Op::Barrier | Op::Broadcast { .. } => (0..0, 0),
            Op::Reduce { .. } if !self.is_root() => (0..0, 0),
            Op::Reduce { .. } | Op::AllReduce { .. } => (0..self.block_bytes, 0),
            Op::ReduceScatter { .. } => (own, 0),
            // They have their own way.
            Op::AllGather | Op::AllToAll | Op::Gather { .. } | Op::Scatter { .. } => (0..0, 0),
        }
    }

    /// Whether the first part needs something of all members from which this one gets anything.
    pub(super) fn needs_all_at_once(&self) -> bool {
        self.transfers().0 == 1
    }

    /// Whether what a member gives and gets is one buffer.
    fn has_one_buffer(&self) -> bool {
        matches!(self.operation, CollectiveOperation::Broadcast { .. })
    }
}

/// A part that can be started.
#[derive(Debug)]
pub(super) struct Part {
    pub operation: MachineOperation,
    /// The buffer of its request.
    pub memory: UserMemory,
    /// What of the buffer is not the program's. Dropped after it.
    pub scratch: Option<OwnedMemory>,
}

/// Does what needs no other member: of exchanges, our block for ourselves goes to the result. So do what we give where all are
/// gathered, and the block of the root of a gather or a scatter.
///
/// `data`, `result`: as for [`prepare`].
pub(super) fn keep_own_block(shape: &CollectiveShape, data: &UserMemory, result: &UserMemory) {
    let own = |memory: &UserMemory| memory.part(shape.begin_of(shape.rank), shape.block_bytes);
    let block = |memory: &UserMemory| memory.part(0, shape.block_bytes);
    match shape.operation {
        _ if shape.exchanges() => copy(&own(data), &own(result)),
        _ if shape.gathers_at_all() => copy(&block(data), &own(result)),
        CollectiveOperation::Gather { root } if root == shape.rank => copy(&block(data), &own(result)),
        CollectiveOperation::Scatter { root } if root == shape.rank => copy(&own(data), &block(result)),
        _ => {}
    }
}

/// Combines the blocks that have been gathered, in the order of ranks.
///
/// `gathered`: as long as [`CollectiveShape::gathered_bytes`] says.
pub(super) fn combine_gathered(shape: &CollectiveShape, gathered: &UserMemory, result: &UserMemory) {
    let Some(combination) = shape.operation.combination() else { return };
    const STEP: usize = MAX_VECTOR_BYTES as usize;
    let (mut sum, mut block) = ([0; STEP], [0; STEP]);
    for begin in (0..shape.block_bytes).step_by(STEP) {
        let bytes = STEP.min((shape.block_bytes - begin) as usize);
        let (sum, block) = (&mut sum[..bytes], &mut block[..bytes]);
        gathered.read(begin, sum);
        for rank in 1..shape.members {
            gathered.read(shape.begin_of(rank) + begin, block);
            combination.combine(sum, block);
        }
        result.write(begin, sum);
    }
}

/// Prepares part number `part`: copies what this member gives to where the machine expects it.
///
/// `data`, `result`: the program's buffers, as long as the shape says. `result` is that of the gathered blocks if there are
/// some.
pub(super) fn prepare(shape: &CollectiveShape, part: u64, data: &UserMemory, result: &UserMemory) -> Part {
    let (transfer, range) = shape.range(part);
    let bytes = range.end - range.start;
    let operation = shape.machine_operation(transfer, bytes);
    if shape.exchanges() && !shape.exchanges_at_once() {
        let (to, from) = shape.partners(transfer);
        let memory = result.part(shape.begin_of(from) + range.start, bytes);
        copy(&data.part(shape.begin_of(to) + range.start, bytes), &memory);
        return Part { operation, memory, scratch: None };
    }
    if shape.has_blocks() {
        let memory = match operation {
            MachineOperation::AllGather { .. } => shape.blocks_in_a_circle(result, &range),
            MachineOperation::AllToAll { .. } => {
                let others = (0..shape.members).filter(|rank| *rank != shape.rank);
                let block =
                    |memory: &UserMemory, rank| memory.part(shape.begin_of(rank) + range.start, bytes);
                others.for_each(|rank| copy(&block(data, rank), &block(result, rank)));
                shape.blocks_in_a_circle(result, &range)
            }
            MachineOperation::Gather { .. } if shape.is_root() => shape.blocks_in_a_circle(result, &range),
            MachineOperation::Scatter { .. } if shape.is_root() => shape.blocks_in_a_circle(data, &range),
            MachineOperation::Scatter { .. } => result.part(range.start, bytes),
            _ => data.part(range.start, bytes),
        };
        return Part { operation, memory, scratch: None };
    }
    let (whole, at) = shape.kept();
    let kept = whole.start.clamp(range.start, range.end)..whole.end.clamp(range.start, range.end);
    let kept_bytes = kept.end - kept.start;
    let place = if kept_bytes > 0 { at + (kept.start - whole.start) } else { 0 };
    let keeps = || result.part(place, kept_bytes);
    let is_leaf = matches!(operation, MachineOperation::Reduce(_)) && !shape.is_root();
    if is_leaf || shape.has_one_buffer() {
        if kept_bytes > 0 {
            copy(&data.part(kept.start, kept_bytes), &keeps());
        }
        return Part { operation, memory: data.part(range.start, bytes), scratch: None };
    }
    let scratch_bytes = (bytes - kept_bytes) as usize;
    let before = (kept.start - range.start) as usize;
    let scratch = (scratch_bytes > 0).then(|| OwnedMemory::new(scratch_bytes));
    let memory = match &scratch {
        None => keeps(),
        Some(scratch) => UserMemory::joined([
            scratch.part(0, before),
            keeps(),
            scratch.part(before, scratch_bytes - before),
        ]),
    };
    if shape.operation.combination().is_some() {
        copy(&data.part(range.start, bytes), &memory);
    }
    Part { operation, memory, scratch }
}

/// Copies a buffer, unless both are the same.
fn copy(from: &UserMemory, into: &UserMemory) {
    if from.contiguous_address().is_none() || from.contiguous_address() != into.contiguous_address() {
        from.copy_to(0, from.bytes(), into, 0);
    }
}

#[cfg(test)]
mod tests;
