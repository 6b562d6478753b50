//! `weir bench nic`: operations that kernel programs carry out, beside the same ones carried out by processes over bare UDP.
//!
//! Hosts are network namespaces of this process on one switch: one network with the programs attached, one without, so
//! that nothing of the programs slows the processes. All are measured in turn, in rounds.
//!
//! Expected: 15 s with seven rounds and three numbers of members.

mod barrier;
mod multi_send;
mod render;
mod words;

use crate::machine::Machine;
use crate::options::OutputOptions;
use barrier::{Times, Way, Work};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;
use weir_nic::format::{DEFAULT_PORT, MAX_MEMBERS, WORDS};
use weir_nic::pretended::Network;
use weir_nic::{Domain, Membership, Secret};
use weir_output::Failure;
use words::{Answers, Target};

/// Target for fetch&add. Unit: ns.
const WORD_NS: f64 = 2500.0;
/// The time of a process that spins, at least so many times that of the kernel.
const UNDER_SPINNING: f64 = 5.0;
/// The time while the target computes, at most so many times the one while it sleeps.
const WHILE_COMPUTING: f64 = 1.1;
/// Processor time of a barrier of 8 or more by exchange over UDP, at least so many times that of the kernel.
const LESS_PROCESSOR: f64 = 2.0;
/// Members from which on this holds.
const MANY: u32 = 8;
/// Processor time of a loop of sends to 16 receivers, at least so many times that of a multi-send.
const LESS_THAN_LOOP: f64 = 3.0;
/// Receivers for which this holds.
const RECEIVERS: u32 = 16;
/// Barriers, or messages of a multi-send, in a measurement, times members.
const BARRIERS: u32 = 8000;

/// Options of `weir bench nic`.
#[derive(Args, Debug)]
#[command(after_help = "\
Hosts are network namespaces of this command on one switch. Fetch&add: one host asks another again and again, and \
looks for the answer in memory, or at its socket, without sleeping. The word is changed by the kernel programs of \
the other host, or by a process there over bare UDP, which spins or sleeps. Barriers: one process on each host, \
which sleeps while it waits. Over bare UDP, processes exchange packets in log N steps, or the first gathers and \
answers. All-reduces sum 16 binary64 in the order of members; over bare UDP, the first gathers, adds and answers. \
Multi-sends bring 64 bytes from one process to others, each on a host of its own: one frame that the kernel programs \
copy, write to memory and acknowledge, or a send for each, or one call (sendmmsg). Their time is the sender's; over \
bare UDP nobody acknowledges. Bare UDP neither authenticates nor sends again.

Limits: programs that only send a request back, count and copy frames \
of a barrier, or copy a message and send its copies back, without authentication, words, tables and memory. So no kernel \
program costs less here.

Processor time is that of a member for one barrier or all-reduce, and that of all processes for a multi-send, with \
what the kernel did for it. With more members than cores, look at this and not at the time that has passed.

It needs root, iproute2 and util-linux, and a weir that was built with clang.

Exit status:
  0      everything was measured, whether targets are reached or not
  1      a measurement failed, or something is missing")]
pub struct NicArguments {
    /// Members of barriers and all-reduces, and receivers of multi-sends.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [2, 8, 16],
        value_parser = clap::value_parser!(u32).range(2..=i64::from(MAX_MEMBERS)))]
    ranks: Vec<u32>,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Time of each measurement of fetch&add. Unit: milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    time: u64,
    /// The processes' hosts are on a bridge of the kernel, not on a switch made of programs as the others.
    #[arg(long)]
    bridge: bool,
    #[command(flatten)]
    output: OutputOptions,
}

/// The part of the `--json` record below its head. All times in nanoseconds, by round.
#[derive(Debug, Serialize)]
struct Results {
    machine: Machine,
    fetch_add: FetchAdd,
    barriers: Vec<Barriers>,
}

#[derive(Debug, Default, Serialize)]
struct FetchAdd {
    kernel_ns: Vec<f64>,
    kernel_to_socket_ns: Vec<f64>,
    kernel_while_computing_ns: Vec<f64>,
    process_spins_ns: Vec<f64>,
    process_waits_ns: Vec<f64>,
    /// By programs that do nothing but send back and drop.
    least_ns: Vec<f64>,
}

/// Of one number of members.
#[derive(Debug, Serialize)]
struct Barriers {
    ranks: u32,
    kernel: Samples,
    exchange: Samples,
    gather: Samples,
    kernel_all_reduce: Samples,
    gather_all_reduce: Samples,
    kernel_multi_send: Samples,
    loop_of_sends: Samples,
    sendmmsg: Samples,
    /// By programs that do nothing but count, copy and send back. Empty: there is no target.
    least_barrier: Samples,
    least_multi_send: Samples,
}

#[derive(Debug, Default, Serialize)]
struct Samples {
    elapsed_ns: Vec<f64>,
    processor_ns: Vec<f64>,
}

impl Samples {
    fn push(&mut self, times: Times) {
        self.elapsed_ns.push(times.elapsed);
        self.processor_ns.push(times.processor);
    }
}

/// A secret for this measurement.
fn secret() -> Secret {
    let half = || RandomState::new().build_hasher().finish().to_le_bytes();
    let (one, other) = (half(), half());
    std::array::from_fn(|at| if at < 8 { one[at] } else { other[at - 8] })
}

/// Measures and prints. Returns the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &NicArguments) -> Result<u8, Failure> {
    arguments.output.record.check()?;
    let machine = Machine::of_this();
    let count = arguments.ranks.iter().copied().max().unwrap_or(2) as usize + 1;
    let make = || Network::new(count).map_err(Failure::system("network namespaces, which need root"));
    let failed = |error: weir_nic::programs::AttachError| Failure::Measurement(error.to_string());
    let (mut attached, mut plain, secret) = (make()?, make()?, secret());
    attached.use_fast_switch(false).map_err(failed)?;
    attached.attach(DEFAULT_PORT).map_err(failed)?;
    if !arguments.bridge {
        plain.use_fast_switch(true).map_err(failed)?;
    }
    // Of operations with targets, by the number of hosts, since all hosts are members.
    let mut least = BTreeMap::new();
    let targets = arguments.ranks.iter().filter(|&&ranks| ranks >= MANY);
    let sizes = targets.flat_map(|&ranks| [Some(ranks), (ranks == RECEIVERS).then_some(ranks + 1)]);
    for size in sizes.flatten().chain([2]) {
        let mut network =
            Network::new(size as usize).map_err(Failure::system("network namespaces, which need root"))?;
        network.use_least_programs().map_err(failed)?;
        least.insert(size, network);
    }
    let domain = Domain::of(&secret);
    let joined = (0..count).map(|host| attached.join(host, &secret));
    let members: Vec<_> =
        joined.collect::<Result<_, _>>().map_err(|error| Failure::Measurement(error.to_string()))?;
    let bar = arguments.output.progress_bar(u64::from(arguments.repeat) * (1 + arguments.ranks.len() as u64));
    let mut fetch_add = FetchAdd::default();
    let new = |&ranks: &u32| Barriers {
        ranks,
        kernel: Samples::default(),
        exchange: Samples::default(),
        gather: Samples::default(),
        kernel_all_reduce: Samples::default(),
        gather_all_reduce: Samples::default(),
        kernel_multi_send: Samples::default(),
        loop_of_sends: Samples::default(),
        sendmmsg: Samples::default(),
        least_barrier: Samples::default(),
        least_multi_send: Samples::default(),
    };
    let mut barriers: Vec<Barriers> = arguments.ranks.iter().map(new).collect();
    let time = Duration::from_millis(arguments.time);
    // Each is a new one, in a word that is 0. Word 0 is that of fetch&add.
    let mut place = 0;
    for _ in 0..arguments.repeat {
        bar.set_message("fetch&add");
        let by_kernel = |target, answers| words::by_kernel(&attached, &members[0], target, answers, time);
        fetch_add.kernel_ns.push(by_kernel(Target::Sleeps, Answers::InMemory)?);
        fetch_add.kernel_to_socket_ns.push(by_kernel(Target::Sleeps, Answers::AtSocket)?);
        fetch_add.kernel_while_computing_ns.push(by_kernel(Target::Computes, Answers::InMemory)?);
        fetch_add.process_spins_ns.push(words::by_process(&plain, Target::Spins, time)?);
        fetch_add.process_waits_ns.push(words::by_process(&plain, Target::Waits, time)?);
        fetch_add.least_ns.push(words::there_and_back(&least[&2], time)?);
        bar.inc(1);
        for of_size in &mut barriers {
            bar.set_message(format!("barrier of {}", of_size.ranks));
            let mut measure = |network, work, way| {
                place = place % (WORDS as u64 - 1) + 1;
                members[0].words().swap(place as usize, 0);
                let rounds = BARRIERS / of_size.ranks;
                barrier::measure(network, &domain, (work, way), of_size.ranks, rounds, place)
            };
            of_size.kernel.push(measure(&attached, Work::Barrier, Way::Kernel)?);
            of_size.exchange.push(measure(&plain, Work::Barrier, Way::Exchange)?);
            of_size.gather.push(measure(&plain, Work::Barrier, Way::Gather)?);
            of_size.kernel_all_reduce.push(measure(&attached, Work::AllReduce, Way::Kernel)?);
            of_size.gather_all_reduce.push(measure(&plain, Work::AllReduce, Way::Gather)?);
            // Inboxes begin with the first message, so each measurement has a job of its own.
            let job = multi_send::join(&attached, &self::secret(), of_size.ranks)?;
            let messages = BARRIERS / of_size.ranks;
            let send = |network, members: &[Membership], way| {
                multi_send::measure(network, members, way, of_size.ranks, messages)
            };
            of_size.kernel_multi_send.push(send(&attached, &job, multi_send::Way::Kernel)?);
            of_size.loop_of_sends.push(send(&plain, &[], multi_send::Way::Loop)?);
            of_size.sendmmsg.push(send(&plain, &[], multi_send::Way::OneCall)?);
            if of_size.ranks >= MANY {
                let network = &least[&of_size.ranks];
                of_size.least_barrier.push(measure(network, Work::Barrier, Way::Least)?);
            }
            if of_size.ranks == RECEIVERS {
                let network = &least[&(RECEIVERS + 1)];
                of_size.least_multi_send.push(send(network, &[], multi_send::Way::Least)?);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let results = Results { machine, fetch_add, barriers };
    arguments.output.record.print(render::render(&results))?;
    arguments.output.record.write("weir-bench-nic-1", results)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use weir_nic::pretended::{ALL, BACK_PORT, address};

    /// On a bridge of the kernel, and on a switch of programs, where that is possible.
    #[test]
    fn barriers_over_udp_complete_on_hosts_without_programs() {
        let Ok(bridge) = Network::new(3).inspect_err(|why| eprintln!("skipped: {why}")) else { return };
        complete_over_udp(&bridge);
        let mut switch = Network::new(3).unwrap();
        match switch.use_fast_switch(true) {
            Ok(()) => complete_over_udp(&switch),
            Err(why) => eprintln!("without a switch of programs: {why}"),
        }
    }

    #[test]
    fn the_least_programs_bring_requests_and_copies_back() {
        let Ok(mut network) = Network::new(3).inspect_err(|why| eprintln!("skipped: {why}")) else { return };
        if let Err(why) = network.use_least_programs() {
            return eprintln!("without programs: {why}");
        }
        let socket = network.at(0, || UdpSocket::bind((address(0), 0))).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        // To one other host, and to both.
        for (to, answers) in [(address(1), 1), (ALL, 2)] {
            socket.send_to(b"request", (to, BACK_PORT)).unwrap();
            for _ in 0..answers {
                let mut bytes = [0; 16];
                let (length, from) = socket.recv_from(&mut bytes).unwrap();
                assert_eq!((&bytes[..length], from), (&b"request"[..], (to, BACK_PORT).into()));
            }
        }
        let how = (Work::Barrier, Way::Least);
        let times = barrier::measure(&network, &Domain::of(&secret()), how, 3, 50, 1).unwrap();
        assert!(times.elapsed > 0.0 && times.processor > 0.0, "{times:?}");
        assert!(words::there_and_back(&network, Duration::from_millis(2)).unwrap() > 0.0);
        let times = multi_send::measure(&network, &[], multi_send::Way::Least, 2, 20).unwrap();
        assert!(times.elapsed > 0.0, "{times:?}");
    }

    fn complete_over_udp(network: &Network) {
        for how in
            [(Work::Barrier, Way::Exchange), (Work::Barrier, Way::Gather), (Work::AllReduce, Way::Gather)]
        {
            let times = barrier::measure(network, &Domain::of(&secret()), how, 3, 50, 1).unwrap();
            assert!(times.elapsed > 0.0 && times.processor > 0.0, "{times:?}");
        }
        for way in [multi_send::Way::Loop, multi_send::Way::OneCall] {
            let times = multi_send::measure(network, &[], way, 2, 20).unwrap();
            assert!(times.elapsed > 0.0 && times.processor > 0.0, "{times:?}");
        }
        let spins = words::by_process(network, Target::Spins, Duration::from_millis(2)).unwrap();
        assert!(spins > 0.0);
    }
}
