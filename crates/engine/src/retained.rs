//! Copies of our messages for receivers that have no room for them, one after the other in chunks. Peers read them by
//! address, so each is in one piece.
//!
//! Most are taken in the order in which they were made, so a chunk is soon empty and goes back; one that was
//! little used is spared for what comes next. A copy that is never taken holds its chunk: the price of not looking for holes.

use weir_link::memory::{OwnedMemory, UserMemory};

/// A huge page. The first chunks are touched as they are filled; a burst that goes on gets huge pages. Unit: bytes.
const CHUNK_BYTES: usize = 2 << 20;
/// Chunks in use from which on further ones are of huge pages.
const BURST_CHUNKS: usize = 2;
/// Longer copies have a chunk of their own. Unit: bytes.
const SHARED_BYTES: usize = CHUNK_BYTES / 4;
/// An empty chunk that has been filled no further is kept for what comes next. Unit: bytes.
const SPARE_BYTES: usize = CHUNK_BYTES / 8;
/// Entries of a page of the directory.
const PAGE: usize = 4096;

/// Where a copy is; `chunk` is [`ABSENT`] where there is none.
#[derive(Clone, Copy, Debug)]
struct Place {
    chunk: u32,
    offset: u32,
    bytes: u32,
}

const ABSENT: Place = Place { chunk: u32::MAX, offset: 0, bytes: 0 };

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

/// All copies of an endpoint, by the machine's numbers, which are dense.
#[derive(Debug, Default)]
pub(crate) struct Retained {
    pages: Vec<Option<Page>>,
    chunks: Vec<Option<Chunk>>,
    absent: Vec<u32>,
    /// The chunk that is being filled, and how far.
    current: Option<(u32, usize)>,
}

impl Retained {
    /// Copies `memory` under `number`; returns the address of the copy.
    #[inline]
    pub fn add(&mut self, number: u32, memory: &UserMemory) -> u64 {
        let bytes = memory.bytes() as usize;
        let (chunk, offset) = match self.current {
            Some((chunk, used)) if used + bytes <= CHUNK_BYTES => {
                self.current = Some((chunk, (used + bytes).next_multiple_of(16)));
                (chunk, used)
            }
            _ => self.begin_chunk(bytes),
        };
        let home = self.chunks[chunk as usize].as_mut().expect("the current chunk has memory");
        home.copies += 1;
        let copy = home.memory.part(offset, bytes);
        memory.copy_to(0, bytes as u64, &copy, 0);
        let address = copy.contiguous_address().unwrap_or(0) as u64;
        self.note(number, Place { chunk, offset: offset as u32, bytes: bytes as u32 });
        address
    }

    /// The copy of that number.
    ///
    /// # Panics
    /// If there is none.
    pub fn memory(&self, number: u32) -> UserMemory {
        let page = self.pages[number as usize / PAGE].as_ref().expect("named copies exist");
        let Place { chunk, offset, bytes } = page.places[number as usize % PAGE];
        let home = self.chunks[chunk as usize].as_ref().expect("named copies exist");
        home.memory.part(offset as usize, bytes as usize)
    }

    /// Drops the copy of that number.
    pub fn release(&mut self, number: u32) {
        let index = number as usize / PAGE;
        let page = self.pages[index].as_mut().expect("released copies exist");
        let Place { chunk, .. } = std::mem::replace(&mut page.places[number as usize % PAGE], ABSENT);
        page.used -= 1;
        if page.used == 0 && index > 0 {
            self.pages[index] = None;
        }
        let home = self.chunks[chunk as usize].as_mut().expect("released copies exist");
        home.copies -= 1;
        if home.copies > 0 {
            return;
        }
        match &mut self.current {
            Some((current, used)) if *current == chunk && *used <= SPARE_BYTES => *used = 0,
            current => {
                if current.is_some_and(|(current, _)| current == chunk) {
                    *current = None;
                }
                self.chunks[chunk as usize] = None;
                self.absent.push(chunk);
            }
        }
    }

    #[cold]
    fn begin_chunk(&mut self, bytes: usize) -> (u32, usize) {
        let own = bytes > SHARED_BYTES;
        let memory = OwnedMemory::new(if own { bytes } else { CHUNK_BYTES });
        if !own && self.chunks.len() - self.absent.len() >= BURST_CHUNKS {
            memory.prefer_huge_pages();
        }
        let chunk = Some(Chunk { memory, copies: 0 });
        let index = match self.absent.pop() {
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
            if let Some((current, _)) = self.current
                && self.chunks[current as usize].as_ref().is_some_and(|chunk| chunk.copies == 0)
            {
                self.chunks[current as usize] = None;
                self.absent.push(current);
            }
            self.current = Some((index, bytes.next_multiple_of(16)));
        }
        (index, 0)
    }

    #[inline]
    fn note(&mut self, number: u32, place: Place) {
        let (index, at) = (number as usize / PAGE, number as usize % PAGE);
        if self.pages.len() <= index {
            self.pages.resize_with(index + 1, || None);
        }
        let page =
            self.pages[index].get_or_insert_with(|| Page { places: Vec::with_capacity(PAGE), used: 0 });
        if page.places.len() <= at {
            page.places.resize(at + 1, ABSENT);
        }
        page.places[at] = place;
        page.used += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_found_until_they_are_released_and_chunks_go_back() {
        let mut retained = Retained::default();
        let sizes = [1usize, 100, 2048, 16_384, 600_000];
        let source = |number: u32| -> Vec<u8> {
            (0..sizes[number as usize % sizes.len()]).map(|at| (at as u32 * 3 + number) as u8).collect()
        };
        for round in 0..3 {
            for number in 0..500u32 {
                let bytes = source(number);
                let memory = OwnedMemory::new(bytes.len());
                memory.view().write(0, &bytes);
                let address = retained.add(number, &memory.view());
                assert_eq!(retained.memory(number).contiguous_address(), Some(address as usize));
            }
            for number in 0..500 {
                let number = if round == 1 { 499 - number } else { number };
                let mut back = vec![0; source(number).len()];
                retained.memory(number).read(0, &mut back);
                assert_eq!(back, source(number));
                retained.release(number);
            }
            assert!(retained.chunks.iter().flatten().count() <= 1);
        }
    }
}
