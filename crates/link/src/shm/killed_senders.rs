//! Tests of senders that are killed or stopped after each step of sending, attaching and detaching, in real segments
//! with real signals.

use super::options::for_tests as options;
use super::outbox::SendStep;
use super::{Liveness, ShmLink, ShmOptions};
use crate::memory::UserMemory;
use crate::shm::heap_lane::eager;
use crate::shm::ring::LaneMemory;
use crate::shm::sync::Ordering;
use crate::{Arrival, Inspect, LaneReclamation, Link, WakeUp};
use std::path::Path;
use weir_proto::{Peer, PeerFault};

fn open(dir: &Path) -> ShmLink {
    ShmLink::open(&options(dir)).expect("a mailbox")
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
    link.transmit(Peer(0), &eager(bytes), Some((&memory(&mut payload), 0))).expect("never busy");
}

fn receive(link: &mut ShmLink) -> Option<(Peer, Vec<u8>)> {
    match link.poll()? {
        Arrival::Packet { from, packet } => {
            let mut bytes = vec![0; packet.payload_bytes as usize];
            link.copy_payload(&memory(&mut bytes), 0, packet.payload_bytes.into());
            link.retire();
            Some((from, bytes))
        }
        other => panic!("no packet: {other:?}"),
    }
}

#[test]
fn a_killed_sender_leaves_no_partial_packet_and_is_reported_dead() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    for last in SendStep::ALL {
        for (bytes, earlier) in [(8, 0), (200, 0), (200, 3)] {
            killed_after(dir.path(), last, bytes, earlier, false);
        }
    }
    assert_eq!(
        std::fs::read_dir(dir.path()).expect("a directory").count(),
        0,
        "no dead process leaves a name"
    );
}

#[test]
fn a_sender_killed_at_any_step_of_a_packet_that_wraps_early_delays_nobody() {
    for last in SendStep::ALL {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        killed_after(dir.path(), last, 200, 3, true);
    }
}

/// A victim sends `earlier` packets. If `read_before`, it waits until they are read. Then it sends a packet of
/// `bytes` bytes up to step `last`, and is killed.
fn killed_after(dir: &Path, last: SendStep, bytes: u32, earlier: u8, read_before: bool) {
    let mut reader = open(dir);
    let mut other = open(dir);
    let address = reader.address();
    // SAFETY: the child sends and kills itself. It never returns into the parent's code.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut victim = open(dir);
        if victim.attach(Peer(0), &address).is_ok() {
            (0..earlier).for_each(|mark| send(&mut victim, 60, mark));
            let mut payload = vec![0xdd; bytes as usize];
            if let Some(outbox) = &mut victim.outboxes[0] {
                // After this the next packet wraps early.
                let slots = if read_before { 2 * u64::from(earlier) } else { 0 };
                while outbox.lane().control().retired.0.load(Ordering::Acquire) < slots {
                    std::thread::yield_now();
                }
                outbox.send_until(last, &eager(bytes), Some((&memory(&mut payload), 0)));
            }
        }
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    assert!(child > 0);
    let victim = wait_for("attachment", || match reader.poll() {
        Some(Arrival::Attached { lane, address, .. }) => {
            reader.accept(lane, Peer(1));
            Some(address)
        }
        _ => None,
    });
    for mark in 0..if read_before { earlier } else { 0 } {
        assert_eq!(wait_for("packet", || receive(&mut reader)), (Peer(1), vec![mark; 60]));
    }
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    other.attach(Peer(0), &address).expect("connected");
    wait_for("attachment", || match reader.poll() {
        Some(Arrival::Attached { lane, .. }) => {
            reader.accept(lane, Peer(2));
            Some(())
        }
        Some(Arrival::Packet { from: Peer(1), packet }) => {
            reader.retire();
            assert!(packet.payload_bytes == 60 || last >= SendStep::Publish);
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
                    payload.len() == 60
                        || (last >= SendStep::Publish && payload == vec![0xdd; bytes as usize])
                );
                None
            }
            other => other,
        });
        assert_eq!((from, payload), (Peer(2), vec![mark; 100]));
    }
    assert_eq!(reader.liveness_of(Some(Peer(1)), &victim), Liveness::Dead);
    assert_eq!(reader.liveness_of(Some(Peer(2)), &other.address()), Liveness::Alive);
    let before = reader.mailbox_bytes();
    reader.forget(Peer(1));
    assert_eq!(reader.mailbox_bytes(), before - reader.shape.stride, "the lane returns its memory");
}

#[test]
fn a_stopped_sender_does_not_prevent_another_from_waking_the_reader() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (mut reader, mut stopped, mut other) = (open(dir.path()), open(dir.path()), open(dir.path()));
    for (number, link) in [&mut stopped, &mut other].into_iter().enumerate() {
        link.attach(Peer(0), &reader.address()).expect("connected");
        let Some(Arrival::Attached { lane, .. }) = reader.poll() else { panic!("no attachment") };
        reader.accept(lane, Peer(number as u32));
    }
    for last in SendStep::ALL.into_iter().filter(|&last| last < SendStep::Call) {
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
        assert!(started.elapsed().as_secs() < 5, "stopped after {last:?}: the reader was not woken");
    }
}

/// Steps of attaching at which a newcomer can be killed. From `Placed` on, all lanes of the mailbox are held.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AttachStep {
    /// It has claimed a free lane.
    Claimed,
    /// It has reserved and mapped the lane's memory.
    Mapped,
    /// It has written its address there.
    Named,
    /// It has set the lane ready, but not announced it.
    Ready,
    /// It has a place in the queue, but no ticket.
    Placed,
    /// It has a ticket, but has not called the owner.
    Waiting,
    /// It has called the owner.
    Called,
    /// The owner has assigned a lane to it, and it has not read the answer.
    Answered,
    /// It has read the answer and returned its place.
    Taken,
}

/// Does what a newcomer does, up to `last`.
fn attach_until(link: &mut ShmLink, address: &crate::Address, last: AttachStep) {
    let target = super::layout::SegmentAddress::parse(address).expect("an address");
    let segment = super::segment::PeerSegment::open(&link.locks, &target).expect("a mailbox");
    let (id, header) = (link.own_address.id, segment.header());
    let prepare_lane = |lane, last| {
        let memory = segment.lane(lane).expect("memory");
        if last != AttachStep::Mapped {
            memory.set_owner(&link.own_address.address());
            if last != AttachStep::Named {
                memory.set_state(super::layout::lane_state::READY);
            }
        }
    };
    match last {
        AttachStep::Claimed => drop(segment.claim_lane(id).expect("memory").expect("a lane")),
        AttachStep::Mapped | AttachStep::Named | AttachStep::Ready => {
            prepare_lane(segment.claim_lane(id).expect("memory").expect("a lane"), last);
        }
        AttachStep::Placed => header.lane_queue().enter_halfway(id),
        AttachStep::Waiting => drop(header.lane_queue().enter(id).expect("a place")),
        AttachStep::Called | AttachStep::Answered | AttachStep::Taken => {
            let ticket = header.lane_queue().enter(id).expect("a place");
            header.call_about(super::doorbell::call::NEWCOMER);
            if last != AttachStep::Called {
                wait_for("an answer", || header.lane_queue().assigned_lane(ticket));
                if last == AttachStep::Taken {
                    header.lane_queue().leave(ticket);
                }
            }
        }
    }
}

/// Lets `holder` detach if it is asked to, and frees its lane.
fn detach_if_requested(reader: &mut ShmLink, holder: &mut ShmLink) {
    if let Some(Arrival::DetachRequested { by }) = holder.poll() {
        holder.transmit(by, &weir_proto::Packet::new(weir_proto::Body::Detach, 0), None).expect("never busy");
        holder.disconnect(by);
    }
    match reader.poll() {
        Some(Arrival::Packet { from, packet }) => {
            assert_eq!(packet.body, weir_proto::Body::Detach);
            reader.retire();
            reader.release(from);
        }
        Some(Arrival::Attached { lane, .. }) => reader.accept(lane, Peer(9)),
        Some(Arrival::Lost { peer, fault: PeerFault::Died }) => reader.forget(peer), // as a driver does
        None => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_newcomer_killed_at_any_step_of_attaching_keeps_no_lane() {
    use AttachStep::{Answered, Called, Claimed, Mapped, Named, Placed, Ready, Taken, Waiting};
    for last in [Claimed, Mapped, Named, Ready, Placed, Waiting, Called, Answered, Taken] {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let mut reader =
            ShmLink::open(&ShmOptions { max_lanes: 1, ..options(dir.path()) }).expect("a mailbox");
        let (mut holder, mut late) = (open(dir.path()), open(dir.path()));
        let address = reader.address();
        let empty = reader.mailbox_bytes();
        let full = matches!(last, Placed | Waiting | Called | Answered | Taken);
        if full {
            holder.attach(Peer(0), &address).expect("connected").expect("the lane");
            let Some(Arrival::Attached { lane, .. }) = reader.poll() else { panic!("no attachment") };
            reader.accept(lane, Peer(1));
        }
        // SAFETY: the child attaches and kills itself. It never returns into the parent's code.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut victim = open(dir.path());
            attach_until(&mut victim, &address, last);
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        let mut status = 0;
        wait_for("the victim's end", || {
            detach_if_requested(&mut reader, &mut holder);
            // SAFETY: our own child.
            (unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child).then_some(())
        });
        assert!(libc::WIFSIGNALED(status), "{last:?}: the victim reached this step");
        // Another sender gets the lane after a check or two.
        let mut looked = std::time::Instant::now();
        let lease = wait_for("the lane", || {
            detach_if_requested(&mut reader, &mut holder);
            if looked.elapsed().as_millis() > 20 {
                looked = std::time::Instant::now();
                reader.maintain(u64::MAX);
            }
            late.attach(Peer(0), &address).expect("connected")
        });
        assert_eq!(lease.quota.data_slots, 14, "{last:?}");
        send(&mut late, 8, 7);
        wait_for("its packet", || match reader.poll()? {
            Arrival::Attached { lane, .. } => {
                reader.accept(lane, Peer(2));
                None
            }
            Arrival::Packet { from: Peer(2), .. } => {
                reader.retire();
                Some(())
            }
            other => panic!("{last:?}: {other:?}"),
        });
        assert_eq!(reader.mailbox_bytes(), empty + reader.shape.stride, "{last:?}: one lane");
    }
}

#[test]
fn a_sender_killed_at_any_step_of_detaching_keeps_no_lane() {
    for last in SendStep::ALL {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let mut reader =
            ShmLink::open(&ShmOptions { max_lanes: 1, ..options(dir.path()) }).expect("a mailbox");
        let address = reader.address();
        // SAFETY: as above.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut victim = open(dir.path());
            if matches!(victim.attach(Peer(0), &address), Ok(Some(_))) {
                send(&mut victim, 8, 1);
                if let Some(outbox) = &mut victim.outboxes[0] {
                    outbox.send_until(last, &weir_proto::Packet::new(weir_proto::Body::Detach, 0), None);
                }
            }
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        let mut late = open(dir.path());
        let mut received = 0;
        wait_for("the lane", || {
            match reader.poll() {
                Some(Arrival::Attached { lane, .. }) => reader.accept(lane, Peer(1)),
                Some(Arrival::Packet { from, packet }) => {
                    reader.retire();
                    received += 1;
                    if packet.body == weir_proto::Body::Detach {
                        reader.release(from);
                    }
                }
                None => {
                    reader.maintain(u64::MAX);
                }
                Some(Arrival::Lost { peer, fault: PeerFault::Died }) => reader.forget(peer),
                other => panic!("{other:?}"),
            }
            late.attach(Peer(0), &address).expect("connected")
        });
        assert_eq!(
            received,
            1 + u32::from(last >= SendStep::Publish),
            "{last:?}: packets sent before the death are read"
        );
    }
}
