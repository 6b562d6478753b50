//! A world: ranks, their endpoints and a network. It runs until every program has ended and no event is left, or until
//! it finds an error.
//!
//! Each rank has one processor. While the program waits inside the library, the processor retrieves packets from the
//! mailbox one after the other. While the program computes, no packet is retrieved. Every step of a processor has a
//! price ([`Cost`]) and moves its `free_at`. A later action is an event, so that the network is called in order of
//! time. If NICs have processors or endpoints, packets pass them too (`host.rs`, `nic_endpoint.rs`).
//!
//! ```text
//! Step(3)      rank 3 performs a call: isend. Its endpoint machine answers Transmit x 37
//! Inject(t)    the train leaves; the network says that it arrives 1.2 us later
//! Arrived(t)   it stands in the mailbox of rank 5, whose processor is idle
//! Step(5)      rank 5 retrieves packet 0; its machine answers Place, Retire; the next Step(5) follows after their price
//! ```

mod check;
pub mod faults;
pub mod host;
mod lookahead;
mod machines;
mod mailbox;
mod nic_endpoint;
mod outputs;
mod own_words;
mod peer_numbers;
mod pool;
mod rank_state;
mod rank_work;
mod report;
mod rnr;
mod spec;
mod trains;

use std::fmt;

use hdrhistogram::Histogram;
use weir_proto::{Endpoint, Instant, PeerFault, Scheme, Timer};

use crate::cost::Cost;
use crate::network::infiniband;
use crate::network::{Injection, Network, Outputs, ScheduledOutput, TrainId, TrainPart};
use crate::program::{Program, Rank};
use crate::queue::{Queue, Source};
use crate::trace::Trace;
use crate::{Picoseconds, TIME_LIMIT};
use check::Checks;
use host::Hosts;
use mailbox::Chunks;
use nic_endpoint::NicEndpoints;
pub use pool::PoolReading;
use rank_state::RankState;
pub use report::{Record, Report, WorldError};
use rnr::PostedBuffers;
pub use spec::WorldSpec;
use trains::Trains;

/// Bound of recorded latencies; longer ones are recorded as this. Unit: ns.
const MAX_LATENCY_NS: u64 = 3_600_000_000_000;

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
    /// The NIC of a rank reads the descriptor with this index.
    PostedToNic(u32),
    /// An operation that the NIC of a rank did for it has ended.
    OffloadedEnded { rank: u32, request: u32 },
    /// `rank` finds a word of its own changed that it polls.
    OwnWordSeen { rank: u32, request: u32 },
    /// The first timer of the endpoint of a rank on its NIC expires.
    NicTimer { rank: u32 },
    /// The NIC of a rank learns that it has lost that of a peer.
    NicLost { rank: u32, peer: u32, fault: PeerFault },
    /// An offloaded machine of `rank` has rejected a packet, in a world without lost peers.
    Rejected { rank: u32, from: u32 },
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
    /// The reliable path from `from` to `to` has ended.
    PathEnded { from: u32, to: u32 },
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

/// Memory of an event is asked for when so many events come before it, and the memory that this memory names.
const PREFETCHED_LATER: usize = 5;
const PREFETCHED_SOON: usize = 2;
/// A world that has had so many trains at a time is in no cache. In a smaller one asking costs more than it saves.
const LARGE_WORLD_TRAINS: usize = 1 << 16;

/// An entry of the queue takes 24 bytes, with its time and its sequence.
const _: () = assert!(size_of::<Event<infiniband::Event>>() == 12);

/// Ranks on a network.
pub struct World<N: Network> {
    spec: WorldSpec,
    network: N,
    rank_states: Vec<RankState>,
    hosts: Hosts,
    /// Only with [`WorldSpec::machines_on_nic`].
    nic_endpoints: NicEndpoints,
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
        (0..spec.ranks).for_each(|rank| {
            outputs.act_as(Source::rank(rank));
            queue.push(0, outputs.draw(0), Event::Step(rank));
        });
        let hosts = Hosts::new(spec.ranks, network.ranks_per_host(), spec.nic, spec.machines_on_nic);
        World {
            spec,
            network,
            rank_states,
            hosts,
            nic_endpoints: NicEndpoints::default(),
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
            self.prefetch();
            self.outputs.begin(now, sequence);
            self.events += 1;
            if self.events == self.spec.event_limit {
                return Err(WorldError::EventLimit { limit: self.spec.event_limit });
            }
            match event {
                Event::Step(rank) => self.step(now, rank),
                Event::Inject(train) => self.leave(now, train),
                Event::WrittenToNic { train, index } => self.written_to_nic(now, train, index),
                Event::LeaveNic { train, index } => self.leave_nic(now, train, index),
                Event::CopiesLeaveNic(index) => self.copies_leave_nic(now, index),
                Event::AtNic(index) => self.at_nic(now, index),
                Event::PostedToNic(index) => self.posted_to_nic(now, index),
                Event::OffloadedEnded { rank, request } => self.offloaded_ended(now, rank, request),
                Event::OwnWordSeen { rank, request } => self.own_word_seen(now, rank, request),
                Event::NicTimer { rank } => self.nic_timer_expired(now, rank),
                Event::NicLost { rank, peer, fault } => self.nic_lost(now, rank, peer, fault),
                Event::Rejected { rank, from } => {
                    return Err(WorldError::Rejected { at_ns: now / 1000, rank, from });
                }
                Event::GetAtNic { to, number } => self.get_at_nic(now, to, number),
                Event::Network(event) => {
                    self.network.handle(now, event, &mut self.outputs); // the network says which element acts
                    self.take_outputs();
                }
                Event::Arrived { train, to } => {
                    self.act_as(to);
                    self.arrived(now, TrainPart { train, to, first: 0, count: 1, spacing_ps: 0 });
                }
                Event::PartArrived(index) => {
                    let part = self.take_part(index);
                    self.act_as(part.to);
                    if !self.attempt_arrived(now, part.train) {
                        self.part_arrived(now, part);
                    }
                }
                Event::Dropped(train) if self.spec.tolerates_loss => self.trains.discard(train),
                Event::Dropped(train) => {
                    let (from, to) = (self.trains.source(train), self.trains.destination(train));
                    return Err(WorldError::Dropped { at_ns: now / 1000, from, to });
                }
                Event::PathEnded { from, to } => {
                    return Err(WorldError::PathEnded { at_ns: now / 1000, from, to });
                }
                Event::Released(rank) => {
                    self.act_as(rank);
                    let at = self.rank_states[rank as usize].release(now);
                    self.schedule(at, Event::Step(rank));
                }
                Event::GetDone { to, number } => {
                    self.act_as(to);
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

    /// Brings memory that the next events need into the caches, while this event is handled. In a large world most of it is
    /// in no cache. An event asks in two steps, because the first memory says where the rest lies.
    #[inline]
    fn prefetch(&self) {
        if self.trains.count() < LARGE_WORLD_TRAINS || self.queue.upcoming_count() <= PREFETCHED_SOON {
            return;
        }
        for (ahead, soon) in [(PREFETCHED_LATER, false), (PREFETCHED_SOON, true)] {
            match self.queue.upcoming(ahead) {
                Some(Event::Network(event)) => self.network.prefetch(event, soon),
                Some(Event::Arrived { to, .. } | Event::Step(to)) => {
                    self.rank_states[to as usize].prefetch(&self.chunks, soon);
                }
                _ => {}
            }
        }
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

    /// Schedules an event at `at`, for the rank or element that acts.
    #[inline]
    fn schedule(&mut self, at: Picoseconds, event: Event<N::Event>) {
        self.queue.push(at, self.outputs.draw(at), event);
    }

    /// Schedules a step of `rank` for when its processor is free.
    fn wake(&mut self, now: Picoseconds, rank: u32) {
        let (cost, _) = cost_of(rank, &self.spec, self.faults.as_ref());
        if let Some(at) = self.rank_states[rank as usize].wake_at(now, cost) {
            self.schedule(at, Event::Step(rank));
        }
    }

    /// A rank draws from now on: the one that handles the current event.
    #[inline]
    fn act_as(&mut self, rank: u32) {
        self.outputs.act_as(Source::rank(rank));
    }

    /// A train leaves its rank.
    fn leave(&mut self, now: Picoseconds, train: TrainId) {
        let Injection { from, packets, .. } = self.trains.injection(train);
        self.act_as(from);
        if self.has_crashed(from) {
            self.take_attempt(train); // the train number becomes free
            (0..packets).for_each(|_| self.trains.discard(train));
        } else if !self.is_void_attempt(now, train) {
            if self.hosts.has_nics() { self.pass_nic(now, train) } else { self.inject(now, train) }
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
