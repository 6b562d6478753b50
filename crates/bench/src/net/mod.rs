//! `weir bench net`: compares weir over UDP with other transports between hosts. The hosts are namespaces of this machine
//! (`hosts.rs`), so nothing but this machine is needed, and nothing leaves it.
//!
//! Measures and tables are those of `weir bench` (`compare`). Rounds are interleaved. Bare UDP (`bare.rs`, `bare_bulk.rs`,
//! `bare_stream.rs`) is measured in each round too. With a loss, latency, bandwidth and rate are measured again while hosts
//! drop frames. The verdicts on the targets (`targets.rs`) come last. Incast over weir also counts what was sent again
//! (`incast.rs`). A flood (`flood.rs`) measures the memory of a receiver that is late.
//!
//! Expected on 2 cores: a job takes 1 to 3 s, and a round of all contenders 3 to 4 minutes. With more hosts than cores, as
//! in incast, jobs can take as long as their limit.

mod admission;
mod arguments;
mod bare;
mod bare_bulk;
mod bare_end;
mod bare_stream;
mod flood;
pub(crate) mod hosts;
mod incast;
mod table;
mod targets;

pub use arguments::NetArguments;

use crate::compare::Group;
use crate::compare::measure::{BANDWIDTH_BYTES, EXCHANGE_BYTES, Job, Measure, Plan, Quantity, SMALL_BYTES};
use crate::compare::page;
use crate::compare::results::{FailedJob, Results, Row};
use crate::compare::store::{FinishedJob, Outcome};
use crate::compare::verdict::{JudgedTarget, summary_of};
use crate::comparison;
use crate::contender::{Contender, OtherMpi};
use crate::contender_set::ContenderSet;
use crate::free_memory;
use crate::jobs::{self, Jobs};
use crate::machine::Machine;
use crate::program::{FLOOD, MEASURE};
use crate::record::Record;
use crate::statistics::Spread;
use crate::transport::Transport;
use flood::FloodBound;
use hosts::Hosts;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use weir_engine::config::Settings;
use weir_mpi::scratch;
use weir_output::Failure;
use weir_output::write::write_text;

/// Those that are measured with losses too.
const LOSSY_GROUPS: [Group; 3] = [Group::Latency, Group::Bandwidth, Group::Rate];
/// Messages of bare UDP. The second is the largest below an MTU of 1500 that is a round number; the kernel sends the third in
/// two fragments. Unit: bytes.
const BARE_BYTES: [usize; 3] = [8, 1400, 2048];
/// Messages of many datagrams (`bare_bulk.rs`). Unit: bytes.
const BARE_BULK_BYTES: [usize; 2] = [64 << 10, 1 << 20];
/// Streams of bare UDP (`bare_stream.rs`).
const BARE_STREAMS: [Measure; 4] = [
    Measure { what: Quantity::MessagesPerS, at: SMALL_BYTES },
    Measure { what: Quantity::BytesPerS, at: EXCHANGE_BYTES },
    Measure { what: Quantity::BytesPerS, at: BANDWIDTH_BYTES[0] },
    Measure { what: Quantity::BytesPerS, at: BANDWIDTH_BYTES[1] },
];

/// The part of the `--json` record below its head.
#[derive(Serialize)]
struct RecordContent<'a> {
    machine: &'a Machine,
    mpis: Vec<String>,
    rounds: u32,
    timeout_s: u64,
    settings: BTreeMap<&'static str, String>,
    missing: &'a [(Contender, String)],
    targets: &'a [JudgedTarget],
    /// Half round trips of bare UDP, by size. Unit: us.
    bare_us: BTreeMap<u64, Spread>,
    bare_streams: Vec<BareStream>,
    flood: Option<FloodBound>,
    /// Without a loss, then with each.
    by_loss: Vec<ByLoss<'a>>,
}

/// A stream of bare UDP.
#[derive(Serialize)]
struct BareStream {
    #[serde(flatten)]
    measure: Measure,
    #[serde(flatten)]
    spread: Spread,
}

#[derive(Serialize)]
struct ByLoss<'a> {
    /// Frames of a thousand that each host drops.
    loss_per_mille: u32,
    rows: Vec<Row>,
    failures: &'a [FailedJob],
}

struct Bench<'a> {
    arguments: &'a NetArguments,
    set: ContenderSet,
    hosts: Hosts,
    plan: Plan,
    /// The bound of the flood, if it is measured and there is one.
    flood: Option<FloodBound>,
    jobs: Jobs,
    rounds: u32,
    machine: Machine,
    /// For the counters of jobs. Hosts see it.
    scratch: &'a Path,
}

/// All that was measured.
#[derive(Default)]
struct Measured {
    /// By loss.
    jobs: BTreeMap<u32, Vec<FinishedJob>>,
    /// Bare UDP.
    bare: BTreeMap<Measure, Vec<f64>>,
    /// Measurements of bare UDP without a result, and why.
    bare_failures: Vec<String>,
}

impl Measured {
    /// Bare UDP repeats nothing. So a loss costs this round's value, and not the results of all others.
    fn measure_bare(&mut self, hosts: &Hosts, round: u32, time: Duration) -> Result<(), Failure> {
        let half_round_trip = |bytes: &usize| targets::half_round_trip(*bytes as u64);
        let small = bare::half_round_trips(hosts, &BARE_BYTES, time);
        self.note_bare(round, &BARE_BYTES.each_ref().map(half_round_trip), small)?;
        for bytes in BARE_BULK_BYTES {
            let large = bare_bulk::half_round_trip(hosts, bytes, time);
            self.note_bare(round, &[half_round_trip(&bytes)], large.map(|us| vec![us]))?;
        }
        for stream in BARE_STREAMS {
            let per_s = bare_stream::messages_per_s(hosts, stream.at as usize, time);
            let unit = if stream.what == Quantity::BytesPerS { stream.at as f64 } else { 1.0 };
            self.note_bare(round, &[stream], per_s.map(|per_s| vec![per_s * unit]))?;
        }
        Ok(())
    }

    fn note_bare(
        &mut self,
        round: u32,
        measures: &[Measure],
        values: Result<Vec<f64>, Failure>,
    ) -> Result<(), Failure> {
        match values {
            Ok(values) => {
                for (&measure, value) in measures.iter().zip(values) {
                    self.bare.entry(measure).or_default().push(value);
                }
            }
            Err(Failure::Measurement(why)) => {
                self.bare_failures.push(format!("Bare UDP has no value in round {round}: {why}."));
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }
}

/// Measures and prints. Returns the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &NetArguments) -> Result<u8, Failure> {
    arguments.output.record.check()?;
    let rounds = arguments.repeat.unwrap_or(if arguments.quick { 2 } else { 5 });
    if let Some(mechanisms) = arguments.admission.mechanisms() {
        let seconds = if arguments.quick { 0.1 } else { 1.0 };
        let (mpich, output) = (&arguments.mpich, (&arguments.output, arguments.page.as_deref()));
        return admission::run(&arguments.admission, &mechanisms, (rounds, seconds), mpich, output);
    }
    let (plan, contenders) = (arguments.plan()?, arguments.contenders()?);
    let settings = Settings::from_environment()?;
    settings.quota(plan.max_ranks())?;
    let (losses, no_losses) = arguments.losses(Hosts::can_lose())?;
    let scratch = scratch::directory()?;
    let cores = weir_link::cores::allowed().map_err(Failure::system("sched_getaffinity"))?;
    let hosts = Hosts::make(plan.max_ranks(), &scratch.path().join("net"), &cores)?;
    let has_flood = plan.has(Group::Flood);
    let programs = if has_flood { &[MEASURE, FLOOD][..] } else { &[MEASURE] };
    let set = ContenderSet::prepare(&arguments.mpich, &contenders, programs, scratch.path())?;
    let flood = has_flood.then(|| FloodBound::new(&flood::case(arguments.quick), &settings)).transpose()?;
    let bench = Bench {
        arguments,
        set,
        hosts,
        plan,
        flood: flood.flatten(),
        jobs: Jobs { limit: Duration::from_secs(arguments.timeout), shm_dir: settings.shm_dir.clone() },
        rounds,
        machine: Machine::of_this(),
        scratch: scratch.path(),
    };
    let measured = bench.measure(&losses)?;
    bench.report(&measured, &settings, no_losses)
}

impl Bench<'_> {
    /// Prints the tables and the verdicts, and writes the page and the record. Returns the exit status.
    fn report(
        &self,
        measured: &Measured,
        settings: &Settings,
        no_losses: Option<String>,
    ) -> Result<u8, Failure> {
        let Bench { arguments, set, .. } = self;
        let missing: Vec<Contender> = set.missing.iter().map(|(contender, _)| *contender).collect();
        let of_loss = |ended: &Vec<FinishedJob>| Results::new(&set.ready, ended).skipping(&missing);
        let results: BTreeMap<u32, Results> =
            measured.jobs.iter().map(|(&loss, ended)| (loss, of_loss(ended))).collect();
        let spreads =
            measured.bare.iter().filter_map(|(&measure, samples)| Some((measure, Spread::of(samples)?)));
        let bare: BTreeMap<Measure, Spread> = spreads.collect();
        let (half_round_trips, streams): (Vec<_>, Vec<_>) =
            bare.iter().partition(|(measure, _)| measure.what == Quantity::HalfRoundTripUs);
        let run = targets::Run { results: &results, bare: &measured.bare, flood: self.flood.as_ref() };
        let targets = run.judge();
        let by_loss = results.iter().map(|(&loss_per_mille, results)| ByLoss {
            loss_per_mille,
            rows: results.rows(),
            failures: &results.failures,
        });
        let content = RecordContent {
            machine: &self.machine,
            mpis: set.mpis(),
            rounds: self.rounds,
            timeout_s: arguments.timeout,
            settings: settings.to_variables().into_iter().collect(),
            missing: &set.missing,
            targets: &targets,
            bare_us: half_round_trips.into_iter().map(|(measure, &spread)| (measure.at, spread)).collect(),
            bare_streams: streams
                .into_iter()
                .map(|(&measure, &spread)| BareStream { measure, spread })
                .collect(),
            flood: self.flood,
            by_loss: by_loss.collect(),
        };
        let record = Record::new("weir-bench-net-1", content);
        let mut notes = table::notes(&self.machine, set, &results, self.rounds);
        notes.extend(self.flood.map(|bound| bound.note(&flood::case(arguments.quick))));
        notes.extend(measured.bare_failures.iter().cloned().chain(no_losses));
        let output = &arguments.output.record;
        output.print(format_args!("{}\n\n{}\n", table::render(&results, &bare), table::targets(&targets)))?;
        output.print(format_args!("{}\n{}", notes.join("\n"), summary_of(&targets)))?;
        if let Some(file) = &arguments.page {
            let part = |(&loss, results)| page::Part { heading: table::heading(loss), results };
            let content = page::Content {
                name: "weir bench net",
                heading: "weir and other transports between hosts",
                parts: &results.iter().map(part).collect::<Vec<_>>(),
                targets: &targets,
                notes: &[notes, table::bare_lines(results.get(&0), &bare)].concat(),
                warnings: &Vec::from_iter(comparison::busy_warning(&self.machine)),
                record: &serde_json::to_value(&record).expect("records have string keys only"),
            };
            write_text(&page::render(&content), &file.to_string_lossy())?;
            output.print(format_args!("page: {}", file.display()))?;
        }
        output.write_record(&record)?;
        let weir = Contender::Mpich(Transport::Weir);
        let failed =
            results.values().flat_map(|results| &results.failures).any(|failed| failed.contender == weir);
        Ok(u8::from(failed || missing.contains(&weir)))
    }

    /// The jobs of a round: without losses, then with each.
    fn round(&self, losses: &[u32]) -> Vec<(u32, Job)> {
        let lossy = |job: &&Job| LOSSY_GROUPS.contains(&job.group);
        let with_loss =
            losses.iter().flat_map(|&loss| self.plan.jobs.iter().filter(lossy).map(move |&job| (loss, job)));
        self.plan.jobs.iter().map(|&job| (0, job)).chain(with_loss).collect()
    }

    fn measure(&self, losses: &[u32]) -> Result<Measured, Failure> {
        let round_jobs = self.round(losses);
        let takes_part = |contender, job, loss| self.arguments.takes_part(contender, job, loss);
        let with = |&(loss, job): &(u32, Job)| {
            self.set.ready.iter().filter(|&&contender| takes_part(contender, job, loss)).count()
        };
        let all = round_jobs.iter().map(with).sum::<usize>() as u64 * u64::from(self.rounds);
        let bar = self.arguments.output.progress_bar(all);
        let mut measured = Measured::default();
        let mut turn = 0;
        for round in 1..=self.rounds {
            let time = Duration::from_millis(if self.arguments.quick { 50 } else { 200 });
            measured.measure_bare(&self.hosts, round, time)?;
            for &(loss, job) in &round_jobs {
                turn += 1;
                for &contender in jobs::rotated(&self.set.ready, turn) {
                    if !takes_part(contender, job, loss) {
                        continue;
                    }
                    let ended = measured.jobs.entry(loss).or_default();
                    let failed = |ended: &FinishedJob| {
                        (ended.contender, ended.job.as_str()) == (contender, job.word().as_str())
                            && matches!(ended.outcome, Outcome::Failed(_))
                    };
                    if !ended.iter().any(failed) {
                        let lossy = if loss > 0 { format!(", loss {loss} in 1000") } else { String::new() };
                        bar.set_message(format!(
                            "round {round}: {} over {}{lossy}",
                            job.word(),
                            contender.word()
                        ));
                        ended.push(self.measure_once(contender, job, loss, round)?);
                    }
                    bar.inc(1);
                }
            }
        }
        Ok(measured)
    }

    fn measure_once(
        &self,
        contender: Contender,
        job: Job,
        loss: u32,
        round: u32,
    ) -> Result<FinishedJob, Failure> {
        let (program, words) = self.plan.arguments(job);
        let by = |kind| self.hosts.launcher(kind, job.ranks, 1);
        let mut launch = self.set.launch_by(&by, contender, job.ranks, program, words);
        if contender == Contender::OtherMpi(OtherMpi::IntelMpi) {
            // Ranks have the cores of their hosts.
            launch.set("I_MPI_PIN", "0");
        }
        let has_counters = job.group == Group::Incast && contender.is_weir();
        let counters = has_counters.then(|| TempDir::with_prefix_in("counters-", self.scratch));
        let counters = counters.transpose().map_err(Failure::system("the counters of a job"))?;
        if let Some(counters) = &counters {
            launch.set("FI_WEIR_STATS", counters.path());
        }
        if loss > 0 {
            self.hosts.lose(loss)?;
        }
        let dropped_before = if has_counters { self.hosts.dropped()? } else { 0 };
        let result = self.jobs.run(&launch, free_memory::watch());
        if loss > 0 {
            self.hosts.lose(0)?;
        }
        let outcome = match result? {
            Err(unfinished) => {
                self.hosts.clear();
                Outcome::Failed(unfinished.to_string())
            }
            Ok(output) => match self.plan.read(job, &output) {
                Ok(mut sample) => {
                    if let Some(counters) = &counters {
                        let dropped = self.hosts.dropped()?.saturating_sub(dropped_before);
                        let senders = u64::from(job.ranks) - 1;
                        sample.values.extend(incast::values(counters.path(), senders, dropped)?);
                    }
                    Outcome::Measured(sample)
                }
                Err(why) => Outcome::Failed(format!("unexpected output: {why}")),
            },
        };
        let (run, load, other_load) = (String::new(), self.machine.load, None);
        Ok(FinishedJob { run, contender, job: job.word(), round, load, other_load, outcome })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_of_bare_udp_costs_one_value_and_is_named() {
        let mut measured = Measured::default();
        let measures = [8, 1400].map(targets::half_round_trip);
        measured.note_bare(1, &measures, Ok(vec![5.0, 6.0])).unwrap();
        let lost = Failure::Measurement(String::from("a message was lost"));
        measured.note_bare(2, &measures, Err(lost)).unwrap();
        assert_eq!(measured.bare, BTreeMap::from([(measures[0], vec![5.0]), (measures[1], vec![6.0])]));
        assert_eq!(measured.bare_failures, ["Bare UDP has no value in round 2: a message was lost."]);
        assert!(measured.note_bare(3, &measures, Err(Failure::Usage(String::from("wrong")))).is_err());
    }
}
