//! Time as a number, so that a simulator can choose it.

/// A time: nanoseconds since an origin that the driver chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub u64);

impl Instant {
    /// Nanoseconds from `earlier` to `self`. 0 if `earlier` is later, because clocks of drivers may be coarse.
    #[inline]
    pub fn since_ns(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time `ns` nanoseconds later.
    #[inline]
    pub fn plus_ns(self, ns: u64) -> Instant {
        Instant(self.0.saturating_add(ns))
    }
}
