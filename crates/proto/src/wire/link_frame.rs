//! The frames of links that send datagrams: what the two links of a path say to each other between packets
//! ([`LinkFrame`]). A datagram carries packets and frames in the order in which they were made.
//!
//! This file does not know what a link does with them.
//! ```text
//! A -> B   attach, lease 7                              I want to send to your mailbox
//! B -> A   lease 7, 1024 data slots, 64 at the start    you may
//! B -> A   grant 64                                      you may have 64 datagrams under way
//! A -> B   rest 1388                                     so many bytes of the packet that the last datagram has begun
//! A -> B   fill 40                                       so many zeros behind it end the datagram
//! A -> B   8 B, too few for a frame                      the same: the bytes of the word of the datagram, inverted
//! A -> B   want key 9a, 128 KiB from 0 on, number 70     contents of announced memory, under this number
//! B -> A   contents 1396 of number 70                    so many bytes of them follow
//! A -> B   leave, closed                                nothing more comes from here
//! ```

use super::layout::{Field, structure};
use super::{PacketError, VERSION};
use core::mem::{offset_of, size_of};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a frame. Unit: bytes.
pub const LINK_FRAME_BYTES: usize = LinkFrame::FIELD_BYTES;
/// Kind of a frame: the sender asks for a lane.
pub const ATTACH_FRAME: u8 = 128;
/// Kind of a frame: the answer to [`ATTACH_FRAME`].
pub const LEASE_FRAME: u8 = 129;
/// Kind of a frame: the sender has ended.
pub const LEAVE_FRAME: u8 = 130;
/// Kind of a frame: how many datagrams with packets the receiver of the frame may have under way to its sender.
pub const GRANT_FRAME: u8 = 131;
/// Kind of a frame: the next bytes belong to the packet with which the bundle before ended.
pub const REST_FRAME: u8 = 132;
/// Kind of a frame: the bytes behind it, up to the end of the datagram, mean nothing. It makes the datagram as long as others.
pub const FILL_FRAME: u8 = 133;
/// Kind of a frame: its sender wants contents of announced memory ([`WantFrame`]).
pub const WANT_FRAME: u8 = 134;
/// Length of a [`WantFrame`]. Unit: bytes.
pub const WANT_FRAME_BYTES: usize = WantFrame::FIELD_BYTES;
/// Kind of a frame: contents follow that a [`WantFrame`] has asked for ([`ContentsFrame`]).
pub const CONTENTS_FRAME: u8 = 135;
/// Length of a [`ContentsFrame`], without the contents. Unit: bytes.
pub const CONTENTS_FRAME_BYTES: usize = ContentsFrame::FIELD_BYTES;

structure! {
    /// A frame of a link. Its first six bytes mean the same as those of a packet.
    LinkFrame(0, LinkFrame::FIELD_BYTES) {
        /// The position on the path of the datagram's packets and frames.
        word: U32,
        /// Version of the format.
        version: u8,
        /// 128 attach, 129 lease, 130 leave, 131 grant, 132 rest, 133 fill.
        kind: u8,
        /// Attach, lease: its number. Leave: 0 died, 3 closed. Grant: datagrams. Rest, fill: bytes.
        number: U16,
        /// Lease: data slots. Otherwise 0.
        data_slots: U32,
        /// Lease: data slots that the sender of `attach` owns from the start. Otherwise 0.
        start_slots: U32,
        /// Lease: slots for credit packets. Otherwise 0.
        credit_slots: U32,
    }
}

structure! {
    /// A frame that wants contents. Its first six bytes mean the same as those of a packet.
    WantFrame(0, WantFrame::FIELD_BYTES) {
        /// The position on the path of the datagram's packets and frames.
        word: U32,
        /// Version of the format.
        version: u8,
        /// 134 want.
        kind: u8,
        /// Always 0.
        zero: U16,
        /// The memory, as its owner has announced it.
        key: U64,
        /// Offset in it, bytes.
        offset: U64,
        /// Number of what brings it; larger than all before on this path.
        number: U64,
        /// Length, bytes.
        bytes: U32,
    }
}

structure! {
    /// A frame before contents. Those of one number come in order, from their beginning. Its first six bytes mean the same as those
    /// of a packet.
    ContentsFrame(0, ContentsFrame::FIELD_BYTES) {
        /// The position on the path of the datagram's packets and frames.
        word: U32,
        /// Version of the format.
        version: u8,
        /// 135 contents.
        kind: u8,
        /// Bytes of contents behind the frame. 0: nobody offers the rest.
        bytes: U16,
        /// The number of the frame that wants them.
        number: U64,
    }
}

impl ContentsFrame {
    /// The frame before `bytes` bytes of what was wanted as `number`.
    pub fn new(number: u64, bytes: u16) -> ContentsFrame {
        ContentsFrame {
            word: 0.into(),
            version: VERSION,
            kind: CONTENTS_FRAME,
            bytes: bytes.into(),
            number: number.into(),
            unused: [],
        }
    }
}

impl WantFrame {
    /// The frame that wants `bytes` bytes of the memory with this key from `offset` on, in the message `number`.
    pub fn new(key: u64, offset: u64, number: u64, bytes: u32) -> WantFrame {
        WantFrame {
            word: 0.into(),
            version: VERSION,
            kind: WANT_FRAME,
            zero: 0.into(),
            key: key.into(),
            offset: offset.into(),
            number: number.into(),
            bytes: bytes.into(),
            unused: [],
        }
    }
}

/// A frame of any form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// All kinds but the other ones.
    Link(LinkFrame),
    /// [`WANT_FRAME`].
    Want(WantFrame),
    /// [`CONTENTS_FRAME`].
    Contents(ContentsFrame),
}

/// The frame of this form at the beginning of `bytes`.
fn read_frame<F: FromBytes + Immutable + KnownLayout + Copy>(
    bytes: &[u8],
    version: impl FnOnce(&F) -> u8,
) -> Result<F, PacketError> {
    match F::read_from_prefix(bytes) {
        Err(_) => Err(PacketError::Truncated { have_bytes: bytes.len(), need_bytes: size_of::<F>() }),
        Ok((frame, _)) => match version(&frame) {
            VERSION => Ok(frame),
            have => Err(PacketError::Version { have }),
        },
    }
}

impl Frame {
    /// The frame at the beginning of `bytes`. `None`: a packet begins there, or bytes that [`super::decode_bytes`]
    /// refuses.
    ///
    /// # Errors
    /// [`PacketError::Truncated`], [`PacketError::Version`].
    pub fn read(bytes: &[u8]) -> Result<Option<Frame>, PacketError> {
        match bytes.get(offset_of!(LinkFrame, kind)).copied() {
            Some(CONTENTS_FRAME) => {
                read_frame(bytes, |frame: &ContentsFrame| frame.version).map(Frame::Contents).map(Some)
            }
            Some(WANT_FRAME) => {
                read_frame(bytes, |frame: &WantFrame| frame.version).map(Frame::Want).map(Some)
            }
            _ => Ok(LinkFrame::read(bytes)?.map(Frame::Link)),
        }
    }
}

impl LinkFrame {
    /// [`Frame::read`] for all kinds but [`WANT_FRAME`] and [`CONTENTS_FRAME`].
    ///
    /// # Errors
    /// As there.
    pub fn read(bytes: &[u8]) -> Result<Option<LinkFrame>, PacketError> {
        let kind = bytes.get(offset_of!(LinkFrame, kind));
        if !kind.is_some_and(|kind| (ATTACH_FRAME..=FILL_FRAME).contains(kind)) {
            return Ok(None);
        }
        read_frame(bytes, |frame: &LinkFrame| frame.version).map(Some)
    }
}
