//! Checks the published statements ("points") about experiment E4.7 against our simulation records, and draws its
//! figures: a queue lock over remote atomics, for which nodes contend. Source: Buntinas, sections 5.3 and 5.4.2.

use super::e4::{NIC, near, ratio, us_by_ranks, word};
use super::{Experiment, OWN_SCHEMES, Point};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence};
use weir_sim::plan::SchemeName;

pub const EXPERIMENT: Experiment = Experiment {
    id: "E4.7",
    title: "Programmable NIC: queue lock",
    source: "Buntinas, section 5.4.2, Fig 5.7",
    plans: &["e4.7"],
    points,
    figures,
};

/// Who changes words for others: executor, whether it sleeps, its name, and the most that the NIC gains as published.
const SERVERS: [(&str, bool, &str, f64); 2] = [
    ("sleeps", true, "servers that sleep (one processor)", 2.6),
    ("polls", false, "servers that poll (several processors)", 2.1),
];

/// The rule "relatively constant": grows by at most this. Unit: percent.
const CONSTANT: f64 = 25.0;

/// Time of one acquire and release over the number of nodes that contend. Unit: us.
fn times(evidence: &Evidence<'_>, scheme: SchemeName, on_nic: bool, sleeps: bool) -> Curve {
    let by_ranks = us_by_ranks(evidence, |it| {
        let wakes = it.workload_number("wake_ns").unwrap_or(0.0) > 0.0;
        it.scheme == scheme && (word(it, "executor") == NIC) == on_nic && wakes == sleeps
    });
    Curve(by_ranks.0.into_iter().map(|(ranks, us)| (ranks - 1.0, us)).collect()) // rank 0 is the home
}

fn of_nic(evidence: &Evidence<'_>) -> Curve {
    times(evidence, SchemeName::Unlimited, true, false)
}

fn of_servers(evidence: &Evidence<'_>, sleeps: bool) -> Curve {
    times(evidence, SchemeName::Unlimited, false, sleeps)
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let nic = of_nic(evidence);
    let mut points = Vec::new();
    let mut least: Option<f64> = None;
    for (id, sleeps, name, published) in SERVERS {
        let gains = ratio(&of_servers(evidence, sleeps), &nic);
        let most = gains.0.iter().map(|point| point.1).reduce(f64::max);
        points.push(near(
            id,
            &format!("{name} / NIC, the most of all numbers of nodes"),
            published,
            most,
            "",
        ));
        least = gains.0.iter().map(|point| point.1).chain(least).reduce(f64::min);
    }
    points.push(Point::of(
        "better",
        "the NIC outperforms both kinds of servers with every number of nodes",
        "always",
        least.map(|least| (format!("at least {least:.2} x"), least > 1.0)),
    ));
    let growth =
        |curve: &Curve| curve.at(7.0).zip(curve.at(2.0)).map(|(seven, two)| 100.0 * (seven / two - 1.0));
    points.push(Point::of(
        "constant",
        format!("NIC, from 2 to 7 nodes: the time grows by at most {CONSTANT} %"),
        "relatively constant",
        growth(&nic).map(|percent| (format!("{percent:+.1} %"), percent <= CONSTANT)),
    ));
    let polls = of_servers(evidence, false);
    let more = polls.at(3.0).zip(polls.at(2.0)).map(|(three, two)| 100.0 * (three / two - 1.0));
    points.push(Point::of(
        "grows",
        "servers that poll, from 2 to 3 nodes: the time grows",
        "increases immediately",
        more.map(|percent| (format!("{percent:+.1} %"), percent > 0.0)),
    ));
    for (scheme, name) in OWN_SCHEMES {
        let [host, nic] = [false, true].map(|on_nic| times(evidence, scheme, on_nic, false));
        if let Some((nodes, factor)) = ratio(&host, &nic).0.last() {
            let text = format!("{nodes} nodes with {name}: servers that poll / NIC");
            points.push(Point::beside(text, format!("{factor:.2}")));
        }
    }
    points
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let mut chart = Chart::new("One acquire and release", "nodes that contend", "us");
    let mut gains = Chart::new("Time with servers / time with NIC", "nodes that contend", "");
    let nic = of_nic(evidence);
    for (_, sleeps, name, _) in SERVERS {
        let curve = of_servers(evidence, sleeps);
        gains.curve(name, ratio(&curve, &nic));
        chart.curve(name, curve);
    }
    chart.curve("NIC", nic);
    chart.mark(Mark::Words { text: "published: NIC relatively constant from 2 to 7 nodes" });
    gains.mark(Mark::Words { text: "published: up to 2.6 (sleep) and 2.1 (poll)" });
    vec![chart, gains]
}
