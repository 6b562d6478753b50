//! Shows the published memory per receiver (experiment E1.10) beside the measured memory of weir's endpoint, as rows
//! and a figure. `weir bench memory` measures it; no world is simulated. The published numbers of static and dynamic
//! credits follow from a formula, so the rows have no verdict. Source: Prades, thesis, 7.5.

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

/// Number of processes, and two columns of Table 7.1. Unit: MB (of 2^20 bytes).
const TABLE: [(u32, f64, f64); 5] = [
    (1 << 10, 4.0, 1.14),
    (1 << 12, 16.0, 4.6),
    (1 << 14, 64.0, 18.3),
    (1 << 16, 256.0, 73.3),
    (1 << 18, 1024.0, 293.5),
];
const MB: f64 = 1_048_576.0;

/// Rows without verdict: the table follows from a formula, which no world could miss.
fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let row_of = |peers: u32| evidence.memory.iter().find(move |row| row.peers == peers);
    let rows = TABLE.into_iter().filter_map(|(peers, static_mb, dynamic_mb)| {
        let row = row_of(peers)?;
        let idle = row.idle_heap_bytes.max(0) as u64 + row.idle_mailbox_bytes;
        let active = row.active_heap_bytes.max(0) as u64 + row.active_mailbox_bytes;
        Some(Point::beside_published(
            format!("{} peers: weir's endpoint, measured (nobody active / 64 active)", count(peers.into())),
            format!("{static_mb} MB static, {dynamic_mb} MB dynamic"),
            format!("{} / {}", bytes(idle), bytes(active)),
        ))
    });
    rows.collect()
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
