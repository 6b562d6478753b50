//! External checks of a world: they compare the calls of programs, the packets and the results with the invariants of
//! the protocol. They are on in debug builds, which include tests, and by [`World::checked`](super::World::checked). A
//! world that has a NIC machine or tolerates losses has none. `report.rs` checks the pools, and the machines at the
//! end.
//!
//! - Packets of a pair are retrieved in the order in which they were sent, each once. No network may lose,
//!   repeat or reorder packets.
//! - A sender fills a slot only with a credit that it has read, and a credit slot only with a credit packet
//!   (I2). Its filled slots never exceed its lane. The grants of a receiver never exceed its mailbox (I1).
//! - The sums of a receiver's pool with dynamic credits are right (I1, I3, I6). The pools are checked from
//!   time to time and at the end; an error is a panic.
//! - Every message is received once, with its tag and length. Eager messages are received in order for each
//!   tag (I5). Messages have numbers, which travel as completion data.
//! - At the end nothing is left: no packet, operation or unexpected message, and no pending work in a
//!   machine.
//!
//! Ranks that have crashed or were given up, and their packets, are exempt from then on. The checks also keep the time
//! of each send call, for latencies.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use weir_proto::{Body, Packet, Scheme};

use super::WorldSpec;
use crate::Picoseconds;
use crate::network::TrainPart;
use crate::trace::Trace;

/// Hash function for pairs of ranks. Mixing is enough, because no result depends on the order of a map.
#[derive(Debug, Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
}

/// A message that was sent.
#[derive(Clone, Copy, Debug)]
struct Message {
    tag: u64,
    bytes: u64,
    announced: bool,
    received: bool,
    /// Time of the send call.
    called_at: Picoseconds,
}

/// One direction of a pair.
#[derive(Debug, Default)]
struct Pair {
    /// Digests of the packets that were sent and not retrieved.
    wire: VecDeque<u32>,
    /// Messages from number `first` on, without received ones at the front.
    messages: VecDeque<Message>,
    first: u32,
    /// Data slots that were filled, plus credits that were given back.
    spent: u64,
    /// The part of `spent` that the receiver knows: retired slots and returned credits.
    retired: u64,
    /// Slots granted: as stated by the receiver, and as read by the sender.
    granted: u64,
    granted_read: u64,
    /// Credit packets that were sent and not retrieved.
    credit_packets: u32,
}

/// The external checks of a world.
#[derive(Debug)]
pub(super) struct Checks {
    scheme: Scheme,
    grants: bool,
    lane_slots: u64,
    start_slots: u64,
    credit_slots: u32,
    region_slots: u64,
    region_peers: u64,
    slots_of: weir_proto::Geometry,
    eager_bytes: u64,
    pairs: HashMap<u64, Pair, BuildHasherDefault<Mix>>,
    /// By receiver: attached senders, and slots that belong to them.
    claims: Vec<(u64, u64)>,
    /// Ranks that have crashed, and pairs that were given up, in both directions.
    crashed: BTreeSet<u32>,
    severed: BTreeSet<(u32, u32)>,
    /// The first violation.
    pub violation: Option<String>,
}

fn key(from: u32, to: u32) -> u64 {
    u64::from(from) << 32 | u64::from(to)
}

fn digest(packet: &Packet) -> u32 {
    let mut hash = Trace::default();
    hash.note(u64::from(packet.number) << 32 | u64::from(packet.payload_bytes));
    hash.note(u64::from(packet.granted_total) << 32 | u64::from(packet.credit_packets_read));
    let body = match packet.body {
        Body::Eager { tag, length, .. } => tag.rotate_left(20) ^ u64::from(length),
        Body::More { offset } => 1 << 60 | u64::from(offset),
        Body::Rendezvous { tag, length, .. } => 2 << 60 ^ tag.rotate_left(20) ^ length,
        Body::Piece { offset, .. } => 3 << 60 ^ offset,
        Body::Credit => 4 << 60,
        Body::ReturnResponse { credits } => 5 << 60 | u64::from(credits),
        _ => 6 << 60,
    };
    hash.note(body);
    hash.hash() as u32
}

impl Checks {
    pub fn new(spec: &WorldSpec) -> Checks {
        let config = &spec.config;
        Checks {
            scheme: config.scheme,
            grants: config.scheme.grants(),
            lane_slots: u64::from(spec.quota_slots),
            start_slots: u64::from(spec.start_slots()),
            credit_slots: config.credit_slots,
            region_slots: u64::from(config.region.slots),
            region_peers: u64::from(config.region.peers),
            slots_of: config.geometry,
            eager_bytes: config.eager_bytes,
            pairs: HashMap::default(),
            claims: vec![(0, 0); spec.ranks as usize],
            crashed: BTreeSet::new(),
            severed: BTreeSet::new(),
            violation: None,
        }
    }

    fn fail(&mut self, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(what());
        }
    }

    /// `rank` has crashed. It is exempt from now on.
    pub fn crashed(&mut self, rank: u32) {
        self.crashed.insert(rank);
        for to in 0..self.claims.len() as u32 {
            self.release(rank, to);
        }
    }

    /// The slots of a sender at a receiver may go to others.
    fn release(&mut self, from: u32, to: u32) {
        let Some(pair) = self.pairs.get(&key(from, to)) else { return };
        let claimed = &mut self.claims[to as usize].1;
        *claimed = claimed.saturating_sub((self.start_slots + pair.granted).saturating_sub(pair.retired));
    }

    /// One rank has given up the other.
    pub fn severed(&mut self, one: u32, other: u32) {
        if self.is_excluded(one, other) {
            return;
        }
        self.release(one, other);
        self.release(other, one);
        self.severed.extend([(one, other), (other, one)]);
    }

    /// Whether any rank has crashed or was given up.
    pub fn any_peer_lost(&self) -> bool {
        !self.crashed.is_empty() || !self.severed.is_empty()
    }

    fn is_excluded(&self, from: u32, to: u32) -> bool {
        !self.crashed.is_empty() && (self.crashed.contains(&from) || self.crashed.contains(&to))
            || !self.severed.is_empty() && self.severed.contains(&(from, to))
    }

    /// A program sends a message. Returns the number of the message.
    pub fn posted(&mut self, from: u32, to: u32, tag: u64, bytes: u64, called_at: Picoseconds) -> u32 {
        let pair = self.pairs.entry(key(from, to)).or_default();
        let announced = bytes > self.eager_bytes;
        pair.messages.push_back(Message { tag, bytes, announced, received: false, called_at });
        pair.first.wrapping_add(pair.messages.len() as u32 - 1)
    }

    /// A sender has attached to a receiver.
    pub fn attached(&mut self, to: u32) {
        let (senders, slots) = &mut self.claims[to as usize];
        *senders += 1;
        *slots += self.start_slots;
    }

    /// A packet leaves.
    pub fn sent(&mut self, from: u32, to: u32, packet: &Packet) {
        if self.is_excluded(from, to) {
            return;
        }
        // Its grant is about the other direction.
        if self.grants {
            self.granted(from, to, packet.granted_total);
        }
        let Checks { start_slots, lane_slots, credit_slots, grants, .. } = *self;
        let limited = grants || matches!(self.scheme, Scheme::Hardware { .. });
        let slots = u64::from(self.slots_of.packet_slots(packet));
        let pair = self.pairs.entry(key(from, to)).or_default();
        pair.wire.push_back(digest(packet));
        if let Body::Rendezvous { .. } = packet.body
            && let Some(message) = pair.messages.get_mut(packet.number.wrapping_sub(pair.first) as usize)
        {
            message.announced = true;
        }
        if packet.body.is_credit() {
            pair.credit_packets += 1;
            if pair.credit_packets > credit_slots {
                let unread = pair.credit_packets;
                self.fail(|| {
                    format!(
                        "I2: {unread} credit packets of {from} are unread at {to}, which has {credit_slots} credit slots"
                    )
                });
            }
            return;
        }
        pair.spent += slots;
        if let Body::ReturnResponse { credits } = packet.body {
            pair.spent += u64::from(credits);
        }
        let (spent, retired) = (pair.spent, pair.retired);
        let granted = start_slots + pair.granted_read;
        if grants && spent > granted {
            self.fail(|| {
                format!("I2: {from} has filled {spent} slots at {to}, and has read {granted} credits")
            });
        }
        if limited && spent - retired > lane_slots {
            self.fail(|| {
                format!("I1: {from} fills {} slots at {to}, in a lane of {lane_slots}", spent - retired)
            });
        }
    }

    /// `from` tells `to` the total of its grants.
    fn granted(&mut self, from: u32, to: u32, total: u32) {
        let Some(pair) = self.pairs.get_mut(&key(to, from)) else {
            if total > 0 {
                self.fail(|| format!("I1: {from} has granted {total} credits to {to}, which never sent"));
            }
            return;
        };
        let more = total.wrapping_sub(pair.granted as u32);
        pair.granted += u64::from(more);
        let theirs = (self.start_slots + pair.granted).saturating_sub(pair.retired);
        let lane_slots = self.lane_slots;
        if u64::from(more) > lane_slots || theirs > lane_slots {
            self.fail(|| {
                format!("I1: {from} has granted {more} credits to {to}, which then owns {theirs} slots of a lane of {lane_slots}")
            });
            return;
        }
        let (senders, slots) = &mut self.claims[from as usize];
        *slots += u64::from(more);
        let most = match self.scheme {
            Scheme::Dynamic { .. } | Scheme::Demand => {
                self.region_slots + self.start_slots * senders.saturating_sub(self.region_peers)
            }
            _ => lane_slots * *senders,
        };
        if *slots > most {
            let slots = *slots;
            self.fail(|| format!("I1: the senders of {from} own {slots} slots, and it has {most}"));
        }
    }

    /// A packet is retrieved.
    pub fn retrieved(&mut self, from: u32, to: u32, packet: &Packet) {
        if self.is_excluded(from, to) {
            return;
        }
        let pair = self.pairs.entry(key(from, to)).or_default();
        match pair.wire.pop_front() {
            Some(next) if next == digest(packet) => {}
            next => {
                let left = pair.wire.len();
                self.fail(|| {
                    format!("I5: {packet:?} of {from} at {to} is not the next ({next:?}, {left} behind it)")
                });
                return;
            }
        }
        if packet.body.is_credit() {
            pair.credit_packets -= 1;
        }
        if self.grants
            && let Some(pair) = self.pairs.get_mut(&key(to, from))
        {
            // Extends the total to 64 bits. It is never ahead of the grants, and not far behind.
            let behind = (pair.granted as u32).wrapping_sub(packet.granted_total);
            pair.granted_read = pair.granted_read.max(pair.granted.saturating_sub(u64::from(behind)));
        }
    }

    /// A part of a train has arrived before earlier packets of the train, or again.
    pub fn out_of_order(&mut self, part: TrainPart) {
        self.fail(|| format!("I5: {part:?} is not the next part of its train"));
    }

    /// The slots of a packet are free.
    pub fn retired(&mut self, from: u32, to: u32, packet: &Packet) {
        if self.is_excluded(from, to) || packet.body.is_free() {
            return;
        }
        let given_back = match packet.body {
            Body::ReturnResponse { credits } => u64::from(credits),
            _ => 0,
        };
        let slots = u64::from(self.slots_of.packet_slots(packet)) + given_back;
        let pair = self.pairs.entry(key(from, to)).or_default();
        pair.retired += slots;
        let claimed = &mut self.claims[to as usize].1;
        *claimed = claimed.saturating_sub(slots);
    }

    /// Time of the send call of a message that is about to be received.
    pub fn called_at(&self, from: u32, to: u32, number: Option<u64>) -> Option<Picoseconds> {
        let pair = self.pairs.get(&key(from, to))?;
        let place = (number? as u32).wrapping_sub(pair.first) as usize;
        pair.messages.get(place).map(|message| message.called_at)
    }

    /// A program has received a message.
    pub fn received(&mut self, from: u32, to: u32, number: Option<u64>, tag: u64, bytes: u64) {
        if self.is_excluded(from, to) {
            return;
        }
        let pair = self.pairs.entry(key(from, to)).or_default();
        let place = number.map(|number| (number as u32).wrapping_sub(pair.first) as usize);
        let found = place.and_then(|place| pair.messages.get_mut(place));
        let Some(message) = found.filter(|message| !message.received) else {
            self.fail(|| {
                format!("I5: message {number:?} of {from} was received at {to} twice, or was never sent")
            });
            return;
        };
        message.received = true;
        let Message { tag: sent_tag, bytes: sent_bytes, announced, .. } = *message;
        if (sent_tag, sent_bytes) != (tag, bytes) {
            self.fail(|| {
                format!(
                    "I5: message {number:?} of {from} to {to} was sent with tag {sent_tag} and {sent_bytes} B, and \
                     received with tag {tag} and {bytes} B"
                )
            });
            return;
        }
        // Announced messages end when their payload is there; eager ones in order for each tag.
        let before = pair.messages.iter().take(place.unwrap_or(0).min(MAX_COMPARED));
        let overtaken = before.filter(|m| !m.received && !m.announced && m.tag == tag).count();
        while pair.messages.front().is_some_and(|message| message.received) {
            pair.messages.pop_front();
            pair.first = pair.first.wrapping_add(1);
        }
        if overtaken > 0 && !announced {
            self.fail(|| format!("I5: message {number:?} of {from} to {to} has overtaken {overtaken}"));
        }
    }

    /// Checks that nothing is left at the end.
    pub fn check_end(&mut self) {
        // A receive that failed because of a crashed rank may leave another's message unreceived.
        let legal = !self.any_peer_lost();
        let mut left: Vec<_> = self
            .pairs
            .iter()
            .filter(|&(_, pair)| {
                !pair.wire.is_empty() || (legal && !pair.messages.is_empty()) || pair.spent != pair.retired
            })
            .map(|(&key, _)| ((key >> 32) as u32, key as u32))
            .filter(|&(from, to)| !self.is_excluded(from, to))
            .collect();
        left.sort_unstable();
        if let Some(&(from, to)) = left.first() {
            let Pair { wire, messages, spent, retired, .. } = &self.pairs[&key(from, to)];
            let (wire, messages, slots) = (wire.len(), messages.len(), spent - retired);
            self.fail(|| {
                format!(
                    "at the end {from} has left at {to}: {wire} packets, {messages} messages, {slots} slots"
                )
            });
        }
    }
}

/// Number of earlier messages that are checked for being overtaken. Overtaking beyond is not noticed.
const MAX_COMPARED: usize = 64;
