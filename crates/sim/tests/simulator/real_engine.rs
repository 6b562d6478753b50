//! Tests that programs send and receive the same messages in the simulator and on the real engine, and end in both.
//! Receives from anybody may take the messages of several senders in another order.

use crate::support;
use crate::support::catalogue::catalogue;
use crate::support::{SCHEMES, journal, real};
use weir_proto::Scheme;
use weir_sim::program::Status;
use weir_sim::workload::Workload;

/// What the receives got. Messages of several senders to receives from anybody have no order among each other.
fn received(workload: &Workload, mut receives: Vec<Option<Status>>) -> Vec<Option<Status>> {
    if matches!(workload, Workload::Incast(_)) {
        receives.sort_by_key(|status| status.map(|status| status.source));
    }
    receives
}

/// Runs a workload both ways and compares each rank message by message.
fn compare(workload: &Workload, ranks: u32, scheme: Scheme) {
    let simulated = journal::simulated(workload, ranks, scheme);
    let real = real::run(ranks, scheme, |rank| workload.program(rank));
    assert_eq!(simulated.len(), real.len());
    for (rank, (simulated, real)) in simulated.iter().zip(&real).enumerate() {
        assert!(simulated.receives.iter().all(Option::is_some), "every receive has ended");
        let what = format!("rank {rank} of {ranks}, {scheme:?}, {workload:?}");
        assert_eq!(simulated.sends, real.sends, "sent by {what}");
        let [expected, receives] =
            [&simulated.receives, &real.receives].map(|receives| received(workload, receives.clone()));
        assert_eq!(expected, receives, "received by {what}");
        assert_eq!(simulated.records, real.records, "recorded by {what}");
    }
}

#[test]
fn programs_behave_the_same_on_the_real_engine() {
    let (catalogue, mut compared) = (catalogue(), 0);
    for (number, workload) in catalogue.iter().enumerate() {
        // Each workload gets other numbers of ranks and other schemes, so that all combinations are covered
        // in part.
        let ranks =
            [8, 5, 4, 7, 6].into_iter().cycle().skip(number).take(5).find(|&n| workload.check(n).is_ok());
        if let Some(ranks) = ranks {
            compare(workload, ranks, SCHEMES[number % SCHEMES.len()]);
            compared += 1;
        }
    }
    println!("{compared} of {} workloads compared", catalogue.len());
    assert!(compared * 10 > catalogue.len() * 9, "{compared} of {}", catalogue.len());
}

#[test]
fn alltoall_behaves_the_same_under_every_scheme() {
    let alltoall = support::workload("[alltoall]\nalgorithm = 'linear'\nmessage_bytes = 2048\ncalls = 5");
    for scheme in SCHEMES {
        compare(&alltoall, 8, scheme);
    }
}
