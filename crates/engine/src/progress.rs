//! Progress: passes what happens to the endpoint machine, and decides what to do when nothing happens.
//!
//! [`Engine::progress`] polls the link. It also looks for room at peers, lanes, ended copies and expired timers, and
//! helps with cooperative copies. It never sleeps. [`Engine::pause`] and [`Engine::wait`] wait when a call of
//! `progress` found nothing: they spin, yield or sleep.
//!
//! All periodic work of an endpoint is here too (`check_peers_if_due`), done where the clock is read anyway. It takes
//! samples of the trace, writes the counter page, reclaims idle lanes, trims buffers, watches stalls, counts the ranks
//! of the node, and checks that peers are alive.
//!
//! A provider calls [`Engine::before_post`], [`Engine::after_empty_read`] and [`Engine::after_successful_read`] around
//! posts and reads of the program: they may poll once more, and mark redundant yields.

use std::time::{Duration, Instant as Clock};

use weir_link::sched_yield;
use weir_link::{Arrival, LaneLease, Link, Polled, Quota};
use weir_proto::{Command, Event, Machine, Peer};

use crate::driver::{EventDriver, connected};
use crate::io::{Io, LaneWork};
use crate::waiting::{MAX_GAP_TICKS, Pause};
use crate::{CompletionSink, Engine, NullSink};

/// Most arrivals that one call handles. The bound keeps completions from waiting.
const BATCH: usize = 64;
/// Interval at which the engine checks that peers it depends on are alive. It reports a dead peer within a second,
/// unless it depends on more than 256 peers (`peer_checks.rs`).
pub(crate) const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Calls of `progress` between two reads of the clock, for programs that never wait. Such programs may call only a
/// thousand times a second, so the number is small. A read of the clock costs some 25 ns.
const POLLS_PER_CLOCK_READ: u32 = 1 << 8;
/// Most yields that are skipped in a row after successful reads.
const MAX_SKIPPED_YIELDS: u32 = 256;
/// Most large sends that one call checks for a cooperative copy.
const MAX_COOPERATIVE_COPY_POLLS: usize = 4;
/// Calls of `progress` in a row that find nothing before the endpoint machine gets [`Event::Idle`]. A program makes
/// fewer between two receives.
const IDLE_POLLS: u32 = 16;

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
            && let Some(polled) = self.io.link.poll_into(&mut self.packet)
        {
            handled += 1;
            match polled {
                Polled::Packet { from } => {
                    let unexpected_before = self.machine.unexpected_count();
                    let driver = EventDriver { io: &mut self.io, sink, posted: None };
                    let arrived = Event::Arrived { from, packet: &self.packet };
                    self.machine.handle(arrived, driver).expect("arrivals are not refused");
                    if self.io.has_aftermath {
                        self.after_event();
                    }
                    let was_unexpected = self.machine.unexpected_count() > unexpected_before;
                    if was_unexpected && sink.has_unread_receives() {
                        break;
                    }
                }
                Polled::Other(arrival) => self.lane_event(*arrival),
            }
        }
        if handled > 0 {
            self.new_arrivals = true;
            self.waiting.reset();
            self.read_spin.arrived();
            self.idle_polls = 0;
        }
        self.progress_calls = self.progress_calls.wrapping_add(1);
        let waiting = self.io.awaits_other_events();
        let reads_clock = self.progress_calls.is_multiple_of(POLLS_PER_CLOCK_READ);
        if waiting || reads_clock || self.waits_for_time() {
            return self.progress_slow_path(handled, waiting, reads_clock);
        }
        handled
    }

    /// The part of [`Engine::progress`] that most calls skip: events that are no packets, and periodic checks.
    ///
    /// - `handled`: events of this call so far. The result includes them.
    /// - `waiting`: whether peers or transfers wait for such events.
    /// - `reads_clock`: whether this call reads the clock.
    #[inline(never)]
    fn progress_slow_path(&mut self, mut handled: usize, waiting: bool, reads_clock: bool) -> usize {
        if waiting || !self.io.timers.is_empty() {
            handled += self.poll_non_packet_events();
        }
        if reads_clock {
            self.check_peers_if_due(Clock::now());
        }
        if handled > 0 {
            self.waiting.reset();
            self.idle_polls = 0;
        } else if self.machine.waits_for_idle() {
            self.idle_polls += 1;
            if self.idle_polls >= IDLE_POLLS {
                self.idle_polls = 0;
                self.handle(Event::Idle);
            }
        }
        handled
    }

    /// Polls for events that are no packets: room, lanes, copies, timers.
    #[cold]
    fn poll_non_packet_events(&mut self) -> usize {
        let mut found = 0;
        if !self.io.awaiting_room.is_empty() {
            found += self.poll_room();
        }
        if !self.io.lane_work.is_empty() {
            found += self.do_lane_work();
        }
        if self.io.cooperative_sends.count() > 0 {
            found += self.help_cooperative_copies();
        }
        if self.io.copies.outstanding() > 0 {
            found += self.poll_copies();
        }
        if let Some(earliest) = self.io.timers.earliest() {
            found += self.handle_timers(earliest);
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
        if self.oversubscribed && may_poll && self.io.completions.is_empty() && !self.machine.has_unexpected()
        {
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
        self.read_spin.begin(weir_link::cores::ticks)
            && !self.io.awaits_other_events()
            && !self.waits_for_time()
            && self.spin_until_arrival()
    }

    /// Whether the spin that [`Engine::spin_for_arrival`] has begun continues, after another poll that found nothing. A network
    /// knows only after a look whether something has arrived.
    #[inline]
    pub fn continues_spin(&mut self) -> bool {
        self.waiting.is_spinning()
            && !self.read_spin.is_over(weir_link::cores::ticks())
            && self.spin_until_arrival()
    }

    #[inline(never)]
    fn spin_until_arrival(&mut self) -> bool {
        while !self.io.link.may_have_arrivals() {
            std::hint::spin_loop();
            if self.read_spin.is_over(weir_link::cores::ticks()) {
                return false;
            }
        }
        true
    }

    /// Called when a read of the program found nothing and [`Engine::progress`] returned 0. Spins, yields or sleeps,
    /// depending on how often that has happened in a row and on how the ranks share the cores.
    #[inline]
    pub fn pause(&mut self) {
        // A credit does not end a wait for a lane or for an RNR timer.
        let wakes = self.io.lane_work.is_empty() && self.io.timers.is_empty();
        let pause = if self.oversubscribed && self.machine.backlogged() > 0 && wakes {
            self.waiting.pause_for_credit(sched_yield::has_just_yielded(MAX_GAP_TICKS), Clock::now)
        } else {
            self.waiting.pause(Clock::now)
        };
        match pause {
            Pause::Spin => std::hint::spin_loop(),
            // The caller did something else and does not wait. Its peers may still die.
            Pause::CallerWasBusy { now } => self.return_at_once(now),
            Pause::Yield { .. } | Pause::Sleep { .. } if !self.caller_may_wait() => self.let_caller_work(),
            Pause::Yield { now } => {
                weir_link::cores::yield_now();
                self.after_pause(Some(now));
            }
            Pause::Sleep { .. } if self.must_poll() || self.is_watched() => {
                weir_link::cores::yield_now();
                self.after_pause(None);
            }
            Pause::Sleep { at_most_ns } => {
                self.sleep(at_most_ns);
                self.after_pause(None);
            }
        }
    }

    /// [`Engine::pause`] of a caller that waits for a step of all others and stays awake. It yields where the other one sleeps:
    /// each wake-up costs a peer a part of its time, and the peers are in the same step.
    pub fn pause_awake(&mut self) {
        match self.waiting.pause(Clock::now) {
            Pause::Spin => std::hint::spin_loop(),
            Pause::CallerWasBusy { now } => self.return_at_once(now),
            Pause::Yield { .. } | Pause::Sleep { .. } => {
                let began = Clock::now();
                weir_link::cores::yield_now();
                self.after_pause(Some(began));
            }
        }
    }

    /// The caller waits for nothing from here, so it probably works. With more ranks than cores it yields the core in some
    /// laps only: a process that computes keeps the core for milliseconds. So the yields of its MPI library are skipped.
    fn let_caller_work(&mut self) {
        if !self.oversubscribed {
            return self.return_at_once(Clock::now());
        }
        if self.laps.yields() {
            weir_link::cores::yield_now();
            self.restart_lap();
        }
        if self.skips_yields {
            sched_yield::skip_next_yield(self.single_threaded);
        }
        self.check_peers_if_due(Clock::now());
    }

    /// The end of a pause that does not delay its caller.
    fn return_at_once(&mut self, now: Clock) {
        self.allow_yield();
        self.check_peers_if_due(now);
    }

    /// Sleeps until something arrives or a timer expires, at most `at_most_ns`; for blocking reads.
    pub fn wait(&mut self, at_most_ns: u64) {
        self.sleep_or_yield(at_most_ns);
        self.after_pause(None);
    }

    /// Sleeps, or yields the core if nothing would wake us.
    pub(crate) fn sleep_or_yield(&mut self, at_most_ns: u64) {
        if self.must_poll() || self.is_watched() {
            weir_link::cores::yield_now();
        } else {
            self.sleep(at_most_ns);
        }
    }

    /// Whether we wait for a change in a peer's memory. No packet shows it, so nothing would wake us. Or a copy of a link that
    /// would wake us ends soon.
    pub(crate) fn must_poll(&mut self) -> bool {
        if self.io.copies.outstanding() == 0 {
            return !self.io.awaiting_room.is_empty();
        }
        let link_polls = self.io.link.remote_memory().is_some_and(|remote| remote.must_poll());
        link_polls || !self.io.awaiting_room.is_empty()
    }

    /// Yields the core, for callers that wait in their own way.
    pub fn yield_core(&mut self) {
        weir_link::cores::yield_now();
        self.after_pause(None);
    }

    fn sleep(&mut self, at_most_ns: u64) {
        self.send_deferred_acks();
        let at_most_ns = self.time_to_deadline(at_most_ns);
        match self.io.link.wake_up() {
            Some(wake_up) if at_most_ns > 0 => {
                self.node.sleeps();
                wake_up.sleep(at_most_ns);
                self.node.wakes();
            }
            Some(_) => {}
            None => weir_link::cores::yield_now(),
        }
    }

    fn after_pause(&mut self, yielded: Option<Clock>) {
        self.allow_yield();
        let now = Clock::now();
        let shared_cores = self.waiting.shares_cores();
        self.waiting.resumed(yielded, now);
        if shared_cores != self.waiting.shares_cores() {
            self.ranks_have_changed();
        }
        self.restart_lap();
        self.check_peers_if_due(now);
    }

    /// A lane of our mailbox has changed.
    #[inline(never)]
    fn lane_event(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Packet { .. } => unreachable!("packets are polled into place"),
            Arrival::Attached { lane, address, lease } => {
                let peer = self.peer(&address);
                self.io.link.accept(lane, peer);
                if self.machine.fault(peer).is_some() {
                    return self.io.link.forget(peer); // the link has not known that it was lost
                }
                self.io.lanes_are_scarce |= lease.wanted;
                self.begin_path(peer, &lease);
                let LaneLease { quota, epoch, .. } = lease;
                let Quota { data_slots: quota_slots, start_slots, .. } = quota;
                self.handle(Event::Attached { peer, quota_slots, start_slots, epoch });
            }
            Arrival::DetachRequested { by } => self.detach_requested(by),
            Arrival::Ready { peer } => self.handle(Event::LinkReady { peer }),
            Arrival::Acknowledged { peer, packets } => {
                let Io { deliveries, completions, .. } = &mut self.io;
                deliveries.acknowledged(peer, packets, completions);
            }
            Arrival::Lost { peer, fault } => self.handle(Event::Lost { peer, fault }),
        }
    }

    /// Tells the endpoint machine the slots of the path to `peer`, before a lease begins there.
    fn begin_path(&mut self, peer: Peer, lease: &LaneLease) {
        if lease.geometry != self.io.geometry {
            self.handle(Event::PathGeometry { peer, geometry: lease.geometry });
        }
    }

    /// Posts a command that cannot be refused.
    #[inline]
    pub(crate) fn post(&mut self, command: Command) {
        self.handle(Event::Posted(command));
    }

    pub(crate) fn handle(&mut self, event: Event<'_>) {
        self.drive(event);
        if self.io.has_aftermath {
            self.after_event();
        }
    }

    /// Passes an event other than a packet or an operation to the endpoint machine.
    #[inline(never)]
    fn drive(&mut self, event: Event<'_>) {
        let driver = EventDriver { io: &mut self.io, sink: &mut NullSink, posted: None };
        self.machine.handle(event, driver).expect("only operations are refused");
    }

    /// Handles the events that calls of the endpoint machine have caused, and those that they cause. An injected
    /// operation that is still outstanding then gets a buffer of its own.
    #[inline(never)]
    pub(crate) fn after_event(&mut self) {
        while let Some(event) = self.io.events.pop_front() {
            self.drive(event);
        }
        if let Some(request) = self.io.held_injected.take()
            && let Some(outstanding) = self.io.operations.get_mut(request)
            && outstanding.memory.bytes() > 0
        {
            outstanding.use_bounce_buffer();
        }
        if !self.io.lost_messages.is_empty() {
            self.report_lost_messages();
        }
        self.io.has_aftermath = false;
    }

    /// Helps receivers of our messages with their cooperative copies. Returns how many copies got help.
    fn help_cooperative_copies(&mut self) -> usize {
        let Io { link, cooperative_sends, .. } = &mut self.io;
        let Some(remote) = link.remote_memory() else { return 0 };
        let polls = cooperative_sends.count().min(MAX_COOPERATIVE_COPY_POLLS);
        let peers = std::iter::from_fn(|| cooperative_sends.next_peer()).take(polls);
        peers.filter(|&peer| remote.help_copy(peer)).count()
    }

    fn poll_room(&mut self) -> usize {
        let mut found = 0;
        for peer in std::mem::take(&mut self.io.awaiting_room) {
            match self.io.newly_free_slots(peer) {
                0 => self.io.awaiting_room.push(peer),
                slots => {
                    found += 1;
                    self.handle(Event::Room { peer, slots });
                }
            }
        }
        found
    }

    /// Does the work on lanes at peers. Returns how many lanes that we waited for are ours now.
    fn do_lane_work(&mut self) -> usize {
        let mut found = 0;
        for work in std::mem::take(&mut self.io.lane_work) {
            match work {
                LaneWork::Connect(peer) => {
                    let address = self.address_of(peer);
                    match self.io.link.connect(peer, &address) {
                        None => self.io.lane_work.push(work),
                        Some(lease) => {
                            found += 1;
                            self.begin_path(peer, &lease);
                            self.handle(connected(peer, lease));
                            if lease.wanted {
                                self.detach_for_others(peer);
                            }
                        }
                    }
                }
                LaneWork::ReturnCredits(peer) => self.handle(Event::CreditsDue { peer }),
                LaneWork::Detach(peer) => self.detach_for_others(peer),
            }
        }
        found
    }

    /// Detaches from a lane that others want, after everything that could leave. It also takes acknowledgements that
    /// wait for company: otherwise they would need a turn of their own.
    fn detach_for_others(&mut self, peer: Peer) {
        if self.machine.waits_for_idle() {
            self.handle(Event::Idle);
        }
        self.handle(Event::DetachRequested { peer });
    }

    /// `peer` asks us to detach. Deferred credits leave first: behind the `Detach` they would need another lease.
    fn detach_requested(&mut self, peer: Peer) {
        let credits = LaneWork::ReturnCredits(peer);
        if self.io.lane_work.contains(&credits) {
            self.io.lane_work.retain(|&work| work != credits);
            self.handle(Event::CreditsDue { peer });
        }
        self.handle(Event::DetachRequested { peer });
    }

    /// Does the periodic work: samples, counters, trimming of memory, stalls, checks of peers. Lost peers are arrivals.
    pub(crate) fn check_peers_if_due(&mut self, now: Clock) {
        if self.trace.as_ref().is_some_and(|trace| trace.is_due(now)) {
            self.sample(now);
        }
        if now.duration_since(self.peers_checked_at) < PEER_CHECK_INTERVAL {
            return;
        }
        self.peers_checked_at = now;
        if self.node.look() {
            self.ranks_have_changed();
        }
        self.write_counters();
        if let Some(lanes) = self.io.link.lane_reclamation() {
            lanes.maintain(self.idle_bytes);
        }
        self.io.unexpected_buffers.trim();
        self.io.bounce_buffers.trim();
        self.watch_stalls();
        let Engine { machine, io, peer_checks, .. } = self;
        let mut peers = peer_checks.next(|peers| {
            machine.depends_on(|peer| peers.push(peer));
            io.offload.depends_on(|peer| peers.push(peer));
        });
        peers.sort_unstable();
        peers.dedup();
        for peer in peers {
            if machine.fault(peer).is_none() {
                io.link.check_peer(peer, io.peers.address(peer.0).expect("peers are numbered here"));
            }
        }
    }
}
