//! Reclaim: while demand waits, senders are asked to give back prefetched credits, the longest idle first.
//!
//! The sender decides what it gives back: all but the guaranteed credits and those that its queued packets need. So lent
//! credits are never reclaimed, although a request may cross new demand.

use super::{Pool, SpendError};
use crate::event::Peer;

impl Pool {
    /// The sender may have credits for which it has told no use.
    pub(super) fn hold(&mut self, index: u32) {
        self.holders.push_back(index);
    }

    /// The announced total went down: what was lent for the difference can be reclaimed.
    #[cold]
    pub(super) fn demand_vanished(&mut self, index: u32) {
        self.tally.vanished += 1;
        self.hold(index);
        if self.demand(index) == 0 && self.accounts[index as usize].queued {
            self.leave_queue(index);
        }
        self.note_work(!self.queue.is_empty());
    }

    /// The next sender that should get a return request.
    pub fn next_request(&mut self) -> Option<Peer> {
        let is_waited_for = !self.queue.is_empty() && self.next_waiting().is_none();
        let lacks_prefetch = self.lacks_prefetch && self.expected_slots == 0;
        if !is_waited_for && !lacks_prefetch {
            return None;
        }
        for _ in 0..self.holders.len() {
            let is_short = self.queue.wanted_slots() > u64::from(self.expected_slots + self.region.free);
            let index = if is_short || lacks_prefetch { self.holders.pop_front()? } else { return None };
            let surplus = self.surplus(index);
            let guaranteed = self.credit_slots;
            let account = &mut self.accounts[index as usize];
            if surplus <= guaranteed || account.asked {
                continue;
            }
            if core::mem::take(&mut account.used) {
                self.holders.push_back(index);
                continue;
            }
            account.asked = true;
            account.expected = surplus - guaranteed;
            let owner = account.owner;
            self.expected_slots += surplus - guaranteed;
            self.tally.requests += 1;
            self.set_window(index, guaranteed);
            return Some(owner);
        }
        None
    }

    /// A sender responds that it has returned `credits`, after the slot of its response was retrieved.
    ///
    /// # Errors
    /// [`SpendError`] if there was no request or it does not have so many credits. Then nothing has changed.
    pub fn returned(&mut self, index: u32, credits: u32) -> Result<(), SpendError> {
        let account = &mut self.accounts[index as usize];
        if !account.asked || credits > account.current {
            return Err(SpendError { slots: credits, credits: account.current });
        }
        account.asked = false;
        let before = account.current;
        account.current -= credits;
        if account.queued {
            self.note_waiting(index);
        }
        let account = &mut self.accounts[index as usize];
        self.expected_slots -= core::mem::take(&mut account.expected);
        self.tally.returned_slots += u64::from(credits);
        self.note_due(index);
        self.release(before, credits);
        Ok(())
    }
}
