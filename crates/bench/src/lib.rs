//! `weir bench` and its parts. Benchmarks compare weir with other transports and MPIs on this host, and its
//! flow-control schemes with each other. Others compare its engine, memory and simulator with their targets.
//!
//! Transports under MPICH run with the same MPICH and the same program, so that only the transport differs.
//! Measurements that are compared are interleaved, in rounds. Other commands use the parts that are public here: `weir
//! tune` times the engine with one.
#![forbid(unsafe_code)]

mod collectives;
mod compare;
mod comparison;
pub mod congestion;
mod contender;
mod contender_set;
pub mod engine_pair;
mod flood;
pub mod free_memory;
pub mod huge_pages;
mod imb;
pub mod jobs;
mod launcher;
pub mod lock;
pub mod machine;
mod members;
pub mod memory;
mod native;
mod net;
pub mod network_tuning;
mod nic;
pub mod node_group;
mod one_sided;
pub mod options;
mod overhead;
mod paired;
mod pingpong;
mod program;
pub mod record;
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
Without the name of a benchmark, this compares all transports on this host. weir, MPICH's own shared memory, \
libfabric's shm and tcp, and UCX run under the same MPICH. Open MPI and Intel MPI run as they are, if they are found.

Each round goes through all transports for each measure, and begins with another one each time. The tables show the \
median of the rounds, the least and the greatest value, and the ratio to weir's median. If the ranges of two \
transports overlap, the difference is within noise. Then come weir's targets. A target is reached or missed only if \
all combinations of samples agree. DIR/bench.html shows the same with figures.

A finished job is a line in DIR/samples.jsonl. The same command resumes an interrupted one. After a complete run it \
begins anew. A job that fails or times out is reported, and not repeated in that run.

It needs an MPICH with libfabric, UCX and mpicc (pip install mpich), and a C compiler. weir's settings come from the \
environment (see `weir settings`). All of it takes some 20 minutes on an idle machine, and five with --quick. Other \
work on the machine changes the results.

Exit status:
  0      everything was measured, whether targets are reached or not
  1      a transport is missing, failed or timed out; other transports may fail in flood and incast
  2      a wrong option or setting
  126    the program is not executable
  127    a program was not found

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

/// The benchmarks.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Compare collective operations of weir in shared memory with those by messages and of other MPIs.
    Collectives(collectives::CollectivesArguments),
    /// Compare half round trip, message rate and barrier over weir and other transports, under the same MPICH.
    Pingpong(pingpong::PingpongArguments),
    /// Measure a receiver's memory in a flood of unexpected messages, over weir and other transports.
    Flood(flood::FloodArguments),
    /// Compare the queue lock of the native interface with a lock that spins over the same atomics.
    Lock(lock::LockArguments),
    /// Measure a receiver's memory for 1K to 256K peers, beside the published formulae.
    Memory(memory::MemoryArguments),
    /// Measure half round trips of weir's engine without an MPI, beside the time of a cache line from core to core.
    Native(native::NativeArguments),
    /// Compare weir over UDP with other transports between hosts, which are namespaces of this machine.
    Net(net::NetArguments),
    /// Compare operations that kernel programs carry out between hosts with the same ones by processes over bare UDP.
    Nic(nic::NicArguments),
    /// Measure collective operations of processes of this node in shared memory, beside a barrier by one counter.
    NodeGroup(node_group::NodeGroupArguments),
    /// Compare one-sided operations of a rank to itself and to another rank, over weir and other transports.
    OneSided(one_sided::OneSidedArguments),
    /// Compare two flow-control schemes: instructions for a message, and time in paired runs.
    Overhead(overhead::OverheadArguments),
    /// Compare settings of weir and other transports round by round.
    Paired(paired::PairedArguments),
    /// Measure the simulator: events, packets, hops and messages per second, and memory, beside its targets.
    Sim(sim::SimArguments),
    /// List transports, measures and cases.
    List,
}

/// Runs a benchmark, or the comparison of all transports. Returns the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &BenchArguments) -> Result<u8, Failure> {
    let Some(command) = &arguments.command else { return compare::run(&arguments.compare) };
    match command {
        BenchCommand::Collectives(arguments) => collectives::run(arguments),
        BenchCommand::Pingpong(arguments) => pingpong::run(arguments),
        BenchCommand::Flood(arguments) => flood::run(arguments),
        BenchCommand::Lock(arguments) => lock::run(arguments),
        BenchCommand::Memory(arguments) => memory::run(arguments),
        BenchCommand::Native(arguments) => native::run(arguments),
        BenchCommand::Net(arguments) => net::run(arguments),
        BenchCommand::Nic(arguments) => nic::run(arguments),
        BenchCommand::NodeGroup(arguments) => node_group::run(arguments),
        BenchCommand::OneSided(arguments) => one_sided::run(arguments),
        BenchCommand::Overhead(arguments) => overhead::run(arguments),
        BenchCommand::Paired(arguments) => paired::run(arguments),
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
    lines::<Transport>(
        "Transports (without a benchmark's name, pingpong, one-sided, flood: --only), under MPICH:",
    );
    lines::<contender::HostTransport>("Transports under MPICH between hosts (net: --only):");
    lines::<contender::WeirVariant>("weir with other settings, between hosts (net: --only):");
    lines::<contender::OtherMpi>(
        "Other MPIs by themselves, if they are installed (without a benchmark's name, flood: --only):",
    );
    lines::<compare::Group>("Measures (without a benchmark's name: --measure):");
    lines::<pingpong::Benchmark>("Measures (pingpong: --measure):");
    lines::<overhead::Part>("Measures (overhead: --measure):");
    lines::<sim::Case>("Worlds (sim: --only):");
    println!("Cases (flood: --cases):");
    for case in flood::standard_cases() {
        println!("  {:28} {}", case.word(), case.describe());
    }
}
