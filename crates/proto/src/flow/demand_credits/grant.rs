//! Grants: guarantee, loan, prefetch. All slots of a grant are taken here.

use super::{Account, Mutant, Pool, RECENT_BORROWERS};

impl Pool {
    /// Credits for an explicit credit packet, if there are any to grant and one of the `credit_slots` slots at the
    /// sender is free. They count as granted.
    #[inline]
    pub fn grant(&mut self, index: u32, credit_slots: u32) -> Option<u32> {
        if self.is_due(index) { self.grant_due(index, credit_slots) } else { None }
    }

    fn grant_due(&mut self, index: u32, credit_slots: u32) -> Option<u32> {
        self.is_ready(index);
        let account = &mut self.accounts[index as usize];
        if u32::from(account.packets_sent.wrapping_sub(account.packets_read)) >= credit_slots {
            self.grants_must_wait(index);
            return None;
        }
        let credits = self.take(index, true);
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
        if lost || twice {
            self.note_due(index);
        }
        Some(credits)
    }

    /// The granted total of a sender for which a packet need not piggyback credits now: it has credits for all that it has
    /// told, and holds most of its window.
    #[inline(always)]
    pub(crate) fn settled_total(&self, index: u32) -> Option<u32> {
        let account = &self.accounts[index as usize];
        let is_settled = account.current > account.middle && self.balance(index) <= 0;
        is_settled.then_some(account.granted_total)
    }

    /// The credits that a packet piggybacks if it `has_room`, which count as granted, and the granted total.
    #[inline]
    pub fn carry(&mut self, index: u32, has_room: bool) -> (u32, u32) {
        if let Some(granted_total) = self.settled_total(index) {
            return (0, granted_total);
        }
        if !has_room {
            return (0, self.granted_total(index));
        }
        let credits = self.take(index, false);
        (credits, self.granted_total(index))
    }

    /// Takes what this sender may get now, for an explicit credit packet or to piggyback it. Returns the credits, which
    /// count as granted.
    fn take(&mut self, index: u32, explicit: bool) -> u32 {
        let account = &self.accounts[index as usize];
        let is_used = account.current <= account.middle;
        let (current, room) = (account.current, account.most - account.current);
        let owed = self.region.shortfall(current).min(room);
        let demand = self.demand(index);
        let mut credits = owed;
        if demand > 0 {
            let is_deferred = self.defers(index);
            if is_deferred && explicit {
                self.end_or_continue_waiting(index, 0, demand.min(room));
                self.defer(index);
                return 0;
            }
            // The guarantee can piggyback. Slots that others may wait for are lent only to the sender whose turn it is.
            let turn_slots = if is_deferred { 0 } else { self.turn_slots(index) };
            // The sender can then announce its next demand without waiting for the guarantee.
            let beyond = if turn_slots == u32::MAX { self.credit_slots } else { 0 };
            let there = self.region.free + owed;
            let granted =
                demand.saturating_add(beyond).min(room).min(there).min(turn_slots.saturating_add(owed));
            credits = credits.max(granted);
            let lent = granted.min(demand);
            self.tally.lent_slots += u64::from(lent);
            let left = there.saturating_sub(granted);
            if lent > 0 && (self.borrows_again(index) || left > 2 * self.reserve_slots) {
                self.set_window(index, self.accounts[index as usize].window + lent);
            }
        }
        let unmet = demand.saturating_sub(credits).min(room - credits);
        self.take_slots(index, credits);
        self.end_or_continue_waiting(index, credits - owed, unmet);
        if unmet == 0 {
            credits += self.prefetch(index);
            if is_used && demand == 0 {
                self.grow_window(index);
            }
        }
        if credits > 0 {
            self.accounts[index as usize].used = true;
            self.note_granted(index, credits);
        }
        credits
    }

    /// Grants without demand, up to the window. While memory is scarce, the window shrinks instead.
    fn prefetch(&mut self, index: u32) -> u32 {
        let account = &self.accounts[index as usize];
        let window = account.window;
        let wanted = window.saturating_sub(account.current);
        if wanted == 0 || account.asked || !self.queue.is_empty() {
            return 0;
        }
        let is_recent = self.borrowers.contains(&index);
        let reserve_slots = if is_recent { self.reserve_slots } else { 2 * self.reserve_slots };
        let mut spare = self.region.free.saturating_sub(reserve_slots);
        if self.breaks(Mutant::LoansReturnToTheSender) {
            spare = self.region.free;
        }
        let credits = wanted.min(spare);
        if credits == 0 {
            if is_recent && !self.holders.is_empty() {
                self.lacks_prefetch = true;
                self.note_work(true);
            } else {
                self.set_window(index, window / 2);
            }
            return 0;
        }
        self.tally.prefetched_slots += u64::from(credits);
        self.take_slots(index, credits);
        self.hold(index);
        assert!(
            self.region.free >= self.reserve_slots,
            "D4: prefetch leaves {} slots free, the reserve is {}",
            self.region.free,
            self.reserve_slots
        );
        credits
    }

    /// A sender that uses a part of its window may get what static credits would give it, while memory is plenty. So its
    /// small messages bring no more credit packets than there. If many senders do so, the equal share leaves the reserve.
    ///
    /// Few senders may get more than the equal share, as long as three quarters of what can be lent are free, and the
    /// windows have grown by less than the other quarter. If they have grown by more, such a window shrinks again. Free
    /// slots alone do not show that senders are few: between two calls of an all-to-all all slots are free.
    fn grow_window(&mut self, index: u32) {
        let Account { window, beyond, asked, .. } = self.accounts[index as usize];
        let (reserve_slots, senders) =
            (2 * self.reserve_slots, self.region.planned_senders.max(self.senders()).max(1));
        let quarter_slots = self.region.all.saturating_sub(self.credit_slots * senders) / 4;
        if self.grown_slots > quarter_slots && beyond > 0 {
            return self.set_window(index, window - beyond);
        }
        let spare = self.region.free.saturating_sub(3 * quarter_slots);
        let beyond_slots = spare.min(quarter_slots.saturating_sub(self.grown_slots));
        let kept = if spare > 0 { 0 } else { reserve_slots };
        let equal_slots = self.region.all.saturating_sub(kept) / senders;
        let end = equal_slots.max(window + beyond_slots.min(window));
        if self.region.free > reserve_slots && self.queue.is_empty() && !asked && window < end {
            self.set_window(index, (2 * window).min(end));
            let account = &mut self.accounts[index as usize];
            account.beyond = beyond + account.window.saturating_sub(window.max(equal_slots));
        }
    }

    /// The sender gets a loan. Returns whether it is one of the last few that got one.
    pub(super) fn borrows_again(&mut self, index: u32) -> bool {
        let place = self.borrowers.iter().position(|&borrower| borrower == index);
        let last = place.unwrap_or(RECENT_BORROWERS - 1);
        self.borrowers.copy_within(..last, 1);
        self.borrowers[0] = index;
        place.is_some()
    }

    fn take_slots(&mut self, index: u32, slots: u32) {
        let account = &mut self.accounts[index as usize];
        self.region.grant(account.current, slots);
        account.current += slots;
        account.granted_total = account.granted_total.wrapping_add(slots);
        self.note_due(index);
    }
}
