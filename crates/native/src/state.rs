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
use std::time::{Duration, Instant};

use weir_engine::watcher::Watcher;
use weir_engine::{Engine, MAX_COLLECTIVES, Post, PostError};
use weir_link::biased_lock::BiasedLock;
use weir_link::memory::{OwnedMemory, UserMemory};
use weir_link::shm::node_group::{GroupFailure, Operation};
use weir_proto::table::Table;
use weir_proto::{Outcome, Peer};

use crate::Error;
use crate::node_groups::{NodeEnd, NodeMembers};
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
    /// Operations by messages that have not ended.
    pub messages: u32,
    /// We have left it by messages, since it has failed in the node segment. The number may be that of another group.
    pub has_left: bool,
}

/// Node groups that a rank offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offered {
    /// Those of one node.
    pub on_one_node: bool,
    /// Those across nodes.
    pub across_nodes: bool,
}

/// What the lock protects. The engine is dropped first: it has views of the memory below.
pub(crate) struct Inner {
    pub engine: Engine,
    /// The peers, by rank.
    pub peers: Vec<Peer>,
    /// The node of each rank. Equal numbers: they share memory.
    pub nodes: Vec<u64>,
    /// The nodes across which this rank uses node groups, if all members of a group do (`FI_WEIR_COLLECTIVES`,
    /// `FI_WEIR_COLLECTIVES_ACROSS`).
    pub offered: Offered,
    pub node_groups: NodeMembers,
    /// Node groups have failed, and their members by messages must learn it.
    failed: Vec<u32>,
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
    /// How long closing waits for other ranks.
    close_time: Duration,
}

/// The number of a request, for programs: never 0.
fn number(index: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}

impl Inner {
    /// - `nodes`: the node of each rank.
    pub fn new(engine: Engine, peers: Vec<Peer>, nodes: Vec<u64>, offered: Offered) -> Inner {
        Inner {
            engine,
            peers,
            nodes,
            offered,
            node_groups: NodeMembers::new(),
            failed: Vec::new(),
            groups: BTreeMap::new(),
            next_group: 1,
            closing: Vec::new(),
            regions: BTreeMap::new(),
            retired: Vec::new(),
            slots: Table::default(),
            generation: 0,
        }
    }

    /// A place for an operation that starts.
    ///
    /// # Errors
    /// [`Error::Again`].
    fn insert(
        &mut self,
        about: About,
        result: Option<OwnedMemory>,
        data: Option<OwnedMemory>,
    ) -> Result<u32, Error> {
        if self.slots.count() >= MAX_REQUESTS {
            return Err(Error::Again { what: "requests", limit: MAX_REQUESTS as u64 });
        }
        self.generation = self.generation.wrapping_add(1).max(1);
        let (generation, outcome, is_abandoned) = (self.generation, None, false);
        Ok(self.slots.insert(Slot { generation, outcome, about, is_abandoned, result, _data: data }))
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
        let Buffers { data, result, owned_data, owned_result } = buffers;
        let index = self.insert(about, owned_result, owned_data)?;
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

    /// Starts an operation of a group that has a node group, in this node group. Returns its number.
    ///
    /// # Errors
    /// [`Error::Again`].
    pub fn begin_in_node(
        &mut self,
        group: u32,
        operation: Operation,
        buffers: Buffers,
        is_awaited: bool,
    ) -> Result<u64, Error> {
        if !self.node_groups.have_room() {
            return Err(Error::Again { what: "operations of a kind", limit: MAX_COLLECTIVES.into() });
        }
        let Buffers { data, result, owned_data, owned_result } = buffers;
        let index = self.insert(About::Group(group), owned_result, owned_data)?;
        let request = number(index, self.generation);
        self.node_groups.begin(group, request, operation, (data, result), is_awaited);
        self.advance_node_groups();
        if !is_awaited && self.node_groups.are_under_way() {
            self.engine.wake_watcher(); // nothing arrives that would
        }
        Ok(request)
    }

    /// Handles what has arrived. Returns how much.
    pub fn progress(&mut self) -> usize {
        let sent_before = if self.node_groups.may_send() { self.advance_node_groups() } else { 0 };
        let handled = sent_before + self.engine.progress();
        while let Some(completion) = self.engine.next_completion() {
            let index = completion.post.context as u32;
            let Some(&Slot { generation, about, .. }) = self.slots.get(index) else { continue };
            if u64::from(generation) != completion.post.cookie {
                continue;
            }
            if let About::Group(group) = about {
                self.engine.let_groups_leave();
                self.ended_by_messages(group, completion.outcome);
            }
            end(&mut self.slots, index, completion.outcome);
        }
        let advanced = self.advance_node_groups();
        if handled > 0 {
            self.node_groups.resume();
        }
        if !self.closing.is_empty() {
            let Inner { engine, closing, .. } = self;
            closing.retain(|&group| !engine.close_collective(group));
        }
        handled + advanced
    }

    /// Does what it can in node groups. Returns how many operations have ended.
    fn advance_node_groups(&mut self) -> usize {
        if !self.node_groups.are_under_way() {
            return 0;
        }
        let Inner { engine, node_groups, slots, groups, peers, failed, .. } = self;
        let ended = |ended: NodeEnd| end_in_node(slots, groups, peers, ended);
        let advanced = node_groups.advance(engine, ended, |group| failed.push(group));
        if !failed.is_empty() {
            self.leave_failed();
        }
        advanced
    }

    /// Leaves groups by messages that have failed in the node segment, so that members which wait for messages learn it.
    /// Operations of ours that are under way must end first: those that we have begun, we finish.
    #[cold]
    fn leave_failed(&mut self) {
        let Inner { failed, groups, engine, .. } = self;
        failed.retain(|group| {
            let Some(member) = groups.get_mut(group).filter(|member| !member.has_left) else { return false };
            if member.messages > 0 {
                return true;
            }
            member.has_left = true;
            engine.abandon_collective(member.number);
            false
        });
    }

    /// An operation of a group has ended that went by messages.
    fn ended_by_messages(&mut self, group: u32, outcome: Outcome) {
        let Inner { engine, node_groups, slots, groups, peers, .. } = self;
        let Some(member) = groups.get_mut(&group) else { return };
        member.messages = member.messages.saturating_sub(1); // a join is not counted
        if let Outcome::Lost { peer, fault } = outcome {
            let is_lost = |rank: &u32| peers.get(*rank as usize).copied() == peer;
            // Behind all ranks: it is not known who.
            let lost = member.ranks.iter().position(is_lost).unwrap_or(member.ranks.len());
            let failure = GroupFailure { member: lost as u32, fault };
            node_groups.fail(group, failure, engine, |ended| end_in_node(slots, groups, peers, ended));
        }
        if !self.failed.is_empty() {
            self.leave_failed();
        }
    }

    /// An operation of a group that has failed, and of which only the end follows. `None`: it has not failed in the node
    /// segment.
    ///
    /// # Errors
    /// [`Error::Again`].
    pub fn begin_failed(&mut self, group: u32) -> Result<Option<u64>, Error> {
        let Some(failure) = self.node_groups.failure(group) else { return Ok(None) };
        let index = self.insert(About::Group(group), None, None)?;
        let outcome = lost(&self.groups, &self.peers, group, failure);
        end(&mut self.slots, index, outcome);
        Ok(Some(number(index, self.generation)))
    }

    /// Waits for a moment, after progress has found nothing.
    ///
    /// - `request`: what the caller waits for.
    pub fn pause(&mut self, request: Option<u64>) {
        match self.node_groups.are_under_way() {
            true => self.node_groups.pause(request, &mut self.engine),
            false => self.engine.pause(),
        }
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

/// Notes how an operation has ended.
fn end(slots: &mut Table<Slot>, index: u32, outcome: Outcome) {
    let Some(slot) = slots.get_mut(index) else { return };
    slot.outcome = Some(outcome);
    if slot.is_abandoned {
        slots.remove(index);
    }
}

/// Notes how an operation of a node group has ended.
fn end_in_node(slots: &mut Table<Slot>, groups: &BTreeMap<u32, Member>, peers: &[Peer], ended: NodeEnd) {
    let NodeEnd { request, failure } = ended;
    let index = request as u32;
    let Some(slot) = slots.get(index).filter(|slot| number(index, slot.generation) == request) else {
        return;
    };
    let About::Group(group) = slot.about else { return };
    end(slots, index, failure.map_or(Outcome::Done, |failure| lost(groups, peers, group, failure)));
}

/// The outcome of operations of a group that has failed.
fn lost(groups: &BTreeMap<u32, Member>, peers: &[Peer], group: u32, failure: GroupFailure) -> Outcome {
    let GroupFailure { member, fault } = failure;
    let rank = groups.get(&group).and_then(|group| group.ranks.get(member as usize));
    Outcome::Lost { peer: rank.and_then(|&rank| peers.get(rank as usize)).copied(), fault }
}

/// How an operation has ended: with the memory of its result, if it owns that.
pub(crate) type Ended = Result<Option<OwnedMemory>, Error>;

impl Shared {
    pub fn new(rank: u32, size: u32, inner: Inner, close_time: Duration) -> Shared {
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
            close_time,
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
                inner.pause(None);
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
                        inner.pause(Some(request));
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
        // Others may need our part of operations that we have begun and not waited for.
        let began = Instant::now();
        while inner.node_groups.are_under_way() && began.elapsed() < self.close_time {
            if inner.progress() == 0 {
                inner.pause(None);
            }
        }
        let Inner { node_groups, engine, .. } = &mut inner;
        node_groups.clear(engine); // before the engine closes
        let groups = inner.groups.values().filter(|group| !group.has_left).map(|group| group.number);
        let groups: Vec<u32> = groups.chain(inner.closing.drain(..)).collect();
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
