//! Reads one combination of a plan ([`Setup::read`]): checks its keys, and fills in the defaults.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};
use weir_proto::{MAX_CREDIT_SLOTS, MAX_EAGER_BYTES};

use super::{CREDIT_SLOTS, Programs, RNR_TIMER_NS, SchemeName, Settings, Setup};
use crate::goal::Schedule;
use crate::network::registry::{NicKeys, Nodes, names_of};
use crate::network::reliable::Reliability;
use crate::plan;
use crate::plan::faults::PlanFaults;
use crate::plan::network::{self, PlanNetwork};
use crate::plan::table::SpannedError;
use crate::workload::Workload;
use crate::{MAX_BYTES, MAX_NS, MAX_RANKS};

/// Keys of a sweep. `network`, `cost` and `workload` are read before.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    #[serde(rename = "network")]
    _network: Option<serde::de::IgnoredAny>,
    #[serde(rename = "cost")]
    _cost: Option<serde::de::IgnoredAny>,
    #[serde(rename = "workload")]
    _workload: Option<serde::de::IgnoredAny>,
    ranks: Spanned<u32>,
    ranks_per_node: Option<Spanned<u32>>,
    mesh_nodes: Option<Spanned<String>>,
    scheme: Spanned<SchemeName>,
    piggyback: Option<Spanned<bool>>,
    slots_per_peer: Option<Spanned<u32>>,
    credit_slots: Option<Spanned<u32>>,
    eager_bytes: Option<Spanned<u64>>,
    start_skew_ns: Option<u64>,
    rnr_timer_ns: Option<u64>,
    start_slots: Option<Spanned<u32>>,
    nic: Option<NicKeys>,
    reliability: Option<Spanned<Reliability>>,
    faults: Option<Spanned<PlanFaults>>,
}

/// Default of `eager_bytes`. Source: evaluation E1 (VELO up to 2 KB).
const EAGER_BYTES: u64 = 2048;
/// Bound of the slots of each peer in a mailbox.
const MAX_SLOTS_PER_PEER: u32 = 1 << 16;
/// Default of `start_slots`.
const ADAPTIVE_START_SLOTS: u32 = 4;

impl Setup {
    /// Reads one combination. `directory` is the directory of the plan.
    ///
    /// # Errors
    /// `SpannedError` states the error, its place in the plan, and what is allowed.
    pub fn read(
        mut table: DeTable<'_>,
        span: std::ops::Range<usize>,
        directory: &Path,
        networks: &Path,
        seed: u64,
    ) -> Result<Setup, SpannedError> {
        let missing = |what: &str| SpannedError { span: span.clone(), what: what.to_owned() };
        let network = table.remove("network").ok_or_else(|| {
            missing("network is missing; allowed: { file = \"extoll\" }, the name of a file in experiments/networks")
        })?;
        let cost = table.remove("cost");
        let (network, network_name) = network::choose(&network, cost.as_ref(), networks)?;
        let workload = table
            .remove("workload")
            .ok_or_else(|| missing("workload is missing; allowed: workload.NAME = { ... }"))?;
        table.iter().try_for_each(|(name, value)| check_size(name.get_ref(), value))?;
        check_size("workload", &workload)?;
        let keys = Keys::deserialize(Deserializer::from(Spanned::new(span.clone(), table)))
            .map_err(|error| plan::fault(&error, &span))?;
        let ranks = *keys.ranks.get_ref();
        if !(1..=MAX_RANKS).contains(&ranks) {
            let what = format!("ranks is {ranks}; allowed: 1 to {MAX_RANKS}");
            return Err(SpannedError { span: keys.ranks.span(), what });
        }
        let (programs, workload_json) = read_workload(&workload, directory, keys.ranks.get_ref())?;
        let settings = keys.settings(network_name, workload_json, seed, &network)?;
        if let Programs::Named(Workload::AlltoallLocal(local)) = &programs
            && ![0, local.ranks_per_node].contains(&settings.ranks_per_node)
        {
            let what = format!(
                "alltoall_local has ranks_per_node {}; allowed: that of the world, {}",
                local.ranks_per_node, settings.ranks_per_node
            );
            return Err(SpannedError { span: workload.span(), what });
        }
        Ok(Setup { settings, network, programs })
    }
}

impl Keys {
    fn settings(
        self,
        network_name: String,
        workload: serde_json::Value,
        seed: u64,
        network: &PlanNetwork,
    ) -> Result<Settings, SpannedError> {
        let ranks = *self.ranks.get_ref();
        let (ranks_per_node, mesh_nodes) = self.mesh(ranks, network)?;
        let scheme = *self.scheme.get_ref();
        let at_scheme = |what: String| SpannedError { span: self.scheme.span(), what };
        let credit_slots = self.credit_slots.as_ref().map_or(CREDIT_SLOTS, |slots| *slots.get_ref());
        if let Some(slots) = &self.credit_slots
            && !(1..=MAX_CREDIT_SLOTS).contains(slots.get_ref())
        {
            let what = format!("credit_slots is {credit_slots}; allowed: 1 to {MAX_CREDIT_SLOTS}");
            return Err(SpannedError { span: slots.span(), what });
        }
        let eager_bytes = self.eager_bytes.as_ref().map_or(EAGER_BYTES, |bytes| *bytes.get_ref());
        if let Some(bytes) = &self.eager_bytes
            && eager_bytes > MAX_EAGER_BYTES
        {
            let what = format!("eager_bytes is {eager_bytes}; allowed: at most {MAX_EAGER_BYTES}");
            return Err(SpannedError { span: bytes.span(), what });
        }
        let mut settings = Settings {
            network: network_name,
            ranks,
            ranks_per_node,
            mesh_nodes,
            scheme,
            piggyback: self.piggyback.as_ref().is_some_and(|piggyback| *piggyback.get_ref()),
            slots_per_peer: 0,
            credit_slots,
            eager_bytes,
            start_skew_ns: self.start_skew_ns.unwrap_or(0),
            rnr_timer_ns: self.rnr_timer_ns.unwrap_or(RNR_TIMER_NS),
            start_slots: 0,
            nic: self.nic,
            reliability: None,
            faults: None,
            workload,
            seed,
        };
        if let Some(reliability) = &self.reliability {
            let refuse = |what| SpannedError { span: reliability.span(), what };
            if !network.drops_packets() {
                let what = "reliability is set on a network whose queues drop nothing; allowed with switched";
                return Err(refuse(String::from(what)));
            }
            reliability.get_ref().check().map_err(refuse)?;
            settings.reliability = Some(*reliability.get_ref());
        }
        if let Some(faults) = &self.faults {
            let refuse = |what| SpannedError { span: faults.span(), what };
            faults
                .get_ref()
                .check(ranks, network.links_repair() || self.reliability.is_some())
                .map_err(refuse)?;
            settings.faults = Some(faults.get_ref().clone());
        }
        if let Some(slots) = &self.slots_per_peer
            && *slots.get_ref() > MAX_SLOTS_PER_PEER
        {
            let what =
                format!("slots_per_peer is {}; allowed: at most {MAX_SLOTS_PER_PEER}", slots.get_ref());
            return Err(SpannedError { span: slots.span(), what });
        }
        if let Some(piggyback) = &self.piggyback
            && *piggyback.get_ref()
            && !matches!(
                scheme,
                SchemeName::Static | SchemeName::Dynamic | SchemeName::Weir | SchemeName::Demand
            )
        {
            let what = format!(
                "piggyback is true with scheme {}; allowed with static, dynamic, weir and demand",
                scheme.word()
            );
            return Err(SpannedError { span: piggyback.span(), what });
        }
        if scheme == SchemeName::Unlimited {
            return Ok(settings.reference());
        }
        let Some(slots) = &self.slots_per_peer else {
            return Err(at_scheme(String::from(
                "slots_per_peer is missing; allowed: a number of slots, or scheme unlimited",
            )));
        };
        settings.slots_per_peer = *slots.get_ref();
        // The data region is at least as large as the credit region: thesis, 5.2.
        let preposted =
            matches!(scheme, SchemeName::Hardware | SchemeName::StaticConnection | SchemeName::Adaptive);
        let least = if preposted { 1 } else { 2 * credit_slots };
        if *slots.get_ref() < least {
            let with = if preposted { String::new() } else { format!(" with {credit_slots} credit slots") };
            let what = format!(
                "slots_per_peer is {}; allowed{with}: {least} to {MAX_SLOTS_PER_PEER}",
                slots.get_ref()
            );
            return Err(SpannedError { span: slots.span(), what });
        }
        let region_slots = u64::from(*slots.get_ref()) * u64::from(ranks);
        if region_slots > 1 << 30 {
            let what = format!("slots_per_peer x ranks is {region_slots}; allowed: at most {}", 1 << 30);
            return Err(SpannedError { span: slots.span(), what });
        }
        settings.piggyback |= matches!(scheme, SchemeName::Weir | SchemeName::Demand);
        if preposted {
            settings.credit_slots = 0; // all these buffers are for data; credit packets have their own
        }
        if scheme != SchemeName::Hardware {
            settings.rnr_timer_ns = 0;
        }
        if scheme == SchemeName::Adaptive {
            settings.start_slots = self.start_slots(settings.slots_per_peer)?;
        }
        Ok(settings)
    }

    /// Buffers at the start of the scheme `adaptive`, at most `slots_per_peer`.
    fn start_slots(&self, slots_per_peer: u32) -> Result<u32, SpannedError> {
        let Some(start) = &self.start_slots else { return Ok(ADAPTIVE_START_SLOTS.min(slots_per_peer)) };
        if !(1..=slots_per_peer).contains(start.get_ref()) {
            let what = format!(
                "start_slots is {}; allowed: 1 to slots_per_peer, which is {slots_per_peer}",
                start.get_ref()
            );
            return Err(SpannedError { span: start.span(), what });
        }
        Ok(*start.get_ref())
    }

    /// Ranks of a node, and the mesh; 0 and empty on networks without them.
    fn mesh(&self, ranks: u32, network: &PlanNetwork) -> Result<(u32, String), SpannedError> {
        let ranks_per_node = self.ranks_per_node.as_ref().map_or(1, |ranks| *ranks.get_ref());
        if !network.has_mesh() {
            let refuse = |name: &str, span, allows: fn(Nodes) -> bool| {
                let allowed = names_of(|info| allows(info.nodes));
                Err(SpannedError {
                    span,
                    what: format!("{name} is set on a network without it; allowed with {allowed}"),
                })
            };
            if let Some(mesh) = &self.mesh_nodes {
                return refuse("mesh_nodes", mesh.span(), |nodes| nodes == Nodes::Mesh);
            }
            return match (network.places(ranks_per_node), &self.ranks_per_node) {
                (None, None) => Ok((0, String::new())),
                (None, Some(given)) => refuse("ranks_per_node", given.span(), |nodes| nodes != Nodes::None),
                (Some(places), _) if ranks_per_node > 0 && u64::from(ranks) <= places => {
                    Ok((ranks_per_node, String::new()))
                }
                (Some(places), _) => {
                    let what = format!(
                        "ranks is {ranks}; allowed with {ranks_per_node} on each node: 1 to {places}"
                    );
                    Err(SpannedError { span: self.ranks.span(), what })
                }
            };
        }
        let Some(mesh) = &self.mesh_nodes else {
            let what =
                String::from("mesh_nodes is missing; allowed: nodes along x, y and z, as in \"4x4x4\"");
            return Err(SpannedError { span: self.ranks.span(), what });
        };
        let Some(size) = network::mesh(mesh.get_ref()) else {
            let what = format!(
                "mesh_nodes is {:?}; allowed: nodes along x, y and z, each 1 to 64, as in \"4x4x4\"",
                mesh.get_ref()
            );
            return Err(SpannedError { span: mesh.span(), what });
        };
        let nodes: u32 = size.iter().product();
        if ranks_per_node == 0 || u64::from(nodes) * u64::from(ranks_per_node) != u64::from(ranks) {
            let what = format!(
                "mesh_nodes {} with ranks_per_node {ranks_per_node} has {} places, and ranks is {ranks}; allowed: the same number",
                mesh.get_ref(),
                u64::from(nodes) * u64::from(ranks_per_node)
            );
            return Err(SpannedError { span: mesh.span(), what });
        }
        Ok((ranks_per_node, mesh.get_ref().clone()))
    }
}

/// Checks the bound of a time or a size, also in tables and lists.
fn check_size(name: &str, value: &plan::table::Value<'_>) -> Result<(), SpannedError> {
    let most = match name {
        _ if name.ends_with("_bytes") => MAX_BYTES,
        _ if name.ends_with("_ns") => MAX_NS,
        _ => u64::MAX,
    };
    match value.get_ref() {
        DeValue::Integer(number)
            if i128::from_str_radix(number.as_str(), number.radix()).is_ok_and(|it| it > most.into()) =>
        {
            let what = format!("{name} is {number}; allowed: at most {most}");
            Err(SpannedError { span: value.span(), what })
        }
        DeValue::Table(table) => table.iter().try_for_each(|(name, value)| check_size(name.get_ref(), value)),
        DeValue::Array(list) => list.iter().try_for_each(|value| check_size(name, value)),
        _ => Ok(()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GoalKeys {
    file: Spanned<String>,
}

fn read_workload(
    value: &plan::table::Value<'_>,
    directory: &Path,
    &ranks: &u32,
) -> Result<(Programs, serde_json::Value), SpannedError> {
    let span = value.span();
    let Some(table) = value.get_ref().as_table() else {
        let what = String::from("workload is not a table; allowed: workload.NAME = { ... }");
        return Err(SpannedError { span, what });
    };
    if table.len() != 1 {
        let what =
            format!("workload has {} names; allowed: one, as in workload.NAME = {{ ... }}", table.len());
        return Err(SpannedError { span, what });
    }
    let fault = |error: toml::de::Error| plan::fault(&error, &span);
    let json = serde_json::Value::deserialize(plan::reader(table, &span)).map_err(fault)?;
    if let Some(goal) = table.get("goal").and_then(|goal| goal.get_ref().as_table()) {
        let keys = GoalKeys::deserialize(plan::reader(goal, &span)).map_err(fault)?;
        let path = directory.join(keys.file.get_ref());
        let refuse = |what: String| SpannedError { span: keys.file.span(), what };
        let text = plan::read_text(&path).map_err(|error| refuse(format!("{}: {error}", path.display())))?;
        let schedule =
            Schedule::parse(&text).map_err(|error| refuse(format!("{}, {error}", path.display())))?;
        if schedule.ranks() != ranks {
            let what = format!(
                "{} is for {} ranks, and ranks is {ranks}; allowed: the same number",
                path.display(),
                schedule.ranks()
            );
            return Err(refuse(what));
        }
        return Ok((Programs::Goal(Arc::new(schedule), plan::record::hash(&text)), json));
    }
    let workload = Workload::deserialize(plan::reader(table, &span)).map_err(|error| {
        let SpannedError { span, what } = fault(error);
        // The message about an unknown workload does not list `goal`, which reads a file.
        let is_of_workloads = what.starts_with("unknown variant") && what.contains("`multi_pingpong`");
        let what = if is_of_workloads { format!("{what}, `goal`") } else { what };
        SpannedError { span, what }
    })?;
    workload.check(ranks).map_err(|what| SpannedError { span: span.clone(), what })?;
    Ok((Programs::Named(workload), json))
}
