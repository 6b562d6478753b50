//! Counters in a file: plain stores write them while the process runs, and they stay readable after it was killed.
//!
//! It does not know what is counted. The file holds a magic number, a version, the numbers of words of metadata and of
//! counters, then the metadata and the counters. A rank stores changes into its page ([`CounterPage`]). Others read
//! pages ([`CounterSnapshot`]): `weir run` at the end, `weir explain` and the diagnostics of other ranks while the job
//! runs. The page cache outlives a process, so a page remains when its rank gets SIGKILL.

use crate::shm::sync::{AtomicU64, Ordering};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;

const MAGIC: u64 = u64::from_le_bytes(*b"weircnt1");
const FIXED_WORDS: usize = 4;
/// Bound on metadata and counters together. Unit: words of 8 bytes.
pub const MAX_WORDS: usize = 1 << 16;

/// A page of counters that this process writes.
#[derive(Debug)]
pub struct CounterPage {
    base: NonNull<u64>,
    words: usize,
    first: usize,
}

// SAFETY: the mapping belongs to the process; all accesses are atomic.
unsafe impl Send for CounterPage {}
// SAFETY: as above.
unsafe impl Sync for CounterPage {}

impl CounterPage {
    /// Makes (or replaces) the file with `count` counters at 0. It appears at `path` complete.
    ///
    /// # Errors
    /// More than [`MAX_WORDS`] words, or an error of the operating system, for example lack of space.
    pub fn create(path: &Path, version: u64, metadata: &[u64], count: usize) -> io::Result<CounterPage> {
        let first = FIXED_WORDS + metadata.len();
        let words = first + count;
        if words > MAX_WORDS {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("cannot make a counter page of {words} words; allowed: at most {MAX_WORDS}"),
            ));
        }
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{}", std::process::id()));
        let temporary = Path::new(&temporary);
        let file =
            File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(temporary)?;
        let made = CounterPage::map(&file, version, metadata, count).and_then(|page| {
            std::fs::rename(temporary, path)?;
            Ok(page)
        });
        if made.is_err() {
            let _ = std::fs::remove_file(temporary);
        }
        made
    }

    fn map(file: &File, version: u64, metadata: &[u64], count: usize) -> io::Result<CounterPage> {
        let first = FIXED_WORDS + metadata.len();
        let words = first + count;
        let fixed = [MAGIC, version, metadata.len() as u64, count as u64];
        // Writing, not only sizing the file, reserves the space. So no store can fail later.
        let mut bytes: Vec<u8> = fixed.iter().chain(metadata).flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(words * 8, 0);
        io::Write::write_all(&mut &*file, &bytes)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh range over an open file.
        let base = unsafe { mmap(core::ptr::null_mut(), words * 8, access, MapFlags::SHARED, file, 0) }?;
        NonNull::new(base.cast())
            .map(|base| CounterPage { base, words, first })
            .ok_or_else(|| io::Error::other("mmap returned address 0"))
    }

    /// Sets counter `index`.
    ///
    /// # Panics
    /// If there is no such counter.
    #[inline]
    pub fn store(&self, index: usize, value: u64) {
        assert!(
            index < self.words - self.first,
            "no counter {index}: the page has {}",
            self.words - self.first
        );
        // SAFETY: inside the mapping (just checked), aligned, and only accessed as atomics.
        let word = unsafe { self.base.add(self.first + index).cast::<AtomicU64>().as_ref() };
        word.store(value.to_le(), Ordering::Relaxed);
    }
}

impl Drop for CounterPage {
    fn drop(&mut self) {
        // SAFETY: this mapping has this length, and no reference into it is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.words * 8) };
    }
}

/// The contents of a page when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterSnapshot {
    /// Version of the meaning of the counters.
    pub version: u64,
    /// The writer's metadata (rank, process, ...).
    pub metadata: Vec<u64>,
    /// The counters.
    pub counters: Vec<u64>,
}

impl CounterSnapshot {
    /// Reads a page, of a running process or of one that has ended.
    ///
    /// # Errors
    /// The file cannot be read, or is not a page of counters (`InvalidData`).
    pub fn open(path: &Path) -> io::Result<CounterSnapshot> {
        let bytes = std::fs::read(path)?;
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let bad = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{}: not a counter page of weir", path.display()),
            )
        };
        let [MAGIC, version, metadata, counters, rest @ ..] = words.as_slice() else { return Err(bad()) };
        let metadata = usize::try_from(*metadata).map_err(|_| bad())?;
        let counters = usize::try_from(*counters).map_err(|_| bad())?;
        if metadata.checked_add(counters) != Some(rest.len()) {
            return Err(bad());
        }
        let (metadata, counters) = rest.split_at(metadata);
        Ok(CounterSnapshot { version: *version, metadata: metadata.to_vec(), counters: counters.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_readable_after_the_process_is_killed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("rank3");
        // SAFETY: the child only stores to a mapping and kills itself. It never returns into the test harness.
        match unsafe { libc::fork() } {
            0 => {
                if let Ok(page) = CounterPage::create(&path, 2, &[3, 99], 4) {
                    page.store(1, 17);
                    page.store(3, u64::MAX);
                }
                // SAFETY: ends this child without running anything else.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            child => {
                let mut status = 0;
                // SAFETY: our own child; the status lives across the call.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            }
        }
        let counted = CounterSnapshot::open(&path).expect("a page");
        assert_eq!(
            counted,
            CounterSnapshot { version: 2, metadata: vec![3, 99], counters: vec![0, 17, 0, u64::MAX] }
        );
    }

    #[test]
    fn malformed_counter_files_are_rejected() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("page");
        for bytes in [
            &b""[..],
            b"weircnt1",
            &[0; 64],
            b"weircnt1\x01\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x02\0\0\0\0\0\0\0",
        ] {
            std::fs::write(&path, bytes).expect("written");
            assert_eq!(
                CounterSnapshot::open(&path).expect_err("nonsense").kind(),
                io::ErrorKind::InvalidData
            );
        }
    }

    #[test]
    #[should_panic(expected = "no counter 4: the page has 4")]
    fn storing_beyond_the_last_counter_panics() {
        let dir = tempfile::tempdir().expect("a directory");
        CounterPage::create(&dir.path().join("page"), 1, &[], 4).expect("a page").store(4, 0);
    }
}
