//! Checks the published statements ("points") about experiments E2.1 to E2.4 against our simulation records, and draws
//! their figures. Two nodes on InfiniBand run a ping-pong (E2.1) or send windows of messages (E2.2 to E2.4), with many
//! or few buffers. It compares the times with RNR hardware, static credits (connection form) and adaptive backlog. The
//! figures also show weir's own schemes, and RNR hardware with a later default of its timer. Source: Liu & Panda,
//! slides.

use super::{Experiment, OWN_SCHEMES, Point};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence};
use weir_sim::plan::{SchemeName, Settings};

pub const LATENCY: Experiment = Experiment {
    id: "E2.1",
    title: "InfiniBand: latency",
    source: "Liu & Panda, slides, MPI latency",
    plans: &["e2.1"],
    points: latency_points,
    figures: latency_figures,
};
pub const ENOUGH: Experiment = Experiment {
    id: "E2.2",
    title: "InfiniBand: bandwidth, 4 B, pre-post 100",
    source: "Liu & Panda, slides, MPI bandwidth (prepost = 100 and size = 4 bytes)",
    plans: &["e2.2"],
    points: enough_points,
    figures: |evidence| bandwidth_figures(evidence, ["published: comparable"; 2]),
};
pub const FEW: Experiment = Experiment {
    id: "E2.3",
    title: "InfiniBand: bandwidth, 4 B, pre-post 10",
    source: "Liu & Panda, slides, MPI bandwidth (prepost = 10 and size = 4 bytes)",
    plans: &["e2.3"],
    points: few_points,
    figures: |evidence| bandwidth_figures(evidence, ["published: adaptive best, static worst"; 2]),
};
pub const LARGE: Experiment = Experiment {
    id: "E2.4",
    title: "InfiniBand: bandwidth, 32 KB, pre-post 10",
    source: "Liu & Panda, slides, MPI bandwidth (prepost = 10 and size = 32 KB)",
    plans: &["e2.4"],
    points: large_points,
    figures: |evidence| {
        bandwidth_figures(evidence, ["published: comparable", "published: comparable, better than blocking"])
    },
};

/// The schemes of the paper.
const SCHEMES: [(SchemeName, &str); 3] = [
    (SchemeName::Hardware, "hardware"),
    (SchemeName::StaticConnection, "static"),
    (SchemeName::Adaptive, "adaptive"),
];
/// The RNR timer of `hardware` in an extra curve. It is the default of later versions of the authors'
/// library: MVAPICH, `VIADEV_DEFAULT_MIN_RNR_TIMER` 12, which InfiniBand defines as 0.64 ms. The timer of the
/// paper was not published. Unit: ns.
const LATER_RNR_TIMER_NS: u64 = 640_000;
/// Meaning of "equal": the slowest takes at most this much longer than the fastest. Unit: percent.
const EQUAL: f64 = 2.0;
/// Meaning of "best", "worst" and "better": at least this difference, the bound of "equal". Unit: percent.
const FASTER: f64 = EQUAL;
const FASTER_RATIO: f64 = 1.0 + FASTER / 100.0;
/// Meaning of "comparable". Unit: percent.
const COMPARABLE: f64 = 10.0;

fn time_by(
    evidence: &Evidence<'_>,
    scheme: SchemeName,
    of: &str,
    which: impl Fn(&Settings) -> bool,
) -> Curve {
    evidence.curve(
        |it| it.scheme == scheme && which(it),
        |it| it.workload_number(of),
        |record| Some(record.time_ns),
    )
}

fn is_blocking(it: &Settings) -> bool {
    it.workload["bandwidth"]["blocking"].as_bool() == Some(true)
}

/// Time of a message over the window.
fn bandwidth(evidence: &Evidence<'_>, scheme: SchemeName, blocking: bool) -> Curve {
    bandwidth_with_timer(evidence, scheme, blocking, false)
}

/// The same with [`LATER_RNR_TIMER_NS`], or without.
fn bandwidth_with_timer(evidence: &Evidence<'_>, scheme: SchemeName, blocking: bool, later: bool) -> Curve {
    let is = |it: &Settings| is_blocking(it) == blocking && (it.rnr_timer_ns == LATER_RNR_TIMER_NS) == later;
    time_by(evidence, scheme, "window_messages", is)
}

/// Largest difference between the slowest and the fastest curve. Unit: percent.
fn spread(curves: &[Curve]) -> Option<f64> {
    let places = curves.first()?.0.iter().map(|point| point.0);
    let spreads = places.filter_map(|x| {
        let values: Option<Vec<f64>> = curves.iter().map(|curve| curve.at(x)).collect();
        let values = values?;
        let (least, most) =
            (values.iter().copied().reduce(f64::min)?, values.iter().copied().reduce(f64::max)?);
        Some(100.0 * (most / least - 1.0))
    });
    spreads.reduce(f64::max)
}

fn apart(spread: f64) -> String {
    format!("{spread:.1} % apart at most")
}

fn within(id: impl Into<String>, text: String, published: &str, limit: f64, curves: &[Curve]) -> Point {
    let found = spread(curves).map(|spread| (apart(spread), spread <= limit));
    Point::of(id, format!("{text} (at most {limit} % apart)"), published, found)
}

fn blocking_word(blocking: bool) -> &'static str {
    if blocking { "blocking" } else { "non-blocking" }
}

fn latency_points(evidence: &Evidence<'_>) -> Vec<Point> {
    let curves = SCHEMES.map(|(scheme, _)| time_by(evidence, scheme, "message_bytes", |_| true));
    let mut points =
        vec![within("latency", String::from("all schemes have the same latency"), "equal", EQUAL, &curves)];
    let weir = time_by(evidence, SchemeName::Weir, "message_bytes", |_| true);
    if let Some((bytes, time_ns)) = weir.0.first() {
        points.push(Point::beside(
            format!("weir's defaults, {bytes} B"),
            weir_output::quantity::time_ns(*time_ns),
        ));
    }
    points
}

/// For each kind of calls: whether all schemes perform comparably.
fn comparable_points(evidence: &Evidence<'_>) -> Vec<Point> {
    let point = |blocking| {
        let curves = SCHEMES.map(|(scheme, _)| bandwidth(evidence, scheme, blocking));
        let word = blocking_word(blocking);
        let text = format!("{word} calls: all schemes perform comparably");
        within(format!("{word}.comparable"), text, "comparable", COMPARABLE, &curves)
    };
    [true, false].map(point).into()
}

fn enough_points(evidence: &Evidence<'_>) -> Vec<Point> {
    let mut points = comparable_points(evidence);
    let spreads: Option<Vec<f64>> = SCHEMES
        .iter()
        .map(|(scheme, _)| spread(&[true, false].map(|blocking| bandwidth(evidence, *scheme, blocking))))
        .collect();
    points.push(Point::of("blocking-and-non-blocking", 
        format!("blocking and non-blocking calls perform comparably (every scheme, every window: at most {COMPARABLE} % apart)"),
        "comparable",
        spreads.and_then(|spreads| spreads.into_iter().reduce(f64::max)).map(|spread| (apart(spread), spread <= COMPARABLE)),
    ));
    points
}

/// Times of the schemes at the largest window.
fn at_the_end(evidence: &Evidence<'_>, blocking: bool) -> Option<[f64; 3]> {
    let ends = SCHEMES.map(|(scheme, _)| bandwidth(evidence, scheme, blocking).0.last().map(|point| point.1));
    let [Some(hardware), Some(fixed), Some(adaptive)] = ends else { return None };
    Some([hardware, fixed, adaptive])
}

fn few_points(evidence: &Evidence<'_>) -> Vec<Point> {
    let mut points = Vec::new();
    for blocking in [true, false] {
        let ends = at_the_end(evidence, blocking);
        let rate = |time_ns: f64| weir_output::quantity::rate(1e9 / time_ns);
        let words = |[hardware, fixed, adaptive]: [f64; 3]| {
            format!(
                "messages: hardware {}, static {}, adaptive {}",
                rate(hardware),
                rate(fixed),
                rate(adaptive)
            )
        };
        let word = blocking_word(blocking);
        points.push(Point::of(
            format!("{word}.adaptive-best"),
            format!("{word} calls, the largest window: adaptive is best (by at least {FASTER} %)"),
            "adaptive best",
            ends.map(|it| (words(it), FASTER_RATIO * it[2] <= it[0].min(it[1]))),
        ));
        points.push(Point::of(
            format!("{word}.static-worst"),
            format!("{word} calls, the largest window: static is worst (by at least {FASTER} %)"),
            "static worst",
            ends.map(|it| (words(it), it[1] >= FASTER_RATIO * it[0].max(it[2]))),
        ));
        let later = bandwidth_with_timer(evidence, SchemeName::Hardware, blocking, true);
        if let Some(&(_, time_ns)) = later.0.last() {
            points.push(Point::beside(
                format!("{word} calls, hardware with an RNR timer of 0.64 ms, the later default of the authors' library"),
                format!("messages: hardware {}", rate(time_ns)),
            ));
        }
    }
    points
}

fn large_points(evidence: &Evidence<'_>) -> Vec<Point> {
    let mut points = comparable_points(evidence);
    let both = at_the_end(evidence, true).zip(at_the_end(evidence, false));
    points.push(Point::of(
        "non-blocking-better",
        format!(
            "non-blocking calls give better performance (by at least {FASTER} %; largest window, all schemes)"
        ),
        "better",
        both.map(|(blocking, nonblocking)| {
            let least =
                blocking.iter().zip(nonblocking).map(|(blocking, other)| blocking / other).reduce(f64::min);
            let least = least.unwrap_or(0.0);
            (format!("{least:.2} times as fast at least"), least >= FASTER_RATIO)
        }),
    ));
    points
}

fn latency_figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let mut chart = Chart::new("Half of a round trip", "bytes", "us");
    let in_us = |curve: Curve| Curve(curve.0.into_iter().map(|(x, ns)| (x, ns / 1e3)).collect());
    for (scheme, name) in SCHEMES.into_iter().chain(OWN_SCHEMES) {
        chart.curve(name, in_us(time_by(evidence, scheme, "message_bytes", |_| true)));
    }
    chart.mark(Mark::Words { text: "published: all equal" });
    vec![chart]
}

/// - `published`: the statements about blocking and non-blocking calls.
fn bandwidth_figures(evidence: &Evidence<'_>, published: [&'static str; 2]) -> Vec<Chart> {
    let bytes = evidence.records.first().and_then(|record| record.settings.workload_number("message_bytes"));
    let charts = [true, false].into_iter().zip(published).map(|(blocking, text)| {
        let title = format!("Bandwidth, {} calls", blocking_word(blocking));
        let mut chart = Chart::new(title, "messages in a window", "MB/s");
        let rate = |curve: Curve| {
            let of = |(x, ns): (f64, f64)| (x, bytes.unwrap_or(0.0) * 1e3 / ns);
            Curve(curve.0.into_iter().map(of).collect())
        };
        for (scheme, name) in SCHEMES.into_iter().chain(OWN_SCHEMES) {
            chart.curve(name, rate(bandwidth(evidence, scheme, blocking)));
        }
        let later = bandwidth_with_timer(evidence, SchemeName::Hardware, blocking, true);
        if !later.is_empty() {
            chart.curve("hardware, RNR timer of 0.64 ms", rate(later));
        }
        chart.mark(Mark::Words { text });
        chart
    });
    charts.collect()
}
