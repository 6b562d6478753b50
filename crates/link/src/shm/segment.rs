//! Segments: creates that of this mailbox, finds those of peers, claims lanes there and reserves their memory, and
//! checks that their owners run. It removes the names of segments whose owners have died.
//!
//! It does not know packets. The life of a segment:
//! ```text
//! owner: unnamed file, locks, contents, then a name   so it is complete and locked when a peer can find it
//! peer:  opens the name, checks the facts and the key, maps, closes the file again
//! peer:  alive?  its byte in the lock file is held -> alive;  not held -> the state says closed, or the owner died
//! owner: state closed, removes the name, releases the byte, closes the file
//! ```
//! [`super::open_files`] lists the segments of this process. Every function that opens a file asks that list first.

use super::Liveness;
use super::lane_queue;
use super::layout::{
    CLAIMS_BYTES, CLAIMS_PER_PART, FACTS_BYTES, Facts, HEADER_BYTES, LayoutError, SegmentAddress, Shape,
    file_name, segment_state,
};
use super::mapping::{MappedHeader, MappedLane, Mapping};
use super::open_files::{self, Locks, own_segment};
use super::segment_file::{
    Naming, SystemError, allocate, attempt, create_in_directory, create_in_memory, is_locked, lock,
    open_existing, read_facts, release, uid,
};
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A segment of this process.
#[derive(Debug)]
pub struct OwnSegment {
    file: File,
    mapping: Arc<Mapping>,
    facts: Facts,
    path: PathBuf,
    locks: Locks,
    is_in_memory: bool,
    /// Lanes whose memory is reserved as long as the segment exists.
    reserved_lanes: u32,
}

impl OwnSegment {
    /// Makes a segment of `shape` in `dir`, and reserves the memory of its first `reserved_lanes` lanes. `in_memory`: it
    /// is a memfd, and `dir` has only its name.
    ///
    /// # Errors
    /// [`SystemError`]. Nothing is left behind.
    pub fn create(
        dir: &Path,
        shape: Shape,
        full_fences: bool,
        reserved_lanes: u32,
        in_memory: bool,
    ) -> Result<Arc<OwnSegment>, SystemError> {
        open_files::remove_names_when_the_process_ends();
        let mut random = [0; 24];
        attempt(|| "get random numbers from the kernel".into(), fill_random(&mut random))?;
        let [id, key @ ..] = random.as_chunks::<8>().0 else { unreachable!("24 bytes are three words") };
        let id = u64::from_ne_bytes(*id).max(1); // 0 in a claim word means free
        let path = dir.join(file_name(uid(), id));
        let (file, naming) = if in_memory {
            attempt(|| "create a memfd for a segment".into(), create_in_memory())?
        } else {
            create_in_directory(dir, &path)?
        };
        let locks = match Locks::join(dir, id) {
            Ok(locks) => locks,
            Err(error) => {
                naming.discard();
                return Err(error);
            }
        };
        let facts = Facts {
            pid: std::process::id(),
            pid_namespace: pid_namespace(),
            id,
            key: std::array::from_fn(|i| key[i / 8][i % 8]),
            full_fences,
            shape,
            lock_file: locks.inode(),
        };
        let is_in_memory = matches!(naming, Naming::SymbolicLink);
        let made = OwnSegment::initialise(file, facts, &path, locks.clone(), reserved_lanes, is_in_memory);
        let made = made.and_then(|own| {
            // The list must contain the segment before its name exists.
            open_files::list(&own);
            let named = naming.apply(&own.file, &path);
            let named = attempt(|| format!("name the segment {}", path.display()), named);
            named.inspect_err(|_| open_files::unlist(id)).map(|()| own)
        });
        if made.is_err() {
            naming.discard();
            locks.leave(id);
        }
        made
    }

    fn initialise(
        file: File,
        facts: Facts,
        path: &Path,
        locks: Locks,
        reserved_lanes: u32,
        is_in_memory: bool,
    ) -> Result<Arc<OwnSegment>, SystemError> {
        let what = |verb: &str| format!("{verb} the segment {}", path.display());
        let reserve =
            |offset, bytes| attempt(|| what("reserve memory for"), allocate(file.as_fd(), offset, bytes));
        let shape = facts.shape;
        attempt(|| what("lock"), lock(&file))?;
        attempt(|| what("set the size of"), file.set_len(shape.segment_bytes()))?;
        reserve(0, HEADER_BYTES as u64 + claims_part(0).1)?;
        let reserved_lanes = reserved_lanes.min(shape.max_lanes);
        if reserved_lanes > 0 {
            reserve(shape.lane_offset(0), u64::from(reserved_lanes) * shape.stride)?;
        }
        attempt(|| what("write"), file.write_all_at(&facts.bytes(), 0))?;
        let bytes = shape.segment_bytes() as usize;
        let mapping = Arc::new(attempt(|| what("map"), Mapping::new(file.as_fd(), 0, bytes))?);
        MappedHeader::new(Arc::clone(&mapping)).set_state(segment_state::OPEN);
        Ok(Arc::new(OwnSegment {
            file,
            mapping,
            facts,
            path: path.to_owned(),
            locks,
            is_in_memory,
            reserved_lanes,
        }))
    }

    /// The lock file that shows which peers run.
    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// The constant facts.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the segment is a memfd, which only processes of the same pid namespace can open.
    pub fn is_in_memory(&self) -> bool {
        self.is_in_memory
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

    /// Number of lanes whose claim words can be read: those of `known_lanes`, and the next part if no lane of the parts
    /// before is free. Newcomers claim in the same order. Reserves the memory of the words. A part without memory has
    /// no claims.
    pub fn claimable_lanes(&self, known_lanes: u32) -> u32 {
        let max_lanes = self.facts.shape.max_lanes;
        let (mut part, mut end) = (0, CLAIMS_PER_PART.min(max_lanes));
        let header = self.header();
        while end < max_lanes {
            let claims = &header.claims(end)[(part * CLAIMS_PER_PART) as usize..];
            let is_full = claims.iter().all(|claim| claim.load(super::sync::Ordering::Relaxed) != 0);
            part += 1;
            let (offset, bytes) = claims_part(part);
            if !(is_full || known_lanes > end) || allocate(self.file.as_fd(), offset, bytes).is_err() {
                break;
            }
            end = (end + CLAIMS_PER_PART).min(max_lanes);
        }
        end
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
        } else if lane < self.reserved_lanes || !release(self.file.as_fd(), offset, shape.stride) {
            view.reset(true);
        }
    }

    /// Memory that the file occupies. Unit: bytes.
    pub fn touched_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.blocks() * 512)
    }

    /// Closes the segment. In a forked child this does nothing.
    pub fn close(&self) {
        if self.facts.pid == std::process::id() {
            self.header().set_state(segment_state::CLOSED);
            self.abandon();
        }
    }

    /// Removes the segment as if its process had ended. In a forked child this does nothing.
    pub fn abandon(&self) {
        if self.facts.pid != std::process::id() {
            return;
        }
        // Before the name: a peer that finds no name takes a byte that is held for the sign of a running peer.
        self.locks.remove(self.facts.id);
        let _ = std::fs::remove_file(&self.path);
        open_files::unlist(self.facts.id); // only after the name is gone
        self.locks.leave(self.facts.id);
    }
}

/// A peer's segment, or a segment of this process used like a peer's.
#[derive(Clone, Debug)]
pub struct PeerSegment {
    facts: Facts,
    header: MappedHeader,
    path: PathBuf,
    uid: u32,
}

/// The reason why a peer's segment cannot be used.
#[derive(Debug)]
pub enum Unavailable {
    /// There is no such file, and nobody has its lock.
    Missing,
    /// Its process has ended.
    Dead,
    /// Its owner has closed it.
    Closed,
    /// The file has another key, or is not a segment.
    Foreign,
    /// The file belongs to another version of weir.
    OtherVersion(LayoutError),
    /// The peer runs, but uses another lock file: somebody has removed the name of one of them.
    OtherLockFile,
    /// The peer runs, but this process cannot open or map the file.
    Refused(io::Error),
}

impl PeerSegment {
    /// Opens the segment of a running peer at `target`. Removes the name if the peer is dead.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub fn open(locks: &Locks, target: &SegmentAddress) -> Result<PeerSegment, Unavailable> {
        let segment = PeerSegment::open_any(locks, target)?;
        if own_segment(target.id).is_some() || locks.is_held(target.id) {
            return if segment.header.is_closed() { Err(Unavailable::Closed) } else { Ok(segment) };
        }
        let _ = std::fs::remove_file(&segment.path);
        Err(if segment.header.is_closed() { Unavailable::Closed } else { Unavailable::Dead })
    }

    /// Opens the segment at `target` if it has a name, whether or not its owner runs.
    ///
    /// # Errors
    /// [`Unavailable`], except that the owner has ended.
    pub fn open_any(locks: &Locks, target: &SegmentAddress) -> Result<PeerSegment, Unavailable> {
        if let Some(own) = own_segment(target.id) {
            if own.facts.key != target.key {
                return Err(Unavailable::Foreign);
            }
            let (path, uid) = (own.path.clone(), locks.uid());
            return Ok(PeerSegment { facts: own.facts, header: own.header(), path, uid });
        }
        let (path, uid) = (path_of(locks, target.id), locks.uid());
        let refused = |error: io::Error| {
            if error.kind() != io::ErrorKind::NotFound || locks.is_held(target.id) {
                return Unavailable::Refused(error);
            }
            if remove_dangling(&path) { Unavailable::Dead } else { Unavailable::Missing }
        };
        let file = open_existing(&path, uid, true).map_err(refused)?;
        let facts = read_facts(&file).map_err(|error| match error {
            LayoutError::Version { .. } | LayoutError::PacketFormat { .. } => {
                Unavailable::OtherVersion(error)
            }
            LayoutError::Magic | LayoutError::Field { .. } => Unavailable::Foreign,
        })?;
        if facts.id != target.id || facts.key != target.key {
            return Err(Unavailable::Foreign);
        }
        if facts.lock_file != locks.inode() && is_locked(&file) {
            return Err(Unavailable::OtherLockFile);
        }
        let mapping =
            Mapping::new(file.as_fd(), 0, HEADER_BYTES + CLAIMS_BYTES).map_err(Unavailable::Refused)?;
        let header = MappedHeader::new(Arc::new(mapping));
        Ok(PeerSegment { facts, header, path, uid })
    }

    fn open_file(&self) -> io::Result<File> {
        open_existing(&self.path, self.uid, true)
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
                    None => allocate(self.open_file()?.as_fd(), offset, bytes)?,
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
        let file = self.open_file()?;
        allocate(file.as_fd(), shape.lane_offset(lane), shape.stride)?;
        let mapping = Mapping::new(file.as_fd(), shape.lane_offset(lane), shape.stride as usize)?;
        Ok(MappedLane::new(&Arc::new(mapping), 0, shape.lane_slots(lane)))
    }
}

/// Whether the endpoint at `target` runs. `known` is its header, if it is mapped. Removes the name if the endpoint is
/// dead.
pub fn liveness(locks: &Locks, target: &SegmentAddress, known: Option<&MappedHeader>) -> Liveness {
    if let Some(own) = own_segment(target.id) {
        return if own.header().is_closed() { Liveness::Closed } else { Liveness::Alive };
    }
    // The owner writes the state before it releases the lock, so the order of the two tests matters.
    let held = locks.is_held(target.id);
    if known.is_some_and(MappedHeader::is_closed) {
        return Liveness::Closed;
    }
    if held {
        return Liveness::Alive;
    }
    let path = path_of(locks, target.id);
    let is_segment = |file: &File| read_facts(file).is_ok_and(|facts| facts.id == target.id);
    let Some(file) = open_existing(&path, locks.uid(), false).ok().filter(is_segment) else {
        // A mapped header or a name without a process shows that the owner did not close it.
        let died = remove_dangling(&path) || known.is_some();
        return if died { Liveness::Dead } else { Liveness::Unknown };
    };
    let mut word = [0; 4];
    let closed = file.read_exact_at(&mut word, FACTS_BYTES as u64).is_ok()
        && u32::from_ne_bytes(word) == segment_state::CLOSED;
    if !closed && is_locked(&file) {
        return Liveness::Alive; // with another lock file
    }
    let _ = std::fs::remove_file(&path);
    if closed { Liveness::Closed } else { Liveness::Dead }
}

/// Opens the header of the segment `id`, to call its owner. `None`: there is none, or it cannot be opened now.
pub fn open_header(locks: &Locks, id: u64) -> Option<MappedHeader> {
    if let Some(own) = own_segment(id) {
        return Some(own.header());
    }
    let file = open_existing(&path_of(locks, id), locks.uid(), true).ok()?;
    read_facts(&file).ok().filter(|facts| facts.id == id)?;
    let mapping = Mapping::new(file.as_fd(), 0, HEADER_BYTES + CLAIMS_BYTES).ok()?;
    Some(MappedHeader::new(Arc::new(mapping)))
}

/// Whether the owner of the segment `id` runs and has not closed it. Only then may it still write to a lane. All
/// claimants of a mailbox have its owner's lock file, so this opens nothing.
pub fn is_open_and_alive(locks: &Locks, id: u64) -> bool {
    own_segment(id).is_some() || locks.is_held(id)
}

/// Removes a symbolic link to memory of a process that has ended. Returns whether `path` was one.
fn remove_dangling(path: &Path) -> bool {
    let gone = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
    path.is_symlink() && std::fs::metadata(path).err().is_some_and(gone) && std::fs::remove_file(path).is_ok()
}

fn path_of(locks: &Locks, id: u64) -> PathBuf {
    locks.dir().join(file_name(locks.uid(), id))
}

/// Offset and length of a part of the claim words. Unit: bytes.
fn claims_part(part: u32) -> (u64, u64) {
    let bytes = u64::from(CLAIMS_PER_PART) * 8;
    (HEADER_BYTES as u64 + u64::from(part) * bytes, bytes)
}

/// Fills `bytes` with random numbers.
///
/// # Errors
/// The kernel has none.
pub fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        done += retry_on_intr(|| getrandom(&mut bytes[done..], GetRandomFlags::empty()))?;
    }
    Ok(())
}

/// The pid namespace of this process. 0: not known.
pub fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}
