//! A workload of a queue lock over remote atomics (experiment E4.7). The lock is the machine that real ranks use too
//! (`proto::offload::lock`); this file makes its changes of words, and watches the words of its rank for it.

use serde::Deserialize;
use weir_proto::offload::WordOperation;
use weir_proto::offload::lock::{Change, LockDriver, LockEnd, LockEvent, NONE, Purpose, QueueLock, Word};

use super::super::{at_least, measure, nanoseconds, repetitions};
use super::Executor;
use crate::program::Rank;

/// All ranks but rank 0 acquire and release a lock again and again. The tail of its queue is a word of rank 0. The measured
/// time is that of one acquire and release.
///
/// Source: Buntinas, sections 5.3 and 5.4.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lock {
    /// Who changes words for other ranks: the processor of their owner, as a server, or its NIC.
    pub executor: Executor,
    /// What a server takes to wake up that sleeps while there is no request. Only with the processor. Unit: ns.
    #[serde(default)]
    pub wake_ns: u64,
    /// Acquires before the timed ones.
    #[serde(default)]
    pub warmup_calls: u32,
    /// Timed acquires.
    pub calls: u32,
}

/// Tells rank 0 that we need the lock no more.
const TAG: u64 = 1;
const HOME: u32 = 0;
const TAIL: u32 = 0;
const NEXT: u32 = 1;
const TURN: u32 = 2;

impl Lock {
    pub(in super::super) fn check(&self, ranks: u32) -> Result<(), String> {
        at_least("ranks", ranks, 2)?;
        if self.executor == Executor::Messages {
            return Err("executor = 'messages'; allowed: 'processor', 'nic'".to_owned());
        }
        if self.executor == Executor::Nic && self.wake_ns > 0 {
            return Err(format!("wake_ns = {}; allowed with the executor 'nic': 0", self.wake_ns));
        }
        repetitions("calls", self.calls, self.warmup_calls)
    }

    pub(in super::super) async fn run(self, rank: Rank) {
        if rank.rank() == HOME {
            for _ in 1..rank.size() {
                rank.recv(None, TAG, 0).await;
            }
            return;
        }
        let mut member = Member::new(&rank);
        for _ in 0..self.warmup_calls {
            member.take_a_turn().await;
        }
        let begun = rank.clock().await;
        for _ in 0..self.calls {
            member.take_a_turn().await;
        }
        let spent_ps = rank.clock().await - begun;
        rank.send(HOME, TAG, 0).await;
        rank.record(measure::CALL_NS, nanoseconds(spent_ps) / f64::from(self.calls));
    }
}

/// A rank that wants the lock. Its number among the members is one less than its rank.
struct Member<'a> {
    rank: &'a Rank,
    lock: QueueLock,
    asked: Asked,
}

/// What the machine of the lock wants done, and what it may look at meanwhile.
#[derive(Default)]
struct Asked {
    /// Our own words, next and turn, as they were when the event began.
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
        self.resets_own = true;
    }

    fn close_next(&mut self) -> u64 {
        unreachable!("no rank of this workload is lost")
    }

    fn ended(&mut self, end: LockEnd) {
        self.ended = Some(end);
    }
}

impl Member<'_> {
    fn new(rank: &Rank) -> Member<'_> {
        Member { rank, lock: QueueLock::new(rank.rank() - 1), asked: Asked::default() }
    }

    async fn take_a_turn(&mut self) {
        assert_eq!(self.call(LockEvent::Acquire, TURN).await, LockEnd::Acquired);
        assert_eq!(self.call(LockEvent::Release, NEXT).await, LockEnd::Released);
    }

    /// Makes a call of the lock. `waits_for`: the word of our own that another member writes to let us go on.
    async fn call(&mut self, event: LockEvent, waits_for: u32) -> LockEnd {
        self.read_own().await;
        self.handle(event).await;
        loop {
            if let Some((purpose, word, change)) = self.asked.change.take() {
                let old = Some(self.make(word, change).await);
                self.read_own().await;
                self.handle(LockEvent::Changed { purpose, old }).await;
            } else if let Some(end) = self.asked.ended.take() {
                return end;
            } else {
                let word = self.rank.word_changes(waits_for, NONE).await;
                let (next, turn) = &mut self.asked.own;
                *(if waits_for == NEXT { next } else { turn }) = word;
                self.handle(LockEvent::Look).await;
            }
        }
    }

    async fn read_own(&mut self) {
        self.asked.own = (self.rank.own_word(NEXT).await, self.rank.own_word(TURN).await);
    }

    async fn handle(&mut self, event: LockEvent) {
        self.lock.handle(event, &mut self.asked);
        if std::mem::take(&mut self.asked.resets_own) {
            self.rank.set_own_word(NEXT, NONE).await;
            self.rank.set_own_word(TURN, NONE).await;
        }
    }

    /// Changes a word of another rank. Returns the old one.
    async fn make(&self, word: Word, change: Change) -> u64 {
        let (to, word) = match word {
            Word::Tail => (HOME, TAIL),
            Word::Next(member) => (member + 1, NEXT),
            Word::Turn(member) => (member + 1, TURN),
        };
        let handle = match change {
            Change::Read => self.rank.ifetch(to, word, WordOperation::Read, 0),
            Change::Swap(new) => self.rank.ifetch(to, word, WordOperation::Write, new),
            Change::CompareSwap { expected, new } => self.rank.icompare_swap(to, word, expected, new),
        };
        self.rank.wait(handle).await.bytes
    }
}
