//! The receive window ([`Receiver`]): which bundles are new, which the driver holds out of order, and what the next
//! acknowledgement says and when it must leave.
//!
//! ```text
//! position   next            next + window        number   latest - 64 ... latest - 1   latest
//!            missing, held   refused                       one bit each
//! ```
//! Bound: one bit for each position of the window, and 64 for numbers. This file does not know epochs.

use super::datagram::{DatagramDriver, ReliabilityConfig};
use super::grants::LEAST_GRANT;
use super::mutant::{Broken, Mutant};
use super::sequence::{BASE, PositionSet, expand};
use crate::time::Instant;

/// Datagrams after which an acknowledgement leaves within a batch. It names 65 numbers.
const MAX_UNACKNOWLEDGED: u32 = 64;
/// Datagrams after which it leaves when a batch has been read: half of what the peer may have under way, within these bounds.
/// A message of 64 KiB has fewer, so its answer takes the acknowledgement along.
const READ_UNACKNOWLEDGED: (u32, u32) = (LEAST_GRANT as u32 / 2, 56);
/// The upper bound while several peers flood this end. Each acknowledgement wakes a sender, which then sends so many.
const CROWDED_UNACKNOWLEDGED: u32 = 128;
/// The longest time that an acknowledgement waits then, beside the usual one. Unit: ns.
const CROWDED_DELAY_NS: u64 = 2_000_000;

/// How a number compares with those that have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    Newest,
    Late,
    /// It has arrived before.
    Repeated,
    /// Too old to tell.
    Old,
}

/// What a position is for the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Next,
    /// New, but something before it is missing.
    Early,
    /// It has arrived before.
    Repeated,
    /// No peer that keeps to the window sends it.
    Outside,
}

/// How many unacknowledged datagrams make the end of reading send an acknowledgement: usually, and in a crowd.
fn thresholds(granted_bundles: u32) -> (u32, u32) {
    let (least, most) = READ_UNACKNOWLEDGED;
    let half = (granted_bundles / 2).max(least);
    (half.min(most), half.min(CROWDED_UNACKNOWLEDGED))
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub(super) struct Receiver {
    window: u64,
    next: u64,
    held: PositionSet,
    latest: u64,
    arrived: u64,
    marks: u16,
    /// Datagrams with a bundle or a question since the last acknowledgement left.
    unacknowledged: u32,
    /// So many make the end of reading send one; the second value holds while several peers flood this end.
    read_unacknowledged: (u32, u32),
    /// The next end of a batch sends one in any case.
    is_urgent: bool,
    due_at: Option<Instant>,
    /// `due_at` was put off.
    is_late: bool,
}

#[cfg(feature = "explore")]
impl Receiver {
    /// Appends what decides about the future.
    pub(super) fn canonical(&self, row: &mut super::canonical::Row<'_>) {
        let Receiver {
            window,
            next,
            ref held,
            latest,
            arrived,
            marks,
            unacknowledged,
            read_unacknowledged: (usual, crowded),
            is_urgent,
            due_at,
            is_late,
        } = *self;
        [next, latest, arrived].into_iter().for_each(|word| row.push(word));
        row.push(held.count());
        if held.count() > 0 {
            (next..next + window).filter(|&place| held.contains(place)).for_each(|place| row.push(place));
        }
        [unacknowledged, usual, crowded].into_iter().for_each(|count| row.push(count));
        row.push(marks);
        row.push(is_urgent);
        row.maybe_time(due_at);
        row.push(is_late);
    }
}

impl Receiver {
    pub(super) fn new(config: &ReliabilityConfig) -> Receiver {
        let start = BASE + u64::from(config.start);
        Receiver {
            window: u64::from(config.window_bundles),
            next: start,
            held: PositionSet::new(config.window_bundles),
            latest: start - 1,
            arrived: 0,
            marks: 0,
            unacknowledged: 0,
            read_unacknowledged: thresholds(config.first_grant.min(config.window_bundles)),
            is_urgent: false,
            due_at: None,
            is_late: false,
        }
    }

    /// The peer may have so many bundles under way.
    pub(super) fn granted(&mut self, bundles: u32) {
        self.read_unacknowledged = thresholds(bundles.min(self.window as u32));
    }

    /// Bundles that the driver holds.
    pub(super) fn held(&self) -> u32 {
        self.held.count()
    }

    /// The next position to deliver.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn latest(&self) -> u64 {
        self.latest
    }

    pub(super) fn arrived(&self) -> u64 {
        self.arrived
    }

    pub(super) fn marks(&self) -> u16 {
        self.marks
    }

    /// The position that an acknowledgement names.
    pub(super) fn acknowledged(&self, broken: Broken) -> u64 {
        if broken.has(Mutant::AcknowledgementIsNotCumulative) && self.held.count() > 0 {
            return self.next + u64::from(self.held.count()) + 1;
        }
        self.next
    }

    #[inline]
    pub(super) fn age_of(&self, number: u32) -> (u64, Age) {
        let number = expand(number, self.latest);
        let age = match self.latest.checked_sub(number) {
            None => Age::Newest,
            Some(0) => Age::Repeated,
            Some(distance @ 1..=64) => {
                if self.arrived >> (distance - 1) & 1 == 1 {
                    Age::Repeated
                } else {
                    Age::Late
                }
            }
            Some(_) => Age::Old,
        };
        (number, age)
    }

    #[inline]
    pub(super) fn place_of(&self, position: u32, broken: Broken) -> (u64, Place) {
        let position = expand(position, self.next);
        let place = if position == self.next {
            Place::Next
        } else if position < self.next {
            Place::Repeated
        } else if position - self.next >= self.window && !broken.has(Mutant::ReorderWindowHasNoBound) {
            Place::Outside
        } else if self.held.contains(position) {
            Place::Repeated
        } else {
            Place::Early
        };
        (position, place)
    }

    /// A datagram that is not a repetition has arrived. Returns whether numbers before it are missing.
    #[inline]
    pub(super) fn note_number(&mut self, number: u64, age: Age, is_marked: bool) -> bool {
        self.marks = self.marks.wrapping_add(u16::from(is_marked));
        match age {
            Age::Newest => {
                let distance = number - self.latest;
                let before = if distance < 64 { self.arrived << distance } else { 0 };
                let latest = if distance <= 64 { 1 << (distance - 1) } else { 0 };
                self.arrived = before | latest;
                self.latest = number;
                distance > 1
            }
            Age::Late => {
                self.arrived |= 1 << (self.latest - number - 1);
                true
            }
            Age::Repeated | Age::Old => false,
        }
    }

    /// Passes on or holds a bundle.
    #[inline]
    pub(super) fn take<D: DatagramDriver>(
        &mut self,
        position: u64,
        place: Place,
        driver: &mut D,
        broken: Broken,
    ) {
        match place {
            Place::Next => {
                driver.deliver(position);
                self.next += 1;
                while self.held.count() > 0 && self.held.remove(self.next) {
                    driver.deliver_held(self.next);
                    self.next += 1;
                }
            }
            Place::Early => {
                self.held.insert(position);
                driver.hold(position);
            }
            Place::Repeated if broken.has(Mutant::RepeatedBundlesAreDelivered) => driver.deliver(position),
            Place::Repeated | Place::Outside => {}
        }
    }

    /// A datagram wants an acknowledgement within `delay_ns`, with the next batch if `is_urgent`. Returns whether it must leave
    /// now.
    #[inline]
    pub(super) fn want_acknowledgement<D: DatagramDriver>(
        &mut self,
        now: Instant,
        is_urgent: bool,
        delay_ns: u64,
        driver: &D,
        broken: Broken,
    ) -> bool {
        self.unacknowledged += 1;
        self.is_urgent |= is_urgent;
        let due_at = now.plus_ns(delay_ns);
        let is_sooner = |at: Instant| (due_at < at) != broken.has(Mutant::TheLongestDelayCounts);
        if self.due_at.is_none_or(|at| is_sooner(at) && !self.is_late) {
            self.due_at = Some(due_at);
        }
        self.unacknowledged >= MAX_UNACKNOWLEDGED
            && (!driver.is_crowded() || self.unacknowledged >= self.read_unacknowledged.1)
    }

    /// Whether an acknowledgement must leave at the end of a batch.
    #[inline]
    pub(super) fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// Whether an acknowledgement must leave when a batch has been read.
    #[inline]
    pub(super) fn is_due(&self, is_crowded: bool) -> bool {
        let (usual, crowded) = self.read_unacknowledged;
        self.is_urgent || self.unacknowledged >= if is_crowded { crowded } else { usual }
    }

    /// Whether an acknowledgement must leave because of its age. While several peers flood this end, it is put off once.
    pub(super) fn is_overdue(&mut self, now: Instant, is_crowded: bool) -> bool {
        let is_over = self.due_at.is_some_and(|at| at <= now);
        if is_over && is_crowded && !self.is_late && !self.is_urgent {
            (self.due_at, self.is_late) = (Some(now.plus_ns(CROWDED_DELAY_NS)), true);
            return false;
        }
        is_over
    }

    /// When an acknowledgement must leave.
    #[inline]
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.due_at
    }

    /// An acknowledgement has left.
    #[inline]
    pub(super) fn acknowledgement_left(&mut self) {
        (self.unacknowledged, self.is_urgent, self.due_at, self.is_late) = (0, false, None, false);
    }
}
