//! Times of collective operations: starts its ranks itself, as processes of this node.
//!
//! ```text
//! collectives 8        8 ranks
//! barrier                          7.31 us
//! ...
//! ```
//! Each time is the median of 7 samples at rank 0. A sample is the mean over many operations in a row.

use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use weir_native::{Endpoint, Error, Group, Options, WordOperation};

/// Samples of each operation.
const SAMPLES: usize = 7;
/// Length of a sample, about.
const SAMPLE_TIME: Duration = Duration::from_millis(100);
/// Operations from which the first length of a sample follows.
const TRIAL: u32 = 200;

/// An operation that is timed.
type Timed = fn(&Group) -> Result<(), Error>;

/// What is timed.
const OPERATIONS: [(&str, Timed); 6] = [
    ("barrier", Group::barrier),
    ("barrier, started and waited for", |group| group.start_barrier()?.wait()),
    ("all-reduce 8 B", |group| group.all_reduce(WordOperation::Sum, &[1_u64]).map(|_| ())),
    ("broadcast 8 B", |group| group.broadcast(0, &mut [1_u64])),
    ("broadcast 16 KiB", |group| group.broadcast(0, &mut [1_u8; 16 << 10])),
    ("all-gather 8 B", |group| group.all_gather(&[1_u64]).map(|_| ())),
];

/// The mean time of an operation in a row of `count`, after all have met.
fn sample(group: &Group, timed: Timed, count: u32) -> Result<Duration, Error> {
    group.barrier()?;
    let began = Instant::now();
    (0..count).try_for_each(|_| timed(group))?;
    group.barrier()?; // a root does not wait for the others
    Ok(began.elapsed() / count)
}

/// Runs one rank.
pub fn run() -> Result<(), Error> {
    let endpoint = Endpoint::open(Options::default())?;
    let world = endpoint.world()?;
    for (name, timed) in OPERATIONS {
        let trial = sample(&world, timed, TRIAL)?;
        let mut count = [(SAMPLE_TIME.as_nanos() / trial.as_nanos().max(1)).clamp(10, 1_000_000) as u32];
        world.broadcast(0, &mut count)?; // all must do as many
        let samples = (0..SAMPLES).map(|_| sample(&world, timed, count[0]));
        let mut samples = samples.collect::<Result<Vec<Duration>, Error>>()?;
        samples.sort_unstable();
        if endpoint.rank() == 0 {
            println!("{name:32} {:8.2} us", samples[SAMPLES / 2].as_secs_f64() * 1e6);
        }
    }
    endpoint.close()
}

/// Starts the ranks. Returns whether all have ended without an error.
fn start(size: u32) -> std::io::Result<bool> {
    let exchange = std::env::temp_dir().join(format!("weir-collectives-{}", std::process::id()));
    std::fs::create_dir(&exchange)?;
    let start = |rank: u32| {
        let mut command = Command::new(std::env::current_exe()?);
        command.env("WEIR_RANK", rank.to_string()).env("WEIR_SIZE", size.to_string());
        command.env("WEIR_EXCHANGE_DIR", &exchange).stdin(Stdio::null()).spawn()
    };
    let ranks = (0..size).map(start).collect::<std::io::Result<Vec<_>>>()?;
    let ended: Vec<bool> =
        ranks.into_iter().map(|mut rank| rank.wait().is_ok_and(|status| status.success())).collect();
    std::fs::remove_dir(&exchange)?;
    Ok(ended.into_iter().all(|is_well| is_well))
}

fn main() -> ExitCode {
    let is_done = match std::env::args().nth(1).and_then(|size| size.parse().ok()) {
        Some(size) => start(size).map_err(|error| error.to_string()),
        None => run().map(|()| true).map_err(|error| error.to_string()),
    };
    match is_done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
