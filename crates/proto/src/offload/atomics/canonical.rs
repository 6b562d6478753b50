//! Remote atomics for exhaustive exploration (feature `explore`): the canonical form. See `offload/canonical.rs`.

use alloc::vec::Vec;

use super::{Atomics, Awaited, Load, Pending};
use crate::offload::canonical::Names;

impl Atomics {
    pub(in crate::offload) fn canonical(&self, names: &impl Names, words: &mut Vec<u32>) {
        let Atomics { target, pending, pending_with, several } = self;
        target.canonical(words);
        assert!(several.is_empty(), "the search has no requests of several words");
        let name = |(number, Pending { request, peer, awaited }): (u32, &Pending)| {
            let awaited = match *awaited {
                Awaited::Change => [0, 0],
                Awaited::Word { bytes, place } => [bytes, place],
                Awaited::Vector { .. } => panic!("the search has no vectors"),
            };
            [peer.0, names.fetch(number, *request), awaited[0], awaited[1]]
        };
        let mut fetches: Vec<[u32; 4]> = pending.iter().map(name).collect();
        fetches.sort_unstable();
        words.push(fetches.len() as u32);
        words.extend(fetches.iter().flatten());
        words.push(pending_with.len() as u32);
        let load = |(peer, Load { count, .. }): (&crate::event::Peer, &Load)| [peer.0, *count];
        words.extend(pending_with.iter().flat_map(load));
    }
}
