//! `weir run` preloads this library into MPICH's launcher, so that all ranks of a proxy stay in one session.
//!
//! MPICH's launcher (hydra) makes a session for every rank. Linux makes a scheduling group for each session (autogroup,
//! sched(7)). `sched_yield` moves a process only behind the others of its group. A rank that is alone in its group
//! therefore yields without effect. The kernel then runs the group that had the least time, which is not the rank whose
//! turn it is. With more ranks than cores this makes collectives slower (docs/explanation/waiting.md). The launchers of
//! Intel MPI and Open MPI make no sessions.
//!
//! Hydra needs only one thing of a session: a process group, to end a rank with everything that it started. So here
//! `setsid` makes a process group and nothing else, in `hydra_pmi_proxy` only. The launcher (`mpiexec`) passes this
//! library to its proxies only. In all other programs it does nothing. Neither the ranks nor their children load it:
//! ```text
//! weir run      LD_PRELOAD=libweir-session.so
//! mpiexec       removes this library from LD_PRELOAD before it copies its environment for the ranks,
//!               adds it again for execvp(".../hydra_pmi_proxy")
//! the proxy     has a session of its own, made by mpiexec; removes this library again;
//!               for each rank: fork, setsid (here: setpgid, and ignored stop signals), execvp
//! ```
//! A rank alone in its session cannot be stopped by the signals of a terminal: its group is orphaned, and the kernel
//! discards them. In a group of the proxy's session it could be stopped, and hydra could not end it then. So ranks
//! start with these signals ignored.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::OnceLock;

/// The variable with the libraries that the dynamic linker preloads.
const VARIABLE: &str = "LD_PRELOAD";
/// The program that starts the ranks of a node.
const PROXY: &[u8] = b"hydra_pmi_proxy";
/// Beginnings of the names of programs that start proxies: mpiexec, mpiexec.hydra, mpiexec.mpich, mpirun ...
const LAUNCHERS: [&[u8]; 2] = [b"mpiexec", b"mpirun"];
/// Signals that stop a process whose group is not orphaned.
const STOPS: [c_int; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// The program that has loaded this library.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Launcher,
    Proxy,
}

/// `None`: neither a launcher nor a proxy.
static ROLE: OnceLock<Option<Role>> = OnceLock::new();
/// [`VARIABLE`] at the start of this process.
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
    // SAFETY: before `main` there is only one thread.
    unsafe {
        match without(&with_us, &own_path) {
            Some(rest) => std::env::set_var(VARIABLE, rest),
            None => std::env::remove_var(VARIABLE),
        }
    }
    let _ = WITH_US.set(with_us);
}

/// The file of this library, under the name that the dynamic linker got.
fn own_path() -> Option<OsString> {
    // SAFETY: a structure of pointers, for which zero is a valid value. The address is that of a function of this
    // library. The name is a string of the linker, which keeps it.
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

/// The list of libraries without those that have the same file name as `library`. `None`: the list would be empty.
fn without(list: &OsStr, library: &OsStr) -> Option<OsString> {
    let ours = last_part(library.as_bytes());
    let others = list.as_bytes().split(|&byte| byte == b':' || byte == b' ');
    let others: Vec<&[u8]> = others.filter(|path| !path.is_empty() && last_part(path) != ours).collect();
    (!others.is_empty()).then(|| OsString::from_vec(others.join(&b':')))
}

fn role() -> Option<Role> {
    ROLE.get().copied().flatten()
}

/// As setsid(2). In hydra's proxy it only makes the caller the leader of a process group in its current session.
///
/// Returns the caller's process id, or -1 with `errno`.
#[unsafe(no_mangle)]
pub extern "C" fn setsid() -> libc::pid_t {
    // SAFETY: system calls without pointers. Ignoring a signal runs no code of this library.
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

/// As execvp(3). If the launcher starts a proxy, the proxy loads this library.
///
/// # Safety
/// As for execvp(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
    type Execvp = unsafe extern "C" fn(*const c_char, *const *const c_char) -> c_int;
    // SAFETY: the caller promises that this is a string.
    let name = unsafe { CStr::from_ptr(file) }.to_bytes();
    if role() == Some(Role::Launcher)
        && last_part(name) == PROXY
        && let Some(with_us) = WITH_US.get()
    {
        // SAFETY: hydra has one thread, and calls this in a forked child.
        unsafe { std::env::set_var(VARIABLE, with_us) };
    }
    // SAFETY: the next definition of the name is the C library's and has this type. The arguments are the caller's.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, c"execvp".as_ptr());
        if next.is_null() {
            *libc::__errno_location() = libc::ENOSYS;
            return -1;
        }
        std::mem::transmute::<*mut libc::c_void, Execvp>(next)(file, arguments)
    }
}
