//! The offloaded machines of a test world, beside its endpoints. Their driver acts at once; the packets that they
//! send follow as events.

use weir_proto::offload::{Combination, Offload, OffloadCommand, Offloaded, VectorUpdate, WordUpdate};
use weir_proto::{
    BufferId, Event, Instant, Machine, MachineDriver, MachineEvent, MachineTimer, Memory, Operand, Outcome,
    Outgoing, Payload, Peer, PeerFault, Refusal, Request,
};

use super::{TestRank, World};

/// The driver of one event.
struct Driver<'rank> {
    rank: &'rank mut TestRank,
    rejected: Vec<Peer>,
    now: Instant,
    /// The payload of the arrived packet.
    arrived: Vec<u8>,
}

impl Driver<'_> {
    fn memory(&mut self, memory: Memory, bytes: u32) -> &mut [u8] {
        let rank = &mut *self.rank;
        let (memory, offset) = match memory {
            Memory::Request { request, offset } => {
                (rank.buffers[request.0 as usize].as_mut().expect("outstanding"), offset)
            }
            Memory::Region { key, offset } => (rank.regions.get_mut(&key).expect("registered"), offset),
            Memory::Buffer { buffer, offset } => {
                (rank.machine_buffers.get_mut(&buffer.0).expect("allocated"), offset)
            }
        };
        &mut memory[offset as usize..][..bytes as usize]
    }

    fn operand(&mut self, operand: Operand, bytes: u32) -> Vec<u8> {
        match operand {
            Operand::Arrived => self.arrived[..bytes as usize].to_vec(),
            Operand::Memory(memory) => self.memory(memory, bytes).to_vec(),
        }
    }
}

impl MachineDriver for Driver<'_> {
    fn now(&mut self) -> Instant {
        self.now
    }

    fn set_timer(&mut self, timer: MachineTimer, at: Instant) {
        self.rank.timers.set(timer.into(), at);
    }

    fn cancel_timer(&mut self, timer: MachineTimer) {
        self.rank.timers.cancel(timer.into());
    }

    fn send(&mut self, to: Peer, number: u32, packet: Offloaded, payload: Option<Payload>) {
        self.rank.events.push_back(Event::Outgoing(Outgoing { to, number, packet, payload }));
    }

    fn reject(&mut self, from: Peer) {
        self.rejected.push(from);
        self.rank.events.push_back(Event::Lost { peer: from, fault: PeerFault::Malformed });
    }

    fn update_word(&mut self, key: u64, offset: u64, update: &WordUpdate) -> Option<u64> {
        let bytes = update.word_type.bytes() as usize;
        let region = self.rank.regions.get_mut(&key).expect("the machine checked the key");
        if !offset.is_multiple_of(bytes as u64) {
            return None;
        }
        let word = &mut region[offset as usize..][..bytes];
        let mut old = [0; 8];
        old[..bytes].copy_from_slice(word);
        let old = u64::from_le_bytes(old);
        word.copy_from_slice(&update.apply(old).to_le_bytes()[..bytes]);
        Some(old)
    }

    fn update_vector(&mut self, update: &VectorUpdate, old: Option<Memory>) -> bool {
        let bytes = update.bytes as usize;
        let operands = std::mem::take(&mut self.arrived);
        let region = self.rank.regions.get_mut(&update.key).expect("the machine checked the key");
        let mut before = vec![0; bytes];
        update.apply(&mut region[update.offset as usize..][..bytes], &operands, Some(&mut before));
        if let Some(old) = old {
            self.memory(old, update.bytes).copy_from_slice(&before);
        }
        true
    }

    fn place_word(&mut self, request: Request, word: u64, bytes: u32) {
        self.place_word_at(request, 0, word, bytes);
    }

    fn place_word_at(&mut self, request: Request, offset: u32, word: u64, bytes: u32) {
        let buffer = self.rank.buffers[request.0 as usize].as_mut().expect("outstanding");
        buffer[offset as usize..][..bytes as usize].copy_from_slice(&word.to_le_bytes()[..bytes as usize]);
    }

    fn allocate(&mut self, bytes: u32) -> BufferId {
        let buffers = &mut self.rank.machine_buffers;
        let name = (0..).find(|name| !buffers.contains_key(name)).expect("a free name");
        buffers.insert(name, vec![0; bytes as usize]);
        BufferId(name)
    }

    fn free(&mut self, buffer: BufferId) {
        self.rank.free_machine_buffer(buffer);
    }

    fn copy(&mut self, from: Operand, into: Memory, bytes: u32) {
        let from = self.operand(from, bytes);
        self.memory(into, bytes).copy_from_slice(&from);
    }

    fn combine(&mut self, from: Operand, into: Memory, combination: Combination, bytes: u32) {
        let from = self.operand(from, bytes);
        combination.combine(self.memory(into, bytes), &from);
    }

    fn complete(&mut self, request: Request, outcome: Outcome) {
        let buffer = self.rank.buffers[request.0 as usize].take().expect("completed once");
        self.rank.completions.push_back((request, outcome, buffer));
    }
}

impl TestRank {
    /// Ends a buffer of its offloaded machines.
    pub(super) fn free_machine_buffer(&mut self, buffer: BufferId) {
        assert!(self.machine_buffers.remove(&buffer.0).is_some(), "{buffer:?} is freed twice");
    }

    /// Number of buffers of its offloaded machines.
    pub fn machine_buffers(&self) -> usize {
        self.machine_buffers.len()
    }
}

impl World {
    /// Passes an event to the offloaded machines of `rank`. Packets that they send wait in the rank's events.
    ///
    /// # Errors
    /// [`Refusal`]: only a command of the program.
    pub(super) fn offload(
        &mut self,
        rank: u32,
        event: MachineEvent<OffloadCommand, Offloaded>,
    ) -> Result<(), Refusal> {
        let arrived = match &event {
            MachineEvent::Arrived { from, .. } => {
                let lane = &self.lanes[&(from.0, rank)][0];
                lane.packets.front().expect("not retired").1.clone()
            }
            _ => Vec::new(),
        };
        let now = self.now;
        let rank = &mut self.ranks[rank as usize];
        let mut offload: Offload = std::mem::take(&mut rank.offload);
        let mut driver = Driver { rank, rejected: Vec::new(), now, arrived };
        let handled = offload.handle(event, &mut driver);
        assert_eq!(driver.rejected, [], "the machines of a world send only packets that make sense");
        rank.offload = offload;
        handled
    }

    /// The program of `rank` asks one of the machines for something within the bounds.
    pub fn post_offloaded(&mut self, rank: u32, command: OffloadCommand) {
        self.offload(rank, MachineEvent::Posted(command)).expect("within the bounds");
        self.handle_caused(rank);
    }

    /// The same for a command with a request, which ends if a bound does not allow it. Returns whether it does.
    pub fn try_offloaded(&mut self, rank: u32, request: Request, command: OffloadCommand) -> bool {
        if self.offload(rank, MachineEvent::Posted(command)).is_err() {
            self.ranks[rank as usize].buffers[request.0 as usize] = None;
            return false;
        }
        self.handle_caused(rank);
        true
    }

    /// Handles what a machine has sent outside of an event of the endpoint.
    pub(super) fn handle_caused(&mut self, rank: u32) {
        if let Some(event) = self.ranks[rank as usize].events.pop_front() {
            self.handle(rank, event);
        }
    }
}
