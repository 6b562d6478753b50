//! Removes the mailboxes and node segments that crashed jobs have left in shared memory. After a run it also names the
//! processes that still use a mailbox.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time that the processes of a run may take to end after their launcher has ended.
const MAX_LINGER: Duration = Duration::from_secs(1);
/// Interval between checks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The files that were removed.
#[derive(Debug, Default)]
pub struct Removed {
    /// Mailboxes.
    pub mailboxes: usize,
    /// Node segments.
    pub node_segments: usize,
    /// All of them.
    pub paths: Vec<PathBuf>,
}

/// Removes this user's mailboxes in `directory` whose processes have ended, and node segments that nobody uses any more.
///
/// # Errors
/// If the directory cannot be listed.
pub fn remove_stale(directory: &Path) -> io::Result<Removed> {
    // Node segments first: they name mailboxes.
    let node_segments = weir_link::shm::node_segment::remove_stale(directory)?;
    let mailboxes = weir_link::shm::cleanup(directory)?;
    let numbers = (mailboxes.len(), node_segments.len());
    let paths = mailboxes.into_iter().chain(node_segments).collect();
    Ok(Removed { mailboxes: numbers.0, node_segments: numbers.1, paths })
}

/// [`remove_stale`] after a run with these `processes`. If the launcher did not wait for all of them, some mailboxes are
/// still in use. So it tries again for up to a second. Returns how many mailboxes were removed, and the processes that
/// still use one.
///
/// # Errors
/// If the directory cannot be listed.
pub fn remove_after_run(directory: &Path, processes: &[u32]) -> io::Result<(usize, Vec<u32>)> {
    let begun = Instant::now();
    let mut removed = 0;
    loop {
        removed += remove_stale(directory)?.mailboxes;
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
