//! Test of an engine: with more ranks than cores, a sender that waits for credit sleeps soon, and a credit wakes
//! it.

mod common;

use std::time::{Duration, Instant};

use weir_engine::config::Settings;
use weir_engine::{Engine, Post};
use weir_link::memory::OwnedMemory;
use weir_proto::{Pattern, Scheme, Space};

const SLEEP: Duration = Duration::from_secs(5);

/// Two endpoints of a job of `ranks` ranks. The first has sent ten messages to the second and had credit for four.
fn sender_without_credit(directory: &tempfile::TempDir, ranks: u32) -> (Engine, Engine) {
    let settings = Settings {
        scheme: Scheme::Static { piggyback: true },
        shm_dir: directory.path().into(),
        mailbox_slots: 4 * ranks,
        credit_slots: 1,
        sleep_us: SLEEP.as_micros() as u32,
        close_ms: 100,
        ..Settings::default()
    };
    let open = || Engine::open(&settings, ranks, false).expect("a mailbox");
    let (mut sender, receiver) = (open(), open());
    common::inject(&mut sender, &receiver, 10);
    while sender.progress() > 0 {}
    (sender, receiver)
}

#[test]
fn an_oversubscribed_sender_sleeps_after_few_polls_until_credit_arrives() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut sender, mut receiver) =
        sender_without_credit(&directory, 4 * weir_link::cores::available() as u32);
    let waker = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        let into = OwnedMemory::new(8);
        let pattern = Pattern { space: Space::Tagged, from: None, tag: 7, ignore: 0 };
        for _ in 0..10 {
            receiver.receive(Post::default(), pattern, into.view(), None).expect("taken");
        }
        // Receives what has arrived and returns credit.
        while receiver.progress() > 0 {}
        receiver
    });
    let began = Instant::now();
    let mut polls = 0;
    while sender.progress() == 0 {
        sender.pause();
        polls += 1;
        assert!(began.elapsed() < SLEEP, "the credit did not wake the sender");
    }
    let waited = began.elapsed();
    assert!(polls < 9, "{polls} polls: the sender yielded instead of sleeping");
    assert!(waited > Duration::from_millis(200) && waited < SLEEP / 2, "woken after {waited:?}");
    drop(waker.join().expect("no panic"));
}
