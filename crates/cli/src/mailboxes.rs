//! Removing mailboxes that crashed jobs have left in shared memory.

use std::io;
use std::path::{Path, PathBuf};

/// Removes the mailboxes in `directory` whose processes are gone, ours only. Returns what was removed.
///
/// # Errors
/// If the directory cannot be listed.
pub fn remove_stale(directory: &Path) -> io::Result<Vec<PathBuf>> {
    weir_link::shm::cleanup(directory)
}
