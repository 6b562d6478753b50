//! Credits on demand: a receiver lends the free slots of one data region to senders that say how many they need. A lent
//! slot that is retrieved goes back to the region, not to its sender. Source: weir's own scheme
//! (docs/notes/2026-11-24-demand-credits.md).
//!
//! A sender stamps every packet with `wanted_total`: the slots that it has spent in this lease and those of everything
//! queued for this receiver. What exceeds the granted credits is its *demand*. The receiver has one [`Pool`]. It grants
//! for four reasons, in this order:
//! ```text
//! guarantee   `n` slots for each sender, which nobody else gets
//! loan        for demand, out of what is free
//! queue       if too little is free: freed slots go to the waiting senders in turn, at most a quantum for each
//! prefetch    without demand, while more than a reserve is free: up to a window that follows the sender's use
//! ```
//! If demand waits, senders with prefetched credits are asked to give back those above the guarantee.
//!
//! Worked exchange, `n` = 1, region 12, senders A and B, so 10 slots are free. A posts a message of 6 slots:
//! ```text
//! A -> R   slot 1, wanted 6      A has 1 credit. R retrieves it: demand 6 - 1 = 5. Grants 5 and the guaranteed one
//! R -> A   credit total 6        5 are free. A holds 6
//! A -> R   slots 2 to 6          retrieved: 5 slots are free again. A holds 1, which is the guarantee
//! ```
//!
//! **No deadlock.** A sender without credits, all retrieved, holds nothing. So its guarantee is due, and no other sender
//! can hold these slots. **No overflow of data slots.** Every granted slot was free, or owed to that sender. **No overflow
//! of credit slots.** A credit packet leaves only if fewer than `n` are unread. This never waits for ever: each carries a
//! credit, and the packet that spends it says that the credit packet was read.

mod account_list;
#[cfg(feature = "explore")]
mod canonical;
mod defer;
mod grant;
mod queue;
mod reclaim;
mod report;
mod turns;

use alloc::vec::Vec;

use account_list::AccountList;
pub use report::{AccountView, Tally};
use turns::Turns;

use super::SpendError;
use super::mutant::Mutant;
use super::region::RegionSlots;
use crate::config::DataRegion;
use crate::event::Peer;

/// Bound on the slots that a waiting sender gets in its turn, if others wait too: about the longest packet.
const MAX_QUANTUM_SLOTS: u32 = 64;

/// Bound of the reserve that prefetch leaves free: several of the longest packets.
const MAX_RESERVE_SLOTS: u32 = 256;

/// A sender that borrows again while it is among so many last borrowers gets a larger window.
const RECENT_BORROWERS: usize = 8;

/// The receiving side of one pair. Its state is the account, in the pool.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// Number of the account.
    pub account: u32,
    /// The granted total, if it is known.
    granted_total: u32,
    /// 1: until the account changes, packets need not piggyback credits ([`Pool::settled_total`]). 0: the account has to be
    /// looked at. A number, because an unused value of a `bool` or an `Option` would become the tag of
    /// [`super::Receiver`], which the common path could not compare with one instruction.
    is_settled: u8,
}

impl Receiver {
    /// The receiving side with this account.
    pub(super) fn new(account: u32) -> Receiver {
        Receiver { account, granted_total: 0, is_settled: 0 }
    }

    /// The account, which may change.
    #[inline(always)]
    pub(super) fn account_mut(&mut self) -> u32 {
        self.is_settled = 0;
        self.account
    }

    /// The granted total, if it is known that a packet need not piggyback credits.
    #[inline(always)]
    pub(crate) fn settled_total(&self) -> Option<u32> {
        (self.is_settled != 0).then_some(self.granted_total)
    }

    /// See [`Pool::carry`].
    #[inline]
    pub(super) fn carry(&mut self, has_room: bool, pool: &mut Pool) -> (u32, u32) {
        let Some(granted_total) = pool.settled_total(self.account) else {
            return pool.carry(self.account_mut(), has_room);
        };
        (self.granted_total, self.is_settled) = (granted_total, 1);
        (0, granted_total)
    }

    /// Checks what is known of the account. For tests and proofs.
    ///
    /// # Panics
    /// If the account has changed since.
    pub(crate) fn assert_known(&self, pool: &Pool) {
        let settled_total = self.settled_total();
        let known = settled_total.is_none_or(|total| pool.settled_total(self.account) == Some(total));
        assert!(known, "{self:?} does not know its account in {pool:?}");
    }
}

/// The account of one sender.
#[derive(Clone, Debug)]
struct Account {
    owner: Peer,
    /// Slots that the sender holds: its credits, credits in flight, and filled slots.
    current: u32,
    /// The value of `current` that prefetch may reach, at least the guarantee.
    window: u32,
    /// The part of the window beyond the equal share that it has because few senders are active.
    beyond: u32,
    /// The value of `current` at which prefetch or guarantee is due. Follows from the window.
    low: u32,
    /// The value of `current` at which a packet piggybacks credits, at least `low`. Follows from the window.
    middle: u32,
    /// Bound of `current`.
    most: u32,
    /// Granted credits beyond the starting ones, modulo 2^32.
    granted_total: u32,
    /// What the sender has spent and wants, modulo 2^32, by the packet that was read last.
    wanted_total: u32,
    /// While `wanted_total` is below it and grows by what is retrieved, nothing is due ([`Pool::note_due`]).
    due_total: u32,
    /// Rest of its turn, while it is queued.
    turn_left: u32,
    /// Turns of the pool when it was queued, had its last turn, or was ready again.
    waits_since: u32,
    /// Senders that were before it in the queue then, at most.
    ahead: u32,
    /// Credits that the pending return request should bring.
    expected: u32,
    /// Credits granted to all senders when a grant to it was deferred.
    deferred_at: u32,
    /// Explicit credit packets sent, modulo 2^16.
    packets_sent: u16,
    /// Of those, the ones that the sender has read.
    packets_read: u16,
    /// It is in the queue.
    queued: bool,
    /// It cannot take a grant now: its credit slots are full, or we have no lane to it.
    unready: bool,
    /// A return request is queued or pending.
    asked: bool,
    /// It got credits since it was last considered for reclaim.
    used: bool,
    /// A grant to it has been deferred long enough.
    overdue: bool,
    /// `false`: the entry is unused.
    open: bool,
}

impl Account {
    /// Whether a quarter of the window is worth a credit packet. Then credits are due also within a burst.
    fn has_large_window(&self) -> bool {
        self.window / 4 >= MAX_QUANTUM_SLOTS
    }
}

/// Memory for each sender: its account, and its places in the two lists and in the queue.
#[cfg(test)]
pub(crate) const SENDER_BYTES: usize =
    size_of::<Account>() + 2 * account_list::LINK_BYTES + turns::SENDER_BYTES;

/// The data region of an endpoint and the accounts of its senders.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Credit slots, and guaranteed credits of each sender.
    credit_slots: u32,
    region: RegionSlots,
    /// Prefetch leaves so many slots free, and twice as many if the sender is no recent borrower.
    reserve_slots: u32,
    quantum_slots: u32,
    /// Bound of what one sender holds.
    most_slots: u32,
    accounts: Vec<Account>,
    unused: Vec<u32>,
    /// Accounts whose demand waits for free slots.
    queue: Turns,
    /// Turns so far, modulo 2^32.
    turns: u32,
    /// The accounts that got the last loans, the latest first. `u32::MAX`: none.
    borrowers: [u32; RECENT_BORROWERS],
    /// Accounts that may have prefetched credits.
    holders: AccountList,
    /// Queued accounts without slots, to which grants are deferred, the longest deferred first.
    deferred: AccountList,
    /// Credits granted to all senders so far, modulo 2^32.
    granted_slots: u32,
    /// Credits that pending return requests should bring.
    expected_slots: u32,
    /// By how much the windows exceed the starting credits, in all.
    grown_slots: u32,
    /// A recent borrower gets no prefetch because others hold the slots.
    lacks_prefetch: bool,
    /// The queue may be served, or credits may be reclaimed for it.
    has_work: bool,
    /// More free slots are nobody's business ([`Pool::is_calm`]). If it is `false`, that has to be looked at.
    calm: bool,
    tally: Tally,
    #[cfg(any(test, feature = "mutants"))]
    mutant: Option<Mutant>,
}

impl Pool {
    /// A pool without senders.
    ///
    /// # Panics
    /// If the region is too small for the senders' starting credits, or these are fewer than `credit_slots`.
    pub fn new(region: &DataRegion, credit_slots: u32) -> Pool {
        let DataRegion { slots, peers, start_slots, .. } = *region;
        let region = RegionSlots::new(region, credit_slots);
        let lendable = slots - credit_slots * peers;
        let quantum_slots = (lendable / 4).clamp(1, MAX_QUANTUM_SLOTS);
        // One sender, which may be stopped while it holds a loan, never holds more than half of what can be lent.
        let share = if peers > 1 { lendable / 2 } else { lendable };
        Pool {
            credit_slots,
            region,
            // The reserve is for demand of others.
            reserve_slots: if peers > 1 { (slots / 4).min(MAX_RESERVE_SLOTS) } else { 0 },
            quantum_slots,
            most_slots: (credit_slots + share.max(quantum_slots)).max(start_slots),
            accounts: Vec::new(),
            unused: Vec::new(),
            queue: Turns::default(),
            turns: 0,
            borrowers: [u32::MAX; RECENT_BORROWERS],
            holders: AccountList::default(),
            deferred: AccountList::default(),
            granted_slots: 0,
            expected_slots: 0,
            grown_slots: 0,
            lacks_prefetch: false,
            has_work: false,
            calm: false,
            tally: Tally::default(),
            #[cfg(any(test, feature = "mutants"))]
            mutant: None,
        }
    }

    /// Replaces a rule by a mutant.
    #[cfg(any(test, feature = "mutants"))]
    pub fn mutate(&mut self, mutant: Mutant) {
        self.mutant = Some(mutant);
        if mutant == Mutant::NothingIsReserved {
            self.region.guarantee_nothing();
        }
    }

    /// Whether a mutant is selected. Never outside tests and proofs.
    #[inline]
    fn breaks(&self, mutant: Mutant) -> bool {
        #[cfg(any(test, feature = "mutants"))]
        return self.mutant == Some(mutant);
        #[cfg(not(any(test, feature = "mutants")))]
        {
            let _ = mutant;
            false
        }
    }

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
            start_slots <= lane_slots,
            "{start_slots} starting credits exceed a lane of {lane_slots} slots"
        );
        self.region.make_room(u32::MAX);
        self.region.attach();
        let account = Account {
            owner,
            current: start_slots,
            window: start_slots,
            beyond: 0,
            low: 0,
            middle: 0,
            most: self.most_slots.min(lane_slots),
            granted_total: 0,
            wanted_total: 0,
            due_total: 0,
            turn_left: 0,
            waits_since: 0,
            ahead: 0,
            expected: 0,
            deferred_at: 0,
            packets_sent: 0,
            packets_read: 0,
            queued: false,
            unready: false,
            asked: false,
            used: false,
            overdue: false,
            open: true,
        };
        let index = match self.unused.pop() {
            Some(index) => {
                self.accounts[index as usize] = account;
                index
            }
            None => {
                self.accounts.push(account);
                self.accounts.len() as u32 - 1
            }
        };
        self.queue.make_room(index);
        self.holders.make_room(index);
        self.deferred.make_room(index);
        self.set_window(index, start_slots);
        if start_slots > self.credit_slots {
            self.hold(index);
        }
        self.settle();
        index
    }

    /// The window changes, and with it the value of `current` at which prefetch is due: half of it. A burst should need
    /// few credit packets, because at most `n` can be unread. A quarter of a large window is worth a credit packet; its
    /// sender should not stop until all is retrieved. Packets piggyback credits before that, but not every packet does:
    /// most leave with a look at the account.
    fn set_window(&mut self, index: u32, window: u32) {
        let start = self.region.start;
        let account = &mut self.accounts[index as usize];
        let before = account.window.saturating_sub(start);
        account.window = window.min(account.most).max(self.credit_slots);
        account.beyond = 0;
        self.grown_slots = self.grown_slots - before + account.window.saturating_sub(start);
        let quarter = account.window / 4;
        let low =
            if account.has_large_window() { account.window - quarter } else { (account.window - 1) / 2 };
        account.low = low.max(self.credit_slots - 1);
        account.middle = (account.low + account.window) / 2;
        self.note_due(index);
    }

    /// Computes `due_total` again: something has changed on which it depends. A sender that has queued nothing spends its
    /// credits one after the other. So the total at which it holds no more than the low end of its window is known before.
    #[inline]
    fn note_due(&mut self, index: u32) {
        let common_slots = self.common_slots(index);
        let account = &mut self.accounts[index as usize];
        account.due_total = account.wanted_total.wrapping_add(common_slots);
    }

    /// Slots of a quiet sender whose retrieval makes nothing due. 0: it is not quiet, or cannot take a grant.
    fn common_slots(&self, index: u32) -> u32 {
        let account = &self.accounts[index as usize];
        let is_common = self.is_quiet(index) && !account.unready;
        if is_common { account.current.saturating_sub(account.low) } else { 0 }
    }

    fn senders(&self) -> u32 {
        (self.accounts.len() - self.unused.len()) as u32
    }

    /// Free slots are reserved for planned senders that are not attached, and given up beyond the planned size.
    fn settle(&mut self) {
        self.region.settle(self.senders(), u32::MAX);
        self.calm = false;
    }

    /// The queue may be served, or credits may be reclaimed for it, if `there_is`.
    #[inline]
    fn note_work(&mut self, there_is: bool) {
        self.has_work |= there_is;
        self.calm &= !there_is;
    }

    /// A sender with `before` slots holds `slots` less.
    #[inline]
    fn release(&mut self, before: u32, slots: u32) {
        self.region.release(before, slots);
        self.note_free();
    }

    /// More slots are free.
    #[inline]
    fn note_free(&mut self) {
        if self.region.missing > 0 {
            self.settle();
        }
        self.note_work(!self.queue.is_empty() && !self.breaks(Mutant::QueueIsForgotten));
    }

    /// A sender has detached with all its credits and may attach again. Its starting credits are reserved.
    pub fn detach(&mut self, index: u32) {
        self.close(index);
        self.settle();
        self.note_free();
    }

    /// A sender is lost. Its slots are free.
    pub fn remove(&mut self, index: u32) {
        if self.breaks(Mutant::LostPeersKeepTheirShare) {
            return;
        }
        self.region.forget_one_of(self.senders());
        self.close(index);
        self.note_free();
    }

    fn close(&mut self, index: u32) {
        let account = &mut self.accounts[index as usize];
        let current = core::mem::take(&mut account.current);
        self.expected_slots -= core::mem::take(&mut account.expected);
        account.open = false;
        self.grown_slots -= account.window.saturating_sub(self.region.start);
        self.region.close(current);
        self.leave_queue(index);
        self.holders.remove(index);
        self.deferred.remove(index);
        self.borrowers
            .iter_mut()
            .filter(|borrower| **borrower == index)
            .for_each(|borrower| *borrower = u32::MAX);
        self.unused.push(index);
    }

    /// `slots` data slots of this sender have been retrieved. It wants `wanted_total` slots in all. Returns whether credits
    /// may be due, for it or for others.
    ///
    /// # Errors
    /// [`SpendError`] if it had no credits for the slots. Then nothing has changed.
    #[inline(always)]
    pub fn retrieved_and_due(
        &mut self,
        index: u32,
        slots: u32,
        wanted_total: u32,
    ) -> Result<bool, SpendError> {
        let is_calm = self.calm;
        let account = &mut self.accounts[index as usize];
        // The common case: the sender has queued nothing, and holds most of its window.
        let is_quiet = wanted_total.wrapping_sub(account.wanted_total) == slots;
        if is_quiet && (account.due_total.wrapping_sub(wanted_total) as i32) > 0 && is_calm {
            account.wanted_total = wanted_total;
            account.current -= slots;
            self.region.free += slots;
            return Ok(false);
        }
        let Some(due) = self.retrieved_uncommon(index, slots, wanted_total) else {
            return Err(SpendError { slots, credits: self.accounts[index as usize].current });
        };
        Ok(due)
    }

    /// Whether more free slots are nobody's business: nobody waits for them, and the region has its planned size.
    fn is_calm(&self) -> bool {
        self.region.missing | self.queue.len() | u32::from(self.has_work) == 0
    }

    /// The rest of [`Pool::retrieved_and_due`]. Its common case does the same where little can follow. `None`: it had no
    /// credits for the slots.
    #[inline(never)]
    fn retrieved_uncommon(&mut self, index: u32, slots: u32, wanted_total: u32) -> Option<bool> {
        let account = &mut self.accounts[index as usize];
        let before = account.current;
        account.current = before.checked_sub(slots)?;
        self.release(before, slots);
        self.is_ready(index);
        self.wants(index, wanted_total);
        self.calm = self.is_calm();
        Some(self.is_due(index) || self.has_work)
    }

    /// A packet of this sender says what it wants.
    #[inline]
    pub fn wants(&mut self, index: u32, wanted_total: u32) {
        let before = core::mem::replace(&mut self.accounts[index as usize].wanted_total, wanted_total);
        self.note_due(index);
        if (wanted_total.wrapping_sub(before) as i32) < 0 {
            self.demand_vanished(index);
        }
        if self.accounts[index as usize].queued {
            self.note_waiting(index);
        }
    }

    /// The sender has read `read` credit packets, modulo 2^16.
    #[inline]
    pub fn credit_packets_read(&mut self, index: u32, read: u16) {
        self.accounts[index as usize].packets_read = read;
        self.is_ready(index);
    }

    /// The sender can take a grant again.
    #[inline]
    fn is_ready(&mut self, index: u32) {
        if self.accounts[index as usize].unready {
            self.note_ready(index);
        }
    }

    /// Slots that the sender has queued beyond its credits. Negative: credits for which it has told no use.
    #[inline]
    fn balance(&self, index: u32) -> i32 {
        let account = &self.accounts[index as usize];
        account.wanted_total.wrapping_sub(account.granted_total).wrapping_sub(self.region.start) as i32
    }

    #[inline]
    fn demand(&self, index: u32) -> u32 {
        self.balance(index).max(0) as u32
    }

    fn surplus(&self, index: u32) -> u32 {
        self.balance(index).saturating_neg().max(0) as u32
    }

    /// Whether [`Pool::grant`] might have credits to grant: for demand, at the end of a burst, or when a quarter of a large
    /// window is retrieved.
    #[inline]
    pub fn is_due(&self, index: u32) -> bool {
        let account = &self.accounts[index as usize];
        // Before its burst is over, a sender without demand has credits for all that it has told. So one credit packet at
        // the end of a burst is enough for a small window.
        self.balance(index) > 0
            || account.current == 0
            || (account.current <= account.low && (account.has_large_window() || self.is_quiet(index)))
    }

    /// Whether all that the sender has told is retrieved.
    #[inline]
    fn is_quiet(&self, index: u32) -> bool {
        self.balance(index).wrapping_neg() as u32 == self.accounts[index as usize].current
    }

    /// Credits granted to this sender beyond the starting ones, modulo 2^32.
    #[inline]
    pub fn granted_total(&self, index: u32) -> u32 {
        self.accounts[index as usize].granted_total
    }

    /// Whether the queue may be served, or credits may be reclaimed for it.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.has_work
    }

    fn indices(&self) -> impl Iterator<Item = u32> + Clone {
        (0..self.accounts.len() as u32).filter(|&index| self.accounts[index as usize].open)
    }
}

#[cfg(test)]
mod tests;
