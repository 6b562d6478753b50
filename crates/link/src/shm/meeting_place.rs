//! The meeting place of a mailbox: who can open it, as a short number for addresses.
//!
//! Two endpoints find each other's mailboxes only if they see the same directory and have the same user, because the
//! user is part of each file's name. A mailbox in memory (a memfd) is opened through `/proc`, so only processes in the pid
//! namespace of its owner can do that. The number has 64 bits:
//! ```text
//! directory     44 bits   hash of boot id, device and inode of the directory, and effective user
//! in memory      1 bit    the mailbox is a memfd
//! namespace     19 bits   the end of the inode number of the owner's pid namespace
//! ```
//! The boot id is another one on each host, and after each boot. Containers with a `/dev/shm` of their own have another
//! device. Two paths of one directory have one number. The kernel gives namespaces the lowest free inode numbers, so
//! their ends differ.
//!
//! Two endpoints meet ([`MeetingPlace::meets`]) if their directories are equal and, unless both mailboxes are files,
//! their namespaces too. Both compare the same numbers, so both find the same. This does not promise that packets
//! arrive: the peer may have ended. Where `/proc` is not mounted the boot id is missing; two such hosts can have equal
//! numbers, and a connection then fails when the mailbox is not found.

use super::segment_file::{SystemError, attempt, uid};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The bits of the namespace.
const NAMESPACE: u64 = (1 << 19) - 1;
/// The bit of a mailbox in memory.
const IN_MEMORY: u64 = NAMESPACE + 1;
/// The bits of the directory.
const DIRECTORY: u64 = !(NAMESPACE | IN_MEMORY);

/// See the head of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeetingPlace(pub [u8; 8]);

impl MeetingPlace {
    /// A place that only says which directory it is: that of a file, in no namespace.
    fn of_directory(hash: u64) -> MeetingPlace {
        MeetingPlace((hash & DIRECTORY).to_be_bytes())
    }

    /// The place in this directory of a mailbox whose owner is in `pid_namespace`. `is_in_memory`: it is a memfd.
    pub fn of_mailbox(self, pid_namespace: u64, is_in_memory: bool) -> MeetingPlace {
        let in_memory = if is_in_memory { IN_MEMORY } else { 0 };
        MeetingPlace((self.number() & DIRECTORY | in_memory | pid_namespace & NAMESPACE).to_be_bytes())
    }

    fn number(self) -> u64 {
        u64::from_be_bytes(self.0)
    }

    /// Whether the owners of both mailboxes have one directory.
    pub fn has_directory_of(self, other: MeetingPlace) -> bool {
        (self.number() ^ other.number()) & DIRECTORY == 0
    }

    /// Whether the owners of both mailboxes can open them.
    pub fn meets(self, other: MeetingPlace) -> bool {
        let are_files = (self.number() | other.number()) & IN_MEMORY == 0;
        let have_one_namespace = (self.number() ^ other.number()) & NAMESPACE == 0;
        self.has_directory_of(other) && (are_files || have_one_namespace)
    }

    /// The place here of the endpoint `identity` alone: only the endpoint itself meets it there.
    pub fn private(self, identity: u64) -> MeetingPlace {
        let mut hasher = DefaultHasher::new();
        (self.0, identity).hash(&mut hasher);
        MeetingPlace::of_directory(hasher.finish())
    }
}

/// The directory of this user's mailboxes in `dir`, as a meeting place.
///
/// # Errors
/// The directory is gone.
pub fn of_this_user(dir: &Path) -> Result<MeetingPlace, SystemError> {
    of(dir, uid())
}

/// The directory of the mailboxes of the user `uid` in `dir`, as a meeting place.
///
/// # Errors
/// The directory is gone.
pub fn of(dir: &Path, uid: u32) -> Result<MeetingPlace, SystemError> {
    let directory = attempt(|| format!("read {}", dir.display()), std::fs::metadata(dir))?;
    let boot_id = std::fs::read(BOOT_ID).unwrap_or_default();
    Ok(hash(&boot_id, directory.dev(), directory.ino(), uid))
}

fn hash(boot_id: &[u8], device: u64, inode: u64, uid: u32) -> MeetingPlace {
    // Its keys are constant, so all processes with the same library get the same number.
    let mut hasher = DefaultHasher::new();
    (boot_id, device, inode, uid).hash(&mut hasher);
    MeetingPlace::of_directory(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_paths_of_a_directory_are_one_place() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let link = dirs[1].path().join("link");
        std::os::unix::fs::symlink(dirs[0].path(), &link).expect("a link");
        let place = |path: &Path, uid| of(path, uid).expect("it is there");
        assert_eq!(place(dirs[0].path(), 1), place(&link, 1));
        assert_ne!(place(dirs[0].path(), 1), place(dirs[1].path(), 1));
        assert_ne!(place(dirs[0].path(), 1), place(dirs[0].path(), 2), "files of another user");
        assert!(of(&link.join("none"), 1).is_err());
    }

    #[test]
    fn a_mailbox_in_memory_meets_only_those_of_its_pid_namespace() {
        const FIRST: u64 = 0xefff_fffc; // what the kernel gives to the namespace of the host
        const CONTAINERS: [u64; 2] = [0xf000_0123, 0xf000_0124];
        let (here, there) = (hash(b"a", 1, 2, 3), hash(b"a", 1, 9, 3));
        for (ours, theirs) in [(FIRST, CONTAINERS[0]), (CONTAINERS[0], CONTAINERS[1])] {
            for (our_kind, their_kind) in [(false, false), (false, true), (true, false), (true, true)] {
                let (our, their) = (here.of_mailbox(ours, our_kind), here.of_mailbox(theirs, their_kind));
                assert_eq!(our.meets(their), !our_kind && !their_kind, "files of two namespaces meet");
                assert!(our.has_directory_of(their));
                let neighbour = here.of_mailbox(ours, their_kind);
                assert!(our.meets(neighbour) && neighbour.meets(our), "one namespace");
                let elsewhere = there.of_mailbox(ours, their_kind);
                assert!(!our.meets(elsewhere) && !our.has_directory_of(elsewhere));
            }
        }
    }

    #[test]
    fn hosts_and_file_systems_have_different_places() {
        let places = [hash(b"a", 1, 2, 3), hash(b"b", 1, 2, 3), hash(b"a", 9, 2, 3), hash(b"a", 1, 9, 3)];
        for (index, place) in places.iter().enumerate() {
            assert!(!places[index + 1..].contains(place), "{index}");
        }
    }
}
