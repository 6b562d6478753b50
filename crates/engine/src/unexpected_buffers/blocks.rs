//! Blocks of one size in chunks ([`Blocks`]), linked to chains. A chain is taken and freed as a whole if it lies in one
//! chunk, so that a message of some kilobytes costs a walk along its links.
//!
//! This file does not know messages.

use weir_link::memory::{OwnedMemory, UserMemory};

/// Blocks of a chunk: 64 KiB of payload in large ones, 16 KiB in small ones.
pub(super) const CHUNK_BLOCKS: usize = 1024;
/// Most spare chunks of each kind while something of that kind is in use: 1 MiB of large ones. Windows of messages of several
/// senders come and go as a whole, and a chunk from the kernel costs a page fault for each 4 KiB.
const MOST_SPARE_CHUNKS: u64 = 16;
const LEAST_SPARE_CHUNKS: u64 = 4;
/// Beyond the least number, spare large chunks are at most one part in so many of the budget for payload: what a receiver
/// keeps with a small budget stays small.
const SPARE_SHARE: u64 = 16;

/// Spare chunks of each kind with this budget for payload.
pub(super) fn spare_chunks(budget_bytes: u64) -> usize {
    let share = budget_bytes / SPARE_SHARE / (CHUNK_BLOCKS * 64) as u64;
    share.clamp(LEAST_SPARE_CHUNKS, MOST_SPARE_CHUNKS) as usize
}

/// No block.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Chunk {
    memory: OwnedMemory,
    /// The next block of the same message, or the next free one of this chunk.
    next: Vec<u32>,
    free: u32,
    pub used: usize,
}

impl Chunk {
    /// The block so many links behind `block`. `start` is the first block of this chunk. `None`: the chain ends or leaves the
    /// chunk before.
    #[inline]
    fn walk(&self, block: u32, links: usize, start: u32) -> Option<u32> {
        let mut block = block;
        for _ in 0..links {
            // Of a block of another chunk, or of none, the place is too large.
            block = *self.next.get(block.wrapping_sub(start) as usize)?;
        }
        (block.wrapping_sub(start) < CHUNK_BLOCKS as u32).then_some(block)
    }
}

/// Blocks of one size, in chunks.
#[derive(Debug)]
pub(super) struct Blocks {
    pub block_bytes: usize,
    pub chunks: Vec<Option<Chunk>>,
    /// Chunks with a free block; the last is filled first.
    open: Vec<u32>,
    /// Chunks without memory.
    free_indices: Vec<u32>,
    /// Memory of such chunks, at most `most_spare`.
    pub spare: Vec<OwnedMemory>,
    most_spare: usize,
}

impl Blocks {
    pub fn of(block_bytes: usize, most_spare: usize) -> Blocks {
        Blocks {
            block_bytes,
            chunks: Vec::new(),
            open: Vec::new(),
            free_indices: Vec::new(),
            spare: Vec::new(),
            most_spare,
        }
    }

    /// Number of blocks for `bytes` bytes. A shift: a division by a number that the compiler does not know costs as much as
    /// the copy of a short message.
    #[inline]
    fn count(&self, bytes: usize) -> usize {
        debug_assert!(self.block_bytes.is_power_of_two());
        (bytes + self.block_bytes - 1) >> self.block_bytes.trailing_zeros()
    }

    /// Allocates blocks for `bytes` bytes, each linked to the next. Returns the first.
    #[inline]
    pub fn chain(&mut self, bytes: usize) -> u32 {
        match self.count(bytes) {
            0 => NONE,
            1 => self.take(),
            blocks => self.take_run(blocks).unwrap_or_else(|| self.take_each(blocks)),
        }
    }

    /// Takes blocks one by one, from several chunks if necessary.
    #[cold]
    fn take_each(&mut self, blocks: usize) -> u32 {
        let first = self.take();
        let mut last = first;
        for _ in 1..blocks {
            let block = self.take();
            self.link(last, block);
            last = block;
        }
        first
    }

    /// Takes blocks that are linked already, or were never used, from the chunk that is filled first. `None`: it has not
    /// enough of one kind.
    fn take_run(&mut self, blocks: usize) -> Option<u32> {
        let index = *self.open.last()?;
        let chunk = self.chunks[index as usize].as_mut().expect("open chunks have memory");
        let start = index * CHUNK_BLOCKS as u32;
        let first = if chunk.free == NONE {
            let place = chunk.next.len();
            if place + blocks > CHUNK_BLOCKS {
                return None;
            }
            let first = start + place as u32;
            chunk.next.extend(first + 1..first + blocks as u32);
            chunk.next.push(NONE);
            first
        } else {
            let first = chunk.free;
            let last = chunk.walk(first, blocks - 1, start)?;
            chunk.free = std::mem::replace(&mut chunk.next[(last - start) as usize], NONE);
            first
        };
        chunk.used += blocks;
        if chunk.used == CHUNK_BLOCKS {
            self.open.pop();
        }
        Some(first)
    }

    /// Frees a chain.
    #[inline]
    pub fn free(&mut self, first: u32, bytes: usize) {
        match self.count(bytes) {
            0 => {}
            1 => self.free_block(first),
            blocks if self.free_run(first, blocks) => {}
            blocks => self.free_each(first, blocks),
        }
    }

    /// Frees blocks of several chunks one by one.
    #[cold]
    fn free_each(&mut self, first: u32, blocks: usize) {
        let mut block = first;
        for _ in 0..blocks {
            let next = self.next(block);
            self.free_block(block);
            block = next;
        }
    }

    /// Frees a chain as a whole, so that it is taken in the same order again. Returns whether it lies in one chunk.
    fn free_run(&mut self, first: u32, blocks: usize) -> bool {
        let (chunk, place) = self.chunk(first);
        let start = first - place as u32;
        let Some(last) = chunk.walk(first, blocks - 1, start) else { return false };
        chunk.next[(last - start) as usize] = std::mem::replace(&mut chunk.free, first);
        self.note_freed(start / CHUNK_BLOCKS as u32, blocks);
        true
    }

    /// The contiguous memory from `block` on, and what follows it: the next block, and bytes left.
    #[inline]
    pub fn contiguous_run(&self, block: u32, bytes: usize) -> (UserMemory, Option<(u32, usize)>) {
        let (index, place) = (block as usize / CHUNK_BLOCKS, block as usize % CHUNK_BLOCKS);
        let chunk = self.chunks[index].as_ref().expect("blocks in use have memory");
        if bytes <= self.block_bytes {
            return (chunk.memory.part(place * self.block_bytes, bytes), None);
        }
        let blocks = self.count(bytes);
        let mut run = 1;
        while run < blocks && chunk.next[place + run - 1] == block + run as u32 && place + run < CHUNK_BLOCKS
        {
            run += 1;
        }
        let here = bytes.min(run * self.block_bytes);
        let rest = (run < blocks).then(|| (chunk.next[place + run - 1], bytes - here));
        (chunk.memory.part(place * self.block_bytes, here), rest)
    }

    #[cold]
    pub fn pieces(&self, first: UserMemory, rest: (u32, usize)) -> UserMemory {
        let mut rest = Some(rest);
        let others = std::iter::from_fn(|| {
            let (block, bytes) = rest?;
            let (part, after) = self.contiguous_run(block, bytes);
            rest = after;
            Some(part)
        });
        UserMemory::joined(std::iter::once(first).chain(others))
    }

    fn chunk(&mut self, block: u32) -> (&mut Chunk, usize) {
        let (index, place) = (block as usize / CHUNK_BLOCKS, block as usize % CHUNK_BLOCKS);
        (self.chunks[index].as_mut().expect("blocks in use have memory"), place)
    }

    fn next(&mut self, block: u32) -> u32 {
        let (chunk, place) = self.chunk(block);
        chunk.next[place]
    }

    fn link(&mut self, block: u32, next: u32) {
        let (chunk, place) = self.chunk(block);
        chunk.next[place] = next;
    }

    fn take(&mut self) -> u32 {
        let index = match self.open.last() {
            Some(&index) => index,
            None => self.add_chunk(),
        };
        let chunk = self.chunks[index as usize].as_mut().expect("open chunks have memory");
        let start = index * CHUNK_BLOCKS as u32;
        let block = match chunk.free {
            // A new block: its memory was not touched before.
            NONE => {
                chunk.next.push(NONE);
                start + chunk.next.len() as u32 - 1
            }
            free => {
                chunk.free = chunk.next[(free - start) as usize];
                free
            }
        };
        chunk.used += 1;
        if chunk.used == CHUNK_BLOCKS {
            self.open.pop();
        }
        block
    }

    fn free_block(&mut self, block: u32) {
        let (chunk, place) = self.chunk(block);
        chunk.next[place] = std::mem::replace(&mut chunk.free, block);
        self.note_freed(block / CHUNK_BLOCKS as u32, 1);
    }

    /// So many blocks of a chunk were freed.
    #[inline]
    fn note_freed(&mut self, index: u32, blocks: usize) {
        let chunk = self.chunks[index as usize].as_mut().expect("blocks in use have memory");
        chunk.used -= blocks;
        let used = chunk.used;
        if used + blocks == CHUNK_BLOCKS {
            self.open.push(index);
        }
        if used == 0 {
            if self.open.len() > 1 {
                self.open.retain(|&open| open != index);
                let emptied = self.chunks[index as usize].take();
                self.free_indices.push(index);
                if self.spare.len() < self.most_spare {
                    self.spare.extend(emptied.map(|chunk| chunk.memory));
                }
            } else {
                chunk.next.clear(); // in order again
                chunk.free = NONE;
            }
        }
    }

    #[cold]
    fn add_chunk(&mut self) -> u32 {
        let memory = self.spare.pop().unwrap_or_else(|| OwnedMemory::new(CHUNK_BLOCKS * self.block_bytes));
        let chunk = Some(Chunk { memory, next: Vec::new(), free: NONE, used: 0 });
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
        self.open.push(index);
        index
    }
}
