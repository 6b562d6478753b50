//! The queue: senders whose demand waits for free slots, in the order of their turns.
//!
//! The first that can take a grant gets what is free. If others wait, it goes to the end after its turn: a quantum, or its
//! equal part of what is free. So a sender waits for at most one turn of each other. A sender that cannot take a grant
//! keeps its place, and nothing visits it until it can. A packet that is read from it, or a change of the lane to it, says
//! that it can.

use super::{Mutant, Pool};
use crate::event::Peer;

impl Pool {
    /// What this sender may be lent now, as far as other waiting senders decide.
    pub(super) fn turn_slots(&self, index: u32) -> u32 {
        let account = &self.accounts[index as usize];
        let others = self.queue.len() - u32::from(account.queued);
        if others == 0 {
            return u32::MAX;
        }
        match self.queue.first_ready() {
            _ if account.queued => {
                if self.queue.is_next(index) {
                    account.turn_left.max(self.equal_part(self.queue.len()))
                } else {
                    0
                }
            }
            Some(_) => 0,
            // All others are unready.
            None => self.quantum_slots.max(self.equal_part(others + 1)),
        }
    }

    /// What each of `waiting` senders may be lent of the free slots. It is more than a quantum if senders wait because they
    /// cannot take grants, while slots are free. Each grant should then last, because few credit packets can be unread.
    fn equal_part(&self, waiting: u32) -> u32 {
        self.region.free / waiting
    }

    /// The sender was granted `lent` slots beyond its guarantee; `unmet` is the demand that its bound allows and that is left.
    pub(super) fn end_or_continue_waiting(&mut self, index: u32, lent: u32, unmet: u32) {
        if unmet == 0 {
            if self.accounts[index as usize].queued {
                self.leave_queue(index);
                self.turns = self.turns.wrapping_add(u32::from(lent > 0));
                self.has_work = !self.queue.is_empty();
            }
            return;
        }
        self.note_work(true);
        if !self.accounts[index as usize].queued {
            return self.join_queue(index);
        }
        self.queue.set_wanted(index, unmet);
        let account = &mut self.accounts[index as usize];
        account.turn_left = account.turn_left.saturating_sub(lent);
        if account.turn_left > 0 {
            return;
        }
        account.turn_left = self.quantum_slots;
        self.turns = self.turns.wrapping_add(1);
        self.tally.rotations += 1;
        if self.breaks(Mutant::QueueDoesNotRotate) {
            return self.wait_behind(index, 0);
        }
        self.queue.move_to_end(index);
        self.wait_behind(index, self.queue.len() - 1);
    }

    /// A queued sender waits from now on for at most one turn of each of `ahead` senders.
    fn wait_behind(&mut self, index: u32, ahead: u32) {
        let account = &mut self.accounts[index as usize];
        (account.waits_since, account.ahead) = (self.turns, ahead);
    }

    fn join_queue(&mut self, index: u32) {
        let account = &mut self.accounts[index as usize];
        (account.queued, account.turn_left) = (true, self.quantum_slots);
        let (ready, ahead) = (!account.unready, self.queue.len());
        self.queue.push(index, ready);
        self.calm = false;
        self.queue.set_wanted(index, self.waits_for(index));
        self.wait_behind(index, ahead);
        self.tally.queued += 1;
    }

    /// The slots for which a queued sender waits.
    pub(super) fn waits_for(&self, index: u32) -> u32 {
        let account = &self.accounts[index as usize];
        self.demand(index).min(account.most - account.current)
    }

    /// A queued sender wants or holds another number of slots.
    #[cold]
    pub(super) fn note_waiting(&mut self, index: u32) {
        self.queue.set_wanted(index, self.waits_for(index));
    }

    /// A sender can take a grant again. If it is queued, it has kept its place: only those before it can have a turn first,
    /// and it is not known how many of these are left.
    #[cold]
    pub(super) fn note_ready(&mut self, index: u32) {
        let account = &mut self.accounts[index as usize];
        account.unready = false;
        let is_queued = account.queued;
        self.note_due(index);
        if is_queued {
            self.queue.set_ready(index);
            let ahead = self.accounts[index as usize].ahead.min(self.queue.len() - 1);
            self.wait_behind(index, ahead);
        }
    }

    /// This sender cannot take a grant now. It waits if it has demand.
    pub fn grants_must_wait(&mut self, index: u32) {
        self.accounts[index as usize].unready = true;
        self.note_due(index);
        if self.accounts[index as usize].queued {
            self.queue.set_unready(index);
            self.note_work(self.next_waiting().is_some()); // it may have been the first, and needed more
        } else if self.waits_for(index) > 0 {
            self.join_queue(index);
        }
    }

    pub(super) fn leave_queue(&mut self, index: u32) {
        if core::mem::take(&mut self.accounts[index as usize].queued) {
            self.queue.remove(index);
        }
    }

    /// The queue is served as far as possible.
    pub fn end_work(&mut self) {
        (self.has_work, self.lacks_prefetch) = (false, false);
    }

    /// The next sender that waits and may get free slots.
    pub fn next_waiting(&self) -> Option<(u32, Peer)> {
        let index = self.queue.first_ready()?;
        let is_enough = self.region.free > 0 && self.region.free >= self.needs(index);
        is_enough.then(|| (index, self.accounts[index as usize].owner))
    }

    /// The sender of [`Pool::next_waiting`] has been served as far as possible; `granted_total` was its total before. If it
    /// got nothing, it is passed over until it is ready again.
    pub fn served(&mut self, index: u32, granted_total: u32) {
        let account = &self.accounts[index as usize];
        if account.granted_total == granted_total && account.queued && !account.unready {
            self.grants_must_wait(index);
        }
    }
}
