//! Token pool without a keeper: each task shows what it holds in a line of its own, and decides from the lines of all
//! tasks whether its message may pass ([`request_tokens`]). Nobody but its owner writes a line, so nobody has to lock anything.
//!
//! ```text
//! limit 4    lines: a holds 3, b holds 0
//! b: request(1)    3 + 1 <= 4: passes; b holds 1
//! a: request(1)    4 + 1 > 4: a draws a ticket, its time, and waits
//! c: request(1)    a waits since an earlier time: c draws a ticket too
//! b: completed     a, then c
//! ```
//! - **Order.** A ticket is the time since when a task waits. Earlier tickets come first, then lower task numbers.
//! - **Deaths.** A line counts only for [`HOLD_NS`] after its last change, a ticket only for so long after the task has
//!   looked last. So tokens and ticket of a task that has died or that computes are void some milliseconds later, and nobody
//!   has to find out.
//! - **Looks are rare.** An [`Allowance`] says how many tokens the task may take before it looks again. Far below the limit
//!   it is a share of what is free, near the limit it is one message.
//!
//! The limit holds exactly if every task looks before every message and shows what it takes before the next one looks. Between
//! two looks, tasks can exceed it together by what their allowances have left, and two tasks that look at the same instant can
//! both pass. This file does not know where the lines lie.

use super::Task;
use crate::time::Instant;

/// A line counts for so long after its last change. Much longer than a message is on its way on a host's network, and
/// shorter than what a person notices. Unit: ns.
pub const HOLD_NS: u64 = 10_000_000;

/// What a task shows to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskLine {
    /// Tokens of its messages that have not completed.
    pub held: u32,
    /// When that has changed last.
    pub changed: Instant,
    /// Its place among those who wait, if it does.
    pub ticket: Option<LineTicket>,
}

/// A place among those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineTicket {
    /// When it was drawn.
    pub since: Instant,
    /// When its task has looked last whether it may pass.
    pub looked: Instant,
}

/// Settings of the pool, the same for all tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineSettings {
    /// Tokens of the node, at least 1.
    pub tokens: u32,
    /// The longest time without a look. 0: every message looks. Unit: ns.
    pub look_ns: u64,
}

/// How many tokens a task may take before it looks again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    tokens: u32,
    until: Instant,
}

impl Allowance {
    /// Whether the task may take `tokens` tokens at `now` without a look.
    pub fn covers(&self, now: Instant, tokens: u32) -> bool {
        now < self.until && tokens <= self.tokens
    }

    /// The task has taken `tokens` tokens.
    pub fn took(&mut self, tokens: u32) {
        self.tokens = self.tokens.saturating_sub(tokens);
    }
}

/// The times differ by less than [`HOLD_NS`]. Clocks of tasks may differ a little, so either may be the later one.
fn is_near(one: Instant, other: Instant) -> bool {
    one.since_ns(other).max(other.since_ns(one)) < HOLD_NS
}

impl TaskLine {
    /// Tokens that count at `now`.
    pub fn held_at(&self, now: Instant) -> u32 {
        if is_near(self.changed, now) { self.held } else { 0 }
    }

    /// The ticket, if it counts at `now`.
    pub fn ticket_at(&self, now: Instant) -> Option<LineTicket> {
        self.ticket.filter(|ticket| is_near(ticket.looked, now))
    }

    /// Whether its task is active at `now`: its tokens have changed, or it has waited, less than [`HOLD_NS`] ago.
    pub fn is_active_at(&self, now: Instant) -> bool {
        is_near(self.changed, now) || self.ticket_at(now).is_some()
    }
}

/// Active tasks at `now`: the one that asks, and those of `others` that are active.
pub fn active_tasks(now: Instant, others: impl Iterator<Item = (Task, TaskLine)>) -> u32 {
    1 + others.filter(|(_, line)| line.is_active_at(now)).count() as u32
}

/// A message of `task` that takes `tokens` tokens wants to pass. A message that takes more than there are takes all.
///
/// - `own`: the line of the task. What it holds counts however old it is, because the task knows it.
/// - `others`: those of the others, in any order.
///
/// `None`: the task waits, with the ticket that it has or that it draws now.
pub fn request_tokens(
    settings: &LineSettings,
    now: Instant,
    (task, own): (Task, &TaskLine),
    others: impl Iterator<Item = (Task, TaskLine)>,
    tokens: u32,
) -> Option<Allowance> {
    let tokens = tokens.min(settings.tokens);
    let (mut held, mut active, mut comes_later) = (own.held, 1, false);
    for (other, line) in others {
        let ticket = line.ticket_at(now);
        let other_held = line.held_at(now);
        held = held.saturating_add(other_held);
        active += u32::from(other_held > 0 || ticket.is_some());
        comes_later |= ticket
            .is_some_and(|ticket| own.ticket.is_none_or(|own| (ticket.since, other) < (own.since, task)));
    }
    let free = settings.tokens.checked_sub(held)?;
    if comes_later || tokens > free {
        return None;
    }
    Some(Allowance { tokens: tokens.max(free / active), until: now.plus_ns(settings.look_ns) })
}
