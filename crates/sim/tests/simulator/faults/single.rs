//! Exact tests of one fault each: what a world rejects, delays, reports and detects.

use super::*;

/// A world of two ranks for hand-written tests.
fn pair(scheme: Scheme) -> WorldSpec {
    let spec = draw(0, Ranks::NoFaults).spec;
    let config = Config {
        scheme,
        credit_slots: 2,
        eager_bytes: 2000,
        cross_memory: true,
        unexpected_budget_bytes: 1 << 30,
        region: DataRegion::default(),
        ..spec.config
    };
    WorldSpec { ranks: 2, config, quota_slots: 60, start_slots: 60, ..spec }
}

const STATIC: Scheme = Scheme::Static { piggyback: false };

fn ideal() -> Ideal {
    Ideal::with_geometry(2 * US, 0, Geometry::EXTOLL)
}

async fn messages(rank: Rank, count: u32, bytes: u64) {
    for _ in 0..count {
        if rank.rank() == 0 {
            rank.send(1, 0, bytes).await;
        } else {
            rank.recv(Some(0), 0, bytes).await;
        }
    }
}

fn program(count: u32, bytes: u64) -> impl Fn(Rank) -> Program {
    move |rank| Box::pin(messages(rank, count, bytes))
}

#[test]
fn faults_that_links_cannot_repair_are_rejected() {
    let lossy = LinkFaults { loss_per_million: 5, ..LinkFaults::default() };
    let refused = Faulty::new(ideal(), lossy).expect_err("refused");
    assert_eq!(refused, LinkFaultError::NotRepaired { key: "loss_per_million", value: 5 });
    assert!(refused.to_string().starts_with("loss_per_million is 5; allowed: 0, because the links"));
    let twice = LinkFaults { duplication_per_million: 1, ..LinkFaults::default() };
    assert!(Faulty::new(LogGops::new(loggops::Parameters::DEFAULT, 2), twice).is_err());
    let out_of_order = LinkFaults { reordering_per_million: 1, ..LinkFaults::default() };
    assert!(Faulty::new(ideal(), out_of_order).is_err());
    let infiniband = InfiniBand::new(infiniband::Parameters::CLUSTER_2003);
    assert!(Faulty::new(infiniband.clone(), out_of_order).is_ok());
    let most = LinkFaults { loss_per_million: 500_001, ..LinkFaults::default() };
    let refused = Faulty::new(infiniband, most).expect_err("refused").to_string();
    assert!(refused.starts_with("loss_per_million is 500001; allowed: 0 to 500000"), "{refused}");
    let jitter = LinkFaults { jitter_ps: US, ..LinkFaults::default() };
    assert!(Faulty::new(ideal(), jitter).is_ok(), "a delay keeps the order");

    let with = |faults: &Faults| World::new(pair(STATIC), ideal(), program(1, 8)).with_faults(faults).err();
    let unknown_rank = Faults { crashes: vec![Crash { rank: 2, at: 0 }], ..Faults::default() };
    assert_eq!(with(&unknown_rank), Some(FaultError::Rank { rank: 2, ranks: 2 }));
    let no_time = Faults { slow: vec![Slow { rank: 1, percent: 0 }], ..Faults::default() };
    assert_eq!(with(&no_time), Some(FaultError::Percent { rank: 1, percent: 0 }));
}

#[test]
fn a_lost_packet_is_retransmitted_and_later_packets_wait() {
    // Half of the packets are lost at first. Messages of 37 packets still arrive whole and in order.
    let extoll = extoll::Parameters {
        mesh: Mesh { size: [2, 1, 1] },
        ranks_per_node: 1,
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
    };
    let time = |loss_per_million| {
        let faults = LinkFaults { seed: 9, loss_per_million, ..LinkFaults::default() };
        let network = Faulty::new(Extoll::new(extoll), faults).expect("repaired");
        World::new(pair(STATIC), network, program(20, 2000)).run().expect("ends")
    };
    let (whole, broken) = (time(0), time(500_000));
    assert_eq!(whole.repairs, 0);
    assert!(broken.repairs > 600, "{}", broken.repairs);
    assert!(broken.finished_at > whole.finished_at);
    assert_eq!(broken.counters[1].messages_received, 20);
}

#[test]
fn slow_and_paused_ranks_delay_the_run() {
    let time = |faults: Faults| {
        let world = World::new(pair(STATIC), ideal(), program(50, 8));
        world.with_faults(&faults).expect("valid faults").run().expect("ends").finished_at
    };
    let sound = time(Faults::default());
    let slow = time(Faults { slow: vec![Slow { rank: 1, percent: 1000 }], ..Faults::default() });
    assert!(slow > 5 * sound, "{slow} against {sound}");
    let pause = |rank| weir_sim::world::faults::Pause { rank, at: 5 * US, ps: 1000 * US };
    let paused = time(Faults { pauses: vec![pause(1)], ..Faults::default() });
    assert!((sound + 990 * US..sound + 1010 * US).contains(&paused), "{paused} against {sound}");
}

#[test]
fn a_crash_is_reported_and_fails_operations_on_the_dead_rank() {
    // Rank 1 crashes at 30 us. Rank 0 waits for its message, and then sends to it. The other ranks continue.
    let seen = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&seen);
    let program = move |rank: Rank| -> Program {
        let noted = Rc::clone(&noted);
        Box::pin(async move {
            match rank.rank() {
                0 => {
                    let receive = rank.irecv(Some(1), 0, 8);
                    let status = rank.wait(receive).await;
                    let at = rank.clock().await;
                    let send = rank.isend(1, 0, 50_000);
                    let sent = rank.wait(send).await;
                    noted.borrow_mut().push((at, status.fault, sent.fault));
                }
                1 => rank.compute(1000 * US),
                2 => {
                    rank.compute(200 * US);
                    rank.send(3, 0, 8).await;
                }
                _ => {
                    let status = rank.recv(Some(2), 0, 8).await;
                    assert_eq!(status.fault, None);
                }
            }
        })
    };
    let faults =
        Faults { crashes: vec![Crash { rank: 1, at: 30 * US }], notice_ps: 50 * US, ..Faults::default() };
    let spec = WorldSpec { ranks: 4, ..pair(STATIC) };
    let world = World::new(spec, ideal(), program).with_faults(&faults).expect("valid faults");
    let report = world.run().expect("no rank hangs");
    let died = Some(weir_proto::PeerFault::Died);
    assert_eq!(*seen.borrow(), [(80 * US, died, died)]);
    assert_eq!(report.finished[1], 30 * US);
}

/// A broken network: loses a packet, or delays one while others pass.
struct UnreliableNetwork {
    inner: Ideal,
    arrivals: u32,
    /// Index of the affected packet, and its delay; `None`: it is lost.
    victim: u32,
    late_ps: Option<u64>,
}

impl Network for UnreliableNetwork {
    type Event = ();

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn inject(
        &mut self,
        now: u64,
        injection: weir_sim::network::Injection,
        outputs: &mut weir_sim::network::Outputs<()>,
    ) -> weir_sim::network::Hold {
        let before = outputs.count();
        let hold = self.inner.inject(now, injection, outputs);
        for ScheduledOutput { at, output, .. } in outputs.take(before, Vec::new()) {
            self.arrivals += 1;
            match self.late_ps {
                _ if self.arrivals != self.victim => outputs.push(at, output),
                Some(late_ps) => outputs.push(at + late_ps, output),
                None => {}
            }
        }
        hold
    }

    fn get(&mut self, _: u64, _: u32, _: u32, _: u64, _: u32, _: &mut weir_sim::network::Outputs<()>) {}

    fn handle(&mut self, _: u64, (): (), _: &mut weir_sim::network::Outputs<()>) {}

    fn one_way_ps(&self, from: u32, to: u32) -> u64 {
        self.inner.one_way_ps(from, to)
    }

    fn packet_hops(&self) -> u64 {
        0
    }
}

#[test]
fn a_network_that_loses_or_reorders_is_detected() {
    let run = |victim, late_ps| {
        let network = UnreliableNetwork { inner: ideal(), arrivals: 0, victim, late_ps };
        World::new(pair(Scheme::Unlimited), network, program(10, 8)).checked(true).run()
    };
    assert!(run(99, None).is_ok());
    // If the last message is lost, its receiver waits. If one before it is lost, the next packet is out of
    // order.
    assert!(matches!(run(10, None), Err(WorldError::Deadlock { waiting: 1, first: 1, .. })));
    for late_ps in [None, Some(10 * US)] {
        let Err(WorldError::InvariantViolated { what, .. }) = run(3, late_ps) else { panic!("not noticed") };
        assert!(what.starts_with("I5: Packet") && what.contains("is not the next"), "{what}");
    }
}

#[test]
fn a_message_left_at_the_end_is_detected() {
    let world = World::new(pair(STATIC), ideal(), |rank| -> Program {
        Box::pin(async move {
            if rank.rank() == 0 {
                rank.send(1, 0, 8).await; // no rank receives it
            }
        })
    });
    let Err(WorldError::InvariantViolated { what, .. }) = world.checked(true).run() else {
        panic!("not noticed")
    };
    assert_eq!(what, "at the end 0 has left at 1: 0 packets, 1 messages, 0 slots");
}
