//! The packets between processes and the kernel programs: 64 bytes in a UDP datagram over IPv4, little endian. Those of an
//! all-reduce have a vector of 64-bit words behind them.
//!
//! | bytes | what |
//! |---|---|
//! | 0 to 3 | [`MAGIC`] |
//! | 4, 5, 6, 7 | version, kind with the two bits of a relay, operation, status of a reply |
//! | 8 to 15 | domain: the name of the job's share of an interface |
//! | 16 to 23, 24 to 31 | asker, and number of its request: together they name the request |
//! | 32 to 39 | place: the word |
//! | 40 to 47 | what a word is compared with; of a meeting and its reply the round; of a multi-send the number of the message |
//! | 48 to 55 | operand; of a reply the result; of a meeting the member, and from bit 32 on the number of members |
//! | | of a multi-send the number of copies, from bit 8 on the receiver that sends it back, from bit 32 on a bit for each |
//! | | that gets a copy; of a copy the receiver |
//! | 56 to 63 | tag: the first word of SipHash-2-4 of bytes 0 to 7, 16 to 47, the vector, bytes 48 to 55, and both addresses. |
//! | | Multi-sends and copies use neither asker nor number, so bytes 16 to 31 are left out. The acknowledgement of a copy, |
//! | | and a multi-send that a receiver has taken and sends back, have the second word of the hash |
//! | from 64 on | the vector of an all-reduce: the member's own, of a reply the result; the message of a multi-send |
//!
//! `xdp/format.h` has the same numbers.

use crate::Domain;
use crate::siphash;
use std::net::Ipv4Addr;

/// Length of a packet. Unit: bytes.
pub const PACKET_BYTES: usize = 64;
/// Length of the longest packet with its vector. Unit: bytes.
pub const MAX_BYTES: usize = PACKET_BYTES + 8 * MAX_VECTOR_WORDS;
/// Begins each packet.
pub const MAGIC: u32 = u32::from_le_bytes(*b"werK");
/// Version of this format.
pub const VERSION: u8 = 2;
/// The UDP port of the kernel programs without `--port`.
pub const DEFAULT_PORT: u16 = 30565;

/// Bound: words of a domain on a host.
pub const WORDS: usize = 4096;
/// Bound: reply slots of a domain on a host.
pub const REPLY_SLOTS: u32 = 1024;
/// Bound: reply slots of a process.
pub const SLOTS_OF_A_PROCESS: u32 = 16;
/// Bound: domains of an interface.
pub const MAX_DOMAINS: u32 = 64;
/// Bound: members of a barrier or all-reduce.
pub const MAX_MEMBERS: u32 = 32;
/// Bound: length of the vector of an all-reduce, which travels in one frame. Unit: 64-bit words.
pub const MAX_VECTOR_WORDS: usize = 128;
/// Bound: vectors that the programs of an interface keep. An all-reduce takes two for each member, and two.
pub const MAX_VECTORS: u32 = 1024;
/// Requests for whose answers the kernel keeps room, for each asker.
pub const UNANSWERED: u64 = 8;

/// What a packet is.
pub mod kind {
    /// Changes or reads a word.
    pub const WORD: u8 = 1;
    /// A member arrives at a barrier.
    pub const ARRIVE: u8 = 2;
    /// Answers one of these.
    pub const REPLY: u8 = 3;
    /// A member arrives at an all-reduce, with its vector.
    pub const REDUCE: u8 = 4;
    /// A receiver of a multi-send says where it is.
    pub const SUBSCRIBE: u8 = 5;
    /// A message of a multi-send, for all of its receivers.
    pub const COPIES: u8 = 6;
    /// A message of a multi-send, for one receiver.
    pub const COPY: u8 = 7;
    /// Bits that both have, and no other kind has.
    pub const MULTI_SEND: u8 = 6;
    /// A receiver has a message of a multi-send.
    pub const ACKNOWLEDGE: u8 = 8;
    /// A host has sent it back to the host that it came from.
    pub const RELAYED: u8 = 0x40;
    /// The host that gets it sends it back.
    pub const RELAY: u8 = 0x80;
}

/// What happens to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Nothing.
    Read = 0,
    /// The operand is added, wrapping.
    Add = 1,
    /// The operand replaces it.
    Swap = 2,
    /// The operand replaces it if it is equal to what it is compared with.
    CompareSwap = 3,
    /// Bitwise and.
    And = 4,
    /// Bitwise or.
    Or = 5,
    /// Bitwise exclusive or.
    Xor = 6,
}

/// How vectors are combined, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Combination {
    /// Added. Integers wrap.
    Sum = 0,
    /// The smaller one.
    Min = 1,
    /// The larger one.
    Max = 2,
    /// Bitwise and.
    And = 3,
    /// Bitwise or.
    Or = 4,
    /// Multiplied. Integers wrap.
    Prod = 5,
}

/// The elements of a vector. Two of 32 bits are in a word; the first is the lower half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Element {
    /// 32 bits without sign.
    U32 = 0x00,
    /// 32 bits.
    I32 = 0x10,
    /// 64 bits without sign.
    U64 = 0x20,
    /// 64 bits.
    I64 = 0x30,
    /// IEEE 754 binary32, by its bits.
    F32 = 0x40,
    /// IEEE 754 binary64, by its bits.
    F64 = 0x50,
}

impl Element {
    /// Whether a combination works on it: bitwise ones are for integers.
    pub fn has(self, combination: Combination) -> bool {
        let is_float = matches!(self, Element::F32 | Element::F64);
        !is_float || !matches!(combination, Combination::And | Combination::Or)
    }
}

/// How a request has ended.
pub mod status {
    /// It is performed.
    pub const DONE: u8 = 0;
    /// There is no such word. The result is the number of words.
    pub const NO_SUCH_WORD: u8 = 1;
    /// There is no such operation.
    pub const NO_SUCH_OPERATION: u8 = 2;
    /// The host has no room for another asker or member. The result is the bound.
    pub const TABLE_FULL: u8 = 3;
    /// The arrival is known, others are missing. The result has a bit for each member that is there.
    pub const MEMBERS_MISSING: u8 = 4;
    /// Members of an all-reduce have vectors of different lengths, or combine them differently.
    pub const MEMBERS_DIFFER: u8 = 5;
}

/// A reply slot: words behind those of a domain, in which a process waits for the reply to a request.
pub mod slot {
    /// Length of a slot. Unit: 64-bit words.
    pub const WORDS: usize = 4;
    /// Word: the asker, whose lowest bits are the number of the slot.
    pub const ASKER: usize = 0;
    /// Word: the number of the request, shifted by two, and one of the steps below. 0: replies go to the socket.
    pub const STATE: usize = 1;
    /// Word: the result.
    pub const RESULT: usize = 2;
    /// Word: the status.
    pub const STATUS: usize = 3;
    /// Step: the process waits.
    pub const WAITING: u64 = 1;
    /// Step: a program writes.
    pub const CLAIMED: u64 = 2;
    /// Step: the reply is there.
    pub const WRITTEN: u64 = 3;
}

/// The counters of an interface, in the order of the kernel programs.
pub const COUNTERS: [&str; 12] = [
    "requests",
    "duplicates",
    "old",
    "refused",
    "relayed",
    "releases",
    "malformed",
    "other_version",
    "strangers",
    "forged",
    "delivered",
    "acknowledged",
];

/// A packet without its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// See [`kind`].
    pub kind: u8,
    /// A number of [`Operation`].
    pub operation: u8,
    /// See [`status`].
    pub status: u8,
    /// Whose request this is.
    pub asker: u64,
    /// Which request of the asker. Never 0.
    pub number: u64,
    /// The word.
    pub place: u64,
    /// See the head of this file.
    pub operand: u64,
    /// See the head of this file.
    pub compare: u64,
}

/// The two ends of the way of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The sender's address.
    pub from: Ipv4Addr,
    /// The receiver's address.
    pub to: Ipv4Addr,
}

impl Way {
    /// As the programs read both from the IP header.
    fn word(self) -> u64 {
        let [from, to] = [self.from, self.to].map(|address| u64::from(u32::from_le_bytes(address.octets())));
        from << 32 | to
    }

    /// The way back.
    pub fn reversed(self) -> Way {
        Way { from: self.to, to: self.from }
    }
}

impl Packet {
    /// The bytes of the packet in a domain, for this way.
    pub fn to_bytes(self, domain: &Domain, way: Way) -> [u8; PACKET_BYTES] {
        self.tagged(domain, way, &[])
    }

    /// The packet before a vector. The tag covers both.
    fn tagged(self, domain: &Domain, way: Way, vector: &[u64]) -> [u8; PACKET_BYTES] {
        self.with_tag(domain, self.hash(domain, way, vector)[0])
    }

    /// The acknowledgement of this copy of a message, as the programs of its receiver send it. It has the second word of the
    /// copy's hash, so only who knows the key and has the copy can make it.
    pub fn acknowledgement(self, domain: &Domain, way: Way, message: &[u64]) -> [u8; PACKET_BYTES] {
        let tag = self.hash(domain, way, message)[1];
        Packet { kind: kind::ACKNOWLEDGE, ..self }.with_tag(domain, tag)
    }

    /// The words before the tag.
    fn words(self, domain: &Domain) -> [u64; 7] {
        let [kind, operation, status] = [self.kind, self.operation, self.status].map(u64::from);
        let head = u64::from(MAGIC) | u64::from(VERSION) << 32 | kind << 40 | operation << 48 | status << 56;
        [head, domain.name, self.asker, self.number, self.place, self.compare, self.operand]
    }

    /// What the tags of the packet and of its acknowledgement are.
    fn hash(self, domain: &Domain, way: Way, vector: &[u64]) -> [u64; 2] {
        let words = self.words(domain);
        let is_multi_send = self.kind & kind::MULTI_SEND == kind::MULTI_SEND;
        let common = if is_multi_send { &words[4..6] } else { &words[2..6] };
        let rest = [self.operand, way.word()];
        let hashed = words[..1].iter().chain(common).chain(vector).chain(&rest);
        siphash::hash(domain.key, hashed, PACKET_BYTES + 8 * vector.len())
    }

    fn with_tag(self, domain: &Domain, tag: u64) -> [u8; PACKET_BYTES] {
        let words = self.words(domain).into_iter().chain([tag]);
        let mut bytes = [0; PACKET_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// As [`Packet::to_bytes`], with a vector of at most [`MAX_VECTOR_WORDS`] behind it. Returns the bytes and their number.
    pub fn to_frame(self, domain: &Domain, way: Way, vector: &[u64]) -> ([u8; MAX_BYTES], usize) {
        let mut bytes = [0; MAX_BYTES];
        bytes[..PACKET_BYTES].copy_from_slice(&self.tagged(domain, way, vector));
        for (place, word) in bytes[PACKET_BYTES..].chunks_exact_mut(8).zip(vector) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        (bytes, PACKET_BYTES + 8 * vector.len())
    }

    /// The packet of a domain in these bytes, which came this way. `None`: it is none, or its tag is wrong.
    pub fn of_bytes(bytes: &[u8], domain: &Domain, way: Way) -> Option<Packet> {
        Packet::of_frame(bytes, domain, way).filter(|(_, vector)| vector.is_empty()).map(|(packet, _)| packet)
    }

    /// As [`Packet::of_bytes`], with the vector behind it.
    pub fn of_frame(bytes: &[u8], domain: &Domain, way: Way) -> Option<(Packet, Vec<u64>)> {
        let (head, rest) = bytes.split_first_chunk::<PACKET_BYTES>()?;
        let (words, []) = rest.as_chunks::<8>() else { return None };
        let vector: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at * 8 + byte]));
        let packet = Packet {
            kind: head[5],
            operation: head[6],
            status: head[7],
            asker: word(2),
            number: word(3),
            place: word(4),
            compare: word(5),
            operand: word(6),
        };
        (packet.tagged(domain, way, &vector) == *head).then_some((packet, vector))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAY: Way = Way { from: Ipv4Addr::new(10, 0, 0, 1), to: Ipv4Addr::new(10, 0, 0, 2) };

    fn packet() -> Packet {
        let (kind, operation) = (kind::WORD, Operation::CompareSwap as u8);
        Packet { kind, operation, status: 4, asker: 5, number: 6, place: 7, operand: 8, compare: 9 }
    }

    #[test]
    fn a_packet_is_read_only_in_its_domain_on_its_way_and_unchanged() {
        let domain = Domain::of(&[7; 16]);
        let bytes = packet().to_bytes(&domain, WAY);
        assert_eq!(Packet::of_bytes(&bytes, &domain, WAY), Some(packet()));
        assert_eq!(Packet::of_bytes(&bytes, &domain, WAY.reversed()), None);
        assert_eq!(Packet::of_bytes(&bytes, &Domain::of(&[8; 16]), WAY), None);
        assert_eq!(Packet::of_bytes(&bytes[1..], &domain, WAY), None);
        for bit in 0..8 * PACKET_BYTES {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Packet::of_bytes(&changed, &domain, WAY), None, "bit {bit}");
        }
    }

    #[test]
    fn a_vector_is_read_whole_and_unchanged() {
        let domain = Domain::of(&[7; 16]);
        for words in [0, 1, MAX_VECTOR_WORDS as u64] {
            let vector: Vec<u64> = (1..=words).map(|word| word << 40 | word).collect();
            let (mut bytes, length) = packet().to_frame(&domain, WAY, &vector);
            let read = |bytes: &[u8]| Packet::of_frame(bytes, &domain, WAY);
            assert_eq!(read(&bytes[..length]), Some((packet(), vector)));
            assert_eq!(read(&bytes[..length - 8]), None);
            bytes[length - 1] ^= 1;
            assert_eq!(read(&bytes[..length]), None, "{words} words");
        }
    }

    #[test]
    fn the_kernel_programs_have_the_same_numbers() {
        let header = include_str!("../../../xdp/format.h");
        let defined = |name: &str| -> u64 {
            let line = header.lines().find_map(|line| line.strip_prefix(&format!("#define WEIR_{name} ")));
            let word = line.unwrap_or_else(|| panic!("{name}")).split(' ').next().unwrap();
            let number = word.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16));
            number.unwrap_or_else(|| word.parse()).unwrap()
        };
        let numbers = [
            ("MAGIC", u64::from(MAGIC)),
            ("VERSION", VERSION.into()),
            ("PORT", DEFAULT_PORT.into()),
            ("KIND_WORD", kind::WORD.into()),
            ("KIND_ARRIVE", kind::ARRIVE.into()),
            ("KIND_REPLY", kind::REPLY.into()),
            ("KIND_REDUCE", kind::REDUCE.into()),
            ("KIND_SUBSCRIBE", kind::SUBSCRIBE.into()),
            ("KIND_COPIES", kind::COPIES.into()),
            ("KIND_COPY", kind::COPY.into()),
            ("KIND_ACKNOWLEDGE", kind::ACKNOWLEDGE.into()),
            ("KIND_MULTI_SEND", kind::MULTI_SEND.into()),
            ("RELAYED", kind::RELAYED.into()),
            ("RELAY", kind::RELAY.into()),
            ("READ", Operation::Read as u64),
            ("ADD", Operation::Add as u64),
            ("SWAP", Operation::Swap as u64),
            ("COMPARE_SWAP", Operation::CompareSwap as u64),
            ("AND", Operation::And as u64),
            ("OR", Operation::Or as u64),
            ("XOR", Operation::Xor as u64),
            ("DONE", status::DONE.into()),
            ("NO_SUCH_WORD", status::NO_SUCH_WORD.into()),
            ("NO_SUCH_OPERATION", status::NO_SUCH_OPERATION.into()),
            ("TABLE_FULL", status::TABLE_FULL.into()),
            ("MEMBERS_MISSING", status::MEMBERS_MISSING.into()),
            ("MEMBERS_DIFFER", status::MEMBERS_DIFFER.into()),
            ("VECTOR_SUM", Combination::Sum as u64),
            ("VECTOR_MIN", Combination::Min as u64),
            ("VECTOR_MAX", Combination::Max as u64),
            ("VECTOR_AND", Combination::And as u64),
            ("VECTOR_OR", Combination::Or as u64),
            ("VECTOR_PROD", Combination::Prod as u64),
            ("VECTOR_U32", Element::U32 as u64),
            ("VECTOR_I32", Element::I32 as u64),
            ("VECTOR_U64", Element::U64 as u64),
            ("VECTOR_I64", Element::I64 as u64),
            ("VECTOR_F32", Element::F32 as u64),
            ("VECTOR_F64", Element::F64 as u64),
            ("MAX_VECTOR_WORDS", MAX_VECTOR_WORDS as u64),
            ("MAX_VECTORS", MAX_VECTORS.into()),
            ("MAX_DOMAINS", MAX_DOMAINS.into()),
            ("WORDS", WORDS as u64),
            ("REPLY_SLOTS", REPLY_SLOTS.into()),
            ("SLOT_WORDS", slot::WORDS as u64),
            ("SLOT_ASKER", slot::ASKER as u64),
            ("SLOT_STATE", slot::STATE as u64),
            ("SLOT_RESULT", slot::RESULT as u64),
            ("SLOT_STATUS", slot::STATUS as u64),
            ("SLOT_WAITING", slot::WAITING),
            ("SLOT_CLAIMED", slot::CLAIMED),
            ("SLOT_WRITTEN", slot::WRITTEN),
            ("UNANSWERED", UNANSWERED),
            ("MAX_MEMBERS", MAX_MEMBERS.into()),
            ("COUNTERS", COUNTERS.len() as u64),
        ];
        for (name, number) in numbers {
            assert_eq!(defined(name), number, "{name}");
        }
        for (number, name) in (0..).zip(COUNTERS) {
            assert_eq!(defined(&format!("COUNT_{}", name.to_uppercase())), number, "{name}");
        }
    }
}
