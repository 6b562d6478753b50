//! State of one rank: program, endpoint, mailbox and processor. [`retrieval`] describes how it retrieves
//! packets.

mod retrieval;

use std::collections::VecDeque;
use std::rc::Rc;

use hdrhistogram::Histogram;
use weir_proto::{
    Action, Body, Command, Counters, Endpoint, Event, Geometry, Instant, MemoryCopy, Outcome, Packet,
    Pattern, Peer, PeerFault, ReceiveCommand, Recorder, Request, Scheme, Scratch, SendCommand, SendLevel,
    Source, Space, Timer, TimerQueue,
};

use super::check::Checks;
use super::lookahead::Lookahead;
use super::mailbox::{Chunks, Mailbox};
use super::peer_numbers::PeerNumbers;
use super::rnr::{Attempt, HardwareEvent, PostedBuffers, Room};
use super::trains::Trains;
use super::{PoolReading, Record, WorldSpec};
use crate::cost::Cost;
use crate::jitter::Jitter;
use crate::network::{Hold, TrainId};
use crate::program::{self, Call, Handle, Program, Rank, Shared, StartedOperation, Status};
use crate::trace::Trace;
use crate::{Picoseconds, TIME_LIMIT};
use retrieval::place_ps;

/// Everything that a step uses besides the rank, and the work that it leaves for the world.
pub(super) struct StepContext<'a> {
    pub spec: &'a WorldSpec,
    /// Prices of this rank.
    pub cost: &'a Cost,
    /// Time of everything in percent of the normal one.
    pub percent: u32,
    pub checks: Option<&'a mut Checks>,
    /// Ranks may crash or be given up.
    pub may_lose: bool,
    pub trains: &'a mut Trains,
    pub chunks: &'a mut Chunks,
    pub trace: &'a mut Trace,
    pub records: &'a mut Vec<Record>,
    pub latency_ns: &'a mut Histogram<u64>,
    /// Only with the scheme `hardware`.
    pub posted_buffers: Option<&'a mut PostedBuffers>,
    pub deferred: &'a mut DeferredWork,
    /// The network accepts no send of ours before this time.
    pub send_from: Picoseconds,
    /// No other rank influences what a sender does next.
    pub sends_never_wait: bool,
    /// The machine may process packets before their virtual time.
    pub looks_ahead: bool,
    /// The step has retrieved a packet.
    pub retrieved: bool,
    /// A train that has arrived already.
    pub already_arrived: Option<TrainId>,
}

/// Work that a rank leaves for the world, and buffers that all ranks share.
#[derive(Default)]
pub(super) struct DeferredWork {
    /// Trains that leave, with their times.
    pub injections: Vec<(Picoseconds, TrainId)>,
    pub gets: Vec<Get>,
    /// Ranks to which we begin to send, with our number of them.
    pub attaches: Vec<(u32, Peer)>,
    /// Peers whose slots the program reads.
    pub readings: Vec<(Handle, u32)>,
    /// Peers that the rank has lost or given up.
    pub severed: Vec<u32>,
    /// Memory that the machines lend each other; only one works at a time.
    pub scratch: Scratch,
    /// Actions that the machine requests, and the events that follow from them.
    actions: Vec<Action>,
    events: VecDeque<Event<'static>>,
    /// The packet that is being processed, and its sender.
    arrived: Option<(u32, Packet)>,
}

impl DeferredWork {
    /// Most steps leave no work.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let DeferredWork { injections, gets, attaches, readings, severed, .. } = self;
        injections.len() | gets.len() | attaches.len() | readings.len() | severed.len() == 0
    }
}

/// A remote get that begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Get {
    pub at: Picoseconds,
    pub from: u32,
    pub bytes: u64,
    pub number: u32,
}

/// Idle time after which the machine sends pending acknowledgements alone. The engine counts 16 polls without
/// result instead.
const IDLE_PS: Picoseconds = 1_000_000;

/// Bound of calls in one step. It catches a program that never waits.
const MAX_CALLS_PER_STEP: u32 = 4096;

/// Bound of trains in one step. Waiting trains take memory, and there may be a million ranks.
const MAX_TRAINS_PER_STEP: usize = 32;

/// Result of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepResult {
    /// Time of the next step.
    pub step_at: Option<Picoseconds>,
    /// The program has ended in this step.
    pub ended: bool,
}

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
}

pub(super) struct RankState {
    rank: u32,
    machine: Endpoint,
    /// Under `hardware` the NIC runs them, otherwise the processor.
    timers: TimerQueue,
    /// Our numbers of the other ranks.
    peers: PeerNumbers,
    program: Program,
    shared: Rc<Shared>,
    /// The program has returned. It has ended when its last calls are performed too.
    returned: bool,
    phase: Phase,
    /// The next call is a send that the network does not accept yet.
    postponed: bool,
    /// The processor is busy until this time.
    free_at: Picoseconds,
    /// The network holds the processor, which does nothing until it is released.
    held: bool,
    /// Time of the next step; `None`: some event must wake the rank.
    step_at: Option<Picoseconds>,
    pub mailbox: Mailbox,
    /// Packets that the machine has processed before they were retrieved. They came before all packets in the
    /// mailbox.
    lookahead: Lookahead,
    /// Number of pending remote gets.
    gets: u32,
    /// Most ranks never get a notice.
    notices: Option<Box<Notices>>,
    crashed: bool,
    /// Number of pending operations of the program.
    open: u32,
    /// Call time of the send whose actions are performed.
    called_at: Picoseconds,
    /// End of the last call that sends.
    sent_at: Picoseconds,
    /// Start time of the current work of the processor.
    since: Picoseconds,
    /// The next packet to this rank has arrived already, because it was an attempt.
    already_arrived: Option<u32>,
    /// Draws the extra time of calls.
    jitter: Jitter,
}

impl RankState {
    pub fn new(spec: &WorldSpec, rank: u32, program: &impl Fn(Rank) -> Program) -> RankState {
        let shared = Shared::with_seed(rank, spec.ranks, spec.seed);
        RankState {
            rank,
            machine: Endpoint::new(spec.config),
            timers: TimerQueue::default(),
            peers: PeerNumbers::with_ranks(spec.ranks),
            program: program(Rank::new(&shared)),
            shared,
            returned: false,
            phase: Phase::Running,
            postponed: false,
            free_at: 0,
            held: false,
            step_at: Some(0),
            mailbox: Mailbox::default(),
            lookahead: Lookahead::default(),
            gets: 0,
            notices: None,
            crashed: false,
            open: 0,
            called_at: 0,
            sent_at: 0,
            since: 0,
            already_arrived: None,
            jitter: Jitter::new(spec.seed, rank),
        }
    }

    pub fn machine(&mut self) -> &mut Endpoint {
        &mut self.machine
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    pub fn ended_at(&self) -> Picoseconds {
        match self.phase {
            Phase::Ended(at) => at,
            _ => 0,
        }
    }

    /// The processor is idle from this time on, unless something arrives.
    pub fn free_at(&self) -> Picoseconds {
        self.free_at
    }

    pub fn counters(&self) -> Counters {
        *self.machine.counters()
    }

    /// State of our pool, in which each sender keeps `guaranteed` slots.
    pub fn pool_reading(&self, guaranteed: u32) -> PoolReading {
        PoolReading::of(self.machine.pool(), guaranteed)
    }

    /// Something arrived at `now`. Returns when to step, unless an earlier step is due.
    pub fn wake_at(&mut self, now: Picoseconds, cost: &Cost) -> Option<Picoseconds> {
        let at = cost.seen_ps(self.free_at, now);
        if self.held
            || self.crashed
            || (self.phase == Phase::Running && !self.postponed)
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
            Hold::Until(at) => self.free_at = self.free_at.max(at),
            Hold::UntilReleased => self.held = true,
        }
    }

    /// The network releases the processor. Returns when to step.
    pub fn release(&mut self, now: Picoseconds) -> Picoseconds {
        self.held = false;
        self.free_at = self.free_at.max(now);
        self.step_at = Some(self.free_at);
        self.free_at
    }

    /// A remote get has ended.
    pub fn copied(&mut self, number: u32, whole: bool) {
        self.notices.get_or_insert_default().copied.push_back((number, whole));
    }

    /// `peer` is lost.
    pub fn lost(&mut self, now: Picoseconds, peer: u32, fault: PeerFault) {
        self.notices.get_or_insert_default().lost.push_back((now, peer, fault));
    }

    /// The processor does nothing for `ps`.
    pub fn pause(&mut self, now: Picoseconds, ps: Picoseconds) {
        self.free_at = self.free_at.max(now) + ps;
    }

    /// The rank does nothing from now on.
    pub fn crash(&mut self, now: Picoseconds) {
        self.crashed = true;
        if !self.has_ended() {
            self.phase = Phase::Ended(now);
        }
    }

    /// Names of everything that is left at this rank at the end.
    pub fn leftovers(&self) -> Vec<&'static str> {
        let open = self.open > 0;
        let checks = [
            (self.next_at().is_some(), "packets in its mailbox"),
            (open, "pending operations"),
            (self.machine.unexpected().0 > 0, "unexpected messages"),
            (!self.machine.is_quiescent(), "pending work in its machine"),
            (!self.timers.is_empty(), "timers"),
        ];
        checks.into_iter().filter_map(|(left, what)| left.then_some(what)).collect()
    }

    /// The rank `from` begins to send to us. Returns our number of it.
    pub fn attached(&mut self, now: Picoseconds, from: u32, spec: &WorldSpec, scratch: &mut Scratch) -> Peer {
        let peer = self.peer(from);
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
        self.peers.set_number_at_peer(peer.0, number_at_peer.0);
    }

    /// Our number of `rank`.
    #[inline]
    fn peer(&mut self, rank: u32) -> Peer {
        Peer(self.peers.number(rank))
    }

    /// Slots of our mailbox that belong to `rank`.
    pub fn slots_of(&mut self, rank: u32) -> u32 {
        let peer = self.peer(rank);
        let lookahead = self.lookahead.slots_of(rank, &self.machine.config().geometry);
        self.machine.receiving(peer).and_then(|view| view.current).map_or(0, |slots| slots + lookahead)
    }

    /// Completes a read of the number of slots.
    pub fn read(&self, handle: Handle, slots: u32) {
        let status = Status { bytes: slots.into(), ..Status::default() };
        self.shared.complete_since(handle, status, self.since);
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
                self.already_arrived = Some(peer);
                Some(Event::Room { peer: self.peer(peer), slots })
            }
            HardwareEvent::Refused { peer } => Some(Event::Room { peer: self.peer(peer), slots: 0 }),
            HardwareEvent::TimerExpired => self.take_expired_timers(now, context),
        };
        let busy_until = self.free_at.max(now);
        (self.free_at, self.since) = (now, now);
        if let Some(event) = event {
            self.handle(event, context);
        }
        self.already_arrived = None;
        // The processor writes the descriptors, at whatever time the hardware needs them.
        self.free_at = busy_until + (self.free_at - now);
        self.wake_running()
    }

    /// When to step if the program can run, unless an earlier step is due.
    fn wake_running(&mut self) -> Option<Picoseconds> {
        let due = self.step_at.is_some_and(|due| due <= self.free_at);
        if self.held || self.phase != Phase::Running || due {
            return None;
        }
        self.step_at = Some(self.free_at);
        self.step_at
    }

    /// Payload of the packet to `rank` before which `before` others wait. Unit: bytes.
    pub fn waiting_packet(&mut self, rank: u32, before: u32, geometry: &Geometry) -> Option<u32> {
        let peer = self.peer(rank);
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
        self.timers.set(timer, at);
    }

    /// When the first timer of the machine expires.
    #[inline]
    pub fn first_timer(&self) -> Option<Picoseconds> {
        let earliest = self.timers.earliest().filter(|_| !self.crashed);
        earliest.map(|Instant(ns)| ns * 1000)
    }

    /// Removes the timers that have expired at `now`. Returns the event of the first one; the others follow it.
    fn take_expired_timers(
        &mut self,
        now: Picoseconds,
        context: &mut StepContext<'_>,
    ) -> Option<Event<'static>> {
        let first = self.timers.take_expired(instant(now))?;
        let others = std::iter::from_fn(|| self.timers.take_expired(instant(now)));
        context.deferred.events.extend(others.map(Event::TimerExpired));
        Some(Event::TimerExpired(first))
    }

    /// Whether the NIC runs the timers of the machine, whatever the processor does.
    fn nic_runs_timers(&self) -> bool {
        matches!(self.machine.config().scheme, Scheme::Hardware { .. })
    }

    /// When the processor has to handle a timer.
    #[inline]
    fn processor_timer(&self) -> Option<Picoseconds> {
        self.first_timer().filter(|_| !self.nic_runs_timers())
    }

    /// Retrieves a packet, or performs calls and runs the program, as far as no other rank has influence. A
    /// running program retrieves nothing, so arrivals wait in any case. [`RankState::packet_goes_first`] is
    /// the exception.
    pub fn step(&mut self, now: Picoseconds, context: &mut StepContext<'_>) -> StepResult {
        if self.step_at != Some(now) {
            return StepResult::default(); // an earlier step replaced this one
        }
        self.step_at = None;
        if self.held || self.crashed {
            return StepResult::default();
        }
        if self.free_at > now {
            return self.step_again_at(self.free_at, false);
        }
        self.free_at = now;
        let mut ended = false;
        for _ in 0..MAX_CALLS_PER_STEP {
            if self.phase == Phase::Running && !self.returned && self.shared.has_completed() {
                // The program may make calls that go before waiting ones.
                self.returned = program::run(&mut self.program);
            }
            match self.phase {
                Phase::Running => match self.shared.next_call(context.send_from > now) {
                    Some(call @ Call::Send { .. }) if context.send_from > now => {
                        self.shared.postpone(call);
                        self.postponed = true;
                        self.serve(context);
                    }
                    Some(call) if self.packet_goes_first(&call, context) => {
                        self.shared.postpone(call);
                        self.serve(context);
                    }
                    Some(call) => {
                        self.postponed = false;
                        self.perform_call(call, context);
                    }
                    None if self.returned || program::run(&mut self.program) => {
                        self.returned = true;
                        if !self.shared.has_calls() {
                            self.phase = Phase::Ended(self.free_at);
                            ended = true;
                        }
                    }
                    // The program waits. The next steps perform the calls that it made before.
                    None if self.shared.has_calls() => {}
                    None => self.phase = Phase::Waiting,
                },
                Phase::Waiting | Phase::Ended(_) => self.serve(context),
            }
            if !self.can_continue(now, context) {
                break;
            }
        }
        let step_at = match self.phase {
            Phase::Running if self.postponed => {
                let seen = self.next_at().map(|at| context.cost.seen_ps(self.free_at, at));
                Some(seen.map_or(context.send_from, |at| at.min(context.send_from)).max(self.free_at))
            }
            Phase::Running => Some(self.free_at),
            _ if self.has_due_notice() => Some(self.free_at),
            _ => self.serves_at(context.cost),
        };
        match step_at {
            Some(at) => self.step_again_at(at, ended),
            None => StepResult { step_at: None, ended },
        }
    }

    /// Whether the program can continue at `free_at` in this step.
    fn can_continue(&self, now: Picoseconds, context: &StepContext<'_>) -> bool {
        let DeferredWork { injections, gets, attaches, readings, .. } = &*context.deferred;
        // The world asks the network for gets, and other ranks for their slots, in order of time.
        if self.phase != Phase::Running || !gets.is_empty() || !readings.is_empty() {
            return false;
        }
        // Hardware events and faults come at any time.
        if self.postponed || context.posted_buffers.is_some() || context.may_lose {
            return false;
        }
        // With `wait_any`, a packet that arrives meanwhile may come first.
        if self.free_at > now && self.shared.uses_wait_any() {
            return false;
        }
        // An injection may hold the processor, and a sender may find credits that arrived meanwhile.
        if context.sends_never_wait {
            return injections.len() < MAX_TRAINS_PER_STEP;
        }
        injections.is_empty() && attaches.is_empty() && !self.shared.sends_next()
    }

    fn step_again_at(&mut self, at: Picoseconds, ended: bool) -> StepResult {
        self.step_at = Some(at);
        StepResult { step_at: Some(at), ended }
    }

    /// Whether a packet is retrieved before `call` is performed. With `wait_any`, the older one goes first. A
    /// message is as old as its send call, a call as old as the start of what allowed it. LogGOPSim does the
    /// same. A program that waits for chosen operations retrieves nothing until it waits again.
    #[inline]
    fn packet_goes_first(&self, call: &Call, context: &StepContext<'_>) -> bool {
        let Some(since) = self.shared.ready_since() else { return false };
        let takes_time = matches!(call, Call::Send { .. } | Call::Compute { .. });
        takes_time && self.next_called_at(context).is_some_and(|called_at| called_at < since)
    }

    fn perform_call(&mut self, call: Call, context: &mut StepContext<'_>) {
        let cost = context.cost;
        self.since = self.free_at;
        match call {
            Call::Send { handle, to, tag, bytes } => {
                self.called_at = self.free_at;
                let started = StartedOperation { tag, bytes, called_at: self.called_at };
                let request = self.begin(handle, started);
                self.free_at += cost.send_call_ps + self.jitter.draw_ps(cost.call_jitter_ps);
                self.sent_at = self.free_at;
                // For the latency of the message, and for the checks.
                let data = Some(match &mut context.checks {
                    Some(checks) => checks.posted(self.rank, to, tag, bytes, self.called_at).into(),
                    None => self.called_at,
                });
                let (to, space, level) = (self.peer(to), Space::Tagged, SendLevel::Buffered);
                let send = SendCommand { request, to, space, tag, data, bytes, level };
                self.handle(Event::Posted(Command::Send(send)), context);
            }
            Call::Receive { handle, from, tag, bytes } => {
                let request = self.begin(
                    handle,
                    StartedOperation { called_at: self.free_at, ..StartedOperation::default() },
                );
                self.free_at += cost.receive_call_ps + self.jitter.draw_ps(cost.call_jitter_ps);
                let from = from.map(|from| self.peer(from));
                let pattern = Pattern { space: Space::Tagged, from, tag, ignore: 0 };
                let receive = ReceiveCommand { request, pattern, capacity_bytes: bytes, multi: None };
                self.handle(Event::Posted(Command::Receive(receive)), context);
            }
            Call::Compute { ps, handle } => {
                let ps = ps.saturating_mul(u64::from(context.percent)) / 100;
                self.free_at = self.free_at.saturating_add(ps).min(TIME_LIMIT);
                if let Some(handle) = handle {
                    self.shared.complete_since(handle, Status::default(), self.since);
                }
            }
            Call::Clock { handle } => {
                let status = Status { bytes: self.free_at, ..Status::default() };
                self.shared.complete_since(handle, status, self.since);
            }
            Call::Credits { handle, peer } => context.deferred.readings.push((handle, peer)),
            Call::Record { name, index, value } => {
                context.records.push(Record { at: self.free_at, rank: self.rank, name, index, value });
            }
        }
    }

    /// Begins an operation of the program. The request has the number of the handle.
    fn begin(&mut self, handle: Handle, started: StartedOperation) -> Request {
        self.open += 1;
        self.shared.begin(handle, started);
        Request(handle.0)
    }

    fn started(&self, request: Request) -> StartedOperation {
        self.shared.started(Handle(request.0))
    }

    /// Passes an event to the machine, performs what it wants done, and reports the results to it.
    fn handle(&mut self, event: Event<'_>, context: &mut StepContext<'_>) {
        let mut actions = std::mem::take(&mut context.deferred.actions);
        self.machine.exchange_scratch(&mut context.deferred.scratch);
        drive(&mut self.machine, self.free_at, event, &mut actions);
        loop {
            let mut train = None;
            for action in &mut actions {
                match action {
                    Action::Transmit { to, packet, payload } => {
                        self.transmit(*to, packet, *payload, &mut train, context);
                    }
                    action => self.perform(action, context),
                }
            }
            actions.clear();
            let Some(event) = context.deferred.events.pop_front() else { break };
            drive(&mut self.machine, self.free_at, event, &mut actions);
        }
        self.machine.exchange_scratch(&mut context.deferred.scratch);
        context.deferred.actions = actions;
    }

    /// Sends a packet, in the train of the packets before it if it fits.
    #[inline]
    fn transmit(
        &mut self,
        to: Peer,
        packet: &mut Packet,
        payload: Source,
        train: &mut Option<TrainId>,
        context: &mut StepContext<'_>,
    ) {
        let (peer, to) = (to, self.peers.rank(to.0));
        if let Body::Rendezvous { address, .. } = &mut packet.body {
            *address = 1; // any address but 0; the reader states what it reads and from whom
        }
        let credit = packet.body.is_credit();
        let spacing_ps = if credit { context.cost.credit_send_ps } else { context.cost.packet_send_ps };
        let leaves_at = self.free_at;
        self.free_at += spacing_ps;
        if let Some(checks) = &mut context.checks {
            checks.sent(self.rank, to, packet);
        }
        if train.is_some_and(|train| context.trains.extend(train, to, packet)) {
            return;
        }
        let called_at = match payload {
            Source::Request { request, .. } => self.started(request).called_at,
            _ => self.called_at,
        };
        let id = context.trains.begin(self.rank, to, packet, spacing_ps, called_at);
        if let Some(number_at_peer) = self.peers.number_at_peer(peer.0) {
            context.trains.set_peer(id, Peer(number_at_peer));
        }
        if self.already_arrived.take_if(|peer| *peer == to).is_some() {
            context.already_arrived = Some(id);
            *train = None; // the packets behind it cross the network
            return;
        }
        context.deferred.injections.push((leaves_at, id));
        *train = Some(id);
    }

    fn perform(&mut self, action: &Action, context: &mut StepContext<'_>) {
        let cost = context.cost;
        match *action {
            Action::Transmit { .. } => unreachable!("`handle` transmits packets"),
            Action::Connect { to } => {
                context.deferred.attaches.push((self.peers.rank(to.0), to));
                let WorldSpec { quota_slots, ref config, .. } = *context.spec;
                let credit_slots = config.credit_slots;
                let start_slots = context.spec.start_slots();
                context.deferred.events.push_back(Event::Connected {
                    peer: to,
                    quota_slots,
                    start_slots,
                    credit_slots,
                    epoch: 0,
                });
            }
            Action::AskRoom { to, .. } => self.ask_room(to, context),
            Action::SetTimer { timer, at } => self.set_timer(timer, at),
            Action::CancelTimer { timer } => self.timers.cancel(timer),
            Action::Retire => {
                let (from, packet) =
                    context.deferred.arrived.take().expect("a packet is retired once, after its arrival");
                self.retire(from, &packet, context);
            }
            Action::Place { to, bytes } => self.free_at += place_ps(to, bytes, cost),
            Action::Deliver { bytes, .. } => self.free_at += cost.copy_ps(bytes),
            Action::Copy(MemoryCopy { transfer, peer, bytes, .. }) => {
                self.free_at += cost.get_ps;
                let get = Get { at: self.free_at, from: self.peers.rank(peer.0), bytes, number: transfer.0 };
                context.deferred.gets.push(get);
                self.gets += 1;
            }
            Action::Complete { request, outcome } => self.complete(request, outcome, context),
            // The copy that completes the send. The numbers of bounce buffers do not matter here.
            Action::FillBounce { request, .. } => {
                let bytes = self.started(request).bytes;
                self.free_at += cost.unexpected_copy_ps(bytes);
            }
            Action::AllocateUnexpected { .. } | Action::FreeUnexpected { .. } | Action::FreeBounce { .. } => {
            }
            Action::DropPeer { peer } if context.may_lose => {
                context.deferred.severed.push(self.peers.rank(peer.0))
            }
            Action::PeerLost { .. } => {} // there is no other machine
            Action::DropPeer { .. }
            | Action::PassOn { .. }
            | Action::Notify { .. }
            | Action::Disconnect { .. }
            | Action::FreeLane { .. } => {
                panic!("{action:?} in a world without lost peers, detaching, remote writes and atomics")
            }
        }
    }

    fn ask_room(&mut self, peer: Peer, context: &mut StepContext<'_>) {
        let Some(posted_buffers) = &mut context.posted_buffers else {
            // A mailbox without flow control has as many slots as needed.
            context.deferred.events.push_back(Event::Room { peer, slots: 1 << 30 });
            return;
        };
        let to = self.peers.rank(peer.0);
        match posted_buffers.ask(self.rank, to) {
            Room::Free(slots) => context.deferred.events.push_back(Event::Room { peer, slots }),
            Room::Unknown => posted_buffers.begun.push(Attempt { at: self.free_at, to }),
            Room::OnItsWay => {}
        }
    }

    fn complete(&mut self, request: Request, outcome: Outcome, context: &mut StepContext<'_>) {
        let started = |rank_state: &RankState, source| {
            let StartedOperation { tag, bytes, .. } = rank_state.started(request);
            Status { source, tag, bytes, fault: None }
        };
        let status = match outcome {
            Outcome::Done => started(self, self.rank),
            // A receive has no notes. Reading them in an all-to-all would miss the caches.
            Outcome::Received { envelope, bytes, .. } => {
                let source = self.peers.rank(envelope.from.0);
                let called_at = match &context.checks {
                    Some(checks) => checks.called_at(source, self.rank, envelope.data),
                    None => envelope.data,
                };
                if let Some(checks) = &mut context.checks {
                    checks.received(source, self.rank, envelope.data, envelope.tag, envelope.length);
                }
                let status = Status { source, tag: envelope.tag, bytes, fault: None };
                return self.received(request, status, called_at, context);
            }
            Outcome::Lost { peer, fault } if context.may_lose => {
                // A receive from any rank has no source.
                let source = peer.map_or(0, |peer| self.peers.rank(peer.0));
                Status { fault: Some(fault), ..started(self, source) }
            }
            other => panic!("{other:?} in a world without lost peers"),
        };
        self.end(request, status, context);
    }

    /// A receive has its message.
    #[inline]
    fn received(
        &mut self,
        request: Request,
        status: Status,
        called_at: Option<Picoseconds>,
        context: &mut StepContext<'_>,
    ) {
        self.free_at += context.cost.match_ps;
        if let Some(called_at) = called_at {
            context.latency_ns.saturating_record(self.free_at.saturating_sub(called_at) / 1000);
        }
        self.end(request, status, context);
    }

    /// Completes an operation of the program.
    #[inline]
    fn end(&mut self, request: Request, status: Status, context: &mut StepContext<'_>) {
        let handle = Handle(request.0);
        context.trace.note(self.free_at ^ u64::from(handle.0) << 48);
        self.open -= 1;
        if self.shared.complete_since(handle, status, self.since) && self.phase == Phase::Waiting {
            self.phase = Phase::Running;
        }
    }
}

/// Passes an event to a machine, which notes in `actions` what it wants done.
fn drive(machine: &mut Endpoint, at: Picoseconds, event: Event<'_>, actions: &mut Vec<Action>) {
    machine
        .handle(event, Recorder::new(instant(at), actions))
        .expect("a simulated rank has no bounds of its own");
}

pub(super) fn instant(at: Picoseconds) -> Instant {
    Instant(at / 1000)
}
