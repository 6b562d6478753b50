//! Finds the directory of weir's plans, and that of the networks of a plan. It also names the default directory of
//! records and pages.

use std::path::{Path, PathBuf};
use weir_output::Failure;

/// Environment variable that names the directory of plans.
const VARIABLE: &str = "WEIR_EXPERIMENTS_PATH";
/// Default directory of records and pages.
pub const OUT: &str = "out/experiments";

/// The directory of weir's plans: from the environment, `experiments` in the current directory, or near the
/// command.
///
/// # Errors
/// [`Failure::Usage`] names the directories that were searched.
pub fn experiments() -> Result<PathBuf, Failure> {
    let mut places = Vec::new();
    if let Some(place) = std::env::var_os(VARIABLE) {
        places.push(PathBuf::from(place));
    } else {
        places.push(PathBuf::from("experiments"));
        let own = std::env::current_exe().ok();
        // The command is out/bin/weir or target/release/weir in a source tree, or PREFIX/bin/weir.
        let above = own.iter().flat_map(|own| own.ancestors().skip(2).take(3));
        places.extend(
            above.flat_map(|place| [place.join("experiments"), place.join("share/weir/experiments")]),
        );
    }
    let found = places.iter().find(|place| place.join("networks").is_dir());
    found.cloned().ok_or_else(|| {
        let looked = places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ");
        Failure::Usage(format!(
            "no directory of plans found; none of {looked} has a directory `networks`; set {VARIABLE} to the directory of plans"
        ))
    })
}

/// The networks of a plan: beside the plan, beside its directory, or those of weir.
///
/// # Errors
/// As for [`experiments`].
pub fn networks(plan: &Path) -> Result<PathBuf, Failure> {
    let directory = plan.parent().unwrap_or(Path::new(""));
    let found = [directory.join("networks"), directory.join("../networks")];
    match found.into_iter().find(|place| place.is_dir()) {
        Some(place) => Ok(place),
        None => Ok(experiments()?.join("networks")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_sim::plan::Plan;

    fn plans(directory: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).expect("a directory");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.filter(|path| path.extension().is_some_and(|ending| ending == "toml")).collect()
    }

    #[test]
    fn every_probe_can_be_read_and_is_listed() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        let probes = plans(&directory.join("probes"));
        assert!(probes.len() >= 15, "{probes:?}");
        for path in &probes {
            let networks = networks(path).expect("networks");
            if let Err(error) = Plan::read(path, &networks, false) {
                panic!("{error}");
            }
        }
        let list = std::fs::read_to_string(directory.join("probes/README.md")).expect("a list");
        for path in &probes {
            let name = path.file_name().expect("a name").to_string_lossy();
            let rows = list.lines().filter(|line| line.starts_with(&format!("| `{name}` | ")));
            assert_eq!(rows.count(), 1, "experiments/probes/README.md: {name}");
        }
        assert_eq!(list.matches(".toml` | ").count(), probes.len(), "rows of experiments/probes/README.md");
    }
}
