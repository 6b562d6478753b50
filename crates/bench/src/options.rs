//! Command-line options that several benchmarks and commands share: an MPI, the program IMB-MPI1, a time limit, a file
//! for the record, no progress bar. Each option also does its work: finds the program, prints results or writes the
//! record, or makes the progress bar.

use crate::jobs;
use crate::record::Record;
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;
use weir_mpi::find::{self, Kind, Mpi, SearchEnvironment};
use weir_mpi::program;
use weir_output::{Failure, write};

/// `--mpi`.
#[derive(Args, Debug)]
pub struct MpichOption {
    /// The MPICH, as for `weir run --mpi`.
    #[arg(long, value_name = "MPI", default_value = "mpich")]
    mpi: String,
}

impl MpichOption {
    /// Finds the MPICH.
    ///
    /// # Errors
    /// [`Failure`]: there is no such MPI, or it is not MPICH.
    pub fn find(&self, search_environment: &SearchEnvironment) -> Result<Mpi, Failure> {
        let mpi = find::choose(Some(&self.mpi), search_environment)?;
        match mpi.kind {
            Kind::Mpich => Ok(mpi),
            _ => Err(Failure::NoMpi(format!(
                "--mpi {}: {} is not MPICH; name an MPICH",
                self.mpi,
                mpi.describe()
            ))),
        }
    }
}

/// `--imb`.
#[derive(Args, Debug)]
pub struct ImbOption {
    /// The program IMB-MPI1; default: that in PATH or in weir's own environments.
    #[arg(long, value_name = "FILE")]
    imb: Option<String>,
}

impl ImbOption {
    /// Finds the program, also beside the launcher of `mpi`.
    ///
    /// # Errors
    /// [`Failure`]: it is not there, or not executable.
    pub fn find(&self, mpi: &Mpi, search_environment: &SearchEnvironment) -> Result<PathBuf, Failure> {
        let mut bins = vec![mpi.bin_dir().to_owned()];
        bins.extend(search_environment.private_bins());
        let name = self.imb.as_deref().unwrap_or("IMB-MPI1");
        program::find(name, search_environment.path.as_deref(), &bins)
    }
}

/// `--timeout`.
#[derive(Args, Debug)]
pub struct TimeoutOption {
    /// Limit of one job, after which it is ended and reported as timed out. Unit: seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

impl TimeoutOption {
    /// The limit.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// `--json`.
#[derive(Args, Debug)]
pub struct RecordOption {
    /// Write all results as JSON to FILE. Without FILE: to standard output, instead of the text.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

impl RecordOption {
    /// Checks before the work starts that a record can be written.
    ///
    /// # Errors
    /// [`Failure::System`].
    pub fn check(&self) -> Result<(), Failure> {
        write::check_json_target(self.json.as_deref())
    }

    /// Prints the results for readers, unless standard output is for the record.
    ///
    /// # Errors
    /// [`Failure::System`].
    pub fn print(&self, text: impl Display) -> Result<(), Failure> {
        match self.json.as_deref() {
            Some("-") => Ok(()),
            _ => write::print(text),
        }
    }

    /// Writes a record of `results`, if one is wanted. `schema`: name and version of its format.
    ///
    /// # Errors
    /// [`Failure::System`].
    pub fn write(&self, schema: &'static str, results: impl Serialize) -> Result<(), Failure> {
        self.write_record(&Record::new(schema, results))
    }

    /// Writes this record, if one is wanted.
    ///
    /// # Errors
    /// [`Failure::System`].
    pub fn write_record(&self, record: &Record<impl Serialize>) -> Result<(), Failure> {
        match &self.json {
            Some(target) => write::write_json(record, target),
            None => Ok(()),
        }
    }
}

/// `--json` and `--quiet`.
#[derive(Args, Debug)]
pub struct OutputOptions {
    /// `--json`.
    #[command(flatten)]
    pub record: RecordOption,
    /// Show no progress bar.
    #[arg(long, short)]
    quiet: bool,
}

impl OutputOptions {
    /// A progress bar over `jobs` jobs.
    pub fn progress_bar(&self, jobs: u64) -> ProgressBar {
        jobs::progress_bar(jobs, self.quiet)
    }
}
