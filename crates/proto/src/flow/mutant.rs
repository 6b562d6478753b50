//! Rules that are known to be wrong, most of them as published, to be put in the place of ours: whatever claims to check
//! the scheme must notice each. Only tests and proofs can choose one.

/// One wrong rule of dynamic credits. The numbers are those of the gaps in `docs/explanation/flow-control.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// Gap 1: a short grant pushes the whole new threshold.
    ShortGrantPushesTheThreshold,
    /// Gap 2: credits that are given back leave the thresholds as they are.
    ReturnLeavesThresholds,
    /// Gap 3: a blocked sender's crossing is used up even if nothing is granted with it.
    BlockedCrossingIsLost,
    /// Gap 4: all that was retrieved is piggybacked, whether it is there or not.
    PiggybackOverdraws,
    /// Gap 5: a crossing by piggybacking forgets its overshoot.
    PiggybackForgetsTheOvershoot,
    /// Gap 6: who has asked for credits does not answer a request before it was answered.
    ResponsesWaitForResponses,
    /// Gap 6: the amount of a response is fixed when the request arrives. The same as ours while packets of a pair are in order
    /// (docs/explanation/proof.md): no check can notice it there.
    AmountIsFixedByTheRequest,
    /// Gap 7: requests and responses count as activity.
    ControlCountsAsActivity,
    /// Gap 7: who has just gained is robbed as soon as anybody.
    VictimsGetNoGrace,
    /// Gap 8: the thresholds of a new sender are ones, however many credits it begins with.
    ThresholdsStartAsOnes,
    /// Gap 9: the dead keep their share.
    LostPeersKeepTheirShare,
    /// Gap 10: what is guaranteed to one sender may be granted to others.
    NothingIsReserved,
    /// Gap 11: piggybacking returns whatever was retrieved, also to a sender that has more than it should.
    PiggybackIgnoresTheQuota,
    /// Not published by anybody: a credit packet returns one credit less than was counted as granted.
    CreditIsLost,
    /// Nor this: a credit packet returns its credits twice.
    CreditsReturnTwice,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 15] = [
        Mutant::ShortGrantPushesTheThreshold,
        Mutant::ReturnLeavesThresholds,
        Mutant::BlockedCrossingIsLost,
        Mutant::PiggybackOverdraws,
        Mutant::PiggybackForgetsTheOvershoot,
        Mutant::ResponsesWaitForResponses,
        Mutant::AmountIsFixedByTheRequest,
        Mutant::ControlCountsAsActivity,
        Mutant::VictimsGetNoGrace,
        Mutant::ThresholdsStartAsOnes,
        Mutant::LostPeersKeepTheirShare,
        Mutant::NothingIsReserved,
        Mutant::PiggybackIgnoresTheQuota,
        Mutant::CreditIsLost,
        Mutant::CreditsReturnTwice,
    ];
}
