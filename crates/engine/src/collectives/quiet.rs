//! Collective operations without a completion: whoever starts one gets a ticket, and asks by it whether the operation has
//! ended. They are for a user of the engine that is not the program, whose completions the program must not see.
//!
//! The engine has the memory of such an operation until its last part has ended. A group that fails may leave parts that are on
//! their way, when its user knows nothing of the operation any more.

use weir_link::Link;
use weir_link::memory::OwnedMemory;
use weir_proto::{Outcome, Peer};

use super::{CollectiveOperation, CollectiveShape, Hearer, Kind};
use crate::{Engine, Operation, PostError};

/// An operation of a group, or its join.
#[derive(Debug)]
#[must_use = "nobody else learns how the operation ends"]
pub struct Ticket(u64);

/// How an operation has ended.
#[derive(Debug)]
pub struct QuietEnd {
    /// As the completion would say.
    pub outcome: Outcome,
    /// The result, as long as [`CollectiveShape::result_bytes`] says; of a broadcast: its buffer. Of a join: nothing.
    pub result: Vec<u8>,
}

/// Memory of an operation that belongs to nobody else.
#[derive(Debug)]
pub(super) struct QuietMemory {
    data: OwnedMemory,
    result: OwnedMemory,
}

impl QuietMemory {
    /// What whoever has the ticket gets.
    pub fn result(&self, operation: CollectiveOperation) -> Vec<u8> {
        let memory = match operation {
            CollectiveOperation::Broadcast { .. } => &self.data,
            _ => &self.result,
        };
        let mut bytes = vec![0; memory.view().bytes() as usize];
        memory.view().read(0, &mut bytes);
        bytes
    }
}

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

    /// As [`Engine::collective`], with a copy of `data`. Bytes that it lacks are zero.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn collective_quietly(
        &mut self,
        group: u32,
        operation: CollectiveOperation,
        block_bytes: u64,
        data: &[u8],
    ) -> Result<Ticket, PostError> {
        self.check_collectives()?;
        let ticket = self.next_ticket();
        let hearer = Hearer::Ticket(ticket.0);
        let Some(shape) = self.shape_in(group, operation, block_bytes) else {
            self.io.report_collective(hearer, Operation::Collective, Outcome::Refused, Vec::new());
            return Ok(ticket);
        };
        let of = |bytes: u64| OwnedMemory::new(bytes as usize);
        let memory = QuietMemory { data: of(shape.data_bytes()), result: of(shape.result_bytes()) };
        let views = [memory.data.view(), memory.result.view()];
        views[0].write(0, &data[..data.len().min(shape.data_bytes() as usize)]);
        self.begin_collective(hearer, (Kind::Operation, false), group, shape, views, Some(memory));
        Ok(ticket)
    }

    /// How an operation has ended. `None`: it has not. Says it once, and never after [`Engine::abandon_collective`]. What the
    /// group has sent has left, as far as waiting for it helps.
    pub fn ended_quietly(&mut self, ticket: &Ticket) -> Option<QuietEnd> {
        let end = self.io.collectives.ends.remove(&ticket.0)?;
        self.let_groups_leave();
        Some(end)
    }

    /// The shape of an operation of ours. `None`: the group is not open, or the operation is not valid.
    pub(super) fn shape_in(
        &self,
        group: u32,
        operation: CollectiveOperation,
        block_bytes: u64,
    ) -> Option<CollectiveShape> {
        let (rank, members) = self.collective_group(group)?;
        let shape = CollectiveShape { operation, block_bytes, rank, members };
        shape.is_valid().then_some(shape)
    }
}
