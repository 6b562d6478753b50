//! Operations of a group: barrier, reduction, all-reduce, broadcast, exchange, gather, scatter, all-gather and all-to-all, each
//! by a schedule of packets.
//!
//! All members start the same operations in the same order, so the number of an operation is the same everywhere. A start
//! returns at once, and the completion comes later. Several operations can be under way. If a member is lost, leaves or
//! is too late, the group fails for all its members. `group/member.rs` has the rules of one group, `group/round.rs` those
//! of one operation, and `group/schedule.rs` says whom a member sends to after whom it has heard. This file routes events
//! to groups. It does not know addresses of memory.
//! ```text
//! member 1 -> 0: Joined, and back                 each neighbour in the tree says once that it is there
//! member 1 -> 0: Joined { all }, and back         all members below have joined; then all members have
//! member 1 -> 0: Part of reduction 0 (8 bytes)    driver of 0: combine(payload), complete
//! member 0 -> 1: Taken 0                          driver of 1: free(buffer), complete
//! ```

mod member;
mod round;
mod schedule;
mod tree;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Combination;
use super::reduce::Vector;
use crate::action::Outcome;
use crate::endpoint::Refusal;
use crate::event::{Peer, PeerFault, Request};
use crate::machine::{Machine, MachineDriver, MachineEvent};
use crate::timers::MachineTimer;
use member::Group;
pub use schedule::{BarrierSchedule, BroadcastTree, ReductionTree, Shape};
pub use tree::postal as postal_tree;

/// Bound: groups of an endpoint.
pub const MAX_GROUPS: usize = 1 << 7;

/// Bound: operations of a group that a member has started and that have not ended.
pub const MAX_ROUNDS: u32 = 4;

/// Bound: length of a broadcast. Unit: bytes.
pub const MAX_BROADCAST_BYTES: u32 = 1 << 14;

/// Bound: length of the block of an exchange, a gather or a scatter. Unit: bytes.
pub const MAX_EXCHANGE_BYTES: u32 = 1 << 14;

/// Bound: length of the blocks of all members in a gather, a scatter, an all-gather or an all-to-all. It bounds what a member
/// copies to send it, and what it holds before it has started. Unit: bytes.
pub const MAX_GATHERED_BYTES: u32 = 1 << 20;

/// What the members of a group do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Wait for all.
    Barrier,
    /// Combine the vectors of all. Member 0 gets the result.
    Reduce(Vector),
    /// Combine the vectors of all. All members get the result, with the same bits.
    AllReduce(Vector),
    /// All get the bytes of one member.
    Broadcast {
        /// Its rank.
        root: u32,
        /// Length, at most [`MAX_BROADCAST_BYTES`]. Unit: bytes.
        bytes: u32,
    },
    /// Each member gives a block to the member `distance` ranks behind it, and gets one from the member `distance` ranks before
    /// it, in a circle. The exchanges of all distances are an all-to-all.
    Exchange {
        /// From 1 to the number of members less 1. Unit: ranks.
        distance: u32,
        /// Length of a block, at most [`MAX_EXCHANGE_BYTES`]. Unit: bytes.
        bytes: u32,
    },
    /// The root gets a block from each member. Its buffer has them in the order of ranks from the root on, in a circle: first
    /// its own.
    Gather {
        /// Its rank.
        root: u32,
        /// Length of a block, at most [`MAX_EXCHANGE_BYTES`], and [`MAX_GATHERED_BYTES`] of all members. Unit: bytes.
        bytes: u32,
    },
    /// The root gives each member a block. Its buffer has them as for a gather.
    Scatter {
        /// Its rank.
        root: u32,
        /// Length of a block, as of a gather. Unit: bytes.
        bytes: u32,
    },
    /// All get a block from each member. The buffer of each has them in the order of ranks from its own on, in a circle: first
    /// what it gives.
    AllGather {
        /// Length of a block, as of a gather. Unit: bytes.
        bytes: u32,
    },
    /// Each member gives a block to each, and gets one from each. Its buffer has them in the order of ranks from its own on, in a
    /// circle. What comes takes the place of what goes there.
    AllToAll {
        /// Length of a block, as of a gather. Unit: bytes.
        bytes: u32,
    },
}

impl Operation {
    /// Length of the vector or block. Unit: bytes.
    pub fn bytes(&self) -> u32 {
        match *self {
            Operation::Barrier => 0,
            Operation::Reduce(vector) | Operation::AllReduce(vector) => vector.bytes,
            Operation::Broadcast { bytes, .. } | Operation::Exchange { bytes, .. } => bytes,
            Operation::Gather { bytes, .. } | Operation::Scatter { bytes, .. } => bytes,
            Operation::AllGather { bytes } | Operation::AllToAll { bytes } => bytes,
        }
    }

    /// Length of the buffer of its request at the member `rank` of `members`. Unit: bytes.
    pub fn buffer_bytes(&self, rank: u32, members: u32) -> u32 {
        match *self {
            Operation::Gather { root, bytes } | Operation::Scatter { root, bytes } if root == rank => {
                bytes * members
            }
            Operation::AllGather { bytes } | Operation::AllToAll { bytes } => bytes * members,
            _ => self.bytes(),
        }
    }

    /// How it combines, if it does.
    pub fn combination(&self) -> Option<Combination> {
        match self {
            Operation::Reduce(vector) | Operation::AllReduce(vector) => Some(vector.combination),
            _ => None,
        }
    }

    /// Whether a group of `members` members can do it. `None`: whether any group can.
    fn is_valid(&self, members: Option<u32>) -> bool {
        let is_rank = |rank| members.is_none_or(|members| rank < members);
        match *self {
            Operation::Barrier => true,
            Operation::Reduce(vector) | Operation::AllReduce(vector) => vector.is_valid(),
            Operation::Broadcast { root, bytes } => is_rank(root) && bytes <= MAX_BROADCAST_BYTES,
            Operation::Exchange { distance, bytes } => {
                distance > 0 && is_rank(distance) && bytes <= MAX_EXCHANGE_BYTES
            }
            Operation::Gather { root, bytes } | Operation::Scatter { root, bytes } => {
                is_rank(root) && blocks_fit(bytes, members)
            }
            Operation::AllGather { bytes } | Operation::AllToAll { bytes } => blocks_fit(bytes, members),
        }
    }

    /// Whether `bytes` bytes are whole elements.
    fn divides(&self, bytes: u32) -> bool {
        self.combination().is_none_or(|combination| combination.divides(bytes))
    }

    /// Whether its packets carry payload. Otherwise the packet is the whole message.
    fn has_payload(&self) -> bool {
        !matches!(self, Operation::Barrier)
    }

    /// Whether a member ends it only after all have started it. Then nobody answers its packets: they have buffers of their
    /// own, and their number is bounded without answers.
    fn shows_that_all_have_started(&self) -> bool {
        matches!(self, Operation::Barrier | Operation::AllGather { .. } | Operation::AllToAll { .. })
    }

    /// Whether the destination answers its payload.
    fn is_answered(&self) -> bool {
        !self.shows_that_all_have_started()
    }
}

/// Whether the blocks of `members` members are within the bounds. `None`: whether those of any number are.
fn blocks_fit(bytes: u32, members: Option<u32>) -> bool {
    // Also without bytes, the blocks of all but one have a number of 16 bits.
    let all = bytes.max(1).checked_mul(members.unwrap_or(1));
    bytes <= MAX_EXCHANGE_BYTES && all.is_some_and(|all| all <= MAX_GATHERED_BYTES)
}

/// A packet of this machine. The number of its operation is that of the operation in its group, from 0 on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GroupPacket {
    /// The sender has joined. Number 0.
    Joined {
        /// The group.
        group: u32,
        /// To the parent: all members below the sender have joined. To a child: all members have.
        all: bool,
    },
    /// The step of an operation that the destination waits for. The payload is a part of it.
    Part {
        /// The group.
        group: u32,
        /// The operation.
        operation: Operation,
        /// Vectors or blocks that the sender sends to the destination in this operation: of a gather and a scatter, those
        /// of all members behind the one or the other; of an all-gather, those that the sender has then; otherwise 1.
        blocks: u16,
        /// Offset of the payload in what the sender sends. Unit: bytes.
        offset: u32,
    },
    /// The destination may use again the memory that it has sent its [`GroupPacket::Part`] from.
    Taken {
        /// The group.
        group: u32,
        /// The part is not used: the group has failed.
        refused: bool,
    },
    /// The group has failed: all its operations end. Number 0.
    Failed {
        /// The group.
        group: u32,
        /// The member that is lost, by rank.
        member: u32,
        /// Why.
        fault: PeerFault,
    },
}

impl GroupPacket {
    pub(super) fn is_answer(&self) -> bool {
        matches!(self, GroupPacket::Taken { .. })
    }

    /// Whether the buffer of its payload ends when the last packet has left.
    pub(super) fn owns_payload(&self) -> bool {
        matches!(self, GroupPacket::Part { operation, .. } if !operation.is_answered())
    }

    /// The same packet with the payload that begins `further` bytes later.
    pub(super) fn at_offset(mut self, further: u32) -> GroupPacket {
        if let GroupPacket::Part { offset, .. } = &mut self {
            *offset += further;
        }
        self
    }

    fn group(&self) -> u32 {
        match *self {
            GroupPacket::Joined { group, .. }
            | GroupPacket::Part { group, .. }
            | GroupPacket::Taken { group, .. }
            | GroupPacket::Failed { group, .. } => group,
        }
    }
}

/// What the program asks of this machine.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupCommand {
    /// Take part in a group. Members may join in any order, and start before others have joined.
    Join(Membership),
    /// Take part no more. This ends the group for all members: see [`GroupPacket::Failed`]. A neighbour that joins later
    /// hears it too, unless [`MAX_GROUPS`] others were joined and left meanwhile.
    Leave {
        /// The group.
        group: u32,
    },
    /// Start the next operation of a group. Completes with [`Outcome::Done`] when the buffer of the request may be used:
    ///
    /// - barrier: all members have started it;
    /// - reduction: the parent has taken our contribution, and at member 0 the result is there;
    /// - all-reduce: the result is there;
    /// - broadcast: at once at its root, and at the others when the bytes are there;
    /// - exchange: the block of the other member is there, in place of ours;
    /// - gather: at the root, all blocks are there; at the others, the blocks of those behind them are on their way;
    /// - scatter: at once at its root, and at the others when their block is there;
    /// - all-gather, all-to-all: all blocks are there.
    ///
    /// Completes with [`Outcome::Lost`] if the group fails, and with [`Outcome::Refused`] if there is no such group or the
    /// operation is not valid.
    Start {
        /// The request to complete. Its buffer has the vector, and gets the result.
        request: Request,
        /// The group.
        group: u32,
        /// The operation.
        operation: Operation,
    },
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The number of the group, which its members agree on. They use a number once.
    pub group: u32,
    /// The members, by rank. The first is the root of reductions.
    pub members: Vec<Peer>,
    /// Our rank.
    pub rank: u32,
    /// The group fails if an operation waits longer for others than this. `None`: it waits. Unit: nanoseconds.
    pub patience_ns: Option<u64>,
    /// How operations travel. The same at all members.
    pub shape: Shape,
}

/// The machine.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    groups: BTreeMap<u32, Group>,
    /// Number of groups that were left.
    left: u64,
}

impl Groups {
    /// Whether [`GroupCommand::Start`] would not be refused.
    pub fn accepts_operation(&self, group: u32) -> bool {
        self.groups.get(&group).is_none_or(Group::accepts_operation)
    }

    /// As [`super::Offload::group_count`].
    pub fn count(&self) -> usize {
        self.groups.len()
    }

    fn command<D: MachineDriver>(&mut self, command: GroupCommand, driver: &mut D) -> Result<(), Refusal> {
        match command {
            GroupCommand::Join(membership) => {
                let number = membership.group;
                if self.groups.len() >= MAX_GROUPS {
                    self.forget_oldest_left();
                }
                if self.groups.len() >= MAX_GROUPS || self.groups.contains_key(&number) {
                    return Err(Refusal::Groups);
                }
                self.groups.insert(number, Group::join(membership, driver));
            }
            GroupCommand::Leave { group } => {
                let before = self.left;
                self.left += 1;
                self.with(group, |group| group.leave(before, driver));
            }
            GroupCommand::Start { request, group, operation } => {
                let group = self.groups.get_mut(&group).filter(|group| group.allows(&operation));
                match group {
                    Some(group) => group.start(request, operation, driver)?,
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
        packet: GroupPacket,
        payload_bytes: u32,
        driver: &mut D,
    ) {
        if !self.groups.contains_key(&packet.group()) {
            return member::arrived_without_group(from, number, packet, payload_bytes, driver);
        }
        self.with(packet.group(), |group| match packet {
            GroupPacket::Joined { all, .. } => group.joined(from, all, driver),
            GroupPacket::Part { operation, blocks, offset, .. } => {
                group.part(from, number, (operation, blocks), (offset, payload_bytes), driver);
            }
            GroupPacket::Taken { refused, .. } => group.taken(from, number, refused, driver),
            GroupPacket::Failed { member, fault, .. } => group.other_failed(from, member, fault, driver),
        });
    }

    /// Forgets the group that was left first of those that some neighbours have not joined yet.
    fn forget_oldest_left(&mut self) {
        let left =
            self.groups.iter().filter_map(|(number, group)| Some((group.can_be_forgotten()?, *number)));
        if let Some((_, oldest)) = left.min() {
            self.groups.remove(&oldest);
        }
    }

    /// Shows a group to `work`, if there is one with this number. Removes it if we have left it, nothing is under way, and
    /// the neighbours know.
    fn with(&mut self, number: u32, work: impl FnOnce(&mut Group)) {
        let Some(group) = self.groups.get_mut(&number) else { return };
        work(group);
        if group.has_ended() {
            self.groups.remove(&number);
        }
    }
}

impl Machine for Groups {
    type Command = GroupCommand;
    type Packet = GroupPacket;

    fn handle<D: MachineDriver>(
        &mut self,
        event: MachineEvent<GroupCommand, GroupPacket>,
        driver: &mut D,
    ) -> Result<(), Refusal> {
        match event {
            MachineEvent::Posted(command) => self.command(command, driver)?,
            MachineEvent::Arrived { from, number, packet, payload_bytes } => {
                self.arrived(from, number, packet, payload_bytes, driver);
            }
            MachineEvent::TimerExpired(MachineTimer::Group { group }) => {
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
        self.groups.values().for_each(|group| group.depends_on(&mut visit));
    }
}

#[cfg(feature = "explore")]
mod canonical;
#[cfg(test)]
mod tests;
