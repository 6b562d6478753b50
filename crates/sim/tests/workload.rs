//! Workloads: the messages and bytes that their sources state, an end under every scheme, and what is refused.

mod support;

use support::{SCHEMES, recorded, run, traffic, workload};
use weir_proto::Scheme;
use weir_sim::workload::{Workload, measure};

/// Two barriers by dissemination among `n`: what precedes timed calls.
fn start_messages(n: u64) -> u64 {
    2 * n * u64::from(n.next_power_of_two().ilog2())
}

const CATALOGUE: &[&str] = &[
    "[multi_pingpong]\nmessage_bytes = 2048\npairs = 1\npartner_distance_ranks = 1\nround_trips = 3\nwarmup_round_trips = 1",
    "[alltoall]\nalgorithm = 'linear'\nmessage_bytes = 2048\ncalls = 2",
    "[alltoall]\nalgorithm = 'linear'\nmessage_bytes = 2044\ncalls = 2\nwindow_messages = 2\nbarrier_each_call = true",
    "[alltoall]\nalgorithm = 'pairwise'\nmessage_bytes = 512\ncalls = 2\nwarmup_calls = 1",
    "[alltoall]\nalgorithm = 'bruck'\nmessage_bytes = 64\ncalls = 2",
];

#[test]
fn every_workload_ends_under_every_scheme_and_records_what_it_promises() {
    for toml in CATALOGUE {
        let workload = workload(toml);
        for ranks in [1, 2, 3, 8, 16] {
            if workload.check(ranks).is_err() {
                continue;
            }
            for scheme in SCHEMES {
                let report = run(&workload, ranks, scheme);
                for name in workload.records() {
                    let values = recorded(&report, name);
                    assert!(!values.is_empty(), "{workload:?} at {ranks} ranks does not record {name}");
                    assert!(values.iter().all(|(_, value)| value.is_finite() && *value >= 0.0), "{values:?}");
                }
            }
        }
    }
}

#[test]
fn the_half_round_trip_is_the_price_of_a_message() {
    // 8 B: 0.2 us to call, 1 us and 100 ps a byte on the wire, 0.05 us to take it.
    let pairs = workload(
        "[multi_pingpong]\nmessage_bytes = 8\npairs = 3\npartner_distance_ranks = 4\nround_trips = 10\nwarmup_round_trips = 2",
    );
    let report = run(&pairs, 8, Scheme::Unlimited);
    let values = recorded(&report, measure::HALF_ROUND_TRIP_NS);
    let mut ranks: Vec<u32> = values.iter().map(|&(rank, _)| rank).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2], "those that begin");
    for (rank, value) in values {
        assert!((1250.0..1251.0).contains(&value), "rank {rank}: {value} ns");
    }
}

#[test]
fn pingpong_sends_one_message_each_way_and_trip() {
    let pairs = workload(
        "[multi_pingpong]\nmessage_bytes = 2048\npairs = 2\npartner_distance_ranks = 3\nround_trips = 7\nwarmup_round_trips = 2",
    );
    assert_eq!(traffic(&pairs, 5), (2 * 2 * (7 + 2) + 2 * 2, 2 * 2 * (7 + 2) * 2048));
}

#[test]
fn alltoall_sends_what_its_algorithm_says() {
    for n in [1, 2, 3, 8, 16_u32] {
        let messages = |algorithm| {
            let toml = format!("[alltoall]\nalgorithm = '{algorithm}'\nmessage_bytes = 100\ncalls = 3");
            let (messages, bytes) = traffic(&workload(&toml), n);
            let n = u64::from(n);
            (messages - start_messages(n), bytes)
        };
        let (n, rounds) = (u64::from(n), u64::from(n.next_power_of_two().ilog2()));
        assert_eq!(messages("linear"), (3 * n * (n - 1), 3 * n * (n - 1) * 100));
        assert_eq!(messages("pairwise"), (3 * n * (n - 1), 3 * n * (n - 1) * 100));
        // Each of the other blocks travels once for each bit of its distance.
        let travels: u64 = (0..n).map(|block| u64::from(block.count_ones())).sum();
        assert_eq!(messages("bruck"), (3 * n * rounds, 3 * n * travels * 100));
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_what_is_allowed() {
    let refused = |toml: &str, ranks| workload(toml).check(ranks).expect_err(toml);
    assert_eq!(refused(CATALOGUE[0], 1), "pairs + partner_distance_ranks is 2; allowed: at most ranks, 1");
    assert_eq!(
        refused("[alltoall]\nalgorithm = 'bruck'\nmessage_bytes = 1\ncalls = 0", 4),
        "calls is 0; allowed: 1 and more"
    );
    let unreadable = |text: &str| toml::from_str::<Workload>(text).expect_err(text).to_string();
    let unknown = unreadable("[alltoall]\nalgorithm = 'linear'\nmessage = 2048\ncalls = 1");
    assert!(unknown.contains("line 3") && unknown.contains("`message_bytes`"), "{unknown}");
    let algorithm = unreadable("[alltoall]\nalgorithm = 'quick'\nmessage_bytes = 2048\ncalls = 1");
    assert!(algorithm.contains("line 2") && algorithm.contains("`bruck`"), "{algorithm}");
    assert!(unreadable("[pingpong]\n").contains("`multi_pingpong`"));
}
