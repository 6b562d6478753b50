//! Finds the program to run before the launcher starts, so that a misspelled name gives one line instead of N failed
//! ranks. Also tells which MPI library a program is linked with.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use weir_output::Failure;

/// Whether `path` is an executable file.
pub fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// The directories of a `PATH`-like value, without empty ones.
pub fn directories(path: Option<&OsStr>) -> Vec<PathBuf> {
    path.map(|path| {
        std::env::split_paths(path).filter(|directory| !directory.as_os_str().is_empty()).collect()
    })
    .unwrap_or_default()
}

/// Finds `program`. A name with a slash is a path. Other names are searched in `path`, then in `also` (the MPI's own
/// programs and the benchmarks of weir's private environments).
///
/// # Errors
/// [`Failure::NoProgram`], [`Failure::NotExecutable`].
pub fn find(program: &str, path: Option<&OsStr>, also: &[PathBuf]) -> Result<PathBuf, Failure> {
    if program.contains('/') {
        let given = PathBuf::from(program);
        return match given.exists() {
            false => {
                Err(Failure::NoProgram { program: program.to_owned(), searched: String::from("that path") })
            }
            true if is_executable(&given) => Ok(given),
            true => Err(Failure::NotExecutable(given)),
        };
    }
    let candidates =
        directories(path).into_iter().chain(also.iter().cloned()).map(|directory| directory.join(program));
    candidates.into_iter().find(|candidate| is_executable(candidate)).ok_or_else(|| {
        let mut searched = vec![String::from("PATH")];
        searched.extend(also.iter().map(|directory| directory.display().to_string()));
        Failure::NoProgram { program: program.to_owned(), searched: searched.join(", ") }
    })
}

/// The MPI library that an executable is linked with (`libmpi.so.12`, `libmpi.so.40`), if its bytes contain the name.
/// Only for hints.
pub fn linked_mpi(program: &Path) -> Option<&'static str> {
    let bytes = std::fs::read(program).ok().filter(|bytes| bytes.starts_with(b"\x7fELF"))?;
    ["libmpi.so.12", "libmpi.so.40", "libmpi_abi.so.1", "libmpi.so.0"].into_iter().find(|name| {
        let wanted: Vec<u8> = [name.as_bytes(), b"\0"].concat();
        bytes.windows(wanted.len()).any(|window| window == wanted)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_path_then_elsewhere() {
        let here = tempfile::tempdir().unwrap();
        let tool = here.path().join("tool");
        std::fs::write(&tool, "#!/bin/sh\n").unwrap();
        let also = [here.path().to_owned()];
        let path = Some(OsStr::new("/bin:/usr/bin"));
        assert!(matches!(find("tool", path, &also), Err(Failure::NoProgram { .. })), "not executable yet");
        assert!(matches!(find(tool.to_str().unwrap(), path, &also), Err(Failure::NotExecutable(_))));
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find("tool", path, &also).unwrap(), tool);
        assert_eq!(find(tool.to_str().unwrap(), None, &[]).unwrap(), tool);
        assert_eq!(find("sh", path, &also).unwrap(), Path::new("/bin/sh"));
        assert_eq!(
            find("no-such", path, &[]).unwrap_err().to_string(),
            "no-such: program not found (searched: PATH)"
        );
        assert_eq!(
            find("/no/such", path, &[]).unwrap_err().to_string(),
            "/no/such: program not found (searched: that path)"
        );
    }
}
