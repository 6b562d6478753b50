//! The report of `weir run`: sums the counters of all endpoints for each rank and in total, for the table, the JSON
//! record and the page. It also names problems in one line each, such as ranks that were killed.

pub mod operations;
mod table;

pub use table::{admission_lines, drops_by_reason, network_lines, round_trips, tokens};

use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use weir_engine::NetworkReport;
use weir_engine::loans::Lending;
use weir_engine::operation_times::{Executor, Operations};
use weir_engine::stats::Reports;
use weir_proto::Counters;

/// Counters of one rank, or of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Share {
    /// Number of endpoints.
    pub endpoints: u64,
    /// Shared memory of their mailboxes at the end. Unit: bytes.
    pub mailbox_bytes: u64,
    /// The highest value of that. Unit: bytes.
    pub peak_mailbox_bytes: u64,
    /// Memory for the state of peers. Unit: bytes.
    pub peer_state_bytes: u64,
    /// Collective operations that node groups have done, without messages.
    pub group_operations: u64,
    /// Collective operations of groups across hosts: in shared memory of each host, and by one rank of each between them.
    pub operations_across: u64,
    /// All collective operations.
    #[serde(serialize_with = "operations::as_objects")]
    pub operations: Operations,
    /// What the endpoints lend, with credits on demand.
    #[serde(serialize_with = "lending_by_name")]
    pub lending: Option<Lending>,
    /// What the links over networks have done, if there are any.
    #[serde(serialize_with = "network_by_name")]
    pub network: Option<NetworkReport>,
    /// Counters by name. A peak is the maximum over the endpoints; all others are sums.
    #[serde(serialize_with = "counters_by_name")]
    pub counters: Counters,
}

/// One rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rank {
    /// Its number; `None` if the launcher does not provide it.
    pub rank: Option<u64>,
    /// The host that has sent its counters; `None`: this host, or one that shares the directory of the counters.
    pub host: Option<String>,
    /// Its process.
    pub pid: u64,
    /// Whether the program closed all its endpoints.
    pub closed: bool,
    /// Number of peers that it contacted.
    pub peers: u64,
    /// Ranks of the job on its node; 0: not known.
    pub ranks_of_node: u32,
    /// Ranks of the job; 0: not known.
    pub ranks_of_job: u32,
    /// Its counters.
    #[serde(flatten)]
    pub share: Share,
}

/// All ranks of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Job {
    /// By rank.
    pub ranks: Vec<Rank>,
    /// The sum of all ranks.
    pub total: Share,
    /// Counter files that cannot be read, with the reason.
    pub unreadable: Vec<String>,
}

impl Job {
    /// Sums up the counters of endpoints.
    pub fn new(reports: &Reports) -> Job {
        let mut ranks: Vec<Rank> = Vec::new();
        for endpoint in &reports.endpoints {
            let share = Share {
                endpoints: 1,
                mailbox_bytes: endpoint.mailbox_bytes,
                peak_mailbox_bytes: endpoint.peak_mailbox_bytes,
                peer_state_bytes: endpoint.peer_state_bytes,
                group_operations: operations::done_by(&endpoint.operations, Executor::Node),
                operations_across: operations::done_by(&endpoint.operations, Executor::Hosts),
                operations: endpoint.operations.clone(),
                lending: endpoint.lending,
                network: endpoint.network,
                counters: endpoint.counters,
            };
            // Endpoints are sorted by rank and process.
            match ranks.last_mut() {
                Some(rank)
                    if (rank.rank, &rank.host, rank.pid) == (endpoint.rank, &endpoint.host, endpoint.pid) =>
                {
                    rank.share.add(&share);
                    rank.closed &= endpoint.closed;
                    rank.peers = rank.peers.max(endpoint.peers);
                    rank.ranks_of_node = rank.ranks_of_node.max(endpoint.ranks.node);
                    rank.ranks_of_job = rank.ranks_of_job.max(endpoint.ranks.job);
                }
                _ => ranks.push(Rank {
                    rank: endpoint.rank,
                    host: endpoint.host.clone(),
                    pid: endpoint.pid,
                    closed: endpoint.closed,
                    peers: endpoint.peers,
                    ranks_of_node: endpoint.ranks.node,
                    ranks_of_job: endpoint.ranks.job,
                    share,
                }),
            }
        }
        let mut total = Share {
            endpoints: 0,
            mailbox_bytes: 0,
            peak_mailbox_bytes: 0,
            peer_state_bytes: 0,
            group_operations: 0,
            operations_across: 0,
            operations: Operations::new(),
            lending: None,
            network: None,
            counters: Counters::default(),
        };
        for rank in &ranks {
            total.add(&rank.share);
        }
        let unreadable =
            reports.skipped.iter().map(|file| format!("{}: {}", file.path.display(), file.why)).collect();
        Job { ranks, total, unreadable }
    }

    /// Problems that the user must know about, one line each. `ranks`: the number of ranks started.
    pub fn remarks(&self, ranks: u32) -> Vec<String> {
        let mut remarks = Vec::new();
        let open = self.ranks.iter().filter(|rank| !rank.closed).map(Rank::name).collect::<Vec<_>>();
        if !open.is_empty() {
            remarks.push(format!(
                "{} ended without closing the endpoint (killed, aborted, or no MPI_Finalize): the table has its last counters",
                open.join(", ")
            ));
        }
        let absent: Vec<_> = (0..u64::from(ranks))
            .filter(|number| !self.ranks.iter().any(|rank| rank.rank == Some(*number)))
            .map(|number| number.to_string())
            .collect();
        // A rank without a number cannot be distinguished from an absent one.
        if !absent.is_empty() && !self.ranks.is_empty() && self.ranks.iter().all(|rank| rank.rank.is_some()) {
            remarks.push(format!("these ranks opened no endpoint of weir: {}", absent.join(", ")));
        }
        let counters = &self.total.counters;
        if counters.malformed_packets > 0 {
            remarks.push(format!("{} malformed packets were rejected", counters.malformed_packets));
        }
        if counters.peers_lost > 0 {
            remarks.push(format!("ranks lost a peer {} times", counters.peers_lost));
        }
        remarks.extend(self.unreadable.iter().map(|file| format!("cannot read the counters in {file}")));
        remarks
    }

    /// The operations of each rank with its name.
    pub fn skews(&self) -> impl Iterator<Item = (String, &Operations)> + Clone {
        self.ranks.iter().map(|rank| (rank.name(), &rank.share.operations))
    }

    /// The table that `weir run` prints.
    pub fn table(&self) -> String {
        table::render(self)
    }
}

impl Rank {
    /// `3`, or `pid 4711` of a rank that has no number, for tables and figures.
    pub fn short_name(&self) -> String {
        self.rank.map_or_else(|| format!("pid {}", self.pid), |rank| rank.to_string())
    }

    /// `rank 3`, or the process of a rank that has no number; with its host, if that is another one.
    pub fn name(&self) -> String {
        let name = self.rank.map_or_else(|| format!("process {}", self.pid), |rank| format!("rank {rank}"));
        self.host.as_ref().map_or(name.clone(), |host| format!("{name} on {host}"))
    }
}

impl Share {
    fn add(&mut self, other: &Share) {
        self.endpoints += other.endpoints;
        // The numbers come from files, so an overflow must not stop the report.
        self.mailbox_bytes = self.mailbox_bytes.saturating_add(other.mailbox_bytes);
        self.peak_mailbox_bytes = self.peak_mailbox_bytes.saturating_add(other.peak_mailbox_bytes);
        self.peer_state_bytes = self.peer_state_bytes.saturating_add(other.peer_state_bytes);
        self.group_operations = self.group_operations.saturating_add(other.group_operations);
        self.operations_across = self.operations_across.saturating_add(other.operations_across);
        operations::add(&mut self.operations, &other.operations);
        self.lending = match (self.lending, other.lending) {
            (Some(one), Some(two)) => Some(one.plus(&two)),
            (one, two) => one.or(two),
        };
        self.network = match (self.network, other.network) {
            (Some(one), Some(two)) => Some(one.plus(&two)),
            (one, two) => one.or(two),
        };
        let mut values = self.counters.values();
        for ((value, more), name) in values.iter_mut().zip(other.counters.values()).zip(Counters::NAMES) {
            *value = if name.starts_with("peak_") { (*value).max(more) } else { value.saturating_add(more) };
        }
        self.counters = Counters::from_values(values);
    }
}

/// What endpoints lend, by name; null without credits on demand.
pub(crate) fn lending_by_name<S: serde::Serializer>(
    lending: &Option<Lending>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let map = |lending: Lending| Lending::NAMES.into_iter().zip(lending.values()).collect::<BTreeMap<_, _>>();
    lending.map(map).serialize(serializer)
}

/// What links over networks have done, by name; null inside a host.
pub(crate) fn network_by_name<S: serde::Serializer>(
    network: &Option<NetworkReport>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let map = |network: NetworkReport| {
        NetworkReport::NAMES.into_iter().zip(network.values()).collect::<BTreeMap<_, _>>()
    };
    network.map(map).serialize(serializer)
}

fn counters_by_name<S: serde::Serializer>(counters: &Counters, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map: Map<String, Value> = Counters::NAMES
        .iter()
        .zip(counters.values())
        .map(|(name, value)| ((*name).to_owned(), value.into()))
        .collect();
    // Eager packets have no counter of their own: they are all packets of no other kind.
    map.insert("eager_packets_sent".into(), counters.packets_by_kind()[0].into());
    map.serialize(serializer)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use weir_engine::job::Ranks;
    use weir_engine::stats::{EndpointReport, Skipped};

    pub(crate) fn endpoint(rank: u64, closed: bool, messages: u64, peak: u64) -> EndpointReport {
        EndpointReport {
            path: "x.weir".into(),
            host: None,
            rank: Some(rank),
            pid: 100 + rank,
            started_ns: 0,
            closed,
            scheme: None,
            mailbox_bytes: 16896,
            peak_mailbox_bytes: 33792,
            peers: 2,
            identity: 1000 + rank,
            polled_ns: 0,
            backlog: 0,
            unexpected_messages: 0,
            unexpected_bytes: 0,
            peer_state_bytes: 300,
            ranks: Ranks { node: 2, job: 2 },
            operations: if rank > 0 { operations::tests::barriers(rank, 1000, 100) } else { vec![] },
            stalled_peers: 0,
            stalls: vec![],
            held_credits: vec![],
            lending: None,
            loans: vec![],
            network: None,
            counters: Counters {
                messages_sent: messages,
                bytes_sent: messages * 8,
                packets_sent: messages + 1,
                stalled_ns: 1_500_000,
                peak_unexpected_messages: peak,
                peak_unexpected_bytes: peak * 8,
                ..Counters::default()
            },
        }
    }

    #[test]
    fn counters_are_summed_and_peaks_are_not() {
        let reports = Reports {
            endpoints: vec![endpoint(0, true, 5, 3), endpoint(0, true, 6, 9), endpoint(1, true, 7, 1)],
            skipped: vec![],
        };
        let job = Job::new(&reports);
        assert_eq!(job.ranks.len(), 2);
        assert_eq!(job.ranks[0].share.endpoints, 2);
        assert_eq!(job.ranks[0].share.counters.messages_sent, 11);
        assert_eq!(job.total.counters.messages_sent, 18);
        assert_eq!(job.total.counters.peak_unexpected_messages, 9);
        assert_eq!(job.total.mailbox_bytes, 3 * 16896);
        assert_eq!(job.remarks(2), [""; 0]);
    }

    #[test]
    fn killed_and_missing_ranks_are_named() {
        let reports = Reports {
            endpoints: vec![endpoint(0, true, 1, 0), endpoint(2, false, 1, 0)],
            skipped: vec![Skipped { path: "d/y".into(), why: "it is no regular file".into() }],
        };
        let remarks = Job::new(&reports).remarks(4);
        assert_eq!(remarks.len(), 3);
        assert!(remarks[0].starts_with("rank 2 ended without closing the endpoint"), "{remarks:?}");
        assert_eq!(remarks[1], "these ranks opened no endpoint of weir: 1, 3");
        assert_eq!(remarks[2], "cannot read the counters in d/y: it is no regular file");
    }

    #[test]
    fn processes_of_different_hosts_with_one_number_are_different() {
        let of = |host: Option<&str>| EndpointReport {
            rank: None,
            host: host.map(str::to_owned),
            ..endpoint(0, false, 5, 3)
        };
        let reports = Reports { endpoints: vec![of(None), of(Some("h2")), of(Some("h2"))], skipped: vec![] };
        let job = Job::new(&reports);
        assert_eq!(
            job.ranks.iter().map(Rank::name).collect::<Vec<_>>(),
            ["process 100", "process 100 on h2"]
        );
        assert_eq!(job.ranks[1].share.counters.messages_sent, 10);
    }

    #[test]
    fn json_names_the_counters() {
        let reports = Reports { endpoints: vec![endpoint(0, true, 5, 3)], skipped: vec![] };
        let json = serde_json::to_value(Job::new(&reports)).unwrap();
        assert_eq!(json["ranks"][0]["rank"], 0);
        assert_eq!(
            (&json["ranks"][0]["ranks_of_node"], &json["ranks"][0]["ranks_of_job"]),
            (&2.into(), &2.into())
        );
        assert_eq!(json["ranks"][0]["counters"]["messages_sent"], 5);
        assert_eq!(json["ranks"][0]["counters"]["eager_packets_sent"], 6);
        assert_eq!(json["total"]["counters"]["stalled_ns"], 1_500_000);
        assert_eq!(json["total"]["mailbox_bytes"], 16896);
        assert!(json["total"]["lending"].is_null());
    }

    #[test]
    fn json_has_the_operations_of_each_rank_and_their_sum() {
        let reports = Reports {
            endpoints: vec![endpoint(1, true, 1, 1), endpoint(2, true, 1, 1), endpoint(0, true, 1, 1)],
            skipped: vec![],
        };
        let json = serde_json::to_value(Job::new(&reports)).unwrap();
        let expected = serde_json::json!([{
            "operation": "barrier", "blocking": true, "executor": "node", "count": 3, "time_ns": 2000, "skew_known": 3,
            "skew_ns": 200, "skew_is_bound": false, "longest_ns": 1000,
        }]);
        assert_eq!(json["total"]["operations"], expected);
        assert_eq!(
            (&json["total"]["group_operations"], &json["total"]["operations_across"]),
            (&3.into(), &0.into())
        );
        assert_eq!(json["ranks"][1]["operations"][0]["count"], 2);
        assert_eq!(json["ranks"][2]["operations"], serde_json::json!([]));
    }

    #[test]
    fn json_has_what_links_over_networks_did_and_its_sum() {
        let of = |rank, sent_again, least_round_trip_ns| {
            let network =
                NetworkReport { sent_again, least_round_trip_ns, open_paths: 1, ..Default::default() };
            EndpointReport { network: Some(network), ..endpoint(rank, true, 1, 1) }
        };
        let reports = Reports {
            endpoints: vec![of(0, 5, 900), of(1, 7, 800), endpoint(2, true, 1, 1)],
            skipped: vec![],
        };
        let json = serde_json::to_value(Job::new(&reports)).unwrap();
        let (of_rank, of_all) = (&json["ranks"][1]["network"], &json["total"]["network"]);
        assert_eq!(
            (&of_rank["sent_again"], &of_all["sent_again"], &of_all["open_paths"]),
            (&7.into(), &12.into(), &2.into())
        );
        assert_eq!(of_all["least_round_trip_ns"], 800);
        assert!(json["ranks"][2]["network"].is_null());
    }

    #[test]
    fn json_has_what_the_ranks_lend_and_its_sum() {
        let lending = |lent_slots| Some(Lending { region_slots: 64, lent_slots, ..Lending::default() });
        let of =
            |rank, lent_slots| EndpointReport { lending: lending(lent_slots), ..endpoint(rank, true, 1, 1) };
        let reports =
            Reports { endpoints: vec![of(0, 5), of(1, 7), endpoint(2, true, 1, 1)], skipped: vec![] };
        let json = serde_json::to_value(Job::new(&reports)).unwrap();
        assert_eq!(
            (&json["ranks"][1]["lending"]["lent_slots"], &json["total"]["lending"]["lent_slots"]),
            (&7.into(), &12.into())
        );
        assert_eq!(json["total"]["lending"]["region_slots"], 128);
        assert!(json["ranks"][2]["lending"].is_null());
    }
}
