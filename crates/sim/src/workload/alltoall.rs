//! All-to-all workloads: among all ranks, in groups, in phases of different size, and with local exchange
//! within nodes.

use std::collections::VecDeque;

use serde::Deserialize;

use super::{Timing, at_least, measure, nanoseconds, repetitions};
use crate::collective::Group;
use crate::program::Rank;

/// Algorithm of an all-to-all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Posts all receives, then all sends.
    Linear,
    /// Exchanges with one partner at a time.
    Pairwise,
    /// `ceil(log2 n)` rounds, each of which carries about half of all blocks.
    Bruck,
}

/// The order in which receives and sends are posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Receives are posted before the sends, as libraries do.
    #[default]
    ReceivesFirst,
    /// Receives are posted after all sends have completed (Prades, section 5.3). Packets that a rank retrieves while
    /// a send waits for credits are unexpected. Their copies have the price `unexpected_copy_ns_per_kib`.
    SendsFirst,
}

/// Algorithm of a barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Barrier {
    /// Rounds in which each rank sends one message. Each rank receives from few others.
    #[default]
    Dissemination,
    /// All ranks send to rank 0, which answers each of them.
    Linear,
}

/// A linear all-to-all.
async fn linear(group: &Group, order: Order, message_bytes: u64, window_messages: u32) {
    match order {
        Order::ReceivesFirst => group.alltoall_linear(message_bytes, window_messages).await,
        Order::SendsFirst => group.alltoall_sends_first(message_bytes, window_messages).await,
    }
}

/// All ranks exchange `message_bytes` with each other, in several calls.
///
/// Source: Prades, sections 5.3 and 7.1: 2 KB, 256 and 1024 ranks, 150 repetitions. Collective optimisations
/// are disabled, so the algorithm is linear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alltoall {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Payload from each rank to each other. Unit: bytes.
    pub message_bytes: u64,
    /// Linear algorithm: pending sends of a rank; 0: all at once.
    #[serde(default)]
    pub window_messages: u32,
    /// Linear algorithm: when receives are posted.
    #[serde(default)]
    pub order: Order,
    /// Calls before the timed ones.
    #[serde(default)]
    pub warmup_calls: u32,
    /// Timed calls.
    pub calls: u32,
    /// Whether a barrier, which is not timed, follows each call.
    #[serde(default)]
    pub barrier_each_call: bool,
}

impl Alltoall {
    pub(super) fn check(&self, _ranks: u32) -> Result<(), String> {
        repetitions("calls", self.calls, self.warmup_calls)?;
        if self.window_messages > 0 && self.algorithm != Algorithm::Linear {
            return Err(format!(
                "window_messages is {} with the algorithm {:?}; allowed: linear",
                self.window_messages, self.algorithm
            ));
        }
        if self.order != Order::default() && self.algorithm != Algorithm::Linear {
            return Err(format!(
                "order is {:?} with the algorithm {:?}; allowed: linear",
                self.order, self.algorithm
            ));
        }
        Ok(())
    }

    pub(super) async fn run(self, rank: Rank) {
        let group = Group::all(&rank);
        let Alltoall { warmup_calls, calls, barrier_each_call, .. } = self;
        let timing = Timing { warmup_calls, calls, barrier_each_call };
        let call_ps = timing.run(&rank, &group, async |_| self.call(&group).await).await;
        let call_ns = nanoseconds(call_ps);
        rank.record(measure::CALL_NS, call_ns);
        rank.record(measure::CALL_NS_SQUARED, call_ns * call_ns);
    }

    async fn call(&self, group: &Group) {
        match self.algorithm {
            Algorithm::Linear => linear(group, self.order, self.message_bytes, self.window_messages).await,
            Algorithm::Pairwise => group.alltoall_pairwise(self.message_bytes).await,
            Algorithm::Bruck => group.alltoall_bruck(self.message_bytes).await,
        }
    }
}

/// Groups of consecutive ranks, from rank 0 on, do linear all-to-alls among themselves. All other ranks wait
/// in a barrier.
///
/// Source: Prades, section 5.5 (Figs 5.9, 6.5): 1024, 512, 256, 128 of 1024 ranks in one group. The paper of
/// 2012 has several groups at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlltoallGroups {
    /// Payload from each rank to each other of its group. Unit: bytes.
    pub message_bytes: u64,
    /// Ranks of a group.
    pub group_ranks: u32,
    /// Groups that work at the same time.
    #[serde(default = "one")]
    pub groups: u32,
    /// Pending sends of a rank; 0: all at once.
    #[serde(default)]
    pub window_messages: u32,
    /// The order in which receives and sends are posted.
    #[serde(default)]
    pub order: Order,
    /// Calls before the timed ones.
    #[serde(default)]
    pub warmup_calls: u32,
    /// Timed calls.
    pub calls: u32,
    /// Whether a barrier of the group, which is not timed, follows each call.
    #[serde(default)]
    pub barrier_each_call: bool,
}

fn one() -> u32 {
    1
}

impl AlltoallGroups {
    pub(super) fn check(&self, ranks: u32) -> Result<(), String> {
        repetitions("calls", self.calls, self.warmup_calls)?;
        at_least("group_ranks", self.group_ranks, 1)?;
        at_least("groups", self.groups, 1)?;
        let active = u64::from(self.groups) * u64::from(self.group_ranks);
        if active > u64::from(ranks) {
            return Err(format!("groups * group_ranks is {active}; allowed: at most ranks, {ranks}"));
        }
        Ok(())
    }

    pub(super) async fn run(self, rank: Rank) {
        let group_index = rank.rank() / self.group_ranks;
        if group_index < self.groups {
            let first = group_index * self.group_ranks;
            let group = Group::of(&rank, first..first + self.group_ranks, 1);
            let AlltoallGroups { warmup_calls, calls, message_bytes, window_messages, order, .. } = self;
            let timing = Timing { warmup_calls, calls, barrier_each_call: self.barrier_each_call };
            let call = async |_| linear(&group, order, message_bytes, window_messages).await;
            let call_ps = timing.run(&rank, &group, call).await;
            rank.record(measure::CALL_NS, nanoseconds(call_ps));
        }
        Group::all(&rank).barrier().await;
    }
}

/// One phase of [`AlltoallPhases`]: ranks `0..ranks` do this number of all-to-alls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Number of ranks that take part.
    pub ranks: u32,
    /// Number of calls.
    pub calls: u32,
}

/// Linear all-to-alls among the first ranks, in phases of different size. A barrier among all ranks separates
/// the phases; it also wakes idle ranks. After each call rank 0 records its credits.
///
/// Source: Prades, section 7.3 (Fig 7.4): 2 KB; phases of 1024, 256, 512, 1024, 512, 256, 1024 ranks with 100
/// calls each; groups 0-255, 256-511, 512-1023.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlltoallPhases {
    /// Payload from each rank to each other. Unit: bytes.
    pub message_bytes: u64,
    /// Pending sends of a rank; 0: all at once.
    #[serde(default)]
    pub window_messages: u32,
    /// The order in which receives and sends are posted.
    #[serde(default)]
    pub order: Order,
    /// The barrier between phases.
    #[serde(default)]
    pub barrier: Barrier,
    /// The phases in order.
    pub phases: Vec<Phase>,
    /// Ends of the groups whose credits are recorded. Each group begins where the one before ends, the first
    /// at rank 0.
    pub group_ends: Vec<u32>,
}

impl AlltoallPhases {
    pub(super) fn check(&self, ranks: u32) -> Result<(), String> {
        at_least("phases (how many)", self.phases.len() as u32, 1)?;
        for phase in &self.phases {
            repetitions("phases.calls", phase.calls, 0)?;
            if !(1..=ranks).contains(&phase.ranks) {
                return Err(format!("phases.ranks is {}; allowed: 1 to ranks, {ranks}", phase.ranks));
            }
        }
        let names = measure::CREDITS.len();
        if self.group_ends.len() > names {
            return Err(format!("group_ends has {}; allowed: at most {names}", self.group_ends.len()));
        }
        let mut start = 0;
        for &end in &self.group_ends {
            if end <= start || end > ranks {
                return Err(format!("{end} in group_ends; allowed here: {} to ranks, {ranks}", start + 1));
            }
            start = end;
        }
        Ok(())
    }

    pub(super) async fn run(self, rank: Rank) {
        let all = Group::all(&rank);
        let mut index = 0;
        for (number, phase) in self.phases.iter().enumerate() {
            if rank.rank() < phase.ranks {
                let group = Group::of(&rank, 0..phase.ranks, number as u16 + 1);
                for _ in 0..phase.calls {
                    let begun = rank.clock().await;
                    linear(&group, self.order, self.message_bytes, self.window_messages).await;
                    let spent = rank.clock().await - begun;
                    if rank.rank() == 0 {
                        rank.record_of_series(measure::CALL_NS, index, nanoseconds(spent));
                        rank.record_of_series(measure::PHASE, index, number as f64);
                        self.note_credits(&rank, index).await;
                    }
                    index += 1;
                }
            }
            match self.barrier {
                Barrier::Dissemination => all.barrier().await,
                Barrier::Linear => all.barrier_linear().await,
            }
        }
    }

    async fn note_credits(&self, rank: &Rank, index: u32) {
        let mut start = 0;
        for (names, &end) in measure::CREDITS.iter().zip(&self.group_ends) {
            let mut credits = Vec::new();
            for peer in (start..end).filter(|&peer| peer != rank.rank()) {
                credits.push(rank.credits(peer).await);
            }
            start = end;
            credits.sort_unstable();
            let (Some(&least), Some(&most)) = (credits.first(), credits.last()) else { continue };
            let sum: u64 = credits.iter().sum();
            let values = [
                sum as f64 / credits.len() as f64,
                credits[credits.len() / 2] as f64,
                least as f64,
                most as f64,
            ];
            for (name, value) in names.iter().zip(values) {
                rank.record_of_series(name, index, value);
            }
        }
    }
}

/// Linear all-to-alls in which ranks of the same node exchange through memory, without network and credits. A
/// local message is a copy that takes `local_message_ns` of the receiver's processor. The model does not
/// check whether the sender was there before.
///
/// Source: Prades, section 7.2 (Fig 7.3, LiMIC): 32, 64, 128, 256 ranks, 16 on each node: 50, 25, 12.5, 6.25
/// % of peers are local.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlltoallLocal {
    /// Payload from each rank to each other. Unit: bytes.
    pub message_bytes: u64,
    /// Ranks of a node. Rank `r` is on node `r / ranks_per_node`.
    pub ranks_per_node: u32,
    /// Price of one message within a node. Unit: ns.
    pub local_message_ns: u64,
    /// Pending sends to other nodes; 0: all at once.
    #[serde(default)]
    pub window_messages: u32,
    /// The order in which receives and sends are posted.
    #[serde(default)]
    pub order: Order,
    /// Calls before the timed ones.
    #[serde(default)]
    pub warmup_calls: u32,
    /// Timed calls.
    pub calls: u32,
    /// Whether a barrier, which is not timed, follows each call.
    #[serde(default)]
    pub barrier_each_call: bool,
}

impl AlltoallLocal {
    pub(super) fn check(&self, _ranks: u32) -> Result<(), String> {
        repetitions("calls", self.calls, self.warmup_calls)?;
        at_least("ranks_per_node", self.ranks_per_node, 1)
    }

    pub(super) async fn run(self, rank: Rank) {
        let group = Group::all(&rank);
        let AlltoallLocal { warmup_calls, calls, barrier_each_call, .. } = self;
        let timing = Timing { warmup_calls, calls, barrier_each_call };
        let call_ps = timing.run(&rank, &group, async |call| self.call(&rank, call).await).await;
        rank.record(measure::CALL_NS, nanoseconds(call_ps));
    }

    async fn call(&self, rank: &Rank, call: u32) {
        let (me, n, tag) = (rank.rank(), rank.size(), u64::from(call));
        let local = |peer: u32| peer / self.ranks_per_node == me / self.ranks_per_node;
        let receive = || -> Vec<_> {
            let froms = (1..n).map(|step| (me + n - step) % n).filter(|&from| !local(from));
            froms.map(|from| rank.irecv(Some(from), tag, self.message_bytes)).collect()
        };
        let posted = (self.order == Order::ReceivesFirst).then(receive);
        let mut sends = VecDeque::new();
        for to in (1..n).map(|step| (me + step) % n) {
            if local(to) {
                rank.compute(self.local_message_ns * 1000);
                continue;
            }
            if self.window_messages > 0 && sends.len() == self.window_messages as usize {
                rank.wait(sends.pop_front().expect("a full window")).await;
            }
            sends.push_back(rank.isend(to, tag, self.message_bytes));
        }
        rank.wait_all(sends).await;
        rank.wait_all(posted.unwrap_or_else(receive)).await;
    }
}
