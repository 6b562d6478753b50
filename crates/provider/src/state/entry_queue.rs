//! The queue of a completion queue's entries: a ring whose common operations are a few instructions.
//!
//! The standard library's deque does not inline the insertion. Each message makes one entry, so the call would cost some
//! 25 instructions a message.

use super::entry::Entry;

/// Entries in order. It grows as needed.
#[derive(Default)]
pub struct EntryQueue {
    /// Places. Their number is 0 or a power of two.
    places: Vec<Entry>,
    /// Entries removed since the start, modulo 2^32.
    removed: u32,
    /// Entries added since the start, modulo 2^32. At most the number of places ahead of `removed`.
    added: u32,
}

/// Places of the first allocation.
const FIRST_PLACES: usize = 16;

impl EntryQueue {
    /// Whether there is no entry.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.added == self.removed
    }

    /// Number of entries.
    #[inline(always)]
    fn count(&self) -> usize {
        self.added.wrapping_sub(self.removed) as usize
    }

    /// Index of the place of the entry with this number.
    #[inline(always)]
    fn place(&self, number: u32) -> usize {
        number as usize & self.places.len().wrapping_sub(1)
    }

    /// Adds an entry after all others.
    #[inline(always)]
    pub fn push_back(&mut self, entry: Entry) {
        if self.count() == self.places.len() {
            self.grow();
        }
        let place = self.place(self.added);
        self.places[place] = entry;
        self.added = self.added.wrapping_add(1);
    }

    /// The oldest entry.
    #[inline(always)]
    pub fn front(&self) -> Option<&Entry> {
        if self.is_empty() { None } else { self.places.get(self.place(self.removed)) }
    }

    /// Removes the oldest entry.
    #[inline(always)]
    pub fn pop_front(&mut self) {
        if !self.is_empty() {
            self.removed = self.removed.wrapping_add(1);
        }
    }

    /// Doubles the number of places. The queue is full.
    #[cold]
    fn grow(&mut self) {
        let (count, oldest) = (self.places.len(), self.place(self.removed));
        assert!(count <= u32::MAX as usize / 2, "a completion queue has {count} unread entries");
        if count > 0 {
            self.places.rotate_left(oldest);
        }
        self.places.resize((2 * count).max(FIRST_PLACES), Entry::default());
        (self.removed, self.added) = (0, count as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn it_has_the_same_entries_as_a_deque() {
        let mut random = fastrand::Rng::with_seed(7);
        for start in [0, u32::MAX - 40] {
            let mut queue = EntryQueue { removed: start, added: start, ..EntryQueue::default() };
            let mut model = VecDeque::new();
            for step in 0..100_000 {
                // Long runs of additions, then of removals, so that it grows at every position.
                if random.u32(..100) < if step % 3000 < 1600 { 60 } else { 35 } {
                    queue.push_back(Entry { context: step, ..Entry::default() });
                    model.push_back(step);
                } else {
                    queue.pop_front();
                    model.pop_front();
                }
                assert_eq!(queue.front().map(|entry| entry.context), model.front().copied());
                assert_eq!((queue.count(), queue.is_empty()), (model.len(), model.is_empty()));
            }
            while let Some(expected) = model.pop_front() {
                assert_eq!(queue.front().map(|entry| entry.context), Some(expected));
                queue.pop_front();
            }
            assert!(queue.is_empty() && queue.front().is_none());
        }
    }
}
