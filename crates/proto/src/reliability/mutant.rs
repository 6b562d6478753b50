//! Mutants: rules of reliability that are known to be wrong. Tests and searches must detect each of them. Only they can
//! select one.

/// One wrong rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The acknowledged position is behind the latest arrival, whatever is missing before it.
    AcknowledgementIsNotCumulative,
    /// Timeouts are not doubled.
    TimeoutsDoNotBackOff,
    /// A round trip counts from the previous transmission of the bundle (Karn's problem).
    RoundTripCountsFromTheFirstTransmission,
    /// Epochs are not compared.
    EpochsAreNotCompared,
    /// A peer in another epoch is believed without the proof that it lives.
    RestartNeedsNoProof,
    /// A peer in another epoch that does not prove that it lives is not asked. If its first question came before the path to
    /// its earlier epoch opened, it never can prove that.
    LaterEpochsAreNotAsked,
    /// A receiver holds bundles at any distance.
    ReorderWindowHasNoBound,
    /// A bundle that came twice is delivered twice.
    RepeatedBundlesAreDelivered,
    /// Probes leave until something is acknowledged.
    ProbesRepeat,
    /// What was sent again needlessly, because the peer did not run, makes no wait longer.
    LatePeersAreNotAwaited,
    /// A datagram that was sent again before its acknowledgement came counts as overtaken.
    EarlyRetransmissionsCountAsReordering,
    /// Any later number shows that a bundle is lost, also one that has passed the queue of the bundles.
    AnyArrivalPassesTheQueue,
    /// A bundle that waits in the queue of this host is sent again.
    QueuedBundlesAreSentAgain,
    /// Timeouts of a peer that did not run lower the window as those of lost bundles do.
    NeedlessTimeoutsTakeTheWindow,
    /// A loss that a probe has repaired does not count.
    RepairedLossesDoNotCount,
    /// The timeout restarts with each send.
    SendsRestartTheTimeout,
    /// The limit counts from any arrival, so that a path of small bundles hides a large one that never arrives.
    AnyArrivalRestartsTheLimit,
    /// Bare acknowledgements are acknowledged.
    AcknowledgementsAreAcknowledged,
    /// Probes and timeouts do not know how long acknowledgements may wait.
    WaitsIgnoreTheAllowedDelay,
    /// A loss does not end longer waits of acknowledgements.
    LossesKeepTheAllowedDelay,
    /// The receiver takes the longest of the allowed delays.
    TheLongestDelayCounts,
    /// Losses and marks do not lower the window.
    WindowIgnoresLosses,
    /// A lower grant counts before the peer has acknowledged it.
    LowerGrantsCountAtOnce,
}

/// The wrong rule that is selected.
pub(super) type Broken = crate::broken::Broken<Mutant>;
