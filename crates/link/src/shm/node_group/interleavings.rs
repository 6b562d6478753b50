//! Tests of the rounds in one process: exact ones of each operation, and interleavings of members. `make test-loom` tries
//! all interleavings with a few preemptions; otherwise those tests run many times.

use super::rounds::{GroupFailure, GroupWords, MAX_ROUNDS, Operation, Round, Rounds, group_words};
use crate::shm::sync::{Arc, AtomicU64, Ordering, explore, thread, yield_now};
use core::ops::Deref;
use weir_proto::PeerFault;
use weir_proto::offload::reduce::Vector;
use weir_proto::offload::{Combination, WordOperation, WordType};

struct Heap(Arc<Vec<AtomicU64>>);

impl Deref for Heap {
    type Target = [AtomicU64];
    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

type Member = Rounds<Heap>;

/// The members of a group. The endpoint of rank `i` is `i + 1`.
fn group(members: u32) -> Vec<Member> {
    let words = Arc::new((0..group_words(members)).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
    let endpoints: Vec<u64> = (1..=members.into()).collect();
    GroupWords::new(&words, members).clear(&endpoints);
    let join = |rank| {
        GroupWords::new(&words, members).join(rank);
        Rounds::new(Heap(Arc::clone(&words)), members, rank)
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

fn start(member: &mut Member, operation: Operation, value: u64) -> Round {
    let data = value.to_ne_bytes();
    let data = &data[..operation.data_bytes(member.rank())];
    member.start(operation, data).expect("no failure").expect("not held back")
}

/// Runs `part` for each member in a thread of its own.
fn in_threads(members: Vec<Member>, part: fn(&mut Member)) {
    let start = |mut member| thread::spawn(move || part(&mut member));
    let threads: Vec<_> = members.into_iter().map(start).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// The result of a round, if it has finished.
fn look(member: &mut Member, operation: Operation, round: Round) -> Option<u64> {
    let mut bytes = [0; 8];
    let result = &mut bytes[..operation.result_bytes(member.rank())];
    member.test(round, result).expect("no failure").then_some(u64::from_ne_bytes(bytes))
}

fn run(member: &mut Member, operation: Operation, value: u64) -> u64 {
    let data = value.to_ne_bytes();
    let data = &data[..operation.data_bytes(member.rank())];
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
            let mut result = vec![0; ours.result_bytes(0)];
            let failure = lost(1, PeerFault::Malformed);
            assert_eq!(members[0].test(round, &mut result), Err(failure));
            assert_eq!(
                members[0].start(ours, &[0; 8][..ours.data_bytes(0)]),
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
