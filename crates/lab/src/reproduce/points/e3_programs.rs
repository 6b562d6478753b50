//! Checks the published statements about experiments E3.5 and E3.6 against our simulation records, and draws their
//! figures: all-to-alls and RandomAccess on hosts whose ranks share an adapter, with and without congestion
//! avoidance. The adapters are fitted to E3.1 and E3.2, so these points are predictions. Source: Luo et al., ICS
//! 2012, sections 8 and 9.

use super::e3_control::{Control, setting_words};
use super::e3_worlds::{GEMINI, QDR, is_on, spread_words, values, window_ns};
use super::{Experiment, Point};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence};
use weir_sim::plan::{Record, Settings};

pub const ALL_TO_ALL: Experiment = Experiment {
    id: "E3.5",
    title: "Node congestion: all-to-all",
    source: "Luo et al., ICS 2012, section 8: Figure 8",
    plans: &["e3.5"],
    points: alltoall_points,
    figures: alltoall_figures,
};
pub const RANDOM_ACCESS: Experiment = Experiment {
    id: "E3.6",
    title: "Node congestion: RandomAccess and NAS kernels",
    source: "Luo et al., ICS 2012, section 9: Figures 9 and 10",
    plans: &["e3.6", "e3.6-nas"],
    points: random_points,
    figures: random_figures,
};

/// "Up to": so much of the published ratio more or less.
const ABOUT: f64 = 0.2;

fn is_about(value: f64, published: f64) -> bool {
    (value / published - 1.0).abs() <= ABOUT
}

fn times(gain: f64) -> String {
    format!("{gain:.2}x")
}

fn algorithm(it: &Settings) -> &str {
    it.workload["alltoall"]["algorithm"].as_str().unwrap_or("")
}

/// The fastest world of a size: with the best setting of a mechanism.
fn fastest<'a>(
    evidence: &Evidence<'a>,
    place: (&str, u32),
    name: &str,
    control: Control,
    bytes: f64,
) -> Option<&'a Record> {
    let (network, ranks) = place;
    let is = |it: &Settings| {
        let is_here = is_on(it, network) && it.ranks == ranks;
        is_here
            && algorithm(it) == name
            && Control::of(it) == control
            && it.workload_number("message_bytes") == Some(bytes)
    };
    let worlds = evidence.records.iter().copied().filter(|record| is(&record.settings));
    worlds.min_by(|a, b| a.time_ns.total_cmp(&b.time_ns))
}

/// Time of a call over the size.
fn time(evidence: &Evidence<'_>, place: (&str, u32), name: &str, control: Control) -> Curve {
    let sizes = values(evidence, place.0, "message_bytes").into_iter();
    let time = |bytes| Some((bytes, fastest(evidence, place, name, control, bytes)?.time_ns));
    Curve(sizes.filter_map(time).collect())
}

const TWO_NODES: (&str, u32) = (QDR.0, 64);
const MANY_NODES: (&str, u32) = (QDR.0, 1024);
const GEMINI_NODES: (&str, u32) = (GEMINI.0, 768);

/// Speedup over the overlapped algorithm without control, by size.
fn speedup(evidence: &Evidence<'_>, place: (&str, u32), name: &str, control: Control) -> Curve {
    let plain = time(evidence, place, "linear", Control::None);
    let other = time(evidence, place, name, control);
    Curve(other.0.iter().filter_map(|&(bytes, ns)| Some((bytes, plain.at(bytes)? / ns))).collect())
}

fn alltoall_points(evidence: &Evidence<'_>) -> Vec<Point> {
    let proxy_at = |place, bytes: f64| speedup(evidence, place, "linear", Control::ProxyToken).at(bytes);
    let about =
        |found: Option<f64>, published: f64| found.map(|gain| (times(gain), is_about(gain, published)));
    let beats = |place: (&str, u32)| {
        let ours = time(evidence, place, "linear", Control::ProxyToken);
        let others = ["pairwise", "bruck"].map(|name| time(evidence, place, name, Control::None));
        let ratio = |(bytes, ns): (f64, f64)| {
            let best = others[0].at(bytes)?.min(others[1].at(bytes)?);
            Some(best / ns)
        };
        let medium = ours.0.into_iter().filter(|point| point.0 >= 512.0);
        let ratios: Option<Vec<f64>> = medium.map(ratio).collect();
        ratios?.into_iter().reduce(f64::min)
    };
    let most_on_gemini = |control| {
        let speedups = speedup(evidence, GEMINI_NODES, "linear", control).0.into_iter();
        speedups.map(|point| point.1).reduce(f64::max)
    };
    let most = most_on_gemini(Control::Token);
    let order = most.zip(most_on_gemini(Control::ProxyToken)).zip(most_on_gemini(Control::Rate));
    let rate = speedup(evidence, TWO_NODES, "linear", Control::Rate).at(512.0);
    let mut points = vec![
        Point::of(
            "infiniband.two-nodes",
            "InfiniBand, 2 hosts, 512 B: speedup of the overlapped algorithm by proxy and tokens (1.9x within 20 %)",
            "90 %",
            about(proxy_at(TWO_NODES, 512.0), 1.9),
        ),
        Point::of(
            "infiniband.two-nodes.mpi",
            "InfiniBand, 2 hosts, 512 B and more: with control as fast as Bruck's and pairwise",
            "faster than any",
            beats(TWO_NODES).map(|ratio| (format!("{ratio:.2}x at least"), ratio >= 1.0)),
        ),
        Point::of(
            "infiniband.1024",
            "InfiniBand, 1024 ranks, 512 B: speedup of the overlapped algorithm by proxy and tokens (2.7x within 20 %)",
            "170 %",
            about(proxy_at(MANY_NODES, 512.0), 2.7),
        ),
        Point::of(
            "infiniband.1024.mpi",
            "InfiniBand, 1024 ranks, 512 B and more: with control as fast as Bruck's and pairwise",
            "faster than any",
            beats(MANY_NODES).map(|ratio| (format!("{ratio:.2}x at least"), ratio >= 1.0)),
        ),
        Point::of(
            "gemini.768",
            "Gemini, 768 ranks: largest speedup of the overlapped algorithm by tokens (4x within 20 %)",
            "up to 4x",
            about(most, 4.0),
        ),
        Point::of(
            "infiniband.rate",
            "InfiniBand, 2 hosts, 512 B: rate control gains less than the proxy with tokens",
            "only modest improvements",
            rate.zip(proxy_at(TWO_NODES, 512.0))
                .map(|(rate, proxy)| (format!("{} and {}", times(rate), times(proxy)), rate < proxy)),
        ),
        Point::of(
            "gemini.order",
            "Gemini, 768 ranks, largest speedup: tokens more than the proxy with tokens, rate control least",
            "tokens, proxy, rate",
            order.map(|((token, proxy), rate)| {
                let words = format!("{}, {}, {}", times(token), times(proxy), times(rate));
                (words, token >= proxy && proxy >= rate)
            }),
        ),
    ];
    points.extend(alltoall_rows(evidence));
    points
}

/// Mechanisms and their names.
const CONTROLS: [(Control, &str); 4] = [
    (Control::None, "no control"),
    (Control::Rate, "rate control"),
    (Control::Token, "token control"),
    (Control::ProxyToken, "proxy with tokens"),
];

/// Time, tails and fairness of the overlapped algorithm, for messages of 512 B.
fn alltoall_rows(evidence: &Evidence<'_>) -> Vec<Point> {
    let row = |(place, name): ((&str, u32), &str), (control, words): (Control, &str)| {
        let record = fastest(evidence, place, "linear", control, 512.0)?;
        let text = format!(
            "{name}, 512 B, overlapped, {words}{}: time of a call, latency of messages (50th, 99th percentile), \
             Jain's index of the ranks' times",
            setting_words(&record.settings, control)
        );
        Some(Point::beside(text, format!("{:.0} us, {}", record.time_ns / 1000.0, spread_words(record)?)))
    };
    let places = [
        (TWO_NODES, "InfiniBand, 2 hosts"),
        (MANY_NODES, "InfiniBand, 1024 ranks"),
        (GEMINI_NODES, "Gemini, 768 ranks"),
    ];
    places.iter().flat_map(|&place| CONTROLS.into_iter().filter_map(move |it| row(place, it))).collect()
}

fn alltoall_figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let charts = [
        (TWO_NODES, "InfiniBand, 2 hosts", 1.9),
        (MANY_NODES, "InfiniBand, 1024 ranks", 2.7),
        (GEMINI_NODES, "Gemini, 768 ranks", 4.0),
    ];
    let charts = charts.map(|(place, name, published)| {
        let title = format!("{name}: all-to-all against the plain overlapped algorithm (Figure 8)");
        let mut chart = Chart::new(title, "bytes", "times as fast").logarithmic_x();
        for (algorithm, control, name) in [
            ("pairwise", Control::None, "pairwise"),
            ("bruck", Control::None, "Bruck"),
            ("linear", Control::Token, "overlapped, tokens"),
            ("linear", Control::ProxyToken, "overlapped, proxy and tokens"),
        ] {
            let curve = speedup(evidence, place, algorithm, control);
            if !curve.is_empty() {
                chart.curve(name, curve);
            }
        }
        chart.published("published: up to", vec![(512.0, published)]);
        chart
    });
    charts.into()
}

/// The world with a mechanism and a window that sends most messages per time.
fn most_updates<'a>(evidence: &Evidence<'a>, control: Control, window: f64) -> Option<&'a Record> {
    let worlds = evidence.records.iter().copied().filter(|record| {
        Control::of(&record.settings) == control
            && record.settings.workload_number("window_messages") == Some(window)
    });
    worlds.min_by(|a, b| window_ns(a).total_cmp(&window_ns(b)))
}

/// Messages per time with a mechanism and a window, of those without control and blocking. The best setting counts.
fn updates(evidence: &Evidence<'_>, control: Control, window: f64) -> Option<f64> {
    let of = |control, window| Some(window / window_ns(most_updates(evidence, control, window)?));
    Some(of(control, window)? / of(Control::None, 1.0)?)
}

/// Updates, tails and fairness of each mechanism.
fn random_rows(evidence: &Evidence<'_>) -> Vec<Point> {
    let row = |window: f64, (control, words): (Control, &str)| {
        let record = most_updates(evidence, control, window)?;
        let text = format!(
            "RandomAccess, {window} outstanding, {words}{}: updates of a rank, latency of messages (50th, 99th \
             percentile), Jain's index of the ranks' times",
            setting_words(&record.settings, control)
        );
        let per_us = 1000.0 * window / window_ns(record);
        Some(Point::beside(text, format!("{per_us:.3}/us, {}", spread_words(record)?)))
    };
    [1.0, OVERLAPPED]
        .iter()
        .flat_map(|&window| CONTROLS.into_iter().filter_map(move |it| row(window, it)))
        .collect()
}

/// Windows of the overlapped variant.
const OVERLAPPED: f64 = 16.0;

fn random_points(evidence: &Evidence<'_>) -> Vec<Point> {
    let of = |control, window| updates(evidence, control, window);
    let about =
        |found: Option<f64>, published: f64| found.map(|gain| (times(gain), is_about(gain, published)));
    let inversion = of(Control::ProxyToken, 1.0).zip(of(Control::None, OVERLAPPED));
    let mut points = vec![
        Point::of(
            "blocking.proxy",
            "RandomAccess, blocking: proxy with tokens against no control (1.57x within 20 %)",
            "57 %",
            about(of(Control::ProxyToken, 1.0), 1.57),
        ),
        Point::of(
            "overlapped.plain",
            "RandomAccess: 16 outstanding without control against blocking (1.4x within 20 %)",
            "up to 40 %",
            about(of(Control::None, OVERLAPPED), 1.4),
        ),
        Point::of(
            "overlapped.proxy",
            "RandomAccess: 16 outstanding, proxy with tokens, against blocking without control (1.6x within 20 %)",
            "60 %",
            about(of(Control::ProxyToken, OVERLAPPED), 1.6),
        ),
        Point::of(
            "inversion",
            "RandomAccess: blocking with control is faster than overlapped without",
            "yes",
            inversion.map(|(ours, plain)| (format!("{ours:.2}x and {plain:.2}x"), ours > plain)),
        ),
        Point::of(
            "nas.is",
            "NAS IS, class A, 64 ranks: the largest speedup by tokens, or proxy and tokens (7 to 27 %)",
            "up to 17 %",
            kernel_gain(evidence, "is")
                .map(|gain| (format!("{gain:.0} %"), (gain - KERNEL_GAIN).abs() <= KERNEL_NEAR)),
        ),
        Point::of(
            "nas.intensive",
            "NAS: each of CG, FT and IS gains more than each of MG, BT and SP",
            "best with CG, FT, IS",
            kernel_gains(evidence).map(|gains| {
                let words: Vec<String> =
                    KERNELS.iter().zip(gains).map(|(name, gain)| format!("{name} {gain:.0} %")).collect();
                let least = gains[..3].iter().copied().fold(f64::INFINITY, f64::min);
                (words.join(", "), gains[3..].iter().all(|&gain| gain < least))
            }),
        ),
    ];
    points.extend(random_rows(evidence));
    points
}

/// The kernels of Figure 10: first those that communicate most.
const KERNELS: [&str; 6] = ["cg", "ft", "is", "mg", "bt", "sp"];

/// The largest gain of each. Unit: percent.
fn kernel_gains(evidence: &Evidence<'_>) -> Option<[f64; 6]> {
    let gains: Option<Vec<f64>> = KERNELS.iter().map(|name| kernel_gain(evidence, name)).collect();
    gains?.try_into().ok()
}

/// Published speedup of IS, and how near it ours has to be. Unit: percent.
const KERNEL_GAIN: f64 = 17.0;
const KERNEL_NEAR: f64 = 10.0;

/// The largest gain of a kernel by control. Unit: percent.
fn kernel_gain(evidence: &Evidence<'_>, kernel: &str) -> Option<f64> {
    let time = |control: Control| {
        let is = |it: &Settings| {
            it.workload["nas"]["kernel"].as_str() == Some(kernel) && Control::of(it) == control
        };
        evidence.curve(is, |_| Some(0.0), |record| Some(record.time_ns)).at(0.0)
    };
    let best = time(Control::Token)?.min(time(Control::ProxyToken)?);
    Some(100.0 * (time(Control::None)? / best - 1.0))
}

fn random_figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let title = "RandomAccess: updates against blocking without control (Figure 9)";
    let mut chart = Chart::new(title, "outstanding messages of a rank", "times as many");
    let windows = values(evidence, QDR.0, "window_messages");
    for (control, name) in [
        (Control::None, "no control"),
        (Control::Rate, "rate"),
        (Control::Token, "tokens"),
        (Control::ProxyToken, "proxy and tokens"),
    ] {
        let curve = windows.iter().filter_map(|&window| Some((window, updates(evidence, control, window)?)));
        chart.curve(name, Curve(curve.collect()));
    }
    chart.mark(Mark::Words { text: "published: proxy 1.57 times blocking, 1.6 times overlapped" });
    vec![chart]
}
