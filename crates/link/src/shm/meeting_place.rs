//! The meeting place of mailboxes: the directory and the running system in which peers find them, as a short number
//! for addresses.
//!
//! Two endpoints find each other's mailboxes only if they see the same directory and have the same user, because the
//! user is part of each file's name. So the number is a hash of what identifies both:
//! ```text
//! boot id                          another value on each host, and after each boot
//! device and inode of the directory    containers with a /dev/shm of their own have another device
//! user                             the effective user when the mailbox was made
//! ```
//! Two paths of one directory have one number. Equal numbers do not promise that packets arrive: the peer may have
//! ended, or its mailbox may be in memory of another pid namespace. Where `/proc` is not mounted the boot id is
//! missing; two such hosts can have equal numbers, and a connection then fails when the mailbox is not found.

use super::segment_file::{SystemError, attempt, uid};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// See the head of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeetingPlace(pub [u8; 8]);

impl MeetingPlace {
    /// The place here of the endpoint `identity` alone: only the endpoint itself meets it there.
    pub fn private(self, identity: u64) -> MeetingPlace {
        let mut hasher = DefaultHasher::new();
        (self.0, identity).hash(&mut hasher);
        MeetingPlace(hasher.finish().to_le_bytes())
    }
}

/// The meeting place of this user's mailboxes in `dir`.
///
/// # Errors
/// The directory is gone.
pub fn of_this_user(dir: &Path) -> Result<MeetingPlace, SystemError> {
    of(dir, uid())
}

/// The meeting place of the mailboxes of the user `uid` in `dir`.
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
    MeetingPlace(hasher.finish().to_le_bytes())
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
    fn hosts_and_file_systems_have_different_places() {
        let places = [hash(b"a", 1, 2, 3), hash(b"b", 1, 2, 3), hash(b"a", 9, 2, 3), hash(b"a", 1, 9, 3)];
        for (index, place) in places.iter().enumerate() {
            assert!(!places[index + 1..].contains(place), "{index}");
        }
    }
}
