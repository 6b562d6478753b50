//! `weir explain` across hosts: the counters of a running job that are on other hosts.

use super::{Collected, Elsewhere, FILE, start};
use std::path::Path;
use std::time::Duration;
use weir_mpi::remote::{Answer, Request};

/// Time that a helper has to send counters.
const LIMIT: Duration = Duration::from_secs(30);

/// The counters of the run in the directory `run` that are on other hosts. Nothing, if it has none there.
pub fn counters_elsewhere(run: &Path) -> Collected {
    let mut collected = Collected::default();
    let Some(elsewhere) = elsewhere(run) else { return collected };
    // The files are needed only until they are read.
    let directory = match tempfile::tempdir() {
        Ok(directory) => directory,
        Err(error) => {
            collected.remarks.push(format!("a directory for counters of other hosts: {error}"));
            return collected;
        }
    };
    let helpers = start(elsewhere.hosts.iter().map(String::as_str), &elsewhere.remote_shell);
    let helpers = helpers.unwrap_or_else(|failure| vec![Err(failure.to_string())]);
    for (number, helper) in helpers.into_iter().enumerate() {
        let taken = helper.and_then(|(mut helper, _)| {
            let host = helper.host().to_owned();
            match helper.ask(&Request::Look { stats: elsewhere.stats.clone() }, LIMIT)? {
                Answer::Files(gathered) => {
                    collected.take(&host, &directory.path().join(number.to_string()), &gathered)
                }
                other => Err(format!("{host}: unexpected answer of the helper: {other:?}")),
            }
        });
        if let Err(error) = taken {
            collected.remarks.push(format!("{error}: its counters are missing here"));
        }
    }
    collected
}

fn elsewhere(run: &Path) -> Option<Elsewhere> {
    let text = std::fs::read_to_string(run.join(FILE)).ok()?;
    serde_json::from_str(&text).ok()
}
