//! Whether the largest datagrams pass a path ([`PathMtu`]). A router can drop those that are too large without a word.
//!
//! ```text
//! small ones arrive, large ones are lost, in 4 windows of numbers    new bundles are small
//! a large one arrives meanwhile                                      it was something else; begin again
//! a minute later                                                     the next bundles may be large; the first is a probe
//! the probe arrives                                                  new bundles are large again
//! it is lost                                                         small for 15 s, after the third probe for 10 minutes
//! ```
//! One loss counts for all datagrams that had left when it was found. So a full queue, which drops many at once, is one
//! loss. A bundle keeps its bytes: the driver sends the large ones that wait in fragments, and those that were made
//! together with a probe. A lost probe says nothing about congestion.
//!
//! Source: RFC 8899, sections 3, 4.3 and 5.1 (PROBE_TIMER, MAX_PROBES, PMTU_RAISE_TIMER), RFC 4821. What we changed: there are two
//! lengths, a probe is a bundle that has to leave anyway, and the first one comes after a minute, because losses may have had
//! another reason. This file does not know who finds losses.

use super::datagram::ReliabilityConfig;
use crate::time::Instant;

/// Windows of numbers in which large datagrams are lost, before they are no longer used.
const LOSSES: u32 = 4;
/// The first probe comes so much later.
const FIRST_PROBE_NS: u64 = 60_000_000_000;
/// The next one after a lost one, and what a probe waits at most until something is known of it.
const PROBE_NS: u64 = 15_000_000_000;
/// Probes that are lost one after the other.
const PROBES: u32 = 3;
/// The time after those until the next ones.
const RAISE_NS: u64 = 600_000_000_000;

/// Which datagrams are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Large,
    /// Small ones until then.
    Small(Instant),
    /// Large ones, until one has left.
    BeforeProbe,
    /// Small ones while the large one with this number is under way, at most until then.
    Probe(u64, Instant),
}

/// See the head of this file.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathMtu {
    base_bytes: u32,
    most_bytes: u32,
    losses: u32,
    /// Losses of numbers before this one are counted.
    counted_before: u64,
    in_use: Use,
    /// Probes that were lost since large datagrams were used last.
    lost_probes: u32,
    /// What the driver was told last.
    told_bytes: u32,
}

#[cfg(feature = "explore")]
impl PathMtu {
    /// Appends what decides about the future.
    pub(super) fn canonical(&self, row: &mut super::canonical::Row<'_>) {
        let PathMtu { base_bytes: _, most_bytes: _, losses, counted_before, in_use, lost_probes, told_bytes } =
            *self;
        row.push(losses);
        row.push(counted_before);
        let (kind, number, until) = match in_use {
            Use::Large => (0u32, 0, None),
            Use::Small(until) => (1, 0, Some(until)),
            Use::BeforeProbe => (2, 0, None),
            Use::Probe(number, until) => (3, number, Some(until)),
        };
        row.push(kind);
        row.push(number);
        row.maybe_time(until);
        row.push(lost_probes);
        row.push(told_bytes);
    }
}

impl PathMtu {
    pub(super) fn new(config: &ReliabilityConfig) -> PathMtu {
        PathMtu {
            base_bytes: config.base_datagram_bytes,
            most_bytes: config.datagram_bytes,
            losses: 0,
            counted_before: 0,
            in_use: Use::Large,
            lost_probes: 0,
            told_bytes: config.datagram_bytes,
        }
    }

    /// Whether a datagram may be too large for the path.
    #[inline]
    pub(super) fn is_large(&self, bytes: u32) -> bool {
        bytes > self.base_bytes
    }

    /// A datagram has left.
    #[inline]
    pub(super) fn sent(&mut self, now: Instant, number: u64, bytes: u32) {
        if self.in_use == Use::BeforeProbe && self.is_large(bytes) && self.told_bytes >= bytes {
            self.in_use = Use::Probe(number, now.plus_ns(PROBE_NS));
        }
    }

    /// The datagram with this number has arrived at the peer.
    #[inline]
    pub(super) fn arrived(&mut self, number: u64, bytes: u32) {
        if self.losses > 0 && self.is_large(bytes) {
            self.losses = 0;
        }
        if let Use::Probe(probe, _) = self.in_use
            && probe == number
        {
            (self.in_use, self.lost_probes) = (Use::Large, 0);
        }
    }

    /// A datagram with this number is lost, although one that left later has arrived. `next_number` has not left. Returns
    /// whether it was a probe.
    pub(super) fn lost(&mut self, now: Instant, number: u64, bytes: u32, next_number: u64) -> bool {
        match self.in_use {
            Use::Large if self.is_large(bytes) && number >= self.counted_before => {
                self.counted_before = next_number;
                self.losses += 1;
                if self.losses == LOSSES {
                    self.losses = 0;
                    self.in_use = Use::Small(now.plus_ns(FIRST_PROBE_NS));
                }
            }
            Use::Probe(probe, _) if probe == number => {
                self.probe_is_lost(now);
                return true;
            }
            _ => {}
        }
        false
    }

    fn probe_is_lost(&mut self, now: Instant) {
        self.lost_probes += 1;
        let wait_ns = if self.lost_probes.is_multiple_of(PROBES) { RAISE_NS } else { PROBE_NS };
        self.in_use = Use::Small(now.plus_ns(wait_ns));
    }

    /// The length of the largest datagram, if it has changed since the last call.
    #[inline]
    pub(super) fn change(&mut self, now: Instant) -> Option<u32> {
        match self.in_use {
            Use::Small(until) if until <= now => self.in_use = Use::BeforeProbe,
            // Nobody knows what has become of it: it was the last datagram, or its acknowledgement was lost.
            Use::Probe(_, until) if until <= now => self.probe_is_lost(now),
            _ => {}
        }
        let bytes = match self.in_use {
            Use::Large | Use::BeforeProbe => self.most_bytes,
            Use::Small(_) | Use::Probe(..) => self.base_bytes,
        };
        (bytes != core::mem::replace(&mut self.told_bytes, bytes)).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u32 = 1452;
    const SMALL: u32 = 1232;
    const SECOND: u64 = 1_000_000_000;

    fn mtu() -> PathMtu {
        PathMtu::new(&ReliabilityConfig::default())
    }

    /// A path that has lost large datagrams in four windows, the last one at this time.
    fn small_since(at: Instant) -> PathMtu {
        let mut mtu = mtu();
        for window in 0..4 {
            assert_eq!(mtu.change(at), None);
            assert!(!mtu.lost(at, 100 * window, LARGE, 100 * (window + 1)));
            assert!(!mtu.lost(at, 100 * window + 99, LARGE, 100 * (window + 1)));
        }
        assert_eq!((mtu.change(at), mtu.change(at)), (Some(SMALL), None));
        mtu
    }

    /// Lets the path send small datagrams each second until the driver may make large ones. Returns the seconds.
    fn seconds_until_large(mtu: &mut PathMtu, now: &mut Instant) -> u64 {
        for second in 0..10_000 {
            match mtu.change(*now) {
                None => {}
                Some(bytes) => {
                    assert_eq!(bytes, LARGE);
                    return second;
                }
            }
            mtu.sent(*now, 1, SMALL);
            mtu.arrived(1, SMALL);
            *now = now.plus_ns(SECOND);
        }
        panic!("never");
    }

    #[test]
    fn large_datagrams_are_used_again_after_a_probe_has_arrived() {
        let mut now = Instant(5 * SECOND);
        let mut mtu = small_since(now);
        assert_eq!(seconds_until_large(&mut mtu, &mut now), 60);
        mtu.sent(now, 500, SMALL);
        assert_eq!(mtu.change(now), None, "the probe has not left");
        mtu.sent(now, 501, LARGE);
        assert_eq!(mtu.change(now), Some(SMALL), "until it has arrived");
        mtu.arrived(500, SMALL);
        mtu.arrived(480, LARGE); // one that has left in fragments
        assert_eq!(mtu.change(now), None);
        mtu.arrived(501, LARGE);
        assert_eq!(mtu.change(now), Some(LARGE));
        assert_eq!(mtu.change(now.plus_ns(10_000 * SECOND)), None);
    }

    #[test]
    fn three_lost_probes_are_the_last_for_ten_minutes() {
        let mut now = Instant(0);
        let mut mtu = small_since(now);
        let mut waits = [0; 7];
        for (number, wait) in (1000..).zip(&mut waits) {
            *wait = seconds_until_large(&mut mtu, &mut now);
            mtu.sent(now, number, LARGE);
            assert_eq!(mtu.change(now), Some(SMALL));
            assert!(!mtu.lost(now, number - 1, LARGE, number + 1), "an earlier one");
            assert!(mtu.lost(now, number, LARGE, number + 1));
        }
        assert_eq!(waits, [60, 15, 15, 600, 15, 15, 600]);
    }

    #[test]
    fn a_probe_of_which_nothing_is_known_counts_as_lost() {
        let mut now = Instant(0);
        let mut mtu = small_since(now);
        assert_eq!(seconds_until_large(&mut mtu, &mut now), 60);
        mtu.sent(now, 7, LARGE);
        assert_eq!(mtu.change(now), Some(SMALL));
        assert_eq!(
            seconds_until_large(&mut mtu, &mut now),
            30,
            "15 s for the probe, and 15 s until the next"
        );
        mtu.sent(now, 8, LARGE);
        mtu.arrived(7, LARGE);
        assert_eq!(mtu.change(now), Some(SMALL), "it is too late");
    }

    #[test]
    fn losses_of_small_ones_and_of_one_queue_say_nothing() {
        let mut mtu = mtu();
        (0..1000).for_each(|number| assert!(!mtu.lost(Instant(0), number, SMALL, number + 1)));
        (0..1000).for_each(|number| assert!(!mtu.lost(Instant(0), number, LARGE, 1000)));
        for window in 10..1000 {
            mtu.lost(Instant(0), 100 * window, LARGE, 100 * (window + 1));
            mtu.arrived(100 * window + 1, SMALL);
            mtu.arrived(100 * window + 2, LARGE);
        }
        assert_eq!(mtu.change(Instant(0)), None);
    }
}
