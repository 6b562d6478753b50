//! Groups of endpoints for collective operations (`fi_join_collective`): the object that C holds, and joining and closing.
//!
//! The engine joins. When all members have, it says so in an event ([`crate::state::event_queue`]). A group that is closed
//! ends when all members have closed it ([`weir_engine::Engine::close_collective`]).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::av_set::SetHandle;
use crate::endpoint_handle::EndpointHandle;
use crate::errno::{Error, status};
use crate::ffi::*;
use crate::state::domain_state::{Domain, State, skip_in_forked_child};
use crate::state::event_queue::EventQueue;

/// The object that C holds; the first members are `fid_mc`.
#[repr(C)]
pub struct GroupHandle {
    pub(crate) fid: Fid,
    /// The address of the group, which `fi_mc_addr` reads.
    pub(crate) fi_addr: FiAddr,
    domain: Arc<Domain>,
    /// Index of the endpoint.
    endpoint: usize,
    events: Option<Arc<EventQueue>>,
}

object!(GroupHandle, class::MC, FID_OPS);

const _: () = assert!(std::mem::offset_of!(GroupHandle, fi_addr) == 24);

static FID_OPS: FiOps<GroupHandle> = FiOps {
    size: size_of::<FiOps<GroupHandle>>(),
    close,
    bind: no_bind,
    control: no_control,
    ops_open: not_implemented,
    tostr: not_implemented,
    ops_set: not_implemented,
};

/// Marks the address of a group. Numbers of addresses are less.
const GROUP_ADDRESS: FiAddr = 1 << 62;

/// The number in the engine of the group with this address.
///
/// # Errors
/// It is no address of a group.
pub fn group_at(address: FiAddr) -> Result<u32, Error> {
    let number = address.checked_sub(GROUP_ADDRESS).and_then(|number| u32::try_from(number).ok());
    number.ok_or(Error::INVALID)
}

/// `fi_join` of an endpoint. Only groups for collective operations can be joined.
pub extern "C" fn join(
    endpoint: &EndpointHandle,
    address: *const c_void,
    flags: u64,
    mut to: Out<*mut Fid>,
    context: usize,
) -> c_int {
    status(try_join(endpoint, address, flags, context).map(|group| to.set(Box::into_raw(group).cast())))
}

fn try_join(
    endpoint: &EndpointHandle,
    address: *const c_void,
    flags: u64,
    context: usize,
) -> Result<Box<GroupHandle>, Error> {
    if flags & flags::COLLECTIVE == 0 {
        return Err(Error::NOT_IMPLEMENTED); // multicast
    }
    // These could restrict what the endpoint does in the group.
    if flags & !(flags::COLLECTIVE | flags::SEND | flags::RECV) != 0 {
        return Err(Error::BAD_FLAGS);
    }
    let address = inner(address.cast::<FiCollectiveAddr>()).ok_or(Error::INVALID)?;
    let set = AnyObject::from(address.set).of::<SetHandle>().ok_or(Error::INVALID)?;
    endpoint.same_domain(&set.domain)?;
    let members = set.numbers();
    let mut group = Box::new(GroupHandle {
        fid: Fid { fclass: class::MC, context, ops: (&raw const FID_OPS).cast() },
        fi_addr: ADDR_UNSPEC,
        domain: endpoint.domain.clone(),
        endpoint: endpoint.index,
        events: None,
    });
    let object = &raw const *group as usize;
    let mut state = endpoint.enter();
    let State { endpoints, vectors, .. } = &mut *state;
    let this = &mut endpoints[endpoint.index];
    let joined = this.join_group(&members, &vectors[set.vector], (context, object));
    if let Some(engine) = this.engine() {
        engine.wake_watcher_for_completions();
    }
    group.fi_addr = GROUP_ADDRESS | FiAddr::from(joined?);
    group.events = this.events.clone();
    state.after_post(&Ok(()));
    drop(state);
    Ok(group)
}

/// Closes a group, unless operations have not ended.
extern "C" fn close(group: Box<GroupHandle>) -> c_int {
    skip_in_forked_child!(group);
    let mut state = group.domain.enter();
    let engine = state.endpoints.get_mut(group.endpoint).and_then(|endpoint| endpoint.engine());
    let number = group_at(group.fi_addr);
    let closed = match (engine, number) {
        (Some(engine), Ok(number)) => engine.close_collective(number),
        _ => true,
    };
    drop(state);
    if !closed {
        Box::leak(group); // the program keeps it
        return Error::BUSY.code();
    }
    if let Some(events) = &group.events {
        events.forget(&raw const *group as usize);
    }
    0
}
