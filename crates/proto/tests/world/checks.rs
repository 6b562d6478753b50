//! What a test world checks from outside: counters, budgets and pools, and that nothing is left at the end.

use std::collections::VecDeque;

use weir_proto::flow::demand_credits;
use weir_proto::{Machine, PACKET_KINDS, Peer, Scheme};

use super::{Plan, World};

impl World {
    /// Asserts that no work is pending anywhere.
    pub fn assert_at_rest(&self) {
        for (index, rank) in self.ranks.iter().enumerate().filter(|(_, rank)| !rank.dead) {
            assert!(rank.machine.is_quiescent(), "endpoint {index} is not at rest: {:?}", rank.machine);
            assert!(rank.offload.is_quiescent(), "endpoint {index} is not at rest: {:?}", rank.offload);
            assert!(rank.timers.is_empty(), "endpoint {index} has set timers: {:?}", rank.timers);
            assert!(rank.machine_buffers.is_empty(), "endpoint {index} has buffers of machines: {rank:?}");
            let left: Vec<_> = rank.buffers.iter().filter(|buffer| buffer.is_some()).collect();
            assert!(left.is_empty(), "endpoint {index}: {} requests never completed", left.len());
            assert!(
                rank.unexpected.is_empty(),
                "endpoint {index} still has unexpected buffers {:?}",
                rank.unexpected.keys()
            );
            assert!(
                rank.bounce.is_empty(),
                "endpoint {index} still has bounce buffers {:?}",
                rank.bounce.keys()
            );
        }
        self.assert_counted();
        for (pair, lanes) in &self.lanes {
            assert!(lanes.len() <= 1, "{pair:?} has a detached lease");
            assert!(lanes.iter().all(|lane| lane.packets.is_empty()), "lane {pair:?} holds packets");
        }
        assert!(self.ranks.iter().all(|rank| rank.waiting.is_empty()), "an endpoint still waits for a lane");
    }

    /// Asserts that the counters of the machines equal the counts from outside.
    fn assert_counted(&self) {
        for rank in self.ranks.iter().filter(|rank| !rank.dead) {
            let counters = rank.machine.counters();
            let by_kind = counters.packets_by_kind();
            let seen = PACKET_KINDS.map(|kind| rank.kinds.get(kind).copied().unwrap_or(0));
            assert_eq!(by_kind, seen, "packets by kind: {PACKET_KINDS:?}");
            assert_eq!(counters.packets_sent, seen.iter().sum::<u64>());
            let pairs: Vec<_> = rank.machine.pairs(self.now).collect();
            let stalled_ns: u64 = pairs.iter().map(|pair| pair.stalled_ns).sum();
            assert_eq!(stalled_ns + rank.machine.removed_stalled_ns(), counters.stalled_ns);
            for pair in pairs {
                let Some(sending) = pair.sending else { continue };
                let (Some(quota), Some(granted)) = (sending.quota_slots, sending.granted_total) else {
                    continue;
                };
                let spent = rank.slots.get(&pair.peer).copied().unwrap_or(0);
                assert_eq!((sending.spent_total, sending.credits), (Some(spent), quota + granted - spent));
            }
        }
    }

    /// Asserts that no endpoint has exceeded its budget or its bounce-buffer limit.
    pub fn assert_within_budget(&self) {
        let bounds = self.plan.scheme.grants();
        for (index, rank) in self.ranks.iter().enumerate() {
            let (unexpected, budget) = (rank.peak_unexpected_cost_bytes, self.plan.budget_bytes);
            assert!(
                !bounds || unexpected <= budget,
                "endpoint {index}: {unexpected} unexpected bytes, budget {budget}"
            );
            let (bounce, limit) = (rank.peak_bounce_bytes as u64, self.plan.bounce_bytes);
            assert!(bounce <= limit, "endpoint {index}: {bounce} bytes in bounce buffers, limit {limit}");
        }
    }

    /// Asserts that every request of these endpoints has completed.
    pub fn assert_no_requests_left(&self, ranks: &[usize]) {
        for &index in ranks {
            let left = self.ranks[index].buffers.iter().filter(|buffer| buffer.is_some()).count();
            assert_eq!(left, 0, "endpoint {index}: requests never completed");
        }
    }

    /// Checks I1, I3 and I6 by the machine's totals, and I1 by the lanes. With equal settings the thresholds alone keep
    /// I2.
    pub(super) fn check_pool(&self, rank: u32) {
        if let Some(pool) = self.ranks[rank as usize].machine.demand_pool() {
            return self.check_demand_pool(rank, pool);
        }
        let Scheme::Dynamic { .. } = self.plan.scheme else { return };
        let pool = self.ranks[rank as usize].machine.pool();
        pool.assert_invariants();
        assert_eq!(pool.tally().deferred_grants, 0, "the thresholds alone keep I2");
        self.check_region_slots(pool.region_slots());
        pool.accounts().for_each(|account| self.check_account(rank, account.owner, account.current));
    }

    /// The same for credits on demand, with D3 and D5. Slots whose credits are deferred may be free while senders wait.
    fn check_demand_pool(&self, rank: u32, pool: &demand_credits::Pool) {
        self.ranks[rank as usize].machine.assert_accounts();
        if self.ranks[rank as usize].deferred.is_empty() {
            pool.assert_queue_is_served();
        }
        self.check_region_slots(pool.region_slots());
        pool.accounts().for_each(|account| self.check_account(rank, account.owner, account.current));
    }

    /// A region is as large as planned, and grows for senders beyond the plan.
    fn check_region_slots(&self, region_slots: u32) {
        let Plan { region, endpoints, .. } = self.plan;
        let grown = endpoints + endpoints.saturating_sub(region.peers);
        assert!(
            region_slots <= region.slots + region.start_slots * grown,
            "{region_slots} slots: {region:?}"
        );
    }

    /// Checks I1 for the account of `owner` at `rank`, who holds `current` slots.
    fn check_account(&self, rank: u32, owner: Peer, current: u32) {
        // The account is that of the lease that is read; a later lease may have started.
        let lane = self.lanes.get(&(owner.0, rank)).and_then(VecDeque::front);
        assert!(
            lane.is_none_or(|lane| lane.attached),
            "rank {rank} has an account of the detached {owner:?}"
        );
        let filled = lane.map_or(0, |lane| lane.data_slots);
        assert!(filled <= current, "I1: {owner:?} fills {filled} slots of rank {rank}, and holds {current}");
    }
}
