//! One operation of a group that fails: what is still sent and answered, so that nobody waits, and which memory is free.

use alloc::vec::Vec;

use super::{Input, Round, Scene};
use crate::action::Outcome;
use crate::machine::{MachineDriver, Memory, Payload};
use crate::offload::Offloaded;
use crate::offload::group::GroupPacket;
use crate::offload::group::schedule::Use;

impl Round {
    /// A part of `rank` comes after the group has failed. A result still answers our contribution.
    pub fn late_result<D: MachineDriver>(&mut self, scene: Scene<'_>, rank: u32, driver: &mut D) {
        if self.input(rank).is_some_and(|index| self.usage(index) == Use::Place) {
            let _ = self.taken(scene, rank, driver); // the parts after the first one answer nothing
        }
    }

    /// The ranks to which it has forwarded only a part of what it gets, apart from `dead`.
    fn half_told(&self, dead: Option<u32>) -> Vec<u32> {
        let is_half = |input: &Input| input.arrived_bytes > 0 && !input.complete;
        let last = self.inputs.last().filter(|input| is_half(input));
        let step = last.map(|input| &self.steps[input.step]).filter(|step| step.usage == Use::Place);
        let told = step.map_or(&[][..], |step| &step.tell);
        let awaited = told.iter().filter(|rank| self.awaited.contains(rank));
        awaited.copied().filter(|rank| Some(*rank) != dead).collect()
    }

    /// The group has failed, and no more comes of a vector that it has begun to forward. Those that wait for the rest learn of
    /// the failure, and then get any bytes: they answer the last of them without using it.
    fn end_forwarding<D: MachineDriver>(
        &mut self,
        scene: Scene<'_>,
        failure: GroupPacket,
        dead: Option<u32>,
        driver: &mut D,
    ) {
        let Some(buffer) = self.buffer else { return };
        for rank in self.half_told(dead) {
            let offset = self.inputs.last().map_or(0, |input| input.arrived_bytes);
            let (memory, bytes) =
                (Memory::Buffer { buffer, offset: u64::from(offset) }, self.operation.bytes() - offset);
            driver.send(scene.peer(rank), 0, Offloaded::Group(failure), None);
            let packet = self.packet_to(scene, rank, offset);
            let payload = Some(Payload { memory, bytes });
            driver.send(scene.peer(rank), scene.number, Offloaded::Group(packet), payload);
        }
    }

    /// The group has failed as `failure` says. `dead`: the rank of a dead member, which gets no answers.
    pub fn fail<D: MachineDriver>(
        &mut self,
        scene: Scene<'_>,
        (failure, dead): (GroupPacket, Option<u32>),
        outcome: Outcome,
        driver: &mut D,
    ) {
        self.end_forwarding(scene, failure, dead, driver);
        for index in 0..self.inputs.len() {
            let Input { rank, complete, answered, .. } = self.inputs[index];
            if self.operation.is_answered() && complete && !answered && Some(rank) != dead {
                self.answer(scene, index, true, driver);
            }
            if let Some(buffer) = self.inputs[index].held.take() {
                driver.free(buffer);
            }
        }
        self.step = self.steps.len();
        self.free_unpinned(driver);
        if let Some(request) = self.request.take() {
            driver.complete(request, outcome);
        }
    }
}
