//! Runs the worlds of plans that have no record yet, for `weir sim` and `weir reproduce`. Prints an estimate first,
//! then shows a progress bar, and writes a record for each world that ends. After an interrupt the same command
//! resumes. Worlds run at the same time as far as they fit into memory. Also reads plans, and measures the memory of a
//! receiver for the numbers of peers that a plan lists.

use indicatif::{ProgressBar, ProgressStyle};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weir_bench::{free_memory, memory};
use weir_mpi::job;
use weir_output::Failure;
use weir_output::quantity::{bytes, count, several, three_digits};
use weir_sim::plan::estimate::{self, Estimate};
use weir_sim::plan::record::Store;
use weir_sim::plan::run::{self, Failed};
use weir_sim::plan::{Key, Plan, Record, Setup};

/// The file of records, in the directory that the user names.
const FILE: &str = "worlds.jsonl";

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of worlds at a time, if they fit into memory.
    pub jobs: usize,
    /// Whether the user has chosen this number.
    pub jobs_are_chosen: bool,
    /// Directory of the records.
    pub out: PathBuf,
    /// No progress bar.
    pub quiet: bool,
}

/// The records of plans.
#[derive(Debug, Default)]
pub struct Results {
    records: HashMap<Key, Record>,
    /// Worlds that failed: the reason, and the command that repeats each.
    failed: Vec<String>,
    /// Memory of receivers, by number of peers.
    pub memory: Vec<memory::Row>,
}

#[cfg(test)]
impl Results {
    /// Results of worlds that did not run.
    pub fn of_records(records: impl Iterator<Item = Record>) -> Results {
        Results {
            records: records.map(|record| (record.key.clone(), record)).collect(),
            ..Results::default()
        }
    }
}

impl Results {
    /// The record of a world; `None` if it did not run.
    pub fn of(&self, setup: &Setup) -> Option<&Record> {
        self.records.get(&setup.key())
    }

    /// Checks that every world ended. Callers show the results of the others first.
    ///
    /// # Errors
    /// [`Failure::Measurement`] names the worlds that failed.
    pub fn all_ended(&self) -> Result<(), Failure> {
        match self.failed.len() {
            0 => Ok(()),
            1 => Err(Failure::Measurement(format!("a world did not end: {}", self.failed[0]))),
            count => Err(Failure::Measurement(format!(
                "{count} worlds did not end:\n  {}",
                self.failed.join("\n  ")
            ))),
        }
    }
}

/// The command that runs one world of a plan again.
fn command(plan: &Plan, key: &Key) -> String {
    if plan.title == crate::reproduce::SWEEP_TITLE {
        return format!("weir reproduce {}", plan.experiment);
    }
    let quick = if plan.is_quick { " --quick" } else { "" };
    let path = plan.path.display().to_string();
    let path = if path.contains(char::is_whitespace) { format!("'{path}'") } else { path };
    format!("weir sim {path}{quick} --only {}", key.0)
}

/// Runs all worlds of the plans that have no record, and measures memory where plans ask for it. A failed
/// world does not stop the others, see [`Results::all_ended`].
///
/// # Errors
/// [`Failure`] if records cannot be written, memory cannot be measured, or signals cannot be handled.
pub fn execute(plans: &[&Plan], options: &Options) -> Result<Results, Failure> {
    let path = options.out.join(FILE);
    let shown = path.display().to_string();
    let cannot_create = format!("--out: cannot create the directory {}", options.out.display());
    std::fs::create_dir_all(&options.out).map_err(Failure::system(cannot_create))?;
    let mut store = Store::open(&path).map_err(Failure::system(format!("cannot open {shown}")))?;
    let mut results = Results::default();
    let (mut open, mut known) = (Vec::new(), 0);
    let mut plan_of: HashMap<Key, &Plan> = HashMap::new();
    let mut costs = Vec::new();
    let mut estimates: HashMap<Key, Estimate> = HashMap::new();
    let mut more = false;
    for plan in plans {
        let before = open.len();
        for setup in &plan.worlds {
            let key = setup.key();
            if results.records.contains_key(&key) || open.iter().any(|(_, other, _)| *other == key) {
                continue;
            }
            match store.get(&key) {
                Some(record) => {
                    known += 1;
                    results.records.insert(key, record.clone());
                }
                None => {
                    // All schemes send the same messages, so the worlds of a sweep share an estimate.
                    let reference = setup.reference().key();
                    let estimate = *estimates.entry(reference).or_insert_with(|| estimate::packets(setup));
                    more |= estimate.at_least;
                    plan_of.insert(key.clone(), plan);
                    open.push((setup, key, estimate));
                }
            }
        }
        costs.push((plan, open.len() - before, open[before..].iter().map(|(_, _, cost)| cost.packets).sum()));
    }
    print_estimates(&costs);
    // Runs the most expensive worlds first, so that none of them runs alone at the end.
    open.sort_by_key(|(_, _, cost)| std::cmp::Reverse(cost.packets));
    let total: u64 = open.iter().map(|(_, _, cost)| cost.packets).sum();
    let jobs = jobs_in_memory(&open, options)?;
    if open.is_empty() && known > 0 {
        eprintln!("all {} are recorded in {shown}; none runs again", several(known, "world"));
    } else if !open.is_empty() {
        let kept = if known > 0 { format!("; {} more are recorded", count(known)) } else { String::new() };
        let about = if more { "at least about" } else { "about" };
        eprintln!(
            "{} with {about} {}, {} at a time{kept}",
            several(open.len() as u64, "world"),
            several(total, "data packet"),
            jobs
        );
    }
    for failed in run_open(&open, known, jobs, options, &mut store, &shown, &mut results)? {
        let again = plan_of
            .get(&failed.key)
            .map_or_else(String::new, |plan| format!(" ({})", command(plan, &failed.key)));
        results.failed.push(format!("{failed}{again}"));
    }
    for peers in plans.iter().flat_map(|plan| &plan.memory_peers) {
        if !results.memory.iter().any(|row| row.peers == *peers) {
            results.memory.push(memory::measure_with_defaults(*peers)?);
        }
    }
    Ok(results)
}

/// Number of worlds at a time, such that the most expensive ones fit into available memory.
///
/// # Errors
/// [`Failure::Usage`] if `--jobs` asks for more worlds than fit.
fn jobs_in_memory(open: &[(&Setup, Key, Estimate)], options: &Options) -> Result<usize, Failure> {
    let worlds: Vec<u64> = open.iter().map(|(_, _, cost)| cost.memory_bytes()).collect();
    let Some(available) = free_memory::available_bytes() else { return Ok(options.jobs) };
    let fitting = jobs_that_fit(worlds, available - available / 5);
    if options.jobs <= fitting {
        return Ok(options.jobs);
    }
    let room = format!("{} of memory available", bytes(available));
    if options.jobs_are_chosen {
        return Err(Failure::Usage(format!(
            "--jobs {}: these worlds do not fit into the {room}; allowed: 1 to {}",
            options.jobs,
            fitting.max(1)
        )));
    }
    eprintln!("{} at a time instead of {}: {room}", fitting.max(1), options.jobs);
    Ok(fitting.max(1))
}

/// Largest number of worlds at a time that fit into `room` in any combination. Unit of both: bytes.
fn jobs_that_fit(mut worlds: Vec<u64>, room: u64) -> usize {
    worlds.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
    let mut taken = 0u64;
    let fits = |bytes: &&u64| {
        taken = taken.saturating_add(**bytes);
        taken <= room
    };
    let count = worlds.iter().take_while(fits).count();
    if count == worlds.len() { usize::MAX } else { count }
}

/// Prints the estimate of each of several plans. A world of two plans counts for the first.
fn print_estimates(costs: &[(&&Plan, usize, u64)]) {
    for (plan, worlds, packets) in costs.iter().filter(|(_, worlds, _)| costs.len() > 1 && *worlds > 0) {
        let (worlds, packets) = (count(*worlds as u64), count(*packets));
        eprintln!(
            "{:6} {worlds:>5} worlds, about {packets:>15} data packets: {}",
            plan.experiment, plan.title
        );
    }
}

fn run_open(
    open: &[(&Setup, Key, Estimate)],
    known: u64,
    jobs: usize,
    options: &Options,
    store: &mut Store,
    shown: &str,
    results: &mut Results,
) -> Result<Vec<Failed>, Failure> {
    let total: u64 = open.iter().map(|(_, _, cost)| cost.packets).sum();
    let costs: HashMap<&Key, u64> = open.iter().map(|(_, key, cost)| (key, cost.packets)).collect();
    let bar = if options.quiet { ProgressBar::hidden() } else { ProgressBar::new(total.max(1)) };
    let style = ProgressStyle::with_template("{bar:30} {percent:>3} % {msg} (about {eta} left)");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_secs(1));
    let finished = Arc::new(Mutex::new(known));
    if !open.is_empty() {
        report_interrupt(&finished, known + open.len() as u64, &bar, shown)?;
    }
    let started = Instant::now();
    let (mut ended, mut packets, mut checked) = (0, 0, 0);
    let mut failures = Vec::new();
    let mut kept = Ok(());
    let setups: Vec<&Setup> = open.iter().map(|(setup, _, _)| *setup).collect();
    bar.set_message(format!("0 of {} worlds", setups.len()));
    run::run_all(&setups, jobs, |setup, result| {
        ended += 1;
        match result {
            Err(failed) => failures.push(failed),
            Ok(record) => {
                packets += record.packets;
                checked += u64::from(record.checked);
                bar.inc(costs.get(&record.key).copied().unwrap_or(0));
                let rate = packets as f64 / started.elapsed().as_secs_f64() / 1e6;
                bar.set_message(format!(
                    "{ended} of {} worlds, {} M packets/s; last: {}",
                    setups.len(),
                    three_digits(rate),
                    setup.settings.describe()
                ));
                results.records.insert(record.key.clone(), record.clone());
                let mut finished = finished.lock().expect("no thread panics with the lock");
                // Worlds that have begun still end after the first write error.
                if kept.is_ok() {
                    kept = store.add(record);
                    *finished += u64::from(kept.is_ok());
                }
            }
        }
        kept.is_ok()
    });
    bar.finish_and_clear();
    kept.map_err(Failure::system(format!("cannot write {shown}")))?;
    if ended > 0 {
        eprintln!(
            "{}, {} of them with checks from outside, {} in {} s: {} M packets/s; records in {shown}",
            several(ended, "world"),
            count(checked),
            several(packets, "packet"),
            three_digits(started.elapsed().as_secs_f64()),
            three_digits(packets as f64 / started.elapsed().as_secs_f64() / 1e6)
        );
    }
    Ok(failures)
}

/// Handles SIGINT and SIGTERM: prints how many worlds have records, and where.
///
/// - `finished`: locked while a record is written, so that no line is truncated.
fn report_interrupt(
    finished: &Arc<Mutex<u64>>,
    worlds: u64,
    bar: &ProgressBar,
    shown: &str,
) -> Result<(), Failure> {
    let (finished, bar, shown) = (Arc::clone(finished), bar.clone(), shown.to_owned());
    let before_exit = move |signal| {
        let finished = finished.lock().expect("no thread panics with the lock");
        bar.finish_and_clear();
        eprintln!(
            "weir: {}; {} of {} worlds have records in {shown}; the same command resumes there",
            Failure::Interrupted(signal),
            count(*finished),
            count(worlds)
        );
        std::mem::forget(finished); // no record is written from here on
    };
    job::terminate_on_signal(before_exit).map_err(Failure::system("signals"))
}

/// Reads a plan.
///
/// # Errors
/// [`Failure::Usage`] with file and line.
pub fn read(path: &Path, quick: bool) -> Result<Plan, Failure> {
    let networks = super::places::networks(path)?;
    let plan = Plan::read(path, &networks, quick).map_err(|error| Failure::Usage(error.to_string()))?;
    if quick && !plan.is_quick {
        eprintln!("{} has no [quick], so the full plan runs", path.display());
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_worlds_decide_how_many_run_at_a_time() {
        for (worlds, room, jobs) in [
            (vec![10, 10, 10], 30, usize::MAX),
            (vec![1, 20, 10, 5], 30, 2),
            (vec![40, 1], 30, 0),
            (vec![], 0, usize::MAX),
        ] {
            assert_eq!(jobs_that_fit(worlds.clone(), room), jobs, "{worlds:?}");
        }
    }
}
