//! Words of another host, changed by the kernel there. The process that owns them does nothing for it.

use crate::asker::{Asker, Patience};
use crate::format::{Operation, Packet, kind, status};
use crate::{Domain, NicError};
use std::net::SocketAddrV4;

/// The words of another host. Needs no attached interface here, and no rights. With one, [`crate::Membership::remote`] makes
/// a faster one.
///
/// One request is under way at a time. A value for each thread allows more.
#[derive(Debug)]
pub struct Remote {
    asker: Asker,
    patience: Patience,
}

impl Remote {
    /// The words of the host at `at` ([`crate::Membership::address`] there).
    ///
    /// # Errors
    /// [`NicError::System`].
    pub fn new(domain: &Domain, at: SocketAddrV4, patience: Patience) -> Result<Remote, NicError> {
        Ok(Remote::of(Asker::new(domain, at, None)?, patience))
    }

    /// Of this asker.
    pub(crate) fn of(asker: Asker, patience: Patience) -> Remote {
        Remote { asker, patience }
    }

    /// Performs an operation once, however often packets are lost or doubled. Returns the old word.
    ///
    /// # Errors
    /// [`NicError::Refused`], [`NicError::NoAnswer`], [`NicError::NoSuchWord`], [`NicError::TableFull`],
    /// [`NicError::System`].
    pub fn perform(
        &mut self,
        operation: Operation,
        place: u64,
        operand: u64,
        compare: u64,
    ) -> Result<u64, NicError> {
        let operation = operation as u8;
        let packet =
            Packet { kind: kind::WORD, operation, status: 0, asker: 0, number: 0, place, operand, compare };
        let mut request = self.asker.send(packet, Vec::new())?;
        let (reply, _) = self.asker.wait(&mut request, self.patience)?;
        let (host, result) = (self.asker.host(), reply.operand);
        match reply.status {
            status::DONE => Ok(result),
            status::NO_SUCH_WORD => Err(NicError::NoSuchWord { host, place, words: result }),
            status::TABLE_FULL => Err(NicError::TableFull { host, bound: result }),
            _ => Err(NicError::Argument {
                what: "operation",
                value: operation.to_string(),
                allowed: format!("those that the version of weir on {host} has"),
            }),
        }
    }

    /// Adds to a word, and wraps. Returns the old word.
    ///
    /// # Errors
    /// As [`Remote::perform`].
    pub fn fetch_add(&mut self, place: u64, operand: u64) -> Result<u64, NicError> {
        self.perform(Operation::Add, place, operand, 0)
    }

    /// Replaces a word. Returns the old one.
    ///
    /// # Errors
    /// As [`Remote::perform`].
    pub fn swap(&mut self, place: u64, new: u64) -> Result<u64, NicError> {
        self.perform(Operation::Swap, place, new, 0)
    }

    /// Replaces a word if it is `expected`. Returns the old one: equal to `expected` if it was replaced.
    ///
    /// # Errors
    /// As [`Remote::perform`].
    pub fn compare_swap(&mut self, place: u64, expected: u64, new: u64) -> Result<u64, NicError> {
        self.perform(Operation::CompareSwap, place, new, expected)
    }

    /// Reads a word.
    ///
    /// # Errors
    /// As [`Remote::perform`].
    pub fn load(&mut self, place: u64) -> Result<u64, NicError> {
        self.perform(Operation::Read, place, 0, 0)
    }
}
