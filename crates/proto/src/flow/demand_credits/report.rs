//! Questions to a pool of credits on demand: counts of rare events, views of all accounts for reports, and checks of the
//! invariants for tests and searches.

use super::{Account, Pool};
use crate::event::Peer;
use crate::flow::{LoanView, ReceiverView};

/// Counts of rare events, for tests, proofs and reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tally {
    /// Slots granted for demand.
    pub lent_slots: u64,
    /// Slots granted without demand beyond the guarantee.
    pub prefetched_slots: u64,
    /// Senders that had to queue.
    pub queued: u64,
    /// Turns that ended with demand left.
    pub rotations: u64,
    /// Return requests.
    pub requests: u64,
    /// Slots that responses gave back.
    pub returned_slots: u64,
    /// Announced totals that went down.
    pub vanished: u64,
}

impl Tally {
    /// The sum of two tallies.
    #[must_use]
    pub fn plus(self, other: &Tally) -> Tally {
        Tally {
            lent_slots: self.lent_slots + other.lent_slots,
            prefetched_slots: self.prefetched_slots + other.prefetched_slots,
            queued: self.queued + other.queued,
            rotations: self.rotations + other.rotations,
            requests: self.requests + other.requests,
            returned_slots: self.returned_slots + other.returned_slots,
            vanished: self.vanished + other.vanished,
        }
    }
}

/// A view of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountView {
    /// Who.
    pub owner: Peer,
    /// Slots that the sender holds: its credits, credits in flight, and filled slots.
    pub current: u32,
    /// The value of `current` that prefetch may reach.
    pub window: u32,
    /// Slots that it wants beyond its credits, as far as we know.
    pub demand: u32,
    /// Credits for which it has told no use.
    pub surplus: u32,
    /// Its demand waits for free slots.
    pub queued: bool,
    /// A return request is queued or pending.
    pub asked: bool,
}

impl Pool {
    /// Counts of rare events.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Memory for accounts, used or not. Unit: bytes, by capacity.
    pub fn bytes(&self) -> u64 {
        let accounts = self.accounts.capacity() * size_of::<Account>();
        let unused = self.unused.capacity() * size_of::<u32>();
        (accounts + unused + self.queue.bytes() + self.holders.bytes() + self.deferred.bytes()) as u64
    }

    /// Slots of the region.
    pub fn region_slots(&self) -> u32 {
        self.region.all
    }

    /// Slots that no sender holds.
    pub fn available_slots(&self) -> u32 {
        self.region.available()
    }

    /// Slots that no sender holds and that any sender can be lent.
    pub fn free_slots(&self) -> u32 {
        self.region.free
    }

    /// Slots that prefetch leaves free.
    pub fn reserve_slots(&self) -> u32 {
        self.reserve_slots
    }

    /// Number of senders whose demand waits for free slots.
    pub fn queued(&self) -> u32 {
        self.queue.len()
    }

    /// All senders with an account, by account number.
    pub fn accounts(&self) -> impl Iterator<Item = AccountView> {
        self.indices().map(|index| {
            let account = &self.accounts[index as usize];
            AccountView {
                owner: account.owner,
                current: account.current,
                window: account.window,
                demand: self.demand(index),
                surplus: self.surplus(index),
                queued: account.queued,
                asked: account.asked,
            }
        })
    }

    /// A view of one sender for reports.
    pub(in crate::flow) fn view(&self, index: u32) -> ReceiverView {
        let account = &self.accounts[index as usize];
        ReceiverView {
            quota_slots: Some(account.window),
            current: Some(account.current),
            retrieved: None,
            threshold: Some(account.window - account.low),
            granted_total: Some(account.granted_total),
            unread_credit_packets: Some(u32::from(account.packets_sent.wrapping_sub(account.packets_read))),
            loan: Some(LoanView {
                demand: self.demand(index),
                idle: self.surplus(index).min(account.current),
                window: account.window,
                ahead: account
                    .queued
                    .then(|| account.ahead.saturating_sub(self.turns.wrapping_sub(account.waits_since))),
            }),
        }
    }

    /// Checks D1 and D3. For tests and proofs: linear in the senders.
    ///
    /// # Panics
    /// If one of them does not hold.
    pub fn assert_invariants(&self) {
        let current = self.indices().map(|index| self.accounts[index as usize].current);
        // A mutant without guarantee shows by the senders that starve.
        self.region.assert_counted(self.region.guarantee(), current);
        let mut expected = 0;
        for index in self.indices() {
            let account = &self.accounts[index as usize];
            assert!(account.current <= account.most, "I1: account {index} of {self:?}");
            let common_slots = account.due_total.wrapping_sub(account.wanted_total);
            assert_eq!(common_slots, self.common_slots(index), "account {index} of {self:?}");
            expected += account.expected;
            let turns = self.turns.wrapping_sub(account.waits_since);
            assert!(
                !account.queued || account.unready || turns <= account.ahead,
                "D3: account {index} waits for {turns} turns of {}: {self:?}",
                account.ahead
            );
        }
        assert_eq!(expected, self.expected_slots, "{self:?}");
        assert!(!self.calm || self.is_calm(), "{self:?}");
        let windows = self.indices().map(|index| self.accounts[index as usize].window);
        let grown: u32 = windows.map(|window| window.saturating_sub(self.region.start)).sum();
        assert_eq!(grown, self.grown_slots, "{self:?}");
        let waiting = self.indices().filter(|&index| self.accounts[index as usize].queued);
        self.queue.assert_consistent(
            waiting.map(|index| (index, self.waits_for(index), !self.accounts[index as usize].unready)),
        );
    }

    /// Checks D5: while so many slots are free as its turn allows, no sender that can take a grant waits. It holds between
    /// events of an endpoint whose driver does not defer credits.
    ///
    /// # Panics
    /// If it does not hold.
    pub fn assert_queue_is_served(&self) {
        let waiting = self.next_waiting();
        assert!(waiting.is_none(), "D5: account {waiting:?} waits while slots are free: {self:?}");
    }
}
