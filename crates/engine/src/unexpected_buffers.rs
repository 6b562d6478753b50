//! Unexpected buffers: the payload of unexpected messages, in chains of small blocks.
//!
//! Buffers come and go in any order, so there are only two sizes of blocks: a free block fits any message of its kind.
//! A chunk stays in memory while one of its blocks is in use.
//!
//! [`weir_proto::unexpected_cost_bytes`] counts the cost: blocks of 64 bytes (16 for messages of a few words), 4 bytes
//! to link a block to the next, and an entry for the first. Blocks that were freed together are used together again, so
//! most chains are contiguous. Empty chunks go back to the kernel, except one of each kind. Some more are spared for
//! the next messages, until no buffer of that kind is in use.
//!
//! A [`MessageId`] is the lowest free place in the endpoint machine's queue, so the chains form a table by
//! identifier, in pages that are freed when they are empty. Messages whose payload is with the sender have
//! identifiers too, but no chain. In the worst case they fill all but one place of each page, and each costs 8 bytes
//! in the table.

mod blocks;

use blocks::{Blocks, NONE, spare_chunks};
use weir_link::memory::UserMemory;
use weir_proto::{MessageId, unexpected_block_bytes};

/// Memory of all spare chunks with this budget for payload. Unit: bytes.
pub fn spare_bytes(budget_bytes: u64) -> u64 {
    (spare_chunks(budget_bytes) * blocks::CHUNK_BLOCKS * (64 + 16)) as u64
}

/// Chains in a page of [`Chains`]: 32 KiB in a mapping of its own ([`weir_link::page_allocator`]), resident as far as
/// used.
const PAGE_CHAINS: usize = 4096;

/// The blocks of a message.
#[derive(Clone, Copy, Debug)]
struct Chain {
    first: u32,
    bytes: u32,
}

impl Chain {
    const NONE: Chain = Chain { first: NONE, bytes: 0 };
}

/// The chains of all messages, by [`MessageId`].
#[derive(Debug, Default)]
struct Chains {
    pages: Vec<Page>,
    /// Pages with memory.
    held: usize,
}

/// A page of chains. An empty page has no memory, unless it is the only one.
#[derive(Debug, Default)]
struct Page {
    used: u32,
    /// As many as were ever used. The capacity is that of a whole page.
    chains: Vec<Chain>,
}

impl Chains {
    #[inline]
    fn get(&self, message: MessageId) -> Option<Chain> {
        let (page, place) = (message.0 as usize / PAGE_CHAINS, message.0 as usize % PAGE_CHAINS);
        let chain = *self.pages.get(page)?.chains.get(place)?;
        (chain.first != NONE).then_some(chain)
    }

    /// # Panics
    /// If the message has a chain already.
    #[inline]
    fn insert(&mut self, message: MessageId, chain: Chain) {
        let (number, place) = (message.0 as usize / PAGE_CHAINS, message.0 as usize % PAGE_CHAINS);
        if self.pages.get(number).is_none_or(|page| page.chains.len() <= place) {
            self.add_page(number, place);
        }
        let page = &mut self.pages[number];
        let before = std::mem::replace(&mut page.chains[place], chain);
        assert_eq!(before.first, NONE, "{message:?} has a buffer already");
        page.used += 1;
    }

    fn add_page(&mut self, number: usize, place: usize) {
        if self.pages.len() <= number {
            self.pages.resize_with(number + 1, Page::default);
        }
        let page = &mut self.pages[number];
        if page.chains.is_empty() {
            page.chains.reserve_exact(PAGE_CHAINS);
            self.held += 1;
        }
        page.chains.resize(place + 1, Chain::NONE);
    }

    #[inline]
    fn remove(&mut self, message: MessageId) -> Option<Chain> {
        let chain = self.get(message)?;
        let (number, place) = (message.0 as usize / PAGE_CHAINS, message.0 as usize % PAGE_CHAINS);
        let page = &mut self.pages[number];
        page.chains[place] = Chain::NONE;
        page.used -= 1;
        if page.used == 0 && self.held > 1 {
            page.chains = Vec::new();
            self.held -= 1;
            let needed = self.pages.iter().rposition(|page| page.used > 0).map_or(0, |last| last + 1);
            if self.pages.capacity() > 64 && needed < self.pages.capacity() / 4 {
                self.shrink(needed);
            }
        }
        Some(chain)
    }

    #[cold]
    fn shrink(&mut self, pages: usize) {
        self.pages.truncate(pages);
        self.pages.shrink_to(2 * pages);
        self.held = self.pages.iter().filter(|page| !page.chains.is_empty()).count();
    }
}

/// All unexpected buffers of an endpoint.
#[derive(Debug)]
pub(crate) struct UnexpectedBuffers {
    chains: Chains,
    small: Blocks,
    large: Blocks,
}

impl UnexpectedBuffers {
    /// None, for an endpoint with this budget for payload. Unit: bytes.
    pub fn new(budget_bytes: u64) -> UnexpectedBuffers {
        let blocks = |bytes| Blocks::of(unexpected_block_bytes(bytes) as usize, spare_chunks(budget_bytes));
        UnexpectedBuffers { chains: Chains::default(), small: blocks(1), large: blocks(u64::MAX) }
    }

    /// The blocks for payload of this length.
    #[inline]
    fn blocks(&self, bytes: u64) -> &Blocks {
        if unexpected_block_bytes(bytes) == self.small.block_bytes as u64 { &self.small } else { &self.large }
    }

    #[inline]
    fn blocks_mut(&mut self, bytes: u64) -> &mut Blocks {
        if unexpected_block_bytes(bytes) == self.small.block_bytes as u64 {
            &mut self.small
        } else {
            &mut self.large
        }
    }

    /// Allocates `bytes` bytes for a message.
    ///
    /// # Panics
    /// If the message has a buffer already.
    #[inline]
    pub fn allocate(&mut self, message: MessageId, bytes: u64) {
        let first = self.blocks_mut(bytes).chain(bytes as usize);
        self.chains.insert(message, Chain { first, bytes: bytes as u32 });
    }

    /// The buffer of a message.
    ///
    /// # Panics
    /// If it has none.
    #[inline]
    pub fn memory(&self, message: MessageId) -> UserMemory {
        let chain = self.chains.get(message).expect("named messages have buffers");
        let blocks = self.blocks(u64::from(chain.bytes));
        let (part, rest) = blocks.contiguous_run(chain.first, chain.bytes as usize);
        match rest {
            None => part,
            Some(rest) => blocks.pieces(part, rest),
        }
    }

    /// Frees spare chunks of kinds without a block in use. Called periodically.
    pub fn trim(&mut self) {
        for blocks in [&mut self.small, &mut self.large] {
            if blocks.chunks.iter().flatten().all(|chunk| chunk.used == 0) {
                blocks.spare.clear();
            }
        }
    }

    /// Frees the buffer of a message.
    #[inline]
    pub fn free(&mut self, message: MessageId) {
        if let Some(Chain { first, bytes }) = self.chains.remove(message) {
            self.blocks_mut(u64::from(bytes)).free(first, bytes as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::blocks::CHUNK_BLOCKS;
    use super::*;

    const BUDGET: u64 = 16 << 20;

    fn content(message: u32, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (message as usize * 31 + at * 7) as u8).collect()
    }

    #[test]
    fn unexpected_buffers_are_readable_in_any_order() {
        let mut unexpected_buffers = UnexpectedBuffers::new(BUDGET);
        let mut random = 1u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        let mut held: Vec<(u32, usize)> = Vec::new();
        let mut most_bytes = [0usize; 2];
        for message in 0..20_000 {
            let bytes = [1, 8, 48, 49, 64, 65, 2048, 5000, 70_000][draw(9) as usize];
            unexpected_buffers.allocate(MessageId(message), bytes as u64);
            unexpected_buffers.memory(MessageId(message)).write(0, &content(message, bytes));
            held.push((message, bytes));
            for (most, block) in most_bytes.iter_mut().zip([16, 64]) {
                let of_kind =
                    held.iter().filter(|held| unexpected_block_bytes(held.1 as u64) == block as u64);
                *most = (*most).max(of_kind.map(|(_, bytes)| bytes.next_multiple_of(block)).sum());
            }
            while held.len() > 40 {
                let (message, bytes) = held.swap_remove(draw(held.len() as u64) as usize);
                let mut back = vec![0; bytes];
                unexpected_buffers.memory(MessageId(message)).read(0, &mut back);
                assert_eq!(back, content(message, bytes));
                unexpected_buffers.free(MessageId(message));
            }
        }
        // No fragmentation: the most memory is the most that was in use, and one chunk.
        for (blocks, most_bytes) in
            [&unexpected_buffers.small, &unexpected_buffers.large].into_iter().zip(most_bytes)
        {
            let chunk_bytes = CHUNK_BLOCKS * blocks.block_bytes;
            assert!(blocks.chunks.len() * chunk_bytes <= most_bytes + chunk_bytes);
        }
        for (message, _) in held {
            unexpected_buffers.free(MessageId(message));
        }
        for blocks in [&unexpected_buffers.small, &unexpected_buffers.large] {
            assert!(blocks.chunks.iter().flatten().count() <= 1);
            assert!(blocks.spare.len() <= spare_chunks(BUDGET));
        }
        unexpected_buffers.trim();
        assert!(unexpected_buffers.small.spare.is_empty() && unexpected_buffers.large.spare.is_empty());
        assert!(unexpected_buffers.chains.pages.iter().all(|page| page.used == 0));
        assert!(unexpected_buffers.chains.held <= 1);
    }

    #[test]
    fn a_small_budget_keeps_few_spare_chunks() {
        for (budget, kib) in
            [(64 << 10, 320), (4 << 20, 320), (8 << 20, 640), (16 << 20, 1280), (1 << 40, 1280)]
        {
            assert_eq!(spare_bytes(budget), kib << 10, "{budget}");
        }
    }

    #[test]
    fn a_buffer_from_an_empty_chunk_is_contiguous() {
        let mut unexpected_buffers = UnexpectedBuffers::new(BUDGET);
        for round in 0..100 {
            unexpected_buffers.allocate(MessageId(round), 2048);
            assert!(unexpected_buffers.memory(MessageId(round)).contiguous_address().is_some());
            unexpected_buffers.free(MessageId(round));
        }
    }

    #[test]
    fn a_buffer_in_the_place_of_a_freed_one_is_contiguous() {
        let mut unexpected_buffers = UnexpectedBuffers::new(BUDGET);
        (0..100).for_each(|message| unexpected_buffers.allocate(MessageId(message), 2048));
        let contiguous = (100..1000).filter(|&round| {
            unexpected_buffers.free(MessageId(round - 100));
            unexpected_buffers.allocate(MessageId(round), 2048);
            unexpected_buffers.memory(MessageId(round)).contiguous_address().is_some()
        });
        assert!(contiguous.count() > 800, "most of 900");
    }
}
