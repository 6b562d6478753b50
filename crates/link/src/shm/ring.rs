//! The ring of one lane: one writer, one reader, and packets that fill a slot or a run of slots.
//!
//! Its caller makes sure that slots are free: the sender owns credits, or has asked [`Writer::newly_free_slots`]. It
//! does not know who else writes to the mailbox, or how the reader learns where to look ([`super::doorbell`],
//! [`super::inbox`]). [`Writer`] and [`Reader`] use a lane through [`LaneMemory`], which is mapped memory, or the heap
//! in tests.
//!
//! An example on a lane of 4 slots. `w` is the first word of a slot; 0 means empty:
//! ```text
//!                                   slot 0   slot 1   slot 2   slot 3
//! fresh                             w=0      w=0      w=0      w=0
//! writer: packet of 1 slot at 0     w=1
//! writer: packet of 2 slots at 1             w=2      (payload)
//! reader: reads 0, zeroes it        w=0
//! reader: reads 1..3, zeroes both   w=0      w=0      w=0
//!         returns 3 credits
//! writer: packet of 3 at 3          (pay)    (load)            w=4    the run wraps
//! ```
//!
//! # A stale word is never taken for a packet
//! Only the head of a run has a publish word. In the other slots of the run the same four bytes are payload, of any
//! value. So the sequence number alone proves nothing. The proof is this invariant: *a slot that the writer may fill
//! holds zero in its first word.*
//! - It holds at the start, because a new file is zero.
//! - The reader restores it: it zeroes the first word of every slot that it retires, before it returns the credit.
//! - The other process sees these stores in order. The credit return is itself a packet, published with Release and
//!   read with Acquire. Without credits the `retired` word has this role, with Release and Acquire. The writer
//!   refills the slot after it has read one of them.
//! - The reader reads the first word of position `p` only when everything before `p` is retired. The writer fills
//!   slots in order, and a run that covers this slot as a body would start before `p`. So the slot is empty, or its
//!   head is at `p`.
//!
//! The word is `position mod 2^31 + 1`. The reader finds packets by testing for 0. Then it checks that the word is
//! the expected one; otherwise the writer is malformed. Two positions can share a word. They never meet in one slot,
//! because the slot holds zero in between.
//!
//! # Early wrap
//! A lane is as long as a sender may ever need. A sender of few messages would still pass through all of it, and so
//! through the caches of both cores. So after [`EARLY_WRAP_SLOTS`] slots the writer checks whether everything is
//! retired. If so, it *wraps early*: it writes its next packet at slot 0 and publishes it there. Then it writes the
//! word [`EARLY_WRAP`] to the slot where the packet would have been, which sends the reader to slot 0.
//!
//! That slot has no position. The writer must not touch it until the reader has seen the word. It need not: in the
//! next lap both skip the slot, even inside a run. So a ring has one slot more than can be unread.
//! ```text
//!                                   slot 0   slot 1   slot 2   slot 3
//! all retired, both at slot 2       w=0      w=0      w=0      w=0
//! writer: packet of 1 at position 2 w=3               WRAP
//! writer: packet of 2 at position 3          w=4               (load)    slot 2 is skipped
//! reader: at slot 2: WRAP, zeroes   w=3      w=4      w=0
//!         continues at slot 0       w=0      w=4
//! reader: reads 3..5                w=0      w=0      w=0      w=0
//! ```
//!
//! # Data and credit packets share the ring
//! At most the quota of data slots (I1) and the credit slots (I2) are unread at any time. One slot is reserved for
//! the last packet of a lease (`Detach`), and an early wrap skips one. The ring has as many slots as these together.
//! The order of the kinds does not matter.

use super::cooperative_copy::CooperativeCopy;
use super::sync::{AtomicU32, AtomicU64, Ordering};
use crate::memory::UserMemory;
use core::ptr::NonNull;
use weir_proto::wire::{self, EAGER_HEADER_BYTES, PacketError, SLOT_BYTES};
use weir_proto::{Geometry, Packet};

/// The slot sizes of this link.
pub const GEOMETRY: Geometry = Geometry::SHARED_MEMORY;
/// The most payload of a packet: that of the kind with the shortest header. Unit: bytes.
const MAX_PAYLOAD_BYTES: u32 = GEOMETRY.max_packet_slots * GEOMETRY.slot_bytes - GEOMETRY.more_header_bytes;

/// The first word of a slot from which the writer has wrapped early. No publish word is that large.
const EARLY_WRAP: u32 = u32::MAX;
/// After so many slots the writer checks whether it can wrap early. The check and the wrap each move one cache line
/// between the cores.
pub const EARLY_WRAP_SLOTS: u32 = if cfg!(test) { 2 } else { 256 };
/// Not a slot.
const NO_SLOT: u32 = u32::MAX;

/// A value in a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct CacheLine<T>(pub T);

/// The words of a lane that change while it is in use. The reader writes the first two.
#[repr(C)]
#[derive(Debug, Default)]
pub struct LaneControl {
    /// 1 while the reader polls the lane, so that the writer need not announce.
    pub polled: CacheLine<AtomicU32>,
    /// Slots retired since the start of the lease.
    pub retired: CacheLine<AtomicU64>,
    /// The cooperative copy of the lane's reader and writer.
    pub copy: CacheLine<CooperativeCopy>,
}

/// The memory of one lane: mapped, or on the heap for tests and the model checker.
///
/// # Safety
/// `word(slot)` must be the first four bytes of slot `slot < slots()`. `write` and `read` must touch only the `64 *
/// slots()` bytes of the slots.
pub unsafe trait LaneMemory {
    /// Length of the ring. Unit: slots.
    fn slots(&self) -> u32;
    /// The lane's control words.
    fn control(&self) -> &LaneControl;
    /// The first word of a slot.
    fn word(&self, slot: u32) -> &AtomicU32;
    /// Copies `bytes` bytes from `from` to byte `at` of the slots.
    ///
    /// # Safety
    /// `from` is readable. The range is inside the slots. The caller is the lane's writer and owns them.
    unsafe fn write(&self, at: usize, from: *const u8, bytes: usize);
    /// Copies `bytes` bytes from byte `at` of the slots to `to`.
    ///
    /// # Safety
    /// `to` is writable. The range is inside the slots. The caller is the lane's reader and has seen them published.
    unsafe fn read(&self, at: usize, to: *mut u8, bytes: usize);
}

/// [`Geometry::packet_slots`] of a packet with `header_bytes`, at least one, which fit in one slot.
#[inline(always)]
fn slots_of(packet: &Packet, header_bytes: u32) -> u32 {
    1 + (header_bytes + packet.payload_bytes - 1) / SLOT_BYTES as u32
}

/// The publish word of a run whose head is at `position`.
#[inline]
pub fn publish_word(position: u64) -> u32 {
    (position as u32 & (u32::MAX >> 1)) + 1
}

/// A point in a ring: its position, its slot (which avoids a division), and a slot ahead that this lap skips, or
/// [`NO_SLOT`].
#[derive(Clone, Copy, Debug)]
struct Cursor {
    position: u64,
    slot: u32,
    skipped_slot: u32,
}

impl Cursor {
    const START: Cursor = Cursor { position: 0, slot: 0, skipped_slot: NO_SLOT };

    #[inline]
    fn advance(&mut self, by: u32, slots: u32) {
        self.position += u64::from(by);
        let mut slot = self.slot + by;
        if slot >= self.skipped_slot {
            (slot, self.skipped_slot) = (slot + 1, NO_SLOT);
        }
        self.slot = if slot >= slots { slot - slots } else { slot };
    }

    /// Continues at slot 0 and skips the current slot in the next lap. Everything is retired, so a slot skipped
    /// before is free again.
    fn wrap_early(&mut self) {
        (self.skipped_slot, self.slot) = (self.slot, 0);
    }

    /// Calls `visit(slot, count)` for each contiguous part of the slots behind the head of a run of `run_slots`
    /// slots.
    #[inline]
    fn for_each_stretch(self, run_slots: u32, slots: u32, mut visit: impl FnMut(u32, u32)) {
        let (mut at, mut left) = (self.slot + 1, run_slots - 1);
        while left > 0 {
            at += u32::from(at == self.skipped_slot);
            at = if at >= slots { at - slots } else { at };
            let end = if at < self.skipped_slot { slots.min(self.skipped_slot) } else { slots };
            let count = left.min(end - at);
            visit(at, count);
            (at, left) = (at + count, left - count);
        }
    }
}

/// Calls `visit(byte of the slots, bytes)` for each contiguous part of the `bytes` bytes behind the head of the run
/// at `cursor`.
#[inline]
fn for_each_body_part(cursor: Cursor, bytes: u32, slots: u32, mut visit: impl FnMut(usize, usize)) {
    let mut left = bytes as usize;
    cursor.for_each_stretch(1 + bytes.div_ceil(SLOT_BYTES as u32), slots, |slot, count| {
        let here = left.min(count as usize * SLOT_BYTES);
        visit(slot as usize * SLOT_BYTES, here);
        left -= here;
    });
}

/// The writing side of a ring.
#[derive(Debug)]
pub struct Writer<L> {
    lane: L,
    at: Cursor,
    /// `slots + retired` at the last call of `newly_free_slots`, without the two reserved slots.
    slots_counted: u64,
    /// Position of the next check for an early wrap.
    next_wrap_check: u64,
    /// Least distance between two checks. Unit: slots.
    early_wrap_slots: u32,
    /// The slot from which the current packet has wrapped early, or [`NO_SLOT`].
    early_wrap_slot: u32,
}

impl<L: LaneMemory> Writer<L> {
    /// A writer at position 0 of a fresh lane.
    pub fn new(lane: L) -> Writer<L> {
        Writer::with_early_wrap_slots(lane, EARLY_WRAP_SLOTS)
    }

    /// As [`Writer::new`], with another number than [`EARLY_WRAP_SLOTS`].
    pub fn with_early_wrap_slots(lane: L, early_wrap_slots: u32) -> Writer<L> {
        let next_wrap_check =
            if early_wrap_slots < lane.slots() { u64::from(early_wrap_slots) } else { u64::MAX };
        Writer {
            lane,
            at: Cursor::START,
            slots_counted: 0,
            next_wrap_check,
            early_wrap_slots,
            early_wrap_slot: NO_SLOT,
        }
    }

    /// The lane's memory.
    #[inline]
    pub fn lane(&self) -> &L {
        &self.lane
    }

    /// Writes a packet except for its publish word: payload in the run's body, then the head. Returns the slots that
    /// it fills.
    ///
    /// # Panics
    /// If the packet does not fit in the lane, or its payload is missing. Both are bugs of the endpoint machine.
    #[inline(always)]
    pub fn fill(&mut self, packet: &Packet, payload: Option<(&UserMemory, u64)>) -> u32 {
        let (slots, in_head) = self.begin(packet);
        if in_head < packet.payload_bytes {
            self.fill_body(packet.payload_bytes, payload, in_head);
        }
        self.fill_head(packet, payload, in_head);
        slots
    }

    /// The slots that the packet fills, and the bytes of its payload that are in the head.
    #[inline(always)]
    pub fn begin(&mut self, packet: &Packet) -> (u32, u32) {
        if self.at.position >= self.next_wrap_check {
            self.try_early_wrap();
        }
        let header_bytes = GEOMETRY.header_bytes(&packet.body);
        let slots = slots_of(packet, header_bytes);
        assert!(
            slots < self.lane.slots() && slots <= GEOMETRY.max_packet_slots,
            "a packet of {slots} slots does not fit in a lane of {}",
            self.lane.slots()
        );
        debug_assert!(
            self.at.position + u64::from(slots)
                < self.lane.control().retired.0.load(Ordering::Acquire) + u64::from(self.lane.slots()),
            "the writer does not own the slots at position {}: the machine sent without credits or free slots",
            self.at.position
        );
        (slots, packet.payload_bytes.min(SLOT_BYTES as u32 - header_bytes))
    }

    /// Wraps early if everything is retired.
    #[cold]
    #[inline(never)]
    fn try_early_wrap(&mut self) {
        self.next_wrap_check = self.at.position + u64::from(self.early_wrap_slots);
        // Acquire: as in `newly_free_slots`.
        let retired = self.lane.control().retired.0.load(Ordering::Acquire);
        if retired == self.at.position && self.at.slot > 0 {
            self.early_wrap_slot = self.at.slot;
            self.at.wrap_early();
        }
    }

    /// Writes the payload behind its first `in_head` bytes into the slots after the head. The whole payload has
    /// `payload_bytes` bytes.
    #[inline(never)]
    pub fn fill_body(&mut self, payload_bytes: u32, payload: Option<(&UserMemory, u64)>, in_head: u32) {
        let Some((memory, offset)) = payload else { return };
        let left = payload_bytes - in_head;
        let mut from_byte = offset + u64::from(in_head);
        for_each_body_part(self.at, left, self.lane.slots(), |mut at, bytes| {
            memory.for_each_stretch(from_byte, bytes as u64, |from, bytes| {
                // SAFETY: the part is readable by the promise behind `UserMemory`. `begin` has checked that the run
                // fits in the lane, so each part is inside the slots. Credit makes the run the writer's own.
                unsafe { self.lane.write(at, from, bytes) };
                at += bytes;
            });
            from_byte += bytes as u64;
        });
    }

    /// Writes the head without its first word, with the first `in_head` bytes of the payload.
    #[inline(always)]
    pub fn fill_head(&mut self, packet: &Packet, payload: Option<(&UserMemory, u64)>, in_head: u32) {
        let at = self.at.slot as usize * SLOT_BYTES;
        match wire::encode_eager(packet) {
            // SAFETY: bytes 4 to 48 of a slot of the ring. Credit makes the slot the writer's own. The reader reads
            // only the first word until that is published.
            Some(head) => unsafe {
                self.lane.write(at + 4, head[4..].as_ptr(), EAGER_HEADER_BYTES - 4);
            },
            // A copy, so that only this case keeps the packet in memory.
            None => self.fill_header(&{ *packet }),
        }
        if in_head > 0 {
            let (memory, offset) = payload.expect("a packet with payload bytes comes with its payload");
            let mut to = at + GEOMETRY.header_bytes(&packet.body) as usize;
            memory.for_each_stretch(offset, u64::from(in_head), |from, bytes| {
                // SAFETY: the part is readable by the promise behind `UserMemory`. `in_head` bytes fit behind the
                // header in the slot, which is the writer's own as above.
                unsafe { self.lane.write(to, from, bytes) };
                to += bytes;
            });
        }
    }

    /// Writes the header of a packet of any kind, without its first word.
    #[inline(never)]
    fn fill_header(&mut self, packet: &Packet) {
        let head = wire::encode(packet);
        let at = self.at.slot as usize * SLOT_BYTES + 4;
        // SAFETY: 60 bytes behind the first word of a slot of the ring, which is the writer's own as in `fill_head`.
        unsafe { self.lane.write(at, head.as_ptr().add(4), SLOT_BYTES - 4) };
    }

    /// Publishes the filled packet of `slots` slots and advances.
    #[inline(always)]
    pub fn publish(&mut self, slots: u32) {
        self.publish_word();
        if self.early_wrap_slot != NO_SLOT {
            self.publish_early_wrap();
        }
        self.advance(slots);
    }

    /// First part of [`Writer::publish`].
    #[inline(always)]
    pub(super) fn publish_word(&mut self) {
        // Release: a reader that sees the word sees the run.
        self.lane.word(self.at.slot).store(publish_word(self.at.position), Ordering::Release);
    }

    /// Last part of [`Writer::publish`].
    #[inline(always)]
    pub(super) fn advance(&mut self, slots: u32) {
        self.at.advance(slots, self.lane.slots());
    }

    /// Whether the current packet has wrapped early.
    #[cfg(test)]
    pub(super) fn wraps_early(&self) -> bool {
        self.early_wrap_slot != NO_SLOT
    }

    /// Sends the reader to slot 0, where the packet was published just before. Only then can the reader see the
    /// packet.
    #[cold]
    #[inline(never)]
    pub(super) fn publish_early_wrap(&mut self) {
        // Release: a reader that follows finds the packet.
        self.lane.word(self.early_wrap_slot).store(EARLY_WRAP, Ordering::Release);
        self.early_wrap_slot = NO_SLOT;
    }

    /// Slots that have become free since the last call. The first call counts the whole lane except the two reserved
    /// slots. If the reader claims to have retired slots that were never written, the result is 0.
    pub fn newly_free_slots(&mut self) -> u32 {
        let slots = u64::from(self.lane.slots()) - 2;
        // Acquire: the reader's zeroes in the slots come before what the writer writes there.
        let retired = self.lane.control().retired.0.load(Ordering::Acquire);
        if retired > self.at.position {
            return 0;
        }
        let total = slots + retired;
        let more = total.saturating_sub(self.slots_counted);
        self.slots_counted += more;
        more.min(slots) as u32
    }
}

/// The first slot of a packet, copied from shared memory before any check.
pub type Head = [u8; SLOT_BYTES];

/// The checked facts of a run. Nothing reads its head in shared memory again.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    payload_bytes: u32,
    header_bytes: u32,
    slots: u32,
}

impl Found {
    /// Copies the payload bytes in `head`, which [`Reader::read_head`] has filled, of the first `bytes` ones of the
    /// packet to `memory`. Returns their number. The others are in the body.
    ///
    /// # Panics
    /// If the packet or the memory has fewer bytes.
    #[inline(always)]
    pub fn copy_from_head(&self, head: &Head, memory: &UserMemory, offset: u64, bytes: u64) -> u64 {
        assert!(
            bytes <= u64::from(self.payload_bytes),
            "cannot copy {bytes} bytes of a packet with {} payload bytes",
            self.payload_bytes
        );
        let behind_header = &head[self.header_bytes as usize..];
        let in_head = (bytes as usize).min(behind_header.len());
        if in_head > 0 {
            memory.write(offset, &behind_header[..in_head]);
        }
        in_head as u64
    }
}

/// The fault of the header in `head`. `None`: the header is valid, so its sequence or its length is wrong.
#[cold]
pub fn header_fault(head: &Head) -> Option<PacketError> {
    wire::decode(head, MAX_PAYLOAD_BYTES).err()
}

/// The lane holds something that is not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedPacket;

/// The reading side of a ring.
#[derive(Debug)]
pub struct Reader<L> {
    lane: L,
    at: Cursor,
}

impl<L: LaneMemory> Reader<L> {
    /// A reader at position 0.
    pub fn new(lane: L) -> Reader<L> {
        Reader { lane, at: Cursor::START }
    }

    /// The lane's memory.
    #[inline]
    pub fn lane(&self) -> &L {
        &self.lane
    }

    /// Slots retired since the start of the lease.
    pub fn position(&self) -> u64 {
        self.at.position
    }

    /// Whether a packet is published.
    #[inline]
    pub fn arrived(&self) -> bool {
        self.lane.word(self.at.slot).load(Ordering::Acquire) != 0
    }

    /// Copies the first slot of the next packet to `head` and checks the copy. The header goes to `packet`. Call this
    /// after [`Reader::arrived`].
    ///
    /// # Errors
    /// [`MalformedPacket`]: out of sequence, not decodable, or longer than a packet or the lane can be.
    #[inline(always)]
    pub fn read_head(&mut self, head: &mut Head, packet: &mut Packet) -> Result<Found, MalformedPacket> {
        if self.lane.word(self.at.slot).load(Ordering::Acquire) != publish_word(self.at.position) {
            self.follow_early_wrap()?;
        }
        // SAFETY: one whole slot of the ring, which is published (the Acquire load above).
        unsafe { self.lane.read(self.at.slot as usize * SLOT_BYTES, head.as_mut_ptr(), SLOT_BYTES) };
        wire::decode_into(head, MAX_PAYLOAD_BYTES, packet).map_err(|_| MalformedPacket)?;
        let header_bytes = GEOMETRY.header_bytes(&packet.body);
        let slots = slots_of(packet, header_bytes);
        if slots > GEOMETRY.max_packet_slots || slots >= self.lane.slots() {
            return Err(MalformedPacket);
        }
        Ok(Found { payload_bytes: packet.payload_bytes, header_bytes, slots })
    }

    /// Follows an early wrap of the writer to slot 0.
    #[cold]
    #[inline(never)]
    fn follow_early_wrap(&mut self) -> Result<(), MalformedPacket> {
        let word = self.lane.word(self.at.slot);
        if self.at.slot == 0 || word.load(Ordering::Acquire) != EARLY_WRAP {
            return Err(MalformedPacket);
        }
        word.store(0, Ordering::Relaxed); // before `retired` and before any credit, as in `retire`
        self.at.wrap_early();
        let published = self.lane.word(0).load(Ordering::Acquire) == publish_word(self.at.position);
        published.then_some(()).ok_or(MalformedPacket)
    }

    /// Copies the first `bytes` payload bytes of the current packet to `memory`, head and body.
    #[cfg(test)]
    pub fn copy_payload(&self, head: &Head, found: &Found, memory: &UserMemory, offset: u64, bytes: u64) {
        let in_head = found.copy_from_head(head, memory, offset, bytes);
        self.copy_body(memory, offset + in_head, bytes - in_head);
    }

    /// Copies the first `bytes` payload bytes behind the head of the current packet to `memory`. The packet has as many
    /// ([`Found::copy_from_head`]).
    #[inline(never)]
    pub fn copy_body(&self, memory: &UserMemory, offset: u64, bytes: u64) {
        let mut to_byte = offset;
        for_each_body_part(self.at, bytes as u32, self.lane.slots(), |mut at, bytes| {
            memory.for_each_stretch(to_byte, bytes as u64, |to, bytes| {
                // SAFETY: the part is writable by the promise behind `UserMemory`. The range is inside the run, whose
                // length `read_head` checked against the lane. The body was published with its head.
                unsafe { self.lane.read(at, to, bytes) };
                at += bytes;
            });
            to_byte += bytes as u64;
        });
    }

    /// Zeroes the first words of the slots of a run behind its head.
    fn clear_body_words(&self, run_slots: u32) {
        self.at.for_each_stretch(run_slots, self.lane.slots(), |first, count| {
            for slot in first..first + count {
                self.lane.word(slot).store(0, Ordering::Relaxed);
            }
        });
    }

    /// Frees the slots of `found`, the current packet.
    #[inline(always)]
    pub fn retire(&mut self, found: &Found) {
        let slots = self.lane.slots();
        self.lane.word(self.at.slot).store(0, Ordering::Relaxed);
        if found.slots > 1 {
            self.clear_body_words(found.slots);
        }
        self.at.advance(found.slots, slots);
        // Release: the zeroes come first. This is a plain store to a line that only writers without credits read.
        self.lane.control().retired.0.store(self.at.position, Ordering::Release);
    }
}

/// The first word of the next packet of a lane that is read. A poll looks at it without a search for the reader.
#[derive(Debug)]
pub struct NextWord<L> {
    word: NonNull<AtomicU32>,
    // Keeps `word` valid.
    lane: L,
}

// SAFETY: a pointer into memory that the value keeps, and which may be read from every thread.
unsafe impl<L: Send> Send for NextWord<L> {}

impl<L: LaneMemory + Clone> NextWord<L> {
    /// The word of the next packet of `reader`.
    pub fn of(reader: &Reader<L>) -> NextWord<L> {
        let lane = reader.lane.clone();
        NextWord { word: NonNull::from(lane.word(reader.at.slot)), lane }
    }

    /// `reader`, which reads this lane, has retired a packet.
    #[inline(always)]
    pub fn follow(&mut self, reader: &Reader<L>) {
        self.word = NonNull::from(self.lane.word(reader.at.slot));
    }

    /// As [`Reader::arrived`].
    #[inline(always)]
    pub fn arrived(&self) -> bool {
        // SAFETY: the word is in `lane`, whose memory stays where it is while `lane` is kept.
        unsafe { self.word.as_ref() }.load(Ordering::Acquire) != 0
    }
}

#[cfg(test)]
mod tests;
