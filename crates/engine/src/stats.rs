//! Counters on disk: one small file per endpoint, so that `weir run` can report also on ranks that were killed.
//!
//! An endpoint writes its file while it works ([`Writer`]); whoever started the job reads the directory afterwards
//! ([`read_dir`]). The file is a row of 64-bit words in native byte order: the words of [`word`], then
//! [`Counters::values`]. What a writer has stored is in the page cache and survives its process, however that ends.
//! A reader trusts nothing: a file that is foreign, short or of another version is named in [`Reports::skipped`].

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use weir_proto::{Counters, Scheme};

/// Places of the words before the counters.
mod word {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 1;
    /// Rank, or [`super::UNKNOWN`].
    pub const RANK: usize = 2;
    pub const PID: usize = 3;
    /// When the endpoint was made. Unit: ns since 1970.
    pub const STARTED: usize = 4;
    /// 1 once the endpoint was closed in good order.
    pub const CLOSED: usize = 5;
    /// See [`super::scheme_id`].
    pub const SCHEME: usize = 6;
    pub const MAILBOX_BYTES: usize = 7;
    pub const PEERS: usize = 8;
    /// First counter.
    pub const COUNTERS: usize = 9;
}

/// "weirstat" in ASCII, most significant byte first.
const MAGIC: u64 = 0x7765_6972_7374_6174;
/// Changes with the meaning or number of words.
const VERSION: u64 = 1;
/// For a rank that is not known.
const UNKNOWN: u64 = u64::MAX;
const EXTENSION: &str = "weir";
const WORDS: usize = word::COUNTERS + Counters::NAMES.len();
const FILE_BYTES: usize = WORDS * 8;

/// What an endpoint tells besides its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Shared memory that the mailbox occupies. Unit: bytes.
    pub mailbox_bytes: u64,
    /// Peers that have been in contact.
    pub peers: u64,
}

/// The file of one endpoint, open for writing. Dropping it without [`Writer::close`] leaves the endpoint marked as not
/// closed, as a crash does.
#[derive(Debug)]
pub struct Writer {
    file: File,
    path: PathBuf,
    pid: u32,
}

impl Writer {
    /// Makes the file of a new endpoint in `directory`, as `rank-<rank or pid>-<pid>-<serial>.weir`.
    ///
    /// # Errors
    /// Those of making and writing a file.
    pub fn create(directory: &Path, scheme: Scheme) -> io::Result<Writer> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id();
        let rank = rank_from(|variable| std::env::var(variable).ok());
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("rank-{}-{pid}-{serial}.{EXTENSION}", rank.unwrap_or(u64::from(pid)));
        let path = directory.join(name);
        let file = File::options().write(true).create(true).truncate(true).open(&path)?;
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let mut words = [0; WORDS];
        words[word::MAGIC] = MAGIC;
        words[word::VERSION] = VERSION;
        words[word::RANK] = rank.unwrap_or(UNKNOWN);
        words[word::PID] = u64::from(pid);
        words[word::STARTED] = started;
        words[word::SCHEME] = scheme_id(scheme);
        let writer = Writer { file, path, pid };
        writer.store(0, &words)?;
        Ok(writer)
    }

    /// Stores the present totals: one system call, so call it now and then, not for every message.
    /// A process forked from the endpoint's leaves the file alone.
    ///
    /// # Errors
    /// Those of writing a file.
    pub fn update(&self, counters: &Counters, state: State) -> io::Result<()> {
        if std::process::id() != self.pid {
            return Ok(());
        }
        let mut words = [0; WORDS - word::MAILBOX_BYTES];
        words[0] = state.mailbox_bytes;
        words[word::PEERS - word::MAILBOX_BYTES] = state.peers;
        words[word::COUNTERS - word::MAILBOX_BYTES..].copy_from_slice(&counters.values());
        self.store(word::MAILBOX_BYTES, &words)
    }

    /// Stores the final totals, and that the endpoint was closed in good order.
    ///
    /// # Errors
    /// Those of writing a file.
    pub fn close(self, counters: &Counters, state: State) -> io::Result<()> {
        if std::process::id() != self.pid {
            return Ok(());
        }
        self.update(counters, state)?;
        self.store(word::CLOSED, &[1])
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn store(&self, first_word: usize, words: &[u64]) -> io::Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.file.write_all_at(&bytes, first_word as u64 * 8)
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
    let metadata = std::fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err(String::from("it is no regular file"));
    }
    // A mapped page is rounded up by its writer; more than a few pages is something else.
    if metadata.len() < FILE_BYTES as u64 || metadata.len() > 1 << 16 {
        return Err(format!("it has {} bytes, {FILE_BYTES} are expected", metadata.len()));
    }
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let mut words = [0; WORDS];
    if bytes.len() < FILE_BYTES {
        return Err(format!("it has {} bytes, {FILE_BYTES} are expected", bytes.len()));
    }
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().expect("chunks of 8 bytes"));
    }
    decode(path, words)
}

fn decode(path: &Path, words: [u64; WORDS]) -> Result<EndpointReport, String> {
    if words[word::MAGIC] != MAGIC {
        return Err(String::from(
            "it does not begin as a counter file does (torn while being made, or foreign)",
        ));
    }
    if words[word::VERSION] != VERSION {
        return Err(format!("it is of version {}, this weir reads {VERSION}", words[word::VERSION]));
    }
    let mut values = [0; Counters::NAMES.len()];
    values.copy_from_slice(&words[word::COUNTERS..]);
    Ok(EndpointReport {
        path: path.to_owned(),
        rank: Some(words[word::RANK]).filter(|&rank| rank != UNKNOWN),
        pid: words[word::PID],
        started_ns: words[word::STARTED],
        closed: words[word::CLOSED] == 1,
        scheme: scheme_of(words[word::SCHEME]),
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
    }
}

fn scheme_of(id: u64) -> Option<Scheme> {
    [Scheme::Unlimited, Scheme::Static { piggyback: false }, Scheme::Static { piggyback: true }]
        .into_iter()
        .find(|&scheme| scheme_id(scheme) == id)
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
        writer.update(&some_counters(), STATE).unwrap();
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
        closed.close(&some_counters(), STATE).unwrap();
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
        let put = |name: &str, bytes: &[u8]| std::fs::write(directory.path().join(name), bytes).unwrap();
        put("a.txt", b"hello");
        put("b.weir", &bytes[..20]);
        put("c.weir", &vec![0; FILE_BYTES]);
        let mut newer = bytes.clone();
        newer[8] = 9;
        put("d.weir", &newer);
        std::fs::create_dir(directory.path().join("e.weir")).unwrap();
        put("f.weir", &[bytes.clone(), vec![0; 4096 - bytes.len()]].concat()); // a whole page: fine
        let reports = read_dir(directory.path()).unwrap();
        assert_eq!(reports.endpoints.len(), 2);
        let why: Vec<_> = reports.skipped.iter().map(|skipped| skipped.why.as_str()).collect();
        assert_eq!(
            why,
            [
                "its name does not end in .weir",
                &format!("it has 20 bytes, {FILE_BYTES} are expected"),
                "it does not begin as a counter file does (torn while being made, or foreign)",
                "it is of version 9, this weir reads 1",
                "it is no regular file",
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
        for id in 0..3 {
            assert_eq!(scheme_of(id).map(scheme_id), Some(id));
        }
        assert_eq!(scheme_of(3), None);
    }
}
