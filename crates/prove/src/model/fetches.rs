//! Fetches of a search: programs add one to a word of a peer, and fetch the old value.
//!
//! Every endpoint has one word, which is 0 at first. The k-th change of a word must fetch k, so the fetched values of a
//! word form a chain without gap and without double. Packets of a pair keep their order. So the k-th fetch of a pair must
//! get the value of its k-th change, and fetches of a pair end in the order in which they were posted.

use std::sync::Arc;

use weir_proto::offload::atomics::{AtomicPacket, AtomicsCommand, ExposedRegion, FetchCommand};
use weir_proto::offload::{OffloadCommand, WordOperation, WordType, WordUpdate};
use weir_proto::{Outcome, Peer, Request};

use super::checks::{Violation, violation};
use super::{Effect, Happened, Setup, State};

/// What every fetch does.
pub(super) const UPDATE: WordUpdate =
    WordUpdate { operation: WordOperation::Sum, word_type: WordType::U64, operand: 1, compare: 0 };

/// A fetch without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetch {
    /// Its number, from the machine.
    pub number: u32,
    pub request: Request,
    /// The value of the word before the change, when it has happened.
    pub value: Option<u64>,
}

impl Setup {
    /// The peers may change the word of `us`.
    pub(super) fn expose_word(&self, state: &mut State, us: u32) -> Result<(), Violation> {
        let bytes = UPDATE.word_type.bytes().into();
        let region = ExposedRegion { bytes, readable: true, writable: true };
        let command = AtomicsCommand::Expose { key: 0, region };
        self.post_offloaded(state, us, OffloadCommand::Atomics(command), &mut Effect::default()).map(|_| ())
    }

    /// The number of fetches of pair number `pair` that the program may post.
    pub(super) fn fetches_left(&self, state: &State, pair: usize) -> usize {
        let (from, to) = self.pair(pair);
        if self.is_lost(state, from, to) {
            return 1; // it counts as sending
        }
        self.offload.max_fetches - state.machines.fetches[self.lane(from, to)].len()
    }

    pub(super) fn post_fetch(
        &self,
        state: &mut State,
        (from, to): (u32, u32),
        effect: &mut Effect,
    ) -> Result<(), Violation> {
        let lane = self.lane(from, to);
        let request = Arc::make_mut(&mut state.machines).ranks[from as usize].request(Vec::new());
        let fetch = FetchCommand { request, peer: Peer(to), key: 0, offset: 0, update: UPDATE, fetch: true };
        let command = OffloadCommand::Atomics(AtomicsCommand::Fetch(fetch));
        let Some(number) = self.post_offloaded(state, from, command, effect)? else {
            return violation("fetch", format!("{from} sends nothing to {to}"));
        };
        let fetches = &mut Arc::make_mut(&mut state.machines).fetches[lane];
        fetches.push_back(Fetch { number, request, value: None });
        Ok(())
    }

    /// The machine of `us` has changed its word. `from`: the sender of the packet that it handles.
    pub(super) fn word_updated(
        &self,
        state: &mut State,
        us: u32,
        from: Option<u32>,
        old: u64,
    ) -> Result<(), Violation> {
        let Some(from) = from else {
            return violation("fetch", format!("the word of {us} changes without a packet"));
        };
        let lost = self.is_lost(state, from, us);
        let fetches = &mut Arc::make_mut(&mut state.machines).fetches[self.lane(from, us)];
        match fetches.iter_mut().find(|fetch| fetch.value.is_none()) {
            Some(fetch) => fetch.value = Some(old),
            None if lost => {} // its fetch has ended with the loss
            None => return violation("fetch", format!("the word of {us} changes without a fetch of {from}")),
        }
        Ok(())
    }

    /// The machine of `us` has completed a fetch. `word`: the fetched value.
    pub(super) fn fetch_ended(
        &self,
        state: &mut State,
        us: u32,
        request: Request,
        outcome: Outcome,
        word: Option<u64>,
        effect: &mut Effect,
    ) -> Result<(), Violation> {
        let fetches = |peer| &state.machines.fetches[self.lane(us, peer)];
        let find = |peer| Some((peer, fetches(peer).iter().position(|fetch| fetch.request == request)?));
        let Some((peer, position)) = self.neighbours(us).find_map(find) else {
            return violation("fetch", format!("{us} completes {request:?}, which is no fetch"));
        };
        let expected = fetches(peer)[position].value;
        let good = match outcome {
            Outcome::Done => position == 0 && word.is_some() && word == expected,
            Outcome::Lost { peer: of, .. } => of == Some(Peer(peer)) && self.is_lost(state, us, peer),
            _ => false,
        };
        if !good {
            let detail = format!(
                "fetch {position} of {us} at {peer} ends with {outcome:?} and {word:?}, expected {expected:?}"
            );
            return violation("fetch", detail);
        }
        Arc::make_mut(&mut state.machines).fetches[self.lane(us, peer)].remove(position);
        effect.happened |= if outcome == Outcome::Done { Happened::Fetched.bit() } else { 0 };
        Ok(())
    }

    /// In a state at rest every fetch has ended.
    pub(super) fn check_fetches_at_rest(&self, state: &State) -> Result<(), Violation> {
        let waits = |(from, to): &&(u32, u32)| !state.machines.fetches[self.lane(*from, *to)].is_empty();
        match self.offload.fetching.iter().find(waits) {
            Some((from, to)) => violation("fetch", format!("a fetch of {from} at {to} never ends")),
            None => Ok(()),
        }
    }

    pub(super) fn canonical_atomic(
        &self,
        state: &State,
        (from, to): (u32, u32),
        packet: &AtomicPacket,
        number: u32,
        words: &mut Vec<u32>,
    ) {
        let find = |lane: usize| {
            let mut fetches = state.machines.fetches[lane].iter().enumerate();
            fetches.find(|(_, fetch)| fetch.number == number)
        };
        match *packet {
            AtomicPacket::Request { .. } => {
                let position = find(self.lane(from, to)).map_or(u32::MAX, |(position, _)| position as u32);
                words.extend([0, position]);
            }
            AtomicPacket::Result { old, refused } => match find(self.lane(to, from)) {
                Some((position, fetch)) => {
                    let right = !refused && fetch.value == Some(old);
                    words.extend([1, position as u32, u32::from(right)]);
                }
                None => words.push(2),
            },
            AtomicPacket::Vector { .. } | AtomicPacket::VectorResult { .. } => {
                unreachable!("programs of a search have no vectors")
            }
        }
    }
}
