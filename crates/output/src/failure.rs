//! The reasons why a command fails: one line for the user, one exit status for scripts.

use std::path::PathBuf;
use weir_engine::config::SettingError;

/// A failure of `weir` itself. Failures of the program are passed on instead.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line is not valid.
    #[error("{0}")]
    Usage(String),
    /// A setting is not allowed, or does not fit the number of ranks.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// There is no MPI that could run the program.
    #[error("{0}")]
    NoMpi(String),
    /// The provider plug-in was not found.
    #[error(
        "libweir-fi.so was not found (searched: {}); build it with `make build`, or set WEIR_PROVIDER_PATH",
        list(.searched)
    )]
    NoProvider {
        /// The searched places.
        searched: Vec<PathBuf>,
    },
    /// The program was not found.
    #[error("{program}: program not found (searched: {searched})")]
    NoProgram {
        /// Its name, as given.
        program: String,
        /// The searched places, in words.
        searched: String,
    },
    /// The file is not executable.
    #[error("{}: is not an executable file; make it executable (chmod +x) or name another", .0.display())]
    NotExecutable(PathBuf),
    /// Another host cannot take part.
    #[error("{0}")]
    Host(String),
    /// A signal ended the command.
    #[error("ended by signal {0}")]
    Interrupted(i32),
    /// A benchmark could not measure.
    #[error("{0}")]
    Measurement(String),
    /// The operating system returned an error.
    #[error("{what}: {source}")]
    System {
        /// The action that failed.
        what: String,
        /// The reason.
        source: std::io::Error,
    },
}

impl Failure {
    /// Exit status: 2 for a wrong command line or setting. As in shells: 126 for a program that is not executable, 127
    /// for a program that was not found, 128 plus the signal. Otherwise 1.
    pub fn status(&self) -> u8 {
        match self {
            Failure::Usage(_) | Failure::Setting(_) => 2,
            Failure::NotExecutable(_) => 126,
            Failure::NoMpi(_) | Failure::NoProgram { .. } => 127,
            Failure::Interrupted(signal) => 128 + u8::try_from(*signal).unwrap_or(0),
            Failure::NoProvider { .. }
            | Failure::Host(_)
            | Failure::Measurement(_)
            | Failure::System { .. } => 1,
        }
    }

    /// For `map_err`: an error of the operating system in `what`.
    pub fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Failure {
        let what = what.into();
        |source| Failure::System { what, source }
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
