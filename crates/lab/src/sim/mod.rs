//! `weir sim`: runs the worlds of a plan and prints a table. For a whole plan it also writes a page.
//! [`ExecutionOptions`] are the options that `weir reproduce` shares; [`execute`] runs worlds and records them.

#[cfg(test)]
pub mod blank;
pub mod execute;
mod page;
pub mod places;
mod table;

use clap::Args;
use execute::Options;
use serde::Serialize;
use std::path::PathBuf;
use weir_output::Failure;
use weir_sim::plan::Record;

/// Options of `weir sim`.
#[derive(Args, Debug)]
#[command(after_help = "\
A plan says which worlds to run: networks, schemes, buffers, workloads. The page Write a plan of the documentation \
explains it. Before the worlds run, the command prints how many packets they will send. Afterwards it prints a table \
and writes a page, DIR/NAME.html for NAME.toml. Each finished world is a line in DIR/worlds.jsonl and is not run \
again. So the same command resumes an interrupted run.

Exit status:
  0      every world ended
  1      a world did not end, or a failure of the system
  2      the plan is not valid
  130    interrupted (SIGINT)
  143    terminated (SIGTERM)

Examples:
  weir sim experiments/e1.2.toml --quick
  weir sim experiments/e1.2.toml --jobs 1 --json results.json")]
pub struct SimArguments {
    /// The plan.
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    #[command(flatten)]
    how: ExecutionOptions,
    /// Run only worlds whose keys begin with KEY, and write no page. Keys are in DIR/worlds.jsonl; an error about a world
    /// names its key.
    #[arg(long, value_name = "KEY")]
    only: Option<String>,
    /// Write the plan's records as JSON to FILE, or to standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

/// Options that `weir sim` and `weir reproduce` share.
#[derive(Args, Debug)]
pub struct ExecutionOptions {
    /// Run the quick variant of the plan: small worlds, which take seconds.
    #[arg(long)]
    pub quick: bool,
    /// Number of worlds that run at a time, each on a thread. Default: the number of cores, or fewer if memory does not suffice.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// Directory of records and pages.
    #[arg(long, value_name = "DIR", default_value = places::OUT)]
    pub out: PathBuf,
    /// No progress bar.
    #[arg(long, short)]
    pub quiet: bool,
}

impl ExecutionOptions {
    /// The options for [`execute`].
    pub fn options(&self) -> Options {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            jobs: self.jobs.map_or_else(cores, usize::from),
            jobs_are_chosen: self.jobs.is_some(),
            out: self.out.clone(),
            quiet: self.quiet,
        }
    }
}

/// Format of `--json`.
#[derive(Serialize)]
struct Output<'a> {
    schema: &'static str,
    weir_version: &'static str,
    title: &'a str,
    source: &'a str,
    quick: bool,
    worlds: &'a [&'a Record],
}

/// Runs a plan. Returns the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &SimArguments) -> Result<u8, Failure> {
    let mut plan = execute::read(&arguments.plan, arguments.how.quick)?;
    if let Some(wanted) = &arguments.only {
        plan.worlds.retain(|setup| setup.key().0.starts_with(wanted.as_str()));
        plan.memory_peers.clear();
        if plan.worlds.is_empty() {
            let what = format!("--only {wanted}: no world of {} has such a key", arguments.plan.display());
            return Err(Failure::Usage(format!("{what}; allowed: the beginning of a key")));
        }
    }
    eprintln!("{}: {} ({})", plan.experiment, plan.title, plan.source);
    let results = execute::execute(&[&plan], &arguments.how.options())?;
    let records: Vec<&Record> = plan.worlds.iter().filter_map(|setup| results.of(setup)).collect();
    // The page of the quick variant does not overwrite that of the full plan.
    let ending = if plan.is_quick { "quick.html" } else { "html" };
    let page = arguments.how.out.join(arguments.plan.file_name().unwrap_or_default()).with_extension(ending);
    // A page of one world would overwrite that of all worlds.
    let draws = !records.is_empty() && arguments.only.is_none();
    if draws {
        let failed = Failure::system(format!("cannot write {}", page.display()));
        std::fs::write(&page, page::render(&plan, &records)).map_err(failed)?;
    }
    if let Some(target) = &arguments.json {
        let output = Output {
            schema: "weir-sim-1",
            weir_version: env!("CARGO_PKG_VERSION"),
            title: &plan.title,
            source: &plan.source,
            quick: arguments.how.quick,
            worlds: &records,
        };
        weir_output::write::write_json(&output, target)?;
    }
    if arguments.json.as_deref() != Some("-") {
        if !records.is_empty() {
            weir_output::write::print(table::render(&records))?;
        }
        if draws {
            weir_output::write::print(format_args!("page: {}", page.display()))?;
        }
        if !results.memory.is_empty() {
            weir_output::write::print(weir_bench::memory::render(&results.memory))?;
        }
    }
    results.all_ended()?;
    Ok(0)
}
