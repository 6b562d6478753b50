//! Reads GOAL schedules, the text format of the LogGOPSim toolchain, as rank programs. Traces of MPI programs
//! can be replayed this way.
//!
//! ```text
//! num_ranks 2
//! rank 0 {
//! l1: calc 1000                     nanoseconds
//! l2: send 2048b to 1 tag 7
//! l2 requires l1                    l2 begins when l1 has ended
//! }
//! rank 1 {
//! l1: recv 2048b from 0 tag 7
//! }
//! ```
//! A schedule in which messages have no matching receive, or operations can never end, is an error that names the line.
//! [`Schedule::parse`] says which circle of operations it does not find. `irequires` means: begin when the other
//! operation has begun. `cpu` and `nic` must be 0, because a rank has one of each.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::program::{Program, Rank};
use crate::{MAX_BYTES, MAX_NS, MAX_RANKS};

/// One kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Send.
    Send {
        /// Unit: bytes.
        bytes: u64,
        /// Rank.
        to: u32,
        /// Tag.
        tag: u64,
    },
    /// Receive.
    Receive {
        /// Unit: bytes.
        bytes: u64,
        /// Rank.
        from: u32,
        /// Tag.
        tag: u64,
    },
    /// Computation.
    Compute {
        /// Unit: ns.
        ns: u64,
    },
}

/// One operation of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    operation: Operation,
    line: usize,
    /// Operations that may begin when this one has ended, and when this one has begun.
    then: Vec<u32>,
    then_at_once: Vec<u32>,
    /// Number of operations that this one waits for.
    requires: u32,
}

/// A schedule: all operations of all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    ranks: Vec<Arc<Vec<Step>>>,
}

/// An error in a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct GoalError {
    /// Line number, from 1.
    pub line: usize,
    /// The error, and what is allowed.
    pub what: String,
}

fn error<T>(line: usize, what: impl Into<String>) -> Result<T, GoalError> {
    Err(GoalError { line, what: what.into() })
}

/// The block of the rank that is being read.
#[derive(Default)]
struct Block {
    rank: u32,
    steps: Vec<Step>,
    labels: HashMap<String, u32>,
}

impl Schedule {
    /// Reads a schedule and checks it. Every send has a receive that is large enough; MPI requires that,
    /// LogGOPSim does not. No ranks wait for each other in a circle. The check does not find a circle through
    /// several messages of the same ranks and tag.
    ///
    /// # Errors
    /// [`GoalError`] names the line.
    pub fn parse(text: &str) -> Result<Schedule, GoalError> {
        let mut ranks: Vec<Option<Arc<Vec<Step>>>> = Vec::new();
        let mut open: Option<Block> = None;
        let mut last = 0;
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            last = number;
            let line = line.split("//").next().unwrap_or("").trim();
            let words: Vec<&str> = line.split_whitespace().collect();
            match (words.as_slice(), &mut open) {
                ([], _) => {}
                (["num_ranks", count], None) if ranks.is_empty() => {
                    let count = within(number, count, 1..=MAX_RANKS.into(), "a number of ranks")?;
                    ranks = vec![None; count as usize];
                }
                (["rank", _, "{"], None) if ranks.is_empty() => {
                    return error(number, "`rank` comes before `num_ranks N`; allowed: `num_ranks N` first");
                }
                (["rank", rank, "{"], None) => {
                    let rank = a_rank(number, rank, ranks.len() as u32)?;
                    if ranks[rank as usize].is_some() {
                        let what =
                            format!("rank {rank} has a second block; allowed: one block for each rank");
                        return error(number, what);
                    }
                    open = Some(Block { rank, ..Block::default() });
                }
                (["}"], Some(block)) => {
                    ranks[block.rank as usize] = Some(Arc::new(std::mem::take(&mut block.steps)));
                    open = None;
                }
                (_, Some(block)) => block.line(number, &words, ranks.len() as u32)?,
                _ => {
                    let allowed = "allowed here: `num_ranks N` once, first; then `rank N {`";
                    return error(number, format!("{line:?}; {allowed}"));
                }
            }
        }
        if let Some(block) = open {
            return error(
                last,
                format!("the block of rank {} has no end; allowed: `}}` after its operations", block.rank),
            );
        }
        if ranks.is_empty() {
            return error(last.max(1), "`num_ranks N` is missing; allowed: once, first");
        }
        let count = ranks.len();
        let blocks = ranks.into_iter().enumerate().map(|(rank, steps)| {
            steps.ok_or_else(|| GoalError {
                line: last,
                what: format!(
                    "num_ranks is {count}, and rank {rank} has no block; allowed: one block for each rank, `rank {rank} {{` to `}}`"
                ),
            })
        });
        let schedule = Schedule { ranks: blocks.collect::<Result<_, GoalError>>()? };
        schedule.check_matches()?;
        schedule.check_sizes()?;
        schedule.check_cycles()?;
        schedule.check_waits()?;
        Ok(schedule)
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// The program of a rank.
    pub fn program(&self, rank: Rank) -> Program {
        Box::pin(run(rank.clone(), Arc::clone(&self.ranks[rank.rank() as usize])))
    }

    fn check_matches(&self) -> Result<(), GoalError> {
        // By (from, to, tag): sends minus receives, and the line of an unmatched operation.
        let mut open: HashMap<(u32, u32, u64), (i64, usize)> = HashMap::new();
        for (rank, steps) in self.ranks.iter().enumerate() {
            for step in steps.iter() {
                let rank = rank as u32;
                let (key, sign) = match step.operation {
                    Operation::Send { to, tag, .. } => ((rank, to, tag), 1),
                    Operation::Receive { from, tag, .. } => ((from, rank, tag), -1),
                    Operation::Compute { .. } => continue,
                };
                let entry = open.entry(key).or_insert((0, step.line));
                if entry.0.signum() != -sign {
                    entry.1 = step.line;
                }
                entry.0 += sign;
            }
        }
        let unmatched = open.into_iter().filter(|(_, (count, _))| *count != 0);
        let Some(((from, to, tag), (count, line))) = unmatched.min_by_key(|(_, (_, line))| *line) else {
            return Ok(());
        };
        let (what, other) = if count > 0 { ("sent", "receive") } else { ("received", "send") };
        let missing = count.unsigned_abs();
        error(
            line,
            format!(
                "{missing} message(s) from rank {from} to rank {to} with tag {tag} are {what} without a matching {other}; allowed: as \
                 many receives as sends with the same ranks and tag"
            ),
        )
    }

    /// Checks that messages fit into receives: the shortest message into the shortest receive, and so on. The
    /// numbers of both are equal.
    fn check_sizes(&self) -> Result<(), GoalError> {
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for (rank, step) in self.steps() {
            match step.operation {
                Operation::Send { bytes, to, tag } => sends.push(((rank, to, tag), bytes)),
                Operation::Receive { bytes, from, tag } => {
                    receives.push(((from, rank, tag), bytes, step.line));
                }
                Operation::Compute { .. } => {}
            }
        }
        sends.sort_unstable();
        receives.sort_unstable();
        for (((from, to, tag), sent), (_, room, line)) in sends.into_iter().zip(receives) {
            if sent > room {
                let what = format!(
                    "the receive has {room}b, and the message from rank {from} to rank {to} with tag {tag} has {sent}b; allowed: at \
                     least as many"
                );
                return error(line, what);
            }
        }
        Ok(())
    }

    fn steps(&self) -> impl Iterator<Item = (u32, &Step)> {
        (0..).zip(&self.ranks).flat_map(|(rank, steps)| steps.iter().map(move |step| (rank, step)))
    }

    /// Runs the schedule with operations that end as soon as they begin. Returns, by rank, how many
    /// requirements of each operation remain, and the receives that still wait. Sends wait for nothing. With
    /// `receives_wait`, a receive waits until one message of its ranks and tag was sent. One sent message is
    /// enough for all such receives, because several messages of the same ranks and tag may match in any
    /// order. So whatever remains can never end.
    fn left_when_followed(&self, receives_wait: bool) -> (Vec<Vec<u32>>, Vec<(u32, u32)>) {
        let mut requires: Vec<Vec<u32>> =
            self.ranks.iter().map(|steps| steps.iter().map(|step| step.requires).collect()).collect();
        let mut sent = HashSet::new();
        let mut waiting: HashMap<(u32, u32, u64), Vec<(u32, u32)>> = HashMap::new();
        let of_rank = |(rank, requires): (u32, &Vec<u32>)| {
            let free = (0..).zip(requires).filter(|(_, requires)| **requires == 0);
            free.map(|(index, _)| (rank, index)).collect::<Vec<(u32, u32)>>()
        };
        let mut ready: Vec<(u32, u32)> = (0..).zip(&requires).flat_map(of_rank).collect();
        let mut ended = Vec::new();
        while let Some((rank, index)) = ready.pop() {
            let step = &self.ranks[rank as usize][index as usize];
            let mut released = step.then_at_once.iter().map(|&next| (rank, next)).collect::<Vec<_>>();
            match step.operation {
                Operation::Receive { from, tag, .. }
                    if receives_wait && !sent.contains(&(from, rank, tag)) =>
                {
                    waiting.entry((from, rank, tag)).or_default().push((rank, index));
                }
                Operation::Send { to, tag, .. } if receives_wait => {
                    sent.insert((rank, to, tag));
                    ended.push((rank, index));
                    ended.extend(waiting.remove(&(rank, to, tag)).unwrap_or_default());
                }
                _ => ended.push((rank, index)),
            }
            for (rank, index) in ended.drain(..) {
                let then = &self.ranks[rank as usize][index as usize].then;
                released.extend(then.iter().map(|&next| (rank, next)));
            }
            for (rank, next) in released {
                let requires = &mut requires[rank as usize][next as usize];
                *requires -= 1;
                if *requires == 0 {
                    ready.push((rank, next));
                }
            }
        }
        (requires, waiting.into_values().flatten().collect())
    }

    fn check_cycles(&self) -> Result<(), GoalError> {
        let (requires, _) = self.left_when_followed(false);
        for (rank, (steps, requires)) in self.ranks.iter().zip(&requires).enumerate() {
            let left = steps.iter().zip(requires).filter(|(_, requires)| **requires > 0);
            if let Some(line) = left.map(|(step, _)| step.line).min() {
                return error(
                    line,
                    format!("operations of rank {rank} require each other in a circle; allowed: no circle"),
                );
            }
        }
        Ok(())
    }

    fn check_waits(&self) -> Result<(), GoalError> {
        let (_, waiting) = self.left_when_followed(true);
        let line_of = |&(rank, index): &(u32, u32)| self.ranks[rank as usize][index as usize].line;
        match waiting.iter().min_by_key(|place| line_of(place)) {
            None => Ok(()),
            Some(place) => error(
                line_of(place),
                format!(
                    "deadlock: this receive of rank {} waits for a message that can only be sent after it; allowed: messages that do \
                     not depend on their receive",
                    place.0
                ),
            ),
        }
    }
}

impl Block {
    fn line(&mut self, number: usize, words: &[&str], ranks: u32) -> Result<(), GoalError> {
        match words {
            [after, relation @ ("requires" | "irequires"), before] => {
                let (after, before) = (self.label(number, after)?, self.label(number, before)?);
                self.steps[after as usize].requires += 1;
                let before = &mut self.steps[before as usize];
                match *relation {
                    "requires" => before.then.push(after),
                    _ => before.then_at_once.push(after),
                }
                Ok(())
            }
            [label, rest @ ..] if label.ends_with(':') => {
                let operation = operation(number, rest, ranks)?;
                let index = self.steps.len() as u32;
                let label = label.trim_end_matches(':');
                if self.labels.insert(label.to_owned(), index).is_some() {
                    return error(
                        number,
                        format!("label {label:?} occurs twice in rank {}; allowed: once", self.rank),
                    );
                }
                let (then, then_at_once) = (Vec::new(), Vec::new());
                self.steps.push(Step { operation, line: number, then, then_at_once, requires: 0 });
                Ok(())
            }
            _ => error(
                number,
                format!(
                    "{:?}; allowed here: `label: send|recv|calc ...`, `label requires label`, `}}`",
                    words.join(" ")
                ),
            ),
        }
    }

    fn label(&self, line: usize, label: &str) -> Result<u32, GoalError> {
        match self.labels.get(label) {
            Some(&index) => Ok(index),
            None => error(
                line,
                format!(
                    "rank {} has no operation {label:?} before this line; allowed: the label of an earlier line",
                    self.rank
                ),
            ),
        }
    }
}

/// Reads a whole number within a range.
fn within(line: usize, word: &str, allowed: RangeInclusive<u64>, what: &str) -> Result<u64, GoalError> {
    match word.parse() {
        Ok(number) if allowed.contains(&number) => Ok(number),
        _ => {
            let (least, most) = allowed.into_inner();
            error(line, format!("{word:?} is not {what}; allowed: {least} to {most}"))
        }
    }
}

/// Reads a rank number; `ranks` is at least 1.
fn a_rank(line: usize, word: &str, ranks: u32) -> Result<u32, GoalError> {
    within(line, word, 0..=u64::from(ranks) - 1, &format!("a rank (num_ranks is {ranks})"))
        .map(|it| it as u32)
}

fn bytes(line: usize, word: &str) -> Result<u64, GoalError> {
    match word.strip_suffix('b') {
        Some(number) => within(line, number, 0..=MAX_BYTES, "a number of bytes, like 2048b"),
        None => {
            error(line, format!("{word:?} is not a number of bytes, like 2048b; allowed: 0b to {MAX_BYTES}b"))
        }
    }
}

fn operation(line: usize, words: &[&str], ranks: u32) -> Result<Operation, GoalError> {
    let rank = |word: &str| a_rank(line, word, ranks);
    let options = |words: &[&str]| {
        let mut tag = 0;
        for option in words.chunks(2) {
            match option {
                ["tag", value] => tag = within(line, value, 0..=u64::MAX, "a tag")?,
                ["cpu" | "nic", "0"] => {}
                ["cpu" | "nic", value] => {
                    return error(
                        line,
                        format!("{} is {value}; allowed: 0, because a rank has one", option[0]),
                    );
                }
                _ => return error(line, format!("{:?}; allowed: tag N, cpu 0, nic 0", option.join(" "))),
            }
        }
        Ok(tag)
    };
    match words {
        ["send", size, "to", to, rest @ ..] => {
            Ok(Operation::Send { bytes: bytes(line, size)?, to: rank(to)?, tag: options(rest)? })
        }
        ["recv", size, "from", from, rest @ ..] => {
            Ok(Operation::Receive { bytes: bytes(line, size)?, from: rank(from)?, tag: options(rest)? })
        }
        ["calc", ns, rest @ ..] => {
            options(rest)?;
            Ok(Operation::Compute { ns: within(line, ns, 0..=MAX_NS, "a time in nanoseconds")? })
        }
        _ => {
            error(line, format!("{:?}; allowed: `send Nb to R`, `recv Nb from R`, `calc N`", words.join(" ")))
        }
    }
}

impl Operation {
    /// Order of operations that can begin at the same time. Operations of the same kind keep the order of the
    /// file. A receive takes no time. LogGOPSim lets sends begin before computation.
    fn place(self) -> u32 {
        match self {
            Operation::Receive { .. } => 0,
            Operation::Send { .. } => 1,
            Operation::Compute { .. } => 2,
        }
    }
}

async fn run(rank: Rank, steps: Arc<Vec<Step>>) {
    rank.use_wait_any();
    let mut requires: Vec<u32> = steps.iter().map(|step| step.requires).collect();
    let place = |index: &u32| steps[*index as usize].operation.place();
    let mut ready: Vec<u32> =
        (0..steps.len() as u32).filter(|&index| requires[index as usize] == 0).collect();
    ready.sort_by_key(place);
    let mut ready = VecDeque::from(ready);
    // Operations that no longer wait for anything.
    let mut released = |next: &[u32]| {
        let mut free: Vec<u32> = Vec::new();
        for &next in next {
            requires[next as usize] -= 1;
            if requires[next as usize] == 0 {
                free.push(next);
            }
        }
        free.sort_by_key(place);
        free
    };
    let mut open: HashMap<u32, u32> = HashMap::new();
    loop {
        while let Some(index) = ready.pop_front() {
            let step = &steps[index as usize];
            ready.extend(released(&step.then_at_once));
            let handle = match step.operation {
                Operation::Send { bytes, to, tag } => rank.isend(to, tag, bytes),
                Operation::Receive { bytes, from, tag } => rank.irecv(Some(from), tag, bytes),
                Operation::Compute { ns } => rank.icompute(ns * 1000),
            };
            open.insert(handle.0, index);
        }
        if open.is_empty() {
            return;
        }
        let (handle, _) = rank.wait_any().await;
        let index = open.remove(&handle.0).expect("a completed operation was pending");
        ready.extend(released(&steps[index as usize].then));
    }
}
