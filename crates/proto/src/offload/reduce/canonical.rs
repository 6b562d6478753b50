//! Reductions for exhaustive exploration (feature `explore`): the canonical form. See `offload/canonical.rs`.

use alloc::vec::Vec;

use super::Reductions;
use crate::offload::canonical::Names;

impl Reductions {
    pub(in crate::offload) fn canonical(&self, names: &impl Names, words: &mut Vec<u32>) {
        let Reductions { groups } = self;
        words.push(groups.len() as u32);
        groups.values().for_each(|group| group.canonical(names, words));
    }
}
