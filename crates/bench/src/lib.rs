//! `weir bench`: weir side by side with the other transports of this machine, and its schemes with each other.
//!
//! All transports run under the same MPICH with the same program, so that what differs is what carries the messages. What is
//! compared is interleaved, and where the question is a limit, compared in pairs.
#![forbid(unsafe_code)]

mod compare;
mod comparison;
mod contender;
mod contender_set;
pub mod engine_pair;
mod flood;
mod free_memory;
mod imb;
pub mod jobs;
pub mod machine;
pub mod memory;
mod native;
mod overhead;
mod pingpong;
mod program;
mod result_line;
mod sim;
pub mod statistics;
mod transport;

pub use overhead::workload;

use clap::{Args, Subcommand, ValueEnum};
use transport::Transport;
use weir_output::Failure;

/// Options of `weir bench`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Without the name of a benchmark, everything is compared with everything: weir, MPICH's own shared memory, libfabric's shm and tcp \
and UCX, all under the same MPICH, and Open MPI and Intel MPI as they are, if they are found. Each round goes through all \
of them for each measure, beginning with another one each time. The tables have the median of the rounds, the least and the \
greatest, and the ratio to weir's median; where spreads overlap, the difference is within noise. Then come weir's targets: \
reached or missed if that is so for every combination of samples. DIR/bench.html shows the same with figures.

Each job that has ended is a line in DIR/samples.jsonl; the same command goes on where an interrupted one stopped. After a complete \
run it begins anew. What fails or does not end in time is told, and not tried again in that run.

Needs an MPICH with libfabric, UCX and mpicc (pip install mpich) and a C compiler. Settings of weir are taken from the environment \
(see `weir settings`). With everything expect some 20 minutes on a quiet machine, with --quick five; do nothing else on it.

Exit status: 0 if everything that was asked for was measured, 1 if a transport is missing, failed or timed out (but for flood \
and incast, which others need not survive); 2, 126 and 127 as for `weir run`. Targets do not count.

Examples:
  weir bench --quick
  weir bench --only weir,mpich-shm,ucx --measure latency,rate --repeat 9
  weir bench --json bench.json"
)]
pub struct BenchArguments {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    #[command(flatten)]
    compare: compare::CompareArguments,
}

/// Benchmarks.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Half round trip, message rate and barrier over weir and over the other transports, under the same MPICH.
    Pingpong(pingpong::PingpongArguments),
    /// What a flood of unexpected messages does to its receiver's memory, over weir and over the other transports.
    Flood(flood::FloodArguments),
    /// What a receiver occupies for 1K to 256K peers, idle and with 64 active ones, beside the published formulae.
    Memory(memory::MemoryArguments),
    /// Half round trips through the engine itself, without an MPI, beside what a cache line takes from core to core.
    Native(native::NativeArguments),
    /// What one flow-control scheme costs over another: instructions for a message, and time in paired runs.
    Overhead(overhead::OverheadArguments),
    /// What the simulator takes: events, packets, hops and messages per second, memory, beside what it has to keep to.
    Sim(sim::SimArguments),
    /// List transports, measures and cases.
    List,
}

/// Runs a benchmark, or compares everything. The result is the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &BenchArguments) -> Result<u8, Failure> {
    let Some(command) = &arguments.command else { return compare::run(&arguments.compare) };
    match command {
        BenchCommand::Pingpong(arguments) => pingpong::run(arguments),
        BenchCommand::Flood(arguments) => flood::run(arguments),
        BenchCommand::Memory(arguments) => memory::run(arguments),
        BenchCommand::Native(arguments) => native::run(arguments),
        BenchCommand::Overhead(arguments) => overhead::run(arguments),
        BenchCommand::Sim(arguments) => sim::run(arguments),
        BenchCommand::List => {
            list();
            Ok(0)
        }
    }
}

fn list() {
    fn lines<V: ValueEnum>(heading: &str) {
        println!("{heading}");
        for value in V::value_variants().iter().filter_map(ValueEnum::to_possible_value) {
            println!("  {:14} {}", value.get_name(), value.get_help().unwrap_or_default());
        }
    }
    lines::<Transport>("Transports (without a benchmark's name, pingpong, flood: --only), under MPICH:");
    lines::<contender::OtherMpi>(
        "Other MPIs by themselves, if they are installed (without a benchmark's name, flood: --only):",
    );
    lines::<compare::Group>("Measures (without a benchmark's name: --measure):");
    lines::<pingpong::Group>("Measures (pingpong: --measure):");
    lines::<overhead::Part>("Measures (overhead: --measure):");
    lines::<sim::Case>("Worlds (sim: --only):");
    println!("Cases (flood: --cases):");
    for case in flood::standard_cases() {
        println!("  {:28} {}", case.word(), case.describe());
    }
}
