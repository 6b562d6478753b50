//! The limit on bounce buffers (`FI_WEIR_BOUNCE_BYTES`): injected sends wait when bounce buffers take all the
//! memory that they may, and at last exceed the limit.
//!
//! Such a send returns [`PostError::Full`] as long as receivers free bounce buffers. If none was freed for
//! [`MAX_WAIT`], the receiver may wait for this very message, so the next attempt exceeds the limit. After the next
//! such time two sends may, then four, up to [`MAX_OVER_LIMIT`]. So a program that needs many messages through is not
//! delayed by each, and a program that floods a receiver fills memory slowly. A long wait is reported, like a stall for
//! credit.

use std::time::{Duration, Instant as Clock};

use weir_link::Link;
use weir_proto::Peer;

use crate::observe::own_name;
use crate::{Engine, PostError, stalls};

/// Time for which injected sends wait while no bounce buffer is freed.
const MAX_WAIT: Duration = Duration::from_millis(10);
/// Most injected sends that exceed the limit together.
const MAX_OVER_LIMIT: u32 = 64;

/// The state of injected sends that wait for a bounce buffer.
#[derive(Debug)]
pub(crate) struct BounceLimitWait {
    /// The time when the wait began; no bounce buffer was freed since.
    began: Clock,
    /// The time when the wait for the next excess began.
    since: Clock,
    /// Bounce buffers freed when the wait began, since the start of the endpoint.
    freed: u64,
    /// Number of further sends that may exceed the limit now.
    allowed: u32,
    /// Number that was allowed last time.
    last: u32,
    reported: Option<Clock>,
}

impl<L: Link> Engine<L> {
    /// Called for an injected message to `to` that was refused, because it needs a bounce buffer and the limit is reached.
    /// Returns the error of the post. The next attempt may exceed the limit if the wait has been long.
    #[cold]
    pub(crate) fn wait_for_bounce_buffer(&mut self, to: Peer) -> PostError {
        let now = Clock::now();
        let again = PostError::Full { limit_bytes: self.machine.config().bounce_bytes };
        let Some(wait) =
            self.bounce_limit_wait.as_mut().filter(|wait| wait.freed == self.io.bounce_buffers_freed)
        else {
            let (freed, reported) = (
                self.io.bounce_buffers_freed,
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
        self.io.may_exceed_bounce_limit = true;
        again
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
