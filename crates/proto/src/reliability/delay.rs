//! How long the peer may hold the acknowledgement of a bundle back, so that it finds something to ride on ([`AllowedDelay`]).
//!
//! The sender decides, because only it knows whether it needs one soon. Each bundle says it in its datagram, and the peer obeys
//! the shortest. So the sender's waits know it too. Source: the idea of the ACK_FREQUENCY frame of QUIC
//! (draft-ietf-quic-ack-frequency).
//!
//! ```text
//! the first 256 bundles, and 256 after a loss                    the usual delay
//! an acknowledgement came without a bundle, after all of it      twice as long, up to a bound
//! one came with a bundle, after less than a fourth of it         half as long
//! somebody began to wait, or the peer did not run in time        half as long
//!
//! for this bundle: others wait behind it, half of the window is used, somebody waits, or the round trip is measured
//!                                                                the usual delay
//! ```
//! This file does not know when bundles leave.

use super::datagram::ReliabilityConfig;
use super::mutant::{Broken, Mutant};

/// So many bundles must arrive in a row before acknowledgements may wait for longer. A path that loses one datagram in a hundred
/// finds its losses as soon as before.
const CALM_BUNDLES: u16 = 256;
/// One bundle of so many has the usual delay, so that the round trip is measured.
const MEASURED: u64 = 64;

/// See the head of this file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AllowedDelay {
    doublings: u8,
    /// Bundles that have arrived since the last loss, at most [`CALM_BUNDLES`].
    calm: u16,
    /// The most that a bundle before `long_before` allows.
    longest: u8,
    /// No bundle from this position on allows more than the usual delay.
    long_before: u64,
    /// Each bundle from this position on allows more.
    usual_before: u64,
}

#[cfg(feature = "explore")]
impl AllowedDelay {
    /// Appends what decides about the future, if bundles are under way from `first` on.
    pub(super) fn canonical(&self, first: u64, row: &mut super::canonical::Row<'_>) {
        let AllowedDelay { doublings, calm, longest, long_before, usual_before } = *self;
        let is_long = long_before > first;
        row.push(doublings);
        row.push(calm);
        row.push(if is_long { longest } else { 0 });
        row.push(if is_long { long_before } else { 0 });
        row.push(usual_before.max(first));
    }
}

/// The usual delay, doubled so often. Unit: ns.
pub(super) fn doubled_ns(config: &ReliabilityConfig, doublings: u8) -> u64 {
    config.acknowledgement_delay_ns << doublings
}

impl AllowedDelay {
    /// What the bundle of this position allows, if nothing waits for its acknowledgement.
    #[inline]
    pub(super) fn of_bundle(&self, position: u64) -> u8 {
        if position.is_multiple_of(MEASURED) { 0 } else { self.doublings }
    }

    /// Whether [`AllowedDelay::of_bundle`] is the usual delay for all.
    #[inline]
    pub(super) fn is_usual(&self) -> bool {
        self.doublings == 0
    }

    /// A bundle has left that allows so much. Bundles are under way from `first` on.
    #[inline]
    pub(super) fn sent(&mut self, position: u64, doublings: u8, first: u64) {
        if doublings == 0 {
            self.usual_before = self.usual_before.max(position + 1);
        } else {
            let before = if self.long_before > first { self.longest } else { 0 };
            (self.longest, self.long_before) = (before.max(doublings), position + 1);
        }
    }

    /// The longest that the peer may hold back the acknowledgement of what is under way from `first` on. Unit: ns.
    #[inline]
    pub(super) fn longest_ns(&self, first: u64, config: &ReliabilityConfig, broken: Broken) -> u64 {
        let is_long = self.long_before > first && !broken.has(Mutant::WaitsIgnoreTheAllowedDelay);
        doubled_ns(config, if is_long { self.longest } else { 0 })
    }

    /// Whether a bundle from `first` on allows more than the usual delay.
    #[inline]
    pub(super) fn some_are_long(&self, first: u64) -> bool {
        self.long_before > first
    }

    /// Whether each bundle from `first` on does.
    #[inline]
    pub(super) fn all_are_long(&self, first: u64) -> bool {
        self.usual_before <= first
    }

    /// Bundles were acknowledged. Of the time since the oldest of them had left, `waited_ns` was no way there and back. `rides`:
    /// with a bundle of the peer.
    #[inline]
    pub(super) fn acknowledged(
        &mut self,
        bundles: u64,
        waited_ns: u64,
        rides: bool,
        config: &ReliabilityConfig,
    ) {
        if config.max_delay_doublings == 0 {
            return;
        }
        self.calm = bundles.saturating_add(self.calm.into()).min(CALM_BUNDLES.into()) as u16;
        let allowed_ns = doubled_ns(config, self.doublings);
        if rides && waited_ns < allowed_ns / 4 {
            self.shorten();
        } else if !rides && waited_ns >= allowed_ns && self.calm == CALM_BUNDLES {
            self.doublings = (self.doublings + 1).min(config.max_delay_doublings);
        }
    }

    /// Somebody has begun to wait for an acknowledgement, or the peer did not run in time.
    pub(super) fn shorten(&mut self) {
        self.doublings = self.doublings.saturating_sub(1);
    }

    /// A bundle is lost. Others may be, so nothing waits for longer than usual from now on.
    pub(super) fn bundle_was_lost(&mut self, broken: Broken) {
        if !broken.has(Mutant::LossesKeepTheAllowedDelay) {
            (self.doublings, self.calm, self.long_before) = (0, 0, 0);
        }
    }
}
