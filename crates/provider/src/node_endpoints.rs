//! The open endpoints of this process that are in a node segment. Groups (`node_groups.rs`) and the roster
//! (`roster.rs`) use one of them. This file knows neither.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use weir_engine::Engine;
use weir_engine::node_group_interface::{ACROSS, INITIALIZES, INITIALIZING, Initializes};
use weir_engine::operation_times::OperationTimes;
use weir_link::Address;
use weir_link::shm::node_segment::NodeHandle;

use crate::endpoint_handle::{EndpointHandle, TaggedTable};
use crate::ffi::FiOpsTagged;
use crate::state::domain_state::Domain;

/// An open endpoint.
#[derive(Clone)]
pub struct OpenEndpoint {
    /// Its process: a forked child inherits the entries of its parent.
    process: u32,
    /// Its place in the node segment.
    pub handle: NodeHandle,
    /// What its collective operations are added to.
    pub times: Arc<OperationTimes>,
    /// Its address.
    pub address: Address,
    /// Its domain, and its index there.
    pub domain: Weak<Domain>,
    /// See `domain`.
    pub index: usize,
    tagged: Table,
}

/// The place of the table of tagged calls, in the object that C holds. `None`: the endpoint has no such object.
#[derive(Clone, Copy)]
struct Table(Option<NonNull<TaggedTable>>);

// SAFETY: the place is one of an atomic pointer.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

static OPEN: Mutex<Vec<OpenEndpoint>> = Mutex::new(Vec::new());

fn open() -> MutexGuard<'static, Vec<OpenEndpoint>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tests that offer endpoints run one after the other.
#[cfg(test)]
pub fn offer_alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of the endpoint.
pub fn number(handle: &NodeHandle) -> u64 {
    NodeHandle::endpoint(handle)
}

/// An endpoint has opened. In `MPI_Init`, others are to wait until this process has entered the roster. The MPI tells them
/// the endpoint's address after this call.
///
/// - `domain`, `index`: where calls find its engine.
/// - `tagged`: stays where it is until the endpoint is withdrawn.
pub fn offer(engine: &Engine, domain: Weak<Domain>, index: usize, tagged: Option<&TaggedTable>) {
    if let Some(handle) = engine.node_handle() {
        handle.set_awaited(doings() & INITIALIZING != 0);
        let (process, address) = (std::process::id(), engine.address());
        let table = table(); // stays locked, so that no other one is set meanwhile
        if let (Some(place), Some(table)) = (tagged, *table) {
            place.set(table);
        }
        let tagged = Table(tagged.map(NonNull::from));
        let times = engine.operation_times();
        open().push(OpenEndpoint { process, handle, times, address, domain, index, tagged });
    }
}

/// The table that all endpoints have got, and those get that open later. `None`: the usual one.
static TABLE: Mutex<Option<&'static FiOpsTagged<EndpointHandle>>> = Mutex::new(None);

fn table() -> MutexGuard<'static, Option<&'static FiOpsTagged<EndpointHandle>>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives all endpoints this table of tagged calls.
pub fn set_tables(new: &'static FiOpsTagged<EndpointHandle>) {
    let mut table = table();
    for place in open().iter().filter_map(|endpoint| endpoint.tagged.0) {
        // SAFETY: the endpoint is open, so its object is there; endpoints are withdrawn under the same lock.
        unsafe { place.as_ref() }.set(new);
    }
    *table = Some(new);
}

/// An endpoint closes.
pub fn withdraw(engine: &Engine) {
    if let Some(handle) = engine.node_handle() {
        open().retain(|other| number(&other.handle) != number(&handle));
    }
}

/// The first open endpoint of this process for which `suits` is true.
pub fn find(suits: impl Fn(&NodeHandle) -> bool) -> Option<OpenEndpoint> {
    let here = std::process::id();
    let open = open();
    open.iter().find(|endpoint| endpoint.process == here && suits(&endpoint.handle)).cloned()
}

/// Nobody is to wait for this process any more.
pub fn set_unawaited() {
    let here = std::process::id();
    let ours = |endpoint: &&OpenEndpoint| endpoint.process == here;
    open().iter().filter(ours).for_each(|endpoint| endpoint.handle.set_awaited(false));
}

/// Whether this process takes part in groups across nodes, as far as it says so when an endpoint opens.
pub fn takes_part_across() -> bool {
    doings() & ACROSS != 0
}

/// What this process does, as `libweir-mpi.so` says.
fn doings() -> std::ffi::c_int {
    // SAFETY: a string that ends with NUL; the search runs no code.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, INITIALIZES.as_ptr()) };
    if address.is_null() {
        return 0;
    }
    // SAFETY: only libweir-mpi.so has this name, which it gives to a function of this type.
    unsafe { std::mem::transmute::<*mut std::ffi::c_void, Initializes>(address)() }
}
