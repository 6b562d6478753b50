//! Checks the published statements ("points") about experiment E1.9 against our simulation records, and draws its
//! figure. All ranks call Scatterv, and the root changes every 1 to 50 calls. It compares the overhead of static and
//! dynamic credits by this number of calls. The figure also shows weir's own schemes. Source: Prades, thesis, 7.4.1.

use super::{Experiment, OWN_SCHEMES, Point, VISIBLE, percent};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence};
use weir_sim::plan::{SchemeName, Settings};

pub const EXPERIMENT: Experiment = Experiment {
    id: "E1.9",
    title: "Scatterv with a moving root",
    source: "Prades, thesis, 7.4.1: Figure 7.10",
    plans: &["e1.9"],
    points,
    figures,
};

/// Meaning of "close to the reference". Unit: percent.
const CLOSE: f64 = 10.0;

fn calls_per_root(it: &Settings) -> Option<f64> {
    it.workload_number("calls_per_root")
}

fn curve(evidence: &Evidence<'_>, scheme: SchemeName) -> Curve {
    let ranks = evidence.max_ranks();
    evidence.curve(
        |it| it.scheme == scheme && it.ranks == ranks,
        calls_per_root,
        |record| evidence.overhead(record),
    )
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let ends = |curve: &Curve| curve.0.first().copied().zip(curve.0.last().copied());
    let dynamic = ends(&curve(evidence, SchemeName::Dynamic));
    let fixed = ends(&curve(evidence, SchemeName::Static));
    vec![
        Point::of(
            "approaches",
            format!(
                "dynamic approaches the reference as the root changes less often: its overhead falls from the first to the last (by at least {VISIBLE} point), there to at most {CLOSE} %"
            ),
            "close to the reference",
            dynamic.map(|(first, last)| {
                let words = format!(
                    "{} at {} call(s) per root, {} at {}",
                    percent(first.1),
                    first.0,
                    percent(last.1),
                    last.0
                );
                (words, first.1 - last.1 >= VISIBLE && last.1 <= CLOSE)
            }),
        ),
        Point::of(
            "closer",
            format!(
                "where the root changes least often, dynamic is closer to the reference than static (by at least {VISIBLE} point)"
            ),
            "closer",
            dynamic.zip(fixed).map(|((_, dynamic), (_, fixed))| {
                (
                    format!("{} dynamic, {} static", percent(dynamic.1), percent(fixed.1)),
                    fixed.1 - dynamic.1 >= VISIBLE,
                )
            }),
        ),
    ]
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let ranks = evidence.max_ranks();
    let mut chart = Chart::new(
        format!("Scatterv among {ranks} ranks (Figure 7.10)"),
        "calls before the root changes",
        "overhead over unlimited (%)",
    );
    chart.curve("static", curve(evidence, SchemeName::Static));
    chart.curve("dynamic", curve(evidence, SchemeName::Dynamic));
    for (scheme, name) in OWN_SCHEMES {
        chart.curve(name, curve(evidence, scheme));
    }
    chart.mark(Mark::Words { text: "published: dynamic approaches the reference" });
    vec![chart]
}
