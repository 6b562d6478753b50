//! The command line and the environment of a job over weir or, for comparison, over another transport.
//!
//! Nothing is started here: [`Launch::command`] returns the command. [`Launch::overridden`] tells which variables of
//! the user have no effect. Each MPI needs other settings; `weir doctor` prints them ([`recipe`]). With MPICH they
//! include the library that keeps ranks in one session, if it is installed. [`Launch::across`] spreads the ranks over hosts.

mod across;

pub use across::SSH;

use crate::find::{Kind, Mpi};
use crate::provider_file;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of the provider in libfabric.
pub const PROVIDER: &str = "weir";

/// A job that can be started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The launcher, its arguments, the program and its arguments.
    command_line: Vec<OsString>,
    /// Variables to set, or to remove if `None`.
    changes: BTreeMap<String, Option<OsString>>,
    /// The job has ranks on other hosts, and this launcher.
    passes_on: Option<Kind>,
}

/// The transport of a job's messages.
#[derive(Clone, Copy, Debug)]
pub enum JobTransport<'a> {
    /// weir, with the directory that holds only its plug-in.
    Weir(&'a Path),
    /// The MPI's own shared memory, its default within a node.
    OwnSharedMemory,
    /// A provider of libfabric.
    Libfabric(&'a str),
    /// UCX.
    Ucx,
}

impl Launch {
    /// A job of `ranks` ranks under `mpi`. `launcher_arguments` come before the arguments of weir.
    pub fn new(
        mpi: &Mpi,
        ranks: u32,
        job_transport: JobTransport<'_>,
        launcher_arguments: &[String],
    ) -> Launch {
        let command_line = vec![mpi.mpiexec.clone().into()];
        let mut launch = Launch { command_line, changes: BTreeMap::new(), passes_on: None };
        launch.command_line.extend(launcher_arguments.iter().map(OsString::from));
        launch.command_line.extend(["-n".into(), ranks.to_string().into()]);
        launch.leave_outer_job();
        match mpi.kind {
            Kind::Mpich => launch.set_up_mpich(job_transport),
            Kind::OpenMpi => launch.set_up_open_mpi(mpi.major(), job_transport),
            Kind::Intel => launch.set_up_intel(mpi, job_transport),
        }
        if let Some(directory) = mpi.library_dir() {
            // Programs built for another MPI with the same ABI (Intel's IMB under MPICH) must find this MPI's library.
            launch.prepend("LD_LIBRARY_PATH", &directory);
        }
        launch
    }

    /// Runs the launcher by another command, such as `nsenter`.
    pub fn run_inside(&mut self, words: &[String]) {
        self.command_line.splice(0..0, words.iter().map(OsString::from));
    }

    /// Sets a variable for the ranks.
    pub fn set(&mut self, variable: &str, value: impl Into<OsString>) {
        self.changes.insert(variable.to_owned(), Some(value.into()));
    }

    /// Makes the ranks load a library before their own.
    pub fn preload(&mut self, library: &Path) {
        self.prepend(PRELOAD, library);
    }

    /// Makes the ranks load a library before their own, but after those that the user has them load.
    pub fn preload_last(&mut self, library: &Path) {
        match self.value(PRELOAD) {
            Some(mut others) => {
                others.push(":");
                others.push(library);
                self.set(PRELOAD, others);
            }
            None => self.set(PRELOAD, library),
        }
    }

    /// Lets the layers of a core provider find each other (`A,B`): libfabric hides what `FI_PROVIDER` does not name. A launch
    /// of Intel MPI does not set it, and Intel's libfabric has no layers.
    pub fn show_layers(&mut self, layers: &str) {
        if let Some(Some(value)) = self.changes.get_mut("FI_PROVIDER") {
            *value = format!("{PROVIDER},{layers}").into();
        }
    }

    /// Removes a variable for the ranks.
    pub fn remove(&mut self, variable: &str) {
        self.changes.insert(variable.to_owned(), None);
    }

    /// Ends the command line with the program.
    pub fn program(&mut self, program: &Path, arguments: impl IntoIterator<Item = impl Into<OsString>>) {
        let passed_on = self.passed_on(std::env::vars_os());
        self.command_line.splice(1..1, passed_on);
        self.command_line.push(program.into());
        self.command_line.extend(arguments.into_iter().map(Into::into));
    }

    /// The command to start.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.command_line[0]);
        command.args(&self.command_line[1..]);
        for (variable, value) in &self.changes {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        command
    }

    /// The command line.
    pub fn command_line(&self) -> impl Iterator<Item = &OsStr> {
        self.command_line.iter().map(OsString::as_os_str)
    }

    /// One line for each inherited variable that is replaced or removed, since the user may expect it to have an
    /// effect.
    pub fn overridden(&self, inherited: impl Fn(&str) -> Option<OsString>) -> Vec<String> {
        let mut notes = Vec::new();
        for (variable, value) in &self.changes {
            let Some(old) = inherited(variable) else { continue };
            let old = old.to_string_lossy();
            match value {
                Some(_) if variable == "LD_LIBRARY_PATH" || variable == "LD_PRELOAD" => {} // extended, not replaced
                Some(new) if *new == *old => {}
                Some(new) => notes.push(format!(
                    "{variable}={old} from the environment is replaced by {variable}={}",
                    new.to_string_lossy()
                )),
                None => notes.push(format!("{variable}={old} from the environment is not passed on")),
            }
        }
        notes
    }

    /// Removes the connections of an outer job: a launcher inside a rank must not use them.
    fn leave_outer_job(&mut self) {
        const PREFIXES: [&str; 5] =
            ["PMI_", "PMIX_", "OMPI_COMM_WORLD_", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"];
        for (variable, _) in std::env::vars_os() {
            let Some(variable) = variable.to_str() else { continue };
            if PREFIXES.iter().any(|prefix| variable.starts_with(prefix)) {
                self.remove(variable);
            }
        }
    }

    fn set_up_mpich(&mut self, job_transport: JobTransport<'_>) {
        // Each control variable has three prefixes. The other spellings must not contradict.
        for prefix in ["MPIR_CVAR_", "MPICH_", "MPIR_PARAM_"] {
            for name in ["CH4_NETMOD", "NOLOCAL", "NO_LOCAL", "OFI_USE_PROVIDER"] {
                self.remove(&format!("{prefix}{name}"));
            }
        }
        self.remove("FI_PROVIDER");
        self.remove("FI_PROVIDER_PATH");
        let (netmod, provider) = match job_transport {
            JobTransport::OwnSharedMemory => return,
            JobTransport::Ucx => ("ucx", None),
            JobTransport::Libfabric(provider) => ("ofi", Some(provider)),
            JobTransport::Weir(directory) => {
                self.set("FI_PROVIDER_PATH", directory);
                if let Some(library) = session_library(&directory.join(provider_file::INSTALLED_NAME)) {
                    self.preload(&library);
                }
                // MPICH allocates its own queues even if it does not use them: 1 to 2 MiB of /dev/shm for each rank.
                if std::env::var_os(MPICH_QUEUE_CELLS).is_none() {
                    self.set(MPICH_QUEUE_CELLS, "4");
                }
                ("ofi", Some(PROVIDER))
            }
        };
        self.set("MPIR_CVAR_CH4_NETMOD", netmod);
        // Without this, ranks of one node always use MPICH's own shared memory.
        self.set("MPIR_CVAR_NOLOCAL", "1");
        if let Some(provider) = provider {
            self.set("FI_PROVIDER", provider);
        }
    }

    fn set_up_open_mpi(&mut self, major: u32, job_transport: JobTransport<'_>) {
        for component in ["pml", "mtl"] {
            self.remove(&format!("OMPI_MCA_{component}"));
        }
        for list in ["include", "exclude"] {
            self.remove(&format!("OMPI_MCA_opal_common_ofi_provider_{list}"));
            self.remove(&format!("OMPI_MCA_mtl_ofi_provider_{list}"));
        }
        self.remove("FI_PROVIDER");
        self.remove("FI_PROVIDER_PATH");
        if let JobTransport::Weir(directory) = job_transport {
            self.set("FI_PROVIDER_PATH", directory);
            self.set("FI_PROVIDER", PROVIDER);
            let mut mca = |name: &str, value: &str| {
                self.command_line.extend(["--mca", name, value].map(OsString::from))
            };
            // Windows stay with Open MPI's own components, since its libfabric component needs remote atomics.
            mca("pml", "cm");
            mca("mtl", "ofi");
            mca("opal_common_ofi_provider_include", PROVIDER);
            if major < 5 {
                mca("mtl_ofi_provider_include", PROVIDER);
            }
        }
        let crowded: &[&str] = if major < 5 { &["--oversubscribe"] } else { &["--map-by", ":OVERSUBSCRIBE"] };
        self.command_line.extend(crowded.iter().map(OsString::from));
        if nix::unistd::geteuid().is_root() {
            self.command_line.push("--allow-run-as-root".into());
        }
    }

    fn set_up_intel(&mut self, mpi: &Mpi, job_transport: JobTransport<'_>) {
        // Intel's libfabric warns if two variables name the provider in different words.
        self.remove("FI_PROVIDER");
        match job_transport {
            JobTransport::Weir(directory) => {
                self.set("I_MPI_FABRICS", "ofi");
                // Otherwise collectives within a node would use a segment of Intel MPI.
                if std::env::var_os(INTEL_COLLECTIVES).is_none() {
                    self.set(INTEL_COLLECTIVES, "pt2pt");
                }
                self.set("I_MPI_OFI_PROVIDER", PROVIDER);
                self.set("FI_PROVIDER_PATH", directory);
            }
            JobTransport::OwnSharedMemory | JobTransport::Libfabric(_) | JobTransport::Ucx => {
                self.remove("I_MPI_FABRICS");
                self.remove("I_MPI_OFI_PROVIDER");
                // Intel MPI from PyPI has its providers beside its library.
                if let Some(directory) = mpi.library_dir() {
                    self.set("FI_PROVIDER_PATH", directory);
                }
            }
        }
        if let Some(prefix) = mpi.bin_dir().parent() {
            self.set("I_MPI_ROOT", prefix);
        }
    }

    /// Puts a path before the value of the variable, which is inherited if the launch has not set it.
    fn prepend(&mut self, variable: &str, path: &Path) {
        let mut value = path.as_os_str().to_owned();
        if let Some(rest) = self.value(variable) {
            value.push(":");
            value.push(rest);
        }
        self.set(variable, value);
    }

    /// The value of the variable, which is inherited if the launch has not set it. `None`: it has none, or an empty one.
    fn value(&self, variable: &str) -> Option<OsString> {
        let set = self.changes.get(variable).cloned().flatten();
        set.or_else(|| std::env::var_os(variable)).filter(|value| !value.is_empty())
    }
}

/// The libraries that the dynamic linker preloads.
const PRELOAD: &str = "LD_PRELOAD";

/// The library that keeps the ranks of MPICH's launcher in one session (`crates/session`), in the directory of the file
/// that `plug_in` links to. Without it each rank has its own session, as without weir.
pub fn session_library(plug_in: &Path) -> Option<PathBuf> {
    library_beside(plug_in, "libweir-session.so")
}

/// The library that gives MPI programs the collective operations of node groups (`crates/collectives`), in the directory
/// of the file that `plug_in` links to.
pub fn collectives_library(plug_in: &Path) -> Option<PathBuf> {
    library_beside(plug_in, "libweir-mpi.so")
}

fn library_beside(plug_in: &Path, name: &str) -> Option<PathBuf> {
    let library = plug_in.canonicalize().ok()?.with_file_name(name);
    // The linker ends a name at colons and blanks.
    let usable = !library.as_os_str().as_encoded_bytes().iter().any(|byte| b": ".contains(byte));
    (usable && library.is_file()).then_some(library)
}

/// MPICH: cells of 16 KiB in each rank's queue of its own shared memory, which jobs over weir do not use.
const MPICH_QUEUE_CELLS: &str = "MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_NUM_CELLS";
/// Intel MPI: the transport of collectives within a node.
const INTEL_COLLECTIVES: &str = "I_MPI_COLL_INTRANODE";

/// The settings with which an MPI uses weir, for users who start jobs themselves.
pub fn recipe(mpi: &Mpi, provider_directory: &Path) -> String {
    let launch = Launch::new(mpi, 1, JobTransport::Weir(provider_directory), &[]);
    let shown = [
        "FI_PROVIDER",
        "FI_PROVIDER_PATH",
        "LD_PRELOAD",
        "MPIR_CVAR_CH4_NETMOD",
        "MPIR_CVAR_NOLOCAL",
        "I_MPI_FABRICS",
        "I_MPI_OFI_PROVIDER",
        INTEL_COLLECTIVES,
    ];
    let variables = launch
        .changes
        .iter()
        .filter_map(|(variable, value)| Some((variable, value.as_ref()?)))
        .filter(|(variable, _)| shown.contains(&variable.as_str()))
        .map(|(variable, value)| format!("{variable}={}", value.to_string_lossy()));
    let command_line: Vec<_> = launch.command_line.iter().map(|word| word.to_string_lossy()).collect();
    let options =
        command_line[3..].chunks(3).take_while(|chunk| chunk[0] == "--mca").map(|chunk| chunk.join(" "));
    variables.chain(options).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(kind: Kind, version: &str, job_transport: JobTransport<'_>) -> Launch {
        let mpi = Mpi {
            kind,
            version: version.into(),
            mpiexec: PathBuf::from("/opt/mpi/bin/mpiexec"),
            found: "test".into(),
            unusable: None,
        };
        let mut launch = Launch::new(&mpi, 4, job_transport, &["-l".into()]);
        launch.program(Path::new("/bin/prog"), ["--x", "1"]);
        launch
    }

    fn variable(launch: &Launch, name: &str) -> Option<String> {
        launch.changes.get(name)?.as_ref().map(|value| value.to_string_lossy().into_owned())
    }

    fn line(launch: &Launch) -> String {
        launch.command_line().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    const WEIR: fn() -> JobTransport<'static> = || JobTransport::Weir(Path::new("/w"));

    #[test]
    fn layers_of_a_core_provider_are_named_where_libfabric_would_hide_them() {
        for (kind, version, shown) in [
            (Kind::Mpich, "5.0.2", Some("weir,tcp,ofi_rxm")),
            (Kind::OpenMpi, "5.0.11", Some("weir,tcp,ofi_rxm")),
            (Kind::Intel, "2021.18", None),
        ] {
            let mut launch = launch(kind, version, WEIR());
            launch.show_layers("tcp,ofi_rxm");
            assert_eq!(variable(&launch, "FI_PROVIDER").as_deref(), shown);
        }
    }

    #[test]
    fn mpich_over_weir() {
        let launch = launch(Kind::Mpich, "5.0.2", WEIR());
        assert_eq!(line(&launch), "/opt/mpi/bin/mpiexec -l -n 4 /bin/prog --x 1");
        let get = |name| variable(&launch, name);
        assert_eq!(get("FI_PROVIDER").as_deref(), Some("weir"));
        assert_eq!(get("FI_PROVIDER_PATH").as_deref(), Some("/w"));
        assert_eq!(get("MPIR_CVAR_CH4_NETMOD").as_deref(), Some("ofi"));
        assert_eq!(get("MPIR_CVAR_NOLOCAL").as_deref(), Some("1"));
        assert_eq!(get(MPICH_QUEUE_CELLS).as_deref(), Some("4"), "MPICH leaves /dev/shm to weir");
        assert_eq!(launch.changes.get("MPICH_NOLOCAL"), Some(&None));
    }

    #[test]
    fn a_launcher_can_run_inside_another_command() {
        let mut launch = launch(Kind::Mpich, "5.0.2", WEIR());
        launch.run_inside(&["nsenter".to_owned(), "--".to_owned()]);
        assert_eq!(line(&launch), "nsenter -- /opt/mpi/bin/mpiexec -l -n 4 /bin/prog --x 1");
        assert_eq!(launch.command().get_program(), "nsenter");
    }

    #[test]
    fn ranks_of_mpich_share_a_session_if_the_session_library_is_installed() {
        let root = tempfile::tempdir().unwrap();
        let preload = |kind, job_transport| variable(&launch(kind, "5.0", job_transport), "LD_PRELOAD");
        let weir = JobTransport::Weir(root.path());
        let library = root.path().canonicalize().unwrap().join("libweir-session.so");
        std::fs::write(root.path().join("libweir-fi.so"), "").unwrap();
        assert_eq!(preload(Kind::Mpich, weir), None);
        std::fs::write(&library, "").unwrap();
        let value = preload(Kind::Mpich, weir).expect("a value");
        assert_eq!(value.split(':').next(), library.to_str());
        for (kind, job_transport) in [
            (Kind::Intel, weir),
            (Kind::OpenMpi, weir),
            (Kind::Mpich, JobTransport::Ucx),
            (Kind::Mpich, JobTransport::OwnSharedMemory),
        ] {
            assert_eq!(preload(kind, job_transport), None);
        }
    }

    #[test]
    fn mpich_over_other_transports() {
        let own = launch(Kind::Mpich, "5.0.2", JobTransport::OwnSharedMemory);
        assert_eq!(own.changes.get("MPIR_CVAR_NOLOCAL"), Some(&None));
        let tcp = launch(Kind::Mpich, "5.0.2", JobTransport::Libfabric("tcp"));
        assert_eq!(variable(&tcp, "FI_PROVIDER").as_deref(), Some("tcp"));
        assert_eq!(tcp.changes.get("FI_PROVIDER_PATH"), Some(&None));
        let ucx = launch(Kind::Mpich, "5.0.2", JobTransport::Ucx);
        assert_eq!(variable(&ucx, "MPIR_CVAR_CH4_NETMOD").as_deref(), Some("ucx"));
        assert_eq!(variable(&ucx, "FI_PROVIDER"), None);
    }

    #[test]
    fn open_mpi_over_weir() {
        let five = line(&launch(Kind::OpenMpi, "5.0.11", WEIR()));
        assert!(
            five.contains("--mca pml cm --mca mtl ofi --mca opal_common_ofi_provider_include weir"),
            "{five}"
        );
        assert!(five.contains("--map-by :OVERSUBSCRIBE") && !five.contains("mtl_ofi_provider"), "{five}");
        let four = line(&launch(Kind::OpenMpi, "4.1.4", WEIR()));
        assert!(
            four.contains("--mca mtl_ofi_provider_include weir") && four.contains("--oversubscribe"),
            "{four}"
        );
    }

    #[test]
    fn intel_mpi_over_weir() {
        let launch = launch(Kind::Intel, "2021.18.1", WEIR());
        assert_eq!(variable(&launch, "I_MPI_FABRICS").as_deref(), Some("ofi"));
        assert_eq!(variable(&launch, "I_MPI_OFI_PROVIDER").as_deref(), Some("weir"));
        assert_eq!(variable(&launch, "I_MPI_ROOT").as_deref(), Some("/opt/mpi"));
        assert_eq!(launch.changes.get("FI_PROVIDER"), Some(&None));
    }

    #[test]
    fn other_mpis_without_weir() {
        let open = launch(Kind::OpenMpi, "5.0.11", JobTransport::OwnSharedMemory);
        let command_line = line(&open);
        assert!(command_line.contains("OVERSUBSCRIBE") && !command_line.contains("--mca"), "{command_line}");
        assert_eq!(open.changes.get("FI_PROVIDER_PATH"), Some(&None));
        let intel = launch(Kind::Intel, "2021.18.1", JobTransport::OwnSharedMemory);
        assert_eq!(intel.changes.get("I_MPI_FABRICS"), Some(&None));
        assert_eq!(variable(&intel, "I_MPI_ROOT").as_deref(), Some("/opt/mpi"));
    }

    #[test]
    fn several_libraries_are_preloaded_before_those_of_the_user() {
        let mut launch = launch(Kind::Mpich, "5.0", WEIR());
        launch.preload(Path::new("/w/libfirst.so"));
        launch.preload(Path::new("/w/libsecond.so"));
        launch.preload_last(Path::new("/w/liblast.so"));
        let value = variable(&launch, "LD_PRELOAD").expect("a value");
        assert!(value.starts_with("/w/libsecond.so:/w/libfirst.so:"), "{value}");
        assert!(value.ends_with(":/w/liblast.so"), "{value}");
    }

    #[test]
    fn overridden_variables_are_reported() {
        let launch = launch(Kind::Mpich, "5.0.2", WEIR());
        let notes = launch.overridden(|name| match name {
            "FI_PROVIDER" => Some("tcp".into()),
            "MPIR_CVAR_NOLOCAL" => Some("1".into()),
            "MPICH_NO_LOCAL" => Some("0".into()),
            _ => None,
        });
        assert_eq!(
            notes,
            [
                "FI_PROVIDER=tcp from the environment is replaced by FI_PROVIDER=weir",
                "MPICH_NO_LOCAL=0 from the environment is not passed on",
            ]
        );
    }

    #[test]
    fn recipes_name_the_provider_and_its_directory() {
        let mpi = |kind| Mpi {
            kind,
            version: "5.0".into(),
            mpiexec: "/opt/mpi/bin/mpiexec".into(),
            found: String::new(),
            unusable: None,
        };
        assert_eq!(
            recipe(&mpi(Kind::OpenMpi), Path::new("/w")),
            "FI_PROVIDER=weir FI_PROVIDER_PATH=/w --mca pml cm --mca mtl ofi --mca opal_common_ofi_provider_include weir"
        );
        assert_eq!(
            recipe(&mpi(Kind::Intel), Path::new("/w")),
            "FI_PROVIDER_PATH=/w I_MPI_COLL_INTRANODE=pt2pt I_MPI_FABRICS=ofi I_MPI_OFI_PROVIDER=weir"
        );
    }
}
