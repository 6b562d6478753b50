//! What crosses the border of a reliable path: a [`Header`], a [`Datagram`] that arrives, the [`DatagramDriver`] that a
//! path calls, the [`PathFault`] that ends it, and its [`ReliabilityConfig`].
//!
//! A header is the link extension as numbers ([`LinkExtension`]). Bytes of bundles do not occur here.

use crate::driver::LinkBusy;
use crate::time::Instant;
use crate::wire::{EXTENSION_ASKS, EXTENSION_DELAY, EXTENSION_DELAY_SHIFT, LinkExtension, VERSION};

/// A path asks whether a silent peer lives after the limit divided by this.
pub(super) const STANDING_DIVISOR: u64 = 10;

/// The header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// The sender's epoch, not 0.
    pub epoch: u16,
    /// The epoch of the destination. 0: the sender does not know it, and the datagram carries no bundle.
    pub destination_epoch: u16,
    /// Number of the datagram. Each transmission has a new one.
    pub number: u32,
    /// All bundles of the destination before this position have arrived.
    pub acknowledged: u32,
    /// The latest number of the destination that has arrived.
    pub latest: u32,
    /// Bit i: the datagram with the number `latest` - 1 - i has arrived.
    pub arrived: u64,
    /// Marked datagrams of the destination that have arrived.
    pub marks: u16,
    /// The sender asks for an answer at once.
    pub asks: bool,
    /// The acknowledgement of the bundle may wait for the usual delay, doubled so often. At most 7.
    pub delay_doublings: u8,
}

impl From<Header> for LinkExtension {
    /// Without the verification tag, which the link knows.
    fn from(header: Header) -> LinkExtension {
        LinkExtension {
            version: VERSION,
            flags: (u8::from(header.asks) * EXTENSION_ASKS)
                | (header.delay_doublings << EXTENSION_DELAY_SHIFT),
            epoch: header.epoch.into(),
            destination_epoch: header.destination_epoch.into(),
            marks: header.marks.into(),
            verification: 0.into(),
            number: header.number.into(),
            acknowledged: header.acknowledged.into(),
            latest: header.latest.into(),
            arrived: header.arrived.into(),
            unused: [],
        }
    }
}

impl From<LinkExtension> for Header {
    fn from(extension: LinkExtension) -> Header {
        Header {
            epoch: extension.epoch.get(),
            destination_epoch: extension.destination_epoch.get(),
            number: extension.number.get(),
            acknowledged: extension.acknowledged.get(),
            latest: extension.latest.get(),
            arrived: extension.arrived.get(),
            marks: extension.marks.get(),
            asks: extension.flags & EXTENSION_ASKS != 0,
            delay_doublings: (extension.flags & EXTENSION_DELAY) >> EXTENSION_DELAY_SHIFT,
        }
    }
}

/// A datagram that has arrived unchanged. The link has checked its checksum or its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Its header.
    pub header: Header,
    /// The position of its bundle: the link's word in the first packet. `None`: it carries no packets.
    pub position: Option<u32>,
    /// A queue on its way was long (ECN, congestion experienced).
    pub marked: bool,
}

/// The reason why a path has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathFault {
    /// The oldest bundle or a question has waited for the limit.
    Silent,
    /// The peer has begun a new epoch, so it has lost everything of the old one.
    Restarted,
    /// The process of the peer has ended ([`Standing::Ended`]).
    Ended,
}

/// Whether the process of a silent peer lives, as somebody else says, for example its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody knows.
    Unknown,
    /// It lives, but does not run or computes.
    Lives,
    /// It has ended.
    Ended,
}

/// What a path asks its link to do. Positions have 64 bits here; their lower 32 bits are on the wire.
pub trait DatagramDriver {
    /// Sends a datagram with the bundle of `position`, which the driver has kept since [`super::ReliablePath::submit`].
    /// `None`: without a bundle.
    ///
    /// # Errors
    /// [`LinkBusy`]: the datagram was not sent. [`super::ReliablePath::writable`] follows.
    fn transmit(&mut self, header: &Header, position: Option<u64>) -> Result<(), LinkBusy>;
    /// Whether bundles leave through a queue on this host, which datagrams without a bundle pass. Then the arrival of one
    /// without a bundle does not show that bundles before it are lost.
    fn has_queue(&self) -> bool {
        false
    }
    /// Whether the last transmission of this bundle is in that queue. Then it is not lost, and another one would only wait
    /// behind it.
    fn is_queued(&self, position: u64) -> bool {
        let _ = position;
        false
    }
    /// Passes on the bundle of the datagram that is being handled.
    fn deliver(&mut self, position: u64);
    /// Keeps the bundle of the datagram that is being handled, until [`DatagramDriver::deliver_held`].
    fn hold(&mut self, position: u64);
    /// Passes on a bundle that was kept.
    fn deliver_held(&mut self, position: u64);
    /// The peer has received all bundles before this position, in order. The driver forgets its copies.
    fn acknowledged(&mut self, before: u64);
    /// [`super::ReliablePath::submit`] takes bundles again, after it has refused one.
    fn ready(&mut self);
    /// Whether the process of the peer lives. The path asks while the peer is silent, again and again.
    fn standing(&mut self) -> Standing {
        Standing::Unknown
    }
    /// Whether something at this end waits for the acknowledgement of what leaves now. Then the peer may not hold it back for
    /// longer than usual.
    fn awaits_acknowledgement(&self) -> bool {
        false
    }
    /// Whether several peers send more than this end takes at once. Then acknowledgements wait for company: each one wakes a
    /// sender, and costs this end a system call.
    fn is_crowded(&self) -> bool {
        false
    }
    /// Datagrams up to this length pass the path. Larger ones leave in fragments from now on, and new bundles are smaller.
    fn largest_datagram(&mut self, bytes: u32) {
        let _ = bytes;
    }
    /// The path has ended. It calls nothing more.
    fn lost(&mut self, fault: PathFault);
    /// Sets the timer of this path, instead of an earlier setting. [`super::ReliablePath::expired`] follows.
    fn set_timer(&mut self, at: Instant);
    /// The timer is not needed. It may expire all the same.
    fn cancel_timer(&mut self) {}
}

/// Parameters of a path. Both ends have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReliabilityConfig {
    /// Bundles that were submitted and are not acknowledged, and bundles that a receiver holds out of order. A power
    /// of two, at least 64.
    pub window_bundles: u32,
    /// The largest datagram. Unit: bytes.
    pub datagram_bytes: u32,
    /// A datagram that every path carries. Unit: bytes.
    pub base_datagram_bytes: u32,
    /// Bundles that may be under way before the peer has granted others ([`super::ReliablePath::set_grant`]).
    pub first_grant: u32,
    /// Bytes that leave at once while sends are paced.
    pub burst_bytes: u32,
    /// The longest time that an acknowledgement usually waits for something to ride on.
    pub acknowledgement_delay_ns: u64,
    /// A sender that needs no acknowledgement soon doubles that time at most so often. At most 7.
    pub max_delay_doublings: u8,
    /// Timeout before the first round trip is measured.
    pub first_timeout_ns: u64,
    /// The shortest timeout.
    pub min_timeout_ns: u64,
    /// The longest timeout, however often it was doubled.
    pub max_timeout_ns: u64,
    /// The peer is lost when the oldest bundle, or a question, has waited for so long, unless [`DatagramDriver::standing`]
    /// says that it lives.
    pub limit_ns: u64,
    /// The first number and the first position. They wrap around at 2^32, so tests begin near the end.
    pub start: u32,
    /// The link delivers every datagram once, or reports that the peer is lost. Then nothing is lost or late: no bundle is
    /// sent again.
    pub is_lossless: bool,
}

impl Default for ReliabilityConfig {
    fn default() -> ReliabilityConfig {
        ReliabilityConfig {
            window_bundles: 256,
            datagram_bytes: 1452,
            base_datagram_bytes: 1232,
            first_grant: u32::MAX,
            burst_bytes: 64 << 10,
            acknowledgement_delay_ns: 50_000,
            max_delay_doublings: 4,
            first_timeout_ns: 10_000_000,
            min_timeout_ns: 200_000,
            max_timeout_ns: 100_000_000,
            limit_ns: 10_000_000_000,
            start: 0,
            is_lossless: false,
        }
    }
}
