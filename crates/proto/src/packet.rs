//! A packet as a value: what every link carries, whatever its bytes look like there.

use crate::event::Transfer;

/// The two matching spaces of libfabric: messages with tags and without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// `fi_send`, `fi_recv`.
    Untagged,
    /// `fi_tsend`, `fi_trecv`.
    Tagged,
}

/// One packet. It fills [`Geometry::packet_slots`] slots of the receiver's mailbox.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packet {
    /// The destination's stay in our mailbox that `granted_total` and `credit_packets_read` speak of, as it numbers its
    /// stays: what is said of an earlier one is ignored.
    pub epoch: u16,
    /// Explicit credit packets of the other direction that the sender has read, modulo 2^16.
    pub credit_packets_read: u16,
    /// All credits ever granted to the destination for sending here, modulo 2^32. Unit: slots.
    pub granted_total: u32,
    /// Who the message is from, if not the owner of the credits (a proxy sends for another rank): that
    /// rank's number plus one; 0 for the owner itself.
    pub origin: u32,
    /// Message number of the pair, modulo 2^32; 0 in packets that belong to no message.
    pub number: u32,
    /// Payload bytes in this packet.
    pub payload_bytes: u32,
    /// What packets of every kind can say besides.
    pub marks: Marks,
    /// The rest depends on the kind.
    pub body: Body,
}

/// What packets of every kind can say besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The sender of this packet has no room for unexpected payload: the destination is to announce its messages and keep
    /// their payload, until a packet comes without this mark.
    pub rendezvous_only: bool,
    /// The message of this packet has waited for credit (Liu & Panda: went through the backlog).
    pub backlogged: bool,
}

/// What kind of packet, and what only that kind has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Body {
    /// First packet of a message that travels whole.
    Eager {
        /// Tagged or untagged.
        space: Space,
        /// 64-bit tag.
        tag: u64,
        /// Remote completion data.
        data: Option<u64>,
        /// Length of the whole message. Unit: bytes.
        length: u32,
        /// The sender's transfer that waits for the match.
        acknowledge: Option<Transfer>,
    },
    /// Another packet of the message begun by the last `Eager` of this pair.
    More {
        /// Where its payload goes in the message.
        offset: u32,
    },
    /// A message whose payload stays with the sender until a receive matches.
    Rendezvous {
        /// Tagged or untagged.
        space: Space,
        /// 64-bit tag.
        tag: u64,
        /// Remote completion data.
        data: Option<u64>,
        /// Length of the message. Unit: bytes.
        length: u64,
        /// Address of the payload in the sender's process; 0 if it may not be read there.
        address: u64,
        /// The sender's transfer.
        transfer: Transfer,
    },
    /// Credits, explicitly. Costs none itself, lands in a credit slot.
    Credit,
    /// The operations behind `count` transfers of the destination, from `transfer` on, have ended: a rendezvous was taken, an
    /// eager message matched, a write was placed.
    Finished {
        /// The destination's transfer, the first of them.
        transfer: Transfer,
        /// How many, at least 1.
        count: u32,
        /// It went wrong: bounds or rights.
        refused: bool,
    },
    /// Send the payload of your rendezvous through the mailbox.
    Fetch {
        /// The destination's transfer (the source of the payload).
        transfer: Transfer,
        /// Our transfer, to be named in the pieces.
        reply: Transfer,
        /// How much of it. Unit: bytes.
        length: u64,
    },
    /// A piece of what the destination asked for by `Fetch` or `Read`.
    Piece {
        /// The destination's transfer.
        transfer: Transfer,
        /// Where it goes in what was asked for.
        offset: u64,
        /// Nothing follows.
        last: bool,
    },
    /// Put the payload into your memory.
    Write {
        /// Our transfer, named in `Finished` after the last packet.
        transfer: Transfer,
        /// Your region.
        key: u64,
        /// Offset in it.
        offset: u64,
        /// Bytes of this write that follow in later packets, so that the first is refused if the last would be.
        left: u64,
        /// Tell the program there (last packet only).
        data: Option<u64>,
    },
    /// Send me your memory in `Piece`s.
    Read {
        /// Our transfer.
        transfer: Transfer,
        /// Your region.
        key: u64,
        /// Offset in it.
        offset: u64,
        /// How much. Unit: bytes.
        length: u64,
    },
    /// Check these bounds and tell me the address, I will copy myself.
    Locate {
        /// Our transfer.
        transfer: Transfer,
        /// Your region.
        key: u64,
        /// Offset in it.
        offset: u64,
        /// How much. Unit: bytes.
        length: u64,
        /// For writing (else for reading).
        write: bool,
    },
    /// Answer to `Locate`.
    Located {
        /// The destination's transfer.
        transfer: Transfer,
        /// Our region, for the driver to look up the address.
        key: u64,
        /// Offset in it.
        offset: u64,
        /// Address in our process; the driver fills it in. 0 if refused.
        address: u64,
        /// Bounds or rights are wrong.
        refused: bool,
    },
    /// The sender is closing: it takes nothing more, what was announced to it is void.
    Goodbye,
    /// Compulsory return request (Prades, chapter 6): give back the credits you have beyond the guaranteed ones.
    ReturnRequest,
    /// Answer to `ReturnRequest`.
    ReturnResponse {
        /// Credits given back; may be 0. Unit: slots.
        credits: u32,
    },
    /// The last packet in this lane: its sender gives the lane and all its credits back. Costs no credit, has a slot of its
    /// own set aside; the next packets, if any, come in another lane.
    Detach,
    /// We have written to your memory by ourselves (after `Locate`); tell the program there.
    Written {
        /// Completion data.
        data: u64,
        /// Unit: bytes.
        bytes: u64,
    },
}

impl Packet {
    /// A packet with nothing in the common part.
    pub fn new(body: Body, payload_bytes: u32) -> Packet {
        Packet {
            epoch: 0,
            credit_packets_read: 0,
            granted_total: 0,
            origin: 0,
            number: 0,
            payload_bytes,
            marks: Marks::default(),
            body,
        }
    }
}

impl Body {
    /// Whether it is a credit packet: those land in credit slots.
    #[inline]
    pub fn is_credit(&self) -> bool {
        matches!(self, Body::Credit)
    }

    /// Credit packets and the last packet of a lane cost no credit; all others do.
    #[inline]
    pub fn is_free(&self) -> bool {
        matches!(self, Body::Credit | Body::Detach)
    }
}

/// What a slot holds on a link. A packet fills one slot or, where the link allows, a run of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a slot that packets can use.
    pub slot_bytes: u32,
    /// The most slots that one packet may fill; 1 where a packet is a slot (EXTOLL).
    pub max_packet_slots: u32,
    /// Header of the first packet of an eager message. Unit: bytes.
    pub eager_header_bytes: u32,
    /// Header of the packets that follow. Unit: bytes.
    pub more_header_bytes: u32,
    /// Header of the packets of pieces, reads and writes. Unit: bytes.
    pub remote_header_bytes: u32,
    /// Room that a piggybacked credit needs behind the payload; 0 where the header has a place for it.
    pub piggyback_bytes: u32,
}

impl Geometry {
    /// Shared memory: a slot is a cache line, a packet a header and whole slots of payload behind it.
    /// The header sizes are those of [`crate::wire`].
    pub const SHARED_MEMORY: Geometry = Geometry {
        slot_bytes: 64,
        max_packet_slots: 64,
        eager_header_bytes: 48,
        more_header_bytes: 32,
        remote_header_bytes: 56,
        piggyback_bytes: 0,
    };

    /// EXTOLL VELO: 64 B slots with 56 B of payload, a packet a slot. The message header is 24 B in effect:
    /// calibrated so that 2 KB go with 37 packets and leave no room for a piggybacked credit (thesis, 5.4).
    pub const EXTOLL: Geometry = Geometry {
        slot_bytes: 56,
        max_packet_slots: 1,
        eager_header_bytes: 24,
        more_header_bytes: 0,
        remote_header_bytes: 24,
        piggyback_bytes: 2,
    };

    /// Header bytes of a packet with this body.
    #[inline]
    pub fn header_bytes(&self, body: &Body) -> u32 {
        match body {
            Body::Eager { acknowledge: None, .. } => self.eager_header_bytes,
            Body::More { .. } => self.more_header_bytes,
            _ => self.remote_header_bytes,
        }
    }

    /// The most payload that fits behind a header of `header_bytes` in `slots` slots.
    #[inline]
    pub fn payload_bytes(&self, header_bytes: u32, slots: u32) -> u32 {
        slots * self.slot_bytes - header_bytes
    }

    /// Slots that `payload_bytes` of payload behind a header of `header_bytes` fill, at least 1.
    #[inline(always)]
    pub fn slots(&self, header_bytes: u32, payload_bytes: u32) -> u32 {
        let bytes = header_bytes + payload_bytes;
        match self.slot_bytes {
            // A shift; the divisor that the compiler does not know costs as much as all the rest of a packet's accounts.
            64 => bytes.div_ceil(64).max(1),
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
