//! A workload of remote atomics (experiment E4.6).

use serde::Deserialize;

use super::super::{at_least, measure, nanoseconds, repetitions};
use super::Executor;
use crate::Picoseconds;
use crate::program::Rank;

/// Rank 1 replaces a word of rank 0 again and again, by compare&swap that succeeds. Host-based, rank 0 is a server that
/// waits for requests and answers them. The measured time is that of one operation. Other ranks do nothing.
///
/// Source: Buntinas, section 5.4.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Atomics {
    /// Who carries it out.
    pub executor: Executor,
    /// Time from the arrival of a request until a server handles it that sleeps while there is none. Only with
    /// messages. Unit: ns.
    #[serde(default)]
    pub wake_ns: u64,
    /// Operations before the timed ones.
    #[serde(default)]
    pub warmup_calls: u32,
    /// Timed operations.
    pub calls: u32,
}

const TAG: u64 = 1;
/// Node, port, address, compare value and operand of 32 bits.
const REQUEST_BYTES: u64 = 20;
const ANSWER_BYTES: u64 = 4;
const WORD: u32 = 0;

impl Atomics {
    pub(in super::super) fn check(&self, ranks: u32) -> Result<(), String> {
        at_least("ranks", ranks, 2)?;
        repetitions("calls", self.calls, self.warmup_calls)
    }

    pub(in super::super) async fn run(self, rank: Rank) {
        let calls = self.warmup_calls + self.calls;
        match rank.rank() {
            0 => self.serve(&rank, calls).await,
            1 => {
                let mut spent_ps = 0;
                for call in 0..calls {
                    let ps = self.compare_swap(&rank, call.into()).await;
                    spent_ps += if call < self.warmup_calls { 0 } else { ps };
                }
                rank.send(0, TAG + 1, 0).await;
                rank.record(measure::CALL_NS, nanoseconds(spent_ps) / f64::from(self.calls));
            }
            _ => {}
        }
    }

    async fn serve(&self, rank: &Rank, calls: u32) {
        if self.executor == Executor::Messages {
            for _ in 0..calls {
                rank.recv(Some(1), TAG, REQUEST_BYTES).await;
                rank.compute(self.wake_ns * 1000);
                rank.send(1, TAG, ANSWER_BYTES).await;
            }
        }
        rank.recv(Some(1), TAG + 1, 0).await;
    }

    async fn compare_swap(&self, rank: &Rank, old: u64) -> Picoseconds {
        let begun = rank.clock().await;
        if self.executor == Executor::Messages {
            rank.send(0, TAG, REQUEST_BYTES).await;
            rank.recv(Some(0), TAG, ANSWER_BYTES).await;
        } else {
            let swap = rank.icompare_swap(0, WORD, old, old + 1);
            rank.wait(swap).await;
        }
        rank.clock().await - begun
    }
}
