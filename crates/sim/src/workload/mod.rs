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
pub mod pairs;

use serde::Deserialize;

use crate::Picoseconds;
use crate::collective::Group;
use crate::program::{Program, Rank};

/// Names of what programs record. A rank records for itself, once, at its end: the mean over what is timed.
pub mod measure {
    /// One call of a collective. Unit: ns.
    pub const CALL_NS: &str = "call_ns";
    /// Half of there and back. Unit: ns.
    pub const HALF_ROUND_TRIP_NS: &str = "half_round_trip_ns";
}

/// A workload with its parameters.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// Pairs of ranks, all at the same time.
    MultiPingpong(pairs::MultiPingpong),
    /// Everybody to everybody.
    Alltoall(alltoall::Alltoall),
}

impl Workload {
    /// The program of one rank. Whoever builds a world asks [`Workload::check`] first.
    pub fn program(&self, rank: Rank) -> Program {
        match self.clone() {
            Workload::MultiPingpong(parameters) => Box::pin(parameters.run(rank)),
            Workload::Alltoall(parameters) => Box::pin(parameters.run(rank)),
        }
    }

    /// Whether these parameters make sense among `ranks` ranks.
    ///
    /// # Errors
    /// In words: the parameter, its value and what is allowed.
    pub fn check(&self, ranks: u32) -> Result<(), String> {
        if ranks == 0 {
            return Err("ranks is 0; allowed: 1 and more".into());
        }
        match self {
            Workload::MultiPingpong(parameters) => parameters.check(ranks),
            Workload::Alltoall(parameters) => parameters.check(ranks),
        }
    }

    /// The names of what it records (see [`measure`]), the most telling first.
    pub fn records(&self) -> &'static [&'static str] {
        match self {
            Workload::MultiPingpong(_) => &[measure::HALF_ROUND_TRIP_NS],
            Workload::Alltoall(_) => &[measure::CALL_NS],
        }
    }
}

/// Calls that are timed, after some that are not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// Not timed.
    pub warmup_calls: u32,
    /// Timed.
    pub calls: u32,
    /// Everybody waits for everybody before each call; the barrier is not timed.
    pub barrier_each_call: bool,
}

impl Timing {
    /// Makes the calls, numbered from 0, warm-up included. Returns the mean time of a timed one.
    ///
    /// As the Intel MPI Benchmarks do it: two barriers, then the calls one after the other.
    /// Source: IMB user guide, "Synchronization" (`N_BARR` = 2).
    pub async fn run(&self, rank: &Rank, group: &Group, mut call: impl AsyncFnMut(u32)) -> Picoseconds {
        for number in 0..self.warmup_calls {
            call(number).await;
        }
        group.barrier().await;
        group.barrier().await;
        let mut spent_ps = 0;
        let mut begun = rank.clock().await;
        for number in 0..self.calls {
            if self.barrier_each_call && number > 0 {
                group.barrier().await;
                begun = rank.clock().await;
            }
            call(self.warmup_calls + number).await;
            if self.barrier_each_call || number + 1 == self.calls {
                spent_ps += rank.clock().await - begun;
            }
        }
        spent_ps / u64::from(self.calls.max(1))
    }
}

fn nanoseconds(ps: Picoseconds) -> f64 {
    ps as f64 / 1000.0
}

/// `value` is at least `least`, or what is allowed.
fn at_least(name: &str, value: u32, least: u32) -> Result<(), String> {
    if value >= least { Ok(()) } else { Err(format!("{name} is {value}; allowed: {least} and more")) }
}
