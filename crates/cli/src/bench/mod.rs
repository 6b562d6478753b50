//! `weir bench`: weir side by side with the other transports of this machine, and its schemes with each other.
//!
//! All transports run under the same MPICH with the same program, so that what differs is what carries the messages. What is
//! compared is interleaved, and where the question is a limit, compared in pairs.

mod flood;
mod imb;
mod jobs;
pub mod memory;
mod overhead;
mod pingpong;
mod sim;
mod statistics;
mod summary;
mod transport;

pub use overhead::workload;

use crate::failure::Failure;
use clap::{Subcommand, ValueEnum};
use transport::Transport;

/// Benchmarks.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Half round trip, message rate and barrier over weir and over the other transports, under the same MPICH.
    Pingpong(pingpong::PingpongArguments),
    /// What a flood of unexpected messages does to its receiver's memory, over weir and over the other transports.
    Flood(flood::FloodArguments),
    /// What a receiver occupies for 1K to 256K peers, idle and with 64 active ones, beside the published formulae.
    Memory(memory::MemoryArguments),
    /// What one flow-control scheme costs over another: instructions for a message, and time in paired runs.
    Overhead(overhead::OverheadArguments),
    /// What the simulator takes: events, packets, hops and messages per second, memory, beside what it has to keep to.
    Sim(sim::SimArguments),
    /// List transports, measures and cases.
    List,
}

/// Runs a benchmark. The result is the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(command: &BenchCommand) -> Result<u8, Failure> {
    match command {
        BenchCommand::Pingpong(arguments) => pingpong::run(arguments),
        BenchCommand::Flood(arguments) => flood::run(arguments),
        BenchCommand::Memory(arguments) => memory::run(arguments),
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
    lines::<Transport>("Transports (pingpong, flood: --only), under MPICH:");
    lines::<flood::Foreign>("Other MPIs by themselves, if they are installed (flood: --only):");
    lines::<pingpong::Group>("Measures (pingpong: --measure):");
    lines::<overhead::Part>("Measures (overhead: --measure):");
    lines::<sim::Case>("Worlds (sim: --only):");
    println!("Cases (flood: --cases):");
    for case in flood::standard_cases() {
        println!("  {:28} {}", case.word(), case.describe());
    }
}
