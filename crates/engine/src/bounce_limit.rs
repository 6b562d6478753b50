//! Room for copies: what an injected send does that must be copied while we keep for others what we may
//! (`FI_WEIR_RETAIN_BYTES`).
//!
//! It says "again" as long as copies are being taken. If none has been for a while, what would make the receiver take them may be
//! this very message: it goes over the limit, and after the next while two, then four: a program that needs many of them
//! through is not held up by each, and one that floods somebody who never comes still fills memory slowly. Whoever waits for long
//! says so, as with stalls for credit.

use std::time::{Duration, Instant as Clock};

use weir_link::Link;
use weir_proto::Peer;

use crate::observe::own_name;
use crate::{Engine, PostError, stalls};

/// How long an injected send waits for room while nothing is released.
const MAX_WAIT: Duration = Duration::from_millis(10);
/// The most injected sends that go over the limit together.
const MAX_OVER_LIMIT: u32 = 64;

/// How injected sends without room for a copy get on.
#[derive(Debug)]
pub(crate) struct BounceLimitWait {
    /// Since when nothing has been taken.
    began: Clock,
    /// Since when the next ones wait that go over the limit.
    since: Clock,
    /// How many copies had been released at the beginning, ever.
    freed: u64,
    /// So many more may go over the limit now.
    allowed: u32,
    /// So many were allowed last time.
    last: u32,
    reported: Option<Clock>,
}

impl<L: Link> Engine<L> {
    /// An injected message to `to` must be copied and there is no room. `Ok`: it goes over the limit.
    ///
    /// # Errors
    /// [`PostError::Full`].
    #[cold]
    pub(crate) fn wait_for_bounce_buffer(&mut self, to: Peer) -> Result<(), PostError> {
        let now = Clock::now();
        let again = Err(PostError::Full { limit_bytes: self.machine.config().bounce_bytes });
        let Some(wait) =
            self.bounce_limit_wait.as_mut().filter(|wait| wait.freed == self.bounce_buffers_freed)
        else {
            let (freed, reported) = (
                self.bounce_buffers_freed,
                self.bounce_limit_wait.as_ref().and_then(|before| before.reported),
            );
            self.bounce_limit_wait =
                Some(BounceLimitWait { began: now, since: now, freed, allowed: 0, last: 0, reported });
            return again;
        };
        if self.stall_watch.is_long(now - wait.began)
            && wait.reported.is_none_or(|reported| now - reported >= stalls::REPORT_INTERVAL)
        {
            wait.reported = Some(now);
            let waited = now - wait.began;
            self.report_bounce_limit(to, waited);
            return again;
        }
        if wait.allowed == 0 {
            if now.duration_since(wait.since) < MAX_WAIT {
                return again;
            }
            wait.since = now;
            wait.last = (2 * wait.last).clamp(1, MAX_OVER_LIMIT);
            wait.allowed = wait.last;
        }
        wait.allowed -= 1;
        Ok(())
    }

    fn report_bounce_limit(&self, to: Peer, waited: Duration) {
        let Some(warn) = self.warn else { return };
        let pages = self.pages();
        let identity = self.address_of(to).identity();
        let receiver = self.name_of(to, pages.iter().find(|page| page.identity == identity));
        let limit_bytes = self.machine.config().bounce_bytes;
        warn(&stalls::bounce_limit_line(
            &own_name(),
            &receiver,
            waited,
            limit_bytes,
            self.machine.bounce_buffers_for(to),
        ));
    }
}
