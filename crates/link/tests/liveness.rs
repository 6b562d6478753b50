//! Tests of liveness: a peer is dead only when its process has ended, whatever keeps this process from opening files.
#![allow(missing_docs)]

mod common;

use common::*;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use weir_link::shm::{ShmLink, ShmOptions};
use weir_link::{Address, Arrival, LaneReclamation, Link};
use weir_proto::{CopyFault, Direction, Peer, PeerFault};

/// A mailbox in another process, which ends with the value.
struct Remote {
    pid: i32,
    words: &'static [AtomicU64; 64],
    address: Address,
}

impl Remote {
    /// Runs `child` in another process with a mailbox there. It ends when the child returns.
    fn start(dir: &std::path::Path, child: impl FnOnce(&mut ShmLink, &[AtomicU64; 64])) -> Remote {
        let words = shared_words();
        let pid = fork(|| {
            let mut link = open(dir);
            put(words, 0, link.address());
            child(&mut link, words);
        });
        Remote { pid, words, address: get(words, 0) }
    }

    /// A mailbox whose process only lives.
    fn idle(dir: &std::path::Path) -> Remote {
        Remote::start(dir, |_, _| std::thread::sleep(std::time::Duration::from_secs(60)))
    }

    fn kill(&self) {
        kill(self.pid);
        reap(self.pid);
    }
}

/// Takes all free descriptors of this process. Only children call it.
fn exhaust_descriptors() -> Vec<File> {
    let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: the structure outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    taken
}

#[test]
fn a_peer_lives_although_no_descriptor_is_free() {
    let dir = directory();
    let peer = Remote::idle(dir.path());
    let child = fork(|| {
        let mut a = open(dir.path());
        a.attach(Peer(0), &peer.address).expect("connected");
        let taken = exhaust_descriptors();
        assert_eq!(end_of(&mut a, Peer(0), &peer.address), None);
        peer.words[20].store(1, SeqCst);
        until("the death", || peer.words[21].load(SeqCst) == 1);
        assert_eq!(end_of(&mut a, Peer(0), &peer.address), Some(PeerFault::Died));
        drop(taken);
    });
    until("the first test", || peer.words[20].load(SeqCst) == 1 || ended(child));
    peer.kill();
    peer.words[21].store(1, SeqCst);
    assert_eq!(reap(child), 0);
}

#[test]
fn a_sender_without_a_free_descriptor_connects_later() {
    let dir = directory();
    let peer = Remote::idle(dir.path());
    let child = fork(|| {
        let mut a = open(dir.path());
        let taken = exhaust_descriptors();
        for _ in 0..3 {
            assert_eq!(a.attach(Peer(0), &peer.address), Ok(None));
        }
        drop(taken);
        assert!(a.attach(Peer(0), &peer.address).expect("connected").is_some());
    });
    assert_eq!(reap(child), 0);
    peer.kill();
}

#[test]
fn a_sender_that_gets_no_descriptor_within_the_limit_loses_the_peer_and_may_connect_later() {
    let dir = directory();
    let peer = Remote::idle(dir.path());
    let child = fork(|| {
        let refused_limit = std::time::Duration::ZERO;
        let mut a = ShmLink::open(&ShmOptions { refused_limit, ..options(dir.path()) }).expect("a mailbox");
        let taken = exhaust_descriptors();
        assert_eq!(a.attach(Peer(0), &peer.address), Err(PeerFault::Unreachable));
        drop(taken);
        assert!(a.attach(Peer(0), &peer.address).expect("connected").is_some());
    });
    assert_eq!(reap(child), 0);
    peer.kill();
}

#[test]
fn a_large_message_from_a_living_peer_is_fetched_in_packets_while_no_descriptor_is_free() {
    let dir = directory();
    let words = shared_words();
    let receiver = fork(|| {
        let mut b = open(dir.path());
        put(words, 0, b.address());
        let address = get(words, 10);
        let taken = exhaust_descriptors();
        accept(&mut b, Peer(0));
        let result = copy(&mut b, Peer(0), Direction::Get, 4096, &memory(&mut [0; 8]), 0, 8);
        assert_eq!(result, Err(CopyFault::BadAddress), "the machine then asks for packets");
        assert_eq!(end_of(&mut b, Peer(0), &address), None);
        drop(taken);
    });
    let mut a = open(dir.path());
    a.attach(Peer(0), &get(words, 0)).expect("connected");
    put(words, 10, a.address());
    assert_eq!(reap(receiver), 0);
}

#[test]
fn a_peer_lives_although_this_process_has_changed_its_user() {
    let dir = directory();
    let peer = Remote::idle(dir.path());
    let child = fork(|| {
        let mut a = open(dir.path());
        a.attach(Peer(0), &peer.address).expect("connected");
        // SAFETY: changes only the rights of this child.
        if unsafe { libc::seteuid(65534) } != 0 {
            skipped("a change of the user needs root");
            return;
        }
        assert_eq!(end_of(&mut a, Peer(0), &peer.address), None);
    });
    assert_eq!(reap(child), 0);
    peer.kill();
}

#[test]
fn a_peer_lives_although_somebody_has_removed_all_names() {
    let dir = directory();
    let peer = Remote::idle(dir.path());
    let mut a = open(dir.path());
    a.attach(Peer(0), &peer.address).expect("connected");
    for entry in std::fs::read_dir(dir.path()).expect("a directory") {
        std::fs::remove_file(entry.expect("an entry").path()).expect("removed");
    }
    assert_eq!(end_of(&mut a, Peer(0), &peer.address), None);
    peer.kill();
    assert_eq!(end_of(&mut a, Peer(0), &peer.address), Some(PeerFault::Died));
}

#[test]
fn a_refused_lane_of_a_living_sender_is_not_given_to_another_one() {
    let dir = directory();
    let mut b = ShmLink::open(&ShmOptions { max_lanes: 1, ..options(dir.path()) }).expect("a mailbox");
    let to_b = b.address();
    let words = shared_words();
    let sender = fork(|| {
        let mut a = open(dir.path());
        a.attach(Peer(0), &to_b).expect("connected");
        put(words, 0, a.address());
        until("the end", || words[20].load(SeqCst) == 1);
    });
    get(words, 0);
    accept(&mut b, Peer(0));
    b.forget(Peer(0));
    let name = format!("weir.{}.{:016x}", uid(), get(words, 0).identity());
    std::fs::remove_file(dir.path().join(name)).expect("the sender's segment");
    let mut other = open(dir.path());
    let mut wait_for_lane = || {
        b.maintain(0);
        assert!(b.poll().is_none_or(|arrival| matches!(arrival, Arrival::Attached { .. })));
        other.attach(Peer(0), &to_b).expect("in the queue").is_some()
    };
    for _ in 0..5 {
        assert!(!wait_for_lane(), "the first sender may still write");
    }
    words[20].store(1, SeqCst);
    assert_eq!(reap(sender), 0);
    until("a lane for the other sender", wait_for_lane);
}

#[test]
fn endpoints_with_different_lock_files_do_not_connect() {
    let dir = directory();
    let peer = Remote::idle(dir.path());
    std::fs::remove_file(dir.path().join(format!("weir.{}.locks", uid()))).expect("the lock file");
    let mut late = open(dir.path());
    assert!(late.attach(Peer(0), &peer.address).is_err());
    peer.kill();
}
