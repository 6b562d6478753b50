//! The packets in a rank's mailbox, by time of arrival, and the number of filled slots.
//!
//! In an all-to-all of 1024 ranks nearly all packets can stand in mailboxes at a time. So packets that arrived in order
//! form a list of train numbers, nearly always three bytes for a packet, in chunks that all mailboxes share. Parts of
//! trains whose packets still arrive one after the other are in a heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::slice;

use prefetch_index::prefetch_index;

use crate::Picoseconds;
use crate::network::{TrainId, TrainPart};

/// With its other fields a chunk fills two cache lines. Most mailboxes hold few packets.
const CHUNK_BYTES: usize = 123;
const NONE: u32 = u32::MAX;
/// Smaller train numbers take three bytes (narrow), others four (wide).
const FIRST_WIDE: u32 = 1 << 24;

/// Packets of one mailbox, by train number, and the next chunk. Tens of millions of packets can stand in
/// mailboxes, and their train numbers nearly always fit in three bytes.
#[derive(Clone, Debug)]
struct Chunk {
    numbers: [u8; CHUNK_BYTES],
    /// Capacity of the chunk, or its number of packets if another chunk follows. Plus [`WIDE`] for wide
    /// numbers.
    places: u8,
    next: u32,
}

const WIDE: u8 = 1 << 7;

const _: () = assert!(size_of::<Chunk>() == 128 && CHUNK_BYTES / 3 < WIDE as usize);

impl Chunk {
    fn empty(wide: bool) -> Chunk {
        let places = if wide { WIDE | (CHUNK_BYTES / 4) as u8 } else { (CHUNK_BYTES / 3) as u8 };
        Chunk { numbers: [0; CHUNK_BYTES], places, next: NONE }
    }

    #[inline]
    fn is_wide(&self) -> bool {
        self.places & WIDE != 0
    }

    #[inline]
    fn places(&self) -> u32 {
        u32::from(self.places & !WIDE)
    }

    /// Ends the chunk behind its first `filled` packets.
    fn close(&mut self, filled: u32) {
        self.places = self.places & WIDE | filled as u8;
    }

    #[inline]
    fn get(&self, place: u32) -> TrainId {
        let place = place as usize;
        let number = if self.is_wide() {
            let bytes = &self.numbers[4 * place..4 * place + 4];
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        } else {
            let bytes = &self.numbers[3 * place..3 * place + 3];
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0])
        };
        TrainId(number)
    }

    #[inline]
    fn set(&mut self, place: u32, train: TrainId) {
        let (place, bytes) = (place as usize, train.0.to_le_bytes());
        if self.is_wide() {
            self.numbers[4 * place..4 * place + 4].copy_from_slice(&bytes);
        } else {
            self.numbers[3 * place..3 * place + 3].copy_from_slice(&bytes[..3]);
        }
    }
}

/// The chunks of all mailboxes.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    chunks: Vec<Chunk>,
    free: Vec<u32>,
}

impl Chunks {
    fn begin(&mut self, wide: bool) -> u32 {
        let begun = Chunk::empty(wide);
        match self.free.pop() {
            Some(index) => {
                self.chunks[index as usize].places = begun.places;
                index
            }
            None => {
                self.chunks.push(begun);
                self.chunks.len() as u32 - 1
            }
        }
    }
}

/// Packets that have arrived in order, first in first out. A single packet needs no chunk, and most mailboxes
/// of a large world hold no more.
#[derive(Debug)]
struct Arrived {
    first: u32,
    last: u32,
    /// Packets taken from the first chunk. Without a chunk: the train of the only packet.
    taken: u32,
    /// Packets put into the last chunk. Without a chunk: the number of packets.
    filled: u32,
}

impl Default for Arrived {
    fn default() -> Arrived {
        Arrived { first: NONE, last: NONE, taken: 0, filled: 0 }
    }
}

impl Arrived {
    #[inline]
    fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// The only packet, if it needs no chunk.
    #[inline]
    fn alone(&self) -> Option<TrainId> {
        (self.first == NONE && self.filled == 1).then_some(TrainId(self.taken))
    }

    #[inline]
    fn push(&mut self, train: TrainId, chunks: &mut Chunks) {
        if self.is_empty() {
            (self.taken, self.filled) = (train.0, 1);
            return;
        }
        if let Some(before) = self.alone() {
            self.filled = 0;
            self.push_to_chunk(before, chunks);
        }
        self.push_to_chunk(train, chunks);
    }

    #[inline]
    fn push_to_chunk(&mut self, train: TrainId, chunks: &mut Chunks) {
        let wide = train.0 >= FIRST_WIDE;
        match chunks.chunks.get_mut(self.last as usize) {
            Some(last) if self.filled < last.places() && (!wide || last.is_wide()) => {
                last.set(self.filled, train)
            }
            _ => self.push_to_another(train, wide, chunks),
        }
        self.filled += 1;
    }

    fn push_to_another(&mut self, train: TrainId, wide: bool, chunks: &mut Chunks) {
        let added = chunks.begin(wide);
        match chunks.chunks.get_mut(self.last as usize) {
            None => (self.first, self.taken) = (added, 0),
            Some(last) => {
                last.close(self.filled);
                last.next = added;
            }
        }
        (self.last, self.filled) = (added, 0);
        chunks.chunks[added as usize].set(0, train);
    }

    /// Writes the trains of the first packets into `trains`. Returns how many.
    fn peek(&self, chunks: &Chunks, trains: &mut [TrainId]) -> usize {
        if let (Some(alone), [first, ..]) = (self.alone(), &mut *trains) {
            *first = alone;
            return 1;
        }
        let (mut index, mut place, mut count) = (self.first, self.taken, 0);
        while count < trains.len() && index != NONE {
            let chunk = &chunks.chunks[index as usize];
            let end = if index == self.last { self.filled } else { chunk.places() };
            for (train, place) in trains[count..].iter_mut().zip(place..end) {
                *train = chunk.get(place);
                count += 1;
            }
            if index == self.last {
                break;
            }
            (index, place) = (chunk.next, 0);
        }
        count
    }

    #[inline]
    fn pop(&mut self, chunks: &mut Chunks) -> Option<TrainId> {
        if self.first == NONE {
            let alone = self.alone();
            *self = Arrived::default();
            return alone;
        }
        let chunk = &chunks.chunks[self.first as usize];
        let train = chunk.get(self.taken);
        self.taken += 1;
        if self.first == self.last {
            if self.taken == self.filled {
                chunks.free.push(self.first);
                *self = Arrived::default();
            }
        } else if self.taken == chunk.places() {
            chunks.free.push(self.first);
            (self.first, self.taken) = (chunk.next, 0);
        }
        Some(train)
    }
}

/// The rest of a part of a train.
#[derive(Clone, Copy, Debug)]
struct RestOfPart {
    train: TrainId,
    /// Index of its next packet; `None`: the next packet of the train.
    next: Option<u32>,
    /// Packets that were not retrieved.
    count: u32,
    spacing_ps: Picoseconds,
}

/// A rank's mailbox.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    /// These packets came before all in the heap.
    arrived: Arrived,
    /// Allocated at first use, so that an empty mailbox is small.
    parts: Option<Box<IncomingParts>>,
    slots: u32,
    peak_slots: u32,
}

/// Parts of trains whose packets arrive one after the other.
#[derive(Debug, Default)]
struct IncomingParts {
    /// The next packet of each part: time of arrival, order of the parts, index of the part.
    heads: BinaryHeap<Reverse<(Picoseconds, u64, u32)>>,
    rests: Vec<RestOfPart>,
    free: Vec<u32>,
    order: u64,
}

impl IncomingParts {
    /// The first packet of a part has arrived.
    fn begin(&mut self, now: Picoseconds, rest: RestOfPart) {
        let index = match self.free.pop() {
            Some(index) => {
                self.rests[index as usize] = rest;
                index
            }
            None => {
                self.rests.push(rest);
                self.rests.len() as u32 - 1
            }
        };
        self.heads.push(Reverse((now, self.order, index)));
        self.order += 1;
    }

    /// The train of the next packet, if that has arrived by `now`.
    #[inline]
    fn peek(&self, now: Picoseconds) -> Option<TrainId> {
        let &Reverse((at, _, index)) = self.heads.peek()?;
        (at <= now).then(|| self.rests[index as usize].train)
    }

    #[inline]
    fn take(&mut self, now: Picoseconds) -> Option<(TrainId, Option<u32>)> {
        let &Reverse((at, order, index)) = self.heads.peek()?;
        if at > now {
            return None;
        }
        let rest = &mut self.rests[index as usize];
        let packet = (rest.train, rest.next);
        rest.next = rest.next.map(|next| next + 1);
        rest.count -= 1;
        if rest.count == 0 {
            self.heads.pop();
            self.free.push(index);
        } else {
            // The next packet of the same part is usually still the earliest.
            let next_at = at + rest.spacing_ps;
            *self.heads.peek_mut().expect("the first entry exists") = Reverse((next_at, order, index));
        }
        Some(packet)
    }
}

impl Mailbox {
    /// The next packet of a train has arrived, or its next packets begin to arrive.
    #[inline]
    pub fn arrive(&mut self, now: Picoseconds, part: TrainPart, chunks: &mut Chunks) {
        let has_parts = self.parts.as_ref().is_some_and(|parts| !parts.heads.is_empty());
        if part.count > 1 || has_parts {
            return self.add_part(now, part, None);
        }
        self.slots += 1;
        self.peak_slots = self.peak_slots.max(self.slots);
        self.arrived.push(part.train, chunks);
    }

    /// The same for worlds that track which packet of a train arrives.
    pub fn arrive_tracked(&mut self, now: Picoseconds, part: TrainPart) {
        self.add_part(now, part, Some(part.first));
    }

    fn add_part(&mut self, now: Picoseconds, part: TrainPart, next: Option<u32>) {
        let TrainPart { train, count, spacing_ps, .. } = part;
        self.slots += count;
        self.peak_slots = self.peak_slots.max(self.slots);
        let rest = RestOfPart { train, next, count, spacing_ps };
        self.parts.get_or_insert_default().begin(now, rest);
    }

    /// Whether [`Mailbox::peek`] returns packets.
    #[inline]
    pub fn has_packets_in_order(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Writes the trains of the next packets into `trains`; later arrivals do not change them. Returns how
    /// many.
    #[inline]
    pub fn peek(&self, chunks: &Chunks, trains: &mut [TrainId]) -> usize {
        self.arrived.peek(chunks, trains)
    }

    /// Removes the first packet of [`Mailbox::peek`]. Its slot stays filled until it
    /// [leaves](Mailbox::leave).
    #[inline]
    pub fn set_aside(&mut self, chunks: &mut Chunks) {
        self.arrived.pop(chunks).expect("it was peeked");
    }

    /// The train of the next packet, if that is part of the heap and has arrived by `now`. Later arrivals do
    /// not change it.
    #[inline]
    pub fn peek_part(&self, now: Picoseconds) -> Option<TrainId> {
        self.parts.as_ref().filter(|_| self.arrived.is_empty())?.peek(now)
    }

    /// Removes the packet of [`Mailbox::peek_part`], as [`Mailbox::set_aside`] does.
    #[inline]
    pub fn set_aside_of_part(&mut self, now: Picoseconds) {
        let taken = self.parts.as_mut().and_then(|parts| parts.take(now));
        assert!(matches!(taken, Some((_, None))), "the packet was peeked, and is the next of its train");
    }

    /// A packet that was set aside is retrieved.
    #[inline]
    pub fn leave(&mut self) {
        self.slots -= 1;
    }

    /// The time when the next packet arrives; 0: it has arrived.
    #[inline]
    pub fn next_at(&self) -> Option<Picoseconds> {
        if !self.arrived.is_empty() {
            return Some(0);
        }
        self.parts.as_ref()?.heads.peek().map(|&Reverse((at, ..))| at)
    }

    /// Retrieves the next packet, if it has arrived by `now`. Returns its train, and its index if it is not
    /// the next of the train.
    #[inline]
    pub fn retrieve(&mut self, now: Picoseconds, chunks: &mut Chunks) -> Option<(TrainId, Option<u32>)> {
        if !self.arrived.is_empty()
            && let Some(train) = self.arrived.pop(chunks)
        {
            self.slots -= 1;
            return Some((train, None));
        }
        let taken = self.parts.as_mut()?.take(now);
        self.slots -= u32::from(taken.is_some());
        taken
    }

    /// Brings what an arrival changes into the caches. `soon`: the mailbox itself is there already.
    #[inline]
    pub fn prefetch(&self, chunks: &Chunks, soon: bool) {
        if !soon {
            prefetch_index(slice::from_ref(&self.arrived), 0);
        } else if self.arrived.last != NONE {
            prefetch_index(&chunks.chunks, self.arrived.last as usize);
        }
    }

    pub fn peak_slots(&self) -> u32 {
        self.peak_slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(train: u32, first: u32, count: u32, spacing_ps: Picoseconds) -> TrainPart {
        TrainPart { train: TrainId(train), to: 0, first, count, spacing_ps }
    }

    #[test]
    fn peek_returns_the_first_packets_and_set_aside_removes_them() {
        let (mut mailbox, mut chunks) = (Mailbox::default(), Chunks::default());
        let (mut seen, chunk_packets) = ([TrainId(0); 150], Chunk::empty(false).places());
        // Uses recycled chunks, and fills the last chunk.
        for index in 0..400 {
            mailbox.arrive(5, part(index, 0, 1, 0), &mut chunks);
        }
        while mailbox.retrieve(5, &mut chunks).is_some() {}
        for index in 0..3 * chunk_packets {
            mailbox.arrive(6, part(index, 0, 1, 0), &mut chunks);
        }
        assert_eq!(mailbox.peek(&chunks, &mut seen), 3 * chunk_packets as usize);
        while mailbox.retrieve(6, &mut chunks).is_some() {}
        for index in 0..150 {
            mailbox.arrive(10, part(index, 0, 1, 0), &mut chunks);
        }
        for first in 0..150 {
            let count = mailbox.peek(&chunks, &mut seen);
            assert_eq!(count, 150 - first as usize);
            assert!(seen[..count].iter().zip(first..).all(|(train, index)| train.0 == index));
            mailbox.set_aside(&mut chunks);
        }
        assert_eq!(mailbox.next_at(), None);
        mailbox.arrive(10, part(0, 0, 1, 0), &mut chunks);
        assert_eq!(mailbox.slots, 151, "their slots are filled until they leave");
        (0..150).for_each(|_| mailbox.leave());
        mailbox.arrive(20, part(7, 0, 3, 15), &mut chunks);
        // Other packets may come before the second of these three, so only the first is seen.
        assert_eq!((mailbox.slots, mailbox.peek(&chunks, &mut seen)), (4, 1));
        assert_eq!(mailbox.peek_part(100), None, "one stands before them");
        assert!(mailbox.retrieve(20, &mut chunks).is_some());
        mailbox.arrive(30, part(8, 0, 2, 1), &mut chunks);
        let mut next = |now| {
            let train = mailbox.peek_part(now).map(|train| train.0);
            train.inspect(|_| mailbox.set_aside_of_part(now))
        };
        assert_eq!((next(19), next(34), next(34), next(34)), (None, Some(7), Some(8), Some(8)));
        assert_eq!((next(34), next(50), next(50), next(99)), (None, Some(7), Some(7), None));
        assert_eq!(mailbox.slots, 5);
    }

    #[test]
    fn trains_above_24_bits_use_four_bytes() {
        let (mut mailbox, mut chunks) = (Mailbox::default(), Chunks::default());
        let number = |index: u32| match index % 300 {
            0..100 => index,
            100..105 => FIRST_WIDE - 2 + index % 300 - 100,
            105..200 => index << 13, // up to 2^23
            _ => u32::MAX - 1 - index,
        };
        for rounds in 0..3 {
            for index in 0..1000 {
                mailbox.arrive(10, part(number(index), 0, 1, 0), &mut chunks);
            }
            let mut seen = [TrainId(0); 1000];
            for index in 0..1000 {
                if index % 97 == rounds {
                    let count = mailbox.peek(&chunks, &mut seen);
                    assert_eq!(count as u32, 1000 - index);
                    assert!(seen[..count].iter().zip(index..).all(|(train, index)| train.0 == number(index)));
                }
                assert_eq!(mailbox.retrieve(10, &mut chunks), Some((TrainId(number(index)), None)));
            }
            assert_eq!(mailbox.next_at(), None);
            assert_eq!(chunks.free.len(), chunks.chunks.len(), "all chunks have gone back");
        }
    }

    #[test]
    fn packets_are_retrieved_in_order_of_arrival() {
        let (mut mailbox, mut chunks) = (Mailbox::default(), Chunks::default());
        for index in 0..200 {
            mailbox.arrive(10, part(index % 3, index / 3, 1, 0), &mut chunks);
        }
        mailbox.arrive_tracked(20, part(7, 0, 3, 15)); // at 20, 35, 50
        mailbox.arrive(30, part(8, 0, 1, 0), &mut chunks);
        for index in 0..200 {
            assert_eq!(mailbox.next_at(), Some(0));
            assert_eq!(mailbox.retrieve(40, &mut chunks), Some((TrainId(index % 3), None)));
        }
        let mut next = |now| mailbox.retrieve(now, &mut chunks).map(|(train, index)| (train.0, index));
        assert_eq!(next(40), Some((7, Some(0))));
        assert_eq!(next(40), Some((8, None)));
        assert_eq!(next(40), Some((7, Some(1))));
        assert_eq!((next(40), next(50)), (None, Some((7, Some(2)))));
        assert_eq!((mailbox.next_at(), mailbox.peak_slots()), (None, 204));
        assert_eq!(chunks.free.len(), chunks.chunks.len(), "all chunks have gone back");
    }
}
