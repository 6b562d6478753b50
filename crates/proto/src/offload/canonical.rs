//! The canonical form of the offloaded machines' state, for exhaustive exploration (feature `explore`).
//!
//! Numbers of operations grow or are reused, so equivalent states would differ in them. Only the search knows which
//! operation a number names. So it gives each number a bounded name ([`Names`]). `endpoint/canonical.rs` has the form of
//! the endpoint.

use alloc::vec::Vec;

use super::Offload;
use crate::event::Request;
use crate::machine::Memory;

/// Bounded names for what the machines of one endpoint name by numbers.
pub trait Names {
    /// The name of our fetch of this number, which completes `request`. Names of different fetches differ.
    fn fetch(&self, number: u32, request: Request) -> u32;

    /// The name of the operation `number` of a group: its distance from an operation that all members agree on.
    fn operation(&self, group: u32, number: u32) -> u32;

    /// Appends what the first `bytes` bytes of `memory` hold.
    fn contents(&self, memory: Memory, bytes: u32, words: &mut Vec<u32>);
}

impl Offload {
    /// Appends the canonical form of this state.
    pub fn canonical(&self, names: &impl Names, words: &mut Vec<u32>) {
        let Offload { atomics, groups } = self;
        atomics.canonical(names, words);
        groups.canonical(names, words);
    }
}
