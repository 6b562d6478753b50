//! Segment files: making one, finding a peer's, telling whether its owner runs, and removing files of dead processes.
//!
//! It does not know packets or the contents of lanes. The life of a segment:
//! ```text
//! owner: unnamed file, lock, contents, then a name    so it is complete and locked when a peer can find it
//! peer:  opens the name, checks the facts and the key, maps, closes the file again
//! peer:  alive?  the lock is held -> alive;  not held -> the state says closed, or the owner died: remove the name
//! owner: state closed, removes the name, closes the file, which releases the lock
//! ```
//! **The lock** is a POSIX record lock (`F_SETLK`). The kernel releases it when the process ends, in any way. A
//! forked child does not inherit it, so a child that outlives its parent does not make the parent look alive. But
//! closing *any* descriptor of the file in the owning process releases it too. So a process never opens its own
//! segments by name. [`own_segment`] finds them in a list, and every function here that opens a file asks that list
//! first. A segment is in the list from before its name exists until after the name is removed. Two copies of this
//! crate in one process would not know each other's segments, so there must be only one.
//!
//! **Forks.** A child has a copy of its parent's list, but owns nothing in it. The list holds the process id of its
//! owner. In any other process it counts as empty, and nothing is unlinked or closed there.

use super::lane_queue;
use super::layout::{
    CLAIMS_BYTES, CLAIMS_PER_PART, FACTS_BYTES, Facts, HEADER_BYTES, LANES_OFFSET, SegmentAddress, Shape,
    file_name, file_prefix, segment_state,
};
use super::mapping::{MappedHeader, MappedLane, Mapping};
use crate::Liveness;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once};

/// An action that the operating system refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}: {source}{}", advice(source))]
pub struct SystemError {
    /// The action, for example "lock the segment /dev/shm/weir.1000.0000000000000001".
    pub action: String,
    /// The reason.
    pub source: io::Error,
}

/// Advice to the user about an error of the operating system.
fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM) => {
            "; free space there, or set FI_WEIR_SHM_DIR to a larger tmpfs"
        }
        Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::EROFS) => {
            "; set FI_WEIR_SHM_DIR to an existing directory that you may write to"
        }
        _ => "",
    }
}

fn attempt<T>(action: impl FnOnce() -> String, result: io::Result<T>) -> Result<T, SystemError> {
    result.map_err(|source| SystemError { action: action(), source })
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A segment of this process.
#[derive(Debug)]
pub struct OwnSegment {
    file: File,
    mapping: Arc<Mapping>,
    facts: Facts,
    path: PathBuf,
}

/// The segments of one process, which it must not open again.
struct Registry {
    pid: u32,
    segments: Mutex<Vec<Arc<OwnSegment>>>,
}

/// The registry of this process. In a forked child that has not used it yet: of its parent. It is small and never
/// freed.
static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(core::ptr::null_mut());
static AT_EXIT: Once = Once::new();

fn registry() -> MutexGuard<'static, Vec<Arc<OwnSegment>>> {
    let pid = std::process::id();
    let mut found = REGISTRY.load(Ordering::Acquire);
    loop {
        // SAFETY: null, or made by `Box::into_raw` below and never freed.
        if let Some(registry) = unsafe { found.as_ref() }
            && registry.pid == pid
        {
            return registry.segments.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        // First use, or this is a forked child. The parent's list stays as it is: its segments are not this process's
        // to close, and a thread that does not exist here may have held its lock.
        let fresh = Box::into_raw(Box::new(Registry { pid, segments: Mutex::new(Vec::new()) }));
        match REGISTRY.compare_exchange(found, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => found = fresh,
            Err(now) => {
                // SAFETY: made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                found = now;
            }
        }
    }
}

/// The segment `id`, if this process owns it.
pub fn own_segment(id: u64) -> Option<Arc<OwnSegment>> {
    registry().iter().find(|own| own.facts.id == id).cloned()
}

/// Runs when a process ends without closing all segments. It removes the names but leaves the state open, so that
/// peers report a death.
extern "C" fn remove_names_at_exit() {
    // SAFETY: null, or made by `Box::into_raw` in `registry` and never freed.
    let Some(registry) = (unsafe { REGISTRY.load(Ordering::Acquire).as_ref() }) else { return };
    if registry.pid == std::process::id()
        && let Ok(segments) = registry.segments.try_lock()
    {
        for own in segments.iter() {
            let _ = std::fs::remove_file(&own.path);
        }
    }
}

impl OwnSegment {
    /// Makes a segment of `shape` in `dir`.
    ///
    /// # Errors
    /// [`SystemError`]. Nothing is left behind.
    pub fn create(dir: &Path, shape: Shape, full_fences: bool) -> Result<Arc<OwnSegment>, SystemError> {
        AT_EXIT.call_once(|| {
            // SAFETY: the hook takes no arguments, does not unwind and lives as long as this library's code.
            unsafe { libc::atexit(remove_names_at_exit) };
        });
        let mut random = [0; 24];
        attempt(|| "get random numbers from the kernel".into(), fill_random(&mut random))?;
        let [id, key @ ..] = random.as_chunks::<8>().0 else { unreachable!("24 bytes are three words") };
        let facts = Facts {
            pid: std::process::id(),
            pid_namespace: pid_namespace(),
            id: u64::from_ne_bytes(*id).max(1), // 0 in a claim word means free
            key: std::array::from_fn(|i| key[i / 8][i % 8]),
            full_fences,
            shape,
        };
        let path = dir.join(file_name(uid(), facts.id));
        let (file, temporary) = unnamed_file(dir, &path)?;
        let made = OwnSegment::initialise(file, facts, &path).and_then(|own| {
            // The list must contain the segment before its name exists.
            registry().push(Arc::clone(&own));
            let named = match &temporary {
                None => give_name(own.file.as_fd(), &path),
                Some(temporary) => std::fs::rename(temporary, &path),
            };
            let named = attempt(|| format!("name the segment {}", path.display()), named);
            named.inspect_err(|_| own.deregister()).map(|()| own)
        });
        if let (Err(_), Some(temporary)) = (&made, &temporary) {
            let _ = std::fs::remove_file(temporary);
        }
        made
    }

    fn initialise(file: File, facts: Facts, path: &Path) -> Result<Arc<OwnSegment>, SystemError> {
        let what = |verb: &str| format!("{verb} the segment {}", path.display());
        attempt(|| what("lock"), lock(&file))?;
        attempt(|| what("set the size of"), file.set_len(facts.shape.segment_bytes()))?;
        attempt(
            || what("reserve memory for"),
            allocate(file.as_fd(), 0, HEADER_BYTES as u64 + claims_part(0).1),
        )?;
        attempt(|| what("write"), file.write_all_at(&facts.bytes(), 0))?;
        let bytes = facts.shape.segment_bytes() as usize;
        let mapping = Arc::new(attempt(|| what("map"), Mapping::new(file.as_fd(), 0, bytes))?);
        MappedHeader::new(Arc::clone(&mapping)).set_state(segment_state::OPEN);
        Ok(Arc::new(OwnSegment { file, mapping, facts, path: path.to_owned() }))
    }

    /// The constant facts.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The header.
    pub fn header(&self) -> MappedHeader {
        MappedHeader::new(Arc::clone(&self.mapping))
    }

    /// Reserves memory for `lane` and returns the lane.
    ///
    /// # Errors
    /// No space left.
    pub fn lane(&self, lane: u32) -> io::Result<MappedLane> {
        let shape = &self.facts.shape;
        let offset = shape.lane_offset(lane);
        allocate(self.file.as_fd(), offset, shape.stride)?;
        Ok(MappedLane::new(&self.mapping, offset as usize, shape.lane_slots(lane)))
    }

    /// Reserves memory for the claim words of the first `lanes` lanes.
    ///
    /// # Errors
    /// No space left.
    pub fn reserve_claims(&self, lanes: u32) -> io::Result<()> {
        for part in 1..lanes.div_ceil(CLAIMS_PER_PART) {
            let (offset, bytes) = claims_part(part);
            allocate(self.file.as_fd(), offset, bytes)?;
        }
        Ok(())
    }

    /// Resets `lane` and releases its memory. The lane's owner must have left or died. A running owner would get a
    /// SIGBUS when memory is short, and the next owner would find what it writes. `keep`: the owner has detached and
    /// the lane is used again at once, so the memory stays.
    pub fn reset_lane(&self, lane: u32, keep: bool) {
        let shape = &self.facts.shape;
        let offset = shape.lane_offset(lane);
        let view = MappedLane::new(&self.mapping, offset as usize, shape.lane_slots(lane));
        if keep {
            view.reset(false);
            return;
        }
        // SAFETY: an open file and a range inside it. Views of the lane stay mapped and read zero from now on.
        let punched = unsafe {
            libc::fallocate(
                self.file.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                offset as libc::off_t,
                shape.stride as libc::off_t,
            )
        };
        if punched != 0 {
            view.reset(true); // the file system cannot release parts of a file
        }
    }

    /// Memory that the file occupies. Unit: bytes.
    pub fn touched_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.blocks() * 512)
    }

    /// Closes the segment. In a forked child this does nothing.
    pub fn close(&self) {
        if self.facts.pid != std::process::id() {
            return;
        }
        self.header().set_state(segment_state::CLOSED);
        let _ = std::fs::remove_file(&self.path);
        self.deregister(); // only after the name is gone
    }

    fn deregister(&self) {
        registry().retain(|own| own.facts.id != self.facts.id);
    }
}

/// A peer's segment, or a segment of this process used like a peer's.
#[derive(Clone, Debug)]
pub struct PeerSegment {
    facts: Facts,
    header: MappedHeader,
    path: PathBuf,
}

/// Why a peer's segment cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// There is no such file.
    Missing,
    /// Its process has ended.
    Dead,
    /// Its owner has closed it.
    Closed,
    /// The file belongs to another user or another version, has another key, or is not a segment.
    Foreign,
}

impl PeerSegment {
    /// Opens the segment of a running peer at `target` in `dir`. Removes the name if the peer is dead.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub fn open(dir: &Path, target: &SegmentAddress) -> Result<PeerSegment, Unavailable> {
        let (segment, file) = PeerSegment::find(dir, target)?;
        let Some(file) = file else { return Ok(segment) };
        let header = segment.header();
        if header.is_closed() {
            return Err(Unavailable::Closed);
        }
        if !is_locked(&file) {
            let _ = std::fs::remove_file(&segment.path);
            return Err(if header.is_closed() { Unavailable::Closed } else { Unavailable::Dead });
        }
        Ok(segment)
    }

    /// Opens the segment at `target` in `dir` if it has a name, whether or not its owner runs.
    ///
    /// # Errors
    /// [`Unavailable::Missing`], [`Unavailable::Foreign`].
    pub fn open_any(dir: &Path, target: &SegmentAddress) -> Result<PeerSegment, Unavailable> {
        PeerSegment::find(dir, target).map(|(segment, _)| segment)
    }

    /// The segment. With its file, if another process owns it.
    fn find(dir: &Path, target: &SegmentAddress) -> Result<(PeerSegment, Option<File>), Unavailable> {
        if let Some(own) = own_segment(target.id) {
            if own.facts.key != target.key {
                return Err(Unavailable::Foreign);
            }
            let path = own.path.clone();
            return Ok((PeerSegment { facts: own.facts, header: own.header(), path }, None));
        }
        let path = dir.join(file_name(uid(), target.id));
        let file = open_existing(&path, true).map_err(|_| Unavailable::Missing)?;
        let facts = read_facts(&file).filter(|facts| facts.id == target.id && facts.key == target.key);
        let facts = facts.ok_or(Unavailable::Foreign)?;
        let mapping =
            Mapping::new(file.as_fd(), 0, HEADER_BYTES + CLAIMS_BYTES).map_err(|_| Unavailable::Foreign)?;
        let header = MappedHeader::new(Arc::new(mapping));
        Ok((PeerSegment { facts, header, path }, Some(file)))
    }

    /// The checked facts.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The header.
    pub fn header(&self) -> &MappedHeader {
        &self.header
    }

    /// Claims a free lane for the segment `id`. Reserves memory for every claim word that it reads. `None`: all lanes
    /// are held.
    ///
    /// # Errors
    /// No space left, or the segment is gone.
    pub fn claim_lane(&self, id: u64) -> io::Result<Option<u32>> {
        let max_lanes = self.facts.shape.max_lanes;
        let mut seen = 0;
        for part in 0..max_lanes.div_ceil(CLAIMS_PER_PART) {
            if part > 0 {
                let (offset, bytes) = claims_part(part);
                match own_segment(self.facts.id) {
                    Some(own) => allocate(own.file.as_fd(), offset, bytes)?,
                    None => allocate(open_existing(&self.path, true)?.as_fd(), offset, bytes)?,
                }
            }
            let end = (seen + CLAIMS_PER_PART).min(max_lanes);
            let claims = &self.header.claims(end)[seen as usize..];
            if let Some(lane) = lane_queue::claim(claims, id) {
                return Ok(Some(seen + lane));
            }
            seen = end;
        }
        Ok(None)
    }

    /// Reserves memory for `lane` and maps it.
    ///
    /// # Errors
    /// No space left, or the segment is gone.
    pub fn lane(&self, lane: u32) -> io::Result<MappedLane> {
        if let Some(own) = own_segment(self.facts.id) {
            return own.lane(lane);
        }
        let shape = &self.facts.shape;
        let file = open_existing(&self.path, true)?;
        allocate(file.as_fd(), shape.lane_offset(lane), shape.stride)?;
        let mapping = Mapping::new(file.as_fd(), shape.lane_offset(lane), shape.stride as usize)?;
        Ok(MappedLane::new(&Arc::new(mapping), 0, shape.lane_slots(lane)))
    }
}

/// Whether the endpoint at `target` runs. `known` is its header, if it is mapped. Removes the name if the endpoint is
/// dead.
pub fn liveness(dir: &Path, target: &SegmentAddress, known: Option<&MappedHeader>) -> Liveness {
    let state = |header: Option<&MappedHeader>, otherwise| {
        if header.is_some_and(MappedHeader::is_closed) { Liveness::Closed } else { otherwise }
    };
    if let Some(own) = own_segment(target.id) {
        return state(Some(&own.header()), Liveness::Alive);
    }
    if state(known, Liveness::Alive) == Liveness::Closed {
        return Liveness::Closed;
    }
    let path = dir.join(file_name(uid(), target.id));
    let Ok(file) = open_existing(&path, false) else {
        // A mapped header shows that the file existed, and would show that the owner closed it.
        let without_name = if known.is_some() { Liveness::Dead } else { Liveness::Unknown };
        return state(known, without_name);
    };
    if is_locked(&file) {
        return Liveness::Alive;
    }
    let mut word = [0; 4];
    let closed = file.read_exact_at(&mut word, FACTS_BYTES as u64).is_ok()
        && u32::from_ne_bytes(word) == segment_state::CLOSED;
    let _ = std::fs::remove_file(&path);
    if closed { Liveness::Closed } else { Liveness::Dead }
}

/// Opens the header of the segment `id`, to call its owner. `None`: there is none.
pub fn open_header(dir: &Path, id: u64) -> Option<MappedHeader> {
    if let Some(own) = own_segment(id) {
        return Some(own.header());
    }
    let file = open_existing(&dir.join(file_name(uid(), id)), true).ok()?;
    read_facts(&file)?;
    let mapping = Mapping::new(file.as_fd(), 0, HEADER_BYTES + CLAIMS_BYTES).ok()?;
    Some(MappedHeader::new(Arc::new(mapping)))
}

/// Whether the owner of the segment `id` runs and has not closed it. Only then may it still write to a lane.
pub fn is_open_and_alive(dir: &Path, id: u64) -> bool {
    own_segment(id).is_some()
        || open_existing(&dir.join(file_name(uid(), id)), false).is_ok_and(|file| is_locked(&file))
}

/// Offset and length of a part of the claim words. Unit: bytes.
fn claims_part(part: u32) -> (u64, u64) {
    let bytes = u64::from(CLAIMS_PER_PART) * 8;
    (HEADER_BYTES as u64 + u64::from(part) * bytes, bytes)
}

/// Removes segments in `dir` that ended processes of this user have left, also unfinished ones. Returns their paths.
///
/// # Errors
/// The directory cannot be read.
pub fn cleanup(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut removed = segments_of_others(dir)?;
    removed.retain(|path| {
        let stale = open_existing(path, false).is_ok_and(|file| !is_locked(&file));
        stale && std::fs::remove_file(path).is_ok()
    });
    Ok(removed)
}

/// The segments that other processes of this user have in `dir`, with the process id of their makers.
///
/// # Errors
/// The directory cannot be read.
pub fn owners(dir: &Path) -> io::Result<Vec<(PathBuf, u32)>> {
    let owner = |path: &Path| Some(read_facts(&open_existing(path, false).ok()?)?.pid);
    Ok(segments_of_others(dir)?.into_iter().filter_map(|path| owner(&path).map(|pid| (path, pid))).collect())
}

/// Files in `dir` that have the name of a segment of this user, finished or not, and that this process does not own.
fn segments_of_others(dir: &Path) -> io::Result<Vec<PathBuf>> {
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
            others.push(entry.path());
        }
    }
    Ok(others)
}

const TEMPORARY: &str = ".new";

/// A new file without a name. With a temporary name, if the file system cannot make unnamed files.
fn unnamed_file(dir: &Path, path: &Path) -> Result<(File, Option<PathBuf>), SystemError> {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600);
    let unnamed = options.clone().custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC).open(dir);
    if let Ok(file) = unnamed
        && Path::new("/proc/self/fd").exists()
    {
        return Ok((file, None));
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(TEMPORARY);
    let temporary = PathBuf::from(temporary);
    let file = options.create_new(true).custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW).open(&temporary);
    attempt(|| format!("create a segment in {}", dir.display()), file).map(|file| (file, Some(temporary)))
}

fn give_name(file: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let from = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let to = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: two NUL-terminated strings that outlive the call.
    checked(unsafe {
        libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_SYMLINK_FOLLOW)
    })?;
    Ok(())
}

/// Opens a file that this process does not own. It must be a regular file of this user.
fn open_existing(path: &Path, write: bool) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = File::options().read(true).write(write).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.uid() == uid() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "not a regular file of this user"))
    }
}

fn read_facts(file: &File) -> Option<Facts> {
    let mut bytes = [0; FACTS_BYTES];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Facts::parse(&bytes, file.metadata().ok()?.len(), page_bytes()).ok()
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    // SAFETY: `flock` is a structure of integers, for which zero is a valid value.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

fn lock(file: &File) -> io::Result<()> {
    let lock = whole_file(libc::F_WRLCK);
    // SAFETY: an open file and a structure that outlives the call.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) })?;
    Ok(())
}

/// Whether another process holds the lock. True if the kernel cannot tell.
fn is_locked(file: &File) -> bool {
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: as above; the kernel writes to the structure.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    result < 0 || lock.l_type != libc::F_UNLCK as libc::c_short
}

/// Size of the file system that contains `dir`. Unit: bytes. `None`: the kernel does not tell.
pub fn file_system_bytes(dir: &Path) -> Option<u64> {
    let path = CString::new(dir.as_os_str().as_bytes()).ok()?;
    // SAFETY: a structure of integers, for which zero is a valid value. The path is a NUL-terminated string.
    unsafe {
        let mut status: libc::statfs = core::mem::zeroed();
        (libc::statfs(path.as_ptr(), &raw mut status) == 0)
            .then(|| (status.f_blocks as u64).saturating_mul(status.f_bsize as u64))
    }
}

/// Reserves memory, so that a lack of it is an error here and not a SIGBUS later. A file system that cannot reserve
/// is accepted as it is.
fn allocate(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
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

fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        // SAFETY: the slice is writable for its length.
        match unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) } {
            more if more > 0 => done += more as usize,
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
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

fn uid() -> u32 {
    // SAFETY: geteuid cannot fail and touches nothing.
    unsafe { libc::geteuid() }
}

/// The pid namespace of this process. 0: not known.
pub fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}
