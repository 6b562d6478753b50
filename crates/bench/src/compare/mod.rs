//! `weir bench` without a benchmark's name: compares weir with all other transports and MPIs on this host.
//!
//! A round runs each job for every contender with which it has not failed before. The first contender changes from job
//! to job, so that a slow phase of the host affects all of them. Tables show the median over the rounds with its
//! spread, and weir's targets are judged by the spreads. Each finished job is a line in a file, so that an interrupted
//! run can be resumed.
//!
//! Expected on 2 cores: 16 jobs for each round and contender, 1 to 2 s each, mostly for the start and the measurement.
//! With 16 ranks some MPIs need 50 ms for a barrier, and such a job takes 5 to 10 s. A round of 7 contenders takes 3 to
//! 4 minutes, 5 rounds some 20.

pub(crate) mod measure;
mod other_load;
pub(crate) mod page;
pub(crate) mod results;
pub(crate) mod store;
pub(crate) mod table;
pub(crate) mod targets;
pub(crate) mod verdict;

pub use measure::Group;

use super::contender::Contender;
use super::free_memory;
use super::jobs::{self, Jobs};
use super::program::{FLOOD, MEASURE};
use super::statistics::Spread;
use crate::comparison;
use crate::contender_set::ContenderSet;
use crate::machine::Machine;
use crate::options::{MpichOption, OutputOptions};
use crate::record::Record;
use clap::Args;
use measure::{Job, Plan};
use other_load::OtherLoad;
use results::{FailedJob, Results, Row};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use store::{FinishedJob, Outcome, Store};
use verdict::{JudgedTarget, summary_of};
use weir_engine::config::Settings;
use weir_mpi::{launch, scratch};
use weir_output::Failure;
use weir_output::quantity;

/// The file of finished jobs in the user's directory.
const SAMPLES: &str = "samples.jsonl";
/// Prefixes of variables that influence the contenders, and so belong to the key of a run.
const ENVIRONMENT_PREFIXES: [&str; 8] =
    ["FI_", "MPIR_CVAR_", "MPICH_", "UCX_", "I_MPI_", "OMPI_", "PRTE_", "PMIX_"];

/// Options of `weir bench` without a benchmark's name.
#[derive(Args, Debug)]
pub struct CompareArguments {
    /// Number of rounds; 5, or 2 with --quick.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: Option<u32>,
    /// Only these transports (`weir bench list` names them).
    #[arg(long, value_name = "TRANSPORT", value_delimiter = ',')]
    only: Vec<Contender>,
    /// Measure only these.
    #[arg(long, value_name = "MEASURE", value_delimiter = ',')]
    measure: Vec<Group>,
    /// Ranks of collectives, incast and memory.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [2, 4, 8, 16],
        value_parser = clap::value_parser!(u32).range(2..=1024))]
    ranks: Vec<u32>,
    /// Short measurements: 2 rounds, 0.05 s for a value.
    #[arg(long)]
    quick: bool,
    /// Directory for samples and the page.
    #[arg(long, value_name = "DIR", default_value = "out/bench")]
    out: PathBuf,
    /// Do not resume an interrupted run.
    #[arg(long)]
    fresh: bool,
    /// Limit of one job, after which it is ended and reported as timed out; 60, or 20 with --quick. Unit: seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: Option<u64>,
    #[command(flatten)]
    mpich: MpichOption,
    #[command(flatten)]
    output: OutputOptions,
}

/// The part of the `--json` record below its head, which the page also holds.
#[derive(Serialize)]
struct RecordContent<'a> {
    /// Key of the run.
    run: &'a str,
    machine: &'a Machine,
    /// Load before each of the commands that measured.
    loads: &'a [f64],
    /// Share of the cores that other work took during a job.
    other_load: Option<Spread>,
    mpis: &'a [String],
    rounds: u32,
    quick: bool,
    timeout_s: u64,
    settings: BTreeMap<&'static str, String>,
    jobs: String,
    missing: &'a [(Contender, String)],
    failures: &'a [FailedJob],
    targets: &'a [JudgedTarget],
    rows: Vec<Row>,
}

struct Bench<'a> {
    arguments: &'a CompareArguments,
    contenders: ContenderSet,
    plan: Plan,
    rounds: u32,
    jobs: Jobs,
    machine: Machine,
    settings: BTreeMap<&'static str, String>,
}

/// Measures and prints. Returns the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &CompareArguments) -> Result<u8, Failure> {
    arguments.output.record.check()?;
    let settings = Settings::from_environment()?;
    let plan = Plan::new(&arguments.measure, &arguments.ranks, arguments.quick);
    settings.quota(plan.max_ranks())?;
    let cannot_create = format!("--out: cannot create the directory {}", arguments.out.display());
    std::fs::create_dir_all(&arguments.out).map_err(Failure::system(cannot_create))?;
    let machine = Machine::of_this();
    let scratch = scratch::directory()?;
    let contenders =
        ContenderSet::prepare(&arguments.mpich, &arguments.only, &[MEASURE, FLOOD], scratch.path())?;
    let seconds = arguments.timeout.unwrap_or(if arguments.quick { 20 } else { 60 });
    let bench = Bench {
        arguments,
        contenders,
        plan,
        rounds: arguments.repeat.unwrap_or(if arguments.quick { 2 } else { 5 }),
        jobs: Jobs { limit: Duration::from_secs(seconds), shm_dir: settings.shm_dir.clone() },
        machine,
        settings: settings.to_variables().into_iter().collect(),
    };
    let samples = arguments.out.join(SAMPLES);
    let shown = samples.display().to_string();
    let key = bench.key()?;
    let mut store = Store::open(&samples, key.clone()).map_err(Failure::system(&shown))?;
    if arguments.fresh {
        store.close().map_err(Failure::system(&shown))?;
    }
    bench.measure(&mut store, &shown).inspect_err(|_| {
        eprintln!("finished jobs are in {shown}; the same command resumes the run");
    })?;
    let results = Results::new(&bench.contenders.ready, store.jobs());
    bench.report(&results, &key)?;
    store.close().map_err(Failure::system(&shown))?;
    Ok(u8::from(!results.is_complete() || bench.misses_requested()))
}

impl Bench<'_> {
    /// Hash of everything that determines the results. A job is identified by this key, its contender, its name and its
    /// round.
    fn key(&self) -> Result<String, Failure> {
        let plug_in = self.contenders.plug_in();
        let beside = plug_in.and_then(launch::session_library);
        let read = |path: &Path| std::fs::read(path).map_err(Failure::system(path.display().to_string()));
        let built = plug_in.into_iter().chain(beside.as_deref()).map(read).collect::<Result<Vec<_>, _>>()?;
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.to_str()?;
            let affects_run = ENVIRONMENT_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            affects_run.then(|| format!("{name}={}", value.to_string_lossy()))
        });
        let mut variables: Vec<String> = variables.collect();
        variables.sort();
        let Machine { processor, cores, kernel, load: _ } = &self.machine;
        let contenders = self.contenders.ready.iter().map(|contender| contender.word());
        let words = [
            env!("CARGO_PKG_VERSION").to_owned(),
            format!("{processor} {cores} {kernel}"),
            self.contenders.mpis().join("; "),
            format!("{:?}", self.settings),
            variables.join("\n"),
            contenders.collect::<Vec<_>>().join(" "),
            self.plan.describe(),
            format!("{} {}", self.rounds, self.jobs.limit.as_secs()),
        ];
        let header = MEASURE.header.map_or("", |(_, content)| content);
        let programs = [MEASURE.text, header, FLOOD.text];
        let words = words.iter().map(String::as_bytes).chain(programs.map(str::as_bytes));
        Ok(store::key(words.chain(built.iter().map(Vec::as_slice))))
    }

    /// Runs all rounds, without the jobs that are recorded already.
    fn measure(&self, store: &mut Store, shown: &str) -> Result<(), Failure> {
        let contenders = &self.contenders.ready;
        let all = u64::from(self.rounds) * (self.plan.jobs.len() * contenders.len()) as u64;
        if !store.jobs().is_empty() {
            let recorded = quantity::count(store.jobs().len() as u64);
            eprintln!("resuming: {recorded} of {all} jobs are in {shown} (--fresh starts anew)");
        }
        let bar = self.arguments.output.progress_bar(all);
        let mut turn = 0;
        for round in 1..=self.rounds {
            for &job in &self.plan.jobs {
                turn += 1;
                for &contender in jobs::rotated(contenders, turn) {
                    bar.set_message(format!("round {round}: {} over {}", job.word(), contender.word()));
                    if store.get(contender, job, round).is_none() && !store.has_failed(contender, job) {
                        let ended = self.measure_once(contender, job, round)?;
                        store.add(ended).map_err(Failure::system(shown))?;
                    }
                    bar.inc(1);
                }
            }
        }
        Ok(())
    }

    /// Runs one job.
    fn measure_once(&self, contender: Contender, job: Job, round: u32) -> Result<FinishedJob, Failure> {
        let (program, words) = self.plan.arguments(job);
        let launch = self.contenders.launch(contender, job.ranks, program, words);
        let watch = OtherLoad::begin();
        let result = self.jobs.run(&launch, free_memory::watch())?;
        let other_load = watch.share();
        let outcome = match result {
            Err(unfinished) => Outcome::Failed(unfinished.to_string()),
            Ok(output) => match self.plan.read(job, &output) {
                Ok(sample) => Outcome::Measured(sample),
                Err(why) => Outcome::Failed(format!("unexpected output: {why}")),
            },
        };
        let (run, load) = (String::new(), self.machine.load);
        Ok(FinishedJob { run, contender, job: job.word(), round, load, other_load, outcome })
    }

    /// Whether a required contender is missing: one of MPICH's transports, or one that the user named.
    fn misses_requested(&self) -> bool {
        let named = |contender: &Contender| self.arguments.only.contains(contender);
        let missing = self.contenders.missing.iter().map(|(contender, _)| contender);
        missing.into_iter().any(|contender| matches!(contender, Contender::Mpich(_)) || named(contender))
    }

    /// Writes the tables, the page and the record.
    fn report(&self, results: &Results, key: &str) -> Result<(), Failure> {
        let judged = targets::judge(results);
        let mpis = self.contenders.mpis();
        let record = RecordContent {
            run: key,
            machine: &self.machine,
            loads: &results.loads,
            other_load: results.other_load(),
            mpis: &mpis,
            rounds: self.rounds,
            quick: self.arguments.quick,
            timeout_s: self.jobs.limit.as_secs(),
            settings: self.settings.clone(),
            jobs: self.plan.describe(),
            missing: &self.contenders.missing,
            failures: &results.failures,
            targets: &judged,
            rows: results.rows(),
        };
        let record = Record::new("weir-bench-2", record);
        let warnings = self.warnings(results);
        let notes = self.notes(results, &mpis);
        let page = self.arguments.out.join(page::FILE);
        let content = page::Content {
            name: "weir bench",
            heading: "weir and the other transports on this host",
            parts: &[page::Part { heading: String::new(), results }],
            targets: &judged,
            notes: &notes,
            warnings: &warnings,
            record: &serde_json::to_value(&record).expect("records have string keys only"),
        };
        write(&page, &page::render(&content))?;
        let output = &self.arguments.output.record;
        output.print(format_args!("{}\n\n{}\n", table::render(results), table::targets(&judged)))?;
        output.print([notes, warnings].concat().join("\n"))?;
        output.print(format_args!("{}\npage: {}", summary_of(&judged), page.display()))?;
        output.write_record(&record)
    }

    /// Notes on how to read the numbers.
    fn notes(&self, results: &Results, mpis: &[String]) -> Vec<String> {
        let mut notes =
            comparison::notes(&self.machine_with_highest_load(results), &mpis.join(", "), self.rounds)
                .to_vec();
        if let Some(other_load) = results.other_load() {
            let percent = |share: f64| quantity::three_digits(100.0 * share);
            let (median, max) = (percent(other_load.median), percent(other_load.max));
            notes.push(format!(
                "Other work took {median} % of the cores during a job (median), {max} % at most."
            ));
        }
        notes.push(format!("Flood: {}.", self.plan.flood()));
        let missing = self.contenders.missing.iter();
        notes.extend(
            missing.map(|(contender, why)| format!("{} is not compared: {why}", contender.heading())),
        );
        let failures = results.failures.iter();
        notes.extend(failures.map(|FailedJob { contender, job, why }| {
            format!("{}, {job}: {why}; not tried again", contender.heading())
        }));
        notes
    }

    fn warnings(&self, results: &Results) -> Vec<String> {
        let mut warnings = Vec::from_iter(comparison::busy_warning(&self.machine_with_highest_load(results)));
        if let Some(other_load) =
            results.other_load().filter(|other_load| other_load.median > other_load::MAX_OTHER_LOAD)
        {
            warnings.push(format!(
                "Other work took {} % of the cores while jobs ran: measure again on an otherwise idle machine.",
                quantity::three_digits(100.0 * other_load.median)
            ));
        }
        if (self.rounds as usize) < verdict::MIN_SAMPLES {
            warnings.push(String::from(
                "Too few rounds for a spread: targets are not judged. Use --repeat 3 or more.",
            ));
        }
        if self.arguments.quick {
            warnings.push(String::from("--quick: each value was measured for 0.05 s only."));
        }
        warnings
    }

    /// The host, with the highest load before any of the commands that measured.
    fn machine_with_highest_load(&self, results: &Results) -> Machine {
        let load = results.loads.iter().copied().fold(0.0, f64::max);
        Machine { load, ..self.machine.clone() }
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(Failure::system(format!("cannot write {}", path.display())))
}
