//! `weir bench sim`: how fast the simulator is and what it needs, beside what it has to keep to.
//!
//! Every case is a world in a process of its own, so that the peak of its memory is that case's and nothing is warm from the
//! one before. Time is what the processor spent (user and kernel), because machines are shared.
//!
//! Expected: 35 to 60 ns for a hop of a packet, 100 to 300 ns for a packet at both ends together (up to 1 us in an all-to-all, where
//! all pairs have something under way at a time), 1 us for a message between ranks that know each other and 2 us for one between ranks
//! that meet. All cases take three minutes, the quick ones two seconds.

mod table;
mod worlds;

use super::jobs;
use crate::machine::Machine;
use clap::{Args, ValueEnum};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};
use weir_output::Failure;
pub use worlds::Case;
use worlds::WorldResult;

/// Options of `weir bench sim`.
#[derive(Args, Debug)]
#[command(after_help = "\
A hop is a packet on one wire. On the ideal network a packet has one hop, on LogGOPS a message has one. The cases \
bare-... run networks alone, without machines and programs. The cases messages-..., neighbours, neighbours-long and \
barrier have no flow control, all others have static credits. Seconds are processor time of one core. Peak memory is \
that of the whole process; the column beside it divides it by the ranks. With --quick the worlds are small and \
nothing is judged.

Exit status:
  0      all cases reach their targets
  1      a case does not, or could not be measured")]
pub struct SimArguments {
    /// Only these cases.
    #[arg(long, value_name = "CASE", value_delimiter = ',')]
    only: Vec<Case>,
    /// Small worlds, which take a second.
    #[arg(long)]
    quick: bool,
    /// Write a record as JSON to FILE, or to standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
    /// No progress bar.
    #[arg(long, short)]
    quiet: bool,
    /// Run one case here and print what it took.
    #[arg(long, hide = true)]
    here: bool,
}

/// A world and what it took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Measured {
    case: Case,
    #[serde(flatten)]
    done: WorldResult,
    /// Processor time. Unit: seconds.
    cpu_s: f64,
    /// Most memory that the process had at a time. Unit: bytes.
    peak_bytes: u64,
}

impl Measured {
    /// `number` of something for each second.
    fn per_s(&self, number: u64) -> f64 {
        number as f64 / self.cpu_s.max(1e-3)
    }
}

/// What `--json` writes.
#[derive(Serialize)]
struct Record<'a> {
    schema: &'static str,
    weir_version: &'static str,
    /// Unit: seconds since 1970.
    time_s: u64,
    machine: &'a Machine,
    quick: bool,
    cases: &'a [Measured],
    targets: &'a [table::JudgedTarget],
}

/// Measures and prints. The result is the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &SimArguments) -> Result<u8, Failure> {
    let mut cases = arguments.only.clone();
    if cases.is_empty() {
        cases = Case::value_variants().to_vec();
    }
    if arguments.here {
        for case in cases {
            let measured = measure(case, arguments.quick)?;
            println!("{}", serde_json::to_string(&measured).expect("numbers and names only"));
        }
        return Ok(0);
    }
    let machine = Machine::of_this();
    let bar = jobs::progress_bar(cases.len() as u64, arguments.quiet);
    let mut measured = Vec::new();
    for case in cases {
        bar.set_message(name(case));
        measured.push(measure_in_child_process(case, arguments.quick)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let judged = if arguments.quick { Vec::new() } else { table::judge(&measured) };
    println!("{}", table::render(&measured, &judged, &machine));
    if let Some(target) = &arguments.json {
        let record = Record {
            schema: "weir-bench-sim-1",
            weir_version: env!("CARGO_PKG_VERSION"),
            time_s: jobs::now_s(),
            machine: &machine,
            quick: arguments.quick,
            cases: &measured,
            targets: &judged,
        };
        weir_output::write::write_json(&record, target)?;
    }
    Ok(u8::from(judged.iter().any(|judged| !judged.holds)))
}

fn name(case: Case) -> String {
    case.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Runs a case in a process of its own.
fn measure_in_child_process(case: Case, quick: bool) -> Result<Measured, Failure> {
    let program = std::env::current_exe().map_err(Failure::system("our own program"))?;
    let mut command = Command::new(program);
    command.args(["bench", "sim", "--here", "--only", &name(case)]).stdin(Stdio::null());
    if quick {
        command.arg("--quick");
    }
    let output = command.stderr(Stdio::inherit()).output().map_err(Failure::system("our own program"))?;
    if !output.status.success() {
        return Err(Failure::Measurement(format!("{}: {}", name(case), output.status)));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Failure::Measurement(format!("{}: {error}", name(case))))
}

/// Runs a case here.
fn measure(case: Case, quick: bool) -> Result<Measured, Failure> {
    let done = case.run(quick).map_err(|why| Failure::Measurement(format!("{}: {why}", name(case))))?;
    let usage =
        getrusage(UsageWho::RUSAGE_SELF).map_err(|errno| Failure::system("getrusage")(errno.into()))?;
    let cpu_us = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Measured { case, done, cpu_s: cpu_us as f64 / 1e6, peak_bytes: peak_bytes()? })
}

/// The most memory that this process had at a time. (What `getrusage` says begins with the parent's.)
fn peak_bytes() -> Result<u64, Failure> {
    const STATUS: &str = "/proc/self/status";
    let status = std::fs::read_to_string(STATUS).map_err(Failure::system(STATUS))?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    let kib: u64 = kib.ok_or_else(|| Failure::Measurement(format!("{STATUS} has no line VmHWM")))?;
    Ok(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_quick_case_is_deterministic() {
        for &case in Case::value_variants() {
            let [first, second] = [0, 1].map(|_| measure(case, true).expect("runs").done);
            assert!(first.messages > 1000 && first.packet_hops >= first.messages, "{case:?}: {first:?}");
            assert_eq!((first.trace, first.events), (second.trace, second.events), "{case:?}");
        }
    }
}
