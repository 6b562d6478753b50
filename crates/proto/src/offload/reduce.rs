//! Reductions: a machine that combines vectors of the members of a group, in the order of their ranks.
//!
//! Each member combines its own vector with those of its children in a tree, and sends the result to its parent. The
//! root has the result in its buffer. A start returns at once, and the completion comes later. If a member is lost,
//! leaves or is too late, the group fails for all its members. `reduce/group.rs` has the rules of one group. This file
//! routes events to groups. It does not know addresses of memory.
//! ```text
//! member 1 -> 0: Joined, and back            each neighbour in the tree says once that it is there
//! member 1 -> 0: Contribution 0 (8 bytes)    driver of 0: combine(payload), complete
//! member 0 -> 1: Taken 0                     driver of 1: free(buffer), complete
//! ```

mod group;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Combination;
use crate::action::Outcome;
use crate::endpoint::Refusal;
use crate::event::{Peer, PeerFault, Request};
use crate::machine::{Machine, MachineDriver, MachineEvent};
use crate::timers::MachineTimer;
use group::Group;

/// Bound: groups of an endpoint.
pub const MAX_GROUPS: usize = 1 << 6;

/// Bound: reductions of a group that a member has started and that have not ended.
pub const MAX_REDUCTIONS: u32 = 4;

/// Bound: length of a vector. Unit: bytes.
pub const MAX_VECTOR_BYTES: u32 = 1 << 12;

/// The vectors of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector {
    /// Length of each, at most [`MAX_VECTOR_BYTES`]. Unit: bytes.
    pub bytes: u32,
    /// How they are combined.
    pub combination: Combination,
}

impl Vector {
    /// Whether the combination exists, and the vectors have whole elements and are short enough.
    pub fn is_valid(&self) -> bool {
        let Vector { bytes, combination } = *self;
        bytes <= MAX_VECTOR_BYTES && combination.is_valid() && combination.divides(bytes)
    }
}

/// A packet of this machine. The number of its operation is that of the reduction in its group, from 0 on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReducePacket {
    /// The sender has joined. Number 0.
    Joined {
        /// The group.
        group: u32,
    },
    /// The vectors of the sender and of the members below it, combined. The payload is a part of the result.
    Contribution {
        /// The group.
        group: u32,
        /// The vectors.
        vector: Vector,
        /// Offset of the payload in the vector. Unit: bytes.
        offset: u32,
    },
    /// The contribution of the destination is combined: its memory is free.
    Taken {
        /// The group.
        group: u32,
        /// It is not: the group has failed.
        refused: bool,
    },
    /// The group has failed: all its reductions end. Number 0.
    Failed {
        /// The group.
        group: u32,
        /// The member that is lost, by rank.
        member: u32,
        /// Why.
        fault: PeerFault,
    },
}

impl ReducePacket {
    pub(super) fn is_answer(&self) -> bool {
        matches!(self, ReducePacket::Taken { .. })
    }

    pub(super) fn at_offset(mut self, at: u32) -> ReducePacket {
        if let ReducePacket::Contribution { offset, .. } = &mut self {
            *offset = at;
        }
        self
    }

    fn group(&self) -> u32 {
        match *self {
            ReducePacket::Joined { group }
            | ReducePacket::Contribution { group, .. }
            | ReducePacket::Taken { group, .. }
            | ReducePacket::Failed { group, .. } => group,
        }
    }
}

/// What the program asks of this machine.
#[derive(Clone, Debug, PartialEq)]
pub enum ReduceCommand {
    /// Take part in a group. Members may join in any order, and start before others have joined.
    Join(Membership),
    /// Take part no more. This ends the group for all members: see [`ReducePacket::Failed`].
    Leave {
        /// The group.
        group: u32,
    },
    /// Start the next reduction of a group. All members start the same reductions in the same order. Completes with
    /// [`Outcome::Done`] at a member when its parent has taken its contribution, and at the root when the result is in
    /// the buffer of the request. Completes with [`Outcome::Lost`] if the group fails, and with [`Outcome::Refused`] if there
    /// is no such group or the vector is not valid.
    Start {
        /// The request to complete. Its buffer has the vector; that of the root gets the result.
        request: Request,
        /// The group.
        group: u32,
        /// The vectors.
        vector: Vector,
    },
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The number of the group, which its members agree on. They use a number once.
    pub group: u32,
    /// The members, by rank. The first is the root.
    pub members: Vec<Peer>,
    /// Our rank.
    pub rank: u32,
    /// The group fails if a reduction waits longer for others than this. `None`: it waits. Unit: nanoseconds.
    pub patience_ns: Option<u64>,
}

/// The machine.
#[derive(Clone, Debug, Default)]
pub struct Reductions {
    groups: BTreeMap<u32, Group>,
}

impl Reductions {
    fn command<D: MachineDriver>(&mut self, command: ReduceCommand, driver: &mut D) -> Result<(), Refusal> {
        match command {
            ReduceCommand::Join(membership) => {
                let number = membership.group;
                if self.groups.len() >= MAX_GROUPS || self.groups.contains_key(&number) {
                    return Err(Refusal::Groups);
                }
                self.groups.insert(number, Group::join(membership, driver));
            }
            ReduceCommand::Leave { group } => self.with(group, |group| group.leave(driver)),
            ReduceCommand::Start { request, group, vector } => {
                let group = self.groups.get_mut(&group).filter(|group| !group.has_left());
                match group.filter(|_| vector.is_valid()) {
                    Some(group) => group.start(request, vector, driver)?,
                    None => driver.complete(request, Outcome::Refused),
                }
            }
        }
        Ok(())
    }

    fn arrived<D: MachineDriver>(
        &mut self,
        from: Peer,
        number: u32,
        packet: ReducePacket,
        payload_bytes: u32,
        driver: &mut D,
    ) {
        if !self.groups.contains_key(&packet.group()) {
            return group::arrived_without_group(from, number, packet, payload_bytes, driver);
        }
        self.with(packet.group(), |group| match packet {
            ReducePacket::Joined { .. } => group.joined(from, driver),
            ReducePacket::Contribution { vector, offset, .. } => {
                group.contributed(from, number, vector, offset, payload_bytes, driver);
            }
            ReducePacket::Taken { refused, .. } => group.taken(from, number, refused, driver),
            ReducePacket::Failed { member, fault, .. } => group.neighbour_failed(from, member, fault, driver),
        });
    }

    /// Shows a group to `work`, if there is one with this number. Removes it if we have left it and nothing is under way.
    fn with(&mut self, number: u32, work: impl FnOnce(&mut Group)) {
        let Some(group) = self.groups.get_mut(&number) else { return };
        work(group);
        if group.has_ended() {
            self.groups.remove(&number);
        }
    }
}

impl Machine for Reductions {
    type Command = ReduceCommand;
    type Packet = ReducePacket;

    fn handle<D: MachineDriver>(
        &mut self,
        event: MachineEvent<ReduceCommand, ReducePacket>,
        driver: &mut D,
    ) -> Result<(), Refusal> {
        match event {
            MachineEvent::Posted(command) => self.command(command, driver)?,
            MachineEvent::Arrived { from, number, packet, payload_bytes } => {
                self.arrived(from, number, packet, payload_bytes, driver);
            }
            MachineEvent::TimerExpired(MachineTimer::Reduction { group }) => {
                self.with(group, |group| group.timer_expired(driver));
            }
            MachineEvent::Lost { peer, fault } => {
                self.groups.values_mut().for_each(|group| group.lost(peer, fault, driver));
                self.groups.retain(|_, group| !group.has_ended());
            }
        }
        Ok(())
    }

    fn is_quiescent(&self) -> bool {
        self.groups.values().all(|group| !group.is_pending())
    }

    fn depends_on(&self, mut visit: impl FnMut(Peer)) {
        let pending = self.groups.values().filter(|group| group.is_pending());
        pending.flat_map(Group::neighbours).for_each(&mut visit);
    }
}

#[cfg(feature = "explore")]
mod canonical;
#[cfg(test)]
mod tests;
