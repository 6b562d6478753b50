//! One operation of a group at one member: the steps of its schedule, what has arrived for it, and what is on its way.
//!
//! A part whose turn it is is combined straight from the slots. An earlier one lies in a buffer of the driver until its
//! turn. A broadcast is forwarded packet by packet as it comes, also before the program has started it. The block of an exchange
//! goes to the buffer of the request, whose own block has been copied at the start. Blocks of a gather go behind the own one:
//! at the root in the buffer of the request, at a member that passes them on in a buffer of its own. Blocks of an all-gather and an
//! all-to-all go to their places in the buffer of the request, after our own have been copied.
//!
//! What is sent lies in a buffer of the driver, not in that of the request. So an operation can complete or fail at once,
//! while its packets wait for credit. The buffer is free when all destinations have answered or are lost. If a member sends
//! the result to one that has contributed, the result is the answer. A receiver gives all other answers when its program
//! has started the operation. So no member ends an operation before those that it sends to have started it.
//!
//! The end of an all-gather or an all-to-all shows that all have started it, so nobody answers. Each of their packets has a
//! buffer of its own, which the endpoint frees when it has left. Packets that wait for credit are few: one that has not arrived
//! keeps its destination from ending the operation, and a member from ending more than [`super::MAX_ROUNDS`] later ones.
//!
//! The result may take the place of a contribution whose answer has not come: it has all contributions, so all of them have
//! arrived.

use alloc::vec::Vec;

use super::super::{Combination, Offloaded};
use super::member::send_taken;
use super::schedule::{self, Step, Use};
use super::{GroupPacket, Membership, Operation};
use crate::action::Outcome;
use crate::event::{BufferId, Peer, Request};
use crate::machine::{MachineDriver, Memory, Operand, Payload};

/// What a member hears of another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input {
    /// Its rank.
    pub rank: u32,
    /// The step that hears it.
    step: usize,
    /// Length of what it sends. Unit: bytes.
    bytes: u32,
    /// Bytes of its payload that have arrived.
    arrived_bytes: u32,
    complete: bool,
    answered: bool,
    /// Its contribution or block, or the part of it that has arrived, before its turn.
    held: Option<BufferId>,
}

/// What a round needs to know of its group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene<'a> {
    pub membership: &'a Membership,
    /// The number of the operation.
    pub number: u32,
    /// All members have joined.
    pub ready: bool,
}

impl Scene<'_> {
    fn peer(&self, rank: u32) -> Peer {
        self.membership.members[rank as usize]
    }
}

/// An operation that has not ended.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub operation: Operation,
    steps: Vec<Step>,
    /// The step that is next.
    step: usize,
    /// Ranks of it that are heard.
    heard: usize,
    inputs: Vec<Input>,
    /// The program has started it.
    pub started: bool,
    /// `None`: it has completed.
    request: Option<Request>,
    /// The vector that is sent, or what is combined so far, as long as `buffer_bytes`.
    buffer: Option<BufferId>,
    /// Unit: bytes.
    buffer_bytes: u32,
    /// Ranks that have not answered what they were sent.
    awaited: Vec<u32>,
}

impl Round {
    pub fn new(membership: &Membership, operation: Operation) -> Round {
        let Membership { ref members, rank, shape, .. } = *membership;
        let count = members.len() as u32;
        let steps = schedule::steps(shape, &operation, rank, count);
        let input = |step, from| {
            let bytes = operation.bytes() * schedule::blocks_between(&operation, (from, rank), count);
            Input { rank: from, step, bytes, arrived_bytes: 0, complete: false, answered: false, held: None }
        };
        let inputs = steps.iter().enumerate();
        let inputs =
            inputs.flat_map(|(step, Step { hear, .. })| hear.iter().map(move |rank| input(step, *rank)));
        let inputs = inputs.collect();
        let buffer_bytes = operation.bytes() * schedule::blocks_at(&operation, rank, count);
        let (started, request, buffer, awaited) = (false, None, None, Vec::new());
        Round { operation, steps, step: 0, heard: 0, inputs, started, request, buffer, buffer_bytes, awaited }
    }

    /// The place of `rank` among those that the schedule hears.
    pub fn input(&self, rank: u32) -> Option<usize> {
        self.inputs.iter().position(|input| input.rank == rank)
    }

    /// The ranks from which something has arrived.
    pub fn arrived_from(&self) -> impl Iterator<Item = u32> {
        let arrived = self.inputs.iter().filter(|input| input.complete || input.arrived_bytes > 0);
        arrived.map(|input| input.rank)
    }

    /// The ranks that this member waits for: the next one to be heard first.
    pub fn awaited(&self) -> impl Iterator<Item = u32> {
        let unheard = self.inputs.iter().filter(|input| !input.complete).map(|input| input.rank);
        unheard.chain(self.awaited.iter().copied())
    }

    /// Whether nothing remains to be done.
    pub fn is_over(&self) -> bool {
        self.started && self.is_through() && self.request.is_none() && self.awaited.is_empty()
    }

    /// Whether packets that name its memory are on their way.
    pub fn is_pinned(&self) -> bool {
        !self.awaited.is_empty()
    }

    fn is_through(&self) -> bool {
        self.step >= self.steps.len()
    }

    /// The program starts the operation.
    pub fn start<D: MachineDriver>(&mut self, scene: Scene<'_>, request: Request, driver: &mut D) {
        let Membership { ref members, rank, .. } = *scene.membership;
        let bytes = self.operation.buffer_bytes(rank, members.len() as u32);
        let own = Memory::Request { request, offset: 0 };
        self.started = true;
        self.request = Some(request);
        let sends = self.steps.iter().any(|step| !step.tell.is_empty());
        match self.operation {
            Operation::Barrier => {}
            Operation::Reduce(_) | Operation::AllReduce(_) if scene.membership.rank == 0 => {}
            // Our vector is combined with what comes.
            _ if self.steps.first().is_some_and(|step| step.usage == Use::Continue) => {}
            Operation::Scatter { root, .. } if root != scene.membership.rank => {}
            Operation::AllGather { .. } | Operation::AllToAll { .. } => {}
            Operation::Broadcast { root, .. } if root != scene.membership.rank => {
                let arrived_bytes = self.inputs.first().map_or(0, |input| input.arrived_bytes);
                if let Some(buffer) = self.buffer {
                    let from = Operand::Memory(Memory::Buffer { buffer, offset: 0 });
                    driver.copy(from, own, arrived_bytes);
                }
                if !sends && let Some(buffer) = self.buffer.take() {
                    driver.free(buffer);
                }
            }
            _ if sends => {
                let into = self.allocate(driver);
                driver.copy(Operand::Memory(own), into, bytes);
            }
            _ => {}
        }
        self.advance(scene, driver);
    }

    /// A packet has arrived from the rank at `index` of the inputs. `Err`: it makes no sense.
    pub fn part<D: MachineDriver>(
        &mut self,
        scene: Scene<'_>,
        index: usize,
        (offset, payload_bytes): (u32, u32),
        driver: &mut D,
    ) -> Result<(), ()> {
        let input = self.inputs[index];
        if input.complete || offset != input.arrived_bytes {
            return Err(());
        }
        match self.steps[input.step].usage {
            Use::Nothing => {}
            Use::Combine | Use::Continue => self.combine(index, (offset, payload_bytes), driver),
            Use::Keep if self.started && input.held.is_none() => {
                driver.copy(Operand::Arrived, self.of_request().plus(offset), payload_bytes);
            }
            Use::Collect if self.started && input.held.is_none() => {
                let into = self.behind_own(scene, input.rank).plus(offset);
                driver.copy(Operand::Arrived, into, payload_bytes);
            }
            Use::Fill if self.started && self.step > 0 && input.held.is_none() => {
                let into = self.behind_own(scene, input.rank).plus(offset);
                driver.copy(Operand::Arrived, into, payload_bytes);
            }
            Use::Keep | Use::Collect | Use::Split | Use::Fill => {
                self.hold(index, (offset, payload_bytes), driver);
            }
            Use::Place => {
                // The result of a reduction comes after our contribution.
                if self.operation.combination().is_some() && self.step != input.step {
                    return Err(());
                }
                self.awaited.retain(|rank| *rank != input.rank);
                self.place(scene, (offset, payload_bytes), driver);
            }
        }
        let input = &mut self.inputs[index];
        input.arrived_bytes = offset + payload_bytes;
        input.complete = input.arrived_bytes == input.bytes;
        if input.complete {
            self.advance(scene, driver);
        }
        Ok(())
    }

    /// Combines a part of a contribution if it is its turn. Otherwise it is held.
    fn combine<D: MachineDriver>(&mut self, index: usize, (offset, bytes): (u32, u32), driver: &mut D) {
        let Input { step, held, .. } = self.inputs[index];
        let next = self.steps[self.step.min(step)].hear.get(self.heard);
        let is_turn = self.started && step == self.step && next == Some(&self.inputs[index].rank);
        if is_turn && held.is_none() {
            match self.steps[step].usage {
                Use::Continue => {
                    let into = match self.buffer {
                        Some(buffer) => Memory::Buffer { buffer, offset: 0 },
                        None => self.allocate(driver),
                    };
                    driver.copy(Operand::Arrived, into.plus(offset), bytes);
                    self.continue_in_buffer((offset, bytes), driver);
                }
                _ => {
                    let into = self.own().plus(offset);
                    driver.combine(Operand::Arrived, into, self.combination(), bytes);
                }
            }
        } else {
            self.hold(index, (offset, bytes), driver);
        }
    }

    /// Keeps a part of what has come before its turn.
    fn hold<D: MachineDriver>(&mut self, index: usize, (offset, bytes): (u32, u32), driver: &mut D) {
        let Input { bytes: whole, held, .. } = &mut self.inputs[index];
        let buffer = *held.get_or_insert_with(|| driver.allocate(*whole));
        let into = Memory::Buffer { buffer, offset: u64::from(offset) };
        driver.copy(Operand::Arrived, into, bytes);
    }

    /// The buffer has what the ranks before us give: combines our vector with it.
    fn continue_in_buffer<D: MachineDriver>(&mut self, (offset, bytes): (u32, u32), driver: &mut D) {
        let (from, into) = (self.of_request().plus(offset), self.own().plus(offset));
        driver.combine(Operand::Memory(from), into, self.combination(), bytes);
    }

    /// Keeps a part of the payload that all members get, and forwards it.
    fn place<D: MachineDriver>(&mut self, scene: Scene<'_>, (offset, bytes): (u32, u32), driver: &mut D) {
        let tell = core::mem::take(&mut self.steps.last_mut().expect("it places in its last step").tell);
        if !tell.is_empty() || !self.started {
            let into = match self.buffer {
                Some(buffer) => Memory::Buffer { buffer, offset: 0 },
                None => self.allocate(driver),
            };
            driver.copy(Operand::Arrived, into.plus(offset), bytes);
            self.send(scene, &tell, Some((into, offset, bytes)), driver);
        }
        self.steps.last_mut().expect("as before").tell = tell;
        if let Some(request) = self.request {
            let into = Memory::Request { request, offset: u64::from(offset) };
            driver.copy(Operand::Arrived, into, bytes);
        }
    }

    /// Does the steps whose time has come.
    pub fn advance<D: MachineDriver>(&mut self, scene: Scene<'_>, driver: &mut D) {
        if !self.started || !scene.ready {
            return;
        }
        while let Some(step) = self.steps.get(self.step) {
            let usage = step.usage;
            if let Some(rank) = step.hear.get(self.heard) {
                let index = self.input(*rank).expect("an input for each rank to be heard");
                if !self.inputs[index].complete {
                    return;
                }
                self.heard += 1;
                let bytes = self.inputs[index].bytes;
                match self.inputs[index].held.take() {
                    Some(buffer) if usage == Use::Continue => {
                        self.buffer = Some(buffer);
                        self.continue_in_buffer((0, bytes), driver);
                    }
                    Some(buffer) if usage == Use::Split => {
                        self.buffer = Some(buffer);
                        let from = Operand::Memory(Memory::Buffer { buffer, offset: 0 });
                        driver.copy(from, self.of_request(), self.operation.bytes());
                    }
                    Some(buffer) => {
                        let from = Operand::Memory(Memory::Buffer { buffer, offset: 0 });
                        match usage {
                            Use::Keep => driver.copy(from, self.of_request(), bytes),
                            Use::Collect | Use::Fill => {
                                let into = self.behind_own(scene, self.inputs[index].rank);
                                driver.copy(from, into, bytes);
                            }
                            _ => driver.combine(from, self.own(), self.combination(), bytes),
                        }
                        driver.free(buffer);
                    }
                    None => {}
                }
                let result_answers = self.contributes(index) && self.sends_result_to(self.inputs[index].rank);
                if self.operation.is_answered() && !result_answers {
                    self.answer(scene, index, false, driver);
                }
                continue;
            }
            if usage != Use::Place {
                self.tell(scene, driver);
            }
            self.step += 1;
            self.heard = 0;
        }
        let is_taken = self.awaited.is_empty() || !matches!(self.operation, Operation::Reduce(_));
        if is_taken && let Some(request) = self.request.take() {
            driver.complete(request, Outcome::Done);
        }
        self.free_unpinned(driver);
    }

    /// Sends what the current step sends: all of it, from our buffer.
    fn tell<D: MachineDriver>(&mut self, scene: Scene<'_>, driver: &mut D) {
        let tell = core::mem::take(&mut self.steps[self.step].tell);
        if matches!(self.operation, Operation::AllGather { .. } | Operation::AllToAll { .. }) {
            tell.iter().for_each(|to| self.give_blocks(scene, *to, driver));
        } else if self.operation.has_payload() && !tell.is_empty() {
            let bytes = self.operation.bytes();
            let from = match self.buffer {
                Some(buffer) => {
                    let from = Memory::Buffer { buffer, offset: 0 };
                    // The last leader of an all-reduce from the left, which nobody sends the result.
                    if matches!(self.operation, Operation::AllReduce(_)) && self.step + 1 == self.steps.len()
                    {
                        driver.copy(Operand::Memory(from), self.of_request(), bytes);
                    }
                    from
                }
                None => {
                    // Rank 0 combines in the buffer of its request.
                    let own = self.own();
                    let into = self.allocate(driver);
                    driver.copy(Operand::Memory(own), into, bytes);
                    into
                }
            };
            match self.operation {
                Operation::Scatter { .. } => {
                    let Membership { ref members, rank, .. } = *scene.membership;
                    for to in &tell {
                        let first =
                            schedule::first_block_of(&self.operation, rank, *to, members.len() as u32);
                        let blocks = bytes * self.blocks_to(scene, *to);
                        self.send(scene, &[*to], Some((from.plus(first * bytes), 0, blocks)), driver);
                    }
                }
                _ => self.send(scene, &tell, Some((from, 0, self.buffer_bytes)), driver),
            }
        } else {
            self.send(scene, &tell, None, driver);
        }
        self.steps[self.step].tell = tell;
    }

    /// Sends a member what it gets of an all-gather or an all-to-all, in a buffer that ends when it has left.
    fn give_blocks<D: MachineDriver>(&self, scene: Scene<'_>, to: u32, driver: &mut D) {
        let Membership { ref members, rank, .. } = *scene.membership;
        let first = match self.operation {
            Operation::AllToAll { .. } => {
                schedule::first_block_of(&self.operation, rank, to, members.len() as u32)
            }
            _ => 0,
        };
        let (bytes, blocks) = (self.operation.bytes(), self.blocks_to(scene, to));
        let from = Operand::Memory(self.of_request().plus(first * bytes));
        let memory = Memory::Buffer { buffer: driver.allocate(bytes * blocks), offset: 0 };
        driver.copy(from, memory, bytes * blocks);
        let packet = Offloaded::Group(self.packet_to(scene, to, 0));
        let payload = Some(Payload { memory, bytes: bytes * blocks });
        driver.send(scene.peer(to), scene.number, packet, payload);
    }

    /// Sends a packet to all of `ranks`. `payload`: the memory of the whole, and the offset and length of what is sent.
    fn send<D: MachineDriver>(
        &mut self,
        scene: Scene<'_>,
        ranks: &[u32],
        payload: Option<(Memory, u32, u32)>,
        driver: &mut D,
    ) {
        let offset = payload.map_or(0, |(_, offset, _)| offset);
        for rank in ranks {
            let packet = self.packet_to(scene, *rank, offset);
            let payload = payload.map(|(memory, offset, bytes)| {
                let memory = memory.plus(offset);
                Payload { memory, bytes }
            });
            if payload.is_some() && !self.awaited.contains(rank) && offset == 0 {
                self.awaited.push(*rank);
            }
            let contribution = self.input(*rank).filter(|index| self.contributes(*index));
            if let Some(index) = contribution {
                self.inputs[index].answered = true; // by the result
            }
            driver.send(scene.peer(*rank), scene.number, Offloaded::Group(packet), payload);
        }
    }

    fn packet_to(&self, scene: Scene<'_>, rank: u32, offset: u32) -> GroupPacket {
        let blocks = self.blocks_to(scene, rank) as u16; // `Operation::is_valid`
        GroupPacket::Part { group: scene.membership.group, operation: self.operation, blocks, offset }
    }

    /// How many blocks this member sends to `rank`.
    fn blocks_to(&self, scene: Scene<'_>, rank: u32) -> u32 {
        let Membership { ref members, rank: own, .. } = *scene.membership;
        schedule::blocks_between(&self.operation, (own, rank), members.len() as u32)
    }

    /// Where the blocks that `rank` sends belong, in the memory of a gather that is started.
    fn behind_own(&self, scene: Scene<'_>, rank: u32) -> Memory {
        let Membership { ref members, rank: own, .. } = *scene.membership;
        let first = schedule::first_block_of(&self.operation, own, rank, members.len() as u32);
        self.own().plus(first * self.operation.bytes())
    }

    /// `rank` has answered what it was sent. `Err`: it was sent nothing.
    pub fn taken<D: MachineDriver>(&mut self, scene: Scene<'_>, rank: u32, driver: &mut D) -> Result<(), ()> {
        let place = self.awaited.iter().position(|awaited| *awaited == rank).ok_or(())?;
        self.awaited.remove(place);
        self.advance(scene, driver);
        self.free_unpinned(driver);
        Ok(())
    }

    /// Frees the buffer if no step needs it, and nothing that was sent from it is on its way.
    fn free_unpinned<D: MachineDriver>(&mut self, driver: &mut D) {
        if self.is_through()
            && self.awaited.is_empty()
            && let Some(buffer) = self.buffer.take()
        {
            driver.free(buffer);
        }
    }

    fn answer<D: MachineDriver>(&mut self, scene: Scene<'_>, index: usize, refused: bool, driver: &mut D) {
        self.inputs[index].answered = true;
        let to = scene.peer(self.inputs[index].rank);
        send_taken(to, scene.number, scene.membership.group, refused, driver);
    }

    fn allocate<D: MachineDriver>(&mut self, driver: &mut D) -> Memory {
        let buffer = driver.allocate(self.buffer_bytes);
        self.buffer = Some(buffer);
        Memory::Buffer { buffer, offset: 0 }
    }

    /// The memory in which contributions are combined, of an operation that is started.
    fn own(&self) -> Memory {
        match self.buffer {
            Some(buffer) => Memory::Buffer { buffer, offset: 0 },
            None => self.of_request(),
        }
    }

    fn of_request(&self) -> Memory {
        let request = self.request.expect("an operation has a request until it has combined all");
        Memory::Request { request, offset: 0 }
    }

    fn usage(&self, index: usize) -> Use {
        self.steps[self.inputs[index].step].usage
    }

    /// Whether what the input at `index` sends is combined.
    fn contributes(&self, index: usize) -> bool {
        matches!(self.usage(index), Use::Combine | Use::Continue)
    }

    /// Whether the result goes to `rank` from here. Then it answers the contribution of that rank.
    fn sends_result_to(&self, rank: u32) -> bool {
        self.steps.last().is_some_and(|step| step.tell.contains(&rank))
    }

    fn combination(&self) -> Combination {
        self.operation.combination().expect("only operations that combine ask for it")
    }
}

#[cfg(feature = "explore")]
mod canonical;
mod failure;
