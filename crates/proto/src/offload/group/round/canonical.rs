//! One operation of a group for exhaustive exploration (feature `explore`): the canonical form. See
//! `offload/canonical.rs`.

use alloc::vec::Vec;

use super::{Input, Round};
use crate::machine::Memory;
use crate::offload::canonical::Names;
use crate::offload::group::Operation;

impl Round {
    pub(in crate::offload::group) fn canonical(&self, names: &impl Names, words: &mut Vec<u32>) {
        let Round { operation, steps: _, step, heard, inputs, started, request, buffer, awaited } = self;
        let in_buffer = |buffer| Memory::Buffer { buffer, offset: 0 };
        operation.canonical(words);
        words.extend([*step as u32, *heard as u32]);
        words.extend([u32::from(*started) << 1 | u32::from(request.is_some()), awaited.len() as u32]);
        words.extend(awaited);
        for Input { rank: _, step: _, arrived_bytes, complete, answered, held } in inputs {
            words.extend([*arrived_bytes, u32::from(*complete) << 1 | u32::from(*answered)]);
            words.push(u32::from(held.is_some()));
            if let Some(held) = held {
                names.contents(in_buffer(*held), operation.bytes(), words);
            }
        }
        words.push(u32::from(buffer.is_some()));
        let of_request = request.map(|request| Memory::Request { request, offset: 0 });
        if let Some(memory) = buffer.map(in_buffer).or(of_request) {
            names.contents(memory, operation.bytes(), words);
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
        };
        words.extend([kind, root, self.bytes()]);
        if let Some(combination) = self.combination() {
            words.extend([combination.operation as u32, combination.word_type as u32]);
        }
    }
}
