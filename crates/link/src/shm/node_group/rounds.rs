//! The rounds of a group: what members write for each other, and when a round has ended.
//!
//! All members start the same operations in the same order. The number of an operation is its *round*, from 1 on. A
//! member writes only its own lines, so no instruction is locked, and a kill at any instruction leaves no half state.
//! This file knows words that all members share. It does not know where they lie, nor which members run.
//! ```text
//! start     vector and shape to the own slot of the round, one of four; last, the round, which publishes it
//! test      looks at the slots of those it waits for, in rank order; then combines their vectors in rank order
//! finish    writes the highest round up to which it needs nothing any more
//! bound     a member writes for a round when all members have finished the round four before it
//! ```
//! Who waits for whom:
//!
//! | operation | writes | waits for |
//! |---|---|---|
//! | barrier, all-reduce | everyone | everyone |
//! | reduce | everyone | the root for everyone, others for nobody |
//! | broadcast | the root, to a buffer of the group | others for the root, the root for nobody |
//!
//! A slot also says how many rounds its member had not finished when it wrote. So members that wait for each other
//! look at no other line.

use crate::shm::sync::{AtomicU64, GROUP_BUFFER_WORDS, GROUP_ROUNDS, GROUP_SLOT_WORDS, Ordering};
use core::ops::Deref;
use weir_proto::PeerFault;
use weir_proto::offload::reduce::Vector;

/// Bound: rounds that a member has started and that not all members have finished.
pub const MAX_ROUNDS: u64 = GROUP_ROUNDS as u64;
/// Most members of a group.
pub const MAX_MEMBERS: u32 = 256;
/// Longest vector of a reduction. Unit: bytes.
pub const MAX_VECTOR_BYTES: u32 = (8 * (GROUP_SLOT_WORDS - PAYLOAD)) as u32;
/// Longest broadcast. Unit: bytes.
pub const MAX_BROADCAST_BYTES: u32 = 8 * GROUP_BUFFER_WORDS as u32;

/// Words of a slot: its round, its shape, the vector.
const ROUND: usize = 0;
const SHAPE: usize = 1;
const PAYLOAD: usize = 2;

/// Words of a member's line: its endpoint, its state, the round up to which it has finished.
const ENDPOINT: usize = 0;
const STATE: usize = 1;
const FINISHED: usize = 2;
const LINE_WORDS: usize = 8;

const BUFFERS_WORDS: usize = GROUP_ROUNDS * GROUP_BUFFER_WORDS;
const MEMBER_WORDS: usize = LINE_WORDS + GROUP_ROUNDS * GROUP_SLOT_WORDS;

/// The position of the number of unfinished rounds in a shape.
const UNFINISHED_BIT: u32 = 56;

/// Length of the shared memory of a group. Unit: words.
pub const fn group_words(members: u32) -> usize {
    BUFFERS_WORDS + members as usize * MEMBER_WORDS
}

/// What the members of a group do in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Ends when all have started it.
    Barrier,
    /// Combines the vectors of all members in rank order. The root gets the result.
    Reduce {
        /// The rank of the root.
        root: u32,
        /// The vectors, of at most [`MAX_VECTOR_BYTES`].
        vector: Vector,
    },
    /// As `Reduce`. All members get the result.
    AllReduce(Vector),
    /// All members get the bytes of the root.
    Broadcast {
        /// The rank of the root.
        root: u32,
        /// At most [`MAX_BROADCAST_BYTES`]. Unit: bytes.
        bytes: u32,
    },
}

impl Operation {
    /// Whether a group of `members` members can do it.
    pub fn is_valid(self, members: u32) -> bool {
        let fits = |vector: Vector| vector.is_valid() && vector.bytes <= MAX_VECTOR_BYTES;
        match self {
            Operation::Barrier => true,
            Operation::Reduce { root, vector } => root < members && fits(vector),
            Operation::AllReduce(vector) => fits(vector),
            Operation::Broadcast { root, bytes } => root < members && bytes <= MAX_BROADCAST_BYTES,
        }
    }

    /// Length of what the member `rank` contributes. Unit: bytes.
    pub fn data_bytes(self, rank: u32) -> usize {
        match self {
            Operation::Reduce { vector, .. } | Operation::AllReduce(vector) => vector.bytes as usize,
            Operation::Broadcast { root, bytes } if root == rank => bytes as usize,
            Operation::Barrier | Operation::Broadcast { .. } => 0,
        }
    }

    /// Length of what the member `rank` gets. The root of a broadcast gets nothing: it has the bytes. Unit: bytes.
    pub fn result_bytes(self, rank: u32) -> usize {
        match self {
            Operation::AllReduce(vector) => vector.bytes as usize,
            Operation::Reduce { root, vector } if root == rank => vector.bytes as usize,
            Operation::Broadcast { root, bytes } if root != rank => bytes as usize,
            Operation::Barrier | Operation::Reduce { .. } | Operation::Broadcast { .. } => 0,
        }
    }

    /// Whether the member `rank` writes in this round.
    fn is_written_by(self, rank: u32) -> bool {
        !matches!(self, Operation::Broadcast { root, .. } if root != rank)
    }

    /// The members that the member `rank` waits for.
    fn awaited(self, rank: u32, members: u32) -> core::ops::Range<u32> {
        match self {
            Operation::Reduce { root, .. } if root != rank => 0..0,
            Operation::Broadcast { root, .. } if root == rank => 0..0,
            Operation::Broadcast { root, .. } => root..root + 1,
            _ => 0..members,
        }
    }

    /// What all members must agree on, as a number.
    fn shape(self) -> u64 {
        let of = |vector: Vector| {
            let Vector { bytes, combination } = vector;
            let types = (combination.operation as u64) << 8 | combination.word_type as u64;
            types << 32 | u64::from(bytes)
        };
        let (kind, rest, root) = match self {
            Operation::Barrier => (1, 0, 0),
            Operation::Reduce { root, vector } => (2, of(vector), root),
            Operation::AllReduce(vector) => (3, of(vector), 0),
            Operation::Broadcast { root, bytes } => (4, bytes.into(), root),
        };
        // The root has 8 bits, bytes have 32, types 12: there are less than 16 operations.
        kind << 52 | rest << 8 | u64::from(root)
    }
}

/// The reason why a group can do nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the member of rank {member} has failed: {fault:?}")]
pub struct GroupFailure {
    /// The member, by rank.
    pub member: u32,
    /// Its fault. [`PeerFault::Closed`]: it has left. [`PeerFault::Malformed`]: it does another operation, or what it
    /// has written makes no sense.
    pub fault: PeerFault,
}

/// A round that a member has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a round that is never tested to its end stops the group"]
pub struct Round(u64);

/// A round that has not finished here.
#[derive(Clone, Copy, Debug)]
struct Pending {
    operation: Operation,
    /// Ranks that we still wait for.
    awaited: (u32, u32),
    /// The lowest round up to which the members seen so far had finished.
    finished: u64,
}

/// Steps of writing at which a member can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests stop earlier"))]
pub(super) enum WriteStep {
    /// Its vector, or the bytes that it broadcasts.
    Data,
    /// What it does, and how far it is.
    Shape,
    /// The round: now others see it.
    Round,
}

/// State bits of a member.
mod state {
    pub const JOINED: u64 = 1;
    pub const FAILED: u64 = 2;
    pub const LEFT: u64 = 4;
    pub const FAULT_BIT: u32 = 8;
    pub const MEMBER_BIT: u32 = 32;
}

const FAULTS: [PeerFault; 3] = [PeerFault::Died, PeerFault::Malformed, PeerFault::Closed];

/// The shared words of a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupWords<'a> {
    words: &'a [AtomicU64],
}

impl<'a> GroupWords<'a> {
    /// # Panics
    /// If there are too few for `members` members.
    pub fn new(words: &'a [AtomicU64], members: u32) -> GroupWords<'a> {
        GroupWords { words: &words[..group_words(members)] }
    }

    fn members(self) -> core::ops::Range<u32> {
        0..((self.words.len() - BUFFERS_WORDS) / MEMBER_WORDS) as u32
    }

    fn line(self, member: u32) -> &'a [AtomicU64] {
        &self.words[BUFFERS_WORDS + member as usize * MEMBER_WORDS..][..LINE_WORDS]
    }

    fn slot(self, member: u32, round: u64) -> &'a [AtomicU64] {
        let slot = (round % MAX_ROUNDS) as usize * GROUP_SLOT_WORDS;
        &self.words[BUFFERS_WORDS + member as usize * MEMBER_WORDS + LINE_WORDS + slot..][..GROUP_SLOT_WORDS]
    }

    fn buffer(self, round: u64) -> &'a [AtomicU64] {
        &self.words[(round % MAX_ROUNDS) as usize * GROUP_BUFFER_WORDS..][..GROUP_BUFFER_WORDS]
    }

    /// Prepares the memory for a new group of these endpoints. Nobody else looks at it.
    pub fn clear(self, endpoints: &[u64]) {
        for (member, &endpoint) in self.members().zip(endpoints) {
            let line = self.line(member);
            line[ENDPOINT].store(endpoint, Ordering::Relaxed);
            line[STATE].store(0, Ordering::Relaxed);
            line[FINISHED].store(0, Ordering::Relaxed);
            for round in 0..MAX_ROUNDS {
                self.slot(member, round)[ROUND].store(0, Ordering::Relaxed);
            }
        }
    }

    /// The endpoint of a member.
    pub fn endpoint(self, member: u32) -> u64 {
        self.line(member)[ENDPOINT].load(Ordering::Relaxed)
    }

    /// Whether a member has not joined yet.
    pub fn is_awaited(self, member: u32) -> bool {
        self.line(member)[STATE].load(Ordering::Acquire) == 0
    }

    /// Whether all members have left or died.
    pub fn has_ended(self, is_running: impl Fn(u64) -> bool) -> bool {
        self.members().all(|member| {
            let has_left = self.line(member)[STATE].load(Ordering::Acquire) & state::LEFT != 0;
            has_left || !is_running(self.endpoint(member))
        })
    }

    /// Takes the place of a member.
    pub fn join(self, member: u32) {
        self.line(member)[STATE].store(state::JOINED, Ordering::Release);
    }

    /// Leaves. The member touches these words no more.
    pub fn leave(self, member: u32) {
        let word = &self.line(member)[STATE];
        word.store(word.load(Ordering::Relaxed) | state::LEFT, Ordering::Release);
    }

    fn fail(self, member: u32, failure: GroupFailure) {
        let fault = FAULTS.iter().position(|&fault| fault == failure.fault).unwrap_or(0) as u64;
        let failed = state::JOINED | state::FAILED | fault << state::FAULT_BIT;
        let word = failed | u64::from(failure.member) << state::MEMBER_BIT;
        self.line(member)[STATE].store(word, Ordering::Release);
    }

    /// Why nothing more comes from `member`. `None`: it is in the group, or has not joined yet.
    fn failure(self, member: u32) -> Option<GroupFailure> {
        let word = self.line(member)[STATE].load(Ordering::Acquire);
        if word & state::FAILED != 0 {
            let fault = FAULTS.get((word >> state::FAULT_BIT) as usize & 0xff).copied();
            let cause = (word >> state::MEMBER_BIT) as u32;
            return Some(GroupFailure { member: cause, fault: fault.unwrap_or(PeerFault::Malformed) });
        }
        (word & state::LEFT != 0).then_some(GroupFailure { member, fault: PeerFault::Closed })
    }

    fn finished(self, member: u32) -> u64 {
        self.line(member)[FINISHED].load(Ordering::Acquire)
    }

    /// Looks at what `member` has written for `round`: the round up to which it had finished then. `None`: nothing yet.
    #[inline]
    fn look(self, member: u32, round: u64, operation: Operation) -> Result<Option<u64>, GroupFailure> {
        let slot = self.slot(member, round);
        let written = slot[ROUND].load(Ordering::Acquire);
        if written < round {
            return Ok(None);
        }
        let shape = slot[SHAPE].load(Ordering::Relaxed);
        let unfinished = shape >> UNFINISHED_BIT;
        let agrees = shape & ((1 << UNFINISHED_BIT) - 1) == operation.shape();
        if written > round || !agrees || unfinished >= MAX_ROUNDS.min(round) {
            return Err(GroupFailure { member, fault: PeerFault::Malformed });
        }
        Ok(Some(round - 1 - unfinished))
    }
}

/// A member's part in the rounds of its group.
#[derive(Debug)]
pub struct Rounds<M> {
    memory: M,
    members: u32,
    rank: u32,
    /// The next round that this member starts.
    next: u64,
    /// All members have finished this round and those before it.
    all_finished: u64,
    /// Up to here this member has finished.
    finished: u64,
    /// By round.
    pending: [Option<Pending>; GROUP_ROUNDS],
    /// The last start waits for members that have not finished.
    is_held_back: bool,
    failure: Option<GroupFailure>,
}

impl<M: Deref<Target = [AtomicU64]>> Rounds<M> {
    /// The member `rank` of `members`, which has joined in `memory`.
    pub fn new(memory: M, members: u32, rank: u32) -> Rounds<M> {
        assert!(rank < members && members <= MAX_MEMBERS, "rank {rank} of {members} members");
        let pending = [None; GROUP_ROUNDS];
        Rounds {
            memory,
            members,
            rank,
            next: 1,
            all_finished: 0,
            finished: 0,
            pending,
            is_held_back: false,
            failure: None,
        }
    }

    /// The shared words.
    pub fn words(&self) -> GroupWords<'_> {
        GroupWords::new(&self.memory, self.members)
    }

    /// Our rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Starts the next round. `None`: too many are under way at some member, so try again, and test earlier ones.
    ///
    /// - `data`: what this member contributes.
    ///
    /// # Errors
    /// The group has failed.
    ///
    /// # Panics
    /// If the group cannot do the operation, or `data` has another length than [`Operation::data_bytes`].
    pub fn start(&mut self, operation: Operation, data: &[u8]) -> Result<Option<Round>, GroupFailure> {
        assert!(operation.is_valid(self.members), "{operation:?} in a group of {} members", self.members);
        assert_eq!(data.len(), operation.data_bytes(self.rank), "{operation:?} at rank {}", self.rank);
        self.failure.map_or(Ok(()), Err)?;
        let round = self.next;
        self.is_held_back = !self.all_have_finished(round.saturating_sub(MAX_ROUNDS));
        if self.is_held_back {
            return Ok(None);
        }
        self.write(round, operation, data, WriteStep::Round);
        let awaited = operation.awaited(self.rank, self.members);
        let awaited = (awaited.start, awaited.end);
        self.pending[round as usize % GROUP_ROUNDS] =
            Some(Pending { operation, awaited, finished: u64::MAX });
        self.next += 1;
        if awaited.0 == awaited.1 {
            self.finish(round);
        }
        Ok(Some(Round(round)))
    }

    /// Writes our part of a round, up to a step.
    #[inline]
    pub(super) fn write(&self, round: u64, operation: Operation, data: &[u8], last: WriteStep) {
        if !operation.is_written_by(self.rank) {
            return;
        }
        let words = self.words();
        let slot = words.slot(self.rank, round);
        match operation {
            Operation::Broadcast { .. } => write(words.buffer(round), data),
            _ => write(&slot[PAYLOAD..], data),
        }
        if last >= WriteStep::Shape {
            let unfinished = round - 1 - self.finished;
            slot[SHAPE].store(operation.shape() | unfinished << UNFINISHED_BIT, Ordering::Relaxed);
        }
        if last >= WriteStep::Round {
            // Release: who sees the round also sees what was written for it.
            slot[ROUND].store(round, Ordering::Release);
        }
    }

    /// Whether `round` has finished here. If it has just done so, `result` has the result.
    ///
    /// # Errors
    /// The group has failed.
    ///
    /// # Panics
    /// If the round finishes, and `result` has another length than [`Operation::result_bytes`].
    pub fn test(&mut self, round: Round, result: &mut [u8]) -> Result<bool, GroupFailure> {
        self.failure.map_or(Ok(()), Err)?;
        let Round(round) = round;
        let Some(mut pending) = self.pending[round as usize % GROUP_ROUNDS].filter(|_| round > self.finished)
        else {
            return Ok(true);
        };
        let words = self.words();
        let (mut first, end) = pending.awaited;
        while first < end {
            match words.look(first, round, pending.operation) {
                Ok(Some(finished)) => pending.finished = pending.finished.min(finished),
                Ok(None) => {
                    pending.awaited.0 = first;
                    self.pending[round as usize % GROUP_ROUNDS] = Some(pending);
                    return Ok(false);
                }
                Err(failure) => return Err(self.fail(failure)),
            }
            first += 1;
        }
        self.take(round, pending.operation, result);
        if pending.operation.awaited(self.rank, self.members) == (0..self.members) {
            self.all_finished = self.all_finished.max(pending.finished);
        }
        self.finish(round);
        Ok(true)
    }

    /// Takes the result of a round for which all have written that we wait for.
    fn take(&self, round: u64, operation: Operation, result: &mut [u8]) {
        assert_eq!(result.len(), operation.result_bytes(self.rank), "the result of {operation:?}");
        let words = self.words();
        match operation {
            Operation::Barrier => {}
            Operation::Broadcast { .. } => read(words.buffer(round), result),
            Operation::Reduce { vector, .. } | Operation::AllReduce(vector) => {
                read(&words.slot(0, round)[PAYLOAD..], result);
                let mut bytes = [0; MAX_VECTOR_BYTES as usize];
                let with = &mut bytes[..result.len()];
                for member in 1..self.members {
                    read(&words.slot(member, round)[PAYLOAD..], with);
                    vector.combination.combine(result, with);
                }
            }
        }
    }

    /// This member needs nothing of `round` any more.
    fn finish(&mut self, round: u64) {
        self.pending[round as usize % GROUP_ROUNDS] = None;
        let is_pending = |round: u64| self.pending[round as usize % GROUP_ROUNDS].is_some();
        let finished = (self.finished + 1..self.next).take_while(|&round| !is_pending(round)).last();
        if let Some(finished) = finished {
            self.finished = finished;
            // Release: who sees it may write over what we have read.
            self.words().line(self.rank)[FINISHED].store(finished, Ordering::Release);
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
            let missing = |member: u32| matches!(words.look(member, round, pending.operation), Ok(None));
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
    fn fail(&mut self, failure: GroupFailure) -> GroupFailure {
        self.failure = Some(failure);
        self.words().fail(self.rank, failure);
        failure
    }
}

/// Writes bytes to the first words.
fn write(words: &[AtomicU64], bytes: &[u8]) {
    for (word, bytes) in words.iter().zip(bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
    }
}

/// Reads bytes from the first words.
fn read(words: &[AtomicU64], bytes: &mut [u8]) {
    for (word, bytes) in words.iter().zip(bytes.chunks_mut(8)) {
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes()[..bytes.len()]);
    }
}
