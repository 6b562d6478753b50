//! The congestion window, beside credits, and pacing ([`Congestion`]).
//!
//! Credits bound what a receiver holds. They do not see queues in switches. So the window starts at its largest value, and
//! only losses and marks lower it. Source: RFC 8257 (DCTCP). What we changed: a lost datagram counts as a marked one, and
//! the share of each round counts without an average. The expected reduction is the same, and a network that loses one
//! datagram in a hundred keeps a large window.
//!
//! ```text
//! a round of 100 datagrams, 10 lost or marked    window * (1 - 0.1 / 2)
//! a round without                                window + one datagram
//! two timeouts in a row                          two datagrams; doubles each round, up to half of the old window
//! the peer had everything, and did not run       the old window again (RFC 4015)
//! ```
//! This file does not know which datagrams are under way, only their bytes.

use super::datagram::ReliabilityConfig;
use super::mutant::{Broken, Mutant};
use crate::time::Instant;

/// A round has at least so many datagrams, unless the window has stopped the sender. So one loss among few datagrams does
/// not look like a full queue.
const MIN_ROUND_DATAGRAMS: u32 = 16;

/// The window and the pace of one direction of a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Congestion {
    datagram_bytes: u64,
    burst_bytes: u64,
    most_bytes: u64,
    window_bytes: u64,
    /// Below it the window doubles each round.
    threshold_bytes: u64,
    /// Window and threshold before the timeouts, until it is known whether they were needed.
    before_collapse: Option<(u64, u64)>,
    in_flight_bytes: u64,
    in_flight_bundles: u32,
    /// What the peer has room for. It says nothing about the network.
    grant_bundles: u32,
    /// The largest value in this round.
    peak_bytes: u64,
    /// The round ends when this number is acknowledged.
    round_end: u64,
    /// Datagrams of this round that were acknowledged or lost.
    resolved: u32,
    /// Those that were lost or marked.
    troubled: u32,
    /// The window has stopped the sender in this round.
    limited: bool,
    /// The time up to which the pace is used. Unit: ns since the driver's origin.
    paced_until_ns: u64,
}

#[cfg(feature = "explore")]
impl Congestion {
    /// Appends what decides about the future.
    pub(super) fn canonical(&self, row: &mut super::canonical::Row<'_>) {
        let Congestion {
            datagram_bytes: _,
            burst_bytes: _,
            most_bytes: _,
            window_bytes,
            threshold_bytes,
            before_collapse,
            in_flight_bytes,
            in_flight_bundles,
            grant_bundles,
            peak_bytes,
            round_end,
            resolved,
            troubled,
            limited,
            paced_until_ns,
        } = *self;
        let (before, before_threshold) = before_collapse.unwrap_or((0, 0));
        for bytes in [window_bytes, threshold_bytes, before, before_threshold, in_flight_bytes, peak_bytes] {
            row.push(bytes);
        }
        for count in [in_flight_bundles, grant_bundles, resolved, troubled] {
            row.push(count);
        }
        row.push(round_end);
        row.push(limited);
        row.coming(paced_until_ns);
    }
}

impl Congestion {
    pub(super) fn new(config: &ReliabilityConfig) -> Congestion {
        let datagram_bytes = u64::from(config.datagram_bytes);
        let most_bytes = u64::from(config.window_bundles) * datagram_bytes;
        Congestion {
            datagram_bytes,
            burst_bytes: u64::from(config.burst_bytes),
            most_bytes,
            window_bytes: most_bytes,
            threshold_bytes: 0,
            before_collapse: None,
            in_flight_bytes: 0,
            in_flight_bundles: 0,
            grant_bundles: config.first_grant,
            peak_bytes: 0,
            round_end: 0,
            resolved: 0,
            troubled: 0,
            limited: false,
            paced_until_ns: 0,
        }
    }

    pub(super) fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    pub(super) fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    pub(super) fn grant_bundles(&self) -> u32 {
        self.grant_bundles
    }

    pub(super) fn set_grant(&mut self, bundles: u32) {
        self.grant_bundles = bundles;
    }

    /// Whether window and grant have room. One bundle always has, so they cannot stop a path for ever.
    #[inline]
    pub(super) fn admits(&mut self, bytes: u32) -> bool {
        if self.in_flight_bytes == 0 {
            return true;
        }
        let admits = self.in_flight_bytes + u64::from(bytes) <= self.window_bytes;
        self.limited |= !admits;
        admits && self.in_flight_bundles < self.grant_bundles
    }

    /// Whether window and grant have as much room again when a bundle of `bytes` has left.
    #[inline]
    pub(super) fn is_half_empty(&self, bytes: u32) -> bool {
        2 * (self.in_flight_bytes + u64::from(bytes)) <= self.window_bytes
            && self.in_flight_bundles < self.grant_bundles / 2
    }

    /// When the pace allows the next datagram. `None`: now.
    #[inline]
    pub(super) fn paced_until(&self, now: Instant) -> Option<Instant> {
        let is_paced = self.window_bytes < self.most_bytes && self.paced_until_ns > now.0;
        is_paced.then_some(Instant(self.paced_until_ns))
    }

    /// A datagram with a bundle has left.
    #[inline]
    pub(super) fn sent(&mut self, now: Instant, bytes: u32, round_trip_ns: u64) {
        self.in_flight_bytes += u64::from(bytes);
        self.in_flight_bundles += 1;
        self.peak_bytes = self.peak_bytes.max(self.in_flight_bytes);
        if self.window_bytes < self.most_bytes {
            // 5/4 of the window in each round trip. Source: RFC 9002, section 7.7.
            let cost_ns =
                |bytes: u64| bytes.saturating_mul(round_trip_ns).saturating_mul(4) / (5 * self.window_bytes);
            let earliest_ns = now.0.saturating_sub(cost_ns(self.burst_bytes.min(self.window_bytes)));
            self.paced_until_ns = self.paced_until_ns.max(earliest_ns) + cost_ns(u64::from(bytes));
        }
    }

    /// A bundle that was under way has arrived.
    #[inline]
    pub(super) fn arrived(&mut self, bytes: u32) {
        self.in_flight_bytes -= u64::from(bytes);
        self.in_flight_bundles -= 1;
        self.resolved += 1;
    }

    /// A bundle that was under way is lost. `is_trouble`: a queue may have been full.
    pub(super) fn lost(&mut self, bytes: u32, is_trouble: bool) {
        self.in_flight_bytes -= u64::from(bytes);
        self.in_flight_bundles -= 1;
        self.resolved += 1;
        if is_trouble {
            self.before_collapse = None;
            self.troubled += 1;
        }
    }

    /// A bundle that has arrived was lost before, and was sent again outside of the window.
    pub(super) fn repaired(&mut self) {
        self.before_collapse = None;
        self.troubled += 1;
    }

    /// The peer has reported marked datagrams.
    pub(super) fn marked(&mut self, datagrams: u16) {
        self.before_collapse = None;
        self.troubled += u32::from(datagrams);
    }

    /// `number` was acknowledged, and `next_number` is the next to leave.
    #[inline]
    pub(super) fn end_round(&mut self, number: u64, next_number: u64, broken: Broken) {
        if number < self.round_end || (self.resolved < MIN_ROUND_DATAGRAMS && !self.limited) {
            return;
        }
        if self.troubled > 0 && !broken.has(Mutant::WindowIgnoresLosses) {
            let (resolved, troubled) = (u64::from(self.resolved), u64::from(self.troubled));
            // A window that nobody has used says nothing about the network.
            let used_bytes = (2 * self.peak_bytes).max(u64::from(MIN_ROUND_DATAGRAMS) * self.datagram_bytes);
            let base_bytes = self.window_bytes.min(used_bytes);
            let cut_bytes = base_bytes * troubled.min(resolved) / (2 * resolved.max(1));
            self.window_bytes = (base_bytes - cut_bytes).max(2 * self.datagram_bytes);
            self.threshold_bytes = 0;
        } else if self.window_bytes < self.threshold_bytes {
            self.window_bytes = (2 * self.window_bytes).min(self.threshold_bytes);
        } else {
            self.window_bytes = (self.window_bytes + self.datagram_bytes).min(self.most_bytes);
        }
        self.round_end = next_number;
        self.peak_bytes = self.in_flight_bytes;
        (self.resolved, self.troubled, self.limited) = (0, 0, false);
    }

    /// Timeouts in a row: nothing is known of the network any more.
    pub(super) fn collapse(&mut self) {
        self.before_collapse.get_or_insert((self.window_bytes, self.threshold_bytes));
        self.threshold_bytes = self.threshold_bytes.max(self.window_bytes / 2);
        self.window_bytes = 2 * self.datagram_bytes;
    }

    /// The timeouts in a row were not needed, if there were some: nothing was lost, so the network says nothing against the
    /// window before them. Source: RFC 4015, section 3.2.
    pub(super) fn restore(&mut self) {
        if let Some((window_bytes, threshold_bytes)) = self.before_collapse.take() {
            self.window_bytes = self.window_bytes.max(window_bytes);
            self.threshold_bytes = threshold_bytes;
        }
    }

    /// Nobody will know whether the timeouts in a row were needed.
    pub(super) fn keep_collapsed(&mut self) {
        self.before_collapse = None;
    }
}
