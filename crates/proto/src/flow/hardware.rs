//! Receiver not ready (RNR), as InfiniBand hardware does it: no credits, retries by a timer. Source: Liu & Panda,
//! "hardware based"; InfiniBand Architecture, volume 1, 9.7.5.2.8 (RNR NAK). Only the sending side has state: the free
//! buffers that it knows, and its count of refusals. The receiving side is `Receiver::Unlimited`.
//!
//! The sender never waits for credit. A receiver without a buffer answers with an RNR NAK. The sender waits for the RNR
//! timer and retries. The endpoint holds back later packets of that connection. One refusal more than the retries ends
//! the connection; [`WITHOUT_LIMIT`] retries never do. On a link without such hardware the sender asks whether a buffer
//! is free, and a negative answer is the NAK: see `docs/explanation/flow-control.md`, "Receiver not ready".
//!
//! Worked exchange, 2 buffers, timer 10 us, 1 retry. Packets a and b leave; c is refused at 0 us and waits. At 10 us
//! the receiver has freed a buffer: c leaves, and the refusal count restarts. Packet d is refused at 12 us and at 22
//! us. The connection has failed: d and all packets behind it end in errors.
//!
//! The layers above get no information, so they cannot adapt. That is the known weakness of the scheme.

use super::{NotReady, unlimited};
use crate::time::Instant;

/// This number of retries means no limit. Source: InfiniBand Architecture, 11.6.2 (RNR retry count).
pub const WITHOUT_LIMIT: u8 = 7;

/// The sending side.
#[derive(Clone, Debug, Default)]
pub struct Sender {
    buffers: unlimited::Sender,
    /// Refusals since the last accepted packet, at most one more than the retries.
    refused: u8,
}

impl Sender {
    /// Known free buffers.
    #[inline]
    pub fn room(&self) -> u32 {
        self.buffers.room()
    }

    /// Fills `slots` of them.
    #[inline]
    pub fn spend(&mut self, slots: u32) {
        self.buffers.spend(slots);
    }

    /// The receiver has `slots` more free buffers.
    pub fn found_room(&mut self, slots: u32) {
        self.buffers.found_room(slots);
        self.refused = 0;
    }

    /// Known free buffers, if nothing was refused since.
    pub(super) fn at_rest(&self) -> Option<u32> {
        (self.refused == 0).then_some(self.room())
    }

    /// The receiver is not ready.
    ///
    /// - `timer_ns`: how long to wait after a refusal.
    /// - `retries`: attempts after the first one. [`WITHOUT_LIMIT`] means no limit.
    pub fn refused(&mut self, now: Instant, timer_ns: u64, retries: u8) -> NotReady {
        if retries == WITHOUT_LIMIT {
            return NotReady::RetryAt(now.plus_ns(timer_ns));
        }
        self.refused += 1;
        if self.refused > retries { NotReady::GiveUp } else { NotReady::RetryAt(now.plus_ns(timer_ns)) }
    }
}

#[cfg(feature = "explore")]
impl Sender {
    /// See `flow/canonical.rs`.
    pub(super) fn canonical(&self) -> [u32; 2] {
        let Sender { buffers, refused } = self;
        [buffers.room(), u32::from(*refused)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMER_NS: u64 = 10_000;

    const fn us(us: u64) -> Instant {
        Instant(us * 1000)
    }

    #[test]
    fn a_refusal_is_retried_after_the_timer_until_the_retries_are_used_up() {
        let mut sender = Sender::default();
        assert_eq!(sender.refused(us(0), TIMER_NS, 2), NotReady::RetryAt(us(10)));
        assert_eq!(sender.refused(us(12), TIMER_NS, 2), NotReady::RetryAt(us(22)));
        assert_eq!(sender.refused(us(22), TIMER_NS, 2), NotReady::GiveUp);
    }

    #[test]
    fn without_retries_the_first_refusal_gives_up() {
        assert_eq!(Sender::default().refused(us(0), TIMER_NS, 0), NotReady::GiveUp);
    }

    #[test]
    fn an_accepted_packet_resets_the_refusal_count() {
        let mut sender = Sender::default();
        for round in 0..10 {
            assert_eq!(sender.refused(us(round), TIMER_NS, 1), NotReady::RetryAt(us(round + 10)));
            sender.found_room(1);
            sender.spend(1);
        }
        assert_eq!(sender.room(), 0);
    }

    #[test]
    fn seven_retries_mean_no_limit() {
        let mut sender = Sender::default();
        let mut refused = |round| sender.refused(us(round), TIMER_NS, WITHOUT_LIMIT);
        assert!((0..1000).all(|round| refused(round) == NotReady::RetryAt(us(round + 10))));
    }
}
