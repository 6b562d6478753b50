//! Tokens by message size and active tasks ([`TokenTable`]): the thresholds of Algorithm 1 with what avoids the
//! congestion beyond them. Somebody has measured them for a machine and link. Source: Luo et al., CCT, NRCT and CRCT.
//!
//! ```text
//! steps      from 2048 B: 4 tasks 96 tokens, 8 tasks 64 tokens      from 65536 B: 4 tasks 24 tokens, 16 tasks no limit
//! 1000 B                            no limit
//! 2048 to 65535 B,  3 tasks         no limit
//! 2048 to 65535 B,  5 tasks         96 tokens
//! 65536 B and more, 5 tasks         24 tokens: the steps of smaller messages have no meaning there
//! 65536 B and more, 20 tasks        no limit
//! ```

use alloc::vec::Vec;

use super::steps::MAX_STEPS;

/// A step of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenStep {
    /// It begins with messages of this length. Unit: bytes.
    pub bytes: u32,
    /// It begins with so many active tasks, at least 1.
    pub tasks: u32,
    /// Tokens of the node; 0: nothing limits messages.
    pub tokens: u32,
}

/// The reason why a list is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenTableError {
    /// There are too many steps.
    #[error("{count} steps; allowed: at most {MAX_STEPS}")]
    Count {
        /// How many.
        count: usize,
    },
    /// Two steps begin at the same point.
    #[error("two steps begin at {bytes} B and {tasks} ranks; allowed: one")]
    Repeated {
        /// Length of messages there.
        bytes: u32,
        /// Active tasks there.
        tasks: u32,
    },
}

/// See the head of this file. The empty table limits nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenTable {
    /// Ascending by length, then by tasks.
    steps: Vec<TokenStep>,
}

impl TokenTable {
    /// A table of `steps`, in any order.
    ///
    /// # Errors
    /// [`TokenTableError`].
    pub fn new(mut steps: Vec<TokenStep>) -> Result<TokenTable, TokenTableError> {
        if steps.len() > MAX_STEPS {
            return Err(TokenTableError::Count { count: steps.len() });
        }
        steps.sort_unstable();
        let begin = |step: &TokenStep| (step.bytes, step.tasks);
        match steps.windows(2).find(|pair| begin(&pair[0]) == begin(&pair[1])) {
            Some(pair) => Err(TokenTableError::Repeated { bytes: pair[0].bytes, tasks: pair[0].tasks }),
            None => Ok(TokenTable { steps }),
        }
    }

    /// The steps, ascending by length, then by tasks.
    pub fn steps(&self) -> &[TokenStep] {
        &self.steps
    }

    /// The step in force for a message of `bytes` bytes while `active_tasks` tasks are active. `None`: nothing limits
    /// it.
    pub fn at(&self, bytes: u32, active_tasks: u32) -> Option<TokenStep> {
        let reached = &self.steps[..self.steps.partition_point(|step| step.bytes <= bytes)];
        let of_size = reached.last()?.bytes;
        let step = reached.iter().rev().find(|step| step.bytes < of_size || step.tasks <= active_tasks)?;
        (step.bytes == of_size && step.tokens > 0).then_some(*step)
    }

    fn limiting(&self) -> impl Iterator<Item = &TokenStep> {
        self.steps.iter().filter(|step| step.tokens > 0)
    }

    /// The shortest message that it can limit. `None`: it limits none. Unit: bytes.
    pub fn least_bytes(&self) -> Option<u32> {
        self.limiting().map(|step| step.bytes).min()
    }

    /// The fewest active tasks with which it limits a message. `None`: it limits none.
    pub fn least_tasks(&self) -> Option<u32> {
        self.limiting().map(|step| step.tasks).min()
    }
}
