//! The queue lock, whose words its other members change: old words and own words are what somebody else has written.

use weir_proto::offload::lock::{
    BROKEN, Change, GRANTED, LockDriver, LockEnd, LockEvent, NONE, Purpose, QueueLock, Word,
};

/// A member: its own words, the changes that have not ended, and its calls.
#[derive(Default)]
struct Member {
    next: u64,
    turn: u64,
    under_way: Vec<Purpose>,
    /// A call of the program has not ended.
    is_called: bool,
}

impl LockDriver for Member {
    fn change(&mut self, purpose: Purpose, _word: Word, _change: Change) {
        self.under_way.push(purpose);
        assert!(self.under_way.len() <= 3, "changes without end: {:?}", self.under_way);
    }

    fn own(&mut self) -> (u64, u64) {
        (self.next, self.turn)
    }

    fn reset_own(&mut self) {
        (self.next, self.turn) = (NONE, NONE);
    }

    fn close_next(&mut self) -> u64 {
        let old = self.next;
        if old == NONE {
            self.next = BROKEN;
        }
        old
    }

    fn ended(&mut self, _end: LockEnd) {
        assert!(std::mem::take(&mut self.is_called), "a call ends twice");
    }
}

/// A word that somebody has written: most often one with a meaning.
fn word(byte: u8) -> u64 {
    match byte & 7 {
        0 | 1 => NONE,
        2 => GRANTED,
        3 => BROKEN,
        4 => u64::from(byte) << 50,
        _ => 2 + u64::from(byte >> 3),
    }
}

/// Pairs of bytes: what happens, and a word.
pub fn words_of_members(bytes: &[u8]) {
    let (mut lock, mut member) = (QueueLock::new(3), Member::default());
    for pair in bytes.chunks_exact(2) {
        let (happens, word) = (pair[0], word(pair[1]));
        match happens & 7 {
            0 if !member.is_called && (lock.is_idle() || lock.is_held()) => {
                let event = if lock.is_held() { LockEvent::Release } else { LockEvent::Acquire };
                member.is_called = true;
                lock.handle(event, &mut member);
            }
            1 => lock.handle(LockEvent::Look, &mut member),
            2 => lock.handle(LockEvent::Check, &mut member),
            3 => member.next = word,
            4 => member.turn = word,
            _ if !member.under_way.is_empty() => {
                let purpose = member.under_way.remove(usize::from(happens >> 3) % member.under_way.len());
                let old = (happens & 7 != 7).then_some(word);
                lock.handle(LockEvent::Changed { purpose, old }, &mut member);
            }
            _ => {}
        }
    }
    // All others are dead: a call ends.
    for _ in 0..20 {
        while let Some(purpose) = member.under_way.pop() {
            lock.handle(LockEvent::Changed { purpose, old: None }, &mut member);
        }
        lock.handle(LockEvent::Check, &mut member);
        lock.handle(LockEvent::Look, &mut member);
    }
    assert!(!member.is_called, "a call does not end although all others are dead: {lock:?}");
}

pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    // It enters behind member 5, gets its turn, and passes the lock on to member 6.
    let waits = [0, 0, 5, 5 | 3 << 3, 5, 0, 4, 2, 1, 0, 3, 5 | 4 << 3, 0, 0, 5, 0];
    // It is alone.
    let alone = [0, 0, 5, 0, 0, 0, 5, 5 | 3 << 3];
    vec![("lock", waits.to_vec()), ("lock", alone.to_vec())]
}
