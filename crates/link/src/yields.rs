//! Yields that are of no use: those of an MPI library after a read that has found what it waits for.
//!
//! MPICH, while it waits, calls `sched_yield` after each pass over its sources of messages, and before it looks what the pass has
//! brought. So each receive that waits gives the core away once although its message is there. With a core for every rank that is
//! half a microsecond of a half round trip of one (a system call that does nothing); with more ranks than cores it is a whole turn
//! of all others. (Open MPI yields only after passes that have found nothing; Intel MPI over weir is neither faster nor slower.)
//!
//! A provider cannot say to its caller that there is no need. So [`intercept`] points the entry for `sched_yield` in the tables by which
//! MPI libraries call others (their global offset tables) to a function here, as UCX and Open MPI do with those that free
//! memory. After each read of ours the driver says whether a yield would be of use ([`next_is_needless`]); the first one on that
//! thread returns at once if not. All others reach the system.
//! ```text
//! read     a completion; next_is_needless(true)
//! MPICH    sched_yield -> give_way: returns at once, and the mark is gone
//! MPICH    its request is complete: back to the program
//! ```
//! Nothing depends on it: where no entry is found or it cannot be written, all yields are real. The library that we are
//! in must stay loaded (`-z nodelete`).

use crate::cores::this_thread;
use core::ffi::c_int;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use plt_rs::{DynamicLibrary, LoadedLibrary};

/// What the files of MPI libraries are called.
const MPI_LIBRARIES: &str = "libmpi";
/// `PT_GNU_RELRO`, the type of a program header: what the loader has made read-only.
const READ_ONLY_LATER: u32 = 0x6474_e552;

/// The thread whose next yield is of no use; 0: nobody's. Lost or late marks cost or spare a yield.
static NEEDLESS: AtomicUsize = AtomicUsize::new(0);

/// The calling thread has ended a read. `needless`: if it yields now, that is of no use.
#[inline(always)]
pub fn next_is_needless(needless: bool) {
    NEEDLESS.store(if needless { this_thread() } else { 0 }, Ordering::Relaxed);
}

/// `sched_yield`, except where that is of no use.
extern "C" fn give_way() -> c_int {
    if NEEDLESS.load(Ordering::Relaxed) == this_thread() {
        NEEDLESS.store(0, Ordering::Relaxed);
        return 0;
    }
    // SAFETY: takes nothing and touches nothing.
    unsafe { libc::sched_yield() }
}

/// Points the entries for `sched_yield` of all MPI libraries that are loaded to [`next_is_needless`]'s other half. Returns the files
/// of those that have one.
pub fn intercept() -> Vec<String> {
    intercept_in(MPI_LIBRARIES)
}

fn intercept_in(beginning: &str) -> Vec<String> {
    let is_wanted = |library: &LoadedLibrary| {
        library.name().rsplit('/').next().is_some_and(|file| file.starts_with(beginning))
    };
    let mut found = Vec::new();
    for library in plt_rs::collect_modules().into_iter().filter(is_wanted) {
        let (name, read_only) = (library.name().to_owned(), read_only_ranges(&library));
        let Ok(library) = DynamicLibrary::initialize(library) else { continue };
        let Some(entry) = library.try_find_function("sched_yield") else { continue };
        let address = library.base_addr() + entry.r_offset as usize;
        if point_here(address, read_only.iter().any(|range| range.contains(&address))) {
            found.push(name);
        }
    }
    found
}

fn page_bytes() -> usize {
    // SAFETY: takes nothing.
    unsafe { libc::sysconf(libc::_SC_PAGE_SIZE) as usize }
}

/// The addresses of a library that the loader has made read-only: whole pages; what is left at the end stays writable.
fn read_only_ranges(library: &LoadedLibrary) -> Vec<Range<usize>> {
    let page = |address: usize| address - address % page_bytes();
    library
        .program_headers()
        .filter(|header| header.header_type() == READ_ONLY_LATER)
        .map(|header| {
            let start = library.addr() + header.virtual_addr();
            page(start)..page(start + header.memory_size())
        })
        .collect()
}

/// Writes the address of [`give_way`] into an entry of a global offset table. `false`: it could not be made writable.
fn point_here(entry: usize, read_only: bool) -> bool {
    let protect = |protection| {
        let page = entry - entry % page_bytes();
        // SAFETY: the page belongs to a loaded library's data, which stays readable.
        unsafe { libc::mprotect(page as *mut _, page_bytes(), protection) == 0 }
    };
    if read_only && !protect(libc::PROT_READ | libc::PROT_WRITE) {
        return false;
    }
    // SAFETY: an aligned word of a loaded library, in which the loader has put, or will look for, the address of a function of this very
    // type; written in one piece, since other threads may call through it. The table is mapped writable, or has just been made so.
    // Who unloads the library meanwhile has an MPI call of its own under way, which is no program's right.
    unsafe { AtomicUsize::from_ptr(entry as *mut usize) }
        .store(give_way as *const () as usize, Ordering::Release);
    if read_only {
        protect(libc::PROT_READ); // if not, it stays writable, as it is in most libraries
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::sync::{Mutex, PoisonError};

    /// There is one mark for all.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    type Function = extern "C" fn() -> c_int;

    /// Compiles and loads a library of its own that yields and asks for the process, and gives the functions that do.
    fn library(directory: &std::path::Path, name: &str, flags: &[&str]) -> [Function; 2] {
        let (source, library) = (directory.join("yields.c"), directory.join(name));
        let code = "#include <sched.h>\n#include <unistd.h>\n\
            int give(void) { return sched_yield(); }\nint ask(void) { return getpid(); }\n";
        std::fs::write(&source, code).expect("a file");
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).args(flags);
        assert!(compiler.status().expect("a compiler, as for Rust itself").success());
        let path = CString::new(library.to_str().expect("a path")).expect("no NUL");
        // SAFETY: a library without constructors; both strings end with NUL.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
        [c"give", c"ask"].map(|name| {
            // SAFETY: the handle is that of a library that stays loaded; null would fail the next check.
            let function = unsafe { libc::dlsym(handle, name.as_ptr()) };
            assert!(!function.is_null());
            // SAFETY: both functions take nothing and return an int, as the source above says.
            unsafe { core::mem::transmute::<*mut libc::c_void, Function>(function) }
        })
    }

    #[test]
    fn calls_of_libraries_of_that_name_come_here_however_they_are_linked() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = tempfile::tempdir().expect("a directory");
        for (name, flags) in [
            ("libweirtest-lazy.so", ["-Wl,-z,lazy", "-Wl,-z,norelro"]),
            ("libweirtest-partly.so", ["-Wl,-z,lazy", "-Wl,-z,relro"]),
            ("libweirtest-hardened.so", ["-Wl,-z,now", "-Wl,-z,relro"]),
        ] {
            let [give, ask] = library(directory.path(), name, &flags);
            next_is_needless(true);
            assert_eq!(give(), 0);
            assert_ne!(NEEDLESS.load(Ordering::Relaxed), 0, "{name}: not yet");
            let found = intercept_in(name);
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert_eq!(give(), 0);
            assert_eq!(NEEDLESS.load(Ordering::Relaxed), 0, "{name}: left out");
            assert_eq!(give(), 0);
            assert_eq!(ask(), std::process::id() as c_int, "{name}: other entries are still filled in");
        }
    }

    #[test]
    fn one_yield_of_the_thread_that_has_read_is_left_out() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        next_is_needless(true);
        assert_ne!(NEEDLESS.load(Ordering::Relaxed), 0);
        std::thread::spawn(|| {
            give_way();
            assert_ne!(NEEDLESS.load(Ordering::Relaxed), 0, "another thread's yield is real");
        })
        .join()
        .expect("no panic");
        give_way();
        assert_eq!(NEEDLESS.load(Ordering::Relaxed), 0);
        next_is_needless(true);
        next_is_needless(false);
        assert_eq!(NEEDLESS.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn libraries_of_other_names_are_left_alone() {
        assert_eq!(intercept_in("libno-such-library"), Vec::<String>::new());
    }
}
