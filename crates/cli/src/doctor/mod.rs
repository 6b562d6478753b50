//! `weir doctor`: checks this host, and says what to change if a check does not pass.
//!
//! A check performs the operation that it is about, where possible: it loads the plug-in, runs two ranks under each
//! MPI, copies between two processes. The exit status tells whether weir works here: at least one MPI ran over it, and
//! no other check has failed.

mod host;
mod hosts;
pub mod memory;
mod mpis;

use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use weir_engine::config::Settings;
use weir_mpi::find::{self, SearchEnvironment};
use weir_mpi::{launch, provider_file, scratch};
use weir_output::Failure;

/// Options of `weir doctor`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit status:
  0      two ranks of at least one MPI ran over weir, and no other check failed
  1      no MPI ran over weir, or another check failed
Warnings do not change the exit status.

The command takes a few seconds: it runs two ranks under each MPI that it finds.

With --hosts it checks the hosts of a job instead: versions, sockets, and every path from one to another. Of a range of \
ports (FI_WEIR_PORTS), each path tries up to 16, with the first and the last one, and says how many. Then the exit status \
is 0 if every host reaches every other one, and 1 otherwise. FILE is that of `weir run --hosts`.")]
pub struct DoctorArguments {
    /// Judge the memory for a job of so many ranks [default: the number of cores].
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: Option<u32>,
    /// Write the results as JSON to standard output, instead of text.
    #[arg(long)]
    json: bool,
    /// Check the hosts that FILE lists, and the paths between them, instead of this host.
    #[arg(long, value_name = "FILE", conflicts_with = "ranks")]
    hosts: Option<PathBuf>,
    /// The program that takes the place of ssh, for --hosts; it gets HOST COMMAND, or WEIR_REMOTE_SHELL names it.
    #[arg(long, value_name = "PROGRAM", requires = "hosts")]
    remote_shell: Option<String>,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// It works.
    Ok,
    /// It works with restrictions, or could not be checked.
    Warn,
    /// It does not work.
    Fail,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// Its result.
    pub level: Level,
    /// The finding.
    pub seen: String,
    /// Advice for the user, if something should change.
    pub change: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, seen: impl Into<String>) -> Finding {
        Finding { check, level: Level::Ok, seen: seen.into(), change: None }
    }

    fn warn(check: &'static str, seen: impl Into<String>, change: impl Into<String>) -> Finding {
        Finding { check, level: Level::Warn, seen: seen.into(), change: Some(change.into()) }
    }

    fn fail(check: &'static str, seen: impl Into<String>, change: impl Into<String>) -> Finding {
        Finding { check, level: Level::Fail, seen: seen.into(), change: Some(change.into()) }
    }

    fn text(&self) -> String {
        let level = match self.level {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "FAIL",
        };
        let change =
            self.change.as_ref().map_or_else(String::new, |change| format!("\n{:19}-> {change}", ""));
        format!("{level:4}  {:12} {}{change}", self.check, self.seen)
    }
}

#[derive(Serialize)]
struct Record<'a> {
    schema: &'static str,
    usable: bool,
    findings: &'a [Finding],
}

/// Performs all checks and prints the results.
///
/// # Errors
/// [`Failure`]: the checks could not be prepared.
pub fn run(arguments: &DoctorArguments) -> Result<u8, Failure> {
    if let Some(file) = &arguments.hosts {
        let remote_shell = crate::run::remote_shell(arguments.remote_shell.as_deref());
        return hosts::run(file, &remote_shell, arguments.json);
    }
    let mut findings = Vec::new();
    let mut add = |finding: Finding| {
        if !arguments.json {
            println!("{}", finding.text());
        }
        findings.push(finding);
    };
    let settings = match Settings::from_environment() {
        Ok(settings) => {
            add(Finding::ok("settings", "all FI_WEIR_* variables of the environment are valid"));
            settings
        }
        Err(error) => {
            add(Finding::fail(
                "settings",
                error.to_string(),
                "correct or unset the variable; see `weir settings`",
            ));
            Settings::default()
        }
    };
    let scratch = scratch::directory()?;
    let search_environment = SearchEnvironment::of_process();
    let found = find::find_all(&search_environment);
    match provider_file::find_for_this_command() {
        Err(failure) => {
            add(Finding::fail("provider", failure.to_string(), "`make build`, or set WEIR_PROVIDER_PATH"));
            add(mpis::found(&found));
        }
        Ok(provider) => {
            add(Finding::ok("provider", provider.display().to_string()));
            let directory = provider_file::isolate(&provider, scratch.path())?;
            add(mpis::provider_loads(&provider, &directory, &search_environment));
            let collectives = launch::collectives_library(&provider);
            add(mpis::collectives(collectives.as_deref(), &settings));
            add(mpis::found(&found));
            for mpi in &found {
                let trial = mpis::Trial {
                    provider: &provider,
                    directory: &directory,
                    collectives: collectives.as_deref().filter(|_| settings.collectives),
                    scratch: scratch.path(),
                };
                add(mpis::runs(mpi, &trial, &search_environment)?);
            }
        }
    }
    add(memory::cross_memory_attach());
    for finding in host::checks(&settings, arguments.ranks.unwrap_or_else(host::cores_of_process)) {
        add(finding);
    }
    let usable = is_usable(&findings);
    if arguments.json {
        weir_output::write::write_json(
            &Record { schema: "weir-doctor-1", usable, findings: &findings },
            "-",
        )?;
    } else if usable {
        println!("\nweir works on this host.");
    } else {
        let failed = findings.iter().any(|finding| finding.level == Level::Fail);
        let why =
            if failed { "see the lines with FAIL" } else { "no MPI ran over weir, see the lines with warn" };
        println!("\nweir does not work on this host yet: {why}.");
    }
    Ok(u8::from(!usable))
}

/// Whether at least one MPI ran over weir and no other check failed.
fn is_usable(findings: &[Finding]) -> bool {
    let (mpis, others): (Vec<_>, Vec<_>) = findings.iter().partition(|finding| finding.check == mpis::RUNS);
    mpis.iter().any(|finding| finding.level == Level::Ok)
        && others.iter().all(|finding| finding.level < Level::Fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_working_mpi_without_failures_is_usable() {
        let works = Finding::ok(mpis::RUNS, "a");
        let fails = Finding::fail(mpis::RUNS, "b", "c");
        let warned = Finding::warn("cores", "few", "more");
        assert!(is_usable(&[works.clone(), fails.clone(), warned.clone()]));
        assert!(!is_usable(&[fails, warned]));
        assert!(!is_usable(&[works, Finding::fail("provider", "x", "y")]));
    }

    #[test]
    fn a_finding_has_a_line_and_its_advice_another() {
        assert_eq!(Finding::ok("cores", "2").text(), "ok    cores        2");
        assert_eq!(
            Finding::fail("shared memory", "full", "free some").text(),
            "FAIL  shared memory full\n                   -> free some"
        );
    }
}
