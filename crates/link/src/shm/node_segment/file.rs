//! Files of node segments: layout, creating, checking, and removing what crashed jobs have left.
//!
//! ```text
//! weir.UID.node6.JOB      6: version of this layout; JOB: the job's key
//! 0        facts     128 B   written before the segment has a name, then constant
//! 128      counts    128 B   entries whose memory is reserved; number of changes of the directory
//! 4096     directory 256 KiB entries of 64 B
//! 266240   areas             for token pools, proxy queues, groups and the roster
//! ```
//! The file is as long as all of it, but sparse. A process reserves the memory of each part before it touches it.

use crate::shm::layout::{file_name, file_prefix};
use crate::shm::node_segment::directory::ENTRY_BYTES;
use crate::shm::open_files::{self, Running};
use crate::shm::segment_file::{
    Naming, SystemError, allocate, attempt, create_in_directory, is_stale, open_existing, segments_of_others,
    uid,
};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Version of this layout. It is part of the name, so other versions have other segments.
pub const NODE_SEGMENT_VERSION: u32 = 6;
const MAGIC: [u8; 8] = *b"weirnode";
/// Length of the constant part. Unit: bytes.
const FACTS_BYTES: usize = 128;
/// Offset of the counts. Unit: bytes.
pub const COUNTS_OFFSET: usize = 128;
/// Offset of the directory. Unit: bytes.
pub const DIRECTORY_OFFSET: usize = 4096;
/// Most endpoints of a node and job.
pub const MAX_ENTRIES: u32 = 4096;
/// Entries whose memory is reserved together: 4096 bytes.
pub const ENTRIES_PER_PART: u32 = 64;
/// Memory that is reserved when a segment is created. Unit: bytes.
pub const FIRST_BYTES: u64 = DIRECTORY_OFFSET as u64 + ENTRIES_PER_PART as u64 * ENTRY_BYTES as u64;
/// The name before the job's key.
const KIND: &str = "node";
const TEMPORARY: &str = ".new";

/// A part of the segment behind the directory. Its memory is reserved by the first that uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// Token pools and their tickets.
    TokenPools,
    /// Descriptors of messages that another endpoint sends.
    ProxyQueues,
    /// Groups of endpoints ([`crate::shm::node_group`]). A group reserves its own part.
    Groups,
    /// A word for each rank of the job's world ([`crate::shm::node_group::Roster`]).
    Roster,
}

impl Area {
    /// All areas, in the order of the layout.
    pub const ALL: [Area; 4] = [Area::TokenPools, Area::ProxyQueues, Area::Groups, Area::Roster];

    /// Its length. Unit: bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Area::TokenPools => 64 << 10,
            Area::ProxyQueues => 4 << 20,
            Area::Groups => (16 << 10) + 256 * (2112 << 10),
            Area::Roster => 32 << 10,
        }
    }
}

/// The place of an area in the file. Unit: bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Its first byte.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// The constant part of a node segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// A random number. Members with the same number use the same segment.
    pub id: u64,
    /// The job's key.
    pub job: u64,
    /// Inode of the lock file that shows which members run.
    pub lock_file: u64,
    /// Entries of the directory.
    pub entries: u32,
    /// The places of the areas, in the order of [`Area::ALL`].
    pub areas: [Extent; Area::ALL.len()],
}

/// The reason why a file is no node segment of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeLayoutError {
    /// Something else.
    #[error("it is not a node segment of weir")]
    Magic,
    /// Another version.
    #[error("it has layout version {have}; this process uses {NODE_SEGMENT_VERSION}")]
    Version {
        /// The version that was found.
        have: u32,
    },
    /// A number is out of its range.
    #[error("its {field} is {have}; allowed: {allowed}")]
    Field {
        /// The name of the number.
        field: &'static str,
        /// Its value.
        have: u64,
        /// The allowed values.
        allowed: &'static str,
    },
}

/// Whether these bytes are the header of a segment in a file of `file_bytes` bytes.
pub fn takes_header(bytes: &[u8], file_bytes: u64) -> bool {
    let Some(header) = bytes.first_chunk::<FACTS_BYTES>() else { return false };
    let facts = NodeFacts::parse(header, file_bytes);
    if let Ok(facts) = &facts {
        assert!(facts.segment_bytes() <= file_bytes, "all areas are inside the file");
        let again = NodeFacts::parse(&facts.bytes(), file_bytes);
        assert!(again.is_ok_and(|again| again.bytes() == facts.bytes()));
    }
    facts.is_ok()
}

/// The header of a new segment.
pub fn header_example() -> Vec<u8> {
    NodeFacts::new(5, 6, 7).bytes().to_vec()
}

impl NodeFacts {
    /// The facts of a new segment.
    pub fn new(id: u64, job: u64, lock_file: u64) -> NodeFacts {
        let mut offset = DIRECTORY_OFFSET as u64 + u64::from(MAX_ENTRIES) * ENTRY_BYTES as u64;
        let areas = Area::ALL.map(|area| {
            let extent = Extent { offset, bytes: area.bytes() };
            offset += area.bytes();
            extent
        });
        NodeFacts { id, job, lock_file, entries: MAX_ENTRIES, areas }
    }

    /// Length of the file. Unit: bytes.
    pub fn segment_bytes(&self) -> u64 {
        let directory_end = DIRECTORY_OFFSET as u64 + u64::from(self.entries) * ENTRY_BYTES as u64;
        self.areas.iter().map(|area| area.offset + area.bytes).fold(directory_end, u64::max)
    }

    /// The facts as bytes, in native byte order, because shared memory stays within one host.
    fn bytes(&self) -> [u8; FACTS_BYTES] {
        let mut bytes = [0; FACTS_BYTES];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &MAGIC);
        put(8, &NODE_SEGMENT_VERSION.to_ne_bytes());
        put(12, &self.entries.to_ne_bytes());
        put(16, &self.id.to_ne_bytes());
        put(24, &self.job.to_ne_bytes());
        put(32, &self.lock_file.to_ne_bytes());
        for (area, at) in self.areas.iter().zip((40..).step_by(16)) {
            put(at, &area.offset.to_ne_bytes());
            put(at + 8, &area.bytes.to_ne_bytes());
        }
        bytes
    }

    /// Checks the facts of a file of `file_bytes` bytes.
    fn parse(bytes: &[u8; FACTS_BYTES], file_bytes: u64) -> Result<NodeFacts, NodeLayoutError> {
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let half = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let field = |field, have, allowed| Err(NodeLayoutError::Field { field, have, allowed });
        if bytes[..8] != MAGIC {
            return Err(NodeLayoutError::Magic);
        }
        if half(8) != NODE_SEGMENT_VERSION {
            return Err(NodeLayoutError::Version { have: half(8) });
        }
        let areas = std::array::from_fn(|index| {
            let at = 40 + 16 * index;
            Extent { offset: word(at), bytes: word(at + 8) }
        });
        let facts = NodeFacts { id: word(16), job: word(24), lock_file: word(32), entries: half(12), areas };
        if !(ENTRIES_PER_PART..=MAX_ENTRIES).contains(&facts.entries) {
            return field("number of entries", facts.entries.into(), "64 to 4096");
        }
        for (area, kind) in facts.areas.iter().zip(Area::ALL) {
            let end = area.offset.checked_add(area.bytes);
            let is_inside = area.offset >= FIRST_BYTES && end.is_some_and(|end| end <= file_bytes);
            if !is_inside || !area.offset.is_multiple_of(64) || area.bytes != kind.bytes() {
                let allowed = "multiples of 64 behind the directory, with the length of this version";
                return field("area", area.offset, allowed);
            }
        }
        if facts.segment_bytes() > file_bytes {
            return field("length", file_bytes, "at least the directory");
        }
        Ok(facts)
    }

    /// The checked facts of `file`.
    ///
    /// # Errors
    /// [`NodeLayoutError`].
    pub fn read(file: &File) -> Result<NodeFacts, NodeLayoutError> {
        let mut bytes = [0; FACTS_BYTES];
        let read = file.read_exact_at(&mut bytes, 0).and_then(|()| file.metadata());
        NodeFacts::parse(&bytes, read.map_err(|_| NodeLayoutError::Magic)?.len())
    }
}

/// The name of the segment of the job `job` and the user `uid`.
pub fn node_file_name(uid: u32, job: u64) -> String {
    format!("{}{KIND}{NODE_SEGMENT_VERSION}.{job:016x}", file_prefix(uid))
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(TEMPORARY);
    PathBuf::from(name)
}

/// Creates the segment at `path` with memory for the first part of the directory. It appears there complete.
///
/// # Errors
/// [`SystemError`], also if there is such a name already. Nothing is left behind.
pub fn create(dir: &Path, path: &Path, facts: &NodeFacts) -> Result<File, SystemError> {
    let what = |verb: &str| format!("{verb} the node segment {}", path.display());
    let (file, naming) = match create_in_directory(dir, path) {
        // A process that died has left it: only one at a time creates a segment.
        Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists => {
            attempt(|| what("remove what is left of"), std::fs::remove_file(temporary(path)))?;
            create_in_directory(dir, path)?
        }
        result => result?,
    };
    let fill = || {
        attempt(|| what("set the size of"), file.set_len(facts.segment_bytes()))?;
        attempt(|| what("reserve memory for"), allocate(file.as_fd(), 0, FIRST_BYTES))?;
        attempt(|| what("write"), file.write_all_at(&facts.bytes(), 0))?;
        let reserved = ENTRIES_PER_PART.to_ne_bytes();
        attempt(|| what("write"), file.write_all_at(&reserved, COUNTS_OFFSET as u64))?;
        // Unlike a rename, a link replaces no name.
        let named = match &naming {
            Naming::Rename(temporary) => std::fs::hard_link(temporary, path),
            _ => naming.apply(&file, path),
        };
        attempt(|| what("name"), named)
    };
    let filled = fill();
    naming.discard();
    filled.map(|()| file)
}

/// Reserves memory for the first `entries` entries.
///
/// # Errors
/// No space left.
pub fn reserve_entries(file: &File, entries: u32) -> io::Result<()> {
    allocate(file.as_fd(), DIRECTORY_OFFSET as u64, u64::from(entries) * ENTRY_BYTES as u64)
}

/// Whether no endpoint of the directory in `file` runs. It reads the file and does not touch unreserved memory.
pub fn is_unused(file: &File, facts: &NodeFacts, dir: &Path, running: &Running<'_>) -> bool {
    let mut reserved = [0; 4];
    if file.read_exact_at(&mut reserved, COUNTS_OFFSET as u64).is_err() {
        return false;
    }
    let entries = u32::from_ne_bytes(reserved).min(facts.entries);
    let mut bytes = vec![0; entries as usize * ENTRY_BYTES];
    if file.read_exact_at(&mut bytes, DIRECTORY_OFFSET as u64).is_err() {
        return false;
    }
    let holders = bytes.chunks_exact(ENTRY_BYTES).filter_map(|entry| entry.first_chunk());
    holders.map(|holder| u64::from_ne_bytes(*holder)).filter(|&holder| holder != 0).all(|holder| {
        // Somebody may have removed the lock file. The lock on the mailbox itself still shows that its owner runs.
        let mailbox = dir.join(file_name(uid(), holder));
        let is_mailbox_left = || mailbox.symlink_metadata().is_ok() && !is_stale(&mailbox, holder);
        !running.is_running(holder) && !is_mailbox_left()
    })
}

/// Removes the node segments of this user in `dir` whose endpoints have all ended. Those of other versions remain as long
/// as any endpoint of the user runs there. Returns the paths.
///
/// # Errors
/// The directory cannot be read.
pub fn remove_stale(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let prefix = format!("{}{KIND}", file_prefix(uid()));
    let mut segments = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().as_bytes().starts_with(prefix.as_bytes()) {
            segments.push(entry.path());
        }
    }
    if segments.is_empty() {
        return Ok(segments);
    }
    let mailboxes = segments_of_others(dir)?;
    open_files::behind_gate_of(dir, |running| {
        let is_any_running =
            || running.is_any_running() || mailboxes.iter().any(|(path, id)| !is_stale(path, *id));
        segments.retain(|path| {
            let Ok(file) = open_existing(path, uid(), false) else { return false };
            let is_unused = match NodeFacts::read(&file) {
                Ok(facts) if !path.as_os_str().as_bytes().ends_with(TEMPORARY.as_bytes()) => {
                    is_unused(&file, &facts, dir, running)
                }
                _ => !is_any_running(),
            };
            is_unused && std::fs::remove_file(path).is_ok()
        });
    });
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_unchanged_after_encoding_and_parsing() {
        let facts = NodeFacts::new(1, 2, 3);
        assert_eq!(NodeFacts::parse(&facts.bytes(), facts.segment_bytes()), Ok(facts));
        let ends: Vec<u64> = facts.areas.iter().map(|area| area.offset + area.bytes).collect();
        assert_eq!(ends[..3], facts.areas[1..].iter().map(|area| area.offset).collect::<Vec<_>>());
        assert_eq!(facts.segment_bytes(), ends[3]);
    }

    #[test]
    fn malformed_facts_are_rejected() {
        let facts = NodeFacts::new(1, 2, 3);
        let parse = |at: usize, value: u64| {
            let mut bytes = facts.bytes();
            bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
            NodeFacts::parse(&bytes, facts.segment_bytes())
        };
        assert_eq!(parse(0, 0), Err(NodeLayoutError::Magic));
        let version = u64::from(NODE_SEGMENT_VERSION) + 1;
        assert_eq!(parse(8, version), Err(NodeLayoutError::Version { have: version as u32 }));
        let field = |result: Result<NodeFacts, NodeLayoutError>| match result {
            Err(NodeLayoutError::Field { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        let entries = |count: u64| u64::from(NODE_SEGMENT_VERSION) | count << 32;
        assert_eq!(field(parse(8, entries(63))), "number of entries");
        assert_eq!(field(parse(8, entries(4097))), "number of entries");
        for (at, value) in [(40, 0), (40, u64::MAX), (40, 266_240 + 8), (48, u64::MAX - 63), (64, 1 << 40)] {
            assert_eq!(field(parse(at, value)), "area", "{value} at byte {at}");
        }
        let short = NodeFacts::parse(&facts.bytes(), facts.segment_bytes() - 1);
        assert_eq!(field(short), "area");
    }
}
