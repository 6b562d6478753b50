//! Windows of messages between ranks of different nodes, with some or all ranks of each node.

use serde::Deserialize;

use super::{at_least, measure, nanoseconds, repetitions};
use crate::collective::Group;
use crate::program::Rank;
use crate::trace::Trace;

/// Tag of all messages. Collectives have other ones.
const TAG: u64 = 0;

/// With whom a rank exchanges its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Partner {
    /// With the rank that is half of all active ranks away, for all messages.
    #[default]
    Opposite,
    /// With another one for each message: that is at a distance which all ranks draw alike from the seed. So each rank
    /// receives as many as it sends.
    Random,
}

/// The first ranks of each node exchange windows: each begins `window_messages` sends and as many receives, waits
/// for all of them, and begins the next. The other ranks do nothing. With a window of 1 communication is blocking.
/// Each active rank records the mean time of a window, and its square.
///
/// Source: Luo et al., section 4 (one partner for each core, in both directions) and section 9 (RandomAccess).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Windows {
    /// Length of each message. Unit: bytes.
    pub message_bytes: u64,
    /// Ranks of a node.
    pub ranks_per_node: u32,
    /// Ranks of each node that exchange.
    pub active_ranks: u32,
    /// Messages that a rank sends before it waits.
    pub window_messages: u32,
    /// With whom.
    #[serde(default)]
    pub partner: Partner,
    /// Windows before the timed ones.
    #[serde(default)]
    pub warmup_windows: u32,
    /// Timed windows.
    pub windows: u32,
}

impl Windows {
    pub(super) fn check(&self, ranks: u32) -> Result<(), String> {
        let Windows { ranks_per_node, active_ranks, .. } = *self;
        at_least("window_messages", self.window_messages, 1)?;
        repetitions("windows", self.windows, self.warmup_windows)?;
        let is_full = ranks_per_node > 0 && ranks.is_multiple_of(ranks_per_node);
        if !is_full || !(ranks / ranks_per_node).is_multiple_of(2) {
            return Err(format!(
                "ranks is {ranks} with {ranks_per_node} ranks_per_node; allowed: an even number of full nodes"
            ));
        }
        match active_ranks {
            0 => Err(String::from("active_ranks is 0; allowed: 1 and more")),
            _ if active_ranks > ranks_per_node => Err(format!(
                "active_ranks is {active_ranks}; allowed: at most ranks_per_node, {ranks_per_node}"
            )),
            _ => Ok(()),
        }
    }

    pub(super) async fn run(self, rank: Rank) {
        let (node, local) = (rank.rank() / self.ranks_per_node, rank.rank() % self.ranks_per_node);
        let all = Group::all(&rank);
        all.barrier().await;
        if local >= self.active_ranks {
            all.barrier().await;
            return;
        }
        let active = rank.size() / self.ranks_per_node * self.active_ranks;
        let me = node * self.active_ranks + local;
        let at = |place: u32| {
            let place = place % active;
            place / self.active_ranks * self.ranks_per_node + place % self.active_ranks
        };
        let mut begun = 0;
        let mut number = 0;
        for window in 0..self.warmup_windows + self.windows {
            if window == self.warmup_windows {
                // All begin together: the slowest rank's time is then the time of all messages.
                all.barrier().await;
                begun = rank.clock().await;
            }
            let mut operations = Vec::new();
            for _ in 0..self.window_messages {
                let distance = self.distance(rank.seed(), number, active);
                number += 1;
                operations.push(rank.irecv(Some(at(me + active - distance)), TAG, self.message_bytes));
                operations.push(rank.isend(at(me + distance), TAG, self.message_bytes));
            }
            rank.wait_all(operations).await;
        }
        let spent = nanoseconds(rank.clock().await - begun);
        let window_ns = spent / f64::from(self.windows);
        rank.record(measure::CALL_NS, window_ns);
        rank.record(measure::CALL_NS_SQUARED, window_ns * window_ns);
    }

    /// From a rank to the receiver of its message `number`, among `active` ranks.
    fn distance(&self, seed: u64, number: u64, active: u32) -> u32 {
        match self.partner {
            Partner::Opposite => active / 2,
            Partner::Random => {
                let mut draw = Trace::default();
                draw.note(seed);
                draw.note(number);
                1 + (draw.hash() % u64::from(active - 1)) as u32
            }
        }
    }
}
