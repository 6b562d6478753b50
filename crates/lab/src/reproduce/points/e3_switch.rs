//! Checks what tokens at the hosts do against congestion of a switch with finite queues (E3.7), and draws its figures.
//! Nothing of the model is fitted. The published statement has no numbers, so the rules' numbers are ours: those of `weir
//! tune --network`. Source: Luo et al., ICS 2012, section 2.1.

use super::e3_control::{ALL_CONTROLS, Control, setting_words};
use super::e3_worlds::{is_on, spread_words};
use super::{Experiment, Point};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence};
use weir_bench::statistics::fairness;
use weir_sim::plan::{Record, Settings};

pub const EXPERIMENT: Experiment = Experiment {
    id: "E3.7",
    title: "Node congestion: a switch with finite queues",
    source: "Luo et al., ICS 2012, section 2.1; the worlds are ours",
    plans: &["e3.7", "e3.7-alltoall"],
    points,
    figures,
};

/// The file of the network.
pub(super) const SWITCH: &str = "manycore-switch";
/// A mechanism keeps throughput. Unit: ratio.
const LEAST_SPEED: f64 = 0.98;
/// It shortens the tail (99th percentile). Unit: ratio.
const MOST_TAIL: f64 = 0.8;
/// It prevents losses. Unit: ratio.
const MOST_LOSSES: f64 = 0.5;

/// The traffic of some worlds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Traffic {
    /// Of messages of so many bytes.
    Incast { bytes: f64 },
    /// The overlapped algorithm with messages of so many bytes.
    Alltoall { bytes: f64 },
}

impl Traffic {
    fn is_of(self, it: &Settings) -> bool {
        let number = |name| it.workload_number(name);
        match self {
            Traffic::Incast { bytes } => {
                it.workload_name() == "incast" && number("message_bytes") == Some(bytes)
            }
            Traffic::Alltoall { bytes } => {
                it.workload["alltoall"]["algorithm"].as_str() == Some("linear")
                    && number("message_bytes") == Some(bytes)
            }
        }
    }

    fn name(self) -> String {
        match self {
            Traffic::Incast { bytes } => format!("incast of {bytes} B"),
            Traffic::Alltoall { bytes } => format!("all-to-all of {bytes} B"),
        }
    }

    /// Messages in a microsecond, or all-to-alls in a second.
    fn speed(self, record: &Record) -> String {
        match self {
            Traffic::Incast { .. } => format!("{:.3}/us", 1000.0 / record.time_ns),
            Traffic::Alltoall { .. } => format!("{:.1}/s", 1e9 / record.time_ns),
        }
    }
}

fn worlds<'a>(evidence: &Evidence<'a>, traffic: Traffic, control: Control) -> Vec<&'a Record> {
    let is = |it: &Settings| is_on(it, SWITCH) && traffic.is_of(it) && Control::of(it) == control;
    evidence.records.iter().copied().filter(|record| is(&record.settings)).collect()
}

/// What a world has, as ratios to that without control.
#[derive(Clone, Copy, Debug)]
struct Ratios {
    speed: f64,
    tail: f64,
    losses: f64,
}

impl Ratios {
    fn of(record: &Record, without: &Record) -> Ratios {
        let tail = |record: &Record| record.latency_p99_ns.max(1) as f64;
        Ratios {
            speed: without.time_ns / record.time_ns,
            tail: tail(record) / tail(without),
            losses: lost(record) / lost(without).max(f64::MIN_POSITIVE),
        }
    }

    fn relieves(self) -> bool {
        self.speed >= LEAST_SPEED && self.tail <= MOST_TAIL && self.losses <= MOST_LOSSES
    }
}

/// How often messages were lost, of all messages. Unit: percent.
fn lost(record: &Record) -> f64 {
    100.0 * record.drops as f64 / record.messages.max(1) as f64
}

/// The best setting of a mechanism: most throughput for each time of the tail.
fn best<'a>(evidence: &Evidence<'a>, traffic: Traffic, control: Control) -> Option<(&'a Record, Ratios)> {
    let without = *worlds(evidence, traffic, Control::None).first()?;
    let all = worlds(evidence, traffic, control).into_iter();
    let all = all.map(|record| (record, Ratios::of(record, without)));
    all.max_by(|a, b| (a.1.speed / a.1.tail).total_cmp(&(b.1.speed / b.1.tail)))
}

/// The lengths of the messages of a workload, in order.
fn sizes(evidence: &Evidence<'_>, workload: &str) -> Vec<f64> {
    let records = evidence.records.iter().filter(|record| record.settings.workload_name() == workload);
    let mut sizes: Vec<f64> =
        records.filter_map(|record| record.settings.workload_number("message_bytes")).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    sizes
}

/// The traffic of the rules: the longest messages.
fn judged(evidence: &Evidence<'_>) -> [Option<Traffic>; 2] {
    let longest = |workload: &str| sizes(evidence, workload).last().copied();
    [
        longest("incast").map(|bytes| Traffic::Incast { bytes }),
        longest("alltoall").map(|bytes| Traffic::Alltoall { bytes }),
    ]
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let judged = judged(evidence);
    let mut points = Vec::new();
    for (word, traffic) in ["incast", "alltoall"].into_iter().zip(judged) {
        for (control, id, mechanism) in [
            (Control::Token, "token", "tokens"),
            (Control::ProxyToken, "proxy-token", "the proxy with tokens"),
        ] {
            let found = traffic.and_then(|traffic| {
                let without = *worlds(evidence, traffic, Control::None).first()?;
                let (record, ratios) = best(evidence, traffic, control)?;
                let words = format!(
                    "{:.2}x the throughput, {:.2} % lost instead of {:.2} %, {:.2}x the tail",
                    ratios.speed,
                    lost(record),
                    lost(without),
                    ratios.tail
                );
                Some((words, ratios.relieves()))
            });
            let name = traffic.map_or_else(|| word.to_owned(), Traffic::name);
            points.push(Point::of(
                format!("{word}.{id}"),
                format!(
                    "{name}, {mechanism}: at least 0.98x the throughput, at most half of the losses and 0.8x the tail"
                ),
                "also alleviates congestion in the core",
                found,
            ));
        }
    }
    points.extend(judged.into_iter().flatten().flat_map(|traffic| rows(evidence, traffic)));
    points
}

/// Throughput, tails, fairness and losses of each mechanism.
fn rows(evidence: &Evidence<'_>, traffic: Traffic) -> Vec<Point> {
    let row = |(control, name): (Control, &str)| {
        let (record, _) = best(evidence, traffic, control)?;
        let text = format!(
            "{}, {name}{}: throughput, latency of messages (50th, 99th percentile), Jain's index, lost messages",
            traffic.name(),
            setting_words(&record.settings, control)
        );
        let spread = spread_words(record).or_else(|| senders_words(record))?;
        Some(Point::beside(text, format!("{}, {spread}, {:.2} %", traffic.speed(record), lost(record))))
    };
    ALL_CONTROLS.into_iter().filter_map(row).collect()
}

/// The same as [`spread_words`], with the fairness among the senders of an incast.
fn senders_words(record: &Record) -> Option<String> {
    let senders = &record.measures.get("sender_messages")?.of_rank_0;
    let counts: Vec<u64> = senders.iter().map(|&count| count as u64).collect();
    let [middle_us, late_us] = [record.latency_p50_ns, record.latency_p99_ns].map(|ns| ns as f64 / 1000.0);
    Some(format!("{middle_us:.1} and {late_us:.1} us, {:.3}", fairness(&counts)?))
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let incasts = sizes(evidence, "incast").into_iter().map(|bytes| Traffic::Incast { bytes });
    let exchanges = sizes(evidence, "alltoall").into_iter().map(|bytes| Traffic::Alltoall { bytes });
    let all: Vec<Traffic> = incasts.chain(exchanges).collect();
    let of = |title: &str, unit: &str, value: fn(&Record, &Record) -> f64| {
        let mut chart = Chart::new(title, "tokens of a host", unit);
        for &traffic in &all {
            let Some(&without) = worlds(evidence, traffic, Control::None).first() else { continue };
            let mut curve: Vec<(f64, f64)> = worlds(evidence, traffic, Control::Token)
                .into_iter()
                .filter_map(|record| Some((record.settings.network_value("tokens")?, value(record, without))))
                .collect();
            curve.sort_by(|a, b| a.0.total_cmp(&b.0));
            if !curve.is_empty() {
                chart.curve(traffic.name(), Curve(curve));
            }
        }
        chart.mark(Mark::Words { text: "published: throttling also alleviates congestion in the core" });
        chart
    };
    vec![
        of("Throughput with tokens against none", "times as much", |it, without| {
            without.time_ns / it.time_ns
        }),
        of("99th percentile of the latency with tokens against none", "times as long", |it, without| {
            Ratios::of(it, without).tail
        }),
        of("Lost messages with tokens", "percent", |it, _| lost(it)),
    ]
}
