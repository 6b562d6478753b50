//! Readers of packets, bundles and addresses.

use weir_link::{ADDRESS_BYTES, Address, LinkKind};
use weir_proto::wire::{
    self, EAGER_HEADER_BYTES, LINK_FRAME_BYTES, LinkFrame, MOST_HEADER_BYTES, SLOT_BYTES, decode,
    decode_bytes, decode_head, encode, encode_bytes, split_extension,
};
use weir_proto::{Body, Packet, Space};

/// Most payload of a packet here. Unit: bytes.
const MOST_PAYLOAD: u32 = 8192;

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
        let used = match LinkFrame::read(rest) {
            Ok(Some(_)) => LINK_FRAME_BYTES,
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
    vec![("packets", slots), ("bundles", bundle), ("addresses", address.0.to_vec())]
}
