//! The memory of bounce buffers: copies of our messages for receivers without room, and of injected messages that
//! cannot leave yet, one after the other in chunks. The endpoint machine decides when a buffer is filled and freed.
//!
//! Peers read them by address, so each is contiguous. Most are freed in the order in which they were filled, so chunks
//! become empty soon.
//!
//! The first chunks are small, and some empty ones are kept for the next buffers. A sender that is always a little
//! ahead of its receiver therefore uses the same few pages, which stay in its cache. A long burst gets large chunks, two
//! of which are kept for the next burst until no bounce buffer is left. A long message gets a chunk of its own, which goes
//! back to the kernel when it is empty. A bounce buffer that is never freed holds its chunk: nothing looks for holes.

use weir_link::memory::{OwnedMemory, UserMemory};

/// A small chunk: a part of a core's second-level cache. Unit: bytes.
const SMALL_BYTES: usize = 128 << 10;
/// A large chunk, for bursts, on ordinary pages: huge pages were slower here (docs/notes/2026-11-receiver-memory.md).
/// Unit: bytes.
const LARGE_BYTES: usize = 2 << 20;
/// With this many chunks in use, further ones are large.
const BURST_CHUNKS: usize = 8;
/// Empty large chunks that are kept. A sender that floods its receiver ends one and begins one in turn, and a new one costs
/// a page fault for each 4 KiB.
const SPARE_LARGE: usize = 2;
/// Places in a page of the directory.
const PAGE: usize = 4096;

/// The place of a bounce buffer; `chunk` is that of [`NO_PLACE`] if there is none.
#[derive(Clone, Copy, Debug)]
struct Place {
    chunk: u32,
    offset: u32,
    bytes: u32,
}

const NO_PLACE: Place = Place { chunk: u32::MAX, offset: 0, bytes: 0 };

#[derive(Debug)]
struct Page {
    places: Vec<Place>,
    used: usize,
}

#[derive(Debug)]
struct Chunk {
    memory: OwnedMemory,
    copies: u32,
}

/// All bounce buffers of an endpoint, by the endpoint machine's numbers, which are dense.
#[derive(Debug, Default)]
pub(crate) struct BounceBuffers {
    pages: Vec<Option<Page>>,
    chunks: Vec<Option<Chunk>>,
    free_indices: Vec<u32>,
    /// The chunk that is being filled.
    current: Option<Filling>,
    /// Empty small chunks, at most [`BURST_CHUNKS`].
    spare: Vec<OwnedMemory>,
    /// Empty large chunks, at most [`SPARE_LARGE`].
    spare_large: Vec<OwnedMemory>,
}

#[derive(Clone, Copy, Debug)]
struct Filling {
    chunk: u32,
    used: usize,
    bytes: usize,
}

impl BounceBuffers {
    /// Copies `memory` into the bounce buffer `number`. Returns the address of the copy.
    #[inline]
    pub fn add(&mut self, number: u32, memory: &UserMemory) -> u64 {
        let bytes = memory.bytes() as usize;
        let (chunk, offset) = match self.current {
            Some(ref mut filling) if filling.used + bytes <= filling.bytes => {
                let offset = filling.used;
                filling.used = (offset + bytes).next_multiple_of(16);
                (filling.chunk, offset)
            }
            _ => (self.begin_chunk(bytes), 0),
        };
        let home = self.chunks[chunk as usize].as_mut().expect("the current chunk has memory");
        home.copies += 1;
        let copy = home.memory.part(offset, bytes);
        memory.copy_to(0, bytes as u64, &copy, 0);
        let address = copy.contiguous_address().unwrap_or(0) as u64;
        self.record_place(number, Place { chunk, offset: offset as u32, bytes: bytes as u32 });
        address
    }

    /// The memory of the bounce buffer `number`.
    ///
    /// # Panics
    /// If there is none.
    pub fn memory(&self, number: u32) -> UserMemory {
        let page = self.pages[number as usize / PAGE].as_ref().expect("named bounce buffers exist");
        let Place { chunk, offset, bytes } = page.places[number as usize % PAGE];
        let home = self.chunks[chunk as usize].as_ref().expect("named bounce buffers exist");
        home.memory.part(offset as usize, bytes as usize)
    }

    /// Frees the bounce buffer `number`.
    pub fn free(&mut self, number: u32) {
        let index = number as usize / PAGE;
        let page = self.pages[index].as_mut().expect("freed bounce buffers exist");
        let Place { chunk, .. } = std::mem::replace(&mut page.places[number as usize % PAGE], NO_PLACE);
        page.used -= 1;
        if page.used == 0 && index > 0 {
            self.pages[index] = None;
        }
        let home = self.chunks[chunk as usize].as_mut().expect("freed bounce buffers exist");
        home.copies -= 1;
        if home.copies > 0 {
            return;
        }
        match &mut self.current {
            Some(filling) if filling.chunk == chunk && filling.bytes == SMALL_BYTES => filling.used = 0,
            current => {
                current.take_if(|filling| filling.chunk == chunk);
                self.end_chunk(chunk);
            }
        }
    }

    fn end_chunk(&mut self, chunk: u32) {
        let Some(Chunk { memory, .. }) = self.chunks[chunk as usize].take() else { return };
        self.free_indices.push(chunk);
        match memory.view().bytes() as usize {
            SMALL_BYTES if self.spare.len() < BURST_CHUNKS => self.spare.push(memory),
            LARGE_BYTES if self.spare_large.len() < SPARE_LARGE => self.spare_large.push(memory),
            _ => {}
        }
    }

    /// Frees spare chunks if no bounce buffer is left. Called periodically.
    pub fn trim(&mut self) {
        let has_spare = self.spare.len() > 1 || !self.spare_large.is_empty();
        if has_spare && self.chunks.iter().flatten().all(|chunk| chunk.copies == 0) {
            self.spare.truncate(1);
            self.spare_large.clear();
        }
    }

    /// Starts a chunk whose first bounce buffer has `bytes`. It becomes the current chunk if others fit in as well.
    #[cold]
    fn begin_chunk(&mut self, bytes: usize) -> u32 {
        let in_use = self.chunks.len() - self.free_indices.len();
        let shared = if in_use < BURST_CHUNKS { SMALL_BYTES } else { LARGE_BYTES };
        let own = bytes > shared / 4;
        let spare = match shared {
            _ if own => None,
            SMALL_BYTES => self.spare.pop(),
            _ => self.spare_large.pop(),
        };
        let memory = spare.unwrap_or_else(|| OwnedMemory::new(if own { bytes } else { shared }));
        let chunk = Some(Chunk { memory, copies: 0 });
        let index = match self.free_indices.pop() {
            Some(index) => {
                self.chunks[index as usize] = chunk;
                index
            }
            None => {
                self.chunks.push(chunk);
                self.chunks.len() as u32 - 1
            }
        };
        if !own {
            let filling = Filling { chunk: index, used: bytes.next_multiple_of(16), bytes: shared };
            if let Some(before) = self.current.replace(filling)
                && self.chunks[before.chunk as usize].as_ref().is_some_and(|chunk| chunk.copies == 0)
            {
                self.end_chunk(before.chunk);
            }
        }
        index
    }

    #[inline]
    fn record_place(&mut self, number: u32, place: Place) {
        let (index, at) = (number as usize / PAGE, number as usize % PAGE);
        if self.pages.len() <= index {
            self.pages.resize_with(index + 1, || None);
        }
        let page =
            self.pages[index].get_or_insert_with(|| Page { places: Vec::with_capacity(PAGE), used: 0 });
        if page.places.len() <= at {
            page.places.resize(at + 1, NO_PLACE);
        }
        page.places[at] = place;
        page.used += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounce_buffers_are_readable_until_freed_and_empty_chunks_go_back() {
        let mut bounce_buffers = BounceBuffers::default();
        let sizes = [1usize, 100, 2048, 16_384, 600_000];
        let source = |number: u32| -> Vec<u8> {
            (0..sizes[number as usize % sizes.len()]).map(|at| (at as u32 * 3 + number) as u8).collect()
        };
        for round in 0..3 {
            for number in 0..500u32 {
                let bytes = source(number);
                let memory = OwnedMemory::new(bytes.len());
                memory.view().write(0, &bytes);
                let address = bounce_buffers.add(number, &memory.view());
                assert_eq!(bounce_buffers.memory(number).contiguous_address(), Some(address as usize));
            }
            for number in 0..500 {
                let number = if round == 1 { 499 - number } else { number };
                let mut back = vec![0; source(number).len()];
                bounce_buffers.memory(number).read(0, &mut back);
                assert_eq!(back, source(number));
                bounce_buffers.free(number);
            }
            assert!(bounce_buffers.chunks.iter().flatten().count() <= 1);
            assert!(bounce_buffers.spare.len() <= BURST_CHUNKS);
            assert!(bounce_buffers.spare_large.len() <= SPARE_LARGE);
            bounce_buffers.trim();
            assert!(bounce_buffers.spare.len() <= 1 && bounce_buffers.spare_large.is_empty());
        }
    }

    #[test]
    fn a_sender_slightly_ahead_reuses_the_same_chunks() {
        let mut bounce_buffers = BounceBuffers::default();
        let memory = OwnedMemory::new(2048);
        let mut addresses = std::collections::BTreeSet::new();
        for number in 0..10_000 {
            addresses.insert(bounce_buffers.add(number, &memory.view()) as usize / SMALL_BYTES);
            if number >= 40 {
                bounce_buffers.free(number - 40);
            }
        }
        // Two chunks, which need not start at a multiple of their size.
        assert!(addresses.len() <= 4, "{addresses:?}");
    }

    #[test]
    fn a_sender_far_ahead_keeps_two_large_chunks_until_nothing_is_left() {
        const AHEAD: u32 = 4000; // 8 MiB
        let mut bounce_buffers = BounceBuffers::default();
        let memory = OwnedMemory::new(2048);
        for number in 0..3 * AHEAD {
            bounce_buffers.add(number, &memory.view());
            if let Some(oldest) = number.checked_sub(AHEAD) {
                bounce_buffers.free(oldest);
                assert!(bounce_buffers.spare_large.len() <= SPARE_LARGE);
            }
        }
        (2 * AHEAD..3 * AHEAD - 1).for_each(|number| bounce_buffers.free(number));
        bounce_buffers.trim();
        assert_eq!(bounce_buffers.spare_large.len(), SPARE_LARGE, "one buffer is left");
        let before = bounce_buffers.spare_large.len();
        for number in 0..AHEAD {
            bounce_buffers.add(number, &memory.view());
        }
        assert!(bounce_buffers.spare_large.len() < before, "the next burst uses them");
        (0..AHEAD).chain([3 * AHEAD - 1]).for_each(|number| bounce_buffers.free(number));
        bounce_buffers.trim();
        assert!(bounce_buffers.spare_large.is_empty());
    }
}
