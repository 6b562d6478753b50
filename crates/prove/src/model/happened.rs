//! What is counted of states and moves, so that a search can be told from one that has seen nothing.

/// What a move did that a reader of the counts wants to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// The pair, by index in [`super::Setup::pairs`], of which a data packet left. A move lets at most one pair send.
    pub sent: Option<usize>,
    /// Bits of [`Happened`].
    pub happened: u16,
}

/// The kinds of states that are counted, each a bit of [`Effect::happened`] and [`super::Setup::standing`]: a check that never
/// sees them proves less than it seems to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// Standing: a message waits for credit.
    Waiting,
    /// A credit packet was sent.
    CreditPacket,
    /// Credits went with a data packet.
    Piggyback,
    /// Standing: some sender was told to give back and has not answered.
    Blocked,
    /// Fewer credits were granted than the new threshold says.
    ShortGrant,
    /// A threshold was reached by piggybacking, with more returned than the new one says.
    Excess,
    /// A threshold was reached by piggybacking, with no more returned than it says.
    Deficit,
    /// Quota moved from one sender to another.
    QuotaTransfer,
    /// Standing: a request or a response waits for a credit.
    ControlWaiting,
    /// A receiver was not ready.
    NotReady,
    /// It was never ready: the retries are used up, the connection is gone.
    GaveUp,
    /// The buffers of a connection grew.
    Growth,
    /// A sender left.
    Detached,
    /// A sender that had come back read what was granted in an earlier stay.
    StaleGrant,
    /// A sender learned of a request for a stay that has not begun for it.
    EarlyRequest,
    /// Somebody died.
    Crashed,
}

impl Happened {
    /// All, in the order of the table.
    pub const ALL: [Happened; 16] = [
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
    ];

    /// How the table calls it.
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
        }
    }

    /// Its bit.
    pub fn bit(self) -> u16 {
        1 << self as u16
    }
}
