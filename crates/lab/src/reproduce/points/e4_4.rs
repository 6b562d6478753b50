//! Checks the published statements ("points") about experiment E4.4 against our simulation records, and draws its
//! figures: computation and a barrier through MPI, again and again. How much computation does an efficiency need, how
//! much do times of arrival matter that vary, and how much do synthetic applications gain? Source: Buntinas, sections
//! 3.5.4 to 3.5.6.

use super::e4::{
    EXECUTORS, FAST, HOST, NETWORKS, NIC, SLOW, difference, is_published, near, network, ratio, word,
};
use super::{Experiment, OWN_SCHEMES, Point};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence};
use weir_sim::plan::{SchemeName, Settings};

pub const EXPERIMENT: Experiment = Experiment {
    id: "E4.4",
    title: "Programmable NIC: computation between barriers",
    source: "Buntinas, sections 3.5.4 to 3.5.6, Figs 3.10 to 3.14",
    plans: &["e4.4"],
    points,
    figures,
};

/// Network, efficiency, and the computing time that it needs with barriers of the host and of the NIC. Unit: us.
const EFFICIENCIES: [(&str, &str, f64, f64, f64); 4] = [
    (SLOW, "33 MHz, 16 nodes", 0.50, 366.40, 204.76),
    (SLOW, "33 MHz, 16 nodes", 0.90, 1831.98, 1023.82),
    (FAST, "66 MHz, 8 nodes", 0.50, 179.18, 120.62),
    (FAST, "66 MHz, 8 nodes", 0.90, 895.91, 603.11),
];
/// Network, steps of the application, and the published factor.
const APPLICATIONS: [(&str, &str, f64, f64); 4] = [
    (SLOW, "33 MHz, 16 nodes, 360 us in 8 steps", 8.0, 1.86),
    (SLOW, "33 MHz, 16 nodes, 2,100 us in 20 steps", 20.0, 1.87),
    (FAST, "66 MHz, 8 nodes, 360 us in 8 steps", 8.0, 1.92),
    (FAST, "66 MHz, 8 nodes, 2,100 us in 20 steps", 20.0, 1.93),
];
const SPREADS: [f64; 3] = [5.0, 10.0, 20.0];

fn number(it: &Settings, key: &str, default: f64) -> f64 {
    it.workload_number(key).unwrap_or(default)
}

fn steps(it: &Settings) -> f64 {
    number(it, "steps", 1.0)
}

fn spread(it: &Settings) -> f64 {
    number(it, "compute_spread_percent", 0.0)
}

/// Time of a call over the mean computing time, with one step and this spread. Unit: us.
fn loops(evidence: &Evidence<'_>, of_network: &str, executor: &str, percent: f64) -> Curve {
    evidence.curve(
        |it| {
            let is_loop = steps(it) == 1.0 && spread(it) == percent;
            is_published(it) && is_loop && network(it) == of_network && word(it, "executor") == executor
        },
        |it| it.workload_number("compute_ns").map(|ns| ns / 1e3),
        |record| Some(record.time_ns / 1e3),
    )
}

/// Time of an application over the number of its steps. Unit: us.
fn applications(evidence: &Evidence<'_>, scheme: SchemeName, of_network: &str, executor: &str) -> Curve {
    evidence.curve(
        |it| {
            let is_application = it.scheme == scheme && steps(it) > 1.0;
            is_application && network(it) == of_network && word(it, "executor") == executor
        },
        |it| Some(steps(it)),
        |record| Some(record.time_ns / 1e3),
    )
}

/// The least computing time at which it is this share of the whole time. Between the values that ran, the whole time is
/// on a line.
fn needed_us(loops: &Curve, efficiency: f64) -> Option<f64> {
    let above = loops.0.iter().position(|(compute, whole)| compute / whole >= efficiency)?;
    let ((x0, y0), (x1, y1)) = (*loops.0.get(above.checked_sub(1)?)?, loops.0[above]);
    let slope = (y1 - y0) / (x1 - x0);
    Some(efficiency * (y0 - slope * x0) / (1.0 - efficiency * slope))
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let mut points = Vec::new();
    for (of_network, place, efficiency, host, nic) in EFFICIENCIES {
        let name = if of_network == SLOW { "slow" } else { "fast" };
        let needed = |executor| needed_us(&loops(evidence, of_network, executor, 0.0), efficiency);
        for (executor, who, published) in [(HOST, "host", host), (NIC, "NIC", nic)] {
            points.push(near(
                &format!("{name}.{efficiency}.{executor}"),
                &format!("{place}, {who}: computation for an efficiency of {efficiency:.2}"),
                published,
                needed(executor),
                " us",
            ));
        }
        points.push(near(
            &format!("{name}.{efficiency}.ratio"),
            &format!("{place}: computation for an efficiency of {efficiency:.2}, host / NIC"),
            host / nic,
            needed(HOST).zip(needed(NIC)).map(|(host, nic)| host / nic),
            "",
        ));
    }
    points.push(shrinks(evidence));
    points.push(always_better(evidence));
    for (of_network, text, steps, published) in APPLICATIONS {
        let time = |executor| applications(evidence, SchemeName::Unlimited, of_network, executor).at(steps);
        let factor = time(HOST).zip(time(NIC)).map(|(host, nic)| host / nic);
        let name = if of_network == SLOW { "slow" } else { "fast" };
        let text = format!("{text}: host time / NIC time");
        points.push(near(&format!("application.{name}.{steps}"), &text, published, factor, ""));
    }
    for (scheme, name) in OWN_SCHEMES {
        let [host, nic] = [HOST, NIC].map(|executor| applications(evidence, scheme, SLOW, executor));
        if let Some((_, factor)) = ratio(&host, &nic).0.last() {
            let text = format!("33 MHz, 16 nodes, 2,100 us in 20 steps with {name}: host time / NIC time");
            points.push(Point::beside(text, format!("{factor:.2}")));
        }
    }
    points
}

/// What the host-based loop takes more than that of the NIC, at the longest computation that ran.
fn gain_us(evidence: &Evidence<'_>, percent: f64) -> Option<f64> {
    let [host, nic] = [HOST, NIC].map(|executor| loops(evidence, SLOW, executor, percent));
    let (compute, host) = host.0.iter().rfind(|point| point.0 <= 4096.0)?;
    Some(host - nic.at(*compute)?)
}

fn shrinks(evidence: &Evidence<'_>) -> Point {
    let gains: Option<Vec<f64>> = SPREADS.iter().map(|percent| gain_us(evidence, *percent)).collect();
    Point::of(
        "arrival.shrinks",
        "33 MHz, 16 nodes, 4,096 us of computation: what the NIC gains shrinks as the spread grows (5, 10, 20 %)",
        "shrinks",
        gains.map(|gains| {
            let words: Vec<String> = gains.iter().map(|us| format!("{us:.1}")).collect();
            (format!("{} us", words.join(", ")), gains.is_sorted_by(|one, other| one > other))
        }),
    )
}

fn always_better(evidence: &Evidence<'_>) -> Point {
    let mut least: Option<f64> = None;
    for percent in SPREADS {
        let [host, nic] = [HOST, NIC].map(|executor| loops(evidence, SLOW, executor, percent));
        for (_, factor) in ratio(&host, &nic).0 {
            least = Some(least.map_or(factor, |least| least.min(factor)));
        }
    }
    Point::of(
        "arrival.better",
        "33 MHz, 16 nodes, all computing times and spreads: the NIC always performs better",
        "always",
        least.map(|least| (format!("at least {:.1} % less time", difference(least, 1.0)), least > 1.0)),
    )
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let mut chart = Chart::new("Time of a loop of computation and barrier", "us of computation", "us");
    for (name, speed) in NETWORKS {
        for (executor, who) in EXECUTORS {
            chart.curve(format!("{who}, {speed}"), loops(evidence, name, executor, 0.0));
        }
    }
    chart.mark(Mark::Words {
        text: "published: efficiency 0.90 from 1,831.98 (host) and 1,023.82 us (NIC) on, 33 MHz",
    });
    let mut arrivals = Chart::new("Host time less NIC time, 16 nodes, 33 MHz", "us of computation", "us");
    for percent in SPREADS {
        let [host, nic] = [HOST, NIC].map(|executor| loops(evidence, SLOW, executor, percent));
        let gains = host.0.iter().filter_map(|&(x, host)| Some((x, host - nic.at(x)?)));
        arrivals.curve(format!("+-{percent} %"), Curve(gains.collect()));
    }
    arrivals.mark(Mark::Words { text: "published: falls as the variation grows" });
    vec![chart, arrivals]
}
