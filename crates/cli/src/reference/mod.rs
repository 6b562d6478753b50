//! `weir reference`: generates pages of the documentation, so that they cannot differ from their sources.
//!
//! The pages of settings, commands, plan keys, counters and the packet format come from the code (`make reference`).
//! Those about fidelity and credits on demand come from the results of `weir reproduce`. `make install` gets man pages
//! and shell completions.

mod commands;
mod counters;
mod markdown;
mod packet_format;
mod plan_keys;
mod settings;
mod share;

use crate::command_line::CommandLine;
use clap::{Args, CommandFactory, Subcommand};
use std::path::{Path, PathBuf};
use weir_lab::reproduce::demand::Demand;
use weir_lab::reproduce::fidelity::Fidelity;
use weir_output::Failure;

/// Options of `weir reference`.
#[derive(Args, Debug)]
pub struct ReferenceArguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Write the generated pages of the reference.
    Pages {
        /// Directory of the pages, docs/reference in the source tree. It is created if it does not exist.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Write the page about fidelity, and the table of points in the page of each experiment.
    Fidelity {
        /// The results of `weir reproduce`: results.json, e3.json and e4.json in experiments, copies of points.json.
        #[arg(value_name = "RESULTS", required = true, num_args = 1..)]
        results: Vec<PathBuf>,
        /// The directory of fidelity.md and fidelity/, docs/explanation in the source tree.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Write the page and the figure about credits on demand.
    Demand {
        /// The results of `weir reproduce demand`: experiments/demand.json in the source tree, a copy of points.json.
        #[arg(value_name = "RESULTS")]
        results: PathBuf,
        /// The directory of explanation/demand.md and figures/demand.svg, docs in the source tree.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Write man pages and shell completions.
    Share {
        /// Directory for man/man1, bash-completion, zsh and fish: PREFIX/share.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

/// The generated pages: file name and text.
pub fn pages() -> [(&'static str, String); 5] {
    [
        ("settings.md", settings::page()),
        ("commands.md", commands::page(command())),
        ("plan-keys.md", plan_keys::page()),
        ("counters.md", counters::page()),
        ("packet-format.md", packet_format::page()),
    ]
}

/// Writes what was asked for. The result is the exit status.
///
/// # Errors
/// - [`Failure::System`]: a file or directory cannot be read or written.
/// - [`Failure::Measurement`]: the results have another form, or the page of an experiment has no place for them.
pub fn run(arguments: &ReferenceArguments) -> Result<u8, Failure> {
    match &arguments.what {
        What::Pages { directory } => {
            for (name, text) in pages() {
                write(&directory.join(name), text.as_bytes())?;
            }
        }
        What::Fidelity { results, directory } => {
            let files = results.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
            let fidelity = Fidelity::read(&files)?;
            let experiments = directory.join("fidelity");
            let pages = fidelity.experiment_pages(|name| read(&experiments.join(name)))?;
            write(&directory.join("fidelity.md"), fidelity.page().as_bytes())?;
            for (name, text) in pages {
                write(&experiments.join(name), text.as_bytes())?;
            }
        }
        What::Demand { results, directory } => {
            let demand = Demand::read(&read(results)?)?;
            let figure = demand.figure().ok_or_else(|| {
                Failure::Measurement(format!("{}: no curves of overhead by memory", results.display()))
            })?;
            write(&directory.join("explanation/demand.md"), demand.page().as_bytes())?;
            write(&directory.join("figures/demand.svg"), figure.as_bytes())?;
        }
        What::Share { directory } => share::write_all(&command(), directory)?,
    }
    Ok(0)
}

/// The command tree, without the command `help`, which only repeats `--help`.
fn command() -> clap::Command {
    CommandLine::command().disable_help_subcommand(true)
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(Failure::system(path.display().to_string()))
}

fn write(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let failed = Failure::system(path.display().to_string());
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory).and_then(|()| std::fs::write(path, content)).map_err(failed)
}
