//! Readers of packets, bundles and addresses.

use weir_link::ofi::{CoreName, MOST_PART_BYTES, NameFormat, from_outside};
use weir_link::udp::probe;
use weir_link::{ADDRESS_BYTES, Address, LinkKind};
use weir_proto::wire::{
    self, CONTENTS_FRAME_BYTES, EAGER_HEADER_BYTES, Frame, LINK_FRAME_BYTES, MOST_HEADER_BYTES, SLOT_BYTES,
    WANT_FRAME_BYTES, decode, decode_bytes, decode_head, encode, encode_bytes, split_extension,
};
use weir_proto::{Body, Packet, Space};

/// Most payload of a packet here. Unit: bytes.
const MOST_PAYLOAD: u32 = 8192;
/// Families of socket addresses on Linux.
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// Slots, one after the other.
pub fn packets(bytes: &[u8]) {
    for chunk in bytes.chunks(SLOT_BYTES) {
        let mut slot = [0; SLOT_BYTES];
        slot[..chunk.len()].copy_from_slice(chunk);
        if let Ok(packet) = decode(&slot, MOST_PAYLOAD) {
            assert!(packet.payload_bytes <= MOST_PAYLOAD, "{packet:?}");
            let again = decode(&encode(&packet), MOST_PAYLOAD);
            assert_eq!(again, Ok(packet), "what was read is written and read again");
        }
    }
}

/// The packets and frames of a datagram, with its header.
pub fn bundles(bytes: &[u8]) {
    let mut rest = match split_extension(bytes) {
        Ok((_, rest)) => rest,
        Err(_) => bytes,
    };
    while !rest.is_empty() {
        let used = match Frame::read(rest) {
            Ok(Some(Frame::Link(_))) => LINK_FRAME_BYTES,
            Ok(Some(Frame::Want(_))) => WANT_FRAME_BYTES,
            Ok(Some(Frame::Contents(_))) => CONTENTS_FRAME_BYTES,
            Ok(None) => match decode_bytes(rest, MOST_PAYLOAD) {
                Ok((packet, header_bytes)) => {
                    let mut header = [0; MOST_HEADER_BYTES];
                    let length = encode_bytes(&packet, &mut header);
                    let again = decode_head(&header[..length], MOST_PAYLOAD);
                    assert_eq!(again, Ok((packet, length)), "what was read is written and read again");
                    header_bytes + packet.payload_bytes as usize
                }
                Err(_) => return,
            },
            Err(_) => return,
        };
        assert!(used > 0 && used <= rest.len(), "{used} of {} bytes", rest.len());
        rest = &rest[used..];
    }
}

/// An address, and what every link looks for in it.
pub fn addresses(bytes: &[u8]) {
    let mut whole = [0; ADDRESS_BYTES];
    let length = bytes.len().min(ADDRESS_BYTES);
    whole[..length].copy_from_slice(&bytes[..length]);
    let address = Address(whole);
    let kinds = [LinkKind::Local, LinkKind::SharedMemory, LinkKind::Udp, LinkKind::LastChoice];
    let has_part = kinds.iter().any(|kind| address.part(*kind).is_some());
    assert!(!has_part || address.is_well_formed());
    assert!(address.identity() != 0 && !address.to_string().is_empty());
    let _ = address.place();
    for kind in kinds {
        if let Some(more) = address.with_part(kind, &bytes[..length.min(4)]) {
            assert_eq!(more.part(kind), Some(&bytes[..length.min(4)]));
            assert_eq!(more.identity(), address.identity());
        }
    }
    weir_link::shm::from_outside::segment_address(&address);
}

/// The part of an address for a link over a core provider, as endpoints of several providers read it. The first two bytes
/// choose the length of the own name and its bytes.
pub fn names_of_cores(bytes: &[u8]) {
    let Some((&[length, fill], part)) = bytes.split_first_chunk() else { return };
    let socket = |family: u16, bytes: usize| {
        let mut name = vec![fill; bytes];
        name[..2].copy_from_slice(&family.to_ne_bytes());
        CoreName { format: NameFormat::Socket, bytes: name }
    };
    let other = CoreName { format: NameFormat::Other, bytes: vec![fill; usize::from(length % 64)] };
    // Those whose family and length disagree are no name of a socket.
    let owns = [
        (socket(AF_INET, 16), true),
        (socket(AF_INET6, 28), true),
        (other, true),
        (socket(AF_INET, 28), false),
        (socket(u16::MAX, 16), false),
    ];
    for (own, is_sound) in owns {
        let Some((name, _)) = from_outside::peer_of_part(part, &own) else {
            assert!(part.len() > MOST_PART_BYTES, "{part:x?}");
            continue;
        };
        let Some(name) = name else { continue };
        assert_eq!(name.len(), own.bytes.len(), "all names of a provider have one length");
        // The same name again, whatever bytes it came from.
        let name = CoreName { format: own.format, bytes: name };
        if let Some(part) = from_outside::part_of_name(&name, 5000).filter(|_| is_sound) {
            let (again, _) = from_outside::peer_of_part(&part, &own).expect("not too long");
            assert_eq!(again, Some(name.bytes), "what was written is read again");
        }
    }
}

/// Datagrams at the socket of `weir doctor`: a byte for the length, and the bytes, behind its key if that is even.
pub fn probe_datagrams(mut bytes: &[u8]) {
    const KEY: [u8; probe::KEY_BYTES] = [7; probe::KEY_BYTES];
    let mut datagrams = Vec::new();
    while let Some((&length, rest)) = bytes.split_first() {
        let (content, rest) = rest.split_at(rest.len().min(length.into()));
        bytes = rest;
        let key: &[u8] = if length.is_multiple_of(2) { &KEY } else { &[] };
        datagrams.push([key, content].concat());
    }
    let answers = probe::answers_to(&datagrams, KEY);
    let [bytes, answered] = [&datagrams, &answers].map(|all| all.iter().map(Vec::len).sum::<usize>());
    assert!(answers.len() <= datagrams.len() && answered <= bytes, "no more than was sent");
    assert!(answers.iter().all(|answer| answer.starts_with(&KEY)), "strangers get no answer");
}

/// An eager packet of four bytes.
pub(crate) fn eager_bytes(number: u32) -> Vec<u8> {
    let body = Body::Eager { space: Space::Tagged, tag: 7, data: None, length: 4, acknowledge: None };
    let slot = encode(&Packet { number, ..Packet::new(body, 4) });
    [&slot[..EAGER_HEADER_BYTES], b"pass"].concat()
}

pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let body = Body::Eager { space: Space::Tagged, tag: 7, data: None, length: 4, acknowledge: None };
    let slots: Vec<u8> =
        [Packet::new(body, 4), Packet::new(Body::Credit, 0)].iter().flat_map(encode).collect();
    let frame = [&[0, 0, 0, 0, wire::VERSION, wire::LEASE_FRAME, 1, 0][..], &[9; 12]].concat();
    let bundle = [&[wire::VERSION][..], &[0; 27], &eager_bytes(0), &frame, &eager_bytes(1)].concat();
    let address = Address::new(5, [3; 16]);
    let address = address.with_part(LinkKind::SharedMemory, &[7; 8]).expect("room");
    let address = address.with_part(LinkKind::Udp, &[4, 10, 0, 0, 1, 78, 132]).expect("room");
    let socket = [&[28, 0, 10, 0, 0, 1][..], &4000_u16.to_be_bytes(), &5000_u16.to_be_bytes()].concat();
    let runs = [&[32, 0, 0x02, 0xfe, 0x80, 0x6a][..], &[9; 10], &[0x04, 1, 2, 3, 4]].concat();
    let trials = [25 - probe::KEY_BYTES as u8, 1, 1, 2, 3, 4, 5, 6, 7, 8, 10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
    vec![
        ("packets", slots),
        ("bundles", bundle),
        ("addresses", address.0.to_vec()),
        ("names of cores", socket),
        ("names of cores", runs),
        ("datagrams at a probe", trials.to_vec()),
    ]
}
