//! Multi-sends.

use crate::{SECRET, at, counter, hosts, patience};
use std::net::SocketAddrV4;
use std::time::Duration;
use weir_nic::format::MAX_VECTOR_WORDS;
use weir_nic::pretended::Network;
use weir_nic::{Inbox, Membership, MultiSend, NicError, Patience};

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
    for receivers in [1, 2, 5] {
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
