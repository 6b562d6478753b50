//! Offloaded operations, which are remote atomics and operations of groups. Machines handle their packets without
//! the application. [`Offload`] gives each event to the machine that it is for.
//!
//! Packets of kinds 32 to 63 belong to these machines (`wire/layout.rs` has the kinds). The endpoint passes them on
//! unread ([`crate::Driver::pass_on`]). A new machine needs a variant of [`Offloaded`], one of [`OffloadCommand`], and
//! a field of [`Offload`].

pub mod atomics;
#[cfg(feature = "explore")]
pub mod canonical;
pub mod group;
pub mod lock;
pub mod multi_send;
pub mod reduce;
mod vector;
mod word;

use crate::endpoint::Refusal;
use crate::event::{BufferId, Peer};
use crate::machine::{Machine, MachineDriver, MachineEvent};
use crate::timers::MachineTimer;
use atomics::{AtomicPacket, Atomics, AtomicsCommand, MAX_ATOMICS};
use group::{GroupCommand, GroupPacket, Groups, MAX_GROUPS, MAX_ROUNDS};
pub use vector::{Combination, VectorUpdate, WORD_BYTES};
pub use word::{WordOperation, WordType, WordUpdate};

/// Bound: answers of all machines that can wait for credit to one peer.
pub const MAX_ANSWERS: u32 = MAX_ATOMICS + MAX_GROUPS as u32 * MAX_ROUNDS;

/// A packet of an offloaded machine. [`crate::Packet::number`] is the number of its operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Offloaded {
    /// Of the machine of remote atomics.
    Atomic(AtomicPacket),
    /// Of the machine of groups.
    Group(GroupPacket),
}

impl Offloaded {
    /// Whether it answers an operation of its destination. The number of such operations is bounded.
    pub fn is_answer(&self) -> bool {
        match self {
            Offloaded::Atomic(packet) => packet.is_answer(),
            Offloaded::Group(packet) => packet.is_answer(),
        }
    }

    /// Whether its payload is a buffer that ends when the last packet has left ([`crate::Driver::answer_left`]).
    pub fn owns_payload(&self) -> bool {
        match self {
            Offloaded::Atomic(packet) => matches!(packet, AtomicPacket::VectorResult { .. }),
            Offloaded::Group(packet) => packet.owns_payload(),
        }
    }

    /// The same packet with the payload that begins `further` bytes later.
    pub(crate) fn at_offset(self, further: u32) -> Offloaded {
        match self {
            Offloaded::Atomic(packet) => Offloaded::Atomic(packet.at_offset(further)),
            Offloaded::Group(packet) => Offloaded::Group(packet.at_offset(further)),
        }
    }
}

/// The operation that the program asks of an offloaded machine.
#[derive(Clone, Debug, PartialEq)]
pub enum OffloadCommand {
    /// Of the machine of remote atomics.
    Atomics(AtomicsCommand),
    /// Of the machine of groups.
    Group(GroupCommand),
}

/// The offloaded machines, and the demultiplexer: each event goes to the machine of its kind, and the loss of a
/// peer to all.
#[derive(Clone, Debug, Default)]
pub struct Offload {
    atomics: Atomics,
    groups: Groups,
}

impl Offload {
    /// Whether a further operation of a group would not be refused.
    pub fn accepts_operation(&self, group: u32) -> bool {
        self.groups.accepts_operation(group)
    }

    /// Groups that we have joined, and those that we have left and that not all neighbours know of.
    pub fn group_count(&self) -> usize {
        self.groups.count()
    }

    /// The driver has ended a buffer that a packet owned ([`crate::Driver::answer_left`]). Groups do not count theirs.
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
        let Offload { atomics, groups } = self;
        match event {
            MachineEvent::Posted(OffloadCommand::Atomics(command)) => {
                atomics.handle(MachineEvent::Posted(command), driver)
            }
            MachineEvent::Posted(OffloadCommand::Group(command)) => {
                groups.handle(MachineEvent::Posted(command), driver)
            }
            MachineEvent::Arrived { from, number, packet: Offloaded::Atomic(packet), payload_bytes } => {
                atomics.handle(MachineEvent::Arrived { from, number, packet, payload_bytes }, driver)
            }
            MachineEvent::Arrived { from, number, packet: Offloaded::Group(packet), payload_bytes } => {
                groups.handle(MachineEvent::Arrived { from, number, packet, payload_bytes }, driver)
            }
            MachineEvent::TimerExpired(timer @ MachineTimer::Group { .. }) => {
                groups.handle(MachineEvent::TimerExpired(timer), driver)
            }
            MachineEvent::Lost { peer, fault } => {
                atomics.handle(MachineEvent::Lost { peer, fault }, driver)?;
                groups.handle(MachineEvent::Lost { peer, fault }, driver)
            }
        }
    }

    fn is_quiescent(&self) -> bool {
        self.atomics.is_quiescent() && self.groups.is_quiescent()
    }

    fn depends_on(&self, mut visit: impl FnMut(Peer)) {
        self.atomics.depends_on(&mut visit);
        self.groups.depends_on(visit);
    }
}
