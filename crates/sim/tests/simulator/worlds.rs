//! Tests of worlds: programs run to their end, the same world gives the same run, and no message is lost.

use std::rc::Rc;

use weir_proto::{AttachPolicy, DataRegion, Geometry, Scheme};
use weir_sim::collective::Group;
use weir_sim::cost::Cost;
use weir_sim::network::ideal::Ideal;
use weir_sim::program::{Program, Rank};
use weir_sim::world::{Report, World, WorldError, WorldSpec};

const STATIC: Scheme = Scheme::Static { piggyback: false };
const US: u64 = 1_000_000;

const COST: Cost = Cost {
    send_call_ps: 500_000,
    receive_call_ps: 300_000,
    packet_send_ps: 40_000,
    send_ps_per_kib: 0,
    packet_receive_ps: 50_000,
    credit_send_ps: 60_000,
    credit_receive_ps: 60_000,
    match_ps: 20_000,
    copy_ps_per_kib: 100_000,
    unexpected_copy_ps_per_kib: 100_000,
    combine_ps_per_kib: 0,
    get_ps: 400_000,
    poll_ps: 0,
    call_jitter_ps: 0,
};

fn spec(ranks: u32, scheme: Scheme) -> WorldSpec {
    WorldSpec::new(ranks, scheme, 60, COST)
}

fn extoll_like() -> Ideal {
    Ideal::with_geometry(US, 0, Geometry::EXTOLL)
}

fn run<F>(spec: WorldSpec, program: impl Fn(Rank) -> F) -> Result<Report, WorldError>
where
    F: Future<Output = ()> + 'static,
{
    World::new(spec, extoll_like(), |rank| -> Program { Box::pin(program(rank)) }).run()
}

async fn everything(rank: Rank) {
    let group = Group::all(&rank);
    group.barrier().await;
    group.broadcast(1, 2048).await;
    group.reduce(0, 512).await;
    group.allreduce(8).await;
    group.allgather_ring(100).await;
    group.alltoall_linear(2048, 0).await;
    group.alltoall_linear(700, 2).await;
    group.alltoall_pairwise(2000).await;
    group.alltoall_bruck(16).await;
    group.scatter_linear(2, 4000).await;
    group.gather_linear(2, 10_000).await; // by remote get
    group.barrier().await;
}

#[test]
fn collectives_end_for_any_number_of_ranks_with_and_without_credits() {
    for ranks in [3, 4, 5, 7, 8, 12] {
        for scheme in [
            Scheme::Unlimited,
            STATIC,
            Scheme::Static { piggyback: true },
            Scheme::Dynamic { piggyback: true },
        ] {
            let mut spec = spec(ranks, scheme);
            spec.config.region = DataRegion {
                slots: 20 * ranks,
                peers: ranks,
                start_slots: 2,
                attach_policy: AttachPolicy::Start,
                grace_points: 0,
            };
            let report = run(spec, everything).expect("ends");
            let sent: u64 = report.counters.iter().map(|c| c.messages_sent).sum();
            let received: u64 = report.counters.iter().map(|c| c.messages_received).sum();
            assert_eq!(sent, received, "{ranks} ranks, {scheme:?}");
            assert_eq!(report.latency_ns.len(), received);
            let packets: u64 = report.counters.iter().map(|c| c.packets_sent).sum();
            assert_eq!(packets, report.counters.iter().map(|c| c.packets_received).sum::<u64>());
        }
    }
}

#[test]
fn the_same_world_gives_the_same_trace() {
    let run = |quota_slots| {
        let spec = WorldSpec { quota_slots, ..spec(9, STATIC) };
        run(spec, everything).expect("ends")
    };
    let (first, second, other) = (run(60), run(60), run(59));
    assert_eq!((first.trace, first.finished, first.events), (second.trace, second.finished, second.events));
    assert_ne!(first.trace, other.trace);
}

#[test]
fn call_jitter_makes_seeds_different_worlds() {
    let run = |call_jitter_ps, seed| {
        let cost = Cost { call_jitter_ps, ..COST };
        run(WorldSpec { cost, seed, ..spec(9, STATIC) }, everything).expect("ends")
    };
    assert_eq!(run(0, 1).trace, run(0, 2).trace, "without jitter nothing is drawn");
    let (first, again, other) = (run(US, 1), run(US, 1), run(US, 2));
    assert_eq!((first.trace, first.finished_at), (again.trace, again.finished_at));
    assert_ne!(first.trace, other.trace);
    assert!(first.finished_at > run(0, 1).finished_at, "calls take longer");
}

#[test]
fn message_latency_is_the_sum_of_its_costs() {
    // One message of 8 B: call, one packet, wire, retrieval, copy, matching. The receive was posted long
    // before.
    let report = run(spec(2, STATIC), |rank| async move {
        if rank.rank() == 0 {
            rank.compute(10 * US);
            rank.send(1, 5, 8).await;
        } else {
            let status = rank.recv(Some(0), 5, 8).await;
            assert_eq!((status.source, status.tag, status.bytes), (0, 5, 8));
        }
    })
    .expect("ends");
    let copy = COST.copy_ps(8);
    let expected = 10 * US + COST.send_call_ps + US + COST.packet_receive_ps + copy + COST.match_ps;
    assert_eq!(report.finished[1], expected);
}

/// The receive is posted 100 us after the message was sent; meanwhile another message arrives and ends.
#[test]
fn latency_counts_from_the_send_call_also_if_the_receive_comes_late() {
    for (bytes, what) in [(8, "eager"), (100_000, "rendezvous")] {
        for checked in [false, true] {
            let program = move |rank: Rank| -> Program {
                Box::pin(async move {
                    if rank.rank() == 0 {
                        let first = rank.isend(1, 5, bytes);
                        rank.compute(80 * US);
                        rank.send(1, 6, 8).await;
                        rank.wait(first).await;
                    } else {
                        rank.recv(Some(0), 6, 8).await;
                        rank.compute(100 * US);
                        rank.recv(Some(0), 5, bytes).await;
                    }
                })
            };
            let world = World::new(spec(2, STATIC), extoll_like(), program);
            let report = world.checked(checked).run().expect("ends");
            // The one that was received at once, and the one that was sent at the beginning.
            let latencies_ns = &report.latency_ns;
            assert_eq!(latencies_ns.len(), 2);
            let finished_ns = report.finished[1] / 1000;
            let late_ns = latencies_ns.max();
            assert!(latencies_ns.min() < 10_000, "{what}, checked {checked}: {} ns", latencies_ns.min());
            // Three digits are kept.
            let around = finished_ns - finished_ns / 500..=finished_ns + finished_ns / 500;
            assert!(around.contains(&late_ns), "{what}, checked {checked}: {late_ns} ns of {finished_ns}");
        }
    }
}

#[test]
fn a_message_waits_for_the_next_poll_of_its_receiver() {
    let finished = |poll_ps| {
        let cost = Cost { poll_ps, ..COST };
        let report = run(WorldSpec { cost, ..spec(2, STATIC) }, |rank| async move {
            if rank.rank() == 0 {
                rank.compute(10 * US);
                rank.send(1, 5, 8).await;
            } else {
                rank.recv(Some(0), 5, 8).await;
            }
        });
        report.expect("ends").finished[1]
    };
    let arrival = 10 * US + COST.send_call_ps + US;
    let waited = arrival - COST.receive_call_ps; // since the receive was posted it has found nothing
    for poll_ps in [1, 3 * US, 20 * US] {
        let late = waited.next_multiple_of(poll_ps) - waited;
        assert_eq!(finished(poll_ps), finished(0) + late, "a look every {poll_ps} ps");
    }
}

#[test]
fn credits_slow_a_sender_only_when_they_run_out() {
    // 2 KB are 37 packets. A quota of 60 with two credit slots lets them pass without waiting (thesis, 5.4),
    // a quota of 20 does not.
    let time = |scheme, quota_slots| {
        let spec = WorldSpec { quota_slots, ..spec(2, scheme) };
        let report = run(spec, |rank| async move {
            for _ in 0..50 {
                if rank.rank() == 0 {
                    rank.send(1, 0, 2048).await;
                } else {
                    rank.recv(Some(0), 0, 2048).await;
                }
            }
        });
        report.expect("ends").finished_at as f64
    };
    let (reference, wide, narrow) = (time(Scheme::Unlimited, 1), time(STATIC, 60), time(STATIC, 20));
    assert!(wide < 1.1 * reference, "{wide} against {reference}");
    assert!(narrow > 1.2 * reference, "{narrow} against {reference}");
}

#[test]
fn a_deadlocked_program_is_detected() {
    let error = run(spec(3, STATIC), |rank| async move {
        if rank.rank() == 1 {
            rank.recv(Some(0), 0, 8).await;
        }
    });
    assert_eq!(error.unwrap_err(), WorldError::Deadlock { at_ns: 300, waiting: 1, first: 1 });
}

/// A plan may state each of these times.
#[test]
fn virtual_time_overflow_is_an_error() {
    for others in [1, 2] {
        let error = run(spec(others, STATIC), |rank| async move {
            for _ in 0..20_000 {
                rank.compute(weir_sim::MAX_NS * 1000);
            }
            if rank.rank() > 0 {
                rank.send(0, 0, 8).await;
            }
        });
        let WorldError::TimeLimit { at_s } = error.unwrap_err() else { panic!("another error") };
        assert_eq!(at_s, 4_611_686);
    }
}

#[test]
fn records_and_clock_use_virtual_time() {
    let times = Rc::new(std::cell::Cell::new((0, 0)));
    let seen = Rc::clone(&times);
    let report = run(spec(1, STATIC), move |rank| {
        let seen = Rc::clone(&seen);
        async move {
            let before = rank.clock().await;
            rank.compute(7 * US);
            rank.record("answer", 42.0);
            seen.set((before, rank.clock().await));
            rank.record("last", 1.0); // nothing is waited for after it
        }
    })
    .expect("ends");
    assert_eq!(times.get(), (0, 7 * US));
    assert_eq!(
        (report.records[0].at, report.records[0].name, report.records[0].value),
        (7 * US, "answer", 42.0)
    );
    assert_eq!(report.records[1].name, "last");
}
