//! A peer that restarts before the path to its earlier life opens. The search of small worlds (`weir-prove paths`) found it.

use super::*;

/// The peer asks in epoch 9, restarts, and asks in epoch 10. Then a bundle of epoch 9 arrives late, and opens the path to
/// that life. Returns the bench, and what a bundle of epoch 10 makes this end send.
fn bound_to_a_dead_life(mutant: Option<Mutant>) -> (Bench, Vec<Call>) {
    let mut bench = Bench::new();
    bench.path.broken.mutant = mutant;
    for epoch in [PEERS, PEERS + 1] {
        let header = Header { epoch, destination_epoch: 0, ..bench.header(true) };
        bench.arrives(Datagram { header, ..bare() });
    }
    let late = Header { latest: 0, ..bench.header(false) };
    bench.arrives(Datagram { header: late, position: Some(0), marked: false });
    bench.take();
    let header = Header { epoch: PEERS + 1, latest: 1, ..bench.header(true) };
    bench.arrives(Datagram { header, position: Some(0), marked: false });
    let calls = bench.take();
    assert_eq!(bench.path.view().fault, None, "the datagram may be late");
    (bench, calls)
}

#[test]
fn a_later_life_whose_question_came_before_the_path_opened_is_asked_again() {
    let (mut bench, calls) = bound_to_a_dead_life(None);
    let [Call::Transmit(question, None)] = calls[..] else { panic!("{calls:?}") };
    assert_eq!((question.epoch, question.destination_epoch, question.asks), (OURS, PEERS + 1, true));
    assert_eq!((question.acknowledged, question.latest, question.arrived), (0, u32::MAX, 0), "nothing");
    let header = Header { epoch: PEERS + 1, latest: question.number, ..bench.header(false) };
    bench.arrives(Datagram { header, ..bare() });
    assert_eq!(bench.path.view().fault, Some(PathFault::Restarted));
    let (_, calls) = bound_to_a_dead_life(Some(Mutant::LaterEpochsAreNotAsked));
    assert_eq!(calls, []);
}

#[test]
fn the_question_of_a_peer_that_knows_another_life_acknowledges_nothing() {
    let mut bench = Bench::open();
    bench.submit();
    let question = Header { latest: u32::MAX, ..bench.header(true) };
    bench.arrives(Datagram { header: question, ..bare() });
    let view = bench.path.view();
    assert_eq!((view.unacknowledged_bundles, bench.path.counters().malformed), (1, 0));
}
