//! `weir bench net`: compares weir over UDP with other transports between hosts. The hosts are namespaces of this machine
//! (`hosts.rs`), so nothing but this machine is needed, and nothing leaves it.
//!
//! Measures and tables are those of `weir bench` (`compare`). Rounds are interleaved. Limits (`limits.rs`) are measured
//! in each round too, over bare UDP (`bare.rs`, `bare_bulk.rs`, `bare_stream.rs`, `bare_incast.rs`) and TCP
//! (`bare_tcp_incast.rs`). With a loss, latency, bandwidth and rate are measured again while hosts drop frames. The
//! verdicts on the targets (`targets.rs`) come last. Incast over weir also counts what was sent again (`incast.rs`). A
//! flood (`flood.rs`) measures the memory of a receiver that is late.
//!
//! Expected on 2 cores: a job takes 1 to 3 s, and a round of all contenders 3 to 4 minutes. With more hosts than cores, as
//! in incast, jobs can take as long as their limit.

mod admission;
mod arguments;
mod bare;
mod bare_bulk;
mod bare_crowd;
mod bare_end;
mod bare_incast;
mod bare_socket;
mod bare_stream;
mod bare_tcp_incast;
mod flood;
pub(crate) mod hosts;
mod incast;
mod limits;
mod table;
mod targets;

pub use arguments::NetArguments;

use crate::compare::Group;
use crate::compare::measure::{Job, Plan, Quantity};
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
use limits::{Bare, BareRow, Limits};
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
/// The part of the `--json` record below its head.
#[derive(Serialize)]
struct RecordContent<'a> {
    machine: &'a Machine,
    mpis: Vec<String>,
    rounds: u32,
    /// Ranks on each host in collectives.
    host_ranks: u32,
    timeout_s: u64,
    settings: BTreeMap<&'static str, String>,
    missing: &'a [(Contender, String)],
    targets: &'a [JudgedTarget],
    /// Half round trips of bare UDP, by size. Unit: us.
    bare_us: BTreeMap<u64, Spread>,
    bare_streams: Vec<BareRow>,
    bare_incasts: Vec<BareRow>,
    flood: Option<FloodBound>,
    /// Without a loss, then with each.
    by_loss: Vec<ByLoss<'a>>,
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
    limits: Limits,
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
        let bare: BTreeMap<Bare, Spread> = measured.limits.spreads();
        let half_round_trips = bare.iter().filter(|(bare, _)| bare.measure.what == Quantity::HalfRoundTripUs);
        let run =
            targets::Run { results: &results, bare: &measured.limits.values, flood: self.flood.as_ref() };
        // They are about a rank on each host.
        let targets = if arguments.host_ranks == 1 { run.judge() } else { Vec::new() };
        let by_loss = results.iter().map(|(&loss_per_mille, results)| ByLoss {
            loss_per_mille,
            rows: results.rows(),
            failures: &results.failures,
        });
        let content = RecordContent {
            machine: &self.machine,
            mpis: set.mpis(),
            rounds: self.rounds,
            host_ranks: arguments.host_ranks,
            timeout_s: arguments.timeout,
            settings: settings.to_variables().into_iter().collect(),
            missing: &set.missing,
            targets: &targets,
            bare_us: half_round_trips.map(|(bare, &spread)| (bare.measure.at, spread)).collect(),
            bare_streams: limits::rows(&bare, &[Quantity::MessagesPerS, Quantity::BytesPerS]),
            bare_incasts: limits::rows(&bare, &[Quantity::IncastPerS]),
            flood: self.flood,
            by_loss: by_loss.collect(),
        };
        let record = Record::new("weir-bench-net-1", content);
        let mut notes = table::notes(&self.machine, set, &results, (self.rounds, arguments.host_ranks));
        notes.extend(self.flood.map(|bound| bound.note(&flood::case(arguments.quick))));
        notes.extend(measured.limits.failures.iter().cloned().chain(no_losses));
        let output = &arguments.output.record;
        output.print(format_args!("{}\n", table::render(&results, &bare)))?;
        if !targets.is_empty() {
            output.print(format_args!("{}\n", table::targets(&targets)))?;
        }
        output.print(notes.join("\n"))?;
        if !targets.is_empty() {
            output.print(summary_of(&targets))?;
        }
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
        let incasts = self.plan.jobs.iter().filter(|job| job.group == Group::Incast);
        let incasts: Vec<usize> = incasts.map(|job| job.ranks as usize - 1).collect();
        let mut turn = 0;
        for round in 1..=self.rounds {
            let time = Duration::from_millis(if self.arguments.quick { 50 } else { 200 });
            measured.limits.measure(&self.hosts, &incasts, round, time)?;
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
        let per_host = if job.group == Group::Collectives { self.arguments.host_ranks } else { 1 };
        let ranks = job.ranks * per_host;
        let by = |kind| self.hosts.launcher(kind, ranks, per_host);
        let mut launch = self.set.launch_by(&by, contender, ranks, program, words);
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
