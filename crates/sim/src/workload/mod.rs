//! Workloads: the rank programs of the published experiments, by name and with their parameters, so that plans in files can ask
//! for them.
//!
//! Each is an ordinary async function over the calls of a [`Rank`]. It does not know the network, the scheme or
//! who drives it. What it measures it leaves by [`Rank::record`] under the names in [`Workload::records`].
//!
//! ```text
//! [workload.alltoall]          exactly one table, named like a variant of Workload
//! algorithm = "linear"
//! message_bytes = 2048         a unit belongs to each name; unknown names are refused
//! calls = 10
//! ```

pub mod alltoall;
pub mod imb;
pub mod nas;
pub mod neighbours;
pub mod pairs;
pub mod scatterv;

use serde::Deserialize;

use crate::Picoseconds;
use crate::collective::Group;
use crate::program::{Program, Rank};

/// Names of what programs record. A rank records for itself, once, at its end: the mean over what is timed. What is recorded
/// again and again is a series.
pub mod measure {
    /// One call of a collective. Unit: ns.
    pub const CALL_NS: &str = "call_ns";
    /// Half of there and back. Unit: ns.
    pub const HALF_ROUND_TRIP_NS: &str = "half_round_trip_ns";
    /// One step of an application. Unit: ns.
    pub const STEP_NS: &str = "step_ns";
    /// Payload per time.
    pub const BANDWIDTH_BYTES_PER_S: &str = "bandwidth_bytes_per_s";
    /// Messages per time.
    pub const MESSAGES_PER_S: &str = "messages_per_s";
    /// The phase that a call belongs to, from 0. A series over calls.
    pub const PHASE: &str = "phase";
    /// Slots of the mailboxes of a group's members that are a rank's: mean, median, least and most over them. Series over calls.
    pub const CREDITS: [[&str; 4]; 4] = [
        ["credits_0_mean_slots", "credits_0_median_slots", "credits_0_least_slots", "credits_0_most_slots"],
        ["credits_1_mean_slots", "credits_1_median_slots", "credits_1_least_slots", "credits_1_most_slots"],
        ["credits_2_mean_slots", "credits_2_median_slots", "credits_2_least_slots", "credits_2_most_slots"],
        ["credits_3_mean_slots", "credits_3_median_slots", "credits_3_least_slots", "credits_3_most_slots"],
    ];
}

/// The catalogue, with all that has to be said of each entry in one place.
macro_rules! catalogue {
    ($($(#[$doc:meta])* $name:ident($parameters:path) records [$($record:expr),+];)+) => {
        /// A workload with its parameters.
        #[derive(Clone, Debug, PartialEq, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Workload {
            $($(#[$doc])* $name($parameters),)+
        }

        impl Workload {
            /// The program of one rank. Whoever builds a world asks [`Workload::check`] first.
            pub fn program(&self, rank: Rank) -> Program {
                match self.clone() {
                    $(Workload::$name(parameters) => Box::pin(parameters.run(rank)),)+
                }
            }

            /// Whether these parameters make sense among `ranks` ranks.
            ///
            /// # Errors
            /// In words: the parameter, its value and what is allowed.
            pub fn check(&self, ranks: u32) -> Result<(), String> {
                at_least("ranks", ranks, 1)?;
                match self {
                    $(Workload::$name(parameters) => parameters.check(ranks),)+
                }
            }

            /// The names of what it records (see [`measure`]), the most telling first.
            pub fn records(&self) -> &'static [&'static str] {
                match self {
                    $(Workload::$name(_) => &[$($record),+],)+
                }
            }
        }
    };
}

catalogue! {
    /// Pairs of ranks play ping-pong, all at the same time.
    MultiPingpong(pairs::MultiPingpong) records [measure::HALF_ROUND_TRIP_NS];
    /// One pair plays ping-pong.
    Latency(pairs::Latency) records [measure::HALF_ROUND_TRIP_NS];
    /// One rank sends to another, window after window.
    Bandwidth(pairs::Bandwidth) records [measure::BANDWIDTH_BYTES_PER_S, measure::MESSAGES_PER_S];
    /// Everybody to everybody.
    Alltoall(alltoall::Alltoall) records [measure::CALL_NS];
    /// Everybody of a group to everybody of it, while others wait.
    AlltoallGroups(alltoall::AlltoallGroups) records [measure::CALL_NS];
    /// Among more and fewer ranks by turns.
    AlltoallPhases(alltoall::AlltoallPhases) records [measure::CALL_NS, measure::PHASE];
    /// Some peers live in the same node.
    AlltoallLocal(alltoall::AlltoallLocal) records [measure::CALL_NS];
    /// From one rank to all, and the one changes.
    ScattervMovingRoot(scatterv::ScattervMovingRoot) records [measure::CALL_NS];
    /// Faces of a grid.
    Neighbours(neighbours::Neighbours) records [measure::STEP_NS];
    /// One of the Intel MPI Benchmarks.
    Imb(imb::Imb) records [measure::CALL_NS];
    /// One of the NAS Parallel Benchmarks.
    Nas(nas::Nas) records [measure::STEP_NS];
}

/// Calls that are timed, after some that are not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// Not timed.
    pub warmup_calls: u32,
    /// Timed.
    pub calls: u32,
    /// Everybody waits for everybody after each call; the barrier is not timed.
    pub barrier_each_call: bool,
}

impl Timing {
    /// Makes the calls, numbered from 0, warm-up included. Returns the mean time of a timed one.
    ///
    /// As the Intel MPI Benchmarks do it: two barriers (`N_BARR`), then the calls; the time is that of the calls alone, and a
    /// barrier follows each if so wished (`-sync`). Source: IMB, `IMB_scatter.c` and its like.
    pub async fn run(&self, rank: &Rank, group: &Group, mut call: impl AsyncFnMut(u32)) -> Picoseconds {
        for number in 0..self.warmup_calls {
            call(number).await;
        }
        group.barrier().await;
        group.barrier().await;
        let mut spent_ps = 0;
        let mut begun = rank.clock().await;
        for number in 0..self.calls {
            call(self.warmup_calls + number).await;
            let last = number + 1 == self.calls;
            if self.barrier_each_call || last {
                spent_ps += rank.clock().await - begun;
            }
            if self.barrier_each_call && !last {
                group.barrier().await;
                begun = rank.clock().await;
            }
        }
        spent_ps / u64::from(self.calls.max(1))
    }
}

fn nanoseconds(ps: Picoseconds) -> f64 {
    ps as f64 / 1000.0
}

/// Nobody waits for more repetitions of anything, and twice as many are still a `u32`.
const MAX_REPETITIONS: u32 = 1_000_000_000;

/// So many repetitions that are timed and, before them, that are not: `name` and `warmup_name`. Or what is allowed.
fn repetitions(name: &str, timed: u32, warmup: u32) -> Result<(), String> {
    if !(1..=MAX_REPETITIONS).contains(&timed) {
        return Err(format!("{name} is {timed}; allowed: 1 to {MAX_REPETITIONS}"));
    }
    if warmup > MAX_REPETITIONS {
        return Err(format!("warmup_{name} is {warmup}; allowed: at most {MAX_REPETITIONS}"));
    }
    Ok(())
}

/// `value` is at least `least`, or what is allowed.
fn at_least(name: &str, value: u32, least: u32) -> Result<(), String> {
    if value >= least { Ok(()) } else { Err(format!("{name} is {value}; allowed: {least} and more")) }
}
