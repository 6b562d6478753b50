//! Temporary directories of commands. [`directory`] creates one, which is removed when it is dropped, and removes those
//! that killed commands have left. [`running`] lists those of running commands: `weir explain` finds jobs by them.
//!
//! Several hosts or containers may share the place of temporary files, so a process id does not show whether a command
//! still runs. The name and a lock show it:
//!
//! - The name of the directory is `weir-<host>-<process>-<random>`. A command looks only at directories of its own
//!   host.
//! - A lock (`flock`) on the file `lock` in the directory. The kernel releases it when the command ends. It works
//!   across containers of one host, which can see different process ids. No other command removes a directory without
//!   this file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use weir_output::Failure;

const PREFIX: &str = "weir-";
const LOCK: &str = "lock";

/// The temporary directory of this command. Dropping it removes the directory.
#[derive(Debug)]
pub struct Scratch {
    // Dropped first: the lock is held until the directory is removed.
    directory: TempDir,
    _lock: Option<File>,
}

impl Scratch {
    /// Its path.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Creates a directory where temporary files go. Removes the directories that killed commands of this host have left there.
///
/// # Errors
/// [`Failure::System`].
pub fn directory() -> Result<Scratch, Failure> {
    let place = std::env::temp_dir();
    create_in(&place, &host()).map_err(Failure::system(format!("a directory in {}", place.display())))
}

fn create_in(place: &Path, host: &str) -> io::Result<Scratch> {
    for (path, state) in directories(place, host) {
        if state == State::Ended {
            // Another command may remove it at the same time.
            let _ = std::fs::remove_dir_all(path);
        }
    }
    let prefix = format!("{PREFIX}{host}-{}-", std::process::id());
    let directory = tempfile::Builder::new().prefix(&prefix).tempdir_in(place)?;
    let lock = lock_in(directory.path())?;
    Ok(Scratch { directory, _lock: lock })
}

/// Creates the lock file and locks it. `None` if the file system has no locks; nobody removes the directory then.
fn lock_in(directory: &Path) -> io::Result<Option<File>> {
    // The file gets its name once it is locked, so that no command finds it unlocked before.
    let unlocked = directory.join("lock.new");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&unlocked)?;
    if file.try_lock().is_err() {
        return Ok(None);
    }
    std::fs::rename(unlocked, directory.join(LOCK))?;
    Ok(Some(file))
}

/// The directories of commands that are running on this host.
pub fn running() -> Vec<PathBuf> {
    let directories = directories(&std::env::temp_dir(), &host());
    directories.into_iter().filter(|(_, state)| *state == State::Running).map(|(path, _)| path).collect()
}

/// The state of the command of a directory, according to its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The lock is held.
    Running,
    /// The lock is free.
    Ended,
    /// There is no lock that this user may open.
    Unknown,
}

/// The directories that commands of `host` have created in `place`.
fn directories(place: &Path, host: &str) -> Vec<(PathBuf, State)> {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_str().and_then(host_of) == Some(host))
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| (entry.path(), state_of(&entry.path())))
        .collect()
}

fn state_of(directory: &Path) -> State {
    let Ok(file) = OpenOptions::new().read(true).write(true).open(directory.join(LOCK)) else {
        return State::Unknown;
    };
    match file.try_lock() {
        Ok(()) => State::Ended,
        Err(TryLockError::WouldBlock) => State::Running,
        Err(TryLockError::Error(_)) => State::Unknown,
    }
}

/// The host in the name of a directory: `h-1` of `weir-h-1-4711-a8Xz`.
fn host_of(name: &str) -> Option<&str> {
    let (host_and_process, _random) = name.strip_prefix(PREFIX)?.rsplit_once('-')?;
    let (host, process) = host_and_process.rsplit_once('-')?;
    process.parse::<u32>().ok().map(|_| host)
}

/// The name of this host, as it can stand in a path.
fn host() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    name.to_string_lossy().chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "a-host.example";

    fn states(place: &Path, host: &str) -> Vec<State> {
        directories(place, host).into_iter().map(|(_, state)| state).collect()
    }

    /// The directory of a killed command: nobody holds its lock.
    fn leave_behind(place: &Path, name: &str) -> PathBuf {
        let path = place.join(name);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join(LOCK), "").unwrap();
        path
    }

    #[test]
    fn names_contain_the_host() {
        assert_eq!(host_of("weir-a-host.example-4711-a8Xz"), Some(HOST));
        assert_eq!(host_of("weir-h-4711-a8Xz"), Some("h"));
        for other in ["weir-4711-a8Xz", "weir-h-x-a8Xz", "weir-h-4711", "other-h-4711-a8Xz", "weir-"] {
            assert_eq!(host_of(other), None, "{other}");
        }
        assert!(!host().is_empty() && !host().contains(['/', ':']));
    }

    #[test]
    fn a_directory_is_running_while_its_command_holds_the_lock() {
        let place = tempfile::tempdir().unwrap();
        let scratch = create_in(place.path(), HOST).unwrap();
        assert_eq!(states(place.path(), HOST), [State::Running]);
        assert_eq!(states(place.path(), "another"), []);
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn only_directories_of_this_host_with_a_free_lock_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let killed = leave_behind(place, "weir-a-host.example-1-killed");
        let of_other_host = leave_behind(place, "weir-another-1-killed");
        let of_other_program = leave_behind(place, "weir-test-a8Xz");
        // Its process id is not one of this container, or is one that another process has now.
        let running = leave_behind(place, "weir-a-host.example-4194305-runs");
        let lock = File::open(running.join(LOCK)).unwrap();
        lock.lock().unwrap();
        let without_lock = place.join("weir-a-host.example-2-new");
        std::fs::create_dir(&without_lock).unwrap();
        let scratch = create_in(place, HOST).unwrap();
        assert!(!killed.exists());
        for kept in [&of_other_host, &of_other_program, &running, &without_lock] {
            assert!(kept.exists(), "{}", kept.display());
        }
        assert!(scratch.path().join(LOCK).exists());
        drop(lock);
        drop(create_in(place, HOST).unwrap());
        assert!(!running.exists(), "its lock is free now");
    }
}
