//! Static credits, connection form, the receiving side: pre-posted buffers for each connection, and credits that return
//! with every data packet of the other direction. Source: Liu & Panda, "user-level static". Here are also the threshold
//! of explicit credit messages (ECM) and the slots for them. The sending side is `static_credits::Sender`. Adaptive
//! backlog uses this receiving side too ([`super::adaptive_backlog`]).
//!
//! It differs from the mailbox form ([`super::static_credits`]) in three ways. There is no shared mailbox. The header
//! of every data packet carries credits, not only that of a message's last packet. The threshold is a setting, and the
//! number of slots for ECMs follows from it.
//!
//! Worked exchange, 4 buffers, ECM threshold 2. The sender sends a, b, c. The receiver retrieves a and sends a message
//! of its own, whose first packet piggybacks 1 credit. It retrieves b (1) and c (2 = threshold). No packet goes the
//! other way, so an ECM returns 2 credits.
//!
//! Below, `q` is the quota (the number of buffers), and `E` is the ECM threshold.
//!
//! **An ECM never waits for a slot** if both sides have equal settings and the quota is fixed. Otherwise it may have to
//! wait until the sender has read an earlier one. Proof: an ECM costs no credit, and `q div E` slots are enough for all
//! unread ECMs. Let `m` ECMs be unread. Their credits, at least `m E`, were the sender's before and are not yet again,
//! so `m E <= q`. The receiver also learns in time that an ECM was read. Consider the packets whose retrieval makes ECM
//! number `q div E + 1` due. They cannot all have been sent before the first unread ECM was read, and every packet
//! reports how many were read.
//!
//! **No deadlock**: `1 <= E <= q`. All `q` buffers of a sender without credit are filled, or retrieved and not
//! returned, or returned and in flight. Once the receiver has retrieved all of them, credits are in flight, or all `q`
//! are to be returned, which is at least `E`.

use core::num::NonZeroU32;

use super::ReceiverView;

/// The ECM threshold for a connection of `quota_slots` buffers: the setting, at most the quota. Without a setting it is
/// half of the quota, rounded up.
pub fn ecm_threshold(quota_slots: u32, threshold_slots: Option<NonZeroU32>) -> u32 {
    threshold_slots.map_or(quota_slots.div_ceil(2), |slots| slots.get().min(quota_slots)).max(1)
}

/// Slots that the ECMs of a connection of `quota_slots` buffers need at its sender.
pub fn ecm_slots(quota_slots: u32, threshold_slots: Option<NonZeroU32>) -> u32 {
    quota_slots / ecm_threshold(quota_slots, threshold_slots)
}

/// The receiving side.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// For reports.
    quota_slots: u32,
    threshold: u32,
    /// Credits that the next packet returns.
    gathered: u32,
    granted_total: u32,
    /// Explicit credit messages sent, modulo 2^16.
    ecms_sent: u16,
    /// Of those, read by the sender.
    ecms_read: u16,
}

impl Receiver {
    pub(super) fn new(quota_slots: u32, threshold_slots: Option<NonZeroU32>) -> Receiver {
        let threshold = ecm_threshold(quota_slots, threshold_slots);
        Receiver { quota_slots, threshold, gathered: 0, granted_total: 0, ecms_sent: 0, ecms_read: 0 }
    }

    /// `slots` more credits are to be returned: retrieved slots or new buffers.
    #[inline]
    pub(super) fn gather(&mut self, slots: u32) {
        self.gathered += slots;
    }

    /// The number of buffers has changed, and with it the threshold.
    pub(super) fn resize(&mut self, quota_slots: u32, threshold: u32) {
        self.quota_slots = quota_slots;
        self.threshold = threshold;
    }

    #[inline]
    pub(super) fn credit_packets_read(&mut self, read: u16) {
        // Ignore a total beyond what was sent: it would only let us send too many ECMs.
        if self.ecms_sent.wrapping_sub(read) <= self.ecms_sent.wrapping_sub(self.ecms_read) {
            self.ecms_read = read;
        }
    }

    /// Whether the threshold is reached.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.gathered >= self.threshold
    }

    /// Credits for an ECM, if one is due. With equal settings on both sides a slot is always free (see above). With
    /// unequal settings an ECM waits until an earlier one was read, and never overflows a mailbox.
    #[inline]
    pub(super) fn grant(&mut self, ecm_slots: u32) -> Option<u32> {
        let unread = u32::from(self.ecms_sent.wrapping_sub(self.ecms_read));
        if !self.is_due() || unread >= ecm_slots {
            return None;
        }
        self.ecms_sent = self.ecms_sent.wrapping_add(1);
        Some(self.piggyback())
    }

    /// All credits to be returned, for a packet that leaves in any case.
    #[inline]
    pub(super) fn piggyback(&mut self) -> u32 {
        let credits = core::mem::take(&mut self.gathered);
        self.granted_total = self.granted_total.wrapping_add(credits);
        credits
    }

    #[inline]
    pub(super) fn granted_total(&self) -> u32 {
        self.granted_total
    }

    pub(super) fn view(&self) -> ReceiverView {
        ReceiverView {
            quota_slots: Some(self.quota_slots),
            // Other checks detect a sender that overran its quota. A report must not stop for it.
            current: Some(self.quota_slots.saturating_sub(self.gathered)),
            retrieved: Some(self.gathered),
            threshold: Some(self.threshold),
            granted_total: Some(self.granted_total),
            unread_credit_packets: Some(u32::from(self.ecms_sent.wrapping_sub(self.ecms_read))),
            loan: None,
        }
    }
}

#[cfg(feature = "explore")]
impl Receiver {
    /// See `flow/canonical.rs`.
    pub(super) fn totals(&self, known_total: u32) -> super::ReceiverTotals {
        super::ReceiverTotals {
            quota_slots: Some(self.quota_slots),
            granted_unknown: self.granted_total.wrapping_sub(known_total),
            retrieved: self.gathered,
            current: None,
        }
    }

    /// See `flow/canonical.rs`.
    pub(super) fn canonical(&self, base: super::Base, words: &mut alloc::vec::Vec<u32>) {
        let Receiver { quota_slots, threshold, gathered, granted_total, ecms_sent, ecms_read } = *self;
        words.extend([quota_slots, threshold, gathered]);
        words.extend(base.distances(granted_total, ecms_sent, ecms_read));
    }
}

#[cfg(test)]
mod tests {
    use super::super::static_credits::Sender;
    use super::*;

    fn slots(slots: u32) -> Option<NonZeroU32> {
        NonZeroU32::new(slots)
    }

    #[test]
    fn the_ecm_threshold_defaults_to_half_and_never_exceeds_the_buffers() {
        assert_eq!([1, 2, 5, 256].map(|q| ecm_threshold(q, None)), [1, 1, 3, 128]);
        assert_eq!([1, 2, 5, 256].map(|q| ecm_threshold(q, slots(4))), [1, 2, 4, 4]);
        assert_eq!([1, 2, 5, 256].map(|q| ecm_slots(q, None)), [1, 2, 1, 2]);
        assert_eq!(ecm_slots(256, slots(4)), 64);
    }

    #[test]
    fn credits_return_with_a_packet_or_at_the_threshold() {
        let mut receiver = Receiver::new(4, slots(2));
        receiver.gather(1);
        assert_eq!(receiver.grant(2), None);
        assert_eq!(receiver.piggyback(), 1);
        receiver.gather(1);
        assert_eq!(receiver.grant(2), None);
        receiver.gather(1);
        assert_eq!(receiver.grant(2), Some(2));
        assert_eq!((receiver.piggyback(), receiver.granted_total()), (0, 3));
    }

    /// Known failure 2 (a grant behind data): an ECM never waits. The sender reads ECMs as late as it can, and packets
    /// have any length.
    #[test]
    fn an_explicit_credit_message_never_waits_and_never_lacks_a_slot() {
        for q in 1..=40 {
            for (set, run) in (1..=q).flat_map(|set| [1, 2, 3, q].map(|run| (set, run.min(q)))) {
                let (threshold, room) = (ecm_threshold(q, slots(set)), ecm_slots(q, slots(set)));
                let (mut sender, mut receiver) = (Sender::new(q), Receiver::new(q, slots(set)));
                let (mut unread, mut read) = (alloc::collections::VecDeque::new(), 0u16);
                for _ in 0..4 * q {
                    while sender.credits() > 0 {
                        let slots = run.min(sender.credits());
                        sender.spend(slots);
                        receiver.credit_packets_read(read);
                        receiver.gather(slots);
                        unread.extend(receiver.grant(room).map(|_| receiver.granted_total()));
                        assert!(receiver.gathered < threshold, "q={q} E={set}: an ECM waits");
                        assert!(
                            unread.len() as u32 <= room,
                            "q={q} E={set}: {} unread in {room}",
                            unread.len()
                        );
                    }
                    let total = unread.pop_front().expect("a sender without credit has an unread ECM");
                    sender.granted(total).expect("a valid grant");
                    read = read.wrapping_add(1);
                }
            }
        }
    }

    /// The treatment of an ECM by the credit rules.
    #[derive(Clone, Copy, PartialEq)]
    enum Rule {
        /// Our rule: it costs no credit and passes queued data.
        Free,
        /// It is a message like others (known failure 1).
        CostsCredit,
        /// It costs no credit, but waits behind data that does (known failure 2).
        BehindData,
    }

    /// Two senders that always have something to send, with `q` buffers each way. Both send all they can before they
    /// look at what has arrived, so the packets cross and carry no credit. Returns the round of 100 in which both are
    /// stuck.
    fn crossing(q: u32, rule: Rule) -> Option<u32> {
        let ends = || (Sender::new(q), Receiver::new(q, None));
        let mut ends = [ends(), ends()];
        for round in 0..100 {
            let sent = [0, 1].map(|end| {
                let (sender, receiver) = &mut ends[end];
                let slots = sender.credits();
                sender.spend(slots);
                receiver.piggyback(); // nothing to return in the first round; later ECMs returned it
                (slots, receiver.granted_total())
            });
            let mut went = sent[0].0 + sent[1].0;
            for end in [0, 1] {
                let (slots, granted_total) = sent[1 - end];
                ends[end].0.granted(granted_total).expect("a valid grant");
                ends[end].1.gather(slots);
            }
            for end in [0, 1] {
                // Data always waits, so without credit an ECM behind it waits too.
                let can_leave = rule == Rule::Free || ends[end].0.credits() > 0;
                if can_leave && ends[end].1.grant(9).is_some() {
                    if rule == Rule::CostsCredit {
                        ends[end].0.spend(1);
                    }
                    let granted_total = ends[end].1.granted_total();
                    ends[1 - end].0.granted(granted_total).expect("a valid grant");
                    went += 1;
                    ends[end].1.credit_packets_read(ends[end].1.ecms_sent);
                }
            }
            if went == 0 {
                return Some(round);
            }
        }
        None
    }

    #[test]
    fn crossing_messages_without_credits_deadlock_only_under_the_wrong_rules() {
        for q in 1..20 {
            assert_eq!(crossing(q, Rule::Free), None, "q={q}");
            assert_eq!(crossing(q, Rule::CostsCredit), Some(1), "q={q}: the known deadlock");
            assert_eq!(crossing(q, Rule::BehindData), Some(1), "q={q}: the known deadlock");
        }
    }

    /// Counter-example for an ECM threshold above the quota, which [`ecm_threshold`] and the settings exclude.
    #[test]
    fn a_threshold_beyond_the_buffers_would_deadlock() {
        let (mut sender, mut receiver) = (Sender::new(3), Receiver::new(3, None));
        receiver.resize(3, 4);
        while sender.credits() > 0 {
            sender.spend(1);
            receiver.gather(1);
            assert_eq!(receiver.grant(1), None);
        }
        assert_eq!((sender.credits(), receiver.gathered), (0, 3)); // nothing is in flight
    }
}
