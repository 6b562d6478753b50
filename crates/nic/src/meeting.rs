//! What barriers and all-reduces in the kernel have in common: members send one packet each to the host of the first member,
//! whose programs count them in a word, and send one packet to each when all have come.

use crate::asker::{Asker, Patience, Request};
use crate::format::{MAX_MEMBERS, Packet, status};
use crate::{Domain, NicError};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

/// A member's view of a place where members meet, round by round.
#[derive(Debug)]
pub(crate) struct Meeting {
    asker: Asker,
    patience: Patience,
    member: u32,
    size: u32,
    place: u64,
    round: u32,
    /// Length of our vector in this round.
    words: usize,
    under_way: Option<UnderWay>,
}

/// A round that this member has begun.
#[derive(Debug)]
struct UnderWay {
    request: Request,
    begun: Instant,
    /// A bit for each member that the host of the meeting had heard of when it last told us. Our own at first.
    there: u32,
}

impl Meeting {
    /// As [`crate::Barrier::new`].
    ///
    /// # Errors
    /// The same.
    pub fn new(
        domain: &Domain,
        hosts: &[SocketAddrV4],
        member: u32,
        place: u64,
        patience: Patience,
    ) -> Result<Meeting, NicError> {
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
        Ok(Meeting { asker, patience, member, size, place, round: 0, words: 0, under_way: None })
    }

    /// Begins a round with a packet of this kind and operation, and a vector. [`Meeting::test`] or [`Meeting::wait`] ends it.
    ///
    /// # Errors
    /// [`NicError::Refused`], [`NicError::System`].
    ///
    /// # Panics
    /// If a round is under way.
    pub fn start(&mut self, kind: u8, operation: u8, vector: Vec<u64>) -> Result<(), NicError> {
        assert!(self.under_way.is_none(), "a barrier or all-reduce has one round under way");
        self.words = vector.len();
        let packet = Packet {
            kind,
            operation,
            status: 0,
            asker: 0,
            number: 0,
            place: self.place,
            operand: u64::from(self.size) << 32 | u64::from(self.member),
            compare: self.round.into(),
        };
        let request = self.asker.send(packet, vector)?;
        self.under_way = Some(UnderWay { request, begun: Instant::now(), there: 1 << self.member });
        Ok(())
    }

    /// The vector of the result, if the round has ended. Sends again what may be lost.
    ///
    /// # Errors
    /// As [`Meeting::wait`].
    pub fn test(&mut self) -> Result<Option<Vec<u64>>, NicError> {
        let Some(mut under_way) = self.under_way.take() else { return Ok(Some(Vec::new())) };
        while let Some(reply) = self.asker.look(&under_way.request)? {
            if let Some(result) = self.heed(&mut under_way, reply)? {
                return Ok(Some(result));
            }
        }
        self.asker.repeat(&mut under_way.request, Instant::now())?;
        self.check(&under_way)?;
        self.under_way = Some(under_way);
        Ok(None)
    }

    /// Waits until all members have begun the round. Returns the vector of the result.
    ///
    /// # Errors
    /// As [`crate::Barrier::wait`] and [`crate::AllReduce::wait`]. They end the round for this member.
    pub fn wait(&mut self) -> Result<Vec<u64>, NicError> {
        let Some(mut under_way) = self.under_way.take() else { return Ok(Vec::new()) };
        loop {
            let reply = self.asker.wait(&mut under_way.request, self.patience)?;
            if let Some(result) = self.heed(&mut under_way, reply)? {
                return Ok(result);
            }
            self.check(&under_way)?;
        }
    }

    /// The result, if the round has ended with this reply.
    fn heed(
        &mut self,
        under_way: &mut UnderWay,
        (reply, vector): (Packet, Vec<u64>),
    ) -> Result<Option<Vec<u64>>, NicError> {
        let (host, place) = (self.asker.host(), self.place);
        match reply.status {
            // A copy of the release before can have the number of this request, but not its round.
            _ if reply.compare != u64::from(self.round) => Ok(None),
            status::DONE if vector.len() == self.words => {
                self.round = self.round.wrapping_add(1);
                Ok(Some(vector))
            }
            status::DONE | status::MEMBERS_DIFFER => Err(NicError::Differ { place }),
            status::MEMBERS_MISSING => {
                under_way.there |= reply.operand as u32;
                Ok(None)
            }
            status::NO_SUCH_WORD => Err(NicError::NoSuchWord { host, place, words: reply.operand }),
            status::NO_SUCH_OPERATION => Err(NicError::Argument {
                what: "operation",
                value: reply.operation.to_string(),
                allowed: format!("those that the version of weir on {host} has"),
            }),
            _ => Err(NicError::TableFull { host, bound: reply.operand }),
        }
    }

    /// # Errors
    /// [`NicError::Missing`] if our patience is at its end, or [`NicError::Differ`] if all have come.
    fn check(&self, under_way: &UnderWay) -> Result<(), NicError> {
        let patience = self.patience.silence;
        if under_way.begun.elapsed() < patience {
            return Ok(());
        }
        let missing: Vec<u32> = (0..self.size).filter(|member| under_way.there & 1 << member == 0).collect();
        match missing.is_empty() {
            true => Err(NicError::Differ { place: self.place }),
            false => Err(NicError::Missing { missing, patience }),
        }
    }
}
