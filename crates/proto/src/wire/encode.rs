//! Encodes packets as headers, in the layout of `layout.rs`.

use super::layout::{
    self, ACKNOWLEDGE, BACKLOGGED, BODY_BYTES, Common, FETCH, FOR_WRITING, HAS_DATA, HAS_KEY, HELD, Header,
    Kind, LAST, LOOK, REFUSED, RENDEZVOUS_ONLY, SEEN, TAGGED,
};
use super::{MOST_HEADER_BYTES, SLOT_BYTES, Slot, VERSION};
use crate::event::Transfer;
use crate::offload::atomics::AtomicPacket;
use crate::offload::group::{GroupPacket, Operation};
use crate::offload::{Combination, Offloaded, VectorUpdate};
use crate::packet::{Body, Marks, Packet, RemoteAddress, Space};
use zerocopy::{FromZeros, transmute};

/// The header of `packet`, with 0 as the word of the link. Payload follows at [`crate::Geometry::header_bytes`] of
/// [`crate::Geometry::SHARED_MEMORY`].
pub fn encode(packet: &Packet) -> Slot {
    let (kind, flags, body) = encode_body(&packet.body);
    header(packet, kind, flags, body)
}

/// As [`encode`], inlined, for an eager packet without acknowledgement, which most packets are. Only the first
/// [`super::EAGER_HEADER_BYTES`] bytes are its header. `None`: another packet.
#[inline(always)]
pub fn encode_eager(packet: &Packet) -> Option<Slot> {
    match packet.body {
        Body::Eager { space, tag, data, length, acknowledge: None } => {
            let (flags, body) = encode_eager_body(space, tag, data, length, None);
            Some(header(packet, Kind::Eager, flags, body))
        }
        _ => None,
    }
}

/// Writes the header of `packet` for a link whose packets are as long as they need to be: as [`encode`], and behind it the
/// remote key of the memory that the packet names, if there is one. Returns its length; payload follows there.
pub fn encode_bytes(packet: &Packet, into: &mut [u8; MOST_HEADER_BYTES]) -> usize {
    let key = packet.body.remote_address().map_or(0, |address| address.key);
    let slot = match key {
        0 => encode(packet),
        _ => {
            let mut plain = *packet;
            plain.body.set_remote_key(0);
            encode(&plain)
        }
    };
    let bytes = header_bytes(&slot);
    into[..SLOT_BYTES].copy_from_slice(&slot);
    if key == 0 {
        return bytes;
    }
    let header: &mut Header = zerocopy::transmute_mut!(into.first_chunk_mut::<SLOT_BYTES>().expect("a slot"));
    header.common.flags = (header.common.flags.get() | HAS_KEY).into();
    into[bytes..bytes + 8].copy_from_slice(&key.to_le_bytes());
    bytes + 8
}

/// Length of a header that [`encode`] has made. Payload follows it on links whose packets are as long as they need to be.
pub fn header_bytes(slot: &Slot) -> usize {
    let header: &Header = zerocopy::transmute_ref!(slot);
    let acknowledged = header.common.flags.get() & ACKNOWLEDGE != 0;
    Kind::of_number(header.common.kind).map_or(SLOT_BYTES, |kind| kind.header_bytes(acknowledged))
}

#[inline(always)]
fn header(packet: &Packet, kind: Kind, flags: u16, body: [u8; BODY_BYTES]) -> Slot {
    let common = Common {
        word: 0.into(),
        version: VERSION,
        kind: kind as u8,
        flags: (mark_flags(packet.marks) | flags).into(),
        epoch: packet.epoch.into(),
        credit_packets_read: packet.credit_packets_read.into(),
        granted_total: packet.granted_total.into(),
        wanted_total: packet.wanted_total.into(),
        number: packet.number.into(),
        payload_bytes: packet.payload_bytes.into(),
        unused: [],
    };
    transmute!(Header { common, body })
}

#[inline(always)]
fn encode_eager_body(
    space: Space,
    tag: u64,
    data: Option<u64>,
    length: u32,
    acknowledge: Option<Transfer>,
) -> (u16, [u8; BODY_BYTES]) {
    let flags = space_flag(space) | data_flag(data) | flag(acknowledge.is_some(), ACKNOWLEDGE);
    let fields = layout::Eager {
        length: length.into(),
        tag: tag.into(),
        data: data.unwrap_or(0).into(),
        transfer: acknowledge.map_or(0, |transfer| transfer.0).into(),
        ..FromZeros::new_zeroed()
    };
    (flags, transmute!(fields))
}

/// The address of announced memory. A slot has no place for a key ([`layout::REMOTE_KEY`]), and links with slots have no keys.
fn plain_address(address: RemoteAddress) -> u64 {
    assert!(address.key == 0, "a slot has no place for the key {:#x}", address.key);
    address.address
}

/// Kind, flags and fields of a packet with this body.
fn encode_body(body: &Body) -> (Kind, u16, [u8; BODY_BYTES]) {
    match *body {
        Body::Eager { space, tag, data, length, acknowledge } => {
            let (flags, fields) = encode_eager_body(space, tag, data, length, acknowledge);
            (Kind::Eager, flags, fields)
        }
        Body::More { offset } => {
            let fields = layout::More { offset: offset.into(), ..FromZeros::new_zeroed() };
            (Kind::More, 0, transmute!(fields))
        }
        Body::Rendezvous { space, tag, data, length, address, transfer, sender } => {
            let data: Option<u64> = data.into();
            let announced = flag(sender.held(), HELD) | flag(sender.awaits_match(), ACKNOWLEDGE);
            let flags = space_flag(space) | data_flag(data) | announced;
            (Kind::Rendezvous, flags, encode_announcement(tag, data, length, address, transfer))
        }
        Body::Ask { space, tag, ignore, carry_bytes, look } => {
            let (tag, ignore, carry_bytes) = (tag.into(), ignore.into(), carry_bytes.into());
            let fields = layout::Ask { tag, ignore, carry_bytes, ..FromZeros::new_zeroed() };
            (Kind::Ask, space_flag(space) | flag(look, LOOK), transmute!(fields))
        }
        Body::Offer { space, tag, data, length, address, transfer, seen } => {
            let data: Option<u64> = data.into();
            let flags = space_flag(space) | data_flag(data) | flag(seen, SEEN);
            (Kind::Offer, flags, encode_announcement(tag, data, length, address, transfer))
        }
        Body::EagerOffer { space, tag, data, length, transfer } => {
            let (flags, fields) = encode_eager_body(space, tag, data.into(), length, Some(transfer));
            (Kind::EagerOffer, flags & !ACKNOWLEDGE, fields)
        }
        Body::NoMatch => (Kind::NoMatch, 0, [0; _]),
        Body::Resume { count } => {
            let fields = layout::Resume { count: count.into(), ..FromZeros::new_zeroed() };
            (Kind::Resume, 0, transmute!(fields))
        }
        Body::Claimed { transfer } => {
            let fields = layout::Claimed { transfer: transfer.0.into(), ..FromZeros::new_zeroed() };
            (Kind::Claimed, 0, transmute!(fields))
        }
        Body::Credit => (Kind::Credit, 0, [0; _]),
        Body::Finished { transfer, count, refused } => {
            let fields = layout::Finished {
                transfer: transfer.0.into(),
                count: count.into(),
                ..FromZeros::new_zeroed()
            };
            (Kind::Finished, flag(refused, REFUSED), transmute!(fields))
        }
        Body::Fetch { transfer, reply, length } => {
            let fields = layout::Fetch {
                transfer: transfer.0.into(),
                reply: reply.0.into(),
                length: length.into(),
                ..FromZeros::new_zeroed()
            };
            (Kind::Fetch, 0, transmute!(fields))
        }
        Body::Piece { transfer, offset, last } => {
            let fields = layout::Piece {
                transfer: transfer.0.into(),
                offset: offset.into(),
                ..FromZeros::new_zeroed()
            };
            (Kind::Piece, flag(last, LAST), transmute!(fields))
        }
        Body::Write { transfer, key, offset, left, data } => {
            let last = left == 0;
            let flags = if last { LAST | data_flag(data) } else { 0 };
            let fields = layout::Write {
                transfer: transfer.0.into(),
                key: key.into(),
                offset: offset.into(),
                left_or_data: if last { data.unwrap_or(0) } else { left }.into(),
                ..FromZeros::new_zeroed()
            };
            (Kind::Write, flags, transmute!(fields))
        }
        Body::Read { transfer, key, offset, length } => {
            (Kind::Read, 0, encode_range(transfer, key, offset, length))
        }
        Body::Locate { transfer, key, offset, length, write } => {
            (Kind::Locate, flag(write, FOR_WRITING), encode_range(transfer, key, offset, length))
        }
        Body::Located { transfer, key, offset, address, refused } => {
            let fields = layout::Located {
                transfer: transfer.0.into(),
                key: key.into(),
                offset: offset.into(),
                address: plain_address(address).into(),
                ..FromZeros::new_zeroed()
            };
            (Kind::Located, flag(refused, REFUSED), transmute!(fields))
        }
        Body::Written { data, bytes } => {
            let fields =
                layout::Written { data: data.into(), length: bytes.into(), ..FromZeros::new_zeroed() };
            (Kind::Written, 0, transmute!(fields))
        }
        Body::Goodbye => (Kind::Goodbye, 0, [0; _]),
        Body::ReturnRequest => (Kind::ReturnRequest, 0, [0; _]),
        Body::ReturnResponse { credits } => {
            let fields = layout::ReturnResponse { credits: credits.into(), ..FromZeros::new_zeroed() };
            (Kind::ReturnResponse, 0, transmute!(fields))
        }
        Body::Detach => (Kind::Detach, 0, [0; _]),
        Body::Offloaded(Offloaded::Atomic(packet)) => encode_atomic(packet),
        Body::Offloaded(Offloaded::Group(packet)) => encode_group(packet),
    }
}

fn encode_atomic(packet: AtomicPacket) -> (Kind, u16, [u8; BODY_BYTES]) {
    match packet {
        AtomicPacket::Request { key, offset, operand, compare, combination, fetch } => {
            let Combination { operation, word_type } = combination;
            let fields = layout::Atomic {
                key: key.into(),
                offset: offset.into(),
                operand: operand.into(),
                compare: compare.into(),
                operation: operation as u8,
                word_type: word_type as u8,
                ..FromZeros::new_zeroed()
            };
            (Kind::Atomic, flag(fetch, FETCH), transmute!(fields))
        }
        AtomicPacket::Result { old, refused } => {
            let fields = layout::AtomicResult { old: old.into(), ..FromZeros::new_zeroed() };
            (Kind::AtomicResult, flag(refused, REFUSED), transmute!(fields))
        }
        AtomicPacket::Vector { update, fetch, at } => {
            let VectorUpdate { key, offset, bytes, combination } = update;
            let fields = layout::AtomicVector {
                key: key.into(),
                offset: offset.into(),
                length: bytes.into(),
                at: at.into(),
                operation: combination.operation as u8,
                word_type: combination.word_type as u8,
                ..FromZeros::new_zeroed()
            };
            (Kind::AtomicVector, flag(fetch, FETCH), transmute!(fields))
        }
        AtomicPacket::VectorResult { bytes, at } => {
            let fields =
                layout::AtomicVectorResult { length: bytes.into(), at: at.into(), ..FromZeros::new_zeroed() };
            (Kind::AtomicVectorResult, 0, transmute!(fields))
        }
    }
}

fn encode_group(packet: GroupPacket) -> (Kind, u16, [u8; BODY_BYTES]) {
    match packet {
        GroupPacket::Joined { group, all: false } => {
            let fields = layout::GroupJoined { group: group.into(), ..FromZeros::new_zeroed() };
            (Kind::GroupJoined, 0, transmute!(fields))
        }
        GroupPacket::Joined { group, all: true } => {
            let fields = layout::GroupComplete { group: group.into(), ..FromZeros::new_zeroed() };
            (Kind::GroupComplete, 0, transmute!(fields))
        }
        GroupPacket::Part { group, operation: Operation::Barrier, .. } => {
            let fields = layout::GroupBarrier { group: group.into(), ..FromZeros::new_zeroed() };
            (Kind::GroupBarrier, 0, transmute!(fields))
        }
        GroupPacket::Part { group, operation, blocks, offset } => {
            let (collective, root) = match operation {
                Operation::Barrier | Operation::Reduce(_) => (layout::REDUCE, 0),
                Operation::AllReduce(_) => (layout::ALL_REDUCE, 0),
                Operation::Broadcast { root, .. } => (layout::BROADCAST, root),
                Operation::Exchange { distance, .. } => (layout::EXCHANGE, distance),
                Operation::Gather { root, .. } => (layout::GATHER, root),
                Operation::Scatter { root, .. } => (layout::SCATTER, root),
                Operation::AllGather { .. } => (layout::ALL_GATHER, 0),
                Operation::AllToAll { .. } => (layout::ALL_TO_ALL, 0),
            };
            let [operation_or_blocks, word_type_or_blocks] = match operation {
                Operation::Gather { .. } | Operation::Scatter { .. } | Operation::AllGather { .. } => {
                    blocks.to_le_bytes()
                }
                _ => operation
                    .combination()
                    .map_or([0; 2], |combination| [combination.operation as u8, combination.word_type as u8]),
            };
            let fields = layout::GroupPart {
                group: group.into(),
                length: operation.bytes().into(),
                offset: offset.into(),
                operation: operation_or_blocks,
                word_type: word_type_or_blocks,
                collective,
                root: root.into(),
                ..FromZeros::new_zeroed()
            };
            (Kind::GroupPart, 0, transmute!(fields))
        }
        GroupPacket::Taken { group, refused } => {
            let fields = layout::GroupTaken { group: group.into(), ..FromZeros::new_zeroed() };
            (Kind::GroupTaken, flag(refused, REFUSED), transmute!(fields))
        }
        GroupPacket::Failed { group, member, fault } => {
            let fields = layout::GroupFailed {
                group: group.into(),
                member: member.into(),
                fault: fault as u8,
                ..FromZeros::new_zeroed()
            };
            (Kind::GroupFailed, 0, transmute!(fields))
        }
    }
}

fn encode_announcement(
    tag: u64,
    data: Option<u64>,
    length: u64,
    address: RemoteAddress,
    transfer: Transfer,
) -> [u8; BODY_BYTES] {
    let fields = layout::Rendezvous {
        transfer: transfer.0.into(),
        tag: tag.into(),
        data: data.unwrap_or(0).into(),
        length: length.into(),
        address: plain_address(address).into(),
        ..FromZeros::new_zeroed()
    };
    transmute!(fields)
}

fn encode_range(transfer: Transfer, key: u64, offset: u64, length: u64) -> [u8; BODY_BYTES] {
    let fields = layout::Range {
        transfer: transfer.0.into(),
        key: key.into(),
        offset: offset.into(),
        length: length.into(),
        ..FromZeros::new_zeroed()
    };
    transmute!(fields)
}

#[inline(always)]
fn flag(set: bool, flag: u16) -> u16 {
    if set { flag } else { 0 }
}
#[inline(always)]
fn space_flag(space: Space) -> u16 {
    flag(space == Space::Tagged, TAGGED)
}
#[inline(always)]
fn mark_flags(marks: Marks) -> u16 {
    flag(marks.rendezvous_only, RENDEZVOUS_ONLY) | flag(marks.backlogged, BACKLOGGED)
}
#[inline(always)]
fn data_flag(data: Option<u64>) -> u16 {
    flag(data.is_some(), HAS_DATA)
}
