//! Performs the actions of a rank's endpoint machine, and charges their prices to the rank's processor. It also drives
//! the rank's offloaded machines, and completes the operations of its program.

use weir_proto::offload::{OffloadCommand, Offloaded};
use weir_proto::{
    Action, Body, Event, MachineEvent, MemoryCopy, Outcome, Packet, Peer, PeerFault, RemoteAddress, Request,
    Source,
};

use super::super::WorldSpec;
use super::super::machines::Results;
use super::super::rnr::{Attempt, Room};
use super::retrieval::place_ps;
use super::{Get, Phase, Post, RankState, StepContext, drive, instant};
use crate::Picoseconds;
use crate::network::TrainId;
use crate::program::{Handle, StartedOperation, Status};

impl RankState {
    /// Passes an event to the machine, performs what it wants done, and reports the results to it.
    pub(super) fn handle(&mut self, event: Event<'_>, context: &mut StepContext<'_>) {
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
            *address = RemoteAddress::without_key(1); // any address but 0; the reader states what it reads and from whom
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
        if let Body::Offloaded(_) = packet.body
            && let Some(machines) = &mut self.machines
        {
            context.trains.set_payload(id, machines.payload(payload, packet.payload_bytes));
        }
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
            Action::CancelTimer { timer } => {
                if let Some(timers) = &mut self.timers {
                    timers.cancel(timer);
                }
            }
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
            Action::PassOn { from, number, packet, payload_bytes } => {
                self.offload(MachineEvent::Arrived { from, number, packet, payload_bytes }, context);
            }
            Action::PeerLost { peer, fault } => {
                if self.machines.is_some() {
                    self.offload(MachineEvent::Lost { peer, fault }, context);
                }
            }
            Action::DropPeer { .. }
            | Action::Notify { .. }
            | Action::Disconnect { .. }
            | Action::FreeLane { .. } => {
                panic!("{action:?} in a world without lost peers, detaching and remote writes")
            }
        }
    }

    /// The program asks its offloaded machines for something.
    pub(super) fn post_offloaded(&mut self, post: Post, context: &mut StepContext<'_>) {
        if context.spec.machines_on_nic {
            self.free_at += context.cost.packet_send_ps; // the descriptor
            self.gets += 1;
            context.deferred.posted.push((self.free_at, post));
            return;
        }
        let RankState { machines, peers, free_at, .. } = self;
        let (machines, Post { request, call }) = (machines.get_or_insert_default(), post);
        let results = machines.post(instant(*free_at), request, call, |rank| Peer(peers.number(rank)));
        self.take_results(results, context);
        self.handle_caused(context);
    }

    /// Passes an event to the offloaded machines, which the processor drives. What they send follows as events.
    pub(super) fn offload(
        &mut self,
        event: MachineEvent<OffloadCommand, Offloaded>,
        context: &mut StepContext<'_>,
    ) {
        let machines = self.machines.get_or_insert_default();
        let results = machines.handle(instant(self.free_at), event, &context.deferred.payload);
        self.take_results(results, context);
    }

    fn take_results(&mut self, results: Results, context: &mut StepContext<'_>) {
        let Results { outgoing, ended, rejected, copied_bytes, combined_bytes } = results;
        self.free_at += context.cost.copy_ps(copied_bytes) + context.cost.combine_ps(combined_bytes);
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
    }

    /// Handles what an offloaded machine has sent outside of an event of the endpoint.
    pub(super) fn handle_caused(&mut self, context: &mut StepContext<'_>) {
        if let Some(event) = context.deferred.events.pop_front() {
            self.handle(event, context);
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

    pub(super) fn complete(&mut self, request: Request, outcome: Outcome, context: &mut StepContext<'_>) {
        let started = |rank_state: &RankState, source| {
            let StartedOperation { tag, bytes, .. } = rank_state.started(request);
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
    pub(super) fn received(
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
    pub(super) fn end(&mut self, request: Request, status: Status, context: &mut StepContext<'_>) {
        let handle = Handle(request.0);
        context.trace.note(self.free_at ^ u64::from(handle.0) << 48);
        self.open -= 1;
        if self.shared.complete_since(handle, status, self.since) && self.phase == Phase::Waiting {
            self.phase = Phase::Running;
        }
    }
}
