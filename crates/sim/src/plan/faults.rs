//! Faults that a plan states: of links, drawn from the seed of the world, and of single ranks.
//!
//! They belong to the settings of a world, so its reference without flow control has the same faults. A world whose ranks
//! crash can end with an error: workloads do not wait for messages again that a crashed rank has lost.

use serde::{Deserialize, Serialize};

use crate::network::faulty::{LinkFaults, MAX_PER_MILLION};
use crate::world::faults::{Crash, FaultError, Faults, MAX_PERCENT, Pause, Slow};

/// The table `faults` of a plan. A fault that is left out does not happen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlanFaults {
    /// Lost packets per million.
    pub loss_per_million: u32,
    /// Duplicated packets per million.
    pub duplication_per_million: u32,
    /// Reordered packets per million.
    pub reordering_per_million: u32,
    /// Largest extra time of packets and remote gets. Unit: ns.
    pub link_jitter_ns: u64,
    /// Slow ranks.
    pub slow: Vec<SlowRank>,
    /// Pauses of ranks.
    pub pauses: Vec<PausedRank>,
    /// Crashes of ranks.
    pub crashes: Vec<CrashedRank>,
    /// Time from a crash until the other ranks learn of it. Unit: ns.
    pub notice_ns: u64,
}

/// A rank with a slow processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowRank {
    /// The rank.
    pub rank: u32,
    /// Time of everything in percent of the normal one.
    pub percent: u32,
}

/// A pause of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PausedRank {
    /// The rank.
    pub rank: u32,
    /// Start. Unit: ns.
    pub at_ns: u64,
    /// Duration. Unit: ns.
    pub pause_ns: u64,
}

/// A crash of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrashedRank {
    /// The rank.
    pub rank: u32,
    /// Time. Unit: ns.
    pub at_ns: u64,
}

impl PlanFaults {
    /// Whether they are possible in a world of `ranks` ranks whose links repair packets, or do not.
    ///
    /// # Errors
    /// A text that names the fault and the values that are allowed.
    pub fn check(&self, ranks: u32, links_repair: bool) -> Result<(), String> {
        let PlanFaults { loss_per_million, duplication_per_million, reordering_per_million, .. } = *self;
        for (key, value) in [
            ("loss_per_million", loss_per_million),
            ("duplication_per_million", duplication_per_million),
            ("reordering_per_million", reordering_per_million),
        ] {
            let most = if links_repair { MAX_PER_MILLION } else { 0 };
            if value > most {
                let why =
                    if links_repair { "" } else { ", because the links of this network do not retransmit" };
                return Err(format!("{key} is {value}; allowed: 0 to {most}{why}"));
            }
        }
        for SlowRank { percent, .. } in &self.slow {
            if !(1..=MAX_PERCENT).contains(percent) {
                return Err(format!("percent is {percent}; allowed: 1 to {MAX_PERCENT}"));
            }
        }
        let named = self.slow.iter().map(|it| it.rank);
        let named = named.chain(self.pauses.iter().map(|it| it.rank));
        match named.chain(self.crashes.iter().map(|it| it.rank)).find(|rank| *rank >= ranks) {
            Some(rank) => Err(FaultError::Rank { rank, ranks }.to_string()),
            None => Ok(()),
        }
    }

    /// Faults of links; `None` if there are none.
    pub fn of_links(&self, seed: u64) -> Option<LinkFaults> {
        let faults = LinkFaults {
            seed,
            jitter_ps: self.link_jitter_ns * 1000,
            loss_per_million: self.loss_per_million,
            duplication_per_million: self.duplication_per_million,
            reordering_per_million: self.reordering_per_million,
        };
        (faults != LinkFaults { seed, ..LinkFaults::default() }).then_some(faults)
    }

    /// Faults of ranks.
    pub fn of_ranks(&self) -> Faults {
        let slow = self.slow.iter().map(|&SlowRank { rank, percent }| Slow { rank, percent });
        let pause = |it: &PausedRank| Pause { rank: it.rank, at: it.at_ns * 1000, ps: it.pause_ns * 1000 };
        let crash = |it: &CrashedRank| Crash { rank: it.rank, at: it.at_ns * 1000 };
        Faults {
            slow: slow.collect(),
            pauses: self.pauses.iter().map(pause).collect(),
            crashes: self.crashes.iter().map(crash).collect(),
            notice_ps: self.notice_ns * 1000,
        }
    }
}
