//! Processes of a benchmark that need no MPI: this command again, several times, all with the same arguments. They
//! find each other in a directory, and print one line for each measurement.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Args;
use weir_mpi::job;
use weir_output::Failure;

/// The processes. They end with this value.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Those that were waited for are gone.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// An empty directory for members, in the directory of shared memory. It goes with the value.
///
/// # Errors
/// [`Failure::System`].
pub fn directory(shm_dir: &Path) -> Result<tempfile::TempDir, Failure> {
    let directory = tempfile::Builder::new().prefix("weir-bench-").tempdir_in(shm_dir);
    directory.map_err(Failure::system(format!("a directory in {}", shm_dir.display())))
}

/// Arguments that all members get.
#[derive(Args, Clone, Debug)]
pub struct SharedArguments {
    /// Where the members meet.
    #[arg(long)]
    pub directory: PathBuf,
    /// The members.
    #[arg(long)]
    pub ranks: u32,
    /// Measurements of each kind.
    #[arg(long)]
    pub rounds: u32,
    /// Time of each. Unit: microseconds.
    #[arg(long)]
    time_us: u64,
}

impl SharedArguments {
    /// Those of `ranks` members that meet in `directory`. `time`: of each measurement.
    pub fn new(directory: &Path, ranks: u32, rounds: u32, time: Duration) -> SharedArguments {
        let time_us = time.as_micros() as u64;
        SharedArguments { directory: directory.to_owned(), ranks, rounds, time_us }
    }

    /// The words of a member's command line, behind the name of a hidden command.
    pub fn words(&self, helper: &str) -> Vec<OsString> {
        let SharedArguments { directory, ranks, rounds, time_us } = self;
        let numbers =
            [("--ranks", u64::from(*ranks)), ("--rounds", (*rounds).into()), ("--time-us", *time_us)];
        let options = numbers.iter().flat_map(|(name, number)| [(*name).into(), number.to_string().into()]);
        [helper.into(), "--directory".into(), directory.into()].into_iter().chain(options).collect()
    }

    /// Time of each measurement.
    pub fn time(&self) -> Duration {
        Duration::from_micros(self.time_us)
    }
}

/// Starts `count` members, passes on each line that they print, and waits until all have ended. `words`: the
/// arguments of the member of a rank.
///
/// # Errors
/// [`Failure`]: a member could not be started or failed, or what `take` returns.
pub fn run(
    count: u32,
    words: impl Fn(u32) -> Vec<OsString>,
    mut take: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let executable = std::env::current_exe().map_err(Failure::system("the path of this command"))?;
    let (from, to) = std::io::pipe().map_err(Failure::system("a pipe"))?;
    let mut processes = Processes(Vec::new());
    for rank in 0..count {
        let to = to.try_clone().map_err(Failure::system("a pipe"))?;
        let mut command = Command::new(&executable);
        let started = command.args(words(rank)).stdin(Stdio::null()).stdout(to).spawn();
        processes.0.push(started.map_err(Failure::system("a process of the group"))?);
    }
    drop(to);
    for line in BufReader::new(from).lines() {
        take(&line.map_err(Failure::system("the output of the group"))?)?;
    }
    for child in &mut processes.0 {
        let status = child.wait().map_err(Failure::system("a process of the group"))?;
        if job::exit_code(status) != 0 {
            let what = format!("a process of the group ended with status {}", job::exit_code(status));
            return Err(Failure::Measurement(what));
        }
    }
    Ok(())
}
