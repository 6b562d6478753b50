//! Tests of empty reads: they do not delay a caller that can expect nothing from the endpoint, and put one to sleep
//! that waits.

#[path = "common/stub_link.rs"]
mod stub_link;

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use stub_link::{Calls, StubLink};
use weir_engine::{Engine, Post};
use weir_link::memory::OwnedMemory;
use weir_proto::{Pattern, PeekThen, Space};

const PATTERN: Pattern = Pattern { space: Space::Untagged, from: None, tag: 0, ignore: 0 };

fn multi_receive(engine: &mut Engine<StubLink>, into: &OwnedMemory) {
    engine.receive(Post::default(), PATTERN, into.view(), Some(64)).expect("taken");
}

/// Empty reads, with `work` before each.
fn read(engine: &mut Engine<StubLink>, reads: u32, mut work: impl FnMut(&mut Engine<StubLink>)) {
    for _ in 0..reads {
        work(engine);
        assert_eq!(engine.progress(), 0, "nothing has come");
        engine.pause();
    }
}

fn sleeps(calls: &Calls) -> u64 {
    calls.sleeps.load(Relaxed)
}

/// Takes as long as a copy of a few kilobytes.
fn copy_a_little(_: &mut Engine<StubLink>) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_micros(5) {
        std::hint::spin_loop();
    }
}

#[test]
fn an_endpoint_with_nothing_outstanding_does_not_delay_its_caller() {
    let (mut engine, calls) = stub_link::engine(3);
    read(&mut engine, 10_000, |_| ());
    assert_eq!(sleeps(&calls), 0);
}

#[test]
fn a_multi_receive_buffer_that_nobody_can_fill_is_no_reason_to_sleep() {
    let (mut engine, calls) = stub_link::engine(0);
    let into = OwnedMemory::new(4096);
    multi_receive(&mut engine, &into);
    read(&mut engine, 10_000, |_| ());
    assert_eq!(sleeps(&calls), 0);
}

#[test]
fn a_caller_that_copies_between_reads_does_not_sleep_for_multi_receive_buffers() {
    let (mut engine, calls) = stub_link::engine(3);
    let into = OwnedMemory::new(4096);
    multi_receive(&mut engine, &into);
    read(&mut engine, 2000, copy_a_little);
    assert_eq!(sleeps(&calls), 0);
}

/// Reads until the caller is put to sleep.
fn read_until_asleep(engine: &mut Engine<StubLink>, calls: &Calls) {
    let began = Instant::now();
    while sleeps(calls) == 0 {
        read(engine, 100, |_| ());
        assert!(began.elapsed() < Duration::from_secs(10), "it does not sleep");
    }
}

#[test]
fn a_caller_that_only_reads_sleeps_for_multi_receive_buffers() {
    let (mut engine, calls) = stub_link::engine(3);
    let into = OwnedMemory::new(4096);
    multi_receive(&mut engine, &into);
    read_until_asleep(&mut engine, &calls);
}

#[test]
fn a_caller_that_only_reads_sleeps_while_peers_may_write_to_its_memory() {
    let (mut engine, calls) = stub_link::engine(3);
    let memory = OwnedMemory::new(4096);
    engine.register_memory(1, memory.view(), true, true);
    read_until_asleep(&mut engine, &calls);
}

#[test]
fn a_caller_that_waits_for_a_message_sleeps() {
    let (mut engine, calls) = stub_link::engine(0);
    let into = OwnedMemory::new(8);
    engine.receive(Post::default(), PATTERN, into.view(), None).expect("taken");
    read(&mut engine, 2000, |_| ());
    assert!(sleeps(&calls) > 0);
}

#[test]
fn a_caller_that_looks_for_a_message_sleeps() {
    let (mut engine, calls) = stub_link::engine(0);
    read(&mut engine, 2000, |engine| {
        engine.peek(Post::default(), PATTERN, PeekThen::Leave).expect("taken");
        assert!(engine.next_completion().is_some(), "the look has ended");
    });
    assert!(sleeps(&calls) > 0);
}
