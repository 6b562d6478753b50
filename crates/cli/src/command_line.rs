//! The command line of `weir`: all commands, and the function that performs each. It also turns what clap says about a
//! wrong command line into one line.
//!
//! The command tree is also read by `weir reference` and by the tests that check the documents.

use crate::{clean, doctor, explain, hosts, nic, reference, run, settings, tune};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;
use weir_bench::{engine_pair, lock, node_group};
use weir_lab::{calibrate, reproduce, sim};
use weir_mpi::job;
use weir_output::Failure;

/// Runs unmodified MPI programs over weir, a libfabric provider with credit-based flow control.
#[derive(Parser)]
#[command(
    name = "weir",
    version,
    max_term_width = 110,
    after_help = "\
First steps: `weir doctor` (what works on this host), `weir run -n 4 -- PROGRAM`, `weir bench pingpong`, `weir settings`.

To use weir with your own mpiexec, set what `weir doctor` prints for your MPI; all settings are environment variables."
)]
pub struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run an MPI program over weir and report messages, packets, credits, stalls and memory.
    Run(run::RunArguments),
    /// Check what works on this host, and say what to change where something does not.
    Doctor(doctor::DoctorArguments),
    /// Compare weir with all other transports on this host.
    Bench(weir_bench::BenchArguments),
    /// Measure what is best on this host, and keep it for `weir run`.
    Tune(tune::TuneArguments),
    /// Repeat published experiments in the simulator, and compare point by point.
    Reproduce(reproduce::ReproduceArguments),
    /// Fit the modelled networks to published times, and report residuals.
    #[command(subcommand)]
    Calibrate(calibrate::CalibrateCommand),
    /// Run the worlds of a plan in the simulator.
    Sim(sim::SimArguments),
    /// Tell who waits for whose credit in jobs that are running now.
    Explain(explain::ExplainArguments),
    /// Remove mailboxes that crashed jobs have left in shared memory.
    Clean(clean::CleanArguments),
    /// Attach programs to the kernel that answer for processes: changes of words, and barriers.
    #[command(subcommand)]
    Nic(nic::NicCommand),
    /// List all settings (environment variables FI_WEIR_*).
    #[command(after_help = settings::text())]
    Settings,
    /// Write what is generated from the command itself: reference pages, man pages, shell completions.
    #[command(hide = true)]
    Reference(reference::ReferenceArguments),
    /// Helper process of `weir run --hosts` and `weir doctor --hosts` on another host.
    #[command(hide = true)]
    HostHelper,
    /// Helper process of `weir doctor`.
    #[command(hide = true)]
    Probe(doctor::memory::ProbeArguments),
    /// Helper process of `weir tune` and `weir bench native`: the other side.
    #[command(hide = true, name = engine_pair::HELPER)]
    NativePeer(engine_pair::HelperArguments),
    /// Helper process of `weir bench node-group`: a member of the group.
    #[command(hide = true, name = node_group::HELPER)]
    NodeGroupMember(node_group::MemberArguments),
    /// Helper process of `weir bench lock`: a rank.
    #[command(hide = true, name = lock::HELPER)]
    LockMember(lock::MemberArguments),
    /// Helper process of `weir bench overhead`, to be run under callgrind.
    #[command(hide = true, name = "bench-instructions")]
    BenchInstructions(weir_bench::workload::WorkloadArguments),
}

impl Command {
    /// Whether it runs worlds in the simulator, in this process.
    fn simulates(&self) -> bool {
        matches!(self, Command::Sim(_) | Command::Reproduce(_) | Command::Calibrate(_))
    }
}

/// Parses the arguments of this process and performs the command. Returns the exit status.
pub fn main() -> ExitCode {
    if let Err(error) = job::exit_on_closed_pipe() {
        eprintln!("weir: SIGPIPE: {error}");
    }
    let result = match CommandLine::try_parse() {
        Ok(line) => perform(line.command),
        Err(error) if error.use_stderr() => Err(Failure::Usage(one_line(&error))),
        Err(help) => {
            // Help and version: asked for, so not an error.
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            eprintln!("weir: {failure}");
            ExitCode::from(failure.status())
        }
    }
}

fn perform(command: Command) -> Result<u8, Failure> {
    if command.simulates() {
        weir_bench::huge_pages::restart_with_huge_pages();
    }
    match command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Bench(arguments) => weir_bench::run(&arguments),
        Command::Tune(arguments) => tune::run(&arguments),
        Command::Reproduce(arguments) => reproduce::run(&arguments),
        Command::Calibrate(command) => calibrate::run(&command),
        Command::Sim(arguments) => sim::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Clean(arguments) => clean::run(&arguments),
        Command::Nic(command) => nic::run(&command),
        Command::Settings => {
            println!("{}", settings::text().trim_end());
            Ok(0)
        }
        Command::Reference(arguments) => reference::run(&arguments),
        Command::HostHelper => hosts::helper::serve(),
        Command::Probe(arguments) => doctor::memory::probe(&arguments),
        Command::NativePeer(arguments) => engine_pair::run_helper(&arguments),
        Command::NodeGroupMember(arguments) => node_group::run_helper(&arguments),
        Command::LockMember(arguments) => lock::run_helper(&arguments),
        Command::BenchInstructions(arguments) => weir_bench::workload::run(&arguments),
    }
}

/// clap's message about a wrong command line in one line, without usage and advice, with the commands that are allowed.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    // Up to the usage text or the pointer to --help; lists of missing arguments and tips are indented lines between.
    let wanted = text.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let joined = wanted.map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    let line = joined.strip_prefix("error: ").unwrap_or(&joined).replacen(" tip: ", "; ", 1);
    let allowed = match error.kind() {
        ErrorKind::InvalidSubcommand => allowed_commands(&text),
        _ => String::new(),
    };
    format!("{line}{allowed} (see --help)")
}

/// The commands that are allowed where `error` met an unknown one. Its usage line names the command above.
fn allowed_commands(error: &str) -> String {
    let usage = error.lines().find_map(|line| line.strip_prefix("Usage: weir")).unwrap_or_default();
    let mut command = CommandLine::command();
    for word in usage.split_whitespace() {
        match command.find_subcommand(word) {
            Some(below) => command = below.clone(),
            None => break,
        }
    }
    let names = command.get_subcommands().filter(|it| !it.is_hide_set()).map(clap::Command::get_name);
    format!("; allowed: {}", names.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    fn refusal(words: &[&str]) -> String {
        let all = std::iter::once("weir").chain(words.iter().copied());
        one_line(&CommandLine::try_parse_from(all).err().expect("refused"))
    }

    #[test]
    fn wrong_command_lines_are_one_line() {
        assert_eq!(
            refusal(&["run", "-n", "0", "--", "x"]),
            "invalid value '0' for '--ranks <N>': 0 is not in 1..=4096 (see --help)"
        );
        assert_eq!(
            refusal(&["run", "-n", "2"]),
            "the following required arguments were not provided: <PROGRAM ARGS>... (see --help)"
        );
        assert_eq!(
            refusal(&["runn"]),
            "unrecognized subcommand 'runn'; a similar subcommand exists: 'run'; allowed: run, doctor, bench, tune, \
             reproduce, calibrate, sim, explain, clean, nic, settings (see --help)"
        );
        let line = refusal(&["bench", "x"]);
        assert!(
            line.starts_with("unrecognized subcommand 'x'; allowed: ") && line.contains("flood, "),
            "{line}"
        );
        for words in [&["run"][..], &["walk"], &["run", "-n", "2", "prog"], &["run", "-n", "x", "--", "p"]] {
            assert!(!refusal(words).contains('\n'));
        }
    }
}
