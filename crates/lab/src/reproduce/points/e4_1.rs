//! Checks the published statements ("points") about experiment E4.1 against our simulation records, and draws its
//! figure: a message to several ranks by a multi-send of the NIC, and by a loop of sends. Source: Buntinas, sections 2.1
//! and 2.5.

use super::e4::{EXECUTORS, HOST, NIC, fitted, is_published, near, ratio, word};
use super::{Experiment, OWN_SCHEMES, Point};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence};
use weir_sim::plan::Settings;

pub const EXPERIMENT: Experiment = Experiment {
    id: "E4.1",
    title: "Programmable NIC: multi-send",
    source: "Buntinas, sections 2.1 and 2.5, Fig 2.5",
    plans: &["e4.1"],
    points,
    figures,
};

/// The longest message, and the largest number of destinations. Unit: bytes.
const LONG: f64 = 16_384.0;
const MOST: u32 = 15;
/// Messages below this were published to be slightly slower. Unit: bytes.
const SHORT: f64 = 32.0;

/// Whether the processor writes to the NIC with write combining.
fn combines_writes(it: &Settings) -> bool {
    it.network_value("send_ns_per_kib").is_some_and(|ns| ns < 20_000.0)
}

/// Latency of the last destination over the length. Unit: us.
fn by_bytes(evidence: &Evidence<'_>, which: impl Fn(&Settings) -> bool, executor: &str, to: u32) -> Curve {
    evidence.curve(
        |it| which(it) && it.ranks == to + 1 && word(it, "executor") == executor,
        |it| it.workload_number("message_bytes"),
        |record| Some(record.time_ns / 1e3),
    )
}

fn plain(it: &Settings) -> bool {
    is_published(it) && !combines_writes(it)
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let [host, nic] = [HOST, NIC].map(|executor| by_bytes(evidence, plain, executor, 6).at(1536.0));
    let combining = |it: &Settings| is_published(it) && combines_writes(it);
    let [host_wc, nic_wc] = [HOST, NIC].map(|executor| by_bytes(evidence, combining, executor, 6).at(1536.0));
    let fits = [
        fitted("1,536 B to six, NIC", 153.2089, nic, " us"),
        fitted("1,536 B to six, host", 333.7294, host, " us"),
        fitted("1,536 B to six, with write combining, NIC", 123.2569, nic_wc, " us"),
        fitted("1,536 B to six, with write combining, host", 154.0174, host_wc, " us"),
    ];
    let mut points: Vec<Point> = fits.into_iter().flatten().collect();
    let factors = |to| {
        let [host, nic] = [HOST, NIC].map(|executor| by_bytes(evidence, plain, executor, to));
        ratio(&host, &nic)
    };
    let most = factors(MOST);
    points.push(near("factor", "16 KB to 15: host time / NIC time", 3.51, most.at(LONG), ""));
    let largest = most.0.iter().map(|point| point.1).reduce(f64::max);
    points.push(Point::of(
        "largest",
        "to 15: the factor is largest for the longest message",
        "up to 3.51, at 16 KB",
        most.at(LONG)
            .zip(largest)
            .map(|(long, largest)| (format!("{long:.2}, largest {largest:.2}"), long >= largest)),
    ));
    let short = || most.0.iter().filter(|(bytes, _)| *bytes < SHORT).map(|point| point.1);
    points.push(Point::of(
        "short",
        "to 15, below 32 B: the NIC is slower, by at most 20 %",
        "slightly worse",
        short().next().map(|_| {
            let words: Vec<String> = short().map(|factor| format!("{factor:.2}")).collect();
            (words.join(", "), short().all(|factor| (0.8..1.0).contains(&factor)))
        }),
    ));
    let long = || most.0.iter().filter(|(bytes, _)| *bytes > SHORT).map(|point| point.1);
    points.push(Point::of(
        "longer",
        "to 15, above 32 B: the NIC is faster",
        "faster",
        long().reduce(f64::min).map(|least| (format!("factor at least {least:.2}"), least > 1.0)),
    ));
    let at_long: Vec<(f64, f64)> =
        [1, 3, 7, MOST].iter().filter_map(|to| Some((f64::from(*to), factors(*to).at(LONG)?))).collect();
    points.push(Point::of(
        "destinations",
        "16 KB: the factor grows from 1 destination to 3, 7 and 15",
        "grows",
        (at_long.len() == 4).then(|| {
            let words: Vec<String> = at_long.iter().map(|point| format!("{:.2}", point.1)).collect();
            (words.join(", "), at_long.is_sorted_by(|one, other| one.1 < other.1))
        }),
    ));
    for ((scheme, name), bytes) in
        OWN_SCHEMES.into_iter().flat_map(|scheme| [8.0, LONG].map(|bytes| (scheme, bytes)))
    {
        let time = |executor| by_bytes(evidence, |it| it.scheme == scheme, executor, MOST).at(bytes);
        if let (Some(host), Some(nic)) = (time(HOST), time(NIC)) {
            points.push(Point::beside(
                format!("{bytes} B to 15 with {name}"),
                format!("{host:.2} us host, {nic:.2} us NIC"),
            ));
        }
    }
    points
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let mut chart = Chart::new("A message to 15 others", "bytes", "us");
    for (executor, who) in EXECUTORS {
        chart.curve(who, by_bytes(evidence, plain, executor, MOST));
    }
    chart.mark(Mark::Words { text: "published: up to 3.51 times less" });
    vec![chart]
}
