//! Who waits for credit with more ranks than cores sleeps soon, and credit wakes it.

mod common;

use std::time::{Duration, Instant};

use weir_engine::config::Settings;
use weir_engine::{Engine, Post};
use weir_link::memory::OwnedMemory;
use weir_proto::{Pattern, Scheme, Space};

const SLEEP: Duration = Duration::from_secs(5);

/// Two endpoints among so many ranks, the first of which has sent ten messages to the second and has credit for four.
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
        // What has arrived is taken, and credit goes back.
        while receiver.progress() > 0 {}
        receiver
    });
    let began = Instant::now();
    let mut polls = 0;
    while sender.progress() == 0 {
        sender.pause();
        polls += 1;
        assert!(began.elapsed() < SLEEP, "credit wakes nobody");
    }
    let waited = began.elapsed();
    assert!(polls < 9, "{polls} polls: who does not wait for credit yields in between");
    assert!(waited > Duration::from_millis(200) && waited < SLEEP / 2, "woken after {waited:?}");
    drop(waker.join().expect("no panic"));
}
