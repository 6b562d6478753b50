//! Settings of one endpoint machine, and where its bounds stand.

use crate::packet::Geometry;

/// How a receiver is kept from drowning. Chosen at run time, so that one binary compares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// No flow control but the link's own: a sender looks whether there is room. The reference.
    Unlimited,
    /// Credits, a fixed quota per sender. Source: thesis, chapter 5.
    Static {
        /// Return credits with the last packet of messages of the other direction too (5.4).
        piggyback: bool,
    },
}

/// Bound: no setting lets longer messages travel whole, so a first packet that claims more is malformed. Unit: bytes.
pub const MAX_EAGER_BYTES: u64 = 1 << 20;

/// Bound: what an unexpected message costs beside its payload, lists and indexes included. (One with a length of 4 GiB or
/// more, or completion data beyond 32 bits, costs about 200 bytes more.) Unit: bytes.
pub const ENVELOPE_BYTES: u64 = 64;

/// Bound: no setting lets more unexpected messages wait. Their places are numbers of three bytes.
pub const MAX_UNEXPECTED: u32 = crate::message::slab::MAX_SLOTS;

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
    /// receivers can hold senders back. At most [`MAX_UNEXPECTED`].
    pub max_unexpected: u32,
    /// What unexpected payload may cost, over all senders. Only schemes with credits keep to it. Unit: bytes.
    pub unexpected_budget_bytes: u64,
    /// Copies of our own messages for receivers that have no room for them; beyond it sends complete when their data is taken.
    /// Unit: bytes.
    pub retain_bytes: u64,
    /// Senders that our mailbox is planned for, each with [`Config::planned_quota_slots`]; 0: not known. All endpoints of a job
    /// are expected to have the same plan.
    pub planned_peers: u32,
    /// The most data slots of one sender, as planned.
    pub planned_quota_slots: u32,
}
