//! Checks the published statements ("points") about experiment E1.4 against our simulation records, and draws its
//! figures. All or part of the ranks run all-to-all of 2 KB, and the others wait in a barrier. It compares the overhead
//! of static and dynamic credits by slots per peer. weir's own schemes stand beside them. Source: Prades, thesis, 5.5
//! and 6.8.

use super::{DEMAND, Experiment, Point, VISIBLE, WEIR, demand_with_floors, percent, weir_slots};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence, First, mean};
use weir_output::quantity::count;
use weir_sim::plan::{SchemeName, Settings};

pub const EXPERIMENT: Experiment = Experiment {
    id: "E1.4",
    title: "Static against dynamic credits: all-to-all among some of the ranks, the others in a barrier",
    source: "Prades, thesis, 5.5 and 6.8: Figures 5.9 and 6.5",
    plans: &["e1.4", "e1.4-all"],
    points,
    figures,
};

/// An acceptable overhead. Source: Prades, 2012, "por debajo del 5 %". Unit: percent.
const LIMIT: f64 = 5.0;
/// Static credits cost more below this number of slots. Source: thesis, 5.5.
const STATIC_SLOTS: f64 = 55.0;
/// Meaning of "about" a half, a quarter, an eighth of those slots: at most this factor more.
const ABOUT: f64 = 1.25;
/// Meaning of "only slightly more" than static: at least [`VISIBLE`], at most this. Unit: percentage points,
/// as mean over the buffer sizes.
const SLIGHTLY: f64 = 3.0;

/// Active ranks, and all ranks.
type Part = (u32, u32);

/// Only the published order: a rank sends to all others, then it receives.
fn part(it: &Settings) -> Option<Part> {
    part_in_any_order(it).filter(|_| !receives_first(it))
}

fn part_in_any_order(it: &Settings) -> Option<Part> {
    it.workload_number("group_ranks").map(|group| (group as u32, it.ranks))
}

/// The order of MPI libraries, which nobody has published: a rank posts all receives, then all sends.
fn receives_first(it: &Settings) -> bool {
    it.workload["alltoall_groups"]["order"].as_str() == Some("receives_first")
}

fn words_of(part: Part) -> String {
    match part {
        (group, ranks) if group == ranks => format!("all {}", count(ranks.into())),
        (group, ranks) => format!("{} of {}", count(group.into()), count(ranks.into())),
    }
}

/// Name of the active part, such as `1/2`, for names that do not depend on the number of ranks.
fn share_name((group, ranks): Part) -> String {
    format!("1/{}", ranks / group.max(1))
}

fn curve(evidence: &Evidence<'_>, scheme: SchemeName, of: Part) -> Curve {
    evidence.overhead_by_slots(|it| it.scheme == scheme && part(it) == Some(of))
}

/// The parts that ran, the largest first.
fn parts(evidence: &Evidence<'_>) -> Vec<Part> {
    let mut parts: Vec<Part> = evidence.values(part).into_iter().flatten().collect();
    let share = |(group, ranks): &Part| f64::from(*group) / f64::from(*ranks);
    parts.sort_by(|one, other| share(other).total_cmp(&share(one)));
    parts
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let mut points = Vec::new();
    let first = |curve: &Curve| First::of(curve, |overhead| overhead < LIMIT);
    for part in parts(evidence) {
        let fixed = curve(evidence, SchemeName::Static, part);
        if !fixed.is_empty() {
            points.push(Point::of_first(format!("static.{}", share_name(part)), 
                format!(
                    "{} active, static: under {LIMIT} % from about {STATIC_SLOTS} slots on and not below (at most {ABOUT} times that)",
                    words_of(part)
                ),
                format!("{STATIC_SLOTS} slots"),
                first(&fixed),
                STATIC_SLOTS,
                ABOUT * STATIC_SLOTS,
            ));
        }
    }
    for part in parts(evidence) {
        let (dynamic, fixed) =
            (curve(evidence, SchemeName::Dynamic, part), curve(evidence, SchemeName::Static, part));
        if dynamic.is_empty() {
            continue;
        }
        if part.0 == part.1 {
            let differences: Vec<f64> =
                dynamic.0.iter().filter_map(|(slots, overhead)| Some(overhead - fixed.at(*slots)?)).collect();
            points.push(Point::of("dynamic.all", 
                format!(
                    "{} active: dynamic costs slightly more than static (by {VISIBLE} to {SLIGHTLY} points, mean over the buffer sizes)",
                    words_of(part)
                ),
                "slightly more",
                mean(&differences)
                    .map(|points| (format!("{points:+.1} points"), (VISIBLE..=SLIGHTLY).contains(&points))),
            ));
            continue;
        }
        let share = f64::from(part.0) / f64::from(part.1);
        points.push(Point::of_first(format!("dynamic.{}", share_name(part)), 
            format!(
                "{} active, dynamic: under {LIMIT} % with about {share} of {STATIC_SLOTS} slots (at most {ABOUT} times that)",
                words_of(part)
            ),
            format!("{:.1} slots", share * STATIC_SLOTS),
            first(&dynamic),
            f64::NEG_INFINITY,
            ABOUT * share * STATIC_SLOTS,
        ));
    }
    for part in parts(evidence) {
        let slots = weir_slots(part.1);
        if let Some(overhead) = curve(evidence, SchemeName::Weir, part).at(slots) {
            let text = format!("{} active: weir's defaults, {slots} slots", words_of(part));
            points.push(Point::beside(text, percent(overhead)));
        }
    }
    for of in parts(evidence) {
        if let Some(words) = demand_with_floors(evidence, |it| part(it) == Some(of)) {
            points.push(Point::beside(format!("{} active: credits on demand", words_of(of)), words));
        }
        let is = |it: &Settings| receives_first(it) && part_in_any_order(it) == Some(of);
        if let Some(words) = demand_with_floors(evidence, is) {
            let text = format!("{} active, receives first: credits on demand", words_of(of));
            points.push(Point::beside(text, words));
        }
    }
    points
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let charts = [
        (SchemeName::Static, String::from("static credits (Figure 5.9)")),
        (SchemeName::Dynamic, String::from("dynamic credits (Figure 6.5)")),
        (SchemeName::Weir, String::from(WEIR)),
        (SchemeName::Demand, String::from(DEMAND)),
    ];
    let charts = charts.into_iter().map(|(scheme, title)| {
        let mut chart =
            Chart::new(title, "slots per peer, credit slots included", "overhead over unlimited (%)");
        for part in parts(evidence) {
            chart.curve(format!("{} active", words_of(part)), curve(evidence, scheme, part));
        }
        chart.mark(Mark::Level { y: LIMIT, text: "5 %" });
        if scheme == SchemeName::Static {
            chart.mark(Mark::At { x: STATIC_SLOTS, text: "published: from here on" });
        }
        if scheme == SchemeName::Dynamic {
            chart.mark(Mark::At { x: STATIC_SLOTS / 2.0, text: "published: a half" });
            chart.mark(Mark::At { x: STATIC_SLOTS / 4.0, text: "a quarter" });
            chart.mark(Mark::At { x: STATIC_SLOTS / 8.0, text: "an eighth" });
        }
        chart
    });
    charts.collect()
}
