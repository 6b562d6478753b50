//! Pending work with one peer: the part of a peer's state that few peers have at a time. Messages
//! and acknowledgements wait here, and so do compulsory returns and packets that a busy link has refused. Here are also
//! stall times, bounce buffers for the peer, a remote write that is arriving, and the geometry of a path whose slots
//! differ.
//!
//! An endpoint may know thousands of peers, and most are idle: connected, with credits on both sides, and nothing
//! waits. So [`PeerEntry`](super::peer_entry::PeerEntry) is small, and this state is allocated while it is in use. The
//! memory of the last one is kept for the next. A first message to a peer needs it, because it waits for the
//! connection.

use alloc::boxed::Box;

use super::acks::PendingAcks;
use super::backlog::{Backlog, BacklogEntry, SpareEntries};
use super::compulsory::Compulsory;
use super::hold_queue::HoldQueue;
use crate::packet::Geometry;
use crate::time::Instant;

/// The packets that wait for the link of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BusyLink {
    /// The link has refused a packet and is not ready yet.
    pub busy: bool,
    /// A credit packet, whose credits count as granted.
    pub credit: bool,
    /// `Detach`.
    pub detach: bool,
}

/// What the head of a backlog waits for, and since when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Waits {
    #[default]
    Nothing,
    Credit(Instant),
    /// The link, which is busy.
    Link(Instant),
}

/// Pending work with one peer.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingWork {
    /// The entries that wait to be sent, in order.
    pub backlog: Backlog,
    /// The geometry of the path, if it differs from that of the endpoint.
    pub geometry: Option<Box<Geometry>>,
    /// The packets that wait for a busy link.
    pub busy_link: BusyLink,
    /// Compulsory returns, which leave before the backlog.
    pub compulsory: Compulsory,
    /// What the head of the backlog waits for.
    pub waits: Waits,
    /// Time of past stalls. Unit: ns.
    pub stalled_ns: u64,
    /// A packet of the remote write that is arriving was refused.
    pub write_refused: bool,
    /// Bytes of the remote write that have arrived.
    pub write_bytes: u64,
    /// Bounce buffers with messages that it has not received.
    pub bounce_buffers: u32,
    /// Its transfers that have ended here and that we have not acknowledged.
    pub acks: PendingAcks,
    /// Messages whose envelopes we hold for it, and its request about them.
    pub hold: Option<Box<HoldQueue>>,
}

impl PendingWork {
    /// Whether nothing waits to be sent, with or without credit.
    #[inline]
    pub fn has_nothing_to_send(&self) -> bool {
        self.backlog.is_empty() && !self.acks.is_due() && !self.compulsory.waits() && !self.has_hold_request()
    }

    /// Whether an answer about held messages waits to be sent.
    #[inline]
    pub fn has_hold_request(&self) -> bool {
        self.hold.as_deref().is_some_and(|hold| hold.request.is_some())
    }

    /// Packets that answers about held messages still need.
    #[inline]
    pub fn answer_packets(&self) -> u32 {
        self.hold.as_deref().map_or(0, HoldQueue::answer_packets)
    }

    /// Whether messages are held for the peer. Then all further ones are.
    #[inline]
    pub fn holds(&self) -> bool {
        self.hold.as_deref().is_some_and(HoldQueue::holds)
    }

    /// Whether no further message can be held. `most`: bound on the number of held messages.
    pub fn hold_is_full(&self, most: u32) -> bool {
        self.hold.as_deref().is_some_and(|hold| hold.count() >= most)
    }

    /// Frees an empty hold queue.
    pub fn end_hold(&mut self) {
        self.hold.take_if(|hold| hold.is_empty());
    }

    /// The geometry of the path. `own`: that of the endpoint.
    #[inline]
    pub fn geometry(&self, own: &Geometry) -> Geometry {
        *self.geometry.as_deref().unwrap_or(own)
    }

    /// Slots that everything queued needs. A lower bound if more than a few entries wait.
    pub fn queued_slots(&self, geometry: &Geometry) -> u32 {
        let acks = u32::from(self.acks.is_due());
        self.backlog.slots(geometry) + acks + self.compulsory.slots() + self.answer_packets()
    }

    /// Whether a message must wait behind others or for the link.
    #[inline]
    pub fn must_queue(&self) -> bool {
        !self.backlog.is_empty() || self.busy_link.busy
    }

    /// Whether the message `number` leaves with the next packet, as far as credits and the link allow.
    pub fn sends_next(&self, number: u32) -> bool {
        let waits_before =
            self.busy_link.busy || self.acks.is_due() || self.compulsory.waits() || self.has_hold_request();
        let first = self.backlog.iter().next();
        !waits_before && first.is_some_and(|entry| entry.starts_message() && entry.number == number)
    }

    /// Whether packets from the peer take the common path: nothing waits to be sent, and the geometry is that of the
    /// endpoint.
    #[inline]
    pub fn receives_on_common_path(&self) -> bool {
        self.has_nothing_to_send() && self.geometry.is_none()
    }

    /// The link has just refused the head of the backlog.
    pub fn link_refused(&mut self, now: Instant) {
        self.busy_link.busy = true;
        self.waits = Waits::Link(now);
    }

    /// The time since which the head of the backlog waits for credit.
    pub fn stalled_since(&self) -> Option<Instant> {
        match self.waits {
            Waits::Credit(since) => Some(since),
            Waits::Nothing | Waits::Link(_) => None,
        }
    }

    /// The time since which it waits for a busy link.
    pub fn link_busy_since(&self) -> Option<Instant> {
        match self.waits {
            Waits::Link(since) if !self.backlog.is_empty() => Some(since),
            _ => None,
        }
    }

    /// Whether messages to the peer take the common path, as far as pending work decides.
    #[inline]
    pub fn sends_on_common_path(&self) -> bool {
        !self.must_queue() && self.geometry.is_none() && self.hold.is_none()
    }

    /// Whether no event is expected.
    pub fn is_idle(&self) -> bool {
        self.backlog.is_empty()
            && !self.busy_link.busy
            && !self.compulsory.is_pending()
            && self.acks.is_idle()
            && self.bounce_buffers == 0
            && self.hold.is_none()
            && !self.write_refused
            && self.write_bytes == 0
    }

    /// Whether it is empty.
    fn is_empty(&self) -> bool {
        self.stalled_ns == 0
            && self.geometry.is_none()
            && self.waits == Waits::Nothing
            && self.compulsory == Compulsory::default()
            && self.is_idle()
    }

    /// Heap memory that it uses. Unit: bytes.
    pub fn bytes(&self) -> usize {
        let hold = |hold: &HoldQueue| size_of::<HoldQueue>() + hold.bytes();
        self.backlog.bytes() + self.acks.bytes() + self.hold.as_deref().map_or(0, hold)
    }
}

/// Spare memory for pending work: few of the many peers have pending work at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Spare {
    pending: Option<Box<PendingWork>>,
    entries: SpareEntries,
}

impl Spare {
    /// The pending work of a peer; creates it if there is none.
    #[inline]
    pub fn begin<'peer>(&mut self, pending: &'peer mut Option<Box<PendingWork>>) -> &'peer mut PendingWork {
        pending.get_or_insert_with(|| self.pending.take().unwrap_or_default())
    }

    /// Frees the pending work of a peer if it is empty.
    #[inline]
    pub fn end(&mut self, pending: &mut Option<Box<PendingWork>>) {
        if let Some(over) = pending.take_if(|pending| pending.is_empty()) {
            self.pending = Some(over);
        }
    }

    /// Adds an entry to a backlog.
    #[inline]
    pub fn push(&mut self, backlog: &mut Backlog, entry: BacklogEntry) {
        backlog.push(entry, &mut self.entries);
    }

    /// Removes the first entry of a backlog, and keeps its memory if that was the last.
    #[inline]
    pub fn pop(&mut self, backlog: &mut Backlog) {
        backlog.pop(&mut self.entries);
    }

    /// Heap memory that it uses. Unit: bytes.
    pub fn bytes(&self) -> usize {
        let pending = |pending: &PendingWork| size_of::<PendingWork>() + pending.bytes();
        self.entries.capacity() * size_of::<BacklogEntry>() + self.pending.as_deref().map_or(0, pending)
    }
}
