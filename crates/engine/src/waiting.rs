//! Waiting: what an endpoint does when it finds nothing. Spins briefly, yields, then sleeps on its doorbell.
//!
//! Ranks that outnumber the cores must give the core away at once, since what they wait for can only happen when
//! somebody else runs; ranks with a core of their own lose by any system call. So the spin is short in the first case
//! and long in the second. A program that polls between computations (`MPI_Test` in a loop) is not put to sleep:
//! only calls that follow each other at once count as waiting.

use std::time::{Duration, Instant};

/// Polls that find nothing before the core is given away, ranks with a core each. One takes 30 to 100 ns.
const SPIN_ALONE: u32 = 100;
/// The same with more ranks than cores.
const SPIN_CROWDED: u32 = 5;
/// Yields before sleeping, ranks with a core each: about as long as a sleep and its wake-up would cost.
const YIELDS_ALONE: u32 = 500;
/// The same with more ranks than cores.
const YIELDS_CROWDED: u32 = 2;
/// A caller that comes back later than this has done something else in between.
const GAP: Duration = Duration::from_micros(10);
/// Longest sleep inside a read while several threads call.
const SHARED_SLEEP_NS: u64 = 50_000;

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Look again at once.
    Spin,
    /// Let somebody else run.
    Yield,
    /// Sleep on the doorbell, at most so long.
    Sleep {
        /// Unit: ns.
        at_most_ns: u64,
    },
}

/// Decides how to wait, by how long nothing has come.
#[derive(Debug)]
pub(crate) struct Waiting {
    spins: u32,
    yields: u32,
    sleep_ns: u64,
    /// Empty polls in a row.
    streak: u32,
    last: Option<Instant>,
}

impl Waiting {
    /// - `spin`: polls before yielding; 0: by `crowded`.
    /// - `sleep_us`: longest sleep; `several_threads` caps it.
    pub fn new(spin: u32, sleep_us: u32, crowded: bool, several_threads: bool) -> Waiting {
        let own_choice = if crowded { SPIN_CROWDED } else { SPIN_ALONE };
        let sleep_ns = u64::from(sleep_us) * 1000;
        Waiting {
            spins: if spin > 0 { spin } else { own_choice },
            yields: if crowded { YIELDS_CROWDED } else { YIELDS_ALONE },
            sleep_ns: if several_threads { sleep_ns.min(SHARED_SLEEP_NS) } else { sleep_ns },
            streak: 0,
            last: None,
        }
    }

    /// Several threads call: from now on sleeps are short, since another one may wait for the lock that this one holds.
    #[cold]
    pub fn share(&mut self) {
        self.sleep_ns = self.sleep_ns.min(SHARED_SLEEP_NS);
    }

    /// Something happened: begin again.
    #[inline]
    pub fn reset(&mut self) {
        self.streak = 0;
    }

    /// Nothing was found again. `clock` is read only once the spin is over.
    #[inline]
    pub fn pause(&mut self, clock: impl FnOnce() -> Instant) -> Pause {
        self.streak = self.streak.saturating_add(1);
        if self.streak < self.spins {
            return Pause::Spin;
        }
        self.beyond_spinning(clock())
    }

    fn beyond_spinning(&mut self, now: Instant) -> Pause {
        let gap = self.last.map(|last| now.saturating_duration_since(last));
        self.last = Some(now);
        if self.streak == self.spins {
            return Pause::Spin; // from here on the gaps are known
        }
        if gap.is_some_and(|gap| gap > GAP) {
            self.streak = self.spins / 2;
            return Pause::Spin;
        }
        if self.sleep_ns == 0 || self.streak - self.spins <= self.yields {
            return Pause::Yield;
        }
        Pause::Sleep { at_most_ns: self.sleep_ns }
    }

    /// The pause is over; the next one is measured from here.
    #[inline]
    pub fn resumed(&mut self, now: Instant) {
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(waiting: &mut Waiting, start: Instant, step: Duration, count: u32) -> Vec<Pause> {
        (0..count).map(|i| waiting.pause(|| start + step * i)).collect()
    }

    #[test]
    fn a_caller_that_waits_spins_then_yields_then_sleeps() {
        let mut waiting = Waiting::new(3, 100, false, false);
        let seen = pauses(&mut waiting, Instant::now(), Duration::from_nanos(100), 5 + YIELDS_ALONE);
        assert_eq!(seen[..3], [Pause::Spin; 3]);
        assert_eq!(seen[3], Pause::Yield);
        assert_eq!(seen.last(), Some(&Pause::Sleep { at_most_ns: 100_000 }));
        waiting.reset();
        assert_eq!(waiting.pause(Instant::now), Pause::Spin);
    }

    #[test]
    fn a_caller_that_computes_between_polls_is_never_put_to_sleep() {
        let mut waiting = Waiting::new(10, 1000, true, false);
        let seen = pauses(&mut waiting, Instant::now(), Duration::from_micros(20), 10_000);
        assert!(seen.iter().all(|pause| *pause == Pause::Spin));
    }

    #[test]
    fn with_several_threads_sleeps_are_short() {
        let mut waiting = Waiting::new(1, 100_000, true, true);
        let seen = pauses(&mut waiting, Instant::now(), Duration::ZERO, 3 + YIELDS_CROWDED);
        assert_eq!(seen.last(), Some(&Pause::Sleep { at_most_ns: 50_000 }));
    }
}
