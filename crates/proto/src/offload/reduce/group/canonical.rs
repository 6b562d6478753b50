//! One group for exhaustive exploration (feature `explore`): the canonical form. See `offload/canonical.rs`.

use alloc::vec::Vec;

use super::{Child, Group, Held, Reduction, Started};
use crate::machine::Memory;
use crate::offload::canonical::Names;
use crate::offload::reduce::{Membership, Vector};

impl Group {
    pub(in crate::offload::reduce) fn canonical(&self, names: &impl Names, words: &mut Vec<u32>) {
        let Group {
            membership: Membership { group, members: _, rank: _, patience_ns: _ }, // constant
            parent: _,                                                             // follows from the members
            parent_joined,
            children,
            first,
            next,
            reductions,
            failed,
            left,
        } = self;
        let name = |number| names.reduction(*group, number);
        words.extend([*group, name(*first), name(*next), u32::from(*parent_joined) << 1 | u32::from(*left)]);
        for Child { peer: _, joined, number, arrived_bytes, unanswered } in children {
            words.extend([u32::from(*joined), name(*number), *arrived_bytes, name(*unanswered)]);
        }
        words.push(failed.map_or(0, |(member, fault)| 1 + (member << 3 | fault as u32)));
        words.push(reductions.len() as u32);
        for Reduction { started, combined, held } in reductions {
            words.push(*combined as u32);
            words.push(u32::from(started.is_some()));
            if let Some(Started { request, vector, partial, sent }) = started {
                words.push(u32::from(request.is_some()) << 1 | u32::from(*sent));
                canonical_vector(vector, *partial, names, words);
            }
            for held in held {
                words.push(u32::from(held.is_some()));
                if let Some(Held { buffer, vector }) = held {
                    canonical_vector(vector, Memory::Buffer { buffer: *buffer, offset: 0 }, names, words);
                }
            }
        }
    }
}

fn canonical_vector(vector: &Vector, memory: Memory, names: &impl Names, words: &mut Vec<u32>) {
    let Vector { bytes, combination } = *vector;
    words.extend([bytes, combination.operation as u32, combination.word_type as u32]);
    names.contents(memory, bytes, words);
}
