//! Checks that the kernel offers `membarrier`, for `weir doctor`.

use rustix::thread::{MembarrierCommand, membarrier_query};

/// Whether the kernel offers the form of `membarrier` that an endpoint uses before it sleeps (global expedited).
/// Without it, senders execute a fence for every packet.
pub fn is_available() -> bool {
    membarrier_query().contains_command(MembarrierCommand::GlobalExpedited)
}
