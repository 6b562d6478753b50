//! The leases of one pair: the numbers of both, and the credit packets in our lane. [`super::lane_lease`] begins and
//! ends them.

use crate::packet::CreditUpdate;

/// The leases of one pair in both directions, and the credit packets in our lane there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Leases {
    /// The last update of our lease in its mailbox: its number, the credit packets of ours that the peer has read there, and
    /// what it has granted.
    update: CreditUpdate,
    /// Number of its lease in our mailbox.
    pub incoming: u16,
    /// Credit packets that we have sent in our current lease, modulo 2^16.
    credit_packets_sent: u16,
    /// Credit packets of the peer that we have read in its current lease, modulo 2^16.
    pub credit_packets_received: u16,
    /// Added to the count of the current lease for a [`crate::flow::Receiver`], which counts over its own lifetime.
    receiver_offset: u16,
}

impl Leases {
    /// We send a credit packet.
    #[inline]
    pub(super) fn credit_packet_sent(&mut self) {
        self.credit_packets_sent = self.credit_packets_sent.wrapping_add(1);
    }

    /// Number of our lease in its mailbox.
    #[inline]
    pub(super) fn outgoing(&self) -> u16 {
        self.update.epoch()
    }

    /// Whether we have applied this update, and none since.
    #[inline(always)]
    pub(super) fn has_applied(&self, update: CreditUpdate) -> bool {
        self.update == update
    }

    /// An update of our current lease is applied. Returns whether the peer has read more credit packets.
    #[inline]
    pub(super) fn apply(&mut self, update: CreditUpdate) -> bool {
        let before = core::mem::replace(&mut self.update, update);
        before.credit_packets_read() != update.credit_packets_read()
    }

    /// Credit packets that it has read as far as we know, in the count of the receiver half.
    #[inline]
    pub(super) fn credit_packets_read(&self) -> u16 {
        self.update.credit_packets_read().wrapping_add(self.receiver_offset)
    }

    /// Credit packets that we have sent, in the count of the receiver half.
    #[cfg(feature = "explore")]
    pub(super) fn credit_packets_sent(&self) -> u16 {
        self.credit_packets_sent.wrapping_add(self.receiver_offset)
    }

    /// The canonical form: unread credit packets, and those that the peer knows we know it has read. Without an
    /// outgoing lease neither matters.
    #[cfg(feature = "explore")]
    pub(super) fn canonical(&self, connected: bool, origin: super::origin::Origin) -> [u32; 3] {
        let Leases {
            update,
            incoming,
            credit_packets_sent,
            receiver_offset: _,
            credit_packets_received: _, /* part of the origin of the other side */
        } = *self;
        let incoming = u32::from(origin.outgoing.is(incoming));
        if !connected {
            return [incoming, u32::MAX, u32::MAX];
        }
        let unread = credit_packets_sent.wrapping_sub(update.credit_packets_read());
        let unknown = origin.credit_packets_read.wrapping_sub(update.credit_packets_read());
        [incoming, u32::from(unread), u32::from(unknown)]
    }

    /// Whether the peer's mailbox may hold credit packets of ours that it has not read.
    pub(super) fn has_unread_credit_packets(&self) -> bool {
        self.credit_packets_sent != self.update.credit_packets_read()
    }

    /// Our lease starts: all credit slots are free.
    pub(super) fn begin_outgoing(&mut self, epoch: u16) {
        self.receiver_offset = self.receiver_offset.wrapping_add(self.credit_packets_sent);
        (self.update, self.credit_packets_sent) = (CreditUpdate::new(epoch, 0, 0), 0);
    }

    /// Its lease starts, with a new receiver half.
    pub(super) fn begin_incoming(&mut self, epoch: u16) {
        self.incoming = epoch;
        self.receiver_offset = self.credit_packets_sent.wrapping_neg();
    }
}
