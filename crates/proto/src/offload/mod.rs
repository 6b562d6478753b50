//! Offloaded operations, which are remote atomics and reductions. Machines handle their packets without the
//! application. [`Offload`] gives each event to the machine that it is for.
//!
//! Packets of kinds 32 to 63 belong to these machines (`wire/layout.rs` has the kinds). The endpoint passes them on
//! unread ([`crate::Driver::pass_on`]). A new machine needs a variant of [`Offloaded`], one of [`OffloadCommand`], and
//! a field of [`Offload`].

pub mod atomics;
#[cfg(feature = "explore")]
pub mod canonical;
pub mod reduce;
mod tree;
mod vector;
mod word;

use crate::endpoint::Refusal;
use crate::event::{BufferId, Peer};
use crate::machine::{Machine, MachineDriver, MachineEvent};
use crate::timers::MachineTimer;
use atomics::{AtomicPacket, Atomics, AtomicsCommand, MAX_ATOMICS};
use reduce::{MAX_GROUPS, MAX_REDUCTIONS, ReduceCommand, ReducePacket, Reductions};
pub use vector::{Combination, VectorUpdate, WORD_BYTES};
pub use word::{WordOperation, WordType, WordUpdate};

/// Bound: answers of all machines that can wait for credit to one peer.
pub const MAX_ANSWERS: u32 = MAX_ATOMICS + MAX_GROUPS as u32 * MAX_REDUCTIONS;

/// A packet of an offloaded machine. [`crate::Packet::number`] is the number of its operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Offloaded {
    /// Of the machine of remote atomics.
    Atomic(AtomicPacket),
    /// Of the machine of reductions.
    Reduce(ReducePacket),
}

impl Offloaded {
    /// Whether it answers an operation of its destination. The number of such operations is bounded.
    pub fn is_answer(&self) -> bool {
        match self {
            Offloaded::Atomic(packet) => packet.is_answer(),
            Offloaded::Reduce(packet) => packet.is_answer(),
        }
    }

    /// Whether its payload is a buffer that ends when the last packet has left ([`crate::Driver::answer_left`]).
    pub fn owns_payload(&self) -> bool {
        matches!(self, Offloaded::Atomic(AtomicPacket::VectorResult { .. }))
    }

    /// The same packet with the payload that begins at `offset`. Unit: bytes.
    pub(crate) fn at_offset(self, offset: u32) -> Offloaded {
        match self {
            Offloaded::Atomic(packet) => Offloaded::Atomic(packet.at_offset(offset)),
            Offloaded::Reduce(packet) => Offloaded::Reduce(packet.at_offset(offset)),
        }
    }
}

/// The operation that the program asks of an offloaded machine.
#[derive(Clone, Debug, PartialEq)]
pub enum OffloadCommand {
    /// Of the machine of remote atomics.
    Atomics(AtomicsCommand),
    /// Of the machine of reductions.
    Reduce(ReduceCommand),
}

/// The offloaded machines, and the demultiplexer: each event goes to the machine of its kind, and the loss of a
/// peer to all.
#[derive(Clone, Debug, Default)]
pub struct Offload {
    atomics: Atomics,
    reductions: Reductions,
}

impl Offload {
    /// The driver has ended the buffer of an answer ([`crate::Driver::answer_left`]).
    pub fn answer_left(&mut self, buffer: BufferId) {
        self.atomics.answer_left(buffer);
    }
}

impl Machine for Offload {
    type Command = OffloadCommand;
    type Packet = Offloaded;

    fn handle<D: MachineDriver>(
        &mut self,
        event: MachineEvent<OffloadCommand, Offloaded>,
        driver: &mut D,
    ) -> Result<(), Refusal> {
        let Offload { atomics, reductions } = self;
        match event {
            MachineEvent::Posted(OffloadCommand::Atomics(command)) => {
                atomics.handle(MachineEvent::Posted(command), driver)
            }
            MachineEvent::Posted(OffloadCommand::Reduce(command)) => {
                reductions.handle(MachineEvent::Posted(command), driver)
            }
            MachineEvent::Arrived { from, number, packet: Offloaded::Atomic(packet), payload_bytes } => {
                atomics.handle(MachineEvent::Arrived { from, number, packet, payload_bytes }, driver)
            }
            MachineEvent::Arrived { from, number, packet: Offloaded::Reduce(packet), payload_bytes } => {
                reductions.handle(MachineEvent::Arrived { from, number, packet, payload_bytes }, driver)
            }
            MachineEvent::TimerExpired(timer @ MachineTimer::Reduction { .. }) => {
                reductions.handle(MachineEvent::TimerExpired(timer), driver)
            }
            MachineEvent::Lost { peer, fault } => {
                atomics.handle(MachineEvent::Lost { peer, fault }, driver)?;
                reductions.handle(MachineEvent::Lost { peer, fault }, driver)
            }
        }
    }

    fn is_quiescent(&self) -> bool {
        self.atomics.is_quiescent() && self.reductions.is_quiescent()
    }

    fn depends_on(&self, mut visit: impl FnMut(Peer)) {
        self.atomics.depends_on(&mut visit);
        self.reductions.depends_on(visit);
    }
}
