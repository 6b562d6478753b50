//! What the two sides of a pair show of themselves, for reports: read-only, and the same words for every scheme.
//! What a scheme does not have is `None`.

use super::{Pool, Receiver, Sender};

/// The sending side, as it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderView {
    /// Slots that may be filled now.
    pub credits: u32,
    /// Slots that were the sender's from the beginning.
    pub quota_slots: Option<u32>,
    /// All that was granted since, modulo 2^32.
    pub granted_total: Option<u32>,
    /// All slots filled, modulo 2^32.
    pub spent_total: Option<u32>,
}

/// The receiving side, as it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverView {
    /// Slots that are meant for this sender: its quota, or what the scheme intends for it now.
    pub quota_slots: Option<u32>,
    /// Slots that are the sender's now: credits that it has, credits on their way, slots that it has filled and that are
    /// not retrieved.
    pub current: Option<u32>,
    /// Slots retrieved and not granted again.
    pub retrieved: Option<u32>,
    /// Credits go back when so many slots are retrieved.
    pub threshold: Option<u32>,
    /// All that was granted, modulo 2^32.
    pub granted_total: Option<u32>,
    /// Explicit credit packets that the sender has not said to have read.
    pub unread_credit_packets: Option<u32>,
}

impl Sender {
    /// As it stands.
    pub fn view(&self) -> SenderView {
        match self {
            Sender::Unlimited(sender) => SenderView { credits: sender.room(), ..SenderView::default() },
            Sender::Hardware(sender) => SenderView { credits: sender.room(), ..SenderView::default() },
            Sender::Static(sender) | Sender::StaticConnection(sender) => sender.view(),
            // It grows, and only the receiver knows how far it has.
            Sender::AdaptiveBacklog(sender) => SenderView { quota_slots: None, ..sender.view() },
            Sender::Dynamic(sender) => sender.view(),
        }
    }
}

impl Receiver {
    /// As it stands.
    pub fn view(&self, pool: &Pool) -> ReceiverView {
        match self {
            Receiver::Unlimited => ReceiverView::default(),
            Receiver::Static(receiver) => receiver.view(),
            Receiver::StaticConnection(receiver) => receiver.view(),
            Receiver::AdaptiveBacklog(receiver) => receiver.credits().view(),
            Receiver::Dynamic(account) => pool.view(*account),
        }
    }
}
