//! The queue of a completion queue's entries: a ring whose common operations are a few instructions.
//!
//! The standard library's deque does not inline the insertion. Each message makes one entry, so the call would cost some
//! 25 instructions a message.
//!
//! A queue can be armed: its next entry makes a descriptor readable. An armed queue puts its places aside, so its next
//! entry finds no place, as in a full queue. Entries of other queues do not check for it.

use std::sync::Arc;

use weir_link::event_descriptor::EventDescriptor;

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
    /// It is armed.
    armed: Option<Box<Armed>>,
}

/// What an armed queue puts aside.
struct Armed {
    places: Vec<Entry>,
    descriptor: Arc<EventDescriptor>,
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

    /// The next entry makes `descriptor` readable, instead of one that was given before. `false`: there are entries, so
    /// the queue is not armed.
    pub fn arm(&mut self, descriptor: &Arc<EventDescriptor>) -> bool {
        self.disarm();
        if !self.is_empty() {
            return false;
        }
        let places = std::mem::take(&mut self.places);
        self.armed = Some(Box::new(Armed { places, descriptor: Arc::clone(descriptor) }));
        true
    }

    /// Takes the places back, and returns the descriptor, if the queue is armed.
    fn disarm(&mut self) -> Option<Arc<EventDescriptor>> {
        let Armed { places, descriptor } = *self.armed.take()?;
        self.places = places;
        (self.removed, self.added) = (0, 0);
        Some(descriptor)
    }

    /// Makes places: the queue is armed, or full. A full one gets twice as many.
    #[cold]
    fn grow(&mut self) {
        if let Some(descriptor) = self.disarm() {
            descriptor.ring();
            if !self.places.is_empty() {
                return;
            }
        }
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
    fn the_first_entry_of_an_armed_queue_rings_once() {
        let descriptor = Arc::new(EventDescriptor::open().expect("a descriptor"));
        let rung = || descriptor.clear();
        let entry = |context| Entry { context, ..Entry::default() };
        for entries in [0, 1, 16, 40] {
            let mut queue = EntryQueue::default();
            for context in 0..entries {
                queue.push_back(entry(context));
                queue.pop_front();
            }
            assert!(queue.arm(&descriptor) && queue.arm(&descriptor));
            assert!(queue.is_empty() && queue.front().is_none());
            queue.pop_front();
            assert!(!rung());
            for context in 0..50 {
                queue.push_back(entry(context));
            }
            assert!(rung(), "after {entries} entries");
            queue.push_back(entry(50));
            assert!(!rung() && !queue.arm(&descriptor));
            for context in 0..51 {
                assert_eq!(queue.front().map(|entry| entry.context), Some(context));
                queue.pop_front();
            }
            assert!(queue.is_empty());
        }
    }

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
