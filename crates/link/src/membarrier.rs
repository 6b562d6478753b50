//! What the kernel offers on this host, for `weir doctor`.

/// Whether membarrier is offered in the form that a sleeping endpoint uses to make sure that it misses no wake-up
/// (global expedited). Without it senders pay for that with a fence on every packet.
pub fn is_available() -> bool {
    const QUERY: i32 = 0;
    const GLOBAL_EXPEDITED: libc::c_long = 1 << 1;
    // SAFETY: membarrier takes three integers and touches no memory of ours; a query changes nothing.
    let offered = unsafe { libc::syscall(libc::SYS_membarrier, QUERY, 0, 0) };
    offered >= 0 && offered & GLOBAL_EXPEDITED != 0
}
