//! Tests of engines over links that refuse and delay packets and lose peers.

#[path = "common/exchange.rs"]
mod exchange;
#[path = "common/faults.rs"]
mod faults;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use exchange::{AnyEngine, MESSAGES, exchange};
use faults::{delay_often, directory, refuse_often, settings};
use weir_engine::{Engine, Operation, Post, SendArguments};
use weir_link::faulty::{Fault, Faulty, Script};
use weir_link::memory::OwnedMemory;
use weir_link::shm::ShmLink;
use weir_link::{Link, Properties};
use weir_proto::{Outcome, Pattern, Peer, PeerFault, Scheme, SendLevel, Space};

fn open(directory: &tempfile::TempDir, scheme: Scheme, script: Script) -> Engine<Faulty<ShmLink>> {
    let settings = settings(directory, scheme, 1 << 18);
    let make = |link, _| Faulty::new(link, script).with_delays(delay_often(7));
    Engine::open_over(&settings, 2, false, make).expect("an endpoint")
}

fn exchange_over_busy_links(scheme: Scheme) {
    let directory = directory();
    let refused = Arc::new(AtomicU64::new(0));
    let engines = (1..=2).map(|seed| {
        let engine = open(&directory, scheme, refuse_often(seed, Arc::clone(&refused)));
        Box::new(engine) as Box<dyn AnyEngine>
    });
    exchange(engines.collect(), &[(0, 1), (1, 0)]);
    assert!(refused.load(Relaxed) > MESSAGES as u64 / 4, "{refused:?} packets were refused");
}

#[test]
fn messages_arrive_in_order_over_busy_links_with_dynamic_credits() {
    exchange_over_busy_links(Scheme::Dynamic { piggyback: true });
}

#[test]
fn messages_arrive_in_order_over_busy_links_with_static_credits() {
    exchange_over_busy_links(Scheme::Static { piggyback: true });
}

#[test]
fn messages_arrive_in_order_over_busy_links_without_credits() {
    exchange_over_busy_links(Scheme::Unlimited);
}

#[test]
fn a_link_without_order_or_reliability_is_rejected() {
    let directory = directory();
    let settings = settings(&directory, Scheme::Static { piggyback: true }, 1 << 18);
    for (ordered, reliable, missing) in [(false, true, "ordered"), (true, false, "reliable")] {
        let make = |link: ShmLink, _| {
            let properties = Properties { ordered, reliable, ..link.properties() };
            Faulty::new(link, Box::new(|_, _| None)).with_properties(properties)
        };
        let error = Engine::open_over(&settings, 2, false, make).err().expect("rejected").to_string();
        let expected =
            format!("the link SharedMemory is not {missing}; allowed: links that are ordered and reliable");
        assert_eq!(error, expected);
    }
}

#[test]
fn operations_with_a_killed_peer_end_with_an_error() {
    let directory = directory();
    let scheme = Scheme::Dynamic { piggyback: true };
    let mut count = 0;
    let kill_at_fifth = move |_: Peer, _: &weir_proto::Packet| {
        count += 1;
        (count == 5).then_some(Fault::Kill)
    };
    let mut a = open(&directory, scheme, Box::new(kill_at_fifth));
    let mut b = open(&directory, scheme, Box::new(|_, _| None));
    let to_b = a.peer(&b.address());
    let into = OwnedMemory::new(8);
    let pattern = Pattern { space: Space::Tagged, from: Some(to_b), tag: 0, ignore: 0 };
    a.receive(Post::default(), pattern, into.view(), None).expect("taken");
    let payload = OwnedMemory::new(8);
    let mut lost = Vec::new();
    for number in 0..20 {
        let level = SendLevel::Matched; // not complete before the peer's death
        let (space, data, memory, inject) = (Space::Tagged, None, payload.view(), false);
        let post = Post { context: number, cookie: 0 };
        a.send(post, SendArguments { to: to_b, space, tag: 0, data, level, memory, inject }).expect("taken");
        for _ in 0..100 {
            a.progress();
            b.progress();
            while let Some(completion) = a.next_completion() {
                match completion.outcome {
                    Outcome::Lost { fault, .. } => lost.push((completion.operation, fault)),
                    other => panic!("nobody receives: {other:?}"),
                }
            }
        }
    }
    let receives = lost.iter().filter(|(operation, _)| *operation == Operation::Receive).count();
    assert_eq!((lost.len(), receives), (21, 1), "{lost:?}");
    assert!(lost.iter().all(|(_, fault)| *fault == PeerFault::Died), "{lost:?}");
}
