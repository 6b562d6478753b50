//! Remote atomics: the calls by which a program changes words of a peer's memory, and how our memory changes for peers.
//!
//! One word leaves in one slot. The operands of a vector are payload; if it fetches, they leave from the buffer for the old
//! words. Operations with a compare value have one request for each word. The machine of atomics does the rest
//! ([`weir_proto::offload::atomics`]).

use weir_link::Link;
use weir_link::memory::{OwnedMemory, UserMemory};
use weir_proto::offload::atomics::{
    AtomicsCommand, FetchCommand, MAX_ATOMIC_BYTES, MAX_ATOMICS, VectorCommand,
};
use weir_proto::offload::{Combination, OffloadCommand, VectorUpdate, WORD_BYTES, WordUpdate};
use weir_proto::{Peer, Request, Space};

use crate::{Engine, MAX_OPERATIONS, Operation, Post, PostError};

/// A change of a word of a peer's memory, which returns the old word.
#[derive(Debug)]
pub struct AtomicArguments {
    /// The peer that owns the memory.
    pub peer: Peer,
    /// Key of the region there. It must be readable and writable.
    pub key: u64,
    /// Offset of the word in the region. Unit: bytes.
    pub offset: u64,
    /// The change.
    pub update: WordUpdate,
    /// Receives the old word. At least as long as the word.
    pub result: UserMemory,
}

impl AtomicArguments {
    /// # Panics
    /// If the buffer is shorter than the word.
    pub(crate) fn check(&self) {
        let (have_bytes, word_bytes) = (self.result.bytes(), self.update.word_type.bytes());
        assert!(
            have_bytes >= u64::from(word_bytes),
            "a buffer of {have_bytes} bytes for a word of {word_bytes}"
        );
    }
}

/// A change of words of a peer's memory.
#[derive(Debug)]
pub struct AtomicVector {
    /// The peer that owns the memory.
    pub peer: Peer,
    /// Key of the region there. A change needs the right to write, and a fetch that to read.
    pub key: u64,
    /// Offset of the first word in the region. Unit: bytes.
    pub offset: u64,
    /// Operation, and type of a word.
    pub combination: Combination,
    /// Length of all words, at least one and at most [`MAX_ATOMIC_BYTES`]. Unit: bytes.
    pub bytes: u32,
    /// The operands, as long. A read needs none.
    pub operands: UserMemory,
    /// The compare values of operations that have some, as long.
    pub compare: UserMemory,
    /// Receives the old words, as long. The operands are copied there first. `None`: nobody wants the old words.
    pub result: Option<UserMemory>,
    /// The operands are the program's again on return.
    pub inject: bool,
}

impl AtomicVector {
    fn update_at(&self, offset: u64) -> WordUpdate {
        let Combination { operation, word_type } = self.combination;
        let at = |memory: &UserMemory| {
            if memory.bytes() == 0 { 0 } else { read_word(memory, offset, word_type.bytes()) }
        };
        let compare = if operation.compares() { at(&self.compare) } else { 0 };
        WordUpdate { operation, word_type, operand: at(&self.operands), compare }
    }
}

/// The word of `bytes` bytes at `offset`.
fn read_word(memory: &UserMemory, offset: u64, bytes: u32) -> u64 {
    let mut word = [0; WORD_BYTES as usize];
    memory.read(offset, &mut word[..bytes as usize]);
    u64::from_le_bytes(word)
}

/// Changes a word of `memory`: by an atomic instruction if it is aligned and in one piece. Returns the old one.
pub(crate) fn update_word(memory: &UserMemory, offset: u64, update: &WordUpdate) -> u64 {
    let bytes = update.word_type.bytes();
    memory.update_word(offset, bytes, |old| update.apply(old)).unwrap_or_else(|| {
        let old = read_word(memory, offset, bytes);
        memory.write(offset, &update.apply(old).to_le_bytes()[..bytes as usize]);
        old
    })
}

/// Changes each word of a vector in `region`. `old`: the memory for the old words, and the offset in it.
pub(crate) fn update_vector(
    region: &UserMemory,
    change: &VectorUpdate,
    operands: Option<&UserMemory>,
    old: Option<(&UserMemory, u64)>,
) {
    let Combination { operation, word_type } = change.combination;
    let bytes = word_type.bytes();
    for place in (0..u64::from(change.bytes)).step_by(bytes as usize) {
        let operand = operands.map_or(0, |operands| read_word(operands, place, bytes));
        let update = WordUpdate { operation, word_type, operand, compare: 0 };
        let word = update_word(region, change.offset + place, &update);
        if let Some((old, offset)) = old {
            old.write(offset + place, &word.to_le_bytes()[..bytes as usize]);
        }
    }
}

// Words are read as the lower bytes of a `u64`.
const _: () = assert!(cfg!(target_endian = "little"));

impl<L: Link> Engine<L> {
    /// Changes a word of a peer's memory, and returns the old one. Completes when the old word is in its buffer, or with
    /// [`weir_proto::Outcome::Refused`]: no such region, bounds or rights.
    ///
    /// # Errors
    /// [`PostError::Again`].
    ///
    /// # Panics
    /// If the buffer is shorter than the word.
    pub fn atomic(&mut self, post: Post, mut arguments: AtomicArguments) -> Result<(), PostError> {
        self.post_atomic(post, &mut arguments)
    }

    /// [`Engine::atomic`] that leaves the buffer where it is if it is refused.
    pub(crate) fn post_atomic(
        &mut self,
        post: Post,
        arguments: &mut AtomicArguments,
    ) -> Result<(), PostError> {
        arguments.check();
        let AtomicArguments { peer, key, offset, update, ref mut result } = *arguments;
        self.post_atomics(post, Operation::Atomic, result, |request| {
            AtomicsCommand::Fetch(FetchCommand { request, peer, key, offset, update, fetch: true })
        })
    }

    /// Changes words of a peer's memory, each as one step. Completes when they have changed, and the old ones are in their
    /// buffer. As [`Engine::atomic`], also with `Refused` for a vector that is too long, or has no such operation.
    ///
    /// # Errors
    /// [`PostError::Again`].
    ///
    /// # Panics
    /// If a buffer is shorter than the vector.
    pub fn atomic_vector(&mut self, post: Post, mut vector: AtomicVector) -> Result<(), PostError> {
        let AtomicVector { peer, key, offset, combination, bytes, .. } = vector;
        let word_bytes = combination.word_type.bytes();
        let fetch = vector.result.is_some();
        let operation = if fetch { Operation::Atomic } else { Operation::AtomicWrite };
        if bytes == word_bytes {
            let update = vector.update_at(0);
            let mut result = vector.result.unwrap_or(UserMemory::EMPTY);
            return self.post_atomics(post, operation, &mut result, |request| {
                AtomicsCommand::Fetch(FetchCommand { request, peer, key, offset, update, fetch })
            });
        }
        if combination.operation.compares() {
            let within = if bytes <= MAX_ATOMIC_BYTES { bytes } else { 0 }; // none: the machine refuses it
            let places = (0..u64::from(within)).step_by(word_bytes as usize);
            let updates = places.map(|place| vector.update_at(place)).collect();
            let mut result = vector.result.take().unwrap_or_else(|| OwnedMemory::new(bytes as usize).into());
            return self.post_atomics(post, operation, &mut result, |request| AtomicsCommand::Words {
                request,
                peer,
                key,
                offset,
                updates,
            });
        }
        let mut memory = match vector.result {
            // The old words replace the operands when these have left.
            Some(result) => {
                vector.operands.copy_to(0, vector.operands.bytes(), &result, 0);
                result
            }
            None if vector.inject => OwnedMemory::copy_of(&vector.operands).into(),
            None => vector.operands,
        };
        self.post_atomics(post, operation, &mut memory, |request| {
            let update = VectorUpdate { key, offset, bytes, combination };
            AtomicsCommand::Vector(VectorCommand { request, peer, update, fetch })
        })
    }

    fn post_atomics(
        &mut self,
        post: Post,
        operation: Operation,
        memory: &mut UserMemory,
        command: impl FnOnce(Request) -> AtomicsCommand,
    ) -> Result<(), PostError> {
        if self.io.operations.count() >= MAX_OPERATIONS as usize {
            return Err(PostError::Again { limit: MAX_OPERATIONS }); // before `begin` takes the buffer
        }
        let request = self.begin(post, operation, Space::Untagged, memory.take())?;
        self.post_offloaded(OffloadCommand::Atomics(command(request))).map_err(|_| {
            self.io.operations.give_back(request, memory);
            PostError::Again { limit: MAX_ATOMICS }
        })
    }
}
