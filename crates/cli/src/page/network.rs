//! The sections about links over networks and about admission. Jobs without such links have neither.

use super::timeline::{Pair, Timeline};
use super::{HALF, MAX_LISTED, WIDE, legend, pair_map, rank_names, rank_table};
use crate::report::{Job, Rank, admission_lines, drops_by_reason, network_lines};
use weir_engine::NetworkReport;
use weir_output::figures;
use weir_output::markup::Html;
use weir_output::quantity::{bytes, count, time_ns};

const NS_PER_US: f64 = 1e3;
const NS_PER_MS: f64 = 1e6;

/// The parts of a rank's bar, from below.
type Parts = fn(&NetworkReport) -> Vec<f64>;

pub(super) fn section(html: &mut Html, timeline: &Timeline, job: &Job) {
    let Some(total) = &job.total.network else { return };
    html.heading(2, "Network");
    for line in network_lines(total) {
        html.paragraph(&line);
    }
    html.begin_row();
    let round_trips: Parts = |network| {
        let least = network.least_round_trip_ns.min(network.greatest_round_trip_ns);
        [least, network.greatest_round_trip_ns - least].map(|ns| ns as f64 / NS_PER_US).to_vec()
    };
    bars(
        html,
        job,
        "Smoothed round trips of the paths of each rank at the end, in us.",
        "us",
        &["the shortest path", "from there to the longest path"],
        round_trips,
    );
    let sent_again: Parts = |network| {
        let needlessly = network.sent_needlessly.min(network.sent_again);
        vec![(network.sent_again - needlessly) as f64, needlessly as f64]
    };
    bars(
        html,
        job,
        "Bundles of packets that each rank sent again.",
        "bundles",
        &["lost, as far as is known", "sent again needlessly"],
        sent_again,
    );
    let drops: Parts = |network| drops_by_reason(network).map(|(datagrams, _)| datagrams as f64).to_vec();
    let reasons = drops_by_reason(total).map(|(_, reason)| reason);
    bars(html, job, "Datagrams that each rank dropped, by reason.", "datagrams", &reasons, drops);
    html.end_block();
    paths(html, timeline);
    let row = |rank: &Rank, network: &NetworkReport| {
        let round_trips = match (network.least_round_trip_ns, network.greatest_round_trip_ns) {
            (_, 0) => String::from("unknown"),
            (least, greatest) => format!("{} .. {}", time_ns(least as f64), time_ns(greatest as f64)),
        };
        vec![
            rank.short_name(),
            count(network.open_paths),
            round_trips,
            count(network.datagrams_sent),
            bytes(network.bytes_sent),
            count(network.datagrams_received),
            count(network.sent_again),
            count(network.sent_needlessly),
            count(network.timeouts),
            count(network.marked),
            count(network.dropped()),
        ]
    };
    let heading = [
        "rank",
        "paths",
        "round trips",
        "datagrams sent",
        "bytes sent",
        "datagrams arrived",
        "sent again",
        "needlessly",
        "timeouts",
        "marked",
        "dropped",
    ];
    rank_table(html, &heading, rows(job, row));
    admission(html, job, total);
}

/// Round trips and bundles sent again of each path, and a table of the longest ones.
fn paths(html: &mut Html, timeline: &Timeline) {
    let us = |us: f64| time_ns(us * NS_PER_US);
    pair_map(
        html,
        timeline,
        "Smoothed round trip of each path, by sender (row) and receiver (column)",
        "The last value. White: no path over a network, or nothing was measured.",
        |pair| pair.round_trip_us.into(),
        us,
    );
    pair_map(
        html,
        timeline,
        "Bundles that each sender (row) sent again to each receiver (column)",
        "White: none.",
        |pair| pair.sent_again as f64,
        |bundles| count(bundles as u64),
    );
    let mut paths: Vec<&Pair> = timeline.pairs.iter().filter(|pair| pair.round_trip_us > 0).collect();
    paths.sort_by_key(|pair| std::cmp::Reverse((pair.round_trip_us, pair.sent_again)));
    if paths.is_empty() {
        return;
    }
    let name = |endpoint: usize| timeline.endpoints[endpoint].name.clone();
    let rows = paths.iter().take(MAX_LISTED).map(|pair| {
        vec![
            name(pair.from),
            name(pair.to),
            us(pair.round_trip_us.into()),
            count(pair.sent_again),
            count(pair.slots),
        ]
    });
    html.table(&["sender", "receiver", "round trip", "sent again", "slots sent"], rows);
    if paths.len() > MAX_LISTED {
        let all = count(paths.len() as u64);
        html.note(&format!("The {MAX_LISTED} paths with the longest round trips, of {all}."));
    }
}

fn admission(html: &mut Html, job: &Job, total: &NetworkReport) {
    let lines = admission_lines(total);
    if lines.is_empty() {
        return;
    }
    html.heading(2, "Admission");
    for line in lines {
        html.paragraph(&line);
    }
    html.begin_row();
    let waits: Parts = |network| vec![network.gate_waited_ns as f64 / NS_PER_MS];
    bars(html, job, "Time that packets of each rank waited for admission, in ms.", "ms", &[], waits);
    let served: Parts = |network| vec![network.proxy_sent_for_others as f64];
    bars(html, job, "Datagrams that each rank sent for others.", "datagrams", &[], served);
    html.end_block();
    let row = |rank: &Rank, network: &NetworkReport| {
        let served = network.proxy_sent_for_others;
        vec![
            rank.short_name(),
            count(network.gate_tokens),
            count(network.gate_waits),
            time_ns(network.gate_waited_ns as f64),
            count(network.gate_most_held),
            count(network.proxy_queued),
            count(served),
            format!("{:.0} %", 100.0 * served as f64 / total.proxy_queued.max(1) as f64),
            count(network.proxy_without_room),
        ]
    };
    let heading = [
        "rank",
        "tokens",
        "waits",
        "waited",
        "most under way",
        "queued",
        "sent for others",
        "share of all queued",
        "queue full",
    ];
    rank_table(html, &heading, rows(job, row));
}

/// A row for each rank that has links over networks.
fn rows(job: &Job, row: impl Fn(&Rank, &NetworkReport) -> Vec<String>) -> Vec<Vec<String>> {
    job.ranks.iter().filter_map(|rank| Some(row(rank, rank.share.network.as_ref()?))).collect()
}

/// A bar for each rank, with a legend if it has parts. Nothing, if all are 0.
fn bars(html: &mut Html, job: &Job, caption: &str, unit: &str, names: &[&str], parts: Parts) {
    let parts: Vec<Vec<f64>> =
        job.ranks.iter().map(|rank| parts(&rank.share.network.unwrap_or_default())).collect();
    if figures::max_value(parts.iter().map(Vec::as_slice)) == 0.0 {
        return;
    }
    let size = if job.ranks.len() > super::MAX_LINES { WIDE } else { HALF };
    html.begin_column();
    html.figure(caption, &figures::bars(size, &rank_names(job), ("rank", unit), &parts));
    if !names.is_empty() {
        legend(html, names.iter().map(|name| String::from(*name)));
    }
    html.end_block();
}
