//! Checks the published statements ("points") about experiment E4.8 against our simulation records, and draws its
//! figures: broadcasts to ranks that are late. The published scheme forwards in a signal handler of the host, ours on
//! the NIC. Source: Buntinas, section 6.3.

use super::e4::{EXECUTORS, HOST, NIC, near, ratio, word};
use super::{Experiment, OWN_SCHEMES, Point};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence};
use weir_sim::plan::{SchemeName, Settings};

pub const EXPERIMENT: Experiment = Experiment {
    id: "E4.8",
    title: "Programmable NIC: broadcast that bypasses the application",
    source: "Buntinas, section 6.3, Figs 6.4 to 6.6",
    plans: &["e4.8"],
    points,
    figures,
};

/// Length, and the published factors at the largest skew: of the time in the call, and with the signal handler.
const SIZES: [(f64, f64, f64); 4] =
    [(1.0, 30.0, 16.0), (2048.0, 8.0, 6.2), (4096.0, 4.2, 3.6), (8192.0, 2.2, 2.0)];
/// The largest skew: the mean of the delays. Unit: us.
const MOST_US: f64 = 333.0;
/// "Does not grow": from 8 to 32 nodes by at most this. Unit: percent.
const ALMOST_CONSTANT: f64 = 10.0;

/// The mean of the random delays. Unit: us.
fn skew_us(it: &Settings) -> f64 {
    it.workload_number("max_delay_ns").unwrap_or(0.0) / 2e3
}

fn is(it: &Settings, scheme: SchemeName, executor: &str, bytes: f64) -> bool {
    it.scheme == scheme
        && word(it, "executor") == executor
        && it.workload_number("message_bytes") == Some(bytes)
}

/// Time of a rank in the call over the skew, with 32 nodes. Unit: us.
fn by_skew(evidence: &Evidence<'_>, executor: &str, bytes: f64) -> Curve {
    evidence.curve(
        |it| is(it, SchemeName::Unlimited, executor, bytes) && it.ranks == 32,
        |it| Some(skew_us(it)),
        |record| Some(record.time_ns / 1e3),
    )
}

/// The same over nodes, with the largest skew.
fn by_ranks(evidence: &Evidence<'_>, scheme: SchemeName, executor: &str, bytes: f64) -> Curve {
    evidence.curve(
        |it| is(it, scheme, executor, bytes) && skew_us(it) == MOST_US,
        |it| Some(it.ranks.into()),
        |record| Some(record.time_ns / 1e3),
    )
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let mut points = Vec::new();
    let mut factors = Vec::new();
    for (bytes, in_call, in_all) in SIZES {
        let [host, nic] = [HOST, NIC].map(|executor| by_skew(evidence, executor, bytes));
        let factor = ratio(&host, &nic).at(MOST_US);
        factors.push(factor);
        let text = format!("32 nodes, {bytes} B, skew of 333 us: time in the call, host / NIC");
        points.push(near(&format!("in-call.{bytes}"), &text, in_call, factor, ""));
        points.push(Point::of(
            format!("in-all.{bytes}"),
            format!("32 nodes, {bytes} B, skew of 333 us: all time for the broadcast is less, at least as many times"),
            format!("{in_all} times"),
            factor.map(|factor| (format!("{factor:.2} times"), factor >= in_all)),
        ));
        points.push(waits("host", bytes, &host, true));
        points.push(waits("NIC", bytes, &nic, false));
    }
    let factors: Option<Vec<f64>> = factors.into_iter().collect();
    points.push(Point::of(
        "sizes",
        "the factor falls with the length of the message",
        "falls",
        factors.map(|factors| {
            let words: Vec<String> = factors.iter().map(|factor| format!("{factor:.2}")).collect();
            (words.join(", "), factors.is_sorted_by(|one, other| one > other))
        }),
    ));
    let [host, nic] =
        [HOST, NIC].map(|executor| by_ranks(evidence, SchemeName::Unlimited, executor, SIZES[0].0));
    let growth = |curve: &Curve| Some((curve.at(8.0)?, curve.at(32.0)?));
    let text = |who: &str| format!("1 B, skew of 333 us, 8 to 32 nodes: the time of the {who}");
    let words = |(few, many): (f64, f64)| format!("{few:.2} us with 8, {many:.2} us with 32");
    points.push(Point::of(
        "nodes.nic",
        format!("{} does not grow (by more than {ALMOST_CONSTANT} %)", text("NIC")),
        "almost constant",
        growth(&nic).map(|it| (words(it), it.1 <= it.0 * (1.0 + ALMOST_CONSTANT / 100.0))),
    ));
    points.push(Point::of(
        "nodes.host",
        format!("{} grows (by more than {ALMOST_CONSTANT} %)", text("host")),
        "grows",
        growth(&host).map(|it| (words(it), it.1 > it.0 * (1.0 + ALMOST_CONSTANT / 100.0))),
    ));
    for ((scheme, name), bytes) in
        OWN_SCHEMES.into_iter().flat_map(|scheme| [1.0, 8192.0].map(|bytes| (scheme, bytes)))
    {
        let time = |executor| by_ranks(evidence, scheme, executor, bytes).at(32.0);
        if let (Some(host), Some(nic)) = (time(HOST), time(NIC)) {
            let text = format!("32 nodes, {bytes} B, skew of 333 us with {name}: time in the call");
            points.push(Point::beside(text, format!("{host:.2} us host, {nic:.2} us NIC")));
        }
    }
    points
}

/// From a small skew to the largest, the time of the host grows, and that of the NIC falls.
fn waits(who: &str, bytes: f64, curve: &Curve, grows: bool) -> Point {
    let verb = if grows { "grows" } else { "falls" };
    let ends = curve.at(17.0).zip(curve.at(MOST_US));
    Point::of(
        format!("skew.{}.{bytes}", who.to_lowercase()),
        format!("32 nodes, {bytes} B: the time of the {who} {verb} from a skew of 17 us to 333 us"),
        verb,
        ends.map(|(few, many)| {
            (format!("{few:.2} us, {many:.2} us"), if grows { many > few } else { many < few })
        }),
    )
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let charts =
        [(1.0, "published: up to 30 times less in the call"), (8192.0, "published: up to 2.2 times less")];
    let charts = charts.map(|(bytes, text)| {
        let title = format!("Time of a rank in a broadcast of {bytes} B, 32 nodes");
        let mut chart = Chart::new(title, "us of mean skew", "us");
        for (executor, who) in EXECUTORS {
            chart.curve(who, by_skew(evidence, executor, bytes));
        }
        chart.mark(Mark::Words { text });
        chart
    });
    charts.into()
}
