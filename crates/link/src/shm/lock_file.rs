//! Liveness of endpoints: one lock file ([`LockFile`]) for each directory and user, in which every endpoint holds a
//! lock.
//!
//! It does not know segments or their contents. An endpoint locks one byte, which the number of its segment selects.
//! Peers ask the kernel about that byte through a descriptor that they hold already:
//! ```text
//! first endpoint of A:  opens weir.UID.locks, behind the gate: the name still means this file, locks byte a
//! first endpoint of B:  the same with byte b
//! A: does B run?        F_GETLK of byte b: held -> alive; not held -> it has ended
//! last endpoint of B:   behind the gate: unlocks b; somebody else holds a byte, so the file stays; closes it
//! ```
//! So the test needs no free descriptor, no permission and no name of the segment. It stays right when the program
//! changes its user or when somebody removes names.
//!
//! **The locks** are POSIX record locks. The kernel releases them when the process ends, in any way, and a forked child
//! does not inherit them. Closing any descriptor of the file in this process releases them too. So a process opens each
//! lock file once, and the list of [`super::open_files`] keeps it open while anybody in the process uses it.
//!
//! **The gate** is one more byte. It is locked while an endpoint joins or leaves, so that nobody removes the name
//! between the opening and the locking. Nobody waits longer than a second for it. Somebody else may still remove the
//! name. Later endpoints then have another file, where this process's locks are not seen. [`LockFile::inode`] tells
//! both apart, and peers with different files do not connect.
//!
//! **Reports.** The time of the file shows that a rank of this job has reported a lack of memory, or a wrong setting. So the
//! others do not repeat it ([`LockFile::report_once`]). Whoever reports something about peers holds a byte for it, of its
//! job, as long as it runs ([`LockFile::is_first_to_report`]).

use super::segment_file::uid;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The byte that is locked while an endpoint joins or leaves.
const GATE: i64 = 1 << 62;
/// The first of the bytes for reports.
const REPORTS: i64 = GATE + 1;
/// Bound on waiting for the gate. Its holder needs some microseconds, unless somebody has stopped it.
const GATE_TIMEOUT: Duration = Duration::from_secs(1);
/// Bound on attempts to open a file that others remove at the same time.
const ATTEMPTS: u32 = 100;
/// Ranks of one job report the same lack of memory, or the same wrong setting, within this time.
const REPORT_SECONDS: i64 = 60;

/// Something about peers that one rank of a job on a node reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// No link reaches a peer.
    Unreachable,
    /// A peer has another scheme.
    OtherScheme,
    /// A peer has another version.
    OtherVersion,
    /// A peer has never answered over a network.
    Silence,
}

/// The lock file of a directory and user, opened by this process.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    inode: u64,
    uid: u32,
    dir: PathBuf,
}

impl LockFile {
    /// Opens the lock file of this user in `dir` and locks the byte of the segment `id`. Only one at a time in a
    /// process and directory.
    ///
    /// # Errors
    /// The file cannot be opened or locked.
    pub fn open(dir: &Path, id: u64) -> io::Result<LockFile> {
        let uid = uid();
        let (file, inode) = open_behind_gate(&path(dir, uid), || ())?;
        set_lock(&file, libc::F_WRLCK, byte(id), 1)?;
        set_lock(&file, libc::F_UNLCK, GATE, 1)?;
        Ok(LockFile { file, inode, uid, dir: dir.to_owned() })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The user that this process had when it opened the file. It may have changed its user since.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Number of the file. Endpoints with different numbers cannot see each other's locks.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Locks the byte of a further segment of this process. `false`: the name means another file now, so later
    /// endpoints would not see the lock.
    ///
    /// # Errors
    /// The kernel has no memory for the lock.
    pub fn add(&self, id: u64) -> io::Result<bool> {
        pass_gate(&self.file);
        let named = still_named(&path(&self.dir, self.uid), self.inode);
        let locked = if named { set_lock(&self.file, libc::F_WRLCK, byte(id), 1) } else { Ok(()) };
        let _ = set_lock(&self.file, libc::F_UNLCK, GATE, 1);
        locked.map(|()| named)
    }

    /// Unlocks the byte of a segment of this process.
    pub fn remove(&self, id: u64) {
        let _ = set_lock(&self.file, libc::F_UNLCK, byte(id), 1);
    }

    /// Removes the name if no other process has a lock. This process has no segment left, or is about to end.
    pub fn remove_name_if_last(&self) {
        pass_gate(&self.file);
        let path = path(&self.dir, self.uid);
        // A marked file stays for the other ranks of the job. Somebody's last endpoint or `weir clean` removes it later.
        if holder(&self.file, 0, GATE).is_none() && still_named(&path, self.inode) && !is_marked(&self.file) {
            let _ = std::fs::remove_file(path);
        }
        let _ = set_lock(&self.file, libc::F_UNLCK, GATE, 1);
    }

    /// Calls `report` if nobody in this job has reported a lack of memory, or a wrong setting, before. A rank that comes later
    /// continues only when that is done: it may end the job.
    pub fn report_once(&self, report: impl FnOnce()) {
        pass_gate(&self.file);
        mark_report(&self.file, report);
        let _ = set_lock(&self.file, libc::F_UNLCK, GATE, 1);
    }

    /// Whether no other process of this job on this node has reported `what`, as far as they still run.
    pub fn is_first_to_report(&self, what: Report) -> bool {
        let mut hasher = DefaultHasher::new();
        (job_mark(), what as u8).hash(&mut hasher);
        let byte = REPORTS + (hasher.finish() >> 3) as i64;
        let locked = set_lock(&self.file, libc::F_WRLCK, byte, 1);
        !locked.is_err_and(|error| matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)))
    }

    /// Runs `act` while no other process joins or leaves, or runs such an act. After a timeout it runs nevertheless: so
    /// `act` must stay correct if somebody else was stopped in the middle of his.
    pub fn behind_gate<T>(&self, act: impl FnOnce() -> T) -> T {
        pass_gate(&self.file);
        let result = act();
        let _ = set_lock(&self.file, libc::F_UNLCK, GATE, 1);
        result
    }

    /// Whether another process holds a byte: its endpoint runs in this directory.
    pub fn is_used_by_others(&self) -> bool {
        holder(&self.file, 0, GATE).is_some()
    }

    /// Whether another process holds the byte of the segment `id`: the segment's owner runs and has not closed it.
    /// True if the kernel cannot tell.
    pub fn is_held(&self, id: u64) -> bool {
        holder(&self.file, byte(id), 1).is_some()
    }
}

/// Removes the lock file in `dir` that crashed processes of this user have left. This process may not have joined it.
pub fn remove_stale(dir: &Path) {
    let path = path(dir, uid());
    let Ok((file, inode)) = open_file(&path, false) else { return };
    pass_gate(&file);
    if holder(&file, 0, GATE).is_none() && still_named(&path, inode) {
        let _ = std::fs::remove_file(path);
    }
}

/// Opens the lock file of this user in `dir` without a lock, or `None` if there is none. This process may not have joined
/// it: the locks would be lost when the value is dropped.
pub fn look_at(dir: &Path) -> Option<LockFile> {
    let (file, inode) = open_file(&path(dir, uid()), false).ok()?;
    Some(LockFile { file, inode, uid: uid(), dir: dir.to_owned() })
}

/// As [`LockFile::report_once`], in a process that has not joined the file. Without such a file every rank reports.
pub fn report_once(dir: &Path, report: impl FnOnce()) {
    report_once_and(dir, report, || ());
}

/// [`report_once`], which calls `opened` between opening the file and locking its gate.
fn report_once_and(dir: &Path, report: impl FnOnce(), opened: impl FnMut()) {
    match open_behind_gate(&path(dir, uid()), opened) {
        Ok((file, _)) => mark_report(&file, report),
        Err(_) => report(),
    }
}

/// The file that `path` names, with its gate locked. The last user of a file may remove its name before the gate is
/// locked. Then the name means another file, or none, and this function opens that one. It calls `opened` after each
/// opening.
fn open_behind_gate(path: &Path, mut opened: impl FnMut()) -> io::Result<(File, u64)> {
    for _ in 0..ATTEMPTS {
        let (file, inode) = open_file(path, true)?;
        opened();
        pass_gate(&file);
        if still_named(path, inode) {
            return Ok((file, inode));
        }
    }
    Err(io::Error::other("others remove it again and again"))
}

/// The file at `path` of this user, and its inode.
fn open_file(path: &Path, create: bool) -> io::Result<(File, u64)> {
    let file = File::options()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.uid() == uid() {
        return Ok((file, metadata.ino()));
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "not a regular file of this user; remove it"))
}

/// The job of this process as nanoseconds: its ranks on a node have one parent.
fn job_mark() -> i64 {
    i64::from(std::os::unix::process::parent_id() % 1_000_000_000)
}

/// Whether somebody of this job has reported a lack of memory, or a wrong setting. The time of the file says so: it needs no
/// space.
fn is_marked(file: &File) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
    file.metadata().is_ok_and(|metadata| {
        metadata.mtime_nsec() == job_mark() && (now - metadata.mtime()).abs() < REPORT_SECONDS
    })
}

/// Calls `report` and marks the file, unless it is marked.
fn mark_report(file: &File, report: impl FnOnce()) {
    if is_marked(file) {
        return;
    }
    report();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let _ = file.set_modified(UNIX_EPOCH + Duration::new(now.as_secs(), job_mark() as u32));
}

/// The lock file of the user `uid` in `dir`.
pub fn path(dir: &Path, uid: u32) -> PathBuf {
    dir.join(format!("weir.{uid}.locks"))
}

/// The byte of the segment `id`. Two numbers share one with a probability of 2^-62.
fn byte(id: u64) -> i64 {
    (id >> 2) as i64
}

fn still_named(path: &Path, inode: u64) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.ino() == inode)
}

#[cfg(test)]
thread_local! {
    /// How often this thread has given up waiting for the gate.
    pub static GATE_TIMEOUTS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Locks the gate. After a timeout the caller continues without: then at worst later endpoints have another file.
fn pass_gate(file: &File) {
    let end = Instant::now() + GATE_TIMEOUT;
    while set_lock(file, libc::F_WRLCK, GATE, 1).is_err() {
        if Instant::now() >= end {
            #[cfg(test)]
            GATE_TIMEOUTS.with(|count| count.set(count.get() + 1));
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

// rustix locks whole files only, so these three functions call the C library.

fn range(kind: libc::c_int, start: i64, bytes: i64) -> libc::flock {
    // SAFETY: `flock` is a structure of integers, for which zero is a valid value.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start;
    lock.l_len = bytes;
    lock
}

fn set_lock(file: &File, kind: libc::c_int, start: i64, bytes: i64) -> io::Result<()> {
    let lock = range(kind, start, bytes);
    // SAFETY: an open file and a structure that outlives the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The process that holds a lock in this range, other than this one. 0: the kernel cannot tell, or the process is in
/// another pid namespace.
fn holder(file: &File, start: i64, bytes: i64) -> Option<libc::pid_t> {
    let mut lock = range(libc::F_WRLCK, start, bytes);
    // SAFETY: as above; the kernel writes to the structure.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    if result < 0 {
        return Some(0);
    }
    (lock.l_type != libc::F_UNLCK as libc::c_short).then_some(lock.l_pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rank that leaves last removes the name while the next one has opened the file already.
    #[test]
    fn a_report_marks_the_file_that_has_the_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut first, mut second, mut is_removed) = (false, false, false);
        report_once_and(
            dir.path(),
            || first = true,
            || {
                if !std::mem::replace(&mut is_removed, true) {
                    std::fs::remove_file(path(dir.path(), uid())).expect("removed");
                }
            },
        );
        report_once(dir.path(), || second = true);
        assert_eq!((first, second), (true, false), "the second rank finds the report of the first");
    }
}
