//! What lies where in a segment, and what an address says. Arithmetic and checks only: no memory is touched here.
//!
//! ```text
//! 0        facts      128 B   written before the segment has a name, then constant
//! 128      state       64 B   open, closed
//! 192      bell        64 B   asleep; then summary and calls (64 B) and the bitmap (512 B)
//! 832      lane queue  64 B   next ticket; then 64 places in the queue, 24 B each
//! 4096     claims       8 B   for each lane: whose it is
//! 65536    lane 0             stride: a whole number of pages
//! ...      lane 1 ...
//!          a lane:     256 B  state, owner, epoch, asked (64 B), polled (64 B), retired (64 B), together (64 B)
//!                      then data and credit slots and the two that are set aside, 64 B each
//! ```
//! The file is as long as all lanes together but sparse: only lanes that were claimed occupy memory. Whatever a peer
//! reads here it checks first ([`Facts::parse`]); a peer that lies can thereby confuse nobody but itself.

use super::doorbell::MAX_LANES;
use crate::{ADDRESS_BYTES, Address, Quota};
use weir_proto::wire::SLOT_BYTES;

/// Version of everything described here.
pub const LAYOUT_VERSION: u32 = 5;
const MAGIC: [u8; 8] = *b"weir-shm";
/// Length of the constant part.
pub const FACTS_BYTES: usize = 128;
/// Where the lanes begin: a multiple of the page size of every machine that we know.
pub const LANES_OFFSET: u64 = 65536;
/// The first part of the header. Unit: bytes.
pub const HEADER_BYTES: usize = 4096;
/// The claim words behind it. Unit: bytes.
pub const CLAIMS_BYTES: usize = MAX_LANES as usize * 8;
/// Claim words in a part of 4096 bytes: memory for them is found part by part.
pub const CLAIMS_PER_PART: u32 = 512;
/// What precedes the slots in a lane.
pub const LANE_HEADER_BYTES: usize = 256;
/// Slots of a lane beside those for data and credit: for the last packet of a stay, and to be left out after an early wrap (`ring.rs`).
const RESERVED_SLOTS: u32 = 2;
/// Bound on the slots of a lane, so that no arithmetic below overflows.
pub const MAX_LANE_SLOTS: u32 = 1 << 20;

/// `state` of a segment.
pub mod segment_state {
    /// In use.
    pub const OPEN: u32 = 1;
    /// Closed in good order.
    pub const CLOSED: u32 = 2;
}

/// `state` of a lane.
pub mod lane_state {
    /// Claimed, its memory is there, its owner is named.
    pub const READY: u32 = 1;
    /// Not read any more.
    pub const REFUSED: u32 = 2;
    /// Not written any more, since its writer has given its reader up.
    pub const ABANDONED: u32 = 3;
}

/// Why bytes are not a segment or an address of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No segment at all.
    #[error("not a weir segment")]
    Magic,
    /// Of another version.
    #[error("segment layout version {have}, this is version {LAYOUT_VERSION}")]
    Version {
        /// What it is.
        have: u32,
    },
    /// A number in the header is out of its range.
    #[error("segment header: {field} is {have}, allowed are {allowed}")]
    Field {
        /// Which.
        field: &'static str,
        /// What it is.
        have: u64,
        /// What it may be.
        allowed: &'static str,
    },
}

/// The shape of all lanes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Data slots of a lane.
    pub data_slots: u32,
    /// Lanes with a smaller number have one data slot more.
    pub rest_lanes: u32,
    /// Data slots of a lane that its sender owns from the beginning; 0: all.
    pub start_slots: u32,
    /// Slots for explicit credit packets.
    pub credit_slots: u32,
    /// How many lanes there can be.
    pub max_lanes: u32,
    /// Senders claim by looking (no credits).
    pub conditional: bool,
    /// Distance of lanes. Unit: bytes.
    pub stride: u64,
}

impl Shape {
    /// Checks the numbers and computes the stride for pages of `page_bytes`.
    ///
    /// # Errors
    /// [`LayoutError::Field`].
    pub fn new(
        data_slots: u32,
        rest_lanes: u32,
        credit_slots: u32,
        max_lanes: u32,
        conditional: bool,
        page_bytes: u64,
    ) -> Result<Shape, LayoutError> {
        let field = |field, have: u32, allowed| Err(LayoutError::Field { field, have: have.into(), allowed });
        if data_slots == 0 || data_slots > MAX_LANE_SLOTS {
            return field("data slots per lane", data_slots, "1 to 2^20");
        }
        if credit_slots > MAX_LANE_SLOTS {
            return field("credit slots per lane", credit_slots, "0 to 2^20");
        }
        if max_lanes == 0 || max_lanes > MAX_LANES {
            return field("lanes", max_lanes, "1 to 4096");
        }
        let own = u64::from(data_slots) + u64::from(rest_lanes > 0) + u64::from(credit_slots);
        let slots = own + u64::from(RESERVED_SLOTS);
        let stride = (LANE_HEADER_BYTES as u64 + slots * SLOT_BYTES as u64).next_multiple_of(page_bytes);
        Ok(Shape { data_slots, rest_lanes, start_slots: 0, credit_slots, max_lanes, conditional, stride })
    }

    /// The same lanes, of which senders own only `start_slots` data slots from the beginning; 0: all.
    ///
    /// # Errors
    /// [`LayoutError::Field`] if these are more than there are.
    pub fn with_start_slots(self, start_slots: u32) -> Result<Shape, LayoutError> {
        if start_slots > self.data_slots {
            let (field, have) = ("starting slots", start_slots.into());
            return Err(LayoutError::Field { field, have, allowed: "0 to the data slots of a lane" });
        }
        Ok(Shape { start_slots, ..self })
    }

    /// Slots of the ring of `lane`, with those set aside.
    pub fn lane_slots(&self, lane: u32) -> u32 {
        self.data_slots + u32::from(lane < self.rest_lanes) + self.credit_slots + RESERVED_SLOTS
    }

    /// What the owner of `lane` owns. Without credits every slot is a data slot.
    pub fn quota(&self, lane: u32) -> Quota {
        let slots = self.lane_slots(lane) - RESERVED_SLOTS;
        if self.conditional {
            return Quota { data_slots: slots, start_slots: slots, credit_slots: 0 };
        }
        let data_slots = slots - self.credit_slots;
        let start_slots = if self.start_slots == 0 { data_slots } else { self.start_slots };
        Quota { data_slots, start_slots, credit_slots: self.credit_slots }
    }

    /// Where `lane` begins. Unit: bytes.
    pub fn lane_offset(&self, lane: u32) -> u64 {
        LANES_OFFSET + u64::from(lane) * self.stride
    }

    /// Length of the file. Unit: bytes.
    pub fn segment_bytes(&self) -> u64 {
        self.lane_offset(self.max_lanes)
    }
}

/// The constant part of a segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Process that owns it.
    pub pid: u32,
    /// The process's pid namespace (inode of `/proc/self/ns/pid`), 0 if not known.
    pub pid_namespace: u64,
    /// The segment's random number, also in its name.
    pub id: u64,
    /// Random key: who has it belongs to the job.
    pub key: [u8; 16],
    /// Senders must pay for full fences, since the owner cannot.
    pub full_fences: bool,
    /// The lanes.
    pub shape: Shape,
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}
fn take_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(take(bytes, at))
}
fn take_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(take(bytes, at))
}

impl Facts {
    /// As bytes. Native byte order: shared memory stays in one machine.
    pub fn bytes(&self) -> [u8; FACTS_BYTES] {
        let mut bytes = [0; FACTS_BYTES];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &MAGIC);
        put(8, &LAYOUT_VERSION.to_ne_bytes());
        put(12, &(u32::from(self.full_fences) | u32::from(self.shape.conditional) << 1).to_ne_bytes());
        put(16, &self.pid.to_ne_bytes());
        put(20, &(SLOT_BYTES as u32).to_ne_bytes());
        put(24, &self.pid_namespace.to_ne_bytes());
        put(32, &self.id.to_ne_bytes());
        put(40, &self.key);
        put(56, &self.shape.data_slots.to_ne_bytes());
        put(60, &self.shape.rest_lanes.to_ne_bytes());
        put(64, &self.shape.credit_slots.to_ne_bytes());
        put(68, &self.shape.max_lanes.to_ne_bytes());
        put(72, &self.shape.stride.to_ne_bytes());
        put(80, &self.shape.start_slots.to_ne_bytes());
        bytes
    }

    /// From bytes that a peer wrote, and the length of its file; every number is checked.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn parse(bytes: &[u8; FACTS_BYTES], file_bytes: u64, page_bytes: u64) -> Result<Facts, LayoutError> {
        if bytes[..8] != MAGIC {
            return Err(LayoutError::Magic);
        }
        let have = take_u32(bytes, 8);
        if have != LAYOUT_VERSION {
            return Err(LayoutError::Version { have });
        }
        let field = |field, have: u64, allowed| Err(LayoutError::Field { field, have, allowed });
        let flags = take_u32(bytes, 12);
        if flags > 3 {
            return field("flags", flags.into(), "0 to 3");
        }
        if take_u32(bytes, 20) != SLOT_BYTES as u32 {
            return field("slot bytes", take_u32(bytes, 20).into(), "64");
        }
        let shape = Shape::new(
            take_u32(bytes, 56),
            take_u32(bytes, 60),
            take_u32(bytes, 64),
            take_u32(bytes, 68),
            flags & 2 != 0,
            page_bytes,
        )?
        .with_start_slots(take_u32(bytes, 80))?;
        if take_u64(bytes, 72) != shape.stride {
            return field("lane stride", take_u64(bytes, 72), "what follows from the slots");
        }
        if file_bytes < shape.segment_bytes() {
            return field("file length", file_bytes, "at least header and lanes");
        }
        Ok(Facts {
            pid: take_u32(bytes, 16),
            pid_namespace: take_u64(bytes, 24),
            id: take_u64(bytes, 32),
            key: take(bytes, 40),
            full_fences: flags & 1 != 0,
            shape,
        })
    }
}

const ADDRESS_VERSION: u8 = 1;
const ADDRESS_KIND_SHM: u8 = 1;

/// What an address of this link says: version, kind, 6 zero bytes, segment (8 bytes), key (16 bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentAddress {
    /// The segment's number.
    pub id: u64,
    /// Its key.
    pub key: [u8; 16],
}

impl SegmentAddress {
    /// As an address.
    pub fn address(&self) -> Address {
        let mut bytes = [0; ADDRESS_BYTES];
        bytes[0] = ADDRESS_VERSION;
        bytes[1] = ADDRESS_KIND_SHM;
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..].copy_from_slice(&self.key);
        Address(bytes)
    }

    /// From an address; `None` if it is none of this link and version.
    pub fn parse(address: &Address) -> Option<SegmentAddress> {
        let bytes = &address.0;
        let head = [ADDRESS_VERSION, ADDRESS_KIND_SHM, 0, 0, 0, 0, 0, 0];
        (bytes[..8] == head)
            .then(|| SegmentAddress { id: u64::from_le_bytes(take(bytes, 8)), key: take(bytes, 16) })
    }
}

/// Name of the segment file of `id`, for the user `uid`.
pub fn file_name(uid: u32, id: u64) -> String {
    format!("{}{id:016x}", file_prefix(uid))
}

/// What the names of all segments of a user begin with.
pub fn file_prefix(uid: u32) -> String {
    format!("weir.{uid}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let shape = Shape::new(38, 2, 2, 100, false, 4096).expect("a shape");
        let shape = shape.with_start_slots(5).expect("fewer than 38");
        Facts { pid: 7, pid_namespace: 9, id: 0x1234, key: [3; 16], full_fences: false, shape }
    }

    #[test]
    fn facts_are_unchanged_after_encoding_and_parsing() {
        let facts = facts();
        assert_eq!(Facts::parse(&facts.bytes(), facts.shape.segment_bytes(), 4096), Ok(facts));
    }

    #[test]
    fn the_first_lanes_have_one_more_data_slot() {
        let shape = facts().shape;
        assert_eq!(shape.quota(1), Quota { data_slots: 39, start_slots: 5, credit_slots: 2 });
        assert_eq!(shape.quota(2), Quota { data_slots: 38, start_slots: 5, credit_slots: 2 });
        let whole = Shape { start_slots: 0, ..shape };
        assert_eq!(whole.quota(1), Quota { data_slots: 39, start_slots: 39, credit_slots: 2 });
        let conditional = Shape { conditional: true, ..shape };
        assert_eq!(conditional.quota(2), Quota { data_slots: 40, start_slots: 40, credit_slots: 0 });
    }

    #[test]
    fn start_slots_above_the_data_slots_are_rejected() {
        let start = |start_slots| Ok(facts().shape.with_start_slots(start_slots)?.quota(2).start_slots);
        assert_eq!([0, 1, 38].map(start), [Ok(38), Ok(1), Ok(38)]);
        for beyond in [39, u32::MAX] {
            assert!(matches!(start(beyond), Err(LayoutError::Field { field: "starting slots", .. })));
        }
    }

    #[test]
    fn malformed_headers_are_rejected() {
        let facts = facts();
        let length = facts.shape.segment_bytes();
        let with = |at: usize, word: u32| {
            let mut bytes = facts.bytes();
            bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
            Facts::parse(&bytes, length, 4096)
        };
        assert_eq!(with(0, 0), Err(LayoutError::Magic));
        assert_eq!(with(8, 6), Err(LayoutError::Version { have: 6 }));
        for (at, word) in
            [(12, 8), (20, 32), (56, 0), (56, u32::MAX), (64, u32::MAX), (68, 0), (68, 1 << 20), (80, 39)]
        {
            assert!(matches!(with(at, word), Err(LayoutError::Field { .. })), "{at} {word}");
        }
        assert!(matches!(with(72, 1), Err(LayoutError::Field { field: "lane stride", .. })));
        assert!(matches!(
            Facts::parse(&facts.bytes(), length - 1, 4096),
            Err(LayoutError::Field { field: "file length", .. })
        ));
    }

    #[test]
    fn addresses_are_unchanged_after_encoding_and_parsing() {
        let address = SegmentAddress { id: 0xfeed, key: [9; 16] };
        assert_eq!(SegmentAddress::parse(&address.address()), Some(address));
        let mut other = address.address();
        other.0[1] = 2;
        assert_eq!(SegmentAddress::parse(&other), None);
    }
}
