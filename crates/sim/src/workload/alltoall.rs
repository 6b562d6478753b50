//! Everybody to everybody, over and over: all ranks, some of them, more and fewer by turns, or with neighbours in the same node.

use std::collections::VecDeque;

use serde::Deserialize;

use super::{Timing, at_least, measure, nanoseconds, repetitions};
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

/// Whether receives are there when what they are for arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// They are posted before the sends, as libraries do.
    #[default]
    ReceivesFirst,
    /// They are posted when all sends have been taken (Prades, section 5.3). What is taken out of a mailbox while a send waits
    /// for credit is unexpected then, and kept at the price of `unexpected_copy_ns_per_kib`.
    SendsFirst,
}

/// How a barrier is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Barrier {
    /// Rounds in which each rank sends one message: each rank hears from few others.
    #[default]
    Dissemination,
    /// All ranks send to rank 0, which answers each: rank 0 sends to all others.
    Linear,
}

/// A linear all-to-all.
async fn linear(group: &Group, order: Order, message_bytes: u64, window_messages: u32) {
    match order {
        Order::ReceivesFirst => group.alltoall_linear(message_bytes, window_messages).await,
        Order::SendsFirst => group.alltoall_sends_first(message_bytes, window_messages).await,
    }
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
    /// Linear: when receives are posted.
    #[serde(default)]
    pub order: Order,
    /// Calls that are not timed.
    #[serde(default)]
    pub warmup_calls: u32,
    /// Calls that are timed.
    pub calls: u32,
    /// A barrier, not timed, after each call.
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
        rank.record(measure::CALL_NS, nanoseconds(call_ps));
    }

    async fn call(&self, group: &Group) {
        match self.algorithm {
            Algorithm::Linear => linear(group, self.order, self.message_bytes, self.window_messages).await,
            Algorithm::Pairwise => group.alltoall_pairwise(self.message_bytes).await,
            Algorithm::Bruck => group.alltoall_bruck(self.message_bytes).await,
        }
    }
}

/// Groups of consecutive ranks, from rank 0 on, do linear all-to-alls among themselves; all other ranks wait in a barrier.
///
/// Source: Prades, section 5.5 (Figs 5.9, 6.5): 1024, 512, 256, 128 of 1024 in one group. The paper of 2012 has several groups at
/// once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlltoallGroups {
    /// From each rank to each other of its group. Unit: bytes.
    pub message_bytes: u64,
    /// Ranks of a group.
    pub group_ranks: u32,
    /// Groups that work at the same time.
    #[serde(default = "one")]
    pub groups: u32,
    /// Sends under way at a time; 0: all at once.
    #[serde(default)]
    pub window_messages: u32,
    /// When receives are posted.
    #[serde(default)]
    pub order: Order,
    /// Calls that are not timed.
    #[serde(default)]
    pub warmup_calls: u32,
    /// Calls that are timed.
    pub calls: u32,
    /// A barrier of the group, not timed, after each call.
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

/// One part of [`AlltoallPhases`]: ranks `0..ranks` do so many all-to-alls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// How many take part.
    pub ranks: u32,
    /// How often.
    pub calls: u32,
}

/// Linear all-to-alls among the first so many ranks, phase after phase, with a barrier among all ranks between phases, which
/// also wakes the idle. After each call rank 0 notes the credits that it has.
///
/// Source: Prades, section 7.3 (Fig 7.4): 2 KB; phases of 1024, 256, 512, 1024, 512, 256, 1024 ranks with 100 calls each;
/// groups 0-255, 256-511, 512-1023.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlltoallPhases {
    /// From each rank to each other. Unit: bytes.
    pub message_bytes: u64,
    /// Sends under way at a time; 0: all at once.
    #[serde(default)]
    pub window_messages: u32,
    /// When receives are posted.
    #[serde(default)]
    pub order: Order,
    /// The barrier between phases.
    #[serde(default)]
    pub barrier: Barrier,
    /// In this order.
    pub phases: Vec<Phase>,
    /// Where the groups end whose credits are noted: each begins where the one before ends, the first at 0.
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

/// Linear all-to-alls in which ranks of the same node exchange through memory, without the network and its credits: a copy that
/// keeps the receiver's processor busy for `local_message_ns`. Whether the sender was there already is not looked at.
///
/// Source: Prades, section 7.2 (Fig 7.3, LiMIC): 32, 64, 128, 256 ranks, 16 to a node: 50, 25, 12.5, 6.25 % of peers local.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlltoallLocal {
    /// From each rank to each other. Unit: bytes.
    pub message_bytes: u64,
    /// Ranks of a node; rank `r` lives on node `r / ranks_per_node`.
    pub ranks_per_node: u32,
    /// What one message within a node costs. Unit: ns.
    pub local_message_ns: u64,
    /// Sends to other nodes under way at a time; 0: all at once.
    #[serde(default)]
    pub window_messages: u32,
    /// When receives are posted.
    #[serde(default)]
    pub order: Order,
    /// Calls that are not timed.
    #[serde(default)]
    pub warmup_calls: u32,
    /// Calls that are timed.
    pub calls: u32,
    /// A barrier, not timed, after each call.
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
