//! What distinguishes the states of a pair's two sides, for exhaustive exploration (feature `explore`). See
//! `endpoint/canonical.rs` for what is written as a distance from what.

use alloc::vec::Vec;

use super::{Receiver, Sender, static_credits, unlimited};

/// The books of the receiving side of a pair. Unit: slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverBooks {
    /// Granted, and not known to the sender yet.
    pub granted_unknown: u32,
    /// Retrieved, and not granted again.
    pub retrieved: u32,
}

impl Sender {
    pub(crate) fn known_total(&self) -> u32 {
        match self {
            Sender::Unlimited(_) => 0,
            Sender::Static(sender) => sender.known_total(),
        }
    }

    pub(crate) fn canonical(&self, words: &mut Vec<u32>) {
        match self {
            Sender::Unlimited(sender) => sender.canonical(words),
            Sender::Static(sender) => sender.canonical(words),
        }
    }
}

impl Receiver {
    pub(crate) fn books(&self, known_total: u32) -> Option<ReceiverBooks> {
        match self {
            Receiver::Unlimited => None,
            Receiver::Static(receiver) => Some(receiver.books(known_total)),
        }
    }

    pub(crate) fn set_threshold(&mut self, threshold_slots: u32) {
        match self {
            Receiver::Unlimited => panic!("unlimited has no threshold"),
            Receiver::Static(receiver) => receiver.threshold = threshold_slots,
        }
    }

    /// `known_total`, `read`: what the sender knows, from which totals are measured.
    pub(crate) fn canonical(&self, known_total: u32, read: u16, words: &mut Vec<u32>) {
        match self {
            Receiver::Unlimited => {}
            Receiver::Static(receiver) => receiver.canonical(known_total, read, words),
        }
    }
}

impl unlimited::Sender {
    fn canonical(&self, words: &mut Vec<u32>) {
        let unlimited::Sender { room_slots } = self;
        words.push(*room_slots);
    }
}

impl static_credits::Sender {
    fn known_total(&self) -> u32 {
        self.limit_total.wrapping_sub(self.quota_slots)
    }

    fn canonical(&self, words: &mut Vec<u32>) {
        let static_credits::Sender { quota_slots, limit_total, spent_total } = self;
        words.extend([*quota_slots, limit_total.wrapping_sub(*spent_total)]);
    }
}

impl static_credits::Receiver {
    fn books(&self, known_total: u32) -> ReceiverBooks {
        ReceiverBooks {
            granted_unknown: self.granted_total.wrapping_sub(known_total),
            retrieved: self.retrieved,
        }
    }

    fn canonical(&self, known_total: u32, read: u16, words: &mut Vec<u32>) {
        let static_credits::Receiver {
            threshold,
            piggyback,
            retrieved,
            granted_total,
            packets_sent,
            packets_read,
        } = self;
        words.extend([*threshold, u32::from(*piggyback), *retrieved]);
        words.push(granted_total.wrapping_sub(known_total));
        words.extend([*packets_sent, *packets_read].map(|total| u32::from(total.wrapping_sub(read))));
    }
}
