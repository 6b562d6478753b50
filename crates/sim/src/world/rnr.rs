//! Receivers that are not ready (RNR): posted buffers of each connection, attempts, refusals and the RNR timer.
//!
//! With the scheme `hardware` a sender asks for room, and this module answers as the hardware of a reliable connection
//! would. A connection has as many buffers posted at its receiver as the quota. The sender gets all buffers at once
//! that no packet on the way will fill, and its packets find them. If there is none, the packet itself is an attempt. It
//! crosses the network and finds a posted buffer on arrival, or not. If it does, the packet is accepted and the
//! connection resumes. Otherwise the packet is dropped, and the NAK reaches the sender after [`Network::one_way_ps`].
//! Then the machine decides (RNR timer, retries).
//!
//! All of this happens without processors, also while programs compute. A buffer is posted again when its packet is
//! retired.
//!
//! ```text
//! quota 1, timer 10 us
//!  0 us  a leaves and takes the buffer; b is attempted right behind it
//!  5 us  a arrives and waits for its processor; b arrives, no buffer: dropped
//!  6 us  NAK at the sender: Room 0, the machine sets its timer
//! 16 us  Deadline: the machine asks again; a is retired by now: Room 1, b leaves
//! ```
//! The model is slower than the hardware in one respect. Packets behind an attempt leave when the attempt has been
//! accepted, not right behind it. So each successful attempt costs the connection one more trains.

use std::collections::{BTreeMap, BTreeSet};

use weir_proto::{Body, Packet};

use super::{Event, World};
use crate::Picoseconds;
use crate::network::{Network, TrainId};

/// An attempt that begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub at: Picoseconds,
    pub to: u32,
    /// Payload of the attempted packet. Unit: bytes.
    pub payload_bytes: u64,
}

/// A buffer that is posted again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reposted {
    pub at: Picoseconds,
    pub from: u32,
    pub slots: u32,
}

/// The posted buffers of all connections.
#[derive(Debug, Default)]
pub(super) struct PostedBuffers {
    /// Buffers of each connection.
    buffers: u32,
    /// By sender and receiver: buffers that are promised to the sender or filled.
    claimed: BTreeMap<(u32, u32), u32>,
    /// Trains that are attempts.
    attempts: BTreeSet<u32>,
    /// When the timer of each machine expires, if it is set.
    deadlines: BTreeMap<u32, Picoseconds>,
    /// Attempts that the machine requested in this step.
    pub begun: Vec<Attempt>,
    /// Buffers that are posted again because of this step.
    pub reposted: Vec<Reposted>,
}

impl PostedBuffers {
    /// Connections with this number of buffers each.
    pub fn new(buffers: u32) -> PostedBuffers {
        PostedBuffers { buffers, ..PostedBuffers::default() }
    }

    /// Gives the sender all buffers that no packet will fill. Returns how many.
    pub fn claim(&mut self, from: u32, to: u32) -> u32 {
        let claimed = self.claimed.entry((from, to)).or_default();
        let free = self.buffers - *claimed;
        *claimed = self.buffers;
        free
    }

    /// Posts buffers again.
    pub fn repost(&mut self, from: u32, to: u32, slots: u32) {
        let claimed = self.claimed.get_mut(&(from, to)).expect("what is retired was claimed");
        assert!(slots <= *claimed, "{slots} slots from {from} to {to} retired, {claimed} claimed");
        *claimed -= slots;
    }
}

/// Event that the hardware reports to a machine.
#[derive(Clone, Copy, Debug)]
pub(super) enum HardwareEvent {
    /// An attempt found a buffer. `slots` counts this buffer and further free ones.
    Accepted { peer: u32, slots: u32 },
    /// The NAK reached the sender.
    Refused { peer: u32 },
    /// The timer of the machine expired.
    Deadline,
}

impl<N: Network> World<N> {
    /// Starts the attempts and timers that a machine has requested.
    pub(super) fn start_attempts(&mut self, now: Picoseconds, rank: u32) {
        let Some(posted_buffers) = &mut self.posted_buffers else { return };
        for Attempt { at, to, payload_bytes } in posted_buffers.begun.drain(..) {
            // Only its size counts: if the attempt is accepted, the real packet takes its place.
            let packet = Packet::new(Body::Credit, payload_bytes as u32);
            let train = self.trains.begin(rank, to, &packet, 0, at);
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

    /// Whether the train is an attempt; if so, it no longer is one.
    #[inline]
    pub(super) fn take_attempt(&mut self, train: TrainId) -> bool {
        self.posted_buffers.as_mut().is_some_and(|posted_buffers| posted_buffers.attempts.remove(&train.0))
    }

    /// An attempt has arrived.
    pub(super) fn attempt_arrived(&mut self, now: Picoseconds, train: TrainId) {
        let to = self.trains.destination(train);
        let from = self.trains.source(train);
        self.trains.discard(train);
        let posted_buffers = self.posted_buffers.as_mut().expect("there was an attempt");
        let crashed = self.faults.as_ref().is_some_and(|faults| faults.has_crashed(to));
        match if crashed { None } else { Some(posted_buffers.claim(from, to)) } {
            None => self.network.retrieved(now, to, &mut self.outputs), // no answer
            Some(0) => {
                self.network.retrieved(now, to, &mut self.outputs); // dropped
                let back_at = now + self.network.one_way_ps(to, from);
                self.schedule(back_at, Event::Refused { from, to });
            }
            Some(slots) => self.handle_hardware_event(now, from, HardwareEvent::Accepted { peer: to, slots }),
        }
        self.take_outputs();
    }

    /// Posts buffers of a connection again.
    pub(super) fn reposted(&mut self, from: u32, to: u32, slots: u16) {
        self.posted_buffers.as_mut().expect("there are buffers").repost(from, to, slots.into());
    }

    /// The timer of the machine of `rank` expires.
    pub(super) fn deadline(&mut self, now: Picoseconds, rank: u32) {
        self.posted_buffers.as_mut().expect("there is a timer").deadlines.remove(&rank);
        // A timer for a later time is set again afterwards.
        self.handle_hardware_event(now, rank, HardwareEvent::Deadline);
    }
}
