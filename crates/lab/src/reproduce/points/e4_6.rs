//! Checks the published statements ("points") about experiment E4.6 against our simulation records, and draws its
//! figure: compare&swap on a word of another node. Source: Buntinas, section 5.4.1.

use super::e4::{HOST, NIC, fitted, word};
use super::{Experiment, OWN_SCHEMES, Point};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence};
use weir_sim::plan::SchemeName;

pub const EXPERIMENT: Experiment = Experiment {
    id: "E4.6",
    title: "Programmable NIC: remote atomics",
    source: "Buntinas, section 5.4.1, Fig 5.6",
    plans: &["e4.6"],
    points,
    figures,
};

/// Who changes the word: executor, and whether the server sleeps.
const WAYS: [(&str, bool, &str); 3] =
    [(NIC, false, "NIC"), (HOST, false, "server that polls"), (HOST, true, "server that sleeps")];

/// Time of a compare&swap. Unit: us.
fn time(evidence: &Evidence<'_>, scheme: SchemeName, executor: &str, sleeps: bool) -> Option<f64> {
    let record = evidence.records.iter().find(|record| {
        let it = &record.settings;
        let wakes = it.workload_number("wake_ns").unwrap_or(0.0) > 0.0;
        it.scheme == scheme && word(it, "executor") == executor && wakes == sleeps
    });
    record.map(|record| record.time_ns / 1e3)
}

fn published_ways(evidence: &Evidence<'_>) -> [Option<f64>; 3] {
    WAYS.map(|(executor, sleeps, _)| time(evidence, SchemeName::Unlimited, executor, sleeps))
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let [nic, polls, sleeps] = published_ways(evidence);
    let factor = |host: Option<f64>| host.zip(nic).map(|(host, nic)| host / nic);
    let fits = [
        fitted("compare&swap that succeeds, NIC", 15.9, nic, " us"),
        fitted("the same, server that polls", 19.8, polls, " us"),
        fitted("the same, server that sleeps", 29.2, sleeps, " us"),
        fitted("server that polls / NIC", 1.25, factor(polls), ""),
        fitted("server that sleeps / NIC", 1.84, factor(sleeps), ""),
    ];
    let mut points: Vec<Point> = fits.into_iter().flatten().collect();
    points.push(Point::of(
        "order",
        "the NIC is faster than a server that polls, which is faster than one that sleeps",
        "in this order",
        nic.zip(polls).zip(sleeps).map(|((nic, polls), sleeps)| {
            (format!("{nic:.2}, {polls:.2}, {sleeps:.2} us"), nic < polls && polls < sleeps)
        }),
    ));
    for (scheme, name) in OWN_SCHEMES {
        let [host, nic] = [HOST, NIC].map(|executor| time(evidence, scheme, executor, false));
        if let (Some(host), Some(nic)) = (host, nic) {
            points.push(Point::beside(
                format!("compare&swap with {name}"),
                format!("{host:.2} us server that polls, {nic:.2} us NIC"),
            ));
        }
    }
    points
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let names = WAYS.map(|(_, _, name)| name.to_owned());
    let mut chart = Chart::new("compare&swap on a word of another node", "", "us").categories(names);
    let ours = (0..).zip(published_ways(evidence)).filter_map(|(x, us)| Some((f64::from(x), us?)));
    chart.curve("ours", Curve(ours.collect()));
    chart.mark(Mark::Words { text: "published: 15.9, 19.8, 29.2 us" });
    vec![chart]
}
