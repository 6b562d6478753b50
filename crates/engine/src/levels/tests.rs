//! Tests of groups on several nodes, in one process: each node is a directory of mailboxes, with UDP between them.

use std::time::{Duration, Instant};

use weir_link::shm::node_group::NodeGroups;
use weir_link::shm::node_segment::JobKey;
use weir_proto::offload::reduce::Vector;
use weir_proto::offload::{Combination, WordOperation, WordType};

use super::*;
use crate::config::{LinkChoice, Settings};
use crate::job::{Job, Ranks};

const LONG: Duration = Duration::from_secs(60);

struct Member {
    /// Before the engine, whose mailbox must be open when it is dropped.
    group: Option<LevelGroup>,
    engine: Engine,
}

/// Endpoints on nodes, all of which are in one group after the other.
struct World {
    members: Vec<Member>,
    placement: Vec<u64>,
    /// Node groups of each node: one for one operation at a time, two for several.
    node_groups: u64,
    groups: u32,
    _directories: Vec<tempfile::TempDir>,
}

/// A sequence of numbers.
struct Draws(u64);

impl Draws {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

impl World {
    /// - `placement`: the node of each rank.
    fn new(placement: &[u64]) -> World {
        World::with_node_groups(placement, 1)
    }

    fn with_node_groups(placement: &[u64], node_groups: u64) -> World {
        let nodes = placement.iter().max().expect("members") + 1;
        let new_directory = |_| tempfile::tempdir_in("/dev/shm").expect("a directory");
        let directories: Vec<_> = (0..nodes).map(new_directory).collect();
        let members = placement.iter().map(|&node| {
            let settings = Settings {
                shm_dir: directories[node as usize].path().to_owned(),
                links: LinkChoice::Both,
                net: Some(String::from("127.0.0.1")),
                close_ms: 100,
                ..Settings::default()
            };
            let near = placement.iter().filter(|&&other| other == node).count() as u32;
            let ranks = Ranks { node: near, job: placement.len() as u32 };
            let job = Job::known(ranks, JobKey::new(&"levels"));
            Member { group: None, engine: Engine::open(&settings, job, false).expect("an endpoint") }
        });
        let members = members.collect();
        let placement = placement.to_vec();
        let mut world = World { members, placement, node_groups, groups: 0, _directories: directories };
        world.join();
        world
    }

    fn join(&mut self) {
        self.groups += 1;
        let addresses: Vec<_> = self.members.iter().map(|member| member.engine.address()).collect();
        let handles: Vec<_> =
            self.members.iter().map(|member| member.engine.node_handle().expect("a segment")).collect();
        let endpoints: Vec<u64> = handles.iter().map(|handle| handle.endpoint()).collect();
        for (rank, member) in self.members.iter_mut().enumerate() {
            let layout = Layout::new(&self.placement, rank as u32).expect("few members");
            let ours: Vec<u64> = layout.neighbours().iter().map(|rank| endpoints[*rank as usize]).collect();
            let join = |number: u64| {
                let groups = NodeGroups::open(handles[rank].clone()).expect("memory");
                let key = u64::from(self.groups) * 2 + number;
                groups.join(key, &ours, layout.place()).expect("room").expect("made before")
            };
            let count = if ours.len() > 1 { self.node_groups } else { 0 };
            let nodes = (0..count).map(join).collect();
            let participants: Vec<u32> = layout.participants().collect();
            let mut group = LevelGroup::new(layout, nodes);
            if group.needs_engine() {
                let engine = &mut member.engine;
                let peers = participants.iter().map(|rank| engine.peer(&addresses[*rank as usize]));
                let peers = peers.collect();
                group.join_network(engine, self.groups, peers).expect("few groups");
            }
            member.group = Some(group);
        }
        let deadline = Instant::now() + LONG;
        let mut have_joined = vec![false; self.members.len()];
        while have_joined.contains(&false) {
            assert!(Instant::now() < deadline, "not all join: {have_joined:?}");
            for (member, has_joined) in self.members.iter_mut().zip(&mut have_joined) {
                member.engine.progress();
                let group = member.group.as_mut().expect("made above");
                *has_joined |= group.has_joined(&mut member.engine) == Some(true);
            }
        }
    }

    fn leave(&mut self) {
        for Member { group, engine } in &mut self.members {
            group.take().expect("a member").leave(engine);
        }
    }

    /// Performs operations at all members, in the order that `draws` says. Each member begins them in their order, `most` or
    /// fewer before it has ended the first. Returns what each one got, by operation and member.
    fn perform_together(
        &mut self,
        operations: &[(Operation, Vec<Vec<u8>>)],
        most: usize,
        draws: &mut Draws,
    ) -> Vec<Vec<Vec<u8>>> {
        let members = self.placement.len();
        let room = |(operation, _): &(Operation, _)| {
            let result = |rank| vec![0xee; Operation::result_bytes(*operation, rank, members as u32)];
            (0..members as u32).map(result).collect::<Vec<_>>()
        };
        let mut results: Vec<_> = operations.iter().map(room).collect();
        let mut begun = vec![0; members];
        let mut tasks: Vec<VecDeque<(usize, LevelTask)>> = (0..members).map(|_| VecDeque::new()).collect();
        let deadline = Instant::now() + LONG;
        while begun.iter().any(|begun| *begun < operations.len())
            || tasks.iter().any(|tasks| !tasks.is_empty())
        {
            assert!(Instant::now() < deadline, "no end: {begun:?} begun, {tasks:?}");
            let rank = draws.next(members);
            let Some(Member { group: Some(group), engine }) = self.members.get_mut(rank) else { continue };
            let tasks = &mut tasks[rank];
            let may_begin = tasks.len() < most && tasks.back().is_none_or(|(_, task)| task.has_begun());
            if may_begin && begun[rank] < operations.len() && draws.next(2) == 0 {
                tasks.push_back((begun[rank], group.task(operations[begun[rank]].0)));
                begun[rank] += 1;
            } else if draws.next(8) == 0 {
                engine.progress();
            }
            tasks.retain_mut(|(number, task)| {
                let (data, result) = (&operations[*number].1[rank], &mut results[*number][rank]);
                loop {
                    match group.advance(task, data, result).expect("all are there") {
                        Step::Network if group.advance_network(engine, task).expect("all are there") => {}
                        step => return step != Step::Done,
                    }
                }
            });
        }
        results
    }

    /// Performs an operation at all members, in the order that `draws` says. Returns what each one got, or its failure.
    fn perform(
        &mut self,
        operation: Operation,
        data: &[Vec<u8>],
        draws: &mut Draws,
    ) -> Vec<Result<Vec<u8>, LevelFailure>> {
        let members = self.placement.len() as u32;
        let result = |rank| vec![0xee; operation.result_bytes(rank, members)];
        let mut results: Vec<Vec<u8>> = (0..members).map(result).collect();
        let mut tasks: Vec<_> = (0..members).map(|_| None).collect();
        let mut ended: Vec<Option<Result<(), LevelFailure>>> = vec![None; members as usize];
        let deadline = Instant::now() + LONG;
        while let Some(first) = ended.iter().position(Option::is_none) {
            assert!(Instant::now() < deadline, "{operation:?} does not end at {first}");
            let rank = draws.next(members as usize);
            let Some(Member { group: Some(group), engine }) = self.members.get_mut(rank) else { continue };
            engine.progress();
            if ended[rank].is_some() {
                continue;
            }
            let task = tasks[rank].get_or_insert_with(|| group.task(operation));
            let step = group.advance(task, &data[rank], &mut results[rank]);
            let step = match step {
                Ok(Step::Network) => group.advance_network(engine, task).map(|_| Step::Network),
                Ok(Step::Node) => group.check().map(|()| Step::Node),
                other => other,
            };
            match step {
                Ok(Step::Done) => ended[rank] = Some(Ok(())),
                Ok(_) => {}
                Err(failure) => {
                    group.leave(engine);
                    ended[rank] = Some(Err(failure));
                }
            }
        }
        let ended = ended.into_iter().flatten();
        ended.zip(results).map(|(ended, result)| ended.map(|()| result)).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for Member { group, engine } in &mut self.members {
            if let Some(mut group) = group.take() {
                group.leave(engine);
            }
            engine.begin_close();
        }
        // Each waits for the others.
        let step = |member: &mut Member| u32::from(!member.engine.close_step(&[]).done);
        while self.members.iter_mut().map(step).sum::<u32>() > 0 {}
        self.members.iter_mut().for_each(|member| _ = member.engine.end_close());
    }
}

/// What a member gets, computed plainly. `None`: nothing.
fn expected(operation: Operation, data: &[Vec<u8>], rank: usize) -> Vec<u8> {
    let combined = |vector: Vector| {
        let mut sum = data[0].clone();
        data[1..].iter().for_each(|data| vector.combination.combine(&mut sum, data));
        sum
    };
    match operation {
        Operation::AllReduce(vector) => combined(vector),
        Operation::Reduce { root, vector } if root as usize == rank => combined(vector),
        Operation::Broadcast { root, .. } if root as usize != rank => data[root as usize].clone(),
        Operation::AllGather { .. } => data.concat(),
        Operation::Gather { root, .. } if root as usize == rank => data.concat(),
        Operation::Scatter { root, bytes } if root as usize != rank => {
            data[root as usize][rank * bytes as usize..][..bytes as usize].to_vec()
        }
        Operation::AllToAll { bytes } => {
            data.iter().flat_map(|from| from[rank * bytes as usize..][..bytes as usize].to_vec()).collect()
        }
        _ => Vec::new(),
    }
}

fn draw_operation(draws: &mut Draws, members: usize) -> Operation {
    let root = draws.next(members) as u32;
    let word_type = WordType::ALL[draws.next(WordType::ALL.len())];
    let operation =
        [WordOperation::Sum, WordOperation::Product, WordOperation::Min, WordOperation::Max][draws.next(4)];
    let combination = Combination { operation, word_type };
    let elements = if draws.next(4) == 0 { draws.next(100) } else { draws.next(4) } as u32 + 1;
    let vector = Vector { bytes: elements * word_type.bytes(), combination };
    let bytes = if draws.next(4) == 0 { draws.next(MOST_GATHERED_BYTES) as u32 } else { elements };
    match draws.next(9) {
        0 => Operation::Barrier,
        1 => Operation::Reduce { root, vector },
        2 => Operation::Broadcast { root, bytes },
        3 => Operation::AllGather { bytes: bytes / 16 },
        4 => Operation::Gather { root, bytes: bytes / 16 },
        5 => Operation::Scatter { root, bytes: bytes / 16 },
        6 => Operation::AllToAll { bytes: bytes / 64 },
        _ => Operation::AllReduce(vector),
    }
}

/// Random contributions. Floats have any size, so that their sums depend on the order.
fn draw_data(operation: Operation, members: usize, draws: &mut Draws) -> Vec<Vec<u8>> {
    let of = |rank: usize, draws: &mut Draws| {
        let bytes = operation.data_bytes(rank as u32, members as u32);
        let mut random = || ((draws.next(1 << 30) as f64) - 5e8) * 10_f64.powi(draws.next(30) as i32 - 15);
        let is_float = |vector: Vector| !vector.combination.word_type.is_integer();
        let mut data = Vec::new();
        while data.len() < bytes {
            match operation {
                Operation::AllReduce(vector) | Operation::Reduce { vector, .. } if is_float(vector) => {
                    match vector.combination.word_type.bytes() {
                        4 => data.extend((random() as f32).to_ne_bytes()),
                        _ => data.extend(random().to_ne_bytes()),
                    }
                }
                _ => data.extend(random().to_ne_bytes()),
            }
        }
        data.truncate(bytes);
        data
    };
    (0..members).map(|rank| of(rank, draws)).collect()
}

#[test]
fn results_have_the_bits_of_one_node_wherever_the_ranks_are() {
    let placements: [&[u64]; 7] = [
        &[0, 1],
        &[0, 0, 1, 1],
        &[0, 1, 0, 1, 0],
        &[0, 0, 0, 1],
        &[0, 1, 1, 2],
        &[0, 1, 2],
        &[0, 1, 2, 3, 4, 0],
    ];
    for (seed, placement) in placements.into_iter().enumerate() {
        let (mut world, mut draws) = (World::new(placement), Draws(seed as u64));
        for number in 0..90 {
            let operation = draw_operation(&mut draws, placement.len());
            if !world.members[0].group.as_ref().expect("a member").layout().takes(operation) {
                continue;
            }
            let data = draw_data(operation, placement.len(), &mut draws);
            let results = world.perform(operation, &data, &mut draws);
            for (rank, result) in results.into_iter().enumerate() {
                let expected = expected(operation, &data, rank);
                assert!(result == Ok(expected), "{number}: {operation:?} at {rank} of {placement:?}");
            }
        }
    }
}

#[test]
fn several_operations_under_way_have_the_results_of_single_ones_wherever_the_ranks_are() {
    let placements: [&[u64]; 5] =
        [&[0, 1], &[0, 0, 1, 1], &[0, 1, 0, 1, 0], &[0, 1, 1, 2], &[0, 0, 0, 1, 2, 3, 4]];
    for (seed, placement) in placements.into_iter().enumerate() {
        let (mut world, mut draws) = (World::with_node_groups(placement, 2), Draws(seed as u64 + 50));
        let layout = world.members[0].group.as_ref().expect("a member").layout().clone();
        let mut operations = Vec::new();
        while operations.len() < 80 {
            let operation = draw_operation(&mut draws, placement.len());
            if layout.takes(operation) {
                operations.push((operation, draw_data(operation, placement.len(), &mut draws)));
            }
        }
        let results = world.perform_together(&operations, 12, &mut draws);
        for (number, ((operation, data), results)) in operations.iter().zip(results).enumerate() {
            for (rank, result) in results.into_iter().enumerate() {
                let is_right = result == expected(*operation, data, rank);
                assert!(is_right, "{number}: {operation:?} at {rank} of {placement:?}");
            }
        }
    }
}

#[test]
fn a_group_that_all_have_left_leaves_room_for_the_next_one() {
    let (mut world, mut draws) = (World::new(&[0, 0, 1, 1]), Draws(1));
    for _ in 0..300 {
        let ended = world.perform(Operation::Barrier, &vec![Vec::new(); 4], &mut draws);
        assert_eq!(ended, vec![Ok(Vec::new()); 4]);
        world.leave();
        world.join(); // an endpoint has 128 groups of the machine, and a node 256 groups
    }
}

/// Member `gone` leaves with its endpoint before an operation. All others fail, and name it or the participant of its node.
fn others_fail(placement: &[u64], node_groups: u64, gone: usize) {
    let (mut world, mut draws) = (World::with_node_groups(placement, node_groups), Draws(gone as u64));
    let members = placement.len();
    let combination = Combination { operation: WordOperation::Sum, word_type: WordType::F64 };
    let operation = Operation::AllReduce(Vector { bytes: 8, combination });
    let data = draw_data(operation, members, &mut draws);
    assert!(world.perform(operation, &data, &mut draws).iter().all(Result::is_ok));
    let participant = placement.iter().position(|node| *node == placement[gone]).expect("a node");
    let mut left = world.members.remove(gone);
    drop(left.group.take());
    left.engine.begin_close();
    while !left.engine.close_step(&[]).done {
        world.members.iter_mut().for_each(|member| _ = member.engine.progress());
    }
    left.engine.end_close();
    let survivors: Vec<usize> = (0..members).filter(|rank| *rank != gone).collect();
    // Twice: a group that has failed stays so.
    for _ in 0..2 {
        let (mut tasks, mut ended) = (vec![], vec![None; survivors.len()]);
        tasks.extend((0..survivors.len()).map(|_| None));
        let deadline = Instant::now() + LONG;
        while ended.iter().any(Option::is_none) {
            assert!(Instant::now() < deadline, "a hang without {gone}: {ended:?}");
            for (at, Member { group, engine }) in world.members.iter_mut().enumerate() {
                engine.progress();
                let (group, mut result) = (group.as_mut().expect("a member"), [0; 8]);
                let task = tasks[at].get_or_insert_with(|| group.task(operation));
                let step =
                    group.advance(task, &data[survivors[at]], &mut result).and_then(|step| match step {
                        Step::Network => group.advance_network(engine, task).map(|_| step),
                        Step::Node => group.check().map(|()| step),
                        Step::Done => Ok(step),
                    });
                assert_ne!(step, Ok(Step::Done), "without {gone}");
                if let Err(failure) = step {
                    group.leave(engine);
                    ended[at] = Some(failure);
                }
            }
        }
        let named = [gone as u32, participant as u32];
        assert!(ended.iter().flatten().all(|failure| named.contains(&failure.rank)), "{ended:?}");
    }
}

#[test]
fn a_member_that_is_gone_is_a_failure_at_all_others_on_its_node_and_beyond() {
    for node_groups in [1, 2] {
        others_fail(&[0, 0, 1, 1], node_groups, 0);
        others_fail(&[0, 0, 1, 1], node_groups, 3);
        others_fail(&[0, 0, 0, 1], node_groups, 3);
        others_fail(&[0, 1, 2], node_groups, 1);
        others_fail(&[0, 1, 0, 1, 2], node_groups, 2);
    }
}
