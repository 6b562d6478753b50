//! Packets under way: trains, kept in little memory, and the mailboxes in which they end.
//!
//! A message of 37 packets differs from packet to packet only in offsets, so a train keeps its first and its last
//! packet and makes the others when they are taken.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use weir_proto::{Body, Packet};

use crate::Picoseconds;
use crate::network::{Injection, Segment, TrainId};

/// Packets that left one rank for another back to back.
#[derive(Clone, Copy, Debug)]
struct Train {
    from: u32,
    to: u32,
    first: Packet,
    last: Packet,
    /// Payload of each packet between them. Unit: bytes.
    middle_bytes: u32,
    count: u32,
    payload_bytes: u64,
    spacing_ps: Picoseconds,
    /// When the call that sends the message was made.
    called_at: Picoseconds,
    /// Packets not yet taken by the receiver.
    left: u32,
}

impl Train {
    /// Makes `packet` the last of the train, if all the others can still be made again. Returns whether it did.
    fn extend(&mut self, packet: &Packet) -> bool {
        let Body::More { offset } = packet.body else { return false };
        let end = match self.last.body {
            Body::Eager { .. } => self.last.payload_bytes,
            Body::More { offset } => offset + self.last.payload_bytes,
            _ => return false,
        };
        if offset != end || packet.number != self.first.number {
            return false;
        }
        if self.count >= 2 {
            // The last packet so far becomes one of those in the middle.
            if self.count == 2 {
                self.middle_bytes = self.last.payload_bytes;
            }
            if self.last != self.middle(self.count - 1) {
                return false;
            }
        }
        self.last = *packet;
        self.count += 1;
        self.left += 1;
        self.payload_bytes += u64::from(packet.payload_bytes);
        true
    }

    /// Packet `index`, strictly between the first and the last.
    fn middle(&self, index: u32) -> Packet {
        let first_offset = match self.first.body {
            Body::More { offset } => offset,
            _ => 0,
        };
        let offset = first_offset + self.first.payload_bytes + (index - 1) * self.middle_bytes;
        Packet { payload_bytes: self.middle_bytes, body: Body::More { offset }, ..self.first }
    }

    fn packet(&self, index: u32) -> Packet {
        match index {
            0 => self.first,
            _ if index == self.count - 1 => self.last,
            _ => self.middle(index),
        }
    }
}

/// All trains under way.
#[derive(Debug, Default)]
pub(super) struct Flights {
    trains: Vec<Train>,
    free: Vec<u32>,
}

impl Flights {
    /// Adds `packet` to `train`, if it fits there.
    pub fn extend(&mut self, train: TrainId, to: u32, packet: &Packet) -> bool {
        let train = &mut self.trains[train.0 as usize];
        train.to == to && train.extend(packet)
    }

    /// A new train with one packet.
    pub fn begin(
        &mut self,
        from: u32,
        to: u32,
        packet: &Packet,
        spacing_ps: Picoseconds,
        called_at: Picoseconds,
    ) -> TrainId {
        let train = Train {
            from,
            to,
            first: *packet,
            last: *packet,
            middle_bytes: 0,
            count: 1,
            payload_bytes: u64::from(packet.payload_bytes),
            spacing_ps,
            called_at,
            left: 1,
        };
        match self.free.pop() {
            Some(index) => {
                self.trains[index as usize] = train;
                TrainId(index)
            }
            None => {
                self.trains.push(train);
                TrainId(self.trains.len() as u32 - 1)
            }
        }
    }

    pub fn injection(&self, id: TrainId) -> Injection {
        let Train { from, to, count, payload_bytes, spacing_ps, .. } = self.trains[id.0 as usize];
        Injection { train: id, from, to, packets: count, payload_bytes, spacing_ps }
    }

    pub fn destination(&self, id: TrainId) -> u32 {
        self.trains[id.0 as usize].to
    }

    /// Packet `index` of a train, for the receiver: the sender, the packet, and when its message was sent. Each is taken once.
    pub fn take(&mut self, id: TrainId, index: u32) -> (u32, Packet, Picoseconds) {
        let train = &mut self.trains[id.0 as usize];
        let taken = (train.from, train.packet(index), train.called_at);
        train.left -= 1;
        if train.left == 0 {
            self.free.push(id.0);
        }
        taken
    }
}

/// What stands in one rank's mailbox, by time of arrival.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    /// The next packet of each segment: when it arrives, in which order the segments came, which it is.
    heads: BinaryHeap<Reverse<(Picoseconds, u64, u32)>>,
    segments: Vec<(Segment, u32)>,
    free: Vec<u32>,
    order: u64,
    slots: u32,
    peak_slots: u32,
}

impl Mailbox {
    pub fn arrive(&mut self, now: Picoseconds, segment: Segment) {
        let index = match self.free.pop() {
            Some(index) => {
                self.segments[index as usize] = (segment, 0);
                index
            }
            None => {
                self.segments.push((segment, 0));
                self.segments.len() as u32 - 1
            }
        };
        self.heads.push(Reverse((now, self.order, index)));
        self.order += 1;
        self.slots += segment.count;
        self.peak_slots = self.peak_slots.max(self.slots);
    }

    /// When the next packet arrives or has arrived.
    pub fn next_at(&self) -> Option<Picoseconds> {
        self.heads.peek().map(|&Reverse((at, ..))| at)
    }

    /// Takes the next packet, if it has arrived by `now`: its train and its number there.
    pub fn take(&mut self, now: Picoseconds) -> Option<(TrainId, u32)> {
        let &Reverse((at, order, index)) = self.heads.peek()?;
        if at > now {
            return None;
        }
        let (segment, taken) = &mut self.segments[index as usize];
        let packet = (segment.train, segment.first + *taken);
        *taken += 1;
        self.slots -= 1;
        if *taken == segment.count {
            self.heads.pop();
            self.free.push(index);
        } else {
            // The next of the same segment: usually still the earliest.
            let next_at = at + segment.spacing_ps;
            *self.heads.peek_mut().expect("just seen") = Reverse((next_at, order, index));
        }
        Some(packet)
    }

    pub fn peak_slots(&self) -> u32 {
        self.peak_slots
    }
}
