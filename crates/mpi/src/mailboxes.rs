//! Removes the mailboxes that crashed jobs have left in shared memory.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the processes of a run may take to end after their launcher has ended.
const MAX_LINGER: Duration = Duration::from_secs(1);
/// Interval between checks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Removes this user's mailboxes in `directory` whose processes have ended. Returns what was removed.
///
/// # Errors
/// If the directory cannot be listed.
pub fn remove_stale(directory: &Path) -> io::Result<Vec<PathBuf>> {
    weir_link::shm::cleanup(directory)
}

/// Removes mailboxes after a run with these `processes`. If the launcher did not wait for all of them, some mailboxes
/// are still in use. So it tries again for up to a second. Returns what was removed, and the processes that still use a
/// mailbox.
///
/// # Errors
/// If the directory cannot be listed.
pub fn remove_after_run(directory: &Path, processes: &[u32]) -> io::Result<(Vec<PathBuf>, Vec<u32>)> {
    let begun = Instant::now();
    let mut removed = Vec::new();
    loop {
        removed.extend(remove_stale(directory)?);
        let mut left: Vec<u32> =
            weir_link::shm::owners(directory)?.into_iter().map(|(_, process)| process).collect();
        left.retain(|process| processes.contains(process));
        if left.is_empty() || begun.elapsed() >= MAX_LINGER {
            left.sort_unstable();
            left.dedup();
            return Ok((removed, left));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
