//! E1.10: memory per receiver: the published formulae, and what weir's endpoint occupies, measured.

use super::{Experiment, Point};
use crate::reproduce::chart::Chart;
use crate::reproduce::evidence::{Curve, Evidence};
use weir_output::quantity::{bytes, count};

pub const EXPERIMENT: Experiment = Experiment {
    id: "E1.10",
    title: "Memory per receiver",
    source: "Prades, thesis, 7.5: formula 7.2, Table 7.1",
    plans: &["e1.10"],
    points,
    figures,
};

/// Processes, and what Table 7.1 says of them. Unit: MB (of 2^20 bytes).
const TABLE: [(u32, f64, f64); 5] = [
    (1 << 10, 4.0, 1.14),
    (1 << 12, 16.0, 4.6),
    (1 << 14, 64.0, 18.3),
    (1 << 16, 256.0, 73.3),
    (1 << 18, 1024.0, 293.5),
];
const MB: f64 = 1_048_576.0;
/// The table has three digits; its numbers are rounded or cut off.
const ROUNDING: f64 = 0.01;

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let mut points = Vec::new();
    for (peers, static_mb, dynamic_mb) in TABLE {
        let Some(row) = evidence.memory.iter().find(|row| row.peers == peers) else {
            points.push(Point::open(
                format!("{} peers", count(peers.into())),
                format!("{static_mb} / {dynamic_mb} MB"),
            ));
            continue;
        };
        let (by_static, by_dynamic) =
            (row.published_static_bytes as f64 / MB, row.published_dynamic_bytes as f64 / MB);
        let near = |ours: f64, published: f64| (ours / published - 1.0).abs() <= ROUNDING;
        points.push(Point::new(
            format!("{} peers: formula 7.2 gives Table 7.1 (static / dynamic)", count(peers.into())),
            format!("{static_mb} / {dynamic_mb} MB"),
            format!("{by_static:.1} / {by_dynamic:.2} MB"),
            near(by_static, static_mb) && near(by_dynamic, dynamic_mb),
        ));
        let idle = row.idle_heap_bytes.max(0) as u64 + row.idle_mailbox_bytes;
        let active = row.active_heap_bytes.max(0) as u64 + row.active_mailbox_bytes;
        points.push(Point::beside(
            format!("{} peers: weir's endpoint, measured (nobody active / 64 active)", count(peers.into())),
            format!("{} / {}", bytes(idle), bytes(active)),
        ));
    }
    points
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let mut chart = Chart::new("Memory of a receiver (Table 7.1)", "peers", "MiB").logarithmic();
    let curve = |value: &dyn Fn(&weir_bench::memory::Row) -> f64| {
        Curve(evidence.memory.iter().map(|row| (f64::from(row.peers), value(row) / MB)).collect())
    };
    chart.published("static, published", TABLE.map(|(peers, mb, _)| (f64::from(peers), mb)).to_vec());
    chart.published("dynamic, published", TABLE.map(|(peers, _, mb)| (f64::from(peers), mb)).to_vec());
    chart.curve(
        "weir, measured, 64 active",
        curve(&|row| row.active_heap_bytes as f64 + row.active_mailbox_bytes as f64),
    );
    chart.curve(
        "weir, measured, nobody active",
        curve(&|row| row.idle_heap_bytes as f64 + row.idle_mailbox_bytes as f64),
    );
    vec![chart]
}
