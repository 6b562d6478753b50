//! Files of segments: creates one, opens a peer's, reserves memory, and removes those of dead processes.
//!
//! It does not know headers or lanes, except that a file begins with checked facts. A segment is in one of two places:
//! ```text
//! directory   weir.UID.ID                          the file itself
//! memory      weir.UID.ID -> /proc/PID/fd/N        a memfd; the name is a symbolic link, which needs no space
//! ```
//! The size of the directory's file system does not limit a memfd. Peers of the same user can open it through `/proc`.

use super::layout::{FACTS_BYTES, Facts, LANES_OFFSET, LayoutError, file_prefix};
use super::open_files::own_segment;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An action that the operating system refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}: {source}{}", advice(source))]
pub struct SystemError {
    /// The action, for example "lock the segment /dev/shm/weir.1000.0000000000000001".
    pub action: String,
    /// The reason.
    pub source: io::Error,
}

impl SystemError {
    /// Whether memory is short.
    pub fn is_no_space(&self) -> bool {
        is_no_space(&self.source)
    }
}

/// Advice to the user about an error of the operating system.
fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        _ if is_no_space(error) => "; free space there, or set FI_WEIR_SHM_DIR to a larger tmpfs",
        Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::EROFS) => {
            "; set FI_WEIR_SHM_DIR to an existing directory that you may write to"
        }
        Some(libc::EMFILE | libc::ENFILE) => "; allow more descriptors (ulimit -n)",
        _ => "",
    }
}

pub fn attempt<T>(action: impl FnOnce() -> String, result: io::Result<T>) -> Result<T, SystemError> {
    result.map_err(|source| SystemError { action: action(), source })
}

pub fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Whether the file system or the memory is full.
pub fn is_no_space(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM))
}

/// Whether this process has no descriptor or no address space for the moment. It can try again later.
pub fn is_not_now(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN))
}

const TEMPORARY: &str = ".new";

/// The way in which a new file, which peers cannot find yet, gets its name.
pub enum Naming {
    /// A hard link to a file that has no name.
    HardLink,
    /// The file has a temporary name, since the file system cannot make files without a name.
    Rename(PathBuf),
    /// A symbolic link to the descriptor of a memfd.
    SymbolicLink,
}

impl Naming {
    /// Gives `file` its name. Peers can find it from now on.
    ///
    /// # Errors
    /// The name could not be made.
    pub fn apply(&self, file: &File, path: &Path) -> io::Result<()> {
        match self {
            Naming::HardLink => link_descriptor(file.as_fd(), path),
            Naming::Rename(temporary) => std::fs::rename(temporary, path),
            Naming::SymbolicLink => std::os::unix::fs::symlink(link_target(file.as_fd()), path),
        }
    }

    /// Removes a temporary name. Call this if the file is not used.
    pub fn discard(self) {
        if let Naming::Rename(temporary) = self {
            let _ = std::fs::remove_file(temporary);
        }
    }
}

/// A new file in `dir`, which will be called `path`.
///
/// # Errors
/// [`SystemError`].
pub fn create_in_directory(dir: &Path, path: &Path) -> Result<(File, Naming), SystemError> {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600);
    let unnamed = options.clone().custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC).open(dir);
    if let Ok(file) = unnamed
        && Path::new("/proc/self/fd").exists()
    {
        return Ok((file, Naming::HardLink));
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(TEMPORARY);
    let temporary = PathBuf::from(temporary);
    let flags = libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let file = options.create_new(true).custom_flags(flags).open(&temporary);
    attempt(|| format!("create a segment in {}", dir.display()), file)
        .map(|file| (file, Naming::Rename(temporary)))
}

/// A new memfd.
///
/// # Errors
/// The kernel has or permits none, or `/proc` does not show it.
pub fn create_in_memory() -> io::Result<(File, Naming)> {
    let create = |flags| {
        // SAFETY: a NUL-terminated string that outlives the call.
        checked(unsafe { libc::memfd_create(c"weir".as_ptr(), flags) })
    };
    // Old kernels do not know the second flag, new ones may insist on it.
    let descriptor = create(libc::MFD_CLOEXEC | libc::MFD_NOEXEC_SEAL).or_else(|error| {
        if error.raw_os_error() == Some(libc::EINVAL) { create(libc::MFD_CLOEXEC) } else { Err(error) }
    })?;
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    let file = unsafe { File::from_raw_fd(descriptor) };
    // Closing this second descriptor releases no lock, since there is none yet.
    File::options().read(true).write(true).open(link_target(file.as_fd()))?;
    Ok((file, Naming::SymbolicLink))
}

/// Whether segments can be in memory that no directory limits.
pub fn has_unlimited_memory() -> bool {
    create_in_memory().is_ok()
}

fn link_target(file: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
}

fn link_descriptor(file: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let to = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: two NUL-terminated strings that outlive the call.
    checked(unsafe {
        libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_SYMLINK_FOLLOW)
    })?;
    Ok(())
}

/// Opens the file of a segment that this process does not own. It must be a regular file of `uid`.
pub fn open_existing(path: &Path, uid: u32, write: bool) -> io::Result<File> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let open = |path: &Path, flags| File::options().read(true).write(write).custom_flags(flags).open(path);
    let file = match open(path, flags | libc::O_NOFOLLOW) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            open(&memory_behind(path, uid).ok_or(error)?, flags)?
        }
        result => result?,
    };
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.uid() == uid {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "not a regular file of this user"))
    }
}

/// The target of the symbolic link `path` of the user `uid`, if that is a descriptor of a process.
fn memory_behind(path: &Path, uid: u32) -> Option<PathBuf> {
    let target = std::fs::read_link(path).ok()?;
    let (pid, descriptor) = target.to_str()?.strip_prefix("/proc/")?.split_once("/fd/")?;
    let numbers = pid.parse::<u32>().is_ok() && descriptor.parse::<u32>().is_ok();
    (numbers && std::fs::symlink_metadata(path).ok()?.uid() == uid).then_some(target)
}

/// The checked facts of a segment. `None`: it is none.
pub fn read_facts(file: &File) -> Result<Facts, LayoutError> {
    let mut bytes = [0; FACTS_BYTES];
    let read = file.read_exact_at(&mut bytes, 0).and_then(|()| file.metadata());
    let file_bytes = read.map_err(|_| LayoutError::Magic)?.len();
    Facts::parse(&bytes, file_bytes, page_bytes())
}

/// Removes segments in `dir` that ended processes of this user have left, also unfinished ones, and the lock file if
/// nobody uses it. Returns the paths of the segments.
///
/// The lock file decides first. A process of another container with the same directory may hold a segment in memory that
/// this one cannot see, because process numbers mean others here.
///
/// # Errors
/// The directory cannot be read.
pub fn cleanup(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut removed = segments_of_others(dir)?;
    super::open_files::behind_gate_of(dir, |running| {
        removed.retain(|(path, id)| {
            !running.is_running(*id) && is_stale(path, *id) && std::fs::remove_file(path).is_ok()
        });
    });
    super::open_files::remove_unused_lock_file(dir);
    Ok(removed.into_iter().map(|(path, _)| path).collect())
}

/// Whether the process that made the segment has ended.
pub fn is_stale(path: &Path, id: u64) -> bool {
    match open_existing(path, uid(), false) {
        // A descriptor may have another meaning by now.
        Ok(file) if path.is_symlink() => {
            !is_locked(&file) || !read_facts(&file).is_ok_and(|facts| facts.id == id)
        }
        Ok(file) => !is_locked(&file),
        // The process has no such descriptor any more, or is gone.
        Err(error) => error.kind() == io::ErrorKind::NotFound && path.is_symlink(),
    }
}

/// The segments that other processes of this user have in `dir`, with the process id of their makers.
///
/// # Errors
/// The directory cannot be read.
pub fn owners(dir: &Path) -> io::Result<Vec<(PathBuf, u32)>> {
    let owner = |path: &Path| Some(read_facts(&open_existing(path, uid(), false).ok()?).ok()?.pid);
    let segments = segments_of_others(dir)?.into_iter();
    Ok(segments.filter_map(|(path, _)| owner(&path).map(|pid| (path, pid))).collect())
}

/// Files in `dir` that have the name of a segment of this user, finished or not, and that this process does not own.
///
/// # Errors
/// The directory cannot be read.
pub fn segments_of_others(dir: &Path) -> io::Result<Vec<(PathBuf, u64)>> {
    let prefix = file_prefix(uid());
    let mut others = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(rest) = name.as_bytes().strip_prefix(prefix.as_bytes()) else { continue };
        let rest = rest.strip_suffix(TEMPORARY.as_bytes()).unwrap_or(rest);
        let Some(id) = std::str::from_utf8(rest).ok().and_then(|id| u64::from_str_radix(id, 16).ok()) else {
            continue;
        };
        if rest.len() == 16 && own_segment(id).is_none() {
            others.push((entry.path(), id));
        }
    }
    Ok(others)
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    // SAFETY: `flock` is a structure of integers, for which zero is a valid value.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

/// Locks a segment of this process.
///
/// # Errors
/// The kernel refuses.
pub fn lock(file: &File) -> io::Result<()> {
    let lock = whole_file(libc::F_WRLCK);
    // SAFETY: an open file and a structure that outlives the call.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) })?;
    Ok(())
}

/// Whether another process holds the lock. True if the kernel cannot tell.
pub fn is_locked(file: &File) -> bool {
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: as above; the kernel writes to the structure.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    result < 0 || lock.l_type != libc::F_UNLCK as libc::c_short
}

/// The space in a file system. Unit: bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemSpace {
    /// Its size.
    pub size_bytes: u64,
    /// The part that this user can still use.
    pub free_bytes: u64,
}

/// The space in the file system that contains `dir`. `None`: the kernel does not tell, or there is no limit.
pub fn file_system_space(dir: &Path) -> Option<FileSystemSpace> {
    let path = CString::new(dir.as_os_str().as_bytes()).ok()?;
    // SAFETY: a structure of integers, for which zero is a valid value. The path is a NUL-terminated string.
    unsafe {
        let mut status: libc::statfs = core::mem::zeroed();
        let known = libc::statfs(path.as_ptr(), &raw mut status) == 0 && status.f_blocks > 0;
        let bytes = |blocks: u64| blocks.saturating_mul(status.f_bsize as u64);
        known.then(|| FileSystemSpace {
            size_bytes: bytes(status.f_blocks),
            free_bytes: bytes(status.f_bavail),
        })
    }
}

/// Reserves memory, so that a lack of it is an error here and not a SIGBUS later. A file system that cannot reserve
/// is accepted as it is.
pub fn allocate(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
    loop {
        // SAFETY: an open file. No memory of this process is involved.
        let result =
            unsafe { libc::fallocate(file.as_raw_fd(), 0, offset as libc::off_t, bytes as libc::off_t) };
        match checked(result) {
            Ok(_) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Returns a range of the file to the system. `false`: the file system cannot release parts of a file.
pub fn release(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> bool {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: an open file. Views of the range stay mapped and read zero from now on.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, bytes as libc::off_t) == 0 }
}

/// The page size. Unit: bytes.
pub fn page_bytes() -> u64 {
    // SAFETY: sysconf reads a constant.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let bytes = u64::try_from(bytes).unwrap_or(4096);
    assert!(
        LANES_OFFSET.is_multiple_of(bytes),
        "pages of {bytes} bytes are not supported: {LANES_OFFSET} must be a multiple"
    );
    bytes
}

/// The effective user of this process.
pub fn uid() -> u32 {
    // SAFETY: geteuid cannot fail and touches nothing.
    unsafe { libc::geteuid() }
}
