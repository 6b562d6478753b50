//! Static credits, connection form: pre-posted buffers for each connection, credits back with every packet of the other
//! direction. Source: Liu & Panda, "user-level static". Not the mailbox form ([`super::static_credits`]): there is no shared
//! mailbox behind it, credits travel in the header of every data packet instead of the last of a message, and the
//! threshold is a setting from which the number of slots for explicit credit messages (ECM) follows, not the other way
//! round.
//!
//! Worked exchange, 4 buffers, ECM threshold 2: the sender sends a, b, c. The receiver retrieves a and sends a message of
//! its own, whose every packet takes along what has gathered: 1 credit. It retrieves b (1) and c (2 = threshold): nothing
//! goes the other way, so an ECM returns 2.
//!
//! **An ECM never waits.** It costs no credit; and `q div E` slots are enough for all that can be unread. For if `m` are,
//! the credits in them, at least `m E`, were the sender's before and are not yet again, so `m E <= q`. The receiver
//! knows in time that one was read: the packets whose retrieval makes ECM number `q div E + 1` due cannot all have been
//! sent before the first of those unread was read, and every packet says how many have been.
//!
//! **Nothing deadlocks**: `1 <= E <= q`. A sender without credit has all `q` buffers filled, or retrieved and gathering,
//! or on their way back; once the receiver has retrieved them, `E` have gathered.

use core::num::NonZeroU32;

use super::ReceiverView;

/// When an explicit credit message is due, for a connection of `quota_slots` buffers: what was set, at most the quota;
/// half of the quota, rounded up, if nothing was.
pub fn ecm_threshold(quota_slots: u32, threshold_slots: Option<NonZeroU32>) -> u32 {
    threshold_slots.map_or(quota_slots.div_ceil(2), |slots| slots.get().min(quota_slots)).max(1)
}

/// Slots that the explicit credit messages for a connection of `quota_slots` buffers need at its sender.
pub fn ecm_slots(quota_slots: u32, threshold_slots: Option<NonZeroU32>) -> u32 {
    quota_slots / ecm_threshold(quota_slots, threshold_slots)
}

/// The receiving side.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// For reports.
    quota_slots: u32,
    threshold: u32,
    /// Credits that go back with the next packet.
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

    /// `slots` more credits are to go back, those of retrieved packets or new ones.
    #[inline]
    pub(super) fn gather(&mut self, slots: u32) {
        self.gathered += slots;
    }

    /// The connection has another number of buffers than before, so it has another threshold.
    pub(super) fn resize(&mut self, quota_slots: u32, threshold: u32) {
        self.quota_slots = quota_slots;
        self.threshold = threshold;
    }

    #[inline]
    pub(super) fn credit_packets_read(&mut self, read: u16) {
        // A total beyond what was sent is not believed: it would only make us too generous with ECMs.
        if self.ecms_sent.wrapping_sub(read) <= self.ecms_sent.wrapping_sub(self.ecms_read) {
            self.ecms_read = read;
        }
    }

    /// Whether the threshold is reached.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.gathered >= self.threshold
    }

    /// Credits for an ECM, if one is due. With equal settings on both sides the slots are always enough (see above); with
    /// others an ECM waits for the reading of an earlier one, and never overflows a mailbox.
    #[inline]
    pub(super) fn grant(&mut self, ecm_slots: u32) -> Option<u32> {
        let unread = u32::from(self.ecms_sent.wrapping_sub(self.ecms_read));
        if !self.is_due() || unread >= ecm_slots {
            return None;
        }
        self.ecms_sent = self.ecms_sent.wrapping_add(1);
        Some(self.piggyback())
    }

    /// All that has gathered, for a packet that is to leave anyway.
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
            // A sender that overran its quota is found elsewhere: a report must not stop for it.
            current: Some(self.quota_slots.saturating_sub(self.gathered)),
            retrieved: Some(self.gathered),
            threshold: Some(self.threshold),
            granted_total: Some(self.granted_total),
            unread_credit_packets: Some(u32::from(self.ecms_sent.wrapping_sub(self.ecms_read))),
        }
    }
}

#[cfg(feature = "explore")]
impl Receiver {
    /// See `flow/canonical.rs`.
    pub(super) fn books(&self, known_total: u32) -> super::ReceiverBooks {
        super::ReceiverBooks {
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

    /// Field notes, section 7, item 2 (a grant behind data): here an explicit credit message never waits for anything, with
    /// a sender that reads them as late as it can, and packets of any length.
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
                    let total = unread.pop_front().expect("a sender without credit has some to read");
                    sender.granted(total).expect("earned");
                    read = read.wrapping_add(1);
                }
            }
        }
    }

    /// What an explicit credit message is to the credit rules.
    #[derive(Clone, Copy, PartialEq)]
    enum Rule {
        /// Ours: it costs no credit and passes what waits.
        Free,
        /// It is a message like others (field notes, section 7, item 1).
        CostsCredit,
        /// It costs none, but stands in the queue behind data that does (item 2).
        BehindData,
    }

    /// Two that always have something to send, with `q` buffers each way. Both send all they can before they look at what has
    /// come, so that the packets cross and carry no credit. Returns the rounds of 100 after which nobody can go on.
    fn crossing(q: u32, rule: Rule) -> Option<u32> {
        let ends = || (Sender::new(q), Receiver::new(q, None));
        let mut ends = [ends(), ends()];
        for round in 0..100 {
            let sent = [0, 1].map(|end| {
                let (sender, receiver) = &mut ends[end];
                let slots = sender.credits();
                sender.spend(slots);
                receiver.piggyback(); // nothing has gathered in the first round; later it went explicitly
                (slots, receiver.granted_total())
            });
            let mut went = sent[0].0 + sent[1].0;
            for end in [0, 1] {
                let (slots, granted_total) = sent[1 - end];
                ends[end].0.granted(granted_total).expect("earned");
                ends[end].1.gather(slots);
            }
            for end in [0, 1] {
                // Data is always waiting, so without credit whatever stands behind it waits too.
                let can_leave = rule == Rule::Free || ends[end].0.credits() > 0;
                if can_leave && ends[end].1.grant(9).is_some() {
                    if rule == Rule::CostsCredit {
                        ends[end].0.spend(1);
                    }
                    let granted_total = ends[end].1.granted_total();
                    ends[1 - end].0.granted(granted_total).expect("earned");
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

    /// The counter-example to an ECM threshold beyond the quota, which [`ecm_threshold`] and the settings exclude.
    #[test]
    fn a_threshold_beyond_the_buffers_would_deadlock() {
        let (mut sender, mut receiver) = (Sender::new(3), Receiver::new(3, None));
        receiver.resize(3, 4);
        while sender.credits() > 0 {
            sender.spend(1);
            receiver.gather(1);
            assert_eq!(receiver.grant(1), None);
        }
        assert_eq!((sender.credits(), receiver.gathered), (0, 3)); // nothing is on its way to anybody
    }
}
