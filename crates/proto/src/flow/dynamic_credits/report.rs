//! Questions to a pool: the granted total of a sender, and the next sender to request credits from. Reports get counts
//! of rare events and views of all accounts; tests and searches get a check of the invariants.

use super::{Account, Pool};
use crate::event::Peer;
use crate::flow::ReceiverView;
use crate::flow::activity::Level;

/// Counts of rare events, for tests, proofs and reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tally {
    /// Intended quota moved from one sender to another.
    pub quota_transfers: u64,
    /// Victims that were not chosen because they had just gained quota.
    pub victims_passed_over: u64,
    /// Compulsory return requests.
    pub requests: u64,
    /// Grants below the new threshold.
    pub short_grants: u64,
    /// Thresholds reached by piggybacking, with more returned already than the new threshold.
    pub excesses: u64,
    /// The same, with at most the new threshold returned.
    pub deficits: u64,
    /// Grants delayed because all credit slots were unread. Stays 0 if both sides have the same settings.
    pub deferred_grants: u64,
}

/// A view of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountView<'pool> {
    /// The sender.
    pub owner: Peer,
    /// Slots that the sender holds: its credits, credits in flight, and filled slots.
    pub current: u32,
    /// Its intended quota.
    pub intended: u32,
    /// Slots retrieved since the last threshold.
    pub retrieved: u32,
    /// Credits piggybacked since the last threshold.
    pub piggybacked: u32,
    /// A compulsory return is pending.
    pub blocked: bool,
    /// Its activity level.
    pub level: Level,
    /// Its thresholds.
    pub thresholds: &'pool [u32],
}

impl Pool {
    /// Credits granted to this sender beyond the starting ones, modulo 2^32.
    #[inline]
    pub fn granted_total(&self, index: u32) -> u32 {
        self.accounts[index as usize].granted_total
    }

    /// Whether a compulsory return request is needed.
    #[inline]
    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// A sender needs a request. Credits on demand use this list to say that there is work ([`crate::flow::Pool`]).
    pub(crate) fn request_from(&mut self, peer: Peer) {
        self.requests.push(peer);
    }

    /// The next sender that needs a compulsory return request.
    pub fn next_request(&mut self) -> Option<Peer> {
        self.requests.pop()
    }

    /// Counts of rare events.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Memory for accounts, used or not. Unit: bytes, by capacity.
    pub fn bytes(&self) -> u64 {
        let accounts =
            self.accounts.capacity() * size_of::<Account>() + self.free.capacity() * size_of::<u32>();
        (accounts + self.activity.bytes()) as u64
    }

    /// Slots of the region.
    pub fn region_slots(&self) -> u32 {
        self.region.all
    }

    /// Slots that no sender holds.
    pub fn available_slots(&self) -> u32 {
        self.region.available()
    }

    /// Intended quota that no sender has, with the reservations for expected senders.
    pub fn unassigned_slots(&self) -> u32 {
        self.unassigned_slots + self.region.reserved
    }

    /// All senders with an account, by account number.
    pub fn accounts(&self) -> impl Iterator<Item = AccountView<'_>> {
        let numbered = self.accounts.iter().zip(0..);
        numbered.filter_map(|(account, index)| {
            Some(AccountView {
                owner: account.owner?,
                current: account.current,
                intended: account.intended,
                retrieved: account.retrieved,
                piggybacked: account.piggybacked,
                blocked: account.blocked,
                level: self.activity.level(index),
                thresholds: &account.thresholds[..=self.credit_slots as usize],
            })
        })
    }

    /// A view of one sender for reports.
    pub(in crate::flow) fn view(&self, index: u32) -> ReceiverView {
        let account = &self.accounts[index as usize];
        ReceiverView {
            quota_slots: Some(account.intended),
            current: Some(account.current),
            retrieved: Some(account.retrieved),
            threshold: Some(account.thresholds[0]),
            granted_total: Some(account.granted_total),
            unread_credit_packets: Some(u32::from(account.packets_sent.wrapping_sub(account.packets_read))),
            loan: None,
        }
    }

    /// Checks I1, I3 and I6. For tests and proofs: linear in the senders.
    ///
    /// # Panics
    /// If one of them does not hold.
    pub fn assert_invariants(&self) {
        let open = |index: &u32| !self.free.contains(index);
        let indices = || (0..self.accounts.len() as u32).filter(open);
        let account = |index: u32| &self.accounts[index as usize];
        self.region.assert_counted(self.credit_slots, indices().map(|index| account(index).current));
        let intended: u32 = indices().map(|index| account(index).intended).sum();
        assert_eq!(intended + self.unassigned_slots(), self.region.all, "I3: {self:?}");
        for index in indices() {
            let account = &self.accounts[index as usize];
            let thresholds = &account.thresholds[..=self.credit_slots as usize];
            let total = account.current + account.retrieved + 1;
            assert_eq!(thresholds.iter().sum::<u32>(), total, "I6: account {index} of {self:?}");
            assert!(thresholds.iter().all(|&threshold| threshold >= 1), "I6: account {index} of {self:?}");
            assert!(account.intended >= self.credit_slots, "I3: account {index} of {self:?}");
            assert!(account.current <= account.lane_slots, "I1: account {index} of {self:?}");
        }
    }
}
