//! Tests of a path whose bundles wait in a queue of its host, while datagrams without a bundle leave directly (the proxy).

use super::*;

/// A path with a round trip of 100 us and four bundles in the queue: positions 1 to 4, numbers 2 to 5.
fn with_queue(mutant: Option<Mutant>) -> Bench {
    let mut bench = measured(100, mutant);
    bench.calls.queued = Some(FIRST..FIRST + 5);
    (0..4).for_each(|_| assert_eq!(bench.submit().len(), 1));
    bench
}

/// All bundles leave the queue.
fn leave_the_queue(bench: &mut Bench) {
    bench.calls.queued = Some(FIRST..FIRST);
}

/// An acknowledgement without a bundle leaves.
fn acknowledge(bench: &mut Bench, position: u32) {
    bench.bundle_arrives(position);
    bench.path.idle(bench.now, &mut bench.calls);
    assert_eq!(bare_count(&bench.take()), 1);
}

/// What is sent again when three acknowledgements have passed four bundles that have just left the queue.
fn sent_again_after_acknowledgements_passed(mutant: Option<Mutant>) -> Vec<u64> {
    let mut bench = with_queue(mutant);
    (0..3).for_each(|position| acknowledge(&mut bench, position)); // numbers 6 to 8
    leave_the_queue(&mut bench);
    let mut again = positions(&bench.acknowledgement_arrives(1, 8, 0b11));
    again.extend(positions(&bench.run_until(bench.now.plus_ns(200 * MICROSECOND))));
    // Bundles behind them do show a loss.
    assert!(mutant.is_some() || positions(&bench.acknowledgement_arrives(1, 8, 0b1_1111)) == [1]);
    again
}

#[test]
fn an_acknowledgement_that_passes_the_queue_shows_no_loss() {
    assert_eq!(sent_again_after_acknowledgements_passed(None), []);
    let mutant = Some(Mutant::AnyArrivalPassesTheQueue);
    assert_eq!(sent_again_after_acknowledgements_passed(mutant), [1, 2, 3, 4]);
}

#[test]
fn without_a_queue_an_acknowledgement_shows_the_loss_of_bundles_before_it() {
    let mut bench = with_queue(None);
    bench.calls.queued = None;
    (0..3).for_each(|position| acknowledge(&mut bench, position));
    assert_eq!(positions(&bench.acknowledgement_arrives(1, 8, 0b11)), [1, 2, 3, 4]);
}

/// What is sent again within 3 ms, while bundles wait in the queue.
fn sent_again_while_queued(bench: &mut Bench) -> Vec<u64> {
    let begin = bench.now;
    (0..=12).flat_map(|looks| positions(&bench.run_until(begin.plus_ns(looks * 250 * MICROSECOND)))).collect()
}

#[test]
fn what_waits_in_the_queue_is_neither_probed_nor_timed_out_and_its_wait_begins_when_it_leaves() {
    let mut bench = with_queue(None);
    assert_eq!(sent_again_while_queued(&mut bench), []);
    assert_eq!((bench.path.counters().timeouts, bench.path.sender.counts.probes), (0, 0));
    leave_the_queue(&mut bench);
    assert_eq!(positions(&bench.run_until(bench.now.plus_ns(249 * MICROSECOND))), []);
    assert_eq!(positions(&bench.run_until(bench.now.plus_ns(MICROSECOND))), [1]);
    let again = sent_again_while_queued(&mut with_queue(Some(Mutant::QueuedBundlesAreSentAgain)));
    assert!(again.len() >= 3, "{again:?}");
}

/// What is sent again when bundles have overtaken one that waits in the queue, for example because it was sent again.
fn sent_again_when_overtaken_in_the_queue(mutant: Option<Mutant>) -> (Bench, Vec<u64>) {
    let mut bench = with_queue(mutant);
    bench.calls.queued = Some(FIRST + 1..FIRST + 2);
    let again = positions(&bench.acknowledgement_arrives(1, 5, 0b11));
    (bench, again)
}

#[test]
fn what_waits_in_the_queue_is_not_lost_before_it_has_left() {
    let (mut bench, again) = sent_again_when_overtaken_in_the_queue(None);
    assert_eq!(again, []);
    assert_eq!(positions(&bench.run_until(bench.now.plus_ns(1000 * MICROSECOND))), []);
    leave_the_queue(&mut bench);
    assert_eq!(positions(&bench.run_until(bench.now.plus_ns(125 * MICROSECOND))), [1]);
    let (_, again) = sent_again_when_overtaken_in_the_queue(Some(Mutant::QueuedBundlesAreSentAgain));
    assert_eq!(again, [1]);
}
