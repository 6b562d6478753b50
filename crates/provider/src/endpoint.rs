//! Endpoints: an engine, with the queues, counters and the address vector that are bound to it.
//!
//! Enabling the endpoint opens the engine. Only then the number of peers is known (the address vector's count). From
//! then on the endpoint has an address.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_engine::job::Job;
use weir_engine::{Engine, OpenError, Operation, Post};
use weir_link::ADDRESS_BYTES;
use weir_link::biased_lock::Guard;
use weir_proto::{Outcome, Peer, SendLevel};

use crate::av::VectorHandle;
use crate::closing::close_endpoint;
use crate::counter::CounterHandle;
use crate::cq::QueueHandle;
use crate::eq::EventQueueHandle;
use crate::errno::{Error, ssize_status, status};
use crate::ffi::*;
use crate::limits::DELIVERED_FLAGS;
use crate::state::address_vector::AddressVector;
use crate::state::claims::Claims;
use crate::state::completion::{Side, WANTS_ENTRY};
use crate::state::completion_queue::CompletionQueue;
use crate::state::counter::Counter;
use crate::state::cq_writer::{Binding, COUNTER_FLAGS, CqWriter, DomainQueues, EndpointBindings};
use crate::state::domain_state::{Domain, Mode, State, skip_in_forked_child};
use crate::state::table::Table;
use crate::{atomic, collective, log, message, rma, tagged};

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
pub(crate) static OPEN_ENGINES: AtomicUsize = AtomicUsize::new(0);

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
    bindings: EndpointBindings,
    vector: Option<usize>,
    min_multi_recv: usize,
    /// Peer of each entry of the address vector, if known.
    peers: Vec<Option<Peer>>,
    /// Messages that a peek has claimed.
    claims: Claims,
}

/// The source of an operation's flags.
#[derive(Clone, Copy)]
pub enum Flags {
    /// The call has no flags: the endpoint's default flags apply.
    Default,
    /// The call gave flags, which replace the endpoint's.
    Given(u64),
    /// An inject call: no entry, and the buffer is copied.
    Inject,
}

impl Endpoint {
    fn new(endpoint_attr: EndpointAttr) -> Endpoint {
        Endpoint {
            engine: None,
            open_guard: None,
            endpoint_attr,
            bindings: EndpointBindings::new(endpoint_attr.caps & caps::SOURCE != 0),
            vector: None,
            min_multi_recv: 64,
            peers: Vec::new(),
            claims: Claims::default(),
        }
    }

    /// The engine, if the endpoint is enabled.
    pub fn engine(&mut self) -> Option<&mut Engine> {
        self.engine.as_mut()
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

    /// After a poll without an event: see [`Engine::spin_for_arrival`]. Does nothing if the process has other
    /// engines, for the reason that [`Endpoint::pause`] gives.
    #[inline]
    pub fn spin_for_arrival(&mut self) -> bool {
        match &mut self.engine {
            Some(engine) => OPEN_ENGINES.load(Ordering::Relaxed) == 1 && engine.spin_for_arrival(),
            None => false,
        }
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

    /// Sleeps until something arrives, at most `at_most_ns`.
    pub fn wait(&mut self, at_most_ns: u64) {
        match &mut self.engine {
            Some(engine) => engine.wait(at_most_ns),
            None => std::thread::yield_now(),
        }
    }

    /// Takes the engine, to close it. The endpoint cannot be used afterwards.
    pub fn take_engine(&mut self) -> Option<Engine> {
        self.engine.take()
    }

    /// Context, cookie and flags of an operation.
    #[inline(always)]
    fn post(&self, side: Side, context: usize, flags: Flags) -> (Post, u64) {
        let binding = self.bindings.binding(side);
        let default = match side {
            Side::Transmit => self.endpoint_attr.transmit_flags,
            Side::Receive => self.endpoint_attr.receive_flags,
        };
        let given = match flags {
            Flags::Default => default,
            Flags::Given(given) => given,
            Flags::Inject => flags::INJECT,
        };
        let silent = matches!(flags, Flags::Inject)
            || binding.is_some_and(|binding| binding.selective) && given & flags::COMPLETION == 0;
        (Post { context, cookie: if silent { 0 } else { WANTS_ENTRY } }, given)
    }

    /// Finds the peer of an address that is used for the first time.
    #[cold]
    fn find_peer(&mut self, address: FiAddr, vectors: &Table<AddressVector>) -> Result<Peer, Error> {
        let vector = self.vector.ok_or(Error::NO_VECTOR)?;
        let known = vectors[vector].address(address).ok_or(Error::INVALID)?;
        let peer = self.engine.as_mut().ok_or(Error::BAD_STATE)?.peer(&known);
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

/// The object that C holds.
#[repr(C)]
pub struct EndpointHandle {
    pub(crate) fid: Fid,
    pub(crate) ops: *const FiOpsEp<EndpointHandle>,
    pub(crate) cm: *const FiOpsCm<EndpointHandle>,
    pub(crate) msg: *const FiOpsMsg<EndpointHandle>,
    pub(crate) rma: *const FiOpsRma<EndpointHandle>,
    pub(crate) tagged: *const FiOpsTagged<EndpointHandle>,
    atomic: *const FiOpsAtomic,
    collective: *const FiOpsCollective,
    domain: Arc<Domain>,
    index: usize,
}

const _: () = assert!(std::mem::offset_of!(EndpointHandle, domain) == 80); // fid_ep

object!(EndpointHandle, class::EP, FID_OPS);

static FID_OPS: FiOps<EndpointHandle> = FiOps {
    size: size_of::<FiOps<EndpointHandle>>(),
    close,
    bind,
    control,
    ops_open: not_implemented,
    tostr: not_implemented,
    ops_set: not_implemented,
};

static OPS: FiOpsEp<EndpointHandle> = FiOpsEp {
    size: size_of::<FiOpsEp<EndpointHandle>>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: not_implemented,
    rx_ctx: not_implemented,
    rx_size_left: not_implemented,
    tx_size_left: not_implemented,
};

static CM: FiOpsCm<EndpointHandle> = FiOpsCm {
    size: size_of::<FiOpsCm<EndpointHandle>>(),
    setname: not_implemented,
    getname,
    getpeer: not_implemented,
    connect: not_implemented,
    listen: not_implemented,
    accept: not_implemented,
    reject: not_implemented,
    shutdown: not_implemented,
    join: not_implemented,
};

/// `fi_endpoint`.
pub fn open(domain: &Arc<Domain>, endpoint_attr: EndpointAttr, context: usize) -> *mut EndpointHandle {
    let index = domain.enter().endpoints.insert(Endpoint::new(endpoint_attr));
    hand_out(EndpointHandle {
        fid: Fid { fclass: class::EP, context, ops: (&raw const FID_OPS).cast() },
        ops: &OPS,
        cm: &CM,
        msg: &message::OPS,
        rma: &rma::OPS,
        tagged: &tagged::OPS,
        atomic: &atomic::OPS,
        collective: &collective::OPS,
        domain: domain.clone(),
        index,
    })
}

extern "C" fn close(handle: Box<EndpointHandle>) -> c_int {
    skip_in_forked_child!(handle);
    let mut state = handle.domain.enter();
    let State { endpoints, queues, counters, .. } = &mut *state;
    let mut endpoint = endpoints.remove(handle.index);
    for bound in queues.iter_mut().map(|queue| &mut queue.endpoints) {
        bound.retain(|&index| index != handle.index);
    }
    for bound in counters.iter_mut().map(|counter| &mut counter.endpoints) {
        bound.retain(|&index| index != handle.index);
    }
    drop(state);
    let Some(engine) = endpoint.as_mut().and_then(Endpoint::take_engine) else { return 0 };
    let closed = close_endpoint(&handle.domain, engine);
    handle.domain.enabled_endpoints.fetch_sub(1, Ordering::Relaxed);
    status(closed)
}

extern "C" fn bind(handle: &EndpointHandle, other: AnyObject, flags: u64) -> c_int {
    status(handle.bind(other, flags))
}

extern "C" fn control(handle: &EndpointHandle, command: c_int, _argument: *mut c_void) -> c_int {
    match command {
        control::ENABLE => status(handle.enable()),
        _ => Error::NOT_IMPLEMENTED.code(),
    }
}

impl EndpointHandle {
    /// Enters the domain, for a call that posts an operation.
    #[inline(always)]
    pub fn enter(&self) -> Guard<'_, State> {
        self.domain.enter()
    }

    /// Prepares an operation for the engine. `address` names the peer. [`ADDR_UNSPEC`] names none.
    ///
    /// # Errors
    /// The endpoint is not enabled, or the address is not in the vector.
    #[inline(always)]
    pub fn prepare<'a>(
        &self,
        state: &'a mut State,
        side: Side,
        address: FiAddr,
        context: usize,
        flags: Flags,
    ) -> Result<Posting<'a>, Error> {
        let State { endpoints, queues, counters, vectors, poll_before_report, .. } = state;
        let endpoint = &mut endpoints[self.index];
        let (post, flags) = endpoint.post(side, context, flags);
        let engine = endpoint.engine.as_mut().ok_or(Error::BAD_STATE)?;
        if !*poll_before_report {
            let unread =
                endpoint.bindings.receive.is_some_and(|binding| !queues[binding.queue].entries.is_empty());
            engine.before_post(!unread);
        }
        let directed = side == Side::Transmit || endpoint.endpoint_attr.caps & caps::DIRECTED_RECV != 0;
        let peer =
            if address == ADDR_UNSPEC || !directed || flags & (flags::CLAIM | flags::PEEK) == flags::CLAIM {
                None // a claimed message is found by its context; Open MPI passes a meaningless address here
            } else if let Some(&Some(peer)) = endpoint.peers.get(address as usize) {
                Some(peer)
            } else {
                Some(endpoint.find_peer(address, vectors)?)
            };
        let min_multi_recv = endpoint.min_multi_recv as u64;
        let Endpoint { engine, claims, bindings, .. } = endpoint;
        let engine = engine.as_mut().ok_or(Error::BAD_STATE)?;
        let cq_writer = CqWriter { bindings, bound: DomainQueues { queues, counters } };
        Ok(Posting { engine, post, flags, peer, min_multi_recv, claims, cq_writer })
    }

    /// [`EndpointHandle::prepare`], then `act`, which posts the operation.
    ///
    /// # Errors
    /// Those of `prepare` and of `act`.
    #[inline]
    pub fn post<R>(
        &self,
        side: Side,
        address: FiAddr,
        context: usize,
        flags: Flags,
        act: impl FnOnce(Posting) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut state = self.enter();
        let result = act(self.prepare(&mut state, side, address, context, flags)?);
        state.after_post(&result);
        result
    }

    fn bind(&self, other: AnyObject, flags: u64) -> Result<(), Error> {
        if let Some(queue) = other.of::<QueueHandle>() {
            self.bind_queue(queue, flags)
        } else if let Some(counter) = other.of::<CounterHandle>() {
            self.bind_counter(counter, flags)
        } else if let Some(vector) = other.of::<VectorHandle>() {
            self.same_domain(&vector.domain)?;
            self.domain.enter().endpoints[self.index].vector = Some(vector.index);
            Ok(())
        } else if let Some(events) = other.of::<EventQueueHandle>() {
            events.watch(&self.domain);
            Ok(())
        } else {
            Err(Error::INVALID)
        }
    }

    /// Checks that the endpoint is in `domain`.
    ///
    /// # Errors
    /// It is in another domain.
    pub fn same_domain(&self, domain: &Arc<Domain>) -> Result<(), Error> {
        if Arc::ptr_eq(&self.domain, domain) { Ok(()) } else { Err(Error::OTHER_DOMAIN) }
    }

    fn bind_queue(&self, queue: &QueueHandle, flags: u64) -> Result<(), Error> {
        self.same_domain(&queue.domain)?;
        if flags & !(flags::SEND | flags::RECV | flags::SELECTIVE_COMPLETION) != 0 {
            return Err(Error::BAD_FLAGS);
        }
        let binding = Binding { queue: queue.index, selective: flags & flags::SELECTIVE_COMPLETION != 0 };
        let mut state = self.domain.enter();
        let endpoint = &mut state.endpoints[self.index];
        for (bit, side) in
            [(flags::SEND, &mut endpoint.bindings.transmit), (flags::RECV, &mut endpoint.bindings.receive)]
        {
            if flags & bit != 0 {
                if side.is_some() {
                    return Err(Error::INVALID);
                }
                *side = Some(binding);
            }
        }
        add_index(&mut state.queues[queue.index].endpoints, self.index);
        Ok(())
    }

    fn bind_counter(&self, counter: &CounterHandle, flags: u64) -> Result<(), Error> {
        self.same_domain(&counter.domain)?;
        let remote = flags::REMOTE_READ | flags::REMOTE_WRITE;
        let all = COUNTER_FLAGS.iter().fold(0, |all, bit| all | bit);
        if flags & !(all | remote) != 0 {
            return Err(Error::BAD_FLAGS);
        }
        if flags & remote != 0 {
            return Err(Error::NOT_IMPLEMENTED);
        }
        let mut state = self.domain.enter();
        let places = COUNTER_FLAGS.iter().enumerate().filter(|&(_, &bit)| flags & bit != 0);
        for (place, _) in places {
            state.endpoints[self.index].bindings.counters[place] = Some(counter.index);
        }
        add_index(&mut state.counters[counter.index].endpoints, self.index);
        Ok(())
    }

    fn enable(&self) -> Result<(), Error> {
        let mut state = self.domain.enter();
        let State { endpoints, vectors, regions, several_threads, .. } = &mut *state;
        let endpoint = &mut endpoints[self.index];
        if endpoint.engine.is_some() {
            return Ok(());
        }
        let vector = endpoint.vector.ok_or(Error::NO_VECTOR)?;
        if endpoint.bindings.transmit.is_none() && endpoint.bindings.receive.is_none() {
            return Err(Error::NO_QUEUE);
        }
        let peers = u32::try_from(vectors[vector].expected).unwrap_or(u32::MAX);
        let job = Job::of_launcher(peers);
        let opened = Engine::open(&self.domain.settings, job, self.domain.mode == Mode::Shared);
        let mut engine = opened.map_err(|error| {
            // The link has reported a lack of memory, once for the whole job.
            if !matches!(&error, OpenError::Mailbox(reason) if reason.is_no_space()) {
                log::report(&format!("cannot open an endpoint: {error}"));
            }
            Error::from(&error)
        })?;
        if let Some(error) = engine.node_segment_error() {
            log::info(|| {
                format!("{error}; this rank relies on the launcher for the number of ranks on this node")
            });
        }
        engine.on_stall(log::report);
        for (&key, region) in regions.iter() {
            engine.register_memory(key, region.memory.view(), region.readable, region.writable);
        }
        if *several_threads {
            engine.several_threads_call();
        }
        endpoint.engine = Some(engine);
        endpoint.open_guard = Some(OpenEngineGuard::begin());
        self.domain.enabled_endpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn name(&self, mut to: OutArray<u8>, mut bytes: Out<usize>) -> Result<(), Error> {
        let mut state = self.domain.enter();
        let engine = state.endpoints[self.index].engine().ok_or(Error::BAD_STATE)?;
        let room = bytes.value().ok_or(Error::INVALID)?;
        let whole = room >= ADDRESS_BYTES && to.is_some();
        if whole {
            to.set_bytes(&engine.address().0);
        }
        bytes.set(ADDRESS_BYTES);
        if whole { Ok(()) } else { Err(Error::TOO_SMALL) }
    }
}

fn add_index(indices: &mut Vec<usize>, index: usize) {
    if !indices.contains(&index) {
        indices.push(index);
    }
}

extern "C" fn getname(handle: &EndpointHandle, to: OutArray<u8>, bytes: Out<usize>) -> c_int {
    status(handle.name(to, bytes))
}

extern "C" fn cancel(handle: &EndpointHandle, context: usize) -> isize {
    let mut state = handle.domain.enter();
    let engine = state.endpoints[handle.index].engine().ok_or(Error::BAD_STATE);
    ssize_status(engine.and_then(|engine| if engine.cancel(context) { Ok(0) } else { Err(Error::NO_ENTRY) }))
}

/// The only supported option.
fn check_option(level: c_int, name: c_int) -> Result<(), Error> {
    match (level, name) {
        (option::LEVEL_ENDPOINT, option::MIN_MULTI_RECV) => Ok(()),
        _ => Err(Error::NO_OPTION),
    }
}

extern "C" fn getopt(
    handle: &EndpointHandle,
    level: c_int,
    name: c_int,
    mut value: Out<usize>,
    mut bytes: Out<usize>,
) -> c_int {
    status(check_option(level, name).and_then(|()| {
        let room = bytes.value().ok_or(Error::INVALID)?;
        bytes.set(size_of::<usize>());
        if room < size_of::<usize>() {
            return Err(Error::TOO_SMALL);
        }
        value.set(handle.domain.enter().endpoints[handle.index].min_multi_recv);
        Ok(())
    }))
}

extern "C" fn setopt(
    handle: &EndpointHandle,
    level: c_int,
    name: c_int,
    value: InArray<usize>,
    bytes: usize,
) -> c_int {
    status(check_option(level, name).and_then(|()| {
        if bytes != size_of::<usize>() {
            return Err(Error::INVALID);
        }
        handle.domain.enter().endpoints[handle.index].min_multi_recv = value.at(0).ok_or(Error::INVALID)?;
        Ok(())
    }))
}
