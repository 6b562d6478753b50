//! Lets a rank act, in a step or for an event of its hardware. Then it does the work that the rank leaves for the
//! world: attaches, injections, remote gets, orders to its NIC, and losses of peers.

use super::rank_state::{self, RankState};
use super::rnr::HardwareEvent;
use super::{Event, World, cost_of};
use crate::Picoseconds;
use crate::network::{Network, TrainId, TrainPart};
use crate::queue::Source;

impl<N: Network> World<N> {
    /// One step of the processor of `rank`.
    #[inline]
    pub(super) fn step(&mut self, now: Picoseconds, rank: u32) {
        self.act_as(rank);
        let foreseen = self.rank_states[rank as usize].retrieve_early(now, &self.spec.cost, &mut self.trace);
        let next = match foreseen {
            Some(next) => {
                self.network.retrieved(now, rank, &mut self.outputs);
                self.take_outputs();
                next
            }
            None => self.at_rank(now, rank, |rank_state, context| rank_state.step(now, context)),
        };
        self.ended += u32::from(next.ended);
        if let Some(at) = next.step_at {
            self.schedule(at, Event::Step(rank));
        }
    }

    /// The hardware of `rank` reports an event to its machine, whatever the processor does.
    pub(super) fn handle_hardware_event(&mut self, now: Picoseconds, rank: u32, event: HardwareEvent) {
        let before = self.outputs.act_as(Source::rank(rank));
        let step_at =
            self.at_rank(now, rank, |rank_state, context| rank_state.hardware_event(now, event, context));
        if let Some(at) = step_at {
            self.schedule(at, Event::Step(rank));
        }
        self.outputs.act_as(before);
    }

    /// Runs something at a rank, which acts, then does the work that it leaves.
    pub(super) fn at_rank<R>(
        &mut self,
        now: Picoseconds,
        rank: u32,
        action: impl FnOnce(&mut RankState, &mut rank_state::StepContext<'_>) -> R,
    ) -> R {
        let may_lose = self.may_lose();
        let (cost, percent) = cost_of(rank, &self.spec, self.faults.as_ref());
        let looks_ahead = self.looks_ahead && self.checks.is_none() && !may_lose;
        let mut context = rank_state::StepContext {
            spec: &self.spec,
            cost,
            percent,
            checks: self.checks.as_mut(),
            may_lose,
            trains: &mut self.trains,
            chunks: &mut self.chunks,
            trace: &mut self.trace,
            records: &mut self.records,
            latency_ns: &mut self.latency_ns,
            posted_buffers: self.posted_buffers.as_mut(),
            deferred: &mut self.deferred,
            retrieved: false,
            already_arrived: None,
            send_from: self.network.send_from(rank),
            sends_never_wait: self.sends_never_wait,
            looks_ahead,
        };
        let result = action(&mut self.rank_states[rank as usize], &mut context);
        let rank_state::StepContext { retrieved, already_arrived, .. } = context;
        if already_arrived.is_some() || !self.deferred.is_empty() {
            self.do_deferred_work(now, rank, already_arrived, retrieved);
        } else if retrieved {
            self.network.retrieved(now, rank, &mut self.outputs);
        }
        self.take_outputs();
        if self.posted_buffers.is_some() {
            self.start_attempts(now, rank);
        }
        result
    }

    /// Does the work that a rank leaves for the world. `retrieved`: the rank has retrieved a packet.
    fn do_deferred_work(
        &mut self,
        now: Picoseconds,
        rank: u32,
        already_arrived: Option<TrainId>,
        retrieved: bool,
    ) {
        let mut attaches = std::mem::take(&mut self.deferred.attaches);
        let mut injections = self.deferred.injections.iter();
        for (to, called) in attaches.drain(..) {
            // Mailboxes of these networks know all senders from the start, so attaching costs no packet.
            if !self.faults.as_ref().is_some_and(|faults| faults.has_crashed(to)) {
                let peer =
                    self.rank_states[to as usize].attached(now, rank, &self.spec, &mut self.deferred.scratch);
                // With credits every message is answered, and another message often follows the answer.
                if self.spec.config.scheme.grants() {
                    self.rank_states[rank as usize].set_number_at_peer(called, peer);
                }
                // Trains that waited for this attach leave now, in the same order. So the receiver need not
                // look up the sender again.
                if let Some(&(_, train)) = injections.find(|(_, train)| self.trains.destination(*train) == to)
                {
                    self.trains.set_peer(train, peer);
                }
            }
            if let Some(checks) = &mut self.checks {
                checks.attached(to);
            }
        }
        self.deferred.attaches = attaches;
        if let Some(train) = already_arrived {
            let to = self.trains.destination(train);
            // The attempt has passed the NIC.
            let index = self.note_part(TrainPart { train, to, first: 0, count: 1, spacing_ps: 0 });
            self.schedule(now, Event::PartArrived(index));
        }
        for (handle, peer) in self.deferred.readings.drain(..) {
            let slots = self.rank_states[peer as usize].slots_of(rank);
            self.rank_states[rank as usize].read(handle, slots);
        }
        let mut posted = std::mem::take(&mut self.deferred.posted);
        for (at, post) in posted.drain(..) {
            self.post_to_nic(at, rank, post);
        }
        self.deferred.posted = posted;
        let mut own_words = std::mem::take(&mut self.deferred.own_words);
        for post in own_words.drain(..) {
            self.access_own_word(rank, post);
        }
        self.deferred.own_words = own_words;
        for from in std::mem::take(&mut self.deferred.rejected) {
            self.schedule(now, Event::Rejected { rank, from });
        }
        for (at, train) in self.deferred.injections.drain(..) {
            self.queue.push(at, self.outputs.draw(at), Event::Inject(train));
        }
        // The network draws its sequences here: after departing trains, before remote gets.
        if retrieved {
            self.network.retrieved(now, rank, &mut self.outputs);
        }
        for get in self.deferred.gets.drain(..) {
            let number = match &mut self.faults {
                Some(faults) => faults.get_begins(rank, get.number, get.from),
                None => get.number,
            };
            self.network.get(get.at, rank, get.from, get.bytes, number, &mut self.outputs);
        }
        self.take_outputs();
        let mut severed = std::mem::take(&mut self.deferred.severed);
        for peer in severed.drain(..) {
            self.severed(now, rank, peer);
        }
        self.deferred.severed = severed;
    }
}
