//! The workload of the Intel MPI Benchmarks: one benchmark at one message length, point-to-point or collective, with
//! the collective algorithms of an MPI library.
//!
//! Source: IMB 3.2 to 2019, `src/IMB_*.c`. Two barriers are followed by `calls` calls, which each rank that takes part
//! times. The root moves after each call, unless `root_shift` is false. Warm-up calls are the same calls without the
//! clock.

use serde::Deserialize;

use super::{Timing, at_least, measure, nanoseconds, repetitions};
use crate::collective::Group;
use crate::collective::library::Library;
use crate::program::Rank;

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Benchmark {
    /// Two ranks in turn; half a round trip is reported.
    PingPong,
    /// Two ranks send at the same time.
    PingPing,
    /// Ring: sends to the right, receives from the left.
    Sendrecv,
    /// Exchanges with both neighbours of a ring.
    Exchange,
    /// `MPI_Bcast`.
    Bcast,
    /// `MPI_Reduce`.
    Reduce,
    /// `MPI_Allreduce`.
    Allreduce,
    /// `MPI_Reduce_scatter`; `message_bytes` counts the parts of all ranks.
    ReduceScatter,
    /// `MPI_Allgather`.
    Allgather,
    /// `MPI_Allgatherv`.
    Allgatherv,
    /// `MPI_Gather`.
    Gather,
    /// `MPI_Gatherv`.
    Gatherv,
    /// `MPI_Scatter`.
    Scatter,
    /// `MPI_Scatterv`.
    Scatterv,
    /// `MPI_Alltoall`.
    Alltoall,
    /// `MPI_Alltoallv`.
    Alltoallv,
    /// `MPI_Barrier`; `message_bytes` is 0.
    Barrier,
}

/// One benchmark at one message length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Imb {
    /// The benchmark.
    pub benchmark: Benchmark,
    /// The library whose algorithms are used.
    pub library: Library,
    /// Length of the message, or of the block of each rank or pair. Unit: bytes.
    pub message_bytes: u64,
    /// Ping-pong and ping-ping: every pair of ranks `2 i` and `2 i + 1` takes part, not only 0 and 1
    /// (`-multi`).
    #[serde(default)]
    pub every_pair: bool,
    /// Whether the root moves after each call, as in IMB 3.2 and in the thesis (7.4.1).
    #[serde(default = "yes")]
    pub root_shift: bool,
    /// Time to combine one KiB. Unit: ns.
    #[serde(default)]
    pub combine_ns_per_kib: u64,
    /// Calls before the timed ones.
    #[serde(default)]
    pub warmup_calls: u32,
    /// Timed calls.
    pub calls: u32,
    /// Whether a barrier, which is not timed, follows each call (`-sync`).
    #[serde(default)]
    pub barrier_each_call: bool,
}

fn yes() -> bool {
    true
}

/// Tag of point-to-point messages.
const TAG: u64 = 1;

impl Imb {
    fn is_between_two(&self) -> bool {
        matches!(self.benchmark, Benchmark::PingPong | Benchmark::PingPing)
    }

    pub(super) fn check(&self, ranks: u32) -> Result<(), String> {
        repetitions("calls", self.calls, self.warmup_calls)?;
        if self.is_between_two() {
            at_least("ranks", ranks, 2)?;
        } else if self.every_pair {
            return Err(format!(
                "every_pair is true with the benchmark {:?}; allowed: ping_pong, ping_ping",
                self.benchmark
            ));
        }
        if self.benchmark == Benchmark::Barrier && self.message_bytes > 0 {
            return Err(format!(
                "message_bytes is {} with the benchmark barrier; allowed: 0",
                self.message_bytes
            ));
        }
        Ok(())
    }

    pub(super) async fn run(self, rank: Rank) {
        if self.is_between_two() {
            let first = rank.rank() & !1;
            let plays = first + 1 < rank.size() && (first == 0 || self.every_pair);
            if plays {
                self.time(&rank, &Group::of(&rank, first..first + 2, 1)).await;
            }
            return Group::all(&rank).barrier().await;
        }
        let group = Group::all(&rank).combining(self.combine_ns_per_kib * 1000);
        self.time(&rank, &group).await;
    }

    async fn time(&self, rank: &Rank, group: &Group) {
        let Imb { warmup_calls, calls, barrier_each_call, .. } = *self;
        let timing = Timing { warmup_calls, calls, barrier_each_call };
        let call_ps = timing.run(rank, group, async |number| self.call(rank, group, number).await).await;
        let share = if self.benchmark == Benchmark::PingPong { 2.0 } else { 1.0 };
        rank.record(measure::CALL_NS, nanoseconds(call_ps) / share);
    }

    async fn call(&self, rank: &Rank, group: &Group, number: u32) {
        let (library, bytes) = (self.library, self.message_bytes);
        let root = if self.root_shift { number % group.size() } else { 0 };
        match self.benchmark {
            Benchmark::PingPong => ping_pong(rank, bytes).await,
            Benchmark::PingPing => ping_ping(rank, bytes).await,
            Benchmark::Sendrecv => {
                let [left, right] = ring(rank);
                rank.sendrecv(right, left, TAG, bytes, bytes).await;
            }
            Benchmark::Exchange => exchange(rank, bytes).await,
            Benchmark::Bcast => library.broadcast(group, root, bytes).await,
            Benchmark::Reduce => library.reduce(group, root, bytes).await,
            Benchmark::Allreduce => library.allreduce(group, bytes).await,
            Benchmark::ReduceScatter => library.reduce_scatter(group, bytes).await,
            Benchmark::Allgather => library.allgather(group, bytes).await,
            Benchmark::Allgatherv => library.allgatherv(group, bytes).await,
            Benchmark::Gather => library.gather(group, root, bytes).await,
            Benchmark::Gatherv => library.gatherv(group, root, bytes).await,
            Benchmark::Scatter => library.scatter(group, root, bytes).await,
            Benchmark::Scatterv => library.scatterv(group, root, bytes).await,
            Benchmark::Alltoall => library.alltoall(group, bytes).await,
            Benchmark::Alltoallv => library.alltoallv(group, bytes).await,
            Benchmark::Barrier => library.barrier(group).await,
        }
    }
}

fn ring(rank: &Rank) -> [u32; 2] {
    let (me, size) = (rank.rank(), rank.size());
    [(me + size - 1) % size, (me + 1) % size]
}

async fn ping_pong(rank: &Rank, bytes: u64) {
    let partner = rank.rank() ^ 1;
    if rank.rank() < partner {
        rank.send(partner, TAG, bytes).await;
        rank.recv(Some(partner), TAG, bytes).await;
    } else {
        rank.recv(Some(partner), TAG, bytes).await;
        rank.send(partner, TAG, bytes).await;
    }
}

/// Source: `IMB_pingping.c`: `MPI_Isend`, `MPI_Recv`, `MPI_Wait`.
async fn ping_ping(rank: &Rank, bytes: u64) {
    let partner = rank.rank() ^ 1;
    let send = rank.isend(partner, TAG, bytes);
    rank.recv(Some(partner), TAG, bytes).await;
    rank.wait(send).await;
}

/// Source: `IMB_exchange.c`: `MPI_Isend` left and right, `MPI_Recv` from left and right, `MPI_Waitall`.
async fn exchange(rank: &Rank, bytes: u64) {
    let [left, right] = ring(rank);
    // Between two ranks, left and right are the same rank: a message to the left comes from the right.
    let sends = [rank.isend(left, TAG, bytes), rank.isend(right, TAG + 1, bytes)];
    rank.recv(Some(left), TAG + 1, bytes).await;
    rank.recv(Some(right), TAG, bytes).await;
    rank.wait_all(sends).await;
}
