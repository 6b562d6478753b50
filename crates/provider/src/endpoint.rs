//! Endpoints: the calls that open, bind, enable and close them, read their address, cancel receives, and read and set
//! their only option.
//!
//! Enabling the endpoint opens the engine. Only then the number of peers is known (the address vector's count). From
//! then on the endpoint has an address.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_engine::config::report_once_in_job;
use weir_engine::job::Job;
use weir_engine::{Engine, OpenError};
use weir_link::ADDRESS_BYTES;

use crate::av::VectorHandle;
use crate::closing::close_endpoint;
use crate::counter::CounterHandle;
use crate::cq::QueueHandle;
use crate::endpoint_handle::{EndpointHandle, TaggedTable};
use crate::eq::EventQueueHandle;
use crate::errno::{Error, ssize_status, status};
use crate::ffi::*;
use crate::marks::with_mark;
use crate::state::cq_writer::{Binding, COUNTER_FLAGS};
use crate::state::domain_state::{Domain, State, skip_in_forked_child};
use crate::state::endpoint::{Endpoint, EndpointAttr};
use crate::{
    atomic, automatic_progress, collective, core_provider, group, log, message, node_endpoints, rma, tagged,
};

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
    join: group::join,
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
        tagged: TaggedTable::new(&tagged::OPS),
        atomic: &atomic::OPS,
        collective: &collective::OPS,
        domain: domain.clone(),
        index,
    })
}

extern "C" fn close(handle: Box<EndpointHandle>) -> c_int {
    skip_in_forked_child!(handle);
    let mut state = handle.domain.enter();
    let State { endpoints, queues, counters, regions, .. } = &mut *state;
    let mut endpoint = endpoints.remove(handle.index);
    endpoint.iter_mut().for_each(|endpoint| endpoint.forget_regions(regions.keys().copied()));
    let source = endpoint.as_ref().and_then(|endpoint| endpoint.source);
    let receives = source.and_then(|source| endpoints.remove(source)); // with groups that their owners have left
    for bound in queues.iter_mut().map(|queue| &mut queue.endpoints) {
        bound.retain(|&index| index != handle.index && Some(index) != source);
    }
    for bound in counters.iter_mut().map(|counter| &mut counter.endpoints) {
        bound.retain(|&index| index != handle.index);
    }
    drop(state);
    drop(receives);
    let Some(endpoint) = &mut endpoint else { return 0 };
    drop(endpoint.waits.take_watcher()); // ends the thread, which may be waiting for the domain
    let Some(engine) = endpoint.take_engine() else { return 0 };
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
            self.domain.enter().endpoints[self.index].events = Some(Arc::clone(&events.queue));
            Ok(())
        } else {
            Err(Error::INVALID)
        }
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
        if endpoint.engine().is_some() {
            return Ok(());
        }
        let vector = endpoint.vector.ok_or(Error::NO_VECTOR)?;
        if endpoint.bindings.transmit.is_none() && endpoint.bindings.receive.is_none() {
            return Err(Error::NO_QUEUE);
        }
        let peers = u32::try_from(vectors[vector].expected).unwrap_or(u32::MAX);
        let job = Job::of_launcher(peers);
        let settings = &self.domain.settings;
        let opened = Engine::open_in_libfabric(settings, job, *several_threads, &core_provider::open);
        let mut engine = opened.map_err(|error| {
            let report = || log::report(&format!("cannot open an endpoint: {error}"));
            match &error {
                // The link has reported a lack of memory, once for the whole job.
                OpenError::Mailbox(reason) if reason.is_no_space() => {}
                error if error.is_setting() => report_once_in_job(report),
                _ => report(),
            }
            Error::from(&error)
        })?;
        if let Some(error) = engine.node_segment_error() {
            log::info(|| {
                format!("{error}; this rank relies on the launcher for the number of ranks on this node")
            });
        }
        engine.on_stall(log::report);
        node_endpoints::offer(&engine, Arc::downgrade(&self.domain), self.index, Some(&self.tagged));
        for (&key, region) in regions.iter() {
            engine.register_memory(key, region.memory.view(), region.readable, region.writable);
        }
        endpoint.is_marked = node_endpoints::takes_part_across();
        endpoint.enable(engine);
        self.domain.enabled_endpoints.fetch_add(1, Ordering::Relaxed);
        drop(state);
        if self.domain.automatic_progress {
            automatic_progress::start(&self.domain, self.index)
        } else {
            Ok(())
        }
    }

    fn name(&self, mut to: OutArray<u8>, mut bytes: Out<usize>) -> Result<(), Error> {
        let mut state = self.domain.enter();
        let endpoint = &mut state.endpoints[self.index];
        let is_marked = endpoint.is_marked;
        let engine = endpoint.engine().ok_or(Error::BAD_STATE)?;
        let room = bytes.value().ok_or(Error::INVALID)?;
        let whole = room >= ADDRESS_BYTES && to.is_some();
        if whole {
            to.set_bytes(&with_mark(&engine.address(), is_marked));
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
