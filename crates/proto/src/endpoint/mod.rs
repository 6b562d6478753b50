//! The endpoint machine: it routes events to the parts that decide, and holds the state that they share.
//!
//! It knows peers as numbers, requests as the driver's handles, and payload as offsets. It does not know addresses,
//! pointers, clocks, or the layout of a slot.
//!
//! Worked exchange, 4 credits, an 8 B message to a new peer:
//! ```text
//! handle(Posted(Send { request 0, to 1, 8 bytes }))   driver.hold(0), driver.connect(1)
//! handle(Connected { peer 1, 4 slots })               driver.transmit(Eager, 8 bytes), driver.complete(0, Done)
//! at the peer: handle(Arrived { Eager })              driver.deliver_packet(3, 8 bytes), driver.retire()
//! ```

mod busy_link;
#[cfg(feature = "explore")]
pub mod canonical;
mod compulsory;
mod fast_path;
mod lane_lease;
mod loss;
mod path;
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

use crate::config::{Config, MAX_UNEXPECTED, Scheme};
use crate::counters::Counters;
use crate::driver::Driver;
use crate::event::{Command, Event, MessageId, Peer, PeerFault};
use crate::flow;
use crate::message::posted::PostedQueue;
use crate::message::unexpected::{Payload, UnexpectedQueue};
use crate::packet::{Body, Geometry};
use crate::table::{Number, Row};
use crate::timers::{Purpose, Timer};
use crate::transfer::Transfers;
use path::{Outbound, Path};
use peers::Peers;
use pending::{PendingWork, Spare};
use receiver_memory::{BounceBuffers, Budget, Reservation};
use receiving::{Inbound, MultiBuffers};
use sending::{BacklogEntry, EntryKind};
pub use view::PairView;

/// The state of one peer, from the first contact until both sides have detached. Thousands of peers may be idle, so
/// this structure is small.
#[derive(Clone, Debug)]
struct PeerEntry {
    path: Path,
    /// State that few peers have at a time.
    pending: Option<Box<PendingWork>>,
    /// Number of the next message. Restarts at 0 when the entry is removed, which requires that no message is pending.
    next_number: u32,
    /// The eager message that is partly arrived.
    inbound: Option<Number>,
    /// Its reservation in our budget.
    reserved: Option<Reservation>,
    /// Copies between the two processes work, as far as we know.
    cross_memory: bool,
    /// It has sent a goodbye and receives nothing more.
    said_goodbye: bool,
}

impl PeerEntry {
    /// The entry of a new peer.
    fn new(cross_memory: bool) -> PeerEntry {
        PeerEntry {
            path: Path::new(),
            pending: None,
            next_number: 0,
            inbound: None,
            reserved: None,
            cross_memory,
            said_goodbye: false,
        }
    }

    /// The backlog, in order.
    fn backlog(&self) -> impl Iterator<Item = &BacklogEntry> {
        self.pending.as_deref().into_iter().flat_map(|pending| pending.backlog.iter())
    }

    fn backlog_len(&self) -> usize {
        self.pending.as_deref().map_or(0, |pending| pending.backlog.len())
    }

    #[inline]
    fn has_backlog(&self) -> bool {
        self.pending.as_deref().is_some_and(|pending| !pending.backlog.is_empty())
    }

    /// Whether a message to it must wait behind others or for the link.
    #[inline]
    fn must_queue(&self) -> bool {
        self.pending.as_deref().is_some_and(PendingWork::must_queue)
    }

    /// See [`PendingWork::receives_on_common_path`].
    #[inline]
    fn receives_on_common_path(&self) -> bool {
        self.pending.as_deref().is_none_or(PendingWork::receives_on_common_path)
    }

    /// See [`PendingWork::sends_on_common_path`].
    #[inline]
    fn sends_on_common_path(&self) -> bool {
        self.pending.as_deref().is_none_or(PendingWork::sends_on_common_path)
    }

    /// The geometry of the path. `own`: that of the endpoint.
    #[inline]
    fn geometry(&self, own: &Geometry) -> Geometry {
        self.pending.as_deref().and_then(|pending| pending.geometry).unwrap_or(*own)
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

/// Why a posted command is refused. Nothing has changed then, and the command can be posted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The driver holds as many operations as it can ([`Driver::can_hold`]).
    Operations,
    /// As many entries as allowed wait for credit at the peer ([`Config::max_backlog`]).
    Backlog,
    /// As many remote reads and writes with the peer as allowed are outstanding ([`crate::MAX_REMOTE_OPERATIONS`]).
    RemoteOperations,
    /// An injected message does not fit into the bounce buffers ([`Config::bounce_bytes`]).
    BounceBuffers,
    /// The driver acts early, and what the packet causes depends on the time ([`Driver::acts_early`]).
    Early,
}

/// What completed operations have left behind for one peer. Closing now would lose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// The peer.
    pub peer: Peer,
    /// Messages that it has not taken.
    pub messages: u64,
    /// Their payload. Unit: bytes.
    pub bytes: u64,
    /// Acknowledgements that operations of the peer wait for.
    pub acknowledgements: u64,
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
            any_peer_died: false,
            #[cfg(feature = "explore")]
            relies_on_thresholds: false,
        }
    }

    /// Paths over other links have this geometry ([`Event::PathGeometry`]). Call it before the first event: the budget
    /// for unexpected messages must cover the largest slots.
    pub fn expect_geometry(&mut self, geometry: &Geometry) {
        self.budget.cover(&self.config, geometry);
    }

    fn set_geometry(&mut self, peer: Peer, geometry: Geometry) {
        assert!(
            self.budget.covers(&self.config, &geometry),
            "expect_geometry was not called for {geometry:?}"
        );
        self.peer(peer);
        let Endpoint { config, peers, spare, .. } = self;
        if geometry != config.geometry {
            spare.begin(&mut peers[peer.0 as usize].pending).geometry = Some(geometry);
        }
    }

    /// Handles one event: calls `driver` for each thing to be done, in order. The common events are inlined into the
    /// caller, so that a driver that acts at once needs no list of actions.
    ///
    /// # Errors
    /// [`Refusal`]: a posted send, receive, read or write exceeds a bound, or a driver that acts early passes a packet
    /// too early. Then nothing has changed. No other event is refused.
    #[inline(always)]
    pub fn handle<D: Driver>(&mut self, event: Event<'_>, driver: D) -> Result<(), Refusal> {
        match event {
            Event::Posted(Command::Send(send)) => self.send(send, driver),
            Event::Posted(Command::Receive(receive)) => self.receive(receive, driver),
            Event::Arrived { from, packet } => self.arrived(from, packet, driver),
            event => self.handle_uncommon(event, driver),
        }
    }

    #[inline(never)]
    fn handle_uncommon<D: Driver>(&mut self, event: Event<'_>, mut driver: D) -> Result<(), Refusal> {
        let driver = &mut driver;
        match event {
            Event::Posted(command) => self.command(command, driver)?,
            Event::Arrived { .. } => unreachable!("arrivals are common events"),
            Event::PathGeometry { peer, geometry } => self.set_geometry(peer, geometry),
            Event::Connected { peer, quota_slots, start_slots, credit_slots, epoch } => {
                let sender = flow::Sender::new(self.config.scheme, quota_slots, start_slots);
                self.connected(peer, sender, credit_slots, epoch, driver);
            }
            Event::DetachRequested { peer } => self.detach(peer, driver),
            Event::Attached { peer, quota_slots, start_slots, epoch } => {
                self.attached(peer, (quota_slots, start_slots), epoch, driver);
            }
            Event::Room { peer, slots } => self.room_answered(peer, slots, driver),
            Event::CopyDone { transfer, result } => self.copy_done(transfer, result, driver),
            Event::CreditsDue { peer } => self.return_credits(peer, driver),
            Event::LinkReady { peer } => self.link_ready(peer, driver),
            Event::Lost { peer, fault } => self.lose(peer, fault, driver),
            Event::TimerExpired(Timer { peer, purpose: Purpose::Rnr }) => self.retry(peer, driver),
            Event::Idle => self.flush_acks(driver),
        }
        self.send_return_requests(driver);
        Ok(())
    }

    /// Ends an event: credits that the pool has decided to take back are requested.
    #[inline]
    fn send_return_requests<D: Driver>(&mut self, driver: &mut D) {
        if self.pool.has_requests() {
            self.ask_for_credits(driver);
        }
    }

    /// Swaps the spare memory with that in `scratch`. Changes nothing else.
    #[inline]
    pub fn exchange_scratch(&mut self, scratch: &mut Scratch) {
        core::mem::swap(&mut self.spare, &mut scratch.pending);
        self.peers.exchange_spare(&mut scratch.peer);
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
        let full_entry = self.peers.full_entry(peer.0 as usize);
        let own = &self.config.geometry;
        let geometry = full_entry.map_or(*own, |state| state.geometry(own));
        let packet_bytes =
            u64::from(geometry.slot_bytes * geometry.max_packet_slots - geometry.remote_header_bytes);
        let whole = if bytes > self.config.eager_bytes { 0 } else { bytes };
        let packets = whole / packet_bytes.max(1) + 1;
        let slots = whole / u64::from(geometry.slot_bytes) + 2 * packets;
        match full_entry {
            Some(state @ PeerEntry { path: Path { outbound: Outbound::Connected(sender), .. }, .. }) => {
                u64::from(sender.credits()) < slots || state.must_queue()
            }
            Some(_) => true,
            None => self.peers.compact_room(peer.0 as usize).is_none_or(|room| u64::from(room) < slots),
        }
    }

    /// Memory for envelopes of unexpected messages, without the payload that the driver stores. Unit: bytes.
    pub fn unexpected_bytes(&self) -> usize {
        self.unexpected.bytes()
    }

    /// Number of unexpected messages.
    #[inline]
    pub fn unexpected_count(&self) -> u32 {
        self.unexpected.count()
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

    /// Whether there was contact with any peer, ourselves included.
    pub fn has_contacts(&self) -> bool {
        self.peers.contacted().next().is_some()
    }

    /// Number of multi-receive buffers that have not ended.
    #[inline]
    pub fn multi_receives(&self) -> usize {
        self.multi.count()
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

    /// What closing now would lose although an operation was reported complete, by peer in no order: messages that have
    /// not left or whose bounce buffers wait, and acknowledgements that are due. Cost: visits every backlog entry and
    /// every bounce buffer.
    pub fn undelivered(&self) -> Vec<Undelivered> {
        let mut of_peers: BTreeMap<Peer, Undelivered> = BTreeMap::new();
        let nothing = |peer| Undelivered { peer, messages: 0, bytes: 0, acknowledgements: 0 };
        for (peer, bytes) in self.bounce_buffers.iter() {
            let undelivered = of_peers.entry(peer).or_insert_with(|| nothing(peer));
            undelivered.messages += 1;
            undelivered.bytes += bytes;
        }
        for (peer, state) in self.peers.entries() {
            let Some(pending) = state.pending.as_deref() else { continue };
            let mut found = nothing(peer);
            found.acknowledgements += pending.acks.awaited();
            for entry in pending.backlog.iter().filter(|entry| entry.is_completed()) {
                match entry.kind {
                    EntryKind::Control(_) => found.acknowledgements += 1,
                    _ => (found.messages, found.bytes) = (found.messages + 1, found.bytes + entry.bytes),
                }
            }
            if found != nothing(peer) {
                let undelivered = of_peers.entry(peer).or_insert_with(|| nothing(peer));
                undelivered.messages += found.messages;
                undelivered.bytes += found.bytes;
                undelivered.acknowledgements += found.acknowledgements;
            }
        }
        of_peers.into_values().collect()
    }

    /// Whether an operation of the program waits for a peer, without receives. Cost: visits backlog entries.
    pub fn has_incomplete(&self) -> bool {
        let incomplete = |entry: &BacklogEntry| {
            let goodbye = matches!(entry.kind, EntryKind::Control(Body::Goodbye));
            !goodbye && !entry.is_completed() && !entry.is_bounced()
        };
        self.transfers.has_announced_payload()
            || self.peers.full_entries().any(|peer| peer.backlog().any(incomplete))
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
        match self.peers.full_entry(peer.0 as usize)?.path.outbound {
            Outbound::Lost(fault) => Some(fault),
            _ => None,
        }
    }

    fn command<D: Driver>(&mut self, command: Command, driver: &mut D) -> Result<(), Refusal> {
        match command {
            Command::Send(_) | Command::Receive(_) => unreachable!("sends and receives are common events"),
            Command::Peek { request, pattern, then } => self.peek(request, &pattern, then, driver),
            Command::ReceiveClaimed { request, message, capacity_bytes } => {
                self.receive_claimed(request, message, capacity_bytes, driver);
            }
            Command::DiscardClaimed { request, message } => self.discard(request, message, driver),
            Command::Cancel { request } => self.cancel(request, driver),
            Command::Read(read) => self.read(read, driver)?,
            Command::Write(write) => self.write(write, driver)?,
            Command::RegisterMemory { key, bytes, readable, writable } => {
                self.regions.insert(key, Region { bytes, readable, writable });
            }
            Command::DeregisterMemory { key } => {
                self.regions.remove(&key);
            }
            Command::Close => self.close(driver),
        }
        Ok(())
    }

    /// Whether the bounds allow an operation that may wait for credit with `bytes` bytes to `to`.
    fn check_bounds<D: Driver>(&self, to: Peer, bytes: u64, driver: &D) -> Result<(), Refusal> {
        let state = self.peers.full_entry(to.0 as usize);
        let waiting = state.map_or(0, PeerEntry::backlog_len);
        if waiting >= self.config.max_backlog as usize && self.would_wait(to, bytes) {
            return Err(Refusal::Backlog);
        }
        if driver.can_hold() { Ok(()) } else { Err(Refusal::Operations) }
    }

    /// A packet that the common cases do not cover has arrived. Its slots count as retrieved after [`Driver::retire`],
    /// and only then can they be granted again.
    fn arrived_uncommon<D: Driver>(&mut self, from: Peer, packet: &crate::Packet, driver: &mut D) {
        self.counters.packets_received += 1;
        self.peer(from);
        let Endpoint { config, peers, pool, .. } = self;
        let state = &mut peers[from.0 as usize];
        let slots = state.geometry(&config.geometry).packet_slots(packet);
        if matches!(state.path.outbound, Outbound::Lost(_)) {
            driver.retire();
            return;
        }
        let granted = fast_path::apply_credit_update(state, packet);
        let read = state.path.grants.leases.credit_packets_read();
        let credit = packet.body.is_credit();
        if credit {
            if let Some(receiver) = &mut state.path.grants.receiver {
                receiver.credit_packets_read(read, pool);
            }
            state.path.grants.credit_packets_read = state.path.grants.credit_packets_read.wrapping_add(1);
            self.counters.credit_packets_received += 1;
        }
        let accepted = granted && (packet.body.is_free() || self.accept(from, packet, driver));
        driver.retire();
        let well_formed = accepted && (packet.body.is_free() || self.retrieved(from, slots, read, packet));
        if !well_formed {
            self.lose(from, PeerFault::Malformed, driver);
            return;
        }
        if packet.body == Body::Detach {
            self.peer_detached(from, driver);
        }
        self.return_credits(from, driver);
        self.send_while_credited(from, driver);
        if packet.body == Body::Detach {
            self.remove_if_idle(from);
        }
    }

    /// The slots of a packet are free. Returns whether its sender had credits for them.
    #[inline]
    fn retrieved(&mut self, from: Peer, slots: u32, read: u16, packet: &crate::Packet) -> bool {
        let Endpoint { peers, pool, .. } = self;
        let Some(receiver) = &mut peers[from.0 as usize].path.grants.receiver else { return true };
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
    fn accept<D: Driver>(&mut self, from: Peer, packet: &crate::Packet, driver: &mut D) -> bool {
        let bytes = u64::from(packet.payload_bytes);
        match packet.body {
            Body::Eager { space, tag, data, length, acknowledge } => {
                self.eager_arrived(from, space, tag, data, length, acknowledge, bytes, driver)
            }
            Body::More { offset } => self.more_arrived(from, u64::from(offset), bytes, driver),
            Body::Rendezvous { space, tag, data, length, address, transfer } => {
                self.rendezvous_arrived(from, space, tag, data, length, address, transfer, driver)
            }
            Body::Credit | Body::Detach => true,
            Body::Finished { transfer, count, refused } => {
                self.finished_arrived(from, transfer, count, refused, driver)
            }
            Body::Fetch { transfer, reply, length } => {
                self.fetch_arrived(from, transfer, reply, length, driver)
            }
            Body::Piece { transfer, offset, last } => {
                self.piece_arrived(from, transfer, offset, last, bytes, driver)
            }
            Body::Write { transfer, key, offset, left, data } => {
                self.write_arrived(from, transfer, key, offset, left, data, bytes, driver)
            }
            Body::Read { transfer, key, offset, length } => {
                self.read_arrived(from, transfer, key, offset, length, driver)
            }
            Body::Locate { transfer, key, offset, length, write } => {
                self.locate_arrived(from, transfer, key, offset, length, write, driver)
            }
            Body::Located { transfer, address, refused, .. } => {
                self.located_arrived(from, transfer, address, refused, driver)
            }
            Body::Goodbye => self.goodbye_arrived(from, driver),
            Body::ReturnRequest => self.return_request_arrived(from, packet.epoch),
            Body::ReturnResponse { .. } => {
                let pending = self.peer(from).pending.as_deref_mut();
                pending.is_some_and(|pending| pending.compulsory.answered())
            }
            Body::Written { data, bytes } => {
                driver.notify(from, data, bytes);
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
        let mut state = PeerEntry::new(self.config.cross_memory);
        state.path.rendezvous_only = rendezvous_only;
        state.path.grants.unreserved = unreserved;
        self.peers.insert(peer.0 as usize, state);
    }

    /// Notes how many data slots a sender owns here.
    fn owned(&mut self, slots: u32) {
        let peak = &mut self.counters.peak_quota_slots;
        *peak = (*peak).max(u64::from(slots));
    }

    fn free_unexpected<D: Driver>(&mut self, message: MessageId, driver: &mut D) {
        let unexpected = self.unexpected.remove(message);
        let kept = !matches!(unexpected.payload, Payload::WithSender { .. });
        if kept && unexpected.envelope.length > 0 {
            self.budget.refund(unexpected.envelope.length);
            driver.free_unexpected(message);
        }
    }
}
