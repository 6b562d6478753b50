//! Random extra time of processors. It stands for what operating systems and caches add to a call.
//!
//! The extra time of a call has an exponential distribution, with a mean that the plan states. Each rank
//! draws from its own stream, which the seed of the world and the rank number determine. So the draws of a
//! rank do not depend on the order of events between ranks.
//!
//! ```text
//! mean 1000 ns, seed 1, rank 0     232 ns, 1740 ns, 95 ns, ...
//! mean 0                           nothing is drawn: the world is the one without jitter
//! ```

use fastrand::Rng;

use crate::Picoseconds;
use crate::trace::Trace;

/// The draws of one rank.
#[derive(Clone, Debug)]
pub struct Jitter(Rng);

impl Jitter {
    /// The stream of `rank` in the world with this seed.
    pub fn new(seed: u64, rank: u32) -> Jitter {
        let mut mixed = Trace::default();
        mixed.note(seed);
        mixed.note(u64::from(rank));
        Jitter(Rng::with_seed(mixed.hash()))
    }

    /// An extra time with the mean `mean_ps`; 0, and no draw, if the mean is 0.
    #[inline]
    pub fn draw_ps(&mut self, mean_ps: Picoseconds) -> Picoseconds {
        if mean_ps == 0 { 0 } else { self.exponential_ps(mean_ps) }
    }

    /// Source: von Neumann, "Various techniques used in connection with random digits", 1951. The method
    /// compares uniform numbers and computes no logarithm. The last digits of a logarithm would differ
    /// between hosts.
    #[cold]
    fn exponential_ps(&mut self, mean_ps: Picoseconds) -> Picoseconds {
        for whole in 0.. {
            let first = self.0.u64(..);
            let (mut last, mut falling) = (first, 1_u32);
            loop {
                let next = self.0.u64(..);
                if next >= last {
                    break;
                }
                (last, falling) = (next, falling + 1);
            }
            // The first number of a falling run of odd length is the fraction; each run of even length adds one mean.
            if falling % 2 == 1 {
                let fraction_ps = (u128::from(mean_ps) * u128::from(first)) >> 64;
                return mean_ps.saturating_mul(whole).saturating_add(fraction_ps as u64);
            }
        }
        unreachable!("a run of odd length comes with probability 1 - 1/e each time")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_distributed_exponentially() {
        const MEAN_PS: u64 = 1_000_000;
        let mut jitter = Jitter::new(7, 3);
        let draws: Vec<u64> = (0..100_000).map(|_| jitter.draw_ps(MEAN_PS)).collect();
        let mean = draws.iter().sum::<u64>() as f64 / draws.len() as f64;
        assert!((mean / MEAN_PS as f64 - 1.0).abs() < 0.02, "mean {mean}");
        // The share of draws above k means is e^-k.
        for (means, share) in [(1, 0.3679), (2, 0.1353), (4, 0.0183)] {
            let above = draws.iter().filter(|&&ps| ps > means * MEAN_PS).count() as f64 / draws.len() as f64;
            assert!((above - share).abs() < 0.005, "{above} above {means} means");
        }
    }

    #[test]
    fn seed_and_rank_determine_the_draws() {
        let draws = |seed, rank| {
            let mut jitter = Jitter::new(seed, rank);
            [(); 3].map(|()| jitter.draw_ps(1000))
        };
        assert_eq!(draws(1, 2), draws(1, 2));
        assert_ne!(draws(1, 2), draws(2, 2));
        assert_ne!(draws(1, 2), draws(1, 3));
        assert_eq!(Jitter::new(1, 2).draw_ps(0), 0);
    }
}
