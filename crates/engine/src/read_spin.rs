//! Read spin: a read that finds nothing polls for a moment longer, if its caller waits.
//!
//! A waiting program spends much time between two reads. MPICH polls its other sources of messages. A real yield
//! ([`weir_link::sched_yield`]) takes half a microsecond and more. A message that comes meanwhile waits for half of
//! that on average. A poll in here costs a few nanoseconds. So a caller that returns at once after an empty read spins
//! for about as long as a message between two cores takes.
//!
//! Callers spin only a few times after an arrival. After that the message is far away, or comes from elsewhere (MPICH's
//! own shared memory), where the caller must look. No read spins with more ranks than cores, since the sender needs the
//! core, or with several threads, since they would wait for the lock.
//! ```text
//! read     nothing                                      back to the program, at 100
//! read     nothing; at 900 it is back already: spins, and at 2,300 there is something, which this read reports
//! ```

/// Longest spin of a read. Unit: ticks of the processor, 2 to 4 for each nanosecond.
const MAX_SPIN_TICKS: u64 = 6000;
/// A caller that returns later than this has done something else in between. Unit: ticks.
const MAX_GAP: u64 = 4000;
/// Spins allowed after an arrival.
const SPINS_PER_ARRIVAL: u32 = 20;

/// Decides which reads spin.
#[derive(Debug)]
pub(crate) struct ReadSpin {
    allowed: bool,
    /// The time when the last empty read ended.
    read_ended_at: u64,
    /// The time when this spin ends.
    until: u64,
    spins_left: u32,
}

impl ReadSpin {
    pub fn new(allowed: bool) -> ReadSpin {
        ReadSpin { allowed, read_ended_at: 0, until: 0, spins_left: 0 }
    }

    /// Allows spinning from now on, or ends it.
    #[cold]
    pub fn allow(&mut self, allowed: bool) {
        self.allowed = allowed;
    }

    /// Notes an arrival.
    #[inline(always)]
    pub fn arrived(&mut self) {
        self.spins_left = SPINS_PER_ARRIVAL;
    }

    /// Notes the end of an empty read. `ticks` is read only if it matters.
    #[inline(always)]
    pub fn read_ended(&mut self, ticks: impl FnOnce() -> u64) {
        if self.spins_left > 0 && self.allowed {
            self.read_ended_at = ticks();
        }
    }

    /// Whether an empty read should spin.
    #[inline]
    pub fn begin(&mut self, ticks: impl FnOnce() -> u64) -> bool {
        if self.spins_left == 0 || !self.allowed {
            return false;
        }
        let now = ticks();
        if now.wrapping_sub(self.read_ended_at) > MAX_GAP {
            return false;
        }
        self.spins_left -= 1;
        self.until = now + MAX_SPIN_TICKS;
        true
    }

    /// Whether the spin has ended.
    #[inline]
    pub fn is_over(&self, now: u64) -> bool {
        now >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_spin() -> ReadSpin {
        let mut read_spin = ReadSpin::new(true);
        read_spin.arrived();
        read_spin.read_ended(|| 10_000);
        read_spin
    }

    #[test]
    fn a_caller_that_polls_again_at_once_spins() {
        let mut read_spin = read_spin();
        assert!(read_spin.begin(|| 10_000 + MAX_GAP));
        assert!(!read_spin.is_over(10_000 + MAX_GAP));
        assert!(read_spin.is_over(10_000 + MAX_GAP + MAX_SPIN_TICKS));
    }

    #[test]
    fn a_caller_that_computed_between_reads_does_not_spin() {
        assert!(!read_spin().begin(|| 10_001 + MAX_GAP));
    }

    #[test]
    fn spins_end_after_their_bound_or_if_disabled() {
        let mut far = read_spin();
        let kept = (0..1000).take_while(|_| far.begin(|| 10_001)).count();
        assert_eq!(kept, SPINS_PER_ARRIVAL as usize);
        let mut forbidden = read_spin();
        forbidden.allow(false);
        assert!(!forbidden.begin(|| 10_001));
    }
}
