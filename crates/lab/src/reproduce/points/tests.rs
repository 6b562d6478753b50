//! Tests of all experiments: each has its plans, and its rules judge correctly. With records as a paper describes them
//! the points hold. With records that deviate in one respect, the points about it do not hold. Other tests cover sweeps
//! of assumed parameters, seeds, and points that cannot be evaluated.

mod published_e4;

use super::*;
use crate::reproduce::sensitivity;
use crate::sim::blank::record;
use crate::sim::execute::Results;
use published_e4::scale;
use std::path::PathBuf;
use weir_sim::plan::record::Measure;
use weir_sim::plan::{Plan, Record, SchemeName};

pub(super) fn plan_of(name: &str, quick: bool) -> Plan {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    Plan::read(&directory.join(format!("{name}.toml")), &directory.join("networks"), quick)
        .unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn nothing_was_run_so_nothing_holds_and_nothing_is_drawn() {
    let nothing = Evidence::new(Vec::new(), &[]);
    for experiment in ALL.iter().chain(OWN) {
        for point in (experiment.points)(&nothing) {
            assert_eq!(point.verdict, Verdict::NotEvaluated, "{}: {}", experiment.id, point.text);
        }
        for chart in (experiment.figures)(&nothing) {
            assert!(chart.is_empty() && chart.draw().contains("</svg>"), "{}", experiment.id);
            // Figures of weir's own schemes have nothing published.
            let is_own = OWN_SCHEMES.iter().any(|(_, name)| chart.title.contains(name));
            assert!(chart.shows_published() || is_own || experiment.id == "demand", "{}", chart.title);
        }
    }
}

#[test]
fn every_experiment_has_its_plans_with_weirs_own_schemes_in_them() {
    for experiment in ALL {
        for name in experiment.plans {
            for quick in [false, true] {
                let plan = plan_of(name, quick);
                assert!(experiment.id == plan.experiment || experiment.id == "E2.6", "{}", plan.experiment);
                let schemes: Vec<_> = plan.worlds.iter().map(|setup| setup.settings.scheme).collect();
                let is_simulated = plan.memory_peers.is_empty();
                let compares_times = is_simulated && *name != "e1.7";
                for (scheme, is_there) in [
                    (SchemeName::Weir, is_simulated),
                    (SchemeName::Demand, is_simulated),
                    (SchemeName::Unlimited, compares_times),
                ] {
                    assert_eq!(schemes.contains(&scheme), is_there, "{name}: {scheme:?}");
                }
            }
        }
    }
}

/// At full size, for every number of ranks.
#[test]
fn own_schemes_run_at_least_once_with_the_slots_that_weir_ships_with() {
    let names = ALL.iter().flat_map(|experiment| experiment.plans);
    for name in names {
        let plan = plan_of(name, false);
        for (scheme, _) in OWN_SCHEMES {
            let settings = plan.worlds.iter().map(|setup| &setup.settings);
            let ours: Vec<_> =
                settings.filter(|it| it.scheme == scheme).map(|it| (it.ranks, it.slots_per_peer)).collect();
            for &(ranks, _) in &ours {
                let shipped = weir_slots(ranks) as u32;
                assert!(ours.contains(&(ranks, shipped)), "{name}: not {shipped} slots for {ranks} ranks");
            }
        }
    }
}

fn is_dynamic(record: &Record) -> bool {
    record.settings.scheme == SchemeName::Dynamic
}

fn is_blocking(record: &Record) -> bool {
    record.settings.workload["bandwidth"]["blocking"].as_bool() == Some(true)
}

fn is_lu(record: &Record) -> bool {
    record.settings.workload["nas"]["kernel"].as_str() == Some("lu")
}

/// Whether its processors handle credit packets at no cost.
fn is_free(record: &Record) -> bool {
    record.settings.network_value("credit_send_ns") == Some(0.0)
}

/// A parameter of the workload; 0 if it has none.
fn number(record: &Record, name: &str) -> f64 {
    record.settings.workload_number(name).unwrap_or(0.0)
}

/// Sets the time to this percentage above that of the reference.
fn costs(record: &mut Record, percent: f64) {
    record.time_ns = 1000.0 * (1.0 + percent / 100.0);
}

/// Whether the published worlds of an experiment are those without flow control, and no references of others.
fn has_no_flow_control(id: &str) -> bool {
    id.starts_with("E4.")
}

/// The points of an experiment with all worlds at full size, from published values that `change` alters.
fn judged(id: &str, change: &dyn Fn(&mut Record)) -> Vec<Point> {
    let experiment = ALL.iter().find(|it| it.id == id).expect("an experiment");
    let plans: Vec<Plan> = experiment.plans.iter().map(|name| plan_of(name, false)).collect();
    let worlds = plans.iter().flat_map(|plan| &plan.worlds);
    let records: Vec<Record> = worlds
        .map(|setup| {
            let mut record = record(setup.key(), setup.settings.clone(), 1000.0);
            if setup.settings.scheme != SchemeName::Unlimited || has_no_flow_control(id) {
                as_published(id, &mut record);
                change(&mut record);
            }
            record
        })
        .collect();
    let evidence = Evidence::new(records.iter().collect(), &[]);
    (experiment.points)(&evidence).into_iter().filter(|it| it.verdict != Verdict::NotPublished).collect()
}

/// The published results of a world. Where a paper has words only, the numbers are ours. E1.10 has no worlds.
fn as_published(id: &str, record: &mut Record) {
    use SchemeName::{Adaptive, Hardware, StaticConnection};
    let it = record.settings.clone();
    let slots = f64::from(it.slots_per_peer);
    let is_dynamic = is_dynamic(record);
    match id {
        "E1.1" => {
            let few = slots < [74.0, 58.0, 56.0, 54.0, 52.0][it.credit_slots as usize - 1];
            let first = it.credit_slots == 1;
            record.stalls = if few { 500 + 100 * u64::from(first) } else { 0 };
            let far = 4.0 * number(record, "partner_distance_ranks") / 1008.0;
            costs(record, if few { far + if first { 5.0 } else { 20.0 } } else { 0.0 });
        }
        "E1.2" => {
            let n = it.credit_slots as usize - 1;
            let falls = f64::from(it.credit_slots) + 37.0;
            let stable = [75.0, 57.0, 52.0, 50.0, 49.0][n];
            costs(
                record,
                match slots {
                    _ if slots < falls => 50.0,
                    _ if slots < stable => 40.0 - 25.0 * (slots - falls) / (stable - falls),
                    _ => 5.0,
                },
            );
        }
        "E1.3" => {
            let saves = it.piggyback && number(record, "message_bytes") == 2044.0;
            record.credit_packets = if saves { 50 } else { 1000 };
            costs(record, if saves { 30.0 } else { 40.0 });
        }
        "E1.4" => {
            let share = number(record, "group_ranks") / f64::from(it.ranks);
            let enough = if is_dynamic { share * 55.0 } else { 55.0 };
            let more = if is_dynamic && share == 1.0 { 2.0 } else { 0.0 };
            costs(record, more + if slots < enough { 50.0 } else { 2.0 });
        }
        "E1.5" => {
            let (all, computation) = match (it.workload_name(), is_dynamic) {
                ("alltoall", true) => (42.0, 12.0),
                ("alltoall", false) => (40.0, 10.0),
                (_, true) => (10.0, 5.0),
                (_, false) => (40.0, 20.0),
            };
            costs(record, if is_free(record) { all - computation } else { all });
        }
        "E1.6" => {
            let many_are_local = 4 * it.ranks_per_node >= it.ranks;
            costs(record, if is_dynamic && many_are_local { 20.0 } else { 40.0 });
        }
        "E1.7" => {
            let phases: [[f64; 7]; 3] = [
                [20.0, 60.0, 40.0, 20.0, 40.0, 60.0, 20.0],
                [20.0, 10.0, 40.0, 20.0, 40.0, 10.0, 20.0],
                [25.0, 18.0, 22.0, 25.0, 20.0, 18.0, 25.0],
            ];
            let of_rank_0 = |values: [f64; 7]| {
                let of_rank_0 = values.iter().flat_map(|value| [*value; 2]).collect();
                Measure { count: 14, mean: 0.0, min: 0.0, max: 0.0, of_rank_0 }
            };
            let numbers = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
            record.measures.insert(String::from("phase"), of_rank_0(numbers));
            for (group, values) in phases.into_iter().enumerate() {
                record.measures.insert(format!("credits_{group}_mean_slots"), of_rank_0(values));
            }
        }
        "E1.8" => {
            let size = it.slots_per_peer.ilog2() as usize - 3;
            let means = if is_dynamic { [1.5, 1.0, 1.0, 1.0] } else { [20.0, 10.0, 5.0, 2.0] };
            costs(record, means[size]);
        }
        "E1.9" => {
            let calls = number(record, "calls_per_root");
            costs(record, if is_dynamic { 50.0 / calls } else { 60.0 });
        }
        "E2.3" => costs(
            record,
            match it.scheme {
                Adaptive => 0.0,
                Hardware => 20.0,
                _ => 50.0,
            },
        ),
        "E2.4" => {
            costs(record, if is_blocking(record) { 30.0 } else { 0.0 });
        }
        "E2.5" | "E2.6" => {
            let is_lu = is_lu(record);
            let suffers = is_lu && it.slots_per_peer == 1 && it.scheme != Adaptive;
            costs(record, if suffers { 30.0 } else { 0.0 });
            record.credit_packets = if is_lu && it.scheme == StaticConnection { 180 } else { 0 };
            record.peak_quota_slots = if is_lu { 63 } else { 7 };
        }
        _ if has_no_flow_control(id) => published_e4::as_published(id, record),
        // All schemes are equal.
        _ => costs(record, 0.0),
    }
}

#[test]
fn as_published_every_point_holds() {
    for experiment in ALL.iter().filter(|it| it.id != "E1.10") {
        let points = judged(experiment.id, &|_| {});
        assert!(!points.is_empty(), "{}", experiment.id);
        for point in points {
            assert_eq!(point.verdict, Verdict::Holds, "{}: {}: {}", experiment.id, point.text, point.ours);
        }
    }
}

/// A deviation from the published records: the experiment, the affected records, the change, and words that
/// begin a part of the text of each point that then fails.
type Deviation<'a> = (&'a str, &'a dyn Fn(&Record) -> bool, &'a dyn Fn(&mut Record), &'a [&'a str]);

#[test]
fn each_deviation_breaks_the_points_that_are_about_it_and_no_other() {
    let all = |_: &Record| true;
    let slots = |it: &Record| it.settings.slots_per_peer;
    let is = |it: &Record, scheme| it.settings.scheme == scheme;
    let distance = |it: &Record| number(it, "partner_distance_ranks");
    let first = |it: &Record| it.settings.credit_slots == 1;
    let bytes = |it: &Record| number(it, "message_bytes");
    let pingpong = |it: &Record| it.settings.workload_name() == "multi_pingpong";
    let all_active = |it: &Record| number(it, "group_ranks") == f64::from(it.settings.ranks);
    let fast_nak = |it: &Record| is(it, SchemeName::Hardware) && it.settings.rnr_timer_ns < 640_000;
    let ranks = |it: &Record| it.settings.ranks;
    let on_nic = |it: &Record| e4::word(&it.settings, "executor") == e4::NIC;
    let is_tree = |it: &Record| e4::word(&it.settings, "algorithm") == "gather_broadcast";
    let is_fast = |it: &Record| e4::network(&it.settings) == e4::FAST;
    let through_mpi = |it: &Record| e4::is_mpi(&it.settings);
    let is_loop = |it: &Record| number(it, "steps") <= 1.0;
    let spread = |it: &Record| number(it, "compute_spread_percent");
    let delay = |it: &Record| number(it, "max_delay_ns");
    let is_binomial = |it: &Record| e4::word(&it.settings, "tree") == "binomial";
    let is_pipelined = |it: &Record| it.settings.workload["multicast"]["pipelined"].as_bool() == Some(true);
    let with_3_slots_less = |it: &mut Record| {
        it.settings.slots_per_peer -= 3;
        as_published("E1.2", it);
        it.settings.slots_per_peer += 3;
    };
    let constant = |it: &mut Record| {
        let credits = it.measures.iter_mut().filter(|(name, _)| *name != "phase");
        credits.for_each(|(_, measure)| measure.of_rank_0.fill(25.0));
    };
    let deviations: &[Deviation<'_>] = &[
        (
            "E1.1",
            &|it| distance(it) == 1008.0 && slots(it) < 78,
            &|it| it.stalls = it.stalls.max(100),
            &["does not depend on distance"],
        ),
        ("E1.1", &|it| distance(it) == 16.0, &|it| it.time_ns += 300.0, &["larger at 14 hops"]),
        ("E1.1", &first, &|it| it.time_ns += 300.0, &["n = 1 has the least"]),
        ("E1.1", &first, &|it| it.stalls /= 10, &["more of its sends are delayed"]),
        ("E1.2", &all, &|it| costs(it, 30.0), &["begins to fall", "is stable"]),
        // With 1024 ranks too few sizes run to decide it.
        (
            "E1.2",
            &|it| it.settings.ranks < 1024,
            &with_3_slots_less,
            &["64 ranks, n = 1: overhead begins", "256 ranks, n = 2", "n = 3", "n = 4", "n = 5"],
        ),
        ("E1.2", &|it| slots(it) >= 60, &|it| costs(it, 5.0), &["n = 1: overhead is stable"]),
        ("E1.3", &|it| bytes(it) == 2044.0, &|it| costs(it, 40.0), &["2044 B: overhead falls"]),
        ("E1.3", &|it| slots(it) == 24, &|it| it.credit_packets = 1000, &["fewer explicit credit packets"]),
        (
            "E1.3",
            &|it| it.settings.piggyback && bytes(it) == 2048.0,
            &|it| it.credit_packets = 980,
            &["as many credit packets"],
        ),
        (
            "E1.3",
            &|it| it.settings.piggyback && bytes(it) == 2048.0,
            &|it| costs(it, 38.0),
            &["2048 B: overhead stays"],
        ),
        (
            "E1.4",
            &|it| !is_dynamic(it) && !all_active(it) && slots(it) == 54,
            &|it| costs(it, 2.0),
            &["of 1,024 active, static"],
        ),
        (
            "E1.4",
            &|it| is_dynamic(it) && !all_active(it) && slots(it) < 57,
            &|it| costs(it, 20.0),
            &["active, dynamic"],
        ),
        (
            "E1.4",
            &|it| !is_dynamic(it) && all_active(it) && slots(it) == 54,
            &|it| costs(it, 2.0),
            &["all 256 active, static", "slightly more than static"],
        ),
        (
            "E1.4",
            &|it| is_dynamic(it) && all_active(it),
            &|it| costs(it, 0.0),
            &["slightly more than static"],
        ),
        (
            "E1.4",
            &|it| is_dynamic(it) && all_active(it),
            &|it| costs(it, 60.0),
            &["slightly more than static"],
        ),
        // More, but less than visible.
        (
            "E1.4",
            &|it| is_dynamic(it) && all_active(it),
            &|it| it.time_ns -= 19.0,
            &["slightly more than static"],
        ),
        (
            "E1.5",
            &|it| is_dynamic(it) && pingpong(it) && !is_free(it),
            &|it| costs(it, 26.0),
            &["computation is below", "much lower"],
        ),
        ("E1.5", &|it| is_dynamic(it) && pingpong(it), &|it| it.time_ns += 120.0, &["much lower"]),
        (
            "E1.5",
            &|it| is_dynamic(it) && slots(it) >= 16 && is_free(it),
            &|it| it.time_ns -= 50.0,
            &["the same of computation", "the same of stalls"],
        ),
        (
            "E1.5",
            &|it| is_dynamic(it) && slots(it) >= 16,
            &|it| it.time_ns += 50.0,
            &["very similar", "the same of stalls"],
        ),
        ("E1.5", &|it| is_dynamic(it) && slots(it) < 16, &|it| it.time_ns -= 20.0, &["slightly larger"]),
        ("E1.5", &|it| is_dynamic(it) && slots(it) < 16, &|it| it.time_ns -= 19.0, &["slightly larger"]),
        ("E1.5", &|it| is_dynamic(it) && slots(it) < 16, &|it| it.time_ns += 50.0, &["slightly larger"]),
        ("E1.6", &is_dynamic, &|it| costs(it, 45.0), &["% of the peers local"]),
        ("E1.6", &is_dynamic, &|it| costs(it, 40.0), &["dynamic costs less"]),
        (
            "E1.7",
            &all,
            &constant,
            &["most in the phases of a quarter", "come in with a half", "come in with all"],
        ),
        ("E1.8", &is_dynamic, &|it| costs(it, 5.0), &["dynamic: mean overhead", "dynamic, 8 slots"]),
        ("E1.8", &|it| !is_dynamic(it), &|it| costs(it, 2.0), &["static: mean overhead", "static, 8 slots"]),
        ("E1.9", &is_dynamic, &|it| costs(it, 20.0), &["approaches the reference"]),
        ("E1.9", &|it| !is_dynamic(it), &|it| costs(it, 0.5), &["closer to the reference"]),
        ("E2.1", &|it| is(it, SchemeName::Hardware), &|it| costs(it, 3.0), &["same latency"]),
        (
            "E2.2",
            &|it| is(it, SchemeName::Adaptive) && is_blocking(it),
            &|it| costs(it, 15.0),
            &["blocking calls: all schemes perform comparably", "blocking and non-blocking"],
        ),
        (
            "E2.2",
            &|it| is(it, SchemeName::Adaptive) && !is_blocking(it),
            &|it| costs(it, 15.0),
            &["non-blocking calls: all schemes perform comparably", "blocking and non-blocking"],
        ),
        (
            "E2.4",
            &|it| is(it, SchemeName::Adaptive) && !is_blocking(it),
            &|it| costs(it, 15.0),
            &["non-blocking calls: all schemes perform comparably"],
        ),
        ("E2.2", &is_blocking, &|it| costs(it, 15.0), &["blocking and non-blocking"]),
        ("E2.3", &|it| is(it, SchemeName::Adaptive), &|it| costs(it, 30.0), &["adaptive is best"]),
        ("E2.3", &fast_nak, &|it| costs(it, 60.0), &["static is worst"]),
        (
            "E2.4",
            &|it| is(it, SchemeName::Hardware) && is_blocking(it),
            &|it| costs(it, -1.0),
            &["blocking calls: all schemes perform comparably", "better performance"],
        ),
        ("E2.5", &|it| slots(it) == 1, &|it| costs(it, 0.0), &["LU suffers", "adaptive is best"]),
        ("E2.5", &|it| slots(it) == 100 && is_lu(it), &|it| costs(it, 6.0), &["pre-post 100"]),
        ("E2.6", &|it| !is_lu(it), &|it| it.credit_packets = 100, &["explicit credit messages"]),
        ("E2.6", &is_lu, &|it| it.peak_quota_slots = 20, &["the most buffers"]),
        (
            "E4.3",
            &|it| ranks(it) == 16 && is_tree(it) && !on_nic(it),
            &|it| it.time_ns *= 1.3,
            &["16 nodes, GB: host time"],
        ),
        (
            "E4.3",
            &|it| ranks(it) == 16 && is_tree(it),
            &|it| it.time_ns *= 1.3,
            &["16 nodes: NIC PE is fastest"],
        ),
        (
            "E4.3",
            &|it| ranks(it) == 2 && is_tree(it) && on_nic(it),
            &|it| it.time_ns *= 0.5,
            &["2 nodes, GB"],
        ),
        (
            "E4.3",
            &|it| is_fast(it) && !through_mpi(it) && !on_nic(it),
            &|it| it.time_ns *= 0.85,
            &["8 nodes, host PE", "8 nodes, PE: host time", "8 nodes, PE: the faster NIC"],
        ),
        (
            "E4.3",
            &|it| is_fast(it) && through_mpi(it) && !on_nic(it) && ranks(it) == 8,
            &|it| it.time_ns *= 1.2,
            &["8 nodes, through MPI, host", "8 nodes, through MPI: host"],
        ),
        (
            "E4.3",
            &|it| is_fast(it) && through_mpi(it) && on_nic(it) && ranks(it) == 8,
            &|it| it.time_ns *= 1.2,
            &[
                "8 nodes, through MPI, NIC",
                "8 nodes, through MPI: host",
                "66 MHz, through MPI: the factor grows",
            ],
        ),
        (
            "E4.3",
            &|it| !is_fast(it) && through_mpi(it) && !on_nic(it) && ranks(it) == 16,
            &|it| it.time_ns *= 0.8,
            &["33 MHz, through MPI: the factor grows"],
        ),
        ("E4.3", &|it| ranks(it) == 7 && on_nic(it), &|it| it.time_ns *= 0.5, &["7 nodes take longer"]),
        (
            "E4.4",
            &|it| is_loop(it) && spread(it) == 0.0 && !on_nic(it),
            &|it| it.time_ns *= 1.3,
            &["host: computation for an efficiency", "nodes: computation for an efficiency"],
        ),
        (
            "E4.4",
            &|it| is_loop(it) && spread(it) == 0.0 && on_nic(it),
            &|it| it.time_ns *= 1.3,
            &["NIC: computation for an efficiency", "nodes: computation for an efficiency"],
        ),
        (
            "E4.4",
            &|it| spread(it) == 20.0 && !on_nic(it),
            &|it| it.time_ns += 50_000.0,
            &["what the NIC gains"],
        ),
        (
            "E4.4",
            &|it| spread(it) == 5.0 && !on_nic(it) && number(it, "compute_ns") < 100_000.0,
            &|it| it.time_ns -= 100_000.0,
            &["the NIC always"],
        ),
        ("E4.4", &|it| !is_loop(it) && on_nic(it), &|it| it.time_ns *= 1.2, &["steps: host time"]),
        (
            "E4.5",
            &|it| on_nic(it) && is_binomial(it) && ranks(it) == 16,
            &|it| scale(it, "latency_ns", 1.3),
            &[
                "16 nodes, integer: latency",
                "16 nodes, float: latency",
                "integer, 2, 4, 8, 16 nodes",
                "float, 2, 4, 8, 16 nodes",
            ],
        ),
        (
            "E4.5",
            &|it| on_nic(it) && is_binomial(it) && ranks(it) == 16 && delay(it) == 0.0,
            &|it| scale(it, "host_ns", 1.2),
            &["16 nodes, integer: time of a rank in the call, host", "16 nodes, float: time of a rank"],
        ),
        (
            "E4.5",
            &|it| on_nic(it) && is_binomial(it) && ranks(it) == 8 && delay(it) == 0.0,
            &|it| scale(it, "host_ns", 0.5),
            &["integer: the factor of the time", "float: the factor of the time"],
        ),
        (
            "E4.5",
            &|it| on_nic(it) && ranks(it) == 16 && delay(it) == 1e6,
            &|it| scale(it, "host_ns", 1.3),
            &["integer: the same with delays", "float: the same with delays"],
        ),
        (
            "E4.5",
            &|it| on_nic(it) && ranks(it) == 16 && delay(it) == 2e5,
            &|it| scale(it, "host_ns", 1.3),
            &["16 nodes, integer: time of a rank in the call with"],
        ),
        (
            "E4.5",
            &|it| on_nic(it) && !is_binomial(it) && ranks(it) == 2,
            &|it| scale(it, "latency_ns", 1.02),
            &["depth 1, floats"],
        ),
        ("E4.1", &|it| on_nic(it) && bytes(it) < 32.0, &|it| it.time_ns *= 0.9, &["to 15, below 32 B"]),
        ("E4.1", &|it| on_nic(it) && bytes(it) == 64.0, &|it| it.time_ns *= 1.5, &["to 15, above 32 B"]),
        (
            "E4.1",
            &|it| on_nic(it) && bytes(it) == 16_384.0 && ranks(it) == 16,
            &|it| it.time_ns *= 2.0,
            &["16 KB to 15: host", "to 15: the factor is largest", "16 KB: the factor grows"],
        ),
        (
            "E4.2",
            &|it| on_nic(it) && bytes(it) == 16_384.0,
            &|it| it.time_ns *= 1.3,
            &[
                "16 KB, 4 nodes, pipelined",
                "16 KB, 16 nodes, pipelined",
                "16 KB, 8 nodes, not",
                "16 KB, 16 nodes, not",
            ],
        ),
        (
            "E4.2",
            &|it| on_nic(it) && bytes(it) == 256.0,
            &|it| it.time_ns *= 2.0,
            &["pipelined, the NIC is faster"],
        ),
        (
            "E4.2",
            &|it| on_nic(it) && bytes(it) == 16_384.0 && ranks(it) == 4 && !is_pipelined(it),
            &|it| it.time_ns *= 1.05,
            &["16 KB, 4 nodes: pipelining"],
        ),
        (
            "E4.2",
            &|it| !on_nic(it) && bytes(it) == 16_384.0 && ranks(it) == 16 && number(it, "lambda") == 1.0,
            &|it| it.time_ns *= 1.06,
            &["16 KB, 16 nodes: the host's best tree"],
        ),
        ("E4.2", &|it| !on_nic(it) && bytes(it) < 32.0, &|it| it.time_ns *= 1.1, &["16 nodes, below 32 B"]),
        (
            "E4.2",
            &|it| on_nic(it) && bytes(it) == 1536.0 && !is_pipelined(it),
            &|it| it.time_ns *= 1.05,
            &["16 nodes, one packet"],
        ),
        ("E4.6", &on_nic, &|it| it.time_ns *= 1.5, &["the NIC is faster"]),
        ("E4.7", &|it| on_nic(it) && ranks(it) == 8, &|it| it.time_ns *= 1.3, &["NIC, from 2 to 7 nodes"]),
        (
            "E4.7",
            &|it| !on_nic(it) && ranks(it) == 4,
            &|it| it.time_ns *= 0.5,
            &["the NIC outperforms", "servers that poll, from 2 to 3"],
        ),
        (
            "E4.7",
            &|it| !on_nic(it),
            &|it| it.time_ns *= 1.2,
            &["servers that sleep", "servers that poll (several processors)"],
        ),
        (
            "E4.8",
            &|it| on_nic(it) && delay(it) == 666e3,
            &|it| it.time_ns *= 1.3,
            &[
                "skew of 333 us: time in the call",
                "2048 B, skew of 333 us: all",
                "4096 B, skew of 333 us: all",
                "8192 B, skew of 333 us: all",
            ],
        ),
        (
            "E4.8",
            &|it| on_nic(it) && delay(it) == 666e3 && bytes(it) == 1.0,
            &|it| it.time_ns *= 2.0,
            &["32 nodes, 1 B, skew of 333 us", "1 B: the time of the NIC falls"],
        ),
        (
            "E4.8",
            &|it| on_nic(it) && delay(it) == 34e3,
            &|it| it.time_ns *= 0.5,
            &["the time of the NIC falls"],
        ),
        (
            "E4.8",
            &|it| !on_nic(it) && delay(it) == 34e3,
            &|it| it.time_ns *= 10.0,
            &["the time of the host grows from"],
        ),
        (
            "E4.8",
            &|it| !on_nic(it) && delay(it) == 666e3 && bytes(it) == 8192.0,
            &|it| it.time_ns *= 3.0,
            &["8192 B, skew of 333 us: time in the call", "the factor falls"],
        ),
        (
            "E4.8",
            &|it| on_nic(it) && ranks(it) == 8,
            &|it| it.time_ns *= 0.5,
            &["8 to 32 nodes: the time of the NIC"],
        ),
        (
            "E4.8",
            &|it| !on_nic(it) && ranks(it) == 8,
            &|it| it.time_ns *= 9.0,
            &["8 to 32 nodes: the time of the host"],
        ),
    ];
    let is_about = |text: &str, piece: &str| text.starts_with(piece) || text.contains(&format!(" {piece}"));
    let mut can_fail: Vec<(&str, String)> = Vec::new();
    let mut wrong = Vec::new();
    for (index, (id, which, change, broken)) in deviations.iter().enumerate() {
        let points = judged(id, &|record| {
            if which(record) {
                change(record);
            }
        });
        for piece in *broken {
            if !points.iter().any(|point| is_about(&point.text, piece)) {
                wrong.push(format!("{id}, {index}: no point of {piece}"));
            }
        }
        for Point { id: name, text, ours, verdict, .. } in points {
            if verdict == Verdict::DoesNotHold {
                can_fail.push((id, name));
            }
            let breaks = broken.iter().any(|piece| is_about(&text, piece));
            let expected = if breaks { Verdict::DoesNotHold } else { Verdict::Holds };
            if verdict != expected {
                wrong.push(format!("{id}, deviation {index}: {verdict:?}: {text}: {ours}"));
            }
        }
    } // each rule is broken by some deviation
    for experiment in ALL.iter().filter(|it| it.id != "E1.10") {
        for point in judged(experiment.id, &|_| {}) {
            let fails = can_fail.iter().any(|(id, name)| *id == experiment.id && *name == point.id);
            if !fails {
                wrong.push(format!("{}: no deviation breaks {}: {}", experiment.id, point.id, point.text));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// weir's own goals with records in which credits on demand cost `percent` and other schemes 20 %.
fn own_goals(percent: f64, change: &dyn Fn(&mut Record)) -> Vec<Point> {
    let [experiment] = OWN else { panic!("one experiment") };
    let plans: Vec<Plan> = experiment.plans.iter().map(|name| plan_of(name, false)).collect();
    let worlds = || plans.iter().flat_map(|plan| &plan.worlds);
    let measure = |of_rank_0: Vec<f64>| Measure { count: 1, mean: 0.0, min: 0.0, max: 0.0, of_rank_0 };
    let records: Vec<Record> = worlds()
        .map(|setup| {
            let mut record = record(setup.key(), setup.settings.clone(), 1000.0);
            match setup.settings.scheme {
                SchemeName::Unlimited => {}
                SchemeName::Demand => {
                    costs(&mut record, percent);
                    record.measures.insert(String::from("call_ns"), measure(vec![1e6; 4]));
                    record.measures.insert(String::from("sender_messages"), measure(vec![9.0; 7]));
                    change(&mut record);
                }
                _ => costs(&mut record, 20.0),
            }
            record
        })
        .collect();
    let evidence = Evidence::new(records.iter().collect(), &[]).with_floors(worlds());
    for chart in (experiment.figures)(&evidence) {
        assert!(!chart.is_empty(), "{}", chart.title);
    }
    (experiment.points)(&evidence)
}

/// A reference of 1000 ns makes every floor enormous, so that any overhead is within it.
#[test]
fn own_goals_are_judged() {
    for point in own_goals(1.0, &|_| {}) {
        assert_eq!(point.verdict, Verdict::Holds, "{}: {}: {}", point.id, point.text, point.ours);
    }
    let unfair = |record: &mut Record| {
        let slow = |measure: &mut Measure, index: usize, value: f64| measure.of_rank_0[index] = value;
        record.measures.entry(String::from("call_ns")).and_modify(|calls| slow(calls, 0, 2e6));
        record.measures.entry(String::from("sender_messages")).and_modify(|shares| slow(shares, 0, 90.0));
        if record.settings.slots_per_peer == 37 {
            costs(record, 60.0);
        }
    };
    for point in own_goals(30.0, &unfair) {
        // A half or a quarter of the ranks run with few slots only, so that no overhead is above their floors.
        let has_floors = ["sends-first.floor.1-2", "sends-first.floor.1-4"].contains(&point.id.as_str());
        let expected = if has_floors { Verdict::Holds } else { Verdict::DoesNotHold };
        assert_eq!(point.verdict, expected, "{}: {}: {}", point.id, point.text, point.ours);
    }
}

#[test]
fn an_overhead_above_the_floor_misses_the_goal() {
    // A reference that is as long as the work of a rank: 63 bursts of 95.5 us, with calls of 2 us.
    let [experiment] = OWN else { panic!("one experiment") };
    let plan = plan_of("demand-alltoall", false);
    let worlds = || plan.worlds.iter().filter(|setup| setup.settings.slots_per_peer <= 8);
    for (percent, verdict) in [(55.0, Verdict::Holds), (66.0, Verdict::DoesNotHold)] {
        let time = |setup: &weir_sim::plan::Setup| match setup.settings.scheme {
            SchemeName::Unlimited => 6.14e6,
            _ => 6.14e6 * (1.0 + percent / 100.0),
        };
        let records: Vec<Record> =
            worlds().map(|setup| record(setup.key(), setup.settings.clone(), time(setup))).collect();
        let evidence = Evidence::new(records.iter().collect(), &[]).with_floors(worlds());
        let points = (experiment.points)(&evidence);
        assert_eq!(point(&points, "sends-first.floor.all").verdict, verdict, "{percent}");
    }
}

/// Sweeps and seeds identify a point of other worlds by its name.
#[test]
fn every_rule_has_a_name_of_its_own() {
    for experiment in ALL {
        let points = judged(experiment.id, &|_| {});
        for point in &points {
            assert!(!point.id.is_empty(), "{}: {}", experiment.id, point.text);
            let with_name = points.iter().filter(|other| other.id == point.id);
            assert_eq!(with_name.filter(|other| other.text == point.text).count(), 1, "{}", point.id);
        }
    }
}

/// The points of an experiment after its sweep, from published values of the quick worlds and of the swept
/// ones, which `change` alters.
fn swept(id: &str, change: &dyn Fn(&mut Record)) -> Vec<Point> {
    let experiment = ALL.iter().find(|it| it.id == id).expect("an experiment");
    let quick = |name: &str| Ok(plan_of(name, true));
    let sweeps = sensitivity::read(&[experiment], quick).expect("plans");
    let own: Vec<Plan> = experiment.plans.iter().map(|name| plan_of(name, true)).collect();
    let swept = sweeps.iter().map(|sweep| &sweep.plan);
    let worlds = own.iter().chain(swept).flat_map(|plan| &plan.worlds);
    let results = Results::of_records(worlds.map(|setup| {
        let mut record = record(setup.key(), setup.settings.clone(), 1000.0);
        if setup.settings.scheme != SchemeName::Unlimited || has_no_flow_control(id) {
            as_published(id, &mut record);
            change(&mut record);
        }
        record
    }));
    let records = own.iter().flat_map(|plan| &plan.worlds).map(|setup| results.of(setup).expect("a record"));
    let mut points = (experiment.points)(&Evidence::new(records.collect(), &[]));
    sensitivity::judge(experiment, &sweeps, &results, &mut points);
    points
}

fn point<'a>(points: &'a [Point], id: &str) -> &'a Point {
    points.iter().find(|point| point.id == id).expect("a point of this name")
}

/// These records do not depend on any price. So each point that holds does so for all values, if the rules find the worlds of a
/// sweep as they find those of the plan. E2.5 and E2.6 share a plan, and so all worlds of their sweeps.
#[test]
fn every_experiment_with_worlds_is_swept() {
    for experiment in ALL.iter().filter(|it| it.id != "E1.10") {
        let points = swept(experiment.id, &|_| {});
        let of = |verdict| points.iter().filter(move |point| point.verdict == verdict);
        assert!(of(Verdict::Holds).count() > 0, "{}", experiment.id);
        for point in of(Verdict::Holds) {
            // The plan of E4.8 states the price of copies itself.
            let least = if experiment.id == "E4.8" { 2 } else { 3 };
            assert!(
                point.sensitivity.len() >= least,
                "{}: {}: {:?}",
                experiment.id,
                point.id,
                point.sensitivity
            );
        }
        if let Some(point) = of(Verdict::HoldsIf).next() {
            panic!("{}: {}: {}", experiment.id, point.id, point.verdict_text());
        }
    }
}

#[test]
fn a_point_that_fails_with_another_price_holds_if() {
    for (id, name, point_of_price) in
        [("E2.5", "credit_send_ns", "adaptive-best"), ("E2.6", "receive_call_ns", "most-buffers")]
    {
        let change = |record: &mut Record| {
            if record.settings.network_value(name).is_some_and(|ns| ns >= 1000.0) {
                costs(record, 0.0);
                record.peak_quota_slots = 7;
            }
        };
        let points = swept(id, &change);
        let text = point(&points, point_of_price).verdict_text();
        let range = match id {
            "E2.5" => "credit price (x) in [0.1, 1]",
            _ => "receive call (ns) in [0, 300]",
        };
        assert_eq!(text, format!("holds if {range}"), "{id}");
    }
}

/// One plan of E1.4 assumes call jitter, the other none. The range of each contains its assumed value.
#[test]
fn a_range_contains_the_assumed_value_of_the_plan() {
    let jitter = |record: &Record| record.settings.network_value("call_jitter_ns").unwrap_or(0.0);
    let is_all = |record: &Record| number(record, "group_ranks") == f64::from(record.settings.ranks);
    let change = |record: &mut Record| {
        let assumed = if is_all(record) { 1000.0 } else { 0.0 };
        if jitter(record) != assumed {
            costs(record, 100.0);
        }
    };
    let points = swept("E1.4", &change);
    for (id, value) in [("dynamic.all", 1000.0), ("dynamic.1/2", 0.0)] {
        let ranges = &point(&points, id).sensitivity;
        let range = ranges.iter().find(|stay| stay.parameter.starts_with("call jitter")).expect("a range");
        assert_eq!((range.from, range.to, range.is_all), (value, value, false), "{id}");
        assert_eq!(point(&points, id).verdict, Verdict::HoldsIf, "{id}");
    }
}

#[test]
fn a_point_that_holds_in_large_worlds_only_is_not_swept() {
    let experiment = ALL.iter().find(|it| it.id == "E1.9").expect("an experiment");
    let mut points =
        vec![Point::new("approaches", "", "", "", true), Point::new("closer", "", "", "", false)];
    sensitivity::judge(experiment, &[], &Results::default(), &mut points);
    let verdicts: Vec<String> = points.iter().map(Point::verdict_text).collect();
    assert_eq!(verdicts, ["holds (not swept)", "DOES NOT HOLD"]);
}

/// Ranks of a NAS kernel have other shares of the work with each seed.
#[test]
fn the_median_over_seeds_decides_a_kernel() {
    let suffers = |seeds: &'static [u64]| {
        move |record: &mut Record| {
            let is = is_lu(record) && record.settings.scheme == SchemeName::Hardware;
            if is && record.settings.slots_per_peer == 1 {
                costs(record, if seeds.contains(&record.settings.seed) { 30.0 } else { 0.0 });
            }
        }
    };
    for (seeds, verdict) in [(&[2, 3][..], Verdict::Holds), (&[2], Verdict::DoesNotHold)] {
        let points = judged("E2.5", &suffers(seeds));
        assert_eq!(point(&points, "lu.hardware").verdict, verdict, "{seeds:?}");
    }
}

#[test]
fn memory_has_no_verdict() {
    let row = weir_bench::memory::Row { peers: 1024, ..weir_bench::memory::Row::default() };
    let points = (e1_10::EXPERIMENT.points)(&Evidence::new(Vec::new(), std::slice::from_ref(&row)));
    assert_eq!(points.iter().map(|point| point.verdict).collect::<Vec<_>>(), [Verdict::NotPublished]);
    assert_eq!(points[0].published, "4 MB static, 1.14 MB dynamic");
}

/// Every buffer size that ran delays sends. The size at which this ends is unknown, so it is not "the same".
#[test]
fn an_end_that_was_not_reached_is_not_evaluated() {
    let always = |record: &mut Record| record.stalls = 500;
    let ends = judged("E1.1", &always).into_iter().filter(|point| point.id.starts_with("end-of-delays"));
    assert!(ends.clone().count() > 0);
    ends.for_each(|point| assert_eq!(point.verdict, Verdict::NotEvaluated, "{}", point.ours));
}

/// "Not up to 64 slots" fails for a curve that is stable at 64.
#[test]
fn stable_at_64_slots_is_up_to_64_slots() {
    let at_64 = |record: &mut Record| {
        if record.settings.slots_per_peer >= 64 {
            costs(record, 5.0);
        }
    };
    let points = judged("E1.2", &at_64);
    let point = points.iter().find(|point| point.id == "stable.n1").expect("the point of one credit slot");
    assert_eq!(point.verdict, Verdict::DoesNotHold, "{}", point.ours);
}
