//! The watcher of an endpoint: a thread that sleeps until a packet arrives, while the program sleeps elsewhere or computes.
//!
//! The provider starts one if a program wants a file descriptor for a queue, or automatic progress, and decides what it
//! does when it is woken. This file knows neither descriptors nor domains. Without a watcher nothing here costs
//! anything, and senders never notice one: they wake it as they wake a sleeping endpoint.
//!
//! ```text
//! provider   Engine::start_watcher(on_wake)      the watcher sleeps at the doorbell of the link
//! program    Engine::begin_sleep: true   nothing has arrived; the next arrival wakes the watcher
//! sender     transmit                    wakes the watcher, which calls on_wake
//! ```
//! Some events have no sender that wakes: timers, and the check that peers are alive. `begin_sleep` gives the watcher a
//! deadline for them. What begins later, by a post of another thread, wakes the watcher at once. The deadline is stored before the sleep is announced, and the watcher looks at the sleep before it
//! reads the deadline. So it sees the deadline of every sleep that it has seen, and the change of the doorbell's word
//! ends its wait for an older one. A watcher that already waits is woken if its deadline comes earlier.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Clock};

use weir_link::cores::spawn_without_signals;
use weir_link::{Link, Look, Sleeper};

use crate::Engine;
use crate::progress::PEER_CHECK_INTERVAL;
use weir_proto::{Event, Machine};

/// Longest sleep of a watcher. It is woken before in all cases that matter. Unit: ns.
const LONGEST_SLEEP_NS: u64 = 10_000_000_000;
/// Time between two attempts to get a lane at a peer, if nobody announces that there is one. Unit: ns.
const LANE_WORK_NS: u64 = 1_000_000;
/// No deadline.
const NEVER: u64 = u64::MAX;
/// Time between two attempts to wake a watcher that shall end. It may have been about to wait at the first one.
const STOP_INTERVAL: Duration = Duration::from_micros(100);

/// What an endpoint and its watcher share.
pub(crate) struct Shared {
    sleeper: Arc<dyn Sleeper>,
    /// The watcher calls `on_wake` then. Unit: ns since `start`.
    deadline_ns: AtomicU64,
    stop: AtomicBool,
    start: Clock,
}

impl Shared {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// The watcher calls `on_wake` after this time at the latest. Returns whether the deadline is earlier than before.
    pub fn bring_forward(&self, in_ns: u64) -> bool {
        let deadline_ns = self.now_ns().saturating_add(in_ns);
        self.deadline_ns.fetch_min(deadline_ns, Ordering::AcqRel) > deadline_ns
    }

    /// Ends the watcher's sleep, if it sleeps now.
    pub fn wake(&self) {
        self.sleeper.wake();
    }
}

/// A watcher. It ends when this is dropped. Do not hold a lock meanwhile that `on_wake` takes.
pub struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        while !thread.is_finished() {
            self.shared.wake();
            std::thread::sleep(STOP_INTERVAL);
        }
        let _ = thread.join(); // a panic of the watcher has been reported
    }
}

fn run(shared: &Shared, mut on_wake: impl FnMut() -> Option<u64>) {
    let mut reported = Look::default();
    loop {
        let look = shared.sleeper.look(); // before the deadline
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        let deadline_ns = shared.deadline_ns.load(Ordering::Acquire);
        let remaining_ns = deadline_ns.saturating_sub(shared.now_ns());
        let woken = look.is_woken() && look != reported;
        if !woken && remaining_ns > 0 {
            shared.sleeper.sleep_since(look, remaining_ns.min(LONGEST_SLEEP_NS));
            continue;
        }
        if woken {
            reported = look;
        }
        if remaining_ns == 0 {
            // It fails if there is an earlier one now, which is over too.
            let _ =
                shared.deadline_ns.compare_exchange(deadline_ns, NEVER, Ordering::AcqRel, Ordering::Acquire);
        }
        if let Some(in_ns) = on_wake() {
            shared.bring_forward(in_ns);
        }
    }
}

impl<L: Link> Engine<L> {
    /// Starts the watcher of this endpoint. It calls `on_wake` when something arrives during a sleep that
    /// [`Engine::begin_sleep`] has announced, and when a deadline of the endpoint is over. If `on_wake` returns a time,
    /// the next call comes after it at the latest; `first_ns` is that time for the first call. Unit: ns. Calls may be
    /// redundant.
    ///
    /// From now on the endpoint does not sleep in [`Engine::pause`] and [`Engine::wait`]; it yields. `None`: the link
    /// has no place to sleep for another thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start_watcher(
        &mut self,
        name: &str,
        first_ns: Option<u64>,
        on_wake: impl FnMut() -> Option<u64> + Send + 'static,
    ) -> io::Result<Option<Watcher>> {
        let Some(sleeper) = self.io.link.wake_up().and_then(|wake_up| wake_up.sleeper()) else {
            return Ok(None);
        };
        let (deadline_ns, stop) = (AtomicU64::new(first_ns.unwrap_or(NEVER)), AtomicBool::new(false));
        let shared = Arc::new(Shared { sleeper, deadline_ns, stop, start: Clock::now() });
        let inside = Arc::clone(&shared);
        let thread = Some(spawn_without_signals(name, move || run(&inside, on_wake))?);
        self.io.watched = Some(Arc::clone(&shared));
        Ok(Some(Watcher { shared, thread }))
    }

    /// The watcher has ended: the endpoint sleeps itself again.
    pub fn end_watch(&mut self) {
        self.io.watched = None;
        if let Some(wake_up) = self.io.link.wake_up() {
            wake_up.end_sleep();
        }
    }

    /// Whether there is a watcher.
    pub fn is_watched(&self) -> bool {
        self.io.watched.is_some()
    }

    /// Announces that the program sleeps elsewhere, or computes, until the watcher is woken. An earlier announcement
    /// ends. `false`: there is something to do, so make progress first. Always `false` without a watcher.
    pub fn begin_sleep(&mut self) -> bool {
        let Some(watched) = self.io.watched.clone() else { return false };
        self.check_peers_if_due(Clock::now());
        self.send_deferred_acks();
        if self.must_poll() || self.has_completions() {
            return false;
        }
        let mut at_most_ns = self.time_to_deadline(NEVER);
        if at_most_ns == 0 {
            return false;
        }
        if !self.io.lane_work.is_empty() {
            at_most_ns = at_most_ns.min(LANE_WORK_NS);
        }
        if at_most_ns > PEER_CHECK_INTERVAL.as_nanos() as u64 && self.depends_on_peers() {
            at_most_ns = PEER_CHECK_INTERVAL.as_nanos() as u64;
        }
        let earlier = at_most_ns < NEVER && watched.bring_forward(at_most_ns);
        let asleep = self.io.link.wake_up().is_some_and(|wake_up| wake_up.begin_sleep());
        if asleep && earlier {
            watched.wake();
        }
        self.seen_progress_calls = self.progress_calls;
        asleep
    }

    /// Makes the watcher call `on_wake` soon. An announced sleep ends.
    pub fn wake_watcher(&mut self) {
        self.io.wake_watcher();
    }

    /// Call this after a post that may have completed at once, and whose completion waits here: a thread may wait for it.
    #[inline]
    pub fn wake_watcher_for_completions(&mut self) {
        if self.has_completions() {
            self.io.wake_watcher();
        }
    }

    /// Whether [`Engine::progress`] was called since the last call of this function or of [`Engine::begin_sleep`]. A
    /// watcher sees in it that the program makes progress itself.
    pub fn was_polled(&mut self) -> bool {
        std::mem::replace(&mut self.seen_progress_calls, self.progress_calls) != self.progress_calls
    }

    /// Ends the announced sleep, so that senders do not wake the watcher.
    pub fn end_sleep(&mut self) {
        if let Some(wake_up) = self.io.link.wake_up() {
            wake_up.end_sleep();
        }
    }

    /// Whether a peer's death would concern this endpoint.
    fn depends_on_peers(&self) -> bool {
        let mut any = false;
        self.machine.depends_on(|_| any = true);
        self.io.offload.depends_on(|_| any = true);
        any
    }

    /// No acknowledgement will join the pending ones during a sleep, so they leave now. Deferred credits leave one by one.
    pub(crate) fn send_deferred_acks(&mut self) {
        while self.machine.waits_for_idle() {
            self.idle_polls = 0;
            self.handle(Event::Idle);
        }
    }

    /// Time until the endpoint or its link has something to do, at most `at_most_ns`. Unit: ns.
    pub(crate) fn time_to_deadline(&mut self, at_most_ns: u64) -> u64 {
        let at_most_ns = match self.io.timers.earliest() {
            Some(at) => at_most_ns.min(at.since_ns(self.io.clock())),
            None => at_most_ns,
        };
        let now = Clock::now();
        match self.io.link.deadline(now) {
            Some(deadline) => at_most_ns.min(deadline.saturating_duration_since(now).as_nanos() as u64),
            None => at_most_ns,
        }
    }
}
