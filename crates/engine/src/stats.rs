//! Counters on disk: one small file per endpoint, so that `weir run` can report also on ranks that were killed.
//!
//! An endpoint keeps its file mapped and stores into it while it works ([`Writer`]); whoever started the job reads the
//! directory afterwards ([`read_dir`]). The file is a [`CounterPage`]: what is known from the beginning is its
//! metadata (`metadata`), what changes are its counters: the words of `word`, then [`Counters::values`]. A reader
//! trusts nothing: a file that is foreign, torn or of another version is named in [`Reports::skipped`].

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use weir_link::page::{Counted, CounterPage};
use weir_proto::{Counters, Scheme};

/// Places in the metadata.
mod metadata {
    /// Rank, or [`super::UNKNOWN`].
    pub const RANK: usize = 0;
    pub const PID: usize = 1;
    /// When the endpoint was made. Unit: ns since 1970.
    pub const STARTED: usize = 2;
    /// See [`super::scheme_id`].
    pub const SCHEME: usize = 3;
    pub const COUNT: usize = 4;
}

/// Places among the counters.
mod word {
    /// 1 once the endpoint was closed in good order.
    pub const CLOSED: usize = 0;
    pub const MAILBOX_BYTES: usize = 1;
    pub const PEERS: usize = 2;
    /// First of [`super::Counters::values`].
    pub const COUNTERS: usize = 3;
}

/// Changes with the meaning or number of words.
const VERSION: u64 = 1;
/// For a rank that is not known.
const UNKNOWN: u64 = u64::MAX;
const EXTENSION: &str = "weir";
const WORDS: usize = word::COUNTERS + Counters::NAMES.len();
/// Bound on the length of a file that is looked at. Unit: bytes.
const MAX_FILE_BYTES: u64 = 1 << 16;

/// What an endpoint tells besides its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Shared memory that the mailbox occupies. Unit: bytes.
    pub mailbox_bytes: u64,
    /// Peers that have been in contact.
    pub peers: u64,
}

/// The file of one endpoint, mapped. Dropping it without [`Writer::close`] leaves the endpoint marked as not closed, as
/// a crash does.
#[derive(Debug)]
pub struct Writer {
    page: CounterPage,
    path: PathBuf,
    pid: u32,
}

impl Writer {
    /// Makes the file of a new endpoint in `directory`, as `rank-<rank or pid>-<pid>-<serial>.weir`.
    ///
    /// # Errors
    /// Those of making and mapping a file.
    pub fn create(directory: &Path, scheme: Scheme) -> io::Result<Writer> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id();
        let rank = rank_from(|variable| std::env::var(variable).ok());
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let path =
            directory.join(format!("rank-{}-{pid}-{serial}.{EXTENSION}", rank.unwrap_or(u64::from(pid))));
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let mut facts = [0; metadata::COUNT];
        facts[metadata::RANK] = rank.unwrap_or(UNKNOWN);
        facts[metadata::PID] = u64::from(pid);
        facts[metadata::STARTED] = started;
        facts[metadata::SCHEME] = scheme_id(scheme);
        let page = CounterPage::create(&path, VERSION, &facts, WORDS)?;
        Ok(Writer { page, path, pid })
    }

    /// Stores the present totals: some thirty plain stores. A process forked from the endpoint's leaves the file alone.
    pub fn update(&self, counters: &Counters, state: State) {
        if std::process::id() != self.pid {
            return;
        }
        self.page.store(word::MAILBOX_BYTES, state.mailbox_bytes);
        self.page.store(word::PEERS, state.peers);
        for (index, value) in (word::COUNTERS..).zip(counters.values()) {
            self.page.store(index, value);
        }
    }

    /// Stores the final totals, and that the endpoint was closed in good order.
    pub fn close(self, counters: &Counters, state: State) {
        self.update(counters, state);
        if std::process::id() == self.pid {
            self.page.store(word::CLOSED, 1);
        }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// What one endpoint has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointReport {
    /// Its file.
    pub path: PathBuf,
    /// Rank in the MPI job, if the launcher had told it.
    pub rank: Option<u64>,
    /// Its process.
    pub pid: u64,
    /// When it was made. Unit: ns since 1970.
    pub started_ns: u64,
    /// Whether it was closed in good order.
    pub closed: bool,
    /// Its flow-control scheme; `None` if this version does not know it.
    pub scheme: Option<Scheme>,
    /// Shared memory that its mailbox occupied when last told. Unit: bytes.
    pub mailbox_bytes: u64,
    /// Peers it was in contact with.
    pub peers: u64,
    /// Its counters.
    pub counters: Counters,
}

/// A file that was not read, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The file.
    pub path: PathBuf,
    /// Why it was not read.
    pub why: String,
}

/// The content of a directory of counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// Endpoints, by rank, then process, then time.
    pub endpoints: Vec<EndpointReport>,
    /// Files that are none of an endpoint of this version.
    pub skipped: Vec<Skipped>,
}

/// Reads what endpoints have left in `directory`.
///
/// # Errors
/// Only if the directory itself cannot be listed; files that cannot be read are reported as skipped.
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
    // The length is looked at first: a foreign file may be large, or a pipe that never ends.
    let about = std::fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err(String::from("it is no regular file"));
    }
    if about.len() > MAX_FILE_BYTES {
        return Err(format!("it has {} bytes, too many for counters", about.len()));
    }
    let page = Counted::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => {
            String::from("it is no page of counters (torn while being made, or foreign)")
        }
        _ => error.to_string(),
    })?;
    decode(path, &page)
}

fn decode(path: &Path, page: &Counted) -> Result<EndpointReport, String> {
    if page.version != VERSION {
        return Err(format!("it is of version {}, this weir reads {VERSION}", page.version));
    }
    let lengths = || {
        let (facts, words) = (page.metadata.len(), page.counters.len());
        format!("it has {facts} and {words} words, {} and {WORDS} are expected", metadata::COUNT)
    };
    let facts: [u64; metadata::COUNT] = page.metadata.as_slice().try_into().map_err(|_| lengths())?;
    let words: [u64; WORDS] = page.counters.as_slice().try_into().map_err(|_| lengths())?;
    let mut values = [0; Counters::NAMES.len()];
    values.copy_from_slice(&words[word::COUNTERS..]);
    Ok(EndpointReport {
        path: path.to_owned(),
        rank: Some(facts[metadata::RANK]).filter(|&rank| rank != UNKNOWN),
        pid: facts[metadata::PID],
        started_ns: facts[metadata::STARTED],
        closed: words[word::CLOSED] == 1,
        scheme: scheme_of(facts[metadata::SCHEME]),
        mailbox_bytes: words[word::MAILBOX_BYTES],
        peers: words[word::PEERS],
        counters: Counters::from_values(values),
    })
}

/// The rank that a launcher has given this process: MPICH's and Intel's hydra, Open MPI's, and any that speaks PMIx.
fn rank_from(lookup: impl Fn(&str) -> Option<String>) -> Option<u64> {
    ["PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"]
        .iter()
        .find_map(|variable| lookup(variable)?.parse().ok())
}

fn scheme_id(scheme: Scheme) -> u64 {
    match scheme {
        Scheme::Unlimited => 0,
        Scheme::Static { piggyback: false } => 1,
        Scheme::Static { piggyback: true } => 2,
        Scheme::Dynamic { piggyback: false } => 3,
        Scheme::Dynamic { piggyback: true } => 4,
    }
}

fn scheme_of(id: u64) -> Option<Scheme> {
    let both = [false, true].into_iter();
    let with_credits =
        both.flat_map(|piggyback| [Scheme::Static { piggyback }, Scheme::Dynamic { piggyback }]);
    with_credits.chain([Scheme::Unlimited]).find(|&scheme| scheme_id(scheme) == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: State = State { mailbox_bytes: 16384, peers: 3 };

    fn some_counters() -> Counters {
        let mut values = [0; Counters::NAMES.len()];
        for (value, number) in values.iter_mut().zip(100..) {
            *value = number;
        }
        Counters::from_values(values)
    }

    #[test]
    fn what_was_written_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let scheme = Scheme::Static { piggyback: true };
        let writer = Writer::create(directory.path(), scheme).unwrap();
        writer.update(&some_counters(), STATE);
        let reports = read_dir(directory.path()).unwrap();
        assert_eq!(reports.skipped, []);
        let [report] = reports.endpoints.as_slice() else { panic!("{reports:?}") };
        assert_eq!(report.counters, some_counters());
        assert_eq!((report.mailbox_bytes, report.peers), (16384, 3));
        assert_eq!(report.scheme, Some(scheme));
        assert_eq!(report.pid, u64::from(std::process::id()));
        assert!(report.started_ns > 1_600_000_000_000_000_000);
        assert!(!report.closed);
    }

    #[test]
    fn closing_is_seen_and_dropping_is_not_closing() {
        let directory = tempfile::tempdir().unwrap();
        let closed = Writer::create(directory.path(), Scheme::Unlimited).unwrap();
        let dropped = Writer::create(directory.path(), Scheme::Unlimited).unwrap();
        let closed_path = closed.path().to_owned();
        closed.close(&some_counters(), STATE);
        drop(dropped);
        let reports = read_dir(directory.path()).unwrap();
        assert_eq!(reports.endpoints.len(), 2);
        for report in reports.endpoints {
            assert_eq!(report.closed, report.path == closed_path);
        }
    }

    #[test]
    fn torn_and_foreign_files_are_named_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let good = Writer::create(directory.path(), Scheme::Unlimited).unwrap();
        let bytes = std::fs::read(good.path()).unwrap();
        let at = |name: &str| directory.path().join(name);
        let put = |name: &str, bytes: &[u8]| std::fs::write(at(name), bytes).unwrap();
        put("a.txt", b"hello");
        put("b.weir", &bytes[..20]);
        put("c.weir", &vec![0; bytes.len()]);
        CounterPage::create(&at("d.weir"), VERSION + 1, &[0; metadata::COUNT], WORDS).unwrap();
        std::fs::create_dir(at("e.weir")).unwrap();
        CounterPage::create(&at("f.weir"), VERSION, &[0; metadata::COUNT], WORDS - 1).unwrap();
        put("g.weir", &[bytes.clone(), vec![0; 1 << 16]].concat());
        let reports = read_dir(directory.path()).unwrap();
        assert_eq!(reports.endpoints.len(), 1);
        let why: Vec<_> = reports.skipped.iter().map(|skipped| skipped.why.as_str()).collect();
        let no_page = "it is no page of counters (torn while being made, or foreign)";
        assert_eq!(
            why,
            [
                "its name does not end in .weir",
                no_page,
                no_page,
                "it is of version 2, this weir reads 1",
                "it is no regular file",
                &format!("it has 4 and {} words, 4 and {WORDS} are expected", WORDS - 1),
                &format!("it has {} bytes, too many for counters", bytes.len() + (1 << 16)),
            ]
        );
    }

    #[test]
    fn the_rank_comes_from_whichever_launcher_it_was() {
        let from = |variable: &'static str, value: &'static str| {
            rank_from(move |asked| (asked == variable).then(|| value.to_owned()))
        };
        assert_eq!(from("PMI_RANK", "3"), Some(3));
        assert_eq!(from("OMPI_COMM_WORLD_RANK", "4"), Some(4));
        assert_eq!(from("PMIX_RANK", "0"), Some(0));
        assert_eq!(from("PMI_RANK", "none"), None);
        assert_eq!(from("RANK", "1"), None);
    }

    #[test]
    fn scheme_numbers_are_read_back() {
        for id in 0..5 {
            assert_eq!(scheme_of(id).map(scheme_id), Some(id));
        }
        assert_eq!(scheme_of(5), None);
    }
}
