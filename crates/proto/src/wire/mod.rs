//! The wire format of packet headers, for links with slots of 64 bytes.
//!
//! ```text
//!  0  u32  sequence        the link's: written last, it publishes the slot
//!  4  u8   version << 4    1
//!  5  u8   kind
//!  6  u16  flags           kind-specific, see below
//!  8  u16  epoch
//! 10  u16  credit packets read
//! 12  u32  granted total
//! 16  u32  origin
//! 20  u32  number
//! 24  u32  payload bytes
//! 28  ..   by kind, to byte 32 (more), 48 (eager), 56 or 64
//! ```
//! All fields are little-endian. This file does not read or write the sequence, and does not know payloads.

use crate::event::Transfer;
use crate::packet::{Body, Marks, Packet, Space};

/// Version of the format. Attach refuses a mailbox of another version; `decode` rejects a packet of another version.
pub const VERSION: u8 = 1;

/// Bytes of a header slot.
pub const SLOT_BYTES: usize = 64;

const TAGGED: u16 = 1 << 0;
const HAS_DATA: u16 = 1 << 1;
const ACKNOWLEDGE: u16 = 1 << 2;
const LAST: u16 = 1 << 3;
const REFUSED: u16 = 1 << 4;
const FOR_WRITING: u16 = 1 << 5;
const RENDEZVOUS_ONLY: u16 = 1 << 6;
const BACKLOGGED: u16 = 1 << 7;
const KNOWN_FLAGS: u16 = (1 << 8) - 1;

const EAGER: u8 = 1;
const MORE: u8 = 2;
const RENDEZVOUS: u8 = 3;
const CREDIT: u8 = 4;
const FINISHED: u8 = 5;
const FETCH: u8 = 6;
const PIECE: u8 = 7;
const WRITE: u8 = 8;
const READ: u8 = 9;
const LOCATE: u8 = 10;
const LOCATED: u8 = 11;
const WRITTEN: u8 = 12;
const GOODBYE: u8 = 13;
const RETURN_REQUEST: u8 = 14;
const RETURN_RESPONSE: u8 = 15;
const DETACH: u8 = 16;

/// Why a header is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// Another version of the format.
    #[error("packet version {have}, this is version {VERSION}")]
    Version {
        /// The value in the header.
        have: u8,
    },
    /// No such kind.
    #[error("packet kind {have}, known are 1 to {DETACH}")]
    Kind {
        /// The value in the header.
        have: u8,
    },
    /// Unknown flag bits.
    #[error("packet flags {have:#06x}, known are {KNOWN_FLAGS:#06x}")]
    Flags {
        /// The value in the header.
        have: u16,
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
}

type Slot = [u8; SLOT_BYTES];

#[inline(always)]
fn put<const N: usize>(slot: &mut Slot, at: usize, bytes: [u8; N]) {
    slot[at..at + N].copy_from_slice(&bytes);
}
#[inline(always)]
fn take<const N: usize>(slot: &Slot, at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&slot[at..at + N]);
    bytes
}
#[inline(always)]
fn take_u32(slot: &Slot, at: usize) -> u32 {
    u32::from_le_bytes(take(slot, at))
}
#[inline(always)]
fn take_u64(slot: &Slot, at: usize) -> u64 {
    u64::from_le_bytes(take(slot, at))
}

/// The header of an eager packet without acknowledgement, which most packets are: bytes 4 to 7, and the next five words
/// of eight bytes. For writers that store them into shared memory word by word. Small stores that are read back in
/// larger loads would stall until the core's store buffer has drained. `None`: use [`encode`].
#[inline(always)]
pub fn eager_words(packet: &Packet) -> Option<(u32, [u64; 5])> {
    let Body::Eager { space, tag, data, length, acknowledge: None } = packet.body else { return None };
    let flags = mark_flags(packet.marks) | space_flag(space) | data_flag(data);
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let first = u32::from(VERSION << 4) | u32::from(EAGER) << 8 | u32::from(flags) << 16;
    let counts = u32::from(packet.epoch) | u32::from(packet.credit_packets_read) << 16;
    let words = [
        pair(counts, packet.granted_total),
        pair(packet.origin, packet.number),
        pair(packet.payload_bytes, length),
        tag,
        data.unwrap_or(0),
    ];
    Some((first, words))
}

/// Writes the header of `packet` into the first bytes of `slot`; the payload follows at
/// [`crate::Geometry::header_bytes`] of [`crate::Geometry::SHARED_MEMORY`].
pub fn encode(packet: &Packet, slot: &mut Slot) {
    let mut flags = 0;
    let kind = match packet.body {
        Body::Eager { space, tag, data, length, acknowledge } => {
            flags |= space_flag(space) | data_flag(data);
            put(slot, 28, length.to_le_bytes());
            put(slot, 32, tag.to_le_bytes());
            put(slot, 40, data.unwrap_or(0).to_le_bytes());
            if let Some(transfer) = acknowledge {
                flags |= ACKNOWLEDGE;
                put(slot, 48, transfer.0.to_le_bytes());
            }
            EAGER
        }
        Body::More { offset } => {
            put(slot, 28, offset.to_le_bytes());
            MORE
        }
        Body::Rendezvous { space, tag, data, length, address, transfer } => {
            flags |= space_flag(space) | data_flag(data);
            put(slot, 28, transfer.0.to_le_bytes());
            put(slot, 32, tag.to_le_bytes());
            put(slot, 40, data.unwrap_or(0).to_le_bytes());
            put(slot, 48, length.to_le_bytes());
            put(slot, 56, address.to_le_bytes());
            RENDEZVOUS
        }
        Body::Credit => CREDIT,
        Body::Finished { transfer, count, refused } => {
            flags |= if refused { REFUSED } else { 0 };
            put(slot, 28, transfer.0.to_le_bytes());
            put(slot, 32, count.to_le_bytes());
            FINISHED
        }
        Body::Fetch { transfer, reply, length } => {
            put(slot, 28, transfer.0.to_le_bytes());
            put(slot, 32, reply.0.to_le_bytes());
            put(slot, 40, length.to_le_bytes());
            FETCH
        }
        Body::Piece { transfer, offset, last } => {
            flags |= if last { LAST } else { 0 };
            put(slot, 28, transfer.0.to_le_bytes());
            put(slot, 32, offset.to_le_bytes());
            PIECE
        }
        Body::Write { transfer, key, offset, left, data } => {
            flags |= data_flag(data) | if left == 0 { LAST } else { 0 };
            put(slot, 28, transfer.0.to_le_bytes());
            put(slot, 32, key.to_le_bytes());
            put(slot, 40, offset.to_le_bytes());
            put(slot, 48, if left == 0 { data.unwrap_or(0) } else { left }.to_le_bytes());
            WRITE
        }
        Body::Read { transfer, key, offset, length } => {
            put(slot, 28, transfer.0.to_le_bytes());
            put(slot, 32, key.to_le_bytes());
            put(slot, 40, offset.to_le_bytes());
            put(slot, 48, length.to_le_bytes());
            READ
        }
        Body::Locate { transfer, key, offset, length, write } => {
            flags |= if write { FOR_WRITING } else { 0 };
            put(slot, 28, transfer.0.to_le_bytes());
            put(slot, 32, key.to_le_bytes());
            put(slot, 40, offset.to_le_bytes());
            put(slot, 48, length.to_le_bytes());
            LOCATE
        }
        Body::Located { transfer, key, offset, address, refused } => {
            flags |= if refused { REFUSED } else { 0 };
            put(slot, 28, transfer.0.to_le_bytes());
            put(slot, 32, key.to_le_bytes());
            put(slot, 40, offset.to_le_bytes());
            put(slot, 48, address.to_le_bytes());
            LOCATED
        }
        Body::Goodbye => GOODBYE,
        Body::ReturnRequest => RETURN_REQUEST,
        Body::ReturnResponse { credits } => {
            put(slot, 28, credits.to_le_bytes());
            RETURN_RESPONSE
        }
        Body::Detach => DETACH,
        Body::Written { data, bytes } => {
            put(slot, 32, data.to_le_bytes());
            put(slot, 40, bytes.to_le_bytes());
            WRITTEN
        }
    };
    let flags = mark_flags(packet.marks) | flags;
    put(slot, 4, [VERSION << 4, kind]);
    put(slot, 6, flags.to_le_bytes());
    put(slot, 8, packet.epoch.to_le_bytes());
    put(slot, 10, packet.credit_packets_read.to_le_bytes());
    put(slot, 12, packet.granted_total.to_le_bytes());
    put(slot, 16, packet.origin.to_le_bytes());
    put(slot, 20, packet.number.to_le_bytes());
    put(slot, 24, packet.payload_bytes.to_le_bytes());
}

#[inline(always)]
fn space_flag(space: Space) -> u16 {
    if space == Space::Tagged { TAGGED } else { 0 }
}
#[inline(always)]
fn mark_flags(marks: Marks) -> u16 {
    (if marks.rendezvous_only { RENDEZVOUS_ONLY } else { 0 })
        | (if marks.backlogged { BACKLOGGED } else { 0 })
}
#[inline(always)]
fn data_flag(data: Option<u64>) -> u16 {
    if data.is_some() { HAS_DATA } else { 0 }
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
    let [version, kind] = take(slot, 4);
    if version != VERSION << 4 {
        return Err(PacketError::Version { have: version >> 4 });
    }
    let flags = u16::from_le_bytes(take(slot, 6));
    if flags & !KNOWN_FLAGS != 0 {
        return Err(PacketError::Flags { have: flags });
    }
    let payload_bytes = take_u32(slot, 24);
    // The most common kind, without a jump table.
    if kind == EAGER {
        let length_bytes = take_u32(slot, 28);
        if payload_bytes > max_payload_bytes {
            return Err(PacketError::Payload { have_bytes: payload_bytes, allowed_bytes: max_payload_bytes });
        }
        if payload_bytes > length_bytes {
            return Err(PacketError::Length { have_bytes: payload_bytes, length_bytes });
        }
        packet.body = eager(slot, flags);
    } else if kind == CREDIT && payload_bytes == 0 {
        packet.body = Body::Credit;
    } else {
        packet.body = decode_other(slot, kind, flags, payload_bytes, max_payload_bytes)?;
    }
    packet.epoch = u16::from_le_bytes(take(slot, 8));
    packet.credit_packets_read = u16::from_le_bytes(take(slot, 10));
    packet.granted_total = take_u32(slot, 12);
    packet.origin = take_u32(slot, 16);
    packet.number = take_u32(slot, 20);
    packet.payload_bytes = payload_bytes;
    packet.marks =
        Marks { rendezvous_only: flags & RENDEZVOUS_ONLY != 0, backlogged: flags & BACKLOGGED != 0 };
    Ok(())
}

#[inline(always)]
fn space_of(flags: u16) -> Space {
    if flags & TAGGED != 0 { Space::Tagged } else { Space::Untagged }
}

#[inline(always)]
fn eager(slot: &Slot, flags: u16) -> Body {
    Body::Eager {
        space: space_of(flags),
        tag: take_u64(slot, 32),
        data: (flags & HAS_DATA != 0).then(|| take_u64(slot, 40)),
        length: take_u32(slot, 28),
        acknowledge: (flags & ACKNOWLEDGE != 0).then(|| Transfer(take_u32(slot, 48))),
    }
}

/// The body of all kinds but the most common, with its payload size checked.
#[inline(never)]
fn decode_other(
    slot: &Slot,
    kind: u8,
    flags: u16,
    payload_bytes: u32,
    max_payload_bytes: u32,
) -> Result<Body, PacketError> {
    let body = body_of_other(slot, kind, flags)?;
    let allowed_bytes = match body {
        Body::More { .. } | Body::Piece { .. } | Body::Write { .. } => max_payload_bytes,
        _ => 0,
    };
    match payload_bytes > allowed_bytes {
        true => Err(PacketError::Payload { have_bytes: payload_bytes, allowed_bytes }),
        false => Ok(body),
    }
}

fn body_of_other(slot: &Slot, kind: u8, flags: u16) -> Result<Body, PacketError> {
    let space = space_of(flags);
    let last = flags & LAST != 0;
    let refused = flags & REFUSED != 0;
    let data = |at| (flags & HAS_DATA != 0).then(|| take_u64(slot, at));
    let transfer = Transfer(take_u32(slot, 28));
    Ok(match kind {
        MORE => Body::More { offset: transfer.0 },
        RENDEZVOUS => Body::Rendezvous {
            space,
            tag: take_u64(slot, 32),
            data: data(40),
            length: take_u64(slot, 48),
            address: take_u64(slot, 56),
            transfer,
        },
        CREDIT => Body::Credit,
        FINISHED => Body::Finished { transfer, count: take_u32(slot, 32), refused },
        FETCH => Body::Fetch { transfer, reply: Transfer(take_u32(slot, 32)), length: take_u64(slot, 40) },
        PIECE => Body::Piece { transfer, offset: take_u64(slot, 32), last },
        WRITE => {
            let left = if last { 0 } else { take_u64(slot, 48) };
            if !last && left == 0 {
                return Err(PacketError::Flags { have: flags });
            }
            let data = if last { data(48) } else { None };
            Body::Write { transfer, key: take_u64(slot, 32), offset: take_u64(slot, 40), left, data }
        }
        READ => Body::Read {
            transfer,
            key: take_u64(slot, 32),
            offset: take_u64(slot, 40),
            length: take_u64(slot, 48),
        },
        LOCATE => Body::Locate {
            transfer,
            key: take_u64(slot, 32),
            offset: take_u64(slot, 40),
            length: take_u64(slot, 48),
            write: flags & FOR_WRITING != 0,
        },
        LOCATED => Body::Located {
            transfer,
            key: take_u64(slot, 32),
            offset: take_u64(slot, 40),
            address: take_u64(slot, 48),
            refused,
        },
        WRITTEN => Body::Written { data: take_u64(slot, 32), bytes: take_u64(slot, 40) },
        GOODBYE => Body::Goodbye,
        DETACH => Body::Detach,
        RETURN_REQUEST => Body::ReturnRequest,
        RETURN_RESPONSE => Body::ReturnResponse { credits: transfer.0 },
        have => return Err(PacketError::Kind { have }),
    })
}
