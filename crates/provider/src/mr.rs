//! Memory regions (`fi_mr`): the calls that register and close them. Keys are the program's (64 bits, unique in the
//! domain). Addresses are offsets from the start of the region (`mr_mode` 0, or scalable). A region from NULL with
//! length 2^64 - 1 is the whole address space (MPICH's dynamic windows).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use weir_link::memory::UserMemory;

use crate::counter::CounterHandle;
use crate::endpoint_handle::EndpointHandle;
use crate::errno::{Error, status};
use crate::ffi::*;
use crate::state::domain_state::{Domain, Region, State, skip_in_forked_child};

/// The object that C holds; the first members are `fid_mr`.
#[repr(C)]
pub struct RegionHandle {
    pub(crate) fid: Fid,
    mem_desc: *mut c_void,
    pub(crate) key: u64,
    domain: Arc<Domain>,
}

static FID_OPS: FiOps<RegionHandle> = FiOps {
    size: size_of::<FiOps<RegionHandle>>(),
    close,
    bind,
    control,
    ops_open: not_implemented,
    tostr: not_implemented,
    ops_set: not_implemented,
};

/// The accesses that a program may permit. Only the remote ones matter: the provider does not require registration of
/// local buffers.
const ACCESS: u64 = flags::SEND
    | flags::RECV
    | flags::READ
    | flags::WRITE
    | flags::REMOTE_READ
    | flags::REMOTE_WRITE
    | flags::COLLECTIVE;

/// The memory that a program registers.
pub struct Registration {
    /// The memory.
    pub memory: UserMemory,
    /// The permitted accesses.
    pub access: u64,
    /// Reserved: 0.
    pub offset: u64,
    /// The program's key.
    pub key: u64,
    /// Reserved: 0.
    pub flags: u64,
    /// The program's context.
    pub context: usize,
}

/// Registers memory on every endpoint of the domain, also on those enabled later.
///
/// # Errors
/// The key is in use; the access is unknown; flags or offset, which are reserved, are not 0.
pub fn register(domain: &Arc<Domain>, registration: Registration) -> Result<*mut RegionHandle, Error> {
    let Registration { memory, access, offset, key, flags, context } = registration;
    if flags != 0 {
        return Err(Error::BAD_FLAGS); // for example events of remote writes, device memory
    }
    if offset != 0 || access & !ACCESS != 0 {
        return Err(Error::INVALID);
    }
    let mut state = domain.enter();
    let State { endpoints, regions, .. } = &mut *state;
    if regions.contains_key(&key) {
        return Err(Error::NO_KEY);
    }
    let region = Region {
        memory,
        readable: access & flags::REMOTE_READ != 0,
        writable: access & flags::REMOTE_WRITE != 0,
    };
    for engine in endpoints.iter_mut().filter_map(|endpoint| endpoint.engine()) {
        engine.register_memory(key, region.memory.view(), region.readable, region.writable);
    }
    regions.insert(key, region);
    let fid = Fid { fclass: class::MR, context, ops: (&raw const FID_OPS).cast() };
    let mem_desc = std::ptr::null_mut();
    Ok(hand_out(RegionHandle { fid, mem_desc, key, domain: domain.clone() }))
}

extern "C" fn close(region: Box<RegionHandle>) -> c_int {
    skip_in_forked_child!(region);
    let mut state = region.domain.enter();
    let State { endpoints, regions, .. } = &mut *state;
    regions.remove(&region.key);
    for engine in endpoints.iter_mut().filter_map(|endpoint| endpoint.engine()) {
        engine.deregister_memory(region.key);
    }
    0
}

/// The provider does not request `FI_MR_ENDPOINT`. A program may bind regions to endpoints of the domain anyway.
extern "C" fn bind(region: &RegionHandle, other: AnyObject, flags: u64) -> c_int {
    status(if let Some(endpoint) = other.of::<EndpointHandle>() {
        match flags {
            0 => endpoint.same_domain(&region.domain),
            _ => Err(Error::BAD_FLAGS),
        }
    } else if other.of::<CounterHandle>().is_some() {
        Err(Error::NOT_IMPLEMENTED) // remote accesses are not counted
    } else {
        Err(Error::INVALID)
    })
}

extern "C" fn control(_region: &RegionHandle, command: c_int, _argument: *mut c_void) -> c_int {
    match command {
        control::ENABLE | control::REFRESH => 0,
        _ => Error::NOT_IMPLEMENTED.code(),
    }
}
