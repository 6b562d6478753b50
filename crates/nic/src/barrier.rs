//! A barrier in the kernel.

use crate::asker::Patience;
use crate::format::kind;
use crate::meeting::Meeting;
use crate::{Domain, NicError};
use std::net::SocketAddrV4;

/// A member's view of a barrier.
#[derive(Debug)]
pub struct Barrier(Meeting);

impl Barrier {
    /// The barrier of members on these hosts, in the same order at all. `member`: our number. `place`: a word of the first
    /// host, which nobody uses for anything else and which was 0 before the first round.
    ///
    /// Frames reach the programs of a host only from outside. So a member on the first host uses the first other host of
    /// the list, which sends its packets back.
    ///
    /// # Errors
    /// [`NicError::Argument`] for a number of members that is not allowed, a wrong member, or members that are all on one
    /// host; [`NicError::System`].
    pub fn new(
        domain: &Domain,
        hosts: &[SocketAddrV4],
        member: u32,
        place: u64,
        patience: Patience,
    ) -> Result<Barrier, NicError> {
        Meeting::new(domain, hosts, member, place, patience).map(Barrier)
    }

    /// Begins a round. Returns at once; [`Barrier::test`] or [`Barrier::wait`] ends it.
    ///
    /// # Errors
    /// [`NicError::Refused`], [`NicError::System`].
    ///
    /// # Panics
    /// If a round is under way: that is a bug of the caller.
    pub fn start(&mut self) -> Result<(), NicError> {
        self.0.start(kind::ARRIVE, 0, Vec::new())
    }

    /// Whether the round has ended. Sends again what may be lost.
    ///
    /// # Errors
    /// As [`Barrier::wait`].
    pub fn test(&mut self) -> Result<bool, NicError> {
        self.0.test().map(|result| result.is_some())
    }

    /// Waits until all members have begun the round.
    ///
    /// # Errors
    /// [`NicError::Missing`] names the members that have not come in our patience; it and all other errors end the round
    /// for this member, and the barrier is of no use any more: [`NicError::Refused`], [`NicError::NoAnswer`],
    /// [`NicError::NoSuchWord`], [`NicError::TableFull`], [`NicError::System`].
    pub fn wait(&mut self) -> Result<(), NicError> {
        self.0.wait().map(|_| ())
    }

    /// [`Barrier::start`] and [`Barrier::wait`].
    ///
    /// # Errors
    /// As [`Barrier::wait`].
    pub fn enter(&mut self) -> Result<(), NicError> {
        self.start()?;
        self.wait()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn wrong_members_are_refused_with_what_is_allowed() {
        let host = |last| SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, last), 9);
        let refusal = |hosts: &[SocketAddrV4], member| {
            let domain = Domain::of(&[1; 16]);
            Barrier::new(&domain, hosts, member, 0, Patience::default()).unwrap_err().to_string()
        };
        assert_eq!(refusal(&[], 0), "number of members 0: allowed are 1 to 32");
        assert_eq!(refusal(&[host(1); 33], 0), "number of members 33: allowed are 1 to 32");
        assert_eq!(refusal(&[host(1), host(2)], 2), "member 2: allowed are 0 to 1");
        let one = refusal(&[host(1), host(1)], 0);
        assert_eq!(one, "hosts of the members 127.0.0.1: allowed are two different ones or more");
    }
}
