//! The domain's part of an endpoint: an engine, with the queues, counters and the address vector that are bound to it.
//!
//! It turns a call's arguments to an operation of the engine, finds the peer of an address, and passes the engine's
//! completions to `cq_writer.rs`. After an empty poll it lets the engine sleep only if the process has no other engine.
//! A blocking read sleeps anyway, for a bounded time. This file does not know the object that C holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_engine::{Completion, Engine, MAX_COLLECTIVE_MEMBERS, Operation, Post};
use weir_proto::{Outcome, Peer, SendLevel};

use super::address_vector::AddressVector;
use super::claims::Claims;
use super::completion::{Side, WANTS_ENTRY};
use super::completion_queue::CompletionQueue;
use super::counter::Counter;
use super::cq_writer::{CqWriter, DomainQueues, EndpointBindings};
use super::event_queue::EventQueue;
use super::table::Table;
use super::taken_receives::TakenReceives;
use super::waits::EndpointWaits;
use crate::errno::{Error, completion as number};
use crate::ffi::{ADDR_UNSPEC, FiAddr, caps, flags};
use crate::limits::DELIVERED_FLAGS;

/// The program's choices when it opened the endpoint.
#[derive(Clone, Copy)]
pub struct EndpointAttr {
    /// Capabilities.
    pub caps: u64,
    /// Default flags of sends, reads and writes.
    pub transmit_flags: u64,
    /// Default flags of receives.
    pub receive_flags: u64,
}

/// Number of open engines of this process, over all domains.
static OPEN_ENGINES: AtomicUsize = AtomicUsize::new(0);

/// Counts an engine in [`OPEN_ENGINES`] until it is dropped.
struct OpenEngineGuard;

impl OpenEngineGuard {
    fn begin() -> OpenEngineGuard {
        OPEN_ENGINES.fetch_add(1, Ordering::Relaxed);
        OpenEngineGuard
    }
}

impl Drop for OpenEngineGuard {
    fn drop(&mut self) {
        OPEN_ENGINES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The domain's part of an endpoint.
pub struct Endpoint {
    engine: Option<Engine>,
    /// Counts the engine, also while it closes.
    open_guard: Option<OpenEngineGuard>,
    endpoint_attr: EndpointAttr,
    /// The queues and counters that are bound to it.
    pub bindings: EndpointBindings,
    /// Index of the address vector.
    pub vector: Option<usize>,
    /// Its address has a mark ([`crate::marks`]).
    pub is_marked: bool,
    /// A multi-receive buffer with fewer free bytes is released. Unit: bytes.
    pub min_multi_recv: usize,
    /// Peer of each entry of the address vector, if known.
    peers: Vec<Option<Peer>>,
    /// Messages that a peek has claimed.
    claims: Claims,
    /// Its watcher, and what that rings.
    pub waits: EndpointWaits,
    /// The event queue that is bound to it.
    pub events: Option<Arc<EventQueue>>,
    /// Index of its source, if an operation has taken a receive.
    pub source: Option<usize>,
    /// The index of the endpoint whose source this is, if it is one.
    source_of: Option<usize>,
    /// The receives of a source.
    pub taken: TakenReceives,
}

/// The source of an operation's flags.
#[derive(Clone, Copy)]
pub enum Flags {
    /// The call has no flags: the endpoint's default flags apply.
    Default,
    /// The call gave flags, which replace the endpoint's.
    Given(u64),
    /// The call gave flags beside the endpoint's.
    Added(u64),
    /// An inject call: no entry, and the buffer is copied.
    Inject,
}

impl Endpoint {
    /// An endpoint that is not enabled.
    pub fn new(endpoint_attr: EndpointAttr) -> Endpoint {
        Endpoint {
            engine: None,
            open_guard: None,
            endpoint_attr,
            bindings: EndpointBindings::new(endpoint_attr.caps & caps::SOURCE != 0),
            vector: None,
            is_marked: false,
            min_multi_recv: 64,
            peers: Vec::new(),
            claims: Claims::default(),
            waits: EndpointWaits::default(),
            events: None,
            source: None,
            source_of: None,
            taken: TakenReceives::default(),
        }
    }

    /// A source of completions for the endpoint of this index: see [`super::taken_receives`].
    pub fn source(owner: usize) -> Endpoint {
        let endpoint_attr = EndpointAttr { caps: 0, transmit_flags: 0, receive_flags: 0 };
        Endpoint { source_of: Some(owner), ..Endpoint::new(endpoint_attr) }
    }

    /// Whether it is a source without receives.
    pub fn is_idle_source(&self) -> bool {
        self.source_of.is_some() && self.taken.is_empty()
    }

    /// The index of the endpoint whose source this is. `None`: it is none.
    pub fn source_of(&self) -> Option<usize> {
        self.source_of
    }

    /// The engine, if the endpoint is enabled.
    pub fn engine(&mut self) -> Option<&mut Engine> {
        self.engine.as_mut()
    }

    /// The engine, if the endpoint is enabled, and the waits.
    pub fn engine_and_waits(&mut self) -> (Option<&mut Engine>, &mut EndpointWaits) {
        (self.engine.as_mut(), &mut self.waits)
    }

    /// Sets the engine, which enables the endpoint.
    pub fn enable(&mut self, engine: Engine) {
        self.engine = Some(engine);
        self.open_guard = Some(OpenEngineGuard::begin());
    }

    /// Whether the endpoint's addresses are in this vector.
    pub fn uses_vector(&self, vector: usize) -> bool {
        self.vector == Some(vector)
    }

    /// Forgets peers by vector entry, because the vector's entries have changed.
    pub fn clear_cached_numbers(&mut self) {
        self.peers.clear();
        self.bindings.clear_cached_numbers();
    }

    /// Handles arrivals and writes completions. Returns the number of events. It is not inlined, so that the program
    /// contains one copy of the hot path of an arriving message.
    #[inline(never)]
    pub fn progress(
        &mut self,
        queues: &mut Table<CompletionQueue>,
        counters: &mut Table<Counter>,
        vectors: &Table<AddressVector>,
    ) -> usize {
        let mut events = self.write_completions(queues, counters, vectors);
        let Endpoint { engine: Some(engine), bindings, .. } = self else { return events };
        let bound = DomainQueues { queues: &mut *queues, counters: &mut *counters };
        events += engine.progress_with_sink(&mut CqWriter { bindings, bound });
        events + self.write_completions(queues, counters, vectors)
    }

    /// Writes completions that wait in the engine. Returns their number.
    #[inline(always)]
    pub fn write_completions(
        &mut self,
        queues: &mut Table<CompletionQueue>,
        counters: &mut Table<Counter>,
        vectors: &Table<AddressVector>,
    ) -> usize {
        match &self.engine {
            Some(engine) if engine.has_completions() => self.write_waiting(queues, counters, vectors),
            _ => 0,
        }
    }

    #[inline(never)]
    fn write_waiting(
        &mut self,
        queues: &mut Table<CompletionQueue>,
        counters: &mut Table<Counter>,
        vectors: &Table<AddressVector>,
    ) -> usize {
        let mut events = 0;
        while let Some(completion) = self.engine.as_mut().and_then(Engine::next_completion) {
            events += 1;
            if let (Operation::Join | Operation::Collective, Some(engine)) =
                (completion.operation, &mut self.engine)
            {
                engine.let_groups_leave();
            }
            if completion.operation == Operation::Join {
                self.report_join(&completion);
                continue;
            }
            if let (Operation::Peek, Outcome::Found { claimed: Some(message), .. }) =
                (completion.operation, completion.outcome)
            {
                self.claims.add(completion.post.context, message);
            }
            let Endpoint { engine, bindings, vector, .. } = self;
            let bound = &mut DomainQueues { queues: &mut *queues, counters: &mut *counters };
            bindings.write_deferred(&completion, bound, |peer| {
                vectors[(*vector)?].number(&engine.as_ref()?.address_of(peer))
            });
        }
        events
    }

    /// Joins the group of these members, by their numbers in the vector of the index. `group`: the address of its object,
    /// which the event names. Returns the group's number in the engine.
    ///
    /// # Errors
    /// The endpoint is not open for collectives, not enabled or has no event queue, it is no member or a member is not in
    /// the vector, or there are as many groups as allowed.
    pub fn join_group(
        &mut self,
        members: &[FiAddr],
        vector: &AddressVector,
        (context, group): (usize, usize),
    ) -> Result<u32, Error> {
        if self.endpoint_attr.caps & caps::COLLECTIVE == 0 {
            return Err(Error::NOT_SUPPORTED);
        }
        let engine = self.engine.as_mut().ok_or(Error::BAD_STATE)?;
        let events = self.events.as_ref().ok_or(Error::NO_EVENT_QUEUE)?;
        if members.len() > MAX_COLLECTIVE_MEMBERS {
            return Err(Error::INVALID);
        }
        let addresses = members.iter().map(|number| vector.address(*number).ok_or(Error::INVALID));
        let addresses: Vec<_> = addresses.collect::<Result<_, _>>()?;
        let own = engine.address();
        let rank = addresses.iter().position(|address| *address == own).ok_or(Error::INVALID)?;
        let peers = addresses.iter().map(|address| engine.peer(address)).collect();
        let number = engine.join_collective(Post { context, cookie: group as u64 }, peers, rank as u32)?;
        events.begin_join(group);
        Ok(number)
    }

    /// All have joined a group, or one is lost.
    #[cold]
    fn report_join(&self, completion: &Completion) {
        let Post { context, cookie } = completion.post;
        let error = match completion.outcome {
            Outcome::Lost { fault, .. } => number::lost(fault),
            _ => 0,
        };
        if let Some(events) = &self.events {
            events.end_join(cookie as usize, context, error);
        }
    }

    /// After a poll without an event: see [`Engine::spin_for_arrival`]. Does nothing if the process has other
    /// engines, for the reason that [`Endpoint::pause`] gives.
    #[inline]
    pub fn spin_for_arrival(&mut self) -> bool {
        match &mut self.engine {
            Some(engine) => OPEN_ENGINES.load(Ordering::Relaxed) == 1 && engine.spin_for_arrival(),
            None => false,
        }
    }

    /// After another poll without an event in a spin: see [`Engine::continues_spin`].
    #[inline]
    pub fn continues_spin(&mut self) -> bool {
        self.engine.as_mut().is_some_and(Engine::continues_spin)
    }

    /// After a poll without an event: see [`Engine::pause`].
    ///
    /// A process can have several engines (MPICH with several VCIs, Open MPI with its mtl and btl). Its caller
    /// probably polls them in turn. A sleep on the doorbell of one would miss arrivals at the others until it ends.
    /// So with several engines no endpoint sleeps. Yields still leave the core to other ranks, but an idle process
    /// keeps its core busy. Shorter sleeps would not help: each costs a heavy fence for every engine.
    pub fn pause(&mut self) {
        if OPEN_ENGINES.load(Ordering::Relaxed) > 1 {
            match &mut self.engine {
                Some(engine) => engine.yield_core(),
                None => weir_link::cores::yield_now(),
            }
        } else if let Some(engine) = &mut self.engine {
            engine.pause();
        }
    }

    /// After a poll without an event: see [`Engine::pause_awake`].
    pub fn pause_awake(&mut self) {
        if let Some(engine) = &mut self.engine {
            engine.pause_awake();
        }
    }

    /// Sleeps until something arrives, at most `at_most_ns`.
    pub fn wait(&mut self, at_most_ns: u64) {
        match &mut self.engine {
            Some(engine) => engine.wait(at_most_ns),
            None => std::thread::yield_now(),
        }
    }

    /// Peers access the regions with these keys through this endpoint no more: who closes regions does not find it.
    pub fn forget_regions(&mut self, keys: impl IntoIterator<Item = u64>) {
        if let Some(engine) = self.engine() {
            keys.into_iter().for_each(|key| engine.deregister_memory(key));
        }
    }

    /// Takes the engine, to close it. The endpoint cannot be used afterwards. Its watcher must have ended.
    pub fn take_engine(&mut self) -> Option<Engine> {
        let mut engine = self.engine.take()?;
        if engine.is_watched() {
            engine.end_watch();
        }
        Some(engine)
    }

    /// Context, cookie and flags of an operation.
    #[inline(always)]
    pub fn post(&self, side: Side, context: usize, flags: Flags) -> (Post, u64) {
        let binding = self.bindings.binding(side);
        let default = match side {
            Side::Transmit => self.endpoint_attr.transmit_flags,
            Side::Receive => self.endpoint_attr.receive_flags,
        };
        let given = match flags {
            Flags::Default => default,
            Flags::Given(given) => given,
            Flags::Added(added) => default | added,
            Flags::Inject => flags::INJECT,
        };
        let silent = matches!(flags, Flags::Inject)
            || binding.is_some_and(|binding| binding.selective) && given & flags::COMPLETION == 0;
        (Post { context, cookie: if silent { 0 } else { WANTS_ENTRY } }, given)
    }

    /// Prepares an operation of `side` for the engine. `address` names the peer. [`ADDR_UNSPEC`] names none.
    /// `bound`, `vectors`: those of the domain. `first_post`: the
    /// program has not posted since it last looked at its other sources of messages.
    ///
    /// # Errors
    /// The endpoint is not enabled, or the address is not in the vector.
    #[inline(always)]
    pub fn prepare<'a>(
        &'a mut self,
        (side, address, context, flags): (Side, FiAddr, usize, Flags),
        bound: DomainQueues<'a>,
        vectors: &Table<AddressVector>,
        first_post: bool,
    ) -> Result<Posting<'a>, Error> {
        let (post, flags) = self.post(side, context, flags);
        let directed = side == Side::Transmit || self.endpoint_attr.caps & caps::DIRECTED_RECV != 0;
        let peer =
            if address == ADDR_UNSPEC || !directed || flags & (flags::CLAIM | flags::PEEK) == flags::CLAIM {
                None // a claimed message is found by its context; Open MPI passes a meaningless address here
            } else if let Some(&Some(peer)) = self.peers.get(address as usize) {
                Some(peer)
            } else {
                Some(self.find_peer(address, vectors)?)
            };
        let min_multi_recv = self.min_multi_recv as u64;
        let Endpoint { engine, claims, bindings, .. } = self;
        let engine = engine.as_mut().ok_or(Error::BAD_STATE)?;
        if first_post {
            let queue = bindings.receive.map(|binding| &bound.queues[binding.queue]);
            engine.before_post(queue.is_none_or(|queue| queue.entries.is_empty()));
        }
        Ok(Posting {
            engine,
            post,
            flags,
            peer,
            min_multi_recv,
            claims,
            cq_writer: CqWriter { bindings, bound },
        })
    }

    /// Finds the peer of an address that is used for the first time.
    #[cold]
    fn find_peer(&mut self, address: FiAddr, vectors: &Table<AddressVector>) -> Result<Peer, Error> {
        let engine = self.engine.as_mut().ok_or(Error::BAD_STATE)?;
        let vector = self.vector.ok_or(Error::NO_VECTOR)?;
        let known = vectors[vector].address(address).ok_or(Error::INVALID)?;
        let peer = engine.peer(&known);
        let place = address as usize;
        if self.peers.len() <= place {
            self.peers.resize(place + 1, None);
        }
        self.peers[place] = Some(peer);
        Ok(peer)
    }
}

/// An operation that is ready for the engine.
pub struct Posting<'a> {
    /// The engine.
    pub engine: &'a mut Engine,
    /// Context and cookie.
    pub post: Post,
    /// Flags that apply.
    pub flags: u64,
    /// The peer that the call names, if any.
    pub peer: Option<Peer>,
    /// A multi-receive buffer with fewer free bytes is released. Unit: bytes.
    pub min_multi_recv: u64,
    /// Messages that a peek has claimed.
    pub claims: &'a mut Claims,
    /// The queues for a completion that occurs at once.
    pub cq_writer: CqWriter<'a>,
}

impl Posting<'_> {
    /// The event that completes a send with these flags.
    #[inline(always)]
    pub fn level(&self) -> SendLevel {
        if self.flags & flags::MATCH_COMPLETE != 0 {
            SendLevel::Matched
        } else if self.flags & DELIVERED_FLAGS != 0 {
            SendLevel::Delivered
        } else {
            SendLevel::Buffered
        }
    }
}
