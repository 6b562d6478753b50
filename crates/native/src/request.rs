//! An operation under way, in Rust: started, tested, waited for.

use std::sync::Arc;

use weir_link::memory::OwnedMemory;

use crate::Error;
use crate::state::{Ended, Owner};

/// An operation under way, which ends with a value of type `T`. A dropped request ends by itself: collective operations
/// must not be taken back, since the other members wait for them.
#[must_use = "the result, or the error, comes from `wait`"]
pub struct Request<T> {
    owner: Arc<Owner>,
    /// 0: it has been waited for.
    number: u64,
    /// The end, once a test has found it.
    ended: Option<Ended>,
    convert: fn(Option<OwnedMemory>) -> T,
}

impl<T> Request<T> {
    pub(crate) fn new(owner: Arc<Owner>, number: u64, convert: fn(Option<OwnedMemory>) -> T) -> Request<T> {
        Request { owner, number, ended: None, convert }
    }

    /// Makes progress. Returns whether the operation has ended, so that [`Request::wait`] returns at once.
    ///
    /// # Errors
    /// The endpoint is closed.
    pub fn test(&mut self) -> Result<bool, Error> {
        if self.ended.is_none() {
            self.ended = self.owner.0.test(self.number)?;
        }
        Ok(self.ended.is_some())
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// [`Error::Lost`], [`Error::Refused`]; the endpoint is closed.
    pub fn wait(mut self) -> Result<T, Error> {
        let ended = match self.ended.take() {
            Some(ended) => ended,
            None => self.owner.0.wait(self.number)?,
        };
        self.number = 0;
        ended.map(self.convert)
    }
}

impl<T> Drop for Request<T> {
    fn drop(&mut self) {
        if self.number != 0 && self.ended.is_none() {
            self.owner.0.abandon(self.number);
        }
    }
}
