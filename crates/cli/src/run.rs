//! `weir run`: runs an MPI program over weir and reports counters.
//!
//! Settings come from the options, the environment, and the file that `weir tune` has saved. Everything that can be
//! checked is checked before the program starts. The MPI's own launcher then runs the program with the standard streams
//! of this command. Each endpoint writes its counters into a directory of this run. With `--report` it also writes
//! samples, from which the page is made. The files remain readable if ranks are killed. [`after`] has the steps after
//! the program's end.

mod after;
mod collectives;

use crate::hosts::{JobHosts, RunDirectories};
use crate::tune::saved::{self, Saved};
use after::{Directory, Ended, remove_stale_mailboxes};
use clap::{Args, ValueEnum};
use collectives::Collectives;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;
use weir_engine::config::{self, PREFIX, ReceiverBound, Settings};
use weir_link::shm;
use weir_mpi::find::{self, Mpi, SearchEnvironment};
use weir_mpi::hosts::{Hosts, Share};
use weir_mpi::launch::{JobTransport, Launch, SSH};
use weir_mpi::{job, program, provider_file, scratch};
use weir_output::Failure;
use weir_output::quantity;
use weir_output::write::check_json_target;

/// Directory of the counters, inside the directory of a run. `weir explain` reads it.
pub const STATS: &str = "stats";

/// The value of an option that switches something on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// Options of `weir run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  weir run -n 4 -- ./my_mpi_program --its-option
  weir run -n 4 --mpi mpich -- IMB-MPI1 PingPong
  weir run -n 8 --mailbox-slots 16 --piggyback off --json report.json -- python job.py
  weir run -n 8 --report out -- ./my_mpi_program      (then open out/report.html)
  weir run -n 8 --hosts hosts.txt -- ./my_mpi_program

Exit status, once the program has ended:
  0      the program succeeded
  1      the program succeeded, but weir failed to report; an error line says why
  other  the exit status of the program; 128 + N if signal N ended the launcher
Exit status, if the program was not started:
  1      a failure of the system
  2      a wrong option or setting
  126    the program is not executable
  127    the program or an MPI was not found

Where settings come from, first to last:
  1. options: --flow, --piggyback, --collectives, --mailbox-slots, --credit-slots, --set
  2. the environment: FI_WEIR_*
  3. the file of this host that `weir tune --save` has written
  4. the defaults, see `weir settings`

Where weir searches for the MPI, first to last:
  1. --mpi, then WEIR_MPI; both take the same values
  2. the installation of the program: PREFIX/bin/mpiexec for PREFIX/bin/PROGRAM,
     except in /usr, /usr/local and the home directory
  3. an active Python virtual environment
  4. PATH, then I_MPI_ROOT
  5. weir's own environments: WEIR_ENV_PATH, or ../env relative to the command
In 2 to 5, an MPI whose library the program is linked with comes before the others.

Where weir searches for the program, first to last:
  PATH, the directory of mpiexec, weir's own environments
Where weir searches for libweir-fi.so, first to last:
  WEIR_PROVIDER_PATH, then ../lib and ../lib/weir relative to the command

The file of --hosts has one host on each line: HOST, HOST:RANKS or HOST slots=RANKS. Hosts with a number are filled in
the order of the file; hosts without one share the remaining ranks evenly. `weir` and the program are at the same place
on every host. The launcher of the MPI starts the ranks over ssh, and weir gets their counters over ssh.")]
pub struct RunArguments {
    /// Number of ranks to start.
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// Start the ranks on the hosts that FILE lists.
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// The program that takes the place of ssh, for --hosts; it gets HOST COMMAND, or WEIR_REMOTE_SHELL names it.
    #[arg(long, value_name = "PROGRAM", requires = "hosts")]
    remote_shell: Option<String>,
    /// The MPI: mpich, openmpi, intel, an installation's prefix, or an mpiexec; default: see below.
    #[arg(long, value_name = "MPI")]
    mpi: Option<String>,
    /// Flow-control scheme: unlimited, hardware, static, static-connection, adaptive, dynamic or demand (FI_WEIR_FLOW).
    #[arg(long, value_name = "SCHEME")]
    flow: Option<String>,
    /// Return credits with data packets of the other direction (FI_WEIR_PIGGYBACK).
    #[arg(long, value_name = "on|off", hide_possible_values = true)]
    piggyback: Option<Switch>,
    /// Do collective operations of ranks of one node in shared memory (FI_WEIR_COLLECTIVES); default: on.
    #[arg(long, value_name = "on|off", hide_possible_values = true)]
    collectives: Option<Switch>,
    /// Data slots of 64 bytes in each mailbox (FI_WEIR_MAILBOX_SLOTS); 0: the scheme and the number of ranks decide.
    #[arg(long, value_name = "N")]
    mailbox_slots: Option<String>,
    /// Slots for credit packets, for each sender (FI_WEIR_CREDIT_SLOTS).
    #[arg(long, value_name = "N")]
    credit_slots: Option<String>,
    /// Set any setting (see `weir settings`). Can be repeated.
    #[arg(long, value_name = "FI_WEIR_X=VALUE")]
    set: Vec<String>,
    /// Write the counters as JSON to FILE. Without FILE: to standard output, after the program's output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
    /// Write DIR/report.html: a page with credits, stalls, memory and packets over time. Creates DIR.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Print errors and warnings only: no notes and no table.
    #[arg(long, short)]
    quiet: bool,
    /// Pass ARG to the MPI's launcher. Can be repeated.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    launcher_arg: Vec<String>,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM ARGS")]
    command: Vec<String>,
}

/// A job that has passed all checks.
struct Checked {
    settings: Settings,
    /// The memory of each receiver for incoming messages, in schemes with credits.
    bound: Option<ReceiverBound>,
    chosen: BTreeMap<String, String>,
    /// A note that names the settings saved by `weir tune`, if any apply.
    tuned: Option<String>,
    mpi: Mpi,
    provider: PathBuf,
    collectives: Collectives,
    program: PathBuf,
    hosts: Option<Hosts>,
}

/// The remote shell that an option or the environment names.
pub fn remote_shell(option: Option<&str>) -> String {
    let from_environment = || std::env::var("WEIR_REMOTE_SHELL").ok().filter(|value| !value.is_empty());
    option.map(str::to_owned).or_else(from_environment).unwrap_or_else(|| String::from(SSH))
}

/// Runs the job and reports. Returns the exit status.
///
/// # Errors
/// [`Failure`]: the program was not started.
pub fn run(arguments: &RunArguments) -> Result<u8, Failure> {
    let checked = check(arguments)?;
    let note = |line: &str| {
        if !arguments.quiet {
            eprintln!("weir: {line}");
        }
    };
    if let Err(failure) = remove_stale_mailboxes(&checked.settings.shm_dir, &[], &note) {
        note(&failure.to_string());
    }
    if let Some(directory) = &arguments.report {
        let cannot_create = format!("--report: cannot create the directory {}", directory.display());
        std::fs::create_dir_all(directory).map_err(Failure::system(cannot_create))?;
    }

    let scratch = scratch::directory()?;
    let provider_directory = provider_file::isolate(&checked.provider, scratch.path())?;
    let stats_directory = existing_or_new_directory(&checked.settings.stats_dir, scratch.path().join(STATS))?;
    let counters = Directory::new(stats_directory);
    let traces = match &arguments.report {
        Some(_) => {
            let own = scratch.path().join("trace");
            Some(Directory::new(existing_or_new_directory(&checked.settings.trace_dir, own)?))
        }
        None => None,
    };

    let shares = match &checked.hosts {
        Some(hosts) => hosts.share(arguments.ranks)?,
        None => vec![],
    };
    let remote_shell = remote_shell(arguments.remote_shell.as_deref());
    let hosts = match &checked.hosts {
        Some(_) => Some(JobHosts::begin(
            &shares,
            &remote_shell,
            RunDirectories {
                run: scratch.path(),
                stats: counters.path(),
                traces: traces.as_ref().map(Directory::path),
                shm: &checked.settings.shm_dir,
                provider: &checked.provider,
            },
        )?),
        None => None,
    };

    let job_transport = JobTransport::Weir(&provider_directory);
    let mut launch = Launch::new(&checked.mpi, arguments.ranks, job_transport, &arguments.launcher_arg);
    for (variable, value) in &checked.chosen {
        launch.set(variable, value);
    }
    if let Some(layers) = checked.settings.links.core_layers() {
        launch.show_layers(&layers);
    }
    launch.set("FI_WEIR_STATS", counters.path());
    if let Collectives::Preload(library) = &checked.collectives {
        launch.preload_last(library);
    }
    if let Some(directory) = &traces {
        launch.set("FI_WEIR_TRACE", directory.path());
    }
    if checked.hosts.is_some() {
        let file = scratch.path().join("hosts");
        let cannot_write = Failure::system(file.display().to_string());
        launch.across(&checked.mpi, &shares, &remote_shell, &file).map_err(cannot_write)?;
    }
    launch.program(&checked.program, &arguments.command[1..]);
    for line in launch.overridden(|variable| std::env::var_os(variable)) {
        note(&format!("note: {line}"));
    }
    if let Some(tuned) = &checked.tuned {
        note(tuned);
    }
    if let Collectives::Messages(why) = &checked.collectives {
        note(&format!("note: collective operations use messages: {why}"));
    }
    note(&format!(
        "{} on {} under {}",
        checked.program.display(),
        number_of_ranks(u64::from(arguments.ranks)),
        checked.mpi.describe()
    ));
    if !shares.is_empty() {
        note(&describe_shares(&shares));
    }
    if let Some(bound) = &checked.bound {
        note(&describe_bound(bound));
    }

    let started = Instant::now();
    let status = job::run_in_foreground(&mut launch.command())
        .map_err(Failure::system(format!("{}", checked.mpi.mpiexec.display())))?;
    let mut ended = Ended {
        arguments,
        checked: &checked,
        launch: &launch,
        status,
        elapsed: started.elapsed(),
        counters,
        traces,
        hosts,
        gathered_directory: scratch.path().join("gathered"),
    };
    Ok(ended.report(&note))
}

/// Checks everything that can be checked without starting the program.
fn check(arguments: &RunArguments) -> Result<Checked, Failure> {
    check_json_target(arguments.json.as_deref())?;
    let hosts = arguments.hosts.as_deref().map(Hosts::read).transpose()?;
    if let Some(hosts) = &hosts {
        hosts.share(arguments.ranks)?;
    }
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
    let space = shm::file_system_space(&settings.shm_dir);
    let bound =
        settings.receiver_bound(arguments.ranks, hosts.is_some(), space, shm::has_unlimited_memory)?;

    let mut search_environment = SearchEnvironment::of_process();
    // The search below reports a program that is missing.
    search_environment.program =
        program::find(&arguments.command[0], search_environment.path.as_deref(), &[]).ok();
    let mpi = find::choose(arguments.mpi.as_deref(), &search_environment)?;
    let mut also = vec![mpi.bin_dir().to_owned()];
    also.extend(search_environment.private_bins());
    also.dedup();
    let program = program::find(&arguments.command[0], search_environment.path.as_deref(), &also)?;
    let provider = provider_file::find_for_this_command()?;
    let is_asked_for = chosen.contains_key(collectives::VARIABLE)
        || std::env::var_os(collectives::VARIABLE).is_some_and(|value| !value.is_empty());
    let collectives = Collectives::find(&settings, &provider, hosts.is_some(), is_asked_for)?;
    Ok(Checked { settings, bound, chosen, tuned, mpi, provider, collectives, program, hosts })
}

/// The settings that the options give, unchecked.
fn chosen_settings(arguments: &RunArguments) -> Result<BTreeMap<String, String>, Failure> {
    let mut chosen = BTreeMap::new();
    let mut choose = |variable: &str, value: &str| match chosen.insert(variable.to_owned(), value.to_owned())
    {
        Some(other) if other != value => {
            Err(Failure::Usage(format!("{variable} has two values: {other} and {value}; give one")))
        }
        _ => Ok(()),
    };
    let value = |switch: Switch| if switch == Switch::On { "1" } else { "0" };
    let options = [
        ("FI_WEIR_FLOW", arguments.flow.as_deref()),
        ("FI_WEIR_PIGGYBACK", arguments.piggyback.map(value)),
        (collectives::VARIABLE, arguments.collectives.map(value)),
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
                    "--set {assignment}: the form is --set FI_WEIR_NAME=VALUE; `weir settings` lists the names"
                )));
            }
        }
    }
    Ok(chosen)
}

/// Adds the settings that `weir tune` has saved for this host, unless an option or the environment gives them. Returns a
/// note that names them.
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

fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// The directory that a setting names, or a new one at `own`.
fn existing_or_new_directory(given: &Option<PathBuf>, own: PathBuf) -> Result<PathBuf, Failure> {
    if let Some(directory) = given {
        return Ok(directory.clone());
    }
    std::fs::create_dir(&own).map_err(Failure::system(format!("{}", own.display())))?;
    Ok(own)
}

fn describe_bound(bound: &ReceiverBound) -> String {
    let further = match bound.per_message() {
        0 => String::new(),
        bytes => format!(", and {bytes} B for each unexpected one"),
    };
    let datagrams = match bound.datagrams {
        0 => String::new(),
        bytes => format!(", {} of it for datagrams", quantity::bytes(bytes)),
    };
    let all = quantity::bytes(bound.bounded());
    format!("a receiver keeps at most {all} for incoming messages{datagrams}{further}")
}

fn describe_shares(shares: &[Share<'_>]) -> String {
    const MOST_NAMED: usize = 8;
    let named: Vec<_> =
        shares.iter().take(MOST_NAMED).map(|(host, ranks)| format!("{host} {ranks}")).collect();
    let more = match shares.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more hosts"),
    };
    format!("ranks of each host: {}{more}", named.join(", "))
}

fn number_of_ranks(ranks: u64) -> String {
    if ranks == 1 { String::from("1 rank") } else { format!("{ranks} ranks") }
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
    fn the_bound_of_a_receiver_is_one_number() {
        let bound = ReceiverBound {
            mailbox: 1 << 20,
            payload: 2 << 20,
            envelopes: None,
            peers: 0,
            spare: 0,
            datagrams: 0,
        };
        assert_eq!(
            describe_bound(&bound),
            "a receiver keeps at most 3.00 MiB for incoming messages, and 64 B for each unexpected one"
        );
        let bound = ReceiverBound { envelopes: Some(1 << 20), ..bound };
        assert_eq!(describe_bound(&bound), "a receiver keeps at most 4.00 MiB for incoming messages");
        let bound = ReceiverBound { datagrams: 3 << 20, ..bound };
        let text = "a receiver keeps at most 7.00 MiB for incoming messages, 3.00 MiB of it for datagrams";
        assert_eq!(describe_bound(&bound), text);
    }

    #[test]
    fn options_become_settings() {
        let arguments = parse(
            "-n 4 --flow static --piggyback off --collectives on --mailbox-slots 16 --credit-slots 2 --set FI_WEIR_SPIN=5 \
             --json -- prog -n 1",
        );
        assert_eq!(arguments.command, ["prog", "-n", "1"]);
        assert_eq!(arguments.json.as_deref(), Some("-"));
        let chosen = chosen_settings(&arguments).unwrap();
        let chosen: Vec<_> = chosen.iter().map(|(variable, value)| format!("{variable}={value}")).collect();
        assert_eq!(
            chosen,
            [
                "FI_WEIR_COLLECTIVES=1",
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
            "FI_WEIR_FLOW has two values: static and unlimited; give one"
        );
        assert_eq!(
            refusal("-n 1 --set FI_PROVIDER=tcp -- p"),
            "--set FI_PROVIDER=tcp: the form is --set FI_WEIR_NAME=VALUE; `weir settings` lists the names"
        );
        assert!(refusal("-n 1 --set FI_WEIR_FLOW -- p").starts_with("--set FI_WEIR_FLOW: "));
    }

    #[test]
    fn the_report_can_go_to_a_file() {
        assert_eq!(parse("-n 1 --json out.json -- p").json.as_deref(), Some("out.json"));
        assert_eq!(parse("-n 1 -- p").json, None);
    }
}
