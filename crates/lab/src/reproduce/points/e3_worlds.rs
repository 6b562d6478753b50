//! What the experiments at the node (E3.1 to E3.10) have in common: their networks, the throughput of windows, and rows with tails
//! and fairness. Source: Luo et al., ICS 2012.

use super::Point;
use crate::reproduce::evidence::Evidence;
use weir_sim::plan::{Record, Settings};

/// Networks, by the names of their files, with the ranks of a host.
pub(super) const QDR: (&str, f64) = ("manycore", 32.0);
pub(super) const GEMINI: (&str, f64) = ("gemini", 48.0);

/// The name of a network in rows and charts.
pub(super) fn name(network: &str) -> &'static str {
    if network == QDR.0 { "InfiniBand" } else { "Gemini" }
}

pub(super) fn is_on(it: &Settings, network: &str) -> bool {
    it.network.split(' ').next() == Some(network)
}

/// A number of the workload; 0: it has none of this name.
pub(super) fn number(it: &Settings, name: &str) -> f64 {
    it.workload_number(name).unwrap_or(0.0)
}

/// Time of a window at the slowest rank. The mean over ranks would count those that others have let go first. Unit: ns.
pub(super) fn window_ns(record: &Record) -> f64 {
    record.measures.get("call_ns").map_or(record.time_ns, |measure| measure.max)
}

/// Messages that leave a host in a microsecond.
pub(super) fn throughput(record: &Record) -> Option<f64> {
    let it = &record.settings;
    Some(1000.0 * number(it, "active_ranks") * number(it, "window_messages") / window_ns(record))
}

/// All values of a parameter of the windows on a network, in order.
pub(super) fn values(evidence: &Evidence<'_>, network: &str, name: &str) -> Vec<f64> {
    let of_network = evidence.records.iter().filter(|record| is_on(&record.settings, network));
    let mut values: Vec<f64> =
        of_network.filter_map(|record| record.settings.workload_number(name)).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

/// The latency of messages (50th and 99th percentile), and the fairness among ranks.
pub(super) fn spread_words(record: &Record) -> Option<String> {
    let [middle_us, late_us] = [record.latency_p50_ns, record.latency_p99_ns].map(|ns| ns as f64 / 1000.0);
    Some(format!("{middle_us:.1} and {late_us:.1} us, {:.3}", fairness(record)?))
}

/// A row without verdict: the throughput, tails and fairness of a world of windows.
pub(super) fn spread_row(world: &str, record: &Record) -> Option<Point> {
    let text = format!(
        "{world}: throughput, latency of messages (50th, 99th percentile), Jain's index of the ranks' times"
    );
    Some(Point::beside(text, format!("{:.2}/us, {}", throughput(record)?, spread_words(record)?)))
}

/// Jain's index of the times of ranks: 1 if all are equal.
fn fairness(record: &Record) -> Option<f64> {
    let mean = |name: &str| record.measures.get(name).map(|measure| measure.mean);
    Some(mean("call_ns")?.powi(2) / mean("call_ns_squared")?)
}

/// A row without verdict for the world with the smallest messages, so many active ranks, this window, and what `which` asks for.
/// `words` follows in its text. With few active ranks most messages would be those of barriers.
pub(super) fn smallest_row(
    evidence: &Evidence<'_>,
    network: &str,
    active: f64,
    window: f64,
    which: impl Fn(&Settings) -> bool,
    words: &str,
) -> Option<Point> {
    let bytes = values(evidence, network, "message_bytes").first().copied()?;
    let is = |it: &Settings| {
        is_on(it, network)
            && number(it, "message_bytes") == bytes
            && number(it, "active_ranks") == active
            && number(it, "window_messages") == window
            && which(it)
    };
    let record = evidence.records.iter().find(|record| is(&record.settings))?;
    let world = format!("{}, {bytes} B, {active} active ranks, windows of {window}{words}", name(network));
    spread_row(&world, record)
}
