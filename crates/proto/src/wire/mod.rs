//! The wire format of packet headers: layout, encoding and decoding. It also has the link extension, which a datagram
//! has in front of its packets ([`LinkExtension`]), and the frames between them ([`LinkFrame`]).
//!
//! [`layout`] has the bytes, as structures. [`encode()`] makes them from packets. [`decode()`] makes packets from bytes
//! that another process wrote. Neither reads or writes the word of the link, or knows payloads. A [`PacketError`] says
//! why bytes are no valid packet.
//! ```text
//! byte  0    4        28                       48 (eager)    32 (more)    56 (others with payload, acknowledged eager)
//!       word  common   fields of the kind       payload ...
//! ```

mod decode;
mod encode;
mod extension;
pub mod layout;
mod link_frame;

pub use decode::{decode, decode_bytes, decode_head, decode_into};
pub use encode::{encode, encode_bytes, encode_eager, header_bytes};
pub use extension::{
    EXTENSION_ASKS, EXTENSION_BYTES, EXTENSION_DELAY, EXTENSION_DELAY_SHIFT, LinkExtension, TAG_BYTES,
    VERIFICATION_AT, split_extension,
};
use layout::{KNOWN_KINDS, Kind};
pub use link_frame::{
    ATTACH_FRAME, CONTENTS_FRAME, CONTENTS_FRAME_BYTES, ContentsFrame, FILL_FRAME, Frame, GRANT_FRAME,
    LEASE_FRAME, LEAVE_FRAME, LINK_FRAME_BYTES, LinkFrame, REST_FRAME, WANT_FRAME, WANT_FRAME_BYTES,
    WantFrame,
};

/// Version of the format. Attach refuses a mailbox of another version; `decode` rejects a packet of another version.
pub const VERSION: u8 = 6;

/// Bytes of a header slot.
pub const SLOT_BYTES: usize = 64;

/// The longest header with the field behind it ([`encode_bytes`]). Unit: bytes.
pub const MOST_HEADER_BYTES: usize = SLOT_BYTES + layout::REMOTE_KEY.bytes;

/// Header of an `eager` packet without acknowledgement. Unit: bytes.
pub const EAGER_HEADER_BYTES: usize = Kind::Eager.header_bytes(false);
/// Header of a `more` packet. Unit: bytes.
pub const MORE_HEADER_BYTES: usize = Kind::More.header_bytes(false);
/// Header of a packet of another kind with payload. Unit: bytes.
pub const REMOTE_HEADER_BYTES: usize = Kind::Write.header_bytes(false);

/// The reason why a header is malformed.
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
    #[error("packet kind {have}, known are {KNOWN_KINDS}")]
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
    /// No such operation on a word, no such type, a bitwise operation on a float, or one that this kind does not have.
    #[error(
        "word operation {operation} on type {word_type}, allowed are operations 0 to 19 on types 0 to 5, but 6 to 8 and 19 only on 0 to 3, 2 and 14 to 19 only in `atomic`, and in `group part` only 3 to 12"
    )]
    Word {
        /// The operation in the header.
        operation: u8,
        /// The type in the header.
        word_type: u8,
    },
    /// No such operation of a group.
    #[error("operation {have} of a group, allowed are 0 to 7")]
    Collective {
        /// The number in the header.
        have: u8,
    },
    /// No such reason for the failure of a group.
    #[error("fault {have} of a group, allowed are 0 to 4")]
    Fault {
        /// The value in the header.
        have: u8,
    },
    /// More payload than a packet of this link may carry, or payload in a kind without payload.
    #[error("{have_bytes} payload bytes, allowed are 0 to {allowed_bytes}")]
    Payload {
        /// The value in the header.
        have_bytes: u32,
        /// The maximum.
        allowed_bytes: u32,
    },
    /// A first packet with more payload than the length of its message, or an eager offer without all of it.
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
