//! Offloaded machines: they run beside the endpoint machine and use its paths and credits.
//!
//! A machine handles one event by calling the [`MachineDriver`] that it is generic over, like the endpoint. It knows
//! peers and numbers of operations. It does not know credits, lanes, headers or links: those are the endpoint's. It
//! names memory and does not carry payload. [`crate::offload::Offload`] passes each event to the machine of its kind.
//!
//! Worked exchange, a word of a peer is changed:
//! ```text
//! machine of rank 0   handle(Posted(Fetch { request 5, peer 1 }))     driver.send(1, number 0, Atomic)
//! endpoint of rank 0  handle(Outgoing { to 1, number 0, Atomic })     driver.transmit(1, Atomic)
//! endpoint of rank 1  handle(Arrived { from 0, Atomic })              driver.pass_on(0, number 0, Atomic), retire
//! machine of rank 1   handle(Arrived { from 0, number 0, Atomic })    driver.update_word, send(0, number 0, AtomicResult)
//! endpoint of rank 1  handle(Outgoing { to 0, AtomicResult })         driver.transmit(0, AtomicResult)
//! ```
//! The answer goes the same way: `pass_on` at rank 0, then `place_word` and `complete`. A driver runs the machine
//! inside `pass_on`, while the payload is still in the slots of the lane. It queues each packet that the machine sends.
//! After the current event, it gives the packet to the endpoint as [`crate::Event::Outgoing`]. So the packets of a pair
//! keep one order.

use crate::action::{Outcome, Source};
use crate::endpoint::Refusal;
use crate::event::{BufferId, Peer, PeerFault, Request};
use crate::offload::{Combination, Offloaded, VectorUpdate, WordUpdate};
use crate::time::Instant;
use crate::timers::MachineTimer;

/// An event of an offloaded machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MachineEvent<Command, Packet> {
    /// The program asks for something.
    Posted(Command),
    /// A packet is at the head of a lane. Its payload stays in the slots during the event.
    Arrived {
        /// The sender.
        from: Peer,
        /// The number of the operation, from the sender of its first packet.
        number: u32,
        /// The checked header.
        packet: Packet,
        /// Its payload, which [`Operand::Arrived`] names. Unit: bytes.
        payload_bytes: u32,
    },
    /// The time of a timer has passed ([`MachineDriver::set_timer`]). It is set no more.
    TimerExpired(MachineTimer),
    /// `peer` is dead, unreachable or closed. Nothing more arrives from it, and nothing reaches it. This event may come
    /// again after an operation that was posted later.
    Lost {
        /// The peer.
        peer: Peer,
        /// The reason.
        fault: PeerFault,
    },
}

/// An offloaded machine, beside the endpoint machine.
pub trait Machine {
    /// The operation that the program asks of it.
    type Command;
    /// Its packets.
    type Packet;

    /// Handles one event: calls `driver` for each thing to be done, in order.
    ///
    /// # Errors
    /// [`Refusal`]: a posted command exceeds a bound. Then nothing has changed. No other event is refused.
    fn handle<D: MachineDriver>(
        &mut self,
        event: MachineEvent<Self::Command, Self::Packet>,
        driver: &mut D,
    ) -> Result<(), Refusal>;

    /// Whether no operation is pending.
    fn is_quiescent(&self) -> bool;

    /// Visits the peers that pending operations depend on. May visit a peer repeatedly.
    fn depends_on(&self, visit: impl FnMut(Peer));
}

/// Memory that a machine can name. The machine has checked the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The buffer of a request that has not completed.
    Request {
        /// The request.
        request: Request,
        /// Offset in its buffer.
        offset: u64,
    },
    /// A registered region.
    Region {
        /// Its key.
        key: u64,
        /// Offset in it.
        offset: u64,
    },
    /// A buffer from [`MachineDriver::allocate`].
    Buffer {
        /// Its name.
        buffer: BufferId,
        /// Offset in it.
        offset: u64,
    },
}

impl Memory {
    /// The memory that begins `bytes` bytes later.
    pub fn plus(self, bytes: u32) -> Memory {
        let bytes = u64::from(bytes);
        match self {
            Memory::Request { request, offset } => Memory::Request { request, offset: offset + bytes },
            Memory::Region { key, offset } => Memory::Region { key, offset: offset + bytes },
            Memory::Buffer { buffer, offset } => Memory::Buffer { buffer, offset: offset + bytes },
        }
    }
}

impl From<Memory> for Source {
    fn from(memory: Memory) -> Source {
        match memory {
            Memory::Request { request, offset } => Source::Request { request, offset },
            Memory::Region { key, offset } => Source::Region { key, offset },
            Memory::Buffer { buffer, offset } => Source::Buffer { buffer, offset },
        }
    }
}

/// What a machine copies or combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The payload of the packet that has just arrived. Only while the machine handles [`MachineEvent::Arrived`].
    Arrived,
    /// Other memory.
    Memory(Memory),
}

/// The payload of a packet that a machine sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Where it lies. The bytes must not change, and the buffer or request must not end, until the destination has answered
    /// or is lost. A packet that owns its payload ([`Offloaded::owns_payload`]) has a buffer that ends by itself when the last
    /// packet has left or the peer is lost.
    pub memory: Memory,
    /// Its length. Unit: bytes.
    pub bytes: u32,
}

/// Performs what a machine decides, in the order of the calls.
pub trait MachineDriver {
    /// The time. A machine asks only where it needs the time.
    fn now(&mut self) -> Instant;

    /// Report [`MachineEvent::TimerExpired`] at `at` or soon after. A timer that is set already gets the new time.
    fn set_timer(&mut self, timer: MachineTimer, at: Instant);

    /// Do not report `timer`, if it is set.
    fn cancel_timer(&mut self, timer: MachineTimer);

    /// Sends `packet` of the operation `number` to `to`, behind everything that was submitted for that peer before. The
    /// endpoint cuts the payload into packets, on multiples of 8 bytes. If the peer is lost, [`MachineEvent::Lost`] follows.
    fn send(&mut self, to: Peer, number: u32, packet: Offloaded, payload: Option<Payload>);

    /// `from` has sent a packet that makes no sense: report it to the endpoint as lost.
    fn reject(&mut self, from: Peer);

    /// Changes a word of the registered region `key` as one step, whoever else uses the word. A word that is not aligned
    /// to its length, or not one piece of memory, is changed as one step among the changes of this driver only. Returns the
    /// old word. `None`: the driver cannot change it. The machine has checked the bounds.
    fn update_word(&mut self, key: u64, offset: u64, update: &WordUpdate) -> Option<u64>;

    /// Changes the words of a vector, each as [`MachineDriver::update_word`]. Their operands are the payload of the packet that
    /// has just arrived; a read has none. Copies the old words to `old`. Returns whether the driver can do it. The machine has
    /// checked the bounds. A driver without this function refuses vectors.
    fn update_vector(&mut self, _update: &VectorUpdate, _old: Option<Memory>) -> bool {
        false
    }

    /// Copies the lower `bytes` bytes of `word` to the start of the buffer of `request`.
    fn place_word(&mut self, request: Request, word: u64, bytes: u32);

    /// [`MachineDriver::place_word`] at `offset` in the buffer. A driver without this function has requests of one word only.
    fn place_word_at(&mut self, request: Request, offset: u32, word: u64, bytes: u32) {
        assert_eq!(offset, 0, "the driver has no request of several words");
        self.place_word(request, word, bytes);
    }

    /// A new buffer of `bytes` bytes, which are 0. The machine has a bound on its buffers.
    fn allocate(&mut self, bytes: u32) -> BufferId;

    /// Frees `buffer`.
    fn free(&mut self, buffer: BufferId);

    /// Copies the first `bytes` bytes of `from` to `into`.
    fn copy(&mut self, from: Operand, into: Memory, bytes: u32);

    /// Replaces each of the elements in the first `bytes` bytes of `into` by its combination with that of `from`: `into` is
    /// the left operand. `bytes` is a multiple of the length of an element.
    fn combine(&mut self, from: Operand, into: Memory, combination: Combination, bytes: u32);

    /// Reports a completion to the program. The request is free again.
    fn complete(&mut self, request: Request, outcome: Outcome);
}
