//! Checks that the kernel offers `membarrier`, for `weir doctor`.

/// Whether the kernel offers the form of `membarrier` that an endpoint uses before it sleeps (global expedited).
/// Without it, senders execute a fence for every packet.
pub fn is_available() -> bool {
    const QUERY: i32 = 0;
    const GLOBAL_EXPEDITED: libc::c_long = 1 << 1;
    // SAFETY: membarrier takes three integers and touches no memory of this process. A query changes nothing.
    let offered = unsafe { libc::syscall(libc::SYS_membarrier, QUERY, 0, 0) };
    offered >= 0 && offered & GLOBAL_EXPEDITED != 0
}
