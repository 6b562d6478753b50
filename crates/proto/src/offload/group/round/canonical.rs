//! One operation of a group for exhaustive exploration (feature `explore`): the canonical form. See
//! `offload/canonical.rs`.

use alloc::vec::Vec;

use super::{Input, Round};
use crate::machine::Memory;
use crate::offload::canonical::Names;
use crate::offload::group::Operation;

impl Round {
    pub(in crate::offload::group) fn canonical(&self, names: &impl Names, words: &mut Vec<u32>) {
        let Round {
            operation,
            steps: _,
            step,
            heard,
            inputs,
            started,
            request,
            buffer,
            buffer_bytes,
            awaited,
        } = self;
        let in_buffer = |buffer| Memory::Buffer { buffer, offset: 0 };
        operation.canonical(words);
        words.extend([*step as u32, *heard as u32]);
        words.extend([u32::from(*started) << 1 | u32::from(request.is_some()), awaited.len() as u32]);
        words.extend(awaited);
        for Input { rank: _, step: _, bytes, arrived_bytes, complete, answered, held } in inputs {
            words.extend([*arrived_bytes, u32::from(*complete) << 1 | u32::from(*answered)]);
            words.push(u32::from(held.is_some()));
            if let Some(held) = held {
                names.contents(in_buffer(*held), *bytes, words);
            }
        }
        words.push(u32::from(buffer.is_some()));
        // The request of a scatter without a buffer is not that of its root, so it has one block.
        let request_bytes =
            if matches!(operation, Operation::Scatter { .. }) { operation.bytes() } else { *buffer_bytes };
        let of_request = request.map(|request| (Memory::Request { request, offset: 0 }, request_bytes));
        let of_buffer = buffer.map(|buffer| (in_buffer(buffer), *buffer_bytes));
        if let Some((memory, bytes)) = of_buffer.or(of_request) {
            names.contents(memory, bytes, words);
        }
    }
}

impl Operation {
    /// Appends the canonical form of this operation.
    pub fn canonical(&self, words: &mut Vec<u32>) {
        let (kind, root) = match *self {
            Operation::Barrier => (0, 0),
            Operation::Reduce(_) => (1, 0),
            Operation::AllReduce(_) => (2, 0),
            Operation::Broadcast { root, .. } => (3, root),
            Operation::Exchange { distance, .. } => (4, distance),
            Operation::Gather { root, .. } => (5, root),
            Operation::Scatter { root, .. } => (6, root),
            Operation::AllGather { .. } => (7, 0),
            Operation::AllToAll { .. } => (8, 0),
        };
        words.extend([kind, root, self.bytes()]);
        if let Some(combination) = self.combination() {
            words.extend([combination.operation as u32, combination.word_type as u32]);
        }
    }
}
