//! Checks the published statements ("points") about experiment E1.8 against our simulation records, and draws its
//! figures. The Intel MPI Benchmarks run with 2 KB. It compares static and dynamic credits with 8, 16, 32 and 64 slots
//! per peer: the mean overhead over all benchmarks. weir's own schemes stand beside them. Source: Prades, thesis, 7.4,
//! and the paper of 2012.

use super::{DEMAND, Experiment, Point, WEIR, demand_with_floors, percent};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence, mean};
use weir_sim::plan::{SchemeName, Settings};

pub const EXPERIMENT: Experiment = Experiment {
    id: "E1.8",
    title: "Intel MPI Benchmarks, 2 KB",
    source: "Prades, thesis, 7.4: Figures 7.5 to 7.8 and 7.12; the paper of 2012",
    plans: &["e1.8"],
    points,
    figures,
};

/// An acceptable mean overhead. Source: thesis, 7.5. Unit: percent.
const ACCEPTABLE: f64 = 3.0;
/// Overhead of static credits at least, and of dynamic credits at most, with 8 slots. Source: Prades, 2012, a
/// mean over selected benchmarks. Ours is a mean over all that ran. Unit: percent.
const STATIC_AT_8: f64 = 15.0;
const DYNAMIC_AT_8: f64 = 2.0;

fn benchmark(it: &Settings) -> &str {
    it.workload["imb"]["benchmark"].as_str().unwrap_or("")
}

/// Mean over the benchmarks, at each buffer size at which all of them ran.
fn average(evidence: &Evidence<'_>, scheme: SchemeName) -> Curve {
    let benchmarks = evidence.values(|it| benchmark(it).to_owned());
    let curves: Vec<Curve> = benchmarks
        .iter()
        .map(|name| evidence.overhead_by_slots(|it| it.scheme == scheme && benchmark(it) == name))
        .filter(|curve| !curve.is_empty())
        .collect();
    let Some(first) = curves.first() else { return Curve::default() };
    let at = |slots: f64| {
        let values: Option<Vec<f64>> = curves.iter().map(|curve| curve.at(slots)).collect();
        mean(&values?)
    };
    Curve(first.0.iter().filter_map(|&(slots, _)| Some((slots, at(slots)?))).collect())
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let (fixed, dynamic) = (average(evidence, SchemeName::Static), average(evidence, SchemeName::Dynamic));
    let first = |curve: &Curve| curve.holds_from(|overhead| overhead <= ACCEPTABLE);
    let words = |curve: &Curve| {
        let values = curve.0.iter().map(|(slots, overhead)| format!("{} at {slots}", percent(*overhead)));
        values.collect::<Vec<_>>().join(", ")
    };
    let known = |curve: &Curve| (!curve.is_empty()).then_some(());
    let mut points = vec![
        Point::of(
            "static.3",
            format!("static: mean overhead of {ACCEPTABLE} % with 64 slots, not with fewer"),
            "64 slots",
            known(&fixed).map(|()| (words(&fixed), first(&fixed) == Some(64.0))),
        ),
        Point::of(
            "dynamic.3",
            format!("dynamic: mean overhead of {ACCEPTABLE} % with 16 slots or fewer"),
            "16 slots (thesis)",
            known(&dynamic).map(|()| (words(&dynamic), first(&dynamic).is_some_and(|slots| slots <= 16.0))),
        ),
        Point::of(
            "static.8-slots",
            format!("static, 8 slots: mean overhead above {STATIC_AT_8} %"),
            format!("above {STATIC_AT_8} % (2012, mean over selected tests)"),
            fixed.at(8.0).map(|overhead| (percent(overhead), overhead > STATIC_AT_8)),
        ),
        Point::of(
            "dynamic.8-slots",
            format!("dynamic, 8 slots: mean overhead below {DYNAMIC_AT_8} %"),
            format!("below {DYNAMIC_AT_8} % (2012, mean over selected tests; the thesis has more)"),
            dynamic.at(8.0).map(|overhead| (percent(overhead), overhead < DYNAMIC_AT_8)),
        ),
    ];
    let weir = average(evidence, SchemeName::Weir);
    if !weir.is_empty() {
        points.push(Point::beside("weir's own settings, mean overhead", words(&weir)));
    }
    let demand = average(evidence, SchemeName::Demand);
    if !demand.is_empty() {
        points.push(Point::beside("credits on demand, mean overhead", words(&demand)));
    }
    points.extend(with_floors(evidence));
    points
}

/// Each benchmark with credits on demand beside its computed floor, and those without one.
fn with_floors(evidence: &Evidence<'_>) -> Vec<Point> {
    let mut points = Vec::new();
    let mut without = Vec::new();
    for name in evidence.values(|it| benchmark(it).to_owned()) {
        let is = |it: &Settings| benchmark(it) == name;
        let demand = evidence.records.iter().filter(|it| it.settings.scheme == SchemeName::Demand);
        let mut demand = demand.filter(|it| is(&it.settings)).peekable();
        if demand.peek().is_some() && demand.all(|record| evidence.floor(record).is_none()) {
            without.push(name);
        } else if let Some(words) = demand_with_floors(evidence, is) {
            points.push(Point::beside(format!("{name}: credits on demand"), words));
        }
    }
    if !without.is_empty() {
        points.push(Point::beside(
            format!("{}: floor of credits on demand", without.join(", ")),
            "not computed: the root moves, so it follows from several calls who waits",
        ));
    }
    points
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let x = "slots per peer, credit slots included";
    let y = "overhead over unlimited (%)";
    let mut all = Chart::new("Mean overhead of all benchmarks (Figure 7.12)", x, y);
    let schemes = [
        (SchemeName::Static, "static"),
        (SchemeName::Dynamic, "dynamic"),
        (SchemeName::Weir, WEIR),
        (SchemeName::Demand, DEMAND),
    ];
    for (scheme, name) in schemes {
        all.curve(name, average(evidence, scheme));
    }
    all.mark(Mark::Level { y: ACCEPTABLE, text: "published: 3 %" });
    all.mark(Mark::At { x: 16.0, text: "published: dynamic" });
    all.mark(Mark::At { x: 64.0, text: "static" });
    let mut charts = vec![all];
    let published = [
        Some(Mark::Level { y: STATIC_AT_8, text: "published: the mean with 8 slots is above" }),
        Some(Mark::Level { y: DYNAMIC_AT_8, text: "published (2012): the mean with 8 slots is below" }),
        None,
        None,
    ];
    for ((scheme, name), mark) in schemes.iter().zip(published) {
        let mut each = Chart::new(format!("Each benchmark, {name} (Figures 7.5 to 7.8)"), x, y);
        for benchmark_name in evidence.values(|it| benchmark(it).to_owned()) {
            let which = |it: &Settings| it.scheme == *scheme && benchmark(it) == benchmark_name;
            each.curve(benchmark_name.clone(), evidence.overhead_by_slots(which));
        }
        mark.into_iter().for_each(|mark| each.mark(mark));
        charts.push(each);
    }
    charts
}
