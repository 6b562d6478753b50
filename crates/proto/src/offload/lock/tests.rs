//! Exact calls of one member, and random worlds of several: one at a time has the lock, in the order in which they
//! asked, and nobody waits for a dead one.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};

use fastrand::Rng;

use super::*;

/// Notes what the machine asks for.
#[derive(Default)]
struct Notes {
    done: Vec<String>,
    own: (u64, u64),
}

impl LockDriver for Notes {
    fn change(&mut self, purpose: Purpose, word: Word, change: Change) {
        let change = match change {
            Change::Read => "read".to_string(),
            Change::Swap(new) => format!("= {new}"),
            Change::CompareSwap { expected, new: BROKEN } => format!("{expected} -> broken"),
            Change::CompareSwap { expected, new } => format!("{expected} -> {new}"),
        };
        self.done.push(format!("{purpose:?}: {word:?} {change}"));
    }

    fn own(&mut self) -> (u64, u64) {
        self.own
    }

    fn reset_own(&mut self) {
        self.own = (NONE, NONE);
    }

    fn close_next(&mut self) -> u64 {
        let old = self.own.0;
        if old == NONE {
            self.own.0 = BROKEN;
        }
        old
    }

    fn ended(&mut self, end: LockEnd) {
        self.done.push(format!("{end:?}"));
    }
}

struct One {
    lock: QueueLock,
    notes: Notes,
}

impl One {
    /// Member 5, whose number is 7.
    fn new() -> One {
        One { lock: QueueLock::new(5), notes: Notes::default() }
    }

    fn at(&mut self, event: LockEvent) -> Vec<String> {
        self.lock.handle(event, &mut self.notes);
        core::mem::take(&mut self.notes.done)
    }

    fn changed(&mut self, purpose: Purpose, old: Option<u64>) -> Vec<String> {
        self.at(LockEvent::Changed { purpose, old })
    }

    /// It waits behind member 3, which knows it.
    fn waiting() -> One {
        let mut one = One::new();
        one.at(LockEvent::Acquire);
        assert_eq!(one.changed(Purpose::Enter, Some(5)), ["Link(3): Next(3) = 7"]);
        assert_eq!(one.changed(Purpose::Link(3), Some(NONE)), [""; 0]);
        one
    }

    /// It has the lock, and nobody waits for it.
    fn holding() -> One {
        let mut one = One::new();
        assert_eq!(one.at(LockEvent::Acquire), ["Enter: Tail = 7"]);
        assert_eq!(one.changed(Purpose::Enter, Some(NONE)), ["Acquired"]);
        one
    }
}

#[test]
fn a_free_lock_takes_one_change_to_acquire_and_one_to_release() {
    let mut one = One::holding();
    assert_eq!(one.at(LockEvent::Release), ["Leave: Tail 7 -> 0"]);
    assert_eq!(one.changed(Purpose::Leave, Some(7)), ["Released"]);
    assert!(one.lock.is_idle());
}

#[test]
fn a_hand_over_is_one_change_of_a_word_of_the_next_member() {
    let mut one = One::holding();
    one.notes.own.0 = 4;
    assert_eq!(one.at(LockEvent::Release), ["Pass: Turn(2) = 1"]);
    assert_eq!(one.changed(Purpose::Pass, Some(NONE)), ["Released"]);
    let mut other = One::waiting();
    assert_eq!(other.at(LockEvent::Look), [""; 0]);
    other.notes.own.1 = GRANTED;
    assert_eq!(other.at(LockEvent::Look), ["Acquired"]);
    assert!(other.lock.is_held());
}

#[test]
fn a_release_waits_for_a_member_that_has_asked_and_has_not_linked() {
    let mut one = One::holding();
    one.at(LockEvent::Release);
    assert_eq!(one.changed(Purpose::Leave, Some(4)), [""; 0]);
    assert_eq!(one.at(LockEvent::Look), [""; 0]);
    one.notes.own.0 = 4;
    assert_eq!(one.at(LockEvent::Look), ["Pass: Turn(2) = 1"]);
}

#[test]
fn a_member_whose_predecessor_is_dead_breaks_the_queue() {
    let mut one = One::waiting();
    assert_eq!(one.at(LockEvent::Check), ["Ask(3): Next(3) read"]);
    assert_eq!(one.at(LockEvent::Check), [""; 0], "one at a time");
    assert_eq!(one.changed(Purpose::Ask(3), Some(7)), [""; 0], "it lives");
    one.at(LockEvent::Check);
    assert_eq!(one.changed(Purpose::Ask(3), None), ["Break: Tail 7 -> broken"]);
    assert_eq!(one.changed(Purpose::Break, Some(9)), [""; 0], "somebody is behind it");
    one.notes.own.0 = 9;
    assert_eq!(one.at(LockEvent::Look), ["Pass: Turn(7) = 18446744073709551615"]);
    assert_eq!(one.changed(Purpose::Pass, Some(NONE)), ["Broken"]);
    assert_eq!(one.at(LockEvent::Acquire), ["Broken"], "for good");
}

#[test]
fn a_turn_that_a_dead_member_has_given_is_valid() {
    let mut one = One::waiting();
    one.at(LockEvent::Check);
    one.notes.own.1 = GRANTED;
    assert_eq!(one.changed(Purpose::Ask(3), None), ["Acquired"]);
}

#[test]
fn a_release_behind_which_the_last_is_dead_breaks_the_queue() {
    let mut one = One::holding();
    one.at(LockEvent::Release);
    one.changed(Purpose::Leave, Some(4));
    assert_eq!(one.at(LockEvent::Check), ["FindLast: Tail read"]);
    assert_eq!(one.changed(Purpose::FindLast, Some(4)), ["Ask(2): Next(2) read"]);
    assert_eq!(one.changed(Purpose::Ask(2), None), ["Bury: Tail 4 -> broken"]);
    assert_eq!(one.changed(Purpose::Bury, Some(4)), [""; 0]);
    assert_eq!(one.at(LockEvent::Check), ["FindLast: Tail read"]);
    assert_eq!(one.changed(Purpose::FindLast, Some(BROKEN)), ["Broken"]);
    assert_eq!(one.notes.own.0, BROKEN, "who links late finds it closed");
}

#[test]
fn a_closed_predecessor_a_broken_tail_and_a_lost_home_are_no_waits() {
    let mut one = One::new();
    one.at(LockEvent::Acquire);
    one.changed(Purpose::Enter, Some(5));
    assert_eq!(one.changed(Purpose::Link(3), Some(BROKEN)), ["Break: Tail 7 -> broken"]);
    assert_eq!(one.changed(Purpose::Break, Some(7)), ["Broken"]);
    let mut one = One::new();
    one.at(LockEvent::Acquire);
    assert_eq!(one.changed(Purpose::Enter, Some(BROKEN)), ["Break: Tail 7 -> broken"]);
    assert_eq!(one.changed(Purpose::Break, None), ["Broken"]);
    let mut one = One::new();
    one.at(LockEvent::Acquire);
    assert_eq!(one.changed(Purpose::Enter, None), ["Broken"]);
}

/// A change that a member has started.
struct UnderWay {
    from: usize,
    purpose: Purpose,
    word: Word,
    change: Change,
    /// It has happened, and its end is on its way: the old word, or `None` for a dead owner.
    end: Option<Option<u64>>,
}

/// Words, changes under way, and what the programs know.
#[derive(Default)]
struct Memory {
    tail: u64,
    own: Vec<(u64, u64)>,
    is_dead: Vec<bool>,
    under_way: Vec<UnderWay>,
    ended: Vec<LockEnd>,
    caller: usize,
    /// Members in the order of their asking.
    asked: Vec<usize>,
    hand_overs: u32,
}

impl LockDriver for Memory {
    fn change(&mut self, purpose: Purpose, word: Word, change: Change) {
        self.under_way.push(UnderWay { from: self.caller, purpose, word, change, end: None });
    }

    fn own(&mut self) -> (u64, u64) {
        self.own[self.caller]
    }

    fn reset_own(&mut self) {
        self.own[self.caller] = (NONE, NONE);
    }

    fn close_next(&mut self) -> u64 {
        let next = &mut self.own[self.caller].0;
        let old = *next;
        if old == NONE {
            *next = BROKEN;
        }
        old
    }

    fn ended(&mut self, end: LockEnd) {
        self.ended.push(end);
    }
}

const HOME: usize = 0;

impl Memory {
    /// A change happens at the owner of its word, or its owner is dead.
    fn happen(&mut self, index: usize) {
        let UnderWay { from, purpose, word, change, .. } = self.under_way[index];
        let owner = match word {
            Word::Tail => HOME,
            Word::Next(member) | Word::Turn(member) => member as usize,
        };
        let end = if self.is_dead[owner] {
            None
        } else {
            let word = match word {
                Word::Tail => &mut self.tail,
                Word::Next(_) => &mut self.own[owner].0,
                Word::Turn(_) => &mut self.own[owner].1,
            };
            let old = *word;
            match change {
                Change::Swap(new) => *word = new,
                Change::CompareSwap { expected, new } if expected == old => *word = new,
                Change::CompareSwap { .. } | Change::Read => {}
            }
            Some(old)
        };
        if end.is_some() {
            match purpose {
                Purpose::Enter => self.asked.push(from),
                Purpose::Pass => self.hand_overs += 1,
                _ => {}
            }
        }
        self.under_way[index].end = Some(end);
    }

    /// A member dies: some of its changes still happen, now, and it hears of none.
    fn kill(&mut self, member: usize, rng: &mut Rng) {
        for index in 0..self.under_way.len() {
            let UnderWay { from, end, .. } = self.under_way[index];
            if from == member && end.is_none() && rng.bool() {
                self.happen(index);
            }
        }
        self.is_dead[member] = true;
        self.under_way.retain(|change| change.from != member);
    }
}

/// Members that acquire and release, each some times.
struct World {
    memory: Memory,
    locks: Vec<QueueLock>,
    left: Vec<u32>,
    has: Vec<bool>,
    is_broken: Vec<bool>,
    /// Those that have got it, in order.
    got: Vec<usize>,
}

impl World {
    fn new(members: usize, times: u32) -> World {
        World {
            memory: Memory {
                own: vec![(NONE, NONE); members],
                is_dead: vec![false; members],
                ..Memory::default()
            },
            locks: (0..members as u32).map(QueueLock::new).collect(),
            left: vec![times; members],
            has: vec![false; members],
            is_broken: vec![false; members],
            got: Vec::new(),
        }
    }

    fn handle(&mut self, member: usize, event: LockEvent) {
        self.memory.caller = member;
        self.locks[member].handle(event, &mut self.memory);
        for end in core::mem::take(&mut self.memory.ended) {
            match end {
                LockEnd::Acquired => {
                    assert!(!self.has.contains(&true), "{member} gets it, and {:?} have it", self.has);
                    self.has[member] = true;
                    self.got.push(member);
                }
                LockEnd::Released => self.left[member] -= 1,
                LockEnd::Broken => self.is_broken[member] = true,
            }
        }
    }

    fn is_done(&self, member: usize) -> bool {
        self.memory.is_dead[member] || self.is_broken[member] || self.left[member] == 0
    }

    /// The next call of a program, if it makes one now.
    fn call(&mut self, member: usize) {
        if self.has[member] {
            self.has[member] = false; // before the next one has it
            self.handle(member, LockEvent::Release);
        } else if self.locks[member].is_idle() && !self.is_done(member) {
            self.handle(member, LockEvent::Acquire);
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        let member = rng.usize(..self.locks.len());
        match rng.u32(..8) {
            0 if !self.memory.is_dead[member] => self.call(member),
            1 if !self.memory.is_dead[member] => self.handle(member, LockEvent::Look),
            2 if !self.memory.is_dead[member] => self.handle(member, LockEvent::Check),
            3.. if !self.memory.under_way.is_empty() => {
                let index = rng.usize(..self.memory.under_way.len());
                match self.memory.under_way[index].end {
                    None => self.memory.happen(index),
                    Some(old) => {
                        let UnderWay { from, purpose, .. } = self.memory.under_way.swap_remove(index);
                        self.handle(from, LockEvent::Changed { purpose, old });
                    }
                }
            }
            _ => {}
        }
    }

    /// Steps until all programs have ended. `deaths`: so many members die at random times.
    fn run(&mut self, rng: &mut Rng, mut deaths: usize) {
        let members = self.locks.len();
        for step in 0.. {
            assert!(step < 1_000_000, "they wait: {:?} {:?}", self.locks, self.memory.own);
            if (0..members).all(|member| self.is_done(member)) {
                return;
            }
            if deaths > 0 && rng.u32(..60) == 0 {
                let member = rng.usize(..members);
                if !self.memory.is_dead[member] {
                    self.memory.kill(member, rng);
                    deaths -= 1;
                    self.has[member] = false;
                }
            }
            self.step(rng);
        }
    }
}

const WORLDS: u64 = 3000;

#[test]
fn without_deaths_all_get_it_in_the_order_of_their_asking() {
    for seed in 0..WORLDS {
        let mut rng = Rng::with_seed(seed);
        let members = rng.usize(1..6);
        let mut world = World::new(members, 5);
        world.run(&mut rng, 0);
        assert_eq!(world.got, world.memory.asked, "seed {seed}");
        assert_eq!(world.got.len(), 5 * members);
        assert!(!world.is_broken.contains(&true));
        // The first asks a free lock. Each further one is passed on once, or asks a free lock.
        assert!(world.memory.hand_overs < 5 * members as u32);
    }
}

#[test]
fn with_deaths_nobody_waits_for_ever_and_one_at_a_time_has_it() {
    let (mut broken, mut whole) = (0, 0);
    for seed in 0..WORLDS {
        let mut rng = Rng::with_seed(seed);
        let members = rng.usize(2..6);
        let mut world = World::new(members, 3);
        let deaths = rng.usize(1..members);
        world.run(&mut rng, deaths);
        if world.is_broken.contains(&true) { broken += 1 } else { whole += 1 }
    }
    assert!(broken > 0 && whole > 0, "{broken} and {whole}");
}

#[test]
fn a_holder_that_dies_keeps_the_lock_from_all_others() {
    for seed in 0..WORLDS {
        let mut rng = Rng::with_seed(seed);
        let mut world = World::new(4, 3);
        while !world.has[1..].contains(&true) {
            world.step(&mut rng);
            if world.has[0] {
                world.call(0);
            }
            if (0..4).all(|member| world.is_done(member)) {
                break;
            }
        }
        let Some(holder) = world.has.iter().position(|has| *has) else { continue };
        world.memory.kill(holder, &mut rng);
        let before = world.got.len();
        world.has[holder] = false;
        world.run(&mut rng, 0);
        assert_eq!(world.got.len(), before, "seed {seed}: somebody got it from a dead member");
    }
}
