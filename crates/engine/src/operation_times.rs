//! Counts and times of collective operations, by kind and by the executor that has done them.
//!
//! Whoever does an operation reads the *stopwatch* ([`weir_link::cores::stopwatch`]) when it begins and when it has ended,
//! and adds the difference here. The unit of the stopwatch is found out when the sums are read: an [`OperationTimes`] knows
//! when it was made, by the stopwatch and by the clock.
//!
//! The *skew* of an operation at a rank is the time from its own begin until it has seen that the last rank has begun
//! from which it needs something. A rank that comes last has none.
//!
//! | executor | the last one is seen |
//! |---|---|
//! | node | when the first part that it writes is in shared memory |
//! | hosts, messages, helper | when its messages have come, also by way of others: so the skew is at most this |
//! | any, if the rank looks rarely | not known: it may compute meanwhile |
//!
//! ```text
//! rank 1   begins at 100; looks at 110, 120: rank 0 is missing; looks at 130: all are there; ends at 140
//!          time 40, skew 30
//! rank 0   begins at 125, all are there; ends at 135: time 10, skew 0
//! ```
//! A [`Tally`] collects for one user, without locked instructions, and adds to the shared sums now and then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use weir_link::cores::stopwatch;
use weir_link::shm::node_group;

use crate::CollectiveOperation;

/// What the members of a group do together, as the program calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperationKind {
    /// Wait for all.
    Barrier,
    /// All get the bytes of one.
    Broadcast,
    /// One gets the combination of all.
    Reduce,
    /// All get the combination of all.
    AllReduce,
    /// Each gets a block of the combination.
    ReduceScatter,
    /// All get the blocks of all.
    AllGather,
    /// One gets the blocks of all.
    Gather,
    /// Each gets a block of one.
    Scatter,
    /// Each gets a block of all.
    AllToAll,
}

impl OperationKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [OperationKind; 9] = [
        OperationKind::Barrier,
        OperationKind::Broadcast,
        OperationKind::Reduce,
        OperationKind::AllReduce,
        OperationKind::ReduceScatter,
        OperationKind::AllGather,
        OperationKind::Gather,
        OperationKind::Scatter,
        OperationKind::AllToAll,
    ];

    /// Its name, for users.
    pub fn name(self) -> &'static str {
        match self {
            OperationKind::Barrier => "barrier",
            OperationKind::Broadcast => "broadcast",
            OperationKind::Reduce => "reduce",
            OperationKind::AllReduce => "all-reduce",
            OperationKind::ReduceScatter => "reduce-scatter",
            OperationKind::AllGather => "all-gather",
            OperationKind::Gather => "gather",
            OperationKind::Scatter => "scatter",
            OperationKind::AllToAll => "all-to-all",
        }
    }
}

impl From<node_group::Operation> for OperationKind {
    fn from(operation: node_group::Operation) -> OperationKind {
        use node_group::Operation as Op;
        match operation {
            Op::Barrier => OperationKind::Barrier,
            Op::Broadcast { .. } => OperationKind::Broadcast,
            Op::Reduce { .. } => OperationKind::Reduce,
            Op::AllReduce(_) => OperationKind::AllReduce,
            Op::AllGather { .. } => OperationKind::AllGather,
            Op::Gather { .. } => OperationKind::Gather,
            Op::Scatter { .. } => OperationKind::Scatter,
            Op::AllToAll { .. } => OperationKind::AllToAll,
        }
    }
}

impl From<CollectiveOperation> for OperationKind {
    fn from(operation: CollectiveOperation) -> OperationKind {
        use CollectiveOperation as Op;
        match operation {
            Op::Barrier => OperationKind::Barrier,
            Op::Broadcast { .. } => OperationKind::Broadcast,
            Op::Reduce { .. } => OperationKind::Reduce,
            Op::AllReduce { .. } => OperationKind::AllReduce,
            Op::ReduceScatter { .. } => OperationKind::ReduceScatter,
            Op::AllGather => OperationKind::AllGather,
            Op::Gather { .. } => OperationKind::Gather,
            Op::Scatter { .. } => OperationKind::Scatter,
            Op::AllToAll => OperationKind::AllToAll,
        }
    }
}

/// Who has done an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Executor {
    /// The ranks of one node in shared memory.
    Node,
    /// The ranks of each node in shared memory, and one rank of each with messages.
    Hosts,
    /// The ranks with messages, while they call the library.
    Messages,
    /// The same, but a thread of the library has seen the end of the operation.
    Helper,
}

impl Executor {
    /// All of them, in the order of their numbers.
    pub const ALL: [Executor; 4] = [Executor::Node, Executor::Hosts, Executor::Messages, Executor::Helper];

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Executor::Node => "node",
            Executor::Hosts => "hosts",
            Executor::Messages => "messages",
            Executor::Helper => "helper",
        }
    }

    /// Whether skew includes the way of messages.
    pub fn skew_is_bound(self) -> bool {
        self != Executor::Node
    }
}

/// Operations that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OperationClass {
    /// What they do.
    pub kind: OperationKind,
    /// Who has done them.
    pub executor: Executor,
    /// The call returns when the operation has ended. Otherwise its time is not that of a call.
    pub is_blocking: bool,
}

impl OperationClass {
    /// The number of classes.
    pub const COUNT: usize = OperationKind::ALL.len() * Executor::ALL.len() * 2;

    /// All of them, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = OperationClass> {
        OperationKind::ALL.into_iter().flat_map(|kind| {
            Executor::ALL.into_iter().flat_map(move |executor| {
                [true, false].map(|is_blocking| OperationClass { kind, executor, is_blocking })
            })
        })
    }

    fn index(self) -> usize {
        let by_executor = self.kind as usize * Executor::ALL.len() + self.executor as usize;
        2 * by_executor + usize::from(!self.is_blocking)
    }
}

/// Sums over the operations of a class. The unit of times is what the owner says: ns, or that of the stopwatch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationSums {
    /// Operations that have ended without an error.
    pub count: u64,
    /// The time from their begin to their end.
    pub time: u64,
    /// Those whose skew is known.
    pub skew_known: u64,
    /// Their skew.
    pub skew: u64,
    /// The longest time of one.
    pub longest: u64,
}

impl OperationSums {
    /// Its number of words.
    pub const WORDS: usize = 5;

    /// Adds an operation.
    ///
    /// - `skew`: `None`: not known. At most its time counts.
    #[inline]
    pub fn add_one(&mut self, time: u64, skew: Option<u64>) {
        self.count += 1;
        self.time += time;
        self.longest = self.longest.max(time);
        if let Some(skew) = skew {
            self.skew_known += 1;
            self.skew += skew.min(time);
        }
    }

    /// The sums over the operations of both.
    pub fn plus(&self, other: &OperationSums) -> OperationSums {
        // The numbers may come from files, so an overflow must not stop the report.
        OperationSums {
            count: self.count.saturating_add(other.count),
            time: self.time.saturating_add(other.time),
            skew_known: self.skew_known.saturating_add(other.skew_known),
            skew: self.skew.saturating_add(other.skew),
            longest: self.longest.max(other.longest),
        }
    }

    /// The skew of all operations. `None`: of some it is not known.
    pub fn whole_skew(&self) -> Option<u64> {
        (self.skew_known == self.count).then_some(self.skew)
    }

    /// Its words.
    pub fn words(&self) -> [u64; OperationSums::WORDS] {
        [self.count, self.time, self.skew_known, self.skew, self.longest]
    }

    /// From its words.
    pub fn from_words(words: [u64; OperationSums::WORDS]) -> OperationSums {
        let [count, time, skew_known, skew, longest] = words;
        OperationSums { count, time, skew_known, skew, longest }
    }

    /// The same with other units of time.
    fn in_units(&self, per_unit: f64) -> OperationSums {
        let convert = |value: u64| (value as f64 * per_unit) as u64;
        let (time, skew, longest) = (convert(self.time), convert(self.skew), convert(self.longest));
        OperationSums { time, skew, longest, ..*self }
    }
}

/// The operations of an endpoint by class, in nanoseconds. Classes without operations are not there.
pub type Operations = Vec<(OperationClass, OperationSums)>;

/// The sums as words, one class after the other.
pub(crate) fn to_words(operations: &Operations) -> impl Iterator<Item = u64> {
    let mut sums = [OperationSums::default(); OperationClass::COUNT];
    for (class, of_class) in operations {
        sums[class.index()] = *of_class;
    }
    sums.into_iter().flat_map(|sums| sums.words())
}

/// The sums from such words.
pub(crate) fn from_words(words: &[u64]) -> Operations {
    let sums = words.as_chunks().0.iter().map(|words| OperationSums::from_words(*words));
    OperationClass::all().zip(sums).filter(|(_, sums)| sums.count > 0).collect()
}

/// The operations of an endpoint. Whoever does some adds to it, in any thread.
#[derive(Debug)]
pub struct OperationTimes {
    words: Vec<AtomicU64>,
    /// When it was made, by the stopwatch and by the clock.
    made: (u64, Instant),
}

impl Default for OperationTimes {
    fn default() -> OperationTimes {
        let words = OperationClass::COUNT * OperationSums::WORDS;
        let words = std::iter::repeat_with(|| AtomicU64::new(0)).take(words).collect();
        OperationTimes { words, made: (stopwatch(), Instant::now()) }
    }
}

impl OperationTimes {
    /// Adds operations, whose times are those of the stopwatch.
    pub fn add(&self, class: OperationClass, sums: &OperationSums) {
        let words = &self.words[class.index() * OperationSums::WORDS..];
        let (longest, others) = (OperationSums::WORDS - 1, sums.words());
        for (word, more) in words.iter().zip(others).take(longest) {
            word.fetch_add(more, Ordering::Relaxed);
        }
        words[longest].fetch_max(sums.longest, Ordering::Relaxed);
    }

    /// The sums in nanoseconds.
    pub fn in_ns(&self) -> Operations {
        let (counted, clock) = self.made;
        let counted = stopwatch().saturating_sub(counted).max(1);
        self.in_units(clock.elapsed().as_nanos() as f64 / counted as f64)
    }

    fn in_units(&self, per_unit: f64) -> Operations {
        let words: Vec<u64> = self.words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        from_words(&words).into_iter().map(|(class, sums)| (class, sums.in_units(per_unit))).collect()
    }
}

/// So many operations of a tally are added at once: locked instructions for each would cost some percent of a barrier.
const ADDED_AT_ONCE: u64 = 64;
/// A tally is added at least so often, if there are operations. Some tenths of a millisecond. Unit: that of the stopwatch.
const ADDED_WITHIN: u64 = 1 << 20;

/// Collects operations of one executor for one user.
#[derive(Debug)]
pub struct Tally {
    executor: Executor,
    is_blocking: bool,
    by_kind: [OperationSums; OperationKind::ALL.len()],
    count: u64,
    /// When they were added last.
    added_at: u64,
}

impl Tally {
    /// Without operations.
    pub fn new(executor: Executor, is_blocking: bool) -> Tally {
        let by_kind = [OperationSums::default(); OperationKind::ALL.len()];
        Tally { executor, is_blocking, by_kind, count: 0, added_at: 0 }
    }

    /// Counts an operation that has ended, and adds all to `times` now and then.
    ///
    /// - `began`, `ended`: by the stopwatch.
    /// - `skew`: as for [`OperationSums::add_one`].
    #[inline]
    pub fn count(
        &mut self,
        kind: OperationKind,
        (began, ended): (u64, u64),
        skew: Option<u64>,
        times: &OperationTimes,
    ) {
        // Cores may count a little apart from each other.
        self.by_kind[kind as usize].add_one(ended.saturating_sub(began), skew);
        self.count += 1;
        if self.count >= ADDED_AT_ONCE || ended.wrapping_sub(self.added_at) >= ADDED_WITHIN {
            self.added_at = ended;
            self.add_to(times);
        }
    }

    /// Adds all operations to `times`.
    #[cold]
    pub fn add_to(&mut self, times: &OperationTimes) {
        let Tally { executor, is_blocking, .. } = *self;
        for (kind, sums) in OperationKind::ALL.into_iter().zip(&mut self.by_kind) {
            let sums = std::mem::take(sums);
            if sums.count > 0 {
                times.add(OperationClass { kind, executor, is_blocking }, &sums);
            }
        }
        self.count = 0;
    }
}

/// The looks of a rank for the end of a non-blocking operation. If it looks rarely, it may have computed meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Looks {
    began: u64,
    /// The last look that has found that somebody is missing.
    last: u64,
}

impl Looks {
    /// The operation begins.
    pub fn begin(now: u64) -> Looks {
        Looks { began: now, last: now }
    }

    /// When the operation has begun.
    pub fn began(&self) -> u64 {
        self.began
    }

    /// A look has found that somebody is missing.
    #[inline]
    pub fn missing(&mut self, now: u64) {
        self.last = now;
    }

    /// The skew, if a look at `seen` has found that nobody is missing any more: known if the look before was not long before,
    /// an eighth of the wait or less.
    pub fn skew(&self, seen: u64) -> Option<u64> {
        let (waited, gap) = (seen.saturating_sub(self.began), seen.saturating_sub(self.last));
        (gap <= waited / 8).then_some(waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARRIER: OperationKind = OperationKind::Barrier;

    fn class(kind: OperationKind) -> OperationClass {
        OperationClass { kind, executor: Executor::Node, is_blocking: true }
    }

    #[test]
    fn classes_have_different_numbers_in_their_order() {
        let numbers: Vec<usize> = OperationClass::all().map(OperationClass::index).collect();
        assert_eq!(numbers, (0..OperationClass::COUNT).collect::<Vec<_>>());
    }

    #[test]
    fn sums_have_counts_times_and_the_skew_as_far_as_it_is_known() {
        let mut sums = OperationSums::default();
        sums.add_one(40, Some(30));
        sums.add_one(10, Some(0));
        assert_eq!((sums.count, sums.time, sums.longest, sums.whole_skew()), (2, 50, 40, Some(30)));
        sums.add_one(7, None);
        assert_eq!((sums.count, sums.time, sums.skew, sums.whole_skew()), (3, 57, 30, None));
        sums.add_one(5, Some(9));
        assert_eq!(sums.skew, 35, "no more than its time");
    }

    #[test]
    fn a_tally_adds_many_operations_at_once_and_rare_ones_soon() {
        let (times, mut tally) = (OperationTimes::default(), Tally::new(Executor::Node, true));
        let counted = |times: &OperationTimes| times.in_units(1.0).first().map_or(0, |(_, sums)| sums.count);
        let begin = 10 * ADDED_WITHIN;
        tally.count(BARRIER, (begin, begin + 5), Some(1), &times);
        assert_eq!(counted(&times), 1, "the first one after a long time");
        for _ in 1..ADDED_AT_ONCE {
            tally.count(BARRIER, (begin, begin + 5), Some(1), &times);
        }
        assert_eq!(counted(&times), 1);
        tally.count(BARRIER, (begin, begin + 5), Some(1), &times);
        assert_eq!(counted(&times), 1 + ADDED_AT_ONCE);
        tally.count(BARRIER, (begin, begin + ADDED_WITHIN + 5), None, &times);
        let sums = times.in_units(1.0);
        let count = ADDED_AT_ONCE + 2;
        let (time, longest) = (5 * (count - 1) + ADDED_WITHIN + 5, ADDED_WITHIN + 5);
        let expected = OperationSums { count, time, skew_known: count - 1, skew: count - 1, longest };
        assert_eq!(sums, [(class(BARRIER), expected)]);
    }

    #[test]
    fn a_core_that_counts_behind_makes_no_huge_time() {
        let (times, mut tally) = (OperationTimes::default(), Tally::new(Executor::Node, true));
        tally.count(BARRIER, (1000, 990), None, &times);
        tally.add_to(&times);
        assert_eq!(times.in_units(1.0)[0].1.time, 0);
    }

    #[test]
    fn times_are_those_of_the_clock() {
        let times = OperationTimes::default();
        let mut tally = Tally::new(Executor::Hosts, false);
        let (began, clock) = (stopwatch(), Instant::now());
        std::thread::sleep(std::time::Duration::from_millis(10));
        let (ended, elapsed) = (stopwatch(), clock.elapsed().as_nanos() as f64);
        tally.count(OperationKind::Gather, (began, ended), None, &times);
        let [(class, sums)] = times.in_ns()[..] else { panic!("one class") };
        // Each reads two clocks, and may lose its core between them. Another unit would be off by more.
        let is_near = (0.5..2.0).contains(&(sums.time as f64 / elapsed));
        assert!(is_near && sums.longest == sums.time, "{} ns instead of {elapsed}", sums.time);
        assert_eq!(
            (class.kind, class.executor, class.is_blocking),
            (OperationKind::Gather, Executor::Hosts, false)
        );
    }

    #[test]
    fn sums_are_read_back_from_their_words() {
        let sums = OperationSums { count: 1, time: 2, skew_known: 3, skew: 4, longest: 5 };
        let operations = vec![(class(BARRIER), sums), (class(OperationKind::AllToAll), sums)];
        let words: Vec<u64> = to_words(&operations).collect();
        assert_eq!(words.len(), OperationClass::COUNT * OperationSums::WORDS);
        assert_eq!(from_words(&words), operations);
    }

    #[test]
    fn the_skew_is_not_known_to_a_rank_that_computes_meanwhile() {
        let mut looks = Looks::begin(1000);
        assert_eq!(looks.skew(1000), Some(0), "all are there");
        assert_eq!(looks.skew(1800), None, "its first look");
        looks.missing(1750);
        assert_eq!(looks.skew(1800), Some(800));
        assert_eq!(looks.skew(1900), None);
    }
}
