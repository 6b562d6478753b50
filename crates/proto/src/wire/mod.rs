//! The wire format of packet headers.
//!
//! [`layout`] has the bytes, as structures. This file makes them from packets, and packets from bytes that another
//! process wrote. It does not read or write the word of the link, and does not know payloads.
//! ```text
//! byte  0    4        28                       48 (eager)    32 (more)    56 (other kinds with payload)
//!       word  common   fields of the kind       payload ...
//! ```

mod extension;
pub mod layout;

use crate::event::Transfer;
use crate::packet::{Body, Marks, Packet, Space};
pub use extension::{EXTENSION_BYTES, LinkExtension, TAG_BYTES, split_extension};
use layout::{
    ACKNOWLEDGE, BACKLOGGED, BODY_BYTES, COMMON_BYTES, Common, FOR_WRITING, HAS_DATA, Header, Kind, LAST,
    MARKS, REFUSED, RENDEZVOUS_ONLY, TAGGED,
};
use zerocopy::{FromZeros, TryFromBytes, transmute, transmute_ref};

/// Version of the format. Attach refuses a mailbox of another version; `decode` rejects a packet of another version.
pub const VERSION: u8 = 2;

/// Bytes of a header slot.
pub const SLOT_BYTES: usize = 64;

/// Header of an `eager` packet without acknowledgement. Unit: bytes.
pub const EAGER_HEADER_BYTES: usize = Kind::Eager.header_bytes(false);
/// Header of a `more` packet. Unit: bytes.
pub const MORE_HEADER_BYTES: usize = Kind::More.header_bytes(false);
/// Header of a packet of another kind with payload. Unit: bytes.
pub const REMOTE_HEADER_BYTES: usize = Kind::Write.header_bytes(false);

/// Why a header is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// Fewer bytes than the header and the payload have.
    #[error("a packet of {have_bytes} bytes, needed are {need_bytes}")]
    Truncated {
        /// Length of the packet.
        have_bytes: usize,
        /// Length that it must have at least.
        need_bytes: usize,
    },
    /// Another version of the format.
    #[error("packet version {have}, allowed is {VERSION}")]
    Version {
        /// The value in the header.
        have: u8,
    },
    /// No such kind.
    #[error("packet kind {have}, known are 1 to {}", Kind::ALL.len())]
    Kind {
        /// The value in the header.
        have: u8,
    },
    /// Flag bits that are unknown, or that this kind does not have.
    #[error("packet flags {have:#06x}, allowed are {allowed:#06x}")]
    Flags {
        /// The value in the header.
        have: u16,
        /// All flags of this kind.
        allowed: u16,
    },
    /// More payload than a packet of this link may carry, or payload in a kind without payload.
    #[error("{have_bytes} payload bytes, allowed are 0 to {allowed_bytes}")]
    Payload {
        /// The value in the header.
        have_bytes: u32,
        /// The maximum.
        allowed_bytes: u32,
    },
    /// A first packet with more payload than the length of its message.
    #[error("{have_bytes} payload bytes in a message of {length_bytes}")]
    Length {
        /// Payload.
        have_bytes: u32,
        /// Length of the message.
        length_bytes: u32,
    },
    /// A `write` packet that is not the last, although no byte of the write is left.
    #[error("0 bytes left after a packet that is not the last of its write")]
    NothingLeft,
}

/// The first slot of a packet.
pub type Slot = [u8; SLOT_BYTES];

/// The header of `packet`, with 0 as the word of the link. Payload follows at [`crate::Geometry::header_bytes`] of
/// [`crate::Geometry::SHARED_MEMORY`].
pub fn encode(packet: &Packet) -> Slot {
    let (kind, flags, body) = encode_body(&packet.body);
    header(packet, kind, flags, body)
}

/// As [`encode`], inlined, for an eager packet without acknowledgement, which most packets are. Only the first
/// [`EAGER_HEADER_BYTES`] bytes are its header. `None`: another packet.
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
        Body::Rendezvous { space, tag, data, length, address, transfer } => {
            let fields = layout::Rendezvous {
                transfer: transfer.0.into(),
                tag: tag.into(),
                data: data.unwrap_or(0).into(),
                length: length.into(),
                address: address.into(),
                ..FromZeros::new_zeroed()
            };
            (Kind::Rendezvous, space_flag(space) | data_flag(data), transmute!(fields))
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
                address: address.into(),
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
    }
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

/// Decodes and checks a header. `max_payload_bytes` is the maximum for a packet of this link.
///
/// # Errors
/// [`PacketError`], with the value and what is allowed.
pub fn decode(slot: &Slot, max_payload_bytes: u32) -> Result<Packet, PacketError> {
    let mut packet = Packet::new(Body::Credit, 0);
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
    let eager: &layout::Eager = transmute_ref!(&header.body);
    // The two most common kinds, without a table.
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
    packet.epoch = common.epoch.get();
    packet.credit_packets_read = common.credit_packets_read.get();
    packet.granted_total = common.granted_total.get();
    packet.wanted_total = common.wanted_total.get();
    packet.number = common.number.get();
    packet.payload_bytes = payload_bytes;
    packet.marks =
        Marks { rendezvous_only: flags & RENDEZVOUS_ONLY != 0, backlogged: flags & BACKLOGGED != 0 };
    Ok(())
}

/// Decodes and checks the packet at the beginning of `bytes`, for links whose packets are as long as they need to be.
/// Returns the length of its header too; payload follows there.
///
/// # Errors
/// As [`decode`], and [`PacketError::Truncated`] if header or payload are longer than `bytes`.
pub fn decode_bytes(bytes: &[u8], max_payload_bytes: u32) -> Result<(Packet, usize), PacketError> {
    let have_bytes = bytes.len();
    let needs = |need_bytes| match have_bytes < need_bytes {
        true => Err(PacketError::Truncated { have_bytes, need_bytes }),
        false => Ok(()),
    };
    needs(COMMON_BYTES)?;
    let mut slot = [0; SLOT_BYTES];
    let head_bytes = have_bytes.min(SLOT_BYTES);
    slot[..head_bytes].copy_from_slice(&bytes[..head_bytes]);
    let header: &Header = transmute_ref!(&slot);
    let (kind, flags) = check(&header.common)?;
    let header_bytes = kind.header_bytes(flags & ACKNOWLEDGE != 0);
    needs(header_bytes)?;
    let packet = decode(&slot, max_payload_bytes)?;
    needs(header_bytes + packet.payload_bytes as usize)?;
    Ok((packet, header_bytes))
}

/// Checks version, kind and flags.
fn check(common: &Common) -> Result<(Kind, u16), PacketError> {
    if common.version != VERSION {
        return Err(PacketError::Version { have: common.version });
    }
    let kind =
        Kind::try_read_from_bytes(&[common.kind]).map_err(|_| PacketError::Kind { have: common.kind })?;
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
                data: has_data.then(|| fields.data.get()),
                length: fields.length.get(),
                address: fields.address.get(),
                transfer: Transfer(fields.transfer.get()),
            }
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
                address: fields.address.get(),
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
    })
}
