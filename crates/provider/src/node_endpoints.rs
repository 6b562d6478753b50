//! The open endpoints of this process that are in a node segment. Node groups (`node_groups.rs`) and the roster
//! (`roster.rs`) use one of them. This file knows neither.

use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_engine::Engine;
use weir_engine::node_group_interface::{INITIALIZES, Initializes};
use weir_link::shm::node_segment::NodeHandle;

/// The endpoints, with their processes: a forked child inherits the entries of its parent.
static OPEN: Mutex<Vec<(u32, NodeHandle)>> = Mutex::new(Vec::new());

fn open() -> MutexGuard<'static, Vec<(u32, NodeHandle)>> {
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
pub fn offer(engine: &Engine) {
    if let Some(handle) = engine.node_handle() {
        handle.set_awaited(is_initializing());
        open().push((std::process::id(), handle));
    }
}

/// An endpoint closes.
pub fn withdraw(engine: &Engine) {
    if let Some(handle) = engine.node_handle() {
        open().retain(|(_, other)| number(other) != number(&handle));
    }
}

/// The first open endpoint of this process for which `suits` is true.
pub fn find(suits: impl Fn(&NodeHandle) -> bool) -> Option<NodeHandle> {
    let here = std::process::id();
    let open = open();
    let found = open.iter().find(|(process, handle)| *process == here && suits(handle));
    found.map(|(_, handle)| handle.clone())
}

/// Nobody is to wait for this process any more.
pub fn set_unawaited() {
    let here = std::process::id();
    open().iter().filter(|(process, _)| *process == here).for_each(|(_, handle)| handle.set_awaited(false));
}

/// Whether this process is in `MPI_Init`, called by way of `libweir-mpi.so`.
fn is_initializing() -> bool {
    // SAFETY: a string that ends with NUL; the search runs no code.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, INITIALIZES.as_ptr()) };
    if address.is_null() {
        return false;
    }
    // SAFETY: only libweir-mpi.so has this name, which it gives to a function of this type.
    unsafe { std::mem::transmute::<*mut std::ffi::c_void, Initializes>(address)() != 0 }
}
