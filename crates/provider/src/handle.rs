//! What stands behind the objects that C holds.
//!
//! Everything of a domain (its endpoints, queues, counters, address vectors and memory regions) is one value with one
//! [`Owner`]: a call enters once and finds all it touches, so that no order of locks exists and none can be wrong. A C
//! object holds the domain and a number, its place in one of the domain's tables.
//!
//! Serialised ownership (no lock at all) is taken for `FI_THREAD_DOMAIN`, where the program promises one thread at a time
//! in a domain. `FI_THREAD_COMPLETION` promises less (two queues of a domain may be read at once) and is shared.

use std::collections::HashMap;
use std::ops::{Index, IndexMut};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use weir_engine::config::Settings;
use weir_link::biased_lock::{BiasedLock, Guard};
use weir_link::memory::UserMemory;

use crate::av::AddressVector;
use crate::counter::Counter;
use crate::cq::CompletionQueue;
use crate::endpoint::Endpoint;
use crate::errno::Error;

/// How many threads may call into a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One at a time; the program sees to it.
    Serialised,
    /// Any number.
    Shared,
}

/// Objects of one kind, by number. Numbers are reused.
pub struct Table<T>(Vec<Option<T>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table(Vec::new())
    }
}

impl<T> Table<T> {
    /// Adds an object and returns its number.
    pub fn insert(&mut self, value: T) -> usize {
        let free = self.0.iter().position(Option::is_none);
        let index = free.unwrap_or(self.0.len());
        match free {
            Some(index) => self.0[index] = Some(value),
            None => self.0.push(Some(value)),
        }
        index
    }

    /// Takes an object out.
    pub fn remove(&mut self, index: usize) -> Option<T> {
        self.0.get_mut(index)?.take()
    }

    /// All objects.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flatten()
    }
}

impl<T> Index<usize> for Table<T> {
    type Output = T;
    #[inline]
    fn index(&self, index: usize) -> &T {
        self.0[index].as_ref().expect("an open object has its place in the table")
    }
}

impl<T> IndexMut<usize> for Table<T> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut T {
        self.0[index].as_mut().expect("an open object has its place in the table")
    }
}

/// Memory that peers may use, under a key.
#[derive(Clone)]
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
    /// The program has posted something since it last looked at its other sources of messages.
    pub poll_before_report: bool,
    /// Reads in a row that reported something without looking for what has arrived.
    pub reads_without_poll: u32,
}

/// Bound on [`State::reads_without_poll`]: arrivals are seen to now and then.
const MAX_READS_WITHOUT_POLL: u32 = 64;

/// Whose progress a call makes.
#[derive(Clone, Copy)]
pub enum ProgressTarget {
    /// The endpoints bound to a completion queue.
    Queue(usize),
    /// The endpoints bound to a counter.
    Counter(usize),
}

impl State {
    /// The program has posted something. A caller that is told "again" waits: its next read may sleep.
    #[inline(always)]
    pub fn after_post<R>(&mut self, result: &Result<R, Error>) {
        self.poll_before_report |= !matches!(result, Err(Error::Again));
    }

    #[inline(always)]
    fn endpoints_of(&self, target: ProgressTarget) -> &[usize] {
        match target {
            ProgressTarget::Queue(index) => &self.queues[index].endpoints,
            ProgressTarget::Counter(index) => &self.counters[index].endpoints,
        }
    }

    /// Makes progress on the endpoints of a queue or counter and files their completions. Returns how much happened.
    #[inline(always)]
    pub fn progress(&mut self, target: ProgressTarget) -> usize {
        match *self.endpoints_of(target) {
            [only] => self.progress_endpoint(only),
            _ => self.progress_several(target),
        }
    }

    #[inline(never)]
    fn progress_several(&mut self, target: ProgressTarget) -> usize {
        let mut happened = 0;
        for nth in 0..self.endpoints_of(target).len() {
            happened += self.progress_endpoint(self.endpoints_of(target)[nth]);
        }
        happened
    }

    /// Files what has ended, if nothing has arrived since the first post after the program last looked at its other sources of
    /// messages; so none of it can be an answer to anything that the program has done since. Returns whether there is any.
    ///
    /// After `MAX_READS_WITHOUT_POLL` of them in a row [`State::poll_if_overdue`] is due, once the caller has what it came for.
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

    /// Sees to what has arrived, if many reads in a row did not. It may be answers to what was posted meanwhile, so a look is owed again: the next
    /// read will not tell it at once.
    #[inline]
    pub fn poll_if_overdue(&mut self, target: ProgressTarget) {
        if self.reads_without_poll >= MAX_READS_WITHOUT_POLL {
            self.reads_without_poll = 0;
            self.poll_before_report = true;
            self.progress(target);
        }
    }

    /// The program is told that there is nothing, so it looks elsewhere now: what has arrived is no news any more.
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

    /// The program is told what has ended, so it goes on.
    #[inline(always)]
    pub fn after_successful_read(&mut self, target: ProgressTarget) {
        if let [only] = *self.endpoints_of(target)
            && let Some(engine) = self.endpoints[only].engine()
        {
            engine.after_successful_read();
        }
    }

    #[inline(never)]
    fn after_empty_read_of_several(&mut self, target: ProgressTarget) {
        for nth in 0..self.endpoints_of(target).len() {
            self.after_empty_read(self.endpoints_of(target)[nth]);
        }
    }

    /// Makes progress on all endpoints.
    pub fn progress_all(&mut self) {
        let State { endpoints, queues, counters, vectors, .. } = self;
        for endpoint in endpoints.iter_mut() {
            endpoint.progress(queues, counters, vectors);
        }
    }

    #[inline]
    fn progress_endpoint(&mut self, index: usize) -> usize {
        let State { endpoints, queues, counters, vectors, .. } = self;
        endpoints[index].progress(queues, counters, vectors)
    }

    /// Nothing was found: looks a moment longer, if the engine thinks fit. Returns whether something has arrived. With several
    /// endpoints nobody lingers at one.
    #[inline(always)]
    pub fn spin_for_arrival(&mut self, target: ProgressTarget) -> bool {
        match *self.endpoints_of(target) {
            [only] => self.endpoints[only].spin_for_arrival(),
            _ => false,
        }
    }

    /// Nothing was found: lets others have the core, as the engine thinks fit. With several endpoints none may
    /// sleep, since the next packet may be another's.
    pub fn pause(&mut self, target: ProgressTarget) {
        match *self.endpoints_of(target) {
            [only] => self.endpoints[only].pause(),
            _ => std::thread::yield_now(),
        }
    }

    /// Sleeps until something arrives, at most `at_most_ns`.
    pub fn wait(&mut self, target: ProgressTarget, at_most_ns: u64) {
        match *self.endpoints_of(target) {
            [only] => self.endpoints[only].wait(at_most_ns),
            _ => std::thread::yield_now(),
        }
    }
}

/// A domain: the value and what never changes about it.
pub struct Domain {
    state: BiasedLock<State>,
    /// How many threads call.
    pub mode: Mode,
    /// The version of the API that the program was written for.
    pub api_version: u32,
    /// The settings, read when the program asked for the provider.
    pub settings: Settings,
    /// Who opened it: a forked child must leave it alone.
    process: u32,
}

/// For closing calls: in a forked child the object is left as it is, and the call succeeds.
macro_rules! skip_in_forked_child {
    ($handle:ident) => {
        if !$handle.domain.is_ours() {
            Box::leak($handle); // dropping it would let go of the domain
            return 0;
        }
    };
}
pub(crate) use skip_in_forked_child;

/// All open domains, for [`close_all`].
static OPEN: Mutex<Vec<Weak<Domain>>> = Mutex::new(Vec::new());

impl Domain {
    /// Opens a domain.
    pub fn open(mode: Mode, api_version: u32, settings: Settings) -> Arc<Domain> {
        let state = match mode {
            // SAFETY: the program has opened the domain with FI_THREAD_DOMAIN, by which it promises to serialise all
            // calls on the domain and on what belongs to it. We enter by ourselves only in those calls and in
            // `close_all`, at exit, when no call may be under way; event queues, which belong to no domain, leave
            // serialised domains alone (`eq`).
            Mode::Serialised => unsafe { BiasedLock::serialised(State::default()) },
            Mode::Shared => BiasedLock::shared(State::default()),
        };
        let process = std::process::id();
        let domain = Arc::new(Domain { state, mode, api_version, settings, process });
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|domain| domain.strong_count() > 0);
        open.push(Arc::downgrade(&domain));
        domain
    }

    /// Whether this process has opened it. In a forked child nothing here is the child's: its mailboxes are the
    /// parent's, whose packets and credits it would take, and its lock may be held by a thread that was not copied. The
    /// data calls do not look (a process id costs a system call); those that close do.
    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Becomes its owner.
    #[inline]
    pub fn enter(&self) -> Guard<'_, State> {
        self.state.enter()
    }

    /// The longest that a blocking call may keep the domain to itself. Unit: nanoseconds.
    pub fn longest_wait_ns(&self) -> u64 {
        match self.mode {
            Mode::Serialised => 1_000_000,
            Mode::Shared => 50_000,
        }
    }
}

/// Closes what the program has left open: called when the core is unloaded. Queued messages still leave.
pub fn close_all() {
    let open = std::mem::take(&mut *OPEN.lock().unwrap_or_else(PoisonError::into_inner));
    for domain in open.iter().filter_map(Weak::upgrade) {
        if domain.is_ours() {
            domain.enter().endpoints.iter_mut().for_each(Endpoint::close);
        }
    }
}
