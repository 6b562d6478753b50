//! Groups of endpoints of one node that do collective operations in shared memory: barrier, reduce, all-reduce, broadcast.
//!
//! A group lies in the node segment. Each member writes its own cache lines and looks at those of the others, without a
//! locked instruction (`rounds.rs`). The members find their group by a key in a table (`table.rs`). This part does not know
//! messages, matching, other nodes, nor how a member waits: the caller does.
//! ```text
//! member 0  join(key): takes an entry of the table, prepares the memory, shows the key
//! member 1  join(key): finds the key, and takes its place
//! each      start(all-reduce): writes its vector to its slot; test: all slots have this round: combines them
//! each      leaves (drop); the entry is free again when all have left or died
//! ```
//! **Split phase.** A member can start up to four rounds before it tests the first. It may do something else meanwhile,
//! and nobody waits for a member longer than for what it has to write or read.
//!
//! **Members that die, leave or disagree.** [`NodeGroup::check`] asks the kernel for the members that are waited for. The
//! group then has failed for this member, and for those that wait for it.
//!
//! **Memory** is bounded by the table: 128 groups for each node and job, each of at most 256 members. The first member
//! reserves it. A group of 16 has 25 KiB.

#[cfg(test)]
mod interleavings;
mod rounds;
mod table;
#[cfg(test)]
mod tests;

pub use rounds::{
    GroupFailure, MAX_BROADCAST_BYTES, MAX_MEMBERS, MAX_ROUNDS, MAX_VECTOR_BYTES, Operation, Round,
};

use super::node_segment::{Area, NodeHandle, SharedArea};
use super::segment_file::SystemError;
use super::sync::NATIVE;
use rounds::{GroupWords, Rounds, group_words};
use std::time::{Duration, Instant};
use table::{ENTRY_WORDS, Entry};
use weir_proto::PeerFault;

/// Most groups of a node and job.
const MAX_GROUPS: u64 = 128;
const TABLE_BYTES: u64 = MAX_GROUPS * ENTRY_WORDS as u64 * 8;
/// Distance of the memory of two groups: whole pages, enough for the largest.
const STRIDE_BYTES: u64 = 160 << 10;

const _: () = assert!(!NATIVE || group_words(MAX_MEMBERS) as u64 * 8 <= STRIDE_BYTES);
const _: () = assert!(TABLE_BYTES + MAX_GROUPS * STRIDE_BYTES <= Area::Groups.bytes());

/// A member that waits asks so often whether the others run.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// It reads the clock once in so many looks.
const LOOKS_PER_CLOCK: u32 = 16;

/// The reason why an endpoint cannot join a group.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// Every entry of the table has a group with members that have not left.
    #[error("the node has {groups} groups, which is the limit")]
    Full {
        /// The groups.
        groups: u64,
    },
    /// The list of members makes no group.
    #[error(
        "{members} members with this endpoint at rank {rank}: allowed are 1 to {MAX_MEMBERS} different ones"
    )]
    Members {
        /// The length of the list.
        members: usize,
        /// Our rank in it.
        rank: u32,
    },
    /// The first member has ended, so nobody makes the group.
    #[error(transparent)]
    Failed(#[from] GroupFailure),
}

/// The groups of the node, for one endpoint.
#[derive(Debug)]
pub struct NodeGroups {
    handle: NodeHandle,
    table: SharedArea,
}

impl NodeGroups {
    /// The table of the node segment of `handle`.
    ///
    /// # Errors
    /// No memory for the table, or the name of the node segment is gone.
    pub fn open(handle: NodeHandle) -> Result<NodeGroups, SystemError> {
        let table = handle.part(Area::Groups, 0, TABLE_BYTES)?;
        Ok(NodeGroups { handle, table })
    }

    fn entries(&self) -> impl Iterator<Item = (u64, Entry<'_>)> {
        (0..).zip(table::entries(&self.table))
    }

    /// The place of the memory of a group in the area, and its length. Unit: bytes.
    fn place(number: u64, members: u32) -> (u64, u64) {
        (TABLE_BYTES + number * STRIDE_BYTES, group_words(members) as u64 * 8)
    }

    /// The memory of a group that an entry shows: its maker has reserved it.
    fn memory(&self, number: u64, members: u32) -> SharedArea {
        let (offset, bytes) = NodeGroups::place(number, members);
        self.handle.reserved_part(Area::Groups, offset, bytes)
    }

    /// Joins a group. `None`: its first member has not made it yet, so try again.
    ///
    /// - `key`: the members agree on it, and it belongs to no other group that one of them may still join.
    /// - `members`: numbers of endpoints of this node segment ([`super::node_segment::Member::endpoint`]), by rank.
    /// - `rank`: that of this endpoint.
    ///
    /// Drop the group before the endpoint closes.
    ///
    /// # Errors
    /// [`JoinError`]. If the first member gets one, the others wait for it: the caller tells them.
    pub fn join(&self, key: u64, members: &[u64], rank: u32) -> Result<Option<NodeGroup>, JoinError> {
        let own = self.handle.endpoint();
        let mut sorted = members.to_vec();
        sorted.sort_unstable();
        let is_valid = members.get(rank as usize) == Some(&own)
            && members.len() <= MAX_MEMBERS as usize
            && sorted.windows(2).all(|pair| pair[0] != pair[1]);
        if !is_valid {
            return Err(JoinError::Members { members: members.len(), rank });
        }
        let memory = if rank == 0 {
            self.make(key, members)?
        } else if let Some(memory) = self.find(key, members, rank) {
            memory
        } else if self.handle.is_running(members[0]) {
            return Ok(None);
        } else {
            // It may have made the group before its end.
            let failure = GroupFailure { member: 0, fault: PeerFault::Died };
            self.find(key, members, rank).ok_or(failure)?
        };
        let count = members.len() as u32;
        GroupWords::new(&memory, count).join(rank);
        let (handle, rounds) = (self.handle.clone(), Rounds::new(memory, count, rank));
        Ok(Some(NodeGroup { handle, rounds, pid: std::process::id() }))
    }

    /// Takes an entry, and reserves and prepares its memory.
    fn make(&self, key: u64, members: &[u64]) -> Result<SharedArea, JoinError> {
        let (own, count) = (self.handle.index(), members.len() as u32);
        let is_running = |place| self.handle.is_running_at(place);
        let taken = self
            .entries()
            .find(|&(number, entry)| entry.take(own, is_running, |members| self.has_ended(number, members)));
        let (number, entry) = taken.ok_or(JoinError::Full { groups: MAX_GROUPS })?;
        let (offset, bytes) = NodeGroups::place(number, count);
        let memory = self.handle.part(Area::Groups, offset, bytes);
        let memory = memory.inspect_err(|_| entry.give_back())?;
        GroupWords::new(&memory, count).clear(members);
        entry.show(key, count);
        Ok(memory)
    }

    /// Whether all members of the group that an entry shows have left or died.
    fn has_ended(&self, number: u64, members: u32) -> bool {
        // A number that makes no sense is that of no group.
        members > MAX_MEMBERS || {
            let memory = self.memory(number, members);
            GroupWords::new(&memory, members).has_ended(|endpoint| self.handle.is_running(endpoint))
        }
    }

    /// The memory of the group with this key and these members in which `rank` has not joined.
    fn find(&self, key: u64, members: &[u64], rank: u32) -> Option<SharedArea> {
        let count = members.len() as u32;
        let shown = self.entries().filter(|(_, entry)| entry.shown() == Some((key, count)));
        let mut memories = shown.map(|(number, _)| self.memory(number, count));
        memories.find(|memory| {
            let words = GroupWords::new(memory, count);
            words.is_awaited(rank) && (0..).zip(members).all(|(rank, &member)| words.endpoint(rank) == member)
        })
    }
}

/// An endpoint's membership in a group. It leaves when the value is dropped, which must be before its mailbox closes.
#[derive(Debug)]
pub struct NodeGroup {
    handle: NodeHandle,
    rounds: Rounds<SharedArea>,
    /// The process that has joined. A forked child does nothing with its copy.
    pid: u32,
}

impl NodeGroup {
    /// Starts the next operation of the group. All members start the same operations in the same order. `None`: some
    /// member has not finished the operation four before this one, so try again, and test what is under way.
    ///
    /// - `data`: what this member contributes, as long as [`Operation::data_bytes`] says. Free again at the return.
    ///
    /// # Errors
    /// The group has failed.
    ///
    /// # Panics
    /// If the operation is not valid ([`Operation::is_valid`]), or `data` has another length.
    pub fn start(&mut self, operation: Operation, data: &[u8]) -> Result<Option<Round>, GroupFailure> {
        self.rounds.start(operation, data)
    }

    /// Whether an operation has finished for this member. If it has just done so, `result` has the result.
    ///
    /// - `result`: as long as [`Operation::result_bytes`] says.
    ///
    /// # Errors
    /// The group has failed.
    ///
    /// # Panics
    /// If the operation finishes, and `result` has another length.
    pub fn test(&mut self, round: Round, result: &mut [u8]) -> Result<bool, GroupFailure> {
        self.rounds.test(round, result)
    }

    /// Looks whether members that are waited for have died, left or failed. Asks the kernel for each of them, so call it
    /// rarely.
    ///
    /// # Errors
    /// The group has failed.
    pub fn check(&mut self) -> Result<(), GroupFailure> {
        self.rounds.check(|endpoint| self.handle.is_running(endpoint))
    }

    /// Waits until an operation has finished for this member, and checks the others some hundred times a second.
    ///
    /// - `idle`: called between two looks, to yield, to sleep shortly, or to make progress elsewhere.
    ///
    /// # Errors
    /// The group has failed.
    pub fn wait(&mut self, round: Round, result: &mut [u8], idle: impl FnMut()) -> Result<(), GroupFailure> {
        self.look_until(|group| group.test(round, result).map(|is_done| is_done.then_some(())), idle)
    }

    /// Starts an operation and waits for it, as [`NodeGroup::start`] and [`NodeGroup::wait`] do. Operations that were
    /// started before must have been tested to their end.
    ///
    /// # Errors
    /// The group has failed.
    pub fn perform(
        &mut self,
        operation: Operation,
        data: &[u8],
        result: &mut [u8],
        mut idle: impl FnMut(),
    ) -> Result<(), GroupFailure> {
        let round = self.look_until(|group| group.start(operation, data), &mut idle)?;
        self.wait(round, result, idle)
    }

    fn look_until<T>(
        &mut self,
        mut look: impl FnMut(&mut NodeGroup) -> Result<Option<T>, GroupFailure>,
        mut idle: impl FnMut(),
    ) -> Result<T, GroupFailure> {
        let (mut looks, mut checked) = (0_u32, None);
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            idle();
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS_PER_CLOCK) {
                let now = Instant::now();
                let last = *checked.get_or_insert(now);
                if now.duration_since(last) >= CHECK_INTERVAL {
                    checked = Some(now);
                    self.check()?;
                }
            }
        }
    }
}

impl Drop for NodeGroup {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            self.rounds.words().leave(self.rounds.rank());
        }
    }
}
