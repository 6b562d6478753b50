//! How the ranks tell each other their addresses when they open: an all-gather of equal blocks that does not need weir.
//!
//! | way | who needs it |
//! |---|---|
//! | a call of the program | programs with MPI, PMIx or a network of their own |
//! | PMI-1 (`pmi.rs`) | programs under the `mpiexec` of MPICH or Intel MPI that do not start the MPI themselves |
//! | a directory | everybody else: own scripts, other launchers |
//!
//! The directory is empty at the start, and all ranks see it. Each writes `weir-ROUND-RANK`, under another name
//! first, so that nobody reads half a file. A rank that finds its own file there belongs to another job, and is
//! refused. When the endpoint is open, all have read everything, and each removes its files.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Error;
use crate::pmi::PmiClient;

/// Time between two looks for the file of another rank.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// The variable with the directory.
const DIRECTORY_VARIABLE: &str = "WEIR_EXCHANGE_DIR";

/// A call of the program: gets our block, and returns those of all ranks, one after the other.
pub type AllGather = Box<dyn FnMut(&[u8]) -> Result<Vec<u8>, String>>;

/// How the ranks tell each other their addresses.
#[derive(Default)]
pub enum Exchange {
    /// The directory of the variable `WEIR_EXCHANGE_DIR`, else PMI-1 if the launcher offers it. A rank that is alone
    /// needs none.
    #[default]
    Automatic,
    /// A directory that all ranks see, empty at the start.
    Directory(PathBuf),
    /// A call of the program, made twice by [`crate::Endpoint::open`] in the calling thread.
    Call(AllGather),
}

/// The reason why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// There is no way to exchange.
    #[error(
        "no way to exchange addresses with {others} other ranks: set WEIR_EXCHANGE_DIR to an empty directory that all \
         ranks see, start the ranks by mpiexec of MPICH or Intel MPI, or give a call"
    )]
    NoWay {
        /// How many.
        others: u32,
    },
    /// A file could not be written or read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file of this rank exists already.
    #[error("{path}: exists already; each job needs an empty directory of its own")]
    Used {
        /// The file.
        path: PathBuf,
    },
    /// A rank did not come.
    #[error(
        "rank {rank} has not written to {directory} for {waited:?}; it may have ended, or has another directory"
    )]
    Missing {
        /// The rank.
        rank: u32,
        /// The directory.
        directory: PathBuf,
        /// How long.
        waited: Duration,
    },
    /// What came back is not what was asked for.
    #[error("the exchange returned {have_bytes} bytes: {ranks} blocks of {block_bytes} bytes are expected")]
    Length {
        /// Unit: bytes.
        have_bytes: usize,
        /// Number of ranks.
        ranks: u32,
        /// Unit: bytes.
        block_bytes: usize,
    },
    /// The program's call failed.
    #[error("the program's exchange failed: {0}")]
    Call(String),
    /// The launcher's server failed.
    #[error("PMI: {0}")]
    Pmi(String),
    /// The ranks do not fit together.
    #[error("rank {rank} is of another job, or of another version of weir")]
    Stranger {
        /// The rank.
        rank: u32,
    },
}

/// An exchange of one job.
pub(crate) struct Rounds {
    rank: u32,
    size: u32,
    way: Way,
    /// The number of the next round.
    next: u32,
}

enum Way {
    Alone,
    Directory { path: PathBuf, patience: Duration },
    Pmi(PmiClient),
    Call(AllGather),
}

impl Rounds {
    /// Chooses the way.
    ///
    /// # Errors
    /// There is none, or the launcher's server does not answer.
    pub fn begin(exchange: Exchange, rank: u32, size: u32, patience: Duration) -> Result<Rounds, Error> {
        let way = match exchange {
            Exchange::Call(call) => Way::Call(call),
            Exchange::Directory(path) => Way::Directory { path, patience },
            Exchange::Automatic if size == 1 => Way::Alone,
            Exchange::Automatic => match std::env::var_os(DIRECTORY_VARIABLE).filter(|path| !path.is_empty())
            {
                Some(path) => Way::Directory { path: path.into(), patience },
                None => match PmiClient::of_launcher(patience)? {
                    Some(client) => Way::Pmi(client),
                    None => return Err(ExchangeError::NoWay { others: size - 1 }.into()),
                },
            },
        };
        Ok(Rounds { rank, size, way, next: 0 })
    }

    /// Gives `block` to all ranks. Returns the blocks of all, by rank, each as long as ours.
    ///
    /// # Errors
    /// [`ExchangeError`].
    pub fn all_gather<const BYTES: usize>(
        &mut self,
        block: &[u8; BYTES],
    ) -> Result<Vec<[u8; BYTES]>, ExchangeError> {
        let (rank, size, round) = (self.rank, self.size, self.next);
        self.next += 1;
        let all = match &mut self.way {
            Way::Alone => block.to_vec(),
            Way::Call(call) => call(block).map_err(ExchangeError::Call)?,
            Way::Pmi(client) => client.all_gather(round, rank, size, block)?,
            Way::Directory { path, patience } => {
                write_file(&file(path, round, rank), block)?;
                let deadline = Instant::now() + *patience;
                let mut all = Vec::with_capacity(size as usize * BYTES);
                for other in 0..size {
                    all.extend(read_file(path, round, other, BYTES, deadline, *patience)?);
                }
                all
            }
        };
        let (blocks, rest) = all.as_chunks::<BYTES>();
        if blocks.len() != size as usize || !rest.is_empty() {
            return Err(ExchangeError::Length { have_bytes: all.len(), ranks: size, block_bytes: BYTES });
        }
        Ok(blocks.to_vec())
    }

    /// All ranks have everything.
    pub fn end(self) {
        match self.way {
            Way::Directory { path, .. } => {
                // A file that stays only makes the directory useless for a further job, which is told then.
                (0..self.next).for_each(|round| _ = std::fs::remove_file(file(&path, round, self.rank)));
            }
            Way::Pmi(client) => client.end(),
            Way::Alone | Way::Call(_) => {}
        }
    }
}

fn file(directory: &Path, round: u32, rank: u32) -> PathBuf {
    directory.join(format!("weir-{round}-{rank}"))
}

/// Writes a file so that others see all of it or nothing.
fn write_file(path: &Path, block: &[u8]) -> Result<(), ExchangeError> {
    let failed = |source| ExchangeError::File { path: path.to_owned(), source };
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let write = || {
        std::fs::File::create(&draft)?.write_all(block)?;
        // Unlike a rename, a link fails if there is such a file.
        std::fs::hard_link(&draft, path)
    };
    let written = write();
    let _ = std::fs::remove_file(&draft); // an error of the write is what counts
    written.map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => ExchangeError::Used { path: path.to_owned() },
        _ => failed(source),
    })
}

fn read_file(
    directory: &Path,
    round: u32,
    rank: u32,
    bytes: usize,
    deadline: Instant,
    patience: Duration,
) -> Result<Vec<u8>, ExchangeError> {
    let path = file(directory, round, rank);
    loop {
        match std::fs::read(&path) {
            Ok(block) if block.len() == bytes => return Ok(block),
            Ok(_) => return Err(ExchangeError::Stranger { rank }),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(ExchangeError::File { path, source: error });
            }
            Err(_) if Instant::now() >= deadline => {
                return Err(ExchangeError::Missing {
                    rank,
                    directory: directory.to_owned(),
                    waited: patience,
                });
            }
            Err(_) => std::thread::sleep(LOOK_INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn rounds(directory: &Path, rank: u32, size: u32, patience: Duration) -> Rounds {
        let exchange = Exchange::Directory(directory.to_owned());
        Rounds::begin(exchange, rank, size, patience).expect("a way")
    }

    #[test]
    fn all_ranks_get_the_blocks_of_all_and_leave_an_empty_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        let met = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let (path, met) = (directory.path(), &met);
                scope.spawn(move || {
                    let mut rounds = rounds(path, rank, 3, LONG);
                    for round in 0..2 {
                        let blocks = rounds.all_gather(&[rank as u8 + round; 5]).expect("all come");
                        assert_eq!(blocks, [0, 1, 2].map(|other| [other + round; 5]));
                    }
                    met.wait();
                    rounds.end();
                });
            }
        });
        assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 0);
    }

    #[test]
    fn a_rank_that_does_not_come_and_a_used_directory_are_errors() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        let missing = rounds(path, 0, 2, Duration::from_millis(5)).all_gather(&[0; 4]);
        assert!(matches!(missing, Err(ExchangeError::Missing { rank: 1, .. })), "{missing:?}");
        let used = rounds(path, 0, 2, LONG).all_gather(&[0; 4]);
        assert!(matches!(used, Err(ExchangeError::Used { .. })), "{used:?}");
        let stranger = rounds(path, 1, 2, LONG).all_gather(&[0; 3]);
        assert!(matches!(stranger, Err(ExchangeError::Stranger { rank: 0 })), "{stranger:?}");
        let nowhere = rounds(&path.join("none"), 0, 2, LONG).all_gather(&[0; 4]);
        assert!(matches!(nowhere, Err(ExchangeError::File { .. })), "{nowhere:?}");
    }

    #[test]
    fn a_call_that_fails_or_returns_too_little_is_an_error() {
        let call = |answer: Result<Vec<u8>, String>| {
            let exchange = Exchange::Call(Box::new(move |_| answer.clone()));
            Rounds::begin(exchange, 0, 2, LONG).expect("a way").all_gather(&[1, 2])
        };
        assert_eq!(call(Ok(vec![1, 2, 3, 4])).expect("two blocks"), [[1, 2], [3, 4]]);
        assert!(matches!(call(Ok(vec![1, 2, 3])), Err(ExchangeError::Length { have_bytes: 3, .. })));
        assert!(matches!(call(Err("no".to_owned())), Err(ExchangeError::Call(_))));
    }
}
