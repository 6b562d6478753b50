//! The state of a small world of paths: two endpoints, the datagrams between them, and what may still happen. Its moves, the
//! checks after each of them, and the run of a fair network that shows liveness.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use weir_proto::reliability::{Mutant, PathFault};

use super::Evidence;
use super::end::{Asked, End, Flying};
use super::world::World;

/// Moves of a fair network after which a world must be at rest.
const MOST_FAIR_MOVES: u32 = 1000;

/// Moves that a message about a violation shows.
const MOST_SHOWN_MOVES: usize = 40;

/// Something that happens. The first number is the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    Submits(usize),
    /// The datagram at this place on the way to the endpoint.
    Arrives(usize, usize),
    IsLost(usize, usize),
    IsRepeated(usize, usize),
    EndsBatch(usize),
    Expires(usize),
    Restarts(usize),
    BeginsToRefuse(usize),
    AcceptsAgain(usize),
}

/// A violation, and the moves that lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The violated rule.
    pub what: String,
    moves: Vec<Move>,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Flaw { what, moves } = self;
        let first = &moves[..moves.len().min(MOST_SHOWN_MOVES)];
        write!(f, "FAILS: {what}, after {} moves, which begin with {first:?}", moves.len())
    }
}

/// The moves to a state, the last one first.
struct Past {
    last: Move,
    before: Option<Rc<Past>>,
}

/// Bundles of a life that have arrived, and at which life of the other end.
#[derive(Clone, Copy, Debug, Hash)]
struct Arrived {
    at: u16,
    count: u32,
}

#[derive(Clone)]
pub(super) struct State {
    mutant: Option<Mutant>,
    ends: [Rc<End>; 2],
    /// On the way to each endpoint.
    network: [Vec<Flying>; 2],
    /// By life.
    arrived: Rc<BTreeMap<u16, Arrived>>,
    /// What may still happen.
    left: World,
    next_epoch: u16,
    ended: u64,
    past: Option<Rc<Past>>,
}

impl State {
    pub fn new(world: &World, mutant: Option<Mutant>) -> State {
        State {
            mutant,
            ends: [1, 2].map(|epoch| Rc::new(End::new(epoch, mutant))),
            network: [Vec::new(), Vec::new()],
            arrived: Rc::default(),
            left: *world,
            next_epoch: 3,
            ended: 0,
            past: None,
        }
    }

    /// A number that differs for states that can go on differently.
    pub fn hash(&self) -> u64 {
        let World { losses, repetitions, expirations, restarts, refusals, .. } = self.left;
        let mut hasher = DefaultHasher::new();
        (self.hash_of_fair(), losses, repetitions, expirations, restarts, refusals).hash(&mut hasher);
        hasher.finish()
    }

    /// The same for states on a fair network.
    fn hash_of_fair(&self) -> u64 {
        let hash_of = |flying: &Flying| {
            let mut hasher = DefaultHasher::new();
            flying.hash(&mut hasher);
            hasher.finish()
        };
        // The order of datagrams on the network means nothing.
        let network = self.network.each_ref().map(|to| to.iter().map(hash_of).fold(0, u64::wrapping_add));
        let mut hasher = DefaultHasher::new();
        let ends = self.ends.each_ref().map(|end| end.hash());
        (ends, network, &*self.arrived, self.left.bundles, self.next_epoch).hash(&mut hasher);
        hasher.finish()
    }

    pub fn evidence(&self) -> Evidence {
        let mut evidence = Evidence { ended: self.ended, ..Evidence::default() };
        for end in &self.ends {
            let counters = end.path().counters();
            evidence.raise(Evidence {
                sent_again: counters.sent_again,
                timeouts: counters.timeouts,
                repeated: counters.repeated,
                held: end.most_held,
                stale: counters.stale,
                ended: 0,
            });
        }
        evidence
    }

    /// All moves.
    pub fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        for (index, end) in self.ends.iter().enumerate() {
            if self.left.bundles[index] > 0 {
                moves.push(Move::Submits(index));
            }
            for (place, flying) in self.network[index].iter().enumerate() {
                // Equal datagrams are interchangeable.
                if self.network[index][..place].contains(flying) {
                    continue;
                }
                moves.push(Move::Arrives(index, place));
                if self.left.losses > 0 {
                    moves.push(Move::IsLost(index, place));
                }
                if self.left.repetitions > 0 {
                    moves.push(Move::IsRepeated(index, place));
                }
            }
            if end.batch_is_open {
                moves.push(Move::EndsBatch(index));
            }
            if self.left.expirations[index] > 0 && end.timer_ns().is_some() {
                moves.push(Move::Expires(index));
            }
            if self.left.restarts[index] > 0 {
                moves.push(Move::Restarts(index));
            }
            match end.refuses() {
                true => moves.push(Move::AcceptsAgain(index)),
                false if self.left.refusals > 0 => moves.push(Move::BeginsToRefuse(index)),
                false => {}
            }
        }
        moves
    }

    /// Makes a move, and checks the state after it.
    ///
    /// # Errors
    /// The violation.
    pub fn apply(&mut self, chosen: Move) -> Result<(), Flaw> {
        self.past = Some(Rc::new(Past { last: chosen, before: self.past.take() }));
        let result = self.make(chosen);
        result.map_err(|what| self.flaw(what))
    }

    fn flaw(&self, what: String) -> Flaw {
        let past = std::iter::successors(self.past.as_ref(), |past| past.before.as_ref());
        let mut moves: Vec<Move> = past.map(|past| past.last).collect();
        moves.reverse();
        Flaw { what, moves }
    }

    fn make(&mut self, chosen: Move) -> Result<(), String> {
        let spend = |left: &mut u32| *left = left.saturating_sub(1); // a fair network has no limits
        let (index, asked) = match chosen {
            Move::Submits(index) => {
                self.left.bundles[index] -= 1;
                (index, self.end(index).submits())
            }
            Move::Arrives(index, place) => {
                let flying = self.network[index].swap_remove(place);
                let World { arrival_ns, batches, .. } = self.left;
                (index, self.end(index).arrives(&flying, arrival_ns, !batches))
            }
            Move::IsLost(index, place) => {
                spend(&mut self.left.losses);
                self.network[index].swap_remove(place);
                return Ok(());
            }
            Move::IsRepeated(index, place) => {
                spend(&mut self.left.repetitions);
                let again = self.network[index][place];
                self.network[index].push(again);
                return Ok(());
            }
            Move::EndsBatch(index) => (index, self.end(index).ends_batch()),
            Move::Expires(index) => {
                spend(&mut self.left.expirations[index]);
                (index, self.end(index).expires())
            }
            Move::Restarts(index) => {
                spend(&mut self.left.restarts[index]);
                self.restart(index);
                return Ok(());
            }
            Move::BeginsToRefuse(index) => {
                spend(&mut self.left.refusals);
                self.end(index).begins_to_refuse();
                return Ok(());
            }
            Move::AcceptsAgain(index) => (index, self.end(index).accepts_again()),
        };
        self.settle(index, asked)
    }

    fn end(&mut self, index: usize) -> &mut End {
        Rc::make_mut(&mut self.ends[index])
    }

    fn restart(&mut self, index: usize) {
        self.ends[index] = Rc::new(End::new(self.next_epoch, self.mutant));
        self.next_epoch += 1;
    }

    /// Does what a path has asked for, and checks it.
    fn settle(&mut self, index: usize, asked: Asked) -> Result<(), String> {
        let Asked { sent, delivered, acknowledged, lost } = asked;
        self.network[1 - index].extend(sent);
        let malformed = self.ends[index].path().counters().malformed;
        if malformed > 0 {
            return Err(String::from("a datagram of a correct peer counts as malformed"));
        }
        for bundle in delivered {
            let end = self.end(index);
            let from = *end.from.get_or_insert(bundle.epoch);
            if bundle.epoch != from {
                return Err(format!("a bundle of epoch {} arrives after those of {from}", bundle.epoch));
            }
            if bundle.index != end.received {
                return Err(format!("bundle {} arrives, expected {}", bundle.index, end.received));
            }
            end.received += 1;
            let at = end.epoch;
            let arrived = Rc::make_mut(&mut self.arrived).entry(from).or_insert(Arrived { at, count: 0 });
            if arrived.at != at {
                return Err(format!("bundles of epoch {from} arrive at epochs {} and {at}", arrived.at));
            }
            arrived.count += 1;
        }
        if let Some(before) = acknowledged {
            let end = &self.ends[index];
            let (count, has) = (end.bundles_before(before), self.arrived_of(end.epoch));
            if count > has {
                return Err(format!("{count} bundles are acknowledged, and {has} have arrived"));
            }
        }
        match lost {
            None => Ok(()),
            Some(PathFault::Restarted) if self.ends[index].bound == Some(self.ends[1 - index].epoch) => {
                Err(String::from("a peer that lives counts as restarted"))
            }
            Some(PathFault::Restarted) => {
                self.ended += 1;
                self.restart(index); // the link makes a new machine
                Ok(())
            }
            Some(fault) => Err(format!("a peer that answers counts as {fault:?}")),
        }
    }

    fn arrived_of(&self, epoch: u16) -> u32 {
        self.arrived.get(&epoch).map_or(0, |arrived| arrived.count)
    }

    /// Runs on a network that loses nothing from now on, until it has seen a state before that came to rest.
    ///
    /// # Errors
    /// Something waits for ever, the world never comes to rest, or a check fails on the way.
    pub fn comes_to_rest(&self, settled: &mut HashSet<u64>) -> Result<(), Flaw> {
        if !settled.insert(self.hash_of_fair()) {
            return Ok(());
        }
        let mut state = self.clone();
        for _ in 0..MOST_FAIR_MOVES {
            let Some(chosen) = state.fair_move() else {
                return state.check_rest().map_err(|what| state.flaw(what));
            };
            if let Move::Expires(index) = chosen {
                let ns = state.ends[index].timer_ns().unwrap_or(0);
                state.end(1 - index).waits(ns);
            }
            state.apply(chosen)?;
            if !settled.insert(state.hash_of_fair()) {
                return Ok(());
            }
        }
        Err(state.flaw(String::from("the world never comes to rest")))
    }

    /// What happens next on a fair network: datagrams arrive before timers expire.
    fn fair_move(&self) -> Option<Move> {
        let first = |is: &dyn Fn(usize) -> bool| (0..2).find(|&index| is(index));
        let accepts = first(&|index| self.ends[index].refuses()).map(Move::AcceptsAgain);
        let ends_batch = || first(&|index| self.ends[index].batch_is_open).map(Move::EndsBatch);
        let arrives = || first(&|index| !self.network[index].is_empty()).map(|index| Move::Arrives(index, 0));
        let submits = || first(&|index| self.left.bundles[index] > 0).map(Move::Submits);
        let timer = |index: usize| Some((self.ends[index].timer_ns()?, index));
        let expires = || (0..2).filter_map(timer).min().map(|(_, index)| Move::Expires(index));
        accepts.or_else(ends_batch).or_else(arrives).or_else(submits).or_else(expires)
    }

    /// Nothing happens any more: everything has arrived.
    fn check_rest(&self) -> Result<(), String> {
        for (index, end) in self.ends.iter().enumerate() {
            let view = end.path().view();
            if view.unacknowledged_bundles > 0 {
                return Err(format!("{} bundles of end {index} wait for ever", view.unacknowledged_bundles));
            }
            let arrived = self.arrived_of(end.epoch);
            if arrived != end.submitted {
                return Err(format!(
                    "end {index} has sent {} bundles, and {arrived} have arrived",
                    end.submitted
                ));
            }
            // What a dead life has left unfinished stays.
            let is_of_living = end.bound == Some(self.ends[1 - index].epoch);
            if view.in_flight_bytes > 0 || (view.held_bundles > 0 && is_of_living) {
                return Err(format!("end {index} rests with {view:?}"));
            }
        }
        Ok(())
    }
}
