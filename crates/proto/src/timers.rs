//! Timers: at most one per peer, in order of time. This file does not read a clock.

use alloc::collections::{BTreeMap, BTreeSet};

use crate::event::Peer;
use crate::time::Instant;

/// The timers. Bound: one entry per peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    by_time: BTreeSet<(Instant, Peer)>,
    by_peer: BTreeMap<Peer, Instant>,
}

impl Timers {
    /// Whether no timer is set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }

    /// The earliest expiry time.
    #[inline]
    pub fn earliest(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// The peers with a timer, in order.
    #[cfg(feature = "explore")]
    pub fn peers(&self) -> impl Iterator<Item = Peer> + '_ {
        self.by_peer.keys().copied()
    }

    /// Sets the timer of `peer`, replacing an earlier one.
    pub fn set(&mut self, peer: Peer, at: Instant) {
        self.cancel(peer);
        self.by_time.insert((at, peer));
        self.by_peer.insert(peer, at);
    }

    /// Cancels the timer of `peer`, if it has one.
    pub fn cancel(&mut self, peer: Peer) {
        if let Some(at) = self.by_peer.remove(&peer) {
            self.by_time.remove(&(at, peer));
        }
    }

    /// Removes the first timer that has expired at `now`.
    pub fn take_due(&mut self, now: Instant) -> Option<Peer> {
        let (at, peer) = *self.by_time.first()?;
        if at > now {
            return None;
        }
        self.cancel(peer);
        Some(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_taken_in_order_and_only_when_due() {
        let mut timers = Timers::default();
        assert_eq!(timers.earliest(), None);
        timers.set(Peer(1), Instant(30));
        timers.set(Peer(2), Instant(10));
        timers.set(Peer(3), Instant(20));
        timers.set(Peer(2), Instant(40)); // instead of 10
        timers.cancel(Peer(3));
        assert_eq!(timers.earliest(), Some(Instant(30)));
        assert_eq!(timers.take_due(Instant(29)), None);
        assert_eq!(timers.take_due(Instant(30)), Some(Peer(1)));
        assert_eq!(timers.take_due(Instant(50)), Some(Peer(2)));
        assert_eq!((timers.take_due(Instant(50)), timers.earliest()), (None, None));
    }
}
