//! Deferred grants. A sender that waits in the queue gets no small grants: neither its guarantee alone nor less than its
//! turn allows. Each would be a credit packet, and the sender would wait again, many times for each message. Such a grant
//! is deferred. It is made
//!
//! - with the rest of its turn, when so much is free;
//! - with a packet that piggybacks credits;
//! - when the endpoint is idle, to one sender at a time, the longest deferred first;
//! - at the latest when as much has been granted to others as the turns of all senders allow.
//!
//! The last two need no slots of others. So a sender that keeps what it was lent stops nobody.
//!
//! Nothing is deferred where a turn is no longer than the guarantee, because next to nothing can be lent. A grant would save
//! one credit packet, and wait for it until the endpoint is idle.

use super::{Mutant, Pool};
use crate::event::Peer;

impl Pool {
    /// Free slots for which this sender waits: the rest of its turn, or what it wants beyond its guarantee.
    pub(super) fn needs(&self, index: u32) -> u32 {
        let account = &self.accounts[index as usize];
        let turn_slots = if account.queued { account.turn_left } else { self.quantum_slots };
        self.waits_for(index).saturating_sub(self.region.shortfall(account.current)).min(turn_slots)
    }

    /// Whether a grant to this sender is deferred: it needs more than can be lent to it now.
    pub(super) fn defers(&self, index: u32) -> bool {
        let needed = self.needs(index);
        let lendable = self.turn_slots(index).min(self.region.free);
        let is_worth_it = self.quantum_slots > self.region.guarantee();
        is_worth_it && needed > lendable && !self.accounts[index as usize].overdue
    }

    /// A grant to a queued sender is deferred. With slots it will be considered again when they are retrieved.
    pub(super) fn defer(&mut self, index: u32) {
        let account = &mut self.accounts[index as usize];
        if account.current == 0 && !self.deferred.contains(index) && !self.breaks(Mutant::DeferredIsForgotten)
        {
            self.accounts[index as usize].deferred_at = self.granted_slots;
            self.deferred.push_back(index);
        }
    }

    /// `credits` have been granted to a sender.
    pub(super) fn note_granted(&mut self, index: u32, credits: u32) {
        self.granted_slots = self.granted_slots.wrapping_add(credits);
        self.deferred.remove(index);
        self.accounts[index as usize].overdue = false;
        self.note_work(self.is_first_overdue());
    }

    /// Whether the first deferred sender has seen as many grants as the turns of all senders allow.
    fn is_first_overdue(&self) -> bool {
        let Some(first) = self.deferred.first() else { return false };
        let granted = self.granted_slots.wrapping_sub(self.accounts[first as usize].deferred_at);
        granted > self.most_deferred()
    }

    /// Credits that others are granted before a deferred grant is overdue: the turns of all senders.
    pub(super) fn most_deferred(&self) -> u32 {
        self.quantum_slots * self.senders()
    }

    /// The next sender whose grant has been deferred long enough.
    pub fn next_overdue(&mut self) -> Option<Peer> {
        if self.is_first_overdue() { self.next_deferred() } else { None }
    }

    /// The sender whose grant has been deferred longest. It can be made now.
    pub fn next_deferred(&mut self) -> Option<Peer> {
        let index = self.deferred.pop_front()?;
        let account = &mut self.accounts[index as usize];
        account.overdue = true;
        Some(account.owner)
    }

    /// Whether grants are deferred until the endpoint is idle.
    #[inline]
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }
}
