//! Tests of endpoints with several links: shared memory, and a link inside the process with other slots that
//! refuses and delays packets.

#[path = "common/exchange.rs"]
mod exchange;
#[path = "common/faults.rs"]
mod faults;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use exchange::{AnyEngine, MESSAGES, exchange};
use faults::{delay_often, directory, refuse_often, settings};
use weir_engine::{Engine, Post, SendArguments};
use weir_link::LinkKind;
use weir_link::faulty::{Delays, Faulty, Script};
use weir_link::links::Links;
use weir_link::local::LocalLink;
use weir_link::memory::OwnedMemory;
use weir_link::shm::ShmLink;
use weir_proto::{Outcome, Pattern, PeerFault, Scheme, SendLevel, Space};

/// Enough for the large slots of the local link.
const BUDGET_BYTES: u64 = 1 << 26;

type TwoLinks = Engine<Links<ShmLink>>;

fn open(directory: &tempfile::TempDir, scheme: Scheme, script: Script, delays: Delays) -> TwoLinks {
    let make = |shm: ShmLink, _| {
        let local = LocalLink::open(&shm.address(), shm.quota());
        Links::new(shm, vec![Box::new(Faulty::new(local, script).with_delays(delays))])
    };
    Engine::open_over(&settings(directory, scheme, BUDGET_BYTES), 3, false, make).expect("an endpoint")
}

fn open_without_faults(directory: &tempfile::TempDir, scheme: Scheme) -> TwoLinks {
    open(directory, scheme, Box::new(|_, _| None), Box::new(|_, _| 0))
}

/// Endpoints 0 and 1 have both links, endpoint 2 has shared memory only.
fn exchange_over_two_links(scheme: Scheme) {
    let directory = directory();
    let refused = Arc::new(AtomicU64::new(0));
    let mut engines: Vec<Box<dyn AnyEngine>> = (1..=2)
        .map(|seed| {
            let script = refuse_often(seed, Arc::clone(&refused));
            let engine = open(&directory, scheme, script, delay_often(seed));
            Box::new(engine) as Box<dyn AnyEngine>
        })
        .collect();
    let shm_only = Engine::open(&settings(&directory, scheme, BUDGET_BYTES), 3, false).expect("an endpoint");
    assert_eq!(shm_only.address().part(LinkKind::Local), None);
    engines.push(Box::new(shm_only));
    exchange(engines, &[(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (0, 0)]);
    assert!(
        refused.load(Relaxed) > MESSAGES as u64 / 4,
        "{refused:?} packets of the local link were refused"
    );
}

#[test]
fn an_endpoint_uses_two_links_at_once_with_dynamic_credits() {
    exchange_over_two_links(Scheme::Dynamic { piggyback: true });
}

#[test]
fn an_endpoint_uses_two_links_at_once_with_static_credits() {
    exchange_over_two_links(Scheme::Static { piggyback: true });
}

/// Sends 8 bytes, complete when matched.
fn send(engine: &mut TwoLinks, to: weir_proto::Peer, payload: &OwnedMemory) {
    let (space, level, memory) = (Space::Tagged, SendLevel::Matched, payload.view());
    let arguments = SendArguments { to, space, tag: 0, data: None, level, memory, inject: false };
    engine.send(Post::default(), arguments).expect("taken");
}

#[test]
fn a_message_over_the_second_link_ends_the_sleep_on_the_first() {
    let directory = directory();
    let scheme = Scheme::Dynamic { piggyback: true };
    let (mut a, mut b) = (open_without_faults(&directory, scheme), open_without_faults(&directory, scheme));
    let (to_b, to_a) = (a.peer(&b.address()), b.peer(&a.address()));
    let into = OwnedMemory::new(8);
    let pattern = Pattern { space: Space::Tagged, from: Some(to_b), tag: 0, ignore: 0 };
    a.receive(Post::default(), pattern, into.view(), None).expect("taken");
    let sender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        let payload = OwnedMemory::new(8);
        send(&mut b, to_a, &payload);
        while b.next_completion().is_none() {
            b.progress();
        }
        assert_eq!(b.link().other_link_of(to_a), Some(0));
    });
    let began = Instant::now();
    let mut sleeps = 0;
    let completion = loop {
        a.progress();
        if let Some(completion) = a.next_completion() {
            break completion;
        }
        a.wait(60_000_000_000);
        sleeps += 1;
    };
    assert!(matches!(completion.outcome, Outcome::Received { bytes: 8, .. }), "{completion:?}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert!((1..100).contains(&sleeps), "{sleeps} sleeps");
    // The acknowledgement leaves with the next progress.
    while !sender.is_finished() {
        a.progress();
    }
    sender.join().expect("the sender");
    assert_eq!(a.link().other_link_of(to_b), Some(0), "both endpoints use the same link");
}

#[test]
fn a_closed_endpoint_is_reported_over_the_second_link() {
    let directory = directory();
    let scheme = Scheme::Dynamic { piggyback: true };
    let (mut a, mut b) = (open_without_faults(&directory, scheme), open_without_faults(&directory, scheme));
    let to_b = a.peer(&b.address());
    let payload = OwnedMemory::new(8);
    send(&mut a, to_b, &payload);
    for _ in 0..10 {
        a.progress();
        b.progress();
    }
    b.close();
    let began = Instant::now();
    let completion = loop {
        a.progress();
        if let Some(completion) = a.next_completion() {
            break completion;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "nothing is reported");
    };
    assert!(matches!(completion.outcome, Outcome::Lost { fault: PeerFault::Closed, .. }), "{completion:?}");
}
