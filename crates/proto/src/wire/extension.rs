//! The link extension: the header that a datagram has in front of its packets on links that can lose them.
//!
//! It acknowledges datagrams by number and packets by word. It does not order packets: the word of the link in each packet
//! does. It does not know how a tag is made, and when datagrams leave ([`crate::reliability`]).
//! ```text
//! byte  0           32                                   end - 16        end
//!       extension   packet, frame, packet, ...           tag
//! ```

use super::layout::{Field, structure};
use super::{PacketError, VERSION};
use core::mem::{offset_of, size_of};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the extension. Unit: bytes.
pub const EXTENSION_BYTES: usize = LinkExtension::FIELD_BYTES;
/// Length of the authentication tag. Unit: bytes.
pub const TAG_BYTES: usize = 16;
/// Where the verification tag is in a datagram.
pub const VERIFICATION_AT: usize = offset_of!(LinkExtension, verification);
/// Bit of the flags: the sender asks for an answer at once.
pub const EXTENSION_ASKS: u8 = 1;
/// The first of the bits of the flags that say how long the acknowledgement may wait.
pub const EXTENSION_DELAY_SHIFT: u32 = 1;
/// Those bits: the usual delay is doubled so often.
pub const EXTENSION_DELAY: u8 = 7 << EXTENSION_DELAY_SHIFT;
const KNOWN_FLAGS: u8 = EXTENSION_ASKS | EXTENSION_DELAY;

structure! {
    /// The link extension.
    LinkExtension(0, LinkExtension::FIELD_BYTES) {
        /// Version of the format.
        version: u8,
        /// Bit 0: asks for an answer at once. Bits 1 to 3: how often the delay of the answer may double.
        flags: u8,
        /// The sender's epoch, not 0. Both epochs are parts of the nonce.
        epoch: U16,
        /// The destination's epoch; 0 if the sender does not know it. Then no packets follow.
        destination_epoch: U16,
        /// Datagrams of the destination that arrived with a mark (ECN), modulo 2^16.
        marks: U16,
        /// Verification tag of the destination (RFC 9260, section 3.1). Only peers know it.
        verification: U32,
        /// Number of the datagram, modulo 2^32. Each transmission has a new one.
        number: U32,
        /// All packets of the destination whose word is before this one have arrived.
        acknowledged: U32,
        /// The latest datagram of the destination that has arrived.
        latest: U32,
        /// Bit i: the datagram with the number `latest` - 1 - i has arrived.
        arrived: U64,
    }
}

/// Splits a datagram into its extension and the rest, and checks the extension.
///
/// # Errors
/// [`PacketError::Truncated`], [`PacketError::Version`], [`PacketError::Flags`].
pub fn split_extension(datagram: &[u8]) -> Result<(LinkExtension, &[u8]), PacketError> {
    let (extension, rest) = LinkExtension::read_from_prefix(datagram)
        .map_err(|_| PacketError::Truncated { have_bytes: datagram.len(), need_bytes: EXTENSION_BYTES })?;
    match extension {
        LinkExtension { version, .. } if version != VERSION => Err(PacketError::Version { have: version }),
        LinkExtension { flags, .. } if flags & !KNOWN_FLAGS != 0 => {
            Err(PacketError::Flags { have: flags.into(), allowed: KNOWN_FLAGS.into() })
        }
        _ => Ok((extension, rest)),
    }
}
