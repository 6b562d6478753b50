//! Tests of hosts: ranks of a host share its NIC, whose processor takes time and runs NIC machines.

use std::cell::RefCell;
use std::rc::Rc;

use crate::support::row;
use weir_proto::{Body, Packet, Scheme};
use weir_sim::collective::Group;
use weir_sim::cost::{Cost, NicCost};
use weir_sim::program::{Program, Rank};
use weir_sim::world::host::{NicArrival, NicMachine, NicTransmit};
use weir_sim::world::{Report, World, WorldSpec};

const NS: u64 = 1000;
const US: u64 = 1_000_000;

fn spec(nodes: u32, nic: Option<NicCost>) -> WorldSpec {
    let cost = Cost { packet_send_ps: 100 * NS, packet_receive_ps: 200 * NS, ..Cost::FREE };
    WorldSpec { nic, ..WorldSpec::new(2 * nodes, Scheme::Static { piggyback: false }, 60, cost) }
}

fn run(nic: Option<NicCost>, program: impl Fn(Rank) -> Program) -> Report {
    World::new(spec(2, nic), row(2), program).checked(true).run().expect("ends")
}

/// The first `senders` ranks of node 0 each send a message of one packet to node 1.
fn across(senders: u32, bytes: u64) -> impl Fn(Rank) -> Program {
    move |rank| {
        Box::pin(async move {
            let me = rank.rank();
            if me < senders {
                rank.send(me + 2, 0, bytes).await;
            } else if (2..2 + senders).contains(&me) {
                rank.recv(Some(me - 2), 0, bytes).await;
            }
        })
    }
}

#[test]
fn a_packet_takes_the_time_of_both_nic_processors() {
    let (packet_send_ps, packet_receive_ps) = (7 * US, 3 * US);
    let cost = NicCost { packet_send_ps, packet_receive_ps, ..NicCost::FREE };
    let (without, with) = (run(None, across(1, 8)), run(Some(cost), across(1, 8)));
    assert_eq!(with.finished[2], without.finished[2] + packet_send_ps + packet_receive_ps);
    assert_eq!(with.finished[0], without.finished[0], "the rank does not wait for its NIC");
}

#[test]
fn ranks_of_a_host_wait_for_the_same_nic_processor() {
    let cost = NicCost { packet_send_ps: 7 * US, packet_receive_ps: 3 * US, ..NicCost::FREE };
    let (alone, both) = (run(Some(cost), across(1, 8)), run(Some(cost), across(2, 8)));
    assert_eq!(both.finished[2], alone.finished[2]);
    assert_eq!(both.finished[3], alone.finished[2] + cost.packet_send_ps);
    // The receiving NIC is the slower one.
    let cost = NicCost { packet_send_ps: 3 * US, packet_receive_ps: 7 * US, ..NicCost::FREE };
    let (alone, both) = (run(Some(cost), across(1, 8)), run(Some(cost), across(2, 8)));
    assert_eq!(both.finished[3], alone.finished[2] + cost.packet_receive_ps);
}

#[test]
fn the_end_of_a_remote_get_takes_the_time_of_the_readers_nic() {
    let get = |get_ps| {
        let cost = NicCost { get_ps, ..NicCost::FREE };
        run(Some(cost), across(1, 100_000)).finished[2]
    };
    assert_eq!(get(9 * US), get(0) + 9 * US);
}

#[test]
fn a_nic_processor_without_prices_takes_no_time() {
    let everything = |rank: Rank| -> Program {
        Box::pin(async move {
            let group = Group::all(&rank);
            group.alltoall_linear(2048, 0).await;
            group.allreduce(8).await;
            group.gather_linear(0, 10_000).await; // by remote get
        })
    };
    let (without, free) = (run(None, everything), run(Some(NicCost::FREE), everything));
    // It costs events, so simultaneous events may come in another order.
    assert_eq!(free.finished, without.finished);
    assert_eq!(free.latency_ns, without.latency_ns);
    assert!(free.events > without.events);
}

/// Passes messages with one tag on to other ranks, to each with a tag of its own: a broadcast that needs no processor of
/// a rank on its way.
struct Forwarder {
    tag: u64,
    to: Vec<u32>,
    /// Whether its own rank gets no copy.
    keeps: bool,
    seen: Rc<RefCell<Vec<NicArrival>>>,
}

impl NicMachine for Forwarder {
    fn arrived(&mut self, arrival: &NicArrival, transmits: &mut Vec<NicTransmit>) -> bool {
        let Body::Eager { space, tag, data, length, acknowledge } = arrival.packet.body else { return false };
        if tag != self.tag {
            return false;
        }
        self.seen.borrow_mut().push(*arrival);
        let copy = |&to: &u32| {
            let body = Body::Eager { space, tag: to.into(), data, length, acknowledge };
            (to, Packet { body, ..arrival.packet })
        };
        let copies = self.to.iter().map(copy).collect();
        transmits.push(NicTransmit { from: arrival.from, copies });
        self.keeps
    }
}

/// Rank 0 sends tag 1 to each other node's first rank, then tag 2 to rank 2, whose NIC passes it on to ranks 4 and 6. Rank 2
/// computes meanwhile.
fn broadcast(keeps: bool) -> (Report, Vec<NicArrival>) {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let program = move |rank: Rank| -> Program {
        Box::pin(async move {
            match rank.rank() {
                0 => {
                    for to in [2, 4, 6] {
                        rank.send(to, 1, 8).await;
                    }
                    rank.send(2, 2, 8).await;
                }
                2 => {
                    rank.compute(1000 * US);
                    rank.recv(Some(0), 1, 8).await;
                    if !keeps {
                        rank.recv(Some(0), 2, 8).await;
                    }
                }
                me @ (4 | 6) => {
                    rank.recv(Some(0), 1, 8).await;
                    rank.recv(Some(0), me.into(), 8).await;
                }
                _ => {}
            }
        })
    };
    let nic =
        NicCost { packet_send_ps: 2 * US, packet_receive_ps: US, copy_send_ps: US / 2, ..NicCost::FREE };
    let spec = WorldSpec {
        config: weir_proto::Config { scheme: Scheme::Unlimited, ..spec(4, None).config },
        ..spec(4, Some(nic))
    };
    let machine = Forwarder { tag: 2, to: vec![4, 6], keeps, seen: Rc::clone(&seen) };
    let report =
        World::new(spec, row(4), program).with_nic_machine(2, Box::new(machine)).run().expect("ends");
    let seen = seen.borrow().clone();
    (report, seen)
}

#[test]
fn a_machine_on_a_nic_passes_packets_on_while_its_rank_computes() {
    let (report, seen) = broadcast(false);
    assert_eq!(seen.iter().map(|it| (it.from, it.to)).collect::<Vec<_>>(), [(0, 2)]);
    let at_ps = seen[0].at.0 * NS;
    // The packet is sent once, its copy half a microsecond later. Then each passes a NIC on its way to its rank.
    for (rank, copies) in [(4, 0), (6, 1)] {
        let earliest = at_ps + 2 * US + copies * US / 2 + US;
        assert!((earliest..earliest + 2 * US).contains(&report.finished[rank]), "{}", report.finished[rank]);
    }
    assert!(report.finished[2] > 1000 * US);
    let received: u64 = report.counters.iter().map(|counters| counters.messages_received).sum();
    assert_eq!(received, 6, "rank 2 has its own copy");
}

#[test]
fn a_packet_that_a_nic_keeps_reaches_no_rank() {
    let (report, seen) = broadcast(true);
    assert_eq!((seen.len(), report.counters[2].messages_received), (1, 1));
    assert!([4, 6].iter().all(|&rank| report.counters[rank as usize].messages_received == 2));
}
