//! What is under way with a peer, apart from what there is of every peer.
//!
//! An endpoint may know thousands of peers, and most of them are at rest: connected, with credits on both sides, and nothing
//! waits. So what is there of all of them has to be small ([`PeerEntry`](super::PeerEntry)), and the rest stands by itself while there is any
//! of it. The memory of the last one that was over is kept for the next: a peer's first message waits for its connection, so
//! that every peer has something under way once.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use super::compulsory::Compulsory;
use super::receiver_memory::PendingAcks;
use super::sending::BacklogEntry;
use crate::time::Instant;

/// Room for a backlog that is kept when none waits, for all peers together.
const MAX_SPARE_ENTRIES: usize = 256;

/// What is under way with one peer.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingWork {
    /// What waits to be sent, in order.
    pub backlog: VecDeque<BacklogEntry>,
    /// What leaves before that.
    pub compulsory: Compulsory,
    /// Since when the head of the backlog waits for credit.
    pub stalled_since: Option<Instant>,
    /// Time in which it did, stalls that are over. Unit: ns.
    pub stalled_ns: u64,
    /// A packet of the remote write that is arriving was refused.
    pub write_refused: bool,
    /// Bytes of the remote write that have arrived.
    pub write_bytes: u64,
    /// BounceBuffers of our messages that it has not taken.
    pub bounce_buffers: u32,
    /// Its transfers that have ended here, of which it has not been told.
    pub acks: PendingAcks,
}

impl PendingWork {
    /// Whether nothing waits to be sent, with or without credit.
    #[inline]
    pub fn has_nothing_to_send(&self) -> bool {
        self.backlog.is_empty() && !self.acks.is_due() && !self.compulsory.waits()
    }

    /// Whether nothing is to happen any more that depends on it.
    pub fn is_idle(&self) -> bool {
        self.backlog.is_empty()
            && !self.compulsory.is_pending()
            && self.acks.is_idle()
            && self.bounce_buffers == 0
            && !self.write_refused
            && self.write_bytes == 0
    }

    /// Whether it says nothing at all any more.
    fn is_empty(&self) -> bool {
        self.stalled_ns == 0
            && self.stalled_since.is_none()
            && self.compulsory == Compulsory::default()
            && self.is_idle()
    }

    /// What it occupies beside itself. Unit: bytes.
    pub fn bytes(&self) -> usize {
        self.backlog.capacity() * size_of::<BacklogEntry>() + self.acks.bytes()
    }
}

/// Memory of what is over, for what begins: of the many peers few have something under way at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Spare {
    pending: Option<Box<PendingWork>>,
    backlog: VecDeque<BacklogEntry>,
}

impl Spare {
    /// What is under way with a peer, from now on if nothing was.
    #[inline]
    pub fn begin<'peer>(&mut self, pending: &'peer mut Option<Box<PendingWork>>) -> &'peer mut PendingWork {
        pending.get_or_insert_with(|| self.pending.take().unwrap_or_default())
    }

    /// Takes back what says nothing any more.
    #[inline]
    pub fn end(&mut self, pending: &mut Option<Box<PendingWork>>) {
        if let Some(over) = pending.take_if(|pending| pending.is_empty()) {
            self.pending = Some(over);
        }
    }

    /// Adds to a backlog.
    #[inline]
    pub fn push(&mut self, backlog: &mut VecDeque<BacklogEntry>, entry: BacklogEntry) {
        if backlog.is_empty() {
            *backlog = core::mem::take(&mut self.backlog);
            if backlog.capacity() == 0 {
                backlog.reserve_exact(1); // often there is never a second one
            }
        }
        backlog.push_back(entry);
    }

    /// Takes the first job out of a backlog, and its memory if that was the last.
    #[inline]
    pub fn pop(&mut self, backlog: &mut VecDeque<BacklogEntry>) {
        backlog.pop_front();
        if backlog.is_empty() {
            let emptied = core::mem::take(backlog);
            if emptied.capacity() <= MAX_SPARE_ENTRIES {
                self.backlog = emptied; // else a burst is over
            }
        }
    }

    /// What it occupies beside itself. Unit: bytes.
    pub fn bytes(&self) -> usize {
        let pending = |pending: &PendingWork| size_of::<PendingWork>() + pending.bytes();
        self.backlog.capacity() * size_of::<BacklogEntry>() + self.pending.as_deref().map_or(0, pending)
    }
}
