//! A histogram over all ranks: each has a part of the bins, and everybody counts in everybody's.
//!
//! ```text
//! WEIR_EXCHANGE_DIR=$(mktemp -d) WEIR_SIZE=2 WEIR_RANK=0 histogram &
//! ...                                        WEIR_RANK=1 histogram
//! mpiexec -n 4 histogram
//! ```
//! `histogram RANK` lets this rank stop after the first barrier, to show what the others see when somebody ends it.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use weir_native::{Endpoint, Error, Options, Place, WordOperation};

/// The key of the bins, the same at all ranks.
const BINS: u64 = 1;
/// Bins of each rank.
const BINS_EACH: u64 = 16;
/// Numbers that each rank draws.
const DRAWS: u64 = 5000;
/// Changes that a rank has under way.
const UNDER_WAY: usize = 100;

/// A sequence of numbers, different for each rank.
fn draws(rank: u32) -> impl Iterator<Item = u64> {
    let mut state = u64::from(rank) + 1;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state >> 33
    })
    .take(DRAWS as usize)
}

/// Runs one rank. `victim`: the rank that stops.
pub fn run(victim: Option<u32>) -> Result<(), Error> {
    let endpoint = Endpoint::open(Options::default())?;
    let (rank, size) = (endpoint.rank(), endpoint.size());
    let world = endpoint.world()?;
    let own = endpoint.expose(BINS, BINS_EACH as usize)?;
    world.barrier()?; // everybody has bins
    if victim == Some(rank) {
        println!("rank {rank} waits for its end");
        loop {
            std::thread::park();
        }
    }

    let mut under_way = VecDeque::new();
    for number in draws(rank) {
        let bin = number % (BINS_EACH * u64::from(size));
        let place = Place { rank: (bin / BINS_EACH) as u32, key: BINS, offset: bin % BINS_EACH * 8 };
        if under_way.len() == UNDER_WAY {
            under_way.pop_front().map_or(Ok(()), weir_native::Request::wait)?;
        }
        under_way.push_back(endpoint.start_atomic_without_fetch(place, WordOperation::Sum, 1_u64)?);
    }
    under_way.into_iter().try_for_each(weir_native::Request::wait)?;
    world.barrier()?; // everybody has counted

    let counted: u64 = own.words().iter().map(|bin| bin.load(Ordering::Relaxed)).sum();
    let most = own.words().iter().map(|bin| bin.load(Ordering::Relaxed)).max().unwrap_or(0);
    let sum = world.start_all_reduce(WordOperation::Sum, &[counted])?;
    let most = world.start_all_reduce(WordOperation::Max, &[most])?;
    let (sum, most) = (sum.wait()?[0], most.wait()?[0]);

    // The bins of the next rank, by a copy, and its count as it says.
    let next = (rank + 1) % size;
    let bins: Vec<u64> = endpoint.get(Place { rank: next, key: BINS, offset: 0 }, BINS_EACH as usize)?;
    let counts = world.all_gather(&[counted])?;
    assert_eq!(bins.iter().sum::<u64>(), counts[next as usize]);
    assert_eq!(sum, DRAWS * u64::from(size));

    // Half of the ranks, in a group of their own.
    if rank.is_multiple_of(2) {
        let even: Vec<u32> = (0..size).step_by(2).collect();
        let group = endpoint.group(&even)?;
        let of_even = group.reduce(0, WordOperation::Sum, &[counted])?;
        assert_eq!(of_even.is_some(), rank == 0);
    }
    println!("rank {rank} of {size}: {sum} numbers, the fullest bin has {most}");
    world.barrier()?;
    endpoint.close()
}

fn main() -> ExitCode {
    let victim = std::env::args().nth(1).and_then(|rank| rank.parse().ok());
    match run(victim) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(error.code() as u8)
        }
    }
}
