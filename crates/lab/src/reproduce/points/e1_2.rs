//! Checks the published statements ("points") about experiment E1.2 against our simulation records, and draws its
//! figures. All ranks run all-to-all of 2 KB with static credits. For 1 to 5 credit slots it compares two numbers of
//! slots per peer: where the overhead begins to fall, and from where it is stable. weir's own defaults stand beside
//! them. Source: Prades, thesis, 5.3.

use super::{Experiment, OWN_SCHEMES, Point, VISIBLE, percent, static_name, weir_slots};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence, First, delayed, median, slots};
use weir_sim::plan::SchemeName;

pub const EXPERIMENT: Experiment = Experiment {
    id: "E1.2",
    title: "Static credits: all-to-all of 2 KB",
    source: "Prades, thesis, 5.3: Figures 5.5 and 5.6, Table 5.2",
    plans: &["e1.2"],
    points,
    figures,
};

/// Slots at which the overhead begins to fall, for 1 to 5 credit slots.
const FALLS: [f64; 5] = [38.0, 39.0, 40.0, 41.0, 42.0];
/// Slots from which the overhead is stable. With one credit slot it is not stable up to 64.
const STABLE: [Option<f64>; 5] = [None, Some(57.0), Some(52.0), Some(50.0), Some(49.0)];
/// Range of slots in which no message fits into a quota: the plateau from which the overhead falls.
const PLATEAU: (f64, f64) = (30.0, 37.0);
/// Range of slots in which no sender waits, for any credit region. Source: thesis, formula 5.5 for one credit
/// slot.
const END: (f64, f64) = (75.0, 100.0);
/// The fall has begun when this share of the way from plateau to end is gone.
const BEGUN: f64 = 0.10;
/// The fall has ended when this share is left. It is taken from the delayed sends, which have no timing
/// noise.
const LEFT: f64 = 0.05;

/// The size at which a curve begins to fall, and the size from which it has ended. `None` if its ends are
/// unknown, or if it falls by less than [`VISIBLE`].
fn fall(curve: &Curve) -> Option<(First, First)> {
    let plateau = median(&curve.between(PLATEAU.0, PLATEAU.1))?;
    let end = median(&curve.between(END.0, END.1))?;
    let drop = plateau - end;
    if drop < VISIBLE {
        return None;
    }
    let begins = First::of(curve, |value| value < plateau - BEGUN * drop);
    Some((begins, First::of(curve, |value| value < end + LEFT * drop)))
}

fn curve_of(evidence: &Evidence<'_>, ranks: u32, credit_slots: u32) -> Curve {
    evidence.overhead_by_slots(|it| {
        it.scheme == SchemeName::Static && it.ranks == ranks && it.credit_slots == credit_slots
    })
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let mut points = Vec::new();
    for ranks in evidence.values(|it| it.ranks) {
        for (credit_slots, falls, stable) in
            (1..).zip(FALLS).zip(STABLE).map(|((n, falls), stable)| (n, falls, stable))
        {
            let curve = curve_of(evidence, ranks, credit_slots);
            if curve.is_empty() {
                continue;
            }
            let found = fall(&curve);
            let point =
                |id: String, text: String, published: String, found: Option<First>, from: f64, to: f64| {
                    match found {
                        Some(found) => Point::of_first(id, text, published, found, from, to),
                        None => Point::new(
                            id,
                            text,
                            published,
                            format!("it does not fall by {VISIBLE} point or more"),
                            false,
                        ),
                    }
                };
            points.push(point(
                format!("falls.n{credit_slots}"),
                format!(
                    "{ranks} ranks, n = {credit_slots}: overhead begins to fall ({:.0} % of the way down)",
                    100.0 * BEGUN
                ),
                format!("{falls} slots (+-1)"),
                found.map(|(begins, _)| begins),
                falls - 1.0,
                falls + 1.0,
            ));
            points.push(point(
                format!("stable.n{credit_slots}"),
                format!("{ranks} ranks, n = {credit_slots}: overhead is stable (at most {:.0} % of the fall are left)", 100.0 * LEFT),
                stable.map_or_else(|| String::from("not up to 64 slots"), |slots| format!("{slots} slots (+-1)")),
                found.map(|(_, stable)| stable),
                stable.map_or(65.0, |slots| slots - 1.0),
                stable.map_or(f64::INFINITY, |slots| slots + 1.0),
            ));
        }
    }
    for ranks in evidence.values(|it| it.ranks) {
        let weir = evidence.overhead_by_slots(|it| it.scheme == SchemeName::Weir && it.ranks == ranks);
        let slots = weir_slots(ranks);
        if let Some(overhead) = weir.at(slots) {
            let text = format!("{ranks} ranks: weir's defaults, {slots} slots");
            points.push(Point::beside(text, percent(overhead)));
        }
    }
    points
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let mut charts = Vec::new();
    for ranks in evidence.values(|it| it.ranks) {
        let mut overhead = Chart::new(
            format!("Overhead of an all-to-all among {ranks} ranks (Figure 5.5)"),
            "slots per peer, credit slots included",
            "overhead over unlimited (%)",
        );
        let mut waits = Chart::new(
            format!("Sends that waited for credit, {ranks} ranks (Figure 5.6)"),
            "slots per peer, credit slots included",
            "delayed sends (%)",
        );
        for credit_slots in 1..=5 {
            overhead.curve(static_name(credit_slots), curve_of(evidence, ranks, credit_slots));
            let which = |it: &weir_sim::plan::Settings| {
                it.scheme == SchemeName::Static && it.ranks == ranks && it.credit_slots == credit_slots
            };
            waits.curve(static_name(credit_slots), evidence.curve(which, slots, delayed));
        }
        for (scheme, name) in OWN_SCHEMES {
            let own = |it: &weir_sim::plan::Settings| it.scheme == scheme && it.ranks == ranks;
            overhead.curve(name, evidence.overhead_by_slots(own));
            waits.curve(name, evidence.curve(own, slots, delayed));
        }
        for chart in [&mut overhead, &mut waits] {
            chart.mark(Mark::Span {
                from: FALLS[0],
                to: FALLS[4],
                text: "published, falls: 38 to 42 (n = 1 to 5)",
            });
            chart.mark(Mark::Span { from: 49.0, to: 57.0, text: "stable: 57, 52, 50, 49 (n = 2 to 5)" });
        }
        charts.extend([overhead, waits]);
    }
    charts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fall_is_found_where_it_begins_and_where_it_ends() {
        let value = |slots: u32| match slots {
            ..=37 => 40.0,
            38..=51 => 40.0 - 2.5 * f64::from(slots - 37),
            _ => 4.0,
        };
        let curve = Curve((30..=80).map(|slots| (f64::from(slots), value(slots))).collect());
        let first = |least, most| First { least, most };
        // 35 is below 40 - 3.6, and 5 below 4 + 1.8.
        assert_eq!(fall(&curve), Some((first(39.0, 39.0), first(51.0, 51.0))));
        for end in [3.0, 3.0 - 0.9 * VISIBLE] {
            let step = |slots: u32| (f64::from(slots), if slots < 50 { 3.0 } else { end });
            assert_eq!(fall(&Curve((30..=80).map(step).collect())), None, "it ends at {end} %");
        }
        let never = Curve((30..=80).map(|slots| (f64::from(slots), 100.0 - f64::from(slots))).collect());
        assert!(fall(&never).is_some_and(|(_, stable)| stable.is_within(61.0, f64::INFINITY) == Some(true)));
    }
}
