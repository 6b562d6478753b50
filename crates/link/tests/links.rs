//! Tests of several links in one endpoint, and of bells.
#![allow(missing_docs)]

mod common;

use common::*;
use std::time::{Duration, Instant};
use weir_link::datagram::lossy::{Impairments, Switch};
use weir_link::datagram::{DatagramLink, DatagramOptions};
use weir_link::faulty::Faulty;
use weir_link::links::Links;
use weir_link::local::LocalLink;
use weir_link::memory::OwnedMemory;
use weir_link::shm::{ShmLink, ShmOptions};
use weir_link::{
    ADDRESS_BYTES, Address, Addressing, Arrival, Capabilities, CopyStatus, Link, LinkKind, PeerAccess,
    RemoteCopy,
};
use weir_proto::{Body, Direction, LinkBusy, Packet, Peer, PeerFault};

fn two_links(dir: &std::path::Path) -> Links<ShmLink> {
    let shm = open(dir);
    let local = LocalLink::open(&shm.address(), shm.quota());
    Links::new(shm, vec![Box::new(local)])
}

#[test]
fn delayed_packets_arrive_after_so_many_polls_and_in_order() {
    let dir = directory();
    let mut a = open(dir.path());
    let mut delays = [3, 0, 1, 0].into_iter();
    let delays = Box::new(move |_, _: &Packet| delays.next().expect("four packets"));
    let mut b = Faulty::new(open(dir.path()), Box::new(|_, _| None)).with_delays(delays);
    a.attach(Peer(0), &b.address()).expect("connected");
    let Some(Arrival::Attached { lane, .. }) = b.poll() else { panic!("no attachment") };
    b.accept(lane, Peer(0));
    (0..4).for_each(|number| send(&mut a, Peer(0), number, b"late"));
    let arrived: Vec<Option<u64>> = (0..9)
        .map(|_| match b.poll()? {
            Arrival::Packet { packet, .. } => {
                assert!(b.deadline(Instant::now()).is_some() == matches!(tag(&packet), 0 | 2));
                b.retire();
                Some(tag(&packet))
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(arrived, [Some(0), None, None, None, Some(1), Some(2), None, Some(3), None]);
}

#[test]
fn a_full_mailbox_of_the_local_link_refuses_packets_and_its_owner_wakes_the_sender() {
    let dir = directory();
    let shm = [open(dir.path()), open(dir.path())];
    let [mut a, mut b] = shm.map(|shm| LocalLink::open_with_room(&shm.address(), shm.quota(), 2));
    let (packet, to) = (eager(0, 1), Peer(0));
    a.connect(to, &b.address()).expect("a lane");
    assert_eq!(a.transmit(to, &packet, None), Ok(())); // behind the attachment
    assert_eq!(a.transmit(to, &packet, None), Err(LinkBusy));
    assert!(a.poll().is_none() && !a.may_have_arrivals());
    let owner = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        let Some(Arrival::Attached { lane, .. }) = b.poll() else { panic!("no attachment") };
        b.accept(lane, Peer(0));
        assert!(matches!(b.poll(), Some(Arrival::Packet { from: Peer(0), .. })));
        b.retire();
        assert!(b.poll().is_none(), "what was refused has left no trace");
        b
    });
    let began = Instant::now();
    a.wake_up().expect("something to sleep on").sleep(60_000_000_000);
    assert!(began.elapsed() < Duration::from_secs(30));
    assert!(matches!(a.poll(), Some(Arrival::Ready { peer: Peer(0) })));
    assert!(a.poll().is_none());
    let mut b = owner.join().expect("no panic");
    assert_eq!(a.transmit(to, &packet, None), Ok(()));
    assert!(matches!(b.poll(), Some(Arrival::Packet { from: Peer(0), .. })));
}

#[test]
fn a_bell_ends_the_sleep_before_and_after_it_begins() {
    let dir = directory();
    let mut shm = open(dir.path());
    let mut local = LocalLink::open(&shm.address(), shm.quota());
    let links: [&mut dyn Link; 2] = [&mut shm, &mut local];
    for link in links {
        let bell = link.wake_up().expect("something to sleep on").bell();
        let began = Instant::now();
        bell.ring();
        link.wake_up().expect("as before").sleep(60_000_000_000);
        assert!(link.poll().is_none(), "a ring is no arrival");
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            bell.ring();
        });
        link.wake_up().expect("as before").sleep(60_000_000_000);
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        thread.join().expect("rung");
        assert!(link.poll().is_none());
        let began = Instant::now();
        link.wake_up().expect("as before").sleep(20_000_000);
        assert!(began.elapsed() >= Duration::from_millis(20), "the ring counts once");
    }
}

#[test]
fn the_preferred_common_link_carries_both_directions() {
    let dir = directory();
    let (mut a, mut b, mut c) = (two_links(dir.path()), two_links(dir.path()), open(dir.path()));
    let address = a.address();
    assert!(address.part(LinkKind::SharedMemory).is_some() && address.part(LinkKind::Local).is_some());
    for (number, bytes) in [(0, b.address()), (1, c.address())] {
        let lease = a.connect(Peer(number), &bytes).expect("a lane");
        let expected = if number == 0 { Some(0) } else { None };
        assert_eq!(a.other_link_of(Peer(number)), expected);
        assert_eq!(lease.geometry == weir_link::local::GEOMETRY, number == 0);
        let message = eager(8, u64::from(number));
        a.transmit(Peer(number), &message, Some((&memory(&mut [7; 8]), 0))).expect("not busy");
    }
    let receive = |link: &mut dyn Link, tag: u64| {
        let Some(Arrival::Attached { lane, address: from, .. }) = link.poll() else {
            panic!("no attachment")
        };
        assert_eq!(from, address, "the address has all parts");
        link.accept(lane, Peer(5));
        let Some(Arrival::Packet { from: Peer(5), packet }) = link.poll() else { panic!("no packet") };
        assert_eq!(packet, eager(8, tag));
        let mut bytes = [0; 8];
        link.copy_payload(&memory(&mut bytes), 0, 8);
        link.retire();
        assert_eq!(bytes, [7; 8]);
    };
    receive(&mut b, 0);
    receive(&mut c, 1);
    assert_eq!(b.other_link_of(Peer(5)), Some(0));
    assert!(b.connect(Peer(5), &address).is_some(), "the other direction");
    assert!(matches!(a.poll(), Some(Arrival::Attached { .. })));
}

#[test]
fn a_peer_that_attaches_over_another_link_is_lost() {
    let dir = directory();
    let mut shm = open(dir.path());
    let local = LocalLink::open(&shm.address(), shm.quota());
    let address = local.address();
    shm.introduce(&address);
    let mut b = two_links(dir.path());
    b.connect(Peer(0), &address).expect("a lane");
    assert_eq!(b.other_link_of(Peer(0)), Some(0));
    shm.attach(Peer(0), &b.address()).expect("connected");
    let Some(Arrival::Attached { lane, address: from, .. }) = b.poll() else { panic!("no attachment") };
    assert_eq!(from, address);
    b.accept(lane, Peer(0));
    assert!(matches!(b.poll(), Some(Arrival::Lost { peer: Peer(0), fault: PeerFault::Unreachable })));
}

#[test]
fn an_address_without_a_common_link_is_unreachable() {
    let dir = directory();
    let mut a = two_links(dir.path());
    let nowhere = Address([0; ADDRESS_BYTES]);
    assert!(a.connect(Peer(0), &nowhere).is_none());
    assert!(matches!(a.poll(), Some(Arrival::Lost { peer: Peer(0), fault: PeerFault::Unreachable })));
    a.check_peer(Peer(1), &nowhere);
    assert!(matches!(a.poll(), Some(Arrival::Lost { peer: Peer(1), fault: PeerFault::Unreachable })));
    assert!(a.poll().is_none());
}

#[test]
fn a_detached_sender_of_the_local_link_attaches_again() {
    let dir = directory();
    let (mut a, mut b) = (two_links(dir.path()), two_links(dir.path()));
    let epochs: Vec<u16> = (0..3)
        .map(|_| {
            let lease = a.connect(Peer(0), &b.address()).expect("a lane");
            let Some(Arrival::Attached { lane, .. }) = b.poll() else { panic!("no attachment") };
            b.accept(lane, Peer(0));
            a.transmit(Peer(0), &Packet::new(Body::Detach, 0), None).expect("not busy");
            a.disconnect(Peer(0));
            assert!(matches!(b.poll(), Some(Arrival::Packet { from: Peer(0), .. })));
            b.retire();
            b.release(Peer(0));
            lease.epoch
        })
        .collect();
    assert_eq!(epochs, [0, 1, 2]);
}

/// Shared memory, and a link that reaches also the endpoints of another "host", whose mailboxes have another directory.
fn with_distant_link(dir: &std::path::Path) -> Links<ShmLink> {
    let shm = open(dir);
    let distant = LocalLink::open(&shm.address(), shm.quota());
    let distant = Faulty::new(distant, Box::new(|_, _| None)).with_kind(LinkKind::LastChoice);
    Links::new(shm, vec![Box::new(distant)])
}

#[test]
fn an_endpoint_of_another_host_is_reached_over_another_link_than_shared_memory() {
    let (here, there) = (directory(), directory());
    let (mut a, mut near) = (with_distant_link(here.path()), with_distant_link(here.path()));
    let mut far = with_distant_link(there.path());
    let (a_address, near_address, far_address) = (a.address(), near.address(), far.address());
    a.connect(Peer(0), &near_address).expect("a lane");
    assert_eq!(a.other_link_of(Peer(0)), None, "shared memory");
    a.connect(Peer(1), &far_address).expect("a lane");
    assert_eq!(a.other_link_of(Peer(1)), Some(0), "the link between hosts");
    a.transmit(Peer(1), &eager(0, 3), None).expect("not busy");
    for (link, expected) in [(&mut near, None), (&mut far, Some(0))] {
        let Some(Arrival::Attached { lane, address, .. }) = link.poll() else { panic!("no attachment") };
        assert_eq!(address, a_address);
        link.accept(lane, Peer(5));
        link.connect(Peer(5), &a_address).expect("a lane");
        assert_eq!(link.other_link_of(Peer(5)), expected, "the same link in the other direction");
    }
    let Some(Arrival::Packet { from: Peer(5), packet }) = far.poll() else { panic!("no packet") };
    assert_eq!(tag(&packet), 3);
    far.retire();
    a.check_peer(Peer(1), &far_address);
    drop(far);
    a.check_peer(Peer(1), &far_address);
    let lost = std::iter::from_fn(|| a.poll()).find(|arrival| matches!(arrival, Arrival::Lost { .. }));
    assert!(matches!(lost, Some(Arrival::Lost { peer: Peer(1), fault: PeerFault::Closed })), "{lost:?}");
}

#[test]
fn a_copy_over_another_link_shows_that_it_moves() {
    let (here, there) = (directory(), directory());
    let switch = Switch::new(1, Impairments { look_ns: 1_000, ..Impairments::default() });
    let open = |dir: &std::path::Path, port| {
        let shm = open(dir);
        let options = DatagramOptions::new(shm.quota());
        let datagrams = DatagramLink::open(&shm.address(), switch.open(port), options);
        Links::new(shm, vec![Box::new(datagrams)])
    };
    let mut ends = [open(here.path(), 1), open(there.path(), 101)];
    let addresses = [ends[1].address(), ends[0].address()];
    let poll = |end: &mut Links<ShmLink>| {
        if let Some(Arrival::Attached { lane, .. }) = end.poll() {
            end.accept(lane, Peer(0));
        }
    };
    while ends.iter_mut().zip(&addresses).any(|(end, to)| end.connect(Peer(0), to).is_none()) {
        ends.iter_mut().for_each(poll);
    }
    // It outlives the endpoints, also if an assertion fails.
    let [source, target] = [7, 0].map(|byte| {
        let memory = Box::leak(Box::new(OwnedMemory::new(500_000))).view();
        memory.write(0, &vec![byte; 500_000]);
        memory
    });
    let [owner, reader] = &mut ends;
    let remote_memory = owner.remote_memory().expect("remote memory");
    let domain = remote_memory.attributes(Peer(0)).expect("a link with remote memory").domain;
    let access = PeerAccess { read: true, write: false };
    let offered = remote_memory.register(domain, &source, access).expect("offered");
    let (remote, bytes) = (offered.remote, 500_000);
    let copy = RemoteCopy { context: 3, peer: Peer(0), direction: Direction::Get, remote, offset: 0, bytes };
    let reading = reader.remote_memory().expect("remote memory");
    assert_eq!(reading.start(&copy, &target, None), Ok(CopyStatus::Pending));
    let mut moved = 0;
    let result = loop {
        poll(owner);
        poll(reader);
        let reading = reader.remote_memory().expect("remote memory");
        moved += usize::from(reading.has_moved());
        assert!(!reading.has_moved(), "nothing since the question before");
        if let Some(result) = reading.next_result() {
            break result;
        }
    };
    assert_eq!(result, (3, Ok(())));
    assert!(moved > 1, "{moved}");
    owner.remote_memory().expect("remote memory").deregister(&offered);
}

#[test]
fn an_endpoint_with_another_directory_is_unreachable_over_shared_memory() {
    let (here, there) = (directory(), directory());
    let (mut a, b) = (open(here.path()), open(there.path()));
    assert!(!a.reaches(&b.address()) && a.reaches(&open(here.path()).address()));
    assert!(Link::connect(&mut a, Peer(0), &b.address()).is_none());
    assert!(matches!(a.poll(), Some(Arrival::Lost { peer: Peer(0), fault: PeerFault::Unreachable })));
    a.check_peer(Peer(1), &b.address());
    assert!(matches!(a.poll(), Some(Arrival::Lost { peer: Peer(1), fault: PeerFault::Unreachable })));
}

#[test]
fn a_private_mailbox_is_reached_by_its_endpoint_alone() {
    let dir = directory();
    let mut alone =
        ShmLink::open(&ShmOptions { is_private: true, ..options(dir.path()) }).expect("a mailbox");
    let other = open(dir.path());
    assert!(!alone.reaches(&other.address()) && !other.reaches(&alone.address()));
    let own = alone.address();
    assert!(alone.reaches(&own));
    alone.attach(Peer(0), &own).expect("connected");
}

#[test]
fn a_packet_over_another_link_is_found_while_the_first_is_busy() {
    let (dir, other_dir) = (directory(), directory());
    let (mut a, mut b, mut c) = (two_links(dir.path()), two_links(dir.path()), two_links(other_dir.path()));
    let mut shm = open(dir.path());
    for (peer, sender) in [(1, &mut b), (2, &mut c)] {
        sender.connect(Peer(0), &a.address()).expect("a lane in the process");
        let Some(Arrival::Attached { lane, .. }) = std::iter::repeat_with(|| a.poll()).flatten().next()
        else {
            panic!("no attachment")
        };
        a.accept(lane, Peer(peer));
    }
    shm.connect(Peer(0), &a.address()).expect("a lane in shared memory");
    let mut found = 0;
    for round in 0..1000 {
        send(&mut shm, Peer(0), round, b"busy");
        if round == 500 {
            assert_eq!(b.transmit(Peer(0), &eager(7, 1), None), Ok(()));
        }
        while let Some(arrival) = a.poll() {
            match arrival {
                Arrival::Attached { lane, .. } => a.accept(lane, Peer(3)),
                Arrival::Packet { from, .. } => {
                    found += u32::from(from == Peer(1));
                    a.retire();
                }
                other => panic!("{other:?}"),
            }
        }
        std::thread::sleep(Duration::from_micros(20));
    }
    assert_eq!(found, 1);
}
