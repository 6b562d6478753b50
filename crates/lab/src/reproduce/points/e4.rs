//! What the experiments on a programmable NIC (E4) share: their networks, how records of an executor are found, and the
//! rules "within 10 %" and "faster". Source of all published numbers: Buntinas, "Improving cluster performance through
//! the use of programmable network interfaces", 2003.

use super::Point;
use crate::reproduce::evidence::{Curve, Evidence};
use weir_sim::plan::{SchemeName, Settings};

/// The rule for a published time or ratio: ours differs by at most this. Unit: percent.
pub const NEAR: f64 = 10.0;

/// The network file of an experiment, with the speed of the processor of its NICs.
pub const NETWORKS: [(&str, &str); 2] = [("lanai-4", "33 MHz"), ("lanai-7", "66 MHz")];
pub const SLOW: &str = NETWORKS[0].0;
pub const FAST: &str = NETWORKS[1].0;

/// Who carries out an operation, by the names in plans and on pages.
pub const EXECUTORS: [(&str, &str); 2] = [("messages", "host"), ("nic", "NIC")];
pub const HOST: &str = EXECUTORS[0].0;
pub const NIC: &str = EXECUTORS[1].0;

/// The name of the network file, without replaced keys.
pub fn network(it: &Settings) -> &str {
    it.network.split(' ').next().unwrap_or("")
}

/// Whether the ranks call MPI, which adds its own prices to those of GM.
pub fn is_mpi(it: &Settings) -> bool {
    it.network_value("receive_call_ns").is_some_and(|ns| ns > 0.0)
}

/// A word of the workload; empty if it has no such key.
pub fn word<'a>(it: &'a Settings, key: &str) -> &'a str {
    it.workload[it.workload_name()][key].as_str().unwrap_or("")
}

/// The worlds as published, without flow control.
pub fn is_published(it: &Settings) -> bool {
    it.scheme == SchemeName::Unlimited
}

/// Time over the number of ranks, the least where several worlds have the same number (degrees of a tree). Unit: us.
pub fn us_by_ranks(evidence: &Evidence<'_>, which: impl Fn(&Settings) -> bool) -> Curve {
    let mut curve: Vec<(f64, f64)> = Vec::new();
    let records = evidence.records.iter().filter(|record| which(&record.settings));
    for record in records {
        let (ranks, us) = (f64::from(record.settings.ranks), record.time_ns / 1e3);
        match curve.iter_mut().find(|point| point.0 == ranks) {
            Some(point) => point.1 = point.1.min(us),
            None => curve.push((ranks, us)),
        }
    }
    curve.sort_by(|one, other| one.0.total_cmp(&other.0));
    Curve(curve)
}

/// `first` divided by `second`, where both have a point.
pub fn ratio(first: &Curve, second: &Curve) -> Curve {
    let points = first.0.iter().filter_map(|&(x, y)| Some((x, y / second.at(x)?)));
    Curve(points.collect())
}

/// How many percent `ours` is above `published`.
pub fn difference(ours: f64, published: f64) -> f64 {
    100.0 * (ours / published - 1.0)
}

/// A published number, and ours if it differs by at most [`NEAR`]. `unit` follows both numbers.
pub fn near(id: &str, text: &str, published: f64, ours: Option<f64>, unit: &str) -> Point {
    let found = ours.map(|ours| {
        let percent = difference(ours, published);
        (format!("{ours:.2}{unit} ({percent:+.1} %)"), percent.abs() <= NEAR)
    });
    Point::of(id, format!("{text} (within {NEAR} %)"), format!("{published:.2}{unit}"), found)
}

/// A published number to which the model is fitted, beside ours. It has no verdict.
pub fn fitted(text: &str, published: f64, ours: Option<f64>, unit: &str) -> Option<Point> {
    let published = format!("{published:.2}{unit}");
    let text = format!("{text}; the model is fitted to it");
    ours.map(|ours| Point::beside_published(text, published, format!("{ours:.2}{unit}")))
}
