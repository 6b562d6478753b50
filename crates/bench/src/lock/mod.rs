//! `weir bench lock`: the queue lock of the native interface ([`weir_native::Lock`]) among processes of this node, beside a
//! lock that spins over the same remote atomics.
//!
//! All ranks want the lock all the time, and hold it for no time. A hand-over is that the lock goes to another rank
//! than the one that had it last. A rank whose memory has the word of a spinning lock gets it again and again, which
//! hands nothing over, so only hand-overs are compared. The targets are for the most ranks. The limit of a queue is what threads
//! reach that pass a turn around in order.
//!
//! Expected: five seconds with three numbers of ranks and seven rounds.

mod in_order;
mod member;

pub use member::{HELPER, MemberArguments, run as run_helper};

use crate::machine::Machine;
use crate::members::{self, SharedArguments};
use crate::options::OutputOptions;
use crate::statistics::{Quartiles, fairness, ratios};
use clap::Args;
use comfy_table::Cell;
use member::{Kind, Sample};
use serde::Serialize;
use std::time::Duration;
use weir_engine::config::Settings;
use weir_output::Failure;
use weir_output::quantity::three_digits;
use weir_output::table;

/// Targets for the most ranks: hand-overs of the queue lock over those of the other, and its fairness, at least.
const TARGETS: (f64, f64) = (3.6, 0.99);

/// Options of `weir bench lock`.
#[derive(Args, Debug)]
#[command(after_help = "\
Ranks of this node, without an MPI, want one lock all the time and hold it for no time. One lock is the queue lock of \
the native interface. The other one spins: a rank sets a bit of the lock until it was not set before. Both use the same \
remote atomics, and the words of both are in the memory of rank 0. Before, each rank changes a number under each lock, \
and all changes must be there at the end.

The table shows medians of the rounds, and quartiles behind the first two:
  hand-overs   how often in a second the lock went to another rank than the one that had it last
  of spinning  hand-overs divided by those of the lock that spins, in the same round
  acquired     how often in a second a rank got the lock
  fairness     Jain's index of how often each rank got it: 1 if all the same, 1/N if one has it always
  changes      changes of words that ranks asked for, for each hand-over

A line below says how often threads of one process, without a lock, pass a turn on in order, if each sleeps until it has \
it: a queue also hands the lock to a given rank, which must get a core first.

weir's settings come from the environment (see `weir settings`).

Exit status:
  0      everything was measured, whether the target is reached or not
  1      a measurement failed, or two ranks had the lock at once")]
pub struct LockArguments {
    /// Numbers of ranks.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [2, 8, 16], value_parser = clap::value_parser!(u32).range(2..=256))]
    ranks: Vec<u32>,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Time of each measurement. Unit: milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    time: u64,
    #[command(flatten)]
    output: OutputOptions,
}

/// The part of the `--json` record below its head.
#[derive(Serialize)]
struct Results {
    machine: Machine,
    jobs: Vec<Job>,
    settings: std::collections::BTreeMap<&'static str, String>,
}

/// One number of ranks; both locks by round.
#[derive(Default, Serialize)]
struct Job {
    ranks: u32,
    spin: Vec<Sample>,
    queue: Vec<Sample>,
    /// How often threads pass a turn on in a second.
    in_order: Vec<f64>,
}

impl Sample {
    /// A number of times in this measurement, for a second.
    fn per_second(&self, times: u64) -> f64 {
        times as f64 / self.elapsed_ns * 1e9
    }

    fn hand_overs_per_second(&self) -> f64 {
        self.per_second(self.hand_overs)
    }
}

/// Measures and prints. Returns the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &LockArguments) -> Result<u8, Failure> {
    arguments.output.record.check()?;
    let settings = Settings::from_environment()?;
    let machine = Machine::of_this();
    let measurements = arguments.repeat as usize * Kind::ALL.len();
    let bar = arguments.output.progress_bar((arguments.ranks.len() * measurements) as u64);
    let time = Duration::from_millis(arguments.time);
    let mut jobs = Vec::new();
    for &ranks in &arguments.ranks {
        bar.set_message(format!("{ranks} ranks"));
        let mut job = Job { ranks, ..Job::default() };
        let directory = members::directory(&settings.shm_dir)?;
        let shared = SharedArguments::new(directory.path(), ranks, arguments.repeat, time);
        members::run(
            ranks,
            |rank| member::words(rank, &shared),
            |line| {
                let sample = serde_json::from_str(line)
                    .map_err(|_| Failure::Measurement(format!("{line:?} is not a measurement of a lock")))?;
                let of_kind = if job.spin.len() == job.queue.len() { &mut job.spin } else { &mut job.queue };
                of_kind.push(sample);
                bar.inc(1);
                Ok(())
            },
        )?;
        if job.spin.len() + job.queue.len() != measurements {
            let what = format!("{ranks} ranks have sent {} measurements", job.spin.len() + job.queue.len());
            return Err(Failure::Measurement(what));
        }
        job.in_order = (0..arguments.repeat).map(|_| in_order::passes_per_second(ranks, time)).collect();
        jobs.push(job);
    }
    bar.finish_and_clear();
    let results = Results { machine, jobs, settings: settings.to_variables().into_iter().collect() };
    arguments.output.record.print(render(&results))?;
    arguments.output.record.write("weir-bench-lock-1", results)?;
    Ok(0)
}

/// A value of each round.
fn by_round(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> Vec<f64> {
    samples.iter().map(value).collect()
}

/// How many times as many hand-overs the queue lock has, by round.
fn gains(job: &Job) -> Vec<f64> {
    let [queue, spin] = [&job.queue, &job.spin].map(|of| by_round(of, Sample::hand_overs_per_second));
    ratios(&queue, &spin).unwrap_or_default()
}

fn render(results: &Results) -> String {
    let mut table = table::plain();
    table.set_header([
        "ranks",
        "lock",
        "hand-overs/s",
        "quartiles",
        "of spinning",
        "quartiles",
        "acquired/s",
        "fairness",
        "changes",
    ]);
    for job in &results.jobs {
        let [least, gain, most] = Quartiles::of(&gains(job)).ordered().map(three_digits);
        let rows = [
            ("spins", &job.spin, [String::new(), String::new()]),
            ("queue", &job.queue, [format!("{gain} x"), format!("{least} .. {most}")]),
        ];
        for (name, samples, to_spinning) in rows {
            let of = |value: &dyn Fn(&Sample) -> f64| Quartiles::of(&by_round(samples, value)).ordered();
            let [low, median, high] = of(&Sample::hand_overs_per_second).map(three_digits);
            let acquired = of(&|it| it.per_second(it.acquired.iter().sum()))[1];
            let fair = of(&|it| fairness(&it.acquired).unwrap_or(0.0))[1];
            let changes = of(&|it| it.changes as f64 / it.hand_overs.max(1) as f64)[1];
            let cells = [table::right(job.ranks.to_string()), Cell::new(name)];
            let texts = [median, format!("{low} .. {high}")].into_iter().chain(to_spinning);
            let more = [acquired, fair, changes].map(three_digits);
            table.add_row(cells.into_iter().chain(texts.chain(more).map(table::right)));
        }
    }
    format!("{}{}\n{}", table::text(&table), verdicts(results), results.machine.footer())
}

/// A line for each target, for the most ranks.
fn verdicts(results: &Results) -> String {
    let Some(job) = results.jobs.iter().max_by_key(|job| job.ranks) else { return String::new() };
    // A verdict is about "at most", and these are "at least".
    let at_least = |values: Vec<f64>, limit: f64| {
        let inverse: Vec<f64> = values.iter().map(|value| 1.0 / value).collect();
        Quartiles::of(&inverse).verdict(1.0 / limit)
    };
    let fair = by_round(&job.queue, |it| fairness(&it.acquired).unwrap_or(0.0));
    let [_, in_order, _] = Quartiles::of(&job.in_order).ordered();
    let [_, spin, _] = Quartiles::of(&by_round(&job.spin, Sample::hand_overs_per_second)).ordered();
    let (hand_overs, fairness) = TARGETS;
    format!(
        "\nTarget for {ranks} ranks: at least {hand_overs} x the hand-overs of the lock that spins: {}.\n\
         Target for {ranks} ranks: a fairness of at least {fairness}: {}.\n\
         Limit of a queue: {ranks} threads that sleep pass a turn on {} times in a second, {} x the lock that spins.",
        at_least(gains(job), hand_overs),
        at_least(fair, fairness),
        three_digits(in_order),
        three_digits(in_order / spin),
        ranks = job.ranks,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(hand_overs: u64, acquired: &[u64]) -> Sample {
        Sample { elapsed_ns: 1e6, acquired: acquired.into(), hand_overs, changes: 3 * hand_overs }
    }

    fn text(spin: u64, queue: &[Sample]) -> String {
        let machine = Machine { processor: "P".into(), cores: 2, kernel: "6".into(), load: 0.0 };
        let spin = queue.iter().map(|_| sample(spin, &[1000, 1])).collect();
        let in_order = vec![30_000.0; queue.len()];
        let jobs = vec![Job { ranks: 2, spin, queue: queue.to_vec(), in_order }];
        render(&Results { machine, jobs, settings: Default::default() })
    }

    #[test]
    fn verdicts_are_about_hand_overs_of_each_round_and_about_fairness() {
        let good = text(10, &[sample(40, &[20, 20]), sample(36, &[18, 18]), sample(37, &[19, 18])]);
        assert_eq!(good.matches(": reached.").count(), 2, "{good}");
        let bad = text(10, &[sample(30, &[30, 0]), sample(35, &[35, 0]), sample(31, &[31, 0])]);
        assert_eq!(bad.matches(": MISSED.").count(), 2, "{bad}");
        assert!(good.contains("3.70 x"), "{good}"); // in a millisecond
        assert!(good.contains("37000") || good.contains("37.0"), "{good}");
        assert!(
            good.contains("2 threads that sleep pass a turn on 30000 times in a second, 3.00 x"),
            "{good}"
        );
    }
}
