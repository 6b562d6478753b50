//! Tests of settings of the network, with endpoints whose messages go to one peer over UDP on the loopback interface.

#[path = "common/faults.rs"]
mod faults;

use faults::{directory, settings};
use std::time::{Duration, Instant};
use weir_engine::config::{LinkChoice, Settings};
use weir_engine::{Engine, Post, SendArguments};
use weir_link::Protection;
use weir_link::memory::OwnedMemory;
use weir_proto::{Outcome, Pattern, Peer, Scheme, SendLevel, Space};

const MESSAGES: u64 = 300;
const LONG: Duration = Duration::from_secs(20);

/// An endpoint with the settings that `change` changes.
fn open(directory: &tempfile::TempDir, change: impl FnOnce(&mut Settings)) -> Engine {
    let mut settings = Settings {
        links: LinkChoice::Udp,
        net: Some(String::from("127.0.0.1")),
        ..settings(directory, Scheme::Dynamic { piggyback: true }, 1 << 26)
    };
    change(&mut settings);
    Engine::open(&settings, 2, false).expect("an endpoint")
}

/// Sends a number to `to`, which receives it from `from`.
fn pass(number: u64, sender: &mut Engine, to: Peer, receiver: &mut Engine, from: Peer) {
    let into = OwnedMemory::new(8);
    let pattern = Pattern { space: Space::Tagged, from: Some(from), tag: number, ignore: 0 };
    receiver.receive(Post::default(), pattern, into.view(), None).expect("taken");
    let payload = OwnedMemory::new(8);
    payload.view().write(0, &number.to_le_bytes());
    let (level, memory) = (SendLevel::Buffered, payload.view());
    let arguments =
        SendArguments { to, space: Space::Tagged, tag: number, data: None, level, memory, inject: true };
    sender.send(Post::default(), arguments).expect("taken");
    let begun = Instant::now();
    let mut received = false;
    while !received {
        sender.progress();
        receiver.progress();
        while let Some(completion) = receiver.next_completion() {
            received |= matches!(completion.outcome, Outcome::Received { bytes: 8, .. });
        }
        while sender.next_completion().is_some() {}
        assert!(begun.elapsed() < LONG, "message {number} has not arrived");
    }
    let mut bytes = [0; 8];
    into.view().read(0, &mut bytes);
    assert_eq!(u64::from_le_bytes(bytes), number);
}

/// Datagrams that each of two endpoints has sent through its connected socket, after messages in turn.
fn sent_connected(connected_socket: bool) -> [u64; 2] {
    let directories = [directory(), directory()];
    let [mut a, mut b] = directories
        .each_ref()
        .map(|directory| open(directory, |settings| settings.connected_socket = connected_socket));
    let (to_b, to_a) = (a.peer(&b.address()), b.peer(&a.address()));
    for number in 0..MESSAGES {
        pass(number, &mut a, to_b, &mut b, to_a);
        pass(number, &mut b, to_a, &mut a, to_b);
    }
    [a, b].map(|mut end| end.measure().network.expect("a network").connected_datagrams_sent)
}

#[test]
fn endpoints_with_one_peer_use_a_connected_socket_unless_it_is_turned_off() {
    let sent = sent_connected(true);
    assert!(sent.iter().all(|&sent| sent > MESSAGES / 2), "{sent:?}");
    assert_eq!(sent_connected(false), [0, 0]);
}

#[test]
fn endpoints_with_any_two_protections_exchange_messages() {
    for a in Protection::ALL {
        for b in Protection::ALL {
            let directories = [directory(), directory()];
            let mut a = open(&directories[0], |settings| settings.protection = a);
            let mut b = open(&directories[1], |settings| settings.protection = b);
            let (to_b, to_a) = (a.peer(&b.address()), b.peer(&a.address()));
            for number in 0..10 {
                pass(number, &mut a, to_b, &mut b, to_a);
                pass(number, &mut b, to_a, &mut a, to_b);
            }
            for report in [a, b].map(|mut end| end.measure().network.expect("a network")) {
                assert_eq!((report.open_paths, report.dropped_forged, report.dropped_malformed), (1, 0, 0));
            }
        }
    }
}
