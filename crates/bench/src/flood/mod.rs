//! `weir bench flood`: measures the memory that a receiver needs in a flood of unexpected messages, over weir and over
//! other transports.
//!
//! The receiver waits for a tag that is sent last, so all other messages are unexpected. The program measures memory
//! and time itself. Repetitions are interleaved: each runs the cases in turn, and each case over one contender after
//! another. Each repetition begins with another contender. A contender that has not finished a case does not run it
//! again.
//!
//! Expected: the payload of the standard cases is 0.2 to 4.9 GB and is copied twice or three times. That takes 0.1 to 5
//! s with enough memory. MPICH's list of unexpected messages adds up to a minute. A job that does not end is stopped at
//! its time limit.

mod cases;
mod figure;
mod table;

pub use cases::{Case, Drain, Mode, Sample, standard_cases};

use super::contender::Contender;
use super::free_memory;
use super::jobs::{self, Jobs, Unfinished};
use super::program::FLOOD;
use super::transport::Transport;
use crate::contender_set::ContenderSet;
use crate::machine::Machine;
use crate::options::{MpichOption, OutputOptions};
use cases::CaseArgument;
use clap::{Args, ValueEnum};
use figure::{MemorySample, SAMPLE_INTERVAL_MS};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use table::{Budgets, CaseResults, Outcome};
use weir_engine::config::Settings;
use weir_mpi::find::Mpi;
use weir_mpi::scratch;
use weir_output::Failure;

/// Options of `weir bench flood`.
#[derive(Args, Debug)]
#[command(after_help = "\
Senders send to a receiver that waits for a tag which is sent last. All messages before it are unexpected, and some \
process has to hold them.

The table shows for each case:
  receiver grew by           most growth of its memory (RssAnon + RssShmem) after MPI_Init
  within bound               whether that is at most 1.05 x FI_WEIR_UNEXPECTED_BUDGET and
                             64 B for each unexpected message, but for all of them
                             at most 1.05 x FI_WEIR_ENVELOPE_BUDGET
  all ranks grew by          the same, summed over all ranks, with the program's own buffers
  x fastest of MPICH's own   ratio to the time of the fastest of MPICH's own transports
                             that finished, and its interval of 95 % confidence

MPI does not promise the buffering that a flood needs. So a transport that does not finish is a result, and is not \
tried again. All cases and transports take half an hour or more. A job is ended before less than 1 GiB of memory is \
left.

It needs an MPICH with libfabric, UCX and mpicc (pip install mpich), and a C compiler. Open MPI and Intel MPI run as \
they are, if they are found. weir's settings come from the environment (see `weir settings`).

Exit status:
  0      weir finished every case within its bound, in every repetition
  1      it did not, or a measurement failed

Examples:
  weir bench flood --quick
  weir bench flood --figure flood.svg
  weir bench flood --envelopes --only weir --repeat 1
  weir bench flood --cases 1x100000x2048,3x100000x8-blocking --only weir,mpich-shm --repeat 10")]
pub struct FloodArguments {
    /// Cases: SENDERSxMESSAGESxBYTES, with -blocking or -nonblocking at the end, or both if neither. MESSAGES is for each
    /// sender. With -reversed, each message of a sender has another tag and the last tag is received first; with -anybody,
    /// the receiver receives from any source.
    #[arg(long, value_name = "CASE", value_delimiter = ',', conflicts_with = "quick")]
    cases: Vec<CaseArgument>,
    /// Ten million short messages, and 100 MB in long ones, in every order of receives.
    #[arg(long, conflicts_with_all = ["quick", "cases", "figure"])]
    envelopes: bool,
    /// Only these transports (`weir bench list` names them).
    #[arg(long, value_name = "TRANSPORT", value_delimiter = ',')]
    only: Vec<Contender>,
    /// Small floods: a few minutes, 2 repetitions, 10 s for a job.
    #[arg(long)]
    quick: bool,
    /// Number of repetitions; 5, or 2 with --quick.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: Option<u32>,
    /// Limit of one job, after which it counts as not finished; 120, 10 with --quick, 600 with --envelopes. Unit: seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: Option<u64>,
    #[command(flatten)]
    mpich: MpichOption,
    /// Draw the memory of the flooded rank over time as SVG to FILE: a sample every 10 ms of the first case's first
    /// repetition. Without --cases, one case is measured: 3x100000x2048-blocking, with --quick 3x1000x2048-blocking.
    /// Without --only, only transports under MPICH are measured. Without --repeat, there is one repetition.
    #[arg(long, value_name = "FILE")]
    figure: Option<String>,
    #[command(flatten)]
    output: OutputOptions,
}

impl FloodArguments {
    fn chosen_cases(&self) -> Vec<Case> {
        match self.cases.as_slice() {
            [] if self.figure.is_some() => vec![cases::figure_case(self.quick)],
            [] if self.quick => cases::quick_cases(),
            [] if self.envelopes => cases::envelope_cases(),
            [] => standard_cases(),
            some => some.iter().flat_map(|argument| argument.cases.iter().copied()).collect(),
        }
    }

    fn chosen_contenders(&self) -> Vec<Contender> {
        match self.only.as_slice() {
            [] if self.figure.is_some() => {
                Transport::value_variants().iter().copied().map(Contender::Mpich).collect()
            }
            some => some.to_vec(),
        }
    }

    fn chosen_repetitions(&self) -> u32 {
        self.repeat.unwrap_or(match (self.figure.is_some(), self.quick) {
            (true, _) => 1,
            (false, true) => 2,
            (false, false) => 5,
        })
    }

    /// The limit of one job. Unit: seconds. A drain of ten million messages in reverse order asks a sender for most of them
    /// one by one.
    fn chosen_limit_s(&self) -> u64 {
        self.timeout.unwrap_or(match (self.envelopes, self.quick) {
            (true, _) => 600,
            (false, true) => 10,
            (false, false) => 120,
        })
    }
}

struct Bench {
    jobs: Jobs,
    repeat: u32,
    /// Whether the first job of each contender samples its memory over time.
    draws_figure: bool,
    contenders: ContenderSet,
    /// Contenders that are not measured, and why.
    missing: Vec<String>,
}

/// The part of the `--json` record below its head.
#[derive(Serialize)]
struct RecordContent<'a> {
    machine: &'a Machine,
    mpi: &'a Mpi,
    other_mpis: Vec<&'a Mpi>,
    repetitions: u32,
    timeout_s: u64,
    #[serde(flatten)]
    budgets: Budgets,
    settings: BTreeMap<&'static str, String>,
    missing: &'a [String],
    cases: &'a [CaseResults],
}

/// Measures and prints. Returns the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &FloodArguments) -> Result<u8, Failure> {
    arguments.output.record.check()?;
    weir_output::write::check_json_target(arguments.figure.as_deref())?;
    let settings = Settings::from_environment()?;
    let cases = arguments.chosen_cases();
    let max_senders = cases.iter().map(|case| case.senders).max().unwrap_or(1);
    settings.quota(max_senders + 1)?;
    let scratch = scratch::directory()?;
    let bench = Bench::prepare(arguments, &settings, scratch.path())?;
    let machine = Machine::of_this();
    let variables: BTreeMap<_, _> = settings.to_variables().into_iter().collect();
    let budgets = Budgets {
        budget_bytes: settings.unexpected_budget_bytes,
        envelope_budget_bytes: settings.envelope_budget_bytes,
    };

    let results = bench.measure(&cases, budgets, &arguments.output)?;
    for case in &results {
        arguments.output.record.print(format_args!("{}\n", table::render(case)))?;
    }
    let mut notes = table::notes(&results, bench.repeat, &machine, bench.contenders.mpich());
    notes.extend(bench.missing.iter().cloned());
    arguments.output.record.print(notes.join("\n"))?;
    if let Some(target) = &arguments.figure {
        match results.first().and_then(figure::draw) {
            Some(svg) => weir_output::write::write_text(&svg, target)?,
            None => {
                return Err(Failure::Measurement(format!(
                    "{target}: no transport gave memory samples, so there is no figure"
                )));
            }
        }
    }
    let content = RecordContent {
        machine: &machine,
        mpi: bench.contenders.mpich(),
        other_mpis: bench.contenders.other_mpis(),
        repetitions: bench.repeat,
        timeout_s: bench.jobs.limit.as_secs(),
        budgets,
        settings: variables,
        missing: &bench.missing,
        cases: &results,
    };
    arguments.output.record.write("weir-bench-flood-2", content)?;
    let weir = Contender::Mpich(Transport::Weir);
    let wanted = arguments.only.is_empty() || arguments.only.contains(&weir);
    Ok(u8::from(wanted && !results.iter().all(|case| case.is_within_memory_bound(weir))))
}

impl Bench {
    /// Finds the MPIs and compiles the program for each.
    fn prepare(arguments: &FloodArguments, settings: &Settings, scratch: &Path) -> Result<Bench, Failure> {
        let contenders =
            ContenderSet::prepare(&arguments.mpich, &arguments.chosen_contenders(), &[FLOOD], scratch)?;
        let missing = contenders.missing.iter().map(|(contender, why)| match contender {
            Contender::Mpich(_) | Contender::MpichBetweenHosts(_) | Contender::Weir(_) => {
                format!("{} is missing: {why}", contender.heading())
            }
            Contender::OtherMpi(_) => format!("{} is not compared: {why}", contender.heading()),
        });
        let missing = missing.collect();
        Ok(Bench {
            jobs: Jobs {
                limit: Duration::from_secs(arguments.chosen_limit_s()),
                shm_dir: settings.shm_dir.clone(),
            },
            repeat: arguments.chosen_repetitions(),
            draws_figure: arguments.figure.is_some(),
            contenders,
            missing,
        })
    }

    /// Runs all repetitions.
    fn measure(
        &self,
        cases: &[Case],
        budgets: Budgets,
        output: &OutputOptions,
    ) -> Result<Vec<CaseResults>, Failure> {
        let mut results: Vec<CaseResults> =
            cases.iter().map(|&case| CaseResults::new(case, &self.contenders.ready, budgets)).collect();
        let jobs = u64::from(self.repeat) * (cases.len() * self.contenders.ready.len()) as u64;
        let bar = output.progress_bar(jobs);
        for repetition in 0..self.repeat as usize {
            for (index, case) in results.iter_mut().enumerate() {
                for &contender in jobs::rotated(&self.contenders.ready, repetition) {
                    bar.set_message(format!(
                        "repetition {}: {} over {}",
                        repetition + 1,
                        case.case.word(),
                        contender.word()
                    ));
                    if case.may_run(contender) {
                        let samples_memory = self.draws_figure && (repetition, index) == (0, 0);
                        let (outcome, memory) = self.measure_once(case.case, contender, samples_memory)?;
                        case.add(contender, outcome);
                        if samples_memory {
                            case.set_memory(contender, memory);
                        }
                    }
                    bar.inc(1);
                }
            }
        }
        Ok(results)
    }

    /// Runs one job. Returns how it ended, and the memory of the receiver over time if `samples_memory`.
    fn measure_once(
        &self,
        case: Case,
        contender: Contender,
        samples_memory: bool,
    ) -> Result<(Outcome, Vec<MemorySample>), Failure> {
        let needed = case.payload_bytes().saturating_add(free_memory::MIN_FREE_BYTES);
        if let Some(available) = free_memory::available_bytes()
            && available < needed
        {
            return Ok((Outcome::TooLarge { needed_bytes: needed, available_bytes: available }, Vec::new()));
        }
        let mut words = case.arguments();
        if samples_memory {
            words.push(SAMPLE_INTERVAL_MS.to_string());
        }
        let launch = self.contenders.launch(contender, case.senders + 1, FLOOD, words);
        let (output, unfinished) = self.jobs.run_with_output(&launch, free_memory::watch())?;
        let outcome = match unfinished {
            Some(unfinished) => Outcome::Unfinished(unfinished),
            None => match Sample::parse(&output) {
                Ok(sample) => Outcome::Finished(sample),
                Err(reason) => Outcome::Unfinished(Unfinished::Failed { reason }),
            },
        };
        Ok((outcome, MemorySample::parse_all(&output)))
    }
}
