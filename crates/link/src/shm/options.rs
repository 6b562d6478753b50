//! Options of a mailbox, such as its lanes, their slots and its directory. The mailbox is created where there is memory
//! for it. The engine asks here how many bytes a lane needs ([`lane_bytes`]) when it plans a mailbox.

use super::layout::{LayoutError, MAX_LANE_SLOTS, RESERVED_HEADER_BYTES, Shape};
use super::segment::OwnSegment;
use super::segment_file::SystemError;
use super::{diagnostics, layout, segment_file};
use crate::SchemeName;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Memory of a mailbox without its lanes. Unit: bytes.
pub const MAILBOX_HEADER_BYTES: u64 = RESERVED_HEADER_BYTES;

/// Memory of a lane of so many data slots and credit slots. Unit: bytes.
pub fn lane_bytes(data_slots: u32, credit_slots: u32) -> u64 {
    layout::lane_bytes(u64::from(data_slots) + u64::from(credit_slots), segment_file::page_bytes())
}

/// Most data slots of a lane that has at most `bytes` bytes, beside `credit_slots` credit slots. 0: it has no room.
pub fn lane_data_slots(bytes: u64, credit_slots: u32) -> u32 {
    let pages = bytes / segment_file::page_bytes();
    let slots = layout::lane_slots_within(pages * segment_file::page_bytes());
    slots.saturating_sub(credit_slots.into()).min(MAX_LANE_SLOTS.into()) as u32
}

/// The options of a mailbox.
#[derive(Clone, Debug)]
pub struct ShmOptions {
    /// Directory of the segment files, on a tmpfs.
    pub dir: PathBuf,
    /// Prefer memory that the size of the directory's file system does not limit (memfd). The directory then has only
    /// the names. Without this such memory is used if the directory has no space. It is the same memory for the kernel,
    /// but only processes in one pid namespace can share it.
    pub in_memory: bool,
    /// Lanes whose memory is reserved as long as the mailbox exists. With at least one, senders can take turns when no
    /// other lane gets memory.
    pub reserved_lanes: u32,
    /// Ranks of the job on this node, for messages. 0: not known.
    pub ranks: u32,
    /// Free space in the directory with which all mailboxes of the job would be files there, for messages. 0: not known.
    /// Unit: bytes.
    pub needed_bytes: u64,
    /// No other endpoint reaches this one over shared memory, not even on the same node.
    pub is_private: bool,
    /// Data slots of every lane.
    pub quota_data_slots: u32,
    /// Lanes with a smaller number have one more data slot.
    pub quota_rest_lanes: u32,
    /// Data slots of a lane that its sender owns from the start. 0: all.
    pub start_slots: u32,
    /// Slots of every lane for credit packets.
    pub credit_slots: u32,
    /// Number of senders that can hold a lane at the same time.
    pub max_lanes: u32,
    /// Copy between processes with cross-memory attach.
    pub cross_memory: bool,
    /// Senders execute a full fence for each packet, so that the reader can sleep without `membarrier`. This suits
    /// nodes with more ranks than cores. The example `costs` measures both.
    pub full_fences: bool,
    /// Both sides copy a large message, if both wait in the library. This suits ranks with a core each.
    pub cooperative_copy: bool,
    /// No credits: senders count free slots ([`crate::FreeSlots`]), and all slots of a lane are data slots.
    pub conditional: bool,
    /// A peer is unreachable when the system has refused to open its mailbox for so long, for want of descriptors or of
    /// address space.
    pub refused_limit: Duration,
    /// The scheme. Peers with another one are not connected.
    pub scheme: SchemeName,
}

/// The mailbox could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// A setting is out of range.
    #[error("cannot make a mailbox: {0}")]
    Setting(#[from] LayoutError),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
}

impl ShmError {
    /// Whether memory is short. One process of the job has told the user then how much is needed.
    pub fn is_no_space(&self) -> bool {
        matches!(self, ShmError::System(error) if error.is_no_space())
    }
}

/// Makes the segment where there is space for it.
pub(super) fn create_segment(
    options: &ShmOptions,
    shape: Shape,
    full_fences: bool,
) -> Result<Arc<OwnSegment>, SystemError> {
    let create = |in_memory, reserved_lanes| {
        OwnSegment::create(&options.dir, shape, full_fences, reserved_lanes, in_memory)
    };
    if options.in_memory
        && let Ok(own) = create(true, options.reserved_lanes)
    {
        return Ok(own);
    }
    let error = match create(false, options.reserved_lanes) {
        Err(error) if error.is_no_space() => error,
        result => return result,
    };
    // More senders than reserved lanes take turns, so one lane suffices.
    create(true, options.reserved_lanes).or_else(|_| create(false, options.reserved_lanes.min(1))).map_err(
        |_| {
            let bytes = shape.reserved_bytes(options.reserved_lanes.min(1));
            diagnostics::report_too_small(&options.dir, options.ranks, bytes, &error.source);
            error
        },
    )
}

/// Options of a mailbox in `dir`, for tests of this crate.
#[cfg(test)]
pub fn for_tests(dir: &std::path::Path) -> ShmOptions {
    ShmOptions {
        dir: dir.to_owned(),
        in_memory: false,
        reserved_lanes: 0,
        ranks: 0,
        needed_bytes: 0,
        is_private: false,
        quota_data_slots: 14,
        quota_rest_lanes: 0,
        start_slots: 0,
        credit_slots: 2,
        max_lanes: 64,
        cross_memory: true,
        full_fences: false,
        cooperative_copy: true,
        conditional: false,
        refused_limit: Duration::from_secs(10),
        scheme: SchemeName::new("static"),
    }
}
