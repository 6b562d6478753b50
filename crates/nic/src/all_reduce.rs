//! An all-reduce in the kernel, of vectors that fit one frame. The programs of the first member's host keep the vector of each
//! member, and combine them in the order of members when the last one has come, from the left. So the bits are always the same.
//!
//! Floats are combined in integer arithmetic, with the bits that a processor gives. A sum or product that is not a number
//! (NaN) is always the same one; as a minimum or maximum, a number wins against what is none.

use crate::asker::Patience;
use crate::format::{Combination, Element, MAX_VECTOR_WORDS, kind};
use crate::meeting::Meeting;
use crate::{Domain, NicError};
use std::net::SocketAddrV4;

/// A member's view of an all-reduce.
#[derive(Debug)]
pub struct AllReduce(Meeting);

impl AllReduce {
    /// As [`crate::Barrier::new`]. A place serves barriers or all-reduces, not both.
    ///
    /// # Errors
    /// The same.
    pub fn new(
        domain: &Domain,
        hosts: &[SocketAddrV4],
        member: u32,
        place: u64,
        patience: Patience,
    ) -> Result<AllReduce, NicError> {
        Meeting::new(domain, hosts, member, place, patience).map(AllReduce)
    }

    /// Begins a round. Returns at once; [`AllReduce::test`] or [`AllReduce::wait`] ends it. `vector`: see [`Element`].
    ///
    /// # Errors
    /// [`NicError::Argument`] for a vector that is empty or does not fit a frame, and for a bitwise combination of floats;
    /// [`NicError::Refused`], [`NicError::System`].
    ///
    /// # Panics
    /// If a round is under way: that is a bug of the caller.
    pub fn start(
        &mut self,
        combination: Combination,
        element: Element,
        vector: &[u64],
    ) -> Result<(), NicError> {
        if !element.has(combination) {
            return Err(NicError::Argument {
                what: "combination of floats",
                value: format!("{combination:?}"),
                allowed: String::from("Sum, Min, Max and Prod"),
            });
        }
        if !(1..=MAX_VECTOR_WORDS).contains(&vector.len()) {
            return Err(NicError::Argument {
                what: "words of a vector",
                value: vector.len().to_string(),
                allowed: format!("1 to {MAX_VECTOR_WORDS}"),
            });
        }
        self.0.start(kind::REDUCE, combination as u8 | element as u8, vector.to_vec())
    }

    /// The result, if the round has ended. Sends again what may be lost.
    ///
    /// # Errors
    /// As [`AllReduce::wait`].
    pub fn test(&mut self) -> Result<Option<Vec<u64>>, NicError> {
        self.0.test()
    }

    /// Waits until all members have begun the round. Returns the result.
    ///
    /// # Errors
    /// As [`crate::Barrier::wait`], and [`NicError::Differ`] if members have different lengths or operations: one of them
    /// learns it at once, the others when their patience is at its end.
    pub fn wait(&mut self) -> Result<Vec<u64>, NicError> {
        self.0.wait()
    }

    /// [`AllReduce::start`] and [`AllReduce::wait`].
    ///
    /// # Errors
    /// As both.
    pub fn perform(
        &mut self,
        combination: Combination,
        element: Element,
        vector: &[u64],
    ) -> Result<Vec<u64>, NicError> {
        self.start(combination, element, vector)?;
        self.wait()
    }
}
