//! Tests of closing endpoints, at exit too, and of sends to receivers without memory. Each test has a process of
//! its own, because settings and the exit handler concern a process.

use std::io::{Read, Seek, Write};
use std::os::fd::FromRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::*;
use crate::closing::close_all;
use crate::state::domain_state::{Domain, State};

/// More messages than a mailbox has slots for one sender.
const MANY: usize = 20_000;

/// [`run_in_child`] with settings. A child that hangs is killed after a minute.
fn run_with(settings: &[(&str, &str)], child: impl FnOnce()) {
    run_in_child(|| {
        // SAFETY: the child has one thread.
        settings.iter().for_each(|(name, value)| unsafe { std::env::set_var(name, value) });
        // SAFETY: no handler is set, so the signal ends the child.
        unsafe { libc::alarm(60) };
        child();
    });
}

/// Takes what this process writes to standard error from now on, until it is dropped.
struct Stderr {
    text: std::fs::File,
    before: c_int,
}

impl Stderr {
    fn take() -> Stderr {
        // SAFETY: these calls take descriptors and a string. The new descriptor belongs to the file alone.
        unsafe {
            let before = libc::dup(2);
            let descriptor = libc::memfd_create(c"stderr".as_ptr(), 0);
            assert!(before >= 0 && descriptor >= 0 && libc::dup2(descriptor, 2) == 2);
            Stderr { text: std::fs::File::from_raw_fd(descriptor), before }
        }
    }

    fn lines(&mut self) -> Vec<String> {
        let mut text = String::new();
        self.text.rewind().expect("a file");
        self.text.read_to_string(&mut text).expect("text");
        text.lines().map(String::from).collect()
    }
}

impl Drop for Stderr {
    fn drop(&mut self) {
        // SAFETY: both are open descriptors.
        unsafe { libc::dup2(self.before, 2) };
        let text = self.lines().join("\n") + "\n";
        let _ = std::io::stderr().write_all(text.as_bytes()); // not to the test harness, which is another process
    }
}

fn close_endpoint(side: &mut Side) -> c_int {
    let endpoint = side.endpoint.take().expect("open");
    (ops::<EndpointHandle>(&endpoint.fid).close)(endpoint)
}

/// Without another thread, closing an endpoint polls all others of the process.
fn add_idle_thread() {
    std::thread::spawn(|| std::thread::sleep(Duration::from_secs(3600)));
}

#[test]
fn closing_gives_up_what_a_living_receiver_does_not_take() {
    run_with(&[("FI_WEIR_LINGER_S", "1"), ("FI_WEIR_CLOSE_MS", "100")], || {
        let mut stderr = Stderr::take();
        let (mut one, other) = pair(threading::DOMAIN, 0);
        add_idle_thread();
        other.inject(&mut [1; 8], 1); // so that it knows the endpoint that closes
        (0..100).for_each(|_| {
            one.progress();
            other.progress();
        });
        (0..MANY).for_each(|_| one.inject(&mut [1; 8], 1));
        let began = Instant::now();
        assert_eq!(close_endpoint(&mut one), -libc::ETIMEDOUT);
        let waited = began.elapsed();
        assert!((Duration::from_secs(1)..Duration::from_secs(20)).contains(&waited), "{waited:?}");
        let lines = stderr.lines();
        let given_up: Vec<_> = lines.iter().filter(|line| line.contains("gives up")).collect();
        assert_eq!(given_up.len(), 1, "{lines:?}");
        let process = format!("process {}", std::process::id());
        assert!(given_up[0].starts_with(&format!("weir: {process} closes and gives up 1")), "{lines:?}");
        assert!(given_up[0].contains(&format!(" KiB) to {process}; set FI_WEIR_LINGER_S")), "{lines:?}");
        // The receiver does not wait for the messages that do not come.
        let mut to = [0; 8];
        let lost = loop {
            other.receive(&mut to, 1, 1, 5);
            match other.read(&other) {
                Ok(_) => {}
                Err(-259) => break other.error().err,
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(lost, libc::ECONNRESET);
        std::mem::forget((one, other));
    });
}

#[test]
fn closing_does_not_wait_if_the_linger_time_is_0() {
    run_with(&[("FI_WEIR_LINGER_S", "0")], || {
        let (mut one, other) = pair(threading::DOMAIN, 0);
        add_idle_thread();
        (0..MANY).for_each(|_| one.inject(&mut [1; 8], 1));
        let began = Instant::now();
        assert_eq!(close_endpoint(&mut one), -libc::ETIMEDOUT);
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        std::mem::forget((one, other));
    });
}

#[test]
fn an_endpoint_that_closes_delivers_to_an_endpoint_of_its_domain() {
    run_with(&[], || {
        let mut one = Side::open(threading::DOMAIN, version(1, 21), cq_format::TAGGED, 0);
        let info: FiInfo = zeroed();
        let second = opened(|out| (table(one.domain.ops).endpoint)(&one.domain, Some(&info), out, 0));
        let fid = ops::<EndpointHandle>(&second.fid);
        assert_eq!((fid.bind)(&second, any(&one.vector.as_ref().expect("open").fid), 0), 0);
        assert_eq!((fid.bind)(&second, any(&one.queue().fid), flags::SEND | flags::RECV), 0);
        assert_eq!((fid.control)(&second, control::ENABLE, std::ptr::null_mut()), 0);
        let first = one.endpoint.replace(second).expect("open");
        let second_address = one.address();
        let second = one.endpoint.replace(first).expect("open");
        one.insert_addresses(&[one.address(), second_address]);

        (0..MANY).for_each(|_| one.inject(&mut [1; 8], 1));
        let began = Instant::now();
        assert_eq!(close_endpoint(&mut one), 0);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        one.endpoint = Some(second);
        let mut to = [0; 8];
        for _ in 0..MANY {
            one.receive(&mut to, 0, 1, 5);
            let (entry, _) = one.read(&one).expect("a message");
            assert_eq!((entry.op_context, to), (5, [1; 8]));
            to = [0; 8];
        }
    });
}

#[test]
fn an_endpoint_that_closes_in_a_process_of_one_thread_delivers_to_its_other_domains() {
    run_with(&[("FI_WEIR_UNEXPECTED_BUDGET", "65536")], || {
        let mut stderr = Stderr::take();
        let (mut first, second) = pair(threading::DOMAIN, 0);
        (0..MANY).for_each(|_| first.inject(&mut [1; 0], 1));
        assert_eq!(close_endpoint(&mut first), 0);
        // Nobody can take what the budget of the receiver does not hold, so closing does not wait for that.
        let (mut third, fourth) = pair(threading::DOMAIN, 0);
        (0..MANY).for_each(|_| third.inject(&mut [1; 2048], 1));
        let began = Instant::now();
        assert_eq!(close_endpoint(&mut third), -libc::ETIMEDOUT);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert_eq!(stderr.lines().iter().filter(|line| line.contains("gives up")).count(), 1);
        std::mem::forget((first, second, third, fourth));
    });
}

#[test]
fn endpoints_that_are_open_at_exit_do_not_wait_for_each_other() {
    for threading in [threading::SAFE, threading::DOMAIN] {
        run_with(&[], || {
            let (one, other) = pair(threading, 0);
            for _ in 0..MANY {
                one.inject(&mut [1; 8], 1);
                other.inject(&mut [1; 8], 1);
            }
            let began = Instant::now();
            close_all();
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
            std::mem::forget((one, other));
        });
    }
}

/// Whether the first endpoint of a domain is open, as a call sees it.
fn is_open(state: &mut State) -> bool {
    state.endpoints.iter_mut().any(|endpoint| endpoint.engine().is_some())
}

/// A thread inside calls of a serialised domain, each of which lasts `call`. It notes in `CHANGED` if something else
/// changes the domain during a call.
fn call_forever(domain: &Domain, call: Duration) {
    loop {
        let mut state = domain.enter();
        INSIDE.store(true, SeqCst);
        let before = is_open(&mut state);
        std::thread::sleep(call);
        CHANGED.fetch_or(is_open(&mut state) != before, SeqCst);
        INSIDE.store(false, SeqCst);
    }
}

fn wait_until_inside() {
    while !INSIDE.load(SeqCst) {
        std::thread::yield_now();
    }
}

static INSIDE: AtomicBool = AtomicBool::new(false);
static CHANGED: AtomicBool = AtomicBool::new(false);

#[test]
fn the_exit_handler_waits_for_the_call_of_a_polling_thread() {
    run_with(&[], || {
        let (one, other) = pair(threading::DOMAIN, 0);
        let domain = Arc::clone(&one.queue().domain);
        std::thread::spawn(move || call_forever(&domain, Duration::from_millis(50)));
        wait_until_inside();
        close_all();
        assert!(!INSIDE.load(SeqCst) && !CHANGED.load(SeqCst), "two threads had the state");
        let mut state = one.queue().domain.enter();
        assert!(!is_open(&mut state), "the exit handler has closed the endpoint");
        std::thread::sleep(Duration::from_millis(100));
        assert!(!INSIDE.load(SeqCst), "the other thread calls no more");
        drop(state);
        std::mem::forget((one, other));
    });
}

#[test]
fn the_exit_handler_leaves_a_domain_alone_in_which_a_call_does_not_end() {
    run_with(&[], || {
        let mut stderr = Stderr::take();
        let (one, other) = pair(threading::DOMAIN, 0);
        let domain = Arc::clone(&one.queue().domain);
        std::thread::spawn(move || call_forever(&domain, Duration::from_secs(3)));
        wait_until_inside();
        let began = Instant::now();
        close_all();
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        assert!(INSIDE.load(SeqCst));
        std::thread::sleep(Duration::from_secs(3));
        assert!(!CHANGED.load(SeqCst), "two threads had the state");
        let lines = stderr.lines();
        assert!(lines.len() == 1 && lines[0].contains("1 endpoint stays open"), "{lines:?}");
        std::mem::forget((one, other));
    });
}

#[test]
fn a_delivered_send_to_a_receiver_without_memory_completes_when_it_is_taken() {
    run_with(&[("FI_WEIR_UNEXPECTED_BUDGET", "65536")], || {
        let (one, other) = pair(threading::DOMAIN, 0);
        for _ in 0..100 {
            one.inject(&mut [1; 2048], 1);
            other.progress();
            one.progress();
        }
        // A receiver over its budget leaves the message with its sender, so it is only inject-complete.
        one.send(&mut [2; 512], 0, 2, 10);
        assert_eq!(one.read(&other).expect("a completion").0.op_context, 10);

        for (tag, level) in [(3, flags::DELIVERY_COMPLETE), (4, flags::TRANSMIT_COMPLETE)] {
            let (mut from, mut to) = ([3_u8; 512], [0; 512]);
            let pieces = [libc::iovec { iov_base: from.as_mut_ptr().cast(), iov_len: from.len() }];
            // SAFETY: the buffer lives until the send is complete.
            let msg_iov = unsafe { UserVector::new(pieces.as_ptr()) };
            let message = FiMsgTagged { msg_iov, iov_count: 1, addr: 1, tag, context: 11, ..zeroed() };
            let flags = flags::COMPLETION | level;
            assert_eq!((one.tagged().sendmsg)(one.endpoint(), &message, flags), 0);
            for _ in 0..1000 {
                one.progress();
                other.progress();
            }
            let mut entry = [zeroed::<FiCqTaggedEntry>()];
            let out = OutArray::from(&mut entry[..]).cast();
            assert_eq!((table(one.queue().ops).read)(one.queue(), out, 1), -11, "nobody has taken it");
            other.receive(&mut to, 1, tag, 12);
            assert_eq!(other.read(&one).expect("the message").0.op_context, 12);
            assert_eq!(one.read(&other).expect("the completion").0.op_context, 11);
            assert_eq!(to, from);
        }
        std::mem::forget((one, other));
    });
}
