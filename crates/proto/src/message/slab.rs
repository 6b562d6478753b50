//! Storage in chunks ([`Slab`]): entries keep their slot, growing copies no entry, and empty chunks are freed.
//! [`Directory`] finds chunks by number, also those of an index. A [`Link`] names a slot in three bytes.
//!
//! Chunks are whole pages and at least 32 KiB, so the allocator gets them from the kernel and returns them. Pages are
//! touched only as they fill. One empty chunk is kept, so that a queue that fills and empties does not allocate each
//! time. A slot is a number below [`MAX_SLOTS`], which fits into a [`Link`]. This file does not know what the entries
//! are.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// Maximum of slots of a chunk.
const CHUNK_SLOTS_MAX: usize = 1024;
/// Bound on the slots of a slab. Three bytes must also encode "none", and only whole chunks count.
pub(crate) const MAX_SLOTS: u32 = (1 << 24) - CHUNK_SLOTS_MAX as u32;

/// The number of a slot in three bytes, or none. None is zero, so zeroed memory holds no links.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Link(pub [u8; 3]);

impl Link {
    pub const NONE: Link = Link([0; 3]);

    #[inline]
    pub fn to(slot: u32) -> Link {
        let [a, b, c, _] = (slot + 1).to_le_bytes();
        Link([a, b, c])
    }

    #[inline]
    pub fn slot(self) -> Option<u32> {
        let [a, b, c] = self.0;
        u32::from_le_bytes([a, b, c, 0]).checked_sub(1)
    }
}

impl core::fmt::Debug for Link {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.slot().fmt(formatter)
    }
}

/// Boxes by number; some exist. The table takes eight bytes for each number up to the highest in use.
#[derive(Clone, Debug)]
pub(super) struct Directory<C> {
    boxes: Vec<Option<Box<C>>>,
    count: usize,
}

impl<C> Default for Directory<C> {
    fn default() -> Self {
        Directory { boxes: Vec::new(), count: 0 }
    }
}

impl<C> Directory<C> {
    #[inline]
    pub fn get(&self, number: usize) -> Option<&C> {
        self.boxes.get(number)?.as_deref()
    }

    #[inline]
    pub fn get_mut(&mut self, number: usize) -> Option<&mut C> {
        self.boxes.get_mut(number)?.as_deref_mut()
    }

    pub fn put(&mut self, number: usize, value: C) {
        if self.boxes.len() <= number {
            self.boxes.resize_with(number + 1, || None);
        }
        let before = self.boxes[number].replace(Box::new(value));
        assert!(before.is_none(), "box {number} already exists");
        self.count += 1;
    }

    pub fn free(&mut self, number: usize) {
        assert!(self.boxes[number].take().is_some(), "box {number} does not exist");
        self.count -= 1;
        while let Some(None) = self.boxes.last() {
            self.boxes.pop();
        }
        if self.boxes.capacity() > 16 && self.boxes.len() < self.boxes.capacity() / 4 {
            self.boxes.shrink_to(2 * self.boxes.len());
        }
    }

    /// Number of boxes that exist.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The lowest unused number.
    pub fn vacant(&self) -> usize {
        // Only a long queue that has shrunk has gaps, and then this function is called rarely.
        if self.count == self.boxes.len() {
            return self.count;
        }
        self.boxes.iter().position(Option::is_none).expect("a number is unused")
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &C)> {
        self.boxes.iter().enumerate().filter_map(|(number, chunk)| Some((number, chunk.as_deref()?)))
    }

    /// Memory that it uses, if each box owns `owned_bytes` more. Unit: bytes.
    pub fn bytes(&self, owned_bytes: usize) -> usize {
        self.count * (size_of::<C>() + owned_bytes) + self.boxes.capacity() * size_of::<Option<Box<C>>>()
    }
}

#[derive(Clone, Debug)]
struct Chunk<T> {
    /// One bit per slot in use.
    occupied: [u64; CHUNK_SLOTS_MAX / 64],
    live: u16,
    /// Entries of all slots ever used. The capacity is that of the whole chunk.
    entries: Vec<T>,
}

impl<T> Chunk<T> {
    #[inline]
    fn holds(&self, slot: usize) -> bool {
        self.occupied[slot / 64] & 1 << (slot % 64) != 0
    }

    #[inline]
    fn vacant(&self) -> usize {
        if usize::from(self.live) == self.entries.len() {
            return self.entries.len(); // no slot is free in between
        }
        let word = self.occupied.iter().position(|&word| word != u64::MAX).expect("a chunk with a free slot");
        word * 64 + self.occupied[word].trailing_ones() as usize
    }
}

/// Entries that keep their slot until they are removed.
#[derive(Clone, Debug)]
pub(super) struct Slab<T, const SLOTS: usize> {
    chunks: Directory<Chunk<T>>,
    /// The chunk for the next entry, if it has a free slot.
    current: usize,
    /// Chunks with free slots. The lowest is filled first, so that the others can empty.
    roomy: BTreeSet<u32>,
    /// The empty chunk, if there is one.
    empty: Option<usize>,
}

impl<T, const SLOTS: usize> Default for Slab<T, SLOTS> {
    fn default() -> Self {
        Slab { chunks: Directory::default(), current: 0, roomy: BTreeSet::new(), empty: None }
    }
}

impl<T: Copy, const SLOTS: usize> Slab<T, SLOTS> {
    const SHAPE: () = assert!(SLOTS.is_power_of_two() && SLOTS >= 64 && SLOTS <= CHUNK_SLOTS_MAX);

    #[inline]
    pub fn insert(&mut self, entry: T) -> u32 {
        let () = Self::SHAPE;
        if self.chunks.get(self.current).is_none_or(|chunk| usize::from(chunk.live) == SLOTS) {
            self.current = self.chunk_with_room();
        }
        let number = self.current;
        if self.empty == Some(number) {
            self.empty = None;
        }
        let chunk = self.chunks.get_mut(number).expect("the current chunk");
        let slot = chunk.vacant();
        chunk.occupied[slot / 64] |= 1 << (slot % 64);
        chunk.live += 1;
        match chunk.entries.get_mut(slot) {
            Some(place) => *place = entry,
            // The lowest free slot is at most the first that was never used.
            None => chunk.entries.push(entry),
        }
        if usize::from(chunk.live) == SLOTS {
            self.roomy.remove(&(number as u32));
        }
        (number * SLOTS + slot) as u32
    }

    /// # Panics
    /// If there is no such entry.
    #[inline]
    pub fn remove(&mut self, slot: u32) -> T {
        let (number, slot) = (slot as usize / SLOTS, slot as usize % SLOTS);
        let chunk = self.chunks.get_mut(number).expect("removed entries exist");
        assert!(chunk.holds(slot), "slot {slot} of chunk {number} is empty");
        chunk.occupied[slot / 64] &= !(1 << (slot % 64));
        chunk.live -= 1;
        let (entry, live) = (chunk.entries[slot], usize::from(chunk.live));
        if live == SLOTS - 1 {
            self.roomy.insert(number as u32);
        }
        if live == 0 {
            // Of two empty chunks, free the one with the higher number, so that the table can shrink.
            if let Some(other) = self.empty.replace(number) {
                self.empty = Some(number.min(other));
                let freed = number.max(other);
                self.chunks.free(freed);
                self.roomy.remove(&(freed as u32));
            }
        }
        entry
    }

    #[inline]
    pub fn get(&self, slot: u32) -> Option<&T> {
        let (number, slot) = (slot as usize / SLOTS, slot as usize % SLOTS);
        let chunk = self.chunks.get(number)?;
        chunk.holds(slot).then(|| &chunk.entries[slot])
    }

    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        let (number, slot) = (slot as usize / SLOTS, slot as usize % SLOTS);
        let chunk = self.chunks.get_mut(number)?;
        chunk.holds(slot).then(|| &mut chunk.entries[slot])
    }

    /// All entries, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.chunks.iter().flat_map(|(number, chunk)| {
            let slots = (0..SLOTS).filter(|&slot| chunk.holds(slot));
            slots.map(move |slot| ((number * SLOTS + slot) as u32, &chunk.entries[slot]))
        })
    }

    /// Memory that it uses. Unit: bytes.
    pub fn bytes(&self) -> usize {
        // A node of the tree holds up to 11 numbers and is at least half full, beside two words.
        self.chunks.bytes(SLOTS * size_of::<T>()) + self.roomy.len() * 2 * size_of::<u32>()
    }

    fn chunk_with_room(&mut self) -> usize {
        if let Some(&number) = self.roomy.first() {
            return number as usize;
        }
        let number = self.chunks.vacant();
        assert!((number + 1) * SLOTS <= MAX_SLOTS as usize, "a slab has at most {MAX_SLOTS} slots");
        // Bits beyond the chunk's slots are set, so they never get an entry.
        let occupied = core::array::from_fn(|word| if word * 64 < SLOTS { 0 } else { u64::MAX });
        self.chunks.put(number, Chunk { occupied, live: 0, entries: Vec::with_capacity(SLOTS) });
        self.roomy.insert(number as u32);
        number
    }
}
