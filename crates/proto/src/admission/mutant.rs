//! Mutants: rules of admission that are known to be wrong. Tests must detect each of them. Only tests can select one.

/// One wrong rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutant {
    /// A request that comes too early counts as an injection.
    RefusalsRestartTheDelay,
    /// A message takes free tokens although others wait.
    TicketsAreOvertaken,
    /// A message needs as many tokens as its size says, also if the pool has fewer.
    LargeMessagesNeedMoreThanAll,
    /// Tokens of a dead task stay taken.
    TokensOfTheDeadAreLost,
    /// A dead task keeps its place in the order.
    TicketsOfTheDeadStay,
    /// After a completion only one ticket is looked at.
    OneTicketForEachCompletion,
    /// A dead server keeps the server token.
    DeadServersKeepTheToken,
    /// What a dead server had claimed is gone.
    ClaimsOfTheDeadAreLost,
    /// What a dead server may have injected is served again.
    DoubtfulMessagesAreServed,
    /// A server that releases its token does not look whether something came meanwhile.
    ReleaseDoesNotLookAgain,
    /// A server begins each turn with its own queue.
    OwnQueueComesFirst,
    /// A combined message skips messages to other hosts.
    CombiningOvertakes,
    /// A message that may pass at once overtakes those that its task has queued.
    PassingOvertakesTheQueue,
    /// The policer does not look at the messages of the node.
    NodeMessagesDoNotCount,
    /// Messages of the dead stay outstanding.
    MessagesOfTheDeadStay,
}

impl Mutant {
    #[cfg(test)]
    pub(super) const ALL: [Mutant; 15] = [
        Mutant::RefusalsRestartTheDelay,
        Mutant::TicketsAreOvertaken,
        Mutant::LargeMessagesNeedMoreThanAll,
        Mutant::TokensOfTheDeadAreLost,
        Mutant::TicketsOfTheDeadStay,
        Mutant::OneTicketForEachCompletion,
        Mutant::DeadServersKeepTheToken,
        Mutant::ClaimsOfTheDeadAreLost,
        Mutant::DoubtfulMessagesAreServed,
        Mutant::ReleaseDoesNotLookAgain,
        Mutant::OwnQueueComesFirst,
        Mutant::CombiningOvertakes,
        Mutant::PassingOvertakesTheQueue,
        Mutant::NodeMessagesDoNotCount,
        Mutant::MessagesOfTheDeadStay,
    ];
}

/// The wrong rule that is selected.
pub(super) type Broken = crate::broken::Broken<Mutant>;
