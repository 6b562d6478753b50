//! Tests of callers: forked children, several threads in a domain, and reads that yield, sleep or poll.

use super::*;

#[test]
fn a_forked_child_that_closes_objects_does_not_affect_its_parent() {
    for threading in [threading::SAFE, threading::DOMAIN] {
        let (mut one, other) = pair(threading, 0);
        let exchange = |one: &Side, tag: u64| {
            let (mut from, mut to) = ([tag as u8; 4], [[0_u8; 4]; 2]);
            for (side, to) in [one, &other].into_iter().zip(&mut to) {
                side.receive(to, 1, tag, 1);
            }
            one.inject(&mut from, tag);
            other.inject(&mut from, tag);
            assert_eq!(one.read(&other).expect("a message").0.tag, tag);
            assert_eq!(other.read(one).expect("a message").0.tag, tag);
            assert_eq!(to, [[tag as u8; 4]; 2]);
        };
        exchange(&one, 1);
        // SAFETY: the child only closes objects and `_exit`s. Closing allocates nothing and takes no lock there.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let endpoint = one.endpoint.take().expect("open");
            let mut ended = (ops::<EndpointHandle>(&endpoint.fid).close)(endpoint);
            let vector = one.vector.take().expect("open");
            ended |= (ops::<VectorHandle>(&vector.fid).close)(vector);
            let queue = one.queue.take().expect("open");
            ended |= (ops::<QueueHandle>(&queue.fid).close)(queue);
            // SAFETY: the end of the child.
            unsafe { libc::_exit(ended) };
        }
        let mut status = -1;
        // SAFETY: our own child; the status lives across the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        other.progress(); // this would read a goodbye from the child
        exchange(&one, 2);
        exchange(&one, 3);
    }
}

/// Number of times that this thread has slept.
fn sleeps() -> i64 {
    let mut usage: libc::rusage = zeroed();
    // SAFETY: the kernel fills a structure that lives across the call.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
    usage.ru_nvcsw
}

#[test]
fn one_idle_engine_sleeps_and_several_do_not() {
    run_in_child(|| {
        let open = || Side::open(threading::DOMAIN, version(1, 21), cq_format::TAGGED, 0);
        let read = |side: &Side| {
            let nothing = (table(side.queue().ops).read)(side.queue(), OutArray::none(), 1);
            assert_eq!(nothing, -11);
        };
        let (one, mut awaited) = (open(), [0; 8]);
        one.receive(&mut awaited, FiAddr::MAX, 1, 1);
        let before = sleeps();
        assert!((0..100_000).any(|_| {
            read(&one);
            sleeps() > before
        }));
        let other = open();
        let before = sleeps();
        for _ in 0..2000 {
            read(&one);
            read(&other);
        }
        assert_eq!(sleeps(), before);
        drop(other);
        let before = sleeps();
        assert!((0..100_000).any(|_| {
            read(&one);
            sleeps() > before
        }));
    });
}

#[test]
fn reading_an_unchanged_counter_yields_the_core() {
    run_in_child(|| {
        let one = Side::open(threading::DOMAIN, version(1, 21), cq_format::TAGGED, 0);
        let mut awaited = [0; 8];
        one.receive(&mut awaited, FiAddr::MAX, 1, 1);
        let before = sleeps();
        assert!((0..100_000).any(|_| {
            assert_eq!(one.sent(), 0);
            sleeps() > before
        }));
    });
}

#[test]
fn a_second_thread_in_a_domain_is_noticed() {
    for threading in [threading::DOMAIN, threading::SAFE] {
        let (one, _other) = pair(threading, 0);
        let enter_elsewhere = || {
            let domain = std::sync::Arc::clone(&one.queue().domain);
            std::thread::spawn(move || drop(domain.enter())).join().expect("no panic");
        };
        enter_elsewhere();
        assert!(!one.queue().domain.enter().several_threads, "one thread opens, and another one uses");
        one.progress();
        enter_elsewhere();
        assert!(one.queue().domain.enter().several_threads);
    }
}

/// After many reads without a poll, the next poll may find an answer to what was posted meanwhile.
#[test]
fn new_arrivals_are_reported_after_a_poll() {
    let (one, other) = pair(threading::DOMAIN, 0);
    let (mut early, mut last, mut to, mut answer) = ([1; 8], [2; 8], [0; 8], [0; 8]);
    for _ in 0..200 {
        one.inject(&mut early, 7);
        one.progress();
        other.progress();
    }
    other.receive(&mut answer, 1, 99, 5);
    let once = || {
        let mut entry = [zeroed::<FiCqTaggedEntry>()];
        match (table(other.queue().ops).read)(other.queue(), OutArray::from(&mut entry[..]).cast(), 1) {
            1 => Some(entry[0].tag),
            read => {
                assert_eq!(read, -11);
                None
            }
        }
    };
    assert_eq!(once(), None); // the first receive requires a poll
    let before = other.queue().domain.enter().reads_without_poll;
    assert_eq!(before, 0);
    while other.queue().domain.enter().reads_without_poll < 63 {
        other.receive(&mut to, 1, 7, 6);
        assert_eq!(once(), Some(7));
    }
    one.inject(&mut last, 99);
    other.receive(&mut to, 1, 7, 6);
    assert_eq!(once(), Some(7)); // and polls
    assert_eq!(once(), None, "the program looks at its other sources first");
    assert_eq!(once(), Some(99));
    assert_eq!(answer, last);
}
