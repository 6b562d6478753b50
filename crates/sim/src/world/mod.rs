//! A world: ranks, their endpoints and a network, until every program has ended.
//!
//! Each rank has one processor. While its program is inside the library (it waits) the processor takes packets out of
//! the mailbox one after the other; while it computes nobody does. Everything a processor does has a price
//! ([`Cost`]) and pushes back its `free_at`. Whoever acts later than now does so by an event, so that the network is asked in order of time.
//!
//! ```text
//! Step(3)      rank 3 performs a call: isend. Its machine answers Transmit x 37
//! Inject(t)    the train leaves: the network says that it arrives 1.2 us later
//! Arrive(t)    it stands in the mailbox of rank 5, whose processor is idle
//! Step(5)      rank 5 takes packet 0; its machine answers Place, Retire; next Step(5) when that is paid for
//! ```

mod check;
pub mod faults;
mod flight;
mod lookahead;
mod mailbox;
mod peer_numbers;
mod pool;
mod rank_state;
mod rnr;

use std::fmt;

use hdrhistogram::Histogram;
use weir_proto::flow::hardware::WITHOUT_LIMIT;
use weir_proto::{Config, Counters, DataRegion, Endpoint, Geometry, PeerFault, Scheme};

use crate::cost::Cost;
use crate::network::infiniband;
use crate::network::{Network, Output, Outputs, Reminder, ScheduledOutput, Segment, TrainId};
use crate::program::{Program, Rank};
use crate::queue::Queue;
use crate::trace::Trace;
use crate::{Picoseconds, TIME_LIMIT};
use check::Checks;
use flight::Flights;
use mailbox::Chunks;
pub use pool::PoolReading;
use rank_state::RankState;
use rnr::PostedBuffers;

/// Longer latencies are recorded as this. Unit: ns.
const MAX_LATENCY_NS: u64 = 3_600_000_000_000;

/// What makes a world, beside its network.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Ranks.
    pub ranks: u32,
    /// The machines' settings. The geometry is the network's.
    pub config: Config,
    /// Data slots that each sender owns in each mailbox.
    pub quota_slots: u32,
    /// Adaptive backlog: of these, so many at first.
    pub start_slots: u32,
    /// The processors.
    pub cost: Cost,
    /// Stop with an error after so many events; 0: never.
    pub event_limit: u64,
    /// What is random in the world is drawn from it.
    pub seed: u64,
}

impl Plan {
    /// Ranks that own `quota_slots` data slots in each mailbox, and otherwise nothing that is scarce: credit packets have two slots,
    /// messages up to 2 KB travel whole, everything unexpected is kept. What is to be different is set afterwards.
    pub fn new(ranks: u32, scheme: Scheme, quota_slots: u32, cost: Cost) -> Plan {
        let config = Config {
            scheme,
            geometry: Geometry::EXTOLL, // the network's takes its place
            credit_slots: 2,
            eager_bytes: 2048,
            cross_memory: true,
            remote_inline_bytes: 64,
            max_unexpected: 1 << 20,
            unexpected_budget_bytes: 1 << 40,
            bounce_bytes: 0,
            planned_peers: 1,
            planned_quota_slots: 1,
            region: DataRegion::default(),
        };
        Plan { ranks, config, quota_slots, start_slots: quota_slots, cost, event_limit: 0, seed: 0 }
    }

    /// Credits that a sender has before it was granted any.
    pub(crate) fn start_slots(&self) -> u32 {
        match self.config.scheme {
            Scheme::Dynamic { .. } => self.config.region.start_slots,
            Scheme::AdaptiveBacklog { .. } => self.start_slots.min(self.quota_slots),
            _ => self.quota_slots,
        }
    }

    /// Whether a sender may give up a receiver that lives.
    fn may_give_up(&self) -> bool {
        matches!(self.config.scheme, Scheme::Hardware { rnr_retries, .. } if rnr_retries < WITHOUT_LIMIT)
    }
}

/// A number that a program left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// When. Unit: ps.
    pub at: Picoseconds,
    /// Who.
    pub rank: u32,
    /// What.
    pub name: &'static str,
    /// Which of a series; 0 if it is none.
    pub index: u32,
    /// The number.
    pub value: f64,
}

/// What became of a world.
#[derive(Debug)]
pub struct Report {
    /// When the last program ended.
    pub finished_at: Picoseconds,
    /// When each did.
    pub finished: Vec<Picoseconds>,
    /// Hash of everything that happened, in order.
    pub trace: u64,
    /// Events handled.
    pub events: u64,
    /// Packets that have crossed a wire, summed over wires.
    pub packet_hops: u64,
    /// Faults of links that these have repaired.
    pub repairs: u64,
    /// What the machines counted, by rank.
    pub counters: Vec<Counters>,
    /// What the programs left, in order of time.
    pub records: Vec<Record>,
    /// What receivers knew of their senders at the end, by rank; with dynamic credits only.
    pub pools: Vec<PoolReading>,
    /// From the call that sends a message to the moment at which a waiting receive has it. Unit: ns.
    pub latency_ns: Histogram<u64>,
    /// The most slots that stood in one mailbox at a time.
    pub peak_mailbox_slots: u32,
}

/// Why a world did not end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stuck {
    /// Nothing can happen any more, and programs wait.
    #[error(
        "at {at_ns} ns nothing can happen any more, and {waiting} programs wait, the first of them rank {first}"
    )]
    Deadlock {
        /// When.
        at_ns: u64,
        /// How many have not ended.
        waiting: u32,
        /// One of them.
        first: u32,
    },
    /// A check from outside has failed: a bug.
    #[error("at {at_ns} ns: {what}")]
    InvariantViolated {
        /// When.
        at_ns: u64,
        /// What was seen.
        what: String,
    },
    /// Time has come to its end: what programs compute, or what the network takes, adds up to too much.
    #[error("virtual time has come to {at_s} s; allowed: less than {} s", TIME_LIMIT / 1_000_000_000_000)]
    TimeLimit {
        /// When. Unit: s.
        at_s: u64,
    },
    /// More events than allowed.
    #[error("more than {limit} events")]
    EventLimit {
        /// The limit.
        limit: u64,
    },
}

/// What happens in a world. There are many of them: see below.
#[derive(Clone, Copy, Debug)]
enum Event<E> {
    /// A rank's processor may have something to do.
    Step(u32),
    /// A train leaves.
    Inject(TrainId),
    /// Something of the network's own.
    Network(E),
    /// The next packet of a train has arrived, in a world that need not know which it is.
    Arrived { train: TrainId, to: u32 },
    /// The first packet of a segment has: of this one of those kept.
    SegmentArrived(u32),
    /// The network lets a rank go on that it held.
    Released(u32),
    /// A remote get has ended.
    GetDone { to: u32, number: u32 },
    /// Hardware that knows of receivers that are not ready: buffers of a connection are posted again.
    Reposted { from: u32, to: u32, slots: u16 },
    /// The same: a NAK is back.
    Refused { from: u32, to: u32 },
    /// The same: a machine's timer.
    Deadline { rank: u32 },
    /// Something goes wrong.
    Fault(faults::Event),
    /// Somebody learns that it has lost another.
    Lost { rank: u32, peer: u32, fault: PeerFault },
}

/// So that one takes 24 bytes in the queue, with its time and its turn.
const _: () = assert!(size_of::<Event<infiniband::Event>>() == 12);

/// Ranks at work on a network.
pub struct World<N: Network> {
    plan: Plan,
    network: N,
    rank_states: Vec<RankState>,
    flights: Flights,
    /// What mailboxes hold.
    chunks: Chunks,
    /// Segments that will arrive, of several packets or where it counts which they are: events are small.
    segments: Vec<Segment>,
    free_segments: Vec<u32>,
    /// What nodes leave to do; empty between steps.
    left: rank_state::DeferredWork,
    /// Nobody has a say in what a sender does next: the network never holds it, and nothing is granted.
    sends_never_wait: bool,
    /// Machines can be told of packets before their time.
    looks_ahead: bool,
    /// A sender may give up a receiver that lives.
    may_give_up: bool,
    /// With the scheme `hardware` only.
    posted_buffers: Option<PostedBuffers>,
    faults: Option<faults::State>,
    checks: Option<Checks>,
    queue: Queue<Event<N::Event>>,
    outputs: Outputs<N::Event>,
    /// What is being read of it; empty between events.
    scheduled: Vec<ScheduledOutput>,
    trace: Trace,
    events: u64,
    ended: u32,
    records: Vec<Record>,
    latency_ns: Histogram<u64>,
}

impl<N: Network> fmt::Debug for World<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("plan", &self.plan)
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}

impl<N: Network> World<N> {
    /// A world in which every rank is about to run `program`.
    pub fn new(mut plan: Plan, network: N, program: impl Fn(Rank) -> Program) -> World<N> {
        plan.config.geometry = network.geometry();
        let rank_states = (0..plan.ranks).map(|rank| RankState::new(&plan, rank, &program)).collect();
        let hardware = matches!(plan.config.scheme, Scheme::Hardware { .. });
        let posted_buffers = hardware.then(|| PostedBuffers::new(plan.quota_slots));
        let sends_never_wait = !network.holds() && !plan.config.scheme.grants();
        let (mut queue, mut outputs) = (Queue::new(), Outputs::default());
        (0..plan.ranks).for_each(|rank| queue.push(0, outputs.draw(), Event::Step(rank)));
        World {
            plan,
            network,
            rank_states,
            flights: Flights::default(),
            chunks: Chunks::default(),
            segments: Vec::new(),
            free_segments: Vec::new(),
            left: rank_state::DeferredWork::default(),
            sends_never_wait,
            looks_ahead: lookahead::supports_lookahead(&plan.config),
            may_give_up: plan.may_give_up(),
            posted_buffers,
            faults: plan.may_give_up().then(faults::State::default),
            checks: cfg!(debug_assertions).then(|| Checks::new(&plan)),
            queue,
            outputs,
            scheduled: Vec::new(),
            trace: Trace::default(),
            events: 0,
            ended: 0,
            records: Vec::new(),
            latency_ns: Histogram::new_with_max(MAX_LATENCY_NS, 3).expect("three digits are allowed"),
        }
    }

    /// Runs until every program has ended and nothing is under way.
    ///
    /// # Errors
    /// [`Stuck`].
    pub fn run(mut self) -> Result<Report, Stuck> {
        while let Some((now, sequence, event)) = self.queue.pop() {
            check_time_limit(now)?;
            self.outputs.begin(sequence);
            self.events += 1;
            if self.events == self.plan.event_limit {
                return Err(Stuck::EventLimit { limit: self.plan.event_limit });
            }
            match event {
                Event::Step(rank) => self.step(now, rank),
                Event::Inject(train) if self.has_crashed(self.flights.injection(train).from) => {
                    let count = self.flights.injection(train).packets;
                    self.was_attempt(train); // its name is free again
                    (0..count).for_each(|_| self.flights.discard(train));
                }
                Event::Inject(train) => self.inject(now, train),
                Event::Network(event) => {
                    self.network.handle(now, event, &mut self.outputs);
                    self.take_outputs();
                }
                Event::Arrived { train, to } => {
                    self.arrived(now, Segment { train, to, first: 0, count: 1, spacing_ps: 0 });
                }
                Event::SegmentArrived(index) => {
                    self.free_segments.push(index);
                    let segment = self.segments[index as usize];
                    if self.was_attempt(segment.train) {
                        self.attempt_arrived(now, segment.train);
                    } else {
                        self.segment_arrived(now, segment);
                    }
                }
                Event::Released(rank) => {
                    let at = self.rank_states[rank as usize].release(now);
                    self.schedule(at, Event::Step(rank));
                }
                Event::GetDone { to, number } => {
                    let ended = match &mut self.faults {
                        Some(faults) => faults.get_ends(number),
                        None => Some((number, true)),
                    };
                    if let Some((number, whole)) = ended {
                        self.rank_states[to as usize].copied(number, whole);
                        self.wake(now, to);
                    }
                }
                Event::Reposted { from, to, slots } => self.reposted(from, to, slots),
                Event::Refused { from, to } => {
                    self.handle_hardware_event(now, from, rnr::HardwareEvent::Refused { peer: to })
                }
                Event::Deadline { rank } => self.deadline(now, rank),
                Event::Fault(event) => self.fault(now, event),
                Event::Lost { rank, peer, fault } => self.lost(now, rank, peer, fault),
            }
            if let Some(checks) = &self.checks {
                if checks.violation.is_some() {
                    return Err(self.violation());
                }
                self.check_a_pool();
            }
        }
        if self.ended < self.plan.ranks {
            let first = self.rank_states.iter().position(|rank_state| !rank_state.has_ended()).unwrap_or(0);
            return Err(Stuck::Deadlock {
                at_ns: self.rank_states.iter().map(RankState::free_at).fold(self.queue.now(), u64::max)
                    / 1000,
                waiting: self.plan.ranks - self.ended,
                first: first as u32,
            });
        }
        // The last thing that a program does may be followed by no event.
        self.rank_states.iter().try_for_each(|rank_state| check_time_limit(rank_state.ended_at()))?;
        if self.checks.is_some() {
            self.check_rest()?;
        }
        Ok(self.report())
    }

    /// With the checks from outside, or without; in debug builds they are on from the beginning.
    #[must_use]
    pub fn checked(mut self, checked: bool) -> World<N> {
        self.checks = checked.then(|| Checks::new(&self.plan));
        self
    }

    /// Lets a test do something to the machines before they begin, for instance put a wrong rule in the place of a right one.
    #[must_use]
    pub fn with_machines(mut self, mut change: impl FnMut(u32, &mut Endpoint)) -> World<N> {
        (0..).zip(&mut self.rank_states).for_each(|(rank, rank_state)| change(rank, rank_state.machine()));
        self
    }

    /// Looks into a pool of dynamic credits (I1, I3, I6) now and then, another one each time: that takes as long as it has senders.
    fn check_a_pool(&mut self) {
        if let Scheme::Dynamic { .. } = self.plan.config.scheme
            && self.events.is_multiple_of(64)
        {
            let rank = self.events / 64 % u64::from(self.plan.ranks);
            self.rank_states[rank as usize].machine().pool().assert_invariants();
        }
    }

    fn violation(&mut self) -> Stuck {
        let what = self.checks.as_mut().and_then(|checks| checks.violation.take()).unwrap_or_default();
        Stuck::InvariantViolated { at_ns: self.queue.now() / 1000, what }
    }

    /// Nothing may be left anywhere, but for what concerned those who were lost.
    fn check_rest(&mut self) -> Result<(), Stuck> {
        let Some(checks) = &mut self.checks else { return Ok(()) };
        checks.check_end();
        if let Scheme::Dynamic { .. } = self.plan.config.scheme {
            self.rank_states
                .iter_mut()
                .for_each(|rank_state| rank_state.machine().pool().assert_invariants());
        }
        if !checks.any_peer_lost() {
            let left = |(rank, rank_state): (usize, &RankState)| {
                let left = rank_state.leftovers();
                (!left.is_empty()).then(|| format!("left at the end at rank {rank}: {}", left.join(", ")))
            };
            checks.violation = checks.violation.take().or(self.rank_states.iter().enumerate().find_map(left));
        }
        if checks.violation.is_some() { Err(self.violation()) } else { Ok(()) }
    }

    fn report(self) -> Report {
        let finished: Vec<_> = self.rank_states.iter().map(RankState::ended_at).collect();
        let mut pools = Vec::new();
        if let Scheme::Dynamic { .. } = self.plan.config.scheme {
            pools.extend(
                self.rank_states
                    .iter()
                    .map(|rank_state| rank_state.pool_reading(self.plan.config.credit_slots)),
            );
        }
        Report {
            finished_at: finished.iter().copied().max().unwrap_or(0),
            finished,
            trace: self.trace.hash(),
            events: self.events,
            packet_hops: self.network.packet_hops(),
            repairs: self.network.repairs(),
            peak_mailbox_slots: self
                .rank_states
                .iter()
                .map(|rank_state| rank_state.mailbox.peak_slots())
                .max()
                .unwrap_or(0),
            // Each takes the place of its node, so that the end of a large world is not its peak of memory.
            counters: self.rank_states.into_iter().map(|rank_state| rank_state.counters()).collect(),
            records: self.records,
            pools,
            latency_ns: self.latency_ns,
        }
    }

    /// Lets something happen at `at`, after all that was to happen then before.
    #[inline]
    fn schedule(&mut self, at: Picoseconds, event: Event<N::Event>) {
        self.queue.push(at, self.outputs.draw(), event);
    }

    /// Sees to it that `rank` looks at what there is, when its processor is free.
    fn wake(&mut self, now: Picoseconds, rank: u32) {
        let (cost, _) = cost_of(rank, &self.plan, self.faults.as_ref());
        if let Some(at) = self.rank_states[rank as usize].wake_at(now, cost) {
            self.schedule(at, Event::Step(rank));
        }
    }

    fn inject(&mut self, now: Picoseconds, train: TrainId) {
        let injection = self.flights.injection(train);
        let hold = self.network.inject(now, injection, &mut self.outputs);
        self.rank_states[injection.from as usize].hold(hold);
        self.take_outputs();
    }

    #[inline]
    fn arrived(&mut self, now: Picoseconds, segment: Segment) {
        self.rank_states[segment.to as usize].mailbox.arrive(now, segment, &mut self.chunks);
        self.wake(now, segment.to);
    }

    fn segment_arrived(&mut self, now: Picoseconds, segment: Segment) {
        if let Some(checks) = &mut self.checks
            && !self.flights.arrive(segment.train, segment.first, segment.count)
        {
            checks.out_of_order(segment);
        }
        if !self.by_number() {
            return self.arrived(now, segment);
        }
        if self.has_crashed(segment.to) {
            return self.drop_packets(now, segment);
        }
        self.rank_states[segment.to as usize].mailbox.arrive_by_number(now, segment);
        self.wake(now, segment.to);
    }

    /// Whether it counts which packet of its train arrives, and when: where ranks are lost it counts what had come by then. Otherwise
    /// nothing of a train is looked at before its packets are taken, unless somebody checks.
    #[inline]
    fn by_number(&self) -> bool {
        self.posted_buffers.is_some() || self.may_lose()
    }

    /// Whether ranks may crash or be given up.
    fn may_lose(&self) -> bool {
        self.faults.is_some() || self.may_give_up
    }

    #[inline]
    fn take_outputs(&mut self) {
        if self.outputs.has_reminders() {
            for Reminder { at, sequence, event } in self.outputs.reminders() {
                self.queue.push(at, sequence, Event::Network(event));
            }
        }
        if self.outputs.count() > 0 {
            self.schedule_outputs();
        }
    }

    fn schedule_outputs(&mut self) {
        let mut scheduled = self.outputs.take(0, std::mem::take(&mut self.scheduled));
        for ScheduledOutput { at, sequence, output } in scheduled.drain(..) {
            let event = match output {
                Output::Arrived(segment) => self.arrival(segment),
                Output::Released { rank } => Event::Released(rank),
                Output::GetDone { to, number } => Event::GetDone { to, number },
            };
            self.queue.push(at, sequence, event);
        }
        self.scheduled = scheduled;
    }

    /// What happens when a segment arrives.
    #[inline]
    fn arrival(&mut self, segment: Segment) -> Event<N::Event> {
        if segment.count == 1 && self.checks.is_none() && !self.by_number() {
            return Event::Arrived { train: segment.train, to: segment.to };
        }
        let index = self.free_segments.pop().unwrap_or_else(|| {
            self.segments.push(segment);
            self.segments.len() as u32 - 1
        });
        self.segments[index as usize] = segment;
        Event::SegmentArrived(index)
    }

    /// One thing that the processor of `rank` does.
    #[inline]
    fn step(&mut self, now: Picoseconds, rank: u32) {
        let foreseen = self.rank_states[rank as usize].retrieve_early(now, &self.plan.cost, &mut self.trace);
        let next = match foreseen {
            Some(next) => {
                self.network.taken(now, rank, &mut self.outputs);
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

    /// Something that the hardware of `rank` tells its machine, whatever its processor does.
    fn handle_hardware_event(&mut self, now: Picoseconds, rank: u32, event: rnr::HardwareEvent) {
        let step_at =
            self.at_rank(now, rank, |rank_state, context| rank_state.hardware_event(now, event, context));
        if let Some(at) = step_at {
            self.schedule(at, Event::Step(rank));
        }
    }

    /// Lets something happen at a node, and sees to what comes of it elsewhere.
    fn at_rank<R>(
        &mut self,
        now: Picoseconds,
        rank: u32,
        happens: impl FnOnce(&mut RankState, &mut rank_state::StepContext<'_>) -> R,
    ) -> R {
        let may_lose = self.may_lose();
        let (cost, percent) = cost_of(rank, &self.plan, self.faults.as_ref());
        let looks_ahead = self.looks_ahead && self.checks.is_none() && !may_lose;
        let mut surroundings = rank_state::StepContext {
            plan: &self.plan,
            cost,
            percent,
            checks: self.checks.as_mut(),
            may_lose,
            flights: &mut self.flights,
            chunks: &mut self.chunks,
            trace: &mut self.trace,
            records: &mut self.records,
            latency_ns: &mut self.latency_ns,
            posted_buffers: self.posted_buffers.as_mut(),
            left: &mut self.left,
            taken: false,
            already_arrived: None,
            send_from: self.network.send_from(rank),
            sends_never_wait: self.sends_never_wait,
            looks_ahead,
        };
        let result = happens(&mut self.rank_states[rank as usize], &mut surroundings);
        let rank_state::StepContext { taken, already_arrived, .. } = surroundings;
        if already_arrived.is_some() || !self.left.is_empty() {
            self.do_deferred_work(now, rank, already_arrived, taken);
        } else if taken {
            self.network.taken(now, rank, &mut self.outputs);
        }
        self.take_outputs();
        if self.posted_buffers.is_some() {
            self.start_attempts(now, rank);
        }
        result
    }

    /// Does what a node has left for us to do. `taken`: it has taken a packet.
    fn do_deferred_work(
        &mut self,
        now: Picoseconds,
        rank: u32,
        already_arrived: Option<TrainId>,
        taken: bool,
    ) {
        let mut attaches = std::mem::take(&mut self.left.attaches);
        let mut injections = self.left.injections.iter();
        for (to, called) in attaches.drain(..) {
            // Mailboxes know all senders from the beginning on these networks: no packet is spent on it.
            if !self.faults.as_ref().is_some_and(|faults| faults.has_crashed(to)) {
                let peer =
                    self.rank_states[to as usize].attached(now, rank, &self.plan, &mut self.left.scratch);
                // With credits every message is answered, and one that is answered is often followed by another.
                if self.plan.config.scheme.grants() {
                    self.rank_states[rank as usize].set_number_at_peer(called, peer);
                }
                // What waited for it leaves now, in the same order. So the receiver need not look for its number once more.
                if let Some(&(_, train)) =
                    injections.find(|(_, train)| self.flights.destination(*train) == to)
                {
                    self.flights.set_peer(train, peer);
                }
            }
            if let Some(checks) = &mut self.checks {
                checks.attached(to);
            }
        }
        self.left.attaches = attaches;
        if let Some(train) = already_arrived {
            let to = self.flights.destination(train);
            let arrival = self.arrival(Segment { train, to, first: 0, count: 1, spacing_ps: 0 });
            self.schedule(now, arrival);
        }
        for (handle, peer) in self.left.readings.drain(..) {
            let slots = self.rank_states[peer as usize].slots_of(rank);
            self.rank_states[rank as usize].read(handle, slots);
        }
        for (at, train) in self.left.injections.drain(..) {
            self.queue.push(at, self.outputs.draw(), Event::Inject(train));
        }
        // What the network says draws its turns at once: after what leaves, before what is read.
        if taken {
            self.network.taken(now, rank, &mut self.outputs);
        }
        for get in self.left.gets.drain(..) {
            let number = match &mut self.faults {
                Some(faults) => faults.get_begins(rank, get.number, get.from),
                None => get.number,
            };
            self.network.get(get.at, rank, get.from, get.bytes, number, &mut self.outputs);
        }
        self.take_outputs();
        let mut severed = std::mem::take(&mut self.left.severed);
        for peer in severed.drain(..) {
            self.severed(now, rank, peer);
        }
        self.left.severed = severed;
    }
}

/// Whether time may come to `at`.
#[inline]
fn check_time_limit(at: Picoseconds) -> Result<(), Stuck> {
    if at < TIME_LIMIT { Ok(()) } else { Err(Stuck::TimeLimit { at_s: at / 1_000_000_000_000 }) }
}

/// What things cost at a rank, and in how many percent of the time it computes.
#[inline]
fn cost_of<'a>(rank: u32, plan: &'a Plan, faults: Option<&'a faults::State>) -> (&'a Cost, u32) {
    let slow = faults.and_then(|faults| faults.slow(rank));
    slow.map_or((&plan.cost, 100), |(cost, percent)| (cost, *percent))
}
