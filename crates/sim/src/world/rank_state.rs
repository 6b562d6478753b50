//! One rank: its program, its endpoint, its mailbox, its processor. What it takes out of the mailbox: [`retrieval`].

mod retrieval;

use std::collections::VecDeque;
use std::rc::Rc;

use hdrhistogram::Histogram;
use weir_proto::{
    Action, Body, Command, Counters, Endpoint, Event, Instant, Outcome, Packet, Pattern, Peer, PeerFault,
    ReceiveCommand, Request, Scratch, SendCommand, SendLevel, Source, Space,
};

use super::check::Checks;
use super::flight::Flights;
use super::lookahead::Lookahead;
use super::mailbox::{Chunks, Mailbox};
use super::peer_numbers::PeerNumbers;
use super::rnr::{Attempt, HardwareEvent, PostedBuffers};
use super::{Plan, PoolReading, Record};
use crate::cost::Cost;
use crate::jitter::Jitter;
use crate::network::{Hold, TrainId};
use crate::program::{self, Begun, Call, Handle, Program, Rank, Shared, Status};
use crate::trace::Trace;
use crate::{Picoseconds, TIME_LIMIT};
use retrieval::place_ps;

/// What a node may touch beside itself, and what it leaves for the world to do.
pub(super) struct StepContext<'a> {
    pub plan: &'a Plan,
    /// Of this rank.
    pub cost: &'a Cost,
    /// So much longer it takes for everything. Unit: percent.
    pub percent: u32,
    pub checks: Option<&'a mut Checks>,
    /// Ranks may crash or be given up.
    pub may_lose: bool,
    pub flights: &'a mut Flights,
    pub chunks: &'a mut Chunks,
    pub trace: &'a mut Trace,
    pub records: &'a mut Vec<Record>,
    pub latency_ns: &'a mut Histogram<u64>,
    /// With the scheme `hardware` only.
    pub posted_buffers: Option<&'a mut PostedBuffers>,
    pub left: &'a mut DeferredWork,
    /// The network takes no send of ours before.
    pub send_from: Picoseconds,
    /// Nobody has a say in what a sender does next.
    pub sends_never_wait: bool,
    /// Nobody watches when machines hear of packets.
    pub looks_ahead: bool,
    /// A packet was taken out of the mailbox.
    pub taken: bool,
    /// A train that is there already.
    pub already_arrived: Option<TrainId>,
}

/// What a node leaves for the world to do, and room to work in, the same for all nodes.
#[derive(Default)]
pub(super) struct DeferredWork {
    /// Trains that leave, and when.
    pub injections: Vec<(Picoseconds, TrainId)>,
    pub gets: Vec<Get>,
    /// Ranks that learn that we send to them, and what our machine calls them.
    pub attaches: Vec<(u32, Peer)>,
    /// Peers whose slots the program wants to know of.
    pub readings: Vec<(Handle, u32)>,
    /// Peers that it has lost or given up.
    pub severed: Vec<u32>,
    /// Memory that the machines lend each other: one is at work at a time.
    pub scratch: Scratch,
    /// What the machine wants done, and what it is told because of that.
    actions: Vec<Action>,
    events: VecDeque<Event>,
    /// The packet that is being dealt with, and whose it is.
    arrived: Option<(u32, Packet)>,
}

impl DeferredWork {
    /// Most steps leave nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let DeferredWork { injections, gets, attaches, readings, severed, .. } = self;
        injections.len() | gets.len() | attaches.len() | readings.len() | severed.len() == 0
    }
}

/// A remote get to begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Get {
    pub at: Picoseconds,
    pub from: u32,
    pub bytes: u64,
    pub number: u32,
}

/// How long nothing happens before what waits for company leaves without. The engine counts 16 polls that find nothing.
const IDLE_PS: Picoseconds = 1_000_000;

/// Bound: as often a program goes on in one step, so that one that never waits is found out.
const MAX_CALLS_PER_STEP: u32 = 4096;

/// Bound: as many trains a program sends in one step. What has yet to leave takes memory, and there may be a million ranks.
const MAX_TRAINS_PER_STEP: usize = 32;

/// What comes of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepResult {
    /// When to step again.
    pub step_at: Option<Picoseconds>,
    /// The program has ended in this step.
    pub ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Calls of the program are to be performed, then it runs on.
    Running,
    /// It waits inside the library.
    Waiting,
    /// It has ended; the library goes on serving others.
    Ended(Picoseconds),
}

/// What the machine is told beside packets.
#[derive(Default)]
struct Notices {
    /// Remote gets that have ended, and whether the memory was there.
    copied: VecDeque<(u32, bool)>,
    /// Peers that are lost, of which the machine is told after all that had come by then.
    lost: VecDeque<(Picoseconds, u32, PeerFault)>,
}

pub(super) struct RankState {
    rank: u32,
    machine: Endpoint,
    /// What the machine calls the other ranks.
    peers: PeerNumbers,
    program: Program,
    shared: Rc<Shared>,
    /// The program has returned; it has ended when its last calls are performed too.
    returned: bool,
    phase: Phase,
    /// The next call is a send that the network does not take yet.
    postponed: bool,
    /// The processor is busy until then.
    free_at: Picoseconds,
    /// The network pushes back: nothing is done until it releases us.
    held: bool,
    /// A step is due at that time; `None`: somebody has to wake us.
    step_at: Option<Picoseconds>,
    pub mailbox: Mailbox,
    /// Packets of which the machine knows that were not taken. They stood before all in the mailbox.
    lookahead: Lookahead,
    /// Remote gets under way.
    gets: u32,
    /// What few ever hear of.
    notices: Option<Box<Notices>>,
    crashed: bool,
    /// Operations of the program under way.
    open: u32,
    /// The send whose actions are being performed was called then.
    called_at: Picoseconds,
    /// What the processor does now began then.
    since: Picoseconds,
    /// The next packet to this rank is there already: it was an attempt.
    already_arrived: Option<u32>,
    /// Extra time of calls.
    jitter: Jitter,
}

impl RankState {
    pub fn new(plan: &Plan, rank: u32, program: &impl Fn(Rank) -> Program) -> RankState {
        let shared = Shared::with_seed(rank, plan.ranks, plan.seed);
        RankState {
            rank,
            machine: Endpoint::new(plan.config),
            peers: PeerNumbers::with_ranks(plan.ranks),
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
            since: 0,
            already_arrived: None,
            jitter: Jitter::new(plan.seed, rank),
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

    /// The processor has nothing to do from then on, unless something comes.
    pub fn free_at(&self) -> Picoseconds {
        self.free_at
    }

    pub fn counters(&self) -> Counters {
        *self.machine.counters()
    }

    /// What its receiving side knows of all senders, of which each keeps `guaranteed` slots.
    pub fn pool_reading(&self, guaranteed: u32) -> PoolReading {
        PoolReading::of(self.machine.pool(), guaranteed)
    }

    /// Something has come at `now`. When to step, if no step is due early enough already.
    pub fn wake_at(&mut self, now: Picoseconds, cost: &Cost) -> Option<Picoseconds> {
        let at = cost.seen_ps(self.free_at, now);
        if self.held
            || self.crashed
            || (self.phase == Phase::Running && !self.postponed)
            || self.step_at.is_some_and(|due| due <= at)
        {
            return None; // it will look by itself
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

    /// The network lets the processor go on; when to step.
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

    /// The processor does nothing for a while.
    pub fn pause(&mut self, now: Picoseconds, ps: Picoseconds) {
        self.free_at = self.free_at.max(now) + ps;
    }

    /// It does nothing any more.
    pub fn crash(&mut self, now: Picoseconds) {
        self.crashed = true;
        if !self.has_ended() {
            self.phase = Phase::Ended(now);
        }
    }

    /// What is not at rest here; empty: nothing.
    pub fn leftovers(&self) -> Vec<&'static str> {
        let open = self.open > 0;
        let checks = [
            (self.next_at().is_some(), "packets in its mailbox"),
            (open, "open operations"),
            (self.machine.unexpected().0 > 0, "unexpected messages"),
            (!self.machine.is_quiescent(), "pending work in its machine"),
        ];
        checks.into_iter().filter_map(|(left, what)| left.then_some(what)).collect()
    }

    /// The rank `from` sends to us from now on. Returns what the machine calls it.
    pub fn attached(&mut self, now: Picoseconds, from: u32, plan: &Plan, scratch: &mut Scratch) -> Peer {
        let peer = self.peer(from);
        let event = Event::Attached {
            peer,
            quota_slots: plan.quota_slots,
            start_slots: plan.start_slots(),
            epoch: 0, // nobody leaves
        };
        let mut actions = Vec::new();
        self.machine.exchange_scratch(scratch);
        self.machine.handle(instant(now), event, &mut actions);
        self.machine.exchange_scratch(scratch);
        assert!(actions.is_empty(), "who attaches causes nothing yet");
        peer
    }

    /// The machine of a peer of ours calls us so.
    pub fn set_number_at_peer(&mut self, peer: Peer, number_at_peer: Peer) {
        self.peers.set_number_at_peer(peer.0, number_at_peer.0);
    }

    /// What the machine calls `rank`.
    #[inline]
    fn peer(&mut self, rank: u32) -> Peer {
        Peer(self.peers.number(rank))
    }

    /// Slots of our mailbox that are `rank`'s.
    pub fn slots_of(&mut self, rank: u32) -> u32 {
        let peer = self.peer(rank);
        let lookahead = self.lookahead.slots_of(rank, &self.machine.config().geometry);
        self.machine.receiving(peer).and_then(|view| view.current).map_or(0, |slots| slots + lookahead)
    }

    /// The program knows now how many slots are its.
    pub fn read(&self, handle: Handle, slots: u32) {
        let status = Status { bytes: slots.into(), ..Status::default() };
        self.shared.complete_since(handle, status, self.since);
    }

    /// The hardware tells the machine something, while the processor does what it does. When to step, if no step is due early
    /// enough already.
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
                Event::Room { peer: self.peer(peer), slots }
            }
            HardwareEvent::Refused { peer } => Event::Room { peer: self.peer(peer), slots: 0 },
            HardwareEvent::Deadline => Event::Deadline,
        };
        let busy_until = self.free_at.max(now);
        (self.free_at, self.since) = (now, now);
        self.handle(event, context);
        self.already_arrived = None;
        // Descriptors are written by the processor, whenever the hardware comes to them.
        self.free_at = busy_until + (self.free_at - now);
        self.wake_running()
    }

    /// When to step, if the program can go on and no step is due early enough already.
    fn wake_running(&mut self) -> Option<Picoseconds> {
        let due = self.step_at.is_some_and(|due| due <= self.free_at);
        if self.held || self.phase != Phase::Running || due {
            return None;
        }
        self.step_at = Some(self.free_at);
        self.step_at
    }

    /// When the machine's timer is due.
    pub fn deadline(&self) -> Option<Picoseconds> {
        let deadline = self.machine.next_deadline().filter(|_| !self.crashed);
        deadline.map(|Instant(ns)| ns * 1000)
    }

    /// Takes a packet, or performs a call of the program and lets it run on: as far as nobody else has a say in it. While a
    /// program runs nothing is taken out of its mailbox, so what arrives meanwhile waits in any case (but for [`RankState::packet_goes_first`]).
    pub fn step(&mut self, now: Picoseconds, context: &mut StepContext<'_>) -> StepResult {
        if self.step_at != Some(now) {
            return StepResult::default(); // an earlier one took its place
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
            if self.phase == Phase::Running && !self.returned && self.shared.has_ended() {
                // What that lets it do may go before calls that wait.
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
                    // It has stopped; the calls that it made before are performed in the next steps.
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

    /// Whether the program can go on at `free_at` as if it were that time.
    fn can_continue(&self, now: Picoseconds, context: &StepContext<'_>) -> bool {
        let DeferredWork { injections, gets, attaches, readings, .. } = &*context.left;
        // The network is asked for gets in order of time, and other ranks for their slots.
        if self.phase != Phase::Running || !gets.is_empty() || !readings.is_empty() {
            return false;
        }
        // Hardware and faults come at any time.
        if self.postponed || context.posted_buffers.is_some() || context.may_lose {
            return false;
        }
        // Of such a program what arrives meanwhile may come first.
        if self.free_at > now && self.shared.uses_wait_any() {
            return false;
        }
        // What has been injected may hold the processor, and who sends may find credits that came meanwhile.
        if context.sends_never_wait {
            return injections.len() < MAX_TRAINS_PER_STEP;
        }
        injections.is_empty() && attaches.is_empty() && !self.shared.sends_next()
    }

    fn step_again_at(&mut self, at: Picoseconds, ended: bool) -> StepResult {
        self.step_at = Some(at);
        StepResult { step_at: Some(at), ended }
    }

    /// Whether a packet is taken before `call` is performed: of a program that takes whatever ends next, what came into being first goes first, a
    /// message when it was sent, a call when what let it be made began. So does LogGOPSim. (Whoever waits for something of its own choice takes
    /// nothing until it waits again.)
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
                let begun = Begun { tag, bytes, called_at: self.called_at };
                let request = self.begin(handle, begun);
                self.free_at += cost.send_call_ps + self.jitter.draw_ps(cost.call_jitter_ps);
                let checks = context.checks.as_mut();
                let data = checks.map(|checks| u64::from(checks.posted(self.rank, to, tag, bytes)));
                let (to, space, level) = (self.peer(to), Space::Tagged, SendLevel::Delivered);
                let send = SendCommand { request, to, space, tag, data, bytes, level };
                self.handle(Event::Posted(Command::Send(send)), context);
            }
            Call::Receive { handle, from, tag, bytes } => {
                let request = self.begin(handle, Begun { called_at: self.free_at, ..Begun::default() });
                self.free_at += cost.receive_call_ps + self.jitter.draw_ps(cost.call_jitter_ps);
                let from = from.map(|from| self.peer(from));
                let pattern = Pattern { space: Space::Tagged, from, tag, ignore: 0 };
                if !self.machine.try_post_receive(request, &pattern, bytes) {
                    let receive = ReceiveCommand { request, pattern, capacity_bytes: bytes, multi: None };
                    self.handle(Event::Posted(Command::Receive(receive)), context);
                }
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
            Call::Credits { handle, peer } => context.left.readings.push((handle, peer)),
            Call::Record { name, index, value } => {
                context.records.push(Record { at: self.free_at, rank: self.rank, name, index, value });
            }
        }
    }

    /// An operation of the program is under way; the machine calls it what the program does.
    fn begin(&mut self, handle: Handle, begun: Begun) -> Request {
        self.open += 1;
        self.shared.begin(handle, begun);
        Request(handle.0)
    }

    fn begun(&self, request: Request) -> Begun {
        self.shared.begun(Handle(request.0))
    }

    fn handle(&mut self, event: Event, context: &mut StepContext<'_>) {
        let now = instant(self.free_at);
        self.act(context, |machine, actions| machine.handle(now, event, actions));
    }

    /// Lets the machine do something, performs what it wants done, and tells it what comes of that.
    fn act(
        &mut self,
        context: &mut StepContext<'_>,
        something: impl FnOnce(&mut Endpoint, &mut Vec<Action>),
    ) {
        let mut actions = std::mem::take(&mut context.left.actions);
        self.machine.exchange_scratch(&mut context.left.scratch);
        something(&mut self.machine, &mut actions);
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
            let Some(event) = context.left.events.pop_front() else { break };
            self.machine.handle(instant(self.free_at), event, &mut actions);
        }
        self.machine.exchange_scratch(&mut context.left.scratch);
        context.left.actions = actions;
    }

    /// Puts a packet on its way, with those that left right before it if it goes with them.
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
            *address = 1; // any but 0: it can be read, and who reads says how much and whose
        }
        let credit = packet.body.is_credit();
        let spacing_ps = if credit { context.cost.credit_send_ps } else { context.cost.packet_send_ps };
        let leaves_at = self.free_at;
        self.free_at += spacing_ps;
        if let Some(checks) = &mut context.checks {
            checks.sent(self.rank, to, packet);
        }
        if train.is_some_and(|train| context.flights.extend(train, to, packet)) {
            return;
        }
        let called_at = match payload {
            Source::Request { request, .. } => self.begun(request).called_at,
            _ => self.called_at,
        };
        let id = context.flights.begin(self.rank, to, packet, spacing_ps, called_at);
        if let Some(number_at_peer) = self.peers.number_at_peer(peer.0) {
            context.flights.set_peer(id, Peer(number_at_peer));
        }
        if self.already_arrived.take_if(|peer| *peer == to).is_some() {
            context.already_arrived = Some(id);
            *train = None; // what follows has yet to fly
            return;
        }
        context.left.injections.push((leaves_at, id));
        *train = Some(id);
    }

    fn perform(&mut self, action: &Action, context: &mut StepContext<'_>) {
        let cost = context.cost;
        match *action {
            Action::Transmit { .. } => unreachable!("packets are put on their way by `act`"),
            Action::Connect { to } => {
                context.left.attaches.push((self.peers.rank(to.0), to));
                let Plan { quota_slots, ref config, .. } = *context.plan;
                let credit_slots = config.credit_slots;
                let start_slots = context.plan.start_slots();
                context.left.events.push_back(Event::Connected {
                    peer: to,
                    quota_slots,
                    start_slots,
                    credit_slots,
                    epoch: 0,
                });
            }
            Action::AskRoom { to, .. } => self.ask_room(to, context),
            Action::Retire => {
                let (from, packet) = context.left.arrived.take().expect("retired once, after it came");
                self.retire(from, &packet, context);
            }
            Action::Place { to, bytes } => self.free_at += place_ps(to, bytes, cost),
            Action::Deliver { bytes, .. } => self.free_at += cost.copy_ps(bytes),
            Action::Copy { transfer, peer, bytes, .. } => {
                self.free_at += cost.get_ps;
                let get = Get { at: self.free_at, from: self.peers.rank(peer.0), bytes, number: transfer.0 };
                context.left.gets.push(get);
                self.gets += 1;
            }
            Action::Complete { request, outcome } => self.complete(request, outcome, context),
            // The copy that lets the send complete; what is kept under which name is not looked at.
            Action::FillBounce { request, .. } => {
                let bytes = self.begun(request).bytes;
                self.free_at += cost.unexpected_copy_ps(bytes);
            }
            Action::AllocateUnexpected { .. } | Action::FreeUnexpected { .. } | Action::FreeBounce { .. } => {
            }
            Action::DropPeer { peer } if context.may_lose => {
                context.left.severed.push(self.peers.rank(peer.0))
            }
            Action::DropPeer { .. }
            | Action::Notify { .. }
            | Action::Disconnect { .. }
            | Action::FreeLane { .. } => {
                panic!("{action:?} in a world without losses, leaving and remote writes")
            }
        }
    }

    fn ask_room(&mut self, peer: Peer, context: &mut StepContext<'_>) {
        let Some(posted_buffers) = &mut context.posted_buffers else {
            // A mailbox without flow control is as large as needed.
            context.left.events.push_back(Event::Room { peer, slots: 1 << 30 });
            return;
        };
        let to = self.peers.rank(peer.0);
        match posted_buffers.claim(self.rank, to) {
            0 => {
                let geometry = &context.plan.config.geometry;
                let most_bytes =
                    geometry.payload_bytes(geometry.eager_header_bytes, geometry.max_packet_slots);
                let payload_bytes = self.machine.next_payload_bytes(peer).min(u64::from(most_bytes));
                posted_buffers.begun.push(Attempt { at: self.free_at, to, payload_bytes });
            }
            slots => context.left.events.push_back(Event::Room { peer, slots }),
        }
    }

    fn complete(&mut self, request: Request, outcome: Outcome, context: &mut StepContext<'_>) {
        let begun = |rank_state: &RankState, source| {
            let Begun { tag, bytes, .. } = rank_state.begun(request);
            Status { source, tag, bytes, fault: None }
        };
        let status = match outcome {
            Outcome::Done => begun(self, self.rank),
            // Of a receive nothing was noted; in an all-to-all it would have to be read from far away.
            Outcome::Received { envelope, bytes, .. } => {
                let source = self.peers.rank(envelope.from.0);
                if let Some(checks) = &mut context.checks {
                    checks.received(source, self.rank, envelope.data, envelope.tag, envelope.length);
                }
                let status = Status { source, tag: envelope.tag, bytes, fault: None };
                return self.received(request, status, context);
            }
            Outcome::Lost { peer, fault } if context.may_lose => {
                // A receive that anybody might have satisfied has no source.
                let source = peer.map_or(0, |peer| self.peers.rank(peer.0));
                Status { fault: Some(fault), ..begun(self, source) }
            }
            other => panic!("{other:?} in a world without losses"),
        };
        self.end(request, status, context);
    }

    /// A receive has its message.
    #[inline]
    fn received(&mut self, request: Request, status: Status, context: &mut StepContext<'_>) {
        self.free_at += context.cost.match_ps;
        let latency_ns = self.free_at.saturating_sub(self.called_at) / 1000;
        context.latency_ns.saturating_record(latency_ns);
        self.end(request, status, context);
    }

    /// An operation of the program has ended.
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

fn instant(at: Picoseconds) -> Instant {
    Instant(at / 1000)
}
