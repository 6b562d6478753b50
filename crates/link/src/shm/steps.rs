//! Senders killed after each step of sending, in real segments and with real signals.

use super::outbox::Step;
use super::{ShmLink, ShmOptions};
use crate::memory::UserMemory;
use crate::shm::heap::eager;
use crate::{Arrival, Link, Liveness};
use std::path::Path;
use weir_proto::Peer;

fn open(dir: &Path) -> ShmLink {
    ShmLink::open(&ShmOptions {
        dir: dir.to_owned(),
        quota_data_slots: 14,
        quota_rest_lanes: 0,
        start_slots: 0,
        credit_slots: 2,
        max_lanes: 64,
        cross_memory: true,
        full_fences: false,
        conditional: false,
    })
    .expect("a mailbox")
}

fn memory(bytes: &mut [u8]) -> UserMemory {
    // SAFETY: the tests keep the bytes longer than the view.
    unsafe { UserMemory::contiguous(bytes.as_mut_ptr(), bytes.len()) }
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(std::time::Instant::now() < end, "{what}: not within 20 s");
        std::thread::yield_now();
    }
}

fn send(link: &mut ShmLink, bytes: u32, mark: u8) {
    let mut payload = vec![mark; bytes as usize];
    link.transmit(Peer(0), &eager(bytes), Some((&memory(&mut payload), 0)));
}

fn receive(link: &mut ShmLink) -> Option<(Peer, Vec<u8>)> {
    match link.poll()? {
        Arrival::Packet { from, packet } => {
            let mut bytes = vec![0; packet.payload_bytes as usize];
            link.take(&memory(&mut bytes), 0, packet.payload_bytes.into());
            link.retire();
            Some((from, bytes))
        }
        other => panic!("no packet: {other:?}"),
    }
}

#[test]
fn a_killed_sender_leaves_no_half_packet_and_is_found_dead() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    for last in Step::ALL {
        for (bytes, earlier) in [(8, 0), (200, 0), (200, 3)] {
            killed_after(dir.path(), last, bytes, earlier);
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 0, "names of the dead are gone");
}

/// The victim sends `earlier` packets, then one of `bytes` bytes up to step `last`, and is killed.
fn killed_after(dir: &Path, last: Step, bytes: u32, earlier: u8) {
    let mut reader = open(dir);
    let mut other = open(dir);
    let address = reader.address();
    // SAFETY: the child sends and kills itself; it returns to nothing of the parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut victim = open(dir);
        if victim.connect(Peer(0), &address).is_ok() {
            (0..earlier).for_each(|mark| send(&mut victim, 60, mark));
            let mut payload = vec![0xdd; bytes as usize];
            if let Some(outbox) = &mut victim.outboxes[0] {
                outbox.send_until(last, &eager(bytes), Some((&memory(&mut payload), 0)));
            }
        }
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    assert!(child > 0);
    let victim = wait_for("attachment", || match reader.poll() {
        Some(Arrival::Attached { lane, address, .. }) => {
            reader.admit(lane, Peer(1));
            Some(address)
        }
        _ => None,
    });
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    other.connect(Peer(0), &address).expect("connected");
    wait_for("attachment", || match reader.poll() {
        Some(Arrival::Attached { lane, .. }) => {
            reader.admit(lane, Peer(2));
            Some(())
        }
        Some(Arrival::Packet { from: Peer(1), packet }) => {
            reader.retire();
            assert!(packet.payload_bytes == 60 || last >= Step::Publish);
            None
        }
        Some(other) => panic!("{other:?}"),
        None => None,
    });
    for mark in 0..100 {
        send(&mut other, 100, mark);
        let (from, payload) = wait_for("packet", || match receive(&mut reader) {
            Some((Peer(1), payload)) => {
                assert!(
                    payload.len() == 60 || (last >= Step::Publish && payload == vec![0xdd; bytes as usize])
                );
                None
            }
            other => other,
        });
        assert_eq!((from, payload), (Peer(2), vec![mark; 100]));
    }
    assert_eq!(reader.liveness(&victim), Liveness::Dead);
    assert_eq!(reader.liveness(&other.address()), Liveness::Alive);
    let before = reader.mailbox_bytes();
    reader.forget(Peer(1));
    assert_eq!(reader.mailbox_bytes(), before - reader.shape.stride, "its memory is given back");
}

#[test]
fn a_stopped_sender_does_not_keep_the_sleeper_from_waking_for_another() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (mut reader, mut stopped, mut other) = (open(dir.path()), open(dir.path()), open(dir.path()));
    for (number, link) in [&mut stopped, &mut other].into_iter().enumerate() {
        link.connect(Peer(0), &reader.address()).expect("connected");
        let Some(Arrival::Attached { lane, .. }) = reader.poll() else { panic!("no attachment") };
        reader.admit(lane, Peer(number as u32));
    }
    for last in Step::ALL.into_iter().filter(|&last| last < Step::Call) {
        let started = std::time::Instant::now();
        let (r, s, o) = (&mut reader, &mut stopped, &mut other);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(move || {
                loop {
                    r.sleep(10_000_000_000);
                    while let Some((from, _)) = receive(r) {
                        if from == Peer(1) {
                            return;
                        }
                    }
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            if let Some(outbox) = &mut s.outboxes[0] {
                outbox.send_until(last, &eager(0), None);
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
            send(o, 8, 1);
            sleeper.join().expect("no panic");
        });
        assert!(started.elapsed().as_secs() < 5, "stopped after {last:?}: slept on");
    }
}
