//! Finds when a rank in the simulator has something to handle, and handles it. That is a packet in its mailbox, the end of
//! a copy or of an operation of its NIC, the loss of a peer, or an expired timer. The program gets the end of an
//! operation of its NIC; the endpoint machine gets the rest.
//!
//! A packet whose result cannot depend on the time is processed early (look-ahead, `world/lookahead.rs`), and only
//! retrieved at its time.

use std::hint::black_box;

use weir_proto::{
    Body, CopyFault, Destination, Event, MachineEvent, Packet, Peer, PeerFault, Space, Transfer,
};

use super::super::lookahead::{self, AfterRetrieval, EarlyPacket};
use super::super::trains::RetrievedPacket;
use super::early_driver::{EarlyDriver, EarlyResult};
use super::{IDLE_PS, Notices, Phase, RankState, StepContext, StepResult, instant};
use crate::Picoseconds;
use crate::cost::Cost;
use crate::network::TrainId;
use crate::program::{Handle, Status};
use crate::trace::Trace;

impl RankState {
    /// Handles the end of a remote get, or the next packet.
    pub(super) fn serve(&mut self, context: &mut StepContext<'_>) {
        self.driver.since = self.driver.free_at;
        if self.notices.is_some() && self.serve_notice(context) {
            return;
        }
        if self.processor_timer().is_some_and(|at| at <= self.driver.free_at) {
            return self.serve_timer(context);
        }
        if self.looks_ahead(context)
            && let Some(seen) = self.lookahead.take()
        {
            context.retrieved = true;
            self.retrieve_processed(&seen, context);
        } else if let Some((train, index)) = self.mailbox.retrieve(self.driver.free_at, context.chunks) {
            context.retrieved = true;
            context.deferred.payload = context.trains.take_payload(train);
            let peers = &mut self.driver.peers;
            let retrieved = context.trains.retrieve(train, index, |rank| Peer(peers.number(rank)));
            self.process(retrieved, context);
        } else if self.machine.waits_for_idle() {
            self.handle(Event::Idle, context);
        }
    }

    /// Time of the send call of the next packet's message, if the packet has arrived.
    pub(super) fn next_called_at(&self, context: &StepContext<'_>) -> Option<Picoseconds> {
        if let Some(seen) = self.lookahead.next() {
            return Some(seen.called_at);
        }
        let mut next = [TrainId(0)];
        let train = match self.mailbox.peek(context.chunks, &mut next) {
            0 => self.mailbox.peek_part(self.driver.free_at)?,
            _ => next[0],
        };
        Some(context.trains.called_at(train))
    }

    pub(super) fn has_due_notice(&self) -> bool {
        let waits = |Notices { copied, lost, offloaded, words }: &Notices| {
            copied.len() + lost.len() + offloaded.len() + words.len() > 0
        };
        self.notices.as_deref().is_some_and(waits)
    }

    /// Tells the machine that a timer has expired, or an offloaded machine.
    fn serve_timer(&mut self, context: &mut StepContext<'_>) {
        context.trace.note(self.driver.free_at ^ u64::from(self.driver.rank) << 48);
        let of_endpoint = if self.nic_runs_timers() {
            None
        } else {
            self.take_expired_timers(self.driver.free_at, context)
        };
        if let Some(expired) = of_endpoint {
            return self.handle(expired, context);
        }
        let at = instant(self.driver.free_at);
        if let Some(timer) = self.driver.machines.as_mut().and_then(|machines| machines.take_expired(at)) {
            self.driver.offload(MachineEvent::TimerExpired(timer), context);
            self.handle_caused(context);
        }
    }

    /// Tells the machine the next notice, if it comes before the packets. Returns whether there was one.
    fn serve_notice(&mut self, context: &mut StepContext<'_>) -> bool {
        let Some(Notices { copied, lost, offloaded, words }) = self.notices.as_deref_mut() else {
            return false;
        };
        if let Some((number, whole)) = copied.pop_front() {
            self.driver.free_at += context.cost.packet_receive_ps;
            self.driver.gets -= 1;
            let result = if whole { Ok(()) } else { Err(CopyFault::Gone) };
            self.handle(Event::CopyDone { transfer: Transfer(number), result }, context);
            return true;
        }
        if let Some((request, status)) = offloaded.pop_front() {
            self.driver.free_at += context.cost.packet_receive_ps;
            self.driver.gets -= 1;
            self.driver.end(request, status, context);
            return true;
        }
        if let Some((request, word)) = words.pop_front() {
            self.driver.end(request, Status { bytes: word, ..Status::default() }, context);
            return true;
        }
        let due = |&mut (at, ..): &mut (Picoseconds, u32, PeerFault)| {
            self.mailbox.next_at().is_none_or(|next| next > at)
        };
        let Some((_, rank, fault)) = lost.pop_front_if(due) else { return false };
        let peer = self.driver.peer(rank);
        self.handle(Event::Lost { peer, fault }, context);
        true
    }

    /// Processes a retrieved packet, on the fast path if the machine has one for it.
    fn process(&mut self, retrieved: RetrievedPacket, context: &mut StepContext<'_>) {
        let RetrievedPacket { from, peer, packet, called_at } = retrieved;
        let cost = context.cost;
        let credit = packet.body.is_credit();
        self.driver.free_at += if credit { cost.credit_receive_ps } else { cost.packet_receive_ps };
        self.note_retrieved(from, packet.number, packet.payload_bytes, context.trace);
        self.driver.called_at = called_at;
        if let Some(checks) = &mut context.checks {
            checks.retrieved(from, self.driver.rank, &packet);
        }
        context.deferred.has_arrived = true;
        if context.observes_packets() {
            context.deferred.observed = Some((from, packet));
        }
        self.handle(Event::Arrived { from: peer, packet: &packet }, context);
    }

    #[inline(always)]
    fn note_retrieved(&self, from: u32, number: u32, payload_bytes: u32, trace: &mut Trace) {
        trace.note(self.driver.free_at);
        trace.note(u64::from(self.driver.rank) << 32 | u64::from(from));
        trace.note(u64::from(number) << 32 | u64::from(payload_bytes));
    }

    /// Retrieves a packet that the machine has processed already.
    fn retrieve_processed(&mut self, seen: &EarlyPacket, context: &mut StepContext<'_>) {
        let &EarlyPacket { from, number, payload_bytes, called_at, place_ps, then, .. } = seen;
        self.mailbox.leave();
        self.driver.free_at += context.cost.packet_receive_ps;
        self.note_retrieved(from, number, payload_bytes, context.trace);
        self.driver.called_at = called_at;
        self.driver.free_at += place_ps;
        match then {
            AfterRetrieval::Nothing => {}
            AfterRetrieval::SendDueCredits(peer) => {
                self.handle(Event::CreditsDue { peer }, context);
            }
            AfterRetrieval::Complete { request, tag, bytes } => {
                let status = Status { source: from, tag, bytes: bytes.into(), ..Status::default() };
                self.driver.received(request, status, Some(called_at), context);
            }
        }
    }

    /// Lets the machine process the next packets before their time, as far as possible. Returns whether such
    /// packets wait.
    #[inline]
    fn looks_ahead(&mut self, context: &mut StepContext<'_>) -> bool {
        if !self.lookahead.is_empty() {
            return true;
        }
        // The next action of the program, and the end of a get, are unknown before their time. The effect of a
        // timer depends on the packets before it.
        let is_foreseen =
            self.driver.gets == 0 && self.driver.phase != Phase::Running && self.processor_timer().is_none();
        if context.looks_ahead && is_foreseen {
            if !self.mailbox.has_packets_in_order() {
                self.look_ahead_in_parts(context);
            } else if !self.lookahead.take_message() {
                self.look_ahead(context);
            }
        }
        !self.lookahead.is_empty()
    }

    fn look_ahead(&mut self, context: &mut StepContext<'_>) {
        let mut arrived = [TrainId(0); lookahead::MAX_PACKETS];
        let count = self.mailbox.peek(context.chunks, &mut arrived[..self.lookahead.reach()]);
        if count < lookahead::MIN_PACKETS {
            return;
        }
        // Reads all distant memory first, where one access does not depend on another. Then does the
        // dependent work.
        let trains = &mut *context.trains;
        let messages = arrived[..count].iter().enumerate().take_while(|&(place, &train)| {
            let at_rest = |peer| self.machine.is_at_rest(peer);
            // Receives are mostly posted in the order in which messages arrive. Otherwise this read is
            // useless.
            let receive = self.machine.posted_receive(Space::Tagged, place);
            black_box(receive.is_some_and(|request| self.driver.shared.is_pending(Handle(request.0))));
            trains.is_single(train) && trains.peer(train).is_none_or(at_rest)
        });
        let messages = messages.count();
        if messages > 0 {
            self.lookahead.set_reach(messages);
            if !lookahead::supports_message_lookahead(&context.spec.config)
                || !self.process_messages_early(&arrived[..messages], context)
            {
                self.lookahead.note_messages(messages - 1); // without the current one
            }
            return;
        }
        let peers = arrived[..count].iter().map_while(|&train| trains.peer(train));
        let parts =
            peers.take_while(|&peer| self.machine.half_arrived_bytes(peer).is_some_and(|bytes| bytes > 0));
        let count = parts.count();
        let mut processed = 0;
        for &train in &arrived[..count] {
            let Some(continues) = self.process_early(train, context) else { break };
            self.mailbox.set_aside(context.chunks);
            processed += 1;
            if !continues {
                break;
            }
        }
        self.lookahead.set_reach(processed);
    }

    /// The same where several trains arrive interleaved.
    fn look_ahead_in_parts(&mut self, context: &mut StepContext<'_>) {
        for _ in 0..lookahead::MAX_PACKETS {
            let Some(train) = self.mailbox.peek_part(self.driver.free_at) else { break };
            if context.trains.peer(train).is_none() {
                break; // its message has not begun
            }
            let Some(continues) = self.process_early(train, context) else { break };
            self.mailbox.set_aside_of_part(self.driver.free_at);
            if !continues {
                break;
            }
        }
    }

    /// Lets the machine process the next packet of a train with a known sender, if possible before its time.
    /// Returns whether it can process the packets behind it too.
    #[inline]
    fn process_early(&mut self, train: TrainId, context: &mut StepContext<'_>) -> Option<bool> {
        let RetrievedPacket { from, peer, packet, called_at } = context.trains.next(train);
        if !matches!(packet.body, Body::More { .. }) {
            return None;
        }
        let EarlyResult { place_ps, credits_due, .. } = self.handle_early(peer, &packet, context.cost)?;
        context.trains.discard(train);
        self.lookahead.push(EarlyPacket {
            from,
            number: packet.number,
            payload_bytes: packet.payload_bytes,
            called_at,
            place_ps,
            then: if credits_due { AfterRetrieval::SendDueCredits(peer) } else { AfterRetrieval::Nothing },
        });
        Some(!credits_due)
    }

    /// Lets the machine process a packet before its time. `None`: its effects depend on the time.
    #[inline]
    fn handle_early(&mut self, peer: Peer, packet: &Packet, cost: &Cost) -> Option<EarlyResult> {
        let mut driver = EarlyDriver { cost, result: EarlyResult::default() };
        self.machine.handle(Event::Arrived { from: peer, packet }, &mut driver).ok()?;
        Some(driver.result)
    }

    /// Lets the machine process messages of one packet, as long as each has a receive. Returns whether there
    /// are any.
    fn process_messages_early(&mut self, trains: &[TrainId], context: &mut StepContext<'_>) -> bool {
        for &train in trains {
            if context.trains.peer(train).is_none() {
                let peer = self.driver.peer(context.trains.source(train));
                context.trains.set_peer(train, peer);
            }
            let RetrievedPacket { from, peer, packet, called_at } = context.trains.next(train);
            if !matches!(packet.body, Body::Eager { .. }) {
                break;
            }
            let Some(result) = self.handle_early(peer, &packet, context.cost) else { break };
            let EarlyResult { place_ps, credits_due, received } = result;
            assert!(!credits_due, "the scheme has no credits");
            let (request, envelope, bytes) =
                received.expect("a message that is processed early has its receive");
            context.trains.discard(train);
            self.mailbox.set_aside(context.chunks);
            self.lookahead.push(EarlyPacket {
                from,
                number: packet.number,
                payload_bytes: packet.payload_bytes,
                called_at,
                place_ps,
                then: AfterRetrieval::Complete { request, tag: envelope.tag, bytes: bytes as u32 },
            });
        }
        !self.lookahead.is_empty()
    }

    /// Does a whole step, if the step retrieves a packet that the machine has processed already and sends
    /// nothing afterwards. Nearly all steps of long messages are of this kind.
    #[inline]
    pub fn retrieve_early(&mut self, now: Picoseconds, cost: &Cost, trace: &mut Trace) -> Option<StepResult> {
        let &EarlyPacket { from, number, payload_bytes, called_at, place_ps, then, .. } =
            self.lookahead.next()?;
        if !matches!(then, AfterRetrieval::Nothing) {
            return None;
        }
        if self.step_at != Some(now) || self.held || self.driver.free_at > now || self.has_due_notice() {
            return None;
        }
        if self.has_timers() {
            return None; // the whole step decides
        }
        assert!(self.driver.phase != Phase::Running, "a part of a message does not wake a program");
        self.lookahead.take();
        self.mailbox.leave();
        self.driver.free_at = now + cost.packet_receive_ps;
        self.note_retrieved(from, number, payload_bytes, trace);
        self.driver.called_at = called_at;
        self.driver.free_at += place_ps;
        self.step_at = self.serves_at(cost);
        Some(StepResult { step_at: self.step_at, ended: false })
    }

    /// The time when a waiting program has something to handle, as far as known.
    #[inline(always)]
    pub(super) fn serves_at(&self, cost: &Cost) -> Option<Picoseconds> {
        let seen_at = match self.next_at() {
            Some(at) => Some(cost.seen_ps(self.driver.free_at, at)),
            None => self.machine.waits_for_idle().then_some(self.driver.free_at + IDLE_PS),
        };
        let Some(timer_at) = self.processor_timer() else { return seen_at };
        let timer_at = timer_at.max(self.driver.free_at);
        Some(seen_at.map_or(timer_at, |at| at.min(timer_at)))
    }

    /// The time when the next packet arrives; 0: it has arrived.
    #[inline]
    pub(super) fn next_at(&self) -> Option<Picoseconds> {
        if self.lookahead.is_empty() { self.mailbox.next_at() } else { Some(0) }
    }
}

/// Price of copying `bytes` bytes of a packet to their destination.
#[inline]
pub(super) fn place_ps(to: Destination, bytes: u64, cost: &Cost) -> Picoseconds {
    match to {
        Destination::Message { .. } => cost.unexpected_copy_ps(bytes),
        _ => cost.copy_ps(bytes),
    }
}
