//! The rounds of a group: what members write for each other, and when a round has ended.
//!
//! All members start the same operations in the same order. The number of an operation, or of a part of a long one, is its
//! *round*, from 1 on. A member writes only its own words, so no instruction is locked, and a kill at any instruction
//! leaves no half state. This file knows words that all members share. It does not know where they lie, nor which members
//! run.
//! ```text
//! start     the contribution to the own place for the round, one of four; last, the word of the board, which publishes it
//! test      looks at the words of those it waits for, in rank order, and takes what they have written
//! finish    writes the highest round up to which it needs nothing any more
//! bound     a member writes for a round when all members have finished the round four before it
//! ```
//! A word of the board also says how many rounds its member had not finished when it wrote. So members that wait for
//! each other look at nothing else.

use super::operation::{Cut, MAX_MEMBERS, Operation, Part};
use super::sleepers::{Bed, Episode, Sleepers};
use super::words::{GroupFailure, GroupLayout, GroupWords, MAX_ROUNDS, Shown, read, write};
use crate::shm::sync::{AtomicU64, GROUP_ROUNDS};
use weir_proto::PeerFault;
use weir_proto::offload::reduce::Vector;

/// Bytes of vectors that are combined at once.
const COMBINED_BYTES: usize = 128;

/// A round that a member has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a round that is never tested to its end stops the group"]
pub struct Round(u64);

/// An operation of any length, which a member does part by part.
#[derive(Debug)]
#[must_use = "an operation that is not advanced to its end stops the group"]
pub struct Task {
    operation: Operation,
    cut: Cut,
    /// The round of the first part, once it has started.
    first: Option<u64>,
    started: u64,
    finished: u64,
    /// A look has found that somebody had not written the first part yet.
    has_waited: bool,
    /// When all had, if the task has bytes or several parts, and we have waited for that. 0 otherwise.
    met_at: u64,
}

impl Task {
    /// Until when we have waited for members that came later than we: until a look has shown that all from whom we need
    /// something have begun the operation, and that nobody is so far behind that we have no room. `None`: the first look has.
    ///
    /// - `ended_at`: the end of the task, by the clock that [`NodeGroup::advance`](super::NodeGroup::advance) has read.
    pub fn waited_until(&self, ended_at: u64) -> Option<u64> {
        let until = if self.met_at > 0 { self.met_at } else { ended_at };
        self.has_waited.then_some(until)
    }

    /// Whether a part of it has started. Only then may a later one be advanced, so that tasks start in one order at all
    /// members.
    pub fn has_begun(&self) -> bool {
        self.first.is_some()
    }
}

/// A round that has not finished here.
#[derive(Clone, Copy, Debug)]
struct Pending {
    operation: Operation,
    part: Part,
    digest: u64,
    /// Ranks that we still wait for.
    awaited: (u32, u32),
    /// The lowest round up to which the members seen so far had finished.
    finished: u64,
}

/// Steps of writing at which a member can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests stop earlier"))]
pub(super) enum WriteStep {
    /// Its contribution.
    Data,
    /// The word of the board: now others see it.
    Round,
}

/// The shared memory of a group.
pub trait GroupMemory {
    /// The words, of which [`GroupWords`] knows the places.
    fn words(&self) -> &[AtomicU64];
    /// A bed for each member.
    fn beds(&self) -> &[Bed];
}

/// The rounds of a group as a member sees them.
#[derive(Debug)]
pub struct Rounds<M> {
    memory: M,
    layout: GroupLayout,
    members: u32,
    rank: u32,
    /// The round of the next operation.
    next: u64,
    /// All members have finished this round and those before it.
    all_finished: u64,
    /// Up to here this member has finished.
    finished: u64,
    shown: Shown,
    /// By round.
    pending: [Option<Pending>; GROUP_ROUNDS],
    /// The first round of a task of which some parts have not started.
    open_task: Option<u64>,
    /// The last start waits for members that have not finished.
    is_held_back: bool,
    failure: Option<GroupFailure>,
    episode: Episode,
    /// Heavy fences of sleepers do not reach this process.
    full_fences: bool,
}

impl<M: GroupMemory> Rounds<M> {
    /// The member `rank` of `members`, which has joined in `memory`.
    ///
    /// - `full_fences`: the heavy fences of other members do not reach this process.
    pub fn new(memory: M, members: u32, rank: u32, full_fences: bool) -> Rounds<M> {
        assert!(rank < members && members <= MAX_MEMBERS, "rank {rank} of {members} members");
        Rounds {
            memory,
            layout: GroupLayout::new(members),
            members,
            rank,
            next: 1,
            all_finished: 0,
            finished: 0,
            shown: Shown::default(),
            pending: [None; GROUP_ROUNDS],
            open_task: None,
            is_held_back: false,
            failure: None,
            episode: Episode::default(),
            full_fences,
        }
    }

    /// The shared words.
    #[inline(always)]
    pub fn words(&self) -> GroupWords<'_> {
        GroupWords::new(self.memory.words(), &self.layout)
    }

    #[inline(always)]
    fn sleepers(&self) -> Sleepers<'_> {
        Sleepers::new(self.words().sleepers(), self.memory.beds())
    }

    /// Our rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Starts the next operation, which has one part. `None`: too many rounds are under way at some member, or a task has
    /// parts that have not started, so try again, and test and advance earlier ones.
    ///
    /// - `data`: what this member contributes.
    ///
    /// # Errors
    /// The group has failed.
    ///
    /// # Panics
    /// If the group cannot do the operation, it has several parts, or `data` has another length than
    /// [`Operation::data_bytes`].
    pub fn start(&mut self, operation: Operation, data: &[u8]) -> Result<Option<Round>, GroupFailure> {
        let cut = self.cut(operation);
        assert!(cut.parts() == 1, "{operation:?} has {} parts", cut.parts());
        match self.open_task {
            Some(_) => self.failure.map_or(Ok(None), Err),
            None => self.start_part(operation, cut.part(0), data),
        }
    }

    /// How an operation is cut.
    ///
    /// # Panics
    /// If the group cannot do it.
    fn cut(&self, operation: Operation) -> Cut {
        assert!(operation.is_valid(self.members), "{operation:?} in a group of {} members", self.members);
        self.layout.cut(operation)
    }

    fn start_part(
        &mut self,
        operation: Operation,
        part: Part,
        data: &[u8],
    ) -> Result<Option<Round>, GroupFailure> {
        assert_eq!(
            data.len(),
            operation.data_bytes(self.rank, self.members),
            "{operation:?} at {}",
            self.rank
        );
        self.failure.map_or(Ok(()), Err)?;
        let round = self.next;
        self.is_held_back = !self.all_have_finished(round.saturating_sub(MAX_ROUNDS));
        if self.is_held_back {
            return Ok(None);
        }
        let digest = operation.digest();
        self.write(round, operation, digest, part, data, WriteStep::Round);
        let awaited = operation.awaited(self.rank, self.members);
        let awaited = (awaited.start, awaited.end);
        self.pending[round as usize % GROUP_ROUNDS] =
            Some(Pending { operation, part, digest, awaited, finished: u64::MAX });
        self.next += 1;
        if awaited.0 == awaited.1 {
            self.finish(round);
        }
        Ok(Some(Round(round)))
    }

    /// Writes our part of a round, up to a step.
    #[inline]
    pub(super) fn write(
        &mut self,
        round: u64,
        operation: Operation,
        digest: u64,
        part: Part,
        data: &[u8],
        last: WriteStep,
    ) {
        let is_read = operation.is_read_from(self.rank);
        if operation.is_written_by(self.rank) {
            let words = operation.blocks(self.members) * part.words();
            let place = self.contribution(self.rank, round, operation, words);
            write(place, operation, self.members, part, data);
        }
        if last >= WriteStep::Round {
            let shown = if is_read { digest } else { 0 };
            self.shown = self.shown.with(round, round - 1 - self.finished, shown);
            if is_read || Shown::is_due(round) {
                self.words().show(self.rank, self.shown);
                self.sleepers().wake(self.rank, self.full_fences);
            }
        }
    }

    /// Where the contribution of a member lies. That of this member may be one that nobody else takes.
    #[inline]
    fn contribution(&self, member: u32, round: u64, operation: Operation, words: usize) -> &[AtomicU64] {
        match member != self.rank || operation.is_read_from(member) {
            true => self.words().contribution(member, round, words),
            false => self.words().own_contribution(member, round, words),
        }
    }

    /// Whether `round` has finished here. If it has just done so, `result` has the result.
    ///
    /// # Errors
    /// The group has failed.
    ///
    /// # Panics
    /// If the round finishes, and `result` has another length than [`Operation::result_bytes`].
    #[inline]
    pub fn test(&mut self, round: Round, result: &mut [u8]) -> Result<bool, GroupFailure> {
        self.test_and_note(round, result, || ())
    }

    /// As [`Rounds::test`]. Calls `met` when all have written, before it takes what they have written.
    #[inline]
    fn test_and_note(
        &mut self,
        round: Round,
        result: &mut [u8],
        met: impl FnOnce(),
    ) -> Result<bool, GroupFailure> {
        self.failure.map_or(Ok(()), Err)?;
        let Round(round) = round;
        let words = GroupWords::new(self.memory.words(), &self.layout);
        let pending = self.pending[round as usize % GROUP_ROUNDS].as_mut().filter(|_| round > self.finished);
        let Some(pending) = pending else { return Ok(true) };
        let (first, end) = pending.awaited;
        // This member has written when it started.
        for member in (first..end).filter(|&member| member != self.rank) {
            match words.look(member, round, pending.digest) {
                Ok(Some(finished)) => pending.finished = pending.finished.min(finished),
                Ok(None) => {
                    pending.awaited.0 = member;
                    return Ok(false);
                }
                Err(failure) => return Err(self.fail(failure)),
            }
        }
        let Pending { operation, part, finished, .. } = *pending;
        self.take_all(round, operation, part, finished, result, met);
        Ok(true)
    }

    /// Takes what all that are awaited have written for a round, and finishes it.
    ///
    /// - `finished`: the lowest round up to which they had finished.
    /// - `met`: called before, if there is something to take.
    ///
    /// # Panics
    /// If `result` has another length than the operation says.
    #[inline(always)]
    fn take_all(
        &mut self,
        round: u64,
        operation: Operation,
        part: Part,
        finished: u64,
        result: &mut [u8],
        met: impl FnOnce(),
    ) {
        assert_eq!(
            result.len(),
            operation.result_bytes(self.rank, self.members),
            "the result of {operation:?}"
        );
        let awaited = operation.awaited(self.rank, self.members);
        if part.bytes > 0 {
            met();
            awaited.clone().for_each(|member| self.take(member, round, operation, part, result));
        }
        // Of this member it is known without a look.
        if awaited.len() + usize::from(!awaited.contains(&self.rank)) == self.members as usize {
            self.all_finished = self.all_finished.max(finished.min(self.finished));
        }
        self.finish(round);
    }

    /// The first call of [`Rounds::advance`] for a task, which looks up to `looks` times more at each member that has not
    /// written. Most operations have one part, are the only one under way, and end here: they need no place among those under
    /// way.
    ///
    /// # Errors
    /// The group has failed.
    ///
    /// # Panics
    /// As for [`Rounds::advance`].
    pub fn begin(
        &mut self,
        task: &mut Task,
        data: &[u8],
        result: &mut [u8],
        looks: u32,
        clock: impl Fn() -> u64,
    ) -> Result<bool, GroupFailure> {
        let round = self.next;
        let is_alone = task.cut.parts() == 1 && round == self.finished + 1 && self.open_task.is_none();
        let has_room = self.all_finished + MAX_ROUNDS >= round;
        if !is_alone || !has_room || self.failure.is_some() {
            return self.advance(task, data, result, clock);
        }
        let (operation, part) = (task.operation, task.cut.part(0));
        assert_eq!(
            data.len(),
            operation.data_bytes(self.rank, self.members),
            "{operation:?} at {}",
            self.rank
        );
        let digest = operation.digest();
        self.write(round, operation, digest, part, data, WriteStep::Round);
        self.next += 1;
        (task.first, task.started) = (Some(round), 1);
        let awaited = operation.awaited(self.rank, self.members);
        let (mut lowest, words) = (u64::MAX, GroupWords::new(self.memory.words(), &self.layout));
        for member in awaited.clone().filter(|&member| member != self.rank) {
            let mut seen = words.look(member, round, digest);
            if let Ok(None) = seen {
                task.has_waited = true;
                words.spin(member, round, looks);
                seen = words.look(member, round, digest);
            }
            match seen {
                Ok(Some(finished)) => lowest = lowest.min(finished),
                Ok(None) => {
                    let awaited = (member, awaited.end);
                    self.pending[round as usize % GROUP_ROUNDS] =
                        Some(Pending { operation, part, digest, awaited, finished: lowest });
                    return Ok(false);
                }
                Err(failure) => return Err(self.fail(failure)),
            }
        }
        let (has_waited, met_at) = (task.has_waited, &mut task.met_at);
        self.take_all(round, operation, part, lowest, result, || {
            *met_at = if has_waited { clock() } else { 0 }
        });
        task.finished = 1;
        Ok(true)
    }

    /// Takes what `member` has written for a round, and combines vectors. Members come in rank order.
    #[inline]
    fn take(&self, member: u32, round: u64, operation: Operation, part: Part, result: &mut [u8]) {
        let block_bytes = operation.block_bytes();
        let words = operation.blocks(self.members) * part.words();
        let written = self.contribution(member, round, operation, words);
        match operation {
            Operation::Barrier => {}
            Operation::Reduce { vector, .. } | Operation::AllReduce(vector) => {
                let result = &mut result[part.within(0, block_bytes)];
                if member == 0 { read(written, result) } else { combine(vector, written, result) }
            }
            Operation::Broadcast { .. } => read(written, &mut result[part.within(0, block_bytes)]),
            Operation::AllGather { .. } | Operation::Gather { .. } => {
                read(written, &mut result[part.within(member as usize, block_bytes)]);
            }
            Operation::AllToAll { .. } => {
                let ours = &written[self.rank as usize * part.words()..];
                read(ours, &mut result[part.within(member as usize, block_bytes)]);
            }
            Operation::Scatter { .. } => {
                let ours = &written[self.rank as usize * part.words()..];
                read(ours, &mut result[part.within(0, block_bytes)]);
            }
        }
    }

    /// An operation of any length. Nothing of it is started yet.
    ///
    /// # Panics
    /// If the group cannot do it.
    pub fn task(&self, operation: Operation) -> Task {
        let cut = self.cut(operation);
        Task { operation, cut, first: None, started: 0, finished: 0, has_waited: false, met_at: 0 }
    }

    /// Starts and tests what it can of an operation. Returns whether it has finished here. Operations begin in the order
    /// of the first calls, and one begins when all parts of the one before have started.
    ///
    /// - `data`, `result`: the same memory in all calls for this operation. Until it has finished, `result` has a part of it.
    /// - `clock`: read when the members have met ([`Task::waited_until`]), if we have waited for that. Never 0.
    ///
    /// # Errors
    /// The group has failed.
    ///
    /// # Panics
    /// If one of them has another length than the operation says.
    pub fn advance(
        &mut self,
        task: &mut Task,
        data: &[u8],
        result: &mut [u8],
        clock: impl Fn() -> u64,
    ) -> Result<bool, GroupFailure> {
        let parts = task.cut.parts();
        loop {
            let may_start =
                task.started < parts && (self.open_task.is_none() || self.open_task == task.first);
            let started = match may_start {
                true => self.start_part(task.operation, task.cut.part(task.started), data)?,
                false => None,
            };
            if let Some(Round(round)) = started {
                task.started += 1;
                let first = *task.first.get_or_insert(round);
                self.open_task = (task.started < parts).then_some(first);
            }
            let is_tested = match task.first {
                Some(first) if task.finished == 0 && task.started > 0 => {
                    let (has_waited, met_at) = (task.has_waited, &mut task.met_at);
                    let met = || *met_at = if has_waited { clock() } else { 0 };
                    self.test_and_note(Round(first), result, met)?
                }
                Some(first) if task.finished < task.started => {
                    self.test(Round(first + task.finished), result)?
                }
                _ => false,
            };
            if task.finished == 0 {
                task.has_waited |= !is_tested;
                // A member that waits for nobody may have waited for room: others were four rounds behind.
                if is_tested && task.has_waited && task.met_at == 0 && parts > 1 {
                    task.met_at = clock();
                }
            }
            task.finished += u64::from(is_tested);
            if task.finished == parts {
                return Ok(true);
            }
            if started.is_none() && !is_tested {
                return self.failure.map_or(Ok(false), Err);
            }
        }
    }

    /// This member needs nothing of `round` any more.
    fn finish(&mut self, round: u64) {
        self.pending[round as usize % GROUP_ROUNDS] = None;
        // Otherwise an earlier round is under way.
        if round == self.finished + 1 {
            let is_pending = |round: &u64| self.pending[*round as usize % GROUP_ROUNDS].is_some();
            self.finished = (round + 1..self.next).find(is_pending).unwrap_or(self.next) - 1;
            self.words().set_finished(self.rank, self.finished);
            self.sleepers().wake(self.rank, self.full_fences);
        }
    }

    /// Whether all members have finished `round`.
    fn all_have_finished(&mut self, round: u64) -> bool {
        if self.all_finished < round {
            let words = self.words();
            let lowest = words.members().map(|member| words.finished(member)).min();
            self.all_finished = self.all_finished.max(lowest.unwrap_or(0));
        }
        self.all_finished >= round
    }

    /// Sleeps until a member that this one waits for has written or finished, at most `at_most_ns`. Returns at once if
    /// nobody is missing for a round under way. May return early.
    pub fn sleep(&mut self, at_most_ns: u64) {
        let Some(missing) = self.missing() else { return };
        // With several rounds under way, another member may end the wait.
        let waits = self.pending.iter().flatten().count() + usize::from(self.is_held_back);
        let (mut episode, awaited) = (self.episode, Some(missing).filter(|_| waits == 1));
        let is_missing = || self.missing() == Some(missing);
        self.sleepers().sleep(self.rank, &mut episode, awaited, at_most_ns, is_missing);
        self.episode = episode;
    }

    /// A member that is missing. `None`: some round under way misses nobody.
    pub fn missing(&self) -> Option<u32> {
        let (words, mut found) = (self.words(), None);
        for round in self.finished + 1..self.next {
            let Some(pending) = &self.pending[round as usize % GROUP_ROUNDS] else { continue };
            let is_missing = |member: &u32| {
                *member != self.rank && matches!(words.look(*member, round, pending.digest), Ok(None))
            };
            let (first, end) = pending.awaited;
            found = found.or(Some((first..end).find(is_missing)?));
        }
        if self.is_held_back {
            let needed = self.next.saturating_sub(MAX_ROUNDS);
            found = found.or(Some(words.members().find(|&member| words.finished(member) < needed)?));
        }
        found
    }

    /// Looks for members that are waited for and do not run, have left or have failed. Costs some system calls.
    ///
    /// # Errors
    /// The group has failed.
    pub fn check(&mut self, is_running: impl Fn(u64) -> bool) -> Result<(), GroupFailure> {
        self.failure.map_or(Ok(()), Err)?;
        let words = self.words();
        let gone = |member: u32| {
            let died = GroupFailure { member, fault: PeerFault::Died };
            let failure = words.failure(member);
            failure.or_else(|| (!is_running(words.endpoint(member))).then_some(died))
        };
        // What a member has written before its end is valid, so look once more afterwards.
        let mut found = None;
        for round in self.finished + 1..self.next {
            let Some(pending) = &self.pending[round as usize % GROUP_ROUNDS] else { continue };
            let (first, end) = pending.awaited;
            let missing = |member: u32| {
                member != self.rank && matches!(words.look(member, round, pending.digest), Ok(None))
            };
            let lost = |member| gone(member).filter(|_| missing(member));
            found = found.or_else(|| (first..end).filter(|&member| missing(member)).find_map(lost));
        }
        if self.is_held_back {
            let needed = self.next.saturating_sub(MAX_ROUNDS);
            let missing = |member: &u32| words.finished(*member) < needed;
            let lost = |member| gone(member).filter(|_| missing(&member));
            found = found.or_else(|| words.members().filter(missing).find_map(lost));
        }
        found.map_or(Ok(()), |failure| Err(self.fail(failure)))
    }

    /// The group has failed: members that wait for this one see it in its line.
    pub fn fail(&mut self, failure: GroupFailure) -> GroupFailure {
        self.failure = Some(failure);
        self.words().fail(self.rank, failure);
        failure
    }
}

/// Combines `result` with a vector.
fn combine(vector: Vector, words: &[AtomicU64], result: &mut [u8]) {
    let mut bytes = [0; COMBINED_BYTES];
    for (words, result) in words.chunks(COMBINED_BYTES / 8).zip(result.chunks_mut(COMBINED_BYTES)) {
        let with = &mut bytes[..result.len()];
        read(words, with);
        vector.combination.combine(result, with);
    }
}
