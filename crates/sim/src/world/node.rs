//! One rank: its program, its endpoint, its mailbox, its processor.

use std::collections::VecDeque;
use std::rc::Rc;

use hdrhistogram::Histogram;
use weir_proto::{
    Action, Body, Command, Counters, Destination, Endpoint, Event, Instant, Outcome, Pattern, Peer,
    ReceiveCommand, Request, SendCommand, SendLevel, Source, Space, Transfer,
};

use super::flight::{Flights, Mailbox};
use super::ready::{Attempt, Readiness, Reposted, Told};
use super::{Plan, Record};
use crate::Picoseconds;
use crate::network::{Hold, TrainId};
use crate::program::{self, Call, Handle, Program, Rank, Shared, Status};
use crate::trace::Trace;

/// What a node may touch beside itself, and what it leaves for the world to do.
pub(super) struct Surroundings<'a> {
    pub plan: &'a Plan,
    pub flights: &'a mut Flights,
    pub trace: &'a mut Trace,
    pub records: &'a mut Vec<Record>,
    pub latency_ns: &'a mut Histogram<u64>,
    /// With the scheme `hardware` only.
    pub readiness: Option<&'a mut Readiness>,
    /// Trains that leave, and when.
    pub injections: Vec<(Picoseconds, TrainId)>,
    pub gets: Vec<Get>,
    /// Ranks that learn that we send to them.
    pub attaches: Vec<u32>,
    /// Peers whose slots the program wants to know of.
    pub readings: Vec<(Handle, u32)>,
    /// The network takes no send of ours before.
    pub send_from: Picoseconds,
    /// A packet was taken out of the mailbox.
    pub taken: bool,
    /// A train that is there already.
    pub flown: Option<TrainId>,
}

/// A remote get to begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Get {
    pub at: Picoseconds,
    pub from: u32,
    pub bytes: u64,
    pub number: u32,
}

/// What comes of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Next {
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

/// An operation of the program, as the machine knows it.
#[derive(Clone, Copy, Debug)]
struct Operation {
    handle: Handle,
    status: Status,
    called_at: Picoseconds,
}

pub(super) struct Node {
    rank: u32,
    machine: Endpoint,
    program: Program,
    shared: Rc<Shared>,
    /// The program has returned; it has ended when its last calls are performed too.
    returned: bool,
    phase: Phase,
    /// A send that the network does not take yet.
    postponed: Option<Call>,
    /// The processor is busy until then.
    free_at: Picoseconds,
    /// The network pushes back: nothing is done until it releases us.
    held: bool,
    /// A step is due at that time; `None`: somebody has to wake us.
    step_at: Option<Picoseconds>,
    pub mailbox: Mailbox,
    /// Remote gets that have ended.
    copied: VecDeque<u32>,
    operations: Vec<Operation>,
    free: Vec<u32>,
    events: VecDeque<Event>,
    actions: Vec<Action>,
    /// The send whose actions are being performed was called then.
    called_at: Picoseconds,
    /// Whose packet is being dealt with, and the slots that it fills.
    arrived: (u32, u32),
    /// The next packet to this rank is there already: it was an attempt.
    flown: Option<u32>,
}

impl Node {
    pub fn new(plan: &Plan, rank: u32, program: &impl Fn(Rank) -> Program) -> Node {
        let shared = Shared::new(rank, plan.ranks);
        Node {
            rank,
            machine: Endpoint::new(plan.config),
            program: program(Rank::new(&shared)),
            shared,
            returned: false,
            phase: Phase::Running,
            postponed: None,
            free_at: 0,
            held: false,
            step_at: Some(0),
            mailbox: Mailbox::default(),
            copied: VecDeque::new(),
            operations: Vec::new(),
            free: Vec::new(),
            events: VecDeque::new(),
            actions: Vec::new(),
            called_at: 0,
            arrived: (0, 0),
            flown: None,
        }
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

    pub fn counters(&self) -> Counters {
        *self.machine.counters()
    }

    /// Something has come at `now`. When to step, if no step is due early enough already.
    pub fn wake_at(&mut self, now: Picoseconds) -> Option<Picoseconds> {
        let at = self.free_at.max(now);
        if self.held
            || (self.phase == Phase::Running && self.postponed.is_none())
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
    pub fn copied(&mut self, number: u32) {
        self.copied.push_back(number);
    }

    /// `peer` sends to us from now on.
    pub fn attached(&mut self, now: Picoseconds, peer: u32, plan: &Plan) {
        let event = Event::Attached {
            peer: Peer(peer),
            quota_slots: plan.quota_slots,
            start_slots: plan.start_slots(),
            epoch: 0, // nobody leaves
        };
        let mut actions = Vec::new();
        self.machine.handle(instant(now), event, &mut actions);
        assert!(actions.is_empty(), "who attaches causes nothing yet");
    }

    /// Slots of our mailbox that are `peer`'s.
    pub fn slots_of(&self, peer: u32) -> u32 {
        self.machine.receiving(Peer(peer)).and_then(|view| view.current).unwrap_or(0)
    }

    /// The program knows now how many slots are its.
    pub fn read(&self, handle: Handle, slots: u32) {
        self.shared.complete(handle, Status { bytes: slots.into(), ..Status::default() });
    }

    /// The hardware tells the machine something, while the processor does what it does. When to step, if no step is due early
    /// enough already.
    pub fn told(
        &mut self,
        now: Picoseconds,
        told: Told,
        around: &mut Surroundings<'_>,
    ) -> Option<Picoseconds> {
        let event = match told {
            Told::Accepted { peer, slots } => {
                self.flown = Some(peer);
                Event::Room { peer: Peer(peer), slots }
            }
            Told::Refused { peer } => Event::Room { peer: Peer(peer), slots: 0 },
            Told::Deadline => Event::Deadline,
        };
        let busy_until = self.free_at.max(now);
        self.free_at = now;
        self.handle(event, around);
        self.flown = None;
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
        self.machine.next_deadline().map(|Instant(ns)| ns * 1000)
    }

    /// Does one thing: performs a call of the program, or lets it run on, or takes a packet.
    pub fn step(&mut self, now: Picoseconds, around: &mut Surroundings<'_>) -> Next {
        if self.step_at != Some(now) {
            return Next::default(); // an earlier one took its place
        }
        self.step_at = None;
        if self.held {
            return Next::default();
        }
        if self.free_at > now {
            return self.again(self.free_at, false);
        }
        self.free_at = now;
        let mut ended = false;
        match self.phase {
            Phase::Running => match self.postponed.take().or_else(|| self.shared.next_call()) {
                Some(call @ Call::Send { .. }) if around.send_from > now => {
                    self.postponed = Some(call);
                    self.serve(around);
                }
                Some(call) => self.perform_call(call, around),
                None if self.returned || program::run(&mut self.program) => {
                    self.returned = true;
                    if !self.shared.has_calls() {
                        self.phase = Phase::Ended(now);
                        ended = true;
                    }
                }
                // It has stopped; the calls that it made before are performed in the next steps.
                None if self.shared.has_calls() => {}
                None => self.phase = Phase::Waiting,
            },
            Phase::Waiting | Phase::Ended(_) => self.serve(around),
        }
        let step_at = match self.phase {
            Phase::Running if self.postponed.is_some() => {
                let arrival = self.mailbox.next_at().unwrap_or(Picoseconds::MAX);
                Some(arrival.min(around.send_from).max(self.free_at))
            }
            Phase::Running => Some(self.free_at),
            _ if !self.copied.is_empty() => Some(self.free_at),
            _ => self.mailbox.next_at().map(|at| at.max(self.free_at)),
        };
        match step_at {
            Some(at) => self.again(at, ended),
            None => Next { step_at: None, ended },
        }
    }

    fn again(&mut self, at: Picoseconds, ended: bool) -> Next {
        self.step_at = Some(at);
        Next { step_at: Some(at), ended }
    }

    /// Takes what has come: the end of a remote get, or a packet.
    fn serve(&mut self, around: &mut Surroundings<'_>) {
        let cost = &around.plan.cost;
        if let Some(number) = self.copied.pop_front() {
            self.free_at += cost.packet_receive_ps;
            self.handle(Event::CopyDone { transfer: Transfer(number), result: Ok(()) }, around);
        } else if let Some((train, index)) = self.mailbox.take(self.free_at) {
            around.taken = true;
            let (from, packet, called_at) = around.flights.take(train, index);
            let credit = packet.body.is_credit();
            self.free_at += if credit { cost.credit_receive_ps } else { cost.packet_receive_ps };
            around.trace.note(self.free_at);
            around.trace.note(u64::from(self.rank) << 32 | u64::from(from));
            around.trace.note(u64::from(packet.number) << 32 | u64::from(packet.payload_bytes));
            self.called_at = called_at;
            self.arrived = (from, around.plan.config.geometry.packet_slots(&packet));
            self.handle(Event::Arrived { from: Peer(from), packet }, around);
        }
    }

    fn perform_call(&mut self, call: Call, around: &mut Surroundings<'_>) {
        let cost = &around.plan.cost;
        match call {
            Call::Send { handle, to, tag, bytes } => {
                let request = self.begin(handle, Status { source: self.rank, tag, bytes });
                self.called_at = self.free_at;
                self.free_at += cost.send_call_ps;
                let (to, space, level) = (Peer(to), Space::Tagged, SendLevel::Delivered);
                let send = SendCommand { request, to, space, tag, data: None, bytes, level };
                self.handle(Event::Posted(Command::Send(send)), around);
            }
            Call::Receive { handle, from, tag, bytes } => {
                let request = self.begin(handle, Status::default());
                self.free_at += cost.receive_call_ps;
                let from = from.map(Peer);
                let pattern = Pattern { space: Space::Tagged, from, tag, ignore: 0 };
                let receive = ReceiveCommand { request, pattern, capacity_bytes: bytes, multi: None };
                self.handle(Event::Posted(Command::Receive(receive)), around);
            }
            Call::Compute { ps } => self.free_at += ps,
            Call::Clock { handle } => {
                self.shared.complete(handle, Status { bytes: self.free_at, ..Status::default() });
            }
            Call::Credits { handle, peer } => around.readings.push((handle, peer)),
            Call::Record { name, index, value } => {
                around.records.push(Record { at: self.free_at, rank: self.rank, name, index, value });
            }
        }
    }

    fn begin(&mut self, handle: Handle, status: Status) -> Request {
        let operation = Operation { handle, status, called_at: self.free_at };
        match self.free.pop() {
            Some(index) => {
                self.operations[index as usize] = operation;
                Request(index)
            }
            None => {
                self.operations.push(operation);
                Request(self.operations.len() as u32 - 1)
            }
        }
    }

    fn handle(&mut self, event: Event, around: &mut Surroundings<'_>) {
        let mut actions = std::mem::take(&mut self.actions);
        self.machine.handle(instant(self.free_at), event, &mut actions);
        loop {
            let mut train = None;
            for action in actions.drain(..) {
                self.perform(action, &mut train, around);
            }
            let Some(event) = self.events.pop_front() else { break };
            self.machine.handle(instant(self.free_at), event, &mut actions);
        }
        self.actions = actions;
    }

    fn perform(&mut self, action: Action, train: &mut Option<TrainId>, around: &mut Surroundings<'_>) {
        let cost = &around.plan.cost;
        match action {
            Action::Transmit { to, mut packet, payload } => {
                let to = to.0;
                if let Body::Rendezvous { address, .. } = &mut packet.body {
                    *address = 1; // any but 0: it can be read, and who reads says how much and whose
                }
                let credit = packet.body.is_credit();
                let spacing_ps = if credit { cost.credit_send_ps } else { cost.packet_send_ps };
                let leaves_at = self.free_at;
                self.free_at += spacing_ps;
                if train.is_some_and(|train| around.flights.extend(train, to, &packet)) {
                    return;
                }
                let called_at = match payload {
                    Source::Request { request, .. } => self.operations[request.0 as usize].called_at,
                    _ => self.called_at,
                };
                let id = around.flights.begin(self.rank, to, &packet, spacing_ps, called_at);
                if self.flown.take_if(|peer| *peer == to).is_some() {
                    around.flown = Some(id);
                    *train = None; // what follows has yet to fly
                    return;
                }
                around.injections.push((leaves_at, id));
                *train = Some(id);
            }
            Action::Connect { to } => {
                around.attaches.push(to.0);
                let Plan { quota_slots, ref config, .. } = *around.plan;
                let credit_slots = config.credit_slots;
                let start_slots = around.plan.start_slots();
                self.events.push_back(Event::Connected {
                    peer: to,
                    quota_slots,
                    start_slots,
                    credit_slots,
                    epoch: 0,
                });
            }
            Action::AskRoom { to, .. } => self.ask_room(to, around),
            Action::Retire => {
                if let Some(readiness) = &mut around.readiness {
                    let (from, slots) = self.arrived;
                    readiness.reposted.push(Reposted { at: self.free_at, from, slots });
                }
            }
            Action::Place { to: Destination::Message { .. }, bytes } => self.free_at += cost.keep_ps(bytes),
            Action::Place { bytes, .. } | Action::Deliver { bytes, .. } => {
                self.free_at += cost.copy_ps(bytes)
            }
            Action::Copy { transfer, peer, bytes, .. } => {
                self.free_at += cost.get_ps;
                let get = Get { at: self.free_at, from: peer.0, bytes, number: transfer.0 };
                around.gets.push(get);
            }
            Action::Complete { request, outcome } => self.complete(request, outcome, around),
            // The copy that lets the send complete; what is kept under which name is not looked at.
            Action::Retain { request, .. } => {
                let bytes = self.operations[request.0 as usize].status.bytes;
                self.free_at += cost.keep_ps(bytes);
            }
            Action::Keep { .. } | Action::Forget { .. } | Action::Release { .. } => {}
            Action::Sever { .. }
            | Action::Notify { .. }
            | Action::Disconnect { .. }
            | Action::Vacate { .. } => {
                panic!("{action:?} in a world without losses, leaving and remote writes")
            }
        }
    }

    fn ask_room(&mut self, peer: Peer, around: &mut Surroundings<'_>) {
        let Some(readiness) = &mut around.readiness else {
            // A mailbox without flow control is as large as needed.
            self.events.push_back(Event::Room { peer, slots: 1 << 30 });
            return;
        };
        match readiness.claim(self.rank, peer.0) {
            0 => {
                let geometry = &around.plan.config.geometry;
                let most_bytes =
                    geometry.payload_bytes(geometry.eager_header_bytes, geometry.max_packet_slots);
                let payload_bytes = self.machine.next_payload_bytes(peer).min(u64::from(most_bytes));
                readiness.begun.push(Attempt { at: self.free_at, to: peer.0, payload_bytes });
            }
            slots => self.events.push_back(Event::Room { peer, slots }),
        }
    }

    fn complete(&mut self, request: Request, outcome: Outcome, around: &mut Surroundings<'_>) {
        let Operation { handle, mut status, .. } = self.operations[request.0 as usize];
        match outcome {
            Outcome::Done => {}
            Outcome::Received { envelope, bytes, .. } => {
                self.free_at += around.plan.cost.match_ps;
                status = Status { source: envelope.from.0, tag: envelope.tag, bytes };
                let latency_ns = self.free_at.saturating_sub(self.called_at) / 1000;
                around.latency_ns.saturating_record(latency_ns);
            }
            other => panic!("{other:?} in a world without losses"),
        }
        around.trace.note(self.free_at ^ u64::from(handle.0) << 48);
        self.free.push(request.0);
        if self.shared.complete(handle, status) && self.phase == Phase::Waiting {
            self.phase = Phase::Running;
        }
    }
}

fn instant(at: Picoseconds) -> Instant {
    Instant(at / 1000)
}
