//! What an endpoint knows of registered memory and of copies under way ([`RemoteMemory`]): handles, keys, and the contexts by
//! which completions name copies.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::hash::BuildHasher;
use std::ops::Range;

use super::objects::{Object, RawMr};
use crate::ffi::{FiInfo, mr_mode};

/// Registrations, and the copies under way.
pub struct RemoteMemory {
    mode: c_int,
    key_bytes: usize,
    pub longest_copy: u64,
    pub registrations: HashMap<u64, Object<RawMr>>,
    pub next_handle: u64,
    /// Keys that are not the provider's.
    keys: RandomState,
    /// Contexts of no copy.
    pub free: Vec<usize>,
    /// The first context of a copy.
    pub first: usize,
    /// What the caller knows each copy by.
    pub contexts: Vec<u64>,
    pub ended: VecDeque<(u64, bool)>,
}

impl RemoteMemory {
    /// That of an endpoint with the attributes `info`. `contexts`: those of copies.
    ///
    /// # Safety
    /// The answer is whole.
    pub unsafe fn new(info: *const FiInfo, contexts: Range<usize>) -> RemoteMemory {
        // SAFETY: promise of the caller.
        let (domain, endpoint) = unsafe { (&*(*info).domain_attr, &*(*info).ep_attr) };
        RemoteMemory {
            mode: domain.mr_mode,
            key_bytes: domain.mr_key_size,
            longest_copy: endpoint.max_msg_size as u64,
            registrations: HashMap::new(),
            next_handle: 0,
            keys: RandomState::new(),
            first: contexts.start,
            contexts: vec![0; contexts.len()],
            free: contexts.collect(),
            ended: VecDeque::new(),
        }
    }

    pub fn has_mode(&self, bit: c_int) -> bool {
        self.mode & bit != 0
    }

    /// The copy with this context has ended.
    pub fn ended(&mut self, index: usize, is_whole: bool) {
        self.free.push(index);
        self.ended.push_back((self.contexts[index - self.first], is_whole));
    }

    /// Whether a copy has ended whose end nobody knows.
    pub fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Closes the registrations that are bound to the endpoint, which is about to close.
    pub fn close_bound(&mut self) {
        if self.has_mode(mr_mode::ENDPOINT) {
            self.registrations.clear();
        }
    }

    /// A key that strangers do not guess, as long as the provider's keys. 0 if the provider chooses.
    pub fn new_key(&mut self) -> u64 {
        self.next_handle += 1;
        if self.has_mode(mr_mode::PROV_KEY) {
            return 0;
        }
        let key = self.keys.hash_one(self.next_handle);
        match self.key_bytes {
            0 | 8.. => key,
            bytes => key & ((1 << (8 * bytes)) - 1),
        }
    }
}
