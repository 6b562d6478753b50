//! `weir bench pingpong`: half round trip, message rate and barrier over all transports.
//!
//! The program is Intel's MPI benchmarks. Rounds are interleaved: each runs all transports once, so that a slow phase
//! of the host affects all of them.
//!
//! Expected on 2 cores: a round has 15 short jobs and takes 6 s, of which MPICH's own barrier with more ranks than
//! cores takes 2 s. Five rounds take half a minute.

mod benchmark;
mod table;

pub use benchmark::Benchmark;

use crate::jobs::{self, Jobs};
use crate::machine::Machine;
use crate::transport::Transport;
use benchmark::Measure;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use table::Results;
use weir_engine::config::Settings;
use weir_mpi::find::{self, Kind, Mpi, SearchEnvironment};
use weir_mpi::launch::Launch;
use weir_mpi::{program, provider_file, scratch};
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
    /// The MPICH, as for `weir run --mpi`.
    #[arg(long, value_name = "MPI", default_value = "mpich")]
    mpi: String,
    /// The program IMB-MPI1; default: that in PATH or in weir's own environments.
    #[arg(long, value_name = "FILE")]
    imb: Option<String>,
    /// Limit of one job, after which it is ended and reported as timed out. Unit: seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Write a record with all samples as JSON to FILE, or to standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
    /// Show no progress bar.
    #[arg(long, short)]
    quiet: bool,
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
    weir_output::write::check_json_target(arguments.json.as_deref())?;
    let settings = Settings::from_environment()?;
    settings.quota(arguments.ranks_barrier)?;
    if let Some(size) = arguments.sizes.iter().find(|&&size| size > 1 << 30) {
        return Err(Failure::Usage(format!("--sizes {size}: at most 1073741824 bytes")));
    }
    let search_environment = SearchEnvironment::of_process();
    let mpi = find::choose(Some(&arguments.mpi), &search_environment)?;
    if mpi.kind != Kind::Mpich {
        return Err(Failure::NoMpi(format!(
            "--mpi {}: {} is not MPICH; name an MPICH",
            arguments.mpi,
            mpi.describe()
        )));
    }
    let mut bins = vec![mpi.bin_dir().to_owned()];
    bins.extend(search_environment.private_bins());
    let imb = program::find(
        arguments.imb.as_deref().unwrap_or("IMB-MPI1"),
        search_environment.path.as_deref(),
        &bins,
    )?;
    let scratch = scratch::directory()?;
    let provider = match provider_file::find_for_this_command() {
        Ok(provider) => Ok(provider_file::isolate(&provider, scratch.path())?),
        Err(failure) => Err(failure.to_string()),
    };
    let write_lengths = |name: &str, sizes: &[u64]| {
        let path = scratch.path().join(name);
        let text: String = sizes.iter().map(|size| format!("{size}\n")).collect();
        std::fs::write(&path, text).map_err(Failure::system(name)).map(|()| path)
    };
    let bench = Bench {
        lengths: write_lengths("lengths", &arguments.sizes)?,
        rate_length: write_lengths("rate-length", &[benchmark::RATE_BYTES])?,
        arguments,
        mpi,
        imb,
        provider,
        jobs: Jobs { limit: Duration::from_secs(arguments.timeout), shm_dir: settings.shm_dir.clone() },
    };
    let machine = Machine::of_this();
    let results = bench.run_rounds()?;
    println!("{}", table::render(&results, &machine, &bench.mpi, arguments.repeat));
    if let Some(target) = &arguments.json {
        weir_output::write::write_json(&bench.record(&results, &machine, &settings), target)?;
    }
    Ok(u8::from(!results.is_complete()))
}

/// What `--json` writes: enough to draw a figure and to explain it.
#[derive(Serialize)]
struct Record<'a> {
    schema: &'static str,
    weir_version: &'static str,
    /// Unit: seconds since 1970.
    time_s: u64,
    machine: &'a Machine,
    mpi: &'a Mpi,
    program: &'a Path,
    rounds: u32,
    settings: std::collections::BTreeMap<&'static str, String>,
    results: &'a Results,
}

impl Bench<'_> {
    fn record<'a>(&'a self, results: &'a Results, machine: &'a Machine, settings: &Settings) -> Record<'a> {
        Record {
            schema: "weir-bench-pingpong-1",
            weir_version: env!("CARGO_PKG_VERSION"),
            time_s: jobs::now_s(),
            machine,
            mpi: &self.mpi,
            program: &self.imb,
            rounds: self.arguments.repeat,
            settings: settings.to_variables().into_iter().collect(),
            results,
        }
    }

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
        let bar = jobs::progress_bar(jobs, self.arguments.quiet);
        for round in 1..=self.arguments.repeat {
            for &benchmark in &wanted {
                for &transport in &transports {
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
