//! Checks the published statements about experiments E3.5 and E3.6 against our simulation records, and draws their
//! figures: all-to-alls and RandomAccess on hosts whose ranks share an adapter, with and without congestion
//! avoidance. The adapters are fitted to E3.1 and E3.2, so these points are predictions. Source: Luo et al., ICS
//! 2012, sections 8 and 9.

use super::e3_control::Control;
use super::e3_thresholds::{GEMINI, QDR, is_on, values, window_ns};
use super::{Experiment, Point};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence};
use weir_sim::plan::Settings;

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

/// Time of a call over the size.
fn time(evidence: &Evidence<'_>, place: (&str, u32), name: &str, control: Control) -> Curve {
    let (network, ranks) = place;
    let is = |it: &Settings| {
        is_on(it, network) && it.ranks == ranks && algorithm(it) == name && Control::of(it) == control
    };
    evidence.curve(is, |it| it.workload_number("message_bytes"), |record| Some(record.time_ns))
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
    let gemini = speedup(evidence, GEMINI_NODES, "linear", Control::Token);
    let most = gemini.0.iter().map(|point| point.1).reduce(f64::max);
    vec![
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
    ]
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

/// Messages per time with a mechanism and a window, of those without control and blocking. The best setting counts.
fn updates(evidence: &Evidence<'_>, control: Control, window: f64) -> Option<f64> {
    let of = |control: Control, window: f64| {
        let worlds = evidence.records.iter().filter(|record| {
            Control::of(&record.settings) == control
                && record.settings.workload_number("window_messages") == Some(window)
        });
        worlds.map(|record| window / window_ns(record)).reduce(f64::max)
    };
    Some(of(control, window)? / of(Control::None, 1.0)?)
}

/// Windows of the overlapped variant.
const OVERLAPPED: f64 = 16.0;

fn random_points(evidence: &Evidence<'_>) -> Vec<Point> {
    let of = |control, window| updates(evidence, control, window);
    let about =
        |found: Option<f64>, published: f64| found.map(|gain| (times(gain), is_about(gain, published)));
    let inversion = of(Control::ProxyToken, 1.0).zip(of(Control::None, OVERLAPPED));
    vec![
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
            kernel_gain(evidence)
                .map(|gain| (format!("{gain:.0} %"), (gain - KERNEL_GAIN).abs() <= KERNEL_NEAR)),
        ),
    ]
}

/// Published speedup of IS, and how near it ours has to be. Unit: percent.
const KERNEL_GAIN: f64 = 17.0;
const KERNEL_NEAR: f64 = 10.0;

/// The largest gain of a kernel by control. Unit: percent.
fn kernel_gain(evidence: &Evidence<'_>) -> Option<f64> {
    let time = |control: Control| {
        let is = |it: &Settings| it.workload_name() == "nas" && Control::of(it) == control;
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
