//! Expectation: decides whether the caller of an empty read may wait for this endpoint, so that it can be put to sleep.
//!
//! An MPI library reads the completion queue also while it works on other things: messages of a rank to itself, or
//! another device. Each sleep then delays that work until the sleep's time-out. So only a caller that expects
//! something from here sleeps.
//!
//! | outstanding | expectation | empty reads |
//! |---|---|---|
//! | an operation, a waiting packet, a timer, a recent look for a message, a close | something | spin, yield, sleep |
//! | multi-receive buffers or registered memory only, and there are peers | perhaps | sleep after [`QUICK_LAPS`] quick laps |
//! | nothing, or only what nobody can fill | nothing | return at once; with more ranks than cores, yield in some laps |
//!
//! MPI libraries keep multi-receive buffers posted all the time. Their one-sided operations wait for messages in
//! these buffers only. Such a caller comes back within a microsecond, time after time: its *laps* from one read to
//! the next are quick. A caller that copies a few kilobytes between two reads takes longer.
//!
//! A caller that works with itself alone (one-sided operations to its own window) has only quick laps, and never waits.
//! So each sleep or yield that brings no packet doubles the number of quick laps before the next one, up to a bound. A
//! packet resets it. With more ranks than cores the bound is low, because others need the core.

use weir_link::cores::ticks;
use weir_link::{Link, sched_yield};

use crate::Engine;

/// Laps in a row after which a caller with multi-receive buffers only waits. A working library has quick laps too.
const QUICK_LAPS: u32 = 100;
/// Bound on the quick laps before a sleep, with a core for every rank.
const MAX_QUICK_LAPS: u32 = 1 << 22;
/// The same with more ranks than cores.
const MAX_QUICK_LAPS_OVERSUBSCRIBED: u32 = 1600;
/// With more ranks than cores, a caller that does not wait yields the core in one of so many laps. A lap takes well under a
/// microsecond, so others get the core soon.
const LAPS_PER_YIELD: u32 = 8;
/// Longest quick lap, from the end of a read or of the program's yield to the next read. Unit: ticks of the processor,
/// 2 to 4 for each nanosecond.
const MAX_LAP_TICKS: u64 = 4000;
/// Calls of `progress` within which a look for a message counts. The program repeats the look while it waits.
const PEEK_CALLS: u32 = 64;

/// The events that the caller can expect from this endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expectation {
    /// An operation is outstanding.
    Something,
    /// Peers may fill a multi-receive buffer, or access registered memory.
    Perhaps,
    /// Nothing.
    Nothing,
}

/// Counts the quick laps of a caller.
#[derive(Debug)]
pub(crate) struct Laps {
    /// The time when the last empty read ended. Unit: ticks.
    read_ended_at: u64,
    quick_in_a_row: u32,
    /// Quick laps in a row after which the caller waits.
    needed: u32,
    /// Packets that had arrived at the last lap.
    packets: u64,
    /// Laps since the last yield of a caller that does not wait.
    since_yield: u32,
}

impl Default for Laps {
    fn default() -> Laps {
        Laps { read_ended_at: 0, quick_in_a_row: 0, needed: QUICK_LAPS, packets: 0, since_yield: 0 }
    }
}

impl Laps {
    /// Notes that the caller is back, at `now`. Returns whether it waits.
    ///
    /// - `yielded`: it has just ended a yield.
    /// - `packets`: packets that have arrived since the start.
    /// - `oversubscribed`: there are more ranks than cores.
    fn waits(&mut self, now: u64, yielded: bool, packets: u64, oversubscribed: bool) -> bool {
        if packets != self.packets {
            (self.packets, self.needed, self.quick_in_a_row) = (packets, QUICK_LAPS, 0);
        }
        let quick = yielded || now.wrapping_sub(self.read_ended_at) <= MAX_LAP_TICKS;
        self.quick_in_a_row = if quick { self.quick_in_a_row.saturating_add(1) } else { 0 };
        self.read_ended_at = now;
        let waits = self.quick_in_a_row >= self.needed;
        if waits {
            let most = if oversubscribed { MAX_QUICK_LAPS_OVERSUBSCRIBED } else { MAX_QUICK_LAPS };
            (self.quick_in_a_row, self.needed) = (0, (self.needed * 2).min(most));
        }
        waits
    }

    /// Whether a caller that does not wait yields the core in this lap, with more ranks than cores.
    pub(crate) fn yields(&mut self) -> bool {
        self.since_yield = (self.since_yield + 1) % LAPS_PER_YIELD;
        self.since_yield == 0
    }
}

impl<L: Link> Engine<L> {
    fn expectation(&self) -> Expectation {
        let multi_receives = self.machine.multi_receives();
        let peeked = self.peeked_at.is_some_and(|at| self.progress_calls.wrapping_sub(at) <= PEEK_CALLS);
        // While closing, peers still take what only this endpoint holds.
        if self.io.operations.count() > multi_receives
            || self.machine.backlogged() > 0
            || !self.io.timers.is_empty()
            || self.io.awaits_other_events()
            || !self.io.collectives.is_idle()
            || self.is_closing()
            || peeked
        {
            Expectation::Something
        } else if (multi_receives > 0 || !self.io.regions.is_empty()) && self.machine.has_contacts() {
            Expectation::Perhaps
        } else {
            Expectation::Nothing
        }
    }

    /// Whether the caller of an empty read may wait for this endpoint, so that it may be put to sleep.
    #[inline(never)]
    pub(crate) fn caller_may_wait(&mut self) -> bool {
        match self.expectation() {
            Expectation::Something => true,
            Expectation::Perhaps => {
                let yielded = sched_yield::has_just_yielded(MAX_LAP_TICKS);
                let packets = self.machine.counters().packets_received;
                self.laps.waits(ticks(), yielded, packets, self.oversubscribed)
            }
            Expectation::Nothing => false,
        }
    }

    /// Notes the end of a sleep or a yield inside a read.
    pub(crate) fn restart_lap(&mut self) {
        self.laps.read_ended_at = ticks();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_that_works_now_and_then_does_not_wait() {
        let (mut laps, mut now) = (Laps::default(), 1 << 40);
        for lap in 0..10_000_u64 {
            now += if lap % u64::from(QUICK_LAPS) == 0 { MAX_LAP_TICKS + 1 } else { 500 };
            assert!(!laps.waits(now, false, 0, true), "lap {lap}");
        }
    }

    #[test]
    fn a_caller_that_only_yields_waits_after_some_laps() {
        let (mut laps, mut now) = (Laps::default(), 1 << 40);
        let mut waits = || {
            now += 100 * MAX_LAP_TICKS;
            laps.waits(now, true, 0, true)
        };
        assert_eq!((0..1000).position(|_| waits()), Some(QUICK_LAPS as usize - 1));
        let waited = (0..100_000).filter(|_| waits()).count();
        assert_eq!(
            waited, 64,
            "with more ranks than cores it waits every {MAX_QUICK_LAPS_OVERSUBSCRIBED} laps"
        );
    }

    #[test]
    fn a_caller_that_works_yields_in_some_laps() {
        let mut laps = Laps::default();
        let yields: Vec<usize> = (1..=100).filter(|_| laps.yields()).collect();
        assert_eq!(yields.len(), 100 / LAPS_PER_YIELD as usize);
        assert!(yields.iter().all(|lap| lap % LAPS_PER_YIELD as usize == 0), "{yields:?}");
    }

    #[test]
    fn with_a_core_each_a_caller_that_gets_no_packets_rarely_waits() {
        let (mut laps, mut now) = (Laps::default(), 1 << 40);
        let mut waits = |packets| {
            now += 500;
            laps.waits(now, false, packets, false)
        };
        let waited = (0..1_000_000).filter(|_| waits(0)).count();
        assert!((10..=14).contains(&waited), "it waited {waited} times in a million laps");
        let first = (0..1_000_000).position(|_| waits(1));
        assert_eq!(first, Some(QUICK_LAPS as usize - 1), "a packet resets the number");
    }
}
