//! One group for exhaustive exploration (feature `explore`): the canonical form. See `offload/canonical.rs`.

use alloc::vec::Vec;

use super::{Group, Membership, Neighbour};
use crate::offload::canonical::Names;

impl Group {
    pub(in crate::offload::group) fn canonical(&self, names: &impl Names, words: &mut Vec<u32>) {
        let Group {
            membership: Membership { group, members: _, rank: _, patience_ns: _, shape: _ }, // constant
            parent,
            children,
            reported,
            ready,
            next,
            rounds,
            failed,
            left,
        } = self;
        let flags = [*reported, *ready, left.is_some()]
            .into_iter()
            .fold(0, |flags, flag| flags << 1 | u32::from(flag));
        words.extend([*group, names.operation(*group, *next as u32), flags]);
        for Neighbour { peer: _, joined, all } in parent.iter().chain(children) {
            words.push(u32::from(*joined) << 1 | u32::from(*all));
        }
        words.push(failed.map_or(0, |(member, fault)| 1 + (member << 3 | fault as u32)));
        words.push(rounds.len() as u32);
        for (number, round) in rounds {
            words.push(names.operation(*group, *number as u32));
            round.canonical(names, words);
        }
    }
}
