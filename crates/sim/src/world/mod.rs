//! A world: ranks, their endpoints and a network. It runs until every program has ended.
//!
//! Each rank has one processor. While the program waits inside the library, the processor retrieves packets from the
//! mailbox one after the other. While the program computes, no packet is retrieved. Every step of a processor has a price
//! ([`Cost`]) and moves its `free_at`. A later action is an event, so that the network is called in order of time.
//!
//! ```text
//! Step(3)      rank 3 performs a call: isend. Its machine answers Transmit x 37
//! Inject(t)    the train leaves; the network says that it arrives 1.2 us later
//! Arrived(t)   it stands in the mailbox of rank 5, whose processor is idle
//! Step(5)      rank 5 retrieves packet 0; its machine answers Place, Retire; the next Step(5) follows after their price
//! ```

mod check;
pub mod faults;
pub mod host;
mod lookahead;
mod mailbox;
mod peer_numbers;
mod pool;
mod rank_state;
mod rnr;
mod trains;

use std::fmt;

use hdrhistogram::Histogram;
use weir_proto::flow::hardware::WITHOUT_LIMIT;
use weir_proto::{Config, Counters, DataRegion, Endpoint, Geometry, Instant, PeerFault, Scheme, Timer};

use crate::cost::{Cost, NicCost};
use crate::network::infiniband;
use crate::network::{Network, Output, Outputs, Reminder, ScheduledOutput, TrainId, TrainPart};
use crate::program::{Program, Rank};
use crate::queue::Queue;
use crate::trace::Trace;
use crate::{Picoseconds, TIME_LIMIT};
use check::Checks;
use host::Hosts;
use mailbox::Chunks;
pub use pool::PoolReading;
use rank_state::RankState;
use rnr::PostedBuffers;
use trains::Trains;

/// Bound of recorded latencies; longer ones are recorded as this. Unit: ns.
const MAX_LATENCY_NS: u64 = 3_600_000_000_000;

/// Description of a world, without its network.
#[derive(Clone, Copy, Debug)]
pub struct WorldSpec {
    /// Number of ranks.
    pub ranks: u32,
    /// Settings of the machines. The world replaces the geometry by that of the network.
    pub config: Config,
    /// Data slots of each sender in each mailbox (its quota).
    pub quota_slots: u32,
    /// Adaptive backlog: data slots at the start, at most `quota_slots`.
    pub start_slots: u32,
    /// Prices of the processors.
    pub cost: Cost,
    /// Prices of the processors of NICs; `None`: NICs have none.
    pub nic: Option<NicCost>,
    /// Whether the world continues when a queue drops a packet. Only machines that send packets again can do without it.
    pub tolerates_loss: bool,
    /// Number of events after which the world ends with an error; 0: no limit.
    pub event_limit: u64,
    /// The seed of all random draws of the world.
    pub seed: u64,
}

impl WorldSpec {
    /// Senders own `quota_slots` data slots in each mailbox. Everything else is ample: two credit slots,
    /// eager messages up to 2 KB, room for all unexpected messages. Callers change the fields afterwards.
    pub fn new(ranks: u32, scheme: Scheme, quota_slots: u32, cost: Cost) -> WorldSpec {
        let config = Config {
            scheme,
            geometry: Geometry::EXTOLL, // the world replaces it by the network's
            credit_slots: 2,
            eager_bytes: 2048,
            cross_memory: true,
            remote_inline_bytes: 64,
            max_backlog: u32::MAX,
            max_unexpected: 1 << 20,
            unexpected_budget_bytes: 1 << 40,
            bounce_bytes: 0,
            planned_peers: 1,
            planned_quota_slots: 1,
            region: DataRegion::default(),
        };
        WorldSpec {
            ranks,
            config,
            quota_slots,
            start_slots: quota_slots,
            cost,
            nic: None,
            tolerates_loss: false,
            event_limit: 0,
            seed: 0,
        }
    }

    /// Credits that a sender has before the first grant.
    pub(crate) fn start_slots(&self) -> u32 {
        match self.config.scheme {
            Scheme::Dynamic { .. } => self.config.region.start_slots,
            Scheme::AdaptiveBacklog { .. } => self.start_slots.min(self.quota_slots),
            _ => self.quota_slots,
        }
    }

    /// Whether a sender may give up a living receiver.
    fn may_give_up(&self) -> bool {
        matches!(self.config.scheme, Scheme::Hardware { rnr_retries, .. } if rnr_retries < WITHOUT_LIMIT)
    }
}

/// A number that a program has recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// Time. Unit: ps.
    pub at: Picoseconds,
    /// The rank.
    pub rank: u32,
    /// Name of the quantity.
    pub name: &'static str,
    /// Index within a series; 0 otherwise.
    pub index: u32,
    /// The number.
    pub value: f64,
}

/// Result of a world.
#[derive(Debug)]
pub struct Report {
    /// When the last program ended.
    pub finished_at: Picoseconds,
    /// When each program ended, by rank.
    pub finished: Vec<Picoseconds>,
    /// Hash of all events, in order.
    pub trace: u64,
    /// Number of events.
    pub events: u64,
    /// Packets that crossed a wire, summed over all wires.
    pub packet_hops: u64,
    /// Link faults that the links have repaired.
    pub repairs: u64,
    /// Packets that were dropped, because a queue was full.
    pub drops: u64,
    /// Packets that were delivered with a mark, because a queue was long.
    pub marks: u64,
    /// Counters of the machines, by rank.
    pub counters: Vec<Counters>,
    /// Numbers that programs recorded, in order of time.
    pub records: Vec<Record>,
    /// State of each receiver's pool at the end, by rank. Only with dynamic credits.
    pub pools: Vec<PoolReading>,
    /// Time from the call that sends a message until a receive has it. Unit: ns.
    pub latency_ns: Histogram<u64>,
    /// Most filled slots of one mailbox at a time.
    pub peak_mailbox_slots: u32,
}

/// Why a world did not end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// No event is left, and programs wait.
    #[error(
        "deadlock at {at_ns} ns: no event is left and {waiting} programs wait, the first is rank {first}"
    )]
    Deadlock {
        /// Time.
        at_ns: u64,
        /// Number of programs that have not ended.
        waiting: u32,
        /// The first of their ranks.
        first: u32,
    },
    /// An external check has failed, which shows a bug.
    #[error("an external check failed at {at_ns} ns: {what}")]
    InvariantViolated {
        /// Time.
        at_ns: u64,
        /// The violated invariant.
        what: String,
    },
    /// A queue was full, and no machine sends the packet again.
    #[error(
        "a full queue dropped a packet from rank {from} to rank {to} at {at_ns} ns, and no rank sends it again; allowed: queue_packets \
         for all that senders have under way, or 0"
    )]
    Dropped {
        /// Time.
        at_ns: u64,
        /// Sending rank.
        from: u32,
        /// Receiving rank.
        to: u32,
    },
    /// Virtual time has reached its bound: computations of programs or times of the network are too long.
    #[error("virtual time is {at_s} s; allowed: less than {} s", TIME_LIMIT / 1_000_000_000_000)]
    TimeLimit {
        /// Time. Unit: s.
        at_s: u64,
    },
    /// The event limit is reached.
    #[error("the world has more than {limit} events, its event limit")]
    EventLimit {
        /// The limit.
        limit: u64,
    },
}

/// An event of a world. Its size matters, because there are many.
#[derive(Clone, Copy, Debug)]
enum Event<E> {
    /// The processor of a rank may have work.
    Step(u32),
    /// A train leaves.
    Inject(TrainId),
    /// A rank has written a packet of a train, which its NIC sends.
    WrittenToNic { train: TrainId, index: u32 },
    /// The processor of a NIC has sent a packet of a train.
    LeaveNic { train: TrainId, index: u32 },
    /// The processor of a NIC begins to send the copies with this index.
    CopiesLeaveNic(u32),
    /// The first packet of the part with this index has reached a NIC.
    AtNic(u32),
    /// A remote get has ended at a NIC.
    GetAtNic { to: u32, number: u32 },
    /// An event of the network.
    Network(E),
    /// The next packet of a train has arrived, in a world that does not track which packet it is.
    Arrived { train: TrainId, to: u32 },
    /// The first packet of the part with this index has arrived.
    PartArrived(u32),
    /// A packet of a train was dropped.
    Dropped(TrainId),
    /// The network releases a held rank.
    Released(u32),
    /// A remote get has ended.
    GetDone { to: u32, number: u32 },
    /// Scheme `hardware`: buffers of a connection are posted again.
    Reposted { from: u32, to: u32, slots: u16 },
    /// Scheme `hardware`: a NAK reaches the sender.
    Refused { from: u32, to: u32 },
    /// Scheme `hardware`: the first timer of a machine expires.
    TimerExpired { rank: u32 },
    /// A fault of a rank.
    Fault(faults::Event),
    /// A rank learns that it has lost a peer.
    Lost { rank: u32, peer: u32, fault: PeerFault },
}

/// An entry of the queue takes 24 bytes, with its time and its sequence number.
const _: () = assert!(size_of::<Event<infiniband::Event>>() == 12);

/// Ranks on a network.
pub struct World<N: Network> {
    spec: WorldSpec,
    network: N,
    rank_states: Vec<RankState>,
    hosts: Hosts,
    trains: Trains,
    /// Packets in the mailboxes.
    chunks: Chunks,
    /// Parts of trains that will arrive. Events name them by index, because events must be small.
    parts: Vec<TrainPart>,
    free_parts: Vec<u32>,
    /// Work that ranks leave for the world; empty between steps.
    deferred: rank_state::DeferredWork,
    /// No other rank influences what a sender does next: the network never holds it, and the scheme grants
    /// nothing.
    sends_never_wait: bool,
    /// Machines may process packets before their virtual time.
    looks_ahead: bool,
    /// An arrival of one packet needs neither its index nor a part.
    has_plain_arrivals: bool,
    /// A sender may give up a living receiver.
    may_give_up: bool,
    /// Only with the scheme `hardware`.
    posted_buffers: Option<PostedBuffers>,
    faults: Option<faults::State>,
    checks: Option<Checks>,
    queue: Queue<Event<N::Event>>,
    outputs: Outputs<N::Event>,
    /// Outputs of the network that are being read; empty between events.
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
            .field("spec", &self.spec)
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}

impl<N: Network> World<N> {
    /// A world in which every rank is about to run `program`.
    pub fn new(mut spec: WorldSpec, network: N, program: impl Fn(Rank) -> Program) -> World<N> {
        spec.config.geometry = network.geometry();
        let rank_states = (0..spec.ranks).map(|rank| RankState::new(&spec, rank, &program)).collect();
        let hardware = matches!(spec.config.scheme, Scheme::Hardware { .. });
        let posted_buffers = hardware.then(|| PostedBuffers::new(spec.quota_slots));
        let sends_never_wait = !network.holds() && !spec.config.scheme.grants();
        let (mut queue, mut outputs) = (Queue::new(), Outputs::default());
        (0..spec.ranks).for_each(|rank| queue.push(0, outputs.draw(), Event::Step(rank)));
        let hosts = Hosts::new(spec.ranks, network.ranks_per_host(), spec.nic);
        World {
            spec,
            network,
            rank_states,
            hosts,
            trains: Trains::default(),
            chunks: Chunks::default(),
            parts: Vec::new(),
            free_parts: Vec::new(),
            deferred: rank_state::DeferredWork::default(),
            sends_never_wait,
            looks_ahead: lookahead::supports_lookahead(&spec.config),
            has_plain_arrivals: false, // until the world runs
            may_give_up: spec.may_give_up(),
            posted_buffers,
            faults: spec.may_give_up().then(faults::State::default),
            checks: (cfg!(debug_assertions) && !spec.tolerates_loss).then(|| Checks::new(&spec)),
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

    /// Runs until every program has ended and no event is left.
    ///
    /// # Errors
    /// [`WorldError`].
    pub fn run(mut self) -> Result<Report, WorldError> {
        self.has_plain_arrivals = self.checks.is_none() && !self.tracks_packets() && !self.hosts.has_nics();
        while let Some((now, sequence, event)) = self.queue.pop() {
            check_time_limit(now)?;
            self.outputs.begin(sequence);
            self.events += 1;
            if self.events == self.spec.event_limit {
                return Err(WorldError::EventLimit { limit: self.spec.event_limit });
            }
            match event {
                Event::Step(rank) => self.step(now, rank),
                Event::Inject(train) if self.has_crashed(self.trains.injection(train).from) => {
                    let count = self.trains.injection(train).packets;
                    self.take_attempt(train); // the train number becomes free
                    (0..count).for_each(|_| self.trains.discard(train));
                }
                Event::Inject(train) if self.is_void_attempt(now, train) => {}
                Event::Inject(train) if self.hosts.has_nics() => self.pass_nic(now, train),
                Event::Inject(train) => self.inject(now, train),
                Event::WrittenToNic { train, index } => self.written_to_nic(now, train, index),
                Event::LeaveNic { train, index } => self.leave_nic(now, train, index),
                Event::CopiesLeaveNic(index) => self.copies_leave_nic(now, index),
                Event::AtNic(index) => self.at_nic(now, index),
                Event::GetAtNic { to, number } => self.get_at_nic(now, to, number),
                Event::Network(event) => {
                    self.network.handle(now, event, &mut self.outputs);
                    self.take_outputs();
                }
                Event::Arrived { train, to } => {
                    self.arrived(now, TrainPart { train, to, first: 0, count: 1, spacing_ps: 0 });
                }
                Event::PartArrived(index) => {
                    let part = self.take_part(index);
                    if !self.attempt_arrived(now, part.train) {
                        self.part_arrived(now, part);
                    }
                }
                Event::Dropped(train) if self.spec.tolerates_loss => self.trains.discard(train),
                Event::Dropped(train) => {
                    let (from, to) = (self.trains.source(train), self.trains.destination(train));
                    return Err(WorldError::Dropped { at_ns: now / 1000, from, to });
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
                Event::Refused { from, to } => self.refused(now, from, to),
                Event::TimerExpired { rank } => self.timer_expired(now, rank),
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
        if self.ended < self.spec.ranks {
            let first = self.rank_states.iter().position(|rank_state| !rank_state.has_ended()).unwrap_or(0);
            return Err(WorldError::Deadlock {
                at_ns: self.rank_states.iter().map(RankState::free_at).fold(self.queue.now(), u64::max)
                    / 1000,
                waiting: self.spec.ranks - self.ended,
                first: first as u32,
            });
        }
        // The last action of a program may be followed by no event.
        self.rank_states.iter().try_for_each(|rank_state| check_time_limit(rank_state.ended_at()))?;
        if self.checks.is_some() {
            self.check_rest()?;
        }
        Ok(self.report())
    }

    /// Turns external checks on or off. In debug builds they are on by default.
    #[must_use]
    pub fn checked(mut self, checked: bool) -> World<N> {
        self.checks = checked.then(|| Checks::new(&self.spec));
        self
    }

    /// Lets a test change the machines before they start, for example to install a wrong rule.
    #[must_use]
    pub fn with_machines(mut self, mut change: impl FnMut(u32, &mut Endpoint)) -> World<N> {
        (0..).zip(&mut self.rank_states).for_each(|(rank, rank_state)| change(rank, rank_state.machine()));
        self
    }

    /// Sets a timer of the machine of `rank` before it starts, for tests of worlds whose machines set none.
    #[must_use]
    pub fn with_timer(mut self, rank: u32, timer: Timer, at: Instant) -> World<N> {
        self.rank_states[rank as usize].set_timer(timer, at);
        self
    }

    /// Checks the pool of one receiver (I1, I3, I6), in turn. The cost grows with its number of senders.
    fn check_a_pool(&mut self) {
        if let Scheme::Dynamic { .. } = self.spec.config.scheme
            && self.events.is_multiple_of(64)
        {
            let rank = self.events / 64 % u64::from(self.spec.ranks);
            self.rank_states[rank as usize].machine().pool().assert_invariants();
        }
    }

    fn violation(&mut self) -> WorldError {
        let what = self.checks.as_mut().and_then(|checks| checks.violation.take()).unwrap_or_default();
        WorldError::InvariantViolated { at_ns: self.queue.now() / 1000, what }
    }

    /// Checks that nothing is left anywhere. Lost ranks and their peers are exempt.
    fn check_rest(&mut self) -> Result<(), WorldError> {
        let Some(checks) = &mut self.checks else { return Ok(()) };
        checks.check_end();
        if let Scheme::Dynamic { .. } = self.spec.config.scheme {
            self.rank_states
                .iter_mut()
                .for_each(|rank_state| rank_state.machine().pool().assert_invariants());
        }
        if !checks.any_peer_lost() {
            let left = |(rank, rank_state): (usize, &RankState)| {
                let left = rank_state.leftovers();
                (!left.is_empty()).then(|| format!("at the end rank {rank} has left: {}", left.join(", ")))
            };
            checks.violation = checks.violation.take().or(self.rank_states.iter().enumerate().find_map(left));
        }
        if checks.violation.is_some() { Err(self.violation()) } else { Ok(()) }
    }

    fn report(self) -> Report {
        let finished: Vec<_> = self.rank_states.iter().map(RankState::ended_at).collect();
        let mut pools = Vec::new();
        if let Scheme::Dynamic { .. } = self.spec.config.scheme {
            pools.extend(
                self.rank_states
                    .iter()
                    .map(|rank_state| rank_state.pool_reading(self.spec.config.credit_slots)),
            );
        }
        Report {
            finished_at: finished.iter().copied().max().unwrap_or(0),
            finished,
            trace: self.trace.hash(),
            events: self.events,
            packet_hops: self.network.packet_hops(),
            repairs: self.network.repairs(),
            drops: self.network.drops(),
            marks: self.network.marks(),
            peak_mailbox_slots: self
                .rank_states
                .iter()
                .map(|rank_state| rank_state.mailbox.peak_slots())
                .max()
                .unwrap_or(0),
            // Moves the ranks out one by one, so that memory does not peak at the end of a large world.
            counters: self.rank_states.into_iter().map(|rank_state| rank_state.counters()).collect(),
            records: self.records,
            pools,
            latency_ns: self.latency_ns,
        }
    }

    /// Schedules an event at `at`, after all events of that time so far.
    #[inline]
    fn schedule(&mut self, at: Picoseconds, event: Event<N::Event>) {
        self.queue.push(at, self.outputs.draw(), event);
    }

    /// Schedules a step of `rank` for when its processor is free.
    fn wake(&mut self, now: Picoseconds, rank: u32) {
        let (cost, _) = cost_of(rank, &self.spec, self.faults.as_ref());
        if let Some(at) = self.rank_states[rank as usize].wake_at(now, cost) {
            self.schedule(at, Event::Step(rank));
        }
    }

    fn inject(&mut self, now: Picoseconds, train: TrainId) {
        let injection = self.trains.injection(train);
        let hold = self.network.inject(now, injection, &mut self.outputs);
        self.rank_states[injection.from as usize].hold(hold);
        self.take_outputs();
    }

    #[inline]
    fn arrived(&mut self, now: Picoseconds, part: TrainPart) {
        self.rank_states[part.to as usize].mailbox.arrive(now, part, &mut self.chunks);
        self.wake(now, part.to);
    }

    fn part_arrived(&mut self, now: Picoseconds, part: TrainPart) {
        if let Some(checks) = &mut self.checks
            && !self.trains.arrive(part.train, part.first, part.count)
        {
            checks.out_of_order(part);
        }
        if !self.tracks_packets() {
            return self.arrived(now, part);
        }
        if self.has_crashed(part.to) {
            return self.drop_packets(now, part);
        }
        self.rank_states[part.to as usize].mailbox.arrive_tracked(now, part);
        self.wake(now, part.to);
    }

    /// Whether the world tracks which packet of a train arrives, and when. It does so where ranks may be
    /// lost, because only packets that had arrived by then count. Otherwise the world reads nothing of a
    /// train before its packets are retrieved, except for external checks.
    #[inline]
    fn tracks_packets(&self) -> bool {
        let has_holes = self.hosts.has_machines() || self.network.may_drop();
        self.posted_buffers.is_some() || self.may_lose() || has_holes
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
                Output::Arrived(part) | Output::Marked(part) => self.arrival(part),
                Output::Dropped(part) => Event::Dropped(part.train),
                Output::Released { rank } => Event::Released(rank),
                Output::GetDone { to, number } if self.hosts.has_nics() => Event::GetAtNic { to, number },
                Output::GetDone { to, number } => Event::GetDone { to, number },
            };
            self.queue.push(at, sequence, event);
        }
        self.scheduled = scheduled;
    }

    /// The event of an arrival.
    #[inline]
    fn arrival(&mut self, part: TrainPart) -> Event<N::Event> {
        if part.count == 1 && self.has_plain_arrivals {
            return Event::Arrived { train: part.train, to: part.to };
        }
        let index = self.note_part(part);
        if self.hosts.has_nics() { Event::AtNic(index) } else { Event::PartArrived(index) }
    }

    /// Stores a part for an event.
    fn note_part(&mut self, part: TrainPart) -> u32 {
        let index = self.free_parts.pop().unwrap_or_else(|| {
            self.parts.push(part);
            self.parts.len() as u32 - 1
        });
        self.parts[index as usize] = part;
        index
    }

    /// The part of an event, whose index becomes free.
    fn take_part(&mut self, index: u32) -> TrainPart {
        self.free_parts.push(index);
        self.parts[index as usize]
    }

    /// One step of the processor of `rank`.
    #[inline]
    fn step(&mut self, now: Picoseconds, rank: u32) {
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
    fn handle_hardware_event(&mut self, now: Picoseconds, rank: u32, event: rnr::HardwareEvent) {
        let step_at =
            self.at_rank(now, rank, |rank_state, context| rank_state.hardware_event(now, event, context));
        if let Some(at) = step_at {
            self.schedule(at, Event::Step(rank));
        }
    }

    /// Runs something at a rank, then does the work that it leaves.
    fn at_rank<R>(
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
        for (at, train) in self.deferred.injections.drain(..) {
            self.queue.push(at, self.outputs.draw(), Event::Inject(train));
        }
        // The network draws its sequence numbers here: after departing trains, before remote gets.
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

/// Checks virtual time against its bound.
#[inline]
fn check_time_limit(at: Picoseconds) -> Result<(), WorldError> {
    if at < TIME_LIMIT { Ok(()) } else { Err(WorldError::TimeLimit { at_s: at / 1_000_000_000_000 }) }
}

/// The prices at a rank, and its computing time in percent of the normal one.
#[inline]
fn cost_of<'a>(rank: u32, spec: &'a WorldSpec, faults: Option<&'a faults::State>) -> (&'a Cost, u32) {
    let slow = faults.and_then(|faults| faults.slow(rank));
    slow.map_or((&spec.cost, 100), |(cost, percent)| (cost, *percent))
}
