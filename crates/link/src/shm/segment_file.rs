//! Files of segments: creates one, opens a peer's, locks it, reserves memory, and removes those of dead processes. It
//! also lists the owners of segments in a directory (for `weir run`), measures the free space there, and says what the
//! system refused ([`SystemError`]).
//!
//! It does not know headers or lanes, except that a file begins with checked facts. A segment is in one of two places:
//! ```text
//! directory   weir.UID.ID                          the file itself
//! memory      weir.UID.ID -> /proc/PID/fd/N        a memfd; the name is a symbolic link, which needs no space
//! ```
//! The size of the directory's file system does not limit a memfd. Peers of the same user can open it through `/proc`.

use super::layout::{FACTS_BYTES, Facts, LANES_OFFSET, LayoutError, file_prefix};
use super::open_files::own_segment;
use crate::descriptors::more_descriptors;
use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, MemfdFlags};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
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
fn advice(error: &io::Error) -> String {
    let advice = match Errno::from_io_error(error) {
        _ if is_no_space(error) => "; free space there, or set FI_WEIR_SHM_DIR to a larger tmpfs",
        Some(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::ROFS) => {
            "; set FI_WEIR_SHM_DIR to an existing directory that you may write to"
        }
        Some(Errno::MFILE | Errno::NFILE) => return format!("; {}", more_descriptors(error)),
        _ => "",
    };
    advice.to_owned()
}

pub fn attempt<T>(action: impl FnOnce() -> String, result: io::Result<T>) -> Result<T, SystemError> {
    result.map_err(|source| SystemError { action: action(), source })
}

/// Whether the file system or the memory is full.
pub fn is_no_space(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT | Errno::NOMEM))
}

/// Whether this process has no descriptor or no address space for the moment. It can try again later.
pub fn is_not_now(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN))
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
    let create = |flags| rustix::fs::memfd_create(c"weir", flags);
    // Old kernels do not know the second flag, new ones may insist on it.
    let file = match create(MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => create(MemfdFlags::CLOEXEC),
        result => result,
    };
    let file = File::from(file?);
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
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::linkat(CWD, from, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// Opens the file of a segment that this process does not own. It must be a regular file of `uid`.
pub fn open_existing(path: &Path, uid: u32, write: bool) -> io::Result<File> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let open = |path: &Path, flags| File::options().read(true).write(write).custom_flags(flags).open(path);
    let file = match open(path, flags | libc::O_NOFOLLOW) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
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

/// Locks a segment of this process.
///
/// # Errors
/// The kernel refuses.
pub fn lock(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingLockExclusive)?)
}

/// Whether another process holds the lock. True if the kernel cannot tell.
pub fn is_locked(file: &File) -> bool {
    !matches!(rustix::process::fcntl_getlk(file, &Flock::from(FlockType::WriteLock)), Ok(None))
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
    let status = rustix::fs::statfs(dir).ok().filter(|status| status.f_blocks > 0)?;
    let bytes = |blocks: u64| blocks.saturating_mul(status.f_bsize as u64);
    Some(FileSystemSpace { size_bytes: bytes(status.f_blocks), free_bytes: bytes(status.f_bavail) })
}

/// Reserves memory, so that a lack of it is an error here and not a SIGBUS later. A file system that cannot reserve
/// ([`can_reserve`]) is accepted as it is.
pub fn allocate(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
    match reserve(file, offset, bytes) {
        Err(Errno::OPNOTSUPP) => Ok(()),
        result => Ok(result?),
    }
}

fn reserve(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), offset, bytes))
}

/// Whether the file system of `file` can reserve memory. If not, a full one ends a rank by SIGBUS. The file may grow.
pub fn can_reserve(file: BorrowedFd<'_>) -> bool {
    reserve(file, 0, 1) != Err(Errno::OPNOTSUPP)
}

/// Returns a range of the file to the system. `false`: the file system cannot release parts of a file.
pub fn release(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> bool {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // Views of the range stay mapped and read zero from now on.
    rustix::fs::fallocate(file, mode, offset, bytes).is_ok()
}

/// The page size. Unit: bytes.
pub fn page_bytes() -> u64 {
    let bytes = rustix::param::page_size() as u64;
    assert!(
        LANES_OFFSET.is_multiple_of(bytes),
        "pages of {bytes} bytes are not supported: {LANES_OFFSET} must be a multiple"
    );
    bytes
}

/// The effective user of this process.
pub fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
