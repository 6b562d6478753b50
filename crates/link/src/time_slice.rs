//! The time slice of a thread: how long it runs on a core that others want before the scheduler lets another one run.
//!
//! A rank that waits needs the core briefly, and soon after it is woken. Where processes that compute share the cores
//! (other jobs, a compiler in CI), a rank with the usual slice of some milliseconds waits for the rest of their slices at
//! each message. Linux 6.12 and later (EEVDF) let a thread ask for a shorter slice without any privilege. Among the threads
//! that have not yet had their share, those with the shorter slice come first, and they may take the core when they wake.
//! The share itself does not change: a thread with a short slice runs more often and not longer.
//!
//! Threads and processes that the thread starts later have the same slice.

use std::io;
use std::time::Duration;

/// The shortest slice that Linux allows.
pub const SHORTEST: Duration = Duration::from_micros(100);

/// The slice of the calling thread. `None`: the kernel has no slices that threads choose (before 6.12), or the thread's
/// policy has none (real-time).
///
/// # Errors
/// The error of `sched_getattr`, for example in a sandbox that forbids it.
pub fn of_this_thread() -> io::Result<Option<Duration>> {
    Ok(slice_in(&attributes()?))
}

/// Gives the calling thread the slice [`SHORTEST`], if it has a longer one. Its policy and its priority stay. Returns
/// whether it has changed something.
///
/// # Errors
/// As [`of_this_thread`].
pub fn shorten() -> io::Result<bool> {
    let mut attributes = attributes()?;
    if slice_in(&attributes).is_none_or(|slice| slice <= SHORTEST) {
        return Ok(false);
    }
    attributes.sched_runtime = SHORTEST.as_nanos() as u64;
    // SAFETY: the kernel reads `size` bytes of the structure, which outlives the call.
    let status = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if status == 0 { Ok(true) } else { Err(io::Error::last_os_error()) }
}

fn attributes() -> io::Result<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32;
    let mut attributes = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes at most `size` bytes into the structure, which outlives the call.
    let status = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if status == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

/// For the fair policies, kernels before 6.12 report 0.
fn slice_in(attributes: &libc::sched_attr) -> Option<Duration> {
    let is_fair = [libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&(attributes.sched_policy as i32));
    (is_fair && attributes.sched_runtime > 0).then(|| Duration::from_nanos(attributes.sched_runtime))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread of its own, since slices pass to threads that start later.
    fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"))
    }

    #[test]
    fn a_shortened_slice_is_the_shortest_and_the_rest_stays() {
        in_thread(|| {
            let parameters = libc::sched_param { sched_priority: 0 };
            // SAFETY: the structure outlives the call.
            assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) }, 0);
            let before = attributes().expect("attributes");
            let changed = shorten().expect("allowed");
            let after = attributes().expect("attributes");
            assert_eq!(after.sched_policy, libc::SCHED_BATCH as u32);
            assert_eq!((after.sched_nice, after.sched_flags), (before.sched_nice, before.sched_flags));
            match slice_in(&before) {
                Some(slice) => {
                    assert_eq!(changed, slice > SHORTEST);
                    assert_eq!(slice_in(&after), Some(SHORTEST));
                }
                None => assert!(!changed && slice_in(&after).is_none(), "a kernel before 6.12"),
            }
            assert!(!shorten().expect("allowed"), "it is short already");
        });
    }

    #[test]
    fn old_kernels_and_real_time_threads_have_no_slice() {
        let mut attributes = attributes().expect("attributes");
        attributes.sched_runtime = 0;
        assert_eq!(slice_in(&attributes), None);
        attributes.sched_runtime = 3_000_000;
        assert_eq!(slice_in(&attributes), Some(Duration::from_millis(3)));
        attributes.sched_policy = libc::SCHED_FIFO as u32;
        assert_eq!(slice_in(&attributes), None);
    }
}
