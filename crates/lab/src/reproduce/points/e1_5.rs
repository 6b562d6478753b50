//! Checks the published statements ("points") about experiment E1.5 against our simulation records, and draws its
//! figures. Pairs of ranks run ping-pong, or all ranks run all-to-all. It compares static and dynamic credits: the
//! overhead in all, its part that is computation, and its part that is stalls with traffic. Figures also show weir's
//! own schemes. Source: Prades, thesis, 7.1.
//!
//! The same worlds run again with processors that handle credit packets at no cost. The remaining overhead is stalls
//! and traffic; the rest is computation. The thesis does not say how it separated them.

use super::{Experiment, Point, VISIBLE, demand_with_floors, percent};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence, mean};
use weir_sim::plan::{SchemeName, Settings};

pub const EXPERIMENT: Experiment = Experiment {
    id: "E1.5",
    title: "Overhead split into stalls with traffic, and computation",
    source: "Prades, thesis, 7.1: Figures 7.1 and 7.2",
    plans: &["e1.5"],
    points,
    figures,
};

const PINGPONG: &str = "multi_pingpong";
const ALLTOALL: &str = "alltoall";
/// "Very similar" from this number of slots on, for all-to-all. Below, dynamic credits cost "slightly" more.
/// Source: thesis, 7.1.
const SIMILAR_FROM: f64 = 16.0;
/// Meaning of both words; "slightly more" is also at least [`VISIBLE`] more. Unit: percentage points, as mean
/// over the buffer sizes.
const SIMILAR: f64 = 3.0;
/// Meaning of "much lower" than static: at most this share of it.
const MUCH: f64 = 0.5;

fn free_of_computation(it: &Settings) -> bool {
    it.network_value("credit_send_ns") == Some(0.0) && it.network_value("credit_receive_ns") == Some(0.0)
}

fn total(evidence: &Evidence<'_>, scheme: SchemeName, workload: &str, free: bool) -> Curve {
    evidence.overhead_by_slots(|it| {
        it.scheme == scheme && it.workload_name() == workload && free_of_computation(it) == free
    })
}

/// Overhead that comes from handling credit packets.
fn computation(evidence: &Evidence<'_>, scheme: SchemeName, workload: &str) -> Curve {
    let (all, rest) = (total(evidence, scheme, workload, false), total(evidence, scheme, workload, true));
    Curve(all.0.iter().filter_map(|&(slots, all)| Some((slots, all - rest.at(slots)?))).collect())
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let of = |curve: Curve| mean(&curve.0.iter().map(|point| point.1).collect::<Vec<_>>());
    let both = |curve: &dyn Fn(SchemeName) -> Curve| {
        of(curve(SchemeName::Dynamic)).zip(of(curve(SchemeName::Static)))
    };
    let words =
        |(dynamic, fixed): (f64, f64)| format!("{} dynamic, {} static", percent(dynamic), percent(fixed));
    let among = |Curve(all): Curve, large: bool| {
        Curve(all.into_iter().filter(|(slots, _)| (*slots >= SIMILAR_FROM) == large).collect())
    };
    let alltoall = |scheme, large: bool| among(total(evidence, scheme, ALLTOALL, false), large);
    let similar = |it: (f64, f64)| (words(it), (it.0 - it.1).abs() <= SIMILAR);
    let demand = [(ALLTOALL, "all-to-all"), (PINGPONG, "multi-pingpong")].into_iter().filter_map(
        |(workload, name)| {
            let is = |it: &Settings| it.workload_name() == workload && !free_of_computation(it);
            Some(Point::beside(format!("{name}: credits on demand"), demand_with_floors(evidence, is)?))
        },
    );
    let mut points = vec![
        Point::of(
            "pingpong.computation",
            format!(
                "multi-pingpong: the dynamic scheme's computation is below the static one's (by at least {VISIBLE} point, mean over the buffer sizes)"
            ),
            "below",
            both(&|scheme| computation(evidence, scheme, PINGPONG))
                .map(|it| (words(it), it.1 - it.0 >= VISIBLE)),
        ),
        Point::of(
            "pingpong.total",
            format!("multi-pingpong: its overhead in all is much lower (at most {MUCH} of the static one's)"),
            "much lower",
            both(&|scheme| total(evidence, scheme, PINGPONG, false))
                .map(|it| (words(it), it.0 <= MUCH * it.1)),
        ),
        Point::of(
            "alltoall.total",
            format!(
                "all-to-all, from {SIMILAR_FROM} slots on: the schemes' overheads are very similar (at most {SIMILAR} points apart on average)"
            ),
            "very similar",
            both(&|scheme| alltoall(scheme, true)).map(similar),
        ),
        Point::of(
            "alltoall.computation",
            "all-to-all, the same of computation",
            "very similar",
            both(&|scheme| among(computation(evidence, scheme, ALLTOALL), true)).map(similar),
        ),
        Point::of(
            "alltoall.stalls",
            "all-to-all, the same of stalls with traffic",
            "very similar",
            both(&|scheme| among(total(evidence, scheme, ALLTOALL, true), true)).map(similar),
        ),
        Point::of(
            "alltoall.small",
            format!(
                "all-to-all, below {SIMILAR_FROM} slots: the dynamic scheme's is slightly larger (by {VISIBLE} to {SIMILAR} points on average)"
            ),
            "slightly larger",
            both(&|scheme| alltoall(scheme, false))
                .map(|it| (words(it), (VISIBLE..=SIMILAR).contains(&(it.0 - it.1)))),
        ),
    ];
    points.extend(demand);
    points
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let mut charts = Vec::new();
    for (workload, name, text) in [
        (ALLTOALL, "all-to-all", "published: very similar, dynamic slightly above below 16"),
        (PINGPONG, "multi-pingpong", "published: dynamic below static, computation too"),
    ] {
        let title = format!("Overhead of {name}, and the computation in it (Figures 7.1 and 7.2)");
        let mut chart =
            Chart::new(title, "slots per peer, credit slots included", "overhead over unlimited (%)");
        for (scheme, name) in [
            (SchemeName::Static, "static"),
            (SchemeName::Dynamic, "dynamic"),
            (SchemeName::Weir, "weir"),
            (SchemeName::Demand, "demand"),
        ] {
            chart.curve(name, total(evidence, scheme, workload, false));
            chart.curve(format!("{name}, computation"), computation(evidence, scheme, workload));
        }
        chart.mark(Mark::Words { text });
        charts.push(chart);
    }
    charts
}
