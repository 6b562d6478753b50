//! Directories for the time of one command, removed at its end; those of commands that were killed, at the next one.

use std::path::{Path, PathBuf};
use tempfile::TempDir;
use weir_output::Failure;

const PREFIX: &str = "weir-";

/// A directory of our own where temporary files go, named `weir-<process>-<random>`. Removes what killed commands have
/// left there.
///
/// # Errors
/// [`Failure::System`].
pub fn directory() -> Result<TempDir, Failure> {
    let place = std::env::temp_dir();
    for left in stale(&place) {
        // Another user's cannot be removed, and need not be.
        let _ = std::fs::remove_dir_all(left);
    }
    let prefix = format!("{PREFIX}{}-", std::process::id());
    let made = tempfile::Builder::new().prefix(&prefix).tempdir_in(&place);
    made.map_err(Failure::system(format!("a directory in {}", place.display())))
}

/// Directories of commands that are running.
pub fn running() -> Vec<PathBuf> {
    let place = std::env::temp_dir();
    let gone = stale(&place);
    let entries = std::fs::read_dir(&place).into_iter().flatten().flatten();
    let ours = |name: &str| name.strip_prefix(PREFIX)?.split_once('-')?.0.parse::<u32>().ok();
    entries
        .filter(|entry| entry.file_name().to_str().and_then(ours).is_some())
        .map(|entry| entry.path())
        .filter(|path| path.is_dir() && !gone.contains(path))
        .collect()
}

/// Directories whose process is gone. One whose number has been given to another process stays till that ends.
fn stale(place: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let of_ended = |name: &str| {
        let process = name.strip_prefix(PREFIX)?.split_once('-')?.0.parse::<u32>().ok()?;
        (!Path::new(&format!("/proc/{process}")).exists()).then_some(())
    };
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter(|entry| entry.file_name().to_str().and_then(of_ended).is_some())
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_killed_commands_are_stale() {
        let place = tempfile::tempdir().unwrap();
        let ours = format!("weir-{}-abc", std::process::id());
        // Process ids end at 2^22.
        for name in ["weir-4194305-abc", &ours, "weir-x-abc", "weir-4194305", "other-4194305-abc"] {
            std::fs::create_dir(place.path().join(name)).unwrap();
        }
        std::fs::write(place.path().join("weir-4194306-file"), "").unwrap();
        assert_eq!(stale(place.path()), [place.path().join("weir-4194305-abc")]);
    }
}
