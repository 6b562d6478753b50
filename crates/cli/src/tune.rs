//! `weir tune`: what is best on this host, measured instead of guessed.
//!
//! A message can travel whole through the mailbox, which costs a copy on each side, or be announced and copied once by its
//! receiver, which costs a system call and an answer. Where the second begins to win differs from host to host by a factor of ten (what
//! a system call costs, how large the caches are). `weir run` takes what `--save` has left.
//!
//! Which wins also differs with what the program does. In a round trip one side waits, and the two copies of a whole message are made by two cores at
//! once. In an exchange both sides have all of that to do, and one copy each is less. So both are measured, and count alike.
//!
//! Measured is in turns by two pairs of processes, size by size and in rounds, so that what slows the machine down for a while slows
//! down all. Expected cost: nine sizes, five rounds, four times 20 ms: four seconds.

pub mod saved;

use clap::Args;
use comfy_table::{Cell, CellAlignment, LineStyle, Table, presets};
use serde::Serialize;
use std::time::Duration;
use weir_bench::engine_pair::{Pair, Traffic};
use weir_bench::jobs;
use weir_bench::machine::Machine;
use weir_bench::statistics::Spread;
use weir_engine::config::Settings;
use weir_output::Failure;
use weir_output::quantity::{exact_bytes, three_digits, time_ns};

/// What is tuned.
const EAGER_BYTES: &str = "FI_WEIR_EAGER_BYTES";
/// Message sizes: around any crossover that has been seen. Unit: bytes.
const SIZES: [u64; 9] = [2048, 4096, 8192, 12_288, 16_384, 24_576, 32_768, 65_536, 131_072];
/// Of a size in a round, each way, of either traffic.
const TIME: Duration = Duration::from_millis(20);
/// By so much announced messages must be better before a size changes sides: less is noise, and whole ones have an advantage that
/// none of this shows (the sender need not wait for the receiver).
const MARGIN: f64 = 1.05;

/// Options of `weir tune`.
#[derive(Args, Debug)]
#[command(after_help = "\
Up to FI_WEIR_EAGER_BYTES a message travels whole through its receiver's mailbox; longer ones are announced, and copied once by the \
receiver. The table shows half a round trip, and an exchange (both sides send at the same time), both ways. The last line is the setting \
that follows: the largest size up to which travelling whole is not slower by 5 % or more, in the geometric mean of the two. A program \
that mostly exchanges, or has more ranks than cores, is better off with less; one that mostly sends one way with more.

With --save the setting is kept for this host, in $XDG_CONFIG_HOME/weir (or ~/.config/weir), and `weir run` takes it unless \
the environment or an option says otherwise. Under another launcher, set the printed variable for all ranks. --forget removes it.

Exit status: 0 if everything was measured (and saved), 1 if not (for instance with one core).")]
pub struct TuneArguments {
    /// Rounds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Keep the setting for `weir run` on this host.
    #[arg(long, conflicts_with = "forget")]
    save: bool,
    /// Remove what was kept for this host, and measure nothing.
    #[arg(long, conflicts_with_all = ["json", "repeat"])]
    forget: bool,
    /// Write a record with all samples as JSON to FILE, or to standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
    /// No progress bar.
    #[arg(long, short)]
    quiet: bool,
}

/// What `--json` writes. All times in nanoseconds.
#[derive(Serialize)]
struct Record {
    schema: &'static str,
    weir_version: &'static str,
    /// Unit: seconds since 1970.
    time_s: u64,
    machine: Machine,
    sizes: Vec<Size>,
    /// The setting that follows.
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
    whole_ns: Vec<f64>,
    announced_ns: Vec<f64>,
}

impl Times {
    /// How many times as long an announced message takes, by medians.
    fn ratio(&self) -> f64 {
        let median = |samples: &[f64]| Spread::of(samples).map_or(f64::NAN, |spread| spread.median);
        median(&self.announced_ns) / median(&self.whole_ns)
    }
}

/// Measures and prints. The result is the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &TuneArguments) -> Result<u8, Failure> {
    if arguments.forget {
        let path = saved::path()?;
        match saved::forget(&path)? {
            true => println!("removed {}", path.display()),
            false => println!("nothing was saved for this host ({})", path.display()),
        }
        return Ok(0);
    }
    weir_output::write::check_json_target(arguments.json.as_deref())?;
    let place = arguments.save.then(saved::path).transpose()?;
    let given = Settings::from_environment()?;
    if !given.cross_memory {
        return Err(Failure::Usage(String::from(
            "FI_WEIR_CROSS_MEMORY=0: without copies between processes there is nothing to choose; unset it",
        )));
    }
    let machine = Machine::of_this();
    let sizes = measure(&given, arguments)?;
    let eager_bytes = crossover(&sizes);
    let default_eager_bytes = Settings::default().eager_bytes;
    let record = Record {
        schema: "weir-tune-2",
        weir_version: env!("CARGO_PKG_VERSION"),
        time_s: jobs::now_s(),
        machine,
        sizes,
        eager_bytes,
        default_eager_bytes,
    };
    println!("{}", render(&record));
    if let Some(path) = &place {
        saved::write(path, &[(EAGER_BYTES, eager_bytes.to_string())])?;
        println!("Saved in {}; `weir run` takes it from there.", path.display());
    }
    if let Some(target) = &arguments.json {
        weir_output::write::write_json(&record, target)?;
    }
    Ok(0)
}

fn measure(given: &Settings, arguments: &TuneArguments) -> Result<Vec<Size>, Failure> {
    let longest = SIZES[SIZES.len() - 1];
    let with = |eager_bytes| Settings { eager_bytes, ..given.clone() };
    let mut whole = Pair::start(&with(longest as u32), longest as usize)?;
    let mut announced = Pair::start(&with(0), longest as usize)?;
    let bar = jobs::bar(u64::from(arguments.repeat) * SIZES.len() as u64, arguments.quiet);
    let mut sizes: Vec<_> =
        SIZES.map(|bytes| Size { bytes, round_trip: Times::default(), exchange: Times::default() }).into();
    for _ in 0..arguments.repeat {
        for size in &mut sizes {
            bar.set_message(format!("{} B", size.bytes));
            let bytes = size.bytes as usize;
            for (traffic, times) in
                [(Traffic::RoundTrips, &mut size.round_trip), (Traffic::Exchanges, &mut size.exchange)]
            {
                times.whole_ns.push(whole.time_ns_for(traffic, bytes, TIME)?);
                times.announced_ns.push(announced.time_ns_for(traffic, bytes, TIME)?);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    whole.end()?;
    announced.end()?;
    Ok(sizes)
}

/// The largest size up to which no message is faster announced, in the geometric mean of round trips and exchanges.
fn crossover(sizes: &[Size]) -> u64 {
    let mean = |size: &Size| (size.round_trip.ratio() * size.exchange.ratio()).sqrt();
    let whole_is_best = |size: &&Size| mean(size) > 1.0 / MARGIN;
    let last = sizes.iter().take_while(whole_is_best).last();
    last.map_or(SIZES[0] / 2, |size| size.bytes)
}

fn render(record: &Record) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none()));
    table.set_header(["half a round trip", "whole", "", "announced", "", "announced / whole"]);
    for (name, times) in
        [("", (|size| &size.round_trip) as fn(&Size) -> &Times), ("exchange of ", |size| &size.exchange)]
    {
        for one in &record.sizes {
            let times = times(one);
            let (Some(whole), Some(announced)) =
                (Spread::of(&times.whole_ns), Spread::of(&times.announced_ns))
            else {
                continue;
            };
            let range = |spread: &Spread| format!("{} .. {}", time_ns(spread.min), time_ns(spread.max));
            let (short, long) = (time_ns(whole.median), time_ns(announced.median));
            let row = [short, range(&whole), long, range(&announced), three_digits(times.ratio())];
            let right = row.map(|text| Cell::new(text).set_alignment(CellAlignment::Right));
            table.add_row(
                std::iter::once(Cell::new(format!("{name}{}", exact_bytes(one.bytes)))).chain(right),
            );
        }
    }
    let mut text = table.to_string();
    if record.machine.load > 0.5 {
        text.push_str(&format!(
            "\nThe machine was not idle (load {}): the choice may be another one on a quiet machine.",
            record.machine.load
        ));
    }
    let default = match u64::from(record.default_eager_bytes) == record.eager_bytes {
        true => String::from(", which is the default"),
        false => format!(" (the default is {})", record.default_eager_bytes),
    };
    text.push_str(&format!("\nBest here: {EAGER_BYTES}={}{default}.", record.eager_bytes));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of both kinds of traffic; `tilt`: by so much the one is more in favour of whole messages, and the other less.
    fn tilted(ratios: &[f64], tilt: f64) -> Vec<Size> {
        let times = |ratio: f64| Times { whole_ns: vec![1000.0], announced_ns: vec![1000.0 * ratio] };
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
