//! Tests which yields of the MPI library the engine skips after each read. One test only: the process has one mark
//! for it.

use weir_engine::Engine;
use weir_engine::config::Settings;
use weir_link::sched_yield::skips_next_yield;

/// More polls than any spin has.
const LONG: usize = 10_000;

/// Whether a yield is skipped after one of a few polls. A process that did not run for a moment looks like a caller that did
/// something else.
fn skips_soon(engine: &mut Engine) -> bool {
    (0..10).any(|_| {
        engine.after_empty_read();
        engine.pause();
        skips_next_yield()
    })
}

#[test]
fn a_yield_is_skipped_only_if_useless() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = Settings { shm_dir: directory.path().into(), sleep_us: 1, ..Settings::default() };
    let open = |peers, several_threads| Engine::open(&settings, peers, several_threads).expect("a mailbox");

    // With a core for every rank, yields are skipped while we spin, and real afterwards.
    let mut core_per_rank = open(1, false);
    assert!(skips_soon(&mut core_per_rank));
    for _ in 0..LONG {
        core_per_rank.after_empty_read();
        core_per_rank.pause();
    }
    assert!(!skips_next_yield(), "the spin is over");

    // With more ranks than cores, or if that is not known, a yield after an empty read is real.
    for peers in [100_000, 0] {
        let mut oversubscribed = open(peers, false);
        oversubscribed.after_successful_read();
        assert!(skips_next_yield());
        oversubscribed.after_empty_read();
        assert!(!skips_next_yield());
        // After many successful reads in a row one yield is real.
        let skipped = (0..LONG).filter(|_| {
            oversubscribed.after_successful_read();
            skips_next_yield()
        });
        assert!((LONG * 9 / 10..LONG * 999 / 1000).contains(&skipped.count()));
    }

    // With more ranks than cores, a caller that can expect nothing works. The engine yields for it now and then.
    let mut working = open(100_000, false);
    for _ in 0..LONG {
        working.after_empty_read();
        working.pause();
    }
    assert!(skips_soon(&mut working));
    working.several_threads_call();
    working.after_empty_read();
    working.pause();
    assert!(!skips_next_yield(), "another thread may need the lock");

    // With several threads one may wait for a lock that the other releases only to yield.
    let mut shared = open(1, true);
    shared.after_successful_read();
    assert!(!skips_next_yield());
    shared.after_empty_read();
    assert!(!skips_next_yield());
    let mut serialised = open(1, false);
    serialised.after_successful_read();
    assert!(skips_next_yield());
    serialised.several_threads_call();
    serialised.after_successful_read();
    assert!(!skips_next_yield(), "a second thread has called");

    // No yield is skipped if FI_WEIR_SKIP_YIELDS is 0.
    let mut plain =
        Engine::open(&Settings { skip_yields: false, ..settings.clone() }, 1, false).expect("a mailbox");
    plain.after_successful_read();
    assert!(!skips_next_yield());
}
