//! Flow control for exhaustive exploration (feature `explore`), dispatched over the schemes. It gives the canonical
//! form of both halves of a pair, and the receiver's totals that the invariants need. A search can set a threshold.
//! `endpoint/canonical.rs` defines which totals are written as distances.

use alloc::vec::Vec;

use super::{Pool, Receiver, Sender};

/// The origin of the totals of a receiver half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// Granted credits that its sender knows of, modulo 2^32. `None` if the sender will read no more of this lease.
    pub granted_total: Option<u32>,
    /// Credit packets sent over the lifetime of the half, modulo 2^16, as its endpoint counts.
    pub packets_sent: u16,
    /// Of those, the read ones, as far as its endpoint knows. `None` without a lane to the sender.
    pub packets_read: Option<u16>,
}

impl Base {
    /// The distances for a half with these totals.
    pub(super) fn distances(self, granted_total: u32, packets_sent: u16, packets_read: u16) -> [u32; 3] {
        [
            self.granted_total.map_or(u32::MAX, |known| granted_total.wrapping_sub(known)),
            u32::from(packets_sent.wrapping_sub(self.packets_sent)),
            self.packets_read.map_or(u32::MAX, |read| u32::from(packets_read.wrapping_sub(read))),
        ]
    }
}

/// The receiver's totals of one pair. Unit: slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverTotals {
    /// Data slots that the sender can own now. `None` if they can move to other senders.
    pub quota_slots: Option<u32>,
    /// Granted credits that the sender does not know of yet.
    pub granted_unknown: u32,
    /// Retrieved slots that are not granted again.
    pub retrieved: u32,
    /// Slots that the receiver counts as the sender's: credits, credits in flight, and filled slots. `None` for schemes
    /// that do not count them.
    pub current: Option<u32>,
}

impl Sender {
    pub(crate) fn known_total(&self) -> u32 {
        match self {
            Sender::Unlimited(_) | Sender::Hardware(_) => 0,
            Sender::Static(sender)
            | Sender::StaticConnection(sender)
            | Sender::AdaptiveBacklog(sender)
            | Sender::Demand(sender) => sender.known_total(),
            Sender::Dynamic(sender) => sender.known_total(),
        }
    }

    pub(crate) fn canonical(&self, words: &mut Vec<u32>) {
        match self {
            Sender::Unlimited(sender) => words.push(sender.room()),
            Sender::Hardware(sender) => words.extend(sender.canonical()),
            Sender::Static(sender)
            | Sender::StaticConnection(sender)
            | Sender::AdaptiveBacklog(sender)
            | Sender::Demand(sender) => sender.canonical(words),
            Sender::Dynamic(sender) => sender.canonical(words),
        }
    }
}

impl Receiver {
    pub(crate) fn totals(&self, known_total: u32, pool: &Pool) -> Option<ReceiverTotals> {
        match self {
            Receiver::Unlimited => None,
            Receiver::Static(receiver) => Some(receiver.totals(known_total)),
            Receiver::StaticConnection(receiver) => Some(receiver.totals(known_total)),
            Receiver::AdaptiveBacklog(receiver) => Some(receiver.credits().totals(known_total)),
            Receiver::Dynamic(account) => Some(pool.dynamic.totals(*account, known_total)),
            Receiver::Demand(receiver) => Some(pool.demand().totals(receiver.account, known_total)),
        }
    }

    pub(crate) fn set_threshold(&mut self, threshold_slots: u32) {
        match self {
            Receiver::Static(receiver) => receiver.set_threshold(threshold_slots),
            Receiver::Unlimited
            | Receiver::StaticConnection(_)
            | Receiver::AdaptiveBacklog(_)
            | Receiver::Dynamic(_)
            | Receiver::Demand(_) => panic!("this scheme has no fixed threshold"),
        }
    }

    /// Totals are measured from `base`.
    pub(crate) fn canonical(&self, base: Base, words: &mut Vec<u32>) {
        match self {
            Receiver::Unlimited => {}
            Receiver::Static(receiver) => receiver.canonical(base, words),
            Receiver::StaticConnection(receiver) => receiver.canonical(base, words),
            Receiver::AdaptiveBacklog(receiver) => receiver.canonical(base, words),
            // The rest is in the pool.
            Receiver::Dynamic(account) => words.push(*account),
            Receiver::Demand(receiver) => words.push(receiver.account),
        }
    }
}
