//! `weir bench sim`: the speed and memory of the simulator, compared with its targets.
//!
//! Each case is a world, or a network alone, in a process of its own. So the peak of memory belongs to the case, and no
//! case warms the caches for another. Time is processor time (user and kernel), because other processes share the
//! cores.
//!
//! Expected times, all cases together three minutes, the quick ones two seconds:
//!
//! | what | time |
//! |---|---|
//! | hop of a packet | 35 to 60 ns |
//! | packet at both ends together | 100 to 300 ns; up to 1 us in an all-to-all with all pairs active |
//! | message between ranks in contact | 1 us |
//! | message at first contact | 2 us |

mod table;
mod worlds;

use crate::huge_pages;
use crate::machine::Machine;
use crate::options::OutputOptions;
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
    /// Measure only these cases.
    #[arg(long, value_name = "CASE", value_delimiter = ',')]
    only: Vec<Case>,
    /// Small worlds, which take a second.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: OutputOptions,
    /// Run one case in this process and print its cost.
    #[arg(long, hide = true)]
    here: bool,
}

/// A world and its cost.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Measured {
    case: Case,
    #[serde(flatten)]
    result: WorldResult,
    /// Processor time. Unit: seconds.
    cpu_s: f64,
    /// Peak memory of the process. Unit: bytes.
    peak_bytes: u64,
}

impl Measured {
    /// `number` divided by the processor time.
    fn per_s(&self, number: u64) -> f64 {
        number as f64 / self.cpu_s.max(1e-3)
    }
}

/// The part of the `--json` record below its head.
#[derive(Serialize)]
struct Results<'a> {
    machine: &'a Machine,
    quick: bool,
    cases: &'a [Measured],
    targets: &'a [table::JudgedTarget],
}

/// Measures and prints. Returns the exit status.
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
    arguments.output.record.check()?;
    let machine = Machine::of_this();
    let bar = arguments.output.progress_bar(cases.len() as u64);
    let mut measured = Vec::new();
    for case in cases {
        bar.set_message(name(case));
        measured.push(measure_in_child_process(case, arguments.quick)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let judged = if arguments.quick { Vec::new() } else { table::judge(&measured) };
    arguments.output.record.print(table::render(&measured, &judged, &machine))?;
    let results = Results { machine: &machine, quick: arguments.quick, cases: &measured, targets: &judged };
    arguments.output.record.write("weir-bench-sim-2", results)?;
    Ok(u8::from(judged.iter().any(|judged| !judged.reached)))
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
    if case.reads_memory_often() {
        huge_pages::ask_for(&mut command);
    }
    let output = command.stderr(Stdio::inherit()).output().map_err(Failure::system("our own program"))?;
    if !output.status.success() {
        return Err(Failure::Measurement(format!("{}: {}", name(case), output.status)));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Failure::Measurement(format!("{}: {error}", name(case))))
}

/// Runs a case in this process.
fn measure(case: Case, quick: bool) -> Result<Measured, Failure> {
    let result = case.run(quick).map_err(|why| Failure::Measurement(format!("{}: {why}", name(case))))?;
    let usage =
        getrusage(UsageWho::RUSAGE_SELF).map_err(|errno| Failure::system("getrusage")(errno.into()))?;
    let cpu_us = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Measured { case, result, cpu_s: cpu_us as f64 / 1e6, peak_bytes: peak_bytes()? })
}

/// Peak memory of this process. `getrusage` would include that of the parent.
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
            let [first, second] = [0, 1].map(|_| measure(case, true).expect("runs").result);
            assert!(first.messages > 1000 && first.packet_hops >= first.messages, "{case:?}: {first:?}");
            assert_eq!((first.trace, first.events), (second.trace, second.events), "{case:?}");
        }
    }
}
