//! Adaptive backlog, the receiving side: a connection starts with few buffers and gets more when its sender had to
//! wait. Source: Liu & Panda, "user-level dynamic". The sending side is `static_credits::Sender` with fewer starting
//! credits.
//!
//! A sender without credit puts a message into its backlog and marks the packets that leave from there. The endpoint
//! does this. `Receiver::raise` answers a marked packet: it raises the buffers of that connection, by a fixed number or
//! by doubling, up to a maximum. It never lowers them. Credits return as in [`super::static_connection`]. New buffers
//! become credits with the next return.
//!
//! Worked exchange, 1 starting buffer, exponential. Packet a leaves; b and c wait. The receiver retrieves a, and an ECM
//! returns 1 credit. Packet b leaves, marked. Its retrieval makes 2 buffers, so 2 credits return: the slot of b and the
//! new buffer. Packet c leaves, marked, which makes 4 buffers. Now the sender fills up to 4 slots before it waits.
//!
//! In the paper every message fits into one buffer. Here a message may have several packets of several slots. So a
//! packet carries the mark, because a packet waits for buffers, and a buffer is a slot. The maximum is the number of
//! slots that the link has reserved. So no packet arrives without a slot, however the buffers grow.
//!
//! While the buffers grow, more ECMs can be due than there are slots for them. Then an ECM waits until an earlier one
//! was read. This cannot deadlock: the sender finds at least one credit in the ECMs that it reads.

use super::static_connection::{self, ecm_threshold};
use crate::config::Growth;
use core::num::NonZeroU32;

/// The receiving side.
#[derive(Clone, Debug)]
pub struct Receiver {
    credits: static_connection::Receiver,
    growth: Growth,
    threshold_slots: Option<NonZeroU32>,
    buffers_slots: u32,
    most_slots: u32,
}

impl Receiver {
    /// - `start_slots`: starting number of buffers. `most_slots`: their maximum.
    pub(super) fn new(
        growth: Growth,
        threshold_slots: Option<NonZeroU32>,
        start_slots: u32,
        most_slots: u32,
    ) -> Receiver {
        let buffers_slots = start_slots.min(most_slots);
        let credits = static_connection::Receiver::new(buffers_slots, threshold_slots);
        Receiver { credits, growth, threshold_slots, buffers_slots, most_slots }
    }

    /// The calculator that returns the credits.
    #[inline]
    pub(super) fn credits(&self) -> &static_connection::Receiver {
        &self.credits
    }

    /// The calculator that returns the credits.
    #[inline]
    pub(super) fn credits_mut(&mut self) -> &mut static_connection::Receiver {
        &mut self.credits
    }

    /// A packet has arrived that had waited for credit. Returns the new number of buffers. Unit: slots.
    pub(super) fn raise(&mut self) -> u32 {
        let wanted = match self.growth {
            Growth::Linear { slots } => self.buffers_slots.saturating_add(slots.get()),
            Growth::Exponential => self.buffers_slots.saturating_mul(2),
        };
        let raised = wanted.min(self.most_slots);
        self.credits.gather(raised - self.buffers_slots);
        self.credits.resize(raised, ecm_threshold(raised, self.threshold_slots));
        self.buffers_slots = raised;
        raised
    }
}

#[cfg(feature = "explore")]
impl Receiver {
    /// See `flow/canonical.rs`.
    pub(super) fn canonical(&self, base: super::Base, words: &mut alloc::vec::Vec<u32>) {
        let Receiver { credits, growth: _, threshold_slots: _, buffers_slots, most_slots } = self;
        credits.canonical(base, words);
        words.extend([*buffers_slots, *most_slots]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raised(growth: Growth, start_slots: u32, most_slots: u32) -> [u32; 6] {
        let mut receiver = Receiver::new(growth, None, start_slots, most_slots);
        [(); 6].map(|()| receiver.raise())
    }

    #[test]
    fn buffers_grow_by_a_number_or_double_up_to_the_maximum() {
        let by = |slots| Growth::Linear { slots: NonZeroU32::new(slots).expect("not 0") };
        assert_eq!(raised(by(1), 4, 63), [5, 6, 7, 8, 9, 10]);
        assert_eq!(raised(by(10), 4, 30), [14, 24, 30, 30, 30, 30]);
        assert_eq!(raised(Growth::Exponential, 4, 63), [8, 16, 32, 63, 63, 63]);
        assert_eq!(raised(Growth::Exponential, 1, 1), [1; 6]);
    }

    #[test]
    fn new_buffers_become_credits_and_raise_the_threshold() {
        let mut receiver = Receiver::new(Growth::Exponential, None, 2, 16);
        receiver.credits.gather(1);
        assert_eq!(receiver.credits.grant(2), Some(1)); // threshold 1 of 2
        receiver.credits.gather(1);
        assert_eq!(receiver.raise(), 4); // 2 new ones
        let view = receiver.credits.view();
        assert_eq!((view.quota_slots, view.threshold), (Some(4), Some(2)));
        assert_eq!((view.current, view.retrieved, view.granted_total), (Some(1), Some(3), Some(1)));
        assert_eq!(receiver.credits.grant(2), Some(3)); // threshold 2 of 4
        receiver.credits.gather(1);
        assert_eq!(receiver.credits.grant(2), None);
        assert_eq!(receiver.credits.granted_total(), 4);
    }

    #[test]
    fn a_configured_threshold_applies_once_there_are_enough_buffers() {
        let mut receiver = Receiver::new(Growth::Exponential, NonZeroU32::new(3), 1, 16);
        receiver.credits.gather(1);
        assert_eq!(receiver.credits.grant(9), Some(1)); // one buffer: a threshold of 3 would never be reached
        receiver.raise();
        receiver.raise();
        assert_eq!(receiver.credits.grant(9), Some(3)); // 3 new ones
        receiver.credits.gather(2);
        assert_eq!(receiver.credits.grant(9), None);
    }
}
