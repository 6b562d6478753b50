//! Messages to the user about mailboxes, on standard error: why a connection has failed or a peer is lost, and what
//! follows from too little shared memory.
//!
//! The caller gets only a [`weir_proto::PeerFault`], which does not say why. This module prints the reason. Each
//! message appears once in a process, because every rank of a job would repeat it for every peer. Messages about memory
//! and about other versions appear once in a job.

use super::layout::LayoutError;
use super::lock_file::{self, LockFile, Report};
use super::{open_files, segment_file};
use crate::descriptors::more_descriptors;
use crate::unreachable;
use rustix::io::Errno;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Once;
use std::time::Duration;
use weir_proto::wire::PacketError;

/// Reports that a peer runs another version of weir, as `error` says.
pub fn report_other_version(error: &LayoutError) {
    static REPORTED: Once = Once::new();
    unreachable::print_once(&REPORTED, Report::OtherVersion, || {
        format!("cannot connect to a peer: {error} in all ranks")
    });
}

/// Reports that a mailbox of `bytes` bytes has no space in `dir`, nor in other memory. Once in a job of `ranks` ranks.
pub fn report_too_small(dir: &Path, ranks: u32, bytes: u64, error: &io::Error) {
    open_files::report_once(dir, || {
        let all = kib(bytes * u64::from(ranks.max(1)));
        let free = segment_file::file_system_space(dir).map_or(0, |space| space.free_bytes);
        print(&format!(
            "cannot start: {} of this node need at least {all} KiB in {}, and {} KiB are free: {error}; \
             make it larger (docker run --shm-size 1g), set FI_WEIR_SHM_DIR to another tmpfs, \
             or permit memfd_create and /proc",
            if ranks > 1 { format!("{ranks} ranks") } else { String::from("the ranks") },
            dir.display(),
            kib(free),
        ));
    });
}

/// Reports that a peer with the same directory is in another pid namespace, and its mailbox or ours is not a file in
/// `dir`. `needed_bytes`: see [`super::ShmOptions::needed_bytes`].
pub fn report_other_pid_namespace(dir: &Path, needed_bytes: u64) {
    static REPORTED: Once = Once::new();
    // The mark stays when the rank that has reported ends at once.
    REPORTED.call_once(|| open_files::report_once(dir, || print(&other_pid_namespace(dir, needed_bytes))));
}

fn other_pid_namespace(dir: &Path, needed_bytes: u64) -> String {
    let needed = match needed_bytes {
        0 => String::new(),
        bytes => format!("{} KiB are needed, ", kib(bytes)),
    };
    let free = segment_file::file_system_space(dir).map_or(0, |space| space.free_bytes);
    let dir = dir.display();
    format!(
        "cannot connect: {dir} is too small for the mailboxes of ranks in different containers (pid namespaces): \
         {needed}{} KiB are free, so mailboxes are in memory (memfd) that other containers cannot open; \
         make {dir} larger in the container that the others share it with (docker run --shm-size 1g), \
         set FI_WEIR_LINK=shm,udp on all ranks, or run all ranks in one pid namespace (docker run --pid)",
        kib(free),
    )
}

fn kib(bytes: u64) -> u64 {
    bytes.div_ceil(1024)
}

/// Reports that there is no memory for another lane of `bytes` bytes, so that lane reclamation serves newcomers. Once in
/// a job.
pub fn report_lane_reclamation(locks: &LockFile, bytes: u64, error: &io::Error) {
    static REPORTED: Once = Once::new();
    REPORTED.call_once(|| {
        locks.report_once(|| {
            print(&format!(
                "slower: no space for a lane of {bytes} bytes in {}: {error}; senders take turns on the lanes that exist (lane reclamation); \
                 make it larger (docker run --shm-size 1g), or free some",
                locks.dir().display()
            ));
        });
    });
}

/// Reports that this process cannot open or map the mailbox of a running peer in `dir`. It tries again for at most `limit`, if
/// that can help.
pub fn report_refused(dir: &Path, error: &io::Error, limit: Duration) {
    static REPORTED: Once = Once::new();
    let advice = match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => {
            format!("it tries again for {limit:?}; close some descriptors, or {}", more_descriptors(error))
        }
        Some(Errno::NOMEM | Errno::AGAIN) => format!("it tries again for {limit:?}; free some memory"),
        Some(Errno::NOENT) => {
            String::from("somebody has removed the name; exclude weir.* from what cleans the directory")
        }
        Some(Errno::ACCESS | Errno::PERM) => String::from(
            "all ranks need the same user, from MPI_Init on, and may not forbid /proc to each other",
        ),
        _ => String::from("see errno(3)"),
    };
    print_once(&REPORTED, || {
        format!("cannot open the mailbox of a running peer in {}: {error}; {advice}", dir.display())
    });
}

/// Reports that a running peer uses another lock file.
pub fn report_other_lock_file(locks: &LockFile) {
    static REPORTED: Once = Once::new();
    print_once(&REPORTED, || {
        let path = lock_file::path(locks.dir(), locks.uid());
        format!(
            "cannot connect: somebody has removed {} while the job ran; \
             exclude weir.* from what cleans the directory",
            path.display()
        )
    });
}

/// Reports that a peer has written something that is not a packet. `fault`: what is wrong with its header.
pub fn report_malformed(fault: Option<PacketError>) {
    static REPORTED: Once = Once::new();
    print_once(&REPORTED, || {
        let fault = match fault {
            Some(fault) => fault.to_string(),
            None => String::from("out of sequence, or longer than its lane"),
        };
        format!("lost a peer: it sent a malformed packet: {fault}; run one version of weir on all ranks")
    });
}

fn print(text: &str) {
    // In one piece, because many ranks share the terminal. A closed standard error is no reason to fail.
    let _ = io::stderr().write_all(format!("weir: {text}\n").as_bytes());
}

fn print_once(reported: &Once, text: impl FnOnce() -> String) {
    reported.call_once(|| print(&text()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_about_other_pid_namespaces_names_the_directory_the_space_and_what_to_do() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let (path, text) = (dir.path().display(), other_pid_namespace(dir.path(), 2_200_000));
        let begin = format!(
            "cannot connect: {path} is too small for the mailboxes of ranks in different containers (pid namespaces): \
             2149 KiB are needed, "
        );
        let end = format!(
            " KiB are free, so mailboxes are in memory (memfd) that other containers cannot open; make {path} larger in the \
             container that the others share it with (docker run --shm-size 1g), set FI_WEIR_LINK=shm,udp on all ranks, or \
             run all ranks in one pid namespace (docker run --pid)"
        );
        assert!(text.starts_with(&begin) && text.ends_with(&end), "{text}");
        assert!(!other_pid_namespace(dir.path(), 0).contains("needed"), "not known");
    }
}
