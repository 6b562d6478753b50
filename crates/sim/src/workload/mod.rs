//! Workloads, the programs that all ranks of a world run: those of published experiments, the Intel MPI Benchmarks, the
//! NAS Parallel Benchmarks, a stencil code, senders that share one receiver, and operations that a NIC can carry out.
//! Plans choose them by name and set their parameters.
//!
//! Each is an async function over the calls of a [`Rank`]. It does not know the network, the scheme or its driver. It
//! records its measures by [`Rank::record`], under the names in [`Workload::records`].
//!
//! ```text
//! [workload.alltoall]          exactly one table, named like a variant of Workload
//! algorithm = "linear"
//! message_bytes = 2048         each name contains its unit; unknown names are rejected
//! calls = 10
//! ```

pub mod alltoall;
pub mod imb;
pub mod incast;
pub mod nas;
pub mod neighbours;
pub mod offload;
pub mod pairs;
pub mod scatterv;
pub mod windows;

use serde::Deserialize;

use crate::Picoseconds;
use crate::collective::Group;
use crate::program::{Program, Rank};
use offload::Executor;

/// Names of measures. Each rank records a measure once, at its end, as mean over what is timed. A measure
/// that a rank records several times is a series.
pub mod measure {
    /// One call of a collective. Unit: ns.
    pub const CALL_NS: &str = "call_ns";
    /// The square of [`CALL_NS`]. With its mean over ranks follows how equal their times are. Unit: ns^2.
    pub const CALL_NS_SQUARED: &str = "call_ns_squared";
    /// From the start of an operation at the farthest rank to its result. Unit: ns.
    pub const LATENCY_NS: &str = "latency_ns";
    /// Time of a rank in a call. Unit: ns.
    pub const HOST_NS: &str = "host_ns";
    /// Half a round trip. Unit: ns.
    pub const HALF_ROUND_TRIP_NS: &str = "half_round_trip_ns";
    /// One step of an application. Unit: ns.
    pub const STEP_NS: &str = "step_ns";
    /// Payload per second.
    pub const BANDWIDTH_BYTES_PER_S: &str = "bandwidth_bytes_per_s";
    /// Messages per second.
    pub const MESSAGES_PER_S: &str = "messages_per_s";
    /// One message at its receiver. Unit: ns.
    pub const MESSAGE_NS: &str = "message_ns";
    /// Messages that arrived from a sender until one sender had sent all of its own. A series over senders.
    pub const SENDER_MESSAGES: &str = "sender_messages";
    /// The phase of a call, from 0. A series over calls.
    pub const PHASE: &str = "phase";
    /// Slots that a rank owns in the mailboxes of a group: mean, median, smallest and largest value over the
    /// group. Series over calls.
    pub const CREDITS: [[&str; 4]; 4] = [
        ["credits_0_mean_slots", "credits_0_median_slots", "credits_0_least_slots", "credits_0_most_slots"],
        ["credits_1_mean_slots", "credits_1_median_slots", "credits_1_least_slots", "credits_1_most_slots"],
        ["credits_2_mean_slots", "credits_2_median_slots", "credits_2_least_slots", "credits_2_most_slots"],
        ["credits_3_mean_slots", "credits_3_median_slots", "credits_3_least_slots", "credits_3_most_slots"],
    ];
}

/// Defines all workloads, with everything that belongs to an entry in one place.
macro_rules! catalogue {
    ($($(#[$doc:meta])* $name:ident($parameters:path) records [$($record:expr),+];)+) => {
        /// A workload with its parameters.
        #[derive(Clone, Debug, PartialEq, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Workload {
            $($(#[$doc])* $name($parameters),)+
        }

        impl Workload {
            /// The program of one rank. Callers use [`Workload::check`] first.
            pub fn program(&self, rank: Rank) -> Program {
                match self.clone() {
                    $(Workload::$name(parameters) => Box::pin(parameters.run(rank)),)+
                }
            }

            /// Checks the parameters for a world of `ranks` ranks.
            ///
            /// # Errors
            /// A message with the parameter, its value and what is allowed.
            pub fn check(&self, ranks: u32) -> Result<(), String> {
                at_least("ranks", ranks, 1)?;
                match self {
                    $(Workload::$name(parameters) => parameters.check(ranks),)+
                }
            }

            /// The names of its measures (see [`measure`]), the main one first.
            pub fn records(&self) -> &'static [&'static str] {
                match self {
                    $(Workload::$name(_) => &[$($record),+],)+
                }
            }
        }
    };
}

catalogue! {
    /// Several pairs of ranks play ping-pong at the same time.
    MultiPingpong(pairs::MultiPingpong) records [measure::HALF_ROUND_TRIP_NS];
    /// One pair plays ping-pong.
    Latency(pairs::Latency) records [measure::HALF_ROUND_TRIP_NS];
    /// One rank sends windows of messages to another.
    Bandwidth(pairs::Bandwidth) records [measure::BANDWIDTH_BYTES_PER_S, measure::MESSAGES_PER_S];
    /// Windows between ranks of different nodes, with some or all ranks of each.
    Windows(windows::Windows) records [measure::CALL_NS, measure::CALL_NS_SQUARED];
    /// All-to-all among all ranks.
    Alltoall(alltoall::Alltoall) records [measure::CALL_NS, measure::CALL_NS_SQUARED];
    /// All-to-all within groups, while other ranks wait.
    AlltoallGroups(alltoall::AlltoallGroups) records [measure::CALL_NS];
    /// All-to-all in phases with different numbers of ranks.
    AlltoallPhases(alltoall::AlltoallPhases) records [measure::CALL_NS, measure::PHASE];
    /// All-to-all in which some peers are on the same node.
    AlltoallLocal(alltoall::AlltoallLocal) records [measure::CALL_NS];
    /// Scatterv with a root that changes.
    ScattervMovingRoot(scatterv::ScattervMovingRoot) records [measure::CALL_NS];
    /// All other ranks send to rank 0.
    Incast(incast::Incast) records [measure::MESSAGE_NS, measure::SENDER_MESSAGES];
    /// Neighbours on a grid exchange faces.
    Neighbours(neighbours::Neighbours) records [measure::STEP_NS];
    /// One of the Intel MPI Benchmarks.
    Imb(imb::Imb) records [measure::CALL_NS];
    /// One of the NAS Parallel Benchmarks.
    Nas(nas::Nas) records [measure::STEP_NS];
    /// Barriers, by messages or offloaded.
    Barrier(offload::Barrier) records [measure::CALL_NS];
    /// Reductions of one word, by messages or offloaded.
    Reduction(offload::Reduction) records [measure::LATENCY_NS, measure::HOST_NS];
    /// Broadcasts to late ranks, by messages or offloaded.
    Broadcast(offload::Broadcast) records [measure::HOST_NS];
    /// Messages to all other ranks along a tree, by sends or multi-sends.
    Multicast(offload::Multicast) records [measure::LATENCY_NS];
    /// Remote atomics, by messages or offloaded.
    Atomics(offload::Atomics) records [measure::CALL_NS];
    /// A queue lock over remote atomics, for which ranks contend.
    Lock(offload::Lock) records [measure::CALL_NS];
}

impl Workload {
    /// Who carries out its operations; `None` if it has no operation that can be offloaded.
    pub fn executor(&self) -> Option<Executor> {
        match self {
            Workload::Barrier(barrier) => Some(barrier.executor),
            Workload::Reduction(reduction) => Some(reduction.executor),
            Workload::Broadcast(broadcast) => Some(broadcast.executor),
            Workload::Atomics(atomics) => Some(atomics.executor),
            Workload::Lock(lock) => Some(lock.executor),
            _ => None,
        }
    }
}

/// Timed calls after warm-up calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// Number of warm-up calls.
    pub warmup_calls: u32,
    /// Number of timed calls.
    pub calls: u32,
    /// Whether a barrier, which is not timed, follows each call.
    pub barrier_each_call: bool,
}

impl Timing {
    /// Makes the calls, numbered from 0 with warm-up calls. Returns the mean time of a timed call.
    ///
    /// As in the Intel MPI Benchmarks, two barriers (`N_BARR`) precede the timed calls. Only the calls are
    /// timed. A barrier follows each call if `barrier_each_call` is set (`-sync`). Source: IMB,
    /// `IMB_scatter.c` and similar files.
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

/// Bound of repetitions. Twice this number still fits in a `u32`.
const MAX_REPETITIONS: u32 = 1_000_000_000;

/// Checks the numbers of timed and warm-up repetitions. The error states what is allowed.
fn repetitions(name: &str, timed: u32, warmup: u32) -> Result<(), String> {
    if !(1..=MAX_REPETITIONS).contains(&timed) {
        return Err(format!("{name} is {timed}; allowed: 1 to {MAX_REPETITIONS}"));
    }
    if warmup > MAX_REPETITIONS {
        return Err(format!("warmup_{name} is {warmup}; allowed: at most {MAX_REPETITIONS}"));
    }
    Ok(())
}

/// Checks that `value` is at least `least`. The error states what is allowed.
fn at_least(name: &str, value: u32, least: u32) -> Result<(), String> {
    if value >= least { Ok(()) } else { Err(format!("{name} is {value}; allowed: {least} and more")) }
}
