//! E1.4: static against dynamic credits where only some of the ranks are active.

use super::{Experiment, Point, WEIR, percent, weir_slots};
use crate::quantity::count;
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence, mean};
use weir_sim::plan::SchemeName;

pub const EXPERIMENT: Experiment = Experiment {
    id: "E1.4",
    title: "Static against dynamic credits: all-to-all among some of the ranks, the others in a barrier",
    source: "Prades, thesis, 5.5 and 6.8: Figures 5.9 and 6.5",
    plans: &["e1.4"],
    points,
    figures,
};

/// An acceptable overhead. Source: Prades, 2012, "por debajo del 5 %". Unit: percent.
const LIMIT: f64 = 5.0;
/// Below so many slots static credits cost more. Source: thesis, 5.5.
const STATIC_SLOTS: f64 = 55.0;
/// "About" a half, a quarter, an eighth of those slots: so much more is still about.
const ABOUT: f64 = 1.25;
/// "Only slightly more" than static. Unit: percentage points, mean over the buffer sizes.
const SLIGHTLY: f64 = 3.0;

fn curve(evidence: &Evidence<'_>, scheme: SchemeName, group: u32) -> Curve {
    let ranks = evidence.most_ranks();
    evidence.overhead_by_slots(|it| {
        it.scheme == scheme && it.ranks == ranks && it.workload_number("group_ranks") == Some(group.into())
    })
}

fn groups(evidence: &Evidence<'_>) -> Vec<u32> {
    let mut groups = evidence.values(|it| it.workload_number("group_ranks").unwrap_or(0.0) as u32);
    groups.reverse();
    groups
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let ranks = evidence.most_ranks();
    let mut points = Vec::new();
    let words = |slots: Option<f64>| {
        slots.map_or_else(|| String::from("not up to 64 slots"), |slots| format!("{slots} slots"))
    };
    for group in groups(evidence) {
        let fixed = curve(evidence, SchemeName::Static, group);
        let from = fixed.holds_from(|overhead| overhead < LIMIT);
        if !fixed.is_empty() {
            points.push(Point::new(
                format!(
                    "{} of {} active, static: under {LIMIT} % only from {STATIC_SLOTS} slots on",
                    count(group.into()),
                    count(ranks.into())
                ),
                format!("not below {STATIC_SLOTS} slots"),
                words(from),
                from.is_none_or(|slots| slots >= STATIC_SLOTS),
            ));
        }
    }
    for group in groups(evidence) {
        let (dynamic, fixed) =
            (curve(evidence, SchemeName::Dynamic, group), curve(evidence, SchemeName::Static, group));
        if dynamic.is_empty() {
            continue;
        }
        if group == ranks {
            let differences: Vec<f64> =
                dynamic.0.iter().filter_map(|(slots, overhead)| Some(overhead - fixed.at(*slots)?)).collect();
            points.push(Point::of(
                format!("all {} active: dynamic costs only slightly more than static (mean difference at most {SLIGHTLY} points)", count(ranks.into())),
                "slightly more",
                mean(&differences).map(|points| (format!("{points:+.1} points"), points <= SLIGHTLY)),
            ));
            continue;
        }
        let share = f64::from(group) / f64::from(ranks);
        let from = dynamic.holds_from(|overhead| overhead < LIMIT);
        points.push(Point::new(
            format!(
                "{} of {} active, dynamic: under {LIMIT} % with about {share} of {STATIC_SLOTS} slots (at most {ABOUT} times that)",
                count(group.into()),
                count(ranks.into())
            ),
            format!("{:.0} slots", share * STATIC_SLOTS),
            words(from),
            from.is_some_and(|slots| slots <= ABOUT * share * STATIC_SLOTS),
        ));
    }
    for group in groups(evidence) {
        if let Some(overhead) = curve(evidence, SchemeName::Weir, group).at(weir_slots(ranks)) {
            let text = format!(
                "{} of {} active: weir's defaults, {} slots",
                count(group.into()),
                count(ranks.into()),
                weir_slots(ranks)
            );
            points.push(Point::beside(text, percent(overhead)));
        }
    }
    points
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let ranks = count(evidence.most_ranks().into());
    let charts = [
        (SchemeName::Static, format!("static credits, of {ranks} ranks (Figure 5.9)")),
        (SchemeName::Dynamic, format!("dynamic credits, of {ranks} ranks (Figure 6.5)")),
        (SchemeName::Weir, format!("{WEIR}, of {ranks} ranks")),
    ];
    let charts = charts.into_iter().map(|(scheme, title)| {
        let mut chart =
            Chart::new(title, "slots per peer, credit slots included", "overhead over unlimited (%)");
        for group in groups(evidence) {
            chart.curve(format!("{} active", count(group.into())), curve(evidence, scheme, group));
        }
        chart.mark(Mark::Level { y: LIMIT, text: "5 %" });
        if scheme == SchemeName::Static {
            chart.mark(Mark::At { x: STATIC_SLOTS, text: "published: from here on" });
        }
        if scheme == SchemeName::Dynamic {
            chart.mark(Mark::At { x: STATIC_SLOTS / 2.0, text: "published: 512" });
            chart.mark(Mark::At { x: STATIC_SLOTS / 4.0, text: "256" });
            chart.mark(Mark::At { x: STATIC_SLOTS / 8.0, text: "128" });
        }
        chart
    });
    charts.collect()
}
