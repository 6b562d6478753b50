//! The send window ([`Sender`]): bundles from their submission until the peer has acknowledged them, and records of
//! their transmissions.
//!
//! ```text
//! position   first           unsent        end             first + window
//!            arrived, lost   waiting       not submitted
//!            or under way
//!
//! number     scan                   largest           next
//!            under way, or younger  under way         not used
//! ```
//! All numbers before `scan` are resolved: their bundles have arrived, or are lost, or were sent again. Numbers after
//! `largest` are not acknowledged yet. `losses.rs` says when something counts as lost.
//!
//! Bound: the window, and twice as many records. This file does not know epochs or timers.

#[cfg(feature = "explore")]
mod canonical;
mod losses;

use alloc::boxed::Box;
use alloc::vec;

use super::congestion::Congestion;
use super::datagram::{DatagramDriver, ReliabilityConfig};
use super::delay::{AllowedDelay, doubled_ns};
use super::mutant::{Broken, Mutant};
use super::path_mtu::PathMtu;
use super::round_trip::RoundTrip;
use super::sequence::{BASE, PositionSet, expand};
use crate::time::Instant;
use losses::Probe;

/// A datagram is lost if one with a number so much larger has arrived. It grows if that was wrong.
const MIN_REORDER_NUMBERS: u32 = 3;
/// Its bound. Acknowledgements name 64 numbers before the latest.
const MAX_REORDER_NUMBERS: u32 = 48;
/// The record of a datagram that the peer does not acknowledge by itself.
const NOTHING: u64 = u64::MAX;
/// The record of a question.
const QUESTION: u64 = u64::MAX - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    UnderWay,
    Lost,
    Arrived,
}

#[derive(Clone, Copy, Debug)]
struct Bundle {
    /// Number of its last transmission.
    number: u64,
    bytes: u32,
    state: State,
    /// How long the acknowledgement of that may wait ([`AllowedDelay`]).
    delay_doublings: u8,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    sent_at: Instant,
    /// The position of its bundle, [`QUESTION`] or [`NOTHING`].
    position: u64,
}

/// What a peer acknowledges.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledgement {
    /// All bundles before this position.
    pub(super) before: u64,
    /// The latest number.
    pub(super) latest: u64,
    /// Bit i: the number `latest` - 1 - i.
    pub(super) arrived: u64,
    /// All marked datagrams so far, modulo 2^16.
    pub(super) marks: u16,
}

/// Counts of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SenderCounts {
    pub(super) sent_again: u64,
    pub(super) needlessly: u64,
    pub(super) probes: u64,
    /// Probes whose bundle had arrived before, and those whose bundle had not.
    pub(super) needless_probes: u64,
    pub(super) needed_probes: u64,
    pub(super) timeouts: u64,
    pub(super) marks: u64,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    /// By position, modulo the window.
    bundles: Box<[Bundle]>,
    /// By number, modulo their count.
    records: Box<[Record]>,
    lost: PositionSet,
    first: u64,
    unsent: u64,
    end: u64,
    next_number: u64,
    scan: u64,
    largest: u64,
    /// The largest number of a bundle that is acknowledged, as far as acknowledgements have named it.
    largest_of_bundles: u64,
    /// Bit i: `largest` - 1 - i is acknowledged, and was handled.
    handled: u64,
    reorder_numbers: u32,
    /// No datagram ever counts as lost.
    is_lossless: bool,
    marks: u16,
    /// When `first` became the oldest bundle under way.
    oldest_since: Instant,
    /// Start of the running timeout.
    timeout_from: Instant,
    timeouts_in_a_row: u32,
    /// When something was acknowledged, or a bundle left within the window.
    probe_from: Instant,
    /// Nothing was acknowledged since the last probe.
    is_probed: bool,
    /// The last probe or timeout, until the peer names one of its numbers or a later one.
    probe: Option<Probe>,
    /// When the oldest overtaken datagram counts as lost.
    loss_at: Option<Instant>,
    pub(super) congestion: Congestion,
    pub(super) mtu: PathMtu,
    pub(super) round_trip: RoundTrip,
    pub(super) delay: AllowedDelay,
    pub(super) counts: SenderCounts,
}

impl Sender {
    pub(super) fn new(config: &ReliabilityConfig) -> Sender {
        let window = config.window_bundles;
        assert!(window >= 64 && window.is_power_of_two(), "a window of {window} bundles");
        let start = BASE + u64::from(config.start);
        let bundle = Bundle { number: 0, bytes: 0, state: State::Arrived, delay_doublings: 0 };
        let record = Record { sent_at: Instant(0), position: NOTHING };
        Sender {
            bundles: vec![bundle; window as usize].into(),
            records: vec![record; 2 * window as usize].into(),
            lost: PositionSet::new(window),
            first: start,
            unsent: start,
            end: start,
            next_number: start,
            scan: start,
            largest: start - 1,
            largest_of_bundles: start - 1,
            handled: 0,
            reorder_numbers: MIN_REORDER_NUMBERS,
            is_lossless: config.is_lossless,
            marks: 0,
            oldest_since: Instant(0),
            timeout_from: Instant(0),
            timeouts_in_a_row: 0,
            probe_from: Instant(0),
            is_probed: false,
            probe: None,
            loss_at: None,
            congestion: Congestion::new(config),
            mtu: PathMtu::new(config),
            round_trip: RoundTrip::default(),
            delay: AllowedDelay::default(),
            counts: SenderCounts::default(),
        }
    }

    #[inline]
    fn bundle(&mut self, position: u64) -> &mut Bundle {
        let mask = self.bundles.len() - 1;
        &mut self.bundles[position as usize & mask]
    }

    #[inline]
    fn record(&mut self, number: u64) -> &mut Record {
        let mask = self.records.len() - 1;
        &mut self.records[number as usize & mask]
    }

    /// Heap memory. Unit: bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.bundles) + size_of_val(&*self.records) + self.bundles.len() / 8
    }

    pub(super) fn has_room(&self) -> bool {
        self.end - self.first < self.bundles.len() as u64
    }

    /// Bundles that are not acknowledged.
    pub(super) fn held(&self) -> u64 {
        self.end - self.first
    }

    /// Bundles that were never sent.
    pub(super) fn waiting(&self) -> u64 {
        self.end - self.unsent
    }

    /// Whether something counts as lost and was not sent again.
    #[inline]
    pub(super) fn has_lost(&self) -> bool {
        self.lost.count() > 0
    }

    /// The first position that is not acknowledged.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Whether a bundle was sent and is not acknowledged.
    #[inline]
    pub(super) fn is_outstanding(&self) -> bool {
        self.first < self.unsent
    }

    pub(super) fn next_number(&self) -> u64 {
        self.next_number
    }

    pub(super) fn oldest_since(&self) -> Instant {
        self.oldest_since
    }

    /// Adds a bundle. The caller has looked for room.
    #[inline]
    pub(super) fn push(&mut self, bytes: u32) -> u64 {
        let position = self.end;
        *self.bundle(position) = Bundle { number: 0, bytes, state: State::Waiting, delay_doublings: 0 };
        self.end += 1;
        position
    }

    /// The bundle that leaves next: the first lost one, or the first that was never sent.
    #[inline]
    pub(super) fn next_to_send(&self) -> Option<u64> {
        self.lost.first_from(self.first).or((self.unsent < self.end).then_some(self.unsent))
    }

    /// Whether the window and the pace allow `position` to leave now. `Err`: at that time; `None`: after an
    /// acknowledgement.
    #[inline]
    pub(super) fn may_send(&mut self, now: Instant, position: u64) -> Result<(), Option<Instant>> {
        let bytes = self.bundle(position).bytes;
        if !self.congestion.admits(bytes) {
            return Err(None);
        }
        self.congestion.paced_until(now).map_or(Ok(()), |at| Err(Some(at)))
    }

    /// How long the acknowledgement of this bundle may wait, if nothing beside this window waits for it ([`AllowedDelay`]).
    #[inline]
    pub(super) fn delay_doublings(&mut self, position: u64) -> u8 {
        if self.delay.is_usual() || position + 1 < self.end {
            return 0;
        }
        let Bundle { bytes, state, .. } = *self.bundle(position);
        let has_room = state == State::Waiting && self.congestion.is_half_empty(bytes);
        if has_room { self.delay.of_bundle(position) } else { 0 }
    }

    /// A datagram with the number `next_number` has left. Its acknowledgement may wait for so many doublings.
    #[inline]
    pub(super) fn sent(
        &mut self,
        now: Instant,
        position: Option<u64>,
        asks: bool,
        delay_doublings: u8,
        broken: Broken,
    ) {
        let number = self.next_number;
        self.give_up_record(number, broken);
        self.next_number += 1;
        let without_bundle = if asks { QUESTION } else { NOTHING };
        let mut record = Record { sent_at: now, position: position.unwrap_or(without_bundle) };
        if let Some(position) = position {
            let Bundle { number: before, bytes, state, .. } = *self.bundle(position);
            self.mtu.sent(now, number, bytes);
            // A peer that contradicts itself acknowledges a bundle, but not by position. It is not under way again, so that
            // no later acknowledgement takes it off the bytes under way.
            if state != State::Arrived {
                *self.bundle(position) = Bundle { number, bytes, state: State::UnderWay, delay_doublings };
            }
            self.delay.sent(position, delay_doublings, self.first);
            match state {
                State::Waiting => {
                    if !self.is_outstanding() {
                        (self.oldest_since, self.timeout_from) = (now, now);
                    }
                    self.unsent = position + 1;
                    self.probe_from = now;
                    self.congestion.sent(now, bytes, self.round_trip.smoothed_ns());
                }
                State::Lost => {
                    self.lost.remove(position);
                    self.probe_from = now;
                    self.congestion.sent(now, bytes, self.round_trip.smoothed_ns());
                }
                // A timeout or a probe: the bundle counts once.
                State::UnderWay | State::Arrived => {}
            }
            if state != State::Waiting {
                self.counts.sent_again += 1;
                if broken.has(Mutant::RoundTripCountsFromTheFirstTransmission) {
                    record.sent_at = self.record(before).sent_at;
                }
            }
            if broken.has(Mutant::SendsRestartTheTimeout) {
                self.timeout_from = now;
            }
        }
        *self.record(number) = record;
    }

    /// The record of `number` replaces the oldest one. If that datagram is under way, it counts as lost.
    #[inline]
    fn give_up_record(&mut self, number: u64, broken: Broken) {
        let oldest = number - self.records.len() as u64;
        if oldest >= self.scan {
            self.note_if_lost(oldest, true, broken);
            self.scan = oldest + 1;
        }
    }

    /// The bundle that is under way with this number.
    #[inline]
    fn under_way(&mut self, number: u64) -> Option<u64> {
        let position = self.record(number).position;
        if !(self.first..self.end).contains(&position) {
            return None;
        }
        let bundle = self.bundle(position);
        (bundle.state == State::UnderWay && bundle.number == number).then_some(position)
    }

    /// The datagram with this number is lost if its bundle is under way with it. `is_trouble`: that says something about the
    /// network.
    fn note_if_lost(&mut self, number: u64, is_trouble: bool, broken: Broken) {
        if self.is_lossless {
            return;
        }
        if let Some(position) = self.under_way(number) {
            let bundle = self.bundle(position);
            bundle.state = State::Lost;
            let bytes = bundle.bytes;
            self.lost.insert(position);
            self.congestion.lost(bytes, is_trouble);
            if is_trouble {
                self.delay.bundle_was_lost(broken);
            }
        }
    }

    /// What the lower 32 bits of a peer acknowledge. `None`: something that was never sent.
    #[inline]
    pub(super) fn check(
        &self,
        before: u32,
        latest: u32,
        arrived: u64,
        marks: u16,
    ) -> Option<Acknowledgement> {
        let before = expand(before, self.first);
        let latest = expand(latest, self.next_number);
        (before <= self.unsent && latest < self.next_number).then_some(Acknowledgement {
            before,
            latest,
            arrived,
            marks,
        })
    }

    /// Handles an acknowledgement. `rides`: it came with a bundle. Returns whether `first` has advanced.
    pub(super) fn acknowledge<D: DatagramDriver>(
        &mut self,
        now: Instant,
        acknowledged: &Acknowledgement,
        rides: bool,
        driver: &D,
        config: &ReliabilityConfig,
        broken: Broken,
    ) -> bool {
        let &Acknowledgement { before, latest, arrived, marks } = acknowledged;
        let new_marks = marks.wrapping_sub(self.marks);
        // The answer to a late question is an older picture, without marks.
        if new_marks > 0 && latest >= self.largest {
            self.marks = marks;
            self.counts.marks += u64::from(new_marks);
            self.congestion.marked(new_marks);
        }
        // Numbers first: they say which transmission arrived.
        let passed = if broken.has(Mutant::EarlyRetransmissionsCountAsReordering) {
            self.largest.max(latest)
        } else {
            self.passed(driver, broken)
        };
        let mut is_progress = self.acknowledge_numbers(now, latest, arrived, passed, config);
        self.judge_probe(now, broken);
        let advances = before > self.first;
        if advances {
            is_progress = true;
            let waited_ns = now.since_ns(self.oldest_sent_at().unwrap_or(now));
            // The smoothed round trip includes the usual delay where nothing takes acknowledgements along.
            let way_ns = self.round_trip.smoothed_ns().saturating_sub(config.acknowledgement_delay_ns);
            let waited_ns = waited_ns.saturating_sub(way_ns);
            self.delay.acknowledged(before - self.first, waited_ns, rides, config);
            while self.first < before {
                self.note_arrived(self.first);
                self.first += 1;
            }
            self.oldest_since = now;
        }
        if is_progress {
            self.round_trip.progress();
            self.timeouts_in_a_row = 0;
            (self.timeout_from, self.probe_from, self.is_probed) = (now, now, false);
            if broken.has(Mutant::AnyArrivalRestartsTheLimit) {
                self.oldest_since = now;
            }
        }
        self.congestion.end_round(self.largest, self.next_number, broken);
        self.detect_losses(now, driver, broken);
        advances
    }

    /// Handles the numbers of an acknowledgement that are new. Earlier acknowledgements have named `passed`. Returns whether a
    /// bundle has arrived.
    fn acknowledge_numbers(
        &mut self,
        now: Instant,
        latest: u64,
        arrived: u64,
        passed: u64,
        config: &ReliabilityConfig,
    ) -> bool {
        let mut is_progress = false;
        let mut new_bits = arrived;
        if latest > self.largest {
            let distance = latest - self.largest;
            let Record { sent_at, position } = *self.record(latest);
            // A bare acknowledgement waits until the peer has something to send. That time is no round trip.
            if latest >= self.oldest_record() && position != NOTHING {
                let delay_ns = self.delay_of(latest, position, config) - config.acknowledgement_delay_ns;
                self.round_trip.sample_with_delay(now.since_ns(sent_at), delay_ns);
            }
            // The handled bits move up, and the largest number so far becomes one of them.
            let before = self.handled.checked_shl(distance as u32).unwrap_or(0);
            let largest = if distance <= 64 { 1 << (distance - 1) } else { 0 };
            self.handled = if distance < 64 { before } else { 0 } | largest;
            self.largest = latest;
            is_progress |= self.note_number(latest, passed);
        } else if latest < self.largest {
            return false; // an older picture; it has nothing new
        }
        new_bits &= !self.handled;
        self.handled |= new_bits;
        while new_bits != 0 {
            let number = latest - 1 - u64::from(new_bits.trailing_zeros());
            new_bits &= new_bits - 1;
            is_progress |= self.note_number(number, passed);
        }
        is_progress
    }

    /// How long the peer may hold back the acknowledgement of this number, which had the bundle of `position`, if there was one.
    /// Unit: ns.
    fn delay_of(&mut self, number: u64, position: u64, config: &ReliabilityConfig) -> u64 {
        let is_known = (self.first..self.end).contains(&position);
        let bundle = if is_known { Some(*self.bundle(position)) } else { None };
        let doublings = bundle.filter(|bundle| bundle.number == number).map(|bundle| bundle.delay_doublings);
        doubled_ns(config, doublings.unwrap_or(0))
    }

    /// How long the peer may hold back the acknowledgement of what is under way. Unit: ns.
    #[inline]
    fn longest_delay_ns(&self, config: &ReliabilityConfig, broken: Broken) -> u64 {
        self.delay.longest_ns(self.first, config, broken)
    }

    /// Whether the acknowledgement of something under way may wait for longer than usual.
    pub(super) fn some_delays_are_long(&self) -> bool {
        self.is_outstanding() && self.delay.some_are_long(self.first)
    }

    /// Whether nothing is under way, or only what would be acknowledged by now if its acknowledgement did not wait for longer
    /// than usual.
    pub(super) fn is_quiet(&self, now: Instant, config: &ReliabilityConfig) -> bool {
        let usual_ns = self.round_trip.smoothed_ns() + config.acknowledgement_delay_ns;
        self.held() == 0
            || (self.waiting() == 0
                && self.delay.all_are_long(self.first)
                && self.probe_from.plus_ns(usual_ns) <= now)
    }

    /// When the oldest bundle has left last, if there is a record of that.
    fn oldest_sent_at(&mut self) -> Option<Instant> {
        let number = self.bundle(self.first).number;
        (number >= self.oldest_record()).then(|| self.record(number).sent_at)
    }

    /// The oldest number with a record.
    fn oldest_record(&self) -> u64 {
        self.next_number.saturating_sub(self.records.len() as u64)
    }

    /// The datagram with this number has arrived. Earlier acknowledgements have named `passed`. Returns whether its bundle is
    /// new.
    fn note_number(&mut self, number: u64, passed: u64) -> bool {
        if number < self.oldest_record() {
            return false;
        }
        let position = self.record(number).position;
        if position < QUESTION {
            self.largest_of_bundles = self.largest_of_bundles.max(number);
        }
        if !(self.first..self.end).contains(&position) {
            return false;
        }
        let bundle = *self.bundle(position);
        if bundle.state == State::Arrived {
            return false;
        }
        if bundle.state == State::Lost || bundle.number != number {
            // It counted as lost or was sent again, and has only been late. It may also be the peer that was late: then no
            // earlier acknowledgement has passed it, and it was not overtaken.
            self.counts.needlessly += u64::from(bundle.number != number);
            if let Some(distance) = passed.checked_sub(number) {
                let distance = u32::try_from(distance).unwrap_or(u32::MAX);
                self.reorder_numbers =
                    self.reorder_numbers.max(distance.saturating_add(1).min(MAX_REORDER_NUMBERS));
            }
        }
        self.mtu.arrived(number, bundle.bytes);
        self.note_arrived(position);
        true
    }

    fn note_arrived(&mut self, position: u64) {
        let Bundle { bytes, state, .. } = *self.bundle(position);
        self.bundle(position).state = State::Arrived;
        match state {
            State::UnderWay => self.congestion.arrived(bytes),
            State::Lost => {
                self.lost.remove(position);
            }
            State::Arrived | State::Waiting => {}
        }
    }

    /// This process did not run for `gap_ns`. The limit does not count that time.
    pub(super) fn skip_gap(&mut self, gap_ns: u64) {
        self.oldest_since = self.oldest_since.plus_ns(gap_ns);
    }
}
