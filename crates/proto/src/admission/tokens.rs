//! Token pool of a node (ITT): a message takes tokens before it is injected, and gives them back at its completion. A
//! task that is refused draws a numbered ticket. Tickets are served in order, so that nobody waits for ever, and no
//! small message overtakes a large one.
//!
//! A task has at most one ticket. So the pool needs a constant number of words for each task, which may lie in shared
//! memory.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::Task;
use super::mutant::{Broken, Mutant};

/// How many tokens a message takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCost {
    /// One, whatever its size.
    One,
    /// One for each begun `bytes_per_token` bytes, at least one.
    BySize {
        /// Bytes of a token, at least 1.
        bytes_per_token: u32,
    },
}

impl TokenCost {
    /// Tokens of a message of `bytes` bytes.
    pub fn of(self, bytes: u32) -> u32 {
        match self {
            TokenCost::One => 1,
            TokenCost::BySize { bytes_per_token } => bytes.div_ceil(bytes_per_token.max(1)).max(1),
        }
    }
}

/// Settings of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenSettings {
    /// Tokens of the node, at least 1.
    pub tokens: u32,
    /// What a message takes.
    pub cost: TokenCost,
}

/// A place in the order of those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Its number. Later tickets have higher ones.
    pub number: u64,
    /// Who waits.
    pub task: Task,
    /// For how many tokens.
    pub tokens: u32,
}

/// Answer to a request for tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// So many tokens are taken.
    Tokens(u32),
    /// The task waits with this ticket.
    Ticket(Ticket),
}

/// The pool of a node.
#[derive(Clone, Debug)]
pub struct TokenPool {
    total: u32,
    free: u32,
    /// By task: tokens of its messages that have not completed.
    held: Vec<u32>,
    /// At most one of each task, in the order of their numbers.
    tickets: VecDeque<Ticket>,
    next_ticket: u64,
    pub(super) broken: Broken,
}

impl TokenPool {
    /// A pool of `total` tokens for `tasks` tasks.
    ///
    /// # Panics
    /// If there are no tokens.
    pub fn new(total: u32, tasks: u32) -> TokenPool {
        assert!(total > 0, "a pool without tokens admits nothing");
        TokenPool {
            total,
            free: total,
            held: alloc::vec![0; tasks as usize],
            tickets: VecDeque::new(),
            next_ticket: 0,
            broken: Broken::default(),
        }
    }

    /// `task` wants `tokens` tokens, at least 1. A message that takes more than there are takes all.
    ///
    /// # Panics
    /// If the task has a ticket: it waits for it first.
    pub fn take(&mut self, task: Task, tokens: u32) -> Taken {
        assert!(!self.has_ticket(task), "{task:?} has a ticket");
        let tokens = match self.broken.has(Mutant::LargeMessagesNeedMoreThanAll) {
            true => tokens,
            false => tokens.min(self.total),
        };
        let is_next = self.tickets.is_empty() || self.broken.has(Mutant::TicketsAreOvertaken);
        if is_next && tokens <= self.free {
            self.hold(task, tokens);
            return Taken::Tokens(tokens);
        }
        let ticket = Ticket { number: self.next_ticket, task, tokens };
        self.next_ticket += 1;
        self.tickets.push_back(ticket);
        Taken::Ticket(ticket)
    }

    /// Takes at most `tokens` of the free ones for a message that leaves whether there are any or not. Returns how
    /// many. Whoever has a ticket comes first.
    pub fn take_free(&mut self, task: Task, tokens: u32) -> u32 {
        let taken = if self.tickets.is_empty() { tokens.min(self.free) } else { 0 };
        self.hold(task, taken);
        taken
    }

    fn hold(&mut self, task: Task, tokens: u32) {
        self.free -= tokens;
        self.held[task.index()] += tokens;
    }

    /// `tokens` tokens of `task` are free again, because a message has completed. Call [`TokenPool::next_ticket`] then.
    ///
    /// # Panics
    /// If the task holds fewer.
    pub fn give_back(&mut self, task: Task, tokens: u32) {
        let held = &mut self.held[task.index()];
        *held = held.checked_sub(tokens).expect("a task gives back tokens that it holds");
        self.free += tokens;
    }

    /// The first ticket, if there are tokens for it now. They are taken.
    pub fn next_ticket(&mut self) -> Option<Ticket> {
        let ticket = *self.tickets.front()?;
        if ticket.tokens > self.free {
            return None;
        }
        self.tickets.pop_front();
        self.hold(ticket.task, ticket.tokens);
        Some(ticket)
    }

    /// Moves `tokens` tokens: a message of `to` takes what `from` has waited for.
    pub(super) fn pass(&mut self, from: Task, to: Task, tokens: u32) {
        self.give_back(from, tokens);
        self.hold(to, tokens);
    }

    /// `task` is dead: its tokens are free, and its ticket is void. Call [`TokenPool::next_ticket`] then.
    pub fn lost(&mut self, task: Task) {
        if !self.broken.has(Mutant::TokensOfTheDeadAreLost) {
            self.free += core::mem::take(&mut self.held[task.index()]);
        }
        if !self.broken.has(Mutant::TicketsOfTheDeadStay) {
            self.tickets.retain(|ticket| ticket.task != task);
        }
    }

    /// Whether `task` waits.
    pub fn has_ticket(&self, task: Task) -> bool {
        self.tickets.iter().any(|ticket| ticket.task == task)
    }

    /// Tokens that nobody holds.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Tokens of `task`.
    pub fn held(&self, task: Task) -> u32 {
        self.held[task.index()]
    }

    /// Those who wait, in order.
    pub fn tickets(&self) -> impl ExactSizeIterator<Item = &Ticket> {
        self.tickets.iter()
    }
}
