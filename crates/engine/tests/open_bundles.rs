//! A test of endpoints whose program calls no more after a send, over UDP on the loopback interface.

#[path = "common/faults.rs"]
mod faults;

use faults::{directory, settings};
use std::time::{Duration, Instant};
use weir_engine::config::{LinkChoice, Settings};
use weir_engine::{Engine, Post, SendArguments};
use weir_link::memory::OwnedMemory;
use weir_proto::{Outcome, Pattern, Peer, Scheme, SendLevel, Space};

/// What waits in an open bundle leaves after a millisecond. The machine may be busy.
const SOON: Duration = Duration::from_secs(1);

fn open(directory: &tempfile::TempDir) -> Engine {
    let settings = Settings {
        links: LinkChoice::Udp,
        net: Some(String::from("127.0.0.1")),
        ..settings(directory, Scheme::Dynamic { piggyback: true }, 1 << 26)
    };
    Engine::open(&settings, 2, false).expect("an endpoint")
}

fn inject(engine: &mut Engine, to: Peer) {
    let payload = OwnedMemory::new(8);
    let (level, memory) = (SendLevel::Buffered, payload.view());
    let arguments =
        SendArguments { to, space: Space::Tagged, tag: 0, data: None, level, memory, inject: true };
    engine.send(Post::default(), arguments).expect("taken");
}

/// Receives so many messages, without a call of the sender.
fn receive(engine: &mut Engine, from: Peer, count: usize) {
    let into = OwnedMemory::new(8);
    let pattern = Pattern { space: Space::Tagged, from: Some(from), tag: 0, ignore: 0 };
    for _ in 0..count {
        engine.receive(Post::default(), pattern, into.view(), None).expect("taken");
    }
    let begun = Instant::now();
    let mut received = 0;
    while received < count {
        engine.progress();
        while let Some(completion) = engine.next_completion() {
            received += usize::from(matches!(completion.outcome, Outcome::Received { bytes: 8, .. }));
        }
        assert!(begun.elapsed() < SOON, "{received} of {count} messages have arrived");
    }
}

/// Threads of this process that help a link.
fn helpers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks.filter_map(name).filter(|name| name.trim() == "weir-bundles").count()
}

#[test]
fn a_completed_send_leaves_although_its_program_calls_no_more() {
    let directories = [directory(), directory()];
    let mut a = open(&directories[0]);
    let mut b = open(&directories[1]);
    let (to_b, from_a) = (a.peer(&b.address()), b.peer(&a.address()));
    assert_eq!(helpers(), 0, "nothing has waited in a bundle");
    inject(&mut a, to_b);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(200) {
        a.progress();
        b.progress();
    }
    receive(&mut b, from_a, 1);
    for _ in 0..50 {
        // The first leaves at once. The others wait for the next poll.
        for _ in 0..3 {
            inject(&mut a, to_b);
        }
        receive(&mut b, from_a, 3);
        assert!(helpers() > 0);
        while a.next_completion().is_some() {}
        let settled = Instant::now() + Duration::from_millis(2);
        while Instant::now() < settled {
            a.progress();
            b.progress();
        }
    }
    drop((a, b));
    assert_eq!(helpers(), 0, "the threads end with their links");
}
