//! Attaching, detaching and losing a sender: an account for each sender, its first quota, and the slots that are
//! reserved for expected senders.

use super::{Account, Pool};
use crate::config::MAX_CREDIT_SLOTS;
use crate::event::Peer;
use crate::flow::mutant::Mutant;
use crate::mailbox::quota;

impl Pool {
    /// A sender has attached with a lane of `lane_slots` data slots. It holds `start_slots` credits, which the link has
    /// told it. Returns its account.
    ///
    /// # Panics
    /// If the link tells senders another number than the region reserves for them.
    pub fn attach(&mut self, owner: Peer, lane_slots: u32, start_slots: u32) -> u32 {
        assert_eq!(
            start_slots, self.region.start,
            "starting credits of the link differ from those of the region"
        );
        assert!(
            self.region.start <= lane_slots,
            "{} starting credits exceed a lane of {lane_slots} slots",
            self.region.start
        );
        if let Some(index) = self.placeholders.next() {
            let account = &mut self.accounts[index as usize];
            (account.owner, account.lane_slots) = (Some(owner), lane_slots);
            let too_much = account.intended.saturating_sub(lane_slots);
            account.intended -= too_much;
            self.unassigned_slots += too_much;
            self.limit_piggybacking(index);
            return index;
        }
        // An unexpected sender, or one that attaches again while others hold its slots: free and unassigned slots are
        // reserved for it.
        self.unassigned_slots -= self.region.make_room(self.unassigned_slots);
        let index = self.open(self.region.start, lane_slots);
        self.refill();
        let gift = self.first_share(lane_slots) - self.region.start;
        self.unassigned_slots -= gift;
        let account = &mut self.accounts[index as usize];
        account.owner = Some(owner);
        account.intended += gift;
        self.limit_piggybacking(index);
        index
    }

    /// The first quota of a sender: an equal share, as far as it is available. A more active sender gains the rest,
    /// half of it at a time. A larger first quota would be missing for later senders, who take it back one by one.
    fn first_share(&self, lane_slots: u32) -> u32 {
        let equal = quota(self.region.planned, self.region.planned_senders.max(self.senders()), 0, false);
        let there = self.region.start + self.unassigned_slots.saturating_sub(self.region.missing);
        equal.min(there).min(lane_slots).max(self.region.start)
    }

    /// Opens an account with the starting credits, from the reserved slots.
    pub(super) fn open(&mut self, intended: u32, lane_slots: u32) -> u32 {
        let start_slots = self.region.start;
        self.region.attach();
        // Thresholds of one give an active sender more credits soon. The last threshold satisfies I6. With more than
        // `n` starting credits and only ones, more credit packets would leave than there are slots for.
        let last = self.credit_slots as usize;
        let mut thresholds = [0; MAX_CREDIT_SLOTS as usize + 1];
        thresholds[..=last].fill(1);
        if !self.breaks(Mutant::ThresholdsStartAsOnes) {
            thresholds[last] = start_slots + 1 - self.credit_slots;
        }
        let account = Account {
            retrieved: 0,
            piggybacked: 0,
            current: start_slots,
            intended,
            lane_slots,
            piggyback_to: 0,
            granted_total: 0,
            packets_sent: 0,
            packets_read: 0,
            blocked: false,
            grace: 0,
            recently_active: false,
            crossed: 0,
            control: 0,
            thresholds,
            owner: None,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.accounts[index as usize] = account;
                index
            }
            None => {
                self.accounts.push(account);
                self.accounts.len() as u32 - 1
            }
        };
        self.activity.insert(index);
        self.limit_piggybacking(index);
        index
    }

    /// Senders with an account.
    fn senders(&self) -> u32 {
        (self.accounts.len() - self.free.len()) as u32
    }

    /// Reserves free and unassigned slots for planned senders that are not attached, and gives them up beyond the planned
    /// size. Until all of that is done, no sender gains that quota.
    pub(super) fn refill(&mut self) {
        self.unassigned_slots -= self.region.settle(self.senders(), self.unassigned_slots);
    }

    /// A sender has detached with all its credits and may attach again. Its slots are free, and its starting credits
    /// are reserved.
    pub fn detach(&mut self, index: u32) {
        self.close(index);
        self.refill();
    }

    /// A sender is lost. Its slots are free, and its quota is unassigned.
    pub fn remove(&mut self, index: u32) {
        if self.breaks(Mutant::LostPeersKeepTheirShare) {
            return;
        }
        self.region.forget_one_of(self.senders());
        self.close(index);
    }

    fn close(&mut self, index: u32) {
        let account = &mut self.accounts[index as usize];
        let owner = account.owner.take();
        let (current, intended) = (account.current, account.intended);
        (account.current, account.intended) = (0, 0);
        self.region.close(current);
        self.unassigned_slots += intended;
        self.requests.retain(|&request| Some(request) != owner);
        self.activity.remove(index);
        self.free.push(index);
    }
}
