//! Registered memory: words of this rank that others read, write and change.
//!
//! A rank chooses the key. Others name the memory by rank, key and offset, so nobody exchanges anything when the keys
//! are agreed on. Rust programs get words of weir's ([`Segment`]); C programs register their own memory.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use weir_link::memory::UserMemory;

use crate::Error;
use crate::state::{Owner, Shared};

/// Bound: length of registered memory. Unit: bytes.
const MAX_SEGMENT_BYTES: u64 = 1 << 47;
/// Alignment of registered memory, so that an offset that fits a word gives an address that fits it. Unit: bytes.
pub(crate) const ALIGNMENT: usize = 8;

/// The words of a segment.
#[derive(Debug)]
pub(crate) struct Words(Box<[AtomicU64]>);

impl Words {
    fn memory(&self) -> UserMemory {
        // SAFETY: the words are shared, never borrowed exclusively, and may be changed through the shared pointer,
        // since they are atomic. The endpoint has the value until its engine is dropped (`Inner::regions`,
        // `Inner::retired`).
        unsafe { UserMemory::contiguous(self.0.as_ptr().cast_mut().cast(), size_of_val(&*self.0)) }
    }
}

/// Words of this rank that others read, write and change under a key. They are registered until the value is dropped.
/// Their memory is free again when the endpoint is closed, since a copy of another rank may be under way until then.
///
/// The program uses them by their atomic instructions. A put or get of another rank copies bytes: a word that is put
/// while it is read may be old, new, or mixed.
pub struct Segment {
    owner: Arc<Owner>,
    key: u64,
    words: Arc<Words>,
}

impl Segment {
    pub(crate) fn new(owner: Arc<Owner>, key: u64, words: usize) -> Result<Segment, Error> {
        if words as u64 > MAX_SEGMENT_BYTES / 8 {
            return Err(Error::argument("number of words", words, format!("0 to {}", MAX_SEGMENT_BYTES / 8)));
        }
        let words = Arc::new(Words((0..words).map(|_| AtomicU64::new(0)).collect()));
        register(&owner.0, key, words.memory(), (true, true), Some(Arc::clone(&words)))?;
        Ok(Segment { owner, key, words })
    }

    /// The key.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// The words. The word at index `i` has the offset `8 * i`.
    pub fn words(&self) -> &[AtomicU64] {
        &self.words.0
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let _ = deregister(&self.owner.0, self.key); // the endpoint is closed
    }
}

/// Registers memory.
///
/// - `rights`: whether others may read, and write.
/// - `words`: what lives as long as it is registered.
///
/// # Errors
/// The key is in use, or the endpoint is closed.
pub(crate) fn register(
    shared: &Shared,
    key: u64,
    memory: UserMemory,
    rights: (bool, bool),
    words: Option<Arc<Words>>,
) -> Result<(), Error> {
    shared.with(|inner| {
        if inner.regions.contains_key(&key) {
            return Err(Error::argument("key", key, "those that this rank has not registered"));
        }
        inner.regions.insert(key, words);
        inner.engine.register_memory(key, memory, rights.0, rights.1);
        Ok(())
    })
}

/// Registers memory no more. A copy of another rank that was allowed before may still be under way, so the words of a
/// segment live until the endpoint is closed.
///
/// # Errors
/// The key is not registered, or the endpoint is closed.
pub(crate) fn deregister(shared: &Shared, key: u64) -> Result<(), Error> {
    shared.with(|inner| {
        if !inner.regions.contains_key(&key) {
            return Err(Error::argument("key", key, "those that this rank has registered"));
        }
        inner.engine.deregister_memory(key);
        let words = inner.regions.remove(&key).flatten();
        inner.retired.extend(words);
        Ok(())
    })
}
