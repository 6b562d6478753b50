//! Processes of a benchmark that need no MPI: this command again, several times, all with the same arguments. They
//! find each other in a directory, and print one line for each measurement.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

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

/// The words of a member's command line: the hidden command, the directory, and options with numbers.
pub fn words(helper: &str, directory: &Path, numbers: &[(&str, u64)]) -> Vec<OsString> {
    let options = numbers.iter().flat_map(|(name, number)| [(*name).into(), number.to_string().into()]);
    [helper.into(), "--directory".into(), directory.into()].into_iter().chain(options).collect()
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
