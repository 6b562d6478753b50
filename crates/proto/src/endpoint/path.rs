//! A path: one peer over one link, with the credits of both directions and the leases of their lanes.
//!
//! [`Grants::header`] stamps every packet that leaves, and [`Grants::piggyback`] adds credits to data packets. So all
//! packets report the lease, the read credit packets and the memory of the receiver in the same way.

use super::leases::Leases;
use crate::counters::Counters;
use crate::driver::Driver;
use crate::event::{Peer, PeerFault};
use crate::flow;
use crate::packet::{Body, Geometry, Marks, Packet};
use crate::table::Number;
use crate::timers::{Purpose, Timer};

/// State of our lane at a peer.
#[derive(Clone, Debug)]
pub(super) enum Outbound {
    /// We have no lane and have not asked for one.
    Absent,
    /// We have asked for a lane.
    Connecting,
    /// We have a lane, with these credits.
    Connected(flow::Sender),
    /// The peer is lost.
    Lost(PeerFault),
}

/// The event for which a path without known free slots waits, in schemes without credits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RoomWait {
    /// Nothing: the link was not asked.
    #[default]
    Nothing,
    /// The answer of the link.
    Answer,
    /// The RNR timer, after which we ask again. The timer is set exactly in this state.
    Timer,
}

/// Everything about a path but our credits there, which are borrowed at the same time: what headers say in both directions.
#[derive(Clone, Debug, Default)]
pub(super) struct Grants {
    /// The receiver half, while the peer is attached.
    pub receiver: Option<flow::Receiver>,
    pub leases: Leases,
    /// Slots at the peer for our explicit credit packets, while connected. Values above `u16::MAX` are cut to it.
    pub credit_slots: u16,
    /// The peer has no memory for unexpected payload: we send by rendezvous only.
    pub rendezvous_only: bool,
    /// The peer has no reservation in our budget: it must always send by rendezvous.
    pub unreserved: bool,
    pub room_wait: RoomWait,
    /// We have run out of credit since the backlog was last empty: the packets that leave have waited.
    pub backlog_waited: bool,
    /// Copies between the two processes work, as far as we know.
    pub cross_memory: bool,
    /// The peer has sent a goodbye and receives nothing more.
    pub said_goodbye: bool,
}

/// The state of one path. Thousands of peers may be idle, so this structure is small.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub outbound: Outbound,
    pub grants: Grants,
    /// The eager message that is partly arrived.
    pub inbound: Option<Number>,
}

impl Path {
    /// A path without lanes.
    pub fn new(cross_memory: bool) -> Path {
        Path {
            outbound: Outbound::Absent,
            grants: Grants { cross_memory, ..Grants::default() },
            inbound: None,
        }
    }

    /// Whether we have a lease with credits there and have spent none of them.
    pub fn lease_is_unused(&self) -> bool {
        matches!(&self.outbound, Outbound::Connected(sender) if sender.view().spent_total == Some(0))
    }

    /// Applies the part of every packet that concerns our credits at its sender. A repeated update changes nothing.
    /// Returns whether it is valid.
    #[inline(always)]
    pub fn apply_credit_update(&mut self, packet: &Packet) -> bool {
        match &mut self.outbound {
            Outbound::Connected(sender) => apply_update_to_sender(sender, &mut self.grants, packet).is_some(),
            _ => true,
        }
    }

    /// The lane at `peer` ends: nothing waits for free slots there.
    pub fn end_room_wait<D: Driver>(&mut self, peer: Peer, driver: &mut D) {
        if core::mem::replace(&mut self.grants.room_wait, RoomWait::Nothing) == RoomWait::Timer {
            driver.cancel_timer(rnr_timer(peer));
        }
    }
}

/// As [`Path::apply_credit_update`], for the parts of a connected path. Returns whether the peer has read more of our
/// credit packets. `None`: the update is not valid.
#[inline(always)]
pub(super) fn apply_update_to_sender(
    sender: &mut flow::Sender,
    Grants { leases, rendezvous_only, .. }: &mut Grants,
    packet: &Packet,
) -> Option<bool> {
    if leases.has_applied(packet.credit_update()) {
        *rendezvous_only = packet.marks.rendezvous_only;
        return Some(false);
    }
    apply_new_update(sender, leases, rendezvous_only, packet)
}

/// The rest of [`apply_update_to_sender`], for an update that differs from the last one. Out of line, so that the update is
/// one load on the common path, which uses none of its fields.
#[inline(never)]
fn apply_new_update(
    sender: &mut flow::Sender,
    leases: &mut Leases,
    rendezvous_only: &mut bool,
    packet: &Packet,
) -> Option<bool> {
    // An update for an earlier lease has no effect.
    if packet.epoch != leases.outgoing() {
        return Some(false);
    }
    *rendezvous_only = packet.marks.rendezvous_only;
    sender.granted(packet.granted_total).ok()?;
    Some(leases.apply(packet.credit_update()))
}

/// What a packet says of the slots that we have spent and want: the packet itself is about to spend `slots`, and
/// `queued_slots` stay queued. 0 in other schemes than credits on demand.
pub(super) fn announced(sender: &flow::Sender, slots: u32, queued_slots: u32, pool: &flow::Pool) -> u32 {
    if pool.breaks(flow::Mutant::DemandDecreases) {
        return queued_slots;
    }
    sender.wanted_total(slots + queued_slots)
}

/// The RNR timer of `peer`.
pub(super) fn rnr_timer(peer: Peer) -> Timer {
    Timer { peer, purpose: Purpose::Rnr }
}

impl Grants {
    /// The packet of `body` with `payload_bytes` of payload, as message `number` of the pair.
    ///
    /// - `granted_total`: all credits that we have granted to the peer in its lease, modulo 2^32.
    /// - `wanted_total`: [`flow::Sender::wanted_total`] after this packet has left.
    /// - `marks.rendezvous_only`: the unexpected-message budget is used up.
    #[inline(always)]
    pub fn header(
        &self,
        body: Body,
        payload_bytes: u32,
        number: u32,
        (granted_total, wanted_total): (u32, u32),
        marks: Marks,
    ) -> Packet {
        Packet {
            epoch: self.leases.incoming,
            credit_packets_read: self.leases.credit_packets_received,
            granted_total,
            wanted_total,
            number,
            payload_bytes,
            marks: Marks { rendezvous_only: self.unreserved || marks.rendezvous_only, ..marks },
            body,
        }
    }

    /// Counts a data packet of `slots` slots with `used_bytes` bytes of header and payload. Returns the granted total
    /// that goes into its header. In the mailbox form the last packet of a message (`last`) also piggybacks retrieved
    /// slots, if it has space. In the connection form every packet does.
    #[inline(always)]
    pub fn piggyback(
        &mut self,
        geometry: &Geometry,
        used_bytes: u32,
        slots: u32,
        last: bool,
        pool: &mut flow::Pool,
        counters: &mut Counters,
    ) -> u32 {
        counters.packets_sent += 1;
        counters.slots_sent += u64::from(slots);
        if let Some(flow::Receiver::Demand(receiver)) = &self.receiver
            && let Some(granted_total) = receiver.settled_total()
        {
            return granted_total;
        }
        let Some(receiver) = &mut self.receiver else { return 0 };
        let leaves_room = || slots * geometry.slot_bytes >= used_bytes + geometry.piggyback_bytes;
        let has_room = || last && (geometry.piggyback_bytes == 0 || leaves_room());
        let (credits, granted_total) = match *receiver {
            flow::Receiver::Dynamic(account) => {
                if let Some(granted_total) = pool.dynamic.settled_total(account) {
                    return granted_total;
                }
                pool.dynamic.carry(account, has_room())
            }
            ref mut receiver => receiver.carry(has_room(), pool),
        };
        counters.piggybacked_credits_sent += u64::from(credits);
        granted_total
    }

    /// The packet of `body` without payload, which fills one slot and takes a credit.
    #[expect(clippy::too_many_arguments, reason = "the parts of a header")]
    pub fn control_packet(
        &mut self,
        geometry: &Geometry,
        body: Body,
        number: u32,
        wanted_total: u32,
        marks: Marks,
        pool: &mut flow::Pool,
        counters: &mut Counters,
    ) -> Packet {
        counters.count_kind(&body);
        let granted_total = self.piggyback(geometry, geometry.header_bytes(&body), 1, true, pool, counters);
        self.header(body, 0, number, (granted_total, wanted_total), marks)
    }

    /// The packet of `body` without payload, which takes no credit and carries the granted total as it is.
    pub fn free_packet(
        &self,
        body: Body,
        wanted_total: u32,
        over_limit: bool,
        pool: &flow::Pool,
        counters: &mut Counters,
    ) -> Packet {
        counters.packets_sent += 1;
        counters.slots_sent += 1;
        let granted_total = self.receiver.as_ref().map_or(0, |receiver| receiver.granted_total(pool));
        let marks = Marks { rendezvous_only: over_limit, backlogged: false };
        self.header(body, 0, 0, (granted_total, wanted_total), marks)
    }
}
