//! Progress: passes events to the machine, performs its actions, and decides what to do when nothing happens.
//!
//! [`Engine::progress`] polls the link and never sleeps. [`Engine::pause`] waits when a call of `progress` found
//! nothing. [`Engine::close`] delivers what only this endpoint holds and closes the mailbox. This file knows no
//! matching, no credits and no libfabric.

use std::collections::VecDeque;
use std::time::{Duration, Instant as Clock};

use weir_link::memory::UserMemory;
use weir_link::sched_yield;
use weir_link::{Arrival, COOPERATIVE_COPY_BYTES, CopyStatus, LaneLease, Link, Liveness, Polled, Quota};
use weir_proto::{
    Action, Body, Command, Destination, Event, FastArrival, Instant, Outcome, Packet, Peer, PeerFault,
    ReceivedMessage, Request, Source, Space, Transfer, UnexpectedArrival,
};

use crate::observe::own_name;
use crate::waiting::{MAX_GAP_TICKS, Pause};
use crate::{Completion, CompletionSink, Engine, NullSink, Operation, Post};

/// Most arrivals that one call handles. The bound keeps completions from waiting.
const BATCH: usize = 64;
/// How often the engine checks that the peers it depends on are alive. It reports a dead peer within a second.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Longest sleep while the endpoint waits for a lane. Unit: ns.
const LANE_POLL_NS: u64 = 1_000_000;
/// Calls of `progress` between two reads of the clock, for programs that never wait. Such programs may call only a
/// thousand times a second, so the number is small. A read of the clock costs some 25 ns.
const POLLS_PER_CLOCK_READ: u32 = 1 << 8;
/// Most yields that are skipped in a row after successful reads.
const MAX_SKIPPED_YIELDS: u32 = 256;
/// Most large sends that one call checks for a cooperative copy.
const MAX_COOPERATIVE_COPY_POLLS: usize = 4;
/// Calls of `progress` in a row that find nothing before the machine gets [`Event::Idle`]. A program makes fewer
/// between two receives.
const IDLE_POLLS: u32 = 16;

fn connected(peer: Peer, LaneLease { quota, epoch }: LaneLease) -> Event {
    let Quota { data_slots, start_slots, credit_slots } = quota;
    Event::Connected { peer, quota_slots: data_slots, start_slots, credit_slots, epoch }
}

/// Offers a completion to `sink`, if no other waits before it. A completion that `sink` rejects waits in `waiting`.
#[inline(always)]
pub(crate) fn offer(
    waiting: &mut VecDeque<Completion>,
    completion: Completion,
    sink: &mut impl CompletionSink,
) {
    if !waiting.is_empty() || !sink.accept(&completion) {
        waiting.push_back(completion);
    }
}

/// [`Link::transmit`] out of line, for all sends that are not on the fast path.
#[inline(never)]
fn transmit_out_of_line<L: Link>(
    link: &mut L,
    to: Peer,
    packet: &Packet,
    payload: Option<(&UserMemory, u64)>,
) {
    link.transmit(to, packet, payload);
}

/// The number of the bounce buffer that `transfer` names.
fn bounce_buffer_number(transfer: Transfer) -> u32 {
    transfer.bounce_buffer().expect("the machine names bounce buffers")
}

impl<L: Link> Engine<L> {
    /// Handles what has arrived. Returns the number of events. Never sleeps.
    #[inline]
    pub fn progress(&mut self) -> usize {
        self.progress_with_sink(&mut NullSink)
    }

    /// [`Engine::progress`] that offers completions to `sink` as they happen.
    #[inline(always)]
    pub fn progress_with_sink(&mut self, sink: &mut impl CompletionSink) -> usize {
        let mut handled = 0;
        while handled < BATCH
            && let Some(polled) = self.link.poll_in_place()
        {
            handled += 1;
            match polled {
                Polled::Packet { from } => {
                    let was_unexpected = self.packet_arrived(from, sink);
                    if was_unexpected && sink.has_unread_receives() {
                        // More may have arrived, as with a full batch: unreachable peers are not reported yet.
                        handled = BATCH;
                        break;
                    }
                }
                Polled::Other(arrival) => self.arrived_slow_path(*arrival),
            }
        }
        if handled > 0 {
            self.new_arrivals = true;
            self.waiting.reset();
            self.read_spin.arrived();
            self.idle_polls = 0;
        }
        self.progress_calls = self.progress_calls.wrapping_add(1);
        let copies = self.sent_rts.len() | self.copying.len();
        let waiting = self.awaiting_room.len() | self.connecting.len() | self.unreachable.len() | copies;
        let reads_clock = self.progress_calls.is_multiple_of(POLLS_PER_CLOCK_READ);
        if waiting > 0 || reads_clock || self.machine.waits_for_time() {
            return self.progress_slow_path(handled, waiting, reads_clock);
        }
        handled
    }

    /// The part of [`Engine::progress`] that most calls skip: events that are no packets, and periodic checks.
    ///
    /// - `handled`: events of this call so far. The result includes them.
    /// - `waiting`: peers and transfers that wait for such events.
    /// - `reads_clock`: whether this call reads the clock.
    #[inline(never)]
    fn progress_slow_path(&mut self, mut handled: usize, waiting: usize, reads_clock: bool) -> usize {
        if waiting > 0 || self.machine.next_deadline().is_some() {
            handled += self.poll_non_packet_events(handled);
        }
        if reads_clock {
            handled += self.check_peers_if_due(Clock::now());
        }
        if handled > 0 {
            self.waiting.reset();
            self.idle_polls = 0;
        } else if self.machine.has_pending_acks() {
            self.idle_polls += 1;
            if self.idle_polls >= IDLE_POLLS {
                self.idle_polls = 0;
                self.handle(Event::Idle);
            }
        }
        handled
    }

    /// Polls for events that are no packets: room, lanes, copies, deadlines. `handled`: events of this call so far.
    #[cold]
    fn poll_non_packet_events(&mut self, handled: usize) -> usize {
        let mut found = 0;
        if !self.awaiting_room.is_empty() {
            found += self.poll_room();
        }
        if !self.connecting.is_empty() {
            found += self.poll_lanes();
        }
        if !self.sent_rts.is_empty() {
            found += self.help_cooperative_copies();
        }
        if !self.copying.is_empty() {
            found += self.poll_copies();
        }
        if let Some(deadline) = self.machine.next_deadline() {
            found += self.handle_deadline(deadline);
        }
        if !self.unreachable.is_empty() && handled + found < BATCH {
            found += self.report_unreachable();
        }
        found
    }

    /// Called before the program's first post after it has polled all its sources. Arrivals so far are older than the
    /// post, so none of them answers it.
    ///
    /// With more ranks than cores the engine polls once more, unless a completion or an unexpected message waits
    /// already. The next message of a collective is often there when the one before has been handled.
    /// `may_poll`: whether the program has read all its completions.
    #[inline]
    pub fn before_post(&mut self, may_poll: bool) {
        if self.oversubscribed && may_poll && self.completions.is_empty() && !self.machine.has_unexpected() {
            self.progress_out_of_line();
        }
        self.clear_new_arrivals();
    }

    /// [`Engine::progress`] out of line, for callers with more to do.
    #[inline(never)]
    fn progress_out_of_line(&mut self) {
        self.progress();
    }

    /// Whether something has arrived since [`Engine::clear_new_arrivals`]. If not, completions are those of earlier
    /// arrivals.
    #[inline]
    pub fn has_new_arrivals(&self) -> bool {
        self.new_arrivals
    }

    /// See [`Engine::has_new_arrivals`].
    #[inline]
    pub fn clear_new_arrivals(&mut self) {
        self.new_arrivals = false;
    }

    /// Called after a read of the program that found nothing. With a core for every rank the yield that may follow is
    /// redundant, until the engine itself stops spinning ([`Engine::pause`]).
    #[inline]
    pub fn after_empty_read(&mut self) {
        self.clear_new_arrivals();
        self.read_spin.read_ended(weir_link::cores::ticks);
        if self.skips_yields {
            self.skipped_yields = 0;
            sched_yield::skip_next_yield(self.core_per_rank && self.single_threaded);
        }
    }

    /// Called after a read of the program that found something. The yield that may follow is redundant: the program may
    /// have what it waits for. Two cases keep the yield. With several threads it may let another thread take the lock.
    /// And a read that always finds something must not keep the core from others for ever.
    #[inline]
    pub fn after_successful_read(&mut self) {
        if self.skips_yields {
            self.skipped_yields =
                if self.skipped_yields < MAX_SKIPPED_YIELDS { self.skipped_yields + 1 } else { 0 };
            sched_yield::skip_next_yield(self.single_threaded && self.skipped_yields > 0);
        }
    }

    /// The engine has stopped spinning: the program's next yield is real. Callers may make it without the engine's lock.
    fn allow_yield(&self) {
        if self.skips_yields {
            sched_yield::skip_next_yield(false);
        }
    }

    /// Called when a read of the program found nothing: spins a moment longer for an arrival, if the caller waits (see
    /// `read_spin.rs`). Returns whether something has arrived.
    #[inline]
    pub fn spin_for_arrival(&mut self) -> bool {
        self.read_spin.begin(weir_link::cores::ticks) && !self.has_other_work() && self.spin_until_arrival()
    }

    #[inline(never)]
    fn spin_until_arrival(&mut self) -> bool {
        self.check_calling_thread();
        while !self.link.may_have_arrivals() {
            std::hint::spin_loop();
            if self.read_spin.is_over(weir_link::cores::ticks()) {
                return false;
            }
        }
        true
    }

    /// Whether an event may come that does not show in our mailbox.
    fn has_other_work(&self) -> bool {
        let copies = self.sent_rts.len() | self.copying.len();
        let waiting = self.awaiting_room.len() | self.connecting.len() | self.unreachable.len() | copies;
        waiting > 0 || self.machine.waits_for_time()
    }

    /// Called when a read of the program found nothing and [`Engine::progress`] returned 0. Spins, yields or sleeps,
    /// depending on how often that has happened in a row and on how the ranks share the cores.
    #[inline]
    pub fn pause(&mut self) {
        self.check_calling_thread();
        // A credit does not end a wait for a lane or for an RNR timer.
        let wakes = self.connecting.is_empty() && self.machine.next_deadline().is_none();
        let pause = if self.oversubscribed && self.machine.backlogged() > 0 && wakes {
            self.waiting.pause_for_credit(sched_yield::has_just_yielded(MAX_GAP_TICKS), Clock::now)
        } else {
            self.waiting.pause(Clock::now)
        };
        match pause {
            Pause::Spin => std::hint::spin_loop(),
            // The caller did something else and does not wait. Its peers may still die.
            Pause::CallerWasBusy { now } => {
                self.allow_yield();
                self.check_peers_if_due(now);
            }
            Pause::Yield { now } => {
                weir_link::cores::yield_now();
                self.after_pause(Some(now));
            }
            Pause::Sleep { .. } if self.must_poll() => {
                weir_link::cores::yield_now();
                self.after_pause(None);
            }
            Pause::Sleep { at_most_ns } => {
                self.sleep(at_most_ns);
                self.after_pause(None);
            }
        }
    }

    /// Sleeps until something arrives or the machine has a deadline, at most `at_most_ns`; for blocking reads.
    pub fn wait(&mut self, at_most_ns: u64) {
        self.sleep_or_yield(at_most_ns);
        self.after_pause(None);
    }

    /// Sleeps, or yields the core if nothing would wake us.
    pub(crate) fn sleep_or_yield(&mut self, at_most_ns: u64) {
        if self.must_poll() {
            weir_link::cores::yield_now();
        } else {
            self.sleep(at_most_ns);
        }
    }

    /// Whether we wait for a change in a peer's memory. No packet shows it, so nothing would wake us.
    fn must_poll(&self) -> bool {
        !self.awaiting_room.is_empty() || !self.copying.is_empty()
    }

    /// Sends queued messages, waits until peers have taken what only this endpoint holds, and closes the mailbox.
    ///
    /// Posted receives are dropped. A message whose send is complete is waited for until its receiver takes it, closes
    /// or dies. Other operations are waited for at most `FI_WEIR_CLOSE_MS`.
    pub fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        let deadline = Clock::now() + Duration::from_millis(u64::from(self.close_ms));
        self.progress_while(deadline, |engine| engine.machine.is_receiving());
        self.post(Command::Close);
        self.progress_while(deadline, |engine| engine.machine.has_undelivered());
        self.drain_before_close();
        self.sample(Clock::now());
        self.trace = None;
        let state = self.state();
        if let Some(stats) = self.stats.take() {
            stats.close(self.machine.counters(), &state);
        }
        self.link.close();
    }

    /// The end of [`Engine::close`]: waits for receivers of completed sends. A receiver may compute for an hour first.
    fn drain_before_close(&mut self) {
        let undelivered = self.machine.undelivered_completed();
        if undelivered == 0 {
            return;
        }
        let (who, warn) = (own_name(), self.warn.unwrap_or(|_| ()));
        warn(&format!(
            "{who} waits to close: live receivers have not taken {undelivered} of the messages that it has sent"
        ));
        while self.machine.undelivered_completed() > 0 {
            if self.progress() == 0 {
                self.pause();
            }
        }
        warn(&format!("{who} closes: the receivers of those messages have taken them, closed or died"));
    }

    /// Yields the core, for callers that wait in their own way.
    pub fn yield_core(&mut self) {
        weir_link::cores::yield_now();
        self.after_pause(None);
    }

    fn progress_while(&mut self, deadline: Clock, condition: impl Fn(&Engine<L>) -> bool) {
        while condition(self) && Clock::now() < deadline {
            if self.progress() == 0 {
                self.pause();
            }
        }
    }

    fn sleep(&mut self, at_most_ns: u64) {
        // No acknowledgement will join the pending ones while we sleep, so they leave now.
        if self.machine.has_pending_acks() {
            self.idle_polls = 0;
            self.handle(Event::Idle);
        }
        let at_most_ns = match self.machine.next_deadline() {
            Some(deadline) => at_most_ns.min(deadline.since_ns(self.clock())),
            None => at_most_ns,
        };
        // A lane that becomes free is announced. A place in a full queue that becomes free is not.
        let at_most_ns = if self.connecting.is_empty() { at_most_ns } else { at_most_ns.min(LANE_POLL_NS) };
        if at_most_ns > 0 {
            self.link.sleep(at_most_ns);
        }
    }

    /// Lets the machine act on its deadline if that has passed. Returns 1 if that changed something. A peer that is
    /// still not ready is no reason to stay awake.
    #[cold]
    fn handle_deadline(&mut self, deadline: Instant) -> usize {
        self.now = self.clock();
        if self.now < deadline {
            return 0;
        }
        let refused = self.machine.counters().rnr_naks;
        self.handle(Event::Deadline);
        usize::from(self.machine.counters().rnr_naks == refused || self.machine.next_deadline().is_none())
    }

    fn after_pause(&mut self, yielded: Option<Clock>) {
        self.allow_yield();
        let now = Clock::now();
        self.waiting.resumed(yielded, now);
        self.check_peers_if_due(now);
    }

    /// Returns whether the packet was an unexpected message.
    #[inline(always)]
    fn packet_arrived(&mut self, from: Peer, sink: &mut impl CompletionSink) -> bool {
        match self.machine.try_arrival(from, self.link.polled()) {
            Some(FastArrival::Message { received, credits_due }) => {
                self.complete_receive(from, received, credits_due, sink);
                false
            }
            Some(FastArrival::Credits { credits_due }) => {
                self.link.retire();
                if credits_due {
                    self.send_due_credits(from);
                }
                false
            }
            None => self.packet_slow_path(from),
        }
    }

    #[inline(never)]
    fn packet_slow_path(&mut self, from: Peer) -> bool {
        if let Some(arrival) = self.machine.try_unexpected_arrival(from, self.link.polled()) {
            self.store_unexpected(from, arrival);
            return true;
        }
        let packet = *self.link.polled();
        self.arrived_slow_path(Arrival::Packet { from, packet });
        false
    }

    /// Completes a receive whose message has arrived whole.
    #[inline(always)]
    fn complete_receive(
        &mut self,
        from: Peer,
        received: ReceivedMessage,
        credits_due: bool,
        sink: &mut impl CompletionSink,
    ) {
        let ReceivedMessage { request, envelope, bytes } = received;
        let Engine { operations, link, completions, .. } = self;
        // Only receives of one message take the fast path.
        let operation = Operation::Receive;
        let (post, space, buffer) = operations.end_with(request, |outstanding| {
            if bytes > 0 {
                link.copy_payload(&outstanding.memory, 0, bytes);
            }
            (outstanding.post, outstanding.space, outstanding.memory.contiguous_address().unwrap_or(0))
        });
        let outcome = Outcome::Received { envelope, bytes, offset: 0, last: true };
        offer(completions, Completion { post, operation, space, outcome, buffer }, sink);
        self.link.retire();
        if credits_due {
            self.send_due_credits(from);
        }
    }

    /// Stores the payload of an unexpected message that has arrived whole.
    #[inline]
    fn store_unexpected(
        &mut self,
        from: Peer,
        UnexpectedArrival { message, bytes, credits_due }: UnexpectedArrival,
    ) {
        if bytes > 0 {
            self.unexpected_buffers.allocate(message, bytes);
            self.link.copy_payload(&self.unexpected_buffers.memory(message), 0, bytes);
        }
        self.link.retire();
        if credits_due {
            self.send_due_credits(from);
        }
    }

    /// Returns credits to `peer` that a packet on the fast path has made due.
    #[inline(never)]
    fn send_due_credits(&mut self, peer: Peer) {
        let mut actions = std::mem::take(&mut self.actions);
        self.machine.send_due_credits(self.now, peer, &mut actions);
        self.perform_all(actions);
    }

    #[inline(never)]
    fn arrived_slow_path(&mut self, arrival: Arrival) {
        if self.machine.backlogged() > 0 {
            self.now = self.clock(); // the packet may end a stall, which is measured
        }
        match arrival {
            Arrival::Packet { from, packet } => {
                if let Body::Finished { transfer: first, count, .. } = packet.body {
                    let ended = |transfer: Transfer| transfer.0.wrapping_sub(first.0) < count;
                    self.sent_rts.retain(|&(peer, transfer)| peer != from || !ended(transfer));
                }
                if let Body::Rendezvous { address, length, .. } = packet.body {
                    self.read_ahead.rts_arrived(from, address, length);
                }
                self.handle(Event::Arrived { from, packet });
            }
            Arrival::Attached { lane, address, quota, epoch } => {
                let peer = self.peer(&address);
                self.link.accept(lane, peer);
                let Quota { data_slots: quota_slots, start_slots, .. } = quota;
                self.handle(Event::Attached { peer, quota_slots, start_slots, epoch });
            }
            Arrival::DetachRequested { by } => self.handle(Event::DetachRequested { peer: by }),
            Arrival::Malformed { from } => {
                self.handle(Event::Lost { peer: from, fault: PeerFault::Malformed });
            }
        }
    }

    #[inline]
    pub(crate) fn post(&mut self, command: Command) {
        self.check_calling_thread();
        self.handle(Event::Posted(command));
    }

    #[inline]
    fn handle(&mut self, event: Event) {
        let mut actions = std::mem::take(&mut self.actions);
        self.machine.handle(self.now, event, &mut actions);
        self.perform_all(actions);
    }

    /// Performs `actions` and those that follow from them. The list is reused.
    fn perform_all(&mut self, mut actions: Vec<Action>) {
        loop {
            for action in &actions {
                self.perform(action);
            }
            actions.clear();
            let Some(event) = self.events.pop_front() else { break };
            self.machine.handle(self.now, event, &mut actions);
        }
        self.actions = actions;
    }

    #[inline]
    fn perform(&mut self, action: &Action) {
        match *action {
            Action::Transmit { to, ref packet, payload } => self.transmit(to, packet, payload),
            Action::Complete { request, ref outcome } => self.complete(request, outcome),
            Action::Retire => self.link.retire(),
            Action::Place { to, bytes } => self.place(to, bytes),
            Action::AllocateUnexpected { message, bytes } => self.unexpected_buffers.allocate(message, bytes),
            Action::Deliver { message, request, offset, bytes } => {
                let outstanding = self.operations.get(request).expect("matched receives are outstanding");
                self.unexpected_buffers.memory(message).copy_to(0, bytes, &outstanding.memory, offset);
            }
            Action::FreeUnexpected { message } => self.unexpected_buffers.free(message),
            Action::FillBounce { transfer, request } => {
                let outstanding =
                    self.operations.get(request).expect("sends with bounce buffers are outstanding");
                self.bounce_buffers.add(bounce_buffer_number(transfer), &outstanding.memory);
            }
            Action::FreeBounce { transfer } => {
                self.bounce_buffers_freed += 1;
                self.bounce_buffers.free(bounce_buffer_number(transfer));
            }
            Action::Connect { to } => {
                let address = self.address_of(to);
                match self.link.connect(to, &address) {
                    Ok(Some(lease)) => self.events.push_back(connected(to, lease)),
                    Ok(None) => self.connecting.push(to),
                    Err(fault) => self.unreachable.push((to, fault)),
                }
            }
            Action::Disconnect { to } => {
                self.awaiting_room.retain(|waiting| *waiting != to);
                self.link.disconnect(to);
            }
            Action::FreeLane { peer } => self.link.release(peer),
            Action::AskRoom { to, at_once } => match self.link.newly_free_slots(to) {
                0 if !at_once => self.awaiting_room.push(to),
                slots => {
                    if slots == 0 {
                        self.now = self.clock(); // a timer starts
                    }
                    self.events.push_back(Event::Room { peer: to, slots });
                }
            },
            Action::Copy { transfer, request, peer, direction, address, offset, bytes } => {
                let outstanding = self.operations.get(request).expect("copies serve outstanding operations");
                let receives = matches!(outstanding.operation, Operation::Receive) && offset == 0;
                let taken = receives
                    && Engine::read_rendezvous(
                        &mut self.link,
                        &mut self.read_ahead,
                        peer,
                        address,
                        outstanding,
                        bytes,
                    );
                let result = if taken {
                    Ok(())
                } else {
                    match self.link.copy(peer, direction, address, &outstanding.memory, offset, bytes) {
                        Ok(CopyStatus::Pending) => return self.copying.push((peer, transfer)),
                        Ok(CopyStatus::Done) => Ok(()),
                        Err(fault) => Err(fault),
                    }
                };
                self.events.push_back(Event::CopyDone { transfer, result });
            }
            Action::DropPeer { peer } => {
                self.awaiting_room.retain(|waiting| *waiting != peer);
                self.connecting.retain(|connecting| *connecting != peer);
                self.sent_rts.retain(|(receiver, _)| *receiver != peer);
                self.copying.retain(|(copying, _)| *copying != peer);
                self.read_ahead.forget(peer);
                self.link.forget(peer);
            }
            Action::Notify { from, data, bytes } => {
                let operation = Operation::RemoteWrite;
                let envelope = weir_proto::Envelope { from, tag: 0, data: Some(data), length: bytes };
                let outcome = Outcome::Received { envelope, bytes, offset: 0, last: true };
                let (post, space) = (Post::default(), Space::Untagged);
                self.completions.push_back(Completion { post, operation, space, outcome, buffer: 0 });
            }
        }
    }

    #[inline]
    fn transmit(&mut self, to: Peer, packet: &Packet, payload: Source) {
        if let Body::Rendezvous { .. } | Body::Located { refused: false, .. } = packet.body {
            let packet = self.with_address(*packet, payload);
            if let Body::Rendezvous { length: COOPERATIVE_COPY_BYTES.., address: 1.., transfer, .. } =
                packet.body
            {
                self.sent_rts.push_back((to, transfer));
            }
            return transmit_out_of_line(&mut self.link, to, &packet, None);
        }
        if let Source::Bounce { transfer, offset } = payload {
            let copy = self.bounce_buffers.memory(bounce_buffer_number(transfer));
            return transmit_out_of_line(&mut self.link, to, packet, Some((&copy, offset)));
        }
        let Engine { link, operations, regions, .. } = self;
        let from = match payload {
            _ if packet.payload_bytes == 0 => None,
            Source::None | Source::Bounce { .. } => None,
            Source::Request { request, offset } => {
                operations.get(request).map(|outstanding| (&outstanding.memory, offset))
            }
            Source::Region { key, offset } => regions.get(&key).map(|memory| (memory, offset)),
        };
        transmit_out_of_line(link, to, packet, from);
    }

    /// The packet with the address of our memory that it announces.
    fn with_address(&self, mut packet: Packet, payload: Source) -> Packet {
        match &mut packet.body {
            Body::Rendezvous { address, .. } => *address = self.rts_address(payload),
            Body::Located { key, offset, address, .. } => {
                // The machine has checked the bounds. A region is contiguous.
                let start = self.regions.get(key).and_then(UserMemory::contiguous_address);
                *address = start.map_or(0, |start| (start as u64).wrapping_add(*offset));
            }
            _ => {}
        }
        packet
    }

    /// Where a peer may read the payload of a rendezvous; 0 where it may not.
    fn rts_address(&self, payload: Source) -> u64 {
        match payload {
            Source::Request { request, .. } if self.cross_memory => {
                self.memory_of(request).and_then(UserMemory::contiguous_address).unwrap_or(0) as u64
            }
            Source::Bounce { transfer, .. } if self.cross_memory => {
                self.bounce_buffers.memory(bounce_buffer_number(transfer)).contiguous_address().unwrap_or(0)
                    as u64
            }
            _ => 0,
        }
    }

    #[inline]
    fn memory_of(&self, request: Request) -> Option<&UserMemory> {
        self.operations.get(request).map(|outstanding| &outstanding.memory)
    }

    #[inline]
    fn place(&mut self, to: Destination, bytes: u64) {
        match to {
            Destination::Request { request, offset } => {
                let outstanding = self.operations.get(request).expect("matched receives are outstanding");
                self.link.copy_payload(&outstanding.memory, offset, bytes);
            }
            Destination::Message { message, offset } => {
                self.link.copy_payload(&self.unexpected_buffers.memory(message), offset, bytes);
            }
            Destination::Region { key, offset } => {
                self.link.copy_payload(
                    self.regions.get(&key).expect("the machine checked the key"),
                    offset,
                    bytes,
                );
            }
        }
    }

    #[inline]
    fn complete(&mut self, request: Request, outcome: &Outcome) {
        let outstanding = self.operations.get(request).expect("completed operations are outstanding");
        let buffer = match outcome {
            Outcome::Received { offset, .. } => {
                outstanding.memory.contiguous_address().map_or(0, |start| start + *offset as usize)
            }
            _ => 0,
        };
        let (post, operation, space) = (outstanding.post, outstanding.operation, outstanding.space);
        self.completions.push_back(Completion { post, operation, space, outcome: *outcome, buffer });
        if !matches!(outcome, Outcome::Received { last: false, .. }) {
            self.operations.end(request);
        }
    }

    /// Reports unreachable peers as lost. Called when everything that has arrived is handled.
    #[cold]
    fn report_unreachable(&mut self) -> usize {
        let unreachable = std::mem::take(&mut self.unreachable);
        for &(peer, fault) in &unreachable {
            // If we know the peer, we distinguish an orderly close from a crash.
            let fault = match self.link.liveness(&self.address_of(peer)) {
                Liveness::Closed => PeerFault::Closed,
                Liveness::Dead => PeerFault::Died,
                _ => fault,
            };
            self.handle(Event::Lost { peer, fault });
        }
        unreachable.len()
    }

    /// Helps receivers of our messages with their cooperative copies. Returns how many copies got help.
    fn help_cooperative_copies(&mut self) -> usize {
        let mut helped = 0;
        for _ in 0..self.sent_rts.len().min(MAX_COOPERATIVE_COPY_POLLS) {
            let Some(rendezvous) = self.sent_rts.pop_front() else { break };
            helped += usize::from(self.link.help_copy(rendezvous.0));
            self.sent_rts.push_back(rendezvous);
        }
        helped
    }

    /// Polls the cooperative copies in which a peer takes part. Returns how many have ended.
    fn poll_copies(&mut self) -> usize {
        let (mut found, mut index) = (0, 0);
        while let Some(&(peer, transfer)) = self.copying.get(index) {
            let Some(result) = self.link.copy_result(peer) else {
                index += 1;
                continue;
            };
            found += 1;
            index = 0; // handling the event may change the list
            self.copying.retain(|&ended| ended != (peer, transfer));
            self.now = self.clock();
            self.handle(Event::CopyDone { transfer, result });
        }
        found
    }

    fn poll_room(&mut self) -> usize {
        let mut found = 0;
        for peer in std::mem::take(&mut self.awaiting_room) {
            match self.link.newly_free_slots(peer) {
                0 => self.awaiting_room.push(peer),
                slots => {
                    found += 1;
                    self.now = self.clock();
                    self.handle(Event::Room { peer, slots });
                }
            }
        }
        found
    }

    /// Polls the lanes that we wait for. Returns how many are ours now.
    fn poll_lanes(&mut self) -> usize {
        let mut found = 0;
        for peer in std::mem::take(&mut self.connecting) {
            let address = self.address_of(peer);
            match self.link.connect(peer, &address) {
                Ok(None) => self.connecting.push(peer),
                Ok(Some(lease)) => {
                    found += 1;
                    self.now = self.clock();
                    self.handle(connected(peer, lease));
                }
                Err(fault) => self.unreachable.push((peer, fault)),
            }
        }
        found
    }

    /// Does the periodic work: samples, counters, trimming of memory, stalls, dead peers. Returns how many peers were
    /// lost.
    fn check_peers_if_due(&mut self, now: Clock) -> usize {
        if self.trace.as_ref().is_some_and(|trace| trace.is_due(now)) {
            self.sample(now);
        }
        if now.duration_since(self.peers_checked_at) < PEER_CHECK_INTERVAL {
            return 0;
        }
        self.peers_checked_at = now;
        self.now = self.clock();
        self.write_counters();
        self.link.maintain(self.idle_bytes);
        self.unexpected_buffers.trim();
        self.bounce_buffers.trim();
        self.watch_stalls();
        let mut peers = self.link.overdue_peers();
        self.machine.depends_on(|peer| peers.push(peer));
        peers.sort_unstable();
        peers.dedup();
        let mut lost = 0;
        for peer in peers {
            if self.machine.fault(peer).is_some() {
                continue;
            }
            let address = self.address_of(peer);
            let fault = match self.link.liveness(&address) {
                Liveness::Alive => continue,
                Liveness::Closed => PeerFault::Closed,
                Liveness::Dead => PeerFault::Died,
                Liveness::Unknown | Liveness::Refused => PeerFault::Unreachable,
            };
            // Packets that the peer sent while it lived are still valid.
            self.unreachable.push((peer, fault));
            lost += 1;
        }
        lost
    }
}
