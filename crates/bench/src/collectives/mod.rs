//! `weir bench collectives`: collective operations in weir's node groups, beside the same MPI over weir's messages, and
//! beside Intel MPI, Open MPI and MPICH with their own shared memory.
//!
//! Of non-blocking operations it also says how much of them is hidden behind computing, as IMB-NBC does. Of broadcast and
//! reduce it says how long ranks are in the call if some come late, as Buntinas measures it (2003, sections 4.3.4 and 6.3).
//!
//! Each round runs all contenders in turn, as `weir bench paired` does, and begins with another one each time. The
//! ratios are those of a round. The targets are shares of another MPI's time.
//!
//! Expected: ten minutes with three numbers of ranks and seven rounds.

mod limits;

use crate::contender::{Contender, OtherMpi};
use crate::contender_set::ContenderSet;
use crate::jobs::{self, Jobs};
use crate::machine::Machine;
use crate::options::{MpichOption, OutputOptions, TimeoutOption};
use crate::paired::{self, SetContender};
use crate::program::MEASURE;
use crate::statistics::{Quartiles, ratios as ratios_by_round};
use crate::transport::Transport;
use clap::Args;
use comfy_table::Cell;
use limits::Least;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use weir_engine::config::Settings;
use weir_mpi::scratch;
use weir_output::quantity::{three_digits, time_ns};
use weir_output::{Failure, table};

/// Length of a block of operations with blocks for each rank. Unit: bytes.
const BLOCK_BYTES: u32 = 2048;

/// An operation of `measure operations`.
struct Operation {
    /// The first word of its result line.
    word: &'static str,
    /// Its name in the table.
    name: &'static str,
    /// The target, if there is one.
    target: Option<Target>,
}

/// At most so much of the time of an MPI.
struct Target {
    share: f64,
    /// The share in the table.
    text: &'static str,
    /// Its column.
    mpi: &'static str,
}

const fn of(mpi: &'static str, share: f64, text: &'static str) -> Option<Target> {
    Some(Target { share, text, mpi })
}

const OPERATIONS: [Operation; 15] = [
    Operation { word: "barrier", name: "barrier", target: of(INTEL, 0.7, "0.7") },
    Operation { word: "allreduce", name: "all-reduce 8 B", target: of(INTEL, 0.8, "0.8") },
    Operation { word: "reduce", name: "reduce 8 B", target: of(INTEL, 0.8, "0.8") },
    Operation { word: "broadcast-short", name: "broadcast 8 B", target: of(INTEL, 0.8, "0.8") },
    Operation { word: "broadcast-long", name: "broadcast 16 KiB", target: of(INTEL, 0.8, "0.8") },
    Operation { word: "allgather", name: "all-gather 2 KiB", target: of(INTEL, 1.0, "1") },
    Operation { word: "alltoall", name: "all-to-all 2 KiB", target: of(INTEL, 1.0, "1") },
    Operation { word: "gather", name: "gather 2 KiB", target: None },
    Operation { word: "scatter", name: "scatter 2 KiB", target: None },
    Operation { word: "reduce-scatter", name: "reduce-scatter 2 KiB", target: None },
    Operation { word: "ibarrier", name: "non-blocking barrier", target: None },
    Operation { word: "iallreduce", name: "non-blocking all-reduce 8 B", target: None },
    Operation {
        word: "broadcast-late",
        name: "broadcast 8 B, late ranks",
        target: of(MPICH, 1.0 / 16.0, "1/16"),
    },
    Operation { word: "reduce-late", name: "reduce 8 B, late ranks", target: of(MPICH, 1.0 / 4.5, "1/4.5") },
    Operation { word: "reduce-late-least", name: "  of it unavoidable", target: None },
];

/// A non-blocking operation whose overlap with computing is measured.
struct Overlap {
    /// The first word of the result line.
    word: &'static str,
    name: &'static str,
    /// All ranks compute, so a core is free only beside all of them. Otherwise one computes, and the others sleep at first.
    all_compute: bool,
}

const OVERLAPS: [Overlap; 4] = [
    Overlap { word: "ibarrier-overlap", name: "barrier, hidden", all_compute: true },
    Overlap { word: "iallreduce-overlap", name: "all-reduce 8 B, hidden", all_compute: true },
    Overlap { word: "ibarrier-late-overlap", name: "barrier, hidden, one computes", all_compute: false },
    Overlap {
        word: "iallreduce-late-overlap",
        name: "all-reduce 8 B, hidden, one computes",
        all_compute: false,
    },
];
/// Target of the overlap, if a core is free. Unit: percent.
const LEAST_OVERLAP: f64 = 95.0;

/// Options of `weir bench collectives`.
#[derive(Args, Debug)]
#[command(after_help = "\
One program runs over weir with collective operations in shared memory (on) and by messages (off), both under MPICH, and \
under Intel MPI, Open MPI and MPICH with their own shared memory. An MPI that is not installed is left out.

The table shows the median time of an operation, a mean over the ranks, and weir's time divided by that of the other: \
the median of the ratios of each round. The root of a reduce, broadcast, gather or scatter changes each time. Of \
non-blocking operations, it is the time of start and wait, without computing. The target is a share of another MPI's \
time: reached if three quarters of the rounds are within it, missed if three quarters are not.

Late ranks: each call follows a barrier and a sleep of 0 to 2 ms, the same for all contenders, and the time is that in \
the call. The root is always 0. It is late in a reduce, and not in a broadcast. Unavoidable is the wait of a reduce's \
root for ranks that have not entered yet; a mean over the ranks too.

Hidden is what of a non-blocking operation disappears behind computing: each rank starts it, computes for about as long \
as it takes alone, and waits. 100 %: both together take as long as the longer one. 0 %: as long as one after the other. \
Only waiting can be hidden, not the calls themselves, which are most of a short operation in shared memory. The target \
holds if a core is free, so with fewer ranks than cores. In the rows where one computes, rank 0 computes for 3 ms behind \
each operation, and the others sleep for 0 to 2 ms before they start it. There a core is free with as many ranks as cores.

Below the table: the barrier beside the flat counter of weir bench node-group, with a target of its own. And limits: what the \
least programs take in the same rounds, over the time of the MPI of the target. They are two cores that exchange cache lines \
or the counter, whichever is faster, for a barrier or an all-reduce of two ranks, and a cache line from one core to another, for a reduce or broadcast of two and a \
late broadcast of any number. Where these miss a target, it is out of reach. The limit of a late reduce is the root's wait for \
ranks that have not entered.

Exit status:
  0      everything was measured, whether targets are reached or not
  1      a job failed or timed out
  2      a wrong option or setting
  127    a program was not found

Examples:
  weir bench collectives
  weir bench collectives --ranks 8 --repeat 15")]
pub struct CollectivesArguments {
    /// Numbers of ranks.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [2, 8, 16], value_parser = clap::value_parser!(u32).range(2..=256))]
    ranks: Vec<u32>,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Time of each measurement. Unit: milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    time: u64,
    #[command(flatten)]
    mpich: MpichOption,
    #[command(flatten)]
    timeout: TimeoutOption,
    #[command(flatten)]
    output: OutputOptions,
}

/// The part of the `--json` record below its head.
#[derive(Serialize)]
struct Results {
    machine: Machine,
    mpis: Vec<String>,
    /// Contenders, weir with node groups first.
    contenders: Vec<String>,
    missing: Vec<String>,
    jobs: Vec<Job>,
}

/// The samples of all contenders with one number of ranks.
#[derive(Serialize)]
struct Job {
    ranks: u32,
    /// By contender, then by the word of the operation: mean times by round.
    time_us: Vec<BTreeMap<String, Vec<f64>>>,
    /// The same of overlap with computing.
    overlap_percent: Vec<BTreeMap<String, Vec<f64>>>,
    /// The least programs.
    #[serde(flatten)]
    least: Least,
}

impl Job {
    fn new(ranks: u32, contenders: usize) -> Job {
        let none = vec![BTreeMap::new(); contenders];
        Job { ranks, time_us: none.clone(), overlap_percent: none, least: Least::default() }
    }

    /// Adds a value of a contender. Others than times and overlaps are left out.
    fn add(&mut self, contender: usize, measure: &str, value: f64) {
        let (values, word) = match measure.rsplit_once(' ') {
            Some((word, "us")) => (&mut self.time_us[contender], word),
            Some((word, "percent")) => (&mut self.overlap_percent[contender], word),
            _ => return,
        };
        values.entry(word.to_owned()).or_default().push(value);
    }
}

/// Contender on the command line of `weir bench paired`, its column, and what it needs.
const CONTENDERS: [(&str, &str, Contender); 5] = [
    ("weir:FI_WEIR_COLLECTIVES=1", "weir, on", Contender::Mpich(Transport::Weir)),
    ("weir:FI_WEIR_COLLECTIVES=0", "weir, off", Contender::Mpich(Transport::Weir)),
    ("intel-mpi", INTEL, Contender::OtherMpi(OtherMpi::IntelMpi)),
    ("open-mpi", "Open MPI", Contender::OtherMpi(OtherMpi::OpenMpi)),
    ("mpich-shm", MPICH, Contender::Mpich(Transport::MpichShm)),
];
const INTEL: &str = "Intel MPI";
const MPICH: &str = "MPICH";

/// Measures and prints. Returns the exit status.
///
/// # Errors
/// [`Failure`] if weir or MPICH is missing, or if a job fails.
pub fn run(arguments: &CollectivesArguments) -> Result<u8, Failure> {
    arguments.output.record.check()?;
    let settings = Settings::from_environment()?;
    let machine = Machine::of_this();
    let scratch = scratch::directory()?;
    let wanted: Vec<Contender> = CONTENDERS.iter().map(|&(_, _, contender)| contender).collect();
    let set = ContenderSet::prepare(&arguments.mpich, &wanted, &[MEASURE], scratch.path())?;
    if let Some((_, why)) = set.missing.iter().find(|(it, _)| *it == Contender::Mpich(Transport::Weir)) {
        return Err(Failure::NoMpi(format!("weir: {why}")));
    }
    let is_ready = |contender: &Contender| set.ready.contains(contender);
    let chosen: Vec<_> = CONTENDERS.into_iter().filter(|(_, _, contender)| is_ready(contender)).collect();
    let parsed = chosen.iter().map(|(text, _, _)| text.parse::<SetContender>());
    let contenders: Vec<SetContender> = parsed.collect::<Result<_, _>>().map_err(Failure::Usage)?;
    let seconds = (arguments.time as f64 / 1e3).to_string();
    let block = BLOCK_BYTES.to_string();
    let words = ["operations", seconds.as_str(), block.as_str()];

    let jobs = Jobs { limit: arguments.timeout.limit(), shm_dir: settings.shm_dir.clone() };
    let total = arguments.ranks.len() * arguments.repeat as usize * contenders.len();
    let bar = arguments.output.progress_bar(total as u64);
    let numbered: Vec<_> = contenders.iter().enumerate().collect();
    let mut results = Vec::new();
    for &ranks in &arguments.ranks {
        let mut job = Job::new(ranks, contenders.len());
        for round in 0..arguments.repeat as usize {
            job.least.measure(&settings, ranks, Duration::from_millis(arguments.time))?;
            for &(index, contender) in jobs::rotated(&numbered, round) {
                bar.set_message(format!("{ranks} ranks: {}", chosen[index].1));
                let launch = paired::launch(&set, contender, None, ranks, &words)?;
                let failed = |why: String| Failure::Measurement(format!("{}: {why}", chosen[index].1));
                let output =
                    jobs.run(&launch, || true)?.map_err(|unfinished| failed(unfinished.to_string()))?;
                for (measure, value) in paired::values(&output).map_err(failed)? {
                    job.add(index, &measure, value);
                }
                bar.inc(1);
            }
        }
        results.push(job);
    }
    drop(bar);
    let results = Results {
        machine,
        mpis: set.mpis(),
        contenders: chosen.iter().map(|&(_, name, _)| name.to_owned()).collect(),
        missing: set
            .missing
            .iter()
            .map(|(contender, why)| format!("{}: {why}", contender.heading()))
            .collect(),
        jobs: results,
    };
    arguments.output.record.print(render(&results))?;
    arguments.output.record.write("weir-bench-collectives-2", results)?;
    Ok(0)
}

fn render(results: &Results) -> String {
    let mut table = table::plain();
    let heads =
        ["operation", "ranks"].map(String::from).into_iter().chain(results.contenders.iter().cloned());
    table.set_header(heads.chain([String::from("target"), String::from("verdict")]));
    for operation in &OPERATIONS {
        for job in &results.jobs {
            let of = |index: usize| job.time_us[index].get(operation.word).map_or(&[][..], Vec::as_slice);
            let ours = of(0);
            let ratios = |index: usize| Quartiles::of(&ratios_by_round(ours, of(index)).unwrap_or_default());
            let mut cells = vec![Cell::new(operation.name), table::right(job.ranks.to_string())];
            for index in 0..results.contenders.len() {
                let median = Quartiles::of(of(index)).median;
                let time = time_ns(median * 1e3);
                cells.push(table::right(match index {
                    0 => time,
                    _ => format!("{time} ({} x)", ratio(ratios(index).median)),
                }));
            }
            let (target, verdict) = match &operation.target {
                None => (String::from("none"), String::new()),
                Some(target) => {
                    let Target { text, mpi, .. } = target;
                    let column = results.contenders.iter().position(|name| name == mpi);
                    let verdict = column.map(|index| limits::verdict(job, operation.word, target, of(index)));
                    (format!("{text} of {mpi}"), verdict.map_or_else(|| format!("no {mpi}"), String::from))
                }
            };
            cells.push(table::right(target));
            cells.push(Cell::new(verdict));
            table.add_row(cells);
        }
    }
    for overlap in &OVERLAPS {
        for job in &results.jobs {
            table.add_row(overlap_row(results, job, overlap));
        }
    }
    let rounds = results.jobs.iter().flat_map(|job| job.time_us[0].values().map(Vec::len)).max().unwrap_or(0);
    let machine = &results.machine;
    let mut text = format!(
        "{}\n{rounds} interleaved rounds. In brackets: weir, on, divided by the other. Target: at most so much of that MPI's \
         time.\nHidden: share of a non-blocking operation that disappears behind computing. Late ranks: time in the call if \
         ranks come\n0 to 2 ms late.",
        table::text(&table)
    );
    for line in &results.missing {
        text.push_str(&format!("\nLeft out: {line}"));
    }
    text.push_str(&limits::lines(results));
    if machine.is_busy() {
        text.push_str(&format!("\nThe machine was not idle (load {}).", machine.load));
    }
    text.push_str(&format!("\n{}, {} cores, Linux {}.", machine.processor, machine.cores, machine.kernel));
    text
}

/// A ratio. Small ones have a third digit.
fn ratio(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.3}") } else { three_digits(ratio) }
}

/// The overlap of an operation with computing.
fn overlap_row(results: &Results, job: &Job, overlap: &Overlap) -> Vec<Cell> {
    let of = |index: usize| job.overlap_percent[index].get(overlap.word).map_or(&[][..], Vec::as_slice);
    let mut cells = vec![Cell::new(overlap.name), table::right(job.ranks.to_string())];
    for index in 0..results.contenders.len() {
        let text = match of(index) {
            [] => String::from("-"),
            samples => format!("{:.0} %", Quartiles::of(samples).median),
        };
        cells.push(table::right(text));
    }
    let busy = job.ranks as usize + usize::from(overlap.all_compute);
    let has_free_core = busy <= results.machine.cores;
    let lacking: Vec<f64> = of(0).iter().map(|percent| 100.0 - percent).collect();
    let word = match (has_free_core, lacking.is_empty()) {
        (_, true) => "",
        (false, _) => "no core is free",
        (true, _) => Quartiles::of(&lacking).verdict(100.0 - LEAST_OVERLAP),
    };
    cells.push(table::right(format!("at least {LEAST_OVERLAP:.0} %")));
    cells.push(Cell::new(word));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(intel: [f64; 3]) -> Results {
        let times = |values: [f64; 3]| BTreeMap::from([(String::from("barrier"), values.to_vec())]);
        Results {
            machine: Machine { processor: "P".into(), cores: 2, kernel: "6".into(), load: 0.0 },
            mpis: Vec::new(),
            contenders: vec!["weir, on".into(), INTEL.into()],
            missing: vec![String::from("Open MPI: not found")],
            jobs: vec![Job { time_us: vec![times([1.0, 2.0, 4.0]), times(intel)], ..Job::new(8, 2) }],
        }
    }

    #[test]
    fn a_verdict_comes_from_the_ratios_of_each_round() {
        let line =
            |intel| render(&results(intel)).lines().find(|line| line.contains("barrier")).map(str::to_owned);
        // The times differ by 4, the ratios do not.
        let reached = line([2.0, 4.0, 8.0]).unwrap();
        assert!(
            reached.contains("2.00 us") && reached.contains("(0.50 x)") && reached.contains("reached"),
            "{reached}"
        );
        assert!(line([1.0, 2.0, 4.0]).unwrap().contains("MISSED"));
        assert!(line([1.0, 4.0, 8.0]).unwrap().contains("within noise"));
        assert!(render(&results([1.0; 3])).contains("Left out: Open MPI: not found"));
    }

    #[test]
    fn time_of_late_ranks_is_judged_beside_mpich() {
        let mut results = results([1.0; 3]);
        results.contenders.push(MPICH.into());
        let mut job = Job::new(8, 3);
        for (contender, us) in [(0, 1.0), (1, 40.0), (2, 20.0)] {
            (0..3).for_each(|_| job.add(contender, "broadcast-late us", us));
            (0..3).for_each(|_| job.add(contender, "reduce-late us", us.min(4.0)));
            (0..3).for_each(|_| job.add(contender, "reduce-late-least us", 3.0));
        }
        job.least.cache_line_ns = vec![100.0; 3];
        results.jobs = vec![job];
        let text = render(&results);
        let line = |name: &str| text.lines().find(|line| line.contains(name)).map(str::to_owned).unwrap();
        let broadcast = line("broadcast 8 B, late");
        assert!(broadcast.contains("(0.050 x)") && broadcast.contains("1/16 of MPICH"), "{broadcast}");
        assert!(broadcast.contains("reached"), "{broadcast}");
        assert!(line("reduce 8 B, late").contains("MISSED"), "a quarter is more than 1/4.5");
        let limit = "Limit: broadcast 8 B, late ranks, 8 ranks: a cache line to all ranks but the root takes, as a mean over \
                     the ranks, 87.5 ns, 0.004 x MPICH (0.004 .. 0.004).";
        assert!(text.contains(limit), "{text}");
        let limit =
            "Limit: reduce 8 B, late ranks, 8 ranks: its root's wait alone is 0.75 x the time of MPICH.";
        assert!(text.contains(limit), "{text}");
    }

    #[test]
    fn a_target_is_out_of_reach_if_it_is_missed_and_the_least_program_misses_it_too() {
        let line = |ours_us: f64, exchange_ns: f64, counter_ns: f64| {
            let mut results = results([1.0; 3]);
            let mut job = Job::new(2, 2);
            for (contender, us) in [(0, ours_us), (1, 0.2)] {
                (0..3).for_each(|_| job.add(contender, "barrier us", us));
            }
            job.least.exchange_ns = vec![exchange_ns; 3];
            job.least.flat_counter_ns = vec![counter_ns; 3];
            results.jobs = vec![job];
            let text = render(&results);
            let line = |start: &str| text.lines().find(|line| line.contains(start)).unwrap().to_owned();
            (line("barrier "), line("Limit: "))
        };
        // 0.7 of 200 ns are 140 ns.
        let (row, limit) = line(0.18, 150.0, 170.0);
        assert!(row.contains("out of reach"), "{row}");
        let expected = "Limit: barrier, 2 ranks: the faster of two cores that exchange cache lines and of the flat counter takes \
                        150 ns, 0.75 x Intel MPI (0.75 .. 0.75).";
        assert_eq!(limit, expected);
        assert!(line(0.18, 100.0, 170.0).0.contains("MISSED"), "a least program reaches it");
        assert!(line(0.18, 150.0, 130.0).0.contains("MISSED"), "the other one reaches it");
        assert!(line(0.13, 150.0, 170.0).0.contains("reached"), "noise of the least program");
    }

    #[test]
    fn the_barrier_has_a_target_beside_the_flat_counter() {
        let text = |counter_ns: [f64; 3]| {
            let mut results = results([1.0; 3]);
            results.jobs[0].least.flat_counter_ns = counter_ns.to_vec();
            render(&results)
        };
        let near = text([800.0, 1600.0, 3200.0]);
        let target = "Target: barrier, 8 ranks, at most 1.3 x the flat counter (1.60 us): reached (1.25 x).";
        assert!(near.contains(target), "{near}");
        assert!(text([700.0, 1400.0, 2800.0]).contains("MISSED (1.43 x)"));
        assert!(!text([0.0; 3]).contains("Target: barrier"), "nothing is measured");
    }

    #[test]
    fn overlap_is_judged_if_a_core_is_free() {
        let of = |(word, name): (&str, &str), ranks, ours: [f64; 3]| {
            let mut results = results([1.0; 3]);
            let mut job = Job::new(ranks, 2);
            for percent in ours {
                job.add(0, &format!("{word} percent"), percent);
                job.add(1, &format!("{word} percent"), 7.4);
                job.add(1, &format!("{word} both_us"), 9.0);
            }
            results.machine.cores = 4;
            results.jobs = vec![job];
            let text = render(&results);
            text.lines().find(|line| line.contains(name)).unwrap().to_owned()
        };
        let line = |ranks, ours| of(("ibarrier-overlap", "barrier, hidden "), ranks, ours);
        let free = line(3, [96.0, 97.0, 99.0]);
        assert!(free.contains(" 97 %") && free.contains(" 7 %") && free.contains("reached"), "{free}");
        assert!(line(3, [10.0, 20.0, 94.0]).contains("MISSED"));
        assert!(line(4, [96.0, 97.0, 99.0]).contains("no core is free"));
        let late = ("ibarrier-late-overlap", "barrier, hidden, one computes");
        assert!(of(late, 4, [96.0, 97.0, 99.0]).contains("reached"), "the others sleep");
        assert!(of(late, 5, [96.0, 97.0, 99.0]).contains("no core is free"));
    }

    #[test]
    fn contenders_have_names_of_the_paired_benchmark() {
        for (text, _, contender) in CONTENDERS {
            assert!(text.parse::<SetContender>().is_ok(), "{text}");
            assert!(text.starts_with(contender.word()), "{text}");
        }
    }
}
