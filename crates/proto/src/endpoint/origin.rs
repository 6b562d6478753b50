//! The sender's knowledge of one pair: its totals ([`Origin`]), and which leases are current ([`Lease`]). The canonical
//! form measures the receiver's totals from there (feature `explore`).

/// The knowledge of an endpoint as the sender of a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Granted credits that it knows of, modulo 2^32.
    pub granted_total: u32,
    /// Credit packets that it has read, modulo 2^16.
    pub credit_packets_read: u16,
    /// Its lease at the receiver.
    pub outgoing: Lease,
    /// The receiver's lease at it.
    pub incoming: Lease,
}

/// The last lease of a sender in a mailbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// Its number.
    pub epoch: u16,
    /// The sender has not detached.
    pub is_active: bool,
}

impl Lease {
    /// Whether `epoch` is the current lease. Packets of other leases carry no valid totals.
    pub fn is(&self, epoch: u16) -> bool {
        self.is_active && self.epoch == epoch
    }
}
