//! Offloaded operations, which the target answers without its application. [`Offload`] gives each event to the
//! machine that it is for.
//!
//! Packets of kinds 32 to 63 belong to these machines (`wire/layout.rs` has the kinds). The endpoint passes them on unread
//! ([`crate::Driver::pass_on`]). A new machine needs a variant of [`Offloaded`], one of [`OffloadCommand`], and a field of
//! [`Offload`].

pub mod atomics;
mod word;

use crate::endpoint::Refusal;
use crate::event::Peer;
use crate::machine::{Machine, MachineDriver, MachineEvent};
use atomics::{AtomicPacket, Atomics, AtomicsCommand};
pub use word::{WordOperation, WordType, WordUpdate};

/// A packet of an offloaded machine. [`crate::Packet::number`] is the number of its operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Offloaded {
    /// Of the machine of remote atomics.
    Atomic(AtomicPacket),
}

impl Offloaded {
    /// Whether it answers an operation of its destination. The number of such operations is bounded.
    pub fn is_answer(&self) -> bool {
        match self {
            Offloaded::Atomic(packet) => packet.is_answer(),
        }
    }
}

/// The operation that the program asks of an offloaded machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OffloadCommand {
    /// Of the machine of remote atomics.
    Atomics(AtomicsCommand),
}

/// The offloaded machines, and the demultiplexer: each event goes to the machine of its kind, and the loss of a
/// peer to all.
#[derive(Clone, Debug, Default)]
pub struct Offload {
    atomics: Atomics,
}

impl Machine for Offload {
    type Command = OffloadCommand;
    type Packet = Offloaded;

    fn handle<D: MachineDriver>(
        &mut self,
        event: MachineEvent<OffloadCommand, Offloaded>,
        driver: &mut D,
    ) -> Result<(), Refusal> {
        match event {
            MachineEvent::Posted(OffloadCommand::Atomics(command)) => {
                self.atomics.handle(MachineEvent::Posted(command), driver)
            }
            MachineEvent::Arrived { from, number, packet: Offloaded::Atomic(packet) } => {
                self.atomics.handle(MachineEvent::Arrived { from, number, packet }, driver)
            }
            MachineEvent::Lost { peer, fault } => {
                self.atomics.handle(MachineEvent::Lost { peer, fault }, driver)
            }
        }
    }

    fn is_quiescent(&self) -> bool {
        self.atomics.is_quiescent()
    }

    fn depends_on(&self, visit: impl FnMut(Peer)) {
        self.atomics.depends_on(visit);
    }
}
