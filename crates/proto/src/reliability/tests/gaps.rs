//! The limit while this process does not run: what it skips, and its bound.

use super::*;

const SECOND: u64 = 1_000_000_000;
const LIMIT: u64 = 10 * SECOND;

/// Runs the timer once, so much later than it is set. Returns whether the peer is lost.
fn run_late(bench: &mut Bench, late_ns: u64) -> bool {
    let timer = bench.calls.timer.take().expect("a silent peer has a timer");
    bench.now = bench.now.max(timer.plus_ns(late_ns));
    bench.path.expired(bench.now, &mut bench.calls);
    bench.take().contains(&Call::Lost(PathFault::Silent))
}

/// A peer that answers nothing any more, although a bundle waits for it, or a question.
fn silent(is_bundle: bool) -> Bench {
    let mut bench = Bench::open();
    bench.now = Instant(SECOND);
    if is_bundle {
        bench.submit();
    } else {
        bench.path.check(bench.now, &mut bench.calls);
    }
    bench.take();
    bench
}

#[test]
fn a_process_that_is_always_late_loses_a_silent_peer_within_twice_the_limit_and_two_gaps() {
    for is_bundle in [true, false] {
        for late_ns in [0, SECOND / 20, SECOND / 5, SECOND, 7 * SECOND, 3600 * SECOND] {
            let mut bench = silent(is_bundle);
            let mut rounds = 0;
            while !run_late(&mut bench, late_ns) {
                rounds += 1;
                assert!(rounds < 10_000, "{late_ns} ns late: never");
            }
            let took_ns = bench.now.since_ns(Instant(SECOND));
            assert!(
                (LIMIT..=2 * LIMIT + 2 * late_ns + SECOND / 5).contains(&took_ns),
                "{late_ns} late: {took_ns}"
            );
        }
    }
}

#[test]
fn a_process_that_continues_gives_its_peers_the_rest_of_the_limit_again_after_each_answer() {
    let mut bench = silent(false);
    for stop in 0..5 {
        assert!(!run_late(&mut bench, 3600 * SECOND), "stop {stop}");
        let stopped_at = bench.now;
        bench.run_until(stopped_at.plus_ns(LIMIT - 2 * SECOND));
        assert!(bench.path.view().fault.is_none(), "the peer has nearly the whole limit to answer");
        let latest = bench.path.sender.next_number() as u32 - 1;
        bench.acknowledgement_arrives(0, latest, 0);
        assert_eq!(bench.path.silent_since(), None);
        bench.path.check(bench.now, &mut bench.calls);
        bench.take();
    }
    assert!(!run_late(&mut bench, 3600 * SECOND));
    assert!(run_late(&mut bench, 3600 * SECOND), "two stops without an answer between them");
}
