//! The payload of unexpected messages, in chains of small blocks: whatever comes and goes in whatever order, what is
//! resident is what is kept, and one chunk.
//!
//! The machine counts what this costs ([`weir_proto::kept_cost_bytes`]): a block of 64 bytes, 4 bytes for the link to the
//! next, and an entry of the map. Blocks that were freed together are used together again, so most chains are in one
//! piece. A chunk without a block in use goes back to the kernel; one of them is spared for the next message.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use weir_link::memory::{OwnedMemory, UserMemory};
use weir_proto::{KEPT_BLOCK_BYTES, MessageId};

const BLOCK_BYTES: usize = KEPT_BLOCK_BYTES as usize;
/// Blocks of a chunk; 64 KiB of payload.
const CHUNK_BLOCKS: usize = 1024;
const NONE: u32 = u32::MAX;

/// Where the payload of a message is.
#[derive(Clone, Copy, Debug)]
struct Chain {
    first: u32,
    bytes: u32,
}

#[derive(Debug)]
struct Chunk {
    memory: OwnedMemory,
    /// The next block of the same message, or the next free one of this chunk.
    next: Vec<u32>,
    free: u32,
    used: usize,
}

/// All kept payload of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    chains: HashMap<u32, Chain, BuildHasherDefault<Scatter>>,
    chunks: Vec<Option<Chunk>>,
    /// Chunks with a free block; the last is filled first.
    open: Vec<u32>,
    /// Chunks without memory.
    absent: Vec<u32>,
}

impl Kept {
    /// Makes room for `bytes` bytes under this name.
    #[inline]
    pub fn keep(&mut self, message: MessageId, bytes: u64) {
        let blocks = bytes.div_ceil(KEPT_BLOCK_BYTES);
        let (mut first, mut last) = (NONE, NONE);
        for _ in 0..blocks {
            let block = self.take();
            match last {
                NONE => first = block,
                last => self.link(last, block),
            }
            last = block;
        }
        let before = self.chains.insert(message.0, Chain { first, bytes: bytes as u32 });
        assert!(before.is_none(), "{message:?} is kept twice");
    }

    /// The room of a message.
    ///
    /// # Panics
    /// If it is not kept.
    #[inline]
    pub fn memory(&self, message: MessageId) -> UserMemory {
        let chain = self.chains.get(&message.0).expect("named messages are kept");
        let (part, rest) = self.stretch(chain.first, chain.bytes as usize);
        match rest {
            None => part,
            Some(rest) => self.pieces(part, rest),
        }
    }

    /// Frees the room of a message.
    pub fn forget(&mut self, message: MessageId) {
        let Some(chain) = self.chains.remove(&message.0) else { return };
        let mut block = chain.first;
        for _ in 0..u64::from(chain.bytes).div_ceil(KEPT_BLOCK_BYTES) {
            let next = self.next(block);
            self.give(block);
            block = next;
        }
        if self.chains.is_empty() && self.chains.capacity() > 4096 {
            self.chains = HashMap::default();
        }
    }

    /// The memory from `block` on as far as it is in one piece, and what follows: the next block, and bytes left.
    fn stretch(&self, block: u32, bytes: usize) -> (UserMemory, Option<(u32, usize)>) {
        let (index, place) = (block as usize / CHUNK_BLOCKS, block as usize % CHUNK_BLOCKS);
        let chunk = self.chunks[index].as_ref().expect("blocks in use have memory");
        let blocks = bytes.div_ceil(BLOCK_BYTES);
        let mut run = 1;
        while run < blocks && chunk.next[place + run - 1] == block + run as u32 && place + run < CHUNK_BLOCKS
        {
            run += 1;
        }
        let here = bytes.min(run * BLOCK_BYTES);
        let rest = (run < blocks).then(|| (chunk.next[place + run - 1], bytes - here));
        (chunk.memory.part(place * BLOCK_BYTES, here), rest)
    }

    #[cold]
    fn pieces(&self, first: UserMemory, rest: (u32, usize)) -> UserMemory {
        let mut rest = Some(rest);
        let others = std::iter::from_fn(|| {
            let (block, bytes) = rest?;
            let (part, after) = self.stretch(block, bytes);
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
            // Never used: the memory behind it is not touched before.
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

    fn give(&mut self, block: u32) {
        let (chunk, place) = self.chunk(block);
        chunk.next[place] = std::mem::replace(&mut chunk.free, block);
        chunk.used -= 1;
        let used = chunk.used;
        let index = block / CHUNK_BLOCKS as u32;
        if used + 1 == CHUNK_BLOCKS {
            self.open.push(index);
        }
        if used == 0 {
            if self.open.len() > 1 {
                self.open.retain(|&open| open != index);
                self.chunks[index as usize] = None;
                self.absent.push(index);
            } else {
                let (chunk, _) = self.chunk(block);
                chunk.next.clear(); // in order again
                chunk.free = NONE;
            }
        }
    }

    #[cold]
    fn add_chunk(&mut self) -> u32 {
        let memory = OwnedMemory::new(CHUNK_BLOCKS * BLOCK_BYTES);
        let chunk = Some(Chunk { memory, next: Vec::new(), free: NONE, used: 0 });
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
        self.open.push(index);
        index
    }
}

/// Hashes numbers that are dense already: one multiplication.
#[derive(Debug, Default)]
struct Scatter(u64);

impl Hasher for Scatter {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }
    #[inline]
    fn write_u32(&mut self, number: u32) {
        let mixed = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(message: u32, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (message as usize * 31 + at * 7) as u8).collect()
    }

    #[test]
    fn what_was_kept_is_there_whatever_the_order() {
        let mut kept = Kept::default();
        let mut random = 1u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        let mut held: Vec<(u32, usize)> = Vec::new();
        let mut most_bytes = 0;
        for message in 0..20_000 {
            let bytes = [1, 8, 64, 65, 2048, 5000, 70_000][draw(7) as usize];
            kept.keep(MessageId(message), bytes as u64);
            kept.memory(MessageId(message)).write(0, &content(message, bytes));
            held.push((message, bytes));
            most_bytes = most_bytes.max(held.iter().map(|(_, bytes)| bytes.next_multiple_of(64)).sum());
            while held.len() > 40 {
                let (message, bytes) = held.swap_remove(draw(held.len() as u64) as usize);
                let mut back = vec![0; bytes];
                kept.memory(MessageId(message)).read(0, &mut back);
                assert_eq!(back, content(message, bytes));
                kept.forget(MessageId(message));
            }
        }
        // No fragmentation: there never was more memory than the most that was kept, and one chunk.
        assert!(kept.chunks.len() * CHUNK_BLOCKS * BLOCK_BYTES <= most_bytes + CHUNK_BLOCKS * BLOCK_BYTES);
        for (message, _) in held {
            kept.forget(MessageId(message));
        }
        assert!(kept.chunks.iter().flatten().count() <= 1);
        assert!(kept.chains.is_empty());
    }

    #[test]
    fn a_message_that_came_first_is_in_one_piece() {
        let mut kept = Kept::default();
        for round in 0..100 {
            kept.keep(MessageId(round), 2048);
            assert!(kept.memory(MessageId(round)).contiguous_address().is_some());
            kept.forget(MessageId(round));
        }
    }
}
