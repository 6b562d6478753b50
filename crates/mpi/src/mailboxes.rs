//! Removing mailboxes that crashed jobs have left in shared memory.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the processes of a run may take to end after their launcher has.
const LINGER: Duration = Duration::from_secs(1);
/// How often they are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Removes the mailboxes in `directory` whose processes are gone, ours only. Returns what was removed.
///
/// # Errors
/// If the directory cannot be listed.
pub fn remove_stale(directory: &Path) -> io::Result<Vec<PathBuf>> {
    weir_link::shm::cleanup(directory)
}

/// The same after a run, whose processes were `processes`: if its launcher did not wait for all, mailboxes are in use till the
/// last has ended. So it looks again, for up to a second, while any of theirs is there. Returns what was removed, and
/// whose are still in use.
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
        if left.is_empty() || begun.elapsed() >= LINGER {
            left.sort_unstable();
            left.dedup();
            return Ok((removed, left));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
