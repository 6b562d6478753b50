//! Lingering: a read that finds nothing looks for a moment longer, if its caller waits.
//!
//! What a waiting program does between two reads is dear: MPICH looks at its other sources of messages, and where its yields are
//! real ([`weir_link::sched_yield`]) it gives its core away each time, half a microsecond and more; a message that comes meanwhile
//! waits for half of that on average. A look in here costs a few nanoseconds. So a caller that comes back at once after a read that found nothing is kept for about as long as a
//! message between two cores takes.
//!
//! Only a few times after something has arrived: then what is waited for is far away, or comes from elsewhere (MPICH's own
//! shared memory), and who waits is to be found there. Not with more ranks than cores, where it needs the core; not with
//! several threads, which would wait for the lock.
//! ```text
//! read     nothing                                      back to the program, at 100
//! read     nothing; at 900 it is back already: looks, and at 2,300 there is something, which this read reports
//! ```

/// The longest that a read lingers. Unit: ticks of the processor, of which a nanosecond has 2 to 4.
const MAX_SPIN_TICKS: u64 = 6000;
/// Who comes back later than this has done something else in between. Unit: ticks.
const MAX_GAP: u64 = 4000;
/// How often callers are kept after something has arrived.
const SPINS_PER_ARRIVAL: u32 = 20;

/// Decides who is kept.
#[derive(Debug)]
pub(crate) struct ReadSpin {
    allowed: bool,
    /// When the last read that found nothing was over.
    read_ended_at: u64,
    /// When this one is.
    until: u64,
    spins_left: u32,
}

impl ReadSpin {
    pub fn new(allowed: bool) -> ReadSpin {
        ReadSpin { allowed, read_ended_at: 0, until: 0, spins_left: 0 }
    }

    /// Nobody is kept any more.
    #[cold]
    pub fn disable(&mut self) {
        self.allowed = false;
    }

    /// Something has arrived.
    #[inline(always)]
    pub fn arrived(&mut self) {
        self.spins_left = SPINS_PER_ARRIVAL;
    }

    /// A read that has found nothing is over. `ticks` is read only if it matters.
    #[inline(always)]
    pub fn read_ended(&mut self, ticks: impl FnOnce() -> u64) {
        if self.spins_left > 0 && self.allowed {
            self.read_ended_at = ticks();
        }
    }

    /// Whether to keep the caller of a read that has found nothing.
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

    /// Whether to let it go.
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
        forbidden.disable();
        assert!(!forbidden.begin(|| 10_001));
    }
}
