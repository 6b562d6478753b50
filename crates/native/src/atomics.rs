//! Remote atomics: changes of one word of registered memory of any rank, the own one too, as one step for all ranks.
//!
//! The engine of the rank that has the word changes it by an atomic instruction, so that program may use the word by
//! atomic instructions meanwhile. It does so inside its calls, or at any time with automatic progress.

use std::sync::Arc;

use weir_engine::{AtomicArguments, AtomicVector};
use weir_link::memory::{OwnedMemory, UserMemory};
use weir_proto::offload::{Combination, WordOperation, WordType, WordUpdate};

use crate::elements::Element;
use crate::remote::elements;
use crate::state::{About, Buffers, Inner};
use crate::{Endpoint, Error, Place, Request};

impl Inner {
    /// Starts a change of a word. The old word goes to `buffers.result`. `fetch`: somebody wants it.
    ///
    /// # Errors
    /// A wrong rank, offset or operation, or [`Error::Again`].
    pub fn start_atomic(
        &mut self,
        place: Place,
        update: WordUpdate,
        fetch: bool,
        buffers: Buffers,
    ) -> Result<u64, Error> {
        let peer = self.peer(place.rank)?;
        let Place { rank, key, offset } = place;
        let WordUpdate { operation, word_type, .. } = update;
        let bytes = word_type.bytes();
        if !operation.has_type(word_type) {
            let value = format!("{operation:?} on {word_type:?}");
            return Err(Error::argument(
                "operation",
                value,
                "bitwise operations on integers, others on all types",
            ));
        }
        if !offset.is_multiple_of(bytes.into()) {
            return Err(Error::argument("offset", offset, format!("multiples of {bytes} for {word_type:?}")));
        }
        let about = About::Memory { rank, key, offset, bytes: bytes.into() };
        self.begin(about, buffers, |engine, post, _, result| {
            if fetch {
                return engine.atomic(post, AtomicArguments { peer, key, offset, update, result });
            }
            let word = |bits: u64| -> UserMemory {
                let memory = OwnedMemory::new(bytes as usize);
                memory.view().write(0, &bits.to_le_bytes()[..bytes as usize]);
                memory.into()
            };
            let (operands, compare) = (word(update.operand), word(update.compare));
            let combination = Combination { operation, word_type };
            let (result, inject) = (None, true);
            let vector =
                AtomicVector { peer, key, offset, combination, bytes, operands, compare, result, inject };
            engine.atomic_vector(post, vector)
        })
    }
}

/// The change of a word.
fn update<W: Element>(operation: WordOperation, operand: W, compare: Option<W>) -> WordUpdate {
    let compare = compare.map_or(0, Element::bits);
    WordUpdate { operation, word_type: W::TYPE, operand: operand.bits(), compare }
}

fn memory_for(word_type: WordType) -> Buffers {
    Buffers::owned(OwnedMemory::new(0), OwnedMemory::new(word_type.bytes() as usize))
}

fn old_word<W: Element>(memory: Option<OwnedMemory>) -> W {
    elements(memory)[0]
}

impl Endpoint {
    /// Starts a change of a word: `operation` with `operand`, and with `compare` if it compares. Ends with the old
    /// word.
    ///
    /// # Errors
    /// A rank, offset or operation that is not allowed, or [`Error::Again`].
    pub fn start_atomic<W: Element>(
        &self,
        place: Place,
        operation: WordOperation,
        operand: W,
        compare: Option<W>,
    ) -> Result<Request<W>, Error> {
        let update = update(operation, operand, compare);
        let start = |inner: &mut Inner| inner.start_atomic(place, update, true, memory_for(W::TYPE));
        let number = self.shared().with(start)?;
        Ok(Request::new(Arc::clone(&self.owner), number, old_word))
    }

    /// [`Endpoint::start_atomic`] that does not fetch the old word: it takes less when many are under way.
    ///
    /// # Errors
    /// As [`Endpoint::start_atomic`].
    pub fn start_atomic_without_fetch<W: Element>(
        &self,
        place: Place,
        operation: WordOperation,
        operand: W,
    ) -> Result<Request<()>, Error> {
        let update = update(operation, operand, None);
        let start = |inner: &mut Inner| inner.start_atomic(place, update, false, Buffers::EMPTY);
        let number = self.shared().with(start)?;
        Ok(Request::new(Arc::clone(&self.owner), number, |_| ()))
    }

    /// [`Endpoint::start_atomic`], and waits. Returns the old word.
    ///
    /// # Errors
    /// A rank, offset or operation that is not allowed; [`Error::Lost`], [`Error::Refused`].
    pub fn atomic<W: Element>(
        &self,
        place: Place,
        operation: WordOperation,
        operand: W,
        compare: Option<W>,
    ) -> Result<W, Error> {
        let update = update(operation, operand, compare);
        let number = self
            .shared()
            .start_blocking(|inner| inner.start_atomic(place, update, true, memory_for(W::TYPE)))?;
        self.shared().wait(number)?.map(old_word)
    }

    /// Adds to a word. Integers wrap. Returns the old word.
    ///
    /// # Errors
    /// As [`Endpoint::atomic`].
    pub fn fetch_add<W: Element>(&self, place: Place, operand: W) -> Result<W, Error> {
        self.atomic(place, WordOperation::Sum, operand, None)
    }

    /// Replaces a word. Returns the old one.
    ///
    /// # Errors
    /// As [`Endpoint::atomic`].
    pub fn swap<W: Element>(&self, place: Place, new: W) -> Result<W, Error> {
        self.atomic(place, WordOperation::Write, new, None)
    }

    /// Replaces a word if it is `expected`. Returns the old word: equal to `expected` if it was replaced.
    ///
    /// # Errors
    /// As [`Endpoint::atomic`].
    pub fn compare_swap<W: Element>(&self, place: Place, expected: W, new: W) -> Result<W, Error> {
        self.atomic(place, WordOperation::CompareSwap, new, Some(expected))
    }

    /// Reads a word.
    ///
    /// # Errors
    /// As [`Endpoint::atomic`].
    pub fn load<W: Element>(&self, place: Place) -> Result<W, Error> {
        self.atomic(place, WordOperation::Read, W::new_zeroed(), None)
    }

    /// Writes a word. When this returns, it is written.
    ///
    /// # Errors
    /// As [`Endpoint::atomic`].
    pub fn store<W: Element>(&self, place: Place, word: W) -> Result<(), Error> {
        self.swap(place, word).map(|_| ())
    }
}
