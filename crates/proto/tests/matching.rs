//! Tests of matching against a naive oracle: two lists, searched from the front, as MPI specifies.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use weir_proto::{
    Action, Body, Command, Config, DataRegion, Endpoint, Event, Geometry, Instant, MemoryCopy, Outcome,
    Packet, Pattern, PeekThen, Peer, ReceiveCommand, Recorder, Request, Scheme, Space,
};

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A message arrives, whole or as a rendezvous header.
    Arrive {
        space: Space,
        from: u32,
        tag: u64,
        rendezvous: bool,
    },
    /// A receive is posted.
    Receive(Pattern),
    Peek(Pattern, PeekThen),
    /// The n-th posted receive is canceled, if it is still posted.
    Cancel(usize),
    /// The n-th claimed message is received or discarded, if there is one.
    Settle {
        nth: usize,
        discard: bool,
    },
}

/// The ranges of random messages and patterns.
#[derive(Clone, Debug)]
struct Draw {
    peers: u32,
    /// Tags are drawn below this bound and spread over the 64 bits, so that masks remove contexts, tags or both.
    tags: u64,
    masks: Vec<u64>,
    /// Weights of arrivals and receives: uneven weights give long queues.
    arrivals: u32,
    receives: u32,
}

/// Two bits of the tag are lowest, two bits of "context" are above bit 40, the others are between.
fn spread(tag: u64) -> u64 {
    tag & 3 | (tag >> 2 & 3) << 40 | (tag >> 4) << 8
}

fn space() -> impl Strategy<Value = Space> {
    prop_oneof![7 => Just(Space::Tagged), 1 => Just(Space::Untagged)]
}

fn pattern(draw: &Draw) -> impl Strategy<Value = Pattern> + use<> {
    let ignore = proptest::sample::select(draw.masks.clone());
    (space(), proptest::option::of(0..draw.peers), 0..draw.tags, ignore).prop_map(
        |(space, from, tag, ignore)| Pattern { space, from: from.map(Peer), tag: spread(tag), ignore },
    )
}

fn step(draw: &Draw) -> impl Strategy<Value = Step> + use<> {
    let then = proptest::sample::select(vec![
        PeekThen::Leave,
        PeekThen::LeaveUntilSeenTwice,
        PeekThen::Claim,
        PeekThen::Discard,
    ]);
    prop_oneof![
        draw.arrivals => (space(), 0..draw.peers, 0..draw.tags, any::<bool>()).prop_map(
            |(space, from, tag, rendezvous)| Step::Arrive { space, from, tag: spread(tag), rendezvous }
        ),
        draw.receives => pattern(draw).prop_map(Step::Receive),
        2 => (pattern(draw), then).prop_map(|(pattern, then)| Step::Peek(pattern, then)),
        1 => (0usize..20).prop_map(Step::Cancel),
        1 => (0usize..20, any::<bool>()).prop_map(|(nth, discard)| Step::Settle { nth, discard }),
    ]
}

/// Short runs with few keys, so that many messages match.
fn short() -> impl Strategy<Value = Vec<Step>> {
    let draw = Draw { peers: 3, tags: 4, masks: vec![0, 1, 2, u64::MAX], arrivals: 4, receives: 4 };
    proptest::collection::vec(step(&draw), 1..80)
}

/// Runs in phases with different weights. Long queues of messages and receives build up and are drained with other
/// patterns. There are more ignore masks than indexes.
fn long() -> impl Strategy<Value = Vec<Step>> {
    let masks = [0, 0xf << 60, (0xf << 60) | 0xff_ffff_ffff, 1, 0xff00, 3 << 40, u64::MAX];
    let draw = (1u32..200, 1u64..3000, 1usize..=masks.len()).prop_map(move |(peers, tags, count)| {
        let masks = masks[..count].to_vec();
        Draw { peers, tags, masks, arrivals: 0, receives: 0 }
    });
    draw.prop_flat_map(|draw| {
        let phase = move |arrivals, receives, steps: core::ops::Range<usize>| {
            let draw = Draw { arrivals, receives, ..draw.clone() };
            proptest::collection::vec(step(&draw), steps)
        };
        (phase(40, 1, 50..600), phase(1, 20, 50..600), phase(1, 80, 50..600), phase(40, 1, 50..600))
            .prop_map(|(fill, drain, post, arrive)| [fill, drain, post, arrive].concat())
    })
}

/// An event in terms of both the oracle and the machine: which message went to which request.
#[derive(Debug, PartialEq)]
enum Seen {
    Matched { request: u32, message: u64 },
    Found { request: u32, message: u64 },
    Absent { request: u32 },
    Canceled { request: u32 },
}

#[derive(Default)]
struct Oracle {
    posted: Vec<(u32, Pattern)>,
    unexpected: Vec<(Space, u32, u64, u64)>,
    /// Messages that a peek has claimed, by number.
    claimed: Vec<u64>,
    /// Messages that a `LeaveUntilSeenTwice` peek has seen once.
    seen_once: std::collections::HashSet<u64>,
    seen: Vec<Seen>,
    /// Maximum of queued messages.
    longest: usize,
}

impl Oracle {
    fn step(&mut self, step: Step, number: u64) {
        let request = number as u32;
        match step {
            Step::Arrive { space, from, tag, .. } => {
                let accepts = |(_, p): &(u32, Pattern)| p.space == space && p.accepts(Peer(from), tag);
                match self.posted.iter().position(accepts) {
                    Some(index) => {
                        let (request, _) = self.posted.remove(index);
                        self.seen.push(Seen::Matched { request, message: number });
                    }
                    None => self.unexpected.push((space, from, tag, number)),
                }
                self.longest = self.longest.max(self.unexpected.len());
            }
            Step::Receive(pattern) => match self.find(&pattern) {
                Some(index) => {
                    let message = self.unexpected.remove(index).3;
                    self.seen.push(Seen::Matched { request, message });
                }
                None => self.posted.push((request, pattern)),
            },
            Step::Peek(pattern, then) => match self.find(&pattern) {
                Some(index) => {
                    let message = self.unexpected[index].3;
                    match then {
                        PeekThen::Leave => {}
                        PeekThen::LeaveUntilSeenTwice if self.seen_once.insert(message) => {
                            self.seen.push(Seen::Absent { request });
                            return;
                        }
                        PeekThen::LeaveUntilSeenTwice => {}
                        PeekThen::Claim => {
                            self.claimed.push(message);
                            self.unexpected.remove(index);
                        }
                        PeekThen::Discard => drop(self.unexpected.remove(index)),
                    }
                    self.seen.push(Seen::Found { request, message });
                }
                None => self.seen.push(Seen::Absent { request }),
            },
            Step::Cancel(index) if index < self.posted.len() => {
                let (request, _) = self.posted.remove(index);
                self.seen.push(Seen::Canceled { request });
            }
            Step::Settle { nth, discard } if nth < self.claimed.len() => {
                let message = self.claimed.remove(nth);
                self.seen.push(match discard {
                    true => Seen::Found { request, message },
                    false => Seen::Matched { request, message },
                });
            }
            Step::Cancel(_) | Step::Settle { .. } => {}
        }
    }

    fn find(&self, pattern: &Pattern) -> Option<usize> {
        let accepts = |(space, from, tag, _): &(Space, u32, u64, u64)| {
            *space == pattern.space && pattern.accepts(Peer(*from), *tag)
        };
        self.unexpected.iter().position(accepts)
    }
}

fn machine() -> Endpoint {
    Endpoint::new(Config {
        scheme: Scheme::Unlimited,
        region: DataRegion::default(),
        geometry: Geometry::SHARED_MEMORY,
        credit_slots: 1,
        eager_bytes: 1000,
        cross_memory: true,
        remote_inline_bytes: 0,
        max_backlog: u32::MAX,
        max_unexpected: 100_000,
        unexpected_budget_bytes: 1 << 30,
        bounce_bytes: 1 << 30,
        envelope_budget_bytes: u64::MAX,
        planned_peers: 1,
        planned_quota_slots: 64,
    })
}

/// Messages are identified by their completion data; some values do not fit into 32 bits.
fn data_of(number: u64) -> u64 {
    if number % 16 == 3 { number | 1 << 40 } else { number }
}

fn number_of(data: Option<u64>) -> u64 {
    data.expect("numbered") & 0xffff_ffff
}

fn packet(space: Space, tag: u64, data: u64, rendezvous: bool) -> Packet {
    let transfer = weir_proto::Transfer(data as u32);
    let data = Some(data_of(data));
    let body = if rendezvous {
        let address = weir_proto::RemoteAddress::without_key(1);
        let sender = weir_proto::AnnouncementMarks::default();
        Body::Rendezvous { space, tag, data: data.into(), length: 8, address, transfer, sender }
    } else {
        Body::Eager { space, tag, data, length: 8, acknowledge: None }
    };
    let payload_bytes = if rendezvous { 0 } else { 8 };
    Packet::new(body, payload_bytes)
}

/// Runs the steps in the machine and in the oracle. Returns the maximum length of the message queue.
fn compare(steps: &[Step]) -> Result<usize, TestCaseError> {
    let mut oracle = Oracle::default();
    let mut machine = machine();
    // The names of claimed messages, by number.
    let mut names = std::collections::HashMap::new();
    for (number, &step) in steps.iter().enumerate() {
        let number = number as u64;
        let request = Request(number as u32);
        let arrived;
        let event = match step {
            Step::Arrive { space, from, tag, rendezvous } => {
                arrived = packet(space, tag, number, rendezvous);
                Event::Arrived { from: Peer(from), packet: &arrived }
            }
            Step::Receive(pattern) => Event::Posted(Command::Receive(ReceiveCommand {
                request,
                pattern,
                capacity_bytes: 8,
                multi: None,
            })),
            Step::Peek(pattern, then) => Event::Posted(Command::Peek { request, pattern, then }),
            Step::Cancel(index) => match oracle.posted.get(index) {
                Some((request, _)) => Event::Posted(Command::Cancel { request: Request(*request) }),
                None => continue,
            },
            Step::Settle { nth, discard } => match oracle.claimed.get(nth) {
                Some(message) => {
                    let message = names[message];
                    Event::Posted(match discard {
                        true => Command::DiscardClaimed { request, message },
                        false => Command::ReceiveClaimed { request, message, capacity_bytes: 8 },
                    })
                }
                None => continue,
            },
        };
        let known = oracle.seen.len();
        oracle.step(step, number);
        let mut seen = Vec::new();
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut actions = Vec::new();
            let driver = Recorder::new(Instant(0), &mut actions);
            machine.handle(event, driver).expect("within the bounds");
            for action in actions {
                match action {
                    Action::Copy(MemoryCopy { transfer, .. }) => {
                        events.push(Event::CopyDone { transfer, result: Ok(()) });
                    }
                    Action::Complete { request: Request(request), outcome } => seen.push(match outcome {
                        Outcome::Received { envelope, .. } => {
                            Seen::Matched { request, message: number_of(envelope.data) }
                        }
                        Outcome::Found { envelope, claimed } => {
                            let message = number_of(envelope.data);
                            names.extend(claimed.map(|name| (message, name)));
                            Seen::Found { request, message }
                        }
                        Outcome::Absent => Seen::Absent { request },
                        Outcome::Canceled => Seen::Canceled { request },
                        other => panic!("{other:?}"),
                    }),
                    _ => {}
                }
            }
        }
        prop_assert_eq!(&seen, &oracle.seen[known..], "after step {} ({:?})", number, step);
    }
    Ok(oracle.longest)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn matching_equals_two_naive_lists(steps in short()) {
        compare(&steps)?;
    }
}

#[test]
fn matching_in_long_queues_equals_two_naive_lists() {
    let mut runner = TestRunner::new(ProptestConfig::with_cases(100));
    let longest = std::cell::Cell::new(0);
    let outcome = runner.run(&long(), |steps| {
        longest.set(longest.get().max(compare(&steps)?));
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    assert!(longest.get() > 300, "at most {} messages waited", longest.get());
}
