//! Timers: times at which a machine wants an event. A [`Timer`] of the endpoint machine is for a peer and a
//! [`Purpose`]; an offloaded machine has its own kinds ([`MachineTimer`]).
//!
//! The machine asks for a timer ([`crate::TimeDriver::set_timer`]) and gets [`crate::Event::TimerExpired`]. The driver
//! keeps the timers of all its machines in a [`TimerQueue`]. This file does not read a clock.
//!
//! ```text
//! handle(Room { peer 1, 0 slots }) at 0 us    driver.set_timer(Rnr of peer 1, 10 us)
//! handle(TimerExpired(Rnr of peer 1))         driver.ask_room(1)
//! ```

use alloc::collections::{BTreeMap, BTreeSet};

use crate::event::Peer;
use crate::time::Instant;

/// The purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// The peer was not ready (RNR). The refused packet is tried again.
    Rnr,
}

/// A timer. A machine has at most one for each peer and purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timer {
    /// The peer that it concerns.
    pub peer: Peer,
    /// Its purpose.
    pub purpose: Purpose,
}

/// A timer of an offloaded machine: the machine, what it concerns, and the purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MachineTimer {
    /// Of a group: its oldest operation has waited as long as the group allows.
    Group {
        /// The group.
        group: u32,
    },
}

/// A timer of any machine on a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TimerKey {
    /// Of the endpoint. The driver reports [`crate::Event::TimerExpired`].
    Endpoint(Timer),
    /// Of an offloaded machine. The driver reports [`crate::MachineEvent::TimerExpired`].
    Machine(MachineTimer),
}

impl From<Timer> for TimerKey {
    fn from(timer: Timer) -> TimerKey {
        TimerKey::Endpoint(timer)
    }
}

impl From<MachineTimer> for TimerKey {
    fn from(timer: MachineTimer) -> TimerKey {
        TimerKey::Machine(timer)
    }
}

/// The timers that are set, in order of time. Bound: one entry for each key, so one for each peer and purpose, and one for
/// each group of a machine. An empty queue owns no memory.
///
/// Cost: setting and cancelling are logarithmic in the number of timers; the earliest time is the first entry.
#[derive(Clone, Debug)]
pub struct TimerQueue<K = Timer> {
    by_time: BTreeSet<(Instant, K)>,
    by_key: BTreeMap<K, Instant>,
}

impl<K> Default for TimerQueue<K> {
    fn default() -> TimerQueue<K> {
        TimerQueue { by_time: BTreeSet::new(), by_key: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> TimerQueue<K> {
    /// Whether no timer is set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }

    /// Number of timers that are set.
    pub fn len(&self) -> usize {
        self.by_time.len()
    }

    /// The earliest expiry time.
    #[inline]
    pub fn earliest(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Sets a timer to `at`, instead of its earlier time.
    pub fn set(&mut self, key: K, at: Instant) {
        if let Some(before) = self.by_key.insert(key, at) {
            self.by_time.remove(&(before, key));
        }
        self.by_time.insert((at, key));
    }

    /// Cancels a timer, if it is set.
    pub fn cancel(&mut self, key: K) {
        if let Some(at) = self.by_key.remove(&key) {
            self.by_time.remove(&(at, key));
        }
    }

    /// Removes the first timer that has expired at `now`. Timers of the same time come in the order of their keys.
    pub fn take_expired(&mut self, now: Instant) -> Option<K> {
        let (_, key) = *self.by_time.first().filter(|(at, _)| *at <= now)?;
        self.cancel(key);
        Some(key)
    }
}
