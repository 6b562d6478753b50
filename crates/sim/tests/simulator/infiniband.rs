//! Tests of the InfiniBand model: times add up, links are shared, remote reads need no processor of the owner, and
//! a receiver that is not ready answers with a NAK.

use weir_proto::Scheme;
use weir_proto::flow::hardware::WITHOUT_LIMIT;
use weir_sim::collective::Group;
use weir_sim::cost::Cost;
use weir_sim::network::Network;
use weir_sim::network::fat_tree::FatTree;
use weir_sim::network::infiniband::{COST_2003, InfiniBand, Parameters};
use weir_sim::program::{Program, Rank};
use weir_sim::world::{Report, World, WorldSpec};

const NS: u64 = 1000;
const US: u64 = 1_000_000;
const CLUSTER: Parameters = Parameters::CLUSTER_2003;
const UNHURRIED: Scheme = Scheme::Hardware { rnr_timer_ns: 10_000, rnr_retries: WITHOUT_LIMIT };

fn spec(ranks: u32, scheme: Scheme, quota_slots: u32, cost: Cost) -> WorldSpec {
    let mut spec = WorldSpec { event_limit: 50_000_000, ..WorldSpec::new(ranks, scheme, quota_slots, cost) };
    spec.config.eager_bytes = 2000;
    spec
}

/// Runs the world twice and checks that both runs are equal.
fn run<F>(parameters: Parameters, spec: WorldSpec, program: impl Fn(Rank) -> F) -> Report
where
    F: Future<Output = ()> + 'static,
{
    let once = || {
        let program = |rank| -> Program { Box::pin(program(rank)) };
        World::new(spec, InfiniBand::new(parameters), program).run().expect("ends")
    };
    let (first, second) = (once(), once());
    assert_eq!((first.trace, first.events), (second.trace, second.events));
    first
}

async fn from_first_to_last(rank: Rank, messages: u32, bytes: u64) {
    for _ in 0..messages {
        if rank.rank() == 0 {
            rank.send(rank.size() - 1, 0, bytes).await;
        } else if rank.rank() == rank.size() - 1 {
            rank.recv(Some(0), 0, bytes).await;
        }
    }
}

#[test]
fn message_latency_is_the_sum_of_ends_links_and_switches() {
    for (arity, levels, links) in [(8, 1, 2), (4, 2, 4), (2, 4, 8)] {
        let tree = FatTree { arity, levels };
        let parameters = Parameters { tree, ..CLUSTER };
        let spec = spec(tree.hosts(), Scheme::Unlimited, 1, Cost::FREE);
        let report = run(parameters, spec, |rank| from_first_to_last(rank, 1, 4));
        let bytes = 4 + 48;
        let ends = 2 * (300 * NS + bytes * 1000) + (2900 + 1700) * NS;
        // Cut-through: the length of the packet counts once.
        let expected = ends + links * 200 * NS + (bytes + 26) * 1000;
        assert_eq!(report.finished_at, expected, "{tree:?}");
        assert_eq!(report.packet_hops, links + 2);
    }
}

#[test]
fn four_byte_latency_is_that_of_the_2003_cluster() {
    let report = run(CLUSTER, spec(2, Scheme::Unlimited, 1, COST_2003), |rank| async move {
        for _ in 0..100 {
            let other = 1 - rank.rank();
            if rank.rank() == 0 {
                rank.send(other, 0, 4).await;
                rank.recv(Some(other), 0, 4).await;
            } else {
                rank.recv(Some(other), 0, 4).await;
                rank.send(other, 0, 4).await;
            }
        }
    });
    let one_way_us = report.finished_at as f64 / 200.0 / US as f64;
    assert!((7.3..7.7).contains(&one_way_us), "{one_way_us} us");
}

#[test]
fn the_bus_limits_large_messages_and_remote_reads_need_no_target_processor() {
    // The owner of the memory computes all the time. 1 MB in packets of 2 KB.
    let report = run(CLUSTER, spec(2, Scheme::Unlimited, 1, COST_2003), |rank| async move {
        if rank.rank() == 0 {
            let send = rank.isend(1, 0, 1 << 20);
            rank.compute(10_000 * US);
            rank.wait(send).await;
        } else {
            rank.recv(Some(0), 0, 1 << 20).await;
        }
    });
    let packets = (1 << 20) / 2048;
    let least = packets * (300 * NS + 2052 * 1000);
    let took = report.finished[1];
    assert!(took > least && took < least + 40 * US, "{took} ps, the bus alone {least}");
    assert_eq!(report.counters[1].cross_memory_bytes, 1 << 20);
    // Request and answers pass memory, adapter, switch, adapter and memory.
    assert!(report.packet_hops >= 4 * (packets + 1));
}

#[test]
fn link_credits_apply_back_pressure() {
    // Seven senders, one receiver: the receiver's link and bus carry everything, for any number of buffers.
    let time = |buffer_packets| {
        let parameters = Parameters { buffer_packets, ..CLUSTER };
        let report = run(parameters, spec(8, Scheme::Unlimited, 1, Cost::FREE), |rank| async move {
            if rank.rank() > 0 {
                rank.wait_all((0..50).map(|_| rank.isend(0, 0, 2000)).collect::<Vec<_>>()).await;
            } else {
                for _ in 0..7 * 50 {
                    rank.recv(None, 0, 2000).await;
                }
            }
        });
        report.finished_at
    };
    let least = 350 * (300 * NS + 2048 * 1000);
    for buffers in [1, 4, 100] {
        let took = time(buffers);
        assert!(
            took > least && took < least + least / 10,
            "{took} ps with {buffers} buffers, at least {least}"
        );
    }
}

#[test]
fn traffic_on_another_path_is_not_delayed() {
    // Two leaves of four hosts. Rank 0 floods rank 4, while rank 1 sends to rank 5 through another spine.
    let parameters = Parameters { tree: FatTree { arity: 4, levels: 2 }, ..CLUSTER };
    let program = |flood: bool| {
        move |rank: Rank| async move {
            match rank.rank() {
                0 if flood => {
                    rank.wait_all((0..200).map(|_| rank.isend(4, 0, 2000)).collect::<Vec<_>>()).await;
                }
                4 if flood => {
                    for _ in 0..200 {
                        rank.recv(Some(0), 0, 2000).await;
                    }
                }
                1 => rank.send(5, 0, 4).await,
                5 => {
                    rank.recv(Some(1), 0, 4).await;
                }
                _ => {}
            }
        }
    };
    let spec = spec(16, Scheme::Unlimited, 1, COST_2003);
    let (alone, beside) = (run(parameters, spec, program(false)), run(parameters, spec, program(true)));
    assert_eq!(alone.finished[5], beside.finished[5]);
}

#[test]
fn an_rnr_nak_returns_after_a_round_trip_and_the_rnr_timer_sets_the_retry() {
    // One buffer. The receiver computes for 100 us, then receives one message after the other.
    let program = |rank: Rank| async move {
        if rank.rank() == 0 {
            let sends: Vec<_> = (0..3).map(|_| rank.isend(1, 0, 4)).collect();
            rank.wait_all(sends).await;
        } else {
            rank.compute(100 * US);
            for _ in 0..3 {
                rank.recv(Some(0), 0, 4).await;
            }
        }
    };
    let timer_ns = 30_000;
    let scheme = Scheme::Hardware { rnr_timer_ns: timer_ns, rnr_retries: WITHOUT_LIMIT };
    let report = run(CLUSTER, spec(2, scheme, 1, Cost::FREE), program);
    let sender = &report.counters[0];
    // The second message is refused when it arrives (about 5 us), and again every 30 us and a round trip,
    // until 100 us.
    let bytes = 4 + 48;
    let there = 2 * (300 * NS + bytes * 1000) + 4600 * NS + 2 * 200 * NS + (bytes + 26) * 1000;
    let back = InfiniBand::new(CLUSTER).one_way_ps(1, 0);
    let round = there + back + timer_ns * 1000;
    // The processor of the receiver is free at 100 us. Attempts of the second message arrive at `there` + k
    // rounds.
    let refused = (100 * US - there).div_ceil(round);
    assert_eq!(sender.rnr_naks, sender.rnr_retries, "every refusal is tried again");
    assert!(
        (refused..=refused + 2).contains(&sender.rnr_naks),
        "{} NAKs, {refused} expected",
        sender.rnr_naks
    );
    let last = report.finished[1];
    assert!(last >= 100 * US && last <= 100 * US + 2 * round, "{last} ps");
}

/// Ten messages at once into one buffer; the receiver computes for 100 us, then it takes messages for nothing.
fn ten_messages_into_one_buffer(count: u32) -> Report {
    let scheme = Scheme::Hardware { rnr_timer_ns: 30_000, rnr_retries: WITHOUT_LIMIT };
    run(CLUSTER, spec(2, scheme, 1, Cost::FREE), move |rank| async move {
        if rank.rank() == 0 {
            let sends: Vec<_> = (0..count).map(|_| rank.isend(1, 0, 4)).collect();
            rank.wait_all(sends).await;
        } else {
            rank.compute(100 * US);
            for index in 0..count {
                rank.recv(Some(0), 0, 4).await;
                let at = rank.clock().await;
                rank.record_of_series("received", index, at as f64);
            }
        }
    })
}

#[test]
fn packets_behind_a_refused_one_are_sent_again() {
    let (two, ten) = (ten_messages_into_one_buffer(2), ten_messages_into_one_buffer(10));
    assert_eq!(
        two.counters[0].rnr_naks, ten.counters[0].rnr_naks,
        "the NAKs are those of the second message"
    );
    // In each round of attempts the eight others cross the links too.
    let (naks, hops_each) = (u64::from(ten.counters[0].rnr_naks as u32), 4);
    assert!(naks >= 2, "{naks}");
    assert_eq!(ten.packet_hops - two.packet_hops, 8 * hops_each * (naks + 1));
}

#[test]
fn packets_behind_an_accepted_one_arrive_right_behind_it() {
    let report = ten_messages_into_one_buffer(10);
    let received: Vec<f64> =
        report.records.iter().filter(|it| it.name == "received").map(|it| it.value).collect();
    // The third and all others cost a packet's time on the bus, not a flight.
    let bytes = 4 + 48;
    let apart = (300 * NS + bytes * 1000) as f64;
    for pair in received[1..].windows(2) {
        assert!((pair[1] - pair[0] - apart).abs() < 1000.0, "{pair:?}");
    }
}

#[test]
fn rnr_retries_need_no_processor() {
    // The sender posts two messages and computes for 10 ms. The receiver has one buffer and receives both
    // long before that.
    let report = run(CLUSTER, spec(2, UNHURRIED, 1, COST_2003), |rank| async move {
        if rank.rank() == 0 {
            let sends: Vec<_> = (0..2).map(|_| rank.isend(1, 0, 4)).collect();
            rank.compute(10_000 * US);
            rank.wait_all(sends).await;
        } else {
            rank.compute(50 * US);
            rank.recv(Some(0), 0, 4).await;
            rank.recv(Some(0), 0, 4).await;
        }
    });
    assert!(report.finished[1] < 200 * US, "{:?}", report.finished);
    assert!(report.counters[0].rnr_naks > 0);
}

#[test]
fn enough_posted_buffers_cause_no_rnr_nak() {
    for quota_slots in [100, 101] {
        let report = run(CLUSTER, spec(2, UNHURRIED, quota_slots, COST_2003), |rank| async move {
            if rank.rank() == 0 {
                rank.wait_all((0..100).map(|_| rank.isend(1, 0, 4)).collect::<Vec<_>>()).await;
            } else {
                rank.compute(10_000 * US);
                for _ in 0..100 {
                    rank.recv(Some(0), 0, 4).await;
                }
            }
        });
        assert_eq!(report.counters[0].rnr_naks, 0);
    }
}

#[test]
fn collectives_end_on_trees_with_several_ranks_per_node() {
    for scheme in [Scheme::Unlimited, UNHURRIED, Scheme::Static { piggyback: true }] {
        for quota_slots in [3, 10] {
            let tree = FatTree { arity: 2, levels: 3 };
            let parameters = Parameters { tree, ranks_per_node: 2, buffer_packets: 1, ..CLUSTER };
            let report = run(parameters, spec(16, scheme, quota_slots, COST_2003), |rank| async move {
                let group = Group::all(&rank);
                group.alltoall_linear(1500, 0).await;
                group.allreduce(8).await;
                group.gather_linear(3, 5000).await;
                group.barrier().await;
            });
            let sent: u64 = report.counters.iter().map(|c| c.packets_sent).sum();
            assert_eq!(sent, report.counters.iter().map(|c| c.packets_received).sum::<u64>());
        }
    }
}
