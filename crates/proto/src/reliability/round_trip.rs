//! The round trip, and the timeouts that follow from it ([`RoundTrip`]). Source: RFC 6298.
//!
//! What we changed: the shortest timeout is 200 us, not 1 s, and the longest 100 ms, because these are networks of one
//! building. A timeout includes the time that a peer may delay an acknowledgement (RFC 9002, section 6.2.1). Each
//! transmission has its own number, so samples of retransmissions are valid, and the doubling ends with any progress.
//!
//! The variation makes the timeout long where other processes take turns on the cores. So a probe leaves earlier, once. It
//! costs a datagram if it was not needed. A peer that had everything, but did not run, makes both waits twice as long. A loss
//! makes them short again.
//!
//! ```text
//! sample 100 us          smoothed 100, variation 50; timeout 100 + 4 * 50 + 50 = 350 us; probe 2 * 100 + 50 = 250 us
//! back_off               700 us
//! progress               350 us
//! ```

use super::datagram::ReliabilityConfig;
use super::mutant::{Broken, Mutant};

/// More doublings than any timeout needs.
const MAX_DOUBLINGS: u32 = 32;

/// The longest wait for a peer that does not run: a turn of another process. Unit: ns.
const MAX_PATIENCE_NS: u64 = 5_000_000;

/// The measured round trip.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundTrip {
    /// 0: there was no sample.
    smoothed_ns: u64,
    variation_ns: u64,
    latest_ns: u64,
    doublings: u32,
    /// Doublings of both waits, since the peer was late.
    patience: u32,
}

#[cfg(feature = "explore")]
impl RoundTrip {
    /// Appends what decides about the future.
    pub(super) fn canonical(&self, row: &mut super::canonical::Row<'_>) {
        let RoundTrip { smoothed_ns, variation_ns, latest_ns, doublings, patience } = *self;
        [smoothed_ns, variation_ns, latest_ns].into_iter().for_each(|time_ns| row.push(time_ns));
        row.push(doublings);
        row.push(patience);
    }
}

impl RoundTrip {
    /// Adds a sample.
    #[inline]
    pub(super) fn sample(&mut self, sample_ns: u64) {
        let sample_ns = sample_ns.max(1);
        self.latest_ns = sample_ns;
        if self.smoothed_ns == 0 {
            (self.smoothed_ns, self.variation_ns) = (sample_ns, sample_ns / 2);
            return;
        }
        let deviation_ns = self.smoothed_ns.abs_diff(sample_ns);
        self.variation_ns = (3 * self.variation_ns + deviation_ns) / 4;
        self.smoothed_ns = ((7 * self.smoothed_ns + sample_ns) / 8).max(1);
    }

    /// Adds a sample that includes a wait of the peer, of at most `delay_ns`. As far as such a wait explains it, the round trip has
    /// not changed.
    #[inline]
    pub(super) fn sample_with_delay(&mut self, sample_ns: u64, delay_ns: u64) {
        self.sample(self.smoothed_ns.clamp(sample_ns.saturating_sub(delay_ns), sample_ns));
    }

    /// The smoothed round trip. 0: there was no sample.
    #[inline]
    pub(super) fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// Time after which a datagram that others have overtaken counts as lost. Source: RFC 8985, section 6.2.
    #[inline]
    pub(super) fn reorder_ns(&self) -> u64 {
        let longer_ns = self.smoothed_ns.max(self.latest_ns);
        longer_ns + longer_ns / 4
    }

    /// The timeout, if the peer may hold acknowledgements back for `delay_ns`.
    #[inline]
    pub(super) fn timeout_ns(&self, delay_ns: u64, config: &ReliabilityConfig) -> u64 {
        let base_ns = match self.smoothed_ns {
            0 => config.first_timeout_ns,
            smoothed_ns => smoothed_ns + 4 * self.variation_ns + delay_ns,
        };
        // Saturates: a shift that loses bits yields the longest.
        let doubled_ns =
            self.patient_ns(base_ns.max(config.min_timeout_ns)).saturating_mul(1 << self.doublings);
        doubled_ns.min(config.max_timeout_ns)
    }

    /// The time after which the last bundle is probed. `None`: there was no sample. Source: RFC 8985, section 7.2.
    #[inline]
    pub(super) fn probe_ns(&self, delay_ns: u64) -> Option<u64> {
        (self.smoothed_ns > 0).then(|| self.patient_ns(2 * self.smoothed_ns + delay_ns))
    }

    /// A wait for a peer that may not run.
    #[inline]
    fn patient_ns(&self, wait_ns: u64) -> u64 {
        wait_ns.saturating_mul(1 << self.patience).min(wait_ns.max(MAX_PATIENCE_NS))
    }

    /// A bundle was sent again although it had arrived: the peer did not run.
    pub(super) fn peer_was_late(&mut self, broken: Broken) {
        if !broken.has(Mutant::LatePeersAreNotAwaited) {
            self.patience = (self.patience + 1).min(MAX_DOUBLINGS);
        }
    }

    /// A bundle was sent again because it was lost.
    pub(super) fn bundle_was_lost(&mut self) {
        self.patience = 0;
    }

    /// A timeout has passed: the next one is twice as long.
    pub(super) fn back_off(&mut self, broken: Broken) {
        if !broken.has(Mutant::TimeoutsDoNotBackOff) {
            self.doublings = (self.doublings + 1).min(MAX_DOUBLINGS);
        }
    }

    /// Something new was acknowledged.
    #[inline]
    pub(super) fn progress(&mut self) {
        self.doublings = 0;
    }
}
