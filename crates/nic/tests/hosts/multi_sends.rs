//! Multi-sends.

use crate::{SECRET, at, counter, hosts, patience};
use std::net::{SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};
use weir_nic::format::{MAX_VECTOR_WORDS, Packet, Way, kind};
use weir_nic::pretended::{Network, address};
use weir_nic::{Domain, Inbox, Membership, MultiSend, NicError, Patience};

const PLACE: u64 = 100;

/// A sender on host 0 and a receiver on each other host.
fn sender_and_receivers(
    network: &Network,
    members: &[Membership],
    patience: Patience,
) -> (MultiSend, Vec<Inbox>) {
    let receivers: Vec<SocketAddrV4> = (1..members.len()).map(at).collect();
    let inbox = |(number, host): (u32, usize)| {
        network.at(host, || members[host].inbox(at(0), number, PLACE, Patience::default()).unwrap())
    };
    let inboxes = (0..).zip(1..members.len()).map(inbox).collect();
    (network.at(0, || members[0].multi_send(&receivers, PLACE, patience).unwrap()), inboxes)
}

fn members(network: &Network, count: usize) -> Vec<Membership> {
    (0..count).map(|host| network.join(host, &SECRET).unwrap()).collect()
}

fn message(number: u64) -> Vec<u64> {
    (0..[1, 2, 9, MAX_VECTOR_WORDS as u64][number as usize % 4]).map(|at| number << 32 | at).collect()
}

#[test]
fn one_frame_of_the_sender_reaches_the_memory_of_all_receivers() {
    for receivers in [1, 2, 5, 9] {
        let Some(network) = hosts(receivers + 1) else { return };
        let members = members(&network, receivers + 1);
        let (mut sender, mut inboxes) = sender_and_receivers(&network, &members, Patience::default());
        for number in 0..40 {
            sender.send(&message(number)).unwrap();
            for inbox in &mut inboxes {
                assert_eq!(inbox.receive().unwrap(), message(number));
                assert_eq!(inbox.try_receive(), None);
            }
        }
        let of_host = |name, host| counter(&network, host, name);
        // One frame left the process for each message, and came back from one host.
        assert_eq!((of_host("releases", 0), of_host("relayed", 1)), (40, 40));
        assert_eq!(of_host("acknowledged", 0), 40 * receivers as u64);
    }
}

#[test]
fn messages_reach_all_receivers_once_although_frames_are_lost() {
    let Some(network) = hosts(4) else { return };
    let members = members(&network, 4);
    let (mut sender, mut inboxes) = sender_and_receivers(&network, &members, Patience::default());
    if let Err(why) = network.lose(150) {
        eprintln!("skipped: nft: {why}");
        return;
    }
    std::thread::scope(|scope| {
        for inbox in &mut inboxes {
            scope.spawn(|| {
                for number in 0..60 {
                    assert_eq!(inbox.receive().unwrap(), message(number));
                }
            });
        }
        (0..60).for_each(|number| sender.send(&message(number)).unwrap());
    });
    let duplicates: u64 = (1..4).map(|host| counter(&network, host, "duplicates")).sum();
    assert!(duplicates > 0, "acknowledgements were lost, and so messages came twice");
}

#[test]
fn a_receiver_that_takes_nothing_has_room_for_two_messages() {
    let Some(network) = hosts(3) else { return };
    let members = members(&network, 3);
    let (mut sender, mut inboxes) = sender_and_receivers(&network, &members, patience(300));
    let (mut slow, mut quick) = (inboxes.remove(0), inboxes.remove(0));
    for number in 0..2 {
        sender.send(&message(number)).unwrap();
        assert_eq!(quick.receive().unwrap(), message(number));
    }
    sender.start(&message(2)).unwrap();
    for _ in 0..20 {
        assert!(!sender.test().unwrap(), "the first receiver has no room");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(slow.receive().unwrap(), message(0));
    sender.wait().unwrap();
    assert_eq!([slow.receive().unwrap(), slow.receive().unwrap()], [message(1), message(2)]);
    // The second receiver has got it once.
    assert_eq!((quick.receive().unwrap(), quick.try_receive()), (message(2), None));
}

/// Waits for what programs do soon.
fn eventually(done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(10), "it has not happened");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a datagram to the programs of host 0, from host 1.
fn inject(network: &Network, bytes: &[u8]) {
    network.at(1, || {
        let socket = UdpSocket::bind((address(1), 0)).unwrap();
        socket.send_to(bytes, at(0)).unwrap();
    });
}

#[test]
fn only_the_acknowledgement_of_the_same_copy_is_counted() {
    let Some(network) = hosts(4) else { return };
    let members = members(&network, 4);
    let (mut sender, mut inboxes) = sender_and_receivers(&network, &members, patience(20_000));
    let domain = Domain::of(&SECRET);
    // The copy of a message for receiver 1, on host 2, and its acknowledgement.
    let acknowledged = |number: u64, message: &[u64]| {
        let copy = Packet {
            kind: kind::COPY,
            operation: 0,
            status: 0,
            asker: 0,
            number: 0,
            place: PLACE,
            operand: 1,
            compare: number,
        };
        let way = Way { from: address(0), to: address(2) };
        (copy.to_bytes(&domain, way), copy.acknowledgement(&domain, way, message))
    };
    let ones = |word: usize| members[0].words().load(word) & u64::from(u32::MAX);
    for number in 0..2 {
        sender.send(&message(number)).unwrap();
        inboxes[0].receive().unwrap();
        inboxes[2].receive().unwrap();
    }
    // Receiver 1 has no room for the third one.
    sender.start(&message(2)).unwrap();
    let place = PLACE as usize;
    eventually(|| ones(place) == 0b101);
    let (_, old) = acknowledged(2, &message(1));
    let (copy, good) = acknowledged(3, &message(2));
    let word = |bytes: &[u8], at: usize| bytes[8 * at..][..8].to_vec();
    let changed = |bytes: &[u8], at: usize, by: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[8 * at..][..8].copy_from_slice(by);
        bytes
    };
    let other = 2_u64.to_le_bytes();
    let under_key = Packet::of_bytes(&copy, &domain, Way { from: address(0), to: address(2) }).unwrap();
    let under_key = Packet { kind: kind::ACKNOWLEDGE, ..under_key };
    for (bad, counted) in [
        (old.to_vec(), "old"),                          // of the message before
        (changed(&old, 5, &word(&good, 5)), "forged"),  // the same for this message
        (changed(&good, 7, &word(&copy, 7)), "forged"), // with the tag of a copy
        (changed(&good, 7, &[0; 8]), "forged"),
        (under_key.to_bytes(&domain, Way { from: address(2), to: address(0) }).to_vec(), "forged"),
        (changed(&good, 6, &other), "forged"), // for the other receiver
        (changed(&good, 6, &7_u64.to_le_bytes()), "strangers"), // for one that there is not
        (changed(&good, 4, &5_u64.to_le_bytes()), "strangers"), // for another word
        (changed(&good, 4, &5000_u64.to_le_bytes()), "malformed"), // for none
        ([&good[..], &[0; 8]].concat(), "malformed"), // longer
        (good[..56].to_vec(), "malformed"),    // cut
    ] {
        let before = counter(&network, 0, counted);
        inject(&network, &bad);
        eventually(|| counter(&network, 0, counted) == before + 1);
        assert_eq!(ones(place), 0b101, "{bad:?} is {counted}");
    }
    inject(&network, &good);
    eventually(|| ones(place) == 0b111);
    assert!(sender.test().unwrap());
}

#[test]
fn forged_and_replayed_messages_reach_no_inbox() {
    let Some(network) = hosts(3) else { return };
    let members = members(&network, 3);
    let (mut sender, mut inboxes) = sender_and_receivers(&network, &members, Patience::default());
    let domain = Domain::of(&SECRET);
    let way = Way { from: address(1), to: address(0) };
    let sent_back = |number: u64, kind: u8, way: Way, message: &[u64]| {
        let (operand, asker) = (0b10 << 32 | 1, 0);
        let packet = Packet {
            kind,
            operation: 0,
            status: 0,
            asker,
            number: 0,
            place: PLACE,
            operand,
            compare: number,
        };
        let (bytes, length) = packet.to_frame(&domain, way, message);
        bytes[..length].to_vec()
    };
    sender.send(&[1]).unwrap();
    sender.send(&[2]).unwrap();
    for inbox in &mut inboxes {
        assert_eq!([inbox.receive().unwrap(), inbox.receive().unwrap()], [[1], [2]]);
    }
    // As host 1 sends the first message back, once more: no copy of an older message leaves.
    let mut again = sent_back(1, kind::COPIES | kind::RELAY, way.reversed(), &[1]);
    again[5] = kind::COPIES | kind::RELAYED;
    let released = counter(&network, 0, "releases");
    inject(&network, &again);
    eventually(|| counter(&network, 0, "releases") == released + 1);
    let not_acknowledged = counter(&network, 0, "acknowledged");
    // One that the sender has not authenticated for this way, and one with another message.
    let forged = counter(&network, 0, "forged");
    inject(&network, &sent_back(3, kind::COPIES | kind::RELAYED, way, &[3]));
    let mut other = sent_back(3, kind::COPIES | kind::RELAY, way.reversed(), &[3]);
    other[5] = kind::COPIES | kind::RELAYED;
    other[64] ^= 1;
    inject(&network, &other);
    eventually(|| counter(&network, 0, "forged") == forged + 2);
    assert!(inboxes.iter_mut().all(|inbox| inbox.try_receive().is_none()));
    assert_eq!(counter(&network, 0, "acknowledged"), not_acknowledged);
    sender.send(&[3]).unwrap();
    assert!(inboxes.iter_mut().all(|inbox| inbox.receive().unwrap() == [3]));
}

#[test]
fn a_receiver_that_is_gone_is_named() {
    let Some(network) = hosts(3) else { return };
    let mut members = members(&network, 3);
    let (mut sender, inboxes) = sender_and_receivers(&network, &members, patience(100));
    sender.send(&[1]).unwrap();
    drop(inboxes);
    members.pop();
    while network
        .at(2, || weir_nic::control::ask("eth0", weir_nic::control::Command::Status).unwrap())
        .members
        > 0
    {
        std::thread::sleep(Duration::from_millis(1)); // the service hears of it soon
    }
    let error = sender.send(&[2]).unwrap_err();
    assert!(matches!(&error, NicError::NotReceived { missing, .. } if *missing == [1]), "{error}");
    assert_eq!(error.to_string(), "receivers [1] have not acknowledged the message for 100 ms");
}

#[test]
fn wrong_receivers_and_messages_are_refused_with_what_is_allowed() {
    let Some(network) = hosts(2) else { return };
    let members = members(&network, 2);
    let refusal = |receivers: &[SocketAddrV4], place| {
        members[0].multi_send(receivers, place, Patience::default()).unwrap_err().to_string()
    };
    assert_eq!(refusal(&[], 0), "number of receivers 0: allowed are 1 to 32");
    assert_eq!(refusal(&[at(1), at(0)], 0), "receiver 10.98.0.1: allowed are those on other hosts");
    assert_eq!(refusal(&[at(1)], 3836), "place of a multi-send 3836: allowed are 0 to 3835");
    let mut sender = network.at(0, || members[0].multi_send(&[at(1)], 0, Patience::default()).unwrap());
    let empty = sender.send(&[]).unwrap_err().to_string();
    assert_eq!(empty, "words of a message 0: allowed are 1 to 128");
}
