//! The event queue: a hierarchical timing wheel. Events of equal time come out by round, then by source, and those of one
//! source in the order in which it scheduled them ([`Sequence`]). That order does not depend on what other sources do
//! meanwhile, so several queues that share the sources among them can give it too.
//!
//! Simulated time never goes back, which makes the wheel cheap. Take the highest 6-bit digit in which the
//! time of an event differs from the current time. Its position is the level of the event, its value the
//! bucket. When level 0 is empty, the queue spreads the first bucket of the lowest occupied level over the
//! levels below. An event moves at most once per level: at most four times if it lies a few microseconds
//! ahead. Events of equal time share a bucket. The queue sorts them when their time has come.
//!
//! A caller may draw a [`Sequence`] for an event and push the event later, or never. The event then comes out
//! as if it had been pushed when its sequence was drawn.
//!
//! Expected cost: 20 to 40 ns for one push and one pop, for any number of events (`weir bench sim`).

use std::cmp::Ordering;
use std::collections::BinaryHeap;

const DIGIT_BITS: u32 = 6;
const DIGITS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = 64usize.div_ceil(DIGIT_BITS as usize);
/// Most events for which an empty bucket keeps its memory. In a large world one bucket after another can hold
/// nearly all events.
const MAX_KEPT: usize = 1 << 15;

/// Bits of the number of an event. One queue draws so many in hours only.
const NUMBER_BITS: u32 = 37;

/// Something that schedules events: a rank, or an element of the network such as a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source(u32);

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
    round: u32,
    /// The source, then the number. Only numbers of one source are compared. So one counter serves all sources of a queue.
    source_and_number: u64,
}

impl Sequence {
    /// The first sequence of the first source.
    pub const FIRST: Sequence = Sequence { round: 0, source_and_number: 1 };

    /// Whether `self` comes before `other`.
    #[inline]
    pub fn is_before(self, other: Sequence) -> bool {
        self < other
    }
}

/// Draws the sequences of the source that acts.
#[derive(Clone, Debug)]
pub struct SequenceCounter {
    /// Time and sequence of the current event. Before the first event, no time.
    now: u64,
    present: Sequence,
    acting: Source,
    number: u64,
}

impl Default for SequenceCounter {
    fn default() -> SequenceCounter {
        SequenceCounter { now: u64::MAX, present: Sequence::FIRST, acting: Source(0), number: 0 }
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
        std::mem::replace(&mut self.acting, source)
    }

    /// The sequence of the next event of the acting source, which is for the time `at`.
    #[inline]
    pub fn draw(&mut self, at: u64) -> Sequence {
        self.number += 1;
        let round = if at == self.now { self.present.round + 1 } else { 0 };
        Sequence { round, source_and_number: u64::from(self.acting.0) << NUMBER_BITS | self.number }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry<E> {
    at: u64,
    sequence: Sequence,
    event: E,
}

/// Events by time. `E` should be small, because the queue moves it several times.
#[derive(Debug)]
pub struct Queue<E> {
    now: u64,
    count: usize,
    /// One bit for each level that holds events. `occupied` has one for each bucket of a level.
    levels: u32,
    occupied: [u64; LEVELS],
    buckets: Vec<Vec<Entry<E>>>,
    /// The events of the current time in order, and how many of them were popped.
    present: Vec<Entry<E>>,
    popped: usize,
    /// Events that were pushed at the current time, before others of `present`.
    late: BinaryHeap<Late<E>>,
}

impl<E: Copy> Default for Queue<E> {
    fn default() -> Queue<E> {
        Queue::new()
    }
}

impl<E: Copy> Queue<E> {
    /// An empty queue at time 0.
    pub fn new() -> Queue<E> {
        Queue {
            now: 0,
            count: 0,
            levels: 0,
            occupied: [0; LEVELS],
            buckets: (0..LEVELS * DIGITS).map(|_| Vec::new()).collect(),
            present: Vec::new(),
            popped: 0,
            late: BinaryHeap::new(),
        }
    }

    /// Number of waiting events.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no event waits.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The time of the event that was popped last.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Adds an event.
    ///
    /// # Panics
    /// Panics if `at` is earlier than the time of the event popped last.
    #[inline(always)]
    pub fn push(&mut self, at: u64, sequence: Sequence, event: E) {
        assert!(at >= self.now, "an event at {at}, before the current time {}", self.now);
        self.count += 1;
        let entry = Entry { at, sequence, event };
        if at == self.now {
            self.push_present(entry);
        } else {
            self.insert(entry);
        }
    }

    #[inline]
    fn push_present(&mut self, entry: Entry<E>) {
        if self.popped == self.present.len() {
            self.present.clear();
            self.popped = 0;
        }
        if self.present.last().is_none_or(|last| !entry.sequence.is_before(last.sequence)) {
            self.present.push(entry);
        } else {
            self.late.push(Late(entry));
        }
    }

    /// Removes the earliest event. Of equal times, the one whose sequence is first.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, Sequence, E)> {
        if !self.late.is_empty()
            && let Some(Entry { at, sequence, event }) = self.pop_late()
        {
            return Some((at, sequence, event));
        }
        if self.popped == self.present.len() && !self.advance() {
            return None;
        }
        let Entry { at, sequence, event } = self.present[self.popped];
        self.popped += 1;
        self.count -= 1;
        Some((at, sequence, event))
    }

    /// Removes the first event of `late`, unless one of `present` comes before it.
    #[cold]
    fn pop_late(&mut self) -> Option<Entry<E>> {
        let Late(first) = self.late.peek()?;
        if self.present.get(self.popped).is_some_and(|next| next.sequence.is_before(first.sequence)) {
            return None;
        }
        self.count -= 1;
        self.late.pop().map(|Late(entry)| entry)
    }

    fn lowest_level(&self) -> Option<usize> {
        (self.levels != 0).then(|| self.levels.trailing_zeros() as usize)
    }

    #[inline]
    fn insert(&mut self, entry: Entry<E>) {
        let at = entry.at;
        let highest_bit = 63 - (at ^ self.now).leading_zeros();
        let level = (highest_bit / DIGIT_BITS) as usize;
        let digit = (at >> (level as u32 * DIGIT_BITS)) as usize % DIGITS;
        self.levels |= 1 << level;
        self.occupied[level] |= 1 << digit;
        self.buckets[level * DIGITS + digit].push(entry);
    }

    /// Moves to the time of the next event. Returns whether there is one.
    fn advance(&mut self) -> bool {
        self.present.clear();
        if self.present.capacity() > MAX_KEPT {
            self.present = Vec::new();
        }
        self.popped = 0;
        let Some(level) = self.lowest_level() else { return false };
        let digit = self.occupied[level].trailing_zeros() as usize;
        self.occupied[level] &= self.occupied[level] - 1;
        if self.occupied[level] == 0 {
            self.levels &= !(1 << level);
        }
        let index = level * DIGITS + digit;
        if level == 0 {
            std::mem::swap(&mut self.present, &mut self.buckets[index]);
            self.now = self.present[0].at;
            order(&mut self.present);
            return true;
        }
        let mut dealt = std::mem::take(&mut self.buckets[index]);
        self.now = dealt.iter().map(|entry| entry.at).min().expect("an occupied bucket holds something");
        for &entry in &dealt {
            if entry.at == self.now {
                self.present.push(entry);
            } else {
                self.insert(entry);
            }
        }
        order(&mut self.present);
        dealt.clear();
        if dealt.capacity() <= MAX_KEPT {
            self.buckets[index] = dealt; // its memory is used again
        }
        true
    }
}

/// Sorts events of equal time. They are few, or nearly sorted, most of the time.
#[inline]
fn order<E: Copy>(entries: &mut [Entry<E>]) {
    const FEW: usize = 64;
    if entries.len() > FEW {
        return entries.sort_by_key(|entry| entry.sequence);
    }
    for end in 1..entries.len() {
        let entry = entries[end];
        if !entry.sequence.is_before(entries[end - 1].sequence) {
            continue;
        }
        let mut place = end;
        while place > 0 && entry.sequence.is_before(entries[place - 1].sequence) {
            entries[place] = entries[place - 1];
            place -= 1;
        }
        entries[place] = entry;
    }
}

/// An event that was pushed at the current time. The first one is the greatest, as a heap needs it.
#[derive(Clone, Copy, Debug)]
struct Late<E>(Entry<E>);

impl<E> PartialEq for Late<E> {
    fn eq(&self, other: &Late<E>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Late<E> {}

impl<E> PartialOrd for Late<E> {
    fn partial_cmp(&self, other: &Late<E>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Late<E> {
    fn cmp(&self, other: &Late<E>) -> Ordering {
        other.0.sequence.cmp(&self.0.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn source_of(sequence: Sequence) -> u64 {
        sequence.source_and_number >> NUMBER_BITS
    }

    proptest! {
        /// Compares with a map from (time, round, source, order of drawing). Some events are pushed after events that were
        /// drawn later.
        #[test]
        fn events_come_in_order_of_time_round_source_and_drawing(
            steps in proptest::collection::vec((0u8..4, 0u32..40, any::<u64>(), 0u32..4), 1..400)
        ) {
            let (mut queue, mut oracle) = (Queue::new(), BTreeMap::new());
            let mut sequences = SequenceCounter::default();
            let mut drawn = Vec::new();
            for (order, (what, shift, ahead, source)) in steps.into_iter().enumerate() {
                let at = queue.now() + ((ahead % 64) << shift);
                sequences.act_as(Source(source));
                match what {
                    0 => {
                        let next = oracle.pop_first().map(|((at, _, _, order), sequence)| (at, sequence, order));
                        prop_assert_eq!(queue.pop(), next);
                        if let Some((at, sequence, _)) = next {
                            sequences.begin(at, sequence);
                        }
                    }
                    1 => drawn.push((sequences.draw(at), order)),
                    2 if !drawn.is_empty() => {
                        let (sequence, order): (Sequence, usize) = drawn.swap_remove(ahead as usize % drawn.len());
                        queue.push(at, sequence, order);
                        oracle.insert((at, sequence.round, source_of(sequence), order), sequence);
                    }
                    _ => {
                        let sequence = sequences.draw(at);
                        queue.push(at, sequence, order);
                        oracle.insert((at, sequence.round, source_of(sequence), order), sequence);
                    }
                }
                prop_assert_eq!(queue.len(), oracle.len());
            }
            while let Some(((at, _, _, order), sequence)) = oracle.pop_first() {
                prop_assert_eq!(queue.pop(), Some((at, sequence, order)));
            }
            prop_assert!(queue.is_empty());
            prop_assert_eq!(queue.pop(), None);
        }
    }

    /// Two sources draw in turn, or one after the other.
    #[test]
    fn the_order_of_simultaneous_events_does_not_depend_on_the_order_of_drawing() {
        let popped = |draws: [u32; 4]| {
            let (mut queue, mut sequences) = (Queue::new(), SequenceCounter::default());
            let mut counts = [0; 2];
            for source in draws {
                sequences.act_as(Source::rank(source));
                counts[source as usize] += 1;
                queue.push(7, sequences.draw(7), (source, counts[source as usize]));
            }
            std::iter::from_fn(move || queue.pop()).map(|(_, _, event)| event).collect::<Vec<_>>()
        };
        let expected = [(0, 1), (0, 2), (1, 1), (1, 2)];
        for draws in [[0, 0, 1, 1], [0, 1, 0, 1], [1, 0, 1, 0], [1, 1, 0, 0]] {
            assert_eq!(popped(draws), expected);
        }
    }

    #[test]
    fn events_of_the_current_time_keep_their_sequence() {
        let (mut queue, mut sequences) = (Queue::new(), SequenceCounter::default());
        let [first, second, third, fourth] = [(); 4].map(|()| sequences.draw(0));
        queue.push(0, first, 1);
        queue.push(0, fourth, 4);
        assert_eq!(queue.pop(), Some((0, first, 1)));
        queue.push(0, third, 3);
        queue.push(0, second, 2);
        assert_eq!([queue.pop(), queue.pop()], [Some((0, second, 2)), Some((0, third, 3))]);
        assert_eq!(queue.pop(), Some((0, fourth, 4)));
    }

    /// A source with a low number schedules an event for the time of the event that it handles, which a higher source drew.
    #[test]
    fn an_event_never_comes_before_the_event_that_scheduled_it() {
        let (mut queue, mut sequences) = (Queue::new(), SequenceCounter::default());
        for rank in [5, 9] {
            sequences.act_as(Source::rank(rank));
            queue.push(3, sequences.draw(3), rank);
        }
        let (at, sequence, event) = queue.pop().expect("an event");
        assert_eq!(event, 5);
        sequences.begin(at, sequence);
        sequences.act_as(Source::rank(1));
        let caused = sequences.draw(3);
        assert!(sequence.is_before(caused), "the queue and the sequences agree on the order");
        queue.push(3, caused, 1);
        assert_eq!(std::iter::from_fn(|| queue.pop()).map(|(_, _, event)| event).collect::<Vec<_>>(), [9, 1]);
    }

    #[test]
    #[should_panic(expected = "an event at 4, before the current time 5")]
    fn an_event_before_the_current_time_panics() {
        let (mut queue, mut sequences) = (Queue::new(), SequenceCounter::default());
        queue.push(5, sequences.draw(5), ());
        queue.pop();
        queue.push(4, sequences.draw(4), ());
    }
}
