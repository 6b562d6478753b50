//! Skips redundant yields of an MPI library: those after a read that has found something; with a core for every rank those
//! after an empty read, while the engine itself still spins; with more ranks than cores those of a caller that works.
//!
//! While MPICH waits, it calls `sched_yield` after each pass over its sources of messages, before it looks at the
//! results of the pass. So each waiting receive yields the core once although its message is there. With a core for
//! every rank this costs a useless system call for each message. With more ranks than cores, all other ranks run before
//! this one continues.
//!
//! A provider cannot tell its caller that a yield is redundant. So [`intercept`] changes the entry for `sched_yield` in
//! the tables by which MPI libraries call other libraries (their global offset tables). It then leads to a function
//! here. UCX does the same with functions that free memory. After each read the engine says whether a yield would be
//! redundant ([`skip_next_yield`]). If so, the first yield of that thread returns at once. All others reach the system.
//! ```text
//! read     a completion; skip_next_yield(true)
//! MPICH    sched_yield -> yield_unless_skipped: returns at once, and clears the mark
//! MPICH    its request is complete: returns to the program
//! ```
//! [`has_just_yielded`] tells the engine whether the calling thread has yielded a moment ago: such a caller waits.
//! Correctness does not depend on it. Where no entry is found or writable, all yields are real. The library that
//! contains this code must stay loaded (`-z nodelete`).

use crate::cores::{this_thread, ticks};
use core::ffi::c_int;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use plt_rs::elf64::DynRela;
use plt_rs::{DynamicLibrary, LoadedLibrary};
use rustix::mm::{MprotectFlags, mprotect};

/// Beginning of the file names of MPI libraries.
const MPI_LIBRARIES: &str = "libmpi";
/// `PT_GNU_RELRO`, the type of a program header for memory that the loader has made read-only.
const PT_GNU_RELRO: u32 = 0x6474_e552;
/// Relocations of words that hold only the address of a function: `GLOB_DAT` and `JUMP_SLOT`. Source: the processors'
/// supplements to the System V ABI.
const FUNCTION_WORDS: [u32; 2] = if cfg!(target_arch = "aarch64") { [1025, 1026] } else { [6, 7] };

/// The thread whose next yield is redundant. 0: none. A lost or late mark costs or saves one yield. It has cache
/// lines of its own, because every read of every thread loads it.
#[repr(align(128))]
struct ThreadMark(AtomicUsize);

static SKIP_NEXT: ThreadMark = ThreadMark(AtomicUsize::new(0));

/// The thread that made the last real yield.
static LAST_YIELDER: ThreadMark = ThreadMark(AtomicUsize::new(0));
/// The end of that yield. Unit: ticks of the processor ([`crate::cores::ticks`]).
static LAST_YIELD_END: AtomicU64 = AtomicU64::new(0);

/// Call this after each read. `redundant`: a yield of the calling thread would now be redundant.
#[inline(always)]
pub fn skip_next_yield(redundant: bool) {
    let thread = if redundant { this_thread() } else { 0 };
    if SKIP_NEXT.0.load(Ordering::Relaxed) != thread {
        SKIP_NEXT.0.store(thread, Ordering::Relaxed);
    }
}

/// Whether the next yield of the calling thread would be skipped.
pub fn skips_next_yield() -> bool {
    SKIP_NEXT.0.load(Ordering::Relaxed) == this_thread()
}

/// Whether the calling thread has ended a real yield within the last `within_ticks` ticks of the processor. Then it
/// waits, however long ago its last read was. Always false if the yields of its library do not come here. If two
/// threads ask at the same time, both may get false.
pub fn has_just_yielded(within_ticks: u64) -> bool {
    let mine = LAST_YIELDER.0.load(Ordering::Relaxed) == this_thread();
    mine && ticks().wrapping_sub(LAST_YIELD_END.load(Ordering::Relaxed)) <= within_ticks
}

/// `sched_yield`, unless it is redundant.
extern "C" fn yield_unless_skipped() -> c_int {
    if skips_next_yield() {
        SKIP_NEXT.0.store(0, Ordering::Relaxed);
        return 0;
    }
    // SAFETY: takes nothing and touches no memory.
    let status = unsafe { libc::sched_yield() };
    LAST_YIELD_END.store(ticks(), Ordering::Relaxed);
    LAST_YIELDER.0.store(this_thread(), Ordering::Relaxed);
    status
}

/// Redirects the entries for `sched_yield` of all loaded MPI libraries. Returns the files of the libraries that have
/// such an entry. Leaves entries that somebody else has redirected.
pub fn intercept() -> Vec<String> {
    intercept_in(MPI_LIBRARIES)
}

fn intercept_in(beginning: &str) -> Vec<String> {
    /// Input and output of the callback.
    struct Search<'a> {
        beginning: &'a str,
        found: Vec<String>,
    }

    /// Called for the first object. It looks at all objects itself, and ends the iteration.
    unsafe extern "C" fn look(_: *mut libc::dl_phdr_info, _: usize, search: *mut libc::c_void) -> c_int {
        // SAFETY: the pointer is what `intercept_in` has passed. `intercept_in` waits meanwhile, and there is no
        // other reference.
        let search = unsafe { &mut *search.cast::<Search<'_>>() };
        search.found = redirect_all(search.beginning);
        1
    }

    let mut search = Search { beginning, found: Vec::new() };
    // The loader holds its lock during the iteration, so no library is unloaded while its tables are read. The lock
    // is recursive, so the callback may iterate itself.
    // SAFETY: the callback has the required type and gets a pointer that is valid until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

/// As [`intercept_in`], while no library can be unloaded.
fn redirect_all(beginning: &str) -> Vec<String> {
    let is_wanted = |library: &LoadedLibrary| {
        library.name().rsplit('/').next().is_some_and(|file| file.starts_with(beginning))
    };
    let mut found = Vec::new();
    for library in plt_rs::collect_modules().into_iter().filter(is_wanted) {
        let (name, ranges) = (library.name().to_owned(), LibraryRanges::of(&library));
        let Ok(library) = DynamicLibrary::initialize(library) else { continue };
        let redirected = entries(&library, "sched_yield").filter(|&entry| ranges.redirect(entry)).count();
        if redirected > 0 {
            found.push(name);
        }
    }
    found
}

/// The words in a library's tables that hold the address of the function `name`.
fn entries<'a>(library: &'a DynamicLibrary<'_>, name: &'a str) -> impl Iterator<Item = usize> + use<'a> {
    let tables = [library.addend_relocs(), library.plt_rela()];
    let is_wanted = move |entry: &&DynRela| {
        let symbol = entry.symbol_index() as usize;
        FUNCTION_WORDS.contains(&entry.symbol_type())
            && library.symbols().is_some_and(|symbols| {
                symbols.resolve_name(symbol, library.string_table()).as_deref() == Some(name)
            })
    };
    let all = tables.into_iter().flatten().flat_map(|table| table.entries());
    all.filter(is_wanted).map(|entry| library.base_addr() + entry.r_offset as usize)
}

fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// The address ranges of a library.
struct LibraryRanges {
    /// The whole library.
    loaded: Vec<Range<usize>>,
    /// Memory that the loader has made read-only. It protects whole pages only, so a partial page at the end stays
    /// writable.
    read_only: Vec<Range<usize>>,
}

impl LibraryRanges {
    fn of(library: &LoadedLibrary) -> LibraryRanges {
        let range = |header: &plt_rs::ProgramHeader| {
            let start = library.addr() + header.virtual_addr();
            start..start + header.memory_size()
        };
        let page = |address: usize| address - address % page_bytes();
        let read_only = library.program_headers().filter(|header| header.header_type() == PT_GNU_RELRO);
        LibraryRanges {
            loaded: library.load_headers().map(|header| range(&header)).collect(),
            read_only: read_only
                .map(|header| range(&header))
                .map(|range| page(range.start)..page(range.end))
                .collect(),
        }
    }

    /// Writes the address of [`yield_unless_skipped`] into an entry. `false`: somebody else has redirected it, or it
    /// cannot be made writable.
    fn redirect(&self, entry: usize) -> bool {
        let is_in = |ranges: &[Range<usize>], address| ranges.iter().any(|range| range.contains(&address));
        if !entry.is_multiple_of(align_of::<usize>()) || !is_in(&self.loaded, entry) {
            return false;
        }
        // SAFETY: an aligned word of the library's data. Only the loader writes it besides this function, in one
        // piece. The library stays loaded (`intercept_in`).
        let word = unsafe { AtomicUsize::from_ptr(entry as *mut usize) };
        let before = word.load(Ordering::Relaxed);
        // Change it only if it leads into its library (the loader has not resolved it yet) or to the real function.
        if !is_in(&self.loaded, before) && before != libc::sched_yield as *const () as usize {
            return false;
        }
        let protect = |protection| {
            let page = entry - entry % page_bytes();
            // SAFETY: the page belongs to a loaded library's data, which stays readable.
            unsafe { mprotect(page as *mut _, page_bytes(), protection) }.is_ok()
        };
        let read_only = is_in(&self.read_only, entry);
        if read_only && !protect(MprotectFlags::READ | MprotectFlags::WRITE) {
            return false;
        }
        // The new function has the same type. Other threads that call meanwhile reach one of the two.
        word.store(yield_unless_skipped as *const () as usize, Ordering::Release);
        if read_only {
            protect(MprotectFlags::READ); // if this fails, it stays writable, as in most libraries
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::sync::{Mutex, PoisonError};

    /// All tests share one mark.
    static TEST_LOCK: Mutex<()> = Mutex::new(());

    type Function = extern "C" fn() -> c_int;

    /// Compiles and loads a library that calls sched_yield and getpid. Returns its two functions.
    fn library(directory: &std::path::Path, name: &str, flags: &[&str]) -> [Function; 2] {
        let (source, library) = (directory.join("yields.c"), directory.join(name));
        let code = "#include <sched.h>\n#include <unistd.h>\n\
            int give(void) { return sched_yield(); }\nint ask(void) { return getpid(); }\n";
        std::fs::write(&source, code).expect("a file");
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).args(flags);
        assert!(compiler.status().expect("a C compiler").success());
        let path = CString::new(library.to_str().expect("a path")).expect("no NUL");
        // SAFETY: a library without constructors. Both strings end with NUL.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
        [c"give", c"ask"].map(|name| {
            // SAFETY: the handle is of a library that stays loaded. Null fails the next check.
            let function = unsafe { libc::dlsym(handle, name.as_ptr()) };
            assert!(!function.is_null());
            // SAFETY: both functions take nothing and return an int, as the source above says.
            unsafe { core::mem::transmute::<*mut libc::c_void, Function>(function) }
        })
    }

    #[test]
    fn sched_yield_is_intercepted_in_every_linking_mode() {
        let _alone = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = tempfile::tempdir().expect("a directory");
        for (name, flags) in [
            ("libweirtest-lazy.so", ["-Wl,-z,lazy", "-Wl,-z,norelro"]),
            ("libweirtest-partly.so", ["-Wl,-z,lazy", "-Wl,-z,relro"]),
            ("libweirtest-hardened.so", ["-Wl,-z,now", "-Wl,-z,relro"]),
            ("libweirtest-direct.so", ["-fno-plt", "-Wl,-z,now"]),
        ] {
            let [give, ask] = library(directory.path(), name, &flags);
            skip_next_yield(true);
            assert_eq!(give(), 0);
            assert_ne!(SKIP_NEXT.0.load(Ordering::Relaxed), 0, "{name}: not intercepted yet");
            let mappings = |name: &str| {
                let all = std::fs::read_to_string("/proc/self/maps").expect("our own mappings");
                let own = all.lines().filter(|line| line.ends_with(name));
                own.map(|line| line.split(' ').nth(1).map(String::from)).collect::<Vec<_>>()
            };
            let before = mappings(name);
            let found = intercept_in(name);
            assert_eq!(mappings(name), before, "{name}: read-only pages are read-only again");
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert_eq!(give(), 0);
            assert_eq!(SKIP_NEXT.0.load(Ordering::Relaxed), 0, "{name}: skipped");
            assert_eq!(give(), 0);
            assert_eq!(ask(), std::process::id() as c_int, "{name}: the loader still resolves other entries");
        }
    }

    #[test]
    fn one_yield_of_the_marked_thread_is_skipped() {
        let _alone = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        skip_next_yield(true);
        assert_ne!(SKIP_NEXT.0.load(Ordering::Relaxed), 0);
        std::thread::spawn(|| {
            yield_unless_skipped();
            assert_ne!(SKIP_NEXT.0.load(Ordering::Relaxed), 0, "another thread's yield is real");
        })
        .join()
        .expect("no panic");
        yield_unless_skipped();
        assert_eq!(SKIP_NEXT.0.load(Ordering::Relaxed), 0);
        skip_next_yield(true);
        skip_next_yield(false);
        assert_eq!(SKIP_NEXT.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn has_just_yielded_is_true_only_for_the_thread_that_yielded() {
        /// Some tens of seconds.
        const LONG: u64 = 100_000_000_000;
        let _alone = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        yield_unless_skipped();
        let other = || assert!(!has_just_yielded(LONG), "another thread yielded");
        std::thread::spawn(other).join().expect("no panic");
        assert!(has_just_yielded(LONG));
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(has_just_yielded(0) != crate::cores::TICKS, "a millisecond ago");
        std::thread::spawn(|| {
            skip_next_yield(true);
            yield_unless_skipped();
            assert!(!has_just_yielded(LONG), "the yield was skipped");
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn libraries_with_other_names_are_not_changed() {
        assert_eq!(intercept_in("libno-such-library"), Vec::<String>::new());
    }
}
