//! Pairs of ranks that talk to each other only.

use serde::Deserialize;

use super::{at_least, measure, nanoseconds};
use crate::program::Rank;

/// Tag of the pairs' messages.
const TAG: u64 = 1;

/// Several pairs play ping-pong at the same time: rank `r < pairs` with rank `r + partner_distance_ranks`. Other ranks do nothing.
/// Those that begin record: their clocks see whole round trips.
///
/// With 16 ranks to a node and a distance of `16 k`, the pairs are the ranks of node 0 and those of node `k`.
/// Source: Intel MPI Benchmarks, `-multi 0 PingPong`; Prades, section 5.3 (Figs 5.3, 5.4: 16 pairs, 2 KB, 20,480 repetitions).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MultiPingpong {
    /// Length of each message. Unit: bytes.
    pub message_bytes: u64,
    /// Pairs that play.
    pub pairs: u32,
    /// From a rank to its partner.
    pub partner_distance_ranks: u32,
    /// Round trips that are not timed.
    #[serde(default)]
    pub warmup_round_trips: u32,
    /// Round trips that are timed.
    pub round_trips: u32,
}

impl MultiPingpong {
    pub(super) fn check(&self, ranks: u32) -> Result<(), String> {
        at_least("pairs", self.pairs, 1)?;
        at_least("round_trips", self.round_trips, 1)?;
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
                rank.sendrecv(partner, partner, TAG, 0, 0).await; // both are there
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
