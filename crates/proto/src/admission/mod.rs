//! Admission: which messages of a node may enter its network link, and when. Many tasks share one adapter, and its
//! throughput falls when too many messages are outstanding (*rate congestion*) or too many tasks inject at once
//! (*concurrency congestion*). The gate holds messages back so far that neither happens. It uses only what the node
//! itself knows.
//!
//! - `rate` has a minimum delay between two messages of a task, `tokens` a pool of tokens with tickets, `proxy` queues
//!   of descriptors that one task serves for others. They are calculators: they know tasks and numbers.
//! - `lines` is a token pool without a keeper, for tasks that share nothing but memory. Ranks use it.
//! - `policer` says from thresholds whether a message may pass at once. `steps` has values that depend on a size.
//! - `token_table` has the tokens of a pool by message size and active tasks. Ranks use it with `lines`.
//! - `gate` is the machine: it has one mechanism and the policer in front. `mutant` has wrong rules for tests.
//!
//! The gate does not know credits, packets, links or clocks. A message comes to it with its credits, and control
//! packets do not come to it. It ends when the link reports its completion, which needs neither token nor credit. So
//! nobody who waits for a token holds what the return of a token needs.
//!
//! Worked exchange, a pool of one token:
//! ```text
//! task 0   request(message 1)     driver.inject(0, [1], 1 token)      Injected
//! task 1   request(message 2)     takes ticket 0                      Waits: it retires earlier messages meanwhile
//! link     completed([1])         driver.inject(1, [2], 1 token), driver.resume(1)
//! ```
//! Source: Luo, Panda, Ibrahim, Iancu, "Congestion avoidance on manycore high performance computing systems", ICS 2012.
//! `docs/notes/2026-11-26-admission.md` has what the paper leaves open.

mod gate;
mod lines;
mod mutant;
mod policer;
mod proxy;
mod rate;
mod steps;
#[cfg(test)]
mod tests;
mod token_table;
mod tokens;

pub use gate::{Gate, GateDriver, GateSettings, GateView, Mechanism, Requested, Serving};
pub use lines::{
    Allowance, FAR_SHARE, HOLD_NS, LineSettings, LineTicket, TaskLine, active_tasks, request_tokens,
};
pub use policer::{Advice, Load, Thresholds};
pub use proxy::{Proxy, ProxySettings};
pub use rate::RateThrottle;
pub use steps::{MAX_STEPS, Steps, StepsError};
pub use token_table::{TokenStep, TokenTable, TokenTableError};
pub use tokens::{Taken, Ticket, TokenCost, TokenPool, TokenSettings};

/// Bound: tasks of a node.
pub const MAX_TASKS: u32 = 1 << 12;

/// A task of the node, by its number from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Task(pub u32);

impl Task {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// A message that wants to enter the link. Whoever injects it needs nothing else, so another task can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The task whose message it is. It leaves under its credits and as its own.
    pub origin: Task,
    /// The host of its destination. Only messages to the same host can leave together.
    pub host: u32,
    /// Its length. Unit: bytes.
    pub bytes: u32,
    /// The name that the driver gave it.
    pub number: u32,
}
