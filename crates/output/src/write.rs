//! Writes text and JSON records to standard output or to a file. Also checks before the work starts that the file can
//! be written.

use crate::Failure;
use serde::Serialize;
use std::path::Path;

/// Checks before the work starts that a record can be written to `target`. `-` and no target always can. The check
/// leaves no new file behind.
///
/// # Errors
/// [`Failure::System`].
pub fn check_json_target(target: Option<&str>) -> Result<(), Failure> {
    let Some(target) = target.filter(|&target| target != "-") else { return Ok(()) };
    let is_new = !Path::new(target).exists();
    let cannot_write = || Failure::system(cannot_write(target));
    std::fs::OpenOptions::new().append(true).create(true).open(target).map_err(cannot_write())?;
    if is_new {
        std::fs::remove_file(target).map_err(cannot_write())?;
    }
    Ok(())
}

/// Writes a line, or several, to standard output.
///
/// # Errors
/// [`Failure::System`]: it cannot be written (for example a full disk). A closed pipe ends the command.
pub fn print(text: impl std::fmt::Display) -> Result<(), Failure> {
    use std::io::Write;
    writeln!(std::io::stdout(), "{text}").map_err(Failure::system("cannot write to standard output"))
}

/// Writes `record` to the file `target`, or to standard output if that is `-`.
///
/// # Errors
/// [`Failure::System`].
pub fn write_json(record: &impl Serialize, target: &str) -> Result<(), Failure> {
    write_text(&serde_json::to_string_pretty(record).expect("records have string keys only"), target)
}

/// Writes `text` and a line break to the file `target`, or to standard output if that is `-`.
///
/// # Errors
/// [`Failure::System`].
pub fn write_text(text: &str, target: &str) -> Result<(), Failure> {
    if target == "-" {
        return print(text);
    }
    std::fs::write(target, format!("{text}\n")).map_err(Failure::system(cannot_write(target)))
}

fn cannot_write(target: &str) -> String {
    format!("cannot write {target}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unwritable_record_target_is_rejected_before_the_run() {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("record.json");
        let inside = inside.to_str().unwrap();
        for good in [None, Some("-"), Some(inside)] {
            check_json_target(good).unwrap();
        }
        assert!(!Path::new(inside).exists());
        std::fs::write(inside, "kept").unwrap();
        check_json_target(Some(inside)).unwrap();
        assert_eq!(std::fs::read_to_string(inside).unwrap(), "kept");
        for bad in [directory.path().to_str().unwrap().to_owned(), format!("{inside}/no/such")] {
            let message = check_json_target(Some(&bad)).unwrap_err().to_string();
            assert!(message.starts_with(&format!("cannot write {bad}: ")), "{message}");
        }
    }
}
