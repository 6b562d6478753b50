//! A workload of reductions of one word (experiment E4.5).

use serde::Deserialize;
use weir_proto::offload::group::{ReductionTree, Shape};
use weir_proto::offload::{Combination, WordOperation, WordType};

use super::super::{at_least, measure, nanoseconds, repetitions};
use super::{Executor, GROUP, draw};
use crate::Picoseconds;
use crate::collective::Group;
use crate::program::Rank;

/// The tree of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tree {
    /// Binomial.
    Binomial,
    /// Each rank has one child.
    Chain,
    /// All other ranks are children of rank 0.
    Flat,
}

/// The type of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// 64-bit integer.
    Integer,
    /// Float of 64 bits.
    Float,
}

/// Reductions of one word to rank 0, each after a barrier of messages. Two times are measured. *Latency*: the last
/// rank, which is a leaf, starts; rank 0 has the result, and sends it a message; the one-way time of a message is
/// subtracted. If the last rank is late, no rank goes on before it has this message. *Host time*: what a rank spends in
/// a call. A rank whose NIC carries out the reduction only waits for it if it is rank 0.
///
/// Source: Buntinas, sections 4.3.1 (latency), 4.3.2 (chain and flat tree), 4.3.3 (host time), 4.3.4 (delays).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reduction {
    /// Who carries it out.
    pub executor: Executor,
    /// The tree.
    pub tree: Tree,
    /// The type of the word.
    pub word: Word,
    /// The last rank begins each reduction later by this, so that all others have started. More than 0: for the latency.
    /// Unit: ns.
    #[serde(default)]
    pub last_delay_ns: u64,
    /// Bound of the random delay of each rank before each reduction. Unit: ns.
    #[serde(default)]
    pub max_delay_ns: u64,
    /// Calls before the timed ones.
    #[serde(default)]
    pub warmup_calls: u32,
    /// Timed calls.
    pub calls: u32,
}

/// Tag of the messages that measure the latency.
const TAG: u64 = 1;
/// Round trips from which the one-way time of a message follows.
const ROUND_TRIPS: u64 = 10;
const WORD_BYTES: u64 = 8;

impl Reduction {
    pub(in super::super) fn check(&self, ranks: u32) -> Result<(), String> {
        at_least("ranks", ranks, 2)?;
        repetitions("calls", self.calls, self.warmup_calls)
    }

    pub(in super::super) async fn run(self, rank: Rank) {
        let group = Group::all(&rank);
        let reduction = match self.tree {
            Tree::Binomial => ReductionTree::Binomial,
            Tree::Chain => ReductionTree::Chain,
            Tree::Flat => ReductionTree::Flat,
        };
        self.executor.join(&rank, Shape { reduction, ..Shape::default() }).await;
        let last = rank.size() - 1;
        let (mut host_ps, mut latency_ps) = (0, 0);
        for call in 0..self.warmup_calls + self.calls {
            group.barrier().await;
            let last_delay_ns = if rank.rank() == last { self.last_delay_ns } else { 0 };
            rank.compute((last_delay_ns + draw(&rank, call.into(), self.max_delay_ns)) * 1000);
            let begun = rank.clock().await;
            let in_call_ps = self.reduce(&rank, &group).await;
            if rank.rank() == 0 {
                rank.send(last, TAG, 0).await;
            }
            if rank.rank() == last {
                rank.recv(Some(0), TAG, 0).await;
            }
            let answered_ps = rank.clock().await - begun;
            if self.last_delay_ns > 0 {
                // Messages of ranks that are already in the next barrier would reach the NIC of the last rank before
                // the answer, and delay it.
                group.broadcast(last, 0).await;
            }
            if call >= self.warmup_calls {
                host_ps += in_call_ps;
                latency_ps += answered_ps;
            }
        }
        // At the end, when no packet of others disturbs it.
        let one_way_ps = one_way_ps(&rank, last).await;
        let latency_ps = latency_ps.saturating_sub(one_way_ps * u64::from(self.calls));
        let mean = |ps: Picoseconds| nanoseconds(ps) / f64::from(self.calls);
        if rank.rank() == last {
            rank.record(measure::LATENCY_NS, mean(latency_ps));
        }
        rank.record(measure::HOST_NS, mean(host_ps));
    }

    /// One reduction. Returns the time that the program spends in it.
    async fn reduce(&self, rank: &Rank, group: &Group) -> Picoseconds {
        let begun = rank.clock().await;
        if self.executor == Executor::Messages {
            match self.tree {
                Tree::Binomial => group.reduce(0, WORD_BYTES).await,
                Tree::Chain => group.reduce_pipeline(0, WORD_BYTES, 0).await,
                Tree::Flat => group.reduce_linear(0, WORD_BYTES).await,
            }
            return rank.clock().await - begun;
        }
        let word_type = match self.word {
            Word::Integer => WordType::U64,
            Word::Float => WordType::F64,
        };
        let sum = Combination { operation: WordOperation::Sum, word_type };
        let reduction = rank.ireduce(GROUP, sum, vec![0; WORD_BYTES as usize]);
        if rank.rank() == 0 || self.executor == Executor::Processor {
            rank.ended(reduction).await;
            return rank.clock().await - begun;
        }
        let in_call_ps = rank.clock().await - begun;
        rank.ended(reduction).await;
        in_call_ps
    }
}

/// Half a round trip between rank 0 and `last`. 0 at other ranks.
async fn one_way_ps(rank: &Rank, last: u32) -> Picoseconds {
    let partner = match rank.rank() {
        0 => last,
        other if other == last => 0,
        _ => return 0,
    };
    let mut begun = 0;
    for trip in 0..=ROUND_TRIPS {
        if trip == 1 {
            begun = rank.clock().await; // after the first trip both ranks are ready
        }
        if partner == 0 {
            rank.send(0, TAG, 0).await;
            rank.recv(Some(0), TAG, 0).await;
        } else {
            rank.recv(Some(last), TAG, 0).await;
            rank.send(last, TAG, 0).await;
        }
    }
    (rank.clock().await - begun) / (2 * ROUND_TRIPS)
}
