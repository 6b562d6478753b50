//! The waiting senders of a pool in the order of their turns, and which of them is the first that can take a grant.
//!
//! A sender that queues, or whose turn ends, gets a *ticket*: a number that only grows. The order of the queue is that of
//! the tickets. Senders that can take a grant now are also in a binary heap by ticket. The others keep their ticket and are
//! visited by nobody until they are ready again. So no operation visits more senders than the heap is high.
//!
//! This file knows accounts by number. It does not know what they hold.

use alloc::vec::Vec;

/// The account is not in the heap.
const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Place {
    ticket: u64,
    /// Position in the heap, or `NOWHERE`.
    position: u32,
    /// Slots for which it waits.
    wanted_slots: u32,
}

const NO_PLACE: Place = Place { ticket: 0, position: NOWHERE, wanted_slots: 0 };

/// The queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    /// By account. The place of an account that does not wait is without meaning.
    places: Vec<Place>,
    /// Waiting accounts that can take a grant: a binary heap, the lowest ticket first.
    ready: Vec<u32>,
    waiting: u32,
    next_ticket: u64,
    wanted_slots: u64,
    /// Accounts that operations have visited.
    #[cfg(test)]
    pub visits: core::cell::Cell<u64>,
}

/// Memory for each account: its place, and its number in the heap.
#[cfg(test)]
pub(super) const SENDER_BYTES: usize = size_of::<Place>() + size_of::<u32>();

impl Turns {
    /// Makes room for an account, so that no other operation allocates.
    pub fn make_room(&mut self, index: u32) {
        let accounts = self.places.len().max(index as usize + 1);
        self.places.resize(accounts, NO_PLACE);
        self.ready.reserve(accounts - self.ready.len());
    }

    /// Number of senders that wait.
    pub fn len(&self) -> u32 {
        self.waiting
    }

    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Slots for which all of them wait.
    pub fn wanted_slots(&self) -> u64 {
        self.wanted_slots
    }

    /// The first sender that can take a grant.
    pub fn first_ready(&self) -> Option<u32> {
        self.ready.first().copied()
    }

    /// Whether no sender that can take a grant is before this one, which waits.
    pub fn is_next(&self, index: u32) -> bool {
        self.first_ready().is_none_or(|first| !self.is_before(first, index))
    }

    /// A sender joins the queue at the end. `ready`: it can take a grant.
    pub fn push(&mut self, index: u32, ready: bool) {
        self.places[index as usize] = NO_PLACE;
        self.waiting += 1;
        self.move_to_end(index);
        if ready {
            self.set_ready(index);
        }
    }

    /// A waiting sender goes to the end.
    pub fn move_to_end(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        place.ticket = self.next_ticket;
        self.next_ticket += 1;
        let position = place.position;
        if position != NOWHERE {
            self.sink(position as usize);
        }
    }

    /// A waiting sender can take a grant. It keeps its place.
    pub fn set_ready(&mut self, index: u32) {
        if self.places[index as usize].position == NOWHERE {
            self.ready.push(index);
            self.rise(self.ready.len() - 1);
        }
    }

    /// A waiting sender cannot take a grant. It keeps its place.
    pub fn set_unready(&mut self, index: u32) {
        let position = core::mem::replace(&mut self.places[index as usize].position, NOWHERE) as usize;
        if position == NOWHERE as usize {
            return;
        }
        let last = self.ready.pop().expect("the account is in the heap");
        if last != index {
            self.ready[position] = last;
            self.sink(position);
            self.rise(self.places[last as usize].position as usize);
        }
    }

    /// A waiting sender waits for `slots` slots.
    pub fn set_wanted(&mut self, index: u32, slots: u32) {
        let before = core::mem::replace(&mut self.places[index as usize].wanted_slots, slots);
        self.wanted_slots = self.wanted_slots - u64::from(before) + u64::from(slots);
    }

    /// A waiting sender leaves the queue.
    pub fn remove(&mut self, index: u32) {
        self.set_unready(index);
        self.set_wanted(index, 0);
        self.waiting -= 1;
    }

    fn is_before(&self, one: u32, other: u32) -> bool {
        self.places[one as usize].ticket < self.places[other as usize].ticket
    }

    /// Swaps the account at `position` with its parents until the heap is in order.
    fn rise(&mut self, mut position: usize) {
        let index = self.ready[position];
        while position > 0 {
            let parent = (position - 1) / 2;
            if !self.is_before(index, self.ready[parent]) {
                break;
            }
            self.put(position, self.ready[parent]);
            position = parent;
        }
        self.put(position, index);
    }

    /// Swaps the account at `position` with its children until the heap is in order.
    fn sink(&mut self, mut position: usize) {
        let index = self.ready[position];
        loop {
            let mut child = 2 * position + 1;
            if child + 1 < self.ready.len() && self.is_before(self.ready[child + 1], self.ready[child]) {
                child += 1;
            }
            if child >= self.ready.len() || !self.is_before(self.ready[child], index) {
                break;
            }
            self.put(position, self.ready[child]);
            position = child;
        }
        self.put(position, index);
    }

    fn put(&mut self, position: usize, index: u32) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
        self.ready[position] = index;
        self.places[index as usize].position = position as u32;
    }

    /// Memory of the queue. Unit: bytes, by capacity.
    pub fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<Place>() + self.ready.capacity() * size_of::<u32>()
    }

    /// The accounts of `waiting` in the order of their turns.
    #[cfg(any(test, feature = "explore"))]
    pub fn in_order(&self, waiting: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut accounts: Vec<u32> = waiting.collect();
        accounts.sort_unstable_by_key(|&index| self.places[index as usize].ticket);
        accounts
    }

    /// Checks the heap, and that the senders of `waiting`, each with what it wants and whether it can take a grant, are those
    /// that wait. For tests and proofs.
    ///
    /// # Panics
    /// If not.
    pub fn assert_consistent(&self, waiting: impl Iterator<Item = (u32, u32, bool)>) {
        let (mut count, mut ready, mut sum) = (0, 0, 0);
        for (index, wanted_slots, is_ready) in waiting {
            let Place { position, wanted_slots: noted, .. } = self.places[index as usize];
            assert_eq!(noted, wanted_slots, "wanted slots of account {index} are not kept: {self:?}");
            assert_eq!(position != NOWHERE, is_ready, "account {index}: {self:?}");
            assert!(!is_ready || self.ready[position as usize] == index, "account {index}: {self:?}");
            (count, ready, sum) = (count + 1, ready + usize::from(is_ready), sum + u64::from(wanted_slots));
        }
        assert_eq!((count, ready, sum), (self.waiting, self.ready.len(), self.wanted_slots), "{self:?}");
        for position in 1..self.ready.len() {
            let (parent, child) = (self.ready[(position - 1) / 2], self.ready[position]);
            assert!(self.is_before(parent, child), "the heap is not in order: {self:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random operations, against a list that is searched from its front.
    #[test]
    fn the_first_ready_sender_is_that_of_a_list() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut turns = Turns::default();
        let mut list: Vec<(u32, bool)> = Vec::new();
        (0..40).for_each(|index| turns.make_room(index));
        for _ in 0..20_000 {
            let index = random.u32(0..40);
            let ready = random.bool();
            match list.iter().position(|&(other, _)| other == index) {
                None => {
                    turns.push(index, ready);
                    turns.set_wanted(index, 1);
                    list.push((index, ready));
                }
                Some(place) => match random.u32(0..4) {
                    0 => {
                        turns.remove(index);
                        list.remove(place);
                    }
                    1 => {
                        turns.move_to_end(index);
                        let entry = list.remove(place);
                        list.push(entry);
                    }
                    2 => {
                        turns.set_ready(index);
                        list[place].1 = true;
                    }
                    _ => {
                        turns.set_unready(index);
                        list[place].1 = false;
                    }
                },
            }
            turns.assert_consistent(list.iter().map(|&(index, ready)| (index, 1, ready)));
            let first = list.iter().position(|&(_, ready)| ready);
            assert_eq!(turns.first_ready(), first.map(|place| list[place].0));
            for (place, &(index, _)) in list.iter().enumerate() {
                assert_eq!(turns.is_next(index), first.is_none_or(|first| first >= place));
            }
            let order: Vec<u32> = list.iter().map(|&(index, _)| index).collect();
            assert_eq!(turns.in_order(order.iter().rev().copied()), order);
        }
    }
}
