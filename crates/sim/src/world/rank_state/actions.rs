//! What a rank's driver does for its endpoint machine (`driver.rs`), with the prices for the rank's processor. It also
//! drives the rank's offloaded machines, and completes the operations of its program.

use weir_proto::offload::{OffloadCommand, Offloaded};
use weir_proto::{
    Body, Event, MachineEvent, Outcome, Packet, Peer, PeerFault, RemoteAddress, Request, Source,
};

use super::super::WorldSpec;
use super::super::machines::Results;
use super::super::rnr::{Attempt, Reposted, Room};
use super::driver::{DriverState, RankDriver};
use super::{Phase, Post, RankState, StepContext, instant};
use crate::Picoseconds;
use crate::network::TrainId;
use crate::program::{Handle, StartedOperation, Status};

impl RankState {
    /// Passes an event to the machine, whose driver performs what it wants done, and reports the results to it.
    pub(super) fn handle(&mut self, event: Event<'_>, context: &mut StepContext<'_>) {
        self.machine.exchange_scratch(&mut context.deferred.scratch);
        self.handle_one(event, context);
        while let Some(event) = context.deferred.events.pop_front() {
            self.handle_one(event, context);
        }
        self.machine.exchange_scratch(&mut context.deferred.scratch);
    }

    #[inline]
    fn handle_one(&mut self, event: Event<'_>, context: &mut StepContext<'_>) {
        let RankState { machine, driver: state, .. } = self;
        let mut driver = RankDriver { now: instant(state.free_at), state, context, train: None, copy: None };
        machine.handle(event, &mut driver).expect("a simulated rank has no bounds of its own");
    }

    /// The program asks its offloaded machines for something.
    pub(super) fn post_offloaded(&mut self, post: Post, context: &mut StepContext<'_>) {
        let state = &mut self.driver;
        if context.spec.machines_on_nic {
            state.free_at += context.cost.packet_send_ps; // the descriptor
            state.gets += 1;
            context.deferred.posted.push((state.free_at, post));
            return;
        }
        let DriverState { machines, peers, free_at, .. } = state;
        let (machines, Post { request, call }) = (machines.get_or_insert_default(), post);
        let results = machines.post(instant(*free_at), request, call, |rank| Peer(peers.number(rank)));
        state.take_results(results, context);
        self.handle_caused(context);
    }

    /// Handles what an offloaded machine has sent outside of an event of the endpoint.
    pub(super) fn handle_caused(&mut self, context: &mut StepContext<'_>) {
        if let Some(event) = context.deferred.events.pop_front() {
            self.handle(event, context);
        }
    }
}

impl DriverState {
    /// Begins to send to a peer. The peers know each other from the start, so the answer follows at once.
    pub fn connect(&mut self, to: Peer, context: &mut StepContext<'_>) {
        context.deferred.attaches.push((self.peers.rank(to.0), to));
        let WorldSpec { quota_slots, ref config, .. } = *context.spec;
        let credit_slots = config.credit_slots;
        let start_slots = context.spec.start_slots();
        let connected = Event::Connected { peer: to, quota_slots, start_slots, credit_slots, epoch: 0 };
        context.deferred.events.push_back(connected);
    }

    /// Sends a packet, in the train of the packets before it if it fits.
    #[inline]
    pub fn transmit(
        &mut self,
        to: Peer,
        packet: &Packet,
        payload: Source,
        train: &mut Option<TrainId>,
        context: &mut StepContext<'_>,
    ) {
        let credit = packet.body.is_credit();
        let spacing_ps = match credit {
            true => context.cost.credit_send_ps,
            false => context.cost.packet_send_ps(packet.payload_bytes.into()),
        };
        if context.cost.send_ps_per_kib > 0 {
            *train = None; // packets of different lengths have different spacings
        }
        self.transmit_after(to, packet, payload, spacing_ps, train, context);
    }

    /// Sends a copy of the packet before it to another peer. The processor has written the packet and the list of peers, and
    /// the NIC makes the copy.
    #[cold]
    pub fn transmit_copy(
        &mut self,
        to: Peer,
        packet: &Packet,
        payload: Source,
        context: &mut StepContext<'_>,
    ) {
        let mut train = None;
        self.transmit_after(to, packet, payload, 0, &mut train, context);
        if let Some(train) = train {
            context.trains.note_copy(train);
        }
    }

    /// Sends a packet, which the processor has written after `spacing_ps`.
    #[inline]
    fn transmit_after(
        &mut self,
        to: Peer,
        packet: &Packet,
        payload: Source,
        spacing_ps: Picoseconds,
        train: &mut Option<TrainId>,
        context: &mut StepContext<'_>,
    ) {
        let (peer, to) = (to, self.peers.rank(to.0));
        let announcement;
        let packet = match packet.body {
            Body::Rendezvous { .. } => {
                announcement = with_address(packet);
                &announcement
            }
            _ => packet,
        };
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
        if let Body::Offloaded(_) = packet.body
            && let Some(machines) = &mut self.machines
        {
            context.trains.set_payload(id, machines.payload(payload, packet.payload_bytes));
        }
        if let Some(number_at_peer) = self.peers.number_at_peer(peer.0) {
            context.trains.set_peer(id, Peer(number_at_peer));
        }
        if context.deferred.accepted_by.take_if(|peer| *peer == to).is_some() {
            context.already_arrived = Some(id);
            *train = None; // the packets behind it cross the network
            return;
        }
        context.deferred.injections.push((leaves_at, id));
        *train = Some(id);
    }

    /// Passes an event to the offloaded machines, which the processor drives. What they send follows as events.
    pub fn offload(&mut self, event: MachineEvent<OffloadCommand, Offloaded>, context: &mut StepContext<'_>) {
        let machines = self.machines.get_or_insert_default();
        let results = machines.handle(instant(self.free_at), event, &context.deferred.payload);
        self.take_results(results, context);
    }

    pub fn take_results(&mut self, results: Results, context: &mut StepContext<'_>) {
        let Results { outgoing, ended, rejected, seen, work } = results;
        // A processor of a host combines floats as fast as integers. It changes a word in no time, once it is awake.
        let combined_bytes = work.combined_bytes + work.combined_float_bytes;
        let wake_ps = context.spec.server_wake_ps.saturating_mul(work.words);
        self.free_at +=
            context.cost.copy_ps(work.copied_bytes) + context.cost.combine_ps(combined_bytes) + wake_ps;
        context.deferred.events.extend(outgoing.into_iter().map(Event::Outgoing));
        for from in rejected {
            if context.may_lose {
                let lost = Event::Lost { peer: from, fault: PeerFault::Malformed };
                context.deferred.events.push_back(lost);
            } else {
                context.deferred.rejected.push(self.peers.rank(from.0));
            }
        }
        for ended in ended {
            let status = ended.status(|peer| self.peers.rank(peer.0));
            self.end(ended.request, status, context);
        }
        for (request, word) in seen {
            self.end(request, Status { bytes: word, ..Status::default() }, context);
        }
    }

    pub fn ask_room(&mut self, peer: Peer, context: &mut StepContext<'_>) {
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

    pub fn complete(&mut self, request: Request, outcome: Outcome, context: &mut StepContext<'_>) {
        let started = |state: &DriverState, source| {
            let StartedOperation { tag, bytes, .. } = state.started(request);
            Status { source, tag, bytes, ..Status::default() }
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
                let status = Status { source, tag: envelope.tag, bytes, ..Status::default() };
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
    pub fn received(
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
    pub fn end(&mut self, request: Request, status: Status, context: &mut StepContext<'_>) {
        let handle = Handle(request.0);
        context.trace.note(self.free_at ^ u64::from(handle.0) << 48);
        self.open -= 1;
        if self.shared.complete_since(handle, status, self.since) && self.phase == Phase::Waiting {
            self.phase = Phase::Running;
        }
    }

    /// Our number of `rank`.
    #[inline]
    pub fn peer(&mut self, rank: u32) -> Peer {
        Peer(self.peers.number(rank))
    }

    #[inline]
    pub fn started(&self, request: Request) -> StartedOperation {
        self.shared.started(Handle(request.0))
    }

    /// The slots of the packet that has just arrived are free.
    #[inline]
    pub fn retire(&mut self, context: &mut StepContext<'_>) {
        let has_arrived = std::mem::take(&mut context.deferred.has_arrived);
        assert!(has_arrived, "a packet is retired once, after its arrival");
        if context.observes_packets() {
            self.retire_observed(context);
        }
    }

    /// The same, where checks or posted buffers need it.
    #[cold]
    fn retire_observed(&mut self, context: &mut StepContext<'_>) {
        let (from, packet) = context.deferred.observed.take().expect("it was noted");
        let packet = &packet;
        if let Some(checks) = &mut context.checks {
            checks.retired(from, self.rank, packet);
        }
        if let Some(posted_buffers) = &mut context.posted_buffers {
            let slots = context.spec.config.geometry.packet_slots(packet);
            posted_buffers.reposted.push(Reposted { at: self.free_at, from, slots });
        }
    }
}

/// The announcement of a message, with an address. Any but 0 will do: the reader states what it reads and from whom.
#[cold]
fn with_address(announcement: &Packet) -> Packet {
    let mut packet = *announcement;
    if let Body::Rendezvous { address, .. } = &mut packet.body {
        *address = RemoteAddress::without_key(1);
    }
    packet
}
