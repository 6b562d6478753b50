//! Tests of groups of endpoints in one process, over shared memory: order, closing, and lost members.

use std::time::{Duration, Instant};

use weir_proto::offload::group::MAX_GROUPS;
use weir_proto::offload::{Combination, WordOperation, WordType};

use super::*;
use crate::config::Settings;
use crate::job::Job;
use crate::operation_times::{Executor, OperationKind};

const SUM: Combination = Combination { operation: WordOperation::Sum, word_type: WordType::U64 };

/// Endpoints that have joined one group, and its number.
struct World {
    engines: Vec<Engine>,
    group: u32,
    _directory: tempfile::TempDir,
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory")
}

fn open(directory: &tempfile::TempDir, members: usize) -> Vec<Engine> {
    let settings = Settings { shm_dir: directory.path().to_owned(), ..Settings::default() };
    (0..members)
        .map(|_| Engine::open(&settings, Job::from(members as u32), false).expect("an endpoint"))
        .collect()
}

fn join(engines: &mut [Engine], rank: usize) -> Result<u32, PostError> {
    let addresses: Vec<_> = engines.iter().map(Engine::address).collect();
    let members = addresses.iter().map(|address| engines[rank].peer(address)).collect();
    engines[rank].join_collective(Post { context: 1, cookie: 0 }, members, rank as u32)
}

fn progress(engines: &mut [Engine]) {
    engines.iter_mut().for_each(|engine| _ = engine.progress());
}

/// The next completion of `rank`, while all make progress.
fn completion(engines: &mut [Engine], rank: usize) -> Completion {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(completion) = engines[rank].next_completion() {
            return completion;
        }
        assert!(Instant::now() < deadline, "nothing completes at {rank}");
        progress(engines);
    }
}

impl World {
    fn of(members: usize) -> World {
        let directory = directory();
        let mut engines = open(&directory, members);
        let groups: Vec<u32> =
            (0..members).map(|rank| join(&mut engines, rank).expect("the first group")).collect();
        for rank in 0..members {
            let Completion { operation, outcome, post, .. } = completion(&mut engines, rank);
            assert_eq!((operation, outcome, post.context), (Operation::Join, Outcome::Done, 1));
        }
        assert!(groups.iter().all(|group| *group == groups[0]), "{groups:?}");
        World { engines, group: groups[0], _directory: directory }
    }

    fn post(
        &mut self,
        rank: usize,
        context: usize,
        operation: CollectiveOperation,
        buffers: [&OwnedMemory; 2],
    ) {
        let [data, result] = buffers.map(OwnedMemory::view);
        let block_bytes = if operation == CollectiveOperation::Barrier { 0 } else { data.bytes() };
        let arguments = CollectiveArguments {
            group: self.group,
            operation,
            block_bytes,
            data,
            result,
            is_awaited: false,
        };
        self.engines[rank].collective(Post { context, cookie: 0 }, arguments).expect("within the bound");
    }

    fn buffers(&self) -> usize {
        self.engines.iter().map(|engine| engine.io.machine_buffers.count()).sum()
    }

    /// No engine knows the group any more, and nothing of it is left.
    fn has_ended(&self) -> bool {
        let is_empty = |engine: &Engine| {
            let Collectives { groups, collectives, under_way, ended, .. } = &engine.io.collectives;
            groups.is_empty() && collectives.count() == 0 && under_way.is_empty() && ended.is_empty()
        };
        self.engines.iter().all(|engine| is_empty(engine) && engine.io.operations.count() == 0)
    }
}

fn words(memory: &OwnedMemory) -> Vec<u64> {
    let mut bytes = vec![0; memory.view().bytes() as usize];
    memory.view().read(0, &mut bytes);
    bytes.chunks(8).map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("8 bytes"))).collect()
}

fn memory(words: impl IntoIterator<Item = u64>) -> OwnedMemory {
    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
    let memory = OwnedMemory::new(bytes.len());
    memory.view().write(0, &bytes);
    memory
}

#[test]
fn operations_of_any_length_keep_the_order_of_their_calls() {
    const OPERATIONS: u64 = 20;
    // Longer than the parts that the machine has under way at once.
    const ELEMENTS: u64 = 4096;
    let mut world = World::of(3);
    let all_reduce = CollectiveOperation::AllReduce { combination: SUM };
    let vector =
        |rank: u64, number: u64| memory((0..ELEMENTS).map(|place| place * 1000 + number * 10 + rank));
    let data: Vec<Vec<OwnedMemory>> =
        (0..3).map(|rank| (0..OPERATIONS).map(|number| vector(rank, number)).collect()).collect();
    let new = || OwnedMemory::new(8 * ELEMENTS as usize);
    let results: Vec<Vec<OwnedMemory>> = (0..3).map(|_| (0..OPERATIONS).map(|_| new()).collect()).collect();
    let none = OwnedMemory::new(0);
    for rank in 0..3 {
        for number in 0..OPERATIONS as usize {
            world.post(rank, number, all_reduce, [&data[rank][number], &results[rank][number]]);
            world.post(rank, 100, CollectiveOperation::Barrier, [&none, &none]);
        }
    }
    for (rank, results) in results.iter().enumerate() {
        let ended: Vec<_> = (0..2 * OPERATIONS).map(|_| completion(&mut world.engines, rank)).collect();
        assert!(ended.iter().all(|it| (it.operation, it.outcome) == (Operation::Collective, Outcome::Done)));
        for number in 0..OPERATIONS {
            let sums = (0..ELEMENTS).map(|place| 3 * (place * 1000 + number * 10) + 3);
            assert!(words(&results[number as usize]).into_iter().eq(sums), "{number} at {rank}");
        }
    }
}

#[test]
fn a_group_ends_when_all_members_have_closed_it_and_leaves_nothing() {
    let mut world = World::of(3);
    let none = OwnedMemory::new(0);
    let (data, result) = (memory([5]), OwnedMemory::new(8));
    for repeat in 0..3 * MAX_GROUPS {
        let is_last = repeat + 1 == 3 * MAX_GROUPS;
        for rank in 0..3 {
            world.post(rank, 7, CollectiveOperation::Broadcast { root: 1 }, [&data, &none]);
            world.post(rank, 8, CollectiveOperation::AllReduce { combination: SUM }, [&data, &result]);
        }
        assert!(!world.engines[0].close_collective(world.group), "it has operations");
        for rank in [2, 0, 1] {
            let ended = [7, 8].map(|_| completion(&mut world.engines, rank).outcome);
            assert_eq!(ended, [Outcome::Done; 2]);
            // The others need this member no more, also if they have not ended.
            assert!(world.engines[rank].close_collective(world.group));
        }
        if is_last {
            break;
        }
        let groups: Vec<_> = (0..3).map(|rank| join(&mut world.engines, rank)).collect();
        let group = groups[0].expect("the one before is closed, or about to");
        assert!(group != world.group && groups.iter().all(|it| *it == Ok(group)), "{groups:?}");
        world.group = group;
        for rank in 0..3 {
            assert_eq!(completion(&mut world.engines, rank).outcome, Outcome::Done);
        }
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while !world.has_ended() {
        assert!(Instant::now() < deadline, "a group stays");
        progress(&mut world.engines);
    }
    assert_eq!(world.buffers(), 0);
    assert_eq!(world.engines[0].io.collectives.joined.len(), 1, "one digest for these members");
}

#[test]
fn a_lost_member_ends_the_operations_of_all_others_and_the_group_can_be_closed() {
    let mut world = World::of(4);
    let none = OwnedMemory::new(0);
    let (data, result) = (memory(0..10_000), OwnedMemory::new(80_000));
    for rank in [0, 1, 3] {
        world.post(rank, 1, CollectiveOperation::Barrier, [&none, &none]);
        world.post(rank, 2, CollectiveOperation::AllReduce { combination: SUM }, [&data, &result]);
    }
    progress(&mut world.engines);
    let mut closing = world.engines.remove(2);
    closing.close();
    drop(closing);
    for rank in 0..3 {
        for _ in 0..2 {
            let ended = completion(&mut world.engines, rank);
            assert!(matches!(ended.outcome, Outcome::Lost { .. }), "{ended:?}");
        }
        world.post(rank, 3, CollectiveOperation::Barrier, [&none, &none]);
        let ended = completion(&mut world.engines, rank);
        assert!(matches!(ended.outcome, Outcome::Lost { .. }), "{ended:?}");
        assert!(world.engines[rank].close_collective(world.group));
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while !world.has_ended() || world.buffers() > 0 {
        assert!(Instant::now() < deadline, "{} buffers", world.buffers());
        progress(&mut world.engines);
    }
}

#[test]
fn nothing_is_left_of_operations_with_a_ticket_whose_group_is_abandoned() {
    let mut world = World::of(3);
    let operation = CollectiveOperation::AllReduce { combination: SUM };
    let start = |engine: &mut Engine, group| {
        // More than the machine takes at once.
        let start =
            |_| engine.collective_quietly(group, operation, 512, &[1; 512]).expect("within the bound");
        (0..12).map(start).collect::<Vec<_>>()
    };
    let mut tickets: Vec<Vec<Ticket>> =
        (0..2).map(|rank| start(&mut world.engines[rank], world.group)).collect();
    progress(&mut world.engines);
    world.engines[0].abandon_collective(world.group);
    let deadline = Instant::now() + Duration::from_secs(60);
    for ticket in tickets.remove(1) {
        let ended = loop {
            assert!(Instant::now() < deadline, "no end");
            progress(&mut world.engines);
            if let Some(ended) = world.engines[1].ended_quietly(&ticket) {
                break ended;
            }
        };
        assert!(matches!(ended.outcome, Outcome::Lost { .. }) && ended.result.is_empty(), "{ended:?}");
    }
    (1..3).for_each(|rank| world.engines[rank].abandon_collective(world.group));
    while !world.has_ended() || world.buffers() > 0 {
        assert!(Instant::now() < deadline, "{} buffers", world.buffers());
        progress(&mut world.engines);
    }
    let ended = tickets.remove(0).iter().filter_map(|ticket| world.engines[0].ended_quietly(ticket)).count();
    assert_eq!(ended, 0, "who abandons a group hears nothing of it");
}

#[test]
fn a_join_ends_when_all_have_called_and_fails_when_one_gives_up() {
    let directory = directory();
    let mut engines = open(&directory, 3);
    let group = join(&mut engines, 0).expect("the first group");
    join(&mut engines, 1).expect("the first group");
    (0..1000).for_each(|_| progress(&mut engines));
    assert!(!engines[0].has_completions() && engines[0].collective_group(group).is_none());
    let refused = engines[0].collective(
        Post { context: 5, cookie: 0 },
        CollectiveArguments {
            group,
            operation: CollectiveOperation::Barrier,
            block_bytes: 0,
            data: UserMemory::EMPTY,
            result: UserMemory::EMPTY,
            is_awaited: false,
        },
    );
    assert_eq!(refused, Ok(()));
    assert_eq!(completion(&mut engines, 0).outcome, Outcome::Refused, "not all have joined");
    assert!(engines[1].close_collective(group));
    let ended = completion(&mut engines, 0);
    assert!(matches!((ended.operation, ended.outcome), (Operation::Join, Outcome::Lost { .. })), "{ended:?}");
    assert!(!engines[1].has_completions(), "nobody is told of a group that the program has closed");
    assert!(engines[0].close_collective(group));
}

#[test]
fn an_endpoint_that_closes_waits_until_others_need_its_group_no_more() {
    let mut world = World::of(2);
    assert!(world.engines[0].close_collective(world.group));
    let mut closing = world.engines.remove(0);
    closing.begin_close();
    for _ in 0..1000 {
        assert!(!closing.close_step(&[]).done, "the other member has not closed the group");
    }
    assert!(world.engines[0].close_collective(world.group));
    while !closing.close_step(&[]).done {
        world.engines[0].progress();
    }
    assert_eq!(closing.end_close(), None);
}

#[test]
fn numbers_of_groups_differ_by_members_and_meetings() {
    let mut numbers: Vec<u32> = (0..1000_u32)
        .flat_map(|members| {
            let mut hash = FnvHasher::default();
            hash.write(&members.to_le_bytes());
            let digest = hash.finish();
            (0..10).map(move |meetings| group_number(digest, meetings))
        })
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 10_000);
}

#[test]
fn operations_are_counted_by_kind_and_the_skew_only_of_who_waits_for_the_end() {
    let mut world = World::of(2);
    let nothing = memory([]);
    for rank in 0..2 {
        let group = world.group;
        let (data, result, block_bytes) = (nothing.view(), nothing.view(), 0);
        let operation = CollectiveOperation::Barrier;
        let arguments =
            CollectiveArguments { group, operation, block_bytes, data, result, is_awaited: rank == 1 };
        world.engines[rank].collective(Post::default(), arguments).expect("within the bound");
    }
    (0..2).for_each(|rank| assert_eq!(completion(&mut world.engines, rank).outcome, Outcome::Done));
    for (rank, known) in [(0, 0), (1, 1)] {
        let [(class, sums)] = world.engines[rank].operation_times().in_ns()[..] else { panic!("one class") };
        assert_eq!((class.kind, class.executor), (OperationKind::Barrier, Executor::Messages));
        assert_eq!((sums.count, sums.skew_known, class.is_blocking), (1, known, rank == 1), "not the join");
        assert!(sums.time > 0 && sums.skew <= sums.time, "{sums:?}");
    }
}
