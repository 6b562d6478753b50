//! Rate throttle of one task: it may not inject within a delay of its last injection (IRT). It knows nothing of other
//! tasks, so it cannot see that too many of them inject at once.

use super::mutant::{Broken, Mutant};
use crate::time::Instant;

/// The throttle of a task.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateThrottle {
    last: Option<Instant>,
    pub(super) broken: Broken,
}

impl RateThrottle {
    /// Injects at `now`, if `delay_ns` have passed since the last injection.
    ///
    /// # Errors
    /// The time at which it may. Nothing has changed.
    pub fn inject(&mut self, now: Instant, delay_ns: u64) -> Result<(), Instant> {
        if let Some(earliest) = self.earliest(delay_ns).filter(|earliest| now < *earliest) {
            if self.broken.has(Mutant::RefusalsRestartTheDelay) {
                self.last = Some(now);
            }
            return Err(earliest);
        }
        self.last = Some(now);
        Ok(())
    }

    /// When the next injection may be. `None`: at any time.
    #[inline]
    fn earliest(&self, delay_ns: u64) -> Option<Instant> {
        self.last.map(|last| last.plus_ns(delay_ns))
    }

    /// Whether [`RateThrottle::inject`] would inject at `now`.
    #[inline]
    pub fn allows(&self, now: Instant, delay_ns: u64) -> bool {
        self.earliest(delay_ns).is_none_or(|earliest| now >= earliest)
    }

    /// Something was injected at `now` without asking.
    #[inline]
    pub fn injected(&mut self, now: Instant) {
        self.last = Some(now);
    }
}
