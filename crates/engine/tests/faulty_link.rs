//! Engines over links that refuse packets and lose peers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use weir_engine::config::Settings;
use weir_engine::{Engine, Operation, Post, SendArguments};
use weir_link::faulty::{Fault, Faulty, Script};
use weir_link::memory::OwnedMemory;
use weir_link::shm::ShmLink;
use weir_proto::{Outcome, Pattern, Peer, PeerFault, Scheme, SendLevel, Space};

type FaultyEngine = Engine<Faulty<ShmLink>>;

const MESSAGES: usize = 1000;

fn open(directory: &tempfile::TempDir, scheme: Scheme, script: Script) -> FaultyEngine {
    let settings = Settings {
        shm_dir: directory.path().to_owned(),
        scheme,
        eager_bytes: 2048,
        // A small budget: many messages stay with their sender.
        unexpected_budget_bytes: 1 << 16,
        ..Settings::default()
    };
    Engine::open_over(&settings, 2, false, |link| Faulty::new(link, script)).expect("an endpoint")
}

/// Refuses about a third of the packets for some polls, and counts them.
fn refuse_often(seed: u64, refused: Arc<AtomicU64>) -> Script {
    let mut state = seed;
    Box::new(move |_, _| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = (state >> 33) as u32;
        draw.is_multiple_of(3).then(|| {
            refused.fetch_add(1, Relaxed);
            Fault::Refuse { polls: draw / 3 % 20 }
        })
    })
}

fn bytes_of(number: usize) -> usize {
    [0, 8, 8, 100, 2000, 3000, 9000][number % 7]
}

fn send(engine: &mut FaultyEngine, to: Peer, number: usize, payload: &OwnedMemory) -> bool {
    let inject = number.is_multiple_of(5) && payload.view().bytes() <= 2000;
    let level = [SendLevel::Buffered, SendLevel::Delivered, SendLevel::Matched][number % 3];
    let (space, tag, data, memory) = (Space::Tagged, number as u64 % 2, Some(number as u64), payload.view());
    engine.send(Post::default(), SendArguments { to, space, tag, data, level, memory, inject }).is_ok()
}

/// Sends all messages from `a` to `b` and back, and checks that they arrive in order and whole.
fn exchange(scheme: Scheme) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let refused = Arc::new(AtomicU64::new(0));
    let mut engines = [1, 2].map(|seed| open(&directory, scheme, refuse_often(seed, Arc::clone(&refused))));
    let addresses = [engines[1].address(), engines[0].address()];
    let peers = [0, 1].map(|at: usize| engines[at].peer(&addresses[at]));
    let payloads: Vec<OwnedMemory> = (0..MESSAGES)
        .map(|number| {
            let memory = OwnedMemory::new(bytes_of(number));
            memory.view().write(0, &vec![number as u8; bytes_of(number)]);
            memory
        })
        .collect();
    let into: Vec<Vec<OwnedMemory>> =
        (0..2).map(|_| (0..MESSAGES).map(|_| OwnedMemory::new(9000)).collect()).collect();
    let mut to_send = [VecDeque::from_iter(0..MESSAGES), VecDeque::from_iter(0..MESSAGES)];
    let (mut posted, mut received, mut sent) = ([0; 2], [0; 2], [0; 2]);
    let began = std::time::Instant::now();
    while received != [MESSAGES; 2] || sent != [MESSAGES; 2] {
        assert!(began.elapsed().as_secs() < 100, "received {received:?}, sent {sent:?}");
        for at in 0..2 {
            let engine = &mut engines[at];
            if let Some(number) = to_send[at].pop_front()
                && !send(engine, peers[at], number, &payloads[number])
            {
                to_send[at].push_front(number);
            }
            // Receives come later than most messages.
            if posted[at] < MESSAGES && posted[at] < sent[at] + 4 {
                let pattern =
                    Pattern { space: Space::Tagged, from: Some(peers[at]), tag: 0, ignore: u64::MAX };
                let post = Post { context: posted[at], cookie: 0 };
                engine.receive(post, pattern, into[at][posted[at]].view(), None).expect("taken");
                posted[at] += 1;
            }
            engine.progress();
            while let Some(completion) = engine.next_completion() {
                match completion.outcome {
                    Outcome::Received { envelope, bytes, .. } => {
                        let number = received[at];
                        assert_eq!((completion.post.context, envelope.data), (number, Some(number as u64)));
                        assert_eq!(bytes as usize, bytes_of(number));
                        let mut arrived = vec![0; bytes as usize];
                        into[at][number].view().read(0, &mut arrived);
                        assert!(arrived.iter().all(|&byte| byte == number as u8), "message {number}");
                        received[at] += 1;
                    }
                    Outcome::Done if completion.operation == Operation::Send => sent[at] += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    assert!(refused.load(Relaxed) > MESSAGES as u64 / 4, "{refused:?} packets were refused");
    // Closing takes turns: each may wait for the other.
    let [mut a, mut b] = engines;
    std::thread::scope(|scope| {
        scope.spawn(move || a.close());
        scope.spawn(move || b.close());
    });
}

#[test]
fn messages_arrive_in_order_over_a_link_that_refuses_with_dynamic_credits() {
    exchange(Settings::default().scheme);
}

#[test]
fn messages_arrive_in_order_over_a_link_that_refuses_with_static_credits() {
    exchange(Scheme::Static { piggyback: true });
}

#[test]
fn messages_arrive_in_order_over_a_link_that_refuses_without_credits() {
    exchange(Scheme::Unlimited);
}

#[test]
fn operations_with_a_killed_peer_end_with_an_error() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let scheme = Settings::default().scheme;
    let mut count = 0;
    let kill_at_fifth = move |_: Peer, _: &weir_proto::Packet| {
        count += 1;
        (count == 5).then_some(Fault::Kill)
    };
    let mut a = open(&directory, scheme, Box::new(kill_at_fifth));
    let mut b = open(&directory, scheme, Box::new(|_, _| None));
    let (to_b, _to_a) = (a.peer(&b.address()), b.peer(&a.address()));
    let into = OwnedMemory::new(8);
    let pattern = Pattern { space: Space::Tagged, from: Some(to_b), tag: 0, ignore: 0 };
    a.receive(Post::default(), pattern, into.view(), None).expect("taken");
    let payload = OwnedMemory::new(8);
    let (mut done, mut lost) = (0, Vec::new());
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
                    Outcome::Done => done += 1,
                    Outcome::Lost { fault, .. } => lost.push((completion.operation, fault)),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    assert_eq!(done, 0, "nobody receives");
    let receives = lost.iter().filter(|(operation, _)| *operation == Operation::Receive).count();
    assert_eq!((lost.len(), receives), (21, 1), "{lost:?}");
    assert!(lost.iter().all(|(_, fault)| *fault == PeerFault::Died), "{lost:?}");
}
