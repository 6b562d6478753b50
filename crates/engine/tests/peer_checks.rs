//! Tests of checks of peers: their cost does not grow with the number of idle peers, and a death is noticed in
//! time.

#[path = "common/stub_link.rs"]
mod stub_link;

use stub_link::{LEASE, address, engine_before};

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use weir_engine::{Engine, Post};
use weir_link::memory::OwnedMemory;
use weir_link::{Arrival, Link};
use weir_proto::{Outcome, Pattern, Peer, PeerFault, Space};

/// Checks of peers a second, and the most peers that one of them looks at.
const CHECKS_PER_SECOND: u64 = 5;
const PEERS_PER_CHECK: u64 = 128;

/// Posts a receive from anybody.
fn receive_from_anybody(engine: &mut Engine<impl Link>, into: &OwnedMemory) {
    let pattern = Pattern { space: Space::Tagged, from: None, tag: 7, ignore: 0 };
    engine.receive(Post::default(), pattern, into.view(), None).expect("taken");
}

/// Polls until there is a completion, at most `at_most`. Returns how it ended.
fn poll(engine: &mut Engine<impl Link>, at_most: Duration) -> Option<Outcome> {
    let began = Instant::now();
    while began.elapsed() < at_most {
        engine.progress();
        if let Some(completion) = engine.next_completion() {
            return Some(completion.outcome);
        }
    }
    None
}

#[test]
fn a_receive_from_anybody_checks_a_bounded_number_of_idle_peers() {
    let (mut engine, calls) = stub_link::engine(3000);
    let into = OwnedMemory::new(8);
    receive_from_anybody(&mut engine, &into);
    let began = Instant::now();
    assert!(poll(&mut engine, Duration::from_millis(1100)).is_none(), "nobody has died");
    let checks = began.elapsed().as_millis() as u64 * CHECKS_PER_SECOND / 1000 + 1;
    let looked = calls.checks.load(Relaxed);
    assert!(looked > 0 && looked <= checks * PEERS_PER_CHECK, "{looked} peers in {checks} checks");
    // In turn: nobody is checked again before all others.
    let mut checked = calls.checked.lock().expect("no panic while checking").clone();
    checked.sort_unstable();
    checked.dedup();
    assert_eq!(checked.len() as u64, looked);
}

#[test]
fn the_death_of_one_of_250_peers_is_reported_within_a_second() {
    let (mut engine, calls) = stub_link::engine(250);
    let into = OwnedMemory::new(8);
    receive_from_anybody(&mut engine, &into);
    assert!(poll(&mut engine, Duration::from_millis(300)).is_none(), "nobody has died");
    for dead in [250, 1] {
        calls.dead.store(dead, Relaxed);
        let died = Instant::now();
        let outcome = poll(&mut engine, Duration::from_secs(10));
        assert!(
            matches!(outcome, Some(Outcome::Lost { fault: PeerFault::Died, .. })),
            "peer {dead}: {outcome:?} after {:?}",
            died.elapsed()
        );
        assert!(died.elapsed() < Duration::from_secs(1), "peer {dead}: reported after {:?}", died.elapsed());
        receive_from_anybody(&mut engine, &into);
    }
}

#[test]
fn a_lost_peer_that_attaches_again_is_lost_again() {
    let attached = || Arrival::Attached { lane: 1, address: address(1), lease: LEASE };
    let lost = Arrival::Lost { peer: Peer(0), fault: PeerFault::Died };
    let (mut engine, calls) = engine_before([attached(), lost, attached()].into());
    while engine.progress() > 0 {}
    // Its link remembers the latest losses only, and may have let it in.
    assert_eq!(*calls.forgotten.lock().unwrap(), [Peer(0); 2]);
}
