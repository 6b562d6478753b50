//! Decodes packets from headers that another process wrote.
//!
//! Every byte is input. The types make sure that no read leaves the slot and that every kind is a known one. Version,
//! flags, payload and operations are checked here. What depends on state, the endpoint machine checks.

use super::layout::{
    self, ACKNOWLEDGE, BACKLOGGED, BODY_BYTES, COMMON_BYTES, Common, FETCH, FOR_WRITING, HAS_DATA, HAS_KEY,
    HELD, Header, Kind, LAST, LOOK, MARKS, REFUSED, REMOTE_KEY, RENDEZVOUS_ONLY, SEEN, TAGGED,
};
use super::{PacketError, SLOT_BYTES, Slot, VERSION};
use crate::event::{PeerFault, Transfer};
use crate::offload::atomics::AtomicPacket;
use crate::offload::group::{GroupPacket, Operation};
use crate::offload::reduce::Vector;
use crate::offload::{Combination, Offloaded, VectorUpdate, WordOperation, WordType, WordUpdate};
use crate::packet::{AnnouncementMarks, Body, Marks, Packet, RemoteAddress, Space};
use zerocopy::{TryFromBytes, transmute_mut, transmute_ref};

/// Decodes and checks a header. `max_payload_bytes` is the maximum for a packet of this link.
///
/// # Errors
/// [`PacketError`], with the value and what is allowed.
pub fn decode(slot: &Slot, max_payload_bytes: u32) -> Result<Packet, PacketError> {
    let mut packet = Packet::blank();
    decode_into(slot, max_payload_bytes, &mut packet).map(|()| packet)
}

/// [`decode`] into `packet`, for readers that decode many: the fields are written where they are used.
///
/// # Errors
/// As [`decode`]. Then `packet` has any value.
#[inline(always)]
pub fn decode_into(slot: &Slot, max_payload_bytes: u32, packet: &mut Packet) -> Result<(), PacketError> {
    let header: &Header = transmute_ref!(slot);
    let common = &header.common;
    let flags = common.flags.get();
    let payload_bytes = common.payload_bytes.get();
    packet.epoch = common.epoch.get();
    packet.credit_packets_read = common.credit_packets_read.get();
    packet.granted_total = common.granted_total.get();
    packet.wanted_total = common.wanted_total.get();
    packet.number = common.number.get();
    packet.payload_bytes = payload_bytes;
    packet.marks =
        Marks { rendezvous_only: flags & RENDEZVOUS_ONLY != 0, backlogged: flags & BACKLOGGED != 0 };
    let eager: &layout::Eager = transmute_ref!(&header.body);
    // The body comes last: the compiler then joins each case with what its reader does for that kind. The two most common kinds, without a table.
    const PLAIN_EAGER_FLAGS: u16 = Kind::Eager.flags() & !ACKNOWLEDGE;
    let kind = [common.version, common.kind];
    if kind == [VERSION, Kind::Eager as u8]
        && flags & !PLAIN_EAGER_FLAGS == 0
        && payload_bytes <= max_payload_bytes
        && payload_bytes <= eager.length.get()
    {
        packet.body = decode_eager(eager, flags, None);
    } else if kind == [VERSION, Kind::Credit as u8] && flags & !MARKS == 0 && payload_bytes == 0 {
        packet.body = Body::Credit;
    } else {
        packet.body = decode_other(header, max_payload_bytes)?;
    }
    Ok(())
}

/// Decodes and checks the packet at the beginning of `bytes`, for links whose packets are as long as they need to be.
/// Returns the length of its header too; payload follows there.
///
/// # Errors
/// As [`decode`], and [`PacketError::Truncated`] if header or payload are longer than `bytes`.
pub fn decode_bytes(bytes: &[u8], max_payload_bytes: u32) -> Result<(Packet, usize), PacketError> {
    let (packet, header_bytes) = decode_head(bytes, max_payload_bytes)?;
    needs(bytes.len(), header_bytes + packet.payload_bytes as usize)?;
    Ok((packet, header_bytes))
}

/// [`decode_bytes`] of a packet whose payload may continue behind `bytes`.
///
/// # Errors
/// As [`decode`], and [`PacketError::Truncated`] if the header is longer than `bytes`.
pub fn decode_head(bytes: &[u8], max_payload_bytes: u32) -> Result<(Packet, usize), PacketError> {
    let have_bytes = bytes.len();
    needs(have_bytes, COMMON_BYTES)?;
    let mut slot = [0; SLOT_BYTES];
    let head_bytes = have_bytes.min(SLOT_BYTES);
    slot[..head_bytes].copy_from_slice(&bytes[..head_bytes]);
    let has_key = take_key_flag(transmute_mut!(&mut slot));
    let header: &Header = transmute_ref!(&slot);
    let (kind, flags) = check(&header.common)?;
    let header_bytes = kind.header_bytes(flags & ACKNOWLEDGE != 0);
    needs(have_bytes, header_bytes)?;
    let mut packet = decode(&slot, max_payload_bytes)?;
    if !has_key {
        return Ok((packet, header_bytes));
    }
    let key = bytes[header_bytes..].first_chunk();
    let key =
        key.ok_or(PacketError::Truncated { have_bytes, need_bytes: header_bytes + REMOTE_KEY.bytes })?;
    packet.body.set_remote_key(u64::from_le_bytes(*key));
    Ok((packet, header_bytes + REMOTE_KEY.bytes))
}

/// Whether a remote key follows the header. The flag is then removed: the rest is as in a slot.
#[inline]
fn take_key_flag(header: &mut Header) -> bool {
    let flags = header.common.flags.get();
    let has_key = flags & HAS_KEY != 0
        && Kind::of_number(header.common.kind).is_some_and(|kind| REMOTE_KEY.kinds.contains(&kind));
    if has_key {
        header.common.flags = (flags & !HAS_KEY).into();
    }
    has_key
}

fn needs(have_bytes: usize, need_bytes: usize) -> Result<(), PacketError> {
    match have_bytes < need_bytes {
        true => Err(PacketError::Truncated { have_bytes, need_bytes }),
        false => Ok(()),
    }
}

/// Checks version, kind and flags.
fn check(common: &Common) -> Result<(Kind, u16), PacketError> {
    if common.version != VERSION {
        return Err(PacketError::Version { have: common.version });
    }
    let kind = Kind::of_number(common.kind).ok_or(PacketError::Kind { have: common.kind })?;
    let flags = common.flags.get();
    match flags & !kind.flags() {
        0 => Ok((kind, flags)),
        _ => Err(PacketError::Flags { have: flags, allowed: kind.flags() }),
    }
}

/// The body of any packet, with its payload size checked.
#[inline(never)]
fn decode_other(header: &Header, max_payload_bytes: u32) -> Result<Body, PacketError> {
    let (kind, flags) = check(&header.common)?;
    let have_bytes = header.common.payload_bytes.get();
    let allowed_bytes = if kind.carries_payload() { max_payload_bytes } else { 0 };
    if have_bytes > allowed_bytes {
        return Err(PacketError::Payload { have_bytes, allowed_bytes });
    }
    let body = decode_body(&header.body, kind, flags)?;
    match body {
        Body::Eager { length, .. } if have_bytes > length => {
            Err(PacketError::Length { have_bytes, length_bytes: length })
        }
        Body::EagerOffer { length, .. } if have_bytes != length => {
            Err(PacketError::Length { have_bytes, length_bytes: length })
        }
        _ => Ok(body),
    }
}

#[inline(always)]
fn decode_space(flags: u16) -> Space {
    if flags & TAGGED != 0 { Space::Tagged } else { Space::Untagged }
}

#[inline(always)]
fn decode_eager(fields: &layout::Eager, flags: u16, acknowledge: Option<Transfer>) -> Body {
    Body::Eager {
        space: decode_space(flags),
        tag: fields.tag.get(),
        data: (flags & HAS_DATA != 0).then(|| fields.data.get()),
        length: fields.length.get(),
        acknowledge,
    }
}

fn decode_body(bytes: &[u8; BODY_BYTES], kind: Kind, flags: u16) -> Result<Body, PacketError> {
    let refused = flags & REFUSED != 0;
    let last = flags & LAST != 0;
    let has_data = flags & HAS_DATA != 0;
    Ok(match kind {
        Kind::Eager => {
            let fields: &layout::Eager = transmute_ref!(bytes);
            let acknowledge = (flags & ACKNOWLEDGE != 0).then(|| Transfer(fields.transfer.get()));
            decode_eager(fields, flags, acknowledge)
        }
        Kind::More => {
            let fields: &layout::More = transmute_ref!(bytes);
            Body::More { offset: fields.offset.get() }
        }
        Kind::Rendezvous => {
            let fields: &layout::Rendezvous = transmute_ref!(bytes);
            Body::Rendezvous {
                space: decode_space(flags),
                tag: fields.tag.get(),
                data: has_data.then(|| fields.data.get()).into(),
                length: fields.length.get(),
                address: RemoteAddress::without_key(fields.address.get()),
                transfer: Transfer(fields.transfer.get()),
                sender: AnnouncementMarks::new(flags & HELD != 0, flags & ACKNOWLEDGE != 0),
            }
        }
        Kind::Ask => {
            let fields: &layout::Ask = transmute_ref!(bytes);
            Body::Ask {
                space: decode_space(flags),
                tag: fields.tag.get(),
                ignore: fields.ignore.get(),
                carry_bytes: fields.carry_bytes.get(),
                look: flags & LOOK != 0,
            }
        }
        Kind::Offer => {
            let fields: &layout::Rendezvous = transmute_ref!(bytes);
            Body::Offer {
                space: decode_space(flags),
                tag: fields.tag.get(),
                data: has_data.then(|| fields.data.get()).into(),
                length: fields.length.get(),
                address: RemoteAddress::without_key(fields.address.get()),
                transfer: Transfer(fields.transfer.get()),
                seen: flags & SEEN != 0,
            }
        }
        Kind::EagerOffer => {
            let fields: &layout::Eager = transmute_ref!(bytes);
            Body::EagerOffer {
                space: decode_space(flags),
                tag: fields.tag.get(),
                data: has_data.then(|| fields.data.get()).into(),
                length: fields.length.get(),
                transfer: Transfer(fields.transfer.get()),
            }
        }
        Kind::NoMatch => Body::NoMatch,
        Kind::Resume => {
            let fields: &layout::Resume = transmute_ref!(bytes);
            Body::Resume { count: fields.count.get() }
        }
        Kind::Claimed => {
            let fields: &layout::Claimed = transmute_ref!(bytes);
            Body::Claimed { transfer: Transfer(fields.transfer.get()) }
        }
        Kind::Credit => Body::Credit,
        Kind::Finished => {
            let fields: &layout::Finished = transmute_ref!(bytes);
            Body::Finished { transfer: Transfer(fields.transfer.get()), count: fields.count.get(), refused }
        }
        Kind::Fetch => {
            let fields: &layout::Fetch = transmute_ref!(bytes);
            Body::Fetch {
                transfer: Transfer(fields.transfer.get()),
                reply: Transfer(fields.reply.get()),
                length: fields.length.get(),
            }
        }
        Kind::Piece => {
            let fields: &layout::Piece = transmute_ref!(bytes);
            Body::Piece { transfer: Transfer(fields.transfer.get()), offset: fields.offset.get(), last }
        }
        Kind::Write => {
            let fields: &layout::Write = transmute_ref!(bytes);
            let left = if last { 0 } else { fields.left_or_data.get() };
            if !last && has_data {
                return Err(PacketError::Flags { have: flags, allowed: kind.flags() & !HAS_DATA });
            }
            if !last && left == 0 {
                return Err(PacketError::NothingLeft);
            }
            Body::Write {
                transfer: Transfer(fields.transfer.get()),
                key: fields.key.get(),
                offset: fields.offset.get(),
                left,
                data: has_data.then(|| fields.left_or_data.get()),
            }
        }
        Kind::Read => {
            let fields: &layout::Range = transmute_ref!(bytes);
            Body::Read {
                transfer: Transfer(fields.transfer.get()),
                key: fields.key.get(),
                offset: fields.offset.get(),
                length: fields.length.get(),
            }
        }
        Kind::Locate => {
            let fields: &layout::Range = transmute_ref!(bytes);
            Body::Locate {
                transfer: Transfer(fields.transfer.get()),
                key: fields.key.get(),
                offset: fields.offset.get(),
                length: fields.length.get(),
                write: flags & FOR_WRITING != 0,
            }
        }
        Kind::Located => {
            let fields: &layout::Located = transmute_ref!(bytes);
            Body::Located {
                transfer: Transfer(fields.transfer.get()),
                key: fields.key.get(),
                offset: fields.offset.get(),
                address: RemoteAddress::without_key(fields.address.get()),
                refused,
            }
        }
        Kind::Written => {
            let fields: &layout::Written = transmute_ref!(bytes);
            Body::Written { data: fields.data.get(), bytes: fields.length.get() }
        }
        Kind::Goodbye => Body::Goodbye,
        Kind::ReturnRequest => Body::ReturnRequest,
        Kind::ReturnResponse => {
            let fields: &layout::ReturnResponse = transmute_ref!(bytes);
            Body::ReturnResponse { credits: fields.credits.get() }
        }
        Kind::Detach => Body::Detach,
        Kind::Atomic | Kind::AtomicResult | Kind::AtomicVector | Kind::AtomicVectorResult => {
            Body::Offloaded(Offloaded::Atomic(decode_atomic(bytes, kind, flags)?))
        }
        Kind::GroupJoined
        | Kind::GroupPart
        | Kind::GroupTaken
        | Kind::GroupFailed
        | Kind::GroupBarrier
        | Kind::GroupComplete => Body::Offloaded(Offloaded::Group(decode_group(bytes, kind, refused)?)),
    })
}

fn decode_atomic(bytes: &[u8; BODY_BYTES], kind: Kind, flags: u16) -> Result<AtomicPacket, PacketError> {
    Ok(match kind {
        Kind::Atomic => {
            let fields: &layout::Atomic = transmute_ref!(bytes);
            let (key, offset) = (fields.key.get(), fields.offset.get());
            AtomicPacket::request(key, offset, decode_update(fields)?, flags & FETCH != 0)
        }
        Kind::AtomicVector => {
            let fields: &layout::AtomicVector = transmute_ref!(bytes);
            let layout::AtomicVector { operation, word_type, .. } = *fields;
            let combination = decode_operation(operation, word_type)
                .map(|(operation, word_type)| Combination { operation, word_type })
                .filter(|it| it.operation.has_type(it.word_type) && !it.operation.compares())
                .ok_or(PacketError::Word { operation, word_type })?;
            let (key, offset, bytes) = (fields.key.get(), fields.offset.get(), fields.length.get());
            let update = VectorUpdate { key, offset, bytes, combination };
            AtomicPacket::Vector { update, fetch: flags & FETCH != 0, at: fields.at.get() }
        }
        Kind::AtomicVectorResult => {
            let fields: &layout::AtomicVectorResult = transmute_ref!(bytes);
            AtomicPacket::VectorResult { bytes: fields.length.get(), at: fields.at.get() }
        }
        _ => {
            let fields: &layout::AtomicResult = transmute_ref!(bytes);
            AtomicPacket::Result { old: fields.old.get(), refused: flags & REFUSED != 0 }
        }
    })
}

fn decode_group(bytes: &[u8; BODY_BYTES], kind: Kind, refused: bool) -> Result<GroupPacket, PacketError> {
    let joined: &layout::GroupJoined = transmute_ref!(bytes);
    let group = joined.group.get(); // every kind begins with it
    Ok(match kind {
        Kind::GroupPart => {
            let fields: &layout::GroupPart = transmute_ref!(bytes);
            let (operation, blocks) = decode_collective(fields)?;
            GroupPacket::Part { group, operation, blocks, offset: fields.offset.get() }
        }
        Kind::GroupBarrier => {
            GroupPacket::Part { group, operation: Operation::Barrier, blocks: 1, offset: 0 }
        }
        Kind::GroupTaken => GroupPacket::Taken { group, refused },
        Kind::GroupFailed => {
            let fields: &layout::GroupFailed = transmute_ref!(bytes);
            let fault = PeerFault::try_read_from_bytes(&[fields.fault])
                .map_err(|_| PacketError::Fault { have: fields.fault })?;
            GroupPacket::Failed { group, member: fields.member.get(), fault }
        }
        other => GroupPacket::Joined { group, all: other == Kind::GroupComplete },
    })
}

/// The operation, and how many blocks its sender sends.
fn decode_collective(fields: &layout::GroupPart) -> Result<(Operation, u16), PacketError> {
    let layout::GroupPart { operation, word_type, collective, .. } = *fields;
    let (bytes, root) = (fields.length.get(), fields.root.get());
    let blocks = u16::from_le_bytes([operation, word_type]);
    let vector = || decode_combination(operation, word_type).map(|combination| Vector { bytes, combination });
    match collective {
        layout::REDUCE => vector().map(|vector| (Operation::Reduce(vector), 1)),
        layout::ALL_REDUCE => vector().map(|vector| (Operation::AllReduce(vector), 1)),
        layout::BROADCAST => Ok((Operation::Broadcast { root, bytes }, 1)),
        layout::EXCHANGE => Ok((Operation::Exchange { distance: root, bytes }, 1)),
        layout::GATHER => Ok((Operation::Gather { root, bytes }, blocks)),
        layout::SCATTER => Ok((Operation::Scatter { root, bytes }, blocks)),
        layout::ALL_GATHER => Ok((Operation::AllGather { bytes }, blocks)),
        layout::ALL_TO_ALL => Ok((Operation::AllToAll { bytes }, 1)),
        have => Err(PacketError::Collective { have }),
    }
}

fn decode_combination(operation: u8, word_type: u8) -> Result<Combination, PacketError> {
    decode_operation(operation, word_type)
        .map(|(operation, word_type)| Combination { operation, word_type })
        .filter(|combination| combination.is_valid())
        .ok_or(PacketError::Word { operation, word_type })
}

fn decode_operation(operation: u8, word_type: u8) -> Option<(WordOperation, WordType)> {
    let operation = WordOperation::try_read_from_bytes(&[operation]).ok();
    operation.zip(WordType::try_read_from_bytes(&[word_type]).ok())
}

fn decode_update(fields: &layout::Atomic) -> Result<WordUpdate, PacketError> {
    let layout::Atomic { operation, word_type, .. } = *fields;
    let (operand, compare) = (fields.operand.get(), fields.compare.get());
    decode_operation(operation, word_type)
        .map(|(operation, word_type)| WordUpdate { operation, word_type, operand, compare })
        .filter(WordUpdate::is_valid)
        .ok_or(PacketError::Word { operation, word_type })
}
