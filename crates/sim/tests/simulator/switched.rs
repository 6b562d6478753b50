//! Tests of switched Ethernet: times of packets, bounds of queues, and counts of drops and marks.

use crate::support::drive::{drive, packet};
use proptest::prelude::*;
use weir_proto::{Config, Scheme};
use weir_sim::cost::Cost;
use weir_sim::network::fat_tree::FatTree;
use weir_sim::network::switched::{GEOMETRY, Parameters, Switched};
use weir_sim::network::{Network, Output};
use weir_sim::program::{Program, Rank};
use weir_sim::traffic::Traffic;
use weir_sim::world::{Report, World, WorldError, WorldSpec};

const NS: u64 = 1000;

const PARAMETERS: Parameters = Parameters {
    tree: FatTree { arity: 8, levels: 1 },
    ranks_per_node: 1,
    packet_header_bytes: 106,
    link_byte_ps: 800,
    hop_ps: 500 * NS,
    ends_ps: 5000 * NS,
    queue_packets: 0,
    mark_packets: 0,
};

/// Time of a packet with this payload on a link.
fn link_ps(payload_bytes: u64) -> u64 {
    (payload_bytes + 48 + 106) * 800
}

#[test]
fn a_packet_takes_the_sum_of_its_links_and_ends() {
    for (tree, links) in [(PARAMETERS.tree, 2), (FatTree { arity: 2, levels: 3 }, 6)] {
        let mut network = Switched::new(Parameters { tree, ..PARAMETERS });
        let (_, announced) =
            drive(&mut network, |network, outputs| network.inject(0, packet(0, 0, 7, 100), outputs));
        let [(at, Output::Arrived(part))] = announced[..] else { panic!("{announced:?}") };
        assert_eq!((at, part.to), (links * (link_ps(100) + PARAMETERS.hop_ps) + PARAMETERS.ends_ps, 7));
        assert_eq!(network.packet_hops(), links);
        assert_eq!(network.one_way_ps(0, 7), at - links * 100 * 800, "without payload");
    }
}

#[test]
fn packets_of_a_pair_stay_in_order_when_the_processor_takes_no_time() {
    let mut network = Switched::new(PARAMETERS);
    let (_, announced) = drive(&mut network, |network, outputs| {
        for train in 0..3 {
            let injection = weir_sim::network::Injection { packets: 2, ..packet(train, 0, 1, 2000) };
            network.inject(0, injection, outputs);
        }
    });
    let order = announced.iter().map(|(_, output)| match output {
        Output::Arrived(part) => (part.train.0, part.first),
        other => panic!("{other:?}"),
    });
    assert_eq!(order.collect::<Vec<_>>(), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);
}

/// Seven hosts send a packet to host 0 at the same time. Returns arrivals, marks among them, and drops.
fn burst(queue_packets: u32, mark_packets: u32) -> [usize; 3] {
    let mut network = Switched::new(Parameters { queue_packets, mark_packets, ..PARAMETERS });
    let (_, announced) = drive(&mut network, |network, outputs| {
        (1..8).for_each(|from| {
            network.inject(0, packet(from, from, 0, 1000), outputs);
        });
    });
    let marked = announced.iter().filter(|(_, output)| matches!(output, Output::Marked(_))).count();
    let dropped = announced.iter().filter(|(_, output)| matches!(output, Output::Dropped(_))).count();
    assert_eq!((network.drops(), network.marks()), (dropped as u64, marked as u64));
    [announced.len() - dropped, marked, dropped]
}

#[test]
fn a_queue_of_n_packets_holds_n() {
    for queue_packets in 1..8 {
        let held = queue_packets as usize;
        assert_eq!(burst(queue_packets, 0), [held, 0, 7 - held]);
    }
    assert_eq!(burst(100, 0), [7, 0, 0]);
    assert_eq!(burst(0, 0), [7, 0, 0], "0 is a queue without a bound");
}

#[test]
fn a_packet_that_finds_a_long_queue_is_marked() {
    for mark_packets in 1..8 {
        assert_eq!(burst(0, mark_packets), [7, 7 - mark_packets as usize, 0]);
    }
    assert_eq!(burst(5, 3), [5, 2, 2], "dropped packets carry no mark");
}

#[test]
fn a_packet_on_the_link_leaves_its_place_when_the_link_has_carried_it() {
    for (late_ps, arrivals) in [(link_ps(1000) - 1, 1), (link_ps(1000), 2)] {
        let mut network = Switched::new(Parameters { queue_packets: 1, ..PARAMETERS });
        let (_, announced) = drive(&mut network, |network, outputs| {
            network.inject(0, packet(1, 1, 0, 1000), outputs);
            network.inject(
                0,
                weir_sim::network::Injection { spacing_ps: late_ps, ..packet(2, 2, 0, 1000) },
                outputs,
            );
        });
        let arrived = announced.iter().filter(|(_, output)| matches!(output, Output::Arrived(_))).count();
        assert_eq!(arrived, arrivals, "{late_ps} ps later");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Every packet is delivered or dropped, on any tree and with any queue.
    #[test]
    fn packets_are_conserved(
        tree in prop::sample::select(vec![(8u32, 1u32), (2, 3), (4, 2)]),
        ranks_per_node in 1u32..3,
        queue_packets in 0u32..6,
        mark_packets in 0u32..4,
        trains in 1u32..7,
        packets in 1u32..30,
        spacing_ps in 0u64..2_000_000,
    ) {
        let tree = FatTree { arity: tree.0, levels: tree.1 };
        let ranks = tree.hosts() * ranks_per_node;
        let traffic = Traffic { ranks, trains, packets, packet_bytes: 1300, spacing_ps };
        let parameters = Parameters { tree, ranks_per_node, queue_packets, mark_packets, ..PARAMETERS };
        let report = traffic.run(Switched::new(parameters));
        prop_assert_eq!(report.packets + report.drops, u64::from(ranks * trains * packets));
        prop_assert!(queue_packets > 0 || report.drops == 0);
        prop_assert!(mark_packets > 0 || report.marks == 0);
        prop_assert!(report.marks <= report.packets);
        // Bounds that nothing reaches change nothing.
        let unbounded = traffic.run(Switched::new(Parameters { queue_packets: 0, mark_packets: 0, ..parameters }));
        let far = traffic.run(Switched::new(Parameters { queue_packets: 1 << 20, mark_packets: 1 << 19, ..parameters }));
        prop_assert_eq!(far, unbounded);
    }
}

/// Seven ranks send to rank 0 at the same time, which receives `received` messages. Each message is one packet.
fn incast(
    queue_packets: u32,
    scheme: Scheme,
    received: u32,
    tolerates_loss: bool,
) -> Result<Report, WorldError> {
    let network = Switched::new(Parameters { queue_packets, ..PARAMETERS });
    let spec = WorldSpec::new(8, scheme, 4, Cost { packet_send_ps: 100 * NS, ..Cost::FREE });
    let spec = WorldSpec { config: Config { geometry: GEOMETRY, ..spec.config }, tolerates_loss, ..spec };
    let program = move |rank: Rank| -> Program {
        Box::pin(async move {
            match rank.rank() {
                0 => {
                    for _ in 0..received {
                        rank.recv(None, 0, 1000).await;
                    }
                }
                _ => {
                    for _ in 0..10 {
                        rank.send(0, 0, 1000).await;
                    }
                }
            }
        })
    };
    World::new(spec, network, program).run()
}

#[test]
fn a_drop_ends_a_world_whose_machines_do_not_send_again() {
    let error = incast(8, Scheme::Unlimited, 70, false).expect_err("the queue is full");
    assert!(matches!(error, WorldError::Dropped { to: 0, .. }), "{error}");
    // Credits bound what is under way: four data slots and two credit slots of each of seven senders.
    let report = incast(42, Scheme::Static { piggyback: false }, 70, false).expect("ends");
    assert_eq!((report.drops, report.counters[0].messages_received), (0, 70));
}

#[test]
fn a_world_that_tolerates_losses_counts_them() {
    let report = incast(8, Scheme::Unlimited, 0, true).expect("nobody waits");
    let sum = |count: fn(&weir_proto::Counters) -> u64| report.counters.iter().map(count).sum::<u64>();
    assert!(report.drops > 0);
    assert_eq!(sum(|c| c.packets_sent), sum(|c| c.packets_received) + report.drops);
    let error = incast(8, Scheme::Unlimited, 70, true).expect_err("rank 0 waits for lost messages");
    assert!(matches!(error, WorldError::Deadlock { waiting: 1, first: 0, .. }), "{error}");
}
