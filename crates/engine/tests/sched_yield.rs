//! Which yields of a program are left out, as the engine decides after each read. One test: there is one mark for the process.

use weir_engine::Engine;
use weir_engine::config::Settings;
use weir_link::sched_yield::skips_next_yield;

/// More calls than any engine spins.
const LONG: usize = 10_000;

#[test]
fn a_yield_is_skipped_only_if_useless() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = Settings { shm_dir: directory.path().into(), sleep_us: 1, ..Settings::default() };
    let open = |peers, several_threads| Engine::open(&settings, peers, several_threads).expect("a mailbox");

    // A core for every rank: not while we spin, then always.
    let mut core_per_rank = open(1, false);
    core_per_rank.after_empty_read();
    core_per_rank.pause();
    assert!(skips_next_yield());
    for _ in 0..LONG {
        core_per_rank.after_empty_read();
        core_per_rank.pause();
    }
    assert!(!skips_next_yield(), "we have ceased to spin");

    // More ranks than cores, or nobody knows: whoever finds nothing gives the core away.
    for peers in [100_000, 0] {
        let mut oversubscribed = open(peers, false);
        oversubscribed.after_successful_read();
        assert!(skips_next_yield());
        oversubscribed.after_empty_read();
        assert!(!skips_next_yield());
        // Whoever always finds something gives it away now and then.
        let skipped = (0..LONG).filter(|_| {
            oversubscribed.after_successful_read();
            skips_next_yield()
        });
        assert!((LONG * 9 / 10..LONG * 999 / 1000).contains(&skipped.count()));
    }

    // Several threads: one may wait for a lock that the other lets go of only to yield.
    let mut shared = open(1, true);
    shared.after_successful_read();
    assert!(!skips_next_yield());
    shared.after_empty_read();
    assert!(!skips_next_yield());
    let mut second_thread = open(1, false);
    second_thread.pause();
    let is_skipped = std::thread::spawn(move || {
        second_thread.pause();
        second_thread.after_successful_read();
        skips_next_yield()
    });
    assert!(!is_skipped.join().expect("no panic"), "a second thread has called");

    // And not where the user does not want it.
    let mut plain =
        Engine::open(&Settings { skip_yields: false, ..settings.clone() }, 1, false).expect("a mailbox");
    plain.after_successful_read();
    assert!(!skips_next_yield());
}
