//! A rank that the lock is measured with: a process of its own. All ranks want the lock as often as they get it.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use weir_native::{Endpoint, Error, Exchange, Group, Options, Place, Segment, WordOperation};
use weir_output::Failure;

use crate::members::SharedArguments;

/// The helper's name on the command line.
pub const HELPER: &str = "lock-member";
/// Times that each rank gets a lock to check it, before it is measured.
const CHECKED: u64 = 20;
/// Rank with the words of both locks.
const HOME: u32 = 0;
/// Keys of the queue lock, and of the words of the other one.
const QUEUE_KEY: u64 = 1;
const SPIN_KEY: u64 = 2;
/// Places of the words of [`SPIN_KEY`]: the lock that spins, and a number that a holder of a lock may change.
const SPIN_OFFSET: u64 = 0;
const NUMBER_OFFSET: u64 = 8;
/// The lowest bit of the lock that spins: somebody has it. Those above: rank + 1 of the last one that had it.
const HELD: u64 = 1;

/// Arguments of a rank.
#[derive(Args, Debug)]
pub struct MemberArguments {
    /// Our rank.
    #[arg(long)]
    rank: u32,
    #[command(flatten)]
    shared: SharedArguments,
}

/// The words on the command line of a rank.
pub fn words(rank: u32, shared: &SharedArguments) -> Vec<OsString> {
    let mut words = shared.words(HELPER);
    words.extend(["--rank".into(), rank.to_string().into()]);
    words
}

/// What one measurement of a lock has shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// From the begin until all ranks have stopped.
    pub elapsed_ns: f64,
    /// How often each rank has got the lock.
    pub acquired: Vec<u64>,
    /// How often the one that got it was not the last one that had it.
    pub hand_overs: u64,
    /// Changes of words that all ranks have started.
    pub changes: u64,
}

/// The two locks, in the order of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Set a bit of the word of the lock until it was not set before.
    Spin,
    /// The queue lock.
    Queue,
}

impl Kind {
    /// Both.
    pub const ALL: [Kind; 2] = [Kind::Spin, Kind::Queue];
}

/// Runs a rank. Returns the exit status. Rank 0 prints a line of JSON for each measurement.
///
/// # Errors
/// [`Failure`]: another rank has ended, the settings are wrong, or two ranks had a lock at once.
pub fn run(arguments: &MemberArguments) -> Result<u8, Failure> {
    let failed = |error: Error| Failure::Measurement(format!("a rank that wants a lock: {error}"));
    let mut member = Member::open(arguments).map_err(failed)?;
    for kind in Kind::ALL {
        member.check(kind).map_err(failed)?;
    }
    for _ in 0..arguments.shared.rounds {
        for kind in Kind::ALL {
            let sample = member.measure(kind, arguments.shared.time()).map_err(failed)?;
            if arguments.rank == 0 {
                let line = serde_json::to_string(&sample);
                println!("{}", line.map_err(|error| Failure::Measurement(error.to_string()))?);
            }
        }
    }
    let number = member.number().map_err(failed)?;
    let wanted = CHECKED * Kind::ALL.len() as u64 * u64::from(arguments.shared.ranks);
    member.close().map_err(failed)?;
    if number != wanted {
        let what = format!("{wanted} changes with a lock have left the number {number}");
        return Err(Failure::Measurement(what));
    }
    Ok(0)
}

struct Member {
    endpoint: Endpoint,
    world: Group,
    queue: weir_native::Lock,
    words: Segment,
    /// Changes of the lock that spins.
    spin_changes: u64,
}

fn place(offset: u64) -> Place {
    Place { rank: HOME, key: SPIN_KEY, offset }
}

impl Member {
    fn open(arguments: &MemberArguments) -> Result<Member, Error> {
        let endpoint = Endpoint::open(Options {
            rank_and_size: Some((arguments.rank, arguments.shared.ranks)),
            exchange: Exchange::Directory(arguments.shared.directory.clone()),
            ..Options::default()
        })?;
        let world = endpoint.world()?;
        let words = endpoint.expose(SPIN_KEY, 2)?;
        let queue = endpoint.lock(&world, HOME, QUEUE_KEY)?;
        Ok(Member { endpoint, world, queue, words, spin_changes: 0 })
    }

    /// Gets a lock. Returns whether somebody else was the last one that had it; `None` if time was up before.
    fn acquire(&mut self, kind: Kind, end: Option<Instant>) -> Result<Option<bool>, Error> {
        if kind == Kind::Queue {
            let changes = self.queue.changes();
            self.queue.acquire()?;
            // One change asks, and a second one tells the member before us. A lock that was free may have been ours.
            return Ok(Some(self.queue.changes() - changes > 1));
        }
        loop {
            self.spin_changes += 1;
            let old = self.endpoint.atomic(place(SPIN_OFFSET), WordOperation::Or, HELD, None)?;
            if old & HELD == 0 {
                return Ok(Some(old >> 1 != u64::from(self.endpoint.rank()) + 1));
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok(None);
            }
        }
    }

    fn release(&mut self, kind: Kind) -> Result<(), Error> {
        if kind == Kind::Queue {
            return self.queue.release();
        }
        self.spin_changes += 1;
        self.endpoint.store(place(SPIN_OFFSET), (u64::from(self.endpoint.rank()) + 1) << 1)
    }

    /// Changes a number by two steps that nothing but the lock protects.
    fn check(&mut self, kind: Kind) -> Result<(), Error> {
        for _ in 0..CHECKED {
            self.acquire(kind, None)?;
            let [number]: [u64; 1] = self.endpoint.get(place(NUMBER_OFFSET), 1)?.try_into().unwrap_or([0]);
            self.endpoint.put(place(NUMBER_OFFSET), &[number + 1])?;
            self.release(kind)?;
        }
        self.world.barrier()
    }

    /// The number that the checks have changed.
    fn number(&self) -> Result<u64, Error> {
        self.endpoint.load(place(NUMBER_OFFSET))
    }

    fn measure(&mut self, kind: Kind, time: Duration) -> Result<Sample, Error> {
        self.world.barrier()?;
        let began = Instant::now();
        let end = began + time;
        let before = self.spin_changes + self.queue.changes();
        let (mut acquired, mut hand_overs) = (0_u64, 0_u64);
        while let Some(from_another) = self.acquire(kind, Some(end))? {
            acquired += 1;
            hand_overs += u64::from(from_another);
            self.release(kind)?;
            if Instant::now() >= end {
                break;
            }
        }
        let changes = self.spin_changes + self.queue.changes() - before;
        self.world.barrier()?;
        let elapsed_ns = began.elapsed().as_nanos() as f64;
        let acquired = self.world.all_gather(&[acquired])?;
        let sums = self.world.all_reduce(WordOperation::Sum, &[hand_overs, changes])?;
        Ok(Sample { elapsed_ns, acquired, hand_overs: sums[0], changes: sums[1] })
    }

    fn close(self) -> Result<(), Error> {
        self.world.barrier()?;
        self.queue.close()?;
        drop(self.words);
        self.endpoint.close()
    }
}
