//! The results of a run of `weir bench` in memory: samples by measure, contender and round, failed jobs, and the load
//! of the host. The tables, the page and the verdicts are made from them. Also computes the shares of incasts and of
//! their senders, and decides whether a run is complete.

use super::measure::{Group, Job, Measure, Quantity};
use super::store::{FinishedJob, Outcome};
use crate::contender::Contender;
use crate::statistics::Spread;
use crate::transport::Transport;
use serde::Serialize;
use std::collections::BTreeMap;

/// weir under MPICH, the baseline of all comparisons.
pub const WEIR: Contender = Contender::Mpich(Transport::Weir);

/// A job that failed or did not end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FailedJob {
    /// Its contender.
    pub contender: Contender,
    /// Its name.
    pub job: String,
    /// The reason, in one line.
    pub why: String,
}

/// The shares of the senders in an incast.
#[derive(Clone, Debug, PartialEq)]
pub struct SenderShares {
    /// Number of senders.
    pub senders: u64,
    /// Messages of each sender divided by their mean: the median over the rounds.
    pub by_contender: BTreeMap<Contender, Vec<f64>>,
}

/// All results of a run.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// The contenders with a row in tables, in order.
    pub contenders: Vec<Contender>,
    /// Those of them that cannot run here.
    pub skipped: Vec<Contender>,
    /// Values by round.
    samples: BTreeMap<Measure, BTreeMap<Contender, BTreeMap<u32, f64>>>,
    /// Incast, by senders: messages of each sender, by round.
    by_sender: BTreeMap<u64, BTreeMap<Contender, Vec<Vec<u64>>>>,
    /// Jobs that failed or did not end.
    pub failures: Vec<FailedJob>,
    /// Loads of the host before the commands that measured.
    pub loads: Vec<f64>,
    /// Shares of the cores that other work took during successful jobs.
    other_loads: Vec<f64>,
}

impl Results {
    /// The results of these jobs.
    pub fn new(contenders: &[Contender], ended: &[FinishedJob]) -> Results {
        let mut results = Results { contenders: contenders.to_vec(), ..Results::default() };
        for job in ended {
            results.add(job);
        }
        results.add_incast_shares();
        results
    }

    /// These contenders cannot run here, and have a row that says so.
    pub fn skipping(mut self, skipped: &[Contender]) -> Results {
        self.contenders.extend(skipped);
        self.skipped.extend(skipped);
        self
    }

    fn add(&mut self, ended: &FinishedJob) {
        if !self.loads.contains(&ended.load) {
            self.loads.push(ended.load);
        }
        let contender = ended.contender;
        match &ended.outcome {
            Outcome::Failed(why) => {
                self.failures.push(FailedJob { contender, job: ended.job.clone(), why: why.clone() });
            }
            Outcome::Measured(sample) => {
                self.other_loads.extend(ended.other_load);
                for value in &sample.values {
                    self.put(value.measure, contender, ended.round, value.value);
                }
                if !sample.by_sender.is_empty() {
                    let senders = self.by_sender.entry(sample.by_sender.len() as u64).or_default();
                    senders.entry(contender).or_default().push(sample.by_sender.clone());
                }
            }
        }
    }

    fn put(&mut self, measure: Measure, contender: Contender, round: u32, value: f64) {
        let of_measure = self.samples.entry(measure).or_default();
        of_measure.entry(contender).or_default().insert(round, value);
    }

    /// Divides the rates of incasts by those of one sender, round by round.
    fn add_incast_shares(&mut self) {
        let rate = |at| Measure { what: Quantity::IncastPerS, at };
        let Some(alone) = self.samples.get(&rate(1)).cloned() else { return };
        let many: Vec<u64> = self.places(Quantity::IncastPerS).into_iter().filter(|&at| at > 1).collect();
        for at in many {
            for (&contender, rounds) in &self.samples[&rate(at)].clone() {
                for (round, value) in rounds {
                    if let Some(one) = alone.get(&contender).and_then(|rounds| rounds.get(round)) {
                        let share = Measure { what: Quantity::IncastShare, at };
                        self.put(share, contender, *round, value / one);
                    }
                }
            }
        }
    }

    /// The parameters (sizes, ranks or senders) for which there are values.
    pub fn places(&self, what: Quantity) -> Vec<u64> {
        self.samples.keys().filter(|measure| measure.what == what).map(|measure| measure.at).collect()
    }

    /// The values of one contender, by round.
    pub fn samples(&self, measure: Measure, contender: Contender) -> Vec<f64> {
        let rounds = self.samples.get(&measure).and_then(|of_measure| of_measure.get(&contender));
        rounds.map(|rounds| rounds.values().copied().collect()).unwrap_or_default()
    }

    /// Smallest, median and largest value.
    pub fn spread(&self, measure: Measure, contender: Contender) -> Option<Spread> {
        Spread::of(&self.samples(measure, contender))
    }

    /// The reason why the contender failed in the job of this measure, if it did.
    pub fn failure(&self, measure: Measure, contender: Contender) -> Option<&str> {
        let ranks = |at| u32::try_from(at).unwrap_or(u32::MAX);
        let ranks = match measure.what.group() {
            Group::Latency | Group::Bandwidth | Group::Rate => 2,
            Group::Collectives | Group::Memory => ranks(measure.at),
            Group::Incast | Group::Flood => ranks(measure.at + 1),
        };
        let word = Job { group: measure.what.group(), ranks }.word();
        let found =
            self.failures.iter().find(|failure| failure.contender == contender && failure.job == word);
        found.map(|failure| failure.why.as_str())
    }

    /// The shares of the senders in the largest incast.
    pub fn shares_of_senders(&self) -> Option<SenderShares> {
        let (&senders, by_contender) = self.by_sender.last_key_value()?;
        let shares = by_contender.iter().map(|(&contender, rounds)| {
            let of_sender = |sender: usize| {
                let shares = rounds.iter().map(|counts| {
                    let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
                    counts[sender] as f64 / mean
                });
                Spread::of(&shares.collect::<Vec<_>>()).map_or(0.0, |spread| spread.median)
            };
            (contender, (0..senders as usize).map(of_sender).collect())
        });
        Some(SenderShares { senders, by_contender: shares.collect() })
    }

    /// Smallest, median and largest share of the cores that other work took during jobs.
    pub fn other_load(&self) -> Option<Spread> {
        Spread::of(&self.other_loads)
    }

    /// Whether everything ended well. A flood or incast that another transport does not finish is a result, not a
    /// failure.
    pub fn is_complete(&self) -> bool {
        let is_hard = |job: &str| job.starts_with("flood-") || job.starts_with("incast-");
        self.failures.iter().all(|failure| failure.contender != WEIR && is_hard(&failure.job))
    }

    /// A row for each measure and contender, for records.
    pub fn rows(&self) -> Vec<Row> {
        let rows = self.samples.iter().flat_map(|(&measure, of_measure)| {
            of_measure.iter().map(move |(&contender, rounds)| {
                let samples: Vec<f64> = rounds.values().copied().collect();
                Row { measure, contender, spread: Spread::of(&samples), samples }
            })
        });
        rows.collect()
    }
}

/// The values of one contender for one measure.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    #[serde(flatten)]
    measure: Measure,
    contender: Contender,
    #[serde(flatten)]
    spread: Option<Spread>,
    samples: Vec<f64>,
}

#[cfg(test)]
pub mod tests {
    use super::super::measure::{Sample, Value};
    use super::*;

    pub const SHM: Contender = Contender::Mpich(Transport::OfiShm);
    pub const UCX: Contender = Contender::Mpich(Transport::Ucx);
    pub const TCP: Contender = Contender::Mpich(Transport::OfiTcp);

    pub fn ended(contender: Contender, job: &str, round: u32, outcome: Outcome) -> FinishedJob {
        FinishedJob {
            run: "r".into(),
            contender,
            job: job.into(),
            round,
            load: 0.25,
            other_load: Some(0.5),
            outcome,
        }
    }

    /// Jobs with one value each, in rounds.
    pub fn measured(contender: Contender, what: Quantity, at: u64, values: &[f64]) -> Vec<FinishedJob> {
        let measure = Measure { what, at };
        let sample = |&value: &f64| Sample { values: vec![Value { measure, value }], by_sender: vec![] };
        let round = |(value, round)| ended(contender, "job", round, Outcome::Measured(sample(value)));
        values.iter().zip(1..).map(round).collect()
    }

    #[test]
    fn incast_share_is_relative_to_one_sender_in_the_same_round() {
        let rounds = [
            measured(WEIR, Quantity::IncastPerS, 1, &[10.0, 20.0]),
            measured(WEIR, Quantity::IncastPerS, 7, &[9.0, 10.0, 99.0]),
            measured(SHM, Quantity::IncastPerS, 7, &[9.0]),
        ]
        .concat();
        let results = Results::new(&[WEIR, SHM], &rounds);
        let share = Measure { what: Quantity::IncastShare, at: 7 };
        assert_eq!(results.samples(share, WEIR), [0.9, 0.5]);
        assert_eq!(results.samples(share, SHM), [0.0; 0]);
        assert_eq!(results.places(Quantity::IncastShare), [7]);
        assert_eq!((results.loads.as_slice(), results.other_load().unwrap().median), (&[0.25][..], 0.5));
    }

    #[test]
    fn the_largest_incast_lists_each_sender() {
        let sample = |counts: &[u64]| Sample { values: vec![], by_sender: counts.to_vec() };
        let round = |counts: &[u64]| ended(WEIR, "incast-3", 1, Outcome::Measured(sample(counts)));
        let results = Results::new(&[WEIR], &[round(&[4]), round(&[1, 3]), round(&[5, 5]), round(&[4, 6])]);
        let shares = results.shares_of_senders().unwrap();
        assert_eq!((shares.senders, &shares.by_contender[&WEIR]), (2, &vec![0.8, 1.2]));
        assert_eq!(Results::default().shares_of_senders(), None);
    }

    #[test]
    fn a_failed_flood_or_incast_of_another_transport_is_a_result() {
        let failed = |contender, job: &str| ended(contender, job, 1, Outcome::Failed("no".into()));
        let complete = |job: FinishedJob| Results::new(&[WEIR, TCP], &[job]).is_complete();
        assert!(complete(failed(TCP, "flood-4")));
        assert!(!complete(failed(WEIR, "flood-4")));
        assert!(complete(failed(TCP, "incast-4")) && !complete(failed(WEIR, "incast-4")));
        assert!(!complete(failed(TCP, "latency-2")));
        let results = Results::new(&[TCP], &[failed(TCP, "incast-8"), failed(TCP, "latency-2")]);
        let failure = |what, at| results.failure(Measure { what, at }, TCP);
        assert_eq!(failure(Quantity::IncastFairness, 7), Some("no"));
        assert_eq!(failure(Quantity::HalfRoundTripUs, 2048), Some("no"));
        assert_eq!(failure(Quantity::BarrierUs, 8), None);
    }
}
