//! Tests of random worlds under load, in schemes with a shared region: credits follow what senders do, and every sender
//! can send at the end.

use fastrand::Rng;
use weir_proto::flow::demand_credits::Tally as DemandTally;
use weir_proto::flow::dynamic_credits::Tally;
use weir_proto::{
    AttachPolicy, Command, DataRegion, Geometry, Outcome, Pattern, Peer, ReceiveCommand, Scheme, SendCommand,
    SendLevel, Space,
};

use super::world::{Plan, World};
use super::{assert_entries_are_freed_after_detach, message, run};

/// A scheme with a shared region under load: 3 to 8 endpoints, in phases in which a few send much and the others little. Regions have
/// any size, packets one or several slots. At the end everything comes to rest, and every endpoint can still send to
/// every other.
fn busy_world(seed: u64, on_demand: bool) -> (u64, Tally, DemandTally) {
    let mut rng = Rng::with_seed(seed);
    let endpoints = rng.u32(3..=8);
    let credit_slots = rng.u32(1..=3);
    let start_slots = credit_slots + [0, 0, 1, 7][rng.usize(..4)];
    let peers = [0, 2, endpoints, endpoints, endpoints + 1][rng.usize(..5)];
    let slots = start_slots * peers + [0, 1, 2, 6, 24, 80, 300][rng.usize(..7)];
    let attach_policy = [AttachPolicy::FirstContact, AttachPolicy::Start][rng.usize(..2)];
    let grace_points = [0, 1, 4][rng.usize(..3)];
    let dynamic = Scheme::Dynamic { piggyback: rng.bool() };
    let plan = Plan {
        endpoints,
        scheme: if on_demand { Scheme::Demand } else { dynamic },
        geometry: [Geometry::SHARED_MEMORY, Geometry::EXTOLL][rng.usize(..2)],
        quota_slots: start_slots + [0, 3, 40, 1000][rng.usize(..4)],
        start_slots,
        credit_slots,
        region: DataRegion { slots, peers, start_slots, attach_policy, grace_points },
        eager_bytes: 100_000,
        cross_memory: false,
        copies_forbidden: false,
        max_lanes: [1, 3, 100, 100][rng.usize(..4)],
        budget_bytes: [1 << 30, 20_000][rng.usize(..2)],
        bounce_bytes: 1 << 30,
        envelope_bytes: u64::MAX,
        planned: rng.bool(),
        deferring: [0, 0, u32::MAX, rng.u32(..)][rng.usize(..4)],
        second_node: [0, 0, rng.u32(..)][rng.usize(..3)],
        nodes_read: false,
        far_geometry: [Geometry::SHARED_MEMORY, Geometry::EXTOLL][rng.usize(..2)],
        readable_eager_bytes: u32::MAX,
    };
    let asked = [0, 0, 4][rng.usize(..3)];
    let mut world = World::new(plan);
    let mut sent = vec![0usize; endpoints as usize];
    let mut transfer = |world: &mut World, from: u32, to: u32, bytes: usize| {
        let into = world.request(to, vec![0; bytes]);
        let pattern = Pattern { space: Space::Tagged, from: Some(Peer(from)), tag: 0, ignore: 0 };
        let receive = ReceiveCommand { request: into, pattern, capacity_bytes: bytes as u64, multi: None };
        world.post(to, Command::Receive(receive));
        let request = world.request(from, message(from, to, bytes as u32, bytes));
        let (to_peer, space, level) = (Peer(to), Space::Tagged, SendLevel::Delivered);
        let (data, bytes) = (Some(bytes as u64), bytes as u64);
        let send = SendCommand { request, to: to_peer, space, tag: 0, data, bytes, level };
        world.post(from, Command::Send(send));
        sent[to as usize] += 1;
    };
    for _ in 0..rng.usize(2..6) {
        let busy: Vec<(u32, u32)> = (0..3).map(|_| (rng.u32(..endpoints), rng.u32(..endpoints))).collect();
        let longest = [20, 200, 1500][rng.usize(..3)];
        for _ in 0..60 {
            let (from, to) = match rng.u8(..8) {
                0 => (rng.u32(..endpoints), rng.u32(..endpoints)),
                _ => busy[rng.usize(..busy.len())],
            };
            let bytes = rng.usize(..longest);
            transfer(&mut world, from, to, bytes);
            for _ in 0..rng.usize(..12) {
                world.step(|count| rng.usize(..count));
                if asked > 0 && rng.u8(..asked) == 0 {
                    world.request_detach(rng.u32(..endpoints), rng.u32(..endpoints));
                }
            }
        }
    }
    world.run_to_rest(|count| rng.usize(..count));
    world.assert_at_rest();
    for from in 0..endpoints {
        for to in 0..endpoints {
            transfer(&mut world, from, to, 300);
        }
        world.run_to_rest(|count| rng.usize(..count));
    }
    world.assert_at_rest();

    let (mut sum, mut lent) = (Tally::default(), DemandTally::default());
    for (to, rank) in world.ranks.iter().enumerate() {
        let mut received = 0;
        for (_, outcome, buffer) in &rank.completions {
            if let Outcome::Received { envelope, bytes, .. } = *outcome {
                assert_eq!(*buffer, message(envelope.from.0, to as u32, bytes as u32, bytes as usize));
                received += 1;
            }
        }
        assert_eq!(received, sent[to]);
        assert!(rank.machine.pool().accounts().all(|account| !account.blocked), "a response is missing");
        add(&mut sum, rank.machine.pool().tally());
        if let Some(pool) = rank.machine.demand_pool() {
            assert!(pool.accounts().all(|account| !account.asked), "a response is missing");
            lent = lent.plus(pool.tally());
        }
    }
    if seed.is_multiple_of(2) {
        assert_entries_are_freed_after_detach(&mut world, &mut rng);
    }
    (world.trace, sum, lent)
}

fn add(sum: &mut Tally, one: &Tally) {
    sum.quota_transfers += one.quota_transfers;
    sum.victims_passed_over += one.victims_passed_over;
    sum.requests += one.requests;
    sum.short_grants += one.short_grants;
    sum.excesses += one.excesses;
    sum.deficits += one.deficits;
}

#[test]
fn credits_follow_activity_and_every_sender_can_send() {
    let seen = std::cell::Cell::new(Tally::default());
    run("credits_follow_activity_and_every_sender_can_send", 150, |seed| {
        let (trace, tally, _) = busy_world(seed, false);
        let mut sum = seen.get();
        add(&mut sum, &tally);
        seen.set(sum);
        trace
    });
    // Each count must be positive, unless a single world is repeated.
    let Tally { quota_transfers, victims_passed_over, requests, short_grants, excesses, deficits, .. } =
        seen.get();
    let least =
        [quota_transfers, victims_passed_over, requests, short_grants, excesses, deficits].into_iter().min();
    assert!(least > Some(10) || std::env::var("WEIR_SEED").is_ok(), "{:?}", seen.get());
}

#[test]
fn lent_credits_reach_every_sender_that_waits() {
    let seen = std::cell::Cell::new(DemandTally::default());
    run("lent_credits_reach_every_sender_that_waits", 150, |seed| {
        let (trace, _, tally) = busy_world(seed, true);
        seen.set(seen.get().plus(&tally));
        trace
    });
    let DemandTally { lent_slots, prefetched_slots, queued, rotations, requests, returned_slots, .. } =
        seen.get();
    let least = [lent_slots, prefetched_slots, queued, rotations, requests, returned_slots].into_iter().min();
    assert!(least > Some(10) || std::env::var("WEIR_SEED").is_ok(), "{:?}", seen.get());
}
