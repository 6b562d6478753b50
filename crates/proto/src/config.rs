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
    /// Credits that move to the senders that use them, out of one data region. Source: thesis, chapter 6.
    Dynamic {
        /// As for static credits; with what that means for thresholds (6.6).
        piggyback: bool,
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

/// When a sender gets its share of the data region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachPolicy {
    /// When it attaches: its starting credits are set aside for it, everything else belongs to those who are there.
    #[default]
    FirstContact,
    /// All from the start, the region in equal parts, whether they ever send or not. As published.
    Start,
}

/// The data region of an endpoint with dynamic credits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataRegion {
    /// Its size: at least `peers * start_slots`. Unit: slots.
    pub slots: u32,
    /// Senders that are expected. For every one more the region grows by its starting credits, if none are free.
    pub peers: u32,
    /// Credits that a sender has before it was granted any, at least the credit slots. The link tells senders.
    pub start_slots: u32,
    /// When senders get their shares.
    pub attach_policy: AttachPolicy,
    /// So many times a sender that has just gained credits from another is passed over as a victim. 0: as published.
    pub grace_points: u8,
}

impl DataRegion {
    /// The least data slots of a mailbox, if nobody says how many, not even the driver: a small job has as much as it can use. 256 KiB where a slot
    /// has 64 B.
    pub const MIN_SLOTS: u32 = 4096;
    /// The most data slots that one sender can hold, if nobody says how many. More are of use to senders that lose their cores while they wait: among few
    /// ranks the driver of shared memory gives more.
    pub const MAX_LANE_SLOTS: u32 = 1024;
    /// The most credits of a sender that was not heard of before: an eager message of the default size and more.
    pub const MAX_START_SLOTS: u32 = 256;
    /// See [`DataRegion::grace_points`] (docs/explanation/flow-control.md, gap 7).
    pub const GRACE_POINTS: u8 = 4;

    /// The slots of a region for `peers` senders, if nobody says how many: `slots_per_peer` for each.
    pub fn default_slots(slots_per_peer: u32, peers: u32) -> u32 {
        slots_per_peer.saturating_mul(peers).max(DataRegion::MIN_SLOTS)
    }

    /// A region as weir uses it; engine and simulator take it from here. Who is admitted at first contact begins with enough
    /// for most first messages, as long as a quarter of the region is enough for all that are expected; so three quarters are
    /// there for those who send.
    pub fn shared(slots: u32, peers: u32, credit_slots: u32, attach_policy: AttachPolicy) -> DataRegion {
        let most_slots = slots.min(DataRegion::MAX_LANE_SLOTS);
        let start_slots = match attach_policy {
            AttachPolicy::Start => credit_slots,
            AttachPolicy::FirstContact => {
                (slots / (4 * peers)).clamp(credit_slots, DataRegion::MAX_START_SLOTS).min(most_slots)
            }
        };
        DataRegion { slots, peers, start_slots, attach_policy, grace_points: DataRegion::GRACE_POINTS }
    }
}

/// Bound on [`Config::credit_slots`], so that the thresholds of a sender have a place of fixed size.
pub const MAX_CREDIT_SLOTS: u32 = 16;

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
    /// Credit slots per peer, `n` in the papers; with dynamic credits also the credits guaranteed to every sender.
    pub credit_slots: u32,
    /// Dynamic credits only.
    pub region: DataRegion,
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
    /// BounceBuffers of our own messages for receivers that have no room for them; beyond it sends complete when their data is taken.
    /// Unit: bytes.
    pub bounce_bytes: u64,
    /// Senders that our mailbox is planned for, each with [`Config::planned_quota_slots`]; 0: not known. All endpoints of a job
    /// are expected to have the same plan.
    pub planned_peers: u32,
    /// The most data slots of one sender, as planned.
    pub planned_quota_slots: u32,
}
