//! A workload of Scatterv calls whose root changes (experiment E1.9).

use serde::Deserialize;

use super::{Timing, at_least, measure, nanoseconds, repetitions};
use crate::collective::Group;
use crate::collective::library::Library;
use crate::program::Rank;

/// Repeated `MPI_Scatterv`. The next rank becomes the root after every `calls_per_root` calls.
///
/// Source: Prades, section 7.4.1 (Fig 7.10: 2 KB, 1024 ranks, the root changes every 1 to 50 calls).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScattervMovingRoot {
    /// The library whose algorithm is used.
    pub library: Library,
    /// Payload from the root to each other rank. Unit: bytes.
    pub message_bytes: u64,
    /// Calls before the root changes.
    pub calls_per_root: u32,
    /// Calls before the timed ones.
    #[serde(default)]
    pub warmup_calls: u32,
    /// Timed calls.
    pub calls: u32,
    /// Whether a barrier, which is not timed, follows each call.
    #[serde(default)]
    pub barrier_each_call: bool,
}

impl ScattervMovingRoot {
    pub(super) fn check(&self, _ranks: u32) -> Result<(), String> {
        at_least("calls_per_root", self.calls_per_root, 1)?;
        repetitions("calls", self.calls, self.warmup_calls)
    }

    pub(super) async fn run(self, rank: Rank) {
        let group = Group::all(&rank);
        let ScattervMovingRoot { library, message_bytes, warmup_calls, calls, barrier_each_call, .. } = self;
        let timing = Timing { warmup_calls, calls, barrier_each_call };
        let call = async |number| {
            let root = number / self.calls_per_root % rank.size();
            library.scatterv(&group, root, message_bytes).await;
        };
        let call_ps = timing.run(&rank, &group, call).await;
        rank.record(measure::CALL_NS, nanoseconds(call_ps));
    }
}
