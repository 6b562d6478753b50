//! Helpers for tests of workloads: worlds, and observation of their programs.

pub mod catalogue;
pub mod drive;
pub mod journal;
pub mod real;

use std::num::NonZeroU32;

use weir_proto::{AttachPolicy, Config, DataRegion, Geometry, Growth, Scheme};
use weir_sim::cost::Cost;
use weir_sim::network::extoll::{Extoll, Parameters};
use weir_sim::network::ideal::Ideal;
use weir_sim::network::mesh::Mesh;
use weir_sim::program::{Program, Rank};
use weir_sim::workload::Workload;
use weir_sim::world::{Report, World, WorldSpec};

const NS: u64 = 1000;
const US: u64 = 1_000_000;

/// Every scheme.
pub const SCHEMES: [Scheme; 9] = [
    Scheme::Unlimited,
    Scheme::Hardware { rnr_timer_ns: 10_000, rnr_retries: 7 },
    Scheme::Static { piggyback: false },
    Scheme::Static { piggyback: true },
    Scheme::StaticConnection { ecm_threshold: NonZeroU32::new(5) },
    Scheme::AdaptiveBacklog { growth: Growth::Linear { slots: NonZeroU32::MIN }, ecm_threshold: None },
    Scheme::Dynamic { piggyback: false },
    Scheme::Dynamic { piggyback: true },
    Scheme::Demand,
];

/// Parses a workload as in a plan.
pub fn workload(toml: &str) -> Workload {
    toml::from_str(toml).unwrap_or_else(|error| panic!("{toml}: {error}"))
}

pub fn spec(ranks: u32, scheme: Scheme) -> WorldSpec {
    let cost =
        Cost { packet_send_ps: 40_000, packet_receive_ps: 50_000, send_call_ps: 200_000, ..Cost::FREE };
    // With a shared region, the quota is the most that a sender can ever own.
    let quota_slots = if scheme.shares_region() { 20 * ranks } else { 20 };
    let spec = WorldSpec::new(ranks, scheme, quota_slots, cost);
    let region = DataRegion {
        slots: 20 * ranks,
        peers: ranks,
        start_slots: 2,
        attach_policy: AttachPolicy::Start,
        grace_points: 0,
    };
    let config = Config { planned_peers: ranks, planned_quota_slots: 20, region, ..spec.config };
    WorldSpec { config, start_slots: 10, event_limit: 50_000_000, ..spec }
}

/// Runs any program to its end.
pub fn run_programs(ranks: u32, scheme: Scheme, program: impl Fn(Rank) -> Program) -> Report {
    run_spec(spec(ranks, scheme), program)
}

fn run_spec(spec: WorldSpec, program: impl Fn(Rank) -> Program) -> Report {
    let network = Ideal::with_geometry(1_000_000, 100, Geometry::EXTOLL);
    World::new(spec, network, program).run().unwrap_or_else(|error| {
        panic!("{} ranks, {:?}: {error}", spec.ranks, spec.config.scheme);
    })
}

/// Runs a workload to its end and checks that all messages were received.
pub fn run(workload: &Workload, ranks: u32, scheme: Scheme) -> Report {
    run_with(workload, spec(ranks, scheme))
}

/// The same with other settings.
pub fn run_with(workload: &Workload, spec: WorldSpec) -> Report {
    let (ranks, scheme) = (spec.ranks, spec.config.scheme);
    workload.check(ranks).unwrap_or_else(|what| panic!("{workload:?}: {what}"));
    let report = run_spec(spec, |rank| workload.program(rank));
    let sum = |count: fn(&weir_proto::Counters) -> u64| report.counters.iter().map(count).sum::<u64>();
    assert_eq!(sum(|c| c.messages_sent), sum(|c| c.messages_received), "{workload:?}, {scheme:?}");
    assert_eq!(sum(|c| c.bytes_sent), sum(|c| c.bytes_received), "{workload:?}, {scheme:?}");
    assert_eq!(sum(|c| c.packets_sent), sum(|c| c.packets_received), "{workload:?}, {scheme:?}");
    report
}

/// Messages and bytes that a workload sends, summed over ranks.
pub fn messages_and_bytes(workload: &Workload, ranks: u32) -> (u64, u64) {
    let report = run(workload, ranks, Scheme::Unlimited);
    let counters = &report.counters;
    (counters.iter().map(|c| c.messages_sent).sum(), counters.iter().map(|c| c.bytes_sent).sum())
}

/// The values that ranks recorded under `name`, with their ranks.
pub fn recorded(report: &Report, name: &str) -> Vec<(u32, f64)> {
    report.records.iter().filter(|r| r.name == name).map(|r| (r.rank, r.value)).collect()
}

/// Messages of a dissemination barrier among `n` ranks.
pub fn barrier_messages(n: u64) -> u64 {
    n * u64::from(n.next_power_of_two().ilog2())
}

/// Nodes in a row, with two ranks each.
pub fn row(nodes: u32) -> Extoll {
    Extoll::new(Parameters {
        mesh: Mesh { size: [nodes, 1, 1] },
        ranks_per_node: 2,
        link_packet_ps: 10 * NS,
        hop_ps: 50 * NS,
        inject_packet_ps: 10 * NS,
        eject_packet_ps: 10 * NS,
        ends_ps: 500 * NS,
        buffer_packets: 16,
        nic_packets: 16,
        mailbox_slots: None,
        get_byte_ps: 1000,
        get_ps: 2 * US,
    })
}
