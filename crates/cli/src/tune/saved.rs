//! What `weir tune --save` leaves for `weir run`: a file for each host, with a setting in each line.
//!
//! For each host, since home directories are shared and hosts differ. The file may be edited: everything in it is checked as settings
//! from the environment are.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use weir_output::Failure;

/// What was saved for this host.
#[derive(Debug)]
pub struct Saved {
    /// Where.
    pub path: PathBuf,
    /// By variable.
    pub settings: BTreeMap<String, String>,
}

/// Where the settings of this host are kept.
///
/// # Errors
/// There is no home directory, or the host has no name.
pub fn path() -> Result<PathBuf, Failure> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
    let directory = directory.ok_or_else(|| {
        Failure::Usage(String::from("neither XDG_CONFIG_HOME nor HOME says where settings are kept"))
    })?;
    let host = nix::unistd::gethostname().map_err(|error| Failure::System {
        what: String::from("the name of this host"),
        source: error.into(),
    })?;
    let host = host.to_string_lossy().replace('/', "_");
    Ok(directory.join("weir").join(format!("{host}.settings")))
}

/// Replaces the file.
///
/// # Errors
/// It cannot be written; what was there stays then.
pub fn write(path: &Path, settings: &[(&str, String)]) -> Result<(), Failure> {
    let failed = || Failure::system(format!("{}", path.display()));
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory).map_err(failed())?;
    let mut text =
        String::from("# Measured by `weir tune --save` on this host; `weir run` takes it from here.\n");
    settings.iter().for_each(|(variable, value)| text.push_str(&format!("{variable}={value}\n")));
    let mut file = tempfile::NamedTempFile::new_in(directory).map_err(failed())?;
    std::io::Write::write_all(&mut file, text.as_bytes()).map_err(failed())?;
    file.persist(path).map_err(|error| failed()(error.error))?;
    Ok(())
}

/// Removes the file. Returns whether there was one.
///
/// # Errors
/// It cannot be removed.
pub fn forget(path: &Path) -> Result<bool, Failure> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Failure::system(format!("{}", path.display()))(error)),
    }
}

/// What was saved for this host; `None` if nothing was.
///
/// # Errors
/// The file cannot be read, or has a line that is no setting.
pub fn of_this_host() -> Result<Option<Saved>, Failure> {
    let Ok(path) = path() else { return Ok(None) };
    match std::fs::read_to_string(&path) {
        Ok(text) => parse(&path, &text).map(|settings| Some(Saved { path, settings })),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(Failure::system(format!("{}", path.display()))(error)),
    }
}

fn parse(path: &Path, text: &str) -> Result<BTreeMap<String, String>, Failure> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let wanted = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    wanted
        .map(|(number, line)| match line.split_once('=') {
            Some((variable, value)) => Ok((variable.trim().to_owned(), value.trim().to_owned())),
            None => Err(Failure::Usage(format!(
                "{}:{number}: {line}: a line has the form FI_WEIR_NAME=VALUE, or begins with #",
                path.display()
            ))),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir/host.settings");
        assert!(!forget(&path).unwrap());
        write(&path, &[("FI_WEIR_EAGER_BYTES", String::from("8192"))]).unwrap();
        write(&path, &[("FI_WEIR_EAGER_BYTES", String::from("4096"))]).unwrap();
        let read = parse(&path, &std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(read, BTreeMap::from([(String::from("FI_WEIR_EAGER_BYTES"), String::from("4096"))]));
        assert!(forget(&path).unwrap() && !path.exists());
    }

    #[test]
    fn a_line_that_is_no_setting_is_told_with_its_number() {
        let error = parse(Path::new("f"), "# one\n\n eager \n").unwrap_err().to_string();
        assert_eq!(error, "f:3: eager: a line has the form FI_WEIR_NAME=VALUE, or begins with #");
    }
}
