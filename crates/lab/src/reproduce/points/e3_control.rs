//! Checks the published statements about experiments E3.3 and E3.4 against our simulation records, and draws their
//! figures: two hosts whose ranks share an adapter, with congestion avoidance before it. The adapters are fitted to
//! E3.1 and E3.2, so these points are predictions. Source: Luo et al., ICS 2012, sections 6 and 7.

use super::e3_worlds::{GEMINI, QDR, is_on, number, smallest_row, spread_row, throughput, values};
use super::{Experiment, Point};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence};
use weir_sim::plan::Settings;

pub const MECHANISMS: Experiment = Experiment {
    id: "E3.3",
    title: "Node congestion: rate, token and proxy control",
    source: "Luo et al., ICS 2012, section 6: Figures 5 and 6",
    plans: &["e3.3"],
    points,
    figures,
};
pub const COST: Experiment = Experiment {
    id: "E3.4",
    title: "Node congestion: cost of control below the thresholds",
    source: "Luo et al., ICS 2012, sections 6 and 7: Figure 7",
    plans: &["e3.4"],
    points: cost_points,
    figures: cost_figures,
};

/// What stands before the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    None,
    Rate,
    Token,
    Proxy,
    ProxyToken,
}

impl Control {
    pub(super) fn of(it: &Settings) -> Control {
        let has = |key: &str| it.network_value(key).is_some_and(|value| value > 0.0);
        match (has("rate_delay_ns"), has("tokens"), has("servers")) {
            (true, _, _) => Control::Rate,
            (_, true, true) => Control::ProxyToken,
            (_, true, false) => Control::Token,
            (_, false, true) => Control::Proxy,
            (_, false, false) => Control::None,
        }
    }
}

/// "Up to", "about": so much of the published ratio more or less.
const ABOUT: f64 = 0.2;
/// A mechanism that does not see congestion gains at most this. Unit: ratio.
const BLIND: f64 = 1.05;
/// A mechanism that handles congestion gains at least this. Unit: ratio.
const HANDLES: f64 = 1.2;
/// Windows of many messages.
const MANY: f64 = 256.0;

/// Throughput over the value of a setting; with `None`, over the window.
fn curve(
    evidence: &Evidence<'_>,
    network: &str,
    control: Control,
    which: impl Fn(&Settings) -> bool,
    x: impl Fn(&Settings) -> Option<f64>,
) -> Curve {
    let is = |it: &Settings| is_on(it, network) && Control::of(it) == control && which(it);
    evidence.curve(is, x, throughput)
}

/// Throughput of a window with the best setting of a mechanism, of that without control.
fn gain(evidence: &Evidence<'_>, network: &str, control: Control, bytes: f64, window: f64) -> Option<f64> {
    let is = |it: &Settings| number(it, "message_bytes") == bytes && number(it, "window_messages") == window;
    let without = curve(evidence, network, Control::None, is, |_| Some(0.0)).at(0.0)?;
    let best = |key: &'static str| {
        let by_setting = curve(evidence, network, control, is, |it| it.network_value(key));
        by_setting.0.into_iter().map(|point| point.1).reduce(f64::max)
    };
    Some(best(setting(control))? / without)
}

/// The setting of a mechanism that is swept.
fn setting(control: Control) -> &'static str {
    match control {
        Control::Rate => "rate_delay_ns",
        Control::Token | Control::ProxyToken | Control::None => "tokens",
        Control::Proxy => "servers",
    }
}

/// Its name and unit, before the value.
fn setting_name(control: Control) -> &'static str {
    match control {
        Control::Rate => "delay in ns:",
        Control::Token | Control::ProxyToken | Control::None => "tokens:",
        Control::Proxy => "servers:",
    }
}

/// The largest gain over sizes and these windows; `None` if a world is missing.
fn most(evidence: &Evidence<'_>, network: &str, control: Control, windows: &[f64]) -> Option<f64> {
    let sizes = values(evidence, network, "message_bytes");
    let pairs = sizes.iter().flat_map(|&bytes| windows.iter().map(move |&window| (bytes, window)));
    let gains: Option<Vec<f64>> =
        pairs.map(|(bytes, window)| gain(evidence, network, control, bytes, window)).collect();
    gains?.into_iter().reduce(f64::max)
}

/// The number of servers with the highest throughput, for the smallest messages.
fn best_servers(evidence: &Evidence<'_>, window: f64) -> Option<f64> {
    let bytes = values(evidence, QDR.0, "message_bytes").first().copied()?;
    let is = |it: &Settings| number(it, "message_bytes") == bytes && number(it, "window_messages") == window;
    let by_servers = curve(evidence, QDR.0, Control::Proxy, is, |it| it.network_value("servers"));
    by_servers.0.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|point| point.0)
}

const WINDOWS: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];
const GEMINI_WINDOWS: [f64; 5] = [1.0, 2.0, 4.0, 16.0, 64.0];

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let times = |gain: f64| format!("{gain:.2}x");
    let about = |found: Option<f64>, published: f64| {
        found.map(|gain| (times(gain), (gain / published - 1.0).abs() <= ABOUT))
    };
    let of = |control, windows: &[f64]| most(evidence, QDR.0, control, windows);
    let servers = |window: f64, published: f64| {
        best_servers(evidence, window).map(|best| (format!("{best:.0} servers"), best == published))
    };
    let both = of(Control::ProxyToken, &[1.0]).zip(of(Control::ProxyToken, &[MANY]));
    let mut points = vec![
        Point::of(
            "infiniband.rate.most",
            "InfiniBand: largest gain of rate control, windows of 2 to 16 (2x within 20 %)",
            "up to 2x",
            about(of(Control::Rate, &WINDOWS[1..]), 2.0),
        ),
        Point::of(
            "infiniband.rate.blocking",
            "InfiniBand: rate control does not avoid concurrency congestion (windows of 1: at most 5 %)",
            "does not",
            of(Control::Rate, &WINDOWS[..1]).map(|gain| (times(gain), gain <= BLIND)),
        ),
        Point::of(
            "infiniband.token.most",
            "InfiniBand: largest gain of token control, windows of 1 to 16 (3x within 20 %)",
            "up to 3x",
            about(of(Control::Token, &WINDOWS), 3.0),
        ),
        Point::of(
            "infiniband.token.blocking",
            "InfiniBand: gain of token control for blocking communication (1.5x within 20 %)",
            "50 %",
            about(of(Control::Token, &WINDOWS[..1]), 1.5),
        ),
        Point::of(
            "gemini.token.most",
            "Gemini: largest gain of token control, windows of 1 to 64 (5x within 20 %)",
            "up to 5x",
            about(most(evidence, GEMINI.0, Control::Token, &GEMINI_WINDOWS), 5.0),
        ),
        Point::of(
            "infiniband.proxy.most",
            "InfiniBand: largest gain of the proxy, windows of 1 and 256 (1.6x within 20 %)",
            "up to 1.6x",
            about(of(Control::Proxy, &[1.0, MANY]), 1.6),
        ),
        Point::of(
            "infiniband.proxy.blocking",
            "InfiniBand: servers with the highest throughput, windows of 1",
            "16",
            servers(1.0, 16.0),
        ),
        Point::of(
            "infiniband.proxy.many",
            "InfiniBand: servers with the highest throughput, windows of 256",
            "2",
            servers(MANY, 2.0),
        ),
        Point::of(
            "infiniband.proxy-token",
            "InfiniBand: eight servers with tokens gain at windows of 1 and of 256 (at least 1.2x at both)",
            "handles both kinds",
            both.map(|(few, many)| (format!("{few:.2}x and {many:.2}x"), few >= HANDLES && many >= HANDLES)),
        ),
    ];
    points.extend(tails(evidence));
    points
}

/// Windows for which fairness and tails are shown.
const SHOWN: f64 = 16.0;

/// Fairness and tails of each mechanism with the setting of highest throughput, for the smallest messages.
fn tails(evidence: &Evidence<'_>) -> Vec<Point> {
    let smallest = values(evidence, QDR.0, "message_bytes").first().copied();
    let row = |(control, name): (Control, &str)| {
        let is = |it: &Settings| {
            is_on(it, QDR.0)
                && Control::of(it) == control
                && Some(number(it, "message_bytes")) == smallest
                && number(it, "window_messages") == SHOWN
        };
        let worlds = evidence.records.iter().filter(|record| is(&record.settings));
        let speeds = worlds.filter_map(|record| Some((throughput(record)?, *record)));
        let (_, record) = speeds.max_by(|a, b| a.0.total_cmp(&b.0))?;
        let setting = setting_words(&record.settings, control);
        let bytes = number(&record.settings, "message_bytes");
        spread_row(&format!("InfiniBand, {bytes} B, windows of {SHOWN}, {name}{setting}"), record)
    };
    ALL_CONTROLS.into_iter().filter_map(row).collect()
}

/// The mechanisms in the order of rows, with their names there.
pub(super) const ALL_CONTROLS: [(Control, &str); 5] = [
    (Control::None, "no control"),
    (Control::Rate, "rate control"),
    (Control::Token, "token control"),
    (Control::Proxy, "proxy"),
    (Control::ProxyToken, "proxy with tokens"),
];

/// The setting of a mechanism in a world: `, tokens: 20`; empty without control.
pub(super) fn setting_words(it: &Settings, control: Control) -> String {
    let value = it.network_value(setting(control));
    value.map_or_else(String::new, |value| format!(", {} {value}", setting_name(control)))
}

/// Messages that count as short. Unit: bytes.
const SHORT: f64 = 512.0;
/// Published bounds of the loss. Unit: percent.
const UNTUNED: f64 = 10.0;
const TUNED: f64 = 4.0;
const TUNED_MEAN: f64 = 2.0;

/// Losses of throughput by a mechanism in all worlds, with the size of each. A gain is negative. Unit: percent.
fn losses(evidence: &Evidence<'_>, network: &str, control: Control) -> Vec<(f64, f64)> {
    let key =
        |it: &Settings| ["message_bytes", "active_ranks", "window_messages"].map(|name| number(it, name));
    let of = |control| {
        let is = move |it: &Settings| is_on(it, network) && Control::of(it) == control;
        evidence.records.iter().filter(move |record| is(&record.settings))
    };
    let pairs = of(control).filter_map(|record| {
        let without = of(Control::None).find(|other| key(&other.settings) == key(&record.settings))?;
        let loss = 100.0 * (1.0 - throughput(record)? / throughput(without)?);
        Some((number(&record.settings, "message_bytes"), loss))
    });
    pairs.collect()
}

fn cost_points(evidence: &Evidence<'_>) -> Vec<Point> {
    let most = |losses: &[(f64, f64)], bytes: f64| {
        losses.iter().filter(|loss| loss.0 <= bytes).map(|loss| loss.1).reduce(f64::max)
    };
    let at_most =
        |found: Option<f64>, limit: f64| found.map(|loss| (format!("{:.1} %", loss.max(0.0)), loss <= limit));
    let tuned = losses(evidence, QDR.0, Control::ProxyToken);
    let lost: Vec<f64> = tuned.iter().map(|loss| loss.1).filter(|loss| *loss > 0.0).collect();
    let mean = (!tuned.is_empty()).then(|| lost.iter().sum::<f64>() / lost.len().max(1) as f64);
    let mut points = vec![
        Point::of(
            "gemini.token.untuned",
            "Gemini: largest loss by untuned token control, messages of up to 512 B",
            "at most 10 %",
            at_most(most(&losses(evidence, GEMINI.0, Control::Token), SHORT), UNTUNED),
        ),
        Point::of(
            "infiniband.proxy.untuned",
            "InfiniBand: largest loss by the untuned proxy, messages of up to 512 B",
            "at most 10 %",
            at_most(most(&losses(evidence, QDR.0, Control::Proxy), SHORT), UNTUNED),
        ),
        Point::of(
            "infiniband.tuned.most",
            "InfiniBand: largest loss by tuned control, all sizes",
            "at most 4 %",
            at_most(most(&tuned, f64::INFINITY), TUNED),
        ),
        Point::of(
            "infiniband.tuned.mean",
            "InfiniBand: mean loss by tuned control where it loses",
            "2 %",
            at_most(mean, TUNED_MEAN),
        ),
    ];
    points.extend(cost_rows(evidence));
    points
}

/// Windows for which the cost of control is shown.
const SHOWN_COST: f64 = 4.0;

/// Throughput, tails and fairness with each kind of control, for the smallest messages. All ranks are active: with few of
/// them many messages would be those of barriers.
fn cost_rows(evidence: &Evidence<'_>) -> Vec<Point> {
    let row = |((network, ranks), control, words): ((&str, f64), Control, &str)| {
        smallest_row(evidence, network, ranks, SHOWN_COST, |it| Control::of(it) == control, words)
    };
    let kinds = [
        (QDR, Control::None, ", no control"),
        (QDR, Control::Proxy, ", untuned proxy"),
        (QDR, Control::ProxyToken, ", tuned proxy with tokens"),
        (GEMINI, Control::None, ", no control"),
        (GEMINI, Control::Token, ", untuned token control"),
    ];
    kinds.into_iter().filter_map(row).collect()
}

fn cost_figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let mut chart = Chart::new("Largest loss by control (Figure 7)", "bytes", "percent").logarithmic_x();
    for (network, control, name) in [
        (GEMINI.0, Control::Token, "Gemini, untuned token control"),
        (QDR.0, Control::Proxy, "InfiniBand, untuned proxy"),
        (QDR.0, Control::ProxyToken, "InfiniBand, tuned proxy and tokens"),
    ] {
        let losses = losses(evidence, network, control);
        let sizes = values(evidence, network, "message_bytes").into_iter();
        let most = sizes.filter_map(|bytes| {
            let of_size = losses.iter().filter(|loss| loss.0 == bytes).map(|loss| loss.1);
            Some((bytes, of_size.reduce(f64::max)?))
        });
        chart.curve(name, Curve(most.collect()));
    }
    chart.published("untuned, published: at most", vec![(8.0, UNTUNED), (SHORT, UNTUNED)]);
    chart.published("tuned, published: at most", vec![(8.0, TUNED), (524_288.0, TUNED)]);
    vec![chart]
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let gains = |network: &str, control, bytes: f64, windows: &[f64]| {
        let points = windows
            .iter()
            .filter_map(|&window| Some((window, gain(evidence, network, control, bytes, window)?)));
        Curve(points.collect())
    };
    let mut charts = Vec::new();
    for (network, name, windows) in [(QDR.0, "InfiniBand", WINDOWS), (GEMINI.0, "Gemini", GEMINI_WINDOWS)] {
        let title = format!("{name}: gain of control by outstanding messages (Figures 5 and 6)");
        let mut chart = Chart::new(title, "outstanding messages of a rank", "times").logarithmic_x();
        for bytes in values(evidence, network, "message_bytes") {
            for (control, word) in [(Control::Rate, "rate"), (Control::Token, "token")] {
                let curve = gains(network, control, bytes, &windows);
                if !curve.is_empty() {
                    chart.curve(format!("{word}, {bytes} B"), curve);
                }
            }
        }
        let most = if network == QDR.0 { 3.0 } else { 5.0 };
        chart.published("tokens, published: up to", windows.map(|window| (window, most)).to_vec());
        charts.push(chart);
    }
    let mut chart =
        Chart::new("InfiniBand: throughput of the proxy by servers (Figure 5)", "servers", "messages/us");
    let bytes = values(evidence, QDR.0, "message_bytes").first().copied().unwrap_or(0.0);
    for window in [1.0, MANY] {
        let is =
            |it: &Settings| number(it, "message_bytes") == bytes && number(it, "window_messages") == window;
        let by_servers = curve(evidence, QDR.0, Control::Proxy, is, |it| it.network_value("servers"));
        chart.curve(format!("{window} outstanding, {bytes} B"), by_servers);
    }
    chart.mark(Mark::Words {
        text: "published: best with 16 servers when blocking, with 2 at 256 outstanding",
    });
    charts.push(chart);
    charts
}
