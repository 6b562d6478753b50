//! What the members of a group have agreed on for its short operations: a node group, or on several nodes a group on two levels.
//!
//! Both have the same calls here. This file knows neither requests nor how members agree.

use weir_engine::Engine;
use weir_engine::levels::{LevelFailure, LevelGroup, LevelTask, Step};
use weir_engine::operation_times::Executor;
use weir_link::shm::node_group::{GroupFailure, NodeGroup, Operation, Task};

/// Our membership. [`Membership::leave`] comes before it is dropped.
#[derive(Debug)]
pub(crate) enum Membership {
    /// All members are on our node.
    Node(Box<NodeGroup>),
    /// They are on several nodes.
    Levels(Box<LevelGroup>),
}

/// An operation that has not ended.
#[derive(Debug)]
pub(crate) enum GroupTask {
    Node(Task),
    /// `has_waited`: a look at it has found nothing.
    Levels {
        task: Box<LevelTask>,
        has_waited: bool,
    },
}

impl GroupTask {
    /// Whether it has begun. Only then may a later operation be advanced.
    pub fn has_begun(&self) -> bool {
        match self {
            GroupTask::Node(task) => task.has_begun(),
            GroupTask::Levels { task, .. } => task.has_begun(),
        }
    }

    /// When the last of the others was there, if one has been waited for. On two levels it is the end, which includes the way of
    /// messages. Unit: that of the stopwatch.
    pub fn waited_until(&self, now: u64) -> Option<u64> {
        match self {
            GroupTask::Node(task) => task.waited_until(now),
            GroupTask::Levels { has_waited, .. } => has_waited.then_some(now),
        }
    }
}

fn to_group(failure: LevelFailure) -> GroupFailure {
    GroupFailure { member: failure.rank, fault: failure.fault }
}

impl Membership {
    /// Who carries out the operations, for the report.
    pub fn executor(&self) -> Executor {
        match self {
            Membership::Node(_) => Executor::Node,
            Membership::Levels(_) => Executor::Hosts,
        }
    }

    /// Whether the group does this operation. All members find the same.
    pub fn takes(&self, operation: Operation, members: u32) -> bool {
        match self {
            Membership::Node(_) => operation.is_valid(members),
            Membership::Levels(group) => group.layout().takes(operation),
        }
    }

    /// What stands for an operation by messages, in the order of the group: no operation of this interface looks so. `None`:
    /// nothing does.
    pub fn mark(&self) -> Option<Operation> {
        match self {
            Membership::Node(_) => Some(Operation::AllToAll { bytes: 0 }),
            Membership::Levels(_) => None,
        }
    }

    /// The next operation.
    pub fn task(&mut self, operation: Operation) -> GroupTask {
        match self {
            Membership::Node(group) => GroupTask::Node(group.task(operation)),
            Membership::Levels(group) => {
                GroupTask::Levels { task: Box::new(group.task(operation)), has_waited: false }
            }
        }
    }

    /// Does what it can of an operation. Returns whether it has ended.
    ///
    /// # Errors
    /// The group has failed, and other nodes learn it.
    pub fn advance(
        &mut self,
        engine: &mut Engine,
        task: &mut GroupTask,
        data: &[u8],
        result: &mut [u8],
    ) -> Result<bool, GroupFailure> {
        match (self, task) {
            (Membership::Node(group), GroupTask::Node(task)) => group.advance(task, data, result),
            (Membership::Levels(group), GroupTask::Levels { task, has_waited }) => {
                let ended = advance_levels(group, engine, task, data, result);
                *has_waited |= ended == Ok(false);
                ended.map_err(|failure| {
                    group.leave(engine);
                    to_group(failure)
                })
            }
            _ => unreachable!("an operation of another group"),
        }
    }

    /// Looks whether members of our node have died, left or failed. Call it rarely.
    ///
    /// # Errors
    /// As [`Membership::advance`].
    pub fn check(&mut self, engine: &mut Engine) -> Result<(), GroupFailure> {
        match self {
            Membership::Node(group) => group.check(),
            Membership::Levels(group) => group.check().map_err(|failure| {
                group.leave(engine);
                to_group(failure)
            }),
        }
    }

    /// A member has failed elsewhere: those that wait for us learn it.
    pub fn fail(&mut self, engine: &mut Engine, failure: GroupFailure) {
        match self {
            Membership::Node(group) => group.fail(failure),
            Membership::Levels(group) => {
                group.fail(engine, LevelFailure { rank: failure.member, fault: failure.fault });
            }
        }
    }

    /// Sleeps until a member of our node has written something, or for `at_most`. `false`: we may wait for other nodes, so the
    /// engine has to wait.
    pub fn sleep(&mut self, at_most: std::time::Duration) -> bool {
        match self {
            Membership::Node(group) => group.sleep(at_most),
            Membership::Levels(group) if group.needs_engine() => return false,
            Membership::Levels(group) => group.sleep(at_most),
        }
        true
    }

    /// Leaves other nodes. Dropping the value leaves the node group.
    pub fn leave(&mut self, engine: &mut Engine) {
        if let Membership::Levels(group) = self {
            group.leave(engine);
        }
    }
}

fn advance_levels(
    group: &mut LevelGroup,
    engine: &mut Engine,
    task: &mut LevelTask,
    data: &[u8],
    result: &mut [u8],
) -> Result<bool, LevelFailure> {
    loop {
        match group.advance(task, data, result)? {
            Step::Done => return Ok(true),
            Step::Node => return Ok(false),
            Step::Network if group.advance_network(engine, task)? => {}
            Step::Network => return Ok(false),
        }
    }
}
