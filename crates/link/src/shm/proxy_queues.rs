//! Queues of datagrams that another endpoint of the node may send, in the area of proxy queues ([`ProxyQueues`]). Each
//! endpoint adds to its own queue, with the number of its entry in the directory. Whoever has the server token of a
//! pool takes from all queues of the pool.
//!
//! ```text
//! 0         line: server token of pool 0; queues whose memory is reserved
//! 64 p      line: server token of pool p
//! 4096      queue of entry 0: owner, end, begin, in a line each; a ring of words
//! 69568     queue of entry 1
//!
//! endpoint 0   put a    put b    try_serve: yes   first(0): a  first(1): c  first(0): b  stop_serving
//! endpoint 1            put c    try_serve: no, goes on with its work
//! ```
//! **Deaths.** Begin and end count words, and only grow, also over a new owner of the entry. The owner stores the end after
//! the words. A server copies the words, and then moves the begin by one compare-and-swap. So one that was stopped and
//! wakes late fails there, and drops its copy: two servers at once do no harm. A server that dies behind the swap loses
//! what it has taken and not sent, as a network does. A token that is not renewed for [`SERVER_HOLD_NS`] is void.
//!
//! **No datagram is forgotten.** The owner adds, then a full fence, then looks at the token. A server gives it back, then a
//! full fence, then looks at all queues again. So one of the two sees the other. An owner whose queue is not empty
//! tries again later too, since a server can die or be stopped.
//!
//! This file does not know networks, or what a datagram contains.

use super::counted_word::Word;
use super::mapping::Shared;
use super::node_segment::{Area, NodeHandle, SharedArea};
use super::segment_file::SystemError;
use super::sync::{Ordering, light_fence};
use weir_proto::Instant;

/// Bound: queues of a node.
pub const MAX_QUEUES: usize = 64;
/// The time after which a server that does not go on is none any more. Unit: ns.
pub const SERVER_HOLD_NS: u64 = 10_000_000;
/// Length of the lines before the queues. Unit: bytes.
const HEAD_BYTES: u64 = 4096;
/// Length of a queue. Unit: bytes.
const QUEUE_BYTES: u64 = (Area::ProxyQueues.bytes() - HEAD_BYTES) / MAX_QUEUES as u64;
/// Bits of the time in a server token, which also has the server. 8 years of microseconds.
const TIME_BITS: u32 = 48;
/// Words of a ring.
#[cfg(not(loom))]
const RING_WORDS: usize = (QUEUE_BYTES as usize - 3 * 64) / 8;
#[cfg(loom)]
const RING_WORDS: usize = 4;

/// A word that has a cache line for itself.
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct Line(Word);

/// The line of a queue in which its owner says who it is.
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct OwnerLine {
    /// Networks with the same number reach the same places. 0: nobody adds here.
    domain: Word,
    /// When the owner has said last that it sends. 0: never. Unit: us.
    active: Word,
}

/// A line of the head of the area.
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct HeadLine {
    /// The server of the pool and the time when it has gone on; 0: there is none.
    server: Word,
    /// In the first line: queues whose memory is reserved.
    reserved: Word,
}

/// The queue of an endpoint, as it lies in the segment.
#[repr(C, align(64))]
#[derive(Debug)]
struct Queue {
    owner: OwnerLine,
    /// Words that were added. Only the owner writes it.
    end: Line,
    /// Words that were taken.
    begin: Line,
    words: [Word; RING_WORDS],
}

// SAFETY: structures of atomics.
unsafe impl Shared for HeadLine {}
// SAFETY: as above.
unsafe impl Shared for Queue {}

const _: () = assert!(!super::sync::NATIVE || size_of::<HeadLine>() == 64);
const _: () = assert!(!super::sync::NATIVE || size_of::<Queue>() as u64 == QUEUE_BYTES);

/// The first datagram of a queue. Another server may take it at any time; then what is read here is void.
#[derive(Clone, Copy, Debug)]
pub struct First<'area> {
    queue: &'area Queue,
    begin: u64,
    part_bytes: usize,
    datagram_bytes: usize,
}

impl First<'_> {
    /// Length of the datagram. Unit: bytes.
    pub fn datagram_bytes(&self) -> usize {
        self.datagram_bytes
    }

    /// Appends what a network needs to find the receiver.
    pub fn append_part(&self, bytes: &mut Vec<u8>) {
        self.queue.append_to(bytes, self.begin + 1, self.part_bytes);
    }

    /// Appends the datagram.
    pub fn append_datagram(&self, bytes: &mut Vec<u8>) {
        let at = self.begin + 1 + self.part_bytes.div_ceil(8) as u64;
        self.queue.append_to(bytes, at, self.datagram_bytes);
    }

    /// Takes the datagram. `false`: another server was faster, and what was read is void.
    pub fn take(self) -> bool {
        let words = words_of(self.part_bytes, self.datagram_bytes) as u64;
        self.queue.move_begin(self.begin, self.begin + words)
    }
}

/// The first word of a datagram in a ring: its length and that of the part.
fn head_word(part: usize, datagram: usize) -> u64 {
    (part as u64) << 32 | datagram as u64
}

/// The words of a datagram in a ring.
fn words_of(part: usize, datagram: usize) -> usize {
    1 + part.div_ceil(8) + datagram.div_ceil(8)
}

impl Queue {
    /// The `count` words from a position on. The second slice is behind the end of the ring.
    fn words(&self, position: u64, count: usize) -> [&[Word]; 2] {
        let (before, from) = self.words.split_at((position % RING_WORDS as u64) as usize);
        let first = count.min(from.len());
        [&from[..first], &before[..count - first]]
    }

    /// Writes bytes from a position on. Returns the position behind them.
    fn write(&self, position: u64, bytes: &[u8]) -> u64 {
        let (whole, rest) = bytes.as_chunks::<8>();
        let [first, second] = self.words(position, whole.len());
        let (whole_first, whole_second) = whole.split_at(first.len());
        for (words, bytes) in [(first, whole_first), (second, whole_second)] {
            let pairs = words.iter().zip(bytes);
            pairs.for_each(|(word, bytes)| word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed));
        }
        let end = position + whole.len() as u64;
        if rest.is_empty() {
            return end;
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.write(end, &last)
    }

    /// Appends so many bytes from a position on.
    fn append_to(&self, bytes: &mut Vec<u8>, position: u64, length: usize) {
        let (begin, count) = (bytes.len(), length.div_ceil(8));
        bytes.resize(begin + 8 * count, 0);
        let mut chunks = bytes[begin..].as_chunks_mut::<8>().0;
        for words in self.words(position, count) {
            let (these, others) = chunks.split_at_mut(words.len());
            let pairs = words.iter().zip(these);
            pairs.for_each(|(word, bytes)| *bytes = word.load(Ordering::Relaxed).to_ne_bytes());
            chunks = others;
        }
        bytes.truncate(begin + length);
    }

    fn is_empty(&self) -> bool {
        self.begin.0.load(Ordering::Acquire) == self.end.0.load(Ordering::Acquire)
    }

    /// Whether the owner can add so many words.
    fn has_room(&self, words: usize) -> bool {
        let used = self.end.0.load(Ordering::Relaxed).wrapping_sub(self.begin.0.load(Ordering::Acquire));
        used.saturating_add(words as u64) <= RING_WORDS as u64
    }

    /// Adds a datagram, for which there is room. Only the owner calls this. Returns its end.
    fn put(&self, part: &[u8], datagram: &[u8]) -> u64 {
        let mut at = self.end.0.load(Ordering::Relaxed);
        for bytes in [&head_word(part.len(), datagram.len()).to_ne_bytes(), part, datagram] {
            at = self.write(at, bytes);
        }
        self.end.0.store(at, Ordering::Release);
        at
    }

    /// The first datagram, if the owner's network is `domain`. `None`: there is none now.
    fn first(&self, domain: u64) -> Option<First<'_>> {
        let begin = self.begin.0.load(Ordering::Acquire);
        let added = self.end.0.load(Ordering::Acquire).wrapping_sub(begin);
        // A new owner shows its network before it adds, so what was added has this one.
        if added == 0 || added > RING_WORDS as u64 || self.owner.domain.load(Ordering::Relaxed) != domain {
            return None;
        }
        let [first, _] = self.words(begin, 1);
        let head = first[0].load(Ordering::Relaxed);
        let (part_bytes, datagram_bytes) = ((head >> 32) as usize, head as u32 as usize);
        if words_of(part_bytes, datagram_bytes) as u64 > added {
            // Another server has taken it, and the owner has written there again. Then the begin has moved. Otherwise some
            // process has broken the rules: what is there is void.
            self.move_begin(begin, begin + added);
            return None;
        }
        Some(First { queue: self, begin, part_bytes, datagram_bytes })
    }

    /// Moves the begin, unless somebody else has.
    fn move_begin(&self, from: u64, to: u64) -> bool {
        self.begin.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The caller is the new owner. What another one has left is void.
    fn adopt(&self, domain: u64) {
        let end = self.end.0.load(Ordering::Acquire);
        loop {
            let begin = self.begin.0.load(Ordering::Acquire);
            if begin == end || self.move_begin(begin, end) {
                break;
            }
        }
        self.owner.active.store(0, Ordering::Relaxed);
        self.owner.domain.store(domain, Ordering::Release);
    }
}

fn micros(at: Instant) -> u64 {
    (at.0 / 1000) & ((1 << TIME_BITS) - 1)
}

impl HeadLine {
    fn token(index: usize, now: Instant) -> u64 {
        (index as u64 + 1) << TIME_BITS | micros(now)
    }

    fn holds(token: u64, index: usize) -> bool {
        token >> TIME_BITS == index as u64 + 1
    }

    /// Takes or renews the token for the endpoint `index`. Returns whether it has it.
    fn try_serve(&self, index: usize, now: Instant) -> bool {
        let token = self.server.load(Ordering::Acquire);
        let renewed = token & ((1 << TIME_BITS) - 1);
        let age_ns = micros(now).saturating_sub(renewed).saturating_mul(1000);
        // `now` may be old. But no server has renewed it long after that: some process has broken the rules.
        let is_void = age_ns >= SERVER_HOLD_NS || renewed > micros(now.plus_ns(1000 * SERVER_HOLD_NS));
        let is_free = token == 0 || HeadLine::holds(token, index) || is_void;
        let mine = HeadLine::token(index, now);
        is_free && self.server.compare_exchange(token, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Gives the token back, if the endpoint has it.
    fn stop_serving(&self, index: usize) {
        let token = self.server.load(Ordering::Relaxed);
        if HeadLine::holds(token, index) {
            let _ = self.server.compare_exchange(token, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// The queues of a node, and which of them is that of this endpoint. See the head of this file.
#[derive(Debug)]
pub struct ProxyQueues {
    area: SharedArea,
    index: usize,
    pools: usize,
    domain: u64,
}

impl ProxyQueues {
    /// The queues of the node of `node`. Reserves the memory of the own one, which is empty then. `None`: its entry has none,
    /// because there are too many endpoints.
    ///
    /// - `servers`: pools, of which each has a server, 1 to [`MAX_QUEUES`].
    /// - `domain`: endpoints with the same number, never 0, can send for each other.
    ///
    /// # Errors
    /// No space left, or the name is gone.
    pub fn open(node: &NodeHandle, servers: u32, domain: u64) -> Result<Option<ProxyQueues>, SystemError> {
        let index = node.index();
        if index >= MAX_QUEUES {
            return Ok(None);
        }
        node.part(Area::ProxyQueues, 0, HEAD_BYTES + QUEUE_BYTES * (index as u64 + 1))?;
        let area = node.reserved_part(Area::ProxyQueues, 0, Area::ProxyQueues.bytes());
        let pools = (servers.max(1) as usize).min(MAX_QUEUES);
        let queues = ProxyQueues { area, index, pools, domain };
        queues.head(0).reserved.fetch_max(index as u64 + 1, Ordering::AcqRel);
        queues.own_line().stop_serving(index); // of a dead endpoint with this entry
        queues.own().adopt(domain);
        Ok(Some(queues))
    }

    fn head(&self, pool: usize) -> &HeadLine {
        &self.area.values(64 * pool as u64, 1)[0]
    }

    fn own_line(&self) -> &HeadLine {
        self.head(self.index % self.pools)
    }

    fn queue(&self, index: usize) -> &Queue {
        &self.area.values(HEAD_BYTES + QUEUE_BYTES * index as u64, 1)[0]
    }

    fn own(&self) -> &Queue {
        self.queue(self.index)
    }

    /// The number of the own queue.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The numbers of the queues that a server of this pool and network serves: its own first, then the others.
    pub fn served(&self) -> impl Iterator<Item = usize> + use<> {
        let reserved = self.head(0).reserved.load(Ordering::Acquire).min(MAX_QUEUES as u64) as usize;
        let (index, pools) = (self.index, self.pools);
        (index..reserved).chain(0..index).filter(move |other| other % pools == index % pools)
    }

    /// Whether the own queue can take a datagram.
    pub fn has_room(&self, part_bytes: usize, datagram_bytes: usize) -> bool {
        self.own().has_room(words_of(part_bytes, datagram_bytes))
    }

    /// Adds a datagram to the own queue, which has room for it. Returns its end: words that were added up to there.
    pub fn put(&self, part: &[u8], datagram: &[u8]) -> u64 {
        self.own().put(part, datagram)
    }

    /// Whether the datagram with this end is in the own queue.
    pub fn is_behind(&self, end: u64) -> bool {
        self.own().begin.0.load(Ordering::Relaxed) < end
    }

    /// Whether the own queue is empty.
    pub fn is_empty(&self) -> bool {
        self.own().is_empty()
    }

    /// Takes the server token of the own pool, or says that its server goes on. Returns whether this endpoint is the server.
    pub fn try_serve(&self, now: Instant) -> bool {
        light_fence(true); // what was added comes before the look at the token
        self.own_line().try_serve(self.index, now)
    }

    /// This endpoint sends at `now`. Returns whether no other one of this pool and network has said so in the last
    /// [`SERVER_HOLD_NS`], or has datagrams in its queue, which somebody must send. Two that begin at the same moment can
    /// both find nobody.
    pub fn is_alone(&self, now: Instant) -> bool {
        self.own().owner.active.store(micros(now).max(1), Ordering::Relaxed);
        let is_active = |index: usize| {
            let queue = self.queue(index);
            let active = queue.owner.active.load(Ordering::Relaxed);
            let is_recent = active > 0 && micros(now).saturating_sub(active) < SERVER_HOLD_NS / 1000;
            (is_recent || !queue.is_empty()) && queue.owner.domain.load(Ordering::Relaxed) == self.domain
        };
        !self.served().filter(|index| *index != self.index).any(is_active)
    }

    /// The first datagram of a queue, if it is of the own network. `None`: there is none now.
    pub fn first(&self, queue: usize) -> Option<First<'_>> {
        self.queue(queue).first(self.domain)
    }

    /// This endpoint is the server no more. Returns whether a queue is not empty: then the token is to be tried again.
    pub fn stop_serving(&self) -> bool {
        self.own_line().stop_serving(self.index);
        light_fence(true);
        self.served().any(|index| {
            let queue = self.queue(index);
            queue.owner.domain.load(Ordering::Acquire) == self.domain && !queue.is_empty()
        })
    }

    /// Nobody takes from the own queue any more, and this endpoint serves no more.
    pub fn leave(&self) {
        self.own().owner.domain.store(0, Ordering::Release);
        self.own_line().stop_serving(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::sync::{Arc, explore, thread};

    const NOW: Instant = Instant(7 * SERVER_HOLD_NS);

    impl Default for Queue {
        fn default() -> Queue {
            let words = std::array::from_fn(|_| Word::default());
            Queue { owner: OwnerLine::default(), end: Line::default(), begin: Line::default(), words }
        }
    }

    fn taken(queue: &Queue) -> Option<(Vec<u8>, Vec<u8>)> {
        let first = queue.first(0)?;
        let (mut part, mut datagram) = (Vec::new(), Vec::new());
        first.append_part(&mut part);
        first.append_datagram(&mut datagram);
        first.take().then_some((part, datagram))
    }

    #[test]
    fn datagrams_come_out_in_order_over_the_end_of_the_ring() {
        if cfg!(loom) {
            return; // the ring of the model has no room for them
        }
        let queue = Box::new(Queue::default());
        let datagram = |number: usize| vec![number as u8; 1 + number * 37 % 1400];
        let (mut put, mut got) = (0, 0);
        while got < 500 {
            while put < 500 && queue.has_room(words_of(7, datagram(put).len())) {
                queue.put(&[put as u8; 7], &datagram(put));
                put += 1;
            }
            assert!(put == 500 || put - got > 40, "the ring has room for many");
            for _ in 0..1 + got % 60 {
                if let Some((part, bytes)) = taken(&queue) {
                    assert_eq!((part, bytes), (vec![got as u8; 7], datagram(got)));
                    got += 1;
                }
            }
        }
        assert!(queue.is_empty() && taken(&queue).is_none());
    }

    #[test]
    fn a_new_owner_begins_with_an_empty_queue_and_a_broken_length_empties_it() {
        explore(1, || {
            let queue = Box::new(Queue::default());
            queue.put(b"A", b"of the dead");
            queue.adopt(0);
            assert!(queue.is_empty());
            queue.put(b"B", b"1");
            assert_eq!(taken(&queue), Some((b"B".into(), b"1".into())));
            queue.put(b"C", b"1");
            queue.words(queue.begin.0.load(Ordering::Relaxed), 1)[0][0]
                .store(u64::MAX >> 8, Ordering::Relaxed);
            assert_eq!((taken(&queue), queue.is_empty()), (None, true));
        });
    }

    #[test]
    fn a_token_is_renewed_given_back_and_void_when_its_server_does_not_go_on() {
        explore(1, || {
            let line = HeadLine::default();
            assert!(line.try_serve(0, NOW) && line.try_serve(0, NOW.plus_ns(1000)));
            assert!(!line.try_serve(1, NOW.plus_ns(SERVER_HOLD_NS)), "it was renewed");
            line.stop_serving(1);
            assert!(!line.try_serve(1, NOW.plus_ns(2000)), "not the token of another");
            assert!(line.try_serve(1, NOW.plus_ns(1000 + SERVER_HOLD_NS)));
            line.stop_serving(0); // it wakes late
            assert!(!line.try_serve(0, NOW.plus_ns(1000 + SERVER_HOLD_NS)));
            line.stop_serving(1);
            assert!(line.try_serve(0, NOW.plus_ns(1000 + SERVER_HOLD_NS)));
            line.server.store(HeadLine::token(1, NOW.plus_ns(2000 * SERVER_HOLD_NS)), Ordering::Relaxed);
            assert!(line.try_serve(0, NOW), "a time to come");
        });
    }

    /// The owner adds two datagrams, and two servers take, of which one may have been thought dead. Each comes out at most once
    /// and whole; the second only fits when the first is gone.
    #[test]
    fn loom_two_servers_never_take_the_same_datagram_and_never_a_mixture() {
        explore(2, || {
            let queue = Arc::new(Queue::default());
            queue.put(&[1; 8], &[1; 16]); // 4 words, a whole ring of the model
            let server = |queue: Arc<Queue>| thread::spawn(move || taken(&queue));
            let servers = [server(Arc::clone(&queue)), server(Arc::clone(&queue))];
            let mut added = 1_u8;
            if queue.has_room(4) {
                queue.put(&[2; 8], &[2; 16]);
                added += 1;
            }
            let mut all: Vec<_> = servers.into_iter().filter_map(|server| server.join().unwrap()).collect();
            while let Some(one) = taken(&queue) {
                all.push(one);
            }
            all.sort_unstable();
            let whole = |number: u8| (vec![number; 8], vec![number; 16]);
            assert_eq!(all, (1..=added).map(whole).collect::<Vec<_>>());
        });
    }

    /// An owner adds while a server stops. One of the two sees that it has to serve.
    #[test]
    fn loom_what_is_added_while_a_server_stops_is_seen_by_one_of_them() {
        explore(2, || {
            let both = Arc::new((HeadLine::default(), Queue::default()));
            assert!(both.0.try_serve(0, NOW));
            let server = {
                let both = Arc::clone(&both);
                thread::spawn(move || {
                    let took = taken(&both.1).is_some();
                    both.0.stop_serving(0);
                    light_fence(true);
                    took || !both.1.is_empty()
                })
            };
            both.1.put(&[], &[1; 8]);
            light_fence(true);
            let serves = both.0.try_serve(1, NOW);
            assert!(serves | server.join().unwrap(), "nobody serves");
        });
    }
}
