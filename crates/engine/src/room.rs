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
const PATIENCE: Duration = Duration::from_millis(10);
/// The most injected sends that go over the limit together.
const MOST_OVER: u32 = 64;

/// How injected sends without room for a copy get on.
#[derive(Debug)]
pub(crate) struct NoRoom {
    /// Since when nothing has been taken.
    began: Clock,
    /// Since when the next ones wait that go over the limit.
    since: Clock,
    /// How many copies had been released at the beginning, ever.
    released: u64,
    /// So many more may go over the limit now.
    allowed: u32,
    /// So many were allowed last time.
    last: u32,
    told: Option<Clock>,
}

impl<L: Link> Engine<L> {
    /// An injected message to `to` must be copied and there is no room. `Ok`: it goes over the limit.
    ///
    /// # Errors
    /// [`PostError::Full`].
    #[cold]
    pub(crate) fn wait_for_room(&mut self, to: Peer) -> Result<(), PostError> {
        let now = Clock::now();
        let again = Err(PostError::Full { limit_bytes: self.machine.config().retain_bytes });
        let Some(wait) = self.no_room.as_mut().filter(|wait| wait.released == self.released) else {
            let (released, told) = (self.released, self.no_room.as_ref().and_then(|before| before.told));
            self.no_room = Some(NoRoom { began: now, since: now, released, allowed: 0, last: 0, told });
            return again;
        };
        if self.stall_watch.is_long(now - wait.began)
            && wait.told.is_none_or(|told| now - told >= stalls::REPEAT)
        {
            wait.told = Some(now);
            let waited = now - wait.began;
            self.tell_of_no_room(to, waited);
            return again;
        }
        if wait.allowed == 0 {
            if now.duration_since(wait.since) < PATIENCE {
                return again;
            }
            wait.since = now;
            wait.last = (2 * wait.last).clamp(1, MOST_OVER);
            wait.allowed = wait.last;
        }
        wait.allowed -= 1;
        Ok(())
    }

    fn tell_of_no_room(&self, to: Peer, waited: Duration) {
        let Some(tell) = self.tell else { return };
        let pages = self.pages();
        let identity = self.address_of(to).identity();
        let receiver = self.name_of(to, pages.iter().find(|page| page.identity == identity));
        let limit_bytes = self.machine.config().retain_bytes;
        tell(&stalls::no_room(&own_name(), &receiver, waited, limit_bytes, self.machine.copies_for(to)));
    }
}
