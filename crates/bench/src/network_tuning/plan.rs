//! What `weir tune --network` measures.

use super::TRAFFIC;
use super::choice::Point;
use super::unlimited::{self, CongestionThresholds};
use std::collections::BTreeMap;

/// What is measured without further options.
pub struct Extent {
    pub sizes: &'static [u32],
    pub ranks: &'static [u32],
    /// Updates of a rank without answer that are tried without admission.
    pub outstanding: &'static [u32],
    /// For each active rank.
    pub tokens_each: &'static [u32],
    pub rounds: u32,
    pub seconds: f64,
}

pub const WHOLE: Extent = Extent {
    sizes: &[2048, 65536],
    ranks: &[2, 4, 8],
    outstanding: &[1, 4, 16, 64],
    tokens_each: &[4, 12, 32],
    rounds: 3,
    seconds: 0.5,
};
pub const QUICK: Extent = Extent {
    sizes: &[2048, 65536],
    ranks: &[4],
    outstanding: &[1, 16, 64],
    tokens_each: &[8, 24],
    rounds: 2,
    seconds: 0.2,
};

/// Everything that is measured.
pub struct Plan {
    pub points: Vec<Point>,
    /// Updates of a rank without answer, without admission.
    pub outstanding: &'static [u32],
    pub tokens: BTreeMap<Point, Vec<u32>>,
    /// Each point may get one more number of tokens, from the sweep without admission.
    pub takes_more: bool,
    pub rounds: u32,
    pub seconds: f64,
    /// Start and end of a job. Unit: s.
    pub job_s: f64,
}

impl Plan {
    /// The numbers of tokens of a point, `None` (off) first.
    pub fn candidates(&self, point: Point) -> Vec<Option<u32>> {
        let tokens = self.tokens[&point].iter().copied().map(Some);
        std::iter::once(None).chain(tokens).collect()
    }

    /// Tries the numbers of tokens beyond which the sweep saw less operations.
    pub fn add_tokens(&mut self, thresholds: &[CongestionThresholds]) {
        for (&point, tokens) in &mut self.tokens {
            let more = unlimited::most_at(thresholds, point).filter(|more| !tokens.contains(more));
            if self.takes_more
                && let Some(more) = more
            {
                tokens.push(more);
                tokens.sort_unstable();
            }
        }
        self.takes_more = false;
    }

    pub fn sweep_jobs(&self) -> u64 {
        (self.points.len() * self.outstanding.len()) as u64
    }

    /// Jobs of all rounds, and at most how many more [`Plan::add_tokens`] adds.
    pub fn jobs(&self) -> u64 {
        let of_point = |&point: &Point| self.candidates(point).len() + usize::from(self.takes_more);
        let of_round: usize = self.points.iter().map(|point| TRAFFIC.len() * of_point(point)).sum();
        u64::from(self.rounds) * of_round as u64
    }

    /// The most time that everything takes. Unit: s.
    pub fn expected_s(&self) -> f64 {
        (self.sweep_jobs() + self.jobs()) as f64 * (self.job_s + 1.1 * self.seconds)
    }
}
