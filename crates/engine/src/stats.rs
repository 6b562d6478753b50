//! Counter pages: one small file for each endpoint, so that others can report on it while it runs and after it was
//! killed. A page says whose it is, and has the endpoint's memory, backlog, stalls, held credits, loans and counters.
//!
//! An endpoint maps its file and stores into it while it works ([`Writer`]). `weir run` reads the directory afterwards,
//! `weir explain` and other endpoints of the job meanwhile ([`read_dir`]). The file is a [`CounterPage`]. Its metadata
//! (`metadata`) is known from the start. Its counters change: the words of `word`, then [`Counters::values`].
//!
//! Others read while the endpoint stores, so one read may mix the words of two updates. A reader trusts nothing:
//! [`Reports::skipped`] names files that are foreign, torn or of another version.

mod scheme_word;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::job::Ranks;
use crate::loans::{Lending, Loan};
use crate::operation_times::{self, OperationClass, OperationSums, Operations};
use crate::process_rank::own_rank;
use crate::stalls::{HeldCredits, Stall};
use scheme_word::{scheme_id, scheme_of};
use weir_link::NetworkReport;
use weir_link::counter_page::{CounterPage, CounterSnapshot};
use weir_proto::{Counters, Scheme};

/// Indices into the metadata.
mod metadata {
    /// Rank, or [`super::UNKNOWN`].
    pub const RANK: usize = 0;
    pub const PID: usize = 1;
    /// The time when the endpoint was opened. Unit: ns since 1970.
    pub const STARTED: usize = 2;
    /// See [`super::scheme_id`].
    pub const SCHEME: usize = 3;
    /// See [`weir_link::Address::identity`].
    pub const IDENTITY: usize = 4;
    pub const COUNT: usize = 5;
}

/// Indices into the counters.
mod word {
    /// 1 once the endpoint was closed in good order.
    pub const CLOSED: usize = 0;
    pub const MAILBOX_BYTES: usize = 1;
    pub const PEERS: usize = 2;
    /// The time when the endpoint last updated the page. Unit: ns since 1970.
    pub const POLLED: usize = 3;
    pub const BACKLOG: usize = 4;
    pub const UNEXPECTED_MESSAGES: usize = 5;
    pub const UNEXPECTED_BYTES: usize = 6;
    pub const PEER_STATE_BYTES: usize = 7;
    pub const PEAK_MAILBOX_BYTES: usize = 8;
    /// Peers for whose credit or link something waits, including those that have no entry below.
    pub const STALLED_PEERS: usize = 9;
    /// Ranks of the job on this node. 0: not known.
    pub const NODE_RANKS: usize = 10;
    /// Ranks of the job. 0: not known.
    pub const JOB_RANKS: usize = 11;
    /// Entries of [`super::Stall`]; unused ones start with 0.
    pub const STALLS: usize = 12;
    /// Entries of [`super::HeldCredits`]; unused ones start with 0.
    pub const HELD_CREDITS: usize = STALLS + super::MAX_STALLS * super::Stall::WORDS;
    /// [`super::Lending`]; 0 without a scheme that lends.
    pub const LENDING: usize = HELD_CREDITS + super::MAX_HELD_CREDITS * super::HeldCredits::WORDS;
    /// Entries of [`super::Loan`]; unused ones start with 0.
    pub const LOANS: usize = LENDING + super::Lending::WORDS;
    /// 1 if the endpoint has links over networks, then [`super::NetworkReport::values`].
    pub const NETWORK: usize = LOANS + super::MAX_LOANS * super::Loan::WORDS;
    /// Sums of collective operations, of one class after the other.
    pub const OPERATIONS: usize = NETWORK + 1 + super::NetworkReport::COUNT;
    /// First of [`super::Counters::values`].
    pub const COUNTERS: usize = OPERATIONS + super::OperationClass::COUNT * super::OperationSums::WORDS;
}

/// Changes with the meaning or number of words.
pub const VERSION: u64 = 16;
/// Most stalls in a page; the oldest are stored.
pub(crate) const MAX_STALLS: usize = 8;
/// Most senders with held credits in a page; those with most are stored.
pub(crate) const MAX_HELD_CREDITS: usize = 32;
/// Most senders with loans in a page: those that wait first, then those that hold most.
pub(crate) const MAX_LOANS: usize = 32;
/// A rank that is not known.
const UNKNOWN: u64 = u64::MAX;
const EXTENSION: &str = "weir";
const WORDS: usize = word::COUNTERS + Counters::NAMES.len();
/// Longest file that is read. Unit: bytes.
const MAX_FILE_BYTES: u64 = 1 << 16;

/// The content of a page besides the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Shared memory that the mailbox occupies. Unit: bytes.
    pub mailbox_bytes: u64,
    /// Peak of `mailbox_bytes`, as far as it was measured. Unit: bytes.
    pub peak_mailbox_bytes: u64,
    /// Peers that were contacted.
    pub peers: u64,
    /// Messages and packets that wait to be sent.
    pub backlog: u64,
    /// Unexpected messages now.
    pub unexpected_messages: u64,
    /// Their payload. Unit: bytes.
    pub unexpected_bytes: u64,
    /// Memory of the state for peers. Unit: bytes.
    pub peer_state_bytes: u64,
    /// Ranks of the job on this node, and in all, as far as the endpoint knows.
    pub ranks: Ranks,
    /// Its collective operations.
    pub operations: Operations,
    /// Peers for whose credit or link something waits, the longest wait first.
    pub stalls: Vec<Stall>,
    /// Senders from whom credits are held back, the most first.
    pub held_credits: Vec<HeldCredits>,
    /// What the endpoint can lend, with credits on demand.
    pub lending: Option<Lending>,
    /// What senders have and want, in the order of their turns.
    pub loans: Vec<Loan>,
    /// What its links over networks have done, if it has any.
    pub network: Option<NetworkReport>,
}

/// The mapped file of one endpoint. Dropping it without [`Writer::close`] leaves the endpoint marked as not closed, as
/// a crash does.
#[derive(Debug)]
pub struct Writer {
    page: CounterPage,
    path: PathBuf,
    pid: u32,
}

impl Writer {
    /// Creates the file of a new endpoint in `directory`, as `rank-<rank or pid>-<pid>-<serial>.weir`.
    ///
    /// # Errors
    /// Those of creating and mapping a file.
    pub fn create(directory: &Path, scheme: Scheme, identity: u64) -> io::Result<Writer> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let (rank, pid, started_ns) = rank_pid_time();
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("rank-{}-{pid}-{serial}.{EXTENSION}", rank.unwrap_or(pid)));
        let mut facts = [0; metadata::COUNT];
        facts[metadata::RANK] = rank.unwrap_or(UNKNOWN);
        facts[metadata::PID] = pid;
        facts[metadata::STARTED] = started_ns;
        facts[metadata::SCHEME] = scheme_id(scheme);
        facts[metadata::IDENTITY] = identity;
        let page = CounterPage::create(&path, VERSION, &facts, WORDS)?;
        Ok(Writer { page, path, pid: pid as u32 })
    }

    /// Stores the present values: some thousand plain stores. A forked process leaves the file of its parent
    /// alone.
    pub fn update(&self, counters: &Counters, state: &State) {
        if std::process::id() != self.pid {
            return;
        }
        self.page.store(word::MAILBOX_BYTES, state.mailbox_bytes);
        self.page.store(word::PEAK_MAILBOX_BYTES, state.peak_mailbox_bytes);
        self.page.store(word::PEERS, state.peers);
        self.page.store(word::POLLED, now_ns());
        self.page.store(word::BACKLOG, state.backlog);
        self.page.store(word::UNEXPECTED_MESSAGES, state.unexpected_messages);
        self.page.store(word::UNEXPECTED_BYTES, state.unexpected_bytes);
        self.page.store(word::PEER_STATE_BYTES, state.peer_state_bytes);
        self.page.store(word::NODE_RANKS, state.ranks.node.into());
        self.page.store(word::JOB_RANKS, state.ranks.job.into());
        self.page.store(word::STALLED_PEERS, state.stalls.len() as u64);
        let stalls = state.stalls.iter().map(Stall::words).chain(std::iter::repeat([0; Stall::WORDS]));
        let held_credits = state
            .held_credits
            .iter()
            .map(HeldCredits::words)
            .chain(std::iter::repeat([0; HeldCredits::WORDS]));
        let loans = state.loans.iter().map(Loan::words).chain(std::iter::repeat([0; Loan::WORDS]));
        let entries = stalls
            .take(MAX_STALLS)
            .flatten()
            .chain(held_credits.take(MAX_HELD_CREDITS).flatten())
            .chain(state.lending.unwrap_or_default().values())
            .chain(loans.take(MAX_LOANS).flatten())
            .chain([u64::from(state.network.is_some())])
            .chain(state.network.unwrap_or_default().values())
            .chain(operation_times::to_words(&state.operations));
        for (index, value) in (word::STALLS..).zip(entries) {
            self.page.store(index, value);
        }
        for (index, value) in (word::COUNTERS..).zip(counters.values()) {
            self.page.store(index, value);
        }
    }

    /// Stores the final values, and that the endpoint was closed in good order.
    pub fn close(self, counters: &Counters, state: &State) {
        self.update(counters, state);
        if std::process::id() == self.pid {
            self.page.store(word::CLOSED, 1);
        }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The page of one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointReport {
    /// Its file.
    pub path: PathBuf,
    /// The host that has sent it. `None`: this host, or one that shares the directory.
    pub host: Option<String>,
    /// Rank in the MPI job, if the launcher had set it.
    pub rank: Option<u64>,
    /// Its process.
    pub pid: u64,
    /// The time when it was opened. Unit: ns since 1970.
    pub started_ns: u64,
    /// Whether it was closed in good order.
    pub closed: bool,
    /// Its flow-control scheme; `None` if this version does not know it.
    pub scheme: Option<Scheme>,
    /// Shared memory that its mailbox occupied at the last update. Unit: bytes.
    pub mailbox_bytes: u64,
    /// Peak of `mailbox_bytes`, as far as it was measured. Unit: bytes.
    pub peak_mailbox_bytes: u64,
    /// Peers that it had contacted.
    pub peers: u64,
    /// Its identity: see [`weir_link::Address::identity`].
    pub identity: u64,
    /// The time when it last updated the page. Unit: ns since 1970.
    pub polled_ns: u64,
    /// Messages and packets that waited to be sent then.
    pub backlog: u64,
    /// Unexpected messages then.
    pub unexpected_messages: u64,
    /// Their payload. Unit: bytes.
    pub unexpected_bytes: u64,
    /// Memory of its state for peers. Unit: bytes.
    pub peer_state_bytes: u64,
    /// Ranks of its job on its node, and in all, as far as it knew then.
    pub ranks: Ranks,
    /// Its collective operations.
    pub operations: Operations,
    /// Peers for whose credit or link something waited then.
    pub stalled_peers: u64,
    /// The longest of those waits.
    pub stalls: Vec<Stall>,
    /// Senders from whom most credits were held back.
    pub held_credits: Vec<HeldCredits>,
    /// What it could lend, with credits on demand.
    pub lending: Option<Lending>,
    /// What senders had and wanted then: those that waited first.
    pub loans: Vec<Loan>,
    /// What its links over networks had done, if it had any.
    pub network: Option<NetworkReport>,
    /// Its counters.
    pub counters: Counters,
}

/// A file that was not read, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The file.
    pub path: PathBuf,
    /// The reason why it was not read.
    pub why: String,
}

/// The content of a directory of pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// Endpoints, by rank, then process, then time.
    pub endpoints: Vec<EndpointReport>,
    /// Files that are no pages of this version.
    pub skipped: Vec<Skipped>,
}

/// Reads the pages in `directory`.
///
/// # Errors
/// Only if the directory itself cannot be listed. Files that cannot be read are reported as skipped.
pub fn read_dir(directory: &Path) -> io::Result<Reports> {
    let mut reports = Reports::default();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        match read_file(&path) {
            Ok(report) => reports.endpoints.push(report),
            Err(why) => reports.skipped.push(Skipped { path, why }),
        }
    }
    reports.endpoints.sort_by(|one, other| {
        let key = |report: &EndpointReport| (report.rank.unwrap_or(UNKNOWN), report.pid, report.started_ns);
        key(one).cmp(&key(other)).then_with(|| one.path.cmp(&other.path))
    });
    reports.skipped.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(reports)
}

fn read_file(path: &Path) -> Result<EndpointReport, String> {
    if path.extension().is_none_or(|extension| extension != EXTENSION) {
        return Err(format!("its name does not end in .{EXTENSION}"));
    }
    // The length is checked first: a foreign file may be large, or a pipe that never ends.
    let about = std::fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err(String::from("it is not a regular file"));
    }
    if about.len() > MAX_FILE_BYTES {
        return Err(format!("it has {} bytes; a counter page has at most {MAX_FILE_BYTES}", about.len()));
    }
    let page = CounterSnapshot::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => String::from("it is no complete counter page of weir"),
        _ => error.to_string(),
    })?;
    decode(path, &page)
}

fn decode(path: &Path, page: &CounterSnapshot) -> Result<EndpointReport, String> {
    if page.version != VERSION {
        return Err(format!("it has version {}; this weir reads version {VERSION}", page.version));
    }
    let lengths = || {
        let (facts, words) = (page.metadata.len(), page.counters.len());
        format!("it has {facts} + {words} words instead of {} + {WORDS}", metadata::COUNT)
    };
    let facts: [u64; metadata::COUNT] = page.metadata.as_slice().try_into().map_err(|_| lengths())?;
    let words: [u64; WORDS] = page.counters.as_slice().try_into().map_err(|_| lengths())?;
    let mut values = [0; Counters::NAMES.len()];
    values.copy_from_slice(&words[word::COUNTERS..]);
    Ok(EndpointReport {
        path: path.to_owned(),
        host: None,
        rank: Some(facts[metadata::RANK]).filter(|&rank| rank != UNKNOWN),
        pid: facts[metadata::PID],
        started_ns: facts[metadata::STARTED],
        closed: words[word::CLOSED] == 1,
        scheme: scheme_of(facts[metadata::SCHEME]),
        mailbox_bytes: words[word::MAILBOX_BYTES],
        peak_mailbox_bytes: words[word::PEAK_MAILBOX_BYTES],
        peers: words[word::PEERS],
        identity: facts[metadata::IDENTITY],
        polled_ns: words[word::POLLED],
        backlog: words[word::BACKLOG],
        unexpected_messages: words[word::UNEXPECTED_MESSAGES],
        unexpected_bytes: words[word::UNEXPECTED_BYTES],
        peer_state_bytes: words[word::PEER_STATE_BYTES],
        ranks: Ranks { node: words[word::NODE_RANKS] as u32, job: words[word::JOB_RANKS] as u32 },
        operations: operation_times::from_words(&words[word::OPERATIONS..word::COUNTERS]),
        stalled_peers: words[word::STALLED_PEERS],
        stalls: entries(&words[word::STALLS..word::HELD_CREDITS]).map(Stall::from_words).collect(),
        held_credits: entries(&words[word::HELD_CREDITS..word::LENDING])
            .map(HeldCredits::from_words)
            .collect(),
        lending: words[word::LENDING..].first_chunk().copied().and_then(Lending::from_words),
        loans: entries(&words[word::LOANS..word::NETWORK]).map(Loan::from_words).collect(),
        network: words[word::NETWORK + 1..]
            .first_chunk()
            .filter(|_| words[word::NETWORK] == 1)
            .map(|&values| NetworkReport::from_values(values)),
        counters: Counters::from_values(values),
    })
}

/// The used entries: their first word, an identity, is not 0.
fn entries<const N: usize>(words: &[u64]) -> impl Iterator<Item = [u64; N]> {
    words.as_chunks::<N>().0.iter().copied().filter(|entry| entry[0] != 0)
}

/// Rank and process of this endpoint, and the time.
pub(crate) fn rank_pid_time() -> (Option<u64>, u64, u64) {
    (own_rank(), u64::from(std::process::id()), now_ns())
}

/// The time. Unit: ns since 1970.
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
pub(crate) mod tests;
