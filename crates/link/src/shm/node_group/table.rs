//! The table of the groups of a node: which entries are in use, by whom, and under which key members find their group.
//!
//! One word of an entry, the *use*, says everything about who may take it: who made its group, whether the group is shown,
//! and a count, so that no two uses have the same word. This file knows words. It does not know where they lie, nor which
//! endpoints run.
//! ```text
//! first member   use: free, or shown and all members have left or died, or not shown and its maker has died
//!                compare and exchange: made by us, not shown; prepares the memory; key; shown
//! others         look for an entry that shows the key, and for their own place in the memory behind it
//! ```
//! A taker compares the word that it has looked at. So an entry that somebody else has taken meanwhile stays his, also
//! if he has ended and taken it again.

use crate::shm::sync::{AtomicU64, Ordering};

/// Words of an entry: a cache line.
pub const ENTRY_WORDS: usize = 8;

const USE: usize = 0;
const KEY: usize = 1;
const MEMBERS: usize = 2;

/// Bits of a use: the place of its maker in the directory, plus 1, or 0 if the entry is free; whether its group is shown;
/// the number of the use.
const MAKER_BITS: u32 = 16;
const SHOWN: u64 = 1 << MAKER_BITS;
const COUNT_BIT: u32 = MAKER_BITS + 1;

/// An entry of the table.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a>(&'a [AtomicU64]);

/// The entries of a table.
pub fn entries(words: &[AtomicU64]) -> impl Iterator<Item = Entry<'_>> {
    words.chunks_exact(ENTRY_WORDS).map(Entry)
}

impl Entry<'_> {
    /// Takes the entry for a new group, if it is free or its group has ended.
    ///
    /// - `maker`: the place of the caller in the directory.
    /// - `is_running`: whether an endpoint runs at this place.
    /// - `has_ended`: whether all members of the group that the entry shows, of this many members, have left or died.
    pub fn take(
        self,
        maker: usize,
        is_running: impl Fn(usize) -> bool,
        has_ended: impl Fn(u32) -> bool,
    ) -> bool {
        let found = self.0[USE].load(Ordering::Acquire);
        let is_usable = match (found & (SHOWN - 1)) as usize {
            0 => true,
            _ if found & SHOWN != 0 => has_ended(self.0[MEMBERS].load(Ordering::Relaxed) as u32),
            place => !is_running(place - 1),
        };
        let taken = ((found >> COUNT_BIT) + 1) << COUNT_BIT | (maker as u64 + 1);
        is_usable && self.0[USE].compare_exchange(found, taken, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Shows the group of an entry that the caller has taken. Its memory is prepared.
    pub fn show(self, key: u64, members: u32) {
        self.0[KEY].store(key, Ordering::Relaxed);
        self.0[MEMBERS].store(members.into(), Ordering::Relaxed);
        self.0[USE].store(self.0[USE].load(Ordering::Relaxed) | SHOWN, Ordering::Release);
    }

    /// Returns an entry that the caller has taken and not shown.
    pub fn give_back(self) {
        self.0[USE].store(self.0[USE].load(Ordering::Relaxed) >> COUNT_BIT << COUNT_BIT, Ordering::Release);
    }

    /// The key and the number of members, if the entry shows a group.
    pub fn shown(self) -> Option<(u64, u32)> {
        let is_shown = self.0[USE].load(Ordering::Acquire) & SHOWN != 0;
        let members = || self.0[MEMBERS].load(Ordering::Relaxed) as u32;
        is_shown.then(|| (self.0[KEY].load(Ordering::Relaxed), members()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::sync::{Arc, explore, thread};

    fn words(count: usize) -> Vec<AtomicU64> {
        (0..count * ENTRY_WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn an_entry_is_free_again_when_its_group_has_ended_or_its_maker_died_before_it_was_shown() {
        explore(1, || {
            let words = words(1);
            let entry = entries(&words).next().expect("an entry");
            let take = |maker, running: bool, ended: bool| entry.take(maker, |_| running, |_| ended);
            assert!(take(7, true, false), "free");
            assert_eq!(entry.shown(), None);
            assert!(!take(8, true, true), "its maker has not shown its group yet");
            entry.show(5, 2);
            assert_eq!(entry.shown(), Some((5, 2)));
            assert!(!take(8, false, false), "a member has not left");
            assert!(take(8, true, true));
            assert_eq!(entry.shown(), None, "the old group is not found any more");
            assert!(take(9, false, false), "its maker has died");
            entry.give_back();
            assert!(take(7, true, false), "free");
        });
    }

    #[test]
    fn loom_an_ended_group_is_taken_by_one_of_several_that_look_at_once() {
        explore(3, || {
            let words = Arc::new(words(1));
            let first = |words: &[AtomicU64], maker| {
                let entry = entries(words).next().expect("an entry");
                // A group with 2 members has ended, one with 3 has not.
                let is_taken = entry.take(maker, |_| true, |members| members == 2);
                if is_taken {
                    entry.show(maker as u64 + 1, 3);
                }
                is_taken
            };
            assert!(first(&words, 0));
            entries(&words).next().expect("an entry").show(1, 2);
            let takers = [1, 2].map(|maker| {
                let words = Arc::clone(&words);
                thread::spawn(move || first(&words, maker))
            });
            let taken = takers.map(|taker| taker.join().unwrap());
            assert_ne!(taken[0], taken[1], "one of them");
            let shown = entries(&words).next().expect("an entry").shown();
            assert_eq!(shown, Some((if taken[0] { 2 } else { 3 }, 3)));
        });
    }
}
