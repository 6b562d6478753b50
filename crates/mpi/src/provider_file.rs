//! Finds `libweir-fi.so`, and makes a directory for libfabric that holds nothing else.
//!
//! libfabric loads every file ending in `fi.so` from `FI_PROVIDER_PATH`, so the directory must hold nothing else.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use weir_output::Failure;

/// Name of the plug-in.
pub const INSTALLED_NAME: &str = "libweir-fi.so";
const CARGO_NAME: &str = "libweir_fi.so";

/// Finds the plug-in: `WEIR_PROVIDER_PATH` (the file or its directory), `../lib` or `../lib/weir` from the command
/// (as built by make, and as installed), or beside a command that cargo has built.
///
/// # Errors
/// [`Failure::NoProvider`].
pub fn find(configured: Option<&OsStr>, executable: &Path) -> Result<PathBuf, Failure> {
    let mut searched = Vec::new();
    match configured.filter(|value| !value.is_empty()) {
        Some(configured) => {
            let path = PathBuf::from(configured);
            searched.extend(if path.is_dir() {
                vec![path.join(INSTALLED_NAME), path.join(CARGO_NAME)]
            } else {
                vec![path]
            });
        }
        None => {
            let directory = executable.parent().unwrap_or(Path::new("/"));
            let prefix = directory.parent().unwrap_or(directory);
            searched.push(prefix.join("lib").join(INSTALLED_NAME));
            searched.push(prefix.join("lib/weir").join(INSTALLED_NAME));
            searched.push(directory.join(CARGO_NAME));
            // Tests of cargo run from `deps`.
            searched.push(prefix.join(CARGO_NAME));
        }
    }
    match searched.iter().find(|path| path.is_file()) {
        Some(path) => path.canonicalize().map_err(Failure::system(format!("{}", path.display()))),
        None => Err(Failure::NoProvider { searched }),
    }
}

/// Finds the plug-in for this process.
///
/// # Errors
/// [`Failure::NoProvider`].
pub fn find_for_this_command() -> Result<PathBuf, Failure> {
    let executable = std::env::current_exe().and_then(|path| path.canonicalize());
    let executable = executable.map_err(Failure::system("the path of this command"))?;
    find(std::env::var_os("WEIR_PROVIDER_PATH").as_deref(), &executable)
}

/// Whether a file begins as a library of this system does (ELF). A copy that was cut off at its begin does not.
///
/// # Errors
/// It cannot be read.
pub fn is_library(path: &Path) -> std::io::Result<bool> {
    const MAGIC: [u8; 4] = *b"\x7fELF";
    let mut begin = Vec::with_capacity(MAGIC.len());
    std::fs::File::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut begin)?;
    Ok(begin == MAGIC)
}

/// Makes a directory under `scratch` that holds only the plug-in: a symbolic link with the installed name.
///
/// # Errors
/// [`Failure::System`].
pub fn isolate(provider: &Path, scratch: &Path) -> Result<PathBuf, Failure> {
    let directory = scratch.join("provider");
    let make = || {
        std::fs::create_dir(&directory)?;
        std::os::unix::fs::symlink(provider, directory.join(INSTALLED_NAME))
    };
    make().map_err(Failure::system(format!("{}", directory.display())))?;
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plug_in_is_found_where_it_is_installed_built_or_configured() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let executable = root.join("bin/weir");
        let error = find(None, &executable).unwrap_err().to_string();
        assert!(error.contains("lib/libweir-fi.so") && error.contains("WEIR_PROVIDER_PATH"), "{error}");
        assert!(!error.contains('\n'));
        std::fs::create_dir_all(root.join("bin")).unwrap();
        std::fs::create_dir_all(root.join("lib")).unwrap();
        let beside = root.join("bin/libweir_fi.so");
        std::fs::write(&beside, "").unwrap();
        assert_eq!(find(None, &executable).unwrap(), beside);
        std::fs::create_dir_all(root.join("lib/weir")).unwrap();
        let own_place = root.join("lib/weir/libweir-fi.so");
        std::fs::write(&own_place, "").unwrap();
        assert_eq!(find(None, &executable).unwrap(), own_place);
        let installed = root.join("lib/libweir-fi.so");
        std::fs::write(&installed, "").unwrap();
        assert_eq!(find(None, &executable).unwrap(), installed);
        assert_eq!(find(Some(beside.as_os_str()), &executable).unwrap(), beside);
        assert_eq!(find(Some(root.join("bin").as_os_str()), &executable).unwrap(), beside);
        assert!(find(Some(OsStr::new("/no/such")), &executable).is_err());

        assert!(!is_library(&beside).unwrap(), "it is empty");
        assert!(is_library(&std::env::current_exe().unwrap()).unwrap());
        assert!(is_library(&root.join("absent")).is_err());
        let alone = isolate(&beside, &root).unwrap();
        let held: Vec<_> =
            std::fs::read_dir(&alone).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(held, ["libweir-fi.so"]);
        assert_eq!(alone.join("libweir-fi.so").canonicalize().unwrap(), beside);
    }
}
