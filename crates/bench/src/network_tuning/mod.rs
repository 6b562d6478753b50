//! `weir tune --network`: measures from which message length and number of active ranks on the tokens of admission gain
//! between hosts, and how many are best (`FI_WEIR_ADMIT_THRESHOLDS`). Hosts are namespaces of this machine
//! (`net::hosts`).
//!
//! ```text
//! round 1    random 2 KiB, 4 ranks: off, 32, 96 tokens    incast 2 KiB, 4 ranks: 32, 96 tokens, off    ...
//! point      2 KiB, 4 ranks: both kinds of traffic decide together (`choice.rs`)
//! ```
//! In each round every number of tokens measures each point and kind of traffic, in turn with `off`. A number that has
//! lost much throughput once is not measured again. Expected on 2 cores: `JOB_S` for a job beside its measurement.

mod choice;
mod page;
mod table;

use crate::congestion::{Case, Network, NetworkOptions, Sample, Traffic};
use crate::jobs;
use crate::machine::Machine;
use crate::options::{MpichOption, OutputOptions};
use choice::{Comparison, Point};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;
use weir_engine::config::{Settings, ThresholdLink, Thresholds};
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
/// Start and end of a job. Unit: s.
const JOB_S: f64 = 0.6;

/// What is measured without further options.
struct Extent {
    sizes: &'static [u32],
    ranks: &'static [u32],
    /// For each active rank.
    tokens_each: &'static [u32],
    rounds: u32,
    seconds: f64,
}

const WHOLE: Extent =
    Extent { sizes: &[2048, 65536], ranks: &[2, 4, 8], tokens_each: &[4, 12, 32], rounds: 3, seconds: 0.5 };
const QUICK: Extent =
    Extent { sizes: &[2048, 65536], ranks: &[4], tokens_each: &[8, 24], rounds: 2, seconds: 0.2 };

/// Options of `weir tune --network`.
#[derive(Args, Debug)]
pub struct NetworkTuningOptions {
    /// Measure the tokens of admission between pretended hosts instead (FI_WEIR_ADMIT_THRESHOLDS).
    #[arg(long)]
    network: bool,
    /// Fewer points, 2 rounds, 0.2 s for a value.
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
    /// Tokens of a host that are tried [default: 4, 12 and 32 for each active rank; with --quick 8 and 24].
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
}

/// Everything that is measured.
struct Plan {
    points: Vec<Point>,
    tokens: BTreeMap<u32, Vec<u32>>,
    rounds: u32,
    seconds: f64,
}

/// The samples of a point, a kind of traffic and a number of tokens. `None`: off.
type Key = (Point, Traffic, Option<u32>);

/// All that was measured.
#[derive(Default)]
struct Measured {
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
    outstanding: u32,
    rounds: u32,
    seconds: f64,
    took_s: f64,
    settings: BTreeMap<&'static str, String>,
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

    fn network(&self) -> NetworkOptions {
        NetworkOptions {
            hosts: HOSTS,
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

    /// # Errors
    /// [`Failure::Usage`]: more points than a table of thresholds has steps.
    fn plan(&self, repeat: Option<u32>) -> Result<Plan, Failure> {
        let extent = if self.quick { QUICK } else { WHOLE };
        let given = |values: &[u32], default: &[u32]| {
            let mut all = if values.is_empty() { default.to_vec() } else { values.to_vec() };
            all.sort_unstable();
            all.dedup();
            all
        };
        let (sizes, ranks) = (given(&self.sizes, extent.sizes), given(&self.per_host, extent.ranks));
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
            points,
            tokens: ranks.iter().map(|&ranks| (ranks, tokens_of(ranks))).collect(),
            rounds: repeat.unwrap_or(extent.rounds),
            seconds: extent.seconds,
        })
    }
}

impl Plan {
    /// The numbers of tokens of a point, `None` (off) first.
    fn candidates(&self, point: Point) -> Vec<Option<u32>> {
        let tokens = self.tokens[&point.ranks].iter().copied().map(Some);
        std::iter::once(None).chain(tokens).collect()
    }

    fn jobs(&self) -> u64 {
        let of_round: usize =
            self.points.iter().map(|&point| TRAFFIC.len() * self.candidates(point).len()).sum();
        u64::from(self.rounds) * of_round as u64
    }

    /// Expected time of everything. Unit: s.
    fn expected_s(&self) -> f64 {
        self.jobs() as f64 * (JOB_S + 1.1 * self.seconds)
    }
}

/// Measures and prints. Saving the result is the caller's task.
///
/// # Errors
/// [`Failure`].
pub fn run(
    options: &NetworkTuningOptions,
    repeat: Option<u32>,
    output: &OutputOptions,
) -> Result<Tuned, Failure> {
    let settings = Settings::from_environment()?;
    let (link, plan) = (options.threshold_link()?, options.plan(repeat)?);
    let machine = Machine::of_this();
    let network_options = options.network();
    let network = Network::open(&network_options, &options.mpich, plan.seconds)?;
    output.record.print(format_args!(
        "Measures {} jobs between {HOSTS} pretended hosts; expected: at most {:.0} s.",
        plan.jobs(),
        plan.expected_s()
    ))?;
    let begun = Instant::now();
    let measured = measure(&plan, link, &network, output)?;
    let comparisons = measured.comparisons(&plan);
    let thresholds = Thresholds::default().with_table(link, choice::token_table(&comparisons));
    let content = RecordContent {
        machine: &machine,
        mpi: network.mpi(),
        network: &network_options,
        outstanding: OUTSTANDING,
        rounds: plan.rounds,
        seconds: plan.seconds,
        took_s: begun.elapsed().as_secs_f64(),
        settings: settings.to_variables().into_iter().collect(),
        comparisons: &comparisons,
        thresholds: thresholds.word(),
        failures: &measured.failures,
    };
    let notes = table::notes(&content);
    output.record.print(format_args!("{}\n{}", table::render(&comparisons), notes.join("\n")))?;
    if let Some(file) = &options.page {
        let record = serde_json::to_value(&content)
            .map_err(|error| Failure::Measurement(format!("the record: {error}")))?;
        write_text(&page::render(&comparisons, &notes, &record), &file.to_string_lossy())?;
        output.record.print(format_args!("page: {}", file.display()))?;
    }
    output.record.write("weir-tune-network-1", content)?;
    match measured.samples.is_empty() {
        false => Ok(Tuned { link, thresholds }),
        true => Err(Failure::Measurement(String::from("no job has ended with a result"))),
    }
}

fn measure(
    plan: &Plan,
    link: ThresholdLink,
    network: &Network,
    output: &OutputOptions,
) -> Result<Measured, Failure> {
    let bar = output.progress_bar(plan.jobs());
    let mut measured = Measured::default();
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
    Ok(measured)
}

fn case(Point { bytes, ranks }: Point, traffic: Traffic) -> Case {
    Case { traffic, ranks_per_host: ranks, outstanding: OUTSTANDING, bytes }
}

/// The settings with which a number of tokens is measured: those that a user gets later, so that what is measured is
/// what is used.
fn variables(link: ThresholdLink, point: Point, tokens: Option<u32>) -> Vec<(&'static str, String)> {
    match tokens {
        None => vec![(ADMIT, String::from("off")), (THRESHOLDS, String::new())],
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
mod tests {
    use super::choice::tests::sample;
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: NetworkTuningOptions,
    }

    fn options(words: &str) -> NetworkTuningOptions {
        Command::try_parse_from(std::iter::once("tune").chain(words.split(' '))).unwrap().options
    }

    #[test]
    fn a_plan_fits_into_three_minutes_and_a_quick_one_into_a_minute() {
        let plan = |words: &str| options(words).plan(None).unwrap();
        let (whole, quick) = (plan("--network"), plan("--network --quick"));
        assert!(whole.expected_s() < 180.0, "{} s", whole.expected_s());
        assert!(quick.expected_s() < 40.0, "{} s", quick.expected_s());
        assert_eq!((whole.jobs(), quick.jobs()), (2 * 3 * 2 * 4 * 3, 2 * 2 * 3 * 2));
        let chosen = options("--network --sizes 8192,4096 --per-host 3 --tokens 9,5").plan(Some(7)).unwrap();
        assert_eq!(chosen.points, [4096, 8192].map(|bytes| Point { bytes, ranks: 3 }));
        assert_eq!(chosen.candidates(chosen.points[0]), [None, Some(5), Some(9)]);
        assert_eq!(chosen.rounds, 7);
        let many = (1..=33).map(|ranks| ranks.to_string()).collect::<Vec<_>>().join(",");
        let refusal = options(&format!("--network --per-host {many}")).plan(None).err().unwrap();
        assert_eq!(refusal.to_string(), "--sizes and --per-host: 66 combinations; allowed: at most 64");
    }

    #[test]
    fn messages_below_2_kib_and_unknown_links_are_refused() {
        assert!(Command::try_parse_from(["tune", "--network", "--sizes", "2047"]).is_err());
        assert!(Command::try_parse_from(["tune", "--quick"]).is_err(), "only with --network");
        let link = |link: &str| options(&format!("--network --link {link}")).threshold_link();
        assert_eq!(link("udp").unwrap(), ThresholdLink::Udp);
        assert_eq!(link("ofi:tcp").unwrap(), ThresholdLink::Ofi);
        assert_eq!(link("tcp").unwrap_err().to_string(), "--link tcp: allowed are udp, ofi:NAME");
        assert!(link("ofi:").is_err());
    }

    #[test]
    fn what_is_measured_are_the_settings_of_a_user() {
        let point = Point { bytes: 4096, ranks: 3 };
        let [admit, (variable, value)] = &variables(ThresholdLink::Ofi, point, Some(7))[..] else {
            panic!("two settings")
        };
        assert_eq!(admit, &(ADMIT, String::from("auto")));
        assert_eq!((*variable, value.as_str()), (THRESHOLDS, "ofi:4096:1:7"));
        assert!(value.parse::<Thresholds>().is_ok());
    }

    #[test]
    fn a_number_of_tokens_that_fails_or_falls_far_behind_is_not_measured_again() {
        let point = Point { bytes: 2048, ranks: 2 };
        let mut measured = Measured::default();
        for (tokens, per_s) in [(None, 100.0), (Some(8), 70.0), (Some(24), 97.0)] {
            measured.add((point, Traffic::Random, tokens), Ok(sample(per_s, 10.0, 0)));
        }
        measured.add((point, Traffic::Incast, Some(64)), Err(String::from("timed out after 3 s")));
        let worth = [None, Some(8), Some(24), Some(64)].map(|tokens| measured.is_worth_it(point, tokens));
        assert_eq!(worth, [true, false, true, false]);
        let plan = options("--network --sizes 2048 --per-host 2 --tokens 8,24,64").plan(None).unwrap();
        let tokens: Vec<_> = measured.comparisons(&plan).iter().map(|one| one.tokens).collect();
        assert_eq!(tokens, [8, 24], "both are in the table, and the one that failed is not");
        assert_eq!(choice::best(&measured.comparisons(&plan), point), None, "far behind, and as off");
        assert!(measured.is_worth_it(Point { ranks: 3, ..point }, Some(8)), "another point");
    }
}
