//! The queue: senders whose demand waits for free slots, in the order of their turns.
//!
//! The first that can take a grant gets what is free. If others wait, it goes to the end after a quantum. So a sender
//! waits for at most one turn of each other.

use super::{Mutant, Pool};
use crate::event::Peer;

impl Pool {
    /// What this sender may be lent now, as far as other waiting senders decide.
    pub(super) fn turn_slots(&self, index: u32) -> u32 {
        let account = &self.accounts[index as usize];
        let others = self.queue.len() - usize::from(account.queued);
        if others == 0 {
            return u32::MAX;
        }
        let ready = |&&other: &&u32| other == index || !self.accounts[other as usize].unready;
        match self.queue.iter().find(ready) {
            Some(&first) if first == index => account.turn_left,
            Some(_) => 0,
            None => self.quantum_slots, // it is not queued, and all others are unready
        }
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
        self.has_work = true;
        if !self.accounts[index as usize].queued {
            return self.join_queue(index);
        }
        let account = &mut self.accounts[index as usize];
        account.turn_left = account.turn_left.saturating_sub(lent);
        if account.turn_left > 0 {
            return;
        }
        account.turn_left = self.quantum_slots;
        self.turns = self.turns.wrapping_add(1);
        self.tally.rotations += 1;
        if !self.breaks(Mutant::QueueDoesNotRotate) {
            self.queue.retain(|&other| other != index);
            self.queue.push_back(index);
        }
        self.wait_from_now(index);
    }

    /// The turns for which a queued sender waits are counted from now on.
    #[cold]
    pub(super) fn wait_from_now(&mut self, index: u32) {
        let ahead = self.queue.iter().position(|&other| other == index).unwrap_or(0);
        let account = &mut self.accounts[index as usize];
        (account.waits_since, account.ahead) = (self.turns, ahead as u32);
    }

    fn join_queue(&mut self, index: u32) {
        let account = &mut self.accounts[index as usize];
        (account.queued, account.turn_left) = (true, self.quantum_slots);
        self.queue.push_back(index);
        self.wait_from_now(index);
        self.tally.queued += 1;
    }

    /// This sender cannot take a grant now. It waits if it has demand.
    pub fn grants_must_wait(&mut self, index: u32) {
        let account = &mut self.accounts[index as usize];
        account.unready = true;
        let account = &self.accounts[index as usize];
        if !account.queued && self.demand(index) > 0 && account.current < account.most {
            self.join_queue(index);
        }
    }

    pub(super) fn leave_queue(&mut self, index: u32) {
        if core::mem::take(&mut self.accounts[index as usize].queued) {
            self.queue.retain(|&other| other != index);
        }
    }

    /// The queue is served as far as possible.
    pub fn end_work(&mut self) {
        (self.has_work, self.lacks_prefetch) = (false, false);
    }

    /// The next sender that waits and may get free slots, from `place` of the queue on.
    pub fn next_waiting(&self, place: usize) -> Option<(u32, Peer)> {
        if self.free_slots == 0 {
            return None;
        }
        let index = *self.queue.get(place)?;
        Some((index, self.accounts[index as usize].owner))
    }

    /// The sender at `place` of the queue has been served as far as possible; `granted_total` was its total before.
    /// Returns the place of the next one.
    pub fn place_after(&mut self, place: usize, index: u32, granted_total: u32) -> usize {
        let account = &mut self.accounts[index as usize];
        if account.granted_total != granted_total || self.queue.get(place) != Some(&index) {
            return place;
        }
        account.unready = true;
        place + 1
    }
}
