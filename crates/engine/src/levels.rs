//! Groups whose members are on several nodes, on two levels: the members of each node meet in a node group, and one of each
//! node, its *participant*, meets the others by the machine of groups over the network. `levels/layout.rs` says what is
//! done on which level.
//! ```text
//! rank 1, node a   advance: writes its vector to the node group; then waits for rank 0 there
//! rank 0, node a   advance: has the vectors of a        -> Step::Network
//!                  advance_network, until it is over: the vectors of a and b
//!                  advance: combines them, and writes the result to the node group
//! rank 1, node a   advance                              -> Step::Done
//! ```
//! **Several operations under way.** They begin in the same order at all members. What the members give goes by one node group,
//! and what they get by another one, since only the participant knows when other nodes are ready: no order of both kinds would
//! suit all. The participant starts the steps on the network in the order of the operations, and gives their results in this
//! order. So an operation may wait for members that have not begun one before it.
//!
//! A member that fails on one level says so on the other one, so all others fail too. This file does not know how its caller
//! waits, nor who makes progress.

mod layout;

pub use layout::{Layout, MOST_GATHERED_BYTES, NetworkStep};

use std::collections::VecDeque;

use weir_link::Link;
use weir_link::shm::node_group::{GroupFailure, NodeGroup, Operation, Task};
use weir_proto::{Outcome, Peer, PeerFault};

use crate::{CollectiveOperation, Engine, PostError, QuietEnd, Ticket};

/// What a member does next in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It waits for members of its node.
    Node,
    /// It waits for other nodes: [`LevelGroup::advance_network`].
    Network,
    /// Nothing: the operation has finished for it.
    Done,
}

/// The reason why a group can do nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelFailure {
    /// The rank of the member that has failed, or of the participant that says so for a member of its node.
    pub rank: u32,
    /// Its fault. [`PeerFault::Closed`]: it has left, or a member of its node has failed.
    pub fault: PeerFault,
}

/// Our membership on the network, as the participant of our node.
#[derive(Debug)]
enum Network {
    /// We are no participant, or have left.
    None,
    Joining(u32, Ticket),
    Joined(u32),
}

/// An endpoint's membership in a group on several nodes. Before its engine closes, [`LevelGroup::leave`] it.
#[derive(Debug)]
pub struct LevelGroup {
    layout: Layout,
    /// `None`: nobody else is on our node.
    node: Option<NodeGroup>,
    /// For the last steps of operations. `None`: they are done in `node`.
    node_down: Option<NodeGroup>,
    network: Network,
    failure: Option<LevelFailure>,
    /// Operations so far.
    operations: u64,
    /// The participant: those whose step on the network has started.
    on_network: u64,
    /// Those whose last step in our node has not begun.
    before_down: VecDeque<u64>,
}

#[derive(Debug)]
enum Stage {
    Up(Option<Task>),
    Network(Option<Ticket>),
    Down(Option<Task>),
    Done,
}

/// An operation that has not finished.
#[derive(Debug)]
#[must_use = "an operation that is not advanced to its end stops the group"]
pub struct LevelTask {
    /// Its place in the order of operations.
    number: u64,
    operation: Operation,
    stage: Stage,
    /// The participant: what the members of its node have given, and then what it gives on the network.
    given: Vec<u8>,
    /// The participant: what all get. Others: room for a result that they do not need.
    outcome: Vec<u8>,
}

impl LevelTask {
    /// Whether its first step has begun. Only then may a later operation be advanced.
    pub fn has_begun(&self) -> bool {
        match &self.stage {
            Stage::Up(up) => up.as_ref().is_some_and(Task::has_begun),
            _ => true,
        }
    }
}

impl LevelGroup {
    /// A group whose members meet as the layout says. The participant has to join the network then.
    ///
    /// - `nodes`: node groups of the members of our node, by their places. None if we are alone there. One, if there is one
    ///   operation at a time. Two, if several may be under way.
    ///
    /// # Panics
    /// If there is one for a single member, or none for several.
    pub fn new(layout: Layout, nodes: Vec<NodeGroup>) -> LevelGroup {
        assert_eq!(
            layout.neighbours().len() > 1,
            !nodes.is_empty(),
            "a node group for several members of a node"
        );
        let mut nodes = nodes.into_iter();
        LevelGroup {
            layout,
            node: nodes.next(),
            node_down: nodes.next(),
            network: Network::None,
            failure: None,
            operations: 0,
            on_network: 0,
            before_down: VecDeque::new(),
        }
    }

    /// Begins to join the other participants.
    ///
    /// - `group`: a number that the members have agreed on, and use once.
    /// - `participants`: by node.
    ///
    /// # Errors
    /// [`PostError::Again`]: as for [`Engine::join_quietly`].
    pub fn join_network<L: Link>(
        &mut self,
        engine: &mut Engine<L>,
        group: u32,
        participants: Vec<Peer>,
    ) -> Result<(), PostError> {
        let ticket = engine.join_quietly(group, participants, self.layout.node())?;
        self.network = Network::Joining(group, ticket);
        Ok(())
    }

    /// Whether all participants have joined, or we are none. `Some(false)`: one is lost.
    pub fn has_joined<L: Link>(&mut self, engine: &mut Engine<L>) -> Option<bool> {
        let Network::Joining(group, ticket) = &self.network else { return Some(true) };
        let is_joined = engine.ended_quietly(ticket)?.outcome == Outcome::Done;
        self.network = Network::Joined(*group);
        Some(is_joined)
    }

    /// Where the members are.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether the next step may need the engine: we are a participant.
    pub fn needs_engine(&self) -> bool {
        self.layout.is_participant()
    }

    /// Whether we have joined other participants, or begun to, and have not left.
    pub fn is_on_network(&self) -> bool {
        !matches!(self.network, Network::None)
    }

    /// Has left without a word, since its engine closes, which tells the others.
    pub fn forget_network(&mut self) {
        self.network = Network::None;
    }

    /// Leaves the network: when all participants have left, or at once if the group has failed or not all have joined.
    /// Dropping the value leaves the node group.
    pub fn leave<L: Link>(&mut self, engine: &mut Engine<L>) {
        match std::mem::replace(&mut self.network, Network::None) {
            Network::None => {}
            Network::Joined(group) if self.failure.is_none() => _ = engine.close_collective(group),
            Network::Joining(group, _) | Network::Joined(group) => engine.abandon_collective(group),
        }
    }

    /// The next operation of this group. Nothing of it is started yet.
    ///
    /// # Panics
    /// If the group does not take it ([`Layout::takes`]).
    pub fn task(&mut self, operation: Operation) -> LevelTask {
        assert!(self.layout.takes(operation), "{operation:?}");
        let number = self.operations;
        self.operations += 1;
        if self.layout.down(operation).is_some() {
            self.before_down.push_back(number);
        }
        LevelTask { number, operation, stage: Stage::Up(None), given: Vec::new(), outcome: Vec::new() }
    }

    /// Does what it can inside the node. All members begin the same operations in the same order: a task is made when the one
    /// before has begun ([`LevelTask::has_begun`]), or, with one node group, when it has ended.
    ///
    /// - `data`, `result`: the same memory in all calls for this operation, as long as [`Operation::data_bytes`] and
    ///   [`Operation::result_bytes`] say for all members together.
    ///
    /// # Errors
    /// The group has failed. A participant must [`LevelGroup::leave`] it then, so that other nodes learn it.
    pub fn advance(
        &mut self,
        task: &mut LevelTask,
        data: &[u8],
        result: &mut [u8],
    ) -> Result<Step, LevelFailure> {
        self.failure.map_or(Ok(()), Err)?;
        self.step(task, data, result).map_err(|failure| self.fail_of_node(failure))
    }

    fn step(&mut self, task: &mut LevelTask, data: &[u8], result: &mut [u8]) -> Result<Step, GroupFailure> {
        let is_participant = self.layout.is_participant();
        loop {
            match &mut task.stage {
                Stage::Up(_) => {
                    if !self.go_up(task, data, result)? {
                        return Ok(Step::Node);
                    }
                    task.stage = if is_participant { Stage::Network(None) } else { Stage::Down(None) };
                    if is_participant {
                        self.prepare_network(task, data, result);
                    }
                }
                Stage::Network(_) => return Ok(Step::Network),
                Stage::Down(_) => {
                    if !self.go_down(task, result)? {
                        return Ok(Step::Node);
                    }
                    task.stage = Stage::Done;
                }
                Stage::Done => return Ok(Step::Done),
            }
        }
    }

    /// The members of our node give what they have to the participant. Returns whether we have done our part.
    fn go_up(&mut self, task: &mut LevelTask, data: &[u8], result: &mut [u8]) -> Result<bool, GroupFailure> {
        let LevelTask { operation, stage: Stage::Up(up), given, .. } = task else { return Ok(true) };
        let Some(first) = self.layout.up(*operation) else {
            if !matches!(operation, Operation::Broadcast { .. }) {
                data.clone_into(given);
            }
            return Ok(true);
        };
        let Some(node) = &mut self.node else { return Ok(true) };
        let (place, places) = (self.layout.place(), self.layout.neighbours().len() as u32);
        let up = up.get_or_insert_with(|| node.task(first));
        // Of a broadcast, all get the bytes now.
        if matches!(operation, Operation::Broadcast { .. }) {
            return node.advance(up, data, result);
        }
        given.resize(first.result_bytes(place, places), 0);
        let is_done = node.advance(up, data, given)?;
        // Of a scatter, all get all blocks now.
        if is_done && matches!(operation, Operation::Scatter { .. }) && !result.is_empty() {
            let from = self.layout.rank() as usize * result.len();
            result.copy_from_slice(&given[from..from + result.len()]);
        }
        Ok(is_done)
    }

    /// What the participant gives on the network lies in memory of the task then.
    fn prepare_network(&self, task: &mut LevelTask, data: &[u8], result: &[u8]) {
        match task.operation {
            Operation::AllToAll { bytes } => task.given = self.layout.exchanged(bytes, &task.given),
            Operation::Scatter { bytes, .. } => task.given = self.layout.scattered(bytes, &task.given),
            // Its root has the bytes, or another member of this node has given them.
            Operation::Broadcast { root, .. } if root == self.layout.rank() => {
                data.clone_into(&mut task.given)
            }
            Operation::Broadcast { .. } => result.clone_into(&mut task.given),
            _ => {}
        }
    }

    /// Does what it can of the network's step, after [`Step::Network`]. The engine makes progress elsewhere. Returns whether
    /// the step has ended, so that [`LevelGroup::advance`] goes on. The step of an operation starts after those before it.
    ///
    /// # Errors
    /// The group has failed.
    pub fn advance_network<L: Link>(
        &mut self,
        engine: &mut Engine<L>,
        task: &mut LevelTask,
    ) -> Result<bool, LevelFailure> {
        self.failure.map_or(Ok(()), Err)?;
        let Stage::Network(ticket) = &mut task.stage else { return Ok(true) };
        let Network::Joined(group) = &self.network else {
            let failure = LevelFailure { rank: self.layout.rank(), fault: PeerFault::Closed };
            return Err(*self.failure.insert(failure)); // we have left
        };
        let started = match ticket {
            Some(started) => started,
            None if self.on_network != task.number => return Ok(false),
            None => {
                let NetworkStep { operation, block_bytes } = self.layout.network(task.operation);
                let begun = engine.collective_quietly(*group, operation, block_bytes as u64, &task.given);
                // Again: many operations of other users of this endpoint are under way.
                let Ok(begun) = begun else { return Ok(false) };
                self.on_network += 1;
                task.given = Vec::new();
                ticket.insert(begun)
            }
        };
        match engine.ended_quietly(started) {
            None => Ok(false),
            Some(QuietEnd { outcome: Outcome::Done, result }) => {
                self.end_network(task, result);
                Ok(true)
            }
            Some(QuietEnd { outcome, .. }) => Err(self.fail_of_network(engine, outcome)),
        }
    }

    /// - `bytes`: what the step has left.
    fn end_network(&self, task: &mut LevelTask, bytes: Vec<u8>) {
        let operation = task.operation;
        task.stage = Stage::Down(None);
        if bytes.is_empty() {
            return; // of a barrier, or the result is at another node
        }
        let is_outcome = matches!(
            self.layout.network(operation).operation,
            CollectiveOperation::Broadcast { .. }
                | CollectiveOperation::Reduce { .. }
                | CollectiveOperation::AllReduce { .. }
        );
        if is_outcome {
            task.outcome = bytes;
        } else {
            task.outcome = vec![0; self.layout.outcome_bytes(operation)];
            self.layout.finish(operation, &bytes, &mut task.outcome);
        }
    }

    /// The participant gives the outcome to the members of its node. Returns whether we have done our part.
    fn go_down(&mut self, task: &mut LevelTask, result: &mut [u8]) -> Result<bool, GroupFailure> {
        let LevelTask { number, operation, stage: Stage::Down(down), outcome, .. } = task else {
            return Ok(true);
        };
        let gets = !result.is_empty();
        let LevelGroup { layout, node, node_down, before_down, .. } = self;
        let mut advance = |last: Operation, data: &[u8], result: &mut [u8]| {
            let Some(node) = node_down.as_mut().or(node.as_mut()) else { return Ok(true) };
            if down.is_none() && before_down.front() != Some(number) {
                return Ok(false); // that of an earlier operation begins first
            }
            let down = down.get_or_insert_with(|| node.task(last));
            let is_done = node.advance(down, data, result)?;
            before_down.pop_front_if(|first| first == number && down.has_begun());
            Ok(is_done)
        };
        let last = layout.down(*operation);
        if layout.is_participant() {
            if let Some(last) = last
                && !advance(last, outcome, &mut [])?
            {
                return Ok(false);
            }
            // Of a broadcast whose root is beside us, the bytes are there since the first step. Of what is for single members
            // of the node, ours is first.
            if gets && !outcome.is_empty() {
                result.copy_from_slice(&outcome[..result.len()]);
            }
            return Ok(true);
        }
        let Some(last) = last else { return Ok(true) };
        if gets || last.result_bytes(layout.place(), layout.neighbours().len() as u32) == 0 {
            return advance(last, &[], result);
        }
        // The result of a reduction or gather, which another member of this node gets.
        outcome.resize(layout.outcome_bytes(*operation), 0);
        advance(last, &[], outcome)
    }

    /// Looks whether members of our node that are waited for have died, left or failed. Call it rarely.
    ///
    /// # Errors
    /// The group has failed, as for [`LevelGroup::advance`].
    pub fn check(&mut self) -> Result<(), LevelFailure> {
        self.failure.map_or(Ok(()), Err)?;
        let mut nodes = self.node.iter_mut().chain(&mut self.node_down);
        nodes.try_for_each(NodeGroup::check).map_err(|failure| self.fail_of_node(failure))
    }

    /// Sleeps until a member of our node has written something that this one waits for, or for `at_most`.
    pub fn sleep(&mut self, at_most: std::time::Duration) {
        if self.node.is_none() {
            return std::thread::sleep(at_most);
        }
        let mut nodes = self.node.iter_mut().chain(&mut self.node_down);
        nodes.find(|node| node.misses_a_member()).into_iter().for_each(|node| node.sleep(at_most));
    }

    /// A node group has failed. Members of our node may wait for us in the other one only.
    fn fail_of_node(&mut self, failure: GroupFailure) -> LevelFailure {
        self.node.iter_mut().chain(&mut self.node_down).for_each(|node| node.fail(failure));
        let failure = self.of_node(failure);
        *self.failure.insert(failure)
    }

    /// A failure of the node group. Its member is a place in the node, or, behind those, the rank of another node's member.
    fn of_node(&self, failure: GroupFailure) -> LevelFailure {
        let GroupFailure { member, fault } = failure;
        let neighbours = self.layout.neighbours();
        let beyond = || member.saturating_sub(neighbours.len() as u32);
        let rank = neighbours.get(member as usize).copied().unwrap_or_else(beyond);
        LevelFailure { rank, fault }
    }

    /// The network's step has failed: the members of our node learn it.
    fn fail_of_network<L: Link>(&mut self, engine: &mut Engine<L>, outcome: Outcome) -> LevelFailure {
        let participants: Vec<u32> = self.layout.participants().collect();
        let failure = match (outcome, &self.network) {
            (Outcome::Lost { peer: Some(peer), fault }, Network::Joined(group)) => {
                let node = engine.collective_rank(*group, peer).unwrap_or(0);
                LevelFailure { rank: participants[node as usize], fault }
            }
            // The operation is refused: the group has been closed here.
            _ => LevelFailure { rank: self.layout.rank(), fault: PeerFault::Malformed },
        };
        self.fail(engine, failure);
        failure
    }

    /// A member has failed elsewhere: all others of the group learn it.
    pub fn fail<L: Link>(&mut self, engine: &mut Engine<L>, failure: LevelFailure) {
        self.failure = Some(failure);
        let member = self.layout.neighbours().len() as u32 + failure.rank;
        let of_node = GroupFailure { member, fault: failure.fault };
        self.node.iter_mut().chain(&mut self.node_down).for_each(|node| node.fail(of_node));
        self.leave(engine);
    }
}

#[cfg(test)]
mod tests;
