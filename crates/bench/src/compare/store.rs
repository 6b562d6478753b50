//! The file of finished jobs of `weir bench`, one line of JSON each, so that an interrupted run can be resumed.
//!
//! A run has a key, a hash of everything that determines its results. Its jobs are the lines with this key after the
//! last line that says that the run is complete. So the same command starts anew after a complete run. The file only
//! grows.

use super::measure::{Job, Sample};
use crate::contender::Contender;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Key of a run: 16 hexadecimal digits.
///
/// Another compiler version may give another hash. An interrupted run then starts anew.
pub fn key<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = DefaultHasher::new();
    parts.into_iter().for_each(|part| part.hash(&mut hasher));
    format!("{:016x}", hasher.finish())
}

/// A finished job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FinishedJob {
    /// The key of its run.
    pub run: String,
    /// Its contender.
    pub contender: Contender,
    /// [`Job::word`].
    pub job: String,
    /// Its round, from 1.
    pub round: u32,
    /// Load of the host before the command that ran it.
    pub load: f64,
    /// Share of the cores that other work took meanwhile, if known.
    #[serde(default, alias = "others")]
    pub other_load: Option<f64>,
    /// Its result.
    pub outcome: Outcome,
}

/// The result of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The measured values.
    Measured(Sample),
    /// The reason why there are none, in one line.
    Failed(String),
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Entry {
    Job(FinishedJob),
    RunOver { run_over: String },
}

/// The file, and the jobs of one run in it.
pub struct Store {
    file: File,
    run: String,
    jobs: Vec<FinishedJob>,
}

impl Store {
    /// Opens or creates a file. Lines that are not valid (cut off, or of another version) are ignored, and their jobs
    /// run again.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(path: &Path, run: String) -> io::Result<Store> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let mut finished = Vec::new();
        for line in BufReader::new(&file).split(b'\n') {
            match serde_json::from_slice(&line?) {
                Ok(Entry::Job(job)) if job.run == run => finished.push(job),
                Ok(Entry::RunOver { run_over }) if run_over == run => finished.clear(),
                _ => {}
            }
        }
        // A new line starts after a line break.
        if file.metadata()?.len() > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok(Store { file, run, jobs: finished })
    }

    /// All finished jobs of the run.
    pub fn jobs(&self) -> &[FinishedJob] {
        &self.jobs
    }

    /// The result of a job, if it has finished before.
    pub fn get(&self, contender: Contender, job: Job, round: u32) -> Option<&FinishedJob> {
        let word = job.word();
        self.jobs.iter().find(|it| (it.contender, &it.job, it.round) == (contender, &word, round))
    }

    /// Whether a job has failed in any round. It is then not tried again.
    pub fn has_failed(&self, contender: Contender, job: Job) -> bool {
        let word = job.word();
        let failed = |it: &FinishedJob| matches!(it.outcome, Outcome::Failed(_));
        self.jobs.iter().any(|it| it.contender == contender && it.job == word && failed(it))
    }

    /// Adds a finished job of this run.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn add(&mut self, ended: FinishedJob) -> io::Result<()> {
        let ended = FinishedJob { run: self.run.clone(), ..ended };
        self.write(&Entry::Job(ended.clone()))?;
        self.jobs.push(ended);
        Ok(())
    }

    /// Records that the run is complete. The next run with this key starts anew.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn close(&mut self) -> io::Result<()> {
        let run_over = self.run.clone();
        self.write(&Entry::RunOver { run_over })?;
        self.jobs.clear();
        Ok(())
    }

    /// Writes a line with one call.
    fn write(&mut self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_string(entry).map_err(io::Error::other)?;
        line.push('\n');
        self.file.write_all(line.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::super::measure::Group;
    use super::*;
    use crate::transport::Transport;

    const WEIR: Contender = Contender::Mpich(Transport::Weir);
    const JOB: Job = Job { group: Group::Latency, ranks: 2 };

    fn open(directory: &tempfile::TempDir, run: &str) -> Store {
        Store::open(&directory.path().join("samples.jsonl"), run.into()).unwrap()
    }

    fn failed(why: &str) -> Outcome {
        Outcome::Failed(why.into())
    }

    fn ended(round: u32, outcome: Outcome) -> FinishedJob {
        let (run, job) = (String::new(), JOB.word());
        FinishedJob { run, contender: WEIR, job, round, load: 0.5, other_load: Some(0.25), outcome }
    }

    #[test]
    fn an_interrupted_run_resumes_and_a_finished_run_restarts() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = open(&directory, "a");
        store.add(ended(1, Outcome::Measured(Sample::default()))).unwrap();
        store.add(ended(2, failed("no"))).unwrap();
        let mut again = open(&directory, "a");
        assert_eq!(again.jobs(), store.jobs());
        assert_eq!(again.get(WEIR, JOB, 2).map(|it| &it.outcome), Some(&failed("no")));
        assert_eq!(again.get(WEIR, Job { ranks: 4, ..JOB }, 2), None);
        assert_eq!(again.get(WEIR, JOB, 3), None);
        assert!(again.has_failed(WEIR, JOB) && !again.has_failed(WEIR, Job { ranks: 4, ..JOB }));
        // Another run does not see the jobs and does not end the run.
        let mut other = open(&directory, "b");
        assert!(other.jobs().is_empty());
        other.close().unwrap();
        assert_eq!(open(&directory, "a").jobs().len(), 2);
        again.close().unwrap();
        assert!(open(&directory, "a").jobs().is_empty());
    }

    #[test]
    fn a_truncated_record_is_measured_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = open(&directory, "a");
        (1..=2).for_each(|round| store.add(ended(round, failed("no"))).unwrap());
        let path = directory.path().join("samples.jsonl");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 9]).unwrap();
        let mut store = open(&directory, "a");
        assert_eq!(store.jobs().iter().map(|it| it.round).collect::<Vec<_>>(), [1]);
        store.add(ended(2, failed("no"))).unwrap();
        assert_eq!(open(&directory, "a").jobs().len(), 2);
    }

    #[test]
    fn the_key_depends_on_every_part() {
        let of = |parts: &[&'static str]| key(parts.iter().map(|part| part.as_bytes()));
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
        assert_ne!(of(&["a", "b"]), of(&["ab", ""]));
        assert_ne!(of(&["a", "b"]), of(&["a", "c"]));
        assert_eq!(of(&["a"]).len(), 16);
    }
}
