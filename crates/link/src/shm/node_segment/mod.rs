//! The node segment: one shared file for each job ([`JobKey`]) and node, where the endpoints of the job on this node
//! meet. The engine counts ranks and active cores in it ([`Census`]).
//!
//! It does not know messages, tokens or collective operations. It has a directory of the endpoints with their liveness
//! and their cores, and room for what they share later. A process that has no node segment works as well: it then knows
//! only what its launcher says.
//!
//! One endpoint at a time joins or leaves. It holds the *gate* for that, a lock on one byte of the directory's lock
//! file (`lock_file.rs`). To publish an entry is to write the endpoint's values and then its number, so that others
//! count it.
//! ```text
//! first endpoint of the job:  with the gate: makes a file without a name, writes the facts, names it; publishes an entry
//! others:                     with the gate: open the name, check the facts; publish an entry
//! anybody:                    counts entries whose endpoints run
//! last endpoint:              with the gate: clears its entry; no other endpoint runs: removes the name
//! ```
//! **Liveness** is that of mailboxes: the lock of the endpoint's mailbox in the lock file of the directory. So a member
//! holds no descriptor and no further lock.
//!
//! **Endpoints that are stopped or killed.** The kernel frees the gate when a process ends, and others wait at most a
//! second for one that is stopped. A process that ends without leaving removes the name at its exit, if no other
//! endpoint runs. A name appears only with complete contents, and a segment of which all endpoints have died is used
//! again, or `weir clean` removes it. If somebody removes the name while a newcomer opens it, the newcomer notices and
//! starts again.
//!
//! **Memory.** A member touches only memory that was reserved before. The first member makes no segment where 64 of
//! them would not fit into the free space, so that mailboxes do not lack it.

mod directory;
mod file;
mod handle;
#[cfg(test)]
pub(super) mod tests;

pub use directory::Member;
pub use file::{Area, NODE_SEGMENT_VERSION, NodeLayoutError, remove_stale};
pub(super) use file::{header_example, takes_header};
pub use handle::{NodeHandle, SharedArea};

use super::ShmLink;
use super::mapping::{Mapping, Shared};
use super::open_files::{self, Locks, Running};
use super::per_process::PerProcess;
use super::ring::CacheLine;
use super::segment::{self, fill_random};
use super::segment_file::{SystemError, allocate, attempt, file_system_space, open_existing};
use super::sync::{AtomicU32, AtomicU64, Ordering};
use directory::Entry;
use file::{
    COUNTS_OFFSET, DIRECTORY_OFFSET, ENTRIES_PER_PART, Extent, FIRST_BYTES, NodeFacts, create, is_unused,
    node_file_name, reserve_entries,
};
use std::collections::BTreeSet;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

/// A node segment takes at most 1 / this of what is free in its directory.
const FREE_DIVISOR: u64 = 64;
/// Bound on attempts to open a file that others remove at the same time.
const ATTEMPTS: u32 = 10;

/// Identifies a job on this node: all its ranks compute the same key, and other jobs another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobKey(u64);

impl JobKey {
    /// The key of a job that `facts` identify.
    pub fn new(facts: &impl Hash) -> JobKey {
        // Its keys are constant, so all processes with the same library get the same number.
        let mut hasher = DefaultHasher::new();
        facts.hash(&mut hasher);
        JobKey(hasher.finish())
    }
}

/// The reason why an endpoint has no node segment.
#[derive(Debug, thiserror::Error)]
pub enum NodeSegmentError {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// A node segment would take too much of what is free for mailboxes.
    #[error("{path} has {free_bytes} bytes free; a node segment needs {least_bytes}; make it larger")]
    NoSpace {
        /// The directory.
        path: PathBuf,
        /// Bytes that are free there.
        free_bytes: u64,
        /// Bytes that must be free.
        least_bytes: u64,
    },
    /// The file is no node segment of this version.
    #[error("cannot use the node segment {path}: {reason}; run one version of weir, or remove the file")]
    Layout {
        /// The file.
        path: PathBuf,
        /// The fault that was found in it.
        reason: NodeLayoutError,
    },
    /// The members use another lock file.
    #[error(
        "cannot use the node segment {path}: somebody has removed the lock file while the job ran; \
         exclude weir.* from what cleans the directory"
    )]
    OtherLockFile {
        /// The file.
        path: PathBuf,
    },
    /// All entries are taken.
    #[error("the node segment {path} has {entries} endpoints, which is the limit")]
    Full {
        /// The file.
        path: PathBuf,
        /// Its entries.
        entries: u32,
    },
    /// Others remove the file again and again.
    #[error("others remove the node segment {path} again and again")]
    Removed {
        /// The file.
        path: PathBuf,
    },
}

/// The endpoints of a job on this node, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Endpoints that run.
    pub endpoints: u32,
    /// Their processes.
    pub processes: u32,
    /// Different cores on which endpoints are active. Endpoints that sleep have none.
    pub active_cores: u32,
}

/// The counts of a node segment, from byte 128 on.
#[repr(C)]
#[derive(Debug)]
struct Counts {
    /// Entries whose memory is reserved.
    reserved_entries: CacheLine<AtomicU32>,
    /// Changes with each endpoint that joins or leaves.
    changes: CacheLine<AtomicU32>,
}

// SAFETY: a structure of atomics.
unsafe impl Shared for Counts {}

/// Everything that a process needs to leave.
#[derive(Debug)]
struct Membership {
    mapping: Mapping,
    facts: NodeFacts,
    path: PathBuf,
    inode: u64,
    locks: Locks,
    endpoint: u64,
    index: usize,
}

/// The memberships of this process, for its end.
static MEMBERSHIPS: PerProcess<Vec<Arc<Membership>>> = PerProcess::new();
static AT_EXIT: Once = Once::new();

/// Runs when a process ends without leaving all node segments. The kernel then releases the locks of its endpoints.
extern "C" fn remove_names_at_exit() {
    if let Some(memberships) = MEMBERSHIPS.try_lock() {
        for membership in memberships.iter() {
            membership.locks.behind_gate(|| {
                // The kernel does not tell a process about its own locks.
                if !membership.holders().any(|holder| membership.locks.is_held(holder)) {
                    membership.remove_name();
                }
            });
        }
    }
}

/// A number that no other process has.
fn process_number() -> io::Result<u64> {
    static NUMBER: PerProcess<u64> = PerProcess::new();
    let mut number = NUMBER.lock();
    while *number == 0 {
        *number = random()?;
    }
    Ok(*number)
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

impl Membership {
    fn counts(&self) -> &Counts {
        &self.mapping.shared(COUNTS_OFFSET, 1)[0]
    }

    /// The entries whose memory is reserved.
    fn entries(&self) -> &[Entry] {
        let reserved = self.counts().reserved_entries.0.load(Ordering::Acquire);
        self.mapping.shared(DIRECTORY_OFFSET, reserved.min(self.facts.entries) as usize)
    }

    fn entry(&self) -> &Entry {
        &self.entries()[self.index]
    }

    /// The endpoints that hold an entry, whether or not they run.
    fn holders(&self) -> impl Iterator<Item = u64> {
        self.entries().iter().map(Entry::holder).filter(|&holder| holder != 0)
    }

    fn is_still_named(&self) -> bool {
        std::fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode)
    }

    fn remove_name(&self) {
        if self.is_still_named() {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// The endpoints that show themselves, with the numbers of their entries. Some may have died.
    fn shown(&self) -> impl Iterator<Item = (usize, Member)> {
        let entries = self.entries().iter().enumerate();
        entries.filter_map(|(index, entry)| Some((index, entry.read()?)))
    }

    /// Those of them that run.
    fn members(&self) -> Vec<(usize, Member)> {
        let is_running = |member: &Member| segment::is_open_and_alive(&self.locks, member.endpoint);
        self.shown().filter(|(_, member)| is_running(member)).collect()
    }

    /// Reserves the memory of an area.
    fn reserve(&self, area: Area) -> Result<Extent, SystemError> {
        self.reserve_part(area, 0, self.facts.areas[area as usize].bytes)
    }

    /// The place of `bytes` bytes of an area, which begin at `offset`.
    ///
    /// # Panics
    /// If they are not inside the area.
    fn part(&self, area: Area, offset: u64, bytes: u64) -> Extent {
        let area = self.facts.areas[area as usize];
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= area.bytes);
        assert!(is_inside, "{bytes} bytes at {offset} of an area of {} bytes", area.bytes);
        Extent { offset: area.offset + offset, bytes }
    }

    /// Reserves the memory of such a part.
    fn reserve_part(&self, area: Area, offset: u64, bytes: u64) -> Result<Extent, SystemError> {
        let what = || format!("reserve memory in the node segment {}", self.path.display());
        let extent = self.part(area, offset, bytes);
        let file = attempt(what, open_existing(&self.path, self.locks.uid(), true))?;
        if attempt(what, file.metadata())?.ino() != self.inode {
            return attempt(what, Err(io::Error::from(io::ErrorKind::NotFound)));
        }
        attempt(what, allocate(file.as_fd(), extent.offset, extent.bytes))?;
        Ok(extent)
    }

    /// The words of a reserved part.
    fn words(&self, extent: Extent) -> &[AtomicU64] {
        self.mapping.shared(extent.offset as usize, extent.bytes as usize / size_of::<AtomicU64>())
    }

    fn note_change(&self) {
        self.counts().changes.0.fetch_add(1, Ordering::Release);
    }

    /// Takes an entry, and reserves memory for more if all are taken.
    fn claim(&mut self, file: &File, running: &Running<'_>) -> Result<(), NodeSegmentError> {
        loop {
            let entries = self.entries();
            let count = entries.len() as u32;
            if let Some(index) = directory::claim(entries, self.endpoint, |id| running.is_running(id)) {
                self.index = index;
                return Ok(());
            }
            if count >= self.facts.entries {
                return Err(NodeSegmentError::Full { path: self.path.clone(), entries: count });
            }
            let more = (count + ENTRIES_PER_PART).min(self.facts.entries);
            let what = || format!("reserve memory for the node segment {}", self.path.display());
            attempt(what, reserve_entries(file, more))?;
            self.counts().reserved_entries.0.fetch_max(more, Ordering::AcqRel);
        }
    }
}

/// Opens the segment of `job` at `path`, or creates it. One process at a time.
fn open_or_create(
    path: &Path,
    job: JobKey,
    locks: &Locks,
    running: &Running<'_>,
) -> Result<(File, NodeFacts), NodeSegmentError> {
    let dir = locks.dir();
    for _ in 0..ATTEMPTS {
        let what = || format!("open the node segment {}", path.display());
        match open_existing(path, locks.uid(), true) {
            Ok(file) => {
                let facts = NodeFacts::read(&file)
                    .map_err(|reason| NodeSegmentError::Layout { path: path.to_owned(), reason })?;
                if facts.lock_file == locks.inode() {
                    return Ok((file, facts));
                }
                if !is_unused(&file, &facts, dir, running) {
                    return Err(NodeSegmentError::OtherLockFile { path: path.to_owned() });
                }
                attempt(
                    || format!("remove the stale node segment {}", path.display()),
                    std::fs::remove_file(path),
                )?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let free_bytes = file_system_space(dir).map_or(u64::MAX, |space| space.free_bytes);
                let least_bytes = FIRST_BYTES * FREE_DIVISOR;
                if free_bytes < least_bytes {
                    return Err(NodeSegmentError::NoSpace { path: dir.to_owned(), free_bytes, least_bytes });
                }
                let id = attempt(|| "get random numbers from the kernel".into(), random())?;
                let facts = NodeFacts::new(id, job.0, locks.inode());
                match create(dir, path, &facts) {
                    Ok(file) => return Ok((file, facts)),
                    Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(attempt::<()>(what, Err(error)).expect_err("an error").into()),
        }
    }
    Err(NodeSegmentError::Removed { path: path.to_owned() })
}

/// The membership of one endpoint in the node segment of its job. It leaves when the value is dropped, which must be before
/// its mailbox closes.
#[derive(Debug)]
pub struct NodeSegment {
    membership: Arc<Membership>,
    /// The process that has joined. A forked child does nothing with its copy.
    pid: u32,
    /// `changes` at the last call of [`NodeSegment::changed_census`].
    seen_changes: u32,
}

impl NodeSegment {
    /// Joins the node segment of `job` in the directory of the mailbox of `link`, or creates it.
    ///
    /// # Errors
    /// [`NodeSegmentError`]. The endpoint works without.
    pub fn join(link: &ShmLink, job: JobKey) -> Result<NodeSegment, NodeSegmentError> {
        NodeSegment::join_with(&link.locks, link.own_address.id, job)
    }

    fn join_with(locks: &Locks, endpoint: u64, job: JobKey) -> Result<NodeSegment, NodeSegmentError> {
        AT_EXIT.call_once(|| {
            // SAFETY: the hook takes no arguments, does not unwind and lives as long as this library's code. It runs before
            // that of the mailboxes, which was registered earlier.
            unsafe { libc::atexit(remove_names_at_exit) };
        });
        let path = locks.dir().join(node_file_name(locks.uid(), job.0));
        let what = || format!("map the node segment {}", path.display());
        let process = attempt(|| "get random numbers from the kernel".into(), process_number())?;
        let member = Member { endpoint, process, pid: std::process::id(), core: None };
        for _ in 0..ATTEMPTS {
            let mut own_locks = Some(locks.clone()); // dropped only outside of the gate, see `open_files::behind_gate`
            type Joined = (Membership, Result<(), NodeSegmentError>);
            let joined: Result<Joined, NodeSegmentError> = open_files::behind_gate(locks, |running| {
                let (file, facts) = open_or_create(&path, job, locks, running)?;
                attempt(what, allocate(file.as_fd(), 0, FIRST_BYTES))?;
                let inode = attempt(what, file.metadata())?.ino();
                let mapping = attempt(what, Mapping::new(file.as_fd(), 0, facts.segment_bytes() as usize))?;
                let (path, locks) = (path.clone(), own_locks.take().expect("taken once"));
                let mut membership = Membership { mapping, facts, path, inode, locks, endpoint, index: 0 };
                let claimed = membership.claim(&file, running);
                if claimed.is_ok() {
                    membership.entry().publish(&member);
                    membership.note_change();
                }
                Ok((membership, claimed))
            });
            let (membership, claimed) = joined?;
            claimed?;
            if membership.is_still_named() {
                let membership = Arc::new(membership);
                MEMBERSHIPS.lock().push(Arc::clone(&membership));
                return Ok(NodeSegment { membership, pid: member.pid, seen_changes: 0 });
            }
            membership.entry().withdraw(endpoint);
        }
        Err(NodeSegmentError::Removed { path })
    }

    /// A random number of this segment. Endpoints that share something in an area compare it first.
    pub fn id(&self) -> u64 {
        self.membership.facts.id
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.membership.path
    }

    /// The number of this endpoint's entry.
    pub fn index(&self) -> usize {
        self.membership.index
    }

    /// The endpoints that run, with the numbers of their entries. Asks the kernel once for each.
    pub fn members(&self) -> Vec<(usize, Member)> {
        self.membership.members()
    }

    /// Counts the endpoints that run.
    pub fn census(&self) -> Census {
        let members = self.members();
        Census {
            endpoints: members.len() as u32,
            processes: different(members.iter().map(|(_, member)| member.process)),
            active_cores: different(members.iter().filter_map(|(_, member)| member.core)),
        }
    }

    /// The census, if endpoints have joined or left since the last call, and may not have `known` processes any more. Fewer
    /// processes than `least` count as `least`. Costs one load if nothing has changed.
    pub fn changed_census(&mut self, known: u32, least: u32) -> Option<Census> {
        let changes = self.membership.counts().changes.0.load(Ordering::Acquire);
        if changes == self.seen_changes {
            return None;
        }
        self.seen_changes = changes;
        // Most often the launcher has said how many there are, and nobody need ask the kernel.
        let shown = different(self.membership.shown().map(|(_, member)| member.process));
        (shown.max(least) != known).then(|| self.census())
    }

    /// Says on which core this endpoint is active. `None`: it sleeps.
    pub fn set_core(&self, core: Option<u32>) {
        self.membership.entry().set_core(core);
    }

    /// The words of an area, 0 at first. Reserves its memory, so use the result again.
    ///
    /// # Errors
    /// No space left, or the name is gone.
    pub fn area(&self, area: Area) -> Result<&[AtomicU64], SystemError> {
        self.membership.reserve(area).map(|extent| self.membership.words(extent))
    }

    /// The use of this segment by a link of the endpoint.
    pub fn handle(&self) -> NodeHandle {
        NodeHandle(Arc::clone(&self.membership))
    }

    /// Leaves, up to a step (tests).
    fn leave_until(&self, last: LeaveStep) {
        let membership = &self.membership;
        let entry = membership.entry();
        open_files::behind_gate(&membership.locks, |running| {
            entry.hide();
            if last == LeaveStep::Hidden {
                return;
            }
            entry.withdraw(membership.endpoint);
            if last == LeaveStep::Withdrawn {
                return;
            }
            membership.note_change();
            if !membership.holders().any(|holder| running.is_running(holder)) {
                membership.remove_name();
            }
        });
    }
}

fn different<T: Ord>(numbers: impl Iterator<Item = T>) -> u32 {
    numbers.collect::<BTreeSet<T>>().len() as u32
}

/// Steps of leaving at which an endpoint can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaveStep {
    /// Nobody sees it any more.
    Hidden,
    /// It has returned its entry.
    Withdrawn,
    /// It has removed the name, if it was the last.
    Left,
}

impl Drop for NodeSegment {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        self.leave_until(LeaveStep::Left);
        let others = |other: &Arc<Membership>| !Arc::ptr_eq(other, &self.membership);
        MEMBERSHIPS.lock().retain(others);
    }
}
