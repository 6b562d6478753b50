//! Tests of the queues of a proxy whose owners and servers are killed, or stopped and resumed late, before each of their
//! accesses to shared memory: with forked processes, real signals and real segments.

use super::ShmLink;
use super::counted_word::before_access;
use super::forked_victim::{Victim, killed_before};
use super::node_segment::NodeSegment;
use super::node_segment::tests::{key, open};
use super::proxy_queues::{ProxyQueues, SERVER_HOLD_NS};
use std::path::Path;
use std::sync::mpsc;
use weir_proto::Instant;

const NOW: Instant = Instant(7 * SERVER_HOLD_NS);
/// When the token of a server that has not renewed it since [`NOW`] is void.
const LATER: Instant = Instant(8 * SERVER_HOLD_NS);
const DOMAIN: u64 = 5;

/// An endpoint with a queue.
struct Member {
    queues: ProxyQueues,
    node: NodeSegment,
    _mailbox: ShmLink,
}

impl Member {
    fn open(dir: &Path) -> Member {
        let mailbox = open(dir);
        let node = NodeSegment::join(&mailbox, key()).expect("joined");
        let queues = queues_of(&node, DOMAIN);
        Member { queues, node, _mailbox: mailbox }
    }
}

fn queues_of(node: &NodeSegment, domain: u64) -> ProxyQueues {
    ProxyQueues::open(&node.handle(), 1, domain).expect("memory").expect("a queue")
}

/// The datagram with this number, and the part of the address beside it.
fn datagram(number: u8) -> ([u8; 3], [u8; 16]) {
    ([number; 3], [number; 16])
}

fn put(queues: &ProxyQueues, number: u8) {
    let (part, datagram) = datagram(number);
    assert!(queues.has_room(part.len(), datagram.len()));
    queues.put(&part, &datagram);
}

/// Takes all that this endpoint may take, and passes on the number of each datagram, which is whole.
fn take_all(queues: &ProxyQueues, mut send: impl FnMut(u8)) {
    for queue in queues.served() {
        while let Some(first) = queues.first(queue) {
            let (mut found_part, mut found) = (Vec::new(), Vec::new());
            first.append_part(&mut found_part);
            first.append_datagram(&mut found);
            if !first.take() {
                break;
            }
            let number = found[0];
            let (part, datagram) = datagram(number);
            assert_eq!((&found_part[..], &found[..]), (&part[..], &datagram[..]), "a mixture");
            send(number);
        }
    }
}

/// What a victim notes beside the numbers of the datagrams that it sends: that it has added one.
const ADDED: u8 = 100;

/// A child opens the queue of `node`, adds datagrams 11 and 12, serves, adds 13 and leaves. It is killed before its access with this
/// number.
fn victim(node: &NodeSegment, access: u32) -> Victim {
    killed_before(access, |notes| {
        let queues = queues_of(node, DOMAIN);
        let add = |number| {
            put(&queues, number);
            notes.add(ADDED + number);
        };
        add(11);
        add(12);
        if queues.try_serve(NOW) {
            take_all(&queues, |number| notes.add(number));
            queues.stop_serving();
        }
        add(13);
        take_all(&queues, |number| notes.add(number));
        queues.leave();
    })
}

#[test]
fn an_endpoint_killed_before_any_access_to_queues_loses_one_datagram_at_most_and_delays_nobody() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let [other, entry] = [(); 2].map(|()| Member::open(dir.path()));
    entry.queues.leave(); // the victims use its entry, one after the other
    for access in 0.. {
        put(&other.queues, 1);
        put(&other.queues, 2);
        let Victim { notes, has_ended } = victim(&entry.node, access);
        assert!(other.queues.try_serve(LATER), "{access}: the token of the dead is void");
        let mut sent: Vec<u8> = notes.iter().copied().filter(|&note| note < ADDED).collect();
        take_all(&other.queues, |number| sent.push(number));
        assert!(!other.queues.stop_serving(), "{access}: no queue is stuck");
        // Each leaves once, and those of a queue in order. One that is being added may leave or not.
        for queue in [[1, 2].as_slice(), &[11, 12, 13]] {
            let of_queue: Vec<u8> = sent.iter().copied().filter(|number| queue.contains(number)).collect();
            assert!(of_queue.is_sorted_by(|a, b| a < b), "{access}: {sent:?}, {notes:?}");
        }
        let added = notes.iter().filter_map(|note| note.checked_sub(ADDED)).chain([1, 2]);
        let lost: Vec<u8> = added.filter(|number| !sent.contains(number)).collect();
        assert!(lost.len() <= usize::from(!has_ended), "{access}: {lost:?} of {notes:?}");
        // Its queue is used again, as if it were new.
        let next = queues_of(&entry.node, DOMAIN);
        assert!(next.is_empty() && next.has_room(0, 60 << 10), "{access}");
        put(&next, 21);
        assert!(other.queues.try_serve(LATER));
        let mut sent = Vec::new();
        take_all(&other.queues, |number| sent.push(number));
        other.queues.stop_serving();
        assert_eq!(sent, [21], "{access}");
        if has_ended {
            assert!(access > 60, "the victim has {access} accesses");
            return;
        }
    }
}

/// A server is stopped before one of its accesses. Meanwhile another one takes over and sends all, an owner adds more, and
/// an owner of another network has the entry of one that is gone. Then the first server is resumed.
#[test]
fn a_server_that_is_stopped_before_any_access_and_resumed_late_takes_nothing_that_another_has_taken() {
    for access in 0.. {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let [other, late, gone] = [(); 3].map(|()| Member::open(dir.path()));
        for (member, numbers) in [(&other, [1, 2]), (&late, [11, 12]), (&gone, [21, 22])] {
            numbers.iter().for_each(|&number| put(&member.queues, number));
        }
        let (stopped, is_stopped) = mpsc::channel();
        let (resume, resumed) = mpsc::channel::<()>();
        let server = std::thread::spawn(move || {
            let ended = stopped.clone();
            before_access(access, move || {
                stopped.send(true).expect("the test waits");
                resumed.recv().expect("the test resumes it");
            });
            let mut sent = Vec::new();
            if late.queues.try_serve(NOW) {
                take_all(&late.queues, |number| sent.push(number));
                late.queues.stop_serving();
            }
            ended.send(false).expect("the test waits");
            (sent, late)
        });
        let was_stopped = is_stopped.recv().expect("it stops or ends");
        assert!(other.queues.try_serve(LATER), "{access}");
        let mut sent = Vec::new();
        take_all(&other.queues, |number| sent.push(number));
        put(&other.queues, 3);
        // The new owner reaches other places than the servers.
        let stranger = queues_of(&gone.node, DOMAIN + 1);
        put(&stranger, 99);
        if was_stopped {
            resume.send(()).expect("it waits");
        }
        let (late_sent, late) = server.join().expect("no panic");
        let serves_twice = late.queues.try_serve(LATER);
        assert!(!serves_twice, "{access}: the late server does not give back the token of another");
        sent.extend(late_sent);
        take_all(&other.queues, |number| sent.push(number));
        sent.sort_unstable();
        assert_eq!(sent, [1, 2, 3, 11, 12, 21, 22], "{access}: each once");
        let mut of_stranger = Vec::new();
        take_all(&stranger, |number| of_stranger.push(number));
        assert_eq!(of_stranger, [99], "{access}");
        if !was_stopped {
            assert!(access > 40, "the server has {access} accesses");
            return;
        }
    }
}
