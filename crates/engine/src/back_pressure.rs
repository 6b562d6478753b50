//! Senders that are ahead of their receiver: what completes at once although it cannot leave is copied, and whoever copies
//! without end fills its memory, pushes the receiver's data out of the caches and, with more ranks than cores, keeps the core
//! from those for whom everybody waits. So a sender with many copies for one receiver gives it a little time to take some.
//!
//! It waits only as long as that is of use. A receiver that takes nothing (it computes, or waits for a message that comes
//! last) costs the first few messages a wait, then one in two, in four, up to one in [`MAX_SKIPPED`], and none blocks: an
//! injected send returns within [`MAX_WAIT_OVERSUBSCRIBED`].

use std::time::{Duration, Instant as Clock};

use weir_link::Link;
use weir_proto::Peer;

use crate::Engine;

/// Copies for one receiver that cost no wait: the window of most programs.
const FREE_BOUNCE_BUFFERS: u32 = 64;
/// Copies at which a wait is over.
const RESUME_BOUNCE_BUFFERS: u32 = FREE_BOUNCE_BUFFERS / 2;
/// The longest wait with a core for every rank: a few times what a receiver needs for so many small messages.
const MAX_WAIT: Duration = Duration::from_micros(20);
/// The longest wait with more ranks than cores: time for the receiver to be given a core.
const MAX_WAIT_OVERSUBSCRIBED: Duration = Duration::from_micros(200);
/// Looks before the core is given away, with more ranks than cores.
const POLLS_OVERSUBSCRIBED: u32 = 10;
/// Messages that are sent without a wait after the last of many that were in vain.
const MAX_SKIPPED: u32 = 1023;

/// When to wait for receivers.
#[derive(Debug, Default)]
pub(crate) struct BackPressure {
    /// Messages to be sent without a wait.
    skip: u32,
    /// So many were skipped after the last wait that was in vain.
    skipped: u32,
}

impl BackPressure {
    /// Whether the next message is sent without a wait.
    #[inline]
    fn sends_without_wait(&mut self) -> bool {
        let sends_without_wait = self.skip > 0;
        self.skip = self.skip.saturating_sub(1);
        sends_without_wait
    }

    /// A wait is over; `useful`: the receiver has taken something.
    fn waited(&mut self, useful: bool) {
        self.skipped = if useful { 0 } else { (2 * self.skipped + 1).min(MAX_SKIPPED) };
        self.skip = self.skipped;
    }
}

impl<L: Link> Engine<L> {
    /// A message to `to` has been copied because it could not leave, or because `to` has no room.
    #[inline]
    pub(crate) fn apply_back_pressure(&mut self, to: Peer) {
        if self.machine.bounce_buffers_for(to) > FREE_BOUNCE_BUFFERS
            && !self.back_pressure.sends_without_wait()
        {
            self.wait_for_receiver(to);
        }
    }

    #[cold]
    fn wait_for_receiver(&mut self, to: Peer) {
        let (before, began) = (self.machine.bounce_buffers_for(to), Clock::now());
        let max_wait = if self.oversubscribed { MAX_WAIT_OVERSUBSCRIBED } else { MAX_WAIT };
        // Other threads may wait for what this one holds.
        let max_wait = max_wait.min(self.waiting.longest_sleep());
        let mut polls = 0;
        loop {
            if self.progress() == 0 {
                polls += 1;
                if self.oversubscribed && polls > POLLS_OVERSUBSCRIBED {
                    self.sleep_or_yield(max_wait.saturating_sub(began.elapsed()).as_nanos() as u64);
                } else {
                    std::hint::spin_loop();
                }
            }
            if self.machine.bounce_buffers_for(to) <= RESUME_BOUNCE_BUFFERS || began.elapsed() >= max_wait {
                break;
            }
        }
        // What others have taken meanwhile says nothing about this receiver.
        self.back_pressure.waited(self.machine.bounce_buffers_for(to) < before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn useless_waits_back_off_and_a_useful_wait_resets_them() {
        let mut back_pressure = BackPressure::default();
        let mut waits = 0;
        for _ in 0..100_000 {
            if !back_pressure.sends_without_wait() {
                waits += 1;
                back_pressure.waited(false);
            }
        }
        assert!((100..120).contains(&waits), "{waits}");
        while back_pressure.sends_without_wait() {}
        back_pressure.waited(true);
        assert!(!back_pressure.sends_without_wait());
    }
}
