//! A link that shares a token with the other endpoints of the node, in the node segment. It refuses packets while another
//! endpoint has the token. This is what a link that can congest does; a pool with many tokens is not part of the test.

#[path = "common/faults.rs"]
mod faults;

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use faults::{directory, settings};
use weir_engine::job::Job;
use weir_engine::{Engine, Operation, Post, SendArguments};
use weir_link::faulty::{Faulty, Gate};
use weir_link::memory::OwnedMemory;
use weir_link::shm::ShmLink;
use weir_link::shm::node_segment::{Area, JobKey, NodeHandle, SharedArea};
use weir_proto::{Body, Outcome, Packet, Pattern, Peer, Scheme, SendLevel, Space};

/// Which words of the area have a meaning: the endpoint that has the token, and one that waits for it. 0: none.
const TICKET: usize = 0;
const WAITER: usize = 1;

/// The only token of the node.
#[derive(Clone)]
struct Token {
    node: NodeHandle,
    area: SharedArea,
}

impl Token {
    fn new(node: NodeHandle) -> Token {
        let area = node.area(Area::TokenPools).expect("memory");
        Token { node, area }
    }

    fn take(&self) -> bool {
        self.area[TICKET].compare_exchange(0, self.node.endpoint(), SeqCst, SeqCst).is_ok()
    }

    /// Takes the token from an endpoint that has ended.
    fn take_back(&self) {
        let holder = self.area[TICKET].load(SeqCst);
        if !self.node.members().iter().any(|(_, member)| member.endpoint == holder) {
            let _ = self.area[TICKET].compare_exchange(holder, 0, SeqCst, SeqCst);
        }
    }

    fn is_ours(&self) -> bool {
        self.area[TICKET].load(SeqCst) == self.node.endpoint()
    }

    fn give_back(&self) {
        self.area[TICKET].store(0, SeqCst);
        let waiter = self.area[WAITER].swap(0, SeqCst);
        if let Some(bell) = self.node.bell_of(waiter) {
            bell.ring();
        }
    }
}

impl Gate for Token {
    fn admits(&mut self, _: Peer, packet: &Packet) -> bool {
        if !matches!(packet.body, Body::Eager { .. }) || self.take() {
            return true;
        }
        self.take_back();
        self.area[WAITER].store(self.node.endpoint(), SeqCst);
        self.take() // it may have come back before the waiter was seen
    }

    fn is_open(&self, _: Peer) -> bool {
        self.area[TICKET].load(SeqCst) == 0
    }

    /// Afterwards others may take the token from this endpoint. So it must not give it back then.
    fn give_back_shared(&mut self) {
        let joined = self.node.members().iter().any(|(_, member)| member.endpoint == self.node.endpoint());
        assert!(joined, "the endpoint has left the node segment before its link gives the token back");
        if self.is_ours() {
            self.give_back();
        }
    }
}

type TokenEngine = Engine<Faulty<ShmLink>>;

fn open(directory: &tempfile::TempDir) -> (TokenEngine, Token) {
    let settings = settings(directory, Scheme::Dynamic { piggyback: true }, 1 << 20);
    let mut token = None;
    let make = |link, node: Option<NodeHandle>| {
        token = node.map(Token::new);
        let gate = Box::new(token.clone().expect("a node segment"));
        Faulty::new(link, Box::new(|_, _| None)).with_gate(gate)
    };
    let job = Job::from(3).with_key(JobKey::new(&"a job"));
    let engine = Engine::open_over(&settings, job, false, make).expect("an endpoint");
    (engine, token.expect("made"))
}

fn send(engine: &mut TokenEngine, to: Peer, tag: u64, payload: &OwnedMemory) {
    let (space, level, memory) = (Space::Tagged, SendLevel::Buffered, payload.view());
    let arguments = SendArguments { to, space, tag, data: None, level, memory, inject: false };
    engine.send(Post::default(), arguments).expect("taken");
}

fn receive(engine: &mut TokenEngine, tag: u64, into: &OwnedMemory) {
    let pattern = Pattern { space: Space::Tagged, from: None, tag, ignore: 0 };
    engine.receive(Post { context: tag as usize, cookie: 0 }, pattern, into.view(), None).expect("taken");
}

/// The tags of the messages that arrive at `receiver` while both make progress for a while.
fn arrivals(sender: &mut TokenEngine, receiver: &mut TokenEngine) -> Vec<usize> {
    let mut tags = Vec::new();
    for _ in 0..100 {
        sender.progress();
        receiver.progress();
        while let Some(completion) = receiver.next_completion() {
            assert!(matches!(completion.outcome, Outcome::Received { bytes: 8, .. }), "{completion:?}");
            tags.push(completion.post.context);
        }
    }
    tags
}

#[test]
fn a_link_refuses_packets_until_another_endpoint_gives_the_token_back() {
    let directory = directory();
    let ((mut a, _), (mut b, token_of_b)) = (open(&directory), open(&directory));
    let to_b = a.peer(&b.address());
    let (payload, into) = (OwnedMemory::new(8), OwnedMemory::new(8));
    (0..3).for_each(|tag| receive(&mut b, tag, &into));
    (0..3).for_each(|tag| send(&mut a, to_b, tag, &payload));
    for tag in 0..3 {
        assert_eq!(arrivals(&mut a, &mut b), [tag], "one message for each token");
        token_of_b.give_back();
    }
}

#[test]
fn a_sleeping_endpoint_wakes_when_the_token_is_back() {
    let directory = directory();
    let ((mut a, _), (mut b, token_of_b)) = (open(&directory), open(&directory));
    let to_b = a.peer(&b.address());
    let (payload, into) = (OwnedMemory::new(8), OwnedMemory::new(8));
    receive(&mut b, 0, &into);
    send(&mut a, to_b, 0, &payload);
    assert_eq!(arrivals(&mut a, &mut b), [0]);
    send(&mut a, to_b, 1, &payload);
    assert_eq!(a.next_completion().map(|completion| completion.operation), Some(Operation::Send));
    assert!(a.next_completion().is_none(), "the second send waits for the token");
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        token_of_b.give_back();
    });
    let (began, mut sleeps) = (Instant::now(), 0);
    while a.next_completion().is_none() {
        a.wait(60_000_000_000);
        sleeps += 1;
        a.progress();
    }
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert!((1..100).contains(&sleeps), "{sleeps} sleeps");
    other.join().expect("given back");
}

#[test]
fn an_endpoint_that_closes_gives_the_token_back_before_it_leaves_the_node_segment() {
    let directory = directory();
    let ((mut a, token_of_a), (mut b, _)) = (open(&directory), open(&directory));
    let to_b = a.peer(&b.address());
    let (payload, into) = (OwnedMemory::new(8), OwnedMemory::new(8));
    receive(&mut b, 0, &into);
    send(&mut a, to_b, 0, &payload);
    assert_eq!(arrivals(&mut a, &mut b), [0]);
    assert!(token_of_a.is_ours());
    assert!(a.close().is_none(), "everything is delivered");
    assert!(!token_of_a.is_ours());
}

#[test]
fn the_token_of_an_endpoint_that_has_ended_is_taken_back() {
    let directory = directory();
    let ((mut a, _), (mut b, _), (mut c, _)) = (open(&directory), open(&directory), open(&directory));
    let (payload, into) = (OwnedMemory::new(8), OwnedMemory::new(8));
    (0..2).for_each(|tag| receive(&mut b, tag, &into));
    let from_c = c.peer(&b.address());
    send(&mut c, from_c, 0, &payload);
    assert_eq!(arrivals(&mut c, &mut b), [0]);
    drop(c); // with the token
    let to_b = a.peer(&b.address());
    send(&mut a, to_b, 1, &payload);
    assert_eq!(arrivals(&mut a, &mut b), [1]);
}

#[test]
fn a_link_of_an_endpoint_without_a_job_gets_no_node_segment() {
    let directory = directory();
    let settings = settings(&directory, Scheme::Dynamic { piggyback: true }, 1 << 20);
    let make = |link: ShmLink, node: Option<NodeHandle>| {
        assert!(node.is_none());
        link
    };
    Engine::open_over(&settings, 3, false, make).expect("an endpoint");
}
