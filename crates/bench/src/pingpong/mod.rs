//! `weir bench pingpong`: half round trip, message rate and barrier over all transports.
//!
//! The program is Intel's MPI benchmarks. A round runs each benchmark over one transport after the other, and each
//! round begins with another transport. So a slow phase of the host affects all of them.
//!
//! Expected on 2 cores: a round has 15 short jobs and takes 6 s, of which the barrier over MPICH's shared memory takes
//! 2 s with more ranks than cores. Five rounds take half a minute.

mod benchmark;
mod table;

pub use benchmark::Benchmark;

use crate::imb;
use crate::jobs::{self, Jobs};
use crate::machine::Machine;
use crate::options::{ImbOption, MpichOption, OutputOptions, TimeoutOption};
use crate::transport::Transport;
use benchmark::Measure;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use table::Results;
use weir_engine::config::Settings;
use weir_mpi::find::{Mpi, SearchEnvironment};
use weir_mpi::launch::Launch;
use weir_mpi::{provider_file, scratch};
use weir_output::Failure;

/// Options of `weir bench pingpong`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each cell of the table has the median of the rounds, the least and the greatest value, and the ratio to weir's \
median. If the range of a transport overlaps with weir's, the difference is marked as within noise.

It needs an MPICH with libfabric and UCX (pip install mpich), and IMB-MPI1 (pip install impi-rt). The default is \
weir's own environments. weir's settings come from the environment (see `weir settings`).

Exit status:
  0      everything was measured
  1      a transport is missing, failed or timed out
  2      a wrong option or setting
  126    a program is not executable
  127    a program was not found")]
pub struct PingpongArguments {
    /// Number of ranks of the barrier.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=1024))]
    ranks_barrier: u32,
    /// Message sizes of the half round trip. Unit: bytes.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [8, 2048, 65536, 1 << 20])]
    sizes: Vec<u64>,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Measure only these transports.
    #[arg(long, value_name = "TRANSPORT", value_delimiter = ',')]
    only: Vec<Transport>,
    /// Measure only these.
    #[arg(long, value_name = "MEASURE", value_delimiter = ',')]
    measure: Vec<Benchmark>,
    #[command(flatten)]
    mpich: MpichOption,
    #[command(flatten)]
    imb: ImbOption,
    #[command(flatten)]
    timeout: TimeoutOption,
    #[command(flatten)]
    output: OutputOptions,
}

/// The inputs of all jobs.
struct Bench<'a> {
    arguments: &'a PingpongArguments,
    mpi: Mpi,
    imb: PathBuf,
    /// Directory of the plug-in, or why it is missing.
    provider: Result<PathBuf, String>,
    /// File with the message lengths, for IMB.
    lengths: PathBuf,
    rate_length: PathBuf,
    jobs: Jobs,
}

/// Measures and prints. Returns the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &PingpongArguments) -> Result<u8, Failure> {
    arguments.output.record.check()?;
    let settings = Settings::from_environment()?;
    settings.quota(arguments.ranks_barrier)?;
    if let Some(size) = arguments.sizes.iter().find(|&&size| size > 1 << 30) {
        return Err(Failure::Usage(format!("--sizes {size}: at most 1073741824 bytes")));
    }
    let search_environment = SearchEnvironment::of_process();
    let mpi = arguments.mpich.find(&search_environment)?;
    let program = arguments.imb.find(&mpi, &search_environment)?;
    let scratch = scratch::directory()?;
    let provider = match provider_file::find_for_this_command() {
        Ok(provider) => Ok(provider_file::isolate(&provider, scratch.path())?),
        Err(failure) => Err(failure.to_string()),
    };
    let lengths = scratch.path().join("lengths");
    imb::write_lengths(&lengths, arguments.sizes.iter().copied())?;
    let rate_length = scratch.path().join("rate-length");
    imb::write_lengths(&rate_length, [benchmark::RATE_BYTES])?;
    let bench = Bench {
        lengths,
        rate_length,
        arguments,
        mpi,
        imb: program,
        provider,
        jobs: Jobs { limit: arguments.timeout.limit(), shm_dir: settings.shm_dir.clone() },
    };
    let machine = Machine::of_this();
    let results = bench.run_rounds()?;
    arguments.output.record.print(table::render(&results, &machine, &bench.mpi, arguments.repeat))?;
    let content = RecordContent {
        machine: &machine,
        mpi: &bench.mpi,
        program: &bench.imb,
        rounds: arguments.repeat,
        settings: settings.to_variables().into_iter().collect(),
        results: &results,
    };
    arguments.output.record.write("weir-bench-pingpong-1", content)?;
    Ok(u8::from(!results.is_complete()))
}

/// The part of the `--json` record below its head.
#[derive(Serialize)]
struct RecordContent<'a> {
    machine: &'a Machine,
    mpi: &'a Mpi,
    program: &'a Path,
    rounds: u32,
    settings: BTreeMap<&'static str, String>,
    results: &'a Results,
}

impl Bench<'_> {
    /// Runs all rounds.
    fn run_rounds(&self) -> Result<Results, Failure> {
        let transports = jobs::select(Transport::value_variants(), &self.arguments.only);
        let wanted: BTreeSet<Benchmark> = match self.arguments.measure.as_slice() {
            [] => Benchmark::value_variants().iter().copied().collect(),
            some => some.iter().copied().collect(),
        };
        let mut results = Results::new(&transports);
        if let (true, Err(why)) = (transports.contains(&Transport::Weir), &self.provider) {
            results.mark_missing(Transport::Weir, format!("missing: {why}"));
        }
        let jobs = u64::from(self.arguments.repeat) * (transports.len() * wanted.len()) as u64;
        let bar = self.arguments.output.progress_bar(jobs);
        for round in 1..=self.arguments.repeat {
            for &benchmark in &wanted {
                for &transport in jobs::rotated(&transports, round as usize - 1) {
                    bar.set_message(format!("round {round}: {} over {}", benchmark.word(), transport.word()));
                    self.run_job(transport, benchmark, &mut results)?;
                    bar.inc(1);
                }
            }
        }
        Ok(results)
    }

    /// Runs one job, unless the transport is missing or has failed in the benchmark before.
    fn run_job(
        &self,
        transport: Transport,
        benchmark: Benchmark,
        results: &mut Results,
    ) -> Result<(), Failure> {
        if results.has_failed(transport, benchmark) {
            return Ok(());
        }
        let (ranks, words) = self.imb_arguments(benchmark);
        let mut launch = Launch::new(&self.mpi, ranks, jobs::job_transport(transport, &self.provider), &[]);
        launch.program(&self.imb, words);
        match self.jobs.run(&launch, || true)? {
            Err(unfinished) => results.fail(transport, benchmark, unfinished.to_string()),
            Ok(output) => match self.samples(benchmark, &output) {
                Ok(samples) => {
                    samples.into_iter().for_each(|(measure, value)| results.add(transport, measure, value))
                }
                Err(why) => results.fail(transport, benchmark, format!("unexpected output: {why}")),
            },
        }
        Ok(())
    }

    /// Ranks and arguments of IMB-MPI1.
    fn imb_arguments(&self, benchmark: Benchmark) -> (u32, Vec<std::ffi::OsString>) {
        let words = |words: &[&str]| words.iter().map(std::ffi::OsString::from).collect::<Vec<_>>();
        match benchmark {
            // At most a second for each size; 10,000 round trips of 8 B take 10 to 100 ms.
            Benchmark::Pingpong => {
                let mut all = words(&["PingPong", "-iter", "10000", "-time", "1", "-msglen"]);
                all.push(self.lengths.clone().into());
                (2, all)
            }
            // Each repetition is a window of 64 messages.
            Benchmark::Rate => {
                let mut all = words(&["Uniband", "-iter", "2000", "-time", "1", "-msglen"]);
                all.push(self.rate_length.clone().into());
                (2, all)
            }
            Benchmark::Barrier => {
                let ranks = self.arguments.ranks_barrier;
                let mut all = words(&["Barrier", "-iter", "2000", "-time", "0.5", "-npmin"]);
                all.push(ranks.to_string().into());
                (ranks, all)
            }
        }
    }

    fn samples(&self, benchmark: Benchmark, output: &str) -> Result<Vec<(Measure, f64)>, String> {
        match benchmark {
            Benchmark::Pingpong => benchmark::half_round_trips(output, &self.arguments.sizes),
            Benchmark::Rate => benchmark::message_rate(output),
            Benchmark::Barrier => benchmark::barrier(output, self.arguments.ranks_barrier),
        }
    }
}
