//! The unexpected-message budget of a receiver, in schemes with credits. It reserves memory for what attached and
//! planned senders may still send, and decides whether senders must use rendezvous only. The cost of a message is
//! computed here, also for drivers.
//!
//! This file does not know messages or packets. `docs/explanation/receiver-memory.md` explains why the budget holds.

use crate::config::{Config, Scheme};
use crate::packet::Geometry;
use crate::table::Number;

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
        Scheme::Dynamic { .. } | Scheme::Demand => {
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
    pub fn attach(&mut self, config: &Config, quota_slots: u32) -> Option<Reservation> {
        // Senders share the slots of a region. For each unexpected sender the region grows by the starting credits.
        let own_slots = match config.scheme {
            Scheme::Dynamic { .. } | Scheme::Demand if self.attached < config.region.peers => 0,
            Scheme::Dynamic { .. } | Scheme::Demand => config.region.start_slots,
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
