//! Flow control: how a receiver is kept from drowning. One file per scheme, a closed set behind two enums.
//!
//! A [`Sender`] says how many slots may be filled at a peer, a [`Receiver`] says when what was retrieved is given
//! back. Neither knows messages. What is granted travels as a cumulative total, so that a repeated or late grant
//! neither mints nor loses credit and the totals can be checked instead of believed.

#[cfg(feature = "explore")]
mod canonical;
pub mod static_credits;
pub mod unlimited;

#[cfg(feature = "explore")]
pub use canonical::ReceiverBooks;

use crate::config::Scheme;

/// Totals that do not fit what was granted and spent: the peer does not keep to the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("granted total {granted_total} would leave {credits} credits of a quota of {quota_slots}")]
pub struct GrantError {
    /// What came.
    pub granted_total: u32,
    /// The credits that it would leave.
    pub credits: u32,
    /// The most there can be.
    pub quota_slots: u32,
}

/// The sending side of one pair.
#[derive(Clone, Debug)]
pub enum Sender {
    /// See [`unlimited`].
    Unlimited(unlimited::Sender),
    /// See [`static_credits`].
    Static(static_credits::Sender),
}

impl Sender {
    /// The side of a sender that owns `quota_slots` data slots at the receiver.
    pub fn new(scheme: Scheme, quota_slots: u32) -> Sender {
        match scheme {
            Scheme::Unlimited => Sender::Unlimited(unlimited::Sender::default()),
            Scheme::Static { .. } => Sender::Static(static_credits::Sender::new(quota_slots)),
        }
    }

    /// Slots that may be filled now.
    #[inline]
    pub fn credits(&self) -> u32 {
        match self {
            Sender::Unlimited(sender) => sender.room(),
            Sender::Static(sender) => sender.credits(),
        }
    }

    /// Fills `slots` slots, at most [`Sender::credits`].
    #[inline]
    pub fn spend(&mut self, slots: u32) {
        match self {
            Sender::Unlimited(sender) => sender.spend(slots),
            Sender::Static(sender) => sender.spend(slots),
        }
    }

    /// Takes note of the total in a packet from the receiver.
    ///
    /// # Errors
    /// [`GrantError`] if it cannot be; nothing has changed then.
    #[inline]
    pub fn granted(&mut self, granted_total: u32) -> Result<(), GrantError> {
        match self {
            Sender::Unlimited(_) => Ok(()),
            Sender::Static(sender) => sender.granted(granted_total),
        }
    }

    /// The link found `slots` more slots free.
    pub fn found_room(&mut self, slots: u32) {
        if let Sender::Unlimited(sender) = self {
            sender.found_room(slots);
        }
    }

    /// Whether room comes by asking the link instead of by grants.
    #[inline]
    pub fn claims_conditionally(&self) -> bool {
        matches!(self, Sender::Unlimited(_))
    }
}

/// The receiving side of one pair.
#[derive(Clone, Debug)]
pub enum Receiver {
    /// Returns nothing: the link shows what is free.
    Unlimited,
    /// See [`static_credits`].
    Static(static_credits::Receiver),
}

impl Receiver {
    /// The side of a receiver whose sender owns `quota_slots` data slots here; the threshold is for `credit_slots` slots
    /// for credit packets there.
    pub fn new(scheme: Scheme, quota_slots: u32, credit_slots: u32) -> Receiver {
        match scheme {
            Scheme::Unlimited => Receiver::Unlimited,
            Scheme::Static { piggyback } => {
                Receiver::Static(static_credits::Receiver::new(quota_slots, credit_slots, piggyback))
            }
        }
    }

    /// A packet of `slots` data slots has been retrieved.
    #[inline]
    pub fn retrieved(&mut self, slots: u32) {
        if let Receiver::Static(receiver) = self {
            receiver.retrieved(slots);
        }
    }

    /// The sender says how many credit packets it has read, modulo 2^16.
    #[inline]
    pub fn credit_packets_read(&mut self, read: u16) {
        if let Receiver::Static(receiver) = self {
            receiver.credit_packets_read(read);
        }
    }

    /// Credits for an explicit credit packet, if one is due now and one of the `credit_slots` slots for it at the sender is
    /// free. They count as granted.
    #[inline]
    pub fn grant(&mut self, credit_slots: u32) -> Option<u32> {
        match self {
            Receiver::Unlimited => None,
            Receiver::Static(receiver) => receiver.grant(credit_slots),
        }
    }

    /// Credits that go with a packet that has room for them; 0 without piggybacking. They count as granted.
    #[inline]
    pub fn piggyback(&mut self) -> u32 {
        match self {
            Receiver::Unlimited => 0,
            Receiver::Static(receiver) => receiver.piggyback(),
        }
    }

    /// All credits granted so far, modulo 2^32.
    #[inline]
    pub fn granted_total(&self) -> u32 {
        match self {
            Receiver::Unlimited => 0,
            Receiver::Static(receiver) => receiver.granted_total(),
        }
    }
}
