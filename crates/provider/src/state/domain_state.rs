//! The state of a domain, which the objects that C holds refer to. Also decides when a call polls the endpoints of a
//! queue or counter, and when a waiting caller spins, pauses or sleeps.
//!
//! A domain's endpoints, queues, counters, address vectors and memory regions are one value behind one [`BiasedLock`].
//! A call enters the domain once and finds everything that it needs. So there is no order of locks to get wrong. An
//! object of a domain that C holds has the domain and its index in one of the domain's tables, or the key of its
//! region. A list of all open domains serves the exit handler, and a forked child leaves its parent's domains alone.
//!
//! With `FI_THREAD_DOMAIN` the program promises one thread at a time in a domain, so the domain needs no lock.
//! `FI_THREAD_COMPLETION` promises less, because two queues of a domain may be read at the same time. So it is
//! shared. So is a domain with automatic progress, whose threads enter it too.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use weir_engine::config::Settings;
use weir_link::biased_lock::{BiasedLock, Guard};
use weir_link::memory::UserMemory;

use super::address_vector::AddressVector;
use super::completion_queue::CompletionQueue;
use super::counter::Counter;
use super::cq_writer::DomainQueues;
use super::endpoint::Endpoint;
use super::table::Table;
use crate::errno::Error;

/// Number of threads that may call into a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One at a time, as the program promises.
    Serialised,
    /// Any number.
    Shared,
}

/// Memory that peers may access by a key.
pub struct Region {
    /// The memory.
    pub memory: UserMemory,
    /// Peers may read it.
    pub readable: bool,
    /// Peers may write it.
    pub writable: bool,
}

/// All objects of a domain.
#[derive(Default)]
pub struct State {
    /// Endpoints.
    pub endpoints: Table<Endpoint>,
    /// Completion queues.
    pub queues: Table<CompletionQueue>,
    /// Counters.
    pub counters: Table<Counter>,
    /// Address vectors.
    pub vectors: Table<AddressVector>,
    /// Memory regions.
    pub regions: HashMap<u64, Region>,
    /// The program has posted an operation since it last looked at its other sources of messages. A read must then
    /// poll before it reports new arrivals.
    pub poll_before_report: bool,
    /// Consecutive reads that reported completions without a poll.
    pub reads_without_poll: u32,
    /// The program serialises its calls, and several threads make them.
    pub several_threads: bool,
    /// Some endpoint has a source ([`super::taken_receives`]).
    pub has_sources: bool,
}

/// Bound on [`State::reads_without_poll`], so that arrivals are handled from time to time.
const MAX_READS_WITHOUT_POLL: u32 = 64;

/// The endpoints on which a call makes progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressTarget {
    /// The endpoints bound to a completion queue.
    Queue(usize),
    /// The endpoints bound to a counter.
    Counter(usize),
}

impl State {
    /// Call this after each post. Does nothing after "again", because that caller waits and its next read may sleep.
    #[inline(always)]
    pub fn after_post<R>(&mut self, result: &Result<R, Error>) {
        // Two stores, not a computed value: so the compiler ends a success where it happens, without the checks of errors.
        match result {
            Ok(_) => self.poll_before_report = true,
            Err(error) => self.after_refused_post(*error),
        }
    }

    #[cold]
    #[inline(never)]
    fn after_refused_post(&mut self, error: Error) {
        self.poll_before_report |= error != Error::AGAIN;
    }

    #[inline(always)]
    fn endpoints_of(&self, target: ProgressTarget) -> &[usize] {
        match target {
            ProgressTarget::Queue(index) => &self.queues[index].endpoints,
            ProgressTarget::Counter(index) => &self.counters[index].endpoints,
        }
    }

    /// Makes progress on the endpoints of a queue or counter and writes their completions. Returns the number of
    /// events.
    #[inline(always)]
    pub fn progress(&mut self, target: ProgressTarget) -> usize {
        match *self.endpoints_of(target) {
            [only] => self.progress_endpoint(only),
            _ => self.progress_several(target),
        }
    }

    #[inline(never)]
    fn progress_several(&mut self, target: ProgressTarget) -> usize {
        let mut events = 0;
        for nth in 0..self.endpoints_of(target).len() {
            events += self.progress_endpoint(self.endpoints_of(target)[nth]);
        }
        if self.has_sources
            && let ProgressTarget::Queue(queue) = target
        {
            for nth in 0..self.endpoints_of(target).len() {
                events += self.advance_source(self.endpoints_of(target)[nth]);
            }
            self.forget_idle_sources(queue);
        }
        events
    }

    /// Advances the operations of an endpoint, if it is a source. They may use the engine of the endpoint whose receives
    /// they have taken. Returns the number of those that have ended.
    #[cold]
    pub fn advance_source(&mut self, source: usize) -> usize {
        let State { endpoints, queues, counters, vectors, .. } = self;
        let Some(owner) = endpoints.get_mut(source).and_then(|endpoint| endpoint.source_of()) else {
            return 0;
        };
        let Some([source, owner]) = endpoints.both_mut([source, owner]) else { return 0 };
        let bound = &mut DomainQueues { queues: &mut *queues, counters: &mut *counters };
        let ended = source.taken.advance(owner.engine(), &mut source.bindings, bound);
        // What they have started may have ended operations of the program.
        owner.write_completions(queues, counters, vectors);
        ended
    }

    /// Advances the operations of all sources. Returns the number of those that have ended.
    #[cold]
    pub fn advance_all_sources(&mut self) -> usize {
        let sources: Vec<usize> = self.endpoints.iter_mut().filter_map(|endpoint| endpoint.source).collect();
        sources.into_iter().map(|source| self.advance_source(source)).sum()
    }

    /// Takes the sources without receives from a queue. They come back with the next receive.
    fn forget_idle_sources(&mut self, queue: usize) {
        let State { endpoints, queues, .. } = self;
        queues[queue].endpoints.retain(|&index| !endpoints[index].is_idle_source());
    }

    /// Writes completions if nothing has arrived since the first post after the program last looked at its other
    /// sources of messages. Then none of them can be an answer to a later action of the program. Returns whether the
    /// queue has entries.
    ///
    /// After `MAX_READS_WITHOUT_POLL` such reads in a row, the caller must call [`State::poll_if_overdue`] once it
    /// has read its entries.
    #[inline]
    pub fn write_earlier_completions(&mut self, target: ProgressTarget) -> bool {
        let State { endpoints, queues, counters, vectors, reads_without_poll, .. } = self;
        let ProgressTarget::Queue(queue) = target else { return false };
        let [only] = queues[queue].endpoints[..] else { return false };
        let endpoint = &mut endpoints[only];
        if endpoint.engine().is_none_or(|engine| engine.has_new_arrivals()) {
            *reads_without_poll = 0;
            return false;
        }
        endpoint.write_completions(queues, counters, vectors);
        let any = !queues[queue].entries.is_empty();
        *reads_without_poll = if any { *reads_without_poll + 1 } else { 0 };
        any
    }

    /// Polls if many reads in a row did not. The arrivals may be answers to what the program has posted meanwhile. So
    /// the next read must not report them at once.
    #[inline]
    pub fn poll_if_overdue(&mut self, target: ProgressTarget) {
        if self.reads_without_poll >= MAX_READS_WITHOUT_POLL {
            self.reads_without_poll = 0;
            self.poll_before_report = true;
            self.progress(target);
        }
    }

    /// Tells the engines that a read returned no entry. The program now looks at its other sources, so later reads
    /// may report what has arrived.
    #[inline(always)]
    pub fn after_empty_read_of(&mut self, target: ProgressTarget) {
        match *self.endpoints_of(target) {
            [only] => self.after_empty_read(only),
            _ => self.after_empty_read_of_several(target),
        }
    }

    #[inline(always)]
    fn after_empty_read(&mut self, index: usize) {
        if let Some(engine) = self.endpoints[index].engine() {
            engine.after_empty_read();
        }
    }

    /// Tells the engine that a read returns entries of this queue, so the program continues. Returns the queue.
    #[inline(always)]
    pub fn begin_successful_read(&mut self, queue: usize) -> &mut CompletionQueue {
        let State { endpoints, queues, .. } = self;
        let queue = &mut queues[queue];
        if let [only] = queue.endpoints[..]
            && let Some(engine) = endpoints[only].engine()
        {
            engine.after_successful_read();
        }
        queue
    }

    #[inline(never)]
    fn after_empty_read_of_several(&mut self, target: ProgressTarget) {
        for nth in 0..self.endpoints_of(target).len() {
            self.after_empty_read(self.endpoints_of(target)[nth]);
        }
    }

    /// Makes progress on all endpoints. Returns the number of events.
    pub fn progress_all(&mut self) -> usize {
        let State { endpoints, queues, counters, vectors, .. } = self;
        let events: usize =
            endpoints.iter_mut().map(|endpoint| endpoint.progress(queues, counters, vectors)).sum();
        if self.has_sources { events + self.advance_all_sources() } else { events }
    }

    /// Another thread than before calls. Often one thread opens the endpoints and another one uses them.
    fn thread_changed(&mut self) {
        let mut engines: Vec<_> = self.endpoints.iter_mut().filter_map(Endpoint::engine).collect();
        if !self.several_threads && engines.iter().any(|engine| engine.is_used()) {
            self.several_threads = true;
            engines.iter_mut().for_each(|engine| engine.several_threads_call());
        }
    }

    /// Makes progress on one endpoint. Returns the number of events.
    #[inline]
    pub fn progress_endpoint(&mut self, index: usize) -> usize {
        let State { endpoints, queues, counters, vectors, .. } = self;
        endpoints[index].progress(queues, counters, vectors)
    }

    /// After a poll without an event: polls for a moment longer, if the engine allows it. Returns whether something
    /// has arrived. With several endpoints it does nothing, because each of them may get the next packet.
    #[inline(always)]
    pub fn spin_for_arrival(&mut self, target: ProgressTarget) -> bool {
        match *self.endpoints_of(target) {
            [only] => self.endpoints[only].spin_for_arrival(),
            _ => false,
        }
    }

    /// After another poll without an event in the spin that [`State::spin_for_arrival`] has begun: whether it continues.
    #[inline(always)]
    pub fn continues_spin(&mut self, target: ProgressTarget) -> bool {
        match *self.endpoints_of(target) {
            [only] => self.endpoints[only].continues_spin(),
            _ => false,
        }
    }

    /// After a poll without an event: yields the core or sleeps, as the engine decides. With several endpoints it
    /// never sleeps, because each of them may get the next packet.
    pub fn pause(&mut self, target: ProgressTarget) {
        match *self.endpoints_of(target) {
            [only] => self.endpoints[only].pause(),
            _ => std::thread::yield_now(),
        }
    }

    /// Whether completions wait for the program.
    pub fn has_entries(&mut self) -> bool {
        self.queues.iter_mut().any(|queue| !queue.entries.is_empty())
    }

    /// Sleeps until something arrives, at most `at_most_ns`.
    pub fn wait(&mut self, target: ProgressTarget, at_most_ns: u64) {
        match *self.endpoints_of(target) {
            [only] => self.endpoints[only].wait(at_most_ns),
            _ => std::thread::yield_now(),
        }
    }
}

/// A domain: its state, and the values that never change.
pub struct Domain {
    state: BiasedLock<State>,
    /// Number of threads that may call.
    pub mode: Mode,
    /// Each endpoint has a thread that makes progress.
    pub automatic_progress: bool,
    /// The version of the API that the program was written for.
    pub api_version: u32,
    /// The settings, read when the program asked for the provider.
    pub settings: Settings,
    /// The process that opened it. A forked child must not change it.
    pub process: u32,
    /// Number of its enabled endpoints.
    pub enabled_endpoints: AtomicUsize,
}

/// For closing calls: in a forked child the object stays as it is, and the call succeeds.
macro_rules! skip_in_forked_child {
    ($handle:ident) => {
        if !$handle.domain.belongs_to_this_process() {
            Box::leak($handle); // dropping it would release the domain
            return 0;
        }
    };
}
pub(crate) use skip_in_forked_child;

/// All open domains.
static OPEN: Mutex<Vec<Weak<Domain>>> = Mutex::new(Vec::new());

impl Domain {
    /// Opens a domain. With `automatic_progress` any number of threads may call.
    pub fn open(mode: Mode, automatic_progress: bool, api_version: u32, settings: Settings) -> Arc<Domain> {
        let mode = if automatic_progress { Mode::Shared } else { mode };
        let state = match mode {
            // SAFETY: the program has opened the domain with FI_THREAD_DOMAIN, so it promises to serialise all calls
            // on the domain and its objects. This crate enters the domain only in those calls. The exit
            // handler interrupts it. Event queues belong to no domain, so they do not enter serialised domains (`eq`).
            Mode::Serialised => unsafe { BiasedLock::serialised(State::default(), State::thread_changed) },
            Mode::Shared => BiasedLock::shared(State::default(), State::thread_changed),
        };
        // A program that allows several threads often calls from one only, and may sleep as long as any other.
        state.enter().several_threads = automatic_progress || !state.notices_threads();
        let process = std::process::id();
        let enabled_endpoints = AtomicUsize::new(0);
        let domain = Arc::new(Domain {
            state,
            mode,
            automatic_progress,
            api_version,
            settings,
            process,
            enabled_endpoints,
        });
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|domain| domain.strong_count() > 0);
        open.push(Arc::downgrade(&domain));
        domain
    }

    /// Whether this process has opened the domain. A forked child must not use its parent's mailboxes, because it
    /// would take packets and credits from them. A thread that does not exist in the child may hold the lock. Calls
    /// that close objects check this. Data calls do not, because a process id costs a system call.
    pub fn belongs_to_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Takes the lock of the domain.
    #[inline]
    pub fn enter(&self) -> Guard<'_, State> {
        self.state.enter()
    }

    /// Takes the domain at exit, while other threads may still call: see [`BiasedLock::interrupt`].
    pub fn interrupt(&self, limit: Duration, alone: bool) -> Option<Guard<'_, State>> {
        self.state.interrupt(limit, alone)
    }

    /// The longest time for which a blocking call may hold the domain. Unit: nanoseconds.
    pub fn longest_wait_ns(&self) -> u64 {
        match self.mode {
            Mode::Serialised => 1_000_000,
            Mode::Shared => 50_000,
        }
    }
}

/// The open domains of this process, as far as it has opened them itself.
pub fn open_domains() -> Vec<Arc<Domain>> {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.iter().filter_map(Weak::upgrade).filter(|domain| domain.belongs_to_this_process()).collect()
}
