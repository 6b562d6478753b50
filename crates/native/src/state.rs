//! The state of an endpoint behind its lock: the engine, the requests, the groups and the registered memory.
//!
//! Any thread may call. One is inside at a time, and makes progress for all. A thread that waits leaves after each
//! look, and does not sleep inside while others want in (`entering`), so a call of another thread comes soon.
//! ```text
//! thread A   wait: enters, progress, nothing, sleeps for a moment, leaves        enters again ...
//! thread B   fetch_add:    entering 1 ......... enters when A leaves, posts, leaves
//! ```
//! This file knows neither types of elements nor C.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use weir_engine::watcher::Watcher;
use weir_engine::{Engine, Post, PostError};
use weir_link::biased_lock::BiasedLock;
use weir_link::memory::{OwnedMemory, UserMemory};
use weir_proto::table::Table;
use weir_proto::{Outcome, Peer};

use crate::Error;
use crate::segment::Words;

/// Bound: requests that have not been waited for.
pub const MAX_REQUESTS: usize = 1 << 16;
/// Yields of a thread that leaves the lock to others.
const MAX_YIELDS: u32 = 100;

/// What an operation is about, for its error.
#[derive(Clone, Copy, Debug)]
pub(crate) enum About {
    /// A group: its number.
    Group(u32),
    /// Memory of a rank.
    Memory { rank: u32, key: u64, offset: u64, bytes: u64 },
}

/// The memory of an operation. What is owned lives until the operation has ended, whatever the program does.
#[derive(Debug)]
pub(crate) struct Buffers {
    pub data: UserMemory,
    pub result: UserMemory,
    owned_data: Option<OwnedMemory>,
    owned_result: Option<OwnedMemory>,
}

impl Buffers {
    /// None.
    pub const EMPTY: Buffers =
        Buffers { data: UserMemory::EMPTY, result: UserMemory::EMPTY, owned_data: None, owned_result: None };

    /// Memory of the caller, who keeps it until the operation has ended.
    pub fn of_caller(data: UserMemory, result: UserMemory) -> Buffers {
        Buffers { data, result, ..Buffers::EMPTY }
    }

    /// Memory of the operation. The result comes back when it has ended.
    pub fn owned(data: OwnedMemory, result: OwnedMemory) -> Buffers {
        let views = (data.view(), result.view());
        Buffers { data: views.0, result: views.1, owned_data: Some(data), owned_result: Some(result) }
    }

    /// The same, of an operation with one buffer, which comes back.
    pub fn one(memory: OwnedMemory) -> Buffers {
        Buffers { data: memory.view(), owned_result: Some(memory), ..Buffers::EMPTY }
    }
}

/// A request that has not been waited for.
#[derive(Debug)]
struct Slot {
    generation: u32,
    outcome: Option<Outcome>,
    about: About,
    /// The program does not wait for it.
    is_abandoned: bool,
    result: Option<OwnedMemory>,
    _data: Option<OwnedMemory>,
}

/// A group that this rank has joined.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// Its number in the engine.
    pub number: u32,
    /// The ranks in the job of the members, by rank in the group.
    pub ranks: Arc<[u32]>,
    /// Our rank in the group.
    pub rank: u32,
}

/// What the lock protects. The engine is dropped first: it has views of the memory below.
pub(crate) struct Inner {
    pub engine: Engine,
    /// The peers, by rank.
    pub peers: Vec<Peer>,
    pub groups: BTreeMap<u32, Member>,
    /// Number of the next group. Numbers are not used again.
    pub next_group: u32,
    /// Groups to close when their operations have ended, by number in the engine.
    pub closing: Vec<u32>,
    /// Registered memory. `None`: that of the caller.
    pub regions: BTreeMap<u64, Option<Arc<Words>>>,
    /// Words that were registered.
    pub retired: Vec<Arc<Words>>,
    slots: Table<Slot>,
    generation: u32,
}

/// An endpoint, for its handles and its watcher.
pub(crate) struct Shared {
    pub rank: u32,
    pub size: u32,
    lock: BiasedLock<Option<Inner>>,
    /// Threads that want in.
    entering: AtomicU32,
    watcher: Mutex<Option<Watcher>>,
    /// The process that has opened it.
    process: u32,
}

/// The number of a request, for programs: never 0.
fn number(index: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}

impl Inner {
    pub fn new(engine: Engine, peers: Vec<Peer>) -> Inner {
        Inner {
            engine,
            peers,
            groups: BTreeMap::new(),
            next_group: 1,
            closing: Vec::new(),
            regions: BTreeMap::new(),
            retired: Vec::new(),
            slots: Table::default(),
            generation: 0,
        }
    }

    /// Starts an operation by `post`, which gets data and result. Returns its number.
    ///
    /// # Errors
    /// [`Error::Again`].
    pub fn begin(
        &mut self,
        about: About,
        buffers: Buffers,
        post: impl FnOnce(&mut Engine, Post, UserMemory, UserMemory) -> Result<(), PostError>,
    ) -> Result<u64, Error> {
        if self.slots.count() >= MAX_REQUESTS {
            return Err(Error::Again { what: "requests", limit: MAX_REQUESTS as u64 });
        }
        self.generation = self.generation.wrapping_add(1).max(1);
        let Buffers { data, result, owned_data, owned_result } = buffers;
        let slot = Slot {
            generation: self.generation,
            outcome: None,
            about,
            is_abandoned: false,
            result: owned_result,
            _data: owned_data,
        };
        let index = self.slots.insert(slot);
        let values = Post { context: index as usize, cookie: self.generation.into() };
        match post(&mut self.engine, values, data, result) {
            Ok(()) => Ok(number(index, self.generation)),
            Err(refusal) => {
                self.slots.remove(index);
                Err(match refusal {
                    PostError::Again { limit } => {
                        Error::Again { what: "operations of a kind", limit: limit.into() }
                    }
                    PostError::Full { limit_bytes } => {
                        Error::Again { what: "bytes in copies of messages", limit: limit_bytes }
                    }
                })
            }
        }
    }

    /// Handles what has arrived. Returns how much.
    pub fn progress(&mut self) -> usize {
        let handled = self.engine.progress();
        while let Some(completion) = self.engine.next_completion() {
            let index = completion.post.context as u32;
            let Some(slot) = self.slots.get_mut(index) else { continue };
            if u64::from(slot.generation) != completion.post.cookie {
                continue;
            }
            slot.outcome = Some(completion.outcome);
            if slot.is_abandoned {
                self.slots.remove(index);
            }
        }
        if !self.closing.is_empty() {
            let Inner { engine, closing, .. } = self;
            closing.retain(|&group| !engine.close_collective(group));
        }
        handled
    }

    /// The place of a request.
    ///
    /// # Errors
    /// There is none of this number: it has been waited for, or never was.
    fn place(&self, request: u64) -> Result<u32, Error> {
        let index = request as u32;
        let is_there = self.slots.get(index).is_some_and(|slot| number(index, slot.generation) == request);
        match is_there {
            true => Ok(index),
            false => Err(Error::argument("request", request, "those that have not been waited for")),
        }
    }

    /// The end of a request, which is then no longer one. `None`: it has not ended.
    fn take(&mut self, request: u64) -> Result<Option<Ended>, Error> {
        let index = self.place(request)?;
        let Some(outcome) = self.slots.get(index).and_then(|slot| slot.outcome) else { return Ok(None) };
        let Slot { about, result, .. } = self.slots.remove(index).expect("just looked at");
        match self.error(outcome, about) {
            None => Ok(Some(Ok(result))),
            Some(error) => Ok(Some(Err(error))),
        }
    }

    fn error(&self, outcome: Outcome, about: About) -> Option<Error> {
        match (outcome, about) {
            (Outcome::Lost { peer, fault }, _) => {
                let rank = peer.and_then(|lost| self.peers.iter().position(|&peer| peer == lost));
                Some(Error::Lost { rank: rank.map(|rank| rank as u32), fault })
            }
            (Outcome::Refused, About::Memory { rank, key, offset, bytes }) => {
                Some(Error::Refused { rank, key, offset, bytes })
            }
            (Outcome::Refused, About::Group(group)) => {
                Some(Error::argument("group", group, "groups that are not being closed"))
            }
            _ => None,
        }
    }

    fn abandon(&mut self, request: u64) {
        let Ok(index) = self.place(request) else { return };
        let Some(slot) = self.slots.get_mut(index) else { return };
        slot.is_abandoned = true;
        if slot.outcome.is_some() {
            self.slots.remove(index);
        }
    }

    /// The peer of a rank.
    ///
    /// # Errors
    /// There is no such rank.
    pub fn peer(&self, rank: u32) -> Result<Peer, Error> {
        let peer = self.peers.get(rank as usize).copied();
        peer.ok_or_else(|| Error::argument("rank", rank, format!("0 to {}", self.peers.len() - 1)))
    }
}

/// How an operation has ended: with the memory of its result, if it owns that.
pub(crate) type Ended = Result<Option<OwnedMemory>, Error>;

impl Shared {
    pub fn new(rank: u32, size: u32, inner: Inner) -> Shared {
        let on_change = |inner: &mut Option<Inner>| {
            if let Some(inner) = inner {
                inner.engine.several_threads_call();
            }
        };
        Shared {
            rank,
            size,
            lock: BiasedLock::shared(Some(inner), on_change),
            entering: AtomicU32::new(0),
            watcher: Mutex::new(None),
            process: std::process::id(),
        }
    }

    /// Calls `call` alone.
    ///
    /// # Errors
    /// The endpoint is closed, and those of `call`.
    pub fn with<R>(&self, call: impl FnOnce(&mut Inner) -> Result<R, Error>) -> Result<R, Error> {
        self.entering.fetch_add(1, Ordering::Relaxed);
        let mut inner = self.lock.enter();
        self.entering.fetch_sub(1, Ordering::Relaxed);
        inner.as_mut().map_or(Err(Error::Closed), call)
    }

    fn others_want_in(&self) -> bool {
        self.entering.load(Ordering::Relaxed) > 0
    }

    fn let_others_in(&self) {
        for _ in 0..MAX_YIELDS {
            if !self.others_want_in() {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// [`Shared::with`] for a start, repeated while a limit is reached.
    ///
    /// # Errors
    /// Those of `start`, except [`Error::Again`].
    pub fn start_blocking(
        &self,
        mut start: impl FnMut(&mut Inner) -> Result<u64, Error>,
    ) -> Result<u64, Error> {
        loop {
            match self.with(&mut start) {
                Err(Error::Again { .. }) => self.make_progress(true)?,
                other => return other,
            }
        }
    }

    /// Makes progress. `pauses`: and waits for a moment if there is nothing to do.
    ///
    /// # Errors
    /// The endpoint is closed.
    pub fn make_progress(&self, pauses: bool) -> Result<(), Error> {
        self.with(|inner| {
            if inner.progress() == 0 && pauses && !self.others_want_in() {
                inner.engine.pause();
            }
            Ok(())
        })?;
        self.let_others_in();
        Ok(())
    }

    /// Makes progress, and takes the end of a request if it has ended.
    ///
    /// # Errors
    /// The endpoint is closed, or there is no such request.
    pub fn test(&self, request: u64) -> Result<Option<Ended>, Error> {
        self.with(|inner| {
            if let Some(ended) = inner.take(request)? {
                return Ok(Some(ended));
            }
            inner.progress();
            inner.take(request)
        })
    }

    /// Waits for the end of a request.
    ///
    /// # Errors
    /// As [`Shared::test`].
    pub fn wait(&self, request: u64) -> Result<Ended, Error> {
        loop {
            let ended = self.with(|inner| {
                let mut ended = inner.take(request)?;
                if ended.is_none() {
                    let handled = inner.progress();
                    ended = inner.take(request)?;
                    if ended.is_none() && handled == 0 && !self.others_want_in() {
                        inner.engine.pause();
                    }
                }
                Ok(ended)
            })?;
            if let Some(ended) = ended {
                return Ok(ended);
            }
            self.let_others_in();
        }
    }

    /// The program does not wait for a request.
    pub fn abandon(&self, request: u64) {
        let abandoned = self.with(|inner| {
            inner.abandon(request);
            Ok(())
        });
        drop(abandoned); // a closed endpoint has no requests
    }

    pub fn keep_watcher(&self, watcher: Watcher) {
        *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
    }

    /// Closes the endpoint: its groups, then the engine, which waits for the others as long as the settings say.
    ///
    /// # Errors
    /// It is closed.
    fn close(&self) -> Result<(), Error> {
        // Without the lock: the watcher may wait for it.
        let watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(watcher);
        let Some(mut inner) = self.lock.enter().take() else { return Err(Error::Closed) };
        inner.engine.end_watch();
        let groups: Vec<u32> =
            inner.groups.values().map(|group| group.number).chain(inner.closing.drain(..)).collect();
        for group in groups {
            inner.engine.close_collective(group); // one with operations under way fails at the others
        }
        // What is given up are answers to ranks that have not asked for them any more.
        inner.engine.close();
        Ok(())
    }
}

/// The handles of a program together. The endpoint closes with the last one.
pub(crate) struct Owner(pub Arc<Shared>);

impl Owner {
    /// Whether this process has opened the endpoint, and did not inherit it by a fork.
    fn is_ours(&self) -> bool {
        self.0.process == std::process::id()
    }

    /// Closes the endpoint now.
    ///
    /// # Errors
    /// It is closed, or that of the parent of this process.
    pub fn close(&self) -> Result<(), Error> {
        if self.is_ours() { self.0.close() } else { Err(Error::Closed) }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.is_ours() {
            let _ = self.0.close(); // closed before
        } else {
            std::mem::forget(Arc::clone(&self.0)); // the mailbox is the parent's
        }
    }
}
