//! Lanes on the heap, and packets for them, for tests: the model checker and Miri can watch their memory, and the ring
//! code is the real one.

use super::ring::{LaneControl, LaneMemory};
use super::sync::{AtomicU32, Ordering, Watched};
use weir_proto::wire::SLOT_BYTES;
use weir_proto::{Body, Packet, Space};

const WORD: usize = 4;

struct HeapSlot {
    word: AtomicU32,
    rest: Watched<[u8; SLOT_BYTES - WORD]>,
}

/// A lane on the heap.
pub struct HeapLane {
    control: LaneControl,
    slots: Box<[HeapSlot]>,
}

// SAFETY: the protocol gives `rest` of a slot to one side at a time. The tests check that it does.
unsafe impl Sync for HeapLane {}
// SAFETY: plain memory, owned.
unsafe impl Send for HeapLane {}

impl HeapLane {
    /// A fresh lane.
    pub fn new(slots: u32) -> HeapLane {
        let slot = |_| HeapSlot { word: AtomicU32::new(0), rest: Watched::new([0; SLOT_BYTES - WORD]) };
        HeapLane { control: LaneControl::default(), slots: (0..slots).map(slot).collect() }
    }

    /// Calls `visit(slot, byte in the slot, bytes done before, bytes)` for each part, split at words and slots.
    fn parts(&self, at: usize, bytes: usize, mut visit: impl FnMut(&HeapSlot, usize, usize, usize)) {
        let mut done = 0;
        while done < bytes {
            let (slot, byte) = ((at + done) / SLOT_BYTES, (at + done) % SLOT_BYTES);
            let end = if byte < WORD { WORD } else { SLOT_BYTES };
            let here = (end - byte).min(bytes - done);
            visit(&self.slots[slot], byte, done, here);
            done += here;
        }
    }
}

// SAFETY: words and slots are those of `self.slots`. Indexing checks the range.
unsafe impl LaneMemory for super::sync::Arc<HeapLane> {
    fn slots(&self) -> u32 {
        self.slots.len() as u32
    }
    fn control(&self) -> &LaneControl {
        &self.control
    }
    fn word(&self, slot: u32) -> &AtomicU32 {
        &self.slots[slot as usize].word
    }
    unsafe fn write(&self, at: usize, from: *const u8, bytes: usize) {
        self.parts(at, bytes, |slot, byte, done, here| {
            // SAFETY: the caller promises that `from` has `bytes` bytes.
            let part = unsafe { core::slice::from_raw_parts(from.add(done), here) };
            if byte < WORD {
                let mut word = slot.word.load(Ordering::Relaxed).to_le_bytes();
                word[byte..byte + here].copy_from_slice(part);
                slot.word.store(u32::from_le_bytes(word), Ordering::Relaxed);
            } else {
                // SAFETY: the caller owns the slot. Loom checks the access for races.
                slot.rest.with_mut(|rest| unsafe {
                    (&mut *rest)[byte - WORD..byte - WORD + here].copy_from_slice(part);
                });
            }
        });
    }
    unsafe fn read(&self, at: usize, to: *mut u8, bytes: usize) {
        self.parts(at, bytes, |slot, byte, done, here| {
            // SAFETY: the caller promises that `to` has `bytes` bytes.
            let part = unsafe { core::slice::from_raw_parts_mut(to.add(done), here) };
            if byte < WORD {
                let word = slot.word.load(Ordering::Relaxed).to_le_bytes();
                part.copy_from_slice(&word[byte..byte + here]);
            } else {
                // SAFETY: the slot is published and not retired. Loom checks the access for races.
                slot.rest.with(|rest| unsafe {
                    part.copy_from_slice(&(&*rest)[byte - WORD..byte - WORD + here]);
                });
            }
        });
    }
}

fn packet(payload_bytes: u32, body: Body) -> Packet {
    Packet::new(body, payload_bytes)
}

/// A message of one packet.
pub fn eager(bytes: u32) -> Packet {
    let body = Body::Eager { space: Space::Untagged, tag: 0, data: None, length: bytes, acknowledge: None };
    packet(bytes, body)
}

/// A credit packet.
pub fn credit() -> Packet {
    packet(0, Body::Credit)
}
