//! Receivers with space for few envelopes, against an oracle of MPI's matching order.
//!
//! Programs send, receive, peek and cancel at random. The oracle knows the order of sends and of receives. It checks each
//! match when the world is at rest: no message overtakes, no receive overtakes, and nothing that matches is left.

#[path = "loss.rs"]
mod loss;

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use weir_proto::{
    Command, Outcome, Pattern, PeekThen, Peer, ReceiveCommand, Request, Scheme, SendCommand, Space,
};

use super::world::{Plan, World, with_busy_links};
use super::{LEVELS, message, plan, run};

/// A message of one pair. Its number travels as completion data.
#[derive(Clone, Copy, Debug)]
struct Sent {
    space: Space,
    tag: u64,
    /// It has payload, which may wait at the sender.
    payload: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Receive,
    /// A buffer of this many bytes for several messages.
    Multi,
    Peek(PeekThen),
}

/// A receive or a peek, in the order of posting.
#[derive(Clone, Debug)]
struct Posted {
    kind: Kind,
    pattern: Pattern,
    /// Messages that it got or removed, in order: sender and number.
    got: Vec<(u32, u32)>,
    /// Their offsets in the buffer.
    offsets: Vec<u64>,
    /// What a peek that removes nothing has found.
    found: Option<(u32, u32)>,
    /// Steps at which it was canceled and at which it ended.
    canceled: Option<usize>,
    ended: Option<usize>,
    /// It ended because a sender was lost.
    failed: bool,
}

/// One rank of the program, as the oracle sees it.
#[derive(Default)]
struct Program {
    /// By sender.
    sent: BTreeMap<u32, Vec<Sent>>,
    posted: Vec<Posted>,
    /// The posted operations of outstanding requests.
    open: BTreeMap<Request, usize>,
    /// Claimed messages that are not received yet.
    claimed: Vec<(weir_proto::MessageId, (u32, u32))>,
    /// The messages of outstanding receives of claimed messages.
    settling: BTreeMap<Request, (u32, u32)>,
    /// A sender that this rank has lost, with all that it held.
    lost: Option<u32>,
    /// The step of that.
    lost_at: usize,
}

/// Capacity of a buffer for one message and of one for several.
const CAPACITY_BYTES: usize = 3000;

/// How often the events occurred that these worlds are for.
#[derive(Debug, Default)]
struct Seen {
    held: u64,
    requests: u64,
    kept: u64,
    found: u64,
    multi: u64,
    /// Receives and peeks that failed by a loss, and messages that were lost with their sender.
    failed: u64,
    lost: u64,
}

struct Run {
    world: World,
    programs: Vec<Program>,
    rng: Rng,
    step: usize,
}

impl Program {
    fn accepts(&self, posted: &Posted, from: u32, number: u32) -> bool {
        let Sent { space, tag, .. } = self.sent[&from][number as usize];
        posted.pattern.space == space && posted.pattern.accepts(Peer(from), tag)
    }

    /// The place of the receive or peek that each message went to.
    fn owners(&self) -> BTreeMap<(u32, u32), usize> {
        let mut owners = BTreeMap::new();
        for (place, posted) in self.posted.iter().enumerate() {
            for &message in &posted.got {
                assert_eq!(owners.insert(message, place), None, "{message:?} was received twice");
            }
        }
        owners
    }

    /// Whether a message that nobody received may be lost with its sender, before this receive or peek ended: a receive
    /// that failed had it, a buffer for several messages has a gap, or it was not whole here when the sender was lost.
    fn may_be_lost(&self, from: u32, number: u32, posted: &Posted) -> bool {
        let may_end = |other: &Posted| other.failed || other.kind == Kind::Multi;
        let had_it = |other: &Posted| may_end(other) && self.accepts(other, from, number);
        let is_later = posted.ended.is_none_or(|ended| ended > self.lost_at);
        self.lost == Some(from) && (is_later || self.posted.iter().any(had_it))
    }

    /// Checks all matches. `rest`: nothing is under way.
    fn check(&self, rank: usize, rest: bool) {
        let owners = self.owners();
        for (place, posted) in self.posted.iter().enumerate() {
            for &(from, number) in posted.got.iter().chain(&posted.found) {
                assert!(self.accepts(posted, from, number), "rank {rank}: {posted:?} got {from}:{number}");
                // No message overtakes an older one of its sender.
                for older in 0..number {
                    if self.accepts(posted, from, older) {
                        let owner = owners.get(&(from, older));
                        // A peek sees what is there when it ends, like a peek that is posted then.
                        let is_peek = matches!(posted.kind, Kind::Peek(_));
                        if owner.is_none() && self.may_be_lost(from, older, posted) {
                            continue;
                        }
                        assert!(
                            owner.is_some_and(|&owner| owner <= place || is_peek),
                            "rank {rank}: {from}:{number} overtook {older} (now {owner:?}): {place} {posted:?}"
                        );
                    }
                }
                // No receive overtakes an older one.
                for older in self.posted[..place].iter().filter(|_| posted.found.is_none()) {
                    let waited = matches!(older.kind, Kind::Receive | Kind::Multi)
                        && older.got.is_empty()
                        && older.ended.is_none_or(|ended| {
                            older.canceled.is_some() && posted.ended.is_some_and(|end| end < ended)
                        });
                    assert!(
                        !waited || !self.accepts(older, from, number),
                        "rank {rank}: {posted:?} overtook {older:?} with {from}:{number}"
                    );
                }
            }
            // Payloads can arrive in another order than that of the matches, which offsets show.
            for (&(from, number), &offset) in posted.got.iter().zip(&posted.offsets) {
                for (&(other, later), &after) in posted.got.iter().zip(&posted.offsets) {
                    assert!(from != other || number >= later || offset <= after, "rank {rank}: {posted:?}");
                }
            }
        }
        if !rest {
            return;
        }
        if let Some(lost) = self.lost {
            for &place in self.open.values() {
                let Posted { pattern, .. } = &self.posted[place];
                assert!(
                    pattern.from.is_some_and(|from| from.0 != lost),
                    "rank {rank}: {:?} waits for a lost sender",
                    self.posted[place]
                );
            }
        }
        for (&from, sent) in self.sent.iter().filter(|(from, _)| self.lost != Some(**from)) {
            for number in (0..sent.len() as u32).filter(|&number| !owners.contains_key(&(from, number))) {
                for &place in self.open.values() {
                    let posted = &self.posted[place];
                    let waits = matches!(posted.kind, Kind::Receive | Kind::Multi);
                    assert!(
                        !waits || !self.accepts(posted, from, number),
                        "rank {rank}: {from}:{number} and {posted:?} did not find each other"
                    );
                }
            }
        }
    }
}

impl Run {
    fn send(&mut self, from: u32, to: u32) {
        let sent = self.programs[to as usize].sent.entry(from).or_default();
        let number = sent.len() as u32;
        let bytes = [0, 8, self.rng.usize(..300), self.rng.usize(..CAPACITY_BYTES)][self.rng.usize(..4)];
        let space = if self.rng.u8(..6) == 0 { Space::Untagged } else { Space::Tagged };
        let tag = if space == Space::Tagged { self.rng.u64(..4) } else { 0 };
        let level = LEVELS[self.rng.usize(..4)];
        sent.push(Sent { space, tag, payload: bytes > 0 });
        let request = self.world.request(from, message(from, to, number, bytes));
        let (to, data, bytes) = (Peer(to), Some(u64::from(number)), bytes as u64);
        self.world.post(from, Command::Send(SendCommand { request, to, space, tag, data, bytes, level }));
        self.collect();
    }

    fn pattern(&mut self) -> Pattern {
        let ranks = self.world.plan.endpoints;
        let from = self.rng.bool().then(|| Peer(self.rng.u32(..ranks)));
        match self.rng.u8(..6) {
            0 => Pattern { space: Space::Untagged, from, tag: 0, ignore: 0 },
            1 => Pattern { space: Space::Tagged, from, tag: 0, ignore: u64::MAX },
            2 => Pattern { space: Space::Tagged, from, tag: self.rng.u64(..4), ignore: 1 },
            _ => Pattern { space: Space::Tagged, from, tag: self.rng.u64(..4), ignore: 0 },
        }
    }

    fn post(&mut self, rank: u32, kind: Kind, pattern: Pattern) -> Request {
        let buffer = if matches!(kind, Kind::Peek(_)) { Vec::new() } else { vec![0; CAPACITY_BYTES] };
        let request = self.world.request(rank, buffer);
        let program = &mut self.programs[rank as usize];
        let (found, canceled, ended) = (None, None, None);
        program.open.insert(request, program.posted.len());
        program.posted.push(Posted {
            kind,
            pattern,
            got: Vec::new(),
            offsets: Vec::new(),
            found,
            canceled,
            ended,
            failed: false,
        });
        let multi = (kind == Kind::Multi).then_some(100);
        let command = match kind {
            Kind::Peek(then) => Command::Peek { request, pattern, then },
            _ => {
                let capacity_bytes = CAPACITY_BYTES as u64;
                Command::Receive(ReceiveCommand { request, pattern, capacity_bytes, multi })
            }
        };
        self.world.post(rank, command);
        self.collect();
        request
    }

    fn cancel(&mut self, rank: u32, request: Request) {
        let program = &mut self.programs[rank as usize];
        program.posted[program.open[&request]].canceled = Some(self.step);
        self.world.post(rank, Command::Cancel { request });
        self.collect();
    }

    /// Receives or discards a claimed message.
    fn settle(&mut self, rank: u32) {
        let program = &mut self.programs[rank as usize];
        if program.claimed.is_empty() {
            return;
        }
        let (message, name) = program.claimed.swap_remove(self.rng.usize(..program.claimed.len()));
        let request = self.world.request(rank, vec![0; CAPACITY_BYTES]);
        program.settling.insert(request, name);
        let capacity_bytes = CAPACITY_BYTES as u64;
        self.world.post(
            rank,
            match self.rng.bool() {
                true => Command::ReceiveClaimed { request, message, capacity_bytes },
                false => Command::DiscardClaimed { request, message },
            },
        );
        self.collect();
    }

    /// Takes all completions.
    fn collect(&mut self) {
        self.step += 1;
        for (rank, program) in self.programs.iter_mut().enumerate() {
            while let Some((request, outcome, buffer)) = self.world.ranks[rank].completions.pop_front() {
                if let Some(name) = program.settling.get(&request).copied() {
                    match outcome {
                        Outcome::Received { bytes, .. } => {
                            assert_eq!(
                                buffer[..bytes as usize],
                                message(name.0, rank as u32, name.1, bytes as usize)
                            );
                        }
                        Outcome::Found { .. } => {}
                        Outcome::Lost { .. } if program.lost == Some(name.0) => {}
                        other => panic!("a claimed message ended with {other:?}"),
                    }
                    program.settling.remove(&request);
                    continue;
                }
                let Some(&place) = program.open.get(&request) else {
                    let is_loss =
                        |it| matches!(it, Outcome::Lost { peer: Some(to), .. } if program.lost == Some(to.0));
                    assert!(outcome == Outcome::Done || is_loss(outcome), "a send ended with {outcome:?}");
                    continue;
                };
                let posted = &mut program.posted[place];
                let name = |envelope: weir_proto::Envelope| {
                    (envelope.from.0, envelope.data.expect("numbered") as u32)
                };
                let mut ended = true;
                match outcome {
                    Outcome::Received { envelope, bytes, offset, last } => {
                        let (from, number) = name(envelope);
                        let whole = message(from, rank as u32, number, bytes as usize);
                        assert_eq!(buffer[offset as usize..][..bytes as usize], whole, "payload");
                        posted.got.push((from, number));
                        posted.offsets.push(offset);
                        ended = last;
                    }
                    Outcome::Found { envelope, claimed } => match posted.kind {
                        Kind::Peek(PeekThen::Claim) => {
                            posted.got.push(name(envelope));
                            program.claimed.push((claimed.expect("claimed"), name(envelope)));
                        }
                        Kind::Peek(PeekThen::Discard) => posted.got.push(name(envelope)),
                        _ => posted.found = Some(name(envelope)),
                    },
                    Outcome::Absent | Outcome::Canceled | Outcome::Released => {}
                    Outcome::Lost { .. }
                        if program.lost.is_some()
                            && posted.pattern.from.is_none_or(|from| program.lost == Some(from.0)) =>
                    {
                        posted.failed = true;
                    }
                    other => panic!("{posted:?} ended with {other:?}"),
                }
                if ended {
                    posted.ended = Some(self.step);
                    program.open.remove(&request);
                }
            }
        }
    }

    fn step(&mut self) -> bool {
        let rng = &mut self.rng;
        let any = self.world.step(|count| rng.usize(..count));
        self.collect();
        self.assert_within_budget();
        any
    }

    fn rest(&mut self) {
        while self.step() || self.world.idle() {}
        self.collect();
    }

    /// The kept envelopes stay within their budget, without those that the program has claimed.
    fn assert_within_budget(&self) {
        let Plan { scheme, envelope_bytes, .. } = self.world.plan;
        if !scheme.grants() {
            return;
        }
        for (rank, program) in self.world.ranks.iter().zip(&self.programs) {
            let (count, _) = rank.machine.unexpected();
            let kept = u64::from(count).saturating_sub(program.claimed.len() as u64);
            assert!(kept * 64 <= envelope_bytes, "{kept} envelopes kept in {envelope_bytes} bytes");
        }
    }

    /// At rest a sender has nothing of a message of no bytes whose envelope the receiver keeps. With space for all
    /// envelopes, it keeps them all.
    fn assert_nothing_kept_is_undelivered(&self) {
        if self.world.plan.envelope_bytes < 1 << 20 {
            return;
        }
        let alive = |from: &usize| !self.world.is_dead(*from as u32);
        for (from, rank) in self.world.ranks.iter().enumerate().filter(|(from, _)| alive(from)) {
            for undelivered in rank.machine.undelivered() {
                let program = &self.programs[undelivered.peer.0 as usize];
                let owners = program.owners();
                let numbered = (0..).zip(program.sent.get(&(from as u32)).into_iter().flatten());
                let with_sender = numbered.filter(|&(number, sent)| {
                    let open = !owners.contains_key(&(from as u32, number));
                    let claimed = || program.claimed.iter().any(|&(_, name)| name == (from as u32, number));
                    sent.payload && (open || claimed())
                });
                let count = with_sender.count() as u64;
                assert!(undelivered.messages <= count, "{from}: {undelivered:?}, {count} have payload");
            }
        }
    }

    /// At rest a peek finds the first message of a sender that matches and is left.
    fn peek_at_rest(&mut self, rank: u32) {
        let pattern = self.pattern();
        let request = self.post(rank, Kind::Peek(PeekThen::Leave), pattern);
        let place = self.programs[rank as usize].posted.len() - 1;
        self.rest();
        let program = &self.programs[rank as usize];
        assert!(!program.open.contains_key(&request), "a peek never ended");
        let owners = program.owners();
        let posted = &program.posted[place];
        let mut left = BTreeSet::new();
        for (&from, sent) in program.sent.iter().filter(|(from, _)| program.lost != Some(**from)) {
            let first = (0..sent.len() as u32).find(|&number| {
                !owners.contains_key(&(from, number)) && program.accepts(posted, from, number)
            });
            left.extend(first.map(|number| (from, number)));
        }
        match posted.found {
            // What has arrived whole from a lost sender is still there.
            Some((from, _)) if program.lost == Some(from) => {}
            Some(found) => assert!(left.contains(&found), "{posted:?} could find {left:?}"),
            // By the rule of all losses, a peek from anybody fails if nothing is kept here.
            None if posted.failed && posted.pattern.from.is_none() => {}
            None => assert!(left.is_empty(), "{posted:?} did not find {left:?}"),
        }
    }
}

/// `envelopes`: number of envelopes that a receiver may keep.
fn holding_world(seed: u64, seen: &mut Seen) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let drawn = plan(&mut rng);
    let envelope_bytes = [0, 64, 128, 640, 20_000, 1 << 30][rng.usize(..6)];
    let endpoints = rng.u32(1..=4);
    let plan = Plan { endpoints, envelope_bytes, ..drawn };
    let programs = (0..endpoints).map(|_| Program::default()).collect();
    let mut run = Run { world: World::new(plan), programs, rng, step: 0 };
    let peeks =
        [PeekThen::Leave, PeekThen::LeaveUntilSeenTwice, PeekThen::Claim, PeekThen::Discard].map(Kind::Peek);
    let detach_requests = run.rng.bool();
    // Few receives at first, so that queues grow; then more.
    let receivers = run.rng.u32(1..=endpoints);
    for part in 0..run.rng.usize(1..5) {
        let eager_receiver = part % 2 == 1;
        for _ in 0..run.rng.usize(10..60) {
            let (from, to) = (run.rng.u32(..endpoints), run.rng.u32(..receivers));
            match run.rng.u8(..20) {
                0..6 if !eager_receiver => run.send(from, to),
                0..2 => run.send(from, to),
                6 | 7 => {
                    let pattern = run.pattern();
                    let kind = if run.rng.u8(..4) == 0 { Kind::Multi } else { Kind::Receive };
                    run.post(to, kind, pattern);
                }
                2..6 => {
                    let pattern = run.pattern();
                    run.post(to, Kind::Receive, pattern);
                }
                8 => {
                    let (pattern, kind) = (run.pattern(), peeks[run.rng.usize(..4)]);
                    run.post(to, kind, pattern);
                }
                9 => {
                    let program = &run.programs[to as usize];
                    let open: Vec<Request> = program
                        .open
                        .iter()
                        .filter(|(_, place)| !matches!(program.posted[**place].kind, Kind::Peek(_)))
                        .map(|(&request, _)| request)
                        .collect();
                    if !open.is_empty() {
                        let request = open[run.rng.usize(..open.len())];
                        run.cancel(to, request);
                    }
                }
                10 => run.settle(to),
                11 if detach_requests => run.world.request_detach(from, to),
                12 if detach_requests => run.world.request_detach(to, from),
                _ => {
                    for _ in 0..run.rng.usize(..8) {
                        run.step();
                    }
                }
            }
        }
        if run.rng.bool() {
            run.rest();
            run.assert_nothing_kept_is_undelivered();
            for (rank, program) in run.programs.iter().enumerate() {
                program.check(rank, true);
            }
            run.peek_at_rest(0);
        }
    }
    run.rest();
    run.assert_nothing_kept_is_undelivered();
    for rank in 0..endpoints {
        run.programs[rank as usize].check(rank as usize, true);
        run.peek_at_rest(rank);
        let open: Vec<Request> = run.programs[rank as usize].open.keys().copied().collect();
        for request in open {
            run.cancel(rank, request);
        }
        while !run.programs[rank as usize].claimed.is_empty() {
            run.settle(rank);
        }
    }
    run.rest();
    // All the rest is received, in any order.
    for rank in 0..endpoints {
        let program = &run.programs[rank as usize];
        let owners = program.owners();
        let mut left: Vec<Pattern> = Vec::new();
        for (&from, sent) in &program.sent {
            for (number, sent) in sent.iter().enumerate() {
                if !owners.contains_key(&(from, number as u32)) {
                    let Sent { space, tag, .. } = *sent;
                    left.push(Pattern { space, from: Some(Peer(from)), tag, ignore: 0 });
                }
            }
        }
        run.rng.shuffle(&mut left);
        let anybody = run.rng.bool();
        for mut pattern in left {
            if anybody {
                (pattern.from, pattern.ignore) = (None, u64::MAX);
            }
            run.post(rank, Kind::Receive, pattern);
            run.step();
        }
    }
    run.rest();
    run.world.assert_at_rest();
    run.world.assert_within_budget();
    for (rank, program) in run.programs.iter().enumerate() {
        program.check(rank, true);
        let sent: usize = program.sent.values().map(Vec::len).sum();
        assert_eq!(program.owners().len(), sent, "rank {rank}");
        seen.found += program.posted.iter().filter(|posted| posted.found.is_some()).count() as u64;
        seen.multi += program.posted.iter().filter(|posted| posted.got.len() > 1).count() as u64;
    }
    for rank in &run.world.ranks {
        let counters = rank.machine.counters();
        seen.held += counters.held_messages;
        seen.requests += counters.holder_requests_sent;
        seen.kept += counters.peak_unexpected_messages;
    }
    let dynamic = matches!(plan.scheme, Scheme::Dynamic { .. });
    run.world.trace ^ u64::from(dynamic)
}

#[test]
fn held_messages_are_received_in_mpi_order() {
    let seen = std::cell::RefCell::new(Seen::default());
    run("held_messages_are_received_in_mpi_order", 1500, |seed| holding_world(seed, &mut seen.borrow_mut()));
    let seen = seen.into_inner();
    println!("{seen:?}");
    let Seen { held, requests, kept, found, multi, .. } = seen;
    let alone = std::env::var("WEIR_SEED").is_ok();
    let least = [held, requests, kept, found, multi].into_iter().min();
    assert!(alone || least > Some(100), "an event hardly occurred: {seen:?}");
}

#[test]
fn held_messages_are_received_in_mpi_order_over_busy_links() {
    run("held_messages_are_received_in_mpi_order_over_busy_links", 500, |seed| {
        with_busy_links(seed, || holding_world(seed, &mut Seen::default()))
    });
}
