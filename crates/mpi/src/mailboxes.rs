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
    let in_use = || {
        let owners = weir_link::shm::owners(directory)?.into_iter().map(|(_, process)| process);
        Ok(owners.filter(|process| processes.contains(process)).collect())
    };
    let pass = || remove_stale(directory).map(|removed| removed.mailboxes);
    remove_as_they_end(pass, in_use, || std::thread::sleep(POLL_INTERVAL))
}

/// Calls `pass`, which removes what ended processes have left, until `in_use` names no process of the run, or for
/// [`MAX_LINGER`], with a `pause` between. Returns the sum of what was removed, and the processes still in use.
///
/// The last pass begins when all processes have ended. If one ends during a pass, this may remove its mailbox, but has
/// looked at its node segment before.
fn remove_as_they_end(
    mut pass: impl FnMut() -> io::Result<usize>,
    mut in_use: impl FnMut() -> io::Result<Vec<u32>>,
    mut pause: impl FnMut(),
) -> io::Result<(usize, Vec<u32>)> {
    let begun = Instant::now();
    let mut removed = 0;
    loop {
        removed += pass()?;
        let mut left = in_use()?;
        let has_ended = left.is_empty();
        if has_ended {
            removed += pass()?;
        }
        if has_ended || begun.elapsed() >= MAX_LINGER {
            left.sort_unstable();
            left.dedup();
            return Ok((removed, left));
        }
        pause();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// A rank with its files.
    #[derive(Clone, Copy)]
    struct Rank {
        runs: bool,
        has_node_segment: bool,
        has_mailbox: bool,
    }

    /// Removes the files of a rank that ends while the pass `ends_in` is between node segments and mailboxes. Returns the
    /// rank, and the result.
    fn removed(ends_in: u32) -> (Rank, (usize, Vec<u32>)) {
        let rank = RefCell::new(Rank { runs: true, has_node_segment: true, has_mailbox: true });
        let mut passes = 0;
        let pass = || {
            let mut rank = rank.borrow_mut();
            rank.has_node_segment &= rank.runs;
            passes += 1;
            rank.runs &= passes != ends_in;
            let is_removed = rank.has_mailbox && !rank.runs;
            rank.has_mailbox &= rank.runs;
            Ok(usize::from(is_removed))
        };
        let in_use = || Ok(rank.borrow().has_mailbox.then_some(7).into_iter().collect());
        let result = remove_as_they_end(pass, in_use, || std::thread::sleep(Duration::from_millis(1)));
        (rank.into_inner(), result.expect("no errors"))
    }

    #[test]
    fn a_rank_that_ends_while_files_are_removed_leaves_none() {
        for ends_in in [1, 2, 5] {
            let (rank, result) = removed(ends_in);
            assert!(!rank.has_mailbox && !rank.has_node_segment, "it ends in pass {ends_in}");
            assert_eq!(result, (1, Vec::new()));
        }
    }

    #[test]
    fn a_process_that_still_runs_is_named() {
        let (rank, result) = removed(u32::MAX);
        assert!(rank.has_mailbox && rank.has_node_segment);
        assert_eq!(result, (0, vec![7]));
    }
}
