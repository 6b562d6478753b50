//! The MPI libraries of this machine: finding them, and telling which is which.
//!
//! An MPI is known by its `mpiexec`, which says who it is when asked for its version.

use crate::job;
use crate::program::{directories, is_executable, linked_mpi};
use serde::Serialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use weir_output::Failure;

/// The MPI families that weir knows how to set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// MPICH, and what is launched by plain hydra.
    Mpich,
    /// Open MPI 4 and 5.
    OpenMpi,
    /// Intel MPI.
    Intel,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Mpich, Kind::OpenMpi, Kind::Intel];

    /// The word for `--mpi`, and the name of its private environment.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Mpich => "mpich",
            Kind::OpenMpi => "openmpi",
            Kind::Intel => "intel",
        }
    }

    /// Its own name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Mpich => "MPICH",
            Kind::OpenMpi => "Open MPI",
            Kind::Intel => "Intel MPI",
        }
    }

    /// Whether a program that is linked with `library` can run under it; MPICH and Intel MPI share an interface.
    pub fn runs(self, library: &str) -> bool {
        (library == "libmpi.so.40") == (self == Kind::OpenMpi)
    }

    fn from_word(word: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// An MPI that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mpi {
    /// Whose it is.
    pub kind: Kind,
    /// Its version, as it says.
    pub version: String,
    /// Its launcher.
    pub mpiexec: PathBuf,
    /// Where it was found, in words.
    pub found: String,
    /// Why it cannot use libfabric, if that can be told.
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

    /// Where its programs are.
    pub fn bin_dir(&self) -> &Path {
        self.mpiexec.parent().unwrap_or(Path::new("/"))
    }

    /// The directory of its `libmpi.so.*`, unless the loader finds it anyway (system directories).
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

/// Where to look. Taken from the process once, so that tests can say otherwise.
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
    /// The program that is to be run, if it is known.
    pub program: Option<PathBuf>,
    /// `HOME`.
    pub home: Option<PathBuf>,
}

impl SearchEnvironment {
    /// Those of this process.
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

    /// The `bin` directories of the installations that the program may be a part of, innermost first: `/opt/mpich/bin` for
    /// `/opt/mpich/bin/python` and `/opt/mpich/libexec/osu/latency`. The program's own links are not followed (a Python
    /// environment's interpreter is a link to the system's). What lies in the system's directories or somewhere in
    /// the home directory is no part of an MPI just because one is installed there too.
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

    /// Launchers in order of preference, with the place in words. Each file once.
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

/// The MPI to use. `wanted`: `mpich`, `openmpi`, `intel`, a prefix, or an `mpiexec`; without it `WEIR_MPI`, the
/// installation that the program is a part of, an active virtual environment, `PATH`, `I_MPI_ROOT`, and weir's own environments decide, in that order.
/// Of what was not named, those with whose library the program is linked come first.
///
/// # Errors
/// [`Failure::NoMpi`]: one line that says what was looked at.
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
    // Perhaps the name of the library tells less than we think; the run says so if it does not fit.
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
        "{what} found (looked for mpiexec in WEIR_MPI, an active virtual environment, PATH, I_MPI_ROOT and weir's own \
         environments){but}; name one with --mpi PATH"
    )))
}

/// All MPIs that are found, usable or not, for `weir doctor`.
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
                "{by} {path}: is no mpich, openmpi or intel, no prefix with bin/mpiexec, and no mpiexec"
            ))
        })?;
    // An absolute path, since ranks and relays may look at it from elsewhere.
    let launcher = std::path::absolute(&launcher).unwrap_or(launcher);
    let mpi = identify(&launcher, by)
        .map_err(|why| Failure::NoMpi(format!("{by} {path}: {}: {why}", launcher.display())))?;
    match &mpi.unusable {
        None => Ok(mpi),
        Some(why) => Err(Failure::NoMpi(format!("{by} {path}: {}: {why}", mpi.describe()))),
    }
}

/// Asks a launcher who it is.
fn identify(launcher: &Path, found: &str) -> Result<Mpi, String> {
    let mut command = Command::new(launcher);
    command.arg("--version");
    let output = job::capture(command, Duration::from_secs(20)).map_err(|error| error.to_string())?;
    let text = format!("{}\n{}", output.stdout, output.stderr);
    let (kind, version) = parse_version(&text).ok_or_else(|| {
        let first = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("nothing");
        format!("is the launcher of no MPI that weir knows (it says: {first})")
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

/// Why an MPICH cannot use libfabric, by the options that its launcher was configured with.
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
    fn an_mpich_without_libfabric_is_seen() {
        assert_eq!(lacks_libfabric(MPICH), None);
        assert_eq!(lacks_libfabric("no options told"), None);
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
        assert!(no_intel.starts_with("no Intel MPI found (looked for mpiexec in "), "{no_intel}");
        assert!(!no_intel.contains('\n'));
        let refused = chosen(Some(at("path").to_str().unwrap()), &search_environment).unwrap_err();
        assert!(refused.contains("was built without libfabric"), "{refused}");
        search_environment.weir_mpi = Some(at("env/mpich").to_string_lossy().into_owned());
        assert_eq!(chosen(None, &search_environment), Ok(at("env/mpich/bin/mpiexec")));
        assert_eq!(chosen(Some("openmpi"), &search_environment), Ok(at("venv/bin/mpiexec")));
        assert_eq!(
            chosen(Some("/no/such"), &search_environment).unwrap_err(),
            "--mpi /no/such: is no mpich, openmpi or intel, no prefix with bin/mpiexec, and no mpiexec"
        );
        let nothing = choose(None, &SearchEnvironment::default()).unwrap_err().to_string();
        assert!(nothing.starts_with("no MPI found"), "{nothing}");
        assert_eq!(find_all(&search_environment).len(), 3);
    }

    #[test]
    fn a_program_of_an_installation_belongs_to_its_mpi_whatever_is_in_path() {
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
        // A program that lies nowhere in particular runs under the MPI that it is linked with, if there is one.
        search_environment.program = Some(at("program"));
        std::fs::write(at("program"), b"\x7fELF libmpi.so.12\0").unwrap();
        search_environment.private = Some(at("env"));
        assert_eq!(chosen(None, &search_environment), Ok(at("env/mpich/bin/mpiexec")));
        std::fs::write(at("program"), b"\x7fELF libmpi.so.40\0").unwrap();
        assert_eq!(chosen(None, &search_environment), Ok(at("path/bin/mpiexec")));
        search_environment.program = Some(at("env/mpich/libexec/tests/program"));
        // One somewhere below the home directory is no part of what is in ~/bin.
        search_environment.home = Some(whole("env/mpich"));
        assert_eq!(chosen(None, &search_environment), Ok(at("path/bin/mpiexec")));
    }
}
