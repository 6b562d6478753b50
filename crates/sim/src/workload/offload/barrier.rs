//! A workload of barriers, with computation before each (experiments E4.3 and E4.4).

use serde::Deserialize;
use weir_proto::offload::group::{BarrierSchedule, Shape};

use super::super::{Timing, at_least, measure, nanoseconds, repetitions};
use super::{Executor, GROUP, draw};
use crate::collective::Group;
use crate::program::Rank;

/// The algorithm of a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BarrierAlgorithm {
    /// Pairwise exchange.
    PairwiseExchange,
    /// Up a tree to rank 0, and down again.
    GatherBroadcast,
}

/// Barriers of all ranks, one after the other. In each of its steps a call computes, and then does a barrier. Step `s`
/// computes `s` times `compute_ns`.
///
/// Source: Buntinas, section 3.5: consecutive barriers (3.5.1), a loop of computation and barrier (3.5.4), with times
/// of arrival that vary (3.5.5), and synthetic applications of several steps (3.5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Barrier {
    /// Who carries it out.
    pub executor: Executor,
    /// The algorithm.
    pub algorithm: BarrierAlgorithm,
    /// Children of a rank in the tree of `gather_broadcast`.
    #[serde(default = "one")]
    pub degree: u32,
    /// Mean computing time of the first step. Unit: ns.
    #[serde(default)]
    pub compute_ns: u64,
    /// Largest difference between the computing time of a rank and the mean, drawn for each step. Unit: percent.
    #[serde(default)]
    pub compute_spread_percent: u32,
    /// Steps of a call.
    #[serde(default = "one")]
    pub steps: u32,
    /// Calls before the timed ones.
    #[serde(default)]
    pub warmup_calls: u32,
    /// Timed calls.
    pub calls: u32,
}

fn one() -> u32 {
    1
}

/// Bound of the steps of a call.
const MAX_STEPS: u32 = 1000;

impl Barrier {
    pub(in super::super) fn check(&self, _ranks: u32) -> Result<(), String> {
        repetitions("calls", self.calls, self.warmup_calls)?;
        at_least("degree", self.degree, 1)?;
        at_least("steps", self.steps, 1)?;
        if self.steps > MAX_STEPS {
            return Err(format!("steps is {}; allowed: 1 to {MAX_STEPS}", self.steps));
        }
        if self.compute_spread_percent > 100 {
            return Err(format!(
                "compute_spread_percent is {}; allowed: at most 100",
                self.compute_spread_percent
            ));
        }
        Ok(())
    }

    pub(in super::super) async fn run(self, rank: Rank) {
        let group = Group::all(&rank);
        let degree = self.degree;
        let barrier = match self.algorithm {
            BarrierAlgorithm::PairwiseExchange => BarrierSchedule::PairwiseExchange,
            BarrierAlgorithm::GatherBroadcast => BarrierSchedule::GatherBroadcast { degree },
        };
        self.executor.join(&rank, Shape { barrier, ..Shape::default() }).await;
        let Barrier { warmup_calls, calls, steps, .. } = self;
        let timing = Timing { warmup_calls, calls, barrier_each_call: false };
        let call = async |number| {
            for step in 1..=steps {
                self.compute(&rank, number, step);
                self.barrier(&rank, &group).await;
            }
        };
        let call_ps = timing.run(&rank, &group, call).await;
        rank.record(measure::CALL_NS, nanoseconds(call_ps));
    }

    async fn barrier(&self, rank: &Rank, group: &Group) {
        match (self.executor, self.algorithm) {
            (Executor::Messages, BarrierAlgorithm::PairwiseExchange) => group.barrier_pairwise().await,
            (Executor::Messages, BarrierAlgorithm::GatherBroadcast) => {
                group.barrier_gather_broadcast(self.degree).await;
            }
            (Executor::Processor | Executor::Nic, _) => {
                let barrier = rank.ibarrier(GROUP);
                rank.ended(barrier).await;
            }
        }
    }

    fn compute(&self, rank: &Rank, call: u32, step: u32) {
        let mean_ps = (self.compute_ns * 1000).saturating_mul(step.into());
        if mean_ps == 0 {
            return;
        }
        let most_ppm = u64::from(self.compute_spread_percent) * 10_000;
        let number = u64::from(call) * u64::from(MAX_STEPS) + u64::from(step);
        let share_ppm = 1_000_000 - most_ppm + draw(rank, number, 2 * most_ppm);
        rank.compute((u128::from(mean_ps) * u128::from(share_ppm) / 1_000_000) as u64);
    }
}
