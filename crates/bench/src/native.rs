//! `weir bench native`: half round trips of the engine without MPI and libfabric, compared with a cache line from core
//! to core, a plain copy and a copy by the kernel.
//!
//! A short message is one cache line each way, so the ratio shows what weir adds. A long message is at best one copy,
//! made by the kernel if one process reads the other's memory. Lines, copies and messages are measured alternately, in
//! rounds. A half round trip of 8 B may take at most 1.5 times that of a cache line.
//!
//! Expected: two seconds with four sizes and five rounds.

use super::statistics::Spread;
use crate::engine_pair::copies::Copies;
use crate::engine_pair::{Pair, Traffic, cache_line};
use crate::machine::Machine;
use crate::options::OutputOptions;
use clap::Args;
use comfy_table::Cell;
use serde::Serialize;
use std::time::Duration;
use weir_engine::config::Settings;
use weir_output::Failure;
use weir_output::quantity::{exact_bytes, three_digits, time_ns};
use weir_output::table;

/// Target for the smallest message, as a multiple of the cache line (docs/explanation/performance.md).
const LIMIT: f64 = 1.5;
/// Size of this message. Unit: bytes.
const SMALL_BYTES: u64 = 8;
/// Measuring time for each size in a round.
const TIME: Duration = Duration::from_millis(50);
/// Measuring time for each kind of copy and size in a round.
const COPY_TIME: Duration = Duration::from_millis(10);
/// Fewest rounds for a verdict.
const MIN_ROUNDS: usize = 3;

/// Options of `weir bench native`.
#[derive(Args, Debug)]
#[command(after_help = "\
Two processes, each on a core of its own, send a message back and forth through weir's engine, without an MPI and \
without libfabric.

The table shows the median of the rounds, the least and the greatest value, and for comparison:
  of a cache line   ratio to the time in which one core sees a word that another writes; no message is faster
  one copy          time in which one core copies as many bytes in its own memory; a cooperative copy can be faster
  by the kernel     the same with process_vm_readv

weir's settings come from the environment (see `weir settings`).

Exit status:
  0      everything was measured, whether the target is reached or not
  1      a measurement failed, for instance with one core")]
pub struct NativeArguments {
    /// Message sizes. Unit: bytes.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [8, 2048, 65536, 1 << 20], value_parser = clap::value_parser!(u64).range(0..=1 << 30))]
    sizes: Vec<u64>,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    #[command(flatten)]
    output: OutputOptions,
}

/// The part of the `--json` record below its head. All times in nanoseconds.
#[derive(Serialize)]
struct Results {
    machine: Machine,
    /// A cache line from one core to the other, by round.
    cache_line_ns: Vec<f64>,
    sizes: Vec<Size>,
    settings: std::collections::BTreeMap<&'static str, String>,
}

#[derive(Serialize)]
struct Size {
    bytes: u64,
    half_round_trip_ns: Vec<f64>,
    /// One copy of `bytes` bytes by one core within its own memory, by round.
    copy_ns: Vec<f64>,
    /// One copy of `bytes` bytes by the kernel, by round.
    attached_copy_ns: Vec<f64>,
}

impl Size {
    fn new(bytes: u64) -> Size {
        Size { bytes, half_round_trip_ns: Vec::new(), copy_ns: Vec::new(), attached_copy_ns: Vec::new() }
    }
}

/// Measures and prints. Returns the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &NativeArguments) -> Result<u8, Failure> {
    arguments.output.record.check()?;
    let settings = Settings::from_environment()?;
    settings.quota(2)?;
    let machine = Machine::of_this();
    let longest = arguments.sizes.iter().copied().max().unwrap_or(SMALL_BYTES);
    let mut pair = Pair::start(&settings, longest as usize)?;
    let bar = arguments.output.progress_bar(u64::from(arguments.repeat) * arguments.sizes.len() as u64);
    let mut lines = Vec::new();
    let mut sizes: Vec<_> = arguments.sizes.iter().copied().map(Size::new).collect();
    let mut copies = Copies::new(longest as usize);
    for _ in 0..arguments.repeat {
        lines.push(cache_line::one_way_ns(pair.cores())?);
        for size in &mut sizes {
            bar.set_message(format!("{} B", size.bytes));
            let bytes = size.bytes as usize;
            size.half_round_trip_ns.push(pair.time_ns_for(Traffic::RoundTrips, bytes, TIME)?);
            size.copy_ns.push(copies.memcpy_ns(bytes, COPY_TIME));
            size.attached_copy_ns.push(copies.cross_memory_ns(bytes, COPY_TIME)?);
            bar.inc(1);
        }
    }
    pair.end()?;
    bar.finish_and_clear();
    let results = Results {
        machine,
        cache_line_ns: lines,
        sizes,
        settings: settings.to_variables().into_iter().collect(),
    };
    arguments.output.record.print(render(&results))?;
    arguments.output.record.write("weir-bench-native-1", results)?;
    Ok(0)
}

fn render(results: &Results) -> String {
    let mut table = table::plain();
    table.set_header([
        "half a round trip",
        "median",
        "least",
        "greatest",
        "of a cache line",
        "one copy",
        "by the kernel",
    ]);
    let Some(line) = Spread::of(&results.cache_line_ns) else { return String::new() };
    let row = |name: String, spread: &Spread, copies: [&[f64]; 2]| {
        let times = [spread.median, spread.min, spread.max].map(time_ns);
        let ratio = format!("{} x", three_digits(spread.median / line.median));
        let copies = copies.map(|samples| Spread::of(samples).map_or(String::new(), |it| time_ns(it.median)));
        let texts = times.into_iter().chain([ratio]).chain(copies);
        std::iter::once(Cell::new(name)).chain(texts.map(table::right)).collect::<Vec<_>>()
    };
    table.add_row(row(String::from("cache line, one core to another"), &line, [&[], &[]]));
    for one in &results.sizes {
        if let Some(spread) = Spread::of(&one.half_round_trip_ns) {
            let name = format!("{} over weir, no MPI", exact_bytes(one.bytes));
            table.add_row(row(name, &spread, [&one.copy_ns, &one.attached_copy_ns]));
        }
    }
    let mut text = table::text(&table);
    let small = results.sizes.iter().find(|size| size.bytes == SMALL_BYTES);
    if let Some(small) = small.and_then(|size| Spread::of(&size.half_round_trip_ns)) {
        let word = match results.cache_line_ns.len() {
            few if few < MIN_ROUNDS => "too few rounds",
            _ if small.max / line.min <= LIMIT => "reached",
            _ if small.min / line.max > LIMIT => "MISSED",
            _ => "within noise",
        };
        text.push_str(&format!("\nTarget for {SMALL_BYTES} B: at most {LIMIT} x the cache line: {word}."));
    }
    text + "\n" + &results.machine.footer()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(line: [f64; 3], small: [f64; 3]) -> Results {
        Results {
            machine: Machine { processor: "P".into(), cores: 2, kernel: "6".into(), load: 0.0 },
            cache_line_ns: line.into(),
            sizes: vec![Size { half_round_trip_ns: small.into(), copy_ns: vec![7.0], ..Size::new(8) }],
            settings: Default::default(),
        }
    }

    #[test]
    fn a_verdict_needs_every_combination_of_samples() {
        let verdict = |small| {
            let text = render(&results([100.0, 110.0, 120.0], small));
            text.lines().find(|line| line.starts_with("Target")).unwrap().to_owned()
        };
        assert!(verdict([120.0, 140.0, 150.0]).ends_with("reached."));
        assert!(verdict([190.0, 200.0, 210.0]).ends_with("MISSED."));
        assert!(verdict([120.0, 170.0, 210.0]).ends_with("within noise."));
        let text = render(&results([100.0; 3], [200.0; 3]));
        assert!(text.contains("2.00 x") && text.contains("7.00 ns"), "{text}");
    }
}
