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
    /// What had been received when it was about to sleep last.
    received: Option<u64>,
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

    /// Called when a sleep is due. Whether to sleep: not if packets have arrived since the last such call. More may follow, such
    /// as one-sided operations of a peer, so it then stays awake for as long as at the beginning.
    ///
    /// - `received`: packets of the endpoint so far.
    pub fn may_sleep(&mut self, received: u64) -> bool {
        let is_quiet = self.received.replace(received).is_none_or(|before| before == received);
        if !is_quiet {
            (self.sleeps, self.looks) = (false, 0);
            if let Some((began, _)) = &mut self.times {
                *began = Instant::now();
            }
        }
        is_quiet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks until the clock is read. Returns whether a sleep is due then.
    fn sleep_is_due(wait: &mut Wait) -> bool {
        (0..LOOKS_PER_CLOCK).any(|_| wait.due().sleep)
    }

    #[test]
    fn a_wait_in_which_packets_arrive_stays_awake() {
        let now = Instant::now();
        let began_long_ago = || Some((now - 2 * AWAKE_TIME, now));
        let mut wait = Wait { times: began_long_ago(), ..Wait::default() };
        assert!(sleep_is_due(&mut wait));
        assert!(wait.may_sleep(7), "nobody knows yet what has arrived");
        assert!(sleep_is_due(&mut wait) && wait.may_sleep(7));
        assert!(!wait.may_sleep(8));
        let (began, _) = wait.times.expect("a time");
        assert!(began >= now && !wait.sleeps, "it is awake for the whole time again");
        wait.times = began_long_ago();
        assert!(sleep_is_due(&mut wait) && wait.may_sleep(8), "nothing more has arrived");
    }
}
