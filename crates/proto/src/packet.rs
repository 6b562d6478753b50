//! A packet as a value, and the slots that it fills. Every link carries the fields of a [`Packet`]. A [`Geometry`] says
//! how long headers are on a link and how many slots a packet needs. This file does not know the layout of a header.

use crate::event::Transfer;
use crate::offload::Offloaded;
use crate::wire;

/// The two matching spaces of libfabric: messages with tags and without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// `fi_send`, `fi_recv`.
    Untagged,
    /// `fi_tsend`, `fi_trecv`.
    Tagged,
}

/// One packet. It fills [`Geometry::packet_slots`] slots of the receiver's mailbox.
///
/// The first fields are in the order of the header (`wire::layout`), so that they are copied and compared together.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Packet {
    /// The lease of the destination in our mailbox that `granted_total` and `credit_packets_read` refer to, in its
    /// numbers. The destination ignores both if they refer to an earlier lease.
    pub epoch: u16,
    /// Explicit credit packets that the sender of this packet has read, modulo 2^16.
    pub credit_packets_read: u16,
    /// Credits granted to the destination for sending here, in all, modulo 2^32. Unit: slots.
    pub granted_total: u32,
    /// Slots that the sender of this packet has spent in its lane lease at the destination, and those that it still
    /// wants, modulo 2^32. 0: its scheme does not state its demand.
    pub wanted_total: u32,
    /// Message number of the pair, modulo 2^32. In `Ask`, `Resume` and `Claimed`: the number of a message of the
    /// destination. In packets of offloaded machines: number of the operation. 0 in all others.
    pub number: u32,
    /// Payload bytes in this packet.
    pub payload_bytes: u32,
    /// Flags of packets of every kind.
    pub marks: Marks,
    /// The fields of this kind of packet.
    pub body: Body,
}

/// The part of every packet about the destination's lease in our mailbox. Most packets repeat it, so it is one number to
/// compare: from the low end `epoch` and `credit_packets_read` with 16 bits each, and `granted_total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CreditUpdate(u64);

impl CreditUpdate {
    /// The update of these three.
    #[inline(always)]
    pub fn new(epoch: u16, credit_packets_read: u16, granted_total: u32) -> CreditUpdate {
        CreditUpdate(u64::from(epoch) | u64::from(credit_packets_read) << 16 | u64::from(granted_total) << 32)
    }

    /// [`Packet::epoch`].
    #[inline]
    pub fn epoch(self) -> u16 {
        self.0 as u16
    }

    /// [`Packet::credit_packets_read`].
    #[inline]
    pub fn credit_packets_read(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// Flags of packets of every kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The sender of this packet has no memory for unexpected payload. The destination sends its messages by rendezvous
    /// until a packet comes without this mark.
    pub rendezvous_only: bool,
    /// The packet has waited for credit (Liu & Panda: it went through the backlog).
    pub backlogged: bool,
}

/// Where an endpoint can access memory of a peer. The link to that peer chooses the values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Address in the peer's process, or offset in the registered memory.
    pub address: u64,
    /// Remote key of the registered memory. 0: the link needs none.
    pub key: u64,
}

impl RemoteAddress {
    /// The memory cannot be accessed, so packets carry its contents.
    pub const NONE: RemoteAddress = RemoteAddress { address: 0, key: 0 };

    /// An address of a link that needs no keys. 0: none.
    pub const fn without_key(address: u64) -> RemoteAddress {
        RemoteAddress { address, key: 0 }
    }

    /// Whether it is [`RemoteAddress::NONE`].
    #[inline]
    pub fn is_none(self) -> bool {
        self == RemoteAddress::NONE
    }
}

/// An `Option<u64>` in 9 bytes without alignment. It keeps [`Body`] small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, packed)]
pub struct PackedData {
    is_some: bool,
    value: u64,
}

impl From<Option<u64>> for PackedData {
    #[inline]
    fn from(data: Option<u64>) -> PackedData {
        PackedData { is_some: data.is_some(), value: data.unwrap_or(0) }
    }
}

impl From<PackedData> for Option<u64> {
    #[inline]
    fn from(data: PackedData) -> Option<u64> {
        data.is_some.then_some(data.value)
    }
}

/// What an announcement says about its sender, in one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnnouncementMarks(u8);

impl AnnouncementMarks {
    /// `held`: the sender keeps the envelope too, so the receiver may drop it and ask for it later. `awaits_match`: its send
    /// waits for the match. Otherwise a message of no bytes is finished when its envelope is kept.
    pub const fn new(held: bool, awaits_match: bool) -> AnnouncementMarks {
        AnnouncementMarks(held as u8 | (awaits_match as u8) << 1)
    }

    /// Whether the sender keeps the envelope too.
    pub const fn held(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether the send waits for the match.
    pub const fn awaits_match(self) -> bool {
        self.0 & 2 != 0
    }
}

/// The kind of a packet, and the fields of this kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Body {
    /// First packet of an eager message.
    Eager {
        /// Tagged or untagged.
        space: Space,
        /// 64-bit tag.
        tag: u64,
        /// Remote completion data.
        data: Option<u64>,
        /// Length of the whole message. Unit: bytes.
        length: u32,
        /// The sender's transfer that waits for the match (synchronous send).
        acknowledge: Option<Transfer>,
    },
    /// A further packet of the eager message that the last `Eager` of this pair started.
    More {
        /// Offset of its payload in the message.
        offset: u32,
    },
    /// A rendezvous announcement (RTS): the payload stays with the sender until a receive matches.
    Rendezvous {
        /// Tagged or untagged.
        space: Space,
        /// 64-bit tag.
        tag: u64,
        /// Remote completion data.
        data: PackedData,
        /// Length of the message. Unit: bytes.
        length: u64,
        /// Where the receiver can read the payload.
        address: RemoteAddress,
        /// The sender's transfer.
        transfer: Transfer,
        /// What the sender keeps and waits for.
        sender: AnnouncementMarks,
    },
    /// A question to a holder: which is its first message with number [`Packet::number`] or later that this pattern
    /// accepts?
    Ask {
        /// Tagged or untagged.
        space: Space,
        /// Wanted tag.
        tag: u64,
        /// Bits of the tag that the match ignores.
        ignore: u64,
        /// Longest message that the answer may carry as `EagerOffer`. 0: none, as the asker is a peek. Unit: bytes.
        carry_bytes: u32,
        /// The holder notes that the message was seen, and says whether it had been seen before.
        look: bool,
    },
    /// A holder's answer to `Ask`: its first match, which it holds until it is taken.
    Offer {
        /// Tagged or untagged.
        space: Space,
        /// 64-bit tag.
        tag: u64,
        /// Remote completion data.
        data: PackedData,
        /// Length of the message. Unit: bytes.
        length: u64,
        /// As in `Rendezvous`.
        address: RemoteAddress,
        /// The holder's transfer.
        transfer: Transfer,
        /// An earlier question with `look` has found it.
        seen: bool,
    },
    /// As `Offer`, and the packet carries the whole message. The holder holds it all the same, until it is taken.
    EagerOffer {
        /// Tagged or untagged.
        space: Space,
        /// 64-bit tag.
        tag: u64,
        /// Remote completion data.
        data: PackedData,
        /// Length of the message, and of the payload of this packet. Unit: bytes.
        length: u32,
        /// The holder's transfer.
        transfer: Transfer,
    },
    /// A holder's answer to `Ask`: it matches none of the messages that have left before this packet.
    NoMatch,
    /// A request to announce messages again: the first `count` held ones with number [`Packet::number`] or later.
    Resume {
        /// At least 1.
        count: u32,
    },
    /// The sender of this packet keeps the envelope of this offered message.
    Claimed {
        /// The destination's transfer.
        transfer: Transfer,
    },
    /// An explicit credit packet. It costs no credit and uses a credit slot.
    Credit,
    /// An acknowledgement (FIN) for `count` transfers of the destination, from `transfer` on. A rendezvous was
    /// received, an eager message matched, or a write was placed.
    Finished {
        /// The first of the destination's transfers.
        transfer: Transfer,
        /// Number of transfers, at least 1.
        count: u32,
        /// The operation failed: bounds or access rights.
        refused: bool,
    },
    /// A request (CTS) for the payload of a rendezvous in packets, because the receiver cannot copy it.
    Fetch {
        /// The destination's transfer, which names the payload.
        transfer: Transfer,
        /// The transfer of this packet's sender; the pieces name it.
        reply: Transfer,
        /// Length of the requested payload. Unit: bytes.
        length: u64,
    },
    /// A piece of the payload that the destination requested with `Fetch` or `Read`.
    Piece {
        /// The destination's transfer.
        transfer: Transfer,
        /// Offset in the requested payload.
        offset: u64,
        /// This is the last piece.
        last: bool,
    },
    /// A remote write in packets.
    Write {
        /// The transfer of this packet's sender. `Finished` names it after the last packet.
        transfer: Transfer,
        /// Key of the destination's region.
        key: u64,
        /// Offset in it.
        offset: u64,
        /// Bytes of this write in later packets. With it the target can refuse the first packet if the last would not
        /// fit.
        left: u64,
        /// Completion data for the target program (last packet only).
        data: Option<u64>,
    },
    /// A remote read: the destination answers with `Piece`s.
    Read {
        /// The transfer of this packet's sender.
        transfer: Transfer,
        /// Key of the destination's region.
        key: u64,
        /// Offset in it.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// A request to check these bounds and to return the address. The sender of this packet then copies by itself.
    Locate {
        /// The transfer of this packet's sender.
        transfer: Transfer,
        /// Key of the destination's region.
        key: u64,
        /// Offset in it.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// The copy is a write (else a read).
        write: bool,
    },
    /// Answer to `Locate`.
    Located {
        /// The destination's transfer.
        transfer: Transfer,
        /// Key of the region at this packet's sender. Its driver looks up the address.
        key: u64,
        /// Offset in it.
        offset: u64,
        /// Where the destination can access the region, from `offset` on; its sender's driver fills it in.
        address: RemoteAddress,
        /// The bounds or the access rights do not allow it.
        refused: bool,
    },
    /// The sender closes: it receives nothing more and drops all rendezvous that were announced to it.
    Goodbye,
    /// Compulsory return request (Prades, chapter 6): return the credits beyond the guaranteed ones.
    ReturnRequest,
    /// Compulsory return response.
    ReturnResponse {
        /// Returned credits; may be 0. Unit: slots.
        credits: u32,
    },
    /// The last packet in this lane: its sender returns the lane and all its credits. It costs no credit, because the
    /// lane has a reserved slot for it. Later packets use another lane.
    Detach,
    /// The sender has written to the destination's memory by itself (after `Locate`). The destination notifies its
    /// program.
    Written {
        /// Completion data.
        data: u64,
        /// Unit: bytes.
        bytes: u64,
    },
    /// A packet of an offloaded machine.
    Offloaded(Offloaded),
}

impl Packet {
    /// A packet whose common fields are zero.
    pub fn new(body: Body, payload_bytes: u32) -> Packet {
        Packet {
            epoch: 0,
            credit_packets_read: 0,
            granted_total: 0,
            wanted_total: 0,
            number: 0,
            payload_bytes,
            marks: Marks::default(),
            body,
        }
    }

    /// What it says of the destination's lease in our mailbox.
    #[inline(always)]
    pub(crate) fn credit_update(&self) -> CreditUpdate {
        CreditUpdate::new(self.epoch, self.credit_packets_read, self.granted_total)
    }

    /// A packet for [`crate::Event::Arrived`] to be read into.
    pub fn blank() -> Packet {
        Packet::new(Body::Credit, 0)
    }
}

impl Body {
    /// The address of memory that it names, if it is of a kind that does.
    #[inline]
    pub fn remote_address(&self) -> Option<RemoteAddress> {
        match *self {
            Body::Rendezvous { address, .. }
            | Body::Offer { address, .. }
            | Body::Located { address, .. } => Some(address),
            _ => None,
        }
    }

    /// Changes the key of that address.
    pub(crate) fn set_remote_key(&mut self, key: u64) {
        if let Body::Rendezvous { address, .. }
        | Body::Offer { address, .. }
        | Body::Located { address, .. } = self
        {
            address.key = key;
        }
    }

    /// Whether it is a credit packet. Credit packets use credit slots.
    #[inline]
    pub fn is_credit(&self) -> bool {
        matches!(self, Body::Credit)
    }

    /// Whether it costs no credit: credit packets and the last packet of a lane.
    #[inline]
    pub fn is_free(&self) -> bool {
        matches!(self, Body::Credit | Body::Detach)
    }

    /// Says whether the sender of an announced message holds it.
    #[inline]
    pub(crate) fn set_held(&mut self, is_held: bool) {
        if let Body::Rendezvous { sender, .. } = self {
            *sender = AnnouncementMarks::new(is_held, sender.awaits_match());
        }
    }

    /// Sets the address of announced memory, in the kinds of packets that have one.
    pub(crate) fn set_address(&mut self, at: RemoteAddress) {
        if let Body::Rendezvous { address, .. }
        | Body::Offer { address, .. }
        | Body::Located { address, .. } = self
        {
            *address = at;
        }
    }
}

/// The shape of slots on a link. A packet fills one slot or, where the link allows it, several consecutive slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a slot that packets can use.
    pub slot_bytes: u32,
    /// Maximum of slots of one packet. 1 where every packet is one slot (EXTOLL).
    pub max_packet_slots: u32,
    /// Header of the first packet of an eager message. Unit: bytes.
    pub eager_header_bytes: u32,
    /// Header of the packets that follow. Unit: bytes.
    pub more_header_bytes: u32,
    /// Header of the packets of pieces, reads and writes. Unit: bytes.
    pub remote_header_bytes: u32,
    /// Space that a piggybacked credit needs behind the payload. 0 where the header has a field for it.
    pub piggyback_bytes: u32,
}

impl Geometry {
    /// Shared memory: a slot is a cache line. A packet is a header followed by whole slots of payload. The header sizes
    /// are those of [`crate::wire`].
    pub const SHARED_MEMORY: Geometry = Geometry {
        slot_bytes: wire::SLOT_BYTES as u32,
        max_packet_slots: 64,
        eager_header_bytes: wire::EAGER_HEADER_BYTES as u32,
        more_header_bytes: wire::MORE_HEADER_BYTES as u32,
        remote_header_bytes: wire::REMOTE_HEADER_BYTES as u32,
        piggyback_bytes: 0,
    };

    /// EXTOLL VELO: slots of 64 B with 56 B of payload, one slot per packet. The message header has 24 B in effect.
    /// This value is calibrated: a 2 KB message then has 37 packets and no space for a piggybacked credit (thesis,
    /// 5.4).
    pub const EXTOLL: Geometry = Geometry {
        slot_bytes: 56,
        max_packet_slots: 1,
        eager_header_bytes: 24,
        more_header_bytes: 0,
        remote_header_bytes: 24,
        piggyback_bytes: 2,
    };

    /// Header size of a packet with this body. Unit: bytes.
    #[inline]
    pub fn header_bytes(&self, body: &Body) -> u32 {
        match body {
            Body::Eager { acknowledge: None, .. } => self.eager_header_bytes,
            Body::More { .. } => self.more_header_bytes,
            _ => self.remote_header_bytes,
        }
    }

    /// Maximum of payload bytes behind a header of `header_bytes` in `slots` slots.
    #[inline]
    pub fn payload_bytes(&self, header_bytes: u32, slots: u32) -> u32 {
        slots * self.slot_bytes - header_bytes
    }

    /// Slots that `payload_bytes` of payload behind a header of `header_bytes` fill, at least 1.
    #[inline(always)]
    pub fn slots(&self, header_bytes: u32, payload_bytes: u32) -> u32 {
        let bytes = header_bytes + payload_bytes;
        match self.slot_bytes {
            // `div_ceil` and `max` in four instructions. A division would cost as much as the rest of this function.
            64 => 1 + bytes.saturating_sub(1) / 64,
            slot_bytes => bytes.div_ceil(slot_bytes).max(1),
        }
    }

    /// Slots that `packet` fills.
    #[inline]
    pub fn packet_slots(&self, packet: &Packet) -> u32 {
        match packet.payload_bytes {
            0 => 1, // every header fits in one slot
            bytes => self.slots(self.header_bytes(&packet.body), bytes),
        }
    }
}
