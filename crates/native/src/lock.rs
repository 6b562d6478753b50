//! A lock that the members of a group share: the queue lock of [`weir_proto::offload::lock`] over remote atomics.
//!
//! Each member has three words under one key: the tail, which is used at the home, and its own next and turn. This file
//! makes the changes of words that the machine asks for, and waits.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weir_link::memory::OwnedMemory;
use weir_proto::offload::lock::{
    BROKEN, Change, LockDriver, LockEnd, LockEvent, NONE, Purpose, QueueLock, Word,
};
use weir_proto::offload::{WordOperation, WordType, WordUpdate};

use crate::state::{Buffers, Owner};
use crate::{Endpoint, Error, Fault, Group, Place, Segment};

/// Words of each member.
const WORDS: usize = 3;
/// Index of each of them.
const TAIL: usize = 0;
const NEXT: usize = 1;
const TURN: usize = 2;
/// A member that waits asks so often whether those that it waits for live.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// What a call needs of one member.
struct Member {
    machine: QueueLock,
    /// Changes that have not ended, with their requests. 0: it could not be started.
    under_way: Vec<(Purpose, u64)>,
    end: Option<LockEnd>,
    /// Changes that it has started.
    changes: u64,
}

/// A lock that the members of a group share. They get it in the order in which they ask. One thread of each member
/// uses it at a time.
pub struct Lock {
    owner: Arc<Owner>,
    group: Group,
    /// Rank in the group of the member with the tail.
    home: u32,
    segment: Segment,
    member: Mutex<Member>,
}

struct Driver<'lock> {
    lock: &'lock Lock,
    under_way: &'lock mut Vec<(Purpose, u64)>,
    end: &'lock mut Option<LockEnd>,
    changes: &'lock mut u64,
}

impl LockDriver for Driver<'_> {
    fn change(&mut self, purpose: Purpose, word: Word, change: Change) {
        let (member, index) = match word {
            Word::Tail => (self.lock.home, TAIL),
            Word::Next(member) => (member, NEXT),
            Word::Turn(member) => (member, TURN),
        };
        let (operation, operand, compare) = match change {
            Change::Read => (WordOperation::Read, 0, 0),
            Change::Swap(new) => (WordOperation::Write, new, 0),
            Change::CompareSwap { expected, new } => (WordOperation::CompareSwap, new, expected),
        };
        let update = WordUpdate { operation, word_type: WordType::U64, operand, compare };
        let buffers = || Buffers::owned(OwnedMemory::new(0), OwnedMemory::new(8));
        let request = self.lock.group.ranks().get(member as usize).map_or(Ok(0), |&rank| {
            let place = Place { rank, key: self.lock.segment.key(), offset: 8 * index as u64 };
            self.lock.owner.0.start_blocking(|inner| inner.start_atomic(place, update, true, buffers()))
        });
        *self.changes += 1;
        self.under_way.push((purpose, request.unwrap_or(0))); // the endpoint is closed, or no such member
    }

    fn own(&mut self) -> (u64, u64) {
        let words = self.lock.segment.words();
        (words[NEXT].load(SeqCst), words[TURN].load(SeqCst))
    }

    fn reset_own(&mut self) {
        let words = self.lock.segment.words();
        words[NEXT].store(NONE, SeqCst);
        words[TURN].store(NONE, SeqCst);
    }

    fn close_next(&mut self) -> u64 {
        let next = &self.lock.segment.words()[NEXT];
        next.compare_exchange(NONE, BROKEN, SeqCst, SeqCst).unwrap_or_else(|old| old)
    }

    fn ended(&mut self, end: LockEnd) {
        *self.end = Some(end);
    }
}

impl Endpoint {
    /// Makes a lock of a group, which nobody has. All members call it with the same home and key, and it returns when
    /// all have. The key must be free at all of them.
    ///
    /// - `home`: rank in the group of the member whose memory says who is the last to wait.
    ///
    /// # Errors
    /// A home that is no member, a key in use; [`Error::Lost`].
    pub fn lock(&self, group: &Group, home: u32, key: u64) -> Result<Lock, Error> {
        if home >= group.size() {
            return Err(Error::argument("home", home, format!("0 to {}", group.size() - 1)));
        }
        // All hear whether all have the words, so that nobody waits for one that has failed.
        let segment = self.expose(key, WORDS);
        let have_words = group.all_reduce(WordOperation::Min, &[u32::from(segment.is_ok())])?;
        let segment = segment?;
        if have_words != [1] {
            return Err(Error::argument("key", key, "those that no member has registered"));
        }
        let machine = QueueLock::new(group.rank());
        let member = Mutex::new(Member { machine, under_way: Vec::new(), end: None, changes: 0 });
        Ok(Lock { owner: Arc::clone(&self.owner), group: group.clone(), home, segment, member })
    }
}

impl Lock {
    /// Waits until this member has the lock.
    ///
    /// # Errors
    /// This member has it already. [`Error::Lost`]: a member that had it or waited for it is dead, or the home. Then
    /// nobody gets it any more.
    pub fn acquire(&self) -> Result<(), Error> {
        self.call(LockEvent::Acquire, "locks that this rank has not", QueueLock::is_idle)
    }

    /// Gives the lock to the member that has waited longest, or to nobody.
    ///
    /// # Errors
    /// This member has not got it. [`Error::Lost`]: somebody else is dead, as for [`Lock::acquire`].
    pub fn release(&self) -> Result<(), Error> {
        self.call(LockEvent::Release, "locks that this rank has", QueueLock::is_held)
    }

    /// Ends the lock. All members call it, and it returns when all have.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub fn close(self) -> Result<(), Error> {
        self.group.barrier()
    }

    /// Changes of words that this member has started, its own words included. To ask is one, and another one if somebody
    /// has the lock or waits; to release is one.
    pub fn changes(&self) -> u64 {
        self.member.lock().unwrap_or_else(PoisonError::into_inner).changes
    }

    fn call(
        &self,
        event: LockEvent,
        allowed: &str,
        is_allowed: impl Fn(&QueueLock) -> bool,
    ) -> Result<(), Error> {
        let mut member = self.member.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_allowed(&member.machine) {
            return Err(Error::argument("lock with key", self.segment.key(), allowed));
        }
        self.handle(&mut member, event);
        let mut checked = Instant::now();
        loop {
            if let Some(end) = member.end.take() {
                let lost = Error::Lost { rank: None, fault: Fault::Died };
                return if end == LockEnd::Broken { Err(lost) } else { Ok(()) };
            }
            if !self.advance(&mut member)? {
                self.owner.0.make_progress(true)?;
            }
            if checked.elapsed() >= CHECK_INTERVAL {
                checked = Instant::now();
                self.handle(&mut member, LockEvent::Check);
            }
        }
    }

    fn handle(&self, member: &mut Member, event: LockEvent) {
        let Member { machine, under_way, end, changes } = member;
        machine.handle(event, &mut Driver { lock: self, under_way, end, changes });
    }

    /// Tells the machine what has ended and what it can see. Returns whether a change has ended.
    fn advance(&self, member: &mut Member) -> Result<bool, Error> {
        for index in 0..member.under_way.len() {
            let (purpose, request) = member.under_way[index];
            let ended = if request == 0 { Some(Ok(None)) } else { self.owner.0.test(request)? };
            let Some(ended) = ended else { continue };
            member.under_way.swap_remove(index);
            let old = ended.ok().flatten().map(|memory| {
                let mut word = [0; 8];
                memory.view().read(0, &mut word);
                u64::from_ne_bytes(word)
            });
            self.handle(member, LockEvent::Changed { purpose, old });
            return Ok(true);
        }
        self.handle(member, LockEvent::Look);
        Ok(member.end.is_some())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let member = self.member.get_mut().unwrap_or_else(PoisonError::into_inner);
        member.under_way.iter().for_each(|&(_, request)| self.owner.0.abandon(request));
    }
}
