//! Tests of how long a member has waited for late ones, with a clock of the test.

use super::interleavings::{Member, group};
use super::operation::Operation;
use super::rounds::Task;
use std::cell::Cell;

/// Members, their tasks for one operation, and a clock that the test sets.
struct Scene {
    members: Vec<Member>,
    tasks: Vec<Task>,
    operation: Operation,
    now: Cell<u64>,
}

impl Scene {
    fn new(members: u32, operation: Operation) -> Scene {
        let members = group(members);
        let tasks = members.iter().map(|member| member.task(operation)).collect();
        Scene { members, tasks, operation, now: Cell::new(100) }
    }

    /// A look of the member `rank` at this time. Returns whether its operation has finished.
    fn look(&mut self, rank: u32, at: u64) -> bool {
        self.now.set(at);
        let count = self.members.len() as u32;
        let data = vec![7; self.operation.data_bytes(rank, count)];
        let mut result = vec![0; self.operation.result_bytes(rank, count)];
        let (member, task) = (&mut self.members[rank as usize], &mut self.tasks[rank as usize]);
        member.advance(task, &data, &mut result, || self.now.get()).expect("no failure")
    }

    fn waited_until(&self, rank: usize, ended_at: u64) -> Option<u64> {
        self.tasks[rank].waited_until(ended_at)
    }
}

#[test]
fn members_of_a_barrier_wait_for_the_last_which_waits_for_nobody() {
    let mut scene = Scene::new(3, Operation::Barrier);
    assert!(!scene.look(0, 10) && !scene.look(1, 20) && !scene.look(0, 30));
    assert!(scene.look(2, 50), "it is the last");
    assert!(scene.look(0, 60) && scene.look(1, 70));
    assert_eq!([0, 1, 2].map(|rank| scene.waited_until(rank, 80)), [Some(80), Some(80), None]);
}

#[test]
fn taking_what_others_have_written_is_no_wait_for_them() {
    let mut scene = Scene::new(2, Operation::AllGather { bytes: 64 });
    assert!(!scene.look(0, 10));
    assert!(scene.look(1, 20));
    assert!(scene.look(0, 30));
    assert_eq!((scene.waited_until(0, 99), scene.waited_until(1, 99)), (Some(30), None));
}

#[test]
fn only_the_first_part_of_a_long_operation_waits_for_members_to_come() {
    let mut scene = Scene::new(2, Operation::Broadcast { root: 0, bytes: 1 << 20 });
    assert!(!scene.look(1, 10));
    assert!(!scene.look(0, 40), "the other has not taken the first parts");
    let mut at = 50;
    while !scene.look(1, at) {
        scene.look(0, at + 5);
        at += 10;
    }
    assert!(at > 100, "some parts came later");
    assert_eq!(scene.waited_until(1, at), Some(50));
    assert_eq!(scene.waited_until(0, at), None, "the root waits for nobody to come");
}

#[test]
fn a_member_that_gives_waits_only_for_room() {
    let mut scene = Scene::new(2, Operation::Gather { root: 1, bytes: 8 });
    for at in 0..4 {
        assert!(scene.look(0, at));
        assert_eq!(scene.waited_until(0, 9), None);
        scene.tasks[0] = scene.members[0].task(scene.operation);
    }
    assert!(!scene.look(0, 10), "the root has done none of them");
    assert!(scene.look(1, 20) && scene.look(0, 30));
    assert_eq!(scene.waited_until(0, 30), Some(30));
}
