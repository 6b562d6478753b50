//! When a member of a group that waits looks whether the others run, when it sleeps, and which errors it reads first.

use std::cell::Cell;
use std::ffi::c_int;
use std::time::{Duration, Instant};

use crate::errno::completion;

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

/// So long the error of a lost peer waits in a queue for the group to learn of the loss.
const MAX_DELAY: Duration = Duration::from_secs(1);

thread_local! {
    static PRECEDENCE: Cell<Option<Delay>> = const { Cell::new(None) };
}

/// How long this thread, which waits in a group, still reads no error of a lost peer.
#[derive(Clone, Copy)]
enum Delay {
    /// It has not met one.
    Unused,
    Until(Instant),
}

/// While it exists, a failure of the group precedes the errors that the same loss brings to other operations.
///
/// The MPI reads its queue while a member waits, and the loss of a peer ends all receives from any sender, such as MPICH's
/// for active messages. MPICH ends the process at each such error, whatever error handler the program has. The operation
/// of the group would then not return the error that it knows an instant later.
pub struct GroupPrecedence {
    before: Option<Delay>,
}

impl GroupPrecedence {
    pub fn begin() -> GroupPrecedence {
        GroupPrecedence { before: PRECEDENCE.replace(Some(Delay::Unused)) }
    }
}

impl Drop for GroupPrecedence {
    fn drop(&mut self) {
        PRECEDENCE.set(self.before);
    }
}

/// Whether the reader of a queue, which is this thread, gets an error later. Then it gets nothing behind it either.
///
/// - `number`: of the error.
#[cold]
pub fn delays(number: c_int) -> bool {
    completion::is_loss(number) && delays_loss(Instant::now())
}

fn delays_loss(now: Instant) -> bool {
    match PRECEDENCE.get() {
        None => false,
        Some(Delay::Unused) => {
            PRECEDENCE.set(Some(Delay::Until(now + MAX_DELAY)));
            true
        }
        Some(Delay::Until(end)) => now < end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_lost_peer_waits_for_the_group_and_no_longer_than_a_second() {
        let now = Instant::now();
        assert!(!delays(libc::ECONNRESET), "nobody waits in a group");
        let outer = GroupPrecedence::begin();
        assert!(!delays(completion::TRUNCATED) && !delays(completion::CANCELED));
        assert!(delays_loss(now) && delays_loss(now + MAX_DELAY / 2));
        assert!(!delays_loss(now + MAX_DELAY), "the group has not failed");
        let elsewhere = std::thread::spawn(|| delays(libc::ECONNRESET)).join();
        assert!(!elsewhere.expect("no panic"), "another thread does not wait in the group");
        let inner = GroupPrecedence::begin();
        assert!(delays_loss(now + MAX_DELAY), "the next operation");
        drop(inner);
        assert!(!delays_loss(now + MAX_DELAY));
        drop(outer);
        assert!(!delays_loss(now));
    }

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
