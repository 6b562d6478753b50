//! Senders that are ahead of their receiver: what completes at once although it cannot leave is copied, and whoever copies
//! without end fills its memory, pushes the receiver's data out of the caches and, with more ranks than cores, keeps the core
//! from those for whom everybody waits. So a sender with many copies for one receiver gives it a little time to take some.
//!
//! It waits only as long as that is of use. A receiver that takes nothing (it computes, or waits for a message that comes
//! last) costs the first few messages a wait, then one in two, in four, up to one in [`MOST_SKIPPED`], and none blocks: an
//! injected send returns within [`PATIENCE_CROWDED`].

use std::time::{Duration, Instant as Clock};

use weir_link::Link;
use weir_proto::Peer;

use crate::Engine;

/// Copies for one receiver that cost no wait: the window of most programs.
const FREE_COPIES: u32 = 64;
/// Copies at which a wait is over.
const CAUGHT_UP: u32 = FREE_COPIES / 2;
/// The longest wait with a core for every rank: a few times what a receiver needs for so many small messages.
const PATIENCE_ALONE: Duration = Duration::from_micros(20);
/// The longest wait with more ranks than cores: time for the receiver to be given a core.
const PATIENCE_CROWDED: Duration = Duration::from_micros(200);
/// Looks before the core is given away, with more ranks than cores.
const LOOKS_CROWDED: u32 = 10;
/// Messages that are sent without a wait after the last of many that were in vain.
const MOST_SKIPPED: u32 = 1023;

/// When to wait for receivers.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Messages to be sent without a wait.
    skip: u32,
    /// So many were skipped after the last wait that was in vain.
    skipped: u32,
}

impl Ahead {
    /// Whether the next message is sent without a wait.
    #[inline]
    fn skips(&mut self) -> bool {
        let skips = self.skip > 0;
        self.skip = self.skip.saturating_sub(1);
        skips
    }

    /// A wait is over; `useful`: the receiver has taken something.
    fn waited(&mut self, useful: bool) {
        self.skipped = if useful { 0 } else { (2 * self.skipped + 1).min(MOST_SKIPPED) };
        self.skip = self.skipped;
    }
}

impl<L: Link> Engine<L> {
    /// A message to `to` has been copied because it could not leave, or because `to` has no room.
    #[inline]
    pub(crate) fn let_catch_up(&mut self, to: Peer) {
        if self.machine.copies_for(to) > FREE_COPIES && !self.ahead.skips() {
            self.wait_until_caught_up(to);
        }
    }

    #[cold]
    fn wait_until_caught_up(&mut self, to: Peer) {
        let (before, began) = (self.machine.copies_for(to), Clock::now());
        let patience = if self.crowded { PATIENCE_CROWDED } else { PATIENCE_ALONE };
        // Other threads may wait for what this one holds.
        let patience = patience.min(self.waiting.longest_sleep());
        let mut looks = 0;
        loop {
            if self.progress() == 0 {
                looks += 1;
                if self.crowded && looks > LOOKS_CROWDED {
                    self.rest(patience.saturating_sub(began.elapsed()).as_nanos() as u64);
                } else {
                    std::hint::spin_loop();
                }
            }
            if self.machine.copies_for(to) <= CAUGHT_UP || began.elapsed() >= patience {
                break;
            }
        }
        // What others have taken meanwhile says nothing about this receiver.
        self.ahead.waited(self.machine.copies_for(to) < before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_in_vain_become_rare_and_one_of_use_makes_them_frequent_again() {
        let mut ahead = Ahead::default();
        let mut waits = 0;
        for _ in 0..100_000 {
            if !ahead.skips() {
                waits += 1;
                ahead.waited(false);
            }
        }
        assert!((100..120).contains(&waits), "{waits}");
        while ahead.skips() {}
        ahead.waited(true);
        assert!(!ahead.skips());
    }
}
