//! Tests of failures around a mailbox: deaths, forks, forbidden system calls, full memory and overwritten bytes.
#![allow(missing_docs)]

mod common;

use common::*;
use proptest::prelude::*;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::SeqCst;
use weir_link::memory::UserMemory;
use weir_link::shm::{ShmLink, ShmOptions, cleanup, owners};
use weir_link::{Address, Arrival, Link, WakeUp};
use weir_proto::wire::VERSION;
use weir_proto::wire::layout::Kind;
use weir_proto::{CopyFault, Direction, Peer, PeerFault};

fn sleep_ms(ms: u64) {
    std::thread::sleep(std::time::Duration::from_millis(ms));
}

#[test]
fn a_killed_receiver_is_found_dead_and_its_segment_is_removed() {
    let dir = directory();
    let words = shared_words();
    let child = fork(|| {
        let b = open(dir.path());
        put(words, 0, b.address());
        sleep_ms(60_000);
    });
    let address = get(words, 0);
    let (mut a, mut late) = (open(dir.path()), open(dir.path()));
    a.attach(Peer(0), &address).expect("connected");
    assert_eq!(end_of(&mut a, Peer(0), &address), None);
    kill(child);
    reap(child);
    send(&mut a, Peer(0), 0, b"to a dead peer");
    assert_eq!(late.attach(Peer(0), &address), Err(PeerFault::Died));
    assert_eq!(end_of(&mut a, Peer(0), &address), Some(PeerFault::Died));
    assert_eq!(late.attach(Peer(0), &address), Err(PeerFault::Unreachable), "the name is gone");
    assert_eq!(
        end_of(&mut late, Peer(0), &address),
        Some(PeerFault::Unreachable),
        "it never mapped the segment"
    );
    assert_eq!(end_of(&mut a, Peer(0), &address), Some(PeerFault::Died), "it has mapped the segment");
    let mut bytes = [0; 8];
    let gone = copy(&mut a, Peer(0), Direction::Get, 4096, &memory(&mut bytes), 0, 8);
    assert_eq!(gone, Err(CopyFault::Gone));
}

#[test]
fn a_dead_peer_is_reported_once_and_after_all_its_packets() {
    let dir = directory();
    let words = shared_words();
    let mut b = open(dir.path());
    let to_b = b.address();
    let child = fork(|| {
        let mut a = open(dir.path());
        put(words, 0, a.address());
        a.attach(Peer(0), &to_b).expect("connected");
        (0..3).for_each(|tag| send(&mut a, Peer(0), tag, &[1; 8]));
        words[20].store(1, SeqCst);
        until("the end", || false);
    });
    let to_a = get(words, 0);
    until("the packets", || words[20].load(SeqCst) == 1);
    assert_eq!(accept(&mut b, Peer(0)), to_a);
    kill(child);
    reap(child);
    b.check_peer(Peer(0), &to_a);
    b.check_peer(Peer(0), &to_a);
    assert_eq!((0..3).map(|_| receive(&mut b).1).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(b.may_have_arrivals());
    let began = std::time::Instant::now();
    b.sleep(20_000_000_000);
    assert!(began.elapsed().as_secs() < 10, "nobody sleeps while a loss is not reported");
    assert!(matches!(b.poll(), Some(Arrival::Lost { peer: Peer(0), fault: PeerFault::Died })));
    assert!(b.poll().is_none());
    // A connection that fails ends in the same report, and no second attempt is made before it.
    assert_eq!((b.connect(Peer(4), &to_a), b.connect(Peer(4), &to_a)), (None, None));
    assert!(matches!(b.poll(), Some(Arrival::Lost { peer: Peer(4), .. })));
    assert!(b.poll().is_none());
}

#[test]
fn a_peer_that_dies_before_its_lane_is_accepted_is_found_dead_after_a_cleanup() {
    let dir = directory();
    let mut b = open(dir.path());
    let (words, to_b) = (shared_words(), b.address());
    let child = fork(|| {
        let mut a = open(dir.path());
        a.attach(Peer(0), &to_b).expect("connected");
        put(words, 0, a.address());
        sleep_ms(60_000);
    });
    let address = get(words, 0);
    kill(child);
    reap(child);
    accept(&mut b, Peer(0));
    assert_eq!(cleanup(dir.path()).expect("a directory").len(), 1);
    assert_eq!(end_of(&mut b, Peer(0), &address), Some(PeerFault::Died));
}

#[test]
fn cleanup_removes_only_files_of_dead_processes() {
    let dir = directory();
    let living = open(dir.path());
    let words = shared_words();
    let stranger = fork(|| {
        let link = open(dir.path());
        put(words, 0, link.address());
        sleep_ms(60_000);
        drop(link);
    });
    get(words, 0);
    for _ in 0..3 {
        let child = fork(|| {
            let link = open(dir.path());
            std::mem::forget(link);
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
        reap(child);
    }
    let uid = uid();
    let unfinished = dir.path().join(format!("weir.{uid}.{:016x}.new", 5));
    std::fs::write(&unfinished, b"half").expect("written");
    for name in ["weir.x", &format!("weir.{uid}.zz"), "other"] {
        std::fs::write(dir.path().join(name), b"not ours").expect("written");
    }
    let pids = || {
        let owners = owners(dir.path()).expect("a directory");
        owners.into_iter().map(|(_, pid)| pid as i32).collect::<Vec<_>>()
    };
    assert!(
        pids().len() == 4 && pids().contains(&stranger),
        "the segment of this process is not in the list"
    );
    let removed = cleanup(dir.path()).expect("a directory");
    assert_eq!(pids(), [stranger]);
    assert_eq!(removed.len(), 4, "{removed:?}");
    assert!(removed.contains(&unfinished));
    assert_eq!(cleanup(dir.path()).expect("a directory").len(), 0);
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 6, "with the lock file in use");
    let mut probe = open(dir.path());
    assert_eq!(
        end_of(&mut probe, Peer(0), &living.address()),
        None,
        "the cleanup has not released the lock of this process"
    );
    assert_eq!(end_of(&mut probe, Peer(1), &get(words, 0)), None);
    kill(stranger);
    reap(stranger);
}

#[test]
fn the_liveness_lock_is_kept_when_a_process_uses_its_own_segments() {
    let dir = directory();
    let (mut a, mut b) = (open(dir.path()), open(dir.path()));
    a.attach(Peer(0), &b.address()).expect("connected");
    let own = a.address();
    a.attach(Peer(1), &own).expect("connected");
    a.check_peer(Peer(1), &own);
    a.check_peer(Peer(0), &b.address());
    b.check_peer(Peer(0), &own);
    cleanup(dir.path()).expect("a directory");
    let (a, b) = (a.address(), b.address());
    let child = fork(|| {
        // Another process sees the locks.
        let mut c = open(dir.path());
        assert_eq!((end_of(&mut c, Peer(0), &a), end_of(&mut c, Peer(1), &b)), (None, None));
        c.attach(Peer(0), &a).expect("connected");
    });
    assert_eq!(reap(child), 0);
}

#[test]
fn a_forked_child_does_not_close_or_unlink_its_parents_mailbox() {
    let dir = directory();
    let mut a = open(dir.path());
    let b = open(dir.path());
    let address = b.address();
    let path = b.path().expect("a name").to_owned();
    a.attach(Peer(0), &address).expect("connected");
    let mut b = Some(b);
    let child = fork(|| {
        if let Some(mut b) = b.take() {
            b.close();
        }
        // SAFETY: the child's own exit, with exit hooks, unlike `_exit`.
        unsafe { libc::exit(0) };
    });
    assert_eq!(reap(child), 0);
    assert!(path.exists());
    assert_eq!(end_of(&mut a, Peer(0), &address), None);
    let child = fork(|| assert_eq!(end_of(&mut open(dir.path()), Peer(0), &address), None));
    assert_eq!(reap(child), 0, "the lock is still held");
}

#[test]
fn a_forked_child_does_not_make_its_dead_parent_look_alive() {
    let dir = directory();
    let words = shared_words();
    let parent = fork(|| {
        let b = open(dir.path());
        put(words, 0, b.address());
        words[20].store(fork(|| sleep_ms(30_000)) as u64, SeqCst);
        sleep_ms(30_000);
    });
    let address = get(words, 0);
    until("the grandchild", || words[20].load(SeqCst) != 0);
    kill(parent);
    reap(parent);
    assert_eq!(end_of(&mut open(dir.path()), Peer(0), &address), Some(PeerFault::Died));
    // SAFETY: a process forked by the child above. Only its parent could reap it.
    unsafe { libc::kill(words[20].load(SeqCst) as i32, libc::SIGKILL) };
}

#[test]
fn a_process_that_exits_without_closing_leaves_no_file() {
    let dir = directory();
    let child = fork(|| {
        std::mem::forget(open(dir.path()));
        // SAFETY: the child's exit, with exit hooks.
        unsafe { libc::exit(0) };
    });
    assert_eq!(reap(child), 0);
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 0);
}

#[test]
fn copies_between_processes_gather_pieces_and_report_bad_addresses() {
    let dir = directory();
    let words = shared_words();
    let mut there: Vec<u8> = (0..3_000_000_u32).map(|i| (i * 7) as u8).collect();
    let address = there.as_mut_ptr() as u64;
    let child = fork(|| {
        let mut b = open(dir.path());
        b.attach(Peer(0), &get(words, 10)).expect("connected");
        put(words, 0, b.address());
        until("the copies", || words[20].load(SeqCst) == 1);
        assert!(there[..100].iter().all(|&byte| byte == 0xee), "put arrived");
    });
    // a knows b only because b has attached.
    let mut a = open(dir.path());
    put(words, 10, a.address());
    get(words, 0);
    accept(&mut a, Peer(0));
    let mut pieces: Vec<Vec<u8>> = (0..3000).map(|_| vec![0; 1000]).collect();
    // SAFETY: the pieces outlive the view.
    let scattered = unsafe { UserMemory::scattered(pieces.iter_mut().map(|p| (p.as_mut_ptr(), p.len()))) };
    copy(&mut a, Peer(0), Direction::Get, address, &scattered, 0, 3_000_000).expect("copied");
    assert_eq!(pieces.concat(), there);
    let mut ee = vec![0xee; 100];
    copy(&mut a, Peer(0), Direction::Put, address, &memory(&mut ee), 0, 100).expect("copied");
    for bad in [0, 8, u64::MAX - 50] {
        let result = copy(&mut a, Peer(0), Direction::Get, bad, &memory(&mut ee), 0, 100);
        assert_eq!(result, Err(CopyFault::BadAddress));
    }
    words[20].store(1, SeqCst);
    assert_eq!(reap(child), 0);
}

#[test]
fn a_forbidden_cross_memory_attach_is_reported() {
    let dir = directory();
    let words = shared_words();
    let mut bytes = [7_u8; 64];
    let address = bytes.as_mut_ptr() as u64;
    let mut b = open(dir.path());
    put(words, 0, b.address());
    let child = fork(|| {
        forbid(&[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev]);
        let mut a = open(dir.path());
        a.attach(Peer(0), &get(words, 0)).expect("connected");
        let mut here = [0; 64];
        for direction in [Direction::Get, Direction::Put] {
            let result = copy(&mut a, Peer(0), direction, address, &memory(&mut here), 0, 64);
            assert_eq!(result, Err(CopyFault::Forbidden));
        }
        send(&mut a, Peer(0), 1, b"by mailbox, then");
    });
    accept(&mut b, Peer(0));
    assert_eq!(receive(&mut b).2, b"by mailbox, then");
    assert_eq!(reap(child), 0);
    let mut a = ShmLink::open(&ShmOptions { cross_memory: false, ..options(dir.path()) }).expect("a mailbox");
    a.attach(Peer(0), &b.address()).expect("connected");
    let result = copy(&mut a, Peer(0), Direction::Get, address, &memory(&mut [0; 8]), 0, 8);
    assert_eq!(result, Err(CopyFault::Forbidden));
}

#[test]
fn no_packet_is_lost_without_membarrier() {
    let dir = directory();
    // Without membarrier are: the receiver from the start, the sender, the receiver later.
    for case in 0..3 {
        let words = shared_words();
        let rounds = 2000;
        let child = fork(|| {
            if case == 0 {
                forbid(&[libc::SYS_membarrier]);
            }
            let mut b = open(dir.path());
            if case == 2 {
                forbid(&[libc::SYS_membarrier]);
            }
            put(words, 0, b.address());
            accept(&mut b, Peer(0));
            let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
            let mut number = 0;
            while number < rounds {
                assert!(std::time::Instant::now() < end);
                match b.poll() {
                    Some(Arrival::Packet { packet, .. }) => {
                        assert_eq!(tag(&packet), number);
                        b.retire();
                        number += 1;
                        words[20].store(number, SeqCst);
                    }
                    _ => b.sleep(5_000_000_000),
                }
            }
        });
        let sender = fork(|| {
            if case == 1 {
                forbid(&[libc::SYS_membarrier]);
            }
            let mut a = open(dir.path());
            a.attach(Peer(0), &get(words, 0)).expect("connected");
            for number in 0..rounds {
                // One at a time, so that the receiver sleeps most of the time.
                until("room", || words[20].load(SeqCst) >= number);
                send(&mut a, Peer(0), number, &[]);
            }
        });
        assert_eq!((reap(child), reap(sender)), (0, 0), "case {case}");
    }
}

/// Makes a mailbox in another process, so that this one may open its file and write to it.
fn with_overwritten_mailbox(overwrite: impl FnOnce(&std::fs::File), reader: impl FnOnce(&mut ShmLink)) {
    with_overwritten_mailbox_then(overwrite, reader, |_, _| ());
}

/// As [`with_overwritten_mailbox`]. `then` gets the sender and the address of the mailbox after `reader` is done.
fn with_overwritten_mailbox_then(
    overwrite: impl FnOnce(&std::fs::File),
    reader: impl FnOnce(&mut ShmLink),
    then: impl FnOnce(&mut ShmLink, &Address),
) {
    let dir = directory();
    let words = shared_words();
    let mut a = None;
    let child = fork(|| {
        let mut b = open(dir.path());
        put(words, 0, b.address());
        accept(&mut b, Peer(3));
        words[20].store(1, SeqCst);
        until("the overwriting", || words[21].load(SeqCst) == 1);
        reader(&mut b);
        words[22].store(1, SeqCst);
        until("the end", || words[23].load(SeqCst) == 1);
    });
    let address = get(words, 0);
    let sender = a.insert(open(dir.path()));
    sender.attach(Peer(0), &address).expect("connected");
    until("the acceptance", || words[20].load(SeqCst) == 1);
    // The segment of another process, so that closing the file here does not release its lock.
    let own = sender.path().expect("a name").to_owned();
    let path =
        std::fs::read_dir(dir.path()).expect("a directory").map(|entry| entry.expect("an entry").path());
    let path = path.into_iter().find(|path| *path != own).expect("the other one");
    let file = std::fs::File::options().read(true).write(true).open(path).expect("a file");
    overwrite(&file);
    words[21].store(1, SeqCst);
    until("the reading", || words[22].load(SeqCst) == 1 || ended(child));
    then(sender, &address);
    words[23].store(1, SeqCst);
    assert_eq!(reap(child), 0);
}

const LANE: u64 = 65536;
const SLOTS: u64 = LANE + 256;

#[test]
fn a_malformed_packet_closes_its_lane() {
    for head in [&[9_u8, 0, 0, 0][..], &[1, 0, 0, 0, 0xff, 1], &[1, 0, 0, 0, VERSION, 99]] {
        with_overwritten_mailbox_then(
            |file| {
                file.write_all_at(&head[4..], SLOTS + 4).expect("written");
                file.write_all_at(&head[..4], SLOTS).expect("written");
            },
            |b| {
                assert!(matches!(wait(b), Arrival::Lost { peer: Peer(3), fault: PeerFault::Malformed }));
                (0..100).for_each(|_| assert!(b.poll().is_none(), "its lane is not read any more"));
            },
            |a, address| {
                let end = end_of(a, Peer(0), address);
                assert_eq!(end, Some(PeerFault::Unreachable), "its sender learns it");
            },
        );
    }
}

#[test]
fn an_overwritten_segment_header_is_rejected() {
    let dir = directory();
    const OVERWRITTEN: [(u64, u8); 11] = [
        (0, 1),
        (8, 200),
        (12, 200),
        (20, 1),
        (56, 0),
        (59, 9),
        (64, 255),
        (71, 77),
        (72, 1),
        (96, b'x'),
        (120, 9),
    ];
    for (at, byte) in OVERWRITTEN {
        let words = shared_words();
        let child = fork(|| {
            let b = open(dir.path());
            put(words, 0, b.address());
            until("the end", || words[20].load(SeqCst) == 1);
        });
        let address = get(words, 0);
        let before: Vec<_> = std::fs::read_dir(dir.path()).expect("a directory").collect();
        let path = before.into_iter().next().expect("a segment").expect("an entry").path();
        let file = std::fs::File::options().write(true).open(path).expect("a file");
        file.write_all_at(&[byte], at).expect("written");
        let mut a = open(dir.path());
        assert_eq!(a.attach(Peer(0), &address), Err(PeerFault::Unreachable), "byte {at}");
        // Versions and the scheme: a receive from this peer does not wait either.
        let is_other = matches!(at, 8 | 96 | 120);
        let is_unreachable = end_of(&mut a, Peer(0), &address) == Some(PeerFault::Unreachable);
        assert_eq!(is_unreachable, is_other, "byte {at}");
        words[20].store(1, SeqCst);
        assert_eq!(reap(child), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Any bytes in lane, bitmap and control words cause no panic, no endless loop, and at most one report for each
    /// lane.
    #[test]
    fn random_bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 1..2000),
        plausible in any::<bool>(),
        header in proptest::collection::vec(any::<u8>(), 0..1200),
    ) {
        with_overwritten_mailbox(
            |file| {
                let mut bytes = bytes;
                if plausible {
                    // Makes slots plausible, so that decoding continues: version, a known kind and flags.
                    for (slot, chunk) in bytes.chunks_mut(64).enumerate() {
                        if let [w0, w1, w2, w3, version, kind, flags0, flags1, ..] = chunk {
                            (*w0, *w1, *w2, *w3) = (slot as u8 + 1, 0, 0, 0);
                            *version = VERSION;
                            let known = Kind::ALL[usize::from(*kind) % Kind::ALL.len()];
                            *kind = known as u8;
                            (*flags0, *flags1) = (*flags0 & known.flags() as u8, 0);
                        }
                        if let Some(high) = chunk.get_mut(26..28) {
                            high.fill(0); // high bytes of the payload length
                        }
                    }
                }
                file.write_all_at(&bytes, SLOTS).expect("written");
                file.write_all_at(&header, 256).expect("written"); // summary, calls, bitmap, lane queue
            },
            |b| {
                let mut bytes = vec![0; 5000];
                let mut malformed = 0;
                for _ in 0..20_000 {
                    match b.poll() {
                        Some(Arrival::Packet { packet, .. }) => {
                            b.copy_payload(&memory(&mut bytes), 0, packet.payload_bytes.into());
                            b.retire();
                        }
                        Some(Arrival::Lost { peer, fault }) => {
                            assert_eq!((peer, fault), (Peer(3), PeerFault::Malformed));
                            malformed += 1;
                        }
                        Some(Arrival::Attached { lane, .. }) => b.accept(lane, Peer(9)),
                        Some(Arrival::DetachRequested { .. }) => panic!("this endpoint holds no lane"),
                        Some(Arrival::Ready { .. } | Arrival::Acknowledged { .. }) => {
                            panic!("this endpoint sends nothing")
                        }
                        None => {}
                    }
                }
                assert!(malformed <= 1);
                b.sleep(1000);
            },
        );
    }
}
