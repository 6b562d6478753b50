//! The shared words of a group: where everything lies, and how a member shows how far it is.
//! ```text
//! sleepers one line             a bit for each member that sleeps (`sleepers.rs`)
//! board    one word per member   the round that it has written, and what it did in the last four
//! values   four rounds           contributions of one word, beside each other; in small groups in the lines of the board
//! lines    one line per member   its endpoint, its state, the round up to which it has finished
//! slots    four per member       longer contributions
//! ```
//! A member writes only its own words. In small groups each word of the board has a line of its own: all members
//! look at the same time, each from a core of its own. A contribution of one word lies in the same line, so it comes with
//! the word that announces it. In larger groups a line has eight words of the board or eight contributions, so that a member
//! that looks takes few lines from other cores.
//!
//! **A word of the board** has the number of the last round in which the member has written, from its lowest bits on; how
//! many earlier rounds the member had not finished then; and a digest of the operation of each of the last rounds, 0
//! where it did not write. Members differ by at most four rounds, so a few bits of the number suffice. A member
//! that never writes shows its word from time to time, so that others do not take it for a later one.

use super::operation::{Cut, DIGEST_BITS, Operation, Part};
use super::sleepers::SLEEPER_WORDS;
use crate::shm::sync::{
    AtomicU64, GROUP_LINE_WORDS, GROUP_ROUNDS, Ordering, group_slot_words, read_words, write_words,
};
use core::ops::Range;
use weir_proto::PeerFault;

/// Bound: rounds that a member has started and that not all members have finished.
pub const MAX_ROUNDS: u64 = GROUP_ROUNDS as u64;

/// Words of a member's line.
const ENDPOINT: usize = 0;
const STATE: usize = 1;
const FINISHED: usize = 2;

/// Words before the board.
const HEAD_WORDS: usize = lines_of(SLEEPER_WORDS);

/// Most members whose words of the board have lines of their own.
const SPREAD_MEMBERS: usize = 4;

const _: () =
    assert!(GROUP_ROUNDS < GROUP_LINE_WORDS, "a word of the board and the values of a member are a line");

/// Bits of a word of the board: the round, unfinished rounds, digests.
const ROUND_BITS: u32 = 14;
const UNFINISHED_BITS: u32 = 2;
const DIGESTS_BIT: u32 = ROUND_BITS + UNFINISHED_BITS;
const _: () =
    assert!(DIGESTS_BIT + DIGEST_BITS * GROUP_ROUNDS as u32 <= 64 && GROUP_ROUNDS <= 1 << UNFINISHED_BITS);

/// A member shows its word at least once in so many rounds.
const SHOW_INTERVAL: u64 = 1 << (ROUND_BITS - 2);

/// State bits of a member.
mod state {
    pub const JOINED: u64 = 1;
    pub const FAILED: u64 = 2;
    pub const LEFT: u64 = 4;
    pub const FAULT_BIT: u32 = 8;
    pub const MEMBER_BIT: u32 = 32;
}

const FAULTS: [PeerFault; 3] = [PeerFault::Died, PeerFault::Malformed, PeerFault::Closed];

/// Words of `count` words, in whole lines.
const fn lines_of(count: usize) -> usize {
    count.next_multiple_of(GROUP_LINE_WORDS)
}

/// The places of a group's words. Made once for each member, because it divides.
#[derive(Clone, Copy, Debug)]
pub struct GroupLayout {
    members: u32,
    /// Distance of two words of the board, and of two values of a round.
    board_step: usize,
    values: usize,
    /// Distance of the values of two rounds.
    values_step: usize,
    lines: usize,
    slots: usize,
    slot_words: usize,
    /// Length. Unit: words.
    pub words: usize,
}

impl GroupLayout {
    /// The layout of a group of `members` members.
    pub const fn new(members: u32) -> GroupLayout {
        let count = members as usize;
        let is_spread = count <= SPREAD_MEMBERS;
        let board_step = if is_spread { GROUP_LINE_WORDS } else { 1 };
        let board_end = HEAD_WORDS + lines_of(count * board_step);
        let (values, values_step) =
            if is_spread { (HEAD_WORDS + 1, 1) } else { (board_end, lines_of(count)) };
        let lines = if is_spread { board_end } else { board_end + GROUP_ROUNDS * values_step };
        let slots = lines + count * GROUP_LINE_WORDS;
        let slot_words = group_slot_words(members);
        let words = slots + count * GROUP_ROUNDS * slot_words;
        GroupLayout { members, board_step, values, values_step, lines, slots, slot_words, words }
    }

    /// How a group of this layout cuts an operation.
    pub fn cut(&self, operation: Operation) -> Cut {
        Cut::new(operation, self.members, self.slot_words)
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

/// What a member shows on the board.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown(u64);

impl Shown {
    /// After `round`, in which the member wrote what has this digest, or nothing (0).
    pub fn with(self, round: u64, unfinished: u64, digest: u64) -> Shown {
        let bit = digest_bit(round);
        let digests = self.0 & !(mask(DIGEST_BITS) << bit) & !mask(DIGESTS_BIT);
        Shown(digests | digest << bit | unfinished << ROUND_BITS | round & mask(ROUND_BITS))
    }

    /// Whether it must be shown although the member writes nothing in `round`.
    pub fn is_due(round: u64) -> bool {
        round.is_multiple_of(SHOW_INTERVAL)
    }
}

/// By how much the round that a word of the board shows is ahead of `round`: the difference of two numbers of few bits, with its
/// sign.
fn ahead(word: u64, round: u64) -> i64 {
    let unused = u64::BITS - ROUND_BITS;
    (word.wrapping_sub(round) << unused).cast_signed() >> unused
}

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

fn digest_bit(round: u64) -> u32 {
    DIGESTS_BIT + DIGEST_BITS * (round % MAX_ROUNDS) as u32
}

/// The shared words of a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupWords<'a> {
    words: &'a [AtomicU64],
    layout: &'a GroupLayout,
}

impl<'a> GroupWords<'a> {
    /// - `words`: as many as the layout says.
    pub fn new(words: &'a [AtomicU64], layout: &'a GroupLayout) -> GroupWords<'a> {
        GroupWords { words, layout }
    }

    /// The ranks.
    pub fn members(self) -> Range<u32> {
        0..self.layout.members
    }

    fn board(self, member: u32) -> &'a AtomicU64 {
        &self.words[HEAD_WORDS + member as usize * self.layout.board_step]
    }

    fn line(self, member: u32) -> &'a [AtomicU64] {
        &self.words[self.layout.lines + member as usize * GROUP_LINE_WORDS..][..GROUP_LINE_WORDS]
    }

    /// Where the contribution of a member to a round lies, of so many words.
    pub fn contribution(self, member: u32, round: u64, words: usize) -> &'a [AtomicU64] {
        let (layout, member, place) = (self.layout, member as usize, (round % MAX_ROUNDS) as usize);
        if words <= 1 {
            let value = layout.values + place * layout.values_step + member * layout.board_step;
            return &self.words[value..][..words];
        }
        self.slot(member, place, words)
    }

    /// Where a contribution lies that only its own member takes, of so many words. Nobody else looks at these lines.
    pub fn own_contribution(self, member: u32, round: u64, words: usize) -> &'a [AtomicU64] {
        self.slot(member as usize, (round % MAX_ROUNDS) as usize, words)
    }

    fn slot(self, member: usize, place: usize, words: usize) -> &'a [AtomicU64] {
        let layout = self.layout;
        &self.words[layout.slots + (member * GROUP_ROUNDS + place) * layout.slot_words..]
            [..words.min(layout.slot_words)]
    }

    /// The bits of those that sleep.
    pub fn sleepers(self) -> &'a [AtomicU64] {
        &self.words[..SLEEPER_WORDS]
    }

    /// Prepares the memory for a new group of these endpoints. Nobody else looks at it.
    pub fn clear(self, endpoints: &[u64]) {
        for (member, &endpoint) in self.members().zip(endpoints) {
            let line = self.line(member);
            line[ENDPOINT].store(endpoint, Ordering::Relaxed);
            line[STATE].store(0, Ordering::Relaxed);
            line[FINISHED].store(0, Ordering::Relaxed);
            self.board(member).store(0, Ordering::Relaxed);
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

    /// Says that the group has failed for a member.
    pub fn fail(self, member: u32, failure: GroupFailure) {
        let fault = FAULTS.iter().position(|&fault| fault == failure.fault).unwrap_or(0) as u64;
        let failed = state::JOINED | state::FAILED | fault << state::FAULT_BIT;
        let word = failed | u64::from(failure.member) << state::MEMBER_BIT;
        self.line(member)[STATE].store(word, Ordering::Release);
    }

    /// Why nothing more comes from `member`. `None`: it is in the group, or has not joined yet.
    pub fn failure(self, member: u32) -> Option<GroupFailure> {
        let word = self.line(member)[STATE].load(Ordering::Acquire);
        if word & state::FAILED != 0 {
            let fault = FAULTS.get((word >> state::FAULT_BIT) as usize & 0xff).copied();
            let cause = (word >> state::MEMBER_BIT) as u32;
            return Some(GroupFailure { member: cause, fault: fault.unwrap_or(PeerFault::Malformed) });
        }
        (word & state::LEFT != 0).then_some(GroupFailure { member, fault: PeerFault::Closed })
    }

    /// Shows how far `member` is.
    pub fn show(self, member: u32, shown: Shown) {
        // Release: who sees the round also sees what was written for it.
        self.board(member).store(shown.0, Ordering::Release);
    }

    /// Says that `member` needs nothing of `round` and those before it any more.
    pub fn set_finished(self, member: u32, round: u64) {
        // Release: who sees it may write over what the member has read.
        self.line(member)[FINISHED].store(round, Ordering::Release);
    }

    /// The round up to which `member` needs nothing any more.
    pub fn finished(self, member: u32) -> u64 {
        self.line(member)[FINISHED].load(Ordering::Acquire)
    }

    /// Looks up to `looks` times whether `member` has written for `round`, and for nothing else.
    #[inline]
    pub fn spin(self, member: u32, round: u64, looks: u32) {
        let board = self.board(member);
        // No pause between two looks: it would last longer than a cache line needs to cross.
        let _ = (0..looks).any(|_| ahead(board.load(Ordering::Acquire), round) >= 0);
    }

    /// Whether `member` has written for `round`: the round up to which it had finished then. `None`: not yet.
    ///
    /// - `digest`: that of the operation.
    ///
    /// # Errors
    /// It did something else in that round.
    #[inline]
    pub fn look(self, member: u32, round: u64, digest: u64) -> Result<Option<u64>, GroupFailure> {
        let word = self.board(member).load(Ordering::Acquire);
        let ahead = ahead(word, round);
        if ahead < 0 {
            return Ok(None);
        }
        let last = round + ahead.unsigned_abs();
        let unfinished = word >> ROUND_BITS & mask(UNFINISHED_BITS);
        let agrees = word >> digest_bit(round) & mask(DIGEST_BITS) == digest;
        if !agrees || ahead.unsigned_abs() >= MAX_ROUNDS || unfinished >= MAX_ROUNDS.min(last) {
            return Err(GroupFailure { member, fault: PeerFault::Malformed });
        }
        Ok(Some(last - 1 - unfinished))
    }
}

/// Writes the part of each block of `data` to words.
pub fn write(words: &[AtomicU64], operation: Operation, members: u32, part: Part, data: &[u8]) {
    for block in 0..operation.blocks(members) {
        let bytes = &data[part.within(block, operation.block_bytes())];
        let words = &words[block * part.words()..];
        match bytes.as_array::<8>() {
            Some(word) => words[0].store(u64::from_ne_bytes(*word), Ordering::Relaxed),
            None => write_words(words, bytes),
        }
    }
}

/// Reads bytes from the first words.
pub fn read(words: &[AtomicU64], bytes: &mut [u8]) {
    match bytes.as_mut_array::<8>() {
        Some(word) => *word = words[0].load(Ordering::Relaxed).to_ne_bytes(),
        None => read_words(words, bytes),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The line in which a word lies, and its place there.
    fn place(words: &[AtomicU64], word: &AtomicU64) -> (usize, usize) {
        let index = words.iter().position(|it| core::ptr::eq(it, word)).expect("a word of the group");
        (index / GROUP_LINE_WORDS, index % GROUP_LINE_WORDS)
    }

    #[test]
    fn in_small_groups_contributions_of_one_word_lie_in_the_line_of_the_word_that_announces_them() {
        for members in [1, 2, 4, 5, 9] {
            let layout = GroupLayout::new(members);
            let all: Vec<AtomicU64> = (0..layout.words).map(|_| AtomicU64::new(0)).collect();
            let words = GroupWords::new(&all, &layout);
            let mut places = Vec::new();
            for member in words.members() {
                let board = place(&all, words.board(member));
                for round in 0..MAX_ROUNDS {
                    let value = place(&all, &words.contribution(member, round, 1)[0]);
                    assert_eq!(value.0 == board.0, members as usize <= SPREAD_MEMBERS, "{members}: {member}");
                    places.push(value);
                }
                places.extend([board, place(&all, &words.line(member)[FINISHED])]);
            }
            let count = places.len();
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), count, "{members} members: two values have one place");
        }
    }
}
