//! Which datagrams pass a path ([`PathMtu`]). A router can drop those that are too large without a word.
//!
//! ```text
//! small ones arrive, large ones are lost, in 4 windows of numbers    new bundles are small, and a search begins
//! a large one arrives meanwhile                                      it was something else; begin again
//! the search: the next bundles may have a common length in between   the first of them that is longer than what passes is a
//!                                                                    probe, and those behind it are short again
//! the probe arrives                                                  its length passes; the search continues above it
//! it is lost                                                         the search continues below it
//! nothing is left in between                                         bundles have the longest length that passes
//! a minute later                                                     another search, with the largest datagram first
//! that has found nothing                                             another one after 15 s, after the third after 10 minutes
//! ```
//! One loss counts for all datagrams that had left when it was found. So a full queue, which drops many at once, is one
//! loss. A bundle keeps its bytes: the driver sends the large ones that wait in fragments, and those that were made
//! together with a probe. A lost probe says nothing about congestion.
//!
//! Source: RFC 8899, sections 3, 4.3, 5.1 and 5.3.2 (PROBE_TIMER, MAX_PROBES, PMTU_RAISE_TIMER, a table of lengths), RFC 1191,
//! section 7 (plateaus), RFC 4821. What we changed: a probe is a bundle that has to leave anyway, each length is tried once in a
//! search, and the largest datagrams are used at first. This file does not know who finds losses.

use super::datagram::ReliabilityConfig;
use crate::time::Instant;

/// Windows of numbers in which large datagrams are lost, before they are no longer used.
const LOSSES: u32 = 4;
/// The first search that begins with the largest datagram comes so much later than the one that has followed the losses.
const FIRST_RAISE_NS: u64 = 60_000_000_000;
/// The next one after one in vain, and what a probe waits at most until something is known of it.
const PROBE_NS: u64 = 15_000_000_000;
/// Searches in vain, one after the other.
const SEARCHES: u32 = 3;
/// The time after those until the next ones.
const RAISE_NS: u64 = 600_000_000_000;

/// The headers of IPv6 and UDP. Those of IPv4 are shorter. Unit: bytes.
const HEADER_BYTES: u32 = 48;
/// MTUs of tunnels, of Ethernet with small and with large frames, and of the plateaus that RFC 1191 names. Unit: bytes.
const COMMON_MTUS: [u32; 15] =
    [1300, 1380, 1400, 1420, 1450, 1476, 1492, 1500, 2002, 4096, 4352, 8166, 8900, 8950, 9000];

/// Which datagrams are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Those of which it is known that they pass. A search begins then, if some may not pass.
    Known(Option<Instant>),
    /// The same, while a search goes on: the next probe is chosen.
    Search,
    /// Up to so many bytes, until one has left that is longer than what passes.
    BeforeProbe(u32),
    /// Those that pass, while the probe with this number and so many bytes is under way, at most until then.
    Probe(u64, u32, Instant),
}

/// See the head of this file.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathMtu {
    base_bytes: u32,
    most_bytes: u32,
    /// The longest datagrams that pass, as far as is known.
    passing_bytes: u32,
    /// Datagrams of so many bytes do not pass, as far as is known. More than `most_bytes`: none is known.
    failing_bytes: u32,
    losses: u32,
    /// The shortest of those that count in `losses`.
    least_lost_bytes: u32,
    /// Losses of numbers before this one are counted.
    counted_before: u64,
    in_use: Use,
    /// Searches that have ended below the largest datagram since there were losses.
    searches: u32,
    /// What the driver was told last.
    told_bytes: u32,
}

#[cfg(feature = "explore")]
impl PathMtu {
    /// Appends what decides about the future.
    pub(super) fn canonical(&self, row: &mut super::canonical::Row<'_>) {
        let PathMtu { base_bytes: _, most_bytes: _, passing_bytes, failing_bytes, losses, .. } = *self;
        let PathMtu { least_lost_bytes, counted_before, in_use, searches, told_bytes, .. } = *self;
        row.push(passing_bytes);
        row.push(failing_bytes);
        row.push(losses);
        row.push(least_lost_bytes);
        row.push(counted_before);
        let (kind, number, bytes, until) = match in_use {
            Use::Known(until) => (0u32, 0, 0, until),
            Use::Search => (1, 0, 0, None),
            Use::BeforeProbe(bytes) => (2, 0, bytes, None),
            Use::Probe(number, bytes, until) => (3, number, bytes, Some(until)),
        };
        row.push(kind);
        row.push(number);
        row.push(bytes);
        row.maybe_time(until);
        row.push(searches);
        row.push(told_bytes);
    }
}

impl PathMtu {
    pub(super) fn new(config: &ReliabilityConfig) -> PathMtu {
        PathMtu {
            base_bytes: config.base_datagram_bytes,
            most_bytes: config.datagram_bytes,
            passing_bytes: config.datagram_bytes,
            failing_bytes: u32::MAX,
            losses: 0,
            least_lost_bytes: u32::MAX,
            counted_before: 0,
            in_use: Use::Known(None),
            searches: 0,
            told_bytes: config.datagram_bytes,
        }
    }

    /// Whether a datagram may be too large for the path.
    #[inline]
    pub(super) fn is_large(&self, bytes: u32) -> bool {
        bytes > self.base_bytes
    }

    /// Whether it may be, and has not left in fragments.
    #[inline]
    fn is_large_and_whole(&self, bytes: u32) -> bool {
        self.is_large(bytes) && bytes <= self.told_bytes
    }

    /// A datagram has left.
    #[inline]
    pub(super) fn sent(&mut self, now: Instant, number: u64, bytes: u32) {
        if let Use::BeforeProbe(most) = self.in_use
            && self.told_bytes == most
            && (self.passing_bytes + 1..=most).contains(&bytes)
        {
            self.in_use = Use::Probe(number, bytes, now.plus_ns(PROBE_NS));
        }
    }

    /// The datagram with this number has arrived at the peer.
    #[inline]
    pub(super) fn arrived(&mut self, number: u64, bytes: u32) {
        if self.losses > 0 && self.is_large_and_whole(bytes) {
            (self.losses, self.least_lost_bytes) = (0, u32::MAX);
        }
        if let Use::Probe(probe, bytes, _) = self.in_use
            && probe == number
        {
            (self.passing_bytes, self.in_use) = (bytes, Use::Search);
        }
    }

    /// A datagram with this number is lost, although one that left later has arrived. `next_number` has not left. Returns
    /// whether it was a probe.
    pub(super) fn lost(&mut self, number: u64, bytes: u32, next_number: u64) -> bool {
        if let Use::Probe(probe, bytes, _) = self.in_use
            && probe == number
        {
            self.probe_is_lost(bytes);
            return true;
        }
        if self.is_large_and_whole(bytes) && number >= self.counted_before {
            self.counted_before = next_number;
            self.losses += 1;
            self.least_lost_bytes = self.least_lost_bytes.min(bytes);
            if self.losses == LOSSES {
                self.failing_bytes = self.least_lost_bytes;
                (self.losses, self.least_lost_bytes) = (0, u32::MAX);
                (self.passing_bytes, self.searches) = (self.base_bytes, 0);
                self.in_use = Use::Search;
            }
        }
        false
    }

    fn probe_is_lost(&mut self, bytes: u32) {
        self.failing_bytes = self.failing_bytes.min(bytes);
        self.in_use = Use::Search;
    }

    /// The length of the next probe of a search: the largest datagram, or a common length in the middle of what is not known.
    fn next_probe(&self) -> Option<u32> {
        if self.failing_bytes > self.most_bytes {
            return (self.passing_bytes < self.most_bytes).then_some(self.most_bytes);
        }
        let unknown = COMMON_MTUS.iter().map(|mtu| mtu - HEADER_BYTES);
        let mut unknown =
            unknown.filter(|bytes| (self.passing_bytes + 1..self.failing_bytes).contains(bytes));
        let count = unknown.clone().count();
        unknown.nth(count / 2)
    }

    /// The length of the largest datagram, if it has changed since the last call.
    #[inline]
    pub(super) fn change(&mut self, now: Instant) -> Option<u32> {
        match self.in_use {
            Use::Known(None) => {}
            Use::Known(Some(at)) if at > now => {}
            Use::BeforeProbe(_) => {}
            Use::Probe(.., until) if until > now => {}
            _ => self.search(now),
        }
        let bytes = match self.in_use {
            Use::BeforeProbe(most) => most,
            Use::Known(_) | Use::Search | Use::Probe(..) => self.passing_bytes,
        };
        (bytes != core::mem::replace(&mut self.told_bytes, bytes)).then_some(bytes)
    }

    #[cold]
    fn search(&mut self, now: Instant) {
        match self.in_use {
            Use::Known(_) => self.failing_bytes = u32::MAX,
            // Nobody knows what has become of it: it was the last datagram, or its acknowledgement was lost.
            Use::Probe(_, bytes, _) => self.probe_is_lost(bytes),
            Use::Search | Use::BeforeProbe(_) => {}
        }
        self.in_use = match self.next_probe() {
            Some(bytes) => Use::BeforeProbe(bytes),
            None if self.passing_bytes == self.most_bytes => Use::Known(None),
            None => {
                let wait_ns = match self.searches {
                    0 => FIRST_RAISE_NS,
                    searches if searches.is_multiple_of(SEARCHES) => RAISE_NS,
                    _ => PROBE_NS,
                };
                self.searches += 1;
                Use::Known(Some(now.plus_ns(wait_ns)))
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: u32 = 1232;
    const SECOND: u64 = 1_000_000_000;

    fn mtu_of(largest: u32) -> PathMtu {
        PathMtu::new(&ReliabilityConfig { datagram_bytes: largest, ..ReliabilityConfig::default() })
    }

    /// A sender whose bundles are as long as they may be, and a path.
    struct Path {
        mtu: PathMtu,
        now: Instant,
        number: u64,
        /// What the driver was told.
        told: u32,
        /// What passes the path.
        passes: u32,
    }

    impl Path {
        fn new(largest: u32, passes: u32) -> Path {
            Path { mtu: mtu_of(largest), now: Instant(0), number: 0, told: largest, passes }
        }

        /// A window of datagrams leaves, and its first one arrives or is lost.
        fn window(&mut self) {
            self.told = self.mtu.change(self.now).unwrap_or(self.told);
            let first = self.number;
            for number in first..first + 10 {
                self.mtu.sent(self.now, number, self.told);
            }
            self.number += 10;
            if self.told <= self.passes {
                self.mtu.arrived(first, self.told);
            } else {
                self.mtu.lost(first, self.told, self.number);
            }
            self.told = self.mtu.change(self.now).unwrap_or(self.told);
        }

        /// Windows until no search goes on. Returns how many datagrams were too long.
        fn settle(&mut self) -> u32 {
            let mut lost = 0;
            for _ in 0..100 {
                if matches!(self.mtu.in_use, Use::Known(_)) && self.told <= self.passes {
                    return lost;
                }
                lost += u32::from(self.told > self.passes);
                self.window();
            }
            panic!("the search does not end: {:?}", self.mtu);
        }

        /// Windows each second until the driver may make larger ones. Returns the seconds.
        fn seconds_until_larger(&mut self) -> u64 {
            let before = self.told;
            for second in 0..10_000 {
                self.told = self.mtu.change(self.now).unwrap_or(self.told);
                if self.told > before {
                    return second;
                }
                self.window();
                self.now = self.now.plus_ns(SECOND);
            }
            panic!("never: {:?}", self.mtu);
        }
    }

    #[test]
    fn a_search_finds_nearly_the_mtu_of_a_path() {
        for (largest, passes, found) in [
            (1452, 1451, 1444), // of 1500, one byte less
            (1472, 1464, 1452), // PPPoE
            (1472, 1422, 1402), // VXLAN over IPv4
            (1472, 1372, 1372), // a tunnel of 1400 bytes over IPv4
            (1452, 1352, 1352), // the same over IPv6
            (1452, 1251, SMALL),
            (1452, SMALL, SMALL),
            (8972, 8951, 8902),
            (8972, 8872, 8852), // 8900
            (8972, 1472, 1452),
            (8952, 4304, 4304),
            (8952, 1300, 1252),
        ] {
            let mut path = Path::new(largest, passes);
            let lost = path.settle();
            assert_eq!((path.told, path.mtu.passing_bytes), (found, found), "{passes} of {largest}");
            assert!((4..=8).contains(&lost), "{lost} for {passes} of {largest}");
            assert_eq!(path.seconds_until_larger(), 60, "{passes} of {largest}");
            assert_eq!(path.told, largest, "the largest one is tried first");
            assert!(path.settle() <= 5);
            assert_eq!(path.told, found, "{passes} of {largest}");
        }
    }

    #[test]
    fn a_path_that_carries_more_again_is_found_by_the_next_search() {
        let mut path = Path::new(1452, SMALL);
        path.settle();
        assert_eq!(path.seconds_until_larger(), 60);
        path.settle();
        path.passes = 1402;
        assert_eq!(path.seconds_until_larger(), 15);
        path.settle();
        assert_eq!(path.told, 1402);
        path.passes = 1452;
        assert_eq!(path.seconds_until_larger(), 15);
        assert_eq!((path.settle(), path.told), (0, 1452));
        assert_eq!(path.mtu.in_use, Use::Known(None));
    }

    #[test]
    fn a_path_that_carries_less_than_the_search_had_found_is_noticed() {
        let mut path = Path::new(8972, 8900);
        path.settle();
        assert_eq!(path.told, 8852);
        path.passes = 1452;
        path.window();
        path.settle();
        assert_eq!(path.told, 1452);
    }

    #[test]
    fn three_searches_in_vain_are_the_last_for_ten_minutes() {
        let mut path = Path::new(1452, SMALL);
        path.settle();
        let waits: [u64; 7] = core::array::from_fn(|_| {
            let seconds = path.seconds_until_larger();
            path.settle();
            seconds
        });
        assert_eq!(waits, [60, 15, 15, 600, 15, 15, 600]);
    }

    #[test]
    fn only_a_probe_that_has_arrived_changes_what_passes() {
        let mut path = Path::new(1452, SMALL);
        path.settle();
        path.seconds_until_larger();
        let (now, mtu) = (path.now, &mut path.mtu);
        mtu.sent(now, 500, SMALL);
        assert_eq!(mtu.change(now), None, "the probe has not left");
        mtu.sent(now, 501, 1452);
        assert_eq!(mtu.change(now), Some(SMALL), "until it has arrived");
        mtu.arrived(500, SMALL);
        mtu.arrived(480, 1452); // one that has left in fragments
        assert!(!mtu.lost(499, 1452, 502), "the same");
        assert_eq!(mtu.change(now), None);
        mtu.arrived(501, 1452);
        assert_eq!(mtu.change(now), Some(1452));
        assert_eq!(mtu.change(now.plus_ns(10_000 * SECOND)), None);
    }

    #[test]
    fn a_probe_of_which_nothing_is_known_counts_as_lost() {
        let mut path = Path::new(1452, SMALL);
        path.settle();
        path.seconds_until_larger();
        let (now, mtu) = (path.now, &mut path.mtu);
        mtu.sent(now, 7000, 1452);
        assert_eq!(mtu.change(now.plus_ns(15 * SECOND - 1)), Some(SMALL));
        assert_eq!(mtu.change(now.plus_ns(15 * SECOND)), Some(1372), "the middle of what is left");
        mtu.arrived(7000, 1452);
        assert_eq!(mtu.passing_bytes, SMALL, "it is too late");
    }

    #[test]
    fn a_bundle_that_is_not_full_is_a_probe_of_its_own_length() {
        let mut path = Path::new(1452, SMALL);
        path.settle();
        path.seconds_until_larger();
        let (now, mtu) = (path.now, &mut path.mtu);
        mtu.sent(now, 7000, 1300);
        assert_eq!(mtu.change(now), Some(SMALL));
        mtu.arrived(7000, 1300);
        assert_eq!((mtu.passing_bytes, mtu.change(now)), (1300, Some(1452)));
        mtu.sent(now, 7001, 1300);
        assert_eq!(mtu.change(now), None, "that is known");
    }

    #[test]
    fn losses_of_small_ones_and_of_one_queue_say_nothing() {
        const LARGE: u32 = 1452;
        let mut mtu = mtu_of(LARGE);
        (0..1000).for_each(|number| assert!(!mtu.lost(number, SMALL, number + 1)));
        (0..1000).for_each(|number| assert!(!mtu.lost(number, LARGE, 1000)));
        for window in 10..1000 {
            mtu.lost(100 * window, LARGE, 100 * (window + 1));
            mtu.arrived(100 * window + 1, SMALL);
            mtu.arrived(100 * window + 2, LARGE);
        }
        assert_eq!(mtu.change(Instant(0)), None);
    }
}
