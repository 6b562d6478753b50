//! Functions about cores and threads: the cores of this process and lists of cores, binding a thread, yielding, the
//! tick counter, and the identity and number of threads.
//!
//! The time for which an endpoint may spin depends on whether every rank of the node has a core. Where the launcher
//! binds ranks, one rank does not see all cores here. `oversubscription.rs` of the engine handles this.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;

/// Number of cores that this process may run on, at least 1. A launcher that binds ranks reduces it.
pub fn available() -> usize {
    allowed().map_or(1, |cores| cores.len().max(1))
}

/// Numbers of the cores that the calling thread may run on.
///
/// # Errors
/// The error of sched_getaffinity.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Number of the core on which the calling thread runs. `None`: the kernel does not tell. It may change at any time.
pub fn current() -> Option<u32> {
    // rustix has no result for an error. SAFETY: sched_getcpu takes nothing and touches no memory of this process.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Number of cores in a list in the kernel's format, such as `0-3,8`. `None`: the text is not such a list.
pub fn count(list: &str) -> Option<usize> {
    let ranges = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_add(1)?.checked_sub(first)
    });
    ranges.sum()
}

/// Binds the calling thread to one core.
///
/// # Errors
/// The error of sched_setaffinity, usually that the core is not allowed.
pub fn pin(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        let most = CpuSet::MAX_CPU - 1;
        let error = format!("cannot bind to core {core}; allowed: 0 to {most}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// A number that no other running thread of this process has.
#[inline(always)]
pub fn this_thread() -> usize {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
    {
        let thread;
        // SAFETY: reads the first word of the thread control block, which holds the block's own address. Source:
        // System V ABI, "ELF Handling For Thread-Local Storage", 3.4.6. A thread-local variable of a shared library
        // would cost a call.
        unsafe {
            core::arch::asm!("mov {}, fs:[0]", out(reg) thread, options(pure, readonly, nostack, preserves_flags));
        }
        thread
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
    {
        thread_local!(static HERE: u8 = const { 0 });
        HERE.with(|here| core::ptr::from_ref(here) as usize)
    }
}

/// Whether this process has one thread. `false` if that is not known.
pub fn is_only_thread() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

/// Starts a thread that no signal interrupts: the program's handlers run in its own threads.
///
/// # Errors
/// The error of pthread_create.
pub fn spawn_without_signals(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<std::thread::JoinHandle<()>> {
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets live across the calls. The first call fills `all`; the second one reads it, and fills `before`.
    // A thread inherits the mask of the one that starts it.
    let masked = unsafe {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
    };
    let started = std::thread::Builder::new().name(name.to_string()).spawn(work);
    if masked == 0 {
        // SAFETY: the call above has filled the set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    started
}

/// Whether [`ticks`] counts.
pub const TICKS: bool = cfg!(all(target_arch = "x86_64", not(miri)));

/// A counter with a constant rate, for intervals of microseconds on one core. Cheaper than a clock. Unit: ticks of
/// the processor, 2 to 4 per nanosecond. Always 0 where [`TICKS`] is false.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: reads the time-stamp counter, which every processor of this architecture has.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    0
}

/// [`ticks`] where they count, and nanoseconds elsewhere: for intervals of any length, whose unit the caller finds out by
/// comparing with a clock. Never 0.
#[inline(always)]
pub fn stopwatch() -> u64 {
    if TICKS {
        return ticks();
    }
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64 + 1
}

/// Yields the core to another thread or process.
pub fn yield_now() {
    std::thread::yield_now();
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_thread_has_its_own_identifier() {
        let here = super::this_thread();
        assert_eq!(super::this_thread(), here);
        std::thread::spawn(move || assert_ne!(super::this_thread(), here)).join().expect("no panic");
    }

    #[test]
    fn a_stopwatch_counts_as_fast_as_the_clock_or_faster() {
        let (began, clock) = (super::stopwatch(), std::time::Instant::now());
        std::thread::sleep(std::time::Duration::from_millis(5));
        let counted = super::stopwatch().saturating_sub(began);
        assert!(began > 0 && counted > 4_000_000, "{counted} in {:?}", clock.elapsed());
    }

    #[test]
    fn a_second_thread_is_not_the_only_one() {
        assert!(!std::thread::spawn(super::is_only_thread).join().expect("no panic"));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no signal masks")]
    fn a_thread_without_signals_blocks_all_and_its_starter_none() {
        let blocked = || {
            let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: the call fills the set, which lives across it.
            unsafe {
                assert_eq!(libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), set.as_mut_ptr()), 0);
                libc::sigismember(set.as_ptr(), libc::SIGUSR1)
            }
        };
        let before = blocked();
        let inside = std::sync::Arc::new(std::sync::Mutex::new(-1));
        let result = std::sync::Arc::clone(&inside);
        let thread = super::spawn_without_signals("weir-test", move || *result.lock().unwrap() = blocked());
        thread.expect("a thread").join().expect("no panic");
        assert_eq!((before, *inside.lock().unwrap(), blocked()), (0, 1, 0));
    }

    #[test]
    fn cores_in_a_kernel_list_are_counted() {
        assert_eq!(["0-1\n", "0", "0-3,8,10-11"].map(super::count), [2, 1, 7].map(Some));
        assert_eq!(["", "x", "3-1", "0,"].map(super::count), [None; 4]);
    }

    #[test]
    fn a_pinned_thread_has_one_core() {
        std::thread::spawn(|| {
            let cores = super::allowed().expect("an affinity");
            assert_eq!(super::available(), cores.len());
            super::pin(cores[0]).expect("an allowed core");
            assert_eq!(super::allowed().expect("an affinity"), [cores[0]]);
            assert_eq!(super::current(), Some(cores[0] as u32));
            assert!(super::pin(usize::MAX).is_err());
        })
        .join()
        .expect("no panic");
    }
}
