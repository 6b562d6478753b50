//! Dynamic credits for exhaustive exploration (see `flow/canonical.rs`): the canonical form, and the totals that
//! invariants are checked with. An absent sender has an account but no endpoint, and takes quota from others.

use alloc::vec::Vec;

use super::{Account, Pool, Sender};
use crate::event::Peer;
use crate::flow::activity::Level;
use crate::flow::{Base, ReceiverTotals};

impl Sender {
    pub(crate) fn known_total(&self) -> u32 {
        self.credits.known_total()
    }

    pub(crate) fn canonical(&self, words: &mut Vec<u32>) {
        let Sender { credits } = self;
        credits.canonical(words);
    }
}

impl Pool {
    pub(crate) fn totals(&self, index: u32, known_total: u32) -> ReceiverTotals {
        let account = &self.accounts[index as usize];
        let granted_unknown = account.granted_total.wrapping_sub(known_total);
        let (retrieved, current) = (account.retrieved, Some(account.current));
        ReceiverTotals { quota_slots: None, granted_unknown, retrieved, current }
    }

    /// Starting credits of expected senders that have not attached. Unit: slots.
    pub fn expected_slots(&self) -> u32 {
        self.placeholders.clone().map(|index| self.accounts[index as usize].current).sum()
    }

    /// An absent expected sender behaves as if it were at a monitoring point. Its activity rises one level; at the
    /// highest level it steals quota. Returns whether there is such a sender.
    pub(crate) fn steal_for_absent_sender(&mut self) -> bool {
        let Some(phantom) = self.placeholders.clone().next() else { return false };
        let account = &mut self.accounts[phantom as usize];
        account.crossed = self.credit_slots;
        self.monitor(phantom);
        true
    }

    pub(crate) fn canonical(&self, base_of: impl Fn(Peer) -> Base, words: &mut Vec<u32>) {
        let Pool {
            credit_slots,
            piggyback: _,    // constant
            grace_points: _, // constant
            region,
            unassigned_slots,
            accounts,
            placeholders,
            free,
            activity,
            requests,
            tally: _,  // counted, not used
            mutant: _, // constant
        } = self;
        words.extend(region.canonical());
        words.push(*unassigned_slots);
        words.extend([placeholders.start, placeholders.end, free.len() as u32, requests.len() as u32]);
        words.extend(free);
        words.extend(requests.iter().map(|peer| peer.0));
        for level in [Level::High, Level::Medium, Level::Low, Level::Null] {
            words.extend(activity.of(level));
            words.push(u32::MAX);
        }
        let open = |index: &u32| !free.contains(index);
        for index in (0..accounts.len() as u32).filter(open) {
            let account = &accounts[index as usize];
            let base = account.owner.map(&base_of).unwrap_or_default();
            words.push(index);
            account.canonical(base, *credit_slots, words);
        }
    }
}

impl Account {
    fn canonical(&self, base: Base, credit_slots: u32, words: &mut Vec<u32>) {
        let Account {
            retrieved,
            piggybacked,
            current,
            intended,
            lane_slots,
            piggyback_to,
            granted_total,
            packets_sent,
            packets_read,
            blocked,
            grace,
            recently_active,
            crossed,
            control,
            thresholds,
            owner,
        } = self;
        words.extend([*retrieved, *piggybacked, *current, *intended, *lane_slots, *piggyback_to]);
        words.extend(base.distances(*granted_total, *packets_sent, *packets_read));
        words.push(u32::from(*recently_active) << 9 | u32::from(*blocked) << 8 | u32::from(*grace));
        words.extend([*crossed, *control]);
        words.extend(&thresholds[..=credit_slots as usize]);
        words.push(owner.map_or(u32::MAX, |owner| owner.0));
    }
}
