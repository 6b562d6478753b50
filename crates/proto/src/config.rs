//! Settings of one endpoint machine, and where its bounds stand.

use core::num::NonZeroU32;

use crate::packet::Geometry;

/// How a receiver is kept from drowning. Chosen at run time, so that one binary compares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// No flow control but the link's own: a sender looks whether there is room. The reference.
    Unlimited,
    /// Receiver not ready: no credits, a refused packet is tried again after a while. Source: Liu & Panda.
    Hardware {
        /// How long a sender waits after a refusal (RNR timer).
        rnr_timer_ns: u64,
        /// Attempts after the first; [`crate::flow::hardware::WITHOUT_LIMIT`] (7) is for ever.
        rnr_retries: u8,
    },
    /// Credits, a fixed quota per sender. Source: thesis, chapter 5.
    Static {
        /// Return credits with the last packet of messages of the other direction too (5.4).
        piggyback: bool,
    },
    /// Credits, pre-posted buffers for each connection. Source: Liu & Panda, "user-level static".
    StaticConnection {
        /// Credits that gather before an explicit credit message returns them; `None`: half of the buffers.
        ecm_threshold: Option<NonZeroU32>,
    },
    /// The same, but buffers grow when senders had to wait. Source: Liu & Panda, "user-level dynamic".
    AdaptiveBacklog {
        /// How they grow.
        growth: Growth,
        /// As above, of the buffers that there are.
        ecm_threshold: Option<NonZeroU32>,
    },
}

impl Scheme {
    /// Whether a receiver tells its senders what they may fill, so that it needs a way to them; else senders look for room.
    #[inline]
    pub fn grants(&self) -> bool {
        !matches!(self, Scheme::Unlimited | Scheme::Hardware { .. })
    }
}

/// How adaptive backlog raises the buffers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// By so many.
    Linear {
        /// Unit: slots.
        slots: NonZeroU32,
    },
    /// To twice as many.
    Exponential,
}

/// Bound: no setting lets longer messages travel whole, so a first packet that claims more is malformed. Unit: bytes.
pub const MAX_EAGER_BYTES: u64 = 1 << 20;

/// Everything the machine is told when it is made.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The scheme.
    pub scheme: Scheme,
    /// What a slot holds on the link.
    pub geometry: Geometry,
    /// Credit slots per peer, `n` in the papers.
    pub credit_slots: u32,
    /// Longest message that travels whole; longer ones are pulled. Unit: bytes.
    pub eager_bytes: u64,
    /// Processes can copy from each other's memory.
    pub cross_memory: bool,
    /// Remote reads and writes up to this size travel in packets even with `cross_memory`. Unit: bytes.
    pub remote_inline_bytes: u64,
    /// Bound: unexpected messages waiting; beyond it the peer that sends one is lost, for want of a better answer until
    /// receivers can hold senders back. An envelope takes about 150 bytes.
    pub max_unexpected: u32,
}
