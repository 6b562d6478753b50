//! Packets inside a network model, and the queues in which they wait.
//!
//! One array holds all packets of a network. It reuses the place that became free last, so that the packets in the
//! network stay together in the processor's caches, for any number and length of queues. A queue is two numbers.
//!
//! ```text
//! add(a), add(b)              a and b have places and are in no queue
//! append(queue, a), ...       queue: a b
//! take_first(queue) -> a      queue: b; a keeps its place, for the next queue
//! remove(a)                   the place of a is free
//! ```

use std::ops::{Index, IndexMut};

use prefetch_index::prefetch_index;

const NONE: u32 = u32::MAX;

/// The place of a packet in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketIndex(u32);

impl PacketIndex {
    /// The place as a number, for small events.
    #[inline]
    pub fn number(self) -> u32 {
        self.0
    }

    /// The place with this number.
    #[inline]
    pub fn of_number(number: u32) -> PacketIndex {
        PacketIndex(number)
    }
}

/// Packets in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketQueue {
    first: u32,
    last: u32,
}

impl PacketQueue {
    pub const EMPTY: PacketQueue = PacketQueue { first: NONE, last: NONE };

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first == NONE
    }

    #[inline]
    pub fn first(&self) -> Option<PacketIndex> {
        (self.first != NONE).then_some(PacketIndex(self.first))
    }
}

/// All packets inside a network.
#[derive(Clone, Debug)]
pub(super) struct Packets<T> {
    packets: Vec<T>,
    /// By place: the packet behind this one in its queue. By free place: the next free place.
    behind: Vec<u32>,
    free: u32,
}

impl<T> Default for Packets<T> {
    fn default() -> Packets<T> {
        Packets { packets: Vec::new(), behind: Vec::new(), free: NONE }
    }
}

impl<T> Index<PacketIndex> for Packets<T> {
    type Output = T;

    #[inline]
    fn index(&self, place: PacketIndex) -> &T {
        &self.packets[place.0 as usize]
    }
}

impl<T> IndexMut<PacketIndex> for Packets<T> {
    #[inline]
    fn index_mut(&mut self, place: PacketIndex) -> &mut T {
        &mut self.packets[place.0 as usize]
    }
}

impl<T: Copy> Packets<T> {
    /// Brings a packet into the caches.
    #[inline]
    pub fn prefetch(&self, place: PacketIndex) {
        prefetch_index(&self.packets, place.0 as usize);
        prefetch_index(&self.behind, place.0 as usize);
    }

    /// Gives a packet a place.
    #[inline]
    pub fn add(&mut self, packet: T) -> PacketIndex {
        match self.free {
            NONE => {
                self.packets.push(packet);
                self.behind.push(NONE);
                PacketIndex(self.packets.len() as u32 - 1)
            }
            free => {
                self.free = self.behind[free as usize];
                self.packets[free as usize] = packet;
                PacketIndex(free)
            }
        }
    }

    /// Frees the place of a packet that is in no queue. Returns the packet.
    #[inline]
    pub fn remove(&mut self, place: PacketIndex) -> T {
        self.behind[place.0 as usize] = self.free;
        self.free = place.0;
        self.packets[place.0 as usize]
    }

    /// Puts a packet at the end of a queue.
    #[inline]
    pub fn append(&mut self, line: &mut PacketQueue, place: PacketIndex) {
        self.behind[place.0 as usize] = NONE;
        match line.last {
            NONE => line.first = place.0,
            last => self.behind[last as usize] = place.0,
        }
        line.last = place.0;
    }

    /// Inserts a packet before the first packet that is `later`. There must be one. Cost: one look at each
    /// packet before it.
    pub fn insert(&mut self, line: &mut PacketQueue, place: PacketIndex, later: impl Fn(&T) -> bool) {
        let (mut before, mut next) = (NONE, line.first);
        while !later(&self.packets[next as usize]) {
            (before, next) = (next, self.behind[next as usize]);
        }
        self.behind[place.0 as usize] = next;
        match before {
            NONE => line.first = place.0,
            before => self.behind[before as usize] = place.0,
        }
    }

    /// The packets of a queue in order.
    #[inline]
    pub fn after(&self, line: PacketQueue) -> impl Iterator<Item = &T> {
        let mut next = line.first;
        std::iter::from_fn(move || {
            let packet = self.packets.get(next as usize)?; // `NONE` is beyond the array
            next = self.behind[next as usize];
            Some(packet)
        })
    }

    /// Takes the first packet out of a queue.
    #[inline]
    pub fn take_first(&mut self, line: &mut PacketQueue) -> Option<PacketIndex> {
        let place = line.first()?;
        line.first = self.behind[place.0 as usize];
        if line.first == NONE {
            line.last = NONE;
        }
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// Compares with simple queues. Packets pass through three queues; some enter one in the middle.
        #[test]
        fn packet_queues_equal_a_queue_model(steps in proptest::collection::vec((0u8..4, 0usize..3, 0usize..3, 0u32..100), 1..300)) {
            let (mut packets, mut lines) = (Packets::default(), [PacketQueue::EMPTY; 3]);
            let mut oracle = [const { VecDeque::new() }; 3];
            for (what, from, to, value) in steps {
                match what {
                    0 => {
                        let place = packets.add(value);
                        packets.append(&mut lines[to], place);
                        oracle[to].push_back(value);
                    }
                    1 => {
                        let Some(before) = oracle[to].iter().position(|&v| v > value) else { continue };
                        let place = packets.add(value);
                        packets.insert(&mut lines[to], place, |&v| v > value);
                        oracle[to].insert(before, value);
                    }
                    2 => {
                        let moved = packets.take_first(&mut lines[from]);
                        prop_assert_eq!(moved.map(|place| packets[place]), oracle[from].pop_front());
                        if let Some(place) = moved {
                            packets.append(&mut lines[to], place);
                            oracle[to].push_back(packets[place]);
                        }
                    }
                    _ => {
                        let taken = packets.take_first(&mut lines[from]).map(|place| packets.remove(place));
                        prop_assert_eq!(taken, oracle[from].pop_front());
                    }
                }
                for (line, queue) in lines.iter().zip(&oracle) {
                    prop_assert_eq!(line.first().map(|place| packets[place]), queue.front().copied());
                    prop_assert_eq!(line.is_empty(), queue.is_empty());
                }
            }
        }
    }

    #[test]
    fn places_are_used_again() {
        let mut packets = Packets::default();
        let places = [1, 2, 3].map(|value| packets.add(value));
        assert_eq!((packets.remove(places[0]), packets.remove(places[2])), (1, 3));
        assert_eq!((packets.add(4), packets.add(5), packets.add(6)), (places[2], places[0], PacketIndex(3)));
        assert_eq!(packets[places[1]], 2);
    }
}
