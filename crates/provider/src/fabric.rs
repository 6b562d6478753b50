//! The fabric: the first object that a program opens, and the calls that open domains and event queues in it. It stores
//! the version of the API that the program uses.

use std::ffi::c_int;

use crate::domain::{self, DomainHandle};
use crate::eq::{self, EventQueueHandle};
use crate::errno::{Error, status};
use crate::ffi::*;
use crate::try_wait::try_wait;

/// The object that C holds; the first members are `fid_fabric`.
#[repr(C)]
pub struct FabricHandle {
    pub(crate) fid: Fid,
    pub(crate) ops: *const FiOpsFabric<FabricHandle, DomainHandle, EventQueueHandle>,
    /// The core writes here after [`open`] has returned. Do not read it.
    _written_by_the_core: u32,
    api_version: u32,
}

object!(FabricHandle, class::FABRIC, FID_OPS);

const _: () = assert!(std::mem::offset_of!(FabricHandle, _written_by_the_core) == 32);

static FID_OPS: FiOps<FabricHandle> = FiOps {
    size: size_of::<FiOps<FabricHandle>>(),
    close,
    bind: no_bind,
    control: no_control,
    ops_open: not_implemented,
    tostr: not_implemented,
    ops_set: not_implemented,
};

static OPS: FiOpsFabric<FabricHandle, DomainHandle, EventQueueHandle> = FiOpsFabric {
    size: size_of::<FiOpsFabric<FabricHandle, DomainHandle, EventQueueHandle>>(),
    domain,
    passive_ep: not_implemented,
    eq_open,
    wait_open: not_implemented,
    trywait,
    domain2,
};

/// `fi_fabric`, called by the core.
pub extern "C" fn open(
    attr: Option<&FiFabricAttr>,
    mut fabric: Out<*mut FabricHandle>,
    context: usize,
) -> c_int {
    let Some(attr) = attr else { return Error::INVALID.code() };
    fabric.set(hand_out(FabricHandle {
        fid: Fid { fclass: class::FABRIC, context, ops: (&raw const FID_OPS).cast() },
        ops: &OPS,
        _written_by_the_core: 0,
        api_version: attr.api_version,
    }));
    0
}

extern "C" fn close(fabric: Box<FabricHandle>) -> c_int {
    drop(fabric);
    0
}

extern "C" fn domain(
    fabric: &FabricHandle,
    info: Option<&FiInfo>,
    mut to: Out<*mut DomainHandle>,
    context: usize,
) -> c_int {
    status(domain::open(fabric.api_version, info, context).map(|domain| to.set(domain)))
}

extern "C" fn domain2(
    fabric: &FabricHandle,
    info: Option<&FiInfo>,
    to: Out<*mut DomainHandle>,
    flags: u64,
    context: usize,
) -> c_int {
    match flags {
        0 => domain(fabric, info, to, context),
        _ => Error::NOT_IMPLEMENTED.code(), // peer domains
    }
}

extern "C" fn eq_open(
    fabric: &FabricHandle,
    attr: Option<&FiEqAttr>,
    mut to: Out<*mut EventQueueHandle>,
    context: usize,
) -> c_int {
    status(eq::open(fabric.api_version, attr, context).map(|queue| to.set(queue)))
}

/// `fi_trywait`.
extern "C" fn trywait(_fabric: &FabricHandle, objects: InArray<AnyObject>, count: c_int) -> c_int {
    status(try_wait(&objects, count))
}
