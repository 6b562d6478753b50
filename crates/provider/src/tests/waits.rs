//! Tests of wait objects: descriptors of queues, counters and event queues, `fi_trywait`, blocking calls, poll sets.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use super::*;
use crate::eq::EventQueueHandle;
use crate::poll_set::PollSetHandle;

const DESCRIPTORS: Choices =
    Choices { caps: 0, progress: progress::MANUAL, queue_wait: wait_obj::FD, counter_wait: wait_obj::FD };
const AGAIN: c_int = -11;

/// `fi_control(FI_GETWAIT)`.
fn descriptor<H: 'static>(handle: &H, fid: &Fid) -> c_int {
    let mut number: c_int = -1;
    assert_eq!((ops::<H>(fid).control)(handle, control::GETWAIT, (&raw mut number).cast::<c_void>()), 0);
    assert!(number >= 0);
    number
}

/// `poll(2)`: whether one of the descriptors is readable within this time.
fn poll_descriptors(numbers: &[c_int], timeout_ms: c_int) -> bool {
    let mut all: Vec<_> =
        numbers.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the array lives across the call.
    let ready = unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, timeout_ms) };
    assert!(ready >= 0);
    ready > 0
}

impl Side {
    fn counter(&self) -> &CounterHandle {
        self.counter.as_ref().expect("open")
    }
    fn queue_descriptor(&self) -> c_int {
        descriptor(self.queue(), &self.queue().fid)
    }
    fn counter_descriptor(&self) -> c_int {
        descriptor(self.counter(), &self.counter().fid)
    }
    /// `fi_trywait`.
    fn try_wait(&self, fids: &[&Fid]) -> c_int {
        let all: Vec<_> = fids.iter().map(|fid| any(fid)).collect();
        (table(self.fabric.ops).trywait)(&self.fabric, InArray::from(&all[..]), all.len() as c_int)
    }
    /// Reads an entry, if there is one.
    fn read_once(&self) -> Option<FiCqTaggedEntry> {
        let mut entry = [zeroed::<FiCqTaggedEntry>()];
        match (table(self.queue().ops).read)(self.queue(), OutArray::from(&mut entry[..]).cast(), 1) {
            1 => Some(entry[0]),
            error => {
                assert_eq!(error, AGAIN as isize);
                None
            }
        }
    }
    /// A program of `fi_poll(3)`: reads until there is nothing, blocks, and begins again.
    fn read_blocking(&self) -> FiCqTaggedEntry {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(entry) = self.read_once() {
                return entry;
            }
            assert!(Instant::now() < until, "nothing was read");
            if self.try_wait(&[&self.queue().fid]) == 0 {
                poll_descriptors(&[self.queue_descriptor()], 20_000);
            }
        }
    }
}

/// CPU time of this process. Unit: us.
fn cpu_us() -> i64 {
    let mut usage: libc::rusage = zeroed();
    // SAFETY: the kernel fills a structure that lives across the call.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) }, 0);
    let us = |time: libc::timeval| time.tv_sec * 1_000_000 + time.tv_usec;
    us(usage.ru_utime) + us(usage.ru_stime)
}

#[test]
fn only_objects_with_a_descriptor_return_one() {
    let (one, _other) = pair_with(threading::SAFE, 0, DESCRIPTORS, Choices::default());
    let mut number: c_int = -1;
    let argument = (&raw mut number).cast::<c_void>();
    let control = |side: &Side, command, argument| {
        (ops::<QueueHandle>(&side.queue().fid).control)(side.queue(), command, argument)
    };
    assert_eq!((control(&one, control::GETWAITOBJ, argument), number), (0, wait_obj::FD));
    assert_eq!((control(&_other, control::GETWAITOBJ, argument), number), (0, wait_obj::NONE));
    assert_eq!(control(&_other, control::GETWAIT, argument), -38);
    assert_eq!(control(&one, control::GETWAIT, std::ptr::null_mut()), -22);
    assert_eq!(control(&one, 99, argument), -38);
    assert_eq!(_other.try_wait(&[&_other.queue().fid]), -22);
    assert_eq!(one.try_wait(&[&one.endpoint().fid]), -22);
    assert_eq!(one.try_wait(&[]), 0);
    for wait_obj in [wait_obj::SET, 4, 6] {
        let attr = FiCqAttr { wait_obj, ..zeroed() };
        let mut made = std::ptr::null_mut();
        let opened = (table(one.domain.ops).cq_open)(&one.domain, Some(&attr), Out::from(&mut made), 0);
        assert_eq!(opened, -38);
    }
}

#[test]
fn a_descriptor_is_readable_after_an_arrival_and_not_before() {
    for threading in [threading::SAFE, threading::DOMAIN] {
        let (one, other) = pair_with(threading, 0, Choices::default(), DESCRIPTORS);
        let number = other.queue_descriptor();
        let mut to = [0; 4];
        other.receive(&mut to, 1, 1, 7);
        for round in 0..50 {
            while other.try_wait(&[&other.queue().fid]) != 0 {
                assert!(other.read_once().is_none());
            }
            assert!(!poll_descriptors(&[number], i32::from(round == 0) * 50), "round {round}");
            one.inject(&mut [round; 4], 1);
            assert!(poll_descriptors(&[number], 10_000), "round {round}");
            assert_eq!(other.read_blocking().op_context, 7);
            other.receive(&mut to, 1, 1, 7);
        }
    }
}

#[test]
fn an_entry_that_waits_forbids_to_block() {
    let (one, other) = pair_with(threading::SAFE, 0, Choices::default(), DESCRIPTORS);
    let mut to = [0; 4];
    other.receive(&mut to, 1, 1, 7);
    one.inject(&mut [1; 4], 1);
    assert_eq!(other.try_wait(&[&other.queue().fid]), AGAIN);
    assert_eq!(other.read_blocking().op_context, 7);
    assert_eq!(other.try_wait(&[&other.queue().fid]), 0);
    // A post that completes at once writes an entry, for which another thread may wait.
    let null = std::ptr::null_mut();
    let mut from = [2; 4];
    assert_eq!((other.tagged().send)(other.endpoint(), buffer(&mut from), 4, null, 1, 2, 8), 0);
    assert!(
        poll_descriptors(&[other.queue_descriptor()], 10_000) || other.try_wait(&[&other.queue().fid]) != 0
    );
    assert_eq!(other.read_blocking().op_context, 8);
}

#[test]
fn two_processes_exchange_messages_through_descriptors() {
    run_in_child(|| {
        const ROUNDS: u8 = 200;
        for threading in [threading::SAFE, threading::DOMAIN] {
            let (one, other) = pair_with(threading, 0, DESCRIPTORS, DESCRIPTORS);
            std::thread::scope(|scope| {
                // Each thread is the only one in its domain.
                let answer = |side: &Side, first: bool| {
                    for round in 0..ROUNDS {
                        let (mut to, mut from) = ([0; 4], [round; 4]);
                        side.receive(&mut to, 1, 1, 7);
                        if first {
                            side.inject(&mut from, 1);
                        }
                        assert_eq!(side.read_blocking().op_context, 7);
                        assert_eq!(to, [round; 4]);
                        if !first {
                            side.inject(&mut from, 1);
                        }
                    }
                };
                let (one, other) = (SendSide(&one), SendSide(&other));
                scope.spawn(move || answer({ one }.0, true));
                scope.spawn(move || answer({ other }.0, false));
            });
        }
    });
}

/// A side that another thread uses.
struct SendSide<'a>(&'a Side);
// SAFETY: the objects may be used from any thread, as a C program does; the test keeps the promise of its threading.
unsafe impl Send for SendSide<'_> {}

#[test]
fn a_thread_that_waits_at_a_descriptor_uses_no_core() {
    run_in_child(|| {
        let (one, other) = pair_with(threading::DOMAIN, 0, Choices::default(), DESCRIPTORS);
        let mut to = [0; 4];
        other.receive(&mut to, 1, 1, 7);
        one.inject(&mut [1; 4], 1);
        assert_eq!(other.read_blocking().op_context, 7);
        while other.try_wait(&[&other.queue().fid]) != 0 {
            other.read_once();
        }
        let before = cpu_us();
        poll_descriptors(&[other.queue_descriptor()], 1000);
        assert!(cpu_us() - before < 20_000, "{} us in a second", cpu_us() - before);
    });
}

#[test]
fn a_blocking_read_of_a_queue_with_descriptor_ends_by_message_signal_and_timeout() {
    let (one, other) = pair_with(threading::SAFE, 0, Choices::default(), DESCRIPTORS);
    let (one, other) = (SendSide(&one), SendSide(&other));
    let read = |side: &Side, timeout_ms| {
        let mut entry = [zeroed::<FiCqTaggedEntry>()];
        let to = OutArray::from(&mut entry[..]).cast();
        let read = (table(side.queue().ops).sread)(side.queue(), to, 1, std::ptr::null(), timeout_ms);
        (read, entry[0].op_context)
    };
    let begun = Instant::now();
    assert_eq!(read(other.0, 30).0, -11);
    assert!(begun.elapsed() >= Duration::from_millis(30));
    let mut to = [0; 4];
    other.0.receive(&mut to, 1, 1, 7);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let one = one;
            std::thread::sleep(Duration::from_millis(20));
            one.0.inject(&mut [1; 4], 1);
        });
        assert_eq!(read(other.0, 10_000), (1, 7));
    });
    let queue = other.0.queue();
    std::thread::scope(|scope| {
        let signalling = SendSide(other.0);
        scope.spawn(move || {
            let side = signalling;
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!((table(side.0.queue().ops).signal)(side.0.queue()), 0);
        });
        let begun = Instant::now();
        assert_eq!((table(queue.ops).sread)(queue, OutArray::none(), 1, std::ptr::null(), 10_000), -11);
        assert!(begun.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn a_counter_with_descriptor_rings_for_operations_and_for_changes_by_the_program() {
    let (one, other) = pair_with(threading::SAFE, 0, DESCRIPTORS, Choices::default());
    let counter = table(one.counter().ops);
    let number = one.counter_descriptor();
    let armed = || {
        (counter.read)(one.counter());
        one.try_wait(&[&one.counter().fid])
    };
    while armed() != 0 {}
    assert!(!poll_descriptors(&[number], 20));
    assert_eq!((counter.add)(one.counter(), 5), 0);
    assert!(poll_descriptors(&[number], 10_000));
    assert_eq!(one.try_wait(&[&one.counter().fid]), AGAIN, "it has changed");
    while armed() != 0 {}
    one.inject(&mut [1; 4], 1); // counts a send, once the first contact has been made
    while (counter.read)(one.counter()) != 6 {
        assert!(one.try_wait(&[&one.counter().fid]) != 0 || poll_descriptors(&[number], 10_000));
    }
    while armed() != 0 {}
    assert_eq!((counter.adderr)(one.counter(), 1), 0);
    assert!(poll_descriptors(&[number], 10_000));
    assert_eq!((counter.readerr)(one.counter()), 1);
    while armed() != 0 {}
    assert_eq!((counter.set)(one.counter(), 0), 0);
    assert!(poll_descriptors(&[number], 10_000));
    assert_eq!((counter.seterr)(one.counter(), 0), 0);
    assert_eq!(((counter.read)(one.counter()), (counter.readerr)(one.counter())), (0, 0));
    drop(other);
}

#[test]
fn a_wait_for_a_counter_ends_at_the_threshold_after_an_error_and_in_time() {
    for counter_wait in [wait_obj::UNSPEC, wait_obj::FD] {
        let choices = Choices { counter_wait, ..Choices::default() };
        let (one, _other) = pair_with(threading::SAFE, 0, choices, Choices::default());
        let counter = table(one.counter().ops);
        let wait = |threshold| (counter.wait)(one.counter(), threshold, 10_000);
        assert_eq!((counter.wait)(one.counter(), 1, 30), -110);
        let later = |change: fn(&CounterHandle)| {
            let side = SendSide(&one);
            move || {
                let side = side;
                std::thread::sleep(Duration::from_millis(20));
                change(side.0.counter());
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(later(|counter| {
                (table(counter.ops).add)(counter, 2);
                (table(counter.ops).add)(counter, 1);
            }));
            assert_eq!(wait(3), 0);
        });
        std::thread::scope(|scope| {
            scope.spawn(later(|counter| {
                (table(counter.ops).adderr)(counter, 1);
            }));
            assert_eq!(wait(4), -259);
        });
        assert_eq!(wait(3), 0, "an old error does not matter");
    }
}

#[test]
fn an_event_queue_with_descriptor_rings_for_events() {
    let fabric_attr = FiFabricAttr { api_version: version(1, 21), ..zeroed() };
    let fabric: Box<FabricHandle> = opened(|out| crate::fabric::open(Some(&fabric_attr), out, 0));
    let attr = FiEqAttr { wait_obj: wait_obj::FD, flags: flags::WRITE, ..zeroed() };
    let queue: Box<EventQueueHandle> =
        opened(|out| (table(fabric.ops).eq_open)(&fabric, Some(&attr), out, 0));
    let number = descriptor(&*queue, &queue.fid);
    let try_wait = || (table(fabric.ops).trywait)(&fabric, InArray::from(&[any(&queue.fid)][..]), 1);
    assert_eq!(try_wait(), 0);
    assert!(!poll_descriptors(&[number], 20));
    assert_eq!((table(queue.ops).write)(&queue, 3, InArray::from(&[1_u8, 2][..]), 2, 0), 2);
    assert!(poll_descriptors(&[number], 0));
    assert_eq!(try_wait(), AGAIN);
    let (mut event, mut data) = (0, [0_u8; 8]);
    let read = (table(queue.ops).read)(&queue, Out::from(&mut event), OutArray::from(&mut data[..]), 8, 0);
    assert_eq!((read, event, &data[..2]), (2, 3, &[1, 2][..]));
    assert_eq!(try_wait(), 0);
    assert!(!poll_descriptors(&[number], 0));
    assert_eq!((ops::<EventQueueHandle>(&queue.fid).close)(queue), 0);
}

#[test]
fn a_thread_at_a_descriptor_gets_what_another_thread_has_polled() {
    let (one, other) = pair_with(threading::SAFE, 0, Choices::default(), DESCRIPTORS);
    let mut to = [0; 4];
    other.receive(&mut to, 1, 1, 7);
    while other.try_wait(&[&other.queue().fid]) != 0 {
        other.read_once();
    }
    one.inject(&mut [1; 4], 1);
    // Reading the counter polls the endpoint, and its queue gets the entry.
    (table(other.counter().ops).read)(other.counter());
    assert!(poll_descriptors(&[other.queue_descriptor()], 10_000));
    assert_eq!(other.read_once().map(|entry| entry.op_context), Some(7));
}

#[test]
fn the_death_of_a_peer_is_noticed_at_a_descriptor() {
    run_in_child(|| {
        let mut pipe = [0; 2];
        // SAFETY: the array has room for two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let (read_end, write_end) = (pipe[0], pipe[1]);
        // SAFETY: this process has one thread.
        let peer = unsafe { libc::fork() };
        if peer == 0 {
            let side = Side::open(threading::DOMAIN, version(1, 21), cq_format::TAGGED, 0);
            let address = side.address();
            // SAFETY: the bytes live across the call. Then the process waits to be killed.
            unsafe {
                libc::write(write_end, address.as_ptr().cast(), ADDRESS_BYTES);
                loop {
                    libc::pause();
                }
            }
        }
        let mut address = [0; ADDRESS_BYTES];
        // SAFETY: there is room for as many bytes.
        let bytes = unsafe { libc::read(read_end, address.as_mut_ptr().cast(), ADDRESS_BYTES) };
        assert_eq!(bytes as usize, ADDRESS_BYTES);
        let side = Side::open_with(threading::DOMAIN, version(1, 21), cq_format::TAGGED, 0, DESCRIPTORS);
        side.insert_addresses(&[side.address(), address]);
        let (mut to, mut from) = ([0; 4], [0; 4]);
        side.inject(&mut from, 1); // contact
        side.receive(&mut to, 1, 1, 7);
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::kill(peer, libc::SIGKILL) }, 0);
        let mut status = 0;
        // SAFETY: the status lives across the call.
        assert_eq!(unsafe { libc::waitpid(peer, &raw mut status, 0) }, peer);
        let begun = Instant::now();
        let error = loop {
            let mut entry = [zeroed::<FiCqTaggedEntry>()];
            let to = OutArray::from(&mut entry[..]).cast();
            match (table(side.queue().ops).read)(side.queue(), to, 1) {
                -11 => {}
                read => break read,
            }
            assert!(begun.elapsed() < Duration::from_secs(8), "no error");
            if side.try_wait(&[&side.queue().fid]) == 0 {
                poll_descriptors(&[side.queue_descriptor()], 10_000);
            }
        };
        assert_eq!((error, side.error().err), (-259, libc::ECONNRESET));
    });
}

#[test]
fn a_poll_set_returns_the_contexts_of_what_has_events() {
    let (one, other) = pair(threading::SAFE, 0);
    let open = table(other.domain.ops).poll_open;
    let mut made = std::ptr::null_mut();
    assert_eq!(open(&other.domain, Some(&FiPollAttr { flags: 1 }), Out::from(&mut made)), -260);
    let mut set: Box<PollSetHandle> = opened(|out| open(&other.domain, Some(&FiPollAttr { flags: 0 }), out));
    let ops_poll = table(set.ops);
    let (queue, counter) = (&other.queue().fid, &other.counter().fid);
    assert_eq!((ops_poll.poll_add)(&set, any(queue), 1), -260);
    assert_eq!((ops_poll.poll_add)(&set, any(&other.endpoint().fid), 0), -22);
    assert_eq!((ops_poll.poll_add)(&set, any(&one.queue().fid), 0), -262);
    for fid in [queue, counter, queue] {
        assert_eq!((ops_poll.poll_add)(&set, any(fid), 0), 0);
    }
    let poll = |set: &PollSetHandle, room: c_int| {
        let mut contexts = [0; 4];
        let found = (ops_poll.poll)(set, OutArray::from(&mut contexts[..]), room);
        contexts[..found as usize].to_vec()
    };
    assert_eq!(poll(&set, 4), [0; 0]);
    let mut to = [0; 4];
    other.receive(&mut to, 1, 1, 7);
    one.inject(&mut [1; 4], 1);
    assert_eq!(
        (poll(&set, 4), poll(&set, 4)),
        (vec![QUEUE_CONTEXT], vec![QUEUE_CONTEXT]),
        "until it is read"
    );
    other.inject(&mut [1; 4], 1);
    assert_eq!(poll(&set, 1), [QUEUE_CONTEXT]);
    assert_eq!(poll(&set, 4), [QUEUE_CONTEXT, COUNTER_CONTEXT]);
    assert_eq!(poll(&set, 4), [QUEUE_CONTEXT], "a counter is told once");
    assert!(other.read_once().is_some());
    assert_eq!(poll(&set, 4), [0; 0]);
    assert_eq!((ops_poll.poll_del)(&set, any(counter), 0), 0);
    assert_eq!((ops_poll.poll_del)(&set, any(counter), 0), -2);
    other.inject(&mut [1; 4], 1);
    assert_eq!(poll(&set, 4), [0; 0]);
    // Members cannot be closed. A set can be closed with its members.
    assert_eq!(other.queue().domain.enter().queues[other.queue().index].poll_sets, 1);
    set = {
        assert_eq!((ops::<PollSetHandle>(&set.fid).close)(set), 0);
        opened(|out| open(&other.domain, None, out))
    };
    assert_eq!(other.queue().domain.enter().queues[other.queue().index].poll_sets, 0);
    assert_eq!((ops::<PollSetHandle>(&set.fid).close)(set), 0);
}
