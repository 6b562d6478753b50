//! A barrier in the kernel: members send one packet each to the host of the first member, whose programs count them in a
//! word, and send one packet to each when all have come.

use crate::asker::{Asker, Patience, Request};
use crate::format::{MAX_MEMBERS, Packet, kind, status};
use crate::{Domain, NicError};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

/// A member's view of a barrier.
#[derive(Debug)]
pub struct Barrier {
    asker: Asker,
    patience: Patience,
    member: u32,
    size: u32,
    place: u64,
    round: u32,
    under_way: Option<UnderWay>,
}

/// A round that this member has begun.
#[derive(Debug)]
struct UnderWay {
    request: Request,
    begun: Instant,
    /// A bit for each member that the host of the barrier had heard of when it last told us. Our own at first.
    there: u32,
}

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
        let wrong = |what, value: String, allowed: String| NicError::Argument { what, value, allowed };
        let size = hosts.len() as u32;
        if !(1..=MAX_MEMBERS).contains(&size) {
            let allowed = format!("1 to {MAX_MEMBERS}");
            return Err(wrong("number of members", hosts.len().to_string(), allowed));
        }
        let own = hosts.get(member as usize);
        let own = own.ok_or_else(|| wrong("member", member.to_string(), format!("0 to {}", size - 1)))?;
        let (first, other) = (hosts[0], hosts.iter().find(|host| *host != &hosts[0]));
        let other = *other.ok_or_else(|| {
            wrong("hosts of the members", first.ip().to_string(), String::from("two different ones or more"))
        })?;
        let relay: Option<Ipv4Addr> = (*own == first).then_some(*other.ip());
        let asker = Asker::new(domain, first, relay)?;
        Ok(Barrier { asker, patience, member, size, place, round: 0, under_way: None })
    }

    /// Begins a round. Returns at once; [`Barrier::test`] or [`Barrier::wait`] ends it.
    ///
    /// # Errors
    /// [`NicError::Refused`], [`NicError::System`].
    ///
    /// # Panics
    /// If a round is under way: that is a bug of the caller.
    pub fn start(&mut self) -> Result<(), NicError> {
        assert!(self.under_way.is_none(), "a barrier has one round under way");
        let request = self.asker.send(Packet {
            kind: kind::ARRIVE,
            operation: 0,
            status: 0,
            asker: 0,
            number: 0,
            place: self.place,
            operand: u64::from(self.size) << 32 | u64::from(self.member),
            compare: self.round.into(),
        })?;
        self.under_way = Some(UnderWay { request, begun: Instant::now(), there: 1 << self.member });
        Ok(())
    }

    /// Whether the round has ended. Sends again what may be lost.
    ///
    /// # Errors
    /// As [`Barrier::wait`].
    pub fn test(&mut self) -> Result<bool, NicError> {
        let Some(mut under_way) = self.under_way.take() else { return Ok(true) };
        while let Some(reply) = self.asker.look(&under_way.request)? {
            if self.heed(&mut under_way, &reply)? {
                return Ok(true);
            }
        }
        self.asker.repeat(&mut under_way.request, Instant::now())?;
        self.check(&under_way)?;
        self.under_way = Some(under_way);
        Ok(false)
    }

    /// Waits until all members have begun the round.
    ///
    /// # Errors
    /// [`NicError::Missing`] names the members that have not come in our patience; it and all other errors end the round
    /// for this member, and the barrier is of no use any more: [`NicError::Refused`], [`NicError::NoAnswer`],
    /// [`NicError::NoSuchWord`], [`NicError::TableFull`], [`NicError::System`].
    pub fn wait(&mut self) -> Result<(), NicError> {
        let Some(mut under_way) = self.under_way.take() else { return Ok(()) };
        loop {
            let reply = self.asker.wait(&mut under_way.request, self.patience)?;
            if self.heed(&mut under_way, &reply)? {
                return Ok(());
            }
            self.check(&under_way)?;
        }
    }

    /// [`Barrier::start`] and [`Barrier::wait`].
    ///
    /// # Errors
    /// As [`Barrier::wait`].
    pub fn enter(&mut self) -> Result<(), NicError> {
        self.start()?;
        self.wait()
    }

    /// Whether the round has ended with this reply.
    fn heed(&mut self, under_way: &mut UnderWay, reply: &Packet) -> Result<bool, NicError> {
        let host = self.asker.host();
        match reply.status {
            // A copy of the release before can have the number of this request, but not its round.
            _ if reply.compare != u64::from(self.round) => Ok(false),
            status::DONE => {
                self.round = self.round.wrapping_add(1);
                Ok(true)
            }
            status::MEMBERS_MISSING => {
                under_way.there |= reply.operand as u32;
                Ok(false)
            }
            status::NO_SUCH_WORD => {
                Err(NicError::NoSuchWord { host, place: self.place, words: reply.operand })
            }
            _ => Err(NicError::TableFull { host, bound: reply.operand }),
        }
    }

    /// # Errors
    /// [`NicError::Missing`] if our patience is at its end.
    fn check(&self, under_way: &UnderWay) -> Result<(), NicError> {
        let patience = self.patience.silence;
        if under_way.begun.elapsed() < patience {
            return Ok(());
        }
        let missing = (0..self.size).filter(|member| under_way.there & 1 << member == 0).collect();
        Err(NicError::Missing { missing, patience })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
