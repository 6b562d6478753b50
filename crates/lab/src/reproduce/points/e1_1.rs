//! Checks the published statements ("points") about experiment E1.1 against our simulation records, and draws its
//! figures. The 16 ranks of a node exchange messages of 2 KB with 16 ranks of another node, 1 to 14 hops away
//! (ping-pong). It compares static credits with 1 to 5 credit slots: overhead and delayed sends by slots per peer. The
//! figures also show weir's own schemes. Source: Prades, thesis, 5.3.

use super::{Experiment, OWN_SCHEMES, Point, VISIBLE, Verdict, percent, static_name};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence, delayed, mean, slots};
use weir_sim::plan::{SchemeName, Settings};

pub const EXPERIMENT: Experiment = Experiment {
    id: "E1.1",
    title: "Static credits: ping-pong of 16 pairs over 1 to 14 hops",
    source: "Prades, thesis, 5.3: Figures 5.3 and 5.4",
    plans: &["e1.1"],
    points,
    figures,
};

/// Distances of partners in ranks, with 16 ranks on a node of an 8x8 mesh, and the hops between their nodes.
const DISTANCES: [(f64, u32); 5] = [(16.0, 1), (64.0, 4), (112.0, 7), (496.0, 10), (1008.0, 14)];
const NEAR: f64 = 16.0;
const FAR: f64 = 1008.0;
/// Buffers up to this number of slots are small. Source: thesis, 5.3, "less than 30 slots per process".
const SMALL: f64 = 29.0;
/// A smaller share of delayed sends comes from the start of a run. Unit: percent.
const NONE_DELAYED: f64 = 1.0;

fn is(it: &Settings, credit_slots: u32, distance: f64) -> bool {
    it.scheme == SchemeName::Static
        && it.credit_slots == credit_slots
        && it.workload_number("partner_distance_ranks") == Some(distance)
}

fn overhead(evidence: &Evidence<'_>, credit_slots: u32, distance: f64) -> Curve {
    evidence.overhead_by_slots(|it| is(it, credit_slots, distance))
}

fn waits(evidence: &Evidence<'_>, credit_slots: u32, distance: f64) -> Curve {
    evidence.curve(|it| is(it, credit_slots, distance), slots, delayed)
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let mut points = Vec::new();
    for n in 1..=5 {
        let from = |distance| waits(evidence, n, distance).holds_from(|share| share <= NONE_DELAYED);
        let ends: Vec<Option<f64>> = DISTANCES.iter().map(|(distance, _)| from(*distance)).collect();
        if waits(evidence, n, NEAR).is_empty() || waits(evidence, n, FAR).is_empty() {
            continue;
        }
        let known: Vec<Option<f64>> = DISTANCES
            .iter()
            .zip(&ends)
            .filter(|((distance, _), _)| !waits(evidence, n, *distance).is_empty())
            .map(|(_, end)| *end)
            .collect();
        let most = waits(evidence, n, NEAR).0.last().map_or(0.0, |(slots, _)| *slots);
        let words =
            known.iter().map(|end| end.map_or_else(|| format!("beyond {most}"), |end| end.to_string()));
        points.push(Point::new(format!("end-of-delays.n{n}"), 
            format!("n = {n}: the point where no send is delayed (under {NONE_DELAYED:.0} %) does not depend on distance"),
            "the same at all distances",
            format!("{} slots, from near to far", words.collect::<Vec<_>>().join(", ")),
            known.windows(2).all(|pair| pair[0].is_some() && pair[0] == pair[1]),
        ));
        if known.iter().all(Option::is_none) {
            // Every buffer size that ran delays sends.
            points.iter_mut().last().into_iter().for_each(|point| point.verdict = Verdict::NotEvaluated);
        }
    }
    let small = |n: u32, distance: f64| mean(&overhead(evidence, n, distance).between(0.0, SMALL));
    let over_n = |distance| {
        let means: Vec<f64> = (1..=5).filter_map(|n| small(n, distance)).collect();
        mean(&means)
    };
    points.push(Point::of("small-buffers-by-distance", 
        format!("up to {SMALL} slots the overhead is larger at 14 hops than at 1 (by at least {VISIBLE} point, mean over buffers and n)"),
        "larger",
        over_n(FAR)
            .zip(over_n(NEAR))
            .map(|(far, near)| (format!("{} at 14 hops, {} at 1", percent(far), percent(near)), far - near >= VISIBLE)),
    ));
    let all = |n: u32| mean(&overhead(evidence, n, NEAR).between(0.0, 64.0));
    let delays = |n: u32| mean(&waits(evidence, n, NEAR).between(0.0, 64.0));
    let of_each = |value: &dyn Fn(u32) -> Option<f64>| {
        (1..=5).filter_map(|n| Some((n, value(n)?))).collect::<Vec<(u32, f64)>>()
    };
    let (overheads, delays) = (of_each(&all), of_each(&delays));
    let words = |values: &[(u32, f64)]| {
        values.iter().map(|(_, value)| percent(*value)).collect::<Vec<_>>().join(", ")
    };
    let least = |values: &[(u32, f64)]| {
        values.len() > 1
            && values[0].0 == 1
            && values[1..].iter().all(|(_, value)| values[0].1 + VISIBLE <= *value)
    };
    let most = |values: &[(u32, f64)]| {
        values.len() > 1
            && values[0].0 == 1
            && values[1..].iter().all(|(_, value)| values[0].1 >= VISIBLE + *value)
    };
    let known = (overheads.len() > 1).then_some(());
    points.push(Point::of("least-overhead", 
        format!("n = 1 has the least overhead (by at least {VISIBLE} point; mean over buffers, 1 hop; n = 1, 2, ...)"),
        "n = 1 least",
        known.map(|()| (words(&overheads), least(&overheads))),
    ));
    points.push(Point::of(
        "most-delays",
        format!("although more of its sends are delayed (by at least {VISIBLE} point)"),
        "n = 1 most",
        known.map(|()| (words(&delays), most(&delays))),
    ));
    points
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let x = "slots per peer, credit slots included";
    let mut charts = Vec::new();
    for (distance, hops) in [DISTANCES[0], DISTANCES[4]] {
        let apart = if hops == 1 { String::from("1 hop") } else { format!("{hops} hops") };
        let mut cost =
            Chart::new(format!("Overhead at {apart} (Figure 5.3)"), x, "overhead over unlimited (%)");
        let mut late =
            Chart::new(format!("Sends that waited for credit, {apart} (Figure 5.4)"), x, "delayed sends (%)");
        for n in 1..=5 {
            cost.curve(static_name(n), overhead(evidence, n, distance));
            late.curve(static_name(n), waits(evidence, n, distance));
        }
        for (scheme, name) in OWN_SCHEMES {
            let own = |it: &Settings| {
                it.scheme == scheme && it.workload_number("partner_distance_ranks") == Some(distance)
            };
            cost.curve(name, evidence.overhead_by_slots(own));
            late.curve(name, evidence.curve(own, slots, delayed));
        }
        cost.mark(Mark::Span { from: 0.0, to: SMALL, text: "published: more at 14 hops" });
        late.mark(Mark::Words { text: "published: ends at the same slots at all distances" });
        charts.extend([cost, late]);
    }
    charts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_of_one_hop_is_singular() {
        let titles: Vec<String> =
            figures(&Evidence::new(Vec::new(), &[])).into_iter().map(|chart| chart.title).collect();
        assert_eq!(
            titles,
            [
                "Overhead at 1 hop (Figure 5.3)",
                "Sends that waited for credit, 1 hop (Figure 5.4)",
                "Overhead at 14 hops (Figure 5.3)",
                "Sends that waited for credit, 14 hops (Figure 5.4)"
            ]
        );
    }
}
