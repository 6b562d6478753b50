//! Everybody to everybody, over and over.

use serde::Deserialize;

use super::{Timing, at_least, measure, nanoseconds};
use crate::collective::Group;
use crate::program::Rank;

/// How a personalised exchange is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// All receives are posted, then all sends.
    Linear,
    /// One partner at a time.
    Pairwise,
    /// `ceil(log2 n)` rounds of about half of everything.
    Bruck,
}

/// All ranks exchange `message_bytes` with each other, call after call.
///
/// Source: Prades, sections 5.3 and 7.1 (2 KB, 256 and 1024 ranks, collective optimisations disabled: linear; 150 repetitions).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alltoall {
    /// How.
    pub algorithm: Algorithm,
    /// From each rank to each other. Unit: bytes.
    pub message_bytes: u64,
    /// Linear: sends under way at a time; 0: all at once.
    #[serde(default)]
    pub window_messages: u32,
    /// Calls that are not timed.
    #[serde(default)]
    pub warmup_calls: u32,
    /// Calls that are timed.
    pub calls: u32,
    /// A barrier, not timed, before each call.
    #[serde(default)]
    pub barrier_each_call: bool,
}

impl Alltoall {
    pub(super) fn check(&self, _ranks: u32) -> Result<(), String> {
        at_least("calls", self.calls, 1)?;
        if self.window_messages > 0 && self.algorithm != Algorithm::Linear {
            return Err(format!(
                "window_messages is {} with the algorithm {:?}; allowed: linear",
                self.window_messages, self.algorithm
            ));
        }
        Ok(())
    }

    pub(super) async fn run(self, rank: Rank) {
        let group = Group::all(&rank);
        let Alltoall { warmup_calls, calls, barrier_each_call, .. } = self;
        let timing = Timing { warmup_calls, calls, barrier_each_call };
        let call_ps = timing.run(&rank, &group, async |_| self.call(&group).await).await;
        rank.record(measure::CALL_NS, nanoseconds(call_ps));
    }

    async fn call(&self, group: &Group) {
        match self.algorithm {
            Algorithm::Linear => group.alltoall_linear(self.message_bytes, self.window_messages).await,
            Algorithm::Pairwise => group.alltoall_pairwise(self.message_bytes).await,
            Algorithm::Bruck => group.alltoall_bruck(self.message_bytes).await,
        }
    }
}
