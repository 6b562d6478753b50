//! Tests of the wire format: packets survive encoding, and arbitrary bytes give a packet or a typed error.

use proptest::prelude::*;
use weir_proto::offload::atomics::AtomicPacket;
use weir_proto::offload::group::{GroupPacket, Operation};
use weir_proto::offload::reduce::Vector;
use weir_proto::offload::{Combination, Offloaded, VectorUpdate, WordOperation, WordType, WordUpdate};
use weir_proto::reliability::Header;
use weir_proto::wire::layout::{
    BODY_BYTES, COMMON_BYTES, Common, FLAGS, Field, KNOWN_KINDS, Kind, REMOTE_KEY,
};
use weir_proto::wire::{
    self, ContentsFrame, EXTENSION_BYTES, Frame, LINK_FRAME_BYTES, LinkExtension, LinkFrame,
    MOST_HEADER_BYTES, PacketError, SLOT_BYTES, WantFrame,
};
use weir_proto::{AnnouncementMarks, Body, Marks, Packet, PeerFault, RemoteAddress, Space, Transfer};
use zerocopy::IntoBytes;

const FAULTS: [PeerFault; 5] =
    [PeerFault::Died, PeerFault::Unreachable, PeerFault::Malformed, PeerFault::Closed, PeerFault::NotReady];

/// The most payload of a packet in these tests.
const MAX_PAYLOAD_BYTES: u32 = 100;

fn space() -> impl Strategy<Value = Space> {
    prop_oneof![Just(Space::Tagged), Just(Space::Untagged)]
}

fn body() -> impl Strategy<Value = Body> {
    let transfer = || any::<u32>().prop_map(Transfer);
    prop_oneof![
        (space(), any::<u64>(), any::<Option<u64>>(), MAX_PAYLOAD_BYTES.., proptest::option::of(transfer()))
            .prop_map(|(space, tag, data, length, acknowledge)| Body::Eager {
                space,
                tag,
                data,
                length,
                acknowledge
            }),
        any::<u32>().prop_map(|offset| Body::More { offset }),
        (
            space(),
            any::<u64>(),
            any::<Option<u64>>(),
            any::<u64>(),
            any::<u64>(),
            transfer(),
            any::<[bool; 2]>()
        )
            .prop_map(|(space, tag, data, length, address, transfer, [held, awaits_match])| {
                Body::Rendezvous {
                    space,
                    tag,
                    data: data.into(),
                    length,
                    address: RemoteAddress::without_key(address),
                    transfer,
                    sender: AnnouncementMarks::new(held, awaits_match),
                }
            }),
        (space(), any::<u64>(), any::<u64>(), any::<u32>(), any::<bool>()).prop_map(
            |(space, tag, ignore, carry_bytes, look)| Body::Ask { space, tag, ignore, carry_bytes, look }
        ),
        (space(), any::<u64>(), any::<Option<u64>>(), any::<u32>(), transfer()).prop_map(
            |(space, tag, data, length, transfer)| {
                Body::EagerOffer { space, tag, data: data.into(), length, transfer }
            }
        ),
        (space(), any::<u64>(), any::<Option<u64>>(), any::<u64>(), any::<u64>(), transfer(), any::<bool>())
            .prop_map(|(space, tag, data, length, address, transfer, seen)| Body::Offer {
                space,
                tag,
                data: data.into(),
                length,
                address: RemoteAddress::without_key(address),
                transfer,
                seen
            }),
        Just(Body::NoMatch),
        any::<u32>().prop_map(|count| Body::Resume { count }),
        transfer().prop_map(|transfer| Body::Claimed { transfer }),
        Just(Body::Credit),
        Just(Body::Goodbye),
        Just(Body::Detach),
        (transfer(), any::<u32>(), any::<bool>()).prop_map(|(transfer, count, refused)| Body::Finished {
            transfer,
            count,
            refused
        }),
        (transfer(), transfer(), any::<u64>()).prop_map(|(transfer, reply, length)| Body::Fetch {
            transfer,
            reply,
            length
        }),
        (transfer(), any::<u64>(), any::<bool>()).prop_map(|(transfer, offset, last)| Body::Piece {
            transfer,
            offset,
            last
        }),
        (transfer(), any::<u64>(), any::<u64>(), any::<Option<u64>>())
            .prop_map(|(transfer, key, offset, data)| Body::Write { transfer, key, offset, left: 0, data }),
        (transfer(), any::<u64>(), any::<u64>(), 1u64..).prop_map(|(transfer, key, offset, left)| {
            Body::Write { transfer, key, offset, left, data: None }
        }),
        (transfer(), any::<u64>(), any::<u64>(), any::<u64>())
            .prop_map(|(transfer, key, offset, length)| Body::Read { transfer, key, offset, length }),
        (transfer(), any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
            |(transfer, key, offset, length, write)| Body::Locate { transfer, key, offset, length, write }
        ),
        (transfer(), any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
            |(transfer, key, offset, address, refused)| {
                let address = RemoteAddress::without_key(address);
                Body::Located { transfer, key, offset, address, refused }
            }
        ),
        Just(Body::ReturnRequest),
        any::<u32>().prop_map(|credits| Body::ReturnResponse { credits }),
        (any::<u64>(), any::<u64>()).prop_map(|(data, bytes)| Body::Written { data, bytes }),
        (any::<u64>(), any::<u64>(), update(), any::<bool>()).prop_map(|(key, offset, update, fetch)| {
            Body::Offloaded(Offloaded::Atomic(AtomicPacket::request(key, offset, update, fetch)))
        }),
        (any::<u64>(), any::<bool>()).prop_map(|(old, refused)| {
            Body::Offloaded(Offloaded::Atomic(AtomicPacket::Result { old, refused }))
        }),
        (vector_update(), any::<bool>(), any::<u32>()).prop_map(|(update, fetch, at)| {
            Body::Offloaded(Offloaded::Atomic(AtomicPacket::Vector { update, fetch, at }))
        }),
        (any::<u32>(), any::<u32>()).prop_map(|(bytes, at)| {
            Body::Offloaded(Offloaded::Atomic(AtomicPacket::VectorResult { bytes, at }))
        }),
        group_packet().prop_map(|packet| Body::Offloaded(Offloaded::Group(packet))),
    ]
}

fn group_packet() -> impl Strategy<Value = GroupPacket> {
    let combination = combination().prop_filter("combinations", |combination| combination.is_valid());
    let operation = (0..8u8, any::<u32>(), combination, any::<u32>(), any::<u16>()).prop_map(
        |(collective, bytes, combination, root, blocks)| match collective {
            0 => (Operation::Reduce(Vector { bytes, combination }), 1),
            1 => (Operation::AllReduce(Vector { bytes, combination }), 1),
            2 => (Operation::Broadcast { root, bytes }, 1),
            3 => (Operation::Exchange { distance: root, bytes }, 1),
            4 => (Operation::Gather { root, bytes }, blocks),
            5 => (Operation::Scatter { root, bytes }, blocks),
            6 => (Operation::AllGather { bytes }, blocks),
            _ => (Operation::AllToAll { bytes }, 1),
        },
    );
    let fault = proptest::sample::select(FAULTS.to_vec());
    prop_oneof![
        (any::<u32>(), any::<bool>()).prop_map(|(group, all)| GroupPacket::Joined { group, all }),
        (any::<u32>(), operation, any::<u32>()).prop_map(|(group, (operation, blocks), offset)| {
            GroupPacket::Part { group, operation, blocks, offset }
        }),
        any::<u32>().prop_map(|group| {
            GroupPacket::Part { group, operation: Operation::Barrier, blocks: 1, offset: 0 }
        }),
        (any::<u32>(), any::<bool>()).prop_map(|(group, refused)| GroupPacket::Taken { group, refused }),
        (any::<u32>(), any::<u32>(), fault).prop_map(|(group, member, fault)| GroupPacket::Failed {
            group,
            member,
            fault
        }),
    ]
}

fn combination() -> impl Strategy<Value = Combination> {
    let operation = proptest::sample::select(WordOperation::ALL.to_vec());
    let word_type = proptest::sample::select(WordType::ALL.to_vec());
    (operation, word_type).prop_map(|(operation, word_type)| Combination { operation, word_type })
}

fn vector_update() -> impl Strategy<Value = VectorUpdate> {
    let combination = combination().prop_filter("vectors", |Combination { operation, word_type }| {
        operation.has_type(*word_type) && !operation.compares()
    });
    (any::<u64>(), any::<u64>(), any::<u32>(), combination)
        .prop_map(|(key, offset, bytes, combination)| VectorUpdate { key, offset, bytes, combination })
}

fn update() -> impl Strategy<Value = WordUpdate> {
    let operation = proptest::sample::select(WordOperation::ALL.to_vec());
    let word_type = proptest::sample::select(WordType::ALL.to_vec());
    (operation, word_type, any::<u64>(), any::<u64>())
        .prop_map(|(operation, word_type, operand, compare)| WordUpdate {
            operation,
            word_type,
            operand,
            compare,
        })
        .prop_filter("floats have no bitwise operations", WordUpdate::is_valid)
}

fn kind_of(header: &[u8]) -> Kind {
    Kind::of_number(header[5]).expect("a known kind")
}

/// Any packet that a machine can send on a link with [`MAX_PAYLOAD_BYTES`].
fn packet() -> impl Strategy<Value = Packet> {
    let fields = any::<(u16, u16, u32, u32, u32)>();
    (body(), fields, any::<(bool, bool)>(), 0..=MAX_PAYLOAD_BYTES).prop_map(
        |(body, fields, marks, payload_bytes)| {
            let (epoch, credit_packets_read, granted_total, wanted_total, number) = fields;
            let (rendezvous_only, backlogged) = marks;
            let payload_bytes = if carries_payload(&body) { payload_bytes } else { 0 };
            let body = match body {
                // It carries the whole message.
                Body::EagerOffer { space, tag, data, transfer, .. } => {
                    Body::EagerOffer { space, tag, data, length: payload_bytes, transfer }
                }
                other => other,
            };
            let marks = Marks { rendezvous_only, backlogged };
            Packet {
                epoch,
                credit_packets_read,
                granted_total,
                wanted_total,
                number,
                payload_bytes,
                marks,
                body,
            }
        },
    )
}

fn carries_payload(body: &Body) -> bool {
    match body {
        Body::Eager { .. } | Body::More { .. } | Body::Piece { .. } | Body::Write { .. } => true,
        Body::EagerOffer { .. } => true,
        Body::Offloaded(Offloaded::Group(GroupPacket::Part { operation, .. })) => {
            *operation != Operation::Barrier
        }
        _ => false,
    }
}

/// The header of `packet` with its payload, as the bytes of a link whose packets are as long as they need to be.
fn whole(packet: &Packet) -> Vec<u8> {
    let mut bytes = wire::encode(packet).to_vec();
    let header_bytes = kind_of(&bytes).header_bytes(has_transfer(&packet.body));
    bytes.truncate(header_bytes);
    bytes.resize(header_bytes + packet.payload_bytes as usize, 0xee);
    bytes
}

fn has_transfer(body: &Body) -> bool {
    matches!(body, Body::Eager { acknowledge: Some(_), .. })
}

proptest! {
    #[test]
    fn packets_survive_encoding(packet in packet()) {
        let mut slot = wire::encode(&packet);
        prop_assert_eq!(&slot[..4], &[0; 4], "the word is the link's");
        slot[..4].fill(0xee);
        prop_assert_eq!(wire::decode(&slot, MAX_PAYLOAD_BYTES), Ok(packet));
        let is_plain = matches!(packet.body, Body::Eager { acknowledge: None, .. });
        prop_assert_eq!(wire::encode_eager(&packet), is_plain.then(|| wire::encode(&packet)));
    }

    #[test]
    fn payload_does_not_change_the_header(packet in packet()) {
        let mut slot = wire::encode(&packet);
        let header_bytes = whole(&packet).len() - packet.payload_bytes as usize;
        slot[header_bytes..].fill(0xee);
        prop_assert_eq!(wire::decode(&slot, MAX_PAYLOAD_BYTES), Ok(packet));
    }

    /// A header that can be decoded has a single encoding, apart from unused bytes.
    #[test]
    fn arbitrary_bytes_decode_or_are_rejected(
        mut slot in any::<[u8; SLOT_BYTES]>(),
        kind in 0u8..36,
        plausible in any::<bool>(),
    ) {
        (slot[4], slot[5]) = (wire::VERSION, kind);
        if let Some(kind) = Kind::ALL.get(usize::from(kind)).filter(|_| plausible) {
            (slot[5], slot[6], slot[7]) = (*kind as u8, slot[6] & kind.flags() as u8, 0);
            slot[25..28].fill(0);
        }
        if let Ok(packet) = wire::decode(&slot, 4000) {
            prop_assert!(packet.payload_bytes <= 4000);
            prop_assert_eq!(wire::decode(&wire::encode(&packet), 4000), Ok(packet));
        }
        if let Ok((packet, header_bytes)) = wire::decode_bytes(&slot, 4000) {
            prop_assert!(header_bytes + packet.payload_bytes as usize <= slot.len());
        }
    }

    #[test]
    fn a_changed_byte_gives_another_packet_or_an_error(packet in packet(), change in 1u8..) {
        let slot = wire::encode(&packet);
        let fields = used_bytes(&packet);
        for at in 4..SLOT_BYTES {
            let mut changed = slot;
            changed[at] ^= change;
            match wire::decode(&changed, MAX_PAYLOAD_BYTES) {
                Ok(other) if fields.contains(&at) => prop_assert_ne!(other, packet, "byte {}", at),
                Ok(other) => prop_assert_eq!(other, packet, "byte {} is not read", at),
                Err(_) => prop_assert!(fields.contains(&at), "byte {} is not read", at),
            }
        }
    }

    #[test]
    fn a_truncated_packet_is_rejected(packet in packet()) {
        let bytes = whole(&packet);
        let header_bytes = bytes.len() - packet.payload_bytes as usize;
        prop_assert_eq!(wire::decode_bytes(&bytes, MAX_PAYLOAD_BYTES), Ok((packet, header_bytes)));
        for have_bytes in 0..bytes.len() {
            let result = wire::decode_bytes(&bytes[..have_bytes], MAX_PAYLOAD_BYTES);
            let is_truncated = matches!(result, Err(PacketError::Truncated { have_bytes: have, need_bytes })
                if have == have_bytes && (have + 1..=bytes.len()).contains(&need_bytes));
            prop_assert!(is_truncated, "{} of {} bytes: {:?}", have_bytes, bytes.len(), result);
        }
        let followed = [&bytes[..], &[0xdd; 100]].concat();
        prop_assert_eq!(wire::decode_bytes(&followed, MAX_PAYLOAD_BYTES), Ok((packet, header_bytes)));
    }

    #[test]
    fn a_datagram_has_an_extension_or_is_rejected(mut bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        for (at, valid) in [(0, wire::VERSION), (1, 0)] {
            if let (true, Some(byte)) = (bytes.len() % 2 == 0, bytes.get_mut(at)) {
                *byte = valid;
            }
        }
        match wire::split_extension(&bytes) {
            Ok((extension, rest)) => prop_assert_eq!([extension.as_bytes(), rest].concat(), bytes),
            Err(PacketError::Truncated { .. }) => prop_assert!(bytes.len() < EXTENSION_BYTES),
            Err(_) => prop_assert!(bytes[..2] != [wire::VERSION, 0]),
        }
    }
}

/// The bytes of a slot that the reader of `packet` looks at, without the word of the link.
fn used_bytes(packet: &Packet) -> Vec<usize> {
    let slot = wire::encode(packet);
    let kind = kind_of(&slot);
    let has_data = match packet.body {
        Body::Eager { data, .. } => data.is_some(),
        Body::Rendezvous { data, .. } | Body::Offer { data, .. } | Body::EagerOffer { data, .. } => {
            Option::<u64>::from(data).is_some()
        }
        Body::Write { left, data, .. } => left > 0 || data.is_some(),
        _ => true,
    };
    let is_used = |field: &&Field| match (packet.body, field.name) {
        (Body::Eager { acknowledge, .. }, "transfer") => acknowledge.is_some(),
        (_, "data" | "left_or_data") => has_data,
        (Body::Offloaded(Offloaded::Group(GroupPacket::Part { operation, .. })), name) => {
            let combines = operation.combination().is_some();
            let has_root = !matches!(operation, Operation::AllGather { .. } | Operation::AllToAll { .. });
            let has_blocks = matches!(
                operation,
                Operation::Gather { .. } | Operation::Scatter { .. } | Operation::AllGather { .. }
            );
            match name {
                "operation" | "word_type" => combines || has_blocks,
                "root" => has_root && !combines,
                _ => name != "word",
            }
        }
        (_, name) => name != "word",
    };
    let fields = Common::FIELDS.iter().chain(kind.fields()).filter(is_used);
    fields.flat_map(|field| field.offset..field.offset + field.bytes).collect()
}

#[test]
fn fields_follow_each_other_without_gaps() {
    for &kind in Kind::ALL {
        let mut end = 0;
        for field in Common::FIELDS.iter().chain(kind.fields()) {
            assert_eq!(field.offset, end, "{} of {}", field.name, kind.name());
            end += field.bytes;
        }
        assert!(end <= SLOT_BYTES, "{}", kind.name());
        assert!(!kind.carries_payload() || end <= kind.header_bytes(true), "{}", kind.name());
    }
    assert_eq!((COMMON_BYTES, COMMON_BYTES + BODY_BYTES), (28, 64));
}

#[test]
fn an_eight_byte_message_fits_in_one_cache_line() {
    let with = |acknowledge| {
        let body = Body::Eager { space: Space::Tagged, tag: 1, data: Some(2), length: 8, acknowledge };
        whole(&Packet::new(body, 8)).len()
    };
    assert_eq!([with(None), with(Some(Transfer(3)))], [56, 64]);
}

const TRANSFER: Transfer = Transfer(0xa1a2_a3a4);
const TAG: u64 = 0xb1b2_b3b4_b5b6_b7b8;
const DATA: u64 = 0xc1c2_c3c4_c5c6_c7c8;
const KEY: u64 = 0xd1d2_d3d4_d5d6_d7d8;
const OFFSET: u64 = 0xe1e2_e3e4_e5e6_e7e8;
const LENGTH: u64 = 0xf1f2_f3f4_f5f6_f7f8;
const ADDRESS: u64 = 0x7172_7374_7576;

/// The bytes were computed with Python's `struct`, from the table in the lab note of this format.
#[test]
fn the_bytes_of_every_kind_stay_as_they_are() {
    // Body, payload bytes, bytes 4 to 7, bytes from 28 on; the rest is 0.
    let cases = [
        (
            Body::Eager {
                space: Space::Tagged,
                tag: TAG,
                data: Some(DATA),
                length: 0x00091234,
                acknowledge: None,
            },
            8,
            "06018300",
            "34120900b8b7b6b5b4b3b2b1c8c7c6c5c4c3c2c1",
        ),
        (
            Body::Eager {
                space: Space::Untagged,
                tag: 0,
                data: None,
                length: 8,
                acknowledge: Some(TRANSFER),
            },
            8,
            "06018400",
            "0800000000000000000000000000000000000000a4a3a2a1",
        ),
        (Body::More { offset: 0x00091234 }, 8, "06028000", "34120900"),
        (
            Body::Rendezvous {
                space: Space::Tagged,
                tag: TAG,
                data: Some(DATA).into(),
                length: LENGTH,
                address: RemoteAddress::without_key(ADDRESS),
                transfer: TRANSFER,
                sender: AnnouncementMarks::default(),
            },
            0,
            "06038300",
            "a4a3a2a1b8b7b6b5b4b3b2b1c8c7c6c5c4c3c2c1f8f7f6f5f4f3f2f17675747372710000",
        ),
        (
            Body::Rendezvous {
                space: Space::Untagged,
                tag: 0,
                data: None.into(),
                length: LENGTH,
                address: RemoteAddress::NONE,
                transfer: TRANSFER,
                sender: AnnouncementMarks::new(true, true),
            },
            0,
            "06038401",
            "a4a3a2a100000000000000000000000000000000f8f7f6f5f4f3f2f1",
        ),
        (Body::Credit, 0, "06048000", ""),
        (Body::Finished { transfer: TRANSFER, count: 3, refused: true }, 0, "06059000", "a4a3a2a103000000"),
        (
            Body::Fetch { transfer: TRANSFER, reply: Transfer(0x61626364), length: LENGTH },
            0,
            "06068000",
            "a4a3a2a164636261f8f7f6f5f4f3f2f1",
        ),
        (
            Body::Piece { transfer: TRANSFER, offset: OFFSET, last: true },
            8,
            "06078800",
            "a4a3a2a1e8e7e6e5e4e3e2e1",
        ),
        (
            Body::Write { transfer: TRANSFER, key: KEY, offset: OFFSET, left: LENGTH, data: None },
            8,
            "06088000",
            "a4a3a2a1d8d7d6d5d4d3d2d1e8e7e6e5e4e3e2e1f8f7f6f5f4f3f2f1",
        ),
        (
            Body::Write { transfer: TRANSFER, key: KEY, offset: OFFSET, left: 0, data: Some(DATA) },
            8,
            "06088a00",
            "a4a3a2a1d8d7d6d5d4d3d2d1e8e7e6e5e4e3e2e1c8c7c6c5c4c3c2c1",
        ),
        (
            Body::Read { transfer: TRANSFER, key: KEY, offset: OFFSET, length: LENGTH },
            0,
            "06098000",
            "a4a3a2a1d8d7d6d5d4d3d2d1e8e7e6e5e4e3e2e1f8f7f6f5f4f3f2f1",
        ),
        (
            Body::Locate { transfer: TRANSFER, key: KEY, offset: OFFSET, length: LENGTH, write: true },
            0,
            "060aa000",
            "a4a3a2a1d8d7d6d5d4d3d2d1e8e7e6e5e4e3e2e1f8f7f6f5f4f3f2f1",
        ),
        (
            Body::Located {
                transfer: TRANSFER,
                key: KEY,
                offset: OFFSET,
                address: RemoteAddress::without_key(ADDRESS),
                refused: true,
            },
            0,
            "060b9000",
            "a4a3a2a1d8d7d6d5d4d3d2d1e8e7e6e5e4e3e2e17675747372710000",
        ),
        (Body::Written { data: DATA, bytes: LENGTH }, 0, "060c8000", "c8c7c6c5c4c3c2c1f8f7f6f5f4f3f2f1"),
        (Body::Goodbye, 0, "060d8000", ""),
        (Body::ReturnRequest, 0, "060e8000", ""),
        (Body::ReturnResponse { credits: 0x51525354 }, 0, "060f8000", "54535251"),
        (Body::Detach, 0, "06108000", ""),
        (
            Body::Ask { space: Space::Tagged, tag: TAG, ignore: DATA, carry_bytes: 0x51525354, look: true },
            0,
            "06118102",
            "b8b7b6b5b4b3b2b1c8c7c6c5c4c3c2c154535251",
        ),
        (
            Body::Offer {
                space: Space::Tagged,
                tag: TAG,
                data: Some(DATA).into(),
                length: LENGTH,
                address: RemoteAddress::without_key(ADDRESS),
                transfer: TRANSFER,
                seen: true,
            },
            0,
            "06128304",
            "a4a3a2a1b8b7b6b5b4b3b2b1c8c7c6c5c4c3c2c1f8f7f6f5f4f3f2f17675747372710000",
        ),
        (Body::NoMatch, 0, "06138000", ""),
        (Body::Resume { count: 0x00091234 }, 0, "06148000", "34120900"),
        (Body::Claimed { transfer: TRANSFER }, 0, "06158000", "a4a3a2a1"),
        (
            Body::EagerOffer {
                space: Space::Tagged,
                tag: TAG,
                data: Some(DATA).into(),
                length: 8,
                transfer: TRANSFER,
            },
            8,
            "06168300",
            "08000000b8b7b6b5b4b3b2b1c8c7c6c5c4c3c2c1a4a3a2a1",
        ),
        (
            Body::Offloaded(Offloaded::Atomic(AtomicPacket::request(
                KEY,
                OFFSET,
                WordUpdate {
                    operation: WordOperation::CompareSwap,
                    word_type: WordType::I64,
                    operand: DATA,
                    compare: TAG,
                },
                true,
            ))),
            0,
            "06208010",
            "d8d7d6d5d4d3d2d1e8e7e6e5e4e3e2e1c8c7c6c5c4c3c2c1b8b7b6b5b4b3b2b10203",
        ),
        (
            Body::Offloaded(Offloaded::Atomic(AtomicPacket::Result { old: DATA, refused: true })),
            0,
            "06219000",
            "c8c7c6c5c4c3c2c1",
        ),
        (group(GroupPacket::Joined { group: 0x51525354, all: false }), 0, "06228000", "54535251"),
        (
            group(GroupPacket::Part {
                group: 0x51525354,
                operation: Operation::AllReduce(Vector {
                    bytes: 0x61626364,
                    combination: Combination { operation: WordOperation::Product, word_type: WordType::F64 },
                }),
                blocks: 1,
                offset: 0x71727374,
            }),
            8,
            "06238000",
            "545352516463626174737271090501",
        ),
        (
            group(GroupPacket::Part {
                group: 0x51525354,
                operation: Operation::Broadcast { root: 0x41424344, bytes: 0x61626364 },
                blocks: 1,
                offset: 0x71727374,
            }),
            8,
            "06238000",
            "54535251646362617473727100000244434241",
        ),
        (
            group(GroupPacket::Part {
                group: 0x51525354,
                operation: Operation::Exchange { distance: 0x41424344, bytes: 0x61626364 },
                blocks: 1,
                offset: 0x71727374,
            }),
            8,
            "06238000",
            "54535251646362617473727100000344434241",
        ),
        (
            group(GroupPacket::Part {
                group: 0x51525354,
                operation: Operation::Gather { root: 0x41424344, bytes: 0x61626364 },
                blocks: 0x3132,
                offset: 0x71727374,
            }),
            8,
            "06238000",
            "54535251646362617473727132310444434241",
        ),
        (
            group(GroupPacket::Part {
                group: 0x51525354,
                operation: Operation::Scatter { root: 0x41424344, bytes: 0x61626364 },
                blocks: 1,
                offset: 0x71727374,
            }),
            8,
            "06238000",
            "54535251646362617473727101000544434241",
        ),
        (
            group(GroupPacket::Part {
                group: 0x51525354,
                operation: Operation::AllGather { bytes: 0x61626364 },
                blocks: 0x3132,
                offset: 0x71727374,
            }),
            8,
            "06238000",
            "545352516463626174737271323106",
        ),
        (
            group(GroupPacket::Part {
                group: 0x51525354,
                operation: Operation::AllToAll { bytes: 0x61626364 },
                blocks: 1,
                offset: 0x71727374,
            }),
            8,
            "06238000",
            "545352516463626174737271000007",
        ),
        (group(GroupPacket::Taken { group: 0x51525354, refused: true }), 0, "06249000", "54535251"),
        (
            group(GroupPacket::Failed { group: 0x51525354, member: 0x61626364, fault: PeerFault::NotReady }),
            0,
            "06258000",
            "545352516463626104",
        ),
        (
            group(GroupPacket::Part {
                group: 0x51525354,
                operation: Operation::Barrier,
                blocks: 1,
                offset: 0,
            }),
            0,
            "06268000",
            "54535251",
        ),
        (group(GroupPacket::Joined { group: 0x51525354, all: true }), 0, "06278000", "54535251"),
        (
            Body::Offloaded(Offloaded::Atomic(AtomicPacket::Vector {
                update: VectorUpdate {
                    key: KEY,
                    offset: OFFSET,
                    bytes: 0x61626364,
                    combination: Combination {
                        operation: WordOperation::Difference,
                        word_type: WordType::F64,
                    },
                },
                fetch: true,
                at: 0x71727374,
            })),
            8,
            "06308010",
            "d8d7d6d5d4d3d2d1e8e7e6e5e4e3e2e164636261747372710d05",
        ),
        (
            Body::Offloaded(Offloaded::Atomic(AtomicPacket::VectorResult {
                bytes: 0x61626364,
                at: 0x71727374,
            })),
            8,
            "06318000",
            "6463626174737271",
        ),
    ];
    let mut kinds: Vec<u8> = Vec::new();
    for (body, payload_bytes, start, fields) in cases {
        let packet = Packet {
            epoch: 0x0102,
            credit_packets_read: 0x0304,
            granted_total: 0x0506_0708,
            wanted_total: 0x090a_0b0c,
            number: 0x0d0e_0f10,
            marks: Marks { rendezvous_only: false, backlogged: true },
            ..Packet::new(body, payload_bytes)
        };
        let payload = if payload_bytes == 0 { "00000000" } else { "08000000" };
        let named = format!("00000000{start}02010403080706050c0b0a09100f0e0d{payload}{fields}");
        let slot = wire::encode(&packet);
        assert_eq!(hex(&slot), format!("{named:0<128}"), "{body:?}");
        assert_eq!(wire::decode(&slot, MAX_PAYLOAD_BYTES), Ok(packet));
        kinds.push(slot[5]);
    }
    kinds.dedup();
    assert_eq!(kinds, Vec::from_iter(Kind::ALL.iter().map(|kind| *kind as u8)), "every kind");
    assert_eq!((1..=22).chain(32..=39).chain(48..=49).collect::<Vec<u8>>(), kinds, "{KNOWN_KINDS}");
}

fn group(packet: GroupPacket) -> Body {
    Body::Offloaded(Offloaded::Group(packet))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_bytes_of_the_extension_stay_as_they_are() {
    let extension = LinkExtension {
        version: wire::VERSION,
        flags: 0x0d,
        epoch: 0x0102.into(),
        destination_epoch: 0x0f10.into(),
        marks: 0x1112.into(),
        verification: 0x1314_1516.into(),
        number: 0x0304_0506.into(),
        acknowledged: 0x0708_090a.into(),
        latest: 0x0b0c_0d0e.into(),
        arrived: DATA.into(),
        unused: [],
    };
    assert_eq!(hex(extension.as_bytes()), "060d0201100f121116151413060504030a0908070e0d0c0bc8c7c6c5c4c3c2c1");
    assert_eq!(wire::split_extension(extension.as_bytes()), Ok((extension, &[][..])));
    let header = Header::from(extension);
    assert_eq!((header.asks, header.delay_doublings), (true, 6));
    assert_eq!(LinkExtension { verification: extension.verification, ..header.into() }, extension);
    let other = LinkExtension { flags: 0x10, ..extension };
    let refused = PacketError::Flags { have: 0x10, allowed: 0x0f };
    assert_eq!(wire::split_extension(other.as_bytes()), Err(refused));
}

#[test]
fn a_link_frame_has_fixed_bytes() {
    let frame = LinkFrame {
        word: 0x0102_0304.into(),
        version: wire::VERSION,
        kind: wire::LEASE_FRAME,
        number: 0x0506.into(),
        data_slots: 0x0708_090a.into(),
        start_slots: 0x0b0c_0d0e.into(),
        credit_slots: 0x0f10_1112.into(),
        unused: [],
    };
    assert_eq!(hex(frame.as_bytes()), "04030201068106050a0908070e0d0c0b1211100f");
    assert_eq!(LinkFrame::read(frame.as_bytes()), Ok(Some(frame)));
}

#[test]
fn link_frames_are_told_from_packets_and_malformed_ones_are_rejected() {
    let mut bytes = [0; LINK_FRAME_BYTES];
    bytes[4] = wire::VERSION;
    for kind in 0..=255 {
        bytes[5] = kind;
        let is_frame = LinkFrame::read(&bytes).expect("whole").is_some();
        assert_eq!(is_frame, (wire::ATTACH_FRAME..=wire::FILL_FRAME).contains(&kind));
        let is_packet = wire::decode_bytes(&[bytes.as_slice(), &[0; 64]].concat(), 0).is_ok();
        assert!(!(is_frame && is_packet), "kind {kind}");
    }
    bytes[5] = wire::LEAVE_FRAME;
    assert!(matches!(LinkFrame::read(&bytes[..19]), Err(PacketError::Truncated { .. })));
    assert_eq!(LinkFrame::read(&bytes[..5]), Ok(None));
    bytes[4] += 1;
    assert!(matches!(LinkFrame::read(&bytes), Err(PacketError::Version { .. })));
}

#[test]
fn a_frame_that_wants_contents_has_fixed_bytes_and_is_told_from_others() {
    let frame = WantFrame {
        word: 0x0102_0304.into(),
        version: wire::VERSION,
        kind: wire::WANT_FRAME,
        zero: 0.into(),
        key: 0x0506_0708_090a_0b0c.into(),
        offset: 0x0d0e_0f10_1112_1314.into(),
        number: 0x1516_1718_191a_1b1c.into(),
        bytes: 0x1d1e_1f20.into(),
        unused: [],
    };
    let expected = "040302010686".to_owned()
        + "0000"
        + "0c0b0a0908070605"
        + "14131211100f0e0d"
        + "1c1b1a1918171615"
        + "201f1e1d";
    assert_eq!(hex(frame.as_bytes()), expected);
    assert_eq!(Frame::read(frame.as_bytes()), Ok(Some(Frame::Want(frame))));
    assert!(matches!(
        Frame::read(&frame.as_bytes()[..35]),
        Err(PacketError::Truncated { need_bytes: 36, .. })
    ));
    let other = WantFrame { version: wire::VERSION + 1, ..frame };
    assert!(matches!(Frame::read(other.as_bytes()), Err(PacketError::Version { .. })));
    assert_eq!(LinkFrame::read(frame.as_bytes()), Ok(None));
    assert!(wire::decode_bytes(&[frame.as_bytes(), &[0; 64]].concat(), 0).is_err());
    let lease = [&[0, 0, 0, 0, wire::VERSION, wire::LEASE_FRAME][..], &[0; 14]].concat();
    assert!(matches!(Frame::read(&lease), Ok(Some(Frame::Link(LinkFrame { kind: wire::LEASE_FRAME, .. })))));
    assert_eq!(Frame::read(&[0; 64]), Ok(None), "a packet, or what is none");
}

#[test]
fn a_frame_before_contents_has_fixed_bytes_and_is_told_from_others() {
    let frame =
        ContentsFrame { word: 0x0102_0304.into(), ..ContentsFrame::new(0x1516_1718_191a_1b1c, 0x1d1e) };
    let expected = "040302010687".to_owned() + "1e1d" + "1c1b1a1918171615";
    assert_eq!(hex(frame.as_bytes()), expected);
    assert_eq!(Frame::read(frame.as_bytes()), Ok(Some(Frame::Contents(frame))));
    assert!(matches!(
        Frame::read(&frame.as_bytes()[..15]),
        Err(PacketError::Truncated { need_bytes: 16, .. })
    ));
    let other = ContentsFrame { version: wire::VERSION + 1, ..frame };
    assert!(matches!(Frame::read(other.as_bytes()), Err(PacketError::Version { .. })));
    assert_eq!(LinkFrame::read(&[frame.as_bytes(), &[0; 64]].concat()), Ok(None));
    assert!(wire::decode_bytes(&[frame.as_bytes(), &[0; 64]].concat(), 0).is_err());
}

#[test]
fn the_header_length_is_where_the_payload_of_a_decoded_packet_begins() {
    for (acknowledge, header_bytes) in [(None, 48), (Some(Transfer(3)), 56)] {
        let body = Body::Eager { space: Space::Tagged, tag: 1, data: None, length: 8, acknowledge };
        let slot = wire::encode(&Packet::new(body, 8));
        assert_eq!(wire::header_bytes(&slot), header_bytes);
        let bytes = [&slot[..header_bytes], &[0; 8]].concat();
        assert_eq!(wire::decode_bytes(&bytes, 8).map(|(_, at)| at), Ok(header_bytes));
    }
}

/// A packet of each kind that can have a remote key.
fn packets_with_key(key: u64) -> [Packet; 3] {
    let address = RemoteAddress { address: 0x1234_5678, key };
    let (space, tag, data, length, transfer) = (Space::Tagged, 9, Some(7), 1 << 40, Transfer(5));
    let sender = AnnouncementMarks::new(true, true);
    let bodies = [
        Body::Rendezvous { space, tag, data: data.into(), length, address, transfer, sender },
        Body::Offer { space, tag, data: data.into(), length, address, transfer, seen: true },
        Body::Located { transfer, key: 3, offset: 4, address, refused: false },
    ];
    bodies.map(|body| Packet { number: 77, ..Packet::new(body, 0) })
}

#[test]
fn the_remote_key_follows_the_header_where_packets_are_as_long_as_they_need_to_be() {
    let mut bytes = [0xee; MOST_HEADER_BYTES];
    for (packet, kind) in packets_with_key(0xfedc_ba98_7654_3210).into_iter().zip(REMOTE_KEY.kinds) {
        let length = wire::encode_bytes(&packet, &mut bytes);
        assert_eq!(length, REMOTE_KEY.offset(*kind) + REMOTE_KEY.bytes, "{kind:?}");
        assert_eq!(wire::decode_bytes(&bytes[..length], 0), Ok((packet, length)));
        let cut = PacketError::Truncated { have_bytes: length - 1, need_bytes: length };
        assert_eq!(wire::decode_bytes(&bytes[..length - 1], 0), Err(cut));
    }
    for packet in packets_with_key(0) {
        let length = wire::encode_bytes(&packet, &mut bytes);
        let slot = wire::encode(&packet);
        assert_eq!((length, &bytes[..length]), (wire::header_bytes(&slot), &slot[..length]), "as in a slot");
        assert_eq!(wire::decode_bytes(&bytes[..length], 0), Ok((packet, length)));
    }
}

#[test]
fn a_packet_with_a_remote_key_is_refused_in_shared_memory_and_so_are_others_with_its_flag() {
    let bit: u16 = 1 << REMOTE_KEY.flag.bit;
    assert!(FLAGS.iter().all(|flag| flag.bit != REMOTE_KEY.flag.bit));
    for &kind in Kind::ALL {
        let mut bytes = [0; 2 * SLOT_BYTES];
        (bytes[4], bytes[5]) = (wire::VERSION, kind as u8);
        bytes[6..8].copy_from_slice(&bit.to_le_bytes());
        let refused = PacketError::Flags { have: bit, allowed: kind.flags() };
        let slot = bytes.first_chunk().expect("a slot");
        assert_eq!(wire::decode(slot, 0), Err(refused), "{kind:?}");
        if !REMOTE_KEY.kinds.contains(&kind) {
            assert_eq!(wire::decode_bytes(&bytes, 0), Err(refused), "{kind:?}");
        }
    }
}

#[test]
fn malformed_headers_are_rejected() {
    let message = |slot: &[u8; SLOT_BYTES]| wire::decode(slot, 100).map_err(|error| error.to_string());
    let mut slot = [0; SLOT_BYTES];
    assert_eq!(message(&slot), Err("packet version 0, allowed is 6".into()));
    slot[4] = wire::VERSION;
    for kind in [0, 23, 31, 40, 47, 50, 255] {
        slot[5] = kind;
        assert_eq!(
            message(&slot),
            Err(format!("packet kind {kind}, known are 1 to 22, 32 to 39, 48 and 49"))
        );
    }
    slot[5] = Kind::More as u8;
    slot[6] = 1;
    assert_eq!(message(&slot), Err("packet flags 0x0001, allowed are 0x00c0".into()));
    slot[6] = 0;
    slot[24] = 200;
    assert_eq!(message(&slot), Err("200 payload bytes, allowed are 0 to 100".into()));
    slot[24] = 1;
    for kind in [Kind::Credit, Kind::Goodbye, Kind::Rendezvous] {
        slot[5] = kind as u8;
        assert_eq!(message(&slot), Err("1 payload bytes, allowed are 0 to 0".into()), "{kind:?}");
    }
    slot[5] = Kind::Eager as u8;
    assert_eq!(message(&slot), Err("1 payload bytes in a message of 0".into()));
    slot[24] = 0;
    assert!(message(&slot).is_ok());
    (slot[5], slot[28]) = (Kind::EagerOffer as u8, 1);
    assert_eq!(message(&slot), Err("0 payload bytes in a message of 1".into()));
    (slot[5], slot[28]) = (Kind::Write as u8, 0);
    assert_eq!(message(&slot), Err("0 bytes left after a packet that is not the last of its write".into()));
    slot[56 - 8] = 1;
    assert!(message(&slot).is_ok());
    slot[6] = 2; // completion data in a packet that is not the last
    assert_eq!(message(&slot), Err("packet flags 0x0002, allowed are 0x00c8".into()));
    (slot[5], slot[6]) = (Kind::Atomic as u8, 0);
    let word = |operation, word_type| {
        let mut slot = slot;
        (slot[60], slot[61]) = (operation, word_type);
        message(&slot).map(|_| ())
    };
    assert_eq!([word(8, 3), word(18, 5)], [Ok(()), Ok(())]);
    for (operation, word_type) in [(20, 0), (0, 6), (6, 4), (8, 5), (19, 5)] {
        let allowed = "allowed are operations 0 to 19 on types 0 to 5, but 6 to 8 and 19 only on 0 to 3, 2 and 14 to 19 only in `atomic`, and in `group part` only 3 to 12";
        let error = format!("word operation {operation} on type {word_type}, {allowed}");
        assert_eq!(word(operation, word_type), Err(error));
    }
    slot[5] = Kind::AtomicVector as u8;
    let vector = |operation, word_type| {
        let mut slot = slot;
        (slot[28 + 24], slot[28 + 25]) = (operation, word_type);
        message(&slot).is_ok()
    };
    assert_eq!([(0, 5), (1, 4), (13, 5), (8, 3)].map(|(operation, it)| vector(operation, it)), [true; 4]);
    assert_eq!([(2, 0), (14, 0), (19, 0), (8, 5)].map(|(operation, it)| vector(operation, it)), [false; 4]);
    slot[5] = Kind::GroupPart as u8;
    let combination = |operation| {
        let mut slot = slot;
        (slot[28 + 12], slot[28 + 13]) = (operation, 0);
        message(&slot).is_ok()
    };
    assert_eq!([2, 3, 12, 13].map(combination), [false, true, true, false]);
    slot[28 + 14] = 8;
    assert_eq!(message(&slot), Err("operation 8 of a group, allowed are 0 to 7".into()));
    (slot[5], slot[28 + 8]) = (Kind::GroupFailed as u8, 5);
    assert_eq!(message(&slot), Err("fault 5 of a group, allowed are 0 to 4".into()));
    slot[5] = Kind::Write as u8;
    assert_eq!(
        wire::decode_bytes(&slot[..27], 100).map_err(|error| error.to_string()),
        Err("a packet of 27 bytes, needed are 28".into())
    );
}
