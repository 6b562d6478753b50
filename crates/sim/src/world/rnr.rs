//! Receivers that are not ready: the pre-posted buffers of each connection, attempts, refusals and the timer.
//!
//! With the scheme `hardware` a sender asks for room and is answered as the hardware of a reliable connection would. A
//! connection has so many buffers posted at its receiver (the plan's quota). As long as some are free that nothing on the way will
//! fill, they are the sender's at once, and what it sends finds them. When none is, the packet itself is the attempt: it
//! crosses the network, and what decides is whether a buffer is posted when it arrives. If so, it is taken, and its connection goes on.
//! If not, it is dropped, and the NAK is back at the sender after [`Network::one_way_ps`]; from there on the machine decides
//! (RNR timer, retries).
//!
//! None of this needs a processor: it happens while programs compute. A buffer is posted again when its packet is retired.
//!
//! ```text
//! quota 1, timer 10 us
//!  0 us  a leaves, takes the one buffer; b is attempted right behind it
//!  5 us  a arrives and waits for its processor; b arrives, no buffer: dropped
//!  6 us  NAK at the sender: Room 0, the machine sets its timer
//! 16 us  Deadline: the machine asks again; a is retired by now: Room 1, b leaves
//! ```
//! An error of the model, always to the disadvantage of this scheme: what waits behind an attempt leaves when that has been
//! taken, not right behind it, so each attempt that succeeds costs the connection one flight.

use std::collections::{BTreeMap, BTreeSet};

use weir_proto::{Body, Packet};

use super::{Event, World};
use crate::Picoseconds;
use crate::network::{Network, TrainId};

/// An attempt to begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub at: Picoseconds,
    pub to: u32,
    /// Payload of the packet that is tried. Unit: bytes.
    pub payload_bytes: u64,
}

/// A buffer that is posted again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reposted {
    pub at: Picoseconds,
    pub from: u32,
    pub slots: u32,
}

/// The buffers of all connections.
#[derive(Debug, Default)]
pub(super) struct PostedBuffers {
    /// Of each connection.
    buffers: u32,
    /// By sender and receiver: those promised to the sender or filled.
    taken: BTreeMap<(u32, u32), u32>,
    /// Trains that are attempts.
    attempts: BTreeSet<u32>,
    /// When each machine's timer goes off that has one set.
    deadlines: BTreeMap<u32, Picoseconds>,
    /// What the machine of a step has asked for.
    pub begun: Vec<Attempt>,
    /// Buffers that the processor of a step will have posted again.
    pub reposted: Vec<Reposted>,
}

impl PostedBuffers {
    /// Connections with so many buffers each.
    pub fn new(buffers: u32) -> PostedBuffers {
        PostedBuffers { buffers, ..PostedBuffers::default() }
    }

    /// Gives the sender all buffers that nothing will fill; 0: there are none.
    pub fn claim(&mut self, from: u32, to: u32) -> u32 {
        let taken = self.taken.entry((from, to)).or_default();
        let free = self.buffers - *taken;
        *taken = self.buffers;
        free
    }

    /// Buffers are posted again.
    pub fn repost(&mut self, from: u32, to: u32, slots: u32) {
        let taken = self.taken.get_mut(&(from, to)).expect("what is retired was claimed");
        assert!(slots <= *taken, "{slots} slots from {from} to {to} retired, {taken} taken");
        *taken -= slots;
    }
}

/// What hardware tells a machine.
#[derive(Clone, Copy, Debug)]
pub(super) enum HardwareEvent {
    /// An attempt found a buffer; with those that are free besides.
    Accepted { peer: u32, slots: u32 },
    /// The NAK is back.
    Refused { peer: u32 },
    /// The time that the machine has set has come.
    Deadline,
}

impl<N: Network> World<N> {
    /// What a machine has asked for goes on its way.
    pub(super) fn start_attempts(&mut self, now: Picoseconds, rank: u32) {
        let Some(posted_buffers) = &mut self.posted_buffers else { return };
        for Attempt { at, to, payload_bytes } in posted_buffers.begun.drain(..) {
            // Only its size counts: if it is taken, the packet itself stands in its place.
            let packet = Packet::new(Body::Credit, payload_bytes as u32);
            let train = self.flights.begin(rank, to, &packet, 0, at);
            posted_buffers.attempts.insert(train.0);
            self.queue.push(at, self.outputs.draw(), Event::Inject(train));
        }
        for Reposted { at, from, slots } in posted_buffers.reposted.drain(..) {
            let slots = u16::try_from(slots).expect("a packet fills few slots");
            let event = Event::Reposted { from, to: rank, slots };
            self.queue.push(at, self.outputs.draw(), event);
        }
        if let Some(at) = self.rank_states[rank as usize].deadline() {
            let due = posted_buffers.deadlines.entry(rank).or_insert(Picoseconds::MAX);
            if at < *due {
                *due = at;
                let event = Event::Deadline { rank };
                self.queue.push(at.max(now), self.outputs.draw(), event);
            }
        }
    }

    /// Whether what has arrived is an attempt.
    #[inline]
    pub(super) fn was_attempt(&mut self, train: TrainId) -> bool {
        self.posted_buffers.as_mut().is_some_and(|posted_buffers| posted_buffers.attempts.remove(&train.0))
    }

    /// An attempt has arrived.
    pub(super) fn attempt_arrived(&mut self, now: Picoseconds, train: TrainId) {
        let to = self.flights.destination(train);
        let from = self.flights.source(train);
        self.flights.discard(train);
        let posted_buffers = self.posted_buffers.as_mut().expect("there was an attempt");
        let dead = self.faults.as_ref().is_some_and(|faults| faults.has_crashed(to));
        match if dead { None } else { Some(posted_buffers.claim(from, to)) } {
            None => self.network.taken(now, to, &mut self.outputs), // and nobody answers
            Some(0) => {
                self.network.taken(now, to, &mut self.outputs); // it is dropped
                let back_at = now + self.network.one_way_ps(to, from);
                self.schedule(back_at, Event::Refused { from, to });
            }
            Some(slots) => self.handle_hardware_event(now, from, HardwareEvent::Accepted { peer: to, slots }),
        }
        self.take_outputs();
    }

    /// Buffers of a connection are posted again.
    pub(super) fn reposted(&mut self, from: u32, to: u32, slots: u16) {
        self.posted_buffers.as_mut().expect("there are buffers").repost(from, to, slots.into());
    }

    /// The machine of `rank` has set its timer to this time.
    pub(super) fn deadline(&mut self, now: Picoseconds, rank: u32) {
        self.posted_buffers.as_mut().expect("there is a timer").deadlines.remove(&rank);
        // A timer that was set for later meanwhile is seen to afterwards.
        self.handle_hardware_event(now, rank, HardwareEvent::Deadline);
    }
}
