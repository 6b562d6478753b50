//! Workloads of two ranks or of pairs of ranks: ping-pong, latency and bandwidth.

use serde::Deserialize;

use super::{at_least, measure, nanoseconds, repetitions};
use crate::program::Rank;

/// Tag of all messages.
const TAG: u64 = 1;

/// Several pairs play ping-pong at the same time: rank `r < pairs` with rank `r + partner_distance_ranks`.
/// Other ranks do nothing. The ranks that send first record the time, because their clocks see whole round
/// trips.
///
/// With 16 ranks on a node and a distance of `16 k`, the pairs are the ranks of node 0 and those of node `k`.
/// Source: Intel MPI Benchmarks, `-multi 0 PingPong`; Prades, section 5.3 (Figs 5.3, 5.4: 16 pairs, 2 KB,
/// 20,480 repetitions).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MultiPingpong {
    /// Length of each message. Unit: bytes.
    pub message_bytes: u64,
    /// Number of pairs.
    pub pairs: u32,
    /// Distance from a rank to its partner.
    pub partner_distance_ranks: u32,
    /// Round trips before the timed ones.
    #[serde(default)]
    pub warmup_round_trips: u32,
    /// Timed round trips.
    pub round_trips: u32,
}

impl MultiPingpong {
    pub(super) fn check(&self, ranks: u32) -> Result<(), String> {
        at_least("pairs", self.pairs, 1)?;
        repetitions("round_trips", self.round_trips, self.warmup_round_trips)?;
        at_least("partner_distance_ranks", self.partner_distance_ranks, self.pairs)?;
        let needed = u64::from(self.pairs) + u64::from(self.partner_distance_ranks);
        if needed > u64::from(ranks) {
            return Err(format!(
                "pairs + partner_distance_ranks is {needed}; allowed: at most ranks, {ranks}"
            ));
        }
        Ok(())
    }

    pub(super) async fn run(self, rank: Rank) {
        let (me, distance) = (rank.rank(), self.partner_distance_ranks);
        let begins = me < self.pairs;
        let partner = match me.checked_sub(distance) {
            _ if begins => me + distance,
            Some(partner) if partner < self.pairs => partner,
            _ => return,
        };
        let mut started = 0;
        for trip in 0..self.warmup_round_trips + self.round_trips {
            if trip == self.warmup_round_trips {
                rank.sendrecv(partner, partner, TAG, 0, 0).await; // synchronises the pair
                started = rank.clock().await;
            }
            if begins {
                rank.send(partner, TAG, self.message_bytes).await;
                rank.recv(Some(partner), TAG, self.message_bytes).await;
            } else {
                rank.recv(Some(partner), TAG, self.message_bytes).await;
                rank.send(partner, TAG, self.message_bytes).await;
            }
        }
        if begins {
            let spent = nanoseconds(rank.clock().await - started);
            rank.record(measure::HALF_ROUND_TRIP_NS, spent / f64::from(2 * self.round_trips));
        }
    }
}

/// Ranks 0 and 1 send each other one message in turn. Half a round trip is the latency. Other ranks do
/// nothing.
///
/// Source: Liu & Panda, "MPI latency".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Length of each message. Unit: bytes.
    pub message_bytes: u64,
    /// Round trips before the timed ones.
    #[serde(default)]
    pub warmup_round_trips: u32,
    /// Timed round trips.
    pub round_trips: u32,
}

impl Latency {
    pub(super) fn check(&self, ranks: u32) -> Result<(), String> {
        at_least("ranks", ranks, 2)?;
        repetitions("round_trips", self.round_trips, self.warmup_round_trips)
    }

    pub(super) async fn run(self, rank: Rank) {
        let Latency { message_bytes, warmup_round_trips, round_trips } = self;
        let (pairs, partner_distance_ranks) = (1, 1);
        let pair =
            MultiPingpong { message_bytes, pairs, partner_distance_ranks, warmup_round_trips, round_trips };
        pair.run(rank).await;
    }
}

/// Rank 0 sends windows of `window_messages` messages to rank 1, which answers the last message of a window
/// with an empty one. Other ranks do nothing.
///
/// Source: Liu & Panda, "MPI bandwidth" (4 B and 32 KB, blocking and non-blocking, over the window).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bandwidth {
    /// Length of each message. Unit: bytes.
    pub message_bytes: u64,
    /// Messages of a window.
    pub window_messages: u32,
    /// With true, each send and each receive completes before the next begins. With false, all of a window
    /// are posted, then waited for.
    pub blocking: bool,
    /// Windows before the timed ones.
    #[serde(default)]
    pub warmup_windows: u32,
    /// Timed windows.
    pub windows: u32,
}

impl Bandwidth {
    pub(super) fn check(&self, ranks: u32) -> Result<(), String> {
        at_least("ranks", ranks, 2)?;
        at_least("window_messages", self.window_messages, 1)?;
        repetitions("windows", self.windows, self.warmup_windows)
    }

    pub(super) async fn run(self, rank: Rank) {
        if rank.rank() > 1 {
            return;
        }
        let mut begun = 0;
        for window in 0..self.warmup_windows + self.windows {
            if window == self.warmup_windows {
                begun = rank.clock().await;
            }
            match rank.rank() {
                0 => {
                    self.send_window(&rank).await;
                    rank.recv(Some(1), TAG, 0).await;
                }
                _ => {
                    self.receive_window(&rank).await;
                    rank.send(0, TAG, 0).await;
                }
            }
        }
        if rank.rank() == 0 {
            let seconds = (rank.clock().await - begun) as f64 / 1e12;
            let messages = f64::from(self.windows) * f64::from(self.window_messages);
            // In a world without prices there is no rate.
            if seconds > 0.0 {
                rank.record(measure::BANDWIDTH_BYTES_PER_S, messages * self.message_bytes as f64 / seconds);
                rank.record(measure::MESSAGES_PER_S, messages / seconds);
            }
        }
    }

    async fn send_window(&self, rank: &Rank) {
        if self.blocking {
            for _ in 0..self.window_messages {
                rank.send(1, TAG, self.message_bytes).await;
            }
        } else {
            let begin = |_| rank.isend(1, TAG, self.message_bytes);
            rank.wait_all((0..self.window_messages).map(begin).collect::<Vec<_>>()).await;
        }
    }

    async fn receive_window(&self, rank: &Rank) {
        if self.blocking {
            for _ in 0..self.window_messages {
                rank.recv(Some(0), TAG, self.message_bytes).await;
            }
        } else {
            let begin = |_| rank.irecv(Some(0), TAG, self.message_bytes);
            rank.wait_all((0..self.window_messages).map(begin).collect::<Vec<_>>()).await;
        }
    }
}
