//! Whether the largest datagrams pass a path ([`PathMtu`]). A router can drop those that are too large without a word.
//!
//! ```text
//! small ones arrive, large ones are lost, in 4 windows of numbers    new bundles are small for a minute
//! a large one arrives meanwhile                                      it was something else; begin again
//! ```
//! One loss counts for all datagrams that had left when it was found. So a full queue, which drops many at once, is one
//! loss. A bundle keeps its bytes: the driver sends the large ones that wait in fragments. Source: RFC 8899, section 4.3,
//! RFC 4821.
//!
//! This file does not know who finds losses.

use super::datagram::ReliabilityConfig;
use crate::time::Instant;

/// Windows of numbers in which large datagrams are lost, before they are no longer used.
const LOSSES: u32 = 4;
/// For so long. Then they are tried again.
const SMALL_NS: u64 = 60_000_000_000;

/// See the head of this file.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathMtu {
    base_bytes: u32,
    most_bytes: u32,
    losses: u32,
    /// Losses of numbers before this one are counted.
    counted_before: u64,
    /// Large datagrams are not used until this time.
    small_until: Option<Instant>,
    /// What the driver was told last.
    told_bytes: u32,
}

impl PathMtu {
    pub(super) fn new(config: &ReliabilityConfig) -> PathMtu {
        PathMtu {
            base_bytes: config.base_datagram_bytes,
            most_bytes: config.datagram_bytes,
            losses: 0,
            counted_before: 0,
            small_until: None,
            told_bytes: config.datagram_bytes,
        }
    }

    /// Whether a datagram may be too large for the path.
    #[inline]
    pub(super) fn is_large(&self, bytes: u32) -> bool {
        bytes > self.base_bytes
    }

    /// A datagram has arrived at the peer.
    #[inline]
    pub(super) fn arrived(&mut self, bytes: u32) {
        if self.losses > 0 && self.is_large(bytes) {
            self.losses = 0;
        }
    }

    /// A datagram with this number is lost, although one that left later has arrived. `next_number` has not left.
    pub(super) fn lost(&mut self, now: Instant, number: u64, bytes: u32, next_number: u64) {
        if !self.is_large(bytes) || number < self.counted_before || self.small_until.is_some() {
            return;
        }
        self.counted_before = next_number;
        self.losses += 1;
        if self.losses == LOSSES {
            self.losses = 0;
            self.small_until = Some(now.plus_ns(SMALL_NS));
        }
    }

    /// The length of the largest datagram, if it has changed since the last call.
    #[inline]
    pub(super) fn change(&mut self, now: Instant) -> Option<u32> {
        if self.small_until.is_some_and(|until| until <= now) {
            self.small_until = None;
        }
        let bytes = if self.small_until.is_some() { self.base_bytes } else { self.most_bytes };
        (bytes != core::mem::replace(&mut self.told_bytes, bytes)).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u32 = 1452;
    const SMALL: u32 = 1232;

    fn mtu() -> PathMtu {
        PathMtu::new(&ReliabilityConfig::default())
    }

    #[test]
    fn large_datagrams_are_lost_in_four_windows() {
        let mut mtu = mtu();
        for window in 0..4 {
            assert_eq!(mtu.change(Instant(window)), None);
            mtu.lost(Instant(window), 100 * window, LARGE, 100 * (window + 1));
            mtu.lost(Instant(window), 100 * window + 99, LARGE, 100 * (window + 1));
        }
        assert_eq!((mtu.change(Instant(4)), mtu.change(Instant(4))), (Some(SMALL), None));
        assert_eq!(mtu.change(Instant(SMALL_NS)), None);
        assert_eq!(mtu.change(Instant(SMALL_NS + 3)), Some(LARGE), "they are tried again");
    }

    #[test]
    fn losses_of_small_ones_and_of_one_queue_say_nothing() {
        let mut mtu = mtu();
        (0..1000).for_each(|number| mtu.lost(Instant(0), number, SMALL, number + 1));
        (0..1000).for_each(|number| mtu.lost(Instant(0), number, LARGE, 1000));
        for window in 10..1000 {
            mtu.lost(Instant(0), 100 * window, LARGE, 100 * (window + 1));
            mtu.arrived(SMALL);
            mtu.arrived(LARGE);
        }
        assert_eq!(mtu.change(Instant(0)), None);
    }
}
