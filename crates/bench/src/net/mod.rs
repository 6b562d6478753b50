//! `weir bench net`: compares weir over UDP with other transports between hosts. The hosts are namespaces of this machine
//! (`hosts.rs`), so nothing but this machine is needed, and nothing leaves it.
//!
//! Measures and tables are those of `weir bench` (`compare`). Rounds are interleaved. Bare UDP (`bare.rs`, `bare_bulk.rs`)
//! is measured in each round too. With a loss, latency, bandwidth and rate are measured again while hosts drop frames.
//!
//! Expected on 2 cores: a job takes 1 to 3 s, and a round of 4 contenders without losses a minute. With more hosts than
//! cores, as in incast, jobs can take as long as their limit.

mod admission;
mod bare;
mod bare_bulk;
pub(crate) mod hosts;
mod table;

use crate::compare::Group;
use crate::compare::measure::{Job, Plan};
use crate::compare::results::Results;
use crate::compare::store::{FinishedJob, Outcome};
use crate::contender::{Contender, OtherMpi};
use crate::contender_set::ContenderSet;
use crate::free_memory;
use crate::jobs::{self, Jobs};
use crate::machine::Machine;
use crate::options::{MpichOption, OutputOptions};
use crate::program::MEASURE;
use crate::statistics::Spread;
use crate::transport::Transport;
use admission::AdmissionOptions;
use clap::Args;
use hosts::Hosts;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weir_engine::config::Settings;
use weir_mpi::scratch;
use weir_output::Failure;

/// Contenders without `--only`.
const DEFAULT: [Contender; 4] = [
    Contender::Mpich(Transport::Weir),
    Contender::Mpich(Transport::OfiTcp),
    Contender::Mpich(Transport::Ucx),
    Contender::OtherMpi(OtherMpi::IntelMpi),
];
/// Groups of `weir bench` that have a meaning between hosts.
const GROUPS: [Group; 5] = [Group::Latency, Group::Bandwidth, Group::Rate, Group::Collectives, Group::Incast];
/// Those that are measured with losses too.
const LOSSY_GROUPS: [Group; 3] = [Group::Latency, Group::Bandwidth, Group::Rate];
/// Messages of bare UDP. The second is the largest below an MTU of 1500 that is a round number. Unit: bytes.
const BARE_BYTES: [usize; 2] = [8, 1400];
/// Messages of many datagrams (`bare_bulk.rs`). Unit: bytes.
const BARE_BULK_BYTES: [usize; 2] = [64 << 10, 1 << 20];

/// Options of `weir bench net`.
#[derive(Args, Debug)]
#[command(after_help = "\
Hosts are network namespaces on a bridge inside this machine, one rank on each. With as many cores as hosts, each host has \
a core. The tables show the median of the rounds, the least and the greatest value, and the ratio to weir's median. Bare \
UDP is two threads that send and receive, and nothing else; for large messages they also encrypt, and copy.

It needs root, iproute2 and util-linux, for losses also nftables (nft), an MPICH with libfabric, UCX and mpicc (pip install \
mpich), and a C compiler. weir's settings come from the environment (see `weir settings`).

--admission compares the values of FI_WEIR_ADMIT instead, by traffic that can congest the network, with several ranks on \
each host. --port-rate makes the bridge a switch with slow ports and finite queues, which drop what they cannot hold.

Exit status:
  0      weir measured everything; others may fail
  1      weir failed, or something is missing
  2      a wrong option or setting

Examples:
  weir bench net --quick
  weir bench net --measure latency,rate --loss 1,10 --repeat 5
  weir bench net --measure incast --ranks 8 --only weir,ofi-tcp --json net.json
  weir bench net --admission --quick
  weir bench net --admission=auto --per-host 4 --sizes 65536 --port-rate 200
  weir bench net --admission=token --traffic incast --per-host 8 --port-rate 500 --page admission.html")]
pub struct NetArguments {
    /// Measure only these: latency, bandwidth, rate, collectives, incast.
    #[arg(long, value_name = "MEASURE", value_delimiter = ',')]
    measure: Vec<Group>,
    /// Hosts of collectives and incast.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [2, 4, 8],
        value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: Vec<u32>,
    /// Losses for which latency, bandwidth and rate are measured again. Unit: frames of a thousand.
    #[arg(long, value_name = "PER_MILLE", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=500))]
    loss: Vec<u32>,
    /// Only these contenders, which may also be weir-ofi-tcp, weir-ofi-tcp-unprotected, weir-authenticate and
    /// weir-unprotected [default: weir,ofi-tcp,ucx,intel-mpi].
    #[arg(long, value_name = "TRANSPORT", value_delimiter = ',')]
    only: Vec<Contender>,
    /// Number of rounds; 5, or 2 with --quick.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: Option<u32>,
    /// Short measurements: 2 rounds, 0.05 s for a value.
    #[arg(long)]
    quick: bool,
    /// Limit of one job, after which it is ended and reported as timed out. Unit: seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    #[command(flatten)]
    admission: Box<AdmissionOptions>,
    #[command(flatten)]
    mpich: MpichOption,
    #[command(flatten)]
    output: OutputOptions,
}

impl NetArguments {
    fn groups(&self) -> Result<Vec<Group>, Failure> {
        let chosen = if self.measure.is_empty() { GROUPS.to_vec() } else { self.measure.clone() };
        match chosen.iter().find(|group| !GROUPS.contains(group)) {
            Some(group) => Err(Failure::Usage(format!(
                "--measure {}: allowed are latency, bandwidth, rate, collectives, incast",
                format!("{group:?}").to_lowercase()
            ))),
            None => Ok(chosen),
        }
    }

    fn contenders(&self) -> Result<Vec<Contender>, Failure> {
        let chosen = if self.only.is_empty() { DEFAULT.to_vec() } else { self.only.clone() };
        let inside = [Contender::Mpich(Transport::MpichShm), Contender::Mpich(Transport::OfiShm)];
        match chosen.iter().find(|contender| inside.contains(contender)) {
            Some(contender) => {
                Err(Failure::Usage(format!("--only {}: it does not leave a host", contender.word())))
            }
            None => Ok(chosen),
        }
    }
}

/// The part of the `--json` record below its head.
#[derive(Serialize)]
struct RecordContent<'a> {
    machine: &'a Machine,
    mpis: Vec<String>,
    rounds: u32,
    timeout_s: u64,
    settings: BTreeMap<&'static str, String>,
    missing: &'a [(Contender, String)],
    /// Half round trips of bare UDP, by size. Unit: us.
    bare_us: BTreeMap<usize, Option<Spread>>,
    /// Without a loss, then with each.
    by_loss: Vec<ByLoss<'a>>,
}

#[derive(Serialize)]
struct ByLoss<'a> {
    /// Frames of a thousand that each host drops.
    loss_per_mille: u32,
    rows: Vec<crate::compare::results::Row>,
    failures: &'a [crate::compare::results::FailedJob],
}

struct Bench<'a> {
    arguments: &'a NetArguments,
    set: ContenderSet,
    hosts: Hosts,
    plan: Plan,
    jobs: Jobs,
    rounds: u32,
    machine: Machine,
}

/// All that was measured.
#[derive(Default)]
struct Measured {
    /// By loss.
    jobs: BTreeMap<u32, Vec<FinishedJob>>,
    /// Half round trips of bare UDP, by size. Unit: us.
    bare: BTreeMap<usize, Vec<f64>>,
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
        let (mpich, output) = (&arguments.mpich, &arguments.output);
        return admission::run(&arguments.admission, &mechanisms, (rounds, seconds), mpich, output);
    }
    let (groups, contenders) = (arguments.groups()?, arguments.contenders()?);
    let settings = Settings::from_environment()?;
    let plan = Plan::new(&groups, &arguments.ranks, arguments.quick);
    settings.quota(plan.max_ranks())?;
    let losses: Vec<u32> = BTreeSet::from_iter(arguments.loss.iter().copied()).into_iter().collect();
    if !losses.is_empty() && !Hosts::can_lose() {
        return Err(Failure::Measurement(String::from("--loss needs nft (nftables), which is not in PATH")));
    }
    let scratch = scratch::directory()?;
    let cores = weir_link::cores::allowed().map_err(Failure::system("sched_getaffinity"))?;
    let hosts = Hosts::make(plan.max_ranks(), &scratch.path().join("net"), &cores)?;
    let set = ContenderSet::prepare(&arguments.mpich, &contenders, &[MEASURE], scratch.path())?;
    let bench = Bench {
        arguments,
        set,
        hosts,
        plan,
        jobs: Jobs { limit: Duration::from_secs(arguments.timeout), shm_dir: settings.shm_dir.clone() },
        rounds,
        machine: Machine::of_this(),
    };
    let measured = bench.measure(&losses)?;
    let results: BTreeMap<u32, Results> =
        measured.jobs.iter().map(|(&loss, ended)| (loss, Results::new(&bench.set.ready, ended))).collect();
    let bare: BTreeMap<usize, Option<Spread>> =
        measured.bare.iter().map(|(&bytes, samples)| (bytes, Spread::of(samples))).collect();
    let output = &arguments.output.record;
    output.print(table::render(&results, &bare))?;
    output.print(table::notes(&bench.machine, &bench.set, &results, bench.rounds).join("\n"))?;
    let by_loss = results.iter().map(|(&loss_per_mille, results)| ByLoss {
        loss_per_mille,
        rows: results.rows(),
        failures: &results.failures,
    });
    let content = RecordContent {
        machine: &bench.machine,
        mpis: bench.set.mpis(),
        rounds: bench.rounds,
        timeout_s: arguments.timeout,
        settings: settings.to_variables().into_iter().collect(),
        missing: &bench.set.missing,
        bare_us: bare.clone(),
        by_loss: by_loss.collect(),
    };
    output.write("weir-bench-net-1", content)?;
    let weir = Contender::Mpich(Transport::Weir);
    let failed =
        results.values().flat_map(|results| &results.failures).any(|failed| failed.contender == weir);
    let missing = bench.set.missing.iter().any(|(contender, _)| *contender == weir);
    Ok(u8::from(failed || missing))
}

impl Bench<'_> {
    /// The jobs of a round: without losses, then with each.
    fn round(&self, losses: &[u32]) -> Vec<(u32, Job)> {
        let lossy = |job: &&Job| LOSSY_GROUPS.contains(&job.group);
        let with_loss =
            losses.iter().flat_map(|&loss| self.plan.jobs.iter().filter(lossy).map(move |&job| (loss, job)));
        self.plan.jobs.iter().map(|&job| (0, job)).chain(with_loss).collect()
    }

    fn measure(&self, losses: &[u32]) -> Result<Measured, Failure> {
        let round_jobs = self.round(losses);
        let all = u64::from(self.rounds) * (round_jobs.len() * self.set.ready.len()) as u64;
        let bar = self.arguments.output.progress_bar(all);
        let mut measured = Measured::default();
        let mut turn = 0;
        for round in 1..=self.rounds {
            let time = Duration::from_millis(if self.arguments.quick { 50 } else { 200 });
            let small = bare::half_round_trips(&self.hosts, &BARE_BYTES, time)?;
            for (&bytes, us) in BARE_BYTES.iter().zip(small) {
                measured.bare.entry(bytes).or_default().push(us);
            }
            for bytes in BARE_BULK_BYTES {
                let us = bare_bulk::half_round_trip(&self.hosts, bytes, time)?;
                measured.bare.entry(bytes).or_default().push(us);
            }
            for &(loss, job) in &round_jobs {
                turn += 1;
                for &contender in jobs::rotated(&self.set.ready, turn) {
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
        if loss > 0 {
            self.hosts.lose(loss)?;
        }
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
                Ok(sample) => Outcome::Measured(sample),
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
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: NetArguments,
    }

    fn arguments(words: &str) -> NetArguments {
        let words = std::iter::once("net").chain(words.split_whitespace());
        Command::try_parse_from(words).unwrap().arguments
    }

    #[test]
    fn groups_and_contenders_inside_a_host_are_refused() {
        assert_eq!(arguments("").groups().unwrap(), GROUPS);
        assert_eq!(arguments("").contenders().unwrap(), DEFAULT);
        let refusal = arguments("--measure flood").groups().unwrap_err();
        assert!(matches!(&refusal, Failure::Usage(text) if text.contains("--measure flood")), "{refusal}");
        let refusal = arguments("--only weir,mpich-shm").contenders().unwrap_err();
        assert_eq!(refusal.to_string(), "--only mpich-shm: it does not leave a host");
        assert!(Command::try_parse_from(["net", "--loss", "0"]).is_err());
    }
}
