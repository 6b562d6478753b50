//! Groups for exhaustive exploration (feature `explore`): the canonical form. See `offload/canonical.rs`.

use alloc::vec::Vec;

use super::Groups;
use crate::offload::canonical::Names;

impl Groups {
    pub(in crate::offload) fn canonical(&self, names: &impl Names, words: &mut Vec<u32>) {
        let Groups { groups, left: _ } = self; // decides only what a full table forgets
        words.push(groups.len() as u32);
        groups.values().for_each(|group| group.canonical(names, words));
    }
}
