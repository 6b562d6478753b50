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

mod sequence;
mod simultaneous;

use std::collections::BinaryHeap;
use std::fmt;

pub use sequence::{Sequence, SequenceCounter, Source};
use simultaneous::{Entry, Late, Sorter};

const DIGIT_BITS: u32 = 6;
const DIGITS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = 64usize.div_ceil(DIGIT_BITS as usize);
/// Levels at which the lower half of a time says all that the bucket does not.
const NEAR_LEVELS: usize = u32::BITS as usize / DIGIT_BITS as usize + 1;
/// Most events for which an empty bucket keeps its memory. In a large world one bucket after another can hold
/// nearly all events.
const MAX_KEPT: usize = 1 << 15;

/// An event whose bucket does not determine the upper half of its time.
struct FarEntry<E> {
    at: u64,
    entry: Entry<E>,
}

/// Events by time. `E` should be small, because the queue moves it several times.
pub struct Queue<E> {
    now: u64,
    count: usize,
    /// One bit for each level that holds events. `occupied` has one for each bucket of a level.
    levels: u32,
    occupied: [u64; LEVELS],
    /// The buckets of the lowest [`NEAR_LEVELS`] levels, and those above.
    near: Vec<Vec<Entry<E>>>,
    far: Vec<Vec<FarEntry<E>>>,
    /// The events of the current time and round in order, and how many of them were popped.
    present: Vec<Entry<E>>,
    popped: usize,
    round: u32,
    /// The events of the next round of the current time, in any order.
    next_round: Vec<Entry<E>>,
    /// Events that were pushed at the current time, before others of `present`.
    late: BinaryHeap<Late<E>>,
    sorter: Sorter,
    /// Empty, for the sorter.
    sorted: Vec<Entry<E>>,
}

impl<E> fmt::Debug for Queue<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("now", &self.now).field("count", &self.count).finish_non_exhaustive()
    }
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
            near: (0..NEAR_LEVELS * DIGITS).map(|_| Vec::new()).collect(),
            far: (NEAR_LEVELS * DIGITS..LEVELS * DIGITS).map(|_| Vec::new()).collect(),
            present: Vec::new(),
            popped: 0,
            round: 0,
            next_round: Vec::new(),
            late: BinaryHeap::new(),
            sorter: Sorter::default(),
            sorted: Vec::new(),
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

    /// Adds an event. At a later time than the current one it is of round 0, whatever its sequence says.
    ///
    /// # Panics
    /// Panics if `at` is earlier than the time of the event popped last.
    #[inline(always)]
    pub fn push(&mut self, at: u64, sequence: Sequence, event: E) {
        assert!(at >= self.now, "an event at {at}, before the current time {}", self.now);
        self.count += 1;
        let entry = Entry { at_low: at as u32, source_and_number: sequence.source_and_number, event };
        if at == self.now {
            self.push_present(sequence.round, entry);
        } else {
            self.insert(at, entry);
        }
    }

    #[inline]
    fn push_present(&mut self, round: u32, entry: Entry<E>) {
        if round == self.round + 1 {
            return self.next_round.push(entry);
        }
        if self.popped == self.present.len() {
            self.present.clear();
            self.popped = 0;
        }
        let is_last =
            self.present.last().is_none_or(|last| last.source_and_number <= entry.source_and_number);
        if round == self.round && is_last {
            self.present.push(entry);
        } else {
            self.late.push(Late { round, entry });
        }
    }

    /// Removes the earliest event. Of equal times, the one whose sequence is first.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, Sequence, E)> {
        if self.popped == self.present.len() && !self.advance() {
            return None;
        }
        self.count -= 1;
        if !self.late.is_empty() {
            return Some(self.pop_with_late());
        }
        Some(self.pop_present())
    }

    /// Number of events that are popped next, if none is pushed before them: those of the current time and round.
    #[inline]
    pub fn upcoming_count(&self) -> usize {
        self.present.len() - self.popped
    }

    /// The event that is popped after `ahead` others, if there are so many of the current time and round.
    #[inline]
    pub fn upcoming(&self, ahead: usize) -> Option<E> {
        self.present.get(self.popped + ahead).map(|entry| entry.event)
    }

    #[inline(always)]
    fn pop_present(&mut self) -> (u64, Sequence, E) {
        let Entry { source_and_number, event, .. } = self.present[self.popped];
        self.popped += 1;
        (self.now, Sequence { round: self.round, source_and_number }, event)
    }

    /// Removes the first event of `late`, or one of `present` that comes before it.
    #[cold]
    fn pop_with_late(&mut self) -> (u64, Sequence, E) {
        let first = self.late.peek().expect("it is not empty").sequence();
        let next = self.present.get(self.popped).map(|entry| Late { round: self.round, entry: *entry });
        if next.is_some_and(|next| next.sequence().is_before(first)) {
            return self.pop_present();
        }
        let late = self.late.pop().expect("it was peeked");
        (self.now, late.sequence(), late.entry.event)
    }

    fn lowest_level(&self) -> Option<usize> {
        (self.levels != 0).then(|| self.levels.trailing_zeros() as usize)
    }

    /// Puts an event into the bucket of its time, which is not the current time.
    #[inline(always)]
    fn insert(&mut self, at: u64, entry: Entry<E>) {
        let highest_bit = 63 - (at ^ self.now).leading_zeros();
        let level = (highest_bit / DIGIT_BITS) as usize;
        let digit = (at >> (level as u32 * DIGIT_BITS)) as usize % DIGITS;
        self.levels |= 1 << level;
        self.occupied[level] |= 1 << digit;
        match self.near.get_mut(level * DIGITS + digit) {
            Some(bucket) => bucket.push(entry),
            None => self.insert_far((level - NEAR_LEVELS) * DIGITS + digit, FarEntry { at, entry }),
        }
    }

    #[cold]
    fn insert_far(&mut self, bucket: usize, entry: FarEntry<E>) {
        self.far[bucket].push(entry);
    }

    /// Makes `present` the events of the next round, or of the next time, or leaves it empty for those of `late`. Returns
    /// whether there is any event.
    fn advance(&mut self) -> bool {
        self.present.clear();
        if self.present.capacity() > MAX_KEPT {
            self.present = Vec::new();
        }
        self.popped = 0;
        if !self.next_round.is_empty() {
            std::mem::swap(&mut self.present, &mut self.next_round);
            self.round += 1;
        } else if !self.late.is_empty() {
            return true;
        } else if !self.advance_time() {
            return false;
        }
        self.sorter.sort(&mut self.present, &mut self.sorted);
        true
    }

    /// Moves to the time of the next event, and puts the events of that time into `present`. Returns whether there is one.
    fn advance_time(&mut self) -> bool {
        let Some(level) = self.lowest_level() else { return false };
        self.round = 0;
        let digit = self.occupied[level].trailing_zeros() as usize;
        self.occupied[level] &= self.occupied[level] - 1;
        if self.occupied[level] == 0 {
            self.levels &= !(1 << level);
        }
        let index = level * DIGITS + digit;
        if level == 0 {
            std::mem::swap(&mut self.present, &mut self.near[index]);
            self.now = self.now & !(DIGITS as u64 - 1) | digit as u64;
        } else if level < NEAR_LEVELS {
            self.spread(level, digit);
        } else {
            self.spread_far(index - NEAR_LEVELS * DIGITS);
        }
        true
    }

    /// Spreads a bucket over the levels below.
    fn spread(&mut self, level: usize, digit: usize) {
        let index = level * DIGITS + digit;
        let shift = level as u32 * DIGIT_BITS;
        // The digits above those of the bucket are those of the current time.
        let first = (self.now >> shift & !(DIGITS as u64 - 1) | digit as u64) << shift;
        let upper = first >> 32 << 32;
        let bucket = &mut self.near[index];
        let at_low = bucket[0].at_low; // an occupied bucket holds something
        if bucket.iter().all(|entry| entry.at_low == at_low) {
            std::mem::swap(&mut self.present, bucket);
            self.now = upper | u64::from(at_low);
            return;
        }
        let mut dealt = std::mem::take(bucket);
        let at_low = dealt.iter().map(|entry| entry.at_low).fold(at_low, u32::min);
        self.now = upper | u64::from(at_low);
        for &entry in &dealt {
            if entry.at_low == at_low {
                self.present.push(entry);
            } else {
                self.insert(upper | u64::from(entry.at_low), entry);
            }
        }
        dealt.clear();
        if dealt.capacity() <= MAX_KEPT {
            self.near[index] = dealt; // its memory is used again
        }
    }

    /// The same for a bucket of far events.
    fn spread_far(&mut self, index: usize) {
        let mut dealt = std::mem::take(&mut self.far[index]);
        self.now = dealt.iter().map(|far| far.at).min().expect("an occupied bucket holds something");
        for &FarEntry { at, entry } in &dealt {
            if at == self.now {
                self.present.push(entry);
            } else {
                self.insert(at, entry);
            }
        }
        dealt.clear();
        if dealt.capacity() <= MAX_KEPT {
            self.far[index] = dealt;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::sequence::NUMBER_BITS;
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
                        let sequence = if at == queue.now() { sequence } else { Sequence { round: 0, ..sequence } };
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

    proptest! {
        /// Events of a few sources or of many, which are pushed in another order than they were drawn.
        #[test]
        fn many_events_of_one_time_come_in_order_of_source_and_drawing(
            draws in proptest::collection::vec((0u32..3000, any::<u32>()), 0..3000),
            sources in 1u32..3000,
            for_current_time in any::<bool>(),
        ) {
            let (mut queue, mut sequences) = (Queue::new(), SequenceCounter::default());
            queue.push(1, sequences.draw(1), 0u32);
            queue.pop();
            sequences.begin(1, Sequence::FIRST);
            let at = if for_current_time { 1 } else { 2 };
            let draw = |(source, shuffle): (u32, u32)| {
                sequences.act_as(Source(source % sources));
                (shuffle, sequences.draw(at))
            };
            let mut drawn: Vec<(u32, Sequence)> = draws.into_iter().map(draw).collect();
            drawn.sort_by_key(|&(shuffle, _)| shuffle % 8);
            drawn.iter().for_each(|&(shuffle, sequence)| queue.push(at, sequence, shuffle));
            drawn.sort_by_key(|&(_, sequence)| sequence);
            let popped: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
            let expected: Vec<_> = drawn.into_iter().map(|(shuffle, sequence)| (at, sequence, shuffle)).collect();
            prop_assert_eq!(popped, expected);
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
