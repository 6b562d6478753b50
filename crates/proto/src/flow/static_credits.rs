//! Static credits, mailbox form: a fixed quota per sender. Source: Prades, thesis, chapter 5. Both sides of a pair are
//! here. [`Sender`] also serves the connection form, adaptive backlog and dynamic credits, which have receiving sides
//! of their own.
//!
//! Worked exchange, quota 3, one credit slot, threshold 2. The sender sends a, b, c and has no credit. The receiver
//! retrieves a (1 retrieved) and b (2 reaches the threshold): `credit, granted total 2`. The sender reads it and sends
//! d and e, which report that it has read 1 credit packet. With piggybacking, a message of the receiver after a would
//! have carried `granted total 1` in its last packet, and the count would restart at b.
//!
//! A packet may fill several slots, so the count may pass the threshold. Then all retrieved slots are returned. With
//! `n` credit slots, `n + 1` explicit grants return more than the quota. So the sender has read one of them (thesis,
//! 5.1), and a grant finds a free credit slot. This requires equal settings on both sides. Otherwise the grant waits.

#[cfg(feature = "explore")]
mod canonical;

use super::{GrantError, ReceiverView, SenderView};
use crate::mailbox::threshold;

/// The sending side.
#[derive(Clone, Debug)]
pub struct Sender {
    /// Starting credits and granted ones in all, modulo 2^32. The starting ones are the quota, except in schemes that start
    /// with fewer.
    all_total: u32,
    /// Maximum of credits: the quota.
    quota_slots: u32,
    /// Granted credits in all, modulo 2^32.
    granted_total: u32,
    /// Current credits, at most the quota (I1).
    credits: u32,
}

impl Sender {
    #[cfg(test)]
    pub(super) fn new(quota_slots: u32) -> Sender {
        Sender::starting_with(quota_slots, quota_slots)
    }

    /// With fewer starting credits than the quota.
    pub(super) fn starting_with(start_slots: u32, quota_slots: u32) -> Sender {
        let start_slots = start_slots.min(quota_slots);
        Sender { all_total: start_slots, quota_slots, granted_total: 0, credits: start_slots }
    }

    /// Slots that may be filled now.
    #[inline]
    pub fn credits(&self) -> u32 {
        self.credits
    }

    /// Slots that were spent in all, modulo 2^32.
    #[inline]
    pub(super) fn spent_total(&self) -> u32 {
        self.all_total.wrapping_sub(self.credits)
    }

    /// Spends `slots` credits.
    #[inline]
    pub fn spend(&mut self, slots: u32) {
        assert!(slots <= self.credits(), "spending {slots} credits of {}", self.credits());
        self.credits -= slots;
    }

    /// Spends `slots` credits if there are so many. Returns whether it did.
    #[inline]
    pub(super) fn try_spend(&mut self, slots: u32) -> bool {
        let Some(left) = self.credits.checked_sub(slots) else { return false };
        self.credits = left;
        true
    }

    /// Takes back `slots` spent credits.
    pub(super) fn refund(&mut self, slots: u32) {
        assert!(slots <= self.quota_slots - self.credits, "refund of {slots} credits that were not spent");
        self.credits += slots;
    }

    /// Applies a granted total.
    ///
    /// # Errors
    /// [`GrantError`] if the total decreases, or would leave more credits than the quota (I1).
    #[inline(always)]
    pub fn granted(&mut self, granted_total: u32) -> Result<(), GrantError> {
        let more = granted_total.wrapping_sub(self.granted_total);
        if more == 0 {
            return Ok(()); // nothing new
        }
        if more > self.quota_slots - self.credits {
            let credits = self.credits.wrapping_add(more);
            return Err(GrantError { granted_total, credits, quota_slots: self.quota_slots });
        }
        self.granted_total = granted_total;
        self.all_total = self.all_total.wrapping_add(more);
        self.credits += more;
        Ok(())
    }

    pub(super) fn view(&self) -> SenderView {
        SenderView {
            credits: self.credits(),
            quota_slots: Some(self.quota_slots),
            granted_total: Some(self.granted_total),
            spent_total: Some(self.spent_total()),
        }
    }
}

/// The receiving side.
#[derive(Clone, Debug)]
pub struct Receiver {
    quota_slots: u32,
    threshold: u32,
    piggyback: bool,
    /// Retrieved slots that are not granted again.
    retrieved: u32,
    granted_total: u32,
    /// Explicit credit packets sent, modulo 2^16.
    packets_sent: u16,
    /// Of those, read by the sender.
    packets_read: u16,
}

impl Receiver {
    pub(super) fn new(quota_slots: u32, credit_slots: u32, piggyback: bool) -> Receiver {
        Receiver {
            quota_slots,
            threshold: threshold(quota_slots, credit_slots),
            piggyback,
            retrieved: 0,
            granted_total: 0,
            packets_sent: 0,
            packets_read: 0,
        }
    }

    #[inline]
    pub(super) fn retrieved(&mut self, slots: u32) {
        self.retrieved += slots;
    }

    #[inline]
    pub(super) fn credit_packets_read(&mut self, read: u16) {
        // Ignore a total beyond what was sent: it would only let us send too many credit packets.
        if self.packets_sent.wrapping_sub(read) <= self.packets_sent.wrapping_sub(self.packets_read) {
            self.packets_read = read;
        }
    }

    /// Whether the threshold is reached.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.retrieved >= self.threshold
    }

    #[inline]
    pub(super) fn grant(&mut self, credit_slots: u32) -> Option<u32> {
        let unread = u32::from(self.packets_sent.wrapping_sub(self.packets_read));
        // With equal settings on both sides the threshold alone keeps `unread` below `credit_slots` (I2). With unequal
        // settings this check delays a grant instead of overflowing a mailbox.
        if !self.is_due() || unread >= credit_slots {
            return None;
        }
        self.packets_sent = self.packets_sent.wrapping_add(1);
        Some(self.take())
    }

    #[inline]
    pub(super) fn piggyback(&mut self) -> u32 {
        if self.piggyback { self.take() } else { 0 }
    }

    #[inline]
    pub(super) fn granted_total(&self) -> u32 {
        self.granted_total
    }

    pub(super) fn view(&self) -> ReceiverView {
        ReceiverView {
            quota_slots: Some(self.quota_slots),
            // Other checks detect a sender that overran its quota. A report must not stop for it.
            current: Some(self.quota_slots.saturating_sub(self.retrieved)),
            retrieved: Some(self.retrieved),
            threshold: Some(self.threshold),
            granted_total: Some(self.granted_total),
            unread_credit_packets: Some(u32::from(self.packets_sent.wrapping_sub(self.packets_read))),
            loan: None,
        }
    }

    #[inline]
    fn take(&mut self) -> u32 {
        let credits = core::mem::take(&mut self.retrieved);
        self.granted_total = self.granted_total.wrapping_add(credits);
        credits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_at_the_threshold_returns_all_retrieved_slots() {
        const N: u32 = 1;
        let mut receiver = Receiver::new(3, N, false);
        receiver.retrieved(1);
        assert_eq!(receiver.grant(N), None);
        receiver.retrieved(2); // a run of two slots passes the threshold of 2
        assert_eq!(receiver.grant(N), Some(3));
        assert_eq!(receiver.granted_total(), 3);
    }

    #[test]
    fn a_credit_packet_waits_while_all_credit_slots_are_unread() {
        const N: u32 = 1;
        let mut receiver = Receiver::new(3, N, false);
        receiver.retrieved(2);
        assert_eq!(receiver.grant(N), Some(2));
        receiver.retrieved(2);
        assert_eq!(receiver.grant(N), None);
        receiver.credit_packets_read(1);
        assert_eq!(receiver.grant(N), Some(2));
    }

    #[test]
    fn piggybacked_credits_reset_the_retrieved_count() {
        const N: u32 = 2;
        let mut receiver = Receiver::new(10, N, true);
        receiver.retrieved(3);
        assert_eq!(receiver.piggyback(), 3);
        receiver.retrieved(3);
        assert_eq!(receiver.grant(N), None); // threshold 4
        receiver.retrieved(1);
        assert_eq!(receiver.grant(N), Some(4));
        assert_eq!(receiver.granted_total(), 7);
    }

    #[test]
    fn a_grant_above_the_quota_is_rejected_and_changes_nothing() {
        let mut sender = Sender::new(4);
        sender.spend(2);
        assert_eq!(sender.granted(3), Err(GrantError { granted_total: 3, credits: 5, quota_slots: 4 }));
        assert_eq!(sender.credits(), 2);
        assert_eq!(sender.granted(2), Ok(()));
        assert_eq!(sender.granted(2), Ok(())); // repeated: no credit is created
        assert_eq!(sender.credits(), 4);
        assert!(sender.granted(1).is_err()); // backwards
    }

    #[test]
    fn a_sender_with_few_starting_credits_can_be_granted_up_to_the_quota() {
        let mut sender = Sender::starting_with(1, 4);
        assert_eq!(sender.credits(), 1);
        assert_eq!(sender.granted(3), Ok(()));
        assert_eq!(sender.credits(), 4);
        assert_eq!(sender.granted(4), Err(GrantError { granted_total: 4, credits: 5, quota_slots: 4 }));
    }

    #[test]
    fn granted_totals_wrap_at_32_bits() {
        let mut sender = Sender::new(4);
        let mut total = 0u32;
        for _ in 0..5 {
            sender.granted_total = sender.granted_total.wrapping_add(u32::MAX / 4);
            sender.all_total = sender.all_total.wrapping_add(u32::MAX / 4);
            total = total.wrapping_add(u32::MAX / 4);
            sender.spend(4);
            total = total.wrapping_add(4);
            assert_eq!(sender.granted(total), Ok(()));
            assert_eq!(sender.credits(), 4);
        }
    }
}
