//! Tests of mailboxes whose directory has too little space: unnamed memory, turns on reserved lanes, and messages.
#![allow(missing_docs)]

mod common;

use common::*;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use weir_link::shm::{ShmLink, ShmOptions, cleanup, owners};
use weir_link::{Address, Addressing, Arrival, LaneReclamation, Link};
use weir_proto::{Peer, PeerFault};

const HEADER_KIB: u64 = 8;
const LANE_KIB: u64 = 8;

fn open_with(dir: &Path, reserved_lanes: u32) -> ShmLink {
    ShmLink::open(&ShmOptions { reserved_lanes, ..options(dir) }).expect("a mailbox")
}

/// Every sender sends its messages to `b`, whoever has a lane, until all have arrived.
fn exchange_by_turns(b: &mut ShmLink, senders: &mut [ShmLink], messages: u64) {
    let to_b = b.address();
    let mut sent = vec![0; senders.len()];
    let mut connected = vec![false; senders.len()];
    let mut received = 0;
    let mut peers: Vec<Address> = Vec::new();
    until("all messages", || {
        for (index, sender) in senders.iter_mut().enumerate() {
            if matches!(sender.poll(), Some(Arrival::DetachRequested { .. })) {
                detach(sender, Peer(0));
                connected[index] = false;
            }
            if sent[index] == messages {
                continue;
            }
            let mut wanted = false;
            if !connected[index] {
                let Some(lease) = sender.attach(Peer(0), &to_b).expect("the peer lives") else { continue };
                wanted = lease.wanted;
            }
            send(sender, Peer(0), sent[index], &[index as u8; 100]);
            sent[index] += 1;
            connected[index] = !wanted;
            if wanted {
                detach(sender, Peer(0));
            }
        }
        match b.poll() {
            Some(Arrival::Attached { lane, address, .. }) => {
                let peer = peers.iter().position(|known| *known == address).unwrap_or_else(|| {
                    peers.push(address);
                    peers.len() - 1
                });
                b.accept(lane, Peer(peer as u32));
            }
            Some(Arrival::Packet { from, packet }) => {
                b.retire();
                match packet.body {
                    weir_proto::Body::Detach => b.release(from),
                    _ => received += 1,
                }
            }
            _ => {}
        }
        b.maintain(u64::MAX);
        received == messages * senders.len() as u64
    });
}

#[test]
fn senders_take_turns_on_the_reserved_lane_of_a_full_directory() {
    let Some(dir) = SmallTmpfs::mount(4 * HEADER_KIB + LANE_KIB) else { return };
    // More lanes than have claim words in the first page of them.
    let many = ShmOptions { max_lanes: 4096, reserved_lanes: 1, ..options(dir.path()) };
    let mut b = ShmLink::open(&many).expect("a mailbox");
    let mut senders = [0; 3].map(|lanes| open_with(dir.path(), lanes));
    assert!(senders[0].attach(Peer(0), &b.address()).expect("connected").is_some());
    assert_eq!(senders[1].attach(Peer(0), &b.address()), Ok(None), "it waits for the lane");
    exchange_by_turns(&mut b, &mut senders, 3);
}

#[test]
fn a_directory_that_others_fill_leaves_the_reserved_lanes() {
    let Some(dir) = SmallTmpfs::mount(1024) else { return };
    let words = shared_words();
    let receiver = fork(|| {
        let mut b = open_with(dir.path(), 1);
        put(words, 0, b.address());
        until("the full directory", || words[20].load(SeqCst) == 1);
        accept(&mut b, Peer(0));
        assert_eq!(receive(&mut b).2, [7; 3000]);
        detach_and_free(&mut b);
        // The next sender finds the same memory, reset.
        accept(&mut b, Peer(1));
        assert_eq!(receive(&mut b).2, [8; 3000]);
    });
    let to_b = get(words, 0);
    let (mut first, mut second) = (open_with(dir.path(), 0), open_with(dir.path(), 0));
    dir.fill();
    words[20].store(1, SeqCst);
    assert!(first.attach(Peer(0), &to_b).expect("connected").is_some());
    send(&mut first, Peer(0), 0, &[7; 3000]);
    detach(&mut first, Peer(0));
    until("the lane", || second.attach(Peer(0), &to_b).expect("in the queue").is_some());
    send(&mut second, Peer(0), 0, &[8; 3000]);
    assert_eq!(reap(receiver), 0, "no SIGBUS");
}

/// Retires the `Detach` of the only sender and frees its lane.
fn detach_and_free(b: &mut ShmLink) {
    assert!(matches!(wait(b), Arrival::Packet { packet, .. } if packet.body == weir_proto::Body::Detach));
    b.retire();
    b.release(Peer(0));
}

#[test]
fn a_mailbox_is_in_unnamed_memory_if_its_directory_has_no_space() {
    let Some(dir) = SmallTmpfs::mount(4) else { return };
    let words = shared_words();
    let child = fork(|| {
        let mut b = open_with(dir.path(), 1);
        put(words, 0, b.address());
        accept(&mut b, Peer(0));
        assert_eq!(receive(&mut b).2, b"through memory");
        words[20].store(1, SeqCst);
        std::thread::sleep(std::time::Duration::from_secs(60));
    });
    let address = get(words, 0);
    let mut a = open_with(dir.path(), 1);
    a.attach(Peer(0), &address).expect("connected");
    send(&mut a, Peer(0), 0, b"through memory");
    until("the message", || words[20].load(SeqCst) == 1 || ended(child));
    assert_eq!(end_of(&mut a, Peer(0), &address), None);
    let pids = || owners(dir.path()).expect("a directory").into_iter().map(|(_, pid)| pid as i32);
    assert_eq!(pids().collect::<Vec<_>>(), [child]);
    assert_eq!(cleanup(dir.path()).expect("a directory").len(), 0, "it is in use");
    kill(child);
    reap(child);
    let late = open_with(dir.path(), 0).attach(Peer(0), &address);
    assert_eq!(late, Err(PeerFault::Died));
    assert_eq!(end_of(&mut a, Peer(0), &address), Some(PeerFault::Died));
    drop(a);
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 0, "nothing is left behind");
}

#[test]
fn cleanup_removes_the_name_of_unnamed_memory_whose_process_has_ended() {
    let dir = directory();
    let child = fork(|| {
        let in_memory = ShmOptions { in_memory: true, ..options(dir.path()) };
        std::mem::forget(ShmLink::open(&in_memory).expect("a mailbox"));
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    });
    reap(child);
    assert_eq!(cleanup(dir.path()).expect("a directory").len(), 1);
    assert_eq!(
        std::fs::read_dir(dir.path()).expect("a directory").count(),
        0,
        "the lock file is removed too"
    );
}

#[test]
fn too_little_memory_is_reported_once_in_a_job() {
    let Some(dir) = SmallTmpfs::mount(4) else { return };
    let output = tempfile::NamedTempFile::new().expect("a file");
    let ranks = [(); 3].map(|()| {
        fork(|| {
            use std::os::fd::AsRawFd;
            // SAFETY: the child's own standard error.
            unsafe { libc::dup2(output.as_file().as_raw_fd(), 2) };
            forbid(&[libc::SYS_memfd_create]);
            let options = ShmOptions { ranks: 3, reserved_lanes: 1, ..options(dir.path()) };
            let error = ShmLink::open(&options).expect_err("no space").to_string();
            assert!(error.contains("cannot reserve memory for"), "{error}");
        })
    });
    assert_eq!(ranks.map(reap), [0; 3]);
    let said = std::fs::read_to_string(output.path()).expect("text");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.starts_with("weir: cannot start: 3 ranks of this node need at least 48 KiB in "), "{said}");
}

#[test]
fn cleanup_keeps_unnamed_memory_of_a_process_that_it_cannot_see() {
    let dir = directory();
    let words = shared_words();
    let child = fork(|| {
        let in_memory = ShmOptions { in_memory: true, ..options(dir.path()) };
        let _mailbox = ShmLink::open(&in_memory).expect("a mailbox");
        words[0].store(1, SeqCst);
        std::thread::sleep(std::time::Duration::from_secs(60));
    });
    until("the mailbox", || words[0].load(SeqCst) == 1 || ended(child));
    let entries = std::fs::read_dir(dir.path()).expect("a directory");
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    let name = paths.find(|path| path.is_symlink()).expect("the name of unnamed memory");
    // As another container sees it: no process has this number there.
    std::fs::remove_file(&name).expect("removed");
    std::os::unix::fs::symlink("/proc/4194305/fd/3", &name).expect("a link");
    assert_eq!(cleanup(dir.path()).expect("a directory").len(), 0, "its owner holds a lock");
    kill(child);
    reap(child);
    assert_eq!(cleanup(dir.path()).expect("a directory"), [name]);
}

/// Runs `child` as the first process of a pid namespace with a `/proc` of its own. `None`: this process may not make one.
fn fork_into_pid_namespace(child: impl FnOnce()) -> Option<i32> {
    let mut probe = std::process::Command::new("unshare");
    probe.args(["--pid", "--mount", "--fork", "--mount-proc", "true"]).stderr(std::process::Stdio::null());
    if !probe.status().is_ok_and(|status| status.success()) {
        skipped("cannot make a pid namespace, which needs root");
        return None;
    }
    Some(fork(|| {
        let none = std::ptr::null();
        // SAFETY: NUL-terminated strings. The mounts are private to this process and its children.
        unsafe {
            assert_eq!(libc::unshare(libc::CLONE_NEWPID | libc::CLONE_NEWNS), 0);
            let flags = libc::MS_REC | libc::MS_PRIVATE;
            assert_eq!(libc::mount(none, c"/".as_ptr(), none, flags, none.cast()), 0);
        }
        let first = fork(|| {
            let kind = c"proc".as_ptr();
            // SAFETY: NUL-terminated strings.
            assert_eq!(unsafe { libc::mount(kind, c"/proc".as_ptr(), kind, 0, none.cast()) }, 0);
            child();
        });
        assert_eq!(reap(first), 0);
    }))
}

#[test]
fn a_mailbox_in_memory_is_not_reached_from_another_pid_namespace() {
    let dir = directory();
    let open_in_memory = || {
        let link = ShmLink::open(&ShmOptions { in_memory: true, ..options(dir.path()) }).expect("a mailbox");
        assert!(link.path().is_some_and(Path::is_symlink));
        link
    };
    let words = shared_words();
    let is_over = || words[63].load(SeqCst) == 1;
    let Some(child) = fork_into_pid_namespace(|| {
        let (file, memory) = (open(dir.path()), open_in_memory());
        put(words, 0, file.address());
        put(words, 9, memory.address());
        until("the end of the test", is_over);
    }) else {
        return;
    };
    let (far_file, far_memory) = (get(words, 0), get(words, 9));
    let (mut file, memory) = (open(dir.path()), open_in_memory());
    assert!(file.reaches(&memory.address()) && memory.reaches(&file.address()), "the same namespace");
    assert!(file.reaches(&far_file), "files have no namespace");
    file.attach(Peer(0), &far_file).expect("the peer lives").expect("a free lane");
    assert!(!memory.reaches(&far_file), "its owner cannot open our mailbox");
    assert!(!file.reaches(&far_memory) && !memory.reaches(&far_memory));
    assert_eq!(file.attach(Peer(1), &far_memory), Err(PeerFault::Unreachable));
    words[63].store(1, SeqCst);
    assert_eq!(reap(child), 0);
}

#[test]
fn a_file_system_that_cannot_reserve_memory_is_recognised() {
    let of_proc =
        std::fs::File::options().write(true).open("/proc/self/comm").expect("a file of this process");
    assert!(!weir_link::shm::can_reserve(of_proc.as_fd()), "files of /proc have no memory to reserve");
    let of_tmpfs = tempfile::tempfile_in("/dev/shm").expect("a file");
    assert!(weir_link::shm::can_reserve(of_tmpfs.as_fd()));
}
