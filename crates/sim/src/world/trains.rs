//! Packets in the network and in mailboxes, as trains that take little memory.
//!
//! The packets of one message differ in little more than their offsets. So a train stores what its packets have in
//! common, and makes each packet when it is read. A packet that does not continue the train before it starts a new one.
//! A train takes 96 bytes, and a million trains can be in the network.

use std::collections::BTreeSet;

use weir_proto::{Body, Marks, Packet, Peer, Space};

use crate::Picoseconds;
use crate::network::{Injection, TrainId};

/// Body of the first packet of a train.
#[derive(Clone, Debug, PartialEq)]
enum First {
    /// An ordinary message.
    Eager {
        space: Space,
        tag: u64,
        data: Data,
        length: u32,
    },
    More {
        offset: u32,
    },
    Credit,
    /// Any other body.
    Other(Box<Body>),
    /// Of an offloaded machine, with the payload, which the receiving machine reads.
    Offloaded(Box<(Body, Vec<u8>)>),
}

/// Completion data of an ordinary message, in a few bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Data {
    None,
    /// The number of the message, for the checks.
    Number(u32),
    /// The time of its send call, which the train has.
    CallTime,
}

impl First {
    fn of(body: Body, called_at: Picoseconds) -> First {
        match body {
            Body::Eager { space, tag, data: None, length, acknowledge: None } => {
                First::Eager { space, tag, data: Data::None, length }
            }
            Body::Eager { space, tag, data: Some(data), length, acknowledge: None } if data == called_at => {
                First::Eager { space, tag, data: Data::CallTime, length }
            }
            Body::Eager { space, tag, data: Some(data), length, acknowledge: None }
                if u32::try_from(data).is_ok() =>
            {
                First::Eager { space, tag, data: Data::Number(data as u32), length }
            }
            Body::More { offset } => First::More { offset },
            Body::Credit => First::Credit,
            body => First::Other(Box::new(body)),
        }
    }

    fn body(&self, called_at: Picoseconds) -> Body {
        match *self {
            First::Eager { space, tag, data, length } => {
                let data = match data {
                    Data::None => None,
                    Data::Number(number) => Some(number.into()),
                    Data::CallTime => Some(called_at),
                };
                Body::Eager { space, tag, data, length, acknowledge: None }
            }
            First::More { offset } => Body::More { offset },
            First::Credit => Body::Credit,
            First::Other(ref body) => **body,
            First::Offloaded(ref packet) => packet.0,
        }
    }

    /// Offset of its payload in the message; `None`: no packet can follow.
    fn offset(&self) -> Option<u32> {
        match self {
            First::Eager { .. } => Some(0),
            First::More { offset } => Some(*offset),
            First::Other(body) if matches!(**body, Body::Eager { .. }) => Some(0),
            First::Credit | First::Other(_) | First::Offloaded(_) => None,
        }
    }
}

/// Packets that left one rank for another back to back.
#[derive(Clone, Debug)]
struct Train {
    from: u32,
    to: u32,
    first: First,
    // Common fields of all packets.
    epoch: u16,
    credit_packets_read: u16,
    wanted_total: u32,
    number: u32,
    marks: Marks,
    /// Payload of the first packet, of each packet in the middle, and of the last one. Unit: bytes.
    first_bytes: u32,
    middle_bytes: u32,
    last_bytes: u32,
    /// Granted total of all packets but the last, and of the last: credits travel with the end of a message.
    granted_total: u32,
    last_granted_total: u32,
    count: u32,
    spacing_ps: Picoseconds,
    /// Time of the send call.
    called_at: Picoseconds,
    /// The receiver's number of the sender, if known; [`UNKNOWN`] otherwise.
    peer: u32,
    /// Packets that the receiver has retrieved.
    retrieved: u32,
}

const UNKNOWN: u32 = u32::MAX;

impl Train {
    /// Appends `packet`, if the train can still reproduce all its packets. Returns whether it did.
    fn extend(&mut self, packet: &Packet) -> bool {
        let Some(first_offset) = self.first.offset() else { return false };
        let last_offset = match self.count {
            1 => first_offset,
            count => first_offset + self.first_bytes + (count - 2) * self.middle_bytes,
        };
        let Body::More { offset } = packet.body else { return false };
        let continues = offset == last_offset + self.last_bytes
            && packet.epoch == self.epoch
            && packet.credit_packets_read == self.credit_packets_read
            && packet.wanted_total == self.wanted_total
            && packet.number == self.number
            && packet.marks == self.marks;
        if !continues || self.last_granted_total != self.granted_total {
            return false;
        }
        match self.count {
            1 => {}
            // The last packet so far is now one in the middle.
            2 => self.middle_bytes = self.last_bytes,
            _ if self.last_bytes != self.middle_bytes => return false,
            _ => {}
        }
        self.count += 1;
        self.last_bytes = packet.payload_bytes;
        self.last_granted_total = packet.granted_total;
        true
    }

    /// A packet with the common fields and this body.
    fn packet_with(&self, body: Body) -> Packet {
        Packet {
            epoch: self.epoch,
            credit_packets_read: self.credit_packets_read,
            granted_total: self.granted_total,
            wanted_total: self.wanted_total,
            number: self.number,
            payload_bytes: self.first_bytes,
            marks: self.marks,
            body,
        }
    }

    fn packet(&self, index: u32) -> Packet {
        let mut packet = match index {
            0 => self.packet_with(self.first.body(self.called_at)),
            _ => {
                let first_offset =
                    self.first.offset().expect("a train of several packets belongs to a message");
                let offset = first_offset + self.first_bytes + (index - 1) * self.middle_bytes;
                Packet { payload_bytes: self.middle_bytes, ..self.packet_with(Body::More { offset }) }
            }
        };
        if index == self.count - 1 {
            packet.payload_bytes = self.last_bytes;
            packet.granted_total = self.last_granted_total;
        }
        packet
    }

    /// Payload of all packets. Unit: bytes.
    fn payload_bytes(&self) -> u64 {
        match self.count {
            1 => u64::from(self.first_bytes),
            count => {
                let ends = u64::from(self.first_bytes) + u64::from(self.last_bytes);
                ends + u64::from(count - 2) * u64::from(self.middle_bytes)
            }
        }
    }
}

/// A retrieved packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetrievedPacket {
    pub from: u32,
    /// The receiver's number of the sender.
    pub peer: Peer,
    pub packet: Packet,
    /// Time of the send call.
    pub called_at: Picoseconds,
}

/// All trains in the network.
#[derive(Debug, Default)]
pub(super) struct Trains {
    trains: Vec<Train>,
    free: Vec<u32>,
    /// By train: packets that have arrived, if the world tracks them.
    arrived: Vec<u32>,
    /// Trains on their way to a NIC, which makes their only packet as a copy of another one.
    copies: BTreeSet<u32>,
}

impl Trains {
    /// Most trains that were in the network at a time.
    #[inline]
    pub fn count(&self) -> usize {
        self.trains.len()
    }

    /// Appends `packet` to `train`, if it fits. Returns whether it did.
    pub fn extend(&mut self, train: TrainId, to: u32, packet: &Packet) -> bool {
        let train = &mut self.trains[train.0 as usize];
        train.to == to && train.extend(packet)
    }

    /// Starts a train with one packet.
    pub fn begin(
        &mut self,
        from: u32,
        to: u32,
        packet: &Packet,
        spacing_ps: Picoseconds,
        called_at: Picoseconds,
    ) -> TrainId {
        let Packet {
            epoch,
            credit_packets_read,
            granted_total,
            wanted_total,
            number,
            payload_bytes,
            marks,
            body,
        } = *packet;
        let train = Train {
            from,
            to,
            first: First::of(body, called_at),
            epoch,
            credit_packets_read,
            wanted_total,
            number,
            marks,
            first_bytes: payload_bytes,
            middle_bytes: 0,
            last_bytes: payload_bytes,
            granted_total,
            last_granted_total: granted_total,
            count: 1,
            spacing_ps,
            called_at,
            peer: UNKNOWN,
            retrieved: 0,
        };
        match self.free.pop() {
            Some(index) => {
                self.trains[index as usize] = train;
                if let Some(arrived) = self.arrived.get_mut(index as usize) {
                    *arrived = 0;
                }
                TrainId(index)
            }
            None => {
                self.trains.push(train);
                TrainId(self.trains.len() as u32 - 1)
            }
        }
    }

    /// The only packet of a train is a copy of one that its rank has written before.
    pub fn note_copy(&mut self, id: TrainId) {
        self.copies.insert(id.0);
    }

    /// Whether it is. The NIC asks once.
    pub fn take_copy(&mut self, id: TrainId) -> bool {
        !self.copies.is_empty() && self.copies.remove(&id.0)
    }

    /// Gives the only packet of a train its payload. Only packets of offloaded machines need it.
    pub fn set_payload(&mut self, id: TrainId, payload: Vec<u8>) {
        let train = &mut self.trains[id.0 as usize];
        debug_assert!(train.count == 1, "each packet of an offloaded machine is a train");
        train.first = First::Offloaded(Box::new((train.first.body(train.called_at), payload)));
    }

    /// Takes the payload of the packet of a train, before the packet is removed. Empty if it has none.
    #[inline]
    pub fn take_payload(&mut self, id: TrainId) -> Vec<u8> {
        match &mut self.trains[id.0 as usize].first {
            First::Offloaded(packet) => std::mem::take(&mut packet.1),
            _ => Vec::new(),
        }
    }

    pub fn injection(&self, id: TrainId) -> Injection {
        let train = &self.trains[id.0 as usize];
        Injection {
            train: id,
            from: train.from,
            to: train.to,
            first: 0,
            packets: train.count,
            payload_bytes: train.payload_bytes(),
            spacing_ps: train.spacing_ps,
        }
    }

    /// A packet of a train. It stays in the train.
    pub fn packet(&self, id: TrainId, index: u32) -> Packet {
        self.trains[id.0 as usize].packet(index)
    }

    pub fn source(&self, id: TrainId) -> u32 {
        self.trains[id.0 as usize].from
    }

    pub fn destination(&self, id: TrainId) -> u32 {
        self.trains[id.0 as usize].to
    }

    /// Notes the receiver's number of the sender.
    pub fn set_peer(&mut self, id: TrainId, peer: Peer) {
        self.trains[id.0 as usize].peer = peer.0;
    }

    /// Packets from index `first` on have arrived. Returns whether they are the next ones of the train.
    pub fn arrive(&mut self, id: TrainId, first: u32, count: u32) -> bool {
        if self.arrived.len() < self.trains.len() {
            self.arrived.resize(self.trains.len(), 0);
        }
        let arrived = &mut self.arrived[id.0 as usize];
        let in_order = *arrived == first;
        *arrived += count;
        in_order
    }

    /// Time of the send call.
    pub fn called_at(&self, id: TrainId) -> Picoseconds {
        self.trains[id.0 as usize].called_at
    }

    /// Whether the train has one packet.
    #[inline]
    pub fn is_single(&self, id: TrainId) -> bool {
        self.trains[id.0 as usize].count == 1
    }

    /// The receiver's number of the sender, if known.
    #[inline]
    pub fn peer(&self, id: TrainId) -> Option<Peer> {
        let peer = self.trains[id.0 as usize].peer;
        (peer != UNKNOWN).then_some(Peer(peer))
    }

    /// The next packet of a train with a known sender. The packet stays in the train.
    #[inline]
    pub fn next(&self, id: TrainId) -> RetrievedPacket {
        let train = &self.trains[id.0 as usize];
        let packet = train.packet(train.retrieved);
        RetrievedPacket { from: train.from, peer: Peer(train.peer), packet, called_at: train.called_at }
    }

    /// Retrieves packet `index` of a train, or the next one. `peer` returns the receiver's number of a rank.
    #[inline]
    pub fn retrieve(
        &mut self,
        id: TrainId,
        index: Option<u32>,
        peer: impl FnOnce(u32) -> Peer,
    ) -> RetrievedPacket {
        let train = &mut self.trains[id.0 as usize];
        if train.peer == UNKNOWN {
            train.peer = peer(train.from).0;
        }
        let packet = train.packet(index.unwrap_or(train.retrieved));
        let retrieved =
            RetrievedPacket { from: train.from, peer: Peer(train.peer), packet, called_at: train.called_at };
        self.discard(id);
        retrieved
    }

    /// Removes one packet from a train.
    #[inline]
    pub fn discard(&mut self, id: TrainId) {
        let train = &mut self.trains[id.0 as usize];
        train.retrieved += 1;
        if train.retrieved == train.count {
            self.free.push(id.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_train_reproduces_its_packets() {
        let eager = Body::Eager { space: Space::Tagged, tag: 7, data: None, length: 2048, acknowledge: None };
        let mut packets = vec![Packet { number: 3, granted_total: 9, epoch: 2, ..Packet::new(eager, 32) }];
        for index in 0..36 {
            let body = Body::More { offset: 32 + 56 * index };
            packets.push(Packet { payload_bytes: 56, body, ..packets[0] });
        }
        packets[36].granted_total = 11; // piggybacked
        let mut trains = Trains::default();
        let id = trains.begin(4, 5, &packets[0], 100, 1);
        assert!(packets[1..].iter().all(|packet| trains.extend(id, 5, packet)));
        let beyond = Packet { payload_bytes: 8, body: Body::More { offset: 2048 }, ..packets[0] };
        assert!(!trains.extend(id, 5, &beyond), "its granted total differs from the last one");
        let Injection { packets: count, payload_bytes, .. } = trains.injection(id);
        assert_eq!((count, payload_bytes), (37, 2048));
        for packet in &packets {
            let RetrievedPacket { from, peer, packet: retrieved, called_at } =
                trains.retrieve(id, None, |from| Peer(from + 7));
            assert_eq!((from, peer, retrieved, called_at), (4, Peer(11), *packet, 1));
        }
        assert_eq!(size_of::<Train>(), 96);
    }

    #[test]
    fn a_packet_that_does_not_follow_starts_a_new_train() {
        let mut trains = Trains::default();
        let first = Packet { number: 1, ..Packet::new(Body::More { offset: 100 }, 50) };
        let id = trains.begin(0, 1, &first, 100, 1);
        let next = |offset, payload_bytes| Packet { payload_bytes, body: Body::More { offset }, ..first };
        assert!(!trains.extend(id, 1, &next(160, 50)), "a gap");
        assert!(!trains.extend(id, 2, &next(150, 50)), "to another");
        assert!(!trains.extend(id, 1, &Packet { number: 2, ..next(150, 50) }), "of another message");
        assert!(trains.extend(id, 1, &next(150, 40)));
        assert!(trains.extend(id, 1, &next(190, 40)));
        assert!(trains.extend(id, 1, &next(230, 10)));
        assert!(!trains.extend(id, 1, &next(240, 40)), "behind a short one");
        let credit = Packet::new(Body::Credit, 0);
        let id = trains.begin(0, 1, &credit, 100, 1);
        assert!(!trains.extend(id, 1, &credit));
        let goodbye = Packet::new(Body::Goodbye, 0);
        let id = trains.begin(0, 1, &goodbye, 100, 1);
        assert_eq!(trains.retrieve(id, Some(0), Peer).packet, goodbye);
    }
}
