//! `weir bench node-group`: collective operations among processes of this node in shared memory, without an MPI, beside a
//! barrier by one counter.
//!
//! The processes are helpers, which are this command again. They meet in a node segment of their own and do all
//! operations in turn, in rounds, so that the group and the counter see the same load. A waiting process yields after
//! each look, in both. A barrier may take at most 1.3 times the counter's.
//!
//! Expected: ten seconds with three numbers of processes and seven rounds.

mod case;
mod flat_counter;
mod member;

pub use member::{HELPER, MemberArguments, run as run_helper};

use crate::machine::Machine;
use crate::members::{self, SharedArguments};
use crate::options::OutputOptions;
use crate::statistics::{Quartiles, ratios};
use case::Case;
use clap::Args;
use serde::Serialize;
use std::time::Duration;
use weir_engine::config::Settings;
use weir_output::Failure;
use weir_output::quantity::{three_digits, time_ns};
use weir_output::table;

/// Target for the barrier, as a multiple of the counter's.
pub const LIMIT: f64 = 1.3;

/// Options of `weir bench node-group`.
#[derive(Args, Debug)]
#[command(after_help = "\
Processes of this node do collective operations in shared memory, without an MPI and without messages. Beside them runs \
the flat counter: a barrier that is nothing but one counter in shared memory. A process that waits yields its core \
after each look, in both.

The table shows the median of the rounds, the quartiles, and the ratio to the counter: the median of the ratios of \
each round. The root of a reduction or broadcast changes each time.

Exit status:
  0      everything was measured, whether the target is reached or not
  1      a measurement failed")]
pub struct NodeGroupArguments {
    /// Numbers of processes.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [2, 8, 16], value_parser = clap::value_parser!(u32).range(1..=256))]
    ranks: Vec<u32>,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Time of each measurement. Unit: milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    time: u64,
    #[command(flatten)]
    output: OutputOptions,
}

/// The part of the `--json` record below its head.
#[derive(Serialize)]
struct Results {
    machine: Machine,
    groups: Vec<Group>,
}

#[derive(Serialize)]
struct Group {
    ranks: u32,
    operations: Vec<Samples>,
}

#[derive(Serialize)]
struct Samples {
    operation: String,
    /// Mean time of one operation, by round.
    time_ns: Vec<f64>,
}

/// Measures and prints. Returns the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &NodeGroupArguments) -> Result<u8, Failure> {
    arguments.output.record.check()?;
    let settings = Settings::from_environment()?;
    let machine = Machine::of_this();
    let measurements = arguments.ranks.len() * arguments.repeat as usize * Case::ALL.len();
    let bar = arguments.output.progress_bar(measurements as u64);
    let mut groups = Vec::new();
    for &ranks in &arguments.ranks {
        bar.set_message(format!("{ranks} processes"));
        let mut operations: Vec<Samples> = Case::ALL
            .map(|case| Samples { operation: case.name(), time_ns: Vec::new() })
            .into_iter()
            .collect();
        let (mut measured, time) = (0, Duration::from_millis(arguments.time));
        measure(&settings, &Case::ALL, ranks, arguments.repeat, time, |time_ns| {
            operations[measured % Case::ALL.len()].time_ns.push(time_ns);
            measured += 1;
            bar.inc(1);
        })?;
        if measured != arguments.repeat as usize * Case::ALL.len() {
            return Err(Failure::Measurement(format!("the processes have sent {measured} times")));
        }
        groups.push(Group { ranks, operations });
    }
    bar.finish_and_clear();
    let results = Results { machine, groups };
    arguments.output.record.print(render(&results))?;
    arguments.output.record.write("weir-bench-node-group-1", results)?;
    Ok(0)
}

/// Mean time of a barrier by the flat counter among `ranks` processes, measured for about `time`. Unit: nanoseconds.
///
/// # Errors
/// [`Failure`].
pub fn flat_counter_ns(settings: &Settings, ranks: u32, time: Duration) -> Result<f64, Failure> {
    let mut found = None;
    measure(settings, &[Case::FlatCounter], ranks, 1, time, |time_ns| found = Some(time_ns))?;
    found.ok_or_else(|| Failure::Measurement(String::from("the processes have sent no time")))
}

/// Runs a group of `ranks` processes, and passes on each time that it measures.
///
/// - `cases`: all, or the first one alone.
fn measure(
    settings: &Settings,
    cases: &[Case],
    ranks: u32,
    rounds: u32,
    time: Duration,
    mut take: impl FnMut(f64),
) -> Result<(), Failure> {
    let directory = members::directory(&settings.shm_dir)?;
    let shared = SharedArguments::new(directory.path(), ranks, rounds, time);
    let words = member::words(&shared, cases.len());
    members::run(
        ranks,
        |_| words.clone(),
        |line| {
            let time_ns =
                line.parse().map_err(|_| Failure::Measurement(format!("{line:?} is not a time")))?;
            take(time_ns);
            Ok(())
        },
    )
}

fn render(results: &Results) -> String {
    let mut table = table::plain();
    table.set_header(["processes", "operation", "median", "quartiles", "of the counter", "quartiles"]);
    let mut verdicts = String::new();
    for group in &results.groups {
        let [flat, barrier, ..] = &group.operations[..] else { continue };
        let to_counter =
            |samples: &Samples| Quartiles::of(&ratios(&samples.time_ns, &flat.time_ns).unwrap_or_default());
        for samples in &group.operations {
            let [low, median, high] = Quartiles::of(&samples.time_ns).ordered().map(time_ns);
            let [least, ratio, most] = to_counter(samples).ordered().map(three_digits);
            let name = comfy_table::Cell::new(&samples.operation);
            let texts =
                [median, format!("{low} .. {high}"), format!("{ratio} x"), format!("{least} .. {most}")];
            let cells = [table::right(group.ranks.to_string()), name];
            table.add_row(cells.into_iter().chain(texts.map(table::right)));
        }
        let word = to_counter(barrier).verdict(LIMIT);
        verdicts.push_str(&format!(
            "\nTarget for the barrier of {} processes: at most {LIMIT} x the counter: {word}.",
            group.ranks
        ));
    }
    format!("{}{verdicts}\n{}", table::text(&table), results.machine.footer())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_comes_from_the_ratios_of_each_round() {
        let group = |barrier: [f64; 3]| {
            let samples = |operation: &str, time_ns: [f64; 3]| Samples {
                operation: operation.into(),
                time_ns: time_ns.into(),
            };
            let operations =
                vec![samples("flat counter", [100.0, 200.0, 400.0]), samples("barrier", barrier)];
            Group { ranks: 8, operations }
        };
        let text = |barrier| {
            let machine = Machine { processor: "P".into(), cores: 2, kernel: "6".into(), load: 0.0 };
            render(&Results { machine, groups: vec![group(barrier)] })
        };
        let word = |barrier| {
            text(barrier).lines().find_map(|line| Some(line.rsplit_once("counter: ")?.1.to_owned()))
        };
        // The times differ by 4, the ratios do not.
        assert_eq!(word([120.0, 240.0, 480.0]).as_deref(), Some("reached."));
        assert_eq!(word([140.0, 280.0, 560.0]).as_deref(), Some("MISSED."));
        assert_eq!(word([100.0, 280.0, 600.0]).as_deref(), Some("within noise."));
        assert!(text([120.0, 240.0, 480.0]).contains("1.20 x"));
    }
}
