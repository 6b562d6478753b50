//! The canonical form of a path's state: a row of numbers, for exhaustive exploration (feature `explore`). Two paths with the
//! same row do the same from now on.
//!
//! Time is relative to the clock of the path, so that equal states at different times compare equal. Counters are left out,
//! because no decision depends on them. The structures are destructured without `..`, so a new field does not compile until
//! its file says what distinguishes its values.

use alloc::vec::Vec;

use super::ReliablePath;
use super::question::{Gaps, Question};
use crate::time::Instant;

/// A row of numbers that grows.
#[derive(Debug)]
pub(super) struct Row<'a> {
    now: Instant,
    words: &'a mut Vec<u64>,
}

impl Row<'_> {
    pub(super) fn push(&mut self, word: impl Into<u64>) {
        self.words.push(word.into());
    }

    pub(super) fn time(&mut self, at: Instant) {
        self.words.push(at.0.wrapping_sub(self.now.0));
    }

    /// A time that has no effect once it has passed.
    pub(super) fn coming(&mut self, at_ns: u64) {
        self.words.push(at_ns.saturating_sub(self.now.0));
    }

    pub(super) fn maybe_time(&mut self, at: Option<Instant>) {
        self.push(at.is_some());
        self.time(at.unwrap_or(self.now));
    }
}

impl ReliablePath {
    /// Appends the state to `words`. `now`: the time of its last event.
    pub fn canonical(&self, now: Instant, words: &mut Vec<u64>) {
        let ReliablePath {
            config: _, // the same in all states
            epoch,
            peer,
            opened_at,
            question,
            gaps: Gaps { since, skipped_ns },
            sender,
            receiver,
            timer,
            paced_until,
            is_busy,
            has_refused,
            fault,
            counters: _,
            broken: _,
        } = self;
        let mut row = Row { now, words };
        row.push(epoch.get());
        row.push(fault.map_or(0, |fault| 1 + fault as u64));
        if fault.is_some() {
            return; // it does nothing more
        }
        row.push(peer.map_or(0, |peer| peer.get()));
        row.push(*opened_at);
        row.push(question.is_some());
        if let Some(Question { since, next_at, first_number, wait_ns, asked_at: _ }) = question {
            row.time(*since);
            row.time(*next_at);
            row.push(*first_number);
            row.push(*wait_ns);
        }
        row.maybe_time(*since);
        row.push(*skipped_ns);
        row.maybe_time(*timer);
        row.maybe_time(*paced_until);
        row.push(*is_busy);
        row.push(*has_refused);
        sender.canonical(&mut row);
        receiver.canonical(&mut row);
    }
}
