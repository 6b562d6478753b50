//! Retrieving and granting: counts of retrieved slots reach thresholds, and senders get credits for them, in credit
//! packets or piggybacked. Credits that a sender returns on request are accounted for here too.

use super::{Account, Pool};
use crate::flow::SpendError;
use crate::flow::mutant::Mutant;
use crate::mailbox::threshold;

impl Pool {
    /// `slots` data slots of this sender have been retrieved. It has read `read` credit packets, modulo 2^16.
    ///
    /// # Errors
    /// [`SpendError`] if it had no credits for them. Then nothing has changed.
    #[inline]
    pub fn retrieved(&mut self, index: u32, slots: u32, read: u16) -> Result<(), SpendError> {
        self.retrieved_and_due(index, slots, read).map(|_| ())
    }

    /// The same. Returns whether a threshold is reached.
    #[inline(always)]
    pub(crate) fn retrieved_and_due(
        &mut self,
        index: u32,
        slots: u32,
        read: u16,
    ) -> Result<bool, SpendError> {
        let account = &mut self.accounts[index as usize];
        let before = account.current;
        let Some(current) = before.checked_sub(slots) else {
            return Err(SpendError { slots, credits: before });
        };
        // A total beyond what was sent makes all credit packets look unread, so a wrong sender gets no more of them.
        account.packets_read = read;
        account.retrieved += slots;
        account.current = current;
        let due = account.retrieved >= account.thresholds[0];
        self.region.release(before, slots);
        Ok(due)
    }

    fn grant_slots(&mut self, index: u32, slots: u32) {
        let account = &mut self.accounts[index as usize];
        self.region.grant(account.current, slots);
        account.current += slots;
        account.granted_total = account.granted_total.wrapping_add(slots);
    }

    /// Maximum of slots that this sender can be granted now: free slots that are not guaranteed to others, within its
    /// lane. At least one if it is below its guaranteed credits.
    #[inline]
    fn grantable(&self, index: u32) -> u32 {
        let account = &self.accounts[index as usize];
        (self.region.free + self.region.shortfall(account.current)).min(account.lane_slots - account.current)
    }

    /// The retrieved packet was a request or a response, which is no activity of the program.
    pub fn control_retrieved(&mut self, index: u32) {
        if !self.breaks(Mutant::ControlCountsAsActivity) {
            self.accounts[index as usize].control += 1;
        }
    }

    /// A sender responds that it has returned `credits`, after the slot of its response was retrieved.
    ///
    /// # Errors
    /// [`SpendError`] if there was no request or it does not have so many credits. Then nothing has changed.
    pub fn returned(&mut self, index: u32, credits: u32) -> Result<(), SpendError> {
        let last = self.credit_slots as usize;
        let account = &mut self.accounts[index as usize];
        let sum: u32 = account.thresholds[..=last].iter().sum();
        let most = account.current.min(sum - self.credit_slots - 1);
        if !account.blocked || credits > most {
            return Err(SpendError { slots: credits, credits: most });
        }
        account.blocked = false;
        let before = account.current;
        account.current -= credits;
        self.region.release(before, credits);
        self.limit_piggybacking(index);
        if self.breaks(Mutant::ReturnLeavesThresholds) {
            return Ok(());
        }
        let mut left = credits;
        for threshold in self.accounts[index as usize].thresholds[..=last].iter_mut().rev() {
            let lowered = left.min(*threshold - 1);
            *threshold -= lowered;
            left -= lowered;
        }
        assert_eq!(left, 0, "returned credits exceed what thresholds can be lowered by");
        Ok(())
    }

    /// The sender reports how many credit packets it has read, modulo 2^16.
    #[inline]
    pub fn credit_packets_read(&mut self, index: u32, read: u16) {
        self.accounts[index as usize].packets_read = read;
    }

    /// Whether a threshold is reached.
    #[inline]
    pub fn is_due(&self, index: u32) -> bool {
        let account = &self.accounts[index as usize];
        account.retrieved >= account.thresholds[0]
    }

    /// Credits for an explicit credit packet, if a threshold is reached, slots are available, and one of the
    /// `credit_slots` slots at the sender is free. They count as granted.
    #[inline]
    pub fn grant(&mut self, index: u32, credit_slots: u32) -> Option<u32> {
        if self.is_due(index) { self.grant_reached(index, credit_slots) } else { None }
    }

    /// A packet of several slots can pass several thresholds. Each is crossed, and one credit packet leaves.
    fn grant_reached(&mut self, index: u32, credit_slots: u32) -> Option<u32> {
        let account = &self.accounts[index as usize];
        if u32::from(account.packets_sent.wrapping_sub(account.packets_read)) >= credit_slots {
            self.tally.deferred_grants += 1;
            return None;
        }
        let mut credits = 0;
        loop {
            let account = &self.accounts[index as usize];
            if account.retrieved < account.thresholds[0] {
                break;
            }
            let crossed = match account.blocked {
                true => self.cross_blocked(index),
                false => self.cross(index, 0),
            };
            let Some(granted) = crossed else { break };
            credits += granted;
        }
        if credits == 0 {
            return None;
        }
        let (lost, twice) = (self.breaks(Mutant::CreditIsLost), self.breaks(Mutant::CreditsReturnTwice));
        let account = &mut self.accounts[index as usize];
        if lost {
            account.granted_total = account.granted_total.wrapping_sub(1);
        } else if twice {
            account.granted_total = account.granted_total.wrapping_add(credits);
        }
        account.packets_sent = account.packets_sent.wrapping_add(1);
        Some(credits)
    }

    /// Granted credits in all, if there are no retrieved slots to return.
    #[inline(always)]
    pub(crate) fn settled_total(&self, index: u32) -> Option<u32> {
        let account = &self.accounts[index as usize];
        (account.retrieved == 0).then_some(account.granted_total)
    }

    /// The credits that a packet piggybacks if it `has_room`, which count as granted, and the granted total.
    #[inline(always)]
    pub(crate) fn carry(&mut self, index: u32, has_room: bool) -> (u32, u32) {
        let account = &mut self.accounts[index as usize];
        let credits = account.retrieved;
        if credits == 0 || !has_room {
            return (0, account.granted_total);
        }
        let (current, piggybacked) = (account.current + credits, account.piggybacked + credits);
        // The common case needs only a few additions.
        if piggybacked < account.thresholds[0]
            && current <= account.piggyback_to
            && account.current >= self.credit_slots
            && credits <= self.region.free
        {
            account.retrieved = 0;
            (account.current, account.piggybacked) = (current, piggybacked);
            account.granted_total = account.granted_total.wrapping_add(credits);
            self.region.free -= credits;
            return (credits, account.granted_total);
        }
        self.carry_carefully(index)
    }

    #[cold]
    fn carry_carefully(&mut self, index: u32) -> (u32, u32) {
        (self.piggyback_carefully(index), self.granted_total(index))
    }

    fn piggyback_carefully(&mut self, index: u32) -> u32 {
        let account = &self.accounts[index as usize];
        if !self.piggyback || account.blocked {
            return 0;
        }
        let mut credits = account.retrieved;
        if !self.breaks(Mutant::PiggybackIgnoresTheQuota) {
            credits = credits.min(account.piggyback_to.saturating_sub(account.current));
        }
        if !self.breaks(Mutant::PiggybackOverdraws) {
            credits = credits.min(self.grantable(index));
        }
        let account = &mut self.accounts[index as usize];
        account.retrieved -= credits;
        account.piggybacked += credits;
        let reached = account.retrieved + account.piggybacked >= account.thresholds[0];
        self.grant_slots(index, credits);
        if reached { credits + self.cross_piggybacked(index) } else { credits }
    }

    /// Crosses the thresholds that piggybacking has reached (6.6). Returns further credits to piggyback.
    fn cross_piggybacked(&mut self, index: u32) -> u32 {
        let mut credits = 0;
        loop {
            let Account { retrieved, piggybacked, thresholds, .. } = &self.accounts[index as usize];
            if retrieved + piggybacked < thresholds[0] {
                return credits;
            }
            let Some(granted) = self.cross(index, *piggybacked) else { return credits };
            credits += granted;
        }
    }

    /// Crosses the current threshold of a sender that is not blocked; `returned` credits were piggybacked. Runs the
    /// activity control, computes the new threshold, and grants it as far as slots are available and not yet returned.
    /// `None`: there is nothing to grant. The threshold then stays until the next retrieval.
    fn cross(&mut self, index: u32, returned: u32) -> Option<u32> {
        if self.region.missing > 0 {
            self.refill();
        }
        let most = self.grantable(index);
        if most == 0 && returned == 0 {
            return None;
        }
        self.monitor(index);
        let wanted = threshold(self.accounts[index as usize].intended, self.credit_slots);
        let granted = wanted.saturating_sub(returned).min(most);
        let excess = returned.saturating_sub(wanted);
        self.tally.short_grants += u64::from(granted + returned < wanted);
        self.tally.excesses += u64::from(excess > 0);
        self.tally.deficits += u64::from(returned > 0 && excess == 0);
        let overshoot = !(returned > 0 && self.breaks(Mutant::PiggybackForgetsTheOvershoot));
        let pushed = match self.breaks(Mutant::ShortGrantPushesTheThreshold) {
            true => wanted,
            // The granted amount is pushed; an excess is kept for the next threshold.
            false => granted + returned - excess,
        };
        let account = &mut self.accounts[index as usize];
        let left = account.retrieved + returned - account.thresholds[0];
        account.retrieved = if overshoot { left } else { 0 };
        self.push_threshold(index, pushed);
        self.accounts[index as usize].thresholds[0] += excess;
        self.grant_slots(index, granted);
        Some(granted)
    }

    /// A blocked sender gets one credit at a time, and only below its guaranteed credits.
    fn cross_blocked(&mut self, index: u32) -> Option<u32> {
        let account = &mut self.accounts[index as usize];
        if account.current >= self.credit_slots {
            if self.breaks(Mutant::BlockedCrossingIsLost) {
                self.accounts[index as usize].retrieved = 0;
            }
            return None;
        }
        account.retrieved -= account.thresholds[0];
        self.push_threshold(index, 1);
        self.grant_slots(index, 1);
        Some(1)
    }

    fn push_threshold(&mut self, index: u32, threshold: u32) {
        let last = self.credit_slots as usize;
        let account = &mut self.accounts[index as usize];
        account.control = account.control.saturating_sub(account.thresholds[0]).min(account.retrieved);
        account.thresholds.copy_within(1..=last, 0);
        account.thresholds[last] = threshold;
        account.piggybacked = 0;
    }
}
