//! `weir bench nic`: operations that kernel programs carry out, beside the same ones carried out by processes over bare UDP.
//!
//! Hosts are network namespaces of this process on one switch: one network with the programs attached, one without, so
//! that nothing of the programs slows the processes. All are measured in turn, in rounds.
//!
//! Expected: 15 s with seven rounds and three numbers of members.

mod barrier;
mod words;

use crate::machine::Machine;
use crate::options::OutputOptions;
use crate::statistics::{Quartiles, ratios};
use barrier::{ELEMENTS, Times, Way, Work};
use clap::Args;
use serde::Serialize;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;
use weir_nic::format::{DEFAULT_PORT, MAX_MEMBERS, WORDS};
use weir_nic::pretended::Network;
use weir_nic::{Domain, Secret};
use weir_output::Failure;
use weir_output::quantity::{three_digits, time_ns};
use weir_output::table;
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
/// Barriers in a measurement, times members.
const BARRIERS: u32 = 8000;

/// Options of `weir bench nic`.
#[derive(Args, Debug)]
#[command(after_help = "\
Hosts are network namespaces of this command on one switch. Fetch&add: one host asks another again and again, and looks for \
the answer in memory, or at its socket, without sleeping. The word is changed by the kernel programs of the other host, or by a process there over bare \
UDP, which spins or sleeps. Barriers: one process on each host, which sleeps while it waits. Over bare UDP, processes exchange \
packets in log N steps, or the first gathers and answers. All-reduces sum 16 binary64 in the order of members; over bare UDP, the first gathers, adds \
and answers. Bare UDP neither authenticates nor sends again.

Processor time is that of a member for one barrier, with what the kernel did for it. With more members than cores, look at \
this and not at the time that has passed.

It needs root, iproute2 and util-linux, and a weir that was built with clang.

Exit status:
  0      everything was measured, whether targets are reached or not
  1      a measurement failed, or something is missing")]
pub struct NicArguments {
    /// Members of barriers.
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
    let count = arguments.ranks.iter().copied().max().unwrap_or(2) as usize;
    let make = || Network::new(count).map_err(Failure::system("network namespaces, which need root"));
    let failed = |error: weir_nic::programs::AttachError| Failure::Measurement(error.to_string());
    let (mut attached, mut plain, secret) = (make()?, make()?, secret());
    attached.use_fast_switch(false).map_err(failed)?;
    attached.attach(DEFAULT_PORT).map_err(failed)?;
    if !arguments.bridge {
        plain.use_fast_switch(true).map_err(failed)?;
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
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let results = Results { machine, fetch_add, barriers };
    arguments.output.record.print(render(&results))?;
    arguments.output.record.write("weir-bench-nic-1", results)?;
    Ok(0)
}

fn render(results: &Results) -> String {
    let mut table = table::plain();
    table.set_header([
        "operation",
        "by",
        "time",
        "quartiles",
        "of the kernel's",
        "processor",
        "of the kernel's",
    ]);
    let mut row = |name: String, by: &str, ours: [&[f64]; 2], kernel: [&[f64]; 2]| {
        let [low, median, high] = Quartiles::of(ours[0]).ordered().map(time_ns);
        let ratio = |at: usize| match ratios(ours[at], kernel[at]) {
            Some(ratios) => format!("{} x", three_digits(Quartiles::of(&ratios).median)),
            None => String::new(),
        };
        let processor = match ours[1] {
            [] => String::new(),
            samples => time_ns(Quartiles::of(samples).median),
        };
        let texts = [median, format!("{low} .. {high}"), ratio(0), processor, ratio(1)];
        let cells = [comfy_table::Cell::new(name), comfy_table::Cell::new(by)];
        table.add_row(cells.into_iter().chain(texts.map(table::right)));
    };
    let words = &results.fetch_add;
    let word = || String::from("fetch&add");
    let kernel: [&[f64]; 2] = [&words.kernel_ns, &[]];
    row(word(), "kernel", kernel, kernel);
    row(word(), "kernel, answer to a socket", [&words.kernel_to_socket_ns, &[]], kernel);
    row(word(), "kernel, target computes", [&words.kernel_while_computing_ns, &[]], kernel);
    row(word(), "process that spins", [&words.process_spins_ns, &[]], kernel);
    row(word(), "process that sleeps", [&words.process_waits_ns, &[]], kernel);
    for one in &results.barriers {
        fn pair(samples: &Samples) -> [&[f64]; 2] {
            [&samples.elapsed_ns, &samples.processor_ns]
        }
        let name = || format!("barrier of {}", one.ranks);
        row(name(), "kernel", pair(&one.kernel), pair(&one.kernel));
        row(name(), "exchange over UDP", pair(&one.exchange), pair(&one.kernel));
        row(name(), "gather over UDP", pair(&one.gather), pair(&one.kernel));
        let name = || format!("all-reduce of {}, {ELEMENTS} binary64", one.ranks);
        let kernel = pair(&one.kernel_all_reduce);
        row(name(), "kernel", kernel, kernel);
        row(name(), "gather over UDP", pair(&one.gather_all_reduce), kernel);
    }
    let mut text = table::text(&table);
    let mut target = |what: String, samples: Option<Vec<f64>>, limit: f64| {
        let word = Quartiles::of(&samples.unwrap_or_default()).verdict(limit);
        text.push_str(&format!("\nTarget: {what}: {word}."));
    };
    target(format!("fetch&add in at most {}", time_ns(WORD_NS)), Some(words.kernel_ns.clone()), WORD_NS);
    let under = ratios(&words.kernel_ns, &words.process_spins_ns);
    target(
        format!("at least {UNDER_SPINNING} x less than a process that spins"),
        under,
        1.0 / UNDER_SPINNING,
    );
    let computing = ratios(&words.kernel_while_computing_ns, &words.kernel_ns);
    target(format!("at most {WHILE_COMPUTING} x while the target computes"), computing, WHILE_COMPUTING);
    for one in results.barriers.iter().filter(|one| one.ranks >= MANY) {
        let what = format!(
            "barrier of {}, processor time at least {LESS_PROCESSOR} x less than the exchange over UDP",
            one.ranks
        );
        target(what, ratios(&one.kernel.processor_ns, &one.exchange.processor_ns), 1.0 / LESS_PROCESSOR);
    }
    text + "\n" + &results.machine.footer()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_come_from_the_ratios_of_each_round() {
        let text = |kernel_ns: [f64; 3], processor: [f64; 3]| {
            let samples =
                |values: [f64; 3]| Samples { elapsed_ns: values.into(), processor_ns: values.into() };
            render(&Results {
                machine: Machine { processor: "P".into(), cores: 2, kernel: "6".into(), load: 0.0 },
                fetch_add: FetchAdd {
                    kernel_ns: kernel_ns.into(),
                    kernel_to_socket_ns: kernel_ns.map(|time| time * 1.5).into(),
                    kernel_while_computing_ns: kernel_ns.map(|time| time * 1.05).into(),
                    process_spins_ns: vec![11_000.0, 11_000.0, 11_000.0],
                    process_waits_ns: vec![30_000.0; 3],
                },
                barriers: vec![Barriers {
                    ranks: 8,
                    kernel: samples(processor),
                    exchange: samples([10_000.0, 20_000.0, 40_000.0]),
                    gather: samples([5_000.0; 3]),
                    kernel_all_reduce: samples([4_000.0; 3]),
                    gather_all_reduce: samples([5_000.0; 3]),
                }],
            })
        };
        let words = |text: &str| {
            let targets = text.lines().filter(|line| line.starts_with("Target: "));
            targets.map(|line| line.rsplit(": ").next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let good = text([2000.0, 2100.0, 2200.0], [4000.0, 9000.0, 19_000.0]);
        assert_eq!(words(&good), ["reached.", "reached.", "reached.", "reached."], "{good}");
        let bad = text([2600.0, 2700.0, 2800.0], [6000.0, 12_000.0, 24_000.0]);
        assert_eq!(words(&bad), ["MISSED.", "MISSED.", "reached.", "MISSED."], "{bad}");
        assert!(good.contains("5.24 x"), "{good}");
    }

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

    fn complete_over_udp(network: &Network) {
        for how in
            [(Work::Barrier, Way::Exchange), (Work::Barrier, Way::Gather), (Work::AllReduce, Way::Gather)]
        {
            let times = barrier::measure(network, &Domain::of(&secret()), how, 3, 50, 1).unwrap();
            assert!(times.elapsed > 0.0 && times.processor > 0.0, "{times:?}");
        }
        let spins = words::by_process(network, Target::Spins, Duration::from_millis(2)).unwrap();
        assert!(spins > 0.0);
    }
}
