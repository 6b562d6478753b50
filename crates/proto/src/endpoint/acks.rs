//! Coalesced acknowledgements to one peer: transfers that have ended here and that it does not know of. One packet
//! acknowledges several of them. [`super::transmit`] sends them. This file decides when they are due: at once if an
//! operation of the peer waits, otherwise when enough bounce buffers can be freed together, or when the endpoint is
//! idle.

use alloc::collections::VecDeque;

use crate::event::Transfer;

/// Coalesced acknowledgements: transfers of one peer that have ended here and that we have not acknowledged. They leave
/// before the backlog, and one packet carries several where the names are consecutive.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingAcks {
    /// The first name of each range, and the length of the range.
    ranges: VecDeque<(u32, u32)>,
    bounce_buffers: u32,
    copied_bytes: u64,
    /// They leave as soon as there is credit.
    due: bool,
    /// The peer is in the endpoint's list of pending acknowledgements.
    listed: bool,
}

impl PendingAcks {
    /// Bounce buffers that are acknowledged together. A late acknowledgement costs the sender memory, but no operation
    /// waits for it.
    const COPIES: u32 = 16;
    /// Maximum of their payload. Unit: bytes.
    const COPIED_BYTES: u64 = 1 << 16;

    #[inline]
    pub fn is_due(&self) -> bool {
        self.due
    }

    /// Number of acknowledgements that are due and that an operation of the peer waits for.
    pub fn awaited(&self) -> u64 {
        let awaited = |&&(first, _): &&(u32, u32)| Transfer(first).bounce_buffer().is_none();
        let counts = self.ranges.iter().filter(awaited).map(|&(_, count)| u64::from(count));
        if self.due { counts.sum() } else { 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Heap memory that it uses.
    pub fn bytes(&self) -> usize {
        self.ranges.capacity() * size_of::<(u32, u32)>()
    }

    /// Whether there is nothing to acknowledge, now or later.
    pub fn is_idle(&self) -> bool {
        self.is_empty() && !self.listed
    }

    #[inline]
    pub fn add(&mut self, transfer: Transfer, bytes: u64) {
        if transfer.bounce_buffer().is_none() {
            self.ranges.push_back((transfer.0, 1)); // an operation of its sender waits for it
            self.due = true;
            return;
        }
        self.bounce_buffers += 1;
        self.copied_bytes += bytes;
        self.due |=
            self.bounce_buffers >= PendingAcks::COPIES || self.copied_bytes >= PendingAcks::COPIED_BYTES;
        match self.ranges.back_mut() {
            Some((first, count)) if transfer.0 == first.wrapping_add(*count) => *count += 1,
            Some((first, count))
                if transfer.0.wrapping_add(1) == *first && Transfer(*first).bounce_buffer().is_some() =>
            {
                (*first, *count) = (transfer.0, *count + 1);
            }
            _ => self.ranges.push_back((transfer.0, 1)),
        }
    }

    /// The first range: its first name, and its length.
    #[inline]
    pub fn first(&self) -> Option<(Transfer, u32)> {
        self.ranges.front().map(|&(first, count)| (Transfer(first), count))
    }

    /// Removes the first range.
    #[inline]
    pub fn remove_first(&mut self) {
        self.ranges.pop_front();
        if self.ranges.is_empty() {
            (self.bounce_buffers, self.copied_bytes, self.due) = (0, 0, false);
            if self.ranges.capacity() > 1024 {
                self.ranges = VecDeque::new();
            }
        }
    }

    /// The peer needs none of them any more.
    pub fn clear(&mut self) {
        *self = PendingAcks { listed: self.listed, ..PendingAcks::default() };
    }

    /// All that there are leave as soon as there is credit.
    pub fn all_are_due(&mut self) {
        self.due = !self.is_empty();
    }

    /// Notes that the peer is in the endpoint's list. Returns whether it was not.
    pub fn list(&mut self) -> bool {
        !core::mem::replace(&mut self.listed, true)
    }

    /// The endpoint has taken the peer from its list: all that there are leave now.
    pub fn unlist(&mut self) {
        (self.due, self.listed) = (!self.is_empty(), false);
    }
}
