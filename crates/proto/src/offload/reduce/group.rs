//! One group: its neighbours in the tree, its reductions under way, and how it fails.
//!
//! Reductions have numbers, from 0 on. They end in order, because each path has one order. A contribution whose turn it
//! is is combined straight from the slots. An earlier one lies in a buffer of the driver until its turn. A child has at
//! most [`MAX_REDUCTIONS`] contributions without an answer, so the number of buffers is bounded.
//!
//! What is sent to the parent lies in a buffer of the driver, not in that of the request. So a reduction can fail at
//! once, while its packets wait for credit. The buffer is free when the parent has answered or is lost.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::super::{Offloaded, tree};
use super::{MAX_REDUCTIONS, Membership, ReducePacket, Vector};
use crate::action::Outcome;
use crate::endpoint::Refusal;
use crate::event::{BufferId, Peer, PeerFault, Request};
use crate::machine::{MachineDriver, Memory, Operand, Payload};
use crate::timers::MachineTimer;

/// A member below us.
#[derive(Clone, Debug)]
struct Child {
    peer: Peer,
    joined: bool,
    /// The reduction that its next packet belongs to.
    number: u32,
    /// Bytes of its vector that have arrived.
    arrived_bytes: u32,
    /// The first reduction that it has no answer for.
    unanswered: u32,
}

/// A contribution, or the part of it that has arrived, before its turn.
#[derive(Clone, Copy, Debug)]
struct Held {
    buffer: BufferId,
    vector: Vector,
}

/// Our part of a reduction.
#[derive(Clone, Copy, Debug)]
struct Started {
    /// `None`: it has completed, because the group has failed.
    request: Option<Request>,
    vector: Vector,
    /// The vectors combined so far. The root has them in the buffer of the request.
    partial: Memory,
    /// It is on its way to the parent.
    sent: bool,
}

impl Started {
    fn free<D: MachineDriver>(&self, driver: &mut D) {
        if let Memory::Buffer { buffer, .. } = self.partial {
            driver.free(buffer);
        }
    }
}

/// A reduction that has not ended.
#[derive(Clone, Debug)]
struct Reduction {
    /// `None`: only contributions have arrived.
    started: Option<Started>,
    /// Number of children whose contributions are combined.
    combined: usize,
    /// By child.
    held: Vec<Option<Held>>,
}

/// A group.
#[derive(Clone, Debug)]
pub(super) struct Group {
    membership: Membership,
    parent: Option<Peer>,
    parent_joined: bool,
    children: Vec<Child>,
    /// The number of the first entry of `reductions`.
    first: u32,
    /// The number of the next reduction that the program starts.
    next: u32,
    reductions: VecDeque<Reduction>,
    /// The lost member, by rank, and why.
    failed: Option<(u32, PeerFault)>,
    left: bool,
}

impl Group {
    /// # Panics
    /// If `rank` is not that of a member.
    pub fn join<D: MachineDriver>(membership: Membership, driver: &mut D) -> Group {
        let Membership { ref members, rank, .. } = membership;
        assert!((rank as usize) < members.len(), "rank {rank} of {} members", members.len());
        let child = |child| Child {
            peer: members[child as usize],
            joined: false,
            number: 0,
            arrived_bytes: 0,
            unanswered: 0,
        };
        let group = Group {
            parent: tree::parent(rank).map(|parent| members[parent as usize]),
            parent_joined: false,
            children: tree::children(rank, members.len() as u32).map(child).collect(),
            first: 0,
            next: 0,
            reductions: VecDeque::new(),
            failed: None,
            left: false,
            membership,
        };
        group.neighbours().for_each(|peer| group.send_joined(peer, driver));
        group
    }

    /// The parent and the children.
    pub fn neighbours(&self) -> impl Iterator<Item = Peer> {
        self.parent.into_iter().chain(self.children.iter().map(|child| child.peer))
    }

    /// Whether the program has started a reduction that has not ended.
    pub fn is_pending(&self) -> bool {
        self.reductions.iter().any(|reduction| reduction.started.is_some())
    }

    pub fn has_left(&self) -> bool {
        self.left
    }

    /// Whether we have left, and no buffer is in use.
    pub fn has_ended(&self) -> bool {
        self.left && self.reductions.is_empty()
    }

    /// # Errors
    /// [`Refusal::RemoteOperations`]: as many reductions as allowed have not ended.
    pub fn start<D: MachineDriver>(
        &mut self,
        request: Request,
        vector: Vector,
        driver: &mut D,
    ) -> Result<(), Refusal> {
        if let Some(outcome) = self.failure() {
            driver.complete(request, outcome);
            return Ok(());
        }
        let position = self.next.wrapping_sub(self.first);
        if position >= MAX_REDUCTIONS {
            return Err(Refusal::RemoteOperations);
        }
        self.next = self.next.wrapping_add(1);
        let own = Memory::Request { request, offset: 0 };
        let partial = match self.parent {
            None => own,
            Some(_) => {
                let partial = Memory::Buffer { buffer: driver.allocate(vector.bytes), offset: 0 };
                driver.copy(Operand::Memory(own), partial, vector.bytes);
                partial
            }
        };
        let started = Started { request: Some(request), vector, partial, sent: false };
        self.reduction(position as usize).started = Some(started);
        if position == 0 {
            self.restart_timer(driver);
        }
        self.advance(position as usize, driver);
        Ok(())
    }

    /// Leaves. The other members get an error for reductions that need us.
    pub fn leave<D: MachineDriver>(&mut self, driver: &mut D) {
        self.left = true;
        self.fail(self.membership.rank, PeerFault::Closed, None, driver);
    }

    /// A neighbour says that it has joined. The first time it gets the same from us: our own packet may have come before it
    /// joined.
    pub fn joined<D: MachineDriver>(&mut self, from: Peer, driver: &mut D) {
        let child = self.children.iter_mut().find(|child| child.peer == from);
        let joined = match child {
            Some(child) => &mut child.joined,
            None if self.parent == Some(from) => &mut self.parent_joined,
            None => return driver.reject(from),
        };
        if core::mem::replace(joined, true) {
            return;
        }
        match self.failed {
            Some((member, fault)) => self.send_failed(from, member, fault, driver),
            None => self.send_joined(from, driver),
        }
        if self.parent == Some(from) {
            (0..self.reductions.len()).for_each(|position| self.advance(position, driver));
        }
    }

    /// A packet with a part of a child's contribution has arrived.
    pub fn contributed<D: MachineDriver>(
        &mut self,
        from: Peer,
        number: u32,
        vector: Vector,
        offset: u32,
        payload_bytes: u32,
        driver: &mut D,
    ) {
        let Some(index) = self.children.iter().position(|child| child.peer == from) else {
            return driver.reject(from);
        };
        let child = &mut self.children[index];
        let Some(last) = is_last(vector, offset, payload_bytes) else { return driver.reject(from) };
        let is_ahead = number.wrapping_sub(child.unanswered) >= MAX_REDUCTIONS;
        if number != child.number || offset != child.arrived_bytes || is_ahead {
            return driver.reject(from);
        }
        child.arrived_bytes = if last { 0 } else { offset + payload_bytes };
        child.number = number.wrapping_add(u32::from(last));
        if self.failed.is_some() {
            return if last {
                self.answer(index, true, driver)
            };
        }
        let position = number.wrapping_sub(self.first) as usize;
        let reduction = self.reduction(position);
        let is_turn = reduction.combined == index;
        match (&reduction.started, &reduction.held[index]) {
            (Some(started), None) if is_turn => {
                if started.vector != vector {
                    return driver.reject(from);
                }
                let into = started.partial.plus(offset);
                driver.combine(Operand::Arrived, into, vector.combination, payload_bytes);
                if last {
                    reduction.combined += 1;
                    self.answer(index, false, driver);
                }
            }
            (_, held) => {
                let held = held.unwrap_or_else(|| Held { buffer: driver.allocate(vector.bytes), vector });
                reduction.held[index] = Some(held);
                if held.vector != vector {
                    return driver.reject(from);
                }
                let into = Memory::Buffer { buffer: held.buffer, offset: u64::from(offset) };
                driver.copy(Operand::Arrived, into, payload_bytes);
            }
        }
        if last {
            self.advance(position, driver);
        }
    }

    /// The parent has answered.
    pub fn taken<D: MachineDriver>(&mut self, from: Peer, number: u32, refused: bool, driver: &mut D) {
        let started = self.reductions.front().and_then(|reduction| reduction.started);
        let expected = self.parent == Some(from) && number == self.first;
        // A parent whose group fails says so first.
        let explained = !refused || self.failed.is_some();
        match started.filter(|started| started.sent && expected && explained) {
            Some(started) => self.end_first(started, Outcome::Done, driver),
            None => driver.reject(from),
        }
    }

    /// A neighbour says that the group has failed.
    pub fn neighbour_failed<D: MachineDriver>(
        &mut self,
        from: Peer,
        member: u32,
        fault: PeerFault,
        driver: &mut D,
    ) {
        let known = (member as usize) < self.membership.members.len();
        if !known || !self.neighbours().any(|peer| peer == from) {
            return driver.reject(from);
        }
        self.fail(member, fault, Some(from), driver);
    }

    /// The oldest reduction has waited as long as the group allows.
    pub fn timer_expired<D: MachineDriver>(&mut self, driver: &mut D) {
        let Some(reduction) = self.reductions.front().filter(|reduction| reduction.started.is_some()) else {
            return;
        };
        let awaited = self.children.get(reduction.combined).map(|child| child.peer).or(self.parent);
        let member = self.membership.members.iter().position(|peer| Some(*peer) == awaited);
        self.fail(member.unwrap_or(0) as u32, PeerFault::NotReady, None, driver);
    }

    pub fn lost<D: MachineDriver>(&mut self, peer: Peer, fault: PeerFault, driver: &mut D) {
        let Some(member) = self.membership.members.iter().position(|member| *member == peer) else { return };
        if self.parent == Some(peer) {
            // No answer comes any more, and no packet waits for credit.
            let sent = |group: &Group| group.reductions.front()?.started.filter(|started| started.sent);
            while let Some(started) = sent(self) {
                self.end_first(started, Outcome::Lost { peer: Some(peer), fault }, driver);
            }
        }
        self.fail(member as u32, fault, Some(peer), driver);
    }

    /// How a start ends if the group has failed.
    fn failure(&self) -> Option<Outcome> {
        let (member, fault) = self.failed?;
        Some(Outcome::Lost { peer: Some(self.membership.members[member as usize]), fault })
    }

    /// Ends all reductions, and tells the neighbours, except the one that the program or a packet named.
    fn fail<D: MachineDriver>(
        &mut self,
        member: u32,
        fault: PeerFault,
        except: Option<Peer>,
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
        for index in 0..self.children.len() {
            let Child { peer, number, unanswered, .. } = self.children[index];
            let is_lost = peer == self.membership.members[member as usize];
            let answers = if is_lost { 0 } else { number.wrapping_sub(unanswered) };
            (0..answers).for_each(|_| self.answer(index, true, driver));
        }
        let outcome = self.failure().expect("it has failed");
        for reduction in &mut self.reductions {
            for held in reduction.held.iter_mut().filter_map(Option::take) {
                driver.free(held.buffer);
            }
            let Some(started) = &mut reduction.started else { continue };
            if !started.sent {
                started.free(driver);
            }
            if let Some(request) = started.request.take() {
                driver.complete(request, outcome);
            }
        }
        self.reductions.retain(|reduction| reduction.started.is_some_and(|started| started.sent));
    }

    /// The reduction at `position` behind the first.
    fn reduction(&mut self, position: usize) -> &mut Reduction {
        let children = self.children.len();
        while self.reductions.len() <= position {
            let held = core::iter::repeat_n(None, children).collect();
            self.reductions.push_back(Reduction { started: None, combined: 0, held });
        }
        &mut self.reductions[position]
    }

    /// Combines the contributions whose turn it is. If it was the last, the result goes to the parent or to the program.
    fn advance<D: MachineDriver>(&mut self, position: usize, driver: &mut D) {
        let number = self.first.wrapping_add(position as u32);
        loop {
            let Reduction { started: Some(started), combined, held } = &mut self.reductions[position] else {
                return;
            };
            let (index, vector, partial) = (*combined, started.vector, started.partial);
            let Some(child) = self.children.get(index) else { break };
            if child.number.wrapping_sub(number) as i32 <= 0 {
                return; // its contribution is not complete
            }
            let Some(next) = held[index].take() else { return }; // it was malformed
            if next.vector != vector {
                driver.free(next.buffer);
                return driver.reject(child.peer);
            }
            let from = Operand::Memory(Memory::Buffer { buffer: next.buffer, offset: 0 });
            driver.combine(from, partial, vector.combination, vector.bytes);
            driver.free(next.buffer);
            *combined += 1;
            self.answer(index, false, driver);
        }
        let (parent, group) = (self.parent, self.membership.group);
        let Some(started) = &mut self.reductions[position].started else { return };
        match parent {
            None => {
                let started = *started;
                self.end_first(started, Outcome::Done, driver);
            }
            Some(parent) if self.parent_joined && !started.sent => {
                started.sent = true;
                let Started { vector, partial, .. } = *started;
                let packet = ReducePacket::Contribution { group, vector, offset: 0 };
                let payload = Payload { memory: partial, bytes: vector.bytes };
                driver.send(parent, number, Offloaded::Reduce(packet), Some(payload));
            }
            Some(_) => {}
        }
    }

    /// The first reduction ends, for which we have `started`.
    fn end_first<D: MachineDriver>(&mut self, started: Started, outcome: Outcome, driver: &mut D) {
        self.reductions.pop_front();
        self.first = self.first.wrapping_add(1);
        started.free(driver);
        self.restart_timer(driver);
        if let Some(request) = started.request {
            driver.complete(request, outcome);
        }
    }

    /// The timer runs from the time when the oldest reduction has become the oldest.
    fn restart_timer<D: MachineDriver>(&self, driver: &mut D) {
        let Some(patience_ns) = self.membership.patience_ns else { return };
        let timer = MachineTimer::Reduction { group: self.membership.group };
        let waits = self.failed.is_none()
            && self.reductions.front().is_some_and(|reduction| reduction.started.is_some());
        if waits {
            let at = driver.now().plus_ns(patience_ns);
            driver.set_timer(timer, at);
        } else {
            driver.cancel_timer(timer);
        }
    }

    /// Answers the oldest contribution of a child that has no answer.
    fn answer<D: MachineDriver>(&mut self, index: usize, refused: bool, driver: &mut D) {
        let child = &mut self.children[index];
        let number = child.unanswered;
        child.unanswered = number.wrapping_add(1);
        send_taken(child.peer, number, self.membership.group, refused, driver);
    }

    fn send_joined<D: MachineDriver>(&self, to: Peer, driver: &mut D) {
        let packet = ReducePacket::Joined { group: self.membership.group };
        driver.send(to, 0, Offloaded::Reduce(packet), None);
    }

    fn send_failed<D: MachineDriver>(&self, to: Peer, member: u32, fault: PeerFault, driver: &mut D) {
        let packet = ReducePacket::Failed { group: self.membership.group, member, fault };
        driver.send(to, 0, Offloaded::Reduce(packet), None);
    }
}

/// A packet of a group that we have not joined, or that we have left. We keep nothing of it: a member that joins says so to
/// its neighbours, and one that leaves has told them that the group has failed.
pub(super) fn arrived_without_group<D: MachineDriver>(
    from: Peer,
    number: u32,
    packet: ReducePacket,
    payload_bytes: u32,
    driver: &mut D,
) {
    if let ReducePacket::Contribution { group, vector, offset } = packet {
        match is_last(vector, offset, payload_bytes) {
            Some(true) => send_taken(from, number, group, true, driver),
            Some(false) => {}
            None => driver.reject(from),
        }
    }
}

/// Whether this is the last packet of a contribution. `None`: it is malformed.
fn is_last(vector: Vector, offset: u32, payload_bytes: u32) -> Option<bool> {
    let end = offset.checked_add(payload_bytes).filter(|end| *end <= vector.bytes)?;
    let is_empty = payload_bytes == 0 && vector.bytes > 0;
    let whole = vector.is_valid() && vector.combination.divides(payload_bytes);
    (whole && !is_empty).then_some(end == vector.bytes)
}

fn send_taken<D: MachineDriver>(to: Peer, number: u32, group: u32, refused: bool, driver: &mut D) {
    driver.send(to, number, Offloaded::Reduce(ReducePacket::Taken { group, refused }), None);
}

#[cfg(feature = "explore")]
mod canonical;
