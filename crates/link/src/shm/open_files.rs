//! The list of the segments and lock files that this process has open. Whoever joins, leaves or asks a lock file, or
//! removes names when the process ends, goes through it. Opening one of these files again loses its locks.
//! [`behind_gate`] shows which endpoints of this user run while none joins or leaves. [`report_once`] lets one rank of
//! a job report a lack of memory.
//!
//! **Locks.** [`super::lock_file`] decides liveness. A second lock, on the segment's own file, serves `weir clean`,
//! which has not joined a lock file. Both are POSIX record locks: closing *any* descriptor of the file in the owning
//! process releases them. So a process never opens its own segments by name. [`own_segment`] finds them in a list, and
//! every function that opens a file asks that list first. A segment is in the list from before its name exists until
//! after the name is removed. Two copies of this crate in one process would not know each other's segments, so there
//! must be only one.
//!
//! **Forks.** A child has a copy of its parent's list, but owns nothing in it. The list belongs to one process
//! ([`PerProcess`]). In any other process it counts as empty, and nothing is unlinked or closed there.

use super::lock_file::{self, LockFile, Report};
use super::per_process::PerProcess;
use super::segment::OwnSegment;
use super::segment_file::{SystemError, attempt, uid};
use core::ops::Deref;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, MutexGuard, Once};

/// The files that one process has open and must not open again.
#[derive(Default)]
struct Opened {
    segments: Vec<Arc<OwnSegment>>,
    /// Lock files, with device and inode of their directories.
    lock_files: Vec<((u64, u64), Arc<LockFile>)>,
}

/// A lock file that this process has joined. It stays open as long as there is such a value.
#[derive(Clone, Debug)]
pub struct Locks(Option<Arc<LockFile>>);

impl Deref for Locks {
    type Target = LockFile;
    fn deref(&self) -> &LockFile {
        self.0.as_deref().expect("only `drop` takes it")
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        // Nobody may join while the file is closed here. In a forked child the list of the parent keeps it open.
        let mut opened = registry();
        self.0 = None;
        opened.lock_files.retain(|(_, file)| Arc::strong_count(file) > 1);
    }
}

impl Locks {
    /// Joins the lock file of `dir` with the segment `id`.
    ///
    /// # Errors
    /// [`SystemError`].
    pub fn join(dir: &Path, id: u64) -> Result<Locks, SystemError> {
        let what = || format!("lock the file {}", lock_file::path(dir, uid()).display());
        let mut opened = registry();
        let key = attempt(|| format!("read {}", dir.display()), directory_key(dir))?;
        for (_, file) in opened.lock_files.iter().filter(|(of, file)| *of == key && file.uid() == uid()) {
            if attempt(what, file.add(id))? {
                return Ok(Locks(Some(Arc::clone(file))));
            }
        }
        let file = Arc::new(attempt(what, LockFile::open(dir, id))?);
        opened.lock_files.push((key, Arc::clone(&file)));
        Ok(Locks(Some(file)))
    }

    /// Releases the byte of the segment `id`, and removes the name of the file if nobody uses it any more.
    pub fn leave(&self, id: u64) {
        let opened = registry();
        self.remove(id);
        if !opened.segments.iter().any(|own| own.locks().inode() == self.inode()) {
            self.remove_name_if_last();
        }
    }
}

/// Device and inode of a directory, which may have several paths.
fn directory_key(dir: &Path) -> io::Result<(u64, u64)> {
    std::fs::metadata(dir).map(|directory| (directory.dev(), directory.ino()))
}

/// Removes the lock file of this user in `dir` if nobody uses it.
pub fn remove_unused_lock_file(dir: &Path) {
    let opened = registry();
    let Ok(key) = directory_key(dir) else { return };
    // Opening a file that this process has joined would release its locks.
    if !opened.lock_files.iter().any(|(of, _)| *of == key) {
        lock_file::remove_stale(dir);
    }
}

/// Endpoints of this user that run, asked for behind the gate of a lock file.
pub struct Running<'a> {
    /// Numbers of the segments of this process.
    own: Vec<u64>,
    file: Option<&'a LockFile>,
}

impl Running<'_> {
    /// Whether the owner of the segment `id` runs and has not closed it.
    pub fn is_running(&self, id: u64) -> bool {
        self.own.contains(&id) || self.file.is_some_and(|file| file.is_held(id))
    }

    /// Whether any endpoint runs.
    pub fn is_any_running(&self) -> bool {
        !self.own.is_empty() || self.file.is_some_and(LockFile::is_used_by_others)
    }
}

/// Runs `act` while no endpoint joins or leaves the lock file `locks`, see [`LockFile::behind_gate`]. `act` may not use
/// other functions of this module, nor drop a [`Locks`]: they would wait for this one.
pub fn behind_gate<T>(locks: &Locks, act: impl FnOnce(&Running<'_>) -> T) -> T {
    let opened = registry();
    let own = opened.segments.iter().map(|own| own.facts().id).collect();
    locks.behind_gate(|| act(&Running { own, file: Some(locks) }))
}

/// As [`behind_gate`], for the directory `dir`, whose lock file this process need not have joined.
pub fn behind_gate_of<T>(dir: &Path, act: impl FnOnce(&Running<'_>) -> T) -> T {
    let opened = registry();
    let key = directory_key(dir).ok();
    if let Some((_, file)) = opened.lock_files.iter().find(|(of, _)| Some(*of) == key) {
        let is_there = |own: &&Arc<OwnSegment>| own.locks().inode() == file.inode();
        let own = opened.segments.iter().filter(is_there).map(|own| own.facts().id).collect();
        return file.behind_gate(|| act(&Running { own, file: Some(file) }));
    }
    // This process has no segment there.
    match lock_file::look_at(dir) {
        Some(file) => file.behind_gate(|| act(&Running { own: Vec::new(), file: Some(&file) })),
        None => act(&Running { own: Vec::new(), file: None }),
    }
}

static REGISTRY: PerProcess<Opened> = PerProcess::new();
static AT_EXIT: Once = Once::new();

fn registry() -> MutexGuard<'static, Opened> {
    REGISTRY.lock()
}

/// The segment `id`, if this process owns it.
pub fn own_segment(id: u64) -> Option<Arc<OwnSegment>> {
    registry().segments.iter().find(|own| own.facts().id == id).cloned()
}

/// Adds a segment of this process to the list, before its name exists.
pub fn list(own: &Arc<OwnSegment>) {
    registry().segments.push(Arc::clone(own));
}

/// Removes the segment `id` from the list, after its name is removed.
pub fn unlist(id: u64) {
    registry().segments.retain(|own| own.facts().id != id);
}

/// Registers [`remove_names_at_exit`].
pub fn remove_names_when_the_process_ends() {
    AT_EXIT.call_once(|| {
        // SAFETY: the hook takes no arguments, does not unwind and lives as long as this library's code.
        unsafe { libc::atexit(remove_names_at_exit) };
    });
}

/// Runs when a process ends without closing all segments. It removes the names but leaves the state open, so that
/// peers report a death.
extern "C" fn remove_names_at_exit() {
    if let Some(opened) = REGISTRY.try_lock() {
        for own in &opened.segments {
            let _ = std::fs::remove_file(own.path());
        }
        for (_, file) in &opened.lock_files {
            file.remove_name_if_last();
        }
    }
}

/// Whether no other process of this job on this node has reported `what`. Without an endpoint in shared memory every
/// process reports.
pub(crate) fn is_first_to_report(what: Report) -> bool {
    registry().lock_files.first().is_none_or(|(_, file)| file.is_first_to_report(what))
}

/// Calls `report` if no rank of this job on this node has reported something in this way before, with the same `dir`: a lack
/// of memory, or a wrong setting. Serves processes without a segment too. Ranks of a job have one parent, so a process that
/// no launcher has started should not use it.
pub fn report_once(dir: &Path, report: impl FnOnce()) {
    let opened = registry();
    let key = directory_key(dir).ok();
    match opened.lock_files.iter().find(|(of, _)| Some(*of) == key) {
        // Opening the file twice would release its locks.
        Some((_, file)) => file.report_once(report),
        None => lock_file::report_once(dir, report),
    }
}
