//! Events and conditions that a search counts ([`Happened`]), to show that it has reached what it is meant to check. An
//! [`Effect`] says which of them a move had, and which pair has sent.

/// The counted effects of a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// The pair that sent a message or fetched a word, by its number ([`super::Setup::pair`]). If a move lets both leave,
    /// only the first counts. So a search may see less that can be sent, never more.
    pub sent: Option<usize>,
    /// Bits of [`Happened`].
    pub happened: u32,
}

/// The counted kinds, each a bit of [`Effect::happened`] and [`super::Setup::state_events`]. A check that never sees a
/// kind proves nothing about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// State: a message waits for credit.
    Waiting,
    /// A credit packet was sent.
    CreditPacket,
    /// Credits were piggybacked on a data packet.
    Piggyback,
    /// State: a sender is blocked by a pending return request.
    Blocked,
    /// Fewer credits were granted than the new threshold.
    ShortGrant,
    /// A threshold was reached by piggybacking, with more returned than the new threshold.
    Excess,
    /// A threshold was reached by piggybacking, with at most the new threshold returned.
    Deficit,
    /// Quota moved from one sender to another.
    QuotaTransfer,
    /// State: a return request or response waits for a credit.
    ControlWaiting,
    /// A receiver was not ready.
    NotReady,
    /// The retries were used up: the connection has failed.
    GaveUp,
    /// The buffers of a connection grew.
    Growth,
    /// A sender detached.
    Detached,
    /// A sender in a new lease read a grant of an earlier lease.
    StaleGrant,
    /// A sender read a return request for a lease that is not yet connected.
    EarlyRequest,
    /// An endpoint crashed.
    Crashed,
    /// The link refused a packet.
    Refused,
    /// Slots were lent for demand.
    Loan,
    /// A sender had to queue for a loan.
    Queued,
    /// A turn ended with demand left.
    Turn,
    /// Credits were granted without demand.
    Prefetch,
    /// Credits were requested for waiting demand.
    Reclaim,
    /// A response to such a request gave back credits.
    Reclaimed,
    /// A fetch ended with a value.
    Fetched,
    /// State: an answer of a machine waits for credit.
    AnswerWaiting,
    /// An operation of a group ended at the root.
    Reduced,
    /// A contribution came before its turn.
    EarlyContribution,
    /// The driver sent credits that it had deferred, after other events of the endpoint.
    LateCredits,
}

impl Happened {
    /// All kinds, in the order of the table.
    pub const ALL: [Happened; 28] = [
        Happened::Waiting,
        Happened::CreditPacket,
        Happened::Piggyback,
        Happened::Blocked,
        Happened::ShortGrant,
        Happened::Excess,
        Happened::Deficit,
        Happened::QuotaTransfer,
        Happened::ControlWaiting,
        Happened::NotReady,
        Happened::GaveUp,
        Happened::Growth,
        Happened::Detached,
        Happened::StaleGrant,
        Happened::EarlyRequest,
        Happened::Crashed,
        Happened::Refused,
        Happened::Loan,
        Happened::Queued,
        Happened::Turn,
        Happened::Prefetch,
        Happened::Reclaim,
        Happened::Reclaimed,
        Happened::Fetched,
        Happened::AnswerWaiting,
        Happened::Reduced,
        Happened::EarlyContribution,
        Happened::LateCredits,
    ];

    /// Name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Happened::Waiting => "waiting",
            Happened::CreditPacket => "credit packet",
            Happened::Piggyback => "piggyback",
            Happened::Blocked => "blocked",
            Happened::ShortGrant => "short grant",
            Happened::Excess => "excess",
            Happened::Deficit => "deficit",
            Happened::QuotaTransfer => "quota transfer",
            Happened::ControlWaiting => "control waits",
            Happened::NotReady => "not ready",
            Happened::GaveUp => "gave up",
            Happened::Growth => "growth",
            Happened::Detached => "detached",
            Happened::StaleGrant => "stale grant",
            Happened::EarlyRequest => "early request",
            Happened::Crashed => "crashed",
            Happened::Refused => "refused",
            Happened::Loan => "loan",
            Happened::Queued => "queued",
            Happened::Turn => "turn",
            Happened::Prefetch => "prefetch",
            Happened::Reclaim => "reclaim",
            Happened::Reclaimed => "reclaimed",
            Happened::Fetched => "fetched",
            Happened::AnswerWaiting => "answer waits",
            Happened::Reduced => "reduced",
            Happened::EarlyContribution => "early contribution",
            Happened::LateCredits => "late credits",
        }
    }

    /// Its bit.
    pub fn bit(self) -> u32 {
        1 << self as u32
    }
}
