//! The end of a world: its report, the errors that stop it, and the checks that nothing is left. In checked worlds it
//! also looks at one pool now and then.

use hdrhistogram::Histogram;
use weir_proto::{Counters, Endpoint};

use super::rank_state::RankState;
use super::{PoolReading, World};
use crate::network::Network;
use crate::network::reliable::PathReading;
use crate::{Picoseconds, TIME_LIMIT};

/// A number that a program has recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// Time. Unit: ps.
    pub at: Picoseconds,
    /// The rank.
    pub rank: u32,
    /// Name of the quantity.
    pub name: &'static str,
    /// Index within a series; 0 otherwise.
    pub index: u32,
    /// The number.
    pub value: f64,
}

/// Result of a world.
#[derive(Debug)]
pub struct Report {
    /// The time when the last program ended.
    pub finished_at: Picoseconds,
    /// The time when each program ended, by rank.
    pub finished: Vec<Picoseconds>,
    /// Hash of all events, in order.
    pub trace: u64,
    /// Number of events.
    pub events: u64,
    /// Packets that crossed a wire, summed over all wires.
    pub packet_hops: u64,
    /// Link faults that the links have repaired.
    pub repairs: u64,
    /// Packets that were dropped, because a queue was full.
    pub drops: u64,
    /// Packets that were delivered with a mark, because a queue was long.
    pub marks: u64,
    /// Counters of the machines, by rank.
    pub counters: Vec<Counters>,
    /// Numbers that programs recorded, in order of time.
    pub records: Vec<Record>,
    /// State of each receiver's pool at the end, by rank. Only with dynamic credits.
    pub pools: Vec<PoolReading>,
    /// The reliable paths, on networks that have them.
    pub paths: Vec<PathReading>,
    /// Time from the call that sends a message until a receive has it. Unit: ns.
    pub latency_ns: Histogram<u64>,
    /// Most filled slots of one mailbox at a time.
    pub peak_mailbox_slots: u32,
}

/// The reason why a world did not end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// No event is left, and programs wait.
    #[error(
        "deadlock at {at_ns} ns: no event is left and {waiting} programs wait, the first is rank {first}"
    )]
    Deadlock {
        /// Time.
        at_ns: u64,
        /// Number of programs that have not ended.
        waiting: u32,
        /// The first of their ranks.
        first: u32,
    },
    /// An external check has failed, which shows a bug.
    #[error("an external check failed at {at_ns} ns: {what}")]
    InvariantViolated {
        /// Time.
        at_ns: u64,
        /// The violated invariant.
        what: String,
    },
    /// A queue was full, and no machine sends the packet again.
    #[error(
        "a full queue dropped a packet from rank {from} to rank {to} at {at_ns} ns, and no rank sends it again; allowed: queue_packets \
         for all that senders have under way, or 0, or the table reliability of a plan"
    )]
    Dropped {
        /// Time.
        at_ns: u64,
        /// Sending rank.
        from: u32,
        /// Receiving rank.
        to: u32,
    },
    /// Nothing has arrived on a reliable path for its limit.
    #[error(
        "rank {from} has given up the path to rank {to} at {at_ns} ns, because nothing arrived for the limit of 10 s; allowed: queues          and faults that let some packets pass"
    )]
    PathEnded {
        /// Time.
        at_ns: u64,
        /// Sending rank.
        from: u32,
        /// Receiving rank.
        to: u32,
    },
    /// An offloaded machine has rejected a packet: the programs do not do the same.
    #[error(
        "the machines of rank {rank} rejected a packet of rank {from} at {at_ns} ns; allowed: all members of a group start the same \
         reductions in the same order"
    )]
    Rejected {
        /// Time.
        at_ns: u64,
        /// The rank that rejected it.
        rank: u32,
        /// The rank that sent it.
        from: u32,
    },
    /// Virtual time has reached its bound: computations of programs or times of the network are too long.
    #[error("virtual time is {at_s} s; allowed: less than {} s", TIME_LIMIT / 1_000_000_000_000)]
    TimeLimit {
        /// Time. Unit: s.
        at_s: u64,
    },
    /// The event limit is reached.
    #[error("the world has more than {limit} events, its event limit")]
    EventLimit {
        /// The limit.
        limit: u64,
    },
}

/// Checks the pool of a receiver in a scheme with a shared region.
fn assert_pool_invariants(machine: &Endpoint) {
    match machine.demand_pool() {
        Some(_) => machine.assert_accounts(),
        None => machine.pool().assert_invariants(),
    }
}

impl<N: Network> World<N> {
    /// Checks the pool of one receiver (I1, I3, I6), in turn. The cost grows with its number of senders.
    pub(super) fn check_a_pool(&mut self) {
        if self.spec.config.scheme.shares_region() && self.events.is_multiple_of(64) {
            let rank = self.events / 64 % u64::from(self.spec.ranks);
            assert_pool_invariants(self.rank_states[rank as usize].machine());
        }
    }

    pub(super) fn violation(&mut self) -> WorldError {
        let what = self.checks.as_mut().and_then(|checks| checks.violation.take()).unwrap_or_default();
        WorldError::InvariantViolated { at_ns: self.queue.now() / 1000, what }
    }

    /// Checks that nothing is left anywhere. Lost ranks and their peers are exempt.
    pub(super) fn check_rest(&mut self) -> Result<(), WorldError> {
        let Some(checks) = &mut self.checks else { return Ok(()) };
        checks.check_end();
        if self.spec.config.scheme.shares_region() {
            self.rank_states.iter_mut().for_each(|rank_state| assert_pool_invariants(rank_state.machine()));
        }
        if !checks.any_peer_lost() {
            let left = |(rank, rank_state): (usize, &RankState)| {
                let left = rank_state.leftovers();
                (!left.is_empty()).then(|| format!("at the end rank {rank} has left: {}", left.join(", ")))
            };
            let left = self.rank_states.iter().enumerate().find_map(left);
            let left = left.or_else(|| self.nic_endpoints.leftovers());
            checks.violation = checks.violation.take().or(left);
        }
        if checks.violation.is_some() { Err(self.violation()) } else { Ok(()) }
    }

    pub(super) fn report(self) -> Report {
        let finished: Vec<_> = self.rank_states.iter().map(RankState::ended_at).collect();
        let mut pools = Vec::new();
        if self.spec.config.scheme.shares_region() {
            pools.extend(
                self.rank_states
                    .iter()
                    .map(|rank_state| rank_state.pool_reading(self.spec.config.credit_slots)),
            );
        }
        Report {
            finished_at: finished.iter().copied().max().unwrap_or(0),
            finished,
            trace: self.trace.hash(),
            events: self.events,
            packet_hops: self.network.packet_hops(),
            repairs: self.network.repairs(),
            drops: self.network.drops(),
            marks: self.network.marks(),
            paths: self.network.paths(),
            peak_mailbox_slots: self
                .rank_states
                .iter()
                .map(|rank_state| rank_state.mailbox.peak_slots())
                .max()
                .unwrap_or(0),
            // Moves the ranks out one by one, so that memory does not peak at the end of a large world.
            counters: self.rank_states.into_iter().map(|rank_state| rank_state.counters()).collect(),
            records: self.records,
            pools,
            latency_ns: self.latency_ns,
        }
    }
}
