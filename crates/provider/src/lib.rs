//! weir as a libfabric provider: the plug-in `libweir-fi.so`.
//!
//! The core finds the file in `FI_PROVIDER_PATH`, calls [`fi_prov_ini`] and from then on the functions in the structure
//! that it returns. Programs get objects (fabric, domain, endpoint, queues, ...), each with tables of functions.
//! One file here is one kind of object; what stands behind them all is in [`handle`], what errors are called in [`errno`],
//! and C's structures in [`ffi`].
//!
//! A tagged send, from top to bottom: `tagged::send` turns C's arguments into values, [`endpoint::EndpointHandle::post`] enters
//! the domain and finds the peer, the engine takes the message. `fi_cq_read` enters the domain, lets the engines of the
//! queue's endpoints work, files their completions ([`completion`]) and hands entries out in the caller's format ([`cq`]).
//!
//! No thread runs in here and no symbol of the core is linked.

pub mod atomic;
pub mod av;
pub mod collective;
pub mod completion;
pub mod counter;
pub mod cq;
mod cq_writer;
pub mod domain;
pub mod endpoint;
pub mod eq;
pub mod errno;
pub mod fabric;
pub mod ffi;
pub mod handle;
pub mod info;
pub mod log;
pub mod message;
pub mod mr;
pub mod rma;
pub mod settings;
pub mod tagged;

#[cfg(test)]
mod tests;

use std::cell::UnsafeCell;
use std::sync::Once;

use ffi::FiProvider;

/// Our name. It must not begin like one of the providers that Open MPI leaves out, nor like a utility provider.
pub const NAME: &std::ffi::CStr = c"weir";

/// The version of libfabric that we say we were made for. The core skips providers that are older than what the
/// program asks for, and MPICH asks for the core's own version.
pub const API_VERSION: u32 = ffi::version(2, 6);

struct Provider(UnsafeCell<FiProvider>);

// SAFETY: the pointer in it is to a constant string, the rest are numbers and functions. We never touch it; the core
// writes its notes under its own lock.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(UnsafeCell::new(FiProvider {
    version: ffi::version(0, 1),
    fi_version: API_VERSION,
    context: [0; 4],
    name: NAME.as_ptr(),
    getinfo: info::getinfo,
    fabric: fabric::open,
    cleanup,
}));

/// The structure that the core knows us by.
pub(crate) fn provider() -> *mut FiProvider {
    PROVIDER.0.get()
}

/// Where the core begins.
// SAFETY: the name is the one that libfabric gives to this function in every plug-in; the core looks it up in each
// library by itself, so that equal names in other plug-ins do not meet.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut FiProvider {
    static LIST_SETTINGS: Once = Once::new();
    LIST_SETTINGS.call_once(settings::list);
    provider()
}

/// The core goes away, at exit most often.
extern "C" fn cleanup() {
    handle::close_all();
}

/// What grows in a burst goes back to the system after it, whatever the program's heap does.
#[global_allocator]
static ALLOCATOR: weir_link::page_allocator::PageAllocator = weir_link::page_allocator::PageAllocator;
