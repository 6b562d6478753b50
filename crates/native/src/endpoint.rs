//! Opening an endpoint: who we are, the exchange of addresses, the engine, and the group of all ranks.
//!
//! Each rank first tells the others its node and its view of the job. So all know how many ranks share their node
//! before they open, which decides the mailbox, the waiting, and whether they need a network.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use weir_engine::automatic_progress::{self, EngineOwner, LOOK_INTERVAL_NS};
use weir_engine::config::{AcrossHosts, Settings};
use weir_engine::job::{Job, Ranks};
use weir_engine::{Engine, MAX_COLLECTIVE_MEMBERS};
use weir_link::Address;
use weir_link::shm::meeting_place;
use weir_link::shm::node_segment::JobKey;

use crate::exchange::{Exchange, ExchangeError, Rounds};
use crate::state::{Inner, Offered, Owner, Shared};
use crate::{Error, Group, Segment, launcher};

/// Bound: ranks of a job.
pub const MAX_RANKS: u32 = MAX_COLLECTIVE_MEMBERS as u32;
/// Begins what a rank tells first. Another version of this exchange has another number.
const GREETING: u64 = u64::from_le_bytes(*b"weirnat3");
/// Length of what a rank tells first. Unit: bytes.
const GREETING_BYTES: usize = 32;

/// How to open an endpoint.
pub struct Options {
    /// Our rank and the number of ranks. `None`: those of the launcher's variables.
    pub rank_and_size: Option<(u32, u32)>,
    /// How the ranks tell each other their addresses.
    pub exchange: Exchange,
    /// How long to wait for another rank in a directory, and for an answer of the launcher.
    pub patience: Duration,
    /// A thread answers other ranks while the program computes. *Price:* a thread, and calls that wait yield instead
    /// of sleeping.
    pub automatic_progress: bool,
}

impl Default for Options {
    /// All from the launcher, a patience of a minute, progress inside calls.
    fn default() -> Options {
        Options {
            rank_and_size: None,
            exchange: Exchange::Automatic,
            patience: Duration::from_secs(60),
            automatic_progress: false,
        }
    }
}

/// A rank of a job. Clones are the same endpoint. It closes with [`Endpoint::close`], or when the last value is
/// dropped that belongs to it.
#[derive(Clone)]
pub struct Endpoint {
    pub(crate) owner: Arc<Owner>,
    world: u32,
}

/// What a rank tells first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Greeting {
    rank: u32,
    size: u32,
    /// Of rank 0: identifies the job.
    random: u64,
    node: u64,
}

impl Greeting {
    fn to_bytes(self) -> [u8; GREETING_BYTES] {
        let words = [GREETING, u64::from(self.rank) << 32 | u64::from(self.size), self.random, self.node];
        let mut bytes = [0; GREETING_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn of_bytes(bytes: &[u8; GREETING_BYTES]) -> Option<Greeting> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte]));
        let (rank, size) = ((word(1) >> 32) as u32, word(1) as u32);
        (word(0) == GREETING).then_some(Greeting { rank, size, random: word(2), node: word(3) })
    }
}

/// Ranks with the same number share memory. 0 if the directory is gone: then opening the engine fails, and says so.
fn node_number(directory: &Path) -> u64 {
    meeting_place(directory).map_or(0, |place| u64::from_le_bytes(place.0))
}

/// The job that the greetings describe, for the rank that has sent `own`, and the node of each rank.
///
/// # Errors
/// A rank of another job or version.
fn job(greetings: &[[u8; GREETING_BYTES]], own: &Greeting) -> Result<(Job, Vec<u64>), ExchangeError> {
    let (mut node, mut first, mut nodes) = (0, own.random, Vec::new());
    for (rank, bytes) in (0..).zip(greetings) {
        let greeting = Greeting::of_bytes(bytes).filter(|it| (it.rank, it.size) == (rank, own.size));
        let Greeting { random, node: of_rank, .. } = greeting.ok_or(ExchangeError::Stranger { rank })?;
        if rank == 0 {
            first = random;
        }
        node += u32::from(of_rank == own.node);
        nodes.push(of_rank);
    }
    Ok((Job::known(Ranks { node, job: own.size }, JobKey::new(&("weir-native", first))), nodes))
}

impl Endpoint {
    /// Opens the endpoint of this rank, with settings of the environment (`FI_WEIR_*`). All ranks of the job call it,
    /// and it returns when all have.
    ///
    /// # Errors
    /// What the launcher, the options or the settings say is not allowed; the exchange fails; the endpoint cannot be
    /// opened; [`Error::Lost`].
    pub fn open(options: Options) -> Result<Endpoint, Error> {
        Endpoint::open_with(options, &Settings::from_environment()?)
    }

    pub(crate) fn open_with(options: Options, settings: &Settings) -> Result<Endpoint, Error> {
        let Options { rank_and_size, exchange, patience, automatic_progress } = options;
        let (rank, size) = match rank_and_size {
            Some(given) => given,
            None => launcher::rank_and_size(|name| std::env::var(name).ok())?,
        };
        if !(1..=MAX_RANKS).contains(&size) {
            return Err(Error::argument("number of ranks", size, format!("1 to {MAX_RANKS}")));
        }
        if rank >= size {
            return Err(Error::argument("rank", rank, format!("0 to {}", size - 1)));
        }
        let mut rounds = Rounds::begin(exchange, rank, size, patience)?;
        let random = RandomState::new().build_hasher().finish();
        let own = Greeting { rank, size, random, node: node_number(&settings.shm_dir) };
        let (job, nodes) = job(&rounds.all_gather(&own.to_bytes())?, &own)?;
        let mut engine = Engine::open(settings, job, automatic_progress)?;
        let addresses = rounds.all_gather(&engine.address().0)?;
        let peers = addresses.iter().map(|address| engine.peer(&Address(*address))).collect();
        let across_nodes = settings.collectives && settings.collectives_across != AcrossHosts::Never;
        let offered = Offered { on_one_node: settings.collectives, across_nodes };
        let inner = Inner::new(engine, peers, nodes, offered);
        let close_time = Duration::from_millis(settings.close_ms.into());
        let shared = Arc::new(Shared::new(rank, size, inner, close_time));
        let owner = Arc::new(Owner(shared)); // closes it from here on, also after an error
        if automatic_progress {
            start_watcher(&owner.0)?;
        }
        let all: Vec<u32> = (0..size).collect();
        let world = owner.0.join(&all)?;
        rounds.end();
        Ok(Endpoint { owner, world })
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.owner.0
    }

    /// Our rank.
    pub fn rank(&self) -> u32 {
        self.shared().rank
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.shared().size
    }

    /// The group of all ranks, by rank.
    ///
    /// # Errors
    /// The endpoint is closed.
    pub fn world(&self) -> Result<Group, Error> {
        Group::of_number(Arc::clone(&self.owner), self.world)
    }

    /// Joins a group of some ranks, which have their places in this order. All members call it with the same list,
    /// and it returns when all have. At most [`crate::MAX_JOINED_GROUPS`] groups at once, that of all among them.
    ///
    /// # Errors
    /// A list that is empty, too long, or without this rank; a rank that does not exist or comes twice;
    /// [`Error::Lost`].
    pub fn group(&self, ranks: &[u32]) -> Result<Group, Error> {
        let number = self.shared().join(ranks)?;
        Group::new(Arc::clone(&self.owner), number, true)
    }

    /// Registers new words, all 0, under a key that this rank has not registered.
    ///
    /// # Errors
    /// The key is in use, or there are too many words.
    pub fn expose(&self, key: u64, words: usize) -> Result<Segment, Error> {
        Segment::new(Arc::clone(&self.owner), key, words)
    }

    /// Makes progress: answers other ranks, and ends operations. Does not wait.
    ///
    /// # Errors
    /// The endpoint is closed.
    pub fn progress(&self) -> Result<(), Error> {
        self.shared().make_progress(false)
    }

    /// Closes the endpoint with those of the other ranks: waits until they have closed their groups, for
    /// `FI_WEIR_CLOSE_MS` at most. Requests that have not ended are dropped, and later calls return [`Error::Closed`].
    ///
    /// # Errors
    /// It is closed.
    pub fn close(self) -> Result<(), Error> {
        self.owner.close()
    }
}

/// Starts the thread that makes progress while the program computes.
fn start_watcher(shared: &Arc<Shared>) -> Result<(), Error> {
    let inside = Arc::downgrade(shared);
    let watcher = shared.with(|inner| {
        let watch = move || make_progress(&inside);
        inner.engine.start_watcher("weir-progress", Some(0), watch).map_err(Error::Thread)
    })?;
    let nowhere = || std::io::Error::other("the link has no place where a thread could wait");
    shared.keep_watcher(watcher.ok_or_else(|| Error::Thread(nowhere()))?);
    Ok(())
}

/// What that thread does when it is woken. Returns the time until it must look again, if it must. Unit: ns.
fn make_progress(shared: &Weak<Shared>) -> Option<u64> {
    let shared = shared.upgrade()?;
    let next = shared.with(|inner| {
        let next = automatic_progress::make_progress(inner);
        // No packet announces what others write to the node segment.
        let is_awaited = inner.node_groups.are_under_way();
        Ok(next.or(is_awaited.then_some(LOOK_INTERVAL_NS)))
    });
    next.unwrap_or(None)
}

impl EngineOwner for Inner {
    fn engine(&mut self) -> Option<&mut Engine> {
        Some(&mut self.engine)
    }

    fn progress(&mut self) -> usize {
        Inner::progress(self)
    }
}

#[cfg(test)]
mod tests;
