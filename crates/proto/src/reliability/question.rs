//! Questions to a silent peer ([`Question`]), and what its silence means. A question is a datagram without a bundle that wants
//! an answer at once. It is repeated until one comes, or until the peer is lost. A bundle that nobody acknowledges is repeated
//! here too.
//!
//! ```text
//! ask                 number 7, asks          nothing comes
//! ask_again           number 8, asks          the interval doubles
//! repeat_oldest       bundle 4, asks          after a timeout, or once after two round trips
//! fault_of_silence    None before the limit; then Silent, unless somebody knows that the peer lives
//! ```
//! This file does not know which bundles are under way.

use super::ReliablePath;
use super::datagram::{DatagramDriver, PathFault, STANDING_DIVISOR, Standing};
use super::mutant::Mutant;
use crate::time::Instant;

/// A question: a datagram without a bundle that wants an answer at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    /// When it was asked first.
    pub since: Instant,
    /// When it is asked again.
    pub next_at: Instant,
    /// Number of the first one. The acknowledgement of a number from there on is an answer.
    pub first_number: u64,
    pub wait_ns: u64,
    /// When it left last.
    pub asked_at: Instant,
}

/// The time in one silence of the peer in which this process did not run, as far as the limit does not count it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gaps {
    /// When the silence began, moved by what was skipped.
    pub(super) since: Option<Instant>,
    pub(super) skipped_ns: u64,
}

impl ReliablePath {
    /// Begins a question, unless one is open.
    pub(super) fn ask<D: DatagramDriver>(&mut self, now: Instant, driver: &mut D) {
        if self.question.is_none() {
            let wait_ns =
                self.sender.round_trip.timeout_ns(self.config.acknowledgement_delay_ns, &self.config);
            let first_number = self.sender.next_number();
            let next_at = now.plus_ns(wait_ns);
            self.question = Some(Question { since: now, next_at, first_number, wait_ns, asked_at: now });
            self.transmit(now, None, true, driver);
        }
    }

    /// Repeats the question. Nothing is lost on a lossless link, but a peer that is busy when a stranger asks does not answer.
    /// So the question is repeated there too. Its intervals double without a bound, because each one waits at the peer
    /// until that polls.
    pub(super) fn ask_again<D: DatagramDriver>(&mut self, now: Instant, driver: &mut D) {
        if self.config.is_lossless {
            let look_ns = self.config.limit_ns / STANDING_DIVISOR;
            let Some(question) = &mut self.question else { return };
            let is_due = now.since_ns(question.asked_at) >= question.wait_ns;
            if is_due {
                (question.asked_at, question.wait_ns) = (now, question.wait_ns.saturating_mul(2));
            }
            question.next_at = now.plus_ns(question.wait_ns.min(look_ns));
            if is_due {
                self.transmit(now, None, true, driver);
            }
            return;
        }
        let no_back_off = self.broken.has(Mutant::TimeoutsDoNotBackOff);
        if let Some(question) = &mut self.question {
            if !no_back_off {
                question.wait_ns = (2 * question.wait_ns).min(self.config.max_timeout_ns);
            }
            question.next_at = now.plus_ns(question.wait_ns);
        }
        self.transmit(now, None, true, driver);
    }

    /// Sends the oldest bundle again, outside of the window, if its timeout or the wait for a probe has passed. Its answer shows
    /// what else is lost.
    pub(super) fn repeat_oldest<D: DatagramDriver>(&mut self, now: Instant, driver: &mut D) {
        let (oldest, earlier) = (self.sender.first(), self.sender.oldest_number());
        if driver.is_queued(oldest) && !self.broken.has(Mutant::QueuedBundlesAreSentAgain) {
            self.sender.oldest_is_queued(now); // then neither wait has passed
        }
        if self.sender.timeout_at(&self.config, self.broken).is_some_and(|at| at <= now) {
            if self.config.is_lossless {
                self.sender.restart_timeout(now); // it arrives when the peer polls
            } else if self.transmit(now, Some(oldest), true, driver) {
                self.sender.timed_out(now, earlier, self.broken);
                // If only large datagrams are lost, a question arrives.
                if self.sender.suspects_large() {
                    self.ask(now, driver);
                }
            } else {
                self.sender.restart_timeout(now);
            }
        } else if self.sender.is_probe_due(now, &self.config, self.broken) {
            if self.transmit(now, Some(oldest), true, driver) {
                self.sender.probed(now, earlier, self.broken);
            } else {
                self.sender.restart_probe(now);
            }
        }
    }

    /// A timer that is late by more than any timeout shows that this process did not run. Peers may have answered meanwhile,
    /// so the limit does not count that time. But when the gaps of one silence have reached the limit together, further ones
    /// count. So a process that is always late by `gap_ns` loses a silent peer after at most twice the limit and two gaps.
    pub(super) fn skip_gap(&mut self, gap_ns: u64) {
        let since = self.silent_since();
        if gap_ns <= self.config.max_timeout_ns || since.is_none() {
            return;
        }
        if self.gaps.since != since {
            self.gaps.skipped_ns = 0; // the peer has made progress
        }
        if self.gaps.skipped_ns < self.config.limit_ns {
            self.sender.skip_gap(gap_ns);
            if let Some(question) = &mut self.question {
                question.since = question.since.plus_ns(gap_ns);
            }
            self.gaps.skipped_ns = self.gaps.skipped_ns.saturating_add(gap_ns);
        }
        self.gaps.since = self.silent_since();
    }

    /// Since when the oldest bundle or a question waits for the peer, if one does. It changes when the peer makes progress with
    /// what this end has sent.
    pub fn silent_since(&self) -> Option<Instant> {
        let oldest = self.sender.is_outstanding().then(|| self.sender.oldest_since());
        let question = self.question.map(|question| question.since);
        [oldest, question].into_iter().flatten().min()
    }

    /// The reason why a silent peer is lost now. A peer that computes or is stopped is silent too. So after a part of the
    /// limit the path asks who else knows whether it lives.
    pub(super) fn fault_of_silence<D: DatagramDriver>(
        &self,
        now: Instant,
        driver: &mut D,
    ) -> Option<PathFault> {
        let limit_ns = self.config.limit_ns;
        let silent_ns = now.since_ns(self.silent_since()?);
        if silent_ns < limit_ns / STANDING_DIVISOR {
            return None;
        }
        match driver.standing() {
            Standing::Ended => Some(PathFault::Ended),
            Standing::Unknown if silent_ns >= limit_ns => Some(PathFault::Silent),
            Standing::Unknown | Standing::Lives => None,
        }
    }
}
