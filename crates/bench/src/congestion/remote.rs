//! Hosts of a user's network ([`RemoteNetwork`]): `weir tune --network --hosts FILE`. The launcher of the MPI starts ranks there as
//! for `weir run --hosts`. The caller brings what prepares directories on hosts and sends counters ([`RemoteHosts`]).
//!
//! ```text
//! begin          a directory on every host, with the plug-in; the program goes there over the remote shell
//! each job       a directory on every host for its counters, which the host sends when the job has ended
//! ```
//! Directories go when a command ends, also if it is killed.

use super::Case;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use weir_engine::stats::Reports;
use weir_mpi::find::Mpi;
use weir_mpi::hosts::{Hosts, Share};
use weir_mpi::launch::{Launch, SSH};
use weir_output::Failure;

/// What a command can do with hosts of a job.
pub trait RemoteHosts {
    /// Makes the directory of a run on every host of `shares`, with the plug-in in it. It lasts as long as the result.
    ///
    /// - `counters`: a directory in it.
    ///
    /// # Errors
    /// [`Failure`]: a host cannot be reached, or has another weir.
    fn begin(
        &self,
        shares: &[Share<'_>],
        run: &Path,
        counters: &Path,
        plug_in: &Path,
    ) -> Result<Box<dyn RemoteRun>, Failure>;
}

/// The directories of a run on other hosts.
pub trait RemoteRun {
    /// The counters that are not in the directory of this host. Uses `directory` for files.
    ///
    /// # Errors
    /// One line: a host did not answer.
    fn counters(&mut self, directory: &Path) -> Result<Reports, String>;
}

/// Hosts, and how to reach them.
pub struct RemoteNetwork {
    /// The hosts of the file.
    pub hosts: Hosts,
    /// The program that takes the place of ssh.
    pub remote_shell: String,
    /// What prepares them.
    pub by: Box<dyn RemoteHosts>,
}

impl RemoteNetwork {
    /// Number of hosts.
    pub fn count(&self) -> u32 {
        self.hosts.names().count() as u32
    }

    /// The same number of ranks on every host.
    pub fn shares(&self, ranks_per_host: u32) -> Vec<Share<'_>> {
        self.hosts.names().map(|name| (name, ranks_per_host)).collect()
    }

    /// Makes the directory `run` on all hosts, and puts `program` there, which is in it.
    pub(super) fn prepare(
        &self,
        run: &Path,
        plug_in: &Path,
        program: &Path,
    ) -> Result<Box<dyn RemoteRun>, Failure> {
        let counters = run.join("counters");
        std::fs::create_dir(&counters).map_err(Failure::system(counters.display().to_string()))?;
        let kept = self.by.begin(&self.shares(1), run, &counters, plug_in)?;
        let content = std::fs::read(program).map_err(Failure::system(program.display().to_string()))?;
        self.hosts.names().try_for_each(|host| self.put(host, program, &content))?;
        Ok(kept)
    }

    /// Writes a program on a host, unless it is there: hosts may share directories.
    fn put(&self, host: &str, program: &Path, content: &[u8]) -> Result<(), Failure> {
        let failed =
            |why: String| Failure::Host(format!("{host}: cannot put {} there: {why}", program.display()));
        let file = quoted(program);
        // Under another name first: nobody sees a part of it.
        let script = format!(
            "test -x {file} || {{ cat > {file}.part && chmod 755 {file}.part && mv {file}.part {file}; }}"
        );
        let mut command = Command::new(&self.remote_shell);
        if self.remote_shell == SSH {
            command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
        }
        command.arg(host).arg(script);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        if let Some(mut stdin) = child.stdin.take() {
            let _ = stdin.write_all(content); // it may not read them: the status says what happened
        }
        let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
        match output.status.success() {
            true => Ok(()),
            false => {
                let said = String::from_utf8_lossy(&output.stderr);
                Err(failed(said.lines().last().unwrap_or("no message").to_owned()))
            }
        }
    }

    /// The directories of a job, and its launch across hosts. `launch`: on this host.
    pub(super) fn begin_job(
        &self,
        case: Case,
        job: &Path,
        plug_in: &Path,
        mpi: &Mpi,
        launch: &mut Launch,
    ) -> Result<Box<dyn RemoteRun>, Failure> {
        let shares = self.shares(case.ranks_per_host);
        let counters = job.join("counters");
        std::fs::create_dir(&counters).map_err(Failure::system(counters.display().to_string()))?;
        let run = self.by.begin(&shares, job, &counters, plug_in)?;
        let file = job.join("hosts");
        launch
            .across(mpi, &shares, &self.remote_shell, &file)
            .map_err(Failure::system(file.display().to_string()))?;
        Ok(run)
    }
}

/// A path as one word of a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct Nobody;

    impl RemoteHosts for Nobody {
        fn begin(
            &self,
            _: &[Share<'_>],
            _: &Path,
            _: &Path,
            _: &Path,
        ) -> Result<Box<dyn RemoteRun>, Failure> {
            Err(Failure::Host(String::from("nobody is there")))
        }
    }

    /// A remote shell that runs commands of host `h1` here, and refuses other hosts.
    fn network(directory: &Path) -> RemoteNetwork {
        let shell = directory.join("shell");
        std::fs::write(
            &shell,
            "#!/bin/sh\n[ $1 = h1 ] || { echo \"no such host: $1\" >&2; exit 255; }\nsh -c \"$2\"\n",
        )
        .unwrap();
        std::fs::set_permissions(&shell, std::fs::Permissions::from_mode(0o755)).unwrap();
        let hosts = Hosts::parse(Path::new("f"), "h1\nh2:4\n").unwrap();
        RemoteNetwork { hosts, remote_shell: shell.display().to_string(), by: Box::new(Nobody) }
    }

    #[test]
    fn a_program_gets_to_a_host_once_and_a_host_that_refuses_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let network = network(directory.path());
        let program = directory.path().join("it's a program");
        network.put("h1", &program, b"#!/bin/sh\nexit 7\n").unwrap();
        assert_eq!(Command::new(&program).status().unwrap().code(), Some(7));
        network.put("h1", &program, b"another").unwrap();
        assert_eq!(std::fs::read(&program).unwrap(), b"#!/bin/sh\nexit 7\n", "it is there");
        let refused = network.put("h2", &program, b"x").unwrap_err().to_string();
        assert!(
            refused.starts_with("h2: cannot put ") && refused.ends_with(": no such host: h2"),
            "{refused}"
        );
    }

    #[test]
    fn every_host_of_the_file_has_the_same_number_of_ranks() {
        let directory = tempfile::tempdir().unwrap();
        let network = network(directory.path());
        assert_eq!((network.count(), network.shares(3)), (2, vec![("h1", 3), ("h2", 3)]));
        let run = directory.path().join("run");
        std::fs::create_dir(&run).unwrap();
        let failure =
            network.prepare(&run, Path::new("/p"), Path::new("/no")).err().expect("nobody is there");
        assert_eq!(failure.to_string(), "nobody is there");
    }
}
