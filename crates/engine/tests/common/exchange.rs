//! Exchanges of many messages between engines over any links, in one thread.

use std::time::{Duration, Instant};

use weir_engine::{Completion, Engine, Operation, Post, PostError, SendArguments};
use weir_link::memory::{OwnedMemory, UserMemory};
use weir_link::{Address, Link};
use weir_proto::{Outcome, Pattern, Peer, SendLevel, Space};

/// Messages of each pair.
pub const MESSAGES: usize = 1000;
const LONGEST_BYTES: usize = 9000;

/// An engine over any link.
pub trait AnyEngine: Send {
    fn address(&self) -> Address;
    fn peer(&mut self, address: &Address) -> Peer;
    fn send(&mut self, arguments: SendArguments) -> Result<(), PostError>;
    fn receive(&mut self, post: Post, pattern: Pattern, memory: UserMemory);
    fn progress(&mut self);
    fn next_completion(&mut self) -> Option<Completion>;
    fn close(&mut self);
}

impl<L: Link> AnyEngine for Engine<L> {
    fn address(&self) -> Address {
        Engine::address(self)
    }
    fn peer(&mut self, address: &Address) -> Peer {
        Engine::peer(self, address)
    }
    fn send(&mut self, arguments: SendArguments) -> Result<(), PostError> {
        Engine::send(self, Post::default(), arguments)
    }
    fn receive(&mut self, post: Post, pattern: Pattern, memory: UserMemory) {
        Engine::receive(self, post, pattern, memory, None).expect("taken");
    }
    fn progress(&mut self) {
        Engine::progress(self);
    }
    fn next_completion(&mut self) -> Option<Completion> {
        Engine::next_completion(self)
    }
    fn close(&mut self) {
        Engine::close(self);
    }
}

fn bytes_of(number: usize) -> usize {
    [0, 8, 8, 100, 2000, 3000, LONGEST_BYTES][number % 7]
}

/// The messages from one engine to another.
struct Flow {
    from: usize,
    to: usize,
    receiver: Peer,
    sender: Peer,
    into: Vec<OwnedMemory>,
    posted_sends: usize,
    posted_receives: usize,
    received: usize,
}

impl Flow {
    /// Posts the next message. Some are injected, and some complete only when they match.
    fn send_next(&mut self, engine: &mut dyn AnyEngine, payloads: &[OwnedMemory]) {
        let number = self.posted_sends;
        let Some(payload) = payloads.get(number) else { return };
        let inject = number.is_multiple_of(5) && bytes_of(number) <= 2000;
        let level = [SendLevel::Buffered, SendLevel::Delivered, SendLevel::Matched][number % 3];
        let (to, space, tag, data) = (self.receiver, Space::Tagged, 7, Some(number as u64));
        let memory = payload.view();
        if engine.send(SendArguments { to, space, tag, data, level, memory, inject }).is_ok() {
            self.posted_sends += 1;
        }
    }

    /// Posts the next receive, later than most messages.
    fn receive_next(&mut self, engine: &mut dyn AnyEngine, flow: usize) {
        let number = self.posted_receives;
        if number < MESSAGES && number < self.posted_sends + 4 {
            let pattern = Pattern { space: Space::Tagged, from: Some(self.sender), tag: 7, ignore: 0 };
            let post = Post { context: flow * MESSAGES + number, cookie: 0 };
            engine.receive(post, pattern, self.into[number].view());
            self.posted_receives += 1;
        }
    }

    /// The receive `number` must have matched the message of the same number, and the message must be whole. A long
    /// message may complete after a later short one.
    fn received(&mut self, number: usize, data: Option<u64>, bytes: u64) {
        assert_eq!(data, Some(number as u64), "{} to {}", self.from, self.to);
        assert_eq!(bytes as usize, bytes_of(number));
        let mut arrived = vec![0; bytes as usize];
        self.into[number].view().read(0, &mut arrived);
        assert!(arrived.iter().all(|&byte| byte == number as u8), "message {number}");
        self.received += 1;
    }
}

/// Sends [`MESSAGES`] messages over each pair (from, to), and checks that they arrive in order and whole. Then closes
/// all engines.
pub fn exchange(mut engines: Vec<Box<dyn AnyEngine>>, pairs: &[(usize, usize)]) {
    let payloads: Vec<OwnedMemory> = (0..MESSAGES)
        .map(|number| {
            let memory = OwnedMemory::new(bytes_of(number));
            memory.view().write(0, &vec![number as u8; bytes_of(number)]);
            memory
        })
        .collect();
    let addresses: Vec<Address> = engines.iter().map(|engine| engine.address()).collect();
    let mut flows: Vec<Flow> = pairs
        .iter()
        .map(|&(from, to)| Flow {
            from,
            to,
            receiver: engines[from].peer(&addresses[to]),
            sender: engines[to].peer(&addresses[from]),
            into: (0..MESSAGES).map(|_| OwnedMemory::new(LONGEST_BYTES)).collect(),
            posted_sends: 0,
            posted_receives: 0,
            received: 0,
        })
        .collect();
    let mut sent = 0;
    let began = Instant::now();
    while sent < MESSAGES * pairs.len() || flows.iter().any(|flow| flow.received < MESSAGES) {
        assert!(
            began.elapsed() < Duration::from_secs(200),
            "{sent} sent; received: {:?}",
            flows.iter().map(|flow| flow.received).collect::<Vec<_>>()
        );
        for (index, flow) in flows.iter_mut().enumerate() {
            flow.send_next(&mut *engines[flow.from], &payloads);
            flow.receive_next(&mut *engines[flow.to], index);
        }
        for engine in &mut engines {
            engine.progress();
            while let Some(completion) = engine.next_completion() {
                match completion.outcome {
                    Outcome::Received { envelope, bytes, .. } => {
                        let (flow, number) =
                            (completion.post.context / MESSAGES, completion.post.context % MESSAGES);
                        flows[flow].received(number, envelope.data, bytes);
                    }
                    Outcome::Done if completion.operation == Operation::Send => sent += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    // Each may wait for another to close.
    std::thread::scope(|scope| {
        for mut engine in engines {
            scope.spawn(move || engine.close());
        }
    });
}
