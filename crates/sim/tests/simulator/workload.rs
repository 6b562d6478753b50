//! Tests of workloads: they send the messages and bytes of their sources, end under every scheme, and reject
//! invalid parameters.

use crate::support;
use crate::support::catalogue::{CATALOGUE, catalogue};
use crate::support::{SCHEMES, barrier_messages, messages_and_bytes, recorded, run, run_with, workload};
use weir_proto::Scheme;
use weir_sim::workload::{Workload, measure};

/// Runs half `part` of the catalogue. Two tests share the work, so that they use two cores.
fn ends_everywhere(part: usize) {
    for workload in catalogue().into_iter().skip(part).step_by(2) {
        let allowed = [1, 2, 3, 8, 16].into_iter().filter(|&ranks| workload.check(ranks).is_ok());
        let allowed: Vec<u32> = allowed.collect();
        assert!(!allowed.is_empty(), "{workload:?} fits no number of ranks that is tried");
        for (ranks, scheme) in allowed.into_iter().flat_map(|ranks| SCHEMES.map(|scheme| (ranks, scheme))) {
            let report = run(&workload, ranks, scheme);
            for name in workload.records() {
                let values = recorded(&report, name);
                assert!(!values.is_empty(), "{workload:?} at {ranks} ranks does not record {name}");
                assert!(values.iter().all(|(_, value)| value.is_finite() && *value >= 0.0), "{values:?}");
            }
        }
    }
}

#[test]
fn even_workloads_end_under_every_scheme_and_record_their_measures() {
    ends_everywhere(0);
}

#[test]
fn odd_workloads_end_under_every_scheme_and_record_their_measures() {
    ends_everywhere(1);
}

#[test]
fn three_slots_per_sender_are_enough() {
    // A message of 2 KB takes 37 slots, so every sender has to wait for credit.
    let schemes = SCHEMES.into_iter().filter(|scheme| scheme.grants());
    let mut schemes = schemes.cycle();
    for workload in catalogue() {
        let allowed = [8, 4, 16, 2, 1].into_iter().find(|&ranks| workload.check(ranks).is_ok());
        let ranks = allowed.unwrap_or_else(|| panic!("{workload:?}"));
        let scheme = schemes.next().expect("they go round");
        let mut spec = support::spec(ranks, scheme);
        (spec.quota_slots, spec.start_slots, spec.config.region.slots) = (3, 3, 3 * ranks);
        run_with(&workload, spec);
    }
}

#[test]
fn the_half_round_trip_is_the_price_of_a_message() {
    // 8 B: 0.2 us for the call, 1 us and 100 ps per byte on the wire, 0.05 us to retrieve the packet.
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
    assert_eq!(messages_and_bytes(&pairs, 5), (2 * 2 * (7 + 2) + 2 * 2, 2 * 2 * (7 + 2) * 2048));
}

#[test]
fn alltoall_sends_the_messages_of_its_algorithm() {
    for n in [1, 2, 3, 8, 16_u32] {
        let messages = |algorithm| {
            let toml = format!("[alltoall]\nalgorithm = '{algorithm}'\nmessage_bytes = 100\ncalls = 3");
            let (messages, bytes) = messages_and_bytes(&workload(&toml), n);
            let n = u64::from(n);
            (messages - 2 * barrier_messages(n), bytes)
        };
        let (n, rounds) = (u64::from(n), u64::from(n.next_power_of_two().ilog2()));
        assert_eq!(messages("linear"), (3 * n * (n - 1), 3 * n * (n - 1) * 100));
        assert_eq!(messages("pairwise"), (3 * n * (n - 1), 3 * n * (n - 1) * 100));
        // Each other block travels once for each bit of its distance.
        let travels: u64 = (0..n).map(|block| u64::from(block.count_ones())).sum();
        assert_eq!(messages("bruck"), (3 * n * rounds, 3 * n * travels * 100));
    }
}

#[test]
fn groups_exchange_while_other_ranks_wait() {
    let toml = "[alltoall_groups]\nmessage_bytes = 100\ngroup_ranks = 4\ngroups = 2\ncalls = 3";
    let workload = workload(toml);
    let (messages, bytes) = messages_and_bytes(&workload, 16);
    // Two groups of four with two barriers each, then one barrier of all ranks.
    assert_eq!(messages, 2 * (3 * 4 * 3 + 2 * barrier_messages(4)) + barrier_messages(16));
    assert_eq!(bytes, 2 * 3 * 4 * 3 * 100);
    let report = run(&workload, 16, Scheme::Static { piggyback: false });
    assert_eq!(recorded(&report, measure::CALL_NS).len(), 8);
    let sent: Vec<u64> = report.counters.iter().map(|c| c.bytes_sent).collect();
    assert_eq!((&sent[..8], &sent[8..]), (&[900; 8][..], &[0; 8][..]));
}

#[test]
fn phases_note_the_credits_of_rank_0_for_each_group() {
    let toml = "[alltoall_phases]\nmessage_bytes = 2048\ngroup_ends = [2, 4, 8]\n\
                phases = [{ ranks = 8, calls = 2 }, { ranks = 2, calls = 3 }, { ranks = 8, calls = 1 }]";
    let workload = workload(toml);
    let (messages, bytes) = messages_and_bytes(&workload, 8);
    assert_eq!(messages, (2 + 1) * 8 * 7 + 3 * 2 + 3 * barrier_messages(8));
    assert_eq!(bytes, ((2 + 1) * 8 * 7 + 3 * 2) * 2048);

    let report = run(&workload, 8, Scheme::Static { piggyback: false });
    let phases: Vec<_> = recorded(&report, measure::PHASE).iter().map(|&(_, phase)| phase as u32).collect();
    assert_eq!(phases, [0, 0, 1, 1, 1, 2]);
    for names in &measure::CREDITS[..3] {
        let [mean, median, least, most] = names.map(|name| recorded(&report, name));
        assert_eq!(mean.len(), 6, "one for each call");
        for (((mean, median), least), most) in mean.iter().zip(&median).zip(&least).zip(&most) {
            assert!(least.1 <= mean.1 && least.1 <= median.1 && mean.1 <= most.1 && median.1 <= most.1);
            assert!(most.1 <= 20.0, "a static quota is never exceeded");
        }
    }
    assert!(recorded(&report, measure::CREDITS[3][0]).is_empty());

    // With dynamic credits the two active ranks gain what the others lose.
    let toml = "[alltoall_phases]\nmessage_bytes = 2048\ngroup_ends = [2, 8]\n\
                phases = [{ ranks = 8, calls = 3 }, { ranks = 2, calls = 30 }]";
    let report = run(&support::workload(toml), 8, Scheme::Dynamic { piggyback: false });
    let [close, far] = [0, 1].map(|group: usize| recorded(&report, measure::CREDITS[group][0]));
    let (before, after) = (2, 32);
    assert!(close[after].1 > close[before].1, "{} then {}", close[before].1, close[after].1);
    assert!(close[after].1 > far[after].1, "{} against {}", close[after].1, far[after].1);
}

#[test]
fn in_a_linear_barrier_between_phases_rank_0_sends_to_every_rank() {
    let sent_by_rank_0 = |barrier: &str| {
        let toml = "[alltoall_phases]\nmessage_bytes = 2048\ngroup_ends = [8]\nphases = [{ ranks = 1, calls = 1 }, { ranks = 1, calls = 1 }]";
        let report = run(&workload(&format!("{toml}\n{barrier}")), 8, Scheme::Static { piggyback: false });
        report.counters[0].messages_sent
    };
    assert_eq!(sent_by_rank_0(""), 2 * 3, "three rounds of dissemination after each phase");
    assert_eq!(sent_by_rank_0("barrier = 'linear'"), 2 * 7);
}

#[test]
fn local_peers_cost_a_copy_and_no_message() {
    for order in ["", "order = 'sends_first'\nwindow_messages = 1\n"] {
        let with = |ranks_per_node| {
            workload(&format!(
                "[alltoall_local]\n{order}message_bytes = 100\nranks_per_node = {ranks_per_node}\nlocal_message_ns = 1000\ncalls = 2"
            ))
        };
        let (messages, bytes) = messages_and_bytes(&with(4), 16);
        assert_eq!((messages - 2 * barrier_messages(16), bytes), (2 * 16 * 12, 2 * 16 * 12 * 100));
        let report = run(&with(8), 8, Scheme::Unlimited);
        let calls = recorded(&report, measure::CALL_NS);
        assert!(calls.len() == 8 && calls.iter().all(|&(_, call_ns)| call_ns == 7000.0), "{calls:?}");
    }
}

#[test]
fn bandwidth_sends_windows_and_one_answer_each() {
    for blocking in [true, false] {
        let bandwidth = workload(&format!(
            "[bandwidth]\nmessage_bytes = 512\nwindow_messages = 20\nblocking = {blocking}\nwindows = 3\nwarmup_windows = 1"
        ));
        assert_eq!(messages_and_bytes(&bandwidth, 2), (4 * 21, 4 * 20 * 512));
        let report = run(&bandwidth, 3, Scheme::Unlimited);
        let (rank, rate) = recorded(&report, measure::MESSAGES_PER_S)[0];
        assert_eq!(rank, 0);
        // 0.2 us for the call, 10 packets of 40 ns: at most 1.67 million. The last of 20 messages and the
        // answer take 2 us more.
        assert!((1.2e6..1.67e6).contains(&rate), "{rate}");
        let (_, bytes) = recorded(&report, measure::BANDWIDTH_BYTES_PER_S)[0];
        assert!((bytes / rate - 512.0).abs() < 1e-6);
    }
}

#[test]
fn the_root_of_scatterv_moves() {
    for library in ["mpich", "open_mpi"] {
        let toml = format!(
            "[scatterv_moving_root]\nlibrary = '{library}'\nmessage_bytes = 100\ncalls_per_root = 3\ncalls = 7"
        );
        let report = run(&workload(&toml), 4, Scheme::Unlimited);
        let sent: Vec<u64> = report.counters.iter().map(|c| c.bytes_sent).collect();
        assert_eq!(sent, [3 * 300, 3 * 300, 300, 0]);
    }
}

#[test]
fn the_receiver_of_an_incast_counts_what_each_sender_has_delivered() {
    let toml = "[incast]\nmessage_bytes = 2048\nmessages = 6\nwindow_messages = 1";
    assert_eq!(messages_and_bytes(&workload(toml), 4), (3 * 6, 3 * 6 * 2048));
    for scheme in SCHEMES {
        let report = run(&workload(toml), 4, scheme);
        let shares = recorded(&report, measure::SENDER_MESSAGES);
        assert_eq!(shares.len(), 3, "{shares:?}");
        // The shares are counted when the first sender has delivered its last message.
        assert!(shares.iter().any(|&(_, share)| share == 6.0), "{shares:?}");
        assert!(shares.iter().all(|&(rank, share)| rank == 0 && share <= 6.0), "{shares:?}");
        let (rank, message_ns) = recorded(&report, measure::MESSAGE_NS)[0];
        assert!(rank == 0 && message_ns > 0.0, "{message_ns}");
    }
    let no_sender = workload(toml).check(1);
    assert_eq!(no_sender.expect_err("one rank"), "ranks is 1; allowed: 2 and more");
}

#[test]
fn neighbours_exchange_faces() {
    let toml = |periodic| {
        format!(
            "[neighbours]\ngrid = [4, 2, 1]\nperiodic = {periodic}\nface_bytes = [10, 1000, 7]\nsteps = 3\ncompute_ns = 9000"
        )
    };
    let steps = |periodic| {
        let (messages, bytes) = messages_and_bytes(&workload(&toml(periodic)), 8);
        (messages - 2 * barrier_messages(8), bytes)
    };
    // Along x there are 3 of 4 pairs in each of 2 rows, along y one pair in each of 4 columns. Each pair
    // sends two messages.
    assert_eq!(steps(false), (3 * 2 * (6 + 4), 3 * 2 * (6 * 10 + 4 * 1000)));
    assert_eq!(steps(true), (3 * 2 * (8 + 8), 3 * 2 * (8 * 10 + 8 * 1000)));
    let report = run(&workload(&toml(true)), 8, Scheme::Unlimited);
    assert!(recorded(&report, measure::STEP_NS).iter().all(|&(_, step)| step > 9000.0));
}

#[test]
fn invalid_workloads_are_rejected_with_the_allowed_values() {
    let refused = |toml: &str, ranks| workload(toml).check(ranks).expect_err(toml);
    assert_eq!(refused(CATALOGUE[0], 1), "pairs + partner_distance_ranks is 2; allowed: at most ranks, 1");
    assert_eq!(
        refused("[alltoall]\nalgorithm = 'bruck'\nmessage_bytes = 1\ncalls = 0", 4),
        "calls is 0; allowed: 1 to 1000000000"
    );
    // The product with the fields before it exceeds a `u32`.
    for (toml, said) in [
        (
            "[latency]\nmessage_bytes = 8\nround_trips = 4294967295\nwarmup_round_trips = 1",
            "round_trips is 4294967295; allowed: 1 to",
        ),
        (
            "[multi_pingpong]\nmessage_bytes = 8\npairs = 1\npartner_distance_ranks = 1\nround_trips = 1\nwarmup_round_trips = 4294967295",
            "warmup_round_trips is 4294967295; allowed: at most",
        ),
        (
            "[bandwidth]\nmessage_bytes = 8\nblocking = true\nwindow_messages = 4\nwindows = 4294967200\nwarmup_windows = 100",
            "windows is 4294967200; allowed: 1 to",
        ),
    ] {
        assert_eq!(refused(toml, 4), format!("{said} 1000000000"));
    }
    let unreadable = |text: &str| toml::from_str::<Workload>(text).expect_err(text).to_string();
    let unknown = unreadable("[alltoall]\nalgorithm = 'linear'\nmessage = 2048\ncalls = 1");
    assert!(unknown.contains("line 3") && unknown.contains("`message_bytes`"), "{unknown}");
    let algorithm = unreadable("[alltoall]\nalgorithm = 'quick'\nmessage_bytes = 2048\ncalls = 1");
    assert!(algorithm.contains("line 2") && algorithm.contains("`bruck`"), "{algorithm}");
    assert!(unreadable("[pingpong]\n").contains("`multi_pingpong`"));
}
