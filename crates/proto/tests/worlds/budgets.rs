//! Tests of random floods of one receiver: its memory keeps the budgets, and nothing that was promised is lost.

use std::num::NonZeroU32;

use fastrand::Rng;
use weir_proto::flow::static_connection::ecm_slots;
use weir_proto::{
    Command, DataRegion, Growth, Outcome, Pattern, Peer, ReceiveCommand, Scheme, SendCommand, Space,
};

use super::world::{Plan, World, with_busy_links};
use super::{LEVELS, crash_world, message, plan, remote_world, run};

/// Events of floods, summed over worlds, to show that they occur.
#[derive(Debug, Default)]
struct Seen {
    forced_rendezvous: u64,
    /// Packets that set `rendezvous_only` after one that did not, and the other way round.
    switched_on: u64,
    switched_off: u64,
    fetched: u64,
    voided: u64,
}

/// Senders flood one receiver. It receives late, in another order, or never, and may close while senders hold payload.
/// The budget and the senders' limits hold at every step, received bytes are correct, and nothing is left.
fn flood_world(seed: u64, seen: &mut Seen) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let drawn = plan(&mut rng);
    let piggyback = rng.bool();
    let mut credit_slots = rng.u32(1..=3);
    let quota_slots = credit_slots + rng.u32(..20);
    let ecm_threshold = NonZeroU32::new(rng.u32(..=quota_slots));
    let scheme = [
        Scheme::Static { piggyback },
        Scheme::StaticConnection { ecm_threshold },
        Scheme::AdaptiveBacklog { growth: Growth::Exponential, ecm_threshold },
        Scheme::Dynamic { piggyback },
        Scheme::Demand,
    ][rng.usize(..5)];
    let start_slots = match scheme {
        Scheme::Dynamic { .. } | Scheme::Demand => credit_slots,
        Scheme::AdaptiveBacklog { .. } => rng.u32(1..=quota_slots),
        _ => quota_slots,
    };
    if let Scheme::StaticConnection { ecm_threshold } = scheme {
        credit_slots = ecm_slots(quota_slots, ecm_threshold);
    }
    let eager_bytes = [100, 2048][rng.usize(..2)];
    // The reservation of two or three senders and a little more, or less than that of one.
    let budget_bytes = u64::from(quota_slots) * 164 * rng.u64(..5) + rng.u64(..20_000);
    let endpoints = rng.u32(2..=4);
    let peers = endpoints;
    let slots = start_slots * peers + rng.u32(..20);
    let region = DataRegion { slots, peers, start_slots, ..drawn.region };
    let lanes = Plan { quota_slots, start_slots, credit_slots, region, ..drawn };
    let mut world = World::new(Plan { endpoints, scheme, eager_bytes, budget_bytes, ..lanes });
    let detach_requests = rng.bool();
    let mut sent = Vec::new();
    for number in 0..rng.u32(20..200) {
        let from = rng.u32(1..endpoints);
        let bytes = [1, rng.usize(1..20), rng.usize(1..2500)][rng.usize(..3)];
        let request = world.request(from, message(from, 0, number, bytes));
        let level = LEVELS[rng.usize(..4)];
        let (to, space, data) = (Peer(0), Space::Tagged, Some(u64::from(number)));
        let send = SendCommand { request, to, space, tag: 0, data, bytes: bytes as u64, level };
        world.post(from, Command::Send(send));
        sent.push((from, number, bytes));
        for _ in 0..rng.u8(..6) {
            world.step(|count| rng.usize(..count));
            if detach_requests && rng.u8(..4) == 0 {
                world.request_detach(rng.u32(1..endpoints), 0);
            }
        }
        if rng.u8(..3) == 0 {
            let request = world.request(0, vec![0; 2500]);
            let from = rng.bool().then(|| Peer(rng.u32(1..endpoints)));
            let pattern = Pattern { space: Space::Tagged, from, tag: 0, ignore: 0 };
            let receive = ReceiveCommand { request, pattern, capacity_bytes: 2500, multi: None };
            world.post(0, Command::Receive(receive));
        }
        world.assert_within_budget();
    }
    world.run_to_rest(|count| rng.usize(..count));
    // Receives without a message are canceled. Then the rest is received, or the receiver closes.
    let waiting: Vec<_> = world.outstanding(0);
    for request in waiting {
        world.post(0, Command::Cancel { request });
    }
    let closes = rng.bool();
    if closes {
        seen.voided +=
            u64::from((1..endpoints as usize).any(|rank| world.ranks[rank].machine.has_undelivered()));
        world.run_to_rest(|count| rng.usize(..count));
        world.post(0, Command::Close);
        world.run_to_rest(|count| rng.usize(..count));
        for rank in 1..endpoints {
            let machine = &world.ranks[rank as usize].machine;
            if machine.has_undelivered() {
                // A detached receiver sends no goodbye. A sender with an announced rendezvous checks whether the
                // receiver is alive.
                assert!(
                    detach_requests || world.plan.max_lanes < 10,
                    "endpoint {rank} has undelivered messages after the goodbye"
                );
                let mut looks = false;
                machine.depends_on(|peer| looks |= peer == Peer(0));
                assert!(looks, "endpoint {rank} has undelivered messages and does not check its receiver");
                world.lose(rank, 0);
            }
            let machine = &world.ranks[rank as usize].machine;
            assert!(!machine.has_undelivered(), "endpoint {rank} has undelivered messages after the goodbye");
        }
    } else {
        for _ in 0..sent.len() {
            let request = world.request(0, vec![0; 2500]);
            let pattern = Pattern { space: Space::Tagged, from: None, tag: 0, ignore: 0 };
            let receive = ReceiveCommand { request, pattern, capacity_bytes: 2500, multi: None };
            world.post(0, Command::Receive(receive));
            world.step(|count| rng.usize(..count));
        }
        world.run_to_rest(|count| rng.usize(..count));
        for request in world.outstanding(0) {
            world.post(0, Command::Cancel { request });
        }
        world.assert_at_rest();
    }
    world.assert_within_budget();
    let mut received = 0;
    for (_, outcome, buffer) in &world.ranks[0].completions {
        if let Outcome::Received { envelope, bytes, .. } = outcome {
            let number = envelope.data.expect("numbered") as u32;
            let from = envelope.from.0;
            assert!(sent.contains(&(from, number, *bytes as usize)));
            assert_eq!(buffer[..*bytes as usize], message(from, 0, number, *bytes as usize));
            received += 1;
        }
    }
    assert!(closes || received == sent.len(), "{received} of {} messages received", sent.len());
    let forced_rendezvous: u64 =
        world.ranks.iter().map(|rank| rank.machine.counters().forced_rendezvous).sum();
    seen.forced_rendezvous += forced_rendezvous;
    seen.switched_on += world.switched_on;
    seen.switched_off += world.switched_off;
    seen.fetched +=
        u64::from(forced_rendezvous > 0 && (!world.plan.cross_memory || world.plan.copies_forbidden));
    world.trace
}

#[test]
fn a_flood_stays_within_the_memory_budgets() {
    let seen = std::cell::RefCell::new(Seen::default());
    run("a_flood_stays_within_the_memory_budgets", 500, |seed| flood_world(seed, &mut seen.borrow_mut()));
    let seen = seen.into_inner();
    println!("{seen:?}");
    let Seen { forced_rendezvous, switched_on, switched_off, fetched, voided } = seen;
    let least = [forced_rendezvous, switched_on, switched_off, fetched, voided].into_iter().min();
    let alone = std::env::var("WEIR_SEED").is_ok();
    assert!(alone || least > Some(0), "an event never occurred: {seen:?}");
}

#[test]
fn memory_and_losses_are_as_promised_over_busy_links() {
    let seen = std::cell::RefCell::new(Seen::default());
    run("memory_and_losses_are_as_promised_over_busy_links", 500, |seed| {
        with_busy_links(seed, || {
            flood_world(seed, &mut seen.borrow_mut()) ^ remote_world(seed) ^ crash_world(seed)
        })
    });
}
