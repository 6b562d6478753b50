//! Checks the published statements ("points") about experiment E4.2 against our simulation records, and draws its
//! figures: multicast along trees by multi-sends of the NIC, and by sends of the host. Source: Buntinas, section 2.5.

use super::e4::{HOST, NIC, is_published, near, ratio, word};
use super::{Experiment, OWN_SCHEMES, Point};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence};
use weir_sim::plan::{SchemeName, Settings};

pub const EXPERIMENT: Experiment = Experiment {
    id: "E4.2",
    title: "Programmable NIC: multicast",
    source: "Buntinas, sections 2.3 and 2.5, Figs 2.6 to 2.9",
    plans: &["e4.2"],
    points,
    figures,
};

/// The longest message, and the longest packet. Unit: bytes.
const LONG: f64 = 16_384.0;
const PACKET: f64 = 1536.0;
/// Messages below this were published to be slightly slower than the host's optimal tree. Unit: bytes.
const SHORT: f64 = 32.0;

/// Who forwards, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Sends of the host along the binomial tree.
    Binomial,
    /// Sends of the host along the best tree.
    Host,
    /// Multi-sends along the best tree, of whole messages.
    Whole,
    /// Multi-sends along the best tree, of each packet as it comes.
    Pipelined,
}

const WAYS: [(Way, &str); 4] = [
    (Way::Binomial, "host, binomial tree"),
    (Way::Host, "host, best tree"),
    (Way::Whole, "NIC, best tree"),
    (Way::Pipelined, "NIC, best tree, pipelined"),
];

fn is(it: &Settings, way: Way) -> bool {
    let is_pipelined = it.workload[it.workload_name()]["pipelined"].as_bool() == Some(true);
    match way {
        Way::Binomial => word(it, "executor") == HOST && it.workload_number("lambda") == Some(1.0),
        Way::Host => word(it, "executor") == HOST,
        Way::Whole => word(it, "executor") == NIC && !is_pipelined,
        Way::Pipelined => word(it, "executor") == NIC && is_pipelined,
    }
}

/// Latency over the length, the least over all lambda. Unit: us.
fn least(evidence: &Evidence<'_>, scheme: SchemeName, ranks: u32, way: Way) -> Curve {
    let of_lambda = |lambda: f64| {
        evidence.curve(
            |it| {
                it.scheme == scheme
                    && it.ranks == ranks
                    && is(it, way)
                    && it.workload_number("lambda") == Some(lambda)
            },
            |it| it.workload_number("message_bytes"),
            |record| Some(record.time_ns / 1e3),
        )
    };
    let mut curve: Vec<(f64, f64)> = Vec::new();
    for (bytes, us) in (1..=16).flat_map(|lambda| of_lambda(lambda.into()).0) {
        match curve.iter_mut().find(|point| point.0 == bytes) {
            Some(point) => point.1 = point.1.min(us),
            None => curve.push((bytes, us)),
        }
    }
    curve.sort_by(|one, other| one.0.total_cmp(&other.0));
    Curve(curve)
}

/// The smallest lambda with the least latency.
fn best_lambda(evidence: &Evidence<'_>, ranks: u32, way: Way, bytes: f64) -> Option<f64> {
    let of = |record: &&&weir_sim::plan::Record| {
        let it = &record.settings;
        is_published(it)
            && it.ranks == ranks
            && is(it, way)
            && it.workload_number("message_bytes") == Some(bytes)
    };
    let records = evidence.records.iter().filter(of);
    let times = records.filter_map(|it| Some((it.time_ns, it.settings.workload_number("lambda")?)));
    let by_time =
        |one: &(f64, f64), other: &(f64, f64)| one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1));
    times.min_by(by_time).map(|best| best.1)
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let published = |ranks, way| least(evidence, SchemeName::Unlimited, ranks, way);
    let factor = |ranks, host, nic| ratio(&published(ranks, host), &published(ranks, nic));
    let text = |ranks: u32, how: &str| {
        format!("16 KB, {ranks} nodes, {how}: host (binomial tree) / NIC (best tree)")
    };
    let at_long = |ranks, way| factor(ranks, Way::Binomial, way).at(LONG);
    let mut points = vec![
        near("pipelined.4", &text(4, "pipelined"), 1.86, at_long(4, Way::Pipelined), ""),
        near("pipelined.16", &text(16, "pipelined"), 1.85, at_long(16, Way::Pipelined), ""),
        near("whole.8", &text(8, "not pipelined"), 1.53, at_long(8, Way::Whole), ""),
        near("whole.16", &text(16, "not pipelined"), 1.30, at_long(16, Way::Whole), ""),
    ];
    let all: Vec<f64> = [4, 8, 16]
        .iter()
        .flat_map(|ranks| factor(*ranks, Way::Binomial, Way::Pipelined).0)
        .map(|it| it.1)
        .collect();
    points.push(Point::of(
        "always",
        "pipelined, the NIC is faster than the host's binomial tree for every length with 4, 8 and 16 nodes",
        "faster",
        all.iter()
            .copied()
            .reduce(f64::min)
            .map(|least| (format!("factor at least {least:.2}"), least > 1.0)),
    ));
    // The times without and with pipelining, and whether they differ by at most this share.
    let alike = |ranks, bytes, most: f64| {
        let times = published(ranks, Way::Whole).at(bytes).zip(published(ranks, Way::Pipelined).at(bytes));
        times.map(|(whole, pipelined)| {
            (format!("{whole:.2} us, pipelined {pipelined:.2} us"), (whole / pipelined - 1.0).abs() <= most)
        })
    };
    points.push(Point::of(
        "four-nodes",
        "16 KB, 4 nodes: pipelining changes nothing, since the best tree is flat",
        "the same",
        alike(4, LONG, 0.01),
    ));
    points.push(Point::of(
        "host-tree",
        "16 KB, 16 nodes: the host's best tree is binomial",
        "lambda 1",
        best_lambda(evidence, 16, Way::Host, LONG).map(|lambda| (format!("lambda {lambda}"), lambda == 1.0)),
    ));
    let short: Vec<f64> = factor(16, Way::Host, Way::Pipelined)
        .0
        .iter()
        .filter(|(bytes, _)| *bytes < SHORT)
        .map(|point| point.1)
        .collect();
    points.push(Point::of(
        "short",
        "16 nodes, below 32 B: the NIC is slower than the host's best tree, by at most 20 %",
        "a little worse",
        (!short.is_empty()).then(|| {
            let words: Vec<String> = short.iter().map(|factor| format!("{factor:.2}")).collect();
            (words.join(", "), short.iter().all(|factor| (0.8..1.0).contains(factor)))
        }),
    ));
    points.push(Point::of(
        "one-packet",
        "16 nodes, one packet: pipelining changes nothing",
        "the same",
        alike(16, PACKET, 0.0),
    ));
    for (scheme, name) in OWN_SCHEMES {
        for bytes in [8.0, LONG] {
            let time = |way| least(evidence, scheme, 16, way).at(bytes);
            if let (Some(whole), Some(pipelined)) = (time(Way::Whole), time(Way::Pipelined)) {
                points.push(Point::beside(
                    format!("{bytes} B, 16 nodes with {name}: NIC, best lambda up to 4"),
                    format!("{whole:.2} us, pipelined {pipelined:.2} us"),
                ));
            }
        }
    }
    points
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let charts = [
        (8, "published, 16 KB: binomial / NIC 1.53, not pipelined"),
        (16, "published, 16 KB: binomial / NIC 1.30, pipelined 1.85"),
    ];
    let charts = charts.map(|(ranks, text)| {
        let mut chart = Chart::new(format!("Multicast among {ranks} nodes"), "bytes", "us");
        for (way, name) in WAYS {
            chart.curve(name, least(evidence, SchemeName::Unlimited, ranks, way));
        }
        chart.mark(Mark::Words { text });
        chart
    });
    charts.into()
}
