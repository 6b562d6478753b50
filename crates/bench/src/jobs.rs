//! Runs the MPI jobs of the benchmarks, with a time limit, and names the reason if a job has no result. After a failed
//! job it removes stale mailboxes. Also has the steps around the jobs that benchmarks share: which items run
//! (`select`), their order in a round (`rotated`), and the progress bar.

use super::transport::Transport;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_mpi::job::{self, CaptureError, End};
use weir_mpi::launch::Launch;
use weir_mpi::mailboxes;
use weir_output::Failure;

/// The reason why a job has no result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "why", rename_all = "kebab-case")]
pub enum Unfinished {
    /// It exceeded its time limit.
    TimedOut {
        /// The limit. Unit: seconds.
        seconds: u64,
    },
    /// It was ended before the node ran out of memory.
    OutOfMemory,
    /// It failed, or its output is invalid.
    Failed {
        /// The reason, in one line.
        reason: String,
    },
}

impl std::fmt::Display for Unfinished {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unfinished::TimedOut { seconds } => write!(formatter, "timed out after {seconds} s"),
            Unfinished::OutOfMemory => formatter.write_str("ended before the node ran out of memory"),
            Unfinished::Failed { reason } => write!(formatter, "failed: {reason}"),
        }
    }
}

/// The limits of jobs, and the directory of their mailboxes.
#[derive(Clone, Debug)]
pub struct Jobs {
    /// Time limit of one job.
    pub limit: Duration,
    /// Directory of weir's mailboxes.
    pub shm_dir: PathBuf,
}

impl Jobs {
    /// Runs a job within the time limit and while `keep_running` returns true. Returns its standard output, or why
    /// there is none.
    ///
    /// # Errors
    /// [`Failure`], if the job could not be started or a signal ended this command.
    pub fn run(
        &self,
        launch: &Launch,
        keep_running: impl FnMut() -> bool,
    ) -> Result<Result<String, Unfinished>, Failure> {
        let (stdout, unfinished) = self.run_with_output(launch, keep_running)?;
        Ok(unfinished.map_or(Ok(stdout), Err))
    }

    /// Like [`Jobs::run`], but returns what the job printed also if it did not finish.
    ///
    /// # Errors
    /// As for [`Jobs::run`].
    pub fn run_with_output(
        &self,
        launch: &Launch,
        keep_running: impl FnMut() -> bool,
    ) -> Result<(String, Option<Unfinished>), Failure> {
        let output = match job::capture_while(launch.command(), self.limit, keep_running) {
            Ok(output) => output,
            Err(CaptureError::Interrupted(signal)) => return Err(Failure::Interrupted(signal)),
            Err(CaptureError::System(source)) => {
                let what = launch.command_line().next().unwrap_or_default().to_string_lossy().into_owned();
                return Err(Failure::System { what, source });
            }
        };
        if !output.success() {
            // Killed ranks leave their mailboxes. `weir clean` reports errors of the removal.
            let _ = mailboxes::remove_stale(&self.shm_dir);
        }
        let unfinished = match output.end {
            End::TimedOut => Some(Unfinished::TimedOut { seconds: self.limit.as_secs() }),
            End::Stopped => Some(Unfinished::OutOfMemory),
            End::Exited(status) if !status.success() => {
                Some(Unfinished::Failed { reason: error_line(&output, job::exit_code(status)) })
            }
            End::Exited(_) => None,
        };
        Ok((output.stdout, unfinished))
    }
}

/// The elements of `all` that `only` names; all if it is empty.
pub fn select<T: Copy + PartialEq>(all: &[T], only: &[T]) -> Vec<T> {
    all.iter().copied().filter(|one| only.is_empty() || only.contains(one)).collect()
}

/// A progress bar over `jobs` jobs. It disappears when it is dropped.
pub fn progress_bar(jobs: u64, quiet: bool) -> ProgressBar {
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(jobs) };
    // The template is a valid constant. If it were not, the default style would do.
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} (about {eta} left)");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.with_finish(ProgressFinish::AndClear)
}

/// All of `items`, beginning with another one in each round, so that none always runs first.
pub fn rotated<T>(items: &[T], round: usize) -> impl Iterator<Item = &T> {
    let first = round.checked_rem(items.len()).unwrap_or(0);
    items[first..].iter().chain(&items[..first])
}

/// `transport`, as a job uses it. A missing plug-in has no directory; its transport is never run.
pub fn job_transport(
    transport: Transport,
    provider: &Result<PathBuf, String>,
) -> weir_mpi::launch::JobTransport<'_> {
    transport.job_transport(provider.as_deref().unwrap_or(Path::new("")))
}

/// The most informative line of a failed job's output.
fn error_line(output: &job::Output, status: u8) -> String {
    let both = format!("{}\n{}", output.stderr, output.stdout);
    let telling = both.lines().map(str::trim).rfind(|line| line.contains("error") || line.contains("failed"));
    telling.map_or_else(|| format!("status {status}"), |line| format!("status {status}, {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selection_keeps_the_order() {
        assert_eq!(select(&[1, 2, 3], &[]), [1, 2, 3]);
        assert_eq!(select(&[1, 2, 3], &[3, 1]), [1, 3]);
    }

    #[test]
    fn each_round_begins_with_another_item() {
        let order = |round| rotated(&["a", "b", "c"], round).copied().collect::<String>();
        assert_eq!([0, 1, 2, 3].map(order), ["abc", "bca", "cab", "abc"]);
        assert_eq!(rotated::<u8>(&[], 1).count(), 0);
    }

    #[test]
    fn a_failed_job_is_reported_in_one_line() {
        let status = std::process::Command::new("/bin/sh").args(["-c", "exit 7"]).status().unwrap();
        let output = |stderr: &str| job::Output {
            end: End::Exited(status),
            stdout: String::from("rank 0: error: no memory\n"),
            stderr: stderr.into(),
        };
        assert_eq!(error_line(&output(""), 7), "status 7, rank 0: error: no memory");
        let unfinished = Unfinished::Failed { reason: error_line(&output(""), 7) };
        assert_eq!(unfinished.to_string(), "failed: status 7, rank 0: error: no memory");
        assert_eq!(Unfinished::TimedOut { seconds: 9 }.to_string(), "timed out after 9 s");
    }
}
