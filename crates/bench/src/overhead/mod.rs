//! `weir bench overhead`: the instructions and the time that one flow-control scheme costs more than another, by
//! default credits on demand compared with no flow control.
//!
//! It has two methods. The number of instructions is exact, but says nothing about time. Time is noisy, so it is
//! measured in pairs of consecutive runs and reported with an interval. Both are compared with limits. The command
//! fails if a limit is exceeded, or if something is not resolved or not measured.
//!
//! Expected: with credits a sender counts and compares where a sender without credits looks at the lane, and a receiver
//! returns credits every few messages. That costs some 70 of some 1,600 instructions for 8 B, both sides together. 30
//! pairs take about two minutes.

mod instructions;
mod pairs;
mod table;
pub mod workload;

use super::jobs::Jobs;
use crate::imb;
use crate::machine::Machine;
use crate::options::{ImbOption, MpichOption, OutputOptions, TimeoutOption};
use clap::{Args, ValueEnum};
use instructions::{Count, Counter, Side};
use pairs::{Pairs, PairsResult};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use table::Limits;
use weir_engine::config::{SETTINGS, Settings};
use weir_mpi::find::{Mpi, SearchEnvironment};
use weir_mpi::{provider_file, scratch};
use weir_output::Failure;
use workload::Traffic;

const FLOW: &str = "FI_WEIR_FLOW";

/// The two methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Instructions of a message, counted by callgrind between two endpoints of one process.
    Instructions,
    /// Time of IMB-MPI1 PingPong, Sendrecv and Exchange on two ranks, in interleaved pairs of runs.
    Time,
}

/// Options of `weir bench overhead`.
#[derive(Args, Debug)]
#[command(after_help = "\
Instructions: messages of 8 B and of 2 KiB go from one endpoint to another, one way or back and forth, and the \
receive is posted before. One way, credits return in credit packets; back and forth, they return with messages. The \
instructions of weir are counted at both ends, without libfabric and MPI. The limit holds for the sum of both ends. \
This part needs valgrind.

Time: each pair runs IMB-MPI1 under MPICH on 2 ranks, with one scheme right after the other. Pairs begin with either \
scheme in turn. A run measures each size 6 times, and the fastest counts. A pair's overhead is the geometric mean of \
the ratios of times, over benchmarks and sizes. The table shows the mean over all pairs and its interval of 95 % \
confidence (Student's t). This part needs an MPICH with libfabric (pip install mpich) and IMB-MPI1 (pip install \
impi-rt).

Verdict of the time:
  passed         the interval is within the limit, and no wider than the limit
  failed         the interval is beyond the limit
  not resolved   anything else; use more pairs or an idle machine

All other settings of weir come from the environment and hold for both schemes (see `weir settings`).

Exit status:
  0      everything passed
  1      something failed, was not resolved or could not be measured")]
pub struct OverheadArguments {
    /// The scheme whose cost is measured. Default: weir's default.
    #[arg(long, value_name = "SCHEME")]
    flow: Option<String>,
    /// The scheme that it is compared with.
    #[arg(long, value_name = "SCHEME", default_value = "unlimited")]
    over: String,
    /// Measure only instructions or only time.
    #[arg(long, value_name = "MEASURE", value_delimiter = ',')]
    measure: Vec<Part>,
    /// Number of pairs of runs.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pairs: u32,
    /// Message sizes of the timed runs. Unit: bytes.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [8, 64, 512, 2048, 8192, 65536])]
    sizes: Vec<u64>,
    /// Limit of additional instructions. Unit: percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = percent)]
    limit_instructions: f64,
    /// Limit of additional time. Unit: percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0, value_parser = percent)]
    limit_time: f64,
    #[command(flatten)]
    mpich: MpichOption,
    #[command(flatten)]
    imb: ImbOption,
    #[command(flatten)]
    timeout: TimeoutOption,
    #[command(flatten)]
    output: OutputOptions,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 1000.0 => Ok(number),
        _ => Err(String::from("allowed are numbers above 0, up to 1000")),
    }
}

impl OverheadArguments {
    fn wants(&self, part: Part) -> bool {
        self.measure.is_empty() || self.measure.contains(&part)
    }
}

/// The names of the two schemes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Schemes {
    /// The scheme whose cost is measured.
    pub flow: String,
    /// The scheme that it is compared with.
    pub over: String,
}

/// The results, and what could not be measured.
#[derive(Debug, Default, Serialize)]
pub struct Results {
    /// Instructions by size: with `flow` and with `over`.
    instructions: Vec<(Count, Count)>,
    time: Option<PairsResult>,
    missing: Vec<String>,
}

/// The part of the `--json` record below its head.
#[derive(Serialize)]
struct RecordContent<'a> {
    machine: &'a Machine,
    mpi: Option<&'a Mpi>,
    schemes: &'a Schemes,
    limits: Limits,
    settings: BTreeMap<&'static str, String>,
    #[serde(flatten)]
    results: &'a Results,
}

/// Measures and prints. Returns the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &OverheadArguments) -> Result<u8, Failure> {
    arguments.output.record.check()?;
    let default =
        SETTINGS.iter().find(|setting| setting.variable == FLOW).map_or("", |setting| setting.default);
    let schemes = Schemes {
        flow: arguments.flow.clone().unwrap_or_else(|| default.to_owned()),
        over: arguments.over.clone(),
    };
    let settings = settings_of(&schemes.flow)?;
    settings_of(&schemes.over)?;
    if schemes.flow == schemes.over {
        return Err(Failure::Usage(format!(
            "--flow {0} --over {0}: the two schemes must differ",
            schemes.flow
        )));
    }
    if let Some(size) = arguments.sizes.iter().find(|&&size| size == 0 || size > 1 << 30) {
        return Err(Failure::Usage(format!("--sizes {size}: allowed are 1 to 1073741824 bytes")));
    }
    let machine = Machine::of_this();
    let scratch = scratch::directory()?;
    let limit = arguments.timeout.limit();
    let mut results = Results::default();
    let mut mpi = None;
    // All arguments are checked before the first run.
    let pairs = if arguments.wants(Part::Time) {
        let jobs = Jobs { limit, shm_dir: settings.shm_dir.clone() };
        let pairs = prepare_pairs(arguments, jobs, &schemes, scratch.path())?;
        mpi = Some(pairs.mpi.clone());
        Some(pairs)
    } else {
        None
    };
    if arguments.wants(Part::Instructions) {
        match Counter::find(scratch.path(), limit) {
            Ok(counter) => count(&counter, &schemes, &arguments.output, &mut results)?,
            Err(why) => results.missing.push(why),
        }
    }
    if let Some(pairs) = pairs {
        let (time, why) = pairs.measure(arguments.pairs, &arguments.output)?;
        results.time = time;
        results.missing.extend(why);
    }
    let limits = Limits {
        instructions: 1.0 + arguments.limit_instructions / 100.0,
        time: 1.0 + arguments.limit_time / 100.0,
    };
    let text = table::render(&results, &schemes, limits, &machine, mpi.as_ref());
    arguments.output.record.print(text)?;
    let content = RecordContent {
        machine: &machine,
        mpi: mpi.as_ref(),
        schemes: &schemes,
        limits,
        settings: settings.to_variables().into_iter().collect(),
        results: &results,
    };
    arguments.output.record.write("weir-bench-overhead-1", content)?;
    Ok(u8::from(!table::all_passed(&results, limits)))
}

/// The settings of the environment with the scheme `flow`, checked for two ranks.
fn settings_of(flow: &str) -> Result<Settings, Failure> {
    // Checks the names of all variables.
    Settings::from_environment()?;
    let settings = Settings::from_lookup(|variable| match variable {
        FLOW => Some(flow.to_owned()),
        _ => std::env::var_os(variable).map(|value| value.to_string_lossy().into_owned()),
    })?;
    settings.quota(2)?;
    Ok(settings)
}

fn prepare_pairs(
    arguments: &OverheadArguments,
    jobs: Jobs,
    schemes: &Schemes,
    scratch: &Path,
) -> Result<Pairs, Failure> {
    let search_environment = SearchEnvironment::of_process();
    let mpi = arguments.mpich.find(&search_environment)?;
    let imb = arguments.imb.find(&mpi, &search_environment)?;
    let lengths = scratch.join("lengths");
    let blocks = std::iter::repeat_n(&arguments.sizes, pairs::BLOCKS);
    imb::write_lengths(&lengths, blocks.flatten().copied())?;
    let provider = provider_file::isolate(&provider_file::find_for_this_command()?, scratch)?;
    let (sizes, schemes) = (arguments.sizes.clone(), schemes.clone());
    Ok(Pairs { mpi, imb, provider, lengths, sizes, schemes, jobs })
}

fn count(
    counter: &Counter,
    schemes: &Schemes,
    output: &OutputOptions,
    results: &mut Results,
) -> Result<(), Failure> {
    let all: Vec<_> = instructions::SIZES
        .into_iter()
        .flat_map(|bytes| Traffic::ALL.map(|traffic| (bytes, traffic)))
        .collect();
    let bar = output.progress_bar((all.len() * 4) as u64);
    'all: for (bytes, traffic) in all {
        let mut counts = Vec::new();
        for flow in [&schemes.flow, &schemes.over] {
            let mut count = Count { bytes, traffic, sender: 0.0, receiver: 0.0 };
            for side in Side::ALL {
                bar.set_message(format!("counting: {bytes} B, {flow}"));
                let side_count = match side {
                    Side::Sender => &mut count.sender,
                    Side::Receiver => &mut count.receiver,
                };
                match counter.count(flow, bytes, traffic, side)? {
                    Ok(counted) => *side_count = counted,
                    Err(why) => {
                        results.missing.push(format!("instructions, {bytes} B, {flow}: {why}"));
                        break 'all;
                    }
                }
                bar.inc(1);
            }
            counts.push(count);
        }
        results.instructions.push((counts[0], counts[1]));
    }
    Ok(())
}
