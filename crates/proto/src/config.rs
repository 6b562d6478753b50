//! Settings of one endpoint machine ([`Config`]): the scheme of flow control ([`Scheme`]), the data region that dynamic
//! credits share ([`DataRegion`]), and bounds.
//!
//! This file does not know environment variables or files: the driver fills in [`Config`].

use core::num::NonZeroU32;

use crate::packet::Geometry;

/// A method by which a receiver bounds its memory for incoming messages. The scheme is chosen at run time, so that one
/// binary can compare all schemes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// No flow control except that of the link: a sender asks whether slots are free. The reference for overheads.
    Unlimited,
    /// Receiver not ready (RNR): no credits. A refused packet is sent again after a while. Source: Liu & Panda.
    Hardware {
        /// Time for which a sender waits after a refusal (RNR timer).
        rnr_timer_ns: u64,
        /// Attempts after the first. [`crate::flow::hardware::WITHOUT_LIMIT`] (7) means no limit.
        rnr_retries: u8,
    },
    /// Credits, a fixed quota per sender. Source: thesis, chapter 5.
    Static {
        /// Return credits also with the last packet of each message of the other direction (5.4).
        piggyback: bool,
    },
    /// Credits, pre-posted buffers for each connection. Source: Liu & Panda, "user-level static".
    StaticConnection {
        /// Credits that accumulate before an explicit credit message returns them. `None`: half of the buffers.
        ecm_threshold: Option<NonZeroU32>,
    },
    /// As `StaticConnection`, but the buffers grow when senders had to wait. Source: Liu & Panda, "user-level dynamic".
    AdaptiveBacklog {
        /// Their growth.
        growth: Growth,
        /// As in `StaticConnection`, for the current number of buffers.
        ecm_threshold: Option<NonZeroU32>,
    },
    /// Credits that move to the senders that use them. All senders share one data region. Source: thesis, chapter 6.
    Dynamic {
        /// As for static credits, with the threshold rules of 6.6.
        piggyback: bool,
    },
    /// Credits that are lent when a sender says how many it needs, with piggybacking. All senders share one data region.
    /// Source: weir's own ([`crate::flow::demand_credits`]).
    Demand,
}

impl Scheme {
    /// The names of all schemes. An address has the place of a name in this list, so new ones come last.
    pub const NAMES: [&'static str; 7] =
        ["unlimited", "hardware", "static", "static-connection", "adaptive", "dynamic", "demand"];

    /// Its name, as `FI_WEIR_FLOW` has it.
    pub const fn name(&self) -> &'static str {
        Scheme::NAMES[match self {
            Scheme::Unlimited => 0,
            Scheme::Hardware { .. } => 1,
            Scheme::Static { .. } => 2,
            Scheme::StaticConnection { .. } => 3,
            Scheme::AdaptiveBacklog { .. } => 4,
            Scheme::Dynamic { .. } => 5,
            Scheme::Demand => 6,
        }]
    }

    /// Whether all senders share one data region.
    #[inline]
    pub fn shares_region(&self) -> bool {
        matches!(self, Scheme::Dynamic { .. } | Scheme::Demand)
    }

    /// Whether a receiver grants credits to its senders, and so needs a lane to them. In other schemes senders ask for
    /// free slots.
    #[inline]
    pub fn grants(&self) -> bool {
        !matches!(self, Scheme::Unlimited | Scheme::Hardware { .. })
    }
}

/// The rule by which adaptive backlog raises the buffers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// By a fixed number.
    Linear {
        /// Unit: slots.
        slots: NonZeroU32,
    },
    /// By doubling.
    Exponential,
}

/// The moment when a sender gets its share of the data region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachPolicy {
    /// When it attaches. Its starting credits are reserved for it. Attached senders share all other slots.
    #[default]
    FirstContact,
    /// All senders from the start, in equal parts, whether they ever send or not. As published.
    Start,
}

/// The data region of an endpoint, in schemes whose senders share one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataRegion {
    /// Size, at least `peers * start_slots`. Unit: slots.
    pub slots: u32,
    /// Number of expected senders. For each additional sender the region grows by its starting credits if no slots are
    /// free.
    pub peers: u32,
    /// Credits of a sender before the first grant, at least `credit_slots`. The link tells senders this number.
    pub start_slots: u32,
    /// The moment when senders get their shares.
    pub attach_policy: AttachPolicy,
    /// Number of times that a sender that has just gained quota is not chosen as a victim. 0: as published.
    pub grace_points: u8,
}

impl DataRegion {
    /// Default minimum of data slots in a mailbox: 256 KiB where a slot has 64 B. It gives a small job as much as it
    /// can use.
    pub const MIN_SLOTS: u32 = 4096;
    /// Default maximum of data slots that one sender can hold. More slots help senders that lose their core while they
    /// wait, so the shared-memory driver gives more among few ranks.
    pub const MAX_LANE_SLOTS: u32 = 1024;
    /// Maximum of starting credits: enough for an eager message of the default size.
    pub const MAX_START_SLOTS: u32 = 256;
    /// See [`DataRegion::grace_points`] (docs/explanation/flow-control.md, gap 7).
    pub const GRACE_POINTS: u8 = 4;

    /// The starting credits of all expected senders together. Unit: slots.
    ///
    /// # Panics
    /// If the region is too small for them, if a sender's are fewer than `credit_slots`, or if these are not allowed.
    pub(crate) fn assert_holds_starting_credits(&self, credit_slots: u32) -> u32 {
        let DataRegion { slots, peers, start_slots, .. } = *self;
        assert!(
            (1..=MAX_CREDIT_SLOTS).contains(&credit_slots),
            "{credit_slots} credit slots, allowed are 1 to {MAX_CREDIT_SLOTS}"
        );
        assert!(
            start_slots >= credit_slots,
            "{start_slots} starting credits are fewer than the {credit_slots} guaranteed ones"
        );
        let starting = u64::from(start_slots) * u64::from(peers);
        assert!(
            u64::from(slots) >= starting,
            "a region of {slots} slots cannot hold {start_slots} slots for each of {peers} senders"
        );
        starting as u32
    }

    /// Default slots of a region for `peers` senders: `slots_per_peer` for each.
    pub fn default_slots(slots_per_peer: u32, peers: u32) -> u32 {
        slots_per_peer.saturating_mul(peers).max(DataRegion::MIN_SLOTS)
    }

    /// The region that engine and simulator use. A sender that attaches at first contact starts with enough credits for
    /// most first messages. The starting credits of all expected senders take at most a quarter of the region. The rest
    /// is for active senders.
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

/// Bound on [`Config::credit_slots`], so that the thresholds of a sender fit into an array.
pub const MAX_CREDIT_SLOTS: u32 = 16;

/// Bound on the eager limit. A first packet that claims a longer message is malformed. Unit: bytes.
pub const MAX_EAGER_BYTES: u64 = 1 << 20;
/// The eager limit that drivers may choose for peers that cannot read our memory, without asking the program. Unit: bytes.
pub const FAR_EAGER_BYTES: u64 = 64 << 10;

/// Bound on the outstanding remote reads and writes of an endpoint with one peer. The peer keeps at most as many answers
/// that wait for credit. An initiator that exceeds it is malformed.
pub const MAX_REMOTE_OPERATIONS: u32 = 1 << 16;

/// Bound on the cost of an unexpected message beside its payload, with lists and indexes. A message of 4 GiB or more,
/// or with completion data beyond 32 bits, costs about 200 bytes more. Unit: bytes.
pub const ENVELOPE_BYTES: u64 = 64;

/// Memory of a receiver for one peer that has sent, beside its lane: entry, pending work, the record of a holder, address.
/// Unit: bytes.
pub const PEER_BYTES: u64 = 1024;

/// Bound on the number of unexpected messages. Their slots have numbers of three bytes.
pub const MAX_UNEXPECTED: u32 = crate::message::slab::MAX_SLOTS;

/// [`Config::envelope_budget_bytes`] without a limit: senders hold no messages.
pub const NO_ENVELOPE_BUDGET: u64 = u64::MAX;

/// All settings of an endpoint machine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The scheme.
    pub scheme: Scheme,
    /// The shape of slots on the link.
    pub geometry: Geometry,
    /// Credit slots per peer, `n` in the papers; in schemes with a shared region also the credits guaranteed to every sender.
    pub credit_slots: u32,
    /// Schemes with a shared region only.
    pub region: DataRegion,
    /// Eager limit: longer messages use rendezvous. Unit: bytes.
    pub eager_bytes: u64,
    /// Processes can copy from each other's memory.
    pub cross_memory: bool,
    /// Remote reads and writes up to this size travel in packets even with `cross_memory`. Unit: bytes.
    pub remote_inline_bytes: u64,
    /// Bound on the backlog entries of each peer. Beyond it the endpoint refuses sends, reads and writes to this peer that
    /// would wait.
    pub max_backlog: u32,
    /// Bound on queued unexpected messages. The machine drops a peer that exceeds it. At most [`MAX_UNEXPECTED`].
    pub max_unexpected: u32,
    /// Budget for the payload of unexpected messages of all senders. Schemes without credits ignore it. Unit: bytes.
    pub unexpected_budget_bytes: u64,
    /// Limit for bounce buffers, which hold our messages for receivers without memory. Beyond it a send completes when
    /// its receiver has the data. Unit: bytes.
    pub bounce_bytes: u64,
    /// Budget for the envelopes of unexpected messages of all senders, [`ENVELOPE_BYTES`] each. Beyond it, senders hold
    /// their messages. [`NO_ENVELOPE_BUDGET`]: no limit. Schemes without credits ignore it. Unit: bytes.
    pub envelope_budget_bytes: u64,
    /// Senders that our mailbox is planned for, each with [`Config::planned_quota_slots`]. 0: unknown. All endpoints of
    /// a job are expected to have the same plan.
    pub planned_peers: u32,
    /// Planned maximum of data slots of one sender.
    pub planned_quota_slots: u32,
}

impl Config {
    /// Whether senders hold messages for receivers without space for envelopes.
    pub fn holds(&self) -> bool {
        self.envelope_budget_bytes != NO_ENVELOPE_BUDGET && self.scheme.grants()
    }
}
