//! `weir tune`: measures the value of `FI_WEIR_EAGER_BYTES` that is best on this host; with `--network` the tokens of
//! admission (`weir_bench::network_tuning`). With `--save` it stores the value for `weir run` ([`saved`]); `--forget`
//! removes all.
//!
//! A message can travel in two ways. Eager: the whole message goes through the mailbox, with one copy on each side.
//! Rendezvous: the sender announces the message, and it is copied once, which takes a system call and an answer. The
//! size from which rendezvous is faster differs between hosts by a factor of ten, because system calls and caches
//! differ.
//!
//! The size also depends on the traffic. In a round trip one side waits, so two cores make the two copies of an eager
//! message at the same time. In an exchange each side has both copies to make, so one copy is less work. The command
//! measures both kinds of traffic, and gives them the same weight.
//!
//! Two pairs of processes measure in turns, size by size, in rounds, so that a slow phase of the host affects all
//! values. Expected cost: nine sizes, five rounds, four times 20 ms: four seconds.

pub mod saved;

use crate::hosts::{JobHosts, RunDirectories};
use clap::Args;
use comfy_table::Cell;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_bench::congestion::{RemoteHosts, RemoteRun};
use weir_bench::engine_pair::{Pair, Traffic};
use weir_bench::machine::Machine;
use weir_bench::network_tuning::{self, NetworkTuningOptions, THRESHOLDS};
use weir_bench::options::OutputOptions;
use weir_bench::statistics::Spread;
use weir_engine::config::{Settings, Thresholds};
use weir_engine::stats::Reports;
use weir_mpi::hosts::Share;
use weir_output::Failure;
use weir_output::quantity::{exact_bytes, three_digits, time_ns};
use weir_output::table;

/// The setting.
const EAGER_BYTES: &str = "FI_WEIR_EAGER_BYTES";
/// Message sizes. They cover the crossover of all hosts measured so far. Unit: bytes.
const SIZES: [u64; 9] = [2048, 4096, 8192, 12_288, 16_384, 24_576, 32_768, 65_536, 131_072];
/// Time for one size in one round, for each way and each kind of traffic.
const TIME: Duration = Duration::from_millis(20);
const ROUNDS: u32 = 5;
/// Rendezvous must be faster by this factor before a size counts as faster. Smaller differences are noise. An eager message
/// also has an advantage that the measurement does not show: the sender need not wait for the receiver.
const MARGIN: f64 = 1.05;

/// Options of `weir tune`.
#[derive(Args, Debug)]
#[command(after_help = "\
A message of up to FI_WEIR_EAGER_BYTES is eager: it travels whole through the mailbox of its receiver. A longer message \
uses rendezvous: it is announced, and its receiver copies it once.

The table shows both ways for half a round trip and for an exchange, in which both sides send at the same time. The last \
line is the best setting: the largest size up to which eager is less than 5 % slower, in the geometric mean of the two. \
A smaller value suits programs that mostly exchange, or with more ranks than cores. A larger value suits programs that \
mostly send one way.

With --network, the command measures FI_WEIR_ADMIT_THRESHOLDS instead: from which message length and number of active ranks \
on a host gains if it bounds the datagrams that it has under way, and by how much. With --hosts it measures between the \
hosts of a file, which need the same as for `weir run --hosts`. Without, hosts are network namespaces of this machine, which need \
root, iproute2 and util-linux. Then it knows the cores of this machine, but not your network; --port-rate and --port-queue \
describe a switch. All numbers of tokens are measured in turn with FI_WEIR_ADMIT=off, under \
random updates and incast, in at most four minutes (six over a core provider, two more with --hosts); one with --quick. A \
number is kept only if neither loses.

--save writes the setting for this host to $XDG_CONFIG_HOME/weir (default: ~/.config/weir). `weir run` uses it unless \
an option or the environment gives the setting. With another launcher, set the printed variable for all ranks.

Exit status:
  0      everything was measured, and saved if asked
  1      a measurement failed, for instance with one core
  2      a wrong option or setting

Examples:
  weir tune --save
  weir tune --network --quick
  weir tune --network --hosts hosts.txt --page tokens.html --save
  weir tune --network --port-rate 1000 --page tokens.html --save")]
pub struct TuneArguments {
    /// Number of rounds [default: 5; with --network 3, with --quick 2].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: Option<u32>,
    /// Save the setting for `weir run` on this host.
    #[arg(long, conflicts_with = "forget")]
    save: bool,
    /// Remove the saved settings of this host, without measuring.
    #[arg(long, conflicts_with_all = ["json", "repeat", "network"])]
    forget: bool,
    #[command(flatten)]
    network: NetworkTuningOptions,
    #[command(flatten)]
    output: OutputOptions,
}

/// The part of the `--json` record below its head. Unit of all times: ns.
#[derive(Serialize)]
struct Results {
    machine: Machine,
    sizes: Vec<Size>,
    /// The best setting.
    eager_bytes: u64,
    default_eager_bytes: u32,
}

#[derive(Serialize)]
struct Size {
    bytes: u64,
    /// Half a round trip.
    round_trip: Times,
    /// One message each way at the same time.
    exchange: Times,
}

#[derive(Default, Serialize)]
struct Times {
    eager_ns: Vec<f64>,
    rendezvous_ns: Vec<f64>,
}

impl Times {
    /// The time of rendezvous divided by that of eager, by medians.
    fn ratio(&self) -> f64 {
        let median = |samples: &[f64]| Spread::of(samples).map_or(f64::NAN, |spread| spread.median);
        median(&self.rendezvous_ns) / median(&self.eager_ns)
    }
}

/// Measures and prints. Returns the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &TuneArguments) -> Result<u8, Failure> {
    if arguments.forget {
        let path = saved::path()?;
        match saved::remove(&path)? {
            true => println!("removed {}", path.display()),
            false => println!("nothing was saved for this host ({})", path.display()),
        }
        return Ok(0);
    }
    arguments.output.record.check()?;
    let place = arguments.save.then(saved::path).transpose()?;
    if arguments.network.is_wanted() {
        return tune_network(arguments, place.as_deref());
    }
    let given = Settings::from_environment()?;
    if !given.cross_memory {
        return Err(Failure::Usage(String::from(
            "FI_WEIR_CROSS_MEMORY=0 forbids copies between processes, so there is no choice to measure; unset it",
        )));
    }
    let machine = Machine::of_this();
    let sizes = measure(&given, arguments)?;
    let eager_bytes = crossover(&sizes);
    let default_eager_bytes = Settings::default().eager_bytes;
    let results = Results { machine, sizes, eager_bytes, default_eager_bytes };
    arguments.output.record.print(render(&results))?;
    if let Some(path) = &place {
        save(arguments, path, EAGER_BYTES, &eager_bytes.to_string())?;
    }
    arguments.output.record.write("weir-tune-3", results)?;
    Ok(0)
}

/// Measures the tokens of admission. Saves those of this link, and keeps those of others.
fn tune_network(arguments: &TuneArguments, place: Option<&Path>) -> Result<u8, Failure> {
    // Before the measurement, which takes minutes.
    let before = match place {
        Some(_) => saved::of_this_host()?.and_then(|saved| saved.settings.get(THRESHOLDS).cloned()),
        None => None,
    };
    let before: Thresholds =
        before.map_or(Ok(Thresholds::default()), |word| word.parse()).map_err(|wrong| {
            Failure::Usage(format!("{THRESHOLDS} as saved: {wrong}; remove it with `weir tune --forget`"))
        })?;
    let remote_shell = crate::run::remote_shell(arguments.network.remote_shell());
    let shm = Settings::from_environment()?.shm_dir;
    let by = Box::new(ByHelpers { remote_shell: remote_shell.clone(), shm });
    let tuned =
        network_tuning::run(&arguments.network, arguments.repeat, &arguments.output, remote_shell, by)?;
    arguments.output.record.print(network_tuning::describe(&tuned))?;
    if let Some(path) = place {
        let all = before.with_table(tuned.link, tuned.thresholds.table(tuned.link).clone());
        save(arguments, path, THRESHOLDS, &all.word())?;
        if tuned.is_remote {
            arguments.output.record.print(
                "`weir run --hosts` on this host passes it to all ranks. To start jobs on another host, copy the file there; \
                 its name is that of the host.",
            )?;
        }
    }
    Ok(0)
}

/// Prepares hosts by helpers, as `weir run --hosts` does.
struct ByHelpers {
    remote_shell: String,
    shm: PathBuf,
}

impl RemoteHosts for ByHelpers {
    fn begin(
        &self,
        shares: &[Share<'_>],
        run: &Path,
        counters: &Path,
        plug_in: &Path,
    ) -> Result<Box<dyn RemoteRun>, Failure> {
        let directories =
            RunDirectories { run, stats: counters, traces: None, shm: &self.shm, provider: plug_in };
        Ok(Box::new(Begun(JobHosts::begin(shares, &self.remote_shell, directories)?)))
    }
}

/// A run whose helpers are there.
struct Begun(JobHosts);

impl RemoteRun for Begun {
    fn counters(&mut self, directory: &Path) -> Result<Reports, String> {
        let collected = self.0.gather(directory);
        match collected.lacks_counters {
            false => Ok(collected.reports),
            true => Err(collected.remarks.join("; ")),
        }
    }
}

fn save(arguments: &TuneArguments, path: &Path, variable: &str, value: &str) -> Result<(), Failure> {
    saved::set(path, variable, value)?;
    let saved = format_args!("Saved in {}; `weir run` reads it from there.", path.display());
    arguments.output.record.print(saved)
}

fn measure(given: &Settings, arguments: &TuneArguments) -> Result<Vec<Size>, Failure> {
    let longest = SIZES[SIZES.len() - 1];
    let with = |eager_bytes| Settings { eager_bytes, ..given.clone() };
    let mut eager = Pair::start(&with(longest as u32), longest as usize)?;
    let mut rendezvous = Pair::start(&with(0), longest as usize)?;
    let rounds = arguments.repeat.unwrap_or(ROUNDS);
    let bar = arguments.output.progress_bar(u64::from(rounds) * SIZES.len() as u64);
    let mut sizes: Vec<_> =
        SIZES.map(|bytes| Size { bytes, round_trip: Times::default(), exchange: Times::default() }).into();
    for _ in 0..rounds {
        for size in &mut sizes {
            bar.set_message(format!("{} B", size.bytes));
            let bytes = size.bytes as usize;
            for (traffic, times) in
                [(Traffic::RoundTrips, &mut size.round_trip), (Traffic::Exchanges, &mut size.exchange)]
            {
                times.eager_ns.push(eager.time_ns_for(traffic, bytes, TIME)?);
                times.rendezvous_ns.push(rendezvous.time_ns_for(traffic, bytes, TIME)?);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    eager.end()?;
    rendezvous.end()?;
    Ok(sizes)
}

/// The largest size up to which rendezvous is not faster, in the geometric mean of round trips and exchanges.
fn crossover(sizes: &[Size]) -> u64 {
    let mean = |size: &Size| (size.round_trip.ratio() * size.exchange.ratio()).sqrt();
    let eager_is_best = |size: &&Size| mean(size) > 1.0 / MARGIN;
    let last = sizes.iter().take_while(eager_is_best).last();
    last.map_or(SIZES[0] / 2, |size| size.bytes)
}

fn render(results: &Results) -> String {
    let mut table = table::plain();
    table.set_header(["half a round trip", "eager", "", "rendezvous", "", "rendezvous / eager"]);
    for (name, times) in
        [("", (|size| &size.round_trip) as fn(&Size) -> &Times), ("exchange of ", |size| &size.exchange)]
    {
        for one in &results.sizes {
            let times = times(one);
            let (Some(eager), Some(rendezvous)) =
                (Spread::of(&times.eager_ns), Spread::of(&times.rendezvous_ns))
            else {
                continue;
            };
            let range = |spread: &Spread| format!("{} .. {}", time_ns(spread.min), time_ns(spread.max));
            let (short, long) = (time_ns(eager.median), time_ns(rendezvous.median));
            let row = [short, range(&eager), long, range(&rendezvous), three_digits(times.ratio())];
            let name = Cell::new(format!("{name}{}", exact_bytes(one.bytes)));
            table.add_row(std::iter::once(name).chain(row.map(table::right)));
        }
    }
    let mut text = table::text(&table);
    if results.machine.load > 0.5 {
        text.push_str(&format!(
            "\nThe host was not idle (load {}): on an idle host another value may be best.",
            results.machine.load
        ));
    }
    let default = match u64::from(results.default_eager_bytes) == results.eager_bytes {
        true => String::from(", which is the default"),
        false => format!(" (the default is {})", results.default_eager_bytes),
    };
    text.push_str(&format!("\nBest here: {EAGER_BYTES}={}{default}.", results.eager_bytes));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes with these ratios of rendezvous to eager. `tilt`: factor by which round trips favour eager more, and exchanges
    /// less.
    fn tilted(ratios: &[f64], tilt: f64) -> Vec<Size> {
        let times = |ratio: f64| Times { eager_ns: vec![1000.0], rendezvous_ns: vec![1000.0 * ratio] };
        let size = |(&bytes, &ratio): (&u64, &f64)| Size {
            bytes,
            round_trip: times(ratio * tilt),
            exchange: times(ratio / tilt),
        };
        SIZES.iter().zip(ratios).map(size).collect()
    }

    fn sizes(ratios: &[f64]) -> Vec<Size> {
        tilted(ratios, 1.0)
    }

    #[test]
    fn the_eager_limit_is_below_the_first_size_faster_by_rendezvous() {
        assert_eq!(crossover(&sizes(&[3.0, 2.0, 1.5, 1.2, 1.0, 0.97, 0.8, 0.7, 0.6])), 24_576);
        assert_eq!(crossover(&sizes(&[3.0, 2.0, 1.5, 0.9, 1.2, 1.0, 0.8, 0.7, 0.6])), 8192);
        assert_eq!(crossover(&sizes(&[0.5; 9])), 1024);
        assert_eq!(crossover(&sizes(&[2.0; 9])), 131_072);
    }

    #[test]
    fn round_trips_and_exchanges_have_equal_weight() {
        let ratios = [3.0, 2.0, 1.5, 1.2, 1.0, 0.97, 0.8, 0.7, 0.6];
        for tilt in [0.5, 2.0, 5.0] {
            assert_eq!(crossover(&tilted(&ratios, tilt)), 24_576);
        }
    }
}
