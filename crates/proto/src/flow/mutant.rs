//! Mutants: rules that are known to be wrong, most of them as published. A search or a test must detect each of them,
//! except those that violate no invariant. `crates/prove/tests/mutants.rs` checks that, and has the reasons.
//!
//! Only tests and proofs can select a mutant.

/// Declares [`Mutant`] and the list of all.
macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// One wrong rule, most of them of dynamic credits. The gap numbers are those of
        /// `docs/explanation/flow-control.md`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Mutant {
            $($(#[$doc])* $name,)+
        }

        impl Mutant {
            /// All mutants.
            pub const ALL: &[Mutant] = &[$(Mutant::$name,)+];
        }
    };
}

mutants! {
    /// Gap 1: a short grant pushes the whole new threshold.
    ShortGrantPushesTheThreshold,
    /// Gap 2: returned credits do not change the thresholds.
    ReturnLeavesThresholds,
    /// Gap 3: a blocked sender's crossing is consumed even if nothing is granted.
    BlockedCrossingIsLost,
    /// Gap 4: all retrieved slots are piggybacked, even if they are not available.
    PiggybackOverdraws,
    /// Gap 5: a crossing by piggybacking forgets its overshoot.
    PiggybackForgetsTheOvershoot,
    /// Gap 6: an endpoint with a pending request does not respond to the peer's request.
    ResponsesWaitForResponses,
    /// Gap 6: the amount of a response is fixed when the request arrives. While packets of a pair are in order this
    /// equals our rule (docs/explanation/proof.md), so no check can detect it.
    AmountIsFixedByTheRequest,
    /// Gap 7: requests and responses count as activity.
    ControlCountsAsActivity,
    /// Gap 8: all thresholds of a new sender are ones, whatever its starting credits.
    ThresholdsStartAsOnes,
    /// Gap 9: lost peers keep their quota.
    LostPeersKeepTheirShare,
    /// Gap 10: credits guaranteed to one sender may be granted to others.
    NothingIsReserved,
    /// Gap 11: piggybacking returns all retrieved slots, even to a sender above its quota.
    PiggybackIgnoresTheQuota,
    /// Not published: a credit packet returns one credit less than was counted as granted.
    CreditIsLost,
    /// Not published: a credit packet returns its credits twice.
    CreditsReturnTwice,
    /// Not published: a packet that the link refuses spends its credit.
    RefusedPacketSpendsItsCredit,
    /// Not published: credits of a credit packet that the link refuses wait for the next packet with data.
    RefusedCreditsAreForgotten,
    /// Credits on demand: a packet tells only what is queued, so the total decreases while a message leaves.
    DemandDecreases,
    /// Credits on demand: a retrieved loan returns to its sender, even if nothing beyond the reserve is free.
    LoansReturnToTheSender,
    /// Credits on demand: a response gives back credits that queued packets need.
    ReclaimTakesLentCredits,
    /// Credits on demand: a sender keeps its place in the queue after its turn.
    QueueDoesNotRotate,
    /// Credits on demand: freed slots do not serve the queue.
    QueueIsForgotten,
    /// Credits on demand: a deferred guarantee is granted only with a loan.
    DeferredIsForgotten,
    /// Not published: a packet of an offloaded machine spends no credit.
    OffloadedPacketsTakeNoCredit,
    /// Not published: an answer of an offloaded machine is dropped if the backlog of its peer is not empty.
    AnswersBehindABacklogAreDropped,
    /// Credits that the driver has deferred are never sent.
    CreditsDueAreIgnored,
}
