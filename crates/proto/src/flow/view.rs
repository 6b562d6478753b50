//! Views of the two sides of a pair for reports: read-only, with the same fields for every scheme. A field that a
//! scheme does not have is `None`.

use super::{Pool, Receiver, Sender};

/// The state of a sending side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderView {
    /// Slots that may be filled now.
    pub credits: u32,
    /// Starting credits.
    pub quota_slots: Option<u32>,
    /// Granted credits beyond them, modulo 2^32.
    pub granted_total: Option<u32>,
    /// Filled slots in all, modulo 2^32.
    pub spent_total: Option<u32>,
}

/// The state of a receiving side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverView {
    /// The quota of this sender, or its intended quota with dynamic credits. Unit: slots.
    pub quota_slots: Option<u32>,
    /// Slots that the sender owns now: its credits, credits in flight, and filled slots that are not retrieved.
    pub current: Option<u32>,
    /// Slots retrieved and not granted again.
    pub retrieved: Option<u32>,
    /// Number of retrieved slots at which credits are returned.
    pub threshold: Option<u32>,
    /// Granted credits in all, modulo 2^32.
    pub granted_total: Option<u32>,
    /// Explicit credit packets that the sender has not yet reported as read.
    pub unread_credit_packets: Option<u32>,
    /// What it was lent and wants, with credits on demand.
    pub loan: Option<LoanView>,
}

/// What a sender was lent and wants, with credits on demand. Of the slots that it holds ([`ReceiverView::current`]), those
/// that are not idle are a loan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoanView {
    /// Slots that it wants beyond those that it holds, as far as the receiver knows.
    pub demand: u32,
    /// Credits for which it has told no use: guaranteed or prefetched ones. Unit: slots.
    pub idle: u32,
    /// The slots that prefetch may let it hold.
    pub window: u32,
    /// Its demand waits for free slots, and at most so many senders get a turn before it. `None`: it does not wait.
    pub ahead: Option<u32>,
}

impl Sender {
    /// The current state.
    pub fn view(&self) -> SenderView {
        match self {
            Sender::Unlimited(sender) => SenderView { credits: sender.room(), ..SenderView::default() },
            Sender::Hardware(sender) => SenderView { credits: sender.room(), ..SenderView::default() },
            Sender::Static(sender) | Sender::StaticConnection(sender) => sender.view(),
            // Its quota grows, and only the receiver knows the current value.
            Sender::AdaptiveBacklog(sender) => SenderView { quota_slots: None, ..sender.view() },
            Sender::Dynamic(sender) => sender.view(),
            Sender::Demand(sender) => SenderView { quota_slots: None, ..sender.view() },
        }
    }
}

impl Receiver {
    /// The current state.
    pub fn view(&self, pool: &Pool) -> ReceiverView {
        match self {
            Receiver::Unlimited => ReceiverView::default(),
            Receiver::Static(receiver) => receiver.view(),
            Receiver::StaticConnection(receiver) => receiver.view(),
            Receiver::AdaptiveBacklog(receiver) => receiver.credits().view(),
            Receiver::Dynamic(account) => pool.dynamic.view(*account),
            Receiver::Demand(receiver) => pool.demand().view(receiver.account),
        }
    }
}
