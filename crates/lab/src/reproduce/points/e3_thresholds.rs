//! Checks the published statements about experiments E3.1 and E3.2 against our simulation records, and draws their
//! figures: two hosts whose ranks share an adapter, without congestion avoidance. The models of the adapters are
//! fitted to these figures. So these points say how well they are fitted, and only E3.3 to E3.6 are predictions.
//! Source: Luo et al., ICS 2012, section 4.

use super::e3_worlds::{GEMINI, QDR, is_on, name, number, smallest_row, throughput, values};
use super::{Experiment, Point};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence};
use weir_sim::plan::Settings;

pub const RANKS: Experiment = Experiment {
    id: "E3.1",
    title: "Node congestion: throughput against active ranks",
    source: "Luo et al., ICS 2012, section 4: Figure 1",
    plans: &["e3.1"],
    points: rank_points,
    figures: rank_figures,
};
pub const MESSAGES: Experiment = Experiment {
    id: "E3.2",
    title: "Node congestion: throughput against outstanding messages",
    source: "Luo et al., ICS 2012, section 4: Figures 2 and 3",
    plans: &["e3.2"],
    points: message_points,
    figures: message_figures,
};

/// Throughputs that differ by at most this are the same. Unit: ratio.
const SAME: f64 = 0.99;
/// Meaning of "about 2x", "half", "a quarter": the published ratio, and this part of it more or less.
const ABOUT: f64 = 0.2;
/// Meaning of "up to 37 %". Unit: percentage points more or less.
const UP_TO: f64 = 10.0;

/// Throughput over active ranks.
fn by_ranks(evidence: &Evidence<'_>, network: &str, bytes: f64) -> Curve {
    let is = |it: &Settings| is_on(it, network) && number(it, "message_bytes") == bytes;
    evidence.curve(is, |it| it.workload_number("active_ranks"), throughput)
}

/// Throughput over the messages of a window.
fn by_messages(evidence: &Evidence<'_>, network: &str, bytes: f64, active: f64) -> Curve {
    let is = |it: &Settings| {
        is_on(it, network) && number(it, "message_bytes") == bytes && number(it, "active_ranks") == active
    };
    evidence.curve(is, |it| it.workload_number("window_messages"), throughput)
}

fn best(curve: &Curve) -> Option<f64> {
    curve.0.iter().map(|point| point.1).reduce(f64::max)
}

/// The largest `x` whose value is the best: beyond it, throughput falls.
fn last_best(curve: &Curve) -> Option<f64> {
    let best = best(curve)?;
    curve.0.iter().filter(|point| point.1 >= SAME * best).map(|point| point.0).next_back()
}

fn ratio(curve: &Curve, above: f64, below: f64) -> Option<f64> {
    Some(curve.at(above)? / curve.at(below)?)
}

fn is_about(value: f64, published: f64) -> bool {
    (value / published - 1.0).abs() <= ABOUT
}

/// The smallest and the largest of a number over all sizes; `None` without sizes.
fn over_sizes(sizes: &[f64], of: impl Fn(f64) -> Option<f64>) -> Option<(f64, f64)> {
    let all: Option<Vec<f64>> = sizes.iter().map(|&bytes| of(bytes)).collect();
    let all = all?;
    let least = all.iter().copied().reduce(f64::min)?;
    Some((least, all.iter().copied().reduce(f64::max)?))
}

fn range(name: &str, (least, most): (f64, f64), digits: usize) -> String {
    match least == most {
        true => format!("{least:.digits$} {name}"),
        false => format!("{least:.digits$} to {most:.digits$} {name}, by size"),
    }
}

fn rank_points(evidence: &Evidence<'_>) -> Vec<Point> {
    let sizes = |network: &str| values(evidence, network, "message_bytes");
    let falls_from = |(network, _): (&str, f64), from: f64, to: f64| {
        let found = over_sizes(&sizes(network), |bytes| last_best(&by_ranks(evidence, network, bytes)));
        found.map(|found| (range("ranks", found, 0), found.0 >= from && found.1 <= to))
    };
    let small = |of: &dyn Fn(&Curve) -> Option<f64>| {
        let first = sizes(QDR.0).first().copied()?;
        of(&by_ranks(evidence, QDR.0, first))
    };
    let fall = small(&|curve| Some(best(curve)? / curve.at(QDR.1)?));
    let half = over_sizes(&sizes(QDR.0), |bytes| {
        let curve = by_ranks(evidence, QDR.0, bytes);
        Some(100.0 * (1.0 - 1.0 / ratio(&curve, 16.0, QDR.1)?))
    });
    let mut points = vec![
        Point::of(
            "infiniband.peak",
            "InfiniBand: the most active ranks with the highest throughput (16 to 20 at every size)",
            "about 16 to 20 of 32",
            falls_from(QDR, 16.0, 20.0),
        ),
        Point::of(
            "infiniband.fall",
            "InfiniBand: highest throughput against that of all ranks (2 within 20 %, smallest size)",
            "about 2x",
            fall.map(|fall| (format!("{fall:.2}x"), is_about(fall, 2.0))),
        ),
        Point::of(
            "infiniband.half",
            "InfiniBand: time that two rounds of 16 ranks save against one of 32 (the most over sizes: 27 to 47 %)",
            "up to 37 %",
            half.map(|(_, most)| (format!("{most:.0} %"), (most - 37.0).abs() <= UP_TO)),
        ),
        Point::of(
            "gemini.peak",
            "Gemini: the same number of active ranks (36 to 44 at every size)",
            "more than 40 of 48 congest",
            falls_from(GEMINI, 36.0, 44.0),
        ),
    ];
    for (network, ranks, best) in [(QDR.0, QDR.1, 20.0), (GEMINI.0, GEMINI.1, 40.0)] {
        points.extend(
            [best, ranks]
                .iter()
                .filter_map(|&active| smallest_row(evidence, network, active, 1.0, |_| true, "")),
        );
    }
    points
}

/// Windows for which tails and fairness are shown.
const SHOWN: [f64; 4] = [1.0, 2.0, 16.0, 256.0];

fn message_points(evidence: &Evidence<'_>) -> Vec<Point> {
    let sizes = |network: &str| values(evidence, network, "message_bytes");
    let of_sizes =
        |(network, _): (&str, f64), of: &dyn Fn(f64) -> Option<f64>| over_sizes(&sizes(network), of);
    let best_of = |(network, ranks): (&str, f64), active: Option<f64>| {
        let active = active.unwrap_or(ranks);
        of_sizes((network, ranks), &|bytes| last_best(&by_messages(evidence, network, bytes, active)))
    };
    let at = |(network, ranks): (&str, f64), many: f64, few: f64| {
        of_sizes((network, ranks), &|bytes| ratio(&by_messages(evidence, network, bytes, ranks), many, few))
    };
    let most = |network: &str| values(evidence, network, "window_messages").last().copied().unwrap_or(0.0);
    let about = |found: Option<(f64, f64)>, published: f64| {
        let words = |found: (f64, f64)| range("times", found, 2);
        found.map(|found| (words(found), is_about(found.0, published) && is_about(found.1, published)))
    };
    let within = |found: Option<(f64, f64)>, from: f64, to: f64| {
        found.map(|found| (range("messages", found, 0), found.0 >= from && found.1 <= to))
    };
    let fewer_ranks = |(network, _): (&str, f64)| {
        let first = sizes(network).first().copied()?;
        let active = values(evidence, network, "active_ranks");
        let bests: Option<Vec<f64>> =
            active.iter().map(|&active| last_best(&by_messages(evidence, network, first, active))).collect();
        let bests = bests?;
        let words = active.iter().zip(&bests).map(|(active, best)| format!("{best:.0} with {active:.0}"));
        Some((words.collect::<Vec<_>>().join(", "), bests.is_sorted_by(|few, many| few >= many)))
    };
    let mut points = vec![
        Point::of(
            "infiniband.all.best",
            "InfiniBand, all ranks active: the most outstanding messages of a rank with the highest throughput",
            "1",
            within(best_of(QDR, None), 1.0, 1.0),
        ),
        Point::of(
            "infiniband.all.two",
            "InfiniBand, all ranks: throughput with two outstanding messages, of that with one (a half within 20 %)",
            "half",
            about(at(QDR, 2.0, 1.0), 0.5),
        ),
        Point::of(
            "infiniband.all.many",
            "InfiniBand, all ranks: throughput with many, of that with one (a quarter within 20 %)",
            "1/4",
            about(at(QDR, most(QDR.0), 1.0), 0.25),
        ),
        Point::of(
            "infiniband.one.best",
            "InfiniBand, one rank active: the most outstanding messages with the highest throughput (32 to 48)",
            "about 40",
            within(best_of(QDR, Some(1.0)), 32.0, 48.0),
        ),
        Point::of(
            "infiniband.fewer-ranks",
            "InfiniBand: with fewer active ranks the best number of outstanding messages is not lower",
            "it increases",
            fewer_ranks(QDR),
        ),
        Point::of(
            "gemini.all.best",
            "Gemini, all ranks active: the most outstanding messages of a rank with the highest throughput (1 or 2)",
            "1 or 2",
            within(best_of(GEMINI, None), 1.0, 2.0),
        ),
        Point::of(
            "gemini.all.many",
            "Gemini, all ranks: throughput with many, of that with one (a half within 20 %)",
            "1/2",
            about(at(GEMINI, most(GEMINI.0), 1.0), 0.5),
        ),
        Point::of(
            "gemini.fewer-ranks",
            "Gemini: with fewer active ranks the best number of outstanding messages is not lower",
            "it increases",
            fewer_ranks(GEMINI),
        ),
    ];
    for (network, ranks) in [QDR, GEMINI] {
        points.extend(
            SHOWN.iter().filter_map(|&window| smallest_row(evidence, network, ranks, window, |_| true, "")),
        );
    }
    points
}

fn rank_figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let charts = [QDR, GEMINI].map(|(network, _)| {
        let title = format!("{}: blocking throughput of a host (Figure 1)", name(network));
        let mut chart = Chart::new(title, "active ranks", "messages/us");
        for bytes in values(evidence, network, "message_bytes") {
            chart.curve(format!("{bytes} B"), by_ranks(evidence, network, bytes));
        }
        let text = if network == QDR.0 {
            "published: falls from 16 to 20 ranks on"
        } else {
            "published: falls from 40 on"
        };
        chart.mark(Mark::Words { text });
        chart
    });
    charts.into()
}

fn message_figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let charts = [QDR, GEMINI].map(|(network, _)| {
        let title = format!("{}: throughput by outstanding messages (Figure 2)", name(network));
        let mut chart =
            Chart::new(title, "outstanding messages of a rank", "times that of one").logarithmic();
        let bytes = values(evidence, network, "message_bytes").first().copied().unwrap_or(0.0);
        for active in values(evidence, network, "active_ranks") {
            let curve = by_messages(evidence, network, bytes, active);
            let one = curve.at(1.0).unwrap_or(1.0);
            let relative = Curve(curve.0.iter().map(|&(window, speed)| (window, speed / one)).collect());
            chart.curve(format!("{active} active ranks, {bytes} B"), relative);
        }
        let published = if network == QDR.0 {
            vec![(1.0, 1.0), (2.0, 0.5), (1024.0, 0.25)]
        } else {
            vec![(1.0, 1.0), (2.0, 1.0), (1024.0, 0.5)]
        };
        chart.published("all ranks, published", published);
        chart
    });
    charts.into()
}
