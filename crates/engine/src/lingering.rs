//! Lingering: a read that finds nothing looks for a moment longer, if its caller waits.
//!
//! What a waiting program does between two reads is dear: MPICH looks at its other sources of messages, and where its yields are
//! real ([`weir_link::yields`]) it gives its core away each time, half a microsecond and more; a message that comes meanwhile
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
const LONGEST: u64 = 6000;
/// Who comes back later than this has done something else in between. Unit: ticks.
const GAP: u64 = 4000;
/// How often callers are kept after something has arrived.
const TIMES: u32 = 20;

/// Decides who is kept.
#[derive(Debug)]
pub(crate) struct Lingering {
    allowed: bool,
    /// When the last read that found nothing was over.
    left_at: u64,
    /// When this one is.
    until: u64,
    times: u32,
}

impl Lingering {
    pub fn new(allowed: bool) -> Lingering {
        Lingering { allowed, left_at: 0, until: 0, times: 0 }
    }

    /// Nobody is kept any more.
    #[cold]
    pub fn forbid(&mut self) {
        self.allowed = false;
    }

    /// Something has arrived.
    #[inline(always)]
    pub fn arrived(&mut self) {
        self.times = TIMES;
    }

    /// A read that has found nothing is over. `ticks` is read only if it matters.
    #[inline(always)]
    pub fn leave(&mut self, ticks: impl FnOnce() -> u64) {
        if self.times > 0 && self.allowed {
            self.left_at = ticks();
        }
    }

    /// Whether to keep the caller of a read that has found nothing.
    #[inline]
    pub fn begin(&mut self, ticks: impl FnOnce() -> u64) -> bool {
        if self.times == 0 || !self.allowed {
            return false;
        }
        let now = ticks();
        if now.wrapping_sub(self.left_at) > GAP {
            return false;
        }
        self.times -= 1;
        self.until = now + LONGEST;
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

    fn lingering() -> Lingering {
        let mut lingering = Lingering::new(true);
        lingering.arrived();
        lingering.leave(|| 10_000);
        lingering
    }

    #[test]
    fn who_comes_back_at_once_is_kept_for_a_while() {
        let mut lingering = lingering();
        assert!(lingering.begin(|| 10_000 + GAP));
        assert!(!lingering.is_over(10_000 + GAP));
        assert!(lingering.is_over(10_000 + GAP + LONGEST));
    }

    #[test]
    fn who_has_done_something_else_is_not() {
        assert!(!lingering().begin(|| 10_001 + GAP));
    }

    #[test]
    fn nobody_is_kept_for_what_is_far_away_or_where_it_is_forbidden() {
        let mut far = lingering();
        let kept = (0..1000).take_while(|_| far.begin(|| 10_001)).count();
        assert_eq!(kept, TIMES as usize);
        let mut forbidden = lingering();
        forbidden.forbid();
        assert!(!forbidden.begin(|| 10_001));
    }
}
