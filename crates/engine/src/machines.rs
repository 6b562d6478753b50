//! The driver of the offloaded machines, which are remote atomics and groups. `atomics.rs` posts to the first,
//! `groups.rs` and `collectives.rs` to the second. Atomics also learn here which regions peers may change.
//!
//! [`Io::offload`] passes an event to them. A packet that they send is queued, and the endpoint sends it after the
//! current event, over its paths and with its credits. This file does not look into packets.
//! ```text
//! poll: Atomic      endpoint -> EventDriver::pass_on -> Offload -> update_word, send -> Io::events
//! after the event   endpoint handles Outgoing -> transmit
//! ```

use std::collections::{HashMap, VecDeque};
use std::time::Instant as Clock;

use weir_link::Link;
use weir_link::memory::{OwnedMemory, UserMemory};
use weir_proto::offload::atomics::{AtomicsCommand, ExposedRegion};
use weir_proto::offload::{Combination, OffloadCommand, Offloaded, VectorUpdate, WordOperation, WordUpdate};
use weir_proto::{
    BufferId, Event, Instant, Machine, MachineDriver, MachineEvent, MachineTimer, Memory, Operand, Outcome,
    Outgoing, Payload, Peer, PeerFault, Refusal, Request, TimerKey, TimerQueue,
};

use crate::atomics;
use crate::collectives::Collectives;
use crate::io::{Io, complete_held};
use crate::machine_buffers::{MachineBuffers, combine};
use crate::operations::Operations;
use crate::remote_memory::Region;
use crate::{Completion, Engine};

/// The driver of the offloaded machines.
struct MachineCalls<'io, L> {
    link: &'io L,
    origin: Clock,
    buffers: &'io mut MachineBuffers,
    timers: &'io mut TimerQueue<TimerKey>,
    operations: &'io mut Operations,
    completions: &'io mut VecDeque<Completion>,
    collectives: &'io mut Collectives,
    regions: &'io HashMap<u64, Region>,
    events: &'io mut VecDeque<Event<'static>>,
    has_aftermath: &'io mut bool,
}

impl<L: Link> MachineCalls<'_, L> {
    fn cause(&mut self, event: Event<'static>) {
        self.events.push_back(event);
        *self.has_aftermath = true;
    }

    /// The memory that a machine names, and the offset in it.
    fn memory(&self, memory: Memory) -> (&UserMemory, u64) {
        match memory {
            Memory::Request { request, offset } => {
                let outstanding = self.operations.get(request).expect("requests of machines are outstanding");
                (&outstanding.memory, offset)
            }
            Memory::Region { key, offset } => {
                (&self.regions.get(&key).expect("the machine checked the key").memory, offset)
            }
            Memory::Buffer { buffer, offset } => (self.buffers.memory(buffer), offset),
        }
    }
}

impl<L: Link> MachineDriver for MachineCalls<'_, L> {
    fn now(&mut self) -> Instant {
        Instant(self.origin.elapsed().as_nanos() as u64)
    }

    fn set_timer(&mut self, timer: MachineTimer, at: Instant) {
        self.timers.set(timer.into(), at);
    }

    fn cancel_timer(&mut self, timer: MachineTimer) {
        self.timers.cancel(timer.into());
    }

    fn send(&mut self, to: Peer, number: u32, packet: Offloaded, payload: Option<Payload>) {
        self.cause(Event::Outgoing(Outgoing { to, number, packet, payload }));
    }

    fn reject(&mut self, from: Peer) {
        self.cause(Event::Lost { peer: from, fault: PeerFault::Malformed });
    }

    fn update_word(&mut self, key: u64, offset: u64, update: &WordUpdate) -> Option<u64> {
        let region = self.regions.get(&key).expect("the machine checked the key");
        Some(atomics::update_word(&region.memory, offset, update))
    }

    fn update_vector(&mut self, update: &VectorUpdate, old: Option<Memory>) -> bool {
        let region = &self.regions.get(&update.key).expect("the machine checked the key").memory;
        let operands = match update.combination.operation {
            WordOperation::Read => None,
            _ => {
                let arrived: UserMemory = OwnedMemory::new(update.bytes as usize).into();
                self.link.copy_payload(&arrived, 0, update.bytes.into());
                Some(arrived)
            }
        };
        let old = old.map(|old| self.memory(old));
        atomics::update_vector(region, update, operands.as_ref(), old);
        true
    }

    fn place_word(&mut self, request: Request, word: u64, bytes: u32) {
        self.place_word_at(request, 0, word, bytes);
    }

    fn place_word_at(&mut self, request: Request, offset: u32, word: u64, bytes: u32) {
        let outstanding = self.operations.get(request).expect("answered operations are outstanding");
        match bytes {
            4 => outstanding.memory.write(offset.into(), &(word as u32).to_ne_bytes()),
            _ => outstanding.memory.write(offset.into(), &word.to_ne_bytes()),
        }
    }

    fn allocate(&mut self, bytes: u32) -> BufferId {
        self.buffers.allocate(bytes)
    }

    fn free(&mut self, buffer: BufferId) {
        self.buffers.free(buffer);
    }

    fn copy(&mut self, from: Operand, into: Memory, bytes: u32) {
        let (into, offset) = self.memory(into);
        match from {
            Operand::Arrived => self.link.copy_payload(into, offset, u64::from(bytes)),
            Operand::Memory(from) => {
                let (from, from_offset) = self.memory(from);
                from.copy_to(from_offset, u64::from(bytes), into, offset);
            }
        }
    }

    fn combine(&mut self, from: Operand, into: Memory, combination: Combination, bytes: u32) {
        let into = self.memory(into);
        match from {
            Operand::Arrived => {
                let arrived = OwnedMemory::new(bytes as usize);
                self.link.copy_payload(&arrived.view(), 0, u64::from(bytes));
                combine(combination, (&arrived.view(), 0), into, bytes);
            }
            Operand::Memory(from) => combine(combination, self.memory(from), into, bytes),
        }
    }

    fn complete(&mut self, request: Request, outcome: Outcome) {
        if self.collectives.part_ended(request, outcome) {
            return self.operations.end(request);
        }
        complete_held(self.operations, self.completions, request, outcome);
    }
}

impl<L: Link> Io<L> {
    /// Passes an event to the offloaded machines, and goes on with collective operations.
    ///
    /// # Errors
    /// [`Refusal`]: only a posted command.
    #[inline(never)]
    pub fn offload(&mut self, event: MachineEvent<OffloadCommand, Offloaded>) -> Result<(), Refusal> {
        let handled = self.offload_event(event);
        if !self.collectives.is_idle() {
            self.advance_collectives();
        }
        handled
    }

    /// [`Io::offload`] for collective operations themselves.
    pub fn offload_event(&mut self, event: MachineEvent<OffloadCommand, Offloaded>) -> Result<(), Refusal> {
        let Io {
            offload,
            link,
            origin,
            machine_buffers: buffers,
            timers,
            operations,
            completions,
            collectives,
            regions,
            events,
            has_aftermath,
            ..
        } = self;
        let origin = *origin;
        let mut driver = MachineCalls {
            link,
            origin,
            buffers,
            timers,
            operations,
            completions,
            collectives,
            regions,
            events,
            has_aftermath,
        };
        let handled = offload.handle(event, &mut driver);
        if !self.timers.is_empty() {
            self.wake_watcher();
        }
        handled
    }
}

impl<L: Link> Engine<L> {
    /// Passes a command of the program to an offloaded machine, and sends what it sends.
    pub(crate) fn post_offloaded(&mut self, command: OffloadCommand) -> Result<(), Refusal> {
        self.io.offload(MachineEvent::Posted(command))?;
        if self.io.has_aftermath {
            self.after_event();
        }
        Ok(())
    }

    pub(crate) fn machine_timer_expired(&mut self, timer: MachineTimer) {
        self.io.offload(MachineEvent::TimerExpired(timer)).expect("only commands are refused");
        if self.io.has_aftermath {
            self.after_event();
        }
    }

    /// Peers may fetch and change words of the region `key`, or no more.
    pub(crate) fn expose_words(&mut self, key: u64, region: Option<ExposedRegion>) {
        let command = match region {
            Some(region) => AtomicsCommand::Expose { key, region },
            None => AtomicsCommand::Withdraw { key },
        };
        self.io
            .offload(MachineEvent::Posted(OffloadCommand::Atomics(command)))
            .expect("only fetches are refused");
    }
}
