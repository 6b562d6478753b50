//! Jobs across hosts: what each launcher needs to know about the hosts, the remote shell, and the variables that it has to
//! pass on.
//!
//! | launcher | hosts | remote shell | variables of the ranks |
//! |---|---|---|---|
//! | MPICH | `-f`, lines `HOST:RANKS` | `-launcher ssh -launcher-exec` | passes its whole environment |
//! | Intel MPI | `-machinefile`, lines `HOST:RANKS` | `I_MPI_HYDRA_BOOTSTRAP`, `_EXEC` | `-genv NAME VALUE` |
//! | Open MPI | `--hostfile`, lines `HOST slots=RANKS` | `plm_ssh_agent` (4: `plm_rsh_agent`) | `-x NAME=VALUE` |

use super::Launch;
use crate::find::{Kind, Mpi};
use crate::hosts::Share;
use std::ffi::OsString;
use std::io;
use std::path::Path;

/// The remote shell that every launcher uses by itself.
pub const SSH: &str = "ssh";
/// The beginning of the variables that ranks on other hosts need, besides those that the launch sets.
const PASSED_ON: &str = "FI_";

impl Launch {
    /// Spreads the ranks over hosts. `remote_shell`: [`SSH`], or a program that takes its place. `file` is written for the
    /// launcher. Call this before [`Launch::program`].
    ///
    /// # Errors
    /// Those of writing the file.
    pub fn across(
        &mut self,
        mpi: &Mpi,
        shares: &[Share<'_>],
        remote_shell: &str,
        file: &Path,
    ) -> io::Result<()> {
        let line = |&(host, ranks): &Share<'_>| match mpi.kind {
            Kind::OpenMpi => format!("{host} slots={ranks}\n"),
            Kind::Mpich | Kind::Intel => format!("{host}:{ranks}\n"),
        };
        std::fs::write(file, shares.iter().map(line).collect::<String>())?;
        let other_shell = (remote_shell != SSH).then_some(remote_shell);
        let mut words: Vec<OsString> = Vec::new();
        let mut add = |given: &[&str]| words.extend(given.iter().map(OsString::from));
        match mpi.kind {
            Kind::Mpich => {
                add(&["-launcher", "ssh"]);
                if let Some(shell) = other_shell {
                    add(&["-launcher-exec", shell]);
                }
                add(&["-f"]);
            }
            Kind::Intel => {
                self.set("I_MPI_HYDRA_BOOTSTRAP", "ssh");
                match other_shell {
                    Some(shell) => self.set("I_MPI_HYDRA_BOOTSTRAP_EXEC", shell),
                    None => self.remove("I_MPI_HYDRA_BOOTSTRAP_EXEC"),
                }
                add(&["-machinefile"]);
            }
            Kind::OpenMpi => {
                let (option, component) =
                    if mpi.major() < 5 { ("--mca", "rsh") } else { ("--prtemca", "ssh") };
                add(&[option, "plm", component]);
                if let Some(shell) = other_shell {
                    add(&[option, &format!("plm_{component}_agent"), shell]);
                }
                // Host after host, as the file says. Without a rule, the first host gets more than its slots.
                match self.command_line.iter_mut().find(|word| *word == ":OVERSUBSCRIBE") {
                    Some(rule) => *rule = "slot:OVERSUBSCRIBE".into(),
                    None => add(&["--map-by", "slot"]),
                }
                add(&["--hostfile"]);
            }
        }
        words.push(file.into());
        // Behind the launcher's name, since some options must come before those of a program.
        self.command_line.splice(1..1, words);
        self.passes_on = Some(mpi.kind);
        Ok(())
    }

    /// The words that make the launcher pass variables to ranks on other hosts.
    pub(super) fn passed_on(&self, inherited: impl Iterator<Item = (OsString, OsString)>) -> Vec<OsString> {
        let mut variables = std::collections::BTreeMap::new();
        for (name, value) in inherited {
            if let Some(name) = name.to_str().filter(|name| name.starts_with(PASSED_ON)) {
                variables.insert(name.to_owned(), Some(value));
            }
        }
        variables.extend(self.changes.clone());
        let mut words = Vec::new();
        for (name, value) in variables {
            let Some(value) = value else { continue };
            match self.passes_on {
                Some(Kind::Intel) => words.extend([OsString::from("-genv"), name.into(), value]),
                Some(Kind::OpenMpi) => {
                    let mut pair = OsString::from(name);
                    pair.push("=");
                    pair.push(value);
                    words.extend([OsString::from("-x"), pair]);
                }
                Some(Kind::Mpich) | None => {}
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::super::JobTransport;
    use super::*;
    use std::path::PathBuf;

    const SHARES: [Share<'static>; 2] = [("h1", 3), ("h2", 1)];

    /// The command line, and the hosts file.
    fn across(kind: Kind, version: &str, remote_shell: &str) -> (Launch, String, String) {
        let mpi = Mpi {
            kind,
            version: version.into(),
            mpiexec: PathBuf::from("/opt/mpi/bin/mpiexec"),
            found: "test".into(),
            unusable: None,
        };
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("hosts");
        let mut launch = Launch::new(&mpi, 4, JobTransport::Weir(Path::new("/w")), &[String::from("-l")]);
        launch.across(&mpi, &SHARES, remote_shell, &file).unwrap();
        launch.program(Path::new("/bin/prog"), ["x"]);
        let text = std::fs::read_to_string(&file).unwrap();
        let line: Vec<_> = launch.command_line().map(|word| word.to_string_lossy().into_owned()).collect();
        let line = line.join(" ").replace(file.to_str().unwrap(), "FILE");
        (launch, line, text)
    }

    #[test]
    fn mpich_gets_hosts_with_their_ranks() {
        let (_, line, file) = across(Kind::Mpich, "5.0.2", "/a/shell");
        assert_eq!(
            line,
            "/opt/mpi/bin/mpiexec -launcher ssh -launcher-exec /a/shell -f FILE -l -n 4 /bin/prog x"
        );
        assert_eq!(file, "h1:3\nh2:1\n");
        let (_, line, _) = across(Kind::Mpich, "5.0.2", SSH);
        assert_eq!(line, "/opt/mpi/bin/mpiexec -launcher ssh -f FILE -l -n 4 /bin/prog x");
    }

    #[test]
    fn intel_mpi_passes_the_variables_on() {
        let (launch, line, file) = across(Kind::Intel, "2021.18", "/a/shell");
        assert!(line.contains(" -machinefile FILE -l -n 4 /bin/prog x"), "{line}");
        assert!(line.contains(" -genv FI_PROVIDER_PATH /w "), "{line}");
        assert!(line.contains(" -genv I_MPI_OFI_PROVIDER weir "), "{line}");
        assert_eq!(file, "h1:3\nh2:1\n");
        assert_eq!(launch.changes["I_MPI_HYDRA_BOOTSTRAP_EXEC"].as_deref(), Some("/a/shell".as_ref()));
    }

    #[test]
    fn open_mpi_passes_the_variables_on() {
        let (_, line, file) = across(Kind::OpenMpi, "5.0.11", "/a/shell");
        assert!(
            line.contains(" --prtemca plm ssh --prtemca plm_ssh_agent /a/shell --hostfile FILE -l -n 4 "),
            "{line}"
        );
        assert!(line.contains(" -x FI_PROVIDER=weir -x FI_PROVIDER_PATH=/w "), "{line}");
        assert!(line.contains(" --map-by slot:OVERSUBSCRIBE "), "{line}");
        assert_eq!(file, "h1 slots=3\nh2 slots=1\n");
        let (_, line, _) = across(Kind::OpenMpi, "4.1.4", "/a/shell");
        assert!(line.contains(" --mca plm rsh --mca plm_rsh_agent /a/shell --map-by slot "), "{line}");
    }

    #[test]
    fn variables_of_libfabric_are_passed_on_unless_the_launch_changes_them() {
        let (mut launch, ..) = across(Kind::OpenMpi, "5.0", SSH);
        launch.remove("FI_LOG_LEVEL");
        let inherited =
            [("FI_WEIR_SPIN", "5"), ("FI_PROVIDER", "tcp"), ("FI_LOG_LEVEL", "warn"), ("HOME", "/")];
        let words = launch.passed_on(inherited.map(|(name, value)| (name.into(), value.into())).into_iter());
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let line = words.join(" ");
        assert!(line.contains("-x FI_WEIR_SPIN=5") && line.contains("-x FI_PROVIDER=weir"), "{line}");
        assert!(!line.contains("FI_LOG_LEVEL") && !line.contains("HOME"), "{line}");
    }
}
