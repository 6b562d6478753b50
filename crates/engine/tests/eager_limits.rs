//! The eager limits of an endpoint: one for ranks that can read its memory, and a longer one for the others.

#[path = "common/faults.rs"]
mod faults;

use faults::{directory, settings};
use std::time::{Duration, Instant};
use weir_engine::config::{LinkChoice, Settings};
use weir_engine::{Engine, Post, SendArguments};
use weir_link::memory::OwnedMemory;
use weir_proto::{Outcome, Pattern, Peer, Scheme, SendLevel, Space};

fn open(directory: &tempfile::TempDir, links: LinkChoice) -> Engine {
    let net = Some(String::from("127.0.0.1"));
    let settings = Settings { links, net, ..settings(directory, Scheme::Demand, 1 << 26) };
    Engine::open(&settings, 2, false).expect("an endpoint")
}

/// Sends a message of so many bytes. Returns the number of announcements that it took.
fn announcements([a, b]: &mut [Engine; 2], to_b: Peer, from_a: Peer, bytes: usize) -> u64 {
    let before = a.counters().rendezvous_sent;
    let (payload, into) = (OwnedMemory::new(bytes), OwnedMemory::new(bytes));
    let bytes_sent: Vec<u8> = (0..bytes).map(|at| (at / 7) as u8).collect();
    payload.view().write(0, &bytes_sent);
    let pattern = Pattern { space: Space::Tagged, from: Some(from_a), tag: 0, ignore: 0 };
    b.receive(Post::default(), pattern, into.view(), None).expect("taken");
    let (level, memory) = (SendLevel::Buffered, payload.view());
    let arguments =
        SendArguments { to: to_b, space: Space::Tagged, tag: 0, data: None, level, memory, inject: false };
    a.send(Post::default(), arguments).expect("taken");
    let begun = Instant::now();
    let (mut is_sent, mut is_received) = (false, false);
    while !is_sent || !is_received {
        a.progress();
        b.progress();
        is_sent |= a.next_completion().is_some_and(|completion| completion.outcome == Outcome::Done);
        is_received |= b.next_completion().is_some_and(|completion| {
            matches!(completion.outcome, Outcome::Received { bytes: received, .. } if received == bytes as u64)
        });
        assert!(begun.elapsed() < Duration::from_secs(20), "{bytes} bytes: {is_sent}, {is_received}");
    }
    let mut bytes_received = vec![0; bytes];
    into.view().read(0, &mut bytes_received);
    assert!(bytes_received == bytes_sent, "{bytes} bytes");
    a.counters().rendezvous_sent - before
}

#[test]
fn a_longer_message_is_announced_only_to_a_rank_that_can_read_it() {
    for (links, far_bytes) in [(LinkChoice::Udp, 65536), (LinkChoice::Both, 2048)] {
        let is_far = matches!(links, LinkChoice::Udp);
        let directories = [directory(), directory()];
        // Both over shared memory: in one directory.
        let of_b = &directories[usize::from(is_far)];
        let mut both = [open(&directories[0], links.clone()), open(of_b, links)];
        let addresses = [both[0].address(), both[1].address()];
        let (to_b, from_a) = (both[0].peer(&addresses[1]), both[1].peer(&addresses[0]));
        for bytes in [1, 2048, 2049, 65536, 65537, 2049] {
            let expected = u64::from(bytes > far_bytes);
            assert_eq!(announcements(&mut both, to_b, from_a, bytes), expected, "{bytes}, far: {is_far}");
        }
    }
}
