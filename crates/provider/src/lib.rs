//! weir as a libfabric provider: the plug-in `libweir-fi.so`.
//!
//! libfabric's core finds the file in `FI_PROVIDER_PATH` and calls [`fi_prov_ini`]. From then on it calls the functions
//! in the structure that it got. Programs get objects (fabric, domain, endpoint, queues, ...), each with tables of
//! functions. A file here has one kind of object, one table of functions, or what several of them need. [`state`] has
//! what these objects share, [`errno`] has the error numbers, and [`ffi`] has C's structures.
//!
//! An example, a tagged send: `tagged::send` turns C's arguments into values.
//! [`endpoint_handle::EndpointHandle::prepare`] finds the peer, and the engine takes the message. `fi_cq_read` enters
//! the domain and lets the engines of the queue's endpoints make progress. It writes their completions to the queue
//! ([`state::completion`], [`state::cq_writer`]) and returns entries in the caller's format ([`cq`]).
//!
//! The plug-in starts threads only for programs that ask for descriptors ([`wait_object`]) or for automatic progress
//! ([`automatic_progress`]). It links no symbol of the core.
//! It is itself a program of the core where endpoints use a core provider as their network (`core_provider`).

pub mod atomic;
pub mod automatic_progress;
pub mod av;
pub mod av_set;
mod closing;
pub mod collective;
mod core_library;
pub mod core_provider;
pub mod counter;
pub mod cq;
pub mod data_type;
mod deadline;
pub mod domain;
pub mod endpoint;
pub mod endpoint_handle;
pub mod eq;
pub mod errno;
pub mod error_text;
pub mod fabric;
pub mod ffi;
pub mod group;
pub mod group_functions;
pub mod group_receives;
mod group_wait;
pub mod info;
pub mod limits;
pub mod log;
pub mod marks;
pub mod message;
mod mr;
pub mod node_endpoints;
pub mod node_groups;
pub mod poll_set;
pub mod rma;
pub mod roster;
pub mod settings;
pub mod state;
pub mod tagged;
pub mod try_wait;
pub mod version;
pub mod wait_object;

#[cfg(test)]
mod tests;

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use fabric::FabricHandle;
use ffi::FiProvider;
use version::{API_VERSION, NAME, VERSION, reported_version};

struct Provider(UnsafeCell<FiProvider<FabricHandle>>);

// SAFETY: the structure holds a pointer to a constant string, numbers and functions. This crate changes one number, the
// version, atomically. The core writes to the structure under its own lock.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(UnsafeCell::new(FiProvider {
    version: VERSION,
    fi_version: API_VERSION,
    context: [0; 4],
    name: NAME.as_ptr(),
    getinfo: info::getinfo,
    fabric: fabric::open,
    cleanup,
}));

/// The structure that represents this provider in the core.
fn provider() -> *mut FiProvider<FabricHandle> {
    PROVIDER.0.get()
}

/// Entry point of the plug-in: `initialise` with the return address.
// SAFETY: libfabric gives this name to this function in every plug-in. The core looks it up in each library
// separately, so equal names in other plug-ins do not collide.
#[unsafe(no_mangle)]
// SAFETY: the jump leaves stack and return address as the caller made them, so `initialise` returns to the caller. It
// gets the return address as its one argument, by the C calling convention of the processor.
#[unsafe(naked)]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub extern "C" fn fi_prov_ini() -> *mut FiProvider<FabricHandle> {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!("mov rdi, [rsp]", "jmp {}", sym initialise);
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!("mov x0, x30", "b {}", sym initialise);
}

/// Entry point of the plug-in on other processors.
// SAFETY: as above.
#[unsafe(no_mangle)]
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub extern "C" fn fi_prov_ini() -> *mut FiProvider<FabricHandle> {
    initialise(std::ptr::null())
}

/// Identifies the core that calls, reports a version that suits it, and registers the settings there.
extern "C" fn initialise(return_address: *const c_void) -> *mut FiProvider<FabricHandle> {
    core_library::identify(return_address, provider().cast());
    // SAFETY: a place in the static structure, aligned. This crate accesses it only here.
    let version = unsafe { AtomicU32::from_ptr(&raw mut (*provider()).fi_version) };
    // Another core of this process may have asked before.
    version.fetch_max(reported_version(core_library::version()), Ordering::Relaxed);
    static LIST_SETTINGS: Once = Once::new();
    LIST_SETTINGS.call_once(settings::list);
    provider()
}

/// The core unloads the provider, usually at exit.
extern "C" fn cleanup() {
    closing::close_all();
}

/// Returns the memory of bursts to the system, whatever the program's heap does.
#[global_allocator]
static ALLOCATOR: weir_link::page_allocator::PageAllocator = weir_link::page_allocator::PageAllocator;
