//! The endpoint machine: it routes events to the parts that decide, and holds the state that they share.
//!
//! It knows peers as numbers, requests as the driver's handles, and payload as offsets. It does not know addresses,
//! pointers, clocks, or the layout of a slot.
//!
//! Worked exchange, 4 credits, an 8 B message to a new peer:
//! ```text
//! driver  -> Posted(Send { request 0, to 1, 8 bytes })   Connect { to: 1 }
//! driver  -> Connected { peer 1, 4 slots }               Transmit { Eager, 8 bytes }, Complete { 0, Done }
//! at the peer: Arrived { Eager }                         Place { request 3 }, Complete { 3, Received }, Retire
//! ```

#[cfg(feature = "explore")]
pub mod canonical;
mod compulsory;
mod fast_path;
mod lane_lease;
mod loss;
mod peers;
mod pending;
pub mod receiver_memory;
mod receiving;
mod remote;
mod rnr;
mod sending;
#[cfg(test)]
mod tests;
mod view;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::action::{Action, Outcome, Source};
use crate::config::{Config, MAX_UNEXPECTED, Scheme};
use crate::counters::Counters;
use crate::event::{Command, Event, MessageId, Peer, PeerFault, Request};
use crate::flow;
use crate::message::posted::PostedQueue;
use crate::message::unexpected::{Payload, UnexpectedQueue};
use crate::packet::Body;
use crate::table::{Number, Row};
use crate::time::Instant;
use crate::timers::Timers;
use crate::transfer::Transfers;
pub use fast_path::{FastArrival, MessagePart, ReceivedMessage, UnexpectedArrival, UnexpectedMatch};
use lane_lease::Leases;
use peers::Peers;
use pending::{PendingWork, Spare};
use receiver_memory::{BounceBuffers, Budget, Reservation};
use receiving::{Inbound, MultiBuffers};
use sending::{BacklogEntry, EntryKind};
pub use view::PairView;

/// State of our lane at a peer.
#[derive(Clone, Debug)]
enum Outbound {
    /// We have no lane and have not asked for one.
    Absent,
    /// We have asked for a lane.
    Connecting,
    /// We have a lane, with these credits.
    Connected(flow::Sender),
    /// The peer is lost.
    Lost(PeerFault),
}

/// The state of one peer, from the first contact until both sides have detached. Thousands of peers may be idle, so
/// this structure is small.
#[derive(Clone, Debug)]
struct PeerEntry {
    outbound: Outbound,
    /// The receiver half, which grants credits to the peer, while it is attached.
    receiver: Option<flow::Receiver>,
    /// State that few peers have at a time.
    pending: Option<Box<PendingWork>>,
    /// Number of the next message. Restarts at 0 when the entry is removed, which requires that no message is pending.
    next_number: u32,
    /// The eager message that is partly arrived.
    inbound: Option<Number>,
    /// Its reservation in our budget.
    reserved: Option<Reservation>,
    leases: Leases,
    /// Credit packets that we have read in the peer's current lease.
    credit_packets_read: u16,
    /// Slots at the peer for our explicit credit packets, while connected. Values above `u16::MAX` are cut to it.
    credit_slots: u16,
    /// We wait for free slots that the link was asked for, or for the time to ask again.
    asked_room: bool,
    /// We have run out of credit since the backlog was last empty: the packets that leave have waited.
    backlog_waited: bool,
    /// Copies between the two processes work, as far as we know.
    cross_memory: bool,
    /// It has sent a goodbye and receives nothing more.
    said_goodbye: bool,
    /// It has no memory for unexpected payload: we send by rendezvous only.
    rendezvous_only: bool,
    /// It has no reservation in our budget: it must always send by rendezvous.
    unreserved: bool,
}

impl PeerEntry {
    /// The entry of a new peer.
    fn new(cross_memory: bool) -> PeerEntry {
        PeerEntry {
            outbound: Outbound::Absent,
            receiver: None,
            pending: None,
            next_number: 0,
            inbound: None,
            reserved: None,
            leases: Leases::default(),
            credit_packets_read: 0,
            credit_slots: 0,
            asked_room: false,
            backlog_waited: false,
            cross_memory,
            said_goodbye: false,
            rendezvous_only: false,
            unreserved: false,
        }
    }

    /// The backlog, in order.
    fn backlog(&self) -> impl ExactSizeIterator<Item = &BacklogEntry> {
        self.pending.as_deref().map_or_else(Default::default, |pending| pending.backlog.iter())
    }

    #[inline]
    fn has_backlog(&self) -> bool {
        self.pending.as_deref().is_some_and(|pending| !pending.backlog.is_empty())
    }

    /// Whether nothing waits to be sent to it, with or without credit.
    #[inline]
    fn has_nothing_to_send(&self) -> bool {
        self.pending.as_deref().is_none_or(PendingWork::has_nothing_to_send)
    }

    /// Whether acknowledgements to it are due now.
    #[inline]
    fn is_due(&self) -> bool {
        self.pending.as_deref().is_some_and(|pending| pending.acks.is_due())
    }
}

#[derive(Clone, Copy, Debug)]
struct Region {
    bytes: u64,
    readable: bool,
    writable: bool,
}

impl Region {
    fn allows(&self, offset: u64, bytes: u64, write: bool) -> bool {
        let right = if write { self.writable } else { self.readable };
        right && offset.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }
}

/// Spare memory of freed state. An endpoint has its own. A process with many endpoints can pass it from one to the next
/// ([`Endpoint::exchange_scratch`]).
#[derive(Debug, Default)]
pub struct Scratch {
    pending: Spare,
    peer: Option<Box<PeerEntry>>,
}

/// The endpoint machine.
#[derive(Clone, Debug)]
pub struct Endpoint {
    config: Config,
    peers: Peers,
    posted: PostedQueue,
    unexpected: UnexpectedQueue,
    multi: MultiBuffers,
    transfers: Transfers,
    /// Partly arrived eager messages, by number.
    inbounds: Row<Inbound>,
    regions: BTreeMap<u64, Region>,
    counters: Counters,
    /// Flow-control state that exists once per endpoint.
    pool: flow::Pool,
    /// The longest eager message that fits into one packet. Unit: bytes.
    one_packet_bytes: u64,
    budget: Budget,
    bounce_buffers: BounceBuffers,
    /// Peers with coalesced acknowledgements, which leave with the next one or when the endpoint is idle.
    pending_acks: Vec<Peer>,
    backlogged: u32,
    spare: Spare,
    /// Retry times of peers that were not ready.
    timers: Timers,
    /// Some peer has died: a receive from any source may wait for it.
    any_peer_died: bool,
    /// See [`Endpoint::rely_on_thresholds`].
    #[cfg(feature = "explore")]
    relies_on_thresholds: bool,
}

impl Endpoint {
    /// An endpoint without peers.
    ///
    /// # Panics
    /// If the configuration has no credit slots or a geometry in which a header does not fit into a slot.
    pub fn new(config: Config) -> Endpoint {
        assert!(config.credit_slots >= 1, "credit_slots is {}, the minimum is 1", config.credit_slots);
        assert!(
            config.max_unexpected <= MAX_UNEXPECTED,
            "max_unexpected is {}, the maximum is {MAX_UNEXPECTED}",
            config.max_unexpected
        );
        let geometry = &config.geometry;
        assert!(geometry.max_packet_slots >= 1 && geometry.remote_header_bytes <= geometry.slot_bytes);
        let pool = match config.scheme {
            Scheme::Dynamic { piggyback } => flow::Pool::new(&config.region, config.credit_slots, piggyback),
            _ => flow::Pool::unused(),
        };
        let most_bytes = geometry
            .payload_bytes(geometry.eager_header_bytes.min(geometry.slot_bytes), geometry.max_packet_slots);
        Endpoint {
            one_packet_bytes: config.eager_bytes.min(u64::from(most_bytes)),
            budget: Budget::new(&config),
            bounce_buffers: BounceBuffers::new(config.bounce_bytes),
            pending_acks: Vec::new(),
            peers: Peers::new(&config),
            config,
            posted: PostedQueue::default(),
            unexpected: UnexpectedQueue::default(),
            multi: MultiBuffers::default(),
            transfers: Transfers::default(),
            inbounds: Row::default(),
            regions: BTreeMap::new(),
            counters: Counters::default(),
            pool,
            backlogged: 0,
            spare: Spare::default(),
            timers: Timers::default(),
            any_peer_died: false,
            #[cfg(feature = "explore")]
            relies_on_thresholds: false,
        }
    }

    /// Handles one event and appends the resulting actions, in order.
    pub fn handle(&mut self, now: Instant, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Posted(command) => self.command(now, command, actions),
            Event::Arrived { from, packet } => self.arrived(now, from, packet, actions),
            Event::Connected { peer, quota_slots, start_slots, credit_slots, epoch } => {
                let sender = flow::Sender::new(self.config.scheme, quota_slots, start_slots);
                self.connected(now, peer, sender, credit_slots, epoch, actions);
            }
            Event::DetachRequested { peer } => self.detach(now, peer, actions),
            Event::Attached { peer, quota_slots, start_slots, epoch } => {
                self.attached(now, peer, (quota_slots, start_slots), epoch, actions);
            }
            Event::Room { peer, slots } => self.room_answered(now, peer, slots, actions),
            Event::CopyDone { transfer, result } => self.copy_done(now, transfer, result, actions),
            Event::Lost { peer, fault } => self.lose(peer, fault, actions),
            Event::Deadline => self.retry(now, actions),
            Event::Idle => self.flush_acks(now, actions),
        }
        if self.pool.has_requests() {
            self.ask_for_credits(now, actions);
        }
    }

    /// Swaps the spare memory with that in `scratch`. Changes nothing else.
    #[inline]
    pub fn exchange_scratch(&mut self, scratch: &mut Scratch) {
        core::mem::swap(&mut self.spare, &mut scratch.pending);
        self.peers.exchange_spare(&mut scratch.peer);
    }

    /// When to call `handle` with [`Event::Deadline`], if no other event comes first. A late call delays only the
    /// waiting messages. An early call does no harm.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.earliest()
    }

    /// Whether something waits for a deadline or for idleness: a retry, or coalesced acknowledgements.
    #[inline(always)]
    pub fn waits_for_time(&self) -> bool {
        !self.timers.is_empty() || self.has_pending_acks()
    }

    /// The settings it was made with.
    #[inline]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Flow-control state of all senders, with dynamic credits.
    pub fn pool(&self) -> &flow::Pool {
        &self.pool
    }

    /// Replaces a rule of flow control by a mutant.
    #[cfg(any(test, feature = "mutants"))]
    pub fn mutate(&mut self, mutant: flow::Mutant) {
        self.pool.mutate(mutant);
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether a message of `bytes` bytes to `peer` might have to wait for credit now, or waits behind others. For
    /// drivers that read the clock only when needed.
    #[inline]
    pub fn would_wait(&self, peer: Peer, bytes: u64) -> bool {
        // An upper bound on its slots: each packet has a header, and a rendezvous fills one slot.
        let geometry = &self.config.geometry;
        let packet_bytes =
            u64::from(geometry.slot_bytes * geometry.max_packet_slots - geometry.remote_header_bytes);
        let whole = if bytes > self.config.eager_bytes { 0 } else { bytes };
        let packets = whole / packet_bytes.max(1) + 1;
        let slots = whole / u64::from(geometry.slot_bytes) + 2 * packets;
        match self.peers.full_entry(peer.0 as usize) {
            Some(state @ PeerEntry { outbound: Outbound::Connected(sender), .. }) => {
                u64::from(sender.credits()) < slots || state.has_backlog()
            }
            Some(_) => true,
            None => self.peers.compact_room(peer.0 as usize).is_none_or(|room| u64::from(room) < slots),
        }
    }

    /// Memory for envelopes of unexpected messages, without the payload that the driver stores. Unit: bytes.
    pub fn unexpected_bytes(&self) -> usize {
        self.unexpected.bytes()
    }

    /// Whether there are unexpected messages.
    #[inline]
    pub fn has_unexpected(&self) -> bool {
        self.unexpected.count() > 0
    }

    /// Memory for posted receives. Unit: bytes.
    pub fn posted_bytes(&self) -> usize {
        self.posted.bytes()
    }

    /// Number of backlog entries of all peers.
    pub fn backlogged(&self) -> u32 {
        self.backlogged
    }

    /// Whether closing now would lose something for a peer: a packet waits to leave, or a receiver does not yet have an
    /// announced payload. A waiting goodbye does not count.
    pub fn has_undelivered(&self) -> bool {
        let owed = |entry: &BacklogEntry| !matches!(entry.kind, EntryKind::Control(Body::Goodbye));
        self.transfers.has_announced_payload()
            || !self.bounce_buffers.is_empty()
            || self.peers.full_entries().any(|peer| peer.backlog().any(owed) || peer.is_due())
    }

    /// Number of messages that closing now would lose although an operation was reported complete. These are complete
    /// sends that have not left, bounce buffers, and acknowledgements that are due. Linear in the peers.
    pub fn undelivered_completed(&self) -> usize {
        let completed = |entry: &&BacklogEntry| match entry.kind {
            EntryKind::Eager { .. } => {
                // Bounce buffers are counted separately.
                entry.complete.is_none() && !matches!(entry.payload, Source::Bounce { .. })
            }
            EntryKind::Control(Body::Finished { .. } | Body::Written { .. }) => true,
            // These belong to an incomplete operation of ours or to a bounce buffer, or are not needed after closing.
            EntryKind::Control(_) | EntryKind::Pieces { .. } | EntryKind::Write { .. } => false,
        };
        let waiting = self.peers.full_entries().map(|peer| peer.backlog().filter(completed).count());
        let due = self.peers.full_entries().filter(|peer| peer.is_due()).count();
        self.bounce_buffers.count() + waiting.sum::<usize>() + due
    }

    /// Whether a rendezvous of a peer is being received, so that its sender must not get a goodbye yet.
    pub fn is_receiving(&self) -> bool {
        self.transfers.is_receiving_payload()
    }

    /// Whether the endpoint has no pending work: no transfer, no backlog, no partly arrived message.
    pub fn is_quiescent(&self) -> bool {
        self.backlogged == 0
            && self.transfers.is_empty()
            && self.bounce_buffers.is_empty()
            && self.inbounds.count() == 0
            && self
                .peers
                .full_entries()
                .filter_map(|peer| peer.pending.as_deref())
                .all(|pending| !pending.acks.is_due() && !pending.compulsory.is_pending())
    }

    /// Visits the peers that pending operations depend on: transfers, backlogs, directed receives. If a receive accepts
    /// any source, visits all peers with any contact. May visit a peer repeatedly.
    pub fn depends_on(&self, mut visit: impl FnMut(Peer)) {
        let anybody = self.posted.has_any_source_receive();
        self.transfers.peers().chain(self.posted.directed_sources()).for_each(&mut visit);
        for (peer, state) in self.peers.entries() {
            let waits = state.pending.as_deref().is_some_and(|pending| {
                let PendingWork { backlog, compulsory, bounce_buffers, .. } = pending;
                !backlog.is_empty() || compulsory.is_pending() || *bounce_buffers > 0
            });
            if waits || state.inbound.is_some() {
                visit(peer);
            }
        }
        if anybody {
            // Also detached peers: the receive may wait for their next message.
            self.peers.contacted().for_each(visit);
        }
    }

    /// Whether `peer` is lost, and why.
    pub fn fault(&self, peer: Peer) -> Option<PeerFault> {
        match self.peers.full_entry(peer.0 as usize)?.outbound {
            Outbound::Lost(fault) => Some(fault),
            _ => None,
        }
    }

    fn command(&mut self, now: Instant, command: Command, actions: &mut Vec<Action>) {
        match command {
            Command::Send(send) => self.send(now, send, actions),
            Command::Receive(receive) => self.receive(now, receive, actions),
            Command::Peek { request, pattern, then } => self.peek(now, request, &pattern, then, actions),
            Command::ReceiveClaimed { request, message, capacity_bytes } => {
                self.receive_claimed(now, request, message, capacity_bytes, actions);
            }
            Command::DiscardClaimed { request, message } => {
                self.discard(now, request, message, actions);
            }
            Command::Cancel { request } => self.cancel(request, actions),
            Command::Read(read) => self.read(now, read, actions),
            Command::Write(write) => self.write(now, write, actions),
            Command::RegisterMemory { key, bytes, readable, writable } => {
                self.regions.insert(key, Region { bytes, readable, writable });
            }
            Command::DeregisterMemory { key } => {
                self.regions.remove(&key);
            }
            Command::Close => self.close(now, actions),
        }
    }

    /// A packet has arrived. Its slots count as retrieved after [`Action::Retire`], and only then can they be granted
    /// again.
    fn arrived(&mut self, now: Instant, from: Peer, packet: crate::Packet, actions: &mut Vec<Action>) {
        let slots = self.config.geometry.packet_slots(&packet);
        self.counters.packets_received += 1;
        self.peer(from);
        let Endpoint { peers, pool, .. } = self;
        let state = &mut peers[from.0 as usize];
        if matches!(state.outbound, Outbound::Lost(_)) {
            actions.push(Action::Retire);
            return;
        }
        let granted = fast_path::apply_credit_update(state, &packet);
        let read = state.leases.credit_packets_read();
        let credit = packet.body.is_credit();
        if credit {
            if let Some(receiver) = &mut state.receiver {
                receiver.credit_packets_read(read, pool);
            }
            state.credit_packets_read = state.credit_packets_read.wrapping_add(1);
            self.counters.credit_packets_received += 1;
        }
        let accepted = granted && (packet.body.is_free() || self.accept(now, from, &packet, actions));
        actions.push(Action::Retire);
        let well_formed = accepted && (packet.body.is_free() || self.retrieved(from, slots, read, &packet));
        if !well_formed {
            self.counters.malformed_packets += 1;
            self.lose(from, PeerFault::Malformed, actions);
            return;
        }
        if packet.body == Body::Detach {
            self.peer_detached(from, actions);
        }
        self.return_credits(from, actions);
        self.send_while_credited(now, from, actions);
        if packet.body == Body::Detach {
            self.remove_if_idle(from);
        }
    }

    /// The slots of a packet are free. Returns whether its sender had credits for them.
    #[inline]
    fn retrieved(&mut self, from: Peer, slots: u32, read: u16, packet: &crate::Packet) -> bool {
        let Endpoint { peers, pool, .. } = self;
        let Some(receiver) = &mut peers[from.0 as usize].receiver else { return true };
        let spent = receiver.retrieved(slots, read, pool);
        let spent = match packet.body {
            Body::ReturnRequest => spent.and_then(|()| receiver.control_retrieved(None, pool)),
            Body::ReturnResponse { credits } => {
                spent.and_then(|()| receiver.control_retrieved(Some(credits), pool))
            }
            _ => spent,
        };
        if spent.is_err() {
            return false;
        }
        if packet.marks.backlogged
            && let Some(quota_slots) = receiver.packet_was_backlogged()
        {
            self.owned(quota_slots);
        }
        true
    }

    /// Handles the body of a packet. Returns whether it was valid.
    fn accept(
        &mut self,
        now: Instant,
        from: Peer,
        packet: &crate::Packet,
        actions: &mut Vec<Action>,
    ) -> bool {
        let bytes = u64::from(packet.payload_bytes);
        match packet.body {
            Body::Eager { space, tag, data, length, acknowledge } => {
                self.eager_arrived(now, from, space, tag, data, length, acknowledge, bytes, actions)
            }
            Body::More { offset } => self.more_arrived(from, u64::from(offset), bytes, actions),
            Body::Rendezvous { space, tag, data, length, address, transfer } => {
                self.rendezvous_arrived(now, from, space, tag, data, length, address, transfer, actions)
            }
            Body::Credit | Body::Detach => true,
            Body::Finished { transfer, count, refused } => {
                self.finished_arrived(from, transfer, count, refused, actions)
            }
            Body::Fetch { transfer, reply, length } => {
                self.fetch_arrived(now, from, transfer, reply, length, actions)
            }
            Body::Piece { transfer, offset, last } => {
                self.piece_arrived(now, from, transfer, offset, last, bytes, actions)
            }
            Body::Write { transfer, key, offset, left, data } => {
                self.write_arrived(now, from, transfer, key, offset, left, data, bytes, actions)
            }
            Body::Read { transfer, key, offset, length } => {
                self.read_arrived(now, from, transfer, key, offset, length, actions)
            }
            Body::Locate { transfer, key, offset, length, write } => {
                self.locate_arrived(now, from, transfer, key, offset, length, write, actions)
            }
            Body::Located { transfer, address, refused, .. } => {
                self.located_arrived(from, transfer, address, refused, actions)
            }
            Body::Goodbye => self.goodbye_arrived(from, actions),
            Body::ReturnRequest => self.return_request_arrived(from, packet.epoch),
            Body::ReturnResponse { .. } => {
                let pending = self.peer(from).pending.as_deref_mut();
                pending.is_some_and(|pending| pending.compulsory.answered())
            }
            Body::Written { data, bytes } => {
                actions.push(Action::Notify { from, data, bytes });
                true
            }
        }
    }

    #[inline]
    fn peer(&mut self, peer: Peer) -> &mut PeerEntry {
        if self.peers.get_mut(peer.0 as usize).is_none() {
            self.create_entry(peer);
        }
        &mut self.peers[peer.0 as usize]
    }

    /// Creates the entry of a peer.
    #[cold]
    fn create_entry(&mut self, peer: Peer) {
        let unreserved = self.budget.starts_rendezvous_only();
        let rendezvous_only = unreserved || (self.budget.enforced() && self.peers.has_leased(peer));
        let state = PeerEntry { rendezvous_only, unreserved, ..PeerEntry::new(self.config.cross_memory) };
        self.peers.insert(peer.0 as usize, state);
    }

    /// Notes how many data slots a sender owns here.
    fn owned(&mut self, slots: u32) {
        let peak = &mut self.counters.peak_quota_slots;
        *peak = (*peak).max(u64::from(slots));
    }

    fn complete(actions: &mut Vec<Action>, request: Request, outcome: Outcome) {
        actions.push(Action::Complete { request, outcome });
    }

    fn free_unexpected(&mut self, message: MessageId, actions: &mut Vec<Action>) {
        let unexpected = self.unexpected.remove(message);
        let kept = !matches!(unexpected.payload, Payload::WithSender { .. });
        if kept && unexpected.envelope.length > 0 {
            self.budget.refund(unexpected.envelope.length);
            actions.push(Action::FreeUnexpected { message });
        }
    }
}
