//! Groups of endpoints of one node that do collective operations in shared memory: barrier, reduce, all-reduce, broadcast,
//! all-gather, all-to-all, gather, scatter.
//!
//! A group lies in the node segment. Each member writes its own words and looks at those of the others (`words.rs`),
//! without a locked instruction (`rounds.rs`). What an operation is, `operation.rs` says. The members find their group by a
//! key in a table (`table.rs`). This part does not know messages, matching, other nodes, nor what a member
//! does while it waits.
//! ```text
//! member 0  join(key): takes an entry of the table, prepares the memory, shows the key
//! member 1  join(key): finds the key, and takes its place
//! each      start(all-reduce): writes its vector to its slot; test: all slots have this round: combines them
//! each      leaves (drop); the entry is free again when all have left or died
//! ```
//! **Split phase.** A member can start up to four rounds before it tests the first. It may do something else meanwhile,
//! and nobody waits for a member longer than for what it has to write or read. An operation that does not fit one round is
//! a task ([`NodeGroup::task`]): its parts are rounds, several of them under way.
//!
//! **Waiting.** A member looks, lets the caller do something, and looks again. After a millisecond it sleeps meanwhile, and
//! the one that it waits for wakes it (`sleepers.rs`). So with more members than cores, a long wait leaves the core to others.
//!
//! **Members that die, leave or disagree.** [`NodeGroup::check`] asks the kernel for the members that are waited for. The
//! group then has failed for this member, and for those that wait for it.
//!
//! **Memory** is bounded by the table: 256 groups for each node and job, each of at most 256 members. The first member of a
//! group reserves it, and it stays reserved for the next group at that place. It is mostly what members
//! contribute in four rounds:
//!
//! A group that would take more than an eighth of the free memory is not made.
//!
//! | members | a contribution, bytes | group, KiB |
//! |---|---|---|
//! | up to 8 | 8192 | 33 for each member |
//! | 16 | 16384 | 1027 |
//! | 17 to 128 | 256 KiB / members | at most 1050 |
//! | 129 to 256 | 2048 | at most 2091 |

#[cfg(test)]
mod interleavings;
mod operation;
mod roster;
mod rounds;
mod sleepers;
mod table;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod waits;
mod words;

pub use operation::{MAX_BROADCAST_BYTES, MAX_MEMBERS, MAX_VECTOR_BYTES, Operation};
pub use roster::{ROSTER_RANKS, Roster};
pub use rounds::{Round, Task};
pub use words::{GroupFailure, MAX_ROUNDS};

use super::node_segment::{Area, NodeHandle, SharedArea};
use super::segment_file::SystemError;
use super::sync::{AtomicU64, NATIVE, register_across_processes};
use crate::cores;
use rounds::{GroupMemory, Rounds};
use sleepers::{Bed, Sleepers};
use std::ptr::NonNull;
use std::time::{Duration, Instant};
use table::{ENTRY_WORDS, Entry};
use weir_proto::PeerFault;
use words::{GroupLayout, GroupWords};

/// Most groups of a node and job.
const MAX_GROUPS: u64 = 256;
const TABLE_BYTES: u64 = MAX_GROUPS * ENTRY_WORDS as u64 * 8;
/// Distance of the memory of two groups: whole pages, enough for the largest.
const STRIDE_BYTES: u64 = 2112 << 10;

/// Length of the memory of a group: words, then beds. Unit: bytes.
const fn group_bytes(members: u32) -> u64 {
    GroupLayout::new(members).words as u64 * 8 + members as u64 * size_of::<Bed>() as u64
}

/// Length of the memory of the largest group. Unit: bytes.
const fn largest_group_bytes() -> u64 {
    let (mut members, mut largest) = (1, 0);
    while members <= MAX_MEMBERS {
        let bytes = group_bytes(members);
        largest = if bytes > largest { bytes } else { largest };
        members += 1;
    }
    largest
}

const _: () = assert!(!NATIVE || largest_group_bytes() <= STRIDE_BYTES);
const _: () = assert!(TABLE_BYTES + MAX_GROUPS * STRIDE_BYTES <= Area::Groups.bytes());

/// The memory of a group is at most this part of what is free when it is made, so that mailboxes do not lack it.
const FREE_DIVISOR: u64 = 8;

/// A member that waits asks so often whether the others run.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// A member that has waited so long sleeps between two looks. Most waits are shorter, and cost no system call of this part.
const AWAKE_TIME: Duration = Duration::from_millis(1);
/// A sleep is at most this share of the time that the member has waited, and at most [`CHECK_INTERVAL`]. So what the caller
/// does between two looks comes late by a bounded share.
const SLEEP_DIVISOR: u32 = 4;
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
    /// The group would take too much of the free memory, which mailboxes may need.
    #[error("a group needs {bytes} bytes, which is too much of the {free_bytes} free ones")]
    NoSpace {
        /// What the group needs.
        bytes: u64,
        /// What the file system has.
        free_bytes: u64,
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

/// The memory of a group in the node segment.
#[derive(Debug)]
struct GroupArea {
    /// Parts of the area. Every look needs them, and the area would check their places each time.
    words: NonNull<[AtomicU64]>,
    beds: NonNull<[Bed]>,
    /// Keeps them mapped.
    _area: SharedArea,
}

// SAFETY: the parts belong to the process, not to a thread, and are atomics.
unsafe impl Send for GroupArea {}
// SAFETY: as above.
unsafe impl Sync for GroupArea {}

impl GroupArea {
    fn new(area: SharedArea, layout: &GroupLayout, members: u32) -> GroupArea {
        let words = NonNull::from(&area[..layout.words]);
        let beds = NonNull::from(area.values(layout.words as u64 * 8, members as usize));
        GroupArea { words, beds, _area: area }
    }
}

impl GroupMemory for GroupArea {
    #[inline(always)]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: a part of the area, whose mapping stays where it is as long as the area exists.
        unsafe { self.words.as_ref() }
    }

    #[inline(always)]
    fn beds(&self) -> &[Bed] {
        // SAFETY: as above.
        unsafe { self.beds.as_ref() }
    }
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
        (TABLE_BYTES + number * STRIDE_BYTES, group_bytes(members))
    }

    /// The memory of a group that an entry shows: its maker has reserved it.
    fn memory(&self, number: u64, layout: &GroupLayout, members: u32) -> GroupArea {
        let (offset, bytes) = NodeGroups::place(number, members);
        GroupArea::new(self.handle.reserved_part(Area::Groups, offset, bytes), layout, members)
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
        GroupWords::new(memory.words(), &GroupLayout::new(count)).join(rank);
        let rounds = Rounds::new(memory, count, rank, !register_across_processes());
        let handle = self.handle.clone();
        Ok(Some(NodeGroup { handle, rounds, pid: std::process::id() }))
    }

    /// Takes an entry, and reserves and prepares its memory.
    fn make(&self, key: u64, members: &[u64]) -> Result<GroupArea, JoinError> {
        let (own, count) = (self.handle.index(), members.len() as u32);
        let is_running = |place| self.handle.is_running_at(place);
        let taken = self
            .entries()
            .find(|&(number, entry)| entry.take(own, is_running, |members| self.has_ended(number, members)));
        let (number, entry) = taken.ok_or(JoinError::Full { groups: MAX_GROUPS })?;
        let (offset, bytes) = NodeGroups::place(number, count);
        let free_bytes = self.handle.free_bytes();
        if bytes > free_bytes / FREE_DIVISOR {
            entry.give_back();
            return Err(JoinError::NoSpace { bytes, free_bytes });
        }
        let area = self.handle.part(Area::Groups, offset, bytes).inspect_err(|_| entry.give_back())?;
        let layout = GroupLayout::new(count);
        let memory = GroupArea::new(area, &layout, count);
        let words = GroupWords::new(memory.words(), &layout);
        words.clear(members);
        Sleepers::new(words.sleepers(), memory.beds()).clear();
        entry.show(key, count);
        Ok(memory)
    }

    /// Whether all members of the group that an entry shows have left or died.
    fn has_ended(&self, number: u64, members: u32) -> bool {
        // A number that makes no sense is that of no group.
        members > MAX_MEMBERS || {
            let layout = GroupLayout::new(members);
            let memory = self.memory(number, &layout, members);
            GroupWords::new(memory.words(), &layout).has_ended(|endpoint| self.handle.is_running(endpoint))
        }
    }

    /// The memory of the group with this key and these members in which `rank` has not joined.
    fn find(&self, key: u64, members: &[u64], rank: u32) -> Option<GroupArea> {
        let count = members.len() as u32;
        let layout = GroupLayout::new(count);
        let shown = self.entries().filter(|(_, entry)| entry.shown() == Some((key, count)));
        let mut memories = shown.map(|(number, _)| self.memory(number, &layout, count));
        memories.find(|memory| {
            let words = GroupWords::new(memory.words(), &layout);
            words.is_awaited(rank) && (0..).zip(members).all(|(rank, &member)| words.endpoint(rank) == member)
        })
    }
}

/// An endpoint's membership in a group. It leaves when the value is dropped, which must be before its mailbox closes.
#[derive(Debug)]
pub struct NodeGroup {
    handle: NodeHandle,
    rounds: Rounds<GroupArea>,
    /// The process that has joined. A forked child does nothing with its copy.
    pid: u32,
}

impl NodeGroup {
    /// Starts the next operation of the group, which fits one round. All members start the same operations in the same
    /// order. `None`: some member has not finished the round four before this one, or a task has not started all of its
    /// parts. So try again, and test what is under way.
    ///
    /// - `data`: what this member contributes, as long as [`Operation::data_bytes`] says. Free again at the return.
    ///
    /// # Errors
    /// The group has failed.
    ///
    /// # Panics
    /// If the operation is not valid ([`Operation::is_valid`]), does not fit a round, or `data` has another length.
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

    /// An operation of any length, which [`NodeGroup::advance`] starts.
    ///
    /// # Panics
    /// If the operation is not valid ([`Operation::is_valid`]).
    pub fn task(&self, operation: Operation) -> Task {
        self.rounds.task(operation)
    }

    /// Starts and tests what it can of an operation. Returns whether it has finished for this member. The first calls for
    /// several tasks are in the same order at all members, and only after the one before has begun ([`Task::has_begun`]); a
    /// task starts when all parts of the one before have started.
    ///
    /// - `data`, `result`: the same memory in all calls for this operation, as long as [`Operation::data_bytes`] and
    ///   [`Operation::result_bytes`] say. `data` is free, and `result` has the result, when it has finished.
    ///
    /// # Errors
    /// The group has failed.
    ///
    /// # Panics
    /// If one of them has another length.
    pub fn advance(&mut self, task: &mut Task, data: &[u8], result: &mut [u8]) -> Result<bool, GroupFailure> {
        self.rounds.advance(task, data, result, cores::stopwatch)
    }

    /// The first call of [`NodeGroup::advance`] for a task. It looks up to `looks` times more at each member that has not written,
    /// and does nothing else meanwhile. For members that have cores of their own: a further call of `advance` takes longer
    /// than a cache line needs to cross.
    ///
    /// # Errors
    /// As for [`NodeGroup::advance`].
    ///
    /// # Panics
    /// As for [`NodeGroup::advance`].
    #[inline]
    pub fn begin(
        &mut self,
        task: &mut Task,
        data: &[u8],
        result: &mut [u8],
        looks: u32,
    ) -> Result<bool, GroupFailure> {
        self.rounds.begin(task, data, result, looks, cores::stopwatch)
    }

    /// Looks whether members that are waited for have died, left or failed. Asks the kernel for each of them, so call it
    /// rarely.
    ///
    /// # Errors
    /// The group has failed.
    pub fn check(&mut self) -> Result<(), GroupFailure> {
        self.rounds.check(|endpoint| self.handle.is_running(endpoint))
    }

    /// The group can do nothing any more, for a reason that only this member knows. Those that wait for it fail for the same
    /// reason, whose member need not be one of the group.
    pub fn fail(&mut self, failure: GroupFailure) {
        self.rounds.fail(failure);
    }

    /// Whether a round under way waits for a member.
    pub fn misses_a_member(&self) -> bool {
        self.rounds.missing().is_some()
    }

    /// Sleeps until a member has written or finished that this one waits for, or for `at_most`. It may return early.
    pub fn sleep(&mut self, at_most: Duration) {
        self.rounds.sleep(at_most.as_nanos() as u64);
    }

    /// Waits until an operation has finished for this member, and checks the others some hundred times a second. After a
    /// millisecond it sleeps between two looks, for some milliseconds at most.
    ///
    /// - `idle`: called between two looks, to yield, or to make progress elsewhere.
    ///
    /// # Errors
    /// The group has failed.
    pub fn wait(&mut self, round: Round, result: &mut [u8], idle: impl FnMut()) -> Result<(), GroupFailure> {
        self.look_until(|group| group.test(round, result).map(|is_done| is_done.then_some(())), idle)
    }

    /// Performs an operation of any length, and waits for its end as [`NodeGroup::wait`] does. Operations that were started
    /// before must have been tested to their end.
    ///
    /// # Errors
    /// The group has failed.
    pub fn perform(
        &mut self,
        operation: Operation,
        data: &[u8],
        result: &mut [u8],
        idle: impl FnMut(),
    ) -> Result<(), GroupFailure> {
        let mut task = self.task(operation);
        let look = |group: &mut NodeGroup| {
            group.advance(&mut task, data, result).map(|is_done| is_done.then_some(()))
        };
        self.look_until(look, idle)
    }

    fn look_until<T>(
        &mut self,
        mut look: impl FnMut(&mut NodeGroup) -> Result<Option<T>, GroupFailure>,
        mut idle: impl FnMut(),
    ) -> Result<T, GroupFailure> {
        let (mut looks, mut times, mut sleeps) = (0_u32, None, false);
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            idle();
            looks = looks.wrapping_add(1);
            if sleeps || looks.is_multiple_of(LOOKS_PER_CLOCK) {
                let now = Instant::now();
                let (began, checked) = times.get_or_insert((now, now));
                if now.duration_since(*checked) >= CHECK_INTERVAL {
                    *checked = now;
                    self.check()?;
                }
                let waited = now.duration_since(*began);
                sleeps = waited >= AWAKE_TIME;
                if sleeps {
                    self.sleep((waited / SLEEP_DIVISOR).min(CHECK_INTERVAL));
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
