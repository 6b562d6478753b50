//! Tests of automatic progress: a thread answers while the program computes, sleeps while nothing comes, and ends with its
//! endpoint.

use std::time::{Duration, Instant};

use super::*;

const AUTOMATIC: Choices =
    Choices { caps: 0, progress: progress::AUTO, queue_wait: wait_obj::NONE, counter_wait: wait_obj::NONE };

/// Names of the threads of this process.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the system tells");
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok().map(|name| name.trim().to_string())
    };
    tasks.filter_map(name).collect()
}

/// Waits until so many threads make progress. A thread names itself after its start, and the system lists an ended one for
/// a moment.
fn expect_progress_threads(count: usize) {
    let until = Instant::now() + Duration::from_secs(10);
    while threads().iter().filter(|name| *name == "weir-progress").count() != count {
        assert!(Instant::now() < until, "{:?}", threads());
    }
}

#[test]
fn a_remote_read_is_answered_while_the_target_computes() {
    run_in_child(|| {
        // A region that words of memory cannot be copied from directly is answered by packets.
        let (one, other) = pair_with(threading::DOMAIN, 0, Choices::default(), AUTOMATIC);
        let mut window = [7_u8; 64];
        let access = flags::REMOTE_READ | flags::REMOTE_WRITE;
        let window_buffer = buffer(&mut window);
        let region: Box<RegionHandle> = opened(|out| {
            (table(other.domain.mr).reg)(&other.domain, window_buffer, 64, access, 0, 5, 0, out, 0)
        });
        let (mut to, null) = ([0; 64], std::ptr::null_mut());
        for round in 0..20 {
            let rma = table(one.endpoint().rma);
            assert_eq!((rma.read)(one.endpoint(), buffer(&mut to), 64, null, 1, 0, 5, round), 0);
            // The target makes no call.
            let until = Instant::now() + Duration::from_secs(5);
            let mut entry = [zeroed::<FiCqTaggedEntry>()];
            let ops = table(one.queue().ops);
            while (ops.read)(one.queue(), OutArray::from(&mut entry[..]).cast(), 1) != 1 {
                assert!(Instant::now() < until, "no answer");
            }
            assert_eq!((entry[0].op_context, to), (round, [7; 64]));
            if round % 4 == 0 {
                std::thread::sleep(Duration::from_millis(5)); // the thread sleeps again
            }
        }
        assert_eq!((ops::<RegionHandle>(&region.fid).close)(region), 0);
    });
}

#[test]
fn a_message_is_received_while_the_program_computes_and_polls() {
    run_in_child(|| {
        let (one, other) = pair_with(threading::DOMAIN, 0, Choices::default(), AUTOMATIC);
        let mut to = vec![0_u8; 100_000];
        for round in 0..30_u8 {
            let mut from = vec![round; 100_000];
            other.receive(&mut to, 1, 1, 7);
            one.send(&mut from, 0, 1, 8);
            // A long message completes at its sender although the receiver makes no call in most rounds.
            if round % 3 == 0 {
                for _ in 0..round {
                    other.progress();
                }
            }
            let until = Instant::now() + Duration::from_secs(5);
            let mut entry = [zeroed::<FiCqTaggedEntry>()];
            let ops = table(one.queue().ops);
            while (ops.read)(one.queue(), OutArray::from(&mut entry[..]).cast(), 1) != 1 {
                assert!(Instant::now() < until, "the send does not complete");
            }
            assert_eq!(entry[0].op_context, 8);
            assert_eq!(other.read(&one).expect("the message").0.op_context, 7);
            assert!(to.iter().all(|&byte| byte == round));
        }
    });
}

#[test]
fn a_blocking_read_gets_what_the_thread_has_received() {
    run_in_child(|| {
        for queue_wait in [wait_obj::UNSPEC, wait_obj::FD] {
            let choices = Choices { queue_wait, ..AUTOMATIC };
            let (one, other) = pair_with(threading::SAFE, 0, Choices::default(), choices);
            let mut to = [0; 4];
            for round in 0..100_u8 {
                other.receive(&mut to, 1, 1, 7);
                one.inject(&mut [round; 4], 1);
                let mut entry = [zeroed::<FiCqTaggedEntry>()];
                let into = OutArray::from(&mut entry[..]).cast();
                let ops = table(other.queue().ops);
                assert_eq!((ops.sread)(other.queue(), into, 1, std::ptr::null(), 10_000), 1);
                assert_eq!((entry[0].op_context, to), (7, [round; 4]));
            }
            let begun = Instant::now();
            let ops = table(other.queue().ops);
            assert_eq!((ops.sread)(other.queue(), OutArray::none(), 1, std::ptr::null(), 30), -11);
            assert!(begun.elapsed() >= Duration::from_millis(30));
        }
    });
}

#[test]
fn each_endpoint_has_one_thread_which_ends_with_it() {
    run_in_child(|| {
        expect_progress_threads(0);
        let (one, other) = pair_with(threading::SAFE, 0, AUTOMATIC, AUTOMATIC);
        expect_progress_threads(2);
        drop(other);
        expect_progress_threads(1);
        drop(one);
        expect_progress_threads(0);
        let manual = pair(threading::SAFE, 0);
        assert_eq!(threads().len(), 1, "manual progress starts no thread");
        drop(manual);
    });
}

#[test]
fn the_thread_sleeps_while_nothing_arrives() {
    run_in_child(|| {
        let (one, other) = pair_with(threading::SAFE, 0, Choices::default(), AUTOMATIC);
        let mut to = [0; 4];
        other.receive(&mut to, 1, 1, 7);
        one.inject(&mut [1; 4], 1);
        assert_eq!(other.read(&one).expect("a message").0.op_context, 7);
        std::thread::sleep(Duration::from_millis(50));
        let (before, begun) = (switches(), Instant::now());
        while begun.elapsed() < Duration::from_secs(1) {
            std::hint::spin_loop(); // the program computes
        }
        assert!(switches() - before < 20, "{} sleeps in a second", switches() - before);
    });
}

/// Times that a thread of this process has slept.
fn switches() -> i64 {
    let mut usage: libc::rusage = zeroed();
    // SAFETY: the kernel fills a structure that lives across the call.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) }, 0);
    usage.ru_nvcsw
}

#[test]
fn what_a_program_leaves_open_is_closed_and_no_thread_remains() {
    run_in_child(|| {
        let (one, other) = pair_with(threading::SAFE, 0, AUTOMATIC, AUTOMATIC);
        one.inject(&mut [1; 4], 1);
        crate::closing::close_all();
        expect_progress_threads(0);
        std::mem::forget((one, other));
    });
}
