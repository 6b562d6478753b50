//! Lane leases: attach, detach and lane reclamation.
//!
//! A sender leases a lane of a mailbox, with its credits. A receiver that needs the memory, or whose lanes others wait
//! for, asks a sender to detach. A detached sender with something to send attaches again. The driver decides whom to
//! ask; this file does not know which sender is idle or waits.
//!
//! A lease starts with `Connected` at the sender and `Attached` at the receiver. It ends with the packet `Detach`, the
//! last one in its lane. Packets of the other direction carry the number of the lease, the epoch, beside the grant. A
//! sender ignores a grant of an earlier lease.
//! ```text
//! driver of B -> driver of A   detach request                   (a word in shared memory: no packet, no credit)
//! driver  -> A: DetachRequested { B }    Transmit { Detach }, Disconnect { B }; with a backlog also Connect { B }
//! driver  -> B: Arrived { Detach }       Retire, FreeLane { A }
//! driver  -> A: Connected { B, epoch 7 }                                    driver -> B: Attached { A, epoch 7 }
//! B -> A   credit, granted total 9, epoch 6: sent before B read the `Detach`        ignored, epoch 7 has its own total
//! ```
//! **A sender can detach at once**, between any two packets. `Detach` costs no credit, because its slot is reserved. A
//! message that is cut in the middle continues in the next lease, which starts with the whole quota. So no detach waits
//! for credits of another endpoint, and mailboxes without free lanes cannot deadlock.
//!
//! **Credit packets of an earlier lease.** When a sender attaches again, its mailbox may hold unread credit packets for
//! its previous lease. They occupy the slots reserved for the new lease, and they bring no credit. Then the sender
//! might never have a credit to acknowledge them. So a receiver that knows of unread ones changes its own lane there: a
//! new lane has free slots.

use super::{Endpoint, Outbound, PeerEntry, PendingWork, rnr};
use crate::action::Source;
use crate::driver::Driver;
use crate::event::Peer;
use crate::flow;
use crate::packet::Body;

/// The leases of one pair in both directions, and the credit packets in our lane there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Leases {
    /// Number of our lease in its mailbox.
    pub outgoing: u16,
    /// Number of its lease in our mailbox.
    pub incoming: u16,
    /// Credit packets that we have sent in our current lease, modulo 2^16.
    credit_packets_sent: u16,
    /// Of those, the ones that the peer has read.
    credit_packets_read: u16,
    /// Added to the count of the current lease for a [`flow::Receiver`], which counts over its own lifetime.
    receiver_offset: u16,
}

impl Leases {
    /// We send a credit packet.
    #[inline]
    pub(super) fn credit_packet_sent(&mut self) {
        self.credit_packets_sent = self.credit_packets_sent.wrapping_add(1);
    }

    /// The peer reports how many it has read in our current lease.
    #[inline]
    pub(super) fn note_credit_packets_read(&mut self, read: u16) {
        self.credit_packets_read = read;
    }

    /// Credit packets that it has read as far as we know, in the count of the receiver half.
    #[inline]
    pub(super) fn credit_packets_read(&self) -> u16 {
        self.credit_packets_read.wrapping_add(self.receiver_offset)
    }

    /// Credit packets that we have sent, in the count of the receiver half.
    #[cfg(feature = "explore")]
    pub(super) fn credit_packets_sent(&self) -> u16 {
        self.credit_packets_sent.wrapping_add(self.receiver_offset)
    }

    /// The canonical form: unread credit packets, and those that the peer knows we know it has read. Without an
    /// outgoing lease neither matters.
    #[cfg(feature = "explore")]
    pub(super) fn canonical(&self, connected: bool, origin: super::canonical::Origin) -> [u32; 3] {
        let Leases { outgoing: _, incoming, credit_packets_sent, credit_packets_read, receiver_offset: _ } =
            *self;
        let incoming = u32::from(origin.outgoing.is(incoming));
        if !connected {
            return [incoming, u32::MAX, u32::MAX];
        }
        let unread = credit_packets_sent.wrapping_sub(credit_packets_read);
        let unknown = origin.credit_packets_read.wrapping_sub(credit_packets_read);
        [incoming, u32::from(unread), u32::from(unknown)]
    }

    /// Our lease starts: all credit slots are free.
    fn begin_outgoing(&mut self, epoch: u16) {
        self.receiver_offset = self.receiver_offset.wrapping_add(self.credit_packets_sent);
        (self.outgoing, self.credit_packets_sent, self.credit_packets_read) = (epoch, 0, 0);
    }

    /// Its lease starts, with a new receiver half.
    fn begin_incoming(&mut self, epoch: u16) {
        self.incoming = epoch;
        self.receiver_offset = self.credit_packets_sent.wrapping_neg();
    }
}

impl Endpoint {
    /// Number of peer entries.
    pub fn peer_entries(&self) -> u64 {
        self.peers.count() as u64
    }

    pub(super) fn connected<D: Driver>(
        &mut self,
        peer: Peer,
        sender: flow::Sender,
        credit_slots: u32,
        epoch: u16,
        driver: &mut D,
    ) {
        self.peers.note_contact(peer);
        self.peer(peer);
        self.peers.note_lease(peer);
        let Endpoint { peers, pool, .. } = self;
        let state = &mut peers[peer.0 as usize];
        if matches!(state.path.outbound, Outbound::Connecting | Outbound::Absent) {
            state.path.outbound = Outbound::Connected(sender);
            state.path.credit_slots = credit_slots.min(u16::MAX.into()) as u16;
            state.path.grants.leases.begin_outgoing(epoch);
            if let Some(receiver) = &mut state.path.grants.receiver {
                receiver.credit_packets_read(state.path.grants.leases.credit_packets_read(), pool);
            }
            if let Some(pending) = &mut state.pending {
                pending.compulsory.connected(epoch);
            }
        }
        self.return_credits(peer, driver);
        self.send_while_credited(peer, driver);
    }

    pub(super) fn attached<D: Driver>(
        &mut self,
        peer: Peer,
        (quota_slots, start_slots): (u32, u32),
        epoch: u16,
        driver: &mut D,
    ) {
        self.peers.note_contact(peer);
        let state = self.peer(peer);
        // We do not read a peer that was lost before this event.
        if matches!(state.path.outbound, Outbound::Lost(_)) {
            return;
        }
        let Leases { credit_packets_sent, credit_packets_read, .. } = state.path.grants.leases;
        let geometry = state.pending.as_deref().and_then(|pending| pending.geometry);
        if credit_packets_sent != credit_packets_read {
            self.detach(peer, driver); // see the head of this file
        }
        self.peer(peer); // detach may have removed the entry
        if let Some(geometry) = geometry {
            self.set_geometry(peer, geometry);
        }
        let Endpoint { config, peers, pool, .. } = self;
        let state = &mut peers[peer.0 as usize];
        if let Some(before) = state.path.grants.receiver.take() {
            before.detach(pool);
        }
        state.path.grants.leases.begin_incoming(epoch);
        state.path.grants.receiver = Some(flow::Receiver::new(config, peer, quota_slots, start_slots, pool));
        state.path.grants.credit_packets_read = 0;
        if let Some(pending) = &mut state.pending {
            pending.busy_link.credit = false; // it was for the earlier lease
        }
        self.owned(start_slots);
        self.reserve(peer, quota_slots);
    }

    /// Detaches from the mailbox of `peer`, and attaches again if there is something to send.
    pub(super) fn detach<D: Driver>(&mut self, peer: Peer, driver: &mut D) {
        let Some(state) = self.peers.get_mut(peer.0 as usize) else { return };
        if !matches!(state.path.outbound, Outbound::Connected(_)) {
            return; // asked twice, or lost
        }
        if let Some(pending) = state.pending.as_deref_mut().filter(|pending| pending.busy_link.busy) {
            pending.busy_link.detach = true; // `Detach` is the last packet, behind what the link has refused
            return;
        }
        let (over_limit, counters) = (self.budget.is_over_limit(), &mut self.counters);
        let packet = state.path.grants.free_packet(Body::Detach, over_limit, &self.pool, counters);
        if driver.transmit(peer, &packet, Source::None).is_err() {
            self.detach_refused(peer, &packet);
            return;
        }
        counters.count_kind(&Body::Detach);
        counters.lanes_returned += 1;
        driver.disconnect(peer);
        rnr::end_wait(&mut state.path, peer, driver);
        // The reservation there is for one lease, and we may have missed what the peer said in it.
        state.path.rendezvous_only = self.budget.enforced();
        if let Some(pending) = state.pending.as_deref_mut() {
            pending.compulsory.we_detached();
            if pending.backlog.is_empty() {
                pending.stalled_since = None; // a refused packet is void
            } else if pending.stalled_since.is_none() {
                pending.stalled_since = Some(driver.now());
                self.counters.stalls += 1;
            }
        }
        if state.has_nothing_to_send() {
            state.path.outbound = Outbound::Absent;
            self.remove_if_idle(peer);
        } else {
            state.path.outbound = Outbound::Connecting;
            driver.connect(peer);
        }
    }

    /// `peer` has detached from our mailbox; all its packets are handled.
    pub(super) fn peer_detached<D: Driver>(&mut self, peer: Peer, driver: &mut D) {
        driver.free_lane(peer);
        let Endpoint { peers, pool, .. } = self;
        let state = &mut peers[peer.0 as usize];
        if let Some(receiver) = state.path.grants.receiver.take() {
            receiver.detach(pool);
        }
        if let Some(pending) = &mut state.pending {
            pending.compulsory.peer_detached();
            pending.busy_link.credit = false;
        }
        state.path.grants.credit_packets_read = 0;
        let reserved = state.reserved.take();
        self.budget.detach(&self.config, reserved);
    }

    /// Removes the entry of a peer if neither side has a lane or pending work.
    pub(super) fn remove_if_idle(&mut self, peer: Peer) {
        let cross_memory = self.config.cross_memory;
        let idle = |state: &PeerEntry| {
            matches!(state.path.outbound, Outbound::Absent)
                && state.path.grants.receiver.is_none()
                && state.pending.as_deref().is_none_or(PendingWork::is_idle)
                && state.inbound.is_none()
                && !state.said_goodbye
                && state.cross_memory == cross_memory
        };
        if let Some(state) = self.peers.full_entry(peer.0 as usize).filter(|state| idle(state)) {
            let stalled_ns = state.pending.as_deref().map_or(0, |pending| pending.stalled_ns);
            self.peers.removed_stalled_ns += stalled_ns;
            self.peers.remove(peer.0 as usize);
        }
    }
}
