//! Sender back-pressure: a sender with many bounce buffers waits a little for its receiver.
//!
//! A send that completes at once although it cannot leave costs a bounce buffer. Too many of them fill the sender's
//! memory and push the receiver's data out of the caches. With more ranks than cores the sender also keeps the core
//! from the receiver. So a sender with many bounce buffers for one receiver gives it a little time. If the receiver is on
//! another host, several hosts may send to it, and it takes from each in turn: then the time is longer.
//!
//! A receiver that takes nothing may compute or wait for a later message. So useless waits become rare: first every
//! such message waits, then one in two, one in four, down to one in [`MAX_SKIPPED`] + 1. No wait blocks: it ends after
//! [`MAX_WAIT`], after [`MAX_WAIT_OVERSUBSCRIBED`] with more ranks than cores, or after [`MAX_WAIT_FAR`] if the receiver is
//! on another host. Such a long wait is useful only if half of the messages leave that must leave before it ends.
//!
//! The first message to a peer on another host waits too, up to [`MAX_CONTACT_WAIT`], until the peer has answered and the
//! message has left. Its send is complete, so the program may leave for something else than MPI that depends on
//! the message, such as `MPI_Comm_accept` of Open MPI, and nobody polls here any more. Useless waits become rare as above.
//!
//! For the same reason a caller that learns the end of an operation of a group lets first leave what the group has sent
//! ([`Engine::let_groups_leave`]), for at most [`MAX_WAIT_FAR`], or [`MAX_ADMISSION_WAIT`] if admission holds it back. A member may
//! end an operation while others wait for its last packet.
//!
//! For the same reason each message that is complete waits while admission holds it back, up to [`MAX_ADMISSION_WAIT`]: the
//! gate opens only for those who poll. Tokens of ranks that do nothing are free again long before that.

use std::time::{Duration, Instant as Clock};

use weir_link::Link;
use weir_proto::Peer;
use weir_proto::admission::HOLD_NS;

use crate::Engine;

/// Bounce buffers for one receiver that cost no wait: the window of most programs.
const FREE_BOUNCE_BUFFERS: u32 = 64;
/// Bounce buffers at which a wait ends.
const RESUME_BOUNCE_BUFFERS: u32 = FREE_BOUNCE_BUFFERS / 2;
/// Longest wait with a core for every rank: a few times what a receiver needs for this many small messages.
const MAX_WAIT: Duration = Duration::from_micros(20);
/// Longest wait with more ranks than cores: time for the receiver to get a core.
const MAX_WAIT_OVERSUBSCRIBED: Duration = Duration::from_micros(200);
/// Longest wait for a receiver on another host. It takes messages of several hosts in turn, and our turn comes meanwhile.
const MAX_WAIT_FAR: Duration = Duration::from_millis(1);
/// Longest wait at the first contact: some time slices, since the peer may share its core.
const MAX_CONTACT_WAIT: Duration = Duration::from_millis(20);
/// Longest wait of a complete message for admission: ten times what tokens stay with ranks that do nothing. With one thread it
/// has [`LEAST_ADMISSION_POLLS`], however long they take.
const MAX_ADMISSION_WAIT: Duration = Duration::from_nanos(10 * HOLD_NS);
/// Polls of that wait at least: a rank that gets no core for so long has not looked.
const LEAST_ADMISSION_POLLS: u32 = 1024;
/// Some intervals of looks at networks of a busy endpoint (`weir_link::links`).
const LOOK_TIME: Duration = Duration::from_micros(10);
/// Empty polls before the sender yields the core, with more ranks than cores, or if the receiver is on another host.
const POLLS_BEFORE_YIELD: u32 = 10;
/// Most messages in a row that are sent without a wait after useless waits.
const MAX_SKIPPED: u32 = 1023;

/// Decides which messages wait for their receiver.
#[derive(Debug, Default)]
pub(crate) struct BackPressure {
    /// Messages to send before the next wait.
    skip: u32,
    /// Messages sent without a wait after the last useless wait.
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

    /// Notes the end of a wait. `useful`: the receiver has taken something.
    fn waited(&mut self, useful: bool) {
        self.skipped = if useful { 0 } else { (2 * self.skipped + 1).min(MAX_SKIPPED) };
        self.skip = self.skipped;
    }
}

impl<L: Link> Engine<L> {
    /// Waits for `to` if it has too many bounce buffers. Called after a message to `to` was copied.
    #[inline]
    pub(crate) fn apply_back_pressure(&mut self, to: Peer) {
        if self.machine.bounce_buffers_for(to) > FREE_BOUNCE_BUFFERS
            && !self.back_pressure.sends_without_wait()
        {
            self.wait_for_receiver(to);
        }
    }

    /// Gives the first message to a peer on another host time to leave. Called after a send that is complete.
    #[inline]
    pub(crate) fn make_contact(&mut self, to: Peer) {
        if self.io.reports_acknowledgements
            && self.machine.is_connecting(to)
            && !self.contact.sends_without_wait()
        {
            self.wait_for_contact(to);
        }
    }

    /// Waits until admission lets the last message to `to` pass. Called after a send that is complete.
    #[inline]
    pub(crate) fn pass_admission(&mut self, to: Peer) {
        if self.machine.backlogged() > 0 && self.is_held_back_complete(to) {
            self.wait_for_admission(to);
        }
    }

    /// Waits a little until packets of groups and atomics have left that wait for admission, credit or room. Whoever tells the
    /// program that an operation of a group has ended calls it before: the program may poll no more, and others wait for them.
    #[inline]
    pub fn let_groups_leave(&mut self) {
        if self.machine.backlogged() > 0 && self.machine.machine_packets_wait(|_| true) {
            self.wait_for_groups();
        }
    }

    #[cold]
    fn wait_for_groups(&mut self) {
        if self.groups_leave.sends_without_wait() {
            return;
        }
        // A receiver that gives no credit may compute for long. Then nobody waits for this packet yet.
        let is_held_back = self.machine.machine_packets_wait(|peer| self.io.link.is_held_back(peer));
        let max_wait = if is_held_back { MAX_ADMISSION_WAIT } else { MAX_WAIT_FAR };
        let max_wait = self.with_other_threads(max_wait);
        let are_away = |engine: &Self| !engine.machine.machine_packets_wait(|_| true);
        self.wait_at_most((max_wait, 0), true, are_away);
        self.look_at_networks();
        self.groups_leave.waited(are_away(self));
    }

    #[cold]
    fn wait_for_admission(&mut self, to: Peer) {
        let max_wait = self.with_other_threads(MAX_ADMISSION_WAIT);
        let least_polls = if self.single_threaded { LEAST_ADMISSION_POLLS } else { 0 };
        self.wait_at_most((max_wait, least_polls), true, |engine| !engine.is_held_back_complete(to));
        self.look_at_networks();
    }

    /// A wait is shorter with several threads: others may wait for the lock that this one holds.
    fn with_other_threads(&self, max_wait: Duration) -> Duration {
        if self.single_threaded { max_wait } else { max_wait.min(self.waiting.longest_sleep()) }
    }

    /// Whether admission holds back a complete message to `to`, also behind incomplete ones: the program may wait for those
    /// later, after something that depends on the complete one.
    fn is_held_back_complete(&self, to: Peer) -> bool {
        self.io.link.is_held_back(to) && self.machine.has_complete_waiting(to)
    }

    #[cold]
    fn wait_for_contact(&mut self, to: Peer) {
        self.wait_at_most((MAX_CONTACT_WAIT, 0), false, |engine| !engine.machine.is_connecting(to));
        self.look_at_networks();
        self.contact.waited(!self.machine.is_connecting(to));
    }

    #[cold]
    fn wait_for_receiver(&mut self, to: Peer) {
        let before = self.machine.bounce_buffers_for(to);
        let is_far = self.io.link.path_report(to).is_some();
        let max_wait = match (is_far, self.oversubscribed) {
            (true, _) => MAX_WAIT_FAR,
            (false, true) => MAX_WAIT_OVERSUBSCRIBED,
            (false, false) => MAX_WAIT,
        };
        // Other threads may wait for the lock that this one holds.
        let max_wait = max_wait.min(self.waiting.longest_sleep());
        self.wait_at_most((max_wait, 0), is_far, |engine| {
            engine.machine.bounce_buffers_for(to) <= RESUME_BOUNCE_BUFFERS
        });
        // Other receivers may have taken something meanwhile, which says nothing about this one.
        let taken = before.saturating_sub(self.machine.bounce_buffers_for(to));
        let least = if is_far { (before - RESUME_BOUNCE_BUFFERS) / 2 } else { 1 };
        self.back_pressure.waited(taken >= least);
    }

    /// What was appended to a datagram leaves with the next look at its network, which a busy node segment delays a little.
    fn look_at_networks(&mut self) {
        let began = Clock::now();
        self.progress();
        while self.io.link.may_have_arrivals() && began.elapsed() < LOOK_TIME {
            self.progress();
        }
        self.progress(); // at that time it looks, however long this thread had no core
    }

    /// Polls until `is_over`, or for `max_wait`, but at least so many times. `yields`: without a sleep, which would cost a
    /// wake-up for a few messages.
    fn wait_at_most(
        &mut self,
        (max_wait, least_polls): (Duration, u32),
        yields: bool,
        is_over: impl Fn(&Self) -> bool,
    ) {
        let began = Clock::now();
        let (mut polls, mut empty) = (0, 0);
        loop {
            polls += 1;
            if self.progress() == 0 {
                empty += 1;
                if empty <= POLLS_BEFORE_YIELD || !(yields || self.oversubscribed) {
                    std::hint::spin_loop();
                } else if yields {
                    weir_link::cores::yield_now();
                } else {
                    self.sleep_or_yield(max_wait.saturating_sub(began.elapsed()).as_nanos() as u64);
                }
            }
            if is_over(self) || (polls >= least_polls && began.elapsed() >= max_wait) {
                break;
            }
        }
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
