//! One combination of a plan ([`Setup`]): its settings, and the world that they describe. [`Settings`] are what the plan
//! states; records have them too. Each world can also be made without flow control (the reference). `setup/read.rs`
//! reads a combination.

mod read;

use std::num::NonZeroU32;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_proto::flow::static_connection;
use weir_proto::{AttachPolicy, Config, DataRegion, Geometry, Growth, MAX_UNEXPECTED, Scheme};

use super::faults::PlanFaults;
use super::network::PlanNetwork;
use crate::Picoseconds;
use crate::goal::Schedule;
use crate::network::registry::NicKeys;
use crate::network::reliable::Reliability;
use crate::workload::Workload;
use crate::workload::offload::Executor;
use crate::world::WorldSpec;

/// A flow-control scheme, by its name in plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SchemeName {
    /// No flow control; mailboxes have as many slots as needed.
    Unlimited,
    /// Receiver not ready (Liu & Panda).
    Hardware,
    /// Static credits (Prades, chapter 5).
    Static,
    /// Static credits for each connection (Liu & Panda).
    StaticConnection,
    /// Adaptive backlog (Liu & Panda).
    Adaptive,
    /// Dynamic credits as published (Prades, chapter 6).
    Dynamic,
    /// The provider's dynamic credits: piggybacking, shares at first contact, and a hold time.
    Weir,
    /// The default of the provider: credits on demand with piggybacking, with the same sizes as `weir`.
    Demand,
}

impl SchemeName {
    /// The name in plans.
    pub fn word(self) -> String {
        let name = serde_json::to_value(self).unwrap_or_default();
        name.as_str().unwrap_or_default().to_owned()
    }
}

/// Settings of a world, as plans state them and records store them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The file of the network, with the keys that the plan replaces: `extoll`, `extoll hop_ns=60`.
    pub network: String,
    /// Number of ranks.
    pub ranks: u32,
    /// Ranks of a node; 0 if the network has no nodes.
    pub ranks_per_node: u32,
    /// The mesh, for example `4x4x4`; empty if there is none.
    pub mesh_nodes: String,
    /// Flow-control scheme.
    pub scheme: SchemeName,
    /// Whether credits return with data packets too.
    pub piggyback: bool,
    /// Slots that a receiver reserves for each rank, with credit slots; 0: as many as needed.
    pub slots_per_peer: u32,
    /// The part of them for credit packets.
    pub credit_slots: u32,
    /// Longest eager message. Unit: bytes.
    pub eager_bytes: u64,
    /// Bound of the random start time of ranks. Unit: ns.
    pub start_skew_ns: u64,
    /// RNR timer of the scheme `hardware`. Unit: ns.
    pub rnr_timer_ns: u64,
    /// Buffers at the start with the scheme `adaptive`.
    pub start_slots: u32,
    /// Prices of the processors of NICs, instead of those of the network file; `None`: these apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<NicKeys>,
    /// Reliable paths between hosts; `None`: nothing is sent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reliability: Option<Reliability>,
    /// Faults of links and ranks; `None`: there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<PlanFaults>,
    /// The workload, as the plan states it.
    pub workload: serde_json::Value,
    /// Seed of random draws.
    pub seed: u64,
}

impl Settings {
    /// The same world without flow control (the reference).
    #[must_use]
    pub fn reference(&self) -> Settings {
        Settings {
            scheme: SchemeName::Unlimited,
            piggyback: false,
            slots_per_peer: 0,
            credit_slots: 0,
            rnr_timer_ns: 0,
            start_slots: 0,
            ..self.clone()
        }
    }

    /// Name of the workload.
    pub fn workload_name(&self) -> &str {
        self.workload.as_object().and_then(|table| table.keys().next()).map_or("", String::as_str)
    }

    /// A numeric parameter of the workload; `None` if it has no such parameter.
    pub fn workload_number(&self, name: &str) -> Option<f64> {
        self.workload.as_object()?.values().next()?.get(name)?.as_f64()
    }

    /// The value with which the plan replaces a key of the network's file; `None` if it does not.
    pub fn network_value(&self, key: &str) -> Option<f64> {
        let changes = self.network.split(' ').skip(1).filter_map(|change| change.split_once('='));
        changes.filter(|(name, _)| *name == key).find_map(|(_, value)| value.parse().ok())
    }

    /// Short description of the world, for progress and errors.
    pub fn describe(&self) -> String {
        let Settings { ranks, scheme, slots_per_peer, credit_slots, seed, .. } = self;
        let scheme = scheme.word();
        let slots = match slots_per_peer {
            0 => String::new(),
            slots => format!(", {slots} slots per peer, {credit_slots} of them for credits"),
        };
        let piggyback = if self.piggyback { " with piggybacking" } else { "" };
        format!("{} among {ranks} ranks, {scheme}{piggyback}{slots}, seed {seed}", self.workload_name())
    }
}

/// The programs of the ranks.
#[derive(Clone, Debug)]
pub enum Programs {
    /// A named workload.
    Named(Workload),
    /// A GOAL schedule and the hash of its text.
    Goal(Arc<Schedule>, u64),
}

impl Programs {
    /// Whether NICs carry out the offloaded operations of these programs.
    fn machines_on_nic(&self) -> bool {
        matches!(self, Programs::Named(workload) if workload.executor() == Some(Executor::Nic))
    }

    /// What a server that changes words for others takes to wake up.
    fn server_wake_ps(&self) -> Picoseconds {
        match self {
            Programs::Named(Workload::Lock(lock)) => lock.wake_ns * 1000,
            _ => 0,
        }
    }
}

/// A world, ready to run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The settings, as the plan states them.
    pub settings: Settings,
    /// The network with its parameters.
    pub network: PlanNetwork,
    /// The programs.
    pub programs: Programs,
}

/// Default of `credit_slots`. Source: Prades, 5.3, "the best trade-off".
const CREDIT_SLOTS: u32 = 2;
/// Default of `rnr_timer_ns`: the second shortest timer of InfiniBand. It is an assumption, see
/// [`super::assumed::Assumed::RnrTimer`]. Unit: ns.
pub(super) const RNR_TIMER_NS: u64 = 20_000;
/// Unexpected-message budget of the scheme `weir`. Source: `weir_engine::config`. Unit: bytes.
const UNEXPECTED_BUDGET_BYTES: u64 = 16 << 20;

impl Setup {
    /// The same world without flow control.
    #[must_use]
    pub fn reference(&self) -> Setup {
        Setup { settings: self.settings.reference(), ..self.clone() }
    }

    /// Slots of each mailbox; `None`: as many as needed.
    pub fn mailbox_slots(&self) -> Option<u32> {
        let Settings { slots_per_peer, ranks, .. } = self.settings;
        (slots_per_peer > 0).then(|| slots_per_peer.saturating_mul(ranks))
    }

    /// The configuration of the world, on a network with this geometry.
    pub fn world_spec(&self, geometry: Geometry) -> WorldSpec {
        let Settings { ranks, slots_per_peer, credit_slots, piggyback, eager_bytes, .. } = self.settings;
        let data_slots = slots_per_peer.saturating_sub(credit_slots);
        let peers = ranks.saturating_sub(1).max(1);
        let (mut scheme, mut region) = (Scheme::Unlimited, DataRegion::default());
        let (mut quota_slots, mut start_slots) = (data_slots.max(1), data_slots.max(1));
        let (mut budget_bytes, mut ecm_slots) = (u64::MAX, credit_slots.max(1));
        match self.settings.scheme {
            SchemeName::Unlimited => quota_slots = 1 << 30,
            SchemeName::Static => scheme = Scheme::Static { piggyback },
            SchemeName::Hardware => {
                let rnr_timer_ns = self.settings.rnr_timer_ns;
                scheme = Scheme::Hardware { rnr_timer_ns, rnr_retries: 7 };
            }
            SchemeName::StaticConnection => {
                scheme = Scheme::StaticConnection { ecm_threshold: None };
                ecm_slots = static_connection::ecm_slots(quota_slots, None);
            }
            SchemeName::Adaptive => {
                let growth = Growth::Linear { slots: NonZeroU32::MIN };
                scheme = Scheme::AdaptiveBacklog { growth, ecm_threshold: None };
                start_slots = self.settings.start_slots;
                ecm_slots = CREDIT_SLOTS;
            }
            SchemeName::Dynamic => {
                scheme = Scheme::Dynamic { piggyback };
                let (slots, start) = (data_slots * peers, credit_slots);
                region = DataRegion {
                    slots,
                    peers,
                    start_slots: start,
                    attach_policy: AttachPolicy::Start,
                    grace_points: 0,
                };
                (quota_slots, start_slots) = (slots, start);
            }
            SchemeName::Weir | SchemeName::Demand => {
                scheme = match self.settings.scheme {
                    SchemeName::Demand => Scheme::Demand,
                    _ => Scheme::Dynamic { piggyback: true },
                };
                let slots = data_slots * peers;
                region = DataRegion::shared(slots, peers, credit_slots, AttachPolicy::FirstContact);
                (quota_slots, start_slots) = (slots.min(DataRegion::MAX_LANE_SLOTS), region.start_slots);
                budget_bytes = UNEXPECTED_BUDGET_BYTES;
            }
        }
        let config = Config {
            scheme,
            geometry,
            credit_slots: ecm_slots,
            region,
            eager_bytes,
            cross_memory: true, // the network models remote gets
            remote_inline_bytes: 64,
            max_backlog: u32::MAX,
            max_unexpected: MAX_UNEXPECTED,
            unexpected_budget_bytes: budget_bytes,
            bounce_bytes: UNEXPECTED_BUDGET_BYTES,
            envelope_budget_bytes: u64::MAX,
            planned_peers: peers,
            planned_quota_slots: quota_slots,
        };
        let (cost, seed) = (self.network.cost(), self.settings.seed);
        let nic = self.settings.nic.or(self.network.model.nic).map(|nic| nic.cost());
        WorldSpec {
            ranks,
            config,
            quota_slots,
            start_slots,
            cost,
            nic,
            machines_on_nic: self.programs.machines_on_nic(),
            server_wake_ps: self.programs.server_wake_ps(),
            tolerates_loss: false,
            event_limit: 0,
            seed,
        }
    }
}
