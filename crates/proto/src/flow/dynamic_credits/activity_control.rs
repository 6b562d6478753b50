//! Activity control of a receiver's pool: senders that use their credits rise through the activity lists. The most
//! active ones gain intended quota: unassigned quota, else that of the least active sender. A victim that has just
//! gained quota, or was active, can be passed over. A sender that is down to its guaranteed quota and holds more
//! credits gets a compulsory return request.

use super::Pool;
use crate::flow::activity::Level;

impl Pool {
    /// Activity control at a threshold. After `n + 1` crossings (a monitoring point) a sender rises one level. The most
    /// active senders take quota from the least active.
    pub(super) fn monitor(&mut self, index: u32) {
        let account = &mut self.accounts[index as usize];
        // Only data counts as activity: ignore a threshold that requests and responses alone have reached.
        if account.control >= account.thresholds[0] {
            return;
        }
        account.recently_active = self.grace_points > 0;
        account.crossed += 1;
        if account.crossed <= self.credit_slots {
            return;
        }
        account.crossed = 0;
        match self.activity.level(index) {
            Level::Low => self.activity.move_to_front(index, Level::Medium),
            Level::Medium => self.activity.move_to_front(index, Level::High),
            Level::High | Level::Null => {
                self.activity.shift_if_low_is_empty();
                self.activity.move_to_front(index, Level::High);
                self.gain_quota(index);
            }
        }
    }

    /// An active sender gains intended quota: unassigned quota, or else from the least active sender (6.1).
    pub(super) fn gain_quota(&mut self, index: u32) {
        let least = self.credit_slots + 1;
        let account = &self.accounts[index as usize];
        let intended = account.intended;
        let room = account.lane_slots - intended;
        if room == 0 {
            return;
        }
        let missing_slots = self.region.missing;
        let unassigned_slots = self.unassigned_slots.saturating_sub(missing_slots);
        if unassigned_slots > 0 {
            let amount = least.max(unassigned_slots / 2).min(unassigned_slots).min(room);
            self.unassigned_slots -= amount;
            self.accounts[index as usize].intended += amount;
            self.limit_piggybacking(index);
            return;
        }
        let Some(victim) = self.activity.least_active() else { return };
        let loser = &mut self.accounts[victim as usize];
        if loser.grace > 0 {
            loser.grace -= 1;
            self.tally.victims_passed_over += 1;
            self.activity.move_to_front(victim, Level::Medium);
            return;
        }
        // A recently active victim with no larger quota than the gaining sender gets a second chance. So quota moves
        // only from larger to smaller shares among equally active senders, and shares become equal.
        if core::mem::take(&mut loser.recently_active) && loser.intended < intended + least {
            self.activity.move_to_front(victim, Level::Medium);
            return;
        }
        let amount = least.max(intended.abs_diff(loser.intended) / 2);
        let amount = amount.min(loser.intended - self.credit_slots).min(room);
        loser.intended -= amount;
        let emptied = loser.intended == self.credit_slots;
        if emptied
            && loser.current > loser.intended
            && let Some(owner) = loser.owner
        {
            loser.blocked = true;
            self.requests.push(owner);
            self.tally.requests += 1;
        }
        self.activity.move_to_front(victim, if emptied { Level::Null } else { Level::Medium });
        let kept_back = amount.min(missing_slots.saturating_sub(self.unassigned_slots));
        self.unassigned_slots += kept_back;
        let account = &mut self.accounts[index as usize];
        account.intended += amount - kept_back;
        if amount > kept_back {
            account.grace = self.grace_points;
            self.tally.quota_transfers += 1;
        }
        self.limit_piggybacking(index);
        self.limit_piggybacking(victim);
    }
}
