//! Checks weir's own goals for credits on demand ("points") against our simulation records, and draws the figures: the
//! all-to-all in both orders with its computed floor, Intel MPI Benchmarks, pairs and NAS kernels with plenty of memory,
//! the first calls of an all-to-all, and senders that share one receiver. Nothing of this is published. Goals stand where
//! other experiments have published values.

use super::{Experiment, OWN_SCHEMES, Point, VISIBLE, percent};
use crate::reproduce::chart::Chart;
use crate::reproduce::evidence::{Curve, Evidence, mean, slots};
use weir_output::quantity::count;
use weir_sim::plan::{Record, SchemeName, Settings};

pub const EXPERIMENT: Experiment = Experiment {
    id: "demand",
    title: "Credits on demand",
    source: "weir's own goals, not published",
    plans: &[
        "demand-alltoall",
        "demand-groups",
        "demand-imb",
        "demand-plenty",
        "demand-nas",
        "demand-start",
        "demand-fair",
    ],
    points,
    figures,
};

/// Title of the figure of docs/explanation/flow-control.md.
pub const MEMORY_FIGURE: &str = "Overhead by memory, mean of 13 benchmarks";

/// Slots with which a scheme that is short of memory is judged.
const FEW: f64 = 8.0;
/// The range of slots with a goal for all-to-alls.
const RANGE: (f64, f64) = (8.0, 48.0);
/// Most overhead if sends come first: this factor times the floor.
const OF_FLOOR: f64 = 1.25;
/// Overhead that is allowed where the floor is lower, or 0. Unit: percent.
const LEAST: f64 = 3.0;
/// Meaning of "no step": neighbouring sizes from 36 to 40 slots differ by at most this. Unit: percentage points.
const STEP: f64 = 5.0;
/// Most overhead of an all-to-all with few slots if receives come first. Unit: percent.
const RECEIVES_FIRST: f64 = 12.0;
/// Most mean overhead of all benchmarks with few slots. Unit: percent.
const MEAN: f64 = 8.0;
/// Most overhead of pairs with few slots. Unit: percent.
const PAIRS: f64 = 3.0;
/// Meaning of "the same time": the relative difference. Unit: percent.
const SAME: f64 = 3.0;
/// Least fairness index of equal senders.
const FAIR: f64 = 0.99;
/// Memory of a slot in the mailbox. Source: EXTOLL packets of 64 bytes. Unit: KiB.
const SLOT_KIB: f64 = 64.0 / 1024.0;

const SCHEMES: [(SchemeName, &str); 4] = [
    (SchemeName::Static, "static"),
    (SchemeName::Dynamic, "dynamic (published)"),
    OWN_SCHEMES[0],
    OWN_SCHEMES[1],
];

const ORDERS: [(&str, &str); 2] = [("sends_first", "sends first"), ("receives_first", "receives first")];

fn order(it: &Settings) -> &str {
    it.workload[it.workload_name()]["order"].as_str().unwrap_or("")
}

/// An all-to-all among all ranks, or some of them.
fn active(it: &Settings) -> Option<u32> {
    match it.workload_name() {
        "alltoall" => Some(it.ranks),
        "alltoall_groups" => Some(it.workload_number("group_ranks")? as u32),
        _ => None,
    }
}

fn benchmark(it: &Settings) -> &str {
    it.workload["imb"]["benchmark"].as_str().unwrap_or("")
}

fn kernel(it: &Settings) -> &str {
    it.workload["nas"]["kernel"].as_str().unwrap_or("")
}

/// All parts of the ranks that ran an all-to-all: active and all ranks.
fn parts(evidence: &Evidence<'_>) -> Vec<(u32, u32)> {
    evidence.values(|it| Some((active(it)?, it.ranks))).into_iter().flatten().collect()
}

fn alltoall(evidence: &Evidence<'_>, scheme: SchemeName, part: (u32, u32), wanted: &str) -> Curve {
    evidence.overhead_by_slots(|it| {
        it.scheme == scheme
            && active(it).is_some_and(|active| (active, it.ranks) == part)
            && order(it) == wanted
    })
}

/// The floors of the all-to-alls with credits on demand.
fn floors(evidence: &Evidence<'_>, part: (u32, u32), wanted: &str, of_memory: bool) -> Curve {
    let which = |it: &Settings| {
        it.scheme == SchemeName::Demand
            && active(it).is_some_and(|active| (active, it.ranks) == part)
            && order(it) == wanted
    };
    evidence.curve(which, slots, |record| {
        let floor = evidence.floor(record)?;
        Some(if of_memory { floor.of_memory } else { floor.of_waiting })
    })
}

fn words(curve: &Curve) -> String {
    curve
        .0
        .iter()
        .map(|(slots, value)| format!("{} at {slots}", percent(*value)))
        .collect::<Vec<_>>()
        .join(", ")
}

fn within(Curve(curve): &Curve, (from, to): (f64, f64)) -> Curve {
    Curve(curve.iter().copied().filter(|(slots, _)| (from..=to).contains(slots)).collect())
}

/// Points about an all-to-all among a part of the ranks.
fn points_of_alltoall(evidence: &Evidence<'_>, part: (u32, u32), points: &mut Vec<Point>) {
    let (some, all) = part;
    let name = if some == all { String::from("all") } else { format!("1-{}", all / some) };
    let who = format!("all-to-all among {} of {} ranks", count(some.into()), count(all.into()));
    let demand = within(&alltoall(evidence, SchemeName::Demand, part, "sends_first"), RANGE);
    let fixed = alltoall(evidence, SchemeName::Static, part, "sends_first");
    let floor = floors(evidence, part, "sends_first", false);
    let beside: Option<Vec<(f64, f64, f64)>> =
        demand.0.iter().map(|&(slots, overhead)| Some((slots, overhead, floor.at(slots)?))).collect();
    let beside = beside.filter(|beside| !beside.is_empty());
    points.push(Point::of(
        format!("sends-first.floor.{name}"),
        format!("{who}, sends first: at most {OF_FLOOR} times the floor of waiting, or {LEAST} %"),
        format!("at most {OF_FLOOR} times the floor, or {LEAST} %"),
        beside.map(|beside| {
            let each = beside.iter().map(|(slots, overhead, floor)| {
                format!("{} at {slots} (floor {})", percent(*overhead), percent(*floor))
            });
            let holds = beside.iter().all(|(_, overhead, floor)| *overhead <= (OF_FLOOR * floor).max(LEAST));
            (each.collect::<Vec<_>>().join(", "), holds)
        }),
    ));
    let beside: Option<Vec<(f64, f64)>> =
        demand.0.iter().map(|&(slots, overhead)| Some((overhead, fixed.at(slots)?))).collect();
    points.push(Point::of(
        format!("sends-first.static.{name}"),
        format!("{who}, sends first: not above static credits (by {VISIBLE} point)"),
        "never above static",
        beside.filter(|beside| !beside.is_empty()).map(|beside| {
            let ours = format!("static: {}", words(&within(&fixed, RANGE)));
            (ours, beside.iter().all(|(overhead, fixed)| *overhead < fixed + VISIBLE))
        }),
    ));
    let first = alltoall(evidence, SchemeName::Demand, part, "receives_first");
    if first.is_empty() {
        return; // these worlds run in one order
    }
    points.push(Point::of(
        format!("receives-first.{name}"),
        format!("{who}, receives first: at most {RECEIVES_FIRST} % with {FEW} slots"),
        format!("at most {RECEIVES_FIRST} %"),
        first.at(FEW).map(|overhead| (words(&within(&first, RANGE)), overhead <= RECEIVES_FIRST)),
    ));
}

/// No step where a message no longer fits into the slots of a peer.
fn step(evidence: &Evidence<'_>) -> Point {
    let near = parts(evidence)
        .into_iter()
        .map(|part| within(&alltoall(evidence, SchemeName::Demand, part, "sends_first"), (36.0, 40.0)));
    let most = near
        .flat_map(|Curve(near)| near.windows(2).map(|pair| (pair[1].1 - pair[0].1).abs()).collect::<Vec<_>>())
        .reduce(f64::max);
    Point::of(
        "sends-first.step",
        format!(
            "all-to-all, sends first: no step at 37 slots (neighbouring sizes from 36 to 40 differ by at most {STEP} points)"
        ),
        "no step",
        most.map(|most| (format!("at most {most:.1} points"), most <= STEP)),
    )
}

/// Overheads of a benchmark, in small or in large worlds.
fn imb(evidence: &Evidence<'_>, scheme: SchemeName, name: &str, is_small: bool) -> Curve {
    evidence.overhead_by_slots(|it| {
        it.scheme == scheme && benchmark(it) == name && (it.ranks <= SMALL) == is_small
    })
}

/// Most ranks of the worlds in which all four schemes run the benchmarks.
const SMALL: u32 = 64;

/// The benchmarks that ran, in order.
fn benchmarks(evidence: &Evidence<'_>) -> Vec<String> {
    evidence.values(|it| benchmark(it).to_owned()).into_iter().filter(|name| !name.is_empty()).collect()
}

/// Mean over all benchmarks in small worlds, at each size at which all of them ran.
fn average(evidence: &Evidence<'_>, scheme: SchemeName) -> Curve {
    let curves: Vec<Curve> =
        benchmarks(evidence).iter().map(|name| imb(evidence, scheme, name, true)).collect();
    let Some(first) = curves.first() else { return Curve::default() };
    let at = |slots: f64| {
        let values: Option<Vec<f64>> = curves.iter().map(|curve| curve.at(slots)).collect();
        mean(&values?)
    };
    Curve(first.0.iter().filter_map(|&(slots, _)| Some((slots, at(slots)?))).collect())
}

fn points_of_imb(evidence: &Evidence<'_>, points: &mut Vec<Point>) {
    let all = average(evidence, SchemeName::Demand);
    points.push(Point::of(
        "imb.mean",
        format!("Intel MPI Benchmarks, 64 ranks: mean overhead of all at most {MEAN} % with {FEW} slots"),
        format!("at most {MEAN} %"),
        all.at(FEW).map(|mean| (words(&all), mean <= MEAN)),
    ));
    let rooted = ["scatter", "bcast", "reduce"].map(|name| (name, RECEIVES_FIRST));
    let pairs = ["ping_pong", "exchange", "sendrecv"].map(|name| (name, PAIRS));
    for (is_small, ranks, who) in [(true, "64", "64 ranks"), (false, "1024", "1,024 ranks")] {
        let alltoallv = is_small.then_some(("alltoallv", RECEIVES_FIRST));
        for (name, goal) in alltoallv.into_iter().chain(rooted).chain(pairs) {
            let curve = imb(evidence, SchemeName::Demand, name, is_small);
            points.push(Point::of(
                format!("imb.{name}.{ranks}"),
                format!("{name}, {who}: at most {goal} % with {FEW} slots"),
                format!("at most {goal} %"),
                curve.at(FEW).map(|overhead| (words(&curve), overhead <= goal)),
            ));
        }
    }
}

/// Selects worlds.
type Which = fn(&Settings) -> bool;

/// The most that credits on demand cost more than static credits, over the worlds of the same workload, and the number
/// of these worlds. Unit: percentage points.
fn against_static(evidence: &Evidence<'_>, which: impl Fn(&Settings) -> bool) -> Option<(f64, usize)> {
    let is_static = |it: &Settings| matches!(it.scheme, SchemeName::Static | SchemeName::StaticConnection);
    let of = |record: &&&Record| which(&record.settings);
    let demand = evidence.records.iter().filter(of).filter(|it| it.settings.scheme == SchemeName::Demand);
    let mut differences = Vec::new();
    for record in demand {
        let same = |other: &&&Record| {
            is_static(&other.settings)
                && other.settings.workload == record.settings.workload
                && other.settings.seed == record.settings.seed
        };
        let fixed = evidence.records.iter().filter(of).find(same)?;
        differences.push(evidence.overhead(record)? - evidence.overhead(fixed)?);
    }
    Some((differences.iter().copied().reduce(f64::max)?, differences.len()))
}

fn points_of_plenty(evidence: &Evidence<'_>, points: &mut Vec<Point>) {
    let cases: [(&str, &str, Which); 3] = [
        ("streams", "streams on InfiniBand, 514 slots against 100 buffers", |it| {
            it.workload_name() == "bandwidth"
        }),
        ("pingpong", "multi-pingpong on EXTOLL, 64 slots", |it| it.workload_name() == "multi_pingpong"),
        ("nas", "NAS kernels, weir's default slots against 100 buffers", |it| {
            !kernel(it).is_empty() && it.slots_per_peer != FEW as u32
        }),
    ];
    for (name, text, which) in cases {
        points.push(Point::of(
            format!("plenty.{name}"),
            format!("{text}: not above static credits (by {VISIBLE} point)"),
            "no more than static",
            against_static(evidence, which).map(|(most, worlds)| {
                (format!("at most {most:+.2} points in {worlds} worlds"), most < VISIBLE)
            }),
        ));
    }
    let few = |it: &Settings| it.scheme == SchemeName::Demand && it.slots_per_peer == FEW as u32;
    let kernels = evidence.values(|it| kernel(it).to_owned()).into_iter().filter(|name| !name.is_empty());
    let overheads: Vec<(String, f64)> = kernels
        .filter_map(|name| {
            let curve = evidence.overhead_by_slots(|it| few(it) && kernel(it) == name);
            Some((name, curve.at(FEW)?))
        })
        .collect();
    points.push(Point::of(
        "few.nas",
        format!("NAS kernels, {FEW} slots: at most {PAIRS} %"),
        format!("at most {PAIRS} %"),
        (!overheads.is_empty()).then(|| {
            let each = overheads.iter().map(|(name, overhead)| format!("{name} {}", percent(*overhead)));
            (each.collect::<Vec<_>>().join(", "), overheads.iter().all(|(_, overhead)| *overhead <= PAIRS))
        }),
    ));
}

/// Times of the calls of rank 0, in order. Unit: ns.
fn calls(record: &Record) -> &[f64] {
    record.measures.get("call_ns").map_or(&[], |calls| &calls.of_rank_0)
}

fn points_of_start(evidence: &Evidence<'_>, points: &mut Vec<Point>) {
    let is = |record: &&&Record| record.settings.workload_name() == "alltoall_phases";
    let mut worlds: Vec<&Record> = evidence.records.iter().filter(is).copied().collect();
    worlds.sort_by_key(|record| record.settings.ranks);
    if worlds.is_empty() {
        points.push(Point::open(
            "start",
            "the first call of an all-to-all takes as long as the last",
            "the same",
        ));
    }
    for record in worlds {
        let it = &record.settings;
        let order = ORDERS.iter().find(|(name, _)| *name == order(it)).map_or("", |(_, text)| text);
        let first_and_last = calls(record).first().zip(calls(record).last());
        points.push(Point::of(
            format!("start.{}", it.ranks),
            format!(
                "{} ranks, {} slots (weir's default), {order}: the first all-to-all takes as long as call {} (at most {SAME} % more)",
                count(it.ranks.into()),
                it.slots_per_peer,
                calls(record).len()
            ),
            "the same time",
            first_and_last.map(|(first, last)| {
                (format!("{:.2} ms, {:.2} ms", first / 1e6, last / 1e6), *first <= last * (1.0 + SAME / 100.0))
            }),
        ));
    }
}

/// Jain's fairness index: 1 if all shares are equal, one divided by their number if one has everything.
fn jain(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

fn fairness(evidence: &Evidence<'_>) -> Point {
    let is = |record: &&&Record| {
        record.settings.scheme == SchemeName::Demand && record.settings.workload_name() == "incast"
    };
    let index = |record: &&Record| jain(&record.measures.get("sender_messages")?.of_rank_0);
    let least = evidence.records.iter().filter(is).filter_map(index).reduce(f64::min);
    Point::of(
        "fair",
        format!("seven equal senders, slots for two messages: Jain's index at least {FAIR}"),
        format!("at least {FAIR}"),
        least.map(|least| (format!("{least:.4}"), least >= FAIR)),
    )
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let mut points = Vec::new();
    for part in parts(evidence) {
        points_of_alltoall(evidence, part, &mut points);
    }
    points.push(step(evidence));
    points_of_imb(evidence, &mut points);
    points_of_plenty(evidence, &mut points);
    points_of_start(evidence, &mut points);
    points.push(fairness(evidence));
    points
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let (x, y) = ("slots per peer, credit slots included", "overhead over unlimited (%)");
    let peers = f64::from(SMALL - 1);
    let mut memory = Chart::new(MEMORY_FIGURE, "memory of a receiver (KiB), 64 ranks", y);
    for (scheme, name) in SCHEMES {
        let Curve(curve) = average(evidence, scheme);
        memory
            .curve(name, Curve(curve.into_iter().map(|(slots, y)| (slots * peers * SLOT_KIB, y)).collect()));
    }
    let mut charts = vec![memory];
    for part in parts(evidence) {
        for (order, text) in ORDERS {
            let (some, all) = (count(part.0.into()), count(part.1.into()));
            let mut chart = Chart::new(format!("All-to-all among {some} of {all} ranks, {text}"), x, y);
            for (scheme, name) in SCHEMES {
                chart.curve(name, alltoall(evidence, scheme, part, order));
            }
            chart.curve("computed floor of waiting", floors(evidence, part, order, false));
            chart.curve("computed floor of memory", floors(evidence, part, order, true));
            if !chart.is_empty() {
                charts.push(chart);
            }
        }
    }
    let mut mean = Chart::new("Mean of the Intel MPI Benchmarks, 64 ranks", x, y);
    for (scheme, name) in SCHEMES {
        mean.curve(name, average(evidence, scheme));
    }
    charts.push(mean);
    for (is_small, who) in [(true, "64 ranks"), (false, "1,024 ranks")] {
        for benchmark in benchmarks(evidence) {
            let mut each = Chart::new(format!("{benchmark}, {who}"), x, y);
            for (scheme, name) in SCHEMES {
                each.curve(name, imb(evidence, scheme, &benchmark, is_small));
            }
            // All-to-alls run in small worlds only.
            if !each.is_empty() {
                charts.push(each);
            }
        }
    }
    charts
}
