//! A workload of broadcasts to ranks that are late (experiment E4.8).

use serde::Deserialize;
use weir_proto::offload::group::{MAX_BROADCAST_BYTES, Shape};

use super::super::{at_least, measure, nanoseconds, repetitions};
use super::{Executor, GROUP, draw};
use crate::collective::Group;
use crate::program::Rank;

/// Broadcasts of rank 0, each after a barrier of messages. All other ranks are late by a random time. The measured time
/// is what a rank spends in the call.
///
/// Source: Buntinas, section 6.3. There, a signal handler of the host forwards while the program computes. Here, the
/// NIC does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Broadcast {
    /// Who carries it out.
    pub executor: Executor,
    /// Length of the broadcast. Unit: bytes.
    pub message_bytes: u64,
    /// Bound of the random delay of each rank except rank 0. Unit: ns.
    #[serde(default)]
    pub max_delay_ns: u64,
    /// Calls before the timed ones.
    #[serde(default)]
    pub warmup_calls: u32,
    /// Timed calls.
    pub calls: u32,
}

impl Broadcast {
    pub(in super::super) fn check(&self, ranks: u32) -> Result<(), String> {
        at_least("ranks", ranks, 2)?;
        if self.executor != Executor::Messages && self.message_bytes > MAX_BROADCAST_BYTES.into() {
            return Err(format!(
                "message_bytes is {}; allowed: at most {MAX_BROADCAST_BYTES}, unless the executor is messages",
                self.message_bytes
            ));
        }
        repetitions("calls", self.calls, self.warmup_calls)
    }

    pub(in super::super) async fn run(self, rank: Rank) {
        let group = Group::all(&rank);
        self.executor.join(&rank, Shape::default()).await;
        let mut spent_ps = 0;
        for call in 0..self.warmup_calls + self.calls {
            group.barrier().await;
            if rank.rank() > 0 {
                rank.compute(draw(&rank, call.into(), self.max_delay_ns) * 1000);
            }
            let begun = rank.clock().await;
            if self.executor == Executor::Messages {
                group.broadcast(0, self.message_bytes).await;
            } else {
                let broadcast = rank.ibroadcast(GROUP, 0, vec![0; self.message_bytes as usize]);
                rank.ended(broadcast).await;
            }
            let in_call_ps = rank.clock().await - begun;
            spent_ps += if call < self.warmup_calls { 0 } else { in_call_ps };
        }
        rank.record(measure::HOST_NS, nanoseconds(spent_ps) / f64::from(self.calls));
    }
}
