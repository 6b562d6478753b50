//! The backlog of one peer: entries that wait to be sent, in order, and how an entry is cut into packets.
//!
//! An entry also says whether closing would lose something with it, and the backlog counts the answers to remote
//! accesses. The caller says how many slots a packet may fill.

use alloc::collections::VecDeque;

use crate::action::Source;
use crate::event::{BufferId, Request, Transfer};
use crate::offload::{Offloaded, WORD_BYTES};
use crate::packet::{Body, Geometry, Space};

/// Capacity of the empty backlog that is kept for reuse, for all peers together.
const MAX_SPARE_ENTRIES: usize = 256;

/// An entry of a peer's backlog: it leaves in one packet or several.
#[derive(Clone, Copy, Debug)]
pub(super) struct BacklogEntry {
    pub kind: EntryKind,
    /// Payload bytes that have left.
    pub sent: u64,
    /// Payload bytes in all.
    pub bytes: u64,
    pub payload: Source,
    /// The request to complete when the last packet has left.
    pub complete: Option<Request>,
    pub number: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum EntryKind {
    /// An eager message. `delivered`: its send completes only when the receiver's side holds it
    /// ([`crate::SendLevel::Delivered`]).
    Eager { space: Space, tag: u64, data: Option<u64>, acknowledge: Option<Transfer>, delivered: bool },
    /// One packet without payload.
    Control(Body),
    /// Of an offloaded machine: one packet, or as many as the payload needs.
    Offloaded(Offloaded),
    /// The response to a fetch or read of the peer's `transfer`. `ours`: the send that is fetched, if it has no bounce
    /// buffer.
    Pieces { transfer: Transfer, ours: Option<Transfer> },
    /// A remote write.
    Write { transfer: Transfer, key: u64, offset: u64, data: Option<u64> },
}

impl EntryKind {
    /// Our send or write that the entry serves, if it has a name that the peer can answer to.
    pub(super) fn own_transfer(&self) -> Option<Transfer> {
        match *self {
            EntryKind::Eager { acknowledge, .. } => acknowledge,
            EntryKind::Control(Body::Rendezvous { transfer, .. }) | EntryKind::Write { transfer, .. } => {
                Some(transfer)
            }
            EntryKind::Pieces { ours, .. } => ours,
            EntryKind::Control(_) | EntryKind::Offloaded(_) => None,
        }
    }
}

impl BacklogEntry {
    pub(super) fn control(body: Body) -> BacklogEntry {
        BacklogEntry {
            kind: EntryKind::Control(body),
            sent: 0,
            bytes: 0,
            payload: Source::None,
            complete: None,
            number: 0,
        }
    }

    /// Whether it belongs to an operation that was reported complete, and would be lost if the endpoint closed now.
    /// Bounce buffers are not included: the endpoint counts them whether they have left or not.
    pub(super) fn is_completed(&self) -> bool {
        match self.kind {
            EntryKind::Eager { acknowledge, .. } => {
                self.complete.is_none() && acknowledge.is_none() && !self.is_bounced()
            }
            EntryKind::Control(Body::Finished { .. }) => true,
            EntryKind::Offloaded(packet) => packet.is_answer(),
            // These belong to an incomplete operation of ours or to a bounce buffer, or are not needed after closing.
            EntryKind::Control(_) | EntryKind::Pieces { .. } | EntryKind::Write { .. } => false,
        }
    }

    /// Whether its next packet is the first of a message.
    pub(super) fn starts_message(&self) -> bool {
        let message =
            matches!(self.kind, EntryKind::Eager { .. } | EntryKind::Control(Body::Rendezvous { .. }));
        message && self.sent == 0
    }

    /// Whether its payload is in a bounce buffer.
    pub(super) fn is_bounced(&self) -> bool {
        matches!(self.payload, Source::Bounce { .. })
    }

    pub(super) fn payload(kind: EntryKind, bytes: u64, payload: Source) -> BacklogEntry {
        BacklogEntry { kind, sent: 0, bytes, payload, complete: None, number: 0 }
    }

    /// Whether it answers a remote read or write of the peer.
    pub(super) fn is_answer(&self) -> bool {
        match self.kind {
            EntryKind::Pieces { .. } => matches!(self.payload, Source::Region { .. }),
            EntryKind::Control(Body::Located { .. } | Body::Finished { .. }) => true,
            EntryKind::Offloaded(packet) => packet.is_answer(),
            _ => false,
        }
    }

    /// The buffer that ends with this entry, if there is one.
    pub(super) fn owned_buffer(&self) -> Option<BufferId> {
        match (self.kind, self.payload) {
            (EntryKind::Offloaded(packet), Source::Buffer { buffer, .. }) if packet.owns_payload() => {
                Some(buffer)
            }
            _ => None,
        }
    }

    /// The eager message of `request` waited for the match. Now it waits only for its own last packet.
    pub(super) fn await_last_packet(&mut self, request: Request) {
        if let EntryKind::Eager { acknowledge, .. } = &mut self.kind {
            *acknowledge = None;
            self.complete = Some(request);
        }
    }

    /// The start of the payload that has not left.
    #[inline]
    pub(super) fn unsent_payload(&self) -> Source {
        match self.payload {
            Source::Request { request, offset } => Source::Request { request, offset: offset + self.sent },
            Source::Region { key, offset } => Source::Region { key, offset: offset + self.sent },
            Source::Bounce { transfer, offset } => Source::Bounce { transfer, offset: offset + self.sent },
            Source::Buffer { buffer, offset } => Source::Buffer { buffer, offset: offset + self.sent },
            Source::None => Source::None,
        }
    }

    /// The body of the next packet if it carries `payload_bytes` of payload.
    #[inline]
    fn body(&self, payload_bytes: u64) -> Body {
        let last = self.sent + payload_bytes == self.bytes;
        match self.kind {
            EntryKind::Eager { space, tag, data, acknowledge, .. } if self.sent == 0 => {
                Body::Eager { space, tag, data, length: self.bytes as u32, acknowledge }
            }
            EntryKind::Eager { .. } => Body::More { offset: self.sent as u32 },
            EntryKind::Control(body) => body,
            EntryKind::Offloaded(packet) => Body::Offloaded(packet.at_offset(self.sent as u32)),
            EntryKind::Pieces { transfer, .. } => Body::Piece { transfer, offset: self.sent, last },
            EntryKind::Write { transfer, key, offset, data } => {
                let left = self.bytes - self.sent - payload_bytes;
                let data = if last { data } else { None };
                Body::Write { transfer, key, offset: offset + self.sent, left, data }
            }
        }
    }

    /// Slots that the packets need once `sent` bytes of payload have left but not the last packet, at most
    /// [`MAX_WANTED_SLOTS`].
    pub(super) fn slots_after(&self, sent: u64, geometry: &Geometry) -> u32 {
        let left = self.bytes - sent;
        if left == 0 {
            return 1;
        }
        let (first, next) = match self.kind {
            EntryKind::Eager { .. } if sent == 0 => {
                (geometry.header_bytes(&self.body(left)), geometry.more_header_bytes)
            }
            EntryKind::Eager { .. } => (geometry.more_header_bytes, geometry.more_header_bytes),
            EntryKind::Control(_) => return 1,
            EntryKind::Pieces { .. } | EntryKind::Write { .. } | EntryKind::Offloaded(_) => {
                (geometry.remote_header_bytes, geometry.remote_header_bytes)
            }
        };
        let most_slots = geometry.max_packet_slots;
        let slots = |header_bytes, bytes: u64| u64::from(geometry.slots(header_bytes, bytes as u32));
        let first_bytes = u64::from(geometry.payload_bytes(first, most_slots));
        if first_bytes >= left {
            return slots(first, left) as u32;
        }
        let (rest, packet_bytes) =
            (left - first_bytes, u64::from(geometry.payload_bytes(next, most_slots)).max(1));
        let tail_slots = if rest % packet_bytes > 0 { slots(next, rest % packet_bytes) } else { 0 };
        let all = (1 + rest / packet_bytes) * u64::from(most_slots) + tail_slots;
        all.min(MAX_WANTED_SLOTS.into()) as u32
    }

    /// The header of the next packet. Equals [`Geometry::header_bytes`] of its body, which need not be made for that.
    #[inline]
    fn header_bytes(&self, geometry: &Geometry) -> u32 {
        match &self.kind {
            EntryKind::Eager { .. } if self.sent > 0 => geometry.more_header_bytes,
            EntryKind::Eager { acknowledge: None, .. } => geometry.eager_header_bytes,
            EntryKind::Control(body) => geometry.header_bytes(body),
            _ => geometry.remote_header_bytes,
        }
    }

    /// Cuts the next packet, of at most `credits` slots. Returns the payload bytes, the slots and the body.
    #[inline(always)]
    pub(super) fn cut(&self, geometry: &Geometry, credits: u32) -> (u32, u32, Body) {
        let left = self.bytes - self.sent;
        let header_bytes = self.header_bytes(geometry);
        debug_assert_eq!(header_bytes, geometry.header_bytes(&self.body(left)));
        let (payload_bytes, slots) = if left == 0 {
            (0, 1)
        } else {
            let most_slots = credits.min(geometry.max_packet_slots);
            let mut most_bytes = geometry.payload_bytes(header_bytes, most_slots);
            if let EntryKind::Offloaded(_) = self.kind {
                most_bytes -= most_bytes % WORD_BYTES; // a machine combines whole elements
            }
            if u64::from(most_bytes) >= left {
                (left as u32, geometry.slots(header_bytes, left as u32))
            } else {
                (most_bytes, most_slots)
            }
        };
        (payload_bytes, slots, self.body(u64::from(payload_bytes)))
    }
}

/// Bound on the slots that we announce to one peer, far below half of the range of the total.
const MAX_WANTED_SLOTS: u32 = 1 << 20;

/// Entries at the head of a backlog whose slots are counted when a packet announces them.
const COUNTED_ENTRIES: usize = 8;

/// The entries that wait to be sent to one peer, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Backlog {
    entries: VecDeque<BacklogEntry>,
    /// Entries that answer remote reads and writes of the peer.
    answers: u32,
    /// Entries that searches could visit, for tests that count instead of timing.
    #[cfg(test)]
    pub visits: core::cell::Cell<usize>,
}

impl Backlog {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of entries that answer remote reads and writes of the peer.
    pub fn answers(&self) -> u32 {
        self.answers
    }

    pub fn front_mut(&mut self) -> Option<&mut BacklogEntry> {
        self.entries.front_mut()
    }

    pub fn back_mut(&mut self) -> Option<&mut BacklogEntry> {
        self.entries.back_mut()
    }

    /// Whether an entry is complete for the program. The last ones are looked at first.
    pub fn has_complete(&self) -> bool {
        self.entries.iter().rev().any(|entry| entry.is_completed() || entry.is_bounced())
    }

    /// All entries. An event that ends one operation must not visit them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &BacklogEntry> {
        self.visit_all();
        self.entries.iter()
    }

    /// Removes the entries that `keep` rejects. They must not be answers to remote reads and writes.
    pub fn retain(&mut self, keep: impl FnMut(&BacklogEntry) -> bool) {
        self.visit_all();
        self.entries.retain(keep);
    }

    /// Slots that the entries need: exact for the first few, and at least one for each other, at most
    /// [`MAX_WANTED_SLOTS`].
    pub fn slots(&self, geometry: &Geometry) -> u32 {
        let first = self.entries.front().map_or(0, |entry| entry.slots_after(entry.sent, geometry));
        (first + self.slots_behind_first(geometry)).min(MAX_WANTED_SLOTS)
    }

    /// The same without the first entry.
    pub fn slots_behind_first(&self, geometry: &Geometry) -> u32 {
        let near = self.entries.iter().take(COUNTED_ENTRIES).skip(1);
        let near = near.fold(0, |slots: u32, entry| slots.saturating_add(entry.slots_after(0, geometry)));
        let far = self.entries.len().saturating_sub(COUNTED_ENTRIES) as u32;
        near.saturating_add(far).min(MAX_WANTED_SLOTS)
    }

    /// Adds an entry. `spare`: the memory of an emptied backlog, for the first entry.
    #[inline]
    pub fn push(&mut self, entry: BacklogEntry, spare: &mut SpareEntries) {
        self.answers += u32::from(entry.is_answer());
        if self.entries.is_empty() {
            self.entries = core::mem::take(spare);
            if self.entries.capacity() == 0 {
                self.entries.reserve_exact(1); // often there is never a second entry
            }
        }
        self.entries.push_back(entry);
    }

    /// Removes the first entry. Its memory becomes `spare` if that was the last.
    #[inline]
    pub fn pop(&mut self, spare: &mut SpareEntries) {
        let first = self.entries.pop_front();
        self.answers -= u32::from(first.is_some_and(|entry| entry.is_answer()));
        if self.entries.is_empty() {
            let emptied = core::mem::take(&mut self.entries);
            if emptied.capacity() <= MAX_SPARE_ENTRIES {
                *spare = emptied; // else a burst is over
            }
        }
    }

    /// Heap memory that it uses. Unit: bytes.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<BacklogEntry>()
    }

    fn visit_all(&self) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + self.entries.len());
    }
}

/// The memory of an emptied backlog.
pub(super) type SpareEntries = VecDeque<BacklogEntry>;
