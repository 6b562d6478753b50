//! The bytes of packet headers, as structures of little-endian numbers. It also has the kinds of packets ([`Kind`])
//! with their names, lengths and permitted flags, and the list of all flags.
//!
//! Every structure has alignment 1, so any bytes of its length can be viewed as it. The tables of the reference page of
//! the packet format are made from the documentation of the items in this file (`weir reference pages`).

use super::SLOT_BYTES;
use core::mem::{offset_of, size_of};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// A field of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name in the code.
    pub name: &'static str,
    /// Its offset in the packet, or in the extension. Unit: bytes.
    pub offset: usize,
    /// Its length. Unit: bytes.
    pub bytes: usize,
    /// Its meaning.
    pub meaning: &'static str,
}

/// A structure of a header. Its fields are without gaps, and unused bytes follow up to `length`. In a packet it begins
/// at byte `first`.
macro_rules! structure {
    (
        $(#[doc = $about:literal])*
        $name:ident($first:expr, $length:expr) { $($(#[doc = $doc:literal])* $field:ident: $type:ty,)* }
    ) => {
        $(#[doc = $about])*
        #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(C)]
        pub struct $name {
            $($(#[doc = $doc])* pub $field: $type,)*
            /// Written as 0, not read.
            pub unused: [u8; $length - $name::FIELD_BYTES],
        }

        impl $name {
            /// Length of all fields. Unit: bytes.
            pub const FIELD_BYTES: usize = 0 $(+ size_of::<$type>())*;
            /// The fields.
            pub const FIELDS: &'static [Field] = &[$(Field {
                name: stringify!($field),
                offset: $first + offset_of!($name, $field),
                bytes: size_of::<$type>(),
                meaning: concat!($($doc),*),
            },)*];
        }
    };
}

pub(super) use structure;

/// Offset of the fields of a kind: the length of [`Common`]. Unit: bytes.
pub const COMMON_BYTES: usize = Common::FIELD_BYTES;
/// Most bytes of the fields of a kind.
pub const BODY_BYTES: usize = SLOT_BYTES - COMMON_BYTES;

/// The header of a packet, as a whole slot. It may include payload.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Header {
    /// The fields of every packet.
    pub common: Common,
    /// The fields of its kind.
    pub body: [u8; BODY_BYTES],
}

structure! {
    /// The fields of every packet.
    Common(0, Common::FIELD_BYTES) {
        /// Belongs to the link; in shared memory it publishes the slot, and the sender writes it last.
        word: U32,
        /// Version of the format.
        version: u8,
        /// Number of the kind.
        kind: u8,
        /// Flags, see below.
        flags: U16,
        /// The destination's lane lease to which the credit packets read and the granted total refer.
        epoch: U16,
        /// `credit` packets of the destination that were read so far, modulo 2^16.
        credit_packets_read: U16,
        /// Slots granted to the destination so far, modulo 2^32.
        granted_total: U32,
        /// Slots that the sender has spent or wants, modulo 2^32; 0 if its scheme does not say.
        wanted_total: U32,
        /// Message number (`ask`, `resume`, `claimed`: the destination's) or operation number; else 0.
        number: U32,
        /// Payload in this packet, at most 65,535.
        payload_bytes: U32,
    }
}

structure! {
    /// The fields of `eager` and `eager offer`. An `eager` without `acknowledge` has no transfer: payload begins there.
    Eager(COMMON_BYTES, BODY_BYTES) {
        /// Length of the whole message, bytes; at least the payload bytes of this packet.
        length: U32,
        /// Tag.
        tag: U64,
        /// Completion data, if `has data`.
        data: U64,
        /// The sender's transfer, in `eager offer` and if `acknowledge`.
        transfer: U32,
    }
}

structure! {
    /// The fields of `more`.
    More(COMMON_BYTES, BODY_BYTES) {
        /// Offset of the payload in the message, bytes.
        offset: U32,
    }
}

structure! {
    /// The fields of `rendezvous` and `offer`.
    Rendezvous(COMMON_BYTES, BODY_BYTES) {
        /// The sender's transfer.
        transfer: U32,
        /// Tag.
        tag: U64,
        /// Completion data, if `has data`.
        data: U64,
        /// Length of the message, bytes.
        length: U64,
        /// Address at the sender, or offset in registered memory. 0, and no remote key: use `fetch`.
        address: U64,
    }
}

structure! {
    /// The fields of `ask`.
    Ask(COMMON_BYTES, BODY_BYTES) {
        /// Wanted tag.
        tag: U64,
        /// Bits of the tag that the match ignores.
        ignore: U64,
        /// Longest message that the answer may carry, bytes; 0: none.
        carry_bytes: U32,
    }
}

structure! {
    /// The fields of `resume`.
    Resume(COMMON_BYTES, BODY_BYTES) {
        /// Number of messages to announce again, at least 1.
        count: U32,
    }
}

structure! {
    /// The fields of `claimed`.
    Claimed(COMMON_BYTES, BODY_BYTES) {
        /// The destination's transfer, from its `offer`.
        transfer: U32,
    }
}

structure! {
    /// The fields of kinds without fields of their own.
    Empty(COMMON_BYTES, BODY_BYTES) {}
}

structure! {
    /// The fields of `finished`.
    Finished(COMMON_BYTES, BODY_BYTES) {
        /// First transfer of the destination that is complete.
        transfer: U32,
        /// Number of complete transfers from there on, at least 1.
        count: U32,
    }
}

structure! {
    /// The fields of `fetch`.
    Fetch(COMMON_BYTES, BODY_BYTES) {
        /// The destination's transfer, from its `rendezvous`.
        transfer: U32,
        /// Transfer of the packet's sender; the pieces name it.
        reply: U32,
        /// Length to send, bytes.
        length: U64,
    }
}

structure! {
    /// The fields of `piece`.
    Piece(COMMON_BYTES, BODY_BYTES) {
        /// The destination's transfer.
        transfer: U32,
        /// Offset of the payload in the requested range, bytes.
        offset: U64,
    }
}

structure! {
    /// The fields of `write`.
    Write(COMMON_BYTES, BODY_BYTES) {
        /// The sender's transfer; `finished` names it after the last packet.
        transfer: U32,
        /// Key of the destination's memory region.
        key: U64,
        /// Offset in the region, bytes.
        offset: U64,
        /// Bytes of this write that follow, not 0; with `last`: completion data, if `has data`.
        left_or_data: U64,
    }
}

structure! {
    /// The fields of `read` and `locate`.
    Range(COMMON_BYTES, BODY_BYTES) {
        /// The sender's transfer.
        transfer: U32,
        /// Key of the destination's memory region.
        key: U64,
        /// Offset in the region, bytes.
        offset: U64,
        /// Length, bytes.
        length: U64,
    }
}

structure! {
    /// The fields of `located`.
    Located(COMMON_BYTES, BODY_BYTES) {
        /// The destination's transfer.
        transfer: U32,
        /// Key of the sender's memory region.
        key: U64,
        /// Offset in the region, bytes.
        offset: U64,
        /// Address in the sender's process, or offset in registered memory; 0 if `refused`.
        address: U64,
    }
}

structure! {
    /// The fields of `written`.
    Written(COMMON_BYTES, BODY_BYTES) {
        /// Completion data.
        data: U64,
        /// Length of the write, bytes.
        length: U64,
    }
}

structure! {
    /// The fields of `return response`.
    ReturnResponse(COMMON_BYTES, BODY_BYTES) {
        /// Credits given back, slots; may be 0.
        credits: U32,
    }
}

structure! {
    /// The fields of `atomic`.
    Atomic(COMMON_BYTES, BODY_BYTES) {
        /// Key of the destination's memory region.
        key: U64,
        /// Offset of the word in the region, bytes.
        offset: U64,
        /// Operand, in the lower bytes.
        operand: U64,
        /// Second operand of the operations 2 and 14 to 19, in the lower bytes; otherwise 0.
        compare: U64,
        /// The operation, by the number above.
        operation: u8,
        /// 0 u32, 1 i32, 2 u64, 3 i64, 4 binary32, 5 binary64; operations 6 to 8 and 19 only with 0 to 3.
        word_type: u8,
    }
}

structure! {
    /// The fields of `atomic result`.
    AtomicResult(COMMON_BYTES, BODY_BYTES) {
        /// The word before the change, in the lower bytes; 0 if `refused`, not wanted, or for a vector.
        old: U64,
    }
}

structure! {
    /// The fields of `atomic vector`.
    AtomicVector(COMMON_BYTES, BODY_BYTES) {
        /// Key of the destination's memory region.
        key: U64,
        /// Offset of the vector in the region, bytes.
        offset: U64,
        /// Length of the whole vector, bytes; at most 4,096.
        length: U32,
        /// Offset of the payload in the vector, bytes.
        at: U32,
        /// As in `atomic`, without those that have a compare value. A read has no payload.
        operation: u8,
        /// Type of a word, as in `atomic`.
        word_type: u8,
    }
}

structure! {
    /// The fields of `atomic vector result`.
    AtomicVectorResult(COMMON_BYTES, BODY_BYTES) {
        /// Length of all old words, bytes.
        length: U32,
        /// Offset of the payload in them, bytes.
        at: U32,
    }
}

structure! {
    /// The fields of `group joined`.
    GroupJoined(COMMON_BYTES, BODY_BYTES) {
        /// Number of the group, which its members agree on.
        group: U32,
    }
}

/// Values of the field `collective` of `group part`.
pub(super) const REDUCE: u8 = 0;
pub(super) const ALL_REDUCE: u8 = 1;
pub(super) const BROADCAST: u8 = 2;
pub(super) const EXCHANGE: u8 = 3;
pub(super) const GATHER: u8 = 4;
pub(super) const SCATTER: u8 = 5;
pub(super) const ALL_GATHER: u8 = 6;
pub(super) const ALL_TO_ALL: u8 = 7;

structure! {
    /// The fields of `group part`.
    GroupPart(COMMON_BYTES, BODY_BYTES) {
        /// Number of the group.
        group: U32,
        /// Length of the whole vector or block, bytes; at most 4,096; 16,384 where nothing is combined.
        length: U32,
        /// Offset of the payload in the vector, or in all blocks that the sender sends, bytes.
        offset: U32,
        /// 3 to 12 as in `atomic`; gather, scatter, all-gather: low byte of the blocks sent; otherwise 0.
        operation: u8,
        /// Type of an element, as in `atomic`; gather, scatter, all-gather: its high byte; otherwise 0.
        word_type: u8,
        /// 0 to 7: reduction, all-reduce, broadcast, exchange, gather, scatter, all-gather, all-to-all.
        collective: u8,
        /// Rank of the root of a broadcast, gather or scatter, distance of an exchange; otherwise 0.
        root: U32,
    }
}

structure! {
    /// The fields of `group complete`.
    GroupComplete(COMMON_BYTES, BODY_BYTES) {
        /// Number of the group.
        group: U32,
    }
}

structure! {
    /// The fields of `group barrier`.
    GroupBarrier(COMMON_BYTES, BODY_BYTES) {
        /// Number of the group.
        group: U32,
    }
}

structure! {
    /// The fields of `group taken`.
    GroupTaken(COMMON_BYTES, BODY_BYTES) {
        /// Number of the group.
        group: U32,
    }
}

structure! {
    /// The fields of `group failed`.
    GroupFailed(COMMON_BYTES, BODY_BYTES) {
        /// Number of the group.
        group: U32,
        /// Rank of the lost member in the group.
        member: U32,
        /// 0 died, 1 unreachable, 2 malformed packet, 3 closed or left, 4 not ready.
        fault: u8,
    }
}

/// A flag of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagInfo {
    /// Its bit.
    pub bit: u32,
    /// Its name.
    pub name: &'static str,
    /// Its meaning.
    pub meaning: &'static str,
}

/// The flags, each as a constant, and the list of them.
macro_rules! flags {
    ($($(#[doc = $doc:literal])* $flag:ident = $bit:literal, $name:literal;)*) => {
        $($(#[doc = $doc])* pub(super) const $flag: u16 = 1 << $bit;)*

        /// All flags, by bit.
        pub const FLAGS: &[FlagInfo] =
            &[$(FlagInfo { bit: $bit, name: $name, meaning: concat!($($doc),*) },)*];
    };
}

flags! {
    /// Sent by `fi_tsend`; otherwise by `fi_send`.
    TAGGED = 0, "tagged";
    /// The message carries completion data.
    HAS_DATA = 1, "has data";
    /// The sender waits for the match; `transfer` names its transfer.
    ACKNOWLEDGE = 2, "acknowledge";
    /// No further packet of this transfer follows.
    LAST = 3, "last";
    /// Bounds or rights, or a failed group.
    REFUSED = 4, "refused";
    /// The initiator writes; otherwise it reads.
    FOR_WRITING = 5, "for writing";
    /// The destination announces its messages and keeps their payload.
    RENDEZVOUS_ONLY = 6, "rendezvous only";
    /// The message waited for credit before it was sent.
    BACKLOGGED = 7, "backlogged";
    /// The sender keeps the envelope too; the receiver may drop it and ask later.
    HELD = 8, "held";
    /// The holder notes that the message was seen.
    LOOK = 9, "look";
    /// An earlier question with `look` has found the message.
    SEEN = 10, "seen";
    /// The sender wants the old words.
    FETCH = 12, "fetch";
}

/// A field behind the header, which is there if its flag is set. Only links whose packets are as long as they need to be have
/// it ([`super::encode_bytes`], [`super::decode_head`]). In a slot of shared memory it would be payload or the next packet, so
/// [`super::decode()`] refuses a packet with the flag ([`super::PacketError::Flags`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrailingField {
    /// Its flag.
    pub flag: FlagInfo,
    /// The kinds that can have it.
    pub kinds: &'static [Kind],
    /// Its length. It begins behind the header of the kind ([`Kind::header_bytes`]). Unit: bytes.
    pub bytes: usize,
}

impl TrailingField {
    /// Its offset in a packet of this kind. Unit: bytes.
    pub const fn offset(&self, kind: Kind) -> usize {
        kind.header_bytes(false)
    }
}

/// The remote key of announced memory, for links whose memory is registered.
pub const REMOTE_KEY: TrailingField = TrailingField {
    flag: FlagInfo {
        bit: 11,
        name: "has key",
        meaning: "The remote key of the memory at `address` follows the header.",
    },
    kinds: &[Kind::Rendezvous, Kind::Offer, Kind::Located],
    bytes: 8,
};
/// The flag of [`REMOTE_KEY`].
pub(super) const HAS_KEY: u16 = 1 << REMOTE_KEY.flag.bit;

/// The flags of packets of every kind.
pub(super) const MARKS: u16 = RENDEZVOUS_ONLY | BACKLOGGED;

/// The numbers of [`Kind`], for messages.
pub const KNOWN_KINDS: &str = "1 to 22, 32 to 39, 48 and 49";

/// The kinds of packets, with name, fields and flags of each. From 32 on they belong to machines beside the endpoint.
macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $kind:ident = $number:literal, $name:literal, $fields:ident, $flags:expr;)*) => {
        /// The kinds of packets.
        #[derive(TryFromBytes, Immutable, KnownLayout, Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[doc = $doc])* $kind = $number,)*
        }

        impl Kind {
            /// All kinds, by number.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind),*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$kind => $name,)* }
            }

            /// Its meaning.
            pub fn meaning(self) -> &'static str {
                match self { $(Kind::$kind => concat!($($doc),*),)* }
            }

            /// The fields behind those that every packet has.
            pub fn fields(self) -> &'static [Field] {
                match self { $(Kind::$kind => $fields::FIELDS,)* }
            }

            /// Length of these fields. Unit: bytes.
            const fn field_bytes(self) -> usize {
                match self { $(Kind::$kind => $fields::FIELD_BYTES,)* }
            }

            /// The flags that a packet of this kind can have.
            pub const fn flags(self) -> u16 {
                MARKS | match self { $(Kind::$kind => $flags,)* }
            }
        }
    };
}

kinds! {
    /// First packet of a message that is sent whole.
    Eager = 1, "eager", Eager, TAGGED | HAS_DATA | ACKNOWLEDGE;
    /// Next packet of the message that the last `eager` of this pair began.
    More = 2, "more", More, 0;
    /// Announcement of a message (RTS); the payload stays with the sender.
    Rendezvous = 3, "rendezvous", Rendezvous, TAGGED | HAS_DATA | HELD | ACKNOWLEDGE;
    /// Returns credits; has slots of its own.
    Credit = 4, "credit", Empty, 0;
    /// Transfers of the destination are complete (FIN).
    Finished = 5, "finished", Finished, REFUSED;
    /// Asks for the payload of a rendezvous in packets (CTS).
    Fetch = 6, "fetch", Fetch, 0;
    /// Payload that `fetch` or `read` asked for.
    Piece = 7, "piece", Piece, LAST;
    /// Payload of a remote write.
    Write = 8, "write", Write, LAST | HAS_DATA;
    /// Asks for the bytes of a remote read.
    Read = 9, "read", Range, 0;
    /// Asks for the address of a memory region, for a direct copy.
    Locate = 10, "locate", Range, FOR_WRITING;
    /// Answer to `locate`.
    Located = 11, "located", Located, REFUSED;
    /// The initiator wrote directly after `locate`; carries the completion data.
    Written = 12, "written", Written, 0;
    /// The sender closes its endpoint and takes no further message.
    Goodbye = 13, "goodbye", Empty, 0;
    /// Dynamic credits: asks for the credits above the guaranteed ones.
    ReturnRequest = 14, "return request", Empty, 0;
    /// Dynamic credits: the credits that the sender gives back.
    ReturnResponse = 15, "return response", ReturnResponse, 0;
    /// Last packet in this lane; the sender returns the lane and its credits.
    Detach = 16, "detach", Empty, 0;
    /// Asks a holder for its first match from this message number on.
    Ask = 17, "ask", Ask, TAGGED | LOOK;
    /// Answer to `ask`: the first match, which its sender holds until it is taken.
    Offer = 18, "offer", Rendezvous, TAGGED | HAS_DATA | SEEN;
    /// Answer to `ask`: no message that was sent before matches.
    NoMatch = 19, "no match", Empty, 0;
    /// Asks a holder to announce its first messages from this message number on again.
    Resume = 20, "resume", Resume, 0;
    /// The receiver keeps the envelope of an offered message.
    Claimed = 21, "claimed", Claimed, 0;
    /// Answer to `ask`: as `offer`, and carries the whole message.
    EagerOffer = 22, "eager offer", Eager, TAGGED | HAS_DATA;
    /// Asks to change a word of a memory region, and for the old word.
    Atomic = 32, "atomic", Atomic, FETCH;
    /// Answer to `atomic`, and to an `atomic vector` that is refused or fetches nothing.
    AtomicResult = 33, "atomic result", AtomicResult, REFUSED;
    /// The sender takes part in a group.
    GroupJoined = 34, "group joined", GroupJoined, 0;
    /// A vector of an operation of a group: combined so far, the result, what is broadcast, or a block.
    GroupPart = 35, "group part", GroupPart, 0;
    /// Answer to the last packet of a `group part`: its sender may use its memory again.
    GroupTaken = 36, "group taken", GroupTaken, REFUSED;
    /// A member of a group is lost: all its operations end.
    GroupFailed = 37, "group failed", GroupFailed, 0;
    /// The sender's step of a barrier of a group.
    GroupBarrier = 38, "group barrier", GroupBarrier, 0;
    /// All members below the sender in the tree have joined; from the parent: all members have.
    GroupComplete = 39, "group complete", GroupComplete, 0;
    /// Asks to change a vector of a region. The payload of one or more packets has the operands.
    AtomicVector = 48, "atomic vector", AtomicVector, FETCH;
    /// Answer to the last packet of an `atomic vector`: the old words.
    AtomicVectorResult = 49, "atomic vector result", AtomicVectorResult, 0;
}

impl Kind {
    /// Length of the header of a packet of this kind. Payload begins behind it. Unit: bytes.
    ///
    /// `acknowledged`: an `eager` packet with a transfer.
    pub const fn header_bytes(self, acknowledged: bool) -> usize {
        match self {
            Kind::Eager if !acknowledged => COMMON_BYTES + offset_of!(Eager, transfer),
            // One length for all of them, that of the longest.
            Kind::Eager
            | Kind::Piece
            | Kind::Write
            | Kind::GroupPart
            | Kind::EagerOffer
            | Kind::AtomicVector
            | Kind::AtomicVectorResult => COMMON_BYTES + Write::FIELD_BYTES,
            _ => COMMON_BYTES + self.field_bytes(),
        }
    }

    /// The kind with this number.
    pub fn of_number(number: u8) -> Option<Kind> {
        Kind::try_read_from_bytes(&[number]).ok()
    }

    /// Whether packets of this kind can have payload.
    pub const fn carries_payload(self) -> bool {
        matches!(
            self,
            Kind::Eager
                | Kind::More
                | Kind::Piece
                | Kind::Write
                | Kind::GroupPart
                | Kind::EagerOffer
                | Kind::AtomicVector
                | Kind::AtomicVectorResult
        )
    }
}

// A header leaves space for 8 bytes of payload in a cache line. The fields of kinds with payload end before it.
const _: () = {
    assert!(size_of::<Header>() == SLOT_BYTES);
    assert!(Kind::Eager.header_bytes(false) + 16 == SLOT_BYTES);
    assert!(Kind::Eager.header_bytes(true) + 8 == SLOT_BYTES);
    assert!(Eager::FIELD_BYTES <= Write::FIELD_BYTES && Piece::FIELD_BYTES <= Write::FIELD_BYTES);
    assert!(GroupPart::FIELD_BYTES <= Write::FIELD_BYTES);
    assert!(AtomicVector::FIELD_BYTES <= Write::FIELD_BYTES);
    assert!(
        REMOTE_KEY.offset(Kind::Rendezvous) == SLOT_BYTES && REMOTE_KEY.offset(Kind::Offer) == SLOT_BYTES
    );
    assert!(REMOTE_KEY.offset(Kind::Located) + REMOTE_KEY.bytes == SLOT_BYTES);
};
