//! The mailbox plan ([`MailboxPlan`]): how many slots a lane has and how many of them its sender owns, by scheme,
//! settings and number of ranks. A [`Placement`] adds where the mailboxes of a job are: in the directory, or in memory
//! that no file system limits. If only the directory is left and it is small, lanes become shorter, and then fewer have
//! memory.

use weir_link::shm::{self, FileSystemSpace, MAX_LANE_SLOTS};
use weir_proto::flow::static_connection;
use weir_proto::{DataRegion, Scheme};

use super::list::MAILBOX_SLOTS;
use super::{QuotaRest, SettingError, Settings};
use crate::job::Job;

/// Data slots per sender when `FI_WEIR_MAILBOX_SLOTS` is 0.
pub const DEFAULT_SLOTS_PER_SENDER: u32 = 256;

/// With dynamic credits, the most data slots that a mailbox gets without `FI_WEIR_MAILBOX_SLOTS`, unless the number of
/// ranks requires more: 4 MiB. That is the node's memory and not an adapter's, so it exceeds [`DataRegion::MIN_SLOTS`].
/// With more ranks than cores a sender without credit loses its core, so more slots mean fewer switches
/// (docs/explanation/performance.md, "Incast").
const DEFAULT_MAX_SLOTS: u32 = 65_536;
/// Bytes of the unexpected-message budget for each of these slots. Packets that may still come under credits reserve 76
/// B of the budget for each slot of the region and of the starting credits. Most of the budget should remain.
const BUDGET_BYTES_PER_SLOT: u64 = 224;
/// One message of each rank, of the eager limit for ranks of other nodes, takes at most 1 / this of that budget.
const FAR_EAGER_SHARE: u64 = 4;
/// Most data slots of a lane whose sender shares the mailbox with few others: half of a core's second-level cache.
const MAX_DEFAULT_LANE_SLOTS: u32 = 8192;
/// Bounds on the lanes of all ranks of a job together, as long as no lane is shorter than
/// [`DataRegion::MAX_LANE_SLOTS`]: 32 MiB, and an eighth of their file system. Other jobs and spawned ranks have lanes
/// there too. A lane's memory is reserved as a whole.
const MAX_JOB_LANE_BYTES: u64 = 32 << 20;
const FILE_SYSTEM_DIVISOR: u64 = 8;

/// Bound on the lanes of one mailbox: the unexpected-message budget divided by this. A user who sets a small budget
/// wants a small mailbox too.
const BUDGET_DIVISOR: u64 = 4;

/// Most data slots that one of `peers` senders can hold at a time with dynamic credits; 0 peers: not known.
fn lane_slots(peers: u32, file_system_bytes: u64, budget_bytes: u64) -> u32 {
    let least = DataRegion::MAX_LANE_SLOTS;
    if peers == 0 {
        return least;
    }
    let of_job = MAX_JOB_LANE_BYTES.min(file_system_bytes / FILE_SYSTEM_DIVISOR);
    let of_mailbox = (budget_bytes / BUDGET_DIVISOR).min(of_job / u64::from(peers));
    let slots = of_mailbox / u64::from(peers) / weir_proto::wire::SLOT_BYTES as u64;
    slots.clamp(least.into(), MAX_DEFAULT_LANE_SLOTS.into()) as u32
}

/// The mailboxes of a job take at most 1 / this of what is free in their file system. MPI library and program have files
/// there too, mostly without reserved memory: they die of a signal when it is full.
const FREE_DIVISOR: u64 = 2;
/// The smallest lane: one page.
const MIN_LANE_BYTES: u64 = 4096;
/// Slots of a lane with the scheme `unlimited`: enough that a sender rarely checks for room.
const UNLIMITED_SLOTS: u32 = 1024;

/// The place of a mailbox, and its reserved memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// In memory that the size of a file system does not limit.
    pub in_memory: bool,
    /// Lanes whose memory is reserved as long as the mailbox exists.
    pub reserved_lanes: u32,
    /// Memory of all mailboxes of the job, if every rank sends to every rank. Unit: bytes.
    pub job_bytes: u64,
    /// Free space with which the mailboxes of the job would be in the directory. 0: no limit. Unit: bytes.
    pub needed_bytes: u64,
}

/// The shares of the senders in the slots of one mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxPlan {
    /// Data slots of every lane.
    pub base_slots: u32,
    /// The first lanes, this many, have one slot more.
    pub rest_lanes: u32,
    /// Starting credits of every sender; 0: all its data slots.
    pub start_slots: u32,
    /// Credit slots of every lane.
    pub credit_slots: u32,
    /// Dynamic credits: the region that all lanes share, with the same `start_slots`. Otherwise the default.
    pub region: DataRegion,
}

impl Settings {
    /// The settings of an endpoint of this job. With a network, longer messages are eager to ranks that cannot read our
    /// memory, if a message of each rank takes a small part of the budget. All ranks decide this alike.
    pub(crate) fn among(&self, job: &Job) -> Settings {
        let (ranks, far_bytes) = (job.ranks().job, self.far_eager_bytes);
        let cost_bytes = u64::from(ranks) * weir_proto::unexpected_cost_bytes(far_bytes.into());
        let suffices = ranks > 0 && cost_bytes <= self.unexpected_budget_bytes / FAR_EAGER_SHARE;
        if !job.has_network || far_bytes <= self.eager_bytes || !suffices {
            return self.clone();
        }
        Settings { eager_bytes: far_bytes, readable_eager_bytes: self.eager_bytes, ..self.clone() }
    }

    /// The mailbox plan of each endpoint of a job of `peers` endpoints (0: not known, counts as one). At most as many
    /// share it as can have a lane at a time.
    ///
    /// With credits, `data region >= credit region >= 1 slot per process`. With fewer data slots than credit slots, a
    /// sender could be due more credit packets than it ever sent packets. Without credits, one slot each is enough.
    /// Source: spec/flow-control.md, 2a, formula 5.2.
    ///
    /// # Errors
    /// [`SettingError::TooFew`] if the mailbox is too small; [`SettingError::TooMany`] if a sender's share would exceed
    /// a lane.
    pub fn quota(&self, peers: u32) -> Result<MailboxPlan, SettingError> {
        self.quota_within(peers, u64::MAX)
    }

    /// [`Settings::quota`] for mailboxes in a file system of `file_system_bytes` bytes.
    ///
    /// # Errors
    /// As for [`Settings::quota`].
    pub fn quota_within(&self, peers: u32, file_system_bytes: u64) -> Result<MailboxPlan, SettingError> {
        self.quota_of_lanes(peers, lane_slots(peers, file_system_bytes, self.unexpected_budget_bytes))
    }

    /// The mailbox plan of each of `peers` endpoints (0: not known) and its place, with this `space` in the directory of
    /// the mailboxes. `has_unlimited_memory`: there is memory that no file system limits.
    ///
    /// The place is the directory if all lanes of the job fit there. If not, it is the unlimited memory. Without that, it
    /// is the directory with shorter lanes, and then with fewer lanes, on which senders take turns.
    ///
    /// # Errors
    /// As for [`Settings::quota`].
    pub fn placed(
        &self,
        peers: u32,
        space: Option<FileSystemSpace>,
        has_unlimited_memory: impl FnOnce() -> bool,
    ) -> Result<(MailboxPlan, Placement), SettingError> {
        let plan_within = |bytes, most_slots: u32| {
            let lane_slots = lane_slots(peers, bytes, self.unexpected_budget_bytes).min(most_slots);
            let plan = self.quota_of_lanes(peers, lane_slots)?;
            if self.scheme != Scheme::Unlimited {
                return Ok(plan);
            }
            let base_slots = plan.base_slots.max(UNLIMITED_SLOTS.min(most_slots));
            Ok(MailboxPlan { base_slots, rest_lanes: 0, ..plan })
        };
        let lane_bytes = |plan: &MailboxPlan| {
            shm::lane_bytes(plan.base_slots + u32::from(plan.rest_lanes > 0), plan.credit_slots)
        };
        let ranks = u64::from(peers.max(1));
        let lanes = u64::from(peers.max(1).min(self.max_peers));
        let job_bytes = |plan: &MailboxPlan| ranks * (shm::MAILBOX_HEADER_BYTES + lanes * lane_bytes(plan));
        let Some(FileSystemSpace { size_bytes, free_bytes }) = space else {
            let plan = plan_within(u64::MAX, u32::MAX)?;
            let job_bytes = job_bytes(&plan);
            return Ok((plan, Placement { in_memory: false, reserved_lanes: 1, job_bytes, needed_bytes: 0 }));
        };
        let usable_bytes = free_bytes / FREE_DIVISOR;
        let fitting = plan_within(size_bytes, u32::MAX)?;
        let needed_bytes = job_bytes(&fitting).saturating_mul(FREE_DIVISOR);
        let place = |plan: MailboxPlan, in_memory, reserved_lanes| {
            (plan, Placement { in_memory, reserved_lanes, job_bytes: job_bytes(&plan), needed_bytes })
        };
        if job_bytes(&fitting) <= usable_bytes {
            return Ok(place(fitting, false, 1));
        }
        if has_unlimited_memory() {
            return Ok(place(plan_within(u64::MAX, u32::MAX)?, true, 1));
        }
        let mailbox_bytes = (usable_bytes / ranks).saturating_sub(shm::MAILBOX_HEADER_BYTES);
        let most_bytes = (mailbox_bytes / lanes).max(MIN_LANE_BYTES);
        let most_slots = shm::lane_data_slots(most_bytes, fitting.credit_slots).max(self.credit_slots);
        let plan = plan_within(size_bytes, most_slots)?;
        let reserved_lanes = (mailbox_bytes / lane_bytes(&plan)).clamp(1, lanes) as u32;
        Ok(place(plan, false, reserved_lanes))
    }

    /// [`Settings::quota`] with at most `lane_slots` data slots for each lane, if the scheme permits that.
    fn quota_of_lanes(&self, peers: u32, lane_slots: u32) -> Result<MailboxPlan, SettingError> {
        let peers = peers.max(1).min(self.max_peers); // more ranks share the lanes by turns
        let too_few = |variable, value, with, least| {
            Err(SettingError::TooFew { variable, value, ranks: peers, with, least })
        };
        let own_slots = match self.scheme {
            Scheme::Hardware { .. } | Scheme::StaticConnection { .. } => self.preposted_slots,
            Scheme::AdaptiveBacklog { .. } => self.adaptive_max_slots,
            Scheme::Unlimited | Scheme::Static { .. } | Scheme::Dynamic { .. } | Scheme::Demand => 0,
        };
        if own_slots > 0 {
            return Ok(self.divided(own_slots, 0));
        }
        let credit_slots = self.credit_slots;
        let shares_region = self.scheme.shares_region();
        if self.mailbox_slots == 0 && shares_region {
            let slots = DataRegion::default_slots(self.slots_per_peer.max(credit_slots), peers);
            // One message of each sender is reserved in addition.
            let messages_bytes =
                u64::from(peers) * weir_proto::unexpected_cost_bytes(self.eager_bytes.into());
            let left_bytes = self.unexpected_budget_bytes.saturating_sub(messages_bytes);
            let affordable_slots = (left_bytes / BUDGET_BYTES_PER_SLOT).min(DEFAULT_MAX_SLOTS.into()) as u32;
            let of_lanes = lane_slots.saturating_mul(peers); // slots beyond the lanes could not be filled
            return Ok(self.shared(slots.max(affordable_slots.min(of_lanes)), peers, lane_slots));
        }
        if self.mailbox_slots == 0 {
            return Ok(self.divided(DEFAULT_SLOTS_PER_SENDER.min(lane_slots), 0));
        }
        let credit_slots = self.credit_slots;
        let (least_per_sender, with) = match self.scheme {
            Scheme::Static { .. } | Scheme::Dynamic { .. } | Scheme::Demand => {
                (credit_slots, format!(" with {credit_slots} credit slots each"))
            }
            Scheme::Unlimited
            | Scheme::Hardware { .. }
            | Scheme::StaticConnection { .. }
            | Scheme::AdaptiveBacklog { .. } => (1, String::new()),
        };
        let least = u64::from(least_per_sender) * u64::from(peers);
        if u64::from(self.mailbox_slots) < least {
            return too_few(MAILBOX_SLOTS, self.mailbox_slots, with, least);
        }
        if shares_region {
            return Ok(self.shared(self.mailbox_slots, peers, lane_slots));
        }
        let most_per_sender = MAX_LANE_SLOTS - credit_slots - 1; // one more for the rest
        if self.mailbox_slots / peers > most_per_sender {
            return Err(SettingError::TooMany {
                variable: MAILBOX_SLOTS,
                value: self.mailbox_slots,
                ranks: peers,
                most: u64::from(most_per_sender) * u64::from(peers),
            });
        }
        let rest_lanes = match self.quota_rest {
            QuotaRest::First => self.mailbox_slots % peers,
            QuotaRest::Round => 0,
        };
        Ok(self.divided(self.mailbox_slots / peers, rest_lanes))
    }

    /// A data region of `slots` slots that all lanes share, each of at most `lane_slots`.
    fn shared(&self, slots: u32, peers: u32, lane_slots: u32) -> MailboxPlan {
        let base_slots = slots.min(lane_slots);
        let mut region = DataRegion::shared(slots, peers, self.credit_slots, self.attach);
        region.start_slots = region.start_slots.min(base_slots);
        MailboxPlan {
            base_slots,
            rest_lanes: 0,
            start_slots: region.start_slots,
            credit_slots: self.credit_slots,
            region,
        }
    }

    /// Lanes of `base_slots` data slots each, with the other slots that the scheme needs.
    fn divided(&self, base_slots: u32, rest_lanes: u32) -> MailboxPlan {
        let credit_slots = match self.scheme {
            Scheme::Hardware { .. } => 0,
            // As many as are ever unread, also of senders that own one slot more.
            Scheme::StaticConnection { ecm_threshold } => {
                let slots = |quota_slots| static_connection::ecm_slots(quota_slots, ecm_threshold);
                slots(base_slots).max(if rest_lanes > 0 { slots(base_slots + 1) } else { 0 })
            }
            Scheme::Unlimited
            | Scheme::Static { .. }
            | Scheme::AdaptiveBacklog { .. }
            | Scheme::Dynamic { .. }
            | Scheme::Demand => self.credit_slots,
        };
        let start_slots = match self.scheme {
            Scheme::AdaptiveBacklog { .. } => self.adaptive_start_slots.min(base_slots),
            _ => 0,
        };
        MailboxPlan { base_slots, rest_lanes, start_slots, credit_slots, region: DataRegion::default() }
    }
}
