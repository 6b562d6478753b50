//! What the sender concludes from silence and from what overtakes: losses, probes and timeouts.
//! ```text
//! overtaken    later numbers have arrived, and it is too late: lost
//! queued       it has not left this host: nothing is lost, and the wait begins anew
//! probe        nothing is acknowledged for two round trips: the oldest bundle leaves again, once
//! timeout      nothing for longer: it leaves again, and the next one waits twice as long
//! judge        each transmission has a number of its own, so the answer says whether a probe was needed
//! ```
//! Source of the rules: RFC 8985 and RFC 9002, section 6.1.

use super::Sender;
use crate::reliability::datagram::{DatagramDriver, ReliabilityConfig, STANDING_DIVISOR};
use crate::reliability::mutant::{Broken, Mutant};
use crate::time::Instant;

/// The second timeout in a row is a collapse of the network.
pub(super) const COLLAPSE_TIMEOUTS: u32 = 2;

/// A bundle that was sent again, because nothing was acknowledged for some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// The number of its transmission before.
    earlier: u64,
    number: u64,
    /// A peer that runs has answered it by then.
    answer_by: Instant,
}

#[cfg(feature = "explore")]
impl Probe {
    /// Appends what decides about the future.
    pub(super) fn canonical(&self, row: &mut crate::reliability::canonical::Row<'_>) {
        let Probe { earlier, number, answer_by } = *self;
        row.push(earlier);
        row.push(number);
        row.time(answer_by);
    }
}

impl Sender {
    /// The latest number whose arrival shows that those before it have been overtaken.
    pub(super) fn passed<D: DatagramDriver>(&self, driver: &D, broken: Broken) -> u64 {
        let only_bundles = driver.has_queue() && !broken.has(Mutant::AnyArrivalPassesTheQueue);
        if only_bundles { self.largest_of_bundles } else { self.largest }
    }

    /// Declares overtaken datagrams lost. Cost: each number is passed once.
    pub(in crate::reliability) fn detect_losses<D: DatagramDriver>(
        &mut self,
        now: Instant,
        driver: &D,
        broken: Broken,
    ) {
        self.loss_at = None;
        if self.is_lossless {
            return;
        }
        let passed = self.passed(driver, broken);
        while self.scan < passed {
            let number = self.scan;
            if let Some(position) = self.under_way(number) {
                let is_queued = driver.is_queued(position) && !broken.has(Mutant::QueuedBundlesAreSentAgain);
                if is_queued {
                    self.record(number).sent_at = now; // it leaves later still
                }
                let late_at = self.record(number).sent_at.plus_ns(self.round_trip.reorder_ns());
                let is_near = passed - number < u64::from(self.reorder_numbers);
                if is_queued || (is_near && late_at > now) {
                    self.loss_at = Some(late_at);
                    return;
                }
                let (bytes, next_number) = (self.bundle(position).bytes, self.next_number);
                let is_probe = self.mtu.lost(number, bytes, next_number);
                self.note_if_lost(number, !is_probe, broken);
            }
            self.scan += 1;
        }
    }

    /// When overtaken datagrams count as lost.
    #[inline]
    pub(in crate::reliability) fn loss_at(&self) -> Option<Instant> {
        self.loss_at
    }

    /// When the timeout of the oldest bundle passes.
    #[inline]
    pub(in crate::reliability) fn timeout_at(
        &self,
        config: &ReliabilityConfig,
        broken: Broken,
    ) -> Option<Instant> {
        // Without loss it is only time to ask whether the peer lives.
        let timeout_ns = if config.is_lossless {
            config.limit_ns / STANDING_DIVISOR
        } else {
            self.round_trip.timeout_ns(self.longest_delay_ns(config, broken), config)
        };
        self.is_outstanding().then(|| self.timeout_from.plus_ns(timeout_ns))
    }

    /// When the oldest bundle is sent again early, because nothing was acknowledged. Once until something is, and not while
    /// lost ones wait for the window. Without a round trip the timeout is all there is.
    #[inline]
    pub(in crate::reliability) fn probe_at(
        &self,
        config: &ReliabilityConfig,
        broken: Broken,
    ) -> Option<Instant> {
        if self.is_probed || self.is_lossless || !self.is_outstanding() || self.lost.count() > 0 {
            return None;
        }
        let delay_ns = self.longest_delay_ns(config, broken);
        Some(self.probe_from.plus_ns(self.round_trip.probe_ns(delay_ns)?))
    }

    /// Whether a probe must leave now.
    pub(in crate::reliability) fn is_probe_due(
        &self,
        now: Instant,
        config: &ReliabilityConfig,
        broken: Broken,
    ) -> bool {
        self.probe_at(config, broken).is_some_and(|at| at <= now)
    }

    /// The number of the last transmission of the oldest bundle.
    pub(in crate::reliability) fn oldest_number(&mut self) -> u64 {
        self.bundle(self.first).number
    }

    /// The oldest bundle, which had the number `earlier`, has left again early.
    pub(in crate::reliability) fn probed(&mut self, now: Instant, earlier: u64, broken: Broken) {
        self.counts.probes += 1;
        self.sent_early(now, earlier);
        // The peer has a timeout to answer.
        (self.timeout_from, self.probe_from) = (now, now);
        self.is_probed = !broken.has(Mutant::ProbesRepeat);
    }

    /// The oldest bundle, which had the number `earlier`, has left again. If it does so more than once, the first time
    /// counts.
    fn sent_early(&mut self, now: Instant, earlier: u64) {
        let number = self.oldest_number();
        let answer_by = now.plus_ns(self.round_trip.reorder_ns());
        self.probe.get_or_insert(Probe { earlier, number, answer_by });
    }

    /// The driver refused a probe.
    pub(in crate::reliability) fn restart_probe(&mut self, now: Instant) {
        self.probe_from = now;
    }

    /// Finds out whether the last probe or timeout was needed. Each transmission has a number of its own, so this is no guess.
    pub(super) fn judge_probe(&mut self, now: Instant, broken: Broken) {
        let Some(Probe { earlier, number, answer_by }) = self.probe else { return };
        let had_arrived = self.has_arrived(earlier);
        if had_arrived != Some(true) && self.largest < number {
            return;
        }
        self.probe = None;
        match (had_arrived, self.has_arrived(number)) {
            (Some(true), _) => {
                self.counts.needless_probes += 1;
                if !broken.has(Mutant::NeedlessTimeoutsTakeTheWindow) {
                    self.congestion.restore();
                }
                // Otherwise only the acknowledgement was lost: the probe was answered soon.
                if self.largest < number || now > answer_by {
                    self.round_trip.peer_was_late(broken);
                    self.delay.shorten();
                }
            }
            // The network has lost a datagram, and no loss was declared.
            (Some(false), Some(true)) => {
                self.counts.needed_probes += 1;
                self.round_trip.bundle_was_lost();
                self.delay.bundle_was_lost(broken);
                if !broken.has(Mutant::RepairedLossesDoNotCount) {
                    self.congestion.repaired();
                }
            }
            _ => self.congestion.keep_collapsed(),
        }
    }

    /// Whether the peer has named this number. `None`: it is too old to tell.
    fn has_arrived(&self, number: u64) -> Option<bool> {
        match self.largest.checked_sub(number)? {
            0 => Some(true),
            distance @ 1..=64 => Some(self.handled >> (distance - 1) & 1 == 1),
            _ => None,
        }
    }

    /// The timeout has passed, and the oldest bundle, which had the number `earlier`, was sent again.
    pub(in crate::reliability) fn timed_out(&mut self, now: Instant, earlier: u64, broken: Broken) {
        self.counts.timeouts += 1;
        self.sent_early(now, earlier);
        self.timeouts_in_a_row += 1;
        self.round_trip.back_off(broken);
        if self.timeouts_in_a_row >= COLLAPSE_TIMEOUTS {
            self.congestion.collapse();
        }
        self.timeout_from = now;
    }

    /// Whether the oldest bundle may be too large for the path: it has timed out more than once.
    pub(in crate::reliability) fn suspects_large(&mut self) -> bool {
        let bytes = self.bundle(self.first).bytes;
        self.timeouts_in_a_row >= COLLAPSE_TIMEOUTS && self.mtu.is_large(bytes)
    }

    /// The oldest bundle waits in the driver's queue. It is not under way yet, so both waits begin anew.
    pub(in crate::reliability) fn oldest_is_queued(&mut self, now: Instant) {
        (self.timeout_from, self.probe_from) = (now, now);
    }

    /// The timeout has passed, and the driver refused the datagram.
    pub(in crate::reliability) fn restart_timeout(&mut self, now: Instant) {
        self.timeout_from = now;
    }
}
