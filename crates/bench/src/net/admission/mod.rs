//! `weir bench net --admission`: compares mechanisms of admission (`FI_WEIR_ADMIT`) under traffic that can congest the
//! network between hosts. In each round every mechanism measures each case, in turn.
//!
//! ```text
//! round 1    random 16 B: off, rate, token, auto    incast 16 B: rate, token, auto, off    ...
//! ```
//! Expected on 2 cores: a job takes 1 to 3 s.

mod page;
mod table;

use crate::congestion::{Case, Network, NetworkOptions, Sample, Traffic};
use crate::jobs;
use crate::machine::Machine;
use crate::options::{MpichOption, OutputOptions};
use crate::statistics::{MedianInterval, Spread, ratios};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use weir_engine::config::{Settings, Thresholds};
use weir_output::Failure;
use weir_output::write::write_text;

/// The setting.
const ADMIT: &str = "FI_WEIR_ADMIT";
/// Message of the latency case. Unit: bytes.
const LATENCY_BYTES: u32 = 8;
/// The latency of a mechanism that holds nothing back over that of `off`: at most this.
const LATENCY_LIMIT: f64 = 1.01;
/// The kinds of traffic without `--traffic`.
const TRAFFIC: [Traffic; 4] = [Traffic::Latency, Traffic::Alltoall, Traffic::Random, Traffic::Incast];

/// A mechanism of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// All packets pass.
    Off,
    /// A delay between the packets of a rank.
    Rate,
    /// A bound for the datagrams of a node.
    Token,
    /// Such a bound that depends on message size and active ranks (FI_WEIR_ADMIT_THRESHOLDS).
    Auto,
    /// One rank of a host at a time sends the datagrams of all; udp only.
    Proxy,
    /// Proxy and token.
    ProxyToken,
}

impl Mechanism {
    fn word(self) -> &'static str {
        match self {
            Mechanism::Off => "off",
            Mechanism::Rate => "rate",
            Mechanism::Token => "token",
            Mechanism::Auto => "auto",
            Mechanism::Proxy => "proxy",
            Mechanism::ProxyToken => "proxy,token",
        }
    }
}

/// Options of `--admission`.
#[derive(Args, Clone, Debug)]
pub struct AdmissionOptions {
    /// Compare mechanisms of admission under congestion instead of transports [default: off,rate,token].
    #[arg(long, value_name = "MECHANISM", num_args = 0..=1, value_delimiter = ',', require_equals = true,
        default_missing_values = ["off", "rate", "token"], conflicts_with_all = ["measure", "ranks", "loss", "only"])]
    admission: Option<Vec<Mechanism>>,
    /// Kinds of traffic [default: all].
    #[arg(long, value_name = "TRAFFIC", value_delimiter = ',', requires = "admission")]
    traffic: Vec<Traffic>,
    /// Ranks on each host.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [4], requires = "admission",
        value_parser = clap::value_parser!(u32).range(1..=64))]
    per_host: Vec<u32>,
    /// Lengths of updates and of blocks of all-to-all. Unit: bytes.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [16, 2048], requires = "admission",
        value_parser = clap::value_parser!(u32).range(16..=1 << 20))]
    sizes: Vec<u32>,
    /// Updates of a rank without answer.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [16], requires = "admission",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    outstanding: Vec<u32>,
    /// Number of hosts.
    #[arg(long, value_name = "N", default_value_t = 2, requires = "admission",
        value_parser = clap::value_parser!(u32).range(2..=16))]
    hosts: u32,
    /// The link between hosts: udp or ofi:tcp.
    #[arg(long, value_name = "LINK", default_value = "udp", requires = "admission")]
    link: String,
    /// Bound each port of the bridge: so much towards its host. Unit: Mbit/s.
    #[arg(long, value_name = "MBIT", requires = "admission",
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    port_rate: Option<u32>,
    /// The queue of a bounded port, which drops what it cannot hold. Unit: KiB.
    #[arg(long, value_name = "KIB", default_value_t = 128, requires = "port_rate",
        value_parser = clap::value_parser!(u32).range(64..=65_536))]
    port_queue: u32,
}

/// Samples of the rounds, by case and mechanism.
type Samples = BTreeMap<Case, BTreeMap<Mechanism, Vec<Sample>>>;

/// All that was measured.
#[derive(Debug, Default)]
struct Measured {
    samples: Samples,
    failures: Vec<FailedJob>,
}

/// A job without a result.
#[derive(Clone, Debug, Serialize)]
struct FailedJob {
    case: Case,
    mechanism: Mechanism,
    why: String,
}

/// A mechanism in a case, for table, page and record.
#[derive(Clone, Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    case: Case,
    mechanism: Mechanism,
    samples: Vec<Sample>,
    per_s: Spread,
    /// Ratio of the rates to `off` in the same round; for latency, of the times.
    to_off: Option<Spread>,
    /// For latency: the interval of the median of these ratios.
    #[serde(skip)]
    interval: Option<MedianInterval>,
    p50_us: f64,
    p99_us: Option<f64>,
    /// That of the rounds.
    #[serde(skip)]
    p99_range: Option<Spread>,
    fairness: Option<f64>,
    /// Bundles that were sent again, of all datagrams.
    sent_again: f64,
    /// That of the rounds.
    #[serde(skip)]
    sent_again_range: Spread,
}

/// The part of the `--json` record below its head.
#[derive(Serialize)]
struct RecordContent<'a> {
    machine: &'a Machine,
    mpi: String,
    #[serde(flatten)]
    network: &'a NetworkOptions,
    rounds: u32,
    settings: BTreeMap<&'static str, String>,
    rows: &'a [Row],
    failures: &'a [FailedJob],
}

impl AdmissionOptions {
    /// The mechanisms, `off` first, if this comparison is wanted.
    pub fn mechanisms(&self) -> Option<Vec<Mechanism>> {
        let given = self.admission.as_ref()?;
        let with_off: BTreeSet<Mechanism> = given.iter().copied().chain([Mechanism::Off]).collect();
        Some(with_off.into_iter().collect())
    }

    fn network(&self) -> NetworkOptions {
        NetworkOptions {
            hosts: self.hosts,
            link: self.link.clone(),
            port_rate_mbit: self.port_rate,
            port_queue_kib: self.port_queue,
        }
    }

    fn cases(&self) -> Vec<Case> {
        let traffic = if self.traffic.is_empty() { TRAFFIC.to_vec() } else { self.traffic.clone() };
        let mut cases = Vec::new();
        for traffic in traffic {
            if traffic == Traffic::Latency {
                cases.push(Case { traffic, ranks_per_host: 1, outstanding: 1, bytes: LATENCY_BYTES });
                continue;
            }
            for &ranks_per_host in &self.per_host {
                // All-to-all has no such number.
                let numbers = if traffic == Traffic::Alltoall { &[1][..] } else { &self.outstanding };
                for &outstanding in numbers {
                    let case = |&bytes: &u32| Case { traffic, ranks_per_host, outstanding, bytes };
                    cases.extend(self.sizes.iter().map(case));
                }
            }
        }
        cases
    }
}

/// Measures, prints, and writes `page` if there is one. Returns the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(
    options: &AdmissionOptions,
    mechanisms: &[Mechanism],
    (rounds, seconds): (u32, f64),
    mpich: &MpichOption,
    (output, page): (&OutputOptions, Option<&Path>),
) -> Result<u8, Failure> {
    let settings = Settings::from_environment()?;
    let machine = Machine::of_this();
    let network_options = options.network();
    let network = Network::open(&network_options, mpich, seconds)?;
    let cases = options.cases();
    let bar = output.progress_bar(u64::from(rounds) * (cases.len() * mechanisms.len()) as u64);
    let mut measured = Measured::default();
    let mut turn = 0;
    for round in 1..=rounds {
        for &case in &cases {
            turn += 1;
            for &mechanism in jobs::rotated(mechanisms, turn) {
                bar.set_message(format!(
                    "round {round}: {} with {}",
                    table::case_name(case),
                    mechanism.word()
                ));
                if !measured.has_failed(case, mechanism) {
                    let ended = network.measure(case, &[(ADMIT, mechanism.word().to_owned())])?;
                    measured.add(case, mechanism, ended);
                }
                bar.inc(1);
            }
        }
    }
    drop(bar);
    let rows = measured.rows();
    let content = RecordContent {
        machine: &machine,
        mpi: network.mpi(),
        network: &network_options,
        rounds,
        settings: settings.to_variables().into_iter().collect(),
        rows: &rows,
        failures: &measured.failures,
    };
    let mut notes = table::notes(&content);
    if mechanisms.contains(&Mechanism::Auto) && settings.admission_thresholds == Thresholds::default() {
        notes.push(String::from(
            "auto has no thresholds (FI_WEIR_ADMIT_THRESHOLDS), so it is the same as off; `weir tune --network` measures some.",
        ));
    }
    output.record.print(format_args!("{}\n{}", table::render(&rows), notes.join("\n")))?;
    if let Some(file) = page {
        let record = serde_json::to_value(&content)
            .map_err(|error| Failure::Measurement(format!("the record: {error}")))?;
        write_text(&page::render(&rows, &notes, &record), &file.to_string_lossy())?;
        output.record.print(format_args!("page: {}", file.display()))?;
    }
    output.record.write("weir-bench-net-admission-1", content)?;
    Ok(u8::from(!measured.failures.is_empty()))
}

impl Measured {
    fn has_failed(&self, case: Case, mechanism: Mechanism) -> bool {
        self.failures.iter().any(|failed| (failed.case, failed.mechanism) == (case, mechanism))
    }

    fn add(&mut self, case: Case, mechanism: Mechanism, ended: Result<Sample, String>) {
        match ended {
            Ok(sample) => {
                self.samples.entry(case).or_default().entry(mechanism).or_default().push(sample);
            }
            Err(why) => self.failures.push(FailedJob { case, mechanism, why }),
        }
    }

    fn rows(&self) -> Vec<Row> {
        let by_case = self.samples.iter();
        by_case
            .flat_map(|(&case, all)| all.keys().filter_map(move |&mechanism| row(case, mechanism, all)))
            .collect()
    }
}

fn row(case: Case, mechanism: Mechanism, all: &BTreeMap<Mechanism, Vec<Sample>>) -> Option<Row> {
    let samples = all.get(&mechanism)?;
    let median = |values: Vec<f64>| Spread::of(&values).map(|spread| spread.median);
    let values = |of: fn(&Sample) -> f64| samples.iter().map(of).collect::<Vec<f64>>();
    let some = |of: fn(&Sample) -> Option<f64>| samples.iter().filter_map(of).collect::<Vec<f64>>();
    let rates = values(|sample| sample.per_s);
    let off: Vec<f64> = all.get(&Mechanism::Off)?.iter().map(|sample| sample.per_s).collect();
    let to_off = ratios(&rates, &off).filter(|_| mechanism != Mechanism::Off);
    // The rate of a round trip is the inverse of its time.
    let is_latency = case.traffic == Traffic::Latency;
    let as_shown = |ratio: f64| if is_latency { 1.0 / ratio } else { ratio };
    let to_off: Option<Vec<f64>> = to_off.map(|ratios| ratios.into_iter().map(as_shown).collect());
    let p99_range = Spread::of(&some(|sample| sample.p99_us));
    let sent_again_range = Spread::of(&values(Sample::sent_again_share))?;
    Some(Row {
        case,
        mechanism,
        samples: samples.clone(),
        per_s: Spread::of(&rates)?,
        interval: to_off.as_ref().filter(|_| is_latency).and_then(|ratios| MedianInterval::of(ratios)),
        to_off: to_off.and_then(|ratios| Spread::of(&ratios)),
        p50_us: median(values(|sample| sample.p50_us))?,
        p99_us: p99_range.map(|range| range.median),
        p99_range,
        fairness: median(some(|sample| sample.fairness)),
        sent_again: sent_again_range.median,
        sent_again_range,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const RANDOM: Case =
        Case { traffic: Traffic::Random, ranks_per_host: 4, outstanding: 16, bytes: 16 };

    pub(super) fn sample(per_s: f64) -> Sample {
        Sample {
            per_s,
            p50_us: 5.0,
            p99_us: Some(90.0),
            fairness: Some(0.5),
            datagrams: 100,
            sent_again: 2,
            timeouts: 0,
            gate_waits: 0,
            most_held: 0,
            tcp: None,
        }
    }

    pub(super) fn rows(case: Case, off: &[f64], token: &[f64]) -> Vec<Row> {
        let mut measured = Measured::default();
        for (mechanism, rates) in [(Mechanism::Off, off), (Mechanism::Token, token)] {
            rates.iter().for_each(|&per_s| measured.add(case, mechanism, Ok(sample(per_s))));
        }
        measured.rows()
    }

    #[test]
    fn a_mechanism_is_compared_with_off_in_the_same_round() {
        let [off, token] = &rows(RANDOM, &[100.0, 200.0, 400.0], &[200.0, 200.0, 1200.0])[..] else {
            panic!("two rows");
        };
        assert_eq!(off.to_off, None);
        assert_eq!(token.to_off, Some(Spread { min: 1.0, median: 2.0, max: 3.0 }));
        assert_eq!((token.per_s.median, token.sent_again), (200.0, 0.02));
        let latency = Case { traffic: Traffic::Latency, ..RANDOM };
        let slower = &rows(latency, &[100.0], &[50.0])[1];
        assert_eq!(slower.to_off.map(|ratio| ratio.median), Some(2.0), "twice the time");
    }

    #[test]
    fn a_failed_job_is_not_repeated_and_leaves_no_row() {
        let mut measured = Measured::default();
        measured.add(RANDOM, Mechanism::Off, Ok(sample(1.0)));
        measured.add(RANDOM, Mechanism::Rate, Err(String::from("timed out after 3 s")));
        assert!(measured.has_failed(RANDOM, Mechanism::Rate) && !measured.has_failed(RANDOM, Mechanism::Off));
        assert_eq!(measured.rows().len(), 1);
    }
}
