//! Domains: the calls that open and close one, and those by which programs open endpoints, queues, counters, address
//! vectors and regions in it. The first domain also redirects `sched_yield` of the loaded MPI libraries, if the setting
//! asks for it.

use std::ffi::c_int;
use std::sync::{Arc, Once};

use crate::atomic;
use crate::av::{self, VectorHandle};
use crate::collective;
use crate::counter::{self, CounterHandle};
use crate::cq::{self, QueueHandle};
use crate::endpoint;
use crate::endpoint_handle::EndpointHandle;
use crate::errno::{Error, status};
use crate::ffi::*;
use crate::message::scattered;
use crate::mr::{self, RegionHandle, Registration};
use crate::poll_set::{self, PollSetHandle};
use crate::state::domain_state::{Domain, Mode, skip_in_forked_child};
use crate::state::endpoint::EndpointAttr;
use crate::{limits, log, settings};

/// The object that C holds; the first members are `fid_domain`.
#[repr(C)]
pub struct DomainHandle {
    pub(crate) fid: Fid,
    pub(crate) ops: *const FiOpsDomain<
        DomainHandle,
        VectorHandle,
        QueueHandle,
        EndpointHandle,
        CounterHandle,
        PollSetHandle,
    >,
    pub(crate) mr: *const FiOpsMr<DomainHandle, RegionHandle>,
    domain: Arc<Domain>,
}

object!(DomainHandle, class::DOMAIN, FID_OPS);

static FID_OPS: FiOps<DomainHandle> = FiOps {
    size: size_of::<FiOps<DomainHandle>>(),
    close,
    bind,
    control: no_control,
    ops_open: not_implemented,
    tostr: not_implemented,
    ops_set: not_implemented,
};

static OPS: FiOpsDomain<
    DomainHandle,
    VectorHandle,
    QueueHandle,
    EndpointHandle,
    CounterHandle,
    PollSetHandle,
> = FiOpsDomain {
    size: size_of::<
        FiOpsDomain<DomainHandle, VectorHandle, QueueHandle, EndpointHandle, CounterHandle, PollSetHandle>,
    >(),
    av_open,
    cq_open,
    endpoint,
    scalable_ep: not_implemented,
    cntr_open,
    poll_open,
    stx_ctx: not_implemented,
    srx_ctx: not_implemented,
    query_atomic,
    query_collective,
    endpoint2,
};

extern "C" fn query_atomic(
    _domain: &DomainHandle,
    datatype: c_int,
    operation: c_int,
    attr: Out<FiAtomicAttr>,
    flags: u64,
) -> c_int {
    atomic::query(datatype, operation, attr, flags)
}

extern "C" fn query_collective(
    _domain: &DomainHandle,
    operation: c_int,
    attr: Option<&mut FiCollectiveAttr>,
    flags: u64,
) -> c_int {
    status(collective::query(operation, attr, flags))
}

static MR_OPS: FiOpsMr<DomainHandle, RegionHandle> =
    FiOpsMr { size: size_of::<FiOpsMr<DomainHandle, RegionHandle>>(), reg, regv, regattr };

impl DomainHandle {
    /// The domain's state and constants.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }
}

/// `fi_domain`.
///
/// # Errors
/// [`Error::INVALID`] if a setting is wrong.
pub fn open(api_version: u32, info: Option<&FiInfo>, context: usize) -> Result<*mut DomainHandle, Error> {
    let settings = settings::read()?;
    if settings.skip_yields {
        intercept_yields();
    }
    let attr = info.and_then(|info| inner(info.domain_attr));
    let threading = attr.map_or(0, |attr| attr.threading);
    let automatic_progress = attr.is_some_and(|attr| attr.data_progress == progress::AUTO);
    let mode = if threading == threading::DOMAIN { Mode::Serialised } else { Mode::Shared };
    Ok(hand_out(DomainHandle {
        fid: Fid { fclass: class::DOMAIN, context, ops: (&raw const FID_OPS).cast() },
        ops: &OPS,
        mr: &MR_OPS,
        domain: Domain::open(mode, automatic_progress, api_version, settings),
    }))
}

/// Runs once. An MPI library that is loaded later keeps its yields.
fn intercept_yields() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for library in weir_link::sched_yield::intercept() {
            log::info(|| {
                format!("redundant yields of {library} are skipped (set FI_WEIR_SKIP_YIELDS=0 to keep them)")
            });
        }
    });
}

/// Objects that are still open keep the domain's state.
extern "C" fn close(domain: Box<DomainHandle>) -> c_int {
    skip_in_forked_child!(domain);
    drop(domain);
    0
}

/// Event queues can be bound. No event is reported.
extern "C" fn bind(_domain: &DomainHandle, other: AnyObject, _flags: u64) -> c_int {
    status(if other.class() == Some(class::EQ) { Ok(()) } else { Err(Error::INVALID) })
}

extern "C" fn av_open(
    domain: &DomainHandle,
    attr: Option<&mut FiAvAttr>,
    mut to: Out<*mut VectorHandle>,
    context: usize,
) -> c_int {
    status(av::open(&domain.domain, attr, context).map(|vector| to.set(vector)))
}

extern "C" fn cq_open(
    domain: &DomainHandle,
    attr: Option<&FiCqAttr>,
    mut to: Out<*mut QueueHandle>,
    context: usize,
) -> c_int {
    status(cq::open(&domain.domain, attr, context).map(|queue| to.set(queue)))
}

extern "C" fn cntr_open(
    domain: &DomainHandle,
    attr: Option<&FiCntrAttr>,
    mut to: Out<*mut CounterHandle>,
    context: usize,
) -> c_int {
    status(counter::open(&domain.domain, attr, context).map(|counter| to.set(counter)))
}

extern "C" fn poll_open(
    domain: &DomainHandle,
    attr: Option<&FiPollAttr>,
    mut to: Out<*mut PollSetHandle>,
) -> c_int {
    status(poll_set::open(&domain.domain, attr).map(|set| to.set(set)))
}

extern "C" fn endpoint(
    domain: &DomainHandle,
    info: Option<&FiInfo>,
    mut to: Out<*mut EndpointHandle>,
    context: usize,
) -> c_int {
    let Some(info) = info else { return Error::INVALID.code() };
    if let Some(attr) = inner(info.ep_attr)
        && !matches!(attr.ep_type, ep_type::UNSPEC | ep_type::RDM)
    {
        return Error::INVALID.code();
    }
    let endpoint_attr = EndpointAttr {
        caps: if info.caps == 0 { limits::DEFAULT_CAPS } else { info.caps },
        transmit_flags: inner(info.tx_attr).map_or(0, |attr| attr.op_flags),
        receive_flags: inner(info.rx_attr).map_or(0, |attr| attr.op_flags),
    };
    to.set(endpoint::open(&domain.domain, endpoint_attr, context));
    0
}

extern "C" fn endpoint2(
    domain: &DomainHandle,
    info: Option<&FiInfo>,
    to: Out<*mut EndpointHandle>,
    flags: u64,
    context: usize,
) -> c_int {
    match flags {
        0 => endpoint(domain, info, to, context),
        _ => Error::NOT_IMPLEMENTED.code(), // for example peer transfers
    }
}

fn give(mut to: Out<*mut RegionHandle>, made: Result<*mut RegionHandle, Error>) -> c_int {
    status(made.map(|region| to.set(region)))
}

extern "C" fn reg(
    domain: &DomainHandle,
    buffer: UserBuffer,
    bytes: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    to: Out<*mut RegionHandle>,
    context: usize,
) -> c_int {
    let memory = buffer.memory(bytes);
    give(to, mr::register(&domain.domain, Registration { memory, access, offset, key, flags, context }))
}

extern "C" fn regv(
    domain: &DomainHandle,
    vector: UserVector,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    to: Out<*mut RegionHandle>,
    context: usize,
) -> c_int {
    give(
        to,
        scattered(vector, count).and_then(|memory| {
            mr::register(&domain.domain, Registration { memory, access, offset, key, flags, context })
        }),
    )
}

extern "C" fn regattr(
    domain: &DomainHandle,
    attr: Option<&FiMrAttr>,
    flags: u64,
    to: Out<*mut RegionHandle>,
) -> c_int {
    give(
        to,
        attr.ok_or(Error::INVALID).and_then(|attr| {
            let &FiMrAttr { access, offset, requested_key: key, context, .. } = attr;
            let memory = scattered(attr.mr_iov, attr.iov_count)?;
            mr::register(&domain.domain, Registration { memory, access, offset, key, flags, context })
        }),
    )
}
