//! The layout of a segment ([`Shape`], [`Facts`]), the fields of an address that lead to it ([`SegmentAddress`]), and
//! the name of its file. Only arithmetic and checks; no memory is touched here.
//!
//! ```text
//! 0        facts      128 B   written before the segment has a name, then constant
//! 128      state       64 B   open, closed
//! 192      doorbell    64 B   asleep; then summary and calls (64 B) and the bitmap (512 B)
//! 832      lane queue  64 B   next ticket; then 64 places in the queue, 24 B each
//! 4096     claims       8 B   for each lane: who holds it
//! 65536    lane 0             stride: a whole number of pages
//! ...      lane 1 ...
//!          a lane:     256 B  state, owner, epoch, detach request (64 B), polled (64 B), retired (64 B),
//!                             cooperative copy (64 B); then data slots, credit slots and two reserved slots, 64 B each
//! ```
//! The file is as long as all lanes together, but sparse: only claimed lanes occupy memory. A peer checks the version
//! and every number that decides where it reads and writes ([`Facts::parse`]). So a peer that writes wrong values harms
//! only its own connections.

use super::doorbell::MAX_LANES;
use super::meeting_place::MeetingPlace;
use crate::{Address, LinkKind, Quota, SchemeName};
use weir_proto::wire::{self, SLOT_BYTES};

/// Version of this layout.
pub const LAYOUT_VERSION: u32 = 10;
const MAGIC: [u8; 8] = *b"weir-shm";
/// Length of the constant part. Unit: bytes.
pub const FACTS_BYTES: usize = 128;
/// Offset of the first lane: a multiple of the page size of every supported processor. Unit: bytes.
pub const LANES_OFFSET: u64 = 65536;
/// Length of the first part of the header. Unit: bytes.
pub const HEADER_BYTES: usize = 4096;
/// Length of the claim words behind it. Unit: bytes.
pub const CLAIMS_BYTES: usize = MAX_LANES as usize * 8;
/// Claim words in one part of 4096 bytes. Memory is reserved part by part.
pub const CLAIMS_PER_PART: u32 = 512;
/// Memory that a mailbox needs beside its lanes: the header, and the first part of the claim words. Unit: bytes.
pub const RESERVED_HEADER_BYTES: u64 = HEADER_BYTES as u64 + 8 * CLAIMS_PER_PART as u64;
/// Length of the header of a lane, before its slots. Unit: bytes.
pub const LANE_HEADER_BYTES: usize = 256;
/// Slots of a lane beside those for data and credit: one for `Detach`, one that an early wrap skips (`ring.rs`).
const RESERVED_SLOTS: u32 = 2;
/// Bound on the slots of a lane, so that no arithmetic below overflows.
pub const MAX_LANE_SLOTS: u32 = 1 << 20;

/// Memory of a lane with `slots` slots for data and credit. Unit: bytes.
pub fn lane_bytes(slots: u64, page_bytes: u64) -> u64 {
    let bytes = LANE_HEADER_BYTES as u64 + (slots + u64::from(RESERVED_SLOTS)) * SLOT_BYTES as u64;
    bytes.next_multiple_of(page_bytes)
}

/// Most slots for data and credit of a lane of at most `bytes` bytes.
pub fn lane_slots_within(bytes: u64) -> u64 {
    let slots = bytes.saturating_sub(LANE_HEADER_BYTES as u64) / SLOT_BYTES as u64;
    slots.saturating_sub(RESERVED_SLOTS.into())
}

/// `state` of a segment.
pub mod segment_state {
    /// The owner uses it.
    pub const OPEN: u32 = 1;
    /// The owner has closed it.
    pub const CLOSED: u32 = 2;
}

/// `state` of a lane.
pub mod lane_state {
    /// Claimed; its memory is reserved and its owner is named.
    pub const READY: u32 = 1;
    /// The reader does not read it any more.
    pub const REFUSED: u32 = 2;
    /// The writer has given up its reader and writes no more.
    pub const ABANDONED: u32 = 3;
}

/// The reason why bytes are not a valid segment or address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Not a segment.
    #[error("not a segment of weir")]
    Magic,
    /// A segment of another version.
    #[error(
        "the segment has layout version {have}; this process uses {LAYOUT_VERSION}: run one version of weir"
    )]
    Version {
        /// The version that was found.
        have: u32,
    },
    /// The owner writes packets of another format.
    #[error(
        "the segment has packet format {have}; this process uses {}: run one version of weir",
        wire::VERSION
    )]
    PacketFormat {
        /// The format that was found.
        have: u32,
    },
    /// A number in the header is out of its range.
    #[error("{field} is {have}; allowed: {allowed}")]
    Field {
        /// The name of the number.
        field: &'static str,
        /// Its value.
        have: u64,
        /// The allowed values.
        allowed: &'static str,
    },
}

/// The shape of the lanes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Data slots of a lane.
    pub data_slots: u32,
    /// Lanes with a smaller number have one data slot more.
    pub rest_lanes: u32,
    /// Data slots of a lane that its sender owns from the start. 0: all.
    pub start_slots: u32,
    /// Slots for credit packets.
    pub credit_slots: u32,
    /// Number of lanes.
    pub max_lanes: u32,
    /// No credits: senders count free slots.
    pub conditional: bool,
    /// The scheme, which gives the slots their meaning.
    pub scheme: SchemeName,
    /// Distance between lanes. Unit: bytes.
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
        let stride = lane_bytes(own, page_bytes);
        let scheme = SchemeName::default();
        Ok(Shape {
            data_slots,
            rest_lanes,
            start_slots: 0,
            credit_slots,
            max_lanes,
            conditional,
            scheme,
            stride,
        })
    }

    /// The same lanes, of which senders own only `start_slots` data slots from the start. 0: all.
    ///
    /// # Errors
    /// [`LayoutError::Field`] if `start_slots` exceeds the data slots.
    pub fn with_start_slots(self, start_slots: u32) -> Result<Shape, LayoutError> {
        if start_slots > self.data_slots {
            let (field, have) = ("starting slots", start_slots.into());
            return Err(LayoutError::Field { field, have, allowed: "0 to the data slots of a lane" });
        }
        Ok(Shape { start_slots, ..self })
    }

    /// The same lanes, for this scheme.
    pub fn with_scheme(self, scheme: SchemeName) -> Shape {
        Shape { scheme, ..self }
    }

    /// Slots of the ring of `lane`, including the reserved ones.
    pub fn lane_slots(&self, lane: u32) -> u32 {
        self.data_slots + u32::from(lane < self.rest_lanes) + self.credit_slots + RESERVED_SLOTS
    }

    /// The slots that the owner of `lane` can own. Without credits every slot is a data slot.
    pub fn quota(&self, lane: u32) -> Quota {
        let slots = self.lane_slots(lane) - RESERVED_SLOTS;
        if self.conditional {
            return Quota { data_slots: slots, start_slots: slots, credit_slots: 0 };
        }
        let data_slots = slots - self.credit_slots;
        let start_slots = if self.start_slots == 0 { data_slots } else { self.start_slots };
        Quota { data_slots, start_slots, credit_slots: self.credit_slots }
    }

    /// Offset of `lane`. Unit: bytes.
    pub fn lane_offset(&self, lane: u32) -> u64 {
        LANES_OFFSET + u64::from(lane) * self.stride
    }

    /// Memory of the header and of `lanes` lanes. Unit: bytes.
    pub fn reserved_bytes(&self, lanes: u32) -> u64 {
        RESERVED_HEADER_BYTES + u64::from(lanes) * self.stride
    }

    /// Length of the file. Unit: bytes.
    pub fn segment_bytes(&self) -> u64 {
        self.lane_offset(self.max_lanes)
    }
}

/// The constant part of a segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Process of the owner.
    pub pid: u32,
    /// The process's pid namespace (inode of `/proc/self/ns/pid`). 0: not known.
    pub pid_namespace: u64,
    /// The segment's random number, also part of its name.
    pub id: u64,
    /// Random key. Knowing it proves that a peer belongs to the job.
    pub key: [u8; 16],
    /// Senders must execute full fences, because the owner cannot use `membarrier`.
    pub full_fences: bool,
    /// The lanes.
    pub shape: Shape,
    /// Inode of the lock file that shows whether the owner runs.
    pub lock_file: u64,
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
    /// The facts as bytes, in native byte order, because shared memory stays within one host.
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
        put(88, &self.lock_file.to_ne_bytes());
        put(96, &self.shape.scheme.0);
        put(120, &u32::from(wire::VERSION).to_ne_bytes());
        bytes
    }

    /// Parses bytes that a peer wrote, with the length of its file. Checks every number.
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
        let have = take_u32(bytes, 120);
        if have != u32::from(wire::VERSION) {
            return Err(LayoutError::PacketFormat { have });
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
        .with_start_slots(take_u32(bytes, 80))?
        .with_scheme(SchemeName(take(bytes, 96)));
        if take_u64(bytes, 72) != shape.stride {
            return field("lane stride", take_u64(bytes, 72), "the bytes of its slots, rounded up to pages");
        }
        if file_bytes < shape.segment_bytes() {
            return field("file length", file_bytes, "at least the header and all lanes");
        }
        Ok(Facts {
            pid: take_u32(bytes, 16),
            pid_namespace: take_u64(bytes, 24),
            id: take_u64(bytes, 32),
            key: take(bytes, 40),
            full_fences: flags & 1 != 0,
            shape,
            lock_file: take_u64(bytes, 88),
        })
    }
}

/// The fields of an address that this link needs. The part of this link is the meeting place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentAddress {
    /// The segment's number: the identity of its endpoint.
    pub id: u64,
    /// Its key.
    pub key: [u8; 16],
    /// Who can open it.
    pub place: MeetingPlace,
}

impl SegmentAddress {
    /// The address of an endpoint that has only this link.
    pub fn address(&self) -> Address {
        let address = Address::new(self.id, self.key);
        address.with_part(LinkKind::SharedMemory, &self.place.0).expect("the first part has room")
    }

    /// Parses an address. `None`: its endpoint has no link of this kind, or it is of another version.
    pub fn parse(address: &Address) -> Option<SegmentAddress> {
        let place = MeetingPlace(address.part(LinkKind::SharedMemory)?.try_into().ok()?);
        Some(SegmentAddress { id: address.identity_word(), key: address.key(), place })
    }
}

/// Name of the segment file of `id`, for the user `uid`.
pub fn file_name(uid: u32, id: u64) -> String {
    format!("{}{id:016x}", file_prefix(uid))
}

/// The beginning of the names of all segments of a user.
pub fn file_prefix(uid: u32) -> String {
    format!("weir.{uid}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let shape = Shape::new(38, 2, 2, 100, false, 4096).expect("a shape");
        let shape = shape.with_start_slots(5).expect("fewer than 38").with_scheme(SchemeName::new("dynamic"));
        Facts { pid: 7, pid_namespace: 9, id: 0x1234, key: [3; 16], full_fences: false, shape, lock_file: 99 }
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
        assert_eq!(with(8, 5), Err(LayoutError::Version { have: 5 }));
        assert_eq!(with(120, 9), Err(LayoutError::PacketFormat { have: 9 }));
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
        let address = SegmentAddress { id: 0xfeed, key: [9; 16], place: MeetingPlace([7; 8]) };
        assert_eq!(SegmentAddress::parse(&address.address()), Some(address));
        let without_this_link = Address::new(address.id, address.key);
        assert_eq!(SegmentAddress::parse(&without_this_link), None);
        let without_place = without_this_link.with_part(LinkKind::SharedMemory, &[7; 7]).expect("room");
        assert_eq!(SegmentAddress::parse(&without_place), None);
    }
}
