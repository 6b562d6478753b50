//! The window after timeouts in a row: those of lost bundles take it away, those of a peer that did not run do not.

use super::*;

/// The window after ten bundles, a probe of the first one and two timeouts. Numbers 2 to 11 are those of the bundles, 12
/// to 14 are sent again. The peer then acknowledges positions before `before`, and numbers up to 11 or 14.
fn window_after_two_timeouts(before: u32, latest: u32, arrived: u64, mutant: Option<Mutant>) -> u64 {
    let mut bench = measured(100, mutant);
    (1..=10).for_each(|_| drop(bench.submit()));
    assert_eq!(positions(&bench.run_until(Instant(1_500 * MICROSECOND))), [1, 1, 1]);
    assert_eq!((bench.path.counters().timeouts, bench.path.sender.counts.probes), (2, 1));
    assert_eq!(bench.path.view().window_bytes, 2 * u64::from(ReliabilityConfig::default().datagram_bytes));
    bench.acknowledgement_arrives(before, latest, arrived);
    bench.path.view().window_bytes
}

#[test]
fn a_peer_that_did_not_run_has_its_window_again_when_it_answers() {
    let most_bytes = measured(100, None).path.view().window_bytes;
    assert_eq!(window_after_two_timeouts(11, 11, !0, None), most_bytes);
    assert_eq!(window_after_two_timeouts(11, 14, !0, None), most_bytes, "it has read the copies too");
    let broken = Some(Mutant::NeedlessTimeoutsTakeTheWindow);
    assert!(window_after_two_timeouts(11, 11, !0, broken) < most_bytes / 8);
}

#[test]
fn a_window_stays_small_after_timeouts_of_a_lost_bundle() {
    let most_bytes = measured(100, None).path.view().window_bytes;
    // Bit 11 is number 2, the first transmission of the first bundle.
    assert!(window_after_two_timeouts(11, 14, !(1 << 11), None) < most_bytes / 8);
}
