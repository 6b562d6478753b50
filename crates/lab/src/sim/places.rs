//! Where experiments are: the plans that come with weir, their networks, and where records go.

use std::path::{Path, PathBuf};
use weir_output::Failure;

/// Variable that names the directory of the plans.
const VARIABLE: &str = "WEIR_EXPERIMENTS_PATH";
/// Where records and pages go if nobody says.
pub const OUT: &str = "out/experiments";

/// The directory of the plans that come with weir: as the environment says, `experiments` here, or beside the command.
///
/// # Errors
/// [`Failure::Usage`]: where it was looked for.
pub fn experiments() -> Result<PathBuf, Failure> {
    let mut places = Vec::new();
    if let Some(place) = std::env::var_os(VARIABLE) {
        places.push(PathBuf::from(place));
    } else {
        places.push(PathBuf::from("experiments"));
        let own = std::env::current_exe().ok();
        // out/bin/weir or target/release/weir of a source tree; PREFIX/bin/weir.
        let above = own.iter().flat_map(|own| own.ancestors().skip(2).take(3));
        places.extend(
            above.flat_map(|place| [place.join("experiments"), place.join("share/weir/experiments")]),
        );
    }
    let found = places.iter().find(|place| place.join("networks").is_dir());
    found.cloned().ok_or_else(|| {
        let looked = places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ");
        Failure::Usage(format!(
            "no directory of experiments with `networks` in it (looked at {looked}); name it with {VARIABLE}"
        ))
    })
}

/// The networks of a plan: beside it, or those that come with weir.
///
/// # Errors
/// As for [`experiments`].
pub fn networks(plan: &Path) -> Result<PathBuf, Failure> {
    let beside = plan.parent().unwrap_or(Path::new("")).join("networks");
    if beside.is_dir() { Ok(beside) } else { Ok(experiments()?.join("networks")) }
}
