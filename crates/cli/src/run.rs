//! `weir run`: an MPI program over weir, and a report of what weir did for it.
//!
//! All that can be wrong is found before anything starts. Then the MPI's own launcher runs the program with our standard
//! streams; each endpoint leaves its counters in a directory of this run, which is read at the end, also if ranks were
//! killed; with `--report` samples too, which become a page.

use crate::page;
use crate::report::Job;
use crate::tune::saved::{self, Saved};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};
use weir_engine::config::{self, PREFIX, Settings};
use weir_engine::stats::{self, Reports};
use weir_engine::trace;
use weir_mpi::find::{self, Mpi, Surroundings};
use weir_mpi::launch::{Carrier, Launch};
use weir_mpi::{job, mailboxes, program, provider_file, scratch};
use weir_output::Failure;
use weir_output::write::{check_json_target, write_json};

/// Where counters go in the directory of a run; `weir explain` looks there.
pub const STATS: &str = "stats";
/// Version of the JSON report; changes when a reader would have to.
const SCHEMA: &str = "weir-run-1";

/// A switch on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

/// Options of `weir run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit status: the program's (128 and the signal's number if a signal ended the launcher); 2 for a wrong option or setting, \
126 or 127 if the program or the MPI cannot be run or found, 1 for other failures of weir itself.

What `weir tune --save` has kept for this host holds where neither an option nor the environment gives the setting.

The MPI is searched for in this order: --mpi, WEIR_MPI (as --mpi), the installation that the program lies in (PREFIX/bin/mpiexec \
for PREFIX/bin/python; not /usr, /usr/local or the home directory), an active Python virtual environment, PATH, I_MPI_ROOT, \
weir's own environments (WEIR_ENV_PATH, or ../env beside the command); one whose library the program is linked with goes before others. The program is searched for in PATH, then among the \
programs of the MPI and of weir's own environments. The plug-in libweir-fi.so is searched for in WEIR_PROVIDER_PATH, then in \
../lib and ../lib/weir beside the command.

Examples:
  weir run -n 4 -- ./my_mpi_program --its-option
  weir run -n 4 --mpi mpich -- IMB-MPI1 PingPong
  weir run -n 8 --mailbox-slots 16 --piggyback off --json report.json -- python job.py
  weir run -n 8 --report out -- ./my_mpi_program      then open out/report.html")]
pub struct RunArguments {
    /// Number of ranks.
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// The MPI: mpich, openmpi, intel, the prefix of an installation, or an mpiexec.
    #[arg(long, value_name = "MPI")]
    mpi: Option<String>,
    /// Flow control: unlimited, hardware, static, static-connection, adaptive or dynamic (FI_WEIR_FLOW).
    #[arg(long, value_name = "SCHEME")]
    flow: Option<String>,
    /// Return credits with messages of the other direction (FI_WEIR_PIGGYBACK).
    #[arg(long, value_name = "on|off", hide_possible_values = true)]
    piggyback: Option<Switch>,
    /// Data slots of 64 bytes in each mailbox; 0: chosen by scheme and ranks, see `weir settings` (FI_WEIR_MAILBOX_SLOTS).
    #[arg(long, value_name = "N")]
    mailbox_slots: Option<String>,
    /// Slots for credit packets, for each sender (FI_WEIR_CREDIT_SLOTS).
    #[arg(long, value_name = "N")]
    credit_slots: Option<String>,
    /// Any setting, see `weir settings`. Can be repeated.
    #[arg(long, value_name = "FI_WEIR_X=VALUE")]
    set: Vec<String>,
    /// Write the report as JSON to FILE, or to standard output after the program's.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
    /// Write a page with credits, stalls, memory and packets over time to DIR/report.html; DIR is made if it is not there.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// No notes and no table (errors are still told).
    #[arg(long, short)]
    quiet: bool,
    /// Give ARG to the MPI's launcher. Can be repeated.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    launcher_arg: Vec<String>,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM ARGS")]
    command: Vec<String>,
}

/// All that `weir run --json` tells.
#[derive(Debug, Serialize)]
struct Record<'a> {
    schema: &'static str,
    command: &'a [String],
    /// What was started: the launcher with its arguments.
    started: Vec<String>,
    ranks_started: u32,
    mpi: &'a Mpi,
    provider: &'a Path,
    settings: BTreeMap<&'static str, String>,
    exit_status: u8,
    elapsed_s: f64,
    /// Whether any endpoint of weir was opened.
    used_weir: bool,
    #[serde(flatten)]
    job: &'a Job,
    remarks: &'a [String],
}

/// A job that has passed all checks.
struct Checked {
    settings: Settings,
    chosen: BTreeMap<String, String>,
    /// What of that `weir tune` has saved, and where.
    tuned: Option<String>,
    mpi: Mpi,
    provider: PathBuf,
    program: PathBuf,
}

/// Runs the job and reports. The result is the exit status.
///
/// # Errors
/// [`Failure`], most often before anything was started.
pub fn run(arguments: &RunArguments) -> Result<u8, Failure> {
    let checked = check(arguments)?;
    let note = |line: &str| {
        if !arguments.quiet {
            eprintln!("weir: {line}");
        }
    };
    report_removed(&checked.settings.shm_dir, &[], &note);
    if let Some(directory) = &arguments.report {
        std::fs::create_dir_all(directory).map_err(Failure::system(format!("{}", directory.display())))?;
    }

    let scratch = scratch::directory()?;
    let provider_directory = provider_file::isolate(&checked.provider, scratch.path())?;
    let stats_directory = existing_or_new_directory(&checked.settings.stats_dir, scratch.path().join(STATS))?;
    let before = files_in(&stats_directory);
    let trace_directory = match &arguments.report {
        Some(_) => {
            Some(existing_or_new_directory(&checked.settings.trace_dir, scratch.path().join("trace"))?)
        }
        None => None,
    };
    let traced_before = trace_directory.as_deref().map(files_in).unwrap_or_default();

    let carrier = Carrier::Weir(&provider_directory);
    let mut launch = Launch::new(&checked.mpi, arguments.ranks, carrier, &arguments.launcher_arg);
    for (variable, value) in &checked.chosen {
        launch.set(variable, value);
    }
    launch.set("FI_WEIR_STATS", &stats_directory);
    if let Some(directory) = &trace_directory {
        launch.set("FI_WEIR_TRACE", directory);
    }
    launch.program(&checked.program, &arguments.command[1..]);
    for line in launch.overridden(|variable| std::env::var_os(variable)) {
        note(&format!("note: {line}"));
    }
    if let Some(tuned) = &checked.tuned {
        note(tuned);
    }
    note(&format!(
        "{} on {} under {}",
        checked.program.display(),
        number_of_ranks(u64::from(arguments.ranks)),
        checked.mpi.describe()
    ));

    let started = Instant::now();
    let status = job::run_in_foreground(&mut launch.command())
        .map_err(Failure::system(format!("{}", checked.mpi.mpiexec.display())))?;
    let elapsed = started.elapsed();
    // Every process that has opened an endpoint has left a file. They are read again once it has ended.
    let processes =
        read_job(&stats_directory, &before)?.endpoints.iter().map(|left| left.pid as u32).collect::<Vec<_>>();
    report_removed(&checked.settings.shm_dir, &processes, &note);

    let reports = read_job(&stats_directory, &before)?;
    let job = Job::new(&reports);
    let mut remarks = job.remarks(arguments.ranks);
    if job.ranks.is_empty() {
        remarks.push(unused_reason(&checked, status));
    }
    tell(arguments, &checked, &launch, &job, &remarks, (status, elapsed))?;
    if let (Some(directory), Some(traces)) = (&arguments.report, &trace_directory) {
        let how = format!(
            "{}, {}, {:.2} s, exit status {}",
            number_of_ranks(u64::from(arguments.ranks)),
            checked.mpi.describe(),
            elapsed.as_secs_f64(),
            job::exit_code(status)
        );
        let mut traces = trace::read_dir(traces).map_err(Failure::system(format!("{}", traces.display())))?;
        traces.traces.retain(|trace| !traced_before.contains(&trace.path));
        remarks.extend(
            traces
                .skipped
                .iter()
                .map(|file| format!("trace not read: {}: {}", file.path.display(), file.why)),
        );
        let settings = checked.settings.to_variables();
        let content = page::Content {
            command: &arguments.command,
            how: &how,
            settings: settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            remarks: &remarks,
            job: &job,
            endpoints: &reports.endpoints,
            traces: traces.traces,
        };
        let path = directory.join(page::FILE);
        std::fs::write(&path, page::render(content))
            .map_err(Failure::system(format!("{}", path.display())))?;
        note(&format!("the page is {}", path.display()));
    }
    Ok(job::exit_code(status))
}

/// Checks everything that can be checked without starting the program.
fn check(arguments: &RunArguments) -> Result<Checked, Failure> {
    check_json_target(arguments.json.as_deref())?;
    let mut chosen = chosen_settings(arguments)?;
    let tuned = add_tuned(&mut chosen)?;
    let inherited = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    config::check_names(inherited.chain(chosen.keys().cloned()))?;
    let settings = Settings::from_lookup(|variable| {
        let from_environment =
            || std::env::var_os(variable).map(|value| value.to_string_lossy().into_owned());
        chosen.get(variable).cloned().or_else(from_environment)
    })?;
    settings.quota(arguments.ranks)?;

    let mut surroundings = Surroundings::of_process();
    // If it is not there, that is told below.
    surroundings.program = program::find(&arguments.command[0], surroundings.path.as_deref(), &[]).ok();
    let mpi = find::choose(arguments.mpi.as_deref(), &surroundings)?;
    let mut also = vec![mpi.bin_dir().to_owned()];
    also.extend(surroundings.private_bins());
    also.dedup();
    let program = program::find(&arguments.command[0], surroundings.path.as_deref(), &also)?;
    let provider = provider_file::find_for_this_command()?;
    Ok(Checked { settings, chosen, tuned, mpi, provider, program })
}

/// The settings that the options ask for, unchecked.
fn chosen_settings(arguments: &RunArguments) -> Result<BTreeMap<String, String>, Failure> {
    let mut chosen = BTreeMap::new();
    let mut choose = |variable: &str, value: &str| match chosen.insert(variable.to_owned(), value.to_owned())
    {
        Some(other) if other != value => {
            Err(Failure::Usage(format!("{variable} is given twice: {other} and {value}")))
        }
        _ => Ok(()),
    };
    let piggyback = arguments.piggyback.map(|switch| if switch == Switch::On { "1" } else { "0" });
    let options = [
        ("FI_WEIR_FLOW", arguments.flow.as_deref()),
        ("FI_WEIR_PIGGYBACK", piggyback),
        ("FI_WEIR_MAILBOX_SLOTS", arguments.mailbox_slots.as_deref()),
        ("FI_WEIR_CREDIT_SLOTS", arguments.credit_slots.as_deref()),
    ];
    for (variable, value) in options {
        if let Some(value) = value {
            choose(variable, value)?;
        }
    }
    for assignment in &arguments.set {
        match assignment.split_once('=') {
            Some((variable, value)) if variable.starts_with(PREFIX) => choose(variable, value)?,
            _ => {
                return Err(Failure::Usage(format!(
                    "--set {assignment}: a setting is given as FI_WEIR_NAME=VALUE (see `weir settings`)"
                )));
            }
        }
    }
    Ok(chosen)
}

/// Adds what `weir tune` has saved for this host, as far as neither the options nor the environment say something else. Returns
/// a note of it.
fn add_tuned(chosen: &mut BTreeMap<String, String>) -> Result<Option<String>, Failure> {
    let Some(Saved { path, settings: saved }) = saved::of_this_host()? else { return Ok(None) };
    config::check_names(saved.keys().cloned())
        .map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
    let given = |variable: &str| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    let taken: Vec<_> = saved
        .into_iter()
        .filter(|(variable, _)| !chosen.contains_key(variable) && !given(variable))
        .collect();
    let words: Vec<_> = taken.iter().map(|(variable, value)| format!("{variable}={value}")).collect();
    chosen.extend(taken);
    Ok((!words.is_empty())
        .then(|| format!("{} (saved by `weir tune` in {})", words.join(" "), path.display())))
}

/// Removes stale mailboxes; `processes` have just been told to end.
fn report_removed(directory: &Path, processes: &[u32], note: &impl Fn(&str)) {
    match mailboxes::remove_after_run(directory, processes) {
        Ok((removed, left)) => {
            if !removed.is_empty() {
                note(&format!("removed {} stale mailboxes from {}", removed.len(), directory.display()));
            }
            for process in left {
                note(&format!(
                    "process {process} of this run has not ended; `weir clean` removes its mailbox when it has"
                ));
            }
        }
        Err(error) => {
            note(&format!("{}: stale mailboxes could not be looked for: {error}", directory.display()))
        }
    }
}

fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// The directory that a setting names, or one of our own.
fn existing_or_new_directory(given: &Option<PathBuf>, own: PathBuf) -> Result<PathBuf, Failure> {
    if let Some(directory) = given {
        return Ok(directory.clone());
    }
    std::fs::create_dir(&own).map_err(Failure::system(format!("{}", own.display())))?;
    Ok(own)
}

/// Reads the counters; files that were there before the run are somebody else's.
fn read_job(directory: &Path, before: &[PathBuf]) -> Result<Reports, Failure> {
    let mut reports =
        stats::read_dir(directory).map_err(Failure::system(format!("{}", directory.display())))?;
    reports.endpoints.retain(|endpoint| !before.contains(&endpoint.path));
    reports.skipped.retain(|file| !before.contains(&file.path));
    Ok(reports)
}

/// The likeliest reason why no endpoint was opened.
fn unused_reason(checked: &Checked, status: ExitStatus) -> String {
    let linked = program::linked_mpi(&checked.program);
    let foreign = linked.filter(|library| !checked.mpi.kind.runs(library));
    let hint = match foreign {
        Some(library) => format!(
            "it is linked with {library}, which is not the library of {}; choose its MPI with --mpi",
            checked.mpi.kind.name()
        ),
        None if status.success() => format!(
            "it ended well without opening an endpoint; is it an MPI program, for {}?",
            checked.mpi.kind.name()
        ),
        None => String::from(
            "it failed before it opened an endpoint; its own messages are above, `weir doctor` checks this host",
        ),
    };
    format!("the program did not use weir: {hint}")
}

fn number_of_ranks(ranks: u64) -> String {
    if ranks == 1 { String::from("1 rank") } else { format!("{ranks} ranks") }
}

fn tell(
    arguments: &RunArguments,
    checked: &Checked,
    launch: &Launch,
    job: &Job,
    remarks: &[String],
    (status, elapsed): (ExitStatus, Duration),
) -> Result<(), Failure> {
    if !arguments.quiet && !job.ranks.is_empty() {
        eprintln!(
            "\nweir: {}, {:.2} s, exit status {}",
            number_of_ranks(job.ranks.len() as u64),
            elapsed.as_secs_f64(),
            job::exit_code(status)
        );
        eprintln!("{}", job.table());
    }
    // What is wrong is told also quietly.
    for remark in remarks {
        eprintln!("weir: {remark}");
    }
    let Some(target) = &arguments.json else { return Ok(()) };
    let record = Record {
        schema: SCHEMA,
        command: &arguments.command,
        started: launch.words().map(|word| word.to_string_lossy().into_owned()).collect(),
        ranks_started: arguments.ranks,
        mpi: &checked.mpi,
        provider: &checked.provider,
        settings: checked.settings.to_variables().into_iter().collect(),
        exit_status: job::exit_code(status),
        elapsed_s: elapsed.as_secs_f64(),
        used_weir: !job.ranks.is_empty(),
        job,
        remarks,
    };
    write_json(&record, target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        run: RunArguments,
    }

    fn parse(words: &str) -> RunArguments {
        Only::try_parse_from(std::iter::once("run").chain(words.split(' '))).unwrap().run
    }

    #[test]
    fn options_become_settings() {
        let arguments = parse(
            "-n 4 --flow static --piggyback off --mailbox-slots 16 --credit-slots 2 --set FI_WEIR_SPIN=5 --json -- prog -n 1",
        );
        assert_eq!(arguments.command, ["prog", "-n", "1"]);
        assert_eq!(arguments.json.as_deref(), Some("-"));
        let chosen = chosen_settings(&arguments).unwrap();
        let chosen: Vec<_> = chosen.iter().map(|(variable, value)| format!("{variable}={value}")).collect();
        assert_eq!(
            chosen,
            [
                "FI_WEIR_CREDIT_SLOTS=2",
                "FI_WEIR_FLOW=static",
                "FI_WEIR_MAILBOX_SLOTS=16",
                "FI_WEIR_PIGGYBACK=0",
                "FI_WEIR_SPIN=5"
            ]
        );
    }

    #[test]
    fn contradictory_and_unknown_settings_are_rejected() {
        let refusal = |words: &str| chosen_settings(&parse(words)).unwrap_err().to_string();
        assert_eq!(
            refusal("-n 1 --flow static --set FI_WEIR_FLOW=unlimited -- p"),
            "FI_WEIR_FLOW is given twice: static and unlimited"
        );
        assert_eq!(
            refusal("-n 1 --set FI_PROVIDER=tcp -- p"),
            "--set FI_PROVIDER=tcp: a setting is given as FI_WEIR_NAME=VALUE (see `weir settings`)"
        );
        assert!(refusal("-n 1 --set FI_WEIR_FLOW -- p").starts_with("--set FI_WEIR_FLOW: "));
    }

    #[test]
    fn the_report_can_go_to_a_file() {
        assert_eq!(parse("-n 1 --json out.json -- p").json.as_deref(), Some("out.json"));
        assert_eq!(parse("-n 1 -- p").json, None);
    }
}
