//! Matching against a naive oracle: two lists, searched from the front, as MPI says it.

use proptest::prelude::*;
use weir_proto::{
    Action, Body, Command, Config, DataRegion, Endpoint, Event, Geometry, Instant, Outcome, Packet, Pattern,
    PeekThen, Peer, ReceiveCommand, Request, Scheme, Space,
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
}

fn space() -> impl Strategy<Value = Space> {
    prop_oneof![Just(Space::Tagged), Just(Space::Untagged)]
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let ignore = prop_oneof![Just(0), Just(1), Just(2), Just(u64::MAX)];
    (space(), proptest::option::of(0u32..3), 0u64..4, ignore).prop_map(|(space, from, tag, ignore)| Pattern {
        space,
        from: from.map(Peer),
        tag,
        ignore,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let then = prop_oneof![Just(PeekThen::Leave), Just(PeekThen::Claim), Just(PeekThen::Discard)];
    prop_oneof![
        4 => (space(), 0u32..3, 0u64..4, any::<bool>())
            .prop_map(|(space, from, tag, rendezvous)| Step::Arrive { space, from, tag, rendezvous }),
        4 => pattern().prop_map(Step::Receive),
        1 => (pattern(), then).prop_map(|(pattern, then)| Step::Peek(pattern, then)),
        1 => (0usize..20).prop_map(Step::Cancel),
    ]
}

/// What happened, in the oracle's and the machine's common language: which message went to which request.
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
    seen: Vec<Seen>,
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
                    if then != PeekThen::Leave {
                        self.unexpected.remove(index);
                    }
                    self.seen.push(Seen::Found { request, message });
                }
                None => self.seen.push(Seen::Absent { request }),
            },
            Step::Cancel(index) if index < self.posted.len() => {
                let (request, _) = self.posted.remove(index);
                self.seen.push(Seen::Canceled { request });
            }
            Step::Cancel(_) => {}
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
        max_unexpected: 1000,
    })
}

/// Messages are told apart by their completion data.
fn packet(space: Space, tag: u64, data: u64, rendezvous: bool) -> Packet {
    let transfer = weir_proto::Transfer(data as u32);
    let data = Some(data);
    let body = if rendezvous {
        Body::Rendezvous { space, tag, data, length: 8, address: 1, transfer }
    } else {
        Body::Eager { space, tag, data, length: 8, acknowledge: None }
    };
    let payload_bytes = if rendezvous { 0 } else { 8 };
    Packet::new(body, payload_bytes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn messages_go_where_two_naive_lists_send_them(steps in proptest::collection::vec(step(), 1..80)) {
        let mut oracle = Oracle::default();
        let mut machine = machine();
        let mut seen = Vec::new();
        for (number, &step) in steps.iter().enumerate() {
            let number = number as u64;
            let posted = oracle.posted.clone();
            oracle.step(step, number);
            let request = Request(number as u32);
            let event = match step {
                Step::Arrive { space, from, tag, rendezvous } => {
                    Event::Arrived { from: Peer(from), packet: packet(space, tag, number, rendezvous) }
                }
                Step::Receive(pattern) => Event::Posted(Command::Receive(ReceiveCommand {
                    request,
                    pattern,
                    capacity_bytes: 8,
                    multi: None,
                })),
                Step::Peek(pattern, then) => Event::Posted(Command::Peek { request, pattern, then }),
                Step::Cancel(index) => match posted.get(index) {
                    Some((request, _)) => Event::Posted(Command::Cancel { request: Request(*request) }),
                    None => continue,
                },
            };
            let mut events = vec![event];
            while let Some(event) = events.pop() {
                let mut actions = Vec::new();
                machine.handle(Instant(0), event, &mut actions);
                for action in actions {
                    match action {
                        Action::Copy { transfer, .. } => {
                            events.push(Event::CopyDone { transfer, result: Ok(()) });
                        }
                        Action::Complete { request: Request(request), outcome } => seen.push(match outcome {
                            Outcome::Received { envelope, .. } => {
                                Seen::Matched { request, message: envelope.data.expect("numbered") }
                            }
                            Outcome::Found { envelope, .. } => {
                                Seen::Found { request, message: envelope.data.expect("numbered") }
                            }
                            Outcome::Absent => Seen::Absent { request },
                            Outcome::Canceled => Seen::Canceled { request },
                            other => panic!("{other:?}"),
                        }),
                        _ => {}
                    }
                }
            }
            prop_assert_eq!(&seen, &oracle.seen, "after step {} ({:?})", number, step);
        }
    }
}
