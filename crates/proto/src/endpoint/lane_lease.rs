//! Lane leases: attach, detach and lane reclamation.
//!
//! A sender leases a lane of a mailbox, with its credits. A receiver that needs the memory, or whose lanes others wait
//! for, asks a sender to detach. A detached sender with something to send attaches again. The driver decides whom to
//! ask; this file does not know which sender is idle or waits.
//!
//! A lease starts with `Connected` at the sender and `Attached` at the receiver. It ends with the packet `Detach`, the
//! last one in its lane, or with the loss of the peer. Packets of the other direction carry the number of the lease,
//! the epoch, beside the grant. A sender ignores a grant of an earlier lease.
//! ```text
//! driver of B -> driver of A   detach request                   (a word in shared memory: no packet, no credit)
//! driver  -> A: DetachRequested { B }    Transmit { Detach }, Disconnect { B }; with a backlog also Connect { B }
//! driver  -> B: Arrived { Detach }       Retire, FreeLane { A }
//! driver  -> A: Connected { B, epoch 7 }                                    driver -> B: Attached { A, epoch 7 }
//! B -> A   credit, granted total 9, epoch 6: sent before B read the `Detach`        ignored, epoch 7 has its own total
//! ```
//! **A sender can detach at once**, between any two packets, unless its link is busy ([`super::busy_link`]). `Detach`
//! costs no credit, because its slot is reserved. A message that is cut in the middle continues in the next lease,
//! which starts with the whole quota. So no detach waits for credits of another endpoint, and mailboxes without free
//! lanes cannot deadlock.
//!
//! **Credit packets of an earlier lease.** When a sender attaches again, its mailbox may hold unread credit packets for
//! its previous lease. They occupy the slots reserved for the new lease, and they bring no credit. Then the sender
//! might never have a credit to acknowledge them. So a receiver that knows of unread ones changes its own lane there: a
//! new lane has free slots.

use super::path::Outbound;
use super::paths::Paths;
use super::payloads::Payloads;
use super::pending::Waits;
use crate::action::Source;
use crate::driver::Driver;
use crate::event::Peer;
use crate::flow;
use crate::packet::Body;

impl Paths {
    pub(super) fn connected<D: Driver>(
        &mut self,
        peer: Peer,
        sender: flow::Sender,
        credit_slots: u32,
        epoch: u16,
        payloads: &mut Payloads,
        driver: &mut D,
    ) {
        self.peers.note_contact(peer);
        self.peer(peer);
        self.peers.note_lease(peer);
        let Paths { peers, pool, .. } = self;
        let state = &mut peers[peer.0 as usize];
        if matches!(state.path.outbound, Outbound::Connecting | Outbound::Absent) {
            state.path.outbound = Outbound::Connected(sender);
            state.path.grants.credit_slots = credit_slots.min(u16::MAX.into()) as u16;
            state.path.grants.leases.begin_outgoing(epoch);
            if let Some(receiver) = &mut state.path.grants.receiver {
                receiver.credit_packets_read(state.path.grants.leases.credit_packets_read(), pool);
            }
            if let Some(pending) = &mut state.pending {
                pending.compulsory.connected(epoch);
            }
        }
        self.return_credits(peer, driver);
        self.send_while_credited(peer, payloads, driver);
    }

    pub(super) fn attached<D: Driver>(
        &mut self,
        peer: Peer,
        (quota_slots, start_slots): (u32, u32),
        epoch: u16,
        payloads: &mut Payloads,
        driver: &mut D,
    ) {
        self.peers.note_contact(peer);
        let state = self.peer(peer);
        // We do not read a peer that was lost before this event.
        if matches!(state.path.outbound, Outbound::Lost(_)) {
            return;
        }
        let unread = state.path.grants.leases.has_unread_credit_packets();
        let geometry = state.pending.as_deref().and_then(|pending| pending.geometry.as_deref().copied());
        if unread {
            self.detach(peer, payloads, driver); // see the head of this file
        }
        self.peer(peer); // detach may have removed the entry
        if let Some(geometry) = geometry {
            self.set_geometry(peer, geometry);
        }
        let Paths { config, peers, pool, .. } = self;
        let state = &mut peers[peer.0 as usize];
        if let Some(before) = state.path.grants.receiver.take() {
            before.detach(pool);
        }
        state.path.grants.leases.begin_incoming(epoch);
        state.path.grants.receiver = Some(flow::Receiver::new(config, peer, quota_slots, start_slots, pool));
        state.path.grants.leases.credit_packets_received = 0;
        if let Some(pending) = &mut state.pending {
            pending.busy_link.credit = false; // it was for the earlier lease
        }
        self.note_quota(start_slots);
        self.reserve(peer, quota_slots);
    }

    /// Detaches from the mailbox of `peer`, and attaches again if there is something to send.
    pub(super) fn detach<D: Driver>(&mut self, peer: Peer, payloads: &mut Payloads, driver: &mut D) {
        let Some(state) = self.peers.get_mut(peer.0 as usize) else { return };
        if !matches!(state.path.outbound, Outbound::Connected(_)) {
            return; // asked twice, or lost
        }
        if !state.is_link_busy() {
            // A held copy must not keep the lane from others, and a lease with credits carries something.
            self.give_up_multi_sends(peer, payloads, driver);
        }
        let state = &mut self.peers[peer.0 as usize];
        if let Some(pending) = state.pending.as_deref_mut().filter(|pending| pending.busy_link.busy) {
            pending.busy_link.detach = true; // `Detach` is the last packet; see `link_ready`
            return;
        }
        let (over_limit, counters) = (self.budget.is_over_limit(), &mut self.counters);
        let packet = state.path.grants.free_packet(Body::Detach, 0, over_limit, &self.pool, counters);
        if driver.transmit(peer, &packet, Source::None).is_err() {
            counters.uncount(&packet.body, 1);
            self.note_busy(peer).detach = true;
            return;
        }
        counters.count_kind(&Body::Detach);
        counters.lanes_returned += 1;
        driver.disconnect(peer);
        state.path.end_room_wait(peer, driver);
        // The reservation there is for one lease, and we may have missed what the peer said in it.
        state.path.grants.rendezvous_only = self.budget.enforced();
        if let Some(pending) = state.pending.as_deref_mut() {
            pending.compulsory.we_detached();
            if pending.backlog.is_empty() {
                pending.waits = Waits::Nothing; // a refused packet is void
            } else if pending.stalled_since().is_none() {
                pending.waits = Waits::Credit(driver.now());
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
        let Paths { peers, pool, .. } = self;
        let state = &mut peers[peer.0 as usize];
        if let Some(receiver) = state.path.grants.receiver.take() {
            receiver.detach(pool);
        }
        if let Some(pending) = &mut state.pending {
            pending.compulsory.peer_detached();
            pending.busy_link.credit = false;
        }
        state.path.grants.leases.credit_packets_received = 0;
        let reserved = state.reserved.take();
        self.budget.detach(&self.config, reserved);
    }
}
