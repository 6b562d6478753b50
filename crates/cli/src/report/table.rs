//! The report of `weir run` as a table for a terminal: counters of each rank, and of all together. With several nodes,
//! a line says how many ranks a node has.

use super::{Job, Share, operations};
use comfy_table::Cell;
use weir_engine::{NetworkReport, stalls};
use weir_output::quantity::{bytes, count, exact_bytes, time_ns};
use weir_output::table;

/// Heading and content of a column.
type Column = (&'static str, fn(&Share) -> String);

const COLUMNS: [Column; 13] = [
    ("messages\nsent", |share| count(share.counters.messages_sent)),
    ("bytes\nsent", |share| bytes(share.counters.bytes_sent)),
    ("messages\nreceived", |share| count(share.counters.messages_received)),
    ("bytes\nreceived", |share| bytes(share.counters.bytes_received)),
    ("packets\nsent", |share| count(share.counters.packets_sent)),
    ("credit\npackets", |share| count(share.counters.credit_packets_sent)),
    ("credits\npiggyb.", |share| count(share.counters.piggybacked_credits_sent)),
    ("waited for\ncredit", |share| time_ns(share.counters.stalled_ns as f64)),
    ("unexpected\nmessages", |share| count(share.counters.peak_unexpected_messages)),
    ("unexpected\nbytes", |share| bytes(share.counters.peak_unexpected_bytes)),
    ("mailbox\nat the end", |share| bytes(share.mailbox_bytes)),
    ("mailbox\npeak", |share| bytes(share.peak_mailbox_bytes)),
    ("peer\nstate", |share| bytes(share.peer_state_bytes)),
];

/// One row for each rank, then the totals. Unexpected messages are peaks: the last row has their maximum.
pub fn render(job: &Job) -> String {
    let mut table = table::plain();
    let headings = COLUMNS.iter().map(|(heading, _)| table::right(*heading));
    table.set_header(std::iter::once(Cell::new("rank")).chain(headings));
    let row = |name: String, share: &Share| {
        let cells = COLUMNS.iter().map(|(_, content)| table::right(content(share)));
        std::iter::once(Cell::new(name)).chain(cells).collect::<Vec<_>>()
    };
    for rank in &job.ranks {
        table.add_row(row(
            format!("{}{}", rank.short_name(), if rank.closed { "" } else { " !" }),
            &rank.share,
        ));
    }
    table.add_row(row(String::from("all"), &job.total));
    for column in table.column_iter_mut() {
        column.set_padding((1, 0));
    }
    format!(
        "{}{}{}\nunexpected: peak of the rank (all: maximum over the ranks). waited: time in which a message waited for \
         credit, summed\nover peers. bytes: payload of messages. packets: all kinds, credit packets included.",
        table::text(&table),
        nodes(job),
        groups(job) + &loans(job) + &job.total.network.as_ref().map_or_else(String::new, network)
    )
}

/// Lines about collective operations that groups have done.
fn groups(job: &Job) -> String {
    let line = |operations, how: &str| match operations {
        0 => String::new(),
        _ => format!("\ncollective operations: the ranks did {} of them {how}.", count(operations)),
    };
    line(job.total.group_operations, "in shared memory, without messages")
        + &line(job.total.operations_across, "across hosts, with messages of one rank of each host")
        + &operations::text(&job.total.operations)
        + &operations::skew_lines(job.skews()).iter().map(|line| format!("\n{line}.")).collect::<String>()
}

/// A line about what the ranks have lent, with credits on demand.
fn loans(job: &Job) -> String {
    let Some(lending) = &job.total.lending else { return String::new() };
    format!(
        "\nloans: {} slots lent on demand, {} prefetched, {} given back on request. Senders waited {} times for free \
         slots,\nwith {} more turns.",
        count(lending.lent_slots),
        count(lending.prefetched_slots),
        count(job.total.counters.credits_given_back),
        count(lending.demands_queued),
        count(lending.queue_turns),
    )
}

/// `, round trips 12.0 us to 80.0 us`. Empty, if none was measured.
pub fn round_trips(report: &NetworkReport) -> String {
    match report.greatest_round_trip_ns {
        0 => String::new(),
        greatest => format!(
            ", round trips {} to {}",
            time_ns(report.least_round_trip_ns as f64),
            time_ns(greatest as f64)
        ),
    }
}

/// Lines about what the links over networks did, and about admission.
fn network(report: &NetworkReport) -> String {
    let lines = network_lines(report).into_iter().chain(admission_lines(report));
    lines.map(|line| format!("\n{line}")).collect()
}

/// What the links over networks did, in two lines.
pub fn network_lines(report: &NetworkReport) -> [String; 2] {
    let round_trip = round_trips(report);
    let narrow = match report.narrow_paths {
        0 => String::new(),
        paths => format!(" {} pass only small datagrams.", count(paths)),
    };
    let connected = match report.connected_datagrams_sent {
        0 => String::new(),
        datagrams => format!(", {} through a connected socket", count(datagrams)),
    };
    let drops: Vec<String> = drops_by_reason(report)
        .iter()
        .filter(|(drops, _)| *drops > 0)
        .map(|(drops, reason)| format!("{} {reason}", count(*drops)))
        .collect();
    [
        format!(
            "network: {} paths at the end{round_trip}.{narrow} {} datagrams ({}) left, {} without packets{connected}; {} \
             arrived.",
            count(report.open_paths),
            count(report.datagrams_sent),
            bytes(report.bytes_sent),
            count(report.bare_datagrams_sent),
            count(report.datagrams_received),
        ),
        format!(
            "{} bundles were sent again ({} needlessly), {} timeouts, {} marked. dropped: {}.",
            count(report.sent_again),
            count(report.sent_needlessly),
            count(report.timeouts),
            count(report.marked),
            if drops.is_empty() { String::from("none") } else { drops.join(", ") },
        ) + &copies(report),
    ]
}

/// Datagrams that were dropped, by reason.
pub fn drops_by_reason(report: &NetworkReport) -> [(u64, &'static str); 6] {
    [
        (report.dropped_repeated, "repeated"),
        (report.dropped_stale, "stale"),
        (report.dropped_malformed, "malformed"),
        (report.dropped_foreign, "foreign"),
        (report.dropped_forged, "forged"),
        (report.dropped_in_kernel, "in the kernel"),
    ]
}

/// What has passed between hosts without packets.
fn copies(report: &NetworkReport) -> String {
    match report.copies {
        0 => String::new(),
        copies => format!(
            " {} messages and remote accesses ({}) passed without packets.",
            count(copies),
            bytes(report.copied_bytes)
        ),
    }
}

/// The tokens of admission that were in force last, if any were, and for which messages.
pub fn tokens(report: &NetworkReport) -> Option<String> {
    let tokens = stalls::plural(report.gate_tokens, "token");
    match (report.gate_tokens, report.gate_step_ranks) {
        (0, _) => None,
        (_, 0) => Some(tokens),
        (_, ranks) => Some(format!(
            "{tokens} for messages from {} on with {} or more",
            exact_bytes(report.gate_step_bytes),
            stalls::plural(ranks, "active rank")
        )),
    }
}

/// A line about the gate of admission and one about its proxy, as far as there are any.
pub fn admission_lines(report: &NetworkReport) -> Vec<String> {
    let gate = (report.gate_waits > 0 || report.gate_most_held > 0).then(|| {
        let held = match report.gate_most_held {
            0 => String::new(), // a delay counts nothing
            most => {
                format!("; the sum of the most datagrams that each rank had under way is {}", count(most))
            }
        };
        format!(
            "admission: {}packets waited {} times, {} in all{held}.",
            tokens(report).map_or_else(String::new, |tokens| tokens + "; "),
            count(report.gate_waits),
            time_ns(report.gate_waited_ns as f64),
        )
    });
    let proxy = (report.proxy_queued > 0).then(|| {
        format!(
            "proxy: {} datagrams went through queues, {} of them ({:.0} %) were sent by another rank; {} times a queue was full.",
            count(report.proxy_queued),
            count(report.proxy_sent_for_others),
            100.0 * report.proxy_sent_for_others as f64 / report.proxy_queued as f64,
            count(report.proxy_without_room)
        )
    });
    gate.into_iter().chain(proxy).collect()
}

/// A line about the ranks of the nodes, if there is more than one node.
fn nodes(job: &Job) -> String {
    let of_nodes = || job.ranks.iter().map(|rank| rank.ranks_of_node).filter(|&ranks| ranks > 0);
    let in_all = job.ranks.iter().map(|rank| rank.ranks_of_job).max().unwrap_or(0);
    match (of_nodes().min(), of_nodes().max()) {
        (Some(least), Some(most)) if least < in_all => {
            let each = if least == most { count(most.into()) } else { format!("{least} to {most}") };
            format!("\nranks: {} in the job, {each} on a node.", count(in_all.into()))
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::endpoint;
    use super::*;
    use weir_engine::job::Ranks;
    use weir_engine::loans::Lending;
    use weir_engine::operation_times::{Executor, OperationClass, OperationKind, OperationSums};
    use weir_engine::stats::{EndpointReport, Reports};

    #[test]
    fn ranks_of_nodes_are_named_if_they_are_not_all_ranks() {
        let line = |nodes: [u32; 2], job| {
            let ranks = nodes.map(|node| Ranks { node, job });
            let endpoints =
                [0, 1].map(|rank| EndpointReport { ranks: ranks[rank], ..endpoint(rank as u64, true, 1, 1) });
            nodes_line(&render(&Job::new(&Reports { endpoints: endpoints.into(), skipped: vec![] })))
        };
        fn nodes_line(text: &str) -> Option<String> {
            text.lines().find(|line| line.starts_with("ranks: ")).map(str::to_owned)
        }
        assert_eq!(line([2, 2], 2), None);
        assert_eq!(line([0, 0], 0), None);
        assert_eq!(line([2, 2], 4).unwrap(), "ranks: 4 in the job, 2 on a node.");
        assert_eq!(line([1, 3], 4).unwrap(), "ranks: 4 in the job, 1 to 3 on a node.");
    }

    #[test]
    fn loans_have_a_line_if_there_are_any() {
        let lending = Lending {
            region_slots: 64,
            lent_slots: 1234,
            prefetched_slots: 7,
            demands_queued: 5,
            queue_turns: 2,
            ..Lending::default()
        };
        let lender = EndpointReport { lending: Some(lending), ..endpoint(0, true, 1, 1) };
        let endpoints = vec![lender, endpoint(1, true, 1, 1)];
        let text = render(&Job::new(&Reports { endpoints, skipped: vec![] }));
        let line = "\nloans: 1,234 slots lent on demand, 7 prefetched, 0 given back on request. Senders waited 5 times for \
                    free slots,\nwith 2 more turns.";
        assert!(text.contains(line), "{text}");
        let others = Reports { endpoints: vec![endpoint(1, true, 1, 1)], skipped: vec![] };
        assert!(!render(&Job::new(&others)).contains("loans:"));
    }

    #[test]
    fn collective_operations_without_messages_have_a_line_if_there_are_any() {
        let done = |executor, count| {
            let class = OperationClass { kind: OperationKind::Barrier, executor, is_blocking: true };
            vec![(class, OperationSums { count, ..OperationSums::default() })]
        };
        let of = |count: u64| {
            let operations = if count > 0 { done(Executor::Node, count) } else { vec![] };
            EndpointReport { operations, ..endpoint(1, true, 1, 1) }
        };
        let render =
            |operations| render(&Job::new(&Reports { endpoints: vec![of(operations)], skipped: vec![] }));
        let line = "\ncollective operations: the ranks did 4,321 of them in shared memory, without messages.";
        assert!(render(4321).contains(line), "{}", render(4321));
        assert!(render(4321).contains("barrier") && !render(0).contains("collective operations"));
        assert!(!render(0).contains("longest"), "no table without operations");
        let across = EndpointReport { operations: done(Executor::Hosts, 77), ..of(0) };
        let text = super::render(&Job::new(&Reports { endpoints: vec![across], skipped: vec![] }));
        let line = "\ncollective operations: the ranks did 77 of them across hosts, with messages of one rank of each host.";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn the_network_has_lines_if_there_is_one() {
        let network = NetworkReport {
            open_paths: 3,
            least_round_trip_ns: 12_000,
            greatest_round_trip_ns: 80_000,
            datagrams_sent: 4321,
            bare_datagrams_sent: 21,
            connected_datagrams_sent: 3000,
            bytes_sent: 2048,
            datagrams_received: 4300,
            sent_again: 9,
            sent_needlessly: 2,
            timeouts: 1,
            dropped_repeated: 2,
            dropped_forged: 5,
            ..NetworkReport::default()
        };
        let end = EndpointReport { network: Some(network), ..endpoint(0, true, 1, 1) };
        let text =
            render(&Job::new(&Reports { endpoints: vec![end, endpoint(1, true, 1, 1)], skipped: vec![] }));
        let lines = "\nnetwork: 3 paths at the end, round trips 12.0 us to 80.0 us. 4,321 datagrams (2.00 KiB) left, 21 without \
                     packets, 3,000 through a connected socket; 4,300 arrived.\n9 bundles were sent again (2 needlessly), 1 timeouts, 0 marked. dropped: 2 \
                     repeated, 5 forged.";
        assert!(text.contains(lines) && !text.contains("admission:"), "{text}");
        let copied = NetworkReport { copies: 12, copied_bytes: 1 << 20, ..network };
        let end = EndpointReport { network: Some(copied), ..endpoint(0, true, 1, 1) };
        let text = render(&Job::new(&Reports { endpoints: vec![end], skipped: vec![] }));
        let line = " 5 forged. 12 messages and remote accesses (1.00 MiB) passed without packets.";
        assert!(text.contains(line), "{text}");
        let gate = NetworkReport { gate_waits: 1200, gate_waited_ns: 80_000, gate_most_held: 64, ..network };
        let end = EndpointReport { network: Some(gate), ..endpoint(0, true, 1, 1) };
        let text = render(&Job::new(&Reports { endpoints: vec![end], skipped: vec![] }));
        let line = "\nadmission: packets waited 1,200 times, 80.0 us in all; the sum of the most datagrams that each rank had \
                    under way is 64.";
        assert!(text.contains(line), "{text}");
        let rate = NetworkReport { gate_most_held: 0, ..gate };
        assert_eq!(admission_lines(&rate), ["admission: packets waited 1,200 times, 80.0 us in all."]);
        let step = NetworkReport { gate_tokens: 24, gate_step_bytes: 65536, gate_step_ranks: 4, ..gate };
        let end = EndpointReport { network: Some(step), ..endpoint(0, true, 1, 1) };
        let text = render(&Job::new(&Reports { endpoints: vec![end], skipped: vec![] }));
        let line = "\nadmission: 24 tokens for messages from 64 KiB on with 4 active ranks or more; packets waited 1,200 times";
        assert!(text.contains(line), "{text}");
        assert_eq!(tokens(&NetworkReport { gate_step_ranks: 0, ..step }).as_deref(), Some("24 tokens"));
        let proxy = NetworkReport {
            proxy_queued: 4000,
            proxy_sent_for_others: 3000,
            proxy_without_room: 2,
            ..network
        };
        let end = EndpointReport { network: Some(proxy), ..endpoint(0, true, 1, 1) };
        let text = render(&Job::new(&Reports { endpoints: vec![end], skipped: vec![] }));
        let line = "\nproxy: 4,000 datagrams went through queues, 3,000 of them (75 %) were sent by another rank; 2 times a \
                    queue was full.";
        assert!(text.contains(line), "{text}");
        let inside = Reports { endpoints: vec![endpoint(1, true, 1, 1)], skipped: vec![] };
        assert!(!render(&Job::new(&inside)).contains("network:"));
    }

    #[test]
    fn the_table_lists_ranks_and_their_sum() {
        let reports = Reports {
            endpoints: vec![endpoint(0, true, 1000, 3), endpoint(1, false, 7, 1)],
            skipped: vec![],
        };
        let text = render(&Job::new(&reports));
        let fields = |start: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(start)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(fields("0 "), "0 1,000 7.81 KiB 0 0 B 1,001 0 0 1.50 ms 3 24 B 16.5 KiB 33.0 KiB 300 B");
        assert!(fields("1 ").starts_with("1 ! 7 56 B"), "{text}");
        assert_eq!(
            fields("all "),
            "all 1,007 7.87 KiB 0 0 B 1,009 0 0 3.00 ms 3 24 B 33.0 KiB 66.0 KiB 600 B"
        );
    }
}
