//! The directory of a node segment: one entry for each endpoint of the job on this node. An entry tells the endpoint's
//! process, pid and active core. The node segment counts endpoints, processes and active cores from them. This file
//! opens no files; callers say which endpoints run.
//!
//! An entry has a *holder* word, which says who took it, and an *endpoint* word, which says whose values it has. Both
//! are numbers of mailbox segments, whose locks show whether their owners run.
//! ```text
//! join:   holder 0 -> a     endpoint 0, values of a, endpoint a       others see a
//! leave:  endpoint 0, holder 0
//! a died: holder a          the next endpoint that finds no free entry: holder a -> b
//! ```
//! **Endpoints that are stopped or killed.** The holder word names who took the entry, from the first instruction. So
//! others find the entries of the dead ([`claim`]). [`Entry::read`] may return a dead endpoint; the caller leaves it
//! out. A reader that sees a value of `b` in an entry of `a` also sees that the endpoint word has changed.

use crate::shm::mapping::Shared;
use crate::shm::sync::{AtomicU32, AtomicU64, Ordering};

/// Length of an entry: one cache line, so that endpoints do not disturb each other. Unit: bytes.
pub const ENTRY_BYTES: usize = 64;

/// An entry, as it lies in the segment.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Entry {
    holder: AtomicU64,
    endpoint: AtomicU64,
    process: AtomicU64,
    pid: AtomicU32,
    /// Number of the core plus 1. 0: the endpoint sleeps, or has not said.
    core: AtomicU32,
    /// 1: the endpoint's process will soon enter the roster, or say that it does not.
    awaited: AtomicU32,
}

const _: () = assert!(!crate::shm::sync::NATIVE || size_of::<Entry>() == ENTRY_BYTES);

// SAFETY: a structure of atomics.
unsafe impl Shared for Entry {}

/// An endpoint of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Number of its mailbox segment.
    pub endpoint: u64,
    /// A random number of its process. Endpoints of one process have the same.
    pub process: u64,
    /// Its process id, in its own pid namespace.
    pub pid: u32,
    /// The core on which it was active last. `None`: it sleeps, or has not said.
    pub core: Option<u32>,
}

/// Takes an entry for `endpoint`: a free one, or that of a holder that does not run. Returns its number. `None`: there is
/// none.
pub fn claim(entries: &[Entry], endpoint: u64, is_running: impl Fn(u64) -> bool) -> Option<usize> {
    let take = |entry: &Entry, from| {
        entry.holder.compare_exchange(from, endpoint, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let holder = |entry: &Entry| entry.holder.load(Ordering::Relaxed);
    let free = entries.iter().position(|entry| holder(entry) == 0 && take(entry, 0));
    free.or_else(|| {
        entries.iter().position(|entry| {
            let found = holder(entry);
            found != 0 && !is_running(found) && take(entry, found)
        })
    })
}

impl Entry {
    /// The endpoint that took this entry, whether or not it has written its values. 0: none.
    pub fn holder(&self) -> u64 {
        self.holder.load(Ordering::Acquire)
    }

    /// Shows `member` to others. The caller has claimed the entry for it.
    pub fn publish(&self, member: &Member) {
        self.describe(member);
        self.endpoint.store(member.endpoint, Ordering::Release);
    }

    /// Writes the values of `member`. A dead holder may have published its own.
    pub(super) fn describe(&self, member: &Member) {
        self.endpoint.store(0, Ordering::Relaxed);
        // Release, so that whoever reads one of these values also reads the 0 above.
        self.process.store(member.process, Ordering::Release);
        self.pid.store(member.pid, Ordering::Release);
        self.core.store(member.core.map_or(0, |core| core + 1), Ordering::Release);
        self.awaited.store(0, Ordering::Release);
    }

    /// Returns the entry. The caller has claimed it for `endpoint`.
    pub fn withdraw(&self, endpoint: u64) {
        self.hide();
        let _ = self.holder.compare_exchange(endpoint, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Hides the values from others.
    pub(super) fn hide(&self) {
        self.endpoint.store(0, Ordering::Release);
    }

    /// Says on which core the endpoint is active. `None`: it sleeps. Only its holder calls this.
    pub fn set_core(&self, core: Option<u32>) {
        self.core.store(core.map_or(0, |core| core + 1), Ordering::Relaxed);
    }

    /// Says whether others are to wait until the endpoint's process has entered the roster. Only its holder calls this.
    pub fn set_awaited(&self, is_awaited: bool) {
        // Release: who sees that nobody waits any more also sees what the process has entered.
        self.awaited.store(is_awaited.into(), Ordering::Release);
    }

    /// Whether others are to wait for the endpoint's process.
    pub fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Acquire) != 0
    }

    /// The values of the entry. It may belong to an endpoint that has ended without leaving.
    pub fn read(&self) -> Option<Member> {
        let endpoint = self.endpoint.load(Ordering::Acquire);
        let member = Member {
            endpoint,
            process: self.process.load(Ordering::Acquire),
            pid: self.pid.load(Ordering::Acquire),
            core: self.core.load(Ordering::Acquire).checked_sub(1),
        };
        let is_whole = endpoint != 0 && self.endpoint.load(Ordering::Relaxed) == endpoint;
        is_whole.then_some(member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::sync::{Arc, explore, thread};

    fn member(endpoint: u64) -> Member {
        Member { endpoint, process: endpoint * 10, pid: endpoint as u32 * 100, core: Some(endpoint as u32) }
    }

    fn entries(count: usize) -> Vec<Entry> {
        (0..count).map(|_| Entry::default()).collect()
    }

    #[test]
    fn a_free_entry_is_taken_before_that_of_a_dead_holder() {
        explore(1, || {
            let entries = entries(3);
            assert_eq!([1, 2].map(|id| claim(&entries, id, |_| true)), [Some(0), Some(1)]);
            assert_eq!(claim(&entries, 3, |id| id != 1), Some(2));
            assert_eq!(claim(&entries, 4, |_| true), None);
            assert_eq!(claim(&entries, 4, |id| id != 2), Some(1));
            entries[1].withdraw(2); // it is not the holder any more
            assert_eq!(entries[1].holder(), 4);
            entries[1].withdraw(4);
            assert_eq!(claim(&entries, 5, |_| true), Some(1));
        });
    }

    #[test]
    fn an_entry_shows_its_endpoint_from_publishing_until_leaving() {
        explore(1, || {
            let entry = Entry::default();
            assert_eq!(entry.read(), None);
            assert_eq!(claim(core::slice::from_ref(&entry), 7, |_| true), Some(0));
            assert_eq!(entry.read(), None);
            entry.publish(&member(7));
            assert_eq!(entry.read(), Some(member(7)));
            entry.set_core(None);
            assert_eq!(entry.read(), Some(Member { core: None, ..member(7) }));
            assert!(!entry.is_awaited());
            entry.set_awaited(true);
            assert!(entry.is_awaited());
            entry.withdraw(7);
            assert_eq!((entry.read(), entry.holder()), (None, 0));
            entry.publish(&member(8));
            assert!(!entry.is_awaited(), "that was the endpoint before");
        });
    }

    #[test]
    fn loom_two_that_join_at_once_get_different_entries_and_readers_see_whole_members() {
        explore(2, || {
            let entries = Arc::new(entries(2));
            // An endpoint that died after it had published.
            assert_eq!(claim(&entries, 1, |_| true), Some(0));
            entries[0].publish(&member(1));
            let joiners: Vec<_> = [2, 3]
                .into_iter()
                .map(|id| {
                    let entries = Arc::clone(&entries);
                    thread::spawn(move || {
                        let index = claim(&entries, id, |running| running != 1).expect("one for each");
                        entries[index].publish(&member(id));
                        index
                    })
                })
                .collect();
            for entry in entries.iter() {
                if let Some(seen) = entry.read() {
                    assert_eq!(seen, member(seen.endpoint));
                }
            }
            let mut taken: Vec<usize> = joiners.into_iter().map(|joiner| joiner.join().unwrap()).collect();
            taken.sort_unstable();
            assert_eq!(taken, [0, 1]);
        });
    }
}
