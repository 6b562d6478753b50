//! The communication of the NAS Parallel Benchmarks: messages in their order, with a stated computing time
//! between them.
//!
//! Sources: Bailey et al., "The NAS Parallel Benchmarks", RNR-94-007 (problem sizes), and NPB 2.3 to 3.3, MPI
//! (decompositions, messages). The model leaves out start-up, the untimed first iteration of some kernels,
//! and the verification at the end. Computing time is spread evenly over the steps between messages. A
//! parameter states how unevenly the work is divided among the ranks.

mod conjugate_gradient;
mod multigrid;
mod multipartition;
mod sweep;
mod transpose;

use serde::Deserialize;

use super::{at_least, measure, nanoseconds};
use crate::Picoseconds;
use crate::collective::Group;
use crate::collective::library::Library;
use crate::program::Rank;
use crate::trace::Trace;

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// Integer sort.
    Is,
    /// Fast Fourier transform in three dimensions.
    Ft,
    /// LU: sweeps over planes, many small messages.
    Lu,
    /// Conjugate gradient.
    Cg,
    /// Multigrid.
    Mg,
    /// Block tridiagonal solver.
    Bt,
    /// Scalar pentadiagonal solver.
    Sp,
}

/// A problem size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Class {
    /// Sample.
    S,
    /// Workstation.
    W,
    /// The smallest size for parallel machines.
    A,
}

/// One kernel at one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nas {
    /// The benchmark.
    pub kernel: Kernel,
    /// The problem size.
    pub class: Class,
    /// The library whose collective algorithms are used.
    pub library: Library,
    /// Computing time of a rank in one iteration, as mean over ranks. Unit: ns.
    pub iteration_compute_ns: u64,
    /// The work of each rank differs from the mean by at most this share. The seed determines it, uniformly
    /// distributed, and it stays the same in all iterations. 0: all ranks have the same work. Unit: percent.
    #[serde(default)]
    pub imbalance_percent: u32,
    /// Number of iterations, at most that of the class; `None`: that of the class.
    pub iterations: Option<u32>,
}

/// Distinguishes this draw from others of the same seed and rank.
const IMBALANCE: u64 = 0x696d_6261_6c61_6e63;

/// Problem size and iterations of a kernel and class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    /// Points along each axis. IS: keys, the largest key and buckets. CG: rows.
    points: [u32; 3],
    iterations: u32,
}

impl Nas {
    fn size(&self) -> Size {
        let of = |points, iterations| Size { points, iterations };
        match (self.kernel, self.class) {
            (Kernel::Is, Class::S) => of([1 << 16, 1 << 11, 1 << 9], 10),
            (Kernel::Is, Class::W) => of([1 << 20, 1 << 16, 1 << 10], 10),
            (Kernel::Is, Class::A) => of([1 << 23, 1 << 19, 1 << 10], 10),
            (Kernel::Ft, Class::S) => of([64, 64, 64], 6),
            (Kernel::Ft, Class::W) => of([128, 128, 32], 6),
            (Kernel::Ft, Class::A) => of([256, 256, 128], 6),
            (Kernel::Lu, Class::S) => of([12; 3], 50),
            (Kernel::Lu, Class::W) => of([33; 3], 300),
            (Kernel::Lu, Class::A) => of([64; 3], 250),
            (Kernel::Cg, Class::S) => of([1400, 1, 1], 15),
            (Kernel::Cg, Class::W) => of([7000, 1, 1], 15),
            (Kernel::Cg, Class::A) => of([14_000, 1, 1], 15),
            (Kernel::Mg, Class::S) => of([32; 3], 4),
            (Kernel::Mg, Class::W) => of([128; 3], 4),
            (Kernel::Mg, Class::A) => of([256; 3], 4),
            (Kernel::Bt, Class::S) => of([12; 3], 60),
            (Kernel::Bt, Class::W) => of([24; 3], 200),
            (Kernel::Bt, Class::A) => of([64; 3], 200),
            (Kernel::Sp, Class::S) => of([12; 3], 100),
            (Kernel::Sp, Class::W) => of([36; 3], 400),
            (Kernel::Sp, Class::A) => of([64; 3], 400),
        }
    }

    pub(super) fn check(&self, ranks: u32) -> Result<(), String> {
        let Size { points, iterations } = self.size();
        if let Some(asked) = self.iterations {
            at_least("iterations", asked, 1)?;
            if asked > iterations {
                return Err(format!(
                    "iterations is {asked}; allowed: at most {iterations}, as many as {:?} {:?} has",
                    self.kernel, self.class
                ));
            }
        }
        if self.imbalance_percent > 100 {
            return Err(format!("imbalance_percent is {}; allowed: 0 to 100", self.imbalance_percent));
        }
        // Each rank must have a part of every divided axis.
        let (shape, fits) = match self.kernel {
            Kernel::Is | Kernel::Cg => ("a power of two", ranks.is_power_of_two() && ranks <= points[0] / 64),
            Kernel::Ft => ("a power of two", ranks.is_power_of_two() && ranks <= points[1].min(points[2])),
            Kernel::Lu => ("a power of two", ranks.is_power_of_two() && 3 * sweep::rows(ranks) <= points[0]),
            Kernel::Mg => ("a power of two", ranks.is_power_of_two() && ranks <= points[0]),
            Kernel::Bt | Kernel::Sp => {
                ("a square", ranks.isqrt().pow(2) == ranks && 3 * ranks.isqrt() <= points[0])
            }
        };
        if !fits {
            return Err(format!(
                "ranks is {ranks} for {:?} of class {:?}; allowed: {shape}, with enough points for each",
                self.kernel, self.class
            ));
        }
        Ok(())
    }

    /// Computing time of this rank in one iteration.
    fn compute_ps(&self, rank: &Rank) -> Picoseconds {
        let mean_ps = self.iteration_compute_ns * 1000;
        if self.imbalance_percent == 0 {
            return mean_ps;
        }
        let mut draw = Trace::default();
        [IMBALANCE, rank.seed(), rank.rank().into()].into_iter().for_each(|word| draw.note(word));
        let most_ppm = u64::from(self.imbalance_percent) * 10_000;
        let share_ppm = 1_000_000 - most_ppm + draw.hash() % (2 * most_ppm + 1);
        (u128::from(mean_ps) * u128::from(share_ppm) / 1_000_000) as Picoseconds
    }

    pub(super) async fn run(self, rank: Rank) {
        let Size { points, iterations } = self.size();
        let group = Group::all(&rank);
        let kernel = Running {
            rank: &rank,
            group: &group,
            library: self.library,
            points,
            compute_ps: self.compute_ps(&rank),
        };
        self.library.barrier(&group).await;
        let begun = rank.clock().await;
        let iterations = self.iterations.unwrap_or(iterations);
        for _ in 0..iterations {
            match self.kernel {
                Kernel::Is => kernel.integer_sort().await,
                Kernel::Ft => kernel.fourier().await,
                Kernel::Lu => kernel.lu().await,
                Kernel::Cg => kernel.conjugate_gradient().await,
                Kernel::Mg => kernel.multigrid().await,
                Kernel::Bt => kernel.block_tridiagonal().await,
                Kernel::Sp => kernel.scalar_pentadiagonal().await,
            }
        }
        let spent = nanoseconds(rank.clock().await - begun);
        rank.record(measure::STEP_NS, spent / f64::from(iterations));
    }
}

/// A running kernel.
#[derive(Clone, Copy, Debug)]
struct Running<'a> {
    rank: &'a Rank,
    group: &'a Group,
    library: Library,
    points: [u32; 3],
    /// Computing time of one iteration.
    compute_ps: Picoseconds,
}

/// Tag of point-to-point messages.
const TAG: u64 = 1;
/// Size of a floating-point number. Unit: bytes.
const DOUBLE: u64 = 8;

impl Running<'_> {
    /// Computes one of `parts` equal parts of an iteration's work.
    fn work(&self, parts: u32) {
        self.rank.compute(self.compute_ps / u64::from(parts.max(1)));
    }

    /// Sends to one rank and receives from another. A rank sends nothing to itself.
    async fn exchange(&self, to: u32, from: u32, tag: u64, send_bytes: u64, receive_bytes: u64) {
        if to != self.rank.rank() {
            self.rank.sendrecv(to, from, tag, send_bytes, receive_bytes).await;
        }
    }
}

/// Number of `points` at place `place` of `places`. If they do not divide evenly, the first places get one
/// more.
fn share(points: u32, place: u32, places: u32) -> u64 {
    u64::from(points / places + u32::from(place < points % places))
}
