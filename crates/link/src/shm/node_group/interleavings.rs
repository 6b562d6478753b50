//! Tests of the rounds in one process: exact ones of each operation, and interleavings of members. `make test-loom` tries
//! all interleavings with a few preemptions; otherwise those tests run many times.

use super::operation::Operation;
use super::rounds::{GroupMemory, Round, Rounds};
use super::sleepers::{Bed, Sleepers};
use super::words::{GroupFailure, GroupLayout, GroupWords, MAX_ROUNDS};
use crate::shm::sync::{Arc, AtomicU64, Ordering, explore, thread, yield_now};
use weir_proto::PeerFault;
use weir_proto::offload::reduce::Vector;
use weir_proto::offload::{Combination, WordOperation, WordType};

#[derive(Clone)]
pub(super) struct Heap(Arc<(Vec<AtomicU64>, Vec<Bed>)>);

impl GroupMemory for Heap {
    fn words(&self) -> &[AtomicU64] {
        &self.0.0
    }

    fn beds(&self) -> &[Bed] {
        &self.0.1
    }
}

pub(super) type Member = Rounds<Heap>;

/// The members of a group. The endpoint of rank `i` is `i + 1`.
pub(super) fn group(members: u32) -> Vec<Member> {
    let layout = GroupLayout::new(members);
    let words = (0..layout.words).map(|_| AtomicU64::new(0)).collect();
    let memory = Heap(Arc::new((words, (0..members).map(|_| Bed::default()).collect())));
    let words = GroupWords::new(memory.words(), &layout);
    let endpoints: Vec<u64> = (1..=members.into()).collect();
    words.clear(&endpoints);
    Sleepers::new(words.sleepers(), memory.beds()).clear();
    let join = |rank| {
        words.join(rank);
        Rounds::new(memory.clone(), members, rank, false)
    };
    (0..members).map(join).collect()
}

fn vector(operation: WordOperation, word_type: WordType) -> Vector {
    Vector { bytes: word_type.bytes(), combination: Combination { operation, word_type } }
}

const SUM: WordOperation = WordOperation::Sum;

fn all_reduce() -> Operation {
    Operation::AllReduce(vector(SUM, WordType::U64))
}

fn broadcast(root: u32) -> Operation {
    Operation::Broadcast { root, bytes: 8 }
}

fn data_bytes(member: &Member, operation: Operation) -> usize {
    operation.data_bytes(member.rank(), member.words().members().end)
}

fn result_bytes(member: &Member, operation: Operation) -> usize {
    operation.result_bytes(member.rank(), member.words().members().end)
}

fn start(member: &mut Member, operation: Operation, value: u64) -> Round {
    let data = value.to_ne_bytes();
    let data = &data[..data_bytes(member, operation)];
    member.start(operation, data).expect("no failure").expect("not held back")
}

/// Runs `part` for each member in a thread of its own.
fn in_threads(members: Vec<Member>, part: impl Fn(&mut Member) + Clone + Send + 'static) {
    let start = |mut member| {
        let part = part.clone();
        thread::spawn(move || part(&mut member))
    };
    let threads: Vec<_> = members.into_iter().map(start).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// The result of a round, if it has finished.
fn look(member: &mut Member, operation: Operation, round: Round) -> Option<u64> {
    let mut bytes = [0; 8];
    let result = &mut bytes[..result_bytes(member, operation)];
    member.test(round, result).expect("no failure").then_some(u64::from_ne_bytes(bytes))
}

fn run(member: &mut Member, operation: Operation, value: u64) -> u64 {
    let data = value.to_ne_bytes();
    let data = &data[..data_bytes(member, operation)];
    let round = loop {
        match member.start(operation, data).expect("no failure") {
            Some(round) => break round,
            None => yield_now(),
        }
    };
    loop {
        match look(member, operation, round) {
            Some(result) => return result,
            None => yield_now(),
        }
    }
}

fn lost(member: u32, fault: PeerFault) -> GroupFailure {
    GroupFailure { member, fault }
}

#[test]
fn a_barrier_ends_at_everyone_when_the_last_has_started_it() {
    explore(1, || {
        let mut members = group(3);
        let barrier = Operation::Barrier;
        let first: Vec<Round> = members[..2].iter_mut().map(|member| start(member, barrier, 0)).collect();
        for (member, round) in members.iter_mut().zip(&first) {
            assert_eq!(look(member, barrier, *round), None);
        }
        let last = start(&mut members[2], barrier, 0);
        for (member, round) in members.iter_mut().zip([first[0], first[1], last]) {
            assert_eq!(look(member, barrier, round), Some(0));
        }
    });
}

#[test]
fn vectors_are_combined_in_rank_order_whoever_comes_first() {
    explore(1, || {
        // 1e16 + 1 is 1e16 in binary64, so another order gives another sum.
        let values = [1e16, 1.0, -1e16_f64];
        let vector = vector(SUM, WordType::F64);
        for operation in [Operation::AllReduce(vector), Operation::Reduce { root: 2, vector }] {
            let mut members = group(3);
            let rounds =
                [2, 0, 1].map(|rank| (rank, start(&mut members[rank], operation, values[rank].to_bits())));
            for (rank, round) in rounds {
                let result = look(&mut members[rank], operation, round).map(f64::from_bits);
                assert_eq!(result, Some(0.0), "at {rank}: 1e16 + 1 - 1e16, or no result");
            }
        }
    });
}

#[test]
fn a_member_of_a_reduction_and_the_root_of_a_broadcast_do_not_wait() {
    explore(1, || {
        let mut members = group(2);
        let reduce = Operation::Reduce { root: 1, vector: vector(SUM, WordType::U64) };
        let round = start(&mut members[0], reduce, 4);
        assert_eq!(look(&mut members[0], reduce, round), Some(0));
        let round = start(&mut members[0], broadcast(0), 9);
        assert_eq!(look(&mut members[0], broadcast(0), round), Some(0));
        let round = start(&mut members[1], reduce, 5);
        assert_eq!(look(&mut members[1], reduce, round), Some(9));
        assert_eq!(run(&mut members[1], broadcast(0), 0), 9);
    });
}

#[test]
fn rounds_under_way_are_bounded_and_may_be_tested_in_any_order() {
    explore(1, || {
        let mut members = group(2);
        let rounds: Vec<Round> =
            (0..MAX_ROUNDS).map(|value| start(&mut members[0], broadcast(0), value)).collect();
        assert_eq!(members[0].start(broadcast(0), &[0; 8]), Ok(None), "the other has finished none");
        let theirs: Vec<Round> = rounds.iter().map(|_| start(&mut members[1], broadcast(0), 0)).collect();
        for at in (0..theirs.len()).rev() {
            assert_eq!(members[0].start(broadcast(0), &[0; 8]), Ok(None), "it needs the first");
            assert_eq!(look(&mut members[1], broadcast(0), theirs[at]), Some(at as u64));
        }
        let _ = start(&mut members[0], broadcast(0), 7);
        assert_eq!(run(&mut members[1], broadcast(0), 0), 7);
    });
}

#[test]
fn a_member_that_does_another_operation_ends_the_group() {
    explore(1, || {
        let (sum, max) = (all_reduce(), Operation::AllReduce(vector(WordOperation::Max, WordType::U64)));
        for (ours, theirs) in [(Operation::Barrier, sum), (sum, max), (broadcast(1), Operation::Barrier)] {
            let mut members = group(2);
            let _ = start(&mut members[1], theirs, 0);
            let round = start(&mut members[0], ours, 0);
            let mut result = vec![0; ours.result_bytes(0, 2)];
            let failure = lost(1, PeerFault::Malformed);
            assert_eq!(members[0].test(round, &mut result), Err(failure));
            assert_eq!(
                members[0].start(ours, &[0; 8][..ours.data_bytes(0, 2)]),
                Err(failure),
                "it stays failed"
            );
        }
    });
}

#[test]
fn the_loss_of_a_member_reaches_one_that_waits_for_another() {
    explore(1, || {
        let mut members = group(3);
        let reduce = Operation::Reduce { root: 0, vector: vector(SUM, WordType::U64) };
        let _ = start(&mut members[2], reduce, 1);
        let waits = start(&mut members[2], broadcast(0), 0);
        let round = start(&mut members[0], reduce, 1);
        assert_eq!(members[0].check(|_| true), Ok(()));
        assert_eq!(members[2].check(|endpoint| endpoint != 2), Ok(()), "it does not wait for that one");
        let failure = lost(1, PeerFault::Died);
        assert_eq!(members[0].check(|endpoint| endpoint != 2), Err(failure));
        assert_eq!(members[0].test(round, &mut [0; 8]), Err(failure));
        members[0].words().leave(0);
        assert_eq!(members[2].check(|_| true), Err(failure), "its own root says why");
        assert_eq!(members[2].test(waits, &mut [0; 8]), Err(failure));
    });
}

#[test]
fn what_a_member_has_written_before_its_end_is_valid() {
    explore(1, || {
        let mut members = group(2);
        let theirs = start(&mut members[1], all_reduce(), 3);
        members[1].words().leave(1);
        let ours = start(&mut members[0], all_reduce(), 4);
        assert_eq!(members[0].check(|_| false), Ok(()), "nobody is missing");
        assert_eq!(look(&mut members[0], all_reduce(), ours), Some(7));
        let _ = (theirs, start(&mut members[0], Operation::Barrier, 0));
        assert_eq!(members[0].check(|_| true), Err(lost(1, PeerFault::Closed)));
    });
}

/// Performs an operation of any length, and checks its result. Byte `at` of the block of `from` for `to` is a function of
/// the three; to all, it is that for 0.
fn perform(member: &mut Member, operation: Operation) {
    let byte = |from: u32, to: u32, at: usize| (from as usize * 37 + to as usize * 11 + at) as u8;
    let (rank, members) = (member.rank(), member.words().members());
    let blocks = |pairs: &mut dyn Iterator<Item = (u32, u32)>, bytes: u32| -> Vec<u8> {
        pairs.flat_map(|(from, to)| (0..bytes as usize).map(move |at| byte(from, to, at))).collect()
    };
    let (sent, expected) = match operation {
        Operation::AllToAll { bytes } => (
            blocks(&mut members.clone().map(|to| (rank, to)), bytes),
            blocks(&mut members.map(|from| (from, rank)), bytes),
        ),
        Operation::Scatter { root, bytes } => {
            (blocks(&mut members.map(|to| (root, to)), bytes), blocks(&mut [(root, rank)].into_iter(), bytes))
        }
        Operation::AllGather { bytes } | Operation::Gather { bytes, .. } => {
            (blocks(&mut [(rank, 0)].into_iter(), bytes), blocks(&mut members.map(|from| (from, 0)), bytes))
        }
        Operation::Broadcast { root, bytes } => {
            let block = blocks(&mut [(root, 0)].into_iter(), bytes);
            (block.clone(), block)
        }
        other => panic!("{other:?}"),
    };
    let data = &sent[..data_bytes(member, operation)];
    let mut result = vec![0; result_bytes(member, operation)];
    let mut task = member.task(operation);
    while !member.advance(&mut task, data, &mut result, || 1).expect("no failure") {
        yield_now();
    }
    assert!(result.is_empty() || result == expected, "{operation:?} at {rank}");
}

#[test]
fn every_operation_that_copies_gives_each_member_its_blocks_at_any_length() {
    for count in if cfg!(any(miri, loom)) { vec![2] } else { vec![1, 2, 3, 5, 9] } {
        let lengths = if cfg!(any(miri, loom)) { vec![0, 9] } else { vec![0, 1, 8, 13, 2048, 9000, 100_001] };
        let work = move |member: &mut Member| {
            for &bytes in &lengths {
                let root = bytes % count;
                perform(member, Operation::AllGather { bytes });
                perform(member, Operation::AllToAll { bytes });
                perform(member, Operation::Broadcast { root, bytes });
                perform(member, Operation::Gather { root, bytes });
                perform(member, Operation::Scatter { root, bytes });
            }
        };
        let run = move || in_threads(group(count), work.clone());
        if cfg!(loom) { explore(0, run) } else { run() }
    }
}

#[test]
fn a_long_reduction_has_the_bits_of_combining_in_rank_order() {
    explore(1, || {
        let elements = if cfg!(loom) { 5 } else { 512 };
        let operation = Operation::AllReduce(Vector { bytes: elements * 8, ..vector(SUM, WordType::F64) });
        let value = |rank: u32, at: u32| [1e16, 1.0 + f64::from(at), -1e16][rank as usize];
        let data = |rank| -> Vec<u8> { (0..elements).flat_map(|at| value(rank, at).to_ne_bytes()).collect() };
        let expected: Vec<u8> =
            (0..elements).flat_map(|at| (value(0, at) + value(1, at) + value(2, at)).to_ne_bytes()).collect();
        let mut members = group(3);
        let mut tasks: Vec<_> = members
            .iter()
            .map(|member| (member.task(operation), data(member.rank()), vec![0; expected.len()]))
            .collect();
        let mut finished = [false; 3];
        while finished != [true; 3] {
            for rank in [2, 0, 1] {
                let (task, data, result) = &mut tasks[rank];
                finished[rank] =
                    finished[rank] || members[rank].advance(task, data, result, || 1).expect("no failure");
            }
        }
        assert!(tasks.iter().all(|(_, _, result)| *result == expected));
    });
}

#[test]
fn a_task_starts_when_all_parts_of_the_one_before_have_started() {
    explore(1, || {
        let mut members = group(2);
        let bytes = 8 * MAX_ROUNDS as u32 * 2 * if cfg!(loom) { 2 } else { 1024 };
        let long = Operation::Broadcast { root: 0, bytes };
        let data: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        let mut first = members[0].task(long);
        let mut second = members[0].task(Operation::Barrier);
        assert_eq!(
            members[0].advance(&mut first, &data, &mut [], || 1),
            Ok(false),
            "the other takes nothing"
        );
        assert_eq!(members[0].start(Operation::Barrier, &[]), Ok(None), "half of the parts have started");
        assert_eq!(members[0].advance(&mut second, &[], &mut [], || 1), Ok(false));
        let (mut theirs, mut result) = (members[1].task(long), vec![0; data.len()]);
        while !members[1].advance(&mut theirs, &[], &mut result, || 1).expect("no failure") {
            let _ = members[0].advance(&mut first, &data, &mut [], || 1).expect("no failure");
        }
        assert_eq!(result, data);
        assert_eq!(members[0].advance(&mut second, &[], &mut [], || 1), Ok(false));
        let _ = start(&mut members[1], Operation::Barrier, 0);
        assert_eq!(members[0].advance(&mut second, &[], &mut [], || 1), Ok(true));
    });
}

#[cfg(not(loom))]
#[test]
fn a_member_that_begins_looks_until_the_one_that_it_waits_for_has_written() {
    let begin = |member: &mut Member, looks| {
        let mut task = member.task(Operation::Barrier);
        let is_done = member.begin(&mut task, &[], &mut [], looks, || 1).expect("no failure");
        (task, is_done)
    };
    let mut members = group(2);
    let mut late = members.pop().expect("two members");
    let first = &mut members[0];
    let (mut task, is_done) = begin(first, 3);
    assert!(!is_done && task.has_begun() && first.missing() == Some(1), "nobody has written");
    assert!(begin(&mut late, 0).1, "it is the last");
    assert!(first.advance(&mut task, &[], &mut [], || 1).expect("no failure"));
    // Looks for some seconds, so the other one writes meanwhile.
    let writer = thread::spawn(move || begin(&mut late, u32::MAX).1);
    assert!(begin(first, u32::MAX).1);
    assert!(writer.join().unwrap());
}

#[cfg(not(loom))]
#[test]
fn what_begins_beside_a_round_under_way_or_without_room_ends_like_all_others() {
    let mut members = group(2);
    let under_way = start(&mut members[0], all_reduce(), 5);
    let mut task = members[0].task(broadcast(1));
    let mut result = [0; 8];
    assert!(!members[0].begin(&mut task, &[], &mut result, 3, || 1).expect("no failure"));
    assert_eq!(run(&mut members[1], all_reduce(), 6), 11);
    assert_eq!(look(&mut members[0], all_reduce(), under_way), Some(11));
    for value in 0..MAX_ROUNDS {
        let mut task = members[1].task(broadcast(1));
        let is_done =
            members[1].begin(&mut task, &value.to_ne_bytes(), &mut [], 0, || 1).expect("no failure");
        assert_eq!((is_done, members[1].missing()), (true, None), "{value}");
    }
    let mut next = members[1].task(broadcast(1));
    assert!(!members[1].begin(&mut next, &[9; 8], &mut [], 3, || 1).expect("no failure"));
    assert!(!next.has_begun() && members[1].missing() == Some(0), "the other one has finished none of them");
    assert!(members[0].advance(&mut task, &[], &mut result, || 1).expect("no failure"));
    assert_eq!(u64::from_ne_bytes(result), 0);
    assert!(members[1].advance(&mut next, &[9; 8], &mut [], || 1).expect("no failure"));
}

#[test]
fn the_root_of_a_reduction_shows_nothing_since_nobody_waits_for_it() {
    let mut members = group(2);
    let operation = Operation::Reduce { root: 0, vector: vector(SUM, WordType::U64) };
    let board = |members: &[Member]| members[0].words().look(0, 1, operation.digest());
    let ours = start(&mut members[0], operation, 5);
    assert_eq!(board(&members), Ok(None));
    assert_eq!(members[0].missing(), Some(1), "it does not miss itself");
    assert_eq!(members[0].check(|endpoint| endpoint == 2), Ok(()), "it does not look whether it runs itself");
    let _ = start(&mut members[1], operation, 6);
    assert_eq!(look(&mut members[0], operation, ours), Some(11));
    assert_eq!(board(&members), Ok(None));
    assert_eq!(run_both(&mut members, all_reduce(), 1, 2), [3, 3], "others see what it shows next");
}

/// Runs an operation at both members of a group of two.
fn run_both(members: &mut [Member], operation: Operation, first: u64, second: u64) -> [u64; 2] {
    let round = start(&mut members[0], operation, first);
    let other = run(&mut members[1], operation, second);
    [look(&mut members[0], operation, round).expect("both have started"), other]
}

#[cfg(not(loom))]
#[test]
fn of_two_members_each_knows_from_what_the_other_has_written_how_far_it_is() {
    let mut members = group(2);
    for value in 0..3 * MAX_ROUNDS {
        let operation = broadcast((value % 2) as u32);
        let [root, other] = [value as usize % 2, 1 - value as usize % 2];
        let _ = start(&mut members[root], operation, value);
        let round = start(&mut members[other], operation, 0);
        assert_eq!(look(&mut members[other], operation, round), Some(value));
        // What a member says in its line is for those to whom it writes nothing.
        (0..2).for_each(|member| members[0].words().set_finished(member, 0));
    }
}

#[cfg(not(loom))]
#[test]
fn a_member_that_has_not_written_for_many_rounds_is_not_taken_for_a_later_one() {
    let mut members = group(2);
    for value in 0..if cfg!(miri) { 5000 } else { 40_000 } {
        let round = start(&mut members[0], broadcast(0), value);
        assert_eq!(look(&mut members[0], broadcast(0), round), Some(0));
        assert_eq!(run(&mut members[1], broadcast(0), 0), value);
        if value % 997 == 0 {
            let round = start(&mut members[0], Operation::Barrier, 0);
            assert_eq!(look(&mut members[0], Operation::Barrier, round), None, "after {value}");
            assert_eq!(run(&mut members[1], Operation::Barrier, 0), 0);
            assert_eq!(look(&mut members[0], Operation::Barrier, round), Some(0));
        }
    }
}

#[test]
fn loom_blocks_of_several_parts_arrive_while_places_are_used_again() {
    explore(1, || {
        in_threads(group(2), |member| {
            perform(member, Operation::AllToAll { bytes: 17 });
            perform(member, Operation::AllGather { bytes: 8 });
        });
    });
}

/// As `run`, but sleeps between two looks, as long as nobody wakes it.
fn run_asleep(member: &mut Member, operation: Operation, value: u64) -> u64 {
    const LONG_NS: u64 = 20_000_000_000;
    let data = value.to_ne_bytes();
    let data = &data[..data_bytes(member, operation)];
    let round = loop {
        match member.start(operation, data).expect("no failure") {
            Some(round) => break round,
            None => member.sleep(LONG_NS),
        }
    };
    loop {
        match look(member, operation, round) {
            Some(result) => return result,
            None => member.sleep(LONG_NS),
        }
    }
}

/// A wake-up that is lost is a deadlock of the model. Otherwise it takes longer than this test may.
fn in_time(test: impl Fn()) {
    let begun = std::time::Instant::now();
    test();
    assert!(cfg!(loom) || begun.elapsed() < std::time::Duration::from_secs(15), "a wake-up was lost");
}

#[test]
fn loom_a_member_that_sleeps_until_another_has_written_is_woken() {
    explore(2, || {
        in_time(|| {
            in_threads(group(2), |member| {
                for round in 1..=2 {
                    assert_eq!(run_asleep(member, all_reduce(), round), 2 * round);
                }
            });
        });
    });
}

#[test]
fn loom_a_root_that_sleeps_until_another_has_finished_is_woken() {
    explore(2, || {
        in_time(|| {
            in_threads(group(2), |member| {
                for value in 1..=MAX_ROUNDS + 1 {
                    let result = run_asleep(member, broadcast(0), value);
                    assert!(member.rank() == 0 || result == value);
                }
            });
        });
    });
}

#[test]
fn loom_each_of_several_sleepers_is_woken_by_the_one_that_it_waits_for() {
    explore(1, || {
        in_time(|| {
            in_threads(group(3), |member| {
                assert_eq!(run_asleep(member, all_reduce(), 1), 3);
            });
        });
    });
}

#[test]
fn only_those_that_wait_for_a_member_are_woken_by_it() {
    explore(1, || {
        let memory: Vec<Bed> = (0..2).map(|_| Bed::default()).collect();
        let bits: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
        let sleepers = Sleepers::new(&bits, &memory);
        assert_eq!(sleepers.wake(1, false), 0, "nobody sleeps");
        for (awaited, by, woken) in [(Some(1), 0, 0), (Some(1), 1, 1), (None, 1, 1)] {
            let found = core::cell::Cell::new(u32::MAX);
            // It does not wait in the kernel, because the other one writes just before.
            sleepers.sleep(0, &mut Default::default(), awaited, 1, || {
                found.set(sleepers.wake(by, false));
                false
            });
            assert_eq!(found.get(), woken, "{awaited:?}, {by}");
            assert_eq!(sleepers.wake(by, false), 0, "it is awake");
        }
    });
}

#[test]
fn loom_members_get_the_sum_of_each_round_while_slots_are_used_again() {
    explore(2, || {
        in_threads(group(2), |member| {
            for round in 1..=MAX_ROUNDS + 1 {
                let own = round * (1 + u64::from(member.rank()));
                assert_eq!(run(member, all_reduce(), own), 3 * round);
            }
        });
    });
}

#[test]
fn loom_a_root_that_is_ahead_overwrites_nothing_that_another_reads() {
    explore(2, || {
        in_threads(group(2), |member| {
            for value in 1..=MAX_ROUNDS + 2 {
                let result = run(member, broadcast(0), value);
                assert!(member.rank() == 0 || result == value, "{result}, not {value}");
            }
        });
    });
}

#[test]
fn loom_a_member_that_has_written_and_died_is_not_missed_in_that_round() {
    explore(3, || {
        let mut members = group(2);
        let (mut victim, mut other) = (members.remove(1), members.remove(0));
        let has_died = Arc::new(AtomicU64::new(0));
        let dies = {
            let has_died = Arc::clone(&has_died);
            thread::spawn(move || {
                let _ = start(&mut victim, all_reduce(), 5);
                has_died.store(1, Ordering::Release);
            })
        };
        let round = start(&mut other, all_reduce(), 1);
        let sum = loop {
            match look(&mut other, all_reduce(), round) {
                Some(sum) => break sum,
                None => yield_now(),
            }
            assert_eq!(other.check(|_| has_died.load(Ordering::Acquire) == 0), Ok(()));
        };
        assert_eq!(sum, 6);
        let _ = start(&mut other, Operation::Barrier, 0);
        dies.join().unwrap();
        assert_eq!(other.check(|endpoint| endpoint != 2), Err(lost(1, PeerFault::Died)));
    });
}
