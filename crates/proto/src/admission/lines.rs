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
//!   it is a share of what is free, near the limit it is one message. Far below the limit a task that holds no token may
//!   also take one, for longer: one message at a time needs hardly any looks.
//!
//! The limit holds exactly if every task looks before every message and shows what it takes before the next one looks. Between
//! two looks, tasks can exceed it together by what their allowances have left, and two tasks that look at the same instant can
//! both pass. Tasks that take one at a time exceed it by one each, which is at most one in [`FAR_SHARE`] of the limit. This
//! file does not know where the lines lie.

use super::Task;
use crate::time::Instant;

/// A line counts for so long after its last change. Much longer than a message is on its way on a host's network, and
/// shorter than what a person notices. Unit: ns.
pub const HOLD_NS: u64 = 10_000_000;
/// The limit is far if so many tokens or more are free for each task that is active.
pub const FAR_SHARE: u32 = 8;

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
    /// The same far below the limit for a task that holds no token and takes one. Unit: ns.
    pub single_look_ns: u64,
}

/// How many tokens a task may take before it looks again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    tokens: u32,
    until: Instant,
    /// Until then it may take one token while it holds none.
    single_until: Instant,
}

impl Allowance {
    /// Whether the task, which holds `held` tokens, may take `tokens` tokens at `now` without a look.
    #[inline]
    pub fn covers(&self, now: Instant, held: u32, tokens: u32) -> bool {
        (held == 0 && tokens <= 1 && now < self.single_until) || (now < self.until && tokens <= self.tokens)
    }

    /// Until then the task may take one token at a time without a look. The limit is far, so it may also go on to show a token
    /// that has come back to it: the next message takes that.
    pub fn single_until(&self) -> Instant {
        self.single_until
    }

    /// The task has taken `tokens` tokens.
    #[inline]
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
    // Those who share what is free now, and those who may take one without a look.
    let (mut sharing, mut active) = (1, 1);
    let (mut held, mut comes_later) = (own.held, false);
    for (other, line) in others {
        let ticket = line.ticket_at(now);
        let other_held = line.held_at(now);
        held = held.saturating_add(other_held);
        sharing += u32::from(other_held > 0 || ticket.is_some());
        active += u32::from(line.is_active_at(now));
        comes_later |= ticket
            .is_some_and(|ticket| own.ticket.is_none_or(|own| (ticket.since, other) < (own.since, task)));
    }
    let free = settings.tokens.checked_sub(held)?;
    if comes_later || tokens > free {
        return None;
    }
    let single_ns = if free / active >= FAR_SHARE { settings.single_look_ns } else { 0 };
    Some(Allowance {
        tokens: tokens.max(free / sharing),
        until: now.plus_ns(settings.look_ns),
        single_until: now.plus_ns(single_ns),
    })
}
