//! Remote atomics for exhaustive exploration (feature `explore`): the canonical form. See `offload/canonical.rs`.

use alloc::vec::Vec;

use super::{Atomics, Pending};
use crate::offload::canonical::Names;

impl Atomics {
    pub(in crate::offload) fn canonical(&self, names: &impl Names, words: &mut Vec<u32>) {
        let Atomics {
            regions, // the search gives them short keys
            pending,
            pending_with,
        } = self;
        words.push(regions.len() as u32);
        words.extend(regions.iter().flat_map(|(key, bytes)| [*key as u32, *bytes as u32]));
        let name = |(number, Pending { request, peer, word_bytes }): (u32, &Pending)| {
            [peer.0, names.fetch(number, *request), *word_bytes]
        };
        let mut fetches: Vec<[u32; 3]> = pending.iter().map(name).collect();
        fetches.sort_unstable();
        words.push(fetches.len() as u32);
        words.extend(fetches.iter().flatten());
        words.push(pending_with.len() as u32);
        words.extend(pending_with.iter().flat_map(|(peer, count)| [peer.0, *count]));
    }
}
