//! What distinguishes the states of flow control, for exhaustive exploration (feature `explore`). See
//! `endpoint/canonical.rs` for what is written as a distance from what.

use alloc::vec::Vec;

use super::{Pool, Receiver, Sender};

const UNEXPLORED: &str = "exploration has no canonical form for this scheme";

/// The books of the receiving side of a pair. Unit: slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverBooks {
    /// Granted, and not known to the sender yet.
    pub granted_unknown: u32,
    /// Retrieved, and not granted again.
    pub retrieved: u32,
    /// What the receiver believes that the sender has: credits, on the way to it, and in slots not retrieved yet. `None` for
    /// schemes that need not know.
    pub current: Option<u32>,
}

impl Sender {
    pub(crate) fn known_total(&self) -> u32 {
        match self {
            Sender::Unlimited(_) => 0,
            Sender::Hardware(_) => panic!("{UNEXPLORED}"),
            Sender::Static(sender) | Sender::StaticConnection(sender) | Sender::AdaptiveBacklog(sender) => {
                sender.known_total()
            }
            Sender::Dynamic(sender) => sender.known_total(),
        }
    }

    pub(crate) fn canonical(&self, words: &mut Vec<u32>) {
        match self {
            Sender::Unlimited(sender) => words.push(sender.room()),
            Sender::Hardware(_) => panic!("{UNEXPLORED}"),
            Sender::Static(sender) | Sender::StaticConnection(sender) | Sender::AdaptiveBacklog(sender) => {
                sender.canonical(words);
            }
            Sender::Dynamic(sender) => sender.canonical(words),
        }
    }
}

impl Receiver {
    pub(crate) fn books(&self, known_total: u32, pool: &Pool) -> Option<ReceiverBooks> {
        match self {
            Receiver::Unlimited => None,
            Receiver::Static(receiver) => Some(receiver.books(known_total)),
            Receiver::StaticConnection(_) | Receiver::AdaptiveBacklog(_) => panic!("{UNEXPLORED}"),
            Receiver::Dynamic(account) => Some(pool.books(*account, known_total)),
        }
    }

    pub(crate) fn set_threshold(&mut self, threshold_slots: u32) {
        match self {
            Receiver::Static(receiver) => receiver.set_threshold(threshold_slots),
            Receiver::Unlimited
            | Receiver::StaticConnection(_)
            | Receiver::AdaptiveBacklog(_)
            | Receiver::Dynamic(_) => panic!("there is no fixed threshold"),
        }
    }

    /// `known_total`, `read`: what the sender knows, from which totals are measured.
    pub(crate) fn canonical(&self, known_total: u32, read: u16, words: &mut Vec<u32>) {
        match self {
            Receiver::Unlimited => {}
            Receiver::Static(receiver) => receiver.canonical(known_total, read, words),
            Receiver::StaticConnection(_) | Receiver::AdaptiveBacklog(_) => panic!("{UNEXPLORED}"),
            Receiver::Dynamic(account) => words.push(*account), // the rest is in the pool
        }
    }
}
