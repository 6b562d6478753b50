//! Preloaded into MPICH's launcher by `weir run`: the ranks of a proxy stay in one session.
//!
//! MPICH's launcher (hydra) gives every rank a session of its own. Linux makes a scheduling group of each session (autogroup, sched(7)), and
//! `sched_yield` moves a process behind the others of its group only: alone in its group, a rank that waits gives its core away only as
//! fairness between groups goes, to whoever has had least time and not to who is next. With sixteen ranks on two cores collectives take
//! up to twice as long (docs/explanation/waiting.md). The launchers of Intel MPI and Open MPI begin no sessions.
//!
//! What hydra needs of a session is a process group, to end a rank with all that it has started. So here `setsid` makes that and no more, in
//! `hydra_pmi_proxy` only; everywhere else this library does nothing, and neither the ranks nor what they start are loaded with it:
//! ```text
//! weir run      LD_PRELOAD=libweir-session.so
//! mpiexec       takes us out of LD_PRELOAD before its environment is copied for the ranks,
//!               puts us back for execvp(".../hydra_pmi_proxy")
//! the proxy     has a session of its own, made by mpiexec; takes us out again;
//!               for each rank: fork, setsid (here: setpgid, and no stopping), execvp
//! ```
//! The only process of a session of its own is not stopped by the signals of a terminal (its group is orphaned, and the system discards them). In a group of the proxy's
//! session it would be, and hydra could not end it then; so a rank begins with these signals ignored.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::OnceLock;

/// The variable by which the dynamic linker is told of us.
const VARIABLE: &str = "LD_PRELOAD";
/// Who starts the ranks of a node.
const PROXY: &[u8] = b"hydra_pmi_proxy";
/// How the names of those begin who start the proxies: mpiexec, mpiexec.hydra, mpiexec.mpich, mpirun ...
const LAUNCHERS: [&[u8]; 2] = [b"mpiexec", b"mpirun"];
/// What stops a process whose group is not orphaned.
const STOPS: [c_int; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Which program we are loaded into.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Launcher,
    Proxy,
}

/// `None`: neither.
static ROLE: OnceLock<Option<Role>> = OnceLock::new();
/// [`VARIABLE`] as it was when this process was started.
static WITH_US: OnceLock<OsString> = OnceLock::new();

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = begin;

/// Runs before `main`.
extern "C" fn begin() {
    let role = std::fs::read_link("/proc/self/exe").ok().and_then(|program| match program.file_name() {
        Some(name) if name.as_bytes() == PROXY => Some(Role::Proxy),
        Some(name) if LAUNCHERS.iter().any(|begin| name.as_bytes().starts_with(begin)) => {
            Some(Role::Launcher)
        }
        _ => None,
    });
    let _ = ROLE.set(role);
    let (Some(_), Some(with_us), Some(own_path)) = (role, std::env::var_os(VARIABLE), own_path()) else {
        return;
    };
    // SAFETY: before `main` there is one thread.
    unsafe {
        match without(&with_us, &own_path) {
            Some(rest) => std::env::set_var(VARIABLE, rest),
            None => std::env::remove_var(VARIABLE),
        }
    }
    let _ = WITH_US.set(with_us);
}

/// The file that this library was loaded from, as the dynamic linker was told.
fn own_path() -> Option<OsString> {
    // SAFETY: a structure of pointers, for which zero is a value; the address is one of our own functions; the name found is a
    // string of the linker's that stays.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        let known =
            libc::dladdr(begin as *const () as *const _, &raw mut found) != 0 && !found.dli_fname.is_null();
        known.then(|| OsStr::from_bytes(CStr::from_ptr(found.dli_fname).to_bytes()).to_owned())
    }
}

fn last_part(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// The list of libraries without those that are called as `library` is, wherever they lie; `None`: nothing is left.
fn without(list: &OsStr, library: &OsStr) -> Option<OsString> {
    let ours = last_part(library.as_bytes());
    let others = list.as_bytes().split(|&byte| byte == b':' || byte == b' ');
    let others: Vec<&[u8]> = others.filter(|path| !path.is_empty() && last_part(path) != ours).collect();
    (!others.is_empty()).then(|| OsString::from_vec(others.join(&b':')))
}

fn role() -> Option<Role> {
    ROLE.get().copied().flatten()
}

/// As setsid(2); in hydra's proxy the caller becomes the leader of a process group in the session in which it is.
///
/// Returns the caller's process id, or -1 with `errno`.
#[unsafe(no_mangle)]
pub extern "C" fn setsid() -> libc::pid_t {
    // SAFETY: system calls without pointers; ignoring a signal runs no code of ours.
    unsafe {
        if role() != Some(Role::Proxy) {
            libc::syscall(libc::SYS_setsid) as libc::pid_t
        } else if libc::setpgid(0, 0) == 0 {
            for stop in STOPS {
                libc::signal(stop, libc::SIG_IGN);
            }
            libc::getpid()
        } else {
            -1
        }
    }
}

/// As execvp(3); if the launcher starts a proxy, that is loaded with this library.
///
/// # Safety
/// As for execvp(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
    type Execvp = unsafe extern "C" fn(*const c_char, *const *const c_char) -> c_int;
    // SAFETY: the caller's promise: a string.
    let name = unsafe { CStr::from_ptr(file) }.to_bytes();
    if role() == Some(Role::Launcher)
        && last_part(name) == PROXY
        && let Some(with_us) = WITH_US.get()
    {
        // SAFETY: hydra has one thread, and calls this in a forked child.
        unsafe { std::env::set_var(VARIABLE, with_us) };
    }
    // SAFETY: the next definition of the name is the C library's, of this type; the caller's promise.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, c"execvp".as_ptr());
        if next.is_null() {
            *libc::__errno_location() = libc::ENOSYS;
            return -1;
        }
        std::mem::transmute::<*mut libc::c_void, Execvp>(next)(file, arguments)
    }
}
