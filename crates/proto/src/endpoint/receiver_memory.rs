//! Receiver memory: the unexpected-message budget of a receiver, and the bounce buffers of a sender.
//!
//! This file has three calculators and does not know messages or packets. [`Budget`] decides whether senders must use
//! rendezvous only. [`BounceBuffers`] counts what a sender holds for receivers without memory. [`PendingAcks`]
//! coalesces acknowledgements. `docs/explanation/receiver-memory.md` explains why the budget holds.
//!
//! Worked exchange, budget used up: B sends A `credit, rendezvous_only`. A sends 2 KB: `FillBounce { r0 }`, `rendezvous
//! r0`, complete. B matches the message: `Copy`, complete. With 15 other acknowledgements, or when idle, B sends A
//! `finished r0, 16`, and A performs `FreeBounce { r0 }` and so on.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{Endpoint, Outbound, PendingWork};
use crate::action::Source;
use crate::config::{Config, Scheme};
use crate::driver::Driver;
use crate::event::{Peer, SendLevel, Transfer};
use crate::packet::Geometry;
use crate::table::{Number, Table};
use crate::transfer::{SendStage, State};

/// Cost of the link from one block of unexpected payload to the next. Unit: bytes.
const LINK_BYTES: u64 = 4;
/// Further cost of an unexpected message: the driver's record of its first block, 8 B in a table that may be half
/// empty. Unit: bytes.
const RECORD_BYTES: u64 = 16;

/// Block size for unexpected payload of `bytes` bytes. Small messages use small blocks, because they would leave a
/// large block nearly empty. Unit: bytes.
#[inline]
pub fn unexpected_block_bytes(bytes: u64) -> u64 {
    if bytes <= 48 { 16 } else { 64 }
}

/// Memory cost of the payload of an unexpected message of `bytes` bytes. Drivers stay within it. Envelopes are not
/// included: every unexpected message has one, wherever its payload is. They have their own bound of 64 bytes each.
#[inline]
pub fn unexpected_cost_bytes(bytes: u64) -> u64 {
    let block_bytes = unexpected_block_bytes(bytes);
    if bytes == 0 { 0 } else { RECORD_BYTES + bytes.div_ceil(block_bytes) * (block_bytes + LINK_BYTES) }
}

/// Maximum cost of the payload of one data slot as an unexpected message. No eager message is longer than
/// `eager_bytes`, however large slots are.
fn max_slot_cost_bytes(geometry: &Geometry, eager_bytes: u64) -> u64 {
    let cost = |slots| {
        let bytes = geometry.payload_bytes(geometry.eager_header_bytes.min(geometry.slot_bytes - 1), slots);
        unexpected_cost_bytes(u64::from(bytes).min(eager_bytes)).div_ceil(u64::from(slots))
    };
    // A message of one packet costs most per slot: further packets add payload but no message.
    (1..=geometry.max_packet_slots).map(cost).max().unwrap_or(0)
}

/// Maximum of unexpected payload from a sender with `quota_slots` own data slots, before it reads our answer.
fn reservation_bytes(config: &Config, slot_cost_bytes: u64, quota_slots: u32) -> u64 {
    // The first packet of a message is charged for the whole message.
    u64::from(quota_slots) * slot_cost_bytes + unexpected_cost_bytes(config.eager_bytes)
}

/// The same for all senders that share a data region, without the messages that their last credits start.
fn region_bytes(config: &Config, slot_cost_bytes: u64) -> u64 {
    match config.scheme {
        // A sender starts without `rendezvous_only` at its first contact, even if others hold the slots reserved for
        // it.
        Scheme::Dynamic { .. } => {
            let first = u64::from(config.region.start_slots)
                * u64::from(config.planned_peers.max(config.region.peers));
            (u64::from(config.region.slots) + first) * slot_cost_bytes
        }
        _ => 0,
    }
}

/// The reservation for a sender: for its own data slots, and for the message that its last credit starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reservation(Number);

impl Reservation {
    fn bytes(self, config: &Config, slot_cost_bytes: u64) -> u64 {
        reservation_bytes(config, slot_cost_bytes, self.0.get())
    }
}

/// The receiver's side: the unexpected-message budget.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    limit_bytes: u64,
    /// Maximum cost of the payload of one slot, over all links.
    slot_cost_bytes: u64,
    /// The reservations of all planned senders, if they fit. They include senders that have attached.
    planned_bytes: Option<u64>,
    attached_bytes: u64,
    /// Senders that are attached and not lost.
    attached: u32,
    used_bytes: u64,
    /// Every sender must use rendezvous only.
    over_limit: bool,
    /// The scheme grants credits, so the grants bound what can arrive.
    enforced: bool,
}

impl Budget {
    pub fn new(config: &Config) -> Budget {
        Budget::with_slot_cost(config, max_slot_cost_bytes(&config.geometry, config.eager_bytes))
    }

    /// Covers slots of `geometry` too. Nobody has attached yet.
    pub fn cover(&mut self, config: &Config, geometry: &Geometry) {
        assert!(self.attached == 0 && self.used_bytes == 0, "a geometry was added after the first contact");
        let slot_cost_bytes = max_slot_cost_bytes(geometry, config.eager_bytes).max(self.slot_cost_bytes);
        *self = Budget::with_slot_cost(config, slot_cost_bytes);
    }

    /// Whether the reservations cover slots of `geometry`.
    pub fn covers(&self, config: &Config, geometry: &Geometry) -> bool {
        max_slot_cost_bytes(geometry, config.eager_bytes) <= self.slot_cost_bytes
    }

    fn with_slot_cost(config: &Config, slot_cost_bytes: u64) -> Budget {
        let shared_bytes = region_bytes(config, slot_cost_bytes);
        let own_slots = if shared_bytes > 0 { 0 } else { config.planned_quota_slots };
        let one = reservation_bytes(config, slot_cost_bytes, own_slots);
        let all_bytes = one.saturating_mul(u64::from(config.planned_peers)).saturating_add(shared_bytes);
        let enforced = config.scheme.grants();
        let fits = config.planned_peers > 0 && all_bytes <= config.unexpected_budget_bytes;
        Budget {
            limit_bytes: config.unexpected_budget_bytes,
            slot_cost_bytes,
            planned_bytes: fits.then_some(all_bytes),
            attached_bytes: shared_bytes,
            attached: 0,
            used_bytes: 0,
            over_limit: false,
            enforced,
        }
    }

    /// Whether every sender starts with `rendezvous_only`, also this endpoint as a sender.
    pub fn starts_rendezvous_only(&self) -> bool {
        self.enforced && self.planned_bytes.is_none()
    }

    /// The reservations: the maximum that may still arrive eagerly.
    fn reserved_bytes(&self) -> u64 {
        self.planned_bytes.unwrap_or(0).max(self.attached_bytes)
    }

    /// A sender with `quota_slots` has attached. Returns its reservation. `None`: the budget has no space for it, so
    /// the sender must always use rendezvous. The reservation can be 0 in a region without eager messages.
    fn attach(&mut self, config: &Config, quota_slots: u32) -> Option<Reservation> {
        // Senders share the slots of a region. For each unexpected sender the region grows by the starting credits.
        let own_slots = match config.scheme {
            Scheme::Dynamic { .. } if self.attached < config.region.peers => 0,
            Scheme::Dynamic { .. } => config.region.start_slots,
            _ => quota_slots,
        };
        let reservation = Reservation(Number::of(own_slots));
        let bytes = reservation.bytes(config, self.slot_cost_bytes);
        if !self.enforced || self.attached_bytes + bytes > self.limit_bytes {
            return None;
        }
        self.attached_bytes += bytes;
        self.attached += 1;
        self.update();
        Some(reservation)
    }

    /// Whether this endpoint ever asks for rendezvous only.
    #[inline]
    pub fn enforced(&self) -> bool {
        self.enforced
    }

    /// A sender has detached or is lost.
    pub fn detach(&mut self, config: &Config, reserved: Option<Reservation>) {
        self.attached_bytes -=
            reserved.map_or(0, |reservation| reservation.bytes(config, self.slot_cost_bytes));
        self.attached -= u32::from(reserved.is_some());
        self.update();
    }

    pub fn charge(&mut self, bytes: u64) {
        self.used_bytes += unexpected_cost_bytes(bytes);
        self.update();
    }

    pub fn refund(&mut self, bytes: u64) {
        self.used_bytes -= unexpected_cost_bytes(bytes);
        self.update();
    }

    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    #[inline]
    pub fn is_over_limit(&self) -> bool {
        self.over_limit
    }

    fn update(&mut self) {
        let free_bytes = self.limit_bytes.saturating_sub(self.reserved_bytes());
        if self.used_bytes > free_bytes {
            self.over_limit = self.enforced;
        } else if self.used_bytes <= free_bytes / 2 {
            self.over_limit = false;
        }
    }
}

/// A bounce buffer: a copy of one of our messages, until its receiver has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct BounceBuffer {
    peer: Peer,
    bytes: u32,
    stage: Stage,
}

/// The peer's knowledge of a bounce buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing. The message waits for credit.
    Waiting,
    /// It was announced by a rendezvous packet.
    Announced,
    /// The peer has requested the payload in packets, and these wait in the backlog.
    Fetched,
    /// The requested packets have left.
    Left,
}

/// The sender's side: the bounce buffers for receivers without memory.
#[derive(Clone, Debug)]
pub(super) struct BounceBuffers {
    table: Table<BounceBuffer>,
    limit_bytes: u64,
    used_bytes: u64,
}

impl BounceBuffers {
    /// Cost of a bounce buffer beside its payload, which is rounded up to 16 bytes. Unit: bytes.
    const RECORD_BYTES: u64 = 32;

    pub fn new(limit_bytes: u64) -> BounceBuffers {
        BounceBuffers { table: Table::default(), limit_bytes, used_bytes: 0 }
    }

    fn cost_bytes(bytes: u64) -> u64 {
        bytes.next_multiple_of(16) + BounceBuffers::RECORD_BYTES
    }

    pub fn fits(&self, bytes: u64) -> bool {
        self.used_bytes + BounceBuffers::cost_bytes(bytes) <= self.limit_bytes && self.table.count() < 1 << 31
    }

    pub fn is_empty(&self) -> bool {
        self.table.count() == 0
    }

    /// The peer and the bytes of each.
    pub fn iter(&self) -> impl Iterator<Item = (Peer, u64)> {
        self.table.iter().map(|(_, buffer)| (buffer.peer, buffer.bytes.into()))
    }

    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Reserves a bounce buffer of `bytes` bytes, at most [`crate::MAX_EAGER_BYTES`], and returns its name.
    #[inline]
    pub fn begin(&mut self, peer: Peer, bytes: u64, stage: Stage) -> Transfer {
        self.used_bytes += BounceBuffers::cost_bytes(bytes);
        Transfer::of_bounce_buffer(self.table.insert(BounceBuffer { peer, bytes: bytes as u32, stage }))
    }

    /// A waiting bounce buffer is announced.
    fn announce(&mut self, transfer: Transfer) {
        if let Some(buffer) = transfer.bounce_buffer().and_then(|number| self.table.get_mut(number)) {
            buffer.stage = Stage::Announced;
        }
    }

    /// The bounce buffer of this number for `peer`.
    fn of_peer(&mut self, number: u32, peer: Peer) -> Option<&mut BounceBuffer> {
        self.table.get_mut(number).filter(|buffer| buffer.peer == peer)
    }

    /// `peer` requests the first `length` bytes of a bounce buffer in packets. Returns whether it may: it has not
    /// before.
    pub fn fetch(&mut self, number: u32, peer: Peer, length: u64) -> bool {
        let announced = |buffer: &&mut BounceBuffer| {
            buffer.stage == Stage::Announced && (1..=u64::from(buffer.bytes)).contains(&length)
        };
        let buffer = self.of_peer(number, peer).filter(announced);
        buffer.map(|buffer| buffer.stage = Stage::Fetched).is_some()
    }

    /// The last requested packet of a bounce buffer has left.
    pub fn pieces_left(&mut self, transfer: Transfer) {
        if let Some(buffer) = transfer.bounce_buffer().and_then(|number| self.table.get_mut(number)) {
            buffer.stage = Stage::Left;
        }
    }

    pub fn end(&mut self, transfer: Transfer) {
        if let Some(buffer) = transfer.bounce_buffer().and_then(|number| self.table.remove(number)) {
            self.used_bytes -= BounceBuffers::cost_bytes(u64::from(buffer.bytes));
        }
    }

    fn with_peer(&self, peer: Peer) -> Vec<Transfer> {
        let of_peer = self.table.iter().filter(|(_, buffer)| buffer.peer == peer);
        of_peer.map(|(number, _)| Transfer::of_bounce_buffer(number)).collect()
    }
}

/// Coalesced acknowledgements: transfers of one peer that have ended here and that we have not acknowledged. They leave
/// before the backlog, and one packet carries several where the names are consecutive.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingAcks {
    /// The first name of each range, and the length of the range.
    ranges: VecDeque<(u32, u32)>,
    bounce_buffers: u32,
    copied_bytes: u64,
    /// They leave as soon as there is credit.
    due: bool,
    /// The peer is in the endpoint's list of pending acknowledgements.
    listed: bool,
}

impl PendingAcks {
    /// Bounce buffers that are acknowledged together. A late acknowledgement costs the sender memory, but no operation
    /// waits for it.
    const COPIES: u32 = 16;
    /// Maximum of their payload. Unit: bytes.
    const COPIED_BYTES: u64 = 1 << 16;

    #[inline]
    pub fn is_due(&self) -> bool {
        self.due
    }

    /// Number of acknowledgements that are due and that an operation of the peer waits for.
    pub fn awaited(&self) -> u64 {
        let awaited = |&&(first, _): &&(u32, u32)| Transfer(first).bounce_buffer().is_none();
        let counts = self.ranges.iter().filter(awaited).map(|&(_, count)| u64::from(count));
        if self.due { counts.sum() } else { 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Heap memory that it uses.
    pub fn bytes(&self) -> usize {
        self.ranges.capacity() * size_of::<(u32, u32)>()
    }

    /// Whether there is nothing to acknowledge, now or later.
    pub fn is_idle(&self) -> bool {
        self.is_empty() && !self.listed
    }

    #[inline]
    fn add(&mut self, transfer: Transfer, bytes: u64) {
        if transfer.bounce_buffer().is_none() {
            self.ranges.push_back((transfer.0, 1)); // an operation of its sender waits for it
            self.due = true;
            return;
        }
        self.bounce_buffers += 1;
        self.copied_bytes += bytes;
        self.due |=
            self.bounce_buffers >= PendingAcks::COPIES || self.copied_bytes >= PendingAcks::COPIED_BYTES;
        match self.ranges.back_mut() {
            Some((first, count)) if transfer.0 == first.wrapping_add(*count) => *count += 1,
            Some((first, count))
                if transfer.0.wrapping_add(1) == *first && Transfer(*first).bounce_buffer().is_some() =>
            {
                (*first, *count) = (transfer.0, *count + 1);
            }
            _ => self.ranges.push_back((transfer.0, 1)),
        }
    }

    /// The first range: its first name, and its length.
    #[inline]
    pub fn first(&self) -> Option<(Transfer, u32)> {
        self.ranges.front().map(|&(first, count)| (Transfer(first), count))
    }

    /// Removes the first range.
    #[inline]
    pub fn remove_first(&mut self) {
        self.ranges.pop_front();
        if self.ranges.is_empty() {
            (self.bounce_buffers, self.copied_bytes, self.due) = (0, 0, false);
            if self.ranges.capacity() > 1024 {
                self.ranges = VecDeque::new();
            }
        }
    }
}

impl Endpoint {
    /// A peer has attached: reserve memory for what it can send before it reads our answer.
    pub(super) fn reserve(&mut self, peer: Peer, quota_slots: u32) {
        let before = self.peer(peer).reserved.take();
        self.budget.detach(&self.config, before);
        let reserved = self.budget.attach(&self.config, quota_slots);
        let state = self.peer(peer);
        state.reserved = reserved;
        state.path.grants.unreserved = reserved.is_none();
        if !self.budget.enforced {
            self.peer(peer).path.grants.unreserved = false;
        }
    }

    /// A peer is lost: free its reservation, its acknowledgements and its bounce buffers.
    pub(super) fn unreserve<D: Driver>(&mut self, peer: Peer, driver: &mut D) {
        let state = self.peer(peer);
        let reserved = state.reserved.take();
        if let Some(PendingWork { acks, .. }) = state.pending.as_deref_mut() {
            *acks = PendingAcks { listed: acks.listed, ..PendingAcks::default() };
        }
        self.budget.detach(&self.config, reserved);
        self.free_bounce_buffers(peer, driver);
    }

    /// Frees the bounce buffers for `peer`, which will not receive them.
    pub(super) fn free_bounce_buffers<D: Driver>(&mut self, peer: Peer, driver: &mut D) {
        let Some(PendingWork { bounce_buffers, .. }) = self.peer(peer).pending.as_deref_mut() else { return };
        if core::mem::take(bounce_buffers) == 0 {
            return;
        }
        for transfer in self.bounce_buffers.with_peer(peer) {
            self.bounce_buffers.end(transfer);
            driver.free_bounce(transfer);
        }
    }

    /// Whether a send to a peer in rendezvous-only mode would have to leave its payload in the program's own buffer.
    #[inline]
    pub(super) fn announces_user_buffer(&self, to: Peer, bytes: u64, level: SendLevel) -> bool {
        if bytes > self.config.eager_bytes {
            return true;
        }
        bytes > 0
            && self.is_rendezvous_only(to)
            && (level >= SendLevel::Delivered || !self.bounce_buffers.fits(bytes))
    }

    /// Whether waiting could free a bounce buffer for `bytes` bytes that do not fit now. The bounce buffer is needed
    /// because `to` has no memory, or because the message cannot leave.
    #[inline]
    pub(super) fn may_fit_later(&self, to: Peer, bytes: u64) -> bool {
        (1..=self.config.eager_bytes).contains(&bytes)
            && (self.is_rendezvous_only(to) || self.would_wait(to, bytes))
            && !self.bounce_buffers.fits(bytes)
            && !self.bounce_buffers.is_empty()
    }

    /// Number of bounce buffers with messages that `to` has not received.
    #[inline]
    pub fn bounce_buffers_for(&self, to: Peer) -> u32 {
        let pending = self.peers.full_entry(to.0 as usize).and_then(|state| state.pending.as_deref());
        pending.map_or(0, |pending| pending.bounce_buffers)
    }

    #[inline]
    fn is_rendezvous_only(&self, to: Peer) -> bool {
        match self.peers.full_entry(to.0 as usize) {
            Some(state) => state.path.rendezvous_only && !matches!(state.path.outbound, Outbound::Lost(_)),
            None => {
                self.budget.starts_rendezvous_only() || (self.budget.enforced() && self.peers.has_leased(to))
            }
        }
    }

    /// Whether [`crate::Event::Idle`] would send acknowledgements.
    #[inline]
    pub fn has_pending_acks(&self) -> bool {
        !self.pending_acks.is_empty()
    }

    /// Acknowledges `transfer` of `to`, with `bytes` bytes of payload, which has ended well.
    pub(super) fn acknowledge_transfer<D: Driver>(
        &mut self,
        to: Peer,
        transfer: Transfer,
        bytes: u64,
        driver: &mut D,
    ) {
        self.peer(to);
        let Endpoint { peers, spare, .. } = self;
        let state = &mut peers[to.0 as usize];
        match state.path.outbound {
            Outbound::Absent => {
                state.path.outbound = Outbound::Connecting;
                driver.connect(to);
            }
            Outbound::Lost(_) => return,
            Outbound::Connecting | Outbound::Connected(_) => {}
        }
        let acks = &mut spare.begin(&mut state.pending).acks;
        acks.add(transfer, bytes);
        if acks.is_due() {
            self.send_while_credited(to, driver);
        } else if !core::mem::replace(&mut acks.listed, true) {
            self.pending_acks.push(to);
        }
    }

    /// Sends all coalesced acknowledgements.
    pub(super) fn flush_acks<D: Driver>(&mut self, driver: &mut D) {
        for peer in core::mem::take(&mut self.pending_acks) {
            let state = self.peer(peer);
            if let Some(PendingWork { acks, .. }) = state.pending.as_deref_mut() {
                (acks.due, acks.listed) = (!acks.is_empty(), false);
            }
            if state.is_due() && matches!(state.path.outbound, Outbound::Absent) {
                state.path.outbound = Outbound::Connecting; // we have detached in the meantime
                driver.connect(peer);
            }
            self.send_while_credited(peer, driver);
            self.remove_if_idle(peer);
        }
    }

    /// `peer` acknowledges `count` bounce buffers from number `first` on. Returns whether the acknowledgement is valid.
    pub(super) fn bounce_buffers_finished<D: Driver>(
        &mut self,
        peer: Peer,
        first: u32,
        count: u32,
        driver: &mut D,
    ) -> bool {
        for number in (first..).take(count as usize) {
            match self.bounce_buffers.of_peer(number, peer).map(|buffer| buffer.stage) {
                Some(Stage::Announced | Stage::Left) => {}
                // A goodbye has freed it already; the peer still acknowledges what it received before.
                None | Some(Stage::Waiting) => return self.peer(peer).said_goodbye,
                Some(Stage::Fetched) => return false, // requested pieces have not left
            }
            let transfer = Transfer::of_bounce_buffer(number);
            let pending = self.peer(peer).pending.as_deref_mut();
            let PendingWork { bounce_buffers, .. } =
                pending.expect("a peer with bounce buffers has pending work");
            *bounce_buffers -= 1;
            self.bounce_buffers.end(transfer);
            driver.free_bounce(transfer);
        }
        count > 0
    }
}

/// Turns an eager message into a rendezvous for a receiver without memory: returns its name and where its payload lies.
pub(super) fn announce(
    entry: &super::sending::BacklogEntry,
    acknowledge: Option<Transfer>,
    delivered: bool,
    to: Peer,
    bounce_buffers: &mut BounceBuffers,
    transfers: &mut crate::transfer::Transfers,
) -> Option<(Transfer, Source)> {
    let request = match entry.payload {
        Source::Request { request, .. } => request,
        Source::Bounce { transfer, .. } => {
            bounce_buffers.announce(transfer); // it was copied while it waited for credit
            return Some((transfer, entry.payload));
        }
        Source::None | Source::Region { .. } => return None,
    };
    if let Some(transfer) = acknowledge {
        // The send waits for the match in any case, so the payload can stay in the program's buffer.
        if let Some(State::Send { length, .. }) = transfers.get(transfer, to) {
            *length = entry.bytes;
        }
        return Some((transfer, entry.payload));
    }
    // A bounce buffer ends with us. So a delivered send waits until the receiver has the payload.
    if !delivered && bounce_buffers.fits(entry.bytes) {
        let transfer = bounce_buffers.begin(to, entry.bytes, Stage::Announced);
        return Some((transfer, Source::Bounce { transfer, offset: 0 }));
    }
    let stage = SendStage::Queued;
    Some((transfers.begin(to, State::Send { request, length: entry.bytes, stage }), entry.payload))
}
