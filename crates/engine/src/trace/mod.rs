//! Traces: samples of the credits, stalls and memory of an endpoint over time, in a bounded file of its own, for the
//! page of `weir run --report`.
//!
//! The endpoint takes samples while it makes progress ([`Recorder`]), at most one in each interval. Whenever the file
//! is full, every second sample is removed and the interval doubles. So a run of a second can have a sample each
//! millisecond, and one of a day still fits. A rank outside the library takes no samples. The process that started the
//! job reads the files ([`read_dir`]), also those of killed processes.

mod record;

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::stats::{self, Skipped};
use record::Record;
pub use record::{Gauges, PairSample, Sample};

const MAGIC: [u8; 8] = *b"weirtrc1";
/// Changes with the meaning of anything in the file.
const VERSION: u64 = 3;
const EXTENSION: &str = "trace";
/// Magic, version, counters in a sample, rank, process, start, identity.
const HEADER_WORDS: usize = 7;
const UNKNOWN: u64 = u64::MAX;
/// The first interval between samples.
const FIRST_INTERVAL: Duration = Duration::from_millis(1);
/// Interval at which the process's memory is read, which costs some 20 us.
const MEMORY_INTERVAL: Duration = Duration::from_millis(5);
/// Most samples in a file.
const MAX_SAMPLES: usize = 2000;
/// Most bytes of all files of a job together, if its size is known, so that a temporary directory can hold them.
const MAX_JOB_BYTES: u64 = 256 << 20;
/// Bounds on one file, whatever the job. Unit: bytes.
const FILE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=4 << 20;

/// The endpoint that a trace describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedEndpoint {
    /// Rank in the MPI job, if the launcher had set it.
    pub rank: Option<u64>,
    /// Its process.
    pub pid: u64,
    /// The time when the endpoint was opened. Unit: ns since 1970.
    pub started_ns: u64,
    /// Its identity: see [`weir_link::Address::identity`].
    pub identity: u64,
}

/// Writes the trace of one endpoint.
#[derive(Debug)]
pub struct Recorder {
    file: File,
    path: PathBuf,
    subject: TracedEndpoint,
    started: Instant,
    max_bytes: u64,
    max_samples: usize,
    interval: Duration,
    due: Instant,
    samples: usize,
    bytes: u64,
    /// The last written sample of each pair.
    written: BTreeMap<u32, PairSample>,
    described_peers: HashSet<u32>,
    memory: Memory,
}

impl Recorder {
    /// Creates the file of a new endpoint in `directory`. `peers`: endpoints of the job, 0 if not known.
    ///
    /// # Errors
    /// Those of creating and writing a file.
    pub fn create(directory: &Path, identity: u64, peers: u32) -> io::Result<Recorder> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let (rank, pid, started_ns) = stats::rank_pid_time();
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("rank-{}-{pid}-{serial}.{EXTENSION}", rank.unwrap_or(pid)));
        let subject = TracedEndpoint { rank, pid, started_ns, identity };
        let (file, bytes) = begin_file(&path, &subject)?;
        let share = MAX_JOB_BYTES / u64::from(peers.max(1));
        let started = Instant::now();
        Ok(Recorder {
            file,
            path,
            subject,
            started,
            max_bytes: share.clamp(*FILE_BYTES.start(), *FILE_BYTES.end()),
            max_samples: MAX_SAMPLES,
            interval: FIRST_INTERVAL,
            due: started,
            samples: 0,
            bytes,
            written: BTreeMap::new(),
            described_peers: HashSet::new(),
            memory: Memory::new(),
        })
    }

    /// Whether the next sample is due.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// Memory of this process, read at most every `MEMORY_INTERVAL`. Unit: bytes.
    pub fn process_bytes(&mut self, now: Instant) -> u64 {
        self.memory.bytes(now)
    }

    /// Writes a sample taken at `now`, which has all pairs. `identity` maps their numbers to identities. A forked
    /// process leaves the file of its parent alone.
    ///
    /// # Errors
    /// Those of writing. The trace then ends before this sample.
    pub fn record(
        &mut self,
        now: Instant,
        mut sample: Sample,
        identity: impl Fn(u32) -> u64,
    ) -> io::Result<()> {
        if u64::from(std::process::id()) != self.subject.pid {
            return Ok(());
        }
        self.due = now + self.interval;
        sample.at_ns = now.saturating_duration_since(self.started).as_nanos() as u64;
        sample.pairs.retain(|number, pair| self.written.insert(*number, *pair) != Some(*pair));
        let mut bytes = Vec::new();
        for &number in sample.pairs.keys() {
            if self.described_peers.insert(number) {
                Record::Peer { number, identity: identity(number) }.encode(&mut bytes);
            }
        }
        Record::Sample(sample).encode(&mut bytes);
        // At once and in one write, so that the sample remains if the process is killed next.
        self.file.write_all(&bytes)?;
        self.bytes += bytes.len() as u64;
        self.samples += 1;
        while (self.samples > self.max_samples || self.bytes > self.max_bytes) && self.samples > 2 {
            self.downsample()?;
        }
        Ok(())
    }

    /// Removes every second sample and doubles the interval.
    fn downsample(&mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start((HEADER_WORDS * 8) as u64))?;
        self.file.read_to_end(&mut bytes)?;
        let mut rest = bytes.as_slice();
        let kept = record::downsample(std::iter::from_fn(|| Record::decode(&mut rest)).collect());
        let mut bytes = Vec::new();
        kept.iter().for_each(|record| record.encode(&mut bytes));
        let (mut file, head_bytes) = begin_file(&self.path, &self.subject)?;
        file.write_all(&bytes)?;
        self.samples = kept.iter().filter(|record| matches!(record, Record::Sample(_))).count();
        (self.file, self.bytes) = (file, head_bytes + bytes.len() as u64);
        self.interval *= 2;
        self.due += self.interval / 2;
        Ok(())
    }
}

/// Replaces the file at `path` by one that has only a header. It appears there complete.
fn begin_file(path: &Path, subject: &TracedEndpoint) -> io::Result<(File, u64)> {
    let temporary = path.with_extension("new");
    let mut options = File::options();
    let mut file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    let rank = subject.rank.unwrap_or(UNKNOWN);
    let counters = weir_proto::Counters::NAMES.len() as u64;
    let words = [VERSION, counters, rank, subject.pid, subject.started_ns, subject.identity];
    let mut bytes = MAGIC.to_vec();
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    file.write_all(&bytes)?;
    std::fs::rename(&temporary, path)?;
    Ok((file, bytes.len() as u64))
}

/// Memory of this process, read periodically.
#[derive(Debug)]
struct Memory {
    status: Option<File>,
    asked: Option<Instant>,
    bytes: u64,
}

impl Memory {
    fn new() -> Memory {
        Memory { status: File::open("/proc/self/status").ok(), asked: None, bytes: 0 }
    }

    fn bytes(&mut self, now: Instant) -> u64 {
        if self.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= MEMORY_INTERVAL) {
            self.asked = Some(now);
            let mut text = [0; 4096];
            let read = self.status.as_ref().and_then(|status| status.read_at(&mut text, 0).ok());
            self.bytes = resident_bytes(&String::from_utf8_lossy(&text[..read.unwrap_or(0)]));
        }
        self.bytes
    }
}

/// RssAnon and RssShmem in the text of `/proc/PID/status`; 0 if they are not there. Unit: bytes.
pub fn resident_bytes(status: &str) -> u64 {
    let kibibytes = |line: &str| {
        let (name, value) = line.split_once(':')?;
        ["RssAnon", "RssShmem"]
            .contains(&name)
            .then(|| value.trim().strip_suffix(" kB")?.parse::<u64>().ok())?
    };
    status.lines().filter_map(kibibytes).sum::<u64>() * 1024
}

/// The trace of one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Its file.
    pub path: PathBuf,
    /// Its endpoint.
    pub subject: TracedEndpoint,
    /// Identities of the peers, by the numbers in the samples.
    pub peers: BTreeMap<u32, u64>,
    /// In order of time, without pairs that did not change.
    pub samples: Vec<Sample>,
}

/// The content of a directory of traces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traces {
    /// By rank, then process, then time.
    pub traces: Vec<Trace>,
    /// Files that are no traces of this version.
    pub skipped: Vec<Skipped>,
}

/// Reads the traces in `directory`. Files with another extension are ignored.
///
/// # Errors
/// Only if the directory itself cannot be listed.
pub fn read_dir(directory: &Path) -> io::Result<Traces> {
    let mut found = Traces::default();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != EXTENSION) {
            continue;
        }
        match read_file(&path) {
            Ok(trace) => found.traces.push(trace),
            Err(why) => found.skipped.push(Skipped { path, why }),
        }
    }
    found.traces.sort_by_key(|trace| {
        let TracedEndpoint { rank, pid, started_ns, .. } = trace.subject;
        (rank.unwrap_or(UNKNOWN), pid, started_ns)
    });
    found.skipped.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

fn read_file(path: &Path) -> Result<Trace, String> {
    // A file of ours is no longer than its bound and one record more.
    let longest = 2 * FILE_BYTES.end();
    let about = std::fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    if !about.is_file() || about.len() > longest {
        return Err(format!("it is not a regular file of at most {longest} bytes"));
    }
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let Some((head, mut rest)) =
        bytes.split_at_checked(HEADER_WORDS * 8).filter(|(head, _)| head[..8] == MAGIC)
    else {
        return Err(String::from("it is no trace of weir"));
    };
    let word = |index: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&head[index * 8..][..8]);
        u64::from_le_bytes(word)
    };
    if (word(1), word(2)) != (VERSION, weir_proto::Counters::NAMES.len() as u64) {
        return Err(format!("it has version {}.{}, which this weir does not read", word(1), word(2)));
    }
    let rank = Some(word(3)).filter(|&rank| rank != UNKNOWN);
    let subject = TracedEndpoint { rank, pid: word(4), started_ns: word(5), identity: word(6) };
    let (mut peers, mut samples) = (BTreeMap::new(), Vec::new());
    while let Some(record) = Record::decode(&mut rest) {
        match record {
            Record::Peer { number, identity } => drop(peers.insert(number, identity)),
            Record::Sample(sample) => samples.push(sample),
        }
    }
    Ok(Trace { path: path.to_owned(), subject, peers, samples })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(credits: &[(u32, u32)]) -> BTreeMap<u32, PairSample> {
        let pair = |credits| PairSample { credits: Some(credits), ..PairSample::default() };
        credits.iter().map(|&(peer, credits)| (peer, pair(credits))).collect()
    }

    fn only(directory: &Path) -> Trace {
        let mut found = read_dir(directory).unwrap();
        assert_eq!(found.skipped, []);
        assert_eq!(found.traces.len(), 1);
        found.traces.remove(0)
    }

    #[test]
    fn a_trace_is_read_back_and_holds_only_changes() {
        let directory = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::create(directory.path(), 77, 2).unwrap();
        let start = recorder.started;
        let at = |ms| start + Duration::from_millis(ms);
        assert!(recorder.is_due(at(0)));
        let identity = |number| 100 + u64::from(number);
        for (ms, credits) in [(0, &[(0, 5), (3, 1)][..]), (1, &[(0, 5), (3, 2)]), (2, &[(0, 5), (3, 2)])] {
            let sample = Sample { pairs: pairs(credits), ..Sample::default() };
            recorder.record(at(ms), sample, identity).unwrap();
            assert!(!recorder.is_due(at(ms)) && recorder.is_due(at(ms + 1)));
        }
        let trace = only(directory.path());
        assert_eq!(trace.subject.identity, 77);
        assert_eq!(trace.subject.pid, u64::from(std::process::id()));
        assert_eq!(trace.peers, [(0, 100), (3, 103)].into());
        let seen: Vec<_> = trace.samples.iter().map(|sample| (sample.at_ns, sample.pairs.clone())).collect();
        let expected =
            [(0, pairs(&[(0, 5), (3, 1)])), (1_000_000, pairs(&[(3, 2)])), (2_000_000, pairs(&[]))];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_long_trace_stays_bounded_and_covers_the_whole_run() {
        let directory = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::create(directory.path(), 1, 2).unwrap();
        (recorder.max_samples, recorder.max_bytes) = (50, 20_000);
        let start = recorder.started;
        // Peer 9 sends once, in the beginning; peer 0 all the time.
        let (mut now, mut taken) = (start, 0u32);
        while now < start + Duration::from_secs(10) {
            if recorder.is_due(now) {
                let sample = Sample { pairs: pairs(&[(0, taken), (9, 4)]), ..Sample::default() };
                recorder.record(now, sample, u64::from).unwrap();
                taken += 1;
                assert!(recorder.samples <= 50 && recorder.bytes <= 20_000);
            }
            now += Duration::from_micros(500);
        }
        let trace = only(directory.path());
        assert!((25..=50).contains(&trace.samples.len()), "{} samples", trace.samples.len());
        let last_ns = trace.samples.last().unwrap().at_ns;
        assert!(last_ns > 9_000_000_000, "the last sample is of {last_ns} ns");
        let widest = trace.samples.windows(2).map(|two| two[1].at_ns - two[0].at_ns).max().unwrap();
        assert!(widest < 1_000_000_000, "a gap of {widest} ns");
        let mut state = BTreeMap::new();
        trace.samples.iter().for_each(|sample| state.extend(sample.pairs.clone()));
        assert_eq!(state, pairs(&[(0, taken - 1), (9, 4)]));
        assert!(std::fs::metadata(&trace.path).unwrap().len() <= 20_000);
    }

    #[test]
    fn foreign_traces_are_reported_and_torn_ones_read_up_to_the_tear() {
        let directory = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::create(directory.path(), 1, 2).unwrap();
        let start = recorder.started;
        for ms in 0..2 {
            recorder.record(start + Duration::from_millis(ms), Sample::default(), u64::from).unwrap();
        }
        let bytes = std::fs::read(&recorder.path).unwrap();
        std::fs::write(&recorder.path, &bytes[..bytes.len() - 3]).unwrap();
        assert_eq!(only(directory.path()).samples.len(), 1);
        std::fs::write(directory.path().join("a.txt"), "not ours").unwrap();
        std::fs::write(directory.path().join("b.trace"), "not ours").unwrap();
        let mut other = bytes.clone();
        other[8] = 9;
        std::fs::write(directory.path().join("c.trace"), other).unwrap();
        let why: Vec<_> =
            read_dir(directory.path()).unwrap().skipped.into_iter().map(|file| file.why).collect();
        let version =
            format!("it has version 9.{}, which this weir does not read", weir_proto::Counters::NAMES.len());
        assert_eq!(why, ["it is no trace of weir", &version]);
    }

    #[test]
    fn process_memory_excludes_mapped_files() {
        let status =
            "VmRSS:\t  9000 kB\nRssAnon:\t    1000 kB\nRssFile:\t  3000 kB\nRssShmem:\t      24 kB\n";
        assert_eq!(resident_bytes(status), 1024 * 1024);
        assert_eq!(resident_bytes("RssAnon: many kB\n"), 0);
        assert!(Memory::new().bytes(Instant::now()) > 100_000);
    }
}
