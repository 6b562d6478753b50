//! The order of events of equal time: rounds, sources and numbers ([`Sequence`]), and the counter that draws them
//! ([`SequenceCounter`]).
//!
//! This file does not know where events wait. An event that a source schedules for the current time is of the next round, so
//! it never comes before its cause:
//! ```text
//! the event of round 0 of source 5, at 3 ps, schedules:   at 3 ps, as source 1    round 1, source 1: after all of round 0
//!                                                         at 9 ps, as source 1    round 0, source 1
//! ```

/// Bits of the number of an event. One queue draws so many in hours only.
pub(super) const NUMBER_BITS: u32 = 37;

/// Something that schedules events: a rank, or an element of the network such as a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source(pub(super) u32);

impl Source {
    /// A rank.
    #[inline]
    pub fn rank(rank: u32) -> Source {
        Source(2 * rank)
    }

    /// An element of the network.
    #[inline]
    pub fn element(element: u32) -> Source {
        Source(2 * element + 1)
    }
}

/// Orders events of equal time: by round, then by source, then in the order in which the source drew.
///
/// An event that is scheduled for the time of the event that schedules it is of the round behind that one. So it never comes
/// before its cause, and the queue gives events of equal time in the order of their sequences, whenever they were pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(Rust, packed(4))]
pub struct Sequence {
    pub(super) round: u32,
    /// The source, then the number. Only numbers of one source are compared. So one counter serves all sources of a queue.
    pub(super) source_and_number: u64,
}

impl Sequence {
    /// The first sequence of the first source.
    pub const FIRST: Sequence = Sequence { round: 0, source_and_number: 1 };

    /// Whether `self` comes before `other`.
    #[inline]
    pub fn is_before(self, other: Sequence) -> bool {
        self.as_number() < other.as_number()
    }

    /// A number that orders sequences. Comparing two of them costs less than comparing the fields.
    #[inline]
    fn as_number(self) -> u128 {
        u128::from(self.round) << u64::BITS | u128::from(self.source_and_number)
    }
}

/// Draws the sequences of the source that acts.
#[derive(Clone, Debug)]
pub struct SequenceCounter {
    /// Time and sequence of the current event. Before the first event, no time.
    now: u64,
    present: Sequence,
    /// The upper bits are the acting source.
    acting: u64,
    number: u64,
}

impl Default for SequenceCounter {
    fn default() -> SequenceCounter {
        SequenceCounter { now: u64::MAX, present: Sequence::FIRST, acting: 0, number: 0 }
    }
}

impl SequenceCounter {
    /// The event of this time and sequence is being handled from now on.
    #[inline]
    pub fn begin(&mut self, now: u64, sequence: Sequence) {
        (self.now, self.present) = (now, sequence);
    }

    /// The sequence of the current event.
    #[inline]
    pub fn present(&self) -> Sequence {
        self.present
    }

    /// Draws for another source from now on. Returns the one before.
    #[inline]
    pub fn act_as(&mut self, source: Source) -> Source {
        let before = std::mem::replace(&mut self.acting, u64::from(source.0) << NUMBER_BITS);
        Source((before >> NUMBER_BITS) as u32)
    }

    /// The sequence of the next event of the acting source, which is for the time `at`.
    #[inline]
    pub fn draw(&mut self, at: u64) -> Sequence {
        self.number += 1;
        let round = if at == self.now { self.present.round + 1 } else { 0 };
        Sequence { round, source_and_number: self.acting | self.number }
    }
}
