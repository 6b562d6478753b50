//! Tests of groups with real node segments: joining, the table, and members and makers that are killed at each step.

use super::operation::Part;
use super::rounds::WriteStep;
use super::*;
use crate::shm::ShmLink;
use crate::shm::node_segment::NodeSegment;
use crate::shm::node_segment::tests::{key, open};
use std::path::Path;
use weir_proto::offload::reduce::Vector;
use weir_proto::offload::{Combination, WordOperation, WordType};

/// An endpoint of the job in `dir`. Dropped in this order.
struct Member {
    groups: NodeGroups,
    node: NodeSegment,
    _link: ShmLink,
}

impl Member {
    fn new(dir: &Path) -> Member {
        let link = open(dir);
        let node = NodeSegment::join(&link, key()).expect("joined");
        let groups = NodeGroups::open(node.handle()).expect("a table");
        Member { groups, node, _link: link }
    }

    fn endpoint(&self) -> u64 {
        self.node.handle().endpoint()
    }

    fn join(&self, key: u64, members: &[u64], rank: u32) -> NodeGroup {
        until(|| self.groups.join(key, members, rank).expect("no error"))
    }
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory")
}

fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "not within 20 s");
        std::thread::yield_now();
    }
}

const SUM: Operation = Operation::AllReduce(Vector {
    bytes: 8,
    combination: Combination { operation: WordOperation::Sum, word_type: WordType::U64 },
});

/// What the member `rank` contributes, if each of its words is `value`.
fn words(operation: Operation, rank: u32, members: u32, value: u64) -> Vec<u8> {
    value.to_ne_bytes().repeat(operation.data_bytes(rank, members) / 8)
}

/// Performs an operation in which all words of each member are its `value`. Returns the sum of the words of the result,
/// which is the sum of the values for a sum, and for an exchange of one word with every member.
fn total(group: &mut NodeGroup, operation: Operation, value: u64) -> Result<u64, GroupFailure> {
    let (rank, members) = (group.rounds.rank(), group.rounds.words().members().end);
    let mut result = vec![0; operation.result_bytes(rank, members)];
    let data = words(operation, rank, members, value);
    group.perform(operation, &data, &mut result, std::thread::yield_now)?;
    Ok(result.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).sum())
}

/// The sum of the values of all members.
fn sum(group: &mut NodeGroup, value: u64) -> Result<u64, GroupFailure> {
    total(group, SUM, value)
}

/// The endpoints of all members of the job, when there are `count`. All see them in one order.
fn endpoints(node: &NodeSegment, count: usize) -> Vec<u64> {
    until(|| {
        let mut endpoints: Vec<u64> = node.members().iter().map(|(_, member)| member.endpoint).collect();
        endpoints.sort_unstable();
        (endpoints.len() == count).then_some(endpoints)
    })
}

fn fork(act: impl FnOnce()) -> i32 {
    // SAFETY: the child acts and ends. It never returns into the parent's code.
    match unsafe { libc::fork() } {
        0 => {
            let is_fine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_ok();
            // SAFETY: ends this process.
            unsafe { libc::_exit(i32::from(!is_fine)) }
        }
        child => {
            assert!(child > 0);
            child
        }
    }
}

/// Waits for the end of a child. Returns its status.
fn reap(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

fn kill_self() {
    // SAFETY: ends this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

#[test]
fn processes_do_the_same_operations_in_several_groups_at_once() {
    let dir = directory();
    let act = |seed: u64| {
        let own = Member::new(dir.path());
        let members = endpoints(&own.node, 4);
        let rank = members.iter().position(|&member| member == own.endpoint()).expect("a member") as u32;
        let mut all = own.join(1, &members, rank);
        let half: Vec<u64> = members.iter().copied().skip(rank as usize % 2).step_by(2).collect();
        let mut pair = own.join(2 + u64::from(rank % 2), &half, rank / 2);
        let members = members.len() as u64;
        let mut long = vec![0; 20_000];
        for round in 0..2000 {
            assert_eq!(sum(&mut all, round + u64::from(rank)), Ok(members * round + 6));
            let root = (round % members) as u32;
            let operation = Operation::Broadcast { root, bytes: long.len() as u32 };
            if rank == root {
                all.perform(operation, &vec![round as u8; long.len()], &mut [], std::thread::yield_now)
            } else {
                all.perform(operation, &[], &mut long, std::thread::yield_now)
            }
            .expect("no failure");
            assert!(rank == root || long.iter().all(|&byte| byte == round as u8), "round {round}");
            let started = pair.start(SUM, &u64::from(rank).to_ne_bytes()).expect("no failure");
            all.perform(Operation::Barrier, &[], &mut [], std::thread::yield_now).expect("no failure");
            let mut result = [0; 8];
            pair.wait(started.expect("room"), &mut result, std::thread::yield_now).expect("no failure");
            assert_eq!(u64::from_ne_bytes(result), 2 + 2 * u64::from(rank % 2), "seed {seed}");
            let bytes = 8 * (round as usize % 2000);
            let mut blocks = vec![0; bytes * members as usize];
            let all_to_all = Operation::AllToAll { bytes: bytes as u32 };
            let data = vec![rank as u8; blocks.len()];
            all.perform(all_to_all, &data, &mut blocks, std::thread::yield_now).expect("no failure");
            let mut blocks = (0..).zip(blocks.chunks(bytes.max(1)));
            assert!(blocks.all(|(from, block)| block.iter().all(|&byte| byte == from)), "round {round}");
        }
    };
    let children = [0, 1, 2, 3].map(|seed| fork(|| act(seed)));
    assert_eq!(children.map(reap), [0; 4]);
}

#[test]
fn a_group_has_the_memory_that_the_text_above_states() {
    let kib = |members| group_bytes(members).div_ceil(1024);
    assert!((1..=8).all(|members| kib(members) <= 33 * u64::from(members)));
    assert_eq!([16, 256].map(kib), [1027, 2091]);
    assert!((17..=128).all(|members| kib(members) <= 1050));
    assert!((1..=MAX_MEMBERS).all(|members| kib(members) <= 2091));
}

#[test]
fn a_list_that_makes_no_group_is_refused() {
    let dir = directory();
    let own = Member::new(dir.path());
    let me = own.endpoint();
    let too_many: Vec<u64> = (0..=u64::from(MAX_MEMBERS)).map(|number| me.wrapping_add(number)).collect();
    for (members, rank) in [(&[][..], 0), (&[me, me], 0), (&[me + 1], 0), (&[me], 1), (&too_many, 0)] {
        let joined = own.groups.join(1, members, rank);
        assert!(matches!(joined, Err(JoinError::Members { .. })), "{joined:?}");
    }
}

#[test]
fn a_full_table_is_an_error_until_a_group_ends_whoever_leaves_last() {
    let dir = directory();
    let (first, second) = (Member::new(dir.path()), Member::new(dir.path()));
    let members = [first.endpoint(), second.endpoint()];
    let mut groups: Vec<_> =
        (0..MAX_GROUPS).map(|key| (first.join(key, &members, 0), second.join(key, &members, 1))).collect();
    let alone = [second.endpoint()];
    assert!(matches!(second.groups.join(500, &alone, 0), Err(JoinError::Full { groups: MAX_GROUPS })));
    let (of_first, of_second) = groups.swap_remove(5);
    drop(of_first);
    assert!(matches!(second.groups.join(500, &alone, 0), Err(JoinError::Full { .. })), "one has not left");
    drop(of_second);
    let mut again = second.join(500, &alone, 0);
    assert_eq!(sum(&mut again, 3), Ok(3));
    // The key of a group that has ended may come again.
    drop(again);
    let (_first, _second) = (first.join(5, &members, 0), second.join(5, &members, 1));
    assert!(matches!(second.groups.join(501, &alone, 0), Err(JoinError::Full { .. })));
}

#[test]
fn a_group_whose_first_member_has_ended_cannot_be_joined() {
    let dir = directory();
    let (first, second) = (Member::new(dir.path()), Member::new(dir.path()));
    let members = [first.endpoint(), second.endpoint()];
    assert!(second.groups.join(1, &members, 1).expect("no error").is_none(), "not made yet");
    drop(first);
    let joined = second.groups.join(1, &members, 1);
    let died = GroupFailure { member: 0, fault: PeerFault::Died };
    assert!(matches!(joined, Err(JoinError::Failed(failure)) if failure == died), "{joined:?}");
}

/// Two survivors of a group. A third member does `act` and is killed: it is `victim_rank` in the list. Returns what each
/// survivor gets from `calls`.
fn survivors(
    victim_rank: u32,
    act: impl Fn(&Member, &[u64]),
    calls: impl Fn(&mut NodeGroup) -> Vec<Result<u64, GroupFailure>> + Sync,
) -> [Vec<Result<u64, GroupFailure>>; 2] {
    let dir = directory();
    let own = [Member::new(dir.path()), Member::new(dir.path())];
    let seen = dir.path().join("seen");
    let child = fork(|| {
        let victim = Member::new(dir.path());
        let members = in_order(&endpoints(&victim.node, 3), victim.endpoint(), victim_rank);
        until(|| seen.exists().then_some(()));
        act(&victim, &members);
        kill_self();
    });
    let all = endpoints(&own[0].node, 3);
    std::fs::write(&seen, "").expect("written");
    let is_ours = |endpoint: &u64| own.iter().any(|member| member.endpoint() == *endpoint);
    let victim = *all.iter().find(|endpoint| !is_ours(endpoint)).expect("the victim");
    let members = in_order(&all, victim, victim_rank);
    let work = |groups: &NodeGroups| {
        let rank =
            members.iter().position(|&endpoint| endpoint == groups.handle.endpoint()).expect("a member")
                as u32;
        let joined = loop {
            match groups.join(9, &members, rank) {
                Ok(None) => std::thread::yield_now(),
                Ok(Some(group)) => break group,
                Err(JoinError::Failed(failure)) => return vec![Err(failure)],
                Err(other) => panic!("{other}"),
            }
        };
        let mut group = joined;
        calls(&mut group)
    };
    let begun = Instant::now();
    let found = std::thread::scope(|scope| {
        own.each_ref()
            .map(|member| (&member.groups, &work))
            .map(|(groups, work)| scope.spawn(move || work(groups)))
            .map(|worker| worker.join().expect("no panic"))
    });
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(libc::WIFSIGNALED(reap(child)), "the victim reached its step");
    // Whatever it has left, the entry is used again: a new group of the survivors works.
    let pair = own.each_ref().map(Member::endpoint);
    let (mut first, second) = (own[0].join(10, &pair, 0), own[1].join(10, &pair, 1));
    drop(second);
    let gone = GroupFailure { member: 1, fault: PeerFault::Closed };
    assert_eq!(sum(&mut first, 1), Err(gone));
    drop(first);
    let used = |member: &Member| member.groups.entries().filter(|(_, entry)| entry.shown().is_some()).count();
    assert_eq!(used(&own[0]), 1);
    found
}

/// The endpoints with `victim` at `rank`.
fn in_order(all: &[u64], victim: u64, rank: u32) -> Vec<u64> {
    let mut members: Vec<u64> = all.iter().copied().filter(|&endpoint| endpoint != victim).collect();
    members.insert(rank as usize, victim);
    members
}

#[test]
fn a_member_killed_at_any_step_of_an_operation_is_an_error_at_the_others() {
    for operation in [SUM, Operation::AllToAll { bytes: 8 }, Operation::AllGather { bytes: 8 }] {
        for (rank, last) in [
            (0, None),
            (0, Some(WriteStep::Data)),
            (0, Some(WriteStep::Round)),
            (2, Some(WriteStep::Data)),
            (2, Some(WriteStep::Round)),
        ] {
            let act = |victim: &Member, members: &[u64]| {
                let mut group = victim.join(9, members, rank);
                assert_eq!(total(&mut group, operation, 5), Ok(7));
                if let Some(last) = last {
                    let (part, data) = (Part { from: 0, bytes: 8 }, words(operation, rank, 3, 5));
                    group.rounds.write(2, operation, operation.digest(), part, &data, last);
                }
                // The others can only have joined by now. The victim does not leave.
                std::mem::forget(group);
            };
            let found = survivors(rank, act, |group| (0..4).map(|_| total(group, operation, 1)).collect());
            let died = Err(GroupFailure { member: rank, fault: PeerFault::Died });
            let second = if last == Some(WriteStep::Round) { Ok(7) } else { died };
            for results in found {
                assert_eq!(results, [Ok(7), second, died, died], "{operation:?}, {last:?} at rank {rank}");
            }
        }
    }
}

#[test]
fn a_member_killed_amid_a_long_operation_is_an_error_at_the_others() {
    let long = |group: &NodeGroup| {
        let operation = Operation::Broadcast { root: 0, bytes: 1 << 20 };
        (group.task(operation), operation)
    };
    let found = survivors(
        0,
        |victim, members| {
            let mut group = victim.join(9, members, 0);
            let (mut task, _) = long(&group);
            assert_eq!(group.advance(&mut task, &vec![7; 1 << 20], &mut []), Ok(false), "more than fits");
            std::mem::forget(group);
        },
        |group| {
            let (_, operation) = long(group);
            let mut result = vec![0; 1 << 20];
            let ended = group.perform(operation, &[], &mut result, std::thread::yield_now);
            assert!(result[0] == 7 && *result.last().expect("bytes") == 0, "a part has arrived");
            vec![ended.map(|()| 0)]
        },
    );
    let died = Err(GroupFailure { member: 0, fault: PeerFault::Died });
    assert_eq!(found, [vec![died], vec![died]]);
}

#[test]
fn a_member_killed_at_any_step_of_joining_is_an_error_at_the_others() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum JoinStep {
        Nothing,
        Taken,
        Shown,
        Joined,
    }
    use JoinStep::{Joined, Nothing, Shown, Taken};
    for (rank, last) in [(0, Nothing), (0, Taken), (0, Shown), (0, Joined), (1, Nothing), (1, Joined)] {
        let act = |victim: &Member, members: &[u64]| match last {
            Nothing => {}
            Taken => {
                let taken = victim
                    .groups
                    .entries()
                    .find(|(_, entry)| entry.take(victim.node.index(), |_| true, |_| true));
                assert!(taken.is_some());
            }
            Shown => drop(victim.groups.make(9, members).expect("memory")),
            Joined => std::mem::forget(victim.join(9, members, rank)),
        };
        let found = survivors(rank, act, |group| vec![sum(group, 1)]);
        let died = Err(GroupFailure { member: rank, fault: PeerFault::Died });
        assert_eq!(found, [vec![died], vec![died]], "{last:?} at rank {rank}");
    }
}

#[test]
fn a_member_that_leaves_is_an_error_at_those_that_wait_for_it() {
    let dir = directory();
    let (first, second) = (Member::new(dir.path()), Member::new(dir.path()));
    let members = [first.endpoint(), second.endpoint()];
    let (mut waits, leaves) = (first.join(1, &members, 0), second.join(1, &members, 1));
    drop(leaves);
    assert_eq!(sum(&mut waits, 1), Err(GroupFailure { member: 1, fault: PeerFault::Closed }));
}

/// Processor time of this thread.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the time to our own variable.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_long_wait_takes_little_processor_time_whoever_is_waited_for() {
    let dir = directory();
    let own = [Member::new(dir.path()), Member::new(dir.path())];
    let members = own.each_ref().map(Member::endpoint);
    let mut groups = [0, 1].map(|rank| own[rank].join(1, &members, rank as u32));
    // One waits for a contribution, then the other one for a place to write.
    let long = Operation::Broadcast { root: 0, bytes: 1 << 16 };
    let [first, second] = &mut groups;
    let wait = Duration::from_millis(300);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let before = thread_time();
            let summed = sum(first, 1);
            first.perform(long, &[9; 1 << 16], &mut [], std::thread::yield_now).expect("no failure");
            (summed, thread_time() - before)
        });
        std::thread::sleep(wait);
        assert_eq!(sum(second, 2), Ok(3));
        std::thread::sleep(wait);
        let mut bytes = [0; 1 << 16];
        second.perform(long, &[], &mut bytes, std::thread::yield_now).expect("no failure");
        assert_eq!(bytes, [9; 1 << 16]);
        let (summed, time) = waits.join().expect("no panic");
        assert_eq!(summed, Ok(3));
        assert!(time < wait / 3, "{time:?} of {wait:?} twice");
    });
}

#[test]
fn a_forked_child_does_not_leave_for_its_parent() {
    let dir = directory();
    let own = Member::new(dir.path());
    let mut group = own.join(1, &[own.endpoint()], 0);
    let words = |group: &NodeGroup| group.rounds.words().has_ended(|_| true);
    // The child drops its copy of the value, and nothing else.
    // SAFETY: reads the value a second time. In the child the first one is never dropped.
    let child = fork(|| drop(unsafe { std::ptr::read(&raw const group) }));
    assert_eq!(reap(child), 0);
    assert!(!words(&group));
    assert_eq!(sum(&mut group, 4), Ok(4));
}
