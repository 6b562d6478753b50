//! What delivered bundles carry, in order: packets for the endpoint, and frames for this link.
//!
//! This file does not know datagrams.

use super::link::{DatagramLink, GEOMETRY, MOST_PACKET_BYTES};
use super::network::DatagramNetwork;
use super::path::{OurLane, PeersLane};
use crate::{Arrival, LaneLease, Polled, Quota};
use core::ops::Range;
use weir_proto::wire::{
    ATTACH_FRAME, LEASE_FRAME, LINK_FRAME_BYTES, LinkFrame, MORE_HEADER_BYTES, decode_bytes,
};
use weir_proto::{Packet, PeerFault};

/// The most payload of a packet of any kind.
const MOST_PAYLOAD_BYTES: u32 = (MOST_PACKET_BYTES - MORE_HEADER_BYTES) as u32;

/// The bundle that is being polled.
#[derive(Debug)]
pub(super) struct Reading {
    /// Its path.
    pub id: u32,
    bytes: Vec<u8>,
    /// The next packet or frame.
    at: usize,
    /// The payload of the polled packet, which is not retired.
    pub payload: Option<Range<usize>>,
    /// Its path was removed.
    pub is_void: bool,
}

impl Reading {
    /// The first `bytes` bytes of the payload of the polled packet.
    pub(super) fn payload(&self, bytes: u64) -> &[u8] {
        let range = self.payload.clone().unwrap_or(0..0);
        &self.bytes[range][..bytes as usize]
    }
}

/// What is at the head of a bundle.
enum Head {
    End,
    Packet(Range<usize>),
    Frame(LinkFrame),
    Malformed,
}

fn head(bytes: &[u8], at: usize, into: &mut Packet) -> Head {
    let rest = &bytes[at..];
    match LinkFrame::read(rest) {
        _ if rest.is_empty() => Head::End,
        Ok(Some(frame)) => Head::Frame(frame),
        Err(_) => Head::Malformed,
        Ok(None) => match decode_bytes(rest, MOST_PAYLOAD_BYTES) {
            Err(_) => Head::Malformed,
            Ok((packet, header_bytes)) => {
                *into = packet;
                let begin = at + header_bytes;
                let end = begin + packet.payload_bytes as usize;
                if end - at > MOST_PACKET_BYTES { Head::Malformed } else { Head::Packet(begin..end) }
            }
        },
    }
}

impl<N: DatagramNetwork> DatagramLink<N> {
    /// Takes the next bundle of the paths, in turn. Returns whether there is one.
    fn read_next(&mut self) -> bool {
        while let Some(&id) = self.shared.ready.front() {
            let DatagramLink { paths, shared, reading, .. } = self;
            if let Some(path) = paths[id as usize].as_deref_mut() {
                // Packets wait until the endpoint has named their sender.
                let waits = path.peers_lane == PeersLane::Attached;
                if let Some((bytes, at)) = path.io.delivered.pop_front_if(|_| !waits) {
                    shared.ready.rotate_left(1);
                    *reading = Some(Reading { id, bytes, at, payload: None, is_void: false });
                    return true;
                }
                path.io.is_listed = false;
            }
            shared.ready.pop_front();
        }
        false
    }

    /// The end of the bundle that is being polled. What is left of it waits if `keep` is set.
    fn end_reading(&mut self, keep: bool) {
        let Some(Reading { id, bytes, at, is_void, .. }) = self.reading.take() else { return };
        match self.path(id).filter(|_| keep && !is_void) {
            Some(path) => path.io.delivered.push_front((bytes, at)),
            None => self.shared.arrived.give(bytes),
        }
    }

    /// The next packet or arrival in delivered bundles.
    pub(super) fn next_delivered(&mut self, into: &mut Packet) -> Option<Polled> {
        loop {
            if self.reading.is_none() && !self.read_next() {
                return None;
            }
            let reading = self.reading.as_mut()?;
            let id = reading.id;
            let head = if reading.is_void { Head::End } else { head(&reading.bytes, reading.at, into) };
            let path = self.paths[id as usize].as_deref();
            match head {
                Head::End => self.end_reading(false),
                Head::Packet(payload) if path.is_some_and(|path| path.peers_lane == PeersLane::Open) => {
                    reading.at = payload.end;
                    reading.payload = Some(payload);
                    if let Some(from) = path.and_then(|path| path.peer) {
                        return Some(Polled::Packet { from });
                    }
                    reading.payload = None;
                }
                Head::Frame(frame) => {
                    reading.at += LINK_FRAME_BYTES;
                    if let Some(arrival) = self.frame_arrived(id, &frame) {
                        return Some(Polled::Other(Box::new(arrival)));
                    }
                }
                Head::Packet(_) | Head::Malformed => self.malformed(id),
            }
        }
    }

    /// The peer of this path breaks the rules, although it belongs to the job.
    fn malformed(&mut self, id: u32) {
        self.ended(id, PeerFault::Malformed);
        self.note_lost(id);
    }

    /// Nothing more comes from the peer of this path.
    fn ended(&mut self, id: u32, fault: PeerFault) {
        self.end_reading(false);
        if let Some((path, shared)) = self.path_and_shared(id) {
            path.left = Some(fault);
            path.io.delivered.drain(..).for_each(|(bytes, _)| shared.arrived.give(bytes));
        }
    }

    fn frame_arrived(&mut self, id: u32, frame: &LinkFrame) -> Option<Arrival> {
        let geometry = GEOMETRY;
        let number = frame.number.get();
        let path = self.paths[id as usize].as_deref_mut()?;
        match (frame.kind, path.our_lane) {
            (ATTACH_FRAME, _) if path.peers_lane == PeersLane::Absent => {
                path.peers_lane = PeersLane::Attached;
                path.owes_lease = Some(number);
                let address = path.io.address;
                self.end_reading(true);
                self.note_unsent(id);
                let _ = self.send_frames(id); // or with a later poll
                let lease = LaneLease { quota: self.options.quota, epoch: number, geometry, wanted: false };
                Some(Arrival::Attached { lane: id, address, lease })
            }
            (LEASE_FRAME, OurLane::Wanted { number: wanted, .. }) if wanted == number => {
                let quota = Quota {
                    data_slots: frame.data_slots.get(),
                    start_slots: frame.start_slots.get(),
                    credit_slots: frame.credit_slots.get(),
                };
                path.our_lane = OurLane::Leased(LaneLease { quota, epoch: number, geometry, wanted: false });
                None
            }
            (ATTACH_FRAME | LEASE_FRAME, _) => {
                self.malformed(id);
                None
            }
            _ => {
                let fault =
                    if number == PeerFault::Closed as u16 { PeerFault::Closed } else { PeerFault::Died };
                let waits = path.unacknowledged() > 0 || path.io.open.is_some();
                self.ended(id, fault);
                if waits || fault == PeerFault::Died {
                    self.note_lost(id);
                }
                None
            }
        }
    }
}
