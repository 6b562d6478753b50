//! An unexpected message in 36 bytes, with its links in the order of arrival.
//!
//! The messages of MPI libraries fit: lengths below 4 GiB, completion data of 32 bits (a rank), addresses of 48 bits
//! without a key, and 2^24 senders. Any other message is *wide*: one with larger values, or an announced one that needs
//! an acknowledgement of its own. A side map stores it as it is, and its entry holds only the order and the tag.

use alloc::collections::BTreeMap;

use super::{Payload, Unexpected};
use crate::action::Envelope;
use crate::event::{Peer, Transfer};
use crate::message::slab::Link;
use crate::packet::{RemoteAddress, Space};

/// The messages that are wide, by slot.
pub(super) type Wide = BTreeMap<u32, Unexpected>;

/// Memory of one message in the map, with links and empty places: a node is at least half full.
pub(super) const WIDE_BYTES: usize = 2 * (size_of::<u32>() + size_of::<Unexpected>());

const KIND: u8 = 0b0000_0011;
const WHOLE: u8 = 0;
const ARRIVING: u8 = 1;
const WITH_SENDER: u8 = 2;
const WIDE: u8 = 3;
const TAGGED: u8 = 1 << 2;
const DATA: u8 = 1 << 3;
const ACKNOWLEDGE: u8 = 1 << 4;
const CLAIMED: u8 = 1 << 5;
const SEEN: u8 = 1 << 6;

/// A packed message. It has only bytes, so it has no alignment and no padding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub next: Link,
    pub previous: Link,
    tag: [u8; 8],
    from: [u8; 3],
    flags: u8,
    length: [u8; 4],
    data: [u8; 4],
    /// The transfer to acknowledge, or the transfer that names the payload.
    transfer: [u8; 4],
    /// The address at the sender, or the bytes that have arrived.
    position: [u8; 6],
}

impl Entry {
    /// Packs `message`, or marks the entry as wide.
    pub fn pack(message: &Unexpected, next: Link, previous: Link) -> Entry {
        Self::pack_narrow(message, next, previous).unwrap_or(Entry {
            next,
            previous,
            tag: message.envelope.tag.to_le_bytes(),
            from: [0; 3],
            flags: WIDE,
            length: [0; 4],
            data: [0; 4],
            transfer: [0; 4],
            position: [0; 6],
        })
    }

    fn pack_narrow(message: &Unexpected, next: Link, previous: Link) -> Option<Entry> {
        let Unexpected { space, envelope, payload, acknowledge, claimed, seen } = *message;
        let (kind, transfer, position) = match payload {
            Payload::Whole => (WHOLE, acknowledge, 0),
            Payload::Arriving { bytes } => (ARRIVING, acknowledge, bytes),
            // Both transfers share one field: receiving a rendezvous acknowledges it.
            Payload::WithSender { address, .. } if acknowledge.is_some() || address.key != 0 => return None,
            Payload::WithSender { transfer, address } => (WITH_SENDER, Some(transfer), address.address),
        };
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = kind
            | flag(space == Space::Tagged, TAGGED)
            | flag(envelope.data.is_some(), DATA)
            | flag(acknowledge.is_some(), ACKNOWLEDGE)
            | flag(claimed, CLAIMED)
            | flag(seen, SEEN);
        Some(Entry {
            next,
            previous,
            tag: envelope.tag.to_le_bytes(),
            from: narrow(u64::from(envelope.from.0))?,
            flags,
            length: narrow(envelope.length)?,
            data: narrow(envelope.data.unwrap_or(0))?,
            transfer: transfer.map_or([0; 4], |transfer| transfer.0.to_le_bytes()),
            position: narrow(position)?,
        })
    }

    /// The message. `slot` is the position of the entry.
    pub fn unpack(&self, slot: u32, wide: &Wide) -> Unexpected {
        if self.is_wide() {
            return wide[&slot];
        }
        let set = |flag: u8| self.flags & flag != 0;
        let transfer = Transfer(u32::from_le_bytes(self.transfer));
        let envelope = self.narrow_envelope();
        let payload = match self.flags & KIND {
            WHOLE => Payload::Whole,
            ARRIVING => Payload::Arriving { bytes: widen(self.position) },
            _ => {
                let address = RemoteAddress::without_key(widen(self.position));
                Payload::WithSender { transfer, address }
            }
        };
        Unexpected {
            space: if set(TAGGED) { Space::Tagged } else { Space::Untagged },
            envelope,
            payload,
            acknowledge: set(ACKNOWLEDGE).then_some(transfer),
            claimed: set(CLAIMED),
            seen: set(SEEN),
        }
    }

    /// The envelope of a message that is not wide.
    #[inline]
    fn narrow_envelope(&self) -> Envelope {
        Envelope {
            from: Peer(widen(self.from) as u32),
            tag: self.tag(),
            data: (self.flags & DATA != 0).then_some(widen(self.data)),
            length: widen(self.length),
        }
    }

    /// The envelope of a message that is buffered whole, not wide, not claimed, and needs no acknowledgement.
    #[inline]
    pub fn plain_whole(&self) -> Option<Envelope> {
        (self.flags & (KIND | ACKNOWLEDGE | CLAIMED) == WHOLE).then(|| self.narrow_envelope())
    }

    #[inline]
    pub fn is_wide(&self) -> bool {
        self.flags & KIND == WIDE
    }

    #[inline]
    pub fn tag(&self) -> u64 {
        u64::from_le_bytes(self.tag)
    }

    #[inline]
    pub fn from(&self, slot: u32, wide: &Wide) -> Peer {
        if self.is_wide() { wide[&slot].envelope.from } else { Peer(widen(self.from) as u32) }
    }
}

/// The low bytes of a number whose other bytes are zero.
#[inline]
fn narrow<const BYTES: usize>(number: u64) -> Option<[u8; BYTES]> {
    let low = *number.to_le_bytes().first_chunk()?;
    (widen(low) == number).then_some(low)
}

#[inline]
fn widen<const BYTES: usize>(low: [u8; BYTES]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..BYTES].copy_from_slice(&low);
    u64::from_le_bytes(bytes)
}
