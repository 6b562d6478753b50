//! Checks the published statements ("points") about experiment E1.6 against our simulation records, and draws its
//! figures. All ranks run all-to-all; 6.25 to 50 % of the peers are on the same node and need no credits. It compares
//! the overhead of static and dynamic credits by this share. Figures also show weir's own schemes. Source: Prades,
//! thesis, 7.2.

use super::{Experiment, OWN_SCHEMES, Point, VISIBLE, percent};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence, mean};
use weir_sim::plan::SchemeName;

pub const EXPERIMENT: Experiment = Experiment {
    id: "E1.6",
    title: "Shared memory inside a node: 50 to 6.25 % of the peers are local",
    source: "Prades, thesis, 7.2: Figure 7.3",
    plans: &["e1.6"],
    points,
    figures,
};

/// From this share of local peers on, dynamic credits cost less. Source: thesis, 7.2. Unit: percent.
const HELPS_FROM: f64 = 25.0;
/// Meaning of "similar": at most this difference. Unit: percentage points, as mean over the buffer sizes.
const SIMILAR: f64 = 3.0;

fn curve(evidence: &Evidence<'_>, scheme: SchemeName, ranks: u32) -> Curve {
    evidence.overhead_by_slots(|it| it.scheme == scheme && it.ranks == ranks)
}

/// Share of destinations that are local. Unit: percent.
fn local(evidence: &Evidence<'_>, ranks: u32) -> f64 {
    let ranks_per_node = evidence.values(|it| if it.ranks == ranks { it.ranks_per_node } else { 0 });
    100.0 * f64::from(ranks_per_node.last().copied().unwrap_or(0)) / f64::from(ranks)
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let mut points = Vec::new();
    for ranks in evidence.values(|it| it.ranks) {
        let of = |scheme| mean(&curve(evidence, scheme, ranks).between(0.0, 64.0));
        let share = local(evidence, ranks);
        let both = of(SchemeName::Dynamic).zip(of(SchemeName::Static));
        let words =
            |(dynamic, fixed): (f64, f64)| format!("{} dynamic, {} static", percent(dynamic), percent(fixed));
        let text = format!("{share} % of the peers local ({ranks} ranks), mean over the buffer sizes");
        points.push(if share >= HELPS_FROM {
            Point::of(
                format!("local.{share}"),
                format!("{text}: dynamic costs less (by at least {VISIBLE} point)"),
                "less",
                both.map(|it| (words(it), it.1 - it.0 >= VISIBLE)),
            )
        } else {
            let text = format!("{text}: at most {SIMILAR} points apart");
            Point::of(
                format!("local.{share}"),
                text,
                "similar",
                both.map(|it| (words(it), (it.0 - it.1).abs() <= SIMILAR)),
            )
        });
    }
    points
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let charts = evidence.values(|it| it.ranks).into_iter().map(|ranks| {
        let title = format!("{} % of the peers local, {ranks} ranks (Figure 7.3)", local(evidence, ranks));
        let mut chart =
            Chart::new(title, "slots per peer, credit slots included", "overhead over unlimited (%)");
        chart.curve("static", curve(evidence, SchemeName::Static, ranks));
        chart.curve("dynamic", curve(evidence, SchemeName::Dynamic, ranks));
        for (scheme, name) in OWN_SCHEMES {
            chart.curve(name, curve(evidence, scheme, ranks));
        }
        let helps = local(evidence, ranks) >= HELPS_FROM;
        let text = if helps { "published: dynamic below static" } else { "published: similar" };
        chart.mark(Mark::Words { text });
        chart
    });
    charts.collect()
}
