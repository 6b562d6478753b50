//! Whether the ranks of a job do collective operations in shared memory: they load `libweir-mpi.so` then.
//!
//! This is the default, so a library that is missing is an error only if the user has asked for it.

use std::path::{Path, PathBuf};
use weir_engine::config::{AcrossHosts, Settings};
use weir_mpi::launch;
use weir_output::Failure;

/// The setting.
pub const VARIABLE: &str = "FI_WEIR_COLLECTIVES";

/// How the ranks do collective operations.
#[derive(Debug, PartialEq, Eq)]
pub enum Collectives {
    /// By messages, since the setting is off or nobody expects anything else.
    Off,
    /// In shared memory, if they load this library.
    Preload(PathBuf),
    /// By messages, for this reason.
    Messages(String),
}

impl Collectives {
    /// Finds the library for collective operations.
    ///
    /// - `is_asked_for`: the user has set the setting on, so a library that is missing is an error.
    pub fn find(
        settings: &Settings,
        provider: &Path,
        is_across_hosts: bool,
        is_asked_for: bool,
    ) -> Result<Collectives, Failure> {
        if !settings.collectives {
            return Ok(Collectives::Off);
        }
        if is_across_hosts && settings.collectives_across == AcrossHosts::Never {
            let why = || {
                Collectives::Messages(String::from("the job is across hosts (FI_WEIR_COLLECTIVES_ACROSS=0)"))
            };
            return Ok(if is_asked_for { why() } else { Collectives::Off });
        }
        match launch::collectives_library(provider) {
            Some(library) => Ok(Collectives::Preload(library)),
            None if is_asked_for => Err(Failure::Usage(format!(
                "{VARIABLE}=1: no libweir-mpi.so that can be loaded is beside {}; install it there, in a directory without \
                 blanks and colons in its name, or set --collectives off",
                provider.display()
            ))),
            None => Ok(Collectives::Messages(format!(
                "no libweir-mpi.so that can be loaded is beside {}",
                provider.display()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_load_the_library_for_collective_operations_as_the_settings_say() {
        let directory = tempfile::tempdir().unwrap();
        let provider = directory.path().join("libweir-fi.so");
        std::fs::write(&provider, "").unwrap();
        let on = Settings { collectives: true, ..Settings::default() };
        let off = Settings { collectives: false, ..Settings::default() };
        let find = |settings: &Settings, is_across_hosts: bool, is_asked_for: bool| {
            Collectives::find(settings, &provider, is_across_hosts, is_asked_for)
        };
        let refusal = find(&on, false, true).unwrap_err().to_string();
        assert!(
            refusal.starts_with("FI_WEIR_COLLECTIVES=1: no libweir-mpi.so that can be loaded is beside "),
            "{refusal}"
        );
        let missing = find(&on, false, false).unwrap();
        assert!(
            matches!(&missing, Collectives::Messages(why) if why.starts_with("no libweir-mpi.so ")),
            "{missing:?}"
        );
        assert_eq!(find(&off, false, true).unwrap(), Collectives::Off);
        let library = directory.path().canonicalize().unwrap().join("libweir-mpi.so");
        std::fs::write(&library, "").unwrap();
        for is_asked_for in [true, false] {
            assert_eq!(find(&on, false, is_asked_for).unwrap(), Collectives::Preload(library.clone()));
        }
        for across in [AcrossHosts::WhereShared, AcrossHosts::Always] {
            let across = Settings { collectives_across: across, ..on.clone() };
            assert_eq!(find(&across, true, false).unwrap(), Collectives::Preload(library.clone()));
        }
        let never = Settings { collectives_across: AcrossHosts::Never, ..on };
        assert_eq!(find(&never, true, false).unwrap(), Collectives::Off, "nobody expects it");
        let why = "the job is across hosts (FI_WEIR_COLLECTIVES_ACROSS=0)";
        assert_eq!(find(&never, true, true).unwrap(), Collectives::Messages(why.into()));
    }
}
