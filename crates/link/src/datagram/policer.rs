//! Which tokens limit a packet now ([`Policer`]), for the gate of admission: a table of tokens by message size and
//! active ranks, and how many ranks of the node are active.
//!
//! ```text
//! 8 B                     below all steps: no look at the lines, no time
//! 64 KiB, 2 of 8 ranks    below the step with 4 ranks: shows that this rank is active; reads the lines of the others once in 1 ms
//! 64 KiB, 5 of 8 ranks    the tokens of that step
//! ```
//! A rank is active if it has sent a message of that size lately ([`active_tasks`]). This file does not know who may
//! pass.

use crate::shm::token_lines::TokenLines;
use weir_proto::Instant;
use weir_proto::admission::{HOLD_NS, TokenStep, TokenTable, active_tasks};

/// The time between two counts of the active ranks. They change slowly, since a rank stays active for ten times as
/// long. Unit: ns.
const COUNT_NS: u64 = HOLD_NS / 10;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Policer {
    table: TokenTable,
    least_bytes: u32,
    active: u32,
    /// When they must be counted again.
    count_at: Instant,
}

impl Policer {
    /// `None`: the table limits nothing.
    pub(super) fn new(table: TokenTable) -> Option<Policer> {
        let least_bytes = table.least_bytes()?;
        Some(Policer { table, least_bytes, active: 1, count_at: Instant(0) })
    }

    /// Whether no number of active ranks limits a message of `bytes` bytes.
    pub(super) fn ignores(&self, bytes: u32) -> bool {
        bytes < self.least_bytes
    }

    /// The step in force for a message of `bytes` bytes at `now`, if one is. Shows at times that this endpoint, which
    /// holds `held` tokens, is active. Then its line keeps no token (`keeps_until`).
    pub(super) fn step(
        &mut self,
        now: Instant,
        bytes: u32,
        (held, keeps_until): (u32, &mut Instant),
        lines: Option<&TokenLines>,
    ) -> Option<TokenStep> {
        if let Some(lines) = lines.filter(|_| now >= self.count_at) {
            self.count_at = now.plus_ns(COUNT_NS);
            self.active = active_tasks(now, lines.others());
            lines.show_held(held, now);
            *keeps_until = Instant(0);
        }
        self.table.at(bytes, self.active)
    }
}
