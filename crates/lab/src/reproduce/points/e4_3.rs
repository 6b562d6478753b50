//! Checks the published statements ("points") about experiment E4.3 against our simulation records, and draws its
//! figures: consecutive barriers, host-based and on the NIC, by pairwise exchange (PE) and by gather and broadcast
//! (GB). Source: Buntinas, sections 3.5.1 to 3.5.3.

use super::e4::{
    EXECUTORS, FAST, HOST, NETWORKS, NIC, SLOW, fitted, is_mpi, is_published, near, network, ratio,
    us_by_ranks, word,
};
use super::{Experiment, OWN_SCHEMES, Point};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence};
use weir_sim::plan::Settings;

pub const EXPERIMENT: Experiment = Experiment {
    id: "E4.3",
    title: "Programmable NIC: barrier",
    source: "Buntinas, sections 3.5.1 to 3.5.3, Figs 3.6 to 3.9",
    plans: &["e4.3"],
    points,
    figures,
};

const PE: &str = "pairwise_exchange";
const GB: &str = "gather_broadcast";

/// Latency over nodes of one kind of barrier, over GM.
fn gm(evidence: &Evidence<'_>, of_network: &str, executor: &str, algorithm: &str) -> Curve {
    us_by_ranks(evidence, |it| {
        is_published(it) && !is_mpi(it) && is(it, of_network, executor) && word(it, "algorithm") == algorithm
    })
}

/// The same through MPI, by pairwise exchange.
fn mpi(evidence: &Evidence<'_>, of_network: &str, executor: &str) -> Curve {
    us_by_ranks(evidence, |it| is_published(it) && is_mpi(it) && is(it, of_network, executor))
}

fn is(it: &Settings, of_network: &str, executor: &str) -> bool {
    network(it) == of_network && word(it, "executor") == executor
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let [host_pe, nic_pe] = [HOST, NIC].map(|executor| gm(evidence, SLOW, executor, PE));
    let [host_gb, nic_gb] = [HOST, NIC].map(|executor| gm(evidence, SLOW, executor, GB));
    let [fast_host, fast_nic] = [HOST, NIC].map(|executor| gm(evidence, FAST, executor, PE));
    let (factor, gb_factor) = (ratio(&host_pe, &nic_pe), ratio(&host_gb, &nic_gb));
    let fast_factor = ratio(&fast_host, &fast_nic);
    let [host_mpi, nic_mpi] = [HOST, NIC].map(|executor| mpi(evidence, SLOW, executor));
    let [fast_host_mpi, fast_nic_mpi] = [HOST, NIC].map(|executor| mpi(evidence, FAST, executor));
    let fast_mpi_factor = ratio(&fast_host_mpi, &fast_nic_mpi);
    let fits = [
        fitted("33 MHz, 16 nodes, NIC PE", 102.14, nic_pe.at(16.0), " us"),
        fitted("33 MHz, 16 nodes, PE: host time / NIC time", 1.78, factor.at(16.0), ""),
        fitted("33 MHz, 8 nodes, PE: host time / NIC time", 1.66, factor.at(8.0), ""),
        fitted("33 MHz, 16 nodes, NIC GB", 152.27, nic_gb.at(16.0), " us"),
        fitted("66 MHz, 8 nodes, NIC PE", 49.25, fast_nic.at(8.0), " us"),
        fitted("33 MHz, 16 nodes, through MPI, host", 216.70, host_mpi.at(16.0), " us"),
        fitted("33 MHz, 16 nodes, through MPI, NIC", 105.37, nic_mpi.at(16.0), " us"),
    ];
    let mut points: Vec<Point> = fits.into_iter().flatten().collect();
    points.extend([
        near("gb-factor", "33 MHz, 16 nodes, GB: host time / NIC time", 1.46, gb_factor.at(16.0), ""),
        order(16.0, [&nic_pe, &nic_gb, &host_pe, &host_gb]),
        two_nodes(&host_gb, &nic_gb),
        near("fast.host", "66 MHz, 8 nodes, host PE", 90.24, fast_host.at(8.0), " us"),
        near("fast.factor", "66 MHz, 8 nodes, PE: host time / NIC time", 1.83, fast_factor.at(8.0), ""),
        Point::of(
            "faster-nic",
            "8 nodes, PE: the faster NIC gains more over its host",
            "1.83 at 66 MHz, 1.66 at 33 MHz",
            fast_factor
                .at(8.0)
                .zip(factor.at(8.0))
                .map(|(fast, slow)| (format!("{fast:.2} at 66 MHz, {slow:.2} at 33 MHz"), fast > slow)),
        ),
        near("mpi.fast.host", "66 MHz, 8 nodes, through MPI, host", 102.86, fast_host_mpi.at(8.0), " us"),
        near("mpi.fast.nic", "66 MHz, 8 nodes, through MPI, NIC", 46.41, fast_nic_mpi.at(8.0), " us"),
        near(
            "mpi.fast.factor",
            "66 MHz, 8 nodes, through MPI: host / NIC",
            2.22,
            fast_mpi_factor.at(8.0),
            "",
        ),
        grows("mpi.slow.grows", "33 MHz", &ratio(&host_mpi, &nic_mpi)),
        grows("mpi.fast.grows", "66 MHz", &fast_mpi_factor),
        Point::of(
            "seven-nodes",
            "33 MHz, through MPI, NIC: 7 nodes take longer than 8, for the two further steps",
            "longer",
            nic_mpi.at(7.0).zip(nic_mpi.at(8.0)).map(|(seven, eight)| {
                (format!("{seven:.2} us with 7 nodes, {eight:.2} us with 8"), seven > eight)
            }),
        ),
    ]);
    for (scheme, name) in OWN_SCHEMES {
        let time =
            |executor| us_by_ranks(evidence, |it| it.scheme == scheme && is(it, SLOW, executor)).at(16.0);
        if let (Some(host), Some(nic)) = (time(HOST), time(NIC)) {
            let ours = format!("{host:.2} us host, {nic:.2} us NIC");
            points.push(Point::beside(format!("33 MHz, 16 nodes, PE with {name}"), ours));
        }
    }
    points
}

/// The order of the four barriers, fastest first.
fn order(ranks: f64, curves: [&Curve; 4]) -> Point {
    let times: Option<Vec<f64>> = curves.iter().map(|curve| curve.at(ranks)).collect();
    Point::of(
        "order",
        "33 MHz, 16 nodes: NIC PE is fastest, then NIC GB, host PE, host GB",
        "in this order",
        times.map(|times| {
            let words: Vec<String> = times.iter().map(|us| format!("{us:.2}")).collect();
            (format!("{} us", words.join(", ")), times.is_sorted_by(|one, other| one < other))
        }),
    )
}

fn two_nodes(host: &Curve, nic: &Curve) -> Point {
    Point::of(
        "two-nodes",
        "33 MHz, 2 nodes, GB: the NIC is slower than the host",
        "slower",
        host.at(2.0)
            .zip(nic.at(2.0))
            .map(|(host, nic)| (format!("{nic:.2} us NIC, {host:.2} us host"), nic > host)),
    )
}

/// The factor grows from 2 nodes to 4, 8, 16.
fn grows(id: &str, speed: &str, factor: &Curve) -> Point {
    let powers: Vec<f64> = [2.0, 4.0, 8.0, 16.0].iter().filter_map(|nodes| factor.at(*nodes)).collect();
    let found = (powers.len() >= 3).then(|| {
        let words: Vec<String> = powers.iter().map(|factor| format!("{factor:.2}")).collect();
        (words.join(", "), powers.is_sorted_by(|one, other| one < other))
    });
    let text = format!("{speed}, through MPI: the factor grows with each doubling of the nodes");
    Point::of(id, text, "grows", found)
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let mut charts = Vec::new();
    for (name, speed) in NETWORKS {
        let mut chart = Chart::new(format!("Barrier over GM, {speed}"), "nodes", "us");
        for (executor, who) in EXECUTORS {
            for (algorithm, short) in [(PE, "PE"), (GB, "GB, best degree")] {
                chart.curve(format!("{who} {short}"), gm(evidence, name, executor, algorithm));
            }
        }
        match name {
            SLOW => chart.published("published: NIC PE, NIC GB", vec![(16.0, 102.14), (16.0, 152.27)]),
            _ => chart.published("published: NIC PE, host PE", vec![(8.0, 49.25), (8.0, 90.24)]),
        }
        charts.push(chart);
    }
    let mut chart = Chart::new("Barrier through MPI: host time / NIC time", "nodes", "factor");
    for (name, speed) in NETWORKS {
        let [host, nic] = [HOST, NIC].map(|executor| mpi(evidence, name, executor));
        chart.curve(speed, ratio(&host, &nic));
    }
    chart.mark(Mark::Words { text: "published: 2.09 (16 nodes, 33 MHz), 2.22 (8 nodes, 66 MHz)" });
    charts.push(chart);
    charts
}
