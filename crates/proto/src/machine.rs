//! Offloaded machines: they run beside the endpoint machine and use its paths and credits.
//!
//! A machine handles one event by calling the [`MachineDriver`] that it is generic over, like the endpoint. It knows
//! peers and numbers of operations. It does not know credits, lanes, headers or links: those are the endpoint's.
//! [`crate::offload::Offload`] passes each event to the machine of its kind.
//!
//! Worked exchange, a word of a peer is changed:
//! ```text
//! machine of rank 0   handle(Posted(Fetch { request 5, peer 1 }))     driver.send(1, number 0, Atomic)
//! endpoint of rank 0  handle(Outgoing { to 1, number 0, Atomic })     driver.transmit(1, Atomic)
//! endpoint of rank 1  handle(Arrived { from 0, Atomic })              driver.pass_on(0, number 0, Atomic), retire
//! machine of rank 1   handle(Arrived { from 0, number 0, Atomic })    driver.update_word, send(0, number 0, AtomicResult)
//! endpoint of rank 1  handle(Outgoing { to 0, AtomicResult })         driver.transmit(0, AtomicResult)
//! ```
//! The answer goes the same way: `pass_on` at rank 0, then `place_word` and `complete`. A driver runs the machine inside
//! `pass_on`, while the payload is still in the slots of the lane. It queues each packet that the machine sends. After the
//! current event, it gives the packet to the endpoint as [`crate::Event::Outgoing`]. So the packets of a pair keep one order.

use crate::action::Outcome;
use crate::endpoint::Refusal;
use crate::event::{Peer, PeerFault, Request};
use crate::offload::{Offloaded, WordUpdate};

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
    },
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

/// Performs what a machine decides, in the order of the calls.
pub trait MachineDriver {
    /// Sends `packet` of the operation `number` to `to`, behind everything that was submitted for that peer before. If
    /// the peer is lost, [`MachineEvent::Lost`] follows.
    fn send(&mut self, to: Peer, number: u32, packet: Offloaded);

    /// `from` has sent a packet that makes no sense: report it to the endpoint as lost.
    fn reject(&mut self, from: Peer);

    /// Changes a word of the registered region `key` as one step, whoever else uses the word. Returns the old word.
    /// `None`: the word is not aligned to its length, or not one piece of memory. The machine has checked the bounds.
    fn update_word(&mut self, key: u64, offset: u64, update: &WordUpdate) -> Option<u64>;

    /// Copies the lower `bytes` bytes of `word` to the start of the buffer of `request`.
    fn place_word(&mut self, request: Request, word: u64, bytes: u32);

    /// Reports a completion to the program. The request is free again.
    fn complete(&mut self, request: Request, outcome: Outcome);
}
