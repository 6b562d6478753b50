//! Collective operations without a completion: whoever starts one gets a ticket, and asks by it whether the operation has
//! ended. They are for a user of the engine that is not the program, whose completions the program must not see.

use weir_link::Link;
use weir_proto::{Outcome, Peer};

use super::{CollectiveArguments, Hearer};
use crate::{Engine, PostError};

/// An operation of a group, or its join.
#[derive(Debug)]
#[must_use = "nobody else learns how the operation ends"]
pub struct Ticket(u64);

impl<L: Link> Engine<L> {
    fn next_ticket(&mut self) -> Ticket {
        self.io.collectives.last_ticket += 1;
        Ticket(self.io.collectives.last_ticket)
    }

    /// As [`Engine::join_collective`], for a group whose number the members have agreed on. They use a number once.
    ///
    /// # Errors
    /// [`PostError::Again`]: there are as many groups as allowed, or one with this number.
    pub fn join_quietly(&mut self, group: u32, members: Vec<Peer>, rank: u32) -> Result<Ticket, PostError> {
        let ticket = self.next_ticket();
        self.join_numbered(Hearer::Ticket(ticket.0), group, members, rank)?;
        Ok(ticket)
    }

    /// As [`Engine::collective`].
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn collective_quietly(&mut self, arguments: CollectiveArguments) -> Result<Ticket, PostError> {
        let ticket = self.next_ticket();
        self.start_collective(Hearer::Ticket(ticket.0), arguments)?;
        Ok(ticket)
    }

    /// How an operation has ended. `None`: it has not. Says it once.
    pub fn ended_quietly(&mut self, ticket: &Ticket) -> Option<Outcome> {
        self.io.collectives.outcomes.remove(&ticket.0)
    }
}
