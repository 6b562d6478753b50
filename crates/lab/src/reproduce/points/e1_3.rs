//! Checks the published statements ("points") about experiment E1.3 against our simulation records, and draws its
//! figures. All ranks run all-to-all of 2044 B, which leaves room for credits, or of 2048 B, which does not. It
//! compares static credits with and without piggybacking: overhead and number of credit packets by slots per peer.
//! Figures also show weir's own schemes. Source: Prades, thesis, 5.4.

use super::{Experiment, OWN_SCHEMES, Point, VISIBLE, percent};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence, mean, slots};
use weir_sim::plan::{Record, SchemeName, Settings};

pub const EXPERIMENT: Experiment = Experiment {
    id: "E1.3",
    title: "Static credits with piggybacking: all-to-all of 2044 B",
    source: "Prades, thesis, 5.4: Figure 5.8",
    plans: &["e1.3"],
    points,
    figures,
};

/// Meaning of "fewer" credit packets: at least this share less, at every buffer size. Unit: percent.
const FEWER: f64 = 1.0;
/// Meaning of "none of it" for 2048 B. Unit: percent of the credit packets, and percentage points of the
/// overhead.
const SAME: f64 = 1.0;

fn is(it: &Settings, ranks: u32, message_bytes: f64, piggyback: bool) -> bool {
    it.scheme == SchemeName::Static
        && it.ranks == ranks
        && it.piggyback == piggyback
        && it.workload_number("message_bytes") == Some(message_bytes)
}

fn credit_packets(record: &Record) -> Option<f64> {
    Some(record.credit_packets as f64)
}

/// The amount by which `with` is smaller than `without`, by slots. Unit: percent.
fn less(with: &Curve, without: &Curve) -> Curve {
    let both = with.0.iter().filter_map(|&(x, with)| Some((x, with, without.at(x)?)));
    Curve(both.map(|(x, with, without)| (x, 100.0 * (1.0 - with / without))).collect())
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let all = evidence.values(|it| it.ranks);
    if all.is_empty() {
        return points_of(evidence, 0);
    }
    all.into_iter().flat_map(|ranks| points_of(evidence, ranks)).collect()
}

fn points_of(evidence: &Evidence<'_>, ranks: u32) -> Vec<Point> {
    let overhead = |bytes, piggyback| evidence.overhead_by_slots(|it| is(it, ranks, bytes, piggyback));
    let packets =
        |bytes, piggyback| evidence.curve(|it| is(it, ranks, bytes, piggyback), slots, credit_packets);
    let values = |curve: &Curve| curve.0.iter().map(|point| point.1).collect::<Vec<_>>();
    let means = |bytes| mean(&values(&overhead(bytes, true))).zip(mean(&values(&overhead(bytes, false))));
    let words = |(with, without)| format!("{} with, {} without", percent(with), percent(without));
    let reduction = |bytes| values(&less(&packets(bytes, true), &packets(bytes, false)));
    let smallest = reduction(2044.0).into_iter().reduce(f64::min);
    vec![
        Point::of(
            "2044.overhead",
            format!(
                "{ranks} ranks, 2044 B: overhead falls by piggybacking (by at least {VISIBLE} point, mean over the buffer sizes)"
            ),
            "it falls",
            means(2044.0).map(|it| (words(it), it.1 - it.0 >= VISIBLE)),
        ),
        Point::of(
            "2044.credit-packets",
            format!(
                "{ranks} ranks, 2044 B: fewer explicit credit packets, at every buffer size (by at least {FEWER} %)"
            ),
            "fewer",
            smallest.zip(mean(&reduction(2044.0))).map(|(least, mean)| {
                (format!("{} fewer at least, {} on average", percent(least), percent(mean)), least >= FEWER)
            }),
        ),
        // Barriers have messages without payload, which carry credits.
        Point::of(
            "2048.credit-packets",
            format!(
                "{ranks} ranks, 2048 B: no room behind the last packet, so as many credit packets (barriers' messages aside: \
                 {SAME} % at most)"
            ),
            "nothing of it",
            mean(&reduction(2048.0)).map(|fewer| (format!("{} fewer", percent(fewer)), fewer.abs() <= SAME)),
        ),
        Point::of(
            "2048.overhead",
            format!("{ranks} ranks, 2048 B: overhead stays the same too (within {SAME} point)"),
            "nothing of it",
            means(2048.0).map(|it| (words(it), (it.1 - it.0).abs() <= SAME)),
        ),
    ]
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let all = evidence.values(|it| it.ranks);
    let all = if all.is_empty() { vec![0] } else { all };
    all.into_iter().flat_map(|ranks| figures_of(evidence, ranks)).collect()
}

fn figures_of(evidence: &Evidence<'_>, ranks: u32) -> [Chart; 2] {
    let x = "slots per peer, credit slots included";
    let mut overhead = Chart::new(
        format!("Overhead with and without piggybacking, {ranks} ranks (Figure 5.8)"),
        x,
        "overhead over unlimited (%)",
    );
    for (name, bytes, piggyback) in [
        ("2044 B", 2044.0, false),
        ("2044 B, piggybacking", 2044.0, true),
        ("2048 B", 2048.0, false),
        ("2048 B, piggybacking", 2048.0, true),
    ] {
        overhead.curve(name, evidence.overhead_by_slots(|it| is(it, ranks, bytes, piggyback)));
    }
    for (scheme, name) in OWN_SCHEMES {
        overhead.curve(name, evidence.overhead_by_slots(|it| it.scheme == scheme && it.ranks == ranks));
    }
    let mut fewer = Chart::new(
        format!("Explicit credit packets that piggybacking saves, {ranks} ranks (Figure 5.8)"),
        x,
        "fewer credit packets (%)",
    );
    for (name, bytes) in [("2044 B", 2044.0), ("2048 B", 2048.0)] {
        let packets = |piggyback| evidence.curve(|it| is(it, ranks, bytes, piggyback), slots, credit_packets);
        fewer.curve(name, less(&packets(true), &packets(false)));
    }
    overhead.mark(Mark::Words { text: "published: less with piggybacking, 2044 B" });
    fewer.mark(Mark::Words { text: "published: fewer for 2044 B, as many for 2048 B" });
    [overhead, fewer]
}
