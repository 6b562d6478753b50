//! The steps of `weir run` after the program has ended: remove stale mailboxes, print the table and what went wrong,
//! write JSON and the page. Stale mailboxes are also removed before the program starts.
//!
//! Every step is tried. A step that fails prints its error and does not stop the steps after it. The exit status
//! remains the program's; if the program succeeded and a step failed, it is 1.

use super::{Checked, RunArguments, files_in, number_of_ranks};
use crate::hosts::{Collected, JobHosts};
use crate::page;
use crate::report::Job;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;
use weir_engine::stats::{self, Reports};
use weir_engine::trace::{self, Traces};
use weir_mpi::find::Mpi;
use weir_mpi::launch::Launch;
use weir_mpi::{job, mailboxes, program};
use weir_output::Failure;
use weir_output::write::write_json;

/// Version of the JSON report. It changes when readers of the report have to change.
const SCHEMA: &str = "weir-run-1";
/// Exit status if the program succeeded and a step after its end failed.
const STEP_FAILED: u8 = 1;

/// A directory into which endpoints write one file each.
pub struct Directory {
    path: PathBuf,
    /// Files that were there before the run. They belong to other runs.
    before: Vec<PathBuf>,
}

impl Directory {
    /// The directory at `path`, before the program starts.
    pub fn new(path: PathBuf) -> Directory {
        let before = files_in(&path);
        Directory { path, before }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn read_counters(&self) -> Result<Reports, Failure> {
        let cannot_read = format!("cannot read the counters in {}", self.path.display());
        let mut reports = stats::read_dir(&self.path).map_err(Failure::system(cannot_read))?;
        reports.endpoints.retain(|endpoint| !self.before.contains(&endpoint.path));
        reports.skipped.retain(|file| !self.before.contains(&file.path));
        Ok(reports)
    }

    fn read_traces(&self) -> Result<Traces, Failure> {
        let cannot_read = format!("cannot read the traces in {}", self.path.display());
        let mut traces = trace::read_dir(&self.path).map_err(Failure::system(cannot_read))?;
        traces.traces.retain(|trace| !self.before.contains(&trace.path));
        traces.skipped.retain(|file| !self.before.contains(&file.path));
        Ok(traces)
    }
}

/// A program that has ended, and the files that its endpoints have left.
pub struct Ended<'a> {
    /// Options of `weir run`.
    pub arguments: &'a RunArguments,
    /// The job as it was checked.
    pub checked: &'a Checked,
    /// The launcher's command line.
    pub launch: &'a Launch,
    /// Exit status of the launcher.
    pub status: ExitStatus,
    /// Time for which it ran.
    pub elapsed: Duration,
    /// Counters of the endpoints.
    pub counters: Directory,
    /// Traces of the endpoints, if the user wants the page.
    pub traces: Option<Directory>,
    /// The hosts of the job, if it has some.
    pub hosts: Option<JobHosts>,
    /// The directory for what they send.
    pub gathered_directory: PathBuf,
}

/// The content of `weir run --json`.
#[derive(Debug, Serialize)]
struct Record<'a> {
    schema: &'static str,
    command: &'a [String],
    /// The launcher with its arguments.
    started: Vec<String>,
    ranks_started: u32,
    mpi: &'a Mpi,
    provider: &'a Path,
    settings: BTreeMap<&'static str, String>,
    /// Bound of the memory of a receiver for incoming messages; `None`: there is none. Unit: bytes.
    receiver_bound_bytes: Option<u64>,
    /// The part of it for datagrams; 0: no network. Unit: bytes.
    receiver_datagram_bytes: u64,
    exit_status: u8,
    elapsed_s: f64,
    /// Whether the program opened any endpoint of weir.
    used_weir: bool,
    #[serde(flatten)]
    job: &'a Job,
    remarks: &'a [String],
}

/// Whether all steps so far succeeded.
#[derive(Default)]
struct Steps {
    failed: bool,
}

impl Steps {
    /// The value of a step; prints the error of a step that failed.
    fn attempt<T>(&mut self, step: Result<T, Failure>) -> Option<T> {
        step.inspect_err(|failure| {
            eprintln!("weir: {failure}");
            self.failed = true;
        })
        .ok()
    }
}

impl Ended<'_> {
    /// Does all steps and returns the exit status of the command. `note` prints a line that `--quiet` suppresses.
    pub fn report(&mut self, note: &impl Fn(&str)) -> u8 {
        let mut steps = Steps::default();
        // Every process that has opened an endpoint has a file there. The counters are final once the processes have ended,
        // for which the removal of mailboxes waits: only then are they reported.
        let endpoints = self.counters.read_counters().map(|reports| reports.endpoints).unwrap_or_default();
        let processes = endpoints.iter().map(|endpoint| endpoint.pid as u32).collect::<Vec<_>>();
        steps.attempt(remove_stale_mailboxes(&self.checked.settings.shm_dir, &processes, note));

        let mut elsewhere = match &mut self.hosts {
            Some(hosts) => hosts.gather(&self.gathered_directory),
            None => Collected::default(),
        };
        let reports = steps.attempt(self.counters.read_counters());
        let were_read = reports.is_some();
        let mut reports = reports.unwrap_or_default();
        elsewhere.add_to(&mut reports);
        let job = Job::new(&reports);
        let mut remarks = elsewhere.remarks;
        if were_read {
            remarks.extend(job.remarks(self.arguments.ranks));
            if job.ranks.is_empty() {
                remarks.push(self.unused_reason());
            }
        }
        self.print(&job, &remarks);
        if let Some(target) = &self.arguments.json {
            steps.attempt(write_json(&self.record(&job, &remarks), target));
        }
        if let (Some(directory), Some(traces)) = (&self.arguments.report, &self.traces) {
            let mut traces = steps.attempt(traces.read_traces()).unwrap_or_default();
            traces.traces.append(&mut elsewhere.traces.traces);
            traces.skipped.append(&mut elsewhere.traces.skipped);
            if let Some(path) = steps.attempt(self.write_page(directory, &reports, &job, traces, remarks)) {
                note(&format!("the page is {}", path.display()));
            }
        }
        match job::exit_code(self.status) {
            0 if steps.failed => STEP_FAILED,
            status => status,
        }
    }

    fn print(&self, job: &Job, remarks: &[String]) {
        if !self.arguments.quiet && !job.ranks.is_empty() {
            eprintln!(
                "\nweir: {}, {:.2} s, exit status {}",
                number_of_ranks(job.ranks.len() as u64),
                self.elapsed.as_secs_f64(),
                job::exit_code(self.status)
            );
            eprintln!("{}", job.table());
        }
        // Also with `--quiet`: remarks name what went wrong.
        for remark in remarks {
            eprintln!("weir: {remark}");
        }
    }

    fn record<'a>(&'a self, job: &'a Job, remarks: &'a [String]) -> Record<'a> {
        Record {
            schema: SCHEMA,
            command: &self.arguments.command,
            started: self.launch.command_line().map(|word| word.to_string_lossy().into_owned()).collect(),
            ranks_started: self.arguments.ranks,
            mpi: &self.checked.mpi,
            provider: &self.checked.provider,
            settings: self.checked.settings.to_variables().into_iter().collect(),
            receiver_bound_bytes: self
                .checked
                .bound
                .filter(|bound| bound.per_message() == 0)
                .map(|bound| bound.bounded()),
            receiver_datagram_bytes: self.checked.bound.map_or(0, |bound| bound.datagrams),
            exit_status: job::exit_code(self.status),
            elapsed_s: self.elapsed.as_secs_f64(),
            used_weir: !job.ranks.is_empty(),
            job,
            remarks,
        }
    }

    /// Writes the page into `directory` and returns its path.
    fn write_page(
        &self,
        directory: &Path,
        reports: &Reports,
        job: &Job,
        traces: Traces,
        mut remarks: Vec<String>,
    ) -> Result<PathBuf, Failure> {
        let summary = format!(
            "{}, {}, {:.2} s, exit status {}",
            number_of_ranks(u64::from(self.arguments.ranks)),
            self.checked.mpi.describe(),
            self.elapsed.as_secs_f64(),
            job::exit_code(self.status)
        );
        let unread = traces.skipped.iter();
        remarks.extend(
            unread.map(|file| format!("cannot read the trace {}: {}", file.path.display(), file.why)),
        );
        let settings = self.checked.settings.to_variables();
        let content = page::Content {
            command: &self.arguments.command,
            summary: &summary,
            settings: settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            warnings: &remarks,
            job,
            endpoints: &reports.endpoints,
            traces: traces.traces,
        };
        let path = directory.join(page::FILE);
        let cannot_write = format!("cannot write the page {}", path.display());
        std::fs::write(&path, page::render(content)).map_err(Failure::system(cannot_write))?;
        Ok(path)
    }

    /// The likeliest reason why no endpoint was opened.
    fn unused_reason(&self) -> String {
        let mpi = &self.checked.mpi;
        let linked = program::linked_mpi(&self.checked.program);
        let foreign = linked.filter(|library| !mpi.kind.runs(library));
        let hint = match foreign {
            Some(library) => format!(
                "it is linked with {library}, which is not the library of {}; choose its MPI with --mpi",
                mpi.kind.name()
            ),
            None if self.status.success() => format!(
                "it succeeded without opening an endpoint; check that it is an MPI program for {}",
                mpi.kind.name()
            ),
            None => String::from(
                "it failed before it opened an endpoint; see its own messages above, and check this host with `weir doctor`",
            ),
        };
        format!("the program did not use weir: {hint}")
    }
}

/// Removes the mailboxes of crashed jobs. `processes`: those of this run, which have ended or are about to end.
///
/// # Errors
/// [`Failure::System`]: the directory cannot be listed.
pub fn remove_stale_mailboxes(
    directory: &Path,
    processes: &[u32],
    note: &impl Fn(&str),
) -> Result<(), Failure> {
    let cannot_list = format!("cannot list the mailboxes in {}", directory.display());
    let (removed, in_use) =
        mailboxes::remove_after_run(directory, processes).map_err(Failure::system(cannot_list))?;
    if removed > 0 {
        note(&format!("removed {removed} stale mailboxes from {}", directory.display()));
    }
    for process in in_use {
        note(&format!(
            "process {process} of this run is still running; once it has ended, `weir clean` removes its mailbox"
        ));
    }
    Ok(())
}
