//! Queue locks. One program of a member, over the words of any executor, and a check of what the members did.
//!
//! The home of a lock has its tail, and a word that only the holder changes, by a read and a write. A lost change
//! there is two holders at once. Each member has its words *next* and *turn*.

use std::cell::RefCell;

use weir_proto::offload::lock::{
    Change, GRANTED, LockDriver, LockEnd, LockEvent, NONE, Purpose, QueueLock, Word,
};

use crate::case::{Asks, LockCase};

/// Words of each member for locks.
pub const LOCK_WORDS: u32 = 4;
const TAIL: u32 = 0;
const NEXT: u32 = 1;
const TURN: u32 = 2;
/// Changed by the holder.
const GUARDED: u32 = 3;

/// How an executor changes words, which are those for locks of a member.
pub trait Words {
    /// Returns the old word.
    async fn change(&self, owner: u32, word: u32, change: Change) -> u64;

    /// Lets others continue.
    async fn pause(&self);
}

/// What the members have done with a lock.
#[derive(Debug, Default)]
pub struct Log {
    /// Requests for the lock that are in the queue.
    entered: usize,
    /// Turns that have ended.
    left: usize,
    /// Releases that have ended.
    released: usize,
    holder: Option<u32>,
    /// Who had the lock, with the tail that it found when it asked.
    holds: Vec<(u32, u64)>,
    /// Changes by which a member gave the lock to the next one.
    passes: usize,
    /// Changes by which a member left the lock to nobody.
    leaves: usize,
    /// Members with nothing more to do.
    finished: u32,
    /// The words of the home at the end: tail and guarded.
    home: Option<(u64, u64)>,
}

/// The guarded word after `member` had the lock.
fn guarded_after(word: u64, member: u32) -> u64 {
    word.wrapping_mul(31).wrapping_add(u64::from(member) + 1)
}

/// A member in words.
fn number(member: u32) -> u64 {
    u64::from(member) + 2
}

/// What the machine wants done.
#[derive(Default)]
struct Asked {
    own: (u64, u64),
    resets_own: bool,
    change: Option<(Purpose, Word, Change)>,
    ended: Option<LockEnd>,
}

impl LockDriver for Asked {
    fn change(&mut self, purpose: Purpose, word: Word, change: Change) {
        assert!(self.change.is_none(), "a member without `Check` has one change under way");
        self.change = Some((purpose, word, change));
    }

    fn own(&mut self) -> (u64, u64) {
        self.own
    }

    fn reset_own(&mut self) {
        (self.own, self.resets_own) = ((NONE, NONE), true);
    }

    fn close_next(&mut self) -> u64 {
        unreachable!("no member dies")
    }

    fn ended(&mut self, end: LockEnd) {
        self.ended = Some(end);
    }
}

/// One member of a lock.
pub struct Contender<'a, W> {
    pub words: &'a W,
    pub case: &'a LockCase,
    pub member: u32,
    pub members: u32,
    pub log: &'a RefCell<Log>,
}

impl<W: Words> Contender<'_, W> {
    /// All turns of the member. Returns its result.
    pub async fn take_part(&self) -> Vec<u8> {
        let mut lock = QueueLock::new(self.member);
        let mut result = Vec::new();
        match &self.case.asks {
            Asks::InTurn(queues) => {
                let mut before = 0;
                for queue in queues {
                    if let Some(place) = queue.iter().position(|&member| member == self.member) {
                        self.until(|log| log.released >= before && log.entered == before + place).await;
                        // The first one leaves when all are in the queue.
                        let turn = self.turn(&mut lock, before + queue.len()).await;
                        result.extend((turn as u32).to_le_bytes());
                    }
                    before += queue.len();
                }
                if !result.is_empty() {
                    result.extend(self.own(NEXT).await.to_le_bytes());
                    result.extend(self.own(TURN).await.to_le_bytes());
                }
            }
            Asks::Freely(turns) => {
                for _ in 0..turns[self.member as usize] {
                    self.turn(&mut lock, 0).await;
                    result.push(1);
                }
                if !result.is_empty() {
                    self.check_own_words().await;
                }
            }
        }
        self.log.borrow_mut().finished += 1;
        if self.member == self.case.home {
            self.until(|log| log.finished == self.members).await;
            let tail = self.own(TAIL).await;
            let guarded = self.words.change(self.member, GUARDED, Change::Swap(0)).await;
            let mut log = self.log.borrow_mut();
            log.home = Some((tail, guarded));
            log.check();
            result.extend(tail.to_le_bytes());
            // Otherwise the guarded word depends on who came first.
            if let Asks::InTurn(_) = self.case.asks {
                result.extend(guarded.to_le_bytes());
            }
        } else {
            // The next lock uses the same words.
            self.until(|log| log.home.is_some()).await;
        }
        result
    }

    /// Gets the lock, changes the guarded word, and releases it. Returns how many turns were before.
    ///
    /// - `entered`: requests that must be in the queue before it releases.
    async fn turn(&self, lock: &mut QueueLock, entered: usize) -> usize {
        assert_eq!(self.call(lock, LockEvent::Acquire).await, LockEnd::Acquired);
        let holder = self.log.borrow_mut().holder.replace(self.member);
        assert_eq!(holder, None, "{} has the lock too: {:?}", self.member, self.log.borrow());
        let turn = self.log.borrow().left;
        assert_eq!(self.log.borrow().holds[turn].0, self.member, "the order of the queue");
        let home = self.case.home;
        let word = self.words.change(home, GUARDED, Change::Read).await;
        self.words.change(home, GUARDED, Change::Swap(guarded_after(word, self.member))).await;
        self.until(|log| log.entered >= entered).await;
        {
            let mut log = self.log.borrow_mut();
            log.holder = None;
            log.left += 1;
        }
        assert_eq!(self.call(lock, LockEvent::Release).await, LockEnd::Released);
        self.log.borrow_mut().released += 1;
        turn
    }

    async fn call(&self, lock: &mut QueueLock, mut event: LockEvent) -> LockEnd {
        let mut asked = Asked::default();
        let mut found = NONE;
        loop {
            asked.own = (self.own(NEXT).await, self.own(TURN).await);
            lock.handle(event, &mut asked);
            if std::mem::take(&mut asked.resets_own) {
                self.words.change(self.member, NEXT, Change::Swap(NONE)).await;
                self.words.change(self.member, TURN, Change::Swap(NONE)).await;
            }
            if let Some(end) = asked.ended.take() {
                assert_eq!(asked.change, None);
                if end == LockEnd::Acquired {
                    self.log.borrow_mut().holds.push((self.member, found));
                }
                return end;
            }
            event = match asked.change.take() {
                Some((purpose, word, change)) => {
                    let (owner, word) = match word {
                        Word::Tail => (self.case.home, TAIL),
                        Word::Next(member) => (member, NEXT),
                        Word::Turn(member) => (member, TURN),
                    };
                    let old = self.words.change(owner, word, change).await;
                    if purpose == Purpose::Enter {
                        found = old;
                    }
                    self.note(purpose, old);
                    LockEvent::Changed { purpose, old: Some(old) }
                }
                None => {
                    self.words.pause().await;
                    LockEvent::Look
                }
            };
        }
    }

    fn note(&self, purpose: Purpose, old: u64) {
        let mut log = self.log.borrow_mut();
        match purpose {
            Purpose::Enter => log.entered += 1,
            Purpose::Link(_) => assert_eq!(old, NONE, "one member links behind another one"),
            Purpose::Pass => {
                assert_eq!(old, NONE, "a member gets its turn once");
                log.passes += 1;
            }
            Purpose::Leave => log.leaves += usize::from(old == number(self.member)),
            other => panic!("{other:?} although no member dies"),
        }
    }

    async fn own(&self, word: u32) -> u64 {
        self.words.change(self.member, word, Change::Read).await
    }

    async fn until(&self, is_so: impl Fn(&Log) -> bool) {
        while !is_so(&self.log.borrow()) {
            self.words.pause().await;
        }
    }

    /// The own words say who was before and behind the member in its last turn.
    async fn check_own_words(&self) {
        // Who is behind may have the lock, or not yet.
        let (next, turn) = (self.own(NEXT).await, self.own(TURN).await);
        let log = self.log.borrow();
        let last = log.holds.iter().rposition(|(member, _)| *member == self.member).expect("it had turns");
        assert_eq!(turn, if log.holds[last].1 == NONE { NONE } else { GRANTED }, "{log:?}");
        if let Some(&(behind, found)) = log.holds.get(last + 1) {
            let is_behind = found != NONE;
            assert_eq!(next, if is_behind { number(behind) } else { NONE }, "{log:?}");
        }
    }
}

impl Log {
    /// Checks all turns after the last one.
    fn check(&self) {
        assert_eq!((self.holder, self.entered, self.left), (None, self.holds.len(), self.holds.len()));
        // Each one that found the lock taken comes behind the one that it found, by one change of a word.
        let mut before = NONE;
        for &(member, found) in &self.holds {
            assert!(found == NONE || found == before, "the hand-over is not that of the queue: {self:?}");
            before = number(member);
        }
        let waited = self.holds.iter().filter(|(_, found)| *found != NONE).count();
        assert_eq!((self.passes, self.leaves), (waited, self.holds.len() - waited), "{self:?}");
        let guarded = self.holds.iter().fold(0, |word, (member, _)| guarded_after(word, *member));
        assert_eq!(self.home, Some((NONE, guarded)), "{self:?}");
    }
}

/// What plain loops give: each member's result.
pub fn expected(case: &LockCase, members: u32) -> Vec<Vec<u8>> {
    let mut results: Vec<Vec<u8>> = vec![Vec::new(); members as usize];
    let mut guarded = 0;
    match &case.asks {
        Asks::InTurn(queues) => {
            let mut last_words = vec![None; members as usize];
            let mut turn = 0_u32;
            for queue in queues {
                for (place, &member) in queue.iter().enumerate() {
                    results[member as usize].extend(turn.to_le_bytes());
                    let next = queue.get(place + 1).map_or(NONE, |&next| number(next));
                    last_words[member as usize] = Some((next, if place == 0 { NONE } else { GRANTED }));
                    guarded = guarded_after(guarded, member);
                    turn += 1;
                }
            }
            for (result, words) in results.iter_mut().zip(last_words) {
                let (next, turn) = words.unzip();
                result.extend(next.into_iter().chain(turn).flat_map(u64::to_le_bytes));
            }
            results[case.home as usize].extend([NONE, guarded].iter().flat_map(|word| word.to_le_bytes()));
        }
        Asks::Freely(turns) => {
            for (result, &turns) in results.iter_mut().zip(turns) {
                result.extend(std::iter::repeat_n(1, turns as usize));
            }
            results[case.home as usize].extend(NONE.to_le_bytes());
        }
    }
    results
}
