//! The activity lists of dynamic credits. Source: thesis, 6.2 and 6.5. The pool of a receiver moves its senders between
//! them (`dynamic_credits/activity_control.rs`).
//!
//! Every sender with an account is in exactly one of four lists: high, medium, low, null. Moving a sender takes
//! constant time: the lists are linked through one table. To shift them (high becomes medium, medium becomes low) only
//! their names change. This file does not know credits.

use alloc::vec::Vec;

/// The activity of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// It has reached a monitoring point recently.
    High,
    /// It has reached one, but less recently.
    Medium,
    /// The last sender of this list is the next victim.
    Low,
    /// All credits beyond the guaranteed ones were taken from it.
    Null,
}

const NO_SENDER: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    /// Index of its list in `Activity::lists`; `UNLISTED` if it is in no list.
    list: u8,
    before: u32,
    after: u32,
}

const UNLISTED: u8 = 4;
const NULL: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct List {
    first: u32,
    last: u32,
}

/// The four lists. Senders are small numbers: the table has a place for each number up to the highest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Activity {
    nodes: Vec<Node>,
    /// High, medium and low in cyclic order, starting at index `high`; then null.
    lists: [List; 4],
    high: u8,
}

/// Four empty lists.
impl Default for Activity {
    fn default() -> Activity {
        Activity { nodes: Vec::new(), lists: [List { first: NO_SENDER, last: NO_SENDER }; 4], high: 0 }
    }
}

impl Activity {
    /// Memory of the lists. Unit: bytes, by capacity.
    pub fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
    }

    fn list(&self, level: Level) -> u8 {
        match level {
            Level::High => self.high,
            Level::Medium => (self.high + 1) % 3,
            Level::Low => (self.high + 2) % 3,
            Level::Null => NULL,
        }
    }

    /// The level of a listed sender.
    pub fn level(&self, sender: u32) -> Level {
        let list = self.nodes[sender as usize].list;
        [Level::High, Level::Medium, Level::Low, Level::Null]
            .into_iter()
            .find(|&level| self.list(level) == list)
            .expect("the sender is in a list")
    }

    /// Appends a new sender to the low list.
    pub fn insert(&mut self, sender: u32) {
        let index = sender as usize;
        if self.nodes.len() <= index {
            self.nodes.resize(index + 1, Node { list: UNLISTED, before: NO_SENDER, after: NO_SENDER });
        }
        assert_eq!(self.nodes[index].list, UNLISTED, "sender {sender} is already in a list");
        let list = self.list(Level::Low);
        let last = core::mem::replace(&mut self.lists[list as usize].last, sender);
        self.nodes[index] = Node { list, before: last, after: NO_SENDER };
        match last {
            NO_SENDER => self.lists[list as usize].first = sender,
            last => self.nodes[last as usize].after = sender,
        }
    }

    /// Takes a sender out of its list.
    pub fn remove(&mut self, sender: u32) {
        let unlisted = Node { list: UNLISTED, before: NO_SENDER, after: NO_SENDER };
        let Node { list, before, after } = core::mem::replace(&mut self.nodes[sender as usize], unlisted);
        match before {
            NO_SENDER => self.lists[list as usize].first = after,
            before => self.nodes[before as usize].after = after,
        }
        match after {
            NO_SENDER => self.lists[list as usize].last = before,
            after => self.nodes[after as usize].before = before,
        }
    }

    /// Moves a sender to the front of the list of `level`.
    pub fn move_to_front(&mut self, sender: u32, level: Level) {
        self.remove(sender);
        let list = self.list(level);
        let first = core::mem::replace(&mut self.lists[list as usize].first, sender);
        self.nodes[sender as usize] = Node { list, before: NO_SENDER, after: first };
        match first {
            NO_SENDER => self.lists[list as usize].last = sender,
            first => self.nodes[first as usize].before = sender,
        }
    }

    /// The last of the low list.
    pub fn least_active(&self) -> Option<u32> {
        let last = self.lists[self.list(Level::Low) as usize].last;
        (last != NO_SENDER).then_some(last)
    }

    /// If the low list is empty: medium becomes low, high becomes medium, and high becomes empty.
    pub fn shift_if_low_is_empty(&mut self) {
        if self.least_active().is_none() {
            self.high = self.list(Level::Low);
        }
    }

    /// The senders of a list, from the front.
    pub fn of(&self, level: Level) -> impl Iterator<Item = u32> + '_ {
        let mut next = self.lists[self.list(level) as usize].first;
        core::iter::from_fn(move || {
            let sender = next;
            (sender != NO_SENDER).then(|| {
                next = self.nodes[sender as usize].after;
                sender
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn listed(activity: &Activity) -> [Vec<u32>; 4] {
        [Level::High, Level::Medium, Level::Low, Level::Null].map(|level| activity.of(level).collect())
    }

    #[test]
    fn senders_start_in_low_in_order_and_move_to_the_front() {
        let mut activity = Activity::default();
        (0..4).for_each(|sender| activity.insert(sender));
        assert_eq!(listed(&activity), [vec![], vec![], vec![0, 1, 2, 3], vec![]]);
        activity.move_to_front(1, Level::Medium);
        activity.move_to_front(3, Level::Null);
        activity.move_to_front(2, Level::Medium);
        assert_eq!(listed(&activity), [vec![], vec![2, 1], vec![0], vec![3]]);
        assert_eq!(activity.least_active(), Some(0));
        assert_eq!(activity.level(1), Level::Medium);
    }

    #[test]
    fn an_empty_low_list_shifts_the_others_and_null_stays() {
        let mut activity = Activity::default();
        (0..3).for_each(|sender| activity.insert(sender));
        activity.move_to_front(0, Level::High);
        activity.move_to_front(1, Level::Medium);
        activity.shift_if_low_is_empty();
        assert_eq!(listed(&activity), [vec![0], vec![1], vec![2], vec![]]);
        activity.move_to_front(2, Level::Null);
        activity.shift_if_low_is_empty();
        assert_eq!(listed(&activity), [vec![], vec![0], vec![1], vec![2]]);
    }

    #[test]
    fn a_removed_sender_is_unlisted_and_can_be_inserted_again() {
        let mut activity = Activity::default();
        (0..3).for_each(|sender| activity.insert(sender));
        activity.remove(1);
        assert_eq!(listed(&activity)[2], [0, 2]);
        activity.remove(0);
        activity.remove(2);
        assert_eq!(activity.least_active(), None);
        activity.insert(1);
        assert_eq!(listed(&activity)[2], [1]);
    }

    /// Compares with vectors over some thousand random steps.
    #[test]
    fn linked_lists_behave_like_vectors() {
        let levels = [Level::High, Level::Medium, Level::Low, Level::Null];
        let mut activity = Activity::default();
        let mut plain: [Vec<u32>; 4] = Default::default();
        let mut state = 1u32;
        let mut draw = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        for _ in 0..5000 {
            let sender = draw(6);
            let known = plain.iter().any(|list| list.contains(&sender));
            match draw(8) {
                0 if known => {
                    activity.remove(sender);
                    plain.iter_mut().for_each(|list| list.retain(|&other| other != sender));
                }
                1 => {
                    activity.shift_if_low_is_empty();
                    if plain[2].is_empty() {
                        plain[..3].rotate_right(1);
                    }
                }
                _ if known => {
                    let level = draw(4) as usize;
                    activity.move_to_front(sender, levels[level]);
                    plain.iter_mut().for_each(|list| list.retain(|&other| other != sender));
                    plain[level].insert(0, sender);
                }
                _ => {
                    activity.insert(sender);
                    plain[2].push(sender);
                }
            }
            assert_eq!(listed(&activity), plain);
        }
    }
}
