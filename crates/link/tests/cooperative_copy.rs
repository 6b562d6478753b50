//! Tests of copies that two processes make together.
#![allow(missing_docs)]

mod common;

use common::*;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use weir_link::shm::ShmLink;
use weir_link::{ADDRESS_BYTES, Address, CopyStatus, Link, RemoteMemory};
use weir_proto::{CopyFault, Direction, Peer};

const BYTES: usize = 4 << 20;
/// Words that the processes share: 0 to 4 are the receiver's address.
const READY: usize = 10;
const STOP: usize = 11;
const HELPED: usize = 12;

type Words = [AtomicU64; 64];

fn put(words: &Words, address: Address) {
    for (word, part) in words[1..].iter().zip(address.0.chunks_exact(8)) {
        word.store(u64::from_ne_bytes(part.try_into().expect("8 bytes")), SeqCst);
    }
    words[0].store(1, SeqCst);
}

fn get(words: &Words) -> Address {
    until("an address", || words[0].load(SeqCst) == 1);
    let mut address = Address([0; ADDRESS_BYTES]);
    for (word, part) in words[1..].iter().zip(address.0.chunks_exact_mut(8)) {
        part.copy_from_slice(&word.load(SeqCst).to_ne_bytes());
    }
    address
}

fn payload(round: u8) -> Vec<u8> {
    (0..BYTES).map(|at| (at / 4096) as u8 ^ (at as u8).wrapping_mul(31) ^ round).collect()
}

/// Opens a receiver here, and a sender in a forked child. The child runs `work` with its link once it is connected.
fn pair(words: &'static Words, work: impl FnOnce(&mut ShmLink)) -> (tempfile::TempDir, ShmLink, i32) {
    let dir = directory();
    let mut receiver = open(dir.path());
    put(words, receiver.address());
    let child = fork(|| {
        let mut sender = open(dir.path());
        sender.attach(Peer(0), &get(words)).expect("connected");
        words[READY].store(1, SeqCst);
        work(&mut sender);
    });
    accept(&mut receiver, Peer(0));
    until("the sender", || words[READY].load(SeqCst) == 1);
    (dir, receiver, child)
}

fn help_until_stopped(sender: &mut ShmLink, words: &Words) {
    until("the end", || {
        words[HELPED].fetch_add(sender.help_copy(Peer(0)).into(), SeqCst);
        words[STOP].load(SeqCst) == 1
    });
}

fn finish(receiver: &mut ShmLink, copied: Result<CopyStatus, CopyFault>) -> Result<(), CopyFault> {
    match copied? {
        CopyStatus::Done => Ok(()),
        CopyStatus::Pending => {
            let mut result = None;
            until("the copy", || {
                result = receiver.next_result();
                result.is_some()
            });
            let (context, result) = result.expect("ended");
            assert_eq!(context, 7, "the result names the copy");
            result
        }
        CopyStatus::Busy => panic!("shared memory is never busy"),
    }
}

#[test]
fn a_cooperative_copy_transfers_every_byte() {
    let words = shared_words();
    let mut there = payload(1);
    let address = there.as_mut_ptr() as u64;
    let (_dir, mut receiver, child) = pair(words, |sender| help_until_stopped(sender, words));
    // Whether the sender helps depends on timing. The loop ends only after it has helped.
    let mut rounds = 0;
    while rounds < 20 || words[HELPED].load(SeqCst) == 0 {
        let mut here = vec![0; BYTES + 100];
        let bytes = BYTES as u64 - rounds % 7;
        let copied = copy(&mut receiver, Peer(0), Direction::Get, address, &memory(&mut here), 100, bytes);
        assert_eq!(finish(&mut receiver, copied), Ok(()));
        assert!(here[100..100 + bytes as usize] == there[..bytes as usize], "round {rounds}");
        assert!(
            here[..100].iter().chain(&here[100 + bytes as usize..]).all(|&byte| byte == 0),
            "bytes outside the range are unchanged"
        );
        rounds += 1;
        assert!(rounds < 5000, "the sender never helped");
    }
    words[STOP].store(1, SeqCst);
    assert_eq!(reap(child), 0);
}

#[test]
fn the_receiver_does_not_wait_for_a_sender_that_does_not_help() {
    let words = shared_words();
    let mut there = payload(2);
    let address = there.as_mut_ptr() as u64;
    let (_dir, mut receiver, child) = pair(words, |_| until("the end", || words[STOP].load(SeqCst) == 1));
    let mut here = vec![0; BYTES];
    let copied = copy(&mut receiver, Peer(0), Direction::Get, address, &memory(&mut here), 0, BYTES as u64);
    assert_eq!(copied, Ok(CopyStatus::Done));
    assert!(here == there);
    words[STOP].store(1, SeqCst);
    assert_eq!(reap(child), 0);
}

#[test]
fn the_receiver_reads_the_pieces_that_the_helper_may_not_write() {
    let words = shared_words();
    let mut there = payload(3);
    let address = there.as_mut_ptr() as u64;
    let (_dir, mut receiver, child) = pair(words, |sender| {
        forbid(&[libc::SYS_process_vm_writev]);
        help_until_stopped(sender, words);
    });
    let mut rounds = 0;
    while words[HELPED].load(SeqCst) == 0 {
        let mut here = vec![0; BYTES];
        let copied =
            copy(&mut receiver, Peer(0), Direction::Get, address, &memory(&mut here), 0, BYTES as u64);
        assert_eq!(finish(&mut receiver, copied), Ok(()));
        assert!(here == there);
        rounds += 1;
        assert!(rounds < 5000, "the sender never tried to help");
    }
    words[STOP].store(1, SeqCst);
    assert_eq!(reap(child), 0);
}

#[test]
fn a_bad_address_fails_the_copy_on_either_side() {
    let words = shared_words();
    let (_dir, mut receiver, child) = pair(words, |sender| help_until_stopped(sender, words));
    let mut here = vec![0; BYTES];
    for _ in 0..50 {
        let copied = copy(&mut receiver, Peer(0), Direction::Get, 8, &memory(&mut here), 0, BYTES as u64);
        assert_eq!(finish(&mut receiver, copied), Err(CopyFault::BadAddress));
    }
    words[STOP].store(1, SeqCst);
    assert_eq!(reap(child), 0);
}

#[test]
fn the_copy_ends_when_the_helper_dies_or_is_forgotten() {
    let words = shared_words();
    let mut there = payload(4);
    let address = there.as_mut_ptr() as u64;
    let (_dir, mut receiver, child) = pair(words, |sender| help_until_stopped(sender, words));
    let copies = 40;
    for round in 0..copies {
        let mut here = vec![0; BYTES];
        if round == copies / 2 {
            kill(child);
        }
        match copy(&mut receiver, Peer(0), Direction::Get, address, &memory(&mut here), 0, BYTES as u64) {
            Ok(CopyStatus::Done) => assert!(here == there),
            // The sender died with pieces. The engine would notice this and forget the peer.
            Ok(CopyStatus::Pending) if round >= copies / 2 => break,
            Ok(CopyStatus::Pending) => assert_eq!(finish(&mut receiver, Ok(CopyStatus::Pending)), Ok(())),
            Ok(CopyStatus::Busy) => panic!("shared memory is never busy"),
            Err(fault) => {
                assert!(round >= copies / 2 && fault == CopyFault::Gone, "{fault:?}");
                break;
            }
        }
    }
    reap(child);
    receiver.forget(Peer(0));
    assert_eq!(receiver.next_result(), None, "a forgotten peer has no results");
}
