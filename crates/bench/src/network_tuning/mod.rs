//! `weir tune --network`: measures from which message length and number of active ranks on the tokens of admission gain
//! between hosts, and how many are best (`FI_WEIR_ADMIT_THRESHOLDS`). Hosts are namespaces of this machine
//! (`net::hosts`), or with `--hosts` those of a user's network (`congestion::RemoteNetwork`).
//!
//! ```text
//! sweep      random 2 KiB, 4 ranks, off: 1, 4, 16, 64 updates without answer    ...    (`unlimited.rs`)
//! round 1    random 2 KiB, 4 ranks: off, 32, 96 tokens    incast 2 KiB, 4 ranks: 32, 96 tokens, off    ...
//! point      2 KiB, 4 ranks: both kinds of traffic decide together (`choice.rs`)
//! ```
//! In each round every number of tokens measures each point and kind of traffic, in turn with `off`. A number that has
//! lost much throughput once is not measured again. Expected on 2 cores: `JOB_S` for a job beside its measurement.

mod choice;
mod page;
mod plan;
mod table;
mod unlimited;

use crate::congestion::{Case, Network, NetworkOptions, RemoteHosts, RemoteNetwork, Sample, Traffic};
use crate::jobs;
use crate::machine::Machine;
use crate::options::{MpichOption, OutputOptions};
use choice::{Comparison, Point};
use clap::Args;
use plan::{Plan, QUICK, WHOLE};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;
use unlimited::{CongestionThresholds, Unlimited};
use weir_engine::config::{Settings, ThresholdLink, Thresholds};
use weir_mpi::hosts::Hosts;
use weir_output::Failure;
use weir_output::quantity::exact_bytes;
use weir_output::write::write_text;
use weir_proto::admission::{MAX_STEPS, TokenStep};

/// The setting that holds the result.
pub const THRESHOLDS: &str = "FI_WEIR_ADMIT_THRESHOLDS";
const ADMIT: &str = "FI_WEIR_ADMIT";
/// The kinds of traffic. Tokens must harm neither.
const TRAFFIC: [Traffic; 2] = [Traffic::Random, Traffic::Incast];
const HOSTS: u32 = 2;
/// Updates of a rank without answer.
const OUTSTANDING: u32 = 16;
/// Shorter messages share datagrams, and gained nowhere. Unit: bytes.
const LEAST_BYTES: u32 = 2048;
/// A value over a core provider takes so many times as long. TCP waits 200 ms before it sends again what nobody has
/// acknowledged, and with values of 0.5 s the same number of tokens had 0.7 to 1.5 x the operations of another round.
const OVER_CORE: f64 = 2.0;
/// Start and end of a job. Unit: s.
const JOB_S: f64 = 0.6;
/// The same, in addition, over a remote shell that takes a few tenths of a second to connect. Unit: s.
const REMOTE_JOB_S: f64 = 1.0;

/// Options of `weir tune --network`.
#[derive(Args, Debug)]
pub struct NetworkTuningOptions {
    /// Measure the tokens of admission between hosts instead (FI_WEIR_ADMIT_THRESHOLDS); without --hosts they are pretended.
    #[arg(long)]
    network: bool,
    /// Measure between the hosts that FILE lists, as for `weir run --hosts`.
    #[arg(long, value_name = "FILE", requires = "network", conflicts_with = "port_rate")]
    hosts: Option<PathBuf>,
    /// The program that takes the place of ssh, for --hosts; it gets HOST COMMAND, or WEIR_REMOTE_SHELL names it.
    #[arg(long, value_name = "PROGRAM", requires = "hosts")]
    remote_shell: Option<String>,
    /// Fewer points, 2 rounds, 0.2 s for a value (over a core provider 0.4 s).
    #[arg(long, requires = "network")]
    quick: bool,
    /// Lengths of messages, at least 2048 [default: 2048,65536]. Unit: bytes.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', requires = "network",
        value_parser = clap::value_parser!(u32).range(i64::from(LEAST_BYTES)..=1 << 20))]
    sizes: Vec<u32>,
    /// Active ranks on each host [default: 2,4,8; with --quick 4].
    #[arg(long, value_name = "N", value_delimiter = ',', requires = "network",
        value_parser = clap::value_parser!(u32).range(1..=64))]
    per_host: Vec<u32>,
    /// Tokens of a host that are tried [default: 4, 12 and 32 for each active rank, with --quick 8 and 24; and what the sweep finds].
    #[arg(long, value_name = "N", value_delimiter = ',', requires = "network",
        value_parser = clap::value_parser!(u32).range(1..=65535))]
    tokens: Vec<u32>,
    /// The link between hosts: udp or ofi:NAME.
    #[arg(long, value_name = "LINK", default_value = "udp", requires = "network")]
    link: String,
    /// Bound each port of the bridge between the hosts, as a switch does: so much towards its host. Unit: Mbit/s.
    #[arg(long, value_name = "MBIT", requires = "network",
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    port_rate: Option<u32>,
    /// The queue of a bounded port, which drops what it cannot hold. Unit: KiB.
    #[arg(long, value_name = "KIB", default_value_t = 128, requires = "port_rate",
        value_parser = clap::value_parser!(u32).range(64..=65_536))]
    port_queue: u32,
    /// Write a page with curves and all numbers.
    #[arg(long, value_name = "FILE", requires = "network")]
    page: Option<PathBuf>,
    #[command(flatten)]
    mpich: MpichOption,
}

/// The result.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// The link whose thresholds they are.
    pub link: ThresholdLink,
    /// The thresholds of that link.
    pub thresholds: Thresholds,
    /// Whether they were measured between hosts of a network.
    pub is_remote: bool,
}

/// The samples of a point, a kind of traffic and a number of tokens. `None`: off.
type Key = (Point, Traffic, Option<u32>);

/// All that was measured.
#[derive(Default)]
struct Measured {
    /// Without admission.
    sweep: Vec<Unlimited>,
    /// By round.
    samples: BTreeMap<Key, Vec<Sample>>,
    failures: Vec<FailedJob>,
}

/// A job without a result.
#[derive(Clone, Debug, Serialize)]
struct FailedJob {
    traffic: Traffic,
    #[serde(flatten)]
    point: Point,
    tokens: Option<u32>,
    why: String,
}

/// The part of the `--json` record below its head.
#[derive(Serialize)]
struct RecordContent<'a> {
    machine: &'a Machine,
    mpi: String,
    #[serde(flatten)]
    network: &'a NetworkOptions,
    /// The hosts of the network; empty: they were pretended.
    host_names: &'a [String],
    outstanding: u32,
    rounds: u32,
    seconds: f64,
    took_s: f64,
    settings: BTreeMap<&'static str, String>,
    /// Operations without admission.
    unlimited: &'a [Unlimited],
    /// What follows from them.
    congestion_thresholds: &'a [CongestionThresholds],
    comparisons: &'a [Comparison],
    /// The value of `FI_WEIR_ADMIT_THRESHOLDS` for this link; empty: tokens gain nowhere.
    thresholds: String,
    failures: &'a [FailedJob],
}

impl NetworkTuningOptions {
    /// Whether the network is to be measured.
    pub fn is_wanted(&self) -> bool {
        self.network
    }

    /// The program in place of ssh that an option names.
    pub fn remote_shell(&self) -> Option<&str> {
        self.remote_shell.as_deref()
    }

    /// The hosts of the file, at least two.
    fn hosts(&self) -> Result<Option<Hosts>, Failure> {
        let Some(file) = &self.hosts else { return Ok(None) };
        let hosts = Hosts::read(file)?;
        match hosts.names().count() {
            1 => Err(Failure::Usage(format!("--hosts {}: one host; allowed: at least two", file.display()))),
            _ => Ok(Some(hosts)),
        }
    }

    fn network(&self, hosts: u32) -> NetworkOptions {
        NetworkOptions {
            hosts,
            link: self.link.clone(),
            port_rate_mbit: self.port_rate,
            port_queue_kib: self.port_queue,
        }
    }

    /// The link whose thresholds are measured.
    fn threshold_link(&self) -> Result<ThresholdLink, Failure> {
        match self.link.as_str() {
            "udp" => Ok(ThresholdLink::Udp),
            link if link.strip_prefix("ofi:").is_some_and(|name| !name.is_empty()) => Ok(ThresholdLink::Ofi),
            link => Err(Failure::Usage(format!("--link {link}: allowed are udp, ofi:NAME"))),
        }
    }

    /// - `most_ranks`: a host takes no more, if the file of hosts says so.
    ///
    /// # Errors
    /// [`Failure::Usage`]: more points than a table of thresholds has steps, or more ranks than a host takes.
    fn plan(&self, repeat: Option<u32>, most_ranks: Option<u32>) -> Result<Plan, Failure> {
        let extent = if self.quick { QUICK } else { WHOLE };
        let most_ranks = most_ranks.unwrap_or(u32::MAX);
        if let Some(ranks) = self.per_host.iter().find(|&&ranks| ranks > most_ranks) {
            return Err(Failure::Usage(format!(
                "--per-host {ranks}: a host of the file takes less; allowed: 1 to {most_ranks}"
            )));
        }
        let given = |values: &[u32], default: &[u32]| {
            let mut all = if values.is_empty() { default.to_vec() } else { values.to_vec() };
            all.sort_unstable();
            all.dedup();
            all
        };
        let fitting: Vec<u32> = extent.ranks.iter().map(|&ranks| ranks.min(most_ranks)).collect();
        let (sizes, ranks) = (given(&self.sizes, extent.sizes), given(&self.per_host, &fitting));
        let tokens_of = |ranks: u32| {
            let default: Vec<u32> = extent.tokens_each.iter().map(|each| each * ranks).collect();
            given(&self.tokens, &default)
        };
        let points = sizes.iter().flat_map(|&bytes| ranks.iter().map(move |&ranks| Point { bytes, ranks }));
        let points: Vec<Point> = points.collect();
        if points.len() > MAX_STEPS {
            return Err(Failure::Usage(format!(
                "--sizes and --per-host: {} combinations; allowed: at most {MAX_STEPS}",
                points.len()
            )));
        }
        Ok(Plan {
            tokens: points.iter().map(|&point| (point, tokens_of(point.ranks))).collect(),
            points,
            outstanding: extent.outstanding,
            takes_more: self.tokens.is_empty(),
            rounds: repeat.unwrap_or(extent.rounds),
            seconds: extent.seconds * if self.link == "udp" { 1.0 } else { OVER_CORE },
            job_s: JOB_S,
        })
    }
}

/// Measures and prints. Saving the result is the caller's task.
///
/// - `remote_shell`, `by`: for hosts of a network, how to reach and prepare them.
///
/// # Errors
/// [`Failure`].
pub fn run(
    options: &NetworkTuningOptions,
    repeat: Option<u32>,
    output: &OutputOptions,
    remote_shell: String,
    by: Box<dyn RemoteHosts>,
) -> Result<Tuned, Failure> {
    let settings = Settings::from_environment()?;
    let (link, hosts) = (options.threshold_link()?, options.hosts()?);
    let mut plan = options.plan(repeat, hosts.as_ref().and_then(Hosts::least_slots))?;
    let machine = Machine::of_this();
    let names: Vec<String> = hosts.iter().flat_map(Hosts::names).map(str::to_owned).collect();
    let count = if names.is_empty() { HOSTS } else { names.len() as u32 };
    let network_options = options.network(count);
    let network = match hosts {
        None => Network::open(&network_options, &options.mpich, plan.seconds)?,
        Some(hosts) => {
            plan.job_s += REMOTE_JOB_S;
            let remote = RemoteNetwork { hosts, remote_shell, by };
            Network::open_remote(remote, &network_options, &options.mpich, plan.seconds)?
        }
    };
    let pretended = if names.is_empty() { "pretended " } else { "" };
    output.record.print(format_args!(
        "Measures at most {} jobs between {count} {pretended}hosts; expected: at most {:.0} s.",
        plan.sweep_jobs() + plan.jobs(),
        plan.expected_s()
    ))?;
    let begun = Instant::now();
    let mut measured = Measured { sweep: sweep(&plan, &network, output)?, ..Measured::default() };
    let congestion_thresholds = unlimited::thresholds(&measured.sweep);
    plan.add_tokens(&congestion_thresholds);
    measure(&plan, link, &network, output, &mut measured)?;
    let comparisons = measured.comparisons(&plan);
    let thresholds = Thresholds::default().with_table(link, choice::token_table(&comparisons));
    let content = RecordContent {
        machine: &machine,
        mpi: network.mpi(),
        network: &network_options,
        host_names: &names,
        outstanding: OUTSTANDING,
        rounds: plan.rounds,
        seconds: plan.seconds,
        took_s: begun.elapsed().as_secs_f64(),
        settings: settings.to_variables().into_iter().collect(),
        unlimited: &measured.sweep,
        congestion_thresholds: &congestion_thresholds,
        comparisons: &comparisons,
        thresholds: thresholds.word(),
        failures: &measured.failures,
    };
    let notes = table::notes(&content);
    let swept = unlimited::render(&measured.sweep, &congestion_thresholds);
    output.record.print(format_args!("{swept}\n\n{}\n{}", table::render(&comparisons), notes.join("\n")))?;
    if let Some(file) = &options.page {
        let record = serde_json::to_value(&content)
            .map_err(|error| Failure::Measurement(format!("the record: {error}")))?;
        write_text(&page::render(&measured.sweep, &comparisons, &notes, &record), &file.to_string_lossy())?;
        output.record.print(format_args!("page: {}", file.display()))?;
    }
    output.record.write("weir-tune-network-1", content)?;
    match measured.samples.is_empty() {
        false => Ok(Tuned { link, thresholds, is_remote: !names.is_empty() }),
        true => Err(Failure::Measurement(String::from("no job has ended with a result"))),
    }
}

/// Operations without admission, by point and outstanding messages. A job without a result is left out.
fn sweep(plan: &Plan, network: &Network, output: &OutputOptions) -> Result<Vec<Unlimited>, Failure> {
    let bar = output.progress_bar(plan.sweep_jobs());
    let mut swept = Vec::new();
    for &point in &plan.points {
        for &outstanding in plan.outstanding {
            bar.set_message(format!("{}, {outstanding} messages each", table::point_name(point)));
            let case = Case { outstanding, ..case(point, Traffic::Random) };
            if let Ok(sample) = network.measure(case, &off())? {
                swept.push(Unlimited::of(point, outstanding, &sample));
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(swept)
}

fn measure(
    plan: &Plan,
    link: ThresholdLink,
    network: &Network,
    output: &OutputOptions,
    measured: &mut Measured,
) -> Result<(), Failure> {
    let bar = output.progress_bar(plan.jobs());
    let mut turn = 0;
    for round in 1..=plan.rounds {
        for &point in &plan.points {
            for traffic in TRAFFIC {
                turn += 1;
                let candidates = plan.candidates(point);
                for &tokens in jobs::rotated(&candidates, turn) {
                    bar.set_message(format!("round {round}: {}", table::name(point, traffic, tokens)));
                    if measured.is_worth_it(point, tokens) {
                        let ended = network.measure(case(point, traffic), &variables(link, point, tokens))?;
                        measured.add((point, traffic, tokens), ended);
                    }
                    bar.inc(1);
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn case(Point { bytes, ranks }: Point, traffic: Traffic) -> Case {
    Case { traffic, ranks_per_host: ranks, outstanding: OUTSTANDING, bytes }
}

/// The settings without admission.
fn off() -> Vec<(&'static str, String)> {
    vec![(ADMIT, String::from("off")), (THRESHOLDS, String::new())]
}

/// The settings with which a number of tokens is measured: those that a user gets later, so that what is measured is
/// what is used.
fn variables(link: ThresholdLink, point: Point, tokens: Option<u32>) -> Vec<(&'static str, String)> {
    match tokens {
        None => off(),
        Some(tokens) => vec![
            (ADMIT, String::from("auto")),
            (THRESHOLDS, format!("{}:{}:1:{tokens}", link.word(), point.bytes)),
        ],
    }
}

impl Measured {
    fn add(&mut self, (point, traffic, tokens): Key, ended: Result<Sample, String>) {
        match ended {
            Ok(sample) => self.samples.entry((point, traffic, tokens)).or_default().push(sample),
            Err(why) => self.failures.push(FailedJob { traffic, point, tokens, why }),
        }
    }

    /// Whether a number of tokens can still be the best at a point.
    fn is_worth_it(&self, point: Point, tokens: Option<u32>) -> bool {
        let mut so_far = TRAFFIC.iter().filter_map(|&traffic| self.comparison(point, traffic, tokens?));
        !self.has_failed(point, tokens) && !so_far.any(|comparison| comparison.is_far_behind())
    }

    fn has_failed(&self, point: Point, tokens: Option<u32>) -> bool {
        self.failures.iter().any(|failed| (failed.point, failed.tokens) == (point, tokens))
    }

    fn comparison(&self, point: Point, traffic: Traffic, tokens: u32) -> Option<Comparison> {
        let samples = |tokens| self.samples.get(&(point, traffic, tokens)).map_or(&[][..], Vec::as_slice);
        Comparison::of(point, traffic, tokens, samples(None), samples(Some(tokens)))
    }

    /// All numbers of tokens that have not failed, by point. One that has fallen far behind may lack a kind of traffic.
    fn comparisons(&self, plan: &Plan) -> Vec<Comparison> {
        let mut comparisons = Vec::new();
        for &point in &plan.points {
            for tokens in plan.candidates(point).into_iter().flatten() {
                if !self.has_failed(point, Some(tokens)) {
                    comparisons
                        .extend(TRAFFIC.iter().filter_map(|&kind| self.comparison(point, kind, tokens)));
                }
            }
        }
        comparisons
    }
}

/// What to print about the result.
pub fn describe(tuned: &Tuned) -> String {
    let steps = tuned.thresholds.table(tuned.link).steps();
    if steps.is_empty() {
        return String::from(
            "Best here: no thresholds. No number of tokens gains without a loss elsewhere, so FI_WEIR_ADMIT=auto holds nothing back.",
        );
    }
    let line = |step: &TokenStep| {
        let tokens = match step.tokens {
            0 => String::from("no limit"),
            tokens => format!("{tokens} tokens"),
        };
        format!(
            "\n  messages from {} on, {} active ranks or more: {tokens}",
            exact_bytes(step.bytes.into()),
            step.tasks
        )
    };
    let steps: String = steps.iter().map(line).collect();
    format!("Best here: {THRESHOLDS}={}{steps}", tuned.thresholds.word())
}

#[cfg(test)]
mod tests;
