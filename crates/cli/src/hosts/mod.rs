//! Jobs across hosts: the other side of `weir run --hosts` ([`helper`]), and what a command does with it ([`JobHosts`]).
//!
//! The remote shell of the MPI's launcher starts one helper on each host before the program, and the connection lasts as
//! long as the run. The helper makes the directory of the run at the same path, so that all ranks have one environment.
//! After the program it sends the counters and traces of its ranks. A directory that hosts share is read once. If a helper was
//! killed meanwhile, another one takes over its directory, sends what is there and removes it.

mod collected;
pub mod helper;
pub mod look;

pub use collected::Collected;

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_engine::stats;
use weir_mpi::hosts::Share;
use weir_mpi::remote::{Answer, Begun, Greeting, Helper, Request, TOKEN};
use weir_output::Failure;

/// Time that a helper has to make directories.
const BEGIN: Duration = Duration::from_secs(30);
/// Time that a helper has to send the files of its ranks.
const GATHER: Duration = Duration::from_secs(120);
/// The file in the directory of a run that says on which other hosts it has counters. `weir explain` reads it.
pub const FILE: &str = "hosts.json";

/// Where the counters of a run are, besides this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// The remote shell.
    pub remote_shell: String,
    /// Hosts with counters of their own.
    pub hosts: Vec<String>,
    /// The directory of the counters on each of them.
    pub stats: PathBuf,
}

/// A host of a job, with its helper.
#[derive(Debug)]
struct JobHost {
    helper: Helper,
    shares_stats: bool,
    shares_traces: bool,
    /// It has made the directory of the run.
    is_maker: bool,
}

/// The hosts of a job. Dropping it ends the helpers, which remove their directories.
#[derive(Debug)]
pub struct JobHosts {
    hosts: Vec<JobHost>,
    remote_shell: String,
    /// What a helper is asked that replaces a killed one.
    adopt: Request,
}

/// The files of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunDirectories<'a> {
    /// Of the run.
    pub run: &'a Path,
    /// Of the counters.
    pub stats: &'a Path,
    /// Of the traces.
    pub traces: Option<&'a Path>,
    /// Of the mailboxes.
    pub shm: &'a Path,
    /// The plug-in.
    pub provider: &'a Path,
}

/// What this build says to helpers, and helpers to it.
pub fn own_greeting() -> Greeting {
    Greeting {
        version: String::from(env!("CARGO_PKG_VERSION")),
        formats: [weir_link::ADDRESS_VERSION.into(), weir_proto::wire::VERSION.into(), stats::VERSION],
        host: nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned(),
    }
}

/// This command, as hosts start it.
pub fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(Failure::system("the path of this command"))
}

/// A helper with what it says about itself, or a line for the user.
pub type Started = Result<(Helper, Greeting), String>;

/// Starts a helper on every host, and waits for all. In the order of `names`.
pub fn start<'a>(names: impl Iterator<Item = &'a str>, remote_shell: &str) -> Result<Vec<Started>, Failure> {
    let program = own_program()?;
    let started: Vec<_> = names.map(|name| Helper::start(remote_shell, name, &program)).collect();
    let greeted = started.into_iter().map(|started| {
        let mut helper = started?;
        let greeting = helper.greeting()?;
        Ok((helper, greeting))
    });
    Ok(greeted.collect())
}

impl JobHosts {
    /// Starts the helpers and prepares the directories.
    ///
    /// # Errors
    /// [`Failure::Host`]: a host cannot be reached, has another weir, or cannot make the directories.
    pub fn begin(
        shares: &[Share<'_>],
        remote_shell: &str,
        directories: RunDirectories<'_>,
    ) -> Result<JobHosts, Failure> {
        let advice = |error: String| {
            Failure::Host(format!(
                "{error}; `{remote_shell} HOST true` must work without a password, and weir must be at {} on every \
                 host; `weir doctor --hosts FILE` checks all hosts",
                own_program().unwrap_or_default().display()
            ))
        };
        let names = shares.iter().map(|(name, _)| *name);
        let mut helpers = Vec::new();
        for started in start(names, remote_shell)? {
            let (helper, greeting) = started.map_err(advice)?;
            let own = own_greeting();
            if (&greeting.version, greeting.formats) != (&own.version, own.formats) {
                return Err(Failure::Host(format!(
                    "{} has weir {} with formats {:?}, this host has {} with {:?}; install one version on all hosts",
                    helper.host(),
                    greeting.version,
                    greeting.formats,
                    own.version,
                    own.formats
                )));
            }
            helpers.push(helper);
        }
        let RunDirectories { run, stats, traces, shm, provider } = directories;
        let token = format!("{:032x}", token());
        let marked: Vec<PathBuf> =
            [Some(run), Some(stats), traces].into_iter().flatten().map(|it| it.join(TOKEN)).collect();
        for mark in &marked {
            std::fs::write(mark, &token).map_err(Failure::system(mark.display().to_string()))?;
        }
        let (run_directory, shm, traces) = (run.to_owned(), shm.to_owned(), traces.map(Path::to_owned));
        let stats_directory = stats.to_owned();
        let adopt = Request::Adopt {
            run: run_directory.clone(),
            stats: stats_directory.clone(),
            traces: traces.clone(),
            shm: shm.clone(),
            token: token.clone(),
        };
        let provider = provider.to_owned();
        let begin =
            Request::Begin { run: run_directory, stats: stats_directory, traces, shm, provider, token };
        let begun = begin_all(helpers, &begin);
        for mark in marked {
            let _ = std::fs::remove_file(mark);
        }
        let hosts = begun.map_err(Failure::Host)?;
        let job = JobHosts { hosts, remote_shell: remote_shell.to_owned(), adopt };
        let elsewhere = Elsewhere {
            remote_shell: remote_shell.to_owned(),
            hosts: job.hosts.iter().filter(|it| !it.shares_stats).map(|it| it.helper.host().into()).collect(),
            stats: stats.to_owned(),
        };
        if !elsewhere.hosts.is_empty() {
            let text = serde_json::to_string(&elsewhere).map_err(std::io::Error::from);
            let written = text.and_then(|text| std::fs::write(run.join(FILE), text));
            written.map_err(Failure::system(run.join(FILE).display().to_string()))?;
        }
        Ok(job)
    }

    /// What all hosts have that is not in the directories of this host, below `directory`. A host that does not answer is a
    /// remark.
    pub fn gather(&mut self, directory: &Path) -> Collected {
        let mut collected = Collected::default();
        let JobHosts { hosts, remote_shell, adopt } = self;
        let asked: Vec<_> = hosts.iter_mut().map(|host| host.helper.request(&Request::Gather)).collect();
        for (number, (host, asked)) in hosts.iter_mut().zip(asked).enumerate() {
            let name = host.helper.host().to_owned();
            let directory = directory.join(number.to_string());
            let mut answer = asked.and_then(|()| host.helper.answer(GATHER));
            if let Err(error) = &answer
                && host.is_maker
                && host.helper.has_ended()
            {
                let error = error.clone();
                answer =
                    host.replace(remote_shell, adopt).map_err(|again| format!("{error}; again: {again}"));
            }
            let taken = answer.and_then(|answer| match answer {
                Answer::Files(gathered) => collected.take(&name, &directory, &gathered),
                other => Err(format!("{name}: unexpected answer of the helper: {other:?}")),
            });
            match taken {
                Err(error) if host.shares_stats && host.shares_traces => {
                    collected.remarks.push(format!("{error}: mailboxes of this host were not looked at"));
                }
                Err(error) => {
                    collected.lacks_counters = true;
                    collected.remarks.push(format!(
                        "{error}: the counters of its ranks are missing; with FI_WEIR_STATS set to a directory that \
                         all hosts share, they need no connection"
                    ));
                }
                Ok(()) => {}
            }
        }
        collected
    }
}

impl JobHost {
    /// The helper has ended before its time. Starts another one, which sends the files that the first has left, and
    /// removes them when it ends.
    fn replace(&mut self, remote_shell: &str, adopt: &Request) -> Result<Answer, String> {
        let program = own_program().map_err(|failure| failure.to_string())?;
        let mut helper = Helper::start(remote_shell, self.helper.host(), &program)?;
        helper.greeting()?;
        helper.ask(adopt, BEGIN)?;
        self.helper = helper;
        self.helper.ask(&Request::Gather, GATHER)
    }
}

fn begin_all(helpers: Vec<Helper>, request: &Request) -> Result<Vec<JobHost>, String> {
    let mut hosts = Vec::new();
    for mut helper in helpers {
        helper.request(request)?;
        hosts.push(JobHost { helper, shares_stats: false, shares_traces: false, is_maker: false });
    }
    for host in &mut hosts {
        match host.helper.answer(BEGIN)? {
            Answer::Begun(begun) => {
                let Begun { shares_stats, shares_traces, is_maker } = begun;
                (host.shares_stats, host.shares_traces, host.is_maker) =
                    (shares_stats, shares_traces, is_maker);
            }
            other => {
                return Err(format!("{}: unexpected answer of the helper: {other:?}", host.helper.host()));
            }
        }
    }
    Ok(hosts)
}

/// A number that no other run has.
fn token() -> u128 {
    use std::hash::BuildHasher;
    // The keys of the standard library's hash tables are random.
    let half = |word: u64| u128::from(std::hash::RandomState::new().hash_one(word));
    half(1) << 64 | half(stats::now_ns())
}
