//! The MPI library of this process: its functions under their profiling names (`PMPI_...`), and its binary interface.
//!
//! A program may be linked with its MPI, or load it later, as Python does. In the second case the linker finds the MPI's
//! names only in that library, so all loaded libraries are searched. A library may stand between the program and the MPI, such
//! as a tool that measures calls: it gets what passes through ([`Next`]). This file does not know what a call means.

use crate::abi::{Abi, Kind};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute_copy;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most characters of an MPI's description of itself, with the NUL: `MPI_MAX_LIBRARY_VERSION_STRING` is at most this.
const VERSION_CHARACTERS: usize = 16 << 10;

macro_rules! functions {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$field_doc:meta])* $field:ident: $symbol:literal ($($argument:ty),*);)*
    }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl $name {
            /// `None`: one of them is missing.
            ///
            /// # Safety
            /// `find` returns the addresses of an MPI's functions.
            unsafe fn find(find: impl Fn(&CStr) -> *mut c_void) -> Option<Self> {
                $(
                    let $field = find(&CString::new($symbol).ok()?);
                    if $field.is_null() {
                        return None;
                    }
                )*
                // SAFETY: the standard gives these functions these types; handles are integers or pointers, which C passes
                // in the same registers as a `usize`.
                unsafe {
                    Some($name {
                        $($field: transmute_copy::<
                            *mut c_void,
                            unsafe extern "C" fn($($argument),*) -> c_int,
                        >(&$field),)*
                    })
                }
            }
        }
    };
}

functions! {
    /// The functions of the MPI that this library calls for itself. Handles and pointers are `usize`.
    Functions {
        /// `(send, count, type, receive, count, type, communicator)`
        allgather: "PMPI_Allgather" (usize, c_int, usize, usize, c_int, usize, usize);
        /// `(send, receive, count, type, operation, communicator)`
        allreduce: "PMPI_Allreduce" (usize, usize, c_int, usize, usize, usize);
        /// `(flag)`
        initialized: "PMPI_Initialized" (*mut c_int);
        /// `(level)`
        query_thread: "PMPI_Query_thread" (*mut c_int);
        /// `(flag)`
        finalized: "PMPI_Finalized" (*mut c_int);
        /// `(communicator, flag)`
        comm_test_inter: "PMPI_Comm_test_inter" (usize, *mut c_int);
        /// `(communicator, size)`
        comm_size: "PMPI_Comm_size" (usize, *mut c_int);
        /// `(communicator, rank)`
        comm_rank: "PMPI_Comm_rank" (usize, *mut c_int);
        /// `(communicator)`
        comm_get_parent: "PMPI_Comm_get_parent" (*mut usize);
        /// `(communicator, group)`
        comm_group: "PMPI_Comm_group" (usize, *mut usize);
        /// `(group, count, ranks, group, ranks)`
        group_translate_ranks: "PMPI_Group_translate_ranks" (usize, c_int, *const c_int, usize, *mut c_int);
        /// `(group)`
        group_free: "PMPI_Group_free" (*mut usize);
        /// `(copy, delete, key, extra)`
        comm_create_keyval: "PMPI_Comm_create_keyval" (CopyAttribute, DeleteAttribute, *mut c_int, usize);
        /// `(communicator, key, value)`
        comm_set_attr: "PMPI_Comm_set_attr" (usize, c_int, usize);
        /// `(communicator, error)`
        comm_call_errhandler: "PMPI_Comm_call_errhandler" (usize, c_int);
        /// `(source, tag, communicator, flag, status)`
        iprobe: "PMPI_Iprobe" (c_int, c_int, usize, *mut c_int, usize);
        /// `(buffer, count, type, source, tag, communicator, request)`
        irecv: "PMPI_Irecv" (usize, c_int, usize, c_int, c_int, usize, usize);
        /// `(request)`
        cancel: "PMPI_Cancel" (usize);
        /// `(request, status)`
        wait: "PMPI_Wait" (usize, usize);
        /// `(type, bytes)`
        type_size: "PMPI_Type_size" (usize, *mut c_int);
        /// `(type, lower bound, extent)`
        type_get_extent: "PMPI_Type_get_extent" (usize, *mut isize, *mut isize);
        /// `(data, count, type, buffer, bytes, position, communicator)`
        pack: "PMPI_Pack" (usize, c_int, usize, *mut u8, c_int, *mut c_int, usize);
        /// `(buffer, bytes, position, data, count, type, communicator)`
        unpack: "PMPI_Unpack" (*const u8, c_int, *mut c_int, usize, c_int, usize, usize);
    }
}

/// A status of the MPI. Its error handler has been called.
pub fn check(status: c_int) -> Result<(), c_int> {
    if status == 0 { Ok(()) } else { Err(status) }
}

/// `MPI_Comm_copy_attr_function`
pub type CopyAttribute =
    unsafe extern "C" fn(usize, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
/// `MPI_Comm_delete_attr_function`
pub type DeleteAttribute = unsafe extern "C" fn(usize, c_int, *mut c_void, *mut c_void) -> c_int;

/// An MPI library.
#[derive(Debug)]
pub struct Mpi {
    /// Its functions.
    pub functions: Functions,
    /// Its binary interface. `None`: an unknown one, so every call passes through.
    pub abi: Option<Abi>,
    /// Every call of the program comes to this library. Otherwise another one is to see all calls, such as a tool that measures
    /// them, or some calls go to the MPI directly.
    pub sees_all_calls: bool,
}

/// The MPI of this process. `None`: it has none, or one that lacks functions.
pub fn mpi() -> Option<&'static Mpi> {
    static MPI: OnceLock<Mpi> = OnceLock::new();
    if let Some(mpi) = MPI.get() {
        return Some(mpi);
    }
    // Python loads its MPI late, so a process without one is asked again.
    let found = find()?;
    Some(MPI.get_or_init(|| found))
}

fn symbol(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: a string that ends with NUL. The handle is that of the linker's search order, or of a loaded library.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

/// The handle for the functions of the MPI. `None`: this process has none.
fn library() -> Option<*mut c_void> {
    const BARRIER: &CStr = c"PMPI_Barrier";
    if !symbol(libc::RTLD_NEXT, BARRIER).is_null() {
        return Some(libc::RTLD_NEXT);
    }
    let has_mpi = |handle: &*mut c_void| !symbol(*handle, BARRIER).is_null();
    let names = loaded_libraries();
    let is_likely = |name: &&CString| last_part(name).starts_with(b"libmpi");
    let (likely, others): (Vec<_>, Vec<_>) = names.iter().partition(is_likely);
    likely.into_iter().chain(others).filter_map(|name| open_loaded(name)).find(has_mpi)
}

fn find() -> Option<Mpi> {
    let handle = library()?;
    let of_mpi = |name: &CStr| symbol(handle, name);
    // SAFETY: the library has PMPI_Barrier, so it is an MPI.
    let functions = unsafe { Functions::find(of_mpi)? };
    let function = |name: &CStr| Some(of_mpi(name)).filter(|address| !address.is_null());
    // A program that is linked with the MPI may have copies of its variables, and then everybody uses those. They are first in
    // the search order of the process.
    let variable = |name: &str| {
        let name = CString::new(name).ok()?;
        let places = [libc::RTLD_DEFAULT, handle].map(|handle| symbol(handle, &name) as usize);
        places.into_iter().find(|&at| at != 0)
    };
    let kind = Kind::recognise(
        &library_version(function(c"PMPI_Get_library_version")?),
        function(c"PMPI_Abi_get_version").map(abi_version),
        variable("ompi_mpi_comm_world").is_some(),
    );
    let abi = kind.and_then(|kind| Abi::new(kind, variable));
    let is_wrapped = CARRIED.iter().any(|name| Place::of(name).is_some_and(|place| !place.is_mpi));
    // Open MPI's bindings of Fortran call the profiling names.
    let is_bypassed = kind == Some(Kind::OpenMpi) && !symbol(libc::RTLD_DEFAULT, c"mpi_barrier_").is_null();
    Some(Mpi { functions, abi, sees_all_calls: !is_wrapped && !is_bypassed })
}

/// The profiling names of the functions that groups do.
const CARRIED: [&CStr; 8] = [
    c"PMPI_Barrier",
    c"PMPI_Bcast",
    c"PMPI_Reduce",
    c"PMPI_Allreduce",
    c"PMPI_Allgather",
    c"PMPI_Alltoall",
    c"PMPI_Gather",
    c"PMPI_Scatter",
];

/// Where a call passes to.
struct Place {
    address: *mut c_void,
    /// It is the MPI itself.
    is_mpi: bool,
}

impl Place {
    /// The place of a function that this library defines: what the program would call without this library. The MPI comes under
    /// the profiling name, since a program may have loaded it where the linker does not search. `None`: there is none.
    fn of(profiling_name: &CStr) -> Option<Place> {
        let of_mpi = library().map_or(std::ptr::null_mut(), |handle| symbol(handle, profiling_name));
        let name = CStr::from_bytes_with_nul(&profiling_name.to_bytes_with_nul()[1..]).ok()?;
        let next = symbol(libc::RTLD_NEXT, name);
        let is_mpi =
            next.is_null() || (!of_mpi.is_null() && start_of_library(next) == start_of_library(of_mpi));
        let address = if is_mpi { of_mpi } else { next };
        (!address.is_null()).then_some(Place { address, is_mpi })
    }
}

/// The address where the library of a function begins.
fn start_of_library(function: *mut c_void) -> usize {
    // SAFETY: a structure of pointers, for which zero is a valid value.
    unsafe {
        let mut about: libc::Dl_info = std::mem::zeroed();
        libc::dladdr(function, &mut about);
        about.dli_fbase as usize
    }
}

/// A function that this library defines, in the MPI or in a library that wraps it.
pub struct Next {
    profiling_name: &'static CStr,
    /// 0: not known yet.
    address: AtomicUsize,
}

impl Next {
    /// The function `PMPI_...`.
    pub const fn new(profiling_name: &'static CStr) -> Next {
        Next { profiling_name, address: AtomicUsize::new(0) }
    }

    /// Its address. `None`: this process has no such function.
    pub fn address(&self) -> Option<usize> {
        let known = self.address.load(Ordering::Relaxed);
        if known != 0 {
            return Some(known);
        }
        let address = Place::of(self.profiling_name)?.address as usize;
        self.address.store(address, Ordering::Relaxed);
        Some(address)
    }

    /// The same. Without one, the process ends with a message.
    pub fn expect(&self) -> usize {
        self.address().unwrap_or_else(|| {
            let name = &self.profiling_name.to_string_lossy()[1..];
            eprintln!("weir: libweir-mpi.so finds no other {name} in this process; do not preload it here");
            std::process::abort()
        })
    }
}

fn library_version(function: *mut c_void) -> String {
    let (mut text, mut length) = (vec![0_u8; VERSION_CHARACTERS], 0);
    // SAFETY: the standard gives the function this type, and more room than any MPI needs is there. It can be called at any
    // time.
    let status = unsafe {
        let get =
            transmute_copy::<*mut c_void, unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int>(&function);
        get(text.as_mut_ptr().cast(), &mut length)
    };
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    if status == 0 { String::from_utf8_lossy(&text[..end]).into_owned() } else { String::new() }
}

fn abi_version(function: *mut c_void) -> c_int {
    let (mut major, mut minor) = (-1, -1);
    // SAFETY: as for the version of the library.
    unsafe {
        let get =
            transmute_copy::<*mut c_void, unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>(&function);
        get(&mut major, &mut minor);
    }
    major
}

/// The part of a path after the last slash.
pub fn last_part(path: &CStr) -> &[u8] {
    path.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default()
}

/// The names of the libraries that this process has loaded.
pub fn loaded_libraries() -> Vec<CString> {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _size: usize, names: *mut c_void) -> c_int {
        // SAFETY: the linker gives a structure with a name, or null, and our vector.
        unsafe {
            let name = (*info).dlpi_name;
            if !name.is_null() && *name != 0 {
                (*names.cast::<Vec<CString>>()).push(CStr::from_ptr(name).to_owned());
            }
        }
        0
    }
    let mut names: Vec<CString> = Vec::new();
    // SAFETY: the function gets the vector, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut names).cast()) };
    names
}

/// The handle of a loaded library. It stays loaded from then on.
pub fn open_loaded(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a string that ends with NUL. Nothing is loaded, so no code runs.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    (!handle.is_null()).then_some(handle)
}
