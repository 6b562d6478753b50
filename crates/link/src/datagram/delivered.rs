//! What delivered bundles carry, in order: packets for the endpoint, and frames for this link.
//!
//! This file does not know datagrams.

use super::appending::LEAST_PART_BYTES;
use super::arrived::{Arrived, Bundle};
use super::link::DatagramLink;
use super::network::DatagramNetwork;
use super::path::{OurLane, PeersLane};
use crate::{Arrival, LaneLease, Polled, Quota};
use core::ops::Range;
use weir_proto::wire::{
    ATTACH_FRAME, CONTENTS_FRAME_BYTES, ContentsFrame, FILL_FRAME, Frame, GRANT_FRAME, LEASE_FRAME,
    LINK_FRAME_BYTES, LinkFrame, MORE_HEADER_BYTES, REST_FRAME, WANT_FRAME_BYTES, WantFrame, decode_head,
};
use weir_proto::{Geometry, Packet, PeerFault};

/// The bundle that is being polled.
#[derive(Debug)]
pub(super) struct Reading {
    /// Its path.
    pub id: u32,
    pub bundle: Bundle,
    /// The next packet or frame.
    pub at: usize,
    /// The payload of the polled packet, which is not retired. If the packet was cut: its last part.
    pub payload: Option<Range<usize>>,
    /// Its path was removed.
    pub is_void: bool,
}

impl Reading {
    /// The payload of the polled packet in this bundle.
    pub(super) fn payload<'all, P>(&'all self, arrived: &'all Arrived<P>) -> &'all [u8] {
        &arrived.bytes(&self.bundle)[self.payload.clone().unwrap_or(0..0)]
    }
}

/// A part of a packet.
#[derive(Debug)]
pub(super) struct Part {
    /// The bundle that ends with it.
    pub bundle: Bundle,
    payload: Range<usize>,
}

impl Part {
    /// Its payload.
    pub(super) fn payload<'all, P>(&'all self, arrived: &'all Arrived<P>) -> &'all [u8] {
        &arrived.bytes(&self.bundle)[self.payload.clone()]
    }
}

/// A packet of which the bundles so far have a part.
#[derive(Debug, Default)]
pub(super) struct Begun {
    /// `None`: there is none.
    packet: Option<Packet>,
    pub parts: Vec<Part>,
    missing_bytes: usize,
}

/// What is at the head of a bundle.
enum Head {
    End,
    Packet(Range<usize>),
    /// A packet of which so many bytes are missing.
    Cut(Range<usize>, usize),
    Frame(LinkFrame),
    Want(WantFrame),
    Contents(ContentsFrame),
    Malformed,
}

/// Whether what is left of a bundle only fills it up, where there was no room for a frame that says so: the bytes of the word with
/// which everything in the bundle begins, inverted. Contents of a few bytes are as short.
fn is_only_filling(bytes: &[u8], at: usize) -> bool {
    let (rest, word) = (&bytes[at..], &bytes[..bytes.len().min(4)]);
    rest.len() < LINK_FRAME_BYTES
        && rest.iter().zip(word.iter().cycle()).all(|(byte, of_word)| *byte == !of_word)
}

fn head(bytes: &[u8], at: usize, geometry: &Geometry, into: &mut Packet) -> Head {
    let rest = &bytes[at..];
    let most_bytes = (geometry.slot_bytes * geometry.max_packet_slots) as usize;
    match Frame::read(rest) {
        _ if is_only_filling(bytes, at) => Head::End,
        Ok(Some(Frame::Link(frame))) => Head::Frame(frame),
        Ok(Some(Frame::Want(frame))) => Head::Want(frame),
        Ok(Some(Frame::Contents(frame))) => Head::Contents(frame),
        Err(_) => Head::Malformed,
        Ok(None) => match decode_head(rest, (most_bytes - MORE_HEADER_BYTES) as u32) {
            Err(_) => Head::Malformed,
            Ok((packet, header_bytes)) => {
                *into = packet;
                let begin = at + header_bytes;
                let end = begin + packet.payload_bytes as usize;
                match end.checked_sub(bytes.len()) {
                    _ if end - at > most_bytes => Head::Malformed,
                    None | Some(0) => Head::Packet(begin..end),
                    Some(missing) => Head::Cut(begin..bytes.len(), missing),
                }
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
                if let Some((bundle, at)) = path.io.delivered.pop_front_if(|_| !waits) {
                    shared.ready.rotate_left(1);
                    *reading = Some(Reading { id, bundle, at, payload: None, is_void: false });
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
        let Some(Reading { id, bundle, at, is_void, .. }) = self.reading.take() else { return };
        match self.path(id).filter(|_| keep && !is_void) {
            Some(path) => path.io.delivered.push_front((bundle, at)),
            None => self.shared.arrived.give(bundle),
        }
    }

    /// Whether there are delivered bundles, as far as is known without looking into them.
    #[inline]
    pub(super) fn has_delivered(&self) -> bool {
        self.reading.is_some() || !self.shared.ready.is_empty()
    }

    /// The next packet or arrival in delivered bundles.
    pub(super) fn next_delivered(&mut self, into: &mut Packet) -> Option<Polled> {
        loop {
            if self.reading.is_none() && !self.read_next() {
                return None;
            }
            let reading = self.reading.as_mut()?;
            let (id, geometry) = (reading.id, &self.geometry);
            let bytes = self.shared.arrived.bytes(&reading.bundle);
            let bundle_bytes = bytes.len();
            let head = if reading.is_void { Head::End } else { head(bytes, reading.at, geometry, into) };
            let path = self.paths[id as usize].as_deref_mut();
            let is_open = path.as_ref().is_some_and(|path| path.peers_lane == PeersLane::Open);
            let has_begun = path.as_ref().is_some_and(|path| path.io.begun.packet.is_some());
            match (head, path) {
                (Head::End, _) => self.end_reading(false),
                (Head::Frame(frame), Some(path)) if is_open && has_begun && frame.kind == REST_FRAME => {
                    let begin = reading.at + LINK_FRAME_BYTES;
                    let end = begin + usize::from(frame.number.get());
                    match path.io.begun.missing_bytes.checked_sub(end - begin) {
                        Some(0) if end <= bundle_bytes => {
                            let Begun { packet, parts, missing_bytes } = &mut path.io.begun;
                            *missing_bytes = 0;
                            std::mem::swap(parts, &mut self.earlier_parts);
                            *into = packet.take()?;
                            (reading.at, reading.payload) = (end, Some(begin..end));
                            return Some(Polled::Packet { from: path.peer? });
                        }
                        Some(missing)
                            if missing > 0 && end == bundle_bytes && end - begin >= LEAST_PART_BYTES =>
                        {
                            path.io.begun.missing_bytes = missing;
                            self.keep_part(begin..end);
                        }
                        _ => self.malformed(id),
                    }
                }
                _ if has_begun => self.malformed(id),
                (Head::Packet(payload), Some(path)) if is_open => {
                    reading.at = payload.end;
                    if let Some(from) = path.peer {
                        reading.payload = Some(payload);
                        return Some(Polled::Packet { from });
                    }
                }
                (Head::Cut(payload, missing_bytes), Some(path)) if is_open => {
                    path.io.begun.packet = Some(*into);
                    path.io.begun.missing_bytes = missing_bytes;
                    self.keep_part(payload);
                }
                (Head::Want(frame), Some(_)) => {
                    reading.at += WANT_FRAME_BYTES;
                    if !self.wanted(id, &frame) {
                        self.malformed(id);
                    }
                }
                (Head::Contents(frame), Some(_)) => {
                    let begin = reading.at + CONTENTS_FRAME_BYTES;
                    let end = begin + usize::from(frame.bytes.get());
                    reading.at = end.min(bundle_bytes);
                    if end > bundle_bytes || !self.contents_arrived(frame.number.get(), begin) {
                        self.malformed(id);
                    }
                }
                (Head::Frame(frame), _) if frame.kind == FILL_FRAME => {
                    let end = reading.at + LINK_FRAME_BYTES + usize::from(frame.number.get());
                    if end == bundle_bytes {
                        self.end_reading(false);
                    } else {
                        self.malformed(id);
                    }
                }
                (Head::Frame(frame), _) if frame.kind != REST_FRAME => {
                    reading.at += LINK_FRAME_BYTES;
                    if let Some(arrival) = self.frame_arrived(id, &frame) {
                        return Some(Polled::Other(Box::new(arrival)));
                    }
                }
                _ => self.malformed(id),
            }
        }
    }

    /// The bundle that is being polled ends with a part of a packet.
    fn keep_part(&mut self, payload: Range<usize>) {
        let Some(Reading { id, bundle, .. }) = self.reading.take() else { return };
        match self.path(id) {
            Some(path) => path.io.begun.parts.push(Part { bundle, payload }),
            None => self.shared.arrived.give(bundle),
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
            shared.grants.iter_mut().for_each(|grants| grants.remove(id));
            path.io.delivered.drain(..).for_each(|(bundle, _)| shared.arrived.give(bundle));
            path.io.begun.packet = None;
            path.io.begun.parts.drain(..).for_each(|part| shared.arrived.give(part.bundle));
        }
    }

    fn frame_arrived(&mut self, id: u32, frame: &LinkFrame) -> Option<Arrival> {
        let geometry = self.geometry;
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
            (GRANT_FRAME, _) => {
                self.drive(id, |machine, now, driver| machine.set_grant(now, number.into(), driver));
                None
            }
            _ => {
                let fault =
                    if number == PeerFault::Closed as u16 { PeerFault::Closed } else { PeerFault::Died };
                let waits =
                    path.unacknowledged() > 0 || path.io.open.is_some() || self.contents.has_copies(id);
                self.ended(id, fault);
                if waits || fault == PeerFault::Died {
                    self.note_lost(id);
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lossy::{Impairments, LossyNetwork, Switch};
    use super::super::options::DatagramOptions;
    use super::*;
    use crate::{Address, Addressing, Link};
    use proptest::prelude::*;
    use weir_proto::wire::{VERSION, encode, header_bytes};
    use weir_proto::{Body, Packet, Peer, Space};
    use zerocopy::IntoBytes;

    const QUOTA: Quota = Quota { data_slots: 64, start_slots: 8, credit_slots: 2 };

    fn open(switch: &Switch, port: u16) -> DatagramLink<LossyNetwork> {
        let base = Address::new(port.into(), [port as u8; 16]);
        DatagramLink::open(&base, switch.open(port), DatagramOptions::new(QUOTA))
    }

    #[test]
    fn inverted_bytes_of_the_word_are_filling_if_they_are_fewer_than_those_of_a_frame() {
        for word in [0, 7, u32::MAX] {
            let repeated =
                |word: u32, bytes| word.to_le_bytes().into_iter().cycle().take(bytes).collect::<Vec<u8>>();
            for bytes in 0..=LINK_FRAME_BYTES {
                let bundle = |rest: u32| [repeated(word, 4), vec![1; 30], repeated(rest, bytes)].concat();
                assert_eq!(is_only_filling(&bundle(!word), 34), bytes < LINK_FRAME_BYTES, "{word} {bytes}");
                assert_eq!(is_only_filling(&bundle(word), 34), bytes == 0, "{word} {bytes}");
            }
        }
    }

    /// A packet, or a frame.
    fn item() -> impl Strategy<Value = Vec<u8>> {
        let packet =
            (any::<u64>(), proptest::collection::vec(any::<u8>(), 0..200)).prop_map(|(tag, payload)| {
                let length = payload.len() as u32;
                let body = Body::Eager { space: Space::Tagged, tag, data: None, length, acknowledge: None };
                let header = encode(&Packet::new(body, length));
                [&header[..header_bytes(&header)], &payload].concat()
            });
        let cut = (256..600_usize, 1..1000_u32).prop_map(|(bytes, missing)| {
            let length = bytes as u32 + missing;
            let body = Body::Eager { space: Space::Tagged, tag: 7, data: None, length, acknowledge: None };
            let header = encode(&Packet::new(body, length));
            [&header[..header_bytes(&header)], &vec![5; bytes]].concat()
        });
        let rest = (0..600_u16).prop_map(|bytes| {
            let head = [0, 0, 0, 0, VERSION, REST_FRAME, bytes as u8, (bytes >> 8) as u8];
            [&head[..], &[0; 12], &vec![6; bytes.into()]].concat()
        });
        let frame = (126_u8..137, any::<u16>(), any::<u32>()).prop_map(|(kind, number, slots)| {
            let number = number.into();
            let (word, slots) = (0.into(), slots.into());
            let frame = LinkFrame {
                word,
                version: VERSION,
                kind,
                number,
                data_slots: slots,
                start_slots: slots,
                credit_slots: slots,
                unused: [],
            };
            frame.as_bytes().to_vec()
        });
        let want =
            (any::<u64>(), any::<u64>(), 0..5_u64, any::<u32>()).prop_map(|(key, offset, number, bytes)| {
                WantFrame::new(key, offset, number, bytes).as_bytes().to_vec()
            });
        let contents = (1..4_u64, 0..300_u16, 0..300_usize).prop_map(|(number, says, bytes)| {
            [ContentsFrame::new(number, says).as_bytes(), &vec![8; bytes]].concat()
        });
        prop_oneof![packet, cut, rest, frame, want, contents, proptest::collection::vec(any::<u8>(), 0..60)]
    }

    #[test]
    fn contents_that_end_behind_their_bundle_are_malformed_also_for_a_link_that_closes() {
        for is_closed in [false, true] {
            let switch = Switch::new(1, Impairments::default());
            let (mut link, peer) = (open(&switch, 1), open(&switch, 2));
            let id = link.path_to(&peer.address()).expect("a path");
            link.name(id, Peer(0));
            link.is_closed = is_closed;
            let (path, shared) = link.path_and_shared(id).expect("a path");
            let bundle = shared.arrived.keep(ContentsFrame::new(1, 65_535).as_bytes(), None);
            path.io.delivered.push_back((bundle, 0));
            path.io.is_listed = true;
            shared.ready.push_back(id);
            assert!(link.next_delivered(&mut Packet::blank()).is_none());
            assert_eq!(link.path(id).and_then(|path| path.left), Some(PeerFault::Malformed));
        }
    }

    proptest! {
        #[test]
        fn no_bundle_of_a_member_makes_a_link_fail(
            bundles in proptest::collection::vec(
                (proptest::collection::vec(item(), 0..6), any::<Option<(usize, u8)>>()), 1..8,
            ),
            is_open in any::<bool>(),
        ) {
            let switch = Switch::new(1, Impairments::default());
            let (mut link, peer) = (open(&switch, 1), open(&switch, 2));
            let id = link.path_to(&peer.address()).expect("a path");
            link.name(id, Peer(0));
            link.path(id).expect("a path").peers_lane =
                if is_open { PeersLane::Open } else { PeersLane::Absent };
            for (items, change) in bundles {
                let mut bundle = Vec::new();
                items.iter().for_each(|item| bundle.extend_from_slice(item));
                if let Some((at, value)) = change.filter(|_| !bundle.is_empty()) {
                    let at = at % bundle.len();
                    bundle[at] = value;
                }
                let bytes = bundle.len();
                let most_parts = 4096 / LEAST_PART_BYTES + 1;
                let (path, shared) = link.path_and_shared(id).expect("a path");
                let bundle = shared.arrived.keep(&bundle, None);
                path.io.delivered.push_back((bundle, 0));
                path.io.is_listed = true;
                shared.ready.push_back(id);
                let mut packet = Packet::blank();
                let mut polled = 0;
                while let Some(arrival) = link.next_delivered(&mut packet) {
                    polled += 1;
                    prop_assert!(polled <= bytes, "more packets than bytes");
                    match arrival {
                        Polled::Packet { from } => {
                            prop_assert!(link.earlier_parts.len() <= most_parts, "parts of 256 bytes");
                            prop_assert_eq!(from, Peer(0));
                            let reading = link.reading.as_ref().expect("a packet");
                            let arrived = &link.shared.arrived;
                            let reading = reading.payload(arrived).len();
                            let earlier = link.earlier_parts.iter().map(|part| part.payload(arrived).len());
                            prop_assert_eq!(earlier.sum::<usize>() + reading, packet.payload_bytes as usize);
                            link.retire();
                            prop_assert!(link.earlier_parts.is_empty());
                        }
                        Polled::Other(_) => link.accept(id, Peer(0)),
                    }
                }
            }
            prop_assert!(link.reading.is_none());
        }
    }
}
