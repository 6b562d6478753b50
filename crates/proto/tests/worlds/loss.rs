//! Random worlds in which a sender dies while it holds messages, against the oracle of `holding.rs`.
//!
//! The oracle then leaves out what the dead sender held. A receive or peek that accepts it may fail, and must not wait.

use fastrand::Rng;
use weir_proto::{Pattern, PeekThen, Peer, Request};

use super::super::world::{Plan, World, with_busy_links};
use super::super::{plan, run};
use super::{Kind, Program, Run, Seen, Sent};

/// A sender that holds messages dies while others go on: what was answered stays, what waits for it ends with an error or
/// goes on with others, and all messages of others arrive.
fn loss_world(seed: u64, seen: &mut Seen) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let drawn = plan(&mut rng);
    let envelope_bytes = [0, 64, 128, 640][rng.usize(..4)];
    let endpoints = rng.u32(2..=4);
    let plan = Plan { endpoints, envelope_bytes, ..drawn };
    let programs = (0..endpoints).map(|_| Program::default()).collect();
    let mut run = Run { world: World::new(plan), programs, rng, step: 0 };
    let peeks = [PeekThen::Leave, PeekThen::Claim, PeekThen::Discard].map(Kind::Peek);
    let dying = endpoints - 1;
    let steps = run.rng.usize(20..100);
    let dies_at = run.rng.usize(..steps);
    // Survivors learn of the death at different times.
    let learns_at: Vec<usize> = (0..dying).map(|_| dies_at + run.rng.usize(..30)).collect();
    for step in 0..steps + 60 {
        if step == dies_at {
            run.world.kill(dying);
        }
        for rank in (0..dying).filter(|&rank| learns_at[rank as usize] == step) {
            let program = &mut run.programs[rank as usize];
            (program.lost, program.lost_at) = (Some(dying), run.step);
            run.world.lose(rank, dying);
            run.collect();
        }
        let alive = if step < dies_at { endpoints } else { dying };
        let (from, to) = (run.rng.u32(..alive), run.rng.u32(..dying));
        match run.rng.u8(..12) {
            0..5 if step < steps => run.send(from, to),
            5 | 6 => {
                let (pattern, kind) = (run.pattern(), [Kind::Receive, Kind::Multi][run.rng.usize(..2)]);
                run.post(to, kind, pattern);
            }
            7 => {
                let (pattern, kind) = (run.pattern(), peeks[run.rng.usize(..3)]);
                run.post(to, kind, pattern);
            }
            8 => run.settle(to),
            9 if run.rng.bool() => run.world.request_detach(from, to),
            _ => {
                for _ in 0..run.rng.usize(..6) {
                    run.step();
                }
            }
        }
    }
    run.rest();
    for rank in 0..dying {
        run.programs[rank as usize].check(rank as usize, true);
        run.peek_at_rest(rank);
        while !run.programs[rank as usize].claimed.is_empty() {
            run.settle(rank);
        }
        let open: Vec<Request> = run.programs[rank as usize].open.keys().copied().collect();
        for request in open {
            run.cancel(rank, request);
        }
    }
    run.rest();
    // All messages of the others are received.
    for rank in 0..dying {
        let program = &run.programs[rank as usize];
        let owners = program.owners();
        let mut left: Vec<Pattern> = Vec::new();
        for (&from, sent) in &program.sent {
            let open = (0..).zip(sent).filter(|&(number, _)| !owners.contains_key(&(from, number)));
            if from == dying {
                seen.lost += open.count() as u64;
                continue;
            }
            left.extend(open.map(|(_, &Sent { space, tag, .. })| Pattern {
                space,
                from: Some(Peer(from)),
                tag,
                ignore: 0,
            }));
        }
        run.rng.shuffle(&mut left);
        for pattern in left {
            run.post(rank, Kind::Receive, pattern);
            run.step();
        }
    }
    run.rest();
    run.world.assert_no_requests_left(&(0..dying as usize).collect::<Vec<_>>());
    run.world.assert_within_budget();
    for (rank, program) in run.programs.iter().enumerate().take(dying as usize) {
        assert!(run.world.ranks[rank].machine.is_quiescent(), "{:?}", run.world.ranks[rank].machine);
        program.check(rank, true);
        let owners = program.owners();
        for (&from, sent) in program.sent.iter().filter(|(from, _)| **from != dying) {
            let received = owners.keys().filter(|name| name.0 == from).count();
            assert_eq!(received, sent.len(), "rank {rank} from {from}");
        }
        seen.failed += program.posted.iter().filter(|posted| posted.failed).count() as u64;
    }
    for rank in &run.world.ranks {
        let counters = rank.machine.counters();
        seen.held += counters.held_messages;
        seen.requests += counters.holder_requests_sent;
    }
    run.world.trace
}

#[test]
fn the_loss_of_a_holder_ends_what_waits_for_it() {
    let seen = std::cell::RefCell::new(Seen::default());
    run("the_loss_of_a_holder_ends_what_waits_for_it", 1000, |seed| loss_world(seed, &mut seen.borrow_mut()));
    let Seen { held, requests, failed, lost, .. } = seen.into_inner();
    println!("{held} held, {requests} requests, {failed} failed, {lost} lost");
    let alone = std::env::var("WEIR_SEED").is_ok();
    assert!(alone || [held, requests, failed, lost].into_iter().min() > Some(100));
}

#[test]
fn the_loss_of_a_holder_ends_what_waits_for_it_over_busy_links() {
    run("the_loss_of_a_holder_ends_what_waits_for_it_over_busy_links", 300, |seed| {
        with_busy_links(seed, || loss_world(seed, &mut Seen::default()))
    });
}
