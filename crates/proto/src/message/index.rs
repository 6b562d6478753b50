//! An index of queued entries: entries with the same key form a queue, and the key leads to its head.
//!
//! A key is what a [`Selector`] leaves of sender and tag. MPI libraries use very few selectors: MPICH has two ignore
//! masks, with and without a sender. So one index per selector turns every search into one look-up. Entries are
//! appended in order, so the head of a queue is the oldest entry that the pattern accepts.
//!
//! An entry needs six bytes and a bucket three. A queue is a backward ring: the head's `previous` is the tail. The
//! tail's `next` names the head of the next queue in the same bucket:
//! ```text
//! bucket -> a1 -> a2 -> a3 (tail) -> b1 (head and tail) -> none         a1.previous = a3, b1.previous = b1
//! ```
//! Linear hashing adds and removes one bucket at a time (Source: Litwin, VLDB 1980). So growing never rebuilds the
//! table, and unused chunks are released. This file does not know messages or receives.

use alloc::vec;
use alloc::vec::Vec;

use super::slab::{Directory, Link};
use crate::event::{Pattern, Peer};

/// Links and buckets of a chunk: 48 KiB of either. The first chunk grows up to that size, because most indexes need
/// only a part of it, and the allocator would write zeroes to all of it.
const CHUNK_LINKS: usize = 8192;
const CHUNK_BUCKETS: usize = 16_384;
/// Average number of queues per bucket. Visiting a few more heads costs less than the memory of more buckets.
const QUEUES_PER_BUCKET: usize = 5;
/// Minimum number of buckets, a power of two. With few queues, each most likely has its own bucket.
const MIN_BUCKETS: usize = 16;
/// Hysteresis before a bucket is removed, so that one queue that comes and goes moves nothing.
const SLACK_QUEUES: usize = 64;

/// The part of sender and tag that a pattern compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Selector {
    directed: bool,
    ignore: u64,
}

/// The part of sender and tag that a selector leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    from: u32,
    tag: u64,
}

impl Selector {
    #[inline]
    pub fn of(pattern: &Pattern) -> Selector {
        Selector { directed: pattern.from.is_some(), ignore: pattern.ignore }
    }

    #[inline]
    pub fn key(&self, from: Peer, tag: u64) -> Key {
        Key { from: if self.directed { from.0 } else { 0 }, tag: tag & !self.ignore }
    }

    /// The key of all entries that the pattern accepts.
    #[inline]
    pub fn wanted(&self, pattern: &Pattern) -> Key {
        self.key(pattern.from.unwrap_or(Peer(0)), pattern.tag)
    }
}

impl Key {
    /// Source: the finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014). A golden-ratio product spreads the
    /// sender.
    #[inline]
    fn hash(self) -> usize {
        let mut hash = self.tag ^ u64::from(self.from).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (hash ^ (hash >> 31)) as usize
    }
}

/// The links of some slots.
#[derive(Clone, Debug)]
struct Links {
    live: u16,
    /// One bit per slot: it is the last of its queue.
    tails: [u64; CHUNK_LINKS / 64],
    /// `next` and `previous` of each slot, as bytes, so that the kernel's zero pages initialise a new chunk.
    pairs: Vec<[u8; 6]>,
}

/// Heads of queues, as [`Link`]s.
type Buckets = Vec<[u8; 3]>;

/// The index. It stores slots and asks the caller for their keys.
#[derive(Clone, Debug)]
pub(super) struct Index {
    selector: Selector,
    links: Directory<Links>,
    buckets: Directory<Buckets>,
    bucket_count: usize,
    queues: usize,
    /// Heads visited, for tests that count instead of timing.
    #[cfg(test)]
    pub visits: core::cell::Cell<u64>,
}

impl Index {
    pub fn new(selector: Selector) -> Index {
        let mut buckets = Directory::default();
        buckets.put(0, vec![Link::NONE.0; MIN_BUCKETS]);
        Index {
            selector,
            links: Directory::default(),
            buckets,
            bucket_count: MIN_BUCKETS,
            queues: 0,
            #[cfg(test)]
            visits: core::cell::Cell::new(0),
        }
    }

    #[inline]
    pub fn selector(&self) -> Selector {
        self.selector
    }

    pub fn is_empty(&self) -> bool {
        self.queues == 0
    }

    /// The first entry with `key`. `key_of` gives the keys of the entries in the index.
    #[inline]
    pub fn first(&self, key: Key, key_of: impl Fn(u32) -> Key) -> Option<u32> {
        let mut head = self.bucket(self.bucket_of(key));
        while let Some(slot) = head {
            self.visit();
            if key_of(slot) == key {
                return Some(slot);
            }
            head = self.next(self.tail(slot));
        }
        None
    }

    /// Appends an entry to the queue of its key.
    pub fn append(&mut self, slot: u32, key_of: impl Fn(u32) -> Key) {
        self.add_links(slot);
        let key = key_of(slot);
        match self.first(key, &key_of) {
            Some(head) => {
                let tail = self.tail(head);
                self.set_next(slot, self.next(tail));
                self.set_next(tail, Some(slot));
                self.set_tail(tail, false);
                self.set_previous(slot, tail);
                self.set_previous(head, slot);
            }
            None => {
                let bucket = self.bucket_of(key);
                self.set_next(slot, self.bucket(bucket));
                self.set_previous(slot, slot);
                self.set_bucket(bucket, Some(slot));
                self.queues += 1;
            }
        }
        self.set_tail(slot, true);
        if self.queues > self.bucket_count * QUEUES_PER_BUCKET {
            self.add_bucket(key_of);
        }
    }

    /// Removes an entry at any position.
    pub fn unlink(&mut self, slot: u32, key_of: impl Fn(u32) -> Key) {
        let (previous, next) = (self.previous(slot), self.next(slot));
        // Only a head has a tail as its predecessor.
        let (head, tail) = (self.is_tail(previous), self.is_tail(slot));
        match (head, tail) {
            (false, false) => {
                let next = next.expect("a link behind all but tails");
                self.set_next(previous, Some(next));
                self.set_previous(next, previous);
            }
            (false, true) => {
                let head = self.first(key_of(slot), &key_of).expect("the head of an entry's own queue");
                self.set_next(previous, next);
                self.set_tail(previous, true);
                self.set_previous(head, previous);
            }
            (true, _) => {
                let bucket = self.bucket_of(key_of(slot));
                let before = self.queue_before(bucket, slot);
                if !tail {
                    self.set_previous(next.expect("a link behind all but tails"), previous);
                }
                match before {
                    None => self.set_bucket(bucket, next),
                    Some(tail_before) => self.set_next(tail_before, next),
                }
                self.queues -= usize::from(tail);
            }
        }
        self.remove_links(slot);
        if self.bucket_count > MIN_BUCKETS
            && self.queues + SLACK_QUEUES < (self.bucket_count - 1) * QUEUES_PER_BUCKET
        {
            self.remove_bucket(key_of);
        }
    }

    /// Heap memory that it uses. Unit: bytes.
    pub fn bytes(&self) -> usize {
        self.links.bytes(CHUNK_LINKS * size_of::<[u8; 6]>())
            + self.buckets.bytes(CHUNK_BUCKETS * size_of::<Link>())
    }

    /// The tail of the previous queue in the bucket of `head`, if there is one.
    fn queue_before(&self, bucket: usize, head: u32) -> Option<u32> {
        let mut before = None;
        let mut walked = self.bucket(bucket).expect("the bucket of a head has a head");
        while walked != head {
            self.visit();
            let tail = self.tail(walked);
            before = Some(tail);
            walked = self.next(tail).expect("a head is in its bucket");
        }
        before
    }

    /// Adds a bucket, which takes its share from its partner.
    fn add_bucket(&mut self, key_of: impl Fn(u32) -> Key) {
        let added = self.bucket_count;
        let chunk = added / CHUNK_BUCKETS;
        match self.buckets.get_mut(chunk) {
            // The first chunk grows. It may have more places than buckets if some were removed.
            Some(heads) if heads.len() == added % CHUNK_BUCKETS => heads.push(Link::NONE.0),
            Some(_) => {}
            None => self.buckets.put(chunk, vec![Link::NONE.0; CHUNK_BUCKETS]),
        }
        self.bucket_count += 1;
        self.redistribute(Self::partner(added), key_of);
    }

    /// Removes a bucket; its queues go back to its partner.
    fn remove_bucket(&mut self, key_of: impl Fn(u32) -> Key) {
        self.bucket_count -= 1;
        let taken = self.bucket_count;
        self.redistribute(taken, key_of);
        if taken.is_multiple_of(CHUNK_BUCKETS) {
            self.buckets.free(taken / CHUNK_BUCKETS);
        }
    }

    /// Moves the queues of a bucket to their current buckets.
    fn redistribute(&mut self, bucket: usize, key_of: impl Fn(u32) -> Key) {
        let mut left = self.bucket(bucket);
        self.set_bucket(bucket, None);
        while let Some(head) = left {
            self.visit();
            let tail = self.tail(head);
            left = self.next(tail);
            let bucket = self.bucket_of(key_of(head));
            self.set_next(tail, self.bucket(bucket));
            self.set_bucket(bucket, Some(head));
        }
    }

    /// The bucket that represents `bucket` while it does not exist: its number without the highest bit.
    fn partner(bucket: usize) -> usize {
        bucket & !(1 << bucket.ilog2())
    }

    #[inline]
    fn bucket_of(&self, key: Key) -> usize {
        let bucket = key.hash() & (self.bucket_count.next_power_of_two() - 1);
        if bucket < self.bucket_count { bucket } else { Self::partner(bucket) }
    }

    #[inline]
    fn visit(&self) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
    }

    fn add_links(&mut self, slot: u32) {
        let (number, place) = (slot as usize / CHUNK_LINKS, slot as usize % CHUNK_LINKS);
        if self.links.get(number).is_none() {
            let pairs = if number == 0 { Vec::new() } else { vec![[0; 6]; CHUNK_LINKS] };
            self.links.put(number, Links { live: 0, tails: [0; CHUNK_LINKS / 64], pairs });
        }
        let links = self.links_mut(slot);
        if links.pairs.len() <= place {
            links.pairs.resize(place + 1, [0; 6]);
        }
        links.live += 1;
    }

    fn remove_links(&mut self, slot: u32) {
        self.set_tail(slot, false);
        let links = self.links_mut(slot);
        links.live -= 1;
        // The last chunk stays: the next entry will most likely need it.
        if links.live == 0 && self.links.count() > 1 {
            self.links.free(slot as usize / CHUNK_LINKS);
        }
    }

    #[inline]
    fn links(&self, slot: u32) -> &Links {
        self.links.get(slot as usize / CHUNK_LINKS).expect("linked entries have links")
    }

    #[inline]
    fn links_mut(&mut self, slot: u32) -> &mut Links {
        self.links.get_mut(slot as usize / CHUNK_LINKS).expect("linked entries have links")
    }

    #[inline]
    fn next(&self, slot: u32) -> Option<u32> {
        let [a, b, c, ..] = self.links(slot).pairs[slot as usize % CHUNK_LINKS];
        Link([a, b, c]).slot()
    }

    fn set_next(&mut self, slot: u32, next: Option<u32>) {
        let pair = &mut self.links_mut(slot).pairs[slot as usize % CHUNK_LINKS];
        pair[..3].copy_from_slice(&next.map_or(Link::NONE, Link::to).0);
    }

    #[inline]
    fn previous(&self, slot: u32) -> u32 {
        let [.., a, b, c] = self.links(slot).pairs[slot as usize % CHUNK_LINKS];
        Link([a, b, c]).slot().expect("a ring has no end")
    }

    fn set_previous(&mut self, slot: u32, previous: u32) {
        let pair = &mut self.links_mut(slot).pairs[slot as usize % CHUNK_LINKS];
        pair[3..].copy_from_slice(&Link::to(previous).0);
    }

    /// The last entry of the queue of `head`.
    #[inline]
    fn tail(&self, head: u32) -> u32 {
        self.previous(head)
    }

    fn is_tail(&self, slot: u32) -> bool {
        let bit = slot as usize % CHUNK_LINKS;
        self.links(slot).tails[bit / 64] & 1 << (bit % 64) != 0
    }

    fn set_tail(&mut self, slot: u32, tail: bool) {
        let bit = slot as usize % CHUNK_LINKS;
        let word = &mut self.links_mut(slot).tails[bit / 64];
        *word = *word & !(1 << (bit % 64)) | u64::from(tail) << (bit % 64);
    }

    #[inline]
    fn bucket(&self, bucket: usize) -> Option<u32> {
        let chunk = self.buckets.get(bucket / CHUNK_BUCKETS).expect("buckets have chunks");
        Link(chunk[bucket % CHUNK_BUCKETS]).slot()
    }

    fn set_bucket(&mut self, bucket: usize, head: Option<u32>) {
        let chunk = self.buckets.get_mut(bucket / CHUNK_BUCKETS).expect("buckets have chunks");
        chunk[bucket % CHUNK_BUCKETS] = head.map_or(Link::NONE, Link::to).0;
    }
}
