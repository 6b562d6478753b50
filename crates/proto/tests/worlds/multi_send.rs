//! Tests of random worlds with multi-sends beside messages: each copy arrives once and in the order of its path,
//! whoever else sends, detaches or dies.
//!
//! The oracle is a list of messages for each pair, in the order in which they were posted. The receives of a pair
//! accept any tag, so the first of them gets the first message, the second the second one.

use std::collections::BTreeMap;

use fastrand::Rng;
use weir_proto::flow::hardware::WITHOUT_LIMIT;
use weir_proto::{
    Action, Body, Command, Event, MessageCopy, MultiSendCommand, Outcome, Pattern, Peer, ReceiveCommand,
    Request, Scheme, SendCommand, Space,
};

use super::world::{Plan, World, with_busy_links};
use super::{LEVELS, message, plan, run};

const LONGEST: usize = 3000;

/// A message to one destination, or a multi-send. Its index is its data.
struct Posted {
    from: u32,
    bytes: usize,
    to: Vec<u32>,
    /// Destinations to which the first packet has left.
    begun: Vec<u32>,
}

struct Program {
    world: World,
    rng: Rng,
    posted: Vec<Posted>,
    /// By pair: what was sent, by index.
    sent: BTreeMap<(u32, u32), Vec<usize>>,
    /// By pair: number of receives.
    receives: BTreeMap<(u32, u32), usize>,
    /// Requests under way: a copy to this peer, or the receive with this number from it.
    outstanding: BTreeMap<(u32, Request), (bool, u32, usize)>,
    /// By pair and number of the receive: the message, if it came.
    received: BTreeMap<(u32, u32, usize), Option<usize>>,
    /// By sender, destination and message: how the copy ended.
    ended: BTreeMap<(u32, u32, usize), Outcome>,
    /// All copies of a multi-send leave in one event, as far as the plan lets it be seen.
    strict: bool,
    seen: usize,
}

impl Program {
    fn new(plan: Plan, rng: Rng, strict: bool) -> Program {
        let mut world = World::new(plan);
        world.record = Some(Vec::new());
        Program {
            world,
            rng,
            posted: Vec::new(),
            sent: BTreeMap::new(),
            receives: BTreeMap::new(),
            outstanding: BTreeMap::new(),
            received: BTreeMap::new(),
            ended: BTreeMap::new(),
            strict,
            seen: 0,
        }
    }

    fn send(&mut self, from: u32, to: Vec<u32>) {
        let id = self.posted.len();
        let bytes =
            [0, self.rng.usize(..20), self.rng.usize(..300), self.rng.usize(..LONGEST)][self.rng.usize(..4)];
        let level = LEVELS[self.rng.usize(..4)];
        let (space, tag, data) = (Space::Tagged, self.rng.u64(..3), Some(id as u64));
        let mut copies = Vec::new();
        for to in &to {
            let request = self.world.request(from, message(from, 0, id as u32, bytes));
            self.outstanding.insert((from, request), (true, *to, id));
            self.sent.entry((from, *to)).or_default().push(id);
            copies.push(MessageCopy { to: Peer(*to), request, data });
        }
        self.posted.push(Posted { from, bytes, to, begun: Vec::new() });
        let bytes = bytes as u64;
        match copies[..] {
            [MessageCopy { to, request, data }] if self.rng.bool() => {
                let send = SendCommand { request, to, space, tag, data, bytes, level };
                self.world.post(from, Command::Send(send));
            }
            _ => {
                let multi_send = MultiSendCommand { copies: &copies, space, tag, bytes, level };
                self.world.handle(from, Event::PostedCopies(multi_send));
            }
        }
        self.collect();
    }

    fn receive(&mut self, from: u32, to: u32) {
        let number = self.receives.entry((from, to)).or_default();
        let request = self.world.request(to, vec![0; LONGEST]);
        self.outstanding.insert((to, request), (false, from, *number));
        *number += 1;
        let pattern = Pattern { space: Space::Tagged, from: Some(Peer(from)), tag: 0, ignore: u64::MAX };
        let capacity_bytes = LONGEST as u64;
        let receive = ReceiveCommand { request, pattern, capacity_bytes, multi: None };
        self.world.post(to, Command::Receive(receive));
        self.collect();
    }

    fn collect(&mut self) {
        for (rank, state) in (0..).zip(&mut self.world.ranks) {
            for (request, outcome, buffer) in state.completions.drain(..) {
                let (is_copy, peer, number) = self.outstanding.remove(&(rank, request)).expect("once");
                if is_copy {
                    self.ended.insert((rank, peer, number), outcome);
                    continue;
                }
                let id = match outcome {
                    Outcome::Received { envelope, bytes, .. } => {
                        let id = envelope.data.expect("numbered") as usize;
                        assert_eq!(bytes, self.posted[id].bytes as u64);
                        assert_eq!(buffer[..bytes as usize], message(peer, 0, id as u32, bytes as usize));
                        Some(id)
                    }
                    _ => None,
                };
                self.received.insert((peer, rank, number), id);
            }
        }
        let actions = self.world.record.as_mut().expect("recorded");
        for (rank, action) in actions.drain(..) {
            let Action::Transmit { to, packet, .. } = action else { continue };
            let data = match packet.body {
                Body::Eager { data, .. } => data,
                Body::Rendezvous { data, .. } => data.into(),
                _ => None,
            };
            let Some(posted) = data.map(|id| &mut self.posted[id as usize]) else { continue };
            assert_eq!(posted.from, rank);
            if !posted.begun.contains(&to.0) {
                posted.begun.push(to.0); // an announcement of a held message is repeated
            }
        }
        if self.strict {
            for (id, Posted { from, to, begun, .. }) in self.posted.iter().enumerate() {
                let lost = |to: &&u32| self.world.ranks[*from as usize].machine.fault(Peer(**to)).is_none();
                let alive: Vec<_> = to.iter().filter(lost).collect();
                let left = alive.iter().filter(|to| begun.contains(to)).count();
                assert!(left == 0 || left == alive.len(), "{left} of {} copies of {id} left", alive.len());
                self.seen += usize::from(left > 1);
            }
        }
    }

    fn steps(&mut self, steps: usize) {
        for _ in 0..steps {
            let rng = &mut self.rng;
            self.world.step(|count| rng.usize(..count));
            self.collect();
        }
    }

    /// A few destinations of all.
    fn list(&mut self, endpoints: u32) -> Vec<u32> {
        let mut list: Vec<u32> = (0..endpoints).collect();
        self.rng.shuffle(&mut list);
        list.truncate(self.rng.usize(1..=list.len()));
        list
    }

    /// Something happens among the endpoints up to `senders`. Destinations are those up to `endpoints`.
    fn act(&mut self, senders: u32, endpoints: u32, detaches: bool) {
        let from = self.rng.u32(..senders);
        match self.rng.u8(..8) {
            0 | 1 if self.world.outstanding(from).len() < 40 => {
                let to = self.list(endpoints);
                self.send(from, to);
            }
            2 if self.world.outstanding(from).len() < 40 => {
                let to = self.rng.u32(..endpoints);
                self.send(from, vec![to]);
            }
            3 | 4 => {
                let sender = self.rng.u32(..endpoints);
                let waits =
                    |pair| self.sent.get(&pair).map_or(0, Vec::len) > *self.receives.get(&pair).unwrap_or(&0);
                if waits((sender, from)) || self.rng.u8(..8) == 0 {
                    self.receive(sender, from);
                }
            }
            5 if detaches => {
                self.world.request_detach(from, self.rng.u32(..endpoints));
                self.collect();
            }
            _ => {
                let steps = self.rng.usize(..8);
                self.steps(steps);
            }
        }
    }

    /// Posts the receives that are missing between endpoints that `keep` names, and runs to rest.
    fn finish(&mut self, keep: impl Fn(u32) -> bool) {
        let pairs: Vec<_> = self.sent.iter().map(|(pair, sent)| (*pair, sent.len())).collect();
        for ((from, to), sent) in pairs.into_iter().filter(|((from, to), _)| keep(*from) && keep(*to)) {
            for _ in self.receives.get(&(from, to)).copied().unwrap_or(0)..sent {
                self.receive(from, to);
            }
        }
        let rng = &mut self.rng;
        self.world.run_to_rest(|count| rng.usize(..count));
        self.collect();
    }

    /// What each receive of a pair got. Receives that are too many have nothing.
    fn check_pair(&self, (from, to): (u32, u32), sent: &[usize]) {
        for (number, id) in sent.iter().enumerate() {
            let got = self.received.get(&(from, to, number));
            assert_eq!(got, Some(&Some(*id)), "receive {number} of {to} from {from}");
        }
    }
}

/// Multi-sends, messages and detaches, without deaths. Receives that are too many are posted by `act` and stay.
fn copies_world(seed: u64, seen: &mut usize) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let endpoints = rng.u32(2..=6);
    let plan = Plan { endpoints, ..plan(&mut rng) };
    let detaches = rng.bool();
    let is_hardware = matches!(plan.scheme, Scheme::Hardware { .. });
    let strict = !detaches && !is_hardware && plan.max_lanes >= endpoints as usize;
    let mut program = Program::new(plan, rng, strict);
    for _ in 0..program.rng.usize(1..150) {
        program.act(endpoints, endpoints, detaches);
    }
    program.finish(|_| true);
    for (pair, sent) in &program.sent {
        program.check_pair(*pair, sent);
    }
    assert!(program.ended.values().all(|outcome| *outcome == Outcome::Done), "{:?}", program.ended);
    assert_eq!(program.ended.len(), program.sent.values().map(Vec::len).sum::<usize>());
    assert!(program.world.ranks.iter().all(|rank| rank.machine.backlogged() == 0));
    *seen += program.seen;
    program.world.trace
}

/// The last endpoint dies. The others learn of it at different times.
fn death_world(seed: u64) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let endpoints = rng.u32(3..=6);
    // The dead one keeps the lanes that it has.
    let mut plan = Plan { endpoints, max_lanes: endpoints as usize, ..plan(&mut rng) };
    if let Scheme::Hardware { rnr_retries, .. } = &mut plan.scheme {
        *rnr_retries = WITHOUT_LIMIT;
    }
    let mut program = Program::new(plan, rng, false);
    let victim = endpoints - 1;
    let steps = program.rng.usize(20..120);
    let dies_at = program.rng.usize(..steps);
    let learns_at: Vec<usize> = (0..victim).map(|_| dies_at + program.rng.usize(..40)).collect();
    for step in 0..steps + 60 {
        if step == dies_at {
            program.world.kill(victim);
        }
        for rank in (0..victim).filter(|rank| learns_at[*rank as usize] == step) {
            program.world.lose(rank, victim);
            program.collect();
        }
        let senders = if step < dies_at { endpoints } else { victim };
        if step < steps {
            program.act(senders, endpoints, true);
        } else {
            program.steps(1);
        }
    }
    program.finish(|rank| rank != victim);
    for (pair, sent) in program.sent.iter().filter(|((from, to), _)| *from != victim && *to != victim) {
        program.check_pair(*pair, sent);
    }
    // What came from the dead one is in order. What it had only announced is missing.
    for rank in 0..victim {
        let sent = program.sent.get(&(victim, rank)).map_or(&[][..], Vec::as_slice);
        let mut left = sent.iter();
        let got = program.received.range((victim, rank, 0)..=(victim, rank, usize::MAX));
        let in_order = got.filter_map(|(_, id)| *id).all(|id| left.any(|sent| *sent == id));
        assert!(in_order, "{rank} got {:?} of {sent:?}", program.received);
    }
    for ((from, to, id), outcome) in &program.ended {
        let is_lost = matches!(outcome, Outcome::Lost { peer: Some(peer), .. } if *peer == Peer(victim));
        assert!(
            *outcome == Outcome::Done || (is_lost && *to == victim),
            "{id} of {from} to {to}: {outcome:?}"
        );
    }
    let of_survivors = |&&(is_copy, _, _): &&(bool, u32, usize)| is_copy;
    let open = program.outstanding.iter().filter(|((rank, _), _)| *rank != victim);
    assert_eq!(open.map(|(_, open)| open).filter(of_survivors).count(), 0, "{:?}", program.outstanding);
    for rank in program.world.ranks.iter().take(victim as usize) {
        assert_eq!(rank.machine.backlogged(), 0, "{:?}", rank.machine);
    }
    program.world.trace
}

#[test]
fn copies_arrive_once_and_in_order_and_leave_together() {
    let seen = std::cell::Cell::new(0);
    run("copies_arrive_once_and_in_order_and_leave_together", 800, |seed| {
        let mut count = seen.get();
        let trace = copies_world(seed, &mut count);
        seen.set(count);
        trace
    });
    assert!(seen.get() > 0 || std::env::var("WEIR_SEED").is_ok(), "no world was strict");
}

#[test]
fn a_dead_destination_does_not_keep_copies_from_others() {
    run("a_dead_destination_does_not_keep_copies_from_others", 800, death_world);
}

#[test]
fn copies_arrive_over_busy_links() {
    run("copies_arrive_over_busy_links", 300, |seed| {
        with_busy_links(seed, || {
            let mut rng = Rng::with_seed(seed);
            let endpoints = rng.u32(2..=5);
            let plan = Plan { endpoints, ..plan(&mut rng) };
            let mut program = Program::new(plan, rng, false);
            for _ in 0..program.rng.usize(1..100) {
                program.act(endpoints, endpoints, true);
            }
            program.finish(|_| true);
            for (pair, sent) in &program.sent {
                program.check_pair(*pair, sent);
            }
            program.world.trace ^ death_world(seed)
        })
    });
}
