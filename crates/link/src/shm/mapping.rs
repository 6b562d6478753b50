//! Mapped parts of segment files, and typed views of them. [`MappedHeader`] is the header of a mailbox's segment: its
//! state, doorbell, lane queue and claim words. [`MappedLane`] is one lane with its state, owner, epoch and detach
//! request. Node segments are viewed as arrays of atomics ([`Mapping::shared`]).
//!
//! A mapping is raw memory to which other processes write too. There are only two kinds of views: atomics, and slot
//! bytes, which follow the ring's protocol. A process of the same user that breaks the protocol can make this process
//! read wrong values. The ring checks those that it uses itself; wrong payload reaches the program. By truncating the
//! file such a process can also kill this one (SIGBUS), as it could with kill(2).

use super::doorbell::Doorbell;
use super::lane_queue::LaneQueue;
use super::layout::{CLAIMS_BYTES, HEADER_BYTES, LANE_HEADER_BYTES, segment_state};
use super::ring::{CacheLine, LaneControl, LaneMemory};
use super::sync::{AtomicU32, AtomicU64, Futex, NATIVE, Ordering};
use crate::Address;
use crate::address::PACKED_BYTES;
use crate::copy::copy;
use crate::memory::copy_bytes;
use core::ops::Deref;
use core::ptr::NonNull;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use weir_proto::wire::SLOT_BYTES;

/// A mapped range of a file.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread. All accesses through it are atomic or follow the
// ring's protocol.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` bytes of `file` from `offset` (a multiple of the page size), shared, for reading and writing.
    ///
    /// # Errors
    /// The error of mmap.
    pub fn new(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Mapping> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let kind = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses a fresh range, so nothing of this process is replaced.
        let base = unsafe { mmap(core::ptr::null_mut(), bytes, access, kind, file, offset) }?;
        NonNull::new(base.cast())
            .map(|base| Mapping { base, bytes })
            .ok_or_else(|| io::Error::other("mmap returned address 0"))
    }

    /// # Panics
    /// If the range is not inside the mapping. That is a bug, because all offsets come from checked facts.
    fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            "{bytes} bytes at {offset} are outside a mapping of {} bytes",
            self.bytes
        );
        // SAFETY: the range is inside the mapping, as just checked.
        unsafe { self.base.add(offset) }
    }
}

/// Values that other processes change too.
///
/// # Safety
/// The type consists of atomics, for which every bit pattern is a value.
pub unsafe trait Shared {}

// SAFETY: an atomic.
unsafe impl Shared for AtomicU64 {}
// SAFETY: an atomic.
unsafe impl Shared for CacheLine<Futex> {}

impl Mapping {
    /// The `count` values at `offset`. Their memory must be reserved.
    ///
    /// # Panics
    /// If they are not inside the mapping, or not aligned.
    pub fn shared<T: Shared>(&self, offset: usize, count: usize) -> &[T] {
        let bytes = count.checked_mul(size_of::<T>()).expect("a range inside a mapping");
        let first = self.at(offset, bytes).cast::<T>();
        assert!(NATIVE && first.is_aligned(), "values at byte {offset} are not aligned");
        // SAFETY: the range is inside the mapping and aligned, as just checked. It lives as long as `self`. The values are
        // atomics, so others may change them.
        unsafe { core::slice::from_raw_parts(first.as_ptr(), count) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping was made in `new`. Every view holds an `Arc` of it, so no view is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// The changing part of a segment's header, from byte 128 on.
#[repr(C)]
#[derive(Debug)]
pub struct HeaderWords {
    state: CacheLine<AtomicU32>,
    doorbell: Doorbell,
    lane_queue: LaneQueue,
}

/// The header of a segment.
#[derive(Clone, Debug)]
pub struct MappedHeader {
    mapping: Arc<Mapping>,
}

const WORDS_OFFSET: usize = 128;
const _: () = assert!(!NATIVE || WORDS_OFFSET + size_of::<HeaderWords>() <= HEADER_BYTES);
const _: () = assert!(!NATIVE || size_of::<LaneHeader>() <= LANE_HEADER_BYTES);

impl MappedHeader {
    /// The header at the start of `mapping`.
    pub fn new(mapping: Arc<Mapping>) -> MappedHeader {
        mapping.at(0, HEADER_BYTES + CLAIMS_BYTES);
        MappedHeader { mapping }
    }

    fn words(&self) -> &HeaderWords {
        // SAFETY: the words are inside the mapping (checked in `new`), aligned (pages are) and all atomics, for which
        // every bit pattern is a value. They live as long as the `Arc` that `self` holds.
        unsafe { self.mapping.at(WORDS_OFFSET, size_of::<HeaderWords>()).cast::<HeaderWords>().as_ref() }
    }

    /// Whether the owner has closed the segment.
    pub fn is_closed(&self) -> bool {
        self.words().state.0.load(Ordering::Acquire) == segment_state::CLOSED
    }

    /// Sets the state. Only the owner calls this.
    pub fn set_state(&self, state: u32) {
        self.words().state.0.store(state, Ordering::Release);
    }

    /// The queue for lanes.
    pub fn lane_queue(&self) -> &LaneQueue {
        &self.words().lane_queue
    }

    /// The claim words of the first `lanes` lanes. Their memory must be reserved.
    pub fn claims(&self, lanes: u32) -> &[AtomicU64] {
        let bytes = lanes as usize * size_of::<u64>();
        assert!(NATIVE && bytes <= CLAIMS_BYTES, "{lanes} claim words; the header has {}", CLAIMS_BYTES / 8);
        let first = self.mapping.at(HEADER_BYTES, bytes).cast::<AtomicU64>();
        // SAFETY: the words are inside the mapping (just checked), aligned (the header's parts are pages) and
        // atomics, for which every bit pattern is a value. The mapping lives as long as the `Arc` that `self` holds.
        unsafe { core::slice::from_raw_parts(first.as_ptr(), lanes as usize) }
    }
}

impl Deref for MappedHeader {
    type Target = Doorbell;
    #[inline]
    fn deref(&self) -> &Doorbell {
        // SAFETY: as in `words`; the range was checked in `new`.
        unsafe { &self.mapping.base.add(WORDS_OFFSET).cast::<HeaderWords>().as_ref().doorbell }
    }
}

/// Words for the owner's address without its identity, which is in the claim word.
const OWNER_WORDS: usize = PACKED_BYTES / 4;

/// The header of a lane, before its slots.
#[repr(C)]
#[derive(Debug)]
pub struct LaneHeader {
    state: AtomicU32,
    owner: [AtomicU32; OWNER_WORDS],
    epoch: AtomicU32,
    /// 1 after the reader has asked the owner to detach, or if others want the lane already when it is assigned.
    detach_requested: AtomicU32,
    control: CacheLine<LaneControl>,
}

/// A lane in a mapping.
#[derive(Clone, Debug)]
pub struct MappedLane {
    base: NonNull<u8>,
    slots: u32,
    // Keeps `base` mapped.
    _mapping: Arc<Mapping>,
}

// SAFETY: a pointer into a mapping that the value keeps, and which is `Send` and `Sync` itself.
unsafe impl Send for MappedLane {}

impl MappedLane {
    /// The lane of `slots` slots at `offset` in `mapping`.
    pub fn new(mapping: &Arc<Mapping>, offset: usize, slots: u32) -> MappedLane {
        let base = mapping.at(offset, LANE_HEADER_BYTES + slots as usize * SLOT_BYTES);
        assert!(base.as_ptr().addr().is_multiple_of(64), "lane at byte {offset} is not aligned to 64 bytes");
        MappedLane { base, slots, _mapping: Arc::clone(mapping) }
    }

    #[inline]
    fn header(&self) -> &LaneHeader {
        // SAFETY: `new` checked that the header is inside the mapping and aligned. It holds atomics only.
        unsafe { self.base.cast::<LaneHeader>().as_ref() }
    }

    /// The lane's state.
    pub fn state(&self) -> u32 {
        self.header().state.load(Ordering::Acquire)
    }

    /// Sets the state. A process that sees it also sees everything written before.
    pub fn set_state(&self, state: u32) {
        self.header().state.store(state, Ordering::Release);
    }

    /// The address that the owner wrote before it made the lane ready. Its identity is `id`.
    pub fn owner(&self, id: u64) -> Address {
        let mut packed = [0; PACKED_BYTES];
        for (part, word) in packed.chunks_exact_mut(4).zip(&self.header().owner) {
            part.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        Address::unpacked(id, &packed)
    }

    /// Names the owner.
    pub fn set_owner(&self, owner: &Address) {
        for (part, word) in owner.packed().chunks_exact(4).zip(&self.header().owner) {
            word.store(u32::from_ne_bytes([part[0], part[1], part[2], part[3]]), Ordering::Relaxed);
        }
    }

    /// Number of the lease, written before the lane is ready.
    pub fn epoch(&self) -> u16 {
        self.header().epoch.load(Ordering::Relaxed) as u16
    }

    /// Sets the number of the lease.
    pub fn set_epoch(&self, epoch: u16) {
        self.header().epoch.store(epoch.into(), Ordering::Relaxed);
    }

    /// Asks the owner to detach. Before a lane is assigned: says that its next owner is to detach soon.
    pub fn request_detach(&self) {
        self.header().detach_requested.store(1, Ordering::Release);
    }

    /// Whether the owner is asked to detach. Returns true once per request.
    pub fn take_detach_request(&self) -> bool {
        self.header().detach_requested.swap(0, Ordering::AcqRel) == 1
    }

    /// Resets a lane whose last owner has left and whose slots are all retired. `wipe`: they may not be retired.
    pub fn reset(&self, wipe: bool) {
        let header = self.header();
        for word in [&header.state, &header.epoch, &header.detach_requested, &header.control.0.polled.0] {
            word.store(0, Ordering::Relaxed);
        }
        header.control.0.retired.0.store(0, Ordering::Relaxed);
        for slot in 0..if wipe { self.slots } else { 0 } {
            self.word(slot).store(0, Ordering::Relaxed);
        }
    }
}

// SAFETY: `new` checked that header and slots are inside the mapping, which `self` keeps.
unsafe impl LaneMemory for MappedLane {
    #[inline]
    fn slots(&self) -> u32 {
        self.slots
    }

    #[inline]
    fn control(&self) -> &LaneControl {
        &self.header().control.0
    }

    #[inline]
    fn word(&self, slot: u32) -> &AtomicU32 {
        debug_assert!(slot < self.slots);
        // SAFETY: `slot < slots` (the ring's cursor wraps there), so the word is inside the mapping. Slots begin at
        // cache lines.
        unsafe { self.base.add(LANE_HEADER_BYTES + slot as usize * SLOT_BYTES).cast::<AtomicU32>().as_ref() }
    }

    #[inline]
    unsafe fn write(&self, at: usize, from: *const u8, bytes: usize) {
        // SAFETY: the caller promises that the range is inside the slots and its own, and that `from` is readable.
        unsafe {
            copy_bytes(from, self.base.add(LANE_HEADER_BYTES + at).as_ptr(), bytes);
        }
    }

    #[inline]
    unsafe fn read(&self, at: usize, to: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise, as in `write`. If the writer breaks the protocol and writes meanwhile, the
        // copy is a mixture. It is then checked, or handed to the program as payload.
        unsafe {
            let from = self.base.add(LANE_HEADER_BYTES + at).as_ptr();
            copy(from, to, bytes);
        }
    }
}
