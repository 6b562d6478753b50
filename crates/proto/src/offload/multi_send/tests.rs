//! Exact answers, and random multi-sends of one endpoint over paths whose credits come in any order.

use alloc::vec;
use alloc::vec::Vec;

use fastrand::Rng;

use super::*;

fn copies(list: &[(u32, u32)]) -> Vec<HeldCopy> {
    list.iter().map(|(to, number)| HeldCopy { to: Peer(*to), number: *number }).collect()
}

#[test]
fn a_copy_is_held_until_those_to_all_other_destinations_are_ready() {
    let mut multi_sends = MultiSends::default();
    multi_sends.hold(copies(&[(1, 0), (2, 7)]));
    assert!(!multi_sends.has_changed());
    assert!(multi_sends.holds(Peer(1), 0));
    assert!(!multi_sends.holds(Peer(1), 7) && !multi_sends.holds(Peer(3), 0), "other messages");
    assert!(multi_sends.has_changed());
    assert_eq!(multi_sends.take_ready(|copy| copy.to == Peer(1)), None);
    assert!(!multi_sends.has_changed(), "until another copy is at the head of its path");
    assert!(multi_sends.holds(Peer(2), 7));
    assert_eq!(multi_sends.take_ready(|_| true), Some(copies(&[(1, 0), (2, 7)])));
    assert!(multi_sends.is_empty() && !multi_sends.holds(Peer(1), 0));
}

#[test]
fn a_copy_to_one_destination_is_not_held() {
    let mut multi_sends = MultiSends::default();
    multi_sends.hold(copies(&[(1, 0)]));
    multi_sends.hold(copies(&[]));
    assert!(multi_sends.is_empty());
}

#[test]
fn a_lost_destination_is_waited_for_no_more() {
    let mut multi_sends = MultiSends::default();
    multi_sends.hold(copies(&[(1, 0), (2, 0), (3, 0)]));
    multi_sends.hold(copies(&[(2, 1), (4, 0)]));
    multi_sends.forget(Peer(2));
    assert!(multi_sends.has_changed());
    let ready = |copy: HeldCopy| copy.to != Peer(3);
    assert_eq!(multi_sends.take_ready(ready), Some(copies(&[(4, 0)])));
    assert_eq!(multi_sends.take_ready(ready), None);
    assert_eq!(multi_sends.waiting().collect::<Vec<_>>(), [copies(&[(1, 0), (3, 0)])]);
    multi_sends.forget(Peer(1));
    multi_sends.forget(Peer(3));
    assert!(multi_sends.is_empty());
}

#[test]
fn a_multi_send_that_is_given_up_is_held_no_more_at_any_destination() {
    let mut multi_sends = MultiSends::default();
    multi_sends.hold(copies(&[(1, 0), (2, 0)]));
    multi_sends.hold(copies(&[(3, 0), (4, 0)]));
    multi_sends.hold(copies(&[(1, 1), (4, 1)]));
    assert_eq!(multi_sends.take_with(Peer(1)), Some(copies(&[(1, 0), (2, 0)])));
    assert_eq!(multi_sends.take_with(Peer(1)), Some(copies(&[(1, 1), (4, 1)])));
    assert_eq!(multi_sends.take_with(Peer(1)), None);
    assert!(!multi_sends.holds(Peer(2), 0) && multi_sends.holds(Peer(4), 0));
}

#[test]
#[should_panic(expected = "copies are held")]
fn the_number_of_multi_sends_that_wait_is_bounded() {
    let mut multi_sends = MultiSends::default();
    for number in 0..MAX_MULTI_SENDS as u32 {
        multi_sends.hold(copies(&[(1, number), (2, number)]));
    }
    assert!(multi_sends.is_full());
    multi_sends.hold(copies(&[(1, 99), (2, 99)]));
}

/// A message of a path: alone, or the copy of this multi-send.
type Message = Option<usize>;

/// Paths of one endpoint: what waits, what has left, and credits.
struct Paths {
    multi_sends: MultiSends,
    /// By path: the messages in order, and how many have left.
    queued: Vec<(Vec<Message>, usize)>,
    credits: Vec<u32>,
    lost: Vec<bool>,
    /// In the order in which they left: path and message.
    left: Vec<(usize, Message)>,
    /// By multi-send: its destinations.
    lists: Vec<Vec<usize>>,
}

impl Paths {
    fn is_next(&self, copy: HeldCopy) -> bool {
        let path = copy.to.0 as usize;
        self.queued[path].1 == copy.number as usize && self.credits[path] > 0
    }

    /// Sends on a path until a copy is held, or the credits are used up. This is what an endpoint does.
    fn send(&mut self, path: usize) {
        while self.credits[path] > 0 && !self.lost[path] {
            let (messages, left) = &self.queued[path];
            let Some(message) = messages.get(*left) else { return };
            if self.multi_sends.holds(Peer(path as u32), *left as u32) {
                return;
            }
            self.left.push((path, *message));
            self.queued[path].1 += 1;
            self.credits[path] -= 1;
        }
    }

    fn step(&mut self, path: usize) {
        self.send(path);
        while self.multi_sends.has_changed() {
            let mut multi_sends = core::mem::take(&mut self.multi_sends);
            let ready = multi_sends.take_ready(|copy| self.is_next(copy));
            self.multi_sends = multi_sends;
            let Some(copies) = ready else { return };
            assert!(copies.iter().all(|copy| self.is_next(*copy)), "credit at all before the first leaves");
            let before = self.left.len();
            copies.iter().for_each(|copy| self.send(copy.to.0 as usize));
            assert!(self.left.len() >= before + copies.len(), "all leave");
        }
    }
}

/// Messages and multi-sends with lists that overlap, credits one by one, and losses. The oracle: at the end all has
/// left once, each path in its order, and the copies of a multi-send in one step.
fn random_paths(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let count = rng.usize(2..7);
    let mut paths = Paths {
        multi_sends: MultiSends::default(),
        queued: vec![(Vec::new(), 0); count],
        credits: vec![0; count],
        lost: vec![false; count],
        left: Vec::new(),
        lists: Vec::new(),
    };
    for _ in 0..rng.usize(1..60) {
        let path = rng.usize(..count);
        match rng.u8(..8) {
            0 | 1 => {
                paths.queued[path].0.push(None);
                paths.step(path);
            }
            2 | 3 if !paths.multi_sends.is_full() => {
                let mut list: Vec<usize> = (0..count).filter(|path| !paths.lost[*path]).collect();
                rng.shuffle(&mut list);
                list.truncate(rng.usize(..=list.len()));
                let number = |path: &usize| paths.queued[*path].0.len() as u32;
                let held = list.iter().map(|path| HeldCopy { to: Peer(*path as u32), number: number(path) });
                paths.multi_sends.hold(held.collect());
                let name = paths.lists.len();
                paths.lists.push(list.clone());
                list.iter().for_each(|path| paths.queued[*path].0.push(Some(name)));
                list.iter().for_each(|path| paths.step(*path));
            }
            4 if rng.u8(..6) == 0 => {
                paths.lost[path] = true;
                paths.multi_sends.forget(Peer(path as u32));
                (0..count).for_each(|path| paths.step(path));
            }
            _ => {
                paths.credits[path] += 1;
                paths.step(path);
            }
        }
    }
    // Credits for everything, one at a time: if two multi-sends waited for each other, something would be left.
    for path in 0..count {
        for _ in 0..paths.queued[path].0.len() {
            paths.credits[path] += 1;
            paths.step(path);
        }
    }
    for path in (0..count).filter(|path| !paths.lost[*path]) {
        let of_path = paths.left.iter().filter(|(to, _)| *to == path).map(|(_, message)| *message);
        assert!(of_path.eq(paths.queued[path].0.iter().copied()), "path {path} of {count}, seed {seed}");
    }
    assert!(paths.multi_sends.is_empty(), "seed {seed}");
}

#[test]
fn multi_sends_whose_lists_overlap_leave_in_order_and_never_wait_for_each_other() {
    (0..3000).for_each(random_paths);
}
