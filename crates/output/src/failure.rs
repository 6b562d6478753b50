//! Why a command ends without having done its work: one line for the user, one exit status for scripts.

use std::path::PathBuf;
use weir_engine::config::SettingError;

/// A failure of `weir` itself (the program's own failures are passed on, not described).
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A setting is not allowed, or does not fit the number of ranks.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// No MPI that could run the program.
    #[error("{0}")]
    NoMpi(String),
    /// The provider plug-in is not there.
    #[error(
        "libweir-fi.so was not found (looked at {}); build it with `make build`, or set WEIR_PROVIDER_PATH",
        list(.looked_at)
    )]
    NoProvider {
        /// Where it could have been.
        looked_at: Vec<PathBuf>,
    },
    /// The program is not there.
    #[error("{program}: program not found (looked at {looked_at})")]
    NoProgram {
        /// As given.
        program: String,
        /// Where it could have been, in words.
        looked_at: String,
    },
    /// The program is there, but is no program.
    #[error("{}: is not an executable file", .0.display())]
    NotExecutable(PathBuf),
    /// A signal ended the command.
    #[error("ended by signal {0}")]
    Interrupted(i32),
    /// A benchmark could not measure.
    #[error("{0}")]
    Measurement(String),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl Failure {
    /// Exit status: 2 for what the user can correct on the command line, 126 and 127 as shells have it for programs that
    /// cannot be run and that are not found, 128 and the signal's number for a signal, else 1.
    pub fn status(&self) -> u8 {
        match self {
            Failure::Usage(_) | Failure::Setting(_) => 2,
            Failure::NotExecutable(_) => 126,
            Failure::NoMpi(_) | Failure::NoProgram { .. } => 127,
            Failure::Interrupted(signal) => 128 + u8::try_from(*signal).unwrap_or(0),
            Failure::NoProvider { .. } | Failure::Measurement(_) | Failure::System { .. } => 1,
        }
    }

    /// For `map_err`: the operating system refused `what`.
    pub fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Failure {
        let what = what.into();
        |source| Failure::System { what, source }
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
