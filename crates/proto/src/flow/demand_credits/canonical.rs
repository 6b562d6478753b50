//! The canonical form of credits on demand. See `flow/canonical.rs`.

use alloc::vec::Vec;

use super::{Account, Pool};
use crate::event::Peer;
use crate::flow::{Base, ReceiverTotals};

impl Pool {
    pub(crate) fn totals(&self, index: u32, known_total: u32) -> ReceiverTotals {
        let account = &self.accounts[index as usize];
        let granted_unknown = account.granted_total.wrapping_sub(known_total);
        ReceiverTotals { quota_slots: None, granted_unknown, retrieved: 0, current: Some(account.current) }
    }

    pub(crate) fn canonical(&self, base_of: impl Fn(Peer) -> Base, words: &mut Vec<u32>) {
        let Pool {
            credit_slots: _,  // constant
            reserve_slots: _, // constant
            quantum_slots: _, // constant
            most_slots: _,    // constant
            region,
            accounts,
            unused,
            queue,
            turns,
            borrowers,
            holders,
            deferred,
            granted_slots,
            expected_slots: _, // the sum over the accounts
            grown_slots: _,    // the same
            lacks_prefetch,
            has_work,
            calm: _,   // decides only how much is looked at
            tally: _,  // counted, not used
            mutant: _, // constant
        } = self;
        words.extend(region.canonical());
        words.push(u32::from(*has_work) | u32::from(*lacks_prefetch) << 1);
        let queued = self.indices().filter(|&index| accounts[index as usize].queued);
        words.push(queue.len());
        words.extend(queue.in_order(queued));
        words.push(holders.len() as u32);
        words.extend(holders.iter());
        words.push(deferred.len() as u32);
        words.extend(deferred.iter());
        // Of so few accounts only matters who has borrowed.
        let mut borrowers = *borrowers;
        assert!(accounts.len() <= borrowers.len(), "exploration has few senders");
        borrowers.sort_unstable();
        words.extend(&borrowers[..accounts.len()]);
        words.push(unused.len() as u32);
        words.extend(unused);
        for index in self.indices() {
            let account = &accounts[index as usize];
            words.push(index);
            account.canonical(base_of(account.owner), *turns, words);
            let deferred_for = granted_slots.wrapping_sub(account.deferred_at).min(self.most_deferred() + 1);
            words.push(if deferred.contains(index) { deferred_for } else { 0 });
        }
    }
}

impl Account {
    fn canonical(&self, base: Base, turns: u32, words: &mut Vec<u32>) {
        let Account {
            owner,
            current,
            window,
            beyond,
            low: _,    // follows from the window
            middle: _, // the same
            most,
            granted_total,
            wanted_total,
            due_total: _, // follows from the others
            turn_left,
            waits_since,
            ahead,
            expected,
            deferred_at: _, // above
            packets_sent,
            packets_read,
            queued,
            unready,
            asked,
            used,
            overdue,
            open: _,
        } = self;
        words.extend([
            owner.0,
            *current,
            *window,
            *beyond,
            *most,
            wanted_total.wrapping_sub(*granted_total),
            *expected,
        ]);
        words.extend(base.distances(*granted_total, *packets_sent, *packets_read));
        let waits = [*turn_left, ahead.wrapping_sub(turns.wrapping_sub(*waits_since))];
        words.extend(if *queued { waits } else { [0; 2] });
        words.push(
            [*queued, *unready, *asked, *used, *overdue]
                .iter()
                .fold(0, |word, flag| word << 1 | u32::from(*flag)),
        );
    }
}
