//! Tests of the EXTOLL model: times add up, links are shared, a full mailbox stops its senders, and no packet is
//! lost.

use std::num::NonZeroU32;

use weir_proto::{Geometry, Growth, Scheme};
use weir_sim::collective::Group;
use weir_sim::cost::Cost;
use weir_sim::network::extoll::{Extoll, Parameters};
use weir_sim::network::ideal::Ideal;
use weir_sim::network::mesh::Mesh;
use weir_sim::program::{Program, Rank};
use weir_sim::world::{Report, World, WorldSpec};

const NS: u64 = 1000;

fn parameters(size: [u32; 3], ranks_per_node: u32) -> Parameters {
    Parameters {
        mesh: Mesh { size },
        ranks_per_node,
        link_packet_ps: 80 * NS,
        hop_ps: 60 * NS,
        inject_packet_ps: 70 * NS,
        eject_packet_ps: 75 * NS,
        ends_ps: 500 * NS,
        buffer_packets: 8,
        nic_packets: 16,
        mailbox_slots: None,
        get_byte_ps: 1000,
        get_ps: 2000 * NS,
    }
}

const COST: Cost = Cost { packet_send_ps: 100 * NS, packet_receive_ps: 90 * NS, ..Cost::FREE };

fn run<F>(parameters: Parameters, scheme: Scheme, cost: Cost, program: impl Fn(Rank) -> F) -> Report
where
    F: Future<Output = ()> + 'static,
{
    world(parameters, scheme, cost, program).run().expect("ends")
}

fn world<F>(parameters: Parameters, scheme: Scheme, cost: Cost, program: impl Fn(Rank) -> F) -> World<Extoll>
where
    F: Future<Output = ()> + 'static,
{
    let ranks = parameters.mesh.nodes() * parameters.ranks_per_node;
    let spec = WorldSpec { event_limit: 50_000_000, ..WorldSpec::new(ranks, scheme, 60, cost) };
    World::new(spec, Extoll::new(parameters), |rank| -> Program { Box::pin(program(rank)) })
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
fn packet_latency_is_the_sum_of_ends_and_hops() {
    for hops in [1, 3, 14] {
        let report = run(parameters([hops + 1, 1, 1], 1), Scheme::Unlimited, COST, |rank| {
            from_first_to_last(rank, 1, 8)
        });
        let expected = 100 + 70 + 60 * u64::from(hops) + 75 + 500 + 90;
        assert_eq!(report.finished_at, expected * NS, "{hops} hops");
        assert_eq!(report.packet_hops, u64::from(hops) + 2);
    }
}

#[test]
fn the_slowest_stage_limits_the_rate() {
    // 1000 packets in messages of 37. The processor needs 100 ns for each, all other stages less.
    let time = |cost| {
        let report = run(parameters([3, 1, 1], 1), Scheme::Unlimited, cost, |rank| {
            from_first_to_last(rank, 100, 2048)
        });
        report.finished_at as f64 / (3700.0 * NS as f64)
    };
    assert!((time(COST) - 100.0).abs() < 2.0);
    let fast = Cost { packet_send_ps: 20 * NS, packet_receive_ps: 10 * NS, ..COST };
    assert!((time(fast) - 80.0).abs() < 2.0, "the link: {}", time(fast)); // and the processor is held by its NIC
}

#[test]
fn ranks_of_a_node_share_injection_fairly() {
    let fast = Cost { packet_send_ps: 20 * NS, packet_receive_ps: 10 * NS, ..COST };
    let report = run(parameters([2, 1, 1], 4), Scheme::Unlimited, fast, |rank| async move {
        for _ in 0..25 {
            if rank.rank() < 4 {
                rank.send(4 + rank.rank(), 0, 2048).await;
            } else {
                rank.recv(Some(rank.rank() - 4), 0, 2048).await;
            }
        }
    });
    let ends: Vec<_> = report.finished[4..].iter().map(|&ps| ps / NS).collect();
    let (first, last) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
    assert!(last - first < last / 20, "{ends:?}");
    assert!((*last as f64 / (4.0 * 25.0 * 37.0) - 80.0).abs() < 3.0, "{ends:?}"); // one link for all
}

#[test]
fn a_full_mailbox_blocks_other_traffic_and_loses_nothing() {
    // Rank 3 (second node) sleeps while rank 0 floods it. Rank 1 wants to reach rank 2, two nodes away.
    let program = |rank: Rank| async move {
        match rank.rank() {
            0 => rank.wait_all((0..40).map(|_| rank.isend(3, 0, 2048)).collect::<Vec<_>>()).await,
            1 => {
                rank.compute(200_000 * NS);
                rank.send(2, 0, 8).await;
            }
            2 => {
                rank.recv(Some(1), 0, 8).await;
            }
            _ => {
                rank.compute(3_000_000 * NS);
                for _ in 0..40 {
                    rank.recv(Some(0), 0, 2048).await;
                }
            }
        }
    };
    let small = Parameters { mailbox_slots: Some(64), ..parameters([2, 1, 1], 2) };
    let blocked = run(small, Scheme::Unlimited, COST, program);
    assert!(blocked.finished[2] > 3_000_000 * NS, "the victim waits for the sleeper: {:?}", blocked.finished);
    assert!(blocked.peak_mailbox_slots <= 64);
    let credits = Scheme::Static { piggyback: false };
    let enough = Parameters { mailbox_slots: Some(4 * 62), ..parameters([2, 1, 1], 2) };
    let credited = run(enough, credits, COST, program);
    assert!(credited.finished[2] < 300_000 * NS, "credits keep the network free: {:?}", credited.finished);
    for report in [blocked, credited] {
        assert_eq!(report.counters[3].messages_received, 40);
    }
}

#[test]
fn alltoall_on_a_congested_mesh_is_deterministic() {
    let once = || {
        let parameters = Parameters { buffer_packets: 1, nic_packets: 1, ..parameters([3, 3, 2], 2) };
        run(parameters, Scheme::Static { piggyback: true }, COST, |rank| async move {
            let group = Group::all(&rank);
            group.alltoall_linear(2048, 0).await;
            group.barrier().await;
        })
    };
    let (first, second) = (once(), once());
    assert_eq!((first.trace, first.packet_hops), (second.trace, second.packet_hops));
    assert!(first.counters.iter().all(|c| c.packets_sent > 35 * 37));
}

/// An unchecked world has shortcuts that a checked world has not: packets are not inspected on arrival, and
/// machines process some before their time. The results must be equal.
#[test]
fn checked_and_unchecked_worlds_are_identical() {
    let program = |rank: Rank| async move {
        let group = Group::all(&rank);
        group.alltoall_linear(2048, 0).await;
        // Long waits fill mailboxes with unexpected messages and start remote gets.
        rank.compute(u64::from(rank.rank() % 3) * 400_000 * NS);
        group.alltoall_linear(1500, 0).await;
        group.alltoall_linear(5000, 4).await;
        for index in 0..40 {
            // Reads the mailboxes while they are emptied.
            if rank.rank() == 0 {
                let slots = rank.credits(1 + index % (rank.size() - 1)).await;
                rank.record_of_series("slots", index, slots as f64);
            }
            let (next, last) =
                ((rank.rank() + 1) % rank.size(), (rank.rank() + rank.size() - 1) % rank.size());
            rank.sendrecv(next, last, 7, 2048, 2048).await;
        }
    };
    let connection = Scheme::StaticConnection { ecm_threshold: NonZeroU32::new(5) };
    let adaptive = Scheme::AdaptiveBacklog { growth: Growth::Exponential, ecm_threshold: NonZeroU32::new(5) };
    for scheme in [
        Scheme::Unlimited,
        Scheme::Static { piggyback: false },
        Scheme::Static { piggyback: true },
        connection,
        adaptive,
    ] {
        let one_by_one = |checked| {
            let world = world(parameters([3, 2, 1], 2), scheme, COST, program);
            world.checked(checked).run().expect("ends")
        };
        // On the ideal network whole trains arrive, interleaved.
        let side_by_side = |checked| {
            let network = Ideal::with_geometry(1000 * NS, 100, Geometry::EXTOLL);
            let spec = WorldSpec::new(12, scheme, 60, COST);
            let world = World::new(spec, network, |rank| -> Program { Box::pin(program(rank)) });
            world.checked(checked).run().expect("ends")
        };
        assert_identical(one_by_one(true), one_by_one(false), scheme);
        assert_identical(side_by_side(true), side_by_side(false), scheme);
    }
}

fn assert_identical(checked: Report, unchecked: Report, scheme: Scheme) {
    assert_eq!((checked.trace, checked.events), (unchecked.trace, unchecked.events), "{scheme:?}");
    assert_eq!(checked.finished, unchecked.finished, "{scheme:?}");
    assert_eq!(checked.records, unchecked.records, "{scheme:?}");
    assert_eq!(checked.latency_ns, unchecked.latency_ns, "{scheme:?}");
    assert_eq!(checked.peak_mailbox_slots, unchecked.peak_mailbox_slots, "{scheme:?}");
    assert_eq!(checked.counters, unchecked.counters, "{scheme:?}");
    assert!(checked.peak_mailbox_slots > 100, "{scheme:?}: mailboxes stay empty");
}
