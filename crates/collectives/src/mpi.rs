//! The MPI library of this process: its functions under their profiling names (`PMPI_...`), and its binary interface.
//!
//! A program may be linked with its MPI, or load it later, as Python does. In the second case the linker finds the MPI's
//! names only in that library, so all loaded libraries are searched. This file does not know what a call means.

use crate::abi::{Abi, Kind};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute_copy;
use std::sync::OnceLock;

/// Most characters of an MPI's description of itself, with the NUL: `MPI_MAX_LIBRARY_VERSION_STRING` is at most this.
const VERSION_CHARACTERS: usize = 16 << 10;

macro_rules! functions {
    ($(#[$doc:meta])* $name:ident$(<$count:ident>)? {
        $($(#[$field_doc:meta])* $field:ident: $symbol:literal ($($argument:ty),*);)*
    }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name$(<$count>)? {
            $($(#[$field_doc])* pub $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl$(<$count>)? $name$(<$count>)? {
            /// `None`: one of them is missing.
            ///
            /// - `suffix`: of the names.
            ///
            /// # Safety
            /// `find` returns the addresses of an MPI's functions.
            unsafe fn find(suffix: &str, find: impl Fn(&CStr) -> *mut c_void) -> Option<Self> {
                $(
                    let $field = find(&CString::new([$symbol, suffix].concat()).ok()?);
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
    /// The collective functions of the MPI that have counts. Handles and pointers are `usize`. The names of those with counts
    /// of 64 bits, which MPI 4 has, end in `_c`.
    Counted<Count> {
        /// `(buffer, count, type, root, communicator)`
        bcast: "PMPI_Bcast" (usize, Count, usize, c_int, usize);
        /// `(send, receive, count, type, operation, root, communicator)`
        reduce: "PMPI_Reduce" (usize, usize, Count, usize, usize, c_int, usize);
        /// `(send, receive, count, type, operation, communicator)`
        allreduce: "PMPI_Allreduce" (usize, usize, Count, usize, usize, usize);
        /// `(send, count, type, receive, count, type, communicator)`
        allgather: "PMPI_Allgather" (usize, Count, usize, usize, Count, usize, usize);
        /// As `allgather`.
        alltoall: "PMPI_Alltoall" (usize, Count, usize, usize, Count, usize, usize);
        /// `(send, count, type, receive, count, type, root, communicator)`
        gather: "PMPI_Gather" (usize, Count, usize, usize, Count, usize, c_int, usize);
        /// As `gather`.
        scatter: "PMPI_Scatter" (usize, Count, usize, usize, Count, usize, c_int, usize);
    }
}

functions! {
    /// The other functions of the MPI that this library calls. Handles and pointers are `usize`.
    Functions {
        /// `(communicator)`
        barrier: "PMPI_Barrier" (usize);
        /// `(flag)`
        initialized: "PMPI_Initialized" (*mut c_int);
        /// `(flag)`
        finalized: "PMPI_Finalized" (*mut c_int);
        /// `()`
        finalize: "PMPI_Finalize" ();
        /// `(communicator, flag)`
        comm_test_inter: "PMPI_Comm_test_inter" (usize, *mut c_int);
        /// `(communicator, size)`
        comm_size: "PMPI_Comm_size" (usize, *mut c_int);
        /// `(communicator, rank)`
        comm_rank: "PMPI_Comm_rank" (usize, *mut c_int);
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

/// `MPI_Comm_copy_attr_function`
pub type CopyAttribute =
    unsafe extern "C" fn(usize, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
/// `MPI_Comm_delete_attr_function`
pub type DeleteAttribute = unsafe extern "C" fn(usize, c_int, *mut c_void, *mut c_void) -> c_int;

/// An MPI library.
#[derive(Debug)]
pub struct Mpi {
    /// Its collective functions.
    pub small: Counted<c_int>,
    /// The same with large counts. `None`: it does not have all of them.
    pub large: Option<Counted<i64>>,
    /// Its other functions.
    pub functions: Functions,
    /// Its binary interface. `None`: an unknown one, so every call passes through.
    pub abi: Option<Abi>,
}

/// The MPI of this process. Called by a function of MPI, so there is one.
pub fn mpi() -> &'static Mpi {
    static MPI: OnceLock<Mpi> = OnceLock::new();
    MPI.get_or_init(|| match find() {
        Some(mpi) => mpi,
        None => {
            eprintln!("weir: libweir-mpi.so finds no MPI library in this process; do not preload it here");
            std::process::abort()
        }
    })
}

fn find() -> Option<Mpi> {
    const BARRIER: &CStr = c"PMPI_Barrier";
    // SAFETY: strings that end with NUL. The handle is that of the linker's search order, or of a loaded library.
    let address = |handle: *mut c_void, name: &CStr| unsafe { libc::dlsym(handle, name.as_ptr()) };
    let handle = if address(libc::RTLD_NEXT, BARRIER).is_null() {
        let has_mpi = |handle: &*mut c_void| !address(*handle, BARRIER).is_null();
        let names = loaded_libraries();
        let is_likely = |name: &&CString| last_part(name).starts_with(b"libmpi");
        let (likely, others): (Vec<_>, Vec<_>) = names.iter().partition(is_likely);
        likely.into_iter().chain(others).filter_map(|name| open_loaded(name)).find(has_mpi)?
    } else {
        libc::RTLD_NEXT
    };
    let of_mpi = |name: &CStr| address(handle, name);
    // SAFETY: the library has PMPI_Barrier, so it is an MPI.
    let (small, large, functions) =
        unsafe { (Counted::find("", of_mpi)?, Counted::find("_c", of_mpi), Functions::find("", of_mpi)?) };
    let function = |name: &CStr| Some(of_mpi(name)).filter(|address| !address.is_null());
    // A program that is linked with the MPI may have copies of its variables, and then everybody uses those. They are first in
    // the search order of the process.
    let symbol = |name: &str| {
        let name = CString::new(name).ok()?;
        let places = [libc::RTLD_DEFAULT, handle].map(|handle| address(handle, &name) as usize);
        places.into_iter().find(|&at| at != 0)
    };
    let kind = Kind::recognise(
        &library_version(function(c"PMPI_Get_library_version")?),
        function(c"PMPI_Abi_get_version").map(abi_version),
        symbol("ompi_mpi_comm_world").is_some(),
    );
    let abi = kind.and_then(|kind| Abi::new(kind, symbol));
    Some(Mpi { small, large, functions, abi })
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
