//! Tests of remote atomics, an offloaded machine beside the endpoint machine: over shared memory, and over a link
//! that refuses packets.

#[path = "common/faults.rs"]
mod faults;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use faults::{directory, refuse_often, settings};
use weir_engine::{AtomicArguments, Completion, Engine, Operation, Post, PostError, SendArguments};
use weir_link::Link;
use weir_link::faulty::Faulty;
use weir_link::memory::OwnedMemory;
use weir_proto::offload::atomics::MAX_ATOMICS;
use weir_proto::offload::{WordOperation, WordType, WordUpdate};
use weir_proto::{Outcome, Pattern, Peer, PeerFault, Scheme, SendLevel, Space};

const BUDGET_BYTES: u64 = 1 << 20;
const KEY: u64 = 5;
const DYNAMIC: Scheme = Scheme::Dynamic { piggyback: true };

fn add(operand: u64) -> WordUpdate {
    WordUpdate { operation: WordOperation::Sum, word_type: WordType::U64, operand, compare: 0 }
}

fn word(memory: &OwnedMemory) -> u64 {
    let mut bytes = [0; 8];
    memory.view().read(0, &mut bytes);
    u64::from_ne_bytes(bytes)
}

/// Posts a change of the word at `offset`.
fn post<L: Link>(
    engine: &mut Engine<L>,
    peer: Peer,
    offset: u64,
    update: WordUpdate,
    result: &OwnedMemory,
) -> Result<(), PostError> {
    let result = result.view();
    engine.atomic(Post { context: 9, cookie: 0 }, AtomicArguments { peer, key: KEY, offset, update, result })
}

/// Makes progress on both engines until `at` has a completion.
fn complete<L: Link>(engines: &mut [Engine<L>], at: usize) -> Completion {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        for engine in engines.iter_mut() {
            engine.progress();
        }
        if let Some(completion) = engines[at].next_completion() {
            return completion;
        }
        assert!(Instant::now() < deadline, "nothing completes");
    }
}

fn pair(directory: &tempfile::TempDir, scheme: Scheme) -> [Engine; 2] {
    let settings = settings(directory, scheme, BUDGET_BYTES);
    [(); 2].map(|()| Engine::open(&settings, 2, false).expect("an endpoint"))
}

#[test]
fn words_of_a_peer_are_changed_under_every_kind_of_scheme() {
    let schemes = [DYNAMIC, Scheme::Static { piggyback: false }, Scheme::Unlimited];
    for scheme in schemes {
        let directory = directory();
        let mut engines = pair(&directory, scheme);
        let target = engines[0].peer(&engines[1].address());
        let (memory, result) = (OwnedMemory::new(24), OwnedMemory::new(8));
        engines[1].register_memory(KEY, memory.view(), true, true);
        let mut change = |offset, update| {
            post(&mut engines[0], target, offset, update, &result).expect("taken");
            let completion = complete(&mut engines, 0);
            assert_eq!((completion.operation, completion.post.context), (Operation::Atomic, 9), "{scheme:?}");
            (completion.outcome, word(&result))
        };
        assert_eq!(change(0, add(40)), (Outcome::Done, 0));
        assert_eq!(change(0, add(2)), (Outcome::Done, 40));
        let swap = |compare| WordUpdate { operation: WordOperation::CompareSwap, compare, ..add(7) };
        assert_eq!(change(0, swap(41)), (Outcome::Done, 42), "it differs");
        assert_eq!(change(0, swap(42)), (Outcome::Done, 42));
        assert_eq!(change(24, add(1)).0, Outcome::Refused, "beyond the region");
        assert_eq!(change(12, add(1)), (Outcome::Done, 0), "not aligned");
        assert_eq!(change(8, add(1)), (Outcome::Done, 1 << 32));
        assert_eq!(word(&memory), 7);
        engines[1].deregister_memory(KEY);
        engines[1].register_memory(KEY, memory.view(), true, false);
        post(&mut engines[0], target, 0, add(1), &result).expect("taken");
        assert_eq!(complete(&mut engines, 0).outcome, Outcome::Refused, "it is not writable");
    }
}

#[test]
fn an_endpoint_changes_its_own_words_too() {
    let directory = directory();
    let mut engines = pair(&directory, DYNAMIC);
    let myself = engines[0].peer(&engines[0].address());
    let (memory, result) = (OwnedMemory::new(8), OwnedMemory::new(8));
    engines[0].register_memory(KEY, memory.view(), true, true);
    for old in 0..3 {
        post(&mut engines[0], myself, 0, add(1), &result).expect("taken");
        assert_eq!((complete(&mut engines, 0).outcome, word(&result)), (Outcome::Done, old));
    }
}

/// Atomics use the credits of messages: both go through a link that refuses packets, and none is lost or doubled.
#[test]
fn atomics_and_messages_share_a_link_that_refuses_packets() {
    const ROUNDS: u64 = 2000;
    let directory = directory();
    let refused = Arc::new(AtomicU64::new(0));
    let settings = settings(&directory, DYNAMIC, BUDGET_BYTES);
    let mut engines = [1, 2].map(|seed| {
        let make = |link, _| Faulty::new(link, refuse_often(seed, Arc::clone(&refused)));
        Engine::open_over(&settings, 2, false, make).expect("an endpoint")
    });
    let target = engines[0].peer(&engines[1].address());
    let source = engines[1].peer(&engines[0].address());
    let (memory, payload, into) = (OwnedMemory::new(8), OwnedMemory::new(8), OwnedMemory::new(8));
    let results: Vec<OwnedMemory> = (0..ROUNDS).map(|_| OwnedMemory::new(8)).collect();
    engines[1].register_memory(KEY, memory.view(), true, true);
    let (mut posted, mut fetched, mut sent, mut received) = (0, 0, 0, 0);
    let deadline = Instant::now() + Duration::from_secs(100);
    while fetched < ROUNDS || received < ROUNDS {
        assert!(Instant::now() < deadline, "{fetched} fetched, {received} received");
        let has_room = posted - fetched < u64::from(MAX_ATOMICS);
        if let Some(result) = results.get(posted as usize).filter(|_| has_room) {
            let pattern = Pattern { space: Space::Tagged, from: Some(source), tag: 1, ignore: 0 };
            engines[1].receive(Post::default(), pattern, into.view(), None).expect("taken");
            let arguments = SendArguments {
                to: target,
                space: Space::Tagged,
                tag: 1,
                data: None,
                level: SendLevel::Buffered,
                memory: payload.view(),
                inject: false,
            };
            engines[0].send(Post::default(), arguments).expect("taken");
            post(&mut engines[0], target, 0, add(1), result).expect("taken");
            posted += 1;
        }
        for engine in &mut engines {
            engine.progress();
            while let Some(completion) = engine.next_completion() {
                match (completion.operation, completion.outcome) {
                    (Operation::Atomic, Outcome::Done) => fetched += 1,
                    (Operation::Send, Outcome::Done) => sent += 1,
                    (Operation::Receive, Outcome::Received { .. }) => received += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    assert_eq!((sent, word(&memory)), (ROUNDS, ROUNDS));
    assert!(results.iter().map(word).eq(0..ROUNDS), "each fetch got the word that the one before has left");
    assert!(refused.load(Relaxed) > 0, "no packet was refused");
}

#[test]
fn atomics_end_with_their_peer_and_their_number_is_bounded() {
    let directory = directory();
    let [mut initiator, mut target] = pair(&directory, DYNAMIC);
    let peer = initiator.peer(&target.address());
    let result = OwnedMemory::new(8);
    for _ in 0..MAX_ATOMICS {
        post(&mut initiator, peer, 0, add(1), &result).expect("within the bound");
    }
    assert_eq!(post(&mut initiator, peer, 0, add(1), &result), Err(PostError::Again { limit: MAX_ATOMICS }));
    target.close();
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut lost = 0;
    while lost < MAX_ATOMICS {
        assert!(Instant::now() < deadline, "{lost} have ended");
        initiator.progress();
        initiator.wait(1_000_000);
        while let Some(completion) = initiator.next_completion() {
            let outcome = completion.outcome;
            let closed = matches!(outcome, Outcome::Lost { fault: PeerFault::Closed, .. });
            assert!(closed || outcome == Outcome::Refused, "{outcome:?}");
            lost += 1;
        }
    }
    post(&mut initiator, peer, 0, add(1), &result).expect("the peer is lost, not full");
    let outcome = initiator.next_completion().map(|completion| completion.outcome);
    assert_eq!(outcome, Some(Outcome::Lost { peer: Some(peer), fault: PeerFault::Closed }));
}
