//! When a member of a group that waits looks whether the others run, and when it sleeps.

use std::time::{Duration, Instant};

/// A member that waits reads the clock once in so many looks.
const LOOKS_PER_CLOCK: u32 = 16;
/// It asks so often whether the others run.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// It waits so long awake.
const AWAKE_TIME: Duration = Duration::from_millis(1);

/// What a member that waits does about time.
#[derive(Default)]
pub struct Wait {
    looks: u32,
    /// When the wait began, and when the others were checked last.
    times: Option<(Instant, Instant)>,
    sleeps: bool,
}

/// What is due.
pub struct Due {
    /// To check whether the others run.
    pub check: bool,
    /// To sleep until something happens.
    pub sleep: bool,
}

impl Wait {
    /// Called after each look that has found nothing.
    pub fn due(&mut self) -> Due {
        self.looks = self.looks.wrapping_add(1);
        if !self.sleeps && !self.looks.is_multiple_of(LOOKS_PER_CLOCK) {
            return Due { check: false, sleep: false };
        }
        let now = Instant::now();
        let (began, checked) = self.times.get_or_insert((now, now));
        let check = now.duration_since(*checked) >= CHECK_INTERVAL;
        if check {
            *checked = now;
        }
        self.sleeps = now.duration_since(*began) >= AWAKE_TIME;
        Due { check, sleep: self.sleeps }
    }
}
