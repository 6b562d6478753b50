//! The specification of a world, without its network and its program: ranks, settings of the endpoint machines, quotas,
//! prices of processors and NICs, and the seed.

use weir_proto::flow::hardware::WITHOUT_LIMIT;
use weir_proto::{Config, DataRegion, Geometry, Scheme};

use crate::Picoseconds;
use crate::cost::{Cost, NicCost};

/// Description of a world, without its network.
#[derive(Clone, Copy, Debug)]
pub struct WorldSpec {
    /// Number of ranks.
    pub ranks: u32,
    /// Settings of the machines. The world replaces the geometry by that of the network.
    pub config: Config,
    /// Data slots of each sender in each mailbox (its quota).
    pub quota_slots: u32,
    /// Adaptive backlog: data slots at the start, at most `quota_slots`.
    pub start_slots: u32,
    /// Prices of the processors.
    pub cost: Cost,
    /// Prices of the processors of NICs; `None`: NICs have none.
    pub nic: Option<NicCost>,
    /// Whether NICs drive the offloaded machines of their ranks. Otherwise the processors of the ranks do.
    pub machines_on_nic: bool,
    /// What a processor that changes a word for another rank takes in addition: a server that sleeps has to wake up.
    pub server_wake_ps: Picoseconds,
    /// Whether the world continues when a queue drops a packet. Only machines that send packets again can do without it.
    pub tolerates_loss: bool,
    /// Number of events after which the world ends with an error; 0: no limit.
    pub event_limit: u64,
    /// The seed of all random draws of the world.
    pub seed: u64,
}

impl WorldSpec {
    /// Senders own `quota_slots` data slots in each mailbox. Everything else is ample: two credit slots,
    /// eager messages up to 2 KB, room for all unexpected messages. Callers change the fields afterwards.
    pub fn new(ranks: u32, scheme: Scheme, quota_slots: u32, cost: Cost) -> WorldSpec {
        let config = Config {
            scheme,
            geometry: Geometry::EXTOLL, // the world replaces it by the network's
            credit_slots: 2,
            eager_bytes: 2048,
            cross_memory: true,
            remote_inline_bytes: 64,
            max_backlog: u32::MAX,
            max_unexpected: 1 << 20,
            unexpected_budget_bytes: 1 << 40,
            bounce_bytes: 0,
            envelope_budget_bytes: u64::MAX,
            planned_peers: 1,
            planned_quota_slots: 1,
            region: DataRegion::default(),
        };
        WorldSpec {
            ranks,
            config,
            quota_slots,
            start_slots: quota_slots,
            cost,
            nic: None,
            machines_on_nic: false,
            server_wake_ps: 0,
            tolerates_loss: false,
            event_limit: 0,
            seed: 0,
        }
    }

    /// Credits that a sender has before the first grant.
    pub(crate) fn start_slots(&self) -> u32 {
        match self.config.scheme {
            Scheme::Dynamic { .. } | Scheme::Demand => self.config.region.start_slots,
            Scheme::AdaptiveBacklog { .. } => self.start_slots.min(self.quota_slots),
            _ => self.quota_slots,
        }
    }

    /// Whether a sender may give up a living receiver.
    pub(super) fn may_give_up(&self) -> bool {
        matches!(self.config.scheme, Scheme::Hardware { rnr_retries, .. } if rnr_retries < WITHOUT_LIMIT)
    }
}
