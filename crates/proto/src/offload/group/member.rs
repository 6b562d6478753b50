//! One group at one member: how it joins, which operations are under way, and how it fails.
//!
//! *Neighbours* are the parent and the children in the binomial tree. They say once to each other that they have joined,
//! then up the tree that all below have, and down that all have. Nothing is sent before that, so the schedule of an
//! operation may send to any member. Neighbours also tell each other that the group has failed.
//!
//! A member has at most [`MAX_ROUNDS`] operations that have not ended, and none ends before those that it sends to have
//! started it (`group/round.rs`). So of each other member at most as many can have arrived that we have not started. A
//! broadcast is forwarded by members that have not started it, but one on its way has. So of broadcasts at most as many as
//! the other members together have under way can have arrived. A sender that exceeds this is malformed. This bounds the
//! buffers of early packets.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::super::Offloaded;
use super::round::{Round, Scene};
use super::schedule::blocks_between;
use super::{GroupPacket, MAX_ROUNDS, Membership, Operation, tree};
use crate::action::Outcome;
use crate::endpoint::Refusal;
use crate::event::{Peer, PeerFault, Request};
use crate::machine::MachineDriver;
use crate::timers::MachineTimer;

/// The parent or a child.
#[derive(Clone, Copy, Debug)]
struct Neighbour {
    peer: Peer,
    joined: bool,
    /// A child: all members below it have joined. The parent: all members have.
    all: bool,
}

/// A group.
#[derive(Clone, Debug)]
pub(super) struct Group {
    membership: Membership,
    parent: Option<Neighbour>,
    children: Vec<Neighbour>,
    /// We have told the parent that all members below us have joined.
    reported: bool,
    /// All members have joined.
    ready: bool,
    /// The number of the next operation that the program starts. Numbers in packets are its lower bits.
    next: u64,
    /// The operations that have not ended, by number. From `next` on: those for which only packets have arrived.
    rounds: BTreeMap<u64, Round>,
    /// The lost member, by rank, and why.
    failed: Option<(u32, PeerFault)>,
    /// We have left. It counts what this endpoint has left before.
    left: Option<u64>,
}

impl Group {
    /// # Panics
    /// If `rank` is not that of a member.
    pub fn join<D: MachineDriver>(membership: Membership, driver: &mut D) -> Group {
        let Membership { ref members, rank, .. } = membership;
        assert!((rank as usize) < members.len(), "rank {rank} of {} members", members.len());
        let neighbour = |rank| Neighbour { peer: members[rank as usize], joined: false, all: false };
        let group = Group {
            parent: tree::parent(rank).map(neighbour),
            children: tree::children(rank, members.len() as u32).map(neighbour).collect(),
            reported: false,
            ready: members.len() == 1,
            next: 0,
            rounds: BTreeMap::new(),
            failed: None,
            left: None,
            membership,
        };
        group.neighbours().for_each(|peer| group.send_joined(peer, false, driver));
        group
    }

    /// The parent and the children.
    fn neighbours(&self) -> impl Iterator<Item = Peer> {
        self.parent.iter().chain(&self.children).map(|neighbour| neighbour.peer)
    }

    /// Visits those that pending operations depend on.
    pub fn depends_on(&self, mut visit: impl FnMut(Peer)) {
        if !self.is_pending() {
            return;
        }
        self.neighbours().for_each(&mut visit);
        let pending = self.rounds.values().filter(|round| round.started || round.is_pinned());
        let awaited = pending.flat_map(Round::awaited).map(|rank| self.membership.members[rank as usize]);
        awaited.filter(|peer| !self.neighbours().any(|neighbour| neighbour == *peer)).for_each(visit);
    }

    /// Whether an operation that the program has started, or packets that name memory, are under way.
    pub fn is_pending(&self) -> bool {
        self.rounds.values().any(|round| round.started || round.is_pinned())
    }

    /// Whether the program may start `operation`.
    pub fn allows(&self, operation: &Operation) -> bool {
        self.left.is_none() && operation.is_valid(Some(self.membership.members.len() as u32))
    }

    /// Whether we have left, no buffer is in use, and all neighbours know it. One that joins later waits for our answer.
    pub fn has_ended(&self) -> bool {
        self.can_be_forgotten().is_some() && self.neighbours_known().all(|knows| knows)
    }

    /// When we have left, if no buffer is in use.
    pub fn can_be_forgotten(&self) -> Option<u64> {
        self.left.filter(|_| self.rounds.is_empty())
    }

    fn neighbours_known(&self) -> impl Iterator<Item = bool> {
        self.parent.iter().chain(&self.children).map(|neighbour| neighbour.joined)
    }

    /// A neighbour will not ask whether we have joined: it is lost, or has told us that the group has failed.
    fn asks_no_more(&mut self, peer: Peer) {
        let mut neighbours = self.parent.iter_mut().chain(&mut self.children);
        if let Some(neighbour) = neighbours.find(|neighbour| neighbour.peer == peer) {
            neighbour.joined = true;
        }
    }

    /// Whether fewer operations than allowed have not ended, or the group has failed.
    pub fn accepts_operation(&self) -> bool {
        self.failed.is_some() || self.rounds.range(..self.next).count() < MAX_ROUNDS as usize
    }

    /// # Errors
    /// [`Refusal::RemoteOperations`]: as many operations as allowed have not ended.
    pub fn start<D: MachineDriver>(
        &mut self,
        request: Request,
        operation: Operation,
        driver: &mut D,
    ) -> Result<(), Refusal> {
        if let Some(outcome) = self.failure() {
            driver.complete(request, outcome);
            return Ok(());
        }
        if !self.accepts_operation() {
            return Err(Refusal::RemoteOperations);
        }
        let early = self.rounds.get(&self.next).filter(|round| round.operation != operation);
        if let Some(rank) = early.and_then(|round| round.arrived_from().next()) {
            let peer = self.membership.members[rank as usize];
            driver.reject(peer);
            self.fail(rank, PeerFault::Malformed, Some(peer), Some(rank), driver);
            driver.complete(request, self.failure().expect("it has failed"));
            return Ok(());
        }
        let key = self.next;
        let is_oldest = self.rounds.range(..key).next().is_none();
        self.next += 1;
        let round = self.rounds.entry(key).or_insert_with(|| Round::new(&self.membership, operation));
        let scene = Scene { membership: &self.membership, number: key as u32, ready: self.ready };
        round.start(scene, request, driver);
        if !self.end(key, driver) && is_oldest {
            self.restart_timer(driver);
        }
        Ok(())
    }

    /// Leaves, after `before` others. The other members get an error for operations that need us.
    pub fn leave<D: MachineDriver>(&mut self, before: u64, driver: &mut D) {
        self.left = Some(before);
        self.fail(self.membership.rank, PeerFault::Closed, None, None, driver);
    }

    /// A neighbour says that it has joined. The first time it gets the same from us: our own packet may have come before it
    /// joined.
    pub fn joined<D: MachineDriver>(&mut self, from: Peer, all: bool, driver: &mut D) {
        let reported = self.reported;
        let is_parent = self.parent.is_some_and(|parent| parent.peer == from);
        let mut neighbours = self.parent.iter_mut().chain(&mut self.children);
        let Some(neighbour) = neighbours.find(|neighbour| neighbour.peer == from) else {
            return driver.reject(from);
        };
        if all && is_parent && !reported {
            return driver.reject(from); // nobody can know that yet
        }
        let is_first = !core::mem::replace(&mut neighbour.joined, true);
        neighbour.all |= all;
        if let Some((member, fault)) = self.failed {
            if is_first {
                self.send_failed(from, member, fault, driver);
            }
            return;
        }
        let mut has_told = false;
        let below_have = self.children.iter().all(|child| child.all);
        if let Some(parent) = self.parent.filter(|parent| parent.joined && below_have && !self.reported) {
            self.reported = true;
            has_told = is_parent;
            self.send_joined(parent.peer, true, driver);
        }
        let all_have = self.parent.map_or(below_have, |parent| parent.all);
        if is_first && !has_told {
            self.send_joined(from, false, driver);
        }
        if all_have && !self.ready {
            self.ready = true;
            self.children.iter().for_each(|child| self.send_joined(child.peer, true, driver));
            let keys: Vec<u64> = self.rounds.keys().copied().collect();
            for key in keys {
                self.with(key, driver, |round, scene, driver| round.advance(scene, driver));
            }
        }
    }

    /// A packet of an operation has arrived.
    ///
    /// - `blocks`: how many its sender sends.
    /// - `(offset, payload_bytes)`: what it carries.
    pub fn part<D: MachineDriver>(
        &mut self,
        from: Peer,
        number: u32,
        (operation, blocks): (Operation, u16),
        (offset, payload_bytes): (u32, u32),
        driver: &mut D,
    ) {
        let members = self.membership.members.len() as u32;
        let rank = self.membership.members.iter().position(|member| *member == from);
        let last = is_last(&operation, blocks, offset, payload_bytes);
        let valid = operation.is_valid(Some(members));
        let (Some(rank), Some(last), true) = (rank, last, valid) else { return driver.reject(from) };
        let rank = rank as u32;
        if u32::from(blocks) != blocks_between(&operation, (rank, self.membership.rank), members) {
            return driver.reject(from);
        }
        let key = self.key(number);
        if self.failed.is_some() {
            self.with(key, driver, |round, scene, driver| round.late_result(scene, rank, driver));
            if last && operation.is_answered() {
                send_taken(from, number, self.membership.group, true, driver);
            }
            return;
        }
        if key >= self.next {
            if key - self.next >= u64::from(u32::MAX / 2) || self.has_too_many_early(rank, key, &operation) {
                return driver.reject(from);
            }
            let membership = &self.membership;
            self.rounds.entry(key).or_insert_with(|| Round::new(membership, operation));
        }
        let round = self.rounds.get(&key).filter(|round| round.operation == operation);
        let Some(index) = round.and_then(|round| round.input(rank)) else {
            self.rounds.retain(|_, round| round.started || round.arrived_from().next().is_some());
            return driver.reject(from);
        };
        let mut makes_sense = true;
        self.with(key, driver, |round, scene, driver| {
            makes_sense = round.part(scene, index, (offset, payload_bytes), driver).is_ok();
        });
        if !makes_sense {
            self.rounds.retain(|_, round| round.started || round.arrived_from().next().is_some());
            driver.reject(from);
        }
    }

    /// Whether one more early packet, for the operation `key`, exceeds the bound of its kind.
    fn has_too_many_early(&self, rank: u32, key: u64, operation: &Operation) -> bool {
        let is_broadcast = |operation: &Operation| matches!(operation, Operation::Broadcast { .. });
        let arrived = |round: &Round| round.arrived_from().any(|arrived| arrived == rank);
        let others = self.rounds.range(self.next..).filter(|(other, _)| **other != key);
        let alike = others.filter(|(_, round)| is_broadcast(&round.operation) == is_broadcast(operation));
        match is_broadcast(operation) {
            // The sender may only forward. On the way from the root, a member that has started it waits for the next.
            true => alike.count() >= MAX_ROUNDS as usize * (self.membership.members.len() - 1),
            false => alike.filter(|(_, round)| arrived(round)).count() >= MAX_ROUNDS as usize,
        }
    }

    /// A member has answered what we have sent it.
    pub fn taken<D: MachineDriver>(&mut self, from: Peer, number: u32, refused: bool, driver: &mut D) {
        let rank = self.membership.members.iter().position(|member| *member == from);
        // A neighbour whose group fails says so first.
        let explained = !refused || self.failed.is_some() || !self.neighbours().any(|peer| peer == from);
        let key = self.key(number);
        let Some(rank) = rank.filter(|_| explained && self.rounds.contains_key(&key)) else {
            return driver.reject(from);
        };
        let mut makes_sense = true;
        self.with(key, driver, |round, scene, driver| {
            makes_sense = round.taken(scene, rank as u32, driver).is_ok();
        });
        if !makes_sense {
            driver.reject(from);
        }
    }

    /// A neighbour says that the group has failed, or a member that had begun to forward a vector to us.
    pub fn other_failed<D: MachineDriver>(
        &mut self,
        from: Peer,
        member: u32,
        fault: PeerFault,
        driver: &mut D,
    ) {
        let known = (member as usize) < self.membership.members.len();
        if !known || !self.membership.members.contains(&from) {
            return driver.reject(from);
        }
        // One that has left, or that was late, lives. It waits for answers, and answers what it was sent.
        let lives = matches!(fault, PeerFault::Closed | PeerFault::NotReady);
        self.fail(member, fault, Some(from), (!lives).then_some(member), driver);
        self.asks_no_more(from);
    }

    /// The oldest operation has waited as long as the group allows.
    pub fn timer_expired<D: MachineDriver>(&mut self, driver: &mut D) {
        if !self.waits() {
            return;
        }
        let absent = self.children.iter().find(|child| !child.all).or(self.parent.as_ref());
        let absent = absent.filter(|_| !self.ready).map(|neighbour| neighbour.peer);
        let absent = self.membership.members.iter().position(|peer| Some(*peer) == absent);
        let oldest = self.rounds.values().next();
        let awaited = oldest.and_then(|round| round.awaited().next());
        let member = absent.map(|rank| rank as u32).or(awaited).unwrap_or(0);
        self.fail(member, PeerFault::NotReady, None, None, driver);
    }

    pub fn lost<D: MachineDriver>(&mut self, peer: Peer, fault: PeerFault, driver: &mut D) {
        let Some(member) = self.membership.members.iter().position(|member| *member == peer) else { return };
        self.fail(member as u32, fault, Some(peer), Some(member as u32), driver);
        self.asks_no_more(peer);
        // No answer comes any more, and no packet waits for credit.
        let keys: Vec<u64> = self.rounds.keys().copied().collect();
        for key in keys {
            self.with(key, driver, |round, scene, driver| {
                let _ = round.taken(scene, member as u32, driver);
            });
        }
    }

    /// How a start ends if the group has failed.
    fn failure(&self) -> Option<Outcome> {
        let (member, fault) = self.failed?;
        Some(Outcome::Lost { peer: Some(self.membership.members[member as usize]), fault })
    }

    /// Ends all operations, and tells the neighbours, except the one that the program or a packet named.
    ///
    /// - `dead`: the rank of a member that answers nothing any more.
    fn fail<D: MachineDriver>(
        &mut self,
        member: u32,
        fault: PeerFault,
        except: Option<Peer>,
        dead: Option<u32>,
        driver: &mut D,
    ) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some((member, fault));
        self.restart_timer(driver);
        for peer in self.neighbours().filter(|peer| Some(*peer) != except) {
            self.send_failed(peer, member, fault, driver);
        }
        let outcome = self.failure().expect("it has failed");
        let failure = GroupPacket::Failed { group: self.membership.group, member, fault };
        for (number, round) in &mut self.rounds {
            let scene = Scene { membership: &self.membership, number: *number as u32, ready: self.ready };
            round.fail(scene, (failure, dead), outcome, driver);
        }
        self.rounds.retain(|_, round| round.is_pinned());
    }

    /// The number of the operation with these lower bits that is nearest to the next one. Far beyond it: it has ended.
    fn key(&self, number: u32) -> u64 {
        let distance = number.wrapping_sub(self.next as u32) as i32;
        self.next.wrapping_add_signed(i64::from(distance))
    }

    /// Shows a round to `work`, and then removes it if it is over.
    fn with<D: MachineDriver>(
        &mut self,
        key: u64,
        driver: &mut D,
        work: impl FnOnce(&mut Round, Scene<'_>, &mut D),
    ) {
        let scene = Scene { membership: &self.membership, number: key as u32, ready: self.ready };
        let Some(round) = self.rounds.get_mut(&key) else { return };
        work(round, scene, driver);
        self.end(key, driver);
    }

    /// Removes a round if it is over. Returns whether it is.
    fn end<D: MachineDriver>(&mut self, key: u64, driver: &mut D) -> bool {
        let failed = self.failed.is_some();
        let over = self.rounds.get(&key).is_some_and(|round| round.is_over() || failed && !round.is_pinned());
        if over {
            let was_oldest = self.rounds.keys().next() == Some(&key);
            self.rounds.remove(&key);
            if was_oldest {
                self.restart_timer(driver);
            }
        }
        over
    }

    /// Whether the timer should run.
    fn waits(&self) -> bool {
        self.failed.is_none() && self.rounds.values().next().is_some_and(|round| round.started)
    }

    /// The timer runs from the time when the oldest operation has become the oldest.
    fn restart_timer<D: MachineDriver>(&self, driver: &mut D) {
        let Some(patience_ns) = self.membership.patience_ns else { return };
        let timer = MachineTimer::Group { group: self.membership.group };
        if self.waits() {
            let at = driver.now().plus_ns(patience_ns);
            driver.set_timer(timer, at);
        } else {
            driver.cancel_timer(timer);
        }
    }

    fn send_joined<D: MachineDriver>(&self, to: Peer, all: bool, driver: &mut D) {
        let packet = GroupPacket::Joined { group: self.membership.group, all };
        driver.send(to, 0, Offloaded::Group(packet), None);
    }

    fn send_failed<D: MachineDriver>(&self, to: Peer, member: u32, fault: PeerFault, driver: &mut D) {
        let packet = GroupPacket::Failed { group: self.membership.group, member, fault };
        driver.send(to, 0, Offloaded::Group(packet), None);
    }
}

/// A packet of a group that we have not joined, or that we have left. We keep nothing of it: a member that joins says so to
/// its neighbours, and a group that we have left ends here when they know.
pub(super) fn arrived_without_group<D: MachineDriver>(
    from: Peer,
    number: u32,
    packet: GroupPacket,
    payload_bytes: u32,
    driver: &mut D,
) {
    if let GroupPacket::Part { group, operation, blocks, offset } = packet {
        match is_last(&operation, blocks, offset, payload_bytes) {
            Some(true) if operation.is_answered() => send_taken(from, number, group, true, driver),
            Some(_) => {}
            None => driver.reject(from),
        }
    }
}

/// Whether this is the last packet of what the sender sends in its operation. `None`: it is malformed.
fn is_last(operation: &Operation, blocks: u16, offset: u32, payload_bytes: u32) -> Option<bool> {
    let bytes = operation.bytes().checked_mul(blocks.into())?;
    let end = offset.checked_add(payload_bytes).filter(|end| *end <= bytes)?;
    let is_empty = payload_bytes == 0 && bytes > 0;
    let whole = operation.is_valid(None) && operation.divides(payload_bytes);
    (whole && !is_empty).then_some(end == bytes)
}

pub(super) fn send_taken<D: MachineDriver>(to: Peer, number: u32, group: u32, refused: bool, driver: &mut D) {
    driver.send(to, number, Offloaded::Group(GroupPacket::Taken { group, refused }), None);
}

#[cfg(feature = "explore")]
mod canonical;
