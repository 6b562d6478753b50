//! The core of libfabric that has loaded this plug-in, and functions of it that the plug-in finds by name.
//!
//! The plug-in links no symbol of the core. Otherwise it could not be loaded where the core itself was loaded privately
//! (Python, Open MPI's components). Symbol versions also differ between cores. A process may contain several cores. The
//! one that calls `fi_prov_ini` is the one that matters: the plug-in identifies it by the return address, or else takes
//! the `libfabric.so.1` that is loaded.

use std::ffi::{CStr, OsStr, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The `dlopen` handle of the core. It is never closed: the core also keeps this plug-in.
static CORE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// The file of the core.
static PATH: OnceLock<PathBuf> = OnceLock::new();

/// The structure that represents this provider in the core.
static PROVIDER: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Finds the library that contains `return_address`, which is in the caller of `fi_prov_ini`.
pub fn identify(return_address: *const c_void, provider: *mut c_void) {
    PROVIDER.store(provider, Ordering::Relaxed);
    let core = loaded_library_at(return_address);
    CORE.store(if core.is_null() { loaded_library(c"libfabric.so.1") } else { core }, Ordering::Relaxed);
}

/// The structure that represents this provider in the core, for the core's functions.
pub fn provider() -> *mut c_void {
    PROVIDER.load(Ordering::Relaxed)
}

/// The file of the core, if its caller was found.
pub fn path() -> Option<PathBuf> {
    PATH.get().cloned()
}

/// A handle of the library, if it exports the functions of libfabric, or null.
fn loaded_library_at(address: *const c_void) -> *mut c_void {
    let mut place = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: any address is allowed. `dladdr` fills the structure if it returns another value than 0.
    let name = unsafe {
        if libc::dladdr(address, place.as_mut_ptr()) == 0 {
            return null_mut();
        }
        place.assume_init().dli_fname
    };
    if name.is_null() {
        return null_mut();
    }
    // SAFETY: the loader's name of a library that is loaded; it ends with NUL.
    let library = loaded_library(unsafe { CStr::from_ptr(name) });
    if library.is_null() || symbol(library, c"fi_dupinfo").is_null() {
        return null_mut();
    }
    // SAFETY: as above.
    let file = unsafe { CStr::from_ptr(name) };
    PATH.get_or_init(|| PathBuf::from(OsStr::from_bytes(file.to_bytes())));
    library
}

/// A handle of the library of this name, if it is loaded, or null.
fn loaded_library(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with NUL. RTLD_NOLOAD only finds what is loaded already, so no constructor runs.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) }
}

fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: a handle of a loaded library, and a name that ends with NUL.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// The function `name` of the core, if it can be found, in its newest version.
///
/// # Safety
/// `F` must be the function pointer type of the core's function of this name.
pub unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let core = CORE.load(Ordering::Relaxed);
    if core.is_null() {
        return None;
    }
    let function = symbol(core, name);
    // SAFETY: the pointer is not null, has the right size (asserted) and the right type (the caller's promise).
    (!function.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&function) })
}

/// The version of the core. `None`: there is no core.
pub fn version() -> Option<u32> {
    type Version = unsafe extern "C" fn() -> u32;
    // SAFETY: the core exports this name with this type, unchanged since 1.0.
    unsafe { function::<Version>(c"fi_version").map(|version| version()) }
}
