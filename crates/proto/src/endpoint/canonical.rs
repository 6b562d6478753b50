//! The canonical form of the endpoint machine's state: a bounded row of numbers, for exhaustive exploration (feature
//! `explore`). The file also returns the totals that the invariants compare. And it lets a search intervene: set a
//! threshold by hand, rely on thresholds alone, or let an absent sender take quota.
//!
//! Totals and message numbers grow for ever, so equivalent states would never compare equal. Only the distance of a
//! total from what the other side of the pair knows matters. So the sender of a pair is the origin ([`Origin`]). The
//! receiver's totals, and those in packets in flight, are written as distances from it.
//!
//! Of a lease number only one thing matters: whether the lease is the current one ([`Lease`]). The machine ignores
//! totals of earlier leases, so they are not written. Counters, stall times and message numbers are left out too,
//! because the machine takes no decision by them. State that exploration does not model, such as transfers, panics.
//!
//! The structures of the machine are destructured without `..`, so a new field does not compile until this file says
//! what distinguishes its values. Bodies of eager messages and partly arrived messages are exceptions.

use alloc::vec::Vec;

use super::backlog::{BacklogEntry, EntryKind};
use super::inbound::Inbound;
use super::matching::Matching;
pub use super::origin::{Lease, Origin};
use super::path::{Grants, Outbound, Path, RoomWait};
use super::paths::Paths;
use super::peer_entry::PeerEntry;
use super::pending::{BusyLink, PendingWork};
use super::state::Endpoint;
use crate::config::Scheme;
use crate::counters::Counters;
use crate::driver::Driver;
use crate::event::Peer;
use crate::flow;
use crate::offload::Offloaded;
use crate::packet::{Body, Packet};

/// The sender's totals of one pair, which a check compares with the packets in flight. Unit: slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderTotals {
    /// Slots that may be filled now.
    pub credits: u32,
    /// Messages and packets that wait to be sent.
    pub waiting: u32,
    /// Requests and responses that wait to be sent.
    pub control: u32,
    /// Of those, messages.
    pub messages: u32,
    /// Of those, answers to operations of the peer.
    pub answers: u32,
}

impl Endpoint {
    /// The counters, which begin again. No decision depends on them, so a search need not tell states apart by them.
    pub fn take_counters(&mut self) -> Counters {
        core::mem::take(&mut self.paths.counters)
    }

    /// The knowledge of this endpoint as the sender to `peer`. The caller says which leases are current.
    pub fn origin(&self, peer: Peer, outgoing: Lease, incoming: Lease) -> Origin {
        let nothing = Origin { outgoing, incoming, ..Origin::default() };
        let Some(state) = self.paths.peers.get(peer.0 as usize) else { return nothing };
        let granted_total = match &state.path.outbound {
            Outbound::Connected(sender) => sender.known_total(),
            _ => 0,
        };
        Origin {
            granted_total,
            credit_packets_read: state.path.grants.leases.credit_packets_received,
            ..nothing
        }
    }

    /// The totals of this endpoint as the sender to `peer`.
    pub fn sender_totals(&self, peer: Peer) -> SenderTotals {
        let Some(state) = self.paths.peers.get(peer.0 as usize) else { return SenderTotals::default() };
        let credits = match &state.path.outbound {
            Outbound::Connected(sender) => sender.credits(),
            _ => 0,
        };
        let nothing = SenderTotals { credits, ..SenderTotals::default() };
        let Some(PendingWork { backlog, compulsory, .. }) = state.pending.as_deref() else { return nothing };
        let is_message = |entry: &&BacklogEntry| matches!(entry.kind, EntryKind::Eager { .. });
        SenderTotals {
            waiting: backlog.len() as u32,
            control: compulsory.slots(),
            messages: backlog.iter().filter(is_message).count() as u32,
            answers: backlog.answers(),
            ..nothing
        }
    }

    /// The length of a partly arrived message of `peer`. Unit: bytes.
    pub fn arriving_bytes(&self, peer: Peer) -> Option<u64> {
        let number = self.paths.peers.full_entry(peer.0 as usize)?.path.inbound?;
        Some(self.matching.inbounds.get(number.get())?.arrived_and_length().1)
    }

    /// Whether a compulsory return request or response waits for a credit.
    pub fn control_waits(&self) -> bool {
        let mut pending = self.paths.peers.full_entries().filter_map(|state| state.pending.as_deref());
        pending.any(|pending| pending.compulsory.waits())
    }

    /// Whether the scheme uses the backlog mark.
    fn raises_who_waited(&self) -> bool {
        matches!(self.paths.config.scheme, Scheme::AdaptiveBacklog { .. })
    }

    /// The totals of this endpoint as the receiver of `peer`: grants that `origin` does not include, and retrieved
    /// slots that are not granted again. `None` for schemes without totals.
    pub fn receiver_totals(&self, peer: Peer, origin: Origin) -> Option<flow::ReceiverTotals> {
        let state = self.paths.peers.get(peer.0 as usize)?;
        let receiver = state.path.grants.receiver.as_ref()?;
        receiver.totals(origin.granted_total, &self.paths.pool)
    }

    /// An absent expected sender behaves as if it were at a monitoring point (dynamic credits, attach policy `Start`).
    /// It is the stealing environment. Returns whether there is such a sender.
    pub fn steal_for_absent_sender<D: Driver>(&mut self, driver: &mut D) -> bool {
        let stirred = self.paths.pool.dynamic.steal_for_absent_sender();
        self.paths.ask_for_credits(&mut self.payloads, driver);
        stirred
    }

    /// The credits that we have granted to `peer` in its lease, modulo 2^32.
    pub fn granted_total_to(&self, peer: Peer) -> u32 {
        let Some(state) = self.paths.peers.get(peer.0 as usize) else { return 0 };
        state.path.grants.receiver.as_ref().map_or(0, |receiver| receiver.granted_total(&self.paths.pool))
    }

    /// Grants are not delayed while credit packets are unread: thresholds alone must keep I2, as the papers argue.
    pub fn rely_on_thresholds(&mut self) {
        self.paths.relies_on_thresholds = true;
    }

    /// No sender is told to use rendezvous only, not even the one that attaches again: exploration does not model
    /// transfers, and receives every message at once.
    pub fn rely_on_receives(&mut self) {
        self.paths.budget.do_not_enforce();
    }

    /// Sets the threshold of the receiver of `peer`, to show the failures of other formulae.
    pub fn set_threshold(&mut self, peer: Peer, threshold_slots: u32) {
        if let Some(receiver) = &mut self.paths.peer(peer).path.grants.receiver {
            receiver.set_threshold(threshold_slots);
        }
    }

    /// Appends the canonical form of this state.
    ///
    /// - `origin_of` returns the origin of each peer as the sender to us.
    /// - `offloaded` appends the canonical form of a packet of an offloaded machine, with its number, that waits to leave
    ///   for a peer. This file does not know such packets.
    ///
    /// # Panics
    /// If there is state that exploration does not model: transfers, regions, unexpected messages.
    pub fn canonical(
        &self,
        origin_of: impl Fn(Peer) -> Origin,
        offloaded: impl Fn(Peer, &Offloaded, u32, &mut Vec<u32>),
        words: &mut Vec<u32>,
    ) {
        let Endpoint { paths, payloads, matching } = self;
        let Paths {
            config,
            holds: _,       // constant
            hold_mutant: _, // constant
            peers,
            counters: _, // counted, not used
            pool,
            one_packet_bytes: _,     // constant
            readable_eager_bytes: _, // constant
            budget: _,               // of unexpected payload, which does not occur
            pending_acks,
            backlogged: _, // the sum over the peers
            spare: _,      // memory
            multi_sends,
            relies_on_thresholds: _, // constant
        } = paths;
        let Matching { posted, unexpected, multi: _, inbounds, any_peer_died, holders } = matching;
        let bare = payloads.is_empty() && unexpected.is_bare() && pending_acks.is_empty() && !holders.exist();
        let bare = bare && multi_sends.is_empty();
        assert!(
            bare && !posted.has_any_source_receive() && posted.directed_sources().next().is_none(),
            "exploration has no canonical form for this state: {self:?}"
        );
        words.push(u32::from(*any_peer_died));
        for (peer, state) in peers.entries() {
            words.push(peer.0);
            let inbound = state.path.inbound.and_then(|number| inbounds.get(number.get()));
            let offloaded = |packet: &Offloaded, number, words: &mut Vec<u32>| {
                offloaded(peer, packet, number, words);
            };
            state.canonical(inbound, origin_of(peer), self.raises_who_waited(), offloaded, words);
        }
        let base_of = |owner: Peer| peers[owner.0 as usize].base(origin_of(owner));
        match config.scheme {
            Scheme::Dynamic { .. } => pool.dynamic.canonical(base_of, words),
            Scheme::Demand => {
                words.push(pool.waits_for_idle().into());
                pool.demand().canonical(base_of, words);
            }
            _ => {}
        }
    }

    /// Appends the canonical form of `packet`, in flight from this endpoint to `to`, whose origin as the sender to us
    /// is `origin`. Of a packet of an offloaded machine it appends only the common header. `granted_total`: the credits
    /// that `to` has granted in the lease of the packet.
    pub fn canonical_packet(
        &self,
        to: Peer,
        packet: &Packet,
        origin: Origin,
        granted_total: u32,
        words: &mut Vec<u32>,
    ) {
        let known_total = granted_total;
        let Packet {
            epoch,
            credit_packets_read,
            granted_total,
            wanted_total,
            number: _, // of a message: checked for order, not used
            payload_bytes,
            marks,
            body,
        } = *packet;
        match origin.outgoing.is(epoch) {
            true => {
                let incoming = self
                    .paths
                    .peers
                    .get(to.0 as usize)
                    .map_or(0, |state| state.path.grants.leases.credit_packets_received);
                let read = incoming.wrapping_sub(credit_packets_read);
                words.extend([1, u32::from(read), origin.granted_total.wrapping_sub(granted_total)]);
            }
            false => words.push(0),
        }
        let waited = marks.backlogged && self.raises_who_waited();
        let announces = self.paths.config.scheme == Scheme::Demand && body != Body::Detach;
        words.extend([
            if announces { wanted_total.wrapping_sub(known_total) } else { 0 },
            payload_bytes,
            u32::from(marks.rendezvous_only) << 1 | u32::from(waited),
        ]);
        canonical_body(&body, words);
    }
}

fn canonical_body(body: &Body, words: &mut Vec<u32>) {
    match *body {
        Body::Eager { length, acknowledge: None, .. } => words.extend([0, length]),
        Body::More { offset } => words.extend([1, offset]),
        Body::Credit => words.push(2),
        Body::ReturnRequest => words.push(3),
        Body::ReturnResponse { credits } => words.extend([4, credits]),
        Body::Detach => words.push(5),
        Body::Offloaded(_) => words.push(6), // the caller appends the rest
        _ => panic!("exploration has no canonical form for {body:?}"),
    }
}

impl PeerEntry {
    /// The base of the totals of the receiver half.
    fn base(&self, origin: Origin) -> flow::Base {
        let connected = matches!(self.path.outbound, Outbound::Connected(_));
        flow::Base {
            granted_total: origin
                .outgoing
                .is(self.path.grants.leases.incoming)
                .then_some(origin.granted_total),
            packets_sent: self.path.grants.leases.credit_packets_sent(),
            packets_read: connected.then(|| self.path.grants.leases.credit_packets_read()),
        }
    }

    fn canonical(
        &self,
        inbound: Option<&Inbound>,
        origin: Origin,
        waiting_counts: bool,
        offloaded: impl Fn(&Offloaded, u32, &mut Vec<u32>),
        words: &mut Vec<u32>,
    ) {
        let PeerEntry {
            path: Path { outbound, grants, inbound: _ /* written through its number */ },
            pending,
            next_number: _,
            reserved: _, // follows from the attached peers
        } = self;
        let Grants {
            receiver,
            leases,
            credit_slots,
            rendezvous_only,
            unreserved,
            room_wait,
            backlog_waited,
            cross_memory,
            said_goodbye,
        } = grants;
        let nothing = PendingWork::default();
        let PendingWork {
            backlog,
            geometry: _, // follows from the peer
            busy_link,
            compulsory,
            waits: _,      // counted, not used
            stalled_ns: _, // the same
            write_refused,
            write_bytes,
            bounce_buffers,
            acks,
            hold,
        } = pending.as_deref().unwrap_or(&nothing);
        assert!(
            *bounce_buffers == 0 && acks.is_empty() && hold.is_none(),
            "exploration has no canonical form for {self:?}"
        );
        match outbound {
            Outbound::Absent => words.push(0),
            Outbound::Connecting => words.push(1),
            Outbound::Connected(sender) => {
                words.push(2);
                sender.canonical(words);
            }
            Outbound::Lost(_) => words.push(3),
        }
        // Exploration has no clock, so the time of the RNR timer does not matter.
        let (asks, waits) = (*room_wait == RoomWait::Answer, *room_wait == RoomWait::Timer);
        let flags = [asks, waits, *write_refused, *cross_memory, *said_goodbye];
        let more = [*backlog_waited && waiting_counts, *rendezvous_only, *unreserved];
        let BusyLink { busy, credit, detach } = *busy_link;
        words.push(
            flags
                .iter()
                .chain(&more)
                .chain(&[busy, credit, detach, detach && self.path.lease_is_unused()])
                .fold(0, |word, flag| word << 1 | u32::from(*flag)),
        );
        words.extend(compulsory.canonical(origin.incoming));
        let connected = matches!(outbound, Outbound::Connected(_));
        assert!(
            !connected || origin.incoming.is(leases.outgoing()),
            "a connected sender does not know its last lease: {self:?}"
        );
        words.extend(leases.canonical(connected, origin));
        words.extend([u32::from(*credit_slots), *write_bytes as u32, backlog.len() as u32]);
        backlog.iter().for_each(|entry| entry.canonical(&offloaded, words));
        words.push(u32::from(receiver.is_some()));
        if let Some(receiver) = receiver {
            receiver.canonical(self.base(origin), words);
        }
        words.push(u32::from(inbound.is_some()));
        if let Some(inbound) = inbound {
            inbound.canonical(words);
        }
    }
}

impl BacklogEntry {
    fn canonical(&self, offloaded: impl Fn(&Offloaded, u32, &mut Vec<u32>), words: &mut Vec<u32>) {
        let BacklogEntry { kind, sent, bytes, payload: _, complete: _, number } = self;
        words.extend([*sent as u32, *bytes as u32]);
        match kind {
            EntryKind::Offloaded(packet) => {
                words.push(101);
                offloaded(packet, *number, words);
            }
            EntryKind::Eager { acknowledge: None, .. } => words.push(100),
            EntryKind::Control(body) => canonical_body(body, words),
            _ => panic!("exploration has no canonical form for {kind:?}"),
        }
    }
}

impl Inbound {
    fn canonical(&self, words: &mut Vec<u32>) {
        let (arrived, length) = self.arrived_and_length();
        words.extend([arrived as u32, length as u32]);
    }
}
