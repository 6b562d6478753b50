//! The queue lock of Mellor-Crummey and Scott (MCS) over remote atomics: the machine of one member.
//!
//! The home has one word, the *tail*: the last member that has asked. Each member has two words, its *next*, who
//! asked after it, and its *turn*. A member that waits looks only at its own words, and a hand-over is one change of
//! a word.
//! ```text
//! A   swap tail: free                                  has the lock
//! B   swap tail: A;  swap A's next: none               waits
//! A   release: its next is B;  B's turn = granted      B has the lock
//! B   release: no next;  compare tail, B -> free       nobody has it
//! ```
//! Source: Mellor-Crummey and Scott, "Algorithms for scalable synchronization on shared-memory multiprocessors", ACM
//! TOCS 9(1), 1991, figure 5; `../shared/spec/offload.md` has it over remote atomics. We added members that die.
//!
//! **Members that die.** A queue with a dead member is *broken*, for good: nobody knows what the dead one has left
//! half done. A member that waits asks now and then whether the one before it lives. Who finds it dead puts *broken*
//! into the tail, if it is the last, or tells the one behind it. A member that ends without knowing its next closes
//! its own word *next*, so one that comes late finds that out when it links. So nobody waits for a member that is
//! dead or has ended.
//!
//! This file knows neither packets nor clocks. The driver makes changes of words, and says when to look and to check.

/// The tail while nobody has or wants the lock. Also a word *next* without a member, and a *turn* that has not come.
pub const NONE: u64 = 0;
/// The tail, or a *turn*, of a queue with a dead member; a word *next* that is closed.
pub const BROKEN: u64 = u64::MAX;
/// A *turn* that has come.
pub const GRANTED: u64 = 1;

/// A word of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// At the home.
    Tail,
    /// Of a member: who comes after it.
    Next(u32),
    /// Of a member: whether it has the lock.
    Turn(u32),
}

/// A change of a word, which returns the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// None.
    Read,
    /// Replaces it.
    Swap(u64),
    /// Replaces it if it is as expected.
    CompareSwap {
        /// What is expected.
        expected: u64,
        /// The new word.
        new: u64,
    },
}

/// What a change is for. Its end is told with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Ask for the lock.
    Enter,
    /// Tell the member before us who comes after it.
    Link(u32),
    /// Release the lock if nobody waits.
    Leave,
    /// Tell the next member.
    Pass,
    /// Say that the queue is broken, if we are the last.
    Break,
    /// Ask whether a member lives.
    Ask(u32),
    /// Ask who is the last.
    FindLast,
    /// Say that the queue is broken, because the last member is dead.
    Bury,
}

/// How a call of the program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockEnd {
    /// The member has the lock.
    Acquired,
    /// It has it no more.
    Released,
    /// A member or the home is dead. The member has not the lock, and nobody gets it any more.
    Broken,
}

/// Acts for the machine.
pub trait LockDriver {
    /// Starts a change. Its end is [`LockEvent::Changed`] with `purpose`.
    fn change(&mut self, purpose: Purpose, word: Word, change: Change);

    /// Our own words, next and turn.
    fn own(&mut self) -> (u64, u64);

    /// Makes both of our own words [`NONE`]. No other member changes them meanwhile.
    fn reset_own(&mut self);

    /// Makes our own word *next* [`BROKEN`] if it is [`NONE`], as one step. Returns the old one.
    fn close_next(&mut self) -> u64;

    /// A call has ended.
    fn ended(&mut self, end: LockEnd);
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockEvent {
    /// The program wants the lock. It has not got it, and no call is under way.
    Acquire,
    /// The program releases the lock, which it has.
    Release,
    /// A change has ended: with the old word, or because the member or the home is lost.
    Changed {
        /// As it was started.
        purpose: Purpose,
        /// The old word. `None`: lost.
        old: Option<u64>,
    },
    /// Our own words may have changed.
    Look,
    /// Some time has passed: ask whether those that we wait for live.
    Check,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Entering,
    /// It waits for its turn, behind a member.
    Waiting {
        before: u32,
    },
    Held,
    Leaving,
    /// Somebody has asked after us, and has not linked. It gets this turn.
    AwaitsNext {
        turn: u64,
    },
    Passing {
        turn: u64,
    },
    Breaking,
    /// The queue is broken, and nobody behind us waits for us.
    Broken,
}

/// The machine of one member.
#[derive(Clone, Debug)]
pub struct QueueLock {
    /// Our number in words: never [`NONE`] or [`BROKEN`].
    own: u64,
    state: State,
    /// A change that only asks is under way. Its end says something that stays true, also in a later state.
    asks: bool,
}

/// The number of a member in words.
fn number(member: u32) -> u64 {
    u64::from(member) + 2
}

/// The member with a number. `None`: it is [`NONE`], [`BROKEN`], or no number of this lock.
fn member(number: u64) -> Option<u32> {
    u32::try_from(number.checked_sub(2)?).ok()
}

impl QueueLock {
    /// The machine of a member, by its rank among those that use the lock. Nobody has it.
    pub fn new(member: u32) -> QueueLock {
        QueueLock { own: number(member), state: State::Idle, asks: false }
    }

    /// Whether the member has the lock.
    pub fn is_held(&self) -> bool {
        self.state == State::Held
    }

    /// Whether no call is under way, and the member has not the lock.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle | State::Broken)
    }

    /// Handles an event.
    ///
    /// # Panics
    /// If the program acquires a lock while it has it or waits for it, or releases one that it has not.
    pub fn handle<D: LockDriver>(&mut self, event: LockEvent, driver: &mut D) {
        match event {
            LockEvent::Acquire => self.acquire(driver),
            LockEvent::Release => {
                assert!(self.state == State::Held, "released while {:?}", self.state);
                match driver.own().0 {
                    NONE => {
                        self.state = State::Leaving;
                        let change = Change::CompareSwap { expected: self.own, new: NONE };
                        driver.change(Purpose::Leave, Word::Tail, change);
                    }
                    next => self.pass(next, GRANTED, driver),
                }
            }
            LockEvent::Changed { purpose, old } => self.changed(purpose, old, driver),
            LockEvent::Look => self.look(driver),
            LockEvent::Check => self.check(driver),
        }
    }

    fn acquire<D: LockDriver>(&mut self, driver: &mut D) {
        match self.state {
            State::Broken => driver.ended(LockEnd::Broken),
            State::Idle => {
                driver.reset_own();
                self.state = State::Entering;
                driver.change(Purpose::Enter, Word::Tail, Change::Swap(self.own));
            }
            state => panic!("acquired while {state:?}"),
        }
    }

    fn look<D: LockDriver>(&mut self, driver: &mut D) {
        let (next, turn) = driver.own();
        match self.state {
            State::Waiting { .. } if turn == GRANTED => {
                self.state = State::Held;
                driver.ended(LockEnd::Acquired);
            }
            State::Waiting { .. } if turn != NONE => self.break_queue(driver),
            State::AwaitsNext { turn } if next != NONE => self.pass(next, turn, driver),
            _ => {}
        }
    }

    fn check<D: LockDriver>(&mut self, driver: &mut D) {
        if self.asks {
            return;
        }
        match self.state {
            State::Waiting { before } => self.ask(before, driver),
            State::AwaitsNext { .. } => {
                self.asks = true;
                driver.change(Purpose::FindLast, Word::Tail, Change::Read);
            }
            _ => {}
        }
    }

    fn ask<D: LockDriver>(&mut self, whom: u32, driver: &mut D) {
        self.asks = true;
        driver.change(Purpose::Ask(whom), Word::Next(whom), Change::Read);
    }

    fn changed<D: LockDriver>(&mut self, purpose: Purpose, old: Option<u64>, driver: &mut D) {
        match purpose {
            Purpose::Enter => self.entered(old, driver),
            Purpose::Link(whom) => {
                self.look(driver); // what the member before us has written is valid, also if it is dead
                if old != Some(NONE) && self.state == (State::Waiting { before: whom }) {
                    self.break_queue(driver); // dead, or it has ended
                }
            }
            Purpose::Leave => match old {
                Some(old) if old == self.own => {
                    self.state = State::Idle;
                    driver.ended(LockEnd::Released);
                }
                Some(_) => self.await_next(GRANTED, driver),
                None => self.give_up(BROKEN, driver),
            },
            Purpose::Pass => self.passed(driver),
            Purpose::Break => match old {
                Some(old) if old == self.own => self.end_broken(driver),
                Some(_) => self.await_next(BROKEN, driver),
                None => self.give_up(BROKEN, driver),
            },
            Purpose::Ask(_) | Purpose::FindLast | Purpose::Bury => self.answered(purpose, old, driver),
        }
    }

    fn entered<D: LockDriver>(&mut self, old: Option<u64>, driver: &mut D) {
        match old {
            Some(NONE) => {
                self.state = State::Held;
                driver.ended(LockEnd::Acquired);
            }
            Some(old) => match member(old) {
                Some(before) => {
                    self.state = State::Waiting { before };
                    driver.change(Purpose::Link(before), Word::Next(before), Change::Swap(self.own));
                }
                None => self.break_queue(driver),
            },
            None => self.give_up(BROKEN, driver),
        }
    }

    /// A change that only asks has ended.
    fn answered<D: LockDriver>(&mut self, purpose: Purpose, old: Option<u64>, driver: &mut D) {
        self.asks = false;
        self.look(driver);
        let State::AwaitsNext { turn } = self.state else {
            let is_before =
                matches!(self.state, State::Waiting { before } if purpose == Purpose::Ask(before));
            if is_before && old.is_none() {
                self.break_queue(driver);
            }
            return;
        };
        match (purpose, old.map(member)) {
            // The last is dead. So the queue is broken, wherever the next of us is.
            (Purpose::Ask(last), None) => {
                self.asks = true;
                let change = Change::CompareSwap { expected: number(last), new: BROKEN };
                driver.change(Purpose::Bury, Word::Tail, change);
            }
            (Purpose::FindLast, Some(Some(last))) => self.ask(last, driver),
            (Purpose::FindLast, _) => self.give_up(turn, driver), // broken already, or the home is lost
            _ => {}                                               // the next check finds what the tail is now
        }
    }

    fn await_next<D: LockDriver>(&mut self, turn: u64, driver: &mut D) {
        self.state = State::AwaitsNext { turn };
        self.look(driver);
    }

    fn pass<D: LockDriver>(&mut self, next: u64, turn: u64, driver: &mut D) {
        self.state = State::Passing { turn };
        match member(next) {
            Some(next) => driver.change(Purpose::Pass, Word::Turn(next), Change::Swap(turn)),
            None => self.passed(driver), // no number of a member: somebody else has written it
        }
    }

    /// The next member has been told, or is dead. Then those behind it find out.
    fn passed<D: LockDriver>(&mut self, driver: &mut D) {
        match self.state {
            State::Passing { turn: GRANTED } => {
                self.state = State::Idle;
                driver.ended(LockEnd::Released);
            }
            _ => self.end_broken(driver),
        }
    }

    fn break_queue<D: LockDriver>(&mut self, driver: &mut D) {
        self.state = State::Breaking;
        driver.change(Purpose::Break, Word::Tail, Change::CompareSwap { expected: self.own, new: BROKEN });
    }

    /// Ends without a next. One that has linked meanwhile gets `turn`.
    fn give_up<D: LockDriver>(&mut self, turn: u64, driver: &mut D) {
        match driver.close_next() {
            NONE => self.end_broken(driver),
            next => self.pass(next, turn, driver),
        }
    }

    fn end_broken<D: LockDriver>(&mut self, driver: &mut D) {
        self.state = State::Broken;
        driver.ended(LockEnd::Broken);
    }
}

#[cfg(test)]
mod tests;
