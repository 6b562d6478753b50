//! `weir explain`: lists the senders that wait for credit or for a link now, and names the receivers that cause the waits.
//!
//! The command reads the counter files of running endpoints (`FI_WEIR_STATS`; `weir run` creates a directory for them).
//! It sends nothing to the ranks, so it works while they are stuck. An endpoint updates its file every 200 ms while the
//! program is inside the library. An older file usually means that the program is outside, which often explains the
//! stall.

use crate::hosts::look::counters_elsewhere;
use crate::report::{lending_by_name, network_by_name, operations, round_trips, tokens};
use crate::run::STATS;
use clap::Args;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use weir_engine::NetworkReport;
use weir_engine::loans::{Lending, Loan};
use weir_engine::stalls::{self, Stall};
use weir_engine::stats::{self, EndpointReport};
use weir_mpi::scratch;
use weir_output::Failure;
use weir_output::write::write_json;

/// Version of the JSON. It changes when readers have to change.
const SCHEMA: &str = "weir-explain-1";

/// Options of `weir explain`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit status:
  0      no send has waited for SECONDS
  1      a failure of the system
  2      a wrong option
  3      at least one send has waited for SECONDS; a stall is not necessarily a problem

Example:
  weir explain --after 5")]
pub struct ExplainArguments {
    /// Directory of the job's counters (its FI_WEIR_STATS) [default: all running jobs of `weir run`].
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Report sends that have waited for at least SECONDS.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    after: f64,
    /// Write the result as JSON to FILE. Without FILE: to standard output, instead of the text.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

#[derive(Debug, Serialize)]
struct Record {
    schema: &'static str,
    jobs: Vec<Explanation>,
}

/// The stalls of one job and their causes.
#[derive(Debug, Serialize)]
struct Explanation {
    directory: PathBuf,
    endpoints: Vec<EndpointStatus>,
    stalls: Vec<StallEntry>,
    /// What receivers can lend of which senders wait for slots, one line each.
    lending: Vec<String>,
    /// What links over networks do, one line for each running endpoint that has any.
    network: Vec<String>,
    /// The receivers that cause the stalls, one line each.
    causes: Vec<String>,
    /// Operations in which ranks wait mostly for late ones, one line each.
    skew: Vec<String>,
}

/// State of one endpoint.
#[derive(Debug, Serialize)]
struct EndpointStatus {
    name: String,
    pid: u64,
    /// Whether its process runs and has not closed it.
    lives: bool,
    /// Time since it last polled.
    last_poll_s: f64,
    backlog: u64,
    unexpected_messages: u64,
    unexpected_bytes: u64,
    mailbox_bytes: u64,
    stalled_peers: u64,
    /// What it lends, with credits on demand.
    #[serde(serialize_with = "lending_by_name")]
    lending: Option<Lending>,
    /// What its links over networks have done, if it has any.
    #[serde(serialize_with = "network_by_name")]
    network: Option<NetworkReport>,
    /// What its senders have and want: those that wait first, in the order of their turns.
    loans: Vec<LoanStatus>,
}

/// What one sender has and wants. Unit: slots.
#[derive(Debug, Serialize)]
struct LoanStatus {
    sender: String,
    demand: u64,
    held: u64,
    idle: u64,
    window: u64,
    /// Senders that get a turn before it, at most; `None`: it does not wait for free slots.
    ahead: Option<u64>,
}

/// One sender that waits for one receiver.
#[derive(Debug, Serialize)]
struct StallEntry {
    sender: String,
    receiver: String,
    waited_s: f64,
    /// `credit`, or `link`: see [`stalls::Awaited`].
    waits_for: &'static str,
    credits: u64,
    quota_slots: Option<u64>,
    granted_total: Option<u64>,
    spent_total: Option<u64>,
    backlog_messages: u64,
    backlog_bytes: u64,
    /// The receiver's counters for this sender.
    receiver_retrieved: Option<u64>,
    receiver_threshold: Option<u64>,
    /// What it has and wants there, as far as the receiver knows, with credits on demand.
    receiver_loan: Option<LoanStatus>,
    receiver_last_poll_s: Option<f64>,
    text: String,
}

/// Explains all stalls. Returns the exit status.
///
/// # Errors
/// [`Failure`]: a directory cannot be read, or the JSON not written.
pub fn run(arguments: &ExplainArguments) -> Result<u8, Failure> {
    let directories = match &arguments.directory {
        Some(directory) => vec![directory.clone()],
        None => {
            scratch::running().into_iter().map(|run| run.join(STATS)).filter(|stats| stats.is_dir()).collect()
        }
    };
    let mut jobs = Vec::new();
    for directory in directories {
        let cannot_read = format!("cannot read the counters in the directory {}", directory.display());
        let mut pages = stats::read_dir(&directory).map_err(Failure::system(cannot_read))?;
        // The directory of the run says on which other hosts there are counters.
        let mut elsewhere = directory.parent().map(counters_elsewhere).unwrap_or_default();
        elsewhere.add_to(&mut pages);
        for remark in &elsewhere.remarks {
            eprintln!("weir: {remark}");
        }
        let lives = |page: &EndpointReport| match page.host {
            Some(_) => elsewhere.living.contains(&page.identity),
            None => runs_here(page),
        };
        let after_ns = (arguments.after * 1e9) as u64;
        jobs.push(explain(&directory, &pages.endpoints, lives, after_ns, stats::now_ns()));
    }
    let waits = jobs.iter().any(|job| !job.stalls.is_empty());
    let to_screen = arguments.json.as_deref() != Some("-");
    if to_screen {
        print!("{}", text(&jobs, arguments.after));
    }
    if let Some(target) = &arguments.json {
        write_json(&Record { schema: SCHEMA, jobs }, target)?;
    }
    Ok(if waits { 3 } else { 0 })
}

fn text(jobs: &[Explanation], after_s: f64) -> String {
    if jobs.is_empty() {
        return String::from(
            "no job of `weir run` is running on this host; for another job, give its directory FI_WEIR_STATS\n",
        );
    }
    let mut text = String::new();
    for job in jobs {
        let living = job.endpoints.iter().filter(|endpoint| endpoint.lives).count();
        text += &format!("{}: {living} of {} endpoints open\n", job.directory.display(), job.endpoints.len());
        if job.stalls.is_empty() {
            text += &format!("  no send has waited for credit or a link for {after_s} s\n");
        }
        for line in job
            .stalls
            .iter()
            .map(|stall| &stall.text)
            .chain(&job.lending)
            .chain(&job.network)
            .chain(&job.causes)
            .chain(&job.skew)
        {
            text += &format!("  {line}\n");
        }
    }
    text
}

fn name(page: &EndpointReport) -> String {
    page.rank.map_or_else(|| format!("process {}", page.pid), |rank| format!("rank {rank}"))
}

fn seconds(now_ns: u64, then_ns: u64) -> f64 {
    (now_ns.saturating_sub(then_ns) / 1_000_000) as f64 / 1e3
}

/// Whether an endpoint of this host is open and its process runs.
fn runs_here(page: &EndpointReport) -> bool {
    !page.closed && Path::new(&format!("/proc/{}", page.pid)).exists()
}

fn explain(
    directory: &Path,
    pages: &[EndpointReport],
    lives: impl Fn(&EndpointReport) -> bool,
    after_ns: u64,
    now_ns: u64,
) -> Explanation {
    let by_identity: BTreeMap<u64, &EndpointReport> =
        pages.iter().map(|page| (page.identity, page)).collect();
    let lasts = |stall: &Stall| now_ns.saturating_sub(stall.since_ns) >= after_ns;
    let mut stalls = Vec::new();
    // Endpoints are numbered in the order of ranks. Endpoints without a file come last.
    let mut order: Vec<u64> = pages.iter().map(|page| page.identity).collect();
    let mut place = |identity: u64| {
        order.iter().position(|known| *known == identity).unwrap_or_else(|| {
            order.push(identity);
            order.len() - 1
        })
    };
    let mut waits: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for page in pages.iter().filter(|page| lives(page)) {
        for stall in page.stalls.iter().filter(|stall| lasts(stall)) {
            waits.entry(place(page.identity)).or_default().insert(place(stall.to));
            stalls.push(waiting(page, stall, by_identity.get(&stall.to).copied(), now_ns));
        }
    }
    stalls.sort_by(|one, other| {
        other.waited_s.total_cmp(&one.waited_s).then_with(|| one.sender.cmp(&other.sender))
    });
    let endpoints = pages
        .iter()
        .map(|page| EndpointStatus {
            name: name(page),
            pid: page.pid,
            lives: lives(page),
            last_poll_s: seconds(now_ns, page.polled_ns),
            backlog: page.backlog,
            unexpected_messages: page.unexpected_messages,
            unexpected_bytes: page.unexpected_bytes,
            mailbox_bytes: page.mailbox_bytes,
            stalled_peers: page.stalled_peers,
            lending: page.lending,
            network: page.network,
            loans: page
                .loans
                .iter()
                .map(|loan| loan_status(loan, name_of(loan.from, &by_identity)))
                .collect(),
        })
        .collect();
    let lending = pages.iter().filter(|page| lives(page)).filter_map(|page| lending_line(page, &by_identity));
    let names =
        |place: usize| pages.get(place).map_or_else(|| format!("endpoint {:016x}", order[place]), name);
    Explanation {
        directory: directory.to_owned(),
        endpoints,
        stalls,
        lending: lending.collect(),
        network: pages.iter().filter(|page| lives(page)).filter_map(network_line).collect(),
        causes: causes(&waits, names),
        skew: operations::skew_lines(pages.iter().map(|page| (name(page), &page.operations))),
    }
}

/// The name of an endpoint, also if it has no file.
fn name_of(identity: u64, pages: &BTreeMap<u64, &EndpointReport>) -> String {
    pages.get(&identity).map_or_else(|| format!("endpoint {identity:016x}"), |page| name(page))
}

fn loan_status(loan: &Loan, sender: String) -> LoanStatus {
    let &Loan { demand, held, idle, window, ahead, .. } = loan;
    LoanStatus { sender, demand, held, idle, window, ahead }
}

/// One line about a receiver at which senders wait for free slots: what it has lent, and its queue.
fn lending_line(page: &EndpointReport, pages: &BTreeMap<u64, &EndpointReport>) -> Option<String> {
    const MAX_NAMED: usize = 6;
    let lending = page.lending.filter(|lending| lending.waiting_senders > 0)?;
    let queue: Vec<String> = page
        .loans
        .iter()
        .filter(|loan| loan.ahead.is_some())
        .take(MAX_NAMED)
        .map(|loan| format!("{} ({})", name_of(loan.from, pages), stalls::plural(loan.demand, "slot")))
        .collect();
    let more = lending.waiting_senders.saturating_sub(queue.len() as u64);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let idle: u64 = page.loans.iter().map(|loan| loan.idle).sum();
    Some(format!(
        "{} lends {}: {} free, {idle} idle at senders; queue: {}{more}",
        name(page),
        stalls::plural(lending.region_slots, "slot"),
        lending.free_slots,
        queue.join(", "),
    ))
}

/// One line about an endpoint with links over networks.
fn network_line(page: &EndpointReport) -> Option<String> {
    let network = page.network?;
    let admission = match network.gate_most_held.max(network.gate_waits) {
        0 => String::new(),
        _ => {
            let waits = stalls::plural(network.gate_waits, "wait");
            tokens(&network)
                .map_or(format!("; {waits} for admission"), |tokens| format!("; {waits} for {tokens}"))
        }
    };
    let proxy = match network.proxy_queued {
        0 => String::new(),
        queued => format!(
            "; {} through its queue, {} sent for other ranks",
            stalls::plural(queued, "datagram"),
            network.proxy_sent_for_others
        ),
    };
    Some(format!(
        "{} has {} over the network{}; {} sent again, {}, {} dropped{admission}{proxy}",
        name(page),
        stalls::plural(network.open_paths, "path"),
        round_trips(&network),
        stalls::plural(network.sent_again, "bundle"),
        stalls::plural(network.timeouts, "timeout"),
        stalls::plural(network.dropped(), "datagram"),
    ))
}

fn waiting(
    sender: &EndpointReport,
    stall: &Stall,
    receiver: Option<&EndpointReport>,
    now_ns: u64,
) -> StallEntry {
    let (from, to) = (name(sender), receiver.map_or_else(|| format!("endpoint {:016x}", stall.to), name));
    let holding =
        receiver.and_then(|page| page.held_credits.iter().find(|holding| holding.from == sender.identity));
    StallEntry {
        text: stalls::stall_line(&from, sender.identity, &to, stall, receiver, now_ns),
        sender: from,
        receiver: to,
        waited_s: seconds(now_ns, stall.since_ns),
        waits_for: stall.awaits.word(),
        credits: stall.credits,
        quota_slots: stall.quota_slots,
        granted_total: stall.granted_total,
        spent_total: stall.spent_total,
        backlog_messages: stall.backlog,
        backlog_bytes: stall.backlog_bytes,
        receiver_retrieved: holding.map(|holding| holding.retrieved),
        receiver_threshold: holding.and_then(|holding| holding.threshold),
        receiver_loan: receiver
            .and_then(|page| page.loans.iter().find(|loan| loan.from == sender.identity))
            .map(|loan| loan_status(loan, name(sender))),
        receiver_last_poll_s: receiver.map(|page| seconds(now_ns, page.polled_ns)),
    }
}

/// The causes of stalls. A cause is a receiver that waits for nobody itself, and the line names all senders whose chains of
/// waits end there. Senders whose chains end nowhere wait for each other in a cycle.
fn causes(waits: &BTreeMap<usize, BTreeSet<usize>>, name: impl Fn(usize) -> String) -> Vec<String> {
    let roots: BTreeSet<usize> =
        waits.values().flatten().copied().filter(|receiver| !waits.contains_key(receiver)).collect();
    let mut lines = Vec::new();
    let mut explained = BTreeSet::new();
    for root in roots {
        let mut behind = BTreeSet::from([root]);
        loop {
            let more: Vec<usize> = waits
                .iter()
                .filter(|(sender, receivers)| !behind.contains(sender) && !receivers.is_disjoint(&behind))
                .map(|(&sender, _)| sender)
                .collect();
            if more.is_empty() {
                break;
            }
            behind.extend(more);
        }
        behind.remove(&root);
        lines.push(format!(
            "cause: {} for {}, which waits for no credit",
            subject(&behind, &name),
            name(root)
        ));
        explained.extend(behind);
    }
    let cycle: BTreeSet<usize> = waits.keys().copied().filter(|sender| !explained.contains(sender)).collect();
    if !cycle.is_empty() {
        lines.push(format!("cause: {} for each other, in a cycle", subject(&cycle, &name)));
    }
    lines
}

fn subject(senders: &BTreeSet<usize>, name: &impl Fn(usize) -> String) -> String {
    const MAX_NAMED: usize = 6;
    let named: Vec<_> = senders.iter().take(MAX_NAMED).map(|&sender| name(sender)).collect();
    match senders.len() {
        1 => format!("{} waits", named[0]),
        count if count > MAX_NAMED => format!("{} and {} more wait", named.join(", "), count - MAX_NAMED),
        _ => format!("{} wait", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::endpoint;

    const S: u64 = 1_000_000_000;

    fn page(rank: u64, waits_for: &[u64]) -> EndpointReport {
        let stall = |to: &u64| Stall {
            to: 1000 + to,
            since_ns: 10 * S,
            credits: 0,
            quota_slots: Some(256),
            granted_total: Some(0),
            spent_total: Some(256),
            backlog: 12,
            backlog_bytes: 24_576,
            awaits: stalls::Awaited::Credit,
        };
        let stalls: Vec<_> = waits_for.iter().map(stall).collect();
        let pid = u64::from(std::process::id());
        EndpointReport {
            pid,
            stalled_peers: stalls.len() as u64,
            stalls,
            polled_ns: 12 * S,
            ..endpoint(rank, false, 1, 0)
        }
    }

    #[test]
    fn wait_chains_end_at_the_last_receiver_and_cycles_are_named() {
        let pages = [page(0, &[]), page(1, &[0]), page(2, &[1]), page(3, &[4]), page(4, &[3])];
        let explanation = explain(Path::new("d"), &pages, runs_here, S, 13 * S);
        assert_eq!(
            explanation.causes,
            [
                "cause: rank 1, rank 2 wait for rank 0, which waits for no credit",
                "cause: rank 3, rank 4 wait for each other, in a cycle"
            ]
        );
        assert_eq!(explanation.stalls.len(), 4);
        assert!(
            explanation.stalls[0]
                .text
                .starts_with("rank 1 has waited 3.0 s for credit from rank 0: 12 messages (24 KiB) behind")
        );
        assert!(
            explanation.stalls[1]
                .text
                .contains("; rank 1 has not polled for 1.0 s, and has itself waited 3.0 s for 1 peer")
        );
        let text = text(&[explanation], 1.0);
        assert!(text.starts_with("d: 5 of 5 endpoints open\n  rank 1 has waited"), "{text}");
    }

    #[test]
    fn ranks_that_come_late_to_operations_are_named() {
        let barriers = |skew_ms: u64| {
            let skew = skew_ms * 1_000_000;
            EndpointReport { operations: operations::tests::barriers(10, skew + 1000, skew), ..page(0, &[]) }
        };
        let pages = [barriers(200), EndpointReport { rank: Some(1), ..barriers(0) }];
        let explanation = explain(Path::new("d"), &pages, runs_here, S, 13 * S);
        let text = text(std::slice::from_ref(&explanation), 1.0);
        assert!(text.contains("  skew: of 200 ms in barrier operations, 200 ms (100 %)"), "{text}");
        assert!(text.ends_with(": rank 1 comes late\n"), "{text}");
    }

    #[test]
    fn a_send_that_waits_for_a_link_is_a_stall_with_a_cause() {
        let mut sender = page(1, &[0]);
        sender.stalls[0].awaits = stalls::Awaited::Link;
        let explanation = explain(Path::new("d"), &[page(0, &[]), sender], runs_here, S, 13 * S);
        let text = text(std::slice::from_ref(&explanation), 1.0);
        assert!(
            text.contains("rank 1 has waited 3.0 s for room in the window of the link to rank 0: "),
            "{text}"
        );
        assert!(text.contains("cause: rank 1 waits for rank 0"), "{text}");
        assert_eq!(serde_json::to_value(&explanation).unwrap()["stalls"][0]["waits_for"], "link");
    }

    #[test]
    fn a_receiver_that_lends_tells_its_queue_and_what_each_sender_has() {
        let loan = |from: u64, demand, idle, ahead| Loan {
            from: 1000 + from,
            demand,
            held: 224,
            idle,
            window: 8,
            granted_total: 0,
            ahead,
        };
        let receiver = EndpointReport {
            lending: Some(Lending {
                region_slots: 448,
                reserve_slots: 112,
                waiting_senders: 9,
                ..Lending::default()
            }),
            loans: vec![loan(1, 300, 0, Some(0)), loan(2, 64, 0, Some(1)), loan(7, 0, 5, None)],
            ..page(0, &[])
        };
        let explanation =
            explain(Path::new("d"), &[receiver, page(1, &[0]), page(2, &[0])], runs_here, S, 13 * S);
        let line = "rank 0 lends 448 slots: 0 free, 5 idle at senders; queue: rank 1 (300 slots), rank 2 (64 slots) and 7 more";
        assert_eq!(explanation.lending, [line]);
        assert!(
            explanation.stalls[1].text.contains(
                "knows of its demand of 64 slots, which waits behind at most 1 sender, has granted it 224 slots (0 idle), \
                 and has 0 of 448 slots free"
            ),
            "{}",
            explanation.stalls[1].text
        );
        let json = serde_json::to_value(&explanation).unwrap();
        assert_eq!(json["stalls"][0]["receiver_loan"]["demand"], 300);
        let receiver = &json["endpoints"][0];
        assert_eq!(
            (&receiver["lending"]["waiting_senders"], &receiver["loans"][2]["idle"]),
            (&9.into(), &5.into())
        );
        assert_eq!(receiver["loans"][2]["sender"], "endpoint 00000000000003ef");
        assert!(json["endpoints"][1]["lending"].is_null());
        assert!(
            text(&[explanation], 1.0)
                .contains(&format!("\n  {line}\n  cause: rank 1, rank 2 wait for rank 0"))
        );
    }

    #[test]
    fn endpoints_with_a_network_have_a_line() {
        let network = NetworkReport {
            open_paths: 3,
            least_round_trip_ns: 12_000,
            greatest_round_trip_ns: 80_000,
            sent_again: 9,
            timeouts: 1,
            dropped_forged: 2,
            ..NetworkReport::default()
        };
        let far = EndpointReport { network: Some(network), ..page(0, &[]) };
        let explanation = explain(Path::new("d"), &[far, page(1, &[])], runs_here, S, 13 * S);
        let line = "rank 0 has 3 paths over the network, round trips 12.0 us to 80.0 us; 9 bundles sent again, 1 timeout, 2 \
                    datagrams dropped";
        assert_eq!(explanation.network, [line]);
        let json = serde_json::to_value(&explanation).unwrap();
        assert_eq!(json["endpoints"][0]["network"]["sent_again"], 9);
        assert!(json["endpoints"][1]["network"].is_null());
        assert!(text(&[explanation], 1.0).contains(line));
        let rate = NetworkReport { gate_waits: 7, ..network };
        let of = |network| network_line(&EndpointReport { network: Some(network), ..page(0, &[]) });
        assert_eq!(of(rate), Some(format!("{line}; 7 waits for admission")));
        let step = NetworkReport { gate_tokens: 24, gate_step_bytes: 2048, gate_step_ranks: 4, ..rate };
        let waits = "7 waits for 24 tokens for messages from 2 KiB on with 4 active ranks or more";
        assert_eq!(of(step), Some(format!("{line}; {waits}")));
        let proxy = NetworkReport { proxy_queued: 12, proxy_sent_for_others: 5, ..network };
        let sent = "12 datagrams through its queue, 5 sent for other ranks";
        assert_eq!(of(proxy), Some(format!("{line}; {sent}")));
        let begun = NetworkReport { open_paths: 1, ..NetworkReport::default() };
        let pages = [EndpointReport { network: Some(begun), ..page(0, &[]) }];
        let line =
            "rank 0 has 1 path over the network; 0 bundles sent again, 0 timeouts, 0 datagrams dropped";
        assert_eq!(
            explain(Path::new("d"), &pages, runs_here, S, 13 * S).network,
            [line],
            "no round trip yet"
        );
    }

    #[test]
    fn short_stalls_and_dead_endpoints_are_omitted() {
        let dead = EndpointReport { pid: u64::MAX, ..page(1, &[0]) };
        let closed = EndpointReport { closed: true, ..page(2, &[0]) };
        let explanation =
            explain(Path::new("d"), &[page(0, &[]), dead, closed, page(3, &[0])], runs_here, 5 * S, 13 * S);
        assert!(explanation.stalls.is_empty() && explanation.causes.is_empty());
        assert!(text(&[explanation], 5.0).contains("no send has waited for credit or a link for 5 s"));
    }
}
