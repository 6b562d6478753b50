//! Receivers that are not ready (RNR): posted buffers of each connection, attempts, refusals and the RNR timer.
//!
//! With the scheme `hardware` a sender asks for room, and this module answers as the hardware of a reliable
//! connection would. A connection has as many buffers posted at its receiver as the quota. The sender gets all
//! buffers at once that no packet on the way will fill, and its packets find them. If there is none, the packet
//! itself is an attempt. It crosses the network and finds a posted buffer on arrival, or not. If it does, the packet
//! is accepted. Otherwise the packet is dropped, and the NAK reaches the sender after [`Network::one_way_ps`]. Then
//! the sender's endpoint machine decides (RNR timer, retries).
//!
//! A sender does not wait for the answer: the packets behind an attempt leave right behind it, as attempts of their own.
//! Each finds a buffer on arrival, or not. Behind a refused packet the receiver drops all packets, since they are out of
//! sequence. The sender learns it from the NAK, stops, and sends them all again after the refused one (go-back-N).
//! Source: InfiniBand Architecture, volume 1, 9.7.5.
//!
//! All of this happens without processors, also while programs compute. A buffer is posted again when its packet is
//! retired. Packets of a connection leave at least `packet_send_ps` apart. Where a packet can fill several slots (no network
//! file has that) nothing follows an attempt.
//!
//! ```text
//! quota 1, timer 10 us
//!  0 us  a leaves and takes the buffer; b and c are attempted right behind it
//!  5 us  a arrives and waits for its processor; b arrives, no buffer: dropped, and c behind it
//!  6 us  NAK at the sender: Room 0, the machine sets its timer
//! 16 us  the timer expires: the machine asks again; a is retired by now: Room 1, b leaves; c is attempted right behind it
//! ```

use std::collections::{BTreeMap, BTreeSet};

use weir_proto::{Body, Packet};

use super::{Event, World};
use crate::Picoseconds;
use crate::network::{Network, TrainId};

/// Bound: as many attempts of a connection are on their way. A round trip of the networks here has room for fewer.
const MAX_LAUNCHED: u32 = 64;

/// The first attempt of a connection, at the request of the machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub at: Picoseconds,
    pub to: u32,
}

/// Answer to a machine that asks for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// This many buffers are free.
    Free(u32),
    /// None is free: the packet itself has to be attempted.
    Unknown,
    /// The attempt is on its way, and its arrival decides.
    OnItsWay,
}

/// The attempts of one connection.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// Attempts that are not yet decided, as the sender knows.
    launched: u32,
    /// The machine has asked for room and waits for the answer.
    asked: bool,
    /// NAKs that have reached the sender. Attempts that began before the last one are void.
    naks: u32,
    /// The receiver has refused a packet, and the NAK is on its way: it drops all packets.
    refuses: bool,
    /// The last attempt has not left yet.
    leaving: bool,
    /// The next attempt does not leave earlier.
    next_at: Picoseconds,
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
    /// Connections that had attempts.
    windows: BTreeMap<(u32, u32), Window>,
    /// Connections with attempts that are not yet accepted or void.
    active: BTreeSet<(u32, u32)>,
    /// Trains that are attempts, and the NAKs of their connection when they began.
    attempts: BTreeMap<u32, u32>,
    /// The time when the next timer of each machine expires, as far as an event is scheduled for it.
    timers: BTreeMap<u32, Picoseconds>,
    /// First attempts that the machine requested in this step.
    pub begun: Vec<Attempt>,
    /// Buffers that are posted again because of this step.
    pub reposted: Vec<Reposted>,
}

impl PostedBuffers {
    /// Connections with this number of buffers each.
    pub fn new(buffers: u32) -> PostedBuffers {
        PostedBuffers { buffers, ..PostedBuffers::default() }
    }

    /// Gives the sender all buffers that no packet will fill, if no attempt is on its way.
    pub fn ask(&mut self, from: u32, to: u32) -> Room {
        let is_active = self.active.contains(&(from, to));
        let free = if is_active { 0 } else { self.claim(from, to, u32::MAX) };
        if free > 0 {
            return Room::Free(free);
        }
        self.windows.entry((from, to)).or_default().asked = true;
        if is_active { Room::OnItsWay } else { Room::Unknown }
    }

    /// Takes up to `most` buffers that no packet will fill. Returns how many.
    fn claim(&mut self, from: u32, to: u32, most: u32) -> u32 {
        let claimed = self.claimed.entry((from, to)).or_default();
        let taken = (self.buffers - *claimed).min(most);
        *claimed += taken;
        taken
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
    /// Timers of the machine expired.
    TimerExpired,
}

impl<N: Network> World<N> {
    /// Starts the attempts and timers that a machine has requested, and the attempts of what it has added to its backlogs.
    pub(super) fn start_attempts(&mut self, now: Picoseconds, rank: u32) {
        let Some(posted_buffers) = &mut self.posted_buffers else { return };
        for Reposted { at, from, slots } in posted_buffers.reposted.drain(..) {
            let slots = u16::try_from(slots).expect("a packet fills few slots");
            let event = Event::Reposted { from, to: rank, slots };
            self.queue.push(at, self.outputs.draw(at), event);
        }
        if let Some(at) = self.rank_states[rank as usize].first_timer() {
            let due = posted_buffers.timers.entry(rank).or_insert(Picoseconds::MAX);
            if at < *due {
                *due = at;
                let event = Event::TimerExpired { rank };
                let at = at.max(now);
                self.queue.push(at, self.outputs.draw(at), event);
            }
        }
        let mut begun = std::mem::take(&mut posted_buffers.begun);
        let connections: Vec<u32> =
            posted_buffers.active.range((rank, 0)..=(rank, u32::MAX)).map(|&(_, to)| to).collect();
        for Attempt { at, to } in begun.drain(..) {
            // Acknowledgements are in no backlog.
            let payload_bytes = self.waiting_packet(rank, to, 0).unwrap_or(0);
            self.attempt(at, rank, to, payload_bytes);
        }
        // Packets that the program has sent in this step leave when the call has ended.
        let at = now.max(self.rank_states[rank as usize].sent_at());
        for to in connections {
            self.attempt_next(at, rank, to);
        }
        if let Some(posted_buffers) = &mut self.posted_buffers {
            posted_buffers.begun = begun;
        }
    }

    /// Payload of the packet of `from` to `to` before which `before` others wait. Unit: bytes.
    fn waiting_packet(&mut self, from: u32, to: u32, before: u32) -> Option<u32> {
        let geometry = &self.spec.config.geometry;
        self.rank_states[from as usize].waiting_packet(to, before, geometry)
    }

    /// Attempts the next waiting packet of a connection, at `at` or later, if there is one and the last attempt has left.
    fn attempt_next(&mut self, at: Picoseconds, from: u32, to: u32) {
        let Some(posted_buffers) = &self.posted_buffers else { return };
        let window = posted_buffers.windows.get(&(from, to)).copied().unwrap_or_default();
        // If a packet fills several slots, the endpoint machine may send several packets for one that is accepted. Only the
        // first of them is there already, and none of the next attempt may overtake them.
        let follows = self.spec.config.geometry.max_packet_slots == 1;
        // A network that holds the processor would hold it for ever if attempts took each free place.
        let is_held = self.rank_states[from as usize].is_held();
        if window.leaving || window.launched >= MAX_LAUNCHED || !follows || is_held {
            return;
        }
        if let Some(payload_bytes) = self.waiting_packet(from, to, window.launched) {
            self.attempt(at, from, to, payload_bytes);
        }
    }

    /// Attempts a packet, at `at` or later.
    fn attempt(&mut self, at: Picoseconds, from: u32, to: u32, payload_bytes: u32) {
        let Some(posted_buffers) = &mut self.posted_buffers else { return };
        let window = posted_buffers.windows.entry((from, to)).or_default();
        let at = at.max(window.next_at);
        window.launched += 1;
        window.leaving = true;
        window.next_at = at + self.spec.cost.packet_send_ps;
        // Only its size counts: if the attempt is accepted, the real packet takes its place.
        let packet = Packet::new(Body::Credit, payload_bytes);
        let train = self.trains.begin(from, to, &packet, 0, at);
        posted_buffers.attempts.insert(train.0, window.naks);
        posted_buffers.active.insert((from, to));
        self.queue.push(at, self.outputs.draw(at), Event::Inject(train));
    }

    /// Whether the train is an attempt; if so, it no longer is one.
    #[inline]
    pub(super) fn take_attempt(&mut self, train: TrainId) -> bool {
        let Some(posted_buffers) = &mut self.posted_buffers else { return false };
        posted_buffers.attempts.remove(&train.0).is_some()
    }

    /// If the train that leaves is an attempt: whether it is void, because a NAK came before it could leave. Otherwise the next attempt
    /// follows it.
    pub(super) fn is_void_attempt(&mut self, now: Picoseconds, train: TrainId) -> bool {
        let Some(posted_buffers) = &mut self.posted_buffers else { return false };
        let Some(&naks) = posted_buffers.attempts.get(&train.0) else { return false };
        let (from, to) = (self.trains.source(train), self.trains.destination(train));
        let window = posted_buffers.windows.entry((from, to)).or_default();
        if window.naks != naks {
            posted_buffers.attempts.remove(&train.0);
            self.trains.discard(train);
            return true;
        }
        window.leaving = false;
        self.attempt_next(now, from, to);
        false
    }

    /// A train has arrived. Returns whether it was an attempt, which is then accepted, refused or dropped.
    pub(super) fn attempt_arrived(&mut self, now: Picoseconds, train: TrainId) -> bool {
        let Some(posted_buffers) = &mut self.posted_buffers else { return false };
        let Some(naks) = posted_buffers.attempts.remove(&train.0) else { return false };
        let (from, to) = (self.trains.source(train), self.trains.destination(train));
        self.trains.discard(train);
        let is_dead = self.faults.as_ref().is_some_and(|faults| faults.has_crashed(to));
        let window = posted_buffers.windows.entry((from, to)).or_default();
        let is_dropped = is_dead || window.refuses || window.naks != naks;
        // The attempted packet may have left with an earlier one.
        let is_wanted = window.asked && !is_dropped;
        let geometry = &self.spec.config.geometry;
        let most = if geometry.max_packet_slots == 1 { 1 } else { u32::MAX };
        let slots = if is_wanted { posted_buffers.claim(from, to, most) } else { 0 };
        let window = posted_buffers.windows.entry((from, to)).or_default();
        if slots == 0 && is_wanted {
            window.refuses = true;
            let back_at = now + self.network.one_way_ps(to, from);
            self.schedule(back_at, Event::Refused { from, to });
        } else if !is_dropped {
            window.asked = false;
            window.launched -= 1;
            if window.launched == 0 {
                posted_buffers.active.remove(&(from, to));
            }
        }
        if slots > 0 {
            self.handle_hardware_event(now, from, HardwareEvent::Accepted { peer: to, slots });
        } else {
            self.network.retrieved(now, to, &mut self.outputs);
        }
        self.take_outputs();
        true
    }

    /// A NAK has reached its sender: its attempts are void, and it begins again with the refused packet.
    pub(super) fn refused(&mut self, now: Picoseconds, from: u32, to: u32) {
        let Some(posted_buffers) = &mut self.posted_buffers else { return };
        let window = posted_buffers.windows.entry((from, to)).or_default();
        *window = Window { naks: window.naks.wrapping_add(1), next_at: window.next_at, ..Window::default() };
        posted_buffers.active.remove(&(from, to));
        self.handle_hardware_event(now, from, HardwareEvent::Refused { peer: to });
    }

    /// Posts buffers of a connection again.
    pub(super) fn reposted(&mut self, from: u32, to: u32, slots: u16) {
        self.posted_buffers.as_mut().expect("there are buffers").repost(from, to, slots.into());
    }

    /// The first timer of the machine of `rank` expires.
    pub(super) fn timer_expired(&mut self, now: Picoseconds, rank: u32) {
        self.posted_buffers.as_mut().expect("there is a timer").timers.remove(&rank);
        // An event for a later timer is scheduled afterwards.
        self.handle_hardware_event(now, rank, HardwareEvent::TimerExpired);
    }
}
