//! The file of `weir tune --save`, with one setting in each line. `weir run` reads it.
//!
//! Each host has a file of its own, because hosts that differ may share a home directory. Users may edit the file: `weir
//! run` checks it like settings of the environment.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use weir_output::Failure;

/// The saved settings of this host.
#[derive(Debug)]
pub struct Saved {
    /// The file.
    pub path: PathBuf,
    /// Values by variable.
    pub settings: BTreeMap<String, String>,
}

/// The file of this host.
///
/// # Errors
/// [`Failure`]: there is no home directory, or the host has no name.
pub fn path() -> Result<PathBuf, Failure> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
    let directory = directory.ok_or_else(|| {
        Failure::Usage(String::from("there is no directory for saved settings: set XDG_CONFIG_HOME or HOME"))
    })?;
    let host = nix::unistd::gethostname().map_err(|error| Failure::System {
        what: String::from("the name of this host"),
        source: error.into(),
    })?;
    let host = host.to_string_lossy().replace('/', "_");
    Ok(directory.join("weir").join(format!("{host}.settings")))
}

/// Saves `value` in the file; empty: removes the setting. Other settings stay.
///
/// # Errors
/// [`Failure`]: the file cannot be read or written, or has a line that is no setting. The previous file then remains.
pub fn set(path: &Path, variable: &str, value: &str) -> Result<(), Failure> {
    let mut settings = read(path)?.unwrap_or_default();
    settings.insert(variable.to_owned(), value.to_owned());
    settings.retain(|_, value| !value.is_empty());
    write(path, &settings)
}

/// Replaces the file.
fn write(path: &Path, settings: &BTreeMap<String, String>) -> Result<(), Failure> {
    let failed = || Failure::system(format!("cannot write {}", path.display()));
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory).map_err(failed())?;
    let mut text =
        String::from("# Measured by `weir tune --save` on this host. `weir run` reads this file.\n");
    settings.iter().for_each(|(variable, value)| text.push_str(&format!("{variable}={value}\n")));
    let mut file = tempfile::NamedTempFile::new_in(directory).map_err(failed())?;
    std::io::Write::write_all(&mut file, text.as_bytes()).map_err(failed())?;
    file.persist(path).map_err(|error| failed()(error.error))?;
    Ok(())
}

/// Removes the file. Returns whether there was one.
///
/// # Errors
/// [`Failure`]: the file cannot be removed.
pub fn remove(path: &Path) -> Result<bool, Failure> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Failure::system(format!("cannot remove {}", path.display()))(error)),
    }
}

/// The saved settings of this host, if there are any.
///
/// # Errors
/// [`Failure`]: the file cannot be read, or has a line that is no setting.
pub fn of_this_host() -> Result<Option<Saved>, Failure> {
    let Ok(path) = path() else { return Ok(None) };
    Ok(read(&path)?.map(|settings| Saved { path, settings }))
}

fn read(path: &Path) -> Result<Option<BTreeMap<String, String>>, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(path, &text).map(Some),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(Failure::system(format!("cannot read {}", path.display()))(error)),
    }
}

fn parse(path: &Path, text: &str) -> Result<BTreeMap<String, String>, Failure> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let wanted = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    wanted
        .map(|(number, line)| match line.split_once('=') {
            Some((variable, value)) => Ok((variable.trim().to_owned(), value.trim().to_owned())),
            None => Err(Failure::Usage(format!(
                "{}:{number}: {line}: a line must have the form FI_WEIR_NAME=VALUE, or begin with #",
                path.display()
            ))),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_settings_are_read_back_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir/host.settings");
        assert!(!remove(&path).unwrap());
        let saved = || -> Vec<String> {
            let settings = read(&path).unwrap().unwrap_or_default();
            settings.iter().map(|(variable, value)| format!("{variable}={value}")).collect()
        };
        assert_eq!(saved(), [""; 0]);
        set(&path, "FI_WEIR_EAGER_BYTES", "8192").unwrap();
        set(&path, "FI_WEIR_EAGER_BYTES", "4096").unwrap();
        set(&path, "FI_WEIR_ADMIT_THRESHOLDS", "udp:2048:4:96").unwrap();
        assert_eq!(saved(), ["FI_WEIR_ADMIT_THRESHOLDS=udp:2048:4:96", "FI_WEIR_EAGER_BYTES=4096"]);
        set(&path, "FI_WEIR_ADMIT_THRESHOLDS", "").unwrap();
        assert_eq!(saved(), ["FI_WEIR_EAGER_BYTES=4096"], "an empty value removes a setting");
        assert!(remove(&path).unwrap() && !path.exists());
    }

    #[test]
    fn an_invalid_line_is_reported_with_its_number() {
        let error = parse(Path::new("f"), "# one\n\n eager \n").unwrap_err().to_string();
        assert_eq!(error, "f:3: eager: a line must have the form FI_WEIR_NAME=VALUE, or begin with #");
    }
}
