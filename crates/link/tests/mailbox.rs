//! Tests of the shared-memory link through its public interface, with all endpoints in this process.
#![allow(missing_docs)]

mod common;

use common::*;
use weir_link::shm::{SchemeName, ShmLink, ShmOptions};
use weir_link::{Arrival, CopyStatus, FreeSlots, Inspect, LaneReclamation, Link, Quota};
use weir_proto::{Body, CopyFault, Direction, Packet, Peer, PeerFault};

#[test]
fn two_endpoints_exchange_messages_of_every_size() {
    let dir = directory();
    let (mut a, mut b) = (open(dir.path()), open(dir.path()));
    let all = Quota { data_slots: 64, start_slots: 64, credit_slots: 2 };
    assert_eq!(quota(a.attach(Peer(0), &b.address())), all);
    let address = accept(&mut b, Peer(7));
    assert_eq!(address, a.address());
    for length in 0..=4048_usize {
        let bytes: Vec<u8> = (0..length).map(|i| (i * 31 + length) as u8).collect();
        send(&mut a, Peer(0), length as u64, &bytes);
        assert_eq!(receive(&mut b), (Peer(7), length as u64, bytes));
        assert!(b.poll().is_none());
    }
}

#[test]
fn an_endpoint_can_send_to_itself() {
    let dir = directory();
    let mut a = open(dir.path());
    let address = a.address();
    a.attach(Peer(3), &address).expect("connected");
    assert_eq!(accept(&mut a, Peer(3)), address);
    send(&mut a, Peer(3), 5, b"to myself");
    assert_eq!(receive(&mut a), (Peer(3), 5, b"to myself".to_vec()));
    assert_eq!(end_of(&mut a, Peer(3), &address), None);
}

#[test]
fn packets_to_itself_are_received_before_packets_of_others() {
    let dir = directory();
    let (mut a, mut b) = (open(dir.path()), open(dir.path()));
    let address = a.address();
    b.attach(Peer(0), &address).expect("connected");
    assert_eq!(accept(&mut a, Peer(1)), b.address());
    send(&mut b, Peer(0), 0, b"polled from now on");
    receive(&mut a);
    // The first packet to itself, whose lane is not accepted yet ...
    a.attach(Peer(0), &address).expect("connected");
    send(&mut a, Peer(0), 1, b"cause");
    send(&mut b, Peer(0), 2, b"effect");
    assert_eq!(accept(&mut a, Peer(0)), address);
    assert_eq!((receive(&mut a).1, receive(&mut a).1), (1, 2));
    // ... and all later ones, at any point of the round robin.
    for round in 0..20 {
        for number in 0..round % 3 {
            send(&mut b, Peer(0), 100 + number, b"before");
        }
        send(&mut a, Peer(0), 3, b"cause");
        send(&mut a, Peer(0), 4, b"another");
        send(&mut b, Peer(0), 200, b"effect");
        assert_eq!((receive(&mut a).1, receive(&mut a).1), (3, 4));
        for number in 0..round % 3 {
            assert_eq!(receive(&mut a).1, 100 + number);
        }
        assert_eq!(receive(&mut a).1, 200);
    }
    assert!(a.poll().is_none());
}

#[test]
fn packets_wait_until_the_receiver_accepts_the_lane() {
    let dir = directory();
    let (mut a, mut b) = (open(dir.path()), open(dir.path()));
    a.attach(Peer(0), &b.address()).expect("connected");
    send(&mut a, Peer(0), 1, b"early");
    let Some(Arrival::Attached { lane, .. }) = b.poll() else { panic!("no attachment") };
    send(&mut a, Peer(0), 2, b"later");
    assert!(b.poll().is_none());
    b.accept(lane, Peer(0));
    assert_eq!(receive(&mut b), (Peer(0), 1, b"early".to_vec()));
    assert_eq!(receive(&mut b), (Peer(0), 2, b"later".to_vec()));
}

#[test]
fn the_lane_is_full_after_quota_and_credit_packets() {
    let dir = directory();
    let (mut a, mut b) = (open(dir.path()), open(dir.path()));
    a.attach(Peer(0), &b.address()).expect("connected");
    accept(&mut b, Peer(0));
    let credit = Packet { body: Body::Credit, ..eager(0, 0) };
    for _ in 0..10 {
        for number in 0..64 {
            send(&mut a, Peer(0), number, &[number as u8]);
        }
        a.transmit(Peer(0), &credit, None).expect("never busy");
        a.transmit(Peer(0), &credit, None).expect("never busy");
        for number in 0..64 {
            assert_eq!(receive(&mut b), (Peer(0), number, vec![number as u8]));
        }
        for _ in 0..2 {
            assert!(matches!(b.poll(), Some(Arrival::Packet { packet, .. }) if packet == credit));
            b.retire();
        }
        assert!(b.poll().is_none());
    }
}

#[test]
fn senders_without_credits_count_freed_slots() {
    let dir = directory();
    let conditional = ShmOptions { conditional: true, quota_data_slots: 6, ..options(dir.path()) };
    let mut a = ShmLink::open(&conditional).expect("a mailbox");
    let mut b = ShmLink::open(&conditional).expect("a mailbox");
    let all = Quota { data_slots: 8, start_slots: 8, credit_slots: 0 };
    assert_eq!(quota(a.attach(Peer(0), &b.address())), all);
    accept(&mut b, Peer(0));
    assert_eq!((a.newly_free_slots(Peer(0)), a.newly_free_slots(Peer(0))), (8, 0));
    send(&mut a, Peer(0), 1, &[1; 100]); // three slots
    receive(&mut b);
    assert_eq!((a.newly_free_slots(Peer(0)), a.newly_free_slots(Peer(0))), (3, 0));
}

#[test]
fn late_peers_get_lanes_until_all_are_held() {
    let dir = directory();
    let mut b = open(dir.path());
    let empty = b.mailbox_bytes();
    let mut senders = Vec::new();
    for number in 0..16 {
        let mut a = open(dir.path());
        a.attach(Peer(0), &b.address()).expect("a lane");
        accept(&mut b, Peer(number));
        send(&mut a, Peer(0), number.into(), b"hello");
        assert_eq!(receive(&mut b), (Peer(number), number.into(), b"hello".to_vec()));
        assert_eq!(b.mailbox_bytes(), empty + u64::from(number + 1) * 8192, "memory grows with the senders");
        senders.push(a);
    }
    let mut late = open(dir.path());
    assert_eq!(late.attach(Peer(0), &b.address()), Ok(None), "it waits in the queue");
}

/// Polls `owner`, whose mailbox gets no packets, until it asks `link` to detach. Then `link` detaches.
fn detach_when_asked(link: &mut ShmLink, owner: &mut ShmLink) {
    until("a request", || {
        assert!(owner.poll().is_none());
        match link.poll() {
            Some(Arrival::DetachRequested { by }) => {
                detach(link, by);
                true
            }
            None => false,
            other => panic!("expected to be asked: {other:?}"),
        }
    });
}

/// Expects the packet `Detach` and releases the lane.
fn release(link: &mut ShmLink) -> Peer {
    match wait(link) {
        Arrival::Packet { from, packet } => {
            assert_eq!(packet.body, Body::Detach);
            link.retire();
            link.release(from);
            from
        }
        other => panic!("expected a packet: {other:?}"),
    }
}

fn two_lanes(dir: &std::path::Path) -> ShmLink {
    ShmLink::open(&ShmOptions { max_lanes: 2, ..options(dir) }).expect("a mailbox")
}

#[test]
fn more_senders_than_lanes_get_leases_in_order_of_arrival() {
    let dir = directory();
    let mut b = two_lanes(dir.path());
    let mut senders: Vec<ShmLink> = (0..6).map(|_| open(dir.path())).collect();
    let address = b.address();
    let mut epochs = Vec::new();
    for (number, sender) in senders.iter_mut().enumerate().take(2) {
        epochs.push(sender.attach(Peer(0), &address).expect("connected").expect("a lane").epoch);
        accept(&mut b, Peer(number as u32));
        send(sender, Peer(0), number as u64, b"hello");
        receive(&mut b);
    }
    let full = b.mailbox_bytes();
    for sender in &mut senders[2..] {
        assert_eq!(sender.attach(Peer(0), &address), Ok(None));
    }
    // b asks those that have sent something and whose lanes are empty.
    for turn in 2..6_usize {
        detach_when_asked(&mut senders[turn - 2], &mut b);
        assert_eq!(release(&mut b), Peer(turn as u32 - 2));
        for (number, sender) in senders.iter_mut().enumerate().skip(turn + 1) {
            assert_eq!(sender.attach(Peer(0), &address), Ok(None), "{number} overtakes {turn}");
        }
        assert!(senders[turn].attach(Peer(0), &address).expect("connected").is_some(), "{turn} has its turn");
        accept(&mut b, Peer(turn as u32));
        send(&mut senders[turn], Peer(0), turn as u64, b"hello");
        assert_eq!(receive(&mut b), (Peer(turn as u32), turn as u64, b"hello".to_vec()));
        assert!(b.mailbox_bytes() <= full);
    }
    // The first sender attaches again with another lease.
    assert_eq!(senders[0].attach(Peer(0), &address), Ok(None));
    detach_when_asked(&mut senders[4], &mut b);
    release(&mut b);
    let lease = senders[0].attach(Peer(0), &address).expect("connected").expect("a lane");
    assert_ne!(lease.epoch, epochs[0]);
    let Arrival::Attached { lane, lease, address } = wait(&mut b) else { panic!("no attachment") };
    let epoch = lease.epoch;
    assert_eq!((epoch, address), (lease.epoch, senders[0].address()));
    b.accept(lane, Peer(0));
    send(&mut senders[0], Peer(0), 99, b"again");
    assert_eq!(receive(&mut b), (Peer(0), 99, b"again".to_vec()));
}

#[test]
fn leases_of_one_sender_are_read_in_their_order() {
    let dir = directory();
    let mut b = ShmLink::open(&ShmOptions { max_lanes: 3, ..options(dir.path()) }).expect("a mailbox");
    let (mut other, mut a) = (open(dir.path()), open(dir.path()));
    quota(other.attach(Peer(0), &b.address())); // lane 0
    accept(&mut b, Peer(0));
    detach(&mut other, Peer(0));
    quota(a.attach(Peer(0), &b.address())); // lane 1
    send(&mut a, Peer(0), 1, b"hello");
    detach(&mut a, Peer(0));
    accept(&mut b, Peer(1));
    assert!(matches!(wait(&mut b), Arrival::Packet { from: Peer(0), .. }));
    b.retire();
    quota(a.attach(Peer(0), &b.address())); // lane 2
    send(&mut a, Peer(0), 2, b"hello");
    detach(&mut a, Peer(0));
    b.release(Peer(0)); // lane 0 is free
    quota(a.attach(Peer(0), &b.address()));
    send(&mut a, Peer(0), 3, b"hello");
    assert_eq!(receive(&mut b), (Peer(1), 1, b"hello".to_vec()));
    assert_eq!(release(&mut b), Peer(1));
    accept(&mut b, Peer(1));
    assert_eq!(receive(&mut b), (Peer(1), 2, b"hello".to_vec()));
    assert_eq!(release(&mut b), Peer(1));
    accept(&mut b, Peer(1));
    assert_eq!(receive(&mut b), (Peer(1), 3, b"hello".to_vec()));
}

#[test]
fn a_lane_returns_its_memory_when_its_lease_ends() {
    let dir = directory();
    let mut b = open(dir.path());
    let empty = b.mailbox_bytes();
    let mut a = open(dir.path());
    for round in 0..5 {
        a.attach(Peer(0), &b.address()).expect("connected").expect("a lane");
        accept(&mut b, Peer(3));
        (0..60).for_each(|number| send(&mut a, Peer(0), number, &[round; 10]));
        (0..60).for_each(|number| assert_eq!(receive(&mut b), (Peer(3), number, vec![round; 10])));
        assert!(b.mailbox_bytes() > empty);
        detach(&mut a, Peer(0));
        release(&mut b);
        assert_eq!(b.mailbox_bytes(), empty, "round {round}");
        send(&mut a, Peer(0), 0, b"late: goes nowhere");
    }
    assert!(b.poll().is_none());
}

#[test]
fn a_full_lane_has_a_slot_for_detach_and_the_next_lease_keeps_the_order() {
    let dir = directory();
    for conditional in [false, true] {
        let open = || ShmLink::open(&ShmOptions { conditional, ..options(dir.path()) }).expect("a mailbox");
        let (mut a, mut b) = (open(), open());
        for round in 0..3 {
            let quota = quota(a.attach(Peer(0), &b.address()));
            for number in 0..quota.data_slots {
                send(&mut a, Peer(0), number.into(), &[round]);
            }
            (0..quota.credit_slots)
                .for_each(|_| a.transmit(Peer(0), &Packet::new(Body::Credit, 0), None).expect("never busy"));
            detach(&mut a, Peer(0));
            // The next lease begins before b has read anything of this one.
            a.attach(Peer(0), &b.address()).expect("connected").expect("a lane");
            send(&mut a, Peer(0), 1000, &[round]);
            accept(&mut b, Peer(1));
            for number in 0..quota.data_slots {
                assert_eq!(receive(&mut b), (Peer(1), number.into(), vec![round]));
            }
            for _ in 0..quota.credit_slots {
                assert!(
                    matches!(wait(&mut b), Arrival::Packet { packet, .. } if packet.body == Body::Credit)
                );
                b.retire();
            }
            release(&mut b);
            accept(&mut b, Peer(1));
            assert_eq!(receive(&mut b), (Peer(1), 1000, vec![round]));
            detach(&mut a, Peer(0));
            release(&mut b);
        }
    }
}

#[test]
fn idle_senders_are_asked_to_detach_only_above_the_memory_limit() {
    let dir = directory();
    let mut b = open(dir.path());
    let empty = b.mailbox_bytes();
    let mut senders: Vec<ShmLink> = (0..4).map(|_| open(dir.path())).collect();
    for (number, sender) in senders.iter_mut().enumerate() {
        sender.attach(Peer(0), &b.address()).expect("connected");
        accept(&mut b, Peer(number as u32));
    }
    let lane = (b.mailbox_bytes() - empty) / 4;
    let maintain_for_2_s = |b: &mut ShmLink, keep_bytes| {
        for _ in 0..10 {
            b.maintain(keep_bytes);
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    };
    maintain_for_2_s(&mut b, empty + 4 * lane);
    assert!(senders.iter_mut().all(|sender| sender.poll().is_none()), "nobody is asked");
    // The third sender is not idle. Of the others, b asks the two that were idle longest.
    send(&mut senders[2], Peer(0), 1, b"busy");
    receive(&mut b);
    maintain_for_2_s(&mut b, empty + 2 * lane);
    let asked: Vec<bool> = senders.iter_mut().map(|sender| sender.poll().is_some()).collect();
    assert_eq!(asked, [true, true, false, false]);
    (0..2).for_each(|number| detach(&mut senders[number], Peer(0)));
    for _ in 0..2 {
        release(&mut b);
    }
    assert_eq!(b.mailbox_bytes(), empty + 2 * lane);
}

#[test]
fn busy_senders_do_not_starve_others() {
    let dir = directory();
    let peers = 100;
    let many = ShmOptions { max_lanes: 128, ..options(dir.path()) };
    let mut b = ShmLink::open(&many).expect("a mailbox");
    let mut senders: Vec<ShmLink> = (0..peers)
        .map(|number| {
            let mut a = open(dir.path());
            a.attach(Peer(0), &b.address()).expect("a lane");
            accept(&mut b, Peer(number));
            a
        })
        .collect();
    // There are more senders than polled lanes, and all always have packets.
    let mut received = vec![0_u32; peers as usize];
    for sender in &mut senders {
        (0..60).for_each(|number| send(sender, Peer(0), number, &[]));
    }
    for _ in 0..peers * 20 {
        let (Peer(from), number, _) = receive(&mut b);
        assert_eq!(u64::from(received[from as usize]), number, "in order");
        received[from as usize] += 1;
    }
    assert!(received.iter().all(|&count| count >= 10), "{received:?}");
    assert!(b.polled_lanes() <= 64);
    for _ in 0..peers * 40 {
        receive(&mut b);
    }
    // All are idle now. The polled set shrinks, and every sender is still received.
    (0..200_000).for_each(|_| assert!(b.poll().is_none()));
    assert!(b.polled_lanes() <= 8, "{}", b.polled_lanes());
    for (number, sender) in senders.iter_mut().enumerate().rev() {
        send(sender, Peer(0), 99, &[]);
        assert_eq!(receive(&mut b), (Peer(number as u32), 99, vec![]));
    }
}

#[test]
fn addresses_with_a_wrong_key_name_or_version_are_rejected() {
    let dir = directory();
    let (mut a, b) = (open(dir.path()), open(dir.path()));
    for byte in [0, 1, 2, 8, 16, 31, 32, 33, 34, 63] {
        let mut address = b.address();
        address.0[byte] ^= 0x40;
        assert_eq!(a.attach(Peer(0), &address), Err(PeerFault::Unreachable), "byte {byte}");
    }
    let conditional = ShmOptions { max_lanes: 5000, ..options(dir.path()) };
    let error = ShmLink::open(&conditional).expect_err("too many lanes").to_string();
    assert_eq!(error, "cannot make a mailbox: lanes is 5000; allowed: 1 to 4096");
    let missing = dir.path().join("missing");
    let nowhere = ShmOptions { dir: missing.clone(), ..options(dir.path()) };
    let error = ShmLink::open(&nowhere).expect_err("no directory").to_string();
    assert_eq!(
        error,
        format!(
            "cannot create a segment in {}: No such file or directory (os error 2); \
             set FI_WEIR_SHM_DIR to an existing directory that you may write to",
            missing.display()
        )
    );
}

#[test]
fn endpoints_with_different_schemes_do_not_connect() {
    let dir = directory();
    let without_credits = ShmOptions { conditional: true, ..options(dir.path()) };
    let other_credits = ShmOptions { scheme: SchemeName::new("dynamic"), ..options(dir.path()) };
    for other in [without_credits, other_credits] {
        let (mut a, mut b) = (open(dir.path()), ShmLink::open(&other).expect("a mailbox"));
        let (to_a, to_b) = (a.address(), b.address());
        assert_eq!(
            end_of(&mut a, Peer(0), &to_b),
            Some(PeerFault::Unreachable),
            "a receive from it does not wait"
        );
        assert_eq!(a.attach(Peer(0), &to_b), Err(PeerFault::Unreachable));
        assert_eq!(b.attach(Peer(0), &to_a), Err(PeerFault::Unreachable));
        assert!(a.poll().is_none() && b.poll().is_none(), "no lane was taken");
    }
}

#[test]
fn peers_see_a_closed_mailbox_and_may_still_send_to_it() {
    let dir = directory();
    let (mut a, mut b) = (open(dir.path()), open(dir.path()));
    a.attach(Peer(0), &b.address()).expect("connected");
    assert_eq!(end_of(&mut a, Peer(0), &b.address()), None);
    b.close();
    assert_eq!(end_of(&mut a, Peer(0), &b.address()), Some(PeerFault::Closed));
    send(&mut a, Peer(0), 0, b"to a closed mailbox");
    b.close();
    drop(b);
    send(&mut a, Peer(0), 0, b"to a closed mailbox");
    drop(a);
    assert_eq!(
        std::fs::read_dir(dir.path()).expect("a directory").count(),
        0,
        "no segment has a name any more"
    );
}

#[test]
fn the_end_of_a_peer_that_only_attached_is_known() {
    let dir = directory();
    let mut b = open(dir.path());
    let mut a = open(dir.path());
    let address = a.address();
    a.attach(Peer(0), &b.address()).expect("connected");
    accept(&mut b, Peer(7));
    drop(a);
    assert_eq!(end_of(&mut b, Peer(7), &address), Some(PeerFault::Closed));
    // Gone before b accepted its lane: b cannot know whether it closed or died.
    let mut a = open(dir.path());
    let address = a.address();
    a.attach(Peer(0), &b.address()).expect("connected");
    drop(a);
    accept(&mut b, Peer(8));
    assert_eq!(end_of(&mut b, Peer(8), &address), Some(PeerFault::Unreachable));
}

#[test]
fn copies_within_a_process_work_in_both_directions() {
    let dir = directory();
    let (mut a, mut b) = (open(dir.path()), open(dir.path()));
    a.attach(Peer(0), &b.address()).expect("connected");
    accept(&mut b, Peer(1));
    let mut there = vec![5_u8; 1000];
    let mut here = vec![0_u8; 1000];
    let address = there.as_mut_ptr() as u64;
    // b has never connected to a.
    copy(&mut b, Peer(1), Direction::Get, address, &memory(&mut here), 0, 1000).expect("copied");
    assert_eq!(here, there);
    here.fill(9);
    copy(&mut b, Peer(1), Direction::Put, address + 10, &memory(&mut here), 500, 20).expect("copied");
    assert_eq!((there[9], there[10], there[29], there[30]), (5, 9, 9, 5));
    for direction in [Direction::Get, Direction::Put] {
        let nowhere = copy(&mut b, Peer(1), direction, 0, &memory(&mut here), 0, 1000);
        assert_eq!(nowhere, Err(CopyFault::BadAddress), "the address of a scattered buffer");
    }
}

/// The program of a closed endpoint may have reused its memory.
#[test]
fn copies_with_a_closed_peer_fail() {
    let dir = directory();
    let (mut a, mut b) = (open(dir.path()), open(dir.path()));
    a.attach(Peer(0), &b.address()).expect("connected");
    accept(&mut b, Peer(1));
    let (mut there, mut here) = ([5u8; 100], [0u8; 100]);
    let address = there.as_mut_ptr() as u64;
    assert_eq!(
        copy(&mut b, Peer(1), Direction::Get, address, &memory(&mut here), 0, 100),
        Ok(CopyStatus::Done),
        "it is open"
    );
    a.close();
    for direction in [Direction::Get, Direction::Put] {
        let result = copy(&mut b, Peer(1), direction, address, &memory(&mut here), 0, 100);
        assert_eq!(result, Err(CopyFault::Closed), "{direction:?}");
    }
}

#[test]
fn a_second_lane_of_an_address_is_not_read() {
    let dir = directory();
    let (mut a, mut b) = (open(dir.path()), open(dir.path()));
    a.attach(Peer(0), &b.address()).expect("connected");
    accept(&mut b, Peer(7));
    send(&mut a, Peer(0), 1, b"first lane");
    // Under another peer number a has no lane yet, as if it had lost its peer entry.
    a.attach(Peer(1), &b.address()).expect("connected");
    send(&mut a, Peer(1), 2, b"second lane");
    assert_eq!(receive(&mut b), (Peer(7), 1, b"first lane".to_vec()));
    assert!(b.poll().is_none());
    send(&mut a, Peer(0), 3, b"first lane");
    assert_eq!(receive(&mut b), (Peer(7), 3, b"first lane".to_vec()));
    // The same before the first lane is accepted, and after b has forgotten the sender.
    let mut c = open(dir.path());
    c.attach(Peer(0), &b.address()).expect("connected");
    c.attach(Peer(1), &b.address()).expect("connected");
    accept(&mut b, Peer(8));
    assert!(b.poll().is_none());
    b.forget(Peer(8));
    c.attach(Peer(2), &b.address()).expect("connected");
    assert!(b.poll().is_none());
}

#[test]
fn a_forgotten_peer_is_neither_read_nor_written() {
    let dir = directory();
    let (mut a, mut b) = (open(dir.path()), open(dir.path()));
    a.attach(Peer(0), &b.address()).expect("connected");
    b.attach(Peer(4), &a.address()).expect("connected");
    accept(&mut b, Peer(4));
    accept(&mut a, Peer(0));
    b.forget(Peer(4));
    send(&mut a, Peer(0), 1, b"unheard");
    send(&mut b, Peer(4), 1, b"unsaid");
    assert!(b.poll().is_none());
    assert!(a.poll().is_none());
    // A sender that is not read learns this, so that it does not wait for credit for ever.
    assert_eq!(end_of(&mut a, Peer(0), &b.address()), Some(PeerFault::Unreachable));
    let address = b.address();
    drop(b);
    assert_eq!(end_of(&mut a, Peer(0), &address), Some(PeerFault::Closed));
}

#[test]
fn a_sender_that_forgets_its_receiver_is_reported_refused_and_copies_fail() {
    let dir = directory();
    let (mut a, mut b) = (open(dir.path()), open(dir.path()));
    let (to_a, to_b) = (a.address(), b.address());
    a.attach(Peer(0), &to_b).expect("there");
    let Some(Arrival::Attached { lane, .. }) = b.poll() else { panic!("nobody attached") };
    b.accept(lane, Peer(0));
    let (there, mut here) = ([7u8; 100], [0u8; 100]);
    let memory = memory(&mut here);
    let address = there.as_ptr() as u64;
    assert_eq!(copy(&mut b, Peer(0), Direction::Get, address, &memory, 0, 100), Ok(CopyStatus::Done));
    assert_eq!(end_of(&mut b, Peer(0), &to_a), None);
    a.forget(Peer(0));
    assert_eq!(copy(&mut b, Peer(0), Direction::Get, address, &memory, 0, 100), Err(CopyFault::Gone));
    assert_eq!(end_of(&mut b, Peer(0), &to_a), Some(PeerFault::Unreachable)); // although b has never sent anything
    assert_eq!(here, there);
}
