//! Dynamic credits: slots of one data region move to the senders that use them. Source: Prades, thesis, chapter 6. Our
//! changes and their reasons are in `docs/explanation/flow-control.md`.
//!
//! The receiver has one [`Pool`] for all senders. It counts the slots that no sender holds. For every sender it has the
//! credits that the sender holds (`current`), its quota (`intended`), and the counts of retrieved slots at which it
//! gets more (the thresholds). This file has the state of the pool and its construction. Its folder has the events of
//! the pool and the sending side ([`Sender`]). The pool also holds the mutant that a test has selected, of any scheme.
//!
//! Invariant I6 holds after every event, for every attached sender: `sum(thresholds) = current + retrieved + 1`. The
//! last threshold is reached one slot after all granted slots. So a sender without credit reaches a threshold, and
//! nothing deadlocks. Also, with `n` credit slots the sender has read the first of `n + 1` credit packets. So the
//! credit region does not overflow.
//!
//! Worked exchange, one credit slot (n = 1), region 8, two senders A and B, each with 1 credit and an intended quota of
//! 4:
//! ```text
//! A -> R   a               R retrieves it: the first threshold of A, 1, is reached. 4 div 2 + 1 = 3 become the new one
//! R -> A   credit total 3  thresholds of A: 1, 3
//! A -> R   b, c, d         b reaches 1: 3 more. That was n + 1 thresholds: A's first monitoring point, A becomes
//!                          medium; at the second it becomes high, at the third it takes intended quota from B, the
//!                          last of low
//! R -> B   return request  if B's quota is down to the guaranteed credits and it holds more
//! B -> R   return response
//! ```

mod activity_control;
mod attach;
#[cfg(feature = "explore")]
mod canonical;
mod grant;
mod report;
mod sender;

use alloc::vec::Vec;

pub use report::{AccountView, Tally};
pub use sender::Sender;

use super::activity::Activity;
use super::mutant::Mutant;
use super::region::RegionSlots;
use crate::config::{AttachPolicy, DataRegion, MAX_CREDIT_SLOTS};
use crate::event::Peer;
use crate::mailbox::quota;

/// The account of one sender.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Account {
    /// Slots retrieved since the last threshold and not piggybacked since.
    retrieved: u32,
    /// Credits piggybacked since the last threshold.
    piggybacked: u32,
    /// Slots that the sender holds: its credits, credits in flight, and filled slots.
    current: u32,
    /// Its intended quota.
    intended: u32,
    /// Size of its lane.
    lane_slots: u32,
    /// The value of `current` that piggybacking may reach. Follows from the quota, the lane and `blocked`.
    piggyback_to: u32,
    granted_total: u32,
    /// Explicit credit packets sent, modulo 2^16.
    packets_sent: u16,
    /// Of those, the ones that the sender has read.
    packets_read: u16,
    /// A compulsory return request is queued or pending.
    blocked: bool,
    /// Number of times that it is not chosen as a victim.
    grace: u8,
    /// It was active since it was last considered as a victim.
    recently_active: bool,
    /// Thresholds crossed since its last monitoring point.
    crossed: u32,
    /// Of the slots retrieved for the next threshold, those of requests and responses.
    control: u32,
    /// The first `n + 1` entries are in use; the current threshold is the first.
    thresholds: [u32; MAX_CREDIT_SLOTS as usize + 1],
    /// The sender. `None` before it has attached and after it has detached.
    owner: Option<Peer>,
}

/// The data region of an endpoint and the accounts of its senders.
#[derive(Clone, Debug)]
pub struct Pool {
    credit_slots: u32,
    piggyback: bool,
    grace_points: u8,
    region: RegionSlots,
    /// Intended quota that no sender has.
    unassigned_slots: u32,
    accounts: Vec<Account>,
    /// Accounts without an owner: those of expected senders with the attach policy `Start`.
    placeholders: core::ops::Range<u32>,
    free: Vec<u32>,
    activity: Activity,
    /// Senders that need a compulsory return request.
    requests: Vec<Peer>,
    tally: Tally,
    #[cfg(any(test, feature = "mutants"))]
    mutant: Option<Mutant>,
}

impl Pool {
    /// A pool without senders, or with all expected senders under the attach policy `Start`.
    ///
    /// # Panics
    /// If the region is too small for the senders' starting credits, or these are fewer than `credit_slots`.
    pub fn new(region: &DataRegion, credit_slots: u32, piggyback: bool) -> Pool {
        let DataRegion { slots, peers, start_slots, attach_policy, grace_points } = *region;
        let region = RegionSlots::new(region, credit_slots);
        let mut pool = Pool {
            credit_slots,
            piggyback,
            grace_points,
            unassigned_slots: region.free,
            region,
            accounts: Vec::new(),
            placeholders: 0..0,
            free: Vec::new(),
            activity: Activity::default(),
            requests: Vec::new(),
            tally: Tally::default(),
            #[cfg(any(test, feature = "mutants"))]
            mutant: None,
        };
        if attach_policy == AttachPolicy::Start {
            for index in 0..peers {
                let intended = quota(slots, peers, index, true);
                pool.unassigned_slots -= intended - start_slots;
                pool.open(intended, u32::MAX);
            }
            pool.placeholders = 0..peers;
        }
        pool
    }

    /// The empty pool of endpoints with another scheme.
    pub fn unused() -> Pool {
        Pool::new(&DataRegion { start_slots: 1, ..DataRegion::default() }, 1, false)
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
    pub(crate) fn breaks(&self, mutant: Mutant) -> bool {
        #[cfg(any(test, feature = "mutants"))]
        return self.mutant == Some(mutant);
        #[cfg(not(any(test, feature = "mutants")))]
        {
            let _ = mutant;
            false
        }
    }

    /// Recomputes the piggyback limit after a change of quota, lane or `blocked`.
    fn limit_piggybacking(&mut self, index: u32) {
        let may = self.piggyback && !self.accounts[index as usize].blocked;
        let account = &mut self.accounts[index as usize];
        // Thresholds bring a sender up to `n` above its quota. Piggybacking must not exceed that. Otherwise a sender
        // that lost its quota would keep its credits while there is reverse traffic.
        let most = account.intended.saturating_add(self.credit_slots).min(account.lane_slots);
        account.piggyback_to = if may { most } else { 0 };
    }
}

#[cfg(test)]
mod tests;
