//! Tests of reliability: exact rules of one path here, for a queue before the network (`queued`) and for timeouts in a row
//! (`collapse`), for processes that do not run (`gaps`), and for acknowledgements that wait (`delay`).
//!
//! Sets and numbers are compared with plain ones (`numbers`). Random worlds have two paths on a network with faults (`world`).
//! They must also detect the mutants.

extern crate std;

use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZeroU16;
use core::ops::Range;

use super::datagram::STANDING_DIVISOR;
use super::*;

mod collapse;
mod delay;
mod gaps;
mod garbage;
mod numbers;
mod queued;
mod restarts;
mod world;

const MICROSECOND: u64 = 1_000;

/// What a path has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Transmit(Header, Option<u64>),
    Deliver(u64),
    Hold(u64),
    DeliverHeld(u64),
    Acknowledged(u64),
    Ready,
    Lost(PathFault),
}

/// Records calls, and the timer.
struct Calls {
    calls: Vec<Call>,
    timer: Option<Instant>,
    is_busy: bool,
    is_crowded: bool,
    awaits_acknowledgement: bool,
    /// Bundles leave through a queue, and those of these positions wait there.
    queued: Option<Range<u64>>,
    standing: Standing,
    standings_asked: u32,
}

impl Default for Calls {
    fn default() -> Calls {
        Calls {
            calls: Vec::new(),
            timer: None,
            is_busy: false,
            is_crowded: false,
            awaits_acknowledgement: false,
            queued: None,
            standing: Standing::Unknown,
            standings_asked: 0,
        }
    }
}

impl DatagramDriver for Calls {
    fn transmit(&mut self, header: &Header, position: Option<u64>) -> Result<(), LinkBusy> {
        if self.is_busy {
            return Err(LinkBusy);
        }
        self.calls.push(Call::Transmit(*header, position));
        Ok(())
    }
    fn has_queue(&self) -> bool {
        self.queued.is_some()
    }
    fn is_queued(&self, position: u64) -> bool {
        self.queued.as_ref().is_some_and(|queued| queued.contains(&position))
    }
    fn deliver(&mut self, position: u64) {
        self.calls.push(Call::Deliver(position));
    }
    fn hold(&mut self, position: u64) {
        self.calls.push(Call::Hold(position));
    }
    fn deliver_held(&mut self, position: u64) {
        self.calls.push(Call::DeliverHeld(position));
    }
    fn acknowledged(&mut self, before: u64) {
        self.calls.push(Call::Acknowledged(before));
    }
    fn ready(&mut self) {
        self.calls.push(Call::Ready);
    }
    fn awaits_acknowledgement(&self) -> bool {
        self.awaits_acknowledgement
    }
    fn is_crowded(&self) -> bool {
        self.is_crowded
    }
    fn standing(&mut self) -> Standing {
        self.standings_asked += 1;
        self.standing
    }
    fn lost(&mut self, fault: PathFault) {
        self.calls.push(Call::Lost(fault));
    }
    fn set_timer(&mut self, at: Instant) {
        self.timer = Some(at);
    }
}

const OURS: u16 = 7;
const PEERS: u16 = 9;
const FIRST: u64 = sequence::BASE;

/// One path with epoch 7, whose peer has epoch 9.
struct Bench {
    path: ReliablePath,
    calls: Calls,
    now: Instant,
    /// Of the peer.
    number: u32,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(ReliabilityConfig::default())
    }

    fn with(config: ReliabilityConfig) -> Bench {
        let path = ReliablePath::new(config, epoch(OURS));
        Bench { path, calls: Calls::default(), now: Instant(0), number: 0 }
    }

    /// A path that has opened, and has sent nothing but an answer.
    fn open() -> Bench {
        Bench::open_with(ReliabilityConfig::default())
    }

    fn open_with(config: ReliabilityConfig) -> Bench {
        let mut bench = Bench::with(config);
        bench.arrives(Datagram { header: Header { destination_epoch: 0, ..bench.header(true) }, ..bare() });
        bench.arrives(Datagram { header: bench.header(false), ..bare() });
        bench.take();
        bench
    }

    /// The header of the peer's next datagram. It acknowledges nothing.
    fn header(&self, asks: bool) -> Header {
        Header {
            epoch: PEERS,
            destination_epoch: OURS,
            number: self.number,
            acknowledged: 0,
            latest: 0,
            arrived: 0,
            marks: 0,
            asks,
            delay_doublings: 0,
        }
    }

    fn arrives(&mut self, datagram: Datagram) {
        self.number = self.number.wrapping_add(1);
        self.path.arrived(self.now, &datagram, &mut self.calls);
    }

    /// A bundle of the peer arrives, alone in its batch, and is not read yet.
    fn bundle_arrives_unread(&mut self, position: u32) -> Vec<Call> {
        self.arrives(Datagram { header: self.header(false), position: Some(position), marked: false });
        self.path.batch_ended(self.now, &mut self.calls);
        self.take()
    }

    /// The same, and it is read.
    fn bundle_arrives(&mut self, position: u32) -> Vec<Call> {
        let mut calls = self.bundle_arrives_unread(position);
        self.path.bundles_read(self.now, &mut self.calls);
        calls.extend(self.take());
        calls
    }

    /// The peer acknowledges positions before `before`, and numbers up to `latest`.
    fn acknowledgement_arrives(&mut self, before: u32, latest: u32, arrived: u64) -> Vec<Call> {
        let header = Header { acknowledged: before, latest, arrived, ..self.header(false) };
        self.arrives(Datagram { header, ..bare() });
        self.take()
    }

    fn submit(&mut self) -> Vec<Call> {
        self.path.submit(self.now, 100, &mut self.calls).expect("the window has room");
        self.take()
    }

    /// Runs the timer until `at`.
    fn run_until(&mut self, at: Instant) -> Vec<Call> {
        while let Some(timer) = self.calls.timer.filter(|&timer| timer <= at) {
            self.calls.timer = None;
            self.now = self.now.max(timer);
            self.path.expired(self.now, &mut self.calls);
        }
        self.now = at;
        self.take()
    }

    fn take(&mut self) -> Vec<Call> {
        core::mem::take(&mut self.calls.calls)
    }
}

fn epoch(epoch: u16) -> NonZeroU16 {
    NonZeroU16::new(epoch).expect("an epoch is not 0")
}

fn bare() -> Datagram {
    let header = Header {
        epoch: 0,
        destination_epoch: 0,
        number: 0,
        acknowledged: 0,
        latest: 0,
        arrived: 0,
        marks: 0,
        asks: false,
        delay_doublings: 0,
    };
    Datagram { header, position: None, marked: false }
}

/// Positions that have left, in order.
fn positions(calls: &[Call]) -> Vec<u64> {
    let position = |call: &Call| match call {
        Call::Transmit(_, position) => position.map(|position| position - FIRST),
        _ => None,
    };
    calls.iter().filter_map(position).collect()
}

/// Datagrams without a bundle.
fn bare_count(calls: &[Call]) -> usize {
    calls.iter().filter(|call| matches!(call, Call::Transmit(_, None))).count()
}

#[test]
fn bundles_wait_until_the_peer_has_answered_a_question() {
    let mut bench = Bench::new();
    let calls = bench.submit();
    let [Call::Transmit(question, None)] = calls[..] else { panic!("{calls:?}") };
    assert_eq!((question.destination_epoch, question.asks), (0, true));
    let calls = bench.acknowledgement_arrives(0, question.number, 0);
    let [Call::Transmit(header, Some(FIRST))] = calls[..] else { panic!("{calls:?}") };
    assert_eq!((header.epoch, header.destination_epoch, header.number), (OURS, PEERS, 1));
}

#[test]
fn bundles_are_delivered_once_and_in_order() {
    let mut bench = Bench::open();
    assert_eq!(bench.bundle_arrives(0), [Call::Deliver(FIRST)]);
    assert_eq!(bench.bundle_arrives(2)[0], Call::Hold(FIRST + 2));
    assert_eq!(bare_count(&bench.bundle_arrives(2)), 1, "a repetition is acknowledged at once");
    assert_eq!(bench.bundle_arrives(1)[..2], [Call::Deliver(FIRST + 1), Call::DeliverHeld(FIRST + 2)]);
    assert_eq!(bare_count(&bench.bundle_arrives(0)), 1);
    assert_eq!(bench.path.counters().repeated, 2);
}

#[test]
fn a_datagram_that_the_network_repeats_is_dropped_without_an_answer() {
    let mut bench = Bench::open();
    let datagram = Datagram { header: bench.header(true), position: Some(0), marked: false };
    bench.arrives(datagram);
    bench.path.batch_ended(bench.now, &mut bench.calls);
    assert_eq!(bare_count(&bench.take()), 1);
    bench.arrives(datagram);
    bench.path.batch_ended(bench.now, &mut bench.calls);
    assert_eq!(bench.take(), []);
}

#[test]
fn an_acknowledgement_waits_for_an_answer_or_its_delay() {
    let mut bench = Bench::open();
    assert_eq!([0, 1, 2].map(|position| bare_count(&bench.bundle_arrives(position))), [0, 0, 0]);
    let calls = bench.submit();
    assert!(matches!(calls[..], [Call::Transmit(Header { acknowledged: 3, .. }, Some(_))]), "{calls:?}");
    bench.bundle_arrives(3);
    let due = bench.now.plus_ns(50 * MICROSECOND);
    let calls = bench.run_until(Instant(due.0 - 1));
    assert_eq!(bare_count(&calls), 0, "{calls:?}");
    let calls = bench.run_until(due);
    let [Call::Transmit(header, None)] = calls[..] else { panic!("{calls:?}") };
    assert_eq!((header.acknowledged, header.asks), (4, false));
}

#[test]
fn a_peer_gets_an_acknowledgement_before_it_has_used_up_its_grant() {
    for is_lossless in [false, true] {
        let config = ReliabilityConfig { is_lossless, ..ReliabilityConfig::default() };
        let mut bench = Bench::open_with(config);
        let mut next = 0..;
        for (granted, batches) in [(u32::from(LEAST_GRANT), 4), (40, 20), (256, 56), (1, 4)] {
            bench.path.granted(granted);
            let positions = (&mut next).take(batches);
            let bare: Vec<usize> = positions.map(|at| bare_count(&bench.bundle_arrives(at))).collect();
            assert_eq!((bare.iter().sum::<usize>(), bare.last()), (1, Some(&1)), "{granted}: {bare:?}");
        }
    }
}

#[test]
fn the_answer_to_many_bundles_takes_their_acknowledgement_along() {
    let mut bench = Bench::open();
    let bare: usize = (0..56).map(|at| bare_count(&bench.bundle_arrives_unread(at))).sum();
    assert_eq!(bare, 0, "nobody has read them");
    let calls = bench.submit();
    assert!(matches!(calls[..], [Call::Transmit(Header { acknowledged: 56, .. }, Some(_))]), "{calls:?}");
    bench.path.bundles_read(bench.now, &mut bench.calls);
    assert_eq!(bench.take(), []);
    // Without an answer it leaves alone. What is missing is said before anything is read.
    (56..112).for_each(|at| assert_eq!(bare_count(&bench.bundle_arrives_unread(at)), 0));
    bench.path.bundles_read(bench.now, &mut bench.calls);
    assert_eq!(bare_count(&bench.take()), 1);
    assert_eq!(bare_count(&bench.bundle_arrives_unread(113)), 1);
}

#[test]
fn acknowledgements_of_a_crowded_receiver_wait_for_half_of_the_grant_or_two_milliseconds() {
    let mut bench = Bench::open();
    bench.calls.is_crowded = true;
    for (granted, batches) in [(256, 128), (64, 32), (u32::from(LEAST_GRANT), 4)] {
        bench.path.granted(granted);
        let next = (bench.path.view().next_delivery - FIRST) as u32;
        let bare: Vec<usize> =
            (next..next + batches).map(|at| bare_count(&bench.bundle_arrives(at))).collect();
        assert_eq!((bare.iter().sum::<usize>(), bare.last()), (1, Some(&1)), "{granted}: {bare:?}");
    }
    bench.path.granted(256);
    bench.bundle_arrives(164);
    let due = bench.now.plus_ns(2050 * MICROSECOND);
    assert_eq!(bare_count(&bench.run_until(Instant(due.0 - 1))), 0);
    assert_eq!(bare_count(&bench.run_until(due)), 1);
    // What is missing is said at once. Without a crowd the usual delay holds again.
    assert_eq!(bare_count(&bench.bundle_arrives_unread(166)), 1);
    bench.calls.is_crowded = false;
    bench.bundle_arrives(165);
    let due = bench.now.plus_ns(50 * MICROSECOND);
    assert_eq!(bare_count(&bench.run_until(due)), 1);
}

#[test]
fn a_bundle_outside_of_the_window_is_malformed() {
    let mut bench = Bench::open();
    assert_eq!(bench.bundle_arrives(256), []);
    assert_eq!(bench.path.counters().malformed, 1);
    assert_eq!(bench.bundle_arrives(255)[0], Call::Hold(FIRST + 255));
    let mut bench = Bench::open();
    bench.path.broken.mutant = Some(Mutant::ReorderWindowHasNoBound);
    assert_eq!(bench.bundle_arrives(256)[0], Call::Hold(FIRST + 256));
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_is_malformed() {
    let mut bench = Bench::open();
    bench.submit();
    for (before, latest) in [(2, 1), (1, 3), (u32::MAX / 2, 1), (1, u32::MAX / 2 + 1)] {
        assert_eq!(bench.acknowledgement_arrives(before, latest, 0), [], "{before} {latest}");
    }
    assert_eq!(bench.path.counters().malformed, 4);
    assert_eq!(bench.acknowledgement_arrives(1, 1, 0), [Call::Acknowledged(FIRST + 1)]);
}

#[test]
fn a_full_window_refuses_until_an_acknowledgement() {
    let mut bench = Bench::open();
    for _ in 0..256 {
        bench.submit();
    }
    assert_eq!(bench.path.submit(bench.now, 100, &mut bench.calls), Err(LinkBusy));
    assert_eq!(bench.acknowledgement_arrives(1, 1, 0), [Call::Acknowledged(FIRST + 1), Call::Ready]);
    assert_eq!(positions(&bench.submit()), [256]);
}

#[test]
fn a_datagram_that_three_others_have_overtaken_is_sent_again() {
    let mut bench = Bench::open();
    for _ in 0..4 {
        bench.submit();
    }
    // Number 0 was the answer to the question, so position p has number p + 1.
    bench.now = Instant(100 * MICROSECOND);
    assert_eq!(positions(&bench.acknowledgement_arrives(0, 3, 0b1)), []);
    assert_eq!(positions(&bench.acknowledgement_arrives(0, 4, 0b11)), [0]);
    assert_eq!(bench.path.counters().timeouts, 0);
}

#[test]
fn a_datagram_that_one_other_has_overtaken_is_sent_again_after_five_quarters_of_the_round_trip() {
    let mut bench = Bench::open();
    bench.submit();
    bench.submit();
    bench.now = Instant(100 * MICROSECOND);
    assert_eq!(positions(&bench.acknowledgement_arrives(0, 2, 0)), []);
    assert_eq!(positions(&bench.run_until(Instant(124 * MICROSECOND))), []);
    assert_eq!(positions(&bench.run_until(Instant(125 * MICROSECOND))), [0]);
}

/// When a bundle is sent again and again: after 100 us of smoothed round trip, 4 x 50 us of variation and the delay of
/// acknowledgements. Source: RFC 6298, sections 2.2 and 5.5.
fn timeouts_after_a_sample(mutant: Option<Mutant>) -> Vec<u64> {
    let mut bench = Bench::open();
    bench.path.broken.mutant = mutant;
    bench.submit();
    bench.now = Instant(100 * MICROSECOND);
    bench.acknowledgement_arrives(1, 1, 0);
    bench.submit();
    let mut times = vec![];
    for at in (100..2700).step_by(10) {
        if !positions(&bench.run_until(Instant(at * MICROSECOND))).is_empty() {
            times.push(at);
        }
    }
    times
}

#[test]
fn a_probe_leaves_after_two_round_trips_and_then_the_timeout_doubles() {
    let times = timeouts_after_a_sample(None);
    let probe = 100 + 2 * 100 + 50;
    assert_eq!(times, [probe, probe + 350, probe + 3 * 350]);
    assert_ne!(timeouts_after_a_sample(Some(Mutant::TimeoutsDoNotBackOff)), times);
}

/// A path with this round trip. The next position is 1, the next number 2. With 100 us a probe leaves after 250 us, and a
/// timeout passes after 350 us.
fn measured(round_trip_us: u64, mutant: Option<Mutant>) -> Bench {
    let mut bench = Bench::open();
    bench.path.broken.mutant = mutant;
    bench.submit();
    bench.now = Instant(round_trip_us * MICROSECOND);
    bench.acknowledgement_arrives(1, 1, 0);
    bench
}

/// Transmissions of a bundle within 3 ms after its probe is due.
fn transmissions_to_a_silent_peer(mutant: Option<Mutant>) -> usize {
    let mut bench = measured(100, mutant);
    bench.submit();
    assert_eq!(bench.run_until(Instant(349 * MICROSECOND)), []);
    let calls = bench.run_until(Instant(350 * MICROSECOND));
    assert!(
        matches!(calls[..], [Call::Transmit(Header { asks: true, number: 3, .. }, Some(position))] if position == FIRST + 1),
        "{calls:?}"
    );
    assert_eq!(bench.path.counters().timeouts, 0);
    positions(&bench.run_until(Instant(3_350 * MICROSECOND))).len()
}

#[test]
fn the_last_bundle_is_probed_once() {
    assert_eq!(transmissions_to_a_silent_peer(None), 3, "timeouts of 350, 700 and 1400 us");
    let repeated = transmissions_to_a_silent_peer(Some(Mutant::ProbesRepeat));
    assert!(repeated >= 10, "{repeated}");
}

#[test]
fn a_probe_waits_while_bundles_leave_and_the_timeout_does_not() {
    let mut bench = measured(100, None);
    bench.submit();
    bench.run_until(Instant(300 * MICROSECOND));
    bench.submit();
    assert_eq!(positions(&bench.run_until(Instant(449 * MICROSECOND))), []);
    assert_eq!(positions(&bench.run_until(Instant(450 * MICROSECOND))), [1]);
    assert_eq!((bench.path.counters().timeouts, bench.path.sender.counts.probes), (1, 0));
}

/// What is sent again at once when three datagrams overtake a lost one, after a needless probe: the peer had all ten
/// bundles, and was only late with its answer.
fn sent_again_after_a_needless_probe(mutant: Option<Mutant>) -> Vec<u64> {
    let mut bench = measured(100, mutant);
    (1..=10).for_each(|_| drop(bench.submit()));
    assert_eq!(positions(&bench.run_until(Instant(350 * MICROSECOND))), [1]);
    // Numbers 2 to 11 are those of the bundles, 12 is that of the probe.
    bench.acknowledgement_arrives(11, 11, !0);
    bench.acknowledgement_arrives(11, 12, !0);
    let counts = bench.path.sender.counts;
    assert_eq!(
        (counts.probes, counts.needless_probes, counts.needed_probes, counts.needlessly),
        (1, 1, 0, 1)
    );
    (0..4).for_each(|_| drop(bench.submit()));
    positions(&bench.acknowledgement_arrives(11, 16, !0b100))
}

#[test]
fn a_needless_probe_does_not_count_as_reordering() {
    assert_eq!(sent_again_after_a_needless_probe(None), [11]);
    let broken = Some(Mutant::EarlyRetransmissionsCountAsReordering);
    assert_eq!(sent_again_after_a_needless_probe(broken), []);
}

#[test]
fn a_datagram_that_was_overtaken_and_arrives_raises_the_distance_of_losses() {
    let mut bench = measured(100, None);
    (0..4).for_each(|_| drop(bench.submit()));
    assert_eq!(positions(&bench.acknowledgement_arrives(1, 5, 0b11)), [1], "number 2 counts as lost");
    bench.acknowledgement_arrives(5, 5, !0);
    (0..4).for_each(|_| drop(bench.submit()));
    assert_eq!(positions(&bench.acknowledgement_arrives(5, 10, !0b100)), [], "three are not enough any more");
}

/// The window after twenty bundles of which each was lost once, the last one under way.
fn window_after_repaired_losses(mutant: Option<Mutant>) -> u64 {
    let mut bench = measured(40, mutant);
    for position in 1..=20 {
        bench.submit();
        let number = bench.path.sender.next_number() as u32;
        assert_eq!(positions(&bench.run_until(bench.now.plus_ns(150 * MICROSECOND))), [u64::from(position)]);
        bench.now = bench.now.plus_ns(20 * MICROSECOND);
        bench.acknowledgement_arrives(position + 1, number, !1);
    }
    assert_eq!(bench.path.sender.counts.needed_probes, 20);
    bench.path.view().window_bytes
}

#[test]
fn a_loss_that_a_probe_repairs_lowers_the_window() {
    let most_bytes = measured(100, None).path.view().window_bytes;
    assert!(window_after_repaired_losses(None) < most_bytes);
    assert_eq!(window_after_repaired_losses(Some(Mutant::RepairedLossesDoNotCount)), most_bytes);
}

/// The smoothed round trip if a retransmission is acknowledged 80 us after it left.
fn round_trip_of_a_retransmission(mutant: Option<Mutant>) -> u64 {
    let mut bench = Bench::open();
    bench.path.broken.mutant = mutant;
    bench.submit();
    assert_eq!(positions(&bench.run_until(Instant(10_000 * MICROSECOND))), [0]);
    bench.now = Instant(10_080 * MICROSECOND);
    bench.acknowledgement_arrives(1, 2, 0);
    bench.path.view().round_trip_ns
}

#[test]
fn a_round_trip_counts_from_the_transmission_that_arrived() {
    assert_eq!(round_trip_of_a_retransmission(None), 80 * MICROSECOND);
    let broken = Some(Mutant::RoundTripCountsFromTheFirstTransmission);
    assert_eq!(round_trip_of_a_retransmission(broken), 10_080 * MICROSECOND);
}

#[test]
fn a_bare_acknowledgement_gives_no_round_trip() {
    let mut bench = Bench::open();
    bench.submit();
    bench.now = Instant(100 * MICROSECOND);
    bench.acknowledgement_arrives(1, 1, 0);
    bench.path.granted(1);
    assert_eq!([0, 1, 2, 3].map(|position| bare_count(&bench.bundle_arrives(position))), [0, 0, 0, 1]);
    // A second later the peer has something to send, and so names number 2.
    bench.now = Instant(1_000_000 * MICROSECOND);
    bench.acknowledgement_arrives(1, 2, 0b1);
    assert_eq!(bench.path.view().round_trip_ns, 100 * MICROSECOND);
}

#[test]
fn sends_do_not_delay_the_timeout() {
    let timeouts = |mutant| {
        let mut bench = Bench::open();
        bench.path.broken.mutant = mutant;
        for at in (0..30_000).step_by(500) {
            bench.run_until(Instant(at * MICROSECOND));
            bench.submit();
        }
        bench.path.counters().timeouts
    };
    assert_eq!(timeouts(None), 1, "10 ms, then 20 ms more");
    assert_eq!(timeouts(Some(Mutant::SendsRestartTheTimeout)), 0);
}

#[test]
fn a_silent_peer_is_lost_at_the_limit() {
    let mut bench = Bench::open();
    bench.submit();
    let limit_ns = bench.path.config.limit_ns;
    let late_ns = bench.path.config.max_timeout_ns;
    assert!(!bench.run_until(Instant(limit_ns - 1)).contains(&Call::Lost(PathFault::Silent)));
    assert_eq!(bench.run_until(Instant(limit_ns + late_ns)).last(), Some(&Call::Lost(PathFault::Silent)));
    assert_eq!(bench.path.submit(bench.now, 1, &mut bench.calls), Err(LinkBusy));
    assert_eq!(bench.run_until(Instant(3 * limit_ns)), []);
}

#[test]
fn a_silent_peer_whose_process_lives_is_not_lost() {
    let mut bench = Bench::open();
    bench.submit();
    let ReliabilityConfig { limit_ns, max_timeout_ns, .. } = bench.path.config;
    bench.run_until(Instant(limit_ns / STANDING_DIVISOR - 1));
    assert_eq!(bench.calls.standings_asked, 0, "a short silence");
    bench.calls.standing = Standing::Lives;
    bench.run_until(Instant(20 * limit_ns));
    assert_eq!(bench.path.view().fault, None);
    // Its host vanishes.
    bench.calls.standing = Standing::Unknown;
    let calls = bench.run_until(Instant(20 * limit_ns + max_timeout_ns));
    assert_eq!(calls.last(), Some(&Call::Lost(PathFault::Silent)));
}

#[test]
fn a_silent_peer_whose_process_has_ended_is_lost_before_the_limit() {
    let mut bench = Bench::open();
    bench.calls.standing = Standing::Ended;
    bench.path.check(bench.now, &mut bench.calls);
    let ReliabilityConfig { limit_ns, max_timeout_ns, .. } = bench.path.config;
    let calls = bench.run_until(Instant(limit_ns / STANDING_DIVISOR + max_timeout_ns));
    assert_eq!(calls.last(), Some(&Call::Lost(PathFault::Ended)));
}

/// What leaves while the peer computes: four bundles are under way, three of them have overtaken the first, and then the
/// peer is silent for a thousand seconds.
fn repetitions_to_a_computing_peer(is_lossless: bool) -> Vec<u64> {
    let mut bench = Bench::open_with(ReliabilityConfig { is_lossless, ..ReliabilityConfig::default() });
    bench.calls.standing = Standing::Lives;
    (0..4).for_each(|_| drop(bench.submit()));
    let calls = bench.acknowledgement_arrives(0, 4, 0b11);
    let later = bench.run_until(Instant(1_000_000_000 * MICROSECOND));
    assert_eq!(bench.path.view().fault, None);
    assert!(bench.calls.standings_asked > 900, "a look in each second: {}", bench.calls.standings_asked);
    [positions(&calls), positions(&later)].concat()
}

#[test]
fn without_loss_no_bundle_is_sent_again() {
    assert_eq!(repetitions_to_a_computing_peer(true), []);
    assert!(repetitions_to_a_computing_peer(false).len() > 1000);
}

#[test]
fn without_loss_a_question_is_repeated_ever_more_rarely() {
    let questions = |is_lossless| {
        let mut bench = Bench::open_with(ReliabilityConfig { is_lossless, ..ReliabilityConfig::default() });
        bench.calls.standing = Standing::Lives;
        bench.path.check(bench.now, &mut bench.calls);
        let asked = 1 + bare_count(&bench.run_until(Instant(1_000_000_000 * MICROSECOND)));
        bench.calls.standing = Standing::Ended;
        let calls = bench.run_until(Instant(1_001_100_000 * MICROSECOND));
        assert_eq!(
            calls.last(),
            Some(&Call::Lost(PathFault::Ended)),
            "it is still asked whether the peer lives"
        );
        asked
    };
    // 10 ms, doubled until 1000 s have passed.
    assert!((10..=20).contains(&questions(true)), "{}", questions(true));
    assert!(questions(false) > 5000);
}

#[test]
fn without_loss_acknowledgements_in_number_do_not_wear_out_a_bundle_under_way() {
    let mut bench = Bench::open_with(ReliabilityConfig { is_lossless: true, ..ReliabilityConfig::default() });
    bench.submit();
    // More bare datagrams than there are records of transmissions.
    for position in 0..2000 {
        assert_eq!(positions(&bench.bundle_arrives(position)), []);
    }
    assert_eq!(bench.acknowledgement_arrives(1, 1, 0), [Call::Acknowledged(FIRST + 1)]);
    assert_eq!(bench.path.view().in_flight_bytes, 0);
}

/// A path on which the first bundle never arrives, and each of the later ones does. There is one in each second.
fn fault_without_the_oldest_bundle(mutant: Option<Mutant>) -> Option<PathFault> {
    let mut bench = Bench::open();
    bench.path.broken.mutant = mutant;
    bench.submit();
    let limit_ns = bench.path.config.limit_ns;
    for index in 1..limit_ns / 1_000_000_000 {
        let mut calls = bench.submit();
        calls.extend(bench.run_until(Instant(index * 1_000_000_000)));
        let arrived = calls.iter().rev().find_map(|call| match call {
            Call::Transmit(header, Some(position)) if *position == FIRST + index => Some(header.number),
            _ => None,
        });
        bench.acknowledgement_arrives(0, arrived.expect("each bundle leaves"), 0);
    }
    bench.run_until(Instant(limit_ns + bench.path.config.max_timeout_ns));
    bench.path.view().fault
}

#[test]
fn later_arrivals_do_not_restart_the_limit_of_the_oldest_bundle() {
    assert_eq!(fault_without_the_oldest_bundle(None), Some(PathFault::Silent));
    assert_eq!(fault_without_the_oldest_bundle(Some(Mutant::AnyArrivalRestartsTheLimit)), None);
}

#[test]
fn a_peer_that_never_answers_is_lost_at_the_limit() {
    let mut bench = Bench::new();
    bench.submit();
    let calls = bench.run_until(Instant(bench.path.config.limit_ns + bench.path.config.max_timeout_ns));
    assert_eq!(calls.last(), Some(&Call::Lost(PathFault::Silent)));
    assert!(calls.len() < 120, "{} questions", calls.len());
}

#[test]
fn time_in_which_the_process_stood_still_does_not_count_towards_the_limit() {
    let mut bench = Bench::open();
    bench.submit();
    let limit_ns = bench.path.config.limit_ns;
    bench.now = Instant(20 * limit_ns);
    assert_eq!(positions(&bench.run_until(Instant(20 * limit_ns))), [0]);
    assert_eq!(bench.path.view().fault, None);
    bench.run_until(Instant(21 * limit_ns + 200_000 * MICROSECOND));
    assert_eq!(bench.path.view().fault, Some(PathFault::Silent));
}

#[test]
fn a_question_about_the_life_of_a_peer_ends_with_any_later_acknowledgement() {
    let mut bench = Bench::open();
    bench.path.check(bench.now, &mut bench.calls);
    let calls = bench.take();
    let [Call::Transmit(Header { asks: true, number, .. }, None)] = calls[..] else { panic!("{calls:?}") };
    bench.acknowledgement_arrives(0, number, 0);
    assert_eq!(bench.run_until(Instant(20_000_000 * MICROSECOND)), []);
    assert_eq!(bench.path.view().fault, None);
}

#[test]
fn a_refused_datagram_leaves_when_the_driver_takes_datagrams_again() {
    let mut bench = Bench::open();
    bench.calls.is_busy = true;
    assert_eq!(bench.submit(), []);
    assert_eq!(bench.submit(), []);
    bench.calls.is_busy = false;
    bench.path.writable(bench.now, &mut bench.calls);
    assert_eq!(positions(&bench.take()), [0, 1]);
}

/// A path that was bound to epoch 9 gets a datagram of epoch `from` that names `latest`.
fn bound_path_hears_of(from: u16, latest: u32, mutant: Option<Mutant>) -> Option<PathFault> {
    let mut bench = Bench::open();
    bench.path.broken.mutant = mutant;
    bench.submit();
    bench.arrives(Datagram { header: Header { epoch: from, latest, ..bench.header(false) }, ..bare() });
    bench.path.view().fault
}

#[test]
fn a_peer_in_another_epoch_is_believed_if_it_names_what_left_after_the_opening() {
    let late = 0; // the answer to the question of epoch 9
    assert_eq!(bound_path_hears_of(10, 1, None), Some(PathFault::Restarted));
    assert_eq!(bound_path_hears_of(8, late, None), None);
    assert_eq!(bound_path_hears_of(8, late, Some(Mutant::RestartNeedsNoProof)), Some(PathFault::Restarted));
}

#[test]
fn a_datagram_for_an_earlier_epoch_of_this_end_changes_nothing_and_is_answered() {
    let mut bench = Bench::open();
    let header = Header { destination_epoch: OURS - 1, ..bench.header(false) };
    bench.arrives(Datagram { header, position: Some(0), marked: false });
    let calls = bench.take();
    let [Call::Transmit(answer, None)] = calls[..] else { panic!("{calls:?}") };
    assert_eq!((answer.epoch, answer.destination_epoch, answer.latest), (OURS, PEERS, header.number));
    assert_eq!(bench.path.view().next_delivery, FIRST);
    assert_eq!(bench.path.counters().stale, 1);
}

#[test]
fn marks_lower_the_window_and_a_late_answer_repeats_none() {
    let mut bench = Bench::open();
    let full_bytes = bench.path.view().window_bytes;
    for _ in 0..32 {
        bench.submit();
    }
    let header = Header { acknowledged: 32, latest: 32, arrived: !0 >> 32, marks: 16, ..bench.header(false) };
    bench.arrives(Datagram { header, ..bare() });
    let window_bytes = bench.path.view().window_bytes;
    assert!(window_bytes < full_bytes, "{window_bytes}");
    assert_eq!(bench.path.counters().marked, 16);
    bench.acknowledgement_arrives(0, 0, 0);
    assert_eq!(bench.path.counters().marked, 16);
}
