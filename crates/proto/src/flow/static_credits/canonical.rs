//! Static credits for exhaustive exploration (feature `explore`): the canonical form, the receiver's totals, and a
//! threshold set by hand. See `flow/canonical.rs`.

use alloc::vec::Vec;

use super::{Receiver, Sender};
use crate::flow::{Base, ReceiverTotals};

impl Sender {
    pub(crate) fn known_total(&self) -> u32 {
        self.granted_total
    }

    pub(crate) fn canonical(&self, words: &mut Vec<u32>) {
        let Sender { quota_slots, all_total, granted_total, credits } = self; // the total is part of the origin
        let start_slots = all_total.wrapping_sub(*granted_total);
        words.extend([*quota_slots, start_slots, *credits]);
    }
}

impl Receiver {
    pub(crate) fn totals(&self, known_total: u32) -> ReceiverTotals {
        let granted_unknown = self.granted_total.wrapping_sub(known_total);
        let quota_slots = Some(self.quota_slots);
        ReceiverTotals { quota_slots, granted_unknown, retrieved: self.retrieved, current: None }
    }

    pub(crate) fn set_threshold(&mut self, threshold_slots: u32) {
        self.threshold = threshold_slots;
    }

    pub(crate) fn canonical(&self, base: Base, words: &mut Vec<u32>) {
        let Receiver {
            quota_slots: _,
            threshold,
            piggyback,
            retrieved,
            granted_total,
            packets_sent,
            packets_read,
        } = self;
        words.extend([*threshold, u32::from(*piggyback), *retrieved]);
        words.extend(base.distances(*granted_total, *packets_sent, *packets_read));
    }
}
