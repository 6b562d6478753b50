//! The roster of a node and job: which ranks of the job's world do collective operations by groups. A rank that does not
//! knows nothing of groups, so nobody can ask it. Others must know it, and all of them alike.
//!
//! The roster has a word for each rank. It changes once, whoever is first: the rank itself enters its endpoint, or somebody
//! who needs to know rules it out. So two that look at the same ranks, at whatever time, find the same. A rank
//! that comes too late finds that it has been ruled out, and uses no group with anybody.
//! ```text
//! ranks 0, 2   enter: 0 -> endpoint
//! rank 1       never does: it has no library that would
//! rank 2       looks at 0, 1, 2: 1 is unknown, and somebody is awaited: looks again later
//! rank 2       nobody is awaited: rules out: 0 -> RULED_OUT                 not all have entered
//! rank 0       looks at 0, 1, 2: 1 is ruled out                             not all have entered
//! ranks 0, 2   look at 0, 2                                                 all have entered
//! ```
//! *Awaited* is an endpoint whose process is about to enter (`node_segment`). Waiting for it only avoids that ranks are
//! ruled out which come a moment later; what is found would be the same everywhere without it.
//!
//! A word with an endpoint that has ended is one of an earlier world, or of a rank that has died. It is ruled out too. Ranks on
//! other nodes enter the roster of their own node, so in this one they are ruled out.

use crate::shm::node_segment::{Area, NodeHandle, SharedArea};
use crate::shm::segment_file::SystemError;
use crate::shm::sync::{AtomicU64, Ordering};

/// Ranks of a roster. Those from this number on never enter.
pub const ROSTER_RANKS: u32 = (Area::Roster.bytes() / 8) as u32;

/// The word of a rank that cannot enter any more.
const RULED_OUT: u64 = u64::MAX;

/// What a word says. Only `Unknown` can change, and `Entered` when the rank ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Unknown,
    Entered,
    RuledOut,
}

/// The word of a rank.
#[derive(Clone, Copy, Debug)]
struct Place<'a>(&'a AtomicU64);

impl Place<'_> {
    /// Replaces what was found. Returns what is there then.
    fn replace(self, found: u64, new: u64) -> u64 {
        match self.0.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(other) => other,
        }
    }

    /// Enters the endpoint of the rank. Returns whether it stands there.
    ///
    /// - `is_running`: whether an endpoint runs.
    fn enter(self, endpoint: u64, is_running: impl Fn(u64) -> bool) -> bool {
        let found = self.0.load(Ordering::Acquire);
        let is_free = found == 0 || (found != RULED_OUT && !is_running(found));
        let now = if is_free { self.replace(found, endpoint) } else { found };
        now == endpoint && endpoint != RULED_OUT
    }

    fn look(self, is_running: impl Fn(u64) -> bool) -> Standing {
        match self.0.load(Ordering::Acquire) {
            0 => Standing::Unknown,
            RULED_OUT => Standing::RuledOut,
            endpoint if is_running(endpoint) => Standing::Entered,
            ended => Place::standing(self.replace(ended, RULED_OUT)),
        }
    }

    /// Rules the rank out, unless it has entered.
    fn rule_out(self) -> Standing {
        Place::standing(self.replace(0, RULED_OUT))
    }

    /// What a word that is not 0 says, if its endpoint runs.
    fn standing(word: u64) -> Standing {
        if word == RULED_OUT { Standing::RuledOut } else { Standing::Entered }
    }
}

/// The roster, as an endpoint of the job uses it.
#[derive(Debug)]
pub struct Roster {
    handle: NodeHandle,
    area: SharedArea,
}

impl Roster {
    /// The roster of the endpoint's node segment, for a world of so many ranks. Reserves the memory.
    ///
    /// # Errors
    /// No space left, or the segment's name is gone.
    pub fn open(handle: NodeHandle, ranks: u32) -> Result<Roster, SystemError> {
        let area = handle.part(Area::Roster, 0, u64::from(ranks.min(ROSTER_RANKS)) * 8)?;
        Ok(Roster { handle, area })
    }

    fn place(&self, rank: u32) -> Option<Place<'_>> {
        self.area.get(rank as usize).map(Place)
    }

    /// Enters this endpoint as that of `rank`. Returns whether it stands there.
    pub fn enter(&self, rank: u32) -> bool {
        let is_running = |endpoint| self.handle.is_running(endpoint);
        self.place(rank).is_some_and(|place| place.enter(self.handle.endpoint(), is_running))
    }

    /// Whether all these ranks have entered. The answer is the same for everyone who asks for the same ranks while they
    /// run. `None`: it is not known yet. Asks the kernel for each of them.
    ///
    /// - `is_last`: waits for nobody, so there is an answer.
    pub fn have_all_entered(&self, ranks: &[u32], is_last: bool) -> Option<bool> {
        let is_running = |endpoint| self.handle.is_running(endpoint);
        let mut unknown = Vec::new();
        for &rank in ranks {
            let Some(place) = self.place(rank) else { return Some(false) };
            match place.look(is_running) {
                Standing::Entered => {}
                Standing::RuledOut => return Some(false),
                Standing::Unknown => unknown.push(place),
            }
        }
        if !unknown.is_empty() && !is_last && self.handle.is_any_awaited() {
            return None;
        }
        Some(unknown.into_iter().all(|place| place.rule_out() == Standing::Entered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::node_segment::NodeSegment;
    use crate::shm::node_segment::tests::{key, open};
    use crate::shm::sync::{Arc, explore, thread};

    #[test]
    fn a_rank_enters_unless_it_has_been_ruled_out() {
        explore(1, || {
            let word = AtomicU64::new(0);
            let place = Place(&word);
            assert_eq!(place.look(|_| true), Standing::Unknown);
            assert!(place.enter(5, |_| true) && place.enter(5, |_| true));
            assert_eq!((place.look(|_| true), place.rule_out()), (Standing::Entered, Standing::Entered));
            assert!(!place.enter(6, |_| true), "another endpoint stands there");
            assert!(place.enter(6, |endpoint| endpoint != 5), "it has ended");
            assert_eq!(
                place.look(|endpoint| endpoint != 6),
                Standing::RuledOut,
                "an endpoint that has ended"
            );
            assert!(!place.enter(6, |_| true));
            let word = AtomicU64::new(0);
            assert_eq!(Place(&word).rule_out(), Standing::RuledOut);
            assert!(!Place(&word).enter(5, |_| false));
        });
    }

    #[test]
    fn loom_all_that_look_while_a_rank_enters_find_the_same() {
        explore(3, || {
            let word = Arc::new(AtomicU64::new(0));
            let look = |word: &AtomicU64| match Place(word).look(|_| true) {
                Standing::Unknown => Place(word).rule_out(),
                known => known,
            };
            let lookers = [0, 1].map(|_| {
                let word = Arc::clone(&word);
                thread::spawn(move || look(&word))
            });
            let has_entered = Place(&word).enter(5, |_| true);
            let found = lookers.map(|looker| looker.join().unwrap());
            let expected = if has_entered { Standing::Entered } else { Standing::RuledOut };
            assert_eq!(found, [expected; 2]);
        });
    }

    #[test]
    fn ranks_are_waited_for_while_their_endpoints_are_awaited() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let links = [0, 1, 2].map(|_| open(directory.path()));
        let nodes = links.each_ref().map(|link| NodeSegment::join(link, key()).expect("a node segment"));
        let rosters = nodes.each_ref().map(|node| Roster::open(node.handle(), 4).expect("a roster"));
        nodes[1].handle().set_awaited(true);
        assert!(rosters[0].enter(0));
        assert_eq!(rosters[0].have_all_entered(&[0], false), Some(true), "nobody else is asked for");
        assert_eq!(rosters[0].have_all_entered(&[0, 1], false), None);
        assert!(rosters[1].enter(1));
        assert_eq!(rosters[0].have_all_entered(&[0, 1, 2], false), None, "rank 2 may be the awaited one");
        nodes[1].handle().set_awaited(false);
        assert_eq!(rosters[0].have_all_entered(&[0, 1], false), Some(true));
        assert_eq!(rosters[0].have_all_entered(&[0, 1, 2], false), Some(false));
        assert!(!rosters[2].enter(2), "too late");
        for roster in &rosters {
            assert_eq!(roster.have_all_entered(&[1, 2], false), Some(false));
            assert_eq!(roster.have_all_entered(&[1, 0], false), Some(true));
            assert_eq!(roster.have_all_entered(&[1, 4], false), Some(false), "the world has 4 ranks");
        }
    }

    #[test]
    fn an_awaited_endpoint_that_ends_is_waited_for_no_more() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let (first, second) = (open(directory.path()), open(directory.path()));
        let node = NodeSegment::join(&first, key()).expect("a node segment");
        let other = NodeSegment::join(&second, key()).expect("a node segment");
        let roster = Roster::open(node.handle(), 2).expect("a roster");
        assert!(roster.enter(0));
        other.handle().set_awaited(true);
        assert_eq!(roster.have_all_entered(&[0, 1], false), None);
        drop((other, second));
        assert_eq!(roster.have_all_entered(&[0, 1], false), Some(false));
        let third = open(directory.path());
        let node = NodeSegment::join(&third, key()).expect("a node segment");
        node.handle().set_awaited(true);
        assert_eq!(roster.have_all_entered(&[0, 2], true), Some(false), "the last look");
    }
}
