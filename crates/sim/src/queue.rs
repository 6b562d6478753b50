//! The event queue: a hierarchical timing wheel. Events of equal time come out in the order of their sequence
//! numbers.
//!
//! Simulated time never goes back, which makes the wheel cheap. Take the highest 6-bit digit in which the
//! time of an event differs from the current time. Its position is the level of the event, its value the
//! bucket. When level 0 is empty, the queue spreads the first bucket of the lowest occupied level over the
//! levels below. An event moves at most once per level: at most four times if it lies a few microseconds
//! ahead. Events of equal time share a bucket, in the order in which they were pushed.
//!
//! A caller may draw a [`Sequence`] for an event and push the event later, or never. The event then comes out
//! as if it had been pushed when its sequence number was drawn.
//!
//! Expected cost: 20 to 40 ns for one push and one pop, for any number of events (`weir bench sim`).

const DIGIT_BITS: u32 = 6;
const DIGITS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = 64usize.div_ceil(DIGIT_BITS as usize);
/// Most events for which an empty bucket keeps its memory. In a large world one bucket after another can hold
/// nearly all events.
const MAX_KEPT: usize = 1 << 15;

/// Sequence number of an event: orders events of equal time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence(u32);

impl Sequence {
    /// The first sequence number.
    pub const FIRST: Sequence = Sequence(1);

    /// Whether `self` was drawn before `other`. At most 2^31 numbers lie between those of two events of equal
    /// time.
    #[inline]
    pub fn is_before(self, other: Sequence) -> bool {
        self.0.wrapping_sub(other.0) > u32::MAX / 2
    }
}

/// Draws sequence numbers in order.
#[derive(Clone, Debug, Default)]
pub struct SequenceCounter(u32);

impl SequenceCounter {
    /// The next sequence number.
    #[inline]
    pub fn draw(&mut self) -> Sequence {
        self.0 = self.0.wrapping_add(1);
        Sequence(self.0)
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
    /// The sequence number of the event that was pushed last.
    last_sequence: Sequence,
    /// Some event was pushed behind events with later sequence numbers.
    unsorted: bool,
    /// One bit for each level that holds events. `occupied` has one for each bucket of a level.
    levels: u32,
    occupied: [u64; LEVELS],
    buckets: Vec<Vec<Entry<E>>>,
    /// The events of the current time, and how many of them were popped.
    present: Vec<Entry<E>>,
    popped: usize,
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
            last_sequence: Sequence(0),
            unsorted: false,
            levels: 0,
            occupied: [0; LEVELS],
            buckets: (0..LEVELS * DIGITS).map(|_| Vec::new()).collect(),
            present: Vec::new(),
            popped: 0,
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
        let late = sequence.is_before(self.last_sequence);
        if late {
            self.unsorted = true;
        } else {
            self.last_sequence = sequence;
        }
        let entry = Entry { at, sequence, event };
        if at == self.now {
            self.present.push(entry);
            if late {
                order(&mut self.present[self.popped..]);
            }
        } else {
            self.insert(entry);
        }
    }

    /// Removes the earliest event. Of equal times, the one with the earliest sequence number.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, Sequence, E)> {
        if self.popped == self.present.len() && !self.advance() {
            return None;
        }
        let Entry { at, sequence, event } = self.present[self.popped];
        self.popped += 1;
        self.count -= 1;
        Some((at, sequence, event))
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
            if self.unsorted {
                order(&mut self.present);
            }
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
        if self.unsorted {
            order(&mut self.present);
        }
        dealt.clear();
        if dealt.capacity() <= MAX_KEPT {
            self.buckets[index] = dealt; // its memory is used again
        }
        true
    }
}

/// Sorts events of equal time by sequence number. They are nearly always sorted already.
#[inline]
fn order<E: Copy>(entries: &mut [Entry<E>]) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Compares with a map from (time, order of drawing). Some events are pushed after events that were
        /// drawn later. Sequence numbers wrap round to 0.
        #[test]
        fn events_come_in_order_of_time_then_sequence(
            steps in proptest::collection::vec((0u8..4, 0u32..40, any::<u64>()), 1..400)
        ) {
            let (mut queue, mut oracle, mut sequences) = (Queue::new(), BTreeMap::new(), SequenceCounter(u32::MAX - 99));
            let mut drawn = Vec::new();
            for (order, (what, shift, ahead)) in steps.into_iter().enumerate() {
                let at = queue.now() + ((ahead % 64) << shift);
                match what {
                    0 => {
                        let next = oracle.pop_first().map(|((at, order), sequence)| (at, sequence, order));
                        prop_assert_eq!(queue.pop(), next);
                    }
                    1 => drawn.push((sequences.draw(), order)),
                    2 if !drawn.is_empty() => {
                        let (sequence, order) = drawn.swap_remove(ahead as usize % drawn.len());
                        // One picosecond later than the events that were popped already.
                        queue.push(at + 1, sequence, order);
                        oracle.insert((at + 1, order), sequence);
                    }
                    _ => {
                        let sequence = sequences.draw();
                        queue.push(at, sequence, order);
                        oracle.insert((at, order), sequence);
                    }
                }
                prop_assert_eq!(queue.len(), oracle.len());
            }
            while let Some(((at, order), sequence)) = oracle.pop_first() {
                prop_assert_eq!(queue.pop(), Some((at, sequence, order)));
            }
            prop_assert!(queue.is_empty());
            prop_assert_eq!(queue.pop(), None);
        }
    }

    #[test]
    fn events_of_the_current_time_keep_their_sequence() {
        let (mut queue, mut sequences) = (Queue::new(), SequenceCounter::default());
        let [first, second, third, fourth] = [(); 4].map(|()| sequences.draw());
        queue.push(0, first, 1);
        queue.push(0, fourth, 4);
        assert_eq!(queue.pop(), Some((0, first, 1)));
        queue.push(0, third, 3);
        queue.push(0, second, 2);
        assert_eq!([queue.pop(), queue.pop()], [Some((0, second, 2)), Some((0, third, 3))]);
        assert_eq!(queue.pop(), Some((0, fourth, 4)));
    }

    #[test]
    #[should_panic(expected = "an event at 4, before the current time 5")]
    fn an_event_before_the_current_time_panics() {
        let (mut queue, mut sequences) = (Queue::new(), SequenceCounter::default());
        queue.push(5, sequences.draw(), ());
        queue.pop();
        queue.push(4, sequences.draw(), ());
    }
}
