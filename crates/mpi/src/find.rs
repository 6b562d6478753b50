//! Finds the MPI libraries of this host, identifies each by the version text of its `mpiexec`, and chooses the one that
//! a command uses.

use crate::job;
use crate::program::{directories, is_executable, linked_mpi};
use serde::Serialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use weir_output::Failure;

/// The MPI families that weir supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// MPICH, and MPIs whose launcher is plain hydra.
    Mpich,
    /// Open MPI 4 and 5.
    OpenMpi,
    /// Intel MPI.
    Intel,
}

impl Kind {
    /// All families.
    pub const ALL: [Kind; 3] = [Kind::Mpich, Kind::OpenMpi, Kind::Intel];

    /// Its name for `--mpi`, and the name of its private environment.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Mpich => "mpich",
            Kind::OpenMpi => "openmpi",
            Kind::Intel => "intel",
        }
    }

    /// Its name in texts.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Mpich => "MPICH",
            Kind::OpenMpi => "Open MPI",
            Kind::Intel => "Intel MPI",
        }
    }

    /// Whether it can run a program that is linked with `library`. MPICH and Intel MPI have the same binary interface.
    pub fn runs(self, library: &str) -> bool {
        (library == "libmpi.so.40") == (self == Kind::OpenMpi)
    }

    fn from_word(word: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// An MPI of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mpi {
    /// Its family.
    pub kind: Kind,
    /// Its version, from the launcher.
    pub version: String,
    /// Its launcher.
    pub mpiexec: PathBuf,
    /// The place where it was found, in words.
    pub found: String,
    /// The reason why it cannot use libfabric, if that is known.
    pub unusable: Option<String>,
}

impl Mpi {
    /// `MPICH 5.0.2 (/opt/mpich/bin/mpiexec)`.
    pub fn describe(&self) -> String {
        format!("{} {} ({})", self.kind.name(), self.version, self.mpiexec.display())
    }

    /// Major version.
    pub fn major(&self) -> u32 {
        self.version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0)
    }

    /// Directory of its programs.
    pub fn bin_dir(&self) -> &Path {
        self.mpiexec.parent().unwrap_or(Path::new("/"))
    }

    /// Directory of its `libmpi.so.*`. `None` for system directories, which the loader searches anyway.
    pub fn library_dir(&self) -> Option<PathBuf> {
        let prefix = self.bin_dir().parent()?;
        if prefix == Path::new("/usr") || prefix == Path::new("/") {
            return None;
        }
        ["lib", "lib/release", "lib64"].iter().map(|tail| prefix.join(tail)).find(|directory| {
            ["libmpi.so", "libmpi.so.12", "libmpi.so.40"].iter().any(|name| directory.join(name).exists())
        })
    }
}

/// The variables and directories that the search uses. Read from the process once, so that tests can replace them.
#[derive(Clone, Debug, Default)]
pub struct SearchEnvironment {
    /// `WEIR_MPI`.
    pub weir_mpi: Option<String>,
    /// `VIRTUAL_ENV`.
    pub virtual_env: Option<PathBuf>,
    /// `I_MPI_ROOT`.
    pub i_mpi_root: Option<PathBuf>,
    /// `PATH`.
    pub path: Option<OsString>,
    /// The project's private environments: `WEIR_ENV_PATH`, or `../env` from the command.
    pub private: Option<PathBuf>,
    /// The program to run, if it is known.
    pub program: Option<PathBuf>,
    /// `HOME`.
    pub home: Option<PathBuf>,
}

impl SearchEnvironment {
    /// The search environment of this process.
    pub fn of_process() -> SearchEnvironment {
        let path_variable =
            |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let beside =
            || Some(std::env::current_exe().ok()?.canonicalize().ok()?.parent()?.parent()?.join("env"));
        SearchEnvironment {
            weir_mpi: std::env::var("WEIR_MPI").ok().filter(|value| !value.is_empty()),
            virtual_env: path_variable("VIRTUAL_ENV"),
            i_mpi_root: path_variable("I_MPI_ROOT"),
            path: std::env::var_os("PATH"),
            private: path_variable("WEIR_ENV_PATH").or_else(beside).filter(|path| path.is_dir()),
            program: None,
            home: path_variable("HOME"),
        }
    }

    /// The `bin` directories of the private environments.
    pub fn private_bins(&self) -> Vec<PathBuf> {
        let Some(private) = &self.private else { return Vec::new() };
        let bins = Kind::ALL.iter().map(|kind| private.join(kind.word()).join("bin"));
        bins.filter(|bin| bin.is_dir()).collect()
    }

    /// The `bin` directories of the installations that contain the program, innermost first: `/opt/mpich/bin` for
    /// `/opt/mpich/bin/python` and `/opt/mpich/libexec/osu/latency`. Links are not followed: the interpreter of a
    /// Python environment is a link to the system's. The system's directories and the home directory are no
    /// installations, even if an MPI is installed there.
    fn bins_around_program(&self) -> Vec<PathBuf> {
        let absolute = self.program.as_ref().and_then(|program| std::path::absolute(program).ok());
        let Some(directory) = absolute.as_deref().and_then(Path::parent) else { return Vec::new() };
        let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        let home = self.home.as_ref().map(|home| home.canonicalize().unwrap_or_else(|_| home.clone()));
        let common = |prefix: &Path| {
            [Path::new("/"), Path::new("/usr"), Path::new("/usr/local")].contains(&prefix)
                || home.as_deref() == Some(prefix)
        };
        directory.ancestors().filter(|prefix| !common(prefix)).map(|prefix| prefix.join("bin")).collect()
    }

    /// Launchers in order of preference, each with the place where it was found. Each file once.
    fn launchers(&self) -> Vec<(PathBuf, String)> {
        const NAMES: [&str; 4] = ["mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpiexec.openmpi"];
        let mut places = Vec::new();
        places.extend(
            self.bins_around_program().into_iter().map(|bin| (bin, "the installation of the program")),
        );
        if let Some(environment) = &self.virtual_env {
            places.push((environment.join("bin"), "the active virtual environment"));
        }
        places.extend(directories(self.path.as_deref()).into_iter().map(|directory| (directory, "PATH")));
        places.extend(self.i_mpi_root.iter().map(|root| (root.join("bin"), "I_MPI_ROOT")));
        places.extend(self.private_bins().into_iter().map(|bin| (bin, "weir's own environment")));
        let mut seen = Vec::new();
        let mut launchers = Vec::new();
        for (directory, place) in places {
            for name in NAMES {
                let launcher = directory.join(name);
                let Ok(file) = launcher.canonicalize() else { continue };
                if is_executable(&launcher) && !seen.contains(&file) {
                    seen.push(file);
                    launchers.push((launcher, place.to_owned()));
                }
            }
        }
        launchers
    }
}

/// The MPI to use. `wanted`: `mpich`, `openmpi`, `intel`, a prefix, or an `mpiexec`.
///
/// Without it the order is: `WEIR_MPI`, the installation that contains the program, an active virtual environment,
/// `PATH`, `I_MPI_ROOT`, weir's own environments. MPIs whose library the program is linked with come first.
///
/// # Errors
/// [`Failure::NoMpi`]: one line that says where it searched.
pub fn choose(wanted: Option<&str>, search_environment: &SearchEnvironment) -> Result<Mpi, Failure> {
    let (wanted, by) = match wanted {
        Some(wanted) => (Some(wanted), "--mpi"),
        None => (search_environment.weir_mpi.as_deref(), "WEIR_MPI"),
    };
    let kind = match wanted {
        None => None,
        Some(word) => match Kind::from_word(word) {
            Some(kind) => Some(kind),
            None => return at_path(word, by),
        },
    };
    let linked = search_environment.program.as_deref().filter(|_| kind.is_none()).and_then(linked_mpi);
    let mut foreign = None;
    let mut refused = Vec::new();
    for (launcher, place) in search_environment.launchers() {
        match identify(&launcher, &place) {
            Ok(mpi) if kind.is_some_and(|kind| kind != mpi.kind) => {}
            Ok(mpi) => match &mpi.unusable {
                None if linked.is_some_and(|library| !mpi.kind.runs(library)) => {
                    foreign.get_or_insert(mpi);
                }
                None => return Ok(mpi),
                Some(why) => refused.push(format!("{}: {why}", mpi.describe())),
            },
            Err(why) => refused.push(format!("{}: {why}", launcher.display())),
        }
    }
    // The library's name may be misleading. If the MPI does not fit, the run reports it.
    if let Some(mpi) = foreign {
        return Ok(mpi);
    }
    let what = kind.map_or("no MPI", |kind| match kind {
        Kind::Mpich => "no MPICH",
        Kind::OpenMpi => "no Open MPI",
        Kind::Intel => "no Intel MPI",
    });
    let but =
        if refused.is_empty() { String::new() } else { format!("; not usable: {}", refused.join("; ")) };
    Err(Failure::NoMpi(format!(
        "{what} found (searched for mpiexec in WEIR_MPI, an active virtual environment, PATH, I_MPI_ROOT and weir's own \
         environments){but}; name one with --mpi PATH"
    )))
}

/// All MPIs of this host, usable or not, for `weir doctor`.
pub fn find_all(search_environment: &SearchEnvironment) -> Vec<Mpi> {
    let explicit = search_environment.weir_mpi.as_deref().and_then(|path| at_path(path, "WEIR_MPI").ok());
    let mut found: Vec<Mpi> = explicit.into_iter().collect();
    for (launcher, place) in search_environment.launchers() {
        if let Ok(mpi) = identify(&launcher, &place) {
            let same = |other: &Mpi| other.kind == mpi.kind && other.bin_dir() == mpi.bin_dir();
            if !found.iter().any(same) {
                found.push(mpi);
            }
        }
    }
    found
}

fn at_path(path: &str, by: &str) -> Result<Mpi, Failure> {
    let given = PathBuf::from(path);
    let launcher = [given.join("bin/mpiexec"), given.join("mpiexec"), given.clone()]
        .into_iter()
        .find(|candidate| is_executable(candidate))
        .ok_or_else(|| {
            Failure::NoMpi(format!(
                "{by} {path}: is no MPI; allowed are mpich, openmpi, intel, a prefix with bin/mpiexec, or an mpiexec"
            ))
        })?;
    // An absolute path, since ranks may have another working directory.
    let launcher = std::path::absolute(&launcher).unwrap_or(launcher);
    let mpi = identify(&launcher, by)
        .map_err(|why| Failure::NoMpi(format!("{by} {path}: {}: {why}", launcher.display())))?;
    match &mpi.unusable {
        None => Ok(mpi),
        Some(why) => Err(Failure::NoMpi(format!("{by} {path}: {}: {why}", mpi.describe()))),
    }
}

/// Identifies a launcher by its version text.
fn identify(launcher: &Path, found: &str) -> Result<Mpi, String> {
    let mut command = Command::new(launcher);
    command.arg("--version");
    let output = job::capture(command, Duration::from_secs(20)).map_err(|error| error.to_string())?;
    let text = format!("{}\n{}", output.stdout, output.stderr);
    let (kind, version) = parse_version(&text).ok_or_else(|| {
        let first = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("nothing");
        format!("is not the launcher of MPICH, Open MPI or Intel MPI (it prints: {first})")
    })?;
    let unusable = (kind == Kind::Mpich).then(|| lacks_libfabric(&text)).flatten();
    Ok(Mpi { kind, version, mpiexec: launcher.to_owned(), found: found.to_owned(), unusable })
}

fn parse_version(text: &str) -> Option<(Kind, String)> {
    let after = |marker: &str| {
        let rest = &text[text.find(marker)? + marker.len()..];
        rest.split(|c: char| c.is_whitespace() || c == ',').find(|word| !word.is_empty()).map(str::to_owned)
    };
    if text.contains("Intel(R) MPI Library") {
        Some((Kind::Intel, after(", Version ").unwrap_or_else(|| String::from("?"))))
    } else if let Some(version) = after("(Open MPI)").or_else(|| after("(OpenRTE)")) {
        Some((Kind::OpenMpi, version))
    } else if text.contains("HYDRA build details") {
        Some((Kind::Mpich, after("Version:").unwrap_or_else(|| String::from("?"))))
    } else {
        None
    }
}

/// The reason why an MPICH cannot use libfabric, according to the configure options that its launcher prints.
fn lacks_libfabric(version_text: &str) -> Option<String> {
    let device = version_text
        .split(|c: char| c.is_whitespace() || c == '\'')
        .find_map(|word| word.strip_prefix("--with-device="))?;
    (!device.contains("ofi"))
        .then(|| format!("was built without libfabric (--with-device={device}; ch4:ofi is needed)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MPICH: &str = "HYDRA build details:\n    Version:                                 5.0.2\n    \
        Release Date:   Fri\n    Configure options:                       --with-device=ch4:ucx,ofi --with-pm=hydra\n";

    #[test]
    fn launchers_are_identified_by_version_text() {
        let parsed = |text: &str| parse_version(text).map(|(kind, version)| (kind.word(), version));
        assert_eq!(parsed(MPICH), Some(("mpich", "5.0.2".into())));
        assert_eq!(
            parsed("Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\n"),
            Some(("intel", "2021.18.1".into()))
        );
        assert_eq!(parsed("mpiexec (Open MPI) 5.0.11\n\nReport bugs"), Some(("openmpi", "5.0.11".into())));
        assert_eq!(parsed("mpirun (Open MPI) 4.1.4\n"), Some(("openmpi", "4.1.4".into())));
        assert_eq!(parsed("mpiexec (OpenRTE) 4.1.4\n"), Some(("openmpi", "4.1.4".into())));
        assert_eq!(parsed("slurm 23"), None);
    }

    #[test]
    fn an_mpich_without_libfabric_is_recognised() {
        assert_eq!(lacks_libfabric(MPICH), None);
        assert_eq!(lacks_libfabric("no configure options"), None);
        let debian = "Configure options:  '--prefix=/usr' '--with-device=ch4:ucx' '--with-pm=hydra'";
        assert_eq!(
            lacks_libfabric(debian).unwrap(),
            "was built without libfabric (--with-device=ch4:ucx; ch4:ofi is needed)"
        );
    }

    fn fake_mpi(root: &Path, says: &str) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::create_dir_all(root.join("bin")).unwrap();
        let launcher = root.join("bin/mpiexec");
        std::fs::write(&launcher, format!("#!/bin/sh\ncat <<'END'\n{says}\nEND\n")).unwrap();
        std::fs::set_permissions(&launcher, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn search_order_of_mpi_installations() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fake_mpi(&at("venv"), "mpiexec (Open MPI) 5.0.11");
        fake_mpi(&at("path"), "HYDRA build details:\n Version: 4.0.2\n '--with-device=ch4:ucx'");
        fake_mpi(&at("env/mpich"), MPICH);
        let mut search_environment = SearchEnvironment {
            virtual_env: Some(at("venv")),
            path: Some(at("path/bin").into_os_string()),
            private: Some(at("env")),
            ..SearchEnvironment::default()
        };
        let chosen = |wanted: Option<&str>, s: &SearchEnvironment| {
            choose(wanted, s).map(|mpi| mpi.mpiexec).map_err(|failure| failure.to_string())
        };
        assert_eq!(chosen(None, &search_environment), Ok(at("venv/bin/mpiexec")));
        assert_eq!(chosen(Some("mpich"), &search_environment), Ok(at("env/mpich/bin/mpiexec")));
        let no_intel = chosen(Some("intel"), &search_environment).unwrap_err();
        assert!(no_intel.starts_with("no Intel MPI found (searched for mpiexec in "), "{no_intel}");
        assert!(!no_intel.contains('\n'));
        let refused = chosen(Some(at("path").to_str().unwrap()), &search_environment).unwrap_err();
        assert!(refused.contains("was built without libfabric"), "{refused}");
        search_environment.weir_mpi = Some(at("env/mpich").to_string_lossy().into_owned());
        assert_eq!(chosen(None, &search_environment), Ok(at("env/mpich/bin/mpiexec")));
        assert_eq!(chosen(Some("openmpi"), &search_environment), Ok(at("venv/bin/mpiexec")));
        assert_eq!(
            chosen(Some("/no/such"), &search_environment).unwrap_err(),
            "--mpi /no/such: is no MPI; allowed are mpich, openmpi, intel, a prefix with bin/mpiexec, or an mpiexec"
        );
        let nothing = choose(None, &SearchEnvironment::default()).unwrap_err().to_string();
        assert!(nothing.starts_with("no MPI found"), "{nothing}");
        assert_eq!(find_all(&search_environment).len(), 3);
    }

    #[test]
    fn a_program_runs_under_the_mpi_of_its_installation() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fake_mpi(&at("path"), "mpiexec (OpenRTE) 4.1.4");
        fake_mpi(&at("env/mpich"), MPICH);
        let mut search_environment =
            SearchEnvironment { path: Some(at("path/bin").into_os_string()), ..SearchEnvironment::default() };
        let chosen = |wanted: Option<&str>, s: &SearchEnvironment| {
            choose(wanted, s).map(|mpi| mpi.mpiexec).map_err(|failure| failure.to_string())
        };
        assert_eq!(chosen(None, &search_environment), Ok(at("path/bin/mpiexec")));
        std::os::unix::fs::symlink("/bin/sh", at("env/mpich/bin/python")).unwrap();
        search_environment.program = Some(at("env/mpich/bin/python"));
        let whole = |name| at(name).canonicalize().unwrap();
        assert_eq!(chosen(None, &search_environment), Ok(whole("env/mpich/bin/mpiexec")));
        assert_eq!(chosen(Some("openmpi"), &search_environment), Ok(at("path/bin/mpiexec")));
        search_environment.program = Some(at("env/mpich/libexec/tests/program"));
        std::fs::create_dir_all(at("env/mpich/libexec/tests")).unwrap();
        assert_eq!(chosen(None, &search_environment), Ok(whole("env/mpich/bin/mpiexec")));
        // A program outside any installation runs under the MPI that it is linked with, if there is one.
        search_environment.program = Some(at("program"));
        std::fs::write(at("program"), b"\x7fELF libmpi.so.12\0").unwrap();
        search_environment.private = Some(at("env"));
        assert_eq!(chosen(None, &search_environment), Ok(at("env/mpich/bin/mpiexec")));
        std::fs::write(at("program"), b"\x7fELF libmpi.so.40\0").unwrap();
        assert_eq!(chosen(None, &search_environment), Ok(at("path/bin/mpiexec")));
        search_environment.program = Some(at("env/mpich/libexec/tests/program"));
        // A program somewhere in the home directory does not belong to an MPI in ~/bin.
        search_environment.home = Some(whole("env/mpich"));
        assert_eq!(chosen(None, &search_environment), Ok(at("path/bin/mpiexec")));
    }
}
