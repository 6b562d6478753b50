//! A workload in which neighbours on a grid exchange faces, as stencil codes do.

use serde::Deserialize;

use super::{Timing, measure, nanoseconds, repetitions};
use crate::collective::Group;
use crate::program::Rank;

/// Each rank exchanges a face with each of its neighbours on a grid with up to three dimensions, then
/// computes. This repeats in each step.
///
/// A dimension of size 1 has no neighbours. With `periodic`, a dimension of size 2 has the same neighbour on
/// both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Neighbours {
    /// Ranks along x, y and z. Rank 0 is at the origin; x varies fastest.
    pub grid: [u32; 3],
    /// Whether the last rank of a dimension is a neighbour of the first.
    pub periodic: bool,
    /// Length of a face across x, y, z. Unit: bytes.
    pub face_bytes: [u64; 3],
    /// Computing time of a step, after the exchange. Unit: ns.
    #[serde(default)]
    pub compute_ns: u64,
    /// Steps before the timed ones.
    #[serde(default)]
    pub warmup_steps: u32,
    /// Timed steps.
    pub steps: u32,
}

impl Neighbours {
    pub(super) fn check(&self, ranks: u32) -> Result<(), String> {
        repetitions("steps", self.steps, self.warmup_steps)?;
        let size: u64 = self.grid.iter().map(|&size| u64::from(size)).product();
        if size != u64::from(ranks) {
            return Err(format!(
                "grid {:?} has {size} places; allowed: as many as ranks, {ranks}",
                self.grid
            ));
        }
        Ok(())
    }

    pub(super) async fn run(self, rank: Rank) {
        let group = Group::all(&rank);
        let neighbours = self.neighbours(rank.rank());
        let Neighbours { warmup_steps, steps, .. } = self;
        let timing = Timing { warmup_calls: warmup_steps, calls: steps, barrier_each_call: false };
        let step_ps = timing.run(&rank, &group, async |_| self.step(&rank, &neighbours).await).await;
        rank.record(measure::STEP_NS, nanoseconds(step_ps));
    }

    async fn step(&self, rank: &Rank, neighbours: &[Neighbour]) {
        let receive = |n: &Neighbour| rank.irecv(Some(n.rank), n.direction ^ 1, n.bytes);
        let send = |n: &Neighbour| rank.isend(n.rank, n.direction, n.bytes);
        let receives: Vec<_> = neighbours.iter().map(receive).collect();
        let sends: Vec<_> = neighbours.iter().map(send).collect();
        rank.wait_all(receives).await;
        rank.wait_all(sends).await;
        rank.compute(self.compute_ns * 1000);
    }

    fn neighbours(&self, rank: u32) -> Vec<Neighbour> {
        let mut neighbours = Vec::new();
        let mut stride = 1;
        for (dimension, &size) in self.grid.iter().enumerate() {
            let place = rank / stride % size;
            for (up, at_edge) in [(false, place == 0), (true, place + 1 == size)] {
                if size == 1 || (at_edge && !self.periodic) {
                    continue;
                }
                let other = if up { (place + 1) % size } else { (place + size - 1) % size };
                neighbours.push(Neighbour {
                    rank: rank - place * stride + other * stride,
                    direction: 2 * dimension as u64 + u64::from(up),
                    bytes: self.face_bytes[dimension],
                });
            }
            stride *= size;
        }
        neighbours
    }
}

#[derive(Clone, Copy, Debug)]
struct Neighbour {
    rank: u32,
    /// Tag of messages to this neighbour: twice the dimension, plus 1 in upward direction.
    direction: u64,
    bytes: u64,
}
