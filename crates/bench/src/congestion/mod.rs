//! Traffic that can congest the network between hosts, with settings of weir in turn: the measurements of
//! `weir bench net --admission` and `weir tune --network`. Hosts are namespaces of this machine (`net::hosts`), or those of
//! a user's network (`remote.rs`).
//!
//! ```text
//! Network::open     hosts, the programs, the plug-in
//! Network::measure  a job of one kind of traffic with these settings: rate, percentiles, counters of the link
//! ```
//! Retransmissions come from the counters that endpoints leave (`FI_WEIR_STATS`), over `ofi:tcp` from those of the kernel
//! in the namespaces. This file does not know mechanisms.

mod remote;
mod sample;

pub use remote::{RemoteHosts, RemoteNetwork, RemoteRun};
pub use sample::Sample;

use crate::contender::Contender;
use crate::contender_set::ContenderSet;
use crate::jobs::Jobs;
use crate::net::hosts::{Hosts, TcpSegments};
use crate::options::MpichOption;
use crate::program::{CONGESTION, MEASURE};
use crate::transport::Transport;
use clap::ValueEnum;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use weir_engine::config::Settings;
use weir_engine::stats;
use weir_link::NetworkReport;
use weir_mpi::scratch::{self, Scratch};
use weir_output::Failure;

const WEIR: Contender = Contender::Mpich(Transport::Weir);
/// Start, end and retransmissions of a job may take so much longer than its measurement. Unit: s.
const SPARE_S: u64 = 30;

/// A kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// RandomAccess: updates of random ranks on other hosts, each answered.
    Random,
    /// The same, but all ranks of other hosts update one rank.
    Incast,
    /// MPI_Alltoall over all ranks.
    Alltoall,
    /// Round trips between one rank on each of two hosts.
    Latency,
}

impl Traffic {
    /// Its name on the command line and in records.
    pub fn word(self) -> &'static str {
        match self {
            Traffic::Random => "random",
            Traffic::Incast => "incast",
            Traffic::Alltoall => "alltoall",
            Traffic::Latency => "latency",
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Case {
    /// The traffic.
    pub traffic: Traffic,
    /// Ranks on each host.
    pub ranks_per_host: u32,
    /// Updates of a rank without answer.
    pub outstanding: u32,
    /// Length of an update, or of a block of all-to-all. Unit: bytes.
    pub bytes: u32,
}

/// The network.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkOptions {
    /// Number of hosts.
    pub hosts: u32,
    /// The link between hosts: `udp` or `ofi:NAME`.
    pub link: String,
    /// What each port of the bridge passes towards its host. `None`: no bound. Unit: Mbit/s.
    pub port_rate_mbit: Option<u32>,
    /// The queue of a bounded port. What it cannot hold is dropped. Unit: KiB.
    pub port_queue_kib: u32,
}

impl NetworkOptions {
    fn is_over_tcp(&self) -> bool {
        self.link == "ofi:tcp"
    }

    /// What counts as sent again between pretended hosts, for the lines below a table.
    pub fn sent_again_in_words(&self) -> &'static str {
        if self.is_over_tcp() {
            "segments of TCP, of all segments of the hosts"
        } else {
            "bundles, of all datagrams"
        }
    }

    /// The bound of the ports, for the lines below a table.
    pub fn ports_in_words(&self) -> String {
        let queue_kib = self.port_queue_kib;
        self.port_rate_mbit.map_or(String::from("the bridge has no bound"), |mbit| {
            format!(
                "each port of the bridge passes {mbit} Mbit/s towards its host and queues {queue_kib} KiB"
            )
        })
    }
}

/// Where ranks run.
enum Place {
    Pretended(Hosts),
    Remote(RemoteNetwork),
}

/// Hosts, and what a job needs.
pub struct Network {
    set: ContenderSet,
    place: Place,
    /// The directories of this command on the hosts last as long.
    _kept: Option<Box<dyn RemoteRun>>,
    options: NetworkOptions,
    seconds: f64,
    jobs: Jobs,
    scratch: Scratch,
}

impl Network {
    /// Makes the hosts and compiles the programs. A value is measured for `seconds`.
    ///
    /// # Errors
    /// [`Failure`]: what is missing.
    pub fn open(options: &NetworkOptions, mpich: &MpichOption, seconds: f64) -> Result<Network, Failure> {
        let scratch = scratch::directory()?;
        if options.port_rate_mbit.is_some() && !Hosts::can_bound() {
            return Err(Failure::Measurement(String::from(
                "--port-rate needs tc (iproute2), which is not in PATH",
            )));
        }
        let cores = weir_link::cores::allowed().map_err(Failure::system("sched_getaffinity"))?;
        let hosts = Hosts::make(options.hosts, &scratch.path().join("net"), &cores)?;
        let set = prepare(mpich, scratch.path())?;
        Network::new(set, (Place::Pretended(hosts), None), options, seconds, scratch)
    }

    /// The same with hosts of a user's network, which cannot be bounded.
    ///
    /// # Errors
    /// [`Failure`]: what is missing, or which host cannot be reached.
    pub fn open_remote(
        remote: RemoteNetwork,
        options: &NetworkOptions,
        mpich: &MpichOption,
        seconds: f64,
    ) -> Result<Network, Failure> {
        let scratch = scratch::directory()?;
        let set = prepare(mpich, scratch.path())?;
        let plug_in = set.plug_in().expect("prepared with weir");
        let kept = remote.prepare(scratch.path(), plug_in, set.mpich_program(CONGESTION))?;
        Network::new(set, (Place::Remote(remote), Some(kept)), options, seconds, scratch)
    }

    fn new(
        set: ContenderSet,
        (place, kept): (Place, Option<Box<dyn RemoteRun>>),
        options: &NetworkOptions,
        seconds: f64,
        scratch: Scratch,
    ) -> Result<Network, Failure> {
        let limit = Duration::from_secs(SPARE_S) + Duration::from_secs_f64(2.0 * seconds);
        let jobs = Jobs { limit, shm_dir: Settings::from_environment()?.shm_dir };
        Ok(Network { set, place, _kept: kept, options: options.clone(), seconds, jobs, scratch })
    }

    /// The MPI.
    pub fn mpi(&self) -> String {
        self.set.mpis().join(", ")
    }

    /// Runs a job with these settings. The inner error is one line: why there is no result.
    ///
    /// # Errors
    /// [`Failure`]: a signal has ended this command, or nothing could be started.
    pub fn measure(
        &self,
        case: Case,
        settings: &[(&str, String)],
    ) -> Result<Result<Sample, String>, Failure> {
        let is_latency = case.traffic == Traffic::Latency;
        let (ranks, per_host) = match is_latency {
            true => (2, 1),
            false => (case.ranks_per_host * self.options.hosts, case.ranks_per_host),
        };
        let (program, words) = self.program(case);
        let job = self.directory_of_job()?;
        let mut launch = match &self.place {
            Place::Pretended(hosts) => {
                let by = |kind| hosts.launcher(kind, ranks, per_host);
                self.set.launch_by(&by, WEIR, ranks, program, words)
            }
            Place::Remote(_) => self.set.launch(WEIR, ranks, program, words),
        };
        let (counters, mut run) = match &self.place {
            Place::Pretended(_) => (job.path().to_owned(), None),
            Place::Remote(remote) => {
                let plug_in = self.set.plug_in().expect("prepared with weir");
                let run = remote.begin_job(case, job.path(), plug_in, self.set.mpich(), &mut launch)?;
                (job.path().join("counters"), Some(run))
            }
        };
        launch.set("FI_WEIR_STATS", &counters);
        launch.set("FI_WEIR_LINK", format!("shm,{}", self.options.link));
        for (variable, value) in settings {
            launch.set(variable, value);
        }
        let bound = self.options.port_rate_mbit.filter(|_| !is_latency);
        if let (Place::Pretended(hosts), Some(mbit)) = (&self.place, bound) {
            hosts.bound_ports(Some((mbit, self.options.port_queue_kib)))?;
        }
        let tcp_before = self.tcp_segments()?;
        let ended = self.jobs.run(&launch, crate::free_memory::watch());
        let tcp = self.tcp_segments()?.zip(tcp_before).map(|(after, before)| after - before);
        if let (Place::Pretended(hosts), Some(_)) = (&self.place, bound) {
            hosts.bound_ports(None)?;
        }
        let output = match ended? {
            Ok(output) => output,
            Err(unfinished) => {
                if let Place::Pretended(hosts) = &self.place {
                    hosts.clear();
                }
                return Ok(Err(unfinished.to_string()));
            }
        };
        let mut reports = stats::read_dir(&counters).map_err(Failure::system("the counters of a job"))?;
        if let Some(run) = &mut run {
            match run.counters(&job.path().join("gathered")) {
                Ok(elsewhere) => reports.endpoints.extend(elsewhere.endpoints),
                Err(why) => return Ok(Err(why)),
            }
        }
        let networks = reports.endpoints.iter().filter_map(|endpoint| endpoint.network);
        let network = networks.fold(NetworkReport::default(), |sum, one| sum.plus(&one));
        let sample = match is_latency {
            true => Sample::of_latency(&output, &network),
            false => Sample::of_traffic(&output, case.traffic.word(), &network),
        };
        let sample = sample.map(|sample| Sample { tcp, ..sample });
        Ok(sample.map_err(|why| format!("unexpected output: {why}")))
    }

    /// What pretended hosts have sent over TCP, if the link uses it.
    fn tcp_segments(&self) -> Result<Option<TcpSegments>, Failure> {
        match &self.place {
            Place::Pretended(hosts) if self.options.is_over_tcp() => hosts.tcp_segments().map(Some),
            _ => Ok(None),
        }
    }

    fn program(&self, case: Case) -> (crate::program::Source, Vec<String>) {
        let seconds = self.seconds.to_string();
        match case.traffic {
            Traffic::Latency => (MEASURE, vec!["latency".into(), seconds, case.bytes.to_string()]),
            _ => {
                let numbers =
                    [self.options.hosts, case.outstanding, case.bytes].map(|number| number.to_string());
                (CONGESTION, [vec![case.traffic.word().into(), seconds], numbers.into()].concat())
            }
        }
    }

    /// A directory of a job. Pretended hosts see it.
    fn directory_of_job(&self) -> Result<TempDir, Failure> {
        let within: PathBuf = self.scratch.path().into();
        TempDir::with_prefix_in("job-", &within).map_err(Failure::system(within.display().to_string()))
    }
}

/// Finds the MPI and the plug-in, and compiles the programs.
fn prepare(mpich: &MpichOption, scratch: &Path) -> Result<ContenderSet, Failure> {
    let set = ContenderSet::prepare(mpich, &[WEIR], &[CONGESTION, MEASURE], scratch)?;
    match set.missing.first() {
        Some((_, why)) => Err(Failure::Measurement(why.clone())),
        None => Ok(set),
    }
}
