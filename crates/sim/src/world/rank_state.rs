//! State of one rank: program, endpoint, mailbox and processor. [`step`] runs the program, [`retrieval`] handles what
//! reaches the rank, [`driver`] is what the machine calls, [`actions`] performs what it wants done, [`early_driver`] prices
//! what the machine does early, and [`context`] has the arguments and results of a step. The rest is here: what wakes,
//! holds, pauses or crashes a rank, and the events of its hardware.

mod actions;
mod context;
mod driver;
mod early_driver;
mod retrieval;
mod step;

use std::collections::VecDeque;
use std::slice;

use prefetch_index::prefetch_index;
use weir_proto::{
    Action, Counters, Endpoint, Event, Geometry, Instant, Peer, PeerFault, Recorder, Request, Scheme,
    Scratch, Timer,
};

use super::lookahead::Lookahead;
use super::machines::Machines;
use super::mailbox::{Chunks, Mailbox};
use super::peer_numbers::PeerNumbers;
use super::rnr::HardwareEvent;
use super::{PoolReading, WorldSpec};
use crate::Picoseconds;
use crate::cost::Cost;
use crate::jitter::Jitter;
use crate::network::Hold;
use crate::program::{Handle, Program, Rank, Shared, Status};
pub(super) use context::{DeferredWork, Get, Post, StepContext, StepResult};
use driver::DriverState;

/// Idle time after which the machine sends pending acknowledgements alone. The engine counts 16 polls without
/// result instead.
const IDLE_PS: Picoseconds = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The program has calls to perform, then it runs again.
    Running,
    /// The program waits inside the library.
    Waiting,
    /// The program has ended; the library still serves others.
    Ended(Picoseconds),
}

/// News for the machine that are not packets.
#[derive(Default)]
struct Notices {
    /// Remote gets that have ended, and whether the memory was there.
    copied: VecDeque<(u32, bool)>,
    /// Lost peers. The machine learns of a loss after all packets that had arrived by then.
    lost: VecDeque<(Picoseconds, u32, PeerFault)>,
    /// Operations that the NIC did for the program.
    offloaded: VecDeque<(Request, Status)>,
    /// Words of the program that have changed while it polled them.
    words: VecDeque<(Request, u64)>,
}

pub(super) struct RankState {
    machine: Endpoint,
    driver: DriverState,
    program: Program,
    /// The program has returned. It has ended when its last calls are performed too.
    returned: bool,
    /// The next call is a send that the network does not accept yet.
    postponed: bool,
    /// The network holds the processor, which does nothing until it is released.
    held: bool,
    crashed: bool,
    /// Time of the next step; `None`: some event must wake the rank.
    step_at: Option<Picoseconds>,
    pub mailbox: Mailbox,
    /// Packets that the machine has processed before they were retrieved. They came before all packets in the
    /// mailbox.
    lookahead: Lookahead,
    /// Most ranks never get a notice.
    notices: Option<Box<Notices>>,
    /// End of the last call that sends.
    sent_at: Picoseconds,
    /// Draws the extra time of calls.
    jitter: Jitter,
}

/// A barrier has 262,144 ranks. What few ranks need is boxed.
const _: () = assert!(size_of::<RankState>() - size_of::<Endpoint>() <= 296);

impl RankState {
    pub fn new(spec: &WorldSpec, rank: u32, program: &impl Fn(Rank) -> Program) -> RankState {
        let shared = Shared::with_seed(rank, spec.ranks, spec.seed);
        let program = program(Rank::new(&shared));
        let driver = DriverState {
            rank,
            timers: None,
            peers: PeerNumbers::with_ranks(spec.ranks),
            shared,
            phase: Phase::Running,
            free_at: 0,
            gets: 0,
            machines: None,
            open: 0,
            called_at: 0,
            since: 0,
        };
        RankState {
            machine: Endpoint::new(spec.config),
            driver,
            program,
            returned: false,
            postponed: false,
            held: false,
            crashed: false,
            step_at: Some(0),
            mailbox: Mailbox::default(),
            lookahead: Lookahead::default(),
            notices: None,
            sent_at: 0,
            jitter: Jitter::new(spec.seed, rank),
        }
    }

    /// Brings what an arrival reads into the caches, in two steps ([`Mailbox::prefetch`]).
    #[inline]
    pub fn prefetch(&self, chunks: &Chunks, soon: bool) {
        self.mailbox.prefetch(chunks, soon);
        if !soon {
            prefetch_index(slice::from_ref(&self.step_at), 0);
        }
    }

    pub fn machine(&mut self) -> &mut Endpoint {
        &mut self.machine
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.driver.phase, Phase::Ended(_))
    }

    pub fn ended_at(&self) -> Picoseconds {
        match self.driver.phase {
            Phase::Ended(at) => at,
            _ => 0,
        }
    }

    /// The processor is idle from this time on, unless something arrives.
    pub fn free_at(&self) -> Picoseconds {
        self.driver.free_at
    }

    pub fn counters(&self) -> Counters {
        *self.machine.counters()
    }

    /// State of our pool, in which each sender keeps `guaranteed` slots.
    pub fn pool_reading(&self, guaranteed: u32) -> PoolReading {
        match self.machine.demand_pool() {
            Some(pool) => PoolReading::of_demand(pool, guaranteed),
            None => PoolReading::of(self.machine.pool(), guaranteed),
        }
    }

    /// Something arrived at `now`. Returns when to step, unless an earlier step is due.
    pub fn wake_at(&mut self, now: Picoseconds, cost: &Cost) -> Option<Picoseconds> {
        let at = cost.seen_ps(self.driver.free_at, now);
        if self.held
            || self.crashed
            || (self.driver.phase == Phase::Running && !self.postponed)
            || self.step_at.is_some_and(|due| due <= at)
        {
            return None; // a step is due, or the rank does nothing
        }
        self.step_at = Some(at);
        Some(at)
    }

    /// The network holds the processor.
    pub fn hold(&mut self, hold: Hold) {
        match hold {
            Hold::Until(at) => self.driver.free_at = self.driver.free_at.max(at),
            Hold::UntilReleased => self.held = true,
        }
    }

    /// The network releases the processor. Returns when to step.
    pub fn release(&mut self, now: Picoseconds) -> Picoseconds {
        self.held = false;
        self.driver.free_at = self.driver.free_at.max(now);
        self.step_at = Some(self.driver.free_at);
        self.driver.free_at
    }

    /// A remote get has ended.
    pub fn copied(&mut self, number: u32, whole: bool) {
        self.notices.get_or_insert_default().copied.push_back((number, whole));
    }

    /// `peer` is lost.
    pub fn lost(&mut self, now: Picoseconds, peer: u32, fault: PeerFault) {
        self.notices.get_or_insert_default().lost.push_back((now, peer, fault));
    }

    /// An operation that the NIC did for the program has ended.
    pub fn offloaded_ended(&mut self, request: u32, status: Status) {
        self.notices.get_or_insert_default().offloaded.push_back((Request(request), status));
    }

    /// The offloaded machines that the processor drives.
    pub fn machines(&mut self) -> &mut Machines {
        self.driver.machines.get_or_insert_default()
    }

    /// A word of the program's own memory is read, in the step in which it asks.
    pub fn own_word_read(&mut self, request: Request, word: u64) {
        self.driver.open -= 1;
        let status = Status { bytes: word, ..Status::default() };
        self.driver.shared.complete_since(Handle(request.0), status, self.driver.since);
    }

    /// A word of the program has changed while it polled it.
    pub fn own_word_changed(&mut self, request: Request, word: u64) {
        self.notices.get_or_insert_default().words.push_back((request, word));
    }

    /// The processor does nothing for `ps`.
    pub fn pause(&mut self, now: Picoseconds, ps: Picoseconds) {
        self.driver.free_at = self.driver.free_at.max(now) + ps;
    }

    /// The rank does nothing from now on.
    pub fn crash(&mut self, now: Picoseconds) {
        self.crashed = true;
        if !self.has_ended() {
            self.driver.phase = Phase::Ended(now);
        }
    }

    /// Names of everything that is left at this rank at the end.
    pub fn leftovers(&self) -> Vec<&'static str> {
        let open = self.driver.open > 0;
        let checks = [
            (self.next_at().is_some(), "packets in its mailbox"),
            (open, "pending operations"),
            (self.machine.unexpected().0 > 0, "unexpected messages"),
            (!self.machine.is_quiescent(), "pending work in its machine"),
            (self.driver.timers.as_ref().is_some_and(|timers| !timers.is_empty()), "timers"),
            (self.driver.machines.as_ref().is_some_and(|it| !it.is_quiescent()), "offloaded operations"),
        ];
        checks.into_iter().filter_map(|(left, what)| left.then_some(what)).collect()
    }

    /// The rank `from` begins to send to us. Returns our number of it.
    pub fn attached(&mut self, now: Picoseconds, from: u32, spec: &WorldSpec, scratch: &mut Scratch) -> Peer {
        let peer = self.driver.peer(from);
        let event = Event::Attached {
            peer,
            quota_slots: spec.quota_slots,
            start_slots: spec.start_slots(),
            epoch: 0, // no rank leaves
        };
        let mut actions = Vec::new();
        self.machine.exchange_scratch(scratch);
        drive(&mut self.machine, now, event, &mut actions);
        self.machine.exchange_scratch(scratch);
        assert!(actions.is_empty(), "an attach causes no action");
        peer
    }

    /// Notes our number at a peer.
    pub fn set_number_at_peer(&mut self, peer: Peer, number_at_peer: Peer) {
        self.driver.peers.set_number_at_peer(peer.0, number_at_peer.0);
    }

    /// Slots of our mailbox that belong to `rank`.
    pub fn slots_of(&mut self, rank: u32) -> u32 {
        let peer = self.driver.peer(rank);
        let lookahead = self.lookahead.slots_of(rank, &self.machine.config().geometry);
        self.machine.receiving(peer).and_then(|view| view.current).map_or(0, |slots| slots + lookahead)
    }

    /// Completes a read of the number of slots.
    pub fn read(&self, handle: Handle, slots: u32) {
        let status = Status { bytes: slots.into(), ..Status::default() };
        self.driver.shared.complete_since(handle, status, self.driver.since);
    }

    /// The hardware reports an event to the machine while the processor works. Returns when to step, unless
    /// an earlier step is due.
    pub fn hardware_event(
        &mut self,
        now: Picoseconds,
        hardware_event: HardwareEvent,
        context: &mut StepContext<'_>,
    ) -> Option<Picoseconds> {
        if self.crashed {
            return None;
        }
        let event = match hardware_event {
            HardwareEvent::Accepted { peer, slots } => {
                context.deferred.accepted_by = Some(peer);
                Some(Event::Room { peer: self.driver.peer(peer), slots })
            }
            HardwareEvent::Refused { peer } => Some(Event::Room { peer: self.driver.peer(peer), slots: 0 }),
            HardwareEvent::TimerExpired => self.take_expired_timers(now, context),
        };
        let busy_until = self.driver.free_at.max(now);
        (self.driver.free_at, self.driver.since) = (now, now);
        if let Some(event) = event {
            self.handle(event, context);
        }
        context.deferred.accepted_by = None;
        // The processor writes the descriptors, at whatever time the hardware needs them.
        self.driver.free_at = busy_until + (self.driver.free_at - now);
        self.wake_running()
    }

    /// The time of the next step if the program can run, unless an earlier step is due.
    fn wake_running(&mut self) -> Option<Picoseconds> {
        let due = self.step_at.is_some_and(|due| due <= self.driver.free_at);
        if self.held || self.driver.phase != Phase::Running || due {
            return None;
        }
        self.step_at = Some(self.driver.free_at);
        self.step_at
    }

    /// Payload of the packet to `rank` before which `before` others wait. Unit: bytes.
    pub fn waiting_packet(&mut self, rank: u32, before: u32, geometry: &Geometry) -> Option<u32> {
        let peer = self.driver.peer(rank);
        let most_bytes = geometry.payload_bytes(geometry.eager_header_bytes, geometry.max_packet_slots);
        let mut before = u64::from(before);
        for bytes in self.machine.backlog_payloads(peer) {
            let packets = bytes.div_ceil(most_bytes.into()).max(1);
            if before < packets {
                let left = bytes - before * u64::from(most_bytes);
                return Some(left.min(most_bytes.into()) as u32);
            }
            before -= packets;
        }
        None
    }

    /// The network holds the processor.
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// End of the last call that sends.
    pub fn sent_at(&self) -> Picoseconds {
        self.sent_at
    }

    /// Sets a timer of the machine.
    pub fn set_timer(&mut self, timer: Timer, at: Instant) {
        self.driver.timers.get_or_insert_default().set(timer, at);
    }

    /// The time when the first timer of the machine expires.
    #[inline]
    pub fn first_timer(&self) -> Option<Picoseconds> {
        let earliest = self.driver.timers.as_ref()?.earliest().filter(|_| !self.crashed);
        earliest.map(|Instant(ns)| ns * 1000)
    }

    /// Removes the timers that have expired at `now`. Returns the event of the first one; the others follow it.
    fn take_expired_timers(
        &mut self,
        now: Picoseconds,
        context: &mut StepContext<'_>,
    ) -> Option<Event<'static>> {
        let timers = self.driver.timers.as_mut()?;
        let first = timers.take_expired(instant(now))?;
        let others = std::iter::from_fn(|| timers.take_expired(instant(now)));
        context.deferred.events.extend(others.map(Event::TimerExpired));
        Some(Event::TimerExpired(first))
    }

    /// Whether the NIC runs the timers of the machine, whatever the processor does.
    fn nic_runs_timers(&self) -> bool {
        matches!(self.machine.config().scheme, Scheme::Hardware { .. })
    }

    /// The time when the processor has to handle a timer of the machine, or of the offloaded machines that it drives.
    #[inline(always)]
    fn processor_timer(&self) -> Option<Picoseconds> {
        if self.has_timers() { self.first_processor_timer() } else { None }
    }

    /// Whether timers may be set. Most ranks never set one.
    #[inline(always)]
    fn has_timers(&self) -> bool {
        self.driver.timers.is_some() || self.driver.machines.is_some()
    }

    fn first_processor_timer(&self) -> Option<Picoseconds> {
        let of_endpoint = self.first_timer().filter(|_| !self.nic_runs_timers());
        let Some(machines) = &self.driver.machines else { return of_endpoint };
        let of_machines = machines.first_timer().filter(|_| !self.crashed).map(|Instant(ns)| ns * 1000);
        of_endpoint.into_iter().chain(of_machines).min()
    }
}

/// Passes an event to a machine, which notes in `actions` what it wants done.
pub(super) fn drive(machine: &mut Endpoint, at: Picoseconds, event: Event<'_>, actions: &mut Vec<Action>) {
    machine
        .handle(event, Recorder::new(instant(at), actions))
        .expect("a simulated rank has no bounds of its own");
}

pub(super) fn instant(at: Picoseconds) -> Instant {
    Instant(at / 1000)
}
